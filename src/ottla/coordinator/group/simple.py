"""What the offsets need of the classic groups.

A consumer that only stores its offsets has a group nevertheless: an empty classic one, without a protocol type. It
is made by the replay of its first offset, and never written itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ottla.coordinator.group.context import GroupContext, Replay
from ottla.coordinator.group.group import Group, GroupType, OffsetExpiration
from ottla.coordinator.result import CoordinatorRecord, Effect
from ottla.metadata.delta import Delta
from ottla.model.errors import KafkaError
from ottla.wire.messages.offsets_log import GroupMetadataKey, GroupMetadataValue


class ClassicGroups(Protocol):
    """Kept by whoever owns the classic groups."""

    def new_simple(self, group_id: str) -> Group:
        """An empty group without a protocol type; the caller puts it among the groups."""
        ...

    def keep_alive(self, group: Group, member_id: str) -> Sequence[Effect]:
        """A member has committed: that counts as a heartbeat in a classic group that is stable or rebalancing."""
        ...


@dataclass(frozen=True, slots=True)
class SimpleGroup:
    """A group that is there for its offsets only."""

    group_id: str
    type: GroupType = GroupType.CLASSIC
    protocol_type: str = ""

    def state_name(self, *, committed: bool = True) -> str:
        return "Empty"

    def is_empty(self) -> bool:
        return True

    def validate_offset_commit(
        self, member_id: str, group_instance_id: str | None, epoch: int, *, transactional: bool, version: int
    ) -> None:
        """Anybody may."""

    def validate_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        """Anybody may."""

    def validate_offset_delete(self) -> None:
        """Anybody may."""

    def validate_delete(self) -> None:
        """Anybody may."""

    def is_subscribed_to(self, topic: str) -> bool:
        return False

    def offset_expiration(self) -> OffsetExpiration | None:
        return OffsetExpiration()

    def tombstones(self) -> Iterator[CoordinatorRecord]:
        yield CoordinatorRecord(GroupMetadataKey(group=self.group_id), None)


class SimpleGroups:
    """Where there are no other classic groups."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context

    def new_simple(self, group_id: str) -> Group:
        return SimpleGroup(group_id)

    def keep_alive(self, group: Group, member_id: str) -> Sequence[Effect]:
        return ()

    def replays(self) -> Mapping[type[Any], Replay]:
        return {GroupMetadataKey: self._replay}

    def _replay(self, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        if value is None:
            self._context.groups.pop(key.group)

    def on_loaded(self, now_ms: int) -> list[Effect]:
        return []

    def on_image(self, delta: Delta, now_ms: int) -> list[Effect]:
        return []

    def on_unloaded(self, error: KafkaError) -> None:
        """Nothing is parked here."""
