"""Kafka's ProducerStateManager: what a partition knows of its idempotent and transactional producers (KIP-98).

Which producers there are, which of their transactions are open or not yet replicated to the end, hence the last stable
offset.

Rules: an append is judged before it is written (ProducerAppendInfo, which touches nothing) and applied after.
Snapshots are taken on a roll, at a clean stop and after a recovery, and let a restart rebuild the state from the
newest one instead of from the whole log. They have one batch of each producer, as Kafka's; where a producer sends an
older one again, the others are read from the log (`recall`). Owned by its Log, on the event loop.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_PRODUCER_EPOCH, NO_SEQUENCE, TopicPartition
from ottla.records.batch import CONTROL_FLAG, MAX_SEQUENCE, BatchView, increment_sequence
from ottla.records.control import EndTxnMarker, parse_end_txn_marker
from ottla.records.record import read_records
from ottla.records.types import Buffer
from ottla.storage.files import DELETED_SUFFIX, SNAPSHOT_SUFFIX, file_name
from ottla.storage.producers.entry import (
    EPOCH_BUMP_VERSION,
    BatchMetadata,
    CompletedTxn,
    CorruptSnapshotError,
    ProducerStateEntry,
    SnapshotEntry,
    read_snapshot,
    write_snapshot,
)
from ottla.storage.producers.verification import NOT_CHECKED, Verification, Verifications
from ottla.storage.segment.file_records import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    LAST_DELTA,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    Header,
)
from ottla.storage.segment.segment import LogSegment
from ottla.storage.validator import AppendOrigin, CheckedBatch

MAX_EPOCH: Final = (1 << 15) - 1


class ProducerAppendInfo:
    """One producer's part of an append: its epoch, its sequence, its transaction, its coordinator (KIP-98, KIP-890).

    All is judged on a copy, so that a refusal leaves nothing to undo; the copy takes the place of the producer's entry
    once the batch is written (ProducerStateManager.apply). What a leader has judged a follower takes as it comes.
    """

    __slots__ = ("_origin", "_partition", "_verification", "entry", "is_verified", "started")

    def __init__(
        self,
        partition: TopicPartition,
        entry: ProducerStateEntry,
        origin: AppendOrigin,
        verification: Verification | None = None,
    ) -> None:
        self._partition = partition
        self._origin = origin
        self._verification = verification
        self.entry = entry
        self.started: list[int] = []  # first offsets of the transactions begun
        self.is_verified = False  # is its verification over, by data or by a marker?

    def append_data(
        self,
        epoch: int,
        base_sequence: int,
        last_delta: int,
        first_offset: int,
        timestamp: int,
        transactional: bool,
    ) -> None:
        """Takes a batch of data, or raises the error for the producer's answer."""
        self._check_epoch(epoch, 0)
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(epoch, base_sequence)
        last_sequence = NO_SEQUENCE if base_sequence < 0 else increment_sequence(base_sequence, last_delta)
        entry = self.entry
        entry.add_batch(epoch, BatchMetadata(last_sequence, first_offset + last_delta, last_delta, timestamp))
        if entry.txn_first_offset >= 0 and not transactional:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {entry.producer_id} has an open transaction on {self._partition}: "
                f"the batch at offset {first_offset} is not transactional",
            )
        if transactional and entry.txn_first_offset < 0:
            entry.txn_first_offset = first_offset
            self.started.append(first_offset)

    def append_marker(
        self, marker: EndTxnMarker, epoch: int, offset: int, timestamp: int, transaction_version: int
    ) -> CompletedTxn | None:
        """Takes the end of a transaction; None if none was open here."""
        self._check_epoch(epoch, transaction_version)
        self._check_coordinator_epoch(marker)
        return self.entry.end_transaction(marker, epoch, offset, timestamp)

    def _check_epoch(self, epoch: int, transaction_version: int) -> None:
        """An older epoch is a zombie. With KIP-890 every transaction has its own epoch, so a marker's must grow."""
        current = self.entry.epoch
        if epoch > current or (epoch == current and transaction_version < EPOCH_BUMP_VERSION):
            return
        repeated_marker = epoch == current and (self.entry.txn_first_offset < 0 or epoch == MAX_EPOCH)
        if repeated_marker or self._origin is AppendOrigin.REPLICATION:
            return
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"Epoch {epoch} of producer {self.entry.producer_id} on {self._partition} is not newer than {current}",
        )

    def _check_sequence(self, epoch: int, sequence: int) -> None:
        entry = self.entry
        if self._verification is not None:
            self._check_verified_sequence(self._verification, sequence)
        if epoch != entry.epoch:
            if sequence != 0 and entry.epoch != NO_PRODUCER_EPOCH:
                raise self._out_of_order(f"{sequence} begins the new epoch {epoch}, not 0")
            return
        last = entry.last_sequence
        if sequence != last + 1 and not (sequence == 0 and last == MAX_SEQUENCE):
            raise self._out_of_order(f"{sequence} follows {last}")

    def _check_verified_sequence(self, verification: Verification, sequence: int) -> None:
        if verification.supports_epoch_bump and sequence != 0 and not self.entry.batches:
            raise self._out_of_order(f"{sequence} begins a transaction of version 2, not 0")
        if sequence > verification.lowest_sequence:
            raise self._out_of_order(f"{sequence} comes before {verification.lowest_sequence}")

    def _out_of_order(self, reason: str) -> KafkaError:
        return KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Out of order sequence number of producer {self.entry.producer_id} on {self._partition}: {reason}",
        )

    def _check_coordinator_epoch(self, marker: EndTxnMarker) -> None:
        known = self.entry.coordinator_epoch
        if marker.coordinator_epoch < known and self._origin is not AppendOrigin.REPLICATION:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Coordinator epoch {marker.coordinator_epoch} for producer {self.entry.producer_id} "
                f"on {self._partition} is older than {known}",
            )


