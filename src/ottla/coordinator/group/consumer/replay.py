"""What the records of a consumer group mean: the only way that its state changes."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ottla.coordinator.group.assignors.api import Assignment, Partitions
from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.consumer.member import ConsumerGroupMember
from ottla.coordinator.group.consumer.regex import ResolvedRegularExpression
from ottla.coordinator.group.context import GroupContext, Replay
from ottla.coordinator.group.modern_replay import MemberKey, ModernReplay
from ottla.coordinator.group.of_kind import GroupsByTopic
from ottla.wire.messages import offsets_log as log


class ConsumerReplay(ModernReplay[ConsumerGroup]):
    """Owned by the ConsumerManager of a shard."""

    def __init__(self, context: GroupContext) -> None:
        super().__init__(context, ConsumerGroup, ConsumerGroupMember, _target_of)
        self._context = context
        self._by_topic = GroupsByTopic()

    def replays(self) -> Mapping[type[Any], Replay]:
        return {
            log.ConsumerGroupMetadataKey: self._group,
            log.ConsumerGroupPartitionMetadataKey: self._partition_metadata,
            log.ConsumerGroupMemberMetadataKey: self._member,
            log.ConsumerGroupTargetAssignmentMetadataKey: self._target_epoch,
            log.ConsumerGroupTargetAssignmentMemberKey: self._target,
            log.ConsumerGroupCurrentMemberAssignmentKey: self._assignment,
            log.ConsumerGroupRegularExpressionKey: self._regex,
        }

    def groups_subscribed_to(self, topics: Iterable[str]) -> Iterator[str]:
        """Those that subscribe to any of these topics."""
        return self._by_topic.concerned(topics, self._is_subscribed)

    def _is_subscribed(self, group_id: str, topic: str) -> bool:
        group = self._context.groups.get(group_id)
        return group is not None and group.is_subscribed_to(topic)

    # ---- what only consumer groups have ---------------------------------------------------------------------

    def _partition_metadata(
        self,
        key: log.ConsumerGroupPartitionMetadataKey,
        value: log.ConsumerGroupPartitionMetadataValue | None,
    ) -> None:
        group = self._groups.present(key.group_id) if value is None else self._groups.made(key.group_id)
        if group is not None and group.has_partition_metadata != (value is not None):
            group.set_has_partition_metadata(value is not None)

    def _member(self, key: MemberKey, value: log.ConsumerGroupMemberMetadataValue | None) -> None:
        super()._member(key, value)
        if value is not None:
            self._by_topic.note(key.group_id, value.subscribed_topic_names)

    def _regex(
        self,
        key: log.ConsumerGroupRegularExpressionKey,
        value: log.ConsumerGroupRegularExpressionValue | None,
    ) -> None:
        if value is None:
            group = self._groups.present(key.group_id)
            if group is not None:
                group.remove_regex(key.regular_expression)
            return
        topics = frozenset(value.topics)
        resolved = ResolvedRegularExpression(topics, value.version, value.timestamp)
        self._groups.made(key.group_id).put_regex(key.regular_expression, resolved)
        self._by_topic.note(key.group_id, topics)


def _target_of(value: log.ConsumerGroupTargetAssignmentMemberValue) -> Assignment:
    return {row.topic_id: Partitions(row.partitions) for row in value.topic_partitions}
