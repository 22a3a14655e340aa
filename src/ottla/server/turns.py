"""How long requests may hold the loop in one turn, whoever sent them.

A thousand members of a group that speak at once are a thousand sockets ready in one poll, and the loop would serve
them all before it looks at anything else. When they have had their slice, those who are left wait for the next turns,
in their order; whoever comes between two turns is served.

A turn is not announced: reads that follow each other without a pause are taken for one. In a loop that is busy for
long that is wrong once in a slice, and costs one connection a detour.

Owner: a listener, for its connections, on the broker's loop.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from ottla.model.breath import PacedCalls

TURN_S: Final = 0.005
# Between two reads of one turn there is no more than a system call.
PAUSE_S: Final = 0.001


class Turns:
    """See the module."""

    __slots__ = ("_calls", "_ends", "_loop", "_monotonic", "_served_at", "crowded")

    def __init__(self, loop: asyncio.AbstractEventLoop, monotonic: Callable[[], float]) -> None:
        self._loop = loop
        self._monotonic = monotonic
        self._calls = PacedCalls(loop)
        self._ends = 0.0
        self._served_at = 0.0
        # Somebody waits for the next turn: who is read now will have to wait too.
        self.crowded = False

    def is_over(self, now: float) -> bool:
        """Has this turn been long enough? `now` is when a connection has something to be served."""
        if now - self._served_at > PAUSE_S:
            self._ends = now + TURN_S
        return now > self._ends

    def served(self) -> None:
        """A connection has been served."""
        self._served_at = self._monotonic()

    def again(self, call: Callable[[], None]) -> None:
        """Go on with a connection, which has had its turn, in one of the next."""
        self._calls.call_soon(call)

    def later(self, call: Callable[[], None]) -> None:
        """Serve a connection in one of the next turns, because this one is over."""
        self._calls.call_soon(call)
        if not self.crowded:
            self.crowded = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self.crowded = False
        self._ends = self._monotonic() + TURN_S
