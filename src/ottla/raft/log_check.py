"""Damage in the metadata log: what a crash has torn off its end is cut there, anything else stops the node.

Kafka ends a log at the first batch that it cannot read, and for a partition that is right: the other replicas have
the rest. A voter that forgot records which it once said to have on disk could elect a leader that never had them, so
here a flipped bit in the midst of the log is reported with its file and offset, and nothing is cut.

A torn write differs from damage in that nothing follows it. At the very end of the log it is a batch that is cut
short, or one whose last sectors were never written and read as zeros, or bytes that are no batch; a batch that is all
there and does not match its checksum was damaged after it was written.

An observer's log is not fsynced, and nobody relies on it: there a power cut may also leave out sectors in the midst of
what was written last, and the log is cut at the first of them.

Rules: blocking, run once when the log is opened; files are only read, batch by batch.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_OFFSET,
    MIN_BATCH_LENGTH,
    BatchView,
    compute_crc,
)
from ottla.storage.files import LOG_SUFFIX, offset_of
from ottla.storage.segment.file_records import read_batches

# What disks write whole or not at all.
SECTOR_BYTES: Final = 512
# What to do, for a voter and for an observer. Nothing was cut off.
VOTERS_REMEDY: Final = "with other voters, start this one again in an empty directory that is formatted anew"
OBSERVERS_REMEDY: Final = "remove the directory, and the log is fetched again"


class LogScan(NamedTuple):
    """What was found on the way."""

    control_batches: list[BatchView]
    bytes_since: int


def check_log(directory: Path, since: int, *, is_synced: bool = True) -> LogScan:
    """The control batches of the log, and how many bytes of it lie at or above an offset.

    CORRUPT_MESSAGE, with file and offset, if anything but a torn end is damaged.
    """
    control_batches = []
    bytes_since = 0
    for batch in _batches(directory, is_synced):
        if batch.is_control:
            control_batches.append(BatchView(bytes(batch.raw())))
        if batch.base_offset >= since:
            bytes_since += batch.size_bytes
    return LogScan(control_batches, bytes_since)


def _batches(directory: Path, is_synced: bool) -> Iterator[BatchView]:
    """Every batch up to the end, or to where a crash has torn it."""
    segments = sorted(
        path for path in directory.iterdir() if path.suffix == LOG_SUFFIX and offset_of(path.name) is not None
    )
    walk = _Walk(_base_offset(segments[0]) if segments else 0, is_synced)
    for index, path in enumerate(segments):
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            yield from walk.batches(file.fileno(), size)
            if walk.position == size:
                continue
            rest = os.pread(file.fileno(), size - walk.position, walk.position)
            if not is_synced and _begins_with_lost_sector(rest, walk.position, walk.expected):
                return
            if any(later.stat().st_size for later in segments[index + 1 :]):
                raise walk.damage(path)
            if not _is_torn(rest, walk.position, walk.expected):
                raise walk.damage(path)
        return


def _base_offset(path: Path) -> int:
    offset = offset_of(path.name)
    assert offset is not None
    return offset


class _Walk:
    """Over batches that must follow on one another, and where it came to an end."""

    def __init__(self, expected: int, is_synced: bool) -> None:
        self.expected = expected
        self.position = 0
        self._remedy = VOTERS_REMEDY if is_synced else OBSERVERS_REMEDY
        self._epoch = 0
        self._reason = ""

    def batches(self, fd: int, size: int) -> Iterator[BatchView]:
        self.position, self._reason = 0, "it is cut short"
        try:
            for position, batch in read_batches(fd, 0, size):
                problem = self._problem(batch)
                if problem is not None:
                    self._reason = problem
                    return
                yield batch
                self.position = position + batch.size_bytes
                self.expected, self._epoch = batch.next_offset, batch.partition_leader_epoch
        except KafkaError as error:
            self._reason = str(error)

    def _problem(self, batch: BatchView) -> str | None:
        """What contradicts the checksum, or the batches before it: the checksum does not cover offset and epoch."""
        if not batch.crc_ok():
            return "the checksum does not match"
        if batch.base_offset != self.expected or batch.last_offset_delta < 0:
            return f"offset {batch.base_offset} stands where {self.expected} has to follow"
        if batch.partition_leader_epoch < self._epoch:
            return f"epoch {batch.partition_leader_epoch} stands after epoch {self._epoch}"
        return None

    def damage(self, path: Path) -> KafkaError:
        return KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{path}: damaged at offset {self.expected} (position {self.position}): {self._reason}; {self._remedy}",
        )


def _is_torn(rest: bytes, position: int, expected: int) -> bool:
    """Is the rest of the last segment, from a position on, a write that a crash has cut short?"""
    if _later_batch(rest, expected) < len(rest):
        return False
    if len(rest) < HEADER_SIZE:
        return True
    batch = BatchView(rest)
    fits = MIN_BATCH_LENGTH <= batch.batch_length <= len(rest) - LOG_OVERHEAD
    if batch.crc == compute_crc(rest, 0, len(rest)) or (fits and batch.crc_ok()):
        return False  # all of it is there: what no checksum covers, the beginning of the header, is damaged
    if not fits or batch.magic != MAGIC or batch.base_offset != expected:
        return True
    # Its last sectors were never written, if all of them read as zeros.
    written = len(rest.rstrip(b"\0"))
    return written + -(position + written) % SECTOR_BYTES < len(rest)


def _begins_with_lost_sector(rest: bytes, position: int, expected: int) -> bool:
    """Is there a sector that was never written before the next sound batch?"""
    first = -position % SECTOR_BYTES
    sectors = range(first, _later_batch(rest, expected) - SECTOR_BYTES + 1, SECTOR_BYTES)
    return any(not any(rest[at : at + SECTOR_BYTES]) for at in sectors)


def _later_batch(rest: bytes, expected: int) -> int:
    """Where a sound batch with later offsets begins behind the first byte, or the end. Damage may hide where."""
    at = rest.find(MAGIC, MAGIC_OFFSET + 1)
    while 0 <= at <= len(rest) - (HEADER_SIZE - MAGIC_OFFSET):
        batch = BatchView(rest, at - MAGIC_OFFSET)
        if (
            MIN_BATCH_LENGTH <= batch.batch_length <= len(rest) - batch.pos - LOG_OVERHEAD
            and batch.base_offset > expected
            and batch.crc_ok()
        ):
            return batch.pos
        at = rest.find(MAGIC, at + 1)
    return len(rest)
