"""Avro values: the plain binary encoding of a record, by the package `fastavro`, with no jar.

Spark's from_avro needs a jar that is not in its wheel; an Arrow UDF around fastavro's compiled reader needs none.
Schemas are mapped to Spark columns and back as Spark's own Avro support does it, except that a union of several types
is refused instead of becoming a struct of numbered members.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.model.install import install
from ottla.spark.pipeline.declare import DeclarationError
from ottla.spark.pipeline.values.json import differences, no_text
from ottla.spark.pipeline.values.rows import Decode, Encode, decode_column, encode_column

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

    from ottla.spark.pipeline.values.verdicts import Verdicts


MAX_SCHEMA_BYTES = 4_000_000
MAX_PRECISION = 38
MAX_SHOWN = 200
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
    try:
        is_there = path.is_file()
    except OSError:  # no name of a file
        is_there = False
    if not is_there:
        raise DeclarationError(
            f"schema: there is no file {schema[:MAX_SHOWN]!r} (an Avro schema as JSON, or an .avsc file)"
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
    except (ValueError, RecursionError) as error:
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
        precision = schema.get("precision", 0)
        if not 1 <= precision <= MAX_PRECISION:
            raise DeclarationError(
                f"schema: field {path!r} is a decimal of {precision} digits; Spark has 1 to {MAX_PRECISION}"
            )
        return types.DecimalType(precision, schema.get("scale", 0))
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
        if schema["items"] == "null":
            raise DeclarationError(
                f"schema: field {path!r} is an array of nothing, which Spark has no type for"
            )
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
    from ottla.spark.pipeline.values.ddl import parse_schema

    return parse_schema(f"c {name}").fields[0].dataType


def avro_of(columns: StructType, name: str = "Row", taken: set[str] | None = None) -> dict[str, Any]:
    """An Avro record for columns: every field may be null, as every column may. `taken`: names of other records."""
    taken = set() if taken is None else taken
    while name in taken:  # a_b is a column, and b one in the column a
        name += "_"
    taken.add(name)
    return {
        "type": "record",
        "name": name,
        "fields": [
            {
                "name": field.name,
                "type": ["null", _avro_type(field.dataType, f"{name}_{field.name}", taken)],
                "default": None,
            }
            for field in columns.fields
        ],
    }


def _avro_type(kind: DataType, name: str, taken: set[str]) -> Any:
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        return avro_of(kind, name, taken)
    if isinstance(kind, types.ArrayType):
        return {"type": "array", "items": ["null", _avro_type(kind.elementType, f"{name}_item", taken)]}
    if isinstance(kind, types.MapType):
        if not isinstance(kind.keyType, types.StringType):
            raise DeclarationError(f"Avro has maps of strings only, not {kind.simpleString()}")
        return {"type": "map", "values": ["null", _avro_type(kind.valueType, f"{name}_value", taken)]}
    if isinstance(kind, types.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    word = "string" if isinstance(kind, types.CharType | types.VarcharType) else kind.simpleString()
    if word not in _BACK:
        raise DeclarationError(f"Avro has no type for {kind.simpleString()}")
    return _BACK[word]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def avro_codec(schema: Any, base_dir: Path, *, writing: bool) -> AvroCodec:
    """By a schema; without one rows are written as a record derived from their columns."""
    try:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException, UnknownType
    except ModuleNotFoundError:
        raise DeclarationError(f"format='avro' needs the package fastavro: {install('spark')}") from None
    if schema is None:
        if writing:
            return AvroCodec(None, None)
        raise DeclarationError("format='avro' needs a schema: JSON text, a dict or an .avsc file")
    raw = without_unknown(read_schema(schema, base_dir))
    try:
        parsed = parse_schema(raw)
    except (SchemaParseException, UnknownType, KeyError, ValueError, TypeError) as error:
        raise DeclarationError(f"schema: {error_text(error)}") from None
    return AvroCodec(json.dumps(raw), spark_columns(parsed))


def error_text(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"the member {error.args[0]!r} is missing"
    return " ".join(str(error).split()) or type(error).__name__


class AvroCodec:
    """Records of one schema, the reader's and the writer's alike."""

    is_framed = False
    can_fail_to_write = True

    def __init__(self, schema: str | None, columns: StructType | None) -> None:
        self.schema = schema
        self._columns = columns

    @property
    def columns(self) -> StructType | None:
        return self._columns

    def parse(self, value: Column, verdicts: Verdicts | None = None) -> Column:
        assert self.schema is not None
        assert self._columns is not None
        return decode_column(value, nullable(self._columns), Make(_decoder, self.schema))

    def error(self, parsed: Column) -> Column:
        return parsed.getField("error")

    def exact_error(self, parsed: Column) -> Column:
        return no_text()

    def difference(self, value: Column, parsed: Column) -> Column | None:
        return None  # such a value says nothing of its writer's schema

    def fields(self, parsed: Column) -> list[Column]:
        assert self._columns is not None
        return [parsed.getField("data").getField(name).alias(name) for name in self._columns.names]

    def encode(self, row: Column, columns: StructType) -> Column:
        schema = self.schema or json.dumps(avro_of(columns))
        return encode_column(row, Make(encoder, schema))

    def refuse(self, columns: StructType) -> list[str]:
        if self._columns is not None:
            return differences(self._columns, columns)
        try:
            avro_of(columns)
        except DeclarationError as error:
            return [str(error)]
        return []

    def explain(self, value: bytes) -> str:
        assert self.schema is not None
        try:
            _decoder(self.schema)(value)
        except Exception as error:  # noqa: BLE001 - whatever the bytes provoke is the explanation
            return error_text(error)
        return "does not fit the schema's types"


class Make:
    """A codec's worker side, made from text once it is there; pickles small."""

    def __init__(self, make: Callable[..., Any], *given: Any) -> None:
        self._make = make
        self._given = given

    def __call__(self) -> Any:
        return self._make(*self._given)


