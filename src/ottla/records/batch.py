"""The 61-byte header of a record batch (magic 2): reading it, walking over batches, patching it in place.

Rules: nothing here looks at a record. A BatchView is a snapshot of one header: patching the buffer afterwards
does not change it. Lengths are checked against the buffer before anything is sliced.
Owned by nobody at run time: pure functions over the caller's buffers.
"""

import struct
from collections.abc import Iterator
from typing import Final

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_PRODUCER_ID, NO_SEQUENCE
from ottla.records.kernel import crc32c
from ottla.records.types import Buffer

# base offset, batch length, partition leader epoch, magic, crc, attributes, last offset delta,
# base timestamp, max timestamp, producer id, producer epoch, base sequence, records count
BATCH_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE: Final = BATCH_HEADER.size
LOG_OVERHEAD: Final = 12
MIN_BATCH_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD
MAGIC: Final = 2

LENGTH_OFFSET: Final = 8
MAGIC_OFFSET: Final = 16
CRC_OFFSET: Final = 17
ATTRIBUTES_OFFSET: Final = 21  # the CRC covers the batch from here on
MAX_TIMESTAMP_OFFSET: Final = 35
PRODUCER_ID_OFFSET: Final = 43

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40  # KIP-534: the base timestamp field holds the delete horizon

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1

MAX_SEQUENCE: Final = 0x7FFFFFFF

_EPOCH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_PRODUCER: Final = struct.Struct(">qhi")
_ATTRIBUTES: Final = struct.Struct(">h")
_TIMESTAMP: Final = struct.Struct(">q")
# pack_place(buf, pos, base_offset, batch_length, leader_epoch) writes the first sixteen bytes, which the CRC does not
# cover: what a leader does with every batch that it appends.
pack_place: Final = struct.Struct(">qii").pack_into
_SIZE_UP_TO_MAGIC: Final = MAGIC_OFFSET + 1
_MIN_LEGACY_LENGTH: Final = 14  # what Kafka compares with before it knows the magic


def increment_sequence(sequence: int, increment: int) -> int:
    """Sequence numbers wrap from 2^31 - 1 to 0."""
    total = sequence + increment
    return total - MAX_SEQUENCE - 1 if total > MAX_SEQUENCE else total


def is_after(sequence: int, other: int) -> bool:
    """Later in an order that wraps: less than half the circle ahead."""
    return 0 < ((sequence - other) & MAX_SEQUENCE) <= MAX_SEQUENCE // 2


