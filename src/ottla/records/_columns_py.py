"""The Python twin of the compiled ColumnBuilder: records to Arrow's buffers. See ottla.records.columns."""

from array import array
from collections.abc import Sequence

from ottla.records._kernel_py import (
    _HEADER,
    _HEADER_SIZE,
    _LOG_OVERHEAD,
    _field,
    _header_problem,
    _Parsed,
    _require_int64,
    _require_range,
    _walk,
    _wrap64,
    check_batch,
)
from ottla.records.column_types import Columns, HeaderColumns
from ottla.records.types import Buffer, InvalidRecordError, Problem

_MAX_INT32 = 0x7FFFFFFF
_MAX_INT64 = 0x7FFFFFFFFFFFFFFF
_CODEC, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
_ROW_BYTES = 28
_MIN_RECORD_BYTES = 7


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
