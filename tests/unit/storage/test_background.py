"""Background work: retention, flushing, checkpoints, producer expiry, deferred deletion, jobs in threads."""

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
    run,
    running,
    small,
)

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.storage.background import STOP_BUDGET_MS, Deletions, Ticker, in_slices, in_thread
from ottla.storage.config import MAX_LONG, LogManagerSettings
from ottla.storage.dirs.checkpoints import parse_offsets


@pytest.fixture
def dir(tmp_path: Path) -> Path:
    return formatted(tmp_path)


# -- retention


def test_old_segments_go_by_time_and_their_files_after_the_delay(dir: Path) -> None:
    async def test() -> None:
        clock = ManualClock(NOW_MS)
        async with running(dir, clock=clock) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, small(retention_ms=1_000, file_delete_delay_ms=500))
            fill(log, 4, roll_every=2)
            clock.advance(1_001)
            append(log, (b"k", b"young"), now_ms=clock.now_ms())
            await manager.background.retention_tick()
            assert log.log_start_offset == 4
            assert len(list(log.dir.glob("*.deleted"))) > 0
            assert await manager.deletions.run_due() == 0
            clock.advance(500)
            await manager.deletions.run_due()
            assert list(log.dir.glob("*.deleted")) == []
            assert [s.base_offset for s in log.segments] == [4]

    run(test)


def test_old_segments_go_by_size(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, small())
            fill(log, 10, roll_every=1)
            manager.update_config(TP, small(retention_bytes=3 * log.segments[0].size_bytes))
            await manager.background.retention_tick()
            assert log.log_start_offset == 7

    run(test)


def test_segments_below_the_log_start_offset_go(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, small(retention_ms=-1))
            fill(log, 6, roll_every=2)
            log.maybe_increment_log_start_offset(5, "DeleteRecords")
            await manager.background.retention_tick()
            assert [s.base_offset for s in log.segments] == [4, 6]

    run(test)


def test_what_retention_deletes_is_logged_with_the_reason(
    dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ottla.storage.log.log")

    async def test() -> None:
        clock = ManualClock(NOW_MS)
        async with running(dir, clock=clock) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, small(retention_ms=-1))
            fill(log, 10, roll_every=1)
            size_bytes = log.segments[0].size_bytes
            await manager.background.retention_tick()
            assert caplog.messages == []
            log.maybe_increment_log_start_offset(2, "DeleteRecords")
            await manager.background.retention_tick()
            manager.update_config(TP, small(retention_ms=-1, retention_bytes=7 * size_bytes))
            await manager.background.retention_tick()
            manager.update_config(TP, small(retention_ms=1_000))
            clock.advance(1_001)
            await manager.background.retention_tick()
            assert caplog.messages == [
                f"orders-0: deleting 2 segments (base offsets 0 to 1, {2 * size_bytes} bytes): "
                "all of it lies below the log start offset 2",
                f"orders-0: deleting 1 segment (base offsets 2 to 2, {size_bytes} bytes): "
                f"the log has more than retention.bytes={7 * size_bytes}",
                f"orders-0: deleting 7 segments (base offsets 3 to 9, {7 * size_bytes} bytes): "
                "the newest record is older than retention.ms=1000",
            ]

    run(test)


def test_many_old_segments_go_in_one_tick_but_not_in_one_piece(dir: Path) -> None:
    async def test() -> None:
        clock = ManualClock(NOW_MS)
        async with running(dir, clock=clock) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, small(retention_ms=1))
            fill(log, 100, roll_every=1)
            clock.advance(1_000)
            seen: list[int] = []

            async def watch() -> None:
                while True:
                    seen.append(log.log_start_offset)
                    await asyncio.sleep(0)

            watcher = asyncio.create_task(watch())
            await manager.background.retention_tick()
            watcher.cancel()
            assert log.log_start_offset == 100
            assert len(set(seen)) > 2, "the loop ran in between"

    run(test)


def test_compacted_logs_are_left_to_the_cleaner(dir: Path) -> None:
    async def test() -> None:
        clock = ManualClock(NOW_MS)
        async with running(dir, clock=clock) as manager:
            both = small(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=10)
            log = manager.get_or_create(TP, TOPIC_ID, both)
            fill(log, 4, roll_every=2)
            clock.advance(100)
            await manager.background.retention_tick()
            assert log.log_start_offset == 0
            await manager.cleaner.retire_segments()
            assert log.log_start_offset == 4

    run(test)


