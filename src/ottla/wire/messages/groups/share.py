"""Share groups (KIP-932): membership, acquiring, acknowledging, offsets.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableRecords,
    NullableString,
    String,
    UuidField,
    field,
    message,
    since,
    struct,
    until,
)


@message(api_key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatRequest:
    """A member of a share group joins, stays or leaves (KIP-932)."""

    group_id: String
    member_id: String
    member_epoch: Int32
    rack_id: NullableString = None
    subscribed_topic_names: list[String] | None = None


@struct
class ShareGroupHeartbeatResponseTopicPartitions:
    """Partitions of one topic that the member may fetch from."""

    topic_id: UuidField
    partitions: list[Int32]


@struct
class ShareGroupHeartbeatResponseAssignment:
    """What the member is assigned."""

    topic_partitions: list[ShareGroupHeartbeatResponseTopicPartitions]


@message(api_key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatResponse:
    """The member's epoch, and its assignment if that has changed."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None
    member_id: NullableString = None
    member_epoch: Int32
    heartbeat_interval_ms: Int32
    assignment: ShareGroupHeartbeatResponseAssignment | None = None


@message(api_key=77, versions="1", flexible="0+")
class ShareGroupDescribeRequest:
    """Asks about share groups."""

    group_ids: list[String]
    include_authorized_operations: Bool


@struct
class ShareGroupDescribeResponseTopicPartitions:
    """Partitions of one topic."""

    topic_id: UuidField
    topic_name: String
    partitions: list[Int32]


@struct
class ShareGroupDescribeResponseAssignment:
    """What a member is assigned."""

    topic_partitions: list[ShareGroupDescribeResponseTopicPartitions]


@struct
class Member:
    """A member of the group."""

    member_id: String
    rack_id: NullableString = None
    member_epoch: Int32
    client_id: String
    client_host: String
    subscribed_topic_names: list[String]
    assignment: ShareGroupDescribeResponseAssignment


@struct
class DescribedGroup:
    """A share group."""

    error_code: Int16 = 0
    error_message: NullableString = None
    group_id: String
    group_state: String
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: String
    members: list[Member]
    authorized_operations: Int32 = -2147483648


@message(api_key=77, versions="1", flexible="0+")
class ShareGroupDescribeResponse:
    """The groups, and the members of each."""

    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup]


@struct
class AcknowledgementBatch:
    """What became of a run of records."""

    first_offset: Int64
    last_offset: Int64
    acknowledge_types: list[Int8]


@struct
class FetchPartition:
    """A partition to acquire from."""

    partition_index: Int32
    partition_max_bytes: Int32 = until(0, default=0)
    acknowledgement_batches: list[AcknowledgementBatch]


@struct
class FetchTopic:
    """The partitions of one topic to acquire from."""

    topic_id: UuidField
    partitions: list[FetchPartition]


@struct
class ForgottenTopic:
    """Partitions that leave the share session."""

    topic_id: UuidField
    partitions: list[Int32]


@message(api_key=78, versions="1-2", flexible="0+")
class ShareFetchRequest:
    """A member acquires records, and acknowledges those it had."""

    group_id: NullableString = None
    member_id: NullableString
    share_session_epoch: Int32
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = 2**31 - 1
    max_records: Int32
    batch_size: Int32
    share_acquire_mode: Int8 = since(2, default=0, ignorable=True)
    is_renew_ack: Bool = since(2, default=False)
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic]


@struct
class LeaderIdAndEpoch:
    """Who leads now, for a client that asked the wrong broker (KIP-951)."""

    leader_id: Int32
    leader_epoch: Int32


@struct
class AcquiredRecords:
    """A run of records that the member now holds."""

    first_offset: Int64
    last_offset: Int64
    delivery_count: Int16


@struct
class ShareFetchResponsePartitionData:
    """One partition's records."""

    partition_index: Int32
    error_code: Int16 = 0
    error_message: NullableString = None
    acknowledge_error_code: Int16
    acknowledge_error_message: NullableString = None
    current_leader: LeaderIdAndEpoch
    records: NullableRecords = field(nullable="0")
    acquired_records: list[AcquiredRecords]


@struct
class ShareFetchableTopicResponse:
    """One topic's share of the answer."""

    topic_id: UuidField
    partitions: list[ShareFetchResponsePartitionData]


@struct
class NodeEndpoint:
    """Where to reach a node that the answer names."""

    node_id: Int32
    host: String
    port: Int32
    rack: NullableString = None


