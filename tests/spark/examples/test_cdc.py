"""The CDC pipeline on a real Spark: a table's changes become the table, in Delta and in Iceberg alike, to the row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.shipped import CHANGES, cdc_tables, shipped
from tests.support.six import Record, end, only, prepare, produce
from tests.support.spark_world import Broker

from ottla.examples import samples

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]


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
    pipeline, cdc = prepare("cdc", own_broker), shipped("cdc")
    for number, part in enumerate(cdc.parts, 1):
        produce(own_broker, part)
        end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
        cdc.check([record for done in cdc.parts[:number] for record in done], own_broker, lake)
    replay_last_batch(tmp_path)
    end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
    cdc.check(cdc.records, own_broker, lake)


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
        return Record(CHANGES, json.dumps({"id": key}).encode(), data, samples.START_MS)

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
            Record(CHANGES, b'{"id": 5}', b'{"hello": "world"}', samples.START_MS),
            *(change(1, 20, "late"), change(2, None, None), change(3, 20, None)),
        ],
    ]
    for batch in batches:
        produce(own_broker, batch)
        end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
    names = [[(row[0], row[1]) for row in table] for table in cdc_tables(lake)]
    assert names == [[(1, "newest"), (5, "again"), (6, "same position, later")]] * 2
