"""The offset and the time index: Kafka's bytes, floor searches, truncation, damage found out."""

from pathlib import Path

import pytest
from tests.unit.storage.log_support import all_entries

from ottla.storage.segment.indexes import WRITE_OUT_BYTES, CorruptIndexError, OffsetIndex, TimeIndex

BASE = 1000
MAX_BYTES = 10 << 20


@pytest.fixture
def index(tmp_path: Path) -> OffsetIndex:
    made = OffsetIndex(tmp_path / "00000000000000001000.index", BASE, MAX_BYTES)
    made.reset()
    return made


@pytest.fixture
def time_index(tmp_path: Path) -> TimeIndex:
    made = TimeIndex(tmp_path / "00000000000000001000.timeindex", BASE, MAX_BYTES)
    made.reset()
    return made


def fill(index: OffsetIndex, entries: int) -> None:
    for i in range(1, entries + 1):
        index.append(BASE + 10 * i, 100 * i)


def test_an_entry_is_a_relative_offset_and_a_position(index: OffsetIndex) -> None:
    index.append(BASE + 5, 0x01020304)
    index.write_out()
    assert index.path.read_bytes() == bytes.fromhex("00000005 01020304")


@pytest.mark.parametrize("entries", [0, 1, 3, WRITE_OUT_BYTES // 8 - 1, WRITE_OUT_BYTES // 8, 1300])
def test_lookup_finds_the_largest_entry_at_or_below(index: OffsetIndex, entries: int) -> None:
    fill(index, entries)
    assert index.entries == entries
    assert index.lookup(BASE + 9) == (BASE, 0)
    for i in range(1, entries + 1):
        assert index.lookup(BASE + 10 * i) == (BASE + 10 * i, 100 * i)
        assert index.lookup(BASE + 10 * i + 9) == (BASE + 10 * i, 100 * i)
        assert index.lookup_position(100 * i + 99) == 100 * i


def test_an_index_loaded_from_its_file_answers_the_same(index: OffsetIndex) -> None:
    fill(index, 700)
    index.close()
    again = OffsetIndex(index.path, BASE, MAX_BYTES)
    assert all_entries(again) == [(10 * i, 100 * i) for i in range(1, 701)]
    assert again.lookup(BASE + 6999) == (BASE + 6990, 69900)
    fill_from = again.entries + 1
    again.append(BASE + 10 * fill_from, 100 * fill_from)
    assert again.lookup(BASE + 10 * fill_from) == (BASE + 10 * fill_from, 100 * fill_from)


@pytest.mark.parametrize("kept", [0, 1, 200, 511, 512, 513, 600])
def test_truncation_removes_entries_at_or_above_an_offset(index: OffsetIndex, kept: int) -> None:
    fill(index, 600)
    assert index.lookup(BASE + 100) == (BASE + 100, 1000)  # mapped before it is cut
    index.truncate_to(BASE + 10 * (kept + 1))
    assert index.entries == kept
    assert index.last_offset == BASE + 10 * kept
    index.append(BASE + 9000, 70_000)
    assert all_entries(index) == [(10 * i, 100 * i) for i in range(1, kept + 1)] + [(9000, 70_000)]


def test_the_disk_is_asked_only_for_what_it_does_not_have(
    index: OffsetIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    fails = False

    def fsync(path: Path) -> None:
        if fails:
            raise OSError(5, "Input/output error")
        asked.append(path)

    monkeypatch.setattr("ottla.storage.segment.indexes.fsync_file", fsync)
    index.flush()
    assert len(asked) == 1, "the file itself is new"
    index.flush()
    assert len(asked) == 1
    for change in (lambda: fill(index, 600), lambda: index.truncate_to(BASE + 100), index.reset):
        change()
        fails = True
        with pytest.raises(OSError, match="error"):
            index.flush()
        fails = False
        before = len(asked)
        index.flush()
        index.flush()
        assert len(asked) == before + 1, "what failed is asked for again, and then no more"


def test_an_index_is_full_at_its_maximum(tmp_path: Path) -> None:
    index = OffsetIndex(tmp_path / "i", 0, 3 * 8 + 5)
    index.reset()
    time_index = TimeIndex(tmp_path / "t", 0, 3 * 12 + 5)
    time_index.reset()
    for i in range(1, 4):
        assert index.room == 4 - i
        index.append(i, i)
        time_index.maybe_append(i, i)
        assert time_index.room == 2 - i  # one slot stays free for the entry made on a roll
    assert index.room == 0


@pytest.mark.parametrize(
    "content",
    [
        b"\0\0\0\5\0\0\0\1\0",  # not a multiple of an entry
        bytes.fromhex("00000005 00000064") + bytes(16),  # never trimmed
        bytes.fromhex("00000005 00000064 00000004 000000c8"),  # going backwards
        bytes.fromhex("80000005 00000064"),  # negative
    ],
)
def test_a_damaged_index_is_found_out(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "index"
    path.write_bytes(content)
    with pytest.raises(CorruptIndexError):
        _ = OffsetIndex(path, BASE, MAX_BYTES).entries


def test_a_missing_index_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(CorruptIndexError, match="missing"):
        OffsetIndex(tmp_path / "none", BASE, MAX_BYTES).lookup(BASE)


def test_a_time_index_entry_is_a_timestamp_and_a_relative_offset(time_index: TimeIndex) -> None:
    time_index.maybe_append(0x0102030405060708, BASE + 9)
    time_index.write_out()
    assert time_index.path.read_bytes() == bytes.fromhex("0102030405060708 00000009")


def test_a_time_index_takes_only_growing_timestamps(time_index: TimeIndex) -> None:
    for timestamp, offset in [(50, 1001), (50, 1002), (40, 1003), (60, 1004), (-1, 1005)]:
        time_index.maybe_append(timestamp, offset)
    assert all_entries(time_index) == [(50, 1), (60, 4)]
    assert time_index.last_entry() == (60, 1004)
    assert time_index.lookup(49) == (-1, BASE)
    assert time_index.lookup(55) == (50, 1001)
    assert time_index.lookup(99) == (60, 1004)


def test_truncating_a_time_index_remembers_the_new_last_entry(time_index: TimeIndex) -> None:
    for i in range(1, 6):
        time_index.maybe_append(10 * i, BASE + i)
    time_index.truncate_to(BASE + 3)
    assert time_index.last_entry() == (20, BASE + 2)
    time_index.maybe_append(15, BASE + 3)
    time_index.maybe_append(25, BASE + 3)
    time_index.close()
    assert TimeIndex(time_index.path, BASE, MAX_BYTES).last_entry() == (25, BASE + 3)