@message(api_key=78, versions="1-2", flexible="0+")
class ShareFetchResponse:
    """Acquired records, and how the acknowledgements went."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None
    acquisition_lock_timeout_ms: Int32
    responses: list[ShareFetchableTopicResponse]
    node_endpoints: list[NodeEndpoint]


@struct
class AcknowledgePartition:
    """The acknowledgements for one partition."""

    partition_index: Int32
    acknowledgement_batches: list[AcknowledgementBatch]


@struct
class AcknowledgeTopic:
    """The acknowledgements for one topic."""

    topic_id: UuidField
    partitions: list[AcknowledgePartition]


@message(api_key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeRequest:
    """A member says what became of records it had acquired."""

    group_id: NullableString = None
    member_id: NullableString
    share_session_epoch: Int32
    is_renew_ack: Bool = since(2, default=False)
    topics: list[AcknowledgeTopic]


@struct
class ShareAcknowledgeResponsePartitionData:
    """The answer for one partition."""

    partition_index: Int32
    error_code: Int16 = 0
    error_message: NullableString = None
    current_leader: LeaderIdAndEpoch


@struct
class ShareAcknowledgeTopicResponse:
    """The answer for one topic."""

    topic_id: UuidField
    partitions: list[ShareAcknowledgeResponsePartitionData]


@message(api_key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeResponse:
    """Whether the acknowledgements were taken."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None
    acquisition_lock_timeout_ms: Int32 = since(2, default=0, ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse]
    node_endpoints: list[NodeEndpoint]


@struct
class DescribeShareGroupOffsetsRequestTopic:
    """The partitions of one topic to ask about."""

    topic_name: String
    partitions: list[Int32]


@struct
class DescribeShareGroupOffsetsRequestGroup:
    """A group, and the topics to ask about; null for all."""

    group_id: String
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None


@message(api_key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsRequest:
    """Asks where share groups start to read."""

    groups: list[DescribeShareGroupOffsetsRequestGroup]


@struct
class DescribeShareGroupOffsetsResponsePartition:
    """Where the group starts in one partition."""

    partition_index: Int32
    start_offset: Int64
    leader_epoch: Int32
    lag: Int64 = since(1, default=-1, ignorable=True)
    error_code: Int16 = 0
    error_message: NullableString = None


@struct
class DescribeShareGroupOffsetsResponseTopic:
    """The answer for one topic."""

    topic_name: String
    topic_id: UuidField
    partitions: list[DescribeShareGroupOffsetsResponsePartition]


@struct
class DescribeShareGroupOffsetsResponseGroup:
    """The answer for one group."""

    group_id: String
    topics: list[DescribeShareGroupOffsetsResponseTopic]
    error_code: Int16 = 0
    error_message: NullableString = None


@message(api_key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsResponse:
    """The start offsets."""

    throttle_time_ms: Int32 = 0
    groups: list[DescribeShareGroupOffsetsResponseGroup]


@struct
class AlterShareGroupOffsetsRequestPartition:
    """The start offset of one partition."""

    partition_index: Int32
    start_offset: Int64


@struct
class AlterShareGroupOffsetsRequestTopic:
    """The start offsets of one topic."""

    topic_name: String
    partitions: list[AlterShareGroupOffsetsRequestPartition]


@message(api_key=91, versions="0", flexible="0+")
class AlterShareGroupOffsetsRequest:
    """Sets where a share group starts to read."""

    group_id: String
    topics: list[AlterShareGroupOffsetsRequestTopic]


@struct
class AlterShareGroupOffsetsResponsePartition:
    """Whether one partition's offset was set."""

    partition_index: Int32
    error_code: Int16 = 0
    error_message: NullableString = None


@struct
class AlterShareGroupOffsetsResponseTopic:
    """The answer for one topic."""

    topic_name: String
    topic_id: UuidField
    partitions: list[AlterShareGroupOffsetsResponsePartition]


@message(api_key=91, versions="0", flexible="0+")
class AlterShareGroupOffsetsResponse:
    """Which offsets were set."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None
    responses: list[AlterShareGroupOffsetsResponseTopic]


@struct
class DeleteShareGroupOffsetsRequestTopic:
    """A topic to forget."""

    topic_name: String


@message(api_key=92, versions="0", flexible="0+")
class DeleteShareGroupOffsetsRequest:
    """Forgets where a share group has read in topics."""

    group_id: String
    topics: list[DeleteShareGroupOffsetsRequestTopic]


@struct
class DeleteShareGroupOffsetsResponseTopic:
    """Whether one topic was forgotten."""

    topic_name: String
    topic_id: UuidField
    error_code: Int16 = 0
    error_message: NullableString = None


@message(api_key=92, versions="0", flexible="0+")
class DeleteShareGroupOffsetsResponse:
    """Which topics were forgotten."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None
    responses: list[DeleteShareGroupOffsetsResponseTopic]
