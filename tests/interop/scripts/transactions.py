"""Scripts: transactions from their first producer id to their markers."""

from __future__ import annotations

from typing import Any

from tests.interop.process import wait_until
from tests.interop.scripts.produce import produce_body
from tests.interop.scripts.script import Script
from tests.interop.scripts.transacting import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END,
    INIT,
    OFFSET_FETCH,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    WRITE_MARKERS,
    Producer,
    add,
    add_body,
    batch,
    coordinators,
    describe_producers,
    end,
    init_body,
    producer,
    settled,
    told,
)

# ---- producer ids ---------------------------------------------------------------------------------------------


def transactional_ids(s: Script) -> None:
    """InitProducerId with transactional ids: epochs, timeouts, producers that go on, zombies."""
    coordinators(s)
    name = s.create("txn-init")
    producer(s, "init-warm")
    for v in s.versions(INIT):
        who = f"init-v{v}"
        for case in ("new", "again", "and again"):
            s.ask(INIT, v, init_body(who), case)
        for timeout in (0, -1, 1, 900000, 900001, 2**31 - 1):
            s.ask(INIT, v, init_body(who, timeout), f"timeout {timeout}")
        for odd in ("x" * 300, "umläut", " ", "a:b"):
            s.ask(INIT, v, init_body(odd), f"named {odd[:9]!r}")
        if v >= 3:
            _go_on(s, v)
        _fence_open(s, v, name)


def _go_on(s: Script, v: int) -> None:
    who = producer(s, f"go-on-v{v}")

    def ask(case: str, producer_id: int, epoch: int) -> None:
        body = init_body(who.transactional_id, producer_id=producer_id, producer_epoch=epoch)
        s.ask(INIT, v, body, case)

    ask("goes on", who.producer_id, who.producer_epoch)
    ask("goes on, repeated", who.producer_id, who.producer_epoch)
    ask("an epoch of the future", who.producer_id, 99)
    ask("another producer id", who.producer_id + 100000, 0)
    s.ask(INIT, v, init_body(who.transactional_id), "somebody else")
    ask("goes on after somebody else", who.producer_id, who.producer_epoch)
    ask("an id without an epoch", who.producer_id, -1)
    ask("an epoch without an id", -1, 0)
    unknown = init_body(f"forgotten-v{v}", producer_id=77, producer_epoch=4)
    s.ask(INIT, v, unknown, "goes on where nobody was")


def _fence_open(s: Script, v: int, topic: str) -> None:
    who = producer(s, f"fenced-v{v}")
    add(s, who, {topic: [0]})
    s.ask(INIT, v, init_body(who.transactional_id), "a transaction is open")
    told(s, who.transactional_id, f"after fencing by v{v}")
    s.ask(INIT, v, init_body(who.transactional_id), "after the abort")
    for version in s.versions(ADD_PARTITIONS):
        s.ask(ADD_PARTITIONS, version, add_body(version, who, {topic: [0]}), f"a zombie fenced by v{v}")
    for version in s.versions(END):
        s.ask(END, version, {**who.fields, "committed": True}, f"a zombie fenced by v{v}")


# ---- partitions and offsets -----------------------------------------------------------------------------------


def add_partitions(s: Script) -> None:
    """AddPartitionsToTxn: by clients one transaction, by brokers many; adding and verifying."""
    coordinators(s)
    one, two = s.create("txn-add-a", 3), s.create("txn-add-b", 3)
    for v in s.versions(ADD_PARTITIONS):
        who = producer(s, f"add-v{v}")
        verify = {"verify_only": True} if v >= 4 else {}
        for mode in ({}, verify) if verify else ({},):
            words = ", verify only" if mode else ""
            for case, changed, topics in [
                ("nothing is open", who, {one: [0]}),
                ("the same again", who, {one: [0]}),
                ("two topics", who, {one: [0, 2], two: [1]}),
                ("no topics", who, {}),
                ("a topic without partitions", who, {one: []}),
                ("unknown topic", who, {"nope": [0], one: [1]}),
                ("unknown partition", who, {one: [1, 9]}),
                ("negative partition", who, {one: [-1]}),
                ("internal topic", who, {"__consumer_offsets": [0]}),
                ("another producer id", who._replace(producer_id=who.producer_id + 100000), {one: [0]}),
                ("an older epoch", who._replace(producer_epoch=-1), {one: [0]}),
                ("a newer epoch", who._replace(producer_epoch=9), {one: [0]}),
                ("unknown transactional id", who._replace(transactional_id="nobody"), {one: [0]}),
                ("empty transactional id", who._replace(transactional_id=""), {one: [0]}),
            ]:
                s.ask(ADD_PARTITIONS, v, add_body(v, changed, topics, **mode), case + words)
        told(s, who.transactional_id, f"after adding by v{v}")
        if v >= 4:
            _add_many(s, v, one)
        end(s, who, committed=False)


