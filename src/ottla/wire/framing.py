"""Frames: a size of four bytes, a header, a body.

Purpose: whole requests and responses as they go onto a socket, and the cutting of a stream into frames.

Rules: a size is judged before a byte is set aside for it. `FrameReader` belongs to one connection; the rest
is stateless.
"""

from struct import Struct
from typing import Any

from ottla.wire.codec import encode_into
from ottla.wire.header import encode_request_header, encode_response_header
from ottla.wire.primitives import Buffer, WireError
from ottla.wire.schema import schema_of

SIZE = Struct(">i")
SIZE_BYTES = 4


def encode_request(message: Any, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The frame of a request."""
    return bytes(request_frame(message, version, correlation_id, client_id))


def request_frame(message: Any, version: int, correlation_id: int, client_id: str | None) -> bytearray:
    """The same, without a last copy: a request may carry megabytes of records."""
    out = bytearray(SIZE_BYTES)
    encode_request_header(out, _api_key(message), version, correlation_id, client_id)
    return _finish(out, message, version)


def encode_response(message: Any, version: int, correlation_id: int) -> bytes:
    """The frame of a response."""
    out = bytearray(SIZE_BYTES)
    encode_response_header(out, _api_key(message), version, correlation_id)
    return bytes(_finish(out, message, version))


def frame_size(buf: Buffer, offset: int, max_bytes: int) -> int:
    """The size a frame claims, checked; the four bytes must be there."""
    size: int = SIZE.unpack_from(buf, offset)[0]
    if size < 0:
        raise WireError(f"a frame of {size} bytes")
    if size > max_bytes:
        raise WireError(f"a frame of {size} bytes, {max_bytes} are allowed")
    return size


class FrameReader:
    """Cuts the bytes of a stream into frames, for a side that may copy them (the client)."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pending = bytearray()

    def feed(self, data: Buffer) -> list[bytes]:
        """Adds what was received; gives every frame that is complete, without its size."""
        pending = self._pending
        pending += data
        frames = []
        p = 0
        while len(pending) - p >= SIZE_BYTES:
            stop = p + SIZE_BYTES + frame_size(pending, p, self._max_bytes)
            if stop > len(pending):
                break
            frames.append(bytes(pending[p + SIZE_BYTES : stop]))
            p = stop
        del pending[:p]
        return frames


def _api_key(message: Any) -> int:
    api_key = schema_of(type(message)).api_key
    assert api_key is not None, f"{type(message).__name__} is not a request or a response"
    return api_key


def _finish(out: bytearray, message: Any, version: int) -> bytearray:
    encode_into(out, message, version)
    SIZE.pack_into(out, 0, len(out) - SIZE_BYTES)
    return out
