"""One idempotent or transactional producer as a partition knows it (KIP-98), in memory and in a snapshot file.

Its epoch, its last five batches (to tell a duplicate from a gap), and the transaction it has open. An entry takes what
it is given: whether it may be given that is judged by others (ProducerAppendInfo, or ProducerStateManager.expects).

A snapshot file `<20-digit offset>.snapshot` is what a partition knew of its producers at an offset, as Kafka writes
it: version 1 (int16), a CRC-32C over what follows it, the number of entries, and per producer id, epoch, last sequence,
last offset, offset delta, timestamp, coordinator epoch and the first offset of its open transaction (-1 if none). Of
the last five batches only the newest is kept; the log has the others, and an entry that came out of a snapshot
(`is_partial`) can be completed from there.

Owner: the ProducerStateManager of a partition, and for as long as an append is judged a ProducerAppendInfo.
"""

import os
import struct
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from ottla.model.ids import NO_OFFSET, NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP
from ottla.records.batch import MAX_SEQUENCE
from ottla.records.control import EndTxnMarker
from ottla.records.kernel import crc32c
from ottla.storage.files import FILE_MODE, open_file, read_small, write_fully

BATCHES_TO_RETAIN: Final = 5
# The transaction.version from which on every transaction has its own epoch (KIP-890).
EPOCH_BUMP_VERSION: Final = 2

SNAPSHOT_VERSION: Final = 1
SNAPSHOT_PREFIX: Final = struct.Struct(">hI")
SNAPSHOT_COUNT: Final = struct.Struct(">i")
SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")


class BatchMetadata(NamedTuple):
    """One of a producer's last batches."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        first = self.last_sequence - self.offset_delta
        return first if first >= 0 or self.last_sequence < 0 else first + MAX_SEQUENCE + 1

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class CompletedTxn(NamedTuple):
    """A transaction whose marker has been seen."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class SnapshotEntry(NamedTuple):
    """One producer as a snapshot keeps it."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


class ProducerStateEntry:
    """The state of one producer id on one partition."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "is_partial",
        "last_timestamp",
        "producer_id",
        "txn_first_offset",
    )

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.is_partial = (
            False  # may the log have batches before these that would be known, had it not been loaded?
        )
        self.epoch = NO_PRODUCER_EPOCH
        self.coordinator_epoch = -1
        self.last_timestamp = NO_TIMESTAMP
        self.txn_first_offset = NO_OFFSET
        self.batches: deque[BatchMetadata] = deque(maxlen=BATCHES_TO_RETAIN)

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def may_end(self, marker: EndTxnMarker, epoch: int, transaction_version: int) -> bool:
        """The common case of a marker: neither its coordinator nor its epoch is of the past."""
        if marker.coordinator_epoch < self.coordinator_epoch:
            return False
        return epoch > self.epoch or (epoch == self.epoch and transaction_version < EPOCH_BUMP_VERSION)

    def is_next(self, sequence: int) -> bool:
        """Does a sequence follow on that of the last batch, if that has one, and so repeats none?"""
        if not self.batches:
            return sequence == 0
        last = self.batches[-1].last_sequence
        return last >= 0 and (sequence == last + 1 or (sequence == 0 and last == MAX_SEQUENCE))

    def follow(self, sequence: int, last_delta: int, last_offset: int, timestamp: int) -> None:
        """Takes the next batch of the same epoch."""
        last_sequence = sequence + last_delta
        if last_sequence > MAX_SEQUENCE:
            last_sequence -= MAX_SEQUENCE + 1
        self.batches.append(BatchMetadata(last_sequence, last_offset, last_delta, timestamp))
        self.last_timestamp = timestamp

    def end_transaction(
        self, marker: EndTxnMarker, epoch: int, offset: int, timestamp: int
    ) -> CompletedTxn | None:
        """Takes the marker at an offset; the transaction that it ends, None if none was open."""
        completed = None
        if self.txn_first_offset >= 0:
            completed = CompletedTxn(self.producer_id, self.txn_first_offset, offset, not marker.committed)
        self.set_epoch(epoch)
        self.coordinator_epoch = marker.coordinator_epoch
        self.txn_first_offset = NO_OFFSET
        self.last_timestamp = timestamp
        return completed

    def add_batch(self, epoch: int, batch: BatchMetadata) -> None:
        self.set_epoch(epoch)
        self.batches.append(batch)
        self.last_timestamp = batch.timestamp

    def set_epoch(self, epoch: int) -> None:
        """A new epoch starts its sequences anew, so the old batches do not count any more."""
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch
            self.is_partial = False

    def find_duplicate(self, epoch: int, first_sequence: int, last_sequence: int) -> BatchMetadata | None:
        if epoch != self.epoch:
            return None
        for batch in self.batches:
            if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                return batch
        return None

    @property
    def lacks_batches(self) -> bool:
        """May there be one before the first that is known, among the last five of this epoch?"""
        batches = self.batches
        return self.is_partial and 0 < len(batches) < BATCHES_TO_RETAIN and batches[0].first_sequence != 0

    def recall(self, epoch: int, batch: BatchMetadata) -> None:
        """Takes the batch before the first that is known, as the log has it."""
        if epoch == self.epoch:
            self.batches.appendleft(batch)
        else:
            self.is_partial = False

    def copy(self) -> "ProducerStateEntry":
        other = ProducerStateEntry(self.producer_id)
        other.is_partial = self.is_partial
        other.epoch, other.coordinator_epoch = self.epoch, self.coordinator_epoch
        other.last_timestamp, other.txn_first_offset = self.last_timestamp, self.txn_first_offset
        other.batches.extend(self.batches)
        return other

    def to_snapshot(self) -> SnapshotEntry:
        return SnapshotEntry(
            self.producer_id,
            self.epoch,
            self.last_sequence,
            self.last_data_offset,
            self.batches[-1].offset_delta if self.batches else 0,
            self.last_timestamp,
            self.coordinator_epoch,
            self.txn_first_offset,
        )

    @classmethod
    def from_snapshot(cls, snapshot: SnapshotEntry) -> "ProducerStateEntry":
        entry = cls(snapshot.producer_id)
        entry.epoch = snapshot.epoch
        entry.coordinator_epoch = snapshot.coordinator_epoch
        entry.last_timestamp = snapshot.timestamp
        entry.txn_first_offset = max(snapshot.txn_first_offset, NO_OFFSET)
        if snapshot.last_offset >= 0:
            entry.is_partial = True
            entry.batches.append(
                BatchMetadata(
                    snapshot.last_sequence, snapshot.last_offset, snapshot.offset_delta, snapshot.timestamp
                )
            )
        return entry


