"""Choosing the dirtiest log, cleaning it in a process, swapping it in, and everything that may come between."""

import asyncio
import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.unit.storage.manager_support import (
    NOW_MS,
    TOPIC_ID,
    TP,
    append,
    eventually,
    fill,
    formatted,
    quiet,
    records,
    run,
    running,
    small,
)

from ottla.model import tasks
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.cleaner.job import (
    CleanedGroup,
    CleaningAbortedError,
    CleaningFailedError,
    CleaningJob,
    CleaningStats,
    decode_job,
    encode_job,
)
from ottla.storage.cleaner.manager import LogCleanerManager, make_job, measure
from ottla.storage.cleaner.process import CleanerProcess
from ottla.storage.config import CleanerConfig, LogConfig
from ottla.storage.dirs.checkpoints import parse_offsets
from ottla.storage.log.log import Log
from ottla.storage.log_manager import LogManager

COMPACT = frozenset({"compact"})


def compacted(**changes: Any) -> LogConfig:
    return small(cleanup_policy=COMPACT, min_cleanable_dirty_ratio=0.0, **changes)


@pytest.fixture
def dir(tmp_path: Path) -> Path:
    return formatted(tmp_path)


def dirty_log(manager: LogManager, tp: TopicPartition = TP, **changes: Any) -> Log:
    """Three versions of ten keys in three segments, and a fourth in the active one."""
    log = manager.get_or_create(tp, TOPIC_ID, compacted(**changes))
    for version in range(4):
        append(log, *[(b"key-%d" % i, b"%d" % version) for i in range(10)])
        if version < 3:
            log.roll(NOW_MS)
    return log


def values(log: Log) -> list[tuple[int, bytes | None]]:
    return [(r.offset, r.value) for r in records(log)]


CLEANED = [(offset, b"2") for offset in range(20, 30)] + [(offset, b"3") for offset in range(30, 40)]


# -- measuring


