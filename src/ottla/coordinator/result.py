"""What a decision gives back: an answer, the records that make it true, and what else shall happen."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ottla.model.errors import KafkaError
from ottla.model.pending import Pending

T = TypeVar("T")


class CoordinatorRecord(NamedTuple):
    """One record of a coordinator's log: declared messages; a value of None is a tombstone."""

    key: Any
    value: Any | None
    # The version the value is written in; None for the newest that 4.3 writes.
    value_version: int | None = None


class StartTimer(NamedTuple):
    """Run an operation on the shard's machine after a delay, in place of any timer of the same key."""

    key: Hashable
    delay_ms: float
    operation: "Callable[[int], Result[Any]]"  # given now_ms


class CancelTimer(NamedTuple):
    """Forget a timer, if there is one."""

    key: Hashable


class Answer(NamedTuple):
    """Give a parked request its response, as soon as this decision is committed."""

    pending: Pending[Any]
    response: Any


class After(NamedTuple):
    """Tell the outside once this decision is committed (write markers, create topics ...)."""

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
class Result(Generic[T]):
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
