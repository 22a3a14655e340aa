"""Whom a shard tells: those who wait for a commit, and those whom a decision's effects name.

What was decided is told when all it may have seen is committed; if that could not be written, everybody is told so,
and nobody is left waiting. Whoever raises when told is logged, and the others are told all the same. Timers are the
effects that do not wait: a member's time runs from the decision on.

Rules: whoever is told something may decide the next thing in the same turn. Answers go out in portions, each in a turn
of the loop of its own.

Owner: a Shard, which decides and writes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

from ottla.coordinator.ports import Machine, Scheduler, ShardLog
from ottla.coordinator.result import After, Answer, CancelTimer, Effect, Result, StartTimer
from ottla.coordinator.shard_state import ShardState
from ottla.coordinator.timeline import Timeline
from ottla.coordinator.timers import Fire, Timers
from ottla.coordinator.waiting import Decision, WaitingDecisions
from ottla.model.errors import KafkaError
from ottla.model.pending import Pending
from ottla.model.tasks import report

M = TypeVar("M", bound=Machine)

# Decisions that are answered in one turn of the loop, each with a response to encode and send.
ANSWERED_AT_ONCE: Final = 32


class AnsweringShard(Generic[M]):
    """A machine and the log it is replayed from, as far as answering goes."""

    def __init__(
        self, machine: M, timeline: Timeline, shard_log: ShardLog, scheduler: Scheduler, fire: Fire
    ) -> None:
        """`fire` makes a decision of what a timer was started for."""
        self.machine = machine
        self.timeline = timeline
        self.log = shard_log
        self.state = ShardState.LOADING
        self._scheduler = scheduler
        self._timers = Timers(scheduler, fire)
        self._waiting = WaitingDecisions(scheduler)
        # Who waits for what lies before it is told, now or in one of the next turns.
        self._committed_offset = -1
        self._answering = False

    # ---- when it is committed -----------------------------------------------------------------------------

    def _committed(self) -> None:
        """The high watermark has moved, or the partition is gone: look which."""
        if self.state is not ShardState.ACTIVE:
            return
        self._committed_offset = high_watermark = self.log.high_watermark
        self.timeline.commit(high_watermark)
        if not self._answering:
            self._answer_some()

    def _answer_some(self) -> None:
        """In portions: a thousand members that all wait for one batch would hold the loop."""
        self._answering = True
        try:
            for _ in range(ANSWERED_AT_ONCE):
                if not self._answer_next():
                    return
        finally:
            self._answering = False
        if self._waiting.has_committed(self._committed_offset):
            self._answering = True
            self._scheduler.call_soon(self._answer_more)

    def _answer_more(self) -> None:
        self._answering = False
        if self.state is ShardState.ACTIVE:
            self._answer_some()

    def _answer_next(self) -> bool:
        entry = self._waiting.take_committed(self._committed_offset)
        if entry is None:
            return False
        try:
            self._release(entry.result, entry.pending)
        except Exception as error:  # noqa: BLE001 - the boundary of an answer
            report(error, name="an answer", owner="coordinator")
        return True

    # ---- telling ------------------------------------------------------------------------------------------

    def _release(self, result: Result[Any], pending: Pending[Any]) -> None:
        if result.effects:
            self._apply_answers(result.effects)
        response = result.response
        if isinstance(response, Pending):
            response.then(lambda parked: _pass_on(parked, pending))
        elif not pending.done:
            pending.resolve(response)

    def _tell_failure(self, entry: Decision, error: KafkaError) -> None:
        result = entry.result
        unanswered: Iterable[Effect] = result.effects
        if result.on_failure is not None:
            effects = self._mend(result.on_failure, error)
            if self.state is ShardState.ACTIVE:
                self.apply(effects)
            else:
                # Whoever was to be answered by them is known to nobody else any more.
                unanswered = [*unanswered, *effects]
        for effect in unanswered:
            if isinstance(effect, Answer) and not effect.pending.done:
                effect.pending.fail(error)
        if not entry.pending.done:
            entry.pending.fail(error)

    def _mend(
        self, on_failure: Callable[[KafkaError], Sequence[Effect]], error: KafkaError
    ) -> Sequence[Effect]:
        try:
            return on_failure(error)
        except Exception as unexpected:  # noqa: BLE001 - the boundary of a decision
            report(unexpected, name="undoing a decision", owner="coordinator")
            return ()

    # ---- effects ------------------------------------------------------------------------------------------

    def apply(self, effects: Iterable[Effect]) -> None:
        """Effects that rest on no decision of their own."""
        effects = list(effects)
        self._apply_timers(effects)
        self._apply_answers(effects)

    def _apply_timers(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StartTimer):
                self._timers.start(effect.key, effect.delay_ms, effect.operation)
            elif isinstance(effect, CancelTimer):
                self._timers.cancel(effect.key)

    def _apply_answers(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                if not effect.pending.done:
                    effect.pending.resolve(effect.response)
            elif isinstance(effect, After):
                try:
                    effect.call()
                except Exception as error:  # noqa: BLE001 - the boundary of what follows a decision
                    report(error, name="what follows a decision", owner="coordinator")


def _pass_on(parked: Pending[Any], pending: Pending[Any]) -> None:
    if pending.done:
        return
    if parked.error is not None:
        pending.fail(parked.error)
    else:
        pending.resolve(parked.result())
