"""Where a share group starts to read: set, forgotten, and gone with the group."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.share_groups_world import ShareGroupsWorld, topic_id

from ottla.coordinator.group.context import Caller
from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.shard import GroupCoordinatorShard
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID
from ottla.share.coordinator import NOTHING_YET
from ottla.share.persister import MAX_ATTEMPTS
from ottla.share.state import SharePartitionKey
from ottla.wire.messages.groups.classic import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.wire.messages.groups.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponseTopic,
)

ALL_ATTEMPTS_MS = 12_700


@pytest.fixture
def world() -> ShareGroupsWorld:
    return ShareGroupsWorld({"t": 2, "u": 1})


def alter_request(**starts: dict[int, int]) -> AlterShareGroupOffsetsRequest:
    topics = [
        AlterShareGroupOffsetsRequestTopic(
            topic_name=name,
            partitions=[
                AlterShareGroupOffsetsRequestPartition(partition_index=p, start_offset=offset)
                for p, offset in offsets.items()
            ],
        )
        for name, offsets in starts.items()
    ]
    return AlterShareGroupOffsetsRequest(group_id="g", topics=topics)


def alter(world: ShareGroupsWorld, **starts: dict[int, int]) -> list[AlterShareGroupOffsetsResponseTopic]:
    found: list[AlterShareGroupOffsetsResponseTopic] = world.done(
        lambda: world.service.alter(alter_request(**starts))
    )
    return found


def delete(world: ShareGroupsWorld, *topics: str) -> list[DeleteShareGroupOffsetsResponseTopic]:
    named = [DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
    request = DeleteShareGroupOffsetsRequest(group_id="g", topics=named)
    found: list[DeleteShareGroupOffsetsResponseTopic] = world.done(
        lambda: world.service.delete_offsets(request)
    )
    return found


def delete_group(world: ShareGroupsWorld, *group_ids: str) -> dict[str, KafkaError]:
    refused: dict[str, KafkaError] = world.done(lambda: world.service.delete_state(0, group_ids or ("g",)))
    staying = {*refused}
    ids = [group_id for group_id in group_ids or ("g",) if group_id not in staying]

    def rest(machine: Any, _: int) -> Any:
        shard: GroupCoordinatorShard = machine
        return shard.delete_groups(ids)

    world.done(lambda: world.groups.write(0, rest))
    return refused


# ---- setting ----------------------------------------------------------------------------------------------------


def test_a_group_is_made_by_its_offsets(world: ShareGroupsWorld) -> None:
    (topic,) = alter(world, t={0: 5})
    assert (topic.topic_name, topic.topic_id) == ("t", topic_id("t"))
    assert [(p.partition_index, p.error_code) for p in topic.partitions] == [(0, 0)]
    assert world.start("t", 0) == 5
    assert world.group().is_empty()
    assert world.states_of()["initialized"] == {"t": [0]}


def test_a_member_starts_where_it_was_told(world: ShareGroupsWorld) -> None:
    alter(world, t={0: 5})
    world.enter("a", ["t"])
    world.beat("a")
    assert world.assigned("a") == {"t": [0, 1]}
    assert (world.start("t", 0), world.start("t", 1)) == (5, -1)


def test_a_group_with_members_is_not_moved(world: ShareGroupsWorld) -> None:
    world.enter("a", ["t"])
    with pytest.raises(KafkaError) as refused:
        alter(world, t={0: 5})
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    world.leave("a")
    alter(world, t={0: 5})
    assert world.start("t", 0) == 5


def test_partitions_that_do_not_exist_are_refused_one_by_one(world: ShareGroupsWorld) -> None:
    known, unknown = alter(world, t={0: 1, 2: 1}, nothing={0: 1})
    assert [p.error_code for p in known.partitions] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert [p.error_code for p in unknown.partitions] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert unknown.topic_id == ZERO_UUID


def test_a_negative_partition_is_refused_before_anything_is_written(world: ShareGroupsWorld) -> None:
    with pytest.raises(KafkaError) as refused:
        alter(world, t={-1: 5}, u={0: 1})
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR  # Kafka's answer
    assert "g" not in world.groups.active(0).machine.context.groups
    assert world.states_of() == {"initializing": {}, "initialized": {}, "deleting": 0}


def test_a_topic_that_is_named_twice_is_moved_as_both_say(world: ShareGroupsWorld) -> None:
    request = alter_request(t={0: 5})
    request.topics += alter_request(t={1: 6}).topics
    world.done(lambda: world.service.alter(request))
    assert (world.start("t", 0), world.start("t", 1)) == (5, 6)


def test_a_group_whose_topic_was_named_without_partitions_is_deleted_at_once(world: ShareGroupsWorld) -> None:
    alter(world, t={})
    assert world.done(lambda: world.service.delete_state(0, ["g"])) == {}


def test_a_share_coordinator_that_fails_is_told_partition_by_partition(world: ShareGroupsWorld) -> None:
    world.state_log.refuse(ErrorCode.KAFKA_STORAGE_ERROR)
    pending = world.service.alter(alter_request(t={0: 1, 7: 1}))
    world.pass_ms(ALL_ATTEMPTS_MS)
    (topic,) = pending.result()
    assert [p.error_code for p in topic.partitions] == [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert world.states_of()["initialized"] == {}


def test_another_kind_of_group_has_no_share_offsets(world: ShareGroupsWorld) -> None:
    machine = world.groups.active(0).machine
    machine.context.groups["g"] = machine.classic.new_simple("g")
    for ask in (lambda: alter(world, t={0: 1}), lambda: delete(world, "t"), lambda: world.enter("a", ["t"])):
        with pytest.raises(KafkaError) as refused:
            ask()
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


# ---- forgetting -------------------------------------------------------------------------------------------------


def test_topics_are_forgotten(world: ShareGroupsWorld) -> None:
    alter(world, t={0: 5, 1: 6}, u={0: 7})
    answers = delete(world, "t", "nothing")
    assert [(a.topic_name, a.error_code) for a in answers] == [
        ("t", 0),
        ("nothing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert [world.start("t", 0), world.start("t", 1), world.start("u", 0)] == [-1, -1, 7]
    assert world.states_of() == {"initializing": {}, "initialized": {"u": [0]}, "deleting": 0}
    (again,) = delete(world, "t")
    assert again.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_deletion_that_was_not_finished_can_be_repeated(world: ShareGroupsWorld) -> None:
    alter(world, t={0: 5})
    world.state_log.refuse(ErrorCode.KAFKA_STORAGE_ERROR)
    request = DeleteShareGroupOffsetsRequest(
        group_id="g", topics=[DeleteShareGroupOffsetsRequestTopic(topic_name="t")]
    )
    pending = world.service.delete_offsets(request)
    world.pass_ms(ALL_ATTEMPTS_MS)
    assert [a.error_code for a in pending.result()] == [ErrorCode.NOT_COORDINATOR]
    assert world.states_of() == {"initializing": {}, "initialized": {}, "deleting": 1}
    world.state_log.refuse(None)
    world = world.reloaded()
    assert [a.error_code for a in delete(world, "t")] == [0]
    assert world.start("t", 0) == -1
    assert world.states_of()["deleting"] == 0


def test_a_topic_that_is_wanted_again_is_not_deleted(world: ShareGroupsWorld) -> None:
    alter(world, t={0: 5})
    world.state_log.refuse(ErrorCode.KAFKA_STORAGE_ERROR)
    pending = world.service.delete_offsets(
        DeleteShareGroupOffsetsRequest(
            group_id="g", topics=[DeleteShareGroupOffsetsRequestTopic(topic_name="t")]
        )
    )
    world.pass_ms(ALL_ATTEMPTS_MS)
    assert pending.done
    world.state_log.refuse(None)
    world.enter("a", ["t"])
    assert world.states_of() == {"initializing": {}, "initialized": {"t": [0, 1]}, "deleting": 0}


def test_a_group_with_members_forgets_nothing(world: ShareGroupsWorld) -> None:
    world.enter("a", ["t"])
    with pytest.raises(KafkaError) as refused:
        delete(world, "t")
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP


# ---- groups -----------------------------------------------------------------------------------------------------


def test_a_group_goes_with_its_state(world: ShareGroupsWorld) -> None:
    alter(world, t={0: 5}, u={0: 6})
    assert delete_group(world, "g", "nobody") == {}
    assert world.refused("a", 2) is ErrorCode.GROUP_ID_NOT_FOUND
    assert [world.start("t", 0), world.start("u", 0)] == [-1, -1]
    world = world.reloaded()
    assert world.refused("a", 2) is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.states_of() == {"initializing": {}, "initialized": {}, "deleting": 0}


def test_a_group_with_members_stays(world: ShareGroupsWorld) -> None:
    world.enter("a", ["t"])
    assert delete_group(world)["g"].code is ErrorCode.NON_EMPTY_GROUP
    assert world.beat("a").error_code == 0


def test_a_group_whose_state_stays_stays(world: ShareGroupsWorld) -> None:
    alter(world, t={0: 5})
    world.state_log.refuse(ErrorCode.KAFKA_STORAGE_ERROR)
    pending = world.service.delete_state(0, ["g"])
    world.pass_ms(ALL_ATTEMPTS_MS)
    assert pending.result()["g"].code is ErrorCode.NOT_COORDINATOR
    assert world.group().is_empty()
    world.state_log.refuse(None)
    assert delete_group(world) == {}
    assert world.start("t", 0) == -1


def test_a_group_that_comes_back_starts_anew(world: ShareGroupsWorld) -> None:
    alter(world, t={0: 5})
    delete_group(world)
    world.enter("a", ["t"])
    world.beat("a")
    assert world.assigned("a") == {"t": [0, 1]}
    assert world.start("t", 0) == -1


def test_what_is_set_up_late_for_a_group_that_is_gone_takes_no_other_groups_place() -> None:
    world = ShareGroupsWorld({"t": 2}, has_state_topic=False)
    world.enter("a", ["t"])
    world.pass_ms(800)
    world.leave("a")
    world.has_state_topic = True
    assert delete_group(world) == {}
    join = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )

    def come(machine: Any, now_ms: int) -> Any:
        shard: GroupCoordinatorShard = machine
        return shard.classic.join(Caller("client", "/127.0.0.1", 3), join, now_ms)

    joined = world.groups.write(0, come)
    world.pass_ms(ALL_ATTEMPTS_MS)
    assert joined.result().error_code == 0
    assert world.groups.active(0).machine.context.groups["g"].type is GroupType.CLASSIC
    key = SharePartitionKey("g", topic_id("t"), 0)
    assert world.done(lambda: world.coordinator.summary(key)) == NOTHING_YET


# ---- the persister ----------------------------------------------------------------------------------------------


def test_the_share_coordinator_is_asked_again_and_again_but_not_for_ever(world: ShareGroupsWorld) -> None:
    asked = 0

    def no_topic() -> bool:
        nonlocal asked
        asked += 1
        return False

    world.persister.require_topic = no_topic
    pending = world.persister.read_state("g", topic_id("t"), 0, 0)
    world.pass_ms(ALL_ATTEMPTS_MS)
    assert pending.error is not None
    assert pending.error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert asked == MAX_ATTEMPTS


def test_what_will_not_pass_is_told_at_once(world: ShareGroupsWorld) -> None:
    pending = world.persister.read_state("g", topic_id("t"), 0, 0)
    world.scheduler.settle()
    assert pending.error is not None
    assert pending.error.code is ErrorCode.INVALID_REQUEST
