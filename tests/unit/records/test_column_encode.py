"""Columns to records, compiled and not: what pyarrow holds is what a reader of the batches gets."""

import struct
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.records.arrow_columns import HEADERS, header_array

from ottla.records.batch import HEADER_SIZE, BatchView, stamp_batch
from ottla.records.columns import (
    BinColumn,
    HeaderColumn,
    RowColumns,
    binary_column,
    header_column,
    no_partitions,
    prepare_batch,
    row_columns,
)
from ottla.records.compression import CODECS
from ottla.records.kernel import decode_records, encode_records
from ottla.records.record import build_batch, read_records

ALL = 1 << 30
KEYS = [b"a", None, b"", b"dd", b"z" * 300]
VALUES = [b"v0", b"", None, b"v3", b"w" * 9000]
LISTS = [None, [], [("a", b"1"), ("b", None)], [("é", b"")], [("c", b"x" * 100)]]


def ints(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def decoded(section: bytearray, count: int) -> list[Any]:
    records = decode_records(section, HEADER_SIZE, len(section), count, 0, 5000)
    assert [r.offset for r in records] == list(range(count))
    assert {r.timestamp for r in records} <= {5000}
    return [(r.key, r.value, list(r.headers)) for r in records]


def of_rows(*numbers: int) -> list[Any]:
    return [(KEYS[row], VALUES[row], LISTS[row] or []) for row in numbers]


def test_rows_become_records(columns: Any) -> None:
    cols = row_columns(pa.array(KEYS), pa.array(VALUES), header_array(LISTS))
    section, after = columns.encode_columns(cols, None, 0, 5, ALL)
    assert after == 5
    assert section[:HEADER_SIZE] == bytes(HEADER_SIZE)
    assert decoded(section, 5) == of_rows(0, 1, 2, 3, 4)


def test_each_record_is_what_the_record_encoder_writes(columns: Any) -> None:
    cols = row_columns(pa.array(KEYS), pa.array(VALUES), header_array(LISTS))
    section, _ = columns.encode_columns(cols, None, 0, 5, ALL)
    records = [(0, KEYS[i], VALUES[i], LISTS[i] or ()) for i in range(5)]
    assert section[HEADER_SIZE:] == encode_records(records, 0)[0]


def test_slices_and_chosen_rows(columns: Any) -> None:
    lead = 11  # past the first byte of the validity bitmaps
    key = pa.array([None] * lead + KEYS + [b"x"]).slice(lead, 5)
    value = pa.array([b"no"] * 3 + [None] + VALUES).slice(4)
    lists = header_array([[("no", b"no")], None, *LISTS, []]).slice(2, 5)
    cols = row_columns(key, value, lists)
    order = ints(4, 2, 2, 0)
    section, after = columns.encode_columns(cols, order, 0, 4, ALL)
    assert (decoded(section, 4), after) == (of_rows(4, 2, 2, 0), 4)
    section, after = columns.encode_columns(cols, order, 1, 3, ALL)
    assert (decoded(section, 2), after) == (of_rows(2, 2), 3)
    section, after = columns.encode_columns(cols, None, 3, 5, ALL)
    assert (decoded(section, 2), after) == (of_rows(3, 4), 5)


def test_headers_whose_items_are_a_slice(columns: Any) -> None:
    items = pa.array([{"key": "no", "value": None}] * 9 + [{"key": k, "value": v} for k, v in LISTS[2]])
    items = items.cast(HEADERS.value_type).slice(9)
    lists = pa.ListArray.from_arrays(pa.array([0, 0, 2], pa.int32()), items)
    cols = row_columns(None, pa.array(["x", "y"]), lists)
    section, _ = columns.encode_columns(cols, None, 0, 2, ALL)
    assert decoded(section, 2) == [(None, b"x", []), (None, b"y", LISTS[2])]


def test_text_and_no_keys(columns: Any) -> None:
    cols = row_columns(None, pa.array(["ž", None, ""]))
    section, _ = columns.encode_columns(cols, None, 0, 3, ALL)
    assert decoded(section, 3) == [(None, "ž".encode(), []), (None, None, []), (None, b"", [])]


def test_no_rows(columns: Any) -> None:
    for value in (pa.array([], pa.binary()), pa.array([b"x"]).slice(1), pa.array([b"x"]).slice(0, 0)):
        cols = row_columns(value, value, header_array([]))
        assert columns.encode_columns(cols, None, 0, 0, ALL) == (bytearray(HEADER_SIZE), 0)
        assert columns.murmur2_partitions(cols.key, None, 3, no_partitions(0)) == 0
    bare = BinColumn(None, None, None, 0, 0)
    assert columns.encode_columns(RowColumns(None, bare, None), ints(), 0, 0, ALL)[1] == 0
    assert columns.split_rows(b"", None, 2) == (b"", (0, 0, 0))


@pytest.mark.parametrize("max_bytes", [-5, 0, 61, 100, 150, 1000, 20_000])
def test_sections_are_cut(columns: Any, max_bytes: int) -> None:
    values = [b"v" * (i * 7 % 120) for i in range(150)]
    cols = row_columns(None, pa.array(values))
    start, got = 0, []
    while start < 150:
        section, after = columns.encode_columns(cols, None, start, 150, max_bytes)
        assert after > start
        assert len(section) <= max_bytes or after == start + 1
        if after < 150:  # the next record would not have fitted
            more, _ = encode_records([(0, None, values[after], ())], 0, [after - start])
            assert len(section) + len(more) > max_bytes
        got += [value for _, value, _ in decoded(section, after - start)]
        start = after
    assert got == values


def test_a_section_may_fill_its_limit(columns: Any) -> None:
    cols = row_columns(None, pa.array([b"v" * 20] * 3))
    size = HEADER_SIZE + len(encode_records([(0, None, b"v" * 20, ())] * 2, 0)[0])
    assert [columns.encode_columns(cols, None, 0, 3, size - cut)[1] for cut in (-1, 0, 1)] == [2, 2, 1]


def test_more_rows_than_fit_a_byte_of_delta(columns: Any) -> None:
    values = [b"%d" % i for i in range(20_000)]
    section, _ = columns.encode_columns(row_columns(None, pa.array(values)), None, 0, 20_000, ALL)
    assert [value for _, value, _ in decoded(section, 20_000)] == values


def test_long_input(columns: Any) -> None:
    """What is worked on without the GIL."""
    keys, values = [b"%d" % i for i in range(9000)], [b"v%d" % i * 20 for i in range(9000)]
    cols = row_columns(pa.array(keys), pa.array(values))
    section, after = columns.encode_columns(cols, None, 0, 9000, ALL)
    assert len(section) > 512 * 1024
    assert decoded(section, after) == [(k, v, []) for k, v in zip(keys, values, strict=True)]


# ---- offsets that cannot be trusted

DATA = b"0123456789"


def column(
    offsets: bytes, rows: int, *, data: bytes = DATA, validity: bytes | None = None, offset: int = 0
) -> BinColumn:
    return BinColumn(validity, offsets, data, offset, rows)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(column(ints(0, 5, 3), 2), id="not in order"),
        pytest.param(column(ints(0, 5, 11), 2), id="past the data"),
        pytest.param(column(ints(0, 5, 2**31 - 1), 2), id="far past the data"),
        pytest.param(column(ints(0, -1, 3), 2), id="negative"),
        pytest.param(column(ints(-(2**31), 2, 3), 2), id="very negative"),
        pytest.param(column(ints(0, 5), 2), id="too few offsets"),
        pytest.param(column(ints(0, 5, 6)[:-1], 2), id="half an offset"),
        pytest.param(column(ints(0, 5, 6), 2, offset=1), id="slice past the offsets"),
        pytest.param(column(ints(*range(12)), 2, offset=7, validity=b"\xff"), id="slice past the validity"),
        pytest.param(column(ints(0, 5, 6), 2, validity=b""), id="no validity"),
        pytest.param(column(ints(0, 5, 6), 2, offset=-1), id="negative slice"),
        pytest.param(column(ints(0, 5, 6), 2, offset=2**62), id="absurd slice"),
        pytest.param(column(ints(0, 5, 6), -1), id="negative rows"),
        pytest.param(column(ints(0, 5, 6), 2**62), id="absurd rows"),
        pytest.param(BinColumn(None, None, DATA, 0, 2), id="no offsets"),
        pytest.param(BinColumn(None, ints(0, 1, 2), None, 0, 2), id="no data"),
    ],
)
def test_garbage_is_refused(columns: Any, bad: BinColumn) -> None:
    good = column(ints(0, 5, 10), 2)
    headers = HeaderColumn(None, ints(0, 1, 2), 0, 2, None, 0, 2, bad, good)
    for cols in (
        RowColumns(None, bad, None),
        RowColumns(bad, good, None),
        RowColumns(None, good, headers),
        RowColumns(None, good, headers._replace(key=good, value=bad)),
    ):
        with pytest.raises(ValueError, match=r"column|rows|offsets|validity"):
            columns.encode_columns(cols, None, 0, 2, ALL)
    with pytest.raises(ValueError, match=r"column|rows|offsets|validity"):
        columns.murmur2_partitions(bad, None, 3, no_partitions(2))


