"""Who an idempotent producer is, and the sequence numbers it gives out (KIP-98, KIP-360, KIP-679).

Every batch of a partition carries the producer's id, its epoch and the number of its first record; the broker takes
each number once and in order. When a gap cannot be closed any more (a batch was given up, the broker lost its memory of
us) a producer raises its own epoch and numbers what is unsent from 0 again, unless epochs are not its own to raise
(OnGap). A number may be "unresolved": a batch was given up though nobody knows whether it was written; then nothing new
goes to that partition until what is in flight has come back and shows which it was.

Rules: a batch is in a partition's `in_flight` from the moment it is numbered until its fate is known, also while it
waits for another try. Owned by the sender.
"""

from collections import defaultdict
from collections.abc import Sequence
from enum import Enum

from ottla.client.config import MAX_IN_FLIGHT_WITH_IDEMPOTENCE
from ottla.client.producer.accumulator import ProducerBatch
from ottla.model.errors import ErrorCode
from ottla.model.ids import NO_OFFSET, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, TopicPartition
from ottla.records.batch import increment_sequence, is_after

MAX_EPOCH = 0x7FFF


class PartitionSequences:
    """What one partition has been given and what it has acknowledged."""

    __slots__ = (
        "epoch",
        "in_flight",
        "last_acked_offset",
        "last_acked_sequence",
        "next_sequence",
        "producer_id",
    )

    def __init__(self) -> None:
        self.producer_id: int = NO_PRODUCER_ID
        self.epoch = NO_PRODUCER_EPOCH
        self.next_sequence = 0
        self.last_acked_sequence = NO_SEQUENCE
        self.last_acked_offset: int = NO_OFFSET
        self.in_flight: list[ProducerBatch] = []

    def is_next(self, sequence: int) -> bool:
        """Would the broker, after all it has acknowledged, expect this number?"""
        if self.last_acked_sequence == NO_SEQUENCE:
            return sequence == 0
        return sequence == increment_sequence(self.last_acked_sequence, 1)

    def restart(self, producer_id: int, epoch: int) -> None:
        """Number everything that is not acknowledged from 0, under a new identity."""
        self.producer_id, self.epoch = producer_id, epoch
        self.next_sequence, self.last_acked_sequence = 0, NO_SEQUENCE
        for batch in self.in_flight:
            batch.set_producer(producer_id, epoch, self.next_sequence)
            self.next_sequence = increment_sequence(self.next_sequence, batch.record_count)


class OnGap(Enum):
    """What becomes of a partition's numbers when one of them will never be written."""

    RAISE_EPOCH = "number the rest from 0 under a new epoch"
    # The epoch of a transactional id is the coordinator's to raise.
    END_TRANSACTION = "the transaction can only be aborted"
    # Id and epoch were given by somebody else, who knows what was written under them.
    FAIL = "nothing can be written any more"


