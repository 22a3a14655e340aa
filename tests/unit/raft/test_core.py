"""The raft core: elections, votes and the high watermark, for one voter and for three."""

from dataclasses import replace

import pytest

from ottla.metadata.registrations import Endpoint
from ottla.model.errors import ErrorCode
from ottla.raft import core
from ottla.raft.core import OffsetAndEpoch, QuorumState, Role
from ottla.raft.quorum_state import ElectionState
from ottla.raft.voters import ReplicaKey, VoterNode, VoterSet

DIRECTORIES = {n: bytes([n] * 16) for n in range(1, 6)}
KEYS = {n: ReplicaKey(n, DIRECTORIES[n]) for n in DIRECTORIES}


def voters(*ids: int) -> VoterSet:
    return VoterSet.of(*(VoterNode(KEYS[n], (Endpoint("C", "h", n),)) for n in ids))


def leader(*ids: int, start: int = 0) -> QuorumState:
    state = core.to_candidate(core.to_prospective(QuorumState(KEYS[1], voters(*ids))))
    for voter in ids[: len(ids) // 2 + 1]:
        state = core.vote_received(state, voter, granted=True)
    return core.to_leader(state, start)


def test_a_sole_voter_is_elected_at_once() -> None:
    state = core.start_election(QuorumState(KEYS[1], voters(1), epoch=4), 100)
    assert state.role is Role.LEADER
    assert (state.epoch, state.leader_id, state.epoch_start_offset) == (5, 1, 100)
    assert state.election == ElectionState(5, 1, None, frozenset({1}))


def test_one_of_three_needs_another_vote() -> None:
    state = core.start_election(QuorumState(KEYS[1], voters(1, 2, 3), epoch=4), 100)
    assert state.role is Role.PROSPECTIVE
    assert state.epoch == 4
    state = core.to_candidate(core.vote_received(state, 2, granted=True))
    assert (state.epoch, state.voted) == (5, KEYS[1])
    assert not core.has_majority(state)
    assert core.has_majority(core.vote_received(state, 3, granted=True))
    assert not core.has_majority(core.vote_received(state, 3, granted=False))
    assert not core.has_majority(core.vote_received(state, 4, granted=True)), "4 has no vote"


def test_roles_change_only_as_the_table_says() -> None:
    with pytest.raises(AssertionError):
        core.to_candidate(QuorumState(KEYS[1], voters(1)))
    with pytest.raises(AssertionError):
        core.to_prospective(leader(1))
    with pytest.raises(AssertionError):
        core.to_leader(
            replace(core.to_candidate(core.to_prospective(QuorumState(KEYS[1], voters(1, 2, 3))))), 0
        )


def test_who_was_leader_has_resigned_after_a_start() -> None:
    state = core.initial_state(KEYS[1], voters(1), ElectionState(7, 1), OffsetAndEpoch(10, 7))
    assert (state.role, state.epoch) == (Role.RESIGNED, 7)
    assert core.start_election(state, 10).epoch == 8


def test_who_has_voted_for_itself_goes_on_as_candidate() -> None:
    stored = ElectionState(7, -1, KEYS[1])
    state = core.initial_state(KEYS[1], voters(1), stored, OffsetAndEpoch(10, 6))
    assert (state.role, state.epoch) == (Role.CANDIDATE, 7)
    assert core.start_election(state, 10).is_leader


def test_a_log_newer_than_the_vote_file_counts() -> None:
    state = core.initial_state(KEYS[1], voters(1), ElectionState(3, 1), OffsetAndEpoch(10, 9))
    assert (state.role, state.epoch) == (Role.UNATTACHED, 9)
    assert core.initial_state(KEYS[1], voters(1), None, OffsetAndEpoch(0, 0)).epoch == 0


def test_a_follower_comes_back_as_one() -> None:
    state = core.initial_state(KEYS[1], voters(1, 2, 3), ElectionState(3, 2), OffsetAndEpoch(10, 3))
    assert (state.role, state.leader_id) == (Role.FOLLOWER, 2)


def test_one_vote_in_an_epoch() -> None:
    state = core.to_unattached(QuorumState(KEYS[1], voters(1, 2, 3)), 5)
    assert core.can_grant_vote(state, KEYS[2], log_is_up_to_date=True, pre_vote=False)
    assert not core.can_grant_vote(state, KEYS[2], log_is_up_to_date=False, pre_vote=False)
    state = core.grant_vote(state, KEYS[2])
    assert core.can_grant_vote(state, KEYS[2], log_is_up_to_date=True, pre_vote=False), "the same again"
    assert not core.can_grant_vote(state, KEYS[3], log_is_up_to_date=True, pre_vote=False)
    assert core.can_grant_vote(state, KEYS[3], log_is_up_to_date=True, pre_vote=True), "asking costs nothing"


def test_a_leader_votes_for_nobody() -> None:
    assert not core.can_grant_vote(leader(1, 2, 3), KEYS[2], log_is_up_to_date=True, pre_vote=True)


def test_logs_are_ordered_by_epoch_before_offset() -> None:
    assert OffsetAndEpoch(5, 3).up_to_date_with(OffsetAndEpoch(100, 2))
    assert not OffsetAndEpoch(100, 2).up_to_date_with(OffsetAndEpoch(5, 3))
    assert OffsetAndEpoch(5, 3).up_to_date_with(OffsetAndEpoch(5, 3))


def test_one_voters_disk_is_the_high_watermark() -> None:
    state = leader(1, start=10)
    assert core.local_flushed(state, 10).high_watermark == -1, "nothing of this epoch yet"
    assert core.local_flushed(state, 11).high_watermark == 11


def test_a_majority_of_three_is_the_high_watermark() -> None:
    state = core.local_flushed(leader(1, 2, 3, start=10), 20)
    assert state.high_watermark == -1
    state = core.replica_fetched(state, KEYS[2], 15, 1000)
    assert state.high_watermark == 15
    state = core.replica_fetched(state, KEYS[3], 12, 1001)
    assert state.high_watermark == 15
    state = core.replica_fetched(state, KEYS[3], 20, 1002)
    assert state.high_watermark == 20
    state = core.replica_fetched(state, KEYS[2], 3, 1003)
    assert state.high_watermark == 20, "it never goes back"


def test_observers_count_for_nothing_and_are_forgotten() -> None:
    state = core.local_flushed(leader(1, 2, 3, start=10), 20)
    state = core.replica_fetched(state, KEYS[5], 20, 1000)
    assert state.high_watermark == -1
    assert set(core.observers(state, 1000)) == {KEYS[5]}
    assert core.observers(state, 1000)[KEYS[5]].last_caught_up_ms == 1000
    late = 1000 + core.OBSERVER_SESSION_TIMEOUT_MS
    assert not core.observers(state, late)
    assert KEYS[5] not in core.without_inactive_observers(state, late).progress


def test_another_directory_of_a_voters_node_is_no_voter() -> None:
    state = core.local_flushed(leader(1, 2, 3, start=10), 20)
    state = core.replica_fetched(state, ReplicaKey(2, DIRECTORIES[5]), 20, 1000)
    assert state.high_watermark == -1
    static = VoterSet.static({1: (), 2: (), 3: ()})
    state = core.replica_fetched(replace(state, voters=static, progress={}), KEYS[2], 20, 1000)
    assert core.local_flushed(state, 20).high_watermark == 20, "static voters name no directory"


def test_who_may_ask_what() -> None:
    state = leader(1)
    assert core.leader_request_error(state, state.epoch) is None
    assert core.leader_request_error(state, state.epoch - 1) is ErrorCode.FENCED_LEADER_EPOCH
    assert core.leader_request_error(state, state.epoch + 1) is ErrorCode.UNKNOWN_LEADER_EPOCH
    resigned = core.to_resigned(state)
    assert core.leader_request_error(resigned, state.epoch) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert core.voter_request_error(state, 2, state.epoch - 1) is ErrorCode.FENCED_LEADER_EPOCH
    assert core.voter_request_error(state, -1, state.epoch) is ErrorCode.INVALID_REQUEST
    assert core.voter_request_error(state, 2, state.epoch + 1) is None
