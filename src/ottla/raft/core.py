"""The raft core (Kafka's QuorumState; KIP-595, KIP-853, KIP-996): roles, epochs, votes, high watermark; pure.

Purpose: every rule of the quorum in one place that a simulation can drive. Rules: a QuorumState never
changes; a function takes one, with `now_ms` and the log's end where it needs them, and gives the next. No
clock, no file, no socket. The driver compares `election` before and after, and puts a difference on disk
before anyone hears of it. Nothing here assumes how many voters there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from ottla.model.errors import ErrorCode
from ottla.raft.quorum_state import MAX_EPOCH, NONE, ElectionState
from ottla.raft.voters import ReplicaKey, VoterSet

# After this long without a fetch an observer is forgotten.
OBSERVER_SESSION_TIMEOUT_MS = 300_000
UNKNOWN_OFFSET = -1
# An election takes the next epoch, and there are 2^31. Whoever reaches the controller's listener may claim any: one
# beyond this is believed by nobody, so that whatever is claimed, 16 million elections are left, one for each start.
MAX_CLAIMED_EPOCH: Final = MAX_EPOCH - (1 << 24)


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
    Role.PROSPECTIVE: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE, Role.CANDIDATE}),
    Role.CANDIDATE: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE, Role.LEADER}),
    Role.LEADER: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.RESIGNED}),
    Role.RESIGNED: frozenset({Role.UNATTACHED, Role.FOLLOWER, Role.PROSPECTIVE}),
}


class OffsetAndEpoch(NamedTuple):
    """A place in the log; orders logs by who knows more."""

    offset: int
    epoch: int

    def up_to_date_with(self, other: "OffsetAndEpoch") -> bool:
        """Does a log that ends here hold all that one ending at `other` may have committed?"""
        return (self.epoch, self.offset) >= (other.epoch, other.offset)


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """How far the leader knows a replica to be; for a voter the offset is one that is on its disk."""

    end_offset: int = UNKNOWN_OFFSET
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    leader_end_at_last_fetch: int = -1


@dataclass(frozen=True, slots=True)
class QuorumState:
    """One replica's view of the quorum."""

    local: ReplicaKey
    voters: VoterSet
    role: Role = Role.UNATTACHED
    epoch: int = 0
    leader_id: int = NONE
    voted: ReplicaKey | None = None
    high_watermark: int = UNKNOWN_OFFSET
    # Of an election in progress.
    granted: frozenset[int] = frozenset()
    rejected: frozenset[int] = frozenset()
    # Of a leader. Nothing of an earlier epoch is committed before something of this one is.
    epoch_start_offset: int = UNKNOWN_OFFSET
    progress: Mapping[ReplicaKey, ReplicaProgress] = field(default_factory=dict)
    # Of a follower: has the leader answered a fetch yet? Then its pre-votes are not for others.
    has_fetched: bool = False

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_only_voter(self) -> bool:
        return self.voters.is_only_voter(self.local)

    @property
    def election(self) -> ElectionState:
        """What must be on disk for this state to be shown to anyone."""
        return ElectionState(self.epoch, self.leader_id, self.voted, self.voters.ids)


def _become(state: QuorumState, role: Role, **changes: object) -> QuorumState:
    assert role in TRANSITIONS[state.role], f"{state.role} does not become {role}"
    fresh: dict[str, object] = {
        "granted": frozenset(),
        "rejected": frozenset(),
        "epoch_start_offset": UNKNOWN_OFFSET,
        "progress": {},
        "has_fetched": False,
    }
    return replace(state, role=role, **(fresh | changes))  # type: ignore[arg-type]


