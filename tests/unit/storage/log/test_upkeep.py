"""Rolling, flushing, retention, truncation, renaming, closing."""

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.unit.storage.log_support import (
    EPOCH,
    NOW,
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
from ottla.records.control import end_txn_marker
from ottla.records.record import build_batch
from ottla.storage.config import MAX_LONG, LogConfig
from ottla.storage.errors import StorageError
from ottla.storage.log import leader_epochs
from ottla.storage.log import log as log_module
from ottla.storage.log.log import Log, Truncation
from ottla.storage.segment.indexes import MAX_RELATIVE_OFFSET
from ottla.storage.segment.segment import LogSegment
from ottla.storage.validator import AppendOrigin

SMALL = LogConfig(segment_bytes=300, index_interval_bytes=100)


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Several segments of a few batches each."""
    made = open_log(tmp_path, SMALL)
    for i in range(20):
        append(made, b"%02d" % i, timestamp=NOW + i)
    assert len(made.segments) > 4
    return made


# -- rolling


def test_a_segment_rolls_before_it_would_outgrow_its_size(tmp_path: Path) -> None:
    size = len(batch(b"x" * 10))
    log = open_log(tmp_path, LogConfig(segment_bytes=3 * size))
    for _ in range(7):
        append(log, b"x" * 10)
    assert bases(log) == [0, 3, 6]
    assert [segment.size_bytes for segment in log.segments] == [3 * size, 3 * size, size]


def test_a_segment_rolls_when_records_are_segment_ms_apart(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_ms=1000))
    for later in (0, 1000, 1001, 2001, 2002, 2003):
        append(log, timestamp=NOW + later)
    assert bases(log) == [0, 2, 4]


def test_without_timestamps_a_segment_rolls_by_the_clock(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_ms=1000))
    for later in (0, 1000, 1001, 1002):
        append(log, timestamp=-1, now_ms=NOW + later)
    assert bases(log) == [0, 2]


def test_a_reopened_segment_keeps_its_age(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_ms=1000))
    append(log, timestamp=NOW)
    again = reopen(log)
    append(again, timestamp=NOW + 1001)
    assert bases(again) == [0, 1]


def test_a_changed_segment_ms_counts_at_once(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, timestamp=NOW)
    append(log, timestamp=NOW + 500)
    log.update_config(LogConfig(segment_ms=100))
    append(log, timestamp=NOW + 600)
    assert bases(log) == [0, 2]


def test_a_segment_rolls_when_an_index_is_full(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_index_bytes=24, index_interval_bytes=10))
    for i in range(10):
        append(log, timestamp=NOW + i)
    # The second entry that a time index of two slots could take is kept for the roll.
    assert len(log.segments) > 3
    for segment in log.segments:
        assert segment.offset_index.entries <= 3
        assert segment.time_index.entries <= 2
    assert len(records_of(log)) == 10


def test_a_segment_rolls_when_offsets_are_too_far_apart(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for offset in (0, MAX_RELATIVE_OFFSET, MAX_RELATIVE_OFFSET + 1):
        log.append_as_follower(bytes(build_batch([(NOW, b"k", b"v", ())], base_offset=offset)), NOW)
    assert bases(log) == [0, MAX_RELATIVE_OFFSET + 1]


def test_a_roll_is_told_and_an_empty_segment_is_not_rolled(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    told = []
    log.on_roll = lambda _, offset: told.append(offset)
    log.roll(NOW)
    append(log)
    log.roll(NOW)
    log.roll(NOW)
    assert told == [1]
    assert bases(log) == [0, 1]


def test_a_rolled_segment_is_finished_on_disk(log: Log) -> None:
    for segment in log.segments[:-1]:
        stem = segment.path.with_suffix("")
        assert stem.with_suffix(".timeindex").stat().st_size % 12 == 0
        assert segment.time_index.last_entry() == (
            segment.max_timestamp_so_far,
            segment.offset_of_max_timestamp_so_far,
        )


# -- flushing


def test_a_flush_moves_the_recovery_point(log: Log) -> None:
    assert log.recovery_point == 0
    assert log.unflushed_messages == 20
    log.flush(bases(log)[2], now_ms=NOW + 5)
    assert log.recovery_point == bases(log)[2]
    assert log.last_flush_ms == NOW + 5
    log.flush(now_ms=NOW)
    assert log.unflushed_messages == 0


def test_flush_is_due_by_messages_and_by_time(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(flush_messages=3, flush_ms=1000))
    assert not log.flush_needed(NOW + 5000)
    append(log, b"a", b"b")
    assert not log.flush_needed(NOW + 999)
    assert log.flush_needed(NOW + 1000)
    append(log, b"c")
    assert log.flush_needed(NOW)
    log.flush(now_ms=NOW)
    assert not log.flush_needed(NOW)


def test_a_failed_fsync_takes_the_log_offline(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    failures: list[Exception] = []
    log.on_failure = lambda _, error: failures.append(error)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError):
        log.flush(now_ms=NOW)
    assert log.failed
    assert log.recovery_point == 0
    assert len(failures) == 1


def test_a_flush_in_a_thread_goes_with_appends_and_deletions(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=2000, index_interval_bytes=10, retention_bytes=4000))
    errors: list[BaseException] = []
    stop = threading.Event()

    def flush_on() -> None:
        try:
            while not stop.is_set():
                log.flush(now_ms=NOW)
        except BaseException as error:  # noqa: BLE001  # whatever it is, the test fails with it
            errors.append(error)

    thread = threading.Thread(target=flush_on)
    thread.start()
    for i in range(600):
        append(log, b"%d" % i)
        log.delete_files(log.delete_old_segments(NOW))
    stop.set()
    thread.join()
    assert errors == []
    log.flush(now_ms=NOW)
    assert log.recovery_point == log.log_end_offset == 600
    again = reopen(log)
    assert values_of(again) == [b"%d" % i for i in range(again.log_start_offset, 600)]


# -- retention


def test_segments_below_the_log_start_go(log: Log) -> None:
    first, second, third = bases(log)[:3]
    log.maybe_increment_log_start_offset(third + 1, "DeleteRecords")
    gone = log.delete_old_segments(NOW)
    assert [segment.base_offset for segment in gone] == [first, second]
    assert bases(log)[0] == third
    assert log.log_start_offset == third + 1
    assert len(names(log.dir, ".deleted")) >= 6
    log.delete_files(gone)
    assert names(log.dir, ".deleted") == []


def test_the_log_start_does_not_pass_the_high_watermark(log: Log) -> None:
    with pytest.raises(KafkaError) as caught:
        log.maybe_increment_log_start_offset(21, "DeleteRecords")
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert not log.maybe_increment_log_start_offset(0, "DeleteRecords")


def test_retention_by_size_keeps_at_least_that_much(log: Log) -> None:
    log.update_config(LogConfig(segment_bytes=300, retention_bytes=700))
    before = log.size_bytes
    gone = log.delete_old_segments(NOW)
    assert gone
    assert log.size_bytes >= 700
    assert log.size_bytes - log.segments[0].size_bytes < 700
    assert log.size_bytes + sum(segment.size_bytes for segment in gone) == before
    assert log.log_start_offset == bases(log)[0]


def test_retention_by_age_may_leave_an_empty_log(log: Log) -> None:
    log.update_config(LogConfig(segment_bytes=300, retention_ms=1000))
    assert log.delete_old_segments(NOW + 1000) == []
    second = bases(log)[1]
    gone = log.delete_old_segments(NOW + 1000 + second)
    assert [segment.base_offset for segment in gone] == [0]
    log.delete_old_segments(NOW + 5000)
    assert bases(log) == [20]
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (20, 20, 0)
    assert log.delete_old_segments(NOW + 50_000) == []
    assert append(log) == 20


def test_what_is_out_of_the_log_is_unlinked_also_if_the_rest_has_no_descriptor(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.maybe_increment_log_start_offset(bases(log)[2], "a test")
    log.update_config(LogConfig(retention_bytes=1))
    open_all, first = log_module._open_all, log.segments[:2]

    def open_once(segments: Sequence[LogSegment]) -> None:
        if segments != first:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        open_all(segments)

    monkeypatch.setattr(log_module, "_open_all", open_once)
    assert log.delete_old_segments(NOW) == first
    monkeypatch.undo()
    log.delete_files([*first, *log.delete_old_segments(NOW)])
    assert not names(log.dir, ".deleted")
    assert not log.failed


def test_nothing_above_the_high_watermark_is_deleted(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=300, retention_ms=1))
    for _ in range(20):
        log.append_as_leader(batch(), EPOCH, NOW)
    assert log.delete_old_segments(NOW + 1000) == []
    log.update_high_watermark(bases(log)[2])
    log.delete_old_segments(NOW + 1000)
    assert log.log_start_offset == log.high_watermark


def test_a_compacted_topic_keeps_what_is_old(log: Log) -> None:
    log.update_config(LogConfig(cleanup_policy=frozenset({"compact"}), retention_ms=1, retention_bytes=1))
    assert log.delete_old_segments(NOW + MAX_LONG) == []


# -- truncation


@pytest.mark.parametrize("offset", [0, 1, 7, 12, 19])
def test_truncation_and_going_on(log: Log, offset: int) -> None:
    log.flush(now_ms=NOW)
    assert log.truncate_to(offset, NOW)
    assert (log.log_end_offset, log.high_watermark) == (offset, offset)
    assert log.recovery_point == offset
    assert values_of(log) == [b"%02d" % i for i in range(offset)]
    append(log, b"new")
    expected = [*[b"%02d" % i for i in range(offset)], b"new"]
    assert values_of(log) == expected
    assert values_of(crash(log)) == expected


def test_truncation_beyond_the_end_does_nothing(log: Log) -> None:
    assert not log.truncate_to(20, NOW)
    assert not log.truncate_to(99, NOW)
    assert log.log_end_offset == 20


@pytest.mark.parametrize("action", ["cut", "cut nothing", "cut all", "start later"])
def test_a_disk_that_fails_while_the_ends_of_a_log_move_takes_its_directory_offline(
    log: Log, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    heard: list[Exception] = []
    log.on_failure = lambda _, error: heard.append(error)
    log.epochs.begin(EPOCH + 1, log.log_end_offset)  # nothing was written in it

    def broken(*args: object, **options: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(leader_epochs, "replace_small", broken)
    actions = {
        "cut": lambda: log.truncate_to(7, NOW),
        "cut nothing": lambda: log.truncate_to(20, NOW),
        "cut all": lambda: log.truncate_fully_and_start_at(100, NOW),
        "start later": lambda: log.maybe_increment_log_start_offset(7, "test"),
    }
    with pytest.raises(StorageError):
        actions[action]()
    assert log.failed
    assert len(heard) == 1


def test_what_is_left_and_cannot_be_read_is_not_gone_on_with(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*args: object, **options: object) -> None:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the checksum does not match")

    monkeypatch.setattr(log_module, "rebuild_producer_state", unreadable)
    with pytest.raises(StorageError):
        log.truncate_to(7, NOW)
    assert log.failed


def test_truncation_rebuilds_producers_and_epochs(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    for i in range(20):
        data = batch(b"v", producer_id=1, sequence=i)
        log.append_as_leader(data, i // 5, NOW)
    assert log.epochs.latest == 3
    log.truncate_to(8, NOW)
    assert log.epochs.latest == 1
    assert log.producers.active_producers()[0].last_sequence == 7
    assert log.epochs.end_offset_for(0, log.log_end_offset) == (0, 5)
    assert log.epochs.end_offset_for(1, log.log_end_offset) == (1, 8)
    log.append_as_leader(batch(b"v", producer_id=1, sequence=8), 9, NOW)
    assert log.epochs.epoch_for(8) == 9


def of_many_producers(dir: Path) -> Log:
    """Producers with and without transactions, some of them ended, over several segments with their snapshots."""
    log = open_log(dir, LogConfig(segment_bytes=600, index_interval_bytes=100))
    rng = random.Random(7)
    sequences, open_txns = dict.fromkeys(range(1, 6), 0), set()
    for _ in range(80):
        producer_id = rng.choice([-1, 1, 2, 3, 4, 5])
        if producer_id in open_txns and rng.random() < 0.5:
            open_txns.remove(producer_id)
            marker = end_txn_marker(
                producer_id=producer_id,
                producer_epoch=0,
                committed=rng.random() < 0.5,
                coordinator_epoch=1,
                timestamp_ms=NOW,
            )
            log.append_as_leader(marker, EPOCH, NOW, AppendOrigin.COORDINATOR)
            continue
        transactional = producer_id in (4, 5)
        if transactional:
            open_txns.add(producer_id)
        made = batch(
            b"v", producer_id=producer_id, sequence=sequences.get(producer_id, 0), transactional=transactional
        )
        log.append_as_leader(made, EPOCH, NOW)
        if producer_id > 0:
            sequences[producer_id] += 1
    assert len(log.segments) > 8
    log.update_high_watermark(30)
    log.maybe_increment_log_start_offset(12, "test")
    return log


def producers_of(log: Log) -> object:
    state = log.producers
    return sorted(state.active_producers()), state.ongoing, state.first_unstable_offset, state.map_end_offset


@pytest.mark.parametrize("offset", range(13, 80, 6))
def test_a_truncation_that_was_prepared_leaves_what_any_other_leaves(tmp_path: Path, offset: int) -> None:
    log, twin = of_many_producers(tmp_path / "one"), of_many_producers(tmp_path / "two")
    before = producers_of(log), names(log.dir, ".snapshot")
    truncation = Truncation(log, offset, NOW)
    truncation.prepare()
    assert (producers_of(log), names(log.dir, ".snapshot")) == before, "the log is served meanwhile"
    assert truncation.is_of(log, offset)
    log.truncate_to(offset, NOW, truncation)
    twin.truncate_to(offset, NOW)
    assert producers_of(log) == producers_of(twin)
    assert (log.last_stable_offset, log.log_end_offset) == (twin.last_stable_offset, twin.log_end_offset)
    assert producers_of(crash(log)) == producers_of(crash(twin))


@pytest.mark.parametrize("meanwhile", ["cut", "starts later", "elsewhere", "not read"])
def test_what_was_prepared_for_another_cut_is_not_used(tmp_path: Path, meanwhile: str) -> None:
    log, twin = of_many_producers(tmp_path / "one"), of_many_producers(tmp_path / "two")
    truncation = Truncation(log, 60, NOW)
    if meanwhile != "not read":
        truncation.prepare()
    offset = 50 if meanwhile == "elsewhere" else 60
    for each in (log, twin):
        if meanwhile == "cut":
            each.truncate_to(55, NOW)
            append(each, *[b"n"] * 9)
        elif meanwhile == "starts later":
            each.maybe_increment_log_start_offset(29, "test")
    assert not truncation.is_of(log, offset)
    log.truncate_to(offset, NOW, truncation)
    twin.truncate_to(offset, NOW)
    assert producers_of(log) == producers_of(twin)


def test_how_much_a_truncation_has_to_read(log: Log) -> None:
    """All since the last snapshot: that of the segment, or of an earlier stop."""
    log.producers.snapshots = [bases(log)[2]]
    sizes = [segment.size_bytes for segment in log.segments]
    assert log.replayed_bytes(20) == sum(sizes[2:])
    assert log.replayed_bytes(bases(log)[3]) == sizes[2]
    log.producers.snapshots = []
    assert log.replayed_bytes(20) == sum(sizes)


def test_truncation_below_the_first_segment_starts_anew(log: Log) -> None:
    log.maybe_increment_log_start_offset(bases(log)[2], "test")
    log.delete_files(log.delete_old_segments(NOW))
    assert log.truncate_to(1, NOW)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (1, 1, 1)
    assert append(log, b"anew") == 1


def test_truncating_fully(log: Log) -> None:
    log.truncate_fully_and_start_at(100, NOW)
    assert (log.log_start_offset, log.log_end_offset, bases(log)) == (100, 100, [100])
    assert log.epochs.latest == -1
    assert append(log, b"x") == 100
    assert names(log.dir, ".log") == ["00000000000000000100.log"]
    assert values_of(crash(log)) == [b"x"]


def test_a_flush_that_a_truncation_overtakes_does_not_move_the_recovery_point(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = LogSegment.flush

    def truncate_meanwhile(segment: LogSegment) -> None:
        flush(segment)
        if log.log_end_offset == 20:
            log.truncate_to(3, NOW)
            append(log, b"not on the disk")

    monkeypatch.setattr(LogSegment, "flush", truncate_meanwhile)
    log.flush(now_ms=NOW)
    assert log.recovery_point <= 3


# -- directory


def test_a_clean_stop_leaves_what_kafka_leaves(log: Log) -> None:
    log.flush(now_ms=NOW)
    log.close()
    for segment in log.segments:
        stem = segment.path.with_suffix("")
        assert stem.with_suffix(".index").stat().st_size % 8 == 0
        times = stem.with_suffix(".timeindex").read_bytes()
        assert int.from_bytes(times[-12:-4], "big") == segment.max_timestamp_so_far
    assert "leader-epoch-checkpoint" in names(log.dir)
    assert names(log.dir, "00000000000000000020.snapshot")


def test_a_clean_start_looks_at_nothing_but_the_end_of_the_log(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.flush(now_ms=NOW)
    log.close()
    opened = []
    original = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: opened.append(str(path)) or original(path, *rest))
    again = open_log(log.dir, SMALL, recovery_point=20, clean=True)
    assert again.log_end_offset == 20
    small = ("leader-epoch-checkpoint", "partition.metadata", ".snapshot")
    assert [path for path in opened if not path.endswith(small)] == [str(log.active_segment.path)]
    monkeypatch.undo()
    assert all(segment._file is None for segment in again.segments)
    assert values_of(again) == [b"%02d" % i for i in range(20)]


def test_a_log_is_renamed_for_deletion_and_deleted(log: Log) -> None:
    old = log.dir
    piece = log.read(0, 1000, 20)
    new = log.rename_to_delete()
    assert not old.exists()
    assert new.name.startswith("topic-0.")
    assert new.name.endswith("-delete")
    append(log, b"still")
    log.flush(now_ms=NOW)
    log.delete()
    assert not new.exists()
    assert piece.read()


@pytest.mark.parametrize(
    "work",
    [
        lambda log: log.flush(now_ms=NOW),
        lambda log: log.read(0, 1, 20),
        lambda log: log.offset_for_timestamp(NOW),
    ],
    ids=["flush", "read", "search"],
)
def test_what_comes_after_the_deletion_of_a_log_is_no_failure_of_the_disk(
    log: Log, work: Callable[[Log], object]
) -> None:
    """Work for a thread that has its turn when the files are gone, as with file.delete.delay.ms=0."""
    failures: list[Exception] = []
    log.on_failure = lambda _, error: failures.append(error)
    log.rename_to_delete()
    log.delete()
    with pytest.raises(KafkaError) as caught:
        work(log)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not failures


@pytest.mark.parametrize("by", ["retention", "hand"])
def test_what_goes_while_a_log_is_deleted_is_no_failure_of_the_disk(
    log: Log, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """A topic is deleted soon after retention: both wait for file.delete.delay.ms, or for the stop of the broker."""
    failures: list[Exception] = []
    log.on_failure = lambda _, error: failures.append(error)
    log.update_config(LogConfig(retention_bytes=1))
    retired = log.delete_old_segments(NOW)
    assert len(retired) > 2
    dir, scandir = log.rename_to_delete(), os.scandir

    def others_come(path: Any) -> Any:
        with scandir(path) as entries:
            found = list(entries)
        monkeypatch.setattr(os, "scandir", scandir)
        if by == "retention":
            log.delete_files(retired)
        else:
            shutil.rmtree(dir)
        return nullcontext(found)

    monkeypatch.setattr(os, "scandir", others_come)
    log.delete()
    assert not dir.exists()
    log.delete()
    assert not failures


def test_what_was_cut_off_is_unlinked_where_the_log_is_by_then(log: Log) -> None:
    """Retention passes a copy of the log, which begins anew and takes its place before file.delete.delay.ms is over."""
    cut: list[LogSegment] = []
    log.on_cut = lambda _, segments: cut.extend(segments)
    log.truncate_fully_and_start_at(100, NOW)
    log.rename_dir(log.dir.with_name("moved-0"))
    assert names(log.dir, ".deleted")
    log.delete_files(cut)
    assert not names(log.dir, ".deleted")


def test_segments_are_replaced_as_the_cleaner_does(log: Log) -> None:
    old = log.segments[:3]
    cleaned = LogSegment.create(log.dir, 0, SMALL, NOW, suffix=".cleaned")
    for segment in old[1:]:
        for _, view in segment.batches():
            cleaned.append(view.raw(), view.size_bytes, view.last_offset, view.max_timestamp)
    cleaned.finish_indexes()
    cleaned.flush()
    os.utime(cleaned.path, (NOW / 1000, NOW / 1000))
    gone = log.replace_segments([cleaned], old)
    assert gone == list(old)
    assert bases(log)[:2] == [0, log.segments[1].base_offset]
    assert log.segments[0].last_modified_ms == NOW
    log.delete_files(gone)
    assert not names(log.dir, ".deleted")
    assert not names(log.dir, ".swap")
    survivors = [b"%02d" % i for i in range(old[1].base_offset, 20)]
    assert values_of(log) == survivors
    assert values_of(reopen(log)) == survivors


def test_no_flush_moves_the_recovery_point_before_another_has_the_small_files_on_the_disk(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two flushes at once: the first waits for the disk with the small files, the second must not overtake it."""
    log.roll(NOW)
    append(log, b"more")
    on_disk: set[str] = set()
    waiting, go_on = threading.Event(), threading.Event()
    real = log_module.fsync_file

    def slowly(path: Path) -> None:
        if threading.current_thread() is first and not go_on.is_set():
            waiting.set()
            assert go_on.wait(30)
        real(path)
        on_disk.add(path.name)

    monkeypatch.setattr(log_module, "fsync_file", slowly)
    monkeypatch.setattr(leader_epochs, "fsync_file", slowly)
    small = {path.name for path in log._unsynced} | {leader_epochs.FILE_NAME}
    assert any(name.endswith(".snapshot") for name in small)
    first = threading.Thread(target=lambda: log.flush(now_ms=NOW))
    first.start()
    try:
        assert waiting.wait(30)
        log.flush(now_ms=NOW)
        assert log.recovery_point == log.log_end_offset
        assert small <= on_disk
    finally:
        go_on.set()
        first.join()
    assert not log._unsynced


def test_a_small_file_written_during_a_flush_waits_for_the_next(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.roll(NOW)
    (path,) = [path for path in log._unsynced if path.name.endswith(".snapshot")][-1:]
    real = log_module.fsync_file

    def written_again(synced: Path) -> None:
        real(synced)
        if synced == path:
            log._sync_later(path)

    monkeypatch.setattr(log_module, "fsync_file", written_again)
    log.flush(now_ms=NOW)
    assert set(log._unsynced) == {path}


# -- threads that read what is deleted


def _delete_under(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next look into the third segment finds that it has been deleted, and its files unlinked."""
    real, base, done = LogSegment.headers, log.segments[2].base_offset, list[int]()

    def headers(segment: LogSegment, *args: Any) -> Any:
        if segment.base_offset == base and not done:
            done.append(base)
            log.maybe_increment_log_start_offset(log.segments[4].base_offset, "test")
            log.delete_files(log.delete_old_segments(NOW))
        return real(segment, *args)

    monkeypatch.setattr(LogSegment, "headers", headers)


@pytest.mark.parametrize("what", ["time", "maximum"])
def test_a_search_whose_segment_is_deleted_meanwhile_looks_at_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """With a small file.delete.delay.ms the files may be gone before a thread opens them: the disk is well."""
    log = open_log(tmp_path, LogConfig(segment_bytes=150))
    newest = 4 if what == "maximum" else 20
    for n in range(12):
        append(log, b"%02d" % n, timestamp=NOW + min(n, newest) - (n > newest))
    log = reopen(log)
    log.update_high_watermark(log.log_end_offset)
    third = log.segments[2].base_offset
    _delete_under(log, monkeypatch)
    found = log.offset_for_timestamp(NOW + third) if what == "time" else log.offset_of_max_timestamp()
    assert not log.failed
    assert found is not None
    assert found.offset == log.log_start_offset > third


def test_a_read_whose_segment_is_deleted_meanwhile_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator's load reads in a thread."""
    log = open_log(tmp_path, LogConfig(segment_bytes=150))
    for n in range(12):
        append(log, b"%02d" % n)
    log = reopen(log)
    log.update_high_watermark(log.log_end_offset)
    third = log.segments[2].base_offset
    _delete_under(log, monkeypatch)
    with pytest.raises(KafkaError) as caught:
        log.read(third, 1, log.log_end_offset)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not log.failed


def test_a_flush_whose_segment_is_cut_meanwhile_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the rename of an index and the index knowing of it, a thread misses its file."""
    log = open_log(tmp_path, LogConfig(index_interval_bytes=1))
    for n in range(3):
        append(log, b"%02d" % n)
    raised: list[BaseException] = []

    def flush() -> None:
        try:
            log.flush(now_ms=NOW)
        except KafkaError as error:
            raised.append(error)

    thread, real = threading.Thread(target=flush), os.replace

    def replace(old: Path, new: Path) -> None:
        real(old, new)
        if str(new).endswith(".index.deleted"):
            thread.start()
            thread.join()

    monkeypatch.setattr(os, "replace", replace)
    log.truncate_fully_and_start_at(7, NOW)
    assert thread.ident, "otherwise nothing was tried"
    assert not raised
    assert not log.failed
    assert log.recovery_point <= 7