def test_the_offsets_of_nulls_do_not_matter(columns: Any) -> None:
    odd = column(ints(9, 5, 2**31 - 1), 2, validity=b"\x00")
    section, _ = columns.encode_columns(RowColumns(odd, odd, None), None, 0, 2, ALL)
    assert decoded(section, 2) == [(None, None, [])] * 2


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"offsets": ints(0, 1, 4)}, id="past the items"),
        pytest.param({"offsets": ints(2, 1, 3)}, id="not in order"),
        pytest.param({"offsets": ints(0, 1)}, id="too few offsets"),
        pytest.param({"items": 4}, id="more items than keys"),
        pytest.param({"items": -1}, id="negative items"),
        pytest.param({"item_offset": 8, "item_validity": b"\xff"}, id="slice past the items' validity"),
        pytest.param({"item_validity": b"\xfd"}, id="a header that is null"),
        pytest.param({"key": column(ints(0, 1, 2, 3), 3, validity=b"\x05")}, id="a key that is null"),
        pytest.param({"rows": 1}, id="fewer rows"),
    ],
)
def test_garbage_in_headers_is_refused(columns: Any, bad: dict[str, Any]) -> None:
    three = column(ints(0, 1, 2, 3), 3)
    headers = HeaderColumn(None, ints(0, 1, 3), 0, 2, None, 0, 3, three, three)
    value = column(ints(0, 5, 10), 2)
    columns.encode_columns(RowColumns(None, value, headers), None, 0, 2, ALL)
    with pytest.raises(ValueError, match=r"column|rows|offsets|validity|header"):
        columns.encode_columns(RowColumns(None, value, headers._replace(**bad)), None, 0, 2, ALL)


