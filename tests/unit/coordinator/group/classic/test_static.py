"""Static membership (KIP-345): an instance keeps its place while its process is away."""

import pytest
from tests.support.group_world import GroupWorld, error_of

from ottla.model.errors import ErrorCode

OTHER = (("range", b"\x00\x00" + bytes(8)),)


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld()


def two_instances(world: GroupWorld) -> tuple[str, str]:
    """A stable group of the instances a, which leads, and b."""
    joins = [world.join(instance=name) for name in ("a", "b")]
    world.pass_ms(9_000)
    a, b = (pending.result().member_id for pending in joins)
    world.sync(a, 1, {a: b"A", b: b"B"}, instance="a")
    world.sync(b, 1, instance="b")
    assert world.group().state_name() == "Stable"
    return a, b


def test_an_instance_needs_no_second_request(world: GroupWorld) -> None:
    joined = world.join(instance="a")
    world.pass_ms(3_000)
    assert joined.result().member_id.startswith("a-")
    assert joined.result().members[0].group_instance_id == "a"


def test_it_goes_on_where_it_was(world: GroupWorld) -> None:
    a, b = two_instances(world)
    back = world.join(instance="b").result()
    assert (back.error_code, back.generation_id, back.leader, back.skip_assignment) == (0, 1, a, False)
    assert back.member_id.startswith("b-")
    assert back.member_id != b
    assert world.sync(back.member_id, 1, instance="b").result().assignment == b"B"
    assert world.group().state_name() == "Stable"
    rows = {
        row.group_instance_id: (row.member_id, row.assignment) for row in world.records()[-1].value.members
    }
    assert rows == {"a": (a, b"A"), "b": (back.member_id, b"B")}


def test_a_leader_that_is_back_need_not_assign(world: GroupWorld) -> None:
    two_instances(world)
    back = world.join(instance="a", version=9).result()
    assert (back.leader, back.skip_assignment, len(back.members)) == (back.member_id, True, 2)


def test_before_version_9_it_is_not_told_that_it_leads(world: GroupWorld) -> None:
    a, _ = two_instances(world)
    back = world.join(instance="a", version=8).result()
    assert (back.leader, back.skip_assignment, back.members) == (a, False, [])
    assert world.group().leader_id == back.member_id


