"""Streams groups (KIP-1071).

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
    UInt16,
    message,
    since,
    struct,
    until,
)


@struct
class KeyValue:
    """A key and its value."""

    key: String
    value: String


@struct
class TopicInfo:
    """An internal topic that the application needs."""

    name: String
    partitions: Int32
    replication_factor: Int16
    topic_configs: list[KeyValue]


@struct
class CopartitionGroup:
    """Topics of a subtopology that must have equally many partitions, by their places in its lists."""

    source_topics: list[Int16]
    source_topic_regex: list[Int16]
    repartition_source_topics: list[Int16]


@struct
class StreamsGroupHeartbeatRequestSubtopology:
    """A part of the topology that is assigned as one."""

    subtopology_id: String
    source_topics: list[String]
    source_topic_regex: list[String]
    state_changelog_topics: list[TopicInfo]
    repartition_sink_topics: list[String]
    repartition_source_topics: list[TopicInfo]
    copartition_groups: list[CopartitionGroup]


@struct
class StreamsGroupHeartbeatRequestTopology:
    """The application's topology."""

    epoch: Int32
    subtopologies: list[StreamsGroupHeartbeatRequestSubtopology]


@struct
class TaskIds:
    """Tasks of one subtopology, by partition."""

    subtopology_id: String
    partitions: list[Int32]


@struct
class Endpoint:
    """Where the instance can be queried."""

    host: String
    port: UInt16


@struct
class TaskOffset:
    """How far one task has come."""

    subtopology_id: String
    partition: Int32
    offset: Int64


@message(api_key=88, versions="0-1", flexible="0+")
class StreamsGroupHeartbeatRequest:
    """An instance of a streams application joins, stays or leaves (KIP-1071)."""

    group_id: String
    member_id: String
    member_epoch: Int32
    endpoint_information_epoch: Int32
    instance_id: NullableString = None
    rack_id: NullableString = None
    rebalance_timeout_ms: Int32 = -1
    topology: StreamsGroupHeartbeatRequestTopology | None = None
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    process_id: NullableString = None
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] | None = None
    task_offsets: list[TaskOffset] | None = None
    task_end_offsets: list[TaskOffset] | None = None
    shutdown_application: Bool = False


@struct
class Status:
    """Something that the group's state asks of its members."""

    status_code: Int8
    status_detail: String


@struct
class TopicPartition:
    """Partitions of one topic."""

    topic: String
    partitions: list[Int32]


@struct
class EndpointToPartitions:
    """An endpoint and the partitions that can be queried there."""

    user_endpoint: Endpoint
    active_partitions: list[TopicPartition]
    standby_partitions: list[TopicPartition]


@message(api_key=88, versions="0-1", flexible="0+")
class StreamsGroupHeartbeatResponse:
    """The member's epoch, and its tasks if they have changed."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None
    member_id: String
    member_epoch: Int32
    heartbeat_interval_ms: Int32
    acceptable_recovery_lag_legacy: Int32 = until(0, default=0)
    task_offset_interval_ms: Int32
    acceptable_recovery_lag: Int64 = since(1, default=-1, ignorable=True)
    status: list[Status] | None
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    topology_description_required: Bool = since(1, default=False)
    endpoint_information_epoch: Int32
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = None


@message(api_key=89, versions="0-1", flexible="0+")
class StreamsGroupDescribeRequest:
    """Asks about streams groups."""

    group_ids: list[String]
    include_authorized_operations: Bool
    include_topology_description: Bool = since(1, default=False)


@struct
class StreamsGroupDescribeResponseSubtopology:
    """A part of the topology that is assigned as one."""

    subtopology_id: String
    source_topics: list[String]
    repartition_sink_topics: list[String]
    state_changelog_topics: list[TopicInfo]
    repartition_source_topics: list[TopicInfo]


@struct
class StreamsGroupDescribeResponseTopology:
    """The topology the group runs."""

    epoch: Int32
    subtopologies: list[StreamsGroupDescribeResponseSubtopology] | None = None


@struct
class Assignment:
    """The tasks a member has, or shall have."""

    active_tasks: list[TaskIds]
    standby_tasks: list[TaskIds]
    warmup_tasks: list[TaskIds]


@struct
class Member:
    """A member of the group."""

    member_id: String
    member_epoch: Int32
    instance_id: NullableString = None
    rack_id: NullableString = None
    client_id: String
    client_host: String
    topology_epoch: Int32
    process_id: String
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue]
    task_offsets: list[TaskOffset]
    task_end_offsets: list[TaskOffset]
    assignment: Assignment
    target_assignment: Assignment
    is_classic: Bool


@struct
class TopologyDescriptionNode:
    """A source, processor or sink of the topology."""

    name: String
    node_type: Int8
    source_topics: list[String]
    sink_topic: NullableString = None
    stores: list[String]
    successors: list[String]


@struct
class TopologyDescriptionSubtopology:
    """The nodes of one subtopology."""

    subtopology_id: String
    nodes: list[TopologyDescriptionNode]


@struct
class TopologyDescriptionGlobalStore:
    """A global store: its source and its processor."""

    source: TopologyDescriptionNode
    processor: TopologyDescriptionNode


@struct
class TopologyDescription:
    """The topology as the application describes it."""

    subtopologies: list[TopologyDescriptionSubtopology]
    global_stores: list[TopologyDescriptionGlobalStore]


@struct
class DescribedGroup:
    """A streams group."""

    error_code: Int16 = 0
    error_message: NullableString = None
    group_id: String
    group_state: String
    group_epoch: Int32
    assignment_epoch: Int32
    topology: StreamsGroupDescribeResponseTopology | None = None
    members: list[Member]
    authorized_operations: Int32 = -2147483648
    topology_description: TopologyDescription | None = since(1, default=None)
    topology_description_status: Int8 = since(1, default=0)
    assignor_name: NullableString = since(1, default=None, ignorable=True)


@message(api_key=89, versions="0-1", flexible="0+")
class StreamsGroupDescribeResponse:
    """The groups, and the members of each."""

    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup]


@message(api_key=93, versions="0", flexible="0+")
class StreamsGroupTopologyDescriptionUpdateRequest:
    """A member hands in the description of its topology."""

    group_id: String
    member_id: String
    topology_epoch: Int32
    topology_description: TopologyDescription


@message(api_key=93, versions="0", flexible="0+")
class StreamsGroupTopologyDescriptionUpdateResponse:
    """Whether the description was taken."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None
