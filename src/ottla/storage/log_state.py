"""What a log is made of: its segments, offsets, epochs and producers, and what a failed disk does to them.

The lowest of the layers of a Log (state, reading, rolling, writing, appending, upkeep): each is a class over the one
below, so that a file has one idea. See log.py for the rules.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid
from ottla.storage.errors import OutOfFilesError, StorageError, is_out_of_files
from ottla.storage.leader_epochs import LeaderEpochs
from ottla.storage.log_config import LogConfig
from ottla.storage.producer_state import ProducerState
from ottla.storage.recovery import LoadedLog
from ottla.storage.segment import LogSegment

if TYPE_CHECKING:
    from ottla.storage.log import Log


class ActiveProducer(NamedTuple):
    """A producer as DescribeProducers shows it (KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int  # -1 if none


class LogState:
    """The parts of a log and the questions they answer without touching a segment's content."""

    __slots__ = (
        "_active",
        "_bases",
        "_epochs",
        "_first_unstable",
        "_lock",
        "_noted",
        "_producers",
        "_roll_after_ms",
        "_roll_after_timestamp",
        "_segments",
        "_truncations",
        "_unsynced",
        "config",
        "dir",
        "failed",
        "high_watermark",
        "last_flush_ms",
        "log_end_offset",
        "log_start_offset",
        "on_failure",
        "on_roll",
        "recovery_point",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        dir: Path,
        topic_partition: TopicPartition,
        topic_id: Uuid | None,
        config: LogConfig,
        loaded: LoadedLog,
        epochs: LeaderEpochs,
        producers: ProducerState,
        now_ms: int,
    ) -> None:
        self.dir = dir
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.high_watermark = loaded.log_start_offset
        self.recovery_point = max(loaded.recovery_point, loaded.log_start_offset)
        self.last_flush_ms = now_ms
        self.failed = False
        # Called on the loop after a roll, with the offset up to which a flush is due.
        self.on_roll: Callable[[Log, int], None] | None = None
        # Called once, from whatever thread saw the disk fail.
        self.on_failure: Callable[[Log, Exception], None] | None = None
        self._epochs = epochs
        self._producers = producers
        self._lock = Lock()  # guards what a flushing thread changes: recovery point, unsynced files
        self._truncations = 0
        # Small files that go to the disk with the next flush, and how many were noted before each.
        self._unsynced: dict[Path, int] = {}
        self._noted = 0
        self._first_unstable: int | None = None
        self._set_segments(loaded.segments)
        self._update_first_unstable()

    # -- segments

    def _set_segments(self, segments: list[LogSegment]) -> None:
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._active = segments[-1]
        self._disarm_roll()

    def _disarm_roll(self) -> None:
        """Makes the next append ask whether the segment is due, which also tells when it will be."""
        self._roll_after_timestamp = self._roll_after_ms = -2

    def _floor_index(self, offset: int) -> int:
        """Which segment an offset lies in; -1 below the first."""
        return bisect_right(self._bases, offset) - 1

    @property
    def segments(self) -> Sequence[LogSegment]:
        """All of them, oldest first."""
        return tuple(self._segments)

    @property
    def active_segment(self) -> LogSegment:
        return self._active

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    # -- offsets

    @property
    def last_stable_offset(self) -> int:
        """Everything below is decided: the end of what read_committed consumers see."""
        unstable = self._first_unstable
        if unstable is not None and unstable < self.high_watermark:
            return unstable
        return self.high_watermark

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - self.recovery_point

    def flush_needed(self, now_ms: int) -> bool:
        """Is flush.messages or flush.ms due?"""
        unflushed = self.log_end_offset - self.recovery_point
        return unflushed >= self.config.flush_messages or (
            unflushed > 0 and now_ms - self.last_flush_ms >= self.config.flush_ms
        )

    def update_high_watermark(self, offset: int) -> int:
        """Moves it to an offset, kept within the log; what it became."""
        bounded = offset
        if not self.log_start_offset <= offset <= self.log_end_offset:
            bounded = min(max(offset, self.log_start_offset), self.log_end_offset)
        if bounded != self.high_watermark:
            self.high_watermark = bounded
            if self._first_unstable is not None and self._producers.on_high_watermark(bounded):
                self._update_first_unstable()
        return bounded

    def _update_first_unstable(self) -> None:
        """Below the log start nothing is left to be undecided, so it is at least that."""
        unstable = self._producers.first_unstable_offset
        self._first_unstable = None if unstable is None else max(unstable, self.log_start_offset)

    def maybe_increment_log_start_offset(self, offset: int, reason: str) -> bool:
        """Gives up what lies below an offset (DeleteRecords, retention); the files go later."""
        self._require_online()
        if offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"The log of {self.topic_partition} cannot start at {offset} ({reason}): "
                f"its high watermark is {self.high_watermark}",
            )
        if offset <= self.log_start_offset:
            return False
        self._set_log_start_offset(offset)
        self._epochs.truncate_from_start(offset)
        self._producers.on_log_start_offset(offset)
        self._update_first_unstable()
        return True

    def _set_log_start_offset(self, offset: int) -> None:
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        with self._lock:
            self.recovery_point = max(self.recovery_point, offset)

    # -- leader epochs

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch in the log, or -1."""
        return self._epochs.latest

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int] | None:
        """(epoch, end offset) of the largest epoch at or below one; None if that is not known."""
        return self._epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """The leader epoch an offset was written in, or -1."""
        return self._epochs.epoch_for(offset)

    def earliest_epoch(self) -> int:
        """The epoch of the log start offset, or -1: what ListOffsets answers with the earliest offset."""
        entry = self._epochs.earliest()
        return entry.epoch if entry is not None and entry.start_offset <= self.log_start_offset else -1

    def assign_epoch_start(self, epoch: int, start_offset: int) -> None:
        """A new leader notes where its epoch begins; the file is written with the first batch."""
        self._require_online()
        self._epochs.begin(epoch, start_offset)

    def _assign_epoch(self, epoch: int, start_offset: int) -> None:
        """A batch is about to be appended and the file does not know its epoch."""
        try:
            self._epochs.assign(epoch, start_offset)
        except OSError as error:
            raise self._fail("write the leader epochs of", error) from error

    # -- producers

    @property
    def producer_id_count(self) -> int:
        return len(self._producers.entries)

    def active_producers(self) -> list[ActiveProducer]:
        return [
            ActiveProducer(
                entry.producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.txn_first_offset,
            )
            for entry in self._producers.entries.values()
        ]

    def last_records_of_active_producers(self) -> dict[int, tuple[int, int]]:
        """Producer id -> (last data offset or -1, epoch): the cleaner keeps these batches."""
        return {
            producer_id: (entry.last_data_offset, entry.epoch)
            for producer_id, entry in self._producers.entries.items()
        }

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        entry = self._producers.entries.get(producer_id)
        return entry is not None and entry.txn_first_offset >= 0 and entry.epoch == producer_epoch

    def has_late_transaction(self, now_ms: int) -> bool:
        return self._producers.has_late_transaction(now_ms)

    def first_undecided_offset(self) -> int | None:
        """The first offset of the oldest open transaction: the cleaner stops there."""
        return min(self._producers.ongoing, default=None)

    def remove_expired_producers(self, now_ms: int) -> None:
        self._producers.remove_expired(now_ms)

    # -- the disk

    def _sync_later(self, path: Path) -> None:
        """A small file was written; the next flush waits for it."""
        with self._lock:
            self._noted += 1
            self._unsynced[path] = self._noted

    def _was_moved_from(self, dir: Path) -> bool:
        """Has the directory got another name since? A file that is missing there is no failure of the disk."""
        with self._lock:
            return self.dir != dir

    def _require_online(self) -> None:
        if self.failed:
            raise StorageError(self.dir.parent, f"{self.dir.parent} is offline after an I/O error")

    def _fail(self, action: str, error: Exception) -> KafkaError:
        """Marks the log failed; the error to raise. For want of a descriptor nothing is marked."""
        if is_out_of_files(error):
            return OutOfFilesError(f"Cannot {action} {self.topic_partition}: {error}")
        return self._fail_for_good(action, error)

    def _fail_for_good(self, action: str, error: Exception) -> StorageError:
        """The same where something was begun that could not be finished."""
        first = not self.failed
        self.failed = True
        if first and self.on_failure is not None:
            self.on_failure(self, error)  # type: ignore[arg-type]  # every LogState is a Log
        return StorageError(self.dir.parent, f"Cannot {action} {self.topic_partition} in {self.dir}: {error}")
