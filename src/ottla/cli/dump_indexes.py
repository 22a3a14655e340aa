"""Printing and checking the files beside a log: offset index, time index, transaction index, producer snapshot.

Reads them byte by byte rather than with the classes a broker uses, so that it can say what is wrong with them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ottla.cli.dump_batches import mapped, walk
from ottla.records.batch import BatchView, batch_at
from ottla.records.record import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
TXN_ENTRY = struct.Struct(">hqqqq")
_UINT32 = 0xFFFFFFFF


def base_offset_of(path: Path) -> int:
    """The offset in a segment file's name; ValueError where there is none."""
    return int(path.name.partition(".")[0])


def offset_entries(path: Path) -> Iterator[tuple[int, int]]:
    """Offset and position; a file still in use ends in zeros, where this stops."""
    base = base_offset_of(path)
    buf = mapped(path)
    for slot in range(len(buf) // OFFSET_ENTRY.size):
        relative, position = OFFSET_ENTRY.unpack_from(buf, slot * OFFSET_ENTRY.size)
        if slot > 0 and relative == 0:
            return
        yield base + (relative & _UINT32), position


def time_entries(path: Path) -> Iterator[tuple[int, int]]:
    """Timestamp and offset; a file still in use ends in zeros, where this stops."""
    base = base_offset_of(path)
    buf = mapped(path)
    for slot in range(len(buf) // TIME_ENTRY.size):
        timestamp, relative = TIME_ENTRY.unpack_from(buf, slot * TIME_ENTRY.size)
        if slot > 0 and relative == 0:
            return
        yield timestamp, base + (relative & _UINT32)


def sanity_problem(path: Path, entry_size: int) -> str | None:
    """What would make a broker rebuild this index when it starts."""
    base, size = base_offset_of(path), path.stat().st_size
    if size % entry_size:
        return f"its size {size} is no multiple of {entry_size}"
    entries = list(offset_entries(path)) if entry_size == OFFSET_ENTRY.size else []
    times = list(time_entries(path)) if entry_size == TIME_ENTRY.size else []
    last = entries[-1][0] if entries else times[-1][1] if times else base
    if last < base:
        return f"its last offset {last} is less than its base offset {base}"
    if len(times) > 1 and times[-1][0] < times[0][0]:
        return f"its last timestamp {times[-1][0]} is less than its first {times[0][0]}"
    return None


class OffsetIndexCheck:
    """An offset index against its log: every entry must name the last offset of the batch it points at."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mismatches: list[tuple[int, int]] = []

    def entries(self) -> Iterator[tuple[int, int]]:
        """The entries, checked on the way."""
        log = mapped(self.path.with_suffix(".log"))
        for offset, position in offset_entries(self.path):
            found = batch_at(log, position, len(log)) if 0 <= position < len(log) else None
            last = -1 if found is None else found.last_offset
            if last != offset:
                self.mismatches.append((offset, last))
            yield offset, position


class TimeIndexCheck:
    """A time index against its log: every entry must name the greatest timestamp up to a batch's end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mismatches: list[tuple[int, int]] = []
        self.out_of_order: list[tuple[int, int]] = []
        self.not_found: list[tuple[int, int]] = []

    def entries(self) -> Iterator[tuple[int, int]]:
        """The entries, checked on the way."""
        previous = -1
        log = mapped(self.path.with_suffix(".log"))
        batches = [batch for batch in walk(log) if isinstance(batch, BatchView)]
        for timestamp, offset in time_entries(self.path):
            self._check(batches, timestamp, offset, previous)
            previous = timestamp
            yield timestamp, offset

    def _check(self, batches: list[BatchView], timestamp: int, offset: int, previous: int) -> None:
        batch = next((batch for batch in batches if batch.last_offset >= offset), None)
        if batch is None or batch.last_offset != offset:
            self.not_found.append((offset, -1 if batch is None else batch.last_offset))
            return
        newest = max((record.timestamp for record in read_records(batch)), default=-1)
        if newest != timestamp:
            self.mismatches.append((timestamp, newest))
        if previous >= timestamp:
            self.out_of_order.append((timestamp, previous))


def transaction_fields(path: Path) -> Iterator[dict[str, int]]:
    """The aborted transactions of a transaction index."""
    names = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
    buf = mapped(path)
    for slot in range(len(buf) // TXN_ENTRY.size):
        yield dict(zip(names, TXN_ENTRY.unpack_from(buf, slot * TXN_ENTRY.size), strict=True))


def producer_fields(path: Path) -> Iterator[dict[str, int | None]]:
    """The producers of a snapshot, with the last batch of each that has one."""
    from ottla.storage.producer_snapshot import read_snapshot

    for entry in read_snapshot(path):
        fields: dict[str, int | None] = {
            "producerId": entry.producer_id,
            "producerEpoch": entry.epoch,
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTxnFirstOffset": None if entry.txn_first_offset < 0 else entry.txn_first_offset,
            "lastTimestamp": entry.timestamp,
        }
        if entry.last_sequence >= 0 or entry.last_offset >= 0:
            fields["firstSequence"] = _first_sequence(entry.last_sequence, entry.offset_delta)
            fields["lastSequence"] = entry.last_sequence
            fields["lastOffset"] = entry.last_offset
            fields["offsetDelta"] = entry.offset_delta
            fields["timestamp"] = entry.timestamp
        yield fields


def _first_sequence(last: int, delta: int) -> int:
    """Sequences wrap at 2^31."""
    return (last - delta) % (1 << 31) if last >= 0 else last
