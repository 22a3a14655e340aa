"""Avro values: the plain binary encoding of a record, by the package `fastavro`, with no jar.

Spark's from_avro needs a jar that is not in its wheel; an Arrow UDF around fastavro's compiled reader needs none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.spark.pipeline.errors import DeclarationError
from ottla.spark.pipeline.values.avro_schema import avro_of, read_schema, spark_columns, without_unknown
from ottla.spark.pipeline.values.json import differences
from ottla.spark.pipeline.values.rows import Decode, Encode, decode_column, encode_column

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


def avro_codec(schema: Any, base_dir: Path, *, writing: bool) -> AvroCodec:
    """By a schema; without one rows are written as a record derived from their columns."""
    try:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException, UnknownType
    except ModuleNotFoundError:
        raise DeclarationError(
            "format='avro' needs the package fastavro: pip install '.[spark,jre]' in a checkout of Ottla"
        ) from None
    if schema is None:
        if writing:
            return AvroCodec(None, None)
        raise DeclarationError("format='avro' needs a schema: JSON text, a dict or an .avsc file")
    raw = without_unknown(read_schema(schema, base_dir))
    try:
        parsed = parse_schema(raw)
    except (SchemaParseException, UnknownType, KeyError, ValueError, TypeError) as error:
        raise DeclarationError(f"schema: {_said(error)}") from None
    return AvroCodec(json.dumps(raw), spark_columns(parsed))


def _said(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"the member {error.args[0]!r} is missing"
    return " ".join(str(error).split()) or type(error).__name__


class AvroCodec:
    """Records of one schema, the reader's and the writer's alike."""

    can_fail_to_write = True

    def __init__(self, schema: str | None, columns: StructType | None) -> None:
        self._schema = schema
        self._columns = columns

    @property
    def columns(self) -> StructType | None:
        return self._columns

    def parse(self, value: Column) -> Column:
        assert self._schema is not None
        assert self._columns is not None
        return decode_column(value, nullable(self._columns), _Make(_decoder, self._schema))

    def error(self, parsed: Column) -> Column:
        return parsed.getField("error")

    def fields(self, parsed: Column) -> list[Column]:
        assert self._columns is not None
        return [parsed.getField("data").getField(name).alias(name) for name in self._columns.names]

    def encode(self, row: Column, columns: StructType) -> Column:
        schema = self._schema or json.dumps(avro_of(columns))
        return encode_column(row, _Make(_encoder, schema))

    def refuse(self, columns: StructType) -> list[str]:
        if self._columns is not None:
            return differences(self._columns, columns)
        try:
            avro_of(columns)
        except DeclarationError as error:
            return [str(error)]
        return []

    def explain(self, value: bytes) -> str:
        assert self._schema is not None
        try:
            _decoder(self._schema)(value)
        except Exception as error:  # noqa: BLE001 - whatever the bytes provoke is the explanation
            return _said(error)
        return "does not fit the schema's types"


class _Make:
    """A codec's worker side, made from text once it is there; pickles small."""

    def __init__(self, make: Callable[[str], Any], schema: str) -> None:
        self._make = make
        self._schema = schema

    def __call__(self) -> Any:
        return self._make(self._schema)


def _decoder(schema: str) -> Decode:
    from fastavro import parse_schema, schemaless_reader

    parsed = parse_schema(json.loads(schema))

    def decode(value: bytes) -> dict[str, Any]:
        stream = BytesIO(value)
        row = schemaless_reader(stream, parsed, None)
        left = len(value) - stream.tell()
        if left:
            raise ValueError(f"{left} bytes are left over after the record")
        return row  # type: ignore[return-value]

    return _naming_the_end(decode)


def _naming_the_end(decode: Decode) -> Decode:
    """fastavro ends in an EOFError or an IndexError without words."""

    def named(value: bytes) -> dict[str, Any]:
        try:
            return decode(value)
        except (EOFError, IndexError) as error:
            raise ValueError(str(error) or f"ends within a field ({len(value)} bytes)") from None

    return named


def _encoder(schema: str) -> Encode:
    from fastavro import parse_schema, schemaless_writer

    parsed = parse_schema(json.loads(schema))

    def encode(row: dict[str, Any]) -> bytes:
        stream = BytesIO()
        schemaless_writer(stream, parsed, row, strict=True)
        return stream.getvalue()

    return encode


def nullable(columns: StructType) -> StructType:
    """The same columns, each of which may be null: a row that did not parse is."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(f.name, f.dataType, True) for f in columns.fields])
