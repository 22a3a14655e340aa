"""Members that are not heard of, or do not do what they were asked, are fenced."""

from tests.support.consumer_world import ConsumerWorld

from ottla.model.errors import ErrorCode


def test_a_session_ends_without_heartbeats() -> None:
    world = ConsumerWorld({"t": 2})
    world.enter("a", ["t"])
    world.enter("b", ["t"])
    world.pass_ms(44_000)
    world.beat("a")
    world.pass_ms(2_000)
    assert list(world.consumer_group().members) == ["a"]
    world.follow("a")
    assert world.has("a") == {"t": [0, 1]}


def test_every_heartbeat_prolongs_it() -> None:
    world = ConsumerWorld({"t": 2})
    world.enter("a", ["t"])
    for _ in range(10):
        world.pass_ms(44_000)
        world.beat("a")
    assert list(world.consumer_group().members) == ["a"]


def test_who_does_not_give_up_in_time_is_fenced() -> None:
    world = ConsumerWorld({"t": 2})
    world.enter("a", ["t"], rebalance_ms=30_000)
    world.enter("b", ["t"])
    world.beat("a")
    for _ in range(4):
        world.pass_ms(10_000)
        if "a" in world.consumer_group().members:
            world.beat("a", owned={"t": [0, 1]})
        world.beat("b")
    assert list(world.consumer_group().members) == ["b"]
    world.beat("b")
    assert world.has("b") == {"t": [0, 1]}


def test_who_gives_up_in_time_is_not() -> None:
    world = ConsumerWorld({"t": 2})
    world.enter("a", ["t"], rebalance_ms=30_000)
    world.enter("b", ["t"])
    world.beat("a")
    world.pass_ms(20_000)
    world.follow("a")
    world.beat("b")
    world.pass_ms(20_000)
    assert set(world.consumer_group().members) == {"a", "b"}


def test_a_new_coordinator_gives_everybody_a_whole_session() -> None:
    world = ConsumerWorld({"t": 2})
    world.enter("a", ["t"])
    world.pass_ms(40_000)
    world = world.reloaded()
    world.pass_ms(40_000)
    assert "a" in world.consumer_group().members
    world.pass_ms(6_000)
    assert world.consumer_group().is_empty()


def test_a_new_coordinator_goes_on_waiting_for_what_is_to_be_given_up() -> None:
    world = ConsumerWorld({"t": 2})
    world.enter("a", ["t"], rebalance_ms=10_000)
    world.enter("b", ["t"])
    world.beat("a")
    world = world.reloaded()
    world.pass_ms(11_000)
    assert list(world.consumer_group().members) == ["b"]


def test_a_leave_that_was_not_written_leaves_the_session_running() -> None:
    world = ConsumerWorld({"t": 2})
    world.enter("a", ["t"])
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    pending = world.beat_later("a", epoch=-1)
    assert pending.error is not None
    assert pending.error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "a" in world.consumer_group().members
    world.log.refuse(None)
    world.pass_ms(46_000)
    assert world.consumer_group().is_empty()


def test_the_settings_of_a_group_count() -> None:
    world = ConsumerWorld({"t": 1}, {"group.consumer.session.timeout.ms": 50_000})
    assert world.enter("a", ["t"]).heartbeat_interval_ms == 5_000
    world.pass_ms(49_000)
    assert "a" in world.consumer_group().members
    world.pass_ms(2_000)
    assert world.consumer_group().is_empty()
