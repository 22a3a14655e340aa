"""Kafka's StreamsGroupMember and its tasks: what it said of itself, what it has, and what it must still give up.

Immutable: a change is a new member. A member is one thread of an instance; members of one process share its state
directory, so no two of them may have the same task in whatever role.

A task is a partition of a subtopology; a member has active ones, standbys that follow along, and warm-ups on their way
to become active. Of active tasks that a member has, the epoch is known in which it got each, because a commit may
still come from a member that has not heard of a later one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from ottla.coordinator.group.modern.group import LEAVE_EPOCH
from ottla.wire.messages.logs.streams_group import (
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataValue,
)

# Partitions by subtopology.
TaskIds = Mapping[str, frozenset[int]]
# The epoch in which each was assigned, by partition, by subtopology.
TaskEpochs = Mapping[str, Mapping[int, int]]

NO_TASKS: Final[Mapping[str, Any]] = MappingProxyType({})


class Tasks(NamedTuple):
    """What a member shall have, or says that it has."""

    active: TaskIds = NO_TASKS
    standby: TaskIds = NO_TASKS
    warmup: TaskIds = NO_TASKS

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def has_any_of(self, other: "HeldTasks") -> bool:
        """Is any of the others' tasks, of the same kind, among these?"""
        return (
            _overlap(self.active, other.active)
            or _overlap(self.standby, other.standby)
            or _overlap(self.warmup, other.warmup)
        )


class HeldTasks(NamedTuple):
    """What a member has, or must still give up."""

    active: TaskEpochs = NO_TASKS
    standby: TaskIds = NO_TASKS
    warmup: TaskIds = NO_TASKS

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)

    def merged(self, other: "HeldTasks") -> "HeldTasks":
        active = {subtopology: dict(epochs) for subtopology, epochs in self.active.items()}
        for subtopology, epochs in other.active.items():
            active.setdefault(subtopology, {}).update(epochs)
        return HeldTasks(active, _union(self.standby, other.standby), _union(self.warmup, other.warmup))

    def epoch_of(self, subtopology: str, partition: int) -> int | None:
        """In which epoch an active task was assigned; None if it is not here."""
        epochs = self.active.get(subtopology)
        return None if epochs is None else epochs.get(partition)


NOTHING: Final = Tasks()
NOTHING_HELD: Final = HeldTasks()


def _overlap(mine: TaskIds, others: Mapping[str, Any]) -> bool:
    return any(s in others and not partitions.isdisjoint(others[s]) for s, partitions in mine.items())


def _union(first: TaskIds, second: TaskIds) -> TaskIds:
    merged = dict(first)
    for subtopology, partitions in second.items():
        merged[subtopology] = merged.get(subtopology, frozenset()) | partitions
    return merged


class TaskRow(Protocol):
    """A row of a request or a record."""

    subtopology_id: str
    partitions: list[int]


def task_ids(rows: Iterable[TaskRow]) -> dict[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    for row in rows:
        found[row.subtopology_id] = found.get(row.subtopology_id, frozenset()) | frozenset(row.partitions)
    return found


class EpochRow(TaskRow, Protocol):
    """A row of a record that may know the epochs."""

    assignment_epochs: list[int] | None


def task_epochs(rows: Iterable[EpochRow], member_epoch: int) -> dict[str, dict[int, int]]:
    """Records of older brokers have no epochs of their own for the tasks: the member's stands for them."""
    found: dict[str, dict[int, int]] = {}
    for row in rows:
        epochs = row.assignment_epochs
        if epochs is None or len(epochs) != len(row.partitions):
            epochs = [member_epoch] * len(row.partitions)
        found[row.subtopology_id] = dict(zip(row.partitions, epochs, strict=True))
    return found


class MemberState(IntEnum):
    """How far a member is with its target assignment, by the numbers in the log."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    UNRELEASED_TASKS = 3
    UNKNOWN = 127

    @classmethod
    def _missing_(cls, value: object) -> "MemberState":
        """Only a newer broker can have written it."""
        return cls.UNKNOWN


# A member gives up first, then takes what others have given up; a newer target assignment begins at any time.
TRANSITIONS: Final[dict[MemberState, frozenset[MemberState]]] = {
    state: frozenset(MemberState) - {MemberState.UNKNOWN} for state in MemberState
}


class UserEndpoint(NamedTuple):
    """Where an instance can be queried (Interactive Queries)."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class StreamsGroupMember:
    """One thread of an instance, as the group knows it."""

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    user_endpoint: UserEndpoint | None = None
    client_tags: Mapping[str, str] = field(default_factory=lambda: NO_TASKS)
    assigned: HeldTasks = NOTHING_HELD
    pending_revocation: HeldTasks = NOTHING_HELD

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def moved_to(
        self,
        epoch: int,
        state: MemberState,
        assigned: HeldTasks,
        pending_revocation: HeldTasks = NOTHING_HELD,
    ) -> "StreamsGroupMember":
        """The member after a step of its reconciliation."""
        return replace(
            self,
            member_epoch=epoch,
            previous_member_epoch=self.member_epoch,
            state=state,
            assigned=assigned,
            pending_revocation=pending_revocation,
        )

    # ---- as the log has it ----------------------------------------------------------------------------------

    def with_metadata(self, value: StreamsGroupMemberMetadataValue) -> "StreamsGroupMember":
        endpoint = value.user_endpoint
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topology_epoch=value.topology_epoch,
            process_id=value.process_id,
            user_endpoint=None if endpoint is None else UserEndpoint(endpoint.host, endpoint.port),
            client_tags={tag.key: tag.value for tag in value.client_tags},
        )

    def with_assignment(self, value: StreamsGroupCurrentMemberAssignmentValue) -> "StreamsGroupMember":
        epoch = value.member_epoch
        return replace(
            self,
            member_epoch=epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=MemberState(value.state),
            assigned=HeldTasks(
                task_epochs(value.active_tasks, epoch),
                task_ids(value.standby_tasks),
                task_ids(value.warmup_tasks),
            ),
            pending_revocation=HeldTasks(
                task_epochs(value.active_tasks_pending_revocation, epoch),
                task_ids(value.standby_tasks_pending_revocation),
                task_ids(value.warmup_tasks_pending_revocation),
            ),
        )

    def without_assignment(self) -> "StreamsGroupMember":
        """The member when the log has deleted its assignment: about to be deleted itself."""
        return replace(
            self,
            member_epoch=LEAVE_EPOCH,
            previous_member_epoch=LEAVE_EPOCH,
            assigned=NOTHING_HELD,
            pending_revocation=NOTHING_HELD,
        )
