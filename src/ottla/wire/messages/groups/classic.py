"""Classic consumer groups, and the committed offsets of every kind of group.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.model.ids import ZERO_UUID
from ottla.wire.schema import (
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableString,
    String,
    UuidField,
    between,
    field,
    message,
    since,
    struct,
    until,
)


@struct
class OffsetCommitRequestPartition:
    """The offset to commit for one partition."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = since(6, default=-1, ignorable=True)
    committed_metadata: NullableString


@struct
class OffsetCommitRequestTopic:
    """The offsets to commit for one topic."""

    name: String = until(9, default="", ignorable=True)
    topic_id: UuidField = since(10, default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetCommitRequestPartition]


@message(api_key=8, versions="2-10", flexible="8+")
class OffsetCommitRequest:
    """A group commits how far it has read."""

    group_id: String
    generation_id_or_member_epoch: Int32 = -1
    member_id: String
    group_instance_id: NullableString = since(7, default=None)
    retention_time_ms: Int64 = until(4, default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic]


@struct
class OffsetCommitResponsePartition:
    """Whether one partition's commit was taken."""

    partition_index: Int32
    error_code: Int16 = 0


@struct
class OffsetCommitResponseTopic:
    """The answer for one topic."""

    name: String = until(9, default="", ignorable=True)
    topic_id: UuidField = since(10, default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetCommitResponsePartition]


@message(api_key=8, versions="2-10", flexible="8+")
class OffsetCommitResponse:
    """Which commits were taken."""

    throttle_time_ms: Int32 = since(3, default=0, ignorable=True)
    topics: list[OffsetCommitResponseTopic]


@struct
class OffsetFetchRequestTopic:
    """Partitions of one topic, when one group is asked about."""

    name: String
    partition_indexes: list[Int32]


@struct
class OffsetFetchRequestTopics:
    """Partitions of one topic, when several groups are asked about."""

    name: String = until(9, default="", ignorable=True)
    topic_id: UuidField = since(10, default=ZERO_UUID, ignorable=True)
    partition_indexes: list[Int32]


@struct
class OffsetFetchRequestGroup:
    """A group, and the topics whose offsets are wanted; null for all."""

    group_id: String
    member_id: NullableString = since(9, default=None, ignorable=True)
    member_epoch: Int32 = since(9, default=-1, ignorable=True)
    topics: list[OffsetFetchRequestTopics] | None


