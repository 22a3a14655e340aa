"""A member of a streams group: what it said of itself, what it has, and what it must still give up.

Immutable: a change is a new member. A member is one thread of an instance; members of one process share its state
directory, so no two of them may have the same task in whatever role.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.coordinator.group.modern_member import LEAVE_EPOCH
from ottla.coordinator.group.streams.tasks import NO_TASKS, NOTHING_HELD, HeldTasks, task_epochs, task_ids
from ottla.wire.messages.streams_group_log import (
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataValue,
)


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
    """See the module."""

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
