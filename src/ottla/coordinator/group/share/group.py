"""A share group: its members, what they subscribe to and what they shall have.

Changed by replay alone, as every ModernGroup. Soft is the memory that there was nothing to do: most heartbeats need no
more than that.

Owner: the ShareGroupManager of one group shard.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, NoReturn

from ottla.coordinator.group.assignors.api import NO_PARTITIONS, Assignment, SubscriptionType
from ottla.coordinator.group.group import CommitPartitionValidator, GroupType, OffsetExpiration
from ottla.coordinator.group.modern.group import ModernGroup, TargetEpoch
from ottla.coordinator.group.share import assignor, records
from ottla.coordinator.group.share.member import ShareGroupMember
from ottla.coordinator.shard import CoordinatorRecord
from ottla.coordinator.timeline import Timeline, TimelineDict
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.groups.share import (
    DescribedGroup,
    Member,
    ShareGroupDescribeResponseAssignment,
    ShareGroupDescribeResponseTopicPartitions,
)

PROTOCOL_TYPE: Final = "share"


class ShareGroupState(StrEnum):
    """A group's state, by its name in answers; it follows from whether it has members."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: Final[dict[ShareGroupState, frozenset[ShareGroupState]]] = {
    ShareGroupState.EMPTY: frozenset({ShareGroupState.STABLE, ShareGroupState.DEAD}),
    ShareGroupState.STABLE: frozenset({ShareGroupState.EMPTY}),
    ShareGroupState.DEAD: frozenset(),
}


class ShareGroup(ModernGroup[ShareGroupMember, Assignment]):
    """Kafka's ShareGroup."""

    def __init__(self, timeline: Timeline, group_id: str) -> None:
        super().__init__(timeline, group_id)
        # How many members subscribe to each topic.
        self.subscriptions: TimelineDict[str, int] = TimelineDict(timeline)
        # Soft: counts what is replayed; with the epochs, which a failed write takes back, it names a state.
        self._changes = 0
        self._settled: tuple[Any, ...] = ()

    # ---- whether there is anything to do --------------------------------------------------------------------

    def note_settled(self, *surroundings: object) -> None:
        """There was nothing to do for anybody, things being as they are."""
        self._settled = (*self._version(), *surroundings)

    def is_settled(self, *surroundings: object) -> bool:
        """Is everything as it was when there was nothing to do? Then there is nothing to do now."""
        noted = self._settled
        if not noted or noted[:2] != self._version():
            return False
        return all(then is now for then, now in zip(noted[2:], surroundings, strict=True))

    def _version(self) -> tuple[int, int]:
        return self._changes, self.epoch

    # ---- members --------------------------------------------------------------------------------------------

    def target_of(self, member_id: str) -> Assignment:
        return self.target.get(member_id) or NO_PARTITIONS

    def subscriptions_with(
        self, member: ShareGroupMember, updated: ShareGroupMember | None
    ) -> Mapping[str, int]:
        """How many subscribe to each topic once `updated` stands for `member`."""
        counts: dict[str, int] = dict(self.subscriptions.items())
        before = member.subscribed_topic_names if member.member_id in self.members else frozenset()
        _count(counts, before, updated.subscribed_topic_names if updated else frozenset())
        return counts

    # ---- replay ---------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int, metadata_hash: int) -> None:
        self._changes += 1
        super().set_epoch(epoch, metadata_hash)

    def set_target_epoch(self, target: TargetEpoch) -> None:
        self._changes += 1
        super().set_target_epoch(target)

    def put_target(self, member_id: str, target: Assignment) -> None:
        self._changes += 1
        super().put_target(member_id, target)

    def remove_target(self, member_id: str) -> None:
        self._changes += 1
        super().remove_target(member_id)

    def put_member(self, member: ShareGroupMember) -> None:
        self._changes += 1
        old = self.members.get(member.member_id)
        self.members[member.member_id] = member
        before = old.subscribed_topic_names if old else frozenset()
        _count(self.subscriptions, before, member.subscribed_topic_names)

    def remove_member(self, member_id: str) -> None:
        self._changes += 1
        old = self.members.pop(member_id)
        if old is not None:
            _count(self.subscriptions, old.subscribed_topic_names, frozenset())

    # ---- what every group answers ---------------------------------------------------------------------------

    @property
    def type(self) -> GroupType:
        return GroupType.SHARE

    @property
    def protocol_type(self) -> str:
        return PROTOCOL_TYPE

    def state_name(self, *, committed: bool = True) -> str:
        members = len(self.members.committed_view()) if committed else len(self.members)
        return ShareGroupState.STABLE if members else ShareGroupState.EMPTY

    def validate_offset_commit(
        self, member_id: str, group_instance_id: str | None, epoch: int, *, transactional: bool, version: int
    ) -> CommitPartitionValidator | None:
        """Members of a share group commit no offsets."""
        self._no_offsets()

    def validate_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        self._no_offsets()

    def validate_offset_delete(self) -> None:
        self._no_offsets()

    def _no_offsets(self) -> NoReturn:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is a share group.")

    def validate_delete(self) -> None:
        if not self.is_empty():
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscriptions

    def offset_expiration(self) -> OffsetExpiration | None:
        """It has none."""
        return None

    def tombstones(self) -> Iterator[CoordinatorRecord]:
        yield from records.removed_members(self.group_id, self.members)
        yield records.topic_states_tombstone(self.group_id)
        yield records.group_epoch_tombstone(self.group_id)


def subscription_type(subscriptions: Mapping[str, int], members: int) -> SubscriptionType:
    """Do all members subscribe to the same topics?"""
    same = all(count == members for count in subscriptions.values())
    return SubscriptionType.HOMOGENEOUS if same else SubscriptionType.HETEROGENEOUS


def _count(
    counts: "dict[str, int] | TimelineDict[str, int]", before: frozenset[str], after: frozenset[str]
) -> None:
    for topic in before - after:
        left = (counts.get(topic) or 0) - 1
        if left > 0:
            counts[topic] = left
        else:
            counts.pop(topic)
    for topic in after - before:
        counts[topic] = (counts.get(topic) or 0) + 1


def describe(group: ShareGroup, image: ClusterImage) -> DescribedGroup:
    """The group as ShareGroupDescribe shows it: what is committed of it."""
    epoch, target_epoch = group.committed_epochs()
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name(),
        group_epoch=epoch,
        assignment_epoch=target_epoch,
        assignor_name=assignor.NAME,
        members=[_member(member, image) for member in group.members.committed_view().values()],
    )


def _member(member: ShareGroupMember, image: ClusterImage) -> Member:
    topics = [
        ShareGroupDescribeResponseTopicPartitions(
            topic_id=topic_id, topic_name=topic.name, partitions=sorted(partitions)
        )
        for topic_id, partitions in member.assigned.items()
        if (topic := image.topic_by_id(topic_id)) is not None
    ]
    return Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_topic_names),
        assignment=ShareGroupDescribeResponseAssignment(topic_partitions=topics),
    )
