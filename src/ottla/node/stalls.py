"""What holds up the loop: measured (StallMonitor), and the garbage collector kept short (ShortCollections).

StallMonitor is a heartbeat that notes by how much each beat came late.

Work on the loop that takes long shows here whatever it was. The counts go into buckets, so that hours of
running cost nothing to keep and percentiles are there at any time.

A beat is also late when the system gave the processor to somebody else. On Linux that time is known, and a report
gives the lateness without it as well (`own_`): what is left is ours, be it computing, waiting for a disk or for the
interpreter's lock, or the whole machine stood still. How much of it was computing is told by the processor's time
(`cpu_`).

Owner of StallMonitor: the node, on the broker's loop, from the moment it serves until it begins to stop. Owner of
ShortCollections: the process (node.main); the callback comes in whatever thread the collector ran in.
"""

import asyncio
import gc
import json
import os
from pathlib import Path
from time import monotonic, thread_time
from typing import Final

from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.tasks import spawn_restarting

# Upper bounds in milliseconds; fine where the aim lies (20 ms), coarse above.
BUCKETS_MS = (0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 50, 75, 100, 200, 500, 1000, 5000, float("inf"))
IDLE_INTERVAL_S = 0.1
WATCHFUL_INTERVAL_S = 0.002
SCHEDSTAT = "/proc/thread-self/schedstat"

# A full collection that takes longer is slow.
SLOW_S: Final = 0.002
OLDEST_GENERATION: Final = 2
# Python's own, but full collections more than twice as often: then there is less to visit each time.
THRESHOLDS: Final = (700, 10, 4)
# How long visiting everything is taken to last before it has been seen, and at least.
LEAST_FULL_S: Final = 0.1
# So many changed partitions of the cluster, or rules, are some ten thousand objects: a collection of them is slow.
CHANGES_TO_FREEZE: Final = 1_000


class Histogram:
    """Durations in buckets."""

    def __init__(self) -> None:
        self._counts = [0] * len(BUCKETS_MS)
        self.max_ms = 0.0

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

    def summary(self, prefix: str = "") -> dict[str, float]:
        return {
            f"{prefix}p50_ms": self.percentile_ms(0.5),
            f"{prefix}p99_ms": self.percentile_ms(0.99),
            f"{prefix}p999_ms": self.percentile_ms(0.999),
            f"{prefix}max_ms": self.max_ms,
            f"{prefix}count": sum(self._counts),
        }


class StallMonitor:
    """Counts late heartbeats of the loop."""

    def __init__(self, report: Path | None = None) -> None:
        self._report = report
        # Ten beats a second cost nothing; a report asks for a closer look.
        self._interval_s = IDLE_INTERVAL_S if report is None else WATCHFUL_INTERVAL_S
        self.late = Histogram()
        self._own = Histogram()
        self._computing = Histogram()
        self._schedstat = -1
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._report is not None and os.path.exists(SCHEDSTAT):
            self._schedstat = os.open(SCHEDSTAT, os.O_RDONLY)
        self._task = spawn_restarting(self._beat, name="measuring", owner="stalls of the loop")

    async def _beat(self) -> None:
        while True:
            due, not_run, used = monotonic() + self._interval_s, self._not_run_s(), thread_time()
            await asyncio.sleep(self._interval_s)
            late = monotonic() - due
            self.late.note(late * 1000)
            self._own.note(max(0.0, late - (self._not_run_s() - not_run)) * 1000)
            self._computing.note(max(0.0, min(late, thread_time() - used)) * 1000)

    def _not_run_s(self) -> float:
        """How long this thread has been ready to run while others did."""
        if self._schedstat < 0:
            return 0.0
        return int(os.pread(self._schedstat, 128, 0).split()[1]) / 1e9

    def summary(self) -> dict[str, float]:
        return {**self.late.summary(), **self._own.summary("own_"), **self._computing.summary("cpu_")}

    def stop(self) -> None:
        """Ends the measurement and writes the report, once."""
        if self._task is None:
            return
        self._task.cancel()
        self._task = None
        if self._schedstat >= 0:
            os.close(self._schedstat)
            self._schedstat = -1
        if self._report is not None:
            self._report.write_text(json.dumps(self.summary()))


class ShortCollections:
    """Python's garbage collector, kept from holding up the loop: what a slow full collection has left is frozen.

    A full collection visits every object there is, and ten thousand partitions are half a million of them: a tenth of a
    second in which nobody is served, again and again. But what is there when the node has started stays, and so does
    what has survived a collection that took long: it is frozen, which is to say, not visited again. A later collection
    then only visits what has come since. Frozen objects are still freed when nobody refers to them; only rings of them
    are not. So that these do not stay for ever, everything is thawed and visited once the slow collections since the
    last time have together taken as long as that took: the pauses at most double, and so does what rings can hold.
    """

    installed = False

    def __init__(self) -> None:
        self._began = 0.0
        self._full_s = LEAST_FULL_S
        self._frozen_s = 0.0  # what the slow collections since the last full one have taken
        self._thawed = False
        self._thresholds = gc.get_threshold()

    def install(self) -> None:
        """From now on the collector runs, and what is there already is not visited any more."""
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._heard)
        gc.enable()
        ShortCollections.installed = True

    def remove(self) -> None:
        """As before, for whoever uses the process after the node."""
        ShortCollections.installed = False
        gc.callbacks.remove(self._heard)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _heard(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != OLDEST_GENERATION:
            return
        if phase == "start":
            self._began = thread_time()
            return
        took_s = thread_time() - self._began
        if self._thawed:  # everything was visited
            self._thawed = False
            self._full_s, self._frozen_s = max(took_s, LEAST_FULL_S), 0.0
            gc.freeze()
        elif took_s > SLOW_S:
            gc.freeze()
            self._frozen_s += took_s
            if self._frozen_s >= self._full_s:
                gc.unfreeze()  # for the next collection: one within another is not made
                self._thawed = True


def freeze_what_stays() -> None:
    """For whoever makes very much that stays, as a load does: collect once, and do not visit it again.

    Only where collections are kept short at all: another process may want its own objects visited.
    """
    if ShortCollections.installed:
        gc.collect(OLDEST_GENERATION - 1)
        gc.freeze()


class FreezeImages:
    """A subscriber of metadata images: thousands of partitions and rules that have changed stay so for long."""

    def __init__(self) -> None:
        self._changed = 0

    def __call__(self, image: ClusterImage, delta: Delta) -> None:
        self._changed += sum(len(change.partitions) for change in delta.topics.values()) + len(delta.acls)
        if self._changed >= CHANGES_TO_FREEZE:
            self._changed = 0
            freeze_what_stays()
