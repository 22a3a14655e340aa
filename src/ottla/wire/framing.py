"""Frames: a size of four bytes, a header, a body.

Purpose: whole requests and responses as they go onto a socket. The version of a header follows from the API key and the
API version alone: flexible requests have header v2, others v1; flexible responses have v1, others v0.

Rules: headers have three exceptions, all Kafka's own. The client id keeps the old string encoding even in header v2, so
that a broker can read the header of an ApiVersions request newer than it knows. An ApiVersions response always has
header v0, because the client cannot know yet what the broker speaks (KIP-511). ControlledShutdown v0 came before client
ids. An unknown tag in a header is skipped. Stateless.
"""

from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

from ottla.wire.codec import encode_into
from ottla.wire.primitives import Buffer, WireError, skip_tags
from ottla.wire.registry import APIS
from ottla.wire.schema import schema_of

SIZE = Struct(">i")
SIZE_BYTES = 4
API_VERSIONS = 18
CONTROLLED_SHUTDOWN = 7
_NEVER = 0x8000  # beyond every int16: an API without flexible versions

_FLEXIBLE_FROM = {
    key: _NEVER if api.flexible_from is None else api.flexible_from for key, api in APIS.items()
}
_FIXED = Struct(">hhi")
_WITH_LENGTH = Struct(">hhih")
_CORRELATION = Struct(">i")
_CLIENT_ID_LENGTH = Struct(">h")
_CLIENT_ID = 10  # where it begins


class RequestHeader(NamedTuple):
    """Who asks for what: the part of a request that has the same shape whatever is asked."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def request_header_version(api_key: int, api_version: int) -> int:
    """0, 1 or 2; KeyError for an unknown API."""
    if api_version >= _FLEXIBLE_FROM[api_key]:
        return 2
    return 0 if api_key == CONTROLLED_SHUTDOWN and api_version == 0 else 1


def response_header_version(api_key: int, api_version: int) -> int:
    """0 or 1; KeyError for an unknown API."""
    return 1 if api_version >= _FLEXIBLE_FROM[api_key] and api_key != API_VERSIONS else 0


def decode_request_header(buf: Buffer, offset: int, end: int) -> tuple[RequestHeader, int]:
    """The header that starts at `offset`, and where the body starts. The version is not judged here."""
    try:
        api_key, api_version, correlation_id, length = _WITH_LENGTH.unpack_from(buf, offset)
        flexible_from = _FLEXIBLE_FROM[api_key]
    except StructError:
        return _decode_short_header(buf, offset, end)
    except KeyError:
        raise WireError(f"there is no API with the key {api_key}") from None
    if api_key == CONTROLLED_SHUTDOWN and api_version == 0:
        return RequestHeader(api_key, api_version, correlation_id, None), offset + _FIXED.size
    p = offset + 10
    client_id = None
    if length >= 0:
        client_id = str(buf[p : p + length], "utf-8", "replace")
        p += length
    if api_version >= flexible_from and p < end:
        tags = buf[p]
        p += 1
        if tags:
            p = _skip(buf, p, tags, end)
    elif api_version >= flexible_from:
        p = end + 1
    if p > end:
        raise WireError("a request ends within its header")
    return RequestHeader(api_key, api_version, correlation_id, client_id), p


def body_offset(view: memoryview, start: int, stop: int, flexible: bool) -> int:
    """Where the body of the request at view[start:stop] begins, for hand-tuned paths that skip its header."""
    if stop - start < _CLIENT_ID:
        raise WireError("a request ends within its header")
    length = _CLIENT_ID_LENGTH.unpack_from(view, start + 8)[0]
    offset = start + _CLIENT_ID + (length if length > 0 else 0)
    if offset >= stop:
        raise WireError("a request ends within its header")
    if not flexible:
        return int(offset)
    if view[offset] == 0:
        return int(offset) + 1
    return decode_request_header(view, start, stop)[1]


def _decode_short_header(buf: Buffer, offset: int, end: int) -> tuple[RequestHeader, int]:
    """A request too short for a client id: right for one ancient API, garbage otherwise."""
    if end - offset >= _FIXED.size:
        api_key, api_version, correlation_id = _FIXED.unpack_from(buf, offset)
        if api_key == CONTROLLED_SHUTDOWN and api_version == 0:
            return RequestHeader(api_key, api_version, correlation_id, None), offset + _FIXED.size
    raise WireError("a request ends within its header")


def _skip(buf: Buffer, p: int, first: int, end: int) -> int:
    try:
        return skip_tags(buf, p, first, end)
    except IndexError:
        raise WireError("a request ends within its header") from None


def encode_request_header(
    out: bytearray, api_key: int, api_version: int, correlation_id: int, client_id: str | None
) -> None:
    """Appends the header of a request."""
    version = request_header_version(api_key, api_version)
    out += _FIXED.pack(api_key, api_version, correlation_id)
    if version == 0:
        return
    if client_id is None:
        out += b"\xff\xff"
    else:
        raw = client_id.encode()
        out += len(raw).to_bytes(2, "big", signed=True)
        out += raw
    if version == 2:
        out.append(0)


def encode_response_header(out: bytearray, api_key: int, api_version: int, correlation_id: int) -> None:
    """Appends the header of a response."""
    out += _CORRELATION.pack(correlation_id)
    if response_header_version(api_key, api_version):
        out.append(0)


def decode_response_header(buf: Buffer, offset: int, api_key: int, api_version: int) -> tuple[int, int]:
    """The correlation id, and where the body starts."""
    try:
        (correlation_id,) = _CORRELATION.unpack_from(buf, offset)
        p = offset + 4
        if response_header_version(api_key, api_version):
            tags = buf[p]
            p += 1
            if tags:
                p = skip_tags(buf, p, tags, len(buf))
    except (StructError, IndexError):
        raise WireError("a response ends within its header") from None
    return correlation_id, p


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


def _api_key(message: Any) -> int:
    api_key = schema_of(type(message)).api_key
    assert api_key is not None, f"{type(message).__name__} is not a request or a response"
    return api_key


def _finish(out: bytearray, message: Any, version: int) -> bytearray:
    encode_into(out, message, version)
    SIZE.pack_into(out, 0, len(out) - SIZE_BYTES)
    return out
