"""The rules of the quorum that need no time: roles, votes, what is committed, who may ask what."""

import pytest
from tests.unit.raft.replica import endpoint, key, static_voters, voter, voters

from ottla.model.errors import ErrorCode
from ottla.raft.log_view import OffsetAndEpoch
from ottla.raft.quorum_state import MAX_EPOCH, ElectionState
from ottla.raft.state import (
    MAX_CLAIMED_EPOCH,
    MISSED_EPOCHS,
    OBSERVER_SESSION_TIMEOUT_MS,
    LeaderState,
    QuorumState,
    Role,
    initial_state,
)
from ottla.raft.voters import VoterSet


def leader_state(*ids: int, start: int = 0, voter_set: VoterSet | None = None) -> LeaderState:
    return LeaderState(key(1), voter_set or voters(*ids), frozenset(ids), start)


def test_roles_change_only_as_the_table_says() -> None:
    state = QuorumState(key(1), voters(1, 2, 3))
    with pytest.raises(AssertionError):
        state.become(Role.CANDIDATE, epoch=1)
    state.become(Role.PROSPECTIVE, epoch=0)
    state.become(Role.CANDIDATE, epoch=1)
    with pytest.raises(AssertionError):
        state.become(Role.FOLLOWER, epoch=0, leader_id=2)
    with pytest.raises(AssertionError):
        state.become(Role.RESIGNED, epoch=1)


def test_who_was_leader_has_resigned_after_a_start() -> None:
    state = initial_state(key(1), voters(1, 2, 3), ElectionState(7, 1), OffsetAndEpoch(10, 7))
    assert (state.role, state.epoch, state.leader_id, state.voted) == (Role.RESIGNED, 7, 1, None)


def test_who_has_voted_for_itself_goes_on_as_candidate() -> None:
    stored = ElectionState(7, -1, key(1))
    state = initial_state(key(1), voters(1, 2, 3), stored, OffsetAndEpoch(10, 6))
    assert (state.role, state.epoch, state.granted) == (Role.CANDIDATE, 7, frozenset({1}))
    gone = initial_state(key(1), voters(2, 3), stored, OffsetAndEpoch(10, 6))
    assert (gone.role, gone.voted) == (Role.UNATTACHED, key(1)), "no longer a voter, but the vote is given"
    other = initial_state(key(1, directory=9), voters(1, 2, 3), stored, OffsetAndEpoch(10, 6))
    assert other.role is Role.UNATTACHED, "that was another directory"


def test_a_log_newer_than_the_vote_file_counts() -> None:
    state = initial_state(key(1), voters(1), ElectionState(3, 1), OffsetAndEpoch(10, 9))
    assert (state.role, state.epoch) == (Role.UNATTACHED, 9)
    assert initial_state(key(1), voters(1), None, OffsetAndEpoch(0, 0)).epoch == 0


def test_a_follower_comes_back_as_one() -> None:
    state = initial_state(key(1), voters(1, 2, 3), ElectionState(3, 2, key(3)), OffsetAndEpoch(10, 3))
    assert (state.role, state.leader_id, state.voted) == (Role.FOLLOWER, 2, key(3))
    assert state.leader_endpoints == (endpoint(2),)
    lost = initial_state(key(1), voters(1, 3), ElectionState(3, 2), OffsetAndEpoch(10, 3))
    assert (lost.role, lost.leader_id) == (Role.UNATTACHED, 2), "who leads is known, not where"


def test_one_vote_in_an_epoch() -> None:
    state = QuorumState(key(1), voters(1, 2, 3), epoch=5)
    assert state.can_grant_vote(key(2), log_is_up_to_date=True, pre_vote=False)
    assert not state.can_grant_vote(key(2), log_is_up_to_date=False, pre_vote=False)
    state.voted = key(2)
    assert state.can_grant_vote(key(2), log_is_up_to_date=True, pre_vote=False), "the same again"
    assert not state.can_grant_vote(key(2, directory=9), log_is_up_to_date=True, pre_vote=False)
    assert not state.can_grant_vote(key(3), log_is_up_to_date=True, pre_vote=False)
    assert state.can_grant_vote(key(3), log_is_up_to_date=True, pre_vote=True), "asking costs nothing"
    state.become(Role.UNATTACHED, epoch=6)
    assert state.can_grant_vote(key(3), log_is_up_to_date=True, pre_vote=False), "another epoch"


