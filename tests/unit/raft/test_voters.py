"""Voters: added, removed, updated; and those of every offset of the log."""

from tests.unit.raft.replica import endpoint, key, static_voters, voter, voters

from ottla.metadata.features import VersionRange
from ottla.metadata.registrations import Endpoint
from ottla.raft.voters import CONFIGURED, NOT_IN_LOG, QuorumHistory, ReplicaKey, VoterNode, VoterSet


def test_a_voter_is_a_node_with_its_directory() -> None:
    three = voters(1, 2, 3)
    assert three.contains(key(2))
    assert not three.contains(key(2, directory=9)), "another directory is another voter"
    assert not three.contains(key(4))
    assert static_voters(1, 2).contains(key(2, directory=9)), "static voters name no directory"
    assert three.is_only_voter(key(1)) is False
    assert voters(1).is_only_voter(key(1))


def test_majorities() -> None:
    assert [voters(*range(1, n + 1)).majority for n in range(1, 6)] == [1, 2, 2, 3, 3]


def test_one_voter_more() -> None:
    four = voters(1, 2, 3).added(voter(4))
    assert four == voters(1, 2, 3, 4)
    assert voters(1, 2).added(voter(2)) is None
    assert voters(1, 2).added(voter(2, directory=9)) is None, "the old directory must leave first"


def test_one_voter_less() -> None:
    assert voters(1, 2, 3).removed(key(2)) == voters(1, 3)
    assert voters(1, 2, 3).removed(key(4)) is None
    assert voters(1, 2, 3).removed(key(2, directory=9)) is None
    assert voters(1).removed(key(1)) is None, "the last one stays"
    assert static_voters(1, 2).removed(key(2)) is None


def test_a_voter_that_has_moved() -> None:
    moved = VoterNode(key(2), (Endpoint("CONTROLLER", "elsewhere", 1),), VersionRange(0, 1))
    three = voters(1, 2, 3)
    assert three.needs_update(moved)
    assert not three.needs_update(voter(2))
    assert not three.needs_update(voter(2, directory=9)), "that is not this voter"
    updated = three.updated(moved)
    assert updated is not None
    assert updated.listeners(2) == moved.listeners
    assert three.listeners(2) == (endpoint(2),), "a set never changes"
    assert three.updated(voter(2, directory=9)) is None
    assert three.updated(voter(4)) is None
    replaced = three.updated(voter(2, directory=9), any_directory=True)
    assert replaced is not None
    assert replaced.contains(key(2, directory=9))


def test_which_kraft_versions_all_can_do() -> None:
    assert voters(1, 2).supports(1)
    mixed = voters(1, 2).updated(VoterNode(key(2), (endpoint(2),), VersionRange(0, 0)))
    assert mixed is not None
    assert not mixed.supports(1)
    assert mixed.supports(0)
    assert not static_voters(1).supports(1)


def test_a_record_and_back() -> None:
    three = voters(1, 2, 3)
    assert VoterSet.from_record(three.to_record()) == three


# --- by offset


def test_the_configured_voters_count_until_the_log_names_others() -> None:
    history = QuorumHistory(static_voters(1, 2, 3))
    assert history.latest() == (CONFIGURED, 0, static_voters(1, 2, 3), CONFIGURED)
    history.add(7, kraft_version=1)
    history.add(8, voters=voters(1, 2, 3))
    assert history.latest() == (8, 1, voters(1, 2, 3), 8)
    assert history.at(7) == (7, 1, static_voters(1, 2, 3), CONFIGURED)
    assert history.at(6).kraft_version == 0
    assert QuorumHistory().latest().voters.ids == frozenset()


def test_a_truncation_brings_the_earlier_voters_back() -> None:
    history = QuorumHistory()
    history.begin_with_snapshot(0, 1, voters(1, 2, 3))
    assert history.latest().voters_offset == NOT_IN_LOG
    history.add(10, voters=voters(1, 2, 3, 4))
    history.add(20, voters=voters(2, 3, 4))
    history.truncate(21)
    assert history.latest().voters == voters(2, 3, 4)
    history.truncate(20)
    assert history.latest() == (10, 1, voters(1, 2, 3, 4), 10)
    history.truncate(0)
    assert history.latest() == (NOT_IN_LOG, 1, voters(1, 2, 3), NOT_IN_LOG)
    history.add(10, voters=voters(1, 2))
    assert history.latest().voters == voters(1, 2), "and others may come in their place"


def test_a_snapshot_takes_the_place_of_what_was_before() -> None:
    history = QuorumHistory(static_voters(1, 2))
    history.add(5, kraft_version=1, voters=voters(1, 2))
    history.begin_with_snapshot(100, 1, voters(1, 2, 3))
    assert history.latest() == (99, 1, voters(1, 2, 3), 99)
    history.begin_with_snapshot(200, 0, None)
    assert history.latest() == (199, 0, static_voters(1, 2), CONFIGURED)


def test_what_a_truncation_can_still_reach_is_not_forgotten() -> None:
    history = QuorumHistory()
    for offset, ids in ((3, (1, 2)), (10, (1, 2, 3)), (20, (1, 2, 3, 4))):
        history.add(offset, kraft_version=1, voters=voters(*ids))
    history.forget(20)
    assert history.at(19).voters == voters(1, 2, 3)
    history.truncate(20)
    assert history.latest().voters == voters(1, 2, 3)
    history.truncate(0)
    assert history.latest().voters.ids == frozenset(), "of what was before nothing is left"


def test_an_unknown_directory_stands_for_any() -> None:
    assert VoterNode(ReplicaKey(2)).matches(key(2))
    assert not VoterNode(key(2)).matches(ReplicaKey(2))
