"""Kafka's QuorumState and LeaderState: what a replica of the metadata log is, knows and has promised.

Purpose: the rules of the quorum that need no time-outs: who may become what, who gets a vote, what is committed
(KIP-595, KIP-853, KIP-996). Rules: no clock, no file, no socket, no chance; nothing here assumes how many voters there
are. Changed by the RaftCore alone; everybody else reads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from ottla.metadata.registrations import Endpoint
from ottla.model.errors import ErrorCode
from ottla.model.ids import ZERO_UUID
from ottla.net.peers import Node
from ottla.raft.log_view import LogView, OffsetAndEpoch
from ottla.raft.quorum_state import MAX_EPOCH, NONE, ElectionState
from ottla.raft.voters import ReplicaKey, VoterNode, VoterSet
from ottla.records.control import ControlType
from ottla.wire.messages.nodes.raft import AddRaftVoterResponse, RemoveRaftVoterResponse

# After this long without a fetch an observer is forgotten.
OBSERVER_SESSION_TIMEOUT_MS: Final = 300_000
# More observers than this are not remembered: the one that has not fetched for longest goes.
MAX_OBSERVERS: Final = 10_000
# An observer that has caught up and fetched within this time may become a voter.
CAUGHT_UP_WITHIN_MS: Final = 3_600_000
UNKNOWN_OFFSET: Final = -1
# An election takes the next epoch, and there are 2^31. Whoever reaches the controller's listener may claim any, so none
# beyond this is believed at once: whatever is claimed, 16 million elections are left. Beyond it epochs come one by one,
# and only to a replica without a leader: a real candidate asks when a majority has lost theirs (KIP-996).
MAX_CLAIMED_EPOCH: Final = MAX_EPOCH - (1 << 24)
# How many elections beyond MAX_CLAIMED_EPOCH a replica may have missed: so much is believed of a voter that it asked.
MISSED_EPOCHS: Final = 1 << 16


class Role(Enum):
    """What a replica of the metadata log is at the moment."""

    UNATTACHED = "Unattached"
    FOLLOWER = "Follower"
    PROSPECTIVE = "Prospective"
    CANDIDATE = "Candidate"
    LEADER = "Leader"
    RESIGNED = "Resigned"


# From which role to which; to UNATTACHED and FOLLOWER always with news of a leader or of a higher epoch.
TRANSITIONS: Mapping[Role, frozenset[Role]] = {
    Role.UNATTACHED: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE}),
    Role.FOLLOWER: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE}),
    Role.PROSPECTIVE: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.CANDIDATE}),
    Role.CANDIDATE: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE, Role.LEADER}),
    Role.LEADER: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.RESIGNED}),
    Role.RESIGNED: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE}),
}


@dataclass(slots=True)
class ReplicaProgress:
    """How far the leader knows a replica to be; for a voter the offset is one that is on its disk."""

    end_offset: int = UNKNOWN_OFFSET
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    leader_end_at_last_fetch: int = -1
    # Has it answered BeginQuorumEpoch, or fetched?
    acknowledged: bool = False

    def fetched(self, offset: int, leader_end: int, now_ms: int) -> None:
        """It asks for what comes after `offset`: up to there it has everything."""
        if offset >= leader_end:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif 0 < self.leader_end_at_last_fetch <= offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.end_offset = offset
        self.last_fetch_ms = max(self.last_fetch_ms, now_ms)
        self.leader_end_at_last_fetch = leader_end
        self.acknowledged = True


@dataclass(slots=True)
class VoterChange:
    """A voter that is being added or removed."""

    # What the answer is made with, and the token it is for; None once it has been given.
    response: type[AddRaftVoterResponse] | type[RemoveRaftVoterResponse]
    token: int | None
    voter: VoterNode
    ack_when_committed: bool
    deadline_ms: float
    # Of the record with the new voters; None before it is appended.
    offset: int | None = None


class LeaderState:
    """What a replica knows while it leads, and forgets when it stops."""

    __slots__ = (
        "begin_epoch_ms",
        "change",
        "check_quorum_ms",
        "epoch_start_offset",
        "fetched_voters",
        "granted",
        "has_committed",
        "local",
        "observers",
        "volatile_voters",
        "voter_set",
        "voters",
    )

    def __init__(
        self, local: ReplicaKey, voter_set: VoterSet, granted: frozenset[int], epoch_start_offset: int
    ) -> None:
        self.local = local
        self.epoch_start_offset = epoch_start_offset
        self.granted = granted
        self.voter_set = voter_set
        # By node id; the keys are those of the voter set.
        self.voters = {node: ReplicaProgress() for node in voter_set.voters}
        # The one that has not fetched for longest comes first.
        self.observers: dict[ReplicaKey, ReplicaProgress] = {}
        # Nothing of an earlier epoch is committed before something of this one is.
        self.has_committed = False
        # Of the majority that has to fetch before check_quorum_ms, those who have.
        self.fetched_voters: set[int] = set()
        self.check_quorum_ms: float = 0
        self.begin_epoch_ms: float = 0
        # The one change of the voters that is under way.
        self.change: VoterChange | None = None
        # With kraft.version 0: what the static voters have reported of themselves, for the upgrade to 1.
        self.volatile_voters: VoterSet | None = None

    # --- voters and observers

    def adopt(self, voter_set: VoterSet) -> None:
        """The log names other voters: a voter that was an observer keeps its progress, and the other way round."""
        before, before_set = self.voters, self.voter_set
        self.voter_set = voter_set
        self.voters = {}
        for node, voter in voter_set.voters.items():
            if node in before and before_set.voters[node].matches(voter.key):
                self.voters[node] = before.pop(node)
            else:
                self.voters[node] = self.observers.pop(voter.key, ReplicaProgress())
        for node, progress in before.items():
            key = before_set.voters[node].key
            if key != self.local:
                self.observers[key] = progress
        self.fetched_voters &= self.voters.keys()

    def progress_of(self, replica: ReplicaKey) -> ReplicaProgress | None:
        if self.voter_set.contains(replica):
            return self.voters[replica.id]
        return self.observers.get(replica)

    def fetched(self, replica: ReplicaKey, offset: int, leader_end: int, now_ms: int) -> bool:
        """A replica asks for what comes after `offset`; gives whether it is a voter."""
        if self.voter_set.contains(replica):
            self.voters[replica.id].fetched(offset, leader_end, now_ms)
            return True
        progress = self.observers.pop(replica, None)
        if progress is None:
            progress = ReplicaProgress()
            if len(self.observers) >= MAX_OBSERVERS:
                del self.observers[next(iter(self.observers))]
        progress.fetched(offset, leader_end, now_ms)
        self.observers[replica] = progress
        return False

    def active_observers(self, now_ms: int) -> dict[ReplicaKey, ReplicaProgress]:
        """Those who fetch without a vote, and have done so lately; the others are forgotten."""
        gone = now_ms - OBSERVER_SESSION_TIMEOUT_MS
        self.observers = {key: seen for key, seen in self.observers.items() if seen.last_fetch_ms > gone}
        return self.observers

    def has_caught_up(self, replica: ReplicaKey, now_ms: int) -> bool:
        """May this observer become a voter without holding up what is committed?"""
        progress = self.observers.get(replica)
        if progress is None or progress.last_caught_up_ms <= 0:
            return False
        return progress.last_fetch_ms > now_ms - CAUGHT_UP_WITHIN_MS

    # --- what follows from it

    def majority_end(self) -> int:
        """Up to where a majority of the voters has the log on disk."""
        ends = sorted([progress.end_offset for progress in self.voters.values()], reverse=True)
        return ends[len(ends) // 2]

    def has_majority_fetched(self) -> bool:
        """Have enough voters fetched since check_quorum_ms was set? The leader counts if it is a voter."""
        others = self.voter_set.majority - (1 if self.voter_set.contains(self.local) else 0)
        return len(self.fetched_voters) >= others

    def successors(self) -> list[ReplicaKey]:
        """The other voters, those who know most first."""
        others = [voter.key for voter in self.voter_set.voters.values() if not voter.matches(self.local)]
        return sorted(others, key=lambda key: (-self.voters[key.id].end_offset, key))


class QuorumState:
    """One replica's view of the quorum."""

    __slots__ = (
        "epoch",
        "granted",
        "has_fetched",
        "high_watermark",
        "is_voter",
        "kraft_version",
        "leader",
        "leader_endpoints",
        "leader_id",
        "local",
        "rejected",
        "role",
        "unreachable",
        "voted",
        "voters",
    )

    def __init__(
        self,
        local: ReplicaKey,
        voters: VoterSet,
        *,
        role: Role = Role.UNATTACHED,
        epoch: int = 0,
        leader_id: int = NONE,
        voted: ReplicaKey | None = None,
    ) -> None:
        self.local = local
        self.role = role
        self.epoch = epoch
        self.leader_id = leader_id
        # Where the leader is reached; nothing where that is not known.
        self.leader_endpoints: tuple[Endpoint, ...] = ()
        self.voted = voted
        # Up to where this replica knows the log to be committed; it never goes back.
        self.high_watermark = UNKNOWN_OFFSET
        self.kraft_version = 0
        # Of an election in progress: who said yes, who no, and at whose port nobody listens.
        self.granted: frozenset[int] = frozenset()
        self.rejected: frozenset[int] = frozenset()
        self.unreachable: frozenset[int] = frozenset()
        # Of a follower: does the leader answer its fetches? Then its pre-votes are not for others.
        self.has_fetched = False
        # Of the leader.
        self.leader: LeaderState | None = None
        self.adopt(voters)

    def adopt(self, voters: VoterSet) -> None:
        self.voters = voters
        self.is_voter = voters.contains(self.local)
        if self.leader is not None:
            self.leader.adopt(voters)

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_only_voter(self) -> bool:
        return self.is_voter and len(self.voters.voters) == 1

    @property
    def election(self) -> ElectionState:
        """What must be on disk for this state to be shown to anyone."""
        return ElectionState(self.epoch, self.leader_id, self.voted, self.voters.ids)

    @property
    def shown_high_watermark(self) -> int:
        """What a leader answers: -1 before its epoch has committed, for an earlier one may have answered more."""
        if self.leader is None or not self.leader.has_committed:
            return UNKNOWN_OFFSET
        return self.high_watermark

    def become(
        self, role: Role, *, epoch: int, leader_id: int = NONE, endpoints: tuple[Endpoint, ...] = ()
    ) -> None:
        """The only way a role changes. A vote belongs to its epoch."""
        assert role in TRANSITIONS[self.role], f"{self.role} does not become {role}"
        assert epoch >= self.epoch, "epochs never go back"
        if epoch > self.epoch:
            self.voted = None
        self.role = role
        self.epoch = epoch
        self.leader_id = leader_id
        self.leader_endpoints = endpoints
        self.granted = self.rejected = self.unreachable = frozenset()
        self.has_fetched = False
        self.leader = None

    # --- votes

    def can_grant_vote(self, candidate: ReplicaKey, log_is_up_to_date: bool, pre_vote: bool) -> bool:
        """Would this replica vote for the candidate in its current epoch?"""
        if self.role is Role.LEADER:
            return False
        if self.role is Role.FOLLOWER:
            return pre_vote and not self.has_fetched and log_is_up_to_date
        if self.role in (Role.CANDIDATE, Role.RESIGNED) or pre_vote:
            return pre_vote and log_is_up_to_date
        if self.voted is not None:
            same = self.voted.id == candidate.id
            return same and self.voted.directory_id in (ZERO_UUID, candidate.directory_id)
        return self.leader_id == NONE and log_is_up_to_date

    def has_majority(self) -> bool:
        """Have enough voters said yes?"""
        return len(self.granted & self.voters.ids) >= self.voters.majority

    def is_lost(self) -> bool:
        """Can it no longer win, unless somebody starts whose port refuses connections now?"""
        against = (self.rejected | self.unreachable) & self.voters.ids
        return len(self.voters.ids) - len(against) < self.voters.majority

    # --- who may ask what

    def voter_request_error(self, remote_id: int, epoch: int) -> ErrorCode | None:
        """Why a Vote, BeginQuorumEpoch or EndQuorumEpoch is refused."""
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if not self.believes_claim(epoch):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.INVALID_REQUEST if remote_id < 0 else None

    def leader_request_error(self, epoch: int) -> ErrorCode | None:
        """Why a Fetch or FetchSnapshot is refused."""
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return None if self.role is Role.LEADER else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def believes_claim(self, epoch: int) -> bool:
        """Of whoever sends a request."""
        if epoch <= MAX_CLAIMED_EPOCH or epoch <= self.epoch:
            return True
        has_leader = self.role is Role.LEADER or self.has_fetched
        return not has_leader and epoch <= max(self.epoch, MAX_CLAIMED_EPOCH) + 1

    def believes_answer(self, epoch: int) -> bool:
        """Of a voter that this replica has asked."""
        return epoch <= max(self.epoch, MAX_CLAIMED_EPOCH) + MISSED_EPOCHS


