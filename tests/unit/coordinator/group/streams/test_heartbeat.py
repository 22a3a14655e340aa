"""Heartbeats of streams groups: joining, epochs, what is told, and who is refused."""

from typing import Any

import pytest
from tests.support.consumer_world import refused
from tests.support.streams_world import (
    Owned,
    StreamsWorld,
    internal,
    statuses,
    subtopology,
    told_tasks,
    topology,
)

from ottla.coordinator.group.streams.manager import MAX_TOPOLOGY_SIZE
from ottla.coordinator.group.streams.member import MemberState
from ottla.coordinator.group.streams.topology import StatusCode
from ottla.model.errors import ErrorCode
from ottla.wire.messages.groups.streams import KeyValue, TaskIds, TaskOffset

STORE = internal("g-store-changelog", cleanup_policy="compact")


def test_the_first_member_gets_every_task_at_once() -> None:
    world = StreamsWorld({"in": 3})
    answer = world.come("a")
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("a", 2, 5_000)
    assert told_tasks(answer) == Owned({"0": [0, 1, 2]})
    assert answer.warmup_tasks == []
    assert statuses(answer) == []
    assert world.streams_group().state_name() == "Stable"


def test_a_second_member_waits_until_the_first_has_given_up_its_half() -> None:
    world = StreamsWorld({"in": 4})
    world.come("a")
    answer = world.come("b")
    assert told_tasks(answer) == Owned()
    assert world.one("b").state is MemberState.UNRELEASED_TASKS
    assert world.streams_group().state_name() == "Reconciling"
    assert told_tasks(world.say("a")) == Owned({"0": [0, 1]})
    assert world.one("a").state is MemberState.UNREVOKED_TASKS
    assert told_tasks(world.say("b")) is None, "the other has not given anything up yet"
    assert told_tasks(world.say("a", owned=Owned({"0": [0, 1]}))) is None, "what it keeps it knows already"
    assert told_tasks(world.say("b")) == Owned({"0": [2, 3]})
    assert world.streams_group().state_name() == "Stable"


def test_a_member_stays_in_its_epoch_until_it_has_given_up() -> None:
    world = StreamsWorld({"in": 4})
    first = world.come("a").member_epoch
    world.come("b")
    assert world.say("a").member_epoch == first
    assert world.say("a", owned=Owned({"0": [0, 1, 2, 3]})).member_epoch == first
    assert world.obey("a").member_epoch == first + 1


def test_nothing_is_written_by_a_heartbeat_that_changes_nothing() -> None:
    world = StreamsWorld({"in": 1})
    world.come("a")
    world.say("a")
    written = world.log.log_end_offset
    answer = world.say("a")
    assert told_tasks(answer) is None
    assert world.log.log_end_offset == written


@pytest.mark.parametrize(
    "fields",
    [
        {"rack_id": "r"},
        {"process_id": "another"},
        {"rebalance_timeout_ms": 1},
        {"client_tags": [KeyValue(key="k", value="v")]},
    ],
)
def test_what_a_member_says_of_itself_is_a_new_epoch(fields: dict[str, Any]) -> None:
    world = StreamsWorld({"in": 1})
    first = world.come("a").member_epoch
    assert world.say("a", owned=Owned({"0": [0]}), **fields).member_epoch == first + 1
    assert world.say("a", owned=Owned({"0": [0]}), **fields).member_epoch == first + 1, "and is said twice"


def test_a_member_that_joins_again_is_told_everything() -> None:
    world = StreamsWorld({"in": 2})
    epoch = world.come("a").member_epoch
    answer = world.come("a")
    assert answer.member_epoch == epoch
    assert told_tasks(answer) == Owned({"0": [0, 1]})


