"""Periodic work over all logs, cut so that the loop breathes: a slice is some logs or a few milliseconds.

Ten thousand partitions visited in one go would hold the loop for as long as all of them take; a timer for
each would cost more than the work. Used by the log manager's background work, on the loop.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from time import perf_counter
from typing import Final, TypeVar

from ottla.model.tasks import report, spawn

OWNER: Final = "log manager"

SLICE_SECONDS: Final = 0.002
SLICE_ITEMS: Final = 256

# An interval may be Long.MAX_VALUE, which a timer cannot express; a tick a day too many does no harm.
LONGEST_SLEEP_SECONDS: Final = 86_400.0

_T = TypeVar("_T")


async def in_slices(items: Iterable[_T], visit: Callable[[_T], object]) -> None:
    """Visits every item, giving the loop back between slices.

    The items may change between slices, so the caller passes a snapshot and `visit` checks what it is given.
    """
    begin = perf_counter()
    for visited, item in enumerate(items, 1):
        visit(item)
        if visited % SLICE_ITEMS == 0 or perf_counter() - begin > SLICE_SECONDS:
            await asyncio.sleep(0)
            begin = perf_counter()


async def in_thread(executor: Executor | None, work: Callable[..., _T], *arguments: object) -> _T:
    """Does blocking work in a thread. A cancelled caller still waits for it: two writers must not meet."""
    future = asyncio.get_running_loop().run_in_executor(executor, work, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        error = future.exception()
        if isinstance(error, Exception):  # whoever wanted it does not hear of it any more
            report(error, name=getattr(work, "__qualname__", "thread job"), owner="storage")
        raise


class Ticker:
    """Periodic tasks: each runs, then waits its interval.

    One that fails is logged and runs again next time.
    """

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def every(
        self,
        name: str,
        interval_ms: Callable[[], float],
        delay_ms: float,
        tick: Callable[[], Awaitable[object]],
    ) -> None:
        """Starts a periodic task on the running loop.

        The interval is asked each time: it may be reconfigured.
        """
        run = self._run(name, interval_ms, delay_ms, tick)
        self._tasks.append(spawn(run, name=name, owner=OWNER))

    async def stop(self) -> None:
        """Cancels the tasks and waits for them to end."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()

    async def _run(
        self,
        name: str,
        interval_ms: Callable[[], float],
        delay_ms: float,
        tick: Callable[[], Awaitable[object]],
    ) -> None:
        await asyncio.sleep(delay_ms / 1000)
        while True:
            try:
                await tick()
            except Exception as error:  # noqa: BLE001 - the boundary: whatever went wrong, the tick goes on
                # A failed disk has taken its directory offline already.
                report(error, name=name, owner=OWNER)
            await asyncio.sleep(min(interval_ms() / 1000, LONGEST_SLEEP_SECONDS))
