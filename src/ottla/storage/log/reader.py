"""Reading a log: slices for fetches, searches by timestamp, aborted transactions."""

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_TIMESTAMP, TopicPartition, Uuid
from ottla.records.batch import LOG_APPEND_TIME, BatchView
from ottla.records.kernel import find_timestamp
from ottla.records.record import MAX_DECOMPRESSED_BYTES, record_section
from ottla.storage.config import LogConfig
from ottla.storage.errors import OutOfFilesError, StorageError, is_out_of_files
from ottla.storage.log.leader_epochs import LeaderEpochFileCache
from ottla.storage.log.recovery import LoadedLog
from ottla.storage.producers.state import ProducerStateManager
from ottla.storage.segment.file_records import (
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    ColdDataError,
    ColdSliceError,
    LogSlice,
    Pread,
    TimestampOffset,
    pread_warm,
)
from ottla.storage.segment.indexes import AbortedTransaction
from ottla.storage.segment.segment import LogSegment

if TYPE_CHECKING:
    from ottla.storage.log.log import Log


# ----------------------------------------
# Finding records by timestamp within one segment. Decompresses batches, so it may run in a thread.
#
# The kernel looks for the record: a batch may hold millions of them.


def find_by_timestamp(
    segment: LogSegment, timestamp: int, start_offset: int, max_size: int = MAX_DECOMPRESSED_BYTES
) -> TimestampOffset | None:
    """The first record, in order of offsets, at or after both; MESSAGE_TOO_LARGE if a batch is above `max_size`."""
    offset = max(segment.time_index.lookup(timestamp)[1], start_offset)
    for position, header in segment.headers(segment.offset_index.lookup(offset)[1]):
        if header[MAX_TIMESTAMP] < timestamp:
            continue
        _, batch = next(segment.batches(position))
        found = _find_in_batch(batch, timestamp, start_offset, max_size)
        if found is not None:
            return TimestampOffset(found[1], found[0], header[LEADER_EPOCH])
    return None


def find_max_timestamp(segment: LogSegment, max_size: int = MAX_DECOMPRESSED_BYTES) -> TimestampOffset | None:
    """The first record that has the segment's largest timestamp."""
    largest = segment.max_timestamp_so_far
    indexed = segment.offset_index.lookup(segment.offset_of_max_timestamp_so_far)[1]
    for position, header in segment.headers(indexed):
        if header[MAX_TIMESTAMP] != largest:
            continue
        _, batch = next(segment.batches(position))
        found = _find_in_batch(batch, largest, 0, max_size)
        if found is not None:
            return TimestampOffset(found[1], found[0], header[LEADER_EPOCH])
    return None


def _find_in_batch(
    batch: BatchView, timestamp: int, start_offset: int, max_size: int
) -> tuple[int, int] | None:
    """(offset, timestamp)."""
    return find_timestamp(
        *record_section(batch, max_size),
        batch.records_count,
        batch.base_offset,
        batch.base_timestamp,
        batch.max_timestamp if batch.timestamp_type == LOG_APPEND_TIME else None,
        timestamp,
        start_offset,
    )


# ----------------------------------------
# What a log is made of: its segments, offsets, epochs and producers, and what a failed disk does to them.
#
# The lowest of the layers of a Log (state, reading, rolling, writing, appending, upkeep): each is a class over the one
# below, so that a file has one idea. See log.py for the rules.


