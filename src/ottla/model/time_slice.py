"""Long work on the event loop, in slices of 5 ms: between them other requests are served.

However many long works there are, one of them has its slice in a turn of the loop (`next_turn`): ten of them do not
hold a request up for longer than one. Those that begin in a turn which others have used up have a millisecond of it, so
that what is short ends at once, and then wait with the rest.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Generator
from time import monotonic
from typing import TypeVar

from ottla.model.tasks import report

SLICE_S = 0.005
# What a work has in any case, whoever has had the loop before it.
LEAST_S = 0.001

T = TypeVar("T")
# Work that can be interrupted: it stops at every `yield`, and what it returns is its result.
Steps = Generator[None, None, T]


def run_to_end(steps: Steps[T]) -> T:
    """All steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class _Turns(threading.local):
    """The long works of the loop of this thread that wait to go on, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        # When the slice of this turn is over; 0 before anybody had any of it.
        self._ends = 0.0

    def ends(self, now: float) -> float:
        """When the slice is over that all works of this turn have together; without a loop nobody waits."""
        try:
            loop = self._running_loop()
        except RuntimeError:
            return now + SLICE_S
        if not self._ends:
            self._ends = now + SLICE_S
            loop.call_soon(self._end)
        return self._ends

    def _end(self) -> None:
        self._ends = 0.0

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Another loop in this thread: who waited on the one before waits no more.
            self._loop, self._waiting, self._ends = loop, deque(), 0.0
        return loop

    def next(self) -> "asyncio.Future[None]":
        loop = self._running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._give, self._waiting)
        return turn

    def _give(self, waiting: "deque[asyncio.Future[None]]") -> None:
        try:
            while waiting:
                turn = waiting.popleft()
                if not turn.done():  # cancelled while it waited
                    turn.set_result(None)
                    break
        finally:
            if waiting:
                asyncio.get_running_loop().call_soon(self._give, waiting)


_turns = _Turns()


def next_turn() -> "asyncio.Future[None]":
    """Done when it is this work's turn to go on."""
    return _turns.next()


class TimeSlice:
    """Lets the loop run whenever its owner has had it for too long."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        now = monotonic()
        self._ends = max(_turns.ends(now), now + min(LEAST_S, SLICE_S))

    @property
    def is_over(self) -> bool:
        """Has its owner had the loop for too long?"""
        return monotonic() > self._ends

    async def yield_to_loop(self) -> None:
        if self.is_over:
            await next_turn()
            self._begin()

    async def run(self, steps: Steps[T]) -> T:
        """Does the steps, and lets the loop run between them."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.yield_to_loop()


class SharedTimeSlice:
    """Several long works on one loop: one of them has it at a time, for a slice, and then the next.

    async with shared:
        for piece in work:
            piece()
            await shared.yield_to_loop()
    """

    __slots__ = ("_ends", "_lock", "_owner")

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        # Who has the lock. A work that is cancelled while another has its turn must not give away what is not its own.
        self._owner: asyncio.Task[object] | None = None
        # When the slice of this turn is over; 0 before anybody had any of it.
        self._ends = 0.0

    async def __aenter__(self) -> None:
        """Whoever comes when the slice is used up waits for the next turn, even if nobody else has the loop now."""
        await self._acquire()
        await self.yield_to_loop()

    async def __aexit__(self, *_: object) -> None:
        self._release()

    async def yield_to_loop(self) -> None:
        """Whoever is cancelled here has nothing any more, also if it was about to enter."""
        while self._is_over():
            self._release()
            await next_turn()
            await self._acquire()

    async def _acquire(self) -> None:
        await self._lock.acquire()
        self._owner = asyncio.current_task()

    def _release(self) -> None:
        if self._owner is not None and self._owner is asyncio.current_task():
            self._owner = None
            self._lock.release()

    def _is_over(self) -> bool:
        now = monotonic()
        if not self._ends:
            self._ends = now + SLICE_S
            asyncio.get_running_loop().call_soon(self._next_turn)
        return now > self._ends

    def _next_turn(self) -> None:
        self._ends = 0.0


class PacedCalls:
    """`call_soon` for many small works that may come at once: a slice of them in a turn of the loop, in their order."""

    __slots__ = ("_calls", "_loop", "_scheduled")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._scheduled = False

    def call_soon(self, call: Callable[[], object]) -> None:
        self._calls.append(call)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """Those that are there; what they ask for comes in the next turn, as the loop itself does it."""
        calls = self._calls
        ends = monotonic() + SLICE_S
        try:
            for _ in range(len(calls)):
                call = calls.popleft()
                try:
                    call()
                except Exception as error:  # noqa: BLE001 - the boundary of a call: the others have their turn
                    report(error, name=f"a call of {call}", owner="loop")
                if monotonic() > ends:
                    break
        finally:
            self._scheduled = bool(calls)
            if calls:
                self._loop.call_soon(self._run)
