"""Snapshots of the metadata (KIP-630): when one is due and how it is written, how one is fetched, and how one is read.

Kafka's SnapshotGenerator, FileRawSnapshotWriter and RecordsSnapshotReader. Every node that has an image writes
snapshots, voter or not.

Rules: made of a committed image, which cannot change meanwhile; encoded in slices on the loop, written and
synced in a thread; one at a time. One that is fetched comes in pieces into a file that counts only when all of it is
there, has been checked, is on disk and has got its name. Owned by the raft driver.
"""

import asyncio
import logging
import os
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import Final

from ottla.metadata.image import ClusterImage, image_records
from ottla.metadata.records import MetadataRecord
from ottla.metadata.serde import iter_record_batch
from ottla.metadata.snapshot import (
    BOOTSTRAP_SNAPSHOT_ID,
    MAX_CHECKPOINT_BYTES,
    PARTIAL_SUFFIX,
    SUFFIX,
    SnapshotId,
    checkpoint_batches,
    read_control_batch,
    read_header,
    write_checkpoint,
)
from ottla.model.clock import Clock
from ottla.model.durable import fsync_dir
from ottla.model.errors import ErrorCode, KafkaError
from ottla.raft.metadata_log import CorruptRecords, MetadataLog
from ottla.raft.voters import VoterSet
from ottla.records.batch import BatchView
from ottla.records.control import ControlType
from ottla.storage.files import write_fully
from ottla.storage.segment.file_records import read_batches

logger = logging.getLogger(__name__)

# Some thousand records, a tenth of a second to read: a stop leaves no more than that to the next start. Ten
# thousand partitions change their leader at every stop and start, which is a megabyte each time.
STOP_SNAPSHOT_BYTES: Final = 256 * 1024


class SnapshotGenerator:
    """Counts what is appended and writes snapshots."""

    def __init__(self, log: MetadataLog, clock: Clock, executor: Executor) -> None:
        self._log = log
        self._clock = clock
        self._executor = executor
        self._bytes_since_snapshot = log.opened_bytes
        self._last_snapshot_ms = clock.monotonic_ms()
        self._writing = False

    def appended(self, size_bytes: int) -> None:
        self._bytes_since_snapshot += size_bytes

    def replaced(self) -> None:
        """A snapshot that was fetched is all there is."""
        self._bytes_since_snapshot = 0
        self._last_snapshot_ms = self._clock.monotonic_ms()

    def due(self, image: ClusterImage, *, stopping: bool = False) -> bool:
        """Is it time, and is there anything new to keep? At a stop, rather early: the next start reads less."""
        latest = self._log.latest_snapshot
        if self._writing or image.metadata_version is None:
            return False
        if latest is not None and latest.end_offset >= image.offset + 1:
            return False
        if stopping:
            return self._bytes_since_snapshot >= STOP_SNAPSHOT_BYTES
        config = self._log.config
        elapsed_ms = self._clock.monotonic_ms() - self._last_snapshot_ms
        by_time = 0 < config.snapshot_interval_ms <= elapsed_ms and self._bytes_since_snapshot > 0
        return by_time or self._bytes_since_snapshot >= config.snapshot_bytes

    async def write(self, image: ClusterImage) -> SnapshotId:
        """Writes the image's snapshot; it counts when this returns."""
        snapshot = SnapshotId(image.offset + 1, image.epoch)
        self._writing = True
        try:
            batches = await self._encode(image)
            path = self._log.snapshot_path(snapshot)
            loop = asyncio.get_running_loop()
            size = await loop.run_in_executor(self._executor, write_checkpoint, path, batches)
        finally:
            self._writing = False
        if snapshot.end_offset < self._log.start_offset:
            # Meanwhile a newer one was fetched, and the log has begun anew after that.
            await loop.run_in_executor(self._executor, path.unlink)
            return snapshot
        self._log.snapshot_written(snapshot)
        self._bytes_since_snapshot = 0
        self._last_snapshot_ms = self._clock.monotonic_ms()
        logger.info("wrote metadata snapshot %s, %d bytes", snapshot.file_name, size)
        return snapshot

    async def _encode(self, image: ClusterImage) -> list[bytearray]:
        # The quorum as it was then: what was appended since may be cut off again.
        quorum = self._log.quorum.at(image.offset)
        batches = []
        for batch in checkpoint_batches(
            image_records(image),
            metadata_version=image.metadata_version_or_throw,
            epoch=image.epoch,
            last_contained_log_timestamp_ms=image.timestamp_ms,
            now_ms=self._clock.now_ms(),
            kraft_version=quorum.kraft_version,
            voters=quorum.voters.to_record() if quorum.kraft_version > 0 else None,
        ):
            batches.append(batch)
            # Other work comes in between: a cluster of 10,000 partitions takes a tenth of a second.
            await asyncio.sleep(0)
        return batches