def test_a_null_header_before_the_slice_does_not_matter(columns: Any) -> None:
    two = column(ints(0, 1, 2), 2)
    headers = HeaderColumn(None, ints(0, 2), 0, 1, b"\xfe\x07", 9, 2, two, two)
    cols = RowColumns(None, column(ints(0, 5), 1), headers)
    section, _ = columns.encode_columns(cols, None, 0, 1, ALL)
    assert decoded(section, 1) == [(None, b"01234", [("0", b"0"), ("1", b"1")])]
    with pytest.raises(ValueError, match="row 0 has a header without a key"):
        columns.encode_columns(cols._replace(headers=headers._replace(item_offset=10)), None, 0, 1, ALL)


def test_buffers_need_no_alignment(columns: Any) -> None:
    def shifted(data: bytes) -> memoryview:
        return memoryview(bytearray(b"?" + data))[1:]

    odd = BinColumn(shifted(b"\x05"), shifted(ints(0, 5, 5, 10)), shifted(DATA), 0, 3)
    ids, plain = shifted(no_partitions(3)), no_partitions(3)
    columns.murmur2_partitions(odd, shifted(ints(0, 1, 2)), 5, ids)
    columns.murmur2_partitions(column(ints(0, 5, 5, 10), 3, validity=b"\x05"), None, 5, plain)
    assert ids == plain
    section, _ = columns.encode_columns(RowColumns(odd, odd, None), shifted(ints(2, 1, 0)), 0, 3, ALL)
    assert decoded(section, 3) == [(b"56789", b"56789", []), (None, None, []), (b"01234", b"01234", [])]


