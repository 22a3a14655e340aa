"""Rows merged into a table by their key, in the executors: the files that hold these keys are rewritten, no others.

1. Of the micro-batch the newest row of each key counts; these rows are kept by the executors, for they are used
   thrice.
2. Files whose statistics say that none of the keys can be in them are left out (`candidates`, pure).
3. The tasks read the key columns of the rest, and a join says which files hold one of the keys: only those are
   touched.
4. All rows of these files, without those that are replaced or deleted, and the rows of the batch that are not older
   than what they meet, are written as new files. One commit takes the old files away and adds the new ones.

The commit is for just the version of the table that was read: where another writer was faster, all is done again on
the table as it is then. Nothing but the descriptions of files passes through the driver.

A few rows into a small table are merged in the driver by the format's own package: five rounds through the executors
would take longer than the work. Both sizes have a bound (SMALL_ROWS, SMALL_TABLE_BYTES), so the driver's memory has
one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ottla.spark.pipeline.discreet import discreetly
from ottla.spark.pipeline.lake.common import as_stored, chosen_rows, refuse_doubles, several
from ottla.spark.pipeline.lake.files import Job, Written, discard, spread, write_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

ATTEMPTS: Final = 8
SMALL_ROWS: Final = 1_000
SMALL_TABLE_BYTES: Final = 16 << 20
COMPARED: Final = ({int}, {str}, {date})
FILE_COLUMN: Final = "__ottla_file"
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """The rows of a batch, and how they are to be merged."""

    batch: DataFrame
    key: Sequence[str]
    order_by: str | None
    delete: str | None
    null_is_a_key: bool  # whether a null meets a null; in SQL's merge it meets nothing
    sort_by: Sequence[tuple[str, bool]] = ()
    transforms: bool = False


@dataclass(frozen=True)
class Candidate:
    """A file of the table: what tasks need to read it, and between which values its columns are, where known."""

    path: str
    info: str
    bounds: Mapping[str, tuple[Any, Any]]
    file: Any = field(repr=False, default=None)


class Target(Protocol[T]):
    """What merging asks of a table's format."""

    def reopen(self) -> T | None:
        """The table as it is now; None if the batch is in it."""

    def current(self) -> T:
        """The table as it is now."""

    def is_new(self, table: T) -> bool:
        """Whether no batch of this query is in it."""

    def job(self, table: T) -> Job:
        """What tasks need to write its files."""

    def files(self, table: T) -> list[Candidate]:
        """All its files."""

    def is_small(self, table: T) -> bool:
        """Whether a few rows may be merged into it in this process."""

    def merge_here(self, table: T, rows: pa.Table) -> bool:
        """A few rows, one a key, into a small table, in this process; False if another writer was faster.

        NotHereError, before anything is committed, where that cannot be done with such rows: tasks do it then."""

    def commit(self, table: T, gone: Sequence[Candidate], written: Sequence[Written]) -> bool:
        """One commit on just this version; False if another writer was faster."""


def merged(request: Request, target: Target[T], table: T) -> T:
    """The batch into the table; the table as it is then."""
    changes = chosen_rows(request.batch, request.key, request.order_by).persist()
    try:
        few = few_rows(changes, request.key) if target.is_small(table) else None
        ranges = _ranges(changes, request) if few is None else None
        for attempt in range(ATTEMPTS):
            if attempt:
                found = target.reopen()
                if found is None:
                    return target.current()
                table = found
            is_empty = ranges is None if few is None else not few.num_rows
            if is_empty and not target.is_new(table):
                return table
            try:
                is_done = (
                    _merge_once(request, target, table, changes, ranges)
                    if few is None
                    else target.merge_here(table, few)
                )
            except NotHereError as error:
                log.info("a few rows are merged by tasks: %s", error)
                # With the next attempt, on the table as it is then.
                few, ranges, is_done = None, _ranges(changes, request), False
            if is_done:
                return target.current()
        raise RuntimeError(f"other writers were faster {ATTEMPTS} times; the batch is tried again")
    finally:
        changes.unpersist()


def few_rows(changes: DataFrame, key: Sequence[str]) -> pa.Table | None:
    """The rows, if they are few."""
    rows = as_stored(changes.limit(SMALL_ROWS + 1).toArrow())
    if rows.num_rows > SMALL_ROWS:
        return None
    refuse_doubles(rows, key)
    return rows


