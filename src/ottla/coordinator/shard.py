"""The contract between the runtime and a state machine: Kafka's CoordinatorShard, and what it decides.

A decision is a CoordinatorResult: an answer, the records that make it true, and effects. The runtime is given its
surroundings as protocols, a log to write to, a clock and a scheduler: the broker gives it a partition and the event
loop, a simulation gives it its own.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending

T = TypeVar("T")


class CoordinatorRecord(NamedTuple):
    """One record of a coordinator's log: declared messages; a value of None is a tombstone."""

    key: Any
    value: Any | None
    # The version the value is written in; None for the newest that 4.3 writes.
    value_version: int | None = None


class StartTimer(NamedTuple):
    """Make a decision after a delay, in place of any timer of the same key."""

    key: Hashable
    delay_ms: float
    operation: "Callable[[int], CoordinatorResult[Any]]"  # given now_ms


class CancelTimer(NamedTuple):
    """Forget a timer, if there is one."""

    key: Hashable


class Answer(NamedTuple):
    """Give a parked request its response, as soon as this decision is committed."""

    pending: Pending[Any]
    response: Any


class After(NamedTuple):
    """Call this once the decision is committed: work outside the shard (write markers, create topics ...)."""

    call: Callable[[], None]


Effect = StartTimer | CancelTimer | Answer | After


# A timestamp, a key, a value, and no headers.
NewRecord = tuple[int, bytes | None, bytes | None, tuple[()]]


class RecordBulk(Protocol):
    """Records of one kind that are written and replayed together, without an object for each of them."""

    @property
    def encoded(self) -> Sequence["NewRecord"]:
        """Their timestamps, keys and values, as the log holds them."""
        ...

    @property
    def payload_bytes(self) -> int:
        """The length of all keys and values."""
        ...

    def replay(self, first_offset: int) -> None:
        """Change the state as all of them say."""
        ...


@dataclass(slots=True)
class CoordinatorResult(Generic[T]):
    """A decision. Timers start and stop when its records are appended; answers wait until they are committed."""

    # A Pending is a request that is parked: whoever resolves it later answers the client.
    response: T | Pending[T]
    records: Sequence[CoordinatorRecord] = ()
    effects: Sequence[Effect] = ()
    # What to do about soft state if the records could not be appended or committed.
    on_failure: Callable[[KafkaError], "Sequence[Effect]"] | None = None
    # All records in one batch, or none of them; a long list of independent ones may be split.
    atomic: bool = True
    # In the place of records, outside a transaction, and in one batch.
    bulk: RecordBulk | None = None


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
    """Kafka's PartitionWriter: the partition that a context writes to, as its leader."""

    @property
    def log_end_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def max_batch_bytes(self) -> int: ...

    def append(self, batch: bytearray, now_ms: int, transaction_version: int = 0) -> int:
        """Write a batch; the offset after it. A KafkaError if it was not written."""
        ...

    def when_committed(self, offset: int, call: Callable[[ErrorCode], None]) -> None:
        """Call back when everything below `offset` is committed, or never will be here: with the code that says why."""
        ...


class Brokers(Protocol):
    """The brokers of the cluster, this one among them: who leads what, and questions to them (InterBroker)."""

    @property
    def node_id(self) -> int:
        """This broker."""
        ...

    def leader_of(self, topic: str, partition: int) -> int | None:
        """Who leads a partition: NO_LEADER while nobody does who can be asked, None if there is no such partition."""
        ...

    def ask(self, node_id: int, request: Any, timeout_ms: float) -> Pending[Any]:
        """The response of a broker. Whether a request whose answer was lost has been carried out is not known."""
        ...


class Settings(Protocol):
    """The broker's configuration, by Kafka's names, with typed values."""

    def __getitem__(self, name: str) -> Any: ...


class CoordinatorShard(Protocol):
    """The state machine of one partition. Decisions are methods of its own; this is what the runtime calls."""

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
