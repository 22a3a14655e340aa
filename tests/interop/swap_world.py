"""What a broker serves, as one comparable value: topics, ids, offsets, every record, configs, producers.

The swap tests take it before and after another broker takes over the same directory. Records are read by
kafka-python's own parser, so neither broker's record code is trusted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from kafka.record import MemoryRecords
from tests.interop.process import ServerProcess, wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.configs import BROKER, SET, TOPIC, change
from tests.interop.scripts.entities import ZERO_ID
from tests.interop.scripts.script import Script

FETCH_BYTES = 4 << 20
DYNAMIC_TOPIC_CONFIG = 1
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EARLIEST, LATEST = -2, -1


@dataclass
class World:
    """Everything that must survive a swap."""

    cluster_id: str = ""
    topics: dict[str, Any] = field(default_factory=dict)
    configs: dict[str, Any] = field(default_factory=dict)
    partitions: dict[str, Any] = field(default_factory=dict)
    records: dict[str, Any] = field(default_factory=dict)
    producers: dict[str, Any] = field(default_factory=dict)


def observe(server: ServerProcess) -> World:
    """Ask for everything."""
    script = Script(server, {}, {})
    try:
        return _observe(script)
    finally:
        script.close()


def _observe(s: Script) -> World:
    metadata = s.quiet(3, 12, {"topics": None, "allow_auto_topic_creation": False})
    world = World(cluster_id=metadata["cluster_id"])
    for topic in metadata["topics"]:
        name = topic["name"]
        indexes = sorted(p["partition_index"] for p in topic["partitions"])
        world.topics[name] = {"id": topic["topic_id"], "partitions": indexes, "error": topic["error_code"]}
        _await_leaders(s, name, len(indexes))
        world.configs[name] = _overrides(s, TOPIC, name)
        for index in indexes:
            place = f"{name}-{index}"
            start, end = _offset(s, name, index, EARLIEST), _offset(s, name, index, LATEST)
            world.partitions[place] = {"start": start, "end": end}
            rows = _read(s, name, index, start, end)
            compacted = "compact" in world.configs[name].get("cleanup.policy", "")
            world.records[place] = newest_by_key(rows) if compacted else rows
            world.producers[place] = _producers(s, name, index)
    world.configs["broker 1"] = _overrides(s, BROKER, "1")
    world.configs["broker default"] = _overrides(s, BROKER, "")
    return world


def _await_leaders(s: Script, name: str, partitions: int) -> None:
    wait_until(lambda: s.is_led(name, partitions), 90, f"{name} to be led")


def _overrides(s: Script, kind: int, name: str) -> dict[str, str]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    (result,) = s.quiet(32, 4, {"resources": [resource], "include_synonyms": True})["results"]
    assert result["error_code"] == "none", result
    dynamic = (DYNAMIC_TOPIC_CONFIG,) if kind == TOPIC else (2, 3)
    return {row["name"]: row["value"] for row in result["configs"] if row["config_source"] in dynamic}


def _offset(s: Script, name: str, index: int, timestamp: int) -> int:
    row = {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
    body = {"replica_id": -1, "topics": [{"name": name, "partitions": [row]}]}
    (found,) = s.quiet(2, 7, body)["topics"][0]["partitions"]
    assert found["error_code"] == "none", found
    return int(found["offset"])


def _read(s: Script, name: str, index: int, start: int, end: int) -> list[Any]:
    """Every record: offset, timestamp, its kind, key, value, headers."""
    found: list[Any] = []
    offset = start
    while offset < end:
        row = {"partition": index, "fetch_offset": offset, "partition_max_bytes": FETCH_BYTES}
        topics = [{"topic": name, "partitions": [row]}]
        body = {"max_wait": 0, "min_bytes": 1, "max_bytes": FETCH_BYTES, "topics": topics}
        (partition,) = s.quiet(1, 11, body)["responses"][0]["partitions"]
        assert partition["error_code"] == "none", (name, index, offset, partition["error_code"])
        before = offset
        for batch in MemoryRecords(partition["records"] or b""):
            assert batch.validate_crc(), f"{name}-{index} at {batch.base_offset}"
            offset = max(offset, batch.next_offset)
            found += [
                (r.offset, r.timestamp, r.timestamp_type, r.key, r.value, tuple(r.headers))
                for r in batch
                if r.offset >= start
            ]
        assert offset > before, f"{name}-{index} gives nothing at {offset} of {end}"
    return [row for n, row in enumerate(found) if n == 0 or row[0] > found[n - 1][0]]


def newest_by_key(rows: list[Any]) -> dict[bytes, Any]:
    """What a compacted topic promises to keep; either broker may clean the rest away at any moment."""
    return {row[3]: row for row in rows}


def _producers(s: Script, name: str, index: int) -> list[Any]:
    topics = [{"name": name, "partition_indexes": [index]}]
    (partition,) = s.quiet(61, 0, {"topics": topics})["topics"][0]["partitions"]
    rows = partition["active_producers"]
    return sorted(
        (r["producer_id"], r["producer_epoch"], r["last_sequence"], r["last_timestamp"]) for r in rows
    )


# What is written before a swap, and after it.
PRODUCER_ID = 4711


def now_ms() -> int:
    """Recent, so that retention leaves the records alone."""
    return int(time.time() * 1000)


def settle(server: ServerProcess) -> Script:
    """A script on a server for writing."""
    return Script(server, {}, {})


def populate(server: ServerProcess) -> None:
    """Topics of every kind."""
    s = settle(server)
    try:
        s.create("codecs", 2)
        s.create("segments", 1, segment_bytes=1 << 20, index_interval_bytes=4096)
        s.create(
            "compacted", 1, cleanup_policy="compact", segment_bytes=1 << 20, min_cleanable_dirty_ratio=0.01
        )
        s.create("stamped", 1, message_timestamp_type="LogAppendTime")
        s.create("recompressed", 1, compression_type="zstd")
        s.create("trimmed")
        s.create("grown")
        s.create("idempotent")
        s.create("empty", 3)
        s.create("gone")
        write_more(server, 0)
        _change(s)
    finally:
        s.close()


def _change(s: Script) -> None:
    rows = [("retention.ms", SET, "999999999"), ("max.message.bytes", SET, "2000000")]
    broker = ("log.cleaner.backoff.ms", SET, "300")
    default = ("log.segment.delete.delay.ms", SET, "30000")
    body = {
        "resources": [
            change(TOPIC, "codecs", *rows),
            change(BROKER, "1", broker),
            change(BROKER, "", default),
        ],
        "validate_only": False,
    }
    answers = s.quiet(44, 1, body)["responses"]
    assert {a["error_code"] for a in answers} == {"none"}, answers
    grown = {"topics": [{"name": "grown", "count": 3, "assignments": None}], "timeout": 20000}
    assert s.quiet(37, 3, grown)["results"][0]["error_code"] == "none"
    wait_until(lambda: s.is_led("grown", 3), 90, "grown to grow")
    trim = [{"name": "trimmed", "partitions": [{"partition_index": 0, "offset": 5}]}]
    assert (
        s.quiet(21, 2, {"topics": trim, "timeout": 20000})["topics"][0]["partitions"][0]["error_code"]
        == "none"
    )
    delete = {"topics": [{"name": "gone", "topic_id": ZERO_ID}], "timeout": 20000}
    assert s.quiet(20, 6, delete)["responses"][0]["error_code"] == "none"
    gone = {"topics": [{"topic_id": ZERO_ID, "name": "gone"}], "allow_auto_topic_creation": False}
    wait_until(lambda: s.quiet(3, 12, gone)["topics"][0]["error_code"] != "none", 90, "the topic to go")


def write_more(server: ServerProcess, round_: int) -> None:
    """The same kinds of records in every round, each round with its own values."""
    s = settle(server)
    try:
        _write(s, round_)
    finally:
        s.close()


def _write(s: Script, round_: int) -> None:
    now = now_ms()
    for codec in CODECS:
        records = [
            Rec(
                b"%d %s %d " % (round_, codec.encode(), i) * 5,
                key=b"k%d" % i if i % 2 else None,
                headers=[(b"h", b"%d" % i), (b"null", None)],
                timestamp_delta=i,
            )
            for i in range(20)
        ]
        for partition in (0, 1):
            s.produce("codecs", partition, Batch(records=records, codec=codec, base_timestamp=now))
    for i in range(12):
        s.produce("segments", 0, Batch(records=[Rec(bytes([65 + i]) * 30_000)] * 10, base_timestamp=now + i))
    for i in range(6):
        keyed = [Rec(b"%d.%d." % (round_, i) + b"x" * 3000, key=b"key %d" % (j % 20)) for j in range(80)]
        s.produce("compacted", 0, Batch(records=keyed, base_timestamp=now + i))
    s.produce("compacted", 0, Batch(records=[Rec(None, key=b"key 3")], base_timestamp=now + 9))
    s.produce("stamped", 0, Batch(records=[Rec(b"stamped %d" % round_)] * 3, base_timestamp=now))
    s.produce("recompressed", 0, Batch(records=[Rec(b"again " * 50)] * 9, codec="gzip", base_timestamp=now))
    s.produce("trimmed", 0, [Batch(records=[Rec(b"t%d" % i)] * 3, base_timestamp=now) for i in range(4)])
    for i in range(3):
        s.produce("idempotent", 0, sequenced(round_ * 6 + i * 2, now))


def sequenced(sequence: int, timestamp: int | None = None) -> Batch:
    """A batch of the one idempotent producer."""
    return Batch(
        records=[Rec(b"seq %d" % (sequence + i)) for i in range(2)],
        producer_id=PRODUCER_ID,
        producer_epoch=0,
        base_sequence=sequence,
        base_timestamp=timestamp or now_ms(),
    )


def repeated_offset(server: ServerProcess, sequence: int) -> int:
    """Send a batch of the producer's again: the offset that the broker remembers for it."""
    s = settle(server)
    try:
        return int(s.produce("idempotent", 0, sequenced(sequence))["base_offset"])
    finally:
        s.close()
