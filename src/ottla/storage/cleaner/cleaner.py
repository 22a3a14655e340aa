"""Kafka's Cleaner: compacts one log. It reads inactive segments, writes cleaned ones beside them, and no more.

Two passes. The first notes the newest offset of every key in the dirty section; the second copies each
group of segments into one `.cleaned` segment, leaving out what a newer record of the same key supersedes,
tombstones past their delete horizon (KIP-534), and aborted data. The caller swaps each cleaned segment in,
on its event loop, and may stop listening at any time: then the `.cleaned` files are rubbish that the next
start removes.

Rules: nothing at or above the first uncleanable offset is read or written. The last batch of an active
producer and the last batch of the round keep at least their header. Everything blocks and takes CPU, so it
runs in a process of its own (process.py) or, for tests, in a thread. `check` is called often and raises
to stop.
"""

import heapq
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from ottla.records.batch import BatchView
from ottla.records.compaction import collect_keys, filter_batch
from ottla.records.control import ControlType, parse_control_type
from ottla.records.kernel import OffsetMap
from ottla.records.record import read_records
from ottla.records.types import OFFSET_MAP_ENTRY_BYTES, OFFSET_MAP_SECRET_BYTES
from ottla.storage.cleaner.job import (
    CleanedGroup,
    CleaningJob,
    CleaningStats,
    SegmentSpec,
)
from ottla.storage.config import LogConfig
from ottla.storage.files import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from ottla.storage.segment.file_records import read_batches
from ottla.storage.segment.indexes import MAX_RELATIVE_OFFSET, AbortedTransaction, TransactionIndex
from ottla.storage.segment.segment import LogSegment

WRITE_BUFFER_BYTES: Final = 1 << 20
MIN_MAP_BYTES: Final = 4096
MAX_OFFSET: Final = (1 << 63) - 1
LONGEST_SLEEP_S: Final = 0.5
# A swap renames a group's files on the broker's loop: so many take a few milliseconds.
MAX_SEGMENTS_A_GROUP: Final = 32


