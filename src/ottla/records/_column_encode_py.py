"""The Python twin of the compiled column encoder: Arrow's buffers to records. See ottla.records.columns."""

import struct
from collections.abc import Sequence

from ottla.records._kernel_py import _put_varint
from ottla.records.column_types import AnyBuffer, BinColumn, HeaderColumn, RowColumns, RowSplit

_MAX_INT32 = 0x7FFFFFFF
_MAX_PARTITIONS = 1 << 20
_HEADER_SIZE = 61
_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_NULL = b"\x01"


def _bytes(buffer: AnyBuffer | None) -> memoryview:
    return memoryview(b"" if buffer is None else buffer).cast("B")


def _ints(buffer: AnyBuffer) -> memoryview:
    view = _bytes(buffer)
    if len(view) % 4:
        raise ValueError("a buffer of int32 has a multiple of 4 bytes")
    return view


def _int_at(view: memoryview, index: int) -> int:
    return int.from_bytes(view[4 * index : 4 * index + 4], "little", signed=True)


class _Validity:
    """A bitmap read from a bit offset on; none is all valid."""

    def __init__(self, buffer: AnyBuffer | None, offset: int, rows: int) -> None:
        self._bits = None if buffer is None else _bytes(buffer)
        self._offset = offset
        if self._bits is not None and (offset + rows + 7) // 8 > len(self._bits):
            raise ValueError(f"a validity bitmap of {len(self._bits)} bytes for {offset} + {rows} rows")

    def __getitem__(self, row: int) -> bool:
        bit = self._offset + row
        return self._bits is None or bool(self._bits[bit >> 3] >> (bit & 7) & 1)


def _require_extent(offset: int, rows: int) -> None:
    if not 0 <= offset <= _MAX_INT32 or not 0 <= rows <= _MAX_INT32:
        raise ValueError(f"a column of {rows} rows from the {offset}th on")


class _Offsets:
    """int32 offsets into something of `limit`, each pair checked when it is read."""

    def __init__(self, buffer: AnyBuffer | None, offset: int, rows: int, limit: int) -> None:
        self._view = _bytes(buffer)
        self._offset = offset
        self._limit = limit
        if rows and (offset + rows + 1) * 4 > len(self._view):
            raise ValueError(f"{len(self._view)} bytes of offsets for {offset} + {rows} rows")

    def __getitem__(self, row: int) -> tuple[int, int]:
        start = _int_at(self._view, self._offset + row)
        end = _int_at(self._view, self._offset + row + 1)
        if not 0 <= start <= end <= self._limit:
            raise ValueError(f"row {row} of a column lies at [{start}, {end}) of {self._limit}")
        return start, end


class _Bin:
    """A binary column, checked: [row] is its bytes or None."""

    def __init__(self, column: BinColumn) -> None:
        validity, offsets, data, offset, rows = column
        _require_extent(offset, rows)
        self.rows = rows
        self._data = _bytes(data)
        self._valid = _Validity(validity, offset, rows)
        self._offsets = _Offsets(offsets, offset, rows, len(self._data))

    def __getitem__(self, row: int) -> memoryview | None:
        if not self._valid[row]:
            return None
        start, end = self._offsets[row]
        return self._data[start:end]


class _Headers:
    """A column of headers, checked: [row] is them encoded, with their number in front."""

    def __init__(self, column: HeaderColumn) -> None:
        validity, offsets, offset, rows, item_validity, item_offset, items, key, value = column
        _require_extent(offset, rows)
        _require_extent(item_offset, items)
        self.rows = rows
        self._valid = _Validity(validity, offset, rows)
        self._offsets = _Offsets(offsets, offset, rows, items)
        self._item_valid = _Validity(item_validity, item_offset, items)
        self._key = _Bin(key)
        self._value = _Bin(value)
        if self._key.rows < items or self._value.rows < items:
            raise ValueError("the header columns have fewer rows than there are headers")

    def __getitem__(self, row: int) -> bytearray:
        start, end = self._offsets[row] if self._valid[row] else (0, 0)
        out = bytearray()
        _put_varint(out, end - start)
        for item in range(start, end):
            key = self._key[item] if self._item_valid[item] else None
            if key is None:
                raise ValueError(f"row {row} has a header without a key")
            _put_field(out, key)
            _put_field(out, self._value[item])
        return out


def _put_field(out: bytearray, data: memoryview | None) -> None:
    if data is None:
        out += _NULL
    else:
        _put_varint(out, len(data))
        out += data


