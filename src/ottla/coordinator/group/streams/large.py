"""Target assignments that take more time than the loop has: groups with very many tasks.

The assignment is computed in a thread from a snapshot of the group, while the group goes on with the target it has.
The member whose request started it is answered when it is done; the others learn of it with their next heartbeat.
What has changed is written in portions, and counts with the last of them: the epoch.

Owner: the StreamsManager of a shard.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from ottla.coordinator.group.modern_turn import Turn
from ottla.coordinator.group.streams import records
from ottla.coordinator.group.streams.assignor import TaskAssignorError
from ottla.coordinator.group.streams.core import StreamsGroups, Target, assignor_failed
from ottla.coordinator.group.streams.group import StreamsGroup
from ottla.coordinator.group.streams.member import StreamsGroupMember
from ottla.coordinator.group.streams.target import TargetPlan
from ottla.coordinator.group.streams.tasks import Tasks
from ottla.coordinator.result import After, Answer, Result, StartTimer
from ottla.model.errors import KafkaError
from ottla.model.pending import Pending

# Members whose new target is written in one decision.
PORTION: Final = 20

Finish = Callable[[Turn, StreamsGroup, StreamsGroupMember, Target], Any]


@dataclass(slots=True)
class _Run:
    """One assignment on its way. Without a `finish` nobody waits for it."""

    group_id: str
    plan: TargetPlan
    finish: Finish | None
    parked: Pending[Any] = field(default_factory=Pending)
    changes: dict[str, Tasks] = field(default_factory=dict)


class LargeAssignments:
    """See the module."""

    def __init__(self, groups: StreamsGroups) -> None:
        self._groups = groups
        self._running: dict[str, _Run] = {}

    def is_for(self, plan: TargetPlan) -> bool:
        """Is there somewhere else to do it, and is that worth it?"""
        return self._groups.context.background is not None and plan.is_large

    def is_running(self, group_id: str) -> bool:
        return group_id in self._running

    def begin(self, turn: Turn, group_id: str, plan: TargetPlan, finish: Finish | None) -> Pending[Any]:
        """Compute it elsewhere; the answer that `finish` makes comes later."""
        background = self._groups.context.background
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

    def _computed(self, run: _Run, found: dict[str, Tasks] | TaskAssignorError, now_ms: int) -> Result[None]:
        if self._running.get(run.group_id) is not run:
            return Result(None)  # the shard was closed meanwhile
        if isinstance(found, TaskAssignorError):
            self._fail(run, assignor_failed(run.plan, found))
            return Result(None)
        run.changes = found
        return self._write(run, now_ms)

    def _write(self, run: _Run, now_ms: int) -> Result[None]:
        """The next portion, or the last one and the end."""
        turn = Turn(now_ms)
        turn.failures.append(lambda error: self._fail(run, error))
        try:
            group = self._groups.streams_group(run.group_id)
            joining = run.plan.joining
            mine = None if joining is None else run.changes.get(joining.member_id)
            last = len(run.changes) <= PORTION
            for member_id in list(islice(run.changes, PORTION)):
                new = run.changes.pop(member_id)
                if member_id in group.members:  # others have left meanwhile
                    turn.records.append(records.target_assignment(run.group_id, member_id, new))
            if last:
                self._end(turn, run, group, mine)
            else:
                key = "streams", "assign", run.group_id
                turn.effects.append(StartTimer(key, 0, lambda now_ms: self._write(run, now_ms)))
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


def _compute(plan: TargetPlan) -> dict[str, Tasks] | TaskAssignorError:
    try:
        return plan.compute()
    except TaskAssignorError as error:
        return error
