"""Whatever bytes stand in a partition's directory, opening it ends in a usable log, and batches in a KafkaError."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.log_support import EPOCH, NOW, append, batch, open_log, records_of

from ottla.model.errors import KafkaError
from ottla.storage.config import LogConfig
from ottla.storage.dirs.checkpoints import CheckpointError
from ottla.storage.log.leader_epochs import parse_epochs
from ottla.storage.log.log import Log
from ottla.storage.producers.entry import CorruptSnapshotError, decode_snapshot

CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=90)
VALUES = [b"%02d" % i for i in range(24)]
FLUSHED = 9

garbage = st.binary(max_size=200) | st.binary(min_size=8, max_size=96).map(lambda b: b * 9)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log as a killed broker leaves it."""
    log = open_log(tmp_path_factory.mktemp("fuzz"), CONFIG)
    for i, value in enumerate(VALUES):
        append(log, value, producer_id=i % 2, sequence=i // 2, timestamp=NOW + i)
        if i == FLUSHED:
            log.flush(now_ms=NOW)
    log.close()
    return log.dir


@contextmanager
def copy_of(template: Path) -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="ottla-fuzz-"))
    try:
        yield Path(shutil.copytree(template, root / template.name))
    finally:
        shutil.rmtree(root)


def check_usable(log: Log) -> None:
    """A prefix is left, and the log goes on from there."""
    end = log.log_end_offset
    assert end >= FLUSHED
    assert [record.value for record in records_of(log)] == VALUES[:end]
    assert append(log, b"on") == end
    log.flush(now_ms=NOW)
    log.close()
    again = open_log(log.dir, CONFIG, recovery_point=log.recovery_point, clean=True)
    assert [record.value for record in records_of(again)] == [*VALUES[:end], b"on"]
    again.close_handlers()


@settings(max_examples=60, deadline=None)
@given(data=st.data(), tail=garbage)
def test_garbage_in_the_tail(template: Path, data: st.DataObject, tail: bytes) -> None:
    with copy_of(template) as dir:
        path = sorted(dir.glob("*.log"))[-1]
        content = path.read_bytes()
        keep = data.draw(st.integers(0, len(content)))
        path.write_bytes(content[:keep] + tail)
        check_usable(open_log(dir, CONFIG, recovery_point=FLUSHED))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), clean=st.booleans())
def test_garbage_in_any_index(template: Path, data: st.DataObject, clean: bool) -> None:
    with copy_of(template) as dir:
        for path in [*dir.glob("*.index"), *dir.glob("*.timeindex")]:
            content = data.draw(st.none() | garbage)
            if content is not None:
                path.write_bytes(content)
        log = open_log(dir, CONFIG, recovery_point=len(VALUES), clean=clean)
        assert log.log_end_offset == len(VALUES)
        check_usable(log)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_garbage_in_snapshots_epochs_and_transaction_indexes(template: Path, data: st.DataObject) -> None:
    with copy_of(template) as dir:
        for path in [*dir.glob("*.snapshot"), dir / "leader-epoch-checkpoint"]:
            content = data.draw(st.none() | garbage)
            if content is not None:
                path.write_bytes(content)
        for path in dir.glob("*.log"):
            path.with_suffix(".txnindex").write_bytes(data.draw(garbage))
        log = open_log(dir, CONFIG, recovery_point=0)
        assert {
            producer.producer_id: producer.last_sequence for producer in log.producers.active_producers()
        } == {
            0: 11,
            1: 11,
        }
        check_usable(log)


@settings(max_examples=40, deadline=None)
@given(position=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_anywhere_in_the_log_gives_no_wrong_record(
    template: Path, position: int, bit: int
) -> None:
    with copy_of(template) as dir:
        path = sorted(dir.glob("*.log"))[-1]
        content = bytearray(path.read_bytes())
        content[position % len(content)] ^= 1 << bit
        path.write_bytes(content)
        log = open_log(dir, CONFIG, recovery_point=0)
        values = [record.value for record in records_of(log)]
        # No checksum covers base offset and epoch, so a record may have another offset, but never another value.
        assert values == VALUES[: len(values)]
        append(log, b"on")
        log.close_handlers()


@given(st.binary(max_size=300))
def test_small_files_are_parsed_or_refused(content: bytes) -> None:
    for parse, error in ((parse_epochs, CheckpointError), (decode_snapshot, CorruptSnapshotError)):
        with suppress(error):
            parse(content, "x")  # type: ignore[operator]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_damaged_batch_is_appended_whole_or_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = shared_log(tmp_path_factory)
    good = batch(b"one", b"two", compression=data.draw(st.sampled_from([0, 0, 0, 1, 4])))
    for _ in range(data.draw(st.integers(0, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    sent = good[: data.draw(st.integers(0, len(good)))] + data.draw(st.binary(max_size=60))
    end = log.log_end_offset
    try:
        result = log.append_as_leader(bytearray(sent), EPOCH, NOW)
    except KafkaError:
        assert log.log_end_offset == end
    else:
        assert result.base_offset == end
        assert log.log_end_offset == result.last_offset + 1
    assert not log.failed


_LOGS: list[Log] = []


def shared_log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    if not _LOGS:
        _LOGS.append(open_log(tmp_path_factory.mktemp("shared"), CONFIG))
    return _LOGS[0]
