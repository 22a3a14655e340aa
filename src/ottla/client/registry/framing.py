"""Confluent's wire format: a zero byte, the schema's id in four bytes, then the payload. Pure.

A Protobuf payload is preceded by the place of its message in the schema's file: how many indexes, then each of them,
from the outermost message inwards, as zigzag varints; a single zero stands for the first message of the file.
"""

from __future__ import annotations

from collections.abc import Sequence

MAGIC = 0
FRAME_BYTES = 5
MAX_ID = 2**31 - 1
MAX_INDEXES = 64
MAX_VARINT_BYTES = 5


class FrameError(ValueError):
    """Bytes that are no frame, and why; said of a value, so the sentence begins with its verb."""


def frame(schema_id: int) -> bytes:
    """What stands before a payload."""
    return bytes([MAGIC]) + schema_id.to_bytes(FRAME_BYTES - 1)


def schema_id(value: bytes) -> int:
    """The id in a value's frame; FrameError where there is none."""
    if len(value) < FRAME_BYTES:
        raise FrameError(f"is not framed: a frame has {FRAME_BYTES} bytes and more, and this is {len(value)}")
    if value[0] != MAGIC:
        raise FrameError(f"is not framed: it begins with 0x{value[0]:02x}, not with the magic byte 0")
    found = int.from_bytes(value[1:FRAME_BYTES])
    if not 0 < found <= MAX_ID:
        raise FrameError(f"is not framed: {found} is no schema id")
    return found


def write_indexes(indexes: Sequence[int]) -> bytes:
    """The place of a message in its file."""
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(_write_varint(number) for number in (len(indexes), *indexes))


def read_indexes(value: bytes, start: int = FRAME_BYTES) -> tuple[tuple[int, ...], int]:
    """The place of a message in its file, and where its payload begins."""
    count, at = _read_varint(value, start)
    if count == 0:
        return (0,), at
    if not 0 < count <= MAX_INDEXES:
        raise FrameError(f"has {count} message indexes, where 1 to {MAX_INDEXES} are expected")
    found = []
    for _ in range(count):
        index, at = _read_varint(value, at)
        if index < 0:
            raise FrameError(f"has the message index {index}")
        found.append(index)
    return tuple(found), at


def _write_varint(number: int) -> bytes:
    left = (number << 1) ^ (number >> 31)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _read_varint(value: bytes, at: int) -> tuple[int, int]:
    found = 0
    for number in range(MAX_VARINT_BYTES):
        if at >= len(value):
            raise FrameError("ends within its message indexes")
        byte = value[at]
        at += 1
        found |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
    raise FrameError("has a message index that does not end")
