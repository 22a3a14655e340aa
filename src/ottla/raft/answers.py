"""The quorum's answers: Vote, BeginQuorumEpoch, EndQuorumEpoch, DescribeQuorum, Fetch, FetchSnapshot, and voters.

Requests to change the voters (KIP-853) are answered as by a quorum that stays one voter: the sole voter cannot be
removed, and no other is added; a node that asks gets an error that says it is not ready, which Kafka's own tools take
as a reason to try again later.

Rules: a function takes the state and a request and gives the next state and the response; it changes nothing
itself. The log is only read. The driver persists the state before it sends the response.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ottla.metadata.snapshot import BOOTSTRAP_SNAPSHOT_ID
from ottla.metadata.snapshot import SnapshotId as Snapshot
from ottla.model.errors import ErrorCode
from ottla.model.ids import METADATA_TOPIC_ID, ZERO_UUID, Uuid, uuid_to_str
from ottla.raft import core
from ottla.raft.core import QuorumState
from ottla.raft.metadata_log import METADATA_PARTITION, MetadataLog, Validity, ValidOffset
from ottla.raft.quorum_state import NONE as NO_LEADER
from ottla.raft.voters import ReplicaKey
from ottla.wire.messages import fetch as f
from ottla.wire.messages.nodes import raft as m

TOPIC, PARTITION = METADATA_PARTITION
NONE = 0
# Kafka's own sentences for the errors that DescribeQuorum spells out.
_SENTENCES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: (
        "For requests intended only for the leader, this error indicates that the broker is not the current "
        "leader. For requests intended for any replica, this error indicates that the broker is not a replica "
        "of the topic partition."
    ),
}
# What one answer reads from the disk, whatever is asked for.
MAX_PIECE_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Quorum:
    """What an answer needs beside the state: the cluster's id and the log."""

    cluster_id: str
    log: MetadataLog

    def foreign(self, cluster_id: str | None) -> bool:
        """Does the request belong to another cluster? One that names none belongs to ours."""
        return cluster_id is not None and cluster_id != self.cluster_id


def _single_partition(topics: Sequence[tuple[str, Sequence[int]]]) -> bool:
    """Does the request name the metadata partition and nothing else?"""
    return len(topics) == 1 and topics[0][0] == TOPIC and list(topics[0][1]) == [PARTITION]


@dataclass(frozen=True, slots=True)
class Asked:
    """How a request came: in which version, by which listener."""

    version: int
    listener: str | None = None


def _endpoints(state: QuorumState, asked: Asked, since: int = 1) -> list[m.NodeEndpoint]:
    """Where the leader is reached, on the listener the request came by; older versions cannot say."""
    if asked.version < since:
        return []
    listener = asked.listener
    return [
        m.NodeEndpoint(node_id=state.leader_id, host=e.host, port=e.port)
        for e in state.voters.listeners(state.leader_id)
        if listener is None or e.listener == listener
    ][:1]


# --- elections


def vote(
    state: QuorumState, quorum: Quorum, request: m.VoteRequest, how: Asked
) -> tuple[QuorumState, m.VoteResponse]:
    """A candidate asks for this replica's vote, or whether it would get it."""
    if quorum.foreign(request.cluster_id):
        return state, m.VoteResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, topics=[])
    topics = [(t.topic_name, [p.partition_index for p in t.partitions]) for t in request.topics]
    if not _single_partition(topics):
        return state, m.VoteResponse(error_code=ErrorCode.INVALID_REQUEST, topics=[])
    asked = request.topics[0].partitions[0]
    error = _vote_error(state, asked)
    granted = False
    if error is None:
        if asked.replica_epoch > state.epoch:
            state = core.to_unattached(state, asked.replica_epoch)
        if not _addressed_to(state, request.voter_id, asked.voter_directory_id):
            error = ErrorCode.INVALID_VOTER_KEY
        else:
            state, granted = _vote(state, quorum, asked)
    return state, _vote_response(state, error, granted, how)


