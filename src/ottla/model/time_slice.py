"""Long work on the event loop, in slices of 5 ms: between them other requests are served."""

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from time import monotonic
from typing import TypeVar

from ottla.model.tasks import report

SLICE_S = 0.005

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


class TimeSlice:
    """Lets the loop run whenever its owner has had it for too long."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = monotonic()

    @property
    def is_over(self) -> bool:
        """Has its owner had the loop for too long?"""
        return monotonic() - self._since > SLICE_S

    async def yield_to_loop(self) -> None:
        if self.is_over:
            await asyncio.sleep(0)
            self._since = monotonic()

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
            await asyncio.sleep(0)
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