def initial_state(
    local: ReplicaKey, voters: VoterSet, stored: ElectionState | None, log_end: OffsetAndEpoch
) -> QuorumState:
    """The state after a start. Who was leader does not know what was decided since: it has resigned."""
    state = QuorumState(local, voters)
    if stored is None or stored.epoch < log_end.epoch:
        return replace(state, epoch=log_end.epoch)
    state = replace(state, epoch=stored.epoch, voted=stored.voted)
    if stored.leader_id == local.id:
        return replace(state, role=Role.RESIGNED, leader_id=local.id, voted=None)
    if stored.voted is not None and stored.voted.id == local.id:
        return replace(state, role=Role.CANDIDATE, granted=frozenset({local.id}))
    if stored.leader_id != NONE and voters.listeners(stored.leader_id):
        return replace(state, role=Role.FOLLOWER, leader_id=stored.leader_id)
    return replace(state, leader_id=stored.leader_id)


# --- elections


def to_prospective(state: QuorumState) -> QuorumState:
    """Asks whether it would be elected, without yet disturbing the epoch (pre-vote, KIP-996)."""
    assert state.voters.contains(state.local), "only a voter stands for election"
    return _become(state, Role.PROSPECTIVE, granted=frozenset({state.local.id}))


def to_candidate(state: QuorumState) -> QuorumState:
    """Stands for election: a new epoch, and its own vote is given."""
    assert state.epoch < MAX_EPOCH, "there is a next epoch"
    return _become(
        state,
        Role.CANDIDATE,
        epoch=state.epoch + 1,
        leader_id=NONE,
        voted=state.local,
        granted=frozenset({state.local.id}),
    )


def to_leader(state: QuorumState, log_end_offset: int) -> QuorumState:
    """Leads its epoch: a majority has voted for it."""
    assert has_majority(state), "a leader has the votes of a majority"
    return replace(
        _become(state, Role.LEADER),
        leader_id=state.local.id,
        voted=None,
        granted=state.granted,
        epoch_start_offset=log_end_offset,
    )


def to_resigned(state: QuorumState) -> QuorumState:
    """Stops leading, in the same epoch."""
    return _become(state, Role.RESIGNED)


def to_unattached(state: QuorumState, epoch: int, leader_id: int = NONE) -> QuorumState:
    """Has heard of an epoch, not of its leader."""
    assert epoch > state.epoch or (epoch == state.epoch and state.role is Role.PROSPECTIVE)
    voted = state.voted if epoch == state.epoch else None
    return _become(state, Role.UNATTACHED, epoch=epoch, leader_id=leader_id, voted=voted)


def to_follower(state: QuorumState, epoch: int, leader_id: int) -> QuorumState:
    """Follows the leader of an epoch."""
    assert epoch > state.epoch or (epoch == state.epoch and state.leader_id in (NONE, leader_id))
    assert leader_id != state.local.id, "nobody follows itself"
    voted = state.voted if epoch == state.epoch else None
    return _become(state, Role.FOLLOWER, epoch=epoch, leader_id=leader_id, voted=voted)


def has_majority(state: QuorumState) -> bool:
    """Have enough voters said yes?"""
    return len(state.granted & state.voters.ids) >= state.voters.majority


def vote_received(state: QuorumState, voter_id: int, granted: bool) -> QuorumState:
    """Counts an answer to the election in progress."""
    assert state.role in (Role.PROSPECTIVE, Role.CANDIDATE)
    if granted:
        return replace(state, granted=state.granted | {voter_id})
    return replace(state, rejected=state.rejected | {voter_id})


def can_grant_vote(
    state: QuorumState, candidate: ReplicaKey, log_is_up_to_date: bool, pre_vote: bool
) -> bool:
    """Would this replica vote for the candidate in its current epoch?"""
    if state.role is Role.LEADER:
        return False
    if state.role is Role.FOLLOWER:
        return pre_vote and not state.has_fetched and log_is_up_to_date
    if state.role in (Role.CANDIDATE, Role.RESIGNED) or pre_vote:
        return pre_vote and log_is_up_to_date
    if state.voted is not None:
        same = state.voted.id == candidate.id
        return same and state.voted.directory_id in (ReplicaKey(0).directory_id, candidate.directory_id)
    return state.leader_id == NONE and log_is_up_to_date


def grant_vote(state: QuorumState, candidate: ReplicaKey) -> QuorumState:
    """Remembers the vote; there is one in an epoch."""
    if state.role in (Role.UNATTACHED, Role.PROSPECTIVE) and state.voted is None:
        return replace(state, voted=candidate)
    return state


