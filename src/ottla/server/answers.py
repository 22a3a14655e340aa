"""What a handler answers a request with: bytes that are there, an answer that comes later, or a coroutine.

Owner: the Connection the request came on; whoever has promised a Deferred resolves it, on the loop.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from ottla.server.output import Reply


class Deferred:
    """An answer that comes later; `resolve` may be called once, from the loop."""

    __slots__ = ("_then", "done", "on_abandoned", "ready_bytes", "reply")

    def __init__(self) -> None:
        self.done = False
        self.ready_bytes = 0  # what an answer that has to wait for an earlier one holds in memory
        self.reply: Reply | None = None
        self._then: Callable[[Reply | None], None] | None = None
        self.on_abandoned: Callable[[], None] | None = None

    def resolve(self, reply: Reply | None) -> None:
        assert not self.done, "an answer is given once"
        self.done = True
        self.reply = reply
        if self._then is not None:
            self._then(reply)

    def then(self, callback: Callable[[Reply | None], None]) -> None:
        """Whom to tell when it is there."""
        self._then = callback

    def abandon(self) -> None:
        """The client is gone: whoever waits on its behalf may stop, and so give back what the wait holds."""
        self._then = None
        if not self.done and self.on_abandoned is not None:
            self.on_abandoned()


# None: the request gets no answer.
Answer = Reply | Deferred | Coroutine[Any, Any, Reply | None] | None


def memory_bytes(reply: Reply) -> int:
    """What an answer takes of our memory; slices of files take none."""
    if not isinstance(reply, list):
        return len(reply)
    return sum(len(chunk) for chunk in reply if isinstance(chunk, bytes))