def test_retention_of_a_failing_log_does_not_stop_the_others(
    dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        clock = ManualClock(NOW_MS)
        async with running(dir, formatted(dir / "two"), clock=clock) as manager:
            logs = [
                manager.get_or_create(TopicPartition("t", i), TOPIC_ID, small(retention_ms=1))
                for i in range(2)
            ]
            for log in logs:
                fill(log, 2, roll_every=1)
            clock.advance(1_000)
            (logs[0].dir / "00000000000000000000.log").unlink()
            await manager.background.retention_tick()
            await asyncio.sleep(0)
            assert logs[1].log_start_offset == 2
            assert TopicPartition("t", 0) in manager._offline

    run(test)


# -- flushing


def test_a_log_with_flush_ms_is_flushed_when_it_is_due_even_without_a_scheduler_interval(dir: Path) -> None:
    async def test() -> None:
        clock = ManualClock(NOW_MS)
        async with running(dir, clock=clock) as manager:
            timed = manager.get_or_create(TP, TOPIC_ID, small(flush_ms=1_000))
            other = manager.get_or_create(TopicPartition("other", 0), TOPIC_ID, small())
            for log in (timed, other):
                append(log, (b"k", b"v"))
            await manager.background.flush_tick()
            assert timed.recovery_point == 0
            clock.advance(1_000)
            await manager.background.flush_tick()
            assert (timed.recovery_point, other.recovery_point) == (1, 0)
            manager.update_config(TP, small(flush_ms=MAX_LONG))
            append(timed, (b"k", b"v"))
            clock.advance(5_000)
            await manager.background.flush_tick()
            assert timed.recovery_point == 1

    run(test)


def test_a_rolled_segment_is_flushed_in_a_thread(dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[str] = set()
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (threads.add(threading.current_thread().name), real(fd))[1])

    async def test() -> None:
        async with running(dir) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, small())
            fill(log, 4)
            threads.clear()
            log.roll(NOW_MS)
            append(log, (b"k", b"v"))
            log.roll(NOW_MS)
            await manager.background.stop()
            assert log.recovery_point == 5
            assert all(name.startswith("storage") for name in threads)
            assert threads

    run(test)


def test_a_failed_flush_takes_the_directory_offline(dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, small())
            fill(log, 1)

            def broken(fd: int) -> None:
                raise OSError(5, "Input/output error")

            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", broken)
                log.roll(NOW_MS)
                await manager.background.stop()
                await asyncio.sleep(0)
            assert not manager.dirs[0].online
            assert TP in manager._offline

    run(test)


# -- checkpoints and producers


def test_the_recovery_point_checkpoint_follows_the_flushes(dir: Path) -> None:
    path = dir / "recovery-point-offset-checkpoint"

    async def test() -> None:
        async with running(dir) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, small())
            fill(log, 3)
            await manager.background.checkpoint_recovery_points()
            assert parse_offsets(path.read_bytes(), "") == {TP: 0}
            await manager.background.flush(log)
            await manager.background.checkpoint_recovery_points()
            assert parse_offsets(path.read_bytes(), "") == {TP: 3}
            log.maybe_increment_log_start_offset(2, "DeleteRecords")
            await manager.background.checkpoint_log_start_offsets()
            assert parse_offsets((dir / "log-start-offset-checkpoint").read_bytes(), "") == {TP: 2}

    run(test)


