"""Avro schemas: read from text or a file, and told as Spark columns; and Spark columns as an Avro schema. Pure.

The mapping is that of Spark's own Avro support, except that a union of several types is refused instead of
becoming a struct of numbered members.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.spark.pipeline.errors import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

MAX_SCHEMA_BYTES = 4_000_000
_PRIMITIVES = {
    "null": "void",
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
}
_BACK = {
    "boolean": "boolean",
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "void": "null",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}


def read_schema(schema: Any, base_dir: Path) -> Any:
    """The schema as JSON data: from a dict, JSON text or the name of an .avsc file."""
    if isinstance(schema, dict | list):
        return schema
    if not isinstance(schema, str):
        raise DeclarationError(
            f"schema: Avro takes JSON text, a dict or an .avsc file, not {type(schema).__name__}"
        )
    if schema.lstrip()[:1] in ("{", "["):
        return _parsed(schema, "schema")
    path = base_dir / schema
    if not path.is_file():
        raise DeclarationError(
            f"schema: there is no file {schema!r} (an Avro schema as JSON, or an .avsc file)"
        )
    if path.stat().st_size > MAX_SCHEMA_BYTES:
        raise DeclarationError(f"schema {schema}: larger than {MAX_SCHEMA_BYTES:,} bytes")
    return _parsed(path.read_text(encoding="utf-8"), f"schema {schema}")


def without_unknown(schema: Any) -> Any:
    """The schema without logical types that Spark has no type for (uuid, time-of-day): their plain types stay."""
    if isinstance(schema, list):
        return [without_unknown(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    known = schema.get("logicalType") in (*_LOGICAL, "decimal")
    return {
        key: value if key in ("default", "aliases", "symbols") else without_unknown(value)
        for key, value in schema.items()
        if key != "logicalType" or known
    }


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DeclarationError(f"{where}: is not JSON: {error}") from None


def spark_columns(parsed: Any) -> StructType:
    """A record as columns."""
    from pyspark.sql.types import StructType

    if not isinstance(parsed, dict) or parsed.get("type") not in ("record", "error"):
        raise DeclarationError("schema: a record is expected at the top")
    if not parsed.get("fields"):
        raise DeclarationError(f"schema: the record {parsed.get('name')!r} has no fields")
    columns = _spark_type(parsed, "", {}, ())
    assert isinstance(columns, StructType)
    return columns


def _spark_type(schema: Any, path: str, named: dict[str, Any], inside: tuple[str, ...]) -> DataType:
    from pyspark.sql import types

    if isinstance(schema, list):
        return _union(schema, path, named, inside)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _simple(_PRIMITIVES[schema])
        if schema in inside:
            raise DeclarationError(f"schema: field {path!r} contains itself, which Spark has no type for")
        if schema not in named:
            raise DeclarationError(f"schema: field {path!r} is of an unknown type {schema!r}")
        return _spark_type(named[schema], path, named, inside)
    kind = schema.get("type")
    if "name" in schema and kind in ("record", "error", "enum", "fixed"):
        named[schema["name"]] = schema
    if schema.get("logicalType") == "decimal":
        return types.DecimalType(schema["precision"], schema.get("scale", 0))
    if schema.get("logicalType") in _LOGICAL:
        return _simple(_LOGICAL[schema["logicalType"]])
    if kind in ("record", "error"):
        deeper = (*inside, schema["name"])
        return types.StructType(
            [
                types.StructField(
                    field["name"],
                    _spark_type(field["type"], _join(path, field["name"]), named, deeper),
                    _is_nullable(field["type"]),
                )
                for field in schema["fields"]
            ]
        )
    if kind == "array":
        return types.ArrayType(_spark_type(schema["items"], f"{path}[]", named, inside))
    if kind == "map":
        return types.MapType(types.StringType(), _spark_type(schema["values"], f"{path}{{}}", named, inside))
    if kind == "enum":
        return types.StringType()
    if kind == "fixed":
        return types.BinaryType()
    return _spark_type(kind, path, named, inside)


def _union(schema: list[Any], path: str, named: dict[str, Any], inside: tuple[str, ...]) -> DataType:
    others = [branch for branch in schema if branch != "null"]
    if len(others) != 1:
        raise DeclarationError(
            f"schema: field {path!r} is a union of {len(others)} types; null and one is what works"
        )
    return _spark_type(others[0], path, named, inside)


def _is_nullable(schema: Any) -> bool:
    return schema == "null" or (isinstance(schema, list) and "null" in schema)


def _simple(name: str) -> DataType:
    from ottla.spark.pipeline.ddl import parse_schema

    return parse_schema(f"c {name}").fields[0].dataType


def avro_of(columns: StructType, name: str = "Row") -> dict[str, Any]:
    """An Avro record for columns: every field may be null, as every column may."""
    return {
        "type": "record",
        "name": name,
        "fields": [
            {
                "name": field.name,
                "type": ["null", _avro_type(field.dataType, f"{name}_{field.name}")],
                "default": None,
            }
            for field in columns.fields
        ],
    }


def _avro_type(kind: DataType, name: str) -> Any:
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        return avro_of(kind, name)
    if isinstance(kind, types.ArrayType):
        return {"type": "array", "items": ["null", _avro_type(kind.elementType, f"{name}_item")]}
    if isinstance(kind, types.MapType):
        if not isinstance(kind.keyType, types.StringType):
            raise DeclarationError(f"Avro has maps of strings only, not {kind.simpleString()}")
        return {"type": "map", "values": ["null", _avro_type(kind.valueType, f"{name}_value")]}
    if isinstance(kind, types.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    word = "string" if isinstance(kind, types.CharType | types.VarcharType) else kind.simpleString()
    if word not in _BACK:
        raise DeclarationError(f"Avro has no type for {kind.simpleString()}")
    return _BACK[word]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
