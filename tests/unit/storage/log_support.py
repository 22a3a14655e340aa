"""Logs and batches for the tests of the storage core."""

import os
from collections.abc import Iterator
from pathlib import Path

from ottla.records.batch import BatchView, iter_batches
from ottla.records.record import build_batch, read_records
from ottla.records.types import Record
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log
from ottla.storage.segment.indexes import AbstractIndex

NOW = 1_700_000_000_000
EPOCH = 3


def batch(
    *values: bytes,
    timestamp: int = NOW,
    key: bytes | None = b"k",
    producer_id: int = -1,
    producer_epoch: int = 0,
    sequence: int = 0,
    transactional: bool = False,
    compression: int = 0,
) -> bytearray:
    """A batch as a client sends it."""
    idempotent = producer_id >= 0
    return build_batch(
        [(timestamp, key, value, ()) for value in values or (b"v",)],
        producer_id=producer_id,
        producer_epoch=producer_epoch if idempotent else -1,
        base_sequence=sequence if idempotent else -1,
        transactional=transactional,
        compression=compression,
    )


def open_log(dir: Path, config: LogConfig | None = None, **options: object) -> Log:
    """A log in a directory named like a partition's."""
    log_dir = dir if dir.name.endswith("-0") else dir / "topic-0"
    return Log.open(log_dir, config or LogConfig(), now_ms=NOW, **options)  # type: ignore[arg-type]


def append(log: Log, *values: bytes, now_ms: int = NOW, **options: object) -> int:
    """Appends one batch and moves the high watermark, as a leader alone does; the base offset."""
    result = log.append_as_leader(batch(*values, **options), EPOCH, now_ms)  # type: ignore[arg-type]
    log.update_high_watermark(log.log_end_offset)
    return result.base_offset


def reopen(log: Log, *, config: LogConfig | None = None) -> Log:
    """A clean stop and a start."""
    log.flush(now_ms=NOW)
    log.close()
    return open_log(
        log.dir,
        config or log.config,
        recovery_point=log.recovery_point,
        log_start_offset=log.log_start_offset,
        clean=True,
    )


def crash(log: Log) -> Log:
    """What a killed process leaves, and the start after it."""
    log.close_handlers()
    return open_log(
        log.dir, log.config, recovery_point=log.recovery_point, log_start_offset=log.log_start_offset
    )


def batches_of(log: Log, start: int | None = None, max_bytes: int = 1 << 20) -> Iterator[BatchView]:
    """Every batch up to the log end offset, slice by slice."""
    offset = log.log_start_offset if start is None else start
    while offset < log.log_end_offset:
        piece = log.read(offset, max_bytes, log.log_end_offset)
        assert piece.length > 0, f"nothing to read at {offset} of {log}"
        yield from iter_batches(piece.read())
        assert piece.next_offset > offset
        offset = piece.next_offset


def records_of(log: Log, start: int | None = None, max_bytes: int = 1 << 20) -> list[Record]:
    """Every record from an offset on."""
    first = log.log_start_offset if start is None else start
    found = [record for view in batches_of(log, start, max_bytes) for record in read_records(view)]
    return [record for record in found if record.offset >= first]


def values_of(log: Log, start: int | None = None) -> list[bytes | None]:
    return [record.value for record in records_of(log, start)]


def all_entries(index: AbstractIndex) -> list[tuple[int, int]]:
    """The raw entries of an index."""
    return [index.entry(slot) for slot in range(index.entries)]


def names(dir: Path, suffix: str = "") -> list[str]:
    return sorted(name for name in os.listdir(dir) if name.endswith(suffix))
