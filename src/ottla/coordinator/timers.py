"""The timers of a shard: by key, cheap to push back.

A heartbeat moves its member's session timer a little further, thousands of times a second: a timer that is started
again for later keeps its place in the scheduler and, when that comes, waits for the rest.

Owner: a Shard, on the broker's loop.
"""

import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final

from ottla.coordinator.ports import Handle, Scheduler
from ottla.coordinator.result import Result
from ottla.model.pending import Pending

log = logging.getLogger("ottla.coordinator")

Operation = Callable[[int], Result[Any]]
Fire = Callable[[Operation], Pending[Any]]

# A timer whose decision could not be written is tried again.
RETRY_MS: Final = 500


class _Timer:
    __slots__ = ("deadline_ms", "due_ms", "handle", "operation")

    def __init__(self, deadline_ms: float, due_ms: float, operation: Operation) -> None:
        self.deadline_ms = deadline_ms
        self.due_ms = due_ms  # when the scheduler will call, at the latest when it must
        self.operation = operation
        self.handle: Handle


class Timers:
    """See the module."""

    def __init__(self, scheduler: Scheduler, fire: Fire) -> None:
        self._scheduler = scheduler
        self._fire = fire
        self._timers: dict[Hashable, _Timer] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def start(self, key: Hashable, delay_ms: float, operation: Operation) -> None:
        """Run the operation after the delay, instead of what was to run for this key."""
        deadline_ms = self._scheduler.monotonic_ms() + delay_ms
        timer = self._timers.get(key)
        if timer is not None and timer.due_ms <= deadline_ms:
            timer.deadline_ms = deadline_ms
            timer.operation = operation
            return
        if timer is not None:
            timer.handle.cancel()
        timer = _Timer(deadline_ms, deadline_ms, operation)
        self._timers[key] = timer
        self._schedule(key, timer, delay_ms)

    def _schedule(self, key: Hashable, timer: _Timer, delay_ms: float) -> None:
        timer.handle = self._scheduler.call_later(delay_ms, partial(self._take_turn, key, timer))

    def _take_turn(self, key: Hashable, timer: _Timer) -> None:
        # A thousand groups may have begun to wait at the same time: they have their turns one after the other.
        self._scheduler.call_soon(partial(self._due, key, timer))

    def cancel(self, key: Hashable) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.handle.cancel()

    def clear(self) -> None:
        for key in list(self._timers):
            self.cancel(key)

    def _due(self, key: Hashable, timer: _Timer) -> None:
        if self._timers.get(key) is not timer:
            return
        left_ms = timer.deadline_ms - self._scheduler.monotonic_ms()
        if left_ms > 0:
            timer.due_ms = timer.deadline_ms
            self._schedule(key, timer, left_ms)
            return
        del self._timers[key]
        self._fire(timer.operation).then(lambda outcome: self._fired(key, timer, outcome))

    def _fired(self, key: Hashable, timer: _Timer, outcome: Pending[Any]) -> None:
        if outcome.error is not None and key not in self._timers:
            log.info("timer %s failed and is tried again: %s", key, outcome.error)
            self.start(key, RETRY_MS, timer.operation)
