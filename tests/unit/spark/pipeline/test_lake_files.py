"""Data files of tables as tasks write them, and the commits that name them: no Spark, the formats' own readers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.spark.pipeline.declare import DeclarationError, delta, iceberg
from ottla.spark.pipeline.lake import compaction
from ottla.spark.pipeline.lake import delta as lake_delta
from ottla.spark.pipeline.lake import iceberg as lake_iceberg
from ottla.spark.pipeline.lake.common import TableMismatchError, is_written
from ottla.spark.pipeline.lake.delta_log import delta_statistics, delta_text, delta_value, hive_path
from ottla.spark.pipeline.lake.files import (
    PARTITION_COLUMN,
    Job,
    Written,
    key_task,
    runs,
    width_for,
    write_rows,
)
from ottla.spark.pipeline.lake.fit import fit_rows, fitted
from ottla.spark.pipeline.lake.merge import Candidate, candidates
from ottla.spark.pipeline.lake.spec import Part, parse_every, parse_part, parse_size, parse_sort

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
INT = pa.int32()


class DeltaTarget:
    """A Delta table, written as a query's tasks and its driver do."""

    def __init__(self, path: Path, **more: Any) -> None:
        self.sink = delta(str(path / "delta"), **more)

    def open(self) -> Any:
        return lake_delta._open(self.sink)

    def prepare(self, schema: pa.Schema) -> Any:
        return lake_delta._prepared(self.sink, self.open(), schema)

    def job(self, table: Any, batch: int = 0, query: str = "q") -> Job:
        return lake_delta.job_for(self.sink, table, query, str(batch), {})

    def commit(
        self, table: Any, rows: pa.Table, written: list[Written], job: Job, batch: int, mode: str
    ) -> Any:
        return lake_delta._commit(self.sink, mode, table, rows.schema, written, job, "ottla-q", batch)

    def rows(self) -> list[dict[str, Any]]:
        return sorted(lake_delta.read_table(self.sink).to_pylist(), key=str)

    def named(self) -> set[str]:
        return {Path(one["path"]).name for one in lake_delta.active_files(self.open())}

    def mark(self) -> int | None:
        found: int | None = self.open().transaction_version("ottla-q")
        return found


class IcebergTarget:
    """The same of an Iceberg table."""

    def __init__(self, path: Path, **more: Any) -> None:
        self.sink = iceberg("a.rows", warehouse=str(path / "iceberg"), **more)

    def open(self) -> Any:
        return lake_iceberg._open(lake_iceberg.open_catalog(self.sink), self.sink)

    def prepare(self, schema: pa.Schema) -> Any:
        return lake_iceberg._prepared(lake_iceberg.open_catalog(self.sink), self.sink, self.open(), schema)

    def job(self, table: Any, batch: int = 0, query: str = "q") -> Job:
        return lake_iceberg.job_for(self.sink, table, query, str(batch), {})

    def commit(
        self, table: Any, rows: pa.Table, written: list[Written], job: Job, batch: int, mode: str
    ) -> Any:
        return lake_iceberg._commit(self.sink, mode, table, rows.schema, written, job, "q", batch)

    def rows(self) -> list[dict[str, Any]]:
        return sorted(lake_iceberg.read_table(self.sink).to_pylist(), key=str)

    def named(self) -> set[str]:
        return {Path(one.file.file_path).name for one in lake_iceberg._files(self.open())}

    def mark(self) -> int | None:
        return lake_iceberg.mark_of(self.open(), "q")


TARGETS = pytest.mark.parametrize("target", [DeltaTarget, IcebergTarget])


def write(target: Any, rows: pa.Table, batch: int = 0, mode: str = "append") -> list[Written]:
    table = target.prepare(rows.schema)
    job = target.job(table, batch)
    written = write_rows(job, "0-0", rows.to_batches())
    target.commit(table, rows, written, job, batch, mode)
    return written


def parquet_files(path: Path) -> set[str]:
    return {one.name for one in path.rglob("ottla-*.parquet")}


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, INT)})


EVERYTHING = pa.table(
    {
        "i": pa.array([1, None, 3], pa.int64()),
        "s": pa.array(["a", "b/c: ü", None]),
        "b": pa.array([b"\x00\xff", b"", None]),
        "t": pa.array([NOON, None, NOON], pa.timestamp("us", "UTC")),
        "d": pa.array([date(2026, 1, 1), None, date(1969, 12, 31)]),
        "x": pa.array([1.5, float("nan"), None]),
        "m": pa.array([Decimal("1.25"), None, Decimal("-3.50")], pa.decimal128(10, 2)),
        "st": pa.array(
            [{"a": 1, "l": ["x"]}, None, {"a": None, "l": []}],
            pa.struct([("a", INT), ("l", pa.list_(pa.string()))]),
        ),
        "mp": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "ok": pa.array([True, False, None]),
    }
)  # fmt: skip


@TARGETS
def test_every_type_comes_back_as_it_was_by_the_formats_own_reader(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path)
    (one,) = write(table, EVERYTHING)
    assert one.rows == 3
    assert [str(row) for row in table.rows()] == sorted(str(row) for row in EVERYTHING.to_pylist())
    (file,) = (tmp_path).rglob("ottla-*.parquet")
    assert one.size == file.stat().st_size
    assert pq.read_table(file, partitioning=None).num_rows == 3


