"""What a context has under way: decisions that wait for their commit, and timers.

DeferredEventQueue: decisions in the order of the log, and how long each may wait.

CoordinatorTimer: timers by key. A heartbeat moves its member's session timer a little further, thousands of times a
second: a timer that is started again for later keeps its place in the scheduler and, when that comes, waits for the
rest. A timer is forgotten when its decision is committed; one whose decision fails, whatever the reason, is tried
again after a pause, unless it was cancelled or started anew meanwhile.

Owner: a CoordinatorContext, on the broker's loop.
"""

import logging
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final, NamedTuple

from ottla.coordinator.shard import CoordinatorResult, Handle, Scheduler
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.model.tasks import report

log = logging.getLogger("ottla.coordinator")

Operation = Callable[[int], CoordinatorResult[Any]]
Fire = Callable[[Operation], Pending[Any]]

# A timer whose decision failed is tried again after the first, and twice as long each time up to the second.
RETRY_MS: Final = 500
LONGEST_RETRY_MS: Final = 30_000
# All that waits is looked through for what takes too long: not more often than this, however much waits.
TIMEOUT_STEP_MS: Final = 100

NEVER: Final = float("inf")


class DeferredEvent(NamedTuple):
    """It waits until everything before `offset` is committed."""

    offset: int
    deadline_ms: float
    result: CoordinatorResult[Any]
    pending: Pending[Any]


class DeferredEventQueue:
    """Kafka's DeferredEventQueue, with the deadlines of what waits in it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._decisions: deque[DeferredEvent] = deque()
        self._timeout_due_ms = NEVER

    def __len__(self) -> int:
        return len(self._decisions)

    def add(
        self, offset: int, timeout_ms: float, result: CoordinatorResult[Any], pending: Pending[Any]
    ) -> None:
        deadline_ms = self._scheduler.monotonic_ms() + timeout_ms
        self._decisions.append(DeferredEvent(offset, deadline_ms, result, pending))
        self._watch_deadline(deadline_ms)

    def has_committed(self, offset: int) -> bool:
        """Does any wait for no more than what lies before `offset`?"""
        return bool(self._decisions) and self._decisions[0].offset <= offset

    def take_committed(self, offset: int) -> DeferredEvent | None:
        """The first, if it waits for no more than what lies before `offset`."""
        return self._decisions.popleft() if self.has_committed(offset) else None

    def take_behind(self, offset: int) -> list[DeferredEvent]:
        """Those that wait for something from `offset` on."""
        taken: list[DeferredEvent] = []
        while self._decisions and self._decisions[-1].offset > offset:
            taken.append(self._decisions.pop())
        taken.reverse()
        return taken

    def take_all(self) -> deque[DeferredEvent]:
        taken, self._decisions = self._decisions, deque()
        return taken

    def _watch_deadline(self, deadline_ms: float) -> None:
        if deadline_ms < self._timeout_due_ms:
            self._timeout_due_ms = deadline_ms
            delay_ms = max(deadline_ms - self._scheduler.monotonic_ms(), 0)
            self._scheduler.call_later(delay_ms, self._time_out)

    def _time_out(self) -> None:
        """What takes too long to commit is answered as not available; it may still be committed."""
        self._timeout_due_ms = NEVER
        now_ms = self._scheduler.monotonic_ms()
        open_entries = [entry for entry in self._decisions if not entry.pending.done]
        for entry in open_entries:
            if entry.deadline_ms <= now_ms and not entry.pending.done:
                entry.pending.fail(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not committed in time"))
        left = [entry.deadline_ms for entry in open_entries if not entry.pending.done]
        if left:
            self._watch_deadline(max(min(left), now_ms + TIMEOUT_STEP_MS))


class _Timer:
    __slots__ = ("deadline_ms", "due_ms", "handle", "is_firing", "operation", "retry_ms")

    def __init__(self, deadline_ms: float, due_ms: float, operation: Operation) -> None:
        self.deadline_ms = deadline_ms
        self.due_ms = due_ms  # when the scheduler will call, at the latest when it must
        self.operation = operation
        self.is_firing = False  # its decision is made, but not committed yet
        self.retry_ms = RETRY_MS
        self.handle: Handle


class CoordinatorTimer:
    """Kafka's CoordinatorTimer: starts, moves and cancels timers."""

    def __init__(self, scheduler: Scheduler, fire: Fire) -> None:
        """`fire` makes a decision of what a timer was started for."""
        self._scheduler = scheduler
        self._fire = fire
        self._timers: dict[Hashable, _Timer] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def start(self, key: Hashable, delay_ms: float, operation: Operation) -> None:
        """Run the operation after the delay, instead of what was to run for this key."""
        deadline_ms = self._scheduler.monotonic_ms() + delay_ms
        timer = self._timers.get(key)
        if timer is not None and timer.due_ms <= deadline_ms and not timer.is_firing:
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
        timer.is_firing = True
        try:
            self._fire(timer.operation).then(lambda outcome: self._fired(key, timer, outcome))
        except Exception as error:  # noqa: BLE001 - the boundary of a timer
            report(error, name=f"timer {key}", owner="coordinator")
            self._try_again(key, timer)

    def _fired(self, key: Hashable, timer: _Timer, outcome: Pending[Any]) -> None:
        if outcome.error is not None:
            log.info("timer %s failed and is tried again: %s", key, outcome.error)
            self._try_again(key, timer)
        elif self._timers.get(key) is timer:
            del self._timers[key]

    def _try_again(self, key: Hashable, timer: _Timer) -> None:
        if self._timers.get(key) is not timer:
            return
        timer.is_firing = False
        timer.due_ms = timer.deadline_ms = self._scheduler.monotonic_ms() + timer.retry_ms
        self._schedule(key, timer, timer.retry_ms)
        timer.retry_ms = min(2 * timer.retry_ms, LONGEST_RETRY_MS)
