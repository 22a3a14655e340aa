"""What the runtime needs of its surroundings: a log to write to, a clock and a scheduler, the machine it runs.

The broker gives it a partition and the event loop, a simulation gives it its own.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from ottla.coordinator.result import CoordinatorRecord, Effect
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.errors import KafkaError


class Handle(Protocol):
    """Something scheduled."""

    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """When things happen."""

    def now_ms(self) -> int:
        """The time that records and answers carry."""
        ...

    def monotonic_ms(self) -> float:
        """Time that never jumps, for delays."""
        ...

    def call_soon(self, call: Callable[[], None]) -> object: ...
    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Handle: ...


class ShardLog(Protocol):
    """The partition that a shard writes to, as its leader."""

    @property
    def log_end_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def max_batch_bytes(self) -> int: ...

    def append(self, batch: bytearray, now_ms: int, transaction_version: int = 0) -> int:
        """Write a batch; the offset after it. A KafkaError if it was not written."""
        ...

    def when_committed(self, offset: int, call: Callable[[], None]) -> None:
        """Call back when everything below `offset` is committed, or never will be here."""
        ...


class Machine(Protocol):
    """The state of one shard. Decisions are methods of its own; this is what the runtime calls."""

    def replay(self, record: CoordinatorRecord, producer_id: int, producer_epoch: int) -> None:
        """The only way that hard state changes; `producer_id` is -1 outside a transaction."""
        ...

    def replay_end_transaction(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """The marker of a transaction that wrote here."""
        ...

    def on_loaded(self, image: ClusterImage, now_ms: int) -> Iterable[Effect]:
        """The log is replayed, this node coordinates: timers to start."""
        ...

    def on_image(self, image: ClusterImage, delta: Delta, now_ms: int) -> Iterable[Effect]:
        """The cluster has changed."""
        ...

    def on_unloaded(self, error: KafkaError) -> None:
        """This node coordinates no more: parked requests are failed with `error`."""
        ...
