"""What a transaction shard needs of its surroundings, and what it asks of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ottla.coordinator.timeline import Timeline
from ottla.coordinator.transaction.state import PREPARED, Transaction, TransactionState
from ottla.model.ids import TopicPartition


class Settings(Protocol):
    """The broker's configuration, by Kafka's names, with typed values."""

    def __getitem__(self, name: str) -> Any: ...


class TransactionMarkers(NamedTuple):
    """The end of one transaction, to be written into every partition of it."""

    # Who decided it: the shard's partition of __transaction_state, and in which epoch.
    coordinator: int
    coordinator_epoch: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    transaction_version: int
    partitions: frozenset[TopicPartition]


@dataclass(slots=True)
class TransactionContext:
    """Owned by a TransactionMachine."""

    timeline: Timeline
    # The shard's partition of __transaction_state.
    partition: int
    # The leader epoch of the shard's partition: an older coordinator's markers are refused by partitions.
    coordinator_epoch: int
    config: Callable[[], Settings]
    # An id that nobody has had; COORDINATOR_LOAD_IN_PROGRESS while none is at hand.
    new_producer_id: Callable[[], int]
    # Take over the writing of markers; whoever does that calls the machine's `complete` at the end.
    send_markers: Callable[[TransactionMarkers], None]

    def markers(self, transactional_id: str, row: Transaction) -> TransactionMarkers:
        """What a decided transaction is to be told to its partitions by."""
        assert row.state in PREPARED, row.state
        return TransactionMarkers(
            self.partition,
            self.coordinator_epoch,
            transactional_id,
            row.producer_id,
            row.producer_epoch,
            row.state is TransactionState.PREPARE_COMMIT,
            row.client_version,
            row.partitions,
        )
