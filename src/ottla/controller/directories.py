"""Log directories: which replicas are in which, and what becomes of those in one that fails (KIP-858, KIP-1066).

Rules: pure decisions over an image.
"""

from collections.abc import Sequence

from ottla.controller.result import Result
from ottla.controller.rules import ClusterRules, Partition, Removal
from ottla.metadata import features
from ottla.metadata.cluster import BrokerRegistration
from ottla.metadata.records import BrokerRegistrationChangeRecord, MetadataRecord
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.wire.messages import broker_lifecycle as m


def offline_directories(
    rules: ClusterRules, broker: BrokerRegistration, offline: Sequence[Uuid]
) -> list[MetadataRecord]:
    """A broker has lost directories: the replicas in them no longer count."""
    if not features.directory_assignment_supported(rules.metadata_version):
        return []
    lost = [directory for directory in broker.directories if directory in offline]
    if not lost:
        return []
    touched = [
        entry
        for entry in rules.image.partitions()
        if broker.id in entry[2].replicas and entry[2].directory(broker.id) in lost
    ]
    records = rules.leader_and_isr_updates(touched, Removal(leaving=broker.id))
    left = [directory for directory in broker.directories if directory not in lost]
    change = BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, log_dirs=left)
    return [*records, change]


def cordoned_directories(
    rules: ClusterRules, broker: BrokerRegistration, cordoned: Sequence[Uuid] | None
) -> list[MetadataRecord]:
    """A broker takes no new replicas in some of its directories."""
    if cordoned is None or not features.cordoned_dirs_supported(rules.metadata_version):
        return []
    known = broker.cordoned_directories
    if known is not None and set(known) == set(cordoned):
        return []
    return [
        BrokerRegistrationChangeRecord(
            broker_id=broker.id, broker_epoch=broker.epoch, cordoned_log_dirs=list(cordoned)
        )
    ]


def assign_replicas_to_dirs(
    rules: ClusterRules, request: m.AssignReplicasToDirsRequest
) -> Result[m.AssignReplicasToDirsResponse]:
    """A broker says in which of its directories its replicas are."""
    if not features.directory_assignment_supported(rules.metadata_version):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "Directory assignment is not supported yet.")
    rules.check_broker_epoch(request.broker_id, request.broker_epoch)
    broker = rules.image.brokers[request.broker_id]
    records: list[MetadataRecord] = []
    offline: list[Partition] = []
    answers = []
    for directory in request.directories:
        topics = []
        for topic in directory.topics:
            partitions = []
            for asked in topic.partitions:
                error = _assign(
                    rules, broker, directory.id, topic.topic_id, asked.partition_index, records, offline
                )
                partitions.append(
                    m.AssignReplicasToDirsResponsePartitionData(
                        partition_index=asked.partition_index, error_code=error
                    )
                )
            topics.append(
                m.AssignReplicasToDirsResponseTopicData(topic_id=topic.topic_id, partitions=partitions)
            )
        answers.append(m.AssignReplicasToDirsResponseDirectoryData(id=directory.id, topics=topics))
    records += rules.leader_and_isr_updates(offline, Removal(leaving=broker.id))
    return Result(m.AssignReplicasToDirsResponse(directories=answers), records)


def _assign(
    rules: ClusterRules,
    broker: BrokerRegistration,
    directory: Uuid,
    topic_id: Uuid,
    number: int,
    records: list[MetadataRecord],
    offline: list[Partition],
) -> int:
    topic = rules.image.topic_by_id(topic_id)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    partition = topic.partitions.get(number)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if broker.id not in partition.replicas:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    change = rules.change(topic, number, partition)
    change.directories[broker.id] = directory
    record = change.build()
    if record is not None:
        records.append(record)
    if not broker.has_online_directory(directory):
        offline.append((topic, number, partition))
    return 0
