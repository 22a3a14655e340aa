"""Scripts: the records of transactions, who sees them when, and what transactions look like from outside."""

from __future__ import annotations

from typing import Any

from tests.interop.process import wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.fetch import fetch_body, fetch_topic, offsets_body, part
from tests.interop.scripts.produce import produce_body
from tests.interop.scripts.script import Script
from tests.interop.scripts.transacting import (
    DESCRIBE,
    FETCH,
    INIT,
    LIST,
    LIST_OFFSETS,
    PRODUCE,
    UPDATE_FEATURES,
    Producer,
    add,
    batch,
    coordinators,
    describe_producers,
    end,
    init_body,
    producer,
    send,
    settled,
    told,
)

# ---- records --------------------------------------------------------------------------------------------------


def transactional_produce(s: Script) -> None:
    """Produce inside transactions: announced and not, begun and ended, zombies, several producers."""
    coordinators(s)
    for v in s.versions(PRODUCE, since=3):
        name = s.create(f"txn-produce-v{v}", 2)
        who = producer(s, name)
        if v < 12:
            send(s, v, who, name, "not announced")
            add(s, who, {name: [0]})
        send(s, v, who, name, "the first")
        send(s, v, who, name, "the first, repeated")
        send(s, v, who, name, "a gap", 5)
        send(s, v, who, name, "the second", 1)
        send(s, v, who._replace(producer_epoch=9), name, "a newer epoch")
        stranger = who._replace(producer_id=who.producer_id + 100000)
        send(s, v, stranger, name, "another producer id")
        send(s, v, who._replace(transactional_id="nobody"), name, "unknown transactional id", partition=1)
        told(s, who.transactional_id, f"produced by v{v}")
        describe_producers(s, name, f"open by v{v}")
        plain = Batch(producer_id=who.producer_id, producer_epoch=who.producer_epoch, base_sequence=2)
        s.ask(PRODUCE, v, produce_body(s, name, plain.encode()), "outside the open transaction")
        body = produce_body(s, name, batch(who, 2))
        s.ask(PRODUCE, v, body, "without a transactional id")
        after = end(s, who, committed=True, version=5 if v >= 12 else 4)
        send(s, v, who, name, "after the end", 2)
        describe_producers(s, name, f"ended by v{v}")
        if v >= 12:
            send(s, v, after, name, "the next, not from zero", 2)
            send(s, v, after, name, "the next, from zero")
            send(s, v, who, name, "a zombie")
        _two_producers(s, v, name)
        s.quiet(INIT, 4, init_body(who.transactional_id))
        settled(s, who.transactional_id)


def _two_producers(s: Script, v: int, name: str) -> None:
    one, two = producer(s, f"{name}-1"), producer(s, f"{name}-2")
    body = produce_body(s, name, batch(one), transactional_id=one.transactional_id)
    rows = body["topic_data"][0]["partition_data"]
    rows.append({"index": 1, "records": batch(two)})
    s.ask(PRODUCE, v, body, "two producers in one request")


def isolation(s: Script) -> None:
    """What readers see of committed, aborted and open transactions."""
    coordinators(s)
    name = s.create("txn-isolation", 2)
    aborter, committer, opener = (producer(s, f"isolation-{i}") for i in range(3))

    def write(who: Producer, sequence: int, count: int = 2) -> None:
        body = produce_body(s, name, batch(who, sequence, count), transactional_id=who.transactional_id)
        s.quiet(PRODUCE, 12, body)

    s.produce(name, 0, Batch(records=[Rec(b"plain")]))
    write(aborter, 0)
    write(committer, 0)
    write(aborter, 2)
    aborter = end(s, aborter, committed=False, version=5)
    write(committer, 2)
    committer = end(s, committer, committed=True, version=5)
    write(aborter, 0)
    aborter = end(s, aborter, committed=False, version=5)
    write(opener, 0)
    s.produce(name, 0, Batch(records=[Rec(b"behind")]))
    _look(s, name, "while one is open")
    end(s, opener, committed=False, version=5)
    _look(s, name, "after all have ended")
    describe_producers(s, name, "after all have ended")


def _look(s: Script, name: str, case: str) -> None:
    for v in s.versions(FETCH):
        for level in (0, 1):
            for offset in (0, 3, 8, 12):
                body = fetch_body(fetch_topic(s, name, part(offset=offset)), isolation_level=level)
                s.ask(FETCH, v, body, f"{case}: isolation {level} from {offset}")
    for v in s.versions(LIST_OFFSETS, since=2):
        for level in (0, 1):
            for stamp in (-1, -2, 0):
                body = {**offsets_body(name, (0, stamp)), "isolation_level": level}
                s.ask(LIST_OFFSETS, v, body, f"{case}: isolation {level} time {stamp}")


