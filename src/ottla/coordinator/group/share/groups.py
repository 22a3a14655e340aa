"""What all decisions about share groups have in common: the groups, how far their share partitions are, and replay.

Owner: the ShareGroupManager of a shard.
"""

from collections.abc import Callable, Collection, Mapping, Set
from typing import Any, Final, NamedTuple

from ottla.coordinator.group.assignors.api import Assignment
from ottla.coordinator.group.context import GroupContext, Replay
from ottla.coordinator.group.group import Group
from ottla.coordinator.group.modern.groups import ModernReplay
from ottla.coordinator.group.modern.heartbeat import SettingsCache, settings_reader
from ottla.coordinator.group.modern.metadata_hash import TopicHashes
from ottla.coordinator.group.share import records
from ottla.coordinator.group.share.group import ShareGroup
from ottla.coordinator.group.share.member import ShareGroupMember, assignment_of
from ottla.coordinator.group.share.records import UNKNOWN_NAME, ShareTopic, Topics, TopicStates
from ottla.coordinator.shard import CoordinatorRecord
from ottla.coordinator.timeline import TimelineDict
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.wire.messages.logs import share_group as share_group_log

RETRY_INTERVAL: Final = "group.share.initialize.retry.interval.ms"
_SETTINGS: Final = settings_reader(
    "share.session.timeout.ms", "share.heartbeat.interval.ms", "share.assignment.interval.ms"
)


class Initialize(NamedTuple):
    """Share partitions that the share coordinator is to set up: for each the offset to start at, -1 to find one."""

    group_id: str
    state_epoch: int
    starts: Mapping[Uuid, Mapping[int, int]]


class ShareGroups:
    """The share groups of a shard, and the state of their share partitions."""

    def __init__(self, context: GroupContext) -> None:
        self.context = context
        self.hashes = TopicHashes()
        self.states: TimelineDict[str, TopicStates] = TimelineDict(context.timeline)
        self.settings = SettingsCache(context, _SETTINGS)
        # Soft: since when the state of a topic is being set up; without an entry (after a failover) it is tried again.
        self._began_ms: dict[tuple[str, Uuid], int] = {}

    # ---- finding --------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> ShareGroup:
        """The share group; GROUP_ID_NOT_FOUND if there is none of that kind."""
        group = self.context.group(group_id)
        return _of_this_kind(group)

    def group_or_new(self, group_id: str) -> ShareGroup:
        """A group that is not there yet is only kept when its records are replayed."""
        group = self.context.groups.get(group_id)
        return ShareGroup(self.context.timeline, group_id) if group is None else _of_this_kind(group)

    def states_of(self, group_id: str) -> TopicStates:
        return self.states.get(group_id) or TopicStates()

    # ---- share partitions -----------------------------------------------------------------------------------

    def to_initialize(self, group_id: str, names: Collection[str], now_ms: int) -> Topics:
        """What members subscribe to and nobody has begun to set up, or so long ago that it is tried again."""
        states = self.states_of(group_id)
        retry_ms: int = self.context.config()[RETRY_INTERVAL]
        missing: dict[Uuid, ShareTopic] = {}
        for name in names:
            topic = self.context.image.topic(name)
            if topic is None:
                continue
            known = _partitions(states.initialized, topic.id)
            if now_ms - self._began_ms.get((group_id, topic.id), -retry_ms) < retry_ms:
                known |= _partitions(states.initializing, topic.id)
            if len(known) < len(topic.partitions):
                missing[topic.id] = ShareTopic(name, frozenset(topic.partitions) - known)
        return missing

    def begun(self, group_id: str, topics: Topics, now_ms: int) -> CoordinatorRecord:
        """The record that says that these are being set up."""
        for topic_id in topics:
            self._began_ms[group_id, topic_id] = now_ms
        return self.states_record(group_id, self.states_of(group_id).begun(topics))

    def not_begun(self, group_id: str, topics: Topics) -> None:
        """The record could not be written."""
        for topic_id in topics:
            self._began_ms.pop((group_id, topic_id), None)

    def states_record(self, group_id: str, states: TopicStates) -> CoordinatorRecord:
        """Topics that are set up are no longer being set up."""
        return records.topic_states(group_id, states, self.names(states.deleting))

    def replay_states(self, group_id: str, states: TopicStates | None) -> None:
        if states is not None:
            self.states[group_id] = states
        else:
            self.states.pop(group_id)

    def forget_times(self, group_id: str, topic_ids: Set[Uuid]) -> None:
        for topic_id in topic_ids:
            self._began_ms.pop((group_id, topic_id), None)

    def names(self, topic_ids: Collection[Uuid]) -> Mapping[Uuid, str]:
        return {topic_id: self.name(topic_id) or UNKNOWN_NAME for topic_id in topic_ids}

    def name(self, topic_id: Uuid) -> str | None:
        topic = self.context.image.topic_by_id(topic_id)
        return None if topic is None else topic.name


def _of_this_kind(group: Group) -> ShareGroup:
    if not isinstance(group, ShareGroup):
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is no share group.")
    return group


def _partitions(topics: Topics, topic_id: Uuid) -> frozenset[int]:
    topic = topics.get(topic_id)
    return frozenset() if topic is None else topic.partitions


class ShareReplay(ModernReplay[ShareGroup]):
    """What the records of a share group mean: the only way that its hard state changes.

    `states` is called with how far a group's share partitions are.
    """

    def __init__(self, context: GroupContext, states: Callable[[str, TopicStates | None], None]) -> None:
        super().__init__(context, ShareGroup, ShareGroupMember, _target_of)
        self._states = states

    def replays(self) -> Mapping[type[Any], Replay]:
        return {
            share_group_log.ShareGroupMetadataKey: self._group,
            share_group_log.ShareGroupMemberMetadataKey: self._member,
            share_group_log.ShareGroupTargetAssignmentMetadataKey: self._target_epoch,
            share_group_log.ShareGroupTargetAssignmentMemberKey: self._target,
            share_group_log.ShareGroupCurrentMemberAssignmentKey: self._assignment,
            share_group_log.ShareGroupStatePartitionMetadataKey: self._topic_states,
        }

    def _topic_states(
        self,
        key: share_group_log.ShareGroupStatePartitionMetadataKey,
        value: share_group_log.ShareGroupStatePartitionMetadataValue | None,
    ) -> None:
        if value is None:
            self._states(key.group_id, None)
        else:
            self._groups.get_or_create(key.group_id)
            self._states(key.group_id, records.states_of(value))


def _target_of(value: share_group_log.ShareGroupTargetAssignmentMemberValue) -> Assignment:
    return assignment_of(value.topic_partitions)
