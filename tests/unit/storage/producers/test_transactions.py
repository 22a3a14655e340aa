"""Transactions on one partition: the last stable offset, markers, and the aborted ones."""

from pathlib import Path

import pytest
from tests.unit.storage.log_support import EPOCH, NOW, append, batch, crash, open_log, reopen

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.control import end_txn_marker
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log
from ottla.storage.validator import AppendOrigin


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_log(tmp_path)


def write(log: Log, pid: int, sequence: int, epoch: int = 0, *, commit: bool = True) -> int:
    data = batch(b"t", producer_id=pid, producer_epoch=epoch, sequence=sequence, transactional=True)
    offset = log.append_as_leader(data, EPOCH, NOW).base_offset
    if commit:
        log.update_high_watermark(log.log_end_offset)
    return offset


def end(
    log: Log, pid: int, *, committed: bool, epoch: int = 0, coordinator_epoch: int = 1, version: int = 0
) -> int:
    marker = end_txn_marker(
        committed=committed,
        producer_id=pid,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=NOW,
    )
    result = log.append_as_leader(
        marker, EPOCH, NOW, origin=AppendOrigin.COORDINATOR, transaction_version=version
    )
    return result.base_offset


def test_the_last_stable_offset_waits_for_the_oldest_open_transaction(log: Log) -> None:
    append(log, b"plain")
    write(log, 1, 0)
    append(log, b"plain")
    write(log, 2, 0)
    assert log.last_stable_offset == 1
    assert min(log.producers.ongoing, default=None) == 1
    end(log, 1, committed=True)
    assert log.last_stable_offset == 1  # decided, but the marker is not replicated
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == 3
    end(log, 2, committed=False)
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == log.log_end_offset == 6
    assert min(log.producers.ongoing, default=None) is None


def test_the_last_stable_offset_is_never_above_the_high_watermark(log: Log) -> None:
    append(log, b"a")
    write(log, 1, 0, commit=False)
    assert log.last_stable_offset == log.high_watermark == 1


def test_aborted_transactions_are_indexed_and_found(log: Log) -> None:
    write(log, 1, 0)  # 0
    write(log, 2, 0)  # 1
    end(log, 2, committed=False)  # 2
    end(log, 1, committed=False)  # 3
    write(log, 3, 0)  # 4
    end(log, 3, committed=True)  # 5
    assert log.aborted_transactions(0, 10) == [(2, 1, 2, 0), (1, 0, 3, 4)]
    assert log.aborted_transactions(3, 10) == [(1, 0, 3, 4)]
    assert log.aborted_transactions(4, 10) == []
    assert log.aborted_transactions(0, 1) == [(1, 0, 3, 4)]


def test_aborted_transactions_across_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=200))
    for i in range(10):
        write(log, i, 0)
        append(log, b"x")
        end(log, i, committed=i % 2 == 0)
    assert len(log.segments) > 5
    log.update_high_watermark(log.log_end_offset)
    expected = [(i, 3 * i, 3 * i + 2, 3 * i + 3) for i in range(1, 10, 2)]
    assert log.aborted_transactions(0, log.log_end_offset) == expected
    assert crash(log).aborted_transactions(0, 30) == expected


def test_a_marker_without_an_open_transaction_changes_nothing_but_the_epochs(log: Log) -> None:
    end(log, 1, committed=False, coordinator_epoch=5)
    assert log.aborted_transactions(0, 10) == []
    assert log.producers.active_producers() == [(1, 0, -1, NOW, 5, -1)]


def test_a_plain_batch_inside_a_transaction_is_refused(log: Log) -> None:
    write(log, 1, 0)
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(batch(producer_id=1, sequence=1), EPOCH, NOW)
    assert caught.value.code is ErrorCode.INVALID_TXN_STATE
    assert log.producers.active_producers()[0].last_sequence == 0
    write(log, 1, 1)


def test_fenced_producers_and_coordinators(log: Log) -> None:
    write(log, 1, 0, epoch=3)
    with pytest.raises(KafkaError) as caught:
        end(log, 1, committed=True, epoch=2)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    end(log, 1, committed=True, epoch=3, coordinator_epoch=9)
    with pytest.raises(KafkaError) as caught:
        end(log, 1, committed=True, epoch=3, coordinator_epoch=8)
    assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    with pytest.raises(KafkaError) as caught:
        write(log, 1, 0, epoch=2)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_with_transactions_v2_a_markers_epoch_must_grow(log: Log) -> None:
    write(log, 1, 0, epoch=3)
    with pytest.raises(KafkaError) as caught:
        end(log, 1, committed=True, epoch=3, version=2)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    end(log, 1, committed=True, epoch=4, version=2)
    end(log, 1, committed=True, epoch=4, version=2)  # a coordinator's retry
    write(log, 1, 0, epoch=4)


def test_a_producer_goes_on_after_its_marker(log: Log) -> None:
    write(log, 1, 0)
    end(log, 1, committed=True)
    assert not log.producers.ongoing
    write(log, 1, 1)
    assert list(log.producers.ongoing.values()) == [1]
    assert log.producers.entries[1].epoch == 0


@pytest.mark.parametrize("restart", [reopen, crash])
def test_open_transactions_survive_a_restart(log: Log, restart: object) -> None:
    append(log, b"a")
    write(log, 1, 0)
    write(log, 2, 0)
    end(log, 2, committed=False)
    again: Log = restart(log)  # type: ignore[operator]
    again.update_high_watermark(again.log_end_offset)
    assert again.last_stable_offset == 1
    assert again.aborted_transactions(0, 10) == [(2, 2, 3, 1)]
    end(again, 1, committed=False)
    again.update_high_watermark(again.log_end_offset)
    assert again.last_stable_offset == again.log_end_offset
    assert again.aborted_transactions(0, 10) == [(2, 2, 3, 1), (1, 1, 4, 5)]


def test_an_open_transaction_does_not_expire(tmp_path: Path) -> None:
    log = open_log(tmp_path, producer_id_expiration_ms=10)
    write(log, 1, 0)
    log.producers.remove_expired(NOW + 1000)
    assert len(log.producers.entries) == 1


def test_the_log_start_is_the_least_unstable_offset(log: Log) -> None:
    write(log, 1, 0)
    append(log, b"x")
    append(log, b"x")
    log.maybe_increment_log_start_offset(2, "test")
    assert log.last_stable_offset == 2
