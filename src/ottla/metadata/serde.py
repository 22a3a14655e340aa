"""Kafka's MetadataRecordSerde: metadata records to bytes and back, and in and out of record batches.

A record is framed: frame version, api key and version as unsigned varints, then the record. The batches are
uncompressed, without producer or headers, one timestamp for all records, as Kafka writes them; reading takes whatever
codec there is. Control batches are not for here.

Rules: pure; a frame that is not understood is refused, never skipped, for a skipped record is a wrong image.
"""

from collections.abc import Iterable, Iterator

from ottla.metadata import features
from ottla.metadata.records import (
    RECORD_KEYS,
    RECORD_TYPES,
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)
from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import BatchView
from ottla.records.record import build_batch, read_records
from ottla.wire.codec import decode, encode_into
from ottla.wire.primitives import put_uvarint
from ottla.wire.schema import schema_of

FRAME_VERSION = 1
MAX_BATCH_BYTES = 8 * 1024 * 1024
# Room that a record takes beside its value: lengths, deltas, null key, no headers.
_RECORD_OVERHEAD = 32
_BATCH_OVERHEAD = 64

Buffer = bytes | bytearray | memoryview


def record_version(record: MetadataRecord, metadata_version: int) -> int:
    """The version in which Kafka writes the record at this metadata version."""
    if isinstance(record, PartitionRecord | PartitionChangeRecord):
        return features.partition_record_version(metadata_version)
    if isinstance(record, RegisterBrokerRecord):
        return features.register_broker_record_version(metadata_version)
    if isinstance(record, BrokerRegistrationChangeRecord):
        return _registration_change_version(record)
    return 0


def _registration_change_version(record: BrokerRegistrationChangeRecord) -> int:
    if record.cordoned_log_dirs is not None:
        return 3
    if record.log_dirs:
        return 2
    return 1 if record.in_controlled_shutdown else 0


def encode_frame(record: MetadataRecord, version: int) -> bytes:
    """A record as the value of a log record."""
    api_key = RECORD_KEYS[type(record)]
    if api_key | version < 0x80:  # so far always
        out = bytearray((FRAME_VERSION, api_key, version))
    else:
        out = bytearray()
        for number in (FRAME_VERSION, api_key, version):
            put_uvarint(out, number)
    encode_into(out, record, version)
    return bytes(out)


def decode_frame(buf: Buffer) -> tuple[MetadataRecord, int]:
    """The record and its version; KafkaError CORRUPT_MESSAGE for what is not one."""
    if len(buf) > 3 and buf[0] | buf[1] | buf[2] < 0x80:  # so far always
        frame_version, api_key, version = buf[:3]
        pos = 3
    else:
        frame_version, pos = _read_varint(buf, 0)
        api_key, pos = _read_varint(buf, pos)
        version, pos = _read_varint(buf, pos)
    if frame_version != FRAME_VERSION:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Unknown metadata frame version {frame_version}")
    record_type = RECORD_TYPES.get(api_key)
    if record_type is None:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Unknown metadata record type {api_key}")
    if version not in schema_of(record_type).versions:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{record_type.__name__} has no version {version}")
    record, end = decode(record_type, buf, version, pos)
    if end != len(buf):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{len(buf) - end} bytes follow a {record_type.__name__}")
    return record, version


def _read_varint(buf: Buffer, pos: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if pos >= len(buf):
            break
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "Bad varint in a metadata frame")


def build_record_batch(
    values: Iterable[bytes], *, base_offset: int, leader_epoch: int, now_ms: int
) -> bytearray:
    """One batch of encoded frames."""
    return build_batch(
        [(now_ms, None, value, ()) for value in values], base_offset=base_offset, leader_epoch=leader_epoch
    )


def encode_records(records: Iterable[MetadataRecord], metadata_version: int) -> list[bytes]:
    """The frames of the records, in the versions of this metadata version."""
    return [encode_frame(record, record_version(record, metadata_version)) for record in records]


def batch_size_bound(values: Iterable[bytes]) -> int:
    """No batch of these frames is larger than this."""
    return _BATCH_OVERHEAD + sum(len(value) + _RECORD_OVERHEAD for value in values)


def split_frames(
    values: Iterable[bytes], max_records: int, max_bytes: int = MAX_BATCH_BYTES
) -> Iterator[list[bytes]]:
    """The frames in groups that each make one batch."""
    group: list[bytes] = []
    size = _BATCH_OVERHEAD
    for value in values:
        added = len(value) + _RECORD_OVERHEAD
        if group and (len(group) >= max_records or size + added > max_bytes):
            yield group
            group, size = [], _BATCH_OVERHEAD
        group.append(value)
        size += added
    if group:
        yield group


def read_record_batch(batch: BatchView) -> list[MetadataRecord]:
    """The metadata records of a batch that is not a control batch."""
    return [record for _, record in iter_record_batch(batch)]


def iter_record_batch(batch: BatchView) -> Iterator[tuple[int, MetadataRecord]]:
    """Offset and record, decoded one at a time; KafkaError CORRUPT_MESSAGE says which is not one."""
    assert not batch.is_control
    for record in read_records(batch):
        if record.value is None:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"The metadata record at {record.offset} is null")
        try:
            decoded = decode_frame(record.value)[0]
        except KafkaError as error:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"The metadata record at {record.offset} cannot be read: {error}"
            ) from error
        yield record.offset, decoded
