"""What one fetch brought for one partition, and how it becomes records.

The answer's bytes are walked batch by batch as records are asked for; a batch's checksum is verified and its
records decoded only then. A read-committed consumer leaves out what belongs to aborted transactions (KIP-98);
control records are never handed out. Owned by the consumer core.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ottla.client.aborted import AbortedTransactions, check_crc
from ottla.model.ids import TopicPartition
from ottla.records.batch import BatchView, batch_at
from ottla.records.kernel import whole_batches
from ottla.records.record import MAX_DECOMPRESSED_BYTES, read_records

_NO_END = 0x7FFFFFFFFFFFFFFF


class ConsumerRecord(NamedTuple):
    """One record as a consumer sees it. timestamp_type is 0 for the producer's time, 1 for the broker's."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int


def complete_batches_end(records: memoryview, end_offset: int = _NO_END) -> tuple[int, int]:
    """Where the last whole batch ends in an answer (its tail may be cut), and the offset after it (-1: none).

    Batches that begin at or after `end_offset` are left out; to have seen one is to have come that far.
    """
    return whole_batches(records, 0, len(records), end_offset)


class Fetched:
    """A partition's records from one fetch, handed out piece by piece."""

    def __init__(
        self,
        tp: TopicPartition,
        records: memoryview,
        end: int,
        fetch_offset: int,
        *,
        aborted: Iterable[tuple[int, int]] | None,
        check_crcs: bool,
        max_batch_bytes: int = MAX_DECOMPRESSED_BYTES,
    ) -> None:
        self.tp = tp
        self.next_offset = fetch_offset  # the position once all that was taken is consumed
        self.leader_epoch = -1
        self.size_bytes = end
        self._records = records
        self._position = 0
        self._end = end
        self._check_crcs = check_crcs
        self._max_batch_bytes = max_batch_bytes
        self._aborted = AbortedTransactions(aborted)
        self._ready: list[ConsumerRecord] = []
        self._taken = 0
        self._batch_next_offset = fetch_offset

    @property
    def is_empty(self) -> bool:
        return self._taken >= len(self._ready) and self._position >= self._end

    def take(self, limit: int) -> list[ConsumerRecord]:
        """Up to `limit` further records; none only if there are none. KafkaError if a batch is damaged."""
        while self._taken >= len(self._ready):
            if self._position >= self._end:
                self.next_offset = self._batch_next_offset
                return []
            self._decode_next()
        if self._taken == 0 and len(self._ready) <= limit:
            taken = self._ready
        else:
            taken = self._ready[self._taken : self._taken + limit]
        self._taken += len(taken)
        self.leader_epoch = taken[-1].leader_epoch
        at_batch_end = self._taken >= len(self._ready)
        self.next_offset = self._batch_next_offset if at_batch_end else taken[-1].offset + 1
        return taken

    def next(self) -> ConsumerRecord | None:
        """The next record of the batch that is decoded already; None for its last, which `take` hands out."""
        taken = self._taken
        if taken + 1 >= len(self._ready):
            return None
        record = self._ready[taken]
        self._taken = taken + 1
        self.next_offset = record.offset + 1
        self.leader_epoch = record.leader_epoch
        return record

    def _decode_next(self) -> None:
        batch = batch_at(self._records, self._position, self._end)
        assert batch is not None, "only whole batches were let in"
        if self._check_crcs:
            check_crc(batch, self.tp)
        self._ready, self._taken = [], 0
        if self._is_wanted(batch):
            self._ready = self._decode(batch)
        # Only now: a batch that cannot be read is not passed over.
        self._position = batch.end
        self._batch_next_offset = max(self._batch_next_offset, batch.next_offset)
        if not self._ready:
            self.next_offset = self._batch_next_offset

    def _decode(self, batch: BatchView) -> list[ConsumerRecord]:
        records = read_records(batch, self._max_batch_bytes)
        start = self.next_offset
        if records and records[0].offset < start:
            records = [record for record in records if record.offset >= start]
        topic, partition = self.tp
        kind, epoch = batch.timestamp_type, batch.partition_leader_epoch
        return [
            ConsumerRecord(topic, partition, offset, timestamp, kind, key, value, headers, epoch)
            for offset, timestamp, key, value, headers, _ in records
        ]

    def _is_wanted(self, batch: BatchView) -> bool:
        passes = self._aborted.passes(batch)
        return passes and batch.next_offset > self.next_offset and not batch.is_control
