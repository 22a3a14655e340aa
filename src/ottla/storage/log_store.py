"""The life of a log in the broker: created, watched, retired, lost with its directory. LogManager builds on it.

What is here happens on the loop and at once, so that a topic may be deleted and created again under the same name
without anybody waiting: a log that leaves is renamed before its name is used again. Only `create_ahead` makes files
in a thread: a file system's journal may let anyone wait who creates a file, and a topic has thousands.
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
from ottla.model.tasks import guarded
from ottla.storage.background import BackgroundWork, Deletions, in_slices, in_thread
from ottla.storage.cleaner.manager import LogCleanerManager
from ottla.storage.config import LogConfig, LogManagerSettings
from ottla.storage.dirs.checkpoints import UNKNOWN_BROKER_EPOCH
from ottla.storage.dirs.log_dir import DELETE_SUFFIX, LogDir, dir_name, open_log_dirs
from ottla.storage.errors import OutOfFilesError, StorageError, is_out_of_files
from ottla.storage.files import FILES_A_CONNECTION, FILES_A_SEGMENT, open_files
from ottla.storage.log.log import Log

# ----------------------------------------
# Which logs and directories a broker has, and which are gone: the bookkeeping under LogManager. Loop only.


class LogRegistry:
    """The current and the future log of every partition, and the directories they lie in."""

    def __init__(self, dirs: list[LogDir]) -> None:
        self.dirs = dirs
        self._dir_of = {log_dir.path: log_dir for log_dir in dirs}
        self._current: dict[TopicPartition, Log] = {}
        self._future: dict[TopicPartition, Log] = {}
        self._offline: dict[TopicPartition, LogDir] = {}
        self._cordoned: frozenset[Path] = frozenset()
        # Asked for ten thousand logs every few seconds: taking the paths apart would cost more than the checkpoint.
        self._placed: dict[Log, LogDir] = {}

    # -- directories --

    @property
    def online_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self.dirs if log_dir.online]

    @property
    def offline_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self.dirs if not log_dir.online]

    def directory_id(self, log: Log) -> Uuid | None:
        """The id of the directory the log lies in."""
        return self.dir_of(log).id

    def dir_of(self, log: Log) -> LogDir:
        """The directory the log lies in, or lay in before it left the manager."""
        return self._placed.get(log) or self._dir_of[log.dir.parent]

    def dir_by_id(self, directory_id: Uuid) -> LogDir | None:
        """The online directory with this id."""
        return next((log_dir for log_dir in self.online_dirs if log_dir.id == directory_id), None)

    def dir_by_path(self, path: str) -> LogDir:
        """The directory at this path; LOG_DIR_NOT_FOUND if the broker has no such one."""
        log_dir = self._dir_of.get(Path(path).absolute())
        if log_dir is None:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"Log dir {path} is not found in the config.")
        return log_dir

    def set_cordoned(self, paths: Collection[Path]) -> None:
        """No new log goes into a cordoned directory unless all are (KIP-1066)."""
        self._cordoned = frozenset(path.absolute() for path in paths)

    def is_cordoned(self, log_dir: LogDir) -> bool:
        return log_dir.path in self._cordoned

    def dirs_by_load(self) -> list[LogDir]:
        """Where a new log may go, the directory with the fewest logs first."""
        online = self.online_dirs
        open_to_new = [log_dir for log_dir in online if log_dir.path not in self._cordoned]
        return sorted(open_to_new, key=lambda log_dir: log_dir.log_count) or online[:1]

    # -- logs --

    def get(self, tp: TopicPartition) -> Log | None:
        """The partition's current log."""
        return self._current.get(tp)

    def get_future(self, tp: TopicPartition) -> Log | None:
        """The copy being made in another directory, if one is."""
        return self._future.get(tp)

    def is_offline(self, tp: TopicPartition) -> bool:
        """Did the partition's log go with a failed directory?"""
        return tp in self._offline

    @property
    def current_logs(self) -> Mapping[TopicPartition, Log]:
        return self._current

    @property
    def future_logs(self) -> Mapping[TopicPartition, Log]:
        return self._future

    def all_logs(self) -> Iterator[Log]:
        yield from self._current.values()
        yield from self._future.values()


logger = logging.getLogger(__name__)

# How many logs a thread makes before the loop takes them over.
LOGS_AHEAD: Final = 64


class NewLog(NamedTuple):
    """A log that is wanted, with the directory it was assigned to if it was."""

    topic_partition: TopicPartition
    topic_id: Uuid | None
    config: LogConfig
    directory_id: Uuid | None


class LogStore(LogRegistry):
    """Logs that come and go."""

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
        super().__init__(open_log_dirs(dirs))
        self.clock = clock
        self.settings = settings or LogManagerSettings()
        self.defaults = defaults or LogConfig()
        self.on_dir_failure = on_dir_failure
        self.on_all_dirs_failed = on_all_dirs_failed
        self.previous_broker_epoch = UNKNOWN_BROKER_EPOCH
        self._loading_stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # Deleted, but still under their own names: whoever wants such a name renames them first.
        self._retiring: dict[str, Log] = {}
        # Logs whose copies took their places and are not on the disk yet: until then they keep their names.
        self._replaced: dict[TopicPartition, Log] = {}
        self._finishing: set[asyncio.Task[OSError | KafkaError | None]] = set()
        self.pool = ThreadPoolExecutor(self.settings.background_threads, thread_name_prefix="storage")
        self.deletions = Deletions(clock, self.pool)
        self.cleaner = LogCleanerManager(self)
        self.background = BackgroundWork(self)

    def _files_wanted(self) -> int:
        """How many files there would be if none was ever closed: a log file and an index a segment, connections too."""
        segments = sum(len(log.segments) for log in list(self.all_logs()))
        return FILES_A_SEGMENT * segments + FILES_A_CONNECTION * open_files.max_connections()

    # -- coming --

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
        if not self.online_dirs:
            return planned
        for new in wanted:
            tp = new.topic_partition
            if tp in self._current or tp in self._offline:
                continue
            log_dir = self.dir_by_id(new.directory_id) if new.directory_id is not None else None
            if log_dir is None:
                log_dir = min(self.dirs_by_load(), key=lambda each: each.log_count + filling[each])
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
            except KafkaError:
                opened.append(None)  # what is there is another topic's: nothing is wrong with the disk
        return opened

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
            max_transaction_timeout_ms=self.settings.max_transaction_timeout_ms,
        )

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

    # -- going --

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

    # -- failures --

    def _log_failed(self, log: Log, error: Exception) -> None:
        """From any thread."""
        log_dir = self._dir_of.get(log.dir.parent)
        assert log_dir is not None, f"{log.dir} is in none of the log directories"
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
        if not self.online_dirs and self.on_all_dirs_failed is not None:
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
