"""The fraud pipeline on a real Spark: alerts to the row, over restarts that keep the state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.shipped import shipped
from tests.support.six import Record, end, only, prepare, produce
from tests.support.spark_world import Broker

from ottla.examples import samples

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]


def test_alerts_to_the_row_however_the_batches_are_cut(
    spark: Any, own_broker: Broker, tmp_path: Path
) -> None:
    pipeline, payments = prepare("fraud", own_broker), shipped("fraud")
    for part in payments.parts:
        produce(own_broker, part)
        end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
    payments.check(payments.records, own_broker, tmp_path)


def test_a_card_that_is_not_used_is_forgotten(spark: Any, own_broker: Broker, tmp_path: Path) -> None:
    pipeline = only(prepare("fraud", own_broker), "alerts")

    def payment(number: int, card: str, day: float) -> Record:
        at_ms = samples.START_MS + round(day * 86_400_000)
        value = {
            "id": f"p-{number}",
            "card": card,
            "amount": 1.0,
            "lat": 50,
            "lon": 14,
            "at": samples.iso(at_ms),
        }
        return Record("payments", card.encode(), json.dumps(value).encode(), at_ms)

    kept = []
    # "b" pays again before its day is over, so it is kept for a day longer; the watermark is a day behind.
    days = ([(0.0, "a"), (0.0, "b"), (0.5, "b")], [(2.2, "c")], [(2.6, "c")])
    for batch in days:
        produce(own_broker, [payment(n, card, day) for n, (day, card) in enumerate(batch)])
        (query,) = end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
        (operator,) = query.lastProgress["stateOperators"]
        kept.append(operator["numRowsTotal"])
    # Two rows of state a card: where it was last, and its small payments.
    assert kept == [4, 4, 2]