@pytest.mark.parametrize(
    ("role", "has_fetched", "vote", "pre_vote"),
    [
        (Role.LEADER, False, False, False),
        (Role.FOLLOWER, True, False, False),
        (Role.FOLLOWER, False, False, True),
        (Role.CANDIDATE, False, False, True),
        (Role.RESIGNED, False, False, True),
        (Role.PROSPECTIVE, False, True, True),
        (Role.UNATTACHED, False, True, True),
    ],
)
def test_who_votes(role: Role, has_fetched: bool, vote: bool, pre_vote: bool) -> None:
    state = QuorumState(key(1), voters(1, 2, 3), role=role, epoch=5)
    state.has_fetched = has_fetched
    assert state.can_grant_vote(key(2), log_is_up_to_date=True, pre_vote=False) is vote
    assert state.can_grant_vote(key(2), log_is_up_to_date=True, pre_vote=True) is pre_vote
    assert not state.can_grant_vote(key(2), log_is_up_to_date=False, pre_vote=True)


def test_where_a_leader_is_known_nobody_else_gets_the_vote() -> None:
    state = QuorumState(key(1), voters(1, 2, 3), epoch=5, leader_id=3)
    assert not state.can_grant_vote(key(2), log_is_up_to_date=True, pre_vote=False)


def test_logs_are_ordered_by_epoch_before_offset() -> None:
    assert OffsetAndEpoch(5, 3).up_to_date_with(OffsetAndEpoch(100, 2))
    assert not OffsetAndEpoch(100, 2).up_to_date_with(OffsetAndEpoch(5, 3))
    assert OffsetAndEpoch(5, 3).up_to_date_with(OffsetAndEpoch(5, 3))


def test_an_election_is_won_or_lost() -> None:
    state = QuorumState(key(1), voters(1, 2, 3, 4, 5), role=Role.CANDIDATE, epoch=5)
    state.granted = frozenset({1, 2})
    assert not state.has_majority()
    state.granted |= {9}
    assert not state.has_majority(), "9 has no vote"
    state.granted |= {3}
    assert state.has_majority()
    state.granted, state.rejected = frozenset({1, 2}), frozenset({3, 4})
    assert not state.is_lost(), "5 may still say yes"
    state.unreachable = frozenset({5})
    assert state.is_lost()


# --- the leader


def test_one_voters_disk_is_a_majority() -> None:
    leader = leader_state(1)
    leader.voters[1].end_offset = 11
    assert leader.majority_end() == 11


def test_what_a_majority_has() -> None:
    leader = leader_state(1, 2, 3)
    leader.voters[1].end_offset = 20
    assert leader.majority_end() == -1
    assert leader.fetched(key(2), 15, 20, 1000)
    assert leader.majority_end() == 15
    assert leader.fetched(key(3), 18, 20, 1000)
    assert leader.majority_end() == 18


def test_another_directory_of_a_voters_node_is_an_observer() -> None:
    leader = leader_state(1, 2, 3)
    assert not leader.fetched(key(2, directory=9), 20, 20, 1000)
    assert leader.voters[2].end_offset == -1
    static = leader_state(voter_set=static_voters(1, 2, 3))
    assert static.fetched(key(2), 20, 20, 1000), "static voters name no directory"


def test_observers_are_forgotten_after_a_while() -> None:
    leader = leader_state(1, 2, 3)
    leader.fetched(key(5), 20, 20, 1000)
    assert leader.active_observers(1000)[key(5)].last_caught_up_ms == 1000
    assert not leader.active_observers(1000 + OBSERVER_SESSION_TIMEOUT_MS)
    assert not leader.observers


