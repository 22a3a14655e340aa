"""Assignments that are made elsewhere: large groups, and assignors of somebody's own."""

from collections.abc import Callable

import pytest
from tests.support.consumer_world import ConsumerWorld, refused, says, topic_id
from tests.support.group_world import error_of

from ottla.coordinator.group.assignors import (
    GroupAssignment,
    GroupSpec,
    PartitionAssignor,
    PartitionAssignorError,
    SubscribedTopics,
)
from ottla.coordinator.group.assignors.loading import load_assignors
from ottla.coordinator.group.consumer.assignment import PORTION
from ottla.coordinator.shard import CoordinatorResult
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.records.batch import iter_batches


class Mine(PartitionAssignor):
    """Whatever a test wants."""

    name = "mine"

    def __init__(self, answer: Callable[[GroupSpec, SubscribedTopics], GroupAssignment]) -> None:
        self._answer = answer

    def assign(self, group: GroupSpec, topics: SubscribedTopics) -> GroupAssignment:
        return self._answer(group, topics)


def everything_to_the_first(group: GroupSpec, topics: SubscribedTopics) -> GroupAssignment:
    first = min(group.members)
    return {first: {t: range(topics.num_partitions(t)) for t in group.members[first].subscribed_topic_ids}}


def world_with(answer: Callable[[GroupSpec, SubscribedTopics], GroupAssignment]) -> ConsumerWorld:
    return ConsumerWorld({"t": 4}, assignors={"mine": Mine(answer)}, background=True)


def join(world: ConsumerWorld, member_id: str) -> Pending[object]:
    return world.enter_later(member_id, ["t"])


def test_who_causes_it_is_answered_when_it_is_done() -> None:
    world = world_with(everything_to_the_first)
    pending = join(world, "a")
    assert not pending.done
    assert "a" in world.consumer_group().members, "that it has joined is written already"
    world.background.run()
    assert world.told(pending.result()) == {"t": [0, 1, 2, 3]}


def test_the_others_are_answered_at_once_with_what_there_is() -> None:
    world = world_with(everything_to_the_first)
    first = join(world, "b")
    second = join(world, "a")
    assert not first.done
    assert world.told(second.result()) == {}
    assert len(world.background) == 1
    world.background.run()
    assert world.told(first.result()) == {"t": [0, 1, 2, 3]}
    third = world.beat_later("a", epoch=world.member("a").member_epoch)
    world.background.run()
    assert world.shall_have("a") == {"t": [0, 1, 2, 3]}
    assert third.done


def test_who_has_left_meanwhile_gets_nothing() -> None:
    world = world_with(lambda group, topics: {m: {topic_id("t"): [n]} for n, m in enumerate(group.members)})
    join(world, "a")
    world.background.run()
    pending = join(world, "b")
    world.leave_group("a")
    world.background.run()
    assert pending.done
    assert world.consumer_group().target.get("a") is None
    assert len(world.consumer_group().target) == 1


def test_what_a_member_said_before_its_last_heartbeat_does_not_count() -> None:
    """It gave up waiting, came again, and was told that it has partitions: it does have them now."""
    answers = [{"b": {topic_id("t"): range(4)}}, {}]
    world = world_with(lambda group, topics: answers.pop(0))
    join(world, "b")
    world.background.run()
    says_all = {"rebalance_timeout_ms": 1, "subscribed_topic_names": ["t", "u"], "owned": {}}
    first = world.beat_later("b", epoch=0, **says_all)
    assert not first.done
    assert world.told(world.beat("b", epoch=0, **says_all)) == {"t": [0, 1, 2, 3]}
    world.background.run()
    assert refused(first) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.shall_have("b") == {}
    assert world.has("b") == {"t": [0, 1, 2, 3]}, "nobody else gets them before it has given them up"


def test_the_member_itself_has_left_meanwhile() -> None:
    world = world_with(everything_to_the_first)
    join(world, "a")
    world.background.run()
    pending = join(world, "b")
    world.leave("b").result()
    world.background.run()
    assert refused(pending) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_classic_member_hears_of_it_by_its_heartbeat() -> None:
    world = world_with(everything_to_the_first)
    join(world, "z")
    world.background.run()
    old = world.join("g", "", protocols=says("t"), version=3).result()
    assert old.error_code == 0, "its join is not parked"
    assert error_of(world.heartbeat(old.member_id, old.generation_id)) is ErrorCode.NONE
    world.background.run()
    assert error_of(world.heartbeat(old.member_id, old.generation_id)) is ErrorCode.REBALANCE_IN_PROGRESS


def test_the_group_is_gone_meanwhile() -> None:
    world = world_with(everything_to_the_first)
    pending = join(world, "a")
    world.leave_group("a")
    deleted = list(world.consumer_group().tombstones())
    world.decide(lambda _, __: CoordinatorResult(None, deleted)).result()
    world.background.run()
    assert refused(pending) is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    "answer",
    [
        lambda group, topics: {"who": {}},
        lambda group, topics: {m: {topic_id("t"): [0]} for m in group.members},
        lambda group, topics: {min(group.members): {topic_id("t"): [4]}},
        lambda group, topics: {min(group.members): {topic_id("t"): [-1]}},
        lambda group, topics: {min(group.members): {topic_id("u"): [0]}},
        lambda group, topics: 1 / 0,
        lambda group, topics: None,
    ],
    ids=["a stranger", "twice", "no such partition", "a negative one", "no such topic", "breaks", "nothing"],
)
def test_an_assignor_that_is_wrong_is_not_believed(
    answer: Callable[[GroupSpec, SubscribedTopics], GroupAssignment],
) -> None:
    asked = []

    def at_first_right(group: GroupSpec, topics: SubscribedTopics) -> GroupAssignment:
        asked.append(group)
        return everything_to_the_first(group, topics) if len(asked) == 1 else answer(group, topics)

    world = world_with(at_first_right)
    join(world, "a")
    world.background.run()
    pending = join(world, "b")
    world.background.run()
    assert refused(pending) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.shall_have("a") == {"t": [0, 1, 2, 3]}, "the group keeps what it has"


