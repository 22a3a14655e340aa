"""Scripts: queues (APIs 78 and 79): what members of share groups get, what they may say of it, and what is kept of it.

A share partition is loaded by the first fetch, in the background; a fetch waits for that as it waits for records. All
that a member is told depends on what was written and said before, so nothing of it is masked but the records' clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from tests.interop.process import wait_until
from tests.interop.scripts import transactions
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.script import Script
from tests.interop.scripts.share_groups import Member, initialized, share_group
from tests.interop.scripts.share_state import SharePartition

FETCH, ACKNOWLEDGE = 78, 79
PRODUCE, DELETE_RECORDS, DELETE_TOPICS = 0, 21, 20
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1
UNKNOWN_ID = "0f0f0f0f-0000-4000-8000-000000000001"
# Long enough for a share partition to be loaded, and for what must come to come.
LONG_MS = 10_000

Said = Sequence[tuple[int, int, int | list[int]]]


class Consumer:
    """A member with a share session."""

    def __init__(self, s: Script, group: str, topic: str, name: str = "m", version: int = 2) -> None:
        self.s = s
        self.group = group
        self.topic = topic
        self.name = name
        self.version = version
        self.epoch = 0

    def fetch(
        self,
        case: str,
        *,
        partitions: Sequence[int] = (),
        acks: dict[int, Said] | None = None,
        forget: Sequence[int] = (),
        quiet: bool = False,
        **values: Any,
    ) -> dict[str, Any]:
        said = acks or {}
        named = [*partitions, *(index for index in said if index not in partitions)]
        body = {
            "group_id": self.group,
            "member_id": self.name,
            "share_session_epoch": self.epoch,
            "max_wait": LONG_MS,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "topics": self._topics([_fetched(index, said.get(index, ())) for index in named]),
            "forgotten_topics_data": self._topics(list(forget)),
            **({"share_acquire_mode": BATCH_OPTIMIZED, "is_renew_ack": False} if self.version >= 2 else {}),
            **values,
        }
        return self._ask(FETCH, body, case, quiet)

    def acknowledge(
        self, case: str, acks: dict[int, Said], quiet: bool = False, **values: Any
    ) -> dict[str, Any]:
        body = {
            "group_id": self.group,
            "member_id": self.name,
            "share_session_epoch": self.epoch,
            "topics": self._topics([_fetched(index, said) for index, said in acks.items()]),
            **({"is_renew_ack": False} if self.version >= 2 else {}),
            **values,
        }
        return self._ask(ACKNOWLEDGE, body, case, quiet)

    def _topics(self, partitions: list[Any]) -> list[dict[str, Any]]:
        topic_id = UUID(self.s.topic_ids[self.topic])
        return [{"topic_id": topic_id, "partitions": partitions}] if partitions else []

    def _ask(self, api: int, body: dict[str, Any], case: str, quiet: bool) -> dict[str, Any]:
        if quiet:
            answer = self.s.quiet(api, self.version, body)
        else:
            answer = self.s.ask(api, self.version, body, f"{self.group}, {self.name}, {case}")
        if answer.get("error_code") == "none" and body["share_session_epoch"] >= 0:
            self.epoch = body["share_session_epoch"] + 1
        return answer


def _fetched(index: int, said: Said) -> dict[str, Any]:
    return {
        "partition_index": index,
        "acknowledgement_batches": [
            {
                "first_offset": first,
                "last_offset": last,
                "acknowledge_types": kinds if isinstance(kinds, list) else [kinds],
            }
            for first, last, kinds in said
        ],
    }


def queue(s: Script, name: str, partitions: int = 1, **configs: object) -> tuple[str, str]:
    """A group that reads from the beginning of a topic, set up: the group and the topic."""
    topic = s.create(name, partitions)
    configs = {"share_auto_offset_reset": "earliest", **configs}
    group = share_group(s, f"g-{name}", (topic, partitions), **configs)
    Member(s, group, "member", quiet=True).join(topic)
    initialized(s, group, **{name.replace("-", "_"): partitions})
    return group, topic


def write(s: Script, topic: str, *sizes: int, partition: int = 0) -> None:
    """Batches of so many records."""
    for size in sizes:
        s.produce(topic, partition, Batch([Rec(b"v%d" % number) for number in range(size)]))


def kept(s: Script, group: str, topic: str, case: str, partition: int = 0) -> None:
    """Record what the share coordinator knows."""
    place = SharePartition(s, group, topic, partition)
    place.read(case)
    place.summary(case)


# ---- the scripts ------------------------------------------------------------------------------------------------


def lives(s: Script) -> None:
    """Records are acquired, accepted, released, rejected and acquired again, in each version."""
    for v in s.versions(FETCH):
        group, topic = queue(s, f"sf-life-{v}")
        write(s, topic, 3, 4, 5)
        a, b = Consumer(s, group, topic, "a", v), Consumer(s, group, topic, "b", v)
        a.fetch("opens", partitions=[0])
        b.fetch("opens when nothing is left", partitions=[0], max_wait=500)
        kept(s, group, topic, "nothing is said yet")
        a.acknowledge("accepts the first batch", {0: [(0, 2, ACCEPT)]})
        kept(s, group, topic, "the first batch is accepted")
        a.acknowledge("answers for each record", {0: [(3, 6, [ACCEPT, RELEASE, REJECT, GAP])]})
        kept(s, group, topic, "each record has an answer")
        b.fetch("gets what was released")
        b.acknowledge("accepts it", {0: [(4, 4, ACCEPT)]})
        a.fetch("releases the rest along with a fetch", acks={0: [(7, 11, RELEASE)]}, max_wait=500)
        b.fetch("gets the rest")
        b.fetch("accepts it along with a fetch", acks={0: [(7, 11, ACCEPT)]}, max_wait=500)
        kept(s, group, topic, "everything is done")
        write(s, topic, 2)
        a.fetch("gets what is new")
        a.fetch("closes", acks={0: [(12, 12, ACCEPT)]}, share_session_epoch=-1)
        b.fetch("gets what was left")
        b.acknowledge("closes", {0: [(13, 13, ACCEPT)]}, share_session_epoch=-1)
        SharePartition(s, group, topic).wait_for_deliveries(3)
        kept(s, group, topic, "both have closed")
        b.fetch("after its session")


def amounts(s: Script) -> None:
    """How much is given at once: records, batches, bytes, partitions."""
    group, topic = queue(s, "sf-amounts")
    write(s, topic, 5, 15, 15, 1, 1, 1, 1, 1, 1, 30)
    a = Consumer(s, group, topic, "a")
    a.fetch("ten records", partitions=[0], max_records=10)
    a.fetch("one record", max_records=1)
    a.fetch("small batches", max_records=4, batch_size=1)
    a.fetch("batches of two", max_records=2, batch_size=2)
    a.fetch("no more than seven records", max_records=7, share_acquire_mode=RECORD_LIMIT)
    a.fetch("no more than seven records again", max_records=7, share_acquire_mode=RECORD_LIMIT)
    a.fetch("the rest", max_records=100)
    a.acknowledge("releases some of each", {0: [(2, 3, RELEASE), (10, 12, RELEASE), (40, 45, RELEASE)]})
    a.fetch("three of those", max_records=3, share_acquire_mode=RECORD_LIMIT)
    a.fetch("all of those", max_records=100)
    write(s, topic, 10, 10)
    a.fetch("few bytes", max_bytes=10)
    a.fetch("no bytes", max_bytes=0)
    a.fetch("no records", max_records=0)
    a.fetch("many bytes are awaited", min_bytes=1 << 19, max_wait=500)
    a.acknowledge("accepts all", {0: [(0, 89, ACCEPT)]})
    kept(s, group, topic, "all accepted")


def partitions(s: Script) -> None:
    """Several partitions in one session: added, forgotten, named only when there is something to say."""
    group, topic = queue(s, "sf-partitions", 3)
    a = Consumer(s, group, topic, "a")
    a.fetch("two empty ones", partitions=[0, 1], max_wait=2000)
    a.fetch("nothing new", max_wait=500)
    write(s, topic, 3, partition=1)
    a.fetch("one has records")
    a.fetch("a third is added", partitions=[2], max_wait=1000)
    write(s, topic, 2, partition=2)
    a.fetch("the third has records")
    write(s, topic, 4, partition=0)
    write(s, topic, 4, partition=1)
    a.fetch("one is forgotten", forget=[0])
    answers = {1: [(0, 2, ACCEPT)], 2: [(0, 1, RELEASE)]}
    a.acknowledge("answers for two, one of which is not held", {**answers, 0: [(0, 3, ACCEPT)]})
    a.fetch("answers come along for a partition with records", acks={1: [(3, 6, ACCEPT)]})
    a.fetch("and for one that is forgotten", acks={0: [(0, 3, ACCEPT)]}, max_wait=500)
    a.fetch("a partition that is not there", partitions=[7], max_wait=500)
    a.fetch("it is still not there", max_wait=500)
    a.acknowledge("of a partition that is not there", {7: [(0, 0, ACCEPT)]})
    a.acknowledge("of nothing", {1: []})
    a.acknowledge("of nothing and of something", {1: [], 2: [(0, 1, ACCEPT)]})


def refusals(s: Script) -> None:
    """What is refused, and that nothing of it counts."""
    for v in s.versions(FETCH):
        group, topic = queue(s, f"sf-refused-{v}")
        write(s, topic, 10)
        a = Consumer(s, group, topic, "a", v)
        for case, values in (
            ("without a group", {"group_id": None}),
            ("without a member", {"member_id": None}),
            ("with an empty member", {"member_id": ""}),
            ("with a long member", {"member_id": "m" * 37}),
            ("with an epoch but no session", {"share_session_epoch": 1}),
            ("closes what is not open", {"share_session_epoch": -1}),
        ):
            a.fetch(case, partitions=[0], **values)
            a.acknowledge(case, {0: [(0, 9, ACCEPT)]}, **values)
        a.acknowledge("opens a session", {}, share_session_epoch=0)
        a.fetch("acknowledges before there is a session", acks={0: [(0, 9, ACCEPT)]})
        a.fetch("names a partition twice", partitions=[0, 0])
        a.fetch("opens", partitions=[0])
        a.fetch("comes with a future epoch", share_session_epoch=9)
        a.fetch("comes with the epoch before", share_session_epoch=0, acks={0: [(0, 9, ACCEPT)]})
        a.acknowledge("comes with a future epoch", {0: [(0, 9, ACCEPT)]}, share_session_epoch=9)
        said: list[tuple[str, Said]] = [
            ("ends before it begins", [(5, 4, ACCEPT)]),
            ("overlaps", [(0, 4, ACCEPT), (3, 9, ACCEPT)]),
            ("says nothing", [(0, 4, [])]),
            ("says too little", [(0, 4, [ACCEPT, ACCEPT])]),
            ("says too much", [(0, 1, [ACCEPT, ACCEPT, ACCEPT])]),
            ("says what there is not", [(0, 4, 5)]),
            ("says less than nothing", [(0, 4, -1)]),
            ("renews without a word", [(0, 4, RENEW)]),
            ("goes beyond the end", [(5, 12, ACCEPT)]),
            ("lies beyond the end", [(20, 25, ACCEPT)]),
        ]
        for case, entries in said:
            a.acknowledge(case, {0: entries})
            a.fetch(f"{case}, along with a fetch", acks={0: entries}, max_wait=300)
        b = Consumer(s, group, topic, "b", v)
        b.fetch("opens", partitions=[0], max_wait=500)
        b.acknowledge("answers for another's records", {0: [(0, 9, ACCEPT)]})
        b.acknowledge("answers for some of another's records", {0: [(2, 3, ACCEPT)]})
        a.acknowledge("of a topic that is not there", {}, topics=[_unknown()])
        a.fetch("with a topic that is not there", topics=[_unknown()], max_wait=500)
        a.fetch("that topic stays", max_wait=500)
        kept(s, group, topic, "nothing is accepted")
        a.acknowledge("accepts", {0: [(0, 9, ACCEPT)]})
        a.acknowledge("accepts again", {0: [(0, 9, ACCEPT)]})
        kept(s, group, topic, "all is accepted")


def _unknown() -> dict[str, Any]:
    return {"topic_id": UUID(UNKNOWN_ID), "partitions": [_fetched(0, [(0, 1, ACCEPT)])]}


def renewals(s: Script) -> None:
    """Holding records for longer, and what a fetch that does so may not ask for."""
    group, topic = queue(s, "sf-renew")
    write(s, topic, 10)
    a = Consumer(s, group, topic, "a")
    a.fetch("opens", partitions=[0])
    a.acknowledge("renews", {0: [(0, 9, RENEW)]}, is_renew_ack=True)
    a.acknowledge("renews some", {0: [(0, 3, [RENEW, ACCEPT, RELEASE, RENEW])]}, is_renew_ack=True)
    a.acknowledge("says that it renews, and does not", {0: [(4, 4, ACCEPT)]}, is_renew_ack=True)
    for case, values in (
        ("and wants records", {"max_records": 1}),
        ("and bytes", {"max_bytes": 1}),
        ("and waits", {"max_wait": 1}),
        ("and waits for bytes", {"min_bytes": 1}),
    ):
        nothing = {"max_records": 0, "max_bytes": 0, "max_wait": 0, "min_bytes": 0}
        values = {**nothing, **values, "is_renew_ack": True}
        a.fetch(f"renews {case}", acks={0: [(5, 9, RENEW)]}, **values)
    a.fetch("renews", acks={0: [(5, 9, RENEW)]}, **{**nothing, "is_renew_ack": True})
    a.acknowledge("of what is done", {0: [(1, 1, RENEW)]}, is_renew_ack=True)
    kept(s, group, topic, "renewed")
    forbidden, topic = queue(s, "sf-no-renew", share_renew_acknowledge_enable="false")
    write(s, topic, 10)
    b = Consumer(s, forbidden, topic, "b")
    b.fetch("opens", partitions=[0])
    b.acknowledge("renews where it may not", {0: [(0, 9, RENEW)]}, is_renew_ack=True)
    b.acknowledge("renews some where it may not", {0: [(0, 3, RENEW)]}, is_renew_ack=True)
    b.acknowledge("accepts and renews", {0: [(0, 1, ACCEPT), (2, 3, RENEW)]}, is_renew_ack=True)
    b.acknowledge("accepts", {0: [(0, 9, ACCEPT)]})


def deliveries(s: Script) -> None:
    """Released again and again: smaller portions, alone at last, and archived."""
    for limit in (2, 3, 5, 10):
        group, topic = queue(s, f"sf-deliveries-{limit}", share_delivery_count_limit=limit)
        write(s, topic, 20, 3)
        a = Consumer(s, group, topic, "a")
        answer = a.fetch("opens", partitions=[0])
        for turn in range(60):
            runs = _acquired(answer)
            if not runs:
                break
            a.acknowledge(f"releases, turn {turn}", {0: [(first, last, RELEASE) for first, last in runs]})
            answer = a.fetch(f"turn {turn}", max_wait=400)
        kept(s, group, topic, "after all turns")


def _acquired(answer: dict[str, Any]) -> list[tuple[int, int]]:
    return [
        (run["first_offset"], run["last_offset"])
        for topic in answer["responses"]
        for partition in topic["partitions"]
        for run in partition["acquired_records"]
    ]


def locks(s: Script) -> None:
    """As many as may be held at once, and locks that end."""
    group, topic = queue(s, "sf-locks", share_partition_max_record_locks=100)
    write(s, topic, *([30] * 5))
    a, b = Consumer(s, group, topic, "a"), Consumer(s, group, topic, "b")
    a.fetch("as many as it may", partitions=[0])
    b.fetch("no more", partitions=[0], max_wait=500)
    a.acknowledge("releases one in the middle", {0: [(40, 44, RELEASE)]})
    b.fetch("that one")
    b.fetch("no more", max_wait=500)
    a.acknowledge("accepts the first", {0: [(0, 29, ACCEPT)]})
    b.fetch("some more")
    kept(s, group, topic, "before the locks end")


def leaving(s: Script) -> None:
    """A connection that ends releases what was held on it."""
    group, topic = queue(s, "sf-leaving")
    write(s, topic, 5)
    a = Consumer(s, group, topic, "a")
    a.fetch("opens", partitions=[0])
    a.acknowledge("accepts one", {0: [(1, 1, ACCEPT)]})
    s.disconnect()
    b = Consumer(s, group, topic, "b")

    def free() -> bool:
        b.epoch = 0
        answer = b.fetch(
            "", partitions=[0], quiet=True, max_wait=100, max_records=1, share_acquire_mode=RECORD_LIMIT
        )
        return bool(_acquired(answer))

    wait_until(free, 90, "what was held to be free")
    b.fetch("gets the rest")
    a.acknowledge("its session is gone", {0: [(0, 0, ACCEPT)]})
    b.acknowledge("accepts", {0: [(0, 0, ACCEPT), (2, 4, ACCEPT)]})
    kept(s, group, topic, "all is accepted")


def starts(s: Script) -> None:
    """Where a group starts, and where it goes on when the log has lost its beginning."""
    topic = s.create("sf-starts", 1)
    write(s, topic, 4, 4)
    for reset in ("earliest", "latest", "by_duration:PT1H", "by_duration:P10000D"):
        name = f"sf-start-{reset.split(':')[-1].lower()}"
        group = share_group(s, name, (topic, 1), share_auto_offset_reset=reset)
        Member(s, group, "member", quiet=True).join(topic)
        initialized(s, group, sf_starts=1)
        a = Consumer(s, group, topic, "a")
        a.fetch(f"starts {reset}", partitions=[0], max_wait=2000)
        kept(s, group, topic, f"started {reset}")
    group, topic = queue(s, "sf-lost")
    write(s, topic, 5, 5, 5)
    a = Consumer(s, group, topic, "a")
    a.fetch("opens", partitions=[0])
    a.acknowledge("releases two batches", {0: [(0, 9, RELEASE)]})
    rows = [{"partition_index": 0, "offset": 7}]
    s.quiet(DELETE_RECORDS, 2, {"topics": [{"name": topic, "partitions": rows}], "timeout": 20000})
    a.fetch("after the beginning is lost", max_wait=500)
    a.fetch("what is left", max_wait=500)
    a.acknowledge("accepts what is left", {0: [(7, 14, ACCEPT)]})
    kept(s, group, topic, "the beginning is lost")


def committed(s: Script) -> None:
    """Records of transactions, for groups that read all of them and for those that read committed ones only."""
    transactions.coordinators(s)
    for level in ("read_uncommitted", "read_committed"):
        group, topic = queue(s, f"sf-{level.replace('_', '-')}", share_isolation_level=level)
        one, two = transactions.producer(s, f"sf-1-{level}"), transactions.producer(s, f"sf-2-{level}")
        _write_in(s, one, topic, 3)
        write(s, topic, 2)
        _write_in(s, two, topic, 4)
        a = Consumer(s, group, topic, "a")
        a.fetch("while both are open", partitions=[0], max_wait=1500)
        transactions.end(s, one, committed=False)
        a.fetch("one is aborted", max_wait=700)
        transactions.end(s, two, committed=True)
        a.fetch("the other is committed", max_wait=700)
        a.fetch("nothing is left", max_wait=700)
        write(s, topic, 1)
        a.fetch("one more", max_wait=2000)


def _write_in(s: Script, who: transactions.Producer, topic: str, count: int) -> None:
    transactions.add(s, who, {topic: [0]})
    data = [{"index": 0, "records": transactions.batch(who, 0, count)}]
    body = {
        "transactional_id": who.transactional_id,
        "acks": -1,
        "timeout": 20000,
        "topic_data": [{"name": topic, "partition_data": data}],
    }
    answer = s.quiet(PRODUCE, 9, body)["responses"][0]["partition_responses"][0]
    assert answer["error_code"] == "none", answer


def deleted(s: Script) -> None:
    """A topic that goes while it is in a session."""
    group, topic = queue(s, "sf-deleted")
    write(s, topic, 3)
    a = Consumer(s, group, topic, "a")
    a.fetch("opens", partitions=[0])
    row = {"name": topic, "topic_id": UUID("00000000-0000-0000-0000-000000000000")}
    s.quiet(DELETE_TOPICS, 6, {"topics": [row], "timeout": 20000})
    wait_until(lambda: not s.is_led(topic, 1), 90, f"{topic} to be gone")
    a.fetch("the topic is gone", max_wait=500)
    a.acknowledge("of what is gone", {0: [(0, 2, ACCEPT)]})
    a.fetch("along with a fetch", acks={0: [(0, 2, ACCEPT)]}, max_wait=500)
    a.fetch("forgets it", forget=[0], max_wait=500)