def initial_state(
    local: ReplicaKey, voters: VoterSet, stored: ElectionState | None, log_end: OffsetAndEpoch
) -> QuorumState:
    """The state after a start. Who was leader does not know what was decided since: it has resigned."""
    if stored is None or stored.epoch < log_end.epoch:
        return QuorumState(local, voters, epoch=log_end.epoch)
    state = QuorumState(local, voters, epoch=stored.epoch, voted=stored.voted, leader_id=stored.leader_id)
    if stored.leader_id == local.id:
        state.role, state.voted = Role.RESIGNED, None
    elif stored.leader_id != NONE:
        state.leader_endpoints = voters.listeners(stored.leader_id)
        state.role = Role.FOLLOWER if state.leader_endpoints else Role.UNATTACHED
    elif stored.voted is not None and VoterNode(stored.voted).matches(local) and state.is_voter:
        state.role, state.granted = Role.CANDIDATE, frozenset({local.id})
    return state


# --- what the requests of others may change


class Timeouts(NamedTuple):
    """The keys controller.quorum.*, with Kafka's defaults."""

    election_ms: int = 1_000
    fetch_ms: int = 2_000
    election_backoff_max_ms: int = 1_000
    request_ms: int = 2_000
    retry_backoff_ms: int = 20
    # What a fetch asks the leader to wait for something new.
    max_fetch_wait_ms: int = 500


# Takes the response, or None where none came; gives False if the node should be left alone for a while.
Handler = Callable[[Any, Node], bool]


class Replica(Protocol):
    """The RaftCore, as answers and changes of the voters see it."""

    state: QuorumState
    log: LogView
    cluster_id: str
    controller_listener: str
    timeouts: Timeouts
    now_ms: int

    def is_foreign(self, cluster_id: str | None) -> bool: ...
    def asked_for_vote(self, candidate: ReplicaKey, its_end: OffsetAndEpoch, pre_vote: bool) -> bool: ...
    def learn_epoch(self, epoch: int) -> None: ...
    def learn_leader(self, leader_id: int, epoch: int, endpoints: tuple[Endpoint, ...]) -> None: ...
    def leader_resigns(self, leader_id: int, successors: Sequence[ReplicaKey]) -> None: ...
    def replica_fetched(self, replica: ReplicaKey, offset: int) -> None: ...
    def update_check_quorum(self, replica: ReplicaKey) -> None: ...
    def answer(self, token: int, response: Any) -> None: ...
    def ask(self, node: Node, request: Any, handler: Handler) -> bool: ...
    def append_control(self, records: Sequence[tuple[ControlType, bytes]]) -> int: ...