def _vote_error(state: QuorumState, asked: m.VoteRequestPartitionData) -> ErrorCode | None:
    last = asked.last_offset_epoch
    # A candidate has raised its epoch above that of its log; one that only asks (pre-vote) has not.
    illegal = last > asked.replica_epoch if asked.pre_vote else last >= asked.replica_epoch
    if asked.last_offset < 0 or last < 0 or illegal:
        return ErrorCode.INVALID_REQUEST
    return core.voter_request_error(state, asked.replica_id, asked.replica_epoch)


def _vote(state: QuorumState, quorum: Quorum, asked: m.VoteRequestPartitionData) -> tuple[QuorumState, bool]:
    candidate = ReplicaKey(asked.replica_id, asked.replica_directory_id)
    its_end = core.OffsetAndEpoch(asked.last_offset, asked.last_offset_epoch)
    granted = core.can_grant_vote(state, candidate, its_end.up_to_date_with(quorum.log.end), asked.pre_vote)
    if granted and not asked.pre_vote:
        state = core.grant_vote(state, candidate)
    return state, granted


def _addressed_to(state: QuorumState, voter_id: int, directory_id: bytes) -> bool:
    """A request names the voter it is for, from version 1 on; the wrong one must not answer."""
    if voter_id < 0:
        return True
    return voter_id == state.local.id and directory_id in (ZERO_UUID, state.local.directory_id)


def _vote_response(state: QuorumState, error: ErrorCode | None, granted: bool, how: Asked) -> m.VoteResponse:
    partition = m.VoteResponsePartitionData(
        partition_index=PARTITION,
        error_code=error or NONE,
        leader_id=state.leader_id,
        leader_epoch=state.epoch,
        vote_granted=granted,
    )
    topic = m.VoteResponseTopicData(topic_name=TOPIC, partitions=[partition])
    return m.VoteResponse(topics=[topic], node_endpoints=_endpoints(state, how))


def _follow(state: QuorumState, leader_id: int, epoch: int) -> QuorumState:
    """What a claim to lead an epoch changes."""
    if leader_id == state.local.id:
        return state
    if epoch > state.epoch or (epoch == state.epoch and state.leader_id == NO_LEADER):
        return core.to_follower(state, epoch, leader_id)
    return state


def begin_quorum_epoch(
    state: QuorumState, quorum: Quorum, request: m.BeginQuorumEpochRequest, how: Asked
) -> tuple[QuorumState, m.BeginQuorumEpochResponse]:
    """A leader says that it leads."""
    if quorum.foreign(request.cluster_id):
        return state, m.BeginQuorumEpochResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, topics=[])
    topics = [(t.topic_name, [p.partition_index for p in t.partitions]) for t in request.topics]
    if not _single_partition(topics):
        return state, m.BeginQuorumEpochResponse(error_code=ErrorCode.INVALID_REQUEST, topics=[])
    asked = request.topics[0].partitions[0]
    error = core.voter_request_error(state, asked.leader_id, asked.leader_epoch)
    if error is None:
        state = _follow(state, asked.leader_id, asked.leader_epoch)
        if not _addressed_to(state, request.voter_id, asked.voter_directory_id):
            error = ErrorCode.INVALID_VOTER_KEY
    partition = m.BeginQuorumEpochResponsePartitionData(
        partition_index=PARTITION,
        error_code=error or NONE,
        leader_id=state.leader_id,
        leader_epoch=state.epoch,
    )
    topic = m.BeginQuorumEpochResponseTopicData(topic_name=TOPIC, partitions=[partition])
    return state, m.BeginQuorumEpochResponse(topics=[topic], node_endpoints=_endpoints(state, how))


