"""Records as columns: Arrow's buffers to records and back, with no Python object for a record on the way.

Buffers only: Arrow itself is never imported here; pyarrow.py_buffer takes what is read without a copy, and
pyarrow's buffers are taken as they are. Compiled where the record kernel is (ottla.records.kernel.KERNEL),
else its twin; the same answers and errors. Input of 512 KB and more is worked on without the GIL: the caller
keeps it unchanged meanwhile. Offsets and lengths are never trusted: ValueError for those of a column that
leave its buffers or are not in order, before anything is read there. Numbers in buffers are little-endian.

Reading
-------
ColumnBuilder(with_headers=False, max_data_bytes=2**31 - 1)       one thread at a time
    .add_records(buf, start, end, count, base_offset, base_timestamp, log_append_time, first_offset, end_offset)
        -> rows kept, of one plain record section (what follows the 61-byte header): those with
        first_offset <= offset < end_offset. `log_append_time` is None, or the batch's maximum timestamp if
        its type is LogAppendTime. InvalidRecordError if the structure is broken; OverflowError if the data
        held and the section together could pass `max_data_bytes` in a column (int32 offsets end there):
        finish first. After an error the builder holds what it held before.
    .add_batches(buf, start, end, first_offset, end_offset, max_rows, max_bytes, check_crcs=True,
                 transactional=False) -> position
        Takes whole plain batches one after another, until `rows` >= max_rows or `size_bytes` >= max_bytes
        (looked at between batches), and returns where it stopped: `end`, or where the first batch begins
        that it did not take. Batches wholly outside of [first_offset, end_offset) are passed over. It stops
        before a compressed batch, and before whatever is wrong (cut short, magic, CRC, records, overflow):
        go on there with batch_at and add_records, which name the problem. It stops before a transactional
        or control batch too unless `transactional`, which says that no transaction among these was aborted
        or that it does not matter: then the one is taken and the other passed over.
    .rows, .size_bytes      what it holds now (size_bytes: 28 a row, the data, 4 a row and 8 a header)
    .finish() -> Columns    and starts anew
Columns: rows, key_validity, key_offsets, key_data, value_validity, value_offsets, value_data, offsets,
    timestamps, timestamp_types, nulls_key, nulls_value, headers. Validity bitmaps are None where nothing is
    null; *_offsets are int32, rows + 1 of them; `offsets` (the records') int64; `timestamps` int64
    microseconds (the nearest that fits, for absurd ones); `timestamp_types` int32 (0 the producer's, 1 the
    broker's). `headers` is None without with_headers, else HeaderColumns: list_validity, list_offsets,
    key_offsets, key_data, value_validity, value_offsets, value_data, nulls_list, nulls_value, total. A record
    without headers has a null list; keys that are not UTF-8 are mended with U+FFFD as decode_records does.

    binary = pa.Array.from_buffers(pa.binary(), c.rows, [c.key_validity, c.key_offsets, c.key_data], c.nulls_key)
    (each buffer through pa.py_buffer, None stays None)

Writing
-------
binary_column(array) -> BinColumn, header_column(array) -> HeaderColumn    a pyarrow array, sliced or not
row_columns(key, value, headers) -> RowColumns                             of arrays (key and headers may be None)
no_partitions(rows) -> bytearray                                           int32 -1 for each row
murmur2_partitions(key, rows, partitions, ids) -> int
    For each row (`rows`: an int32 buffer of row numbers, None for all) whose entry in `ids` (writable int32, one
    a row of the column) is negative: toPositive(murmur2(key)) % partitions, Java's choice; a null key leaves
    -1. Entries >= 0 (a partition that the row itself asked for) are left alone. Returns how many stay at -1.
split_rows(ids, rows, partitions, keyless=-1) -> RowSplit(order, bounds)
    Row numbers by partition, in their order: those of p are `order` (int32) from bounds[p] to bounds[p + 1].
    A row whose id is -1 goes to `keyless`; ValueError for an id that is no partition.
encode_columns(columns, order, start, stop, max_bytes) -> (section, next)
    Records of the rows at order[start:stop] (order None: the rows start..stop themselves) into one bytearray
    after 61 free bytes, offset deltas 0, 1, ..., timestamp deltas 0; up to `max_bytes` (the 61 counted in),
    but at least one record: it is for the caller to refuse a section that is longer. `next` is the place in
    `order` to go on from, so the section holds next - start records.
prepare_batch(section, count, timestamp, *, compression=0, level=None, transactional=False) -> bytearray
    The batch but for what is known only when it is sent (plain: the very `section`, its header filled in);
    batch.stamp_batch fills that in, and the CRC last.

    split = split_rows(ids, None, partitions, keyless=sticky)
    for p in range(partitions):
        start, stop = split.bounds[p], split.bounds[p + 1]
        while start < stop:
            section, after = encode_columns(columns, split.order, start, stop, 1 << 20)
            batch = prepare_batch(section, after - start, now_ms, compression=LZ4, transactional=True)
            start = after

Owned by nobody at run time; a ColumnBuilder by the one reader that made it.
"""

