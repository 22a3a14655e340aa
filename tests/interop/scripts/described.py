"""DescribeTransactions v0, read by hand: kio refuses the start of a transaction that has not begun, which is -1."""

from __future__ import annotations

import struct
from typing import Any

from kio.schema.errors import ErrorCode


class Reader:
    """A flexible message, from its first byte to its last."""

    def __init__(self, payload: bytes, position: int) -> None:
        self.payload = payload
        self.position = position

    def take(self, kind: str) -> Any:
        (value,) = struct.unpack_from(f">{kind}", self.payload, self.position)
        self.position += struct.calcsize(kind)
        return value

    def length(self) -> int:
        """Of a compact string or array; every one that the scripts meet is short."""
        value = shift = 0
        while True:
            byte = self.take("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return int(value) - 1

    def text(self) -> str:
        size = self.length()
        data = self.payload[self.position : self.position + size]
        self.position += size
        return data.decode()

    def no_tags(self) -> None:
        assert self.take("B") == 0, "tagged fields"


def describe_transactions(payload: bytes) -> dict[str, Any]:
    """The whole answer, with its correlation id taken off."""
    reader = Reader(payload, 5)
    answer = {
        "throttle_time": reader.take("i"),
        "transaction_states": [_state(reader) for _ in range(reader.length())],
    }
    reader.no_tags()
    if reader.position != len(payload):
        answer["!trailing_bytes"] = len(payload) - reader.position
    return answer


def _state(reader: Reader) -> dict[str, Any]:
    state = {
        "error_code": ErrorCode(reader.take("h")).name,
        "transactional_id": reader.text(),
        "transaction_state": reader.text(),
        "transaction_timeout": reader.take("i"),
        "transaction_start_time": reader.take("q"),
        "producer_id": reader.take("q"),
        "producer_epoch": reader.take("h"),
        "topics": [_topic(reader) for _ in range(reader.length())],
    }
    reader.no_tags()
    return state


def _topic(reader: Reader) -> dict[str, Any]:
    topic = {"topic": reader.text(), "partitions": [reader.take("i") for _ in range(reader.length())]}
    reader.no_tags()
    return topic
