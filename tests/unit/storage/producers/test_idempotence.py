"""Idempotence: sequences, epochs, duplicates, expiry, and what a restart still knows of them."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.storage.log_support import EPOCH, NOW, append, batch, crash, names, open_log, reopen

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import MAX_SEQUENCE
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log
from ottla.storage.segment.segment import LogSegment
from ottla.storage.validator import AppendResult

PID = 77


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_log(tmp_path)


def send(log: Log, sequence: int, count: int = 1, epoch: int = 0, pid: int = PID) -> AppendResult:
    values = [b"%d" % (sequence + i) for i in range(count)]
    data = batch(*values, producer_id=pid, producer_epoch=epoch, sequence=sequence)
    result = log.append_as_leader(data, EPOCH, NOW)
    log.update_high_watermark(log.log_end_offset)
    return result


def refusal(log: Log, sequence: int, epoch: int = 0) -> ErrorCode:
    end, size = log.log_end_offset, log.size_bytes
    with pytest.raises(KafkaError) as caught:
        send(log, sequence, epoch=epoch)
    assert (log.log_end_offset, log.size_bytes) == (end, size)
    return caught.value.code


def test_sequences_follow_on(log: Log) -> None:
    for sequence, count in [(0, 3), (3, 1), (4, 10), (14, 1)]:
        assert not send(log, sequence, count).duplicate
    (producer,) = log.producers.active_producers()
    assert producer == (PID, 0, 14, NOW, -1, -1)


def test_a_gap_and_a_step_back_are_refused(log: Log) -> None:
    send(log, 0, 3)
    for sequence in (4, 2, 100):
        assert refusal(log, sequence) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 3).base_offset == 3


def test_an_unknown_producer_may_begin_anywhere(log: Log) -> None:
    assert send(log, 41).base_offset == 0


@pytest.mark.parametrize("back", range(1, 6))
def test_the_last_five_batches_are_known_again(log: Log, back: int) -> None:
    sent = [send(log, 2 * i, 2) for i in range(8)]
    again = send(log, 2 * (8 - back), 2)
    original = sent[8 - back]
    assert again.duplicate
    assert again.size_bytes == 0
    assert (again.base_offset, again.last_offset) == (original.base_offset, original.last_offset)
    assert again.log_append_time_ms == NOW
    assert log.log_end_offset == 16


def test_an_older_batch_is_not_known_again(log: Log) -> None:
    for i in range(6):
        send(log, i)
    assert refusal(log, 0) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 1).duplicate


def test_half_of_a_known_batch_is_no_duplicate(log: Log) -> None:
    send(log, 0, 4)
    assert refusal(log, 0) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap(log: Log) -> None:
    send(log, MAX_SEQUENCE - 1, 2)
    assert send(log, 0).base_offset == 2
    send(log, 1, 3)
    other = send(log, MAX_SEQUENCE - 1, 4, pid=5)
    assert log.producers.active_producers()[1].last_sequence == 1
    assert send(log, 2, pid=5).base_offset == other.last_offset + 1
    assert send(log, MAX_SEQUENCE - 1, 4, pid=5).duplicate


def test_a_new_epoch_begins_at_zero(log: Log) -> None:
    send(log, 0)
    send(log, 1)
    assert refusal(log, 2, epoch=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not send(log, 0, epoch=1).duplicate
    assert refusal(log, 2, epoch=0) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_producers_do_not_disturb_each_other(log: Log) -> None:
    for sequence in range(20):
        for pid in range(10):
            send(log, sequence, pid=pid)
    assert len(log.producers.entries) == 10
    assert log.producers.last_records()[3] == (193, 0)


def test_silent_producers_expire(tmp_path: Path) -> None:
    log = open_log(tmp_path, producer_id_expiration_ms=1000)
    send(log, 0)
    log.producers.remove_expired(NOW + 999)
    assert len(log.producers.entries) == 1
    log.producers.remove_expired(NOW + 1000)
    assert len(log.producers.entries) == 0
    assert send(log, 17).base_offset == 1


def test_a_clean_restart_knows_the_last_batch(log: Log) -> None:
    for i in range(6):
        send(log, i)
    again = reopen(log)
    assert again.producers.active_producers() == log.producers.active_producers()
    assert send(again, 5).duplicate
    assert not send(again, 6).duplicate


OTHER = 5


def interleaved(log: Log, count: int) -> None:
    """Two producers, with markers of a third and what has no producer between them."""
    for i in range(count):
        send(log, i)
        append(log, b"plain")
        send(log, 2 * i, 2, pid=OTHER)


@pytest.mark.parametrize("leave", [reopen, crash])
@pytest.mark.parametrize("config", [LogConfig(), LogConfig(segment_bytes=300, index_interval_bytes=1)])
def test_the_last_five_batches_are_known_after_a_restart(
    tmp_path: Path, config: LogConfig, leave: Callable[[Log], Log]
) -> None:
    """A snapshot has the last one only; what was on its way with it is found in the log."""
    log = open_log(tmp_path, config)
    interleaved(log, 20)
    offsets = {i: 4 * i for i in range(20)}
    again = leave(log)
    assert again.producers.active_producers() == log.producers.active_producers()
    for i in range(15, 20):
        found = send(again, i)
        assert found.duplicate
        assert found.base_offset == offsets[i]
        found = send(again, 2 * i, 2, pid=OTHER)
        assert found.duplicate
        assert (found.base_offset, found.last_offset) == (offsets[i] + 2, offsets[i] + 3)
    assert refusal(again, 14) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(again, 21) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert again.log_end_offset == log.log_end_offset
    assert not send(again, 20).duplicate
    assert not send(again, 40, 2, pid=OTHER).duplicate


def test_batches_of_an_older_epoch_are_not_known_after_a_restart(log: Log) -> None:
    for i in range(3):
        send(log, i)
    for i in range(2):
        send(log, i, epoch=1)
    again = reopen(log)
    assert send(again, 0, epoch=1).base_offset == 3
    assert refusal(again, 3, epoch=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [batch.last_offset for batch in again.producers.entries[PID].batches] == [3, 4]


def test_a_gap_after_a_restart_is_a_gap_and_the_log_is_looked_through_once(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(3):
        send(log, i)
    again = reopen(log)
    looked = []
    real = LogSegment.headers_before
    monkeypatch.setattr(
        LogSegment, "headers_before", lambda self, offset: looked.append(offset) or real(self, offset)
    )
    for _ in range(3):
        assert refusal(again, 7) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(looked) == 1
    assert send(again, 0).duplicate
    assert send(again, 3).base_offset == 3


def test_who_goes_on_after_a_restart_has_nothing_looked_up(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        send(log, i)
    again = reopen(log)
    monkeypatch.delattr(LogSegment, "headers_before")
    assert send(again, 3).base_offset == 3


def test_a_log_that_cannot_be_read_back_fails(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        send(log, i)
    again = reopen(log)

    def fails(self: LogSegment, offset: int) -> Iterator[object]:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(LogSegment, "headers_before", fails)
    assert refusal(again, 1) is ErrorCode.KAFKA_STORAGE_ERROR
    assert again.failed


def test_what_is_damaged_ends_the_looking_back(log: Log) -> None:
    for i in range(4):
        send(log, i)
    again = reopen(log)
    segment = again.segments[0]
    starts = [position for position, _ in segment.headers()]
    with segment.path.open("r+b") as file:
        file.seek(starts[1] + 16)  # its magic
        file.write(b"\x07")
    assert refusal(again, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not again.failed
    assert send(again, 4).base_offset == 4


def test_so_much_of_a_log_is_looked_through_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.storage.log.log.RECALLED_BATCHES", 10)
    monkeypatch.setattr("ottla.storage.segment.segment.SCAN_BYTES", 100)
    log = open_log(tmp_path, LogConfig(index_interval_bytes=1))
    for i in range(4):
        send(log, i)
        for _ in range(20 if i == 1 else 1):
            append(log, b"plain")
    again = reopen(log)
    assert send(again, 2).duplicate
    assert refusal(again, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("config", [LogConfig(), LogConfig(segment_bytes=600)])
def test_a_crash_forgets_no_producer(tmp_path: Path, config: LogConfig) -> None:
    log = open_log(tmp_path, config)
    for i in range(30):
        send(log, i)
        send(log, i, pid=5)
    again = crash(log)
    assert again.producers.active_producers() == log.producers.active_producers()
    assert again.log_end_offset == 60
    assert send(again, 29, pid=5).duplicate
    assert send(again, 29).duplicate
    assert send(again, 30).base_offset == 60


def test_snapshots_are_taken_on_a_roll_and_at_a_clean_stop(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    send(log, 0)
    log.roll(NOW)
    assert names(log.dir, ".snapshot") == ["00000000000000000001.snapshot"]
    send(log, 1)
    log.close()
    assert names(log.dir, ".snapshot") == ["00000000000000000001.snapshot", "00000000000000000002.snapshot"]


def test_a_damaged_snapshot_is_replaced_by_an_older_one_and_the_log(log: Log) -> None:
    send(log, 0)
    log.roll(NOW)
    for i in range(1, 4):
        send(log, i)
    log.flush(now_ms=NOW)
    log.close()
    newest = log.dir / "00000000000000000004.snapshot"
    newest.write_bytes(newest.read_bytes()[:-1])
    again = open_log(log.dir, recovery_point=4, clean=True)
    assert again.producers.active_producers() == log.producers.active_producers()
    assert send(again, 4).base_offset == 4


def test_a_stray_snapshot_is_removed(log: Log) -> None:
    send(log, 0)
    log.roll(NOW)
    send(log, 1)
    log.flush(now_ms=NOW)
    log.close()
    good = names(log.dir, ".snapshot")
    for offset in (0, 1):
        (log.dir / f"{offset:020d}.snapshot").write_bytes((log.dir / good[0]).read_bytes())
    again = open_log(log.dir, recovery_point=2, clean=True)
    assert names(log.dir, ".snapshot") == good
    assert len(again.producers.entries) == 1


def test_a_clean_log_without_any_snapshot_gets_empty_ones(log: Log) -> None:
    append(log, b"a")
    log.flush(now_ms=NOW)
    log.close()
    for name in names(log.dir, ".snapshot"):
        (log.dir / name).unlink()
    again = open_log(log.dir, recovery_point=1, clean=True)
    assert again.log_end_offset == 1
    assert names(log.dir, ".snapshot") == ["00000000000000000001.snapshot"]


def test_deleted_segments_take_their_snapshots_along(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for i in range(3):
        send(log, i)
        log.roll(NOW)
    assert len(names(log.dir, ".snapshot")) == 3
    log.maybe_increment_log_start_offset(2, "test")
    gone = log.delete_old_segments(NOW)
    assert names(log.dir, ".snapshot") == ["00000000000000000002.snapshot", "00000000000000000003.snapshot"]
    log.delete_files(gone)
    assert names(log.dir, ".deleted") == []
    assert len(log.producers.entries) == 1