from typing import TYPE_CHECKING, Any, Final

from ottla.model.ids import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from ottla.records.batch import BATCH_HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC
from ottla.records.column_types import BinColumn, Columns, HeaderColumn, HeaderColumns, RowColumns, RowSplit
from ottla.records.compression import NONE, compress
from ottla.records.kernel import KERNEL
from ottla.records.record import batch_attributes

if TYPE_CHECKING or KERNEL == "python":
    from ottla.records import _columns_py as _impl
    from ottla.records._columns_py import ColumnBuilder
else:
    from ottla.records import _kernel as _impl
    from ottla.records._kernel import ColumnBuilder

encode_columns = _impl.encode_columns
murmur2_partitions = _impl.murmur2_partitions
split_rows = _impl.split_rows

__all__ = [
    "BinColumn",
    "ColumnBuilder",
    "Columns",
    "HeaderColumn",
    "HeaderColumns",
    "RowColumns",
    "RowSplit",
    "binary_column",
    "encode_columns",
    "header_column",
    "murmur2_partitions",
    "no_partitions",
    "prepare_batch",
    "row_columns",
    "split_rows",
]

_NO_PARTITION: Final = b"\xff\xff\xff\xff"


def binary_column(array: Any) -> BinColumn:
    """The buffers of a pyarrow array of binary or string."""
    kind = str(array.type)
    if kind not in ("binary", "string"):
        raise TypeError(f"a column of Arrow type {kind}: binary or string is required")
    validity, offsets, data = array.buffers()
    return BinColumn(validity, offsets, data, array.offset, len(array))


def header_column(array: Any) -> HeaderColumn:
    """The buffers of a pyarrow array of list<struct<key: string, value: binary>>."""
    kind = str(array.type)
    if not kind.startswith("list<") or not str(array.type.value_type).startswith("struct<"):
        raise TypeError(f"headers of Arrow type {kind}: list<struct<key: string, value: binary>> is required")
    items = array.values  # all of them: the list's own offset does not count here
    key, value = (_header_field(items, name, kind) for name in ("key", "value"))
    validity, offsets = array.buffers()[:2]
    return HeaderColumn(
        validity, offsets, array.offset, len(array), items.buffers()[0], items.offset, len(items), key, value
    )


def _header_field(items: Any, name: str, kind: str) -> BinColumn:
    index = items.type.get_field_index(name)
    if index < 0:
        raise TypeError(f"headers of Arrow type {kind} have no single field {name!r}")
    return binary_column(items.field(index))


def row_columns(key: Any | None, value: Any, headers: Any | None = None) -> RowColumns:
    """The columns of a pyarrow record batch that become records."""
    return RowColumns(
        None if key is None else binary_column(key),
        binary_column(value),
        None if headers is None else header_column(headers),
    )


def no_partitions(rows: int) -> bytearray:
    """As many ids as there are rows, none of them chosen yet."""
    return bytearray(_NO_PARTITION * rows)


def prepare_batch(
    section: bytearray,
    count: int,
    timestamp: int,
    *,
    compression: int = NONE,
    level: int | None = None,
    transactional: bool = False,
) -> bytearray:
    """A batch of an encoded section, lacking its producer, its sequence and its CRC."""
    assert count > 0, "a batch holds at least one record"
    assert len(section) > HEADER_SIZE, "the section has room for a header in front"
    out = section
    if compression != NONE:
        out = bytearray(HEADER_SIZE)
        out += compress(compression, memoryview(section)[HEADER_SIZE:], level)
    BATCH_HEADER.pack_into(
        out,
        0,
        0,
        len(out) - LOG_OVERHEAD,
        NO_LEADER_EPOCH,
        MAGIC,
        0,
        batch_attributes(compression, transactional=transactional),
        count - 1,
        timestamp,
        timestamp,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        count,
    )
    return out
