"""Kafka's KafkaRaftLog, the metadata log on disk: a storage Log and the snapshots beside it (KIP-630).

Rules: appended to and read on the loop; flush() and the deletion of files run in a thread. A snapshot is
listed only when it is whole. What a snapshot covers may be deleted, never what comes after the newest one; what is
committed is never cut off. What the quorum writes into the log for itself (leaders, kraft.version, voters) are control
records: they are never part of an image, and the log keeps what they say offset by offset (QuorumHistory).
"""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from ottla.metadata.snapshot import (
    BOOTSTRAP_SNAPSHOT_ID,
    DELETED_SUFFIX,
    PARTIAL_SUFFIX,
    SUFFIX,
    Checkpoint,
    SnapshotId,
    parse_file_name,
    read_control_batch,
    read_header,
)
from ottla.model.durable import fsync_dir
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import METADATA_TOPIC_ID
from ottla.raft.log_check import check_log
from ottla.raft.log_view import METADATA_PARTITION, OffsetAndEpoch, Validity, ValidOffset
from ottla.raft.voters import SUPPORTED_KRAFT_VERSIONS, QuorumHistory, VoterSet
from ottla.records.batch import BatchView, iter_batches
from ottla.records.control import ControlType, control_batch
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log
from ottla.storage.validator import AppendOrigin, check_trusted_batches
from ottla.wire.codec import decode
from ottla.wire.messages.logs.control import KRaftVersionRecord, VotersRecord

DIRECTORY_NAME = "__cluster_metadata-0"
MAX_BATCH_BYTES = 8 * 1024 * 1024
# What is read at once, and then in memory.
CHUNK_BYTES: Final = 1024 * 1024
# Snapshots that one round of cleaning lets go; the next round follows in a minute.
MAX_DELETED_SNAPSHOTS: Final = 100


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


