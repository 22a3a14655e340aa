"""The long way into a log: any batches, from anybody, one write for all of them.

What a log is usually given goes a shorter way (log_append.py), which does the same for one batch.
"""

import struct
from typing import Final

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_TIMESTAMP
from ottla.records.batch import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAX_TIMESTAMP_OFFSET,
    set_max_timestamp,
)
from ottla.records.types import Buffer
from ottla.storage.append import (
    AppendOrigin,
    AppendResult,
    CheckedBatch,
    Inspection,
    check_client_batch,
    check_trusted_batches,
)
from ottla.storage.errors import UnexpectedOffsetError
from ottla.storage.log_roll import RollingLog, pack_place
from ottla.storage.producer_entry import BatchMetadata, CompletedTxn
from ottla.storage.producer_replay import ProducerUpdate, stage_batches
from ottla.storage.segment import LogSegment
from ottla.storage.txnindex import AbortedTransaction
from ottla.storage.verification import NOT_CHECKED, Verification

_TIMESTAMP: Final = struct.Struct(">q")


class WritableLog(RollingLog):
    """A log that takes whatever passes its checks."""

    __slots__ = ()

    def append_as_follower(
        self, records: Buffer, now_ms: int, *, leader_epoch: int | None = None
    ) -> AppendResult:
        """Writes batches that have their offsets and epochs, as a leader or the metadata quorum sent them.

        A batch of a later epoch than the one the replica knows is left out with all that follow
        (KAFKA-18723): it comes again when the replica has heard of that epoch.
        """
        self._require_online()
        batches: list[CheckedBatch] = []
        for batch in check_trusted_batches(records, self.topic_partition):
            if leader_epoch is not None and batch.leader_epoch > leader_epoch:
                break
            batches.append(batch)
        if not batches:
            return AppendResult(-1, -1, NO_TIMESTAMP, self.log_start_offset, False, 0)
        self._check_offsets(batches)
        return self._write(records, batches, now_ms, AppendOrigin.REPLICATION, 0, NO_TIMESTAMP)

    def _append_client(
        self,
        records: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        inspected: Inspection | None,
        verification: Verification | None,
    ) -> AppendResult:
        """The long way for a client's batch."""
        batch = check_client_batch(records, self.config, now_ms, self.topic_partition, inspected)
        if batch.size_bytes != len(records):
            records = memoryview(records)[: batch.size_bytes]
        append_time = now_ms if self.config.uses_log_append_time else NO_TIMESTAMP
        kind = LOG_APPEND_TIME if append_time >= 0 else CREATE_TIME
        (header_max,) = _TIMESTAMP.unpack_from(records, MAX_TIMESTAMP_OFFSET)
        flagged = bool(batch.attributes & LOG_APPEND_TIME_FLAG)
        if header_max != batch.max_timestamp or flagged != (kind == LOG_APPEND_TIME):
            set_max_timestamp(records, 0, kind, batch.max_timestamp)
        placed = self._place(records, [batch], leader_epoch)
        return self._write(records, placed, now_ms, AppendOrigin.CLIENT, 0, append_time, verification)

    def _append_trusted(
        self,
        records: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin,
        transaction_version: int,
    ) -> AppendResult:
        """Batches of this node's own coordinators or of the metadata quorum's leader."""
        batches = list(check_trusted_batches(records, self.topic_partition))
        if not batches:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"No batch in the records for {self.topic_partition}")
        self._check_sizes(batches)
        append_time = NO_TIMESTAMP
        if origin is AppendOrigin.RAFT_LEADER:
            self._check_offsets(batches)
            if any(batch.leader_epoch != leader_epoch for batch in batches):
                raise KafkaError(ErrorCode.INVALID_RECORD, f"A batch is not of leader epoch {leader_epoch}")
        else:
            if self.config.uses_log_append_time:
                append_time = now_ms
                for index, batch in enumerate(batches):
                    set_max_timestamp(records, batch.position, LOG_APPEND_TIME, now_ms)
                    batches[index] = batch._replace(max_timestamp=now_ms)
            batches = self._place(records, batches, leader_epoch)
        return self._write(records, batches, now_ms, origin, transaction_version, append_time)

    def _place(
        self, records: bytearray | memoryview, batches: list[CheckedBatch], leader_epoch: int
    ) -> list[CheckedBatch]:
        """Gives the batches the next offsets and the leader's epoch, in their headers too."""
        offset = self.log_end_offset
        placed = []
        for batch in batches:
            pack_place(records, batch.position, offset, batch.size_bytes - LOG_OVERHEAD, leader_epoch)
            placed.append(batch._replace(base_offset=offset, leader_epoch=leader_epoch))
            offset += batch.last_delta + 1
        return placed

    def _check_sizes(self, batches: list[CheckedBatch]) -> None:
        largest = max(batch.size_bytes for batch in batches)
        if largest > self.config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"A batch for {self.topic_partition} has {largest} bytes, "
                f"more than {self.config.max_message_bytes}",
            )

    def _check_offsets(self, batches: list[CheckedBatch]) -> None:
        """Offsets given from outside must follow on the log's and on one another."""
        expected = self.log_end_offset
        for batch in batches:
            if batch.base_offset < expected or batch.last_delta < 0:
                raise UnexpectedOffsetError(
                    f"Offset {batch.base_offset} cannot follow in the log of {self.topic_partition}, "
                    f"where {expected} is next",
                    batches[0].base_offset,
                    batches[-1].last_offset,
                )
            expected = batch.last_offset + 1

    def _write(
        self,
        records: Buffer,
        batches: list[CheckedBatch],
        now_ms: int,
        origin: AppendOrigin,
        transaction_version: int,
        append_time: int,
        verification: Verification | None = NOT_CHECKED,
    ) -> AppendResult:
        """Writes batches that are in place: one write, then everything that remembers them."""
        size = batches[-1].position + batches[-1].size_bytes
        if size > self._segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{size} bytes for {self.topic_partition} are more than a segment, {self._segment_bytes}",
            )
        update = stage_batches(self._producers, records, batches, origin, transaction_version, verification)
        if update.duplicate is not None:
            return self._duplicate(update.duplicate)
        first_offset, last_offset = batches[0].base_offset, batches[-1].last_offset
        newest = max(batch.max_timestamp for batch in batches)
        segment = self._maybe_roll(size, newest, last_offset, first_offset, now_ms)
        for batch in batches:
            if batch.leader_epoch >= 0 and batch.leader_epoch != self._epochs.settled:
                self._assign_epoch(batch.leader_epoch, batch.base_offset)
        try:
            position = segment.size_bytes
            _ = segment.max_timestamp_so_far  # opens the indexes before anything is written
            segment.write(records if size == len(records) else memoryview(records)[:size], size)
        except OSError as error:
            raise self._fail("append to", error) from error
        try:
            for batch in batches:
                segment.note_batch(
                    position + batch.position, batch.size_bytes, batch.last_offset, batch.max_timestamp
                )
            self.log_end_offset = last_offset + 1
            self._apply(update, segment)
        except OSError as error:
            raise self._fail_for_good("append to", error) from error
        return AppendResult(first_offset, last_offset, append_time, self.log_start_offset, False, size)

    def _duplicate(self, original: BatchMetadata) -> AppendResult:
        """A producer sent again what is here already: it is told where, and nothing is written."""
        return AppendResult(
            original.first_offset, original.last_offset, original.timestamp, self.log_start_offset, True, 0
        )

    def _apply(self, update: ProducerUpdate, segment: LogSegment) -> None:
        for producer in update.staged.values():
            self._producers.apply(producer)
        for txn in update.completed:
            self._complete(txn, segment)
        self._producers.map_end_offset = self.log_end_offset
        self._update_first_unstable()

    def _complete(self, txn: CompletedTxn, segment: LogSegment) -> None:
        """A transaction's marker is written: readers are told of it if it was aborted."""
        if txn.aborted:
            last_stable_offset = self._producers.last_stable_offset_after(txn)
            segment.txn_index.append(AbortedTransaction(*txn[:3], last_stable_offset))
        self._producers.complete(txn)