def _decoder(schema: str) -> Decode:
    return decoder(json.loads(schema))


def decoder(writer: Any, reader: Any = None, start: int = 0) -> Decode:
    """Records of the writer's schema as the reader's (or as they are), from a position in their bytes on."""
    from fastavro import parse_schema

    parsed = parse_schema(writer if reader is None else _understood(writer, reader))
    named: dict[str, Any] = {}
    wanted = None if reader is None else parse_schema(reader, named)
    if wanted is not None:
        _read_defaults(wanted, named)
    schemaless_reader = _reader_of(parsed)

    def decode(value: bytes) -> dict[str, Any]:
        stream = BytesIO(value)
        stream.seek(start)
        row: dict[str, Any] = schemaless_reader(stream, parsed, wanted)
        left = len(value) - stream.tell()
        if left:
            raise ValueError(f"{left} bytes are left over after the record")
        return row

    return _naming_the_end(decode)


def _understood(writer: Any, reader: Any) -> Any:
    """The writer's schema with the reader's word where only one of them says what a number or bytes mean: fastavro goes
    by the writer's, and a long that is read as timestamp-millis would be taken for what Arrow has, microseconds."""
    if isinstance(reader, list):
        others = [branch for branch in reader if branch != "null"]
        return _understood(writer, others[0]) if len(others) == 1 else writer
    if isinstance(writer, list):
        return [branch if branch == "null" else _understood(branch, reader) for branch in writer]
    kind = writer.get("type") if isinstance(writer, dict) else writer
    wanted = reader if isinstance(reader, dict) else {"type": reader}
    if isinstance(kind, dict | list) or isinstance(wanted["type"], dict | list):
        return writer if isinstance(kind, dict | list) else _understood(writer, wanted["type"])
    if kind in ("record", "error"):
        types = {
            name: one["type"]
            for one in wanted.get("fields", ())
            for name in (*one.get("aliases", ()), one["name"])
        }
        fields = [
            {**one, "type": _understood(one["type"], types[one["name"]])} if one["name"] in types else one
            for one in writer["fields"]
        ]
        return {**writer, "fields": fields}
    for inner in ("items", "values"):
        if isinstance(writer, dict) and inner in writer and inner in wanted:
            return {**writer, inner: _understood(writer[inner], wanted[inner])}
    meaning = ("logicalType", "precision", "scale")
    plain = {"type": writer} if isinstance(writer, str) else writer
    if "logicalType" in plain and "logicalType" not in wanted:
        return {key: value for key, value in plain.items() if key not in meaning}
    if "logicalType" in wanted and "logicalType" not in plain and kind == wanted["type"]:
        return {**plain, **{key: wanted[key] for key in meaning if key in wanted}}
    return writer


