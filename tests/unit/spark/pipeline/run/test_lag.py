"""Lags are asked for beside everything else: who shows them never waits for brokers."""

from __future__ import annotations

import threading

from ottla.spark.pipeline.run.lags import UNKNOWN_LAG, Lag, Lags, LagWatch, Offsets


class Brokers(Lags):
    """Answer when they are let, with the offset itself as the lag."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1", {})
        self.may_answer = threading.Event()
        self.closed = threading.Event()

    def of(self, offsets: Offsets, now_ms: int) -> Lag:
        self.may_answer.wait(60)
        return offsets["t"]["0"], 1.5

    def close(self) -> None:
        self.closed.set()


def test_nobody_waits_for_brokers_that_do_not_answer() -> None:
    brokers = Brokers()
    watch = LagWatch(brokers, interval_s=60)
    assert watch.want("copy", {"t": {"0": 7}}) == UNKNOWN_LAG
    watch.refresh(0.01)
    assert watch.want("copy", {"t": {"0": 7}}) == UNKNOWN_LAG
    brokers.may_answer.set()
    watch.refresh(60)
    assert watch.want("copy", {"t": {"0": 9}}) == (7, 1.5)
    watch.refresh(60)
    assert watch.want("copy", {"t": {"0": 9}}) == (9, 1.5)
    watch.close()
    assert brokers.closed.wait(60)


def test_why_there_is_no_lag_is_said_until_there_is_one() -> None:
    lags = Lags("127.0.0.1:1", {"kafka.bootstrap.timeout.ms": "0"})
    assert lags.of({}, 0) == UNKNOWN_LAG
    assert lags.problem is None
    assert lags.of({"t": {"0": 1}}, 0) == UNKNOWN_LAG
    assert lags.problem is not None
    lags._ask = lambda places, now_ms: (3, 0.5)  # type: ignore[method-assign]
    assert lags.of({"t": {"0": 1}}, 0) == (3, 0.5)
    assert lags.problem is None


def test_an_error_that_nobody_thought_of_is_a_problem_like_any_other() -> None:
    lags = Lags("127.0.0.1:1", {})

    def ask(places: object, now_ms: int) -> tuple[int, float]:
        raise ZeroDivisionError("oops")

    lags._ask = ask  # type: ignore[method-assign]
    assert lags.of({"t": {"0": 1}}, 0) == UNKNOWN_LAG
    assert lags.problem == "ZeroDivisionError: oops"
