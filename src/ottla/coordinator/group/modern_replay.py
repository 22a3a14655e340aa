"""What the records mean that consumer, share and streams groups have in common: the only way that their state changes.

Records of one group may come in any order that compaction leaves, so whichever comes first makes the group, and
the deletion of something that is not there means nothing.

Owner: the manager of one kind of group in a shard.
"""

from collections.abc import Callable
from typing import Any, Final, Generic, Protocol

from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.modern_group import TargetEpoch
from ottla.coordinator.group.of_kind import G, GroupsOfKind

_NO_TARGET: Final = TargetEpoch(-1, 0)


class GroupKey(Protocol):
    """The key of a record about a group."""

    group_id: str


class MemberKey(Protocol):
    """The key of a record about a member."""

    group_id: str
    member_id: str


class TargetEpochValue(Protocol):
    """What the target assignment was made for, and when."""

    assignment_epoch: int
    assignment_timestamp: int


class ModernReplay(Generic[G]):
    """See the module. `new_member` is the kind's class of members; `target_of` reads what one of them shall have."""

    def __init__(
        self, context: GroupContext, kind: type[G], new_member: type[Any], target_of: Callable[[Any], Any]
    ) -> None:
        self._groups: GroupsOfKind[G] = GroupsOfKind(context, kind)
        self._new_member = new_member
        self._target_of = target_of

    def _group(self, key: GroupKey, value: Any | None) -> None:
        if value is not None:
            self._groups.made(key.group_id).set_epoch(value.epoch, value.metadata_hash)
        else:
            self._groups.removed(key.group_id)

    def _member(self, key: MemberKey, value: Any | None) -> None:
        if value is None:
            group = self._groups.present(key.group_id)
            if group is not None:
                group.remove_member(key.member_id)
            return
        group = self._groups.made(key.group_id)
        member = group.members.get(key.member_id) or self._new_member(key.member_id)
        group.put_member(member.with_metadata(value))

    def _target_epoch(self, key: GroupKey, value: TargetEpochValue | None) -> None:
        if value is not None:
            target = TargetEpoch(value.assignment_epoch, value.assignment_timestamp)
            self._groups.made(key.group_id).set_target_epoch(target)
            return
        group = self._groups.present(key.group_id)
        if group is not None:
            group.set_target_epoch(_NO_TARGET)

    def _target(self, key: MemberKey, value: Any | None) -> None:
        if value is not None:
            self._groups.made(key.group_id).put_target(key.member_id, self._target_of(value))
            return
        group = self._groups.present(key.group_id)
        if group is not None:
            group.remove_target(key.member_id)

    def _assignment(self, key: MemberKey, value: Any | None) -> None:
        group = self._groups.present(key.group_id) if value is None else self._groups.made(key.group_id)
        member = None if group is None else group.members.get(key.member_id)
        if group is None or (member is None and value is None):
            return
        member = member or self._new_member(key.member_id)
        group.put_member(member.without_assignment() if value is None else member.with_assignment(value))
