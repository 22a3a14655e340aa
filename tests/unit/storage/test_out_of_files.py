"""No descriptor is left: whatever was tried fails, may be tried again, and neither the log nor its directory suffer."""

import errno
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.storage.log_support import NOW, append, batch, crash, open_log, reopen, values_of
from tests.unit.storage.manager_support import TOPIC_ID, TP, formatted, run, running
from tests.unit.storage.producers.test_transactions import end, write

from ottla.model.errors import ErrorCode, KafkaError
from ottla.storage.config import LogConfig
from ottla.storage.errors import OutOfFilesError
from ottla.storage.files import OpenFiles, open_files
from ottla.storage.log.log import Log

SMALL = LogConfig(segment_bytes=300, index_interval_bytes=100, retention_bytes=900)


@contextmanager
def failing_opens(monkeypatch: pytest.MonkeyPatch, which: Callable[[int], bool]) -> Iterator[list[int]]:
    """os.open fails when its number is one of these; how often it was called."""
    count = [0]
    real_open = os.open

    def limited(*args: Any, **options: Any) -> int:
        count[0] += 1
        if which(count[0]):
            raise OSError(errno.EMFILE, "Too many open files")
        return real_open(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", limited)
        yield count


def insist(action: Callable[[], Any]) -> None:
    """Try until it works; whoever finds no descriptor finds one the next time."""
    for _ in range(10):
        try:
            action()
        except OutOfFilesError:
            continue
        return
    raise AssertionError("it never worked")


def work(log: Log) -> None:
    """A life of a log: appends, rolls, flushes, searches and retention."""
    for n in range(12):
        insist(lambda n=n: append(log, b"%02d" % n, timestamp=NOW + n))
    insist(lambda: log.flush(now_ms=NOW))
    insist(lambda: log.offset_for_timestamp(NOW + 3))
    insist(lambda: log.delete_old_segments(NOW))
    for n in range(12, 16):
        insist(lambda n=n: append(log, b"%02d" % n, timestamp=NOW + n))
    insist(lambda: log.roll(NOW))


def test_every_single_open_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = open_log(tmp_path / "expected", SMALL)
    work(expected)
    number = opens = 1
    while number <= opens:
        log = open_log(tmp_path / str(number), SMALL)
        with failing_opens(monkeypatch, lambda n, number=number: n == number) as count:
            work(log)
        opens = max(opens, count[0])
        assert not log.failed
        assert values_of(log) == values_of(expected)
        assert values_of(crash(log) if number % 2 else reopen(log)) == values_of(expected)
        number += 1
    assert opens > 20  # otherwise nothing was tried


def test_a_directory_stays_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with running(formatted(tmp_path / "a")) as manager:
            with failing_opens(monkeypatch, lambda n: True):
                with pytest.raises(KafkaError):
                    manager.get_or_create(TP, TOPIC_ID, is_new=True)
                await manager.background.checkpoint_recovery_points()
            assert not manager.dirs.offline
            log = manager.get_or_create(TP, TOPIC_ID, is_new=True)
            with failing_opens(monkeypatch, lambda n: True), pytest.raises(KafkaError):
                append(log)
            assert not manager.dirs.offline
            assert append(log) == 0

    run(test)


@pytest.mark.parametrize("what", ["flush", "search"])
def test_a_log_that_is_renamed_under_a_thread_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Between the rename and the log knowing of it, a thread misses its files."""
    log = open_log(tmp_path, SMALL)
    for n in range(8):
        append(log, b"%02d" % n, timestamp=NOW + n)
    log = reopen(log)
    log.recovery_point = 0
    raised: list[BaseException] = []

    def use() -> None:
        try:
            log.flush(now_ms=NOW) if what == "flush" else log.offset_for_timestamp(NOW + 6)
        except KafkaError as error:
            raised.append(error)

    thread = threading.Thread(target=use)
    real_replace = os.replace

    def replace(old: Path, new: Path) -> None:
        real_replace(old, new)
        if not thread.ident:
            thread.start()
            thread.join(0.2)  # it has to wait for us, or fails now

    monkeypatch.setattr(os, "replace", replace)
    log.rename_to_delete()
    thread.join()
    assert not log.failed
    assert [error.code for error in raised] == (
        [] if what == "flush" else [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    )


# -- a real limit


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """The process may open so many files, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = max(int(name) for name in os.listdir("/dev/fd"))
    taken: list[int] = []
    while not taken or taken[-1] < top:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1 + count, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


def filled(dir: Path) -> Log:
    """A log of several segments and epochs, with an open transaction, of which no file is open."""
    log = open_log(dir, LogConfig(segment_bytes=400, index_interval_bytes=1))
    for n in range(30):
        log.append_as_leader(batch(b"%02d" % n * 20), n // 5, NOW + n)
    write(log, 77, 0)
    log.update_high_watermark(log.log_end_offset)
    for segment in log.segments:
        segment.close_handlers()
    return log


CHANGES: dict[str, Callable[[Log], object]] = {
    "a truncation": lambda log: log.truncate_to(12, NOW),
    "one that reads much": lambda log: log.truncate_to(2, NOW),
    "of epochs alone": lambda log: log.truncate_to(log.log_end_offset, NOW),
    "a new beginning": lambda log: log.truncate_fully_and_start_at(100, NOW),
    "deleted records": lambda log: log.maybe_increment_log_start_offset(17, "test"),
    "retention": lambda log: (
        log.maybe_increment_log_start_offset(17, "test"),
        log.delete_old_segments(NOW),
    ),
    "an aborted transaction": lambda log: end(log, 77, committed=False),
    "another epoch": lambda log: log.append_as_leader(batch(b"x" * 20), 50, NOW),
    "a roll": lambda log: log.roll(NOW),
}


@pytest.mark.parametrize("what", CHANGES)
def test_however_few_descriptors_are_left_nothing_is_begun_and_not_finished(
    tmp_path: Path, what: str
) -> None:
    expected = filled(tmp_path / "expected")
    CHANGES[what](expected)
    outcomes = set()
    for count in range(12):
        log = filled(tmp_path / str(count))
        if what == "of epochs alone":
            log.epochs.begin(9, log.log_end_offset)
        sending = log.active_segment.file()  # so that it has no descriptor to give back
        try:
            with descriptors_left(count):
                CHANGES[what](log)
        except OutOfFilesError:
            assert not log.failed
            CHANGES[what](log)
            outcomes.add("again")
        else:
            outcomes.add("at once")
        del sending
        assert not log.failed
        assert values_of(log) == values_of(expected)
        assert log.epochs.entries == expected.epochs.entries
        assert log.aborted_transactions(0, 100) == expected.aborted_transactions(0, 100)
        log = crash(log) if count % 2 else reopen(log)
        assert values_of(log) == values_of(expected)
        assert log.aborted_transactions(0, 100) == expected.aborted_transactions(0, 100)
    assert "at once" in outcomes


def test_an_aborted_transaction_that_was_not_written_is_before_the_segment_is_rolled(tmp_path: Path) -> None:
    """The cleaner reads the file, and would keep what was aborted."""
    log = open_log(tmp_path)
    write(log, 77, 0)
    segment = log.active_segment
    sending = segment.file()  # so that it has no descriptor to give back
    with descriptors_left(0):
        end(log, 77, committed=False)
    del sending
    assert log.aborted_transactions(0, 100) == [(77, 0, 1, 2)]
    assert not segment.txn_index.path.exists()
    log.roll(NOW)
    assert segment.txn_index.path.stat().st_size == 34


# -- near the limit


class Held:
    """Something with a descriptor."""

    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        self.released += 1


def test_those_opened_first_are_closed_first_and_none_is_kept_alive(caplog: pytest.LogCaptureFixture) -> None:
    files = OpenFiles()
    files.use_limit(256)
    assert (files.crowded, files.full, files.max_connections(), files.files_a_fetch) == (224, 240, 84, 28)
    held = [Held() for _ in range(9)]
    for number, each in enumerate(held):
        files.opened(each, number)
    files.closed(held[0])
    del held[1]
    assert len(files) == 7
    last = Held()
    files.opened(last, 225)
    assert [each.released for each in held] == [0, 1, 1, 0, 0, 0, 0, 0]
    assert last.released == 0
    with pytest.raises(OSError, match="open files") as error:
        files.opened(Held(), 241)
    assert error.value.errno == errno.EMFILE
    files.room_for_connection(230)
    assert sum(each.released for each in held) == 6
    assert len(caplog.messages) == 1
    assert "ulimit -n 1000" in caplog.messages[0]


def test_without_a_limit_nothing_is_closed() -> None:
    files = OpenFiles()
    held = Held()
    files.opened(held, 1 << 20)
    files.room_for_connection(1 << 20)
    assert held.released == 0


def test_a_log_may_be_closed_for_others_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "_open", {})  # what other tests have left open would be closed first
    expected, log = open_log(tmp_path / "expected", SMALL), open_log(tmp_path / "crowded", SMALL)
    work(expected)
    monkeypatch.setattr(open_files, "crowded", -1)
    sent = []
    for n in range(12):
        append(log, b"%02d" % n, timestamp=NOW + n)
        sent.append(log.read(n, 1000, n + 1))
    assert len({piece.fd for piece in sent}) >= 3
    assert [piece.read() for piece in sent] == [log.read(n, 1000, n + 1).read() for n in range(12)]
    log.flush(now_ms=NOW)
    log.offset_for_timestamp(NOW + 3)
    log.delete_old_segments(NOW)
    for n in range(12, 16):
        append(log, b"%02d" % n, timestamp=NOW + n)
    assert values_of(log) == values_of(expected)
    assert any(segment._file is None for segment in log.segments)
    assert values_of(reopen(log)) == values_of(expected)


def test_an_open_that_finds_no_descriptor_takes_one_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, SMALL)
    for n in range(12):
        append(log, b"%02d" % n, timestamp=NOW + n)
    with failing_opens(monkeypatch, lambda n: n == 1):
        log.flush(now_ms=NOW)
    assert not log.failed
    assert log.recovery_point == 12


@pytest.mark.parametrize(
    ("limit", "wanted", "most"),
    [
        (20_000, 100, (19_488 - 1218) // 2),  # a sixteenth for logs that want less
        (20_000, 3000, (19_488 - 3000) // 2),
        (20_000, 100_000, (19_488 - 4872) // 2),  # a quarter for logs that want more
    ],
)
def test_connections_take_what_logs_leave(limit: int, wanted: int, most: int) -> None:
    files = OpenFiles()
    files.use_limit(limit)
    files.wanted_to_write = lambda: wanted
    assert files.max_connections() == most
