"""The telemetry pipeline on a real Spark: windows to the row, late readings aside, what the watermark leaves out."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.support.six import Record, end, millis, only, prepare, produce, results
from tests.support.spark_world import Broker

from ottla.examples import samples

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]

LATENESS_MS, WATERMARK_MS, MINUTE_MS = 120_000, 240_000, 60_000


def readings(records: list[Record]) -> list[tuple[str, int, float, int]]:
    """Device, when it was measured, what, and when it came."""
    told = [(json.loads(record.value or b""), record.timestamp_ms) for record in records]
    return [(r["device"], millis(r["at"]), r["temperature"], came_ms) for r, came_ms in told]


def expected_minutes(records: list[Record]) -> list[tuple[Any, ...]]:
    """Of the minutes that the watermark has passed."""
    counted = [reading for reading in readings(records) if reading[3] - reading[1] <= LATENESS_MS]
    watermark = max(at for _, at, _, _ in counted) - WATERMARK_MS
    minutes: dict[tuple[str, int], list[float]] = defaultdict(list)
    for device, at, temperature, _ in counted:
        minutes[device, at // MINUTE_MS * MINUTE_MS].append(temperature)
    return sorted(
        (device, minute, len(all_), min(all_), max(all_), round(sum(all_) / len(all_), 3))
        for (device, minute), all_ in minutes.items()
        if minute + MINUTE_MS <= watermark
    )


def minutes_of(broker: Broker) -> list[tuple[Any, ...]]:
    return sorted(
        (
            r["device"],
            millis(r["minute"]),
            r["readings"],
            r["min"],
            r["max"],
            pytest.approx(r["avg"], abs=0.0011),
        )
        for r in results(broker, "telemetry.per_minute")
    )


def test_minutes_and_late_readings_to_the_row(spark: Any, own_broker: Broker, tmp_path: Path) -> None:
    pipeline = prepare("iot", own_broker)
    records = [Record("telemetry", *sample) for sample in samples.telemetry(400)]
    for part in (records[:250], records[250:]):
        produce(own_broker, part)
        end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
    assert minutes_of(own_broker) == expected_minutes(records)
    assert len(expected_minutes(records)) > 30
    late = [r for r in readings(records) if r[3] - r[1] > LATENESS_MS]
    found = [
        (r["device"], millis(r["at"]), r["temperature"], millis(r["at"]) + round(r["seconds_late"] * 1000))
        for r in results(own_broker, "telemetry.late")
    ]
    assert sorted(found) == sorted(late)
    assert len(late) > 30


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
