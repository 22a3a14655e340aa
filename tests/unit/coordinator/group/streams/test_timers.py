"""Members of streams groups that are not heard of, or do not give up their tasks."""

from tests.support.consumer_world import refused
from tests.support.streams_world import Owned, StreamsWorld

from ottla.model.errors import ErrorCode

SESSION_MS = 45_000


def test_a_member_that_is_not_heard_of_is_fenced() -> None:
    world = StreamsWorld({"in": 2})
    world.come("a")
    world.pass_ms(SESSION_MS - 1)
    world.say("a")
    world.pass_ms(SESSION_MS - 1)
    assert "a" in world.streams_group().members
    world.pass_ms(1)
    assert world.streams_group().state_name() == "Empty"
    assert refused(world.say_later("a", epoch=2)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_others_get_the_tasks_of_who_is_fenced() -> None:
    world = StreamsWorld({"in": 2})
    world.come("a")
    world.come("b")
    world.settle_streams()
    for _ in range(10):
        world.pass_ms(SESSION_MS // 9)
        world.obey("b")
    assert list(world.streams_group().members) == ["b"]
    world.settle_streams()
    assert world.running("b") == Owned({"0": [0, 1]})


def test_a_member_that_keeps_its_tasks_is_fenced() -> None:
    world = StreamsWorld({"in": 2})
    world.come("a", rebalance_timeout_ms=10_000)
    world.come("b")
    everything = Owned({"0": [0, 1]})
    world.say("a", owned=everything)
    for _ in range(2):
        world.pass_ms(4_000)
        world.say("a", owned=everything)
        world.say("b")
    world.pass_ms(2_000)
    assert list(world.streams_group().members) == ["b"]
    world.settle_streams()
    assert world.running("b") == everything


def test_a_member_that_gives_up_in_time_stays() -> None:
    world = StreamsWorld({"in": 2})
    world.come("a", rebalance_timeout_ms=10_000)
    world.come("b")
    world.say("a", owned=Owned({"0": [0, 1]}))
    world.pass_ms(9_000)
    world.obey("a")
    world.say("b")
    world.pass_ms(20_000)
    assert set(world.streams_group().members) == {"a", "b"}


def test_a_group_has_a_session_of_its_own() -> None:
    world = StreamsWorld({"in": 1}, {"group.streams.session.timeout.ms": 60_000})
    world.come("a")
    world.pass_ms(59_999)
    assert "a" in world.streams_group().members
    world.pass_ms(1)
    assert world.streams_group().is_empty()


def test_after_a_move_everybody_has_a_whole_session() -> None:
    world = StreamsWorld({"in": 2})
    world.come("a", rebalance_timeout_ms=10_000)
    world.come("b")
    world.say("a", owned=Owned({"0": [0, 1]}))
    world.pass_ms(8_000)
    world = world.next_coordinator()
    world.pass_ms(9_999)
    assert set(world.streams_group().members) == {"a", "b"}
    world.pass_ms(1)
    assert list(world.streams_group().members) == ["b"], "it was still to give up its tasks"
    world.pass_ms(SESSION_MS)
    assert world.streams_group().is_empty()


def test_a_member_whose_end_cannot_be_written_stays() -> None:
    world = StreamsWorld({"in": 1})
    world.come("a")
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.pass_ms(SESSION_MS)
    assert "a" in world.streams_group().members
    world.log.refuse(None)
    world.pass_ms(SESSION_MS)
    assert world.streams_group().is_empty()
