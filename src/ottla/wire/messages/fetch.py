"""Reading: records for consumers and followers.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.model.ids import ZERO_UUID
from ottla.wire.schema import (
    Int8,
    Int16,
    Int32,
    Int64,
    NullableRecords,
    NullableString,
    String,
    UuidField,
    message,
    since,
    struct,
    tagged,
    until,
)


@struct
class ReplicaState:
    """The follower that asks; a consumer leaves it at its defaults (KIP-903)."""

    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


@struct
class FetchPartition:
    """One partition to read, and from where."""

    partition: Int32
    current_leader_epoch: Int32 = since(9, default=-1, ignorable=True)
    fetch_offset: Int64
    last_fetched_epoch: Int32 = since(12, default=-1)
    log_start_offset: Int64 = since(5, default=-1, ignorable=True)
    partition_max_bytes: Int32
    replica_directory_id: UuidField = tagged(0, since=17, default=ZERO_UUID, ignorable=True)
    high_watermark: Int64 = tagged(1, since=18, default=2**63 - 1, ignorable=True)


@struct
class FetchTopic:
    """The partitions to read of one topic."""

    topic: String = until(12, default="", ignorable=True)
    topic_id: UuidField = since(13, default=ZERO_UUID, ignorable=True)
    partitions: list[FetchPartition]


@struct
class ForgottenTopic:
    """Partitions that leave the fetch session."""

    topic: String = until(12, default="", ignorable=True)
    topic_id: UuidField = since(13, default=ZERO_UUID, ignorable=True)
    partitions: list[Int32]


@message(api_key=1, versions="4-18", flexible="12+")
class FetchRequest:
    """A consumer or a follower asks for records, with or without a session (KIP-227)."""

    cluster_id: NullableString = tagged(0, since=12, default=None, ignorable=True)
    replica_id: Int32 = until(14, default=-1)
    replica_state: ReplicaState = tagged(1, since=15, default=ReplicaState)
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = 2**31 - 1
    isolation_level: Int8 = 0
    session_id: Int32 = since(7, default=0, ignorable=True)
    session_epoch: Int32 = since(7, default=-1, ignorable=True)
    topics: list[FetchTopic]
    forgotten_topics_data: list[ForgottenTopic] = since(7, default=[])
    rack_id: String = since(11, default="", ignorable=True)


@struct
class EpochEndOffset:
    """Where the follower's log diverges from the leader's (KIP-595)."""

    epoch: Int32 = -1
    end_offset: Int64 = -1


@struct
class LeaderIdAndEpoch:
    """Who leads now, for a client that asked the wrong broker (KIP-951)."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


@struct
class SnapshotId:
    """A snapshot of the metadata log, by its last offset and epoch."""

    end_offset: Int64 = -1
    epoch: Int32 = -1


@struct
class AbortedTransaction:
    """A transaction whose records a read-committed consumer drops."""

    producer_id: Int64
    first_offset: Int64


@struct
class PartitionData:
    """One partition's records and watermarks."""

    partition_index: Int32
    error_code: Int16 = 0
    high_watermark: Int64
    last_stable_offset: Int64 = -1
    log_start_offset: Int64 = since(5, default=-1, ignorable=True)
    diverging_epoch: EpochEndOffset = tagged(0, since=12, default=EpochEndOffset)
    current_leader: LeaderIdAndEpoch = tagged(1, since=12, default=LeaderIdAndEpoch)
    snapshot_id: SnapshotId = tagged(2, since=12, default=SnapshotId)
    aborted_transactions: list[AbortedTransaction] | None
    preferred_read_replica: Int32 = since(11, default=-1)
    records: NullableRecords


@struct
class FetchableTopicResponse:
    """One topic's share of the answer."""

    topic: String = until(12, default="", ignorable=True)
    topic_id: UuidField = since(13, default=ZERO_UUID, ignorable=True)
    partitions: list[PartitionData]


@struct
class NodeEndpoint:
    """Where to reach a node that the answer names."""

    node_id: Int32
    host: String
    port: Int32
    rack: NullableString = None


@message(api_key=1, versions="4-18", flexible="12+")
class FetchResponse:
    """Records, partition by partition."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = since(7, default=0, ignorable=True)
    session_id: Int32 = since(7, default=0)
    responses: list[FetchableTopicResponse]
    node_endpoints: list[NodeEndpoint] = tagged(0, since=16, default=[])
