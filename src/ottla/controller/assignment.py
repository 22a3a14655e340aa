"""New partitions: where their replicas go, as the user says or as placement finds, and the records for them.

Rules: pure; what cannot be is a KafkaError with Kafka's sentence.
"""

from collections.abc import Sequence

from ottla.controller.rules import ClusterRules
from ottla.metadata import features
from ottla.metadata.partition import LeaderRecoveryState, PartitionRegistration
from ottla.metadata.records import PartitionRecord
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid


def check_manual_assignment(
    rules: ClusterRules, broker_ids: Sequence[int], replication_factor: int | None
) -> None:
    """Are these brokers that exist, each named once, and as many as for other partitions?"""
    if not broker_ids:
        raise _invalid("The manual partition assignment includes an empty replica list.")
    previous = None
    for broker_id in sorted(broker_ids):
        broker = rules.image.brokers.get(broker_id)
        if broker is None:
            raise _invalid(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        if not broker.has_uncordoned_directory:
            raise _invalid(
                f"The manual partition assignment includes broker {broker_id}, but all its log directories are "
                "cordoned."
            )
        if broker_id == previous:
            raise _invalid(f"The manual partition assignment includes the broker {previous} more than once.")
        previous = broker_id
    if replication_factor is not None and len(broker_ids) != replication_factor:
        raise _invalid(
            f"The manual partition assignment includes a partition with {len(broker_ids)} replica(s), but this "
            f"is not consistent with previous partitions, which have {replication_factor} replica(s)."
        )


def new_partition(rules: ClusterRules, replicas: Sequence[int]) -> PartitionRegistration | None:
    """A partition on these brokers, led by the first that is up; None if none is."""
    isr = tuple(replica for replica in replicas if rules.image.broker_is_active(replica))
    if not isr:
        return None
    return PartitionRegistration(
        replicas=tuple(replicas),
        directories=tuple(rules.default_directory(replica) for replica in replicas),
        isr=isr,
        removing_replicas=(),
        adding_replicas=(),
        leader=isr[0],
        leader_recovery_state=LeaderRecoveryState.RECOVERED,
        leader_epoch=0,
        partition_epoch=0,
    )


def manual_partition(rules: ClusterRules, number: int, replicas: Sequence[int]) -> PartitionRegistration:
    """A partition where the user wants it."""
    partition = new_partition(rules, replicas)
    if partition is None:
        raise _invalid(
            f"All brokers specified in the manual partition assignment for partition {number} are fenced or "
            "in controlled shutdown."
        )
    return partition


def placed_partition(rules: ClusterRules, replicas: Sequence[int]) -> PartitionRegistration:
    """A partition where placement has put it."""
    partition = new_partition(rules, replicas)
    if partition is None:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {len(replicas)} time(s): All brokers are currently fenced or "
            "in controlled shutdown.",
        )
    return partition


def partition_record(
    rules: ClusterRules, topic_id: Uuid, number: int, partition: PartitionRegistration
) -> PartitionRecord:
    return partition.to_record(
        topic_id, number, features.directory_assignment_supported(rules.metadata_version)
    )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