@pytest.mark.parametrize(
    ("order", "start", "stop"),
    [
        (None, 0, 3),
        (None, -1, 1),
        (None, 2, 1),
        (ints(0, 2), 0, 2),
        (ints(-1), 0, 1),
        (ints(0), 0, 2),
        (b"\0\0\0", 0, 0),
    ],
)
def test_rows_that_are_not_there(columns: Any, order: bytes | None, start: int, stop: int) -> None:
    cols = RowColumns(None, column(ints(0, 5, 10), 2), None)
    with pytest.raises(ValueError, match=r"row|int32"):
        columns.encode_columns(cols, order, start, stop, ALL)


def test_columns_of_different_lengths(columns: Any) -> None:
    cols = row_columns(pa.array([b"a"]), pa.array([b"a", b"b"]))
    with pytest.raises(ValueError, match="different numbers of rows"):
        columns.encode_columns(cols, None, 0, 1, ALL)


def test_what_is_no_column(columns: Any) -> None:
    with pytest.raises(TypeError):
        columns.encode_columns(RowColumns(None, column("text", 1), None), None, 0, 1, ALL)  # type: ignore[arg-type]
    for array in (pa.array([1]), pa.array([b"x"], pa.large_binary()), pa.array(["x"]).dictionary_encode()):
        with pytest.raises(TypeError, match="binary or string is required"):
            binary_column(array)
    for array in (
        pa.array(["x"]),
        pa.array([["x"]]),
        pa.array([[{"key": "k"}]]),
        pa.array([[{"key": 1, "value": b""}]]),
    ):
        with pytest.raises(TypeError, match="Arrow type"):
            header_column(array)


# ---- partitions

JAVA_MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_murmur2_is_javas(columns: Any) -> None:
    column = binary_column(pa.array([b"skipped", *JAVA_MURMUR2]).slice(1))
    for partitions in (1, 2, 3, 7, 1000, 1 << 20):
        ids = no_partitions(6)
        assert columns.murmur2_partitions(column, None, partitions, ids) == 0
        hashed = tuple((signed & 0x7FFFFFFF) % partitions for signed in JAVA_MURMUR2.values())
        assert struct.unpack("<6i", ids) == hashed


def test_only_rows_that_want_a_partition_get_one(columns: Any) -> None:
    column = binary_column(pa.array([b"21", None, b"abc", None, b"foobar"]))
    ids = bytearray(ints(-1, -1, 5, 6, -1))
    assert columns.murmur2_partitions(column, None, 1000, ids) == 1
    assert struct.unpack("<5i", ids) == (
        (-973932308 & 0x7FFFFFFF) % 1000,
        -1,
        5,
        6,
        (-790332482 & 0x7FFFFFFF) % 1000,
    )
    ids = no_partitions(5)
    assert columns.murmur2_partitions(column, ints(3, 2), 1, ids) == 1
    assert struct.unpack("<5i", ids) == (-1, -1, 0, -1, -1)


