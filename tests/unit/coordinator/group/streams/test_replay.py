"""What streams groups leave in the log: the records, the state after a load, and after a write that failed."""

from tests.support.consumer_world import refused
from tests.support.streams_world import Owned, StreamsWorld, internal, subtopology, topology

from ottla.coordinator.group.streams.group import StreamsGroup
from ottla.coordinator.group.streams.member import MemberState, StreamsGroupMember
from ottla.model.errors import ErrorCode
from ottla.wire.messages.groups.streams import KeyValue
from ottla.wire.messages.logs import streams_group as log

TOPICS = {"in": 3, "g-store-changelog": 3}
STATEFUL = topology(subtopology(changelogs=[internal("g-store-changelog", cleanup_policy="compact")]))


def state(group: StreamsGroup) -> dict[str, object]:
    return {
        "epoch": group.epoch,
        "metadata hash": group.metadata_hash,
        "basis": group.basis,
        "target epoch": group.target_epoch,
        "topology": None if group.topology is None else group.topology.value,
        "members": dict(group.members.items()),
        "target": dict(group.target.items()),
        "state": group.state_name(),
    }


def test_a_join_is_written_in_kafkas_order() -> None:
    world = StreamsWorld(TOPICS)
    world.come("a", STATEFUL, endpoint=("here", 80), client_tags=[KeyValue(key="z", value="1")])
    member, said, epoch, target, target_epoch, current = world.records()
    assert member.value == log.StreamsGroupMemberMetadataValue(
        instance_id=None,
        rack_id=None,
        client_id="client",
        client_host="/127.0.0.1",
        rebalance_timeout_ms=60_000,
        topology_epoch=0,
        process_id="process-of-a",
        user_endpoint=log.Endpoint(host="here", port=80),
        client_tags=[log.KeyValue(key="z", value="1")],
    )
    assert said.key == log.StreamsGroupTopologyKey(group_id="g")
    assert epoch.value.epoch == 2
    assert epoch.value.validated_topology_epoch == 0
    assert epoch.value.metadata_hash != 0
    assert [(c.key, c.value) for c in epoch.value.last_assignment_configs] == [("num.standby.replicas", "0")]
    assert [(row.subtopology_id, row.partitions) for row in target.value.active_tasks] == [("0", [0, 1, 2])]
    assert target_epoch.value.assignment_epoch == 2
    (row,) = current.value.active_tasks
    assert (row.partitions, row.assignment_epochs) == ([0, 1, 2], [2, 2, 2])
    assert (current.value.member_epoch, current.value.previous_member_epoch, current.value.state) == (2, 0, 1)


def test_a_load_gives_the_same_group() -> None:
    world = StreamsWorld(TOPICS, {"group.streams.num.standby.replicas": 1})
    world.come("a", STATEFUL, endpoint=("here", 80))
    world.come("b", STATEFUL)
    world.settle_streams()
    world.come("c", STATEFUL)
    world.say("a")
    assert world.one("a").state is MemberState.UNREVOKED_TASKS or world.one("b").assigned.standby
    loaded = world.next_coordinator()
    assert state(loaded.streams_group()) == state(world.streams_group())
    loaded.settle_streams()
    world.settle_streams()
    assert {m: loaded.running(m) for m in "abc"} == {m: world.running(m) for m in "abc"}
    assert loaded.streams_group().state_name() == "Stable"


def test_a_write_that_fails_leaves_the_group_as_it_was() -> None:
    world = StreamsWorld(TOPICS)
    world.come("a", STATEFUL)
    before = state(world.streams_group())
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert refused(world.come_later("b", STATEFUL)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert refused(world.say_later("a", rack_id="r")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert refused(world.say_later("a", epoch=-1)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert state(world.streams_group()) == before
    world.log.refuse(None)
    world.come("b", STATEFUL)
    world.settle_streams()
    assert world.streams_group().state_name() == "Stable"


def test_a_group_that_was_not_written_is_not_there() -> None:
    world = StreamsWorld(TOPICS, {"group.streams.initial.rebalance.delay.ms": 3_000})
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert refused(world.come_later("a")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "g" not in world.machine.context.groups
    world.log.refuse(None)
    world.come("a")
    world.pass_ms(3_000)
    world.say("a", owned=Owned())
    assert world.running("a") == Owned({"0": [0, 1, 2]})


def test_a_topic_that_changed_in_vain_is_looked_at_again() -> None:
    world = StreamsWorld({"in": 1})
    world.come("a")
    world.set_topics({"in": 2})
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert refused(world.say_later("a")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.log.refuse(None)
    world.settle_streams()
    assert world.running("a") == Owned({"0": [0, 1]})


def test_deleting_a_group_leaves_nothing() -> None:
    world = StreamsWorld(TOPICS)
    world.come("a", STATEFUL)
    (answer,) = world.decide(lambda machine, _: machine.delete_groups(["g"])).result()
    assert answer.error_code == ErrorCode.NON_EMPTY_GROUP
    world.say("a", epoch=-1)
    (answer,) = world.decide(lambda machine, _: machine.delete_groups(["g"])).result()
    assert answer.error_code == ErrorCode.NONE
    assert "g" not in world.machine.context.groups
    left = {}
    for record in world.records():
        left[repr(record.key)] = record.value
    assert set(left.values()) == {None}
    assert not len(world.next_coordinator().machine.context.groups)


def test_an_empty_classic_group_makes_room_and_the_other_way_round() -> None:
    world = StreamsWorld({"in": 1})
    members, _ = world.stable()
    assert refused(world.come_later("a")) is ErrorCode.GROUP_ID_NOT_FOUND
    world.leave(members[0])
    world.come("a")
    assert world.streams_group().state_name() == "Stable"
    assert world.join("g").result().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    world.say("a", epoch=-1)
    world.stable()
    assert world.group().state_name() == "Stable"
    loaded = world.next_coordinator()
    assert loaded.group().state_name() == "Stable"


def test_records_of_older_brokers_have_no_epochs_of_their_own() -> None:
    value = log.StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=7,
        previous_member_epoch=6,
        state=3,
        active_tasks=[
            log.StreamsGroupCurrentMemberAssignmentValueTaskIds(subtopology_id="0", partitions=[1, 2])
        ],
        standby_tasks=[],
        warmup_tasks=[],
        active_tasks_pending_revocation=[],
        standby_tasks_pending_revocation=[],
        warmup_tasks_pending_revocation=[],
    )
    member = StreamsGroupMember("a").with_assignment(value)
    assert member.assigned.active == {"0": {1: 7, 2: 7}}
    assert member.state is MemberState.UNRELEASED_TASKS
    value.state = 77
    assert StreamsGroupMember("a").with_assignment(value).state is MemberState.UNKNOWN


def test_a_member_in_an_unknown_state_begins_anew() -> None:
    world = StreamsWorld({"in": 1})
    world.come("a")
    group = world.streams_group()
    odd = group.members["a"].without_assignment()
    group.put_member(StreamsGroupMember("a", 2, 1, MemberState.UNKNOWN, process_id=odd.process_id))
    assert refused(world.say_later("a", rack_id="r")) is ErrorCode.FENCED_MEMBER_EPOCH
    answer = world.say("a", owned=Owned(), rack_id="r")
    assert answer.error_code == ErrorCode.NONE
    assert world.one("a").state is MemberState.STABLE
