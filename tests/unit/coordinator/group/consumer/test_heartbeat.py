"""Heartbeats of consumer groups: joining, epochs, what is told, and who is refused."""

import pytest
from tests.support.consumer_world import ConsumerWorld, refused, topic_id

from ottla.model.errors import ErrorCode
from ottla.wire.messages.groups.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)


def test_the_first_member_gets_everything_at_once() -> None:
    world = ConsumerWorld({"t": 3})
    answer = world.enter("a", ["t"])
    assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("a", 2, 5_000)
    assert world.told(answer) == {"t": [0, 1, 2]}
    assert world.consumer_group().state_name() == "Stable"


def test_a_second_member_waits_until_the_first_has_given_up_its_half() -> None:
    world = ConsumerWorld({"t": 4})
    world.enter("a", ["t"])
    answer = world.enter("b", ["t"])
    assert world.told(answer) == {}
    assert world.consumer_group().state_name() == "Reconciling"
    assert world.told(world.beat("a")) is not None
    kept = world.has("a")
    assert len(kept["t"]) == 2
    assert world.told(world.beat("b")) is None, "the other has not given anything up yet"
    assert world.told(world.beat("a", owned=kept)) is None, "what it keeps it knows already"
    given = world.told(world.beat("b"))
    assert given is not None
    assert sorted(given["t"] + kept["t"]) == [0, 1, 2, 3]
    assert world.consumer_group().state_name() == "Stable"


def test_a_member_stays_in_its_epoch_until_it_has_given_up() -> None:
    world = ConsumerWorld({"t": 4})
    first = world.enter("a", ["t"]).member_epoch
    world.enter("b", ["t"])
    assert world.beat("a").member_epoch == first
    assert world.beat("a", owned={"t": [0, 1, 2, 3]}).member_epoch == first
    assert world.follow("a").member_epoch == first + 1


def test_nothing_is_written_by_a_heartbeat_that_changes_nothing() -> None:
    world = ConsumerWorld({"t": 1})
    world.enter("a", ["t"])
    written = world.log.log_end_offset
    answer = world.beat("a")
    assert answer.assignment is None
    assert world.log.log_end_offset == written


def test_a_full_request_is_told_everything_again() -> None:
    world = ConsumerWorld({"t": 2})
    world.enter("a", ["t"])
    answer = world.beat("a", owned={"t": [0, 1]}, rebalance_timeout_ms=60_000, subscribed_topic_names=["t"])
    assert world.told(answer) == {"t": [0, 1]}


def test_a_new_subscription_is_a_new_epoch() -> None:
    world = ConsumerWorld({"t": 2, "u": 2})
    before = world.enter("a", ["t"]).member_epoch
    answer = world.beat("a", owned={"t": [0, 1]}, subscribed_topic_names=["u"])
    assert world.told(answer) == {}, "it has to give up the old topic first"
    assert world.told(world.beat("a", owned={})) == {"u": [0, 1]}
    assert world.member("a").member_epoch == before + 1


def test_a_change_of_the_rack_is_written_and_no_new_epoch() -> None:
    world = ConsumerWorld({"t": 2})
    epoch = world.enter("a", ["t"]).member_epoch
    assert world.beat("a", rack_id="here").member_epoch == epoch
    assert world.member("a").rack_id == "here"


@pytest.mark.parametrize("epoch", [1, 3, 99])
def test_another_epoch_than_the_members_own_is_fenced(epoch: int) -> None:
    world = ConsumerWorld({"t": 1})
    world.enter("a", ["t"])
    assert refused(world.beat_later("a", epoch=epoch)) is ErrorCode.FENCED_MEMBER_EPOCH


def test_the_epoch_before_is_taken_from_a_member_that_may_not_have_heard_of_the_new_one() -> None:
    world = ConsumerWorld({"t": 2})
    old = world.enter("a", ["t"]).member_epoch
    world.enter("b", ["t"])
    world.beat("a")
    new = world.follow("a").member_epoch
    assert new == old + 1
    assert world.beat("a", epoch=old, owned=world.has("a")).member_epoch == new
    assert world.beat("a", epoch=old, owned={}).member_epoch == new
    assert refused(world.beat_later("a", epoch=old)) is ErrorCode.FENCED_MEMBER_EPOCH
    too_much = world.beat_later("a", epoch=old, owned={"t": [0, 1]})
    assert refused(too_much) is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_fenced_member_comes_back_under_its_id() -> None:
    world = ConsumerWorld({"t": 2})
    world.enter("a", ["t"])
    assert world.told(world.enter("a", ["t"])) == {"t": [0, 1]}
    assert len(world.consumer_group().members) == 1