class SnapshotReader:
    """A snapshot, its records read while they are asked for. Blocking, but never for more than some megabytes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        header = read_header(path)
        self.last_contained_log_timestamp_ms = header.last_contained_log_timestamp_ms
        self.kraft_version = header.kraft_version
        self.voters = header.voters

    @property
    def records(self) -> Iterator[MetadataRecord]:
        """All metadata records; CORRUPT_MESSAGE, with the file, where it is damaged, ends too early or has others."""
        for batch in self.batches():
            if batch.is_control:
                continue
            try:
                for _, record in iter_record_batch(batch):
                    yield record
            except KafkaError as error:
                raise KafkaError(error.code, f"{self._path}: {error}") from None

    def batches(self) -> Iterator[BatchView]:
        """All batches, with right checksums and offsets, from the header to the footer and no further."""
        position, expected, complete = 0, 0, False
        with self._path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            try:
                for position, batch in read_batches(file.fileno(), 0, size):
                    if not batch.crc_ok():
                        raise _corrupt("the checksum does not match")
                    if complete or batch.base_offset != expected or batch.last_offset_delta < 0:
                        raise _corrupt(f"a batch with offset {batch.base_offset} cannot follow")
                    if batch.is_control:
                        complete = read_control_batch(batch)[-1][0] is ControlType.SNAPSHOT_FOOTER
                    yield batch
                    expected = batch.next_offset
                    position += batch.size_bytes
            except KafkaError as error:
                raise _corrupt(f"{self._path}: damaged at position {position}: {error}") from None
        if not complete or position != size:
            raise _corrupt(f"{self._path}: it ends at position {position} without a footer")


def _corrupt(message: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, message)


class SnapshotWriter:
    """A snapshot that is being fetched, in a file beside its name. Everything here blocks."""

    def __init__(self, log: MetadataLog, snapshot: SnapshotId, size: int) -> None:
        self.snapshot = snapshot
        self.size = size
        self.position = 0
        self._final = log.snapshot_path(snapshot)
        self._path = self._final.with_name(f"{self._final.name.removesuffix(SUFFIX)}-fetched{PARTIAL_SUFFIX}")

    def fits(self, snapshot: SnapshotId, position: int, data: bytes, size: int) -> bool:
        """Is this the next piece of it?"""
        return (
            (snapshot, position, size) == (self.snapshot, self.position, self.size)
            and snapshot != BOOTSTRAP_SNAPSHOT_ID
            and 0 < len(data) <= size - position
            and size <= MAX_CHECKPOINT_BYTES
        )

    def append(self, data: bytes) -> None:
        """Writes the next piece; the first one begins the file anew."""
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if self.position == 0 else 0)
        fd = os.open(self._path, flags, 0o600)
        try:
            write_fully(fd, data, self.position)
        finally:
            os.close(fd)
        self.position += len(data)

    @property
    def is_whole(self) -> bool:
        return self.position == self.size

    def freeze(self) -> None:
        """Gives the whole snapshot its name, on disk; CorruptRecords, and no file is left, if it is none."""
        try:
            reader = SnapshotReader(self._path)
            if reader.voters is not None:
                VoterSet.from_record(reader.voters)
            for _ in reader.batches():
                pass
        except KafkaError as error:
            self.delete()
            raise CorruptRecords(str(error)) from None
        fd = os.open(self._path, os.O_RDONLY)
        try:
            os.fchmod(fd, 0o400)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(self._path, self._final)
        fsync_dir(self._final.parent)

    def delete(self) -> None:
        """It is not wanted any more."""
        with suppress(OSError):
            os.unlink(self._path)
