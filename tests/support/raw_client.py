"""A Kafka client of a few lines over a plain socket: no retries, no reconnects, so that nothing is papered over.

Requests and responses go through kio and batches are built by hand: nothing here is the code under test.
"""

from __future__ import annotations

import socket
import struct
import uuid
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.interop.process import ServerProcess, receive_frame
from tests.interop.scripts.batches import HEADER, LOG_OVERHEAD, Batch, Rec
from tests.interop.scripts.entities import decode_response, encode_request

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, CREATE_TOPICS, INIT_PRODUCER_ID = 0, 1, 2, 3, 18, 19, 22
ELECT_LEADERS, ALTER_PARTITION_REASSIGNMENTS = 43, 45
TIMEOUT_MS = 20_000


class Endpoint(NamedTuple):
    """Where a broker listens, for those who know no more of it."""

    host: str
    port: int

    @classmethod
    def of(cls, address: str) -> Endpoint:
        """ "host:port"."""
        host, _, port = address.rpartition(":")
        return cls(host, int(port))


class RawClient:
    """One connection to a broker."""

    def __init__(
        self, node: ServerProcess | Endpoint, timeout_s: float = 90.0, port: int | None = None
    ) -> None:
        self.sock = socket.create_connection((node.host, port or node.port), timeout=timeout_s)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def port(self) -> int:
        """Our side's port: the broker's log calls the connection by it."""
        port: int = self.sock.getsockname()[1]
        return port

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Frames.
    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def receive(self) -> bytes:
        return receive_frame(self.sock)

    def ask(self, api_key: int, version: int, body: dict[str, Any]) -> dict[str, Any]:
        """One request and its answer; ConnectionError if the broker closes instead."""
        self.send(encode_request(api_key, version, body))
        return decode_response(api_key, version, self.receive())

    def is_closed(self) -> bool:
        """Wait for the broker to close; False if it answers."""
        try:
            return not self.sock.recv(1)
        except ConnectionError:
            return True

    # What the tests need of Kafka.
    def create_topic(self, name: str, partitions: int = 1, **configs: object) -> str:
        """Create a topic, with configs as keywords; its name."""
        self.create_topic_with_id(name, partitions, **configs)
        return name

    def create_topic_with_id(self, name: str, partitions: int = 1, **configs: object) -> uuid.UUID:
        """Create a topic; its id."""
        settings = [{"name": key.replace("_", "."), "value": str(value)} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": settings}
        answer = self.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout": TIMEOUT_MS})
        assert answer["topics"][0]["error_code"] == "none", answer
        return uuid.UUID(answer["topics"][0]["topic_id"])

    def produce(self, topic: str, partition: int, records: bytes, version: int = 9) -> dict[str, Any]:
        """The answer for the partition: error_code by name, base_offset."""
        self.send(produce_frame(topic, partition, records, version=version))
        answer = decode_response(PRODUCE, version, self.receive())
        found: dict[str, Any] = answer["responses"][0]["partition_responses"][0]
        return found

    def write(self, topic: str, partition: int, values: Iterable[bytes]) -> int:
        """Write one batch of values; its base offset."""
        answer = self.produce(topic, partition, Batch([Rec(value) for value in values]).encode())
        assert answer["error_code"] == "none", answer
        offset: int = answer["base_offset"]
        return offset

    def fetch(self, topic: str, partition: int, offset: int, max_bytes: int = 1 << 20) -> dict[str, Any]:
        """The answer for the partition, records as bytes."""
        wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": max_bytes}
        body = {"max_wait": 500, "min_bytes": 1, "max_bytes": max_bytes}
        body["topics"] = [{"topic": topic, "partitions": [wanted]}]
        found: dict[str, Any] = self.ask(FETCH, 11, body)["responses"][0]["partitions"][0]
        return found

    def read(self, topic: str, partition: int = 0, first: int = 0) -> list[bytes | None]:
        """Every value from an offset up to the high watermark; uncompressed batches only."""
        values: list[bytes | None] = []
        offset = first
        while True:
            answer = self.fetch(topic, partition, offset)
            assert answer["error_code"] == "none", answer
            for base, last, batch_values in uncompressed_batches(answer["records"] or b""):
                values += batch_values[max(offset - base, 0) :]
                offset = last + 1
            if offset >= answer["high_watermark"]:
                return values

    def end_offset(self, topic: str, partition: int = 0) -> int:
        """The high watermark."""
        wanted = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}
        body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [wanted]}]}
        found = self.ask(LIST_OFFSETS, 7, body)["topics"][0]["partitions"][0]
        assert found["error_code"] == "none", found
        offset: int = found["offset"]
        return offset

    def leader(self, topic: str, partition: int = 0) -> Endpoint:
        """Who leads a partition."""
        answer = self.ask(METADATA, 1, {"topics": [{"name": topic}]})
        (row,) = answer["topics"]
        (leader,) = [p["leader_id"] for p in row["partitions"] if p["partition_index"] == partition]
        (found,) = [broker for broker in answer["brokers"] if broker["node_id"] == leader]
        return Endpoint(found["host"], found["port"])

    def producer_id(self) -> int:
        """A fresh id of an idempotent producer."""
        answer = self.ask(
            INIT_PRODUCER_ID,
            4,
            {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1},
        )
        assert answer["error_code"] == "none", answer
        producer: int = answer["producer_id"]
        return producer


def produce_frame(
    topic: str, partition: int, records: bytes | None, *, version: int = 9, acks: int = -1
) -> bytes:
    """A produce request for one partition."""
    data = [{"index": partition, "records": records}]
    body = {"transactional_id": None, "acks": acks, "timeout": TIMEOUT_MS}
    body["topic_data"] = [{"name": topic, "partition_data": data}]
    return encode_request(PRODUCE, version, body)


def uncompressed_batches(data: bytes) -> Iterable[tuple[int, int, list[bytes | None]]]:
    """(base offset, last offset, values) of each whole batch; one that is cut off ends it."""
    position = 0
    while position + HEADER.size <= len(data):
        fields = HEADER.unpack_from(data, position)
        end = position + LOG_OVERHEAD + fields[1]
        if end > len(data):
            return
        yield fields[0], fields[0] + fields[6], _values(data, position + HEADER.size, fields[12])
        position = end


def _values(data: bytes, position: int, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    for _ in range(count):
        length, position = _varint(data, position)
        end = position + length
        position += 1  # attributes
        _, position = _varint(data, position)  # timestamp delta
        _, position = _varint(data, position)  # offset delta
        key, position = _varint(data, position)
        size, position = _varint(data, position + max(key, 0))
        values.append(data[position : position + size] if size >= 0 else None)
        position = end
    return values


def _varint(data: bytes, position: int) -> tuple[int, int]:
    shift = value = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7


def half_close(sock: socket.socket) -> None:
    """Say that nothing more comes, and keep listening."""
    sock.shutdown(socket.SHUT_WR)


def reset(sock: socket.socket) -> None:
    """Close with a reset instead of a goodbye."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
