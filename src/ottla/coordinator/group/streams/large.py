"""Target assignments of streams groups that are made in a thread: of groups with very many tasks.

Owner: the StreamsManager of a shard.
"""

from collections.abc import Callable
from typing import Any, Final

from ottla.coordinator.group.modern_large import ModernLargeAssignments, Run
from ottla.coordinator.group.modern_turn import Turn
from ottla.coordinator.group.streams import records
from ottla.coordinator.group.streams.core import StreamsGroups, Target
from ottla.coordinator.group.streams.group import StreamsGroup
from ottla.coordinator.group.streams.member import StreamsGroupMember
from ottla.coordinator.group.streams.target import TargetPlan
from ottla.coordinator.group.streams.tasks import Tasks
from ottla.coordinator.result import Answer, Result, StartTimer
from ottla.model.errors import KafkaError

# Members whose new target is written in one decision.
PORTION: Final = 20

# Without one nobody waits for the assignment.
Finish = Callable[[Turn, StreamsGroup, StreamsGroupMember, Target], Any] | None
_Run = Run[TargetPlan, Finish, Tasks]


class LargeAssignments(ModernLargeAssignments[TargetPlan, Finish, Tasks]):
    """See the module."""

    def __init__(self, groups: StreamsGroups) -> None:
        super().__init__(groups.context)
        self._groups = groups

    def _write(self, run: _Run, now_ms: int) -> Result[None]:
        turn = Turn(now_ms)
        turn.failures.append(lambda error: self._fail(run, error))
        try:
            group = self._groups.streams_group(run.group_id)
            joining = run.plan.joining
            mine = None if joining is None else run.changes.get(joining.member_id)
            for member_id, new in run.portion(PORTION, group.members):
                turn.records.append(records.target_assignment(run.group_id, member_id, new))
            if run.changes:
                key = "streams", "assign", run.group_id
                turn.effects.append(StartTimer(key, 0, lambda now_ms: self._write(run, now_ms)))
            else:
                self._end(turn, run, group, mine)
        except KafkaError as error:
            self._fail(run, error)
            return Result(None)
        return turn.result(None)

    def _end(self, turn: Turn, run: _Run, group: StreamsGroup, mine: Tasks | None) -> None:
        epoch, joining = run.plan.epoch, run.plan.joining
        turn.records.append(records.target_epoch(run.group_id, epoch, turn.now_ms))
        answer = None
        if joining is not None and run.finish is not None:
            member = group.member(joining.member_id)
            target = Target(epoch, group.target_of(joining.member_id) if mine is None else mine)
            answer = run.finish(turn, group, member, target)
        del self._running[run.group_id]
        turn.effects.append(Answer(run.parked, answer))
