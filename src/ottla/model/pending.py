"""An answer that may be there already: a future without an event loop.

Decisions made on the loop are often done when they are made; a Pending costs nothing more then, and a state
machine under simulation can hold one without asyncio. It can be awaited as well.

Owner: whoever made it resolves it, once.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, Self, TypeVar

from ottla.model.errors import KafkaError

T = TypeVar("T")


class Pending(Generic[T]):
    """A value or a KafkaError, now or later."""

    __slots__ = ("_callbacks", "_error", "_value", "done")

    def __init__(self) -> None:
        self.done = False
        self._value: T | None = None
        self._error: KafkaError | None = None
        self._callbacks: list[Callable[[Pending[T]], None]] | None = None

    @classmethod
    def of(cls, value: T) -> Self:
        """What is known already."""
        pending = cls()
        pending.done = True
        pending._value = value
        return pending

    @classmethod
    def failed(cls, error: KafkaError) -> Self:
        """What is known to have failed."""
        pending = cls()
        pending.done = True
        pending._error = error
        return pending

    @property
    def error(self) -> KafkaError | None:
        return self._error

    def result(self) -> T:
        """The value, or the error raised; only when it is done."""
        assert self.done, "asked before it was answered"
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def resolve(self, value: T) -> None:
        assert not self.done, "an answer is given once"
        self._value = value
        self._finish()

    def fail(self, error: KafkaError) -> None:
        assert not self.done, "an answer is given once"
        self._error = error
        self._finish()

    def then(self, callback: Callable[["Pending[T]"], None]) -> None:
        """Call back when it is done; at once if it is."""
        if self.done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def _finish(self) -> None:
        self.done = True
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(self)

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.then(lambda _: _wake(waiter))
            yield from waiter
        return self.result()


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():  # whoever waited may have been cancelled
        waiter.set_result(None)
