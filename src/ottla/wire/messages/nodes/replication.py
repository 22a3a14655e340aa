"""Leaders, in-sync replicas and the moving of partitions.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableString,
    String,
    UuidField,
    message,
    since,
    struct,
    until,
)


@message(api_key=4, versions="none")
class LeaderAndIsrRequest:
    """Gone with ZooKeeper: leaders come from the metadata log. The key stays taken."""


@message(api_key=4, versions="none")
class LeaderAndIsrResponse:
    """Gone with its request."""


@message(api_key=5, versions="none")
class StopReplicaRequest:
    """Gone with ZooKeeper: replicas stop by the metadata log. The key stays taken."""


@message(api_key=5, versions="none")
class StopReplicaResponse:
    """Gone with its request."""


@message(api_key=6, versions="none")
class UpdateMetadataRequest:
    """Gone with ZooKeeper: brokers read the metadata log. The key stays taken."""


@message(api_key=6, versions="none")
class UpdateMetadataResponse:
    """Gone with its request."""


@struct
class TopicPartitions:
    """The partitions of one topic that want a leader."""

    topic: String
    partitions: list[Int32]


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest:
    """Has leaders elected: the preferred one, or uncleanly any replica."""

    election_type: Int8 = since(1, default=0)
    topic_partitions: list[TopicPartitions] | None
    timeout_ms: Int32 = 60000


@struct
class PartitionResult:
    """How one partition's election went."""

    partition_id: Int32
    error_code: Int16 = 0
    error_message: NullableString


@struct
class ReplicaElectionResult:
    """How one topic's elections went."""

    topic: String
    partition_result: list[PartitionResult]


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse:
    """How the elections went."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = since(1, default=0)
    replica_election_results: list[ReplicaElectionResult]


@struct
class ReassignablePartition:
    """The replicas a partition shall have; null calls the move off."""

    partition_index: Int32
    replicas: list[Int32] | None = None


@struct
class ReassignableTopic:
    """The partitions of one topic to move."""

    name: String
    partitions: list[ReassignablePartition]


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest:
    """Moves partitions to other replicas, or calls a move off (KIP-455)."""

    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Bool = since(1, default=True)
    topics: list[ReassignableTopic]


@struct
class ReassignablePartitionResponse:
    """Whether one partition's move was accepted."""

    partition_index: Int32
    error_code: Int16 = 0
    error_message: NullableString


@struct
class ReassignableTopicResponse:
    """The answer for one topic."""

    name: String
    partitions: list[ReassignablePartitionResponse]


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse:
    """Which moves were accepted."""

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Bool = since(1, default=True, ignorable=True)
    error_code: Int16 = 0
    error_message: NullableString
    responses: list[ReassignableTopicResponse]


@struct
class ListPartitionReassignmentsTopics:
    """Partitions of one topic to ask about."""

    name: String
    partition_indexes: list[Int32]


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest:
    """Asks which moves are under way; null asks for all."""

    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None


@struct
class OngoingPartitionReassignment:
    """One partition on the move."""

    partition_index: Int32
    replicas: list[Int32]
    adding_replicas: list[Int32]
    removing_replicas: list[Int32]


@struct
class OngoingTopicReassignment:
    """The partitions of one topic on the move."""

    name: String
    partitions: list[OngoingPartitionReassignment]


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse:
    """The moves under way."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString
    topics: list[OngoingTopicReassignment]


@struct
class BrokerState:
    """An in-sync replica, with the epoch of the broker it is on (KIP-903)."""

    broker_id: Int32
    broker_epoch: Int64 = -1


@struct
class AlterPartitionRequestPartitionData:
    """The in-sync set one partition shall have."""

    partition_index: Int32
    leader_epoch: Int32
    new_isr: list[Int32] = until(2, default=[])
    new_isr_with_epochs: list[BrokerState] = since(3, default=[])
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32


@struct
class AlterPartitionRequestTopicData:
    """The changed partitions of one topic."""

    topic_id: UuidField
    partitions: list[AlterPartitionRequestPartitionData]


@message(api_key=56, versions="2-3", flexible="0+")
class AlterPartitionRequest:
    """A leader reports a changed in-sync set to the controller (KIP-497)."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    topics: list[AlterPartitionRequestTopicData]


@struct
class AlterPartitionResponsePartitionData:
    """One partition as it stands."""

    partition_index: Int32
    error_code: Int16 = 0
    leader_id: Int32
    leader_epoch: Int32
    isr: list[Int32]
    leader_recovery_state: Int8 = 0
    partition_epoch: Int32


@struct
class AlterPartitionResponseTopicData:
    """The answer for one topic."""

    topic_id: UuidField
    partitions: list[AlterPartitionResponsePartitionData]


@message(api_key=56, versions="2-3", flexible="0+")
class AlterPartitionResponse:
    """The partitions as they stand after the change."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: list[AlterPartitionResponseTopicData]
