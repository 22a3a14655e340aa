"""The log manager's periodic work: retention, flushing, checkpoints, producer expiry, deletions; and the clean stop.

A tick visits a snapshot of the logs in slices on the loop and does what waits for the disk in the pool. No log has a
timer of its own: ten thousand idle partitions cost one pass of cheap checks per interval, and visited in one go they
would hold the loop for as long as all of them take. Owned by LogManager, used on the loop only.
"""

import asyncio
import contextlib
import heapq
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from itertools import count
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Final, Protocol, TypeAlias, TypeVar

from ottla.model.clock import Clock
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.tasks import report, spawn, spawn_restarting
from ottla.model.time_slice import next_turn
from ottla.storage.config import MAX_LONG, LogManagerSettings
from ottla.storage.dirs.checkpoints import OffsetCheckpoint
from ottla.storage.dirs.log_dir import LogDir, LogDirs
from ottla.storage.log.log import Log

logger = logging.getLogger(__name__)

OWNER: Final = "log manager"

# A slice of work on the loop is some logs or a few milliseconds.
SLICE_SECONDS: Final = 0.002
SLICE_ITEMS: Final = 256

# An interval may be Long.MAX_VALUE, which a timer cannot express; a tick a day too many does no harm.
LONGEST_SLEEP_SECONDS: Final = 86_400.0

# Unlinking a large file can take tens of milliseconds of disk time: a few at once do not starve the flushes.
MAX_DELETIONS_AT_ONCE: Final = 2
STOP_BUDGET_MS: Final = 1_000.0

# Renaming a segment's files takes some 100 microseconds of the loop.
SEGMENTS_AT_ONCE: Final = 32

# flush.ms of one millisecond must not become a busy loop.
MIN_FLUSH_TICK_MS: Final = 100
# How often to look whether some topic has got a flush.ms, while none has.
IDLE_FLUSH_TICK_MS: Final = 1_000

_T = TypeVar("_T")
# The high watermark of a replica that is hosted.
HighWatermarkOf: TypeAlias = Callable[[TopicPartition], int | None]


class Compaction(Protocol):
    """What the periodic work asks of the LogCleanerManager."""

    def may_touch(self, tp: TopicPartition, /) -> bool: ...
    async def write_checkpoint(self, log_dir: LogDir, /) -> bool: ...


class Logs(Protocol):
    """What the periodic work and the cleaner need of the LogManager that owns them."""

    @property
    def clock(self) -> Clock: ...
    @property
    def settings(self) -> LogManagerSettings: ...
    @property
    def pool(self) -> Executor: ...
    @property
    def dirs(self) -> LogDirs: ...
    @property
    def current_logs(self) -> Mapping[TopicPartition, Log]: ...
    @property
    def future_logs(self) -> Mapping[TopicPartition, Log]: ...
    @property
    def deletions(self) -> "Deletions": ...
    @property
    def background(self) -> "BackgroundWork": ...
    @property
    def cleaner(self) -> Compaction: ...
    def all_logs(self) -> Iterator[Log]: ...
    def get(self, tp: TopicPartition, /) -> Log | None: ...
    def dir_of(self, log: Log, /) -> LogDir: ...
    def fail_dir(self, log_dir: LogDir, error: Exception, /) -> None: ...


async def in_slices(items: Iterable[_T], visit: Callable[[_T], object]) -> None:
    """Visits every item, giving the loop back between slices.

    The items may change between slices, so the caller passes a snapshot and `visit` checks what it is given.
    """
    begin = perf_counter()
    for visited, item in enumerate(items, 1):
        visit(item)
        if visited % SLICE_ITEMS == 0 or perf_counter() - begin > SLICE_SECONDS:
            await next_turn()
            begin = perf_counter()


