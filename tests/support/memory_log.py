"""MemoryLog: the real Log over one segment in memory, for simulations that make and lose thousands of logs.

All that decides is the Log's own: offsets, epochs, producers, the checks of appends, truncation. Only the files are
not there: a segment is a list of batches, the epochs and the producers write nothing. LogDisk is what outlives a
process: all of it if the process was killed, what was flushed and as much of the rest as chance wants if the power went
too. test_memory_log holds it to the real one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ottla.model.ids import NO_TIMESTAMP, TopicPartition, Uuid
from ottla.records.batch import BatchView, iter_batches
from ottla.storage.config import MAX_LONG, LogConfig
from ottla.storage.log.leader_epochs import EpochEntry, LeaderEpochFileCache
from ottla.storage.log.log import Log, Truncation
from ottla.storage.log.recovery import LoadedLog
from ottla.storage.producers.state import ProducerStateManager, rebuild_producer_state
from ottla.storage.segment.file_records import LogSlice
from ottla.storage.segment.indexes import AbortedTransaction
from ottla.storage.segment.segment import LogSegment

NOWHERE = Path("nowhere")


class MemorySlice(LogSlice):
    """Batches that were read; they stay as they are."""

    __slots__ = ("batches",)

    def __init__(self, batches: list[bytes], first_offset: int, next_offset: int) -> None:
        super().__init__(None, 0, sum(map(len, batches)), first_offset, next_offset)
        self.batches = batches

    def read(self) -> bytes:
        return b"".join(self.batches)


class MemoryEpochs(LeaderEpochFileCache):
    """The epochs of a log, and what the file would say of them."""

    __slots__ = ("flushed", "written")

    def __init__(self, entries: list[EpochEntry]) -> None:
        super().__init__(NOWHERE, entries)
        self.written = self.flushed = entries

    def _write(self) -> None:
        self.written = list(self._entries)
        self.settled = self.latest
        self._writes += 1

    def flush(self) -> bool:
        self.flushed = self.written
        return True


class MemoryProducers(ProducerStateManager):
    """Without snapshots: the log is short, and is replayed from its start."""

    __slots__ = ()

    def take_snapshot(self, *, sync: bool = True) -> Path | None:
        return None


class MemoryTransactions(list[AbortedTransaction]):
    """The transaction index."""

    def truncate_to(self, offset: int) -> None:
        self[:] = [txn for txn in self if txn.last_offset < offset]

    def collect(self, start_offset: int, upper_bound: int) -> tuple[list[AbortedTransaction], bool]:
        found = [t for t in self if t.last_offset >= start_offset and t.first_offset < upper_bound]
        return found, any(txn.last_stable_offset >= upper_bound for txn in self)


class MemorySegment:
    """The one segment of a log; a position is the number of a batch."""

    must_roll = False
    max_timestamp_so_far = NO_TIMESTAMP

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.size_bytes = 0
        self.stored: list[bytes] = []
        self.bases: list[int] = []
        self.nexts: list[int] = []
        self.txn_index = MemoryTransactions()

    def should_roll(self, *_: Any) -> bool:
        return False

    def roll_deadlines(self, _: LogConfig) -> tuple[int, int]:
        return MAX_LONG, MAX_LONG

    # -- appending

    def append(self, data: Any, size: int, last_offset: int, max_timestamp: int) -> None:
        stored = bytes(data[:size])
        self.stored.append(stored)
        self.bases.append(int.from_bytes(stored[:8], "big"))
        self.nexts.append(last_offset + 1)
        self.size_bytes += size

    def write(self, data: Any, size: int) -> None:
        for view in iter_batches(bytes(data[:size])):
            self.append(view.buf[view.pos : view.end], view.size_bytes, view.last_offset, view.max_timestamp)

    def note_batch(self, *_: int) -> None:
        pass

    # -- reading

    def locate(self, offset: int) -> tuple[int, int] | None:
        """(position, base offset) of the first batch that ends at or after an offset."""
        position = bisect_right(self.nexts, offset)
        return (position, self.bases[position]) if position < len(self.bases) else None

    def batches(self, position: int = 0) -> Iterator[tuple[int, BatchView]]:
        for number in range(position, len(self.stored)):
            yield number, BatchView(self.stored[number], 0)

    def read(self, offset: int, max_bytes: int, max_offset: int, min_one_message: bool) -> MemorySlice:
        start = bisect_right(self.nexts, offset)
        limit = bisect_right(self.nexts, max_offset)
        end, size = start, 0
        while end < limit:
            size += len(self.stored[end])
            if size > max_bytes and not (end == start and min_one_message):
                break
            end += 1
        if end <= start:
            return MemorySlice([], offset, offset)
        return MemorySlice(self.stored[start:end], self.bases[start], self.nexts[end - 1])

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Batches that reach the offset go whole."""
        kept = bisect_right(self.nexts, offset)
        self.size_bytes -= sum(map(len, self.stored[kept:]))
        del self.stored[kept:], self.bases[kept:], self.nexts[kept:]
        self.txn_index.truncate_to(offset)


