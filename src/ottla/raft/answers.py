"""The quorum's answers (the request handlers of Kafka's KafkaRaftClient): Vote, Begin/EndQuorumEpoch, Fetch and so on.

Purpose: for each request the checks in 4.3.1's order, what the replica learns from it, and the response in 4.3.1's
words. Changes of the voters, which are answered when they are committed, are in voter_changes.

Rules: a function takes the core and a request and gives the response; what the request changes, it changes through the
core. The log is only read. The core sees to it that the response leaves after that is on disk. A request may say
anything: what does not fit is answered with an error, never an exception.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ottla.metadata.registrations import Endpoint
from ottla.metadata.snapshot import BOOTSTRAP_SNAPSHOT_ID
from ottla.metadata.snapshot import SnapshotId as Snapshot
from ottla.model.errors import ErrorCode
from ottla.model.ids import METADATA_TOPIC_ID, ZERO_UUID
from ottla.raft.log_view import METADATA_PARTITION, LogView, OffsetAndEpoch, Validity, ValidOffset
from ottla.raft.state import QuorumState, Replica, ReplicaProgress
from ottla.raft.voters import ReplicaKey
from ottla.wire.messages import fetch as f
from ottla.wire.messages.nodes import raft as m

TOPIC, PARTITION = METADATA_PARTITION
NONE = 0
# Kafka's own sentences for the errors that are spelled out.
SENTENCES: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: (
        "For requests intended only for the leader, this error indicates that the broker is not the current "
        "leader. For requests intended for any replica, this error indicates that the broker is not a replica "
        "of the topic partition."
    ),
    ErrorCode.REQUEST_TIMED_OUT: "The request timed out.",
}
# What one answer reads from the disk, whatever is asked for.
MAX_PIECE_BYTES: Final = 8 * 1024 * 1024
# The first version of Fetch whose answers say where the leader is.
FETCH_NAMES_ENDPOINTS: Final = 17


@dataclass(frozen=True, slots=True)
class Asked:
    """How a request came: in which version, by which listener."""

    version: int
    listener: str | None = None


def _single_partition(topics: Sequence[tuple[str, Sequence[int]]]) -> bool:
    """Does the request name the metadata partition and nothing else?"""
    return len(topics) == 1 and topics[0][0] == TOPIC and list(topics[0][1]) == [PARTITION]


def leader_endpoint(state: QuorumState, how: Asked) -> Endpoint | None:
    """Where the leader is reached, on the listener the request came by."""
    for endpoint in state.leader_endpoints:
        if how.listener is None or endpoint.listener == how.listener:
            return endpoint
    return None


def _endpoints(state: QuorumState, how: Asked, since: int = 1) -> list[m.NodeEndpoint]:
    """The leader's address; older versions cannot say."""
    where = leader_endpoint(state, how) if how.version >= since else None
    return [m.NodeEndpoint(node_id=state.leader_id, host=where.host, port=where.port)] if where else []


# --- elections


def vote(core: Replica, request: m.VoteRequest, how: Asked) -> m.VoteResponse:
    """A candidate asks for this replica's vote, or whether it would get it."""
    if core.is_foreign(request.cluster_id):
        return m.VoteResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, topics=[])
    topics = [(t.topic_name, [p.partition_index for p in t.partitions]) for t in request.topics]
    if not _single_partition(topics):
        return m.VoteResponse(error_code=ErrorCode.INVALID_REQUEST, topics=[])
    asked = request.topics[0].partitions[0]
    error = _vote_error(core.state, asked)
    granted = False
    if error is None:
        core.learn_epoch(asked.replica_epoch)
        if not _addressed_to(core.state, request.voter_id, asked.voter_directory_id):
            error = ErrorCode.INVALID_VOTER_KEY
        else:
            granted = core.asked_for_vote(
                ReplicaKey(asked.replica_id, asked.replica_directory_id),
                OffsetAndEpoch(asked.last_offset, asked.last_offset_epoch),
                asked.pre_vote,
            )
    state = core.state
    partition = m.VoteResponsePartitionData(
        partition_index=PARTITION,
        error_code=error or NONE,
        leader_id=state.leader_id,
        leader_epoch=state.epoch,
        vote_granted=granted,
    )
    topic = m.VoteResponseTopicData(topic_name=TOPIC, partitions=[partition])
    return m.VoteResponse(topics=[topic], node_endpoints=_endpoints(state, how))


def _vote_error(state: QuorumState, asked: m.VoteRequestPartitionData) -> ErrorCode | None:
    last = asked.last_offset_epoch
    # A candidate has raised its epoch above that of its log; one that only asks (pre-vote) has not.
    illegal = last > asked.replica_epoch if asked.pre_vote else last >= asked.replica_epoch
    if asked.last_offset < 0 or last < 0 or illegal:
        return ErrorCode.INVALID_REQUEST
    return state.voter_request_error(asked.replica_id, asked.replica_epoch)


