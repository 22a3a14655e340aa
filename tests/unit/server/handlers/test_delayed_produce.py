"""What partitions are told that were not committed: because the time of the request is up, or they were taken away."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid
from ottla.server.handlers.produce import DelayedProduce, Outcomes, _Produce

ONE, TWO = Uuid(b"1" * 16), Uuid(b"2" * 16)


def partition(topic: str, topic_id: Uuid, index: int, high_watermark: int) -> Any:
    log = SimpleNamespace(high_watermark=high_watermark, log_start_offset=0)
    return SimpleNamespace(topic_partition=TopicPartition(topic, index), topic_id=topic_id, log=log)


def done(index: int) -> Any:
    return (index, 0, 5, -1, 0, [], None, None)


def delayed(
    waiting_for: list[tuple[Any, int]], error: KafkaError, topics: Outcomes | None = None
) -> DelayedProduce:
    def leader(topic: str | bytes, index: int) -> Any:
        raise error

    replicas = SimpleNamespace(hosted=lambda topic, index: None, leader=leader)
    services: Any = SimpleNamespace(replicas=replicas)
    nobody: Any = None
    return DelayedProduce(_Produce(services, nobody, nobody, 9, 0, 0), topics or [], waiting_for)


@pytest.mark.parametrize(("one", "two"), [("one", "two"), (ONE, TWO)])
def test_only_what_is_not_committed_is_told_whatever_its_topic(one: str | bytes, two: str | bytes) -> None:
    # one-0 is late; two-0 was waited for too and is there by now; two-1 is nobody's, one-1 never waited.
    waiting = [(partition("one", ONE, 0, 5), 6), (partition("two", TWO, 0, 7), 7)]
    gone = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    refused = (1, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), -1, -1, -1, [], None, None)
    outcomes: Outcomes = [(one, [done(0), done(1)]), (two, [done(0), refused])]
    produce = delayed(waiting, gone, outcomes)
    late = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
    for why, code in ((lambda topic, index: late, late.code), (produce._why_lost, gone.code)):
        told = (0, int(code), *done(0)[2:])
        assert produce._outcomes(why) == [
            (one, [told, done(1)]),
            (two, [done(0), refused]),
        ]


def test_a_late_answer_that_cannot_be_given_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    timers: list[Callable[[], None]] = []
    closed: list[Exception] = []
    services: Any = SimpleNamespace(
        loop=SimpleNamespace(call_later=lambda delay, call: timers.append(call)),
    )
    connection: Any = SimpleNamespace(name="1.2.3.4:5", fail=closed.append)
    request: Any = SimpleNamespace(timeout_ms=5)
    # Its log has no high watermark to look at: an error that nobody thought of.
    waits: Any = SimpleNamespace(log=None, when_committed=lambda offset, call: None)
    outcomes: Outcomes = [("one", [(0, 0, 5, -1, 0, [], None, None)])]
    produce = DelayedProduce(_Produce(services, connection, request, 9, 0, 0), outcomes, [(waits, 1)])
    deferred = produce.start()
    timers[0]()
    assert not deferred.done
    assert [type(error) for error in closed] == [AttributeError]
    assert "1.2.3.4:5: a produce that timed out failed: 'NoneType' object has no attribute" in caplog.text


def test_what_is_committed_is_told_as_it_was() -> None:
    outcomes: Outcomes = [("one", [done(0)])]
    produce = delayed([(partition("one", ONE, 0, 6), 6)], KafkaError(ErrorCode.NONE), outcomes)
    assert produce._outcomes(produce._why_lost) is outcomes


def test_a_topic_that_is_gone_is_unknown_by_its_name() -> None:
    assert delayed([], KafkaError(ErrorCode.UNKNOWN_TOPIC_ID))._why_lost(ONE, 0).code == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
