"""Kafka's KafkaRaftLog, the metadata log on disk: a storage Log and the snapshots beside it (KIP-630).

Rules: appended to and read on the loop; flush() and the deletion of files run in a thread. A snapshot is
listed only when it is whole. What a snapshot covers may be deleted, never what comes after the newest one.
"""

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ottla.metadata.snapshot import (
    DELETED_SUFFIX,
    PARTIAL_SUFFIX,
    SnapshotId,
    parse_file_name,
    read_header_timestamp,
)
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import METADATA_TOPIC_ID
from ottla.raft.log_view import METADATA_PARTITION, OffsetAndEpoch, Validity, ValidOffset
from ottla.records.batch import BatchView, iter_batches
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log
from ottla.storage.validator import AppendOrigin

DIRECTORY_NAME = "__cluster_metadata-0"
MAX_BATCH_BYTES = 8 * 1024 * 1024
_LOAD_CHUNK_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class MetadataLogConfig:
    """The settings of the metadata log, with Kafka's defaults."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    retention_bytes: int = 104_857_600
    retention_ms: int = 604_800_000
    snapshot_bytes: int = 20_971_520
    snapshot_interval_ms: int = 3_600_000
    max_idle_interval_ms: int = 500

    @classmethod
    def from_config(cls, get: Callable[[str], Any]) -> "MetadataLogConfig":
        """From the broker's configuration, by Kafka's names."""
        return cls(
            segment_bytes=get("metadata.log.segment.bytes"),
            segment_ms=get("metadata.log.segment.ms"),
            retention_bytes=get("metadata.max.retention.bytes"),
            retention_ms=get("metadata.max.retention.ms"),
            snapshot_bytes=get("metadata.log.max.record.bytes.between.snapshots"),
            snapshot_interval_ms=get("metadata.log.max.snapshot.interval.ms"),
            max_idle_interval_ms=get("metadata.max.idle.interval.ms"),
        )

    def log_config(self) -> LogConfig:
        """Retention is the snapshots' affair: the log itself deletes nothing by age or size."""
        return LogConfig(
            segment_bytes=self.segment_bytes,
            segment_ms=self.segment_ms,
            max_message_bytes=MAX_BATCH_BYTES,
            retention_bytes=-1,
            retention_ms=-1,
        )