# -- the snapshot file


class CorruptSnapshotError(Exception):
    """A snapshot that is not what Kafka writes: it is removed and an older one taken."""


def encode_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    """The bytes of a snapshot file."""
    packed = [SNAPSHOT_ENTRY.pack(*entry) for entry in entries]
    body = SNAPSHOT_COUNT.pack(len(packed)) + b"".join(packed)
    return SNAPSHOT_PREFIX.pack(SNAPSHOT_VERSION, crc32c(body)) + body


def decode_snapshot(content: bytes, source: str) -> list[SnapshotEntry]:
    """The entries of a snapshot file; CorruptSnapshotError if it cannot be one."""
    if len(content) < SNAPSHOT_PREFIX.size + SNAPSHOT_COUNT.size:
        raise CorruptSnapshotError(f"{source}: {len(content)} bytes are no snapshot")
    version, crc = SNAPSHOT_PREFIX.unpack_from(content)
    if version != SNAPSHOT_VERSION:
        raise CorruptSnapshotError(f"{source}: unknown version {version}")
    if crc != crc32c(memoryview(content)[SNAPSHOT_PREFIX.size :]):
        raise CorruptSnapshotError(f"{source}: the checksum does not match")
    (count,) = SNAPSHOT_COUNT.unpack_from(content, SNAPSHOT_PREFIX.size)
    first = SNAPSHOT_PREFIX.size + SNAPSHOT_COUNT.size
    if count < 0 or first + count * SNAPSHOT_ENTRY.size != len(content):
        raise CorruptSnapshotError(f"{source}: {count} entries do not fill {len(content)} bytes")
    return [SnapshotEntry(*entry) for entry in SNAPSHOT_ENTRY.iter_unpack(content[first:])]


def read_snapshot(path: Path) -> list[SnapshotEntry]:
    """The entries of a file; CorruptSnapshotError if it is none."""
    content = read_small(str(path))
    if content is None:
        raise CorruptSnapshotError(f"{path}: gone")
    return decode_snapshot(content, str(path))


def write_snapshot(path: Path, entries: Iterable[SnapshotEntry], *, sync: bool) -> None:
    """Writes a file, with `sync` to the disk; a crash in between is found out by the checksum."""
    fd = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    try:
        write_fully(fd, encode_snapshot(entries), 0)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
