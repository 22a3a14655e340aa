"""A member of a share group. Partitions are shared: it takes what it shall have at once, nobody gives up first."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from ottla.coordinator.group.assignors.api import NO_PARTITIONS, Assignment
from ottla.coordinator.group.modern.group import LEAVE_EPOCH
from ottla.model.ids import Uuid
from ottla.wire.messages.logs import share_group as log

# The only state that a member of a share group is ever in, by its number in the log.
STABLE: Final = 0


@dataclass(frozen=True, slots=True)
class ShareGroupMember:
    """What a member has said of itself, and what it has."""

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = 0
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: frozenset[str] = frozenset()
    assigned: Assignment = field(default_factory=lambda: NO_PARTITIONS)
    state: int = STABLE

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state == STABLE and self.member_epoch == target_epoch

    def reconciled(
        self, target_epoch: int, target: Assignment, subscribed: frozenset[Uuid], *, changed: bool
    ) -> "ShareGroupMember":
        """The member with its target assignment, as far as it subscribes to the topics."""
        if target_epoch == self.member_epoch and not changed:
            return self
        assigned = {topic_id: partitions for topic_id, partitions in target.items() if topic_id in subscribed}
        if target_epoch == self.member_epoch:
            return replace(self, assigned=assigned)
        return replace(
            self,
            member_epoch=target_epoch,
            previous_member_epoch=self.member_epoch,
            state=STABLE,
            assigned=assigned,
        )

    # ---- as the log has it ----------------------------------------------------------------------------------

    def with_metadata(self, value: log.ShareGroupMemberMetadataValue) -> "ShareGroupMember":
        return replace(
            self,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=frozenset(value.subscribed_topic_names),
        )

    def with_assignment(self, value: log.ShareGroupCurrentMemberAssignmentValue) -> "ShareGroupMember":
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=value.state,
            assigned=assignment_of(value.assigned_partitions),
        )

    def without_assignment(self) -> "ShareGroupMember":
        """The member when the log has deleted its assignment: about to be deleted itself."""
        return replace(
            self, member_epoch=LEAVE_EPOCH, previous_member_epoch=LEAVE_EPOCH, assigned=NO_PARTITIONS
        )


def assignment_of(topics: Iterable[log.TopicPartition] | Iterable[log.TopicPartitions]) -> Assignment:
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics}
