"""The records of __consumer_offsets: offsets, classic groups and consumer groups.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.model.ids import ZERO_UUID
from ottla.wire.schema import (
    Bytes,
    Int8,
    Int32,
    Int64,
    NullableString,
    String,
    UuidField,
    between,
    data,
    since,
    struct,
    tagged,
)


@data(versions="0", api_key=0)
class LegacyOffsetCommitKey:
    """The key of a committed offset, as the very first version wrote it."""

    group: String
    topic: String
    partition: Int32


@data(versions="0", api_key=0)
class LegacyOffsetCommitValue:
    """A committed offset, as the very first version wrote it."""

    offset: Int64
    metadata: String
    commit_timestamp: Int64


@data(versions="0", api_key=1)
class OffsetCommitKey:
    """The key of a committed offset."""

    group: String
    topic: String
    partition: Int32


@data(versions="0-4", flexible="4+", api_key=1)
class OffsetCommitValue:
    """A committed offset."""

    offset: Int64
    leader_epoch: Int32 = since(3, default=-1, ignorable=True)
    metadata: String
    commit_timestamp: Int64
    expire_timestamp: Int64 = between(1, 1, default=-1, ignorable=True)
    topic_id: UuidField = tagged(0, since=4, default=ZERO_UUID, ignorable=True)


@data(versions="0", api_key=2)
class GroupMetadataKey:
    """The key of a classic group."""

    group: String


@struct
class MemberMetadata:
    """A member of a classic group."""

    member_id: String
    group_instance_id: NullableString = since(3, default=None, ignorable=True)
    client_id: String
    client_host: String
    rebalance_timeout: Int32 = since(1, default=-1, ignorable=True)
    session_timeout: Int32
    subscription: Bytes
    assignment: Bytes


@data(versions="0-4", flexible="4+", api_key=2)
class GroupMetadataValue:
    """A classic group after its last rebalance."""

    protocol_type: String
    generation: Int32
    protocol: NullableString
    leader: NullableString
    current_state_timestamp: Int64 = since(2, default=-1, ignorable=True)
    members: list[MemberMetadata]


@data(versions="0", api_key=3)
class ConsumerGroupMetadataKey:
    """The key of a consumer group."""

    group_id: String


@data(versions="0", flexible="0+", api_key=3)
class ConsumerGroupMetadataValue:
    """The epoch of a consumer group."""

    epoch: Int32
    metadata_hash: Int64 = tagged(0, default=0)


@data(versions="0", api_key=4)
class ConsumerGroupPartitionMetadataKey:
    """The key of the partitions a consumer group subscribes to; no longer written."""

    group_id: String


@struct
class PartitionMetadata:
    """A partition and the racks of its replicas."""

    partition: Int32
    racks: list[String]


@struct
class TopicMetadata:
    """A topic that the group subscribes to."""

    topic_id: UuidField
    topic_name: String
    num_partitions: Int32
    partition_metadata: list[PartitionMetadata]


@data(versions="0", flexible="0+", api_key=4)
class ConsumerGroupPartitionMetadataValue:
    """The partitions a consumer group subscribes to; no longer written."""

    topics: list[TopicMetadata]


@data(versions="0", api_key=5)
class ConsumerGroupMemberMetadataKey:
    """The key of a consumer group's member."""

    group_id: String
    member_id: String


@struct
class ClassicProtocol:
    """An assignor a classic member knows, and its subscription."""

    name: String
    metadata: Bytes


@struct
class ClassicMemberMetadata:
    """What only a member that speaks the classic protocol has."""

    session_timeout_ms: Int32
    supported_protocols: list[ClassicProtocol]


@data(versions="0", flexible="0+", api_key=5)
class ConsumerGroupMemberMetadataValue:
    """What a member of a consumer group has said of itself."""

    instance_id: NullableString
    rack_id: NullableString
    client_id: String
    client_host: String
    subscribed_topic_names: list[String]
    subscribed_topic_regex: NullableString
    rebalance_timeout_ms: Int32 = -1
    server_assignor: NullableString
    # Kafka writes a null here: the default is an empty one, which no member has.
    classic_member_metadata: ClassicMemberMetadata | None = tagged(0, default=ClassicMemberMetadata)


@data(versions="0", api_key=6)
class ConsumerGroupTargetAssignmentMetadataKey:
    """The key of a consumer group's target assignment."""

    group_id: String


@data(versions="0", flexible="0+", api_key=6)
class ConsumerGroupTargetAssignmentMetadataValue:
    """The epoch of a consumer group's target assignment."""

    assignment_epoch: Int32
    assignment_timestamp: Int64 = tagged(0, default=0)


@data(versions="0", api_key=7)
class ConsumerGroupTargetAssignmentMemberKey:
    """The key of a member's target assignment."""

    group_id: String
    member_id: String


@struct
class TopicPartition:
    """Partitions of one topic."""

    topic_id: UuidField
    partitions: list[Int32]


@data(versions="0", flexible="0+", api_key=7)
class ConsumerGroupTargetAssignmentMemberValue:
    """What a member of a consumer group shall have."""

    topic_partitions: list[TopicPartition]


@data(versions="0", api_key=8)
class ConsumerGroupCurrentMemberAssignmentKey:
    """The key of a member's current assignment."""

    group_id: String
    member_id: String


@struct
class TopicPartitions:
    """Partitions of one topic, each with the epoch it was assigned in."""

    topic_id: UuidField
    partitions: list[Int32]
    assignment_epochs: list[Int32] | None = tagged(0, default=[])


@data(versions="0", flexible="0+", api_key=8)
class ConsumerGroupCurrentMemberAssignmentValue:
    """What a member of a consumer group has, and must still give up."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    assigned_partitions: list[TopicPartitions]
    partitions_pending_revocation: list[TopicPartitions]


@data(versions="0", api_key=16)
class ConsumerGroupRegularExpressionKey:
    """The key of a resolved regular expression."""

    group_id: String
    regular_expression: String


@data(versions="0", flexible="0+", api_key=16)
class ConsumerGroupRegularExpressionValue:
    """The topics a regular expression stands for, and as of when."""

    topics: list[String]
    version: Int64
    timestamp: Int64
