"""A raft core on a log in memory, for tests: what it is ready for is done at once, and kept to be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.raft_log import Disk, MemoryLog, encode_control

from ottla.metadata.features import VersionRange
from ottla.metadata.registrations import Endpoint
from ottla.model.ids import METADATA_TOPIC_ID
from ottla.raft.answers import Asked
from ottla.raft.core import RaftCore, Ready, Role, Send, Timeouts
from ottla.raft.quorum_state import ElectionState
from ottla.raft.voters import SUPPORTED_KRAFT_VERSIONS, ReplicaKey, VoterNode, VoterSet
from ottla.wire.messages import fetch as f
from ottla.wire.messages.nodes import raft as m

CLUSTER_ID = "cluster"
LISTENER = "CONTROLLER"
TOPIC = "__cluster_metadata"
NEW = Asked(version=18, listener=LISTENER)
TIMEOUTS = Timeouts()


def key(node_id: int, directory: int | None = None) -> ReplicaKey:
    return ReplicaKey(node_id, bytes([directory or node_id]) * 16)


def endpoint(node_id: int) -> Endpoint:
    return Endpoint(LISTENER, f"host-{node_id}", 9000 + node_id)


def voter(node_id: int, directory: int | None = None) -> VoterNode:
    return VoterNode(key(node_id, directory), (endpoint(node_id),), SUPPORTED_KRAFT_VERSIONS)


def voters(*ids: int) -> VoterSet:
    return VoterSet.of(*(voter(n) for n in ids))


def static_voters(*ids: int) -> VoterSet:
    return VoterSet.static({n: (endpoint(n),) for n in ids})


class Replica:
    """One core; by default node 1 of the voters 1, 2 and 3, which are in its bootstrap snapshot."""

    def __init__(
        self,
        *ids: int,
        node_id: int = 1,
        static: bool = False,
        stored: ElectionState | None = None,
        disk: Disk | None = None,
        draws: Sequence[int] = (),
        local: VoterNode | None = None,
        now_ms: int = 1_000_000,
        flushes_at_once: bool = True,
        **options: Any,
    ) -> None:
        ids = ids or (1, 2, 3)
        self.disk = disk or Disk(None if static else voters(*ids))
        self.log = MemoryLog(self.disk, static_voters(*ids) if static else None)
        self.now_ms = now_ms
        self.draws = list(draws)
        self.done: list[Ready] = []
        self.sends: list[Send] = []
        self.answers: dict[int, Any] = {}
        self.elections: list[ElectionState] = []
        self.flushes_at_once = flushes_at_once
        self._tokens = 0
        self.core = RaftCore(
            local or voter(node_id),
            CLUSTER_ID,
            self.log,
            stored,
            timeouts=options.pop("timeouts", TIMEOUTS),
            draw=lambda n: min(self.draws.pop(0), n - 1) if self.draws else 0,
            now_ms=now_ms,
            **options,
        )
        self.state = self.core.state
        self.pump()

    def pump(self) -> None:
        while (ready := self.core.ready()) is not None:
            self.done.append(ready)
            if ready.truncate_to is not None:
                self.log.truncate(ready.truncate_to)
            if ready.append:
                self.log.append_fetched(ready.append)
            if ready.control:
                payload = encode_control(ready.control)
                self.log.append(payload, len(ready.control), self.state.epoch, is_control=True)
            if ready.election is not None:
                self.elections.append(ready.election)
            self.answers.update(ready.answers)
            self.sends += ready.sends
            if ready.flush and self.flushes_at_once:
                self.flush()

    # --- inputs

    def tick(self, ms: float = 0) -> None:
        self.now_ms += int(ms)
        self.core.tick(self.now_ms)
        self.pump()

    def flush(self) -> None:
        self.core.flushed(self.log.end.offset, self.now_ms)
        self.pump()

    def append(self, payload: bytes = b"decided") -> int:
        self.log.append(payload, 1, self.state.epoch, is_control=False)
        self.core.appended(self.now_ms)
        self.pump()
        return self.log.end.offset

    def ask(self, request: Any, how: Asked = NEW) -> Any:
        """The answer; None if it is not given yet (then it is in `answers`, by the number in `waiting`)."""
        self._tokens += 1
        self.core.receive(self._tokens, request, how, self.now_ms)
        self.pump()
        return self.answers.get(self._tokens)

    @property
    def waiting(self) -> int:
        return self._tokens

    def take_sends(self) -> list[Send]:
        sends, self.sends = self.sends, []
        return sends

    def last_send(self, kind: type, to: int | None = None) -> Send:
        """The newest request of a kind, to a node."""
        return next(
            s for s in reversed(self.sends) if isinstance(s.request, kind) and to in (None, s.to.node_id)
        )

    def answered(self, send: Send, response: Any) -> None:
        self.core.answered(send.send_id, response, self.now_ms)
        self.pump()

    def failed(self, send: Send, *, refused: bool = False) -> None:
        self.core.failed(send.send_id, self.now_ms, refused=refused)
        self.pump()

    # --- ways into a role

    def time_out(self) -> None:
        """Until its deadline."""
        self.tick(max(self.core.next_deadline_ms() - self.now_ms, 0))

    def be_elected(self) -> None:
        """All the way to a leader, with the pre-votes and the votes of the others."""
        while self.state.role not in (Role.PROSPECTIVE, Role.LEADER):
            self.time_out()
        for role in (Role.PROSPECTIVE, Role.CANDIDATE):
            for node_id in sorted(self.state.voters.ids - {self.state.local.id}):
                if self.state.role is role:
                    self.grant(node_id)
        assert self.state.is_leader
        self.take_sends()

    def grant(self, node_id: int) -> None:
        """A voter's yes to whatever it is being asked."""
        pending = next(i for i, p in self.core._pending.items() if p.node.node_id == node_id)
        self.core.answered(pending, vote_response(self.state.epoch, granted=True), self.now_ms)
        self.pump()

    def commit(self) -> None:
        """The other voters fetch up to the end of the log."""
        for node_id in sorted(self.state.voters.ids - {self.state.local.id}):
            self.ask(fetch(self, node_id, max_wait_ms=0))

    def lead(self) -> None:
        self.be_elected()
        self.commit()
        self.take_sends()

    def follow(self, leader_id: int = 2, epoch: int | None = None) -> None:
        self.ask(begin(leader_id, self.state.epoch + 1 if epoch is None else epoch))


