"""The records that consumer, share and streams groups have in common, though each kind has its own types for them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from ottla.coordinator.result import CoordinatorRecord


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
