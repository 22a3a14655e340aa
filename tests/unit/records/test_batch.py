"""The header of a batch: reading, walking, patching."""

import struct

import pytest
from tests.unit.records.java_vectors import JAVA

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import (
    BATCH_HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchView,
    increment_sequence,
    iter_batches,
    pack_place,
    set_max_timestamp,
)
from ottla.records.record import build_batch, read_records

RECORD = (1000, b"k", b"v", ())


def code_of(call: object) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call()  # type: ignore[operator]
    return caught.value.code


def test_header_is_61_bytes_and_has_13_fields() -> None:
    assert HEADER_SIZE == 61
    assert len(BATCH_HEADER.unpack(bytes(61))) == 13


def test_view_reads_what_java_wrote() -> None:
    view = BatchView(JAVA["none"], 0)
    assert (view.base_offset, view.last_offset, view.next_offset) == (42, 46, 47)
    assert (view.producer_id, view.producer_epoch, view.base_sequence) == (7, 3, 2**31 - 2)
    assert view.last_sequence == 2  # wrapped past 2^31 - 1
    assert (view.partition_leader_epoch, view.magic, view.records_count) == (9, 2, 5)
    assert (view.base_timestamp, view.max_timestamp) == (1_700_000_000_000, 1_700_000_000_007)
    assert (view.size_bytes, view.end) == (len(JAVA["none"]), len(JAVA["none"]))
    assert view.crc_ok()
    assert (view.compression, view.timestamp_type) == (0, 0)
    assert not view.is_transactional
    assert not view.is_control
    assert view.delete_horizon_ms is None
    assert view.raw() == JAVA["none"]


def test_flags_of_what_java_wrote() -> None:
    assert BatchView(JAVA["append_time"]).timestamp_type == 1
    assert BatchView(JAVA["transactional"]).is_transactional
    assert not BatchView(JAVA["transactional"]).is_control
    assert BatchView(JAVA["commit"]).is_control
    assert BatchView(JAVA["commit"]).last_sequence == -1
    assert BatchView(JAVA["kept_tombstone"]).delete_horizon_ms == 1_900_000_001_000
    assert [BatchView(JAVA[name]).compression for name in ("gzip", "snappy", "lz4", "zstd")] == [1, 2, 3, 4]


def test_sequences_wrap_to_zero() -> None:
    assert increment_sequence(5, 3) == 8
    assert increment_sequence(2**31 - 1, 1) == 0


def test_walks_over_batches_within_bounds() -> None:
    data = b"junk" + JAVA["none"] + JAVA["zstd"] + b"rest"
    batches = list(iter_batches(data, 4, len(data) - 4))
    assert [batch.pos for batch in batches] == [4, 4 + len(JAVA["none"])]
    assert [batch.compression for batch in batches] == [0, 4]


@pytest.mark.parametrize("cut", [1, 16, 17, 60, 61, 420])
def test_a_cut_batch_is_corrupt_unless_allowed(cut: int) -> None:
    data = JAVA["none"] + JAVA["none"][:cut]
    assert code_of(lambda: list(iter_batches(data))) is ErrorCode.CORRUPT_MESSAGE
    assert len(list(iter_batches(data, allow_partial=True))) == 1


@pytest.mark.parametrize(
    ("position", "value", "code"),
    [
        (8, struct.pack(">i", -1), ErrorCode.CORRUPT_MESSAGE),
        (8, struct.pack(">i", 0), ErrorCode.CORRUPT_MESSAGE),
        (8, struct.pack(">i", 48), ErrorCode.CORRUPT_MESSAGE),
        (8, struct.pack(">i", 2**31 - 1), ErrorCode.CORRUPT_MESSAGE),
        (16, b"\x03", ErrorCode.CORRUPT_MESSAGE),
        (16, b"\xff", ErrorCode.CORRUPT_MESSAGE),
        (16, b"\x00", ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (16, b"\x01", ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    ],
)
def test_garbage_headers_are_refused(position: int, value: bytes, code: ErrorCode) -> None:
    data = bytearray(JAVA["none"])
    data[position : position + len(value)] = value
    assert code_of(lambda: list(iter_batches(data))) is code


def test_offset_and_epoch_are_outside_the_crc() -> None:
    data = bytearray(b"pad") + build_batch([RECORD])
    pack_place(memoryview(data), 3, 123456789012, len(data) - 3 - LOG_OVERHEAD, 77)
    view = BatchView(data, 3)
    assert (view.base_offset, view.partition_leader_epoch) == (123456789012, 77)
    assert view.crc_ok()


def test_log_append_time_is_set_with_the_crc() -> None:
    data = build_batch([RECORD, RECORD], transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    set_max_timestamp(data, 0, 1, 5555)
    view = BatchView(data)
    assert (view.timestamp_type, view.max_timestamp, view.is_transactional) == (1, 5555, True)
    assert view.crc_ok()
    assert [record.timestamp for record in read_records(view)] == [5555, 5555]
    set_max_timestamp(data, 0, 0, 1000)
    assert BatchView(data).timestamp_type == 0
    assert [record.timestamp for record in read_records(BatchView(data))] == [1000, 1000]


def test_a_flipped_bit_breaks_the_crc() -> None:
    data = bytearray(JAVA["none"])
    for position in (21, 30, 61, len(data) - 1):
        data[position] ^= 0x10
        assert not BatchView(data).crc_ok()
        data[position] ^= 0x10
    assert BatchView(data).crc_ok()
