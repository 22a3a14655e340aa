"""A few kilobytes that are millions of records or hundreds of megabytes: what they cost the broker, and others.

The bounds are those of docs/operations.md ("What hostile clients can cost"): one batch of up to 128 MiB is unpacked
at a time, beside small ones of up to 8 MiB each in the pool's eight threads, and somebody else has every answer within
a second.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import cramjam
import pytest
from tests.faults.conftest import ENVIRONMENT
from tests.interop.ottla_node import OttlaNode
from tests.interop.scripts.batches import Batch, Rec, varint
from tests.support.control import ControlClient
from tests.support.raw_client import LIST_OFFSETS, RawClient, produce_frame

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")

MIB = 1024 * 1024
POOL_BYTES = 8 * 8 * MIB
LARGEST_BYTES = 128 * MIB
OWN_BYTES = 64 * MIB  # frames, and growth of the process that has nothing to do with any of it
INSPECTION_BYTES = POOL_BYTES + LARGEST_BYTES + OWN_BYTES
RECOMPRESSION_BYTES = 512 * MIB
MAX_RECORD_ERRORS = 10
MILLIONS = 16_000_000
UNPACKED_BYTES = 120 * MIB
HOUR_MS = 3_600_000


@pytest.fixture(scope="module", params=["c", "python"])
def node(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[OttlaNode]:
    """A broker with the compiled kernel, and one with its twin."""
    env = {**ENVIRONMENT, "OTTLA_KERNEL": "python" if request.param == "python" else ""}
    broker = OttlaNode(tmp_path_factory.mktemp("hostile") / "data", env=env)
    with broker:
        with RawClient(broker) as client:  # the codecs are imported with the first batch that needs them
            topic = client.create_topic("first")
            for codec in ("gzip", "lz4", "zstd"):
                assert client.produce(topic, 0, Batch(codec=codec).encode())["error_code"] == "none"
            assert searched(client, topic, 0) == "none 0"
        yield broker
    assert broker.exit_code == 0
    assert "Traceback" not in broker.log_text()


@pytest.fixture
def grown(node: OttlaNode) -> Callable[[], int]:
    """How much memory the broker has had at most since the test began, beyond what it had then."""
    Path(f"/proc/{node.pid}/clear_refs").write_text("5")
    before = node.rss_bytes()
    return lambda: node.peak_rss_bytes() - before


def topic_of(node: OttlaNode, name: str, **configs: object) -> str:
    with RawClient(node) as client:
        return client.create_topic(f"{name}-{time.monotonic_ns()}", **configs)


def millions(**fields: Any) -> bytes:
    """Sixteen million records that are all the same, in four kilobytes."""
    record = Rec(None, None, offset_delta=0).encode(0)
    packed = bytes(cramjam.zstd.compress(record * MILLIONS))
    assert len(packed) < 32 * 1024
    fields = {"base_timestamp": now_ms(), **fields}
    return Batch(
        codec="zstd", raw_records=packed, count=MILLIONS, last_offset_delta=MILLIONS - 1, **fields
    ).encode()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


TOMORROW: dict[str, Any] = {
    "base_timestamp": now_ms() + 24 * HOUR_MS,
    "max_timestamp": now_ms() + 24 * HOUR_MS,
}
ATTACKS: dict[str, tuple[dict[str, object], dict[str, Any]]] = {
    "of tomorrow": ({}, TOMORROW),
    "without keys": ({"cleanup_policy": "compact"}, {}),
    "with the broker's time": ({"message_timestamp_type": "LogAppendTime"}, {"attributes": 8 | 4}),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_millions_of_records_in_a_few_kilobytes(
    node: OttlaNode, grown: Callable[[], int], attack: str
) -> None:
    configs, fields = ATTACKS[attack]
    topic = topic_of(node, "millions", **configs)
    batch = millions(**fields)
    with ControlClient(node) as other, RawClient(node) as client:
        other.still_works()
        answer = client.produce(topic, 0, batch)
        # Their numbers are wrong, too, and that is found first.
        assert answer["error_code"] == "unknown_server_error"
        assert not answer["record_errors"]
        other.was_served_promptly(20)
        assert client.end_offset(topic) == 0
        assert grown() < INSPECTION_BYTES


@pytest.mark.parametrize(
    ("attack", "error"), [("of tomorrow", "invalid_timestamp"), ("without keys", "invalid_record")]
)
def test_millions_of_records_that_would_be_numbered_anew(
    node: OttlaNode, grown: Callable[[], int], attack: str, error: str
) -> None:
    """A topic with a codec of its own takes any numbers, so every record has to be judged."""
    configs, fields = ATTACKS[attack]
    topic = topic_of(node, "anew", compression_type="lz4", **configs)
    count = MILLIONS if is_compiled(node) else 300_000
    record = Rec(None, None, offset_delta=0).encode(0)
    packed = bytes(cramjam.zstd.compress(record * count))
    fields = {"base_timestamp": now_ms(), **fields, "count": count, "last_offset_delta": count - 1}
    batch = Batch(codec="zstd", raw_records=packed, **fields).encode()
    with ControlClient(node) as other, RawClient(node) as client:
        other.still_works()
        answer = client.produce(topic, 0, batch)
        assert answer["error_code"] == error
        assert [row["batch_index"] for row in answer["record_errors"]] == list(range(MAX_RECORD_ERRORS))
        other.was_served_promptly(20)
        assert grown() < RECOMPRESSION_BYTES


def test_millions_of_records_that_are_numbered_anew(node: OttlaNode, grown: Callable[[], int]) -> None:
    topic = topic_of(node, "renumbered", compression_type="lz4", max_message_bytes=200 * MIB)
    count = MILLIONS if is_compiled(node) else 300_000
    record = Rec(None, None, offset_delta=0).encode(0)
    fields: dict[str, Any] = {"base_timestamp": now_ms(), "count": count, "last_offset_delta": count - 1}
    packed = bytes(cramjam.zstd.compress(record * count))
    with ControlClient(node) as other, RawClient(node, timeout_s=120) as client:
        other.still_works()
        batch = Batch(codec="zstd", raw_records=packed, **fields).encode()
        assert client.produce(topic, 0, batch)["error_code"] == "none"
        assert client.end_offset(topic) == count
        other.was_served_promptly(20)
        assert grown() < RECOMPRESSION_BYTES


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_a_megabyte_of_records_of_tomorrow(node: OttlaNode, grown: Callable[[], int], codec: str) -> None:
    """As many as fit, each with its own number: every one is refused, few are named."""
    topic = topic_of(node, "tomorrow")
    records = [Rec(None, None) for _ in range(100_000)]
    batch = Batch(records, codec=codec, **TOMORROW).encode()
    assert len(batch) < MIB
    with ControlClient(node) as other, RawClient(node) as client:
        other.still_works()
        for _ in range(5):
            answer = client.produce(topic, 0, batch)
            assert answer["error_code"] == "invalid_timestamp"
            assert [row["batch_index"] for row in answer["record_errors"]] == list(range(MAX_RECORD_ERRORS))
        other.was_served_promptly(20)
        assert client.end_offset(topic) == 0
        assert grown() < INSPECTION_BYTES


# -- a hundred megabytes each


def giant(codec: str) -> bytes:
    """One record of 120 MiB, which is as it should be."""
    body = (
        b"\x00"
        + varint(0)
        + varint(0)
        + varint(-1)
        + varint(UNPACKED_BYTES)
        + bytes(UNPACKED_BYTES)
        + varint(0)
    )
    plain = varint(len(body)) + body
    packed = {
        "gzip": lambda: bytes(cramjam.gzip.compress(plain)),
        "lz4": lambda: lz4_frame(plain),
        "zstd": lambda: bytes(cramjam.zstd.compress(plain)),
    }[codec]()
    assert len(packed) < MIB
    return Batch(codec=codec, raw_records=packed, base_timestamp=now_ms()).encode()


def lz4_frame(plain: bytes) -> bytes:
    """Of independent blocks, which are what Java reads."""
    stream = cramjam.lz4.Compressor(level=1, content_checksum=False, block_linked=False)
    stream.compress(plain)
    return bytes(stream.finish())


def at_once(node: OttlaNode, times: int, ask: Callable[[RawClient], str]) -> list[str]:
    """The same of many clients at the same time; what each was told."""
    told: list[str] = []

    def run() -> None:
        with RawClient(node, timeout_s=120) as client:
            told.append(ask(client))

    threads = [threading.Thread(target=run) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_many_batches_that_unpack_to_much(node: OttlaNode, grown: Callable[[], int], codec: str) -> None:
    topic = topic_of(node, "giants")
    batch = giant(codec)
    times = 60 if codec == "zstd" else 10
    with ControlClient(node) as other:
        other.still_works()
        told = at_once(node, times, lambda client: client.produce(topic, 0, batch)["error_code"])
        assert told == ["none"] * times
        other.was_served_promptly(20)
        assert grown() < INSPECTION_BYTES
        # They are stored as they came; who asks for a time has the broker unpack one again.
        told = at_once(node, 10, lambda client: searched(client, topic, now_ms() - 24 * HOUR_MS))
        assert told == ["none 0"] * 10
        other.was_served_promptly(20)
        assert grown() < INSPECTION_BYTES


def test_many_batches_that_are_packed_anew(node: OttlaNode, grown: Callable[[], int]) -> None:
    topic = topic_of(node, "packed-anew", compression_type="zstd")
    batch = giant("lz4")
    with ControlClient(node) as other:
        other.still_works()
        told = at_once(node, 10, lambda client: client.produce(topic, 0, batch)["error_code"])
        assert told == ["none"] * 10
        other.was_served_promptly(20)
        assert grown() < RECOMPRESSION_BYTES


def test_those_who_left_do_not_make_room_for_more(node: OttlaNode, grown: Callable[[], int]) -> None:
    """A thread goes on when the client is gone, so what it holds is counted on."""
    topic = topic_of(node, "left")
    batch = giant("zstd")
    with ControlClient(node) as other:
        other.still_works()
        for _ in range(30):
            with RawClient(node) as client:
                client.send(produce_frame(topic, 0, batch))
        with RawClient(node, timeout_s=120) as client:
            assert client.produce(topic, 0, batch)["error_code"] == "none"
        other.was_served_promptly(20)
        assert grown() < INSPECTION_BYTES


def searched(client: RawClient, topic: str, timestamp: int) -> str:
    wanted: Mapping[str, object] = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [wanted]}]}
    found = client.ask(LIST_OFFSETS, 7, body)["topics"][0]["partitions"][0]
    return f"{found['error_code']} {found['offset']}"


def is_compiled(node: OttlaNode) -> bool:
    return "OTTLA_KERNEL=python" not in Path(f"/proc/{node.pid}/environ").read_text().split("\0")