def _addressed_to(state: QuorumState, voter_id: int, directory_id: bytes) -> bool:
    """A request names the voter it is for, from version 1 on; the wrong one must not answer."""
    if voter_id < 0:
        return True
    return voter_id == state.local.id and directory_id in (ZERO_UUID, state.local.directory_id)


def _claimed_endpoints(
    state: QuorumState, leader_id: int, endpoints: Sequence[m.LeaderEndpoint]
) -> tuple[Endpoint, ...]:
    """Where a leader says that it is reached; version 0 leaves that to the voter set."""
    if not endpoints:
        return state.voters.listeners(leader_id)
    return tuple(Endpoint(e.name, e.host, e.port) for e in endpoints)


def begin_quorum_epoch(
    core: Replica, request: m.BeginQuorumEpochRequest, how: Asked
) -> m.BeginQuorumEpochResponse:
    """A leader says that it leads."""
    if core.is_foreign(request.cluster_id):
        return m.BeginQuorumEpochResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, topics=[])
    topics = [(t.topic_name, [p.partition_index for p in t.partitions]) for t in request.topics]
    if not _single_partition(topics):
        return m.BeginQuorumEpochResponse(error_code=ErrorCode.INVALID_REQUEST, topics=[])
    asked = request.topics[0].partitions[0]
    state = core.state
    error = state.voter_request_error(asked.leader_id, asked.leader_epoch)
    if error is None:
        endpoints = _claimed_endpoints(state, asked.leader_id, request.leader_endpoints)
        core.learn_leader(asked.leader_id, asked.leader_epoch, endpoints)
        if not _addressed_to(state, request.voter_id, asked.voter_directory_id):
            error = ErrorCode.INVALID_VOTER_KEY
    partition = m.BeginQuorumEpochResponsePartitionData(
        partition_index=PARTITION,
        error_code=error or NONE,
        leader_id=state.leader_id,
        leader_epoch=state.epoch,
    )
    topic = m.BeginQuorumEpochResponseTopicData(topic_name=TOPIC, partitions=[partition])
    return m.BeginQuorumEpochResponse(topics=[topic], node_endpoints=_endpoints(state, how))


def end_quorum_epoch(core: Replica, request: m.EndQuorumEpochRequest, how: Asked) -> m.EndQuorumEpochResponse:
    """A leader steps down."""
    if core.is_foreign(request.cluster_id):
        return m.EndQuorumEpochResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, topics=[])
    topics = [(t.topic_name, [p.partition_index for p in t.partitions]) for t in request.topics]
    if not _single_partition(topics):
        return m.EndQuorumEpochResponse(error_code=ErrorCode.INVALID_REQUEST, topics=[])
    asked = request.topics[0].partitions[0]
    state = core.state
    error = state.voter_request_error(asked.leader_id, asked.leader_epoch)
    if error is None:
        endpoints = _claimed_endpoints(state, asked.leader_id, request.leader_endpoints)
        core.learn_leader(asked.leader_id, asked.leader_epoch, endpoints)
        core.leader_resigns(asked.leader_id, _preferred(asked))
    partition = m.EndQuorumEpochResponsePartitionData(
        partition_index=PARTITION,
        error_code=error or NONE,
        leader_id=state.leader_id,
        leader_epoch=state.epoch,
    )
    topic = m.EndQuorumEpochResponseTopicData(topic_name=TOPIC, partitions=[partition])
    return m.EndQuorumEpochResponse(topics=[topic], node_endpoints=_endpoints(state, how))


def _preferred(asked: m.EndQuorumEpochRequestPartitionData) -> list[ReplicaKey]:
    """Who should succeed; version 0 names nodes without their directories."""
    if asked.preferred_candidates:
        return [ReplicaKey(c.candidate_id, c.candidate_directory_id) for c in asked.preferred_candidates]
    return [ReplicaKey(node) for node in asked.preferred_successors]


# --- the state of the quorum


