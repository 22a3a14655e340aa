"""The directories of log.dirs: their locks, identities and checkpoint files, and the names of the partitions in them.

A LogDir is online until the first I/O error; then it stays offline until the broker is started again
(KIP-112). LogManager owns them and holds their locks from construction to shutdown; the checkpoint files are written
from the manager's thread pool, everything else on the loop.
"""

import errno
import fcntl
import logging
import os
import re
from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple, overload

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid, random_uuid
from ottla.storage.dirs.checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    CleanShutdownFile,
    OffsetCheckpoint,
)
from ottla.storage.dirs.meta_properties import (
    META_PROPERTIES_FILE,
    MetaProperties,
    MetaPropertiesError,
    random_directory_id,
    read_meta_properties,
    verify_ensemble,
    write_meta_properties,
)
from ottla.storage.errors import StorageError

logger = logging.getLogger(__name__)

LOCK_FILE_NAME = ".lock"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
REMOTE_INDEX_CACHE_DIR = "remote-log-index-cache"

DELETE_SUFFIX = "-delete"
FUTURE_SUFFIX = "-future"
STRAY_SUFFIX = "-stray"

MAX_FILE_NAME_LENGTH = 255

_MARKED = re.compile(r"(\S+)-(\d{1,10})\.(\S+)(-delete|-future|-stray)")
_CURRENT = re.compile(r"(\S+)-(\d{1,10})")


class DirKind(Enum):
    """What a partition's directory is, by its name."""

    CURRENT = ""
    DELETE = DELETE_SUFFIX
    FUTURE = FUTURE_SUFFIX
    STRAY = STRAY_SUFFIX


class PartitionDir(NamedTuple):
    """A partition's directory, parsed from its name."""

    path: Path
    topic_partition: TopicPartition
    kind: DirKind


def dir_name(topic_partition: TopicPartition) -> str:
    """Where the partition's log lives."""
    return f"{topic_partition.topic}-{topic_partition.partition}"


def delete_dir_name(topic_partition: TopicPartition) -> str:
    """A name for a log that is to be deleted in the background."""
    return _capped_name(topic_partition, DELETE_SUFFIX)


def stray_dir_name(topic_partition: TopicPartition) -> str:
    """A name for a log that the cluster does not know of: kept for a person to look at."""
    return _capped_name(topic_partition, STRAY_SUFFIX)


def future_dir_name(topic_partition: TopicPartition) -> str:
    """A name for the copy that is to become the current log in another directory (KIP-113)."""
    return f"{dir_name(topic_partition)}.{random_uuid().hex()}{FUTURE_SUFFIX}"


def _capped_name(topic_partition: TopicPartition, suffix: str) -> str:
    # A long topic name is cut: file names end at 255, and a deleted log needs its name no longer
    # (KAFKA-5232).
    tail = f"-{topic_partition.partition}.{random_uuid().hex()}{suffix}"
    return topic_partition.topic[: MAX_FILE_NAME_LENGTH - len(tail)] + tail


def parse_dir_name(path: Path) -> PartitionDir | None:
    """What the directory is; None if no partition would be called so."""
    marked = _MARKED.fullmatch(path.name)
    if marked is not None:
        tp = TopicPartition(marked.group(1), int(marked.group(2)))
        return PartitionDir(path, tp, DirKind(marked.group(4)))
    current = _CURRENT.fullmatch(path.name)
    if current is None:
        return None
    return PartitionDir(path, TopicPartition(current.group(1), int(current.group(2))), DirKind.CURRENT)


# The lock files that this process holds, as (device, inode).
_held_here: set[tuple[int, int]] = set()


class DirLockedError(RuntimeError):
    """Another broker uses the directory; the message is one line fit for the user."""


