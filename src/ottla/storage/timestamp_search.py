"""Finding records by timestamp within one segment. Decompresses batches, so it may run in a thread.

The kernel looks for the record: a batch may hold millions of them.
"""

from ottla.records.batch import LOG_APPEND_TIME, BatchView
from ottla.records.kernel import find_timestamp
from ottla.records.record import MAX_DECOMPRESSED_BYTES, record_section
from ottla.storage.batch_scan import LEADER_EPOCH, MAX_TIMESTAMP
from ottla.storage.segment import LogSegment
from ottla.storage.slices import TimestampOffset


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