def end_quorum_epoch(
    state: QuorumState, quorum: Quorum, request: m.EndQuorumEpochRequest, how: Asked
) -> tuple[QuorumState, m.EndQuorumEpochResponse]:
    """A leader steps down."""
    if quorum.foreign(request.cluster_id):
        return state, m.EndQuorumEpochResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, topics=[])
    topics = [(t.topic_name, [p.partition_index for p in t.partitions]) for t in request.topics]
    if not _single_partition(topics):
        return state, m.EndQuorumEpochResponse(error_code=ErrorCode.INVALID_REQUEST, topics=[])
    asked = request.topics[0].partitions[0]
    error = core.voter_request_error(state, asked.leader_id, asked.leader_epoch)
    if error is None:
        state = _follow(state, asked.leader_id, asked.leader_epoch)
    partition = m.EndQuorumEpochResponsePartitionData(
        partition_index=PARTITION,
        error_code=error or NONE,
        leader_id=state.leader_id,
        leader_epoch=state.epoch,
    )
    topic = m.EndQuorumEpochResponseTopicData(topic_name=TOPIC, partitions=[partition])
    return state, m.EndQuorumEpochResponse(topics=[topic], node_endpoints=_endpoints(state, how))


# --- the state of the quorum


def describe_quorum(
    state: QuorumState, request: m.DescribeQuorumRequest, now_ms: int, version: int
) -> m.DescribeQuorumResponse:
    """Who votes, who watches, and how far each has come."""
    topics = [(t.topic_name, [p.partition_index for p in t.partitions]) for t in request.topics]
    if not _single_partition(topics):
        return _unknown_partitions(request)
    if not state.is_leader:
        return m.DescribeQuorumResponse(topics=[_quorum_error(ErrorCode.NOT_LEADER_OR_FOLLOWER)])
    voters = [
        _replica_state(state, voter.key, core.progress_of(state, voter.key), now_ms, version)
        for _, voter in sorted(state.voters.voters.items())
    ]
    watchers = [
        _replica_state(state, key, progress, now_ms, version)
        for key, progress in sorted(core.observers(state, now_ms).items())
    ]
    partition = m.DescribeQuorumResponsePartitionData(
        partition_index=PARTITION,
        leader_id=state.local.id,
        leader_epoch=state.epoch,
        high_watermark=state.high_watermark,
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
    state: QuorumState, key: ReplicaKey, progress: core.ReplicaProgress, now_ms: int, version: int
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
        error_message=_SENTENCES[error],
        leader_id=0,
        leader_epoch=0,
        high_watermark=0,
        current_voters=[],
        observers=[],
    )


# --- replication


def fetch(
    state: QuorumState,
    quorum: Quorum,
    request: f.FetchRequest,
    now_ms: int,
    how: Asked,
) -> tuple[QuorumState, f.FetchResponse]:
    """A follower or observer asks for what comes after its end. Waiting for more is the driver's."""
    if quorum.foreign(request.cluster_id):
        return state, f.FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, responses=[])
    if not _fetches_metadata(request):
        return state, f.FetchResponse(error_code=ErrorCode.INVALID_REQUEST, responses=[])
    asked = request.topics[0].partitions[0]
    if _malformed_fetch(request, asked):
        return state, _fetch_response(state, quorum, ErrorCode.INVALID_REQUEST, b"", None, how)
    error = core.leader_request_error(state, asked.current_leader_epoch)
    if error is not None:
        return state, _fetch_response(state, quorum, error, b"", None, how)
    valid = _validate_fetch(quorum.log, asked.fetch_offset, asked.last_fetched_epoch)
    records = b""
    if valid.kind is Validity.VALID:
        records = quorum.log.read(asked.fetch_offset, min(request.max_bytes, MAX_PIECE_BYTES))
        replica = ReplicaKey(fetching_replica(request), asked.replica_directory_id)
        state = core.replica_fetched(state, replica, asked.fetch_offset, now_ms)
    return state, _fetch_response(state, quorum, None, records, valid, how)


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


def _validate_fetch(log: MetadataLog, offset: int, epoch: int) -> ValidOffset:
    latest = log.latest_snapshot
    # Who has nothing gets there sooner with a snapshot than with the whole log.
    if offset == 0 and latest is not None and latest != BOOTSTRAP_SNAPSHOT_ID:
        return ValidOffset(Validity.SNAPSHOT, core.OffsetAndEpoch(*latest))
    return log.validate(offset, epoch)


