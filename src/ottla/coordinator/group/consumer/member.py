"""Kafka's ConsumerGroupMember: what it said of itself, what it has, and what it must still give up.

Immutable: a change is a new member. An assignment holds, for each partition, the epoch in which it was assigned to
the member, because a commit may still come from a member that has not heard of a later epoch (KIP-1251).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from ottla.coordinator.group.modern.group import LEAVE_EPOCH
from ottla.model.ids import Uuid
from ottla.wire.messages.logs.offsets import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    TopicPartitions,
)

# Partition to the epoch in which the member got it, by topic.
EpochAssignment = Mapping[Uuid, Mapping[int, int]]
NOTHING: Final[EpochAssignment] = MappingProxyType({})


class MemberState(IntEnum):
    """How far a member is with its target assignment, by the numbers in the log."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127

    @classmethod
    def _missing_(cls, value: object) -> "MemberState":
        """Only a newer broker can have written it."""
        return cls.UNKNOWN


# A member gives up first, then takes what others have given up; a newer target may begin at any time. Only what a
# newer broker has written is unknown.
TRANSITIONS: Final[dict[MemberState, frozenset[MemberState]]] = {
    state: frozenset(MemberState) - {MemberState.UNKNOWN} for state in MemberState
}


@dataclass(frozen=True, slots=True)
class ConsumerGroupMember:
    """A member as the group knows it."""

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    subscribed_topic_regex: str | None = ""
    server_assignor: str | None = None
    assigned: EpochAssignment = field(default_factory=lambda: NOTHING)
    pending_revocation: EpochAssignment = field(default_factory=lambda: NOTHING)
    # Of members that speak the classic protocol only.
    classic: ClassicMemberMetadata | None = None

    @property
    def uses_classic_protocol(self) -> bool:
        return self.classic is not None

    @property
    def regex(self) -> str | None:
        """The regular expression it subscribes to; None if to none."""
        return self.subscribed_topic_regex or None

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def moved_to(self, epoch: int, state: MemberState, assigned: EpochAssignment,
                 pending_revocation: EpochAssignment = NOTHING) -> "ConsumerGroupMember":  # fmt: skip
        """The member after a step of its reconciliation."""
        assert state in TRANSITIONS[self.state], f"{self.state.name} to {state.name}"
        return replace(
            self,
            member_epoch=epoch,
            previous_member_epoch=self.member_epoch,
            state=state,
            assigned=assigned,
            pending_revocation=pending_revocation,
        )

    def assignment_epoch(self, topic_id: Uuid, partition: int) -> int | None:
        """In which epoch it got a partition that it has or must still give up."""
        epoch = self.assigned.get(topic_id, {}).get(partition)
        return self.pending_revocation.get(topic_id, {}).get(partition) if epoch is None else epoch

    # ---- as the log has it ----------------------------------------------------------------------------------

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> "ConsumerGroupMember":
        classic = value.classic_member_metadata
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=frozenset(value.subscribed_topic_names),
            subscribed_topic_regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=classic if classic is not None and classic.supported_protocols else None,
        )

    def with_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> "ConsumerGroupMember":
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=MemberState(value.state),
            assigned=_from_log(value.assigned_partitions, value.member_epoch),
            pending_revocation=_from_log(value.partitions_pending_revocation, value.member_epoch),
        )

    def without_assignment(self) -> "ConsumerGroupMember":
        """The member when the log has deleted its assignment: about to be deleted itself."""
        return replace(
            self,
            member_epoch=LEAVE_EPOCH,
            previous_member_epoch=LEAVE_EPOCH,
            assigned=NOTHING,
            pending_revocation=NOTHING,
        )


def _from_log(topics: Iterable[TopicPartitions], member_epoch: int) -> EpochAssignment:
    """Records of older versions have no epochs of their own for the partitions: the member's stands for them."""
    default = max(member_epoch, 0)
    found: dict[Uuid, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [default] * len(topic.partitions)
        found[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return found
