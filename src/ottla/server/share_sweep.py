"""Asking about many share partitions without holding the loop: in slices, with a turn for everybody else in between."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from ottla.model.pending import Pending

K = TypeVar("K")
T = TypeVar("T")

# Share partitions asked about in one turn of the loop: a few milliseconds of decisions.
SLICE: Final = 64
CallSoon = Callable[[Callable[[], None]], Any]


def sweep(
    keys: Iterable[K], ask: Callable[[K], Pending[T]], call_soon: CallSoon
) -> Pending[dict[K, Pending[T]]]:
    """All answers, in the order of the keys, when the last one is there. A key that comes twice is asked twice."""
    return _Sweep(keys, ask, call_soon).start()


class _Sweep(Generic[K, T]):
    """One of them."""

    def __init__(self, keys: Iterable[K], ask: Callable[[K], Pending[T]], call_soon: CallSoon) -> None:
        self._keys = iter(keys)
        self._ask = ask
        self._call_soon = call_soon
        self._answers: dict[K, Pending[T]] = {}
        self._outcome: Pending[dict[K, Pending[T]]] = Pending()
        self._waiting = 1  # for the last slice

    def start(self) -> Pending[dict[K, Pending[T]]]:
        self._slice()
        return self._outcome

    def _slice(self) -> None:
        keys = list(islice(self._keys, SLICE))
        self._waiting += len(keys)
        for key in keys:
            answer = self._answers[key] = self._ask(key)
            answer.then(self._answered)
        if len(keys) == SLICE:
            self._call_soon(self._slice)
        else:
            self._one_less()

    def _answered(self, _: Pending[T]) -> None:
        self._one_less()

    def _one_less(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._outcome.resolve(self._answers)
