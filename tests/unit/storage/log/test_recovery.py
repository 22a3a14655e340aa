"""What a start makes of what a crash, a disk or an interrupted clean-up has left."""

import os
import shutil
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from tests.unit.storage.log_support import (
    EPOCH,
    NOW,
    all_entries,
    append,
    batch,
    crash,
    names,
    open_log,
    records_of,
    reopen,
    values_of,
)

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.kernel import crc32c
from ottla.storage.config import LogConfig
from ottla.storage.log.leader_epochs import LeaderEpochFileCache
from ottla.storage.log.log import Log
from ottla.storage.segment import segment as segment_module
from ottla.storage.segment.file_records import TimestampOffset
from ottla.storage.segment.indexes import AbortedTransaction, OffsetIndex, TimeIndex, TransactionIndex
from ottla.storage.segment.segment import LogSegment

SMALL = LogConfig(segment_bytes=600, index_interval_bytes=100)
VALUES = [b"%03d" % i for i in range(40)]
LISTED = os.scandir


@pytest.fixture
def log(tmp_path: Path) -> Log:
    made = open_log(tmp_path, SMALL)
    for i, value in enumerate(VALUES):
        append(made, value, timestamp=NOW + i, producer_id=i % 3, sequence=i // 3)
    assert len(made.segments) > 3
    return made


def test_a_crash_with_nothing_flushed_loses_nothing_that_was_written(log: Log) -> None:
    again = crash(log)
    assert values_of(again) == VALUES
    assert (again.log_end_offset, again.recovery_point, again.epochs.latest) == (40, 0, EPOCH)


def test_recovered_indexes_are_those_of_a_clean_stop(log: Log) -> None:
    copy = log.dir.parent / "copy-0"
    shutil.copytree(log.dir, copy)
    log.flush(now_ms=NOW)
    log.close()
    again = open_log(copy, SMALL)
    again.flush(now_ms=NOW)
    again.close()
    for suffix in (".log", ".index", ".timeindex"):
        for name in names(log.dir, suffix):
            assert (copy / name).read_bytes() == (log.dir / name).read_bytes(), name


@pytest.mark.parametrize("cut", [1, 30, 60, 61, 62, 70, 100])
def test_a_torn_tail_is_cut_off(log: Log, cut: int) -> None:
    active = log.active_segment
    ends = [position + view.size_bytes for position, view in active.batches()]
    log.close_handlers()
    os.truncate(active.path, active.size_bytes - cut)
    survivors = sum(1 for end in ends if end <= active.size_bytes - cut)
    again = open_log(log.dir, SMALL)
    assert again.log_end_offset == active.base_offset + survivors
    assert values_of(again) == VALUES[: again.log_end_offset]
    assert os.stat(active.path).st_size == again.active_segment.size_bytes
    append(again, b"on")
    assert values_of(again)[-1] == b"on"


@pytest.mark.parametrize(
    "garbage",
    [b"\0", bytes(1000), b"\xff" * 100, Random(300).randbytes(300), bytes(batch())[:-1]],
    ids=["a zero", "zeros", "ones", "anything", "half a batch"],
)
def test_garbage_after_the_end_is_cut_off(log: Log, garbage: bytes) -> None:
    log.close_handlers()
    with open(log.active_segment.path, "ab") as file:
        file.write(garbage)
    again = open_log(log.dir, SMALL)
    assert values_of(again) == VALUES
    assert os.stat(again.active_segment.path).st_size == log.active_segment.size_bytes


def test_a_whole_batch_that_does_not_follow_is_cut_off(log: Log) -> None:
    log.close_handlers()
    with open(log.active_segment.path, "ab") as file:
        file.write(batch(b"offset 0"))
    assert values_of(open_log(log.dir, SMALL)) == VALUES


def test_damage_ends_the_log_and_drops_the_segments_after_it(log: Log) -> None:
    second, third = log.segments[1], log.segments[2]
    positions = [position for position, _ in second.batches()]
    log.close_handlers()
    with open(second.path, "r+b") as file:
        file.seek(positions[2] + 65)
        file.write(b"\xff\xff\xff")
    again = open_log(log.dir, SMALL)
    assert again.log_end_offset == second.base_offset + 2
    assert values_of(again) == VALUES[: second.base_offset + 2]
    assert not third.path.exists()
    assert names(log.dir, ".log") == [segment.path.name for segment in log.segments[:2]]
    append(again, b"on")
    assert values_of(crash(again))[-1] == b"on"


def test_what_is_below_the_recovery_point_is_not_read_again(log: Log) -> None:
    log.flush(log.segments[2].base_offset, now_ms=NOW)
    second = log.segments[1]
    log.close_handlers()
    with open(second.path, "r+b") as file:
        file.seek(65)
        file.write(b"\xff\xff")
    again = open_log(log.dir, SMALL, recovery_point=log.recovery_point)
    assert again.log_end_offset == 40
    assert [segment.base_offset for segment in again.segments] == [s.base_offset for s in log.segments]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_missing_indexes_are_made_anew(log: Log, suffix: str, clean: bool) -> None:
    log.flush(now_ms=NOW)
    log.close()
    before = {name: (log.dir / name).read_bytes() for name in names(log.dir, suffix)}
    for name in before:
        (log.dir / name).unlink()
    again = open_log(log.dir, SMALL, recovery_point=40, clean=clean)
    assert values_of(again) == VALUES
    again.close()
    assert {name: (log.dir / name).read_bytes() for name in names(log.dir, suffix)} == before


def test_indexes_without_a_log_file_are_removed(log: Log) -> None:
    log.flush(now_ms=NOW)
    log.close()
    for suffix in (".index", ".timeindex", ".txnindex"):
        (log.dir / f"{7:020d}{suffix}").write_bytes(b"x" * 24)
    open_log(log.dir, SMALL, recovery_point=40, clean=True)
    assert not [name for name in names(log.dir) if name.startswith(f"{7:020d}")]


def test_an_untrimmed_index_as_apache_leaves_after_a_crash(log: Log) -> None:
    log.close_handlers()
    active = log.active_segment
    for suffix in (".index", ".timeindex"):
        os.truncate(active.path.with_suffix(suffix), 10 << 20)
    again = open_log(log.dir, SMALL)
    assert values_of(again) == VALUES
    again.close()
    assert active.path.with_suffix(".index").stat().st_size < 1000


def test_a_damaged_transaction_index_is_made_anew(log: Log) -> None:
    log.flush(now_ms=NOW)
    log.close()
    path = log.segments[1].path.with_suffix(".txnindex")
    path.write_bytes(b"\xff" * 34)
    again = open_log(log.dir, SMALL, recovery_point=40, clean=True)
    assert again.aborted_transactions(0, 40) == []
    assert values_of(again) == VALUES
    assert len(again.producers.active_producers()) == 3


def test_a_damaged_transaction_index_of_the_first_segment_forgets_no_producer(log: Log) -> None:
    log.append_as_leader(batch(producer_id=7, transactional=True), EPOCH, NOW)
    known = sorted(log.producers.active_producers())
    log.flush(now_ms=NOW)
    log.close()
    log.segments[0].path.with_suffix(".txnindex").write_bytes(b"\xff" * 34)
    for _ in range(2):
        again = open_log(log.dir, SMALL, recovery_point=41, clean=True)
        assert sorted(again.producers.active_producers()) == known
        assert again.producers.first_unstable_offset == 40
        again.close()


def test_deleted_files_are_unlinked_and_metadata_snapshots_left(log: Log) -> None:
    log.flush(now_ms=NOW)
    log.close()
    (log.dir / f"{3:020d}.log.deleted").write_bytes(b"x")
    (log.dir / f"{3:020d}-{1:010d}.checkpoint.deleted").write_bytes(b"x")
    (log.dir / f"{3:020d}-{1:010d}.checkpoint").write_bytes(b"x")
    open_log(log.dir, SMALL, recovery_point=40, clean=True)
    assert names(log.dir, ".deleted") == [f"{3:020d}-{1:010d}.checkpoint.deleted"]
    assert (log.dir / f"{3:020d}-{1:010d}.checkpoint").exists()


def compacted(log: Log, suffix: str) -> list[bytes]:
    """Writes the first two segments, without their first batch, as one with a suffix; what should be left."""
    log.flush(now_ms=NOW)
    log.close()
    raw = [bytes(view.raw()) for segment in log.segments[:2] for _, view in segment.batches()]
    (log.dir / f"{0:020d}.log{suffix}").write_bytes(b"".join(raw[1:]))
    for kind in (".index", ".timeindex"):
        (log.dir / f"{0:020d}{kind}{suffix}").write_bytes(b"")
    return VALUES[1:]


@contextmanager
def scandir_backwards(path: Path) -> Iterator[list[os.DirEntry[str]]]:
    with LISTED(path) as entries:
        yield sorted(entries, key=lambda entry: entry.name, reverse=True)


@pytest.mark.parametrize("already_renamed", [0, 1, 2])
def test_a_finished_compaction_is_put_in_place(log: Log, already_renamed: int) -> None:
    expected = compacted(log, ".swap")
    for segment in log.segments[:already_renamed]:
        for suffix in (".log", ".index", ".timeindex"):
            path = segment.path.with_suffix(suffix)
            path.rename(path.with_name(path.name + ".deleted"))
    again = open_log(log.dir, SMALL, recovery_point=40, clean=True)
    assert values_of(again) == expected
    assert not names(log.dir, ".swap")
    assert [segment.base_offset for segment in again.segments][1] == log.segments[2].base_offset


def test_nothing_is_left_of_a_segment_whose_compacted_one_is_empty(log: Log) -> None:
    """The aborted transactions of the old one would hide what the same producer has committed later."""
    log.flush(now_ms=NOW)
    log.close()
    first = log.segments[0]
    first.txn_index.append(AbortedTransaction(1, 1, 3, 4))
    for kind in (".log", ".index", ".timeindex"):
        (log.dir / f"{0:020d}{kind}.swap").write_bytes(b"")
    again = open_log(log.dir, SMALL, recovery_point=40)
    assert again.aborted_transactions(0, 40) == []
    assert values_of(again) == VALUES[log.segments[1].base_offset :]


def test_a_crash_while_a_compaction_is_put_in_place_loses_no_index(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = compacted(log, ".swap")
    aborted = AbortedTransaction(1, 1, 3, 4)
    TransactionIndex(log.dir / f"{0:020d}.txnindex.swap", 0).append(aborted)
    real, renamed = os.replace, list[str]()

    def replace(old: Path, new: Path) -> None:
        if renamed:
            raise KeyboardInterrupt  # the process is gone
        renamed.append(str(new))
        real(old, new)

    with monkeypatch.context() as patch:
        # The order in which a directory lists its files is its own.
        patch.setattr(os, "scandir", scandir_backwards)
        patch.setattr(os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            open_log(log.dir, SMALL, recovery_point=40)
    again = open_log(log.dir, SMALL, recovery_point=40)
    assert again.aborted_transactions(0, 40) == [aborted]
    assert values_of(again) == expected


def legacy(magic: int, value: bytes) -> bytes:
    """A message as before Kafka 0.11: its checksum is a CRC-32, and covers all from the magic on."""
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", NOW) if magic else b"")
    body += struct.pack(">ii", -1, len(value)) + value
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("rest", [b"", b"half a message"])
def test_messages_of_before_kafka_0_11_are_refused_and_not_cut_off(
    tmp_path: Path, magic: int, clean: bool, rest: bytes
) -> None:
    log = open_log(tmp_path, SMALL)
    log.close()
    content = legacy(magic, b"x" * 40) + rest
    log.segments[0].path.write_bytes(content)
    with pytest.raises(KafkaError, match=r"before Kafka 0\.11") as caught:
        open_log(log.dir, SMALL, clean=clean)
    assert caught.value.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert log.segments[0].path.read_bytes() == content


def test_messages_of_before_kafka_0_11_behind_later_ones_are_refused_too(log: Log) -> None:
    log.flush(now_ms=NOW)
    log.close()
    last = log.segments[-1].path
    content = last.read_bytes() + legacy(1, b"v")
    last.write_bytes(content)
    with pytest.raises(KafkaError, match=r"before Kafka 0\.11"):
        open_log(log.dir, SMALL, recovery_point=40, clean=True)
    assert last.read_bytes() == content


@pytest.mark.parametrize(
    "garbage", [bytes(200), legacy(1, b"x" * 40)[:-1], legacy(1, b"x" * 40)[:-1] + b"y", b"\1" * 200]
)
def test_what_only_looks_like_an_old_message_is_damage(tmp_path: Path, garbage: bytes) -> None:
    log = open_log(tmp_path, SMALL)
    log.close()
    log.segments[0].path.write_bytes(garbage)
    assert open_log(log.dir, SMALL).log_end_offset == 0
    assert log.segments[0].path.read_bytes() == b""


def test_an_unfinished_compaction_is_thrown_away(log: Log) -> None:
    compacted(log, ".cleaned")
    again = open_log(log.dir, SMALL, recovery_point=40, clean=True)
    assert values_of(again) == VALUES
    assert not names(log.dir, ".cleaned")


def test_swaps_beside_an_earlier_cleaned_file_are_thrown_away(log: Log) -> None:
    compacted(log, ".swap")
    (log.dir / f"{0:020d}.log.cleaned").write_bytes(b"")
    again = open_log(log.dir, SMALL, recovery_point=40, clean=True)
    assert values_of(again) == VALUES
    assert not names(log.dir, ".swap")


def test_a_log_that_ends_before_its_start_begins_anew(log: Log) -> None:
    log.close_handlers()
    again = open_log(log.dir, SMALL, log_start_offset=100)
    assert (again.log_start_offset, again.log_end_offset) == (100, 100)
    assert again.epochs.latest == -1
    assert names(log.dir, ".log") == ["00000000000000000100.log"]
    assert append(again, b"x") == 100


def test_the_log_start_is_never_below_the_first_segment(log: Log) -> None:
    log.maybe_increment_log_start_offset(log.segments[1].base_offset, "test")
    log.delete_files(log.delete_old_segments(NOW))
    again = open_log(log.dir, SMALL, log_start_offset=0)
    assert again.log_start_offset == log.segments[0].base_offset


def test_a_log_start_within_a_segment_is_kept(log: Log) -> None:
    log.maybe_increment_log_start_offset(5, "test")
    assert records_of(reopen(log))[0].offset == 5
    assert crash(log).log_start_offset == 5


@pytest.mark.parametrize("recovery_point", [0, 17, 39])
def test_a_wrong_clean_marker_does_not_bury_a_torn_tail(log: Log, recovery_point: int) -> None:
    log.close_handlers()
    os.truncate(log.active_segment.path, log.active_segment.size_bytes - 5)
    again = open_log(log.dir, SMALL, recovery_point=recovery_point, clean=True)
    assert values_of(again) == VALUES[:-1]
    append(again, b"on")
    assert values_of(again) == [*VALUES[:-1], b"on"]


def cut_by(size: int) -> Callable[[LogSegment], None]:
    return lambda segment: os.truncate(segment.path, max(segment.size_bytes - size, 0))


def with_zeros(size: int) -> Callable[[LogSegment], None]:
    return lambda segment: os.truncate(segment.path, segment.size_bytes + size)


def zero_last_batch(segment: LogSegment) -> None:
    *_, (position, _) = segment.headers()
    with segment.path.open("r+b") as file:
        file.seek(position)
        file.write(bytes(segment.size_bytes - position))


CHANGED: dict[str, tuple[Callable[[LogSegment], None], int]] = {
    # what happens to the last segment, and how many of its batches are gone then
    "a byte is cut off": (cut_by(1), 1),
    "a header is left": (lambda segment: os.truncate(segment.path, start_of_last(segment) + 61), 1),
    "a part of a header is left": (lambda segment: os.truncate(segment.path, start_of_last(segment) + 20), 1),
    "the last batch is cut off": (lambda segment: os.truncate(segment.path, start_of_last(segment)), 1),
    "nothing is left": (cut_by(1 << 20), 100),
    "a few zeros": (with_zeros(7), 0),
    "zeros": (with_zeros(5000), 0),
    "a hole in the place of the last batch": (zero_last_batch, 1),
}


def start_of_last(segment: LogSegment) -> int:
    *_, (position, _) = segment.headers()
    return position


@pytest.mark.parametrize("case", CHANGED)
@pytest.mark.parametrize("from_index", [False, True])
def test_what_is_acknowledged_after_a_clean_stop_and_a_damaged_tail_stays(
    log: Log, case: str, from_index: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if from_index:
        monkeypatch.setattr(segment_module, "SCAN_BYTES", 0)
    log.flush(now_ms=NOW)
    log.close()
    damage, gone = CHANGED[case]
    first = log.active_segment.base_offset
    damage(log.active_segment)
    log.active_segment.close_handlers()
    again = open_log(log.dir, SMALL, recovery_point=40, clean=True)
    left = VALUES[: max(len(VALUES) - gone, first)]
    assert values_of(again) == left
    more = [b"more-%d" % n for n in range(100)]
    for value in more:
        append(again, value, timestamp=NOW + 100)
    assert values_of(again) == [*left, *more]
    assert values_of(crash(again)) == [*left, *more]
    after_stop = reopen(open_log(log.dir, SMALL))
    assert values_of(after_stop) == [*left, *more]
    assert after_stop.offset_for_timestamp(NOW + 100) == TimestampOffset(NOW + 100, len(left), EPOCH)


def test_a_fetch_past_damage_makes_the_indexes_anew_once(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log = reopen(log)
    segment = log.segments[1]
    positions = [position for position, _ in segment.headers()]
    indexed = all_entries(segment.offset_index)
    with segment.path.open("r+b") as file:
        file.seek(positions[2])
        file.write(bytes(61))
    first = segment.base_offset
    resumed = next(offset for offset, position in indexed if position > positions[2]) + first
    assert first + 2 < resumed < log.segments[2].base_offset
    caplog.clear()
    for _ in range(5):
        for offset in range(first + 2, resumed):
            with pytest.raises(KafkaError) as error:
                log.read(offset, 1000, log.log_end_offset)
            assert error.value.code == ErrorCode.CORRUPT_MESSAGE
    assert values_of(log, resumed) == VALUES[resumed:]
    assert len(caplog.messages) == 1
    assert "damaged" in caplog.messages[0]
    cut = log.read(first, positions[2] + 30, log.log_end_offset)
    assert (cut.first_offset, cut.next_offset) == (first, first + 2)
    assert values_of(log, log.segments[2].base_offset) == VALUES[log.segments[2].base_offset :]


def test_nobody_waits_while_the_indexes_of_another_segment_are_made_anew(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = reopen(log)
    log.segments[1].path.with_suffix(".index").write_bytes(b"odd")
    entered, go_on = threading.Event(), threading.Event()
    rebuild = LogSegment.rebuild_indexes

    def slowly(segment: LogSegment, reason: str) -> tuple[OffsetIndex, TimeIndex]:
        entered.set()
        assert go_on.wait(30)
        return rebuild(segment, reason)

    monkeypatch.setattr(LogSegment, "rebuild_indexes", slowly)
    searching = threading.Thread(target=lambda: log.offset_for_timestamp(NOW + log.segments[1].base_offset))
    searching.start()
    try:
        assert entered.wait(30)
        assert values_of(log, log.segments[2].base_offset) == VALUES[log.segments[2].base_offset :]
    finally:
        go_on.set()
        searching.join()


def test_lost_epochs_above_the_recovery_point_are_found_again(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    for i in range(12):
        log.append_as_leader(batch(b"x"), i // 3, NOW)
    log.close_handlers()
    (log.dir / "leader-epoch-checkpoint").unlink()
    again = open_log(log.dir, SMALL)
    assert again.epochs.latest == 3
    assert [again.epochs.epoch_for(offset) for offset in (0, 3, 6, 9)] == [0, 1, 2, 3]


@pytest.mark.parametrize("content", [None, b"", b"0\n1\nx y\n", b"0\n1\n3 9\n"])
@pytest.mark.parametrize("how", ["clean", "crash"])
def test_lost_epochs_below_the_recovery_point_are_found_again(
    tmp_path: Path, content: bytes | None, how: str
) -> None:
    """A power cut may empty the file, which is rewritten whole for every new epoch; followers would not be cut."""
    log = open_log(tmp_path, SMALL)
    for i in range(12):
        log.append_as_leader(batch(b"x"), i // 3, NOW)
    expected = log.epochs.entries
    log.flush(now_ms=NOW)
    log.close()
    file = log.dir / "leader-epoch-checkpoint"
    file.unlink() if content is None else file.write_bytes(content)
    for _ in range(2):
        log = open_log(log.dir, SMALL, recovery_point=12, clean=how == "clean")
        assert log.epochs.entries == expected
        log.close()
        assert LeaderEpochFileCache.load(log.dir).entries == expected, "and written"


def test_epochs_of_what_was_cut_off_are_not_trusted_after_a_power_cut(tmp_path: Path) -> None:
    """The file was written before the truncation, and what has taken its place since is older than it says."""
    log = open_log(tmp_path, SMALL)
    log.append_as_leader(batch(b"a"), 5, NOW)
    log.append_as_leader(batch(b"b"), 6, NOW)
    file = log.dir / "leader-epoch-checkpoint"
    stale = file.read_bytes()
    log.truncate_to(1, NOW)
    log.append_as_leader(batch(b"c"), 5, NOW)
    log.append_as_leader(batch(b"d"), 7, NOW)
    expected = log.epochs.entries
    assert expected == [(5, 0), (7, 2)]
    log.close_handlers()
    file.write_bytes(stale)
    again = open_log(log.dir, SMALL)
    assert again.epochs.entries == expected
    assert again.epochs.end_offset_for(6, 3) == (5, 2), "a follower with the records of epoch 6 is cut"


def test_epochs_beyond_the_end_are_forgotten(log: Log) -> None:
    log.assign_epoch_start(EPOCH + 1, 40)
    log.close_handlers()
    os.truncate(log.active_segment.path, log.active_segment.size_bytes - 1)
    assert open_log(log.dir, SMALL).epochs.latest == EPOCH


def test_a_batch_larger_than_what_is_read_at_once(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(max_message_bytes=4 << 20))
    big = os.urandom(3 << 20)
    append(log, b"before")
    append(log, big)
    append(log, b"after")
    assert values_of(crash(log)) == [b"before", big, b"after"]


def test_a_new_directory_is_an_empty_log(tmp_path: Path) -> None:
    log = open_log(tmp_path, log_start_offset=7)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (7, 7, 7)
    again = reopen(log)
    assert append(again, b"x") == 7


def test_an_empty_active_segment_after_a_clean_stop(log: Log) -> None:
    log.roll(NOW)
    again = reopen(log)
    assert again.log_end_offset == 40
    assert values_of(again) == VALUES


def test_the_checksum_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283
