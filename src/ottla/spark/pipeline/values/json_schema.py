"""JSON Schema and Spark's columns: those of an object as columns, and columns as the schema of an object. Pure.

What JSON Schema cannot say of columns (the width of a number) is chosen wide: integer is bigint, number is double. A
property of several types, or of none, is refused by its name; a nested property that refers to itself, too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ottla.spark.pipeline.declare import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

DRAFT = "http://json-schema.org/draft-07/schema#"
MAX_DEPTH = 64
_SIMPLE = {"string": "string", "integer": "bigint", "number": "double", "boolean": "boolean"}
_FORMATS = {"date-time": "timestamp", "date": "date"}
_BACK: dict[str, dict[str, Any]] = {
    "boolean": {"type": "boolean"},
    "tinyint": {"type": "integer"},
    "smallint": {"type": "integer"},
    "int": {"type": "integer"},
    "bigint": {"type": "integer"},
    "float": {"type": "number"},
    "double": {"type": "number"},
    "date": {"type": "string", "format": "date"},
    "timestamp": {"type": "string", "format": "date-time"},
}


def columns_of(text: str) -> StructType:
    """The columns of the objects that a schema describes; DeclarationError."""
    from pyspark.sql.types import StructType

    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        raise DeclarationError("the registry's JSON Schema is not JSON") from None
    try:
        found = _type(schema, schema, "", 0)
    except (TypeError, AttributeError, RecursionError):
        raise DeclarationError("the registry's JSON Schema is none: give schema= with the columns") from None
    if not isinstance(found, StructType) or not found.fields:
        raise DeclarationError(
            "the registry's JSON Schema is not that of an object with properties: give schema="
        )
    return found


def _type(schema: Any, root: Any, path: str, depth: int) -> DataType:
    from pyspark.sql import types

    from ottla.spark.pipeline.values.ddl import parse_schema

    if depth > MAX_DEPTH:
        raise DeclarationError(
            f"property {path!r} of the registry's JSON Schema is nested too deep, or in itself"
        )
    schema = _without_null(_followed(schema, root, path), path)
    if isinstance(schema, dict) and "$ref" in schema:
        return _type(schema, root, path, depth + 1)
    kind = schema.get("type")
    if kind == "object" or (kind is None and "properties" in schema):
        return _object(schema, root, path, depth)
    if kind == "array":
        return types.ArrayType(_type(schema.get("items", {}), root, f"{path}[]", depth + 1))
    if kind is None and "enum" in schema and all(isinstance(one, str) for one in schema["enum"]):
        kind = "string"
    if kind not in _SIMPLE:
        raise DeclarationError(
            f"property {path!r} of the registry's JSON Schema has no single type: give schema= with the columns"
        )
    word = _FORMATS.get(schema.get("format", ""), "string") if kind == "string" else _SIMPLE[kind]
    return parse_schema(f"c {word}").fields[0].dataType


def _object(schema: dict[str, Any], root: Any, path: str, depth: int) -> DataType:
    from pyspark.sql import types

    properties = schema.get("properties")
    if not properties:
        more = schema.get("additionalProperties")
        if not isinstance(more, dict):
            raise DeclarationError(
                f"property {path!r} of the registry's JSON Schema has no properties: give schema="
            )
        return types.MapType(types.StringType(), _type(more, root, f"{path}{{}}", depth + 1))
    if not isinstance(properties, dict):
        raise DeclarationError(f"property {path!r} of the registry's JSON Schema is none")
    required = schema.get("required")
    needed = set(map(str, required)) if isinstance(required, list) else set()
    return types.StructType(
        [
            types.StructField(
                name,
                _type(inner, root, f"{path}.{name}" if path else name, depth + 1),
                name not in needed or _may_be_null(_followed(inner, root, path)),
            )
            for name, inner in properties.items()
        ]
    )


def _followed(schema: Any, root: Any, path: str) -> dict[str, Any]:
    """A schema, or what it refers to within the same document."""
    if not isinstance(schema, dict):
        raise DeclarationError(
            f"property {path!r} of the registry's JSON Schema may be anything: give schema="
        )
    target = schema.get("$ref")
    if target is None:
        return schema
    found: Any = root
    if not isinstance(target, str) or not target.startswith("#"):
        raise DeclarationError(
            f"the registry's JSON Schema refers to {target!r}: give schema= with the columns"
        )
    for part in target.removeprefix("#").strip("/").split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise DeclarationError(f"the registry's JSON Schema has no {target!r}")
    return found


def _branches(schema: dict[str, Any]) -> list[Any] | None:
    found = schema.get("oneOf") or schema.get("anyOf")
    return found if isinstance(found, list) else None


def _is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def _may_be_null(schema: dict[str, Any]) -> bool:
    kind = schema.get("type")
    return (isinstance(kind, list) and "null" in kind) or any(map(_is_null, _branches(schema) or []))


def _without_null(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """`["null", "string"]` and `oneOf` null and one other, as that other."""
    kind, branches = schema.get("type"), _branches(schema)
    if isinstance(kind, list):
        others = [one for one in kind if one != "null"]
        return {**schema, "type": others[0] if len(others) == 1 else None}
    if branches is not None and kind is None and "properties" not in schema:
        rest = [one for one in branches if not _is_null(one)]
        if len(rest) != 1 or not isinstance(rest[0], dict):
            raise DeclarationError(
                f"property {path!r} of the registry's JSON Schema is one of {len(rest)} types: give schema="
            )
        return dict(rest[0])
    return schema


def schema_of(columns: StructType, title: str) -> str:
    """The schema of rows that are written as objects; what may be null is null, or left out."""
    return json.dumps({"$schema": DRAFT, "title": title, **_object_of(columns)})


def _object_of(columns: StructType) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            field.name: {"oneOf": [{"type": "null"}, _of(field.dataType)]} for field in columns.fields
        },
    }


def _of(kind: DataType) -> dict[str, Any]:
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        return _object_of(kind)
    if isinstance(kind, types.ArrayType):
        return {"type": "array", "items": {"oneOf": [{"type": "null"}, _of(kind.elementType)]}}
    if isinstance(kind, types.MapType):
        more = {"oneOf": [{"type": "null"}, _of(kind.valueType)]}
        return {"type": "object", "additionalProperties": more}
    if isinstance(kind, types.DecimalType):
        return {"type": "number"}
    return dict(_BACK.get(kind.simpleString(), {"type": "string"}))
