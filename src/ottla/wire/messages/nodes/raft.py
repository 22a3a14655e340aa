"""The quorum of controllers: votes, epochs, snapshots, voters.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.model.ids import ZERO_UUID
from ottla.wire.schema import (
    Bool,
    Int16,
    Int32,
    Int64,
    NullableString,
    Records,
    String,
    UInt16,
    UuidField,
    message,
    since,
    struct,
    tagged,
    until,
)


@struct
class VoteRequestPartitionData:
    """The candidacy: the epoch, and how far the candidate's log goes."""

    partition_index: Int32
    replica_epoch: Int32
    replica_id: Int32
    replica_directory_id: UuidField = since(1, default=ZERO_UUID, ignorable=True)
    voter_directory_id: UuidField = since(1, default=ZERO_UUID, ignorable=True)
    last_offset_epoch: Int32
    last_offset: Int64
    pre_vote: Bool = since(2, default=False)


@struct
class VoteRequestTopicData:
    """The topic of the quorum."""

    topic_name: String
    partitions: list[VoteRequestPartitionData]


@message(api_key=52, versions="0-2", flexible="0+")
class VoteRequest:
    """A candidate asks for votes, or (pre-vote, KIP-996) whether it would get them."""

    cluster_id: NullableString = None
    voter_id: Int32 = since(1, default=-1, ignorable=True)
    topics: list[VoteRequestTopicData]


@struct
class VoteResponsePartitionData:
    """Whether it was granted, and who leads."""

    partition_index: Int32
    error_code: Int16 = 0
    leader_id: Int32
    leader_epoch: Int32
    vote_granted: Bool


@struct
class VoteResponseTopicData:
    """The topic of the quorum."""

    topic_name: String
    partitions: list[VoteResponsePartitionData]


@struct
class NodeEndpoint:
    """Where to reach a node that the answer names."""

    node_id: Int32
    host: String
    port: UInt16


@message(api_key=52, versions="0-2", flexible="0+")
class VoteResponse:
    """The vote."""

    error_code: Int16 = 0
    topics: list[VoteResponseTopicData]
    node_endpoints: list[NodeEndpoint] = tagged(0, since=1, default=[])


@struct
class BeginQuorumEpochRequestPartitionData:
    """The leader and its epoch."""

    partition_index: Int32
    voter_directory_id: UuidField = since(1, default=ZERO_UUID, ignorable=True)
    leader_id: Int32
    leader_epoch: Int32


@struct
class BeginQuorumEpochRequestTopicData:
    """The topic of the quorum."""

    topic_name: String
    partitions: list[BeginQuorumEpochRequestPartitionData]


@struct
class LeaderEndpoint:
    """Where the leader can be reached."""

    name: String
    host: String
    port: UInt16


@message(api_key=53, versions="0-1", flexible="1+")
class BeginQuorumEpochRequest:
    """A leader announces its epoch to the voters."""

    cluster_id: NullableString = None
    voter_id: Int32 = since(1, default=-1, ignorable=True)
    topics: list[BeginQuorumEpochRequestTopicData]
    leader_endpoints: list[LeaderEndpoint] = since(1, default=[], ignorable=True)


@struct
class BeginQuorumEpochResponsePartitionData:
    """The leader and the epoch the voter knows."""

    partition_index: Int32
    error_code: Int16 = 0
    leader_id: Int32
    leader_epoch: Int32


@struct
class BeginQuorumEpochResponseTopicData:
    """The topic of the quorum."""

    topic_name: String
    partitions: list[BeginQuorumEpochResponsePartitionData]


@message(api_key=53, versions="0-1", flexible="1+")
class BeginQuorumEpochResponse:
    """Whether the voter follows."""

    error_code: Int16 = 0
    topics: list[BeginQuorumEpochResponseTopicData]
    node_endpoints: list[NodeEndpoint] = tagged(0, since=1, default=[])


@struct
class ReplicaInfo:
    """A candidate for the succession."""

    candidate_id: Int32
    candidate_directory_id: UuidField


@struct
class EndQuorumEpochRequestPartitionData:
    """The epoch that ends, and the succession in order of preference."""

    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32
    preferred_successors: list[Int32] = until(0, default=[], ignorable=True)
    preferred_candidates: list[ReplicaInfo] = since(1, default=[], ignorable=True)


@struct
class EndQuorumEpochRequestTopicData:
    """The topic of the quorum."""

    topic_name: String
    partitions: list[EndQuorumEpochRequestPartitionData]


@message(api_key=54, versions="0-1", flexible="1+")
class EndQuorumEpochRequest:
    """A leader steps down and names who should follow it."""

    cluster_id: NullableString = None
    topics: list[EndQuorumEpochRequestTopicData]
    leader_endpoints: list[LeaderEndpoint] = since(1, default=[], ignorable=True)


@struct
class EndQuorumEpochResponsePartitionData:
    """The leader and the epoch the voter knows."""

    partition_index: Int32
    error_code: Int16 = 0
    leader_id: Int32
    leader_epoch: Int32


@struct
class EndQuorumEpochResponseTopicData:
    """The topic of the quorum."""

    topic_name: String
    partitions: list[EndQuorumEpochResponsePartitionData]


@message(api_key=54, versions="0-1", flexible="1+")
class EndQuorumEpochResponse:
    """Whether the voter has taken note."""

    error_code: Int16 = 0
    topics: list[EndQuorumEpochResponseTopicData]
    node_endpoints: list[NodeEndpoint] = tagged(0, since=1, default=[])


