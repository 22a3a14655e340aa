"""Idempotence: sequences, epochs, duplicates, expiry, and what a restart still knows of them."""

from pathlib import Path

import pytest
from tests.unit.storage.log_support import EPOCH, NOW, append, batch, crash, names, open_log, reopen

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import MAX_SEQUENCE
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log
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
