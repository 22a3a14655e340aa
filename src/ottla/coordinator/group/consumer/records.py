"""The records of a consumer group, as Kafka writes them."""

from collections.abc import Collection

from ottla.coordinator.group.assignors.api import Assignment, order_of
from ottla.coordinator.group.consumer.member import ConsumerGroupMember, EpochAssignment
from ottla.coordinator.group.modern.group import ModernRecords
from ottla.coordinator.shard import CoordinatorRecord
from ottla.wire.messages.logs import offsets as log

_COMMON = ModernRecords(
    group=log.ConsumerGroupMetadataKey,
    member=log.ConsumerGroupMemberMetadataKey,
    target_epoch_key=log.ConsumerGroupTargetAssignmentMetadataKey,
    target_epoch_value=log.ConsumerGroupTargetAssignmentMetadataValue,
    target=log.ConsumerGroupTargetAssignmentMemberKey,
    current=log.ConsumerGroupCurrentMemberAssignmentKey,
)
group_epoch_tombstone = _COMMON.group_epoch_tombstone
target_epoch = _COMMON.target_epoch
removed_member = _COMMON.removed_member
removed_members = _COMMON.removed_members


def member_metadata(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        log.ConsumerGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.subscribed_topic_names),
            subscribed_topic_regex=member.subscribed_topic_regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.server_assignor,
            classic_member_metadata=member.classic,
        ),
    )


def group_epoch(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.ConsumerGroupMetadataKey(group_id=group_id),
        log.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
    )


def partition_metadata_tombstone(group_id: str) -> CoordinatorRecord:
    """Brokers before 4.1 kept the topics' partitions in a record of their own."""
    return CoordinatorRecord(log.ConsumerGroupPartitionMetadataKey(group_id=group_id), None)


def target_assignment(group_id: str, member_id: str, partitions: Assignment) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        log.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[
                log.TopicPartition(topic_id=topic_id, partitions=list(order_of(numbers)))
                for topic_id, numbers in partitions.items()
            ]
        ),
    )


def current_assignment(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        log.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_member_epoch,
            state=member.state,
            assigned_partitions=_with_epochs(member.assigned),
            partitions_pending_revocation=_with_epochs(member.pending_revocation),
        ),
    )


def _with_epochs(assignment: EpochAssignment) -> list[log.TopicPartitions]:
    return [
        log.TopicPartitions(
            topic_id=topic_id,
            partitions=(numbers := sorted(epochs)),
            assignment_epochs=[epochs[number] for number in numbers],
        )
        for topic_id, epochs in assignment.items()
    ]


def regular_expression(
    group_id: str, regex: str, topics: Collection[str], version: int, timestamp_ms: int
) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex),
        log.ConsumerGroupRegularExpressionValue(
            topics=sorted(topics), version=version, timestamp=timestamp_ms
        ),
    )


def regular_expression_tombstone(group_id: str, regex: str) -> CoordinatorRecord:
    key = log.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    return CoordinatorRecord(key, None)
