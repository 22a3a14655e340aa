"""A small log written segment by segment for the cleaner's tests, and a reader of what is left of it.

It does what a partition does as far as compaction can see: batches get offsets, transactions end in markers and
aborted ones in the transaction index, producers have a last record. It keeps the model beside the files: what a
reader of committed records must find.
"""

from dataclasses import dataclass, field
from pathlib import Path

from ottla.records.batch import BatchView
from ottla.records.control import ControlType, end_txn_marker, parse_control_type
from ottla.records.record import build_batch, read_records
from ottla.records.types import Record
from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.cleaner.job import CleanedGroup, CleaningJob, CleaningStats, SegmentSpec
from ottla.storage.config import LogConfig
from ottla.storage.files import CLEANED_SUFFIX, LOG_SUFFIX
from ottla.storage.segment.indexes import AbortedTransaction
from ottla.storage.segment.segment import LogSegment

CONFIG = LogConfig(index_interval_bytes=64)

Pair = tuple[bytes | None, bytes | None]


@dataclass
class OpenTxn:
    first_offset: int
    pairs: list[tuple[int, Pair]] = field(default_factory=list)


class CompactionLog:
    """Segments in a directory, the last one active."""

    def __init__(self, dir: Path) -> None:
        self.dir = dir
        self.now_ms = 1_000_000
        self.next_offset = 0
        self.clean_offset = 0
        self.segments = [LogSegment.create(dir, 0, CONFIG, self.now_ms)]
        self.open_txns: dict[int, OpenTxn] = {}
        self.sequences: dict[int, int] = {}
        self.last_records: dict[int, tuple[int, int]] = {}
        # The model: newest committed offset and value of each key.
        self.newest: dict[bytes, tuple[int, bytes | None]] = {}

    @property
    def active(self) -> LogSegment:
        return self.segments[-1]

    def roll(self) -> None:
        self.active.finish_indexes()
        self.segments.append(LogSegment.create(self.dir, self.next_offset, CONFIG, self.now_ms))

    def _append(self, data: bytearray) -> BatchView:
        batch = BatchView(data, 0)
        self.active.append(data, len(data), batch.last_offset, batch.max_timestamp)
        self.next_offset = batch.next_offset
        return batch

    def append(
        self, pairs: list[Pair], *, compression: int = 0, producer_id: int = -1, txn: bool = False
    ) -> None:
        base = self.next_offset
        sequence = self.sequences.get(producer_id, 0) if producer_id >= 0 else -1
        data = build_batch(
            [(self.now_ms, key, value, ()) for key, value in pairs],
            base_offset=base,
            compression=compression,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            transactional=txn,
            leader_epoch=0,
        )
        if producer_id >= 0:
            self.sequences[producer_id] = sequence + len(pairs)
            self.last_records[producer_id] = (base + len(pairs) - 1, 0)
        if txn:
            self.open_txns.setdefault(producer_id, OpenTxn(base)).pairs += enumerate(pairs, base)
        else:
            self._note(list(enumerate(pairs, base)))
        self._append(data)

    def _note(self, pairs: list[tuple[int, Pair]]) -> None:
        for offset, (key, value) in pairs:
            if key is not None and self.newest.get(key, (-1, None))[0] < offset:
                self.newest[key] = (offset, value)

    def end_txn(self, producer_id: int, committed: bool) -> None:
        txn = self.open_txns.pop(producer_id, None)
        marker = end_txn_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=self.now_ms,
            base_offset=self.next_offset,
            leader_epoch=0,
        )
        offset = self.next_offset
        self._append(marker)
        if producer_id not in self.last_records:
            self.last_records[producer_id] = (-1, 0)
        if txn is None:
            return
        if committed:
            self._note(txn.pairs)
        else:
            self.active.txn_index.append(
                AbortedTransaction(producer_id, txn.first_offset, offset, self.last_stable_offset)
            )

    @property
    def last_stable_offset(self) -> int:
        return min((txn.first_offset for txn in self.open_txns.values()), default=self.next_offset)

    def job(self, **changes: object) -> CleaningJob:
        bound = min(self.last_stable_offset, self.active.base_offset)
        bound = max(s.base_offset for s in self.segments if s.base_offset <= bound)
        values: dict[str, object] = {
            "dir": str(self.dir),
            "segments": tuple(
                SegmentSpec(s.base_offset, s.size_bytes) for s in self.segments if s.base_offset < bound
            ),
            "later_base_offsets": tuple(s.base_offset for s in self.segments if s.base_offset >= bound),
            "first_dirty_offset": min(self.clean_offset, bound),
            "first_uncleanable_offset": bound,
            "now_ms": self.now_ms,
            "segment_bytes": 1 << 20,
            "segment_index_bytes": 1 << 16,
            "index_interval_bytes": CONFIG.index_interval_bytes,
            "delete_retention_ms": 1_000,
            "last_records": dict(self.last_records),
            "map_bytes": 1 << 16,
            "map_load_factor": 0.9,
            "io_bytes_per_second": 1e300,
        }
        return CleaningJob(**{**values, **changes})  # type: ignore[arg-type]

    def clean(self, **changes: object) -> CleaningStats:
        job = self.job(**changes)
        stats = Cleaner(job, lambda: None).run(self.swap)
        self.clean_offset = stats.end_offset
        return stats

    def swap(self, group: CleanedGroup) -> None:
        replaced = [s for s in self.segments if s.base_offset in group.replaced]
        kept = [s for s in self.segments if s.base_offset not in group.replaced]
        for segment in replaced:
            segment.delete_files()
        new = LogSegment(
            self.dir,
            group.base_offset,
            CONFIG,
            size_bytes=group.size_bytes,
            now_ms=self.now_ms,
            suffix=CLEANED_SUFFIX,
        )
        new.change_suffix("")
        self.segments = sorted([*kept, new], key=lambda s: s.base_offset)

    # -- reading

    def batches(self) -> list[BatchView]:
        return read_log(self.dir)

    def records(self) -> list[Record]:
        return [r for batch in self.batches() if not batch.is_control for r in read_records(batch)]

    def committed(self) -> dict[bytes, tuple[int, bytes | None]]:
        return committed_view(self.batches(), set(self.open_txns))


