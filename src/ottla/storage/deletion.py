"""What has been renamed for deletion is unlinked later, in a thread: readers may still be sending from it.

`file.delete.delay.ms` after the rename the files go. One timer serves every pending deletion; a stop runs
what is left at once, because nobody reads any more. Owned by LogManager, used on the loop only.
"""

import asyncio
import contextlib
import heapq
import logging
import shutil
from collections.abc import Callable
from concurrent.futures import Executor
from itertools import count
from math import inf
from pathlib import Path

from ottla.model.clock import Clock
from ottla.model.errors import KafkaError
from ottla.model.tasks import report, spawn_restarting

logger = logging.getLogger(__name__)

# Unlinking a large file can take tens of milliseconds of disk time: a few at once do not starve the flushes.
MAX_DELETIONS_AT_ONCE = 2
STOP_BUDGET_MS = 1_000.0


def remove_tree(path: Path) -> None:
    """Deletes a directory that may be half deleted already."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


class Deletions:
    """Deletions that wait for their time."""

    def __init__(self, clock: Clock, executor: Executor) -> None:
        self._clock = clock
        self._executor = executor
        self._pending: list[tuple[int, int, str, Callable[[], None]]] = []
        self._order = count()
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._pending)

    def schedule(self, delay_ms: int, what: str, delete: Callable[[], None]) -> None:
        """Calls `delete` in a thread after the delay.

        Its OSErrors are logged: the files stay, nothing is lost.
        """
        due_ms = self._clock.now_ms() + delay_ms
        heapq.heappush(self._pending, (due_ms, next(self._order), what, delete))
        self._wake.set()

    def start(self) -> None:
        """Begins to delete; needs a running loop."""
        assert self._task is None
        self._task = spawn_restarting(self._run, name="log-deletions", owner="log manager")

    async def stop(self) -> None:
        """Ends the timer and deletes what is pending, for a while: the next start deletes the rest."""
        self._stopping = True
        self._wake.set()
        if self._task is not None:
            await self._task
            self._task = None
        await self.run_due(everything=True, until_ms=self._clock.monotonic_ms() + STOP_BUDGET_MS)

    async def run_due(self, everything: bool = False, until_ms: float = inf) -> int:
        """Deletes what is due; how many deletions that were."""
        done = 0
        while (
            self._pending
            and (everything or self._pending[0][0] <= self._clock.now_ms())
            and self._clock.monotonic_ms() < until_ms
        ):
            batch = [
                self._delete(*heapq.heappop(self._pending)[2:]) for _ in range(self._due_at_once(everything))
            ]
            await asyncio.gather(*batch)
            done += len(batch)
        return done

    def _due_at_once(self, everything: bool) -> int:
        now_ms = self._clock.now_ms()
        head = heapq.nsmallest(MAX_DELETIONS_AT_ONCE, self._pending)
        return sum(1 for due_ms, *_ in head if everything or due_ms <= now_ms)

    async def _delete(self, what: str, delete: Callable[[], None]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, delete)
        except (OSError, KafkaError) as error:
            logger.error("cannot delete %s: %s", what, error)
        except Exception as error:  # noqa: BLE001 - the boundary: the others are deleted all the same
            report(error, name=f"delete {what}", owner="log manager")
        else:
            logger.debug("deleted %s", what)

    async def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            await self.run_due()
            timeout_s = None
            if self._pending:
                timeout_s = max(0.0, (self._pending[0][0] - self._clock.now_ms()) / 1000)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), timeout_s)
