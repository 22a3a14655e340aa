"""Requests that name very many things: served in slices while others go on, or refused, and right in either case."""

from __future__ import annotations

import select
import struct
from collections.abc import Iterator

import pytest
from tests.faults.conftest import MakeNode
from tests.interop.ottla_node import OttlaNode
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.entities import decode_response, encode_request, frame, header_bytes
from tests.support.control import ControlClient
from tests.support.raw_client import API_VERSIONS, FETCH, METADATA, PRODUCE, RawClient

MANY = 90_000
TOO_MANY = 110_000
# Round trips of another client while a large request is served: whoever holds the loop lets none or two pass.
TURNS = 5
HELLO = struct.pack(">ihhih", 10, API_VERSIONS, 0, 1, -1)
# Partitions of a real topic, more than are read or written in one go.
PARTITIONS = 1100


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def produce_partitions(count: int) -> bytes:
    """A produce request of partitions without records."""
    head = (
        header_bytes(PRODUCE, 9, 1, "x", True) + b"\x00" + struct.pack(">hi", 1, 1000) + uvarint(2) + b"\x02t"
    )
    elements = b"".join(struct.pack(">iH", n, 0) for n in range(count))
    return frame(head + uvarint(count + 1) + elements + b"\x00\x00")


def produce_topics(count: int) -> bytes:
    head = header_bytes(PRODUCE, 9, 1, "x", True) + b"\x00" + struct.pack(">hi", 1, 1000)
    return frame(head + uvarint(count + 1) + b"\x02t\x01\x00" * count + b"\x00")


def fetch_partitions(count: int) -> bytes:
    head = header_bytes(FETCH, 12, 1, "x", True) + struct.pack(">iiiibii", -1, 0, 1, 1000, 0, 0, -1)
    elements = b"".join(struct.pack(">iiqiqiB", n, -1, 0, -1, -1, 100, 0) for n in range(count))
    return frame(head + uvarint(2) + b"\x02t" + uvarint(count + 1) + elements + b"\x00\x01\x01\x00")


def metadata_names(count: int) -> bytes:
    names = b"".join(b"\x08%07d\x00" % n for n in range(count))
    return frame(header_bytes(METADATA, 9, 1, "x", True) + uvarint(count + 1) + names + bytes(4))


REQUESTS = {
    "produce, partitions": produce_partitions,
    "produce, topics": produce_topics,
    "fetch": fetch_partitions,
    "metadata": metadata_names,
}


@pytest.mark.parametrize("what", REQUESTS)
def test_others_go_on_while_many_things_are_answered(node: OttlaNode, what: str) -> None:
    turns = 0
    with RawClient(node) as large, RawClient(node) as other:
        large.send(REQUESTS[what](MANY))
        while not select.select([large.sock], [], [], 0)[0]:
            other.send(HELLO)
            other.receive()
            turns += 1
        assert len(large.receive()) > MANY
    assert turns >= TURNS


@pytest.mark.parametrize("what", REQUESTS)
def test_more_than_any_client_asks_for_is_refused(node: OttlaNode, control: ControlClient, what: str) -> None:
    with RawClient(node) as client:
        client.send(REQUESTS[what](TOO_MANY))
        assert client.is_closed()
        lines = [line for line in node.log_text().splitlines() if f":{client.port} " in line]
    assert len(lines) == 1, lines
    control.still_works()


@pytest.fixture
def wide_node(make_node: MakeNode) -> Iterator[OttlaNode]:
    """A broker that has a topic of many partitions."""
    with make_node() as node:
        yield node


@pytest.fixture
def wide(wide_node: OttlaNode) -> Iterator[RawClient]:
    """A client of it."""
    with RawClient(wide_node) as client:
        client.create_topic("wide", PARTITIONS)
        yield client


def write_to_all(acks: int) -> bytes:
    data = [{"index": n, "records": Batch([Rec(b"%d" % n)]).encode()} for n in range(PARTITIONS)]
    body = {"transactional_id": None, "acks": acks, "timeout": 20_000}
    return encode_request(PRODUCE, 9, {**body, "topic_data": [{"name": "wide", "partition_data": data}]})


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_write_to_very_many_partitions(wide: RawClient, acks: int) -> None:
    for offset in range(2):
        wide.send(write_to_all(acks))
        (topic,) = decode_response(PRODUCE, 9, wide.receive())["responses"]
        told = [(p["index"], p["error_code"], p["base_offset"]) for p in topic["partition_responses"]]
        assert told == [(n, "none", offset) for n in range(PARTITIONS)]


def fetch_all(wait_ms: int, min_bytes: int) -> bytes:
    partitions = [
        {"partition": n, "fetch_offset": 0, "partition_max_bytes": 1000, "log_start_offset": -1}
        for n in range(PARTITIONS)
    ]
    body = {"max_wait": wait_ms, "min_bytes": min_bytes, "max_bytes": 1 << 20, "session_epoch": 0}
    return encode_request(FETCH, 11, {**body, "topics": [{"topic": "wide", "partitions": partitions}]})


def fetched(frame_bytes: bytes) -> dict[int, bytes]:
    """The records of each partition that the answer has any of."""
    (topic,) = decode_response(FETCH, 11, frame_bytes)["responses"]
    return {p["partition_index"]: p["records"] for p in topic["partitions"] if p["records"]}


def test_a_read_of_very_many_partitions(wide: RawClient) -> None:
    wide.send(write_to_all(-1))
    wide.receive()
    wide.send(fetch_all(0, 1))
    records = fetched(wide.receive())
    assert list(records) == list(range(PARTITIONS))
    assert all(b"%d" % n in batch for n, batch in records.items())


def test_a_read_of_very_many_partitions_waits_for_one_of_them(wide_node: OttlaNode, wide: RawClient) -> None:
    """Also in a session, whose later requests are small and still read everything."""
    wide.send(fetch_all(0, 1))
    session = decode_response(FETCH, 11, wide.receive())["session_id"]
    body = {"max_wait": 60_000, "min_bytes": 1, "max_bytes": 1 << 20, "session_epoch": 1}
    wide.send(encode_request(FETCH, 11, {**body, "session_id": session, "topics": []}))
    with RawClient(wide_node) as writer:
        writer.write("wide", PARTITIONS - 1, [b"at last"])
    assert list(fetched(wide.receive())) == [PARTITIONS - 1]
