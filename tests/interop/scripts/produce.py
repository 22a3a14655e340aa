"""Scripts: Produce with good and bad batches; InitProducerId and idempotence; DescribeProducers."""

from __future__ import annotations

import uuid
from typing import Any

import cramjam
from tests.interop.process import wait_until
from tests.interop.scripts.batches import BASE_TIMESTAMP, CODECS, Batch, Rec, message_set_v1
from tests.interop.scripts.entities import ZERO_ID, encode_request
from tests.interop.scripts.script import Script

DAY_MS = 86_400_000


def produce_body(
    s: Script, topic: str, records: bytes | None, *, partition: int = 0, acks: int = -1, **more: Any
) -> dict[str, Any]:
    """A Produce request with one partition, by name and by id."""
    topic_id = uuid.UUID(s.topic_ids[topic]) if topic in s.topic_ids else uuid.UUID(int=99)
    rows = [{"index": partition, "records": records}]
    data = [{"name": topic, "topic_id": topic_id, "partition_data": rows}]
    return {"acks": acks, "timeout": 20000, "topic_data": data, **more}


GOOD = {
    "one record": Batch(),
    "three records": Batch(records=[Rec(b"a"), Rec(b"b", timestamp_delta=5), Rec(b"c", timestamp_delta=2)]),
    "keys and headers": Batch(records=[Rec(b"v", key=b"k", headers=[(b"h", b"1"), (b"n", None)])]),
    "null value": Batch(records=[Rec(None, key=b"k")]),
    "a base offset that is not zero": Batch(base_offset=77),
    "a leader epoch": Batch(leader_epoch=5),
    "no timestamp": Batch(base_timestamp=-1, max_timestamp=-1),
    "zero timestamp": Batch(base_timestamp=0, max_timestamp=0),
    "max timestamp too large": Batch(max_timestamp=BASE_TIMESTAMP + DAY_MS),
    "max timestamp too small": Batch(records=[Rec(), Rec(timestamp_delta=50)], max_timestamp=BASE_TIMESTAMP),
}
BAD = {
    "wrong crc": Batch(break_crc=True),
    "magic 3": Batch(magic=3),
    "magic -1": Batch(magic=-1),
    "count too large": Batch(count=2, last_offset_delta=1),
    "count too small": Batch(records=[Rec(), Rec()], count=1),
    "count negative": Batch(count=-1),
    "last offset delta wrong": Batch(last_offset_delta=4),
    "no records": Batch(records=[], last_offset_delta=0),
    "no records, count zero": Batch(records=[]),
    "offset deltas from one": Batch(records=[Rec(offset_delta=1)]),
    "offset deltas with a gap": Batch(records=[Rec(), Rec(offset_delta=5)]),
    "trailing bytes": Batch(extra=b"\x01\x02\x03"),
    "length too large": Batch(length=5000),
    "length too small": Batch(length=20),
    "length negative": Batch(length=-1),
    "codec 5": Batch(attributes=5),
    "codec 7": Batch(attributes=7),
    "control batch": Batch(attributes=0x20),
    "transactional without a producer": Batch(attributes=0x10),
    "a sequence without a producer": Batch(base_sequence=3),
    "a producer without a sequence": Batch(producer_id=4_000_000, producer_epoch=0),
    "unknown producer, sequence from the middle": Batch(
        producer_id=4_000_001, producer_epoch=0, base_sequence=9
    ),
    "broken gzip": Batch(codec="gzip", raw_records=b"not gzip at all"),
    "broken snappy": Batch(codec="snappy", raw_records=b"\xff\xff\xff\xff\xff"),
    "broken lz4": Batch(codec="lz4", raw_records=b"not lz4 at all......"),
    "broken zstd": Batch(codec="zstd", raw_records=b"not zstd at all....."),
    "log append time claimed": Batch(attributes=0x08),
    "timestamp in the far future": Batch(base_timestamp=BASE_TIMESTAMP + 40_000 * DAY_MS),
    "negative timestamp": Batch(base_timestamp=-5, max_timestamp=-5),
    "bad record length": Batch(raw_records=b"\x7e\x00\x00"),
    "zero record length": Batch(raw_records=b"\x00\x00\x00\x00\x00"),
    "bad header count": Batch(raw_records=b"\x0e\x00\x00\x00\x01\x01\x7e\x00"),
}
# Null records are left out: the reference never answers them. The fault tests hold Ottla to an answer.
RAW = {
    "empty records": b"",
    "eleven bytes": b"\x00" * 11,
    "sixty bytes": Batch().encode()[:60],
    "half a batch": Batch(records=[Rec(b"x" * 100)]).encode()[:100],
    "two batches": Batch().encode() * 2,
    "a batch and a half": Batch().encode() + Batch().encode()[:40],
    "magic 1": message_set_v1(magic=1),
    "magic 0": message_set_v1(magic=0),
    "text": b"GET / HTTP/1.1\r\nHost: example\r\n\r\n" * 3,
}


