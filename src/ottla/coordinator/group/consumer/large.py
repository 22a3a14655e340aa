"""Target assignments that take more time than the loop has: large groups, and assignors of somebody's own.

The assignment is computed in a thread from a snapshot of the group, while the group goes on with the target it has.
The member whose request started it is answered when it is done; the others learn of it with their next heartbeat.
What has changed is written in portions, and counts with the last of them: the epoch.

Owner: the ConsumerManager of a shard.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from ottla.coordinator.group.assignors.api import Assignment, PartitionAssignorError
from ottla.coordinator.group.consumer import records
from ottla.coordinator.group.consumer.core import assignor_failed
from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.consumer.member import ConsumerGroupMember
from ottla.coordinator.group.consumer.target import TargetPlan
from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.modern_turn import Turn
from ottla.coordinator.result import After, Answer, Result, StartTimer
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending

# Members whose new target is written in one decision: about a millisecond.
PORTION: Final = 50

Finish = Callable[[Turn, ConsumerGroup, ConsumerGroupMember, tuple[int, Assignment]], Any]


@dataclass(slots=True)
class _Run:
    """One assignment on its way."""

    group_id: str
    plan: TargetPlan
    finish: Finish
    parked: Pending[Any] = field(default_factory=Pending)
    changes: dict[str, Assignment] = field(default_factory=dict)
    # The member has been heard of since: what it said when it asked may not be true any more.
    is_stale: bool = False


class LargeAssignments:
    """See the module."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._running: dict[str, _Run] = {}

    def is_running(self, group_id: str) -> bool:
        return group_id in self._running

    def heard_of(self, group_id: str, member_id: str) -> None:
        """A member says something new. If an older request of its own is parked, it has given that up."""
        run = self._running.get(group_id)
        if run is not None and run.plan.joining.member_id == member_id:
            run.is_stale = True

    def is_needed(self, plan: TargetPlan) -> bool:
        """Is there more to compute than the loop has time for, and somewhere else to do it?"""
        return self._context.background is not None and plan.is_large

    def begin(
        self, turn: Turn, group_id: str, plan: TargetPlan, finish: Finish = lambda *_: None
    ) -> Pending[Any]:
        """Compute it elsewhere; the answer that `finish` makes comes later."""
        background = self._context.background
        assert background is not None, "there is nowhere else"
        run = self._running[group_id] = _Run(group_id, plan, finish)
        turn.failures.append(lambda error: self._fail(run, error))
        turn.effects.append(
            After(
                lambda: background.in_thread(
                    group_id, lambda: _compute(plan), lambda found, now_ms: self._computed(run, found, now_ms)
                )
            )
        )
        return run.parked

    def unloaded(self, error: KafkaError) -> None:
        for run in list(self._running.values()):
            self._fail(run, error)

    def _fail(self, run: _Run, error: KafkaError) -> None:
        if self._running.get(run.group_id) is run:
            del self._running[run.group_id]
        if not run.parked.done:
            run.parked.fail(error)

    def _computed(
        self, run: _Run, found: dict[str, Assignment] | PartitionAssignorError, now_ms: int
    ) -> Result[None]:
        if self._running.get(run.group_id) is not run:
            return Result(None)  # the shard was closed meanwhile
        if isinstance(found, PartitionAssignorError):
            self._fail(run, assignor_failed(run.plan, found))
            return Result(None)
        run.changes = found
        return self._write(run, now_ms)

    def _write(self, run: _Run, now_ms: int) -> Result[None]:
        """The next portion, or the last one and the end."""
        group = self._context.groups.get(run.group_id)
        if not isinstance(group, ConsumerGroup) or group.epoch < run.plan.epoch:  # or is another by now
            self._fail(run, KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {run.group_id} is gone."))
            return Result(None)
        turn = Turn(now_ms)
        turn.failures.append(lambda error: self._fail(run, error))
        mine = run.changes.get(run.plan.joining.member_id)
        for member_id in list(islice(run.changes, PORTION)):
            new = run.changes.pop(member_id)
            if member_id in group.members:  # others have left meanwhile
                turn.records.append(records.target_assignment(run.group_id, member_id, new))
        if run.changes:
            key = "consumer", "assign", run.group_id
            turn.effects.append(StartTimer(key, 0, lambda now_ms: self._write(run, now_ms)))
        else:
            self._end(turn, run, group, mine)
        return turn.result(None)

    def _end(self, turn: Turn, run: _Run, group: ConsumerGroup, mine: Assignment | None) -> None:
        """The new target counts; who asked for it takes its step."""
        del self._running[run.group_id]
        epoch = run.plan.epoch
        turn.records.append(records.target_epoch(run.group_id, epoch, turn.now_ms))
        if run.is_stale:
            given_up = KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "The member has sent another heartbeat since."
            )
            turn.effects.append(After(lambda: run.parked.fail(given_up)))
            return
        member_id = run.plan.joining.member_id
        target = group.target_of(member_id) if mine is None else mine
        try:
            response = run.finish(turn, group, group.member(member_id), (epoch, target))
        except KafkaError as error:
            fenced = error  # or it has left: the assignment is the others' all the same
            turn.effects.append(After(lambda: run.parked.fail(fenced)))
        else:
            turn.effects.append(Answer(run.parked, response))


def _compute(plan: TargetPlan) -> dict[str, Assignment] | PartitionAssignorError:
    try:
        return plan.compute()
    except PartitionAssignorError as error:
        return error
