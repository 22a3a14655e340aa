"""Who may join a classic group, under which id, and when the others are asked to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.group_world import GroupWorld, error_of

from ottla.coordinator.group.classic.group import most_votes
from ottla.coordinator.group.classic.join import MAX_PENDING_JOIN, NEW_MEMBER_JOIN_TIMEOUT_MS
from ottla.model.errors import ErrorCode

TWO = (("range", b"\x00\x00" + bytes(8)), ("roundrobin", b"\x00\x00" + bytes(8)))
TWO_REVERSED = tuple(reversed(TWO))


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld()


# ---- ids ------------------------------------------------------------------------------------------------------


def test_a_new_member_is_given_an_id_and_comes_again_with_it(world: GroupWorld) -> None:
    first = world.join(client_id="app").result()
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert first.member_id == "app-00000000-0000-0000-0000-000000000001"
    assert (first.generation_id, first.leader, first.members, first.protocol_name) == (-1, "", [], None)
    second = world.join(member_id=first.member_id)
    assert not second.done
    world.pass_ms(3_000)
    assert second.result().error_code == ErrorCode.NONE
    assert second.result().member_id == first.member_id
    assert second.result().generation_id == 1


@pytest.mark.parametrize("version", range(4))
def test_before_version_4_a_new_member_joins_at_once(world: GroupWorld, version: int) -> None:
    joined = world.join(version=version)
    world.pass_ms(3_000)
    assert joined.result().error_code == ErrorCode.NONE
    assert joined.result().leader == joined.result().member_id


def test_the_first_version_waits_as_long_as_the_session(world: GroupWorld) -> None:
    world.join(version=0, session_ms=7_000, rebalance_ms=-1)
    assert world.group().rebalance_timeout_ms() == 7_000


def test_an_id_that_is_not_used_within_the_session_is_forgotten(world: GroupWorld) -> None:
    member_id = world.join(session_ms=10_000).result().member_id
    world.pass_ms(9_999)
    assert member_id in world.group().pending_join
    world.pass_ms(1)
    assert not world.group().pending_join
    assert error_of(world.join(member_id=member_id)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_ids_given_out_are_bounded(world: GroupWorld) -> None:
    world.join()
    group = world.group()
    group.pending_join.update({f"x-{i}": float("inf") for i in range(MAX_PENDING_JOIN)})
    assert error_of(world.join()) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_an_id_that_was_given_out_cannot_become_a_static_member(world: GroupWorld) -> None:
    member_id = world.join().result().member_id
    assert error_of(world.join(member_id=member_id, instance="i")) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_an_id_is_unknown_in_a_group_that_is_not_there(world: GroupWorld) -> None:
    refused = world.join(member_id="who").result()
    assert (refused.error_code, refused.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "who")
    assert "g" not in world.machine.context.groups
    assert not world.records()


def test_an_id_is_unknown_to_a_group_that_never_gave_it(world: GroupWorld) -> None:
    world.stable()
    refused = world.join(member_id="who").result()
    assert (refused.error_code, refused.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "who")


# ---- protocols ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", TWO), ("consumer", ())])
def test_the_first_member_names_a_protocol_type_and_protocols(
    world: GroupWorld, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    refused = world.join(protocol_type=protocol_type, protocols=protocols).result()
    assert (refused.error_code, refused.member_id) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")


def test_later_members_share_the_type_and_a_protocol(world: GroupWorld) -> None:
    world.stable(protocols=TWO[:1])
    assert error_of(world.join(protocol_type="connect")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error_of(world.join(protocols=TWO[1:])) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error_of(world.join(protocols=TWO)) is ErrorCode.MEMBER_ID_REQUIRED


def test_any_protocol_type_will_do(world: GroupWorld) -> None:
    _, generation = world.stable(2, protocol_type="connect", protocols=(("compatible", b"state"),))
    assert generation == 1
    assert world.group().protocol_type == "connect"
    assert world.group().subscribed_topics is None
    assert {member.metadata["compatible"] for member in world.group().members.values()} == {b"state"}


def test_an_empty_group_takes_a_new_protocol_type(world: GroupWorld) -> None:
    (member,), _ = world.stable()
    world.leave(member)
    world.stable(protocol_type="connect", protocols=(("compatible", b""),))
    assert world.group().protocol_type == "connect"


def test_the_protocol_with_most_votes_is_chosen(world: GroupWorld) -> None:
    world.stable()
    joins = [world.new_member("v", protocols=p) for p in (TWO, TWO_REVERSED, TWO_REVERSED)]
    world.pass_ms(9_000)
    assert {pending.result().protocol_name for _, pending in joins} == {"roundrobin"}


def test_only_protocols_that_everybody_knows_are_voted_for(world: GroupWorld) -> None:
    joins = [world.new_member(protocols=p) for p in (TWO, TWO, TWO_REVERSED[:1])]
    world.pass_ms(9_000)
    assert {pending.result().protocol_name for _, pending in joins} == {"roundrobin"}


def test_a_tie_goes_to_what_javas_hash_table_holds_first() -> None:
    # In a table of 16: sticky 8, range 9, roundrobin 10, cooperative-sticky 15.
    assert most_votes(["roundrobin", "range"]) == "range"
    assert most_votes(["range", "sticky"]) == "sticky"
    assert most_votes(["cooperative-sticky", "roundrobin"]) == "roundrobin"
    assert most_votes(["b", "q"]) == "q"


@given(st.lists(st.sampled_from("abcdefg"), min_size=1))
def test_the_winner_has_most_votes(votes: list[str]) -> None:
    assert votes.count(most_votes(votes)) == max(votes.count(name) for name in votes)


def test_a_protocol_named_twice_counts_once(world: GroupWorld) -> None:
    joined = world.join(protocols=(*TWO, *TWO), version=3)
    world.pass_ms(3_000)
    assert joined.result().protocol_name == "range"


# ---- the first rebalance --------------------------------------------------------------------------------------


def test_the_first_members_wait_for_each_other(world: GroupWorld) -> None:
    _, first = world.new_member()
    world.pass_ms(2_000)
    _, second = world.new_member()
    world.pass_ms(3_999)
    assert not first.done, "a member came during the delay, so it is waited once more"
    assert not second.done
    world.pass_ms(1)
    assert first.result().generation_id == second.result().generation_id == 1
    leader = first.result()
    assert leader.leader == leader.member_id
    assert {member.member_id for member in leader.members} == {leader.member_id, second.result().member_id}
    assert second.result().members == []


def test_they_wait_no_longer_than_a_rebalance_may_take() -> None:
    world = GroupWorld()
    _, first = world.new_member(rebalance_ms=7_000)
    waited = 0
    while not first.done:
        world.new_member(rebalance_ms=7_000)
        world.pass_ms(500)
        waited += 500
    assert waited == 7_000


def test_without_a_delay_the_first_member_is_alone() -> None:
    world = GroupWorld({"group.initial.rebalance.delay.ms": 0})
    _, first = world.new_member()
    world.pass_ms(0)
    assert first.result().generation_id == 1


# ---- joining again --------------------------------------------------------------------------------------------


def test_a_follower_that_joins_again_unchanged_is_told_the_generation(world: GroupWorld) -> None:
    (leader, follower), generation = world.stable(2)
    again = world.join(member_id=follower).result()
    assert (again.error_code, again.generation_id, again.leader) == (0, generation, leader)
    assert (again.members, again.protocol_name, again.protocol_type) == ([], "range", "consumer")
    assert world.group().state_name() == "Stable"


def test_a_leader_that_joins_again_has_everybody_rebalance(world: GroupWorld) -> None:
    (leader, follower), generation = world.stable(2)
    again = world.join(member_id=leader)
    assert not again.done
    assert error_of(world.heartbeat(follower, generation)) is ErrorCode.REBALANCE_IN_PROGRESS
    other = world.join(member_id=follower)
    assert again.result().generation_id == other.result().generation_id == generation + 1
    assert len(again.result().members) == 2


def test_a_follower_with_a_new_subscription_has_everybody_rebalance(world: GroupWorld) -> None:
    (_, follower), _ = world.stable(2)
    again = world.join(member_id=follower, protocols=(("range", b"\x00\x00" + bytes(8)),))
    assert not again.done
    assert world.group().state_name() == "PreparingRebalance"


def test_while_the_leader_assigns_a_lost_answer_can_be_had_again(world: GroupWorld) -> None:
    leader, joined = world.new_member()
    world.pass_ms(3_000)
    again = world.join(member_id=leader).result()
    assert again == joined.result()
    assert len(again.members) == 1


def test_while_the_leader_assigns_a_new_subscription_starts_over(world: GroupWorld) -> None:
    leader, _ = world.new_member()
    world.pass_ms(3_000)
    again = world.join(member_id=leader, protocols=(("range", b"\x00\x00" + bytes(8)),))
    assert again.result().generation_id == 2


def test_a_request_that_was_sent_twice_is_answered_twice(world: GroupWorld) -> None:
    member, first = world.new_member()
    second = world.join(member_id=member)
    world.pass_ms(3_000)
    assert first.result() == second.result()
    assert second.result().generation_id == 1


def test_who_does_not_join_again_in_time_is_left_behind(world: GroupWorld) -> None:
    (leader, follower), generation = world.stable(2, session_ms=300_000, rebalance_ms=20_000)
    again = world.join(
        member_id=follower, protocols=(("range", b"\x00\x00" + bytes(8)),), rebalance_ms=20_000
    )
    world.pass_ms(19_999)
    assert not again.done
    world.pass_ms(1)
    assert again.result().leader == follower, "the leader is gone, and the next one leads"
    assert error_of(world.heartbeat(leader, generation)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_new_member_that_waits_too_long_is_told_to_come_again(world: GroupWorld) -> None:
    (leader,), _ = world.stable(session_ms=1_800_000, rebalance_ms=1_000_000)
    _, joined = world.new_member()
    world.pass_ms(NEW_MEMBER_JOIN_TIMEOUT_MS)
    refused = joined.result()
    assert (refused.error_code, refused.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")
    assert set(world.group().members) == {leader}


# ---- sizes ----------------------------------------------------------------------------------------------------


def test_a_group_has_no_more_members_than_it_may() -> None:
    world = GroupWorld({"group.max.size": 2})
    members, generation = world.stable(2)
    refused = world.join().result()
    assert (refused.error_code, refused.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert error_of(world.join(member_id=members[1])) is ErrorCode.NONE
    assert all(error_of(world.heartbeat(member, generation)) is ErrorCode.NONE for member in members)


def test_ids_may_be_given_to_more_but_only_so_many_come_in() -> None:
    world = GroupWorld({"group.max.size": 2})
    given = [world.join().result().member_id for _ in range(4)]
    joins = [world.join(member_id=member) for member in given]
    assert [error_of(pending) for pending in joins[2:]] == [ErrorCode.GROUP_MAX_SIZE_REACHED] * 2
    world.pass_ms(9_000)
    assert [pending.result().generation_id for pending in joins[:2]] == [1, 1]
    assert not world.group().pending_join


def test_a_group_that_is_too_large_when_it_is_loaded_gets_smaller() -> None:
    world = GroupWorld()
    members, _ = world.stable(3)
    world = world.reloaded({**world.settings, "group.max.size": 2})
    assert world.group().state_name() == "PreparingRebalance"
    joins = [world.join(member_id=member) for member in members]
    assert error_of(joins[2]) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [pending.result().generation_id for pending in joins[:2]] == [2, 2]
