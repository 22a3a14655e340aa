"""Framed values as JSON text that people read and type: what `ottla consume --registry` shows and `produce` takes.

A value is shown by the schema that it was written with. Avro's and Protobuf's bytes are text of the characters 0 to 255
(Protobuf's own JSON has base64), times are ISO 8601, decimals text, a member of a union stands for itself. Typed in,
the tagged form of Avro's JSON (`{"string": "x"}`) is taken too. Spark is not needed; fastavro and protobuf are, where a
value is of their kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any
from uuid import UUID

from ottla.client.registry.client import AVRO, JSON, PROTOBUF, RegistryClient, RegistryError, Schema
from ottla.client.registry.framing import FRAME_BYTES, frame, read_indexes, schema_id, write_indexes
from ottla.model.install import install
from ottla.spark.pipeline.declare import DeclarationError
from ottla.spark.pipeline.values import avro, protobuf
from ottla.spark.pipeline.values.registry import (
    avro_schema,
    descriptors_of,
    message_at,
    place_of,
    register_protobuf,
    registered,
)

MAX_KEPT = 1000
SUFFIXES = {".avsc": AVRO, ".json": JSON, ".proto": PROTOBUF, ".desc": PROTOBUF}
_INTEGERS = {"int": 31, "long": 63}
_SPACES = {"separators": (",", ":"), "ensure_ascii": False}

Show = Callable[[bytes], bytes]
Take = Callable[[bytes], bytes]


class Shown:
    """Framed values of a registry as JSON text."""

    def __init__(self, client: RegistryClient) -> None:
        self._client = client
        self._known: dict[int, Show] = {}

    def __call__(self, value: bytes) -> bytes:
        """ValueError (FrameError) where the value cannot be read, RegistryError where its schema cannot be had."""
        number = schema_id(value)
        try:
            show = self._known.get(number)
            if show is None:
                if len(self._known) >= MAX_KEPT:
                    self._known.clear()
                show = self._known[number] = self._made(number)
            return show(value)
        except (RegistryError, DeclarationError):
            raise
        except Exception as error:  # noqa: BLE001 - bytes and schemas may provoke anything
            raise ValueError(f"of schema id {number} cannot be read: {avro.error_text(error)}") from None

    def _made(self, number: int) -> Show:
        schema = self._client.by_id(number)
        if schema.kind == JSON:
            return lambda value: value[FRAME_BYTES:]
        try:
            return (
                _avro_shown(self._client, schema)
                if schema.kind == AVRO
                else _protobuf_shown(self._client, schema)
            )
        except ModuleNotFoundError as error:
            raise _missing(error) from None


def _missing(error: ModuleNotFoundError) -> DeclarationError:
    package = "fastavro" if (error.name or "").startswith("fastavro") else "protobuf"
    return DeclarationError(f"needs the package {package}: {install('spark')}")


def _avro_shown(client: RegistryClient, schema: Schema) -> Show:
    decode = avro.decoder(avro_schema(client, schema), start=FRAME_BYTES)
    return lambda value: json.dumps(decode(value), default=_text, **_SPACES).encode()  # type: ignore[arg-type]


def _text(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("latin-1")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise TypeError(f"a value of the type {type(value).__name__}")


def _protobuf_shown(client: RegistryClient, schema: Schema) -> Show:
    from google.protobuf.json_format import MessageToDict

    found = descriptors_of(client, schema)
    if found is None:
        raise DeclarationError(
            f"of schema id {schema.id} cannot be read: the registry's Protobuf schema is text that only protoc reads, "
            "and there is none here"
        )
    descriptors, file_name = found
    classes: dict[tuple[int, ...], Any] = {}

    def show(value: bytes) -> bytes:
        indexes, at = read_indexes(value)
        if indexes not in classes:
            classes[indexes] = protobuf.message_class(
                descriptors, message_at(descriptors, file_name, indexes)
            )
        message = classes[indexes].FromString(value[at:])
        found = MessageToDict(message, preserving_proto_field_name=True)
        return json.dumps(found, **_SPACES).encode()  # type: ignore[arg-type]

    return show


def taker(client: RegistryClient, subject: str, schema_file: str | None, message: str | None) -> Take:
    """What makes framed values of JSON text: by the schema in a file, which is registered, or the subject's newest."""
    try:
        if schema_file is None:
            return _newest_taker(client, subject, message)
        kind = SUFFIXES.get(Path(schema_file).suffix)
        if kind is None:
            raise DeclarationError(f"{schema_file}: a schema is a file {', '.join(SUFFIXES)}")
        if kind == PROTOBUF:
            descriptors, name = protobuf.read_descriptors(schema_file, message, Path())
            return _protobuf_taken(descriptors, name, register_protobuf(client, subject, descriptors, name))
        given = avro.read_schema(schema_file, Path())
        if kind == JSON:
            return _json_taken(frame(registered(client, subject, Schema(JSON, json.dumps(given)))))
        take = _avro_taken(given)  # looked at before it is registered
        return take(frame(registered(client, subject, Schema(AVRO, json.dumps(given)))))
    except ModuleNotFoundError as error:
        raise _missing(error) from None


