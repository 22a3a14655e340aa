"""Decisions of a shard that wait for their commit, in the order of the log, and how long each may wait.

Owner: a Shard, on the broker's loop.
"""

from collections import deque
from typing import Any, Final, NamedTuple

from ottla.coordinator.ports import Scheduler
from ottla.coordinator.result import Result
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending

NEVER: Final = float("inf")


class Decision(NamedTuple):
    """It waits until everything before `offset` is committed."""

    offset: int
    deadline_ms: float
    result: Result[Any]
    pending: Pending[Any]


class WaitingDecisions:
    """See the module."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._decisions: deque[Decision] = deque()
        self._timeout_due_ms = NEVER

    def __len__(self) -> int:
        return len(self._decisions)

    def add(self, offset: int, timeout_ms: float, result: Result[Any], pending: Pending[Any]) -> None:
        deadline_ms = self._scheduler.monotonic_ms() + timeout_ms
        self._decisions.append(Decision(offset, deadline_ms, result, pending))
        self._watch_deadline(deadline_ms)

    def has_committed(self, offset: int) -> bool:
        """Does any wait for no more than what lies before `offset`?"""
        return bool(self._decisions) and self._decisions[0].offset <= offset

    def take_committed(self, offset: int) -> Decision | None:
        """The first, if it waits for no more than what lies before `offset`."""
        return self._decisions.popleft() if self.has_committed(offset) else None

    def take_behind(self, offset: int) -> list[Decision]:
        """Those that wait for something from `offset` on."""
        taken: list[Decision] = []
        while self._decisions and self._decisions[-1].offset > offset:
            taken.append(self._decisions.pop())
        taken.reverse()
        return taken

    def take_all(self) -> deque[Decision]:
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
            self._watch_deadline(min(left))