async def in_thread(executor: Executor | None, work: Callable[..., _T], *arguments: object) -> _T:
    """Does blocking work in a thread. A cancelled caller still waits for it: two writers must not meet."""
    future = asyncio.get_running_loop().run_in_executor(executor, work, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        error = future.exception()
        if isinstance(error, Exception):  # whoever wanted it does not hear of it any more
            report(error, name=getattr(work, "__qualname__", "thread job"), owner="storage")
        raise


class Ticker:
    """Periodic tasks: each runs, then waits its interval.

    One that fails is logged and runs again next time.
    """

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def every(
        self,
        name: str,
        interval_ms: Callable[[], float],
        delay_ms: float,
        tick: Callable[[], Awaitable[object]],
    ) -> None:
        """Starts a periodic task on the running loop.

        The interval is asked each time: it may be reconfigured.
        """
        run = self._run(name, interval_ms, delay_ms, tick)
        self._tasks.append(spawn(run, name=name, owner=OWNER))

    async def stop(self) -> None:
        """Cancels the tasks and waits for them to end."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks.clear()

    async def _run(
        self,
        name: str,
        interval_ms: Callable[[], float],
        delay_ms: float,
        tick: Callable[[], Awaitable[object]],
    ) -> None:
        await asyncio.sleep(delay_ms / 1000)
        while True:
            try:
                await tick()
            except Exception as error:  # noqa: BLE001 - the boundary: whatever went wrong, the tick goes on
                # A failed disk has taken its directory offline already.
                report(error, name=name, owner=OWNER)
            await asyncio.sleep(min(interval_ms() / 1000, LONGEST_SLEEP_SECONDS))


def remove_tree(path: Path) -> None:
    """Deletes a directory that may be half deleted already."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


class Deletions:
    """Unlinks what was renamed for deletion, later and in a thread: readers may still be sending from it.

    `file.delete.delay.ms` after the rename the files go. One timer serves every pending deletion; a stop runs what is
    left at once, because nobody reads any more.
    """

    def __init__(self, clock: Clock, executor: Executor) -> None:
        self._clock = clock
        self._executor = executor
        self._pending: list[tuple[int, int, str, Callable[[], None]]] = []
        self._order = count()
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._pending)

    def schedule(self, delay_ms: int, what: str, delete: Callable[[], None]) -> None:
        """Calls `delete` in a thread after the delay.

        Its OSErrors are logged: the files stay, nothing is lost.
        """
        due_ms = self._clock.now_ms() + delay_ms
        heapq.heappush(self._pending, (due_ms, next(self._order), what, delete))
        self._wake.set()

    def start(self) -> None:
        """Begins to delete; needs a running loop."""
        assert self._task is None
        self._task = spawn_restarting(self._run, name="log-deletions", owner=OWNER)

    async def stop(self) -> None:
        """Ends the timer and deletes what is pending, for a while: the next start deletes the rest."""
        self._stopping = True
        self._wake.set()
        until_ms = self._clock.monotonic_ms() + STOP_BUDGET_MS
        if self._task is not None:
            await self._task
            self._task = None
        await self.run_due(everything=True, until_ms=until_ms)

    async def run_due(self, everything: bool = False, until_ms: float = inf) -> int:
        """Deletes what is due; how many deletions that were."""
        done = 0
        while (
            self._pending
            and (everything or (not self._stopping and self._pending[0][0] <= self._clock.now_ms()))
            and self._clock.monotonic_ms() < until_ms
        ):
            batch = [
                self._delete(*heapq.heappop(self._pending)[2:]) for _ in range(self._due_at_once(everything))
            ]
            await asyncio.gather(*batch)
            done += len(batch)
        return done

    def _due_at_once(self, everything: bool) -> int:
        now_ms = self._clock.now_ms()
        head = heapq.nsmallest(MAX_DELETIONS_AT_ONCE, self._pending)
        return sum(1 for due_ms, *_ in head if everything or due_ms <= now_ms)

    async def _delete(self, what: str, delete: Callable[[], None]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, delete)
        except (OSError, KafkaError) as error:
            logger.error("cannot delete %s: %s", what, error)
        except Exception as error:  # noqa: BLE001 - the boundary: the others are deleted all the same
            report(error, name=f"delete {what}", owner=OWNER)
        else:
            logger.debug("deleted %s", what)

    async def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            await self.run_due()
            timeout_s = None
            if self._pending:
                timeout_s = max(0.0, (self._pending[0][0] - self._clock.now_ms()) / 1000)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), timeout_s)


