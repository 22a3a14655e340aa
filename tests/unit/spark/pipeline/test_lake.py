"""Batches into Delta and Iceberg tables, without Spark: once each, upserted by key, whatever the order of arrival."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.exceptions import CommitFailedException

from ottla.spark.pipeline.declare import Delta, Iceberg, delta, iceberg
from ottla.spark.pipeline.lake import delta as lake_delta
from ottla.spark.pipeline.lake import iceberg as lake_iceberg
from ottla.spark.pipeline.lake.common import (
    GIVEN_UP,
    TableMismatchError,
    as_stored,
    is_written,
    split_deleted,
)

SCHEMA = pa.schema([("id", pa.int32()), ("v", pa.int32()), ("name", pa.string()), ("gone", pa.bool_())])


class DeltaTarget:
    """A Delta table and one query that writes to it."""

    def __init__(self, path: Path, **more: Any) -> None:
        self.sink: Delta = delta(str(path / "delta"), **more)

    def write(self, rows: pa.Table, batch: int, mode: str = "append", query: str = "q") -> None:
        table = lake_delta._open(self.sink)
        if not lake_delta.already_written(table, query, batch):
            lake_delta.write(self.sink, mode, table, rows, query, batch)

    def give_up(self, query: str = "q") -> bool:
        return lake_delta.give_up(self.sink, query)

    def mark(self, query: str = "q") -> int | None:
        table = lake_delta._open(self.sink)
        return None if table is None else table.transaction_version(lake_delta.APP_PREFIX + query)

    def rows(self) -> list[dict[str, Any]]:
        return sorted(lake_delta.read_table(self.sink).to_pylist(), key=str)


class IcebergTarget:
    """An Iceberg table and one query that writes to it."""

    def __init__(self, path: Path, **more: Any) -> None:
        self.sink: Iceberg = iceberg("a.rows", warehouse=str(path / "iceberg"), **more)

    def write(self, rows: pa.Table, batch: int, mode: str = "append", query: str = "q") -> None:
        catalog = lake_iceberg.open_catalog(self.sink)
        table = lake_iceberg._open(catalog, self.sink) or self._made(catalog, rows)
        lake_iceberg.write(self.sink, mode, table, rows, query, batch)

    def _made(self, catalog: Any, rows: pa.Table) -> Any:
        kept, _ = split_deleted(rows, self.sink.delete)
        return lake_iceberg._create(catalog, self.sink, kept.schema)

    def give_up(self, query: str = "q") -> bool:
        return lake_iceberg.give_up(self.sink, query)

    def mark(self, query: str = "q") -> int | None:
        table = lake_iceberg._open(lake_iceberg.open_catalog(self.sink), self.sink)
        return None if table is None else lake_iceberg.mark_of(table, query)

    def rows(self) -> list[dict[str, Any]]:
        return sorted(lake_iceberg.read_table(self.sink).to_pylist(), key=str)


TARGETS = pytest.mark.parametrize("target", [DeltaTarget, IcebergTarget])


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int32())})


@TARGETS
def test_a_batch_is_written_once_by_its_query_and_number(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path)
    for batch in (0, 1, 1, 0):
        table.write(numbers(batch), batch)
    table.write(numbers(7), 0, query="another")
    assert [row["n"] for row in table.rows()] == [0, 1, 7]


@TARGETS
def test_an_empty_batch_makes_the_table_and_no_rows(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path)
    table.write(numbers(), 0)
    assert table.rows() == []
    table.write(numbers(), 1)
    table.write(numbers(5), 2)
    assert [row["n"] for row in table.rows()] == [5]


@TARGETS
def test_complete_replaces_all(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path)
    table.write(numbers(1, 2), 0, "complete")
    table.write(numbers(3), 1, "complete")
    assert [row["n"] for row in table.rows()] == [3]


@TARGETS
def test_new_columns_are_added_where_that_is_wanted(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path, evolve=True)
    table.write(numbers(1), 0)
    table.write(pa.table({"n": pa.array([2], pa.int32()), "s": pa.array(["x"])}), 1)
    assert table.rows() == [{"n": 1, "s": None}, {"n": 2, "s": "x"}]


@TARGETS
def test_keys_of_several_columns(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path, key=("a", "b"), order_by="v")
    row = {"a": 1, "b": "x", "v": 1}
    table.write(pa.Table.from_pylist([row, {**row, "b": "y"}]), 0)
    table.write(pa.Table.from_pylist([{**row, "v": 2}, {**row, "a": 2}]), 1)
    assert table.rows() == sorted([{**row, "v": 2}, {**row, "b": "y"}, {**row, "a": 2}], key=str)


changes = st.lists(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 9), st.booleans()),
        max_size=4,
        unique_by=lambda change: change[0],
    ),
    min_size=1,
    max_size=3,
)


@TARGETS
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(batches=changes)
def test_upserts_are_what_a_dictionary_would_hold(
    target: Any, tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[int, int, bool]]]
) -> None:
    table = target(tmp_path_factory.mktemp("lake"), key="id", order_by="v", delete="gone")
    expected: dict[int, int] = {}
    for number, batch in enumerate(batches):
        rows = [{"id": id_, "v": v, "name": f"{id_}-{v}", "gone": gone} for id_, v, gone in batch]
        for _ in range(2):
            table.write(pa.Table.from_pylist(rows, SCHEMA), number)
        for id_, v, gone in batch:
            if v >= expected.get(id_, v):
                expected.pop(id_, None)
                if not gone:
                    expected[id_] = v
    assert {row["id"]: row["v"] for row in table.rows()} == expected
    assert len(table.rows()) == len(expected)
    assert all("gone" not in row for row in table.rows())


def test_iceberg_tries_again_when_another_writer_was_faster(tmp_path: Path) -> None:
    target = IcebergTarget(tmp_path)
    target.write(numbers(0), 0)
    catalog = lake_iceberg.open_catalog(target.sink)
    stale = catalog.load_table(target.sink.table)
    target.write(numbers(1), 0, query="faster")
    lake_iceberg.write(target.sink, "append", stale, numbers(2), "q", 1)
    assert [row["n"] for row in target.rows()] == [0, 1, 2]
    stale = catalog.load_table(target.sink.table)
    target.write(numbers(3), 2)
    lake_iceberg.write(target.sink, "append", stale, numbers(3), "q", 2)  # a zombie of the same query
    assert [row["n"] for row in target.rows()] == [0, 1, 2, 3]
    assert lake_iceberg.RETRIES not in catalog.load_table(target.sink.table).properties


def test_a_zombie_of_the_same_query_does_not_write_a_batch_again_to_delta(tmp_path: Path) -> None:
    target = DeltaTarget(tmp_path)
    target.write(numbers(0), 0)
    stale = lake_delta._open(target.sink)
    target.write(numbers(1), 1)
    with pytest.raises(Exception, match=r"(?i)conflict|transaction"):
        lake_delta.write(target.sink, "append", stale, numbers(1), "q", 1)
    assert [row["n"] for row in target.rows()] == [0, 1]


@TARGETS
def test_a_query_that_was_given_up_writes_nothing_more_and_others_do(target: Any, tmp_path: Path) -> None:
    table = target(tmp_path)
    assert not table.give_up()  # there is none
    table.write(numbers(0), 0)
    assert table.give_up()
    assert table.give_up()
    with pytest.raises(TableMismatchError, match=r"was given up .*takes nothing of it any more"):
        is_written("table", table.mark(), 1)
    assert table.mark("r") is None
    table.write(numbers(1), 0, query="r")
    assert [row["n"] for row in table.rows()] == [0, 1]


def test_a_commit_to_delta_that_looked_before_its_query_was_given_up_is_a_conflict(tmp_path: Path) -> None:
    from deltalake import CommitProperties, Transaction

    target, app = DeltaTarget(tmp_path), lake_delta.APP_PREFIX + "q"
    target.write(numbers(0), 0, query=app)
    stale = lake_delta._open(target.sink)
    assert stale is not None
    target.give_up()
    with pytest.raises(Exception, match=r"(?i)transaction") as caught:
        lake_delta._transact(target.sink, stale, [], CommitProperties(app_transactions=[Transaction(app, 1)]))
    assert lake_delta._is_conflict(caught.value)  # so that it looks again, and finds out


@pytest.mark.parametrize("had_rows", [True, False])
@pytest.mark.parametrize("rows", [numbers(1), numbers()])
def test_a_commit_to_iceberg_that_looked_before_its_query_was_given_up_writes_nothing(
    had_rows: bool, rows: pa.Table, tmp_path: Path
) -> None:
    target = IcebergTarget(tmp_path)
    target.write(numbers(0) if had_rows else numbers(), 0)
    catalog = lake_iceberg.open_catalog(target.sink)
    by_pyiceberg, by_tasks = (catalog.load_table(target.sink.table) for _ in range(2))
    target.give_up()
    lake_iceberg.write(target.sink, "append", by_pyiceberg, rows, "q", 1)  # looks again, and leaves it
    with pytest.raises(CommitFailedException):  # so that it looks again, and finds out
        lake_iceberg._put(by_tasks, [], [], "q", 1)
    assert target.mark() == GIVEN_UP
    assert [row["n"] for row in target.rows()] == ([0] if had_rows else [])


def test_types_are_stored_plainly() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    kind = pa.struct([("at", pa.timestamp("us", "Europe/Prague"))])
    table = pa.table(
        {
            "s": pa.array(["x"], pa.string_view()),
            "in": pa.array([{"at": noon}], kind),
            "l": pa.array([[noon]], pa.list_(pa.timestamp("us", "Europe/Prague"))),
            "m": pa.array([[("k", noon)]], pa.map_(pa.string(), pa.timestamp("us", "Europe/Prague"))),
        }
    )
    stored = as_stored(table)
    assert stored.schema.field("s").type == pa.string()
    assert "Europe" not in str(stored.schema)
    assert stored.to_pylist()[0]["in"] == {"at": noon}


def test_rows_to_delete_are_told_apart() -> None:
    rows = pa.table({"id": [1, 2, 3], "gone": [True, None, False]})
    kept, gone = split_deleted(rows, "gone")
    assert (kept.to_pylist(), gone.to_pylist()) == ([{"id": 2}, {"id": 3}], [{"id": 1}])
    kept, gone = split_deleted(rows, None)
    assert (kept, gone.num_rows) == (rows, 0)
