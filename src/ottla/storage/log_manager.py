"""Kafka's LogManager: all logs of a broker, over several log directories.

They are loaded, created, moved, deleted, and lost with a directory that fails. The manager belongs to the broker's
event loop: every method is called on it, and what waits for a disk (fsync, checkpoints, unlinking, recovery) runs in
its thread pool. Its parts: the directories (LogDirs), deletions that wait for their time (Deletions), the periodic work
that visits logs in slices (BackgroundWork), and compaction (LogCleanerManager), which runs in a process of its own.

A log that leaves is renamed before its name is used again, at once and on the loop, so that a topic may be deleted and
created again under the same name without anybody waiting. Only `create_ahead` makes files in a thread: a file system's
journal may let anyone wait who creates a file, and a topic has thousands.

A directory that fails goes offline for good: its logs leave the manager, answer KAFKA_STORAGE_ERROR, and
`on_dir_failure` is called (KIP-112, KIP-858). With the last one gone `on_all_dirs_failed` is called.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid, uuid_to_str
from ottla.model.tasks import guarded, spawn
from ottla.storage import loading
from ottla.storage.background import (
    BackgroundWork,
    Deletions,
    HighWatermarkOf,
    in_slices,
    in_thread,
    remove_tree,
)
from ottla.storage.cleaner.manager import LogCleanerManager
from ottla.storage.config import LogConfig, LogManagerSettings
from ottla.storage.dirs.checkpoints import UNKNOWN_BROKER_EPOCH
from ottla.storage.dirs.log_dir import (
    DELETE_SUFFIX,
    DirKind,
    LogDir,
    PartitionDir,
    dir_name,
    future_dir_name,
    open_log_dirs,
    stray_dir_name,
)
from ottla.storage.errors import OutOfFilesError, RecoveryAbortedError, StorageError, is_out_of_files
from ottla.storage.files import FILES_A_CONNECTION, FILES_A_SEGMENT, fsync_dir, open_files
from ottla.storage.log.log import Log
from ottla.storage.segment.segment import LogSegment

logger = logging.getLogger(__name__)

# How many logs a thread makes before the loop takes them over.
LOGS_AHEAD: Final = 64

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


class NewLog(NamedTuple):
    """A log that is wanted, with the directory it was assigned to if it was."""

    topic_partition: TopicPartition
    topic_id: Uuid | None
    config: LogConfig
    directory_id: Uuid | None


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


def _has_all_of(copy: Log, source: Log) -> bool:
    return copy.log_end_offset >= source.log_end_offset and _begins_like(copy, source)


class LogManager:
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
        open_files.use_limit_of_process()
        open_files.wanted = self._files_wanted
        open_files.wanted_to_write = lambda: FILES_A_SEGMENT * (len(self._current) + len(self._future))
        self.dirs = open_log_dirs(dirs)
        self._current: dict[TopicPartition, Log] = {}
        self._future: dict[TopicPartition, Log] = {}
        # The partitions whose logs went with a failed directory.
        self._offline: dict[TopicPartition, LogDir] = {}
        # Asked for ten thousand logs every few seconds: taking the paths apart would cost more than the checkpoint.
        self._placed: dict[Log, LogDir] = {}
        self.clock = clock
        self.settings = settings or LogManagerSettings()
        self.defaults = defaults or LogConfig()
        self.on_dir_failure = on_dir_failure
        self.on_all_dirs_failed = on_all_dirs_failed
        # Of the clean stop before; read before anything is loaded, because a load begins another life.
        self.previous_broker_epoch = self._read_broker_epoch()
        self._loading_stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # Deleted, but still under their own names: whoever wants such a name renames them first.
        self._retiring: dict[str, Log] = {}
        # Logs whose copies took their places and are not on the disk yet: until then they keep their names.
        self._replaced: dict[TopicPartition, Log] = {}
        # Logs that were cut since the checkpoints of their directories were written, and those that are being written.
        self._cut: dict[Log, LogDir] = {}
        self._checkpointed_cuts: dict[Log, LogDir] = {}
        self._checkpointing_cuts = asyncio.Lock()
        self._finishing: set[asyncio.Task[OSError | KafkaError | None]] = set()
        self.pool = ThreadPoolExecutor(self.settings.background_threads, thread_name_prefix="storage")
        self.deletions = Deletions(clock, self.pool)
        self.cleaner = LogCleanerManager(self)
        self.background = BackgroundWork(self)

    def _files_wanted(self) -> int:
        """How many files there would be if none was ever closed: a log file and an index a segment, connections too."""
        segments = sum(len(log.segments) for log in list(self.all_logs()))
        return FILES_A_SEGMENT * segments + FILES_A_CONNECTION * open_files.max_connections()

    # -- which logs there are --

    def get(self, tp: TopicPartition) -> Log | None:
        """The partition's current log."""
        return self._current.get(tp)

    def get_future(self, tp: TopicPartition) -> Log | None:
        """The copy being made in another directory, if one is."""
        return self._future.get(tp)

    @property
    def current_logs(self) -> Mapping[TopicPartition, Log]:
        return self._current

    @property
    def future_logs(self) -> Mapping[TopicPartition, Log]:
        return self._future

    def all_logs(self) -> Iterator[Log]:
        yield from self._current.values()
        yield from self._future.values()

    def dir_of(self, log: Log) -> LogDir:
        """The directory the log lies in, or lay in before it left the manager."""
        return self._placed.get(log) or self.dirs.holding(log.dir)

    def directory_id(self, log: Log) -> Uuid | None:
        """The id of the directory the log lies in."""
        return self.dir_of(log).id

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
        config_of = topic_config or (lambda topic: self.defaults)
        with loading.without_gc():
            loading_dirs = [self._load_dir(log_dir, config_of, is_stray) for log_dir in self.dirs.online]
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
        epochs = {log_dir.clean_shutdown.read_broker_epoch() for log_dir in self.dirs.online}
        return epochs.pop() if len(epochs) == 1 and not self.dirs.offline else UNKNOWN_BROKER_EPOCH

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

    def set_aside(self, log: Log) -> None:
        """The cluster does not know of a loaded log any more: as one that it has not known at the load."""
        logs = self._future if self._future.get(log.topic_partition) is log else self._current
        log_dir = self.dir_of(log)
        self._remove(logs, log.topic_partition)
        try:
            self._set_aside(log)
        except StorageError as error:
            self.fail_dir(log_dir, error)

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
        if settings.producer_id_expiration_ms != self.settings.producer_id_expiration_ms:
            for log in self.all_logs():
                log.producers.expiration_ms = settings.producer_id_expiration_ms
        self.settings = settings
        self.cleaner.settings_changed()

    # -- creating --

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
            wanted = self.dirs.by_id(directory_id) if directory_id is not None else None
            candidates = [wanted] if wanted is not None else self.dirs.by_load()
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

    async def create_ahead(self, wanted: Sequence[NewLog]) -> None:
        """Makes logs in a thread, for get_or_create to find. One that cannot be made is left to it: it says why."""
        for start in range(0, len(wanted), LOGS_AHEAD):
            planned = self._plan(wanted[start : start + LOGS_AHEAD])
            opened = await in_thread(self.pool, self._open_planned, planned)
            for (new, log_dir), log in zip(planned, opened, strict=True):
                if log is None:
                    continue
                if isinstance(log, Exception):
                    self.fail_dir(log_dir, log)
                elif log_dir.online:
                    self._add(self._current, new.topic_partition, log, log_dir)
                else:
                    log.close_handlers()

    def _plan(self, wanted: Iterable[NewLog]) -> list[tuple[NewLog, LogDir]]:
        """Where each log goes that is not there yet; the directories fill evenly."""
        planned: list[tuple[NewLog, LogDir]] = []
        filling: Counter[LogDir] = Counter()
        if not self.dirs.online:
            return planned
        for new in wanted:
            tp = new.topic_partition
            if tp in self._current or tp in self._offline:
                continue
            log_dir = self.dirs.by_id(new.directory_id) if new.directory_id is not None else None
            if log_dir is None:
                log_dir = min(self.dirs.by_load(), key=lambda each: each.log_count + filling[each])
            filling[log_dir] += 1
            if self._retiring:
                predecessor = self._retiring.get(str(log_dir.path / dir_name(tp)))
                if predecessor is not None:
                    self._retire(predecessor)
            planned.append((new, log_dir))
        return planned

    def _open_planned(self, planned: list[tuple[NewLog, LogDir]]) -> list[Log | Exception | None]:
        opened: list[Log | Exception | None] = []
        for new, log_dir in planned:
            path = log_dir.path / dir_name(new.topic_partition)
            try:
                path.mkdir(exist_ok=True)
                opened.append(self._open_new(path, new.topic_partition, new.topic_id, new.config))
            except (OSError, StorageError, OutOfFilesError) as error:
                opened.append(error)
            except Exception as error:  # noqa: BLE001 - the boundary of one log: get_or_create says what is wrong
                # What is there is another topic's, as a rule: nothing is wrong with the disk.
                logger.debug("%s is not made ahead: %s", path, error)
                opened.append(None)
        return opened

    def _refuse_if_maybe_offline(self, tp: TopicPartition, is_new: bool) -> None:
        if (not is_new and self.dirs.offline) or tp in self._offline:
            paths = ", ".join(str(log_dir.path) for log_dir in self.dirs.offline)
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
        for_want_of_files: Exception | None = None
        for log_dir in candidates:
            path = log_dir.path / name
            predecessor = self._retiring.get(str(path))
            if predecessor is not None:
                self._retire(predecessor)
            try:
                path.mkdir(exist_ok=True)
                log = self._open_new(path, tp, topic_id, config)
            except (OSError, StorageError, OutOfFilesError) as error:
                self.fail_dir(log_dir, error)
                for_want_of_files = error if is_out_of_files(error) else for_want_of_files
                continue
            self._add(logs, tp, log, log_dir)
            logger.debug("created log for partition %s in %s", tp, path)
            return log
        if for_want_of_files is not None:
            raise OutOfFilesError(f"Cannot create log for {tp}: {for_want_of_files}")
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
        )

    def _add(self, logs: dict[TopicPartition, Log], tp: TopicPartition, log: Log, log_dir: LogDir) -> None:
        log.on_failure = self._log_failed
        log.on_roll = self.background.flush_after_roll
        log.on_cut = self._delete_cut
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

    # -- deleting --

    async def delete(self, tp: TopicPartition) -> None:
        """Removes the partition's log; its files go in the background.

        The partition may be created again at once.
        """
        await self.delete_all([tp])

    async def delete_all(self, tps: Iterable[TopicPartition]) -> None:
        """Removes many logs: all are gone before the first await, renamed in slices, checkpointed once."""
        doomed: list[Log] = []
        touched: set[LogDir] = set()
        for tp in tps:
            self._offline.pop(tp, None)
            for logs in (self._current, self._future):
                log = logs.get(tp)
                if log is not None:
                    touched.add(self.dir_of(log))
                    self._remove(logs, tp)
                    doomed.append(log)
            replaced = self._replaced.pop(tp, None)
            if replaced is not None:
                doomed.append(replaced)
        self._retiring.update((str(log.dir), log) for log in doomed)
        await in_slices(doomed, self._retire)
        await self.background.checkpoint_dirs(touched)

    def _retire(self, log: Log) -> None:
        """Renames a log that has left the manager and lets its files go after file.delete.delay.ms."""
        if self._rename_away(log):
            self._delete_later(log)

    def _rename_away(self, log: Log) -> bool:
        """Makes the log's name free; False if that has been done already or cannot be."""
        self._retiring.pop(str(log.dir), None)
        if log.failed or log.dir.name.endswith(DELETE_SUFFIX):
            return False
        log_dir = self.dir_of(log)
        try:
            log.rename_to_delete()
        except StorageError as error:
            self.fail_dir(log_dir, error)
            return False
        return True

    def _delete_later(self, log: Log) -> None:
        self.deletions.schedule(log.config.file_delete_delay_ms, str(log.dir), log.delete)

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
        """Kafka's recoverAbandonedFutureLogs, after load: a copy where the cluster has the replica becomes its log.

        The broker stopped after the assignment and before the promotion (KIP-858), and its log may be gone with a
        directory. One that is there and has what the copy has not stays: the move goes on, and ends when nothing is
        missing.
        """
        for tp, copy in list(self._future.items()):
            directory_id, source = self.directory_id(copy), self._current.get(tp)
            if directory_id is None or not is_assigned(tp, directory_id):
                continue
            if source is not None and not _has_all_of(copy, source):
                continue
            logger.info("%s becomes the log of %s", copy.dir, tp)
            try:
                await self._bring_to_disk(copy)
                if source is None:
                    await self._promote(tp, None, copy)
                else:
                    await self.promote_future(tp)
            except (OSError, KafkaError) as error:
                if is_out_of_files(error) or not loading.is_disk_error(error):
                    raise  # with an empty log in its place the partition would begin anew
                self.fail_dir(self.dir_of(copy), error)

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
        future = self._future.get(tp)
        if future is not None and self.dir_of(future) is source_dir:
            # It was to be moved back there, which is done by this: a copy cannot take the name of a log that stays.
            self._remove(self._future, tp)
            self._retire(future)
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

    def truncated(self, log: Log) -> None:
        """A partition has cut its log: cleaning what is gone ends in the very turn, and a copy is cut alike.

        Before anything is appended to it, `checkpoint_truncations` has to be waited for.
        """
        tp = log.topic_partition
        self._cut[log] = self.dir_of(log)
        self.cleaner.abort(tp)
        self.cleaner.truncated(tp, log.active_segment.base_offset)
        # A copy that is being filled, or the log whose place a copy has just taken: it may have to take it back.
        for other in (self._future.get(tp), self._replaced.get(tp)):
            if other is None or other is log or other.failed or other.log_end_offset <= log.log_end_offset:
                continue
            try:
                other.truncate_to(log.log_end_offset, self.clock.now_ms())
            except KafkaError as error:
                logger.error("%s: %s", tp, error)  # its directory goes offline, ours does not
                if not other.failed:
                    self._give_up_copy(tp, other)
                continue
            self._cut[other] = self.dir_of(other)

    def _give_up_copy(self, tp: TopicPartition, copy: Log) -> None:
        """For want of descriptors it was not cut: it has what its log has not, and must never take its place."""
        if self._future.get(tp) is copy:
            self._remove(self._future, tp)
        elif self._replaced.get(tp) is copy:
            del self._replaced[tp]
        logger.error("%s: the copy in %s is given up, and the move with it: move it again", tp, copy.dir)
        self._retire(copy)

    @property
    def has_truncations(self) -> bool:
        """Is there a log that was cut, and of which the checkpoints do not know yet?"""
        return bool(self._cut) or self._checkpointing_cuts.locked()

    def awaits_checkpoint(self, log: Log) -> bool:
        """Was this log cut, and the checkpoints do not know of it yet?"""
        return log in self._cut or log in self._checkpointed_cuts

    async def checkpoint_truncations(self) -> None:
        """Makes sure that a crash does not trust what is gone: a recovery point may have moved back.

        Whoever comes while another waits for the disk waits too: it may be its log's checkpoint that is written.
        OutOfFilesError if there was no descriptor for that: it is still to be done.
        """
        async with self._checkpointing_cuts:
            if not self._cut:
                return
            self._checkpointed_cuts, self._cut = self._cut, {}
            try:
                if not await self.background.checkpoint_dirs(set(self._checkpointed_cuts.values())):
                    raise OutOfFilesError(
                        "Cannot write the checkpoints of truncated logs: Too many open files"
                    )
            except BaseException:
                self._cut |= (
                    self._checkpointed_cuts
                )  # also if whoever waited was stopped: the next one waits for it
                raise
            finally:
                self._checkpointed_cuts = {}

    def _delete_cut(self, log: Log, segments: Sequence[LogSegment]) -> None:
        what = f"{len(segments)} truncated segments of {log.topic_partition}"
        self.deletions.schedule(log.config.file_delete_delay_ms, what, lambda: log.delete_files(segments))

    # -- high watermarks --

    async def checkpoint_high_watermarks(self, high_watermark_of: HighWatermarkOf) -> None:
        """Writes replication-offset-checkpoint in every directory, for the logs that are in it."""
        await self.background.checkpoint_high_watermarks(high_watermark_of)

    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """The high watermarks checkpointed before the broker stopped."""
        merged: dict[TopicPartition, int] = {}
        for log_dir in self.dirs.online:
            try:
                merged.update(loading.read_or_empty(log_dir.high_watermarks))
            except OSError as error:
                if is_out_of_files(error):
                    raise
                self.fail_dir(log_dir, error)
        return merged

    # -- description (KIP-113, KIP-827) --

    async def describe(self, tps: Collection[TopicPartition] | None = None) -> list[LogDirInfo]:
        """Every directory with its logs (those in `tps`, or all) for DescribeLogDirs; of an offline one the error."""
        replicas = await self._replicas_by_dir(tps)
        return [await self._describe_dir(log_dir, replicas.get(log_dir, [])) for log_dir in self.dirs]

    async def _describe_dir(self, log_dir: LogDir, replicas: list[ReplicaInfo]) -> LogDirInfo:
        total_bytes = usable_bytes = UNKNOWN_VOLUME_BYTES
        if log_dir.online:
            try:
                # Asking a hung file system for its size waits: in a thread.
                usage = await asyncio.get_running_loop().run_in_executor(self.pool, log_dir.usage)
                total_bytes, usable_bytes = usage
            except OSError as error:
                self.fail_dir(log_dir, error)
        return LogDirInfo(
            str(log_dir.path),
            log_dir.id,
            None if log_dir.online else ErrorCode.KAFKA_STORAGE_ERROR,
            replicas if log_dir.online else [],
            total_bytes,
            usable_bytes,
            self.dirs.is_cordoned(log_dir),
        )

    async def _replicas_by_dir(
        self, tps: Collection[TopicPartition] | None
    ) -> dict[LogDir, list[ReplicaInfo]]:
        by_dir: dict[LogDir, list[ReplicaInfo]] = {}
        for logs, is_future in ((self._current, False), (self._future, True)):

            def visit(
                tp: TopicPartition, logs: Mapping[TopicPartition, Log] = logs, is_future: bool = is_future
            ) -> None:
                log = logs.get(tp)
                if log is not None:
                    lag = self._offset_lag(tp, log, is_future)
                    info = ReplicaInfo(tp, log.size_bytes, lag, is_future)
                    by_dir.setdefault(self.dir_of(log), []).append(info)

            await in_slices(list(logs) if tps is None else tps, visit)
        return by_dir

    def _offset_lag(self, tp: TopicPartition, log: Log, is_future: bool) -> int:
        if not is_future:
            return max(log.high_watermark - log.log_end_offset, 0)
        current = self._current.get(tp)
        return INVALID_OFFSET_LAG if current is None else current.log_end_offset - log.log_end_offset

    # -- failures --

    def _log_failed(self, log: Log, error: Exception) -> None:
        """From any thread."""
        log_dir = self.dirs.holding(log.dir)
        if self._loop is None or self._loop.is_closed():
            self.fail_dir(log_dir, error)
        else:
            fail = guarded(self.fail_dir, name=f"taking {log_dir.path} offline", owner="log manager")
            self._loop.call_soon_threadsafe(fail, log_dir, error)

    def fail_dir(self, log_dir: LogDir, error: Exception) -> None:
        """The directory is offline from now on, with every log in it. Repeated calls do nothing.

        Where the process only ran out of descriptors it stays: what was tried is not done, nothing is lost.
        """
        if not log_dir.online:
            return
        if is_out_of_files(error):
            logger.error("log directory %s: %s", log_dir.path, error)
            return
        log_dir.error = error
        logger.error("log directory %s is offline: %s", log_dir.path, error)
        self._drop_logs_of(log_dir)
        if self.on_dir_failure is not None:
            self.on_dir_failure(log_dir.id, error)
        if not self.dirs.online and self.on_all_dirs_failed is not None:
            logger.critical("all log directories have failed")
            self.on_all_dirs_failed()

    def _drop_logs_of(self, log_dir: LogDir) -> None:
        for logs in (self._current, self._future):
            for tp in [tp for tp, log in logs.items() if self.dir_of(log) is log_dir]:
                log = self._remove(logs, tp)
                assert log is not None
                log.failed = True
                log.close_handlers()
                if logs is self._current:
                    self._offline[tp] = log_dir
                log.moved()

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
                *(self.background.close_dir(log_dir, broker_epoch) for log_dir in self.dirs.online)
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
