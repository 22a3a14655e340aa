"""A segment: where index entries are made, how batches are found, what a failed write leaves."""

import errno
import os
import threading
from pathlib import Path

import pytest
from tests.support.batches import set_offset_and_epoch
from tests.unit.storage.log_support import NOW, all_entries, batch

from ottla.storage.config import LogConfig
from ottla.storage.log.reader import find_by_timestamp, find_max_timestamp
from ottla.storage.segment.segment import REMEMBERED_POSITIONS, LogSegment

BASE = 100
CONFIG = LogConfig(index_interval_bytes=300)


def add(segment: LogSegment, offset: int, *values: bytes, timestamp: int = NOW) -> int:
    """Appends a batch at an offset; its size."""
    data = batch(*values, timestamp=timestamp)
    set_offset_and_epoch(data, 0, offset, 1)
    segment.append(data, len(data), offset + max(len(values), 1) - 1, timestamp)
    return len(data)


@pytest.fixture
def segment(tmp_path: Path) -> LogSegment:
    return LogSegment.create(tmp_path, BASE, CONFIG, NOW)


def test_a_new_segment_has_its_log_and_both_indexes(segment: LogSegment, tmp_path: Path) -> None:
    assert sorted(os.listdir(tmp_path)) == [
        "00000000000000000100.index",
        "00000000000000000100.log",
        "00000000000000000100.timeindex",
    ]


def test_an_index_entry_is_made_when_more_than_the_interval_was_written(segment: LogSegment) -> None:
    sizes = [add(segment, BASE + 2 * i, b"a" * 50, b"b" * 20, timestamp=NOW + i) for i in range(10)]
    size = sizes[0]
    assert sizes == [size] * 10
    between = 300 // size + 1  # batches until more than 300 bytes have passed
    expected = [(2 * i + 1, i * size) for i in range(between, 10, between)]
    assert all_entries(segment.offset_index) == expected
    assert all_entries(segment.time_index) == [(NOW + i, 2 * i + 1) for i in range(between, 10, between)]


def test_finishing_adds_the_largest_timestamp(segment: LogSegment) -> None:
    add(segment, BASE, timestamp=NOW + 7)
    add(segment, BASE + 1, timestamp=NOW)
    assert segment.time_index.entries == 0
    segment.finish_indexes()
    segment.finish_indexes()
    assert all_entries(segment.time_index) == [(NOW + 7, 0)]
    assert segment.time_index.path.stat().st_size == 12


def test_locate_finds_every_offset_with_any_index(segment: LogSegment) -> None:
    positions = {}
    offset = BASE + 3
    for count in (1, 3, 2, 1, 4, 2, 1, 5):
        positions[offset] = (segment.size_bytes, count)
        add(segment, offset, *[b"x" * 90] * count)
        offset += count + 2  # a gap, as compaction leaves
    starts = sorted(positions)
    for wanted in range(BASE, offset - 2):
        holder = next(start for start in starts if start + positions[start][1] > wanted)
        assert segment.locate(wanted) == (positions[holder][0], holder)
    assert segment.locate(offset) is None


def test_boundary_is_the_end_of_whole_batches(segment: LogSegment) -> None:
    ends = []
    for i in range(20):
        add(segment, BASE + i, b"x" * (37 * (i % 5)))
        ends.append(segment.size_bytes)
    starts = [0, *ends[:-1]]
    for start in starts:
        for limit in range(start, segment.size_bytes + 1, 13):
            end, next_offset = segment.boundary(start, limit)
            assert segment.boundary(start, limit) == (end, next_offset)
            whole = [index for index, end in enumerate(ends) if end > start and end <= limit]
            if not whole:
                assert (end, next_offset) == (start, -1)
                continue
            assert next_offset == BASE + ends.index(end) + 1
            # At most an eighth is given away where an indexed batch spares the search.
            assert end == ends[whole[-1]] or limit - end <= (limit - start) / 8