class BatchView:
    """One batch in a buffer, its header unpacked."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "batch_length",
        "buf",
        "crc",
        "last_offset_delta",
        "magic",
        "max_timestamp",
        "partition_leader_epoch",
        "pos",
        "producer_epoch",
        "producer_id",
        "records_count",
    )

    def __init__(self, buf: Buffer, pos: int = 0) -> None:
        """The caller vouches that a whole batch lies at `pos` (iter_batches and batch_at check it)."""
        self.buf = buf
        self.pos = pos
        self.base_offset: int
        self.batch_length: int
        self.partition_leader_epoch: int
        self.magic: int
        self.crc: int
        self.attributes: int
        self.last_offset_delta: int
        self.base_timestamp: int
        self.max_timestamp: int
        self.producer_id: int
        self.producer_epoch: int
        self.base_sequence: int
        self.records_count: int
        (
            self.base_offset,
            self.batch_length,
            self.partition_leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.records_count,
        ) = BATCH_HEADER.unpack_from(buf, pos)

    @property
    def size_bytes(self) -> int:
        return LOG_OVERHEAD + self.batch_length

    @property
    def end(self) -> int:
        """Where the next batch begins in the buffer."""
        return self.pos + LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> int:
        return LOG_APPEND_TIME if self.attributes & LOG_APPEND_TIME_FLAG else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_FLAG != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None

    def crc_ok(self) -> bool:
        return self.crc == compute_crc(self.buf, self.pos, self.size_bytes)

    def payload(self) -> memoryview:
        """The record section as it stands: compressed if the batch is."""
        return memoryview(self.buf)[self.pos + HEADER_SIZE : self.end]

    def raw(self) -> memoryview:
        """The whole batch."""
        return memoryview(self.buf)[self.pos : self.end]

    def __repr__(self) -> str:
        return (
            f"BatchView(offsets=[{self.base_offset}, {self.last_offset}], size_bytes={self.size_bytes}, "
            f"count={self.records_count}, attributes={self.attributes:#x}, producer_id={self.producer_id}, "
            f"sequence=[{self.base_sequence}, {self.last_sequence}], epoch={self.partition_leader_epoch})"
        )


def corrupt(message: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, message)


def batch_at(buf: Buffer, pos: int, end: int) -> BatchView | None:
    """The whole batch at `pos`; None where `end` cuts it short; KafkaError where no batch can be."""
    if end - pos < _SIZE_UP_TO_MAGIC:
        return None
    (length,) = _EPOCH.unpack_from(buf, pos + LENGTH_OFFSET)
    if length < _MIN_LEGACY_LENGTH:
        raise corrupt(f"Batch length {length} is less than the minimum record overhead {_MIN_LEGACY_LENGTH}")
    magic = buf[pos + MAGIC_OFFSET]
    if magic != MAGIC:
        raise wrong_magic(magic)
    if length < MIN_BATCH_LENGTH:
        raise corrupt(f"Batch length {length} is less than that of an empty batch, {MIN_BATCH_LENGTH}")
    if end - pos < LOG_OVERHEAD + length:
        return None
    return BatchView(buf, pos)


def wrong_magic(magic: int) -> KafkaError:
    if magic in (0, 1):
        return KafkaError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"Batches of magic {magic} are not supported, only {MAGIC}",
        )
    return corrupt(f"Invalid magic found in batch: {magic}")


def iter_batches(
    buf: Buffer, start: int = 0, end: int | None = None, *, allow_partial: bool = False
) -> Iterator[BatchView]:
    """Walk over whole batches.

    Raises CORRUPT_MESSAGE on garbage, and on a batch cut short by `end` unless `allow_partial`: a fetch
    response may end in half a batch, which the client leaves out.
    """
    stop = len(buf) if end is None else end
    pos = start
    while pos < stop:
        batch = batch_at(buf, pos, stop)
        if batch is None:
            if allow_partial:
                return
            raise corrupt(f"Batch at position {pos} is cut short: {stop - pos} bytes left")
        yield batch
        pos = batch.end


def compute_crc(buf: Buffer, pos: int, size_bytes: int) -> int:
    """CRC-32C over everything after the CRC field itself."""
    return crc32c(memoryview(buf)[pos + ATTRIBUTES_OFFSET : pos + size_bytes])


def stamp_batch(batch: bytearray, producer_id: int, producer_epoch: int, base_sequence: int) -> bytearray:
    """What is known when a batch is sent, who its producer is and its number, and the CRC over it all."""
    _PRODUCER.pack_into(batch, PRODUCER_ID_OFFSET, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(batch, CRC_OFFSET, compute_crc(batch, 0, len(batch)))
    return batch


def set_max_timestamp(buf: bytearray | memoryview, pos: int, timestamp_type: int, max_timestamp: int) -> None:
    """Set type and maximum of the timestamps and the CRC over them; LogAppendTime is recorded this way."""
    (length,) = _EPOCH.unpack_from(buf, pos + LENGTH_OFFSET)
    (attributes,) = _ATTRIBUTES.unpack_from(buf, pos + ATTRIBUTES_OFFSET)
    attributes &= ~LOG_APPEND_TIME_FLAG
    if timestamp_type == LOG_APPEND_TIME:
        attributes |= LOG_APPEND_TIME_FLAG
    _ATTRIBUTES.pack_into(buf, pos + ATTRIBUTES_OFFSET, attributes)
    _TIMESTAMP.pack_into(buf, pos + MAX_TIMESTAMP_OFFSET, max_timestamp)
    _CRC.pack_into(buf, pos + CRC_OFFSET, compute_crc(buf, pos, LOG_OVERHEAD + length))


def write_header(
    out: bytearray,
    base_offset: int,
    last_offset_delta: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    records_count: int,
    leader_epoch: int,
) -> None:
    """Fill the first 61 bytes of `out`, which already holds the record section after them."""
    BATCH_HEADER.pack_into(
        out,
        0,
        base_offset,
        len(out) - LOG_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        records_count,
    )
    _CRC.pack_into(out, CRC_OFFSET, compute_crc(out, 0, len(out)))
