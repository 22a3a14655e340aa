"""The records that consumer, share and streams groups have in common, though each kind has its own types for them."""

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

    def group_epoch_tombstone(self, group_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(self.group(group_id=group_id), None)

    def member_metadata_tombstone(self, group_id: str, member_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(self.member(group_id=group_id, member_id=member_id), None)

    def target_epoch(self, group_id: str, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
        value = self.target_epoch_value(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
        return CoordinatorRecord(self.target_epoch_key(group_id=group_id), value)

    def target_epoch_tombstone(self, group_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(self.target_epoch_key(group_id=group_id), None)

    def target_assignment_tombstone(self, group_id: str, member_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(self.target(group_id=group_id, member_id=member_id), None)

    def current_assignment_tombstone(self, group_id: str, member_id: str) -> CoordinatorRecord:
        return CoordinatorRecord(self.current(group_id=group_id, member_id=member_id), None)

    def removed_member(self, group_id: str, member_id: str) -> list[CoordinatorRecord]:
        """A member is gone: what depends on it is deleted before it is."""
        return [
            self.current_assignment_tombstone(group_id, member_id),
            self.target_assignment_tombstone(group_id, member_id),
            self.member_metadata_tombstone(group_id, member_id),
        ]
