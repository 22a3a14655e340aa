"""An answer that may be there already: a future without an event loop.

Decisions made on the loop are often done when they are made; a Pending costs nothing more then, and a state
machine under simulation can hold one without asyncio. It can be awaited as well.

Owner: whoever made it resolves it, once. What raises in those who wait is logged, and never reaches who resolves it.
"""

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, Self, TypeVar

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.tasks import report

T = TypeVar("T")
U = TypeVar("U")


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

    def map(self, value: Callable[[T], U], error: Callable[[KafkaError], U] | None = None) -> "Pending[U]":
        """What becomes of the answer; an error stays one, unless something is to become of it too."""
        mapped: Pending[U] = Pending()
        if self.done:
            _pass_on(self, mapped, value, error)
        else:
            self.then(lambda done: _pass_on(done, mapped, value, error))
        return mapped

    def and_then(self, follow: "Callable[[T], Pending[U]]") -> "Pending[U]":
        """What is asked next, with this answer; in the same turn in which it is there."""
        asked: Pending[U] = Pending()
        self.then(lambda done: _ask_next(done, asked, follow))
        return asked

    def forward_to(self, other: "Pending[T]") -> None:
        """Give `other` the same answer when it is there, unless it has been given one by then."""
        self.then(lambda done: _forward(done, other))

    def _finish(self) -> None:
        self.done = True
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                callback(self)
            except Exception as error:  # noqa: BLE001 - whoever waits concerns neither the others nor who resolves it
                report(error, name="taking an answer", owner="pending")

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.then(lambda _: _wake(waiter))
            yield from waiter
        return self.result()


def gather(pendings: "Sequence[Pending[T]]") -> "Pending[list[T]]":
    """All answers, in their order, when the last one is there; the first error of any of them instead."""
    gathered: Pending[list[T]] = Pending()
    if all(pending.done for pending in pendings):
        _gathered(pendings, gathered)
        return gathered
    left = len(pendings)

    def one_more(_: Pending[T]) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            _gathered(pendings, gathered)

    for pending in pendings:
        pending.then(one_more)
    return gathered


def _gathered(pendings: "Sequence[Pending[T]]", gathered: "Pending[list[T]]") -> None:
    failed = next((pending.error for pending in pendings if pending.error is not None), None)
    if failed is not None:
        gathered.fail(failed)
    else:
        gathered.resolve([pending.result() for pending in pendings])


def _forward(done: Pending[T], other: "Pending[T]") -> None:
    if other.done:
        return
    if done.error is not None:
        other.fail(done.error)
    else:
        other.resolve(done.result())


def _pass_on(
    done: Pending[T],
    mapped: "Pending[U]",
    value: Callable[[T], U],
    error: Callable[[KafkaError], U] | None,
) -> None:
    try:
        if done.error is None:
            outcome = value(done.result())
        elif error is not None:
            outcome = error(done.error)
        else:
            raise done.error
    except KafkaError as failed:
        mapped.fail(failed)
    except Exception as unexpected:  # noqa: BLE001 - else whoever waits for it would do so for ever
        report(unexpected, name="making an answer", owner="pending")
        mapped.fail(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
    else:
        mapped.resolve(outcome)


def _ask_next(done: Pending[T], asked: "Pending[U]", follow: "Callable[[T], Pending[U]]") -> None:
    if done.error is not None:
        asked.fail(done.error)
    else:
        try:
            following = follow(done.result())
        except KafkaError as failed:
            asked.fail(failed)
        except Exception as unexpected:  # noqa: BLE001 - else whoever waits for it would do so for ever
            report(unexpected, name="asking for what follows an answer", owner="pending")
            asked.fail(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
        else:
            following.then(lambda last: _pass_on(last, asked, _same, None))


def _same(value: U) -> U:
    return value


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():  # whoever waited may have been cancelled
        waiter.set_result(None)