class CorruptRecords(KafkaError):
    """What a leader has sent cannot follow in this log: nothing of it was appended."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)


class MetadataLog:
    """The log of the quorum. Owned by the raft driver."""

    def __init__(self, log: Log, config: MetadataLogConfig, static_voters: VoterSet | None) -> None:
        self._log = log
        self.config = config
        self.directory = log.dir
        self.snapshots: list[SnapshotId] = []
        self.quorum = QuorumHistory(static_voters)
        # What the log held beyond its newest snapshot when it was opened.
        self.opened_bytes = 0

    @classmethod
    def open(
        cls,
        metadata_dir: Path,
        config: MetadataLogConfig,
        now_ms: int,
        static_voters: VoterSet | None = None,
        *,
        may_vote: bool = True,
    ) -> "MetadataLog":
        """Opens or creates the log in a log directory; a torn tail is cut off, half-made snapshots go.

        CORRUPT_MESSAGE, with file and offset, if anything else is damaged.
        """
        directory = metadata_dir / DIRECTORY_NAME
        if not directory.exists():
            directory.mkdir()
            fsync_dir(metadata_dir)  # the vote is in it before the log is
        scan = check_log(directory, _latest_snapshot_in(directory).end_offset, is_synced=may_vote)
        # Kafka validates this log from its start at every start: it is small, and all of it is needed.
        log = Log.open(
            directory,
            config.log_config(),
            now_ms=now_ms,
            topic_partition=METADATA_PARTITION,
            topic_id=METADATA_TOPIC_ID,
        )
        opened = cls(log, config, static_voters)
        opened.opened_bytes = scan.bytes_since
        opened._recover_snapshots()
        opened._truncate_to_latest_snapshot(now_ms)
        opened._read_quorum(scan.control_batches)
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
        """A snapshot that knows more than the log replaces it.

        Whatever epoch a log that ends before it is of: what a snapshot has is committed, and what contradicts it never
        was. Kafka keeps such a log and is sent the same snapshot for ever, which it has already.
        """
        latest = self.latest_snapshot
        if latest is None:
            return
        if latest.epoch > max(self._log.epochs.latest, 0) or latest.end_offset > self.end_offset:
            self._log.truncate_fully_and_start_at(latest.end_offset, now_ms)
            for delete in self._forget_before(latest):
                delete()

    def _read_quorum(self, control_batches: Sequence[BatchView]) -> None:
        """What the newest snapshot says of the quorum, and what the log says after it."""
        latest = self.latest_snapshot
        if latest is not None:
            self._begin_quorum(latest, read_header(self.snapshot_path(latest)))
        after = latest.end_offset if latest is not None else 0
        for batch in control_batches:
            if after <= batch.base_offset < self.end_offset:
                self._note(batch.base_offset, read_control_batch(batch))

    # --- offsets

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def flushed_offset(self) -> int:
        """Everything below is on disk."""
        return self._log.recovery_point

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

    def validate(self, offset: int, epoch: int) -> ValidOffset:
        """Can a follower that has everything up to `offset`, the last of it of `epoch`, go on from here?"""
        if self.start_offset == 0 and offset == 0:
            return ValidOffset(Validity.VALID, OffsetAndEpoch(0, 0))
        if self.snapshots and self._needs_snapshot(offset, epoch, self.snapshots[0]):
            return ValidOffset(Validity.SNAPSHOT, OffsetAndEpoch(*self.snapshots[-1]))
        end = self.end_for_epoch(epoch)
        if end.epoch != epoch or end.offset < offset:
            return ValidOffset(Validity.DIVERGING, end)
        return ValidOffset(Validity.VALID, OffsetAndEpoch(offset, epoch))

    def _needs_snapshot(self, offset: int, epoch: int, earliest: SnapshotId) -> bool:
        start = self.start_offset
        return offset < start or (offset == start and epoch != earliest.epoch) or epoch < earliest.epoch

    def end_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        """Where an epoch ends here, or the last one before it."""
        found = self._log.epochs.end_offset_for(epoch, self._log.log_end_offset)
        if found is None:
            return self.end
        earliest = self.snapshots[0] if self.snapshots else None
        if earliest is not None and found == (epoch, earliest.end_offset):
            return OffsetAndEpoch(*earliest)
        return OffsetAndEpoch(found[1], found[0])

    # --- appending

    def append(self, batch: bytearray, epoch: int, now_ms: int) -> int:
        """Writes one batch of the leader's; returns its last offset. It is not on disk before flush()."""
        result = self._log.append_as_leader(batch, epoch, now_ms, origin=AppendOrigin.RAFT_LEADER)
        return result.last_offset

    def append_control(self, records: Sequence[tuple[ControlType, bytes]], epoch: int, now_ms: int) -> int:
        """Writes control records of the leader's as one batch."""
        base = self.end_offset
        batch = control_batch(records, timestamp_ms=now_ms, base_offset=base, leader_epoch=epoch)
        last = self.append(batch, epoch, now_ms)
        self._note(base, records)
        return last

    def append_as_follower(self, records: bytes, epoch: int, now_ms: int) -> int:
        """Writes a leader's batches as they are; returns their size. Half a batch at the end is left out.

        CorruptRecords if they are damaged or do not follow on what is here: then nothing was written.
        """
        batches, control = self._check_fetched(records, epoch)
        size = batches[-1].end
        if size <= self.config.segment_bytes:
            self._log.append_as_follower(memoryview(records)[:size], now_ms)
        else:
            for batch in batches:
                self._log.append_as_follower(batch.raw(), now_ms)
        for base_offset, said in control:
            self._note(base_offset, said)
        return size

    def _check_fetched(
        self, records: bytes, epoch: int
    ) -> tuple[list[BatchView], list[tuple[int, list[tuple[ControlType, bytes]]]]]:
        """The whole batches of a fetch, and what its control batches say."""
        expected, last_epoch = self.end
        batches, control = [], []
        try:
            for checked in check_trusted_batches(records, METADATA_PARTITION):
                batch = BatchView(records, checked.position)
                if batch.base_offset != expected or batch.records_count != batch.last_offset_delta + 1:
                    raise CorruptRecords(f"offset {batch.base_offset} cannot follow where {expected} is next")
                if not last_epoch <= batch.partition_leader_epoch <= epoch:
                    raise CorruptRecords(
                        f"epoch {batch.partition_leader_epoch} at offset {expected} is not between that of the "
                        f"log, {last_epoch}, and the leader's, {epoch}"
                    )
                if batch.is_control:
                    said = read_control_batch(batch)
                    _check_control(batch.base_offset, said)
                    control.append((batch.base_offset, said))
                batches.append(batch)
                expected, last_epoch = batch.next_offset, batch.partition_leader_epoch
        except CorruptRecords:
            raise
        except KafkaError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                raise
            raise CorruptRecords(f"at offset {expected}: {error}") from None
        return batches, control

    def _note(self, base_offset: int, records: Sequence[tuple[ControlType, bytes]]) -> None:
        """Control records have come to stand in the log."""
        for offset, (kind, value) in enumerate(records, base_offset):
            if kind is ControlType.KRAFT_VERSION:
                self.quorum.add(offset, kraft_version=_kraft_version(offset, value))
            elif kind is ControlType.KRAFT_VOTERS:
                self.quorum.add(offset, voters=VoterSet.from_record(decode(VotersRecord, value, 0)[0]))

    def _begin_quorum(self, snapshot: SnapshotId, header: Checkpoint) -> None:
        """What a snapshot says of the quorum takes the place of all that was known."""
        voters = VoterSet.from_record(header.voters) if header.voters is not None else None
        _require_supported(header.kraft_version, f"the snapshot {snapshot.file_name}")
        self.quorum.begin_with_snapshot(snapshot.end_offset, header.kraft_version, voters)

    def flush(self, now_ms: int) -> None:
        """Puts everything appended so far on disk. Blocking, any thread."""
        self._log.flush(now_ms=now_ms)

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Cuts off what a leader does not have; nobody may flush meanwhile. What is committed stays."""
        latest = self.latest_snapshot
        committed = max(self.high_watermark, latest.end_offset if latest is not None else 0)
        if offset < committed:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"{self.directory}: the leader wants it cut at offset {offset}, but it is committed up to {committed}",
            )
        self._log.truncate_to(self._batch_boundary(offset), now_ms)
        self.quorum.truncate(self.end_offset)

    def _batch_boundary(self, offset: int) -> int:
        """The offset, or the base of the batch that it lies in: batches go whole."""
        if not self.start_offset <= offset < self.end_offset:
            return offset
        return self._log.read(offset, 1, self.end_offset).first_offset

    # --- reading

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds `offset`, at least one if there is any."""
        if offset >= self.end_offset:
            return b""
        return self._log.read(offset, max_bytes, self.end_offset).read()

    def batches(self, offset: int) -> Iterator[BatchView]:
        """Every batch from the one that holds `offset` to the end."""
        return self._batches(offset, lambda: self.end_offset)

    def committed(self, offset: int) -> Iterator[BatchView]:
        """Every batch from the one that holds `offset` up to the high watermark, wherever that is by then.

        Whoever takes its time may find that a snapshot has replaced the log meanwhile: then this ends.
        """
        return self._batches(offset, lambda: self.high_watermark)

    def _batches(self, offset: int, end_offset: Callable[[], int]) -> Iterator[BatchView]:
        while self.start_offset <= offset < end_offset():
            data = self._log.read(offset, CHUNK_BYTES, end_offset()).read()
            if not data:
                return  # the end lies within a batch
            try:
                for batch in iter_batches(data):
                    if not batch.crc_ok():
                        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the checksum does not match")
                    yield batch
                    offset = batch.next_offset
            except KafkaError as error:
                segments = self._log.segments
                path = segments[segments.floor_index(offset)].path
                raise KafkaError(error.code, f"{path}: damaged at offset {offset}: {error}") from None

    # --- snapshots

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshots[-1] if self.snapshots else None

    def snapshot_path(self, snapshot: SnapshotId) -> Path:
        return self.directory / snapshot.file_name

    def snapshot_written(self, snapshot: SnapshotId) -> None:
        """A snapshot of what is in the log has been put on disk under its name."""
        if snapshot not in self.snapshots:
            insort(self.snapshots, snapshot)

    def begin_after(self, snapshot: SnapshotId, now_ms: int) -> list[Callable[[], None]]:
        """A fetched snapshot is on disk under its name: it takes the place of the log, which begins after it.

        Nobody may flush meanwhile. Returns the file deletions, to be run in a thread.
        """
        self._begin_quorum(snapshot, read_header(self.snapshot_path(snapshot)))
        self._log.truncate_fully_and_start_at(snapshot.end_offset, now_ms)
        self.snapshot_written(snapshot)
        return self._forget_before(snapshot)

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
        """Lets go of what retention no longer wants; returns the file deletions, to be run in a thread."""
        deletions: list[Callable[[], None]] = []
        for _ in range(MAX_DELETED_SNAPSHOTS):
            # What a restarted follower does not know to be committed yet stays until it does.
            if len(self.snapshots) < 2 or self.snapshots[1].end_offset > self.high_watermark:
                break
            if not self._oldest_has_expired(now_ms):
                break
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
        header = read_header(self.snapshot_path(self.snapshots[0]))
        return now_ms - header.last_contained_log_timestamp_ms > config.retention_ms

    def _delete_before(self, snapshot: SnapshotId, now_ms: int) -> list[Callable[[], None]]:
        deletions = self._forget_before(snapshot)
        self.quorum.forget(snapshot.end_offset - 1)
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
        """Leaves the files as they are if the disk has failed."""
        if self._log.failed:
            self._log.close_handlers()
        else:
            self._log.close()


def _latest_snapshot_in(directory: Path) -> SnapshotId:
    parsed = (parse_file_name(path.name) for path in directory.iterdir())
    return max(
        (found[0] for found in parsed if found is not None and found[1] == SUFFIX),
        default=BOOTSTRAP_SNAPSHOT_ID,
    )


def _check_control(base_offset: int, records: Sequence[tuple[ControlType, bytes]]) -> None:
    """Can all of it be read? Before it is written."""
    for offset, (kind, value) in enumerate(records, base_offset):
        if kind is ControlType.KRAFT_VERSION:
            _kraft_version(offset, value)
        elif kind is ControlType.KRAFT_VOTERS:
            VoterSet.from_record(decode(VotersRecord, value, 0)[0])


def _kraft_version(offset: int, value: bytes) -> int:
    level = decode(KRaftVersionRecord, value, 0)[0].kraft_version
    _require_supported(level, f"offset {offset} of the metadata log")
    return level


def _require_supported(level: int, where: str) -> None:
    if level not in SUPPORTED_KRAFT_VERSIONS:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{where} sets kraft.version to {level}; this release knows "
            f"{SUPPORTED_KRAFT_VERSIONS.min} to {SUPPORTED_KRAFT_VERSIONS.max}",
        )