def test_strangers_are_unknown() -> None:
    world = ConsumerWorld({"t": 1})
    assert refused(world.beat_later("x", epoch=1)) is ErrorCode.GROUP_ID_NOT_FOUND
    assert refused(world.beat_later("x", epoch=-1)) is ErrorCode.GROUP_ID_NOT_FOUND
    world.enter("a", ["t"])
    assert refused(world.beat_later("x", epoch=1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(world.beat_later("x", epoch=-1)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_who_leaves_is_gone_and_the_others_share_what_it_had() -> None:
    world = ConsumerWorld({"t": 4})
    world.enter("a", ["t"])
    world.enter("b", ["t"])
    world.settle_group()
    answer = world.leave_group("a")
    assert (answer.member_id, answer.member_epoch) == ("a", -1)
    world.settle_group()
    assert world.has("b") == {"t": [0, 1, 2, 3]}
    assert refused(world.beat_later("a", epoch=2)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_last_one_leaves_an_empty_group() -> None:
    world = ConsumerWorld({"t": 1})
    world.enter("a", ["t"])
    world.leave_group("a")
    group = world.consumer_group()
    assert group.is_empty()
    assert group.state_name() == "Empty"
    assert group.subscriptions.get("t") is None


def test_a_group_is_full() -> None:
    world = ConsumerWorld({"t": 1}, {"group.consumer.max.size": 2})
    world.enter("a", ["t"])
    world.enter("b", ["t"], instance="i")
    assert refused(world.enter_later("c", ["t"])) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.beat("a").error_code == 0
    assert world.enter("a", ["t"]).error_code == 0, "a member may come again"
    world.beat("b", epoch=-2, instance_id="i")
    assert world.enter("d", ["t"], instance="i").error_code == 0, "a static one takes its own place"


def test_a_topic_that_comes_grows_and_goes() -> None:
    world = ConsumerWorld({})
    assert world.told(world.enter("a", ["t"])) == {}
    world.set_topics({"t": 2})
    assert world.told(world.beat("a", owned={})) == {"t": [0, 1]}
    world.set_topics({"t": 3})
    assert world.told(world.follow("a")) == {"t": [0, 1, 2]}
    epoch = world.consumer_group().epoch
    world.set_topics({"t": 3, "other": 1})
    assert world.beat("a").assignment is None
    assert world.consumer_group().epoch == epoch, "a topic that nobody subscribes to concerns nobody"
    world.set_topics({"other": 1})
    world.beat("a")
    world.beat("a", owned={})
    assert world.has("a") == {}


def test_assignments_are_made_only_so_often() -> None:
    world = ConsumerWorld({"t": 4}, {"group.consumer.assignment.interval.ms": 1_000})
    world.enter("a", ["t"])
    assert world.told(world.enter("b", ["t"])) == {}
    assert world.consumer_group().target_epoch.epoch < world.consumer_group().epoch
    assert world.consumer_group().state_name() == "Assigning"
    world.beat("a")
    assert world.shall_have("a") == {"t": [0, 1, 2, 3]}
    world.pass_ms(1_000)
    world.beat("a")
    assert len(world.shall_have("a")["t"]) == 2


def test_what_is_not_subscribed_to_any_more_is_given_up_before_the_next_assignment() -> None:
    world = ConsumerWorld({"t": 2, "u": 2}, {"group.consumer.assignment.interval.ms": 60_000})
    world.enter("a", ["t", "u"])
    answer = world.beat("a", owned=world.has("a"), subscribed_topic_names=["u"])
    assert world.told(answer) == {"u": [0, 1]}
    assert world.member("a").pending_revocation.keys() == {topic_id("t")}
    world.beat("a", owned={"u": [0, 1]})
    assert not world.member("a").pending_revocation


def test_the_assignor_that_most_ask_for_is_used() -> None:
    world = ConsumerWorld({"t": 2, "u": 2})
    for member in "abc":
        world.enter(member, ["t", "u"], assignor="range" if member != "a" else None)
    assert world.described().assignor_name == "range"
    world.settle_group()
    assert world.has("a") == {"t": [0], "u": [0]}, "ranges begin with the first member in each topic"


BROKEN = {
    "member_id": [""],
    "group_id": ["", " "],
    "instance_id": ["", "  "],
    "rack_id": ["", " "],
    "rebalance_timeout_ms": [-1],
    "topic_partitions": [None, [ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=bytes(16), partitions=[0])]],
    "subscribed_topic_names": [None],
    "member_epoch": [-3, -2, -(2**31)],
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in BROKEN.items() for value in values]
)
def test_what_no_group_could_make_right_is_invalid(field: str, value: object) -> None:
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="a", member_epoch=0, rebalance_timeout_ms=1_000,
        subscribed_topic_names=[], topic_partitions=[],
    )  # fmt: skip
    setattr(request, field, value)
    world = ConsumerWorld()
    assert refused(world.send(request)) is ErrorCode.INVALID_REQUEST
    assert world.log.log_end_offset == 0


def test_an_assignor_that_is_not_there() -> None:
    world = ConsumerWorld({"t": 1})
    assert refused(world.enter_later("a", ["t"], assignor="mine")) is ErrorCode.UNSUPPORTED_ASSIGNOR


def test_the_first_version_may_be_given_an_id() -> None:
    world = ConsumerWorld({"t": 1})
    request = ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="", member_epoch=0, rebalance_timeout_ms=1_000,
        subscribed_topic_names=["t"], topic_partitions=[],
    )  # fmt: skip
    answer = world.send(request, version=0).result()
    assert len(answer.member_id) == 22
    assert answer.member_id in world.consumer_group().members
