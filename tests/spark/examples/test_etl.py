"""The ETL pipeline on a real Spark: what is clean in the lake by day, what is not in its two topics, to the row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.shipped import in_lake, shipped, verdicts
from tests.support.six import end, only, prepare, produce
from tests.support.spark_world import Broker

from ottla.spark.pipeline import Pipeline

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]


def parquet_rows(spark: Any, place: Path) -> list[dict[str, Any]]:
    table = spark.read.parquet(str(place)).toArrow()
    assert sorted(p.name for p in place.glob("day=*")) == sorted(
        {f"day={d}" for d in table["day"].to_pylist()}
    )
    return list(table.to_pylist())


def delta_rows(place: Path) -> list[dict[str, Any]]:
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    table = DeltaTable(str(place))
    assert table.metadata().partition_columns == ["day"]
    found = pa.table(QueryBuilder().register("t", table).execute("select * from t"))
    return list(found.to_pylist())


def prepared(broker: Broker, monkeypatch: pytest.MonkeyPatch, lake: Path, kind: str) -> Pipeline:
    monkeypatch.setenv("LAKE", str(lake))
    monkeypatch.setenv("LAKE_FORMAT", kind)
    return prepare("etl", broker)


def test_clean_rows_by_day_rejected_rows_and_dead_letters(
    spark: Any, own_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, etl = prepared(own_broker, monkeypatch, tmp_path / "lake", "parquet"), shipped("etl")
    for part in etl.parts:
        produce(own_broker, part)
        end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
    etl.check(etl.records, own_broker, tmp_path / "lake")
    # As Spark reads it, which is how it is documented.
    clean = sorted(row for row in verdicts(etl.records).values() if not isinstance(row, str))
    assert in_lake(parquet_rows(spark, tmp_path / "lake" / "events")) == clean


def test_into_a_delta_table_by_day(
    spark: Any, own_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = only(prepared(own_broker, monkeypatch, tmp_path / "lake", "delta"), "to_lake")
    records = shipped("etl", 100).records
    for part in (records[:60], records[60:]):
        produce(own_broker, part)
        end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
    clean = sorted(row for row in verdicts(records).values() if not isinstance(row, str))
    assert in_lake(delta_rows(tmp_path / "lake" / "events")) == clean
