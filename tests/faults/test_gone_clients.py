"""Clients that are gone before their answer is there: what they asked for is done whole or not at all."""

from __future__ import annotations

import fcntl
import random
import socket
import termios
import uuid
from collections.abc import Callable

import pytest
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.entities import encode_request
from tests.support.control import ControlClient
from tests.support.log_files import disk_batches
from tests.support.raw_client import (
    CREATE_TOPICS,
    INIT_PRODUCER_ID,
    METADATA,
    RawClient,
    produce_frame,
    reset,
)

ROUNDS = 40
DELETE_RECORDS, DELETE_TOPICS, CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS = 21, 20, 37, 44


def send_and_vanish(node: OttlaNode, data: bytes) -> None:
    client = RawClient(node)
    client.send(data)
    reset(client.sock)


@pytest.mark.parametrize(
    "configs",
    [
        {"flush_messages": 1},
        {"compression_type": "gzip"},
        {"compression_type": "zstd", "flush_messages": 1},
        {},
    ],
    ids=["flushed", "recompressed", "both", "plain"],
)
def test_what_was_appended_can_be_read(
    node: OttlaNode, client: RawClient, control: ControlClient, configs: dict[str, object]
) -> None:
    """A record that is in the log becomes visible, whether or not its writer waits for the flush."""
    topic = client.create_topic(f"gone-{uuid.uuid4().hex[:8]}", **configs)  # type: ignore[arg-type]
    batch = Batch([Rec(b"x" * 20_000)] * 20).encode()
    for _ in range(ROUNDS):
        send_and_vanish(node, produce_frame(topic, 0, batch))
    # One more writer, who waits: what is before it in the log is not his doing.
    with RawClient(node) as last:
        answer = last.produce(topic, 0, batch)
        assert answer["error_code"] == "none"
        assert client.end_offset(topic) >= answer["base_offset"] + 20
    for _ in range(ROUNDS):
        send_and_vanish(node, produce_frame(topic, 0, batch))
    control.still_works(1)
    wait_until(lambda: client.end_offset(topic) == log_end(node, topic), 30, "everything to be visible")


@pytest.mark.parametrize("leave", [lambda sock: sock.close(), reset], ids=["end", "reset"])
@pytest.mark.parametrize(
    "configs",
    [{"compression_type": "gzip"}, {"flush_messages": 1}, {}],
    ids=["recompressed", "flushed", "plain"],
)
def test_what_nobody_waits_for_is_written(
    node: OttlaNode, client: RawClient, configs: dict[str, object], leave: Callable[[socket.socket], None]
) -> None:
    """Writers that ask for no acknowledgement and go at once: all that was received whole is in the log."""
    topic = client.create_topic(f"unacked-{uuid.uuid4().hex[:8]}", **configs)  # type: ignore[arg-type]
    chance = random.Random(7)
    # More than is looked into on the loop, also when it is compressed.
    batch = Batch([Rec(chance.randbytes(20_000)) for _ in range(5)], codec="zstd").encode()
    for count in (1, 2, 7):
        before = client.end_offset(topic)
        writer = RawClient(node)
        writer.send(produce_frame(topic, 0, batch, acks=0) * count)
        settled(writer)
        leave(writer.sock)
        wait_until(lambda end=before + 5 * count: client.end_offset(topic) == end, 30, "all records")


def settled(writer: RawClient) -> None:
    """Wait until the broker's system has taken all that was sent: a reset drops what has not left us."""
    unsent = bytearray(4)
    wait_until(
        lambda: fcntl.ioctl(writer.sock, termios.TIOCOUTQ, unsent) == 0 and not any(unsent),
        30,
        "the bytes to leave",
    )


def log_end(node: OttlaNode, topic: str) -> int:
    """What the file holds, whatever the broker shows."""
    return disk_batches(node.data_dir, topic)[-1].last_offset + 1


def test_administration_by_clients_that_do_not_wait(
    node: OttlaNode, client: RawClient, control: ControlClient
) -> None:
    chance = random.Random(3)
    topics = [f"admin-{uuid.uuid4().hex[:8]}" for _ in range(ROUNDS)]
    for n, name in enumerate(topics):
        topic = {"name": name, "num_partitions": 3, "replication_factor": 1}
        send_and_vanish(node, encode_request(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 1000}))
        known = chance.choice(topics[: n + 1])
        change = {"name": "retention.ms", "config_operation": 0, "value": "1000"}
        resource = {"resource_type": 2, "resource_name": known, "configs": [change]}
        alter = encode_request(
            INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False}
        )
        grow = encode_request(
            CREATE_PARTITIONS,
            3,
            {"topics": [{"name": known, "count": 5, "assignments": None}], "timeout": 1000},
        )
        drop = encode_request(
            DELETE_RECORDS,
            2,
            {
                "topics": [{"name": known, "partitions": [{"partition_index": 0, "offset": -1}]}],
                "timeout": 1000,
            },
        )
        fresh = encode_request(INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout": 1000})
        remove = encode_request(DELETE_TOPICS, 4, {"topic_names": [known], "timeout": 1000})
        send_and_vanish(node, chance.choice((alter, grow, drop, fresh, remove)))
        send_and_vanish(node, alter + grow + drop + fresh)
    control.still_works()
    assert "Traceback" not in node.log_text()
    # Whatever became of each: a topic that is there can be written, all of it.
    for name, partitions in partitions_of(client).items():
        for partition in range(partitions):
            answer = client.produce(name, partition, Batch().encode())
            if answer["error_code"] != "none":  # somebody's deletion came last
                assert answer["error_code"] == "unknown_topic_or_partition"
                wait_until(lambda name=name: name not in partitions_of(client), 30, "the deletion to show")


def partitions_of(client: RawClient) -> dict[str, int]:
    found = client.ask(METADATA, 9, {"topics": None, "allow_auto_topic_creation": False})["topics"]
    return {t["name"]: len(t["partitions"]) for t in found if t["name"].startswith("admin-")}
