"""What a classic group says of itself: to the offsets, to the group commands, and to the next coordinator."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.group_world import GroupWorld, error_of

from ottla.coordinator.group.classic import rebalance
from ottla.coordinator.group.classic.group import (
    TRANSITIONS,
    ClassicGroup,
    ClassicGroupState,
    restore,
    subscribed_topics,
)
from ottla.coordinator.group.group import OffsetExpiration
from ottla.coordinator.timeline import Timeline
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.codec import encode
from ottla.wire.messages.groups.consumer_protocol import ConsumerProtocolSubscription, TopicPartition
from ottla.wire.messages.logs.offsets import GroupMetadataKey, GroupMetadataValue, MemberMetadata


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld()


def subscription(*topics: str, version: int = 3) -> bytes:
    value = ConsumerProtocolSubscription(
        topics=list(topics), owned_partitions=[TopicPartition(topic="o", partitions=[1])] if version else []
    )
    return version.to_bytes(2, "big") + encode(value, version)


# ---- states ---------------------------------------------------------------------------------------------------


def test_no_other_transitions_are_made() -> None:
    group = ClassicGroup(Timeline(), "g", 0)
    for before in ClassicGroupState:
        for after in ClassicGroupState:
            group.state = before
            if after in TRANSITIONS[before]:
                group.become(after, 1)
                assert (group.state, group.previous_state, group.state_timestamp_ms) == (after, before, 1)
            else:
                with pytest.raises(AssertionError):
                    group.become(after, 1)


def test_every_state_can_be_reached_and_ends() -> None:
    assert set(TRANSITIONS) == set(ClassicGroupState)
    assert set().union(*TRANSITIONS.values()) == set(ClassicGroupState)
    assert all(ClassicGroupState.DEAD in after for after in TRANSITIONS.values())


# ---- subscriptions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
def test_subscriptions_of_all_versions_are_understood(version: int) -> None:
    told = [subscription("a", "b", version=version), subscription("b", "c", version=version)]
    assert subscribed_topics(told) == {"a", "b", "c"}


def test_versions_to_come_begin_as_the_first_does() -> None:
    assert subscribed_topics([b"\x00\x63" + subscription("a")[2:]]) == {"a"}


@pytest.mark.parametrize(
    "other", [b"", b"\x00", b"\xff\xff" + bytes(8), b"\x00\x00\x7f\xff\xff\xff", b"\x00\x00"]
)
def test_one_that_is_not_understood_leaves_all_unknown(other: bytes) -> None:
    assert subscribed_topics([subscription("a"), other]) is None


@given(st.binary(max_size=64))
def test_no_bytes_break_it(anything: bytes) -> None:
    found = subscribed_topics([anything])
    assert found is None or all(isinstance(topic, str) for topic in found)


def test_offsets_of_topics_somebody_subscribes_to_are_kept(world: GroupWorld) -> None:
    world.stable(2, protocols=(("range", subscription("a")),))
    assert world.group().is_subscribed_to("a")
    assert not world.group().is_subscribed_to("b")


def test_if_it_is_not_known_all_are_kept(world: GroupWorld) -> None:
    world.stable(protocols=(("range", b"?"),))
    assert world.group().is_subscribed_to("anything")


def test_other_protocols_subscribe_to_nothing(world: GroupWorld) -> None:
    world.stable(protocol_type="connect", protocols=(("compatible", subscription("a")),))
    assert not world.group().is_subscribed_to("a")


# ---- for the offsets ------------------------------------------------------------------------------------------


def refusal(
    group: ClassicGroup, member: str, epoch: int, instance: str | None = None, **options: bool
) -> int:
    transactional = options.get("transactional", False)
    try:
        group.validate_offset_commit(member, instance, epoch, transactional=transactional, version=8)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def test_anybody_commits_to_an_empty_group(world: GroupWorld) -> None:
    world.join()
    assert refusal(world.group(), "", -1) is ErrorCode.NONE
    assert refusal(world.group(), "who", -1) is ErrorCode.NONE
    assert refusal(world.group(), "who", 0) is ErrorCode.UNKNOWN_MEMBER_ID


def test_only_members_commit_to_one_that_is_not(world: GroupWorld) -> None:
    (member,), generation = world.stable()
    group = world.group()
    assert refusal(group, member, generation) is ErrorCode.NONE
    assert refusal(group, member, generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert refusal(group, member, -1) is ErrorCode.ILLEGAL_GENERATION
    assert refusal(group, "who", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(group, member, generation, "i") is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(group, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refusal(group, "", -1, transactional=True) is ErrorCode.NONE, (
        "old producers do not say who they are"
    )
    assert refusal(group, "who", -1, transactional=True) is ErrorCode.UNKNOWN_MEMBER_ID


def test_members_commit_while_they_are_asked_to_join_but_not_while_they_wait(world: GroupWorld) -> None:
    (leader, follower), generation = world.stable(2)
    world.join(member_id=leader)
    assert world.group().state_name() == "PreparingRebalance"
    assert refusal(world.group(), follower, generation) is ErrorCode.NONE
    world.join(member_id=follower)
    assert world.group().state_name() == "CompletingRebalance"
    assert refusal(world.group(), follower, generation + 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert refusal(world.group(), follower, generation + 1, transactional=True) is ErrorCode.NONE


def test_groups_with_members_are_not_deleted(world: GroupWorld) -> None:
    (member,), _ = world.stable()
    with pytest.raises(KafkaError) as refused:
        world.group().validate_delete()
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    world.group().validate_offset_delete()
    world.leave(member)
    world.group().validate_delete()


def test_offsets_of_a_connect_cluster_are_not_deleted_under_its_feet(world: GroupWorld) -> None:
    world.stable(protocol_type="connect", protocols=(("compatible", b""),))
    with pytest.raises(KafkaError) as refused:
        world.group().validate_offset_delete()
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP


def test_from_when_offsets_expire(world: GroupWorld) -> None:
    assert world.machine.classic.new_simple("s").offset_expiration() == OffsetExpiration()
    (member,), _ = world.stable(protocols=(("range", subscription("a")),))
    assert world.group().offset_expiration() == OffsetExpiration()
    world.leave(member)
    assert world.group().offset_expiration() == OffsetExpiration(world.scheduler.now_ms())
    world.new_member()
    assert world.group().offset_expiration() is None, "it rebalances"
    world.stable(group_id="c", protocol_type="connect", protocols=(("compatible", b""),))
    assert world.group("c").offset_expiration() is None, "nobody knows what they read"


# ---- for the next coordinator ---------------------------------------------------------------------------------


def test_the_first_record_says_that_the_group_is_there(world: GroupWorld) -> None:
    world.join()
    (record,) = world.records()
    assert record.key == GroupMetadataKey(group="g")
    assert record.value == GroupMetadataValue(
        protocol_type="",
        generation=0,
        protocol=None,
        leader=None,
        current_state_timestamp=world.scheduler.now_ms(),
        members=[],
    )
    assert record.value_version == 3


def test_if_it_cannot_be_written_there_is_no_group(world: GroupWorld) -> None:
    world.log.refuse(ErrorCode.KAFKA_STORAGE_ERROR)
    assert error_of(world.join()) is ErrorCode.NOT_COORDINATOR
    assert error_of(world.join(version=3)) is ErrorCode.NOT_COORDINATOR
    assert "g" not in world.machine.context.groups
    world.log.refuse(None)
    assert world.stable()[1] == 1


def test_nobody_sees_a_group_that_is_not_committed(world: GroupWorld) -> None:
    world.log.hold()
    given = world.join()
    assert not given.done
    assert world.machine.classic.describe("g", 6).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    world.log.release()
    assert given.result().error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert world.machine.classic.describe("g", 6).group_state == "Empty"


def test_a_stable_group_goes_on_after_a_reload(world: GroupWorld) -> None:
    members, generation = world.stable(3, session_ms=10_000)
    world = world.reloaded()
    assert world.group().state_name() == "Stable"
    assert world.sync(members[1], generation).result().assignment == members[1].encode()
    world.pass_ms(9_999)
    assert [error_of(world.heartbeat(member, generation)) for member in members[:2]] == [ErrorCode.NONE] * 2
    world.pass_ms(9_998)
    rebalance = ErrorCode.REBALANCE_IN_PROGRESS
    assert [error_of(world.heartbeat(member, generation)) for member in members[:2]] == [rebalance] * 2
    assert set(world.group().members) == set(members[:2]), "of the third nothing was heard"


def test_what_was_not_stable_begins_again(world: GroupWorld) -> None:
    members, generation = world.stable(2, session_ms=10_000)
    world.join(member_id=members[0])
    world = world.reloaded()
    assert world.group().state_name() == "Stable"
    assert world.group().generation_id == generation
    world.pass_ms(10_000)
    assert world.group().state_name() == "Empty"


def test_an_empty_group_stays_empty(world: GroupWorld) -> None:
    (member,), generation = world.stable()
    world.leave(member)
    since = world.scheduler.now_ms()
    world.pass_ms(1_000)
    world = world.reloaded()
    assert world.group().state_name() == "Empty"
    assert (world.group().generation_id, world.group().protocol_type) == (generation + 1, "consumer")
    assert world.group().offset_expiration() == OffsetExpiration(since)


def test_static_members_are_known_after_a_reload(world: GroupWorld) -> None:
    joined = world.join(instance="i")
    world.pass_ms(3_000)
    member = joined.result().member_id
    world.sync(member, 1, {member: b"A"}, instance="i")
    world = world.reloaded()
    back = world.join(instance="i").result()
    assert (back.generation_id, back.leader, back.skip_assignment) == (1, back.member_id, True)
    assert world.sync(back.member_id, 1, instance="i").result().assignment == b"A"


def test_a_rebalance_timeout_of_nothing_keeps_nobody_busy_while_static_members_are_away(
    world: GroupWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = world.join(instance="i", session_ms=30_000)
    world.pass_ms(3_000)
    static = joined.result().member_id
    world.sync(static, 1, {static: b"A"}, instance="i")
    world.group().members[static].rebalance_timeout_ms = 0
    looks: list[int] = []
    elect = rebalance._elect_leader

    def noted(group: ClassicGroup) -> bool:
        looks.append(world.scheduler.now_ms())
        return elect(group)

    monkeypatch.setattr(rebalance, "_elect_leader", noted)
    world.join(version=3, rebalance_ms=0)
    (other,) = set(world.group().members) - {static}
    world.leave(other)
    world.pass_ms(1_000)
    assert 1 <= len(looks) <= 1_000 / rebalance.LEAST_WAIT_FOR_LEADER_MS + 1
    back = world.join(instance="i", rebalance_ms=0)
    world.pass_ms(1_000)
    assert back.result().generation_id == 2


def test_many_groups_are_watched_in_slices(world: GroupWorld) -> None:
    for number in range(250):
        joined = world.join(f"g{number}", version=3, session_ms=10_000)
    world.pass_ms(3_000)
    assert joined.result().generation_id == 1
    for number in range(250):
        group = world.group(f"g{number}")
        world.sync(next(iter(group.members)), 1, {}, group_id=group.group_id)
    world = world.reloaded()
    world.pass_ms(10_000)
    assert {world.group(f"g{number}").state_name() for number in range(250)} == {"Empty"}


def test_records_of_old_brokers_are_understood() -> None:
    group = ClassicGroup(Timeline(), "g")
    row = MemberMetadata(
        member_id="m", client_id="c", client_host="/h", session_timeout=7, subscription=b"", assignment=b"A"
    )
    restore(
        group,
        GroupMetadataValue(
            protocol_type="consumer", generation=3, protocol="range", leader="m", members=[row]
        ),
    )
    member = group.members["m"]
    assert (member.rebalance_timeout_ms, member.session_timeout_ms, member.group_instance_id) == (7, 7, None)
    assert group.state_timestamp_ms is None
    assert group.is_subscribed_to("anything")


def test_who_waits_is_told_when_the_coordinator_moves(world: GroupWorld) -> None:
    (leader, _), _ = world.stable(2)
    joining = world.join(member_id=leader)
    other = world.new_member("h")[1]
    world.pass_ms(3_000)
    member = other.result().member_id
    world.group("h").leader_id = "somebody else"
    syncing = world.sync(member, 1, group_id="h")
    world.shard.close(KafkaError(ErrorCode.NOT_COORDINATOR, "moved"))
    assert (joining.result().error_code, joining.result().member_id) == (ErrorCode.NOT_COORDINATOR, leader)
    assert error_of(syncing) is ErrorCode.NOT_COORDINATOR


def test_what_was_decided_and_not_committed_fails_when_the_coordinator_moves(world: GroupWorld) -> None:
    joins = [world.new_member() for _ in range(2)]
    world.pass_ms(9_000)
    leader = joins[0][1].result().leader
    world.log.hold()
    lead = world.sync(leader, 1, {})
    world.shard.close(KafkaError(ErrorCode.NOT_COORDINATOR, "moved"))
    assert error_of(lead) is ErrorCode.NOT_COORDINATOR


# ---- describing -----------------------------------------------------------------------------------------------


def test_a_stable_group_is_described_with_what_its_members_said(world: GroupWorld) -> None:
    members, _ = world.stable(2, protocols=(("range", b"said"),))
    described = world.machine.classic.describe("g", 6)
    assert (described.error_code, described.group_state) == (0, "Stable")
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    rows = {row.member_id: row for row in described.members}
    assert set(rows) == set(members)
    assert all(row.member_metadata == b"said" for row in rows.values())
    assert {rows[member].member_assignment for member in members} == {member.encode() for member in members}
    assert {(row.client_id, row.client_host) for row in rows.values()} == {("client", "/127.0.0.1")}


def test_one_that_is_not_stable_without(world: GroupWorld) -> None:
    (leader, _), _ = world.stable(2)
    world.join(member_id=leader)
    described = world.machine.classic.describe("g", 6)
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert {row.member_metadata for row in described.members} == {b""}


@pytest.mark.parametrize(("version", "code"), [(5, 0), (6, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_one_that_is_not_there_is_dead(world: GroupWorld, version: int, code: int) -> None:
    described = world.machine.classic.describe("who", version)
    assert (described.group_state, described.error_code, described.members) == ("Dead", code, [])
    assert described.error_message == ("Group who not found." if code else None)
