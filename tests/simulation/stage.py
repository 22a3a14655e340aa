"""What the simulations of the coordinators play on: time, a network, and the log of one partition, all by a seed.

Nothing here knows what is simulated. Time passes from event to event; a request may be late, lost or doubled, and so
may its answer; a batch may be refused, its commit may lag; a new leader finds what was committed, and of the rest as
much as chance wants.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, TypeVar

from tests.support.batches import set_offset_and_epoch

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.records.batch import BatchView, iter_batches

L = TypeVar("L")
Heard = Callable[[Any, KafkaError | None], None]
BEGIN_MS = 1_700_000_000_000
REFUSALS = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.MESSAGE_TOO_LARGE,
)


class Violation(AssertionError):
    """Something happened that must not."""


class Handle:
    __slots__ = ("call", "cancelled")

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Time:
    """The Scheduler of everybody."""

    def __init__(self) -> None:
        self._now_ms = float(BEGIN_MS)
        self._order = itertools.count()
        self._events: list[tuple[float, int, Handle]] = []

    def now_ms(self) -> int:
        return int(self._now_ms)

    def monotonic_ms(self) -> float:
        return self._now_ms

    def call_soon(self, call: Callable[[], None]) -> object:
        return self.call_later(0, call)

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Handle:
        handle = Handle(call)
        heapq.heappush(self._events, (self._now_ms + delay_ms, next(self._order), handle))
        return handle

    def run(self, duration_ms: float, after_each: Callable[[], None]) -> None:
        """Everything that happens meanwhile, one after the other."""
        end_ms = self._now_ms + duration_ms
        while self._events and self._events[0][0] <= end_ms:
            due_ms, _, handle = heapq.heappop(self._events)
            if not handle.cancelled:
                self._now_ms = due_ms
                handle.call()
                after_each()
        self._now_ms = end_ms


class Faults:
    """How likely what goes wrong is; every seed has a weather of its own."""

    def __init__(self, random: Random) -> None:
        self.random = random
        mood = random.choice((0.0, 0.3, 1.0, 1.0, 2.0))
        self.lost = 0.04 * mood
        self.doubled = 0.08 * mood
        self.late = 0.04 * mood
        self.refused = 0.05 * random.choice((0.0, 1.0, 3.0))
        self.lagging = random.choice((0.0, 0.1, 0.4))
        self.moves = random.choice((0.0, 1.0, 3.0))
        self.crashes = random.choice((0.0, 1.0, 3.0))

    def stop(self) -> None:
        """From now on everything works."""
        self.lost = self.doubled = self.late = self.refused = self.lagging = self.moves = self.crashes = 0.0

    def happens(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def delay_ms(self) -> float:
        """How long a message is on its way."""
        if self.happens(self.late):
            return self.random.choice((500.0, 3_000.0, 12_000.0, 40_000.0))
        return self.random.uniform(0.1, 8.0)


class Line:
    """The connection of one client: what is sent over it arrives in that order, if it does."""

    def __init__(self) -> None:
        self.free_ms = 0.0


class Network:
    """Requests and their answers on their way."""

    def __init__(self, time: Time, faults: Faults) -> None:
        self._time = time
        self._faults = faults
        # What was asked and has not been answered by whom it was asked of.
        self.unanswered: set[Pending[Any]] = set()
        # When what is being heard was said.
        self.answered_ms = 0.0

    def ask(
        self,
        operation: Callable[[], Pending[Any]],
        heard: Heard,
        *,
        timeout_ms: float,
        line: Line | None = None,
        doubles: bool = True,
    ) -> None:
        """`operation` runs where the request arrives, perhaps twice; `heard` once, with a value or an error.

        Over a `line` requests keep their order.
        """
        answered = False

        def hear(value: Any, error: KafkaError | None, answered_ms: float = 0) -> None:
            nonlocal answered
            if not answered:
                answered = True
                timer.cancel()
                self.answered_ms = answered_ms
                heard(value, error)

        timer = self._time.call_later(
            timeout_ms, lambda: hear(None, KafkaError(ErrorCode.REQUEST_TIMED_OUT, "nobody answers"))
        )
        faults = self._faults
        copies = 2 if doubles and faults.happens(faults.doubled) else 1
        for copy in range(copies):
            # Over one connection it is sent again because the first answer was lost, or is not waited for any more.
            hears = hear if line is None or copy == copies - 1 else _nobody
            if not faults.happens(faults.lost):
                self._time.call_later(self._arrival(line), lambda hears=hears: self._arrive(operation, hears))

    def _arrival(self, line: Line | None) -> float:
        delay_ms = self._faults.delay_ms()
        if line is None:
            return delay_ms
        now_ms = self._time.monotonic_ms()
        line.free_ms = max(line.free_ms, now_ms + delay_ms)
        return line.free_ms - now_ms

    def _arrive(self, operation: Callable[[], Pending[Any]], hear: Callable[..., None]) -> None:
        pending = operation()
        self.unanswered.add(pending)
        pending.then(lambda done: self._answer(done, hear))

    def _answer(self, done: Pending[Any], hear: Callable[..., None]) -> None:
        self.unanswered.discard(done)
        if self._faults.happens(self._faults.lost):
            return
        error = done.error
        value = None if error is not None else done.result()
        now_ms = self._time.monotonic_ms()
        self._time.call_later(self._faults.delay_ms(), lambda: hear(value, error, now_ms))


def _nobody(value: Any, error: KafkaError | None, answered_ms: float = 0) -> None:
    """Whoever asked is not there any more."""


class Replicated:
    """A partition as its replicas have it: what is committed stays, whoever leads."""

    def __init__(self, time: Time, faults: Faults) -> None:
        self.time = time
        self.faults = faults
        self.batches: list[BatchView] = []
        self.high_watermark = 0
        self.leader_epoch = 0

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    @property
    def data(self) -> bytes:
        return b"".join(bytes(view.buf) for view in self.batches)

    def elect(self, leader: Callable[[Replicated, int], L]) -> L:
        """A new leader: of what was not committed it has as much as it happens to have, and commits that."""
        while self.batches and self.batches[-1].base_offset >= self.high_watermark:
            if self.faults.random.random() < 0.5:
                break
            self.batches.pop()
        self.leader_epoch += 1
        self.high_watermark = self.end
        return leader(self, self.leader_epoch)


class LeaderLog:
    """The ShardLog of one leader; when there is another, nothing of it is committed any more."""

    max_batch_bytes = 1024 * 1024

    def __init__(self, replicated: Replicated, epoch: int) -> None:
        self.replicated = replicated
        self.epoch = epoch
        self.log_end_offset = replicated.end
        # As far as it knows; it does not learn of what others commit.
        self.high_watermark = replicated.high_watermark
        self._knows = False  # does it know that another one leads?
        self._waiting: list[tuple[int, Callable[[ErrorCode], None]]] = []

    @property
    def leads(self) -> bool:
        return self.replicated.leader_epoch == self.epoch

    def append(self, batch: bytearray, now_ms: int, transaction_version: int = 0) -> int:
        faults = self.replicated.faults
        if self._knows:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another one leads")
        if faults.happens(faults.refused):
            raise KafkaError(faults.random.choice(REFUSALS), "refused")
        set_offset_and_epoch(batch, 0, self.log_end_offset, self.epoch)
        view = next(iter_batches(bytes(batch)))
        self.log_end_offset = view.next_offset
        if self.leads:
            self.replicated.batches.append(view)
            self._replicate(view.next_offset)
        return self.log_end_offset

    def _replicate(self, end: int) -> None:
        faults = self.replicated.faults
        delay_ms = faults.random.uniform(0, 5)
        if faults.happens(faults.lagging):
            delay_ms = faults.random.choice((50.0, 1_000.0, 7_000.0))
        self.replicated.time.call_later(delay_ms, lambda: self._replicated(end))

    def _replicated(self, end: int) -> None:
        if self.leads and end > self.replicated.high_watermark:
            self.high_watermark = self.replicated.high_watermark = end
            self.call_back()

    def when_committed(self, offset: int, call: Callable[[ErrorCode], None]) -> None:
        self._waiting.append((offset, call))
        self.call_back()

    def resign(self) -> None:
        """It learns that another one leads."""
        self._knows = True
        self.call_back()

    def call_back(self) -> None:
        """Tell those whose offsets are committed; everybody, if that will never be."""
        gone = self._knows
        due = [call for offset, call in self._waiting if gone or offset <= self.high_watermark]
        self._waiting = [one for one in self._waiting if not (gone or one[0] <= self.high_watermark)]
        for call in due:
            call(ErrorCode.NOT_LEADER_OR_FOLLOWER if gone else ErrorCode.NONE)


def seeds(default: int, blocks: int) -> list[range]:
    """The seeds of a run in so many blocks; OTTLA_SEEDS asks for more, or for one alone as `=1234`."""
    wanted = os.environ.get("OTTLA_SEEDS", "")
    if wanted.startswith("="):
        return [range(int(wanted[1:]), int(wanted[1:]) + 1)]
    count = int(wanted or default)
    return [range(count * i // blocks, count * (i + 1) // blocks) for i in range(blocks)]


def simulate(chosen: range, life: Callable[[int], None], test: str) -> None:
    """One life after the other; a failure says how to see it again."""
    for seed in chosen:
        try:
            life(seed)
        except Exception as error:
            replay = f"OTTLA_SEEDS={'='}{seed} python -m pytest {test}"
            raise Violation(f"seed {seed}: {type(error).__name__}: {error}\nagain: {replay}") from error


def names(prefix: str) -> Iterator[str]:
    """Names that nobody has had."""
    return (f"{prefix}{number}" for number in itertools.count(1))
