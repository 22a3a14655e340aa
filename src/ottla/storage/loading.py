"""Opening every log of a directory at start: fast after a clean stop, recovered in threads after a crash.

After a clean stop a log is opened from file names and checkpoints alone, so one thread does it: two would only
wait for each other. After a crash each is read from its recovery point by num.recovery.threads.per.data.dir
threads. Either takes logs in batches; a node has thousands, and most of them are empty. The logs are handed back
to the loop, which alone touches the manager. A node that is told to stop meanwhile ends it by `check`, which raises
RecoveryAbortedError: nothing was promised of the logs yet, so that the next start just does it again.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.storage.background import in_thread
from ottla.storage.config import LogConfig, LogManagerSettings
from ottla.storage.dirs.checkpoints import CheckpointError, OffsetCheckpoint
from ottla.storage.dirs.log_dir import DirKind, LogDir, PartitionDir
from ottla.storage.log.log import Log

logger = logging.getLogger(__name__)

LOGS_A_BATCH: Final = 32
# So many batches a thread at least, for a long recovery not to wait at the end of one.
BATCHES_A_THREAD: Final = 16


@contextmanager
def without_gc() -> Iterator[None]:
    """Hundreds of thousands of objects are made and none is garbage: looking for some costs a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Opened(NamedTuple):
    """One partition's directory after loading."""

    partition_dir: PartitionDir
    log: Log


@dataclass(frozen=True, slots=True)
class Opening:
    """What every log of one directory is opened with."""

    clean: bool
    recovery_points: dict[TopicPartition, int]
    log_start_offsets: dict[TopicPartition, int]
    topic_config: Callable[[str], LogConfig]
    settings: LogManagerSettings
    now_ms: int
    check: Callable[[], None]

    def open(self, partition_dir: PartitionDir) -> Log:
        tp = partition_dir.topic_partition
        return Log.open(
            partition_dir.path,
            self.topic_config(tp.topic),
            now_ms=self.now_ms,
            topic_partition=tp,
            recovery_point=self.recovery_points.get(tp, 0),
            log_start_offset=self.log_start_offsets.get(tp, 0),
            clean=self.clean,
            producer_id_expiration_ms=self.settings.producer_id_expiration_ms,
            check=self.check,
        )

    def open_all(self, partition_dirs: list[PartitionDir]) -> list[Opened]:
        opened = []
        for partition_dir in partition_dirs:
            self.check()
            opened.append(Opened(partition_dir, self.open(partition_dir)))
        return opened


def prepare(
    log_dir: LogDir,
    topic_config: Callable[[str], LogConfig],
    settings: LogManagerSettings,
    now_ms: int,
    check: Callable[[], None],
) -> tuple[Opening, list[PartitionDir]]:
    """Reads marker, checkpoints and names.

    The marker is gone before the first log is opened (KAFKA-10471).
    """
    log_dir.had_clean_shutdown = log_dir.clean_shutdown.exists()
    log_dir.clean_shutdown.delete()
    opening = Opening(
        clean=log_dir.had_clean_shutdown,
        recovery_points=read_or_empty(log_dir.recovery_points),
        log_start_offsets=read_or_empty(log_dir.log_start_offsets),
        topic_config=topic_config,
        settings=settings,
        now_ms=now_ms,
        check=check,
    )
    return opening, _partition_dirs(log_dir)


def read_or_empty(checkpoint: OffsetCheckpoint) -> dict[TopicPartition, int]:
    """A damaged checkpoint costs a longer recovery or some deleted records coming back, never the start."""
    try:
        return checkpoint.read()
    except CheckpointError as error:
        logger.warning("%s; it is not used", error)
        return {}


def _partition_dirs(log_dir: LogDir) -> list[PartitionDir]:
    found = []
    for entry in log_dir.partition_dirs():
        if isinstance(entry, PartitionDir):
            found.append(entry)
        else:
            logger.warning("%s is no partition's directory and is left alone", entry)
    return found


async def open_logs(
    log_dir: LogDir, opening: Opening, partition_dirs: list[PartitionDir], on_opened: Callable[[Opened], None]
) -> None:
    """Opens the logs in threads and reports each on the loop; OSError or StorageError if the disk fails."""
    to_open = [entry for entry in partition_dirs if entry.kind in (DirKind.CURRENT, DirKind.FUTURE)]
    threads = 1 if opening.clean else max(1, opening.settings.recovery_threads_per_data_dir)
    size = max(1, min(LOGS_A_BATCH, len(to_open) // (threads * BATCHES_A_THREAD)))
    batches = [to_open[i : i + size] for i in range(0, len(to_open), size)]
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="log-recovery")
    futures = [loop.run_in_executor(pool, opening.open_all, batch) for batch in batches]
    try:
        for future in futures:
            for opened in await future:
                on_opened(opened)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    finally:
        # What is being recovered may take minutes yet: the loop, a controller's perhaps, does not wait for it.
        await in_thread(None, pool.shutdown)


def is_disk_error(error: Exception) -> bool:
    """Does the error take a directory offline?"""
    return isinstance(error, OSError) or (
        isinstance(error, KafkaError) and error.code == ErrorCode.KAFKA_STORAGE_ERROR
    )
