"""Metadata records in and out of record batches.

Rules: pure. The batches are uncompressed, without producer or headers, one timestamp for all records, as
Kafka writes them; reading takes whatever codec there is. Control batches are not for here.
"""

from collections.abc import Iterable, Iterator

from ottla.metadata.frame import decode_frame, encode_frame, record_version
from ottla.metadata.records import MetadataRecord
from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import BatchView
from ottla.records.record import build_batch, read_records

MAX_BATCH_BYTES = 8 * 1024 * 1024
# Room that a record takes beside its value: lengths, deltas, null key, no headers.
_RECORD_OVERHEAD = 32
_BATCH_OVERHEAD = 64


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
    assert not batch.is_control
    result = []
    for record in read_records(batch):
        if record.value is None:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"The metadata record at {record.offset} is null")
        result.append(decode_frame(record.value)[0])
    return result
