"""What every kind of group has in common, as the offsets and the group commands ask it."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple, Protocol

from ottla.coordinator.shard import CoordinatorRecord
from ottla.model.ids import Uuid

# Called with a topic's name, its id and a partition; raises if an offset for it may not be committed. The newer
# protocols know since which epoch a member owns a partition, and accept its commits for that one from this epoch on.
CommitPartitionValidator = Callable[[str, Uuid, int], None]


class GroupType(StrEnum):
    """The kinds of groups, by the names in answers to ListGroups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class OffsetExpiration(NamedTuple):
    """From when an offset's retention counts: from its own commit, or from when the group became empty."""

    base_timestamp_ms: int | None = None


class Group(Protocol):
    """A group of any kind. `committed` says whether the answer may rest on what is not committed yet."""

    @property
    def group_id(self) -> str: ...

    @property
    def type(self) -> GroupType: ...

    @property
    def protocol_type(self) -> str: ...

    def state_name(self, *, committed: bool = True) -> str:
        """The state's name in answers to ListGroups and the describe requests."""
        ...

    def is_empty(self) -> bool:
        """Has it no members?"""
        ...

    def validate_offset_commit(
        self, member_id: str, group_instance_id: str | None, epoch: int, *, transactional: bool, version: int
    ) -> CommitPartitionValidator | None:
        """May this member of this generation or epoch commit? Raises the error for its answer if not.

        None if it may commit anything; else what every partition is to be asked of.
        """
        ...

    def validate_offset_fetch(self, member_id: str | None, epoch: int) -> None:
        """May this member read offsets? Members of newer protocols say who they are."""
        ...

    def validate_offset_delete(self) -> None:
        """May single offsets be deleted now? (Of topics that nobody subscribes to, see is_subscribed_to.)"""
        ...

    def validate_delete(self) -> None:
        """May the group be deleted now?"""
        ...

    def is_subscribed_to(self, topic: str) -> bool: ...

    def offset_expiration(self) -> OffsetExpiration | None:
        """How its offsets expire; None while they do not."""
        ...

    def tombstones(self) -> Iterator[CoordinatorRecord]:
        """The records that delete the group itself (not its offsets)."""
        ...
