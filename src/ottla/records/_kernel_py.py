"""The Python twin of the compiled record kernel: the same functions, answers and errors, only slower.

It is what runs where no compiler was found, and what the compiled one is compared with in the tests.
The functions are documented in ottla.records.kernel. Integers wrap at 64 bits as Java's do, so that both
kernels agree on hostile deltas.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from crc32c import crc32c as _crc32c

from ottla.records.types import (
    OFFSET_MAP_ENTRY_BYTES,
    OFFSET_MAP_SECRET_BYTES,
    Buffer,
    Headers,
    InvalidRecordError,
    NewRecord,
    Problem,
    Record,
)

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">i")
# Base offset, length, then past epoch, magic, checksum and attributes to the last offset delta.
_WALK = struct.Struct(">qi11xi")
_HEADER_SIZE = 61
_LOG_OVERHEAD = 12
_CRC_START = 21
_SIZE_UP_TO_MAGIC = 17
_MIN_LEGACY_LENGTH = 14
_MIN_LENGTH = _HEADER_SIZE - _LOG_OVERHEAD
_NO_TIMESTAMP = -1
_MAX_INT32 = 0x7FFFFFFF
_NO_HEADER = (0,) * 13
# As plain ints: an enumeration's members are slow to test where it is done for every record.
_NO_KEY = int(Problem.NO_KEY)
_OFFSET_DELTA = int(Problem.OFFSET_DELTA)
_BAD_TIMESTAMP = int(Problem.BAD_TIMESTAMP)
_MAX_NAMED = 1000

BatchCheck = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int]


def crc32c(data: Buffer, value: int = 0, /) -> int:
    return _crc32c(data, value)


def _wrap64(value: int) -> int:
    if -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
        return value
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


class _Malformed(Exception):
    def __init__(self, problem: Problem) -> None:
        self.problem = problem


def _raw_varint(buf: Buffer, pos: int, end: int, max_bytes: int) -> tuple[int, int]:
    raw = shift = 0
    for _ in range(max_bytes):
        if pos >= end:
            break
        byte = buf[pos]
        pos += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw, pos
        shift += 7
    raise _Malformed(Problem.BAD_VARINT)


def _varint(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """A zigzag int32 of at most five bytes; bits beyond the 32nd are dropped, as Java drops them."""
    if pos < end and (byte := buf[pos]) < 0x80:  # nearly always
        return (byte >> 1) ^ -(byte & 1), pos + 1
    raw, pos = _raw_varint(buf, pos, end, 5)
    raw &= 0xFFFFFFFF
    return (raw >> 1) ^ -(raw & 1), pos


def _varlong(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    if pos < end and (byte := buf[pos]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    raw, pos = _raw_varint(buf, pos, end, 10)
    raw &= 0xFFFFFFFFFFFFFFFF
    return (raw >> 1) ^ -(raw & 1), pos


def _field(buf: Buffer, pos: int, end: int) -> tuple[int, int, int]:
    """A nullable, length-prefixed field: (start, length or -1, position after it)."""
    length, pos = _varint(buf, pos, end)
    if length < 0:
        return pos, -1, pos
    if length > end - pos:
        raise _Malformed(Problem.FIELD_PAST_END)
    return pos, length, pos + length


def _skip_headers(buf: Buffer, pos: int, end: int, count: int) -> int:
    if count < 0 or count > end - pos:
        raise _Malformed(Problem.BAD_HEADERS)
    for _ in range(count):
        _, key_len, pos = _field(buf, pos, end)
        if key_len < 0:
            raise _Malformed(Problem.BAD_HEADERS)
        _, _, pos = _field(buf, pos, end)
    return pos


class _Parsed(NamedTuple):
    start: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key_field: int  # where the length of the key is
    key_start: int
    key_len: int
    value_start: int
    value_len: int
    headers_start: int
    headers_count: int


_new_parsed = tuple.__new__  # half the time of the class's own constructor


def _parse(buf: Buffer, start: int, limit: int) -> _Parsed:
    size, pos = _varint(buf, start, limit)
    if size < 0 or size > limit - pos:
        raise _Malformed(Problem.BAD_RECORD_SIZE)
    end = pos + size
    if size == 0:
        raise _Malformed(Problem.FIELD_PAST_END)
    timestamp_delta, pos = _varlong(buf, pos + 1, end)  # one byte of attributes, which means nothing yet
    offset_delta, key_field = _varint(buf, pos, end)
    key_start, key_len, pos = _field(buf, key_field, end)
    value_start, value_len, pos = _field(buf, pos, end)
    headers_count, headers_start = _varint(buf, pos, end)
    stop = _skip_headers(buf, headers_start, end, headers_count) if headers_count else headers_start
    if stop != end:
        raise _Malformed(Problem.SIZE_MISMATCH)
    return _new_parsed(
        _Parsed,
        (
            start,
            end,
            timestamp_delta,
            offset_delta,
            key_field,
            key_start,
            key_len,
            value_start,
            value_len,
            headers_start,
            headers_count,
        ),
    )


def _require_range(buf: Buffer, start: int, end: int) -> None:
    if not 0 <= start <= end <= len(buf):
        raise ValueError(f"range [{start}, {end}) does not lie in a buffer of {len(buf)} bytes")


def _walk(buf: Buffer, start: int, end: int, count: int) -> Iterator[_Parsed]:
    """Every record of a section; InvalidRecordError where its structure breaks."""
    _require_range(buf, start, end)
    if count < 0:
        raise InvalidRecordError(Problem.NEGATIVE_COUNT, 0)
    pos = start
    for index in range(count):
        if pos == end:
            raise InvalidRecordError(Problem.TOO_FEW_RECORDS, index)
        try:
            parsed = _parse(buf, pos, end)
        except _Malformed as error:
            raise InvalidRecordError(error.problem, index) from None
        yield parsed
        pos = parsed.end
    if pos != end:
        raise InvalidRecordError(Problem.TRAILING_BYTES, count)


def _record_problem(parsed: _Parsed, index: int, require_key: bool) -> int:
    if require_key and parsed.key_len < 0:
        return _NO_KEY
    return 0 if parsed.offset_delta == index else _OFFSET_DELTA


def whole_batches(buf: Buffer, start: int, end: int, end_offset: int, /) -> tuple[int, int]:
    _require_int64(end_offset)
    _require_range(buf, start, end)
    position, next_offset = start, -1
    while end - position >= _HEADER_SIZE:
        base_offset, length, last_offset_delta = _WALK.unpack_from(buf, position)
        stop = position + _LOG_OVERHEAD + length
        if length < _MIN_LENGTH or stop > end:
            break
        if base_offset >= end_offset:
            return position, end_offset
        next_offset = base_offset + last_offset_delta + 1
        position = stop
    return position, _wrap64(next_offset)


def summarize_records(
    buf: Buffer,
    start: int,
    end: int,
    count: int,
    base_timestamp: int,
    require_key: bool,
    numbered: bool = False,
    /,
) -> tuple[int, int, int, int]:
    found, found_index = 0, -1
    lowest = highest = _NO_TIMESTAMP
    try:
        for index, parsed in enumerate(_walk(buf, start, end, count)):
            timestamp = _wrap64(base_timestamp + parsed.timestamp_delta)
            if timestamp != _NO_TIMESTAMP:
                if timestamp < lowest or lowest == _NO_TIMESTAMP:
                    lowest = timestamp
                if timestamp > highest:
                    highest = timestamp
            problem = _record_problem(parsed, index, require_key)
            if not problem:
                continue
            if numbered and parsed.offset_delta != index:
                return _OFFSET_DELTA, index, lowest, highest
            # A missing key outranks a wrong delta: it is the one Kafka names.
            if found == 0 or (problem == _NO_KEY != found):
                found, found_index = problem, index
    except InvalidRecordError as error:
        found, found_index = int(error.problem), error.index
    return found, found_index, lowest, highest


def judge_records(
    buf: Buffer,
    start: int,
    end: int,
    count: int,
    require_key: bool,
    base_timestamp: int,
    log_append_time: int | None,
    earliest: int,
    latest: int,
    limit: int,
    /,
) -> tuple[int, int, list[tuple[int, int, int]]]:
    if not 0 <= limit <= _MAX_NAMED:
        raise ValueError(f"0 to {_MAX_NAMED} records can be named, not {limit}")
    refused = late = 0
    named: list[tuple[int, int, int]] = []
    for index, parsed in enumerate(_walk(buf, start, end, count)):
        timestamp = (
            _wrap64(base_timestamp + parsed.timestamp_delta) if log_append_time is None else log_append_time
        )
        if require_key and parsed.key_len < 0:
            problem = _NO_KEY
        elif timestamp != _NO_TIMESTAMP and not earliest <= timestamp <= latest:
            problem = _BAD_TIMESTAMP
            late += 1
        else:
            continue
        if refused < limit:
            named.append((index, problem, timestamp))
        refused += 1
    return refused, late, named


def find_timestamp(
    buf: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    log_append_time: int | None,
    timestamp: int,
    start_offset: int,
    /,
) -> tuple[int, int] | None:
    for parsed in _walk(buf, start, end, count):
        found = (
            _wrap64(base_timestamp + parsed.timestamp_delta) if log_append_time is None else log_append_time
        )
        offset = _wrap64(base_offset + parsed.offset_delta)
        if found >= timestamp and offset >= start_offset:
            return offset, found
    return None


def _header_problem(buf: Buffer, start: int, end: int) -> Problem:
    left = end - start
    if left < _SIZE_UP_TO_MAGIC:
        return Problem.TORN
    (length,) = _LENGTH.unpack_from(buf, start + 8)
    magic = buf[start + 16]
    if length < _MIN_LEGACY_LENGTH:
        return Problem.BAD_LENGTH
    if magic != 2:
        return Problem.OLD_MAGIC if magic in (0, 1) else Problem.UNKNOWN_MAGIC
    if length < _MIN_LENGTH:
        return Problem.BAD_LENGTH
    return Problem.TORN if left < _LOG_OVERHEAD + length else Problem.NONE


def check_batch(
    buf: Buffer, start: int, end: int, require_key: bool, without_records: bool = False, /
) -> BatchCheck:
    _require_range(buf, start, end)
    header = _HEADER.unpack_from(buf, start) if end - start >= _HEADER_SIZE else _NO_HEADER
    problem: int = _header_problem(buf, start, end)
    lowest = highest = _NO_TIMESTAMP
    if problem == Problem.NONE:
        stop = start + _LOG_OVERHEAD + header[1]
        if crc32c(memoryview(buf)[start + _CRC_START : stop]) != header[4]:
            problem = Problem.BAD_CRC
        elif header[5] & 0x07 == 0 and not without_records:
            problem, lowest, highest = _check_plain_records(
                buf, start + _HEADER_SIZE, stop, header, require_key
            )
        else:
            highest = header[8]
    return (*header, int(problem), lowest, highest)


def _check_plain_records(
    buf: Buffer, start: int, stop: int, header: tuple[Any, ...], require_key: bool
) -> tuple[int, int, int]:
    problem, _, lowest, highest = summarize_records(buf, start, stop, header[12], header[7], require_key)
    if header[5] & 0x08:  # LogAppendTime: one timestamp for all
        lowest = highest = header[8]
    return problem, lowest, highest


def _slice(buf: Buffer, start: int, length: int) -> bytes | None:
    return None if length < 0 else bytes(buf[start : start + length])


def _read_headers(buf: Buffer, parsed: _Parsed) -> Headers:
    headers = []
    pos = parsed.headers_start
    for _ in range(parsed.headers_count):
        key_start, key_len, pos = _field(buf, pos, parsed.end)
        value_start, value_len, pos = _field(buf, pos, parsed.end)
        key = bytes(buf[key_start : key_start + key_len]).decode("utf-8", "replace")
        headers.append((key, _slice(buf, value_start, value_len)))
    return tuple(headers)


def _sequence(base_sequence: int, offset_delta: int) -> int:
    if base_sequence < 0:
        return -1
    total = base_sequence + offset_delta
    return total - _MAX_INT32 - 1 if total > _MAX_INT32 else total


def decode_records(
    buf: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    base_sequence: int = -1,
    log_append_time: int | None = None,
    /,
) -> list[Record]:
    _require_int32(base_sequence)
    records = []
    for p in _walk(buf, start, end, count):
        timestamp = (
            _wrap64(base_timestamp + p.timestamp_delta) if log_append_time is None else log_append_time
        )
        records.append(
            Record(
                _wrap64(base_offset + p.offset_delta),
                timestamp,
                _slice(buf, p.key_start, p.key_len),
                _slice(buf, p.value_start, p.value_len),
                _read_headers(buf, p) if p.headers_count else (),
                _sequence(base_sequence, p.offset_delta),
            )
        )
    return records


def _put_varint(out: bytearray, value: int) -> None:
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)


def _require_int(value: int, low: int, high: int) -> int:
    if not isinstance(value, int):
        raise TypeError(f"an integer is required, not {type(value).__name__}")
    if not low <= value <= high:
        raise OverflowError(f"{value} does not fit its field")
    return value


def _require_int32(value: int) -> int:
    return _require_int(value, -0x80000000, _MAX_INT32)


def _require_int64(value: int) -> int:
    return _require_int(value, -(1 << 63), (1 << 63) - 1)


def _put_field(out: bytearray, data: Buffer | None) -> None:
    if data is None:
        out.append(1)  # -1
        return
    if not isinstance(data, bytes):
        data = memoryview(data).cast("B")
    _put_varint(out, len(data))
    out += data


def _put_headers(out: bytearray, headers: Sequence[tuple[str | bytes, Buffer | None]]) -> None:
    _put_varint(out, len(headers))
    for key, value in headers:
        if not isinstance(key, str | bytes):
            raise TypeError(f"a header's key is str or bytes, not {type(key).__name__}")
        _put_field(out, key.encode() if isinstance(key, str) else key)
        _put_field(out, value)


def _put_record(
    out: bytearray,
    offset_delta: int,
    timestamp_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Sequence[tuple[str | bytes, Buffer | None]],
) -> None:
    body = bytearray(1)
    _put_varint(body, timestamp_delta)
    _put_varint(body, offset_delta)
    _put_field(body, key)
    _put_field(body, value)
    _put_headers(body, headers)
    if len(body) > _MAX_INT32:
        raise OverflowError("a record cannot be larger than 2^31 - 1 bytes")
    _put_varint(out, len(body))
    out += body


def encode_records(
    records: Sequence[NewRecord],
    base_timestamp: int,
    offset_deltas: Sequence[int] | None = None,
    reserve_bytes: int = 0,
    /,
) -> tuple[bytearray, int]:
    if offset_deltas is not None and len(offset_deltas) != len(records):
        raise ValueError("one offset delta for each record is required")
    _require_int64(base_timestamp)
    out = bytearray(reserve_bytes)
    highest = _NO_TIMESTAMP
    for index, (timestamp, key, value, headers) in enumerate(records):
        delta = index if offset_deltas is None else _require_int32(offset_deltas[index])
        highest = max(highest, _require_int64(timestamp))
        _put_record(out, delta, _wrap64(timestamp - base_timestamp), key, value, headers)
    return out, highest


def rebuild_records(
    buf: Buffer,
    start: int,
    end: int,
    count: int,
    mask: Buffer,
    base_timestamp: int,
    log_append_time: int | None = None,
    new_base_timestamp: int | None = None,
    /,
) -> tuple[bytearray, int, int, int]:
    if len(mask) != max(count, 0):
        raise ValueError("one byte of the mask for each record is required")
    out = bytearray()
    highest, retained = _NO_TIMESTAMP, 0
    for index, p in enumerate(_walk(buf, start, end, count)):
        if not mask[index]:
            continue
        timestamp = (
            _wrap64(base_timestamp + p.timestamp_delta) if log_append_time is None else log_append_time
        )
        if new_base_timestamp is None:
            new_base_timestamp = timestamp
        body = bytearray(1)
        _put_varint(body, _wrap64(timestamp - new_base_timestamp))
        _put_varint(body, p.offset_delta)
        body += buf[p.key_field : p.end]
        _put_varint(out, len(body))
        out += body
        highest = max(highest, timestamp)
        retained += 1
    return out, _NO_TIMESTAMP if new_base_timestamp is None else new_base_timestamp, highest, retained


def renumber_records(buf: Buffer, start: int, end: int, count: int, reserve_bytes: int = 0, /) -> bytearray:
    out = bytearray(reserve_bytes)
    for index, p in enumerate(_walk(buf, start, end, count)):
        body = bytearray(1)
        _put_varint(body, p.timestamp_delta)
        _put_varint(body, index)
        body += buf[p.key_field : p.end]
        _put_varint(out, len(body))
        out += body
    return out


class OffsetMap:
    """For each key that the cleaner met, the newest offset it has.

    Keys are kept as 16-byte digests under a secret, so that nobody can make two keys collide.
    """

    __slots__ = ("_offsets", "_secret", "slots")

    def __init__(self, memory_bytes: int, secret: bytes) -> None:
        if len(secret) != OFFSET_MAP_SECRET_BYTES:
            raise ValueError(f"the secret must have {OFFSET_MAP_SECRET_BYTES} bytes")
        if memory_bytes < OFFSET_MAP_ENTRY_BYTES:
            raise ValueError(f"an offset map needs at least {OFFSET_MAP_ENTRY_BYTES} bytes")
        self.slots = memory_bytes // OFFSET_MAP_ENTRY_BYTES
        self._secret = bytes(secret)
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def _digest(self, key: Buffer) -> bytes:
        return hashlib.blake2b(key, digest_size=16, key=self._secret).digest()

    def put(self, key: Buffer, offset: int, /) -> bool:
        if offset < 0:
            raise ValueError("an offset is not negative")
        digest = self._digest(key)
        known = self._offsets.get(digest)
        if known is None and len(self._offsets) >= self.slots:
            return False
        self._offsets[digest] = offset if known is None else max(known, offset)
        return True

    def get(self, key: Buffer, /) -> int:
        return self._offsets.get(self._digest(key), -1)

    def clear(self) -> None:
        self._offsets.clear()

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
    ) -> int:
        limit = min(max_entries, self.slots)
        lowest = max(start_offset, 0)
        for index, p in enumerate(_walk(buf, start, end, count)):
            offset = _wrap64(base_offset + p.offset_delta)
            if p.key_len < 0 or offset < lowest:
                continue
            if len(self._offsets) >= limit:
                return index
            self.put(buf[p.key_start : p.key_start + p.key_len], offset)
        return max(count, 0)

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
    ) -> tuple[bytearray, int, bool]:
        mask = bytearray()
        tombstones = False
        for p in _walk(buf, start, end, count):
            offset = _wrap64(base_offset + p.offset_delta)
            retain = offset > latest_offset or (
                p.key_len >= 0
                and offset >= self.get(buf[p.key_start : p.key_start + p.key_len])
                and (p.value_len >= 0 or retain_deletes)
            )
            mask.append(retain)
            tombstones = tombstones or (retain and p.value_len < 0)
        return mask, sum(mask), tombstones
