"""Moving partitions to other brokers (KIP-455).

Rules: pure; a move is replicas, adding and removing in the partition's own state, and ends by itself when an
AlterPartition shows that those added are in sync (see partition_change.py).
"""

from ottla.controller.assignment import check_manual_assignment
from ottla.controller.result import OK, Result, check_record_count, error_of
from ottla.controller.rules import ClusterRules
from ottla.metadata.image import ClusterImage
from ottla.metadata.partition import PartitionRegistration, TopicImage
from ottla.metadata.records import MetadataRecord, PartitionChangeRecord
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages import replication as m


def alter_partition_reassignments(
    rules: ClusterRules, request: m.AlterPartitionReassignmentsRequest
) -> Result[m.AlterPartitionReassignmentsResponse]:
    """Begins, changes or calls off moves."""
    if not request.topics:
        return Result(m.AlterPartitionReassignmentsResponse(error_message="", responses=[]))
    records: list[MetadataRecord] = []
    responses = []
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            error = OK
            try:
                record = _alter(rules, topic.name, asked, request.allow_replication_factor_change)
                if record is not None:
                    records.append(record)
            except KafkaError as refusal:
                error = error_of(refusal)
            partitions.append(
                m.ReassignablePartitionResponse(
                    partition_index=asked.partition_index, error_code=error.code, error_message=error.message
                )
            )
        responses.append(m.ReassignableTopicResponse(name=topic.name, partitions=partitions))
    check_record_count(records)
    response = m.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=responses,
    )
    return Result(response, records, atomic=True)


def _alter(
    rules: ClusterRules, name: str, asked: m.ReassignablePartition, allow_factor_change: bool
) -> PartitionChangeRecord | None:
    topic = rules.image.topic(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    partition = topic.partitions.get(asked.partition_index)
    if partition is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Unable to find partition {name}:{asked.partition_index}.",
        )
    if asked.replicas is None:
        return _cancel(rules, topic, asked.partition_index, partition)
    check_manual_assignment(rules, asked.replicas, None)
    if not allow_factor_change:
        _check_factor_unchanged(partition, len(asked.replicas))
    return _move(rules, topic, asked.partition_index, partition, asked.replicas)


def _cancel(
    rules: ClusterRules, topic: TopicImage, number: int, partition: PartitionRegistration
) -> PartitionChangeRecord | None:
    if not partition.reassigning:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
    replicas = [r for r in partition.replicas if r not in partition.adding_replicas]
    isr = [r for r in partition.isr if r not in partition.adding_replicas]
    if not replicas:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Invalid replica assignment: addingReplicas contains all replicas.",
        )
    if not isr:
        if not rules.unclean_election_enabled(topic):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic.name}:{number} because it would require an "
                "unclean leader election.",
            )
        isr = [replicas[0]]
    change = rules.allowing_unclean(rules.change(topic, number, partition), topic)
    change.isr, change.replicas, change.removing, change.adding = isr, replicas, (), ()
    return change.build()


def _move(
    rules: ClusterRules,
    topic: TopicImage,
    number: int,
    partition: PartitionRegistration,
    target: list[int],
) -> PartitionChangeRecord | None:
    removing = sorted(set(partition.replicas) - set(target))
    adding = sorted(set(target) - set(partition.replicas))
    change = rules.change(topic, number, partition)
    change.replicas = [*target, *removing]
    if removing:
        change.removing = removing
    if adding:
        change.adding = adding
    return change.build()


def _check_factor_unchanged(partition: PartitionRegistration, target: int) -> None:
    current = len(
        {*partition.replicas, *partition.adding_replicas} - set(partition.removing_replicas)
        if partition.reassigning
        else partition.replicas
    )
    if current != target:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {current} to {target}",
        )


def list_partition_reassignments(
    image: ClusterImage, request: m.ListPartitionReassignmentsRequest
) -> m.ListPartitionReassignmentsResponse:
    """The moves under way, of all topics or of those named."""
    topics = []
    for topic, numbers in _asked(image, request):
        ongoing = [
            m.OngoingPartitionReassignment(
                partition_index=number,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding_replicas),
                removing_replicas=list(partition.removing_replicas),
            )
            for number in numbers
            if (partition := topic.partitions.get(number)) is not None and partition.reassigning
        ]
        if ongoing:
            topics.append(m.OngoingTopicReassignment(name=topic.name, partitions=ongoing))
    return m.ListPartitionReassignmentsResponse(error_message=None, topics=topics)


def _asked(
    image: ClusterImage, request: m.ListPartitionReassignmentsRequest
) -> list[tuple[TopicImage, list[int]]]:
    if request.topics is None:
        return [(topic, list(topic.partitions)) for topic in image.topics_by_name.values()]
    found = [(image.topic(asked.name), asked.partition_indexes) for asked in request.topics]
    return [(topic, list(numbers)) for topic, numbers in found if topic is not None]
