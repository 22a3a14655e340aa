"""Reading the records of a batch, and building batches from records.

Rules: any codec, bounded; what is built is what Java's MemoryRecordsBuilder builds from the same records,
byte for byte where nothing is compressed. Pure.
"""

from collections.abc import Sequence
from typing import Final

from ottla.records import batch as _batch
from ottla.records.batch import HEADER_SIZE, BatchView
from ottla.records.compression import compress, decompress
from ottla.records.kernel import decode_records, encode_records
from ottla.records.types import Buffer, Headers, InvalidRecordError, NewRecord, Problem, Record

__all__ = [
    "MAX_DECOMPRESSED_BYTES",
    "Headers",
    "InvalidRecordError",
    "NewRecord",
    "Problem",
    "Record",
    "build_batch",
    "read_records",
    "record_section",
]

# What a batch may decompress to where the caller says nothing: a hundred times the default max.message.bytes.
MAX_DECOMPRESSED_BYTES: Final = 128 * 1024 * 1024


def record_section(batch: BatchView, max_size: int = MAX_DECOMPRESSED_BYTES) -> tuple[Buffer, int, int]:
    """The plain records of a batch as (buffer, start, end): in the batch's own buffer unless compressed."""
    if batch.compression == 0:
        return batch.buf, batch.pos + HEADER_SIZE, batch.end
    if batch.records_count == 0:
        return b"", 0, 0  # a batch emptied by the cleaner keeps no payload whatever its codec says
    plain = decompress(batch.compression, batch.payload(), max_size)
    return plain, 0, len(plain)


def read_records(batch: BatchView, max_size: int = MAX_DECOMPRESSED_BYTES) -> list[Record]:
    """Every record of a batch of any codec; KafkaError if it does not decompress or its records are bad."""
    buf, start, end = record_section(batch, max_size)
    append_time = batch.max_timestamp if batch.timestamp_type == _batch.LOG_APPEND_TIME else None
    return decode_records(
        buf,
        start,
        end,
        batch.records_count,
        batch.base_offset,
        batch.base_timestamp,
        batch.base_sequence,
        append_time,
    )


def batch_attributes(
    compression: int,
    timestamp_type: int = _batch.CREATE_TIME,
    *,
    transactional: bool = False,
    control: bool = False,
    delete_horizon: bool = False,
) -> int:
    return (
        compression
        | (_batch.LOG_APPEND_TIME_FLAG if timestamp_type == _batch.LOG_APPEND_TIME else 0)
        | (_batch.TRANSACTIONAL_FLAG if transactional else 0)
        | (_batch.CONTROL_FLAG if control else 0)
        | (_batch.DELETE_HORIZON_FLAG if delete_horizon else 0)
    )


def build_batch(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    compression: int = 0,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
    timestamp_type: int = 0,
    max_timestamp: int | None = None,
    offset_deltas: Sequence[int] | None = None,
    last_offset_delta: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytearray:
    """One batch of (timestamp, key, value, headers).

    `max_timestamp` is the append time where `timestamp_type` is LogAppendTime; otherwise it is found.
    `last_offset_delta` stands where compaction removed the last record. KIP-534: a `delete_horizon_ms` takes
    the place of the base timestamp.
    """
    assert records, "a batch holds at least one record"
    assert not transactional or producer_id >= 0, "a transactional batch has a producer id"
    base_timestamp = records[0][0] if delete_horizon_ms is None else delete_horizon_ms
    plain, highest = encode_records(records, base_timestamp, offset_deltas, HEADER_SIZE)
    if last_offset_delta is None:
        last_offset_delta = len(records) - 1 if offset_deltas is None else offset_deltas[-1]
    return seal_batch(
        plain,
        base_offset=base_offset,
        last_offset_delta=last_offset_delta,
        compression=compression,
        level=level,
        attributes=batch_attributes(
            compression,
            timestamp_type,
            transactional=transactional,
            control=control,
            delete_horizon=delete_horizon_ms is not None,
        ),
        base_timestamp=base_timestamp,
        max_timestamp=highest if max_timestamp is None else max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        records_count=len(records),
        leader_epoch=leader_epoch,
    )


def seal_batch(
    plain: bytearray,
    *,
    base_offset: int,
    last_offset_delta: int,
    compression: int,
    level: int | None,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    records_count: int,
    leader_epoch: int,
) -> bytearray:
    """Compress the records in `plain` (after room for a header) if asked, and write the header."""
    out = plain
    if compression:
        out = bytearray(HEADER_SIZE)
        out += compress(compression, memoryview(plain)[HEADER_SIZE:], level)
    _batch.write_header(
        out,
        base_offset,
        last_offset_delta,
        attributes,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        records_count,
        leader_epoch,
    )
    return out
