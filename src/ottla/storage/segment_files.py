"""The files of a segment: the log file, and its offset, time and transaction index.

How they are called, when they are opened, and what becomes of them: flushed, renamed, moved, deleted. What is in them
is the business of the LogSegment (segment.py).

Rules: files are opened at the first use, and may be closed for others until the next (open_files.py). The descriptor
belongs to a SegmentFile, which closes it when the last
reference goes: a slice that is being sent keeps it open however the segment is renamed, deleted or closed meanwhile.

Owned by a Log, as part of a LogSegment, on the event loop; what threads may call says so.
"""

import os
from pathlib import Path
from threading import RLock

from ottla.storage.files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
    file_size,
)
from ottla.storage.index import CorruptIndexError, OffsetIndex
from ottla.storage.open_files import open_file, open_files
from ottla.storage.slices import SegmentFile
from ottla.storage.timeindex import TimeIndex
from ottla.storage.txnindex import TxnIndex


class SegmentFiles:
    """The files of the segment that begins at an offset, in a directory that may change its name."""

    __slots__ = (
        "__weakref__",
        "_dir",
        "_file",
        "_indexes",
        "_opening",
        "_txn_index",
        "base_offset",
        "index_max_bytes",
        "size_bytes",
        "suffix",
    )

    def __init__(
        self, dir: Path, base_offset: int, *, size_bytes: int, index_max_bytes: int, suffix: str
    ) -> None:
        self._dir = dir
        self.base_offset = base_offset
        self.suffix = suffix
        self.size_bytes = size_bytes
        self.index_max_bytes = index_max_bytes
        # Its own: while the indexes of one segment are made anew nobody waits who wants another.
        self._opening = RLock()
        self._file: SegmentFile | None = None
        self._indexes: tuple[OffsetIndex, TimeIndex] | None = None
        self._txn_index: TxnIndex | None = None

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
    def txn_index(self) -> TxnIndex:
        if self._txn_index is None:
            self._txn_index = TxnIndex(self._path(TXN_INDEX_SUFFIX), self.base_offset)
        return self._txn_index

    def _new_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        return (
            OffsetIndex(self._path(INDEX_SUFFIX), self.base_offset, self.index_max_bytes),
            TimeIndex(self._path(TIME_INDEX_SUFFIX), self.base_offset, self.index_max_bytes),
        )

    def _open_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Looks at both; CorruptIndexError if one is missing or cannot be right.

        The lock keeps a thread that searches and the loop from each having their own.
        """
        with self._opening:
            if self._indexes is not None:
                return self._indexes
            offsets, times = indexes = self._new_indexes()
            entries = offsets.entries
            if entries and offsets.entry(entries - 1)[1] >= self.size_bytes:
                raise CorruptIndexError(f"{offsets.path} points beyond the end of the segment")
            _ = times.entries
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

    def set_last_modified(self, modified_ms: int) -> None:
        """A segment rewritten by the cleaner is as old as what it was made from."""
        for kind in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            os.utime(self._path(kind), ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

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