def test_an_assignor_may_say_that_it_cannot() -> None:
    def cannot(group: GroupSpec, topics: SubscribedTopics) -> GroupAssignment:
        raise PartitionAssignorError("not today")

    world = world_with(cannot)
    pending = join(world, "a")
    world.background.run()
    assert pending.error is not None
    assert "not today" in str(pending.error)


def test_it_is_tried_again_with_the_next_heartbeat() -> None:
    failures = [PartitionAssignorError("not yet")]

    def later(group: GroupSpec, topics: SubscribedTopics) -> GroupAssignment:
        if failures:
            raise failures.pop()
        return everything_to_the_first(group, topics)

    world = world_with(later)
    join(world, "a")
    world.background.run()
    pending = world.beat_later("a", epoch=0, rebalance_timeout_ms=1, subscribed_topic_names=["t"], owned={})
    world.background.run()
    assert world.told(pending.result()) == {"t": [0, 1, 2, 3]}


def test_who_waits_is_told_when_the_shard_is_closed() -> None:
    world = world_with(everything_to_the_first)
    pending = join(world, "a")
    world.shard.close(KafkaError(ErrorCode.NOT_COORDINATOR, "moved"))
    assert refused(pending) is ErrorCode.NOT_COORDINATOR


def test_what_cannot_be_written_is_told() -> None:
    world = world_with(everything_to_the_first)
    pending = join(world, "a")
    world.log.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    world.background.run()
    assert refused(pending) is ErrorCode.NOT_COORDINATOR
    world.log.refuse(None)
    again = world.beat_later("a", epoch=0, rebalance_timeout_ms=1, subscribed_topic_names=["t"], owned={})
    world.background.run()
    assert world.told(again.result()) == {"t": [0, 1, 2, 3]}


def test_a_large_group_is_written_in_portions() -> None:
    members = PORTION * 2 + 50
    world = ConsumerWorld({"t": 4_000}, {"group.consumer.assignment.interval.ms": 15_000}, background=True)
    for number in range(members):
        world.enter_later(f"m{number:04}", ["t"])
        world.background.run()
    world.pass_ms(15_000)
    world.beat_later("m0000", epoch=world.member("m0000").member_epoch)
    before = len(list(iter_batches(bytes(world.log.data))))
    world.background.run()
    assert len(list(iter_batches(bytes(world.log.data)))) - before == 3
    target = world.consumer_group().target
    given = [p for m in target for p in target[m].get(topic_id("t"), ())]
    assert sorted(given) == list(range(4_000))
    sizes = [len(target[m][topic_id("t")]) for m in target]
    assert max(sizes) - min(sizes) <= 1


def in_turn(group: GroupSpec, topics: SubscribedTopics) -> GroupAssignment:
    return {member_id: {topic_id("t"): [number]} for number, member_id in enumerate(sorted(group.members))}


def group_of_two_portions() -> ConsumerWorld:
    """All of its members are to be given something new, which is about to be computed."""
    settings = {"group.consumer.assignment.interval.ms": 15_000}
    world = ConsumerWorld({"t": 100}, settings, assignors={"mine": Mine(in_turn)}, background=True)
    for number in range(PORTION + 10):
        world.enter_later(f"m{number:04}", ["t"])
        world.background.run()
    world.pass_ms(15_000)
    world.beat_later("m0000", epoch=world.member("m0000").member_epoch)
    return world


def test_an_end_that_is_committed_late_is_written_once_and_leaves_the_next_assignment_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = group_of_two_portions()
    world.log.hold()
    world.background.run()
    world.pass_ms(6_000)  # longer than a decision is waited for
    world.log.release()
    world.pass_ms(9_000)
    newcomer = join(world, "n")
    world.pass_ms(6_000)
    world.background.run()
    assert world.told(newcomer.result()) == {"t": [PORTION + 10]}
    assert world.consumer_group().target_epoch.epoch == world.consumer_group().epoch
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_an_assignment_of_which_a_part_could_not_be_written_never_counts() -> None:
    world = group_of_two_portions()
    before = world.consumer_group().target_epoch
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.background.run()
    world.log.refuse(None)
    again = world.beat_later("m0000", epoch=world.member("m0000").member_epoch)
    world.pass_ms(1_000)
    assert world.consumer_group().target_epoch == before
    world.background.run()
    group = world.consumer_group()
    assert again.done
    assert group.target_epoch.epoch == group.epoch
    given = [p for m in group.target for p in group.target[m][topic_id("t")]]
    assert sorted(given) == list(range(PORTION + 10))


def test_the_assignors_by_their_names() -> None:
    found = load_assignors(["org.apache.kafka.coordinator.group.assignor.RangeAssignor", "uniform"])
    assert list(found) == ["range", "uniform"]
