"""The few byte-level steps that compiled codecs call out to, and the error they all raise.

Purpose: variable-length integers beyond their first byte, tag sections, and the checks that keep a length
from being believed before the bytes are there. The first byte of a varint is handled inline by compiled code.

Rules: every function that reads takes the buffer, a position and (where it checks) the end, and returns the
new position; nothing is allocated from a length that was not checked. Stateless.
"""

from ottla.model.errors import ErrorCode, KafkaError

Buffer = bytes | bytearray | memoryview

MAX_STRING_BYTES = 0x7FFF  # the old encoding's int16; Kafka holds the compact one to it too
# No message has more than a handful of tags, known or not, in one place. A frame could be made of nothing else, and to
# step over fifty million of them takes ten seconds.
MAX_TAGS = 32


class WireError(KafkaError):
    """Bytes that are not a message of the version they claim, or a message that has no such bytes."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, message)


def uvarint_rest(buf: Buffer, p: int, first: int) -> tuple[int, int]:
    """Finishes an unsigned varint whose first byte, 128 or more, was read before `p`."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buf[p]
        p += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, p
    raise WireError("a varint is longer than five bytes")


def read_uvarint(buf: Buffer, p: int) -> tuple[int, int]:
    """Reads a whole unsigned varint."""
    first = buf[p]
    return (first, p + 1) if first < 0x80 else uvarint_rest(buf, p + 1, first)


def string_length_rest(buf: Buffer, p: int, first: int) -> tuple[int, int]:
    """As uvarint_rest, for the length of a compact string (which is stored plus one)."""
    value, p = uvarint_rest(buf, p, first)
    if value > MAX_STRING_BYTES + 1:
        raise WireError(f"a string of {value - 1} bytes: the protocol allows {MAX_STRING_BYTES}")
    return value, p


def tag_count(buf: Buffer, p: int, first: int) -> tuple[int, int]:
    """How many tags there are in one place; `first` is the count's first byte, read before `p`."""
    count, p = (first, p) if first < 0x80 else uvarint_rest(buf, p, first)
    if count > MAX_TAGS:
        raise WireError(f"{count} tags in one place, more than {MAX_TAGS}")
    return count, p


def put_uvarint(out: bytearray, value: int) -> None:
    """Appends an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_string_length(out: bytearray, stored: int) -> None:
    """Appends the length, already plus one, of a compact string too long for one byte."""
    if stored > MAX_STRING_BYTES + 1:
        raise WireError(f"a string of {stored - 1} bytes: the protocol allows {MAX_STRING_BYTES}")
    put_uvarint(out, stored)


def is_string(value: object) -> bool:
    """Can a message carry this as a string?"""
    try:
        return isinstance(value, str) and len(value.encode()) <= MAX_STRING_BYTES
    except UnicodeEncodeError:  # half of a pair, such as what a command line has that is no UTF-8
        return False


def skip_tags(buf: Buffer, p: int, first: int, end: int) -> int:
    """Steps over tags none of which is known; `first` is the count's first byte, read before `p`."""
    count, p = tag_count(buf, p, first)
    if count * 2 > end - p:
        raise too_many(count, end - p)
    for _ in range(count):
        _, p, p = read_tag(buf, p, end)
    return p


def read_tag(buf: Buffer, p: int, end: int) -> tuple[int, int, int]:
    """The next tag, where its value starts, and where it ends."""
    tag, p = read_uvarint(buf, p)
    size, p = read_uvarint(buf, p)
    if size > end - p:
        raise WireError(f"tag {tag} claims {size} bytes, {end - p} are left")
    return tag, p, p + size


def put_tag(out: bytearray, tag: int, value: bytes | bytearray) -> None:
    """Appends one tagged value."""
    put_uvarint(out, tag)
    put_uvarint(out, len(value))
    out += value


def too_short(name: str, wanted: int, left: int) -> WireError:
    return WireError(f"{name} claims {wanted} bytes, {left} are left")


def too_many(count: int, left: int) -> WireError:
    return WireError(f"a collection claims {count} elements, {left} bytes are left")


def too_long() -> WireError:
    return WireError("a request lists more things than it may")


def null_field(name: str) -> WireError:
    return WireError(f"{name} may not be null in this version")


def not_in_version(name: str, version: int) -> WireError:
    return WireError(f"{name} is set, but version {version} cannot carry it")


def wrong_tag_size(name: str) -> WireError:
    return WireError(f"the tagged field {name} does not have the size it claims")
