"""Appending as a leader: offsets in place, Kafka's errors for what is refused, and what a failed disk does."""

import errno
import os
import struct
from pathlib import Path

import cramjam
import pytest
from tests.unit.storage.log_support import (
    EPOCH,
    NOW,
    append,
    batch,
    batches_of,
    open_log,
    records_of,
    values_of,
)

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchView, set_max_timestamp
from ottla.records.control import end_txn_marker
from ottla.records.kernel import crc32c
from ottla.records.record import build_batch, read_records
from ottla.records.types import Problem
from ottla.storage.config import LogConfig
from ottla.storage.errors import RecordValidationError, StorageError, UnexpectedOffsetError
from ottla.storage.log.log import Log
from ottla.storage.segment.segment import LogSegment
from ottla.storage.validator import AppendOrigin

DAY_MS = 86_400_000


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_log(tmp_path)


def resealed(data: bytearray) -> bytearray:
    """The batch with a right checksum over what a test changed in it."""
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return data


def with_payload(data: bytearray, payload: bytes) -> bytearray:
    """The batch with another record section."""
    return changed(data[:HEADER_SIZE] + payload, 8, ">i", HEADER_SIZE + len(payload) - LOG_OVERHEAD)


def changed(data: bytearray, position: int, form: str, value: int) -> bytearray:
    struct.pack_into(form, data, position, value)
    return resealed(data)


def refused(log: Log, data: bytearray, now_ms: int = NOW) -> KafkaError:
    """The error for a batch that must leave no trace."""
    before = (log.log_end_offset, log.size_bytes, os.stat(log.active_segment.path).st_size)
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(data, EPOCH, now_ms)
    assert (log.log_end_offset, log.size_bytes, os.stat(log.active_segment.path).st_size) == before
    assert not log.failed
    return caught.value


def test_offsets_and_epoch_are_written_into_the_batch(log: Log) -> None:
    append(log, b"a", b"b")
    data = batch(b"c", b"d", b"e")
    result = log.append_as_leader(data, EPOCH, NOW)
    assert result == (2, 4, -1, 0, False, len(data))
    assert (log.log_end_offset, log.epochs.latest) == (5, EPOCH)
    view = BatchView(data)
    assert (view.base_offset, view.partition_leader_epoch, view.crc_ok()) == (2, EPOCH, True)
    assert [record.value for record in records_of(log)] == [b"a", b"b", b"c", b"d", b"e"]


def test_a_view_into_a_larger_buffer_is_appended_alone(log: Log) -> None:
    data = batch(b"inside")
    frame = bytearray(b"head") + data + b"tail"
    log.append_as_leader(memoryview(frame)[4:-4], EPOCH, NOW)
    assert log.size_bytes == len(data)
    assert values_of(log) == [b"inside"]
    assert frame[:4] == b"head"
    assert frame[-4:] == b"tail"