@TARGETS
@pytest.mark.parametrize("spelling", ["file:", "file://", ""])
def test_a_directory_is_the_same_however_it_is_spelt(
    target: Any, spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    place = tmp_path / "a lake"
    table = target(tmp_path)
    if target is DeltaTarget:
        table.sink = delta(f"{spelling}{place}")
    else:
        table.sink = iceberg("a.rows", warehouse=f"{spelling}{place}")
    write(table, numbers(1, 2))
    assert table.rows() == [{"n": 1}, {"n": 2}]
    assert parquet_files(place)
    assert not list((tmp_path / "here").iterdir())


@TARGETS
@pytest.mark.parametrize("by", ["s", "d", "i", "t", "m", "ok"])
def test_partitions_of_each_type(target: Any, tmp_path: Path, by: str) -> None:
    table = target(tmp_path, partition_by=by)
    assert len(write(table, EVERYTHING)) == 3
    assert [str(row) for row in table.rows()] == sorted(str(row) for row in named_as(table, EVERYTHING))
    again = target(tmp_path)  # without partition_by the table's own counts
    write(again, EVERYTHING, 1)
    assert len(table.rows()) == 6


def named_as(target: Any, rows: pa.Table) -> list[dict[str, Any]]:
    names = [one.name for one in target.job(target.open()).store.schema()]
    return [{name: row[name] for name in names} for row in rows.to_pylist()]


def test_times_in_buckets_are_found_again(tmp_path: Path) -> None:
    from pyiceberg.expressions import EqualTo

    table = IcebergTarget(tmp_path, partition_by="bucket(4, t)")
    times = [NOON.replace(second=second) for second in range(8)]
    rows = pa.table({"t": pa.array(times, pa.timestamp("us", "UTC"))})
    job = table.job(table.prepare(rows.schema))
    told = rows.to_batches()[0]
    (keyed,) = key_task(job.store, {})(iter([told]))
    # As Spark hands them over: sorted by what tells partitions apart.
    ordered = pa.Table.from_batches([keyed]).sort_by(PARTITION_COLUMN)
    table.commit(table.open(), rows, write_rows(job, "0-0", ordered.to_batches()), job, 0, "append")
    for at in times:
        found = table.open().scan(row_filter=EqualTo("t", at.isoformat())).to_arrow()
        assert found.column("t").to_pylist() == [at]


@pytest.mark.parametrize(
    ("by", "paths"),
    [
        ("day(t)", {"t_day=2026-01-01", "t_day=null"}),
        ("month(d)", {"d_month=2026-01", "d_month=1969-12", "d_month=null"}),
        ("truncate(1, s)", {"s_trunc_1=a", "s_trunc_1=b", "s_trunc_1=null"}),
        ("bucket(1, i)", {"i_bucket_1=0", "i_bucket_1=null"}),
    ],
)
def test_transforms_of_iceberg(tmp_path: Path, by: str, paths: set[str]) -> None:
    table = IcebergTarget(tmp_path, partition_by=by)
    write(table, EVERYTHING)
    assert {file.parent.name for file in tmp_path.rglob("ottla-*.parquet")} == paths
    assert [str(row) for row in table.rows()] == sorted(str(row) for row in EVERYTHING.to_pylist())
    opened = table.open()
    assert len(list(opened.scan(row_filter="i == 1").plan_files())) == 1  # by statistics or by the partition
    store = table.job(opened).store
    keys = store.key(EVERYTHING).to_pylist()
    assert len(set(keys)) == len(paths)
    values = [store.values({name: row[name] for name in store.sources()}) for row in EVERYTHING.to_pylist()]
    assert [one == two for one in values for two in values] == [one == two for one in keys for two in keys]


@TARGETS
def test_files_are_followed_by_others_at_their_size(
    target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ottla.spark.pipeline.lake import files

    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 100)
    table = target(tmp_path, target_file_size="1KB")
    rows = pa.table({"n": pa.array(range(1000), pa.int64())})
    made = table.prepare(rows.schema)
    job = table.job(made)
    written = write_rows(job, "0-0", rows.to_batches(max_chunksize=50))
    assert 2 < len(written) <= 10
    assert sum(one.rows for one in written) == 1000
    assert len({one.path for one in written}) == len(written)


@TARGETS
def test_a_task_that_fails_takes_its_files_away(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path, partition_by="n")
    given = numbers(1, 2, 3).append_column("m", numbers(1, 2, 3).column("n"))
    job = table.job(table.prepare(given.schema))

    def rows() -> Iterable[pa.RecordBatch]:
        yield from given.to_batches()
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        write_rows(job, "0-0", rows())
    assert parquet_files(tmp_path) == set()


def test_what_fails_in_a_task_names_no_secret(tmp_path: Path) -> None:
    from ottla.spark.pipeline.lake.files import write_task

    store = lake_delta.DeltaStore(str(tmp_path), numbers().schema, (), {"key": "s3cret-word"})
    job = Job(store, "ottla-q-0", 1 << 20, {"LAKE_KEY": "s3cret-word"})

    def rows() -> Iterable[pa.RecordBatch]:
        yield from numbers(1).to_batches()
        raise OSError("403 for key s3cret-word")

    with pytest.raises(RuntimeError, match=r"OSError: 403 for key \*\*\*"):
        list(write_task(job)(iter(rows())))
    assert "s3cret" not in repr(job)


@TARGETS
def test_attempts_of_a_task_and_tries_of_a_batch_write_files_of_their_own(
    target: Any, tmp_path: Path
) -> None:
    table = target(tmp_path)
    made = table.prepare(numbers().schema)
    names = set()
    for suffix in ("0-1", "0-2"):
        for _ in range(2):
            names |= {one.path for one in write_rows(table.job(made), suffix, numbers(1).to_batches())}
    assert len(names) == 4
    assert all(Path(name).name.startswith("ottla-q-0-") for name in names)


@TARGETS
def test_an_append_goes_beside_what_another_writer_added_meanwhile(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path)
    made = table.prepare(numbers().schema)
    job = table.job(made)
    written = write_rows(job, "0-0", numbers(1).to_batches())
    other = target(tmp_path)
    again = other.job(other.open(), query="other")
    commit_as(other, numbers(2), write_rows(again, "0-0", numbers(2).to_batches()), again, "other")
    table.commit(made, numbers(1), written, job, 0, "append")
    assert [row["n"] for row in table.rows()] == [1, 2]


def commit_as(target: Any, rows: pa.Table, written: list[Written], job: Job, query: str) -> None:
    if isinstance(target, DeltaTarget):
        lake_delta._commit(target.sink, "append", target.open(), rows.schema, written, job, query, 0)
    else:
        lake_iceberg._commit(target.sink, "append", target.open(), rows.schema, written, job, query, 0)


@TARGETS
def test_a_zombie_of_the_same_query_adds_nothing_and_leaves_nothing(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path)
    write(table, numbers(0))
    stale = table.open()
    job = table.job(stale, 1)
    late = write_rows(job, "0-9", numbers(1).to_batches())
    write(table, numbers(1), 1)
    table.commit(stale, numbers(1), late, job, 1, "append")
    assert [row["n"] for row in table.rows()] == [0, 1]
    assert parquet_files(tmp_path) == table.named()


@TARGETS
def test_a_zombie_that_was_faster_while_the_table_was_made_is_found_before_files_are_written(
    target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = pytest.importorskip("pyspark.sql.types")
    table, batch = target(tmp_path), SimpleNamespace(schema=types.StructType().add("n", types.IntegerType()))
    is_delta = target is DeltaTarget
    lake: Any = lake_delta if is_delta else lake_iceberg
    writer = (lake.DeltaWriter if is_delta else lake.IcebergWriter)(table.sink, "append", "")
    prepared = lake._prepared

    def faster(*given: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(lake, "_prepared", prepared)
            write(table, numbers(1))
            return table.prepare(numbers().schema)

    monkeypatch.setattr(lake, "_prepared", faster)
    monkeypatch.setattr(lake, "spread", lambda *_, **__: None)
    monkeypatch.setattr(lake, "write_files", lambda _, job: write_rows(job, "0-0", numbers(1).to_batches()))
    writer._write(batch, 0, "q")
    assert table.rows() == [{"n": 1}]
    assert parquet_files(tmp_path) == table.named()


@TARGETS
def test_a_commit_whose_answer_got_lost_keeps_its_files(
    target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit lands, the storage repeats it and says that somebody else was faster."""
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError
    from pyiceberg.exceptions import CommitFailedException

    table = target(tmp_path)
    write(table, numbers(0))
    commit, put = DeltaTable.create_write_transaction, lake_iceberg._put

    def delta_loses(*given: Any, **named: Any) -> None:
        commit(*given, **named)
        raise CommitFailedError("somebody else was faster")

    def iceberg_loses(*given: Any) -> None:
        put(*given)
        raise CommitFailedException("somebody else was faster")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", delta_loses)
    monkeypatch.setattr(lake_iceberg, "_put", iceberg_loses)
    write(table, numbers(1), 1)
    assert [row["n"] for row in table.rows()] == [0, 1]


@TARGETS
def test_complete_replaces_what_others_added_too(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path)
    write(table, numbers(0), 0, "complete")
    stale = table.open()
    job = table.job(stale, 1)
    late = write_rows(job, "0-9", numbers(7).to_batches())
    again = table.job(stale, query="other")
    commit_as(table, numbers(2), write_rows(again, "0-0", numbers(2).to_batches()), again, "other")
    table.commit(stale, numbers(7), late, job, 1, "complete")
    assert [row["n"] for row in table.rows()] == [7]


@TARGETS
def test_the_first_batch_leaves_its_mark_even_without_rows(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path)
    write(table, numbers())
    assert (table.mark(), table.rows()) == (0, [])
    write(table, numbers(), 1)
    assert table.mark() == 0
    write(table, numbers(2), 2)
    assert table.mark() == 2


def drop_and_change(target: Any, tmp_path: Path, schema: pa.Schema) -> None:
    """Somebody else's table, of the same name."""
    import shutil

    if isinstance(target, DeltaTarget):
        shutil.rmtree(target.sink.path)
    else:
        lake_iceberg.open_catalog(target.sink).drop_table(target.sink.table)
    target.prepare(schema)


@TARGETS
def test_a_table_of_another_shape_is_one_line(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path)
    write(table, numbers(0))
    drop_and_change(table, tmp_path, pa.schema([("n", pa.string()), ("m", INT)]))
    with pytest.raises(
        TableMismatchError, match=r"column 'n' is string in the table and int32 in the result"
    ) as caught:
        table.prepare(numbers().schema)
    assert "\n" not in str(caught.value)
    with pytest.raises(
        TableMismatchError, match=r"the table has no column 'k' \(evolve='additive' adds columns\)"
    ):
        table.prepare(pa.schema([("m", INT), ("k", INT)]))
    with pytest.raises(TableMismatchError, match="is partitioned by nothing and partition_by says m"):
        target(tmp_path, partition_by="m").prepare(pa.schema([("m", INT)]))


@TARGETS
def test_columns_are_added_nested_ones_too_and_old_rows_stay(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path, evolve="additive")
    write(table, pa.table({"st": pa.array([{"a": 1}], pa.struct([("a", INT)]))}))
    more = pa.struct([("b", pa.string()), ("a", INT)])
    write(table, pa.table({"st": pa.array([{"a": 2, "b": "x"}], more), "new": pa.array([7], INT)}), 1)
    write(table, pa.table({"new": pa.array([8], INT)}), 2)
    assert table.rows() == [
        {"st": None, "new": 8},
        {"st": {"a": 1, "b": None}, "new": None},
        {"st": {"a": 2, "b": "x"}, "new": 7},
    ]


def test_a_column_becomes_wider_where_the_format_can(tmp_path: Path) -> None:
    wide = pa.table({"n": pa.array([1 << 40], pa.int64())})
    table: Any = IcebergTarget(tmp_path, evolve=True)
    write(table, numbers(1))
    write(table, wide, 1)
    assert [row["n"] for row in table.rows()] == [1 << 40, 1]
    table = DeltaTarget(tmp_path, evolve=True)
    write(table, numbers(1))
    with pytest.raises(TableMismatchError, match="int32 in the table and int64 in the result"):
        write(table, wide, 1)
    assert table.rows() == [{"n": 1}]
    write(table, pa.table({"n": pa.array([3], pa.int8())}), 1)  # what fits is fitted
    assert table.rows() == [{"n": 1}, {"n": 3}]


@TARGETS
def test_a_table_that_changes_between_files_and_commit(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path)
    made = table.prepare(numbers().schema)
    job = table.job(made)
    written = write_rows(job, "0-0", numbers(1).to_batches())
    # Another writer adds a column: files without it fit, or the batch is tried again.
    target(tmp_path, evolve=True).prepare(pa.schema([("n", INT), ("m", INT)]))
    try:
        table.commit(made, numbers(1), written, job, 0, "append")
        assert table.rows() == [{"n": 1, "m": None}]
    except RuntimeError as error:
        assert "is tried again" in str(error)  # noqa: PT017 - either is right, nothing else
        assert parquet_files(tmp_path) == set()


@TARGETS
@pytest.mark.parametrize("batches", [0, 2])
def test_a_table_that_is_deleted_and_made_anew_between_files_and_commit(
    target: Any, tmp_path: Path, batches: int
) -> None:
    """By chance it has as many versions as the one before, or more: nothing is said of files that it has not."""
    table = target(tmp_path)
    for batch in range(batches):
        write(table, numbers(batch), batch)
    made = table.prepare(numbers().schema)
    job = table.job(made, batches)
    written = write_rows(job, "0-0", numbers(9).to_batches())
    drop_and_change(table, tmp_path, numbers().schema)
    other = table.job(table.open(), query="other")
    for number in range(5):
        files = write_rows(other, f"0-{number}", numbers(number).to_batches())
        commit_as(table, numbers(number), files, other, f"other{number}")
    with pytest.raises((RuntimeError, ValueError)):
        table.commit(made, numbers(9), written, job, batches, "append")
    assert [row["n"] for row in table.rows()] == [0, 1, 2, 3, 4]


def test_a_merge_does_not_go_on_in_a_table_that_was_deleted_meanwhile(tmp_path: Path) -> None:
    """What was merged before is not in a new one."""
    import shutil

    table = DeltaTarget(tmp_path, key="n")
    write(table, numbers(0))
    merging = lake_delta._DeltaMerge(table.sink, numbers().schema, "ottla-q", 1, {}, "q")
    assert merging.reopen() is not None
    shutil.rmtree(table.sink.path)
    with pytest.raises(TableMismatchError, match="does not know this query"):
        merging.reopen()
    assert not Path(table.sink.path).exists()


@TARGETS
def test_what_a_merged_row_lacks_is_null(target: Any, tmp_path: Path) -> None:
    inner = pa.struct([("a", INT), ("b", INT)])
    schema = pa.schema([("n", INT), ("more", INT), ("s", inner), ("m", pa.map_(pa.string(), inner))])
    values = {"more": 1, "s": {"a": 1, "b": 1}, "m": [("k", {"a": 1, "b": 1})]}
    write(target(tmp_path), pa.Table.from_pylist([{"n": n, **values} for n in (1, 2, 3)], schema))
    table = target(tmp_path, key="n", delete="gone")
    less = pa.struct([("b", INT)])
    batch = pa.schema([("s", less), ("m", pa.map_(pa.string(), less)), ("n", INT), ("gone", pa.bool_())])
    values = {"s": {"b": 2}, "m": [("k", {"b": 2})]}
    rows = [{"n": 1, **values}, {"n": 2, "gone": True}, {"n": 4, **values}]
    assert merge_of(table, batch, 1).merge_here(table.open(), pa.Table.from_pylist(rows, batch))
    changed = {"more": None, "s": {"a": None, "b": 2}, "m": [("k", {"a": None, "b": 2})]}
    kept = {"more": 1, "s": {"a": 1, "b": 1}, "m": [("k", {"a": 1, "b": 1})]}
    found = {row.pop("n"): row for row in table.rows()}
    assert found == {1: changed, 3: kept, 4: changed}
    assert table.mark() == 1


def test_a_few_rows_go_into_an_iceberg_table_whose_columns_take_no_null(tmp_path: Path) -> None:
    """As those of other engines do, and those of their keys have to."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import IntegerType, NestedField, StringType, StructType

    table = IcebergTarget(tmp_path, key="n", delete="gone")
    inner = StructType(NestedField(4, "a", StringType(), required=True))
    columns = (
        NestedField(1, "n", IntegerType(), required=True),
        NestedField(2, "s", StringType(), required=True),
        NestedField(3, "in", inner, required=False),
    )
    catalog = lake_iceberg.open_catalog(table.sink)
    catalog.create_namespace("a")
    catalog.create_table(table.sink.table, Schema(*columns))
    given = pa.schema(
        [("n", INT), ("s", pa.string()), ("in", pa.struct([("a", pa.string())])), ("gone", pa.bool_())]
    )
    rows = [{"n": 1, "s": "x", "in": {"a": "y"}}, {"n": 2, "s": "x", "in": None}]
    assert merge_of(table, given, 0).merge_here(table.open(), pa.Table.from_pylist(rows, given))
    rows = [{"n": 1, "s": "z", "in": None}, {"n": 2, "gone": True}]  # whose other columns are of no concern
    assert merge_of(table, given, 1).merge_here(table.open(), pa.Table.from_pylist(rows, given))
    assert table.rows() == [{"n": 1, "s": "z", "in": None}]
    with pytest.raises(TableMismatchError, match="'s' of the table takes no null"):
        merge_of(table, given, 2).merge_here(table.open(), pa.Table.from_pylist([{"n": 3}], given))


@TARGETS
def test_dates_that_python_has_not_are_merged_and_stay(target: Any, tmp_path: Path) -> None:
    """What `deltalake` writes has bounds of them, and so has what other engines write."""
    given = pa.schema([("n", INT), ("d", pa.date32()), ("gone", pa.bool_())])

    def rows(number: int, day: int) -> pa.Table:
        days = pa.array([day], INT).cast(pa.date32())
        return pa.table([pa.array([number], INT), days, pa.array([None], pa.bool_())], schema=given)

    table = target(tmp_path, key="n", delete="gone")
    write(target(tmp_path), rows(0, 0).drop_columns(["gone"]))
    if target is DeltaTarget:
        merge_of(table, given, 1).merge_here(table.open(), rows(1, 7_000_000))
    else:
        write(target(tmp_path), rows(1, 7_000_000).drop_columns(["gone"]), 1)
        schema = table.open().schema()
        assert lake_iceberg._value(schema.find_type("d"), 7_000_000) is None
    merging = merge_of(table, given, 2)
    assert merging.is_small(table.open())
    assert merging.merge_here(table.open(), rows(0, 1))
    assert len(merging.files(table.open())) == 2
    read: Any = lake_delta.read_table if target is DeltaTarget else lake_iceberg.read_table
    found = read(table.sink).sort_by("n")
    assert found.column("d").cast(INT).to_pylist() == [1, 7_000_000]


def merge_of(target: Any, rows: pa.Schema, batch: int) -> Any:
    wanted = rows.remove(rows.get_field_index("gone"))
    if isinstance(target, DeltaTarget):
        return lake_delta._DeltaMerge(target.sink, wanted, "ottla-q", batch, {}, "q")
    return lake_iceberg._IcebergMerge(target.sink, wanted, "q", batch, {})


def test_a_condition_that_came_between_files_and_commit_is_heeded(tmp_path: Path) -> None:
    table = DeltaTarget(tmp_path)
    made = table.prepare(numbers().schema)
    job = table.job(made)
    written = write_rows(job, "0-0", numbers(-1).to_batches())
    table.open().alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(RuntimeError, match="is tried again"):
        table.commit(made, numbers(-1), written, job, 0, "append")
    assert table.rows() == []
    assert parquet_files(tmp_path) == set()


FAR = 1_700_000_000_000 * 1_000_000  # milliseconds taken for seconds: the year 55840


@TARGETS
def test_times_that_python_has_not_are_stored_like_others(target: Any, tmp_path: Path) -> None:
    rows = pa.table(
        {
            "n": pa.array([1, 2], INT),
            "t": pa.array([FAR, -FAR], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "d": pa.array([7_000_000, 0], INT).cast(pa.date32()),
        }
    )
    table = target(tmp_path)
    write(table, rows)
    read = lake_delta.read_table if target is DeltaTarget else lake_iceberg.read_table
    found = read(table.sink).sort_by("n")
    assert found.column("t").cast(pa.int64()).to_pylist() == [FAR, -FAR]
    assert found.column("d").cast(INT).to_pylist() == [7_000_000, 0]
    if target is DeltaTarget:
        (file,) = lake_delta.active_files(table.open())
        assert (file["least"], file["nulls"]) == ({"n": 1}, {"n": 0, "t": 0, "d": 0})


def test_times_of_any_year_are_read_from_files_as_spark_writes_them(tmp_path: Path) -> None:
    times = [datetime(9999, 12, 31, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC), NOON, None]
    rows = pa.table({"n": numbers(1, 2, 3, 4)["n"], "at": pa.array(times, pa.timestamp("us", "UTC"))})
    pq.write_table(rows, tmp_path / "spark.parquet", use_deprecated_int96_timestamps=True)
    store = lake_delta.DeltaStore(str(tmp_path), rows.schema)
    told = json.dumps({"path": "spark.parquet", "partition": {}})
    assert pa.Table.from_batches(store.read(told)).to_pylist() == rows.to_pylist()


@TARGETS
def test_a_partition_of_such_a_time_is_one_line(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path, partition_by="t")
    rows = pa.table({"t": pa.array([FAR], pa.int64()).cast(pa.timestamp("us", "UTC")), "n": [1]})
    with pytest.raises(
        TableMismatchError, match="a value in t that the table cannot be partitioned by"
    ) as caught:
        write(table, rows)
    assert "\n" not in str(caught.value)
    if target is IcebergTarget:
        by_day = target(tmp_path / "by_day", partition_by="day(t)")
        store = by_day.job(by_day.prepare(rows.schema)).store
        with pytest.raises(TableMismatchError, match="a value in t that the table cannot be partitioned by"):
            next(key_task(store, {})(iter(rows.to_batches())))


@TARGETS
def test_years_of_few_digits_are_written_with_all(target: Any, tmp_path: Path) -> None:
    zero = datetime(1, 1, 1, tzinfo=UTC)  # what some languages have for no time at all
    rows = pa.table(
        {"t": pa.array([zero], pa.timestamp("us", "UTC")), "u": pa.array([zero], pa.timestamp("us", "UTC"))}
    )
    table = target(tmp_path, partition_by="t")
    write(table, rows)
    assert table.rows() == [{"t": zero, "u": zero}]
    if target is DeltaTarget:
        (file,) = lake_delta.active_files(table.open())
        assert (file["partition"]["t"], file["least"]["u"]) == ("0001-01-01T00:00:00.000000Z", zero)


def test_bytes_that_a_delta_table_is_partitioned_by_come_back_as_they_were(tmp_path: Path) -> None:
    table = DeltaTarget(tmp_path, partition_by="b")
    rows = pa.table({"n": numbers(1, 2, 3)["n"], "b": pa.array([b"\x00z", "ž".encode(), None], pa.binary())})
    write(table, rows)
    assert table.rows() == sorted(rows.to_pylist(), key=str)
    store = table.job(table.open()).store
    for one in lake_delta.active_files(table.open()):
        (batch,) = store.read(json.dumps({"path": one["path"], "partition": one["partition"]}))
        assert batch.to_pylist()[0] in rows.to_pylist()
    wrong = pa.table({"n": numbers(4)["n"], "b": pa.array([b"\xff"], pa.binary())})
    with pytest.raises(TableMismatchError, match=r"has a value in b that .* bytes, in Delta, are UTF-8"):
        write(table, wrong, 1)


@TARGETS
def test_a_partition_of_a_long_text_has_a_path_all_the_same(target: Any, tmp_path: Path) -> None:
    texts = ["ü" * 400, "ü" * 399 + "x", "/" * 300]
    table = target(tmp_path, partition_by="s")
    write(table, pa.table({"s": texts, "n": pa.array([1, 2, 3], INT)}))
    assert {row["s"] for row in table.rows()} == set(texts)
    assert len({file.parent for file in tmp_path.rglob("ottla-*.parquet")}) == 3


@TARGETS
def test_a_table_of_nothing_but_partitions_loses_no_row(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path, partition_by=["n"])
    if target is IcebergTarget:
        write(table, numbers(1, 1, 2))
        assert [row["n"] for row in table.rows()] == [1, 1, 2]
        return
    with pytest.raises(TableMismatchError, match="would be partitioned by all of its columns"):
        write(table, numbers(1, 1, 2))
    from deltalake import DeltaTable

    made: Any = DeltaTable
    made.create(table.sink.path, numbers().schema, partition_by=["n"])
    with pytest.raises(TableMismatchError, match="would be partitioned by all of its columns"):
        write(table, numbers(1, 1, 2))


@TARGETS
def test_small_files_become_one_and_no_row_changes(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path, partition_by="p")
    for batch in range(3):
        write(table, pa.table({"p": ["x", "y"], "n": pa.array([batch, batch], INT)}), batch)
    before, opened = table.rows(), table.open()
    job = table.job(opened)
    if target is DeltaTarget:
        files = lake_delta.active_files(opened)
        told = [json.dumps({"path": one["path"], "partition": one["partition"]}) for one in files]
        small = [
            compaction.Small(n, one["size"], tuple(one["partition"].values())) for n, one in enumerate(files)
        ]
    else:
        scanned = [one.file for one in lake_iceberg._files(opened)]
        told = [lake_iceberg.told(one) for one in scanned]
        small = [
            compaction.Small(n, one.file_size_in_bytes, (one.partition[0],)) for n, one in enumerate(scanned)
        ]
    # Of Delta's files the partition columns are no part.
    assert [batch.to_pydict() for batch in job.store.read(told[0], ["p"])] in ([{"p": ["x"]}], [{"p": ["y"]}])
    bins = compaction.plan(small, job.target_bytes)
    assert sorted(map(len, bins)) == [3, 3]
    written = compaction.rewrite_bins(
        job, "0-0", iter((n, told[file]) for n, one in enumerate(bins) for file in one)
    )
    assert [one.rows for one in written] == [3, 3]
    compaction.check_rows("t", 6, written, job)
    if target is DeltaTarget:
        actions = [
            *lake_delta.add_actions(written, data_change=False),
            *lake_delta.remove_actions(files, data_change=False),
        ]
        opened.create_write_transaction(actions, "append", opened.schema(), ["p"])
    else:
        lake_iceberg._replace(opened, scanned, [lake_iceberg._data_file(one) for one in written], {}, {})
    assert table.rows() == before
    assert len(table.named()) == 2
    assert table.mark() == 2
    with pytest.raises(RuntimeError, match="made 6 rows of 7: left as it was"):
        compaction.check_rows("t", 7, written, job)


# -- pure -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("country", Part("country")),
        ("day(at)", Part("at", "day")),
        ("Bucket( 16 , id )", Part("id", "bucket", 16)),
        ("truncate(4, name)", Part("name", "truncate", 4)),
        ("identity(x)", Part("x")),
    ],
)
def test_parts(text: str, part: Part) -> None:
    assert parse_part(text) == part
    assert parse_part(str(part)) == part


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dya(at)", "there is no transform 'dya'.*did you mean 'day'"),
        ("bucket(id)", r"bucket takes a number and a column: bucket\(16, id\)"),
        ("bucket(0, id)", "takes a number"),
        ("day(3, at)", "takes a column and nothing else"),
    ],
)
def test_parts_that_are_none(text: str, words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        parse_part(text)


def test_sizes_times_and_orders() -> None:
    assert [parse_size(one) for one in ("128MB", "1 GiB", 4096, "1.5kb")] == [128 << 20, 1 << 30, 4096, 1536]
    assert [parse_every(one) for one in ("1 hour", "90s", "2 days")] == [3600, 90, 172800]
    assert [parse_sort(one) for one in ("a", "a desc", "a ASC")] == [("a", False), ("a", True), ("a", False)]
    for wrong in ("", "0", "100 TB", "-1", "big"):
        with pytest.raises(DeclarationError, match="is no size of files"):
            parse_size(wrong)
    for never in ("hourly", "0 hours", ""):
        with pytest.raises(DeclarationError, match="is no interval"):
            parse_every(never)


def test_where_partitions_change_in_rows() -> None:
    rows = pa.table(
        {"a": ["x", "x", None, None, "y"], "b": [1.0, float("nan"), float("nan"), float("nan"), 2.0]}
    )
    assert list(runs(rows, ["a"])) == [(0, 2), (2, 2), (4, 1)]
    assert list(runs(rows, ["a", "b"])) == [(0, 1), (1, 1), (2, 2), (4, 1)]
    assert list(runs(rows, [])) == [(0, 5)]
    assert list(runs(rows.slice(0, 0), ["a"])) == []


@given(st.lists(st.sampled_from([None, "a", "b"]), max_size=20))
def test_runs_cover_all_rows_once(values: list[str | None]) -> None:
    found = list(runs(pa.table({"a": pa.array(values, pa.string())}), ["a"]))
    assert [n for start, length in found for n in range(start, start + length)] == list(range(len(values)))
    assert all(len({*values[start : start + length]}) == 1 for start, length in found)


def test_a_partition_is_spread_over_as_many_tasks_as_it_had_full_files() -> None:
    files = [Written("a", 100, 1, "x"), Written("b", 150, 1, "x"), Written("c", 20, 1, "y")]
    assert width_for(files, lambda one: one.info, 100) == 2
    assert width_for(files, lambda one: one.info, 1000) == 1
    assert width_for([], lambda one: one.info, 100) == 1


sizes = st.lists(st.tuples(st.integers(1, 200), st.sampled_from("xyz")), max_size=30)


@given(sizes)
def test_compaction_takes_small_files_of_one_partition_together_each_once(
    files: list[tuple[int, str]],
) -> None:
    small = [compaction.Small(n, size, (part,)) for n, (size, part) in enumerate(files)]
    bins = compaction.plan(small, 100)
    taken = [n for one in bins for n in one]
    assert len(taken) == len(set(taken))
    for one in bins:
        assert len(one) >= 2
        assert len({files[n][1] for n in one}) == 1
        assert all(files[n][0] < 75 for n in one)
        assert sum(files[n][0] for n in one) <= 100


def test_when_to_compact() -> None:
    schedule = compaction.Schedule("1 hour")
    assert schedule.is_due(10_000, None)
    assert not schedule.is_due(10_001, None)
    assert not schedule.is_due(20_000, 19_000)  # another run did
    assert schedule.is_due(22_601, 19_000)
    assert compaction.Schedule("1 hour").is_due(5_000, 9_000)  # a clock that was set back
    assert not compaction.Schedule(None).is_due(1, None)


def test_files_that_cannot_hold_a_key_are_left_out() -> None:
    def file(path: str, **bounds: tuple[Any, Any]) -> Candidate:
        return Candidate(path, "", bounds)

    files = [
        file("low", id=(1, 9)),
        file("high", id=(20, 30)),
        file("unknown"),
        file("other type", id=("1", "9")),
        file("both", id=(5, 25), day=(date(2026, 1, 1), date(2026, 1, 2))),
    ]
    keys: dict[str, tuple[Any, Any] | None] = {"id": (5, 10)}
    assert [one.path for one in candidates(files, keys)] == ["low", "unknown", "other type", "both"]
    keys["day"] = (date(2026, 2, 1), date(2026, 2, 2))
    assert [one.path for one in candidates(files, keys)] == ["low", "unknown", "other type"]
    assert len(candidates(files, {"id": None})) == 5  # a null among the keys
    moment = datetime(2026, 1, 1)
    assert candidates([file("x", id=(moment, moment))], {"id": (datetime(2027, 1, 1),) * 2})  # never by times


@pytest.mark.parametrize(
    ("mark", "batch", "expected"),
    [(None, 0, False), (0, 0, True), (3, 4, False), (3, 9, False), (4, 4, True)],
)
def test_whether_a_batch_is_there(mark: int | None, batch: int, expected: bool) -> None:
    assert is_written("table", mark, batch) is expected


def test_a_table_that_does_not_know_its_query_and_one_that_knows_more() -> None:
    with pytest.raises(
        TableMismatchError, match=r"does not know this query, which has written 7 batches.*adopt=True"
    ):
        is_written("table", None, 7)
    assert not is_written("table", None, 7, adopt=True)
    with pytest.raises(TableMismatchError, match="has batch 9 of this query, which is at batch 7"):
        is_written("table", 9, 7, adopt=True)


def test_what_fits() -> None:
    table = pa.schema([("n", pa.int64()), pa.field("id", INT, nullable=False), ("l", pa.list_(INT))])
    rows = pa.schema([("n", INT), ("id", INT), ("l", pa.list_(pa.int8()))])
    assert not fitted("t", table, rows, additive=False).changes
    assert fitted("t", table, rows.append(pa.field("z", INT)), additive=True).added == ("z",)
    for wrong, words in (
        (rows.remove(1), "column 'id' of the table takes no null"),
        (rows.append(pa.field("Z", INT)).append(pa.field("N", INT)), "column 'N' is 'n' in the table"),
        (
            rows.set(2, pa.field("l", pa.list_(pa.string()))),
            "column 'l.element' is int32 in the table and string",
        ),
        (
            rows.set(0, pa.field("n", pa.float64())),
            "column 'n' is int64 in the table and double in the result",
        ),
    ):
        with pytest.raises(TableMismatchError, match=words):
            fitted("t", table, wrong, additive=True)
    with pytest.raises(TableMismatchError, match="takes no null, and a row of the result has one"):
        fit_rows(pa.table({"id": pa.array([None], INT)}), pa.schema([pa.field("id", INT, nullable=False)]))


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (True, pa.bool_(), "true"),
        (-3, pa.int64(), "-3"),
        (date(2026, 1, 2), pa.date32(), "2026-01-02"),
        (NOON, pa.timestamp("us", "UTC"), "2026-01-01T12:00:00.000000Z"),
        (datetime(2026, 1, 1, 12), pa.timestamp("us"), "2026-01-01 12:00:00.000000"),
        (Decimal("1.50"), pa.decimal128(5, 2), "1.50"),
        ("a/b", pa.string(), "a/b"),
        (b"\xc3\xbf\x00", pa.binary(), "\xff\x00"),
        (None, pa.int64(), None),
    ],
)
def test_partition_values_as_delta_writes_them(value: Any, kind: Any, text: str | None) -> None:
    assert delta_text(value) == text
    assert delta_value(text, kind) == value


def test_paths_of_partitions() -> None:
    assert hive_path(["a", "b"], ["x/y=%", None], "f") == "a=x%2Fy%3D%25/b=__HIVE_DEFAULT_PARTITION__/f"
    long = hive_path(["a"], ["ž" * 1000], "f")
    assert len(long.encode()) < 255
    assert long != hive_path(["a"], ["ž" * 1001], "f")


def statistics(tmp_path: Path, rows: pa.Table, columns: int = 32) -> dict[str, Any]:
    file = tmp_path / "f.parquet"
    pq.write_table(rows, file, row_group_size=2)
    with_nan = frozenset({"x"}) if "x" in rows.column_names else frozenset()
    return delta_statistics(rows.schema, pq.read_metadata(file), with_nan, columns)


def test_statistics_of_delta_are_bounds(tmp_path: Path) -> None:
    found = statistics(tmp_path, EVERYTHING)
    assert found["numRecords"] == 3
    assert found["nullCount"] == {
        "i": 1,
        "s": 1,
        "b": 1,
        "t": 1,
        "d": 1,
        "x": 1,
        "m": 1,
        "st": {"a": 2},
        "ok": 1,
    }
    assert found["minValues"] == {
        "i": 1,
        "s": "a",
        "t": "2026-01-01T12:00:00.000000Z",
        "d": "1969-12-31",
        "m": -3.5,
        "st": {"a": 1},
    }
    assert "x" not in found["maxValues"]  # NaN is larger than all, and Parquet leaves it out
    assert statistics(tmp_path, EVERYTHING, 1)["minValues"] == {"i": 1}


def test_what_is_no_number_in_a_struct_is_found_by_who_asks_for_larger_ones(tmp_path: Path) -> None:
    from deltalake import QueryBuilder

    table, nan = DeltaTarget(tmp_path), float("nan")
    kind = pa.struct([("deep", pa.struct([("x", pa.float64())])), ("y", pa.float64())])
    rows = [{"deep": {"x": 1.0}, "y": 1.0}, {"deep": {"x": nan}, "y": 2.0}, {"deep": None, "y": None}]
    (one,) = write(table, pa.table({"n": pa.array([1, 2, 3], INT), "s": pa.array(rows, kind)}))
    assert json.loads(one.info)["stats"]["maxValues"] == {"n": 3, "s": {"y": 2.0}}
    asked = QueryBuilder().register("t", table.open()).execute("select n from t where s['deep']['x'] > 5")
    assert pa.table(asked).to_pylist() == [{"n": 2}]


@given(st.lists(st.text(max_size=50), min_size=1, max_size=5))
def test_text_is_between_its_bounds(values: list[str]) -> None:
    import io

    rows, file = pa.table({"s": values}), io.BytesIO()
    pq.write_table(rows, file)
    found = delta_statistics(rows.schema, pq.read_metadata(file), frozenset(), 32)
    for value in values:
        if "s" in found["minValues"]:
            assert found["minValues"]["s"] <= value <= found["maxValues"]["s"]


@pytest.mark.parametrize(
    ("writer", "configuration", "schema", "merging", "expected"),
    [
        ([], {}, "{}", True, []),
        (["appendOnly", "invariants", "checkConstraints"], {}, "{}", False, []),
        (["checkConstraints"], {"delta.constraints.c": "n > 0"}, "{}", False, ["delta.constraints.c"]),
        (["columnMapping"], {"delta.columnMapping.mode": "name"}, "{}", False, ["columnMapping"]),
        (["deletionVectors"], {}, "{}", False, []),
        (["deletionVectors"], {}, "{}", True, ["deletionVectors"]),
        (["rowTracking"], {}, "{}", False, ["rowTracking"]),
        ([], {"delta.enableChangeDataFeed": "true"}, "{}", False, ["changeDataFeed"]),
        ([], {}, '{"metadata":{"delta.generationExpression":"x"}}', False, ["delta.generationExpression"]),
    ],
)
def test_features_that_files_would_not_respect(
    writer: list[str], configuration: dict[str, str], schema: str, merging: bool, expected: list[str]
) -> None:
    assert lake_delta.obstacles(writer, [], configuration, schema, merging=merging) == expected