# --- requests


def vote(candidate: int, epoch: int, **fields: Any) -> m.VoteRequest:
    partition: dict[str, Any] = {
        "partition_index": 0,
        "replica_epoch": epoch,
        "replica_id": candidate,
        "replica_directory_id": key(candidate).directory_id if candidate >= 0 else bytes(16),
        "voter_directory_id": key(1).directory_id,
        "last_offset_epoch": 0,
        "last_offset": 0,
    }
    request: dict[str, Any] = {"cluster_id": CLUSTER_ID, "voter_id": 1}
    for name, value in fields.items():
        (request if name in request else partition)[name] = value
    topics = [m.VoteRequestTopicData(topic_name=TOPIC, partitions=[m.VoteRequestPartitionData(**partition)])]
    return m.VoteRequest(topics=topics, **request)


def vote_response(epoch: int, *, granted: bool, leader_id: int = -1, error: int = 0) -> m.VoteResponse:
    partition = m.VoteResponsePartitionData(
        partition_index=0, error_code=error, leader_id=leader_id, leader_epoch=epoch, vote_granted=granted
    )
    return m.VoteResponse(topics=[m.VoteResponseTopicData(topic_name=TOPIC, partitions=[partition])])


def begin(leader_id: int, epoch: int, **fields: Any) -> m.BeginQuorumEpochRequest:
    claim = m.BeginQuorumEpochRequestPartitionData(
        partition_index=0,
        leader_id=leader_id,
        leader_epoch=epoch,
        voter_directory_id=fields.pop("voter_directory_id", bytes(16)),
    )
    topic = m.BeginQuorumEpochRequestTopicData(topic_name=fields.pop("topic", TOPIC), partitions=[claim])
    return m.BeginQuorumEpochRequest(**{"cluster_id": CLUSTER_ID, "topics": [topic], **fields})


def begin_response(epoch: int, leader_id: int = 1, error: int = 0) -> m.BeginQuorumEpochResponse:
    partition = m.BeginQuorumEpochResponsePartitionData(
        partition_index=0, error_code=error, leader_id=leader_id, leader_epoch=epoch
    )
    topic = m.BeginQuorumEpochResponseTopicData(topic_name=TOPIC, partitions=[partition])
    return m.BeginQuorumEpochResponse(topics=[topic])


def end(leader_id: int, epoch: int, *successors: ReplicaKey, **fields: Any) -> m.EndQuorumEpochRequest:
    claim = m.EndQuorumEpochRequestPartitionData(
        partition_index=0,
        leader_id=leader_id,
        leader_epoch=epoch,
        preferred_candidates=[
            m.ReplicaInfo(candidate_id=k.id, candidate_directory_id=k.directory_id) for k in successors
        ],
    )
    topic = m.EndQuorumEpochRequestTopicData(topic_name=fields.pop("topic", TOPIC), partitions=[claim])
    return m.EndQuorumEpochRequest(**{"cluster_id": CLUSTER_ID, "topics": [topic], **fields})


