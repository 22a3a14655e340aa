"""What a request may ask for: its size, what it lists, and what is decompressed for it.

Owner: the node, which has one ElementBudget and one Unpacking for all requests; asked on its loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.compression import DecompressedTooLargeError
from ottla.records.record import MAX_DECOMPRESSED_BYTES

T = TypeVar("T")

# A request becomes objects, twenty times its size if its elements are small: what no client has reason to send is
# refused. Only Produce, whose records stay bytes, may be as large as socket.request.max.bytes.
MAX_DECODED_BYTES = 16 * 1024 * 1024
# What a broker forwards has an envelope around it.
MAX_ENVELOPE_BYTES = MAX_DECODED_BYTES + 64 * 1024

# What a request may list, all lists together: ten times the partitions a broker is made for. What the controller has
# to decide in one piece may be as much as Kafka's may (its limit of records an operation).
MAX_ELEMENTS = 100_000
MAX_DECIDED_ELEMENTS = 10_000
# What all requests that are not decoded on the loop may list together, from when they are decoded until they are
# answered: four of the largest. An element takes 100 to 500 bytes.
MAX_ELEMENTS_AT_ONCE = 4 * MAX_ELEMENTS

# What is decompressed beside others.
SMALL_BYTES: Final = 8 * 1024 * 1024


def check_size(size_bytes: int, limit_bytes: int = MAX_DECODED_BYTES) -> None:
    """INVALID_REQUEST for a request that is not Produce and larger than any client's."""
    if size_bytes > limit_bytes:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"a request of {size_bytes} bytes, allowed are {limit_bytes}"
        )


class ElementBudget:
    """Large requests wait here, before they are decoded, for room for what they may list; in order of arrival."""

    def __init__(self, limit: int = MAX_ELEMENTS_AT_ONCE) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._one_at_a_time = asyncio.Lock()

    @property
    def is_half_taken(self) -> bool:
        return self._taken > self._limit // 2

    async def take(self, elements: int) -> None:
        """One who comes when nothing is taken may take more than there is."""
        if not self._waiting and self._fits(elements):
            self._taken += elements
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, elements))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(elements)
            raise

    def give_back(self, elements: int) -> None:
        self._taken -= elements
        while self._waiting and (self._waiting[0][0].done() or self._fits(self._waiting[0][1])):
            turn, wanted = self._waiting.popleft()
            if not turn.done():  # otherwise it was cancelled while it waited
                self._taken += wanted
                turn.set_result(None)

    async def in_thread(
        self, loop: asyncio.AbstractEventLoop, executor: Executor, work: Callable[..., T], *args: Any
    ) -> T:
        """Decode or encode a large request or answer in a thread.

        One at a time, because several threads that compute would keep the loop waiting for each of them.
        """
        async with self._one_at_a_time:
            return await loop.run_in_executor(executor, work, *args)

    def _fits(self, elements: int) -> bool:
        return self._taken + elements <= self._limit or not self._taken


class Unpacking:
    """Decompressing, within a bound that all requests have in common.

    A batch of a few kilobytes may hold a hundred megabytes. What fits into SMALL_BYTES is worked on by as many threads
    as the pool has; whatever turns out to be larger is begun anew when its turn comes, one at a time. So all of it
    together takes no more than SMALL_BYTES for each thread and MAX_DECOMPRESSED_BYTES once (recompression twice that,
    since it holds what it has renumbered, too), and those who send little do not wait for those who send much.
    """

    __slots__ = ("_executor", "_large_turn")

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._large_turn = asyncio.Lock()

    async def run(self, work: Callable[[int], T]) -> T:
        """Does work that decompresses, in a thread: given the size above which to raise, and maybe twice."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, work, SMALL_BYTES)
        except DecompressedTooLargeError:
            pass  # and with the error goes what the first attempt held
        await self._large_turn.acquire()
        working = loop.run_in_executor(self._executor, work, MAX_DECOMPRESSED_BYTES)
        # A thread cannot be stopped: the turn is over when the thread is, even if nobody waits for it any more.
        working.add_done_callback(lambda _: self._large_turn.release())
        return await asyncio.shield(working)
