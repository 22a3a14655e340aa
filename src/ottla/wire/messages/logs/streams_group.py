"""The records of streams groups in __consumer_offsets.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Int8, Int16, Int32, Int64, NullableString, String, UInt16, data, struct, tagged


@data(versions="0", api_key=17)
class StreamsGroupMetadataKey:
    """The key of a streams group."""

    group_id: String


@struct
class LastAssignmentConfig:
    """A configuration that the last assignment was made with."""

    key: String
    value: String


@data(versions="0", flexible="0+", api_key=17)
class StreamsGroupMetadataValue:
    """The epochs of a streams group."""

    epoch: Int32
    metadata_hash: Int64
    validated_topology_epoch: Int32 = tagged(0, default=-1)
    last_assignment_configs: list[LastAssignmentConfig] | None = tagged(1, default=[])
    stored_description_topology_epoch: Int32 = tagged(2, default=-1)
    failed_description_topology_epoch: Int32 = tagged(3, default=-1)


@data(versions="0", api_key=19)
class StreamsGroupMemberMetadataKey:
    """The key of a streams group's member."""

    group_id: String
    member_id: String


@struct
class Endpoint:
    """Where the instance can be queried."""

    host: String
    port: UInt16


@struct
class KeyValue:
    """A key and its value."""

    key: String
    value: String


@data(versions="0", flexible="0+", api_key=19)
class StreamsGroupMemberMetadataValue:
    """What a member of a streams group has said of itself."""

    instance_id: NullableString
    rack_id: NullableString
    client_id: String
    client_host: String
    rebalance_timeout_ms: Int32 = -1
    topology_epoch: Int32
    process_id: String
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue]


@data(versions="0", api_key=20)
class StreamsGroupTargetAssignmentMetadataKey:
    """The key of a streams group's target assignment."""

    group_id: String


@data(versions="0", flexible="0+", api_key=20)
class StreamsGroupTargetAssignmentMetadataValue:
    """The epoch of a streams group's target assignment."""

    assignment_epoch: Int32
    assignment_timestamp: Int64 = tagged(0, default=0)


@data(versions="0", api_key=21)
class StreamsGroupTargetAssignmentMemberKey:
    """The key of a member's target tasks."""

    group_id: String
    member_id: String


@struct
class StreamsGroupTargetAssignmentMemberValueTaskIds:
    """Tasks of one subtopology, by partition."""

    subtopology_id: String
    partitions: list[Int32]


@data(versions="0", flexible="0+", api_key=21)
class StreamsGroupTargetAssignmentMemberValue:
    """The tasks a member of a streams group shall have."""

    active_tasks: list[StreamsGroupTargetAssignmentMemberValueTaskIds]
    standby_tasks: list[StreamsGroupTargetAssignmentMemberValueTaskIds]
    warmup_tasks: list[StreamsGroupTargetAssignmentMemberValueTaskIds]


@data(versions="0", api_key=22)
class StreamsGroupCurrentMemberAssignmentKey:
    """The key of a member's current tasks."""

    group_id: String
    member_id: String


@struct
class StreamsGroupCurrentMemberAssignmentValueTaskIds:
    """Tasks of one subtopology, each with the epoch it was assigned in."""

    subtopology_id: String
    partitions: list[Int32]
    assignment_epochs: list[Int32] | None = tagged(0, default=[])


@data(versions="0", flexible="0+", api_key=22)
class StreamsGroupCurrentMemberAssignmentValue:
    """The tasks a member of a streams group has, and must still give up."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    active_tasks: list[StreamsGroupCurrentMemberAssignmentValueTaskIds]
    standby_tasks: list[StreamsGroupCurrentMemberAssignmentValueTaskIds]
    warmup_tasks: list[StreamsGroupCurrentMemberAssignmentValueTaskIds]
    active_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValueTaskIds]
    standby_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValueTaskIds]
    warmup_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValueTaskIds]


@data(versions="0", api_key=23)
class StreamsGroupTopologyKey:
    """The key of a streams group's topology."""

    group_id: String


@struct
class TopicConfig:
    """A configuration of an internal topic."""

    key: String
    value: String


@struct
class TopicInfo:
    """An internal topic that the application needs."""

    name: String
    partitions: Int32
    replication_factor: Int16
    topic_configs: list[TopicConfig]


@struct
class CopartitionGroup:
    """Topics of a subtopology that must have equally many partitions, by their places in its lists."""

    source_topics: list[Int16]
    source_topic_regex: list[Int16]
    repartition_source_topics: list[Int16]


@struct
class Subtopology:
    """A part of the topology that is assigned as one."""

    subtopology_id: String
    source_topics: list[String]
    source_topic_regex: list[String]
    state_changelog_topics: list[TopicInfo]
    repartition_sink_topics: list[String]
    repartition_source_topics: list[TopicInfo]
    copartition_groups: list[CopartitionGroup]


@data(versions="0", flexible="0+", api_key=23)
class StreamsGroupTopologyValue:
    """The topology of a streams group."""

    epoch: Int32
    subtopologies: list[Subtopology]
