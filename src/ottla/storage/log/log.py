"""One partition's log: Kafka's UnifiedLog, behind one object.

It is a list of segments, of which the last is appended to, with the leader epochs and the producer state that
belong to them. Offsets: everything below `log_start_offset` is gone, everything below `high_watermark` is
replicated, everything below `last_stable_offset` is decided, the next record gets `log_end_offset`; everything
below `recovery_point` is on the disk.

Rules: a Log belongs to the event loop. Only `flush`, the searches by timestamp, `delete_files`, `recompress`,
`inspect` and what is done with a LogSlice may come from another thread. A failed write or fsync marks the log
failed for good: nothing more is appended, read or acknowledged, and `on_failure` hears of it once. Appending a
batch costs one look by the kernel and one write.
"""

import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid
from ottla.storage.config import MAX_LONG, LogConfig
from ottla.storage.dirs.checkpoints import (
    PARTITION_METADATA_FILE,
    agree_on_topic_id,
    fsync_dir,
    read_topic_id,
    write_topic_id,
)
from ottla.storage.dirs.log_dir import delete_dir_name, parse_dir_name
from ottla.storage.files import DELETED_SUFFIX, SWAP_SUFFIX, fsync_file
from ottla.storage.log.append import AppendableLog
from ottla.storage.log.leader_epochs import LeaderEpochFileCache
from ottla.storage.log.reader import ActiveProducer
from ottla.storage.log.recovery import LogLoader
from ottla.storage.producers.state import ProducerStateManager, never_abort, rebuild_producer_state
from ottla.storage.segment.file_records import LogSlice, TimestampOffset
from ottla.storage.segment.indexes import AbortedTransaction
from ottla.storage.segment.segment import LogSegment
from ottla.storage.validator import AppendOrigin, AppendResult

__all__ = [
    "AbortedTransaction",
    "ActiveProducer",
    "AppendOrigin",
    "AppendResult",
    "Log",
    "LogSegment",
    "LogSlice",
    "TimestampOffset",
]


# ----------------------------------------
# Which segments retention lets go: those before the log start offset, beyond the size, or too old.
#
# Pure decisions over a log's segments, oldest first. A segment that holds anything at or above the high watermark
# stays, and so does an empty active segment.


Condition = Callable[[LogSegment, "LogSegment | None"], bool]


def deletable(
    segments: Sequence[LogSegment], high_watermark: int, log_end_offset: int, condition: Condition
) -> list[LogSegment]:
    """The longest run of segments from the start that all may go and all meet the condition."""
    chosen: list[LogSegment] = []
    for index, segment in enumerate(segments):
        following = segments[index + 1] if index + 1 < len(segments) else None
        upper_bound = following.base_offset if following is not None else log_end_offset
        last_and_empty = following is None and segment.size_bytes == 0
        if last_and_empty or high_watermark < upper_bound or not condition(segment, following):
            break
        chosen.append(segment)
    return chosen


def before_log_start(log_start_offset: int) -> Condition:
    """All of it lies below the log start offset, as after DeleteRecords."""

    def condition(segment: LogSegment, following: LogSegment | None) -> bool:
        return following is not None and following.base_offset <= log_start_offset

    return condition


def beyond_size(segments: Sequence[LogSegment], config: LogConfig) -> Condition | None:
    """What retention.bytes does not hold; None if it holds everything."""
    size_bytes = sum(segment.size_bytes for segment in segments)
    if config.retention_bytes < 0 or size_bytes < config.retention_bytes:
        return None
    excess = size_bytes - config.retention_bytes

    def condition(segment: LogSegment, following: LogSegment | None) -> bool:
        nonlocal excess
        if excess < segment.size_bytes:
            return False
        excess -= segment.size_bytes
        return True

    return condition


def too_old(config: LogConfig, now_ms: int) -> Condition | None:
    """What retention.ms is over for; None if there is no such limit."""
    if config.retention_ms < 0:
        return None

    def condition(segment: LogSegment, following: LogSegment | None) -> bool:
        return now_ms - segment.largest_timestamp > config.retention_ms

    return condition


logger = logging.getLogger(__name__)

REST_BYTES: Final = 1 << 20