class ProducerIdentity:
    """Id and epoch of one producer, and the numbers of every partition it writes to."""

    def __init__(self, on_gap: OnGap = OnGap.RAISE_EPOCH) -> None:
        self._on_gap = on_gap
        self.producer_id: int = NO_PRODUCER_ID
        self.epoch = NO_PRODUCER_EPOCH
        self.partitions: defaultdict[TopicPartition, PartitionSequences] = defaultdict(PartitionSequences)
        self._unresolved: dict[TopicPartition, int] = {}  # -> the number after the batch that was given up
        self._to_restart: set[TopicPartition] = set()

    @property
    def is_known(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    def assigned(self, producer_id: int, epoch: int) -> None:
        """InitProducerId has answered, or the end of a transaction (KIP-890)."""
        self.producer_id, self.epoch = producer_id, epoch
        if self._on_gap is OnGap.END_TRANSACTION:
            self._unresolved.clear()  # under a new epoch every number is free
            self._to_restart.clear()

    # -- before sending: asked for each batch and in each turn, so no properties and no helpers -----------

    def may_send(self, batch: ProducerBatch) -> bool:
        """May this batch, the first in its queue, go out now?"""
        if self.producer_id == NO_PRODUCER_ID:
            return False
        sequences = self.partitions[batch.tp]
        if batch.base_sequence == NO_SEQUENCE:
            if sequences.in_flight:
                if len(sequences.in_flight) >= MAX_IN_FLIGHT_WITH_IDEMPOTENCE:
                    return False  # what a broker remembers of a producer
                is_stale = sequences.producer_id != self.producer_id or sequences.epoch != self.epoch
                if sequences.last_acked_sequence == NO_SEQUENCE or is_stale:
                    # A partition that does not know us takes any number as the first: only once it has 0 may others
                    # follow. And number 0 of a new epoch must not overtake what is left of the old one.
                    return False
            return batch.tp not in self._unresolved
        # A batch with a number is here again: they go one at a time then, the lowest first.
        return not sequences.in_flight or sequences.in_flight[0] is batch

    def number(self, batch: ProducerBatch) -> None:
        """Give the batch its number, once; a retry keeps it."""
        if batch.base_sequence != NO_SEQUENCE:
            return
        sequences = self.partitions[batch.tp]
        if sequences.producer_id != self.producer_id or sequences.epoch != self.epoch:
            assert not sequences.in_flight
            sequences.restart(self.producer_id, self.epoch)
        batch.set_producer(self.producer_id, self.epoch, sequences.next_sequence)
        sequences.next_sequence = increment_sequence(sequences.next_sequence, batch.record_count)
        sequences.in_flight.append(batch)

    # -- after the answer -----------------------------------------------------------------------------

    def acknowledged(self, batch: ProducerBatch, base_offset: int) -> None:
        sequences = self.partitions[batch.tp]
        count = batch.record_count
        if batch.producer_id == sequences.producer_id and batch.producer_epoch == sequences.epoch:
            last = increment_sequence(batch.base_sequence, count - 1)
            if sequences.last_acked_sequence == NO_SEQUENCE or is_after(last, sequences.last_acked_sequence):
                sequences.last_acked_sequence = last
        if base_offset != NO_OFFSET:
            last_offset = base_offset + count - 1
            sequences.last_acked_offset = max(sequences.last_acked_offset, last_offset)
        self._forget(batch, sequences)

    def failed(self, batch: ProducerBatch, *, number_is_free: bool) -> None:
        """The batch is given up. If its number is surely unused, what comes after has to be numbered anew."""
        self._forget(batch, self.partitions[batch.tp])
        if number_is_free:
            self._restart_later(batch.tp)

    def split(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """The batch was refused for its size: its parts share its numbers among them."""
        sequences = self.partitions[batch.tp]
        sequence = batch.base_sequence
        for part in parts:
            part.set_producer(batch.producer_id, batch.producer_epoch, sequence)
            part.sequence_was_reset = batch.sequence_was_reset
            sequence = increment_sequence(sequence, part.record_count)
        place = sequences.in_flight.index(batch)
        sequences.in_flight[place : place + 1] = parts

    def given_up(self, batch: ProducerBatch) -> None:
        """The batch's time is over while nobody knows whether it was written."""
        if batch.has_sequence:
            self._unresolved[batch.tp] = increment_sequence(batch.base_sequence, batch.record_count)
        self._forget(batch, self.partitions[batch.tp])

    def may_retry(self, batch: ProducerBatch, error: ErrorCode, log_start_offset: int) -> bool:
        """The broker says that a number is wrong: is it worth another try, perhaps under a new epoch?"""
        sequences = self.partitions[batch.tp]
        if self._on_gap is OnGap.FAIL:
            if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                return (
                    sequences.in_flight[0] is not batch
                )  # no wonder, if one before it is still to be written
            return error.retriable
        if self._on_gap is OnGap.END_TRANSACTION:
            return self._may_retry_in_transaction(batch, sequences, error, log_start_offset)
        unresolved = self._unresolved.get(batch.tp)
        if error is ErrorCode.UNKNOWN_PRODUCER_ID:
            # The broker has forgotten us, mostly because retention took all we wrote.
            if log_start_offset >= 0 and not batch.sequence_was_reset:
                self._restart_later(batch.tp)
            return True
        if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            is_first = sequences.is_next(batch.base_sequence)
            if unresolved is None and (batch.sequence_was_reset or not is_first):
                return True  # only ahead of one that failed and is being sent again
            if unresolved is None or unresolved == batch.base_sequence:
                self._restart_later(batch.tp)
            return True
        return error.retriable

    def _may_retry_in_transaction(
        self, batch: ProducerBatch, sequences: PartitionSequences, error: ErrorCode, log_start_offset: int
    ) -> bool:
        if error is ErrorCode.UNKNOWN_PRODUCER_ID:
            if log_start_offset < 0 or batch.sequence_was_reset:
                return True
            if sequences.last_acked_offset < log_start_offset:
                # Retention took all we wrote, and the memory of us with it: begin at 0, under the same epoch.
                sequences.restart(self.producer_id, self.epoch)
                return True
            return False
        if error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            is_first = sequences.is_next(batch.base_sequence)
            return batch.tp not in self._unresolved and (batch.sequence_was_reset or not is_first)
        return error.retriable

    # -- putting gaps right ---------------------------------------------------------------------------

    def resolve(self) -> None:
        """Where all that was in flight has come back, see whether a batch given up was written or not."""
        for tp in list(self._unresolved):
            sequences = self.partitions[tp]
            if sequences.in_flight:
                continue
            if not sequences.is_next(sequences.next_sequence):
                self._restart_later(tp)
            del self._unresolved[tp]

    def restart_if_needed(self) -> None:
        """Raise the epoch, and number anew what waits for the partitions that had a gap."""
        if not self._to_restart or not self.is_known or self._on_gap is not OnGap.RAISE_EPOCH:
            return
        if self.epoch >= MAX_EPOCH:
            if any(batch.in_flight for tp in self._to_restart for batch in self.partitions[tp].in_flight):
                return  # without their numbers, those that come back would not find their place in the queue
            self.producer_id, self.epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
            for tp in self._to_restart:
                self._renumber_later(tp)
        else:
            self.epoch += 1
            for tp in self._to_restart:
                self.partitions[tp].restart(self.producer_id, self.epoch)
                self._unresolved.pop(tp, None)
        self._to_restart.clear()

    def _renumber_later(self, tp: TopicPartition) -> None:
        """The id itself is used up: batches lose their number and get one with the next id."""
        sequences = self.partitions[tp]
        for batch in sequences.in_flight:
            batch.set_producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
        sequences.in_flight.clear()
        self._unresolved.pop(tp, None)

    def _restart_later(self, tp: TopicPartition) -> None:
        self._to_restart.add(tp)

    @staticmethod
    def _forget(batch: ProducerBatch, sequences: PartitionSequences) -> None:
        if batch in sequences.in_flight:
            sequences.in_flight.remove(batch)
