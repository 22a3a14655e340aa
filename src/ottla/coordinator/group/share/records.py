"""The records of a share group, as Kafka writes them."""

from collections.abc import Iterable, Mapping

from ottla.coordinator.group.assignors.api import Assignment
from ottla.coordinator.group.modern_records import ModernRecords
from ottla.coordinator.group.share.member import ShareGroupMember
from ottla.coordinator.group.share.topic_states import ShareTopic, TopicStates
from ottla.coordinator.result import CoordinatorRecord
from ottla.model.ids import Uuid
from ottla.wire.messages import share_group_log as log

_COMMON = ModernRecords(
    group=log.ShareGroupMetadataKey,
    member=log.ShareGroupMemberMetadataKey,
    target_epoch_key=log.ShareGroupTargetAssignmentMetadataKey,
    target_epoch_value=log.ShareGroupTargetAssignmentMetadataValue,
    target=log.ShareGroupTargetAssignmentMemberKey,
    current=log.ShareGroupCurrentMemberAssignmentKey,
)
group_epoch_tombstone = _COMMON.group_epoch_tombstone
target_epoch = _COMMON.target_epoch
removed_member = _COMMON.removed_member
removed_members = _COMMON.removed_members


def member_metadata(group_id: str, member: ShareGroupMember) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        log.ShareGroupMemberMetadataValue(
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.subscribed_topic_names),
        ),
    )


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.ShareGroupMetadataKey(group_id=group_id),
        log.ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
    )


def target_assignment(group_id: str, member_id: str, partitions: Assignment) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        log.ShareGroupTargetAssignmentMemberValue(
            topic_partitions=[
                log.TopicPartition(topic_id=topic_id, partitions=sorted(numbers))
                for topic_id, numbers in partitions.items()
            ]
        ),
    )


def current_assignment(group_id: str, member: ShareGroupMember) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        log.ShareGroupCurrentMemberAssignmentValue(
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_member_epoch,
            state=member.state,
            assigned_partitions=[
                log.TopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
                for topic_id, numbers in member.assigned.items()
            ],
        ),
    )


def topic_states(group_id: str, states: TopicStates, names: Mapping[Uuid, str]) -> CoordinatorRecord:
    """`names` has those of the topics that are being forgotten."""
    return CoordinatorRecord(
        log.ShareGroupStatePartitionMetadataKey(group_id=group_id),
        log.ShareGroupStatePartitionMetadataValue(
            initializing_topics=_topics(states.initializing),
            initialized_topics=_topics(states.initialized),
            deleting_topics=[
                log.TopicInfo(topic_id=topic_id, topic_name=names[topic_id]) for topic_id in states.deleting
            ],
        ),
    )


def topic_states_tombstone(group_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(log.ShareGroupStatePartitionMetadataKey(group_id=group_id), None)


def _topics(topics: Mapping[Uuid, ShareTopic]) -> list[log.TopicPartitionsInfo]:
    return [
        log.TopicPartitionsInfo(topic_id=topic_id, topic_name=topic.name, partitions=sorted(topic.partitions))
        for topic_id, topic in topics.items()
    ]


def states_of(value: log.ShareGroupStatePartitionMetadataValue) -> TopicStates:
    return TopicStates(
        _read(value.initializing_topics),
        _read(value.initialized_topics),
        frozenset(topic.topic_id for topic in value.deleting_topics),
    )


def _read(topics: Iterable[log.TopicPartitionsInfo]) -> dict[Uuid, ShareTopic]:
    return {topic.topic_id: ShareTopic(topic.topic_name, frozenset(topic.partitions)) for topic in topics}
