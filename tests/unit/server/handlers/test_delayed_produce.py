"""What partitions are told that were not committed: because the time of the request is up, or they were taken away."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.model.errors import ErrorCode
from ottla.model.ids import TopicPartition, Uuid
from ottla.replication.partition import CommitWaiter
from ottla.server.handlers.produce import DelayedProduce, Outcomes, _Produce

EPOCH = 4
ONE, TWO = Uuid(b"1" * 16), Uuid(b"2" * 16)


class Waiting:
    """A partition that somebody waits for."""

    def __init__(self, topic: str, topic_id: Uuid, index: int) -> None:
        self.topic_partition = TopicPartition(topic, index)
        self.topic_id = topic_id
        self.leader_epoch = EPOCH
        self.settle: Callable[[ErrorCode], None]
        self.given_up: list[object] = []

    def leads_in(self, leader_epoch: int) -> bool:
        return self.leader_epoch == leader_epoch

    def when_committed(self, offset: int, callback: Callable[[ErrorCode], None]) -> CommitWaiter:
        self.settle = callback
        return CommitWaiter(offset, callback)

    def give_up(self, waiter: CommitWaiter) -> None:
        self.given_up.append(waiter.callback)


class Encoding(_Produce):
    """Keeps what it is to answer."""

    encoded: list[Outcomes]

    def _encode(self, topics: Outcomes) -> bytes:
        self.encoded.append(topics)
        return b"answer"


class World:
    """A DelayedProduce, its timer, and what was answered and closed."""

    def __init__(self, waiting: list[Waiting], topics: Outcomes) -> None:
        self.timers: list[Callable[[], None]] = []
        self.closed: list[Exception] = []
        self.encoded: list[Outcomes] = []
        replicas = SimpleNamespace(hosted=lambda topic, index: None)
        loop = SimpleNamespace(call_later=self._call_later)
        services: Any = SimpleNamespace(replicas=replicas, loop=loop)
        connection: Any = SimpleNamespace(name="1.2.3.4:5", fail=self.closed.append)
        request: Any = SimpleNamespace(timeout_ms=5)
        produce = Encoding(services, connection, request, 9, 0, 0)
        produce.encoded = self.encoded
        waiting_for: Any = [(partition, 6, EPOCH) for partition in waiting]
        self.deferred = DelayedProduce(produce, topics, waiting_for).start()

    def _call_later(self, delay: float, call: Callable[[], None]) -> Any:
        self.timers.append(call)
        return SimpleNamespace(cancel=self.timers.clear)


def done(index: int) -> Any:
    return (index, 0, 5, -1, 0, [], None, None)


@pytest.mark.parametrize(("one", "two"), [("one", "two"), (ONE, TWO)])
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NONE,
    ],
)
def test_only_what_is_not_committed_is_told_whatever_its_topic(
    one: str | bytes, two: str | bytes, code: ErrorCode
) -> None:
    # one-0 is late or lost; two-0 was waited for too and is there by now; two-1 is nobody's, one-1 never waited.
    first, second = Waiting("one", ONE, 0), Waiting("two", TWO, 0)
    refused = (1, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), -1, -1, -1, [], None, None)
    world = World([first, second], [(one, [done(0), done(1)]), (two, [done(0), refused])])
    second.settle(ErrorCode.NONE)
    assert not world.deferred.done
    if code is ErrorCode.REQUEST_TIMED_OUT:
        world.timers[0]()
        first.settle(ErrorCode.NONE)  # too late
    else:
        first.settle(code)
        assert world.timers == []
    told = (0, int(code), *done(0)[2:])
    assert world.encoded == [[(one, [told, done(1)]), (two, [done(0), refused])]]
    assert world.deferred.done


def test_what_was_appended_in_another_leadership_is_not_committed_by_this_one() -> None:
    """While another partition of the request was flushed, this one was led elsewhere, and is led here again."""
    first, second = Waiting("one", ONE, 0), Waiting("two", TWO, 0)
    first.leader_epoch = EPOCH + 2
    world = World([first, second], [("one", [done(0)]), ("two", [done(0)])])
    second.settle(ErrorCode.NONE)
    lost = (0, int(ErrorCode.NOT_LEADER_OR_FOLLOWER), *done(0)[2:])
    assert world.encoded == [[("one", [lost]), ("two", [done(0)])]]


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_what_has_ended_while_the_others_were_flushed_is_answered(code: ErrorCode) -> None:
    """A partition that had to wait when it was appended need not any more when the last one of the request is."""

    class Ended(Waiting):
        def when_committed(self, offset: int, callback: Callable[[ErrorCode], None]) -> Any:
            callback(code)

    async def test() -> None:
        loop = asyncio.get_running_loop()
        services: Any = SimpleNamespace(replicas=SimpleNamespace(hosted=lambda topic, index: None), loop=loop)
        connection: Any = SimpleNamespace(name="1.2.3.4:5", fail=print)
        request: Any = SimpleNamespace(timeout_ms=600_000, acks=-1)
        produce = Encoding(services, connection, request, 9, 0, 0)
        produce.encoded = []
        waiting_for: Any = [(Ended("one", ONE, 0), 6, EPOCH)]
        produce._waiting_for = waiting_for
        async with asyncio.timeout(60):
            assert await produce._answer_many([("one", [done(0)])]) == b"answer"
        assert produce.encoded == [[("one", [(0, int(code), *done(0)[2:])])]]

    asyncio.run(test())


def test_a_late_answer_that_cannot_be_given_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    # It has no topic: an error that nobody thought of.
    waiting = Waiting("one", ONE, 0)
    world = World([waiting], [("one", [done(0)])])
    del waiting.topic_partition
    world.timers[0]()
    assert not world.deferred.done
    assert [type(error) for error in world.closed] == [AttributeError]
    assert "1.2.3.4:5: a produce that timed out failed: 'Waiting' object has no attribute" in caplog.text


@pytest.mark.parametrize("how", ["its time is up", "its connection has ended"])
def test_one_who_waits_no_more_leaves_nothing_behind(how: str) -> None:
    """The high watermark may stand still for hours, and producers try again every few seconds."""
    first, second = Waiting("one", ONE, 0), Waiting("two", TWO, 0)
    world = World([first, second], [("one", [done(0)]), ("two", [done(0)])])
    if how == "its time is up":
        world.timers[0]()
        assert world.deferred.done
    else:
        world.deferred.abandon()
        assert not world.deferred.done
    assert [first.given_up, second.given_up] == [[first.settle], [second.settle]]
    assert world.timers == []
