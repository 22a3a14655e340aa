"""Topics: creating, deleting, growing, cutting off.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.model.ids import ZERO_UUID
from ottla.wire.schema import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableString,
    String,
    UuidField,
    field,
    message,
    since,
    struct,
    tagged,
    until,
)


@struct
class CreatableReplicaAssignment:
    """The brokers a partition shall live on, when the caller chooses them."""

    partition_index: Int32
    broker_ids: list[Int32]


@struct
class CreatableTopicConfig:
    """A configuration the topic starts with."""

    name: String
    value: NullableString


@struct
class CreatableTopic:
    """A topic to create."""

    name: String
    num_partitions: Int32
    replication_factor: Int16
    assignments: list[CreatableReplicaAssignment]
    configs: list[CreatableTopicConfig]


@message(api_key=19, versions="2-7", flexible="5+")
class CreateTopicsRequest:
    """Creates topics."""

    topics: list[CreatableTopic]
    timeout_ms: Int32 = 60000
    validate_only: Bool = False


@struct
class CreatableTopicConfigs:
    """A configuration of the new topic."""

    name: String
    value: NullableString
    read_only: Bool
    config_source: Int8 = -1
    is_sensitive: Bool


@struct
class CreatableTopicResult:
    """Whether one topic was created."""

    name: String
    topic_id: UuidField = since(7, default=ZERO_UUID, ignorable=True)
    error_code: Int16 = 0
    error_message: NullableString
    topic_config_error_code: Int16 = tagged(0, since=5, default=0, ignorable=True)
    num_partitions: Int32 = since(5, default=-1, ignorable=True)
    replication_factor: Int16 = since(5, default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = since(5, default=[], ignorable=True)


@message(api_key=19, versions="2-7", flexible="5+")
class CreateTopicsResponse:
    """Which topics were created, and how they look."""

    throttle_time_ms: Int32 = 0
    topics: list[CreatableTopicResult]


@struct
class DeleteTopicState:
    """A topic to delete."""

    name: NullableString = None
    topic_id: UuidField


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsRequest:
    """Deletes topics, by name or by id."""

    topics: list[DeleteTopicState] = since(6, default=[])
    topic_names: list[String] = until(5, default=[], ignorable=True)
    timeout_ms: Int32


@struct
class DeletableTopicResult:
    """Whether one topic was deleted."""

    name: NullableString = field(nullable="6+")
    topic_id: UuidField = since(6, default=ZERO_UUID, ignorable=True)
    error_code: Int16 = 0
    error_message: NullableString = since(5, default=None, ignorable=True)


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    """Which topics were deleted."""

    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult]


@struct
class DeleteRecordsPartition:
    """A partition, and the offset it shall start at; -1 is the high watermark."""

    partition_index: Int32
    offset: Int64


@struct
class DeleteRecordsTopic:
    """The partitions of one topic to cut."""

    name: String
    partitions: list[DeleteRecordsPartition]


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest:
    """Forgets the records below an offset."""

    topics: list[DeleteRecordsTopic]
    timeout_ms: Int32


@struct
class DeleteRecordsPartitionResult:
    """Where one partition starts now."""

    partition_index: Int32
    low_watermark: Int64
    error_code: Int16 = 0


@struct
class DeleteRecordsTopicResult:
    """The answer for one topic."""

    name: String
    partitions: list[DeleteRecordsPartitionResult]


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    """Where the partitions start now."""

    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult]


@struct
class CreatePartitionsAssignment:
    """The brokers one new partition shall live on."""

    broker_ids: list[Int32]


@struct
class CreatePartitionsTopic:
    """A topic, and how many partitions it shall have."""

    name: String
    count: Int32
    assignments: list[CreatePartitionsAssignment] | None


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsRequest:
    """Gives topics more partitions."""

    topics: list[CreatePartitionsTopic]
    timeout_ms: Int32
    validate_only: Bool


@struct
class CreatePartitionsTopicResult:
    """Whether one topic has grown."""

    name: String
    error_code: Int16 = 0
    error_message: NullableString = None


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    """Which topics have grown."""

    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult]
