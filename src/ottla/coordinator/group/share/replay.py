"""What the records of a share group mean: the only way that its hard state changes."""

from collections.abc import Callable, Mapping
from typing import Any

from ottla.coordinator.group.assignors.api import Assignment
from ottla.coordinator.group.context import GroupContext, Replay
from ottla.coordinator.group.modern_replay import ModernReplay
from ottla.coordinator.group.share import records
from ottla.coordinator.group.share.group import ShareGroup
from ottla.coordinator.group.share.member import ShareGroupMember, assignment_of
from ottla.coordinator.group.share.topic_states import TopicStates
from ottla.wire.messages import share_group_log as log


class ShareReplay(ModernReplay[ShareGroup]):
    """Owned by the ShareManager of a shard; `states` is told how far a group's share partitions are."""

    def __init__(self, context: GroupContext, states: Callable[[str, TopicStates | None], None]) -> None:
        super().__init__(context, ShareGroup, ShareGroupMember, _target_of)
        self._states = states

    def replays(self) -> Mapping[type[Any], Replay]:
        return {
            log.ShareGroupMetadataKey: self._group,
            log.ShareGroupMemberMetadataKey: self._member,
            log.ShareGroupTargetAssignmentMetadataKey: self._target_epoch,
            log.ShareGroupTargetAssignmentMemberKey: self._target,
            log.ShareGroupCurrentMemberAssignmentKey: self._assignment,
            log.ShareGroupStatePartitionMetadataKey: self._topic_states,
        }

    def _topic_states(
        self,
        key: log.ShareGroupStatePartitionMetadataKey,
        value: log.ShareGroupStatePartitionMetadataValue | None,
    ) -> None:
        if value is None:
            self._states(key.group_id, None)
        else:
            self._groups.made(key.group_id)
            self._states(key.group_id, records.states_of(value))


def _target_of(value: log.ShareGroupTargetAssignmentMemberValue) -> Assignment:
    return assignment_of(value.topic_partitions)