def produce_good(s: Script) -> None:
    """Every version with every acks, codec and shape of batch."""
    for v in s.versions(0):
        name = s.create(f"produce-v{v}", 2)
        for acks in (1, -1, 2, -2):
            s.ask(0, v, produce_body(s, name, Batch().encode(), acks=acks), f"acks {acks}")
        s.ask(0, v, produce_body(s, name, Batch().encode(), partition=7), "unknown partition")
        s.ask(0, v, produce_body(s, name, Batch().encode(), partition=-1), "negative partition")
        s.ask(0, v, produce_body(s, "produce-nope", Batch().encode()), "unknown topic")
        s.ask(0, v, {"acks": -1, "timeout": 20000, "topic_data": []}, "no topics")
        for case, records in RAW.items():
            s.ask(0, v, produce_body(s, name, records), case)
        for codec in CODECS:
            batch = Batch(records=[Rec(b"v" * 100, key=b"k")] * 10, codec=codec)
            s.ask(0, v, produce_body(s, name, batch.encode()), f"codec {codec}")
        linked = Batch(codec="lz4", raw_records=bytes(cramjam.lz4.compress(Rec().encode(0))))
        s.ask(0, v, produce_body(s, name, linked.encode()), "lz4 with linked blocks")
        body = produce_body(s, name, Batch().encode())
        body["topic_data"][0]["partition_data"].append({"index": 1, "records": Batch().encode()})
        body["topic_data"][0]["partition_data"].append({"index": 5, "records": Batch().encode()})
        s.ask(0, v, body, "several partitions, one unknown")
        _read_back(s, name, f"after produce v{v}")
    _no_acks(s)


def _no_acks(s: Script) -> None:
    # acks 0 is not answered: the next answer on the connection is that of the next request.
    name = s.create("produce-no-acks")
    for v in (3, 7, s.newest(0)):
        frames = encode_request(0, v, produce_body(s, name, Batch().encode(), acks=0), correlation_id=1)
        probe = encode_request(18, 0, {}, correlation_id=7)
        answer = s.exchange(frames + probe)
        s.note(f"acks 0, v{v}", "next answered" if isinstance(answer, bytes) else answer)
        s.asked.add(("broker", 0, v))
    bad = encode_request(0, 9, produce_body(s, name, Batch(break_crc=True).encode(), acks=0))
    s.note("acks 0, corrupt", s.exchange(bad))
    unknown = encode_request(0, 9, produce_body(s, "produce-nope", Batch().encode(), acks=0))
    s.note("acks 0, unknown topic", s.exchange(unknown))
    _read_back(s, name, "after acks 0")


def _read_back(s: Script, name: str, case: str) -> None:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [{"topic": name, "partitions": [partition]}]
    s.ask(1, 11, {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "topics": topics}, case)


def produce_batches(s: Script) -> None:
    """Every odd batch against topics of several kinds: what is taken, refused, and lands in the log."""
    kinds: dict[str, dict[str, object]] = {
        "plain": {},
        "compact": {"cleanup_policy": "compact"},
        "append-time": {"message_timestamp_type": "LogAppendTime"},
        "gzip": {"compression_type": "gzip"},
        "uncompressed": {"compression_type": "uncompressed"},
        "small": {"max_message_bytes": 200},
        "timed": {"message_timestamp_before_max_ms": 60_000, "message_timestamp_after_max_ms": 60_000},
    }
    for kind, configs in kinds.items():
        name = s.create(f"odd-{kind}", **configs)
        for case, batch in {**GOOD, **BAD}.items():
            for codec in ("none", "gzip") if kind == "plain" and batch.codec == "none" else ("none",):
                if codec == "gzip" and (batch.raw_records is not None or batch.attributes):
                    continue
                wanted = batch.with_(codec=codec) if codec != "none" else batch
                s.ask(0, 9, produce_body(s, name, wanted.encode()), f"{kind} {codec}: {case}")
        large = Batch(records=[Rec(b"x" * 300, key=b"k")])
        s.ask(0, 9, produce_body(s, name, large.encode()), f"{kind}: 300 bytes")
        mixed = Batch(records=[Rec(b"1", key=b"k"), Rec(b"2"), Rec(b"3", key=b"k")])
        for v in (3, 7, 8, s.newest(0)):
            s.ask(0, v, produce_body(s, name, mixed.encode()), f"{kind}: a key missing")
        _read_back(s, name, f"log of {kind}")
    future = BASE_TIMESTAMP + 40_000 * DAY_MS
    for codec in ("none", "gzip"):
        for count in (10, 25):
            many = Batch(records=[Rec()] * count, base_timestamp=future, codec=codec)
            s.ask(0, 9, produce_body(s, "odd-plain", many.encode()), f"{count} of the far future, {codec}")
            keyless = Batch(records=[Rec()] * count, codec=codec)
            s.ask(0, 9, produce_body(s, "odd-compact", keyless.encode()), f"{count} without a key, {codec}")
    huge = Batch(records=[Rec(b"x" * 1_100_000)])
    s.ask(0, 9, produce_body(s, "odd-plain", huge.encode()), "over the default limit")