def end_response(epoch: int, leader_id: int = 1) -> m.EndQuorumEpochResponse:
    partition = m.EndQuorumEpochResponsePartitionData(
        partition_index=0, leader_id=leader_id, leader_epoch=epoch
    )
    topic = m.EndQuorumEpochResponseTopicData(topic_name=TOPIC, partitions=[partition])
    return m.EndQuorumEpochResponse(topics=[topic])


def fetch(replica: Replica, node_id: int, offset: int | None = None, **fields: Any) -> f.FetchRequest:
    """Of a follower or observer that has everything up to the offset; by default all there is."""
    log = replica.log
    offset = log.end.offset if offset is None else offset
    before = [batch.epoch for batch in log.batches if batch.base < offset]
    partition = f.FetchPartition(
        partition=0,
        current_leader_epoch=fields.pop("epoch", replica.state.epoch),
        fetch_offset=offset,
        last_fetched_epoch=fields.pop("last_epoch", before[-1] if before else 0),
        partition_max_bytes=0,
        replica_directory_id=fields.pop("directory_id", key(node_id).directory_id),
        high_watermark=fields.pop("high_watermark", 1 << 62),
    )
    return f.FetchRequest(
        **{
            "cluster_id": CLUSTER_ID,
            "replica_state": f.ReplicaState(replica_id=node_id),
            "max_wait_ms": 500,
            "min_bytes": 0,
            "topics": [f.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
            **fields,
        }
    )


def fetch_response(leader_id: int, epoch: int, error: int = 0, **fields: Any) -> f.FetchResponse:
    """Of a leader, or of somebody who knows of one; `where` is its node in the endpoints."""
    where = fields.pop("where", None)
    partition = f.PartitionData(
        partition_index=0,
        error_code=error,
        current_leader=f.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch),
        **{"records": b"", "high_watermark": -1, "aborted_transactions": None, **fields},
    )
    topic = f.FetchableTopicResponse(topic=TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])
    at = [] if where is None else [endpoint(where)]
    nodes = [f.NodeEndpoint(node_id=leader_id, host=e.host, port=e.port, rack=None) for e in at]
    return f.FetchResponse(responses=[topic], node_endpoints=nodes)


def describe() -> m.DescribeQuorumRequest:
    partition = m.DescribeQuorumRequestPartitionData(partition_index=0)
    topic = m.DescribeQuorumRequestTopicData(topic_name=TOPIC, partitions=[partition])
    return m.DescribeQuorumRequest(topics=[topic])


def fetch_snapshot(
    epoch: int, snapshot: tuple[int, int], position: int, max_bytes: int, **fields: Any
) -> Any:
    asked = m.FetchSnapshotRequestPartitionSnapshot(
        partition=fields.pop("partition", 0),
        current_leader_epoch=epoch,
        snapshot_id=m.SnapshotId(end_offset=snapshot[0], epoch=snapshot[1]),
        position=position,
    )
    topic = m.FetchSnapshotRequestTopicSnapshot(name=fields.pop("topic", TOPIC), partitions=[asked])
    return m.FetchSnapshotRequest(
        **{"cluster_id": CLUSTER_ID, "replica_id": 5, "max_bytes": max_bytes, "topics": [topic], **fields}
    )


def listeners(node_id: int) -> list[m.Listener]:
    where = endpoint(node_id)
    return [m.Listener(name=where.listener, host=where.host, port=where.port)]


def add_voter(node_id: int, **fields: Any) -> m.AddRaftVoterRequest:
    return m.AddRaftVoterRequest(
        **{
            "cluster_id": CLUSTER_ID,
            "timeout_ms": 1_000,
            "voter_id": node_id,
            "voter_directory_id": key(max(node_id, 0) or 1).directory_id,
            "listeners": listeners(node_id),
            **fields,
        }
    )


def remove_voter(node_id: int, **fields: Any) -> m.RemoveRaftVoterRequest:
    directory = key(max(node_id, 0) or 1).directory_id
    return m.RemoveRaftVoterRequest(
        **{"cluster_id": CLUSTER_ID, "voter_id": node_id, "voter_directory_id": directory, **fields}
    )


def update_voter(
    node_id: int, epoch: int, versions: VersionRange = SUPPORTED_KRAFT_VERSIONS, **fields: Any
) -> m.UpdateRaftVoterRequest:
    feature = m.KRaftVersionFeature(min_supported_version=versions.min, max_supported_version=versions.max)
    return m.UpdateRaftVoterRequest(
        **{
            "cluster_id": CLUSTER_ID,
            "current_leader_epoch": epoch,
            "voter_id": node_id,
            "voter_directory_id": key(node_id).directory_id,
            "listeners": listeners(node_id),
            "kraft_version_feature": feature,
            **fields,
        }
    )