def _merge_once(
    request: Request,
    target: Target[T],
    table: T,
    changes: DataFrame,
    ranges: Mapping[str, tuple[Any, Any] | None] | None,
) -> bool:
    job = target.job(table)
    touched: list[Candidate] = []
    written: list[Written] = []
    if ranges is not None:
        possible = candidates(target.files(table), ranges)
        touched = _touched(request, job, possible, changes)
        rows = _result(request, job, touched, changes)
        written = write_files(spread(rows, job, request.sort_by, transforms=request.transforms), job)
    if target.commit(table, touched, written):
        return True
    discard(job.store, written, lambda: {one.path for one in target.files(target.current())})
    return False


def _ranges(changes: DataFrame, request: Request) -> dict[str, tuple[Any, Any] | None] | None:
    """Between which values the keys of the batch are, or None if there is no row. One row a key.

    None for a key that is also null, of which `_may_hold` compares no bounds, or a date that Python has not."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DateType, IntegralType, StringType

    found = []
    for n, name in enumerate(request.key):
        column, kind = F.col(f"`{name}`"), changes.schema[name].dataType
        if isinstance(kind, DateType):
            column = F.when(F.year(column).between(date.min.year, date.max.year), column)
        elif not isinstance(kind, IntegralType | StringType):
            column = F.lit(None)
        found += [
            F.min(column).alias(f"l{n}"),
            F.max(column).alias(f"m{n}"),
            F.count(F.when(column.isNull(), 1)).alias(f"n{n}"),
        ]
    (row,) = changes.agg(F.count(F.lit(1)).alias("rows"), *found).collect()
    if not row["rows"]:
        return None
    if request.order_by is None:
        keys = [F.col(f"`{name}`") for name in request.key]
        if changes.groupBy(*keys).agg(F.count(F.lit(1)).alias("__n")).where("__n > 1").limit(1).collect():
            raise several(request.key)
    return {
        name: None if row[f"n{n}"] else (row[f"l{n}"], row[f"m{n}"]) for n, name in enumerate(request.key)
    }


def candidates(files: Sequence[Candidate], ranges: Mapping[str, tuple[Any, Any] | None]) -> list[Candidate]:
    """The files that can hold one of the keys, by their statistics."""
    return [
        one for one in files if all(_may_hold(one.bounds.get(name), keys) for name, keys in ranges.items())
    ]


def _may_hold(bounds: tuple[Any, Any] | None, keys: tuple[Any, Any] | None) -> bool:
    """Asked only of what all compare alike: of times, floats and decimals there are rounded bounds, or other types."""
    if bounds is None or keys is None or {type(value) for value in (*bounds, *keys)} not in COMPARED:
        return True
    return bool(bounds[0] <= keys[1] and keys[0] <= bounds[1])


def _read(request: Request, job: Job, files: Sequence[Candidate], columns: Sequence[str] | None) -> DataFrame:
    """Rows of these files, read by tasks, with the number of their file."""
    from pyspark.sql.types import IntegerType

    spark = request.batch.sparkSession
    infos = spark.createDataFrame([(n, one.info) for n, one in enumerate(files)], "number int, info string")
    number = min(len(files), int(str(spark.conf.get("spark.sql.shuffle.partitions"))))
    schema = spark_schema(job.store.schema(), columns).add(FILE_COLUMN, IntegerType())
    return infos.repartition(number).mapInArrow(read_task(job, columns), schema)


def read_task(job: Job, columns: Sequence[str] | None) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function of mapInArrow: files in, their rows out."""

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        with discreetly(job.secrets):
            for batch in batches:
                for number, info in zip(
                    batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True
                ):
                    for rows in job.store.read(info, columns):
                        key = pa.array([number] * rows.num_rows, pa.int32())
                        yield rows.append_column(FILE_COLUMN, key)

    return read


def _touched(request: Request, job: Job, files: Sequence[Candidate], changes: DataFrame) -> list[Candidate]:
    """The files that hold a key of the batch."""
    if not files:
        return []
    stored = _read(request, job, files, list(request.key)).alias("t")
    keys = changes.select(*[f"`{name}`" for name in request.key]).alias("s")
    held = stored.join(keys, _same_key(request), "left_semi").select(FILE_COLUMN).distinct().collect()
    return [files[row[0]] for row in held]


