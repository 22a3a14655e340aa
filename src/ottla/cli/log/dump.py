"""The lines of kafka-dump-log (DumpLogSegments): batches and records, or one JSON object a batch; indexes, snapshots.

Logs are read through a map, indexes and snapshots byte by byte rather than with the classes a broker uses, so that what
is wrong with them can be said. Nothing is written. Owned by the process that runs `ottla log dump`.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Any

from ottla.cli.log.decoders import compact, to_json
from ottla.model.errors import KafkaError
from ottla.records.batch import BatchView, batch_at
from ottla.records.compression import CODEC_NAMES
from ottla.records.control import ControlType, parse_control_type, parse_end_txn_marker
from ottla.records.record import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ottla.cli.log.decoders import Decoder
    from ottla.records.types import Record

TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
_SHORT = struct.Struct(">h")
_CONTROL_MESSAGES = {
    ControlType.LEADER_CHANGE: ("LeaderChange:", "LeaderChangeMessage"),
    ControlType.SNAPSHOT_HEADER: ("SnapshotHeader", "SnapshotHeaderRecord"),
    ControlType.SNAPSHOT_FOOTER: ("SnapshotFooter", "SnapshotFooterRecord"),
    ControlType.KRAFT_VERSION: ("KRaftVersion", "KRaftVersionRecord"),
    ControlType.KRAFT_VOTERS: ("KRaftVoters", "VotersRecord"),
}
OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
TXN_ENTRY = struct.Struct(">hqqqq")
_UINT32 = 0xFFFFFFFF


def mapped(path: Path) -> memoryview:
    """The bytes of a file, without reading what is not looked at; unmapped with the last view of them."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b"")


def walk(buf: memoryview) -> Iterator[BatchView | str]:
    """Whole batches in order; what ends the walk early comes last, as a sentence."""
    pos = 0
    while pos < len(buf):
        try:
            batch = batch_at(buf, pos, len(buf))
        except KafkaError as error:
            yield f"position {pos}: {error}"
            return
        if batch is None:
            return
        yield batch
        pos = batch.end


class BatchPrinter:
    """Prints one file's batches as Kafka's tool does, and counts what is wrong."""

    def __init__(self, *, deep: bool, contents: bool, metadata: bool, decoder: Decoder) -> None:
        self._deep = deep
        self._contents = contents
        self._metadata = metadata
        self._decoder = decoder
        self.gaps: list[tuple[int, int]] = []
        self.invalid = 0
        self.failure: KafkaError | None = None
        self._last_offset = -1

    def batch(self, batch: BatchView) -> None:
        """The batch's line and, deep, those of its records."""
        print(batch_line(batch))
        for record in self.records(batch):
            parts = self._content(record) if self._contents and not batch.is_control else []
            if self._metadata:
                parts.insert(0, record_line(batch, record))
            elif parts:
                parts.insert(0, "|")
            print(" ".join(parts))
        if self.failure is not None:
            print(f"| {self.failure}")

    def batch_json(self, batch: BatchView) -> None:
        """The same as one JSON object on a line."""
        document = batch_fields(batch)
        if self._deep:
            records = self.records(batch)
            document["records"] = [self._record_fields(batch, record) for record in records]
            if self.failure is not None:
                document["error"] = str(self.failure)
        print(compact(document))

    def records(self, batch: BatchView) -> list[Record]:
        """The records of a batch if they are wanted; offsets that do not follow each other are noted.

        `failure` is why there are none of a batch that cannot be read.
        """
        self.failure = None
        if not batch.crc_ok():
            self.invalid += 1
        if not self._deep:
            return []
        try:
            records = read_records(batch)
        except KafkaError as error:
            self.invalid += 1
            self.failure = error
            return []
        for record in records:
            if record.offset != self._last_offset + 1:
                self.gaps.append((self._last_offset, record.offset))
            self._last_offset = record.offset
        return records

    def _content(self, record: Record) -> list[str]:
        key, payload = self._decoder(record)
        parts = []
        if key is not None:
            parts.append(f"key: {key}")
        if payload is not None:
            parts.append(f"payload: {payload}")
        return parts

    def _record_fields(self, batch: BatchView, record: Record) -> dict[str, Any]:
        fields: dict[str, Any] = {"offset": record.offset, "timestamp": record.timestamp}
        fields["keySize"] = -1 if record.key is None else len(record.key)
        fields["valueSize"] = -1 if record.value is None else len(record.value)
        fields["sequence"] = record.sequence
        fields["headerKeys"] = [name for name, _ in record.headers]
        if batch.is_control:
            fields["control"] = control_text(record).strip()
        elif self._contents:
            fields["key"], fields["payload"] = self._decoder(record)
        return fields