@pytest.mark.parametrize("compression", range(5))
def test_every_codec_is_stored_as_it_came(log: Log, compression: int) -> None:
    data = batch(b"x" * 500, b"y", compression=compression)
    log.append_as_leader(data, EPOCH, NOW)
    assert [view.raw() for view in batches_of(log)] == [data]
    assert values_of(log) == [b"x" * 500, b"y"]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (bytearray(), ErrorCode.INVALID_RECORD),
        (bytearray(16), ErrorCode.INVALID_RECORD),
        (bytearray(100), ErrorCode.CORRUPT_MESSAGE),  # length 0
        (batch()[:-1], ErrorCode.INVALID_RECORD),  # cut short: no whole batch
        (batch() + batch(), ErrorCode.INVALID_RECORD),  # two
        (batch() + bytearray(40), ErrorCode.CORRUPT_MESSAGE),  # what follows is no batch
        (changed(batch(), 16, ">b", 1), ErrorCode.INVALID_RECORD),  # magic
        (changed(batch(), 16, ">b", 0), ErrorCode.INVALID_RECORD),
        (changed(batch(), 16, ">b", 3), ErrorCode.CORRUPT_MESSAGE),
        (changed(batch(), 8, ">i", 20), ErrorCode.CORRUPT_MESSAGE),  # less than a header
        (changed(batch(), 0, ">q", 7), ErrorCode.INVALID_RECORD),  # base offset
        (changed(batch(b"a", b"b"), 23, ">i", 0), ErrorCode.INVALID_RECORD),  # last offset delta
        (changed(batch(b"a", b"b"), 23, ">i", -1), ErrorCode.INVALID_RECORD),
        (changed(batch(b"a", b"b"), 57, ">i", 1), ErrorCode.INVALID_RECORD),  # count
        (changed(batch(b"a", b"b"), 57, ">i", 0), ErrorCode.INVALID_RECORD),
        (changed(batch(b"a", b"b"), 57, ">i", -5), ErrorCode.INVALID_RECORD),
        (changed(batch(), 21, ">h", 0x20), ErrorCode.INVALID_RECORD),  # control
        (changed(batch(), 21, ">h", 0x07), ErrorCode.UNKNOWN_SERVER_ERROR),
        (batch(producer_id=4, sequence=-1), ErrorCode.INVALID_RECORD),
        (resealed(batch(b"value")[:-3] + b"\xff\xff\xff"), ErrorCode.INVALID_RECORD),  # in a record
    ],
)
def test_what_is_refused(log: Log, data: bytearray, code: ErrorCode) -> None:
    assert refused(log, data).code is code


def test_a_flipped_bit_is_refused_wherever_it_is(log: Log) -> None:
    good = batch(b"value", b"other", producer_id=4)
    for position in range(17, len(good)):
        data = bytearray(good)
        data[position] ^= 1
        assert refused(log, data).code is ErrorCode.CORRUPT_MESSAGE


def test_bytes_after_the_batch_that_are_no_whole_batch_are_left_out(log: Log) -> None:
    data = batch(b"a")
    log.append_as_leader(data + batch(b"b")[:-2], EPOCH, NOW)
    log.append_as_leader(data + b"\0\0\0", EPOCH, NOW)
    assert values_of(log) == [b"a", b"a"]
    assert log.size_bytes == 2 * len(data)


def test_a_batch_larger_than_max_message_bytes(tmp_path: Path) -> None:
    size = len(batch(b"x" * 100))
    log = open_log(tmp_path, LogConfig(max_message_bytes=size))
    append(log, b"x" * 100)
    assert refused(log, batch(b"x" * 101)).code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_larger_than_a_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=500))
    assert refused(log, batch(b"x" * 500)).code is ErrorCode.RECORD_LIST_TOO_LARGE


def test_a_compacted_topic_wants_keys(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(cleanup_policy=frozenset({"compact"})))
    data = build_batch([(NOW, b"k", b"v", ()), (NOW, None, b"v", ()), (NOW, None, b"w", ())])
    error = refused(log, data)
    assert isinstance(error, RecordValidationError)
    assert error.code is ErrorCode.INVALID_RECORD
    assert [record_error.batch_index for record_error in error.record_errors] == [1, 2]
    append(log, b"v", key=b"")


@pytest.mark.parametrize("compression", [0, 4])
def test_of_many_refused_records_the_first_are_named(tmp_path: Path, compression: int) -> None:
    log = open_log(tmp_path, LogConfig(cleanup_policy=frozenset({"compact"})))
    many = [(NOW, None, None, ())] * 5000
    error = refused(log, build_batch(many, compression=compression))
    assert isinstance(error, RecordValidationError)
    assert [record_error.batch_index for record_error in error.record_errors] == list(range(10))
    assert error.message is not None
    assert error.message.startswith("5000 records are refused")
    # One for its time among them makes the timestamps what is wrong, as in Kafka, even if it is not named.
    error = refused(log, build_batch([*many, (NOW + DAY_MS, b"k", None, ())], compression=compression))
    assert isinstance(error, RecordValidationError)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [record_error.batch_index for record_error in error.record_errors] == list(range(10))