class DirLock:
    """The lock on one log directory, taken as Java's FileChannel takes it: one process a directory.

    Java's file lock is a POSIX record lock, so `fcntl.lockf` (never `flock`) is what makes an Ottla and an Apache
    broker exclude each other. POSIX locks belong to the process: a second lock of a file by the same one would
    succeed, and closing any descriptor of the file would drop the first. `_held_here` closes that hole, since tests
    run several brokers in one process.
    """

    __slots__ = ("_fd", "_identity", "path")

    def __init__(self, directory: Path) -> None:
        self.path = directory / LOCK_FILE_NAME
        self._fd = -1
        self._identity: tuple[int, int] | None = None

    def acquire(self) -> None:
        """Takes the lock or raises DirLockedError; OSError if the directory cannot be written."""
        self._refuse_if_held_here()
        fd = self._open_and_lock()
        while not self._is_the_file(fd):
            # The holder before us removed the file between our opening and our locking it.
            os.close(fd)
            fd = self._open_and_lock()
        self._fd = fd
        self._identity = _identity(os.fstat(fd))
        _held_here.add(self._identity)

    def release(self) -> None:
        """Gives the lock back and removes the file, as Apache does."""
        if self._identity is None:
            return
        try:
            self.path.unlink(missing_ok=True)
        finally:
            _held_here.discard(self._identity)
            self._identity = None
            os.close(self._fd)
            self._fd = -1

    def _open_and_lock(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise self._locked("another process") from None
            raise
        return fd

    def _is_the_file(self, fd: int) -> bool:
        try:
            return _identity(self.path.stat()) == _identity(os.fstat(fd))
        except FileNotFoundError:
            return False

    def _refuse_if_held_here(self) -> None:
        # Checked by inode before opening: opening and closing the file would give up the lock already held.
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return
        if _identity(stat) in _held_here:
            raise self._locked("this process")

    def _locked(self, by: str) -> DirLockedError:
        return DirLockedError(
            f"cannot lock {self.path}: {by} runs a broker on {self.path.parent} already; "
            "stop it or choose another log.dirs"
        )


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino


class LogDir:
    """A log directory."""

    __slots__ = (
        "clean_shutdown",
        "cleaner_offsets",
        "error",
        "had_clean_shutdown",
        "high_watermarks",
        "id",
        "loaded",
        "lock",
        "log_count",
        "log_start_offsets",
        "meta",
        "path",
        "recovery_points",
    )

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id: Uuid | None = None
        self.meta: MetaProperties | None = None
        self.error: Exception | None = None
        self.lock = DirLock(path)
        self.clean_shutdown = CleanShutdownFile(path)
        self.had_clean_shutdown = False
        self.loaded = False
        self.log_count = 0
        self.recovery_points = OffsetCheckpoint(path, RECOVERY_POINT_CHECKPOINT)
        self.log_start_offsets = OffsetCheckpoint(path, LOG_START_OFFSET_CHECKPOINT)
        self.high_watermarks = OffsetCheckpoint(path, HIGH_WATERMARK_CHECKPOINT)
        self.cleaner_offsets = OffsetCheckpoint(path, CLEANER_OFFSET_CHECKPOINT)

    @property
    def online(self) -> bool:
        return self.error is None

    def open(self) -> None:
        """Creates the directory if need be, locks it and learns its id; OSError makes it offline."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not os.access(self.path, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(13, "log directory cannot be read or written", str(self.path))
        self.lock.acquire()
        self.meta = read_meta_properties(self.path)
        if self.meta is not None:
            self._ensure_directory_id(self.meta)

    def _ensure_directory_id(self, meta: MetaProperties) -> None:
        # A directory formatted before KIP-858 has no id yet; a version 0 file is not ours to rewrite.
        if meta.directory_id is None and meta.version == 1:
            meta = self.meta = meta.with_directory_id(random_directory_id())
            write_meta_properties(self.path, meta)
        self.id = meta.directory_id

    def format(self, meta: MetaProperties) -> None:
        """Makes an empty directory part of the node."""
        assert self.meta is None, f"{self.path / META_PROPERTIES_FILE} exists"
        write_meta_properties(self.path, meta)
        self.meta = meta
        self.id = meta.directory_id

    def partition_dirs(self) -> Iterator[PartitionDir | Path]:
        """The partitions' directories; a Path is a directory that is no partition's."""
        with os.scandir(self.path) as entries:
            names = [entry.name for entry in entries if entry.is_dir()]
        for name in names:
            if name == REMOTE_INDEX_CACHE_DIR or name.rpartition("-")[0] == CLUSTER_METADATA_TOPIC:
                continue
            path = self.path / name
            yield parse_dir_name(path) or path

    def usage(self) -> tuple[int, int]:
        """Total and usable bytes of the file system (KIP-827)."""
        stat = os.statvfs(self.path)
        return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize

    def __repr__(self) -> str:
        return f"LogDir({self.path}{'' if self.online else ', offline'})"


class LogDirs(Sequence[LogDir]):
    """The directories of log.dirs, in their order."""

    __slots__ = ("_by_path", "_cordoned", "_dirs")

    def __init__(self, dirs: list[LogDir]) -> None:
        self._dirs = dirs
        self._by_path = {log_dir.path: log_dir for log_dir in dirs}
        self._cordoned: frozenset[Path] = frozenset()

    @overload
    def __getitem__(self, index: int) -> LogDir: ...
    @overload
    def __getitem__(self, index: slice) -> list[LogDir]: ...
    def __getitem__(self, index: int | slice) -> LogDir | list[LogDir]:
        return self._dirs[index]

    def __len__(self) -> int:
        return len(self._dirs)

    @property
    def online(self) -> list[LogDir]:
        return [log_dir for log_dir in self._dirs if log_dir.online]

    @property
    def offline(self) -> list[LogDir]:
        return [log_dir for log_dir in self._dirs if not log_dir.online]

    def holding(self, path: Path) -> LogDir:
        """The directory in which a partition's directory lies."""
        return self._by_path[path.parent]

    def by_id(self, directory_id: Uuid) -> LogDir | None:
        """The online directory with this id."""
        return next((log_dir for log_dir in self.online if log_dir.id == directory_id), None)

    def by_path(self, path: str) -> LogDir:
        """The directory at this path; LOG_DIR_NOT_FOUND if the broker has no such one."""
        log_dir = self._by_path.get(Path(path).absolute())
        if log_dir is None:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"Log dir {path} is not found in the config.")
        return log_dir

    def by_load(self) -> list[LogDir]:
        """Where a new log may go, the directory with the fewest logs first."""
        online = self.online
        open_to_new = [log_dir for log_dir in online if log_dir.path not in self._cordoned]
        return sorted(open_to_new, key=lambda log_dir: log_dir.log_count) or online[:1]

    def set_cordoned(self, paths: Collection[Path]) -> None:
        """No new log goes into a cordoned directory unless all are (KIP-1066)."""
        self._cordoned = frozenset(path.absolute() for path in paths)

    def is_cordoned(self, log_dir: LogDir) -> bool:
        return log_dir.path in self._cordoned


def open_log_dirs(paths: Sequence[Path]) -> LogDirs:
    """Locks and identifies the directories; one that cannot be used is offline, unless none can."""
    dirs = [LogDir(path.absolute()) for path in paths]
    resolved = {path.resolve() for path in paths}
    if len(resolved) != len(dirs):
        raise ValueError(f"log.dirs names a directory twice: {', '.join(map(str, paths))}")
    try:
        for log_dir in dirs:
            _open_dir(log_dir)
        verify_ensemble({d.path: d.meta for d in dirs if d.online and d.meta is not None})
        if not any(log_dir.online for log_dir in dirs):
            raise StorageError(dirs[0].path, f"none of the log directories can be used: {dirs[0].error}")
    except (DirLockedError, MetaPropertiesError, StorageError):
        for log_dir in dirs:
            log_dir.lock.release()
        raise
    return LogDirs(dirs)


def _open_dir(log_dir: LogDir) -> None:
    try:
        log_dir.open()
    except OSError as error:
        logger.error("log directory %s is offline: %s", log_dir.path, error)
        log_dir.error = error
