"""Reading the records of a batch, and building batches from records.

Rules: any codec, bounded; what is built is what Java's MemoryRecordsBuilder builds from the same records,
byte for byte where nothing is compressed. Pure; a BatchBuilder belongs to whoever made it.
"""

from collections.abc import Sequence
from typing import Final

from ottla.records import batch as _batch
from ottla.records.batch import HEADER_SIZE, BatchView
from ottla.records.compression import compress, decompress
from ottla.records.kernel import decode_records, encode_record, encode_records
from ottla.records.types import Buffer, Headers, InvalidRecordError, NewRecord, Problem, Record

__all__ = [
    "MAX_DECOMPRESSED_BYTES",
    "BatchBuilder",
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
# Length, attributes, timestamp delta, offset delta, key and value lengths, header count at their longest.
_MAX_RECORD_OVERHEAD: Final = 5 + 1 + 10 + 5 + 5 + 5 + 5
_MAX_VARINT_BYTES: Final = 5

HeaderSequence = Sequence[tuple[str | bytes, Buffer | None]]


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
        base_offset=base_offset,
        last_offset_delta=last_offset_delta,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        records_count=records_count,
        leader_epoch=leader_epoch,
    )
    return out


def record_size_bound(key: Buffer | None, value: Buffer | None, headers: HeaderSequence = ()) -> int:
    """No record of this content is larger, whatever its deltas."""
    size = _MAX_RECORD_OVERHEAD + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += (
            2 * _MAX_VARINT_BYTES
            + len(name.encode() if isinstance(name, str) else name)
            + len(content or b"")
        )
    return size


class BatchBuilder:
    """A batch that grows record by record and knows its size: what a producer fills for a partition."""

    __slots__ = (
        "_base_timestamp",
        "_max_timestamp",
        "_plain",
        "compression",
        "level",
        "records_count",
        "size_limit",
    )

    def __init__(self, size_limit: int, compression: int = 0, level: int | None = None) -> None:
        self.size_limit = size_limit
        self.compression = compression
        self.level = level
        self.records_count = 0
        self._plain = bytearray(HEADER_SIZE)
        self._base_timestamp = _batch.NO_TIMESTAMP
        self._max_timestamp = _batch.NO_TIMESTAMP

    @property
    def size_bytes(self) -> int:
        """With the header, before compression."""
        return len(self._plain)

    def has_room_for(self, key: Buffer | None, value: Buffer | None, headers: HeaderSequence = ()) -> bool:
        """Surely room, that is: an estimate from above. An empty batch takes a record of any size."""
        if self.records_count == 0:
            return True
        return len(self._plain) + record_size_bound(key, value, headers) <= self.size_limit

    def try_append(
        self, timestamp: int, key: Buffer | None, value: Buffer | None, headers: HeaderSequence = ()
    ) -> int | None:
        """The record's offset delta, or None if there is no room for it."""
        delta = self.records_count
        base_timestamp = self._base_timestamp if delta else timestamp
        record = encode_record(delta, timestamp - base_timestamp, key, value, headers)
        if delta and len(self._plain) + len(record) > self.size_limit:
            return None
        self._plain += record
        self._base_timestamp = base_timestamp
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        self.records_count = delta + 1
        return delta

    def build(
        self,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> bytearray:
        """The finished batch; may be called again with other producer fields, to retry under a new epoch."""
        assert self.records_count, "a batch holds at least one record"
        assert not transactional or producer_id >= 0, "a transactional batch has a producer id"
        return seal_batch(
            bytearray(self._plain),
            base_offset=0,
            last_offset_delta=self.records_count - 1,
            compression=self.compression,
            level=self.level,
            attributes=batch_attributes(self.compression, transactional=transactional),
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            records_count=self.records_count,
            leader_epoch=-1,
        )