def _add_many(s: Script, v: int, topic: str) -> None:
    first, second = producer(s, f"many-1-v{v}"), producer(s, f"many-2-v{v}")
    topics = [{"name": topic, "partitions": [0, 1]}]
    for verify in (False, True):
        rows = [
            {**who.fields, "topics": topics, "verify_only": verify}
            for who in (first, second._replace(producer_epoch=7))
        ]
        s.ask(ADD_PARTITIONS, v, {"transactions": rows}, f"two transactions, verify only {verify}")


def add_offsets(s: Script) -> None:
    """AddOffsetsToTxn."""
    coordinators(s)
    for v in s.versions(ADD_OFFSETS):
        who = producer(s, f"offsets-v{v}")
        for case, changed, group in [
            ("a group", who, "txn-group"),
            ("the same group", who, "txn-group"),
            ("another group", who, "txn-group-2"),
            ("an empty group", who, ""),
            ("another producer id", who._replace(producer_id=who.producer_id + 100000), "txn-group"),
            ("a newer epoch", who._replace(producer_epoch=9), "txn-group"),
            ("unknown transactional id", who._replace(transactional_id="nobody"), "txn-group"),
            ("empty transactional id", who._replace(transactional_id=""), "txn-group"),
        ]:
            s.ask(ADD_OFFSETS, v, {**changed.fields, "group_id": group}, case)
        told(s, who.transactional_id, f"after offsets by v{v}")
        end(s, who, committed=False)


def commit_body(who: Producer, group: str, topics: dict[str, list[int]], **more: Any) -> dict[str, Any]:
    rows = [
        {
            "name": name,
            "partitions": [
                {"partition_index": p, "committed_offset": 40 + p, "committed_metadata": "m"}
                for p in partitions
            ],
        }
        for name, partitions in topics.items()
    ]
    return {**who.fields, "group_id": group, "generation_id": -1, "member_id": "", "topics": rows, **more}


def txn_offset_commit(s: Script) -> None:
    """TxnOffsetCommit, with and without AddOffsetsToTxn; the offsets count once their transaction does."""
    coordinators(s)
    name = s.create("txn-commit", 2)
    for v in s.versions(TXN_OFFSET_COMMIT):
        for committed in (True, False):
            _commit_offsets(s, v, name, committed)
        who = producer(s, f"odd-commit-v{v}")
        group = f"odd-commit-v{v}"
        s.quiet(ADD_OFFSETS, 3, {**who.fields, "group_id": group})
        for case, changed, where, topics, more in [
            ("unknown topic", who, group, {"nope": [0], name: [0]}, {}),
            ("unknown partition", who, group, {name: [0, 9]}, {}),
            ("no topics", who, group, {}, {}),
            ("empty group", who, "", {name: [0]}, {}),
            (
                "another producer id",
                who._replace(producer_id=who.producer_id + 100000),
                group,
                {name: [0]},
                {},
            ),
            ("a newer epoch", who._replace(producer_epoch=9), group, {name: [0]}, {}),
            ("unknown transactional id", who._replace(transactional_id="nobody"), group, {name: [0]}, {}),
            ("a generation of nobody", who, group, {name: [0]}, {"generation_id": 3, "member_id": "m"}),
            ("a member of nobody", who, group, {name: [0]}, {"member_id": "m"}),
        ]:
            s.ask(TXN_OFFSET_COMMIT, v, commit_body(changed, where, topics, **more), case)
        s.quiet(INIT, 4, init_body(who.transactional_id))
        settled(s, who.transactional_id)


def _commit_offsets(s: Script, v: int, topic: str, committed: bool) -> None:
    group = f"txn-commit-v{v}-{committed}"
    who = producer(s, group)
    if v < 5:
        s.ask(TXN_OFFSET_COMMIT, v, commit_body(who, group, {topic: [0]}), f"not announced, {committed}")
        s.quiet(ADD_OFFSETS, 3, {**who.fields, "group_id": group})
    s.ask(TXN_OFFSET_COMMIT, v, commit_body(who, group, {topic: [0, 1]}), f"in a transaction, {committed}")
    told(s, who.transactional_id, f"offsets committed by v{v}, {committed}")
    fetch = {"groups": [{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0, 1]}]}]}
    s.ask(OFFSET_FETCH, 8, {**fetch, "require_stable": True}, f"stable offsets while open, v{v}, {committed}")
    s.ask(OFFSET_FETCH, 8, {**fetch, "require_stable": False}, f"offsets while open, v{v}, {committed}")
    end(s, who, committed=committed, version=5 if v >= 5 else 4)
    wait_until(lambda: _is_stable(s, fetch), 90, "stable offsets")
    s.ask(OFFSET_FETCH, 8, {**fetch, "require_stable": True}, f"offsets after the end, v{v}, {committed}")


def _is_stable(s: Script, fetch: dict[str, Any]) -> bool:
    (group,) = s.quiet(OFFSET_FETCH, 8, {**fetch, "require_stable": True})["groups"]
    return all(p["error_code"] == "none" for topic in group["topics"] for p in topic["partitions"])


