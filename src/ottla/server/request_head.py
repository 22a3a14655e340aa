"""Finding the body of a request without reading its header: what the hand-tuned paths begin with."""

import struct
from typing import Any

from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.header import decode_request_header

# A request becomes objects, twenty times its size if its elements are small: what no client has reason to send is
# refused. Only Produce, whose records stay bytes, may be as large as socket.request.max.bytes.
MAX_DECODED_BYTES = 16 * 1024 * 1024

# What a request may list, all lists together: ten times the partitions a broker is made for. What the controller has
# to decide in one piece may be as much as Kafka's may (its limit of records an operation).
MAX_ELEMENTS = 100_000
MAX_DECIDED_ELEMENTS = 10_000

_CLIENT_ID_LENGTH = struct.Struct(">h")
_CLIENT_ID = 10


def body_offset(view: memoryview, start: int, stop: int, flexible: bool) -> int:
    """Where the body of the request at view[start:stop] begins."""
    if stop - start < _CLIENT_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a request ends within its header")
    length = _CLIENT_ID_LENGTH.unpack_from(view, start + 8)[0]
    offset = start + _CLIENT_ID + (length if length > 0 else 0)
    if offset >= stop:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a request ends within its header")
    if not flexible:
        return int(offset)
    if view[offset] == 0:
        return int(offset) + 1
    return decode_request_header(view, start, stop)[1]


def check_size(size_bytes: int) -> None:
    """INVALID_REQUEST for a request that is not Produce and larger than any client's."""
    if size_bytes > MAX_DECODED_BYTES:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"a request of {size_bytes} bytes, allowed are {MAX_DECODED_BYTES}"
        )


def check_elements(request: Any, limit: int) -> None:
    """INVALID_REQUEST for a request that lists more than any client has reason to."""
    left = limit
    waiting = [request]
    while waiting:
        message = waiting.pop()
        for name in message.__slots__:
            value = getattr(message, name)
            if not isinstance(value, list) or not value:
                continue
            left -= len(value)
            if left < 0:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"a request lists more than {limit} things")
            if hasattr(value[0], "__slots__"):
                waiting += value