def _newest_taker(client: RegistryClient, subject: str, message: str | None) -> Take:
    schema = client.latest(subject)
    if schema.kind == JSON:
        return _json_taken(frame(schema.id))
    if schema.kind == AVRO:
        return _avro_taken(avro_schema(client, schema))(frame(schema.id))
    found = descriptors_of(client, schema)
    if found is None:
        raise DeclarationError(
            f"subject {subject!r} is Protobuf as text that only protoc reads, and there is none here"
        )
    descriptors, file_name = found
    name = message or message_at(descriptors, file_name, [0])
    return _protobuf_taken(
        descriptors, name, frame(schema.id) + write_indexes(place_of(descriptors, name)[1])
    )


def _json_taken(head: bytes) -> Take:
    def take(text: bytes) -> bytes:
        _parsed(text)
        return head + text

    return take


def _protobuf_taken(descriptors: bytes, name: str, head: bytes) -> Take:
    from google.protobuf.json_format import ParseDict, ParseError

    kind = protobuf.message_class(descriptors, name)

    def take(text: bytes) -> bytes:
        try:
            data: bytes = ParseDict(_parsed(text), kind()).SerializeToString(deterministic=True)
        except (ParseError, TypeError, AttributeError) as error:
            raise ValueError(f"is no {name}: {avro.error_text(error)}") from None
        return head + data

    return take


def _avro_taken(schema: Any) -> Callable[[bytes], Take]:
    from fastavro import parse_schema, schemaless_writer
    from fastavro.schema import SchemaParseException, UnknownType

    named: dict[str, Any] = {}
    try:
        parsed = parse_schema(schema, named)
    except (SchemaParseException, UnknownType, KeyError, ValueError, TypeError) as error:
        raise DeclarationError(f"schema: {avro.error_text(error)}") from None

    def framed(head: bytes) -> Take:
        from io import BytesIO

        def take(text: bytes) -> bytes:
            row = _of_json(parsed, _parsed(text), named, "")
            stream = BytesIO()
            stream.write(head)
            try:
                schemaless_writer(stream, parsed, row)
            except Exception as error:  # noqa: BLE001 - what does not fit is said in fastavro's words
                raise ValueError(f"does not fit the schema: {avro.error_text(error)[:200]}") from None
            return stream.getvalue()

        return take

    return framed


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text, parse_float=_number)
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    except RecursionError:
        raise ValueError("is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None


class _number(float):
    """A number with the digits it was typed with: a decimal takes those."""

    def __new__(cls, text: str) -> _number:
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str


def _of_json(schema: Any, data: Any, named: dict[str, Any], path: str) -> Any:
    """JSON data as what fastavro writes."""
    if isinstance(schema, list):
        return _of_union(schema, data, named, path)
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list) or (isinstance(kind, str) and kind in named):
        return _of_json(kind, data, named, path)
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if kind in ("record", "error"):
        return _of_record(schema, data, named, path)
    if kind == "array":
        if not isinstance(data, list):
            raise _unfit(path, data, "array")
        return [_of_json(schema["items"], one, named, f"{path}[{n}]") for n, one in enumerate(data)]
    if kind == "map":
        if not isinstance(data, dict):
            raise _unfit(path, data, "map")
        return {key: _of_json(schema["values"], one, named, f"{path}.{key}") for key, one in data.items()}
    if kind == "enum":
        if data not in schema["symbols"]:
            raise _unfit(path, data, f"one of {', '.join(schema['symbols'])}")
        return data
    return _of_primitive(kind, logical, data, path)