def _same_key(request: Request) -> Column:
    from pyspark.sql import functions as F

    made: Column | None = None
    for name in request.key:
        left, right = F.col(f"t.`{name}`"), F.col(f"s.`{name}`")
        same = left.eqNullSafe(right) if request.null_is_a_key else left == right
        made = same if made is None else made & same
    assert made is not None
    return made


def _result(request: Request, job: Job, touched: Sequence[Candidate], changes: DataFrame) -> DataFrame:
    """The rows of the new files: what stays of the touched ones, and what the batch brings."""
    from pyspark.sql import functions as F

    gone = F.coalesce(F.col(f"`{request.delete}`"), F.lit(False)) if request.delete else F.lit(False)
    given = [name for name in changes.columns if name != request.delete]
    if not touched:
        return changes.where(~gone).select(*[F.col(f"`{name}`") for name in given])
    there = _read(request, job, touched, None).drop(FILE_COLUMN).alias("t")
    if request.order_by:
        newer = F.coalesce(F.col(f"s.`{request.order_by}`") >= F.col(f"t.`{request.order_by}`"), F.lit(True))
    else:
        newer = F.lit(True)
    # A row of the table goes where a row of the batch meets it that is not older.
    stays = there.join(changes.alias("s"), _same_key(request) & newer, "left_anti")
    # A row of the batch comes, unless it deletes or a newer one is in the table.
    stored = there.select(*_key_columns(request)).alias("t")
    comes = changes.where(~gone).alias("s").join(stored, _same_key(request) & ~newer, "left_anti")
    # A column that the batch lacks, be it in a struct, is null in its rows; a narrower one becomes the table's.
    brought = comes.select(*[F.col(f"s.`{name}`") for name in given])
    if _differs_in_maps(job, brought):
        brought = brought.mapInArrow(fit_task(job), spark_schema(job.store.schema()))
    return stays.unionByName(brought, allowMissingColumns=True)


def _differs_in_maps(job: Job, brought: DataFrame) -> bool:
    """Spark's union goes by the names of fields in structs and arrays. In maps it takes them as they come: one's value
    for another's."""
    from ottla.spark.pipeline.lake.fit import arrow_schema

    table = {one.name: one.type for one in job.store.schema()}
    return any(
        one.type != table[one.name] and _has_map(one.type)
        for one in arrow_schema(brought.schema)
        if one.name in table
    )


def _has_map(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_map(kind):
        return True
    return any(_has_map(kind.field(n).type) for n in range(kind.num_fields))


def fit_task(job: Job) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function of mapInArrow: rows of a batch in, the same in the columns of the table out."""

    def fit(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from ottla.spark.pipeline.lake.fit import fit_rows

        schema = job.store.schema()
        for batch in batches:
            yield from fit_rows(as_stored(pa.Table.from_batches([batch])), schema).to_batches()

    return fit


def _key_columns(request: Request) -> list[str]:
    names = dict.fromkeys([*request.key, *([request.order_by] if request.order_by else [])])
    return [f"`{name}`" for name in names]


def spark_schema(rows: pa.Schema, columns: Sequence[str] | None = None) -> StructType:
    """Spark's types of a table's columns."""
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [
            StructField(one.name, _spark_type(one.type))
            for one in rows
            if columns is None or one.name in columns
        ]
    )


def _spark_type(kind: Any) -> Any:
    import pyarrow as pa
    from pyspark.sql import types as T

    simple = {
        pa.bool_(): T.BooleanType(),
        pa.int8(): T.ByteType(),
        pa.int16(): T.ShortType(),
        pa.int32(): T.IntegerType(),
        pa.int64(): T.LongType(),
        pa.float32(): T.FloatType(),
        pa.float64(): T.DoubleType(),
        pa.string(): T.StringType(),
        pa.binary(): T.BinaryType(),
        pa.date32(): T.DateType(),
        pa.timestamp("us", "UTC"): T.TimestampType(),
        pa.timestamp("us"): T.TimestampNTZType(),
    }
    if kind in simple:
        return simple[kind]
    if pa.types.is_decimal(kind):
        return T.DecimalType(kind.precision, kind.scale)
    if pa.types.is_struct(kind):
        return T.StructType([T.StructField(one.name, _spark_type(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return T.ArrayType(_spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return T.MapType(_spark_type(kind.key_type), _spark_type(kind.item_type))
    raise NotForSparkError(str(kind))


class NotHereError(Exception):
    """Rows that the format's own package does not take; tasks may."""


class NotForSparkError(Exception):
    """A type that Spark has not: such a table is not merged by tasks."""
