"""Work that a group needs done and the loop has no time for: it is done elsewhere, and comes back as a decision.

If it does not (the work raised, or the decision was not written), `failed` is told why, and mends soft state.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from ottla.coordinator.result import Result
from ottla.model.errors import KafkaError

T = TypeVar("T")


class Background(Protocol):
    """Given by the node. What comes back is decided on as any request is, on the group's shard, if it is still here."""

    def in_thread(
        self,
        group_id: str,
        work: Callable[[], T],
        then: Callable[[T, int], Result[Any]],
        failed: Callable[[KafkaError], None],
    ) -> None:
        """Compute in a thread; `then` is given what came out and the time."""
        ...

    def in_slices(
        self,
        group_id: str,
        work: Iterator[T | None],
        then: Callable[[T, int], Result[Any]],
        failed: Callable[[KafkaError], None],
    ) -> None:
        """Compute on the loop, a slice a turn: the work yields None after each slice, and at last what came out."""
        ...
