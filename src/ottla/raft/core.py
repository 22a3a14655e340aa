"""The raft core: Kafka's KafkaRaftClient without its I/O (KIP-595, KIP-853, KIP-996, KIP-1166, KIP-1186).

Purpose: requests, answers and time go in, a list of what is to be done comes out: every rule of the quorum in one place
that a simulation can drive, for any number of voters and observers.

Rules: no clock, file, socket, await or chance inside: `now_ms` and `draw` are parameters. An input may change what
`ready()` gives; whoever drives the core performs a Ready completely, in the order of its fields, before the next input,
and asks again until there is none. Nothing leaves before what it rests on is on disk: an answer or a request only after
the vote, a follower's fetch only after the flush of what it has, and nobody stands for election with a log that a crash
could shorten. Between inputs the log changes by Ready and by the leader's own appends alone.

Who reads this file from top to bottom reads: inputs, output, the six roles, answers of others, transitions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, NamedTuple

from ottla.metadata.registrations import Endpoint
from ottla.metadata.snapshot import BOOTSTRAP_SNAPSHOT_ID, SnapshotId
from ottla.model.errors import ErrorCode
from ottla.model.ids import METADATA_TOPIC_ID
from ottla.net.peers import Node
from ottla.raft import answers, voter_changes
from ottla.raft.answers import PARTITION, TOPIC, Asked
from ottla.raft.log_view import LogView, OffsetAndEpoch
from ottla.raft.quorum_state import MAX_EPOCH, NONE, ElectionState
from ottla.raft.state import (
    MAX_CLAIMED_EPOCH,
    TRANSITIONS,
    UNKNOWN_OFFSET,
    Handler,
    LeaderState,
    QuorumState,
    Role,
    Timeouts,
    initial_state,
)
from ottla.raft.voters import NOT_IN_LOG, RECONFIGURABLE, QuorumEntry, ReplicaKey, VoterNode
from ottla.records.control import ControlType
from ottla.wire.codec import encode
from ottla.wire.messages import fetch as f
from ottla.wire.messages.logs.control import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
)
from ottla.wire.messages.nodes import raft as m

__all__ = [
    "MAX_CLAIMED_EPOCH",
    "TRANSITIONS",
    "Answer",
    "LeaderAndEpoch",
    "OffsetAndEpoch",
    "QuorumState",
    "RaftCore",
    "Ready",
    "Role",
    "Send",
    "SnapshotPiece",
    "Timeouts",
    "initial_state",
]

# A leader that a majority has not fetched from for so many fetch time-outs resigns.
CHECK_QUORUM_FACTOR: Final = 1.5
# What a fetch may wait for, whatever it asks; and how many may wait.
MAX_FETCH_WAIT_MS: Final = 5_000
MAX_WAITING_FETCHES: Final = 10_000
# controller.quorum.fetch.max.bytes and controller.quorum.fetch.snapshot.max.bytes.
DEFAULT_FETCH_BYTES: Final = 1 << 20
# The bootstrap servers' node ids go down from here.
FIRST_BOOTSTRAP_ID: Final = -2
# Of the request time-out, for a request that is answered at once.
SEARCH_SHARE: Final = 4
# A wait is doubled no more often than this.
MAX_DOUBLINGS: Final = 5


class Send(NamedTuple):
    """A request to another node; `answered` or `failed` is called with its id, once."""

    send_id: int
    to: Node
    request: Any
    timeout_ms: int


class Answer(NamedTuple):
    """The response to a request that was received with this token."""

    token: int
    response: Any


class SnapshotPiece(NamedTuple):
    """A piece of a snapshot that is being fetched; it is whole when a piece ends at its size."""

    snapshot_id: SnapshotId
    position: int
    data: bytes
    size: int


class LeaderAndEpoch(NamedTuple):
    """Who leads the epoch; -1 where nobody does, as far as is known."""

    leader_id: int
    epoch: int


@dataclass(slots=True)
class Ready:
    """What is to be done, in this order and completely, before the next input."""

    # Follower: cut the log here, and its QuorumHistory with it.
    truncate_to: int | None = None
    # Follower: the leader's batches, as they came. What is corrupt is dropped, and that fetch has `failed`.
    append: bytes = b""
    # Of a snapshot that is being fetched; when it is whole it is put in place of the log, then `snapshot_loaded`.
    piece: SnapshotPiece | None = None
    # Leader: control records, to be appended as one batch of the state's epoch.
    control: tuple[tuple[ControlType, bytes], ...] = ()
    # Must be on disk before anything below leaves.
    election: ElectionState | None = None
    # The log has grown: begin an fsync, and call `flushed` when it is done.
    flush: bool = False
    answers: tuple[Answer, ...] = ()
    sends: tuple[Send, ...] = ()
    # Has moved.
    high_watermark: int | None = None
    # Has changed.
    leader: LeaderAndEpoch | None = None
    # This node leads this epoch, and the epoch's first record is committed.
    leads: int | None = None
    # This node has stopped leading.
    resigned: bool = False
    # The node cannot go on; nothing comes after this.
    fatal: str | None = None


class _Pending(NamedTuple):
    node: Node
    handler: Handler


class _WaitingFetch(NamedTuple):
    request: f.FetchRequest
    how: Asked
    deadline_ms: float


class _Backoff(NamedTuple):
    failures: int
    until_ms: float


class RaftCore:
    """One replica of the metadata log, voter or observer. Owned by the raft driver, or by a simulation."""

    def __init__(
        self,
        local: VoterNode,
        cluster_id: str,
        log: LogView,
        stored: ElectionState | None,
        *,
        timeouts: Timeouts,
        draw: Callable[[int], int],
        bootstrap: Sequence[tuple[str, int]] = (),
        controller_listener: str = "CONTROLLER",
        may_vote: bool = True,
        auto_join: bool = False,
        fetch_bytes: int = DEFAULT_FETCH_BYTES,
        fetch_snapshot_bytes: int = DEFAULT_FETCH_BYTES,
        now_ms: int,
    ) -> None:
        # The log's voters say nothing of protocols: without them this node is compared with what is written of it.
        listeners = tuple(Endpoint(e.listener, e.host, e.port) for e in local.listeners)
        self.local = VoterNode(local.key, listeners, local.kraft_versions)
        self.cluster_id = cluster_id
        self.log = log
        # Kafka allows 0 for each; no time at all would be an endless loop.
        self.timeouts = Timeouts(*(max(timeout_ms, 1) for timeout_ms in timeouts))
        self.controller_listener = controller_listener
        self.now_ms = now_ms
        self._draw = draw
        self._may_vote = may_vote
        self._auto_join = auto_join
        self._fetch_bytes = fetch_bytes
        self._fetch_snapshot_bytes = fetch_snapshot_bytes
        self._bootstrap = [
            Node(FIRST_BOOTSTRAP_ID - number, host, port) for number, (host, port) in enumerate(bootstrap)
        ]
        self._known_nodes: list[Node] = []
        self._entry = log.quorum.latest()
        self.state = initial_state(local.key, self._entry.voters, stored, log.end)
        self.state.kraft_version = self._entry.kraft_version
        # What is known to be on disk of the log; of what a start finds in it, nothing is yet.
        self._flushed = log.end.offset if log.end.offset == log.start_offset else UNKNOWN_OFFSET
        # When the role is given up: the election time-out, or a follower's fetch time-out.
        self._deadline_ms: float = inf
        self._wake_ms: float = inf
        self._lost_elections = 0
        self._lost_epoch = NONE
        self._stopping = False
        # Requests under way, one to a node; what was sent before the last transition is no longer waited for.
        self._next_send_id = 0
        self._pending: dict[int, _Pending] = {}
        self._in_flight: set[int] = set()
        self._backoffs: dict[int, _Backoff] = {}
        self._generation = 0
        # The fetch that looks for a leader, if one is under way.
        self._search: int | None = None
        # Of a follower.
        self._leader_high_watermark = UNKNOWN_OFFSET
        self._refusals = 0
        self._update_voter_ms: float = 0
        self._has_reported = False
        self._snapshot: SnapshotId | None = None
        self._snapshot_position = 0
        self._is_loading = False
        self._applied: int | None = None
        # Of a leader and of one that has resigned.
        self._waiting: dict[int, _WaitingFetch] = {}
        self._first_wait_ms: float = inf
        self._serve_all = False
        self._serve_grown = False
        self._unacknowledged: set[int] = set()
        self._successors: list[ReplicaKey] = []
        # What the next Ready is made of.
        self._log_changes = False
        self._reported_election = None if stored is None else (stored.epoch, stored.leader_id, stored.voted)
        self._reported_high_watermark = UNKNOWN_OFFSET
        self._reported_leader = LeaderAndEpoch(NONE, 0)
        self._ready = Ready()
        self._answers: list[Answer] = []
        self._sends: list[Send] = []
        self._fatal: str | None = None
        self._begin()

    def _begin(self) -> None:
        state = self.state
        self._find_nodes()
        self._ready.flush = self._must_flush() and self._flushed < self.log.end.offset
        if state.role is Role.FOLLOWER:
            self._deadline_ms = self._update_voter_ms = self.now_ms + self.timeouts.fetch_ms
        elif state.is_voter or state.role is Role.RESIGNED:
            self._deadline_ms = self._election_deadline()
        if state.role is Role.RESIGNED:
            state.leader_endpoints = self.local.listeners
            self._unacknowledged = set(state.voters.ids - {state.local.id})
        if state.is_only_voter:
            # Nobody else can lead: it waits for no time-out.
            self._deadline_ms = self.now_ms
        self._act()

    # --- inputs

    def tick(self, now_ms: int) -> None:
        """Time has passed."""
        self.now_ms = now_ms
        self._act()

    def receive(self, token: int, request: Any, how: Asked, now_ms: int) -> None:
        """A request of the quorum; its answer comes with a Ready, at once or later."""
        self.now_ms = now_ms
        response: Any
        if self._fatal is not None:
            return
        if self.state.leader is not None:
            voter_changes.expire(self, self.state.leader)
        match request:
            case f.FetchRequest():
                response = self._fetch_or_wait(token, request, how)
            case m.VoteRequest():
                response = answers.vote(self, request, how)
            case m.BeginQuorumEpochRequest():
                response = answers.begin_quorum_epoch(self, request, how)
            case m.EndQuorumEpochRequest():
                response = answers.end_quorum_epoch(self, request, how)
            case m.DescribeQuorumRequest():
                response = answers.describe_quorum(self.state, request, now_ms, how)
            case m.FetchSnapshotRequest():
                response = answers.fetch_snapshot(self, request, how)
            case m.AddRaftVoterRequest():
                response = voter_changes.add_voter(self, token, request)
            case m.RemoveRaftVoterRequest():
                response = voter_changes.remove_voter(self, token, request)
            case m.UpdateRaftVoterRequest():
                response = voter_changes.update_voter(self, request, how)
            case _:
                raise AssertionError(f"{type(request).__name__} is not a request of the quorum")
        if response is not None:
            self.answer(token, response)
        self._act()

    def answered(self, send_id: int, response: Any, now_ms: int) -> None:
        """The response to a request of ours."""
        self.now_ms = now_ms
        self._take_answer(send_id, response)
        if self._ready.append or self._ready.piece is not None:
            self._applied = send_id
        self._act()

    def failed(self, send_id: int, now_ms: int, *, refused: bool) -> None:
        """No answer came, or (of the one that brought records or a snapshot last) it could not be used."""
        self.now_ms = now_ms
        pending = self._pending.get(send_id)
        if pending is None and send_id == self._applied:
            self._snapshot, self._is_loading = None, False
            self._back_off(self.state.leader_id)
        elif pending is not None:
            state = self.state
            leader = self._node(state.leader_id, state.leader_endpoints)
            # It may have been asked as a bootstrap server.
            if state.role is Role.FOLLOWER and leader is not None and pending.node[1:] == leader[1:]:
                self._leader_unreachable(refused)
            if refused and state.role in (Role.PROSPECTIVE, Role.CANDIDATE):
                state.unreachable |= {pending.node.node_id}
            self._take_answer(send_id, None)
        self._act()

    def appended(self, now_ms: int) -> None:
        """The leader's own append has moved the log's end."""
        self.now_ms = now_ms
        assert self.state.role is Role.LEADER, "only a leader appends"
        self._ready.flush = True
        self._log_changes = True

    def flushed(self, end_offset: int, now_ms: int) -> None:
        """The log is on disk up to here."""
        self.now_ms = now_ms
        self._flushed = max(self._flushed, min(end_offset, self.log.end.offset))
        self._advance()
        self._act()

    def snapshot_loaded(self, snapshot: SnapshotId, now_ms: int) -> None:
        """A fetched snapshot is whole on disk, and the log begins after it."""
        self.now_ms = now_ms
        self._is_loading = False
        self._flushed = self.log.end.offset
        self.state.high_watermark = max(self.state.high_watermark, snapshot.end_offset)
        self._log_changes = True

    def upgrade_kraft_version(self, level: int, now_ms: int, *, validate_only: bool = False) -> bool:
        """UpdateFeatures wants this level; False if it is in force, KafkaError if it cannot be."""
        self.now_ms = now_ms
        return voter_changes.upgrade_kraft_version(self, level, validate_only)

    def resign(self, now_ms: int) -> None:
        """An orderly stop: hands over, and stands for no election any more."""
        self.now_ms = now_ms
        self._stopping = True
        if self.state.role is Role.LEADER and not self.state.is_only_voter:
            self._to_resigned()
        self._act()

    # --- output

    def ready(self) -> Ready | None:
        """What is to be done since the last call; None: nothing, until the next input."""
        self._look_at_log()
        state, ready = self.state, self._ready
        election = (state.epoch, state.leader_id, state.voted)
        if election != self._reported_election:
            self._reported_election = election
            ready.election = state.election
        if state.high_watermark != self._reported_high_watermark:
            self._reported_high_watermark = ready.high_watermark = state.high_watermark
        leader = LeaderAndEpoch(NONE if state.role is Role.RESIGNED else state.leader_id, state.epoch)
        if leader != self._reported_leader:
            self._reported_leader = ready.leader = leader
        if self._answers:
            ready.answers, self._answers = tuple(self._answers), []
        if self._sends:
            ready.sends, self._sends = tuple(self._sends), []
        if ready == _NOTHING:
            return None
        self._log_changes = bool(
            ready.truncate_to is not None or ready.append or ready.piece is not None or ready.control
        )
        self._ready = Ready()
        return ready

    def next_deadline_ms(self) -> float:
        """When to tick, if nothing else comes before."""
        return self._wake_ms

    @property
    def may_stop(self) -> bool:
        """After resign(): is there nobody left to hand over to, or has somebody else taken over?"""
        state = self.state
        if not state.is_voter or state.is_only_voter or self._fatal is not None:
            return True
        return state.leader_id not in (NONE, state.local.id)

    def leader_node(self) -> Node | None:
        """Where the leader is reached by other nodes, if that is known."""
        state = self.state
        if state.role is Role.RESIGNED:
            return None
        return self._node(state.leader_id, state.leader_endpoints)

    def has_followers(self, now_ms: int) -> bool:
        """Does anybody fetch from this leader?"""
        leader = self.state.leader
        return leader is not None and (len(leader.voters) > 1 or bool(leader.active_observers(now_ms)))

    def _look_at_log(self) -> None:
        """What Ready or the leader's append has made of the log, and what follows from it."""
        if not self._log_changes or self._fatal is not None:
            return
        self._log_changes = False
        self._adopt(self.log.quorum.latest())
        state = self.state
        if state.role is Role.FOLLOWER:
            committed = min(self._leader_high_watermark, self.log.end.offset)
            state.high_watermark = max(state.high_watermark, committed)
        self._serve_grown = True
        self._act()

    def _adopt(self, entry: QuorumEntry) -> None:
        """The log names the voters, by its last record about them."""
        if entry is self._entry:
            return
        self._entry = entry
        state = self.state
        state.kraft_version = entry.kraft_version
        if entry.voters is state.voters:
            return
        was_voter = state.is_voter
        state.adopt(entry.voters)
        self._find_nodes()
        if state.role is Role.UNATTACHED and state.is_voter and not was_voter:
            self._deadline_ms = self._election_deadline()
        if state.leader is not None:
            if self._checks_quorum() != (state.leader.check_quorum_ms < inf):
                self._reset_check_quorum(state.leader)
            self._advance()

    # --- the roles, each with what it does by itself

    def _act(self) -> None:
        """Sends what is to be sent and gives up what has taken too long, until there is nothing left to do now."""
        while self._fatal is None and _ACTS[self.state.role](self):
            pass

    def _unattached(self) -> bool:
        """Knows of no leader that can be reached: looks for one; a voter, for a time."""
        if self._stands_for_election():
            return True
        self._fetch_from_anybody()
        return False

    def _prospective(self) -> bool:
        """Asks whether it would be elected, without yet disturbing the epoch (pre-vote, KIP-996)."""
        state = self.state
        if state.has_majority():
            return self._to_candidate()
        if self.now_ms >= self._deadline_ms or state.is_lost():
            self._after_lost_pre_vote()
            return True
        self._wake_ms = self._deadline_ms
        # Who still fetches from the leader says no, and may soon say yes.
        self._ask_for_votes(state.voters.ids - state.granted, pre_vote=True)
        return False

    def _candidate(self) -> bool:
        """Stands for election, until its time is over."""
        state = self.state
        if self._is_disk_behind():
            # After a start: what it found in its log is being put on disk.
            self._wake_ms = inf
            return False
        if state.has_majority():
            self._to_leader()
            return True
        if self.now_ms >= self._deadline_ms and not self._stopping:
            return self._to_prospective()
        if state.is_lost() and self._lost_epoch != state.epoch:
            self._back_off_candidacy()
        self._wake_ms = inf if self._stopping else self._deadline_ms
        self._ask_for_votes(state.voters.ids - state.granted - state.rejected, pre_vote=False)
        return False

    def _follower(self) -> bool:
        """Fetches from the leader; a voter that gets no answer for the fetch time-out stands for election."""
        if self._stands_for_election():
            return True
        self._fetch_from_leader()
        return False

    def _leader(self) -> bool:
        """Serves fetches, says that it leads, and resigns if it no longer can or no longer should."""
        leader = self.state.leader
        assert leader is not None
        voter_changes.expire(self, leader)
        removed = not self.state.is_voter and self._entry.voters_offset < self.state.high_watermark
        if self.now_ms >= leader.check_quorum_ms or removed:
            self._to_resigned()
            return True
        self._wake_ms = leader.check_quorum_ms
        if leader.change is not None:
            self._wake_ms = min(self._wake_ms, leader.change.deadline_ms)
        self._send_begin_quorum_epoch(leader)
        self._serve_fetches()
        return False

    def _resigned(self) -> bool:
        """Tells the voters that it no longer leads, and who should; gives them the time of an election."""
        state = self.state
        if state.is_only_voter:
            return self._stands_for_election()
        if self.now_ms >= self._deadline_ms and not self._stopping:
            if state.epoch >= MAX_EPOCH:
                return self._out_of_epochs()
            # In the same epoch this replica is still the leader, and would follow itself.
            self._to_unattached(state.epoch + 1)
            return True
        self._wake_ms = inf if self._stopping else self._deadline_ms
        for node_id in sorted(self._unacknowledged & state.voters.ids):
            node = self._voter_node(node_id)
            if node is not None:
                self.ask(node, self._end_request(), self._end_answered)
        return False

    # --- what a follower does

    def _stands_for_election(self) -> bool:
        """Is its time over, and may it stand?"""
        if not self.state.is_voter or self._stopping or self._is_disk_behind():
            self._wake_ms = inf
        elif self.now_ms >= self._deadline_ms:
            return self._to_prospective()
        else:
            self._wake_ms = self._deadline_ms
        return False

    def _must_flush(self) -> bool:
        """A voter, and who may become one, has on disk what it fetches beyond."""
        return self._may_vote

    def _is_disk_behind(self) -> bool:
        """Would a crash shorten the log, or is it being replaced?"""
        return self._is_loading or (self._must_flush() and self._flushed < self.log.end.offset)

    def _may_fetch(self) -> bool:
        """One fetch at a time, none beyond what is on disk, and none while the log is about to change."""
        ready = self._ready
        changing = (
            ready.truncate_to is not None or ready.append or ready.piece is not None or self._log_changes
        )
        return not (self._in_flight or changing or self._is_disk_behind())

    def _fetch_from_leader(self) -> None:
        state = self.state
        leader = self._node(state.leader_id, state.leader_endpoints)
        is_ready = leader is not None and self._is_ready(leader.node_id)
        if is_ready and self._search is not None:
            # Better than whoever was asked about the leader meanwhile.
            self._take_answer(self._search, None)
        if not self._may_fetch():
            return
        if leader is None or not is_ready:
            self._fetch_from_anybody()
        elif self.now_ms >= self._update_voter_ms and self._report(leader):
            self._update_voter_ms = self.now_ms + self.timeouts.fetch_ms
        elif self._snapshot is not None:
            self.ask(leader, self._fetch_snapshot_request(self._snapshot), self._snapshot_answered)
        else:
            request = self._fetch_request(self.timeouts.max_fetch_wait_ms)
            self.ask(leader, request, self._fetch_answered)

    def _find_nodes(self) -> None:
        """Who may know the leader: the voters, and the bootstrap servers, each once and never this node."""
        own = [Node(self.local.key.id, e.host, e.port) for e in self.local.listeners]
        others = [self._voter_node(node_id) for node_id in sorted(self.state.voters.ids)]
        known = [*own, *(node for node in others if node is not None and node.node_id != self.local.key.id)]
        for node in self._bootstrap:
            if all(node[1:] != other[1:] for other in known):
                known.append(node)
        self._known_nodes = known[len(own) :]

    def _fetch_from_anybody(self) -> None:
        """Whoever answers says who leads, or leads itself."""
        if not self._may_fetch():
            return
        nodes = self._known_nodes
        first = self._draw(len(nodes)) if nodes else 0
        for node in nodes[first:] + nodes[:first]:
            if self._is_ready(node.node_id):
                # Whoever it is has nothing to wait for.
                timeout_ms = max(self.timeouts.request_ms // SEARCH_SHARE, 1)
                self.ask(node, self._fetch_request(max_wait_ms=0), self._fetch_answered, timeout_ms)
                self._search = self._next_send_id
                return

    def _report(self, leader: Node) -> bool:
        """A voter that is not where the log says, or not yet in it, says so; an observer joins, if it is to."""
        state, local = self.state, self.local
        reconfigurable = state.kraft_version >= RECONFIGURABLE
        if state.is_voter:
            needed = state.voters.needs_update(local) if reconfigurable else not self._has_reported
            return needed and self.ask(leader, self._update_voter_request(), self._update_voter_answered)
        if not (reconfigurable and self._may_vote and self._auto_join):
            return False
        listeners = [m.Listener(name=e.listener, host=e.host, port=e.port) for e in local.listeners]
        old = state.voters.voters.get(local.key.id)
        if old is not None:
            # Another directory of this node: another voter, which is gone.
            remove = m.RemoveRaftVoterRequest(
                cluster_id=self.cluster_id, voter_id=old.key.id, voter_directory_id=old.key.directory_id
            )
            return self.ask(leader, remove, self._change_answered)
        add = m.AddRaftVoterRequest(
            cluster_id=self.cluster_id,
            timeout_ms=self.timeouts.request_ms,
            voter_id=local.key.id,
            voter_directory_id=local.key.directory_id,
            listeners=listeners,
            ack_when_committed=False,
        )
        return self.ask(leader, add, self._change_answered)

    def _leader_unreachable(self, refused: bool) -> None:
        """The leader does not answer; where nobody listens it is no more, and there is no time to lose."""
        self.state.has_fetched = False
        if refused:
            # The others see it at the same time: a little chance keeps them from standing all at once.
            doublings = min(self._refusals, MAX_DOUBLINGS)
            span_ms = min(self.timeouts.election_ms // 20 << doublings, self.timeouts.election_backoff_max_ms)
            self._refusals += 1
            self._deadline_ms = min(self._deadline_ms, self.now_ms + self._draw(span_ms + 1))

    # --- what a nominee does

    def _ask_for_votes(self, voters: frozenset[int], *, pre_vote: bool) -> None:
        state, end = self.state, self.log.end
        for node_id in sorted(voters):
            node = self._voter_node(node_id)
            if node is None or not self._is_ready(node_id):
                continue
            asked = m.VoteRequestPartitionData(
                partition_index=PARTITION,
                replica_epoch=state.epoch,
                replica_id=state.local.id,
                replica_directory_id=state.local.directory_id,
                voter_directory_id=state.voters.voters[node_id].key.directory_id,
                last_offset_epoch=end.epoch,
                last_offset=end.offset,
                pre_vote=pre_vote,
            )
            topic = m.VoteRequestTopicData(topic_name=TOPIC, partitions=[asked])
            request = m.VoteRequest(cluster_id=self.cluster_id, voter_id=node_id, topics=[topic])
            self.ask(node, request, self._vote_answered)

    def _after_lost_pre_vote(self) -> None:
        state = self.state
        if state.leader_id != NONE and state.leader_endpoints:
            self._to_follower(state.epoch, state.leader_id, state.leader_endpoints)
        else:
            self._to_unattached(state.epoch, state.leader_id)

    def _back_off_candidacy(self) -> None:
        """Lost: the next election comes after a while that chance makes different for everybody."""
        self._lost_epoch = self.state.epoch
        self._lost_elections += 1
        doublings = min(self._lost_elections - 1, MAX_DOUBLINGS)
        span_ms = min(self.timeouts.election_ms // 10 << doublings, self.timeouts.election_backoff_max_ms)
        self._deadline_ms = min(self._deadline_ms, self.now_ms + 1 + self._draw(span_ms + 1))

    # --- what a leader does

    def _send_begin_quorum_epoch(self, leader: LeaderState) -> None:
        """BeginQuorumEpoch to those who have not answered it, and at intervals to those who do not fetch."""
        if self.state.is_only_voter:
            return
        interval_ms = self.timeouts.fetch_ms // 2
        is_due = self.now_ms >= leader.begin_epoch_ms
        if is_due:
            leader.begin_epoch_ms = self.now_ms + interval_ms
        self._wake_ms = min(self._wake_ms, leader.begin_epoch_ms)
        for node_id, progress in leader.voters.items():
            silent = is_due and self.now_ms - progress.last_fetch_ms >= interval_ms
            if (silent or not progress.acknowledged) and node_id != self.state.local.id:
                node = self._voter_node(node_id)
                if node is not None and self._is_ready(node_id):
                    self.ask(node, self._begin_request(node_id), self._begin_answered)

    def _fetch_or_wait(self, token: int, request: f.FetchRequest, how: Asked) -> f.FetchResponse | None:
        response = answers.fetch(self, request, how)
        if answers.fetch_is_due(request, response) or len(self._waiting) >= MAX_WAITING_FETCHES:
            return response
        deadline_ms = self.now_ms + min(request.max_wait_ms, MAX_FETCH_WAIT_MS)
        self._waiting[token] = _WaitingFetch(request, how, deadline_ms)
        self._first_wait_ms = min(self._first_wait_ms, deadline_ms)
        return None

    def _serve_fetches(self) -> None:
        """Answers those for whom there is something new, and those who have waited long enough."""
        while self._waiting and (self._serve_all or self._serve_grown or self.now_ms >= self._first_wait_ms):
            end = self.log.end.offset
            # A new high watermark is for everybody: before version 18 a fetch does not say which one it knows.
            everybody = self._serve_all
            self._serve_all = self._serve_grown = False
            for token, waiting in list(self._waiting.items()):
                has_more = waiting.request.topics[0].partitions[0].fetch_offset < end
                if everybody or has_more or self.now_ms >= waiting.deadline_ms:
                    del self._waiting[token]
                    self.answer(token, answers.fetch(self, waiting.request, waiting.how, has_waited=True))
            self._first_wait_ms = min((w.deadline_ms for w in self._waiting.values()), default=inf)
        self._serve_all = self._serve_grown = False
        self._wake_ms = min(self._wake_ms, self._first_wait_ms)

    def replica_fetched(self, replica: ReplicaKey, offset: int) -> None:
        """A replica asks for what comes after `offset`: up to there it has everything, a voter on disk."""
        leader = self.state.leader
        if leader is None or replica.id < 0 or replica.id == self.state.local.id:
            return
        if leader.fetched(replica, offset, self.log.end.offset, self.now_ms):
            self.update_check_quorum(replica)
            self._advance()

    def update_check_quorum(self, replica: ReplicaKey) -> None:
        """Check-quorum: a leader that too few voters fetch from would not know of another one."""
        leader = self.state.leader
        if leader is None or replica.id == self.state.local.id or not leader.voter_set.contains(replica):
            return
        leader.fetched_voters.add(replica.id)
        if leader.has_majority_fetched():
            self._reset_check_quorum(leader)

    def _checks_quorum(self) -> bool:
        return not self.state.is_only_voter

    def _reset_check_quorum(self, leader: LeaderState) -> None:
        leader.fetched_voters.clear()
        timeout_ms = self.timeouts.fetch_ms * CHECK_QUORUM_FACTOR
        leader.check_quorum_ms = self.now_ms + timeout_ms if self._checks_quorum() else inf

    def _advance(self) -> None:
        """The high watermark is what a majority of voters has on disk, once that is of this epoch."""
        state, leader = self.state, self.state.leader
        if leader is None:
            return
        if state.is_voter:
            leader.voters[state.local.id].end_offset = self._flushed
        end = leader.majority_end()
        if end <= leader.epoch_start_offset or end <= state.high_watermark:
            return
        if not leader.has_committed:
            leader.has_committed = True
            self._ready.leads = state.epoch
        state.high_watermark = end
        voter_changes.high_watermark_updated(self, leader)
        self._serve_all = True

    # --- what answers, and the core's own parts, ask of it

    def is_foreign(self, cluster_id: str | None) -> bool:
        """Does the request belong to another cluster? One that names none belongs to ours."""
        return cluster_id is not None and cluster_id != self.cluster_id

    def answer(self, token: int, response: Any) -> None:
        self._answers.append(Answer(token, response))

    def append_control(self, records: Sequence[tuple[ControlType, bytes]]) -> int:
        """Appended with the next Ready; gives the offset that the last of the records will have."""
        assert self.state.role is Role.LEADER, "only a leader appends"
        self._ready.control += tuple(records)
        self._ready.flush = True
        return self.log.end.offset + len(self._ready.control) - 1

    def ask(self, node: Node, request: Any, handler: Handler, timeout_ms: int | None = None) -> bool:
        """Sends a request, unless one to this node is under way or has just failed."""
        if not self._is_ready(node.node_id):
            return False
        self._next_send_id += 1
        self._pending[self._next_send_id] = _Pending(node, handler)
        self._in_flight.add(node.node_id)
        self._sends.append(Send(self._next_send_id, node, request, timeout_ms or self.timeouts.request_ms))
        return True

    def asked_for_vote(self, candidate: ReplicaKey, its_end: OffsetAndEpoch, pre_vote: bool) -> bool:
        """Gives the vote, if it can be given; there is one in an epoch."""
        state = self.state
        if not self._may_vote or candidate.id == state.local.id:
            return False
        granted = state.can_grant_vote(candidate, its_end.up_to_date_with(self.log.end), pre_vote)
        if granted and not pre_vote and state.voted is None:
            state.voted = candidate
            # The candidate has as good a chance as this replica, and gets the time to use it.
            if state.is_voter:
                self._deadline_ms = self._election_deadline()
            if state.role is Role.PROSPECTIVE:
                state.granted, state.rejected = frozenset({state.local.id}), frozenset()
        return granted

    def learn_epoch(self, epoch: int) -> None:
        if epoch > self.state.epoch:
            self._to_unattached(epoch)

    def learn_leader(self, leader_id: int, epoch: int, endpoints: tuple[Endpoint, ...]) -> None:
        """Somebody leads an epoch (or, with -1, nobody that is known), and is reached there."""
        state = self.state
        if leader_id == state.local.id:
            # An earlier life of this node, which it has forgotten with its disk.
            self.learn_epoch(epoch)
        elif epoch > state.epoch:
            if leader_id >= 0 and endpoints:
                self._to_follower(epoch, leader_id, endpoints)
            else:
                self._to_unattached(epoch, leader_id)
        elif epoch == state.epoch and leader_id >= 0 and endpoints:
            if state.leader_id == NONE or (leader_id == state.leader_id and not state.leader_endpoints):
                self._to_follower(epoch, leader_id, endpoints)
            elif leader_id == state.leader_id and len(endpoints) > len(state.leader_endpoints):
                state.leader_endpoints = endpoints

    def leader_resigns(self, leader_id: int, successors: Sequence[ReplicaKey]) -> None:
        """EndQuorumEpoch: who comes first among the successors asks for votes at once, the others later."""
        state = self.state
        if state.role is not Role.FOLLOWER or state.leader_id != leader_id:
            return
        if not successors:
            # A leader that has only just started again: it knows nobody's progress.
            self._leader_unreachable(refused=True)
            return
        state.has_fetched = False
        longest_ms = self.timeouts.election_backoff_max_ms
        place = next((n for n, key in enumerate(successors) if VoterNode(key).matches(state.local)), None)
        backoff_ms = longest_ms
        if place is not None:
            backoff_ms = max(longest_ms >> len(successors) - 1, 1) << place - 1 if place > 0 else 0
        self._deadline_ms = self.now_ms + min(backoff_ms, longest_ms)

    # --- answers of others

    def _take_answer(self, send_id: int, response: Any) -> None:
        pending = self._pending.pop(send_id, None)
        if pending is None or self._fatal is not None:
            return
        if send_id == self._search:
            self._search = None
        node_id = pending.node.node_id
        self._in_flight.discard(node_id)
        generation = self._generation
        was_used = pending.handler(response, pending.node)
        if generation == self._generation:
            if was_used:
                self._backoffs.pop(node_id, None)
            else:
                self._back_off(node_id)

    def _back_off(self, node_id: int) -> None:
        """Leaves a node alone for a while, longer from time to time."""
        failures = self._backoffs[node_id].failures + 1 if node_id in self._backoffs else 1
        longest_ms = max(self.timeouts.retry_backoff_ms, self.timeouts.election_ms // 4)
        wait_ms = min(self.timeouts.retry_backoff_ms << min(failures - 1, MAX_DOUBLINGS), longest_ms)
        self._backoffs[node_id] = _Backoff(failures, self.now_ms + wait_ms)

    def _is_ready(self, node_id: int) -> bool:
        """May it be asked now? If not for its backoff alone, the core wakes up when it may."""
        if node_id in self._in_flight:
            return False
        backoff = self._backoffs.get(node_id)
        if backoff is None or self.now_ms >= backoff.until_ms:
            return True
        self._wake_ms = min(self._wake_ms, backoff.until_ms)
        return False

    def _handle_common_response(
        self, error: int, leader_id: int, epoch: int, endpoints: Sequence[f.NodeEndpoint | m.NodeEndpoint]
    ) -> bool | None:
        """What every answer says: who leads, and in which epoch. None: the rest of it is of use, too."""
        state = self.state
        if epoch < state.epoch or error == ErrorCode.UNKNOWN_LEADER_EPOCH or not state.believes_answer(epoch):
            return False
        named = next((e for e in endpoints if e.node_id == leader_id), None)
        where = state.voters.listeners(leader_id)
        if named is not None:
            where = (Endpoint(self.controller_listener, named.host, named.port),)
        was = (state.epoch, state.role)
        is_news = epoch > state.epoch or state.leader_id == NONE or not state.leader_endpoints
        if is_news or error in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER):
            self.learn_leader(leader_id if leader_id >= 0 else NONE, epoch, where)
        if error != ErrorCode.NONE:
            return (state.epoch, state.role) != was
        # The very answer by which an observer finds its leader may bring it records.
        return None if epoch == was[0] else True

    def _vote_answered(self, response: Any, node: Node) -> bool:
        if not isinstance(response, m.VoteResponse):
            return False
        state = self.state
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION and state.role is Role.PROSPECTIVE:
            # A voter that knows no pre-votes can only be asked for its vote.
            self._to_candidate()
            return True
        answer = _only([p for t in response.topics if t.topic_name == TOPIC for p in t.partitions])
        if response.error_code != ErrorCode.NONE or answer is None:
            return False
        was_used = self._handle_common_response(
            answer.error_code, answer.leader_id, answer.leader_epoch, response.node_endpoints
        )
        if was_used is not None:
            return was_used
        if state.role not in (Role.PROSPECTIVE, Role.CANDIDATE):
            return True
        state.unreachable -= {node.node_id}
        if answer.vote_granted:
            state.granted |= {node.node_id}
            state.rejected -= {node.node_id}
            return True
        state.rejected |= {node.node_id}
        return state.role is Role.CANDIDATE

    def _begin_answered(self, response: Any, node: Node) -> bool:
        if not isinstance(response, m.BeginQuorumEpochResponse):
            return False
        answer = _only([p for t in response.topics if t.topic_name == TOPIC for p in t.partitions])
        if response.error_code != ErrorCode.NONE or answer is None:
            return False
        was_used = self._handle_common_response(
            answer.error_code, answer.leader_id, answer.leader_epoch, response.node_endpoints
        )
        leader = self.state.leader
        if was_used is None and leader is not None and node.node_id in leader.voters:
            leader.voters[node.node_id].acknowledged = True
        return was_used is not False

    def _end_answered(self, response: Any, node: Node) -> bool:
        if not isinstance(response, m.EndQuorumEpochResponse):
            return False
        answer = _only([p for t in response.topics if t.topic_name == TOPIC for p in t.partitions])
        if response.error_code != ErrorCode.NONE or answer is None:
            return False
        was_used = self._handle_common_response(
            answer.error_code, answer.leader_id, answer.leader_epoch, response.node_endpoints
        )
        if was_used is None:
            self._unacknowledged.discard(node.node_id)
        return was_used is not False

    def _fetch_answered(self, response: Any, node: Node) -> bool:
        if not isinstance(response, f.FetchResponse) or response.error_code != ErrorCode.NONE:
            return False
        answer = _only(
            [p for t in response.responses if t.topic_id == METADATA_TOPIC_ID for p in t.partitions]
        )
        if answer is None:
            return False
        leader = answer.current_leader
        was_used = self._handle_common_response(
            answer.error_code, leader.leader_id, leader.leader_epoch, response.node_endpoints
        )
        if was_used is not None:
            return was_used
        if self.state.role is not Role.FOLLOWER:
            return False
        if answer.diverging_epoch.epoch >= 0:
            self._diverged(OffsetAndEpoch(answer.diverging_epoch.end_offset, answer.diverging_epoch.epoch))
        elif answer.snapshot_id.epoch >= 0 or answer.snapshot_id.end_offset >= 0:
            if not self._begin_snapshot(SnapshotId(answer.snapshot_id.end_offset, answer.snapshot_id.epoch)):
                return False
        else:
            if answer.records:
                self._ready.append = bytes(answer.records)
                self._ready.flush = self._must_flush()
            self._leader_high_watermark = max(self._leader_high_watermark, answer.high_watermark)
            self._log_changes = True
        self._leader_answered()
        return True

    def _leader_answered(self) -> None:
        self.state.has_fetched = True
        self._refusals = 0
        self._deadline_ms = self.now_ms + self.timeouts.fetch_ms

    def _diverged(self, place: OffsetAndEpoch) -> None:
        """The leader has only so much of an epoch: what this log has beyond that was never committed."""
        own = self.log.end_for_epoch(place.epoch)
        offset = min(own.offset, place.offset) if own.epoch == place.epoch else own.offset
        offset = min(offset, self.log.end.offset)
        snapshot = self.log.latest_snapshot
        committed = max(self.state.high_watermark, snapshot.end_offset if snapshot is not None else 0)
        if offset < committed:
            self._fail(
                f"leader {self.state.leader_id} of epoch {self.state.epoch} of the metadata quorum asks for truncation "
                f"to offset {offset}, but everything before {committed} is committed here"
            )
            return
        self._ready.truncate_to = offset
        self._flushed = min(self._flushed, offset)

    def _begin_snapshot(self, snapshot: SnapshotId) -> bool:
        """The leader no longer has the records that this log lacks."""
        if min(snapshot) < 0 or snapshot in (BOOTSTRAP_SNAPSHOT_ID, self.log.latest_snapshot):
            return False
        if snapshot.end_offset < self.state.high_watermark:
            self._fail(
                f"leader {self.state.leader_id} of epoch {self.state.epoch} of the metadata quorum sends the snapshot "
                f"{snapshot.file_name}, but everything before {self.state.high_watermark} is committed here"
            )
            return False
        self._snapshot, self._snapshot_position = snapshot, 0
        return True

    def _snapshot_answered(self, response: Any, node: Node) -> bool:
        snapshot, position = self._snapshot, self._snapshot_position
        # Whatever does not fit: a fetch says what to do instead.
        self._snapshot = None
        if not isinstance(response, m.FetchSnapshotResponse) or response.error_code != ErrorCode.NONE:
            return False
        answer = _only([p for t in response.topics if t.name == TOPIC for p in t.partitions])
        if answer is None:
            return False
        leader = answer.current_leader
        was_used = self._handle_common_response(
            answer.error_code, leader.leader_id, leader.leader_epoch, response.node_endpoints
        )
        if was_used is not None:
            return was_used
        data = bytes(answer.unaligned_records)
        named = SnapshotId(answer.snapshot_id.end_offset, answer.snapshot_id.epoch)
        if self.state.role is not Role.FOLLOWER or (named, answer.position) != (snapshot, position):
            return False
        if not data or position + len(data) > answer.size:
            return False
        self._ready.piece = SnapshotPiece(named, position, data, answer.size)
        if position + len(data) < answer.size:
            self._snapshot, self._snapshot_position = named, position + len(data)
        else:
            self._is_loading = True
        self._leader_answered()
        return True

    def _update_voter_answered(self, response: Any, node: Node) -> bool:
        if not isinstance(response, m.UpdateRaftVoterResponse):
            return False
        leader = response.current_leader
        endpoints = [m.NodeEndpoint(node_id=leader.leader_id, host=leader.host, port=leader.port)]
        error = response.error_code
        # Who does not know kraft.version 1 says this, and is reported to all the same.
        if error == ErrorCode.UNSUPPORTED_VERSION:
            error = ErrorCode.NONE
        was_used = self._handle_common_response(
            error, leader.leader_id, leader.leader_epoch, endpoints if leader.host else []
        )
        if was_used is None and self.state.role is Role.FOLLOWER:
            self._has_reported = True
            self._leader_answered()
        return was_used is not False

    def _change_answered(self, response: Any, node: Node) -> bool:
        """This node has asked to be added, or its old directory to be removed: the rest is in the log."""
        return isinstance(response, (m.AddRaftVoterResponse, m.RemoveRaftVoterResponse))

    # --- transitions

    def _become(
        self, role: Role, *, epoch: int, leader_id: int = NONE, endpoints: tuple[Endpoint, ...] = ()
    ) -> None:
        state, led = self.state, self.state.leader
        state.become(role, epoch=epoch, leader_id=leader_id, endpoints=endpoints)
        self._generation += 1
        self._search = None
        self._pending.clear()
        self._in_flight.clear()
        self._backoffs.clear()
        self._snapshot = None
        self._leader_high_watermark = UNKNOWN_OFFSET
        if led is not None:
            self._ready.resigned = True
            self._ready.leads = None
            # What it meant to append as leader was never there.
            self._ready.control = ()
            voter_changes.stopped_leading(self, led)
            for token, waiting in self._waiting.items():
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER
                self.answer(token, answers.fetch_error(self, error, waiting.how))
            self._waiting.clear()
            self._first_wait_ms = inf

    def _election_deadline(self) -> float:
        election_ms = self.timeouts.election_ms
        return self.now_ms + election_ms + self._draw(election_ms)

    def _to_unattached(self, epoch: int, leader_id: int = NONE) -> None:
        """Knows of an epoch, not where its leader is reached."""
        state = self.state
        # Whoever stands or waits already does not wait longer because others stand, too.
        keeps_waiting = state.role in (Role.UNATTACHED, Role.CANDIDATE, Role.RESIGNED) or (
            state.role is Role.PROSPECTIVE and not state.is_lost()
        )
        self._become(Role.UNATTACHED, epoch=epoch, leader_id=leader_id)
        if not state.is_voter:
            self._deadline_ms = inf
        elif state.is_only_voter:
            # Nobody else can lead: it waits for no time-out.
            self._deadline_ms = self.now_ms
        elif not keeps_waiting or self._deadline_ms == inf:
            self._deadline_ms = self._election_deadline()

    def _to_follower(self, epoch: int, leader_id: int, endpoints: tuple[Endpoint, ...]) -> None:
        """Follows the leader of an epoch."""
        assert leader_id != self.state.local.id, "nobody follows itself"
        is_news = (epoch, leader_id) != (self.state.epoch, self.state.leader_id)
        self._become(Role.FOLLOWER, epoch=epoch, leader_id=leader_id, endpoints=endpoints)
        self._deadline_ms = self.now_ms + self.timeouts.fetch_ms
        self._lost_elections = 0
        if is_news:
            self._refusals = 0
            self._has_reported = False
            # A few fetches come first.
            self._update_voter_ms = self.now_ms + self.timeouts.fetch_ms

    def _to_prospective(self) -> bool:
        state = self.state
        assert state.is_voter, "only a voter stands for election"
        self._become(
            Role.PROSPECTIVE, epoch=state.epoch, leader_id=state.leader_id, endpoints=state.leader_endpoints
        )
        state.granted = frozenset({state.local.id})
        self._deadline_ms = self._election_deadline()
        return True

    def _to_candidate(self) -> bool:
        """A new epoch, and its own vote is given."""
        state = self.state
        if state.epoch >= MAX_EPOCH:
            return self._out_of_epochs()
        self._become(Role.CANDIDATE, epoch=state.epoch + 1)
        state.voted = state.local
        state.granted = frozenset({state.local.id})
        self._deadline_ms = self._election_deadline()
        return True

    def _to_leader(self) -> None:
        """A majority has voted for it; its epoch begins with a record that says so."""
        state, granted, start = self.state, self.state.granted, self.log.end.offset
        assert state.has_majority(), "a leader has the votes of a majority"
        assert not self._is_disk_behind(), "a leader has its log on disk"
        self._become(Role.LEADER, epoch=state.epoch, leader_id=state.local.id, endpoints=self.local.listeners)
        state.voted = None
        self._lost_elections = 0
        leader = state.leader = LeaderState(state.local, state.voters, granted, start)
        leader.begin_epoch_ms = self.now_ms
        if state.kraft_version < RECONFIGURABLE:
            leader.volatile_voters = state.voters.updated(self.local, any_directory=True)
        self._reset_check_quorum(leader)
        self.append_control(self._start_of_epoch())

    def _start_of_epoch(self) -> list[tuple[ControlType, bytes]]:
        """Who leads, and the voters if the log lacks them or the leader has moved."""
        state, entry = self.state, self._entry
        assert state.leader is not None
        message = LeaderChangeMessage(
            version=0,
            leader_id=state.local.id,
            voters=[LeaderChangeMessageVoter(voter_id=voter) for voter in sorted(state.voters.ids)],
            granting_voters=[LeaderChangeMessageVoter(voter_id=v) for v in sorted(state.leader.granted)],
        )
        records = [(ControlType.LEADER_CHANGE, encode(message, 0))]
        moved = state.voters.needs_update(self.local)
        if entry.kraft_version >= RECONFIGURABLE and (entry.voters_offset == NOT_IN_LOG or moved):
            voters = state.voters.updated(self.local)
            assert voters is not None, "a leader is a voter when its epoch begins"
            version = KRaftVersionRecord(version=0, kraft_version=entry.kraft_version)
            records.append((ControlType.KRAFT_VERSION, encode(version, 0)))
            records.append((ControlType.KRAFT_VOTERS, encode(voters.to_record(), 0)))
        return records

    def _to_resigned(self) -> None:
        """Stops leading, in the same epoch."""
        state = self.state
        assert state.leader is not None
        successors = state.leader.successors()
        self._become(
            Role.RESIGNED, epoch=state.epoch, leader_id=state.local.id, endpoints=self.local.listeners
        )
        self._successors = successors
        self._unacknowledged = set(state.voters.ids - {state.local.id})
        self._deadline_ms = self._election_deadline()

    def _out_of_epochs(self) -> bool:
        self._fail(f"epoch {self.state.epoch} of the metadata quorum is the last there is")
        return False

    def _fail(self, reason: str) -> None:
        self._fatal = self._ready.fatal = reason
        self._wake_ms = inf

    # --- requests

    def _node(self, node_id: int, endpoints: Sequence[Endpoint]) -> Node | None:
        for endpoint in endpoints:
            if endpoint.listener == self.controller_listener:
                return Node(node_id, endpoint.host, endpoint.port)
        return None

    def _voter_node(self, node_id: int) -> Node | None:
        return self._node(node_id, self.state.voters.listeners(node_id))

    def _fetch_request(self, max_wait_ms: int) -> f.FetchRequest:
        state, end = self.state, self.log.end
        asked = f.FetchPartition(
            partition=PARTITION,
            current_leader_epoch=state.epoch,
            fetch_offset=end.offset,
            last_fetched_epoch=end.epoch,
            partition_max_bytes=0,
            replica_directory_id=state.local.directory_id,
            high_watermark=state.high_watermark,
        )
        return f.FetchRequest(
            cluster_id=self.cluster_id,
            replica_state=f.ReplicaState(replica_id=state.local.id),
            max_wait_ms=max_wait_ms,
            min_bytes=0,
            max_bytes=self._fetch_bytes,
            topics=[f.FetchTopic(topic=TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[asked])],
        )

    def _fetch_snapshot_request(self, snapshot: SnapshotId) -> m.FetchSnapshotRequest:
        asked = m.FetchSnapshotRequestPartitionSnapshot(
            partition=PARTITION,
            current_leader_epoch=self.state.epoch,
            snapshot_id=m.SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
            position=self._snapshot_position,
            replica_directory_id=self.state.local.directory_id,
        )
        return m.FetchSnapshotRequest(
            cluster_id=self.cluster_id,
            replica_id=self.state.local.id,
            max_bytes=self._fetch_snapshot_bytes,
            topics=[m.FetchSnapshotRequestTopicSnapshot(name=TOPIC, partitions=[asked])],
        )

    def _begin_request(self, node_id: int) -> m.BeginQuorumEpochRequest:
        state = self.state
        claim = m.BeginQuorumEpochRequestPartitionData(
            partition_index=PARTITION,
            voter_directory_id=state.voters.voters[node_id].key.directory_id,
            leader_id=state.local.id,
            leader_epoch=state.epoch,
        )
        return m.BeginQuorumEpochRequest(
            cluster_id=self.cluster_id,
            voter_id=node_id,
            topics=[m.BeginQuorumEpochRequestTopicData(topic_name=TOPIC, partitions=[claim])],
            leader_endpoints=[
                m.LeaderEndpoint(name=e.listener, host=e.host, port=e.port) for e in self.local.listeners
            ],
        )

    def _end_request(self) -> m.EndQuorumEpochRequest:
        successors = self._successors
        claim = m.EndQuorumEpochRequestPartitionData(
            partition_index=PARTITION,
            leader_id=self.state.local.id,
            leader_epoch=self.state.epoch,
            preferred_successors=[key.id for key in successors],
            preferred_candidates=[
                m.ReplicaInfo(candidate_id=key.id, candidate_directory_id=key.directory_id)
                for key in successors
            ],
        )
        return m.EndQuorumEpochRequest(
            cluster_id=self.cluster_id,
            topics=[m.EndQuorumEpochRequestTopicData(topic_name=TOPIC, partitions=[claim])],
            leader_endpoints=[
                m.LeaderEndpoint(name=e.listener, host=e.host, port=e.port) for e in self.local.listeners
            ],
        )

    def _update_voter_request(self) -> m.UpdateRaftVoterRequest:
        local = self.local
        return m.UpdateRaftVoterRequest(
            cluster_id=self.cluster_id,
            current_leader_epoch=self.state.epoch,
            voter_id=local.key.id,
            voter_directory_id=local.key.directory_id,
            listeners=[m.Listener(name=e.listener, host=e.host, port=e.port) for e in local.listeners],
            kraft_version_feature=m.KRaftVersionFeature(
                min_supported_version=local.kraft_versions.min, max_supported_version=local.kraft_versions.max
            ),
        )


def _only(partitions: Sequence[Any]) -> Any:
    """The one partition that an answer is about; None if it is about anything else."""
    if len(partitions) != 1:
        return None
    partition = partitions[0]
    index = partition.index if hasattr(partition, "index") else partition.partition_index
    return partition if index == PARTITION else None


_NOTHING: Final = Ready()
_ACTS: Final[dict[Role, Callable[[RaftCore], bool]]] = {
    Role.UNATTACHED: RaftCore._unattached,
    Role.PROSPECTIVE: RaftCore._prospective,
    Role.CANDIDATE: RaftCore._candidate,
    Role.FOLLOWER: RaftCore._follower,
    Role.LEADER: RaftCore._leader,
    Role.RESIGNED: RaftCore._resigned,
}
