"""The ETL pipeline on a real Spark: what is clean in the lake by day, what is not in its two topics, to the row."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import pytest
from tests.support.pipelines import consume
from tests.support.six import Record, end, millis, only, prepare, produce, results
from tests.support.spark_world import Broker

from ottla.examples import samples
from ottla.spark.pipeline import Pipeline

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]

Clean = tuple[str, str, str | None, int, Decimal | None, str, str]


def parse(record: Record) -> dict[str, Any] | None:
    try:
        found = json.loads(record.value or b"")
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"id", "kind", "at"} <= found.keys() else None


def judge(event: dict[str, Any]) -> Clean | str:
    """The clean row, or why there is none."""
    kind = event["kind"].strip().lower()
    given = event.get("amount")
    try:
        amount = None if given is None else Decimal(str(given).replace(",", ".")).quantize(Decimal("0.01"))
    except InvalidOperation:
        amount = None
        if kind in ("view", "cart", "purchase", "refund"):
            return f"no number: {given}"
    if kind not in ("view", "cart", "purchase", "refund"):
        return f"unknown kind {kind}"
    if kind in ("purchase", "refund") and amount is None:
        return "no amount"
    if amount is not None and amount < 0:
        return "negative amount"
    user = (event.get("user") or "").strip() or None
    currency = (event.get("currency") or "").strip().upper() or "EUR"
    at = millis(event["at"])
    day = datetime.fromtimestamp(at / 1000, UTC).date().isoformat()
    return (event["id"], kind, user, at, amount, currency, day)


def verdicts(records: list[Record]) -> dict[str, Clean | str]:
    """By event; those that parse."""
    events = [event for record in records if (event := parse(record)) is not None]
    return {event["id"]: judge(event) for event in events}


def in_lake(rows: list[dict[str, Any]]) -> list[Clean]:
    return sorted(
        (
            r["id"],
            r["kind"],
            r["user"],
            round(r["at"].timestamp() * 1000),
            r["amount"],
            r["currency"],
            str(r["day"]),
        )
        for r in rows
    )


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
    pipeline = prepared(own_broker, monkeypatch, tmp_path / "lake", "parquet")
    records = [Record("events.raw", *sample) for sample in samples.raw_events(300)]
    for part in (records[:200], records[200:]):
        produce(own_broker, part)
        end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
    judged = verdicts(records)
    clean = sorted(row for row in judged.values() if not isinstance(row, str))
    assert in_lake(parquet_rows(spark, tmp_path / "lake" / "events")) == clean
    reasons = {key: row for key, row in judged.items() if isinstance(row, str)}
    rejected = results(own_broker, "events.rejected")
    assert {row["id"]: row["reason"] for row in rejected} == reasons
    assert len(rejected) == len(reasons)
    assert {reason.split(":")[0].split(" kind")[0] for reason in reasons.values()} == {
        "unknown",
        "no number",
        "no amount",
        "negative amount",
    }
    letters = sorted(message.value() for message in consume(own_broker, "events.bad"))
    assert letters == sorted(record.value or b"" for record in records if parse(record) is None)
    assert len(set(letters)) > 2


def test_into_a_delta_table_by_day(
    spark: Any, own_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = only(prepared(own_broker, monkeypatch, tmp_path / "lake", "delta"), "to_lake")
    records = [Record("events.raw", *sample) for sample in samples.raw_events(100)]
    for part in (records[:60], records[60:]):
        produce(own_broker, part)
        end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
    clean = sorted(row for row in verdicts(records).values() if not isinstance(row, str))
    assert in_lake(delta_rows(tmp_path / "lake" / "events")) == clean
