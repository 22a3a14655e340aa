"""An assignment counts when it is written, and reaches everybody who asks."""

import pytest
from tests.support.group_world import GroupWorld, error_of

from ottla.model.errors import ErrorCode
from ottla.wire.messages.logs.offsets import GroupMetadataKey, GroupMetadataValue


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld()


def formed(world: GroupWorld, count: int = 2) -> list[str]:
    """A generation whose leader (the first) has not assigned yet."""
    joins = [world.new_member() for _ in range(count)]
    world.pass_ms(9_000)
    leader = joins[0][1].result().leader
    return sorted((member for member, _ in joins), key=lambda member: member != leader)


def last_value(world: GroupWorld) -> GroupMetadataValue:
    record = world.records()[-1]
    assert record.key == GroupMetadataKey(group="g")
    assert isinstance(record.value, GroupMetadataValue)
    return record.value


def test_everybody_gets_what_the_leader_assigns(world: GroupWorld) -> None:
    leader, follower = formed(world)
    early = world.sync(follower, 1)
    assert not early.done
    lead = world.sync(leader, 1, {leader: b"L", follower: b"F"})
    assert (lead.result().assignment, early.result().assignment) == (b"L", b"F")
    assert (lead.result().protocol_type, lead.result().protocol_name) == ("consumer", "range")
    assert world.group().state_name() == "Stable"
    assert world.sync(follower, 1).result().assignment == b"F"


def test_who_is_assigned_nothing_gets_nothing(world: GroupWorld) -> None:
    leader, follower = formed(world)
    world.sync(leader, 1, {leader: b"L", "who": b"?"})
    assert world.sync(follower, 1).result().assignment == b""
    assert {row.member_id: row.assignment for row in last_value(world).members} == {
        leader: b"L",
        follower: b"",
    }


def test_the_record_is_kafkas(world: GroupWorld) -> None:
    (member,) = formed(world, 1)
    world.sync(member, 1, {member: b"A"})
    record = world.records()[-1]
    value = last_value(world)
    assert record.value_version == 3
    assert (value.protocol_type, value.protocol, value.generation, value.leader) == (
        "consumer",
        "range",
        1,
        member,
    )
    # As of when the generation was formed: it is written before it is stable.
    assert value.current_state_timestamp == world.scheduler.now_ms() - 6_000
    row = value.members[0]
    assert (row.client_id, row.client_host, row.group_instance_id) == ("client", "/127.0.0.1", None)
    assert (row.session_timeout, row.rebalance_timeout) == (10_000, 60_000)
    assert (row.subscription, row.assignment) == (b"\x00\x01" + bytes(8), b"A")


def test_nobody_is_told_before_it_is_committed(world: GroupWorld) -> None:
    leader, follower = formed(world)
    world.log.hold()
    lead = world.sync(leader, 1, {leader: b"L", follower: b"F"})
    other = world.sync(follower, 1)
    assert not lead.done
    assert not other.done
    assert world.group().state_name() == "CompletingRebalance"
    world.log.release()
    assert (lead.result().assignment, other.result().assignment) == (b"L", b"F")


def test_a_rebalance_that_begins_before_the_commit_wins(world: GroupWorld) -> None:
    leader, follower = formed(world)
    world.log.hold()
    lead = world.sync(leader, 1, {leader: b"L", follower: b"F"})
    world.leave(follower)
    world.log.release()
    assert error_of(lead) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.group().state_name() == "PreparingRebalance"
    assert world.group().members[leader].assignment == b""


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_FETCH_SIZE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_if_it_cannot_be_written_everybody_joins_again(
    world: GroupWorld, failure: ErrorCode, told: ErrorCode
) -> None:
    leader, follower = formed(world)
    early = world.sync(follower, 1)
    world.log.refuse(failure)
    lead = world.sync(leader, 1, {leader: b"L", follower: b"F"})
    assert error_of(lead) is told
    assert error_of(early) is told
    assert world.group().state_name() == "PreparingRebalance"
    world.log.refuse(None)
    joins = [world.join(member_id=member) for member in (leader, follower)]
    assert [pending.result().generation_id for pending in joins] == [2, 2]


def test_an_assignment_larger_than_a_batch_is_refused(world: GroupWorld) -> None:
    (member,) = formed(world, 1)
    refused = world.sync(member, 1, {member: bytes(world.log.max_batch_bytes)})
    assert error_of(refused) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.group().state_name() == "PreparingRebalance"


def test_who_does_not_sync_in_time_is_left_behind(world: GroupWorld) -> None:
    leader, follower = formed(world)
    world.sync(leader, 1, {leader: b"L", follower: b"F"})
    for _ in range(12):
        world.heartbeat(leader, 1)
        world.heartbeat(follower, 1)
        world.pass_ms(5_000)
    assert set(world.group().members) == {leader}
    assert error_of(world.heartbeat(leader, 1)) is ErrorCode.REBALANCE_IN_PROGRESS
    assert error_of(world.heartbeat(follower, 1)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_assign_is_left_behind(world: GroupWorld) -> None:
    leader, follower = formed(world)
    waiting = world.sync(follower, 1)
    for _ in range(12):
        world.heartbeat(leader, 1)
        world.pass_ms(5_000)
    assert error_of(waiting) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.join(member_id=follower).result().leader == follower


# ---- refusals -------------------------------------------------------------------------------------------------


def test_refusals(world: GroupWorld) -> None:
    assert error_of(world.sync("m", 1)) is ErrorCode.UNKNOWN_MEMBER_ID, "there is no group"
    given = world.join().result().member_id
    assert error_of(world.sync(given, 0)) is ErrorCode.UNKNOWN_MEMBER_ID, "the group is empty"
    world.join(member_id=given)
    assert error_of(world.sync(given, 0)) is ErrorCode.REBALANCE_IN_PROGRESS
    world.pass_ms(3_000)
    assert error_of(world.sync("who", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error_of(world.sync(given, 0)) is ErrorCode.ILLEGAL_GENERATION
    assert error_of(world.sync(given, 2)) is ErrorCode.ILLEGAL_GENERATION
    assert error_of(world.sync(given, 1, protocol_type="connect")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error_of(world.sync(given, 1, protocol_name="sticky")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error_of(world.sync(given, 1, instance="i")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.group().state_name() == "CompletingRebalance"
    old = world.sync(given, 1, {given: b"A"}, protocol_type=None, protocol_name=None)
    assert old.result().assignment == b"A", "before version 5 nothing is said of protocols"
