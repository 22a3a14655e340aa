"""Tables of a lake on a real Spark: files by tasks, merges and compactions there, tables that others changed."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.support.pipelines import pipeline_of
from tests.support.spark_world import Broker

from ottla.spark.pipeline.declare import delta, iceberg
from ottla.spark.pipeline.lake import delta as lake_delta
from ottla.spark.pipeline.lake import iceberg as lake_iceberg
from ottla.spark.pipeline.lake import merge

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]

KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])
PEOPLE = "id int, v int, name string, gone boolean"


class Lake:
    """A table and the writer of a query, called as Spark calls it."""

    def __init__(self, kind: str, path: Path, mode: str = "append", query: str = "q", **more: Any) -> None:
        self.kind = kind
        self.path = path
        self.writer: Any
        if kind == "delta":
            self.sink: Any = delta(str(path), **more)
            self.writer = lake_delta.DeltaWriter(self.sink, mode, "nowhere")
        else:
            self.sink = iceberg("a.rows", warehouse=str(path), **more)
            self.writer = lake_iceberg.IcebergWriter(self.sink, mode, "nowhere")
        self.writer._query_id._known = query

    def __call__(self, batch: Any, number: int) -> None:
        self.writer(batch, number)

    def rows(self) -> list[dict[str, Any]]:
        read: Any = lake_delta.read_table if self.kind == "delta" else lake_iceberg.read_table
        return sorted(read(self.sink).to_pylist(), key=str)

    def files(self) -> set[str]:
        if self.kind == "delta":
            table = lake_delta._open(self.sink)
            assert table is not None
            return {str(self.path / one["path"]) for one in lake_delta.active_files(table)}
        opened = lake_iceberg._open(lake_iceberg.open_catalog(self.sink), self.sink)
        assert opened is not None
        return {one.file.file_path.removeprefix("file://") for one in lake_iceberg._files(opened)}

    def compact(self, spark: Any) -> int:
        if self.kind == "delta":
            return lake_delta.compact(self.sink, spark, "q", self.writer._sort_by(), {})
        return lake_iceberg.compact(self.sink, spark, "q", {})


def people(spark: Any, rows: list[tuple[Any, ...]]) -> Any:
    return spark.createDataFrame(rows, PEOPLE)


@KINDS
def test_files_are_partitioned_and_sorted_and_everybody_reads_them(
    spark: Any, tmp_path: Path, kind: str
) -> None:
    from pyspark.sql import functions as F

    by = ["k"] if kind == "delta" else ["k", "bucket(2, n)", "day(at)"]
    table = Lake(kind, tmp_path / "lake", partition_by=by, sort_by="n desc")
    batch = spark.range(600).select(
        F.col("id").alias("n"),
        (F.col("id") % 3).alias("k"),
        F.timestamp_seconds(F.col("id") * 300).alias("at"),
    )
    table(batch.repartition(3), 0)
    table(batch.repartition(3), 0)  # replayed
    table(batch.repartition(3), 1)
    assert sorted(row["n"] for row in table.rows()) == sorted([*range(600), *range(600)])
    files = table.files()
    partitions = {str(Path(file).parent) for file in files}
    assert len(files) == 2 * len(partitions)
    for file in files:
        numbers = pq.read_table(file, partitioning=None).column("n").to_pylist()
        assert numbers == sorted(numbers, reverse=True)
    own = spark.read.parquet(*files) if kind == "iceberg" else spark.read.parquet(str(tmp_path / "lake"))
    assert sorted(row.n for row in own.select("n").collect()) == sorted([*range(600), *range(600)])


@KINDS
@pytest.mark.parametrize("key", [None, "id"])
def test_what_a_table_is_laid_out_by_and_rows_lack_is_null(
    spark: Any, tmp_path: Path, kind: str, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "SMALL_TABLE_BYTES", -1)
    by = ["name"] if kind == "delta" else ["name", "bucket(2, v)"]
    Lake(kind, tmp_path / "lake", partition_by=by, sort_by="v desc", query="before")(
        spark.createDataFrame([(1, 1, "a")], "id int, v int, name string"), 0
    )
    Lake(kind, tmp_path / "lake", key=key)(spark.createDataFrame([(2,), (3,)], "id int"), 0)
    table = Lake(kind, tmp_path / "lake", key=key)
    assert table.rows() == [
        {"id": 1, "v": 1, "name": "a"},
        {"id": 2, "v": None, "name": None},
        {"id": 3, "v": None, "name": None},
    ]


@KINDS
def test_merges_in_the_executors_are_what_a_dictionary_would_hold(
    spark: Any, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "SMALL_TABLE_BYTES", -1)
    more = {"partition_by": "bucket(2, id)"} if kind == "iceberg" else {}
    table = Lake(kind, tmp_path / "lake", key="id", order_by="v", delete="gone", evolve="additive", **more)
    dice, expected = random.Random(3), dict[int, int]()
    for number in range(3):
        first = number * 50
        rows = [
            (n, dice.randint(1, 9), f"{n}", dice.random() < 0.2)
            for n in (*range(first, first + 60), *(dice.sample(range(first), 5) if first else ()))
        ]
        for _ in range(2 if number == 1 else 1):
            table(people(spark, rows), number)
        for id_, v, _, gone in rows:
            if v >= expected.get(id_, v):
                expected.pop(id_, None)
                if not gone:
                    expected[id_] = v
    found = table.rows()
    assert {row["id"]: row["v"] for row in found} == expected
    assert len(found) == len(expected)
    before = table.files()
    table(people(spark, [(10_000, 1, "far", None)]), 3)
    assert before < table.files()  # nothing was rewritten for a key that no file can hold
    table(people(spark, [(10_000, 2, "farther", None)]), 4)
    assert len(before - table.files()) == 0


@KINDS
def test_structs_in_maps_are_merged_by_the_names_of_their_fields(
    spark: Any, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "SMALL_TABLE_BYTES", -1)
    table = Lake(kind, tmp_path / "lake", key="id", mode="update")
    columns = "id int, m map<string,struct<a:int,b:int>>, l array<map<string,struct<a:int,b:int>>>"
    one = {"k": (1, 2)}
    table(spark.createDataFrame([(n, one, [one]) for n in (1, 2)], columns), 0)
    columns = "l array<map<string,struct<b:int>>>, m map<string,struct<b:int,a:int>>, id int"
    table(spark.createDataFrame([([{"k": (4,)}], {"k": (4, 3)}, n) for n in (2, 3)], columns), 1)
    old = {"m": [("k", {"a": 1, "b": 2})], "l": [[("k", {"a": 1, "b": 2})]]}
    new = {"m": [("k", {"a": 3, "b": 4})], "l": [[("k", {"a": None, "b": 4})]]}
    assert {row.pop("id"): row for row in table.rows()} == {1: old, 2: new, 3: new}


@pytest.mark.parametrize("small", [1, -1])
@KINDS
def test_rows_are_merged_by_keys_that_python_does_not_know(
    spark: Any, tmp_path: Path, kind: str, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No number at all, and a time beyond the year 9999: milliseconds that were taken for seconds."""
    monkeypatch.setattr(merge, "SMALL_TABLE_BYTES", merge.SMALL_TABLE_BYTES * small)
    table = Lake(kind, tmp_path / "lake", key=["x", "at", "day"], order_by="v")
    for number in range(3):
        batch = spark.sql(
            "select double('nan') x, timestamp_seconds(1700000000000) at, date_add(date'2026-01-01', 7000000) day, "
            f"{number} v union all select {number}, timestamp_seconds(0), date'2026-01-01', {number}"
        )
        table(batch, number)
    read: Any = lake_delta.read_table if kind == "delta" else lake_iceberg.read_table
    assert sorted(read(table.sink).column("v").to_pylist()) == [0, 1, 2, 2]


