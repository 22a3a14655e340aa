"""The time index of a segment: from which offset on a timestamp may be found.

An entry is twelve bytes: a timestamp (int64) and the relative offset (int32) of the last record of the batch
that brought it; it says that no record before it has a later timestamp. One is written with every entry of the
offset index if the largest timestamp has grown, and one when the segment is rolled or closed, so that the last
entry of a finished segment is its largest timestamp.
"""

import struct
from pathlib import Path
from typing import ClassVar

from ottla.model.ids import NO_TIMESTAMP
from ottla.storage.index import SparseIndex


class TimeIndex(SparseIndex):
    """Finds the offset from which to look for a timestamp."""

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