def start_election(state: QuorumState, log_end_offset: int) -> QuorumState:
    """An election timeout: goes as far as its votes carry it, a sole voter all the way."""
    if state.role is not Role.CANDIDATE:
        state = to_prospective(state)
    if state.role is Role.PROSPECTIVE and has_majority(state):
        state = to_candidate(state)
    if state.role is Role.CANDIDATE and has_majority(state):
        state = to_leader(state, log_end_offset)
    return state


# --- the leader's progress


def progress_of(state: QuorumState, replica: ReplicaKey) -> ReplicaProgress:
    return state.progress.get(_progress_key(state, replica), ReplicaProgress())


def _progress_key(state: QuorumState, replica: ReplicaKey) -> ReplicaKey:
    """A voter is known under the key of the voter set, even where it names no directory."""
    return state.voters.voters[replica.id].key if state.voters.contains(replica) else replica


def local_flushed(state: QuorumState, end_offset: int) -> QuorumState:
    """The leader's own log is on disk up to here."""
    assert state.is_leader
    key = _progress_key(state, state.local)
    progress = state.progress.get(key, ReplicaProgress())
    assert end_offset >= progress.end_offset, "what is on disk does not shrink"
    changed = {**state.progress, key: replace(progress, end_offset=end_offset)}
    return _advance(replace(state, progress=changed))


def replica_fetched(state: QuorumState, replica: ReplicaKey, offset: int, now_ms: int) -> QuorumState:
    """A replica asks for what comes after `offset`: up to there it has everything."""
    assert state.is_leader
    if replica.id < 0 or replica.id == state.local.id:
        return state
    leader_end = progress_of(state, state.local).end_offset
    key = _progress_key(state, replica)
    before = state.progress.get(key, ReplicaProgress())
    caught_up = before.last_caught_up_ms
    if offset >= leader_end:
        caught_up = max(caught_up, now_ms)
    elif 0 < before.leader_end_at_last_fetch <= offset:
        caught_up = max(caught_up, before.last_fetch_ms)
    after = ReplicaProgress(offset, max(before.last_fetch_ms, now_ms), caught_up, leader_end)
    return _advance(replace(state, progress={**state.progress, key: after}))


def _advance(state: QuorumState) -> QuorumState:
    """The high watermark is what a majority of voters has on disk, once that is of this epoch."""
    ends = sorted(
        (
            state.progress.get(voter.key, ReplicaProgress()).end_offset
            for voter in state.voters.voters.values()
        ),
        reverse=True,
    )
    candidate = ends[len(ends) // 2]
    if candidate > state.epoch_start_offset and candidate > state.high_watermark:
        return replace(state, high_watermark=candidate)
    return state


def observers(state: QuorumState, now_ms: int) -> dict[ReplicaKey, ReplicaProgress]:
    """Those who fetch without a vote, and have done so lately."""
    return {
        key: progress
        for key, progress in state.progress.items()
        if not state.voters.contains(key) and now_ms - progress.last_fetch_ms < OBSERVER_SESSION_TIMEOUT_MS
    }


def without_inactive_observers(state: QuorumState, now_ms: int) -> QuorumState:
    """Forgets observers that have gone."""
    kept = observers(state, now_ms)
    gone = [k for k in state.progress if not state.voters.contains(k) and k not in kept]
    if not gone:
        return state
    return replace(state, progress={k: p for k, p in state.progress.items() if k not in gone})


# --- who may ask what


def voter_request_error(state: QuorumState, remote_id: int, epoch: int) -> ErrorCode | None:
    """Why a Vote, BeginQuorumEpoch or EndQuorumEpoch is refused."""
    if epoch < state.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > max(state.epoch, MAX_CLAIMED_EPOCH):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.INVALID_REQUEST if remote_id < 0 else None


def leader_request_error(state: QuorumState, epoch: int) -> ErrorCode | None:
    """Why a Fetch or FetchSnapshot is refused."""
    if epoch < state.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > state.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return None if state.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
