"""Reading: slices end on batch boundaries, stay below the limit asked for, and outlive deletion."""

import os
from pathlib import Path

import pytest
from tests.unit.storage.log_support import NOW, append, open_log, records_of

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import iter_batches
from ottla.records.record import build_batch
from ottla.storage.config import LogConfig
from ottla.storage.log import log as log_module
from ottla.storage.log import reader
from ottla.storage.log.log import Log
from ottla.storage.segment import file_records
from ottla.storage.segment.file_records import (
    ColdDataError,
    ColdSliceError,
    LogSlice,
    TimestampOffset,
    is_cold,
    warm_up,
)
from ottla.storage.segment.segment import LogSegment

SMALL = LogConfig(segment_bytes=700, index_interval_bytes=150)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    made = open_log(tmp_path, SMALL)
    for i in range(40):
        append(made, *[b"%d" % i * (1 + i % 7)] * (1 + i % 3), timestamp=NOW + i)
    assert len(made.segments) > 3
    return made


def test_every_offset_with_every_size_gives_whole_batches_and_progress(log: Log) -> None:
    for max_bytes in (1, 80, 100, 230, 10_000):
        for offset in range(log.log_end_offset):
            piece = log.read(offset, max_bytes, log.log_end_offset)
            views = list(iter_batches(piece.read()))
            assert views[0].base_offset <= offset <= views[0].last_offset
            assert piece.first_offset <= offset
            assert views[-1].next_offset == piece.next_offset
            assert piece.length <= max_bytes or len(views) == 1


def test_without_one_message_at_least_a_small_limit_gives_nothing(log: Log) -> None:
    assert log.read(0, 10, log.log_end_offset, min_one_message=False).length == 0
    assert log.read(0, 10, log.log_end_offset).length > 10


def test_nothing_at_or_above_the_maximum_offset_is_read(log: Log) -> None:
    boundaries = {view.base_offset for view in iter_batches_of(log)} | {log.log_end_offset}
    for limit in range(log.log_end_offset + 1):
        seen = 0
        offset = 0
        while (piece := log.read(offset, 1 << 20, limit)).length:
            last = list(iter_batches(piece.read()))[-1]
            assert last.last_offset < limit
            assert piece.next_offset == last.next_offset
            seen = offset = last.next_offset
        assert seen == max(boundary for boundary in boundaries | {0} if boundary <= limit)


def iter_batches_of(log: Log) -> list:  # type: ignore[type-arg]
    found = []
    for segment in log.segments:
        found += [view for _, view in segment.batches()]
    return found


def test_offsets_outside_the_log(log: Log) -> None:
    log.maybe_increment_log_start_offset(5, "test")
    for offset in (4, log.log_end_offset + 1):
        with pytest.raises(KafkaError) as caught:
            log.read(offset, 100, log.log_end_offset)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(log.log_end_offset, 100, log.log_end_offset).read() == b""
    assert log.read(7, 100, 6).length == 0


def test_a_reader_at_the_tail_sees_what_is_appended(log: Log) -> None:
    offset = log.log_end_offset
    for i in range(30):
        assert log.read(offset, 1000, log.log_end_offset).length == 0
        append(log, b"tail%d" % i)
        piece = log.read(offset, 1000, log.log_end_offset)
        assert [view.base_offset for view in iter_batches(piece.read())] == [offset]
        offset = piece.next_offset


def test_reading_on_does_not_ask_the_index_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    for _ in range(200):
        append(log, b"x" * 100)
    index = type(log.active_segment.offset_index)
    lookups = []
    original = index.lookup
    monkeypatch.setattr(index, "lookup", lambda *args: lookups.append(1) or original(*args))
    offset = 0
    while offset < 200:
        offset = log.read(offset, 3000, 200).next_offset
    assert len(lookups) == 1


def test_a_slice_outlives_the_deletion_of_its_segment(log: Log) -> None:
    piece = log.read(0, 1000, log.log_end_offset)
    content = piece.read()
    log.maybe_increment_log_start_offset(log.segments[1].base_offset, "test")
    gone = log.delete_old_segments(NOW)
    log.delete_files(gone)
    assert piece.read() == content
    assert os.fstat(piece.fd).st_nlink == 0
    assert not is_cold(piece)
    warm_up([piece])