def test_of_a_compressed_batch_the_first_wrong_number_is_all_that_is_told(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(cleanup_policy=frozenset({"compact"})))
    records = [(NOW + DAY_MS, None, None, ())] * 1000
    data = build_batch(records, offset_deltas=[0] * 1000, last_offset_delta=999, compression=4)
    assert refused(log, data).code is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("compression", [0, 4])
def test_records_are_judged_once(tmp_path: Path, compression: int) -> None:
    """What was found beforehand stands, however long the batch then waited."""
    log = open_log(tmp_path, LogConfig(message_timestamp_before_max_ms=DAY_MS))
    taken = batch(b"v", timestamp=NOW, compression=compression)
    inspected = log.inspect(taken, NOW)
    log.append_as_leader(taken, EPOCH, NOW + 2 * DAY_MS, inspected=inspected)
    assert values_of(log) == [b"v"]
    late = batch(b"v", timestamp=NOW - 2 * DAY_MS, compression=compression)
    with pytest.raises(RecordValidationError):
        log.append_as_leader(late, EPOCH, NOW, inspected=log.inspect(late, NOW))


@pytest.mark.parametrize(
    ("position", "form", "value"),
    [(8, ">i", 10), (8, ">i", 10_000), (8, ">i", -1), (23, ">i", 7), (57, ">i", 0), (57, ">i", 2**31 - 1)],
)
@pytest.mark.parametrize("compression", [0, 4])
def test_a_header_that_is_refused_spares_the_look_at_the_records(
    log: Log, compression: int, position: int, form: str, value: int
) -> None:
    data = changed(batch(b"v", compression=compression), position, form, value)
    inspected = log.inspect(data, NOW)
    assert inspected.problem == Problem.BAD_COMPRESSION
    expected = refused(log, data[:]).code
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(data, EPOCH, NOW, inspected=inspected)
    assert caught.value.code is expected
    assert expected is not ErrorCode.UNKNOWN_SERVER_ERROR


def with_a_gap(compression: int) -> bytearray:
    data = build_batch(
        [(NOW, None, b"a", ()), (NOW, None, b"b", ())], offset_deltas=[0, 3], compression=compression
    )
    return changed(data, 23, ">i", 1)


def test_odd_offset_deltas_stay_in_a_plain_batch(log: Log) -> None:
    log.append_as_leader(with_a_gap(0), EPOCH, NOW)
    assert log.log_end_offset == 2
    assert [record.offset for view in batches_of(log) for record in read_records(view)] == [0, 3]


def test_odd_offset_deltas_are_refused_in_a_compressed_batch(log: Log) -> None:
    assert refused(log, with_a_gap(4)).code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_recompression_numbers_records_anew(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(compression_type="gzip"))
    records, inspected = log.recompress(with_a_gap(0), NOW)
    log.append_as_leader(records, EPOCH, NOW, inspected=inspected)
    assert [record.offset for view in batches_of(log) for record in read_records(view)] == [0, 1]


def test_recompression_keeps_what_it_numbers_anew_to_the_byte(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(compression_type="uncompressed"))
    odd = [(NOW, b"k", b"v", [(b"\xff\xfe", b"not text")]), (NOW - 5, None, None, [])]
    data = build_batch(odd, offset_deltas=[3, 3], last_offset_delta=1, compression=1)
    records, inspected = log.recompress(data, NOW)
    assert records[HEADER_SIZE:] == build_batch(odd)[HEADER_SIZE:]
    log.append_as_leader(records, EPOCH, NOW, inspected=inspected)
    assert log.log_end_offset == 2


