"""The indexes of a segment: OffsetIndex, TimeIndex and TransactionIndex.

The first two are sparse. New entries are kept in memory and written out by the page, when the segment is flushed,
rolled or closed: after a crash the index above the recovery point is rebuilt from the log anyhow, so an entry needs no
write of its own. Searches map the written part, and go over every 64th entry in memory first, because each look at a
mapped entry costs Python more than a whole bisection of an array. Nothing is opened before the first use.

They have a lock each because flushes and searches by timestamp come from threads while the loop appends. Owned by
their LogSegment.
"""

import mmap
import os
import struct
from array import array
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Final, NamedTuple

from ottla.model.ids import NO_TIMESTAMP
from ottla.storage.errors import is_out_of_files
from ottla.storage.files import (
    FILE_MODE,
    create_empty,
    fsync_file,
    open_file,
    open_files,
    read_small,
    write_fully,
)

MAX_RELATIVE_OFFSET: Final = (1 << 31) - 1
WRITE_OUT_BYTES: Final = 4096  # pending entries are written to the file when they reach this
ENTRIES_A_FENCE: Final = 64

TXN_ENTRY: Final = struct.Struct(">hqqqq")
TXN_INDEX_VERSION: Final = 0


class CorruptIndexError(Exception):
    """An index that cannot be right: it is rebuilt from its segment."""