@KINDS
def test_a_merge_starts_again_when_another_writer_was_faster(
    spark: Any, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "SMALL_TABLE_BYTES", -1)
    table = Lake(kind, tmp_path / "lake", key="id", order_by="v")
    other = Lake(kind, tmp_path / "lake", query="other")
    columns = "id int, v int"
    table(spark.createDataFrame([(1, 1)], columns), 0)
    write, interrupted = merge.write_files, []

    def slow(*given: Any) -> Any:
        written = write(*given)
        if not interrupted:
            interrupted.append(True)
            other(spark.createDataFrame([(2, 5)], columns), 0)  # a row that the merge has not seen
        return written

    monkeypatch.setattr(merge, "write_files", slow)
    table(spark.createDataFrame([(1, 2), (2, 1)], columns), 1)
    assert table.rows() == [{"id": 1, "v": 2}, {"id": 2, "v": 5}]
    named = {Path(file).name for file in table.files()}
    left = {file.name for file in (tmp_path / "lake").rglob("ottla-q-1-*.parquet")}
    assert left <= named  # the files of the try that was in vain are gone


@KINDS
@pytest.mark.parametrize("sort_by", [None, "n desc"])
def test_compaction_changes_files_and_no_rows(
    spark: Any, tmp_path: Path, kind: str, sort_by: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Lake(kind, tmp_path / "lake", partition_by="k", sort_by=sort_by, compact="1 hour")
    batch = spark.createDataFrame([(n, n % 2) for n in range(10)], "n int, k int")
    for number in range(3):
        table(batch, number)
    before = table.rows()
    assert len(table.files()) == 6  # the first call looked, and found nothing to do
    table.writer._compaction._last_s = None
    table(batch.where("n < 0"), 3)
    assert len(table.files()) == 2
    assert table.rows() == before
    for file in table.files() if sort_by else ():
        numbers = pq.read_table(file, partitioning=None).column("n").to_pylist()
        assert numbers == sorted(numbers, reverse=True)
    again = Lake(kind, tmp_path / "lake", compact="1 hour")
    for number in (3, 4, 5):
        again(batch, number)
    assert (
        len(again.files()) == 8
    )  # batch 3 had no rows, so it is none of the table's; compacted within the hour
    assert table.compact(spark) == 8
    assert table.compact(spark) == 0
    again(batch, 5)
    assert len(again.rows()) == len(before) + 30


@KINDS
def test_a_table_that_somebody_else_changed_ends_the_stream_with_one_line_and_loses_nothing(
    spark: Any, broker: Broker, tmp_path: Path, kind: str
) -> None:
    from ottla.spark.pipeline import load
    from ottla.spark.pipeline.run.supervised import LASTING, sentence

    source, lake = broker.topic(), tmp_path / "lake"
    place = f"{str(lake)!r}" if kind == "delta" else f"'a.rows', warehouse={str(lake)!r}"
    text = f"""
        @pipeline.stream(out={kind}({place}))
        def copy(rows=topic({source!r}, schema="n int")):
            return rows
        """
    run = pipeline_of(tmp_path, text)
    broker.produce(source, ['{"n": 1}'])
    run(spark, broker)
    table = Lake(kind, lake)
    if kind == "delta":
        shutil.copytree(lake, tmp_path / "aside")
        shutil.rmtree(lake)
    else:
        lake_iceberg.open_catalog(table.sink).rename_table("a.rows", "a.aside")
    broker.produce(source, ['{"n": 2}'])
    (query,) = load(tmp_path / "p.py").start(spark, broker.bootstrap, tmp_path / "state", available_now=True)
    error = ended(query)
    assert "does not know this query, which has written 1 batches: it was made anew" in sentence(error)
    assert any(mark in str(error) for mark in LASTING)
    if kind == "delta":
        shutil.copytree(tmp_path / "aside", lake)
    else:
        lake_iceberg.open_catalog(table.sink).rename_table("a.aside", "a.rows")
    run(spark, broker)
    assert [row["n"] for row in table.rows()] == [1, 2]


def ended(query: Any) -> Any:
    with pytest.raises(Exception, match="TableMismatchError") as caught:
        query.awaitTermination(300)
    return caught.value


def test_a_stream_of_a_pipeline_with_all_its_parameters(spark: Any, broker: Broker, tmp_path: Path) -> None:
    source, lake = broker.topic(partitions=2), tmp_path / "lake"
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out=iceberg("a.rows", warehouse={str(lake)!r}, partition_by=["hour(at)", "bucket(2, n)"],
                                     sort_by=["n"], evolve="additive", compact="1 hour", target_file_size="1MB"))
        def copy(rows=topic({source!r}, schema="n int, at timestamp")):
            return rows
        """,
    )
    for batch in range(2):
        values = [{"n": batch * 10 + n, "at": f"2026-01-01T{12 + n % 2}:00:00Z"} for n in range(10)]
        broker.produce(source, map(json.dumps, values))
        run(spark, broker)
    table = Lake("iceberg", lake)
    assert sorted(row["n"] for row in table.rows()) == list(range(20))
