"""Columns as pyarrow sees them, which is the oracle of their form; and back to the rows that they stand for."""

from typing import Any

import pyarrow as pa

from ottla.records.batch import BATCH_HEADER, HEADER_SIZE
from ottla.records.columns import Columns, HeaderColumns
from ottla.records.types import Record

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _buffer(data: Any) -> pa.Buffer | None:
    return None if data is None else pa.py_buffer(data)


def _array(kind: pa.DataType, rows: int, buffers: list[Any], nulls: int, children: Any = None) -> pa.Array:
    array = pa.Array.from_buffers(kind, rows, [_buffer(b) for b in buffers], nulls, children=children)
    array.validate(full=True)
    return array


def _headers(h: HeaderColumns, rows: int) -> pa.Array:
    keys = _array(pa.string(), h.total, [None, h.key_offsets, h.key_data], 0)
    values = _array(pa.binary(), h.total, [h.value_validity, h.value_offsets, h.value_data], h.nulls_value)
    items = _array(HEADERS.value_type, h.total, [None], 0, [keys, values])
    return _array(HEADERS, rows, [h.list_validity, h.list_offsets], h.nulls_list, [items])


def arrays(c: Columns) -> dict[str, pa.Array]:
    """Every column, fully validated; a validity is there exactly where something is null."""
    assert (c.key_validity is None) == (c.nulls_key == 0)
    assert (c.value_validity is None) == (c.nulls_value == 0)
    found = {
        "key": _array(pa.binary(), c.rows, [c.key_validity, c.key_offsets, c.key_data], c.nulls_key),
        "value": _array(
            pa.binary(), c.rows, [c.value_validity, c.value_offsets, c.value_data], c.nulls_value
        ),
        "offset": _array(pa.int64(), c.rows, [None, c.offsets], 0),
        "timestamp": _array(pa.int64(), c.rows, [None, c.timestamps], 0),
        "type": _array(pa.int32(), c.rows, [None, c.timestamp_types], 0),
    }
    for name, nulls in (("key", c.nulls_key), ("value", c.nulls_value)):
        assert found[name].to_pylist().count(None) == nulls
    if c.headers is not None:
        found["headers"] = _headers(c.headers, c.rows)
    return found


def rows(c: Columns) -> list[tuple[Any, ...]]:
    """(offset, microseconds, type, key, value, headers or None) of each."""
    lists = {name: array.to_pylist() for name, array in arrays(c).items()}
    headers = lists.get("headers", [None] * c.rows)
    plain = [None if h is None else tuple((item["key"], item["value"]) for item in h) for h in headers]
    return list(
        zip(
            lists["offset"],
            lists["timestamp"],
            lists["type"],
            lists["key"],
            lists["value"],
            plain,
            strict=True,
        )
    )


def expected(records: list[Record], timestamp_type: int, with_headers: bool) -> list[tuple[Any, ...]]:
    return [
        (
            r.offset,
            max(-(2**63), min(r.timestamp * 1000, 2**63 - 1)),
            timestamp_type,
            r.key,
            r.value,
            (r.headers or None) if with_headers else None,
        )
        for r in records
    ]


def section_arguments(batch: bytes) -> tuple[Any, ...]:
    """What add_records is called with for a whole plain batch, up to the range of offsets."""
    header = BATCH_HEADER.unpack_from(batch)
    append_time = header[8] if header[5] & 0x08 else None
    return batch, HEADER_SIZE, len(batch), header[12], header[0], header[7], append_time


def header_array(lists: list[list[tuple[str, bytes | None]] | None]) -> pa.Array:
    plain = [None if h is None else [{"key": key, "value": value} for key, value in h] for h in lists]
    return pa.array(plain, HEADERS)