def has_nothing_to_retire(log: Log) -> bool:
    """One empty segment: nothing can be old. Most of ten thousand idle partitions end here."""
    return len(log.segments) == 1 and log.size_bytes == 0


class Retention:
    """Which logs lose old segments, and when: by time, by size, and below the log start offset.

    The log itself decides what is old (Log.delete_old_segments); this visits the logs, keeps out of the cleaner's
    way, and hands what was renamed to the deletions. A log that is only compacted is visited too: DeleteRecords may
    have moved its log start offset past whole segments.
    """

    def __init__(self, deletions: Deletions, now_ms: Callable[[], int]) -> None:
        self._deletions = deletions
        self._now_ms = now_ms

    async def run(
        self, logs: Iterable[tuple[TopicPartition, Log]], may_touch: Callable[[TopicPartition], bool]
    ) -> None:
        """Visits a snapshot of the logs; `may_touch` is False for one the cleaner is busy with."""
        again: list[tuple[TopicPartition, Log]] = []

        def visit(item: tuple[TopicPartition, Log]) -> None:
            tp, log = item
            if (
                not log.failed
                and not has_nothing_to_retire(log)
                and may_touch(tp)
                and self.apply(tp, log) >= SEGMENTS_AT_ONCE
            ):
                again.append(item)

        await in_slices(list(logs), visit)
        while again:
            visited, again = again, []
            await in_slices(visited, visit)

    def apply(self, tp: TopicPartition, log: Log) -> int:
        """Retires some of one log's old segments; how many they were."""
        try:
            retired = log.delete_old_segments(self._now_ms(), SEGMENTS_AT_ONCE)
        except KafkaError as error:
            # The log has reported its failed disk itself; the others go on.
            logger.error("retention of %s failed: %s", tp, error)
            return 0
        if retired:
            what = f"{len(retired)} segments of {tp} up to offset {log.log_start_offset}"
            self._deletions.schedule(log.config.file_delete_delay_ms, what, lambda: log.delete_files(retired))
        return len(retired)


