"""How long the loop was ever held: a heartbeat that notes by how much each beat came late.

Work on the loop that takes long shows here whatever it was. The counts go into buckets, so that hours of
running cost nothing to keep and percentiles are there at any time.

Owner: the node, on the broker's loop.
"""

import asyncio
import json
from pathlib import Path
from time import monotonic

# Upper bounds in milliseconds; fine where the aim lies (20 ms), coarse above.
BUCKETS_MS = (0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 50, 75, 100, 200, 500, 1000, 5000, float("inf"))
IDLE_INTERVAL_S = 0.1
WATCHFUL_INTERVAL_S = 0.002


class StallMonitor:
    """Counts late heartbeats of the loop."""

    def __init__(self, report: Path | None = None) -> None:
        self._report = report
        # Ten beats a second cost nothing; a report asks for a closer look.
        self._interval_s = IDLE_INTERVAL_S if report is None else WATCHFUL_INTERVAL_S
        self._counts = [0] * len(BUCKETS_MS)
        self.max_ms = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            due = monotonic() + self._interval_s
            await asyncio.sleep(self._interval_s)
            self.note((monotonic() - due) * 1000)

    def note(self, late_ms: float) -> None:
        self.max_ms = max(self.max_ms, late_ms)
        for index, bound in enumerate(BUCKETS_MS):
            if late_ms <= bound:
                self._counts[index] += 1
                return

    def percentile_ms(self, fraction: float) -> float:
        """The upper bound of the bucket that the fraction falls in; the maximum where that is smaller."""
        wanted = fraction * sum(self._counts)
        seen = 0
        for count, bound in zip(self._counts, BUCKETS_MS, strict=True):
            seen += count
            if seen >= wanted:
                return min(bound, self.max_ms)
        return self.max_ms

    def summary(self) -> dict[str, float]:
        return {
            "count": sum(self._counts),
            "p50_ms": self.percentile_ms(0.5),
            "p99_ms": self.percentile_ms(0.99),
            "p999_ms": self.percentile_ms(0.999),
            "max_ms": self.max_ms,
        }

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._report is not None:
            self._report.write_text(json.dumps(self.summary()))
