"""What a coordinator appends goes the short way or the long one, and the log is the same either way."""

from pathlib import Path

import pytest
from tests.unit.storage.log_support import EPOCH, NOW, batches_of, crash, open_log, values_of

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.record import build_batch
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log
from ottla.storage.validator import AppendOrigin, AppendResult

COORDINATOR = AppendOrigin.COORDINATOR


def own(*values: bytes, compression: int = 0, **options: object) -> bytearray:
    records = [(NOW + number, b"k", value, ()) for number, value in enumerate(values)]
    return build_batch(records, compression=compression, **options)  # type: ignore[arg-type]


def append(log: Log, data: bytearray, epoch: int = EPOCH) -> AppendResult:
    return log.append_as_leader(data, epoch, NOW, origin=COORDINATOR)


@pytest.mark.parametrize("compression", [0, 1, 2, 3, 4])
def test_batches_get_their_place_one_after_the_other(tmp_path: Path, compression: int) -> None:
    log = open_log(tmp_path)
    assert append(log, own(b"a", b"b", compression=compression))[:2] == (0, 1)
    assert append(log, own(b"c", compression=compression), epoch=EPOCH + 1)[:2] == (2, 2)
    assert values_of(log) == [b"a", b"b", b"c"]
    assert [view.partition_leader_epoch for view in batches_of(log)] == [EPOCH, EPOCH + 1]
    assert all(view.crc_ok() for view in batches_of(log))
    assert log.epochs.epoch_for(2) == EPOCH + 1


def test_the_log_is_found_again_after_a_crash(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(50):
        append(log, own(b"%d" % number))
    assert values_of(crash(log)) == [b"%d" % number for number in range(50)]


def test_segments_are_rolled(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes=1_000))
    for _ in range(20):
        append(log, own(b"x" * 100))
    assert len(log.segments) > 2
    assert len(values_of(log)) == 20


def test_with_the_brokers_timestamps_the_long_way_is_taken(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(message_timestamp_type="LogAppendTime"))
    assert append(log, own(b"a")).log_append_time_ms == NOW
    (view,) = batches_of(log)
    assert (view.timestamp_type, view.max_timestamp) == (1, NOW)


def test_several_batches_at_once_take_the_long_way(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert append(log, own(b"a") + own(b"b"))[:2] == (0, 1)
    assert values_of(log) == [b"a", b"b"]


def test_a_transactions_batch_is_remembered(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, own(b"plain"))
    append(log, own(b"t", producer_id=5, producer_epoch=0, transactional=True))
    assert min(log.producers.ongoing, default=None) == 1


def test_what_is_too_large_or_broken_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, LogConfig(max_message_bytes=500))
    with pytest.raises(KafkaError) as refused:
        append(log, own(b"x" * 600))
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    broken = own(b"a")
    broken[-1] ^= 1
    with pytest.raises(KafkaError) as refused:
        append(log, broken)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert log.log_end_offset == 0