def describe_quorum(
    state: QuorumState, request: m.DescribeQuorumRequest, now_ms: int, how: Asked
) -> m.DescribeQuorumResponse:
    """Who votes, who watches, and how far each has come."""
    topics = [(t.topic_name, [p.partition_index for p in t.partitions]) for t in request.topics]
    if not _single_partition(topics):
        return _unknown_partitions(request)
    if state.leader is None:
        return m.DescribeQuorumResponse(topics=[_quorum_error(ErrorCode.NOT_LEADER_OR_FOLLOWER)])
    version = how.version
    voters = [
        _replica_state(state, voter.key, state.leader.voters[node], now_ms, version)
        for node, voter in sorted(state.voters.voters.items())
    ]
    watchers = [
        _replica_state(state, key, progress, now_ms, version)
        for key, progress in sorted(state.leader.active_observers(now_ms).items())
    ]
    partition = m.DescribeQuorumResponsePartitionData(
        partition_index=PARTITION,
        leader_id=state.local.id,
        leader_epoch=state.epoch,
        high_watermark=state.shown_high_watermark,
        current_voters=voters,
        observers=watchers,
    )
    topic = m.DescribeQuorumResponseTopicData(topic_name=TOPIC, partitions=[partition])
    return m.DescribeQuorumResponse(topics=[topic], nodes=_nodes(state) if version >= 2 else [])


def _nodes(state: QuorumState) -> list[m.Node]:
    return [
        m.Node(
            node_id=node,
            listeners=[m.Listener(name=e.listener, host=e.host, port=e.port) for e in voter.listeners],
        )
        for node, voter in sorted(state.voters.voters.items())
    ]


def _replica_state(
    state: QuorumState, key: ReplicaKey, progress: ReplicaProgress, now_ms: int, version: int
) -> m.ReplicaState:
    leader = key.id == state.local.id
    return m.ReplicaState(
        replica_id=key.id,
        replica_directory_id=key.directory_id if version >= 2 else ZERO_UUID,
        log_end_offset=progress.end_offset,
        last_fetch_timestamp=now_ms if leader else progress.last_fetch_ms,
        last_caught_up_timestamp=now_ms if leader else progress.last_caught_up_ms,
    )