def test_recompression_names_refused_records_and_not_their_numbers(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(compression_type="gzip", cleanup_policy=frozenset({"compact"})))
    records, inspected = log.recompress(with_a_gap(4), NOW)
    with pytest.raises(RecordValidationError) as caught:
        log.append_as_leader(records, EPOCH, NOW, inspected=inspected)
    assert [record_error.batch_index for record_error in caught.value.record_errors] == [0, 1]


def test_a_batch_that_is_too_large_without_its_codec(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(compression_type="uncompressed", max_message_bytes=10_000))
    with pytest.raises(KafkaError) as caught:
        log.recompress(batch(bytes(10_000), compression=4), NOW)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("compression", [0, 1])
@pytest.mark.parametrize("away", [-DAY_MS - 1, 3_600_001])
def test_timestamps_out_of_range_are_named(tmp_path: Path, compression: int, away: int) -> None:
    log = open_log(tmp_path, LogConfig(message_timestamp_before_max_ms=DAY_MS))
    times = [NOW, NOW + away, NOW]
    data = build_batch([(time, None, b"v", ()) for time in times], compression=compression)
    error = refused(log, data)
    assert isinstance(error, RecordValidationError)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [record_error.batch_index for record_error in error.record_errors] == [1]


def test_timestamps_at_the_edge_and_none_at_all_are_taken(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(message_timestamp_before_max_ms=DAY_MS))
    for timestamp in (NOW - DAY_MS, NOW + 3_600_000, -1):
        append(log, timestamp=timestamp)
    assert [record.timestamp for record in records_of(log)] == [NOW - DAY_MS, NOW + 3_600_000, -1]


def test_a_wrong_max_timestamp_in_the_header_is_corrected(log: Log) -> None:
    data = batch(b"a", b"b")
    set_max_timestamp(data, 0, 0, NOW + 5000)
    log.append_as_leader(data, EPOCH, NOW)
    (view,) = batches_of(log)
    assert (view.max_timestamp, view.crc_ok()) == (NOW, True)
    assert log.active_segment.max_timestamp_so_far == NOW


def test_log_append_time_is_written_by_the_broker(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(message_timestamp_type="LogAppendTime"))
    result = log.append_as_leader(batch(b"a", b"b", timestamp=5), EPOCH, NOW)
    assert result.log_append_time_ms == NOW
    (view,) = batches_of(log)
    assert (view.timestamp_type, view.max_timestamp, view.crc_ok()) == (1, NOW, True)
    assert [record.timestamp for record in read_records(view)] == [NOW, NOW]
    assert log.offset_for_timestamp(NOW) == (NOW, 0, EPOCH)


def test_a_producer_may_not_set_log_append_time(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(message_timestamp_type="LogAppendTime"))
    data = batch()
    set_max_timestamp(data, 0, 1, NOW)
    assert refused(log, data).code is ErrorCode.INVALID_TIMESTAMP


def test_a_log_append_time_flag_is_cleared_on_a_create_time_topic(log: Log) -> None:
    data = batch(timestamp=NOW)
    set_max_timestamp(data, 0, 1, NOW)
    log.append_as_leader(data, EPOCH, NOW)
    (view,) = batches_of(log)
    assert (view.timestamp_type, view.crc_ok()) == (0, True)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_records_of_compressed_batches_are_looked_at(tmp_path: Path, codec: int) -> None:
    log = open_log(tmp_path, LogConfig(cleanup_policy=frozenset({"compact"})))
    error = refused(log, batch(b"v", b"w", key=None, compression=codec))
    assert isinstance(error, RecordValidationError)
    assert [record_error.batch_index for record_error in error.record_errors] == [0, 1]
    too_many = changed(changed(batch(b"v", compression=codec), 23, ">i", 1), 57, ">i", 2)
    assert refused(log, too_many).code is ErrorCode.INVALID_RECORD
    broken = with_payload(batch(b"v", compression=codec), b"nothing that this codec has written")
    assert refused(log, broken).code is ErrorCode.UNKNOWN_SERVER_ERROR
    append(log, b"v", compression=codec)
    assert values_of(log) == [b"v"]