def test_only_so_many_observers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.raft.state.MAX_OBSERVERS", 3)
    leader = leader_state(1)
    for node in (5, 6, 7, 5, 8):
        leader.fetched(key(node), 1, 1, 1000 + node)
    assert list(leader.observers) == [key(7), key(5), key(8)], "6 has not fetched for longest"


def test_who_has_caught_up() -> None:
    leader = leader_state(1)
    leader.fetched(key(5), 10, 20, 1000)
    assert not leader.has_caught_up(key(5), 1000)
    leader.fetched(key(5), 20, 30, 2000)
    assert leader.observers[key(5)].last_caught_up_ms == 1000, "it has what there was at its last fetch"
    assert leader.has_caught_up(key(5), 2000)
    assert not leader.has_caught_up(key(5), 2000 + 3_600_000)
    assert not leader.has_caught_up(key(6), 2000)


def test_a_new_voter_keeps_its_progress_and_so_does_one_that_leaves() -> None:
    leader = leader_state(1, 2, 3)
    leader.fetched(key(2), 10, 20, 1000)
    leader.fetched(key(4), 20, 20, 1000)
    leader.adopt(voters(1, 3, 4))
    assert leader.voters[4].end_offset == 20
    assert leader.observers[key(2)].end_offset == 10
    replaced = voters(1, 3).added(voter(4, directory=9))
    assert replaced is not None
    leader.adopt(replaced)
    assert leader.voters[4].end_offset == -1, "another directory begins at nothing"
    assert leader.observers[key(4)].end_offset == 20


def test_successors_are_those_who_know_most() -> None:
    leader = leader_state(1, 2, 3, 4)
    leader.fetched(key(3), 20, 20, 1000)
    leader.fetched(key(2), 10, 20, 1000)
    assert leader.successors() == [key(3), key(2), key(4)]


def test_a_leader_that_is_no_voter_needs_a_majority_of_the_others() -> None:
    leader = leader_state(1, 2, 3)
    leader.fetched_voters.add(2)
    assert leader.has_majority_fetched()
    leader.adopt(voters(2, 3, 4))
    assert not leader.has_majority_fetched()
    leader.fetched_voters.add(3)
    assert leader.has_majority_fetched()


# --- who may ask what


def test_who_may_ask_what() -> None:
    state = QuorumState(key(1), voters(1, 2, 3), role=Role.LEADER, epoch=5)
    assert state.leader_request_error(5) is None
    assert state.leader_request_error(4) is ErrorCode.FENCED_LEADER_EPOCH
    assert state.leader_request_error(6) is ErrorCode.UNKNOWN_LEADER_EPOCH
    state.role = Role.RESIGNED
    assert state.leader_request_error(5) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert state.voter_request_error(2, 4) is ErrorCode.FENCED_LEADER_EPOCH
    assert state.voter_request_error(-1, 5) is ErrorCode.INVALID_REQUEST
    assert state.voter_request_error(2, 6) is None


def test_the_last_epochs_are_claimed_one_by_one_and_only_without_a_leader() -> None:
    state = QuorumState(key(1), voters(1, 2, 3), epoch=5)
    assert state.believes_claim(MAX_CLAIMED_EPOCH)
    assert state.believes_claim(MAX_CLAIMED_EPOCH + 1), "the next election's, after such a claim"
    assert not state.believes_claim(MAX_CLAIMED_EPOCH + 2)
    state.epoch = MAX_CLAIMED_EPOCH + 100
    assert state.believes_claim(state.epoch + 1)
    assert not state.believes_claim(state.epoch + 2)
    for role, has_fetched in ((Role.LEADER, False), (Role.FOLLOWER, True)):
        state.role, state.has_fetched = role, has_fetched
        assert not state.believes_claim(state.epoch + 1), "nobody stands while there is a leader"
        assert state.believes_claim(state.epoch)
    assert state.believes_answer(state.epoch + MISSED_EPOCHS), "a voter that was away catches up"
    assert not state.believes_answer(MAX_EPOCH)