class ActiveProducer(NamedTuple):
    """A producer as DescribeProducers shows it (KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int  # -1 if none


class ProducerStateManager:
    """All producers of a partition, their transactions, and the snapshots on disk."""

    __slots__ = (
        "_dir",
        "_partition",
        "_unreplicated",
        "entries",
        "expiration_ms",
        "last_snapshot_offset",
        "map_end_offset",
        "ongoing",
        "snapshots",
        "verifications",
    )

    def __init__(self, partition: TopicPartition, dir: Path, *, expiration_ms: int) -> None:
        self._partition = partition
        self._dir = dir
        self.expiration_ms = expiration_ms
        self.entries: dict[int, ProducerStateEntry] = {}
        self.ongoing: dict[int, int] = {}  # first offset -> producer id
        self._unreplicated: dict[int, int] = {}  # first offset -> last offset, of completed transactions
        self.verifications = Verifications(self.entries)
        self.map_end_offset = 0
        self.last_snapshot_offset = 0
        self.snapshots: list[int] = []

    # -- questions

    def active_producers(self) -> list[ActiveProducer]:
        return [
            ActiveProducer(
                entry.producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.txn_first_offset,
            )
            for entry in self.entries.values()
        ]

    def last_records(self) -> dict[int, tuple[int, int]]:
        """Producer id -> (last data offset or -1, epoch): the cleaner keeps these batches."""
        return {
            producer_id: (entry.last_data_offset, entry.epoch) for producer_id, entry in self.entries.items()
        }

    # -- appends

    def expects(
        self,
        entry: ProducerStateEntry,
        epoch: int,
        sequence: int,
        in_transaction: bool,
        shown: Verification | None,
    ) -> bool:
        """The common case: a producer's next batch of the same epoch, in the open transaction, or in none.

        It may also begin one, if it shows the verification that is in force. All that is said here is what staging
        the batch would find, but nothing is copied for it: whoever is expected is put in place once it is written.
        """
        if epoch != entry.epoch or not entry.is_next(sequence):
            return False
        verification = self.verifications.in_force.get(entry.producer_id)
        if verification is not None and sequence > verification.lowest_sequence:
            return False
        if in_transaction == (entry.txn_first_offset >= 0):
            return True
        return in_transaction and (shown is NOT_CHECKED or (shown is not None and shown is verification))

    def continue_transaction(self, entry: ProducerStateEntry, offset: int) -> None:
        """A batch of a transaction is written at an offset: its first, if none was open."""
        self.verifications.forget(entry.producer_id)
        if entry.txn_first_offset < 0:
            entry.txn_first_offset = offset
            self.ongoing[offset] = entry.producer_id

    def end_transaction(
        self, entry: ProducerStateEntry, marker: EndTxnMarker, epoch: int, offset: int, timestamp: int
    ) -> CompletedTxn | None:
        """A marker is written at an offset; the transaction that it ends is still to be completed."""
        if self.verifications.is_over(entry.producer_id, epoch, is_control=True):
            self.verifications.forget(entry.producer_id)
        return entry.end_transaction(marker, epoch, offset, timestamp)

    def stage(self, producer_id: int, origin: AppendOrigin) -> ProducerAppendInfo:
        """A copy to judge an append on."""
        entry = self.entries.get(producer_id)
        copy = ProducerStateEntry(producer_id) if entry is None else entry.copy()
        return ProducerAppendInfo(self._partition, copy, origin, self.verifications.get(producer_id))

    def apply(self, staged: ProducerAppendInfo) -> None:
        """Puts a judged append in place, now that it is written."""
        producer_id = staged.entry.producer_id
        self.entries[producer_id] = staged.entry
        if staged.is_verified:
            self.verifications.forget(producer_id)
        for first_offset in staged.started:
            self.ongoing[first_offset] = producer_id

    def complete(self, txn: CompletedTxn) -> None:
        """Moves a transaction from open to complete but not yet replicated."""
        self.ongoing.pop(txn.first_offset, None)
        self._unreplicated[txn.first_offset] = txn.last_offset

    def last_stable_offset_after(self, txn: CompletedTxn) -> int:
        """Where the last stable offset will be once this transaction has ended."""
        others = [first for first, producer_id in self.ongoing.items() if producer_id != txn.producer_id]
        return min(others, default=txn.last_offset + 1)

    # -- what snapshots do not have

    def wants_recall(self, producer_id: int, epoch: int, sequence: int) -> bool:
        """Is this neither the next batch of a producer nor one of those known, and may the log know more of them?"""
        entry = self.entries.get(producer_id)
        return (
            entry is not None and epoch == entry.epoch and entry.lacks_batches and not entry.is_next(sequence)
        )

    def recall_from(self) -> int:
        """The offset below which there may be batches of producers that are partial."""
        return max(
            (entry.batches[0].first_offset for entry in self.entries.values() if entry.lacks_batches),
            default=0,
        )

    def recall(self, newest_first: Iterable[Header]) -> None:
        """Completes all producers that came out of a snapshot, as far as these batches of the log go."""
        partial = {producer_id: entry for producer_id, entry in self.entries.items() if entry.lacks_batches}
        for header in newest_first:
            entry = partial.get(header[PRODUCER_ID])
            if entry is None or header[ATTRIBUTES] & CONTROL_FLAG:
                continue
            last_offset = header[BASE_OFFSET] + header[LAST_DELTA]
            if last_offset >= entry.batches[0].first_offset or header[BASE_SEQUENCE] < 0:
                continue
            last_sequence = increment_sequence(header[BASE_SEQUENCE], header[LAST_DELTA])
            entry.recall(
                header[PRODUCER_EPOCH],
                BatchMetadata(last_sequence, last_offset, header[LAST_DELTA], header[MAX_TIMESTAMP]),
            )
            if not entry.lacks_batches:
                del partial[header[PRODUCER_ID]]
                if not partial:
                    break
        for entry in self.entries.values():
            entry.is_partial = False

    # -- transactions

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset that is undecided, or decided by a marker above the high watermark."""
        if not self.ongoing and not self._unreplicated:
            return None
        return min((*self.ongoing, *self._unreplicated))

    def on_high_watermark(self, high_watermark: int) -> bool:
        """Forgets the completed transactions whose markers everybody has; were there any?"""
        decided = self._unreplicated
        if not decided:
            return False
        self._unreplicated = {first: last for first, last in decided.items() if last >= high_watermark}
        return len(self._unreplicated) < len(decided)

    # -- expiry and truncation

    def _expired(self, entry: ProducerStateEntry, now_ms: int) -> bool:
        return entry.txn_first_offset < 0 and now_ms - entry.last_timestamp >= self.expiration_ms

    def remove_expired(self, now_ms: int) -> None:
        """Forgets producers that have been silent for producer.id.expiration.ms."""
        gone = [producer_id for producer_id, entry in self.entries.items() if self._expired(entry, now_ms)]
        for producer_id in gone:
            del self.entries[producer_id]
        self.verifications.forget_older(now_ms - self.expiration_ms)

    def on_log_start_offset(self, log_start_offset: int) -> None:
        self.on_high_watermark(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)
        self.last_snapshot_offset = self.snapshots[-1] if self.snapshots else log_start_offset

    def truncate_and_reload(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Goes back to the newest snapshot within the log; the caller replays the batches after it."""
        for offset in [s for s in self.snapshots if s > log_end_offset or s <= log_start_offset]:
            self.delete_snapshot(offset)
        if log_end_offset == self.map_end_offset:
            self.on_log_start_offset(log_start_offset)
            return
        self._clear()
        self._load_newest(log_start_offset, now_ms)

    def beside(self, log_start_offset: int, log_end_offset: int, now_ms: int) -> "ProducerStateManager":
        """Another state, as far back as the newest snapshot within these offsets; nothing on the disk is changed."""
        other = ProducerStateManager(self._partition, self._dir, expiration_ms=self.expiration_ms)
        other.map_end_offset = log_start_offset
        for offset in sorted(self.snapshots, reverse=True):
            if not log_start_offset < offset <= log_end_offset:
                continue
            try:
                loaded = read_snapshot(self._snapshot_path(offset))
            except CorruptSnapshotError:
                continue
            other._restore(loaded, now_ms)
            other.map_end_offset = offset
            break
        return other

    def take_over(self, other: "ProducerStateManager", log_start_offset: int) -> None:
        """Be as the other is, from where it ends on."""
        end = other.map_end_offset
        for offset in [s for s in self.snapshots if s > end or s <= log_start_offset]:
            self.delete_snapshot(offset)
        self._clear()
        self.entries.update(other.entries)
        self.ongoing.update(other.ongoing)
        self._unreplicated.update(other._unreplicated)
        self.map_end_offset = end
        self.last_snapshot_offset = self.snapshots[-1] if self.snapshots else log_start_offset

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self._clear()
        for snapshot in list(self.snapshots):
            self.delete_snapshot(snapshot)
        self.last_snapshot_offset = 0
        self.map_end_offset = offset

    def _clear(self) -> None:
        self.entries.clear()
        self.ongoing.clear()
        self._unreplicated.clear()
        self.verifications.clear()

    def _load_newest(self, log_start_offset: int, now_ms: int) -> None:
        while self.snapshots:
            offset = self.snapshots[-1]
            try:
                loaded = read_snapshot(self._snapshot_path(offset))
            except CorruptSnapshotError:
                self.delete_snapshot(offset)
                continue
            self._restore(loaded, now_ms)
            self.last_snapshot_offset = self.map_end_offset = offset
            return
        self.last_snapshot_offset = self.map_end_offset = log_start_offset

    def _restore(self, loaded: list[SnapshotEntry], now_ms: int) -> None:
        for snapshot in loaded:
            entry = ProducerStateEntry.from_snapshot(snapshot)
            if self._expired(entry, now_ms):
                continue
            self.entries[entry.producer_id] = entry
            if entry.txn_first_offset >= 0:
                self.ongoing[entry.txn_first_offset] = entry.producer_id

    # -- snapshots

    def _snapshot_path(self, offset: int) -> Path:
        return self._dir / file_name(offset, SNAPSHOT_SUFFIX)

    def take_snapshot(self, *, sync: bool = True) -> Path | None:
        """Writes one at the end of what is known, unless that one is already there."""
        offset = self.map_end_offset
        if offset <= self.last_snapshot_offset:
            return None
        path = self._snapshot_path(offset)
        write_snapshot(path, [entry.to_snapshot() for entry in self.entries.values()], sync=sync)
        if offset not in self.snapshots:
            self.snapshots = sorted([*self.snapshots, offset])
        self.last_snapshot_offset = offset
        return path

    def delete_snapshot(self, offset: int) -> None:
        if offset in self.snapshots:
            self.snapshots.remove(offset)
            self._snapshot_path(offset).unlink(missing_ok=True)

    def mark_snapshot_deleted(self, offset: int) -> Path | None:
        """Renames the snapshot of a segment that is being deleted."""
        if offset not in self.snapshots:
            return None
        self.snapshots.remove(offset)
        path = self._snapshot_path(offset)
        renamed = path.with_name(path.name + DELETED_SUFFIX)
        try:
            os.replace(path, renamed)
        except FileNotFoundError:
            return None
        return renamed

    def remove_stray_snapshots(self, segment_base_offsets: set[int]) -> None:
        """Keeps the snapshots that stand at a segment's base, and the newest one beyond the last segment."""
        strays = [offset for offset in self.snapshots if offset not in segment_base_offsets]
        newest = strays[-1] if strays else None
        for offset in strays:
            if offset != newest or (segment_base_offsets and offset < max(segment_base_offsets)):
                self.delete_snapshot(offset)

    def move(self, dir: Path) -> None:
        """The directory was renamed."""
        self._dir = dir

    def is_empty(self) -> bool:
        return not self.entries and not self._unreplicated


# -- how batches change the state: judged before an append, replayed from the log when it is loaded


class ProducerUpdate(NamedTuple):
    """What an append will change, or the batch it repeats."""

    staged: dict[int, ProducerAppendInfo]
    completed: list[CompletedTxn]
    duplicate: BatchMetadata | None = None


def stage_batches(
    state: ProducerStateManager,
    buf: Buffer,
    batches: Sequence[CheckedBatch],
    origin: AppendOrigin,
    transaction_version: int = 0,
    verification: Verification | None = NOT_CHECKED,
) -> ProducerUpdate:
    """Judges the batches of one append, their offsets already assigned; raises the error for the producer's answer."""
    staged: dict[int, ProducerAppendInfo] = {}
    completed: list[CompletedTxn] = []
    for batch in batches:
        if batch.producer_id < 0:
            continue
        if origin is AppendOrigin.CLIENT and (duplicate := _duplicate_of(state, batch)) is not None:
            return ProducerUpdate({}, [], duplicate)
        if batch.is_transactional and not batch.is_control and origin is not AppendOrigin.REPLICATION:
            state.verifications.check(batch.producer_id, batch.producer_epoch, verification)
        producer = staged.get(batch.producer_id)
        if producer is None:
            producer = staged[batch.producer_id] = state.stage(batch.producer_id, origin)
        if batch.is_control:
            txn = _stage_marker(producer, BatchView(buf, batch.position), batch, transaction_version)
            if txn is not None:
                completed.append(txn)
        else:
            producer.append_data(
                batch.producer_epoch,
                batch.base_sequence,
                batch.last_delta,
                batch.base_offset,
                batch.max_timestamp,
                batch.is_transactional,
            )
        if batch.is_transactional and state.verifications:
            producer.is_verified |= state.verifications.is_over(
                batch.producer_id, batch.producer_epoch, batch.is_control
            )
    return ProducerUpdate(staged, completed)


def _duplicate_of(state: ProducerStateManager, batch: CheckedBatch) -> BatchMetadata | None:
    entry = state.entries.get(batch.producer_id)
    if entry is None:
        return None
    last_sequence = increment_sequence(batch.base_sequence, batch.last_delta)
    return entry.find_duplicate(batch.producer_epoch, batch.base_sequence, last_sequence)


def _stage_marker(
    producer: ProducerAppendInfo, view: BatchView, batch: CheckedBatch, transaction_version: int
) -> CompletedTxn | None:
    records = read_records(view)
    if not records:  # the cleaner has emptied the batch
        return None
    marker = parse_end_txn_marker(records[0])
    return producer.append_marker(
        marker, batch.producer_epoch, batch.base_offset, records[0].timestamp, transaction_version
    )


def checked(view: BatchView) -> CheckedBatch:
    """A batch that is already in a log, as an append sees it."""
    return CheckedBatch(
        view.pos,
        view.size_bytes,
        view.base_offset,
        view.partition_leader_epoch,
        view.attributes,
        view.last_offset_delta,
        view.max_timestamp,
        view.producer_id,
        view.producer_epoch,
        view.base_sequence,
    )


def replay_batch(state: ProducerStateManager, view: BatchView) -> list[CompletedTxn]:
    """Brings the state past one batch of the log; the transactions that end in it are already complete."""
    completed: list[CompletedTxn] = []
    if view.has_producer_id:
        update = stage_batches(state, view.buf, [checked(view)], AppendOrigin.REPLICATION)
        for producer in update.staged.values():
            state.apply(producer)
        completed = update.completed
    state.map_end_offset = view.next_offset
    return completed


def never_abort() -> None:
    """Nobody wants a long reading of a log to end early."""


def rebuild_producer_state(
    state: ProducerStateManager,
    segments: Sequence[LogSegment],
    log_start_offset: int,
    last_offset: int,
    now_ms: int,
    *,
    clean: bool = False,
    check: Callable[[], None] = never_abort,
) -> None:
    """Brings the state to exactly `last_offset`: the newest snapshot below, then the batches after it.

    `check`, called for every batch, may raise to end it.
    """
    bases = [segment.base_offset for segment in segments[-2:]]
    if clean and not state.snapshots:
        # A log written before there were snapshots: empty ones spare the next load a scan of everything.
        for offset in (*bases, last_offset):
            state.map_end_offset = offset
            state.take_snapshot()
        return
    state.truncate_and_reload(log_start_offset, last_offset, now_ms)
    if last_offset > state.map_end_offset:
        _replay_segments(state, segments, log_start_offset, last_offset, set(bases), check)
    state.map_end_offset = last_offset
    state.take_snapshot()


def _replay_segments(
    state: ProducerStateManager,
    segments: Iterable[LogSegment],
    log_start_offset: int,
    last_offset: int,
    snapshot_at: set[int],
    check: Callable[[], None],
) -> None:
    ordered = list(segments)
    ends = [segment.base_offset for segment in ordered[1:]] + [last_offset]
    for segment, end in zip(ordered, ends, strict=True):
        if end <= state.map_end_offset:
            continue
        if segment.base_offset >= last_offset:
            return
        start = max(segment.base_offset, state.map_end_offset, log_start_offset)
        state.map_end_offset = start
        if segment.base_offset in snapshot_at:
            state.take_snapshot()
        found = segment.locate(start)
        for _, view in segment.batches(found[0]) if found else ():
            if view.base_offset >= last_offset:
                return
            check()
            for txn in replay_batch(state, view):
                state.complete(txn)
