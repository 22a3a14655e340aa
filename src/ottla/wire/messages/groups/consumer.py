"""Consumer groups of the new protocol (KIP-848).

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import (
    Bool,
    Int8,
    Int16,
    Int32,
    NullableString,
    String,
    UuidField,
    message,
    since,
    struct,
)


@struct
class ConsumerGroupHeartbeatRequestTopicPartitions:
    """Partitions of one topic that the member holds."""

    topic_id: UuidField
    partitions: list[Int32]


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest:
    """A member of a consumer group joins, stays or leaves, and says what it holds (KIP-848)."""

    group_id: String
    member_id: String
    member_epoch: Int32
    instance_id: NullableString = None
    rack_id: NullableString = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[String] | None = None
    subscribed_topic_regex: NullableString = since(1, default=None)
    server_assignor: NullableString = None
    topic_partitions: list[ConsumerGroupHeartbeatRequestTopicPartitions] | None = None


@struct
class ConsumerGroupHeartbeatResponseTopicPartitions:
    """Partitions of one topic assigned to the member."""

    topic_id: UuidField
    partitions: list[Int32]


@struct
class ConsumerGroupHeartbeatResponseAssignment:
    """What the member is assigned."""

    topic_partitions: list[ConsumerGroupHeartbeatResponseTopicPartitions]


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse:
    """The member's epoch, and its assignment if that has changed."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None
    member_id: NullableString = None
    member_epoch: Int32
    heartbeat_interval_ms: Int32
    assignment: ConsumerGroupHeartbeatResponseAssignment | None = None


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest:
    """Asks about consumer groups."""

    group_ids: list[String]
    include_authorized_operations: Bool


@struct
class ConsumerGroupDescribeResponseTopicPartitions:
    """Partitions of one topic."""

    topic_id: UuidField
    topic_name: String
    partitions: list[Int32]


@struct
class ConsumerGroupDescribeResponseAssignment:
    """What a member has, or shall have."""

    topic_partitions: list[ConsumerGroupDescribeResponseTopicPartitions]


@struct
class Member:
    """A member of the group."""

    member_id: String
    instance_id: NullableString = None
    rack_id: NullableString = None
    member_epoch: Int32
    client_id: String
    client_host: String
    subscribed_topic_names: list[String]
    subscribed_topic_regex: NullableString = None
    assignment: ConsumerGroupDescribeResponseAssignment
    target_assignment: ConsumerGroupDescribeResponseAssignment
    member_type: Int8 = since(1, default=-1, ignorable=True)


@struct
class DescribedGroup:
    """A consumer group."""

    error_code: Int16 = 0
    error_message: NullableString = None
    group_id: String
    group_state: String
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: String
    members: list[Member]
    authorized_operations: Int32 = -2147483648


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse:
    """The groups, and the members of each."""

    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup]