class LogDisk:
    """What is left of a log when its process has ended."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.base_offset = 0
        self.log_start_offset = 0
        self.recovery_point = 0
        self.high_watermark = 0
        self.epochs: list[EpochEntry] = []
        # For whoever checks: how far it is known to agree with what is committed.
        self.agreed = 0
        self._memory: MemorySegment | None = None

    @property
    def memory(self) -> MemorySegment:
        """Its batches, to be looked at."""
        if self._memory is None:
            self._memory = segment = MemorySegment(self.base_offset)
            for stored in self.stored:
                segment.write(stored, len(stored))
        return self._memory

    @property
    def log_end_offset(self) -> int:
        return self.memory.nexts[-1] if self.stored else self.base_offset


class MemoryLog(Log):
    """A Log without files."""

    __slots__ = ("agreed", "checkpointed")

    @classmethod
    def load(
        cls,
        topic_partition: TopicPartition,
        topic_id: Uuid | None,
        config: LogConfig,
        disk: LogDisk,
        now_ms: int,
    ) -> MemoryLog:
        """As LogLoader does it: epochs and producers are brought to the end of what is there."""
        segment: Any = MemorySegment(disk.base_offset)
        for stored in disk.stored:
            segment.write(stored, len(stored))
        end = segment.nexts[-1] if segment.nexts else disk.base_offset
        start = max(disk.log_start_offset, disk.base_offset)
        epochs = MemoryEpochs(disk.epochs)
        in_file = epochs.entries
        epochs.forget_from(disk.base_offset)
        for _, view in segment.batches():
            if view.partition_leader_epoch > epochs.latest:
                epochs.begin(view.partition_leader_epoch, view.base_offset)
        epochs.settle(start, end, in_file)
        producers = MemoryProducers(topic_partition, NOWHERE, expiration_ms=MAX_LONG)
        rebuild_producer_state(producers, [segment], start, end, now_ms)
        loaded = LoadedLog([segment], start, min(disk.recovery_point, end), end)
        log = cls(
            NOWHERE / str(topic_partition),
            topic_partition,
            topic_id,
            config,
            loaded,
            epochs,
            producers,
            now_ms,
        )
        log.update_high_watermark(disk.high_watermark)
        # How far it is known to agree with what is committed, and the watermark that is on disk.
        log.agreed, log.checkpointed = disk.base_offset, log.high_watermark
        return log

    # -- what ends with the process, and what does not

    def killed(self) -> LogDisk:
        """The process is gone; what it has written is not."""
        return self._disk(len(self.memory.stored), self._epochs.written)

    def lost(self, kept: float, keeps_epochs: bool) -> LogDisk:
        """The power went: of what was not flushed there is a share, `kept`, of the batches."""
        flushed = bisect_left(self.memory.bases, self.recovery_point)
        count = flushed + round(kept * (len(self.memory.stored) - flushed))
        return self._disk(count, self._epochs.written if keeps_epochs else self._epochs.flushed)

    def _disk(self, count: int, epochs: list[EpochEntry]) -> LogDisk:
        disk, memory = LogDisk(), self.memory
        disk.stored = memory.stored[:count]
        disk.base_offset = memory.base_offset
        end = memory.nexts[count - 1] if count else memory.base_offset
        disk.log_start_offset = min(self.log_start_offset, end)
        disk.recovery_point = self.recovery_point
        disk.high_watermark = self.checkpointed
        disk.epochs = epochs
        return disk

    def checkpoint(self) -> None:
        """replication-offset-checkpoint is written."""
        self.checkpointed = self.high_watermark

    @property
    def memory(self) -> MemorySegment:
        segment: Any = self._active
        assert isinstance(segment, MemorySegment)
        return segment

    @property
    def _epochs(self) -> MemoryEpochs:
        assert isinstance(self.epochs, MemoryEpochs)
        return self.epochs

    # -- where the Log has files

    def read(
        self, offset: int, max_bytes: int, max_offset: int, min_one_message: bool = True, *, wait: bool = True
    ) -> LogSlice:
        # An offset that is not to be read, or a log that has failed, is the Log's own to refuse.
        if self.failed or offset >= min(max_offset, self.log_end_offset) or offset < self.log_start_offset:
            return super().read(offset, max_bytes, max_offset, min_one_message, wait=wait)
        return self.memory.read(offset, max_bytes, min(max_offset, self.log_end_offset), min_one_message)

    def flush(self, upto: int | None = None, *, now_ms: int) -> None:
        self._require_online()
        target = self.log_end_offset if upto is None else min(upto, self.log_end_offset)
        if target > self.recovery_point:
            self._epochs.flush()
            self.recovery_point = target
        self.last_flush_ms = now_ms

    def _truncate_to(
        self, offset: int, now_ms: int, doomed: Sequence[LogSegment], prepared: Truncation | None
    ) -> None:
        super()._truncate_to(offset, now_ms, doomed, prepared)
        self.agreed = min(self.agreed, offset)

    def truncate_fully_and_start_at(
        self, offset: int, now_ms: int, log_start_offset: int | None = None
    ) -> None:
        self._require_online()
        self._begin_truncation(offset)
        segment: Any = MemorySegment(offset)
        self.segments.set_all([segment])
        self._use_active_segment()
        self.epochs.clear()
        self.producers.truncate_fully_and_start_at(offset)
        self.log_end_offset = offset
        self.log_start_offset = offset if log_start_offset is None else log_start_offset
        self.high_watermark = offset
        self._update_first_unstable()
        self.agreed = offset
        self.moved()
