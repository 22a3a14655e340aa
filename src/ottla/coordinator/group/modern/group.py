"""Kafka's ModernGroup: what consumer, share and streams groups have in common: epochs, members, their targets.

Hard state, changed by replay alone. The one piece of soft state is when the group looks at its topics again. The
records are common to the three kinds too, though each has its own types for them (ModernRecords).

Owner: the manager of one kind of group in a shard.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from ottla.coordinator.shard import CoordinatorRecord
from ottla.coordinator.timeline import Timeline, TimelineDict, TimelineValue
from ottla.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# A member, and what it shall have, as the kind of group has them.
M = TypeVar("M")
T = TypeVar("T")


# What a member says in the place of its epoch: that it joins, leaves, or leaves for a while and keeps its instance id.
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2

D = TypeVar("D", bound="DataclassInstance")


class TargetEpoch(NamedTuple):
    """The epoch that the target assignment was made for, and when."""

    epoch: int = 1
    timestamp_ms: int = 0


class ModernGroup(Generic[M, T]):
    """Members of type M, each with a target assignment of type T."""

    def __init__(self, timeline: Timeline, group_id: str) -> None:
        self.group_id: Final = group_id
        self._epoch = TimelineValue(timeline, 1)
        self._metadata_hash = TimelineValue(timeline, 0)
        self._target_epoch = TimelineValue(timeline, TargetEpoch())
        self.members: TimelineDict[str, M] = TimelineDict(timeline)
        self.target: TimelineDict[str, T] = TimelineDict(timeline)
        # Soft: the topics are looked at again from then on, or if the epoch below was never written.
        self._refresh_at_ms: float = 0
        self.refresh_epoch = 0

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
        self.refresh_epoch = epoch

    def refresh_now(self) -> None:
        self.refresh_after(0, 0)

    def must_refresh(self, now_ms: int) -> bool:
        return now_ms >= self._refresh_at_ms or self._epoch.value < self.refresh_epoch

    # ---- members --------------------------------------------------------------------------------------------

    def member(self, member_id: str) -> M:
        """The member; UNKNOWN_MEMBER_ID if there is none."""
        member = self.members.get(member_id)
        if member is None:
            raise self._unknown(member_id)
        return member

    def committed_member(self, member_id: str | None) -> M:
        """The member as it is committed; UNKNOWN_MEMBER_ID if there is none."""
        member = self.members.committed(member_id or "")
        if member is None:
            raise self._unknown(member_id)
        return member

    def _unknown(self, member_id: str | None) -> KafkaError:
        message = f"{member_id} is no member of group {self.group_id}."
        return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)

    def is_empty(self) -> bool:
        return not len(self.members)

    def _epochs_and_members(self, *, committed: bool) -> tuple[int, int, Mapping[str, M]]:
        """What a group's state follows from: its epoch, that of its target assignment, and the members."""
        if committed:
            return (*self.committed_epochs(), self.members.committed_view())
        return self.epoch, self.target_epoch.epoch, dict(self.members.items())

    # ---- replay ---------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int, metadata_hash: int) -> None:
        self._epoch.value = epoch
        self._metadata_hash.value = metadata_hash

    def set_target_epoch(self, target: TargetEpoch) -> None:
        self._target_epoch.value = target

    def put_target(self, member_id: str, target: T) -> None:
        self.target[member_id] = target

    def remove_target(self, member_id: str) -> None:
        self.target.pop(member_id)


def changed(member: D, **fields: Any) -> D:
    """The member with these fields; the very same if none of them is new."""
    if all(getattr(member, name) == value for name, value in fields.items()):
        return member
    return replace(member, **fields)


def fenced(member_epoch: int, epoch: int) -> KafkaError:
    """For a member that says it is in an epoch in which it cannot be."""
    return KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The member is in epoch {member_epoch}, not in {epoch}: it must give up everything and rejoin.",
    )


@dataclass(frozen=True, slots=True)
class ModernRecords:
    """One kind's types of keys: of the group, its members, and what these shall have and have."""

    group: type[Any]
    member: type[Any]
    target_epoch_key: type[Any]
    target_epoch_value: type[Any]
    target: type[Any]
    current: type[Any]

    def target_epoch(self, group_id: str, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
        value = self.target_epoch_value(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
        return CoordinatorRecord(self.target_epoch_key(group_id=group_id), value)

    def group_epoch_tombstone(self, group_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(self.group(group_id=group_id), None)

    def removed_member(self, group_id: str, member_id: str) -> list[CoordinatorRecord]:
        """A member is gone: what depends on it is deleted before it is."""
        return [
            _member_tombstone(key, group_id, member_id) for key in (self.current, self.target, self.member)
        ]

    def removed_members(self, group_id: str, member_ids: Collection[str]) -> Iterator[CoordinatorRecord]:
        """The group is deleted: all its members, and the target assignment with what depends on it before them."""
        yield from (_member_tombstone(self.current, group_id, member_id) for member_id in member_ids)
        yield from (_member_tombstone(self.target, group_id, member_id) for member_id in member_ids)
        yield CoordinatorRecord(self.target_epoch_key(group_id=group_id), None)
        yield from (_member_tombstone(self.member, group_id, member_id) for member_id in member_ids)


def _member_tombstone(key: type[Any], group_id: str, member_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(key(group_id=group_id, member_id=member_id), None)
