"""Timers by key: pushed back cheaply, brought forward at once, tried again when their decision fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.group_world import ManualScheduler

from ottla.coordinator.deferred import (
    RETRY_MS,
    TIMEOUT_STEP_MS,
    CoordinatorTimer,
    DeferredEvent,
    DeferredEventQueue,
    Operation,
)
from ottla.coordinator.shard import CoordinatorResult
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending


class Clockwork:
    """Timers whose decisions are noted with their time."""

    def __init__(self) -> None:
        self.scheduler = ManualScheduler(0)
        self.timers = CoordinatorTimer(self.scheduler, self._fire)
        self.rung: list[tuple[str, int]] = []
        self.failures = 0

    def _fire(self, operation: Operation) -> Pending[Any]:
        if self.failures:
            self.failures -= 1
            return Pending.failed(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return Pending.of(operation(self.scheduler.now_ms()).response)

    def start(self, key: str, delay_ms: float, name: str | None = None) -> None:
        self.timers.start(
            key, delay_ms, lambda now_ms: CoordinatorResult(self.rung.append((name or key, now_ms)))
        )


def test_a_timer_rings_once_when_it_is_due() -> None:
    work = Clockwork()
    work.start("a", 100)
    work.scheduler.pass_ms(99)
    assert work.rung == []
    work.scheduler.pass_ms(500)
    assert work.rung == [("a", 100)]
    assert len(work.timers) == 0


def test_a_timer_that_is_pushed_back_keeps_its_place_in_the_scheduler() -> None:
    work = Clockwork()
    work.start("a", 100)
    for _ in range(5):
        work.scheduler.pass_ms(50)
        work.start("a", 100)
    assert len(work.scheduler._later) == 1
    work.scheduler.pass_ms(1_000)
    assert work.rung == [("a", 350)]


def test_a_timer_that_is_brought_forward_rings_earlier() -> None:
    work = Clockwork()
    work.start("a", 1_000, "late")
    work.start("a", 10, "soon")
    work.scheduler.pass_ms(2_000)
    assert work.rung == [("soon", 10)]


def test_the_newest_operation_counts() -> None:
    work = Clockwork()
    work.start("a", 100, "first")
    work.start("a", 200, "second")
    work.scheduler.pass_ms(1_000)
    assert work.rung == [("second", 200)]


def test_cancelled_and_cleared_timers_are_silent() -> None:
    work = Clockwork()
    work.start("a", 100)
    work.start("b", 100)
    work.start("c", 100)
    work.timers.cancel("a")
    work.timers.cancel("unknown")
    work.scheduler.pass_ms(50)
    work.timers.clear()
    work.scheduler.pass_ms(1_000)
    assert work.rung == []


def test_a_cancelled_timer_can_be_started_again() -> None:
    work = Clockwork()
    work.start("a", 100)
    work.timers.cancel("a")
    work.start("a", 300)
    work.scheduler.pass_ms(1_000)
    assert work.rung == [("a", 300)]


def test_a_decision_that_failed_is_made_again_unless_the_timer_was_started_anew() -> None:
    work = Clockwork()
    work.failures = 2
    work.start("a", 100)
    work.scheduler.pass_ms(100 + 3 * RETRY_MS)
    assert work.rung == [("a", 100 + 3 * RETRY_MS)]
    work.failures = 1
    work.start("a", 100, "old")
    work.scheduler.pass_ms(100)
    work.start("a", 50, "new")
    work.scheduler.pass_ms(10_000)
    assert [name for name, _ in work.rung] == ["a", "new"]


def test_a_decision_that_always_fails_is_tried_less_and_less_often() -> None:
    work = Clockwork()
    work.failures = 1_000_000
    work.start("a", 0)
    work.scheduler.pass_ms(0)
    tries = []
    for _ in range(200):
        before = work.failures
        work.scheduler.pass_ms(RETRY_MS)
        if work.failures != before:
            tries.append(work.scheduler.now_ms())
    assert tries == [500, 1_500, 3_500, 7_500, 15_500, 31_500, 61_500, 91_500]
    assert len(work.timers) == 1


def test_a_firing_that_raises_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    work = Clockwork()
    raised = [RuntimeError("nobody expected this")]

    def ring(now_ms: int) -> CoordinatorResult[None]:
        if raised:
            raise raised.pop()
        return CoordinatorResult(work.rung.append(("a", now_ms)))

    work.timers.start("a", 100, ring)
    work.scheduler.pass_ms(100)
    (line,) = caplog.records
    assert "timer a failed: nobody expected this" in line.getMessage()
    work.scheduler.pass_ms(10_000)
    assert work.rung == [("a", 100 + RETRY_MS)]
    assert len(work.timers) == 0


def test_a_timer_that_is_cancelled_while_its_decision_waits_is_not_tried_again() -> None:
    work = Clockwork()
    decision: Pending[Any] = Pending()
    timers = CoordinatorTimer(work.scheduler, lambda operation: decision)
    timers.start("a", 100, lambda now_ms: CoordinatorResult(None))
    work.scheduler.pass_ms(100)
    assert len(timers) == 1
    timers.cancel("a")
    decision.fail(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    work.scheduler.pass_ms(10_000)
    assert len(timers) == 0


def test_a_timer_is_kept_until_its_decision_is_committed() -> None:
    work = Clockwork()
    decisions: list[Pending[Any]] = []

    def fire(operation: Operation) -> Pending[Any]:
        decisions.append(Pending())
        return decisions[-1]

    timers = CoordinatorTimer(work.scheduler, fire)
    timers.start("a", 100, lambda now_ms: CoordinatorResult(None))
    work.scheduler.pass_ms(5_000)
    assert len(decisions) == len(timers) == 1
    decisions[0].fail(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS))
    work.scheduler.pass_ms(RETRY_MS)
    assert len(decisions) == 2
    decisions[1].resolve(None)
    assert len(timers) == 0


def test_a_timer_may_start_itself() -> None:
    work = Clockwork()

    def ring(now_ms: int) -> CoordinatorResult[None]:
        work.rung.append(("self", now_ms))
        work.timers.start("self", 10, ring)
        return CoordinatorResult(None)

    work.timers.start("self", 10, ring)
    work.scheduler.pass_ms(35)
    assert work.rung == [("self", 10), ("self", 20), ("self", 30)]


class Rounds(deque[DeferredEvent]):
    """Counts how often somebody goes through it."""

    count = 0

    def __iter__(self) -> Iterator[DeferredEvent]:
        self.count += 1
        return super().__iter__()


def test_what_takes_too_long_is_not_looked_for_again_with_every_decision() -> None:
    scheduler = ManualScheduler(0)
    queue = DeferredEventQueue(scheduler)
    queue._decisions = rounds = Rounds()
    waiting: list[Pending[None]] = [Pending() for _ in range(1_000)]
    for offset, pending in enumerate(waiting):
        queue.add(offset, 5_000, CoordinatorResult(None), pending)
        scheduler.pass_ms(1)
    scheduler.pass_ms(5_000 + TIMEOUT_STEP_MS)
    assert all(pending.error is not None for pending in waiting)
    assert rounds.count <= 1_000 / TIMEOUT_STEP_MS + 2


def test_a_wall_clock_that_jumps_moves_no_timer() -> None:
    work = Clockwork()
    work.start("a", 100)
    wall = work.scheduler.now_ms
    work.scheduler.now_ms = lambda: wall() - 3_600_000  # type: ignore[method-assign]
    work.start("a", 100)
    work.scheduler.pass_ms(150)
    assert len(work.rung) == 1