def test_lz4_blocks_that_java_cannot_read_are_refused(log: Log) -> None:
    data = batch(b"v" * 100, compression=3)
    linked = bytes(cramjam.lz4.compress(bytes(cramjam.lz4.decompress(bytes(data[HEADER_SIZE:])))))
    assert not linked[4] & 0x20
    assert refused(log, with_payload(data, linked)).code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_what_decompresses_to_too_much_is_told_to_the_one_who_inspects(log: Log) -> None:
    data = batch(bytes(100_000), compression=4)
    with pytest.raises(KafkaError) as caught:
        log.inspect(data, NOW, 50_000)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert log.inspect(data, NOW, 200_000).problem == Problem.NONE


@pytest.mark.parametrize(
    ("compression_type", "codec"), [("uncompressed", 0), ("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4)]
)
def test_recompression_gives_the_topics_codec(tmp_path: Path, compression_type: str, codec: int) -> None:
    log = open_log(tmp_path, LogConfig(compression_type=compression_type))
    for source in range(5):
        data = batch(b"x" * 300, b"y", producer_id=source, compression=source)
        assert log.needs_recompression(data) is (source != codec)
        again, inspected = log.recompress(data, NOW)
        assert not log.needs_recompression(again)
        log.append_as_leader(again, EPOCH, NOW, inspected=inspected)
    assert {view.compression for view in batches_of(log)} == {codec}
    assert values_of(log) == [b"x" * 300, b"y"] * 5
    assert [producer.producer_id for producer in log.producers.active_producers()] == [0, 1, 2, 3, 4]


def test_recompression_leaves_damage_for_the_append_to_refuse(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(compression_type="gzip"))
    data = batch(b"x")
    data[-1] ^= 1
    assert log.recompress(data, NOW).records == data
    assert refused(log, log.recompress(data, NOW).records).code is ErrorCode.CORRUPT_MESSAGE
    assert not open_log(tmp_path / "other").needs_recompression(data)


def test_several_batches_of_a_coordinator_are_one_write(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    append(log, b"first")
    writes = []
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *args: writes.append(1) or pwrite(*args))
    data = (
        batch(b"a")
        + batch(b"b", b"c")
        + end_txn_marker(
            committed=True, producer_id=9, producer_epoch=0, coordinator_epoch=1, timestamp_ms=NOW
        )
    )
    result = log.append_as_leader(data, EPOCH, NOW, origin=AppendOrigin.COORDINATOR)
    assert (result.base_offset, result.last_offset) == (1, 4)
    assert len(writes) == 1
    assert [view.base_offset for view in batches_of(log)] == [0, 1, 2, 4]


def test_a_follower_takes_offsets_as_given(log: Log, tmp_path: Path) -> None:
    append(log, b"a", b"b")
    append(log, b"c")
    copied = log.read(0, 1 << 20, log.log_end_offset).read()
    other = open_log(tmp_path / "other")
    result = other.append_as_follower(copied, NOW)
    assert (result.base_offset, result.last_offset, result.size_bytes) == (0, 2, len(copied))
    assert (other.log_end_offset, other.epochs.latest) == (3, EPOCH)
    assert values_of(other) == values_of(log)
    with pytest.raises(UnexpectedOffsetError):
        other.append_as_follower(copied, NOW)


def test_a_follower_may_begin_anywhere_and_skip(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for offset in (10, 15):
        data = build_batch([(NOW, b"k", b"v", ())], base_offset=offset, leader_epoch=2)
        log.append_as_follower(bytes(data), NOW)
    assert log.log_end_offset == 16
    assert [record.offset for record in records_of(log, 0)] == [10, 15]
    assert [record.offset for record in records_of(log, 11)] == [15]


def test_a_follower_leaves_out_batches_of_an_epoch_it_does_not_know(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    data = b"".join(
        build_batch([(NOW, b"k", b"v", ())], base_offset=offset, leader_epoch=epoch)
        for offset, epoch in [(0, 1), (1, 1), (2, 5), (3, 1)]
    )
    assert log.append_as_follower(data, NOW, leader_epoch=1).last_offset == 1
    assert log.append_as_follower(data[:0], NOW, leader_epoch=1).size_bytes == 0
    assert log.log_end_offset == 2


def test_half_a_batch_at_the_end_of_a_fetch_is_left_out(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = build_batch([(NOW, b"k", b"v", ())], base_offset=0)
    second = build_batch([(NOW, b"k", b"v", ())], base_offset=1)
    assert log.append_as_follower(bytes(first + second[:-5]), NOW).last_offset == 0


def test_the_metadata_quorums_leader_brings_offsets_and_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    good = build_batch([(NOW, None, b"v", ())], base_offset=0, leader_epoch=4)
    with pytest.raises(KafkaError, match="leader epoch 5"):
        log.append_as_leader(bytearray(good), 5, NOW, origin=AppendOrigin.RAFT_LEADER)
    assert log.append_as_leader(bytearray(good), 4, NOW, origin=AppendOrigin.RAFT_LEADER).last_offset == 0
    with pytest.raises(UnexpectedOffsetError):
        log.append_as_leader(bytearray(good), 4, NOW, origin=AppendOrigin.RAFT_LEADER)


def test_a_failed_write_is_never_acknowledged_and_stops_the_log(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, b"kept")
    failures: list[Exception] = []
    log.on_failure = lambda _, error: failures.append(error)

    def fail(*args: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(StorageError) as caught:
        log.append_as_leader(batch(b"lost"), EPOCH, NOW)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert caught.value.log_dir == log.dir.parent
    monkeypatch.undo()
    for action in (lambda: append(log, b"x"), lambda: log.read(0, 100, 1), lambda: log.flush(now_ms=NOW)):
        with pytest.raises(StorageError, match=r"offline after an I/O error: .*Input/output error"):
            action()
    assert len(failures) == 1
    assert log.log_end_offset == 1
    assert values_of(open_log(log.dir)) == [b"kept"]


@pytest.mark.parametrize("error", [MemoryError(), ValueError("nobody thought of this")])
@pytest.mark.parametrize("way", ["short", "long", "follower"])
def test_a_batch_that_is_written_and_cannot_be_noted_stops_the_log(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, error: Exception
) -> None:
    """The next batch would get the same offset, and readers would see the one that was refused."""
    append(log, b"kept")
    other = open_log(tmp_path / "other")
    append(other, b"kept")
    append(other, b"lost")
    records = other.read(1, 1 << 20, 2).read()
    failures: list[Exception] = []
    log.on_failure = lambda _, failure: failures.append(failure)

    def note(*args: object) -> None:
        raise error

    ways = {
        "short": lambda: log.append_as_leader(batch(b"lost"), EPOCH, NOW),
        "long": lambda: log.append_as_leader(bytearray(records), EPOCH, NOW, AppendOrigin.RAFT_LEADER),
        "follower": lambda: log.append_as_follower(records, NOW),
    }
    monkeypatch.setattr(LogSegment, "note_batch", note)
    with pytest.raises(StorageError):
        ways[way]()
    monkeypatch.undo()
    assert failures == [error]
    with pytest.raises(StorageError):
        append(log, b"x")


def test_what_fails_before_a_batch_is_written_changes_nothing(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, b"kept")

    def write(*args: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(LogSegment, "write", write)
        with pytest.raises(MemoryError):
            append(log, b"lost")
    assert not log.failed
    append(log, b"next")
    assert values_of(log) == [b"kept", b"next"]
