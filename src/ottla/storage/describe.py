"""What DescribeLogDirs shows of the log directories: sizes, lags, free space (KIP-113, KIP-827)."""

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.model.errors import ErrorCode
from ottla.model.ids import TopicPartition, Uuid
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir
from ottla.storage.ticks import in_slices

if TYPE_CHECKING:
    from ottla.storage.log_manager import LogManager

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
    return [await _describe(manager, log_dir, replicas.get(log_dir, [])) for log_dir in manager.dirs]


async def _describe(manager: "LogManager", log_dir: LogDir, replicas: list[ReplicaInfo]) -> LogDirInfo:
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
