"""Rows into data files of a table, in the tasks: the driver gets a small description of each file, and commits those.

A task's rows come in order of their partitions (`spread` sees to it), so one file is open at a time, whatever the
number of partitions: what a task holds in memory is one row group. A file that has reached its size is followed by
another.

Files are named `ottla-<query>-<batch>-<try>-<task>-<attempt>-<n>.parquet`: a task that is tried again, its
speculative twin, and a batch that is replayed after a crash write files of their own, and only those that a commit
names are in the table. A task that fails deletes what it wrote; what a killed one leaves behind is found by the
table's own means (Delta's vacuum, Iceberg's removal of orphan files).

Storage options, with the secrets among them, go to the tasks inside the pickled function, which Spark shows in no
plan, event log or argument; what fails in a task names none of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ottla.spark.pipeline.discreet import discreetly

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

# What a task holds in memory: rows of one row group, as Arrow has them.
ROW_GROUP_BYTES: Final = 32 << 20
ROW_GROUP_ROWS: Final = 1 << 20
PARTITION_COLUMN: Final = "__ottla_partition"
SALT_COLUMN: Final = "__ottla_salt"
WRITTEN: Final = "path string, size bigint, rows bigint, info string"


class Written(NamedTuple):
    """A data file that a task has written; `info` is the format's own: partition values and statistics."""

    path: str
    size: int
    rows: int
    info: str


