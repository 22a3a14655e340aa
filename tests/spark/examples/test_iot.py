"""The telemetry pipeline on a real Spark: windows to the row, late readings aside, what the watermark leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.shipped import shipped
from tests.support.six import Record, end, only, prepare, produce, results
from tests.support.spark_world import Broker

from ottla.examples import samples

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]


def test_minutes_and_late_readings_to_the_row(spark: Any, own_broker: Broker, tmp_path: Path) -> None:
    pipeline, telemetry = prepare("iot", own_broker), shipped("iot")
    for part in telemetry.parts:
        produce(own_broker, part)
        end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
    telemetry.check(telemetry.records, own_broker, tmp_path)


def test_what_the_watermark_leaves_out_is_counted(spark: Any, own_broker: Broker, tmp_path: Path) -> None:
    pipeline = only(prepare("iot", own_broker), "per_minute")

    def reading(at_ms: int) -> Record:
        value = {"device": "d", "temperature": 20.5, "at": samples.iso(at_ms)}
        return Record("telemetry", b"d", json.dumps(value).encode(), at_ms)

    start = samples.START_MS
    # The third one claims to have come in time, an hour after the watermark has passed it: a backlog, out of order.
    dropped = 0
    for at_ms in (start, start + 3_600_000, start + 30_000):
        produce(own_broker, [reading(at_ms)])
        (query,) = end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
        operators = [operator for report in query.recentProgress for operator in report["stateOperators"]]
        dropped += sum(operator["numRowsDroppedByWatermark"] for operator in operators)
    assert [row["readings"] for row in results(own_broker, "telemetry.per_minute")] == [1]
    assert dropped == 1
