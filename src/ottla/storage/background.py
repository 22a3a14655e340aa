"""The log manager's periodic work: retention, flushing, checkpoints, producer expiry; and the clean stop.

A tick visits a snapshot of the logs in slices on the loop and does what waits for the disk in the pool. No
log has a timer of its own: ten thousand idle partitions cost one pass of cheap checks per interval. Owned
by LogManager.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.tasks import spawn
from ottla.storage.checkpoints import OffsetCheckpoint
from ottla.storage.log import Log
from ottla.storage.log_config import MAX_LONG
from ottla.storage.log_dir import LogDir
from ottla.storage.retention import Retention
from ottla.storage.ticks import OWNER, Ticker, in_slices, in_thread

if TYPE_CHECKING:
    from ottla.storage.log_store import LogStore

logger = logging.getLogger(__name__)

# flush.ms of one millisecond must not become a busy loop.
MIN_FLUSH_TICK_MS: Final = 100
# How often to look whether some topic has got a flush.ms, while none has.
IDLE_FLUSH_TICK_MS: Final = 1_000


class BackgroundWork:
    """The ticks, and what they share with the clean stop."""

    def __init__(self, manager: "LogStore") -> None:
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

    # -- what the manager tells us of --

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
                log.remove_expired_producers(now_ms)

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
        by_dir = self._by_dir()
        for log_dir in self._manager.online_dirs:
            offsets = {log.topic_partition: log.recovery_point for log in by_dir.get(log_dir, ())}
            await self.write(log_dir, log_dir.recovery_points, offsets)

    async def checkpoint_log_start_offsets(self) -> None:
        """log-start-offset-checkpoint: only logs that begin inside a segment need it."""
        by_dir = self._by_dir()
        for log_dir in self._manager.online_dirs:
            await self.write(log_dir, log_dir.log_start_offsets, _log_start_offsets(by_dir.get(log_dir, ())))

    async def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """replication-offset-checkpoint in every directory."""
        by_dir: dict[LogDir, dict[TopicPartition, int]] = {
            log_dir: {} for log_dir in self._manager.online_dirs
        }
        for tp, high_watermark in high_watermarks.items():
            log = self._manager.get(tp)
            if log is not None:
                by_dir[self._manager.dir_of(log)][tp] = high_watermark
        for log_dir, offsets in by_dir.items():
            await self.write(log_dir, log_dir.high_watermarks, offsets)

    async def checkpoint_dirs(self, log_dirs: Iterable[LogDir]) -> None:
        """The offsets of some directories' logs: a log has come, gone or been cut."""
        by_dir = self._by_dir()
        for log_dir in log_dirs:
            await self._manager.cleaner.write_checkpoint(log_dir)
            logs = by_dir.get(log_dir, ())
            await self.write(
                log_dir, log_dir.recovery_points, {log.topic_partition: log.recovery_point for log in logs}
            )
            await self.write(log_dir, log_dir.log_start_offsets, _log_start_offsets(logs))

    def _by_dir(self) -> dict[LogDir, list[Log]]:
        by_dir: dict[LogDir, list[Log]] = {}
        for log in self._manager.all_logs():
            by_dir.setdefault(self._manager.dir_of(log), []).append(log)
        return by_dir

    async def write(
        self, log_dir: LogDir, checkpoint: OffsetCheckpoint, offsets: dict[TopicPartition, int]
    ) -> None:
        """Writes a checkpoint file in a thread, one after the other; a failure takes the directory offline."""
        async with self._writing.setdefault(checkpoint, asyncio.Lock()):
            if not log_dir.online:
                return
            try:
                await in_thread(self._manager.pool, checkpoint.write, offsets)
            except OSError as error:
                self._manager.fail_dir(log_dir, error)

    # -- the clean stop --

    async def close_dir(self, log_dir: LogDir, broker_epoch: int) -> None:
        """Flushes and closes a directory's logs, writes its checkpoints and, if all went well, the marker."""
        manager = self._manager
        logs = self._by_dir().get(log_dir, [])
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(manager.pool, _close_logs, logs, manager.clock.now_ms())
        except (OSError, KafkaError) as error:
            logger.error("log directory %s is not stopped cleanly: %s", log_dir.path, error)
            manager.fail_dir(log_dir, error)
            return
        await self.checkpoint_dirs([log_dir])
        if log_dir.online and log_dir.loaded:
            await loop.run_in_executor(manager.pool, log_dir.clean_shutdown.write, broker_epoch)


def _log_start_offsets(logs: Iterable[Log]) -> dict[TopicPartition, int]:
    return {
        log.topic_partition: log.log_start_offset
        for log in logs
        if log.log_start_offset > log.segments[0].base_offset
    }


def _close_logs(logs: list[Log], now_ms: int) -> None:
    for log in logs:
        log.flush(now_ms=now_ms)
        log.close()
