"""A segment: a stretch of a log, whose batches are appended, indexed, found again and cut off.

Rules: positions are int32, so a segment ends before 2 GiB; offsets are relative to the base offset, int32 too.
`size_bytes` is what counts as written: a failed write is cut off again before anybody hears of it. The indexes
follow from the log file, and are made anew from it where they are missing or cannot be right. Files are opened at the
first use, and may be closed for others until the next (OpenFiles). The descriptor belongs to a SegmentFile, which
closes it when the last reference goes: a slice that is being sent keeps it open however the segment is renamed, deleted
or closed meanwhile.

Owned by its Log, on the event loop; what threads may call says so.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from threading import RLock
from typing import Final

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_TIMESTAMP
from ottla.records.batch import LOG_OVERHEAD, BatchView
from ottla.storage.config import MAX_LONG, LogConfig
from ottla.storage.files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    create_empty,
    file_name,
    file_size,
    open_file,
    open_files,
    write_fully,
)
from ottla.storage.segment.file_records import (
    BASE_OFFSET,
    LAST_DELTA,
    LENGTH,
    MAX_TIMESTAMP,
    SCAN_BYTES,
    Header,
    Pread,
    SegmentFile,
    read_base_offset,
    read_batches,
    scan_headers,
)
from ottla.storage.segment.indexes import (
    MAX_RELATIVE_OFFSET,
    CorruptIndexError,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
    last_position,
)

logger = logging.getLogger(__name__)

REMEMBERED_POSITIONS: Final = 16  # where the last slices ended: consumers read on from there
ASK_TO_ROLL: Final = (-2, -2)  # deadlines that every batch is beyond


class LogSegment:
    """Kafka's LogSegment: one segment of a log, from its base offset on, in a directory that may change its name."""

    __slots__ = (
        "__weakref__",
        "_boundaries",
        "_bytes_since_index",
        "_dir",
        "_file",
        "_first_timestamp",
        "_index_room",
        "_indexes",
        "_indexes_are_right",
        "_max_timestamp",
        "_offset_of_max",
        "_opening",
        "_positions",
        "_txn_index",
        "base_offset",
        "created_ms",
        "index_interval_bytes",
        "index_max_bytes",
        "must_roll",
        "roll_jitter_ms",
        "size_bytes",
        "suffix",
    )

    def __init__(
        self,
        dir: Path,
        base_offset: int,
        config: LogConfig,
        *,
        size_bytes: int,
        now_ms: int,
        suffix: str = "",
    ) -> None:
        self._dir = dir
        self.base_offset = base_offset
        self.suffix = suffix
        self.size_bytes = size_bytes
        self.created_ms = now_ms
        self.index_interval_bytes = config.index_interval_bytes
        self.index_max_bytes = config.segment_index_bytes
        self.roll_jitter_ms = config.random_segment_jitter_ms()
        self.must_roll = False  # an index is full
        # Its own: while the indexes of one segment are made anew nobody waits who wants another.
        self._opening = RLock()
        self._file: SegmentFile | None = None
        self._indexes: tuple[OffsetIndex, TimeIndex] | None = None
        self._txn_index: TransactionIndex | None = None
        # Made anew from the log file: whatever does not fit them is damaged itself.
        self._indexes_are_right = False
        self._bytes_since_index = 0
        # So many entries fit into both indexes at least; at 0 it is looked how many.
        self._index_room = 0
        self._max_timestamp: int | None = None
        self._offset_of_max = base_offset
        self._first_timestamp: int | None = None
        self._positions: dict[int, int] = {}
        self._boundaries: dict[tuple[int, int], tuple[int, int]] = {}

    @classmethod
    def create(
        cls, dir: Path, base_offset: int, config: LogConfig, now_ms: int, suffix: str = ""
    ) -> "LogSegment":
        """A new, empty segment; files of that name are emptied."""
        segment = cls(dir, base_offset, config, size_bytes=0, now_ms=now_ms, suffix=suffix)
        for kind in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            create_empty(segment._path(kind))
        segment.txn_index.reset()
        return segment

    # -- names and handles

    def _path(self, kind: str) -> Path:
        return self._dir / (file_name(self.base_offset, kind) + self.suffix)

    @property
    def path(self) -> Path:
        return self._path(LOG_SUFFIX)

    def file(self) -> SegmentFile:
        """The open log file. Any thread; never makes one, since a name may be the one from before a rename."""
        file = self._file
        return self._open_file() if file is None else file

    def _open_file(self) -> SegmentFile:
        """Under a lock: of two that open at once, the first would see its descriptor closed by the second."""
        with self._opening:
            while (file := self._file) is None:
                path = self.path
                try:
                    file = SegmentFile(open_file(path, os.O_RDWR | os.O_CLOEXEC))
                    open_files.opened(self, file.fd)
                    self._file = file
                    break
                except FileNotFoundError:
                    if path == self.path:
                        raise
            return file

    def release(self) -> None:
        """Lets the log file go; whoever uses it holds it. Any thread, and without the lock."""
        self._file = None

    @property
    def offset_index(self) -> OffsetIndex:
        return (self._indexes or self._open_indexes())[0]

    @property
    def time_index(self) -> TimeIndex:
        return (self._indexes or self._open_indexes())[1]

    @property
    def txn_index(self) -> TransactionIndex:
        if self._txn_index is None:
            self._txn_index = TransactionIndex(self._path(TXN_INDEX_SUFFIX), self.base_offset)
        return self._txn_index

    def _new_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        return (
            OffsetIndex(self._path(INDEX_SUFFIX), self.base_offset, self.index_max_bytes),
            TimeIndex(self._path(TIME_INDEX_SUFFIX), self.base_offset, self.index_max_bytes),
        )

    def _open_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """As they are, or made anew if one is missing or cannot be right.

        The lock keeps a thread that searches and the loop from each having, or making, their own.
        """
        with self._opening:
            if self._indexes is not None:
                return self._indexes
            try:
                offsets, times = indexes = self._new_indexes()
                entries = offsets.entries
                if entries and offsets.entry(entries - 1)[1] >= self.size_bytes:
                    raise CorruptIndexError(f"{offsets.path} points beyond the end of the segment")
                _ = times.entries
            except CorruptIndexError as error:
                return self.rebuild_indexes(str(error))
            self._indexes = indexes
            return indexes

    def has_empty_indexes(self) -> bool:
        """Is there nothing in any of the indexes on the disk?"""
        sizes = [file_size(self._path(kind)) for kind in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)]
        return sizes[0] == sizes[1] == 0 and not sizes[2]

    # -- the disk

    @property
    def last_modified_ms(self) -> int:
        return os.stat(self.path).st_mtime_ns // 1_000_000

    def flush(self) -> None:
        """Waits until file and indexes are on the disk. Any thread."""
        file = self.file()
        os.fsync(file.fd)
        for index in self._indexes or ():
            index.flush()
        self.txn_index.flush()

    def change_suffix(self, suffix: str) -> None:
        """Renames the files; who has the log file open keeps it."""
        self.file()  # so that nothing is renamed for want of a descriptor that is needed afterwards
        with self._opening:  # a flush in another thread must not look for them under a name that is going
            for kind in SEGMENT_SUFFIXES:
                old, new = self._path(kind), self._dir / (file_name(self.base_offset, kind) + suffix)
                try:
                    os.replace(old, new)
                except FileNotFoundError:
                    if kind == LOG_SUFFIX:
                        raise
            self.suffix = suffix
        self._repath()

    def move(self, dir: Path) -> None:
        """The directory was renamed."""
        self._dir = dir
        self._repath()

    def _repath(self) -> None:
        if self._txn_index is not None:
            self._txn_index.path = self._path(TXN_INDEX_SUFFIX)
        if self._indexes is not None:
            self._indexes[0].path = self._path(INDEX_SUFFIX)
            self._indexes[1].path = self._path(TIME_INDEX_SUFFIX)

    def close_handlers(self) -> None:
        """Lets go of the files without writing."""
        self._file = None
        open_files.closed(self)
        for index in self._indexes or ():
            index.close_handler()

    def delete_files(self) -> None:
        """Unlinks them. Any thread, once no log lists the segment any more."""
        self.close_handlers()
        for kind in SEGMENT_SUFFIXES:
            self._path(kind).unlink(missing_ok=True)

    # -- indexes from the log file

    def rebuild_indexes(self, reason: str) -> tuple[OffsetIndex, TimeIndex]:
        """Makes both indexes anew from the batch headers, as the appends would have.

        Beyond a damaged stretch they go on at the first batch that the old index names rightly.
        """
        known = self._indexes[0].content() if self._indexes is not None else b""
        indexes = self.reset_indexes()
        self._max_timestamp, self._offset_of_max = NO_TIMESTAMP, self.base_offset
        damaged: list[int] = []
        position: int | None = 0
        while position is not None:
            end = self._index_from(position)
            position = None
            if end < self.size_bytes:
                damaged.append(end)
                position = self._indexed_after(end, known)
                self._bytes_since_index = self.index_interval_bytes + 1  # nobody gets there but by an entry
        self.finish_indexes()
        self._indexes_are_right = True
        damage = f"; it is damaged at {damaged}, what lies there cannot be read" if damaged else ""
        logger.warning("%s: %s; its indexes were made anew%s", self.path, reason, damage)
        return indexes

    def _index_from(self, position: int) -> int:
        """Indexes whole batches from a position on; where they end."""
        with contextlib.suppress(KafkaError):
            for start, header in self.headers(position):
                size = LOG_OVERHEAD + header[LENGTH]
                self.note_batch(start, size, header[BASE_OFFSET] + header[LAST_DELTA], header[MAX_TIMESTAMP])
                position = start + size
        return position

    def _indexed_after(self, position: int, known: bytes) -> int | None:
        """The first batch beyond a position that entries of an offset index name with its last offset."""
        for relative, indexed in OffsetIndex.ENTRY.iter_unpack(known):
            if indexed <= position:
                continue
            with contextlib.suppress(KafkaError):
                for _, header in self.headers(indexed):
                    if header[BASE_OFFSET] + header[LAST_DELTA] == self.base_offset + relative:
                        return int(indexed)
                    break
        return None

    def begin_recovery(self) -> None:
        """Forgets everything but the log file, before it is read batch by batch."""
        self.reset_indexes()
        self.txn_index.reset()
        self._max_timestamp, self._offset_of_max = NO_TIMESTAMP, self.base_offset
        self._first_timestamp = None

    def reset_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Empties both, without looking at what was in them."""
        self._indexes = indexes = self._new_indexes()
        for index in indexes:
            index.reset()
        self._bytes_since_index = self._index_room = 0
        self._indexes_are_right = False
        self._forget_positions()
        return indexes

    # -- timestamps

    def _load_max_timestamp(self) -> int:
        """What the last time index entry says: right for every segment that was rolled or closed."""
        timestamp, self._offset_of_max = self.time_index.last_entry()
        if self._max_timestamp is None:  # rebuilding the index finds it out by itself
            self._max_timestamp = timestamp
        return self._max_timestamp

    @property
    def max_timestamp_so_far(self) -> int:
        """The largest timestamp in the segment, or NO_TIMESTAMP."""
        known = self._max_timestamp
        return self._load_max_timestamp() if known is None else known

    @property
    def offset_of_max_timestamp_so_far(self) -> int:
        """The last offset of the batch that brought it."""
        if self._max_timestamp is None:
            self._load_max_timestamp()
        return self._offset_of_max

    @property
    def largest_timestamp(self) -> int:
        """The largest timestamp, or the time of the last write if no record has one: what retention goes by."""
        timestamp = self.max_timestamp_so_far
        return timestamp if timestamp >= 0 else self.last_modified_ms

    @property
    def first_batch_timestamp(self) -> int | None:
        """The max timestamp of the first batch, which ages the segment; None while it is empty."""
        if self._first_timestamp is None and self.size_bytes:
            for _, header in self.headers():
                self._first_timestamp = header[MAX_TIMESTAMP]
                break
        return self._first_timestamp

    # -- rolling

    def time_waited_for_roll(self, now_ms: int, message_timestamp: int) -> int:
        first = self.first_batch_timestamp
        if first is not None and first >= 0:
            return message_timestamp - first
        return now_ms - self.created_ms

    def should_roll(
        self, config: LogConfig, size: int, max_timestamp: int, last_offset: int, now_ms: int
    ) -> bool:
        """Is the segment full or too old for batches of a size that end at an offset?"""
        if self.size_bytes > config.segment_bytes - size or not self.can_hold_offset(last_offset):
            return True
        if self.size_bytes == 0:
            return False
        waited_ms = self.time_waited_for_roll(now_ms, max_timestamp)
        return waited_ms > config.max_segment_ms - self.roll_jitter_ms or self.indexes_full

    def roll_deadlines(self, config: LogConfig) -> tuple[int, int]:
        """(timestamp, time) after which should_roll has to be asked again; before that nothing is too old."""
        allowed_ms = config.max_segment_ms - self.roll_jitter_ms
        first = self.first_batch_timestamp
        if first is None:
            return ASK_TO_ROLL
        return (first + allowed_ms, MAX_LONG) if first >= 0 else (MAX_LONG, self.created_ms + allowed_ms)

    # -- appending

    def append(
        self, data: bytearray | memoryview | bytes, size: int, last_offset: int, max_timestamp: int
    ) -> None:
        """Writes one batch of a given size; OSError leaves the segment as it was."""
        if self._max_timestamp is None:
            self._load_max_timestamp()  # opens the indexes: after the write there may be nothing left to go wrong
        position = self.size_bytes
        self.write(data, size)
        self.note_batch(position, size, last_offset, max_timestamp)

    def write(self, data: bytearray | memoryview | bytes, size: int) -> None:
        """One pwrite at the end of the segment, taken back if it fails."""
        position = self.size_bytes
        file = self._file or self._open_file()  # held until it is written
        fd = file.fd
        try:
            if os.pwrite(fd, data, position) != size:
                write_fully(fd, data, position)
        except OSError:
            os.ftruncate(fd, position)
            raise
        self.size_bytes = position + size

    def note_batch(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Keeps timestamps and indexes up to date with a batch that was written."""
        known = self._max_timestamp
        if known is None:
            known = self._load_max_timestamp()
        if max_timestamp > known:
            self._max_timestamp = max_timestamp
            self._offset_of_max = last_offset
        if self._first_timestamp is None and position == 0:
            self._first_timestamp = max_timestamp
        if self._bytes_since_index > self.index_interval_bytes:
            self._index_batch(position, last_offset)
            self._bytes_since_index = size
        else:
            self._bytes_since_index += size

    def _index_batch(self, position: int, last_offset: int) -> None:
        """An entry in each index, which may be the last that fits."""
        offset_index, time_index = self._indexes or self._open_indexes()
        offset_index.append(last_offset, position)
        largest = self._max_timestamp
        assert largest is not None
        if largest > time_index.last_timestamp:
            time_index.maybe_append(largest, self._offset_of_max)
        self._index_room -= 1
        if self._index_room <= 0:
            self._index_room = min(offset_index.room, time_index.room)
            self.must_roll = self._index_room <= 0

    @property
    def indexes_full(self) -> bool:
        """Neither may grow beyond segment.index.bytes: then the segment is rolled."""
        return min(self.offset_index.room, self.time_index.room) <= 0

    def can_hold_offset(self, offset: int) -> bool:
        return 0 <= offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def finish_indexes(self) -> None:
        """What a segment needs when nothing more is appended: the last time index entry, and all written out."""
        self._index_room = 0  # if it is appended to after all
        self.time_index.maybe_append(self.max_timestamp_so_far, self._offset_of_max)
        self.offset_index.write_out()
        self.time_index.write_out()
        self.txn_index.write_out()

    # -- finding

    def locate(self, offset: int, pread: Pread = os.pread) -> tuple[int, int] | None:
        """(position, base offset) of the first batch that ends at or after offset; None past the last."""
        position = self._positions.get(offset)
        if position is not None:
            return (position, offset) if position < self.size_bytes else None
        try:
            return self._search(offset, pread)
        except KafkaError as error:
            if self._indexes_are_right:
                raise  # it is the segment itself that is damaged
            self.rebuild_indexes(error.message or error.code.name)
            return self._search(offset, pread)

    def _search(self, offset: int, pread: Pread) -> tuple[int, int] | None:
        """From the index on. CORRUPT_MESSAGE if the index leads where no batch is, or beyond the right one."""
        indexed, start = self.offset_index.lookup(offset)
        for position, header in self.headers(start, pread):
            base = header[BASE_OFFSET]
            if position == start and start and base > indexed:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"Index entry {indexed} leads to offset {base}")
            if base + header[LAST_DELTA] >= offset:
                return position, base
        return None

    def boundary(self, start: int, limit: int, pread: Pread = os.pread) -> tuple[int, int]:
        """(end, next offset) of whole batches between two positions; (start, -1) if there are none.

        Several consumers ask for the same stretches, so the last answers are remembered. An indexed batch
        close below the limit ends the search: looking for a later one costs more than the bytes are worth.
        """
        asked = (start, limit)
        known = self._boundaries.get(asked)
        if known is None:
            known = self._find_boundary(start, limit, pread)
            if len(self._boundaries) >= REMEMBERED_POSITIONS:
                del self._boundaries[next(iter(self._boundaries))]
            self._boundaries[asked] = known
        return known

    def _find_boundary(self, start: int, limit: int, pread: Pread) -> tuple[int, int]:
        indexed = self.offset_index.lookup_position(limit)
        if indexed > start:
            if (limit - indexed) * 8 <= limit - start:
                file = self.file()
                return indexed, read_base_offset(file.fd, indexed, pread)
            try:
                return self._last_boundary(start, indexed, limit, pread)
            except KafkaError:
                pass  # the indexed batch is damaged; there may be whole ones before it
        return self._last_boundary(start, start, limit, pread)

    def _last_boundary(self, start: int, begin: int, limit: int, pread: Pread) -> tuple[int, int]:
        """The same, from a batch at or after the start on: up to the limit, or to the first damage after it."""
        end, next_offset = start, -1
        try:
            for position, header in self.headers(begin, pread):
                following = position + LOG_OVERHEAD + header[LENGTH]
                if following > limit:
                    # The indexed batch may be the one that is cut: what lies before it ends where it begins.
                    return (end, next_offset) if end > start or position == start else (position, header[0])
                end, next_offset = following, header[BASE_OFFSET] + header[LAST_DELTA] + 1
        except KafkaError:
            if end == start:
                raise
        return end, next_offset

    def end_of_batch(self, position: int, pread: Pread = os.pread) -> tuple[int, int]:
        """(end, next offset) of the batch at a position."""
        for start, header in self.headers(position, pread):
            return start + LOG_OVERHEAD + header[LENGTH], header[BASE_OFFSET] + header[LAST_DELTA] + 1
        return position, -1

    def remember(self, offset: int, position: int) -> None:
        """Notes that reading on from offset begins at position."""
        positions = self._positions
        if len(positions) >= REMEMBERED_POSITIONS and offset not in positions:
            del positions[next(iter(positions))]
        positions[offset] = position

    def _forget_positions(self) -> None:
        self._positions.clear()
        self._boundaries.clear()

    def headers(self, position: int = 0, pread: Pread = os.pread) -> Iterator[tuple[int, Header]]:
        """(position, header) of the batches from a position on."""
        file = self.file()
        return scan_headers(file.fd, position, self.size_bytes, pread, file)

    def headers_before(self, offset: int) -> Iterator[list[tuple[int, Header]]]:
        """(position, header) of the batches that begin below an offset, the last stretch of them first."""
        found = self.locate(offset)
        end = self.size_bytes if found is None else found[0]
        while end > 0:
            start = self.offset_index.lookup_position(max(end - SCAN_BYTES, 0))
            file = self.file()
            yield list(scan_headers(file.fd, start, end, keep=file))
            end = start

    def batches(self, position: int = 0) -> Iterator[tuple[int, BatchView]]:
        """(position, batch) of the batches from a position on. Any thread."""
        file = self.file()
        return read_batches(file.fd, position, self.size_bytes, file)

    def read_end(self) -> tuple[int, int]:
        """(next offset, position) after the last whole batch, found from the last index entry on."""
        next_offset = self.base_offset
        end = self.offset_index.lookup(self.offset_index.last_offset)[1]
        for position, header in self.headers(end):
            next_offset = header[BASE_OFFSET] + header[LAST_DELTA] + 1
            end = position + LOG_OVERHEAD + header[LENGTH]
        return next_offset, end

    def ends_at(self, next_offset: int) -> bool:
        """Do whole batches lead from the last index entry to the end of the file and to an offset?

        Asked of every log at a start: it opens nothing for good and trusts nothing that it has not read.
        """
        stem, size_bytes = f"{self._dir}/{self.base_offset:020d}", self.size_bytes
        # A small segment is read as quickly as its index.
        position = last_position(stem + INDEX_SUFFIX) if size_bytes > SCAN_BYTES else 0
        if not 0 <= position < size_bytes:
            return False
        fd, found = open_file(stem + LOG_SUFFIX, os.O_RDONLY), -1
        try:
            for start, header in scan_headers(fd, position, size_bytes):
                position = start + LOG_OVERHEAD + header[LENGTH]
                found = header[BASE_OFFSET] + header[LAST_DELTA] + 1
        except KafkaError:
            return False
        finally:
            os.close(fd)
        return position == size_bytes and found == next_offset

    # -- shrinking

    def truncate_to(self, offset: int, now_ms: int) -> int:
        """Removes the batches that reach offset or beyond; the number of bytes removed."""
        found = self.locate(offset)
        _ = self.max_timestamp_so_far
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        self._forget_positions()
        removed = self.truncate_to_position(found[0]) if found else 0
        if self.size_bytes == 0:
            self.created_ms = now_ms
            self._first_timestamp = None
        self._bytes_since_index = self._index_room = 0
        self._max_timestamp, self._offset_of_max = self._read_largest_timestamp()
        return removed

    def truncate_to_position(self, position: int) -> int:
        removed = self.size_bytes - position
        if removed > 0:
            file = self.file()
            os.ftruncate(file.fd, position)
            self.size_bytes = position
            self._forget_positions()
        return removed

    def _read_largest_timestamp(self) -> tuple[int, int]:
        largest, offset = self.time_index.last_entry()
        for _, header in self.headers(self.offset_index.lookup(offset)[1]):
            if header[MAX_TIMESTAMP] > largest:
                largest, offset = header[MAX_TIMESTAMP], header[BASE_OFFSET] + header[LAST_DELTA]
        return largest, offset

    # -- the end

    def close(self) -> None:
        """Leaves the files as Kafka leaves them at a clean stop; the segment opens again when it is used."""
        if self._indexes is not None:
            self.finish_indexes()
        self.close_handlers()

    def __repr__(self) -> str:
        return f"LogSegment(base_offset={self.base_offset}, size_bytes={self.size_bytes}{self.suffix})"
