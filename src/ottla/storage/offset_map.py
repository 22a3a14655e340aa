"""The cleaner's memory of the dirty section: for each key the newest offset, and up to where it has read.

The map itself is the kernel's (24 bytes an entry, as Kafka's, in C and without the GIL); it is bounded by
log.cleaner.dedupe.buffer.size, and when it is full a cleaning covers less of the log and the next one goes
on from there. Keys are kept as keyed 128-bit digests, so that no producer can make two keys collide and
lose one.
"""

import os
from typing import Final

from ottla.records.batch import BatchView
from ottla.records.compaction import collect_keys
from ottla.records.kernel import OffsetMap

SECRET_BYTES: Final = 16
ENTRY_BYTES: Final = 24
MIN_MAP_BYTES: Final = 4096


class DirtyKeys:
    """Newest offsets of the keys from the first dirty offset up to `latest_offset`, inclusive."""

    __slots__ = ("_max_entries", "full", "latest_offset", "newest", "start_offset")

    def __init__(self, start_offset: int, end_offset: int, memory_bytes: int, load_factor: float) -> None:
        # There are no more keys than offsets: a small dirty section needs no map of 128 MB.
        needed_bytes = int((end_offset - start_offset) / load_factor + 1) * ENTRY_BYTES
        size_bytes = max(MIN_MAP_BYTES, min(memory_bytes, needed_bytes))
        self.newest = OffsetMap(size_bytes, os.urandom(SECRET_BYTES))
        self._max_entries = max(1, int(self.newest.slots * load_factor))
        self.start_offset = start_offset
        self.latest_offset = start_offset - 1
        self.full = False

    def add(self, batch: BatchView) -> bool:
        """Notes the keys of a data batch; False if the map is full and the batch does not count as read."""
        if not collect_keys(
            self.newest, batch, start_offset=self.start_offset, max_entries=self._max_entries
        ):
            # Some of the batch's keys may be in the map. That does no harm: the records they stand for lie
            # past latest_offset and stay, so what they supersede may go.
            self.full = True
            return False
        self.advance(batch.last_offset)
        return True

    def advance(self, offset: int) -> None:
        """Everything up to `offset` has been seen."""
        self.latest_offset = max(self.latest_offset, offset)

    @property
    def utilization(self) -> float:
        return len(self.newest) / self.newest.slots
