"""Where work of consumer groups is done that the loop has no time for: in a thread, or in slices between other turns.

What comes out goes to the shard that leads the group then; if this broker does not any more, it is dropped, and
whoever leads it finds out anew. The threads are of their own: an assignor that somebody wrote may take for ever, and
neither the disks nor the end of the node wait for it. What fails is logged, and told to the group it is about.

Owner: the node's Coordinators.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.coordinator.result import Result
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.model.breath import Breath
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.model.tasks import spawn

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
        self._tasks: set[asyncio.Task[Any]] = set()

    def in_thread(
        self,
        group_id: str,
        work: Callable[[], T],
        then: Callable[[T, int], Result[Any]],
        failed: Callable[[KafkaError], None],
    ) -> None:
        self._start(f"the assignment of group {group_id}", self._run(group_id, work, then, failed), failed)

    def in_slices(
        self,
        group_id: str,
        work: Iterator[T | None],
        then: Callable[[T, int], Result[Any]],
        failed: Callable[[KafkaError], None],
    ) -> None:
        self._start(f"the topics of group {group_id}", self._step(group_id, work, then, failed), failed)

    def _start(
        self, name: str, doing: Coroutine[Any, Any, None], failed: Callable[[KafkaError], None]
    ) -> None:
        def told(error: Exception) -> None:
            failed(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{name} failed: {error}"))

        task = spawn(doing, name=name, owner="group coordinator", failed=told)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(
        self,
        group_id: str,
        work: Callable[[], T],
        then: Callable[[T, int], Result[Any]],
        failed: Callable[[KafkaError], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        async with self._slots:
            Thread(target=_compute, args=(work, loop, done), name=f"assign {group_id}", daemon=True).start()
            found = await done
        self._decide(group_id, found, then, failed)

    async def _step(
        self,
        group_id: str,
        work: Iterator[T | None],
        then: Callable[[T, int], Result[Any]],
        failed: Callable[[KafkaError], None],
    ) -> None:
        breath = Breath()
        for found in work:
            if found is not None:
                self._decide(group_id, found, then, failed)
                return
            await breath.take()

    def _decide(
        self,
        group_id: str,
        found: T,
        then: Callable[[T, int], Result[Any]],
        failed: Callable[[KafkaError], None],
    ) -> None:
        def decided(outcome: Pending[Any]) -> None:
            if outcome.error is not None:
                log.info("what was found out for group %s was not written: %s", group_id, outcome.error)
                failed(outcome.error)

        runtime = self._runtime()
        runtime.write(runtime.partition_for(group_id), lambda _, now_ms: then(found, now_ms)).then(decided)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()


def _compute(work: Callable[[], T], loop: asyncio.AbstractEventLoop, done: asyncio.Future[T]) -> None:
    """In the thread; whatever the work raises, even to end its thread, is given to whoever waits for it."""
    found: T | None = None
    error: Exception | None = None
    try:
        found = work()
    except Exception as raised:  # noqa: BLE001 - told to whoever waits
        error = raised
    except BaseException as raised:  # noqa: BLE001 - an assignor may call sys.exit()
        error = RuntimeError(f"{type(raised).__name__}: {raised}")
    with suppress(RuntimeError):  # the node may have stopped meanwhile, and its loop be closed
        loop.call_soon_threadsafe(_deliver, done, found, error)


def _deliver(done: asyncio.Future[Any], found: Any, error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(found)
    else:
        done.set_exception(error)