def test_remembered_positions_are_bounded(segment: LogSegment) -> None:
    for i in range(3 * REMEMBERED_POSITIONS):
        add(segment, BASE + i)
        segment.remember(BASE + i + 1, segment.size_bytes)
    assert len(segment._positions) == REMEMBERED_POSITIONS
    assert segment.locate(BASE + 5) is not None


@pytest.mark.parametrize("offset", [BASE, BASE + 1, BASE + 5, BASE + 12, BASE + 29, BASE + 30])
def test_truncation_cuts_file_and_indexes(segment: LogSegment, offset: int) -> None:
    sizes = []
    for i in range(15):
        sizes.append(add(segment, BASE + 2 * i, b"a" * 50, b"b", timestamp=NOW + i))
    kept = (offset - BASE) // 2
    removed = segment.truncate_to(offset, NOW + 99)
    assert removed == sum(sizes[kept:])
    assert segment.size_bytes == os.stat(segment.path).st_size == sum(sizes[:kept])
    assert all(relative < offset - BASE for relative, _ in all_entries(segment.offset_index))
    assert segment.max_timestamp_so_far == (NOW + kept - 1 if kept else -1)
    assert segment.created_ms == (NOW if kept else NOW + 99)
    add(segment, offset, b"again")
    assert segment.locate(offset) == (sum(sizes[:kept]), offset)


