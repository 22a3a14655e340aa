"""AlterPartition: a leader reports who is in sync (KIP-497, KIP-704, KIP-903).

Rules: pure; epochs decide whose view is the newer one.
"""

from ottla.controller.result import RequestContext, Result
from ottla.controller.rules import ClusterRules
from ottla.metadata.partition import LeaderRecoveryState, PartitionRegistration, TopicImage
from ottla.metadata.records import NO_LEADER_CHANGE, MetadataRecord
from ottla.model.errors import ErrorCode
from ottla.wire.messages import replication as m


def alter_partition(
    rules: ClusterRules, request: m.AlterPartitionRequest, context: RequestContext
) -> Result[m.AlterPartitionResponse]:
    """Takes over the in-sync sets that leaders report."""
    if not request.topics:
        return Result(m.AlterPartitionResponse(topics=[]))
    rules.check_broker_epoch(request.broker_id, request.broker_epoch)
    records: list[MetadataRecord] = []
    topics = []
    for asked_topic in request.topics:
        topic = rules.image.topic_by_id(asked_topic.topic_id)
        partitions = [
            _alter(rules, request.broker_id, topic, asked, context, records)
            for asked in asked_topic.partitions
        ]
        topics.append(m.AlterPartitionResponseTopicData(topic_id=asked_topic.topic_id, partitions=partitions))
    return Result(m.AlterPartitionResponse(topics=topics), records)


def _alter(
    rules: ClusterRules,
    broker_id: int,
    topic: TopicImage | None,
    asked: m.AlterPartitionRequestPartitionData,
    context: RequestContext,
    records: list[MetadataRecord],
) -> m.AlterPartitionResponsePartitionData:
    if topic is None:
        return _refused(asked, ErrorCode.UNKNOWN_TOPIC_ID)
    partition = topic.partitions.get(asked.partition_index)
    if partition is None:
        return _refused(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    isr = _new_isr(asked, context)
    error = _epoch_error(broker_id, partition, asked) or _isr_error(rules, partition, asked, isr)
    if error is not None:
        return _refused(asked, error)
    change = rules.allowing_unclean(rules.change(topic, asked.partition_index, partition), topic)
    change.isr = tuple(member.broker_id for member in isr)
    change.leader_recovery_state = asked.leader_recovery_state
    record = change.build()
    if record is not None:
        records.append(record)
        partition = partition.merge(record)
        if record.leader not in (broker_id, NO_LEADER_CHANGE):
            # The change has ended a reassignment that leaves the leader out: it must look again.
            return _refused(asked, ErrorCode.NEW_LEADER_ELECTED)
    return _current(asked.partition_index, partition)


def _new_isr(asked: m.AlterPartitionRequestPartitionData, context: RequestContext) -> list[m.BrokerState]:
    if context.api_version >= 3:
        return asked.new_isr_with_epochs
    return [m.BrokerState(broker_id=broker_id) for broker_id in asked.new_isr]


def _epoch_error(
    broker_id: int, partition: PartitionRegistration, asked: m.AlterPartitionRequestPartitionData
) -> ErrorCode | None:
    # A leader that knows more than this controller has heard from a newer one.
    if asked.leader_epoch > partition.leader_epoch or asked.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER
    if asked.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if asked.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    return None


def _isr_error(
    rules: ClusterRules,
    partition: PartitionRegistration,
    asked: m.AlterPartitionRequestPartitionData,
    isr: list[m.BrokerState],
) -> ErrorCode | None:
    ids = [member.broker_id for member in isr]
    recovering = asked.leader_recovery_state == LeaderRecoveryState.RECOVERING
    if not ids or len(set(ids)) != len(ids) or not set(ids) <= set(partition.replicas):
        return ErrorCode.INVALID_REQUEST
    if partition.leader not in ids or (recovering and len(ids) > 1):
        return ErrorCode.INVALID_REQUEST
    if recovering and partition.leader_recovery_state == LeaderRecoveryState.RECOVERED:
        return ErrorCode.INVALID_REQUEST
    if not all(_eligible(rules, member) for member in isr):
        return ErrorCode.INELIGIBLE_REPLICA
    return None


def _eligible(rules: ClusterRules, member: m.BrokerState) -> bool:
    """Only a broker that is up, in the life the leader knows, may join an ISR."""
    broker = rules.image.brokers.get(member.broker_id)
    if broker is None or not broker.active:
        return False
    return member.broker_epoch in (-1, broker.epoch)


def _refused(
    asked: m.AlterPartitionRequestPartitionData, error: ErrorCode
) -> m.AlterPartitionResponsePartitionData:
    return m.AlterPartitionResponsePartitionData(
        partition_index=asked.partition_index,
        error_code=error,
        leader_id=0,
        leader_epoch=0,
        isr=[],
        partition_epoch=0,
    )


def _current(number: int, partition: PartitionRegistration) -> m.AlterPartitionResponsePartitionData:
    return m.AlterPartitionResponsePartitionData(
        partition_index=number,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
    )
