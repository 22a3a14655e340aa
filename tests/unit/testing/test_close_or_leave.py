"""A consumer that does not close is left behind, with a word; what closing raises is raised."""

import threading

import pytest
from tests.support.librdkafka import close_or_leave


class Consumer:
    def __init__(self, go_on: threading.Event | None = None, error: Exception | None = None) -> None:
        self.closed = False
        self._go_on = go_on
        self._error = error

    def close(self) -> None:
        if self._go_on is not None:
            self._go_on.wait()
        if self._error is not None:
            raise self._error
        self.closed = True


def test_one_that_closes_is_closed_when_it_returns() -> None:
    consumer = Consumer()
    close_or_leave(consumer)
    assert consumer.closed


def test_one_that_stands_still_is_left() -> None:
    go_on = threading.Event()
    try:
        with pytest.warns(UserWarning, match=r"close\(\) did not return within 0.01 s"):
            close_or_leave(Consumer(go_on), 0.01)
    finally:
        go_on.set()


def test_what_it_raises_is_raised() -> None:
    with pytest.raises(RuntimeError, match="already closed"):
        close_or_leave(Consumer(error=RuntimeError("already closed")))