@struct
class DescribeQuorumRequestPartitionData:
    """The partition of the quorum."""

    partition_index: Int32


@struct
class DescribeQuorumRequestTopicData:
    """The topic of the quorum."""

    topic_name: String
    partitions: list[DescribeQuorumRequestPartitionData]


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumRequest:
    """Asks the leader about the quorum."""

    topics: list[DescribeQuorumRequestTopicData]


@struct
class ReplicaState:
    """How far one replica has come."""

    replica_id: Int32
    replica_directory_id: UuidField = since(2, default=ZERO_UUID)
    log_end_offset: Int64
    last_fetch_timestamp: Int64 = since(1, default=-1, ignorable=True)
    last_caught_up_timestamp: Int64 = since(1, default=-1, ignorable=True)


@struct
class DescribeQuorumResponsePartitionData:
    """The state of the quorum."""

    partition_index: Int32
    error_code: Int16 = 0
    error_message: NullableString = since(2, default="", ignorable=True)
    leader_id: Int32
    leader_epoch: Int32
    high_watermark: Int64
    current_voters: list[ReplicaState]
    observers: list[ReplicaState]


@struct
class DescribeQuorumResponseTopicData:
    """The topic of the quorum."""

    topic_name: String
    partitions: list[DescribeQuorumResponsePartitionData]


@struct
class Listener:
    """An address of a node."""

    name: String
    host: String
    port: UInt16


@struct
class Node:
    """A node of the quorum."""

    node_id: Int32
    listeners: list[Listener]


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumResponse:
    """The quorum: who votes, who watches, how far each has come."""

    error_code: Int16 = 0
    error_message: NullableString = since(2, default="", ignorable=True)
    topics: list[DescribeQuorumResponseTopicData]
    nodes: list[Node] = since(2, default=[])


@struct
class SnapshotId:
    """A snapshot of the metadata log, by its last offset and epoch."""

    end_offset: Int64
    epoch: Int32


@struct
class FetchSnapshotRequestPartitionSnapshot:
    """The snapshot, and the position to read from."""

    partition: Int32
    current_leader_epoch: Int32
    snapshot_id: SnapshotId
    position: Int64
    replica_directory_id: UuidField = tagged(0, since=1, default=ZERO_UUID, ignorable=True)


@struct
class FetchSnapshotRequestTopicSnapshot:
    """The topic of the quorum."""

    name: String
    partitions: list[FetchSnapshotRequestPartitionSnapshot]


@message(api_key=59, versions="0-1", flexible="0+")
class FetchSnapshotRequest:
    """Asks the leader for a piece of a snapshot (KIP-630)."""

    cluster_id: NullableString = tagged(0, default=None)
    replica_id: Int32 = -1
    max_bytes: Int32 = 2**31 - 1
    topics: list[FetchSnapshotRequestTopicSnapshot]


@struct
class LeaderIdAndEpoch:
    """Who leads now, for a client that asked the wrong broker (KIP-951)."""

    leader_id: Int32
    leader_epoch: Int32


@struct
class FetchSnapshotResponsePartitionSnapshot:
    """The piece: its position, its bytes, the size of the whole."""

    index: Int32
    error_code: Int16 = 0
    snapshot_id: SnapshotId
    current_leader: LeaderIdAndEpoch = tagged(0, default=LeaderIdAndEpoch)
    size: Int64
    position: Int64
    unaligned_records: Records


@struct
class FetchSnapshotResponseTopicSnapshot:
    """The topic of the quorum."""

    name: String
    partitions: list[FetchSnapshotResponsePartitionSnapshot]


@message(api_key=59, versions="0-1", flexible="0+")
class FetchSnapshotResponse:
    """A piece of the snapshot."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: list[FetchSnapshotResponseTopicSnapshot]
    node_endpoints: list[NodeEndpoint] = tagged(0, since=1, default=[])


@message(api_key=80, versions="0-1", flexible="0+")
class AddRaftVoterRequest:
    """Adds a voter to the quorum (KIP-853)."""

    cluster_id: NullableString
    timeout_ms: Int32
    voter_id: Int32
    voter_directory_id: UuidField
    listeners: list[Listener]
    ack_when_committed: Bool = since(1, default=True)


@message(api_key=80, versions="0-1", flexible="0+")
class AddRaftVoterResponse:
    """Whether the voter was added."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString


@message(api_key=81, versions="0", flexible="0+")
class RemoveRaftVoterRequest:
    """Removes a voter from the quorum (KIP-853)."""

    cluster_id: NullableString
    voter_id: Int32
    voter_directory_id: UuidField


@message(api_key=81, versions="0", flexible="0+")
class RemoveRaftVoterResponse:
    """Whether the voter was removed."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString


@struct
class KRaftVersionFeature:
    """The levels of kraft.version that the voter can do."""

    min_supported_version: Int16
    max_supported_version: Int16


@message(api_key=82, versions="0", flexible="0+")
class UpdateRaftVoterRequest:
    """A voter reports its listeners and versions (KIP-853)."""

    cluster_id: NullableString
    current_leader_epoch: Int32
    voter_id: Int32
    voter_directory_id: UuidField
    listeners: list[Listener]
    kraft_version_feature: KRaftVersionFeature


@struct
class CurrentLeader:
    """Who leads, and where."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    host: String
    port: Int32


@message(api_key=82, versions="0", flexible="0+")
class UpdateRaftVoterResponse:
    """Whether the report was taken."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    current_leader: CurrentLeader = tagged(0, default=CurrentLeader)
