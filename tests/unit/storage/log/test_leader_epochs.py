"""Leader epochs: what a follower and a consumer are told, and the file."""

from pathlib import Path

import pytest

from ottla.storage.dirs.checkpoints import CheckpointError
from ottla.storage.log.leader_epochs import FILE_NAME, EpochEntry, LeaderEpochFileCache, parse_epochs


@pytest.fixture
def epochs(tmp_path: Path) -> LeaderEpochFileCache:
    made = LeaderEpochFileCache(tmp_path)
    for epoch, start_offset in [(2, 10), (4, 20), (7, 35)]:
        made.assign(epoch, start_offset)
    return made


def test_the_file_is_kafkas(epochs: LeaderEpochFileCache, tmp_path: Path) -> None:
    assert (tmp_path / FILE_NAME).read_text() == "0\n3\n2 10\n4 20\n7 35\n"
    assert LeaderEpochFileCache.load(tmp_path).entries == epochs.entries


def test_nothing_is_written_for_an_epoch_that_is_known(epochs: LeaderEpochFileCache, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).unlink()
    epochs.assign(7, 50)
    assert not (tmp_path / FILE_NAME).exists()


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (7, (7, 99)),  # the newest ends at the log end offset
        (4, (4, 35)),
        (5, (4, 35)),  # the largest at or below
        (2, (2, 20)),
        (1, (1, 10)),  # older than anything known
        (8, None),
        (-1, None),
    ],
)
def test_end_offset_for_an_epoch(
    epochs: LeaderEpochFileCache, epoch: int, expected: tuple[int, int] | None
) -> None:
    assert epochs.end_offset_for(epoch, 99) == expected


@pytest.mark.parametrize(("offset", "epoch"), [(9, -1), (10, 2), (19, 2), (20, 4), (1000, 7)])
def test_epoch_for_an_offset(epochs: LeaderEpochFileCache, offset: int, epoch: int) -> None:
    assert epochs.epoch_for(offset) == epoch


def test_an_entry_that_contradicts_others_wins(epochs: LeaderEpochFileCache) -> None:
    epochs.assign(8, 20)
    assert epochs.entries == [EpochEntry(2, 10), EpochEntry(8, 20)]
    epochs.assign(3, 30)
    assert epochs.entries == [EpochEntry(2, 10), EpochEntry(3, 30)]


def test_truncation_from_the_end(epochs: LeaderEpochFileCache) -> None:
    epochs.truncate_from_end(35)
    assert epochs.latest == 4
    epochs.truncate_from_end(5)
    assert epochs.latest == -1
    assert epochs.entries == []


def test_truncation_from_the_start_keeps_the_epoch_of_the_offset(
    epochs: LeaderEpochFileCache, tmp_path: Path
) -> None:
    epochs.truncate_from_start(25)
    assert epochs.entries == [EpochEntry(4, 25), EpochEntry(7, 35)]
    epochs.truncate_from_start(5)
    assert epochs.entries == [EpochEntry(4, 25), EpochEntry(7, 35)]
    assert LeaderEpochFileCache.load(tmp_path).entries == epochs.entries


@pytest.mark.parametrize(
    "content",
    [
        b"1\n0\n",
        b"0\n2\n1 2\n",
        b"0\n1\n1\n",
        b"0\n1\n1 -2\n",
        b"\xff\xfe",
        b"0\n1\nx y\n",
        b"0\n1\n2147483648 2\n",
        b"0\n1\n1 9223372036854775808\n",
    ],
)
def test_a_damaged_file_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(CheckpointError):
        parse_epochs(content, "x")
    assert LeaderEpochFileCache.load(tmp_path).entries == []


@pytest.mark.parametrize("content", [b"", b"0\n", b"0\n0\n"])
def test_an_empty_file_is_no_epochs(content: bytes) -> None:
    assert parse_epochs(content, "x") == []


def test_an_epoch_without_records_is_not_worth_a_write(epochs: LeaderEpochFileCache, tmp_path: Path) -> None:
    before = (tmp_path / FILE_NAME).read_bytes()
    epochs.begin(8, 50)
    assert epochs.latest == 8
    assert epochs.end_offset_for(7, 99) == (7, 50)
    assert (tmp_path / FILE_NAME).read_bytes() == before
    assert epochs.settled != 8, "the first append of the epoch has to call assign"
    epochs.assign(8, 50)
    assert epochs.settled == 8
    assert LeaderEpochFileCache.load(tmp_path).entries == epochs.entries


def test_an_epoch_that_was_dropped_and_comes_back_with_records_is_written(tmp_path: Path) -> None:
    """The file may keep an epoch that loading has dropped; it must not be taken for settled."""
    LeaderEpochFileCache(tmp_path).assign(5, 100)
    loaded = LeaderEpochFileCache.load(tmp_path)
    loaded.settle(0, 100, loaded.entries)
    assert loaded.latest == -1
    assert loaded.settled != 5
    loaded.assign(4, 100)  # a leader that had more of epoch 4 than this replica had
    assert LeaderEpochFileCache.load(tmp_path).entries == [EpochEntry(4, 100)]


def test_loading_writes_what_recovery_found_and_nothing_else(
    epochs: LeaderEpochFileCache, tmp_path: Path
) -> None:
    file = tmp_path / FILE_NAME
    before = file.stat().st_ino
    loaded = LeaderEpochFileCache.load(tmp_path)
    loaded.settle(15, 35, loaded.entries)
    assert loaded.entries == [EpochEntry(2, 15), EpochEntry(4, 20)]
    assert file.stat().st_ino == before
    recovered = LeaderEpochFileCache.load(tmp_path)
    in_file = recovered.entries
    recovered.begin(9, 60)  # as a batch after the recovery point says
    recovered.settle(0, 70, in_file)
    assert (
        LeaderEpochFileCache.load(tmp_path).entries
        == recovered.entries
        == [*epochs.entries, EpochEntry(9, 60)]
    )
