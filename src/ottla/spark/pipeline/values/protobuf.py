"""Protobuf values: messages by a descriptor, through the package `protobuf` in an Arrow UDF."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.spark.pipeline.errors import DeclarationError
from ottla.spark.pipeline.values.json import differences
from ottla.spark.pipeline.values.rows import Decode, Encode, decode_column, encode_column

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def protobuf_codec(schema: Any, message: str | None, base_dir: Path) -> ProtobufCodec:
    """By a descriptor set, a .proto file or a generated class."""
    try:
        from ottla.spark.pipeline.values.protobuf_schema import message_class, read_descriptors, spark_columns

        if schema is None:
            raise DeclarationError(
                "format='protobuf' needs a schema: a descriptor set (.desc), a .proto file or a class"
            )
        data, name = read_descriptors(schema, message, base_dir)
        return ProtobufCodec(data, name, spark_columns(message_class(data, name).DESCRIPTOR))
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("google"):
            raise
        raise DeclarationError(
            "format='protobuf' needs the package protobuf: pip install '.[spark,jre]' in a checkout of Ottla"
        ) from None


class ProtobufCodec:
    """Messages of one type."""

    can_fail_to_write = True

    def __init__(self, descriptors: bytes, message: str, columns: StructType) -> None:
        self._descriptors = descriptors
        self._message = message
        self._columns = columns

    @property
    def columns(self) -> StructType:
        return self._columns

    def parse(self, value: Column) -> Column:
        return decode_column(value, self._columns, _Make(decoder, self._descriptors, self._message))

    def error(self, parsed: Column) -> Column:
        return parsed.getField("error")

    def fields(self, parsed: Column) -> list[Column]:
        return [parsed.getField("data").getField(name).alias(name) for name in self._columns.names]

    def encode(self, row: Column, columns: StructType) -> Column:
        return encode_column(row, _Make(encoder, self._descriptors, self._message))

    def refuse(self, columns: StructType) -> list[str]:
        """A message need not be filled: columns may be fewer than its fields."""
        from pyspark.sql.types import StructType

        given = set(columns.names)
        return differences(StructType([f for f in self._columns.fields if f.name in given]), columns)

    def explain(self, value: bytes) -> str:
        try:
            decoder(self._descriptors, self._message)(value)
        except Exception as error:  # noqa: BLE001 - whatever the bytes provoke is the explanation
            return " ".join(str(error).split())
        return "does not fit the message's types"


class _Make:
    """A codec's worker side, made of the descriptors once it is there."""

    def __init__(self, make: Callable[[bytes, str], Any], descriptors: bytes, message: str) -> None:
        self._make = make
        self._descriptors = descriptors
        self._message = message

    def __call__(self) -> Any:
        return self._make(self._descriptors, self._message)


_classes: dict[tuple[bytes, str], Any] = {}


def _class(descriptors: bytes, message: str) -> Any:
    """A worker lives for many batches, and making a class is slow; there are as many as schemas."""
    from ottla.spark.pipeline.values.protobuf_schema import message_class

    found = _classes.get((descriptors, message))
    if found is None:
        found = _classes[descriptors, message] = message_class(descriptors, message)
    return found


def decoder(descriptors: bytes, message: str) -> Decode:
    """From bytes to a row."""
    from google.protobuf.message import DecodeError

    kind = _class(descriptors, message)
    read = _reader(kind.DESCRIPTOR)

    def decode(value: bytes) -> dict[str, Any]:
        try:
            found = kind.FromString(value)
        except DecodeError as error:
            raise ValueError(f"is no {message}: {error}") from None
        return read(found)

    return decode


Read = Callable[[Any], dict[str, Any]]


def _reader(descriptor: Any) -> Read:
    """Built once a message type: what to do with each field is not asked again for each record."""
    plan = [(field.name, field.has_presence, _get(field)) for field in descriptor.fields]

    def read(message: Any) -> dict[str, Any]:
        return {
            name: None if presence and not message.HasField(name) else get(getattr(message, name))
            for name, presence, get in plan
        }

    return read


def _get(field: FieldDescriptor) -> Callable[[Any], Any]:
    from ottla.spark.pipeline.values.protobuf_schema import is_map

    if is_map(field):
        get = _get_one(field.message_type.fields_by_name["value"])
        key = _get_one(field.message_type.fields_by_name["key"])
        return lambda entries: [(key(name), get(entries[name])) for name in entries]
    one = _get_one(field)
    return (lambda items: [one(item) for item in items]) if field.is_repeated else one


def _get_one(field: FieldDescriptor) -> Callable[[Any], Any]:
    from ottla.spark.pipeline.values.protobuf_schema import TIMESTAMP, WRAPPERS

    message = field.message_type
    if message is not None:
        if message.full_name == TIMESTAMP:
            return _to_datetime
        if message.full_name in WRAPPERS:
            inner = _get_one(message.fields_by_name["value"])
            return lambda wrapper: inner(wrapper.value)
        return _reader(message)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        # An open enum (proto3) may hold a number that this schema has no name for.
        return lambda number: names.get(number, str(number))
    if field.cpp_type == field.CPPTYPE_UINT64:
        return Decimal
    return _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _to_datetime(stamp: Any) -> datetime:
    return _EPOCH + timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)


def encoder(descriptors: bytes, message: str) -> Encode:
    """From a row to bytes; a null is a field that is not set."""
    kind = _class(descriptors, message)

    def encode(row: dict[str, Any]) -> bytes:
        made = kind()
        _fill(made, row, "")
        data: bytes = made.SerializeToString(deterministic=True)
        return data

    return encode


def _fill(message: Any, row: dict[str, Any], path: str) -> None:
    for name, value in row.items():
        if value is None:
            continue
        field = message.DESCRIPTOR.fields_by_name[name]
        where = f"{path}.{name}" if path else name
        try:
            _set(message, field, value, where)
        except (TypeError, ValueError, KeyError) as error:
            if str(error).startswith("field "):
                raise
            raise ValueError(f"field {where!r}: {error}") from None


def _set(message: Any, field: FieldDescriptor, value: Any, where: str) -> None:
    from ottla.spark.pipeline.values.protobuf_schema import is_map

    if is_map(field):
        target, kind = getattr(message, field.name), field.message_type.fields_by_name["value"]
        for key, item in value.items():
            if kind.message_type is not None:
                _set_message(target[key], kind.message_type, item, where)
            else:
                target[key] = _scalar(kind, item)
    elif field.is_repeated:
        target = getattr(message, field.name)
        for item in value:
            if field.message_type is not None:
                _set_message(target.add(), field.message_type, item, where)
            else:
                target.append(_scalar(field, item))
    elif field.message_type is not None:
        target = getattr(message, field.name)
        target.SetInParent()
        _set_message(target, field.message_type, value, where)
    else:
        setattr(message, field.name, _scalar(field, value))


def _set_message(target: Any, descriptor: Any, value: Any, where: str) -> None:
    from ottla.spark.pipeline.values.protobuf_schema import TIMESTAMP, WRAPPERS

    if descriptor.full_name == TIMESTAMP:
        micros = (value - _EPOCH) // timedelta(microseconds=1)
        target.seconds, target.nanos = micros // 1_000_000, micros % 1_000_000 * 1000
    elif descriptor.full_name in WRAPPERS:
        target.value = _scalar(descriptor.fields_by_name["value"], value)
    else:
        _fill(target, value, where)


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None:
        found = field.enum_type.values_by_name.get(value)
        if found is None:
            raise ValueError(f"{value!r} is no {field.enum_type.full_name}")
        return found.number
    return int(value) if isinstance(value, Decimal) else value
