"""Where work of consumer groups is done that the loop has no time for: in a thread, or in slices between other turns.

What comes out goes to the shard that leads the group then; if this broker does not any more, it is dropped, and
whoever leads it finds out anew.

Owner: the node's Coordinators.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any, TypeVar

from ottla.coordinator.group.machine import GroupMachine
from ottla.coordinator.result import Result
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.model.breath import Breath
from ottla.model.pending import Pending

log = logging.getLogger("ottla.coordinator.consumer")

T = TypeVar("T")


class LoopBackground:
    """See the module."""

    def __init__(self, runtime: Callable[[], CoordinatorRuntime[GroupMachine]], executor: Executor) -> None:
        self._runtime = runtime
        self._executor = executor
        self._tasks: set[asyncio.Task[None]] = set()

    def in_thread(self, group_id: str, work: Callable[[], T], then: Callable[[T, int], Result[Any]]) -> None:
        self._start(self._run(group_id, work, then))

    def in_slices(
        self, group_id: str, work: Iterator[T | None], then: Callable[[T, int], Result[Any]]
    ) -> None:
        self._start(self._step(group_id, work, then))

    def _start(self, doing: Any) -> None:
        task = asyncio.get_running_loop().create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, group_id: str, work: Callable[[], T], then: Callable[[T, int], Result[Any]]) -> None:
        found = await asyncio.get_running_loop().run_in_executor(self._executor, work)
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


def _note(group_id: str, outcome: Pending[Any]) -> None:
    if outcome.error is not None:
        log.info("what was found out for group %s was not written: %s", group_id, outcome.error)
