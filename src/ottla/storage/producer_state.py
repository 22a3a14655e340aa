"""What a partition knows of its idempotent and transactional producers (KIP-98).

Which producers there are, which of their transactions are open or not yet replicated to the end, hence the last stable
offset.

Rules: an append is judged before it is written (StagedProducer, which touches nothing) and applied after.
Snapshots are taken on a roll, at a clean stop and after a recovery, and let a restart rebuild the state from the
newest one instead of from the whole log. Owned by its Log, on the event loop.
"""

import os
from pathlib import Path
from typing import Final

from ottla.model.ids import TopicPartition
from ottla.records.control import EndTxnMarker
from ottla.storage.append import AppendOrigin
from ottla.storage.files import DELETED_SUFFIX, SNAPSHOT_SUFFIX, file_name
from ottla.storage.producer_entry import CompletedTxn, ProducerEntry
from ottla.storage.producer_snapshot import (
    CorruptSnapshotError,
    SnapshotEntry,
    read_snapshot,
    write_snapshot,
)
from ottla.storage.staged_producer import StagedProducer
from ottla.storage.verification import NOT_CHECKED, Verification, Verifications

LATE_TRANSACTION_BUFFER_MS: Final = 5 * 60 * 1000


class ProducerState:
    """All producers of a partition, their transactions, and the snapshots on disk."""

    __slots__ = (
        "_dir",
        "_partition",
        "_unreplicated",
        "entries",
        "expiration_ms",
        "last_snapshot_offset",
        "map_end_offset",
        "max_transaction_timeout_ms",
        "ongoing",
        "snapshots",
        "verifications",
    )

    def __init__(
        self, partition: TopicPartition, dir: Path, *, expiration_ms: int, max_transaction_timeout_ms: int
    ) -> None:
        self._partition = partition
        self._dir = dir
        self.expiration_ms = expiration_ms
        self.max_transaction_timeout_ms = max_transaction_timeout_ms
        self.entries: dict[int, ProducerEntry] = {}
        self.ongoing: dict[int, int] = {}  # first offset -> producer id
        self._unreplicated: dict[int, int] = {}  # first offset -> last offset, of completed transactions
        self.verifications = Verifications(self.entries)
        self.map_end_offset = 0
        self.last_snapshot_offset = 0
        self.snapshots: list[int] = []

    # -- appends

    def expects(
        self,
        entry: ProducerEntry,
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

    def go_on_with_transaction(self, entry: ProducerEntry, offset: int) -> None:
        """A batch of a transaction is written at an offset: its first, if none was open."""
        self.verifications.forget(entry.producer_id)
        if entry.txn_first_offset < 0:
            entry.txn_first_offset = offset
            self.ongoing[offset] = entry.producer_id

    def end_transaction(
        self, entry: ProducerEntry, marker: EndTxnMarker, epoch: int, offset: int, timestamp: int
    ) -> CompletedTxn | None:
        """A marker is written at an offset; the transaction that it ends is still to be completed."""
        if self.verifications.is_over(entry.producer_id, epoch, is_control=True):
            self.verifications.forget(entry.producer_id)
        return entry.end_transaction(marker, epoch, offset, timestamp)

    def stage(self, producer_id: int, origin: AppendOrigin) -> StagedProducer:
        """A copy to judge an append on."""
        entry = self.entries.get(producer_id)
        copy = ProducerEntry(producer_id) if entry is None else entry.copy()
        return StagedProducer(self._partition, copy, origin, self.verifications.get(producer_id))

    def apply(self, staged: StagedProducer) -> None:
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

    def has_late_transaction(self, now_ms: int) -> bool:
        """Is a transaction open for longer than any coordinator would leave it (KIP-664)?"""
        if not self.ongoing:
            return False
        entry = self.entries.get(self.ongoing[min(self.ongoing)])
        limit_ms = self.max_transaction_timeout_ms + LATE_TRANSACTION_BUFFER_MS
        return entry is not None and entry.last_timestamp > 0 and now_ms - entry.last_timestamp > limit_ms

    # -- expiry and truncation

    def _expired(self, entry: ProducerEntry, now_ms: int) -> bool:
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
            entry = ProducerEntry.from_snapshot(snapshot)
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