def test_a_failed_write_leaves_nothing_behind(segment: LogSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    add(segment, BASE, b"first")
    size = segment.size_bytes
    written = os.pwrite

    def half_then_full(fd: int, data: bytes, position: int) -> int:
        if position > size:
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(fd, bytes(data)[: len(data) // 2], position)

    monkeypatch.setattr(os, "pwrite", half_then_full)
    with pytest.raises(OSError, match="No space"):
        add(segment, BASE + 1, b"second")
    monkeypatch.undo()
    assert segment.size_bytes == os.stat(segment.path).st_size == size
    add(segment, BASE + 1, b"third")
    assert [view.base_offset for _, view in segment.batches()] == [BASE, BASE + 1]


def test_a_short_write_is_completed(segment: LogSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    written = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: written(fd, bytes(data)[:7], position))
    add(segment, BASE, b"slowly")
    monkeypatch.undo()
    assert [view.crc_ok() for _, view in segment.batches()] == [True]


def test_missing_and_misleading_indexes_are_made_anew(segment: LogSegment, tmp_path: Path) -> None:
    for i in range(40):
        add(segment, BASE + i, b"x" * 60, timestamp=NOW + i)
    segment.close()
    index_path, time_path = segment.offset_index.path, segment.time_index.path
    good_index, good_time = index_path.read_bytes(), time_path.read_bytes()

    def again() -> LogSegment:
        return LogSegment(tmp_path, BASE, CONFIG, size_bytes=segment.size_bytes, now_ms=NOW)

    for damage in (
        None,
        good_index[:-3],
        good_index + bytes(80),
        good_index[:-8] + b"\0\0\0\x27\x7f\xff\xff\xff",
    ):
        if damage is None:
            index_path.unlink()
        else:
            index_path.write_bytes(damage)
        found = again().locate(BASE + 39)
        assert found is not None
        assert found[1] == BASE + 39
        assert index_path.read_bytes() == good_index
        assert time_path.read_bytes() == good_time


def test_an_index_that_leads_astray_is_made_anew(segment: LogSegment, tmp_path: Path) -> None:
    for i in range(40):
        add(segment, BASE + i, b"x" * 60)
    segment.close()
    path = segment.offset_index.path
    good = path.read_bytes()
    for damage in (
        b"\0\0\0\1" + good[4:],  # offset 1 at a position that is later
        good[:7] + bytes([good[7] + 3]) + good[8:],  # a position inside a batch
    ):
        path.write_bytes(damage)
        reopened = LogSegment(tmp_path, BASE, CONFIG, size_bytes=segment.size_bytes, now_ms=NOW)
        assert [(reopened.locate(BASE + i) or (0, 0))[1] for i in range(40)] == [BASE + i for i in range(40)]
        assert path.read_bytes() == good


def test_the_age_of_a_segment_is_its_first_batchs(segment: LogSegment) -> None:
    assert segment.time_waited_for_roll(NOW + 50, NOW) == 50
    add(segment, BASE, timestamp=NOW - 1000)
    add(segment, BASE + 1, timestamp=NOW)
    assert segment.time_waited_for_roll(NOW + 50, NOW + 5) == 1005


def test_without_timestamps_the_time_of_the_last_write_counts(segment: LogSegment) -> None:
    add(segment, BASE, timestamp=-1)
    os.utime(segment.path, ns=(5_000_000_000, 5_000_000_000))
    assert segment.max_timestamp_so_far == -1
    assert segment.largest_timestamp == 5000


def test_search_by_timestamp(segment: LogSegment) -> None:
    for i in range(30):
        add(segment, BASE + 2 * i, b"a" * 40, b"b", timestamp=NOW + 10 * i)
    for i in range(30):
        found = find_by_timestamp(segment, NOW + 10 * i - 3, 0)
        assert found is not None
        assert (found.timestamp, found.offset, found.leader_epoch) == (NOW + 10 * i, BASE + 2 * i, 1)
    assert find_by_timestamp(segment, NOW, BASE + 5) == (NOW + 20, BASE + 5, 1)
    assert find_by_timestamp(segment, NOW + 1000, 0) is None
    newest = find_max_timestamp(segment)
    assert newest is not None
    assert (newest.timestamp, newest.offset) == (NOW + 290, BASE + 58)


def test_renamed_and_deleted_files_stay_readable_for_who_has_them(segment: LogSegment) -> None:
    add(segment, BASE, b"kept")
    file = segment.file()
    segment.change_suffix(".deleted")
    assert segment.path.name == "00000000000000000100.log.deleted"
    segment.delete_files()
    assert not segment.path.exists()
    assert b"kept" in os.pread(file.fd, 1000, 0)
    fd = file.fd
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_opening_during_a_rename_finds_the_file_and_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = LogSegment.create(tmp_path, 0, LogConfig(), now_ms=0, suffix=".swap")
    really_open = os.open
    renamed = False

    def open_after_a_rename(path: Path, *how: int) -> int:
        nonlocal renamed
        if not renamed:
            renamed = True
            segment.change_suffix("")
        return really_open(path, *how)

    monkeypatch.setattr("ottla.storage.segment.segment.os.open", open_after_a_rename)
    assert os.fstat(segment.file().fd).st_ino == segment.path.stat().st_ino
    assert not list(tmp_path.glob("*.log.swap"))


# ---- descriptors -------------------------------------------------------------------------------------------------


def test_two_that_open_at_once_share_a_descriptor(
    segment: LogSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one of them writes to a descriptor that is closed, or by then somebody else's."""
    found = []
    other = threading.Thread(target=lambda: found.append(segment.file()))
    real_open = os.open

    def slow_open(path: Path, flags: int, mode: int) -> int:
        fd = real_open(path, flags, mode)
        if not other.ident:
            other.start()
            other.join(0.2)  # it has to wait for us, or comes first
        return fd

    monkeypatch.setattr(os, "open", slow_open)
    mine = segment.file()
    other.join()
    assert found == [mine]


@pytest.mark.parametrize("walk", ["headers", "batches"])
def test_a_walk_goes_on_when_the_segment_lets_go_of_its_file(
    segment: LogSegment, walk: str, tmp_path: Path
) -> None:
    for n in range(40):
        add(segment, BASE + n, b"x" * 60_000)
    positions = [position for position, _ in getattr(segment, walk)()]
    walking = getattr(segment, walk)()
    seen = [next(walking)[0]]
    segment.close_handlers()
    with (tmp_path / "other").open("wb"):  # takes the descriptor, were it free
        seen += [position for position, _ in walking]
    assert seen == positions
