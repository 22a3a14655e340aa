"""All logs of a broker, over several log directories: loading, creating, moving, deleting, failing, stopping.

The manager belongs to the broker's event loop: every method is called on it, and what waits for a disk
(fsync, checkpoints, unlinking, recovery) runs in its thread pool. Background work is a handful of ticks
that visit logs in slices (see background.py); compaction runs in a process of its own (see
cleaner_manager.py).

A directory that fails goes offline for good: its logs leave the manager, answer KAFKA_STORAGE_ERROR, and
the owner is told by `on_dir_failure` (KIP-112, KIP-858). With the last one gone `on_all_dirs_failed` is
called.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid, uuid_to_str
from ottla.storage import loading
from ottla.storage.background import BackgroundWork
from ottla.storage.checkpoints import UNKNOWN_BROKER_EPOCH
from ottla.storage.cleaner_manager import CleanerManager
from ottla.storage.deletion import Deletions, remove_tree
from ottla.storage.describe import LogDirInfo, describe_log_dirs
from ottla.storage.errors import StorageError
from ottla.storage.log import Log
from ottla.storage.log_config import LogConfig
from ottla.storage.log_dir import (
    DirKind,
    LogDir,
    PartitionDir,
    dir_name,
    future_dir_name,
    open_log_dirs,
    stray_dir_name,
)
from ottla.storage.log_registry import LogRegistry
from ottla.storage.settings import LogManagerSettings

logger = logging.getLogger(__name__)


class DuplicateLogError(RuntimeError):
    """A partition lies in two directories; a person must say which one counts."""


def _never_stray(log: Log) -> bool:
    return False


class LogManager(LogRegistry):
    """The broker's logs."""

    def __init__(
        self,
        dirs: Sequence[Path],
        clock: Clock,
        *,
        defaults: LogConfig | None = None,
        settings: LogManagerSettings | None = None,
        on_dir_failure: Callable[[Uuid | None, Exception], None] | None = None,
        on_all_dirs_failed: Callable[[], None] | None = None,
    ) -> None:
        """Locks the directories and reads who they are.

        DirLockedError or MetaPropertiesError if they are not ours.
        """
        super().__init__(open_log_dirs(dirs))
        self.clock = clock
        self.settings = settings or LogManagerSettings()
        self.defaults = defaults or LogConfig()
        self.on_dir_failure = on_dir_failure
        self.on_all_dirs_failed = on_all_dirs_failed
        self.previous_broker_epoch = UNKNOWN_BROKER_EPOCH
        self._loop: asyncio.AbstractEventLoop | None = None
        self.pool = ThreadPoolExecutor(self.settings.background_threads, thread_name_prefix="storage")
        self.deletions = Deletions(clock, self.pool)
        self.cleaner = CleanerManager(self)
        self.background = BackgroundWork(self)

    # -- loading --

    async def load(
        self,
        topic_config: Callable[[str], LogConfig] | None = None,
        is_stray: Callable[[Log], bool] = _never_stray,
    ) -> None:
        """Opens every log on disk.

        `is_stray` says whether the cluster does not know of a log; it is renamed aside.
        """
        self._loop = asyncio.get_running_loop()
        self.previous_broker_epoch = self._read_broker_epoch()
        config_of = topic_config or (lambda topic: self.defaults)
        await asyncio.gather(*(self._load_dir(log_dir, config_of, is_stray) for log_dir in self.online_dirs))

    def _read_broker_epoch(self) -> int:
        """The epoch of the last clean stop, if every directory agrees on it (KIP-966)."""
        epochs = {log_dir.clean_shutdown.read_broker_epoch() for log_dir in self.online_dirs}
        return epochs.pop() if len(epochs) == 1 and not self.offline_dirs else UNKNOWN_BROKER_EPOCH

    async def _load_dir(
        self, log_dir: LogDir, topic_config: Callable[[str], LogConfig], is_stray: Callable[[Log], bool]
    ) -> None:
        begin_ms = self.clock.monotonic_ms()
        try:
            opening, found = await asyncio.get_running_loop().run_in_executor(
                self.pool, loading.prepare, log_dir, topic_config, self.settings, self.clock.now_ms()
            )
            self.cleaner.load_checkpoints(log_dir)
            self._sort_out_marked(found)
            await loading.open_logs(
                log_dir, opening, found, lambda o: self._register_loaded(log_dir, o, is_stray)
            )
        except (OSError, KafkaError) as error:
            if not loading.is_disk_error(error):
                raise
            self.fail_dir(log_dir, error)
            return
        log_dir.loaded = True
        how = "after a clean stop" if opening.clean else "with recovery"
        took_ms = self.clock.monotonic_ms() - begin_ms
        logger.info("loaded %d logs from %s %s in %d ms", log_dir.log_count, log_dir.path, how, took_ms)

    def _sort_out_marked(self, found: list[PartitionDir]) -> None:
        for entry in found:
            if entry.kind is DirKind.DELETE:
                self._schedule_tree_deletion(entry.path)
            elif entry.kind is DirKind.STRAY:
                logger.warning("%s is a stray log from before; it is kept, nobody reads it", entry.path)

    def _schedule_tree_deletion(self, path: Path) -> None:
        self.deletions.schedule(self.defaults.file_delete_delay_ms, str(path), lambda: remove_tree(path))

    def _register_loaded(
        self, log_dir: LogDir, opened: loading.Opened, is_stray: Callable[[Log], bool]
    ) -> None:
        log, tp = opened.log, opened.partition_dir.topic_partition
        if is_stray(log):
            self._set_aside(log)
            return
        logs = self._future if opened.partition_dir.kind is DirKind.FUTURE else self._current
        other = logs.get(tp)
        if other is not None:
            raise DuplicateLogError(
                f"the log of {tp} lies in both {other.dir} and {log.dir}; a directory probably failed "
                "while the log was moved between them: delete the one in the directory that failed"
            )
        self._add(logs, tp, log, log_dir)

    def _set_aside(self, log: Log) -> None:
        old = log.dir
        log.rename_dir(old.parent / stray_dir_name(log.topic_partition))
        log.close_handlers()
        logger.warning("%s is unknown to the cluster; renamed to %s and kept", old, log.dir.name)

    def _add(self, logs: dict[TopicPartition, Log], tp: TopicPartition, log: Log, log_dir: LogDir) -> None:
        log.on_failure = self._log_failed
        log.on_roll = self.background.flush_after_roll
        logs[tp] = log
        self._placed[log] = log_dir
        log_dir.log_count += 1
        if logs is self._current:
            self._watch(tp, log)
        else:
            # A segment swapped out of the log being copied would be copied twice or not at all.
            self.cleaner.abort_and_pause(tp)

    def _watch(self, tp: TopicPartition, log: Log) -> None:
        self.cleaner.config_changed(tp, log)
        self.background.config_changed(tp, log)

    def _remove(self, logs: dict[TopicPartition, Log], tp: TopicPartition) -> Log | None:
        log = logs.pop(tp, None)
        if log is not None:
            self._placed.pop(log).log_count -= 1
            if logs is self._current:
                self.cleaner.removed(tp)
                self.background.removed(tp)
            else:
                self.cleaner.resume(tp)
        return log

    # -- logs --

    def get_or_create(
        self,
        tp: TopicPartition,
        topic_id: Uuid | None,
        config: LogConfig | None = None,
        *,
        is_new: bool = True,
        directory_id: Uuid | None = None,
    ) -> Log:
        """The partition's log, created if need be in the directory asked for or the one with the fewest logs.

        `is_new` False says the broker had this partition before: with a directory offline its log may be
        there, so creating an empty one would lose it, and KAFKA_STORAGE_ERROR is raised.
        INCONSISTENT_TOPIC_ID if the log on disk is another topic's.
        """
        log = self._current.get(tp)
        if log is None:
            self._refuse_if_maybe_offline(tp, is_new)
            wanted = self.dir_by_id(directory_id) if directory_id is not None else None
            candidates = [wanted] if wanted is not None else self.dirs_by_load()
            log = self._create(self._current, tp, dir_name(tp), topic_id, config, candidates)
        elif topic_id is not None and log.topic_id is not None and log.topic_id != topic_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"Tried to assign topic ID {uuid_to_str(topic_id)} to log for topic partition {tp}, "
                f"but log already contained topic ID {uuid_to_str(log.topic_id)}",
            )
        elif topic_id is not None and log.topic_id is None:
            log.assign_topic_id(topic_id)
        return log

    def _refuse_if_maybe_offline(self, tp: TopicPartition, is_new: bool) -> None:
        if (not is_new and self.offline_dirs) or tp in self._offline:
            paths = ", ".join(str(log_dir.path) for log_dir in self.offline_dirs)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"Can not create log for {tp} because log directories {paths} are offline",
            )

    def _create(
        self,
        logs: dict[TopicPartition, Log],
        tp: TopicPartition,
        name: str,
        topic_id: Uuid | None,
        config: LogConfig | None,
        candidates: Iterable[LogDir],
    ) -> Log:
        for log_dir in candidates:
            path = log_dir.path / name
            try:
                path.mkdir(exist_ok=True)
                log = self._open_new(path, tp, topic_id, config)
            except OSError as error:
                self.fail_dir(log_dir, error)
                continue
            except StorageError as error:
                self.fail_dir(log_dir, error)
                continue
            self._add(logs, tp, log, log_dir)
            logger.info("created log for partition %s in %s", tp, path)
            return log
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"No log directory is available for {tp}")

    def _open_new(
        self, path: Path, tp: TopicPartition, topic_id: Uuid | None, config: LogConfig | None
    ) -> Log:
        return Log.open(
            path,
            config or self.defaults,
            now_ms=self.clock.now_ms(),
            topic_partition=tp,
            topic_id=topic_id,
            clean=True,
            producer_id_expiration_ms=self.settings.producer_id_expiration_ms,
            max_transaction_timeout_ms=self.settings.max_transaction_timeout_ms,
        )

    # -- configuration --

    def set_topic_defaults(self, config: LogConfig) -> None:
        """What a topic without overrides is opened with from now on.

        The caller updates the logs that exist.
        """
        self.defaults = config

    def update_config(self, tp: TopicPartition, config: LogConfig) -> None:
        """A topic's configuration changed.

        Compaction in progress ends if the topic is no longer compacted.
        """
        for logs in (self._current, self._future):
            log = logs.get(tp)
            if log is not None:
                log.update_config(config)
        log = self._current.get(tp)
        if log is not None:
            self._watch(tp, log)

    def reconfigure(self, settings: LogManagerSettings) -> None:
        """The broker's own configuration changed.

        Ticks and cleaner use the new values from their next round.
        """
        self.settings = settings
        self.cleaner.settings_changed()

    # -- moving between directories (KIP-113) --

    def create_future(self, tp: TopicPartition, log_dir: LogDir) -> Log:
        """An empty log in another directory, for the caller to fill from the current one and then promote."""
        current = self._current.get(tp)
        if current is None:
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"there is no log of {tp} to copy")
        assert self.dir_of(current) is not log_dir, f"{tp} is in {log_dir.path} already"
        if not log_dir.online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {log_dir.path} is offline")
        existing = self._future.get(tp)
        if existing is not None:
            assert self.dir_of(existing) is log_dir, f"{tp} is being moved elsewhere; cancel that first"
            return existing
        return self._create(
            self._future, tp, future_dir_name(tp), current.topic_id, current.config, [log_dir]
        )

    async def promote_future(self, tp: TopicPartition) -> Log:
        """The copy has caught up: it becomes the current log, and the old one is deleted by and by."""
        source, copy = self._current.get(tp), self._future.get(tp)
        if source is None or copy is None:
            which = "current" if source is None else "future"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The {which} replica for {tp} is offline")
        copy.rename_dir(copy.dir.parent / dir_name(tp))
        copy.update_high_watermark(source.high_watermark)
        source_dir, copy_dir = self.dir_of(source), self.dir_of(copy)
        clean_offset = self.cleaner.clean_offset(tp)
        self._remove(self._future, tp)
        self._remove(self._current, tp)
        self._add(self._current, tp, copy, copy_dir)
        self._retire(source)
        self.cleaner.moved(tp, clean_offset)
        await self.background.checkpoint_dirs([source_dir, copy_dir])
        return copy

    async def cancel_future(self, tp: TopicPartition) -> None:
        """The move is off: the copy is deleted, cleaning goes on."""
        log = self._remove(self._future, tp)
        if log is not None:
            self._retire(log)
            await self.background.checkpoint_dirs([self.dir_of(log)])

    # -- deleting --

    async def delete(self, tp: TopicPartition) -> None:
        """Removes the partition's log; its files go in the background.

        The partition may be created again at once.
        """
        await self.delete_all([tp])

    async def delete_all(self, tps: Iterable[TopicPartition]) -> None:
        """Removes many logs and writes the checkpoints once. All renames happen before the first await."""
        touched: dict[Path, LogDir] = {}
        for tp in tps:
            self._offline.pop(tp, None)
            for logs in (self._current, self._future):
                log = self._remove(logs, tp)
                if log is not None:
                    touched[log.dir.parent] = self.dir_of(log)
                    self._retire(log)
        await self.background.checkpoint_dirs(touched.values())

    def _retire(self, log: Log) -> None:
        """Renames a log that has left the manager and lets its files go after file.delete.delay.ms."""
        log_dir = self.dir_of(log)
        try:
            path = log.rename_to_delete()
        except StorageError as error:
            self.fail_dir(log_dir, error)
            return
        self.deletions.schedule(log.config.file_delete_delay_ms, str(path), log.delete)

    # -- truncating --

    async def truncate_to(self, tp: TopicPartition, offset: int) -> None:
        """Cuts the log's end off, cleaning stopped, and makes sure a crash does not trust what is gone."""
        log = self._current[tp]
        with self.cleaner.stopped(tp):
            if log.truncate_to(offset, self.clock.now_ms()):
                self.cleaner.truncated(tp, log.active_segment.base_offset)
        await self.background.checkpoint_dirs([self.dir_of(log)])

    async def truncate_fully_and_start_at(
        self, tp: TopicPartition, offset: int, log_start_offset: int | None = None
    ) -> None:
        """Empties the log and starts it again at `offset`: the leader's log begins later than ours ends."""
        log = self._current[tp]
        with self.cleaner.stopped(tp):
            log.truncate_fully_and_start_at(offset, self.clock.now_ms(), log_start_offset)
            self.cleaner.truncated(tp, log.active_segment.base_offset)
        await self.background.checkpoint_dirs([self.dir_of(log)])

    # -- failures --

    def _log_failed(self, log: Log, error: Exception) -> None:
        """From any thread."""
        log_dir = self._dir_of.get(log.dir.parent)
        assert log_dir is not None, f"{log.dir} is in none of the log directories"
        if self._loop is None or self._loop.is_closed():
            self.fail_dir(log_dir, error)
        else:
            self._loop.call_soon_threadsafe(self.fail_dir, log_dir, error)

    def fail_dir(self, log_dir: LogDir, error: Exception) -> None:
        """The directory is offline from now on, with every log in it. Repeated calls do nothing."""
        if not log_dir.online:
            return
        log_dir.error = error
        logger.error("log directory %s is offline: %s", log_dir.path, error)
        self._drop_logs_of(log_dir)
        if self.on_dir_failure is not None:
            self.on_dir_failure(log_dir.id, error)
        if not self.online_dirs and self.on_all_dirs_failed is not None:
            logger.critical("all log directories have failed")
            self.on_all_dirs_failed()

    def _drop_logs_of(self, log_dir: LogDir) -> None:
        for logs in (self._current, self._future):
            for tp in [tp for tp, log in logs.items() if log.dir.parent == log_dir.path]:
                log = self._remove(logs, tp)
                assert log is not None
                log.failed = True
                log.close_handlers()
                if logs is self._current:
                    self._offline[tp] = log_dir

    # -- checkpoints and description --

    async def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Writes replication-offset-checkpoint in every directory, for the logs that are in it."""
        await self.background.checkpoint_high_watermarks(high_watermarks)

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """The high watermarks checkpointed before the broker stopped."""
        merged: dict[TopicPartition, int] = {}
        for log_dir in self.online_dirs:
            merged.update(loading.read_or_empty(log_dir.high_watermarks))
        return merged

    async def describe(self, tps: Collection[TopicPartition] | None = None) -> list[LogDirInfo]:
        """Every directory with its logs (those in `tps`, or all) for DescribeLogDirs (KIP-113, KIP-827)."""
        return await describe_log_dirs(self, tps)

    # -- life cycle --

    def start(self) -> None:
        """Begins the background work on the running loop; after load()."""
        self._loop = asyncio.get_running_loop()
        self.deletions.start()
        self.background.start()
        if self.settings.cleaner.enable:
            self.cleaner.start()

    async def shutdown(self, broker_epoch: int = UNKNOWN_BROKER_EPOCH) -> None:
        """Stops cleanly: everything on disk, checkpoints, then the marker with the broker epoch."""
        await self.cleaner.stop()
        await self.background.stop()
        await self.deletions.stop()
        try:
            await asyncio.gather(
                *(self.background.close_dir(log_dir, broker_epoch) for log_dir in self.online_dirs)
            )
        finally:
            self.pool.shutdown()
            for log_dir in self.dirs:
                log_dir.lock.release()

    def abandon(self) -> None:
        """Lets everything go with nothing written, as a crash would; for tests and for a failed start."""
        for log in self.all_logs():
            log.close_handlers()
        self.pool.shutdown(wait=False)
        for log_dir in self.dirs:
            log_dir.lock.release()
