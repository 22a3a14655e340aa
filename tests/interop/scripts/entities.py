"""Requests from plain dictionaries, responses to plain dictionaries, through kio's generated schemas.

Times are milliseconds, enumerations their names, ids text, so that outcomes can be compared and printed. One
dictionary serves every version of a request: a field that a version lacks is left out, but a name that no
version knows is a mistake in the script and raises.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import io
import struct
import types
import typing
import uuid
from functools import cache
from typing import Any

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from tests.interop.scripts.described import describe_transactions

MILLISECOND = datetime.timedelta(milliseconds=1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ZERO_ID = uuid.UUID(int=0)


@cache
def request_type(api_key: int, version: int) -> Any:
    """kio's class of a request."""
    return _root(load_payload_module(api_key, version, EntityType.request), "request")


@cache
def response_type(api_key: int, version: int) -> Any:
    """kio's class of a response."""
    return _root(load_payload_module(api_key, version, EntityType.response), "response")


def _root(module: types.ModuleType, kind: str) -> Any:
    classes = [c for c in vars(module).values() if isinstance(c, type) and dataclasses.is_dataclass(c)]
    (root,) = [c for c in classes if getattr(c, "__type__", None) is EntityType[kind]]
    return root


def known_versions(api_key: int) -> list[int]:
    """The versions of an API that kio can encode."""
    return sorted(schema_name_map[api_key_map[api_key]])


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


@cache
def _known_names(api_key: int) -> frozenset[str]:
    names: set[str] = set()
    for version in known_versions(api_key):
        module = load_payload_module(api_key, version, EntityType.request)
        for cls in vars(module).values():
            if isinstance(cls, type) and dataclasses.is_dataclass(cls):
                names.update(f.name for f in dataclasses.fields(cls))
    return frozenset(names)


def build(cls: Any, values: dict[str, Any]) -> Any:
    """An entity of the class with these values, defaults where it has them, zero values elsewhere."""
    unknown = set(values) - _known_names(cls.__api_key__)
    assert not unknown, f"{cls.__name__} never had {sorted(unknown)}"
    hints = _hints(cls)
    return cls(**{f.name: _field_value(f, hints[f.name], values) for f in dataclasses.fields(cls)})


def _field_value(field: Any, hint: Any, values: dict[str, Any]) -> Any:
    if field.name in values:
        return _convert(hint, values[field.name])
    if field.default is not dataclasses.MISSING:
        return field.default
    return _zero(hint)


def _strip_optional(hint: Any) -> tuple[Any, bool]:
    args = [a for a in typing.get_args(hint) if a is not types.NoneType]
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return args[0], True
    return hint, False


def _convert(hint: Any, value: Any) -> Any:
    hint, _ = _strip_optional(hint)
    if value is None:
        return None
    if typing.get_origin(hint) is tuple:
        return tuple(_convert(typing.get_args(hint)[0], item) for item in value)
    if dataclasses.is_dataclass(hint):
        return build(hint, value)
    if issubclass(hint, datetime.timedelta):
        return value * MILLISECOND
    if issubclass(hint, datetime.datetime):
        return EPOCH + value * MILLISECOND
    if issubclass(hint, uuid.UUID):
        return uuid.UUID(bytes=value) if isinstance(value, bytes) else value
    if hint is ErrorCode:
        return ErrorCode(value)
    return value


def _zero(hint: Any) -> Any:
    hint, optional = _strip_optional(hint)
    if typing.get_origin(hint) is tuple:
        return ()
    if optional and not issubclass(hint, uuid.UUID):
        return None
    if dataclasses.is_dataclass(hint):
        return build(hint, {})
    if issubclass(hint, datetime.timedelta):
        return 0 * MILLISECOND
    if issubclass(hint, uuid.UUID):
        return ZERO_ID
    if issubclass(hint, enum.Enum):
        return hint(0)
    plain = next(t for t in (bool, int, str, bytes, float) if issubclass(hint, t))
    return plain()


def plain(value: Any) -> Any:
    """Entities to dictionaries, times to milliseconds, enumerations to names, ids to text."""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MILLISECOND
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, uuid.UUID):
        return str(value)
    return value


def header_bytes(
    api_key: int, version: int, correlation_id: int, client_id: str | None, flexible: bool
) -> bytes:
    """A request header v1, or v2 where the message is flexible; the client id is never compact."""
    text = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(text)
    fixed = struct.pack(">hhih", api_key, version, correlation_id, length) + text
    return fixed + (b"\x00" if flexible else b"")


def frame(payload: bytes) -> bytes:
    """Length-prefixed."""
    return struct.pack(">i", len(payload)) + payload


def encode_request(
    api_key: int,
    version: int,
    values: dict[str, Any],
    correlation_id: int = 7,
    client_id: str | None = "script",
) -> bytes:
    """A whole frame. Produce v0 to v2, which kio does not know, are v3 without the transactional id."""
    known = max(version, 3) if api_key == 0 else version
    cls = request_type(api_key, known)
    body = io.BytesIO()
    entity_writer(cls)(body, build(cls, values))
    data = body.getvalue()
    if api_key == 0 and version < 3:
        (length,) = struct.unpack_from(">h", data)
        data = data[2 + max(length, 0) :]
    header = header_bytes(api_key, version, correlation_id, client_id, cls.__flexible__)
    return frame(header + data)


def decode_response(api_key: int, version: int, payload: bytes, correlation_id: int = 7) -> dict[str, Any]:
    """The body of a response as a dictionary; bytes left over are shown, for they are a bug too."""
    if api_key == 0 and version < 2:
        return decode_old_produce_response(version, payload)
    if api_key == 65:
        return describe_transactions(payload)
    cls = response_type(api_key, max(version, 3) if api_key == 0 else version)
    (echoed,) = struct.unpack_from(">i", payload)
    offset = 5 if cls.__flexible__ and api_key != 18 else 4
    entity, size = entity_reader(cls)(payload, offset)
    result: dict[str, Any] = plain(entity)
    if echoed != correlation_id:
        result["!correlation_id"] = echoed
    if offset + size != len(payload):
        result["!trailing_bytes"] = len(payload) - offset - size
    return result


def decode_old_produce_response(version: int, payload: bytes) -> dict[str, Any]:
    """Produce v0 and v1: no log append time; v0 no throttle time either."""
    offset = 4

    def take(fmt: str) -> Any:
        nonlocal offset
        values = struct.unpack_from(fmt, payload, offset)
        offset += struct.calcsize(fmt)
        return values if len(values) > 1 else values[0]

    responses = []
    for _ in range(take(">i")):
        length = take(">h")
        name = payload[offset : offset + length].decode()
        offset += length
        rows = [take(">ihq") for _ in range(take(">i"))]
        partitions = [
            {"index": i, "error_code": ErrorCode(error).name, "base_offset": base} for i, error, base in rows
        ]
        responses.append({"name": name, "partition_responses": partitions})
    result: dict[str, Any] = {"responses": responses}
    if version >= 1:
        result["throttle_time"] = take(">i")
    if offset != len(payload):
        result["!trailing_bytes"] = len(payload) - offset
    return result
