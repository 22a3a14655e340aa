"""Kafka's TransactionMetadata: what the coordinator remembers of a transactional id, and how that may change.

A row is immutable; every method that changes something gives a new one, as Kafka's log will hold it. What a row
says of `last_producer_epoch` is never logged: it only distinguishes a repeated InitProducerId from a zombie's, and a
new coordinator does without.

Transactions version 2 (KIP-890) gives every transaction an epoch of its own: the end of one raises the epoch, so a
delayed request of an earlier transaction never fits a later one. When the epochs of a producer id are used up, its
end also brings the next producer id.

Pure. Owner: the TransactionCoordinator.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

MAX_EPOCH: Final = (1 << 15) - 1
# The last epoch a client may have: the coordinator needs one more to fence it.
LAST_CLIENT_EPOCH: Final = MAX_EPOCH - 1
# The timeout of a transaction that is prepared by somebody else's protocol and never times out here (KIP-939).
NO_TIMEOUT_MS: Final = (1 << 31) - 1
NO_START: Final = -1
# The level of transaction.version from which on every transaction has its own epoch.
EPOCH_BUMP_VERSION: Final = 2


class TransactionState(IntEnum):
    """The states by the numbers that the log holds."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    # Between two states of an Apache coordinator, never in a log: known by its name in filters only.
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name in answers to DescribeTransactions and ListTransactions."""
        return _LABELS[self]


S = TransactionState

_LABELS: Final = {state: state.name.title().replace("_", "") for state in TransactionState}
STATES_BY_LABEL: Final = {label: state for state, label in _LABELS.items()}

TRANSITIONS: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    S.EMPTY: frozenset({S.EMPTY, S.ONGOING, S.PREPARE_ABORT, S.DEAD}),
    S.ONGOING: frozenset({S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT}),
    S.PREPARE_COMMIT: frozenset({S.COMPLETE_COMMIT}),
    S.PREPARE_ABORT: frozenset({S.COMPLETE_ABORT}),
    S.COMPLETE_COMMIT: frozenset({S.EMPTY, S.ONGOING, S.PREPARE_ABORT, S.DEAD}),
    S.COMPLETE_ABORT: frozenset({S.EMPTY, S.ONGOING, S.PREPARE_ABORT, S.DEAD}),
    S.DEAD: frozenset(),
    S.PREPARE_EPOCH_FENCE: frozenset(),
}

# The states that wait for their markers: nothing else may happen to the transactional id meanwhile.
PREPARED: Final = frozenset({S.PREPARE_COMMIT, S.PREPARE_ABORT})
# The states that somebody has yet to end.
OPEN: Final = frozenset({S.ONGOING, *PREPARED})
# The states that may be forgotten after transactional.id.expiration.ms.
EXPIRABLE: Final = frozenset({S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT})


_NO_PARTITIONS: Final[frozenset[TopicPartition]] = frozenset()


class ProducerIdAndEpoch(NamedTuple):
    """A producer as it knows itself."""

    producer_id: int
    producer_epoch: int


def bumps_epoch(transaction_version: int) -> bool:
    """Has every transaction its own epoch at this level?"""
    return transaction_version >= EPOCH_BUMP_VERSION


class TransactionMetadata(NamedTuple):
    """One transactional id."""

    producer_id: int
    previous_producer_id: int
    next_producer_id: int
    producer_epoch: int
    last_producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    start_ms: int
    last_update_ms: int
    # The transaction.version that the client used for what was done last.
    client_version: int

    @classmethod
    def new(cls, producer_id: int, timeout_ms: int, now_ms: int) -> "TransactionMetadata":
        """A transactional id that nobody has used: its epoch is still to come."""
        return cls(
            producer_id=producer_id,
            previous_producer_id=NO_PRODUCER_ID,
            next_producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            last_producer_epoch=NO_PRODUCER_EPOCH,
            timeout_ms=timeout_ms,
            state=S.EMPTY,
            partitions=_NO_PARTITIONS,
            start_ms=NO_START,
            last_update_ms=now_ms,
            client_version=0,
        )

    @property
    def is_exhausted(self) -> bool:
        """Can this producer id get no further epoch?"""
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    @property
    def never_times_out(self) -> bool:
        return self.timeout_ms == NO_TIMEOUT_MS

    def is_timed_out(self, now_ms: int) -> bool:
        """Is it open for longer than its producer asked for?"""
        if self.state is not S.ONGOING or self.never_times_out:
            return False
        return self.start_ms + self.timeout_ms < now_ms

    def _check(self, state: TransactionState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state.name} to {state.name}"

    # ---- a producer begins --------------------------------------------------------------------------------

    def accepts(self, expected: ProducerIdAndEpoch) -> bool:
        """May a producer that says who it is go on, or has another one taken its transactional id?

        It may if nobody has been here yet, if it has the current producer id (its epoch is looked at later), or if
        it did not hear that it was given a new producer id because its epochs were used up.
        """
        if self.producer_epoch == NO_PRODUCER_EPOCH or expected.producer_id == self.producer_id:
            return True
        was_exhausted = expected.producer_epoch >= LAST_CLIENT_EPOCH
        return expected.producer_id == self.previous_producer_id and was_exhausted

    def initialized(self, expected_epoch: int | None, timeout_ms: int, now_ms: int) -> "TransactionMetadata":
        """The next epoch for a new producer, or for one that goes on after an error (KIP-360)."""
        if self.is_exhausted:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"Cannot allocate any more producer epochs for producerId {self.producer_id}",
            )
        epoch, last_epoch = self._next_epochs(expected_epoch)
        return self._emptied(self.producer_id, epoch, last_epoch, timeout_ms, now_ms)

    def _next_epochs(self, expected_epoch: int | None) -> tuple[int, int]:
        if expected_epoch is None:
            return self.producer_epoch + 1, NO_PRODUCER_EPOCH
        if self.producer_epoch in (NO_PRODUCER_EPOCH, expected_epoch):
            return self.producer_epoch + 1, self.producer_epoch
        if expected_epoch == self.last_producer_epoch:
            # It asks again because the answer was lost: a new producer would have erased the last epoch.
            return self.producer_epoch, self.last_producer_epoch
        raise KafkaError(ErrorCode.PRODUCER_FENCED)

    def rotated(
        self, producer_id: int, timeout_ms: int, now_ms: int, *, keep_last_epoch: bool
    ) -> "TransactionMetadata":
        """A new producer id, because the epochs of the old one are used up."""
        last_epoch = self.producer_epoch if keep_last_epoch else NO_PRODUCER_EPOCH
        return self._emptied(producer_id, 0, last_epoch, timeout_ms, now_ms)

    def _emptied(
        self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> "TransactionMetadata":
        self._check(S.EMPTY)
        return self._replace(
            producer_id=producer_id,
            previous_producer_id=self.producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            state=S.EMPTY,
            partitions=_NO_PARTITIONS,
            start_ms=NO_START,
            last_update_ms=now_ms,
        )

    # ---- a transaction grows and ends ---------------------------------------------------------------------

    def with_partitions(
        self, added: Iterable[TopicPartition], client_version: int, now_ms: int
    ) -> "TransactionMetadata":
        """The transaction with more partitions; it begins with its first."""
        self._check(S.ONGOING)
        return TransactionMetadata(
            self.producer_id,
            self.producer_id,
            self.next_producer_id,
            self.producer_epoch,
            self.last_producer_epoch,
            self.timeout_ms,
            S.ONGOING,
            self.partitions.union(added),
            self.start_ms if self.state is S.ONGOING else now_ms,
            now_ms,
            client_version,
        )

    def prepared(
        self, *, committed: bool, client_version: int, next_producer_id: int, now_ms: int
    ) -> "TransactionMetadata":
        """Decided: nothing but the markers is missing. From version 2 on the epoch grows with it."""
        state = S.PREPARE_COMMIT if committed else S.PREPARE_ABORT
        epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        if bumps_epoch(client_version):
            last_epoch = epoch
            epoch = min(epoch + 1, MAX_EPOCH)
        self._check(state)
        return TransactionMetadata(
            self.producer_id,
            self.producer_id,
            next_producer_id,
            epoch,
            last_epoch,
            self.timeout_ms,
            state,
            self.partitions,
            # An abort of nothing has no start of its own, and yet the log wants one.
            self.start_ms if self.state is S.ONGOING else now_ms,
            now_ms,
            client_version,
        )

    def fenced(self) -> "TransactionMetadata":
        """The same with the epoch that shuts its producer out, for the end that version 1 writes."""
        epoch = min(self.producer_epoch + 1, MAX_EPOCH)
        return self._replace(producer_epoch=epoch, last_producer_epoch=NO_PRODUCER_EPOCH)

    def completed(self, now_ms: int) -> "TransactionMetadata":
        """Every marker is written. With its last epoch used up, the producer goes on as another."""
        producer_id, epoch = self.successor
        state = S.COMPLETE_COMMIT if self.state is S.PREPARE_COMMIT else S.COMPLETE_ABORT
        self._check(state)
        return TransactionMetadata(
            producer_id,
            self.producer_id,
            NO_PRODUCER_ID,
            epoch,
            self.last_producer_epoch,
            self.timeout_ms,
            state,
            _NO_PARTITIONS,
            self.start_ms,
            now_ms,
            self.client_version,
        )

    @property
    def successor(self) -> ProducerIdAndEpoch:
        """As whom the producer goes on after the end."""
        if bumps_epoch(self.client_version) and self.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdAndEpoch(self.next_producer_id, 0)
        return ProducerIdAndEpoch(self.producer_id, self.producer_epoch)