class ActiveProducer(NamedTuple):
    """A producer as DescribeProducers shows it (KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int  # -1 if none


class LogState:
    """The parts of a log and the questions they answer without touching a segment's content."""

    __slots__ = (
        "_active",
        "_bases",
        "_epochs",
        "_first_unstable",
        "_lock",
        "_noted",
        "_producers",
        "_roll_after_ms",
        "_roll_after_timestamp",
        "_segments",
        "_truncations",
        "_unsynced",
        "config",
        "dir",
        "failed",
        "high_watermark",
        "last_flush_ms",
        "log_end_offset",
        "log_start_offset",
        "on_failure",
        "on_roll",
        "recovery_point",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        dir: Path,
        topic_partition: TopicPartition,
        topic_id: Uuid | None,
        config: LogConfig,
        loaded: LoadedLog,
        epochs: LeaderEpochFileCache,
        producers: ProducerStateManager,
        now_ms: int,
    ) -> None:
        self.dir = dir
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.high_watermark = loaded.log_start_offset
        self.recovery_point = max(loaded.recovery_point, loaded.log_start_offset)
        self.last_flush_ms = now_ms
        self.failed = False
        # Called on the loop after a roll, with the offset up to which a flush is due.
        self.on_roll: Callable[[Log, int], None] | None = None
        # Called once, from whatever thread saw the disk fail.
        self.on_failure: Callable[[Log, Exception], None] | None = None
        self._epochs = epochs
        self._producers = producers
        self._lock = Lock()  # guards what a flushing thread changes: recovery point, unsynced files
        self._truncations = 0
        # Small files that go to the disk with the next flush, and how many were noted before each.
        self._unsynced: dict[Path, int] = {}
        self._noted = 0
        self._first_unstable: int | None = None
        self._set_segments(loaded.segments)
        self._update_first_unstable()

    # -- segments

    def _set_segments(self, segments: list[LogSegment]) -> None:
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._active = segments[-1]
        self._disarm_roll()

    def _disarm_roll(self) -> None:
        """Makes the next append ask whether the segment is due, which also tells when it will be."""
        self._roll_after_timestamp = self._roll_after_ms = -2

    def _floor_index(self, offset: int) -> int:
        """Which segment an offset lies in; -1 below the first."""
        return bisect_right(self._bases, offset) - 1

    @property
    def segments(self) -> Sequence[LogSegment]:
        """All of them, oldest first."""
        return tuple(self._segments)

    @property
    def active_segment(self) -> LogSegment:
        return self._active

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    # -- offsets

    @property
    def last_stable_offset(self) -> int:
        """Everything below is decided: the end of what read_committed consumers see."""
        unstable = self._first_unstable
        if unstable is not None and unstable < self.high_watermark:
            return unstable
        return self.high_watermark

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self.recovery_point

    def flush_needed(self, now_ms: int) -> bool:
        """Is flush.messages or flush.ms due?"""
        unflushed = self.log_end_offset - self.recovery_point
        return unflushed >= self.config.flush_messages or (
            unflushed > 0 and now_ms - self.last_flush_ms >= self.config.flush_ms
        )

    def update_high_watermark(self, offset: int) -> int:
        """Moves it to an offset, kept within the log; what it became."""
        bounded = offset
        if not self.log_start_offset <= offset <= self.log_end_offset:
            bounded = min(max(offset, self.log_start_offset), self.log_end_offset)
        if bounded != self.high_watermark:
            self.high_watermark = bounded
            if self._first_unstable is not None and self._producers.on_high_watermark(bounded):
                self._update_first_unstable()
        return bounded

    def _update_first_unstable(self) -> None:
        """Below the log start nothing is left to be undecided, so it is at least that."""
        unstable = self._producers.first_unstable_offset
        self._first_unstable = None if unstable is None else max(unstable, self.log_start_offset)

    def maybe_increment_log_start_offset(self, offset: int, reason: str) -> bool:
        """Gives up what lies below an offset (DeleteRecords, retention); the files go later."""
        self._require_online()
        if offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"The log of {self.topic_partition} cannot start at {offset} ({reason}): "
                f"its high watermark is {self.high_watermark}",
            )
        if offset <= self.log_start_offset:
            return False
        self._set_log_start_offset(offset)
        self._epochs.truncate_from_start(offset)
        self._producers.on_log_start_offset(offset)
        self._update_first_unstable()
        return True

    def _set_log_start_offset(self, offset: int) -> None:
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        with self._lock:
            self.recovery_point = max(self.recovery_point, offset)

    # -- leader epochs

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch in the log, or -1."""
        return self._epochs.latest

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None:
        """(epoch, end offset) of the largest epoch at or below one; None if that is not known."""
        return self._epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """The leader epoch an offset was written in, or -1."""
        return self._epochs.epoch_for(offset)

    def earliest_epoch(self) -> int:
        """The epoch of the log start offset, or -1: what ListOffsets answers with the earliest offset."""
        entry = self._epochs.earliest()
        return entry.epoch if entry is not None and entry.start_offset <= self.log_start_offset else -1

    def assign_epoch_start(self, epoch: int, start_offset: int) -> None:
        """A new leader notes where its epoch begins; the file is written with the first batch."""
        self._require_online()
        self._epochs.begin(epoch, start_offset)

    def _assign_epoch(self, epoch: int, start_offset: int) -> None:
        """A batch is about to be appended and the file does not know its epoch."""
        try:
            self._epochs.assign(epoch, start_offset)
        except OSError as error:
            raise self._fail("write the leader epochs of", error) from error

    # -- producers

    @property
    def producer_id_count(self) -> int:
        return len(self._producers.entries)

    def active_producers(self) -> list[ActiveProducer]:
        return [
            ActiveProducer(
                entry.producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.txn_first_offset,
            )
            for entry in self._producers.entries.values()
        ]

    def last_records_of_active_producers(self) -> dict[int, tuple[int, int]]:
        """Producer id -> (last data offset or -1, epoch): the cleaner keeps these batches."""
        return {
            producer_id: (entry.last_data_offset, entry.epoch)
            for producer_id, entry in self._producers.entries.items()
        }

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        entry = self._producers.entries.get(producer_id)
        return entry is not None and entry.txn_first_offset >= 0 and entry.epoch == producer_epoch

    def has_late_transaction(self, now_ms: int) -> bool:
        return self._producers.has_late_transaction(now_ms)

    def first_undecided_offset(self) -> int | None:
        """The first offset of the oldest open transaction: the cleaner stops there."""
        return min(self._producers.ongoing, default=None)

    def remove_expired_producers(self, now_ms: int) -> None:
        self._producers.remove_expired(now_ms)

    # -- the disk

    def _sync_later(self, path: Path) -> None:
        """A small file was written; the next flush waits for it."""
        with self._lock:
            self._noted += 1
            self._unsynced[path] = self._noted

    def _was_moved_from(self, dir: Path) -> bool:
        """Has the directory got another name since? A file that is missing there is no failure of the disk."""
        with self._lock:
            return self.dir != dir

    def _require_online(self) -> None:
        if self.failed:
            raise StorageError(self.dir.parent, f"{self.dir.parent} is offline after an I/O error")

    def _fail(self, action: str, error: Exception) -> KafkaError:
        """Marks the log failed; the error to raise. For want of a descriptor nothing is marked."""
        if is_out_of_files(error):
            return OutOfFilesError(f"Cannot {action} {self.topic_partition}: {error}")
        return self._fail_for_good(action, error)

    def _fail_for_good(self, action: str, error: Exception) -> StorageError:
        """The same where something was begun that could not be finished."""
        first = not self.failed
        self.failed = True
        if first and self.on_failure is not None:
            self.on_failure(self, error)  # type: ignore[arg-type]  # every LogState is a Log
        return StorageError(self.dir.parent, f"Cannot {action} {self.topic_partition} in {self.dir}: {error}")


class ReadableLog(LogState):
    """A log that can be read."""

    __slots__ = ()

    def read(
        self,
        offset: int,
        max_bytes: int,
        max_offset: int,
        min_one_message: bool = True,
        *,
        wait: bool = True,
    ) -> LogSlice:
        """Whole batches from the one that holds `offset`, at most max_bytes, ending before max_offset.

        With min_one_message the first batch comes even if it is larger. The slice is empty where there is
        nothing to read, and never goes beyond a segment. Finding its ends reads batch headers: without `wait` only
        such as are in memory, and ColdSliceError has what to warm up before the next try.
        """
        self._require_online()
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise self._out_of_range(offset)
        if offset >= max_offset or offset == self.log_end_offset:
            return LogSlice(None, 0, 0, offset, offset)
        try:
            return self._read(
                offset,
                max_bytes,
                min(max_offset, self.log_end_offset),
                min_one_message,
                os.pread if wait else pread_warm,
            )
        except OSError as error:
            raise self._fail("read from", error) from error

    def _out_of_range(self, offset: int) -> KafkaError:
        return KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"Offset {offset} is not in the log of {self.topic_partition}, "
            f"which has {self.log_start_offset} to {self.log_end_offset}",
        )

    def _read(
        self, offset: int, max_bytes: int, max_offset: int, min_one_message: bool, pread: Pread
    ) -> LogSlice:
        index = self._floor_index(offset)
        while index < len(self._segments):
            segment = self._segments[index]
            index += 1
            try:
                found = self._find(segment, index, offset, max_bytes, max_offset, min_one_message, pread)
            except ColdDataError as cold:
                needed = LogSlice(segment.file(), cold.position, cold.length, offset, offset)
                raise ColdSliceError(needed) from None
            if found is not None:  # else the last batches of the segment have been compacted away
                return found
        return LogSlice(None, 0, 0, offset, offset)

    def _find(
        self,
        segment: LogSegment,
        following: int,
        offset: int,
        max_bytes: int,
        max_offset: int,
        min_one_message: bool,
        pread: Pread,
    ) -> LogSlice | None:
        """The slice in one segment; None if it has nothing from the offset on."""
        found = segment.locate(offset, pread)
        if found is None:
            return None
        start, first_offset = found
        if first_offset == offset:  # several consumers may begin here
            segment.remember(offset, start)
        limit, next_offset = self._limit(segment, following, max_offset, pread)
        if limit - start > max_bytes:
            limit, next_offset = self._cut(segment, start, start + max_bytes, min_one_message, pread)
        if limit <= start:
            return LogSlice(None, 0, 0, offset, offset)
        segment.remember(next_offset, limit)
        return LogSlice(segment.file(), start, limit - start, first_offset, next_offset)

    def _limit(self, segment: LogSegment, following: int, max_offset: int, pread: Pread) -> tuple[int, int]:
        """(position, offset) up to which a segment may be read."""
        if following < len(self._segments):
            if max_offset >= self._bases[following]:
                return segment.size_bytes, self._bases[following]
        elif max_offset >= self.log_end_offset:
            return segment.size_bytes, max_offset
        found = segment.locate(max_offset, pread)
        if found is None:
            return segment.size_bytes, max_offset
        segment.remember(max_offset, found[0])
        return found[0], max_offset

    def _cut(
        self, segment: LogSegment, start: int, limit: int, min_one_message: bool, pread: Pread
    ) -> tuple[int, int]:
        """(position, offset) of the last batch boundary, or the end of the first batch if it is larger."""
        end, next_offset = segment.boundary(start, limit, pread)
        if end == start and min_one_message:
            return segment.end_of_batch(start, pread)
        return end, next_offset

    # -- transactions

    def aborted_transactions(self, start_offset: int, upper_bound: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap [start_offset, upper_bound)."""
        found: list[AbortedTransaction] = []
        try:
            for segment in self._segments[max(self._floor_index(start_offset), 0) :]:
                transactions, complete = segment.txn_index.collect(start_offset, upper_bound)
                found += transactions
                if complete:
                    break
        except OSError as error:
            raise self._fail("read the aborted transactions of", error) from error
        return found

    # -- timestamps

    def offset_for_timestamp(
        self, timestamp: int, max_size: int = MAX_DECOMPRESSED_BYTES
    ) -> TimestampOffset | None:
        """The first record at or after a timestamp. May decompress a batch, up to `max_size`; any thread."""
        self._require_online()
        dir = self.dir
        try:
            for segment in tuple(self._segments):
                if segment.largest_timestamp >= timestamp:
                    found = find_by_timestamp(segment, timestamp, self.log_start_offset, max_size)
                    if found is not None:  # else all of it lies below the log start offset
                        return found
        except OSError as error:
            raise self._search_failed(error, dir) from error
        return None

    def offset_of_max_timestamp(self, max_size: int = MAX_DECOMPRESSED_BYTES) -> TimestampOffset | None:
        """The first record with the largest timestamp of the log (KIP-734). Any thread."""
        self._require_online()
        dir = self.dir
        try:
            newest = max(self._segments, key=lambda segment: segment.max_timestamp_so_far)
            if newest.max_timestamp_so_far == NO_TIMESTAMP:
                return None
            return find_max_timestamp(newest, max_size)
        except OSError as error:
            raise self._search_failed(error, dir) from error

    def _search_failed(self, error: OSError, dir: Path) -> KafkaError:
        """A search in a thread may find that the log is on its way to be deleted."""
        if isinstance(error, FileNotFoundError) and self._was_moved_from(dir):
            return KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.topic_partition} is being deleted"
            )
        return self._fail("search", error)
