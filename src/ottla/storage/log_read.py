"""Reading a log: slices for fetches, searches by timestamp, aborted transactions."""

import os
from pathlib import Path

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_TIMESTAMP
from ottla.records.record import MAX_DECOMPRESSED_BYTES
from ottla.storage.batch_scan import ColdDataError, Pread, pread_warm
from ottla.storage.log_state import LogState
from ottla.storage.segment import LogSegment
from ottla.storage.slices import ColdSliceError, LogSlice, TimestampOffset
from ottla.storage.timestamp_search import find_by_timestamp, find_max_timestamp
from ottla.storage.txnindex import AbortedTransaction


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