def batch_line(batch: BatchView) -> str:
    """One batch on one line."""
    horizon = batch.delete_horizon_ms
    return (
        f"baseOffset: {batch.base_offset} lastOffset: {batch.last_offset} count: {batch.records_count} "
        f"baseSequence: {batch.base_sequence} lastSequence: {batch.last_sequence} "
        f"producerId: {batch.producer_id} producerEpoch: {batch.producer_epoch} "
        f"partitionLeaderEpoch: {batch.partition_leader_epoch} isTransactional: {_java(batch.is_transactional)} "
        f"isControl: {_java(batch.is_control)} "
        f"deleteHorizonMs: {'OptionalLong.empty' if horizon is None else f'OptionalLong[{horizon}]'} "
        f"position: {batch.pos} {TIMESTAMP_TYPES[batch.timestamp_type]}: {batch.max_timestamp} "
        f"size: {batch.size_bytes} magic: {batch.magic} compresscodec: {codec_name(batch)} "
        f"crc: {batch.crc} isvalid: {_java(batch.crc_ok())}"
    )


def batch_fields(batch: BatchView) -> dict[str, Any]:
    """One batch as JSON has it."""
    return {
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "count": batch.records_count,
        "baseSequence": batch.base_sequence,
        "lastSequence": batch.last_sequence,
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "partitionLeaderEpoch": batch.partition_leader_epoch,
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_control,
        "deleteHorizonMs": batch.delete_horizon_ms,
        "position": batch.pos,
        "timestampType": TIMESTAMP_TYPES[batch.timestamp_type],
        "maxTimestamp": batch.max_timestamp,
        "size": batch.size_bytes,
        "magic": batch.magic,
        "compressCodec": codec_name(batch),
        "crc": batch.crc,
        "isValid": batch.crc_ok(),
    }


def codec_name(batch: BatchView) -> str:
    """none, gzip, snappy, lz4 or zstd."""
    return CODEC_NAMES.get(batch.compression, f"unknown({batch.compression})")


def record_line(batch: BatchView, record: Record) -> str:
    """One record on one line, without its contents."""
    line = (
        f"| offset: {record.offset} {TIMESTAMP_TYPES[batch.timestamp_type]}: {record.timestamp} "
        f"keySize: {-1 if record.key is None else len(record.key)} "
        f"valueSize: {-1 if record.value is None else len(record.value)} "
        f"sequence: {record.sequence} headerKeys: [{','.join(name for name, _ in record.headers)}]"
    )
    return line + control_text(record) if batch.is_control else line


def control_text(record: Record) -> str:
    """What a control record says."""
    try:
        kind = parse_control_type(record)
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            marker = parse_end_txn_marker(record)
            return f" endTxnMarker: {kind.name} coordinatorEpoch: {marker.coordinator_epoch}"
        if kind in _CONTROL_MESSAGES:
            label, name = _CONTROL_MESSAGES[kind]
            return f" {label} {_control_json(name, record.value or b'')}"
    except KafkaError as error:
        return f" {error}"
    number = _SHORT.unpack_from(record.key or b"", 2)[0]
    return f" controlType: {kind.name}({number})"


def _control_json(name: str, raw: bytes) -> str:
    """Control messages carry their version in their first field."""
    from ottla.wire.codec import decode
    from ottla.wire.messages.logs import control as records_control

    cls = getattr(records_control, name)
    version = _SHORT.unpack_from(raw)[0] if len(raw) >= _SHORT.size else 0
    message, _ = decode(cls, raw, version)
    return compact(to_json(message, version))


def _java(value: bool) -> str:
    return "true" if value else "false"


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
            try:
                found = batch_at(log, position, len(log)) if 0 <= position < len(log) else None
            except KafkaError:
                found = None  # it points into the middle of a batch, or at a damaged one
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
        try:
            newest = max((record.timestamp for record in read_records(batch)), default=-1)
        except KafkaError:
            newest = -1
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
    from ottla.storage.producers.entry import read_snapshot

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
