"""Target and current assignments of streams groups: Kafka's TargetAssignmentBuilder and CurrentAssignmentBuilder.

A TargetAssignmentBuilder is what the assignor is shown, and what its answer changes: a snapshot of immutable values,
which can be computed in a thread while requests for the group are answered.

A CurrentAssignmentBuilder takes one step of a member towards its target assignment; two processes never have the same
active task (KIP-1071). A member first gives up what it shall not have and stays in its epoch until it says that it
has; then it goes to the target's epoch and gets what is free; what others still have, or another member of its process
has in another role, it gets when they have given it up. Pure: the member, what it shall have and what it says it has
go in, the member after the step comes out.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.coordinator.group.modern.assignment import no_target
from ottla.coordinator.group.streams.assignor import AssignmentMember, TaskAssignorError, assign
from ottla.coordinator.group.streams.group import TaskOwners
from ottla.coordinator.group.streams.member import (
    NOTHING,
    HeldTasks,
    MemberState,
    StreamsGroupMember,
    TaskIds,
    Tasks,
)
from ottla.coordinator.group.streams.topology import ConfiguredTopology
from ottla.coordinator.java_hash import members_in_order
from ottla.model.errors import ErrorCode, KafkaError

log = logging.getLogger("ottla.coordinator.streams")

# Members and tasks up to which an assignment takes no longer than about a millisecond.
INLINE_LIMIT: Final = 200


@dataclass(frozen=True, slots=True)
class TargetAssignmentBuilder:
    """A group as it will be, to be assigned. `joining` is the member whose request asks for it, if one does."""

    epoch: int
    configured: ConfiguredTopology
    configs: Mapping[str, str]
    members: Mapping[str, StreamsGroupMember]
    target: Mapping[str, Tasks]
    joining: StreamsGroupMember | None

    @property
    def is_large(self) -> bool:
        """Would it take the loop's time?"""
        subtopologies = (self.configured.subtopologies or {}) if self.configured.is_ready else {}
        tasks = sum(subtopology.number_of_tasks for subtopology in subtopologies.values())
        return len(self.members) + tasks > INLINE_LIMIT

    def compute(self) -> dict[str, Tasks]:
        """The new tasks of each member that gets others than it had; UNKNOWN_SERVER_ERROR if there are none."""
        assigned = self._assigned()
        return {member_id: new for member_id, new in assigned.items() if self.target.get(member_id) != new}

    def _assigned(self) -> dict[str, Tasks]:
        specs = self._specs()
        if not self.configured.is_ready:
            return dict.fromkeys(specs, NOTHING)
        try:
            return assign(specs, self.configured.subtopologies or {}, self.configs)
        except TaskAssignorError as error:
            log.error("the task assignor failed for epoch %d: %s", self.epoch, error)
            raise no_target(self.epoch, error) from error

    def _specs(self) -> dict[str, AssignmentMember]:
        joining = self.joining
        order = members_in_order(list(self.members), None if joining is None else joining.member_id)
        return {member_id: self._spec(member_id) for member_id in order}

    def _spec(self, member_id: str) -> AssignmentMember:
        joins = self.joining is not None and member_id == self.joining.member_id
        member = self.joining if joins and self.joining is not None else self.members[member_id]
        return AssignmentMember(member.process_id, self.target.get(member_id) or NOTHING)


@dataclass(frozen=True, slots=True)
class CurrentAssignmentBuilder:
    """What a step depends on beside the member."""

    target_epoch: int
    target: Tasks
    # In which processes the tasks are now.
    owners: TaskOwners
    # What the member says it has; None if it did not say.
    owned: Tasks | None

    def step(self, member: StreamsGroupMember) -> StreamsGroupMember:
        """The member after this step; the very same if there is nothing to do."""
        if member.state is MemberState.STABLE:
            return (
                member
                if member.member_epoch == self.target_epoch
                else self._next(member, member.member_epoch)
            )
        if member.state is MemberState.UNREVOKED_TASKS:
            if self.owned is None or self.owned.has_any_of(member.pending_revocation):
                return member
            return self._next(member, member.member_epoch + 1)
        if member.state is MemberState.UNRELEASED_TASKS:
            return self._next(member, member.member_epoch)
        if self.owned is None or not self.owned.is_empty:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The member is in a state that this coordinator does not know: it must give up everything and rejoin.",
            )
        return self._next(member, self.target_epoch)

    def _next(self, member: StreamsGroupMember, epoch: int) -> StreamsGroupMember:
        """Towards the target: revoke, staying in `epoch`, else assign what is free."""
        process = member.process_id
        had = member.assigned
        active = _divide(had.active, self.target.active, self._is_active_taken(process))
        standby = _divide(had.standby, self.target.standby, self._is_in_process(process))
        warmup = _divide(had.warmup, self.target.warmup, self._is_in_process(process))
        kept = HeldTasks(_with_epochs(active.kept, had), standby.kept, warmup.kept)
        revoked = HeldTasks(_with_epochs(active.revoked, had), standby.revoked, warmup.revoked)
        if not revoked.is_empty and (self.owned is None or self.owned.has_any_of(revoked)):
            return member.moved_to(epoch, MemberState.UNREVOKED_TASKS, kept, revoked)
        fresh = {s: dict.fromkeys(partitions, self.target_epoch) for s, partitions in active.free.items()}
        assigned = kept.merged(HeldTasks(fresh, standby.free, warmup.free))
        waits = active.waits or standby.waits or warmup.waits
        state = MemberState.UNRELEASED_TASKS if waits else MemberState.STABLE
        return member.moved_to(self.target_epoch, state, assigned)

    def _is_active_taken(self, process: str) -> Callable[[str, int], bool]:
        owners = self.owners
        return lambda s, p: (
            owners.active(s, p) is not None
            or process in owners.standby(s, p)
            or process in owners.warmup(s, p)
        )

    def _is_in_process(self, process: str) -> Callable[[str, int], bool]:
        owners = self.owners
        return lambda s, p: (
            owners.active(s, p) == process
            or process in owners.standby(s, p)
            or process in owners.warmup(s, p)
        )


class _Division(NamedTuple):
    """Tasks of one kind: what the member keeps, gives up and can get; and whether there is more it must wait for."""

    kept: TaskIds
    revoked: TaskIds
    free: TaskIds
    waits: bool


def _divide(
    had: Mapping[str, Collection[int]], target: TaskIds, is_taken: Callable[[str, int], bool]
) -> _Division:
    kept: dict[str, frozenset[int]] = {}
    revoked: dict[str, frozenset[int]] = {}
    free: dict[str, frozenset[int]] = {}
    waits = False
    for subtopology in {**target, **had}:
        mine = frozenset(had.get(subtopology, ()))
        wanted = target.get(subtopology, frozenset())
        lacking = wanted - mine
        available = frozenset(p for p in lacking if not is_taken(subtopology, p))
        waits = waits or len(available) < len(lacking)
        for result, partitions in ((kept, mine & wanted), (revoked, mine - wanted), (free, available)):
            if partitions:
                result[subtopology] = partitions
    return _Division(kept, revoked, free, waits)


def _with_epochs(tasks: TaskIds, had: HeldTasks) -> dict[str, dict[int, int]]:
    """A task keeps the epoch in which it was assigned."""
    return {s: {p: had.active[s][p] for p in partitions} for s, partitions in tasks.items()}
