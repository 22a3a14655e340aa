"""What consumer, share and streams groups have in common: epochs, members, and what these shall have.

Hard state, changed by replay alone. The one piece of soft state is when the group looks at its topics again.

Owner: the manager of one kind of group in a shard.
"""

from collections.abc import Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from ottla.coordinator.timeline import Timeline, TimelineDict, TimelineValue
from ottla.model.errors import ErrorCode, KafkaError

# A member, and what it shall have, as the kind of group has them.
M = TypeVar("M")
T = TypeVar("T")


class TargetEpoch(NamedTuple):
    """The epoch that the target assignment was made for, and when."""

    epoch: int = 1
    timestamp_ms: int = 0


class ModernGroup(Generic[M, T]):
    """See the module."""

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
