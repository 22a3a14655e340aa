"""A metadata log in memory, on a disk that forgets what was not flushed: for tests of the raft core.

A batch is a header, a payload and nothing else: the core passes batches on without looking into them. Every batch
carries the checksum of the log up to its end, so that two logs are equal before an offset if they have the same there.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from ottla.metadata.snapshot import BOOTSTRAP_SNAPSHOT_ID, SnapshotId
from ottla.raft.log_view import OffsetAndEpoch, Validity, ValidOffset
from ottla.raft.quorum_state import ElectionState
from ottla.raft.voters import QuorumHistory, VoterSet
from ottla.records.batch import BATCH_HEADER, CONTROL_FLAG, HEADER_SIZE, LOG_OVERHEAD, MAGIC, BatchView
from ottla.records.control import ControlType
from ottla.wire.codec import decode, encode
from ottla.wire.messages.logs.control import KRaftVersionRecord, VotersRecord

_BATCH = struct.Struct(">qiiBI")
_CONTROL = struct.Struct(">hI")
_SNAPSHOT = struct.Struct(">IhII")
# Several pieces, as the simulation fetches them.
SNAPSHOT_BYTES = 400


class Batch(NamedTuple):
    base: int
    end: int
    epoch: int
    is_control: bool
    payload: bytes
    # Of the whole log up to here.
    chain: int
    data: bytes


def batch_view(batch: Batch) -> BatchView:
    """A batch as Kafka's log has it, where payloads are such batches; of a control batch there is only the header."""
    if not batch.is_control:
        return BatchView(batch.payload)
    count = batch.end - batch.base
    place = batch.base, HEADER_SIZE - LOG_OVERHEAD, batch.epoch
    return BatchView(BATCH_HEADER.pack(*place, MAGIC, 0, CONTROL_FLAG, count - 1, 0, 0, -1, -1, -1, count))


def encode_control(records: tuple[tuple[ControlType, bytes], ...]) -> bytes:
    return b"".join(_CONTROL.pack(kind, len(value)) + value for kind, value in records)


def control_records(payload: bytes) -> Iterator[tuple[ControlType, bytes]]:
    position = 0
    while position < len(payload):
        kind, length = _CONTROL.unpack_from(payload, position)
        position += _CONTROL.size
        yield ControlType(kind), payload[position : position + length]
        position += length


def note_control(quorum: QuorumHistory, batch: Batch) -> None:
    if not batch.is_control:
        return
    for index, (kind, value) in enumerate(control_records(batch.payload)):
        if kind is ControlType.KRAFT_VERSION:
            version = decode(KRaftVersionRecord, value, 0)[0].kraft_version
            quorum.add(batch.base + index, kraft_version=version)
        elif kind is ControlType.KRAFT_VOTERS:
            voters = VoterSet.from_record(decode(VotersRecord, value, 0)[0])
            quorum.add(batch.base + index, voters=voters)


def load_voters(quorum: QuorumHistory, end_offset: int, snapshot: bytes) -> None:
    _, kraft_version, size, _ = _SNAPSHOT.unpack_from(snapshot)
    voters = None
    if size:
        record = decode(VotersRecord, snapshot[_SNAPSHOT.size : _SNAPSHOT.size + size], 0)[0]
        voters = VoterSet.from_record(record)
    quorum.begin_with_snapshot(end_offset, kraft_version, voters)


class Disk:
    """What a crash leaves: all that was flushed, and of the rest the beginning, as far as chance wants."""

    def __init__(self, bootstrap: VoterSet | None) -> None:
        # Formatting's own snapshot, which names the first voters (kraft.version 1).
        self.bootstrap = bootstrap
        self.election: ElectionState | None = None
        self.batches: list[Batch] = []
        self.start_offset = 0
        self.snapshots: dict[SnapshotId, bytes] = {}

    def apply(self, change: Batch | int) -> None:
        if isinstance(change, int):
            while self.batches and self.batches[-1].base >= change:
                self.batches.pop()
        else:
            self.batches.append(change)