class MetadataLog:
    """The log of the quorum. Owned by the raft driver."""

    def __init__(self, log: Log, config: MetadataLogConfig) -> None:
        self._log = log
        self.config = config
        self.directory = log.dir
        self.snapshots: list[SnapshotId] = []

    @classmethod
    def open(cls, metadata_dir: Path, config: MetadataLogConfig, now_ms: int) -> "MetadataLog":
        """Opens or creates the log in a log directory; a torn tail is cut off, half-made snapshots go."""
        directory = metadata_dir / DIRECTORY_NAME
        directory.mkdir(exist_ok=True)
        # Kafka validates this log from its start at every start: it is small, and all of it is needed.
        log = Log.open(
            directory,
            config.log_config(),
            now_ms=now_ms,
            topic_partition=METADATA_PARTITION,
            topic_id=METADATA_TOPIC_ID,
        )
        opened = cls(log, config)
        opened._recover_snapshots()
        opened._truncate_to_latest_snapshot(now_ms)
        return opened

    def _recover_snapshots(self) -> None:
        for path in self.directory.iterdir():
            parsed = parse_file_name(path.name)
            if parsed is None:
                continue
            snapshot, suffix = parsed
            if suffix in (PARTIAL_SUFFIX, DELETED_SUFFIX) or snapshot.end_offset < self.start_offset:
                path.unlink(missing_ok=True)
            else:
                insort(self.snapshots, snapshot)
        if self.start_offset > 0 and not self.snapshots:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{self.directory} begins at offset {self.start_offset} and has no snapshot of the rest",
            )

    def _truncate_to_latest_snapshot(self, now_ms: int) -> None:
        """A snapshot that knows more than the log replaces it."""
        latest = self.latest_snapshot
        if latest is None:
            return
        epoch = max(self._log.epochs.latest, 0)
        if latest.epoch > epoch or (latest.epoch == epoch and latest.end_offset > self.end_offset):
            self._log.truncate_fully_and_start_at(latest.end_offset, now_ms)
            for delete in self._forget_before(latest):
                delete()

    # --- offsets

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    def update_high_watermark(self, offset: int) -> None:
        self._log.update_high_watermark(offset)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, of the snapshot if the log holds none, 0 if there is nothing."""
        if self._log.epochs.latest >= 0:
            return self._log.epochs.latest
        return self.latest_snapshot.epoch if self.latest_snapshot is not None else 0

    @property
    def end(self) -> OffsetAndEpoch:
        return OffsetAndEpoch(self.end_offset, self.last_epoch)

    def initialize_leader_epoch(self, epoch: int) -> None:
        self._log.assign_epoch_start(epoch, self.end_offset)

    def validate(self, offset: int, epoch: int) -> ValidOffset:
        """Can a follower that has everything up to `offset`, the last of it of `epoch`, go on from here?"""
        if self.start_offset == 0 and offset == 0:
            return ValidOffset(Validity.VALID, OffsetAndEpoch(0, 0))
        if self.snapshots and self._needs_snapshot(offset, epoch, self.snapshots[0]):
            return ValidOffset(Validity.SNAPSHOT, OffsetAndEpoch(*self.snapshots[-1]))
        end = self._end_for_epoch(epoch)
        if end.epoch != epoch or end.offset < offset:
            return ValidOffset(Validity.DIVERGING, end)
        return ValidOffset(Validity.VALID, OffsetAndEpoch(offset, epoch))

    def _needs_snapshot(self, offset: int, epoch: int, earliest: SnapshotId) -> bool:
        start = self.start_offset
        return offset < start or (offset == start and epoch != earliest.epoch) or epoch < earliest.epoch

    def _end_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        found = self._log.epochs.end_offset_for(epoch, self._log.log_end_offset)
        if found is None:
            return self.end
        earliest = self.snapshots[0] if self.snapshots else None
        if earliest is not None and found == (epoch, earliest.end_offset):
            return OffsetAndEpoch(*earliest)
        return OffsetAndEpoch(found[1], found[0])

    # --- records

    def append(self, batch: bytearray, epoch: int, now_ms: int) -> int:
        """Writes one batch of the leader's; gives its last offset. It is not on disk before flush()."""
        result = self._log.append_as_leader(batch, epoch, now_ms, origin=AppendOrigin.RAFT_LEADER)
        return result.last_offset

    def flush(self, now_ms: int) -> None:
        """Puts everything appended so far on disk. Blocking, any thread."""
        self._log.flush(now_ms=now_ms)

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds `offset`, at least one if there is any."""
        if offset >= self.end_offset:
            return b""
        return self._log.read(offset, max_bytes, self.end_offset).read()

    def batches(self, offset: int) -> Iterator[BatchView]:
        """Every batch from the one that holds `offset` to the end."""
        while offset < self.end_offset:
            data = self.read(offset, _LOAD_CHUNK_BYTES)
            assert data, "an offset below the end can be read"
            for batch in iter_batches(data):
                yield batch
                offset = batch.next_offset

    # --- snapshots

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[-1] if self.snapshots else None

    def snapshot_path(self, snapshot: SnapshotId) -> Path:
        return self.directory / snapshot.file_name

    def snapshot_written(self, snapshot: SnapshotId) -> None:
        """A snapshot has been put on disk under its name."""
        if snapshot not in self.snapshots:
            insort(self.snapshots, snapshot)

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[bytes, int] | None:
        """A piece of a snapshot and the size of the whole; None if it is not there."""
        if snapshot not in self.snapshots:
            return None
        try:
            with self.snapshot_path(snapshot).open("rb") as file:
                size = file.seek(0, 2)
                file.seek(position)
                return file.read(max_bytes), size
        except FileNotFoundError:
            self.snapshots.remove(snapshot)
            return None

    def clean(self, now_ms: int) -> list[Callable[[], None]]:
        """Lets go of what retention no longer wants; gives the file deletions, to be run in a thread."""
        deletions: list[Callable[[], None]] = []
        while len(self.snapshots) > 1 and self._oldest_has_expired(now_ms):
            deletions += self._delete_before(self.snapshots[1], now_ms)
        return deletions

    def _oldest_has_expired(self, now_ms: int) -> bool:
        config = self.config
        if config.retention_bytes >= 0:
            snapshots = sum(self.snapshot_path(s).stat().st_size for s in self.snapshots)
            if self.size_bytes + snapshots > config.retention_bytes:
                return True
        if config.retention_ms < 0:
            return False
        timestamp_ms = read_header_timestamp(self.snapshot_path(self.snapshots[0]))
        return now_ms - timestamp_ms > config.retention_ms

    def _delete_before(self, snapshot: SnapshotId, now_ms: int) -> list[Callable[[], None]]:
        deletions = self._forget_before(snapshot)
        if self._log.maybe_increment_log_start_offset(snapshot.end_offset, "snapshot generated"):
            segments = self._log.delete_old_segments(now_ms)
            if segments:
                deletions.append(lambda: self._log.delete_files(segments))
        return deletions

    def _forget_before(self, snapshot: SnapshotId) -> list[Callable[[], None]]:
        gone = [s for s in self.snapshots if s < snapshot]
        self.snapshots = [s for s in self.snapshots if s >= snapshot]
        return [partial(self.snapshot_path(s).unlink, missing_ok=True) for s in gone]

    def close(self) -> None:
        self._log.close()