def _fetch_response(
    state: QuorumState,
    quorum: Quorum,
    error: ErrorCode | None,
    records: bytes,
    valid: ValidOffset | None,
    how: Asked,
) -> f.FetchResponse:
    leading = error is None
    partition = f.PartitionData(
        partition_index=PARTITION,
        error_code=error or NONE,
        high_watermark=state.high_watermark if leading else -1,
        log_start_offset=quorum.log.start_offset,
        records=records,
        aborted_transactions=None,
        current_leader=f.LeaderIdAndEpoch(leader_id=state.leader_id, leader_epoch=state.epoch),
    )
    if valid is not None and valid.kind is Validity.DIVERGING:
        partition.diverging_epoch = f.EpochEndOffset(epoch=valid.place.epoch, end_offset=valid.place.offset)
    if valid is not None and valid.kind is Validity.SNAPSHOT:
        partition.snapshot_id = f.SnapshotId(end_offset=valid.place.offset, epoch=valid.place.epoch)
    topic = f.FetchableTopicResponse(topic=TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])
    endpoints = [
        f.NodeEndpoint(node_id=e.node_id, host=e.host, port=e.port, rack=None)
        for e in _endpoints(state, how, since=16)
    ]
    return f.FetchResponse(responses=[topic], node_endpoints=endpoints)


def fetch_is_due(request: f.FetchRequest, response: f.FetchResponse) -> bool:
    """Has the answer anything to say, or should it wait for more?"""
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


def fetch_snapshot(
    state: QuorumState, quorum: Quorum, request: m.FetchSnapshotRequest, how: Asked
) -> m.FetchSnapshotResponse:
    """A piece of a snapshot."""
    if quorum.foreign(request.cluster_id):
        return m.FetchSnapshotResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID, topics=[])
    # Kafka looks for the one partition it has wherever it is named; by a request that names none it is ended.
    named = [(topic.name, asked) for topic in request.topics for asked in topic.partitions]
    if not named or (len(request.topics) != 1 and len(request.topics[0].partitions) != 1):
        return m.FetchSnapshotResponse(error_code=ErrorCode.INVALID_REQUEST, topics=[])
    asked = next((asked for name, asked in named if (name, asked.partition) == METADATA_PARTITION), None)
    answer = None if asked is None else _snapshot_answer(state, quorum.log, asked, request.max_bytes)
    if answer is None:
        # Kafka means to name the partition's error (an unknown partition, another epoch, no such snapshot, a position
        # beyond its end), but an answer without records cannot be written there, and this is what goes out.
        return m.FetchSnapshotResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, topics=[])
    topic = m.FetchSnapshotResponseTopicSnapshot(name=METADATA_PARTITION.topic, partitions=[answer])
    return m.FetchSnapshotResponse(topics=[topic], node_endpoints=_endpoints(state, how))


