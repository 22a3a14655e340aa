"""A share group: its members, what they subscribe to and what they shall have.

Hard state only, changed by replay alone. The one piece of soft state is when the group looks at its topics again.

Owner: the ShareManager of one group shard.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, NoReturn

from ottla.coordinator.group.assignors.api import NO_PARTITIONS, Assignment, SubscriptionType
from ottla.coordinator.group.group import CommitPartitionValidator, GroupType, OffsetExpiration
from ottla.coordinator.group.share import records
from ottla.coordinator.group.share.member import ShareGroupMember
from ottla.coordinator.result import CoordinatorRecord
from ottla.coordinator.timeline import Timeline, TimelineDict, TimelineValue
from ottla.model.errors import ErrorCode, KafkaError

PROTOCOL_TYPE: Final = "share"


class ShareGroupState(StrEnum):
    """A group's state, by the names that are told; it follows from whether it has members."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: Final[dict[ShareGroupState, frozenset[ShareGroupState]]] = {
    ShareGroupState.EMPTY: frozenset({ShareGroupState.STABLE, ShareGroupState.DEAD}),
    ShareGroupState.STABLE: frozenset({ShareGroupState.EMPTY}),
    ShareGroupState.DEAD: frozenset(),
}


class TargetEpoch(NamedTuple):
    """The epoch that the target assignment was made for, and when."""

    epoch: int = 1
    timestamp_ms: int = 0


class ShareGroup:
    """See the module."""

    def __init__(self, timeline: Timeline, group_id: str) -> None:
        self._group_id = group_id
        self._epoch = TimelineValue(timeline, 1)
        self._metadata_hash = TimelineValue(timeline, 0)
        self._target_epoch = TimelineValue(timeline, TargetEpoch())
        self.members: TimelineDict[str, ShareGroupMember] = TimelineDict(timeline)
        self.target: TimelineDict[str, Assignment] = TimelineDict(timeline)
        # How many members subscribe to each topic.
        self.subscriptions: TimelineDict[str, int] = TimelineDict(timeline)
        # Soft: the topics are looked at again from then on, or if the epoch below was never written.
        self._refresh_at_ms: float = 0
        self._refresh_epoch = 0
        # Soft: counts what is replayed; with the epochs, which a failed write takes back, it names a state.
        self._changes = 0
        self._settled: tuple[Any, ...] = ()

    # ---- epochs ---------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self._epoch.value

    @property
    def metadata_hash(self) -> int:
        return self._metadata_hash.value

    @property
    def target_epoch(self) -> TargetEpoch:
        return self._target_epoch.value

    def committed_epochs(self) -> tuple[int, int]:
        """The group's epoch and that of its target assignment, as they are committed."""
        return self._epoch.committed, self._target_epoch.committed.epoch

    def refresh_after(self, deadline_ms: float, epoch: int) -> None:
        self._refresh_at_ms = deadline_ms
        self._refresh_epoch = epoch

    def refresh_now(self) -> None:
        self.refresh_after(0, 0)

    def must_refresh(self, now_ms: int) -> bool:
        return now_ms >= self._refresh_at_ms or self.epoch < self._refresh_epoch

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

    def member(self, member_id: str) -> ShareGroupMember:
        """The member; UNKNOWN_MEMBER_ID if there is none."""
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member of group {self._group_id}."
            )
        return member

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
        self._epoch.value = epoch
        self._metadata_hash.value = metadata_hash

    def set_target_epoch(self, epoch: int, timestamp_ms: int) -> None:
        self._changes += 1
        self._target_epoch.value = TargetEpoch(epoch, timestamp_ms)

    def put_target(self, member_id: str, target: Assignment) -> None:
        self._changes += 1
        self.target[member_id] = target

    def remove_target(self, member_id: str) -> None:
        self._changes += 1
        self.target.pop(member_id)

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
    def group_id(self) -> str:
        return self._group_id

    @property
    def type(self) -> GroupType:
        return GroupType.SHARE

    @property
    def protocol_type(self) -> str:
        return PROTOCOL_TYPE

    def state_name(self, *, committed: bool = True) -> str:
        members = len(self.members.committed_view()) if committed else len(self.members)
        return ShareGroupState.STABLE if members else ShareGroupState.EMPTY

    def is_empty(self) -> bool:
        return not len(self.members)

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
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self._group_id} is a share group.")

    def validate_delete(self) -> None:
        if not self.is_empty():
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscriptions

    def offset_expiration(self) -> OffsetExpiration | None:
        """It has none."""
        return None

    def tombstones(self) -> Iterator[CoordinatorRecord]:
        group_id = self._group_id
        yield from (records.current_assignment_tombstone(group_id, member_id) for member_id in self.members)
        yield from (records.target_assignment_tombstone(group_id, member_id) for member_id in self.members)
        yield records.target_epoch_tombstone(group_id)
        yield from (records.member_metadata_tombstone(group_id, member_id) for member_id in self.members)
        yield records.topic_states_tombstone(group_id)
        yield records.group_epoch_tombstone(group_id)


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
