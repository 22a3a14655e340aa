"""What a streaming query reports after each micro-batch, made into the few figures that people ask for. Pure.

Rows in are records read, rows out are rows of the result; both come from metrics that the plans observe, since
Spark's own count of rows written is unknown for most sinks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.spark.pipeline.reading import METRICS_IN, METRICS_OUT

WINDOW_S = 5.0


class Rate:
    """How fast a count has grown over the last moments; it falls to nothing when the count stands still."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, int]] = []

    def mark(self, now: float, total: int) -> float:
        self._marks.append((now, total))
        while len(self._marks) > 2 and now - self._marks[1][0] >= WINDOW_S:
            del self._marks[0]
        then, count = self._marks[0]
        return (total - count) / (now - then) if now > then else 0.0


@dataclass
class Figures:
    """One query's figures, kept up by `add`."""

    name: str
    state: str = "starting"
    batch_id: int = -1
    rows_in: int = 0
    rows_out: int = 0
    bad: int = 0
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    batch_ms: int | None = None
    state_rows: int = 0
    state_bytes: int = 0
    lag: int | None = None
    lag_seconds: float | None = None
    problem: str = ""
    offsets: dict[str, dict[str, int]] = field(default_factory=dict, repr=False)
    _rates: tuple[Rate, Rate] = field(default_factory=lambda: (Rate(), Rate()), repr=False)

    def add(self, reports: Iterable[Mapping[str, Any]], now: float) -> None:
        """Micro-batches that are new since the last time, in order."""
        for report in reports:
            self._add_offsets(report)
            self._add_state(report)
            if report["batchId"] > self.batch_id or self.batch_id < 0:
                self._add_batch(report)
        self.in_per_s = self._rates[0].mark(now, self.rows_in)
        self.out_per_s = self._rates[1].mark(now, self.rows_out)

    def _add_batch(self, report: Mapping[str, Any]) -> None:
        # A trigger without data reports the number of the batch that is still to come.
        duration = report.get("durationMs") or {}
        if "addBatch" not in duration:
            return
        self.batch_id = report["batchId"]
        self.rows_in += rows_in(report)
        self.rows_out += _observed(report, METRICS_OUT, "rows")
        self.bad += _observed(report, METRICS_IN, "bad")
        self.batch_ms = int(duration.get("triggerExecution", report.get("batchDuration") or 0))

    def _add_state(self, report: Mapping[str, Any]) -> None:
        operators = report.get("stateOperators") or []
        self.state_rows = sum(int(operator.get("numRowsTotal") or 0) for operator in operators)
        self.state_bytes = sum(int(operator.get("memoryUsedBytes") or 0) for operator in operators)

    def _add_offsets(self, report: Mapping[str, Any]) -> None:
        for source in report.get("sources") or []:
            for topic, places in offsets_of(source.get("endOffset")).items():
                self.offsets.setdefault(topic, {}).update(places)

    def document(self) -> dict[str, Any]:
        """As it is written to disk."""
        return {
            "stream": self.name,
            "state": self.state,
            "batch": None if self.batch_id < 0 else self.batch_id,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "bad": self.bad,
            "in_per_s": round(self.in_per_s, 1),
            "out_per_s": round(self.out_per_s, 1),
            "lag": self.lag,
            "lag_seconds": self.lag_seconds,
            "batch_ms": self.batch_ms,
            "state_rows": self.state_rows,
            "state_bytes": self.state_bytes,
            "problem": self.problem,
        }


def rows_in(report: Mapping[str, Any]) -> int:
    """Records read: as observed, else as Spark counts them (raw inputs are not observed)."""
    observed = report.get("observedMetrics") or {}
    if any(name.startswith(METRICS_IN) for name in observed):
        return _observed(report, METRICS_IN, "rows")
    return max(int(report.get("numInputRows") or 0), 0)


def offsets_of(text: Any) -> dict[str, dict[str, int]]:
    """A source's offsets ({"topic": {"0": 12}}), whether Spark gives them as text or as data; else nothing."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        topic: {str(partition): at for partition, at in places.items() if isinstance(at, int)}
        for topic, places in found.items()
        if isinstance(places, dict)
    }


def _observed(report: Mapping[str, Any], prefix: str, column: str) -> int:
    total = 0
    for name, row in (report.get("observedMetrics") or {}).items():
        if name.startswith(prefix):
            value = row.get(column) if isinstance(row, Mapping) else getattr(row, column, None)
            total += int(value or 0)
    return total
