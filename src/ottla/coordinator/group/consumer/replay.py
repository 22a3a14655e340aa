"""What the records of a consumer group mean: the only way that its state changes."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ottla.coordinator.group.assignors.api import Partitions
from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.consumer.member import ConsumerGroupMember
from ottla.coordinator.group.consumer.regex import ResolvedRegularExpression
from ottla.coordinator.group.context import GroupContext, Replay
from ottla.coordinator.group.modern_group import TargetEpoch
from ottla.coordinator.group.of_kind import GroupsByTopic, GroupsOfKind
from ottla.wire.messages import offsets_log as log

_NO_TARGET = TargetEpoch(-1, 0)


class ConsumerReplay:
    """Owned by the ConsumerManager of a shard."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._groups = GroupsOfKind(context, ConsumerGroup)
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

    # ---- one kind of record each ----------------------------------------------------------------------------

    def _group(self, key: log.ConsumerGroupMetadataKey, value: log.ConsumerGroupMetadataValue | None) -> None:
        if value is not None:
            self._groups.made(key.group_id).set_epoch(value.epoch, value.metadata_hash)
        else:
            self._groups.removed(key.group_id)

    def _partition_metadata(
        self,
        key: log.ConsumerGroupPartitionMetadataKey,
        value: log.ConsumerGroupPartitionMetadataValue | None,
    ) -> None:
        group = self._groups.present(key.group_id) if value is None else self._groups.made(key.group_id)
        if group is not None and group.has_partition_metadata != (value is not None):
            group.set_has_partition_metadata(value is not None)

    def _member(
        self, key: log.ConsumerGroupMemberMetadataKey, value: log.ConsumerGroupMemberMetadataValue | None
    ) -> None:
        if value is None:
            group = self._groups.present(key.group_id)
            if group is not None:
                group.remove_member(key.member_id)
            return
        group = self._groups.made(key.group_id)
        member = group.members.get(key.member_id) or ConsumerGroupMember(key.member_id)
        member = member.with_metadata(value)
        group.put_member(member)
        self._by_topic.note(key.group_id, member.subscribed_topic_names)

    def _target_epoch(
        self,
        key: log.ConsumerGroupTargetAssignmentMetadataKey,
        value: log.ConsumerGroupTargetAssignmentMetadataValue | None,
    ) -> None:
        if value is not None:
            target = TargetEpoch(value.assignment_epoch, value.assignment_timestamp)
            self._groups.made(key.group_id).set_target_epoch(target)
            return
        group = self._groups.present(key.group_id)
        if group is not None:
            group.set_target_epoch(_NO_TARGET)

    def _target(
        self,
        key: log.ConsumerGroupTargetAssignmentMemberKey,
        value: log.ConsumerGroupTargetAssignmentMemberValue | None,
    ) -> None:
        if value is None:
            group = self._groups.present(key.group_id)
            if group is not None:
                group.remove_target(key.member_id)
            return
        partitions = {row.topic_id: Partitions(row.partitions) for row in value.topic_partitions}
        self._groups.made(key.group_id).put_target(key.member_id, partitions)

    def _assignment(
        self,
        key: log.ConsumerGroupCurrentMemberAssignmentKey,
        value: log.ConsumerGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        group = self._groups.present(key.group_id) if value is None else self._groups.made(key.group_id)
        member = None if group is None else group.members.get(key.member_id)
        if group is None or (member is None and value is None):
            return
        member = member or ConsumerGroupMember(key.member_id)
        group.put_member(member.without_assignment() if value is None else member.with_assignment(value))

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
