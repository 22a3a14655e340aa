"""Finding records by timestamp within one segment. Decodes batches, so it may run in a thread."""

from ottla.records.record import read_records
from ottla.storage.batch_scan import LEADER_EPOCH, MAX_TIMESTAMP
from ottla.storage.segment import LogSegment
from ottla.storage.slices import TimestampOffset


def find_by_timestamp(segment: LogSegment, timestamp: int, start_offset: int) -> TimestampOffset | None:
    """The first record, in order of offsets, at or after both."""
    offset = max(segment.time_index.lookup(timestamp)[1], start_offset)
    for position, header in segment.headers(segment.offset_index.lookup(offset)[1]):
        if header[MAX_TIMESTAMP] < timestamp:
            continue
        _, batch = next(segment.batches(position))
        for record in read_records(batch):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return TimestampOffset(record.timestamp, record.offset, header[LEADER_EPOCH])
    return None


def find_max_timestamp(segment: LogSegment) -> TimestampOffset | None:
    """The first record that has the segment's largest timestamp."""
    largest = segment.max_timestamp_so_far
    indexed = segment.offset_index.lookup(segment.offset_of_max_timestamp_so_far)[1]
    for position, header in segment.headers(indexed):
        if header[MAX_TIMESTAMP] != largest:
            continue
        _, batch = next(segment.batches(position))
        for record in read_records(batch):
            if record.timestamp == largest:
                return TimestampOffset(largest, record.offset, header[LEADER_EPOCH])
    return None