def _read_defaults(parsed: Any, named: dict[str, Any]) -> None:
    """fastavro gives a field that the writer lacks its default as the schema's JSON has it: bytes as text, a time as a
    number. Here it becomes what the field would hold had it been written."""
    found: list[tuple[dict[str, Any], Any]] = []
    records = [one for one in (parsed, *named.values()) if isinstance(one, dict)]
    for record in records:
        for field in record.get("fields", ()):
            if "default" in field:
                # One that its type cannot hold is of no concern before a record needs it.
                with suppress(ArithmeticError, AttributeError, TypeError, ValueError):
                    found.append((field, _read_default(field["type"], field["default"], named)))
    for field, value in found:
        field["default"] = value


def _read_default(schema: Any, given: Any, named: dict[str, Any]) -> Any:
    from fastavro.read import LOGICAL_READERS

    if given is None:
        return None
    if isinstance(schema, list):
        branch = next((one for one in schema if one != "null"), "null")
        return _read_default(branch, given, named)
    if isinstance(schema, str):
        if schema in named:
            return _read_default(named[schema], given, named)
        return given.encode("latin-1") if schema == "bytes" else given
    kind = schema["type"]
    if kind in ("record", "error"):
        fields = {one["name"]: one for one in schema["fields"]}
        return {
            name: _read_default(one["type"], given.get(name, one.get("default")), named)
            for name, one in fields.items()
        }
    if kind == "array":
        return [_read_default(schema["items"], one, named) for one in given]
    if kind == "map":
        return {name: _read_default(schema["values"], one, named) for name, one in given.items()}
    if isinstance(kind, dict | list):
        return _read_default(kind, given, named)
    value = given.encode("latin-1") if kind in ("bytes", "fixed") else given
    read: Any = LOGICAL_READERS.get(f"{kind}-{schema.get('logicalType')}")
    return value if read is None else read(value, schema, schema)


def _reader_of(writer: Any) -> Callable[..., Any]:
    """fastavro's compiled reader; its plain one for a schema that contains itself: there a value is as deep as whoever
    wrote it likes, and the compiled one ends the process where Python's ends in a RecursionError. ValueError for a
    schema with arrays of nothing, of which a value of some bytes may have any number."""
    import fastavro

    found = _Shape()
    found.look(writer, ())
    if found.hollow:
        raise ValueError(f"has an array of items without bytes ({found.hollow}), which has no end")
    if not found.is_recursive:
        return fastavro.schemaless_reader
    from fastavro import _read_py

    plain: Callable[..., Any] = _read_py.schemaless_reader
    return plain


class _Shape:
    """What is dangerous in a schema that others have made."""

    def __init__(self) -> None:
        self.is_recursive = False
        self.hollow = ""
        self._least: dict[str, bool] = {}

    def look(self, schema: Any, inside: tuple[str, ...]) -> bool:
        """Whether a value of it always has bytes."""
        if isinstance(schema, list):
            for branch in schema:
                self.look(branch, inside)
            return True  # which one it is takes a byte
        if isinstance(schema, str):
            if schema in inside:
                self.is_recursive = True
            return self._least.get(schema, schema != "null")
        kind, name = schema.get("type"), schema.get("name", "")
        if isinstance(kind, dict | list):
            return self.look(kind, inside)
        if kind in ("record", "error"):
            # While it is open: one that contains itself ends in a union or an array, which have bytes.
            self._least[name] = True
            parts = [self.look(field["type"], (*inside, name)) for field in schema["fields"]]
            has_bytes = any(parts)
        elif kind == "array":
            if not self.look(schema["items"], inside):
                self.hollow = inside[-1] if inside else "array"
            return True
        elif kind == "map":
            self.look(schema["values"], inside)
            return True  # keys are text
        else:
            has_bytes = schema.get("size", 1) > 0 if kind == "fixed" else kind != "null"
        if name:
            self._least[name] = has_bytes
        return has_bytes


def _naming_the_end(decode: Decode) -> Decode:
    """fastavro ends in an EOFError or an IndexError without words."""

    def named(value: bytes) -> dict[str, Any]:
        try:
            return decode(value)
        except (EOFError, IndexError) as error:
            raise ValueError(str(error) or f"ends within a field ({len(value)} bytes)") from None

    return named


def encoder(schema: str, prefix: bytes = b"") -> Encode:
    from fastavro import parse_schema, schemaless_writer

    parsed = parse_schema(json.loads(schema))

    def encode(row: dict[str, Any]) -> bytes:
        stream = BytesIO()
        stream.write(prefix)
        schemaless_writer(stream, parsed, row, strict=True)
        return stream.getvalue()

    return encode


def nullable(columns: StructType) -> StructType:
    """The same columns, each of which may be null: a row that did not parse is."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(f.name, f.dataType, True) for f in columns.fields])
