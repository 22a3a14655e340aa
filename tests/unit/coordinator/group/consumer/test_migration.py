"""Both protocols in one group: classic groups that are upgraded, and consumer groups that become classic again."""

import struct

import pytest
from tests.support.consumer_world import ConsumerWorld, refused, says, topic_id
from tests.support.group_world import error_of

from ottla.coordinator.group.classic.group import ClassicGroup
from ottla.coordinator.group.consumer.migration import parse_assignment
from ottla.coordinator.group.group import GroupType
from ottla.model.errors import ErrorCode
from ottla.wire.codec import encode
from ottla.wire.messages.groups.consumer_protocol import (
    ConsumerProtocolAssignment,
    TopicPartition,
)
from ottla.wire.messages.logs.offsets import ClassicMemberMetadata, ConsumerGroupMemberMetadataValue


def given(**partitions: list[int]) -> bytes:
    rows = [TopicPartition(topic=name, partitions=numbers) for name, numbers in partitions.items()]
    return struct.pack(">h", 1) + encode(ConsumerProtocolAssignment(assigned_partitions=rows), 1)


def fetched(assignment: bytes) -> dict[str, list[int]]:
    return {row.topic: list(row.partitions) for row in parse_assignment(assignment).assigned_partitions}


def classic_world(policy: str = "bidirectional") -> tuple[ConsumerWorld, str, int]:
    """A classic group of one, which has everything; the member's id and generation."""
    world = ConsumerWorld({"t": 4}, {"group.consumer.migration.policy": policy})
    old, pending = world.new_member(protocols=says("t"))
    world.pass_ms(3_000)
    generation = pending.result().generation_id
    world.sync(old, generation, {old: given(t=[0, 1, 2, 3])}).result()
    return world, old, generation


def rejoin(world: ConsumerWorld, old: str, owned: list[int]) -> int:
    answer = world.join("g", old, protocols=says("t", owned={"t": owned})).result()
    assert answer.error_code == 0
    assert answer.leader == "", "nobody leads where the coordinator assigns"
    return answer.generation_id


def upgraded() -> tuple[ConsumerWorld, str, int]:
    """A classic member and a new one, with two partitions each."""
    world, old, generation = classic_world()
    world.enter("new", ["t"])
    assert error_of(world.heartbeat(old, generation)) is ErrorCode.REBALANCE_IN_PROGRESS
    generation = rejoin(world, old, [0, 1, 2, 3])
    keeps = fetched(world.sync(old, generation).result().assignment)["t"]
    assert error_of(world.heartbeat(old, generation)) is ErrorCode.REBALANCE_IN_PROGRESS
    generation = rejoin(world, old, keeps)
    assert fetched(world.sync(old, generation).result().assignment)["t"] == keeps
    world.follow("new")
    return world, old, generation


def test_an_upgrade_keeps_what_the_members_have() -> None:
    world, old, generation = classic_world()
    world.enter("new", ["t"])
    group = world.consumer_group()
    assert group.type is GroupType.CONSUMER
    assert world.member(old).member_epoch == generation
    assert world.has(old) == {"t": [0, 1, 2, 3]}
    assert world.has("new") == {}
    assert group.classic_members == 1


def test_an_upgrade_before_the_first_generation() -> None:
    """The classic members have not agreed on a protocol yet; they join again, and are taken in."""
    world = ConsumerWorld({"t": 4})
    old, waits = world.new_member(protocols=says("t"))
    world.enter("new", ["t"])
    assert error_of(waits) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.consumer_group().classic_members == 1
    generation = rejoin(world, old, [])
    kept = fetched(world.sync(old, generation).result().assignment)["t"]
    assert sorted(kept + world.has("new")["t"]) == [0, 1, 2, 3]


def test_an_upgrade_between_two_generations_leaves_a_cooperative_member_what_it_holds() -> None:
    """Its assignment of the generation that is coming is not known yet, and it has not given up the one before."""
    world, old, _ = classic_world()
    world.new_member(protocols=says("t"))
    again = world.join("g", old, protocols=says("t", owned={"t": [0, 1, 2, 3]}))
    generation = again.result().generation_id
    world.new_member(protocols=says("t"))  # before anybody has synced the rebalance begins anew
    assert error_of(world.heartbeat(old, generation)) is ErrorCode.REBALANCE_IN_PROGRESS
    entered = world.enter("new", ["t"])
    assert world.told(entered) == {}, "the member that holds everything has not given up anything"
    assert world.has(old) == {"t": [0, 1, 2, 3]}


