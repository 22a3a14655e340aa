"""The broker dies at every step of a compaction; the next start finds the newest value of every key."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.storage.manager_support import NOW_MS, TP, append, records, small

from ottla.records.control import end_txn_marker
from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.cleaner.job import CleanedGroup
from ottla.storage.cleaner.manager import make_job, measure
from ottla.storage.config import CleanerConfig, LogConfig
from ottla.storage.files import CLEANED_SUFFIX, LOG_SUFFIX
from ottla.storage.log.log import Log
from ottla.storage.segment.segment import LogSegment
from ottla.storage.validator import AppendOrigin

KEYS = [b"key-%d" % i for i in range(6)]


class Crash(BaseException):
    """The process is gone: nothing catches this."""


def config(**changes: Any) -> LogConfig:
    return small(cleanup_policy=frozenset({"compact"}), index_interval_bytes=32, **changes)


def write_log(dir: Path) -> dict[bytes, bytes]:
    """Several segments with overwritten keys, an aborted transaction and a tombstone; what is newest of each key."""
    log = Log.open(dir, config(), now_ms=NOW_MS, topic_partition=TP)
    newest: dict[bytes, bytes] = {}
    for version in range(5):
        pairs = [(key, b"%s@%d" % (key, version)) for i, key in enumerate(KEYS) if (i + version) % 2]
        newest.update(pairs)
        for pair in pairs:
            append(log, pair)
        aborted = [(key, b"never") for key in KEYS]
        append(log, *aborted, producer_id=4, producer_epoch=0, base_sequence=version * 6, transactional=True)
        marker = end_txn_marker(
            committed=False, producer_id=4, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW_MS
        )
        log.append_as_leader(marker, 0, NOW_MS, origin=AppendOrigin.COORDINATOR)
        log.roll(NOW_MS)
    append(log, (KEYS[0], None))
    del newest[KEYS[0]]
    log.roll(NOW_MS)
    log.flush(now_ms=NOW_MS)
    log.close()
    return newest


def reopen(dir: Path, recovery_point: int = 0) -> Log:
    return Log.open(dir, config(), now_ms=NOW_MS, topic_partition=TP, recovery_point=recovery_point)


def clean(log: Log, segment_bytes: int) -> None:
    """What the cleaner manager does, in one thread."""
    log.update_high_watermark(log.log_end_offset)
    log.update_config(config(segment_bytes=segment_bytes))
    target = measure(TP, log, None, NOW_MS)
    assert target is not None

    def swap(group: CleanedGroup) -> None:
        old = [s for s in log.segments if s.base_offset in group.replaced]
        new = LogSegment(
            log.dir,
            group.base_offset,
            log.config,
            size_bytes=group.size_bytes,
            now_ms=NOW_MS,
            suffix=CLEANED_SUFFIX,
        )
        log.replace_segments([new], old)

    Cleaner(make_job(target, CleanerConfig(), NOW_MS), lambda: None).run(swap)


def check(log: Log, newest: dict[bytes, bytes], log_end_offset: int) -> None:
    assert log.log_end_offset == log_end_offset
    log.update_high_watermark(log.log_end_offset)
    aborted = log.aborted_transactions(0, log.log_end_offset)
    found: dict[bytes, bytes] = {}
    offsets = []
    for segment in log.segments:
        for _, batch in segment.batches():
            offsets.append(batch.last_offset)
            hidden = any(
                t.producer_id == batch.producer_id and t.first_offset <= batch.base_offset for t in aborted
            )
            if batch.is_control or (batch.is_transactional and hidden):
                continue
            one = [r for r in records(log) if batch.base_offset <= r.offset <= batch.last_offset]
            for record in one:
                assert record.key is not None
                if record.value is None:
                    found.pop(record.key, None)
                else:
                    found[record.key] = record.value
    assert offsets == sorted(set(offsets))
    assert found == newest
    left = {"".join(path.suffixes[1:]) for path in log.dir.iterdir()}
    assert left == {""}, "nothing half done is left"


@contextmanager
def dying_at(monkeypatch: pytest.MonkeyPatch, name: str, n: int) -> Iterator[None]:
    """The n-th call of an os function is not made: the process ends before it."""
    real = getattr(os, name)
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > n:
            raise Crash
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, call)
        yield


def crashed(monkeypatch: pytest.MonkeyPatch, log: Log, segment_bytes: int, call: str, n: int) -> bool:
    """Cleans until the n-th call; did the process end there?"""
    try:
        with dying_at(monkeypatch, call, n):
            clean(log, segment_bytes)
    except Crash:
        return True
    return False


@pytest.mark.parametrize("segment_bytes", [1 << 20, 1_200])
@pytest.mark.parametrize("call", ["replace", "pwrite", "utime", "fsync"])
def test_a_crash_at_any_step_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segment_bytes: int, call: str
) -> None:
    original = tmp_path / "original"
    newest = write_log(original)
    end = reopen(original).log_end_offset
    crashes = 0
    while True:
        dir = tmp_path / f"orders-{crashes}"
        shutil.copytree(original, dir)
        if not crashed(monkeypatch, reopen(dir), segment_bytes, call, crashes):
            break
        crashes += 1
        log = reopen(dir)
        check(log, newest, end)
        clean(log, segment_bytes)
        log.close()
        check(reopen(dir), newest, end)
        shutil.rmtree(dir)
    assert crashes > 0
    cleaned = reopen(tmp_path / f"orders-{crashes}")
    check(cleaned, newest, end)
    assert len(records(cleaned)) == len(newest) + 1, "each key once, and the tombstone"


def test_a_crash_after_the_swap_began_completes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dir = tmp_path / "orders-0"
    newest = write_log(dir)
    log = reopen(dir)
    end = log.log_end_offset
    before = len(records(log))
    renames_to_swap = len({LOG_SUFFIX, ".index", ".timeindex", ".txnindex"})
    assert crashed(monkeypatch, log, 1 << 20, "replace", renames_to_swap)
    assert list(dir.glob("*.swap")) != []
    log = reopen(dir)
    check(log, newest, end)
    assert len(records(log)) < before