@message(api_key=9, versions="1-10", flexible="6+")
class OffsetFetchRequest:
    """Asks for committed offsets, of one group or (from version 8) of several."""

    group_id: String = until(7, default="")
    topics: list[OffsetFetchRequestTopic] | None = until(7, default=[], nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = since(8, default=[])
    require_stable: Bool = since(7, default=False)


@struct
class OffsetFetchResponsePartition:
    """One partition's committed offset, when one group was asked about."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = since(5, default=-1, ignorable=True)
    metadata: NullableString
    error_code: Int16 = 0


@struct
class OffsetFetchResponseTopic:
    """One topic's committed offsets, when one group was asked about."""

    name: String
    partitions: list[OffsetFetchResponsePartition]


@struct
class OffsetFetchResponsePartitions:
    """One partition's committed offset, when several groups were asked about."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32 = -1
    metadata: NullableString
    error_code: Int16 = 0


@struct
class OffsetFetchResponseTopics:
    """One topic's committed offsets, when several groups were asked about."""

    name: String = until(9, default="", ignorable=True)
    topic_id: UuidField = since(10, default=ZERO_UUID, ignorable=True)
    partitions: list[OffsetFetchResponsePartitions]


@struct
class OffsetFetchResponseGroup:
    """One group's committed offsets."""

    group_id: String
    topics: list[OffsetFetchResponseTopics]
    error_code: Int16 = 0


@message(api_key=9, versions="1-10", flexible="6+")
class OffsetFetchResponse:
    """The committed offsets."""

    throttle_time_ms: Int32 = since(3, default=0, ignorable=True)
    topics: list[OffsetFetchResponseTopic] = until(7, default=[])
    error_code: Int16 = between(2, 7, default=0, ignorable=True)
    groups: list[OffsetFetchResponseGroup] = since(8, default=[])


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    """Asks which broker coordinates groups, transactions or share partitions."""

    key: String = until(3, default="")
    key_type: Int8 = since(1, default=0)
    coordinator_keys: list[String] = since(4, default=[])


@struct
class Coordinator:
    """The coordinator of one key."""

    key: String
    node_id: Int32
    host: String
    port: Int32
    error_code: Int16 = 0
    error_message: NullableString


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    """The coordinators; a single one stands in the message itself before version 4."""

    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    error_code: Int16 = until(3, default=0)
    error_message: NullableString = between(1, 3, default="", ignorable=True)
    node_id: Int32 = until(3, default=0)
    host: String = until(3, default="")
    port: Int32 = until(3, default=0)
    coordinators: list[Coordinator] = since(4, default=[])


@struct
class JoinGroupRequestProtocol:
    """An assignor the member knows, and its subscription in that assignor's terms."""

    name: String
    metadata: Bytes


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupRequest:
    """A member joins a classic group, and waits until the others have."""

    group_id: String
    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32 = since(1, default=-1, ignorable=True)
    member_id: String
    group_instance_id: NullableString = since(5, default=None)
    protocol_type: String
    protocols: list[JoinGroupRequestProtocol]
    reason: NullableString = since(8, default=None, ignorable=True)


@struct
class JoinGroupResponseMember:
    """A member, as the group's leader sees it."""

    member_id: String
    group_instance_id: NullableString = since(5, default=None, ignorable=True)
    metadata: Bytes


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupResponse:
    """The generation that was formed; its leader also learns the members."""

    throttle_time_ms: Int32 = since(2, default=0, ignorable=True)
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: NullableString = since(7, default=None, ignorable=True)
    protocol_name: NullableString = field(nullable="7+")
    leader: String
    skip_assignment: Bool = since(9, default=False)
    member_id: String
    members: list[JoinGroupResponseMember]


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatRequest:
    """A group member says that it is alive."""

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: NullableString = since(3, default=None)


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatResponse:
    """Whether the member is still in the group."""

    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    error_code: Int16 = 0


@struct
class MemberIdentity:
    """A member that leaves."""

    member_id: String
    group_instance_id: NullableString = None
    reason: NullableString = since(5, default=None, ignorable=True)


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest:
    """Members leave a group."""

    group_id: String
    member_id: String = until(2, default="")
    members: list[MemberIdentity] = since(3, default=[])


@struct
class MemberResponse:
    """Whether one member has left."""

    member_id: String
    group_instance_id: NullableString
    error_code: Int16 = 0


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupResponse:
    """Whether they have left."""

    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    error_code: Int16 = 0
    members: list[MemberResponse] = since(3, default=[])


@struct
class SyncGroupRequestAssignment:
    """What one member is assigned."""

    member_id: String
    assignment: Bytes


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupRequest:
    """The leader of a group hands in the assignments; the others fetch theirs."""

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: NullableString = since(3, default=None)
    protocol_type: NullableString = since(5, default=None, ignorable=True)
    protocol_name: NullableString = since(5, default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment]


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupResponse:
    """What this member is assigned."""

    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    error_code: Int16 = 0
    protocol_type: NullableString = since(5, default=None, ignorable=True)
    protocol_name: NullableString = since(5, default=None, ignorable=True)
    assignment: Bytes


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsRequest:
    """Asks about classic groups."""

    groups: list[String]
    include_authorized_operations: Bool = since(3, default=False)


@struct
class DescribedGroupMember:
    """A member of a described group."""

    member_id: String
    group_instance_id: NullableString = since(4, default=None, ignorable=True)
    client_id: String
    client_host: String
    member_metadata: Bytes
    member_assignment: Bytes


@struct
class DescribedGroup:
    """A group and its members."""

    error_code: Int16 = 0
    error_message: NullableString = since(6, default=None)
    group_id: String
    group_state: String
    protocol_type: String
    protocol_data: String
    members: list[DescribedGroupMember]
    authorized_operations: Int32 = since(3, default=-2147483648)


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsResponse:
    """The groups, and the members of each."""

    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    groups: list[DescribedGroup]


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsRequest:
    """Asks for the groups of this coordinator, by state and type."""

    states_filter: list[String] = since(4, default=[])
    types_filter: list[String] = since(5, default=[])


@struct
class ListedGroup:
    """A group in the list."""

    group_id: String
    protocol_type: String
    group_state: String = since(4, default="", ignorable=True)
    group_type: String = since(5, default="", ignorable=True)


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsResponse:
    """The groups of this coordinator."""

    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    error_code: Int16 = 0
    groups: list[ListedGroup]


@message(api_key=42, versions="0-3", flexible="2+")
class DeleteGroupsRequest:
    """Deletes groups that have no members."""

    groups_names: list[String]


@struct
class DeletableGroupResult:
    """Whether one group was deleted."""

    group_id: String
    error_code: Int16 = 0
    error_message: NullableString = since(3, default=None, ignorable=True)


@message(api_key=42, versions="0-3", flexible="2+")
class DeleteGroupsResponse:
    """Which groups were deleted."""

    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult]


@struct
class OffsetDeleteRequestPartition:
    """A partition to forget."""

    partition_index: Int32


@struct
class OffsetDeleteRequestTopic:
    """The partitions of one topic to forget."""

    name: String
    partitions: list[OffsetDeleteRequestPartition]


@message(api_key=47, versions="0")
class OffsetDeleteRequest:
    """Forgets committed offsets of a group (KIP-496)."""

    group_id: String
    topics: list[OffsetDeleteRequestTopic]


@struct
class OffsetDeleteResponsePartition:
    """Whether one partition's offset was forgotten."""

    partition_index: Int32
    error_code: Int16 = 0


@struct
class OffsetDeleteResponseTopic:
    """The answer for one topic."""

    name: String
    partitions: list[OffsetDeleteResponsePartition]


@message(api_key=47, versions="0")
class OffsetDeleteResponse:
    """Which offsets were forgotten."""

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic]
