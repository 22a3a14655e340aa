"""Decompressing, within a bound that all requests have in common.

A batch of a few kilobytes may hold a hundred megabytes. What fits into SMALL_BYTES is worked on by as many threads as
the pool has; whatever turns out to be larger is begun anew when its turn comes, one at a time. So all of it together
takes no more than SMALL_BYTES for each thread and MAX_DECOMPRESSED_BYTES once (recompression twice that, since it
holds what it has renumbered, too), and those who send little do not wait for those who send much.

Owner: the node; asked on its loop.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

from ottla.records.compression import DecompressedTooLargeError
from ottla.records.record import MAX_DECOMPRESSED_BYTES

SMALL_BYTES: Final = 8 * 1024 * 1024

_T = TypeVar("_T")


class Unpacking:
    """See the module."""

    __slots__ = ("_executor", "_large_turn")

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._large_turn = asyncio.Lock()

    async def run(self, work: Callable[[int], _T]) -> _T:
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
