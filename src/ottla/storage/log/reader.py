"""Reading from the segments of a log: slices for fetches, searches by timestamp, aborted transactions.

The kernel looks for a record by its timestamp: a batch may hold millions of them.

Owned by its Log, which knows the offsets that may be read and what a failed disk means. The searches by timestamp
decompress batches and may be called in any thread.
"""

from bisect import bisect_right

from ottla.model.ids import NO_TIMESTAMP
from ottla.records.batch import LOG_APPEND_TIME, BatchView
from ottla.records.kernel import find_timestamp
from ottla.records.record import MAX_DECOMPRESSED_BYTES, record_section
from ottla.storage.log.segments import LogSegments
from ottla.storage.segment.file_records import (
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    ColdDataError,
    ColdSliceError,
    LogSlice,
    Pread,
    TimestampOffset,
)
from ottla.storage.segment.indexes import AbortedTransaction
from ottla.storage.segment.segment import LogSegment


class LogReader:
    """Reads what the segments of one log hold."""

    __slots__ = ("_segments",)

    def __init__(self, segments: LogSegments) -> None:
        self._segments = segments

    # -- slices

    def read(
        self,
        offset: int,
        max_bytes: int,
        max_offset: int,
        log_end_offset: int,
        min_one_message: bool,
        pread: Pread,
    ) -> LogSlice:
        """See Log.read, which has checked the offset."""
        segments = self._segments.ordered
        index = bisect_right(self._segments.bases, offset) - 1
        while index < len(segments):
            segment = segments[index]
            index += 1
            try:
                found = self._find(
                    segment, index, offset, max_bytes, max_offset, log_end_offset, min_one_message, pread
                )
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
        log_end_offset: int,
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
        limit, next_offset = self._limit(segment, following, max_offset, log_end_offset, pread)
        if limit - start > max_bytes:
            limit, next_offset = self._cut(segment, start, start + max_bytes, min_one_message, pread)
        if limit <= start:
            return LogSlice(None, 0, 0, offset, offset)
        segment.remember(next_offset, limit)
        return LogSlice(segment.file(), start, limit - start, first_offset, next_offset)

    def _limit(
        self, segment: LogSegment, following: int, max_offset: int, log_end_offset: int, pread: Pread
    ) -> tuple[int, int]:
        """(position, offset) up to which a segment may be read."""
        bases = self._segments.bases
        if following < len(bases):
            if max_offset >= bases[following]:
                return segment.size_bytes, bases[following]
        elif max_offset >= log_end_offset:
            return segment.size_bytes, max_offset
        found = segment.locate(max_offset, pread)
        if found is None:
            return segment.size_bytes, max_offset
        position, base_offset = found
        if base_offset < max_offset:
            return position, base_offset  # it lies within a batch, which is not read
        segment.remember(max_offset, position)
        return position, max_offset

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
        for segment in self._segments[max(self._segments.floor_index(start_offset), 0) :]:
            transactions, complete = segment.txn_index.collect(start_offset, upper_bound)
            found += transactions
            if complete:
                break
        return found

    # -- timestamps

    def offset_for_timestamp(
        self, timestamp: int, log_start_offset: int, max_size: int
    ) -> TimestampOffset | None:
        """The first record at or after a timestamp."""
        for segment in self._segments:
            if segment.largest_timestamp >= timestamp:
                found = find_by_timestamp(segment, timestamp, log_start_offset, max_size)
                if found is not None:  # else all of it lies below the log start offset
                    return found
        return None

    def offset_of_max_timestamp(self, max_size: int) -> TimestampOffset | None:
        """The first record with the largest timestamp of the log (KIP-734)."""
        newest = max(self._segments, key=lambda segment: segment.max_timestamp_so_far)
        if newest.max_timestamp_so_far == NO_TIMESTAMP:
            return None
        return find_max_timestamp(newest, max_size)


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
