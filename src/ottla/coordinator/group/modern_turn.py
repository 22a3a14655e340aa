"""One decision about a consumer or streams group in the making: the records and effects it will give back."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from ottla.coordinator.result import CoordinatorRecord, Effect, Result
from ottla.model.errors import KafkaError
from ottla.model.pending import Pending

T = TypeVar("T")


class Turn:
    """Made for a request, a timer or something that came back from the background; used up by `result`."""

    __slots__ = ("effects", "failure_effects", "failures", "now_ms", "records")

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.records: list[CoordinatorRecord] = []
        self.effects: list[Effect] = []
        # What mends soft state, and what happens, if the records cannot be written.
        self.failures: list[Callable[[KafkaError], None]] = []
        self.failure_effects: list[Effect] = []

    def result(self, response: T | Pending[T]) -> Result[T]:
        mends = self.failures or self.failure_effects
        return Result(response, self.records, self.effects, self._failed if mends else None)

    def _failed(self, error: KafkaError) -> Sequence[Effect]:
        for mend in self.failures:
            mend(error)
        return self.failure_effects