class CleanedTransactionMetadata:
    """The transactions open at the cleaner's place in the log: which batches and markers may go.

    Data of aborted transactions goes at once, whatever its keys. A marker stays until no batch of its transaction is
    left, and then for delete.retention.ms more, for readers on their way (the filter sets its delete horizon,
    KIP-534). An aborted transaction with data left is written to the cleaned segment's own transaction index. One
    object serves one pass over the log, in order of offsets.
    """

    def __init__(self) -> None:
        # By first offset: a transaction begins to count when the walk reaches it.
        self._upcoming: list[tuple[int, int, AbortedTransaction]] = []
        self._known: set[AbortedTransaction] = set()
        self._aborted: dict[int, AbortedTransaction] = {}
        self._aborted_with_data: set[int] = set()
        self._committed_with_data: set[int] = set()
        self.cleaned_index: TransactionIndex | None = None

    def add_aborted(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Transactions that the indexes name for the segment to come; one named before is not added again."""
        for txn in transactions:
            if txn not in self._known:
                self._known.add(txn)
                heapq.heappush(self._upcoming, (txn.first_offset, txn.last_offset, txn))

    def on_data(self, batch: BatchView) -> bool:
        """True if the batch belongs to an aborted transaction, so that its records may go."""
        self._reach(batch.last_offset)
        if not batch.is_transactional:
            return False
        if batch.producer_id in self._aborted:
            self._aborted_with_data.add(batch.producer_id)
            return True
        self._committed_with_data.add(batch.producer_id)
        return False

    def on_control(self, batch: BatchView) -> bool:
        """True if the marker is no longer needed: nothing of its transaction is left before it."""
        self._reach(batch.last_offset)
        if batch.records_count == 0:
            return True
        kind = parse_control_type(read_records(batch)[0])
        if kind is ControlType.ABORT:
            return self._end_aborted(batch.producer_id)
        if kind is ControlType.COMMIT:
            had_data = batch.producer_id in self._committed_with_data
            self._committed_with_data.discard(batch.producer_id)
            return not had_data
        return False

    def _end_aborted(self, producer_id: int) -> bool:
        txn = self._aborted.pop(producer_id, None)
        had_data = producer_id in self._aborted_with_data
        self._aborted_with_data.discard(producer_id)
        if txn is None or not had_data:
            return True
        if self.cleaned_index is not None:
            self.cleaned_index.append(txn)
        return False

    def _reach(self, offset: int) -> None:
        while self._upcoming and self._upcoming[0][0] <= offset:
            txn = heapq.heappop(self._upcoming)[2]
            self._aborted.setdefault(txn.producer_id, txn)


class DirtyKeys:
    """Newest offsets of the keys from the first dirty offset up to `latest_offset`, inclusive.

    The map itself is the kernel's (24 bytes an entry, as Kafka's, in C and without the GIL); it is bounded by
    log.cleaner.dedupe.buffer.size, and when it is full a cleaning covers less of the log and the next one goes on from
    there. Keys are kept as keyed 128-bit digests, so that no producer can make two keys collide and lose one.
    """

    __slots__ = ("_max_entries", "latest_offset", "newest", "start_offset")

    def __init__(self, start_offset: int, end_offset: int, memory_bytes: int, load_factor: float) -> None:
        # There are no more keys than offsets: a small dirty section needs no map of 128 MB.
        needed_bytes = int((end_offset - start_offset) / load_factor + 1) * OFFSET_MAP_ENTRY_BYTES
        size_bytes = max(MIN_MAP_BYTES, min(memory_bytes, needed_bytes))
        self.newest = OffsetMap(size_bytes, os.urandom(OFFSET_MAP_SECRET_BYTES))
        self._max_entries = max(1, int(self.newest.slots * load_factor))
        self.start_offset = start_offset
        self.latest_offset = start_offset - 1

    def add(self, batch: BatchView) -> bool:
        """Notes the keys of a data batch; False if the map is full and the batch does not count as read."""
        if not collect_keys(
            self.newest, batch, start_offset=self.start_offset, max_entries=self._max_entries
        ):
            # Some of the batch's keys may be in the map. That does no harm: the records they stand for lie
            # past latest_offset and stay, so what they supersede may go.
            return False
        self.advance(batch.last_offset)
        return True

    def advance(self, offset: int) -> None:
        """Everything up to `offset` has been seen."""
        self.latest_offset = max(self.latest_offset, offset)


class Throttle:
    """Keeps the sum of reads and writes below a rate, over the time since the first of them."""

    def __init__(self, bytes_per_second: float, check: Callable[[], None]) -> None:
        self._check = check
        self._rate = max(bytes_per_second, 1.0)
        self._begin = monotonic()
        self._bytes = 0

    def __call__(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        while (ahead := self._bytes / self._rate - (monotonic() - self._begin)) > 0:
            self._check()
            sleep(min(ahead, LONGEST_SLEEP_S))


class Cleaner:
    """One cleaning of one log."""

    def __init__(self, job: CleaningJob, check: Callable[[], None]) -> None:
        self._job = job
        self._dir = Path(job.dir)
        self._check = check
        self._throttle = Throttle(job.io_bytes_per_second, check)
        self._bases = [spec.base_offset for spec in job.segments] + list(job.later_base_offsets)
        # Most segments have none: asking the file system of each for each would be quadratic.
        self._txn_indexes = [
            TransactionIndex(path, base)
            for base in self._bases
            if (path := self._dir / file_name(base, TXN_INDEX_SUFFIX)).exists()
        ]
        self.keys = DirtyKeys(
            job.first_dirty_offset, job.first_uncleanable_offset, job.map_bytes, job.map_load_factor
        )
        self._bytes_read = self._bytes_written = 0
        self._records_read = self._records_retained = 0

    def run(self, on_group: Callable[[CleanedGroup], None]) -> CleaningStats:
        """Cleans the log, reporting each group when its cleaned segment is on disk."""
        self.build_map()
        end_offset = self.keys.latest_offset + 1
        transactions = CleanedTransactionMetadata()
        within = [spec for spec in self._job.segments if spec.base_offset < end_offset]
        for group in group_segments(self._dir, within, self._job):
            on_group(self._clean_group(group, transactions))
        return self._stats(end_offset)

    def _stats(self, end_offset: int) -> CleaningStats:
        return CleaningStats(
            end_offset, self._bytes_read, self._bytes_written, self._records_read, self._records_retained
        )

    # -- first pass: the map

    def build_map(self) -> None:
        """Reads the dirty section until its end or until the map is full."""
        job = self._job
        transactions = CleanedTransactionMetadata()
        transactions.add_aborted(self._aborted(job.first_dirty_offset, job.first_uncleanable_offset))
        for spec, next_base in self._dirty_segments():
            if not self._map_segment(spec, transactions):
                return
            # The last batches of a segment may have been compacted away: they count as seen.
            self.keys.advance(next_base - 1)

    def _dirty_segments(self) -> Iterator[tuple[SegmentSpec, int]]:
        job = self._job
        for i, spec in enumerate(job.segments):
            is_last = i + 1 == len(job.segments)
            next_base = job.first_uncleanable_offset if is_last else job.segments[i + 1].base_offset
            if next_base > job.first_dirty_offset:
                yield spec, next_base

    def _map_segment(self, spec: SegmentSpec, transactions: CleanedTransactionMetadata) -> bool:
        for batch in self._batches(spec):
            if batch.is_control:
                transactions.on_control(batch)
            elif not transactions.on_data(batch) and batch.last_offset >= self._job.first_dirty_offset:
                if not self.keys.add(batch):
                    self._refuse_if_stuck(batch)
                    return False
                continue
            self.keys.advance(batch.last_offset)
        return True

    def _refuse_if_stuck(self, batch: BatchView) -> None:
        if self.keys.latest_offset < self._job.first_dirty_offset:
            raise ValueError(
                f"the {batch.records_count} keys of the batch at offset {batch.base_offset} do not fit the "
                f"cleaner's map of {self.keys.newest.slots} entries; raise log.cleaner.dedupe.buffer.size"
            )

    # -- second pass: the copies

    def _clean_group(
        self, group: Sequence[SegmentSpec], transactions: CleanedTransactionMetadata
    ) -> CleanedGroup:
        self._check()
        output = _CleanedSegment(self._dir, group[0].base_offset, self._job)
        transactions.cleaned_index = output.segment.txn_index
        for spec in group:
            transactions.add_aborted(self._aborted(spec.base_offset, self._next_base(spec)))
            for batch in self._batches(spec):
                self._clean_batch(batch, transactions, output)
        modified_ns = os.stat(self._dir / file_name(group[-1].base_offset, LOG_SUFFIX)).st_mtime_ns
        size_bytes = output.finish(modified_ns)
        self._bytes_written += size_bytes
        self._throttle(size_bytes)
        return CleanedGroup(group[0].base_offset, size_bytes, [spec.base_offset for spec in group])

    def _next_base(self, spec: SegmentSpec) -> int:
        return next((base for base in self._bases if base > spec.base_offset), MAX_OFFSET)

    def _clean_batch(
        self, batch: BatchView, transactions: CleanedTransactionMetadata, output: "_CleanedSegment"
    ) -> None:
        job = self._job
        may_discard = transactions.on_control(batch) if batch.is_control else transactions.on_data(batch)
        discard = may_discard
        if batch.is_control:
            horizon_ms = batch.delete_horizon_ms
            discard = may_discard and horizon_ms is not None and horizon_ms <= job.now_ms
        filtered = filter_batch(
            batch,
            self.keys.newest,
            latest_offset=self.keys.latest_offset,
            now_ms=job.now_ms,
            delete_retention_ms=job.delete_retention_ms,
            discard=discard,
            retain_empty=self._must_keep_header(batch),
            ends_empty_transaction=may_discard and batch.is_control,
        )
        self._bytes_read += batch.size_bytes
        self._records_read += filtered.records_read
        self._records_retained += filtered.records_retained
        if filtered.data is not None:
            output.append(filtered.data, batch.last_offset, filtered.max_timestamp)

    def _must_keep_header(self, batch: BatchView) -> bool:
        """The last of an active producer holds its sequence or epoch.

        The last of the round holds the end offset.
        """
        if batch.next_offset == self._job.first_uncleanable_offset:
            return True
        last = self._job.last_records.get(batch.producer_id) if batch.has_producer_id else None
        if last is None:
            return False
        last_data_offset, epoch = last
        if last_data_offset >= 0:
            return batch.last_offset == last_data_offset
        return batch.is_control and batch.producer_epoch == epoch

    # -- files

    def _batches(self, spec: SegmentSpec) -> Iterator[BatchView]:
        fd = os.open(self._dir / file_name(spec.base_offset, LOG_SUFFIX), os.O_RDONLY | os.O_CLOEXEC)
        try:
            end = 0
            for position, batch in read_batches(fd, 0, spec.size_bytes):
                if batch.pos == 0:  # a chunk has been read
                    self._check()
                    self._throttle(len(batch.buf))
                end = position + batch.size_bytes
                yield batch
            if end != spec.size_bytes:
                raise ValueError(f"segment {spec.base_offset} of {self._dir} ends in half a batch at {end}")
        finally:
            os.close(fd)

    def _aborted(self, start_offset: int, upper_bound: int) -> list[AbortedTransaction]:
        """Those that overlap the range, from the indexes of its own segments and of later ones."""
        found: list[AbortedTransaction] = []
        for index in self._txn_indexes[self._first_txn_index(start_offset) :]:
            transactions, complete = index.collect(start_offset, upper_bound)
            found += transactions
            if complete:
                break
        return found

    def _first_txn_index(self, start_offset: int) -> int:
        first_base = max((base for base in self._bases if base <= start_offset), default=start_offset)
        return bisect_left([index.base_offset for index in self._txn_indexes], first_base)


class _CleanedSegment:
    """The segment being written, with its writes gathered."""

    def __init__(self, dir: Path, base_offset: int, job: CleaningJob) -> None:
        config = LogConfig(
            segment_bytes=job.segment_bytes,
            segment_index_bytes=job.segment_index_bytes,
            index_interval_bytes=job.index_interval_bytes,
        )
        self.segment = LogSegment.create(dir, base_offset, config, job.now_ms, CLEANED_SUFFIX)
        self._buffer = bytearray()

    def append(self, data: bytearray | memoryview, last_offset: int, max_timestamp: int) -> None:
        position = self.segment.size_bytes + len(self._buffer)
        self._buffer += data
        self.segment.note_batch(position, len(data), last_offset, max_timestamp)
        if len(self._buffer) >= WRITE_BUFFER_BYTES:
            self._write()

    def _write(self) -> None:
        if self._buffer:
            self.segment.write(self._buffer, len(self._buffer))
            self._buffer = bytearray()

    def finish(self, modified_ns: int) -> int:
        """Everything on disk, dated as the newest source was: retention and compaction lag go by that."""
        self._write()
        segment = self.segment
        segment.finish_indexes()
        segment.flush()
        os.utime(segment.path, ns=(modified_ns, modified_ns))
        segment.close_handlers()
        return segment.size_bytes


def group_segments(dir: Path, segments: Sequence[SegmentSpec], job: CleaningJob) -> list[list[SegmentSpec]]:
    """Neighbours that together stay within a segment's limits (size, indexes, offsets) become one segment."""
    groups: list[list[SegmentSpec]] = []
    log_bytes = index_bytes = time_index_bytes = 0
    for i, spec in enumerate(segments):
        index_size = _size_of(dir, spec, INDEX_SUFFIX)
        time_index_size = _size_of(dir, spec, TIME_INDEX_SUFFIX)
        # The next segment's base bounds the last offset from above, and costs no read.
        upper = segments[i + 1].base_offset if i + 1 < len(segments) else job.first_uncleanable_offset
        if (
            groups
            and len(groups[-1]) < MAX_SEGMENTS_A_GROUP
            and log_bytes + spec.size_bytes <= job.segment_bytes
            and index_bytes + index_size <= job.segment_index_bytes
            and time_index_bytes + time_index_size <= job.segment_index_bytes
            and (spec.size_bytes == 0 or upper - 1 - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET)
        ):
            groups[-1].append(spec)
        else:
            groups.append([spec])
            log_bytes = index_bytes = time_index_bytes = 0
        log_bytes += spec.size_bytes
        index_bytes += index_size
        time_index_bytes += time_index_size
    return groups


def _size_of(dir: Path, spec: SegmentSpec, suffix: str) -> int:
    try:
        return os.stat(dir / file_name(spec.base_offset, suffix)).st_size
    except FileNotFoundError:
        return 0
