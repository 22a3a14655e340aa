"""The records of share groups in __consumer_offsets.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Int8, Int32, Int64, NullableString, String, UuidField, data, struct, tagged


@data(versions="0", api_key=10)
class ShareGroupMemberMetadataKey:
    """The key of a share group's member."""

    group_id: String
    member_id: String


@data(versions="0", flexible="0+", api_key=10)
class ShareGroupMemberMetadataValue:
    """What a member of a share group has said of itself."""

    rack_id: NullableString
    client_id: String
    client_host: String
    subscribed_topic_names: list[String]


@data(versions="0", api_key=11)
class ShareGroupMetadataKey:
    """The key of a share group."""

    group_id: String


@data(versions="0", flexible="0+", api_key=11)
class ShareGroupMetadataValue:
    """The epoch of a share group."""

    epoch: Int32
    metadata_hash: Int64


@data(versions="0", api_key=12)
class ShareGroupTargetAssignmentMetadataKey:
    """The key of a share group's target assignment."""

    group_id: String


@data(versions="0", flexible="0+", api_key=12)
class ShareGroupTargetAssignmentMetadataValue:
    """The epoch of a share group's target assignment."""

    assignment_epoch: Int32
    assignment_timestamp: Int64 = tagged(0, default=0)


@data(versions="0", api_key=13)
class ShareGroupTargetAssignmentMemberKey:
    """The key of a member's target assignment."""

    group_id: String
    member_id: String


@struct
class TopicPartition:
    """Partitions of one topic."""

    topic_id: UuidField
    partitions: list[Int32]


@data(versions="0", flexible="0+", api_key=13)
class ShareGroupTargetAssignmentMemberValue:
    """What a member of a share group shall have."""

    topic_partitions: list[TopicPartition]


@data(versions="0", api_key=14)
class ShareGroupCurrentMemberAssignmentKey:
    """The key of a member's current assignment."""

    group_id: String
    member_id: String


@struct
class TopicPartitions:
    """Partitions of one topic."""

    topic_id: UuidField
    partitions: list[Int32]


@data(versions="0", flexible="0+", api_key=14)
class ShareGroupCurrentMemberAssignmentValue:
    """What a member of a share group has."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    assigned_partitions: list[TopicPartitions]


@data(versions="0", api_key=15)
class ShareGroupStatePartitionMetadataKey:
    """The key of the share partitions of a group."""

    group_id: String


@struct
class TopicPartitionsInfo:
    """The share partitions of one topic."""

    topic_id: UuidField
    topic_name: String
    partitions: list[Int32]


@struct
class TopicInfo:
    """A topic whose state is taken down."""

    topic_id: UuidField
    topic_name: String


@data(versions="0", flexible="0+", api_key=15)
class ShareGroupStatePartitionMetadataValue:
    """How far the state of a group's share partitions is set up or taken down."""

    initializing_topics: list[TopicPartitionsInfo]
    initialized_topics: list[TopicPartitionsInfo]
    deleting_topics: list[TopicInfo]