def _of_record(schema: Any, data: Any, named: dict[str, Any], path: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise _unfit(path, data, "object")
    names = [field["name"] for field in schema["fields"]]
    for name in data:
        if name not in names:
            raise ValueError(
                f"has a field {_join(path, name)!r} that the schema lacks; it has {', '.join(names)}"
            )
    made = {}
    for field in schema["fields"]:
        place = _join(path, field["name"])
        if field["name"] in data:
            made[field["name"]] = _of_json(field["type"], data[field["name"]], named, place)
        elif "default" in field:
            made[field["name"]] = _of_json(field["type"], field["default"], named, place)
        else:
            raise ValueError(f"lacks the field {place!r}")
    return made


def _of_union(schema: list[Any], data: Any, named: dict[str, Any], path: str) -> Any:
    if data is None and "null" in schema:
        return None
    branches = [branch for branch in schema if branch != "null"]
    if isinstance(data, dict) and len(data) == 1:
        (tag,) = data
        for branch in branches:
            if tag == _branch_name(branch):
                return _of_json(branch, data[tag], named, path)
    problem: ValueError | None = None
    for branch in branches:
        try:
            return _of_json(branch, data, named, path)
        except ValueError as error:
            problem = problem or error
    raise problem or _unfit(path, data, "null")


def _branch_name(branch: Any) -> str:
    if isinstance(branch, str):
        return branch
    return str(branch.get("name") or branch["type"])


def _of_primitive(kind: str, logical: str | None, data: Any, path: str) -> Any:
    try:
        if logical == "decimal" and isinstance(data, str | int | float) and not isinstance(data, bool):
            return Decimal(data.text if isinstance(data, _number) else str(data))
        if isinstance(data, str) and logical is not None:
            if logical == "date":
                return date.fromisoformat(data)
            if logical.startswith("timestamp-"):
                found = datetime.fromisoformat(data)
                return found if found.tzinfo else found.replace(tzinfo=UTC)
            if logical.startswith("local-timestamp-"):
                return datetime.fromisoformat(data)
            if logical.startswith("time-"):
                return time.fromisoformat(data)
            if logical == "uuid":
                return UUID(data)
        if isinstance(data, str) and kind in ("bytes", "fixed"):
            return data.encode("latin-1")
    except (ValueError, InvalidOperation):
        raise _unfit(path, data, logical or kind) from None
    fits = {
        "null": data is None,
        "boolean": isinstance(data, bool),
        "string": isinstance(data, str),
        "float": isinstance(data, int | float) and not isinstance(data, bool),
        "double": isinstance(data, int | float) and not isinstance(data, bool),
    }
    if kind in _INTEGERS:
        whole = isinstance(data, int) and not isinstance(data, bool)
        if not whole or (data if data >= 0 else ~data).bit_length() > _INTEGERS[kind]:
            raise _unfit(path, data, kind)
    elif not fits.get(kind, False):
        raise _unfit(path, data, kind)
    return float(data) if isinstance(data, _number) else data


def _unfit(path: str, data: Any, wanted: str) -> ValueError:
    shown = json.dumps(data, default=str)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return ValueError(f"field {path!r} is {shown}, not {wanted}" if path else f"is {shown}, not {wanted}")


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