def test_gaps_at_the_end_of_a_segment_lead_to_the_next(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    log.append_as_follower(bytes(build_batch([(NOW, b"k", b"v", ())], base_offset=0)), NOW)
    log.append_as_follower(bytes(build_batch([(NOW, b"k", b"v" * 600, ())], base_offset=50)), NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 50]
    assert [record.offset for record in records_of(log, 1)] == [50]
    assert log.read(1, 100, 50).length == 0


def test_search_by_timestamp_across_segments(log: Log) -> None:
    firsts = {view.max_timestamp: view.base_offset for view in iter_batches_of(log)}
    for timestamp, offset in firsts.items():
        found = log.offset_for_timestamp(timestamp)
        assert found is not None
        assert (found.timestamp, found.offset) == (timestamp, offset)
    assert log.offset_for_timestamp(NOW - 5) == (NOW, 0, 3)
    assert log.offset_for_timestamp(NOW + 40) is None
    newest = log.offset_of_max_timestamp()
    assert newest is not None
    assert (newest.timestamp, newest.offset) == (NOW + 39, firsts[NOW + 39])


def test_search_by_timestamp_does_not_go_below_the_log_start(log: Log) -> None:
    log.maybe_increment_log_start_offset(30, "test")
    found = log.offset_for_timestamp(NOW)
    assert found is not None
    assert found.offset == 30


def test_a_search_that_misses_what_was_cut_off_has_found_no_broken_disk(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = reader.find_by_timestamp

    def cut_off(segment: LogSegment, *more: int) -> TimestampOffset | None:
        log.truncate_fully_and_start_at(5, NOW)
        return find(segment, *more)

    monkeypatch.setattr(reader, "find_by_timestamp", cut_off)
    with pytest.raises(KafkaError) as raised:
        log.offset_for_timestamp(NOW)
    assert raised.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not log.failed


def test_an_empty_log_has_no_timestamps(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.offset_for_timestamp(0) is None
    assert log.offset_of_max_timestamp() is None


class ColdDisk:
    """A page cache that has a place only after it was asked for once, as if a thread had read it meanwhile."""

    def __init__(self) -> None:
        self.warm: set[tuple[int, int]] = set()
        self.times_cold = 0

    def pread(self, fd: int, size: int, position: int) -> bytes:
        if (fd, position) not in self.warm:
            self.warm.add((fd, position))
            self.times_cold += 1
            raise ColdDataError(position, size)
        return os.pread(fd, size, position)


def read_at_last(log: Log, offset: int, max_bytes: int) -> tuple[LogSlice, list[LogSlice]]:
    needed: list[LogSlice] = []
    while True:
        try:
            return log.read(offset, max_bytes, log.log_end_offset, wait=False), needed
        except ColdSliceError as cold:
            needed.append(cold.slice)


def test_a_read_that_must_not_wait_says_what_to_warm_up(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = ColdDisk()
    monkeypatch.setattr(log_module, "pread_warm", disk.pread)
    for max_bytes in (1, 100, 230):
        for offset in range(0, log.log_end_offset, 3):
            piece, needed = read_at_last(log, offset, max_bytes)
            assert all(slice_.read() for slice_ in needed)
            expected = log.read(offset, max_bytes, log.log_end_offset)
            assert (piece.position, piece.length, piece.first_offset) == (
                expected.position,
                expected.length,
                expected.first_offset,
            )
    assert disk.times_cold > 10


def test_what_is_in_memory_is_read_without_waiting(log: Log) -> None:
    for offset in range(log.log_end_offset):
        found = log.read(offset, 200, log.log_end_offset, wait=False)
        assert found.read() == log.read(offset, 200, log.log_end_offset).read()


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system cannot tell")
def test_pages_that_are_not_there_are_told(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = log.segments[0].file().fd

    def nothing(fd: int, buffers: list[bytearray], position: int, flags: int) -> int:
        raise BlockingIOError

    def little(fd: int, buffers: list[bytearray], position: int, flags: int) -> int:
        return 10

    def unsupported(fd: int, buffers: list[bytearray], position: int, flags: int) -> int:
        raise OSError(95, "Operation not supported")

    for preadv in (nothing, little):
        monkeypatch.setattr(os, "preadv", preadv)
        with pytest.raises(ColdDataError) as cold:
            file_records.pread_warm(fd, 100, 0)
        assert (cold.value.position, cold.value.length) == (0, 100)
    monkeypatch.setattr(os, "preadv", unsupported)
    assert file_records.pread_warm(fd, 100, 0) == os.pread(fd, 100, 0)