def read_log(dir: Path) -> list[BatchView]:
    """Every batch of every segment file, in order."""
    found = []
    for path in sorted(dir.glob(f"*{LOG_SUFFIX}")):
        segment = LogSegment(
            dir, int(path.name.split(".")[0]), CONFIG, size_bytes=path.stat().st_size, now_ms=0
        )
        found += [batch for _, batch in segment.batches()]
    return found


def committed_view(batches: list[BatchView], still_open: set[int]) -> dict[bytes, tuple[int, bytes | None]]:
    """What a reader of committed records sees last of each key, going by the markers in the log alone."""
    pending: dict[int, list[Record]] = {}
    newest: dict[bytes, tuple[int, bytes | None]] = {}

    def note(records: list[Record]) -> None:
        for record in records:
            if record.key is not None and newest.get(record.key, (-1, None))[0] < record.offset:
                newest[record.key] = (record.offset, record.value)

    for batch in batches:
        if batch.is_control:
            records = read_records(batch)
            if records and parse_control_type(records[0]) is ControlType.COMMIT:
                note(pending.pop(batch.producer_id, []))
            elif records:
                pending.pop(batch.producer_id, None)
        elif batch.is_transactional:
            pending.setdefault(batch.producer_id, []).extend(read_records(batch))
        else:
            note(read_records(batch))
    undecided = {producer_id for producer_id, records in pending.items() if records}
    assert undecided <= still_open, f"data of producers {undecided - still_open} lost its marker"
    return newest