def new_producer_id(s: Script) -> int:
    """A producer id, when the broker has its first block of them."""
    body = {"transactional_id": None, "transaction_timeout": 60000}
    wait_until(lambda: s.quiet(22, 4, body).get("error_code") == "none", 90, "a block of producer ids")
    return int(s.quiet(22, 4, body)["producer_id"])


def init_producer_id(s: Script) -> None:
    """InitProducerId without and with ids and epochs of one's own."""
    new_producer_id(s)
    for v in s.versions(22):
        s.ask(22, v, {"transactional_id": None, "transaction_timeout": 60000}, "a new producer")
        s.ask(22, v, {"transactional_id": None, "transaction_timeout": 0}, "no timeout")
        if v >= 3:
            again = {
                "transactional_id": None,
                "transaction_timeout": 60000,
                "producer_id": 3,
                "producer_epoch": 2,
            }
            s.ask(22, v, again, "with an id and an epoch")
            odd = {
                "transactional_id": None,
                "transaction_timeout": 60000,
                "producer_id": -1,
                "producer_epoch": 2,
            }
            s.ask(22, v, odd, "an epoch without an id")
            s.ask(22, v, {**odd, "producer_id": 3, "producer_epoch": -1}, "an id without an epoch")
        s.ask(22, v, {"transactional_id": "", "transaction_timeout": 60000}, "an empty transactional id")


def idempotence(s: Script) -> None:
    """Sequences: in order, repeated, with gaps, over the last five, epochs, wrap-around."""
    for v in (3, 7, 9, 11, s.newest(0)):
        name = s.create(f"idem-v{v}", 2)
        producer = new_producer_id(s)

        def send(case: str, sequence: int, count: int = 2, epoch: int = 0, **more: Any) -> None:
            batch = Batch(
                records=[Rec(b"v%d" % i) for i in range(count)],
                producer_id=producer,  # noqa: B023  called within the same turn of the loop
                producer_epoch=epoch,
                base_sequence=sequence,
            ).with_(**more)
            s.ask(0, v, produce_body(s, name, batch.encode()), case)  # noqa: B023

        send("first", 0)
        send("first, repeated", 0)
        send("second", 2)
        send("gap", 6)
        for sequence in (4, 6, 8, 10, 12):
            send(f"in order {sequence}", sequence)
        send("the oldest of five, repeated", 4)
        send("older than five, repeated", 0)
        send("repeated with another length", 12, 1)
        send("lower sequence", 3)
        send("an older epoch before any newer", 14, epoch=-1)
        send("a new epoch from the middle", 14, epoch=1)
        send("a new epoch", 0, epoch=1)
        send("the old epoch", 14, epoch=0)
        send("compressed", 2, epoch=1, codec="lz4")
        send("compressed, repeated", 2, epoch=1, codec="lz4")
        send("control batch of a producer", 4, epoch=1, attributes=0x20)
        send("transactional", 4, epoch=1, attributes=0x10)
        send("an epoch far ahead, from the middle", 7, epoch=30000)
        send("an epoch far ahead", 0, epoch=30000)
        _describe(s, name)
        _read_back(s, name, f"log of {name}")
    _wrap_around(s)


def _wrap_around(s: Script) -> None:
    name = s.create("idem-wrap")
    fresh = {"producer_id": 5_000_000, "producer_epoch": 0}
    first = Batch(records=[Rec()] * 2, base_sequence=2**31 - 2, **fresh)  # type: ignore[arg-type]
    s.ask(0, 9, produce_body(s, name, first.encode()), "a fresh producer at the last sequences")
    s.ask(0, 9, produce_body(s, name, first.with_(base_sequence=0).encode()), "wrapped around")
    several = Batch(**fresh, base_sequence=2).encode() + Batch(**fresh, base_sequence=3).encode()  # type: ignore[arg-type]
    s.ask(0, 9, produce_body(s, name, several), "two batches of a producer in one request")


def _describe(s: Script, name: str) -> None:
    for v in s.versions(61):
        topics = [{"name": name, "partition_indexes": [0, 1]}]
        s.ask(61, v, {"topics": topics}, f"producers of {name}")


def describe_producers(s: Script) -> None:
    """DescribeProducers where there are none, and unknown partitions."""
    name = s.create("producers-none")
    for v in s.versions(61):
        for case, topics in {
            "none": [{"name": name, "partition_indexes": [0]}],
            "unknown partition": [{"name": name, "partition_indexes": [4]}],
            "unknown topic": [{"name": "nope", "partition_indexes": [0]}],
            "illegal topic": [{"name": "a b", "partition_indexes": [0]}],
            "no topics": [],
        }.items():
            s.ask(61, v, {"topics": topics}, case)


def produce_by_unknown_id(s: Script) -> None:
    """Produce v13 names topics by id (KIP-516)."""
    v = s.newest(0)
    rows = [{"index": 0, "records": Batch().encode()}]
    for case, topic_id in {"zero id": ZERO_ID, "unknown id": uuid.UUID(int=99)}.items():
        body = {"acks": -1, "timeout": 20000, "topic_data": [{"topic_id": topic_id, "partition_data": rows}]}
        s.ask(0, v, body, case)
    s.ask(0, v, {"acks": -1, "timeout": 20000, "topic_data": []}, "none")
