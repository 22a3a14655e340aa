"""Columns against records: whatever the batch, the two readers see the same rows; whatever the columns, what is
written is read back; and the compiled kernel and its twin agree on all of it, garbage included."""

import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.records.arrow_columns import HEADERS, expected, rows

from ottla.records import _columns_py as twin_columns
from ottla.records import _columns_py as twin_encode
from ottla.records import _kernel_py as twin
from ottla.records.batch import HEADER_SIZE, BatchView, compute_crc, stamp_batch
from ottla.records.columns import BinColumn, HeaderColumn, RowColumns, prepare_batch, row_columns
from ottla.records.record import build_batch
from ottla.records.types import InvalidRecordError

compiled: ModuleType = pytest.importorskip("ottla.records._kernel")

INT64 = st.integers(-(2**63), 2**63 - 1)
nullable_bytes = st.none() | st.binary(max_size=80)
names = st.text(max_size=8) | st.binary(max_size=8)
header_lists = st.lists(st.tuples(names, nullable_bytes), max_size=3)
new_records = st.lists(
    st.tuples(INT64, nullable_bytes, nullable_bytes, header_lists), min_size=1, max_size=12
)
nearly = st.lists(st.integers(0, 12) | st.integers(0, 255), max_size=60).map(bytes)


def outcome(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except InvalidRecordError as error:
        return ("invalid", error.problem, error.index)
    except (OverflowError, TypeError, ValueError) as error:
        return type(error), str(error)


@st.composite
def mutated_sections(draw: st.DrawFn) -> tuple[bytes, int]:
    records = draw(new_records)
    data = bytearray(twin.encode_records(records, 0)[0])
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data), draw(st.just(len(records)) | st.integers(-1, 14))


sections = mutated_sections() | st.tuples(nearly, st.integers(-1, 10))


@given(st.lists(sections, min_size=1, max_size=4), INT64, INT64, st.none() | INT64, st.booleans(), st.data())
@settings(max_examples=250)
def test_both_readers_see_the_same(
    parts: list[Any],
    base: int,
    timestamp: int,
    append_time: int | None,
    with_headers: bool,
    data: st.DataObject,
) -> None:
    first = data.draw(
        st.just(-(2**63)) | st.integers(-5, 20).map(lambda n: max(-(2**63), min(base + n, 2**63 - 1)))
    )
    end = data.draw(
        st.just(2**63 - 1) | st.integers(-5, 20).map(lambda n: max(-(2**63), min(base + n, 2**63 - 1)))
    )
    builders = [module.ColumnBuilder(with_headers) for module in (compiled, twin_columns)]
    wanted: list[Any] = []
    for buf, count in parts:
        arguments = (buf, 0, len(buf), count, base, timestamp, append_time, first, end)
        added = [outcome(builder.add_records, *arguments) for builder in builders]
        assert added[0] == added[1]
        records = outcome(compiled.decode_records, buf, 0, len(buf), count, base, timestamp, -1, append_time)
        if isinstance(records, list):
            kept = [record for record in records if first <= record.offset < end]
            assert added[0] == len(kept)
            wanted += expected(kept, int(append_time is not None), with_headers)
        else:
            assert added[0] == records
        assert builders[0].rows == builders[1].rows == len(wanted)
        assert builders[0].size_bytes == builders[1].size_bytes
    results = [builder.finish() for builder in builders]
    assert results[0] == results[1]
    assert rows(results[0]) == wanted


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    kind = draw(st.sampled_from([{}, {}, {}, {"compression": 1}, producer | {"transactional": True}]))
    if draw(st.integers(0, 9)) == 0:
        kind = kind | producer | {"control": True}
    data = build_batch(draw(new_records), base_offset=draw(st.integers(0, 30)), **kind)
    if draw(st.integers(0, 4)) == 0:
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        if draw(st.booleans()):
            struct.pack_into(">I", data, 17, compute_crc(data, 0, len(data)))
    return bytes(data)


@given(
    st.lists(batches(), max_size=5),
    st.tuples(st.integers(-2, 40), st.integers(-2, 60), st.integers(-1, 40), st.integers(-1, 3000)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.data(),
)
@settings(max_examples=200)
def test_both_walk_over_batches_alike(
    parts: list[bytes], limits: Any, crcs: bool, transactional: bool, with_headers: bool, data: st.DataObject
) -> None:
    buf = b"".join(parts)
    end = data.draw(st.just(len(buf)) | st.integers(0, len(buf)))
    room = data.draw(st.just(2**31 - 1) | st.integers(0, 600))
    builders = [module.ColumnBuilder(with_headers, room) for module in (compiled, twin_columns)]
    stops = [builder.add_batches(buf, 0, end, *limits, crcs, transactional) for builder in builders]
    assert stops[0] == stops[1]
    results = [builder.finish() for builder in builders]
    assert results[0] == results[1]
    rows(results[0])


# ---- writing

arrow_headers = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=8), "value": nullable_bytes}), max_size=3
)
table = st.lists(st.tuples(nullable_bytes, nullable_bytes, arrow_headers), max_size=20)