class MemoryLog:
    """The LogView of a simulated node. Made anew from its disk at every start."""

    def __init__(self, disk: Disk, static_voters: VoterSet | None) -> None:
        self.disk = disk
        # What the disk does not know yet, in its order: batches that were appended, offsets that it was cut at.
        self.unflushed: list[Batch | int] = []
        self.truncations = 0
        self._static_voters = static_voters
        self.snapshots = dict(disk.snapshots)
        self.latest_snapshot = max(self.snapshots, default=None)
        self.batches = [batch for batch in disk.batches if batch.end > disk.start_offset]
        self.start_offset = disk.start_offset
        last = (self.batches[-1].epoch, self.batches[-1].end) if self.batches else (0, 0)
        latest = self.latest_snapshot
        if latest is not None and (latest.epoch, latest.end_offset) > last:
            self.batches = []
            self.start_offset = latest.end_offset
            self._replace_on_disk()
        self.quorum = self.written_quorum()
        self._update()

    # --- what the core reads

    def _update(self) -> None:
        self.epochs: list[tuple[int, int]] = []
        for batch in self.batches:
            if not self.epochs or batch.epoch > self.epochs[-1][0]:
                self.epochs.append((batch.epoch, max(batch.base, self.start_offset)))
        self.bases = [batch.base for batch in self.batches]
        self._update_end()

    def _update_end(self) -> None:
        latest = self.latest_snapshot
        if self.batches:
            self.end = OffsetAndEpoch(self.batches[-1].end, self.batches[-1].epoch)
        else:
            self.end = OffsetAndEpoch(self.start_offset, latest.epoch if latest is not None else 0)

    def _earliest_snapshot(self) -> SnapshotId | None:
        if self.disk.bootstrap is not None and self.start_offset == 0:
            return BOOTSTRAP_SNAPSHOT_ID
        return min(self.snapshots, default=None)

    def validate(self, offset: int, epoch: int) -> ValidOffset:
        if self.start_offset == 0 and offset == 0:
            return ValidOffset(Validity.VALID, OffsetAndEpoch(0, 0))
        earliest = self._earliest_snapshot()
        if earliest is not None and (
            offset < self.start_offset
            or (offset == self.start_offset and epoch != earliest.epoch)
            or epoch < earliest.epoch
        ):
            latest = self.latest_snapshot or BOOTSTRAP_SNAPSHOT_ID
            return ValidOffset(Validity.SNAPSHOT, OffsetAndEpoch(*latest))
        end = self.end_for_epoch(epoch)
        if end.epoch != epoch or end.offset < offset:
            return ValidOffset(Validity.DIVERGING, end)
        return ValidOffset(Validity.VALID, OffsetAndEpoch(offset, epoch))

    def end_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        if not self.epochs or epoch >= self.epochs[-1][0]:
            return self.end
        found = epoch
        for known, start in self.epochs:
            if known > epoch:
                earliest = self._earliest_snapshot()
                if earliest is not None and (found, start) == (epoch, earliest.end_offset):
                    return OffsetAndEpoch(*earliest)
                return OffsetAndEpoch(start, found)
            found = known
        raise AssertionError("the last epoch is higher")

    def read(self, offset: int, max_bytes: int) -> bytes:
        first = bisect_right(self.bases, offset) - 1
        if offset >= self.end.offset or first < 0:
            return b""
        data = self.batches[first].data
        for batch in self.batches[first + 1 :]:
            if len(data) + len(batch.data) > max_bytes:
                break
            data += batch.data
        return data

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[bytes, int] | None:
        data = self.snapshots.get(snapshot)
        return None if data is None else (data[position : position + max_bytes], len(data))

    # --- what the simulation compares

    def chain_at(self, offset: int) -> int | None:
        """The checksum of everything before an offset; None where the log has no boundary of batches."""
        if offset == 0:
            return 0
        if offset == self.start_offset:
            return int(_SNAPSHOT.unpack_from(self._start_snapshot())[0])
        index = bisect_right(self.bases, offset - 1) - 1
        if index < 0 or self.batches[index].end != offset:
            return None
        return self.batches[index].chain

    def committed(self, offset: int, high_watermark: int) -> Iterator[Batch]:
        """What a state machine on top of this log reads."""
        for index in range(max(bisect_right(self.bases, offset) - 1, 0), len(self.batches)):
            batch = self.batches[index]
            if batch.end > high_watermark:
                return
            if batch.base >= offset:
                yield batch

    def written_quorum(self) -> QuorumHistory:
        """What the snapshot and the batches themselves say of the voters, found from the beginning."""
        quorum = QuorumHistory(self._static_voters)
        if self.disk.bootstrap is not None:
            quorum.begin_with_snapshot(0, 1, self.disk.bootstrap)
        if self.start_offset > 0:
            load_voters(quorum, self.start_offset, self._start_snapshot())
        for batch in self.batches:
            note_control(quorum, batch)
        return quorum

    # --- what Ready changes

    def append(self, payload: bytes, count: int, epoch: int, is_control: bool) -> Batch:
        """A batch of this node's own, as leader."""
        header = _BATCH.pack(self.end.offset, count, epoch, is_control, len(payload))
        return self._append(header + payload)

    def append_fetched(self, data: bytes) -> None:
        """Batches as the leader has them."""
        position = 0
        while position < len(data):
            size = _BATCH.size + _BATCH.unpack_from(data, position)[4]
            self._append(data[position : position + size])
            position += size

    def _append(self, data: bytes) -> Batch:
        base, count, epoch, is_control, _ = _BATCH.unpack_from(data)
        assert base == self.end.offset, f"a batch at {base} does not follow on {self.end.offset}"
        assert epoch >= self.end.epoch, "epochs never go back in a log"
        before = self.batches[-1].chain if self.batches else self.chain_at(self.start_offset)
        assert before is not None
        chain = zlib.crc32(data, before)
        batch = Batch(base, base + count, epoch, bool(is_control), data[_BATCH.size :], chain, data)
        self.batches.append(batch)
        self.bases.append(base)
        if not self.epochs or epoch > self.epochs[-1][0]:
            self.epochs.append((epoch, base))
        self.end = OffsetAndEpoch(batch.end, epoch)
        note_control(self.quorum, batch)
        self.unflushed.append(batch)
        return batch

    def truncate(self, offset: int) -> None:
        while self.batches and self.batches[-1].base >= offset:
            self.batches.pop()
        self.quorum.truncate(offset)
        self.truncations += 1
        self.unflushed.append(offset)
        self._update()
        assert self.end.offset == offset, "a log is cut between batches"

    # --- snapshots

    def take_snapshot(self, end_offset: int, content: bytes = b"") -> SnapshotId | None:
        """Of what is committed, with what a state machine makes of it; the log before it is no longer needed."""
        chain = self.chain_at(end_offset)
        if chain is None or end_offset <= self.start_offset or end_offset > self.end.offset:
            return None
        epoch = next(batch.epoch for batch in reversed(self.batches) if batch.end <= end_offset)
        entry = self.quorum.at(end_offset - 1)
        voters = encode(entry.voters.to_record(), 0) if entry.kraft_version > 0 else b""
        data = _SNAPSHOT.pack(chain, entry.kraft_version, len(voters), len(content)) + voters + content
        self._put_snapshot(SnapshotId(end_offset, epoch), data.ljust(SNAPSHOT_BYTES, b"."))
        return self.latest_snapshot

    def snapshot_content(self, snapshot: SnapshotId) -> bytes:
        """What the state machine has put into it."""
        data = self.snapshots[snapshot]
        *_, voters, content = _SNAPSHOT.unpack_from(data)
        begin = _SNAPSHOT.size + voters
        return data[begin : begin + content]

    def _put_snapshot(self, snapshot: SnapshotId, data: bytes) -> None:
        self.snapshots[snapshot] = self.disk.snapshots[snapshot] = data
        self.latest_snapshot = max(self.snapshots)

    def forget_before_snapshot(self) -> None:
        """The log begins where the newest snapshot ends."""
        latest = self.latest_snapshot
        if latest is None or latest.end_offset <= self.start_offset:
            return
        self.start_offset = self.disk.start_offset = latest.end_offset
        self.batches = [batch for batch in self.batches if batch.end > self.start_offset]
        self.snapshots = {latest: self.snapshots[latest]}
        self.disk.snapshots = dict(self.snapshots)
        self.quorum.forget(self.start_offset)
        self._update()

    def replace_with_snapshot(self, snapshot: SnapshotId, data: bytes) -> None:
        """A snapshot was fetched, because the leader no longer has the rest."""
        self._put_snapshot(snapshot, data)
        self.batches = []
        self.start_offset = snapshot.end_offset
        self._replace_on_disk()
        load_voters(self.quorum, snapshot.end_offset, data)
        self._update()

    def _replace_on_disk(self) -> None:
        assert self.latest_snapshot is not None
        self.snapshots = {self.latest_snapshot: self.snapshots[self.latest_snapshot]}
        disk = self.disk
        disk.batches, disk.start_offset, disk.snapshots = [], self.start_offset, dict(self.snapshots)
        self.unflushed = []

    def _start_snapshot(self) -> bytes:
        return next(
            data for snapshot, data in self.snapshots.items() if snapshot.end_offset == self.start_offset
        )

    # --- the disk

    def flush(self, changes: int) -> None:
        """An fsync has ended that had so many changes before it."""
        for change in self.unflushed[:changes]:
            self.disk.apply(change)
        del self.unflushed[:changes]

    def crash(self, random: Random) -> None:
        """Whatever was not flushed may be there all the same, up to some change."""
        self.flush(random.randint(0, len(self.unflushed)))
