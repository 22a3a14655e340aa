"""JSON values by a Spark schema: Spark's own parser in the JVM, and what exactly it refused; and plain text.

Spark says only that a record is corrupt; `explain` walks the few values that are and names the field.
A field that the schema calls NOT NULL has to be there, which Spark's parser does not ask.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ottla.spark.pipeline.declare import DeclarationError, listed
from ottla.spark.pipeline.quality import changes
from ottla.spark.pipeline.values.ddl import DdlError, parse_schema

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

    from ottla.spark.pipeline.values.verdicts import Verdicts

CORRUPT = "_ottla_corrupt"
MAX_SHOWN = 60
_INTEGERS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}


def json_codec(schema: Any, *, writing: bool) -> JsonCodec:
    """By a schema string or a StructType; without one rows are written as they are."""
    if schema is None:
        if writing:
            return JsonCodec(None)
        raise DeclarationError("format='json' needs a schema, e.g. schema='page string, at timestamp'")
    if isinstance(schema, str):
        try:
            return JsonCodec(parse_schema(schema))
        except DdlError as error:
            raise DeclarationError(f"schema, {error} in {_shortened(schema)!r}") from None
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        return JsonCodec(schema)
    raise DeclarationError(f"schema: takes a schema string or a StructType, not {type(schema).__name__}")


class JsonCodec:
    """Objects whose members are the columns."""

    is_framed = False
    can_fail_to_write = False

    def __init__(self, columns: StructType | None) -> None:
        self._columns = columns

    @property
    def columns(self) -> StructType | None:
        return self._columns

    def parse(self, value: Column, verdicts: Verdicts | None = None) -> Column:
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType, StructField, StructType

        assert self._columns is not None
        fields = [StructField(f.name, f.dataType, True, f.metadata) for f in self._columns.fields]
        asked = StructType([*fields, StructField(CORRUPT, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        return F.from_json(value.cast("string"), asked, options)

    def error(self, parsed: Column) -> Column:
        from pyspark.sql import functions as F

        assert self._columns is not None
        bad = F.when(parsed.isNull() | parsed.getField(CORRUPT).isNotNull(), F.lit(self._refusal))
        for field in self._columns.fields:
            if not field.nullable:
                absent = parsed.getField(field.name).isNull()
                bad = bad.when(absent, F.lit(f"field {field.name!r} is missing or null"))
        return bad

    def exact_error(self, parsed: Column) -> Column:
        return no_text()

    def difference(self, value: Column, parsed: Column) -> Column | None:
        from pyspark.sql import functions as F

        assert self._columns is not None
        return F.when(changes.sampled(), changes.of_object(value.cast("string"), self._columns.names))

    def fields(self, parsed: Column) -> list[Column]:
        assert self._columns is not None
        return [parsed.getField(name).alias(name) for name in self._columns.names]

    @property
    def _refusal(self) -> str:
        assert self._columns is not None
        return f"is not JSON of the schema {_shortened(self._columns.simpleString())}"

    def encode(self, row: Column, columns: StructType) -> Column:
        from pyspark.sql import functions as F

        text = F.to_json(row, {"ignoreNullFields": "false"})
        return F.struct(text.cast("binary").alias("value"), F.lit(None).cast("string").alias("error"))

    def refuse(self, columns: StructType) -> list[str]:
        return [] if self._columns is None else differences(self._columns, columns)

    def explain(self, value: bytes) -> str:
        assert self._columns is not None
        try:
            found = json.loads(value, parse_float=Decimal)
            why = _explain("", found, self._columns) or _missing(found, self._columns)
        except UnicodeDecodeError:
            return "is not UTF-8 text"
        except RecursionError:  # to show a value takes a little more than to read it
            return "is nested too deep"
        except ArithmeticError:  # of Decimal, whose exponents have 18 digits
            return "has a number with an exponent that is too large"
        except ValueError as error:
            return f"is not JSON: {error}"
        return why or self._refusal


def no_text() -> Column:
    """Null, as text."""
    from pyspark.sql import functions as F

    return F.lit(None).cast("string")


def differences(declared: StructType, columns: StructType) -> list[str]:
    """Where the columns of a result are not those that a schema declares: names and types, in any order."""
    have = {field.name: field.dataType.simpleString() for field in columns.fields}
    want = {field.name: field.dataType.simpleString() for field in declared.fields}
    found = [
        f"the schema has a column {name!r} that the result lacks; it has {listed(have)}"
        for name in want
        if name not in have
    ]
    found += [
        f"the result has a column {name!r} that the schema lacks; it has {listed(want)}"
        for name in have
        if name not in want
    ]
    found += [
        f"column {name!r} is {have[name]} in the result and {want[name]} in the schema"
        for name in want
        if name in have and have[name] != want[name]
    ]
    return found


def _missing(found: dict[str, Any] | None, columns: StructType) -> str | None:
    if found is None:  # JSON's null: no object, and so nothing that could lack a field
        return None
    for field in columns.fields:
        if not field.nullable and found.get(field.name) is None:
            return f"field {field.name!r} is missing or null"
    return None


def _explain(path: str, found: Any, wanted: DataType) -> str | None:
    """The first member that is not of its type; None if all are, as far as this can tell."""
    from pyspark.sql import types

    if found is None:
        return None
    if isinstance(wanted, types.StructType):
        if not isinstance(found, dict):
            return _not_a(path, found, "object")
        return _first(
            _explain(_join(path, field.name), found.get(field.name), field.dataType)
            for field in wanted.fields
        )
    if isinstance(wanted, types.ArrayType):
        if not isinstance(found, list):
            return _not_a(path, found, "array")
        return _first(_explain(f"{path}[{n}]", item, wanted.elementType) for n, item in enumerate(found))
    if isinstance(wanted, types.MapType):
        if not isinstance(found, dict):
            return _not_a(path, found, "object")
        return _first(_explain(_join(path, key), item, wanted.valueType) for key, item in found.items())
    return None if _fits(found, wanted) else _not_a(path, found, wanted.simpleString())


def _fits(found: Any, wanted: DataType) -> bool:
    name = wanted.simpleString()
    if name in _INTEGERS:
        return (
            isinstance(found, int) and not isinstance(found, bool) and found.bit_length() <= _INTEGERS[name]
        )
    if name == "boolean":
        return isinstance(found, bool)
    if name in ("double", "float"):
        return not isinstance(found, bool | dict | list) and (
            not isinstance(found, str) or found in ("NaN", "Infinity", "-Infinity", "+INF", "INF", "-INF")
        )
    if name.startswith("decimal"):
        return not isinstance(found, bool | dict | list)
    if name in ("timestamp", "timestamp_ntz", "date"):
        return _is_time(found)
    return True


def _is_time(found: Any) -> bool:
    from datetime import datetime

    if isinstance(found, bool | dict | list):
        return False
    if not isinstance(found, str):
        return True
    try:
        datetime.fromisoformat(found)
    except ValueError:
        return False
    return True


def _not_a(path: str, found: Any, wanted: str) -> str:
    shown = _shortened(json.dumps(found, default=float))
    return f"field {path!r} is {shown}, not {wanted}" if path else f"is {shown}, not an {wanted}"


def _first(answers: Any) -> str | None:
    return next((answer for answer in answers if answer is not None), None)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shortened(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= MAX_SHOWN else flat[: MAX_SHOWN - 3] + "..."


class TextCodec:
    """UTF-8 text in one column; bytes that are none are errors."""

    is_framed = False
    can_fail_to_write = False

    @property
    def columns(self) -> StructType:
        from pyspark.sql.types import StringType, StructField, StructType

        return StructType([StructField("value", StringType())])

    def parse(self, value: Column, verdicts: Verdicts | None = None) -> Column:
        from pyspark.sql import functions as F

        return F.struct(value.cast("string").alias("value"))

    def error(self, parsed: Column) -> Column:
        from pyspark.sql import functions as F

        return F.when(~F.is_valid_utf8(parsed.getField("value")), F.lit("is not UTF-8 text"))

    def exact_error(self, parsed: Column) -> Column:
        return no_text()

    def difference(self, value: Column, parsed: Column) -> Column | None:
        return None

    def fields(self, parsed: Column) -> list[Column]:
        return [parsed.getField("value").alias("value")]

    def encode(self, row: Column, columns: StructType) -> Column:
        from pyspark.sql import functions as F

        only = row.getField(columns.names[0])
        text = F.lit(None).cast("string")
        return F.struct(only.cast("string").cast("binary").alias("value"), text.alias("error"))

    def refuse(self, columns: StructType) -> list[str]:
        if len(columns.fields) == 1:
            return []
        return [f"format='string' writes one column, and the result has {', '.join(columns.names)}"]

    def explain(self, value: bytes) -> str:
        return "is not UTF-8 text"