# ---- ends and markers -----------------------------------------------------------------------------------------


def end_txn(s: Script) -> None:
    """EndTxn in every state of a transactional id, for both versions of transactions."""
    coordinators(s)
    name = s.create("txn-end", 2)
    for v in s.versions(END):
        for committed in (True, False):
            words = "commit" if committed else "abort"
            _end_in_every_state(s, v, name, committed, words)
        who = producer(s, f"end-odd-v{v}")
        for case, changed in [
            ("another producer id", who._replace(producer_id=who.producer_id + 100000)),
            ("an older epoch", who._replace(producer_epoch=who.producer_epoch - 1)),
            ("a newer epoch", who._replace(producer_epoch=9)),
            ("unknown transactional id", who._replace(transactional_id="nobody")),
            ("empty transactional id", who._replace(transactional_id="")),
        ]:
            s.ask(END, v, {**changed.fields, "committed": True}, case)


def _end_in_every_state(s: Script, v: int, name: str, committed: bool, words: str) -> None:
    who = producer(s, f"end-v{v}-{words}")

    def ask(case: str, as_whom: Producer, committed: bool = committed) -> Producer:
        answer = s.ask(END, v, {**as_whom.fields, "committed": committed}, f"{words}: {case}")
        told(s, who.transactional_id, f"{words} by v{v}: {case}")
        if v < 5 or answer["error_code"] != "none":
            return as_whom
        return Producer(who.transactional_id, answer["producer_id"], answer["producer_epoch"])

    who = ask("nothing was begun", who)
    if v < 5:
        add(s, who, {name: [0, 1]})
    else:
        s.quiet(ADD_PARTITIONS, 5, add_body(5, who, {name: [0, 1]}))
    after = ask("with partitions", who)
    ask("repeated", who)
    ask("the other way round", who, not committed)
    after = ask("at once again", after)
    ask("the other way round at once", after, not committed)


def write_markers(s: Script) -> None:
    """WriteTxnMarkers, as coordinators and administrators send it."""
    coordinators(s)
    name = s.create("txn-markers", 3)
    for v in s.versions(WRITE_MARKERS):
        producer(s, f"markers-v{v}")
        who = producer(s, f"markers-v{v}")  # in its second epoch, so that there is an older one
        add(s, who, {name: [0]})
        body = produce_body(s, name, batch(who), transactional_id=who.transactional_id)
        s.quiet(PRODUCE, 11, body)

        def ask(case: str, topics: dict[str, list[int]], **more: Any) -> None:
            rows = [{"name": topic, "partition_indexes": indexes} for topic, indexes in topics.items()]
            marker = {
                "producer_id": who.producer_id,  # noqa: B023  called within the same turn of the loop
                "producer_epoch": who.producer_epoch,  # noqa: B023
                "transaction_result": True,
                "coordinator_epoch": 0,
                "topics": rows,
                **more,
            }
            s.ask(WRITE_MARKERS, v, {"markers": [marker]}, case)  # noqa: B023

        ask("unknown topic", {"nope": [0]})
        ask("unknown partition", {name: [9]})
        ask("an older epoch", {name: [0]}, producer_epoch=who.producer_epoch - 1)
        ask("no epoch", {name: [0]}, producer_epoch=-1)
        ask("no producer id", {name: [0]}, producer_id=-1)
        ask("partition without a transaction", {name: [1]})
        ask("partitions of two kinds", {name: [2, 9], "nope": [1]})
        ask("no partitions", {name: []})
        ask("the end", {name: [0]}, coordinator_epoch=5)
        ask("the end, repeated", {name: [0]}, coordinator_epoch=5)
        ask("an older coordinator", {name: [0]}, coordinator_epoch=4)
        ask("a newer epoch", {name: [0]}, coordinator_epoch=6, producer_epoch=who.producer_epoch + 1)
        ask("an abort", {name: [0]}, coordinator_epoch=6, producer_epoch=5, transaction_result=False)
        ask("a group's partition", {"__consumer_offsets": [0]})
        if v >= 2:
            _markers_of_version_2(s, v, name, ask)
        s.ask(WRITE_MARKERS, v, {"markers": []}, "no markers")
        describe_producers(s, name, f"after markers of v{v}")


def _markers_of_version_2(s: Script, v: int, name: str, ask: Any) -> None:
    who = producer(s, f"markers-2-v{v}")
    s.quiet(
        PRODUCE, 12, produce_body(s, name, batch(who), partition=2, transactional_id=who.transactional_id)
    )
    mine = {"producer_id": who.producer_id, "transaction_version": 2}
    ask("version 2, the same epoch", {name: [2]}, producer_epoch=who.producer_epoch, **mine)
    ask("version 2, the next epoch", {name: [2]}, producer_epoch=who.producer_epoch + 1, **mine)
    ask("version 2, repeated", {name: [2]}, producer_epoch=who.producer_epoch + 1, **mine)
    ask("version 2, an older epoch", {name: [2]}, producer_epoch=who.producer_epoch, **mine)
