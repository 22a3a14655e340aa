"""Where work of consumer groups is done that the loop has no time for: in a thread, or in slices between other turns.

What comes out goes to the shard that leads the group then; if this broker does not any more, it is dropped, and
whoever leads it finds out anew. The threads are of their own: an assignor that somebody wrote may take for ever, and
neither the disks nor the end of the node wait for it.

Owner: the node's Coordinators.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.coordinator.result import Result
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.model.breath import Breath
from ottla.model.pending import Pending

if TYPE_CHECKING:
    from ottla.coordinator.group.machine import GroupMachine

log = logging.getLogger("ottla.coordinator.consumer")

T = TypeVar("T")

# Assignments that are computed at a time; Python runs one at a time anyway.
MAX_THREADS: Final = 2


class LoopBackground:
    """See the module."""

    def __init__(self, runtime: Callable[[], CoordinatorRuntime[GroupMachine]]) -> None:
        self._runtime = runtime
        self._slots = asyncio.Semaphore(MAX_THREADS)
        self._tasks: set[asyncio.Task[None]] = set()

    def in_thread(self, group_id: str, work: Callable[[], T], then: Callable[[T, int], Result[Any]]) -> None:
        self._start(self._run(group_id, work, then))

    def in_slices(
        self, group_id: str, work: Iterator[T | None], then: Callable[[T, int], Result[Any]]
    ) -> None:
        self._start(self._step(group_id, work, then))

    def _start(self, doing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, group_id: str, work: Callable[[], T], then: Callable[[T, int], Result[Any]]) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        async with self._slots:
            Thread(target=_compute, args=(work, loop, done), name=f"assign {group_id}", daemon=True).start()
            found = await done
        self._decide(group_id, found, then)

    async def _step(
        self, group_id: str, work: Iterator[T | None], then: Callable[[T, int], Result[Any]]
    ) -> None:
        breath = Breath()
        for found in work:
            if found is not None:
                self._decide(group_id, found, then)
                return
            await breath.take()

    def _decide(self, group_id: str, found: T, then: Callable[[T, int], Result[Any]]) -> None:
        runtime = self._runtime()
        outcome = runtime.write(runtime.partition_for(group_id), lambda _, now_ms: then(found, now_ms))
        outcome.then(lambda done: _note(group_id, done))

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()


def _compute(work: Callable[[], T], loop: asyncio.AbstractEventLoop, done: asyncio.Future[T]) -> None:
    found = work()
    if not loop.is_closed():  # the node may have stopped meanwhile
        loop.call_soon_threadsafe(_deliver, done, found)


def _deliver(done: asyncio.Future[T], found: T) -> None:
    if not done.cancelled():
        done.set_result(found)


def _note(group_id: str, outcome: Pending[Any]) -> None:
    if outcome.error is not None:
        log.info("what was found out for group %s was not written: %s", group_id, outcome.error)
