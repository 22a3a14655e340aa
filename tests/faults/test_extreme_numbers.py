"""Every number of every request in turn at its ends: none of them keeps the broker from serving or from starting.

A number that goes from the wire into a file must be one that the file can hold and the next start can read. Whatever
comes of a request is an answer or a closed connection; the log shows no traceback, others are served on, and the
broker starts again on what was written.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import struct
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.faults.conftest import MakeNode
from tests.interop.apache import read_properties
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import receive_frame, wait_until
from tests.interop.scripts.batches import Batch
from tests.interop.scripts.entities import encode_request, known_versions
from tests.interop.scripts.script import api_ranges
from tests.support.control import ControlClient
from tests.support.raw_client import API_VERSIONS, RawClient, half_close
from tests.support.specimens import specimen

from ottla.metadata.features import SUPPORTED_FEATURES
from ottla.wire.codec import WireError, decode, encode
from ottla.wire.framing import decode_request_header
from ottla.wire.registry import request_class

ENDS = [end for bits in (8, 16, 32, 64) for end in (2 ** (bits - 1) - 1, -(2 ** (bits - 1)))]
EXTREMES = (*ENDS, -1, 0)
QUESTION = b"last"
HELLO = struct.pack(">ihh4sh", 10, API_VERSIONS, 0, QUESTION, -1)
# Fetch, JoinGroup, SyncGroup and ShareFetch may wait for as long as a number says.
MAY_WAIT = {1, 11, 14, 78}
TOPIC = "numbers"
BATCH_NUMBERS = (
    "base_offset",
    "leader_epoch",
    "base_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
)
IDEMPOTENT = {"producer_id": 4000, "producer_epoch": 0, "base_sequence": 0}
Place = tuple[str | int, ...]


def numbers(value: Any, path: Place = ()) -> Iterator[Place]:
    """Where a request has a number."""
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield path
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from numbers(item, (*path, index))
    elif dataclasses.is_dataclass(value) or hasattr(value, "__slots__"):
        for name in field_names(value):
            yield from numbers(getattr(value, name), (*path, name))


def field_names(value: Any) -> list[str]:
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    slots = getattr(type(value), "__slots__", ())
    return [name for name in slots if not name.startswith("_") and hasattr(value, name)]


def put(value: Any, path: Place, number: int) -> None:
    for step in path[:-1]:
        value = value[step] if isinstance(step, int) else getattr(value, step)
    last = path[-1]
    if isinstance(last, int):
        value[last] = number
    else:
        setattr(value, last, number)


def extremes(key: int, version: int, frame: bytes) -> Iterator[tuple[Place, int, bytes]]:
    """The request with one number changed, for each number and each end of its range."""
    view = memoryview(frame)
    _, offset = decode_request_header(view, 4, len(frame))
    head = frame[4:offset]

    def fresh() -> Any:
        return decode(request_class(key), view, version, offset)[0]

    for path in numbers(fresh()):
        widest = 0
        for number in sorted(EXTREMES, key=abs, reverse=True):
            if 1 < abs(number) < widest // 2:
                continue  # only the ends of its own range
            request = fresh()
            put(request, path, number)
            try:
                body = encode(request, version)
            except WireError:
                continue
            widest = max(widest, abs(number))
            yield path, number, struct.pack(">i", len(head) + len(body)) + head + bytes(body)


def asked(client: RawClient, frame: bytes, may_wait: bool) -> bool:
    """Send it with a question behind it; False when the connection is closed by it."""
    client.send(frame + HELLO)
    if may_wait:
        half_close(client.sock)
    try:
        while receive_frame(client.sock)[:4] != QUESTION:
            pass
    except ConnectionError:
        return False
    return not may_wait


def registration(cluster_id: str) -> dict[str, Any]:
    """Of another broker."""
    listener = {"name": "PLAINTEXT", "host": "127.0.0.1", "port": 9092, "security_protocol": 0}
    levels = [
        {"name": name, "min_supported_version": span.min, "max_supported_version": span.max}
        for name, span in SUPPORTED_FEATURES.items()
    ]
    return {
        "broker_id": 7,
        "cluster_id": cluster_id,
        "incarnation_id": uuid.UUID(int=5),
        "listeners": [listener],
        "features": levels,
        "log_dirs": [uuid.UUID(int=900)],
    }


def deep_requests(
    topic_id: uuid.UUID, cluster_id: str, broker_epoch: int
) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Requests that are right as they are, and whose numbers therefore reach the files: listener, key, version."""
    offset = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    start = {"partition": 0, "state_epoch": 0, "start_offset": 0}
    delivered = {"first_offset": 0, "last_offset": 5, "delivery_state": 0, "delivery_count": 1}
    acquired = {**start, "leader_epoch": 0, "delivery_complete_count": 0, "state_batches": [delivered]}
    listener = {"name": "PLAINTEXT", "host": "127.0.0.1", "port": 9092, "security_protocol": 0}
    marker = {
        "producer_id": 7,
        "producer_epoch": 0,
        "transaction_result": True,
        "topics": [{"name": TOPIC, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    return {
        ("broker", 8, 2): {
            "group_id": "simple",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "retention_time": 1000,
            "topics": [{"name": TOPIC, "partitions": [offset]}],
        },
        ("broker", 8, 9): {
            "group_id": "simple",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": TOPIC, "partitions": [{**offset, "committed_leader_epoch": 0}]}],
        },
        ("broker", 19, 7): {
            "topics": [{"name": "made", "num_partitions": 1, "replication_factor": 1}],
            "timeout": 20000,
        },
        ("broker", 37, 3): {
            "topics": [{"name": "grows", "count": 2, "assignments": None}],
            "timeout": 20000,
        },
        ("broker", 21, 2): {
            "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 0}]}],
            "timeout": 20000,
        },
        ("broker", 22, 5): {"transactional_id": "numbers", "transaction_timeout": 1000},
        ("broker", 22, 4): {"transactional_id": None, "transaction_timeout": 1000},
        ("broker", 27, 1): {"markers": [marker]},
        ("broker", 68, 1): {
            "group_id": "modern",
            "member_id": "AAAAAAAAAAAAAAAAAAAAAQ",
            "member_epoch": 0,
            "rebalance_timeout": 10_000,
            "subscribed_topic_names": [TOPIC],
            "topic_partitions": [],
        },
        ("broker", 76, 1): {
            "group_id": "share",
            "member_id": "AAAAAAAAAAAAAAAAAAAAAQ",
            "member_epoch": 0,
            "subscribed_topic_names": [TOPIC],
        },
        ("broker", 83, 0): {"group_id": "queue", "topics": [{"topic_id": topic_id, "partitions": [start]}]},
        ("broker", 85, 1): {
            "group_id": "queue",
            "topics": [{"topic_id": topic_id, "partitions": [acquired]}],
        },
        ("controller", 62, 4): registration(cluster_id),
        ("controller", 63, 1): {"broker_id": 7, "broker_epoch": broker_epoch, "current_metadata_offset": 1},
        ("controller", 67, 0): {"broker_id": 7, "broker_epoch": broker_epoch},
        ("controller", 70, 0): {
            "controller_id": 1,
            "incarnation_id": uuid.UUID(int=5),
            "listeners": [listener],
            "features": [{"name": "x", "min_supported_version": 0, "max_supported_version": 1}],
        },
    }


def test_every_number_of_requests_that_are_right(make_node: MakeNode) -> None:
    """They are asked on one node, so that what one leaves behind is there when the next comes."""
    node = make_node({"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1})
    node.start()
    with ControlClient(node) as control, RawClient(node) as client:
        topic_id = client.create_topic_with_id(TOPIC)
        client.create_topic("grows")
        client.write(client.create_topic("kept"), 0, [b"%d" % n for n in range(20)])
        client.write(TOPIC, 0, [b"some"])
        share_key = f"queue:{uuid_text(topic_id)}:0"
        for kind, key in enumerate(("simple", "numbers", share_key)):
            body = {"key_type": kind, "coordinator_keys": [key]}
            wait_until(lambda body=body: _found(client, body), 30, "a coordinator")  # type: ignore[misc]
        cluster_id = read_properties(node.data_dir / "meta.properties")["cluster.id"]
        with RawClient(node, port=node.controller_port) as other:
            registered = other.ask(62, 4, registration(cluster_id))
            assert registered["error_code"] == "none", registered
        deep = deep_requests(topic_id, cluster_id, registered["broker_epoch"])
        for (listener, key, version), body in deep.items():
            frame = encode_request(key, version, body)
            port = node.port if listener == "broker" else node.controller_port
            assert ask_extremes(node, port, key, version, frame) > 0
            control.still_works(1)
        for name in BATCH_NUMBERS:
            for number in EXTREMES:
                with contextlib.suppress(struct.error):
                    client.produce(TOPIC, 0, Batch(**{**IDEMPOTENT, name: number}).encode())
        control.still_works(1)
    node.stop()
    assert node.exit_code == 0, node.log_text()
    assert "Traceback" not in node.log_text(), node.log_text()
    for again in range(2):
        with node.start(), RawClient(node) as client:
            client.write(client.create_topic(f"afterwards-{again}"), 0, [b"served"])
            assert client.read("kept") == [b"%d" % n for n in range(20)]
            wait_until(lambda c=client: _group(c) == "none", 30, "the group's shard")  # type: ignore[misc]
            wait_until(lambda c=client: _producer(c) == "none", 30, "a shard")  # type: ignore[misc]
        assert node.exit_code == 0
        assert "Traceback" not in node.log_text(), node.log_text()
        assert " ERROR " not in node.log_text(), node.log_text()


def _found(client: RawClient, body: dict[str, Any]) -> bool:
    found: bool = client.ask(10, 6, body)["coordinators"][0]["error_code"] == "none"
    return found


def uuid_text(value: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def _group(client: RawClient) -> str:
    wanted = {"group_id": "simple", "topics": [{"name": TOPIC, "partition_indexes": [0]}]}
    found: str = client.ask(9, 5, wanted)["error_code"]
    return found


def _producer(client: RawClient) -> str:
    found: str = client.ask(22, 4, {"transactional_id": "later", "transaction_timeout": 1000})["error_code"]
    return found


@pytest.mark.parametrize("listener", ["broker", "controller"])
@pytest.mark.parametrize("part", range(3))
def test_every_number_at_its_ends(make_node: MakeNode, listener: str, part: int) -> None:
    node = make_node({"auto.create.topics.enable": "false"})
    node.start()
    with ControlClient(node) as control:
        tried = ask_all(node, control, listener, part)
        control.still_works(1)
    assert tried > 100
    node.stop()
    assert node.exit_code == 0, node.log_text()
    assert "Traceback" not in node.log_text(), node.log_text()
    with node.start(), RawClient(node) as client:
        client.write(client.create_topic("afterwards"), 0, [b"served"])
    assert "Traceback" not in node.log_text(), node.log_text()
    assert " ERROR " not in node.log_text(), node.log_text()


def ask_all(node: OttlaNode, control: ControlClient, listener: str, part: int) -> int:
    with RawClient(node) as client:
        topic_id = client.create_topic_with_id("numbers")
    port = node.port if listener == "broker" else node.controller_port
    tried = 0
    for key, (low, high) in sorted(api_ranges(node)[listener].items()):
        if key % 3 != part:
            continue
        served = set(range(low, high + 1)) & set(known_versions(key))
        for version in {min(served), max(served)}:
            frame = specimen(key, version, "numbers", topic_id)
            tried += ask_extremes(node, port, key, version, frame)
    return tried


def ask_extremes(node: OttlaNode, port: int, key: int, version: int, frame: bytes) -> int:
    tried = 0
    client = RawClient(node, port=port)
    for path, number, changed in extremes(key, version, frame):
        try:
            kept = asked(client, changed, key in MAY_WAIT)
        except TimeoutError:
            raise AssertionError(f"no answer to {key} v{version} with {path} = {number}") from None
        if not kept:
            client.close()
            client = RawClient(node, port=port)
        tried += 1
    client.close()
    return tried
