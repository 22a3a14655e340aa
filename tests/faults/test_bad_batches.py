"""Batches, producers, names and settings that are wrong: the right Kafka error, and nothing is stored."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import pytest
from tests.interop.ottla_node import OttlaNode
from tests.interop.scripts.batches import Batch, Rec, message_set_v1
from tests.support.control import ControlClient
from tests.support.raw_client import CREATE_TOPICS, METADATA, RawClient, produce_frame

INCREMENTAL_ALTER_CONFIGS = 44
TOPIC, BROKER = 2, 4
THREE = Batch([Rec(b"a"), Rec(b"b"), Rec(b"c")])
GOOD = THREE.encode()


def patched(position: int, data: bytes, batch: bytes = GOOD) -> bytes:
    return batch[:position] + data + batch[position + len(data) :]


# What a broker of 4.x answers; the side-by-side comparison asks both for these and more.
WRONG: dict[str, tuple[bytes, str]] = {
    "crc": (THREE.with_(break_crc=True).encode(), "corrupt_message"),
    "a bit of a value": (patched(len(GOOD) - 3, b"\x00"), "corrupt_message"),
    "magic 0": (message_set_v1(magic=0), "invalid_record"),
    "magic 1": (message_set_v1(magic=1), "invalid_record"),
    "magic 3": (THREE.with_(magic=3).encode(), "corrupt_message"),
    "length too long": (patched(8, struct.pack(">i", len(GOOD))), "invalid_record"),
    "length too short": (patched(8, struct.pack(">i", 20)), "corrupt_message"),
    "length negative": (patched(8, struct.pack(">i", -1)), "corrupt_message"),
    "cut in the header": (GOOD[:40], "invalid_record"),
    "cut in the records": (GOOD[:-1], "invalid_record"),
    "nothing": (b"", "invalid_record"),
    "one byte": (b"\x00", "invalid_record"),
    "two batches": (GOOD + GOOD, "invalid_record"),
    "count too high": (THREE.with_(count=4).encode(), "invalid_record"),
    "count too low": (THREE.with_(count=2).encode(), "invalid_record"),
    "count negative": (THREE.with_(count=-1).encode(), "invalid_record"),
    "count zero": (THREE.with_(count=0).encode(), "invalid_record"),
    "count and delta gigantic": (
        THREE.with_(count=2**31 - 1, last_offset_delta=2**31 - 2).encode(),
        "invalid_record",
    ),
    "last offset delta": (THREE.with_(last_offset_delta=7).encode(), "invalid_record"),
    "a control batch": (THREE.with_(attributes=0x20).encode(), "invalid_record"),
    "an unknown codec": (THREE.with_(attributes=7).encode(), "unknown_server_error"),
    "trailing bytes": (THREE.with_(extra=b"\x00\x00").encode(), "invalid_record"),
}


def topic_of(client: RawClient, **configs: object) -> str:
    return client.create_topic(f"t-{uuid.uuid4().hex[:10]}", **configs)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_batch_is_refused(client: RawClient, control: ControlClient, case: str) -> None:
    records, error = WRONG[case]
    topic = topic_of(client)
    assert client.produce(topic, 0, records)["error_code"] == error
    assert client.end_offset(topic) == 0
    assert client.write(topic, 0, [b"good"]) == 0  # the same connection, the same partition
    assert client.read(topic) == [b"good"]
    control.still_works(1)


def test_one_wrong_partition_does_not_hold_up_the_others(client: RawClient) -> None:
    topic = topic_of(client, partitions=3)
    data = [
        {"index": 0, "records": GOOD},
        {"index": 1, "records": WRONG["crc"][0]},
        {"index": 2, "records": GOOD},
        {"index": 9, "records": GOOD},
    ]
    body = {"acks": -1, "timeout": 1000, "topic_data": [{"name": topic, "partition_data": data}]}
    rows = client.ask(0, 9, body)["responses"][0]["partition_responses"]
    errors = {row["index"]: row["error_code"] for row in rows}
    assert errors == {0: "none", 1: "corrupt_message", 2: "none", 9: "unknown_topic_or_partition"}


def test_a_batch_larger_than_the_topic_allows(client: RawClient) -> None:
    topic = topic_of(client, max_message_bytes=1000)
    allowed = Batch([Rec(b"x" * (1000 - 61 - 10))]).encode()
    assert len(allowed) <= 1000
    assert client.produce(topic, 0, allowed)["error_code"] == "none"
    assert client.produce(topic, 0, Batch([Rec(b"x" * 1000)]).encode())["error_code"] == "message_too_large"
    assert client.end_offset(topic) == 1


def test_a_record_without_a_key_on_a_compacted_topic(client: RawClient) -> None:
    topic = topic_of(client, cleanup_policy="compact")
    answer = client.produce(topic, 0, Batch([Rec(b"a", b"key"), Rec(b"b")]).encode())
    assert answer["error_code"] == "invalid_record"
    assert [row["batch_index"] for row in answer["record_errors"]] == [1]
    assert client.end_offset(topic) == 0


def test_timestamps_beyond_the_topic_s_limits(client: RawClient) -> None:
    topic = topic_of(client, message_timestamp_before_max_ms=1000)
    assert client.produce(topic, 0, GOOD)["error_code"] == "invalid_timestamp"
    topic = topic_of(client)
    future = THREE.with_(base_timestamp=2**53).encode()
    assert client.produce(topic, 0, future)["error_code"] == "invalid_timestamp"


def test_illegal_acks(client: RawClient) -> None:
    topic = topic_of(client)
    for acks in (2, -2, 32767):
        body = {"acks": acks, "timeout": 1000}
        body["topic_data"] = [{"name": topic, "partition_data": [{"index": 0, "records": GOOD}]}]
        answer = client.ask(0, 9, body)["responses"][0]["partition_responses"][0]
        assert answer["error_code"] == "invalid_required_acks"
    assert client.end_offset(topic) == 0


def test_acks_0_can_only_be_told_by_closing(node: OttlaNode, client: RawClient) -> None:
    topic = topic_of(client)
    with RawClient(node) as silent:
        silent.send(produce_frame(topic, 0, WRONG["crc"][0], acks=0))
        assert silent.is_closed()
        lines = [line for line in node.log_text().splitlines() if f":{silent.port} " in line]
    assert len(lines) == 1
    assert "CORRUPT_MESSAGE" in lines[0]


# -- idempotent producers


def numbered(producer: int, sequence: int, epoch: int = 0, count: int = 1) -> bytes:
    batch = Batch([Rec(b"%d" % (sequence + n)) for n in range(count)])
    return batch.with_(producer_id=producer, producer_epoch=epoch, base_sequence=sequence).encode()


def test_sequences(client: RawClient) -> None:
    topic, producer = topic_of(client), client.producer_id()

    def send(sequence: int, epoch: int = 0, count: int = 1) -> tuple[str, int]:
        answer = client.produce(topic, 0, numbered(producer, sequence, epoch, count))
        return answer["error_code"], answer["base_offset"]

    assert send(0, count=3) == ("none", 0)
    assert send(3) == ("none", 3)
    assert send(5)[0] == "out_of_order_sequence_number"  # a gap
    assert send(3) == ("none", 3)  # once more: where it went the first time
    assert send(0, count=3) == ("none", 0)
    for sequence in range(4, 9):
        assert send(sequence) == ("none", sequence)
    assert send(0, count=3)[0] == "out_of_order_sequence_number"  # older than the last five
    assert send(0, epoch=1) == ("none", 9)
    assert send(9, epoch=0)[0] == "invalid_producer_epoch"
    assert send(5, epoch=2)[0] == "out_of_order_sequence_number"  # a new epoch begins with 0
    assert client.read(topic) == [b"%d" % n for n in (*range(9), 0)]


def test_sequences_that_are_nonsense(client: RawClient) -> None:
    topic, producer = topic_of(client), client.producer_id()
    for sequence in (-1, -5, -(2**31)):
        records = numbered(producer, sequence)
        assert client.produce(topic, 0, records)["error_code"] != "none", sequence
    assert client.end_offset(topic) == 0
    assert client.produce(topic, 0, numbered(producer, 7))["error_code"] == "none"  # any first one is taken


# -- names and settings


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ž", "x" * 250, "a\x00b", "../../etc/passwd"])
def test_illegal_topic_names(node: OttlaNode, client: RawClient, name: str) -> None:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
    (created,) = client.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 1000})["topics"]
    assert created["error_code"] == "invalid_topic_exception"
    query: dict[str, Any] = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
    (found,) = client.ask(METADATA, 9, query)["topics"]
    assert found["error_code"] == "invalid_topic_exception"
    assert client.produce(name, 0, GOOD)["error_code"] in (
        "invalid_topic_exception",
        "unknown_topic_or_partition",
    )
    directories = {path.name for path in node.data_dir.iterdir() if path.is_dir()}
    assert not any(name and directory.startswith(name) for directory in directories)


@pytest.mark.parametrize(
    ("kind", "key", "value", "error"),
    [
        (TOPIC, "no.such.key", "1", "invalid_config"),
        (TOPIC, "retention.ms", "soon", "invalid_config"),
        (TOPIC, "retention.ms", None, "invalid_request"),
        (TOPIC, "cleanup.policy", "burn", "invalid_config"),
        (TOPIC, "segment.bytes", "-1", "invalid_config"),
        (TOPIC, "compression.type", "rar", "invalid_config"),
        (BROKER, "log.retention.ms", "soon", "invalid_request"),
        (BROKER, "node.id", "7", "invalid_request"),
        (BROKER, "max.connections", "-3", "invalid_request"),
    ],
)
def test_settings_that_are_refused(
    client: RawClient, kind: int, key: str, value: str | None, error: str
) -> None:
    name = topic_of(client) if kind == TOPIC else "1"
    change = {"name": key, "config_operation": 0, "value": value}
    body = {"resources": [{"resource_type": kind, "resource_name": name, "configs": [change]}]}
    (answer,) = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, {**body, "validate_only": False})["responses"]
    assert answer["error_code"] == error, answer
    assert answer["error_message"]
