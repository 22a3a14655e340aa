"""Target assignments that take more time than the loop has, of consumer and streams groups.

The assignment is computed in a thread from a snapshot of the group, which keeps the target it has meanwhile.
The member whose request started it is answered when it is done; the others learn of it with their next heartbeat.
What has changed is written in portions, and counts with the last of them: the epoch.

Owner: the manager of one kind of group in a shard.
"""

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from ottla.coordinator.group.context import DecisionBuilder, FollowUp, GroupContext
from ottla.coordinator.shard import After, CoordinatorResult
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending


class Plan(Protocol):
    """A snapshot of a group, to be assigned."""

    @property
    def is_large(self) -> bool:
        """Would it take the loop's time?"""
        ...

    def compute(self) -> dict[str, Any]:
        """The new assignment of each member whose assignment changes; KafkaError if none can be computed."""
        ...


P = TypeVar("P", bound=Plan)
# What makes the answer to the member that asked, and what a member shall have, as the kind of group has them.
F = TypeVar("F")
T = TypeVar("T")


@dataclass(slots=True)
class Run(Generic[P, F, T]):
    """One assignment on its way."""

    group_id: str
    plan: P
    finish: F
    parked: Pending[Any] = field(default_factory=Pending)
    changes: dict[str, T] = field(default_factory=dict)
    # The member has been heard of since: what it said when it asked may not be true any more.
    is_stale: bool = False

    def portion(self, size: int, members: Container[str]) -> Iterator[tuple[str, T]]:
        """The next changes, of those who are members still; they are no longer due then."""
        for member_id in list(islice(self.changes, size)):
            new = self.changes.pop(member_id)
            if member_id in members:
                yield member_id, new


class ModernLargeAssignments(ABC, Generic[P, F, T]):
    """The assignments that are being made, by group."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._running: dict[str, Run[P, F, T]] = {}

    def is_for(self, plan: P) -> bool:
        """Is there more to compute than the loop has time for, and somewhere else to do it?"""
        return self._context.background is not None and plan.is_large

    def is_running(self, group_id: str) -> bool:
        return group_id in self._running

    def begin(self, decision: DecisionBuilder, group_id: str, plan: P, finish: F) -> Pending[Any]:
        """Compute it elsewhere; the answer that `finish` makes comes later."""
        background = self._context.background
        assert background is not None, "there is nowhere else"
        run = self._running[group_id] = Run(group_id, plan, finish)
        decision.failures.append(lambda error: self._fail(run, error))
        follow_up: FollowUp[dict[str, T] | KafkaError] = FollowUp(
            group_id,
            lambda found, now_ms: self._computed(run, found, now_ms),
            lambda error: self._fail(run, error),
        )
        decision.effects.append(After(lambda: background.in_thread(lambda: _compute(plan), follow_up)))
        return run.parked

    def unloaded(self, error: KafkaError) -> None:
        for run in list(self._running.values()):
            self._fail(run, error)

    def _fail(self, run: Run[P, F, T], error: KafkaError) -> None:
        if self._running.get(run.group_id) is run:
            del self._running[run.group_id]
        if not run.parked.done:
            run.parked.fail(error)

    def _computed(
        self, run: Run[P, F, T], found: dict[str, T] | KafkaError, now_ms: int
    ) -> CoordinatorResult[None]:
        if self._running.get(run.group_id) is not run:
            return CoordinatorResult(None)  # the shard was closed meanwhile
        if isinstance(found, KafkaError):
            self._fail(run, found)
            return CoordinatorResult(None)
        run.changes = found
        return self._write(run, now_ms)

    def _go_on(self, run: Run[P, F, T], now_ms: int) -> CoordinatorResult[None]:
        """A timer's: the next portion, unless it is over.

        A portion may have failed, and a timer rings again when its decision is not committed in time.
        """
        if self._running.get(run.group_id) is not run:
            return CoordinatorResult(None)
        return self._write(run, now_ms)

    @abstractmethod
    def _write(self, run: Run[P, F, T], now_ms: int) -> CoordinatorResult[None]:
        """The next portion, or the last one and the end."""


def no_target(epoch: int, error: Exception) -> KafkaError:
    """For when an assignor has failed."""
    message = f"No target assignment for epoch {epoch} could be made: {error}"
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message)


def _compute(plan: Plan) -> dict[str, Any] | KafkaError:
    try:
        return plan.compute()
    except KafkaError as error:
        return error