def test_a_member_in_the_epoch_before_may_not_have_heard_of_the_new_one() -> None:
    world = StreamsWorld({"in": 4})
    first = world.come("a").member_epoch
    world.come("b")
    world.say("a")
    world.obey("a")
    assert world.one("a").member_epoch == first + 1
    assert world.say("a", epoch=first, owned=Owned({"0": [0, 1]})).member_epoch == first + 1
    for owned in (None, Owned({"0": [0, 1, 2]}), Owned({"9": []})):
        assert refused(world.say_later("a", epoch=first, owned=owned)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert refused(world.say_later("a", epoch=first - 1)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert refused(world.say_later("a", epoch=first + 2)) is ErrorCode.FENCED_MEMBER_EPOCH


def test_strangers_and_strange_groups_are_refused() -> None:
    world = StreamsWorld({"in": 1})
    assert refused(world.say_later("a", epoch=1)) is ErrorCode.GROUP_ID_NOT_FOUND
    assert refused(world.say_later("a", epoch=-1)) is ErrorCode.GROUP_ID_NOT_FOUND
    world.come("a")
    assert refused(world.say_later("b", epoch=1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(world.say_later("b", epoch=-1)) is ErrorCode.UNKNOWN_MEMBER_ID
    world.enter("consumer", ["in"], group_id="other")
    assert refused(world.come_later("a", group_id="other")) is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_full_group_takes_nobody() -> None:
    world = StreamsWorld({"in": 1}, {"group.streams.max.size": 1})
    world.come("a")
    assert refused(world.come_later("b")) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_who_leaves_leaves_its_tasks() -> None:
    world = StreamsWorld({"in": 2})
    world.come("a")
    world.come("b")
    world.settle_streams()
    answer = world.say("a", epoch=-1)
    assert (answer.member_id, answer.member_epoch, answer.status) == ("a", -1, [])
    world.settle_streams()
    assert world.running("b") == Owned({"0": [0, 1]})
    world.say("b", epoch=-1)
    assert world.streams_group().state_name() == "Empty"


def test_tasks_that_do_not_exist_are_refused() -> None:
    world = StreamsWorld({"in": 2})
    world.come("a")
    for owned in (Owned({"0": [2]}), Owned({"0": [-1]}), Owned({"7": [0]}), Owned({}, {"0": [2]})):
        assert refused(world.say_later("a", owned=owned)) is ErrorCode.INVALID_REQUEST


# ---- requests that are wrong whatever the group ---------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"member_id": " "},
        {"group_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"topology": None},
        {"active_tasks": None},
        {"standby_tasks": [TaskIds(subtopology_id="0", partitions=[0])]},
        {"warmup_tasks": [TaskIds(subtopology_id="0", partitions=[0])]},
        {"instance_id": "i"},
        {"task_offsets": [TaskOffset(subtopology_id="0", partition=0, offset=1)]},
        {"task_end_offsets": []},
        {"member_epoch": -3},
        {"member_epoch": -2},
        {"member_epoch": 1},
    ],
)
def test_joins_that_are_refused_at_once(fields: dict[str, Any]) -> None:
    world = StreamsWorld({"in": 1})
    request = world.come_request("a")
    for name, value in fields.items():
        setattr(request, name, value)
    assert refused(world.ask(request)) is ErrorCode.INVALID_REQUEST
    assert not len(world.machine.context.groups)


@pytest.mark.parametrize(
    "wrong",
    [
        subtopology(sources=["__consumer_offsets"]),
        subtopology(sinks=["__share_group_state"]),
        subtopology(sources=["no such/topic"]),
        subtopology(changelogs=[internal("")]),
        subtopology(changelogs=[internal("c", 3)]),
        subtopology(sinks=["r"] * MAX_TOPOLOGY_SIZE),
    ],
)
def test_topologies_that_are_refused_at_once(wrong: Any) -> None:
    world = StreamsWorld({"in": 1})
    assert refused(world.come_later("a", topology(wrong))) is ErrorCode.STREAMS_INVALID_TOPOLOGY


# ---- the topology of a group ----------------------------------------------------------------------------------


def test_the_first_topology_is_the_groups() -> None:
    first, second = subtopology("0"), subtopology("1")
    world = StreamsWorld({"in": 1})
    world.come("a", topology(first, second, epoch=3))
    assert statuses(world.come("same", topology(second, first, epoch=3))) == []
    stale = world.come("stale", topology(first, epoch=2))
    assert statuses(stale) == [StatusCode.STALE_TOPOLOGY]
    assert statuses(world.say("stale")) == [StatusCode.STALE_TOPOLOGY]
    for other in (topology(first, epoch=3), topology(first, second, epoch=4)):
        assert refused(world.come_later("other", other)) is ErrorCode.INVALID_REQUEST


def test_without_its_sources_a_group_is_not_ready() -> None:
    world = StreamsWorld({})
    answer = world.come("a")
    assert statuses(answer) == [StatusCode.MISSING_SOURCE_TOPICS]
    assert told_tasks(answer) == Owned()
    assert world.streams_group().state_name() == "NotReady"
    world.set_topics({"in": 2})
    answer = world.say("a", owned=Owned())
    assert statuses(answer) == []
    assert told_tasks(answer) == Owned({"0": [0, 1]})
    assert world.streams_group().state_name() == "Stable"
    world.set_topics({})
    assert statuses(world.say("a")) == [StatusCode.MISSING_SOURCE_TOPICS]
    assert world.streams_group().state_name() == "NotReady"


def test_internal_topics_are_named_until_they_are_there() -> None:
    world = StreamsWorld({"in": 3})
    outcome = world.come_later("a", topology(subtopology(changelogs=[STORE]))).result()
    assert statuses(outcome.response) == [StatusCode.MISSING_INTERNAL_TOPICS]
    (topic,) = outcome.topics_to_create.values()
    made = topic.creatable()
    assert (made.name, made.num_partitions, made.replication_factor) == ("g-store-changelog", 3, -1)
    assert [(config.name, config.value) for config in made.configs] == [("cleanup.policy", "compact")]
    assert list(world.say_later("a").result().topics_to_create) == ["g-store-changelog"]
    world.set_topics({"in": 3, "g-store-changelog": 3})
    outcome = world.say_later("a", owned=Owned()).result()
    assert outcome.topics_to_create == {}
    assert told_tasks(outcome.response) == Owned({"0": [0, 1, 2]})


def test_internal_topics_of_another_size_do_not_fit() -> None:
    world = StreamsWorld({"in": 3, "g-store-changelog": 2})
    outcome = world.come_later("a", topology(subtopology(changelogs=[STORE]))).result()
    assert statuses(outcome.response) == [StatusCode.INCORRECTLY_PARTITIONED_TOPICS]
    assert outcome.topics_to_create == {}


def test_tasks_follow_the_topics() -> None:
    world = StreamsWorld({"in": 1})
    world.come("a")
    epoch = world.obey("a").member_epoch
    world.set_topics({"in": 1, "somebody-elses": 5})
    assert world.obey("a").member_epoch == epoch
    world.set_topics({"in": 3})
    world.settle_streams()
    assert world.running("a") == Owned({"0": [0, 1, 2]})


# ---- waiting --------------------------------------------------------------------------------------------------


def test_the_first_assignment_waits_for_more_members() -> None:
    world = StreamsWorld({"in": 2}, {"group.streams.initial.rebalance.delay.ms": 3_000})
    answer = world.come("a")
    assert statuses(answer) == [StatusCode.ASSIGNMENT_DELAYED]
    assert (answer.member_epoch, told_tasks(answer)) == (1, Owned())
    assert statuses(world.come("b")) == [StatusCode.ASSIGNMENT_DELAYED]
    assert statuses(world.say("a")) == [StatusCode.ASSIGNMENT_DELAYED]
    world.pass_ms(3_000)
    assert told_tasks(world.say("a", owned=Owned())) == Owned({"0": [0]})
    assert told_tasks(world.say("b", owned=Owned())) == Owned({"0": [1]})
    assert statuses(world.come("c")) == [], "the group has been assigned once"


def test_a_group_that_was_empty_waits_again() -> None:
    world = StreamsWorld({"in": 2}, {"group.streams.initial.rebalance.delay.ms": 3_000})
    world.come("a")
    world.pass_ms(3_000)
    world.obey("a")
    world.say("a", epoch=-1)
    world.pass_ms(10_000)
    assert statuses(world.come("b")) == [StatusCode.ASSIGNMENT_DELAYED]


def test_who_leaves_before_the_first_assignment_is_not_missed() -> None:
    world = StreamsWorld({"in": 2}, {"group.streams.initial.rebalance.delay.ms": 3_000})
    world.come("a")
    world.say("a", epoch=-1)
    world.pass_ms(3_000)
    assert world.streams_group().target_epoch.epoch == 1


def test_a_deleted_group_does_not_wait_on() -> None:
    world = StreamsWorld({"in": 2}, {"group.streams.initial.rebalance.delay.ms": 3_000})
    world.come("a")
    world.say("a", epoch=-1)
    world.pass_ms(2_000)
    world.decide(lambda machine, _: machine.delete_groups(["g"]))
    world.come("b")
    world.pass_ms(2_000)
    assert statuses(world.say("b")) == [StatusCode.ASSIGNMENT_DELAYED], "it has a whole wait of its own"


def test_assignments_keep_their_interval() -> None:
    world = StreamsWorld({"in": 2}, {"group.streams.assignment.interval.ms": 1_000})
    world.come("a")
    assert statuses(world.come("b")) == [StatusCode.ASSIGNMENT_DELAYED]
    assert statuses(world.obey("a")) == [StatusCode.ASSIGNMENT_DELAYED]
    world.pass_ms(1_000)
    assert statuses(world.obey("a")) == []
    world.settle_streams()
    assert world.running("b") == Owned({"0": [1]})


def test_a_setting_of_the_assignor_is_a_new_epoch() -> None:
    world = StreamsWorld({"in": 1, "g-store-changelog": 1})
    world.come("a", topology(subtopology(changelogs=[STORE])))
    world.come("b", topology(subtopology(changelogs=[STORE])))
    world.settle_streams()
    epoch = world.streams_group().epoch
    world.change_settings({"group.streams.num.standby.replicas": 1})
    world.settle_streams()
    assert world.streams_group().epoch == epoch + 1
    assert world.running("a") == Owned({"0": [0]})
    assert world.running("b") == Owned({}, {"0": [0]})


# ---- what else is told ----------------------------------------------------------------------------------------


def test_everybody_hears_that_the_application_shall_stop() -> None:
    world = StreamsWorld({"in": 2})
    world.come("a")
    world.come("b")
    world.settle_streams()
    assert statuses(world.say("a", shutdown_application=True)) == [StatusCode.SHUTDOWN_APPLICATION]
    answer = world.say("b")
    assert statuses(answer) == [StatusCode.SHUTDOWN_APPLICATION]
    assert answer.status is not None
    assert "a" in answer.status[0].status_detail.split()
    world.say("a", epoch=-1)
    assert statuses(world.say("b")) == [StatusCode.SHUTDOWN_APPLICATION]
    world.say("b", epoch=-1)
    world.come("a")
    assert statuses(world.say("a")) == [], "all who were asked have gone"


def test_endpoints_are_told_until_they_are_known() -> None:
    world = StreamsWorld({"in": 2, "g-store-changelog": 2}, {"group.streams.num.standby.replicas": 1})
    said = topology(subtopology(changelogs=[STORE]))
    world.come("a", said, endpoint=("here", 80))
    world.come("b", said, endpoint=("there", 81))
    world.come("c", said)
    world.settle_streams()
    answer = world.say("c", endpoint_epoch=-1)
    assert answer.partitions_by_user_endpoint is not None
    shown = {
        (row.user_endpoint.host, row.user_endpoint.port): (
            sorted((t.topic, *t.partitions) for t in row.active_partitions),
            sorted((t.topic, *t.partitions) for t in row.standby_partitions),
        )
        for row in answer.partitions_by_user_endpoint
    }
    expected = {}
    for name, where in (("a", ("here", 80)), ("b", ("there", 81))):
        has = world.running(name)
        expected[where] = tuple([("in", *p) for p in tasks.values()] for tasks in has)
    assert shown == expected
    again = world.say("c", endpoint_epoch=answer.endpoint_information_epoch)
    assert again.partitions_by_user_endpoint is None
    assert again.endpoint_information_epoch == answer.endpoint_information_epoch


def test_an_endpoint_does_no_harm_while_there_are_no_tasks() -> None:
    world = StreamsWorld({})
    answer = world.come("a", endpoint=("here", 80))
    assert answer.partitions_by_user_endpoint is not None
    (row,) = answer.partitions_by_user_endpoint
    assert (row.active_partitions, row.standby_partitions) == ([], [])