class BackgroundWork:
    """The ticks, and what they share with the clean stop."""

    def __init__(self, manager: Logs) -> None:
        self._manager = manager
        self._ticker = Ticker()
        self._flush_by_time: dict[TopicPartition, Log] = {}
        self._flushing: set[asyncio.Task[None]] = set()
        self._flush_due: dict[Log, int] = {}
        self._writing: dict[OffsetCheckpoint, asyncio.Lock] = {}
        self.retention = Retention(manager.deletions, manager.clock.now_ms)

    def start(self) -> None:
        """Starts the ticks on the running loop."""
        settings = self._manager.settings
        delay_ms = settings.initial_task_delay_ms
        every = self._ticker.every
        every(
            "log-retention",
            lambda: self._manager.settings.retention_check_interval_ms,
            delay_ms,
            self.retention_tick,
        )
        every("log-flusher", self._flush_interval_ms, min(delay_ms, IDLE_FLUSH_TICK_MS), self.flush_tick)
        every(
            "recovery-point-checkpoint",
            lambda: self._manager.settings.recovery_point_checkpoint_interval_ms,
            delay_ms,
            self.checkpoint_recovery_points,
        )
        every(
            "log-start-offset-checkpoint",
            lambda: self._manager.settings.log_start_offset_checkpoint_interval_ms,
            delay_ms,
            self.checkpoint_log_start_offsets,
        )
        every(
            "producer-id-expiry",
            lambda: self._manager.settings.producer_id_expiration_check_interval_ms,
            delay_ms,
            self.producer_expiry_tick,
        )

    async def stop(self) -> None:
        """Ends the ticks and waits for flushes under way."""
        await self._ticker.stop()
        if self._flushing:
            await asyncio.gather(*self._flushing)

    # -- what the manager reports --

    def config_changed(self, tp: TopicPartition, log: Log) -> None:
        """Remembers the logs that are flushed by time: usually none, so the tick is free."""
        if log.config.flush_ms < MAX_LONG:
            self._flush_by_time[tp] = log
        else:
            self._flush_by_time.pop(tp, None)

    def removed(self, tp: TopicPartition) -> None:
        self._flush_by_time.pop(tp, None)

    # -- retention and producers --

    async def retention_tick(self) -> None:
        """Retires old segments of logs that are not compacted; the cleaner sees to the others."""
        manager = self._manager
        logs = [(tp, log) for tp, log in manager.current_logs.items() if not log.config.compact]
        await self.retention.run(logs, manager.cleaner.may_touch)
        future = [(tp, log) for tp, log in manager.future_logs.items() if not log.config.compact]
        await self.retention.run(future, lambda tp: True)

    async def producer_expiry_tick(self) -> None:
        """Forgets producers that have been silent for producer.id.expiration.ms."""
        now_ms = self._manager.clock.now_ms()

        def expire(log: Log) -> None:
            if not log.failed:
                log.producers.remove_expired(now_ms)

        await in_slices(list(self._manager.all_logs()), expire)

    # -- flushing --

    def _flush_interval_ms(self) -> float:
        # Apache flushes by flush.ms only as often as log.flush.scheduler.interval.ms, which is never unless
        # it is set, so that a topic's flush.ms alone does nothing. Here it does what it says.
        shortest = min(
            (log.config.flush_ms for log in self._flush_by_time.values()), default=IDLE_FLUSH_TICK_MS
        )
        return max(MIN_FLUSH_TICK_MS, min(shortest, self._manager.settings.flush_scheduler_interval_ms))

    async def flush_tick(self) -> None:
        """Flushes the logs whose flush.ms has passed with messages unflushed."""
        now_ms = self._manager.clock.now_ms()
        due = [log for log in self._flush_by_time.values() if not log.failed and log.flush_needed(now_ms)]
        await asyncio.gather(*(self.flush(log) for log in due))

    async def flush(self, log: Log, upto: int | None = None) -> None:
        """fsync in a thread, up to `upto` or the end.

        A failure has taken the directory offline when this raises.
        """
        now_ms = self._manager.clock.now_ms()
        await in_thread(self._manager.pool, lambda: log.flush(upto, now_ms=now_ms))

    def flush_after_roll(self, log: Log, upto: int) -> None:
        """A rolled segment goes to disk soon, in the background.

        Several rolls of a log meanwhile are one flush.
        """
        waiting = log in self._flush_due
        self._flush_due[log] = upto
        if not waiting:
            task = spawn(
                self._flush_rolled(log), name=f"flush {log.topic_partition} after a roll", owner=OWNER
            )
            self._flushing.add(task)
            task.add_done_callback(self._flushing.discard)

    async def _flush_rolled(self, log: Log) -> None:
        upto = -1
        try:
            while self._flush_due[log] > upto:
                upto = self._flush_due[log]
                await self.flush(log, upto)
        except KafkaError as error:
            logger.error("flush of %s after a roll failed: %s", log.topic_partition, error)
        finally:
            del self._flush_due[log]

    # -- checkpoints --

    async def checkpoint_recovery_points(self) -> None:
        """recovery-point-offset-checkpoint in every directory."""
        for log_dir in self._manager.dirs.online:
            await self._write_asked(log_dir, log_dir.recovery_points, _recovery_point)

    async def checkpoint_log_start_offsets(self) -> None:
        """log-start-offset-checkpoint: only logs that begin inside a segment need it."""
        for log_dir in self._manager.dirs.online:
            await self._write_asked(log_dir, log_dir.log_start_offsets, _log_start)

    async def checkpoint_high_watermarks(self, high_watermark_of: HighWatermarkOf) -> None:
        """replication-offset-checkpoint in every directory."""
        manager = self._manager

        def high_watermark(log: Log) -> int | None:
            tp = log.topic_partition
            return high_watermark_of(tp) if manager.get(tp) is log else None

        for log_dir in manager.dirs.online:
            await self._write_asked(log_dir, log_dir.high_watermarks, high_watermark)

    async def checkpoint_dirs(self, log_dirs: Iterable[LogDir]) -> bool:
        """The offsets of some directories' logs: a log has come, gone or been cut.

        False if one could not be written for want of descriptors: a start would trust the one before.
        """
        is_written = True
        for log_dir in log_dirs:
            is_written &= await self._manager.cleaner.write_checkpoint(log_dir)
            is_written &= await self._write_asked(log_dir, log_dir.recovery_points, _recovery_point)
            is_written &= await self._write_asked(log_dir, log_dir.log_start_offsets, _log_start)
        return is_written

    async def write(
        self, log_dir: LogDir, checkpoint: OffsetCheckpoint, offsets: dict[TopicPartition, int]
    ) -> bool:
        """Writes a checkpoint file in a thread, one after the other; a failure takes the directory offline.

        False if it is online still, and the file as it was.
        """
        async with self._writing.setdefault(checkpoint, asyncio.Lock()):
            return await self._write(log_dir, checkpoint, offsets)

    async def _write_asked(
        self, log_dir: LogDir, checkpoint: OffsetCheckpoint, offset_of: Callable[[Log], int | None]
    ) -> bool:
        """What each log says. They are asked when it is this writer's turn, so that nothing older is written later."""
        manager, offsets = self._manager, dict[TopicPartition, int]()

        def ask(log: Log) -> None:
            tp = log.topic_partition
            is_there = manager.current_logs.get(tp) is log or manager.future_logs.get(tp) is log
            if is_there and manager.dir_of(log) is log_dir and (offset := offset_of(log)) is not None:
                offsets[tp] = offset

        async with self._writing.setdefault(checkpoint, asyncio.Lock()):
            await in_slices(list(manager.all_logs()), ask)
            return await self._write(log_dir, checkpoint, offsets)

    async def _write(
        self, log_dir: LogDir, checkpoint: OffsetCheckpoint, offsets: dict[TopicPartition, int]
    ) -> bool:
        if not log_dir.online:
            return True
        try:
            await in_thread(self._manager.pool, checkpoint.write, offsets)
        except OSError as error:
            self._manager.fail_dir(log_dir, error)
            return not log_dir.online
        return True

    # -- the clean stop --

    async def close_dir(self, log_dir: LogDir, broker_epoch: int) -> None:
        """Flushes and closes a directory's logs, writes its checkpoints and, if all went well, the marker."""
        manager = self._manager
        logs = [log for log in manager.all_logs() if manager.dir_of(log) is log_dir]
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(manager.pool, _close_logs, logs, manager.clock.now_ms())
        except (OSError, KafkaError) as error:
            logger.error("log directory %s is not stopped cleanly: %s", log_dir.path, error)
            manager.fail_dir(log_dir, error)
            return
        is_written = await self.checkpoint_dirs([log_dir])
        if is_written and log_dir.online and log_dir.loaded:
            await loop.run_in_executor(manager.pool, log_dir.clean_shutdown.write, broker_epoch)


def _recovery_point(log: Log) -> int:
    return log.recovery_point


def _log_start(log: Log) -> int | None:
    """Where the log begins, if that is inside a segment."""
    return log.log_start_offset if log.log_start_offset > log.segments[0].base_offset else None


def _close_logs(logs: list[Log], now_ms: int) -> None:
    for log in logs:
        log.flush(now_ms=now_ms)
        log.close()
