"""What partitions are told when the time of a produce request is up."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.model.errors import ErrorCode
from ottla.server.produce_answer import Outcomes, ProduceAnswer


def partition(high_watermark: int) -> Any:
    return SimpleNamespace(log=SimpleNamespace(high_watermark=high_watermark))


def test_only_what_is_not_committed_is_told_as_timed_out_whatever_its_topic() -> None:
    hosted = {("one", 0): partition(5), ("one", 1): partition(9), ("two", 0): partition(7)}
    answer = ProduceAnswer()
    answer._services = SimpleNamespace(  # type: ignore[assignment]
        replicas=SimpleNamespace(hosted=lambda topic, index: hosted.get((topic, index)))
    )
    # one-0 is late; two-0 was waited for too and is there by now; two-1 is nobody's, one-1 never waited.
    answer._waiting_for = [(hosted["one", 0], 6), (hosted["two", 0], 7)]
    refused = (1, int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), -1, -1, -1, [], None, None)

    def done(index: int) -> Any:
        return (index, 0, 5, -1, 0, [], None, None)

    outcomes: Outcomes = [("one", [done(0), done(1)]), ("two", [done(0), refused])]
    late = (0, int(ErrorCode.REQUEST_TIMED_OUT), *done(0)[2:])
    assert answer._late(outcomes) == [("one", [late, done(1)]), ("two", [done(0), refused])]


def test_a_late_answer_that_cannot_be_given_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    timers: list[Callable[[], None]] = []
    closed: list[str] = []
    answer = ProduceAnswer()
    answer._services = SimpleNamespace(  # type: ignore[assignment]
        loop=SimpleNamespace(call_later=lambda delay, call: timers.append(call)),
        replicas=SimpleNamespace(hosted=lambda topic, index: 1 / 0),
    )
    answer._connection = SimpleNamespace(close=closed.append)  # type: ignore[assignment]
    answer._request = SimpleNamespace(timeout_ms=5)  # type: ignore[assignment]
    waits = SimpleNamespace(log=SimpleNamespace(high_watermark=0), when_committed=lambda offset, call: None)
    answer._waiting_for = [(waits, 1)]  # type: ignore[list-item]
    deferred = answer._answer_when_committed([("one", [(0, 0, 5, -1, 0, [], None, None)])])
    timers[0]()
    assert not deferred.done
    assert closed == ["a produce request could not be answered: division by zero"]
    assert "produce: late answer failed: division by zero" in caplog.text
