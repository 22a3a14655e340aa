"""Kafka's SnapshotGenerator: when a snapshot is due, and writing it without holding up the loop (KIP-630).

Rules: made of a committed image, which cannot change meanwhile; encoded in slices on the loop, written and
synced in a thread; one at a time. Owned by the raft driver.
"""

import asyncio
import logging
from concurrent.futures import Executor
from typing import Final

from ottla.metadata.image import ClusterImage, image_records
from ottla.metadata.snapshot import SnapshotId, checkpoint_batches, write_checkpoint
from ottla.model.clock import Clock
from ottla.raft.metadata_log import MetadataLog
from ottla.raft.voters import VoterSet

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
        self._bytes_since_snapshot = 0
        self._last_snapshot_ms = clock.monotonic_ms()
        self._writing = False

    def appended(self, size_bytes: int) -> None:
        self._bytes_since_snapshot += size_bytes

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

    async def write(self, image: ClusterImage, kraft_version: int, voters: VoterSet) -> SnapshotId:
        """Writes the image's snapshot; it counts when this returns."""
        snapshot = SnapshotId(image.offset + 1, image.epoch)
        self._writing = True
        try:
            batches = await self._encode(image, kraft_version, voters)
            path = self._log.snapshot_path(snapshot)
            loop = asyncio.get_running_loop()
            size = await loop.run_in_executor(self._executor, write_checkpoint, path, batches)
        finally:
            self._writing = False
        self._log.snapshot_written(snapshot)
        self._bytes_since_snapshot = 0
        self._last_snapshot_ms = self._clock.monotonic_ms()
        logger.info("wrote metadata snapshot %s, %d bytes", snapshot.file_name, size)
        return snapshot

    async def _encode(self, image: ClusterImage, kraft_version: int, voters: VoterSet) -> list[bytearray]:
        batches = []
        for batch in checkpoint_batches(
            image_records(image),
            metadata_version=image.metadata_version_or_throw,
            epoch=image.epoch,
            last_contained_log_timestamp_ms=image.timestamp_ms,
            now_ms=self._clock.now_ms(),
            kraft_version=kraft_version,
            voters=voters.to_record() if kraft_version > 0 else None,
        ):
            batches.append(batch)
            # Other work comes in between: a cluster of 10,000 partitions takes a tenth of a second.
            await asyncio.sleep(0)
        return batches