@pytest.mark.parametrize(
    ("rows", "partitions", "ids"),
    [
        (None, 0, no_partitions(2)),
        (None, (1 << 20) + 1, no_partitions(2)),
        (None, 3, no_partitions(1)),
        (None, 3, no_partitions(3)),
        (None, 3, bytearray(7)),
        (ints(2), 3, no_partitions(2)),
        (ints(-1), 3, no_partitions(2)),
        (b"\0", 3, no_partitions(2)),
    ],
)
def test_murmur2_checks_its_arguments(columns: Any, rows: Any, partitions: int, ids: Any) -> None:
    with pytest.raises(ValueError, match=r"row|partition|int32"):
        columns.murmur2_partitions(column(ints(0, 5, 10), 2), rows, partitions, ids)


def test_murmur2_needs_ids_that_it_can_write(columns: Any) -> None:
    with pytest.raises(BufferError):
        columns.murmur2_partitions(column(ints(0, 5, 10), 2), None, 3, bytes(no_partitions(2)))


def test_rows_are_split_in_their_order(columns: Any) -> None:
    ids = ints(2, 0, -1, 2, 0, 3)
    order, bounds = columns.split_rows(ids, None, 5, 3)
    assert (order, bounds) == (ints(1, 4, 0, 3, 2, 5), (0, 2, 2, 4, 6, 6))
    split = columns.split_rows(ids, ints(5, 3, 0), 4)
    assert (split.order, split.bounds) == (ints(3, 0, 5), (0, 0, 0, 2, 3))


@pytest.mark.parametrize(
    ("ids", "rows", "partitions", "keyless"),
    [
        (ints(0, 1), None, 1, -1),
        (ints(0, -2), None, 4, 0),
        (ints(0, -1), None, 4, -1),
        (ints(0), None, 4, 4),
        (ints(0), None, 4, -2),
        (ints(0), ints(1), 4, -1),
        (ints(0), ints(-1), 4, -1),
        (ints(0), None, 0, -1),
        (ints(0), None, 1 << 30, -1),
        (b"\0\0\0", None, 4, -1),
    ],
)
def test_split_checks_its_arguments(
    columns: Any, ids: bytes, rows: Any, partitions: int, keyless: int
) -> None:
    with pytest.raises(ValueError, match=r"row|partition|int32"):
        columns.split_rows(ids, rows, partitions, keyless)


def test_many_rows_are_split(columns: Any) -> None:
    """Enough of them to be sorted without the GIL."""
    count = 140_000
    ids = ints(*(i * 7 % 5 for i in range(count)))
    order, bounds = columns.split_rows(ids, None, 5)
    assert bounds == (0, 28_000, 56_000, 84_000, 112_000, 140_000)
    numbers = struct.unpack(f"<{count}i", order)
    assert numbers[:28_000] == tuple(range(0, count, 5))


# ---- batches


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_batches_are_what_the_record_builder_makes(columns: Any, codec: int) -> None:
    cols = row_columns(pa.array(KEYS), pa.array(VALUES), header_array(LISTS))
    section, after = columns.encode_columns(cols, None, 0, 5, ALL)
    batch = stamp_batch(
        prepare_batch(section, after, 123456, compression=codec, transactional=True), 77, 3, 12
    )
    records = [(123456, KEYS[i], VALUES[i], LISTS[i] or ()) for i in range(5)]
    assert batch == build_batch(
        records, compression=codec, producer_id=77, producer_epoch=3, base_sequence=12, transactional=True
    )
    view = BatchView(batch)
    assert view.crc_ok()
    assert [(r.key, r.value, list(r.headers)) for r in read_records(view)] == of_rows(0, 1, 2, 3, 4)


def test_the_sequence_is_stamped_when_it_is_known(columns: Any) -> None:
    section, after = columns.encode_columns(row_columns(None, pa.array([b"x"])), None, 0, 1, ALL)
    batch = prepare_batch(section, after, 1000)
    assert not BatchView(batch).crc_ok()
    for producer_id, epoch, sequence in ((5, 0, 0), (5, 1, 2**31 - 1), (-1, -1, -1)):
        assert stamp_batch(batch, producer_id, epoch, sequence) is batch
        view = BatchView(batch)
        assert (view.producer_id, view.producer_epoch, view.base_sequence) == (producer_id, epoch, sequence)
        assert view.crc_ok()
