"""Target assignments of consumer groups that are made in a thread: of large groups, and by assignors of somebody's own.

Owner: the ConsumerManager of a shard.
"""

from collections.abc import Callable
from typing import Any, Final

from ottla.coordinator.group.assignors.api import Assignment
from ottla.coordinator.group.consumer import records
from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.consumer.member import ConsumerGroupMember
from ottla.coordinator.group.consumer.target import TargetPlan
from ottla.coordinator.group.modern_large import ModernLargeAssignments, Run
from ottla.coordinator.group.modern_turn import Turn
from ottla.coordinator.result import After, Answer, Result, StartTimer
from ottla.model.errors import ErrorCode, KafkaError

# Members whose new target is written in one decision: about a millisecond.
PORTION: Final = 50

Finish = Callable[[Turn, ConsumerGroup, ConsumerGroupMember, tuple[int, Assignment]], Any]
_Run = Run[TargetPlan, Finish, Assignment]


class LargeAssignments(ModernLargeAssignments[TargetPlan, Finish, Assignment]):
    """See the module."""

    def heard_of(self, group_id: str, member_id: str) -> None:
        """A member says something new. If an older request of its own is parked, it has given that up."""
        run = self._running.get(group_id)
        if run is not None and run.plan.joining.member_id == member_id:
            run.is_stale = True

    def _write(self, run: _Run, now_ms: int) -> Result[None]:
        group = self._context.groups.get(run.group_id)
        if not isinstance(group, ConsumerGroup) or group.epoch < run.plan.epoch:  # or is another by now
            self._fail(run, KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {run.group_id} is gone."))
            return Result(None)
        turn = Turn(now_ms)
        turn.failures.append(lambda error: self._fail(run, error))
        mine = run.changes.get(run.plan.joining.member_id)
        for member_id, new in run.portion(PORTION, group.members):
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