def test_the_one_before_is_fenced(world: GroupWorld) -> None:
    a, b = two_instances(world)
    back = world.join(instance="b").result().member_id
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert error_of(world.heartbeat(b, 1, instance="b")) is fenced
    assert error_of(world.sync(b, 1, instance="b")) is fenced
    assert error_of(world.join(member_id=b, instance="b")) is fenced
    assert world.leave((b, "b")).result().members[0].error_code == fenced
    with pytest.raises(Exception, match="by now"):
        world.group().validate_offset_commit(b, "b", 1, transactional=False, version=8)
    assert error_of(world.heartbeat(b, 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error_of(world.heartbeat(back, 1, instance="b")) is ErrorCode.NONE
    assert error_of(world.heartbeat(a, 1, instance="a")) is ErrorCode.NONE


def test_what_the_one_before_has_parked_is_fenced_too(world: GroupWorld) -> None:
    first = world.join(instance="a")
    second = world.join(instance="a")
    refused = first.result()
    assert refused.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert (refused.generation_id, refused.leader, refused.members) == (-1, "", [])
    world.pass_ms(9_000)
    assert second.result().generation_id == 1
    assert refused.member_id != second.result().member_id


def test_a_parked_sync_of_the_one_before_is_fenced(world: GroupWorld) -> None:
    joins = [world.join(instance=name) for name in ("a", "b")]
    world.pass_ms(9_000)
    b = joins[1].result().member_id
    waiting = world.sync(b, 1, instance="b")
    back = world.join(instance="b")
    assert error_of(waiting) is ErrorCode.FENCED_INSTANCE_ID
    assert not back.done, "the leader may be assigning to the old id: everybody joins again"
    assert world.group().state_name() == "PreparingRebalance"


def test_another_subscription_alone_changes_nothing_for_the_others(world: GroupWorld) -> None:
    two_instances(world)
    back = world.join(instance="b", protocols=OTHER).result()
    assert back.generation_id == 1
    assert world.group().members[back.member_id].protocols == OTHER


def test_another_protocol_does(world: GroupWorld) -> None:
    both = (("range", b""), ("roundrobin", b""))
    joined = world.join(instance="a", protocols=both)
    world.pass_ms(3_000)
    a = joined.result().member_id
    world.sync(a, 1, {}, instance="a")
    back = world.join(instance="a", protocols=tuple(reversed(both)))
    assert back.result().generation_id == 2
    assert back.result().protocol_name == "roundrobin"


def test_if_it_cannot_be_written_the_one_before_remains(world: GroupWorld) -> None:
    a, b = two_instances(world)
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert error_of(world.join(instance="b", protocols=OTHER)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.log.refuse(None)
    assert error_of(world.heartbeat(b, 1, instance="b")) is ErrorCode.NONE
    assert world.sync(b, 1, instance="b").result().assignment == b"B"
    assert world.group().members[b].protocols != OTHER
    assert (world.group().awaiting_join_count, set(world.group().members)) == (0, {a, b})
    for _ in range(3):
        world.pass_ms(5_000)
        world.heartbeat(a, 1, instance="a")
    assert set(world.group().members) == {a}, "its session goes on as well"


def test_a_replacement_is_not_told_before_it_is_committed(world: GroupWorld) -> None:
    two_instances(world)
    world.log.hold()
    back = world.join(instance="b")
    assert not back.done
    world.log.release()
    assert back.result().generation_id == 1


def test_a_rebalance_meanwhile_answers_it_instead(world: GroupWorld) -> None:
    a, _ = two_instances(world)
    world.log.hold()
    back = world.join(instance="b")
    lead = world.join(member_id=a, instance="a")
    world.log.release()
    assert lead.result().generation_id == 2
    assert back.result().generation_id == 2
    assert world.group().awaiting_join_count == 0


def test_an_instance_that_is_away_keeps_its_place_in_a_rebalance(world: GroupWorld) -> None:
    a, b = two_instances(world)
    again = world.join(member_id=a, instance="a", session_ms=300_000)
    world.group().members[b].deadline_ms = float("inf")  # its session is long
    world.pass_ms(60_000)
    assert {member.member_id for member in again.result().members} == {a, b}


def test_if_all_are_away_it_is_waited_until_one_is_back(world: GroupWorld) -> None:
    a, b = two_instances(world)
    new, joined = world.new_member(session_ms=10_000)
    for member in (a, b):
        world.group().members[member].deadline_ms = float("inf")
    world.leave(new)
    world.pass_ms(180_000)
    assert world.group().state_name() == "PreparingRebalance"
    assert error_of(joined) is ErrorCode.UNKNOWN_MEMBER_ID
    back = world.join(instance="b")
    world.pass_ms(60_000)
    assert back.result().leader == back.result().member_id


def test_an_administrator_removes_an_instance_by_its_name(world: GroupWorld) -> None:
    a, _ = two_instances(world)
    left = world.leave(("", "b"), ("", "c"), ("", None)).result()
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert [(m.member_id, m.group_instance_id, m.error_code) for m in left.members] == [
        ("", "b", 0),
        ("", "c", unknown),
        ("", None, unknown),
    ]
    assert set(world.group().members) == {a}
    assert world.group().state_name() == "PreparingRebalance"


def test_an_instance_may_not_use_an_id_that_is_not_its_own(world: GroupWorld) -> None:
    a, b = two_instances(world)
    assert error_of(world.heartbeat(a, 1, instance="b")) is ErrorCode.FENCED_INSTANCE_ID
    assert error_of(world.heartbeat(a, 1, instance="c")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error_of(world.join(member_id=b, instance="c")) is ErrorCode.UNKNOWN_MEMBER_ID
