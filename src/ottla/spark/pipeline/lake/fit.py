"""Whether the rows of a micro-batch fit a table, before a file is written: what is added, what is refused.

A row's value goes into a column of the same type or of a wider one that holds every value of it (an int into a long);
in structs by the names of their fields. With `additive` columns that the table lacks are added, nested ones too, and
a format that can makes a column wider. A column that the rows lack is null in them. All else is refused with one
line: nothing is dropped, narrowed or made text of. Pure, over Arrow's schemas.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from ottla.spark.pipeline.lake.common import TableMismatchError, stored_type

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_INTS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_FLOATS = (pa.float16(), pa.float32(), pa.float64())


class Fit(NamedTuple):
    """What a table has to become for rows to fit."""

    added: tuple[str, ...]  # columns, nested ones as a.b
    widened: tuple[str, ...]

    @property
    def changes(self) -> bool:
        """Whether the table has to change."""
        return bool(self.added or self.widened)


def fitted(where: str, table: pa.Schema, rows: pa.Schema, *, additive: bool, can_widen: bool = False) -> Fit:
    """How rows fit a table; TableMismatchError says in one line which columns do not, and what to do."""
    found = list(_compare("", list(table), list(rows)))
    added = tuple(name for name, kind, _ in found if kind == "new")
    widened = tuple(name for name, kind, _ in found if kind == "wider")
    wrong = [said for _, kind, said in found if kind == "wrong"]
    if widened and not (additive and can_widen):
        wrong += [said for _, kind, said in found if kind == "wider"]
    if added and not additive:
        wrong += [said for _, kind, said in found if kind == "new"]
    if wrong:
        more = " (evolve='additive' adds columns)" if added and not additive else ""
        raise TableMismatchError(
            f"the result does not fit the {where}: {'; '.join(wrong)}{more}. Nothing of this batch is written: change "
            "the result or the table, and run again"
        )
    return Fit(added, widened)


def _compare(path: str, table: list[Any], rows: list[Any]) -> Iterator[tuple[str, str, str]]:
    known = {field.name: field for field in table}
    given = {field.name for field in rows}
    for field in rows:
        name = path + field.name
        if field.name in known:
            yield from _compare_types(name, known[field.name].type, field.type)
        else:
            near = [other for other in known if other.lower() == field.name.lower()]
            if near:  # readers do not tell them apart
                yield name, "wrong", f"column {name!r} is {near[0]!r} in the table"
            else:
                yield name, "new", f"the table has no column {name!r}"
    for field in table:
        if field.name not in given and not field.nullable:
            yield path + field.name, "wrong", f"column {path + field.name!r} of the table takes no null"


def _compare_types(name: str, table: Any, rows: Any) -> Iterator[tuple[str, str, str]]:
    table, rows = stored_type(table), stored_type(rows)
    if pa.types.is_struct(table) and pa.types.is_struct(rows):
        yield from _compare(f"{name}.", list(table), list(rows))
    elif pa.types.is_list(table) and pa.types.is_list(rows):
        yield from _compare_types(f"{name}.element", table.value_type, rows.value_type)
    elif pa.types.is_map(table) and pa.types.is_map(rows):
        yield from _compare_types(f"{name}.key", table.key_type, rows.key_type)
        yield from _compare_types(f"{name}.value", table.item_type, rows.item_type)
    elif not holds(table, rows):
        kind = "wider" if holds(rows, table) else "wrong"
        yield name, kind, f"column {name!r} is {table} in the table and {rows} in the result"


def holds(wide: Any, narrow: Any) -> bool:
    """Whether every value of one type is one of the other."""
    if wide == narrow:
        return True
    for family in (_INTS, _FLOATS):
        if wide in family and narrow in family:
            return family.index(wide) >= family.index(narrow)
    if pa.types.is_decimal(wide) and pa.types.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision >= narrow.precision)
    if pa.types.is_timestamp(wide) and pa.types.is_timestamp(narrow):
        return wide.unit == narrow.unit and (wide.tz is None) == (narrow.tz is None)
    return bool(pa.types.is_null(narrow))


def arrow_schema(columns: StructType) -> pa.Schema:
    """The schema in which Spark hands rows to Python, as they are stored. Everything may be null: Spark says of hardly
    a column that it never is, and then not for ever."""
    return pa.schema([pa.field(one.name, _arrow_type(one.dataType)) for one in columns.fields])


def _arrow_type(kind: DataType) -> Any:
    from pyspark.sql import types as T

    simple = {
        T.BooleanType: pa.bool_(),
        T.ByteType: pa.int8(),
        T.ShortType: pa.int16(),
        T.IntegerType: pa.int32(),
        T.LongType: pa.int64(),
        T.FloatType: pa.float32(),
        T.DoubleType: pa.float64(),
        T.StringType: pa.string(),
        T.BinaryType: pa.binary(),
        T.DateType: pa.date32(),
        T.TimestampType: pa.timestamp("us", "UTC"),
        T.TimestampNTZType: pa.timestamp("us"),
        T.DayTimeIntervalType: pa.duration("us"),
        T.NullType: pa.null(),
    }
    if type(kind) in simple:
        return simple[type(kind)]
    if isinstance(kind, T.StringType):  # CHAR, VARCHAR, and those with a collation
        return pa.string()
    if isinstance(kind, T.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, T.StructType):
        return pa.struct([pa.field(one.name, _arrow_type(one.dataType)) for one in kind.fields])
    if isinstance(kind, T.ArrayType):
        return pa.list_(pa.field("element", _arrow_type(kind.elementType)))
    if isinstance(kind, T.MapType):
        return pa.map_(_arrow_type(kind.keyType), _arrow_type(kind.valueType))
    raise TableMismatchError(f"a table of a lake has no type for Spark's {kind.simpleString()}")


def refuse_nothing_typed(where: str, rows: pa.Schema) -> None:
    """A column of nothing but nulls has no type to be stored as."""
    for field in rows:
        if pa.types.is_null(field.type) or pa.types.is_duration(field.type):
            raise TableMismatchError(
                f"column {field.name!r} of the result is {field.type}, which the {where} cannot hold: cast it"
            )


def fit_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows as the table has them: its columns in its order and types, null where the rows have none."""
    columns = []
    for field in schema:
        index = rows.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = rows.column(index)
        columns.append(column if column.type == field.type else column.cast(field.type))
        if not field.nullable and column.null_count:
            raise TableMismatchError(
                f"column {field.name!r} of the table takes no null, and a row of the result has one: nothing of this "
                "batch is written"
            )
    return pa.Table.from_arrays(columns, schema=schema)
