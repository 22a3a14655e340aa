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
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid
from ottla.model.tasks import spawn
from ottla.storage import loading
from ottla.storage.background import in_slices, in_thread, remove_tree
from ottla.storage.config import LogConfig, LogManagerSettings
from ottla.storage.dirs.checkpoints import UNKNOWN_BROKER_EPOCH
from ottla.storage.dirs.log_dir import (
    DirKind,
    LogDir,
    PartitionDir,
    dir_name,
    future_dir_name,
    stray_dir_name,
)
from ottla.storage.errors import RecoveryAbortedError, is_out_of_files
from ottla.storage.files import fsync_dir
from ottla.storage.log.log import Log
from ottla.storage.log_store import LogStore

if TYPE_CHECKING:
    pass


# ----------------------------------------
# What DescribeLogDirs shows of the log directories: sizes, lags, free space (KIP-113, KIP-827).


INVALID_OFFSET_LAG: Final = -1
UNKNOWN_VOLUME_BYTES: Final = -1


class ReplicaInfo(NamedTuple):
    """One log as DescribeLogDirs shows it."""

    topic_partition: TopicPartition
    size_bytes: int
    offset_lag: int
    is_future: bool


class LogDirInfo(NamedTuple):
    """One directory as DescribeLogDirs shows it."""

    path: str
    directory_id: Uuid | None
    error: ErrorCode | None
    replicas: list[ReplicaInfo]
    total_bytes: int
    usable_bytes: int
    cordoned: bool


async def describe_log_dirs(
    manager: "LogManager", tps: Collection[TopicPartition] | None = None
) -> list[LogDirInfo]:
    """Every directory with its logs: those in `tps`, or all. An offline one shows its error and no logs."""
    replicas = await _replicas_by_dir(manager, tps)
    return [await _describe_dir(manager, log_dir, replicas.get(log_dir, [])) for log_dir in manager.dirs]


async def _describe_dir(manager: "LogManager", log_dir: LogDir, replicas: list[ReplicaInfo]) -> LogDirInfo:
    total_bytes = usable_bytes = UNKNOWN_VOLUME_BYTES
    if log_dir.online:
        try:
            # Asking a hung file system for its size waits: in a thread.
            usage = await asyncio.get_running_loop().run_in_executor(manager.pool, log_dir.usage)
            total_bytes, usable_bytes = usage
        except OSError as error:
            manager.fail_dir(log_dir, error)
    return LogDirInfo(
        str(log_dir.path),
        log_dir.id,
        None if log_dir.online else ErrorCode.KAFKA_STORAGE_ERROR,
        replicas if log_dir.online else [],
        total_bytes,
        usable_bytes,
        manager.is_cordoned(log_dir),
    )


async def _replicas_by_dir(
    manager: "LogManager", tps: Collection[TopicPartition] | None
) -> dict[LogDir, list[ReplicaInfo]]:
    by_dir: dict[LogDir, list[ReplicaInfo]] = {}
    for logs, is_future in ((manager.current_logs, False), (manager.future_logs, True)):

        def visit(
            tp: TopicPartition, logs: Mapping[TopicPartition, Log] = logs, is_future: bool = is_future
        ) -> None:
            log = logs.get(tp)
            if log is not None:
                lag = _offset_lag(manager, tp, log, is_future)
                info = ReplicaInfo(tp, log.size_bytes, lag, is_future)
                by_dir.setdefault(manager.dir_of(log), []).append(info)

        await in_slices(list(logs) if tps is None else tps, visit)
    return by_dir


def _offset_lag(manager: "LogManager", tp: TopicPartition, log: Log, is_future: bool) -> int:
    if not is_future:
        return max(log.high_watermark - log.log_end_offset, 0)
    current = manager.get(tp)
    return INVALID_OFFSET_LAG if current is None else current.log_end_offset - log.log_end_offset


logger = logging.getLogger(__name__)


class DuplicateLogError(RuntimeError):
    """A partition lies in two directories; a person must say which one counts."""


def _never_stray(log: Log) -> bool:
    return False


def _progress(log: Log) -> tuple[int, int, int]:
    """Of two copies of one log the larger has everything the other has."""
    return log.epochs.latest, log.log_end_offset, log.log_start_offset