def _snapshot_answer(
    state: QuorumState, log: MetadataLog, asked: m.FetchSnapshotRequestPartitionSnapshot, max_bytes: int
) -> m.FetchSnapshotResponsePartitionSnapshot | None:
    """The piece asked for; None if it cannot be given."""
    snapshot = Snapshot(asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
    if core.leader_request_error(state, asked.current_leader_epoch) or snapshot == BOOTSTRAP_SNAPSHOT_ID:
        return None
    found = _read(log, snapshot, asked.position, max_bytes)
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


def _read(log: MetadataLog, snapshot: Snapshot, position: int, max_bytes: int) -> tuple[bytes, int] | None:
    return log.read_snapshot(snapshot, max(position, 0), min(max(max_bytes, 0), MAX_PIECE_BYTES))


# --- changing the voters


def add_voter(
    state: QuorumState,
    cluster_id: str,
    kraft_version: int,
    request: m.AddRaftVoterRequest,
    listener: str | None = None,
) -> m.AddRaftVoterResponse:
    """A controller wants a vote."""
    error, message = _refusal(state, cluster_id, request.cluster_id)
    voter = ReplicaKey(request.voter_id, request.voter_directory_id)
    names = [endpoint.name for endpoint in request.listeners]
    if error is None:
        if not _is_voter_key(voter):
            error, message = ErrorCode.INVALID_REQUEST, "Add voter request didn't include a valid voter"
        elif listener is not None and listener not in names:
            error = ErrorCode.INVALID_REQUEST
            message = f"Add voter request didn't include the endpoint for the default listener {listener}"
        elif kraft_version == 0:
            error, message = ErrorCode.UNSUPPORTED_VERSION, _unsupported("adding")
        elif voter.id in state.voters.ids:
            error = ErrorCode.DUPLICATE_VOTER
            message = f"The voter id for {_text(voter)} is already part of the set of voters {_all(state)}."
        else:
            error = ErrorCode.REQUEST_TIMED_OUT
            message = f"New voter {_text(voter)} is not ready to receive requests"
    return m.AddRaftVoterResponse(error_code=error or 0, error_message=message)


def remove_voter(
    state: QuorumState, cluster_id: str, kraft_version: int, request: m.RemoveRaftVoterRequest
) -> m.RemoveRaftVoterResponse:
    """A vote is to be taken away."""
    error, message = _refusal(state, cluster_id, request.cluster_id)
    voter = ReplicaKey(request.voter_id, request.voter_directory_id)
    if error is None:
        if not _is_voter_key(voter):
            error, message = ErrorCode.INVALID_REQUEST, "Remove voter request didn't include a valid voter"
        elif kraft_version == 0:
            error, message = ErrorCode.UNSUPPORTED_VERSION, _unsupported("removing")
        else:
            error = ErrorCode.VOTER_NOT_FOUND
            message = f"Cannot remove voter {_text(voter)} from the set of voters {_all(state)}"
    return m.RemoveRaftVoterResponse(error_code=error or 0, error_message=message)


def update_voter(
    state: QuorumState, cluster_id: str, request: m.UpdateRaftVoterRequest
) -> m.UpdateRaftVoterResponse:
    """A voter reports where it is reached; the sole one writes that down itself when it is elected."""
    voter = ReplicaKey(request.voter_id, request.voter_directory_id)
    error = core.leader_request_error(state, request.current_leader_epoch)
    if request.cluster_id is not None and request.cluster_id != cluster_id:
        error = ErrorCode.INCONSISTENT_CLUSTER_ID
    elif error is None:
        known = _is_voter_key(voter) and not state.voters.contains(voter)
        error = ErrorCode.VOTER_NOT_FOUND if known else ErrorCode.INVALID_REQUEST
    where = state.voters.listeners(state.leader_id)
    return m.UpdateRaftVoterResponse(
        error_code=error,
        current_leader=m.CurrentLeader(
            leader_id=state.leader_id,
            leader_epoch=state.epoch,
            host=where[0].host if where else "",
            port=where[0].port if where else 0,
        ),
    )


def _refusal(
    state: QuorumState, cluster_id: str, requested: str | None
) -> tuple[ErrorCode | None, str | None]:
    if requested is not None and requested != cluster_id:
        message = f'The given id "{requested}" doesn\'t match the cluster id "{cluster_id}"'
        return ErrorCode.INCONSISTENT_CLUSTER_ID, message
    return core.leader_request_error(state, state.epoch), None


def _is_voter_key(voter: ReplicaKey) -> bool:
    return voter.id >= 0 and voter.directory_id != ZERO_UUID


def _unsupported(what: str) -> str:
    return f"Cluster doesn't support {what} voter because the kraft.version feature is 0"


def _text(voter: ReplicaKey) -> str:
    directory = "<undefined>" if voter.directory_id == ZERO_UUID else uuid_to_str(Uuid(voter.directory_id))
    return f"ReplicaKey(id={voter.id}, directoryId={directory})"


def _all(state: QuorumState) -> str:
    return f"[{', '.join(_text(voter.key) for voter in state.voters.voters.values())}]"
