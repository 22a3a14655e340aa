"""The Python twin of the compiled column code: records to Arrow's buffers, and back. See ottla.records.columns."""

import struct
from array import array
from collections.abc import Sequence

from ottla.records._kernel_py import (
    _HEADER,
    _HEADER_SIZE,
    _LOG_OVERHEAD,
    _field,
    _header_problem,
    _Parsed,
    _put_varint,
    _require_int64,
    _require_range,
    _walk,
    _wrap64,
    check_batch,
)
from ottla.records.column_types import (
    AnyBuffer,
    BinColumn,
    Columns,
    HeaderColumn,
    HeaderColumns,
    RowColumns,
    RowSplit,
)
from ottla.records.types import Buffer, InvalidRecordError, Problem

_MAX_INT32 = 0x7FFFFFFF
_MAX_INT64 = 0x7FFFFFFFFFFFFFFF
_CODEC, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_ROW_BYTES = 28
_MIN_RECORD_BYTES = 7
_MAX_PARTITIONS = 1 << 20
_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_NULL = b"\x01"


def _microseconds(timestamp: int) -> int:
    return max(-_MAX_INT64 - 1, min(timestamp * 1000, _MAX_INT64))


def _bitmap(valid: Sequence[int]) -> bytes:
    bits = bytearray((len(valid) + 7) // 8)
    for index, is_valid in enumerate(valid):
        bits[index >> 3] |= is_valid << (index & 7)
    return bytes(bits)


class _BinBuilder:
    """One binary column that grows."""

    __slots__ = ("data", "nulls", "offsets", "valid")

    def __init__(self) -> None:
        self.offsets = array("i", [0])
        self.data = bytearray()
        self.valid = bytearray()
        self.nulls = 0

    def add(self, value: Buffer | None) -> None:
        if value is not None:
            self.data += value
        self.offsets.append(len(self.data))
        self.valid.append(value is not None)
        self.nulls += value is None

    def cut(self, rows: int) -> None:
        del self.offsets[rows + 1 :]
        del self.data[self.offsets[-1] :]
        del self.valid[rows:]
        self.nulls = self.valid.count(0)

    def buffers(self) -> tuple[Buffer | None, Buffer, Buffer]:
        return _bitmap(self.valid) if self.nulls else None, self.offsets.tobytes(), bytes(self.data)


class _HeaderBuilder:
    """The list column of the headers."""

    __slots__ = ("key", "limit", "list_offsets", "valid", "value")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.list_offsets = array("i", [0])
        self.valid = bytearray()
        self.key = _BinBuilder()
        self.value = _BinBuilder()

    @property
    def total(self) -> int:
        return self.list_offsets[-1]

    def add(self, buf: Buffer, parsed: _Parsed) -> None:
        pos = parsed.headers_start
        for _ in range(parsed.headers_count):
            key_start, key_len, pos = _field(buf, pos, parsed.end)
            value_start, value_len, pos = _field(buf, pos, parsed.end)
            key = bytes(buf[key_start : key_start + key_len]).decode("utf-8", "replace").encode()
            if len(key) > self.limit - len(self.key.data):
                raise OverflowError("the columns are full: finish them first")
            self.key.add(key)
            self.value.add(None if value_len < 0 else buf[value_start : value_start + value_len])
        self.list_offsets.append(self.total + parsed.headers_count)
        self.valid.append(parsed.headers_count > 0)

    def cut(self, rows: int) -> None:
        del self.list_offsets[rows + 1 :]
        del self.valid[rows:]
        self.key.cut(self.total)
        self.value.cut(self.total)

    def finish(self) -> HeaderColumns:
        nulls = self.valid.count(0)
        _, key_offsets, key_data = self.key.buffers()
        return HeaderColumns(
            _bitmap(self.valid) if nulls else None,
            self.list_offsets.tobytes(),
            key_offsets,
            key_data,
            *self.value.buffers(),
            nulls,
            self.value.nulls,
            self.total,
        )


class ColumnBuilder:
    """Rows of records in the making."""

    __slots__ = ("_headers", "_key", "_limit", "_offsets", "_timestamps", "_types", "_value", "_with_headers")

    def __init__(self, with_headers: bool = False, max_data_bytes: int = _MAX_INT32) -> None:
        if not 0 <= max_data_bytes <= _MAX_INT32:
            raise ValueError("max_data_bytes is from 0 to 2^31 - 1")
        self._with_headers = bool(with_headers)
        self._limit = max_data_bytes
        self._clear()

    def _clear(self) -> None:
        self._key = _BinBuilder()
        self._value = _BinBuilder()
        self._offsets = array("q")
        self._timestamps = array("q")
        self._types = array("i")
        self._headers = _HeaderBuilder(self._limit) if self._with_headers else None

    @property
    def rows(self) -> int:
        return len(self._offsets)

    @property
    def size_bytes(self) -> int:
        total = self.rows * _ROW_BYTES + len(self._key.data) + len(self._value.data)
        if self._headers is not None:
            total += 4 * self.rows + 8 * self._headers.total
            total += len(self._headers.key.data) + len(self._headers.value.data)
        return total

    def add_records(
        self,
        buf: Buffer,
        start: int,
        end: int,
        count: int,
        base_offset: int,
        base_timestamp: int,
        log_append_time: int | None,
        first_offset: int,
        end_offset: int,
        /,
    ) -> int:
        for number in (base_offset, base_timestamp, first_offset, end_offset):
            _require_int64(number)
        _require_range(buf, start, end)
        self._require_room(end - start, count)
        before = self.rows
        try:
            for parsed in _walk(buf, start, end, count):
                offset = _wrap64(base_offset + parsed.offset_delta)
                if not first_offset <= offset < end_offset:
                    continue
                timestamp = _wrap64(base_timestamp + parsed.timestamp_delta)
                self._add(buf, parsed, offset, timestamp, log_append_time)
        except (InvalidRecordError, OverflowError):
            self._cut(before)
            raise
        return self.rows - before

    def _require_room(self, size: int, count: int) -> None:
        fullest = max(len(self._key.data), len(self._value.data))
        if self._headers is not None:
            fullest = max(fullest, len(self._headers.value.data))
        rows = self.rows + min(max(count, 0), size // _MIN_RECORD_BYTES)
        if size > self._limit - fullest or rows >= _MAX_INT32:
            raise OverflowError("the columns are full: finish them first")

    def _add(
        self, buf: Buffer, parsed: _Parsed, offset: int, timestamp: int, log_append_time: int | None
    ) -> None:
        key_start, key_len = parsed.key_start, parsed.key_len
        value_start, value_len = parsed.value_start, parsed.value_len
        self._key.add(None if key_len < 0 else buf[key_start : key_start + key_len])
        self._value.add(None if value_len < 0 else buf[value_start : value_start + value_len])
        self._offsets.append(offset)
        self._timestamps.append(_microseconds(timestamp if log_append_time is None else log_append_time))
        self._types.append(log_append_time is not None)
        if self._headers is not None:
            self._headers.add(buf, parsed)

    def _cut(self, rows: int) -> None:
        self._key.cut(rows)
        self._value.cut(rows)
        for numbers in (self._offsets, self._timestamps, self._types):
            del numbers[rows:]
        if self._headers is not None:
            self._headers.cut(rows)

    def add_batches(
        self,
        buf: Buffer,
        start: int,
        end: int,
        first_offset: int,
        end_offset: int,
        max_rows: int,
        max_bytes: int,
        check_crcs: bool = True,
        transactional: bool = False,
        /,
    ) -> int:
        for number in (first_offset, end_offset, max_rows, max_bytes):
            _require_int64(number)
        _require_range(buf, start, end)
        pos = start
        while pos < end and self.rows < max_rows and self.size_bytes < max_bytes:
            after = self._add_batch(buf, pos, end, first_offset, end_offset, check_crcs, transactional)
            if after == pos:
                break
            pos = after
        return pos

    def _add_batch(
        self,
        buf: Buffer,
        pos: int,
        end: int,
        first_offset: int,
        end_offset: int,
        check_crcs: bool,
        transactional: bool,
    ) -> int:
        """Where the next batch begins, or `pos` if this one is not for here."""
        if _header_problem(buf, pos, end) != Problem.NONE:
            return pos
        header = _HEADER.unpack_from(buf, pos)
        base_offset, attributes, last_offset_delta = header[0], header[5], header[6]
        stop: int = pos + _LOG_OVERHEAD + header[1]
        if attributes & (_TRANSACTIONAL | _CONTROL) and not transactional:
            return pos
        if attributes & _CONTROL or not self._is_in_range(
            base_offset, last_offset_delta, first_offset, end_offset
        ):
            return stop
        if attributes & _CODEC:
            return pos
        if check_crcs and check_batch(buf, pos, stop, False)[13] == Problem.BAD_CRC:
            return pos
        append_time = header[8] if attributes & _LOG_APPEND_TIME else None
        try:
            self.add_records(
                buf,
                pos + _HEADER_SIZE,
                stop,
                header[12],
                base_offset,
                header[7],
                append_time,
                first_offset,
                end_offset,
            )
        except (InvalidRecordError, OverflowError):
            return pos
        return stop

    @staticmethod
    def _is_in_range(base_offset: int, last_offset_delta: int, first_offset: int, end_offset: int) -> bool:
        return base_offset < end_offset and _wrap64(base_offset + last_offset_delta) >= first_offset

    def finish(self) -> Columns:
        key, value = self._key, self._value
        columns = Columns(
            self.rows,
            *key.buffers(),
            *value.buffers(),
            self._offsets.tobytes(),
            self._timestamps.tobytes(),
            self._types.tobytes(),
            key.nulls,
            value.nulls,
            None if self._headers is None else self._headers.finish(),
        )
        self._clear()
        return columns


# -- Arrow's buffers to records


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
