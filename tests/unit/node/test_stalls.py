"""How late the loop comes: what the buckets say, and what the report holds."""

import asyncio
import json
import time
from pathlib import Path

from ottla.node.stalls import Histogram, StallMonitor


def test_percentiles_are_bounds_of_buckets_and_never_above_the_longest() -> None:
    histogram = Histogram()
    for _ in range(999):
        histogram.note(0.2)
    histogram.note(12.5)
    assert histogram.percentile_ms(0.5) == 0.5
    assert histogram.percentile_ms(0.999) == 0.5
    assert histogram.percentile_ms(1.0) == 12.5
    assert histogram.max_ms == 12.5


def test_nothing_noted_is_no_stall() -> None:
    assert Histogram().summary("own_")["own_p999_ms"] == 0


def test_a_held_loop_shows_in_the_report(tmp_path: Path) -> None:
    report = tmp_path / "stalls.json"

    async def hold() -> None:
        monitor = StallMonitor(report)
        monitor.start()
        await asyncio.sleep(0)  # the first beat begins
        time.sleep(0.05)  # noqa: ASYNC251  what is measured
        while monitor.late.max_ms < 40:
            await asyncio.sleep(0.001)
        monitor.stop()

    asyncio.run(hold())
    found = json.loads(report.read_text())
    assert found["max_ms"] >= 40
    assert found["own_max_ms"] <= found["max_ms"]
    assert found["count"] == found["own_count"] == found["cpu_count"] > 0
    assert found["cpu_max_ms"] < 40, "it slept"


def test_computing_shows_as_such(tmp_path: Path) -> None:
    report = tmp_path / "stalls.json"

    async def compute() -> None:
        monitor = StallMonitor(report)
        monitor.start()
        await asyncio.sleep(0)  # the first beat begins
        ends = time.thread_time() + 0.05
        while time.thread_time() < ends:
            pass
        while monitor.late.max_ms < 40:
            await asyncio.sleep(0.001)
        monitor.stop()

    asyncio.run(compute())
    found = json.loads(report.read_text())
    assert 40 <= found["cpu_max_ms"] <= found["max_ms"]


def test_a_monitor_that_never_ran_reports_nothing(tmp_path: Path) -> None:
    StallMonitor(tmp_path / "stalls.json").stop()
    assert not (tmp_path / "stalls.json").exists()