def test_an_upgrade_in_the_middle_of_a_rebalance_leaves_nothing_unassigned() -> None:
    """Somebody has left; the static member comes back by the new protocol before it could join again."""
    world = ConsumerWorld({"t": 4})
    static = world.join(instance="i", protocols=says("t"))
    dynamic, joined = world.new_member(protocols=says("t"))
    world.pass_ms(6_000)
    generation, stays = joined.result().generation_id, static.result().member_id
    world.sync(dynamic, generation)
    shares = {stays: given(t=[0, 1]), dynamic: given(t=[2, 3])}
    world.sync(stays, generation, shares, instance="i").result()
    world.leave(dynamic)
    assert world.told(world.enter("new", ["t"], instance="i")) == {"t": [0, 1, 2, 3]}


def test_an_upgrade_while_the_members_change_to_another_protocol() -> None:
    """A newcomer does not know the protocol of the last generation; there is one that everybody knows."""
    ((_, subscription),) = says("t")
    world = ConsumerWorld({"t": 4})
    old, joined = world.new_member(protocols=(("range", subscription), ("roundrobin", subscription)))
    world.pass_ms(3_000)
    world.sync(old, joined.result().generation_id, {old: given(t=[0, 1, 2, 3])}).result()
    _, waits = world.new_member(protocols=(("roundrobin", subscription),))
    world.enter("new", ["t"])
    assert error_of(waits) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.consumer_group().classic_members == 2
    assert world.has(old) == {"t": [0, 1, 2, 3]}


def test_both_get_their_halves() -> None:
    world, old, generation = upgraded()
    assert sorted(world.has(old)["t"] + world.has("new")["t"]) == [0, 1, 2, 3]
    assert error_of(world.heartbeat(old, generation)) is ErrorCode.NONE
    assert world.consumer_group().state_name() == "Stable"
    described = {m.member_id: m.member_type for m in world.described().members}
    assert described == {old: 0, "new": 1}


def test_who_waits_in_a_classic_rebalance_is_told_to_join_again() -> None:
    world, _, _ = classic_world()
    _, parked = world.new_member(protocols=says("t"))
    assert not parked.done
    world.enter("new", ["t"])
    assert error_of(parked) is ErrorCode.REBALANCE_IN_PROGRESS


def test_the_last_new_member_leaves_a_classic_group_that_rebalances() -> None:
    world, old, _ = upgraded()
    had = world.has(old)["t"]
    world.leave_group("new")
    group = world.group()
    assert isinstance(group, ClassicGroup)
    assert group.state_name() == "PreparingRebalance"
    assert fetched(group.members[old].assignment)["t"] == had
    assert error_of(world.heartbeat(old, group.generation_id)) is ErrorCode.REBALANCE_IN_PROGRESS
    again = world.reloaded().machine.context.groups["g"]
    assert again.type is GroupType.CLASSIC
    assert again.state_name() == "Stable"


def test_a_session_that_ends_downgrades_too() -> None:
    world, old, generation = upgraded()
    world.pass_ms(5_000)
    for _ in range(9):
        world.heartbeat(old, generation)
        world.pass_ms(5_000)
    assert world.machine.context.groups["g"].type is GroupType.CLASSIC


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_an_upgrade_may_be_forbidden(policy: str) -> None:
    world, old, _ = classic_world(policy)
    assert refused(world.enter_later("new", ["t"])) is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.group().members.keys() == {old}


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_a_downgrade_may_be_forbidden(policy: str) -> None:
    world, old, _ = upgraded()
    world.settings["group.consumer.migration.policy"] = policy
    world.leave_group("new")
    assert world.consumer_group().type is GroupType.CONSUMER
    assert set(world.consumer_group().members) == {old}