class Log(AppendableLog):
    """A log with its upkeep: opening, flushing, deletion, truncation, closing."""

    __slots__ = ()

    @classmethod
    def open(
        cls,
        dir: Path,
        config: LogConfig,
        *,
        now_ms: int,
        topic_partition: TopicPartition | None = None,
        topic_id: Uuid | None = None,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean: bool = False,
        producer_id_expiration_ms: int = 86_400_000,
        max_transaction_timeout_ms: int = 900_000,
        check: Callable[[], None] = never_abort,
    ) -> Self:
        """Loads a log from its directory, or begins one. `clean` says that the last stop was clean.

        `check` may raise to end a long recovery; the next one begins anew.
        """
        if topic_partition is None:
            parsed = parse_dir_name(dir)
            assert parsed is not None, f"{dir} is not the directory of a partition"
            topic_partition = parsed.topic_partition
        if not os.path.isdir(dir):
            dir.mkdir(parents=True, exist_ok=True)
        known_id = read_topic_id(dir)
        agreed_id = agree_on_topic_id(known_id, topic_id, topic_partition)
        epochs = LeaderEpochFileCache.load(dir)
        producers = ProducerStateManager(
            topic_partition,
            dir,
            expiration_ms=producer_id_expiration_ms,
            max_transaction_timeout_ms=max_transaction_timeout_ms,
        )
        loader = LogLoader(
            dir,
            config,
            epochs,
            producers,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            clean=clean,
            now_ms=now_ms,
            check=check,
        )
        log = cls(dir, topic_partition, agreed_id, config, loader.load(), epochs, producers, now_ms)
        log._use_config(config)
        if agreed_id is not None and known_id is None:
            log._write_topic_id(agreed_id)
        return log

    def update_config(self, config: LogConfig) -> None:
        """Takes a changed topic configuration; the segments that exist keep their index settings."""
        self._use_config(config)

    def assign_topic_id(self, topic_id: Uuid) -> None:
        """Notes the topic's id, once; INCONSISTENT_TOPIC_ID if it has another."""
        agreed = agree_on_topic_id(self.topic_id, topic_id, self.topic_partition)
        if self.topic_id is None and agreed is not None:
            self.topic_id = agreed
            self._write_topic_id(agreed)

    def _write_topic_id(self, topic_id: Uuid) -> None:
        try:
            write_topic_id(self.dir, topic_id)
        except OSError as error:
            raise self._fail("write the topic id of", error) from error
        self._sync_later(self.dir / PARTITION_METADATA_FILE)

    # -- the disk

    def flush(self, upto: int | None = None, *, now_ms: int) -> None:
        """Waits until everything below an offset is on the disk, and moves the recovery point there. Any thread.

        The small files go first: what they say is then at least as durable as the records. Without records there is
        nothing to wait for: epochs without records do not count, and the topic's id is in the metadata log.
        """
        self._require_online()
        truncations, dir = self._truncations, self.dir
        target = self.log_end_offset if upto is None else min(upto, self.log_end_offset)
        start = self.recovery_point
        try:
            if target > start:
                self._flush_small_files()
                self._flush_segments(start, target)
        except FileNotFoundError as error:
            if not self._was_moved_from(dir):  # to be deleted
                raise self._fail("flush", error) from error
        except OSError as error:
            raise self._fail("flush", error) from error
        with self._lock:
            if target > self.recovery_point and truncations == self._truncations and dir == self.dir:
                self.recovery_point = target
        self.last_flush_ms = now_ms

    def _flush_small_files(self) -> None:
        """Epochs, topic id and snapshots. Each stays noted until it is on the disk: another flush waits for it too."""
        with self._lock:
            unsynced = dict(self._unsynced)
        for path in unsynced:
            fsync_file(path)
        if self._epochs.flush():
            fsync_dir(self.dir)  # the file took the place of another
        with self._lock:
            for path, noted in unsynced.items():
                if self._unsynced.get(path) == noted:
                    del self._unsynced[path]

    def _flush_segments(self, start: int, target: int) -> None:
        segments = tuple(self._segments)
        for segment, following in zip(segments, (*segments[1:], None), strict=True):
            if segment.base_offset >= target or (following is not None and following.base_offset <= start):
                continue
            try:
                segment.flush()
            except FileNotFoundError:
                if segment in self._segments:  # else it was deleted meanwhile
                    raise
            if segment.base_offset >= start:
                fsync_dir(self.dir)
                if segment is segments[0]:
                    fsync_dir(self.dir.parent)  # the log may be new

    def take_producer_snapshot(self) -> None:
        """Writes a producer snapshot at the log end offset, on the disk."""
        self._require_online()
        try:
            self._producers.take_snapshot()
        except OSError as error:
            raise self._fail("snapshot the producers of", error) from error

    # -- deletion

    def delete_old_segments(self, now_ms: int, limit: int = MAX_LONG) -> list[LogSegment]:
        """Lets go what retention does not hold: renamed now, for delete_files to unlink later.

        At most `limit` of each kind of reason at a time: renaming thousands would hold the loop. Who gets that
        many asks again.
        """
        self._require_online()
        try:
            return self._delete_old_segments(now_ms, limit)
        except OSError as error:
            raise self._fail("delete segments of", error) from error

    def _delete_old_segments(self, now_ms: int, limit: int) -> list[LogSegment]:
        config, start = self.config, self.log_start_offset
        below = before_log_start(start)
        gone = self._delete_those(below, now_ms, limit, f"all of it lies below the log start offset {start}")
        if not config.delete:
            return gone
        by_size = beyond_size(self._segments, config)
        if by_size is not None:
            reason = f"the log has more than retention.bytes={config.retention_bytes}"
            gone += self._delete_those(by_size, now_ms, limit, reason)
        by_age = too_old(config, now_ms)
        if by_age is not None:
            reason = f"the newest record is older than retention.ms={config.retention_ms}"
            gone += self._delete_those(by_age, now_ms, limit, reason)
        return gone

    def _delete_those(self, condition: Condition, now_ms: int, limit: int, reason: str) -> list[LogSegment]:
        chosen = deletable(self._segments, self.high_watermark, self.log_end_offset, condition)[:limit]
        if not chosen:
            return []
        _open_all(chosen)
        if len(chosen) == len(self._segments):
            self._roll(self.log_end_offset, now_ms)  # there is always a segment to append to
        self.maybe_increment_log_start_offset(self._bases[len(chosen)], "segment deletion")
        self._remove(chosen)
        logger.info(
            "%s: deleting %d segment%s (base offsets %d to %d, %d bytes): %s",
            self.topic_partition,
            len(chosen),
            "" if len(chosen) == 1 else "s",
            chosen[0].base_offset,
            chosen[-1].base_offset,
            sum(segment.size_bytes for segment in chosen),
            reason,
        )
        return chosen

    def _remove(self, segments: Sequence[LogSegment]) -> None:
        """Takes segments out of the log and marks their files."""
        gone = {id(segment) for segment in segments}
        self._set_segments([segment for segment in self._segments if id(segment) not in gone])
        for segment in segments:
            segment.change_suffix(DELETED_SUFFIX)
            self._producers.mark_snapshot_deleted(segment.base_offset)

    def delete_files(self, segments: Sequence[LogSegment]) -> None:
        """Unlinks what delete_old_segments, truncate_to or replace_segments took out. Any thread."""
        for segment in segments:
            segment.delete_files()
            (self.dir / f"{segment.base_offset:020d}.snapshot{DELETED_SUFFIX}").unlink(missing_ok=True)

    def replace_segments(self, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> list[LogSegment]:
        """Puts cleaned segments in the place of old ones, as Kafka does; the old ones, for delete_files.

        A crash at any point leaves either the old segments or all the new ones: see recovery. The caller syncs the
        directory afterwards, in a thread, and before anything relies on the swap.
        """
        self._require_online()
        old_bases = {segment.base_offset for segment in old if segment in self._segments}
        try:
            _open_all([*new, *old])
        except OSError as error:
            raise self._fail("replace segments of", error) from error
        try:
            for segment in sorted(new, key=lambda segment: -segment.base_offset):
                segment.change_suffix(SWAP_SUFFIX)
            gone = [segment for segment in self._segments if segment.base_offset in old_bases]
            kept = [segment for segment in self._segments if segment.base_offset not in old_bases]
            self._set_segments(sorted([*kept, *new], key=lambda segment: segment.base_offset))
            new_bases = {segment.base_offset for segment in new}
            for segment in gone:
                segment.change_suffix(DELETED_SUFFIX)
                if segment.base_offset not in new_bases:
                    self._producers.mark_snapshot_deleted(segment.base_offset)
            for segment in sorted(new, key=lambda segment: segment.base_offset):
                segment.change_suffix("")
        except OSError as error:
            raise self._fail_for_good("replace segments of", error) from error
        return gone

    # -- truncation

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """Removes everything at or above an offset: a follower's tail that its leader does not have."""
        self._require_online()
        assert offset >= 0
        if offset >= self.log_end_offset:
            self._epochs.truncate_from_end(self.log_end_offset)
            return False
        if offset < self._bases[0]:
            self.truncate_fully_and_start_at(offset, now_ms)
            return True
        try:
            self._truncate_to(offset, now_ms)
        except OSError as error:
            raise self._fail_for_good("truncate", error) from error
        return True

    def _truncate_to(self, offset: int, now_ms: int) -> None:
        doomed = [segment for segment in self._segments if segment.base_offset > offset]
        self._begin_truncation(offset)
        if doomed:
            self._remove(doomed)
            self.delete_files(doomed)
        self._active.truncate_to(offset, now_ms)
        # The batch that holds the offset goes whole, as the next append must follow on what is left.
        self.log_end_offset = offset
        self._disarm_roll()
        self._epochs.truncate_from_end(offset)
        self.log_start_offset = min(self.log_start_offset, offset)
        rebuild_producer_state(self._producers, self._segments, self.log_start_offset, offset, now_ms)
        self.high_watermark = min(self.high_watermark, offset)
        self._producers.on_high_watermark(self.high_watermark)
        self._update_first_unstable()

    def _begin_truncation(self, offset: int) -> None:
        with self._lock:
            self._truncations += 1
            self.recovery_point = min(self.recovery_point, offset)

    def truncate_fully_and_start_at(
        self, offset: int, now_ms: int, log_start_offset: int | None = None
    ) -> None:
        """Removes everything; the log goes on at an offset."""
        self._require_online()
        try:
            self._begin_truncation(offset)
            for segment in self._segments:
                segment.delete_files()
            self._set_segments([LogSegment.create(self.dir, offset, self.config, now_ms)])
            self._epochs.clear()
            self._producers.truncate_fully_and_start_at(offset)
        except OSError as error:
            raise self._fail_for_good("truncate", error) from error
        self.log_end_offset = offset
        self.log_start_offset = offset if log_start_offset is None else log_start_offset
        self.high_watermark = offset
        self._update_first_unstable()

    # -- another copy

    def append_rest_of(self, other: "Log", now_ms: int) -> None:
        """Takes what another log of the partition has beyond our end, also if its disk has failed since."""
        while self.log_end_offset < other.log_end_offset:
            piece = other._read(self.log_end_offset, REST_BYTES, other.log_end_offset, True, os.pread)
            records = piece.read()
            if not records:
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE, f"{other.dir} has no offset {self.log_end_offset}"
                )
            self.append_as_follower(records, now_ms)

    # -- the directory

    def rename_dir(self, new_dir: Path) -> None:
        """Moves the log to another name in the same log directory."""
        with self._lock:  # a thread that misses a file asks whether this is why
            try:
                os.replace(self.dir, new_dir)
            except OSError as error:
                raise self._fail("rename the directory of", error) from error
            self._unsynced = {new_dir / path.name: noted for path, noted in self._unsynced.items()}
            self.dir = new_dir
        self._epochs.move(new_dir)
        self._producers.move(new_dir)
        for segment in self._segments:
            segment.move(new_dir)

    def rename_to_delete(self) -> Path:
        """Gives the directory the name of one that waits for deletion; where it is now."""
        new_dir = self.dir.with_name(delete_dir_name(self.topic_partition))
        self.rename_dir(new_dir)
        return new_dir

    def delete(self) -> None:
        """Removes the directory and all in it, now. Any thread, once nobody uses the log."""
        self.close_handlers()
        try:
            shutil.rmtree(self.dir)
        except OSError as error:
            raise self._fail("delete", error) from error

    def close(self) -> None:
        """Leaves the files as Kafka leaves them at a clean stop; flush first, for all to be on the disk.

        The snapshot does not wait for the disk: a torn one is found out by its checksum and made again from the
        log, and ten thousand partitions would wait for minutes.
        """
        self._require_online()
        try:
            self._producers.take_snapshot(sync=False)
            for segment in self._segments:
                segment.close()
        except OSError as error:
            raise self._fail("close", error) from error

    def close_handlers(self) -> None:
        """Lets go of the files and writes nothing: the directory is offline or going away."""
        for segment in self._segments:
            segment.close_handlers()

    def __repr__(self) -> str:
        return (
            f"Log({self.dir}, log_start_offset={self.log_start_offset}, "
            f"log_end_offset={self.log_end_offset}, high_watermark={self.high_watermark})"
        )


def _open_all(segments: Sequence[LogSegment]) -> None:
    """Renaming needs them open; for want of a descriptor this fails before anything is begun."""
    for segment in segments:
        segment.file()
