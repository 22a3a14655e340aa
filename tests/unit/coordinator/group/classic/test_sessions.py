"""Heartbeats, and what happens when there are none; members that leave."""

import pytest
from tests.support.group_world import GroupWorld, error_of

from ottla.model.errors import ErrorCode


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld()


def test_a_member_stays_as_long_as_it_is_heard_of(world: GroupWorld) -> None:
    (member,), generation = world.stable(session_ms=10_000)
    for _ in range(20):
        world.pass_ms(9_999)
        assert error_of(world.heartbeat(member, generation)) is ErrorCode.NONE
    world.pass_ms(9_999)
    assert member in world.group().members
    world.pass_ms(1)
    assert not world.group().members
    assert world.group().state_name() == "Empty"
    assert world.group().generation_id == generation + 1
    assert error_of(world.heartbeat(member, generation)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_others_rebalance_without_it(world: GroupWorld) -> None:
    (leader, _), generation = world.stable(2, session_ms=10_000)
    world.pass_ms(5_000)
    world.heartbeat(leader, generation)
    world.pass_ms(5_000)
    assert error_of(world.heartbeat(leader, generation)) is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(world.group().members) == {leader}
    again = world.join(member_id=leader).result()
    assert [member.member_id for member in again.members] == [leader]


def test_each_member_has_its_own_session(world: GroupWorld) -> None:
    short, long = world.new_member(session_ms=6_000), world.new_member(session_ms=30_000)
    world.pass_ms(6_000)
    generation = short[1].result().generation_id
    for member, _ in (short, long):
        world.sync(member, generation)
    leader = short[1].result().leader
    world.sync(leader, generation, {})
    world.pass_ms(5_999)
    assert short[0] in world.group().members
    world.pass_ms(1)
    assert set(world.group().members) == {long[0]}


def test_a_commit_counts_as_a_heartbeat(world: GroupWorld) -> None:
    (member,), generation = world.stable(session_ms=10_000)
    world.pass_ms(9_000)
    world.machine.classic.keep_alive(world.group(), member, world.scheduler.now_ms())
    world.pass_ms(9_999)
    assert error_of(world.heartbeat(member, generation)) is ErrorCode.NONE


def test_a_member_that_waits_to_join_need_not_be_heard_of(world: GroupWorld) -> None:
    (leader, follower), generation = world.stable(2, session_ms=10_000, rebalance_ms=300_000)
    waiting = world.join(member_id=leader)
    for _ in range(10):
        world.heartbeat(follower, generation)
        world.pass_ms(9_000)
    assert not waiting.done
    assert leader in world.group().members
    world.join(member_id=follower)
    assert waiting.result().generation_id == generation + 1
    world.pass_ms(10_000)
    assert not world.group().members, "after that it has to be"


def test_heartbeats_while_a_generation_forms(world: GroupWorld) -> None:
    member, joined = world.new_member()
    assert error_of(world.heartbeat(member, 0)) is ErrorCode.REBALANCE_IN_PROGRESS
    world.pass_ms(3_000)
    assert joined.result().generation_id == 1
    assert error_of(world.heartbeat(member, 1)) is ErrorCode.NONE, "the leader assigns"


def test_heartbeats_are_refused(world: GroupWorld) -> None:
    assert error_of(world.heartbeat("m", 1)) is ErrorCode.UNKNOWN_MEMBER_ID, "there is no group"
    given = world.join().result().member_id
    assert error_of(world.heartbeat(given, 0)) is ErrorCode.UNKNOWN_MEMBER_ID, "it has not joined"
    world.join(member_id=given)
    world.pass_ms(3_000)
    assert error_of(world.heartbeat(given, 0)) is ErrorCode.ILLEGAL_GENERATION
    assert error_of(world.heartbeat(given, 2)) is ErrorCode.ILLEGAL_GENERATION
    assert error_of(world.heartbeat("who", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error_of(world.heartbeat(given, 1, instance="i")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_broker_that_stood_still_does_not_blame_its_members(world: GroupWorld) -> None:
    (alive, gone), generation = world.stable(2, session_ms=10_000)
    world.join("other")
    world.pass_ms(5_000)
    world.scheduler.jump_ms(60_000)
    world.pass_ms(1_000)
    assert error_of(world.heartbeat(alive, generation)) is ErrorCode.NONE
    assert set(world.group().members) == {alive, gone}
    assert world.group("other").pending_join
    world.pass_ms(9_999)
    assert set(world.group().members) == {alive}, "but it does not forget them either"
    assert not world.group("other").pending_join


# ---- leaving --------------------------------------------------------------------------------------------------


def test_who_leaves_is_gone_at_once(world: GroupWorld) -> None:
    (leader, follower), generation = world.stable(2)
    left = world.leave(leader).result()
    assert [(m.member_id, m.group_instance_id, m.error_code) for m in left.members] == [(leader, None, 0)]
    assert error_of(world.heartbeat(follower, generation)) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.join(member_id=follower).result().leader == follower


def test_the_last_to_leave_empties_the_group(world: GroupWorld) -> None:
    (leader, follower), generation = world.stable(2)
    left = world.leave(leader, "who", follower).result()
    assert [m.error_code for m in left.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID, 0]
    assert (left.error_code, world.group().state_name()) == (0, "Empty")
    value = world.records()[-1].value
    assert (value.generation, value.protocol, value.leader, value.members) == (generation + 1, None, None, [])
    assert (value.protocol_type, value.current_state_timestamp) == ("consumer", world.scheduler.now_ms())


def test_if_that_cannot_be_written_who_leaves_is_told(world: GroupWorld) -> None:
    (member,), _ = world.stable()
    world.log.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert error_of(world.leave(member)) is ErrorCode.NOT_COORDINATOR
    assert world.group().state_name() == "Empty"
    world.log.refuse(None)
    world.stable()
    assert world.group().generation_id == 3


def test_an_id_that_was_given_out_can_be_given_back(world: GroupWorld) -> None:
    given = world.join().result().member_id
    assert world.leave(given).result().members[0].error_code == 0
    assert not world.group().pending_join
    assert world.leave(given).result().members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_is_waited_for_no_more_lets_the_others_go_on(world: GroupWorld) -> None:
    (leader, follower), generation = world.stable(2)
    again = world.join(member_id=leader)
    world.leave(follower)
    assert again.result().generation_id == generation + 1


def test_leaving_with_a_parked_join_answers_it(world: GroupWorld) -> None:
    members, _ = world.stable(2)
    again = world.join(member_id=members[0])
    world.leave(members[0])
    assert (again.result().error_code, again.result().member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")


def test_leaving_with_a_parked_sync_answers_it(world: GroupWorld) -> None:
    joins = [world.new_member() for _ in range(2)]
    world.pass_ms(9_000)
    follower = next(member for member, pending in joins if pending.result().leader != member)
    waiting = world.sync(follower, 1)
    world.leave(follower)
    assert error_of(waiting) is ErrorCode.UNKNOWN_MEMBER_ID


def test_nobody_leaves_a_group_that_is_not_there(world: GroupWorld) -> None:
    left = world.leave("a", ("", "i")).result()
    assert left.error_code == 0
    assert [(m.member_id, m.group_instance_id, m.error_code) for m in left.members] == [
        ("a", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", "i", ErrorCode.UNKNOWN_MEMBER_ID),
    ]