def _murmur2(data: memoryview) -> int:
    length = len(data)
    h = _SEED ^ length
    words = length >> 2
    for k in struct.unpack_from(f"<{words}I", data):
        k = (k * _M) & _MASK
        k ^= k >> 24
        h = ((h * _M) & _MASK) ^ ((k * _M) & _MASK)
    if length & 3:
        h = ((h ^ int.from_bytes(data[words << 2 :], "little")) * _M) & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    return h ^ (h >> 15)


def _require_partitions(partitions: int) -> None:
    if not 1 <= partitions <= _MAX_PARTITIONS:
        raise ValueError(f"{partitions} partitions: 1 to {_MAX_PARTITIONS} are possible")


def _chosen(rows: AnyBuffer | None, total: int) -> Sequence[int]:
    """The row numbers of an index buffer, or all of them."""
    if rows is None:
        return range(total)
    view = _ints(rows)
    return [_int_at(view, index) for index in range(len(view) // 4)]


def _require_row(row: int, total: int) -> None:
    if not 0 <= row < total:
        raise ValueError(f"there is no row {row} among {total}")


def murmur2_partitions(key: BinColumn, rows: AnyBuffer | None, partitions: int, ids: AnyBuffer, /) -> int:
    _require_partitions(partitions)
    column = _Bin(key)
    if memoryview(ids).readonly:
        raise BufferError("the partition ids must be writable")
    out = _ints(ids)
    if len(out) != 4 * column.rows:
        raise ValueError(f"{len(out)} bytes of partition ids for {column.rows} rows")
    keyless = 0
    for row in _chosen(rows, column.rows):
        _require_row(row, column.rows)
        if _int_at(out, row) >= 0:
            continue
        data = column[row]
        partition = -1 if data is None else (_murmur2(data) & _MAX_INT32) % partitions
        keyless += data is None
        out[4 * row : 4 * row + 4] = partition.to_bytes(4, "little", signed=True)
    return keyless


def split_rows(ids: AnyBuffer, rows: AnyBuffer | None, partitions: int, keyless: int = -1, /) -> RowSplit:
    _require_partitions(partitions)
    if not -1 <= keyless < partitions:
        raise ValueError(f"{keyless} is not one of {partitions} partitions")
    view = _ints(ids)
    total = len(view) // 4
    found: list[list[int]] = [[] for _ in range(partitions)]
    for row in _chosen(rows, total):
        _require_row(row, total)
        partition = _int_at(view, row)
        partition = keyless if partition == -1 else partition
        if not 0 <= partition < partitions:
            raise ValueError(f"row {row} has partition {partition} of {partitions}")
        found[partition].append(row)
    order = bytearray()
    bounds = [0]
    for part in found:
        order += struct.pack(f"<{len(part)}i", *part)
        bounds.append(len(order) // 4)
    return RowSplit(bytes(order), tuple(bounds))


def encode_columns(
    columns: RowColumns, order: AnyBuffer | None, start: int, stop: int, max_bytes: int, /
) -> tuple[bytearray, int]:
    key_column, value_column, header_column = columns
    value = _Bin(value_column)
    key = None if key_column is None else _Bin(key_column)
    headers = None if header_column is None else _Headers(header_column)
    for other in (key, headers):
        if other is not None and other.rows != value.rows:
            raise ValueError("the columns have different numbers of rows")
    view = None if order is None else _ints(order)
    places = value.rows if view is None else len(view) // 4
    if not 0 <= start <= stop <= places:
        raise ValueError(f"range [{start}, {stop}) does not lie in {places} rows")
    limit = min(max_bytes, _MAX_INT32)
    out = bytearray(_HEADER_SIZE)
    for place in range(start, stop):
        row = place if view is None else _int_at(view, place)
        _require_row(row, value.rows)
        record = _record(place - start, row, key, value, headers)
        if len(out) + len(record) > limit and place > start:
            return out, place
        if len(out) + len(record) > _MAX_INT32:
            raise OverflowError("a record cannot be larger than 2^31 - 1 bytes")
        out += record
    return out, stop


def _record(delta: int, row: int, key: _Bin | None, value: _Bin, headers: _Headers | None) -> bytearray:
    body = bytearray(2)  # attributes and the timestamp's delta
    _put_varint(body, delta)
    _put_field(body, None if key is None else key[row])
    _put_field(body, value[row])
    body += b"\x00" if headers is None else headers[row]
    out = bytearray()
    _put_varint(out, len(body))
    return out + body
