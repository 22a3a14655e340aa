"""Members of a share group: epochs, assignments, sessions, and the setting up of what they share."""

from __future__ import annotations

from itertools import chain

import pytest
from tests.support.share_groups_world import ShareGroupsWorld, records

from ottla.coordinator.group.serde import GROUP_RECORDS
from ottla.model.errors import ErrorCode
from ottla.wire.messages.logs.share_group import ShareGroupStatePartitionMetadataKey

SESSION_MS = 45_000


@pytest.fixture
def world() -> ShareGroupsWorld:
    return ShareGroupsWorld({"t": 4, "u": 2})


def settled(world: ShareGroupsWorld, *members: str, topics: tuple[str, ...] = ("t",)) -> None:
    """Members that have what they shall have."""
    for member in members:
        world.enter(member, topics)
    for member in members * 2:
        world.beat(member)


# ---- joining and leaving ----------------------------------------------------------------------------------------


def test_a_member_gets_partitions_when_they_are_set_up(world: ShareGroupsWorld) -> None:
    answer = world.enter("a", ["t"])
    assert (answer.error_code, answer.member_epoch, answer.heartbeat_interval_ms) == (0, 2, 5_000)
    assert answer.assignment is not None
    assert answer.assignment.topic_partitions == []
    assert world.states_of() == {"initializing": {}, "initialized": {"t": [0, 1, 2, 3]}, "deleting": 0}
    answer = world.beat("a")
    assert answer.member_epoch == 3
    assert world.assigned("a") == {"t": [0, 1, 2, 3]}
    assert world.beat("a").assignment is None


def test_members_share(world: ShareGroupsWorld) -> None:
    settled(world, "a", "b", "c")
    held = [world.assigned(member)["t"] for member in "abc"]
    assert sorted(map(len, held)) == [1, 1, 2]
    assert sorted(chain.from_iterable(held)) == [0, 1, 2, 3]


def test_an_assignment_is_told_again_to_who_says_everything(world: ShareGroupsWorld) -> None:
    settled(world, "a")
    assert world.beat("a").assignment is None
    assert world.beat("a", ["t"]).assignment is not None


def test_the_epoch_before_is_taken_any_other_is_not(world: ShareGroupsWorld) -> None:
    settled(world, "a")
    epoch = world.epochs["a"]
    assert world.beat("a", epoch=epoch - 1).member_epoch == epoch
    assert world.refused("a", epoch + 1) is ErrorCode.FENCED_MEMBER_EPOCH
    assert world.refused("a", epoch - 2) is ErrorCode.FENCED_MEMBER_EPOCH
    assert world.beat("a").member_epoch == epoch


def test_a_member_that_joins_again_keeps_its_place(world: ShareGroupsWorld) -> None:
    settled(world, "a", "b")
    before = world.assigned("a"), world.group().epoch
    world.enter("a", ["t"])
    assert (world.assigned("a"), world.group().epoch) == before


