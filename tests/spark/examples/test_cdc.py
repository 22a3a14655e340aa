"""The CDC pipeline on a real Spark: a table's changes become the table, in Delta and in Iceberg alike, to the row."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.support.pipelines import consume
from tests.support.six import Record, end, only, prepare, produce
from tests.support.spark_world import Broker

from ottla.examples import samples

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]

TOPIC = "shop.public.customers"
COLUMNS = ("id", "name", "email", "balance", "updated_at")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def payload(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    return dict(found.get("payload", found))


def expected(records: Iterable[Record]) -> list[tuple[Any, ...]]:
    """The table after all changes, each row as its last event by lsn left it."""
    newest: dict[int, tuple[int, dict[str, Any] | None]] = {}
    for record in records:
        if record.value is not None:
            change, key = payload(record.value), payload(record.key or b"")["id"]
            if change["source"]["lsn"] >= newest.get(key, (0, None))[0]:
                newest[key] = (change["source"]["lsn"], change["after"])
    rows = [row for _, row in newest.values() if row is not None]
    return sorted(
        (
            row["id"],
            row["name"],
            row["email"],
            Decimal(row["balance"]),
            EPOCH + timedelta(microseconds=row["updated_at"]),
        )
        for row in rows
    )


def tables(lake: Path) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """What Delta and Iceberg hold."""
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    from ottla.spark.pipeline.declare import iceberg
    from ottla.spark.pipeline.lake.iceberg import read_table

    table = DeltaTable(str(lake / "customers"))
    in_delta = pa.table(QueryBuilder().register("t", table).execute("select * from t"))
    in_iceberg = read_table(iceberg("shop.customers", warehouse=str(lake / "iceberg")))
    assert "deleted" not in in_delta.column_names + in_iceberg.column_names
    one, other = (
        sorted(tuple(row[name] for name in COLUMNS) for row in found.to_pylist())
        for found in (in_delta, in_iceberg)
    )
    return one, other


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAKE", str(tmp_path / "lake"))
    return tmp_path / "lake"


def replay_last_batch(state: Path) -> None:
    """As after a crash between the commit to the table and Spark's own: Spark runs the batch again."""
    for commits in state.glob("cdc/checkpoints/*/commits"):
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
        for file in (commits / str(last), commits / f".{last}.crc"):
            file.unlink(missing_ok=True)


def test_both_tables_are_the_source_table_after_every_run(
    spark: Any, own_broker: Broker, tmp_path: Path, lake: Path
) -> None:
    pipeline = prepare("cdc", own_broker)
    records = [Record(TOPIC, *sample) for sample in samples.changes(240)]
    broken = Record(TOPIC, b'{"id": 1}', b"<change/>", samples.START_MS)
    for first, until in ((0, 100), (100, len(records))):
        produce(own_broker, [*records[first:until], broken])
        end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
        wanted = expected(records[:until])
        assert tables(lake) == (wanted, wanted)
    assert len(wanted) > 15
    assert sum(record.value is None for record in records) > 20
    replay_last_batch(tmp_path)
    end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
    assert tables(lake) == (wanted, wanted)
    assert [message.value() for message in consume(own_broker, f"{TOPIC}.bad")] == [b"<change/>"] * 2


def test_the_log_position_decides_not_the_order_of_arrival(
    spark: Any, own_broker: Broker, tmp_path: Path, lake: Path
) -> None:
    pipeline = only(prepare("cdc", own_broker), "to_delta", "to_iceberg")

    def change(key: int, lsn: int | None, name: str | None) -> Record:
        """An update, or a delete without a name; a tombstone without a position."""
        row = {"id": key, "name": name, "balance": "1.00", "updated_at": 0}
        value = {
            "before": {"id": key},
            "after": row if name else None,
            "source": {"lsn": lsn},
            "op": "u" if name else "d",
        }
        data = None if lsn is None else json.dumps(value).encode()
        return Record(TOPIC, json.dumps({"id": key}).encode(), data, samples.START_MS)

    batches = [
        [
            *(change(1, 30, "newest"), change(1, 10, "old"), change(2, 10, "gone"), change(3, 10, "one")),
            # A delete that comes before the change it undoes; a row that is made anew after its tombstone.
            *(change(4, 20, None), change(4, 10, "deleted")),
            *(change(5, 20, None), change(5, None, None), change(5, 30, "again")),
            *(change(6, 10, "first"), change(6, 10, "same position, later")),
        ],
        # What is no change of a row; an older change than the table has; a delete that compaction has taken, with only
        # its tombstone left.
        [
            Record(TOPIC, b'{"id": 5}', b'{"hello": "world"}', samples.START_MS),
            *(change(1, 20, "late"), change(2, None, None), change(3, 20, None)),
        ],
    ]
    for batch in batches:
        produce(own_broker, batch)
        end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
    names = [[(row[0], row[1]) for row in table] for table in tables(lake)]
    assert names == [[(1, "newest"), (5, "again"), (6, "same position, later")]] * 2