class Store(Protocol):
    """A table's place, as the tasks know it. It is pickled with the function that they run."""

    def schema(self) -> pa.Schema:
        """Of the table's rows."""

    def fit(self, rows: pa.Table) -> pa.Table:
        """Rows with the columns that files have."""

    def sources(self) -> Sequence[str]:
        """The columns that partition values are made of."""

    def values(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """The partition values of a row, given its source columns."""

    def key(self, rows: pa.Table) -> pa.Array:
        """A text for each row: the same for those of one partition."""

    def path(self, values: tuple[Any, ...], name: str) -> str:
        """Where a file of that partition goes."""

    def open_output(self, path: str) -> Any:
        """A new file."""

    def delete(self, path: str) -> None:
        """Take a file away."""

    def parquet(self) -> Mapping[str, Any]:
        """How Parquet is written."""

    def info(self, values: tuple[Any, ...], rows: pa.Schema, metadata: Any, with_nan: frozenset[str]) -> str:
        """What the commit needs to know, as text."""

    def read(self, info: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a file that is in the table, by what the driver says of it; these columns, or all."""


@dataclass(frozen=True)
class Job:
    """What a task has to know to write its part of a batch."""

    store: Store
    prefix: str
    target_bytes: int
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


class FileWriter:
    """The files of one task, one open at a time."""

    def __init__(self, job: Job, suffix: str) -> None:
        self._store = job.store
        self._name = f"{job.prefix}-{suffix}"
        self._target_bytes = job.target_bytes
        self._open: _File | None = None
        self._paths: list[str] = []
        self._written: list[Written] = []

    def write(self, values: tuple[Any, ...], rows: pa.Table) -> None:
        """Rows of one partition."""
        if self._open is not None and (self._open.values != values or self._open.size >= self._target_bytes):
            self._finish()
        if self._open is None:
            path = self._store.path(values, f"{self._name}-{len(self._paths)}.parquet")
            self._paths.append(path)
            self._open = _File(self._store, path, values)
        self._open.add(rows)

    def close(self) -> list[Written]:
        """The last file is finished; all that were written."""
        if self._open is not None:
            self._finish()
        return self._written

    def abort(self) -> None:
        """Nothing of this task counts: take away what it wrote, as far as that goes."""
        if self._open is not None:
            self._open.abandon()
        remove(self._store, self._paths)

    def _finish(self) -> None:
        assert self._open is not None
        self._written.append(self._open.finish())
        self._open = None


class _File:
    def __init__(self, store: Store, path: str, values: tuple[Any, ...]) -> None:
        self.values = values
        self._store = store
        self._path = path
        self._out: Any = None
        self._parquet: Any = None
        self._schema: Any = None
        self._account: list[Any] = []
        self._pending: list[pa.Table] = []
        self._pending_bytes = self._pending_rows = 0
        self._rows = 0
        self._with_nan: set[str] = set()

    @property
    def size(self) -> int:
        """Bytes that are in the file by now."""
        return 0 if self._out is None else int(self._out.tell())

    def add(self, rows: pa.Table) -> None:
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        self._pending_rows += rows.num_rows
        if self._pending_bytes >= ROW_GROUP_BYTES or self._pending_rows >= ROW_GROUP_ROWS:
            self._flush()

    def finish(self) -> Written:
        self._flush()
        self._parquet.close()
        size = self.size
        self._out.close()
        # The writer's own account of what it has written: nothing is read again.
        (metadata,) = self._account
        info = self._store.info(self.values, self._schema, metadata, frozenset(self._with_nan))
        return Written(self._path, size, self._rows, info)

    def abandon(self) -> None:
        for one in (self._parquet, self._out):
            try:
                if one is not None:
                    one.close()
            except Exception:  # noqa: BLE001, S110 - it is on its way out; what failed before is what is told
                pass

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._pending:
            return
        rows = pa.concat_tables(self._pending)
        self._pending, self._pending_bytes, self._pending_rows = [], 0, 0
        if self._parquet is None:
            self._out = self._store.open_output(self._path)
            self._schema = rows.schema
            options = self._store.parquet()
            self._parquet = pq.ParquetWriter(
                self._out, rows.schema, metadata_collector=self._account, **options
            )
        for n, one in enumerate(rows.schema):
            self._with_nan.update(with_nan(one.name, rows.column(n)))
        self._parquet.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self._rows += rows.num_rows


def with_nan(name: str, column: pa.ChunkedArray) -> Iterator[str]:
    """Which columns hold what is no number: this one, or those in a struct, as a.b."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(column.type):
        for n, one in enumerate(column.type):
            yield from with_nan(f"{name}.{one.name}", pc.struct_field(column, [n]))
    elif pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        yield name


def discard(store: Store, written: Iterable[Written], named: Callable[[], set[str]]) -> None:
    """The files of a commit that was refused, but for those that the table names: what was refused may have been the
    answer to a commit whose first answer got lost."""
    try:
        there = named()
    except Exception as error:  # noqa: BLE001 - whatever storage says
        log.debug("files of a commit that was refused stay: %s", type(error).__name__)
        return
    remove(store, [one.path for one in written if one.path not in there])


def remove(store: Store, paths: Iterable[str]) -> None:
    """Files that no commit names, as far as that goes: one that stays takes room and nothing else."""
    for path in paths:
        try:
            store.delete(path)
        except Exception as error:  # noqa: BLE001 - whatever storage says
            log.debug("%s stays, in no table: %s", path, type(error).__name__)


def write_rows(job: Job, suffix: str, batches: Iterable[pa.RecordBatch]) -> list[Written]:
    """The rows of one task into files."""
    import pyarrow as pa

    from ottla.spark.pipeline.lake.common import as_stored

    writer = FileWriter(job, suffix)
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            rows = as_stored(pa.Table.from_batches([batch]))
            for start, length in runs(rows, run_columns(job.store, rows.column_names)):
                run = rows.slice(start, length)
                writer.write(partition_values(job.store, run), job.store.fit(run))
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def partition_values(store: Store, run: pa.Table) -> tuple[Any, ...]:
    """Of rows of one partition; TableMismatchError where a value cannot be one of a partition."""
    with _partitioning(store):
        return store.values({name: run.column(name)[0].as_py() for name in store.sources()})


@contextmanager
def _partitioning(store: Store) -> Iterator[None]:
    from ottla.spark.pipeline.lake.common import TableMismatchError

    try:
        yield
    except (OverflowError, ValueError) as error:
        raise TableMismatchError(
            f"a row of the result has a value in {', '.join(store.sources())} that the table cannot be partitioned by "
            f"({error}): times are from the year 1 to 9999, and bytes, in Delta, are UTF-8. Nothing of this batch is "
            "written; `where` or an expectation leaves such rows out"
        ) from None


def run_columns(store: Store, names: Sequence[str]) -> list[str]:
    """The columns that tell partitions apart."""
    return [PARTITION_COLUMN] if PARTITION_COLUMN in names else list(store.sources())


def runs(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where rows that follow each other have the same values in these columns: start and length."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not columns or rows.num_rows < 2:
        if rows.num_rows:
            yield 0, rows.num_rows
        return
    differ = None
    for name in columns:
        column = rows.column(name).combine_chunks()
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        changes = pc.fill_null(pc.not_equal(before, after), False)
        changes = pc.or_(changes, pc.xor(pc.is_null(before), pc.is_null(after)))
        if pa.types.is_floating(column.type):  # NaN is not equal to itself, but a partition of its own
            both = pc.fill_null(pc.and_(pc.is_nan(before), pc.is_nan(after)), False)
            changes = pc.and_not(changes, both)
        differ = changes if differ is None else pc.or_(differ, changes)
    starts = [0, *(index + 1 for index in pc.indices_nonzero(differ).to_pylist()), rows.num_rows]
    for start, end in pairwise(starts):
        yield start, end - start


def write_task(job: Job) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function of mapInArrow: rows in, descriptions of files out."""

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        with discreetly(job.secrets):
            written = write_rows(job, task_suffix(), batches)
        yield described(written)

    return write


def described(written: Sequence[Written]) -> pa.RecordBatch:
    """Descriptions as the rows that go to the driver."""
    import pyarrow as pa

    kinds = (pa.string(), pa.int64(), pa.int64(), pa.string())
    columns = [pa.array([one[n] for one in written], kind) for n, kind in zip(range(4), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=list(Written._fields))


def task_suffix() -> str:
    """What tells the files of this task's attempt from those of all others of the same job."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return "0-0" if context is None else f"{context.partitionId()}-{context.taskAttemptId()}"


def key_task(store: Store, secrets: Mapping[str, str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function of mapInArrow that puts a text for its partition beside each row."""

    def add(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from ottla.spark.pipeline.lake.common import as_stored

        with discreetly(secrets):
            for batch in batches:
                with _partitioning(store):
                    key = store.key(as_stored(pa.Table.from_batches([batch])))
                yield batch.append_column(PARTITION_COLUMN, key)

    return add


def spread(
    rows: DataFrame, job: Job, sort_by: Sequence[tuple[str, bool]], *, transforms: bool, width: int = 1
) -> DataFrame:
    """Rows as the tasks want them: those of a partition together, in at most `width` tasks, sorted within each.

    Spark shuffles and sorts them in the executors, on their disks where they are many. A table without partitions and
    without an order needs neither: every task writes what it has.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructType

    by = list(job.store.sources())
    rows = _with_columns(rows, job.store, by)
    # What they lack, or have only within a struct, orders nothing.
    sort_by = [(name, down) for name, down in sort_by if name in rows.columns]
    if by and transforms:
        columns = StructType([*rows.schema.fields]).add(PARTITION_COLUMN, StringType())
        rows = rows.mapInArrow(key_task(job.store, job.secrets), columns)
        by = [PARTITION_COLUMN]
    order = [F.col(f"`{name}`").desc() if down else F.col(f"`{name}`").asc() for name, down in sort_by]
    together = [F.col(f"`{name}`") for name in by]
    if together:
        number = int(str(rows.sparkSession.conf.get("spark.sql.shuffle.partitions")))
        if width > 1:
            rows = rows.withColumn(SALT_COLUMN, F.spark_partition_id() % width)
            rows = rows.repartition(number, *together, F.col(SALT_COLUMN)).drop(SALT_COLUMN)
        else:
            rows = rows.repartition(number, *together)
    return rows.sortWithinPartitions(*together, *order) if together or order else rows


def _with_columns(rows: DataFrame, store: Store, names: Sequence[str]) -> DataFrame:
    """What a table is partitioned by and rows lack is null in them, as is what they lack otherwise."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_type

    for name in names:
        if name not in rows.columns:
            kind = from_arrow_type(store.schema().field(name).type, prefer_timestamp_ntz=True)
            rows = rows.withColumn(name, F.lit(None).cast(kind))
    return rows


def write_files(rows: DataFrame, job: Job) -> list[Written]:
    """All rows into files, by the tasks; their descriptions. What tasks of a failed job wrote is not known here."""
    found = rows.mapInArrow(write_task(job), WRITTEN).collect()
    return [Written(row["path"], row["size"], row["rows"], row["info"]) for row in found]


def width_for(written: Sequence[Written], partition_of: Callable[[Written], Any], target_bytes: int) -> int:
    """Over how many tasks a partition is to be spread the next time: as many as it had full files this time."""
    sizes: dict[Any, int] = {}
    for one in written:
        partition = partition_of(one)
        sizes[partition] = sizes.get(partition, 0) + one.size
    return max(1, *(size // target_bytes for size in sizes.values())) if sizes else 1