def _begins_like(longer: Log, shorter: Log) -> bool:
    """Is the last batch of one log in the other, too? Then everything before it is."""
    if longer.topic_id != shorter.topic_id:
        return False
    last_offset = shorter.log_end_offset - 1
    if last_offset < shorter.log_start_offset:
        return True
    try:
        ours, theirs = (log.read(last_offset, 1, log.log_end_offset).read() for log in (shorter, longer))
    except KafkaError:
        return False  # deleted or damaged: nothing can be said
    return ours == theirs != b""


class LogManager(LogStore):
    """The broker's logs."""

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
        with loading.without_gc():
            loading_dirs = [self._load_dir(log_dir, config_of, is_stray) for log_dir in self.online_dirs]
            for outcome in await asyncio.gather(*loading_dirs, return_exceptions=True):
                if outcome is not None:
                    raise outcome
        self._promote_those_ahead()

    def stop_loading(self) -> None:
        """Ends a load that is under way: it raises RecoveryAbortedError, and only `abandon` may follow."""
        self._loading_stopped = True

    def _check_loading(self) -> None:
        """In the loading threads."""
        if self._loading_stopped:
            raise RecoveryAbortedError

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
                self.pool,
                loading.prepare,
                log_dir,
                topic_config,
                self.settings,
                self.clock.now_ms(),
                self._check_loading,
            )
            self.cleaner.load_checkpoints(log_dir)
            self._sort_out_marked(found)
            await loading.open_logs(
                log_dir, opening, found, lambda o: self._register_loaded(log_dir, o, is_stray)
            )
        except (OSError, KafkaError) as error:
            if is_out_of_files(error) or not loading.is_disk_error(error):
                raise  # a directory of which only some logs are known must not be served
            self.fail_dir(log_dir, error)
            return
        log_dir.loaded = True
        how = "after a clean stop" if opening.clean else "with recovery" if found else "(it is new)"
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
            if _progress(log) < _progress(other):
                self._set_aside_copy(log, other)
                return
            self._set_aside_copy(other, log)
            self._remove(logs, tp)
        self._add(logs, tp, log, log_dir)

    def _set_aside_copy(self, shorter: Log, longer: Log) -> None:
        """The broker stopped, or a directory failed, while a log was moved: the one that goes further is served."""
        if not _begins_like(longer, shorter):
            raise DuplicateLogError(
                f"the log of {longer.topic_partition} lies in both {shorter.dir} and {longer.dir}, and neither "
                "goes on where the other ends; a directory probably failed while the log was moved between them: "
                "delete the one in the directory that failed"
            )
        old = shorter.dir
        shorter.rename_dir(old.parent / stray_dir_name(shorter.topic_partition))
        shorter.close_handlers()
        logger.warning(
            "%s lies in two directories since it was moved; %s, which ends at offset %d, is served, and %s, which "
            "ends at offset %d, is renamed to %s and kept",
            longer.topic_partition,
            longer.dir,
            longer.log_end_offset,
            old,
            shorter.log_end_offset,
            shorter.dir.name,
        )

    def _promote_those_ahead(self) -> None:
        """A copy never goes further than its log, unless it had taken its place and a power cut undid the rename."""
        for tp, copy in list(self._future.items()):
            source = self._current.get(tp)
            if source is None or _progress(copy)[:2] <= _progress(source)[:2]:
                continue
            if _begins_like(copy, source):
                self._set_aside_copy(source, copy)
                self._swap(tp, copy)

    def _set_aside(self, log: Log) -> None:
        old = log.dir
        log.rename_dir(old.parent / stray_dir_name(log.topic_partition))
        log.close_handlers()
        logger.warning("%s is unknown to the cluster; renamed to %s and kept", old, log.dir.name)

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

    async def flush_future(self, tp: TopicPartition) -> None:
        """Brings the copy to the disk, and its directory's name, while the current log goes on serving.

        Before it is promoted, so that what the old log had on the disk the new one has there too.
        """
        copy = self._future.get(tp)
        if copy is not None:
            await self._bring_to_disk(copy)

    async def promote_future(self, tp: TopicPartition) -> Log:
        """The copy has caught up: it becomes the current log, and the old one is deleted by and by.

        If that cannot be finished the old log is the current one again, with what the copy was given meanwhile, and
        the error is raised. A caller that is cancelled only stops waiting.
        """
        source, copy = self._current.get(tp), self._future.get(tp)
        if source is None or copy is None:
            which = "current" if source is None else "future"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The {which} replica for {tp} is offline")
        copy.update_high_watermark(source.high_watermark)
        copy.maybe_increment_log_start_offset(source.log_start_offset, "move between directories")
        await self._promote(tp, source, copy)
        return copy

    async def adopt_futures(self, is_assigned: Callable[[TopicPartition, Uuid], bool]) -> None:
        """After load: a copy becomes current if the cluster has its directory as the partition's already.

        The broker stopped after the assignment and before the promotion (KIP-858).
        """
        for tp, copy in list(self._future.items()):
            directory_id = self.directory_id(copy)
            if directory_id is not None and is_assigned(tp, directory_id):
                logger.info("%s becomes the log of %s", copy.dir, tp)
                await self._bring_to_disk(copy)
                await self._promote(tp, self._current.get(tp), copy)

    async def _promote(self, tp: TopicPartition, source: Log | None, copy: Log) -> None:
        """The swap happens before the first await; the source keeps its name until the copy is on the disk.

        A crash in between leaves both under the partition's name: the next load serves the one that goes further.
        """
        self._swap(tp, copy)
        if source is not None:
            self._replaced[tp] = source
        finishing = spawn(
            self._finish_promotion(tp, source, copy), name=f"finish the move of {tp}", owner="log manager"
        )
        self._finishing.add(finishing)
        finishing.add_done_callback(self._finishing.discard)
        error = await asyncio.shield(finishing)
        if error is not None:
            raise error

    def _swap(self, tp: TopicPartition, copy: Log) -> None:
        copy.rename_dir(copy.dir.parent / dir_name(tp))
        copy_dir, clean_offset = self.dir_of(copy), self.cleaner.clean_offset(tp)
        self._remove(self._future, tp)
        self._remove(self._current, tp)
        self._add(self._current, tp, copy, copy_dir)
        self.cleaner.moved(tp, clean_offset)

    async def _finish_promotion(
        self, tp: TopicPartition, source: Log | None, copy: Log
    ) -> OSError | KafkaError | None:
        copy_dir = self.dir_of(copy)
        try:
            await self._bring_to_disk(copy)
        except (OSError, KafkaError) as error:
            if not copy.failed:
                # For want of descriptors: the copy is served, and both keep their names until the next load.
                logger.error(
                    "%s was moved to %s, but %s stays: %s", tp, copy.dir, source and source.dir, error
                )
            elif source is not None and self._replaced.pop(tp, None) is source:
                self._take_back(tp, source, copy)
            return error
        if source is not None and self._replaced.pop(tp, None) is source and self._rename_away(source):
            self._delete_later(source)
            await self.background.checkpoint_dirs([self.dir_of(source)])
        await self.background.checkpoint_dirs([copy_dir])
        return None

    async def _bring_to_disk(self, log: Log) -> None:
        """Everything in the log, and the name of its directory."""
        log_dir = self.dir_of(log)
        await self.background.flush(log)
        try:
            await in_thread(self.pool, fsync_dir, log_dir.path)
        except OSError as error:
            self.fail_dir(log_dir, error)
            raise

    def _take_back(self, tp: TopicPartition, source: Log, copy: Log) -> None:
        """The copy could not be brought to the disk: the source is the log again, with what came after the swap.

        Nothing is appended to a failed log any more, and what was is still in memory. If it cannot be had, the
        partition stays offline: the source alone would give offsets away a second time.
        """
        source_dir = self.dir_of(source)
        if source.failed or not source_dir.online:
            return
        try:
            source.append_rest_of(copy, self.clock.now_ms())
        except (OSError, KafkaError) as error:
            logger.error("%s stays offline: what was written to %s cannot be read: %s", tp, copy.dir, error)
            return
        self._remove(self._current, tp)
        self._offline.pop(tp, None)
        source.update_high_watermark(copy.high_watermark)
        self._add(self._current, tp, source, source_dir)
        logger.warning("%s is not moved: it goes on in %s", tp, source.dir)

    async def cancel_future(self, tp: TopicPartition) -> None:
        """The move is off: the copy is deleted, cleaning goes on."""
        log = self._remove(self._future, tp)
        if log is not None:
            self._retire(log)
            await self.background.checkpoint_dirs([self.dir_of(log)])

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
        if self._finishing:
            await asyncio.gather(*self._finishing)
        for log in list(self._retiring.values()):
            self._retire(log)
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
