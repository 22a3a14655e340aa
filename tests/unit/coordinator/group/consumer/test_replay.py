"""What is written is what there is: after a reload, after a failed append, and before a commit."""

import random

import pytest
from tests.support.consumer_world import ConsumerWorld

from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.consumer.member import MemberState
from ottla.coordinator.group.group import GroupType
from ottla.coordinator.shard import CoordinatorRecord, CoordinatorResult
from ottla.model.errors import ErrorCode
from ottla.wire.messages.logs import offsets as log


def shape(group: ConsumerGroup) -> dict[str, object]:
    """Everything hard that a group has."""
    return {
        "epoch": group.epoch,
        "hash": group.metadata_hash,
        "target epoch": group.target_epoch,
        "members": dict(group.members.items()),
        "static": dict(group.static_members.items()),
        "target": {m: dict(t) for m, t in group.target.items()},
        "subscriptions": dict(group.subscriptions.items()),
        "regexes": dict(group.subscribed_regexes.items()),
        "resolved": dict(group.resolved_regexes.items()),
        "classic": group.classic_members,
        "state": group.state_name(),
    }


def lively_world(seed: int = 1) -> ConsumerWorld:
    """A group that many things have happened to."""
    chance = random.Random(seed)
    world = ConsumerWorld({"t": 6, "u": 3, "v": 1})
    for step in range(60):
        members = list(world.consumer_group().members) if "g" in world.machine.context.groups else []
        if not members or chance.random() < 0.2:
            topics = chance.sample(["t", "u", "v", "w"], chance.randint(1, 3))
            regex = chance.choice([None, None, "t|u"])
            instance = f"i{step}" if chance.random() < 0.3 else None
            world.enter(f"m{step}", topics, regex=regex, instance=instance)
        elif chance.random() < 0.15:
            world.leave_group(chance.choice(members))
        else:
            member = chance.choice(members)
            world.follow(member) if chance.random() < 0.7 else world.beat(member)
        world.pass_ms(chance.choice([0, 0, 100]))
    world.enter("the last one", ["t"])
    return world


@pytest.mark.parametrize("seed", range(20))
def test_a_new_coordinator_finds_the_same_group(seed: int) -> None:
    world = lively_world(seed)
    again = world.reloaded()
    assert shape(again.consumer_group()) == shape(world.consumer_group())


@pytest.mark.parametrize("seed", range(10))
def test_what_cannot_be_written_has_not_happened(seed: int) -> None:
    world = lively_world(seed)
    before = shape(world.consumer_group())
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    for pending in (
        world.enter_later("new", ["t", "u"], regex="v", instance="i"),
        world.beat_later(next(iter(world.consumer_group().members)), epoch=-1),
    ):
        assert pending.error is not None
        assert pending.error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert shape(world.consumer_group()) == before
    world.log.refuse(None)
    assert world.enter("new", ["t"]).error_code == 0


def test_what_is_not_committed_is_not_described() -> None:
    world = ConsumerWorld({"t": 2})
    world.enter("a", ["t"])
    before = world.described()
    world.log.hold()
    pending = world.enter_later("b", ["t"])
    assert not pending.done
    assert world.described() == before
    assert world.consumer_group().state_name() == "Stable"
    assert world.consumer_group().state_name(committed=False) == "Reconciling"
    world.log.release()
    assert pending.done
    assert len(world.described().members) == 2


def write(world: ConsumerWorld, *records: CoordinatorRecord) -> None:
    world.decide(lambda _, __: CoordinatorResult(None, list(records))).result()


def test_tombstones_of_what_is_not_there_mean_nothing() -> None:
    world = ConsumerWorld()
    for key in (
        log.ConsumerGroupMetadataKey(group_id="g"),
        log.ConsumerGroupPartitionMetadataKey(group_id="g"),
        log.ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"),
        log.ConsumerGroupTargetAssignmentMetadataKey(group_id="g"),
        log.ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id="m"),
        log.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"),
        log.ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="r"),
    ):
        write(world, CoordinatorRecord(key, None))
    assert "g" not in world.machine.context.groups


def test_a_group_is_deleted_by_its_tombstones() -> None:
    world = lively_world()
    world.log.refuse(None)
    write(world, *world.consumer_group().tombstones())
    assert "g" not in world.machine.context.groups
    assert "g" not in world.reloaded().machine.context.groups


def test_the_record_of_an_old_broker_is_deleted_when_the_group_is_looked_at() -> None:
    world = ConsumerWorld({"t": 1})
    world.enter("a", ["t"])
    old = log.ConsumerGroupPartitionMetadataValue(topics=[])
    write(world, CoordinatorRecord(log.ConsumerGroupPartitionMetadataKey(group_id="g"), old))
    assert world.consumer_group().has_partition_metadata
    world.set_topics({"t": 2})
    world.beat("a")
    assert not world.consumer_group().has_partition_metadata


def test_records_without_epochs_of_partitions_take_the_members() -> None:
    world = ConsumerWorld({"t": 1})
    value = log.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=7,
        previous_member_epoch=6,
        state=9,
        assigned_partitions=[
            log.TopicPartitions(topic_id=bytes(16), partitions=[0, 1], assignment_epochs=None)
        ],
        partitions_pending_revocation=[],
    )
    key = log.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m")
    write(world, CoordinatorRecord(key, value))
    member = world.member("m")
    assert member.assigned == {bytes(16): {0: 7, 1: 7}}
    assert member.state is MemberState.UNKNOWN
    pending = world.beat_later("m", epoch=7)
    assert pending.error is not None
    assert pending.error.code is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_group_of_offsets_only_becomes_a_consumer_group() -> None:
    world = ConsumerWorld({"t": 1})
    key = log.OffsetCommitKey(group="g", topic="t", partition=0)
    write(world, CoordinatorRecord(key, log.OffsetCommitValue(offset=1, metadata="", commit_timestamp=1)))
    assert world.machine.context.groups["g"].type is GroupType.CLASSIC
    world.enter("a", ["t"])
    assert world.machine.context.groups["g"].type is GroupType.CONSUMER
    assert world.reloaded().machine.context.groups["g"].type is GroupType.CONSUMER
