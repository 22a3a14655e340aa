"""What codecs in Python share: columns of bytes to structs and back, a row at a time, as Arrow UDFs.

An Arrow UDF costs one pass over Arrow buffers and no pandas. Runs in Spark's Python workers; the functions it
calls are pickled into the task with the codec that owns them.

Values as the serializers of a schema registry write them (Confluent's wire format: a zero byte, the schema's id in
four bytes, the payload) are recognised where no registry was named, to say so: no JSON text and no Protobuf message
begins with a zero, and an Avro record that does rarely fits. Only what did not parse is looked at, so a value that
parses is never taken for one. With a registry they are read (registry.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ottla.client.registry.framing import FRAME_BYTES, MAGIC, MAX_ID

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

MAX_ERROR = 300

Decode = Callable[[bytes], dict[str, Any]]
Encode = Callable[[dict[str, Any]], bytes]
_WHAT = "begins like a Confluent-framed value (magic byte 0, schema id "
_ADVICE = (
    "): registry='http://...' of topic() reads such values by the schema of that id; without the registry read them "
    f"with format='raw' and decode substring(value, {FRAME_BYTES + 1})"
)


def decode_column(value: Column, columns: StructType, make: Callable[[], Decode]) -> Column:
    """A binary column as struct<data, error>. `make` is called once a batch, in the worker."""
    from pyspark.sql.types import StringType, StructField, StructType

    returned = StructType([StructField("data", columns), StructField("error", StringType())])

    def decode(values: Any) -> Any:
        return decoded(values.to_pylist(), make(), columns)

    return arrow_udf(decode, returned, value)


def encode_column(row: Column, make: Callable[[], Encode]) -> Column:
    """A struct column as struct<value, error>."""
    from pyspark.sql.types import BinaryType, StringType, StructField, StructType

    returned = StructType([StructField("value", BinaryType()), StructField("error", StringType())])

    def encode(values: Any) -> Any:
        return encoded(as_rows(values), make())

    return arrow_udf(encode, returned, row)


def arrow_udf(function: Callable[[Any], Any], returned: DataType, given: Column) -> Column:
    """Spark knows the kind of an Arrow UDF by its hints, which cannot name a package that is imported late."""
    import pyarrow as pa
    from pyspark.sql import functions

    function.__annotations__ = {"values": pa.Array, "return": pa.Array}
    made: Any = getattr(functions, "arrow_udf")(function, returned)  # noqa: B009 - it is not in PySpark's stubs
    column: Column = made(given)
    return column


def as_rows(values: pa.Array) -> list[Any]:
    """An Arrow column as Python values, maps as dicts (PyArrow gives lists of pairs).

    Spark has values that Python has not (a year 20000, text that is not UTF-8): in place of such a row is the error.
    """
    kind = _in_utc(values.type)
    values = values if kind == values.type else values.cast(kind)
    try:
        rows: list[Any] = values.to_pylist()
    except (ValueError, OverflowError):
        rows = [_as_row(value) for value in values]
    fix = _fix_of(values.type)
    return rows if fix is None else [row if isinstance(row, Exception) else fix(row) for row in rows]


def _in_utc(kind: Any) -> Any:
    """A type with its instants in UTC: the session's zone may have a name that Java alone knows, as GMT+8."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_in_utc(key.type)), item.with_type(_in_utc(item.type)))
    return kind


def _as_row(value: Any) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError) as error:
        return error


def _fix_of(kind: Any) -> Callable[[Any], Any] | None:
    """What makes dicts of the maps inside values of a type; None where there are none."""
    import pyarrow as pa

    if pa.types.is_map(kind):
        inner = _fix_of(kind.item_type) or _as_it_is
        return _unless_null(lambda pairs: {key: inner(item) for key, item in pairs})
    if pa.types.is_list(kind):
        item = _fix_of(kind.value_type)
        return None if item is None else _unless_null(lambda items: [item(one) for one in items])
    if pa.types.is_struct(kind):
        fixes = {field.name: fix for field in kind if (fix := _fix_of(field.type)) is not None}
        if fixes:
            return _unless_null(lambda row: {**row, **{name: fix(row[name]) for name, fix in fixes.items()}})
    return None


def _unless_null(fix: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else fix(value)


def _as_it_is(value: Any) -> Any:
    return value


def decoded(values: Iterable[Any], decode: Callable[[Any], Any], columns: StructType) -> pa.Array:
    """Each value decoded, or the reason why not; null where there is none."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    data: list[dict[str, Any] | None] = []
    errors: list[str | None] = []
    for value in values:
        row, error = (None, None) if value is None else _attempt(decode, value)
        data.append(row)
        errors.append(error)
    kind = to_arrow_type(columns, timezone="UTC")
    made = _array(data, errors, kind)
    return pa.StructArray.from_arrays([made, pa.array(errors, pa.string())], ["data", "error"])


def encoded(rows: Iterable[dict[str, Any] | Exception | None], encode: Encode) -> pa.Array:
    """Each row encoded, or the reason why not; a row that is none (`as_rows`) is its own reason."""
    import pyarrow as pa

    values: list[bytes | None] = []
    errors: list[str | None] = []
    for row in rows:
        value: bytes | None = None
        error: str | None = None
        if isinstance(row, Exception):
            error = _reason(row)
        elif row is not None:
            value, error = _attempt(encode, row)
        values.append(value)
        errors.append(error)
    return pa.StructArray.from_arrays(
        [pa.array(values, pa.binary()), pa.array(errors, pa.string())], ["value", "error"]
    )


def _attempt(function: Callable[[Any], Any], given: Any) -> tuple[Any, str | None]:
    """The result, or the error that goes with the record: values may be anything."""
    try:
        return function(given), None
    except Exception as error:  # noqa: BLE001 - the record is what is wrong, and the text goes with it
        return None, _reason(error)


def _reason(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:MAX_ERROR]


def _array(data: list[dict[str, Any] | None], errors: list[str | None], kind: pa.DataType) -> pa.Array:
    """One Arrow column; a row that Arrow refuses (a year 20000) becomes an error of its own."""
    import pyarrow as pa

    try:
        return pa.array(data, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        for number, row in enumerate(data):
            try:
                pa.array([row], kind)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                data[number] = None
                errors[number] = " ".join(str(error).split())[:MAX_ERROR]
        return pa.array(data, kind)


def framed(value: bytes) -> str | None:
    """What to say of a value that did not parse and begins with such a frame; None for all others."""
    schema_id = int.from_bytes(value[1:FRAME_BYTES])
    if len(value) < FRAME_BYTES or value[0] != MAGIC or not 0 < schema_id <= MAX_ID:
        return None
    return f"{_WHAT}{schema_id}{_ADVICE}"


def framed_column(value: Column) -> Column:
    """The same, computed by Spark."""
    from pyspark.sql import functions as F

    schema_id = F.conv(F.hex(F.substring(value, 2, FRAME_BYTES - 1)), 16, 10).cast("bigint")
    is_framed = (
        (F.length(value) >= FRAME_BYTES)
        & (F.substring(value, 1, 1) == F.lit(bytes([MAGIC])))
        & schema_id.between(1, MAX_ID)
    )
    return F.when(is_framed, F.concat(F.lit(_WHAT), schema_id.cast("string"), F.lit(_ADVICE)))
