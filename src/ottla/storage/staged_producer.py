"""Judging what a producer appends: its epoch, its sequence, its transaction, its coordinator (KIP-98, KIP-890).

Rules: judged on a copy, so that a refusal leaves nothing to undo; the copy takes the place of the producer's entry once
the batch is written (ProducerState.apply). What a leader has judged a follower takes as it comes.

Owner: whoever stages an append to a Log, until it is applied or refused.
"""

from typing import Final

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_PRODUCER_EPOCH, NO_SEQUENCE, TopicPartition
from ottla.records.batch import MAX_SEQUENCE, increment_sequence
from ottla.records.control import EndTxnMarker
from ottla.storage.append import AppendOrigin
from ottla.storage.producer_entry import EPOCH_BUMP_VERSION, BatchMetadata, CompletedTxn, ProducerEntry
from ottla.storage.verification import Verification

MAX_EPOCH: Final = (1 << 15) - 1


class StagedProducer:
    """One producer's part of an append: judged on a copy, put in place once the batch is written."""

    __slots__ = ("_origin", "_partition", "_verification", "entry", "is_verified", "started")

    def __init__(
        self,
        partition: TopicPartition,
        entry: ProducerEntry,
        origin: AppendOrigin,
        verification: Verification | None = None,
    ) -> None:
        self._partition = partition
        self._origin = origin
        self._verification = verification
        self.entry = entry
        self.started: list[int] = []  # first offsets of the transactions begun
        self.is_verified = False  # is its verification over, by data or by a marker?

    def append_data(
        self,
        epoch: int,
        base_sequence: int,
        last_delta: int,
        first_offset: int,
        timestamp: int,
        transactional: bool,
    ) -> None:
        """Takes a batch of data, or raises what a producer is told."""
        self._check_epoch(epoch, 0)
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(epoch, base_sequence)
        last_sequence = NO_SEQUENCE if base_sequence < 0 else increment_sequence(base_sequence, last_delta)
        entry = self.entry
        entry.add_batch(epoch, BatchMetadata(last_sequence, first_offset + last_delta, last_delta, timestamp))
        if entry.txn_first_offset >= 0 and not transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {entry.producer_id} has an open transaction on {self._partition}: "
                f"the batch at offset {first_offset} is not transactional",
            )
        if transactional and entry.txn_first_offset < 0:
            entry.txn_first_offset = first_offset
            self.started.append(first_offset)

    def append_marker(
        self, marker: EndTxnMarker, epoch: int, offset: int, timestamp: int, transaction_version: int
    ) -> CompletedTxn | None:
        """Takes the end of a transaction; None if none was open here."""
        self._check_epoch(epoch, transaction_version)
        self._check_coordinator_epoch(marker)
        return self.entry.end_transaction(marker, epoch, offset, timestamp)

    def _check_epoch(self, epoch: int, transaction_version: int) -> None:
        """An older epoch is a zombie. With KIP-890 every transaction has its own epoch, so a marker's must grow."""
        current = self.entry.epoch
        if epoch > current or (epoch == current and transaction_version < EPOCH_BUMP_VERSION):
            return
        repeated_marker = epoch == current and (self.entry.txn_first_offset < 0 or epoch == MAX_EPOCH)
        if repeated_marker or self._origin is AppendOrigin.REPLICATION:
            return
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"Epoch {epoch} of producer {self.entry.producer_id} on {self._partition} is not newer than {current}",
        )

    def _check_sequence(self, epoch: int, sequence: int) -> None:
        entry = self.entry
        if self._verification is not None:
            self._check_verified_sequence(self._verification, sequence)
        if epoch != entry.epoch:
            if sequence != 0 and entry.epoch != NO_PRODUCER_EPOCH:
                raise self._out_of_order(f"{sequence} begins the new epoch {epoch}, not 0")
            return
        last = entry.last_sequence
        if sequence != last + 1 and not (sequence == 0 and last == MAX_SEQUENCE):
            raise self._out_of_order(f"{sequence} follows {last}")

    def _check_verified_sequence(self, verification: Verification, sequence: int) -> None:
        if verification.supports_epoch_bump and sequence != 0 and not self.entry.batches:
            raise self._out_of_order(f"{sequence} begins a transaction of version 2, not 0")
        if sequence > verification.lowest_sequence:
            raise self._out_of_order(f"{sequence} comes before {verification.lowest_sequence}")

    def _out_of_order(self, reason: str) -> KafkaError:
        return KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Out of order sequence number of producer {self.entry.producer_id} on {self._partition}: {reason}",
        )

    def _check_coordinator_epoch(self, marker: EndTxnMarker) -> None:
        known = self.entry.coordinator_epoch
        if marker.coordinator_epoch < known and self._origin is not AppendOrigin.REPLICATION:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Coordinator epoch {marker.coordinator_epoch} for producer {self.entry.producer_id} "
                f"on {self._partition} is older than {known}",
            )
