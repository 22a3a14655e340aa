"""What the log cleaner does to one batch: which keys it holds, which records stay, what is written instead.

Rules, as in Kafka: a filtered batch keeps its base offset, last offset, leader epoch and producer fields, so
that producer state can be rebuilt from it; the first cleaning that keeps a tombstone, or the marker of a
transaction of which nothing is left, writes the time at which these may go into the base timestamp (KIP-534).
Pure: files, transactions and time are the cleaner's.
"""

from typing import NamedTuple, Protocol

from ottla.model.ids import NO_TIMESTAMP
from ottla.records import batch as _batch
from ottla.records.batch import HEADER_SIZE, BatchView
from ottla.records.kernel import rebuild_records
from ottla.records.record import MAX_DECOMPRESSED_BYTES, batch_attributes, record_section, seal_batch
from ottla.records.types import Buffer


class NewestOffsets(Protocol):
    """What compaction asks of the cleaner's map; kernel.OffsetMap is one."""

    def put_records(
        self,
        buf: Buffer,
        start: int,
        end: int,
        count: int,
        base_offset: int,
        start_offset: int,
        max_entries: int,
        /,
    ) -> int: ...

    def retain_mask(
        self,
        buf: Buffer,
        start: int,
        end: int,
        count: int,
        base_offset: int,
        latest_offset: int,
        retain_deletes: bool,
        /,
    ) -> tuple[bytearray, int, bool]: ...


class Filtered(NamedTuple):
    """A batch after cleaning; `data` is None if nothing of it stays, the original bytes if all of it does."""

    data: bytearray | memoryview | None
    records_read: int
    records_retained: int
    max_timestamp: int


def collect_keys(
    offsets: NewestOffsets,
    batch: BatchView,
    *,
    start_offset: int,
    max_entries: int,
    max_size: int = MAX_DECOMPRESSED_BYTES,
) -> bool:
    """Note the newest offset of every key in a data batch; False once the map holds `max_entries`."""
    assert not batch.is_control, "control records have no keys to compact by"
    buf, start, end = record_section(batch, max_size)
    taken = offsets.put_records(
        buf, start, end, batch.records_count, batch.base_offset, start_offset, max_entries
    )
    return taken == batch.records_count


def filter_batch(
    batch: BatchView,
    offsets: NewestOffsets,
    *,
    latest_offset: int,
    now_ms: int,
    delete_retention_ms: int,
    discard: bool = False,
    retain_empty: bool = False,
    ends_empty_transaction: bool = False,
    max_size: int = MAX_DECOMPRESSED_BYTES,
) -> Filtered:
    """What stays of a batch.

    `latest_offset` is the highest the map knows of: later records stay. `discard`: no record stays (an
    aborted transaction, or a marker past its horizon). `retain_empty`: if no record stays, the header does,
    because it is the last of its producer or of the cleaning round. `ends_empty_transaction`: a marker that
    nothing needs any more except readers on their way, so that its horizon is set now.
    """
    if discard or batch.records_count == 0:
        return _without_records(batch, retain_empty)
    buf, start, end = record_section(batch, max_size)
    mask, retained, tombstones = _select(batch, buf, start, end, offsets, latest_offset, now_ms)
    if retained == 0:
        return _without_records(batch, retain_empty)
    set_horizon = (tombstones or ends_empty_transaction) and batch.delete_horizon_ms is None
    if retained == batch.records_count and not set_horizon:
        return Filtered(batch.raw(), batch.records_count, retained, batch.max_timestamp)
    horizon_ms = now_ms + delete_retention_ms if set_horizon else batch.delete_horizon_ms
    return _rebuild(batch, buf, start, end, mask, horizon_ms)


def empty_batch(batch: BatchView) -> bytearray:
    """The header alone: offsets, sequences and maximum timestamp of a batch whose records are all gone."""
    out = bytearray(HEADER_SIZE)
    _batch.write_header(
        out,
        base_offset=batch.base_offset,
        last_offset_delta=batch.last_offset_delta,
        attributes=batch_attributes(
            0, batch.timestamp_type, transactional=batch.is_transactional, control=batch.is_control
        ),
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=batch.max_timestamp,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        records_count=0,
        leader_epoch=batch.partition_leader_epoch,
    )
    return out


def _without_records(batch: BatchView, retain_empty: bool) -> Filtered:
    data = empty_batch(batch) if retain_empty else None
    return Filtered(data, batch.records_count, 0, batch.max_timestamp if retain_empty else NO_TIMESTAMP)


def _select(
    batch: BatchView,
    buf: Buffer,
    start: int,
    end: int,
    offsets: NewestOffsets,
    latest_offset: int,
    now_ms: int,
) -> tuple[Buffer, int, bool]:
    count = batch.records_count
    if batch.is_control:
        return b"\x01" * count, count, False
    horizon_ms = batch.delete_horizon_ms
    retain_deletes = horizon_ms is None or now_ms < horizon_ms
    return offsets.retain_mask(buf, start, end, count, batch.base_offset, latest_offset, retain_deletes)


def _rebuild(
    batch: BatchView, buf: Buffer, start: int, end: int, mask: Buffer, horizon_ms: int | None
) -> Filtered:
    append_time = batch.max_timestamp if batch.timestamp_type == _batch.LOG_APPEND_TIME else None
    section, base_timestamp, max_timestamp, retained = rebuild_records(
        buf, start, end, batch.records_count, mask, batch.base_timestamp, append_time, horizon_ms
    )
    data = seal_batch(
        bytearray(HEADER_SIZE) + section,
        base_offset=batch.base_offset,
        last_offset_delta=batch.last_offset_delta,
        compression=batch.compression,
        level=None,
        attributes=batch_attributes(
            batch.compression,
            batch.timestamp_type,
            transactional=batch.is_transactional,
            control=batch.is_control,
            delete_horizon=horizon_ms is not None,
        ),
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        records_count=retained,
        leader_epoch=batch.partition_leader_epoch,
    )
    return Filtered(data, batch.records_count, retained, max_timestamp)
