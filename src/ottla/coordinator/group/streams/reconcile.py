"""One step of a member towards its target assignment; two processes never have the same active task (KIP-1071).

A member first gives up what it shall not have and stays in its epoch until it says that it has; then it goes to the
target's epoch and gets what is free; what others still have, or another member of its process has in another role, it
gets when they have given it up.

Pure: the member, what it shall have and what it says it has go in, the member after the step comes out.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.coordinator.group.streams.member import MemberState, StreamsGroupMember
from ottla.coordinator.group.streams.owners import TaskOwners
from ottla.coordinator.group.streams.tasks import HeldTasks, TaskIds, Tasks
from ottla.model.errors import ErrorCode, KafkaError


@dataclass(frozen=True, slots=True)
class Reconciliation:
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
