"""Small files merged into large ones, on a schedule, between micro-batches: what goes together, and the rewriting.

Which files are small and belong together is a pure plan over sizes and partitions. The tasks rewrite: without an
order each task reads the files of one group one after the other and writes them as one, so it holds a row group and
no more; with an order Spark sorts the rows of a group first, on disk where they are many. The commit takes the old
files away and adds the new ones, changes no row, and touches no query's mark; a crash before it leaves files that no
table names. Another writer's commit in between makes it void, and the next time it is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ottla.spark.pipeline.discreet import discreetly
from ottla.spark.pipeline.lake.files import (
    PARTITION_COLUMN,
    WRITTEN,
    FileWriter,
    Job,
    Written,
    described,
    partition_values,
    remove,
    task_suffix,
    write_task,
)
from ottla.spark.pipeline.lake.spec import parse_every

# A file is small below this part of the size that files are to have: what it is short of is not worth a rewrite.
SMALL: Final = 0.75
MIN_FILES: Final = 2
# Of one compaction: what is left is for the next.
MAX_FILES: Final = 10_000


class Small(NamedTuple):
    """A file: its number, its size, its partition."""

    number: int
    size: int
    partition: tuple[Any, ...]


class Schedule:
    """When to compact: so long after the last time, which the table knows, or this process."""

    def __init__(self, every: str | None) -> None:
        self._every_s = None if every is None else parse_every(every)
        self._last_s: float | None = None

    def is_due(self, now_s: float, table_last_s: int | None) -> bool:
        """Whether it is time; if so, it is taken as done, whatever comes of it."""
        if self._every_s is None:
            return False
        last = max((at for at in (self._last_s, table_last_s) if at is not None), default=None)
        # A clock that was set back is no reason to wait for it.
        if last is not None and last <= now_s < last + self._every_s:
            return False
        self._last_s = now_s
        return True


def plan(files: Sequence[Small], target_bytes: int) -> list[list[int]]:
    """The numbers of files that become one: small ones of one partition, together about as large as a file is to be."""
    groups: dict[tuple[Any, ...], list[Small]] = {}
    for one in files:
        if one.size < target_bytes * SMALL:
            groups.setdefault(one.partition, []).append(one)
    bins: list[list[int]] = []
    planned = 0
    for group in groups.values():
        for together in _bins(sorted(group, key=lambda file: (file.size, file.number)), target_bytes):
            if planned + len(together) > MAX_FILES:
                return bins
            planned += len(together)
            bins.append([file.number for file in together])
    return bins


def _bins(files: Sequence[Small], target_bytes: int) -> Iterator[list[Small]]:
    """Smallest first: the many that cost readers most go first, and a file near its size joins last."""
    current: list[Small] = []
    size = 0
    for one in files:
        if current and size + one.size > target_bytes:
            if len(current) >= MIN_FILES:
                yield current
            current, size = [], 0
        current.append(one)
        size += one.size
    if len(current) >= MIN_FILES:
        yield current


def rewrite(
    spark: Any, job: Job, bins: Sequence[Sequence[str]], sort_by: Sequence[tuple[str, bool]]
) -> list[Written]:
    """The rows of each group of files, by what the store knows them, into new files."""
    groups = spark.createDataFrame(
        [(number, info) for number, one in enumerate(bins) for info in one], "bin int, info string"
    )
    number = min(len(bins), int(str(spark.conf.get("spark.sql.shuffle.partitions"))))
    groups = groups.repartition(number, "bin").sortWithinPartitions("bin")
    if sort_by:
        groups = _sorted_rows(groups, job, sort_by, number)
        found = groups.mapInArrow(write_task(job), WRITTEN).collect()
    else:
        found = groups.mapInArrow(_rewrite_task(job), WRITTEN).collect()
    return [Written(row["path"], row["size"], row["rows"], row["info"]) for row in found]


def _rewrite_task(job: Job) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def write(batches: Iterator[Any]) -> Iterator[Any]:
        with discreetly(job.secrets):
            written = rewrite_bins(job, task_suffix(), _infos(batches))
        yield described(written)

    return write


def _infos(batches: Iterator[Any]) -> Iterator[tuple[int, str]]:
    for batch in batches:
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def rewrite_bins(job: Job, suffix: str, infos: Iterator[tuple[int, str]]) -> list[Written]:
    """The files of some groups, those of a group after each other, into one file a group or more."""
    import pyarrow as pa

    writers: list[FileWriter] = []
    written: list[Written] = []
    current: int | None = None
    try:
        for number, info in infos:
            if number != current:
                if writers:
                    written += writers[-1].close()
                writers.append(FileWriter(job, f"{suffix}-{number}"))
                current = number
            for batch in job.store.read(info):
                if batch.num_rows:
                    rows = pa.Table.from_batches([batch])
                    writers[-1].write(partition_values(job.store, rows), job.store.fit(rows))
        if writers:
            written += writers[-1].close()
        return written
    except BaseException:
        for one in writers:
            one.abort()
        raise


def _sorted_rows(groups: Any, job: Job, sort_by: Sequence[tuple[str, bool]], number: int) -> Any:
    """The rows of the files, those of a group in one task and in order."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    from ottla.spark.pipeline.lake.merge import spark_schema

    columns = spark_schema(job.store.schema()).add(PARTITION_COLUMN, StringType())

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        with discreetly(job.secrets):
            for group, info in _infos(batches):
                for rows in job.store.read(info):
                    key = pa.array([str(group)] * rows.num_rows, pa.string())
                    yield rows.append_column(PARTITION_COLUMN, key)

    order = [F.col(f"`{name}`").desc() if down else F.col(f"`{name}`").asc() for name, down in sort_by]
    rows = groups.mapInArrow(read, columns).repartition(number, PARTITION_COLUMN)
    return rows.sortWithinPartitions(PARTITION_COLUMN, *order)


def check_rows(where: str, before: int, written: Sequence[Written], job: Job) -> None:
    """As many rows as there were; otherwise nothing is committed."""
    after = sum(one.rows for one in written)
    if before != after:
        remove(job.store, [one.path for one in written])
        raise RuntimeError(f"compacting the {where} made {after} rows of {before}: left as it was")