@given(table, st.booleans(), st.booleans(), st.integers(60, 500), st.data())
@settings(max_examples=200)
def test_what_is_written_is_read_back(
    wanted: list[Any], with_key: bool, with_headers: bool, max_bytes: int, data: st.DataObject
) -> None:
    """Of slices, in any order of rows, cut into batches."""
    start = data.draw(st.integers(0, len(wanted)))
    taken = wanted[start : start + data.draw(st.integers(0, len(wanted)))]
    key, value, lists = (
        pa.array([row[i] for row in wanted], kind).slice(start, len(taken))
        for i, kind in enumerate((pa.binary(), pa.binary(), HEADERS))
    )
    columns = row_columns(key if with_key else None, value, lists if with_headers else None)
    numbers = data.draw(st.none() | st.lists(st.integers(0, len(taken) - 1)) if taken else st.none())
    order = None if numbers is None else struct.pack(f"<{len(numbers)}i", *numbers)
    places = list(range(len(taken))) if numbers is None else numbers
    place, got = 0, []
    while place < len(places):
        arguments = (columns, order, place, len(places), max_bytes)
        section, after = compiled.encode_columns(*arguments)
        assert (section, after) == twin_encode.encode_columns(*arguments)
        batch = stamp_batch(prepare_batch(section, after - place, 1234), -1, -1, -1)
        assert BatchView(batch).crc_ok()
        assert compiled.check_batch(batch, 0, len(batch), False)[13:] == (0, 1234, 1234)
        got += compiled.decode_records(batch, HEADER_SIZE, len(batch), after - place, 0, 1234)
        place = after
    assert [(r.key, r.value, list(r.headers)) for r in got] == [
        (
            taken[row][0] if with_key else None,
            taken[row][1],
            [(h["key"], h["value"]) for h in taken[row][2] or ()] if with_headers else [],
        )
        for row in places
    ]


small = st.integers(-2, 12) | st.sampled_from([2**31 - 1, -(2**31)])
int_buffers = st.lists(st.integers(0, 12) | small, max_size=8).map(lambda n: struct.pack(f"<{len(n)}i", *n))
rising = st.lists(st.integers(0, 12), max_size=8).map(lambda n: struct.pack(f"<{len(n)}i", *sorted(n)))
offset_buffers = st.none() | rising | rising | int_buffers | st.binary(max_size=20)
bit_buffers = st.none() | st.none() | st.binary(max_size=2)
extents = st.integers(-1, 9) | st.just(2**40)
few = st.integers(0, 4) | extents
bin_columns = st.builds(BinColumn, bit_buffers, offset_buffers, st.none() | st.binary(max_size=14), few, few)
header_columns = st.builds(
    HeaderColumn, bit_buffers, offset_buffers, few, few, bit_buffers, few, few, bin_columns, bin_columns
)


def agree(name: str, *args: Any) -> None:
    ours = outcome(getattr(compiled, name), *args)
    theirs = outcome(getattr(twin_encode, name), *args)
    assert ours == theirs


@given(st.none() | bin_columns, bin_columns, st.none() | header_columns, st.booleans(), st.data())
@settings(max_examples=400)
def test_both_refuse_the_same_garbage(
    key: Any, value: BinColumn, headers: Any, alike: bool, data: st.DataObject
) -> None:
    if alike:  # or hardly anything would get past the first check
        key = None if key is None else key._replace(rows=value.rows)
        headers = None if headers is None else headers._replace(rows=value.rows)
    order = data.draw(st.none() | int_buffers | st.binary(max_size=9))
    start, stop = data.draw(st.tuples(st.integers(-1, 5), st.integers(-1, 9)))
    stop = value.rows if data.draw(st.booleans()) else stop
    agree(
        "encode_columns", RowColumns(key, value, headers), order, start, stop, data.draw(st.integers(0, 200))
    )


@given(bin_columns, st.none() | int_buffers, st.integers(-1, 5) | st.just(2**21), int_buffers, st.booleans())
@settings(max_examples=250)
def test_both_hash_alike(key: BinColumn, order: Any, partitions: int, ids: bytes, fitting: bool) -> None:
    if fitting and 0 <= key.rows < 20:
        ids = (ids + b"\xff" * 4 * 20)[: 4 * key.rows]
    written = [bytearray(ids), bytearray(ids)]
    ours = outcome(compiled.murmur2_partitions, key, order, partitions, written[0])
    assert ours == outcome(twin_encode.murmur2_partitions, key, order, partitions, written[1])
    assert written[0] == written[1]


@given(st.lists(nullable_bytes, max_size=30), st.integers(1, 9), st.integers(0, 8))
def test_split_keys_go_where_they_belong(keys: list[bytes | None], partitions: int, sticky: int) -> None:
    sticky %= partitions
    column = row_columns(None, pa.array(keys, pa.binary())).value
    ids = bytearray(b"\xff" * 4 * len(keys))
    assert compiled.murmur2_partitions(column, None, partitions, ids) == keys.count(None)
    order, bounds = compiled.split_rows(ids, None, partitions, sticky)
    numbers = struct.unpack(f"<{len(keys)}i", order)
    where = [
        sticky if key is None else (twin_encode._murmur2(memoryview(key)) & 0x7FFFFFFF) % partitions
        for key in keys
    ]
    for partition in range(partitions):
        assert numbers[bounds[partition] : bounds[partition + 1]] == tuple(
            row for row, chosen in enumerate(where) if chosen == partition
        )


@given(int_buffers | st.binary(max_size=9), st.none() | int_buffers, st.integers(0, 5), st.integers(-2, 5))
@settings(max_examples=200)
def test_both_split_alike(ids: bytes, order: Any, partitions: int, keyless: int) -> None:
    agree("split_rows", ids, order, partitions, keyless)