def test_no_classic_member_joins_where_migration_is_disabled() -> None:
    world = ConsumerWorld({"t": 1}, {"group.consumer.migration.policy": "disabled"})
    world.enter("new", ["t"])
    assert error_of(world.join(protocols=says("t"))) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_classic_members_need_a_protocol_in_common() -> None:
    world, _, _ = upgraded()
    other = (("sticky", says("t")[0][1]),)
    assert error_of(world.join(protocols=other)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error_of(world.join(protocol_type="connect")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_classic_member_needs_an_id_first() -> None:
    world = ConsumerWorld({"t": 1})
    world.enter("new", ["t"])
    answer = world.join("g", "", protocols=says("t")).result()
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert world.join("g", answer.member_id, protocols=says("t")).result().error_code == 0
    assert world.join("g", "", protocols=says("t"), version=3).result().error_code == 0


def test_a_classic_member_that_does_not_join_again_is_fenced() -> None:
    world, old, generation = classic_world()
    world.enter("new", ["t"])
    world.heartbeat(old, generation)
    for _ in range(13):
        world.pass_ms(5_000)
        world.follow("new")
        if old in world.consumer_group().members:
            world.heartbeat(old, generation)
    assert set(world.consumer_group().members) == {"new"}


def test_a_classic_member_that_does_not_sync_is_fenced() -> None:
    world = ConsumerWorld({"t": 2})
    world.enter("new", ["t"])
    old = world.join("g", "", protocols=says("t"), version=3, rebalance_ms=20_000, session_ms=10_000).result()
    for _ in range(5):
        world.heartbeat(old.member_id, old.generation_id)
        world.follow("new")
        world.pass_ms(5_000)
    assert set(world.consumer_group().members) == {"new"}


def test_what_a_classic_member_may_not_say() -> None:
    world, old, generation = upgraded()
    assert error_of(world.heartbeat(old, 99)) is ErrorCode.ILLEGAL_GENERATION
    assert error_of(world.heartbeat("who", generation)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error_of(world.heartbeat("new", generation)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error_of(world.sync(old, 99)) is ErrorCode.ILLEGAL_GENERATION
    wrong = world.sync(old, generation, protocol_name="sticky")
    assert error_of(wrong) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    wrong = world.sync(old, generation, protocol_type="connect")
    assert error_of(wrong) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_members_of_both_kinds_leave_by_request() -> None:
    world, old, _ = upgraded()
    answer = world.leave(old, "who").result()
    assert [row.error_code for row in answer.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert set(world.consumer_group().members) == {"new"}
    assert world.leave("new").result().members[0].error_code == 0
    assert world.consumer_group().is_empty()


def test_a_classic_static_member_takes_the_place_of_the_last_new_one() -> None:
    world, old, _ = upgraded()
    world.leave_group("new")
    world, old, _ = classic_world()
    world.enter("new", ["t"], instance="i")
    answer = world.join("g", "", instance="i", protocols=says("t")).result()
    assert answer.error_code == 0
    group = world.machine.context.groups["g"]
    assert isinstance(group, ClassicGroup)
    assert group.static_members == {"i": answer.member_id}
    assert group.members.keys() == {old, answer.member_id}


def test_a_new_static_member_takes_the_place_of_a_classic_one() -> None:
    world = ConsumerWorld({"t": 2})
    world.enter("new", ["t"])
    old = world.join("g", "", instance="i", protocols=says("t")).result()
    world.sync(old.member_id, old.generation_id, instance="i")
    answer = world.enter("newer", ["t"], instance="i")
    assert answer.error_code == 0
    assert set(world.consumer_group().members) == {"new", "newer"}
    assert world.consumer_group().classic_members == 0
    late = world.heartbeat(old.member_id, old.generation_id, instance="i")
    assert error_of(late) is ErrorCode.FENCED_INSTANCE_ID


def test_an_upgrade_that_cannot_be_written_leaves_the_classic_group() -> None:
    world, old, generation = classic_world()
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    pending = world.enter_later("new", ["t"])
    assert refused(pending) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.group().members.keys() == {old}
    world.log.refuse(None)
    assert error_of(world.heartbeat(old, generation)) is ErrorCode.NONE
    assert world.enter("new", ["t"]).error_code == 0


def test_a_downgrade_that_cannot_be_written_leaves_the_consumer_group() -> None:
    world, old, _ = upgraded()
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert refused(world.beat_later("new", epoch=-1)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert set(world.consumer_group().members) == {old, "new"}
    world.log.refuse(None)
    assert world.leave_group("new").error_code == 0
    assert world.machine.context.groups["g"].type is GroupType.CLASSIC


def test_a_classic_member_has_its_protocols_in_the_log() -> None:
    world, old, _ = upgraded()
    written = [
        record.value.classic_member_metadata
        for record in world.records()
        if isinstance(record.value, ConsumerGroupMemberMetadataValue) and record.key.member_id == old
    ]
    assert isinstance(written[-1], ClassicMemberMetadata)
    assert [protocol.name for protocol in written[-1].supported_protocols] == ["range"]
    again = world.reloaded()
    assert again.consumer_group().classic_members == 1
    assert again.member("new").classic is None


def test_topics_that_are_gone_are_left_out_of_an_assignment() -> None:
    world, old, generation = upgraded()
    world.set_topics({"u": 1})
    assert fetched(world.sync(old, generation).result().assignment) == {}
    assert topic_id("t") in world.member(old).assigned