def test_a_log_that_comes_while_a_checkpoint_is_made_is_not_left_out(
    dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs are asked in slices, and whoever asks later writes later."""
    monkeypatch.setattr("ottla.storage.background.SLICE_ITEMS", 1)
    later = TopicPartition(TP.topic, TP.partition + 1)

    async def test() -> None:
        async with running(dir) as manager:
            for tp in (TP, later):
                log = manager.get_or_create(tp, TOPIC_ID, small())
                fill(log, 3)
                log.maybe_increment_log_start_offset(2, "DeleteRecords")
                if tp == TP:
                    periodic = asyncio.create_task(manager.background.checkpoint_log_start_offsets())
                    await asyncio.sleep(0)
            await manager.background.checkpoint_dirs([manager.dirs[0]])
            await periodic
            written = (dir / "log-start-offset-checkpoint").read_bytes()
            assert parse_offsets(written, "") == {TP: 2, later: 2}

    run(test)


def test_checkpoints_written_at_once_come_out_in_order_of_asking(dir: Path) -> None:
    async def test() -> None:
        async with running(dir) as manager:
            manager.get_or_create(TP, TOPIC_ID, small())
            writes = [asyncio.create_task(manager.checkpoint_high_watermarks({TP: i}.get)) for i in range(20)]
            await asyncio.sleep(0)
            writes[3].cancel()
            await asyncio.gather(*writes, return_exceptions=True)
            assert manager.dirs[0].online
            assert manager.read_high_watermarks() == {TP: 19}

    run(test)


def test_silent_producers_are_forgotten(dir: Path) -> None:
    async def test() -> None:
        clock = ManualClock(NOW_MS)
        settings = quiet(producer_id_expiration_ms=1_000)
        async with running(dir, clock=clock, settings=settings) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, small())
            append(log, (b"k", b"v"), producer_id=9, producer_epoch=0, base_sequence=0)
            await manager.background.producer_expiry_tick()
            assert len(log.producers.active_producers()) == 1
            clock.advance(1_001)
            await manager.background.producer_expiry_tick()
            assert log.producers.active_producers() == []

    run(test)


def test_how_long_silent_producers_are_known_changes_for_logs_that_exist(dir: Path) -> None:
    async def test() -> None:
        clock = ManualClock(NOW_MS)
        async with running(dir, clock=clock) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, small())
            append(log, (b"k", b"v"), producer_id=9, producer_epoch=0, base_sequence=0)
            clock.advance(1_001)
            manager.reconfigure(quiet(producer_id_expiration_ms=1_000))
            await manager.background.producer_expiry_tick()
            assert log.producers.active_producers() == []

    run(test)


# -- the machinery


def test_deletions_run_when_due_and_a_failing_one_is_passed_over() -> None:
    done: list[str] = []

    def failing() -> None:
        raise OSError(13, "Permission denied")

    async def test() -> None:
        clock = ManualClock(0)
        with ThreadPoolExecutor(2) as pool:
            deletions = Deletions(clock, pool)
            deletions.schedule(20, "later", lambda: done.append("later"))
            deletions.schedule(10, "failing", failing)
            deletions.schedule(10, "sooner", lambda: done.append("sooner"))
            clock.advance(10)
            assert await deletions.run_due() == 2
            assert done == ["sooner"]
            deletions.start()
            deletions.schedule(0, "at once", lambda: done.append("at once"))
            await eventually(lambda: "at once" in done)
            await deletions.stop()
            assert done == ["sooner", "at once", "later"]

    run(test)


def test_a_stop_spends_only_so_long_on_deletions() -> None:
    class Slow(ManualClock):
        """Every look at the clock takes a third of a second."""

        def monotonic_ms(self) -> float:
            self.advance(333)
            return super().monotonic_ms()

    async def test() -> None:
        with ThreadPoolExecutor(2) as pool:
            deletions = Deletions(Slow(0), pool)
            for i in range(100):
                deletions.schedule(1 << 40, str(i), lambda: None)
            await deletions.stop()
            assert 0 < len(deletions) < 100

    run(test)


def test_a_stop_does_not_wait_for_all_that_is_due() -> None:
    """A topic of many partitions may be due at once, and each of them take a while."""
    began, may_end = threading.Event(), threading.Event()

    def delete() -> None:
        began.set()
        assert may_end.wait(60)

    async def test() -> None:
        with ThreadPoolExecutor(2) as pool:
            clock = ManualClock(0)
            deletions = Deletions(clock, pool)
            for i in range(100):
                deletions.schedule(0, str(i), delete)
            deletions.start()
            await eventually(began.is_set)
            stopping = asyncio.ensure_future(deletions.stop())
            await asyncio.sleep(0)
            clock.advance(int(STOP_BUDGET_MS) * 10)  # what is under way takes that long
            may_end.set()
            await stopping
            assert len(deletions) > 0

    run(test)


def test_slices_give_the_loop_back() -> None:
    async def test() -> None:
        seen: list[int] = []
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(count_turns())
        await in_slices(range(2_000), seen.append)
        other.cancel()
        assert seen == list(range(2_000))
        assert turns >= 7

    run(test)


@pytest.mark.parametrize(
    "error", [OSError("disk"), KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR), KeyError("a bug")]
)
def test_a_tick_that_fails_runs_again(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        ticker = Ticker()
        calls = asyncio.Queue[int]()
        count = 0

        async def tick() -> None:
            nonlocal count
            count += 1
            calls.put_nowait(count)
            raise error

        ticker.every("test", lambda: 0, 0, tick)
        assert [await calls.get(), await calls.get()] == [1, 2]
        assert caplog.messages[0].startswith("log manager: test failed")
        await ticker.stop()

    run(test)


def test_the_background_work_starts_and_stops_with_the_manager(dir: Path) -> None:
    async def test() -> None:
        settings = quiet(initial_task_delay_ms=0)
        async with running(dir, settings=settings) as manager:
            log = manager.get_or_create(TP, TOPIC_ID, small(retention_bytes=0))
            fill(log, 2, roll_every=1)
            manager.start()
            await eventually(lambda: log.log_start_offset == 2)

    run(test)


def test_settings_come_from_kafkas_names() -> None:
    settings = LogManagerSettings.from_values(
        {
            "log.cleaner.threads": 3,
            "log.retention.check.interval.ms": 7,
            "unknown": 1,
            "log.cleaner.backoff.ms": None,
        }
    )
    assert settings.cleaner.threads == 3
    assert settings.retention_check_interval_ms == 7
    assert settings.cleaner.backoff_ms == 15_000
    assert LogManagerSettings.from_values({}) == LogManagerSettings()


# -- jobs in threads


def test_a_job_that_fails_after_its_caller_was_cancelled_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    may_fail = threading.Event()

    def job() -> None:
        may_fail.wait(60)
        raise RuntimeError("no")

    async def run() -> None:
        task = asyncio.get_running_loop().create_task(in_thread(None, job))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done(), "two writers would meet"
        may_fail.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    (entry,) = caplog.records
    assert entry.getMessage().startswith("storage: ")
    assert entry.getMessage().endswith("job failed: no")