def _unknown_partitions(request: m.DescribeQuorumRequest) -> m.DescribeQuorumResponse:
    return m.DescribeQuorumResponse(
        topics=[
            m.DescribeQuorumResponseTopicData(
                topic_name=topic.topic_name,
                partitions=[
                    _quorum_partition_error(p.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _quorum_error(error: ErrorCode) -> m.DescribeQuorumResponseTopicData:
    partition = _quorum_partition_error(PARTITION, error)
    return m.DescribeQuorumResponseTopicData(topic_name=TOPIC, partitions=[partition])


def _quorum_partition_error(index: int, error: ErrorCode) -> m.DescribeQuorumResponsePartitionData:
    return m.DescribeQuorumResponsePartitionData(
        partition_index=index,
        error_code=error,
        error_message=SENTENCES[error],
        leader_id=0,
        leader_epoch=0,
        high_watermark=0,
        current_voters=[],
        observers=[],
    )


# --- replication


def fetch(core: Replica, request: f.FetchRequest, how: Asked, *, has_waited: bool = False) -> f.FetchResponse:
    """A follower or observer asks for what comes after its end. Waiting for more is the core's."""
    if core.is_foreign(request.cluster_id):
        return f.FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, responses=[])
    if not _fetches_metadata(request):
        return f.FetchResponse(error_code=ErrorCode.INVALID_REQUEST, responses=[])
    asked = request.topics[0].partitions[0]
    if _malformed_fetch(request, asked):
        return fetch_error(core, ErrorCode.INVALID_REQUEST, how)
    error = core.state.leader_request_error(asked.current_leader_epoch)
    if error is not None:
        return fetch_error(core, error, how)
    valid = _validate_fetch(core.log, asked.fetch_offset, asked.last_fetched_epoch)
    records = b""
    if valid.kind is Validity.VALID:
        records = core.log.read(asked.fetch_offset, min(max(request.max_bytes, 0), MAX_PIECE_BYTES))
        if not has_waited:
            replica = ReplicaKey(fetching_replica(request), asked.replica_directory_id)
            core.replica_fetched(replica, asked.fetch_offset)
    return _fetch_response(core, NONE, records, valid, how)


def fetch_error(core: Replica, error: ErrorCode, how: Asked) -> f.FetchResponse:
    """No records, and who leads."""
    return _fetch_response(core, error, b"", None, how)


def fetching_replica(request: f.FetchRequest) -> int:
    """Who fetches: in a field of its own until version 14, with the broker's epoch since."""
    return request.replica_id if request.replica_id >= 0 else request.replica_state.replica_id


def _fetches_metadata(request: f.FetchRequest) -> bool:
    if len(request.topics) != 1 or [p.partition for p in request.topics[0].partitions] != [PARTITION]:
        return False
    return request.topics[0].topic_id == METADATA_TOPIC_ID


def _malformed_fetch(request: f.FetchRequest, asked: f.FetchPartition) -> bool:
    return (
        request.max_wait_ms < 0
        or asked.fetch_offset < 0
        or asked.last_fetched_epoch < 0
        or asked.last_fetched_epoch > asked.current_leader_epoch
    )


def _validate_fetch(log: LogView, offset: int, epoch: int) -> ValidOffset:
    latest = log.latest_snapshot
    # Who has nothing gets there sooner with a snapshot than with the whole log.
    if offset == 0 and latest is not None and latest != BOOTSTRAP_SNAPSHOT_ID:
        return ValidOffset(Validity.SNAPSHOT, OffsetAndEpoch(*latest))
    return log.validate(offset, epoch)


def _fetch_response(
    core: Replica, error: int, records: bytes, valid: ValidOffset | None, how: Asked
) -> f.FetchResponse:
    state = core.state
    partition = f.PartitionData(
        partition_index=PARTITION,
        error_code=error,
        high_watermark=state.shown_high_watermark if error == NONE else -1,
        log_start_offset=core.log.start_offset,
        records=records,
        aborted_transactions=None,
        current_leader=f.LeaderIdAndEpoch(leader_id=state.leader_id, leader_epoch=state.epoch),
    )
    if valid is not None and valid.kind is Validity.DIVERGING:
        partition.diverging_epoch = f.EpochEndOffset(epoch=valid.place.epoch, end_offset=valid.place.offset)
    if valid is not None and valid.kind is Validity.SNAPSHOT:
        partition.snapshot_id = f.SnapshotId(end_offset=valid.place.offset, epoch=valid.place.epoch)
    topic = f.FetchableTopicResponse(topic=TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])
    where = leader_endpoint(state, how) if how.version >= FETCH_NAMES_ENDPOINTS else None
    endpoints = (
        [f.NodeEndpoint(node_id=state.leader_id, host=where.host, port=where.port, rack=None)]
        if where is not None
        else []
    )
    return f.FetchResponse(responses=[topic], node_endpoints=endpoints)


def fetch_is_due(request: f.FetchRequest, response: f.FetchResponse) -> bool:
    """Has the answer anything to say, or should it wait for more? A new high watermark is something (KIP-1166)."""
    if response.error_code != NONE or not response.responses:
        return True
    asked, partition = request.topics[0].partitions[0], response.responses[0].partitions[0]
    return bool(
        partition.error_code != NONE
        or partition.records
        or request.max_wait_ms == 0
        or partition.diverging_epoch.end_offset >= 0
        or partition.snapshot_id.end_offset >= 0
        or asked.high_watermark < partition.high_watermark
    )


def fetch_snapshot(core: Replica, request: m.FetchSnapshotRequest, how: Asked) -> m.FetchSnapshotResponse:
    """A piece of a snapshot."""
    if core.is_foreign(request.cluster_id):
        return m.FetchSnapshotResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, topics=[])
    # Kafka looks for the one partition it has wherever it is named; by a request that names none it is ended.
    named = [(topic.name, asked) for topic in request.topics for asked in topic.partitions]
    if not named or (len(request.topics) != 1 and len(request.topics[0].partitions) != 1):
        return m.FetchSnapshotResponse(error_code=ErrorCode.INVALID_REQUEST, topics=[])
    asked = next((asked for name, asked in named if (name, asked.partition) == METADATA_PARTITION), None)
    answer = None if asked is None else _snapshot_answer(core, asked, request.max_bytes)
    if asked is None or answer is None:
        # Kafka means to name the partition's error (an unknown partition, another epoch, no such snapshot, a position
        # beyond its end), but an answer without records cannot be written there, and this is what goes out.
        return m.FetchSnapshotResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, topics=[])
    core.update_check_quorum(ReplicaKey(request.replica_id, asked.replica_directory_id))
    topic = m.FetchSnapshotResponseTopicSnapshot(name=METADATA_PARTITION.topic, partitions=[answer])
    return m.FetchSnapshotResponse(topics=[topic], node_endpoints=_endpoints(core.state, how))


def _snapshot_answer(
    core: Replica, asked: m.FetchSnapshotRequestPartitionSnapshot, max_bytes: int
) -> m.FetchSnapshotResponsePartitionSnapshot | None:
    """The piece asked for; None if it cannot be given."""
    state = core.state
    snapshot = Snapshot(asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
    if state.leader_request_error(asked.current_leader_epoch) or snapshot == BOOTSTRAP_SNAPSHOT_ID:
        return None
    found = core.log.read_snapshot(snapshot, max(asked.position, 0), min(max(max_bytes, 0), MAX_PIECE_BYTES))
    if found is None or not 0 <= asked.position < found[1]:
        return None
    return m.FetchSnapshotResponsePartitionSnapshot(
        index=asked.partition,
        error_code=NONE,
        snapshot_id=asked.snapshot_id,
        current_leader=m.LeaderIdAndEpoch(leader_id=state.leader_id, leader_epoch=state.epoch),
        size=found[1],
        position=asked.position,
        unaligned_records=found[0],
    )