def test_leaving_gives_the_partitions_to_the_others(world: ShareGroupsWorld) -> None:
    settled(world, "a", "b")
    answer = world.leave("a")
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("a", -1, 0)
    assert world.refused("a", 3) is ErrorCode.UNKNOWN_MEMBER_ID
    world.beat("b")
    assert world.assigned("b") == {"t": [0, 1, 2, 3]}
    world.leave("b")
    assert world.group().is_empty()
    assert world.refused("b", -1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_is_not_there_is_not_taken_in(world: ShareGroupsWorld) -> None:
    assert world.refused("a", 3) is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.refused("a", -1) is ErrorCode.GROUP_ID_NOT_FOUND
    world.enter("a", ["t"])
    assert world.refused("b", 3) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_that_is_full() -> None:
    world = ShareGroupsWorld({"t": 1}, {"group.share.max.size": 2})
    settled(world, "a", "b")
    assert world.refused("c", 0, ["t"]) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.enter("a", ["t"]).error_code == 0
    world.leave("b")
    assert world.enter("c", ["t"]).error_code == 0


def test_a_silent_member_is_fenced(world: ShareGroupsWorld) -> None:
    settled(world, "a", "b")
    world.pass_ms(SESSION_MS - 1)
    world.beat("b")
    world.pass_ms(1)
    assert list(world.group().members) == ["b"]
    world.beat("b")
    assert world.assigned("b") == {"t": [0, 1, 2, 3]}


def test_a_silent_member_whose_end_cannot_be_written_is_fenced_later(world: ShareGroupsWorld) -> None:
    settled(world, "a", "b")
    world.pass_ms(SESSION_MS - 1)
    world.beat("b")
    world.group_log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.pass_ms(1_000)
    assert set(world.group().members) == {"a", "b"}
    world.group_log.refuse(None)
    world.pass_ms(1_000)
    assert list(world.group().members) == ["b"]
    world.beat("b")
    assert world.assigned("b") == {"t": [0, 1, 2, 3]}


def test_sessions_begin_anew_with_a_new_coordinator(world: ShareGroupsWorld) -> None:
    settled(world, "a")
    world.pass_ms(SESSION_MS - 1)
    world = world.reloaded()
    world.pass_ms(SESSION_MS - 1)
    assert world.beat("a").error_code == 0
    world.pass_ms(SESSION_MS)
    assert world.group().is_empty()


def test_a_new_coordinator_knows_everything(world: ShareGroupsWorld) -> None:
    settled(world, "a", "b", topics=("t", "u"))
    after = world.reloaded()
    for member in "ab":
        assert after.assigned(member) == world.assigned(member)
        assert after.group().member(member) == world.group().member(member)
        assert after.beat(member).member_epoch == world.epochs[member]
    assert after.states_of() == world.states_of()
    assert after.group().epoch == world.group().epoch


def test_assignments_come_one_interval_after_another() -> None:
    world = ShareGroupsWorld({"t": 4}, {"group.share.assignment.interval.ms": 1_000})
    world.enter("a", ["t"])
    assert world.beat("a").member_epoch == 2
    assert world.group().epoch == 3
    world.pass_ms(1_000)
    assert world.beat("a").member_epoch == 3
    assert world.assigned("a") == {"t": [0, 1, 2, 3]}


def test_a_decision_that_is_not_written_was_never_made(world: ShareGroupsWorld) -> None:
    world.group_log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert world.refused("a", 0, ["t"]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.group_log.refuse(None)
    assert world.refused("a", 2) is ErrorCode.GROUP_ID_NOT_FOUND
    settled(world, "a")
    assert world.assigned("a") == {"t": [0, 1, 2, 3]}


# ---- subscriptions and topics -----------------------------------------------------------------------------------


def test_a_member_that_wants_something_else(world: ShareGroupsWorld) -> None:
    settled(world, "a")
    answer = world.beat("a", ["u"])
    assert world.assigned("a") == {}
    assert answer.assignment is not None
    world.beat("a")
    assert world.assigned("a") == {"u": [0, 1]}


def test_a_topic_that_comes_later_and_grows(world: ShareGroupsWorld) -> None:
    settled(world, "a", topics=("later",))
    assert world.assigned("a") == {}
    world.set_topics({"t": 4, "u": 2, "later": 2})
    world.beat("a")
    world.beat("a")
    assert world.assigned("a") == {"later": [0, 1]}
    world.set_topics({"t": 4, "u": 2, "later": 3})
    world.beat("a")
    world.beat("a")
    assert world.assigned("a") == {"later": [0, 1, 2]}


def test_a_topic_that_is_deleted(world: ShareGroupsWorld) -> None:
    settled(world, "a", topics=("t", "u"))
    world.set_topics({"u": 2})
    assert world.states_of()["initialized"] == {"u": [0, 1]}
    world.beat("a")
    assert world.assigned("a") == {"u": [0, 1]}


# ---- setting up share partitions --------------------------------------------------------------------------------


def test_the_share_coordinators_topic_is_waited_for() -> None:
    world = ShareGroupsWorld({"t": 2}, has_state_topic=False)
    world.enter("a", ["t"])
    assert world.states_of()["initializing"] == {"t": [0, 1]}
    world.has_state_topic = True
    world.pass_ms(100)
    assert world.states_of()["initialized"] == {"t": [0, 1]}
    assert world.start("t", 0) == -1


def test_what_cannot_be_set_up_is_tried_again(world: ShareGroupsWorld) -> None:
    world.state_log.refuse(ErrorCode.KAFKA_STORAGE_ERROR)
    world.enter("a", ["t"])
    assert world.states_of()["initializing"] == {"t": [0, 1, 2, 3]}
    world.pass_ms(12_700)  # all attempts
    assert world.states_of() == {"initializing": {}, "initialized": {}, "deleting": 0}
    world.state_log.refuse(None)
    world.beat("a")
    assert world.states_of()["initialized"] == {"t": [0, 1, 2, 3]}


def test_heartbeats_meanwhile_begin_nothing_new(world: ShareGroupsWorld) -> None:
    world.has_state_topic = False
    world.enter("a", ["t"])
    written = len(records(world.group_log, GROUP_RECORDS))
    world.beat("a")
    world.enter("b", ["t"])
    states = [
        record
        for record in records(world.group_log, GROUP_RECORDS)[written:]
        if isinstance(record.key, ShareGroupStatePartitionMetadataKey)
    ]
    assert states == []


def test_a_new_coordinator_begins_anew_with_what_was_being_set_up(world: ShareGroupsWorld) -> None:
    world.has_state_topic = False
    world.enter("a", ["t"])
    world = world.reloaded()
    assert world.states_of()["initializing"] == {"t": [0, 1, 2, 3]}
    world.beat("a")
    assert world.states_of()["initialized"] == {"t": [0, 1, 2, 3]}


def test_nothing_is_assigned_before_its_state_is_committed(world: ShareGroupsWorld) -> None:
    world.state_log.hold()
    world.enter("a", ["t"])
    world.beat("a")
    assert world.states_of()["initializing"] == {"t": [0, 1, 2, 3]}
    assert world.assigned("a") == {}
    world.state_log.release()
    world.scheduler.settle()
    assert world.states_of()["initialized"] == {"t": [0, 1, 2, 3]}


def test_setting_up_does_not_reset_what_is_set_up(world: ShareGroupsWorld) -> None:
    settled(world, "a")
    written = len(records(world.state_log))
    world.leave("a")
    settled(world, "a", "b")
    assert len(records(world.state_log)) == written
    assert world.assigned("a")["t"]
