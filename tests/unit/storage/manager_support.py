"""What the log manager's tests share: a manager on temporary directories, records to append, an event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tests.support.clock import ManualClock

from ottla.model.ids import TopicPartition, Uuid, random_uuid
from ottla.records.record import build_batch, read_records
from ottla.records.types import Record
from ottla.storage.config import LogConfig, LogManagerSettings
from ottla.storage.dirs.meta_properties import MetaProperties, write_meta_properties
from ottla.storage.log.log import Log
from ottla.storage.log_manager import LogManager

TOPIC_ID = Uuid(bytes(range(16)))
TP = TopicPartition("orders", 0)
NOW_MS = 1_700_000_000_000

_T = TypeVar("_T")


def run(test: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Runs an asynchronous test on a loop of its own."""
    return asyncio.run(test())


async def eventually(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Lets the loop run until the condition holds; TimeoutError if it never does."""

    async def poll() -> None:
        while not condition():  # what is waited for happens in threads and other processes
            await asyncio.sleep(0.001)

    await asyncio.wait_for(poll(), timeout_s)


def formatted(path: Path, node_id: int = 1) -> Path:
    """A log directory as `ottla storage format` leaves it."""
    path.mkdir(parents=True, exist_ok=True)
    write_meta_properties(path, MetaProperties("cluster", node_id, random_uuid()))
    return path


def quiet(**changes: Any) -> LogManagerSettings:
    """No tick by itself: the tests call them."""
    never = 1 << 40
    base = LogManagerSettings(
        initial_task_delay_ms=never,
        retention_check_interval_ms=never,
        recovery_point_checkpoint_interval_ms=never,
        log_start_offset_checkpoint_interval_ms=never,
        producer_id_expiration_check_interval_ms=never,
    )
    return replace(base, **changes)


def new_manager(*dirs: Path, clock: ManualClock | None = None, **options: Any) -> LogManager:
    options.setdefault("settings", quiet())
    return LogManager(list(dirs), clock or ManualClock(NOW_MS), **options)


@asynccontextmanager
async def running(*dirs: Path, **options: Any) -> AsyncIterator[LogManager]:
    """A loaded manager, stopped cleanly at the end."""
    load = options.pop("load", {})
    broker_epoch = options.pop("broker_epoch", 7)
    manager = new_manager(*dirs, **options)
    await manager.load(**load)
    try:
        yield manager
    finally:
        await manager.shutdown(broker_epoch)


def append(log: Log, *pairs: tuple[bytes | None, bytes | None], now_ms: int = NOW_MS, **batch: Any) -> int:
    """Appends one batch as leader and lets the high watermark follow; its base offset."""
    data = build_batch([(now_ms, key, value, ()) for key, value in pairs], **batch)
    result = log.append_as_leader(data, 0, now_ms)
    log.update_high_watermark(log.log_end_offset)
    return result.base_offset


def fill(log: Log, count: int, *, roll_every: int = 0, now_ms: int = NOW_MS, value: bytes = b"value") -> None:
    """`count` batches of one record each, a new segment after every `roll_every`."""
    for i in range(count):
        append(log, (b"key-%d" % i, value), now_ms=now_ms)
        if roll_every and (i + 1) % roll_every == 0:
            log.roll(now_ms)


def records(log: Log) -> list[Record]:
    """Everything in the log, read through it."""
    return [
        record
        for segment in log.segments
        for _, batch in segment.batches()
        if not batch.is_control
        for record in read_records(batch)
    ]


def small(**changes: Any) -> LogConfig:
    return replace(LogConfig(file_delete_delay_ms=0, segment_bytes=1 << 20), **changes)