class AbstractIndex:
    """Entries of two integers, both growing; what the offset index and the time index share."""

    __slots__ = (
        "__weakref__",
        "_changes",
        "_fences",
        "_lock",
        "_map",
        "_mapped",
        "_pending",
        "_synced",
        "_written",
        "base_offset",
        "max_bytes",
        "path",
    )

    ENTRY: ClassVar[struct.Struct]
    # Slots kept free below max_bytes for entries that a full index still has to take.
    RESERVED: ClassVar[int] = 0

    def __init__(self, path: Path, base_offset: int, max_bytes: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.max_bytes = max_bytes
        self._lock = Lock()
        self._written = -1  # entries in the file; -1 until it is looked at
        self._pending = bytearray()
        # How often the file was changed, and how often it was when the disk had it last: -1 before that is known.
        self._changes = 0
        self._synced = -1
        self._map: mmap.mmap | None = None
        # Both columns of every 64th entry, from the first search on.
        self._fences: tuple[array[int], array[int]] | None = None
        self._mapped = 0

    # -- what is in it

    @property
    def entries(self) -> int:
        if self._written < 0:
            self._load()
        return self._written + len(self._pending) // self.ENTRY.size

    @property
    def room(self) -> int:
        """How many entries may be added before it is full; none or fewer if it is."""
        return self.max_bytes // self.ENTRY.size - self.RESERVED - self.entries

    def entry(self, slot: int) -> tuple[int, int]:
        """The raw entry in that slot."""
        with self._lock:
            return self._entry(slot)

    def content(self) -> bytes:
        """The bytes of every entry."""
        with self._lock:
            written = bytes(self._view()) if self._written > 0 else b""
            return written + self._pending

    def _entry(self, slot: int) -> tuple[int, int]:
        size = self.ENTRY.size
        if slot >= self._written:
            found: Any = self.ENTRY.unpack_from(self._pending, (slot - self._written) * size)
        else:
            found = self.ENTRY.unpack_from(self._view(), slot * size)
        return found  # type: ignore[no-any-return]  # struct does not say what it unpacks

    def _view(self) -> mmap.mmap:
        """The written entries, mapped again if the file has grown."""
        view = self._map
        if view is None or self._mapped < self._written:
            fd = open_file(self.path, os.O_RDONLY)
            try:
                open_files.opened(self, fd)
                length = self._written * self.ENTRY.size
                view = self._map = mmap.mmap(fd, length, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
            finally:
                os.close(fd)
            self._mapped = self._written
        return view

    def release(self) -> None:
        """Lets the mapping go, and the descriptor that Python keeps with it. Any thread, without the lock."""
        self._map = None

    # -- finding

    def _floor(self, column: int, target: int) -> tuple[int, tuple[int, int]] | None:
        """The last slot whose column is at most target, with its entry; None if the first is larger."""
        fences = self._fences if self._fences is not None else self._build_fences()
        low = (bisect_right(fences[column], target) - 1) * ENTRIES_A_FENCE
        if low < 0:
            return None
        unpack, size, written, pending = self.ENTRY.unpack_from, self.ENTRY.size, self._written, self._pending
        high = min(low + ENTRIES_A_FENCE, written + len(pending) // size) - 1
        buf: mmap.mmap | bytearray = pending
        if low < written <= high:
            if unpack(pending, 0)[column] <= target:
                low = written
            else:
                high = written - 1
        base = written
        if low < written:
            buf, base = self._view(), 0
        while low < high:
            middle = (low + high + 1) >> 1
            if unpack(buf, (middle - base) * size)[column] <= target:
                low = middle
            else:
                high = middle - 1
        return low, unpack(buf, (low - base) * size)

    def _build_fences(self) -> tuple["array[int]", "array[int]"]:
        count = self.entries
        first, second = array("q"), array("q")
        for slot in range(0, count, ENTRIES_A_FENCE):
            entry = self._entry(slot)
            first.append(entry[0])
            second.append(entry[1])
        self._fences = first, second
        return self._fences

    # -- growing and shrinking

    def _append(self, first: int, second: int) -> None:
        pending = self._pending
        if self._fences is not None:
            slot = self._written + len(pending) // self.ENTRY.size
            if slot % ENTRIES_A_FENCE == 0:
                self._fences[0].append(first)
                self._fences[1].append(second)
        pending += self.ENTRY.pack(first, second)
        if len(pending) >= WRITE_OUT_BYTES:
            try:
                self._write_out()
            except OSError as error:
                if not is_out_of_files(error):  # else it is written with the next
                    raise

    def write_out(self) -> None:
        """Brings the file up to date, in the page cache."""
        with self._lock:
            if self._pending:
                self._write_out()

    def _write_out(self) -> None:
        fd = open_file(self.path, os.O_WRONLY)
        try:
            write_fully(fd, self._pending, self._written * self.ENTRY.size)
        finally:
            self._changes += 1
            os.close(fd)
        self._written += len(self._pending) // self.ENTRY.size
        self._pending.clear()

    def flush(self) -> None:
        """Brings the file up to date on the disk, which is not asked for what it has already."""
        self.write_out()
        changes = self._changes
        if self._synced < changes:
            fsync_file(self.path)
            self._synced = max(self._synced, changes)

    def reset(self) -> None:
        """Makes the file exist and empty."""
        with self._lock:
            self._pending.clear()
            self._map = self._fences = None
            self._mapped = 0
            self._written = 0
            self._changes += 1
            create_empty(self.path)
        self._remember(None)

    def _truncate_to_entries(self, entries: int) -> None:
        """Under the lock. A mapping beyond the end of a file must not be touched, so it goes first."""
        self._fences = None
        if entries >= self._written:
            del self._pending[(entries - self._written) * self.ENTRY.size :]
        else:
            self._pending.clear()
            self._map = None
            self._mapped = 0
            self._changes += 1
            os.truncate(self.path, entries * self.ENTRY.size)
            self._written = entries
        self._remember(self._entry(entries - 1) if entries else None)

    def close(self) -> None:
        """Writes out and forgets the mapping; the index may be used again."""
        self.write_out()
        self.close_handler()

    def close_handler(self) -> None:
        with self._lock:
            self._map = None
            self._mapped = 0
        open_files.closed(self)

    # -- loading

    def _load(self) -> None:
        """Looks at the file for the first time; CorruptIndexError if it cannot be right."""
        try:
            size_bytes = os.stat(self.path).st_size
        except FileNotFoundError:
            raise CorruptIndexError(f"{self.path} is missing") from None
        if size_bytes % self.ENTRY.size:
            raise CorruptIndexError(f"{self.path}: {size_bytes} is no multiple of {self.ENTRY.size} bytes")
        entries = size_bytes // self.ENTRY.size
        last = self._check_ends(entries) if entries else None
        self._written = entries
        self._remember(last)

    def _check_ends(self, entries: int) -> tuple[int, int]:
        """The last entry, where an index that was never trimmed or was overwritten shows it."""
        size = self.ENTRY.size
        fd = open_file(self.path, os.O_RDONLY)
        try:
            first = self.ENTRY.unpack(os.pread(fd, size, 0))
            last = self.ENTRY.unpack(os.pread(fd, size, (entries - 1) * size))
        finally:
            os.close(fd)
        if min(first) < 0 or (entries > 1 and (last[0] <= first[0] or last[1] < first[1])):
            raise CorruptIndexError(f"{self.path}: last entry {last} does not follow the first, {first}")
        return last

    def _remember(self, last: tuple[int, int] | None) -> None:
        """Called after every change but an append, for what a subclass remembers of the last entry."""
        raise AssertionError("an index remembers its last entry")


class OffsetIndex(AbstractIndex):
    """Finds the position from which to look for an offset, and the offset near a position.

    An entry is eight bytes: the offset relative to the segment's base and the file position, both int32.
    """

    __slots__ = ("last_offset",)

    ENTRY: ClassVar[struct.Struct] = struct.Struct(">ii")

    def __init__(self, path: Path, base_offset: int, max_bytes: int) -> None:
        super().__init__(path, base_offset, max_bytes)
        self.last_offset = base_offset

    def append(self, offset: int, position: int) -> None:
        """Adds an entry; both numbers must grow."""
        assert offset > self.last_offset or self.entries == 0, (
            f"{self.path}: {offset} after {self.last_offset}"
        )
        if self._written < 0:
            self._load()
        with self._lock:
            self._append(offset - self.base_offset, position)
        self.last_offset = offset

    def lookup(self, offset: int) -> tuple[int, int]:
        """The largest entry at or below offset as (offset, position), or the start of the segment."""
        with self._lock:
            found = self._floor(0, offset - self.base_offset)
        if found is None:
            return self.base_offset, 0
        _, (relative, position) = found
        return self.base_offset + relative, position

    def lookup_position(self, position: int) -> int:
        """The largest indexed position at or below this one: a batch begins there."""
        with self._lock:
            found = self._floor(1, position)
        return 0 if found is None else found[1][1]

    def truncate_to(self, offset: int) -> None:
        """Removes the entries at or above offset."""
        with self._lock:
            last = self._floor(0, offset - self.base_offset - 1)
            self._truncate_to_entries(0 if last is None else last[0] + 1)

    def _remember(self, last: tuple[int, int] | None) -> None:
        self.last_offset = self.base_offset + (last[0] if last else 0)


def last_position(path: str) -> int:
    """The position that the last entry of an offset index file names: 0 if it is empty, -1 if there is none."""
    entry = OffsetIndex.ENTRY
    try:
        fd = open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return -1
    try:
        size_bytes = os.lseek(fd, 0, os.SEEK_END)
        if size_bytes < entry.size:
            return 0
        position: int = entry.unpack(os.pread(fd, entry.size, size_bytes - entry.size))[1]
        return position
    finally:
        os.close(fd)


class TimeIndex(AbstractIndex):
    """Finds the offset from which to look for a timestamp.

    An entry is twelve bytes: a timestamp (int64) and the relative offset (int32) of the last record of the batch that
    brought it; it says that no record before it has a later timestamp. One is written with every entry of the offset
    index if the largest timestamp has grown, and one when the segment is rolled or closed, so that the last entry of a
    finished segment is its largest timestamp.
    """

    __slots__ = ("last_offset", "last_timestamp")

    ENTRY: ClassVar[struct.Struct] = struct.Struct(">qi")
    RESERVED: ClassVar[int] = 1  # for the entry made on a roll

    def __init__(self, path: Path, base_offset: int, max_bytes: int) -> None:
        super().__init__(path, base_offset, max_bytes)
        self.last_timestamp = NO_TIMESTAMP
        self.last_offset = base_offset

    def last_entry(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry, or NO_TIMESTAMP and the base offset."""
        if self._written < 0:
            self._load()
        return self.last_timestamp, self.last_offset

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Adds an entry if the timestamp has grown."""
        if self._written < 0:
            self._load()
        if timestamp > self.last_timestamp and offset >= self.last_offset:
            with self._lock:
                self._append(timestamp, offset - self.base_offset)
            self.last_timestamp = timestamp
            self.last_offset = offset

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The largest entry at or below timestamp as (timestamp, offset)."""
        with self._lock:
            found = self._floor(0, timestamp)
        if found is None:
            return NO_TIMESTAMP, self.base_offset
        _, (earlier, relative) = found
        return earlier, self.base_offset + relative

    def truncate_to(self, offset: int) -> None:
        """Removes the entries at or above offset."""
        with self._lock:
            last = self._floor(1, offset - self.base_offset - 1)
            self._truncate_to_entries(0 if last is None else last[0] + 1)

    def _remember(self, last: tuple[int, int] | None) -> None:
        self.last_timestamp = last[0] if last else NO_TIMESTAMP
        self.last_offset = self.base_offset + (last[1] if last else 0)


class AbortedTransaction(NamedTuple):
    """An aborted transaction and the last stable offset at its end."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions whose markers lie in a segment, in the order of the markers.

    An entry is 34 bytes: version (0), producer id, first and last offset of the transaction, and the last stable offset
    when it was aborted, by which a search knows when it has seen enough. The file is made with the first entry, as most
    segments never have one. There are few entries: they are read at the first search and kept, and an entry is written
    at once. Its marker is in the log by then: for want of a descriptor the entry waits in memory, and is written with
    the next, or before the segment is rolled or flushed.
    """

    __slots__ = ("_lock", "_pending", "_transactions", "base_offset", "path")

    def __init__(self, path: Path, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self._transactions: list[AbortedTransaction] | None = None
        self._pending: tuple[AbortedTransaction, ...] = ()
        self._lock = Lock()  # a flush in a thread may write what waits

    def append(self, txn: AbortedTransaction) -> None:
        """Adds an entry at the end of the file."""
        with self._lock:
            self._pending = (*self._pending, txn)
            if self._transactions is not None:
                self._transactions.append(txn)
            try:
                self._write_out()
            except OSError as error:
                if not is_out_of_files(error):
                    raise

    def write_out(self) -> None:
        """Brings the file up to date, in the page cache."""
        if self._pending:
            with self._lock:
                self._write_out()

    def _write_out(self) -> None:
        fd = open_file(self.path, os.O_WRONLY | os.O_CREAT, FILE_MODE)
        try:
            end = os.fstat(fd).st_size // TXN_ENTRY.size * TXN_ENTRY.size
            entries = (TXN_ENTRY.pack(TXN_INDEX_VERSION, *txn) for txn in self._pending)
            write_fully(fd, b"".join(entries), end)
        finally:
            os.close(fd)
        self._pending = ()

    def transactions(self) -> list[AbortedTransaction]:
        """Every entry; CorruptIndexError for a version nobody has written or offsets outside the segment."""
        if self._transactions is None:
            with self._lock:
                content = read_small(str(self.path)) or b""
                usable = len(content) // TXN_ENTRY.size * TXN_ENTRY.size
                written = [self._parse(entry) for entry in TXN_ENTRY.iter_unpack(content[:usable])]
                self._transactions = [*written, *self._pending]
        return self._transactions

    def _parse(self, entry: tuple[int, int, int, int, int]) -> AbortedTransaction:
        version, txn = entry[0], AbortedTransaction(*entry[1:])
        if version != TXN_INDEX_VERSION or txn.last_offset < self.base_offset:
            raise CorruptIndexError(f"{self.path}: impossible entry {entry}")
        return txn

    def collect(self, start_offset: int, upper_bound: int) -> tuple[list[AbortedTransaction], bool]:
        """Those that overlap the range, and whether later segments need not be searched."""
        found = []
        for txn in self.transactions():
            if txn.last_offset >= start_offset and txn.first_offset < upper_bound:
                found.append(txn)
            if txn.last_stable_offset >= upper_bound:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Removes the transactions that ended at or after offset."""
        known = self.transactions()
        kept = [txn for txn in known if txn.last_offset < offset]
        if len(kept) != len(known):
            with self._lock:
                written = min(len(kept), len(known) - len(self._pending))
                with suppress(FileNotFoundError):  # none of them has been written yet
                    os.truncate(self.path, written * TXN_ENTRY.size)
                self._pending = tuple(kept[written:])
                self._transactions = kept

    def reset(self) -> None:
        """Removes all."""
        self._transactions, self._pending = [], ()
        with suppress(FileNotFoundError):
            os.truncate(self.path, 0)

    def flush(self) -> None:
        """Brings the file to the disk, if there is one."""
        self.write_out()
        if self._transactions is None or self._transactions:
            fsync_file(self.path)