def test_the_dirty_part_ends_where_a_segment_is_active_young_or_undecided(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            log = dirty_log(manager)
            found = measure(TP, log, None, NOW_MS)
            assert found is not None
            assert (found.first_dirty_offset, found.first_uncleanable_offset) == (0, 30)
            assert (found.clean_bytes, found.dirty_ratio, found.is_due) == (0, 1.0, True)

            later = measure(TP, log, 20, NOW_MS)
            assert later is not None
            assert later.dirty_ratio == pytest.approx(1 / 3)

            log.update_config(compacted(min_compaction_lag_ms=1))
            young = measure(TP, log, None, NOW_MS)
            assert young is not None
            assert (young.first_uncleanable_offset, young.cleanable_bytes, young.is_due) == (0, 0, False)

            append(log, (b"t", b"v"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
            log.roll(NOW_MS)
            log.roll(NOW_MS)
            log.update_config(compacted())
            undecided = measure(TP, log, None, NOW_MS)
            assert undecided is not None
            assert undecided.first_uncleanable_offset == 30, "the segment in which the transaction began"

    run(test)


def test_a_checkpoint_outside_the_log_starts_the_cleaning_over(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            log = dirty_log(manager)
            log.maybe_increment_log_start_offset(12, "DeleteRecords")
            for checkpoint in (5, 1_000):
                found = measure(TP, log, checkpoint, NOW_MS)
                assert found is not None
                assert found.first_dirty_offset == 12

    run(test)


def test_the_ratio_decides_unless_the_maximum_lag_has_passed(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            log = dirty_log(manager)
            log.update_config(replace(compacted(), min_cleanable_dirty_ratio=0.5))
            a_third = measure(TP, log, 20, NOW_MS)
            assert a_third is not None
            assert not a_third.is_due
            log.update_config(replace(log.config, max_compaction_lag_ms=1_000))
            still = measure(TP, log, 20, NOW_MS + 1_000)
            due = measure(TP, log, 20, NOW_MS + 1_001)
            assert still is not None
            assert due is not None
            assert (still.is_due, due.is_due) == (False, True)

    run(test)


def test_a_log_with_one_segment_has_nothing_to_clean(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, compacted())
            fill(log, 3)
            assert measure(TP, log, None, NOW_MS) is None

    run(test)


def test_the_dirtiest_log_comes_first_and_busy_or_paused_ones_do_not(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            cleaner = manager.cleaner
            dirty_log(manager)
            other = TopicPartition("other", 0)
            dirty_log(manager, other)
            cleaner._clean_offsets[TP] = 20
            best = await cleaner.dirtiest()
            assert best is not None
            assert best.topic_partition == other
            cleaner.abort_and_pause(other)
            cleaner.abort_and_pause(other)
            cleaner.resume(other)
            best = await cleaner.dirtiest()
            assert best is not None
            assert best.topic_partition == TP
            cleaner.abort_and_pause(TP)
            assert await cleaner.dirtiest() is None
            cleaner.resume(TP)
            cleaner.resume(other)
            best = await cleaner.dirtiest()
            assert best is not None
            assert best.topic_partition == other

    run(test)


# -- cleaning


class ThreadRunner:
    """Cleans in the calling thread."""

    def run(
        self, job: CleaningJob, on_group: Callable[[CleanedGroup], None], aborted: Callable[[], bool]
    ) -> CleaningStats:
        def check() -> None:
            if aborted():
                raise CleaningAbortedError("stopped")

        return Cleaner(job, check).run(on_group)

    def kill(self) -> None:
        """The next check sees that the cleaning is aborted."""

    def close(self) -> None:
        """Holds nothing."""


@pytest.mark.parametrize("runner", [ThreadRunner, CleanerProcess])
def test_a_log_is_cleaned_swapped_in_and_checkpointed(dir: Path, runner: type[ThreadRunner]) -> None:
    async def test() -> None:
        clock = ManualClock(NOW_MS)
        async with running(dir, clock=clock) as manager:
            log = dirty_log(manager, file_delete_delay_ms=1_000)
            held = log.read(0, 1 << 20, 40)
            before = held.read()
            worker = runner()
            assert await manager.cleaner.clean_dirtiest(worker)
            assert values(log) == CLEANED
            assert [s.base_offset for s in log.segments] == [0, 30]
            assert manager.cleaner.clean_offset(TP) == 30
            assert parse_offsets((dir / "cleaner-offset-checkpoint").read_bytes(), "") == {TP: 30}
            assert held.read() == before, "who was reading goes on reading the old segment"
            assert len(list(log.dir.glob("*.deleted"))) > 0
            clock.advance(1_000)
            await manager.deletions.run_due()
            left = {path.suffix for path in log.dir.iterdir()}
            assert left <= {".log", ".index", ".timeindex", ".snapshot", ".metadata", ""}
            assert not await manager.cleaner.clean_dirtiest(worker), "nothing more to do"
            assert log.read(0, 1 << 20, 40).first_offset == 20
            worker.close()

    async def again() -> None:
        load = {"topic_config": lambda topic: compacted()}
        async with running(dir, load=load) as manager:
            log = manager.get(TP)
            assert log is not None
            assert values(log) == CLEANED
            assert manager.cleaner.clean_offset(TP) == 30

    run(test)
    run(again)


def test_the_cleaner_works_by_itself_and_rests_without_a_process(dir: Path) -> None:
    async def test() -> None:
        async with running(dir, settings=quiet(cleaner=CleanerConfig(backoff_ms=1))) as manager:
            manager.start()
            log = dirty_log(manager)
            await eventually(lambda: manager.cleaner.clean_offset(TP) == 30)
            assert values(log) == CLEANED
            append(log, *[(b"key-%d" % i, b"4") for i in range(10)])
            log.roll(NOW_MS)
            await eventually(lambda: manager.cleaner.clean_offset(TP) == 50)
            assert [v for _, v in values(log)] == [b"4"] * 10

    run(test)
    assert list((dir / "orders-0").glob("*.cleaned")) == []


def test_a_round_that_fills_the_map_goes_on_in_the_next(dir: Path) -> None:
    async def test() -> None:
        tiny = CleanerConfig(dedupe_buffer_size_bytes=4096, io_buffer_load_factor=0.1)
        async with running(dir, settings=quiet(cleaner=tiny)) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, compacted())
            for version in range(2):
                for i in range(40):
                    append(log, (b"key-%d" % i, b"%d" % version))
                log.roll(NOW_MS)
            runner = ThreadRunner()
            ends = []
            while await manager.cleaner.clean_dirtiest(runner):
                ends.append(manager.cleaner.clean_offset(TP))
            assert len(ends) > 2
            assert ends == sorted(ends)
            assert ends[-1] == 80
            assert [v for _, v in values(log)] == [b"1"] * 40

    run(test)


# -- stopping


class Held(ThreadRunner):
    """Cleans, then waits with every group until it is let go: the test acts in between."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.go_on = False

    def run(
        self, job: CleaningJob, on_group: Callable[[CleanedGroup], None], aborted: Callable[[], bool]
    ) -> CleaningStats:
        stats = Cleaner(job, lambda: None).run(on_group)
        asyncio.run_coroutine_threadsafe(self._hold(), self.loop).result()
        return stats

    async def _hold(self) -> None:
        self.ready.set()
        await eventually(lambda: self.go_on)


class HeldBefore(Held):
    """Waits before it reports the first group."""

    def run(
        self, job: CleaningJob, on_group: Callable[[CleanedGroup], None], aborted: Callable[[], bool]
    ) -> CleaningStats:
        groups: list[CleanedGroup] = []
        stats = super().run(job, groups.append, aborted)
        for group in groups:
            on_group(group)
        return stats


def test_a_log_deleted_while_it_is_cleaned_stays_deleted(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            dirty_log(manager)
            runner = HeldBefore()
            cleaning = asyncio.create_task(manager.cleaner.clean_dirtiest(runner))
            await runner.ready.wait()
            assert not manager.cleaner.may_touch(TP)
            await manager.delete(TP)
            fresh = manager.get_or_create(TP, TOPIC_ID, compacted())
            append(fresh, (b"k", b"new"))
            runner.go_on = True
            await cleaning
            assert values(fresh) == [(0, b"new")]
            assert manager.cleaner.clean_offset(TP) is None
            assert manager.cleaner.may_touch(TP)

    run(test)


def test_a_truncation_stops_the_cleaning_and_makes_the_rest_dirty(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            log = dirty_log(manager)
            runner = HeldBefore()
            cleaning = asyncio.create_task(manager.cleaner.clean_dirtiest(runner))
            await runner.ready.wait()
            manager.cleaner._clean_offsets[TP] = 30
            log.truncate_to(15, manager.clock.now_ms())
            manager.truncated(log)
            runner.go_on = True
            await cleaning
            assert [offset for offset, _ in values(log)] == list(range(10)), "whole batches go"
            assert manager.cleaner.clean_offset(TP) == 10
            assert list(log.dir.glob("*.cleaned")) == []

    run(test)


def test_a_topic_that_is_no_longer_compacted_is_left_as_it_is(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            log = dirty_log(manager)
            runner = HeldBefore()
            cleaning = asyncio.create_task(manager.cleaner.clean_dirtiest(runner))
            await runner.ready.wait()
            manager.update_config(TP, small())
            runner.go_on = True
            await cleaning
            assert len(values(log)) == 40
            assert list(log.dir.glob("*.cleaned")) == []

    run(test)


def test_retention_keeps_off_a_log_that_is_being_cleaned(dir: Path) -> None:
    async def test() -> None:
        clock = ManualClock(NOW_MS)
        async with running(dir, clock=clock) as manager:
            log = dirty_log(manager, retention_ms=1)
            manager.update_config(TP, replace(log.config, cleanup_policy=frozenset({"compact", "delete"})))
            clock.advance(1_000)
            runner = HeldBefore()
            cleaning = asyncio.create_task(manager.cleaner.clean_dirtiest(runner))
            await runner.ready.wait()
            await manager.cleaner.retire_segments()
            assert log.log_start_offset == 0
            runner.go_on = True
            await cleaning
            await manager.cleaner.retire_segments()
            assert log.log_start_offset == 40

    run(test)


def test_a_killed_worker_is_replaced_by_a_new_one(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            log = dirty_log(manager)
            slow = make_job(measured(manager, log), CleanerConfig(io_max_bytes_per_second=1.0), NOW_MS)
            process = CleanerProcess()
            loop = asyncio.get_running_loop()
            waiting = loop.run_in_executor(None, process.run, slow, lambda group: None, lambda: False)
            await eventually(lambda: process.pid is not None)
            pid = process.pid
            process.kill()
            with pytest.raises(CleaningAbortedError, match="-9"):
                await waiting
            assert await manager.cleaner.clean_dirtiest(process)
            assert values(log) == CLEANED
            assert process.pid not in (None, pid)
            process.close()

    run(test)


def test_a_cleaning_stopped_before_its_worker_runs_does_not_wait_for_it(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            log = dirty_log(manager)
            slow = make_job(measured(manager, log), CleanerConfig(io_max_bytes_per_second=1.0), NOW_MS)
            process = CleanerProcess()
            process.kill()
            with pytest.raises(CleaningAbortedError):
                process.run(slow, lambda group: None, lambda: True)
            assert process.pid is None

    run(test)


def measured(manager: LogManager, log: Log) -> Any:
    found = measure(TP, log, None, NOW_MS)
    assert found is not None
    return found


def test_a_worker_ends_with_its_input(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            log = dirty_log(manager)
            process = CleanerProcess()
            process.run(
                make_job(measured(manager, log), CleanerConfig(), NOW_MS), lambda group: None, lambda: False
            )
            assert process.pid is not None
            os.kill(process.pid, 0)
            pid = process.pid
            process.close()
            with pytest.raises(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    run(test)


BROKER = """
import asyncio, sys
from pathlib import Path
from tests.unit.storage.manager_support import eventually, quiet, running
from tests.unit.storage.cleaner.test_manager import dirty_log
from ottla.storage.cleaner.process import CleanerProcess
from ottla.storage.config import CleanerConfig

async def main():
    slow = CleanerConfig(io_max_bytes_per_second=1.0)
    async with running(Path(sys.argv[1]), settings=quiet(cleaner=slow)) as manager:
        dirty_log(manager)
        process = CleanerProcess()
        cleaning = asyncio.create_task(manager.cleaner.clean_dirtiest(process))
        await eventually(lambda: process.pid is not None)
        print(process.pid, flush=True)
        await cleaning

asyncio.run(main())
"""


def is_gone(worker: int) -> bool:
    try:
        os.kill(worker, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{worker}/stat")
    return stat.exists() and stat.read_text().split()[2] == "Z"  # dead, though nobody has reaped it


def test_a_worker_does_not_outlive_a_killed_broker(dir: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BROKER, str(dir)], stdout=subprocess.PIPE, text=True
    ) as broker:
        assert broker.stdout is not None
        worker = int(broker.stdout.readline())
        os.kill(worker, 0)
        broker.kill()

    run(lambda: eventually(lambda: is_gone(worker)))

    async def again() -> None:
        async with running(dir, load={"topic_config": lambda topic: compacted()}) as manager:
            log = manager.get(TP)
            assert log is not None
            assert log.log_end_offset == 40
            assert list(log.dir.glob("*.cleaned")) == []

    run(again)


STUCK_BROKER = """
import sys
from tests.unit.storage.cleaner.test_manager import decode_job
from ottla.storage.cleaner.process import CleanerProcess

class Process(CleanerProcess):
    def _start(self):
        process = super()._start()
        print(process.pid, flush=True)
        return process

Process().run(decode_job(sys.stdin.buffer.readline()), print, lambda: False)
"""


def test_a_worker_that_hangs_in_a_read_does_not_outlive_its_broker(dir: Path, tmp_path: Path) -> None:
    async def job() -> CleaningJob:
        async with running(dir) as manager:
            return make_job(measured(manager, dirty_log(manager)), CleanerConfig(), NOW_MS)

    stuck = tmp_path / "stuck-0"
    described = replace(run(job), dir=str(stuck))
    stuck.mkdir()
    os.mkfifo(stuck / f"{0:020d}.log")  # opening it for reading waits for a writer who never comes
    with subprocess.Popen(
        [sys.executable, "-c", STUCK_BROKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as broker:
        assert broker.stdin is not None
        assert broker.stdout is not None
        broker.stdin.write(encode_job(described))
        broker.stdin.flush()
        worker = int(broker.stdout.readline())
        run(lambda: eventually(lambda: is_locked(stuck)))
        broker.kill()
    run(lambda: eventually(lambda: is_gone(worker)))


def is_locked(dir: Path) -> bool:
    fd = os.open(dir, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def test_two_workers_never_write_the_same_files(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            log = dirty_log(manager)
            theirs = log.dir / f"{0:020d}.log.cleaned"
            theirs.write_bytes(b"half")
            process = CleanerProcess()
            fd = os.open(log.dir, os.O_RDONLY)
            fcntl.flock(fd, fcntl.LOCK_EX)
            assert not await manager.cleaner.clean_dirtiest(process)
            assert theirs.read_bytes() == b"half"
            assert manager.dirs[0].online
            os.close(fd)
            assert await manager.cleaner.clean_dirtiest(process)
            assert values(log) == CLEANED
            assert not theirs.exists()
            process.close()

    run(test)


def test_a_slot_whose_worker_cannot_be_closed_goes_on_with_another(
    dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tasks, "FIRST_PAUSE_S", 0)
    closed = 0

    class Stubborn(ThreadRunner):
        def close(self) -> None:
            nonlocal closed
            closed += 1
            if closed <= 4:
                raise RuntimeError("cannot close")

    async def test() -> None:
        async with running(dir, settings=quiet(cleaner=CleanerConfig(backoff_ms=1))) as manager:
            manager.cleaner._new_runner = Stubborn
            manager.start()
            await eventually(lambda: closed > 4)
            log = dirty_log(manager)
            await eventually(lambda: manager.cleaner.clean_offset(TP) == 30)
            assert values(log) == CLEANED

    run(test)
    assert any("log-cleaner-0 failed: cannot close" in message for message in caplog.messages)


def test_an_unexpected_error_leaves_one_log_alone_and_is_logged(
    dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            log = dirty_log(manager)
            assert await manager.cleaner.clean_dirtiest(Raising(KeyError("a bug")))
            assert TP in manager.cleaner._uncleanable
            other = TopicPartition("other", 0)
            dirty_log(manager, other)
            assert await manager.cleaner.clean_dirtiest(ThreadRunner())
            assert manager.cleaner.clean_offset(other) == 30
            assert log.log_end_offset == 40

    run(test)
    assert any("clean orders-0" in message for message in caplog.messages)


def test_a_stop_ends_the_worker_and_clears_its_files_away(dir: Path) -> None:
    async def test() -> None:
        slow = CleanerConfig(io_max_bytes_per_second=1.0, backoff_ms=1)
        async with running(dir, settings=quiet(cleaner=slow)) as manager:
            log = dirty_log(manager)
            manager.start()
            await eventually(lambda: not manager.cleaner.may_touch(TP))
            await eventually(lambda: len(list(log.dir.glob("*"))) > 0)

    run(test)
    assert list((dir / "orders-0").glob("*.cleaned")) == []
    assert (dir / ".kafka_cleanshutdown").exists()


# -- failures


class Raising(ThreadRunner):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def run(
        self, job: CleaningJob, on_group: Callable[[CleanedGroup], None], aborted: Callable[[], bool]
    ) -> CleaningStats:
        raise self.error


def test_a_log_that_cannot_be_cleaned_is_left_alone_and_others_are_cleaned(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            log = dirty_log(manager)
            other = dirty_log(manager, TopicPartition("other", 0))
            manager.cleaner._clean_offsets[TopicPartition("other", 0)] = 20
            with (log.dir / "00000000000000000010.log").open("r+b") as file:
                file.seek(16)
                file.write(b"\x09")
            assert await manager.cleaner.clean_dirtiest(CleanerProcess())
            assert TP in manager.cleaner._uncleanable
            assert await manager.cleaner.clean_dirtiest(ThreadRunner())
            assert manager.cleaner.clean_offset(TopicPartition("other", 0)) == 30
            assert not await manager.cleaner.clean_dirtiest(ThreadRunner())
            assert len(other.segments) == 2
            await manager.delete(TP)
            assert TP not in manager.cleaner._uncleanable

    run(test)


@pytest.mark.parametrize("error", [CleaningFailedError("no"), KafkaError(ErrorCode.CORRUPT_MESSAGE, "no")])
def test_an_error_in_the_log_marks_it_uncleanable(dir: Path, error: Exception) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            dirty_log(manager)
            await manager.cleaner.clean_dirtiest(Raising(error))
            assert TP in manager.cleaner._uncleanable
            assert manager.dirs[0].online

    run(test)


def test_a_full_disk_is_tried_again_and_another_disk_error_takes_the_directory_offline(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            dirty_log(manager)
            assert not await manager.cleaner.clean_dirtiest(Raising(OSError(errno.ENOSPC, "full")))
            assert manager.dirs[0].online
            assert await manager.cleaner.dirtiest() is not None
            assert not await manager.cleaner.clean_dirtiest(Raising(OSError(errno.EIO, "broken")))
            assert not manager.dirs[0].online
            assert TP in manager._offline

    run(test)


def test_after_a_worker_that_was_killed_by_the_system_there_is_a_rest(
    dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For want of memory, as a rule: the next one would have no more of it."""

    async def test() -> None:
        async with running(dir) as manager:
            dirty_log(manager)
            killed = CleaningAbortedError("the cleaner's process ended with status -9")
            assert not await manager.cleaner.clean_dirtiest(Raising(killed))
            assert await manager.cleaner.clean_dirtiest(ThreadRunner())

    run(test)
    assert [r.levelname for r in caplog.records if "status -9" in r.message] == ["ERROR"]


def test_a_worker_reports_the_disk_error_it_met(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            log = dirty_log(manager)
            job = make_job(measured(manager, log), CleanerConfig(), NOW_MS)
            process = CleanerProcess()
            with pytest.raises(FileNotFoundError) as error:
                process.run(replace(job, dir=str(dir / "nowhere")), lambda group: None, lambda: False)
            assert "nowhere" in str(error.value.filename)
            process.close()

    run(test)


def test_a_job_travels_to_the_worker_whole(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            log = dirty_log(manager)
            append(log, (b"k", b"v"), producer_id=3, producer_epoch=1, base_sequence=0)
            job = make_job(measured(manager, log), CleanerConfig(), NOW_MS)
            assert job.last_records == {3: (40, 1)}
            assert decode_job(encode_job(job)) == job

    run(test)


def test_the_cleaner_checkpoint_moves_with_the_log(tmp_path: Path) -> None:
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")

    async def test() -> None:
        async with running(one, two) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, compacted(), directory_id=manager.dirs[0].id)
            dirty_log(manager)
            await manager.cleaner.clean_dirtiest(ThreadRunner())
            copy = manager.create_future(TP, manager.dirs[1])
            assert await manager.cleaner.dirtiest() is None
            for segment in log.segments:
                for _, batch in segment.batches():
                    copy.append_as_follower(bytearray(batch.raw()), NOW_MS)
            await manager.promote_future(TP)
            assert manager.cleaner.clean_offset(TP) == 30
            append(copy, (b"key-1", b"5"))
            copy.roll(NOW_MS)
            assert await manager.cleaner.dirtiest() is not None, "cleaning goes on after the move"

    run(test)
    assert parse_offsets((one / "cleaner-offset-checkpoint").read_bytes(), "") == {}
    assert parse_offsets((two / "cleaner-offset-checkpoint").read_bytes(), "") == {TP: 30}


def test_a_log_made_anew_is_not_clean_because_its_predecessor_was(tmp_path: Path) -> None:
    """The topic was deleted, and made again under its name in another directory, while the broker was down."""
    one, two = formatted(tmp_path / "1"), formatted(tmp_path / "2")

    async def before() -> None:
        async with running(one, two) as manager:
            manager.get_or_create(TP, TOPIC_ID, compacted(), directory_id=manager.dirs[0].id)
            dirty_log(manager)
            assert await manager.cleaner.clean_dirtiest(ThreadRunner())
            assert manager.cleaner.clean_offset(TP) == 30

    async def after() -> None:
        async with running(one, two, load={"is_stray": lambda log: True}) as manager:
            manager.get_or_create(TP, TOPIC_ID, compacted(), directory_id=manager.dirs[1].id)
            log = dirty_log(manager)
            assert await manager.cleaner.clean_dirtiest(ThreadRunner())
            assert values(log) == CLEANED
            assert parse_offsets((one / "cleaner-offset-checkpoint").read_bytes(), "") == {}

    run(before)
    run(after)


def test_cleaner_slots_are_made_anew_when_their_number_changes(dir: Path) -> None:
    async def test() -> None:
        async with running(dir, settings=quiet(cleaner=CleanerConfig(threads=1, backoff_ms=1))) as manager:
            manager.start()
            manager.reconfigure(quiet(cleaner=CleanerConfig(threads=2, backoff_ms=1)))
            logs = [dirty_log(manager, TopicPartition("t", i)) for i in range(3)]
            await eventually(
                lambda: all(manager.cleaner.clean_offset(log.topic_partition) == 30 for log in logs)
            )
            assert all(values(log) == CLEANED for log in logs)
            assert isinstance(manager.cleaner, LogCleanerManager)

    run(test)