# ---- from outside ---------------------------------------------------------------------------------------------


def list_and_describe(s: Script) -> None:
    """DescribeTransactions and ListTransactions with every filter."""
    coordinators(s)
    name = s.create("txn-list", 2)
    empty, ongoing, done, gone = (
        producer(s, f"list-{kind}") for kind in ("empty", "ongoing", "done", "gone")
    )
    add(s, ongoing, {name: [0, 1]})
    add(s, done, {name: [0]})
    end(s, done, committed=True)
    add(s, gone, {name: [1]})
    end(s, gone, committed=False)
    names = [who.transactional_id for who in (empty, ongoing, done, gone)]
    for v in s.versions(DESCRIBE):
        s.ask(DESCRIBE, v, {"transactional_ids": names}, "four")
        s.ask(DESCRIBE, v, {"transactional_ids": ["nobody", "", names[0], names[0]]}, "odd ones")
        s.ask(DESCRIBE, v, {"transactional_ids": []}, "none")
    mine = "list-.*"
    for v in s.versions(LIST):
        base: dict[str, Any] = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
        if v >= 2:
            base["transactional_id_pattern"] = mine
        ids = [who.producer_id for who in (empty, ongoing, done, gone)]
        for case, change in {
            "mine": {"producer_id_filters": ids},
            "ongoing": {"producer_id_filters": ids, "state_filters": ["Ongoing"]},
            "two states": {"producer_id_filters": ids, "state_filters": ["Empty", "CompleteAbort"]},
            "unknown state": {"producer_id_filters": ids, "state_filters": ["Nonsense"]},
            "unknown and known state": {"producer_id_filters": ids, "state_filters": ["x", "CompleteCommit"]},
            "states that pass": {"state_filters": ["Dead", "PrepareEpochFence"]},
            "one producer": {"producer_id_filters": ids[:1]},
            "unknown producer": {"producer_id_filters": [999999999]},
        }.items():
            s.ask(LIST, v, {**base, **change}, case)
        if v >= 1:
            for duration in (0, 3_600_000):
                s.ask(
                    LIST,
                    v,
                    {**base, "producer_id_filters": ids, "duration_filter": duration},
                    f"{duration} ms",
                )
        if v >= 2:
            for pattern in ("list-o.*", "list", "", None, "nobody", ".*done", "(", "list-(empty|gone)"):
                body = {**base, "producer_id_filters": ids, "transactional_id_pattern": pattern}
                s.ask(LIST, v, body, f"pattern {pattern!r}")
    end(s, ongoing, committed=False)


# ---- feature levels -------------------------------------------------------------------------------------------


def levels(s: Script) -> None:
    """UpdateFeatures for the coordinators' features, down and up again, on both listeners."""
    for listener in ("broker", "controller"):
        s.listener = listener
        for v in s.versions(UPDATE_FEATURES):
            for feature, newest in _newest_levels(s).items():
                _level(s, v, feature, newest)
    s.listener = "broker"


def _newest_levels(s: Script) -> dict[str, int]:
    names = ("transaction.version", "group.version", "share.version", "streams.version")
    listener, s.listener = s.listener, "broker"
    rows = s.quiet(18, 3, {"client_software_name": "s", "client_software_version": "1"})["finalized_features"]
    s.listener = listener
    found = {row["name"]: row["max_version_level"] for row in rows}
    return {name: found.get(name, 0) for name in names}  # one at level 0 is not named


def _level(s: Script, v: int, feature: str, newest: int) -> None:
    for case, level, kind in [
        ("down without leave", newest - 1, 1),
        ("safely down", newest - 1, 2),
        ("up again", newest, 1),
        ("unsafely down", 0, 3),
        ("the same", 0, 1),
        ("down to the same", 0, 2),
        ("up as a downgrade", newest, 2),
        ("up again", newest, 1),
        ("too far", newest + 1, 1),
        ("the same", newest, 1),
    ]:
        row = {
            "feature": feature,
            "max_version_level": level,
            "upgrade_type": kind,
            "allow_downgrade": kind != 1,
        }
        for only in (True, False) if v >= 1 else (False,):
            body = {"timeout": 20000, "feature_updates": [row], "validate_only": only}
            words = f"{feature} {case}" + (", validate only" if only else "")
            s.ask(UPDATE_FEATURES, v, body, words)
    # A broker shows a level a moment after the controller has it.
    wait_until(lambda: _newest_levels(s)[feature] == newest, 90, f"{feature} to be back")
