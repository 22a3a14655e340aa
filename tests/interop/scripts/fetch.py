"""Scripts: Fetch in all its ways, sessions, ListOffsets, OffsetForLeaderEpoch."""

from __future__ import annotations

import uuid
from typing import Any

from tests.interop.scripts.batches import BASE_TIMESTAMP, Batch, Rec
from tests.interop.scripts.entities import ZERO_ID
from tests.interop.scripts.script import Script

NEVER_KNOWN = uuid.UUID(int=98)


def part(partition: int = 0, offset: int = 0, max_bytes: int = 1 << 20, **more: Any) -> dict[str, Any]:
    """One partition of a Fetch request."""
    return {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes, **more}


def fetch_topic(s: Script, name: str, *partitions: dict[str, Any]) -> dict[str, Any]:
    """One topic of a Fetch request, by name and by id."""
    topic_id = uuid.UUID(s.topic_ids[name]) if name in s.topic_ids else NEVER_KNOWN
    return {"topic": name, "topic_id": topic_id, "partitions": list(partitions)}


def fetch_body(*topics: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A Fetch request that does not wait."""
    return {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 22, "topics": list(topics), **more}


def fill(s: Script, name: str, partitions: int = 2, **configs: object) -> str:
    """A topic with six batches of three records in its first partition."""
    s.create(name, partitions, **configs)
    for i in range(6):
        records = [Rec(b"value %d.%d" % (i, j), key=b"k%d" % j, timestamp_delta=j) for j in range(3)]
        s.produce(name, 0, Batch(records=records, base_timestamp=BASE_TIMESTAMP + 1000 * i))
    return name


def fetch_plain(s: Script) -> None:
    """Offsets inside and outside the log, limits, isolation, epochs, unknown partitions, every version."""
    name = fill(s, "fetch-plain")
    for v in s.versions(1):
        for case, partitions in {
            "from the beginning": [part()],
            "inside a batch": [part(offset=4)],
            "at the end": [part(offset=18)],
            "past the end": [part(offset=19)],
            "negative": [part(offset=-1)],
            "empty partition": [part(1)],
            "unknown partition": [part(9)],
            "negative partition": [part(-1)],
            "one byte": [part(max_bytes=1)],
            "no bytes": [part(max_bytes=0)],
            "a batch and a half": [part(max_bytes=170)],
            "two partitions": [part(0), part(1)],
            "right leader epoch": [part(current_leader_epoch=0)],
            "leader epoch ahead": [part(current_leader_epoch=5)],
            "last fetched epoch": [part(offset=6, last_fetched_epoch=0)],
            "last fetched epoch ahead": [part(offset=6, last_fetched_epoch=3)],
            "log start offset given": [part(log_start_offset=0)],
        }.items():
            s.ask(1, v, fetch_body(fetch_topic(s, name, *partitions)), case)
        s.ask(1, v, fetch_body(fetch_topic(s, name, part()), isolation_level=1), "read committed")
        s.ask(1, v, fetch_body(fetch_topic(s, name, part()), isolation_level=7), "unknown isolation level")
        s.ask(1, v, fetch_body(fetch_topic(s, name, part()), max_bytes=1), "whole limit of one byte")
        s.ask(1, v, fetch_body(fetch_topic(s, name, part()), max_bytes=0), "whole limit of zero")
        s.ask(1, v, fetch_body(fetch_topic(s, "fetch-nope", part())), "unknown topic")
        s.ask(1, v, fetch_body(), "no topics")
        s.ask(1, v, fetch_body(fetch_topic(s, name, part(1)), max_wait=150, min_bytes=1), "waits for nothing")
        s.ask(
            1, v, fetch_body(fetch_topic(s, name, part()), max_wait=150, min_bytes=1 << 20), "waits for more"
        )
        s.ask(
            1, v, fetch_body(fetch_topic(s, name, part(9)), max_wait=20000, min_bytes=1), "errors do not wait"
        )
        if v >= 11:
            s.ask(1, v, fetch_body(fetch_topic(s, name, part()), rack_id="r1"), "with a rack")
        if v >= 12:
            s.ask(
                1,
                v,
                fetch_body(fetch_topic(s, name, part()), cluster_id="someone-else"),
                "another cluster id",
            )
        if v >= 13:
            nothing = {"topic_id": ZERO_ID, "partitions": [part()]}
            s.ask(1, v, fetch_body(nothing), "zero topic id")
        replica = {"replica_id": 1, "replica_state": {"replica_id": 1, "replica_epoch": -1}}
        s.ask(1, v, fetch_body(fetch_topic(s, name, part()), **replica), "as a replica that is the leader")
        stranger = {"replica_id": 9, "replica_state": {"replica_id": 9, "replica_epoch": -1}}
        s.ask(1, v, fetch_body(fetch_topic(s, name, part()), **stranger), "as a replica that is none")
    for v in (11, s.newest(1)):
        log = s.create(f"fetch-limits-{v}", 3)
        for p in range(3):
            s.produce(log, p, Batch(records=[Rec(b"x" * 400)]))
        rows = [part(p) for p in range(3)]
        for limit in (1, 470, 600, 950, 5000):
            s.ask(
                1,
                v,
                fetch_body(fetch_topic(s, log, *rows), max_bytes=limit),
                f"three partitions, {limit} bytes",
            )


def fetch_sessions(s: Script) -> None:
    """Incremental sessions (KIP-227): made, continued, changed, forgotten, closed, misused."""
    for v in s.versions(1, since=7):
        name = fill(s, f"session-v{v}", 3)
        made = s.ask(
            1, v, fetch_body(fetch_topic(s, name, part(0), part(1)), session_id=0, session_epoch=0), "made"
        )
        session = made.get("session_id", 0)

        def go(case: str, epoch: int, *topics: dict[str, Any], **more: Any) -> None:
            body = fetch_body(*topics, session_id=session, session_epoch=epoch, **more)  # noqa: B023
            s.ask(1, v, body, case)  # noqa: B023

        go("nothing new", 1)
        s.produce(name, 1, Batch())
        go("something new", 2)
        go("not advanced", 3)
        go("advanced", 4, fetch_topic(s, name, part(0, 18), part(1, 1)))
        go("a partition added", 5, fetch_topic(s, name, part(2)))
        go("a bad partition added", 6, fetch_topic(s, name, part(9)))
        go("a bad partition stays", 7)
        forget = {"topic": name, "topic_id": uuid.UUID(s.topic_ids[name]), "partitions": [1, 9]}
        go("partitions forgotten", 8, forgotten_topics_data=[forget])
        s.produce(name, 1, Batch())
        s.produce(name, 2, Batch())
        go("only what is left", 9)
        go("wrong epoch", 20)
        go("right epoch again", 10)
        go("an epoch repeated", 10)
        go("closed by epoch -1", -1, fetch_topic(s, name, part(0)))
        go("after it was closed", 11)
        s.ask(1, v, fetch_body(session_id=123456, session_epoch=5), "unknown session")
        s.ask(1, v, fetch_body(session_id=0, session_epoch=3), "epoch without a session")
        s.ask(1, v, fetch_body(session_id=0, session_epoch=0), "made empty")
        s.ask(1, v, fetch_body(session_id=0, session_epoch=-1), "no session, no topics")


def fetch_kinds(s: Script) -> None:
    """Fetch from topics with log append time, compression, deleted prefixes and several segments."""
    kinds: dict[str, dict[str, object]] = {
        "append-time": {"message_timestamp_type": "LogAppendTime"},
        "lz4": {"compression_type": "lz4"},
        "segments": {"segment_bytes": 1048576},
    }
    for kind, configs in kinds.items():
        name = fill(s, f"fetch-{kind}", **configs)
        body = fetch_body(fetch_topic(s, name, part()))
        if kind != "lz4":  # compressors differ in their bytes; the records are compared by the clients' tests
            s.ask(1, s.newest(1), body, kind)
    name = fill(s, "fetch-trimmed")
    s.quiet(
        21,
        2,
        {"topics": [{"name": name, "partitions": [{"partition_index": 0, "offset": 7}]}], "timeout": 9000},
    )
    for offset in (0, 6, 7, 8, 9):
        s.ask(
            1,
            s.newest(1),
            fetch_body(fetch_topic(s, name, part(offset=offset))),
            f"trimmed to 7, from {offset}",
        )
    big = s.create("fetch-big", segment_bytes=1048576)
    for i in range(8):
        s.produce(big, 0, Batch(records=[Rec(bytes([i]) * 300_000)]))
    for offset in range(8):
        for limit in (1, 400_000, 1 << 20):
            body = fetch_body(fetch_topic(s, big, part(offset=offset, max_bytes=limit)))
            s.ask(1, 11, body, f"big batches over segments, from {offset}, {limit} bytes")


def offsets_body(name: str, *rows: tuple[int, int], epoch: int = -1, **more: Any) -> dict[str, Any]:
    """A ListOffsets request for (partition, timestamp) rows."""
    partitions = [{"partition_index": p, "current_leader_epoch": epoch, "timestamp": t} for p, t in rows]
    return {"replica_id": -1, "topics": [{"name": name, "partitions": partitions}], "timeout": 5000, **more}


def list_offsets(s: Script) -> None:
    """ListOffsets: every special timestamp, times before, inside and after the log, epochs, isolation."""
    name = fill(s, "offsets-a")
    late = s.create("offsets-late", message_timestamp_type="LogAppendTime")
    s.produce(late, 0, Batch(records=[Rec()] * 3))
    mixed = s.create("offsets-mixed")
    for stamp in (5000, 9000, 1000, 9000, 2000):
        records = [Rec(), Rec(timestamp_delta=300), Rec(timestamp_delta=100)]
        s.produce(mixed, 0, Batch(records=records, base_timestamp=BASE_TIMESTAMP + stamp))
    packed = s.create("offsets-packed")
    for stamp in (5000, 9000):
        records = [Rec(timestamp_delta=d) for d in (0, 400, 100, 400, 50)]
        s.produce(packed, 0, Batch(records=records, base_timestamp=BASE_TIMESTAMP + stamp, codec="gzip"))
    for v in s.versions(2):
        for special in (-1, -2, -3, -4, -5, -6, -7, -99):
            s.ask(2, v, offsets_body(name, (0, special)), f"timestamp {special}")
            s.ask(2, v, offsets_body(name, (1, special)), f"timestamp {special}, empty partition")
        for delta in (-1, 0, 1, 2, 3, 999, 1000, 5001, 5002, 5003, 99999):
            s.ask(2, v, offsets_body(name, (0, BASE_TIMESTAMP + delta)), f"time {delta}")
        s.ask(2, v, offsets_body(name, (0, 0)), "time zero")
        s.ask(2, v, offsets_body(name, (9, -1)), "unknown partition")
        s.ask(2, v, offsets_body("offsets-nope", (0, -1)), "unknown topic")
        s.ask(2, v, offsets_body(name, (0, -1), (0, -2)), "one partition twice")
        s.ask(2, v, offsets_body(name, (0, -1), (1, -1)), "two partitions")
        s.ask(2, v, {"replica_id": -1, "topics": [], "timeout": 5000}, "no topics")
        s.ask(2, v, offsets_body(late, (0, -3)), "max timestamp, log append time")
        for topic in (mixed, packed):
            s.ask(2, v, offsets_body(topic, (0, -3)), f"max timestamp of {topic}")
            for delta in (1000, 5000, 5100, 5300, 5400, 9000, 9100, 9300, 9301):
                s.ask(2, v, offsets_body(topic, (0, BASE_TIMESTAMP + delta)), f"time {delta} of {topic}")
        if v >= 2:
            s.ask(2, v, offsets_body(name, (0, -1), isolation_level=1), "read committed")
            s.ask(2, v, offsets_body(name, (0, -1), isolation_level=9), "unknown isolation level")
        if v >= 4:
            s.ask(2, v, offsets_body(name, (0, -1), epoch=0), "right leader epoch")
            s.ask(2, v, offsets_body(name, (0, -1), epoch=7), "leader epoch ahead")
        s.ask(2, v, offsets_body(name, (0, -1), replica_id=9), "as a stranger replica")
        s.ask(2, v, offsets_body(name, (0, -1), replica_id=-2), "as a debugging consumer")


def leader_epochs(s: Script) -> None:
    """OffsetForLeaderEpoch."""
    name = fill(s, "epochs-a")
    for v in s.versions(23):
        for case, row in {
            "epoch 0": {"partition": 0, "current_leader_epoch": 0, "leader_epoch": 0},
            "no current epoch": {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0},
            "epoch ahead": {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 5},
            "current epoch ahead": {"partition": 0, "current_leader_epoch": 5, "leader_epoch": 0},
            "epoch -1": {"partition": 0, "current_leader_epoch": -1, "leader_epoch": -1},
            "empty partition": {"partition": 1, "current_leader_epoch": -1, "leader_epoch": 0},
            "unknown partition": {"partition": 9, "current_leader_epoch": -1, "leader_epoch": 0},
        }.items():
            s.ask(23, v, {"replica_id": -1, "topics": [{"topic": name, "partitions": [row]}]}, case)
        unknown = [{"topic": "epochs-nope", "partitions": [{"partition": 0, "leader_epoch": 0}]}]
        s.ask(23, v, {"replica_id": -1, "topics": unknown}, "unknown topic")
        s.ask(23, v, {"replica_id": -1, "topics": []}, "no topics")
