"""Groups with very many tasks: assigned in a thread, while the group goes on."""

import pytest
from tests.support.consumer_world import refused
from tests.support.streams_world import Owned, StreamsWorld, statuses, told_tasks

from ottla.coordinator.group.streams.assignment import INLINE_LIMIT
from ottla.coordinator.group.streams.groups import PORTION
from ottla.coordinator.group.streams.topology import StatusCode
from ottla.model.errors import ErrorCode, KafkaError

TASKS = INLINE_LIMIT + 1
EVERYTHING = Owned({"0": list(range(TASKS))})


def test_who_asks_is_answered_when_the_assignment_is_made() -> None:
    world = StreamsWorld({"in": TASKS}, background=True)
    pending = world.come_later("a")
    assert not pending.done
    world.background.run()
    answer = pending.result().response
    assert told_tasks(answer) == EVERYTHING
    assert answer.member_epoch == 2
    assert world.streams_group().state_name() == "Stable"


def test_others_go_on_meanwhile() -> None:
    world = StreamsWorld({"in": TASKS}, background=True)
    world.come_later("a")
    world.background.run()
    pending = world.come_later("b")
    answer = world.say("a", owned=EVERYTHING)
    assert statuses(answer) == [StatusCode.ASSIGNMENT_DELAYED]
    assert told_tasks(answer) is None
    world.background.run()
    assert told_tasks(pending.result().response) == Owned()
    world.settle_streams()
    assert len(world.running("a").active["0"]) + len(world.running("b").active["0"]) == TASKS


def test_many_members_are_written_in_portions() -> None:
    settings = {"group.streams.initial.rebalance.delay.ms": 1_000}
    world = StreamsWorld({"in": TASKS}, settings, background=True)
    for number in range(50):
        world.come(f"m{number}")
    world.pass_ms(1_000)
    assert len(world.background) == 1
    world.background.run()
    world.pass_ms(10)
    group = world.streams_group()
    assert group.target_epoch.epoch == group.epoch
    assert sum(len(group.target_of(m).active["0"]) for m in group.members) == TASKS


def test_an_end_that_is_committed_late_is_written_once_and_leaves_the_next_assignment_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = {"group.streams.initial.rebalance.delay.ms": 1_000}
    world = StreamsWorld({"in": TASKS}, settings, background=True)
    for number in range(PORTION + 10):
        world.come(f"m{number}")
    world.pass_ms(1_000)
    world.log.hold()
    world.background.run()
    world.pass_ms(6_000)  # longer than a decision is waited for
    world.log.release()
    newcomer = world.come_later("n")
    world.pass_ms(6_000)
    world.background.run()
    assert newcomer.done
    assert world.streams_group().target_epoch.epoch == world.streams_group().epoch
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_who_left_meanwhile_gets_nothing() -> None:
    world = StreamsWorld({"in": TASKS}, background=True)
    world.come_later("a")
    world.background.run()
    pending = world.come_later("b")
    world.say("b", epoch=-1)
    world.background.run()
    assert refused(pending) is ErrorCode.UNKNOWN_MEMBER_ID
    assert "b" not in world.streams_group().target
    world.say_later("a", owned=EVERYTHING)
    world.background.run()
    world.settle_streams()
    assert world.running("a") == EVERYTHING


def test_a_group_that_is_gone_meanwhile() -> None:
    world = StreamsWorld({"in": TASKS}, background=True)
    pending = world.come_later("a")
    world.say("a", epoch=-1)
    world.decide(lambda machine, _: machine.delete_groups(["g"]))
    world.background.run()
    assert refused(pending) is ErrorCode.GROUP_ID_NOT_FOUND
    world.come_later("a")
    assert len(world.background) == 1, "the next one begins anew"


def test_a_shard_that_moves_turns_away_who_waits() -> None:
    world = StreamsWorld({"in": TASKS}, background=True)
    pending = world.come_later("a")
    world.shard.close(KafkaError(ErrorCode.NOT_COORDINATOR))
    assert refused(pending) is ErrorCode.NOT_COORDINATOR


def test_a_portion_that_cannot_be_written() -> None:
    world = StreamsWorld({"in": TASKS}, background=True)
    pending = world.come_later("a")
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.background.run()
    assert refused(pending) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.log.refuse(None)
    again = world.come_later("a")
    world.background.run()
    assert told_tasks(again.result().response) == EVERYTHING


def test_who_has_sent_another_heartbeat_since_does_not_give_up_what_it_got_by_that() -> None:
    world = StreamsWorld({"in": TASKS}, {"group.streams.assignment.interval.ms": 1_000}, background=True)
    world.come_later("a")
    world.background.run()
    world.pass_ms(2_000)
    world.come_later("b")
    world.background.run()
    assert statuses(world.come("c")) == [StatusCode.ASSIGNMENT_DELAYED]
    world.pass_ms(2_000)
    pending = world.say_later("b", owned=Owned())  # its connection is lost before it is answered
    assert len(world.background) == 1
    world.obey("a")
    world.obey("a")
    assert told_tasks(world.say("b", owned=Owned())) == world.running("b")
    held = set(world.running("b").active["0"])
    assert held
    world.background.run()
    assert refused(pending) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.say("c", owned=Owned())
    assert held.isdisjoint(world.running("c").active.get("0", ()))
    world.settle_streams()
    assert set(world.running("b").active["0"]) < held, "it gives up what others shall have once it is told to"
