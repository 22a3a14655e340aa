"""Records to columns, compiled and not: the rows are right, and pyarrow finds nothing wrong with the buffers."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.unit.records.arrow_columns import expected, rows, section_arguments
from tests.unit.records.java_vectors import JAVA

from ottla.records.batch import BatchView
from ottla.records.kernel import decode_records
from ottla.records.record import build_batch, read_records
from ottla.records.types import InvalidRecordError, Problem

EVER = (0, 2**62)
MANY = (1 << 30, 1 << 40)
MIXED = [
    (1000, b"key", b"value", (("h", b"x"), ("n", None))),
    (900, None, b"", ()),
    (1100, b"", None, (("naïve", b""),)),
    (-1, b"k" * 200, b"v" * 5000, ()),
]


def plain(count: int, base_offset: int, **fields: Any) -> bytearray:
    records = [(1000 + i, b"k%d" % i, b"v%d" % (base_offset + i), ()) for i in range(count)]
    return build_batch(records, base_offset=base_offset, **fields)


@pytest.mark.parametrize("with_headers", [False, True])
@pytest.mark.parametrize("name", ["none", "plain", "append_time"])
def test_batches_that_java_made(columns: Any, name: str, with_headers: bool) -> None:
    data = JAVA[name]
    builder = columns.ColumnBuilder(with_headers)
    view = BatchView(data)
    assert builder.add_records(*section_arguments(data), *EVER) == view.records_count == builder.rows
    assert rows(builder.finish()) == expected(read_records(view), view.timestamp_type, with_headers)


def test_nulls_headers_and_sizes(columns: Any) -> None:
    data = build_batch(MIXED, base_offset=50)
    builder = columns.ColumnBuilder(with_headers=True)
    builder.add_records(*section_arguments(data), *EVER)
    header_bytes = len("h") + len("n") + len("naïve".encode()) + len(b"x")
    assert builder.size_bytes == 4 * 32 + 3 * 8 + header_bytes + 203 + 5005
    got = builder.finish()
    assert (got.nulls_key, got.nulls_value, got.headers.nulls_list, got.headers.nulls_value) == (1, 1, 2, 1)
    assert rows(got) == [
        (50, 1_000_000, 0, b"key", b"value", (("h", b"x"), ("n", None))),
        (51, 900_000, 0, None, b"", None),
        (52, 1_100_000, 0, b"", None, (("naïve", b""),)),
        (53, -1000, 0, b"k" * 200, b"v" * 5000, None),
    ]


def test_starts_anew_after_finishing(columns: Any) -> None:
    builder = columns.ColumnBuilder(True)
    for base in (10, 20):
        builder.add_records(*section_arguments(build_batch(MIXED, base_offset=base)), *EVER)
        assert [row[0] for row in rows(builder.finish())] == [base, base + 1, base + 2, base + 3]
        assert (builder.rows, builder.size_bytes) == (0, 0)
    builder.add_records(*section_arguments(plain(3, 0)), *EVER)
    last = builder.finish()
    assert (last.key_validity, last.value_validity, last.nulls_key) == (None, None, 0)


def test_buffers_outlive_their_builder(columns: Any) -> None:
    builder = columns.ColumnBuilder()
    builder.add_records(*section_arguments(plain(100, 7)), *EVER)
    kept = builder.finish()
    builder.add_records(*section_arguments(plain(100, 900)), *EVER)
    del builder
    assert [row[4] for row in rows(kept)] == [b"v%d" % (7 + i) for i in range(100)]


@pytest.mark.parametrize("with_headers", [False, True])
def test_nothing_at_all(columns: Any, with_headers: bool) -> None:
    builder = columns.ColumnBuilder(with_headers)
    assert rows(builder.finish()) == []
    assert builder.add_records(b"", 0, 0, 0, 0, 0, None, *EVER) == 0
    empty = builder.finish()
    assert rows(empty) == []
    assert bytes(empty.key_offsets) == bytes(4)


@pytest.mark.parametrize(("first", "end"), [(0, 100), (12, 14), (13, 13), (14, 12), (0, 11), (12, 100)])
def test_keeps_a_range_of_offsets(columns: Any, first: int, end: int) -> None:
    builder = columns.ColumnBuilder()
    wanted = [offset for offset in range(10, 15) if first <= offset < end]
    assert builder.add_records(*section_arguments(plain(5, 10)), first, end) == len(wanted)
    assert [row[0] for row in rows(builder.finish())] == wanted


def test_absurd_timestamps_are_clamped(columns: Any) -> None:
    limit = (2**63 - 1) // 1000
    data = build_batch([(t, None, None, ()) for t in (limit, limit + 1, 2**63 - 1, -limit - 1, -(2**63))])
    builder = columns.ColumnBuilder()
    builder.add_records(*section_arguments(data), *EVER)
    micros = [row[1] for row in rows(builder.finish())]
    assert micros == [limit * 1000, 2**63 - 1, 2**63 - 1, -(2**63), -(2**63)]


def test_header_names_that_are_not_text_are_mended(columns: Any) -> None:
    names = [
        b"\xff\xfe",
        b"a\xe2\x82",
        b"\xe2\x28\xa1",
        b"\xf0\x9f\x98\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
    ]
    names += [b"\xc0\xaf", b"\xf0\x9f\x98", b"\xf0\x9fx", b"\x80", b"\xe0\x80\x80", "ž€😀".encode()]
    data = build_batch([(0, None, None, [(name, None) for name in names])])
    builder = columns.ColumnBuilder(True)
    builder.add_records(*section_arguments(data), *EVER)
    [row] = rows(builder.finish())
    assert [key for key, _ in row[5]] == [name.decode("utf-8", "replace") for name in names]


def test_a_broken_section_leaves_what_was_there(columns: Any) -> None:
    builder = columns.ColumnBuilder(True)
    good, bad = build_batch(MIXED * 3), build_batch([*MIXED, *MIXED, (0, None, None, (("k", None),))])
    del bad[-1]
    builder.add_records(*section_arguments(good), *EVER)
    before = builder.rows, builder.size_bytes
    with pytest.raises(InvalidRecordError) as caught:
        builder.add_records(*section_arguments(bad), *EVER)
    assert (caught.value.problem, caught.value.index) == (Problem.BAD_RECORD_SIZE, 8)
    assert (builder.rows, builder.size_bytes) == before
    builder.add_records(*section_arguments(plain(2, 30)), *EVER)
    got = rows(builder.finish())
    assert got[:12] == expected(read_records(BatchView(good)), 0, True)
    assert [row[3:] for row in got[12:]] == [(b"k0", b"v30", None), (b"k1", b"v31", None)]


@pytest.mark.parametrize(
    ("count", "problem"),
    [
        (-1, Problem.NEGATIVE_COUNT),
        (2, Problem.TRAILING_BYTES),
        (4, Problem.TOO_FEW_RECORDS),
        (2**31 - 1, Problem.TOO_FEW_RECORDS),
    ],
)
def test_a_wrong_count_is_refused(columns: Any, count: int, problem: Problem) -> None:
    data, start, end, *_ = section_arguments(plain(3, 0))
    builder = columns.ColumnBuilder()
    with pytest.raises(InvalidRecordError) as caught:
        builder.add_records(data, start, end, count, 0, 0, None, *EVER)
    assert caught.value.problem is problem
    assert builder.rows == 0


def test_arguments_are_checked(columns: Any) -> None:
    builder = columns.ColumnBuilder()
    with pytest.raises(ValueError, match="does not lie in a buffer"):
        builder.add_records(b"xxx", 0, 4, 1, 0, 0, None, *EVER)
    with pytest.raises(ValueError, match="does not lie in a buffer"):
        builder.add_batches(b"xxx", -1, 2, *EVER, *MANY)
    with pytest.raises(OverflowError):
        builder.add_records(b"", 0, 0, 0, 2**63, 0, None, *EVER)
    with pytest.raises(TypeError):
        builder.add_records(b"", 0, 0)
    with pytest.raises(ValueError, match="max_data_bytes"):
        columns.ColumnBuilder(False, 2**31)


def test_full_columns_refuse_more(columns: Any) -> None:
    builder = columns.ColumnBuilder(False, 600)
    data = build_batch([(0, None, b"v" * 250, ())])
    assert builder.add_records(*section_arguments(data), *EVER) == 1
    assert builder.add_records(*section_arguments(data), *EVER) == 1
    with pytest.raises(OverflowError, match="finish them first"):
        builder.add_records(*section_arguments(data), *EVER)
    assert builder.rows == 2
    assert builder.add_batches(data, 0, len(data), *EVER, *MANY) == 0
    assert len(rows(builder.finish())) == 2
    assert builder.add_batches(data, 0, len(data), *EVER, *MANY) == len(data)


def test_mended_header_names_cannot_overfill(columns: Any) -> None:
    builder = columns.ColumnBuilder(True, 350)
    data = build_batch([(0, b"k", None, [("ok", b"v")]), (0, None, None, [(b"\xff" * 120, None)])])
    with pytest.raises(OverflowError, match="finish them first"):
        builder.add_records(*section_arguments(data), *EVER)
    assert (builder.rows, builder.size_bytes) == (0, 0)
    builder.add_records(*section_arguments(build_batch([(0, None, b"v", [("h", None)])])), *EVER)
    assert rows(builder.finish()) == [(0, 0, 0, None, b"v", (("h", None),))]


# ---- many batches at once


def test_walks_over_batches(columns: Any) -> None:
    data = b"??" + b"".join(plain(10, base) for base in range(0, 50, 10)) + b"?"
    builder = columns.ColumnBuilder(True)
    assert builder.add_batches(data, 2, len(data) - 1, 5, 33, *MANY) == len(data) - 1
    assert [row[0] for row in rows(builder.finish())] == list(range(5, 33))


def test_the_brokers_time(columns: Any) -> None:
    data = JAVA["append_time"]
    builder = columns.ColumnBuilder()
    assert builder.add_batches(data, 0, len(data), *EVER, *MANY) == len(data)
    assert {row[1:3] for row in rows(builder.finish())} == {(1_800_000_000_000_000, 1)}


def test_stops_at_limits_between_batches(columns: Any) -> None:
    one = plain(10, 0)
    data = bytes(one) * 5
    builder = columns.ColumnBuilder()
    assert builder.add_batches(data, 0, len(data), *EVER, 15, 1 << 40) == 2 * len(one)
    assert builder.rows == 20
    assert builder.add_batches(data, 2 * len(one), len(data), *EVER, 15, 1 << 40) == 2 * len(one)
    assert builder.add_batches(
        data, 2 * len(one), len(data), *EVER, 1 << 30, builder.size_bytes + 1
    ) == 3 * len(one)
    assert builder.rows == 30


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(plain(3, 10, compression=1), id="compressed"),
        pytest.param(
            plain(3, 10, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True), id="txn"
        ),
        pytest.param(plain(1, 10, producer_id=7, producer_epoch=0, control=True), id="control"),
        pytest.param(plain(3, 10)[:-1], id="cut short"),
        pytest.param(plain(3, 10)[:16], id="torn header"),
        pytest.param(plain(3, 10)[:-1] + b"\x55", id="crc"),
        pytest.param(plain(3, 10)[:16] + b"\x01" + plain(3, 10)[17:], id="magic"),
    ],
)
def test_stops_before_what_is_not_plain(columns: Any, odd: bytearray) -> None:
    lead = plain(10, 0)
    data = lead + odd
    builder = columns.ColumnBuilder()
    assert builder.add_batches(data, 0, len(data), *EVER, *MANY) == len(lead)
    assert builder.rows == 10
    assert builder.add_batches(data, len(lead), len(data), *EVER, *MANY) == len(lead)


def test_stops_before_records_that_are_broken(columns: Any) -> None:
    lead, bad = plain(10, 0), plain(3, 10)
    bad[57:61] = (4).to_bytes(4, "big")
    data = lead + bad
    builder = columns.ColumnBuilder()
    assert builder.add_batches(data, 0, len(data), *EVER, *MANY, False) == len(lead)
    assert builder.rows == 10


def test_takes_transactions_when_told_to(columns: Any) -> None:
    producer = {"producer_id": 7, "producer_epoch": 0}
    data = plain(3, 0, **producer, base_sequence=0, transactional=True)
    data += plain(1, 3, **producer, transactional=True, control=True) + plain(2, 4)
    builder = columns.ColumnBuilder()
    assert builder.add_batches(data, 0, len(data), *EVER, *MANY, True, True) == len(data)
    assert [row[0] for row in rows(builder.finish())] == [0, 1, 2, 4, 5]


def test_passes_over_batches_out_of_range_whatever_they_hold(columns: Any) -> None:
    data = plain(3, 0, compression=1) + plain(3, 10) + plain(3, 20)[:-1] + b"\x55"
    builder = columns.ColumnBuilder()
    assert builder.add_batches(data, 0, len(data), 3, 20, *MANY) == len(data)
    assert builder.rows == 3


def test_checksums_may_be_left_unchecked(columns: Any) -> None:
    data = plain(3, 0)
    data[17] ^= 1
    builder = columns.ColumnBuilder()
    assert builder.add_batches(data, 0, len(data), *EVER, *MANY) == 0
    assert builder.add_batches(data, 0, len(data), *EVER, *MANY, False) == len(data)


def test_long_input_is_shared_by_threads(columns: Any) -> None:
    """Long enough to be worked on without the GIL, by builders that know nothing of one another."""
    one = build_batch([(i, b"key", b"v" * 100, ()) for i in range(500)])
    data = bytes(one) * 12
    found: list[Any] = []

    def read() -> None:
        builder = columns.ColumnBuilder()
        builder.add_batches(data, 0, len(data), *EVER, *MANY)
        found.append(rows(builder.finish()))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    once = expected(decode_records(one, 61, len(one), 500, 0, 0), 0, False)
    assert found == [once * 12] * 3


WITHOUT_MEMORY = """
import resource
from ottla.records import _kernel
from ottla.records.kernel import encode_records

large = bytearray(1 << 28)
record = bytes(encode_records([(0, b"k", b"v" * 100, ())], 0)[0])
large[: len(record)] = record
builder = _kernel.ColumnBuilder(True)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 27), -1))
try:
    builder.add_records(large, 0, len(large), 1, 0, 0, None, 0, 1)
except MemoryError:
    assert builder.size_bytes == 0, builder.size_bytes
    assert builder.add_records(record, 0, len(record), 1, 0, 0, None, 0, 1) == 1
    columns = builder.finish()
    assert bytes(columns.value_data) == b"v" * 100, bytes(columns.value_data)[:10]
    print("went on")
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="a limit on memory is a matter of Linux")
def test_columns_that_found_no_memory_go_on_with_the_next_section() -> None:
    pytest.importorskip("ottla.records._kernel")
    # Fresh memory is filled with something, so that what nobody has written is not zero by chance.
    env = {**os.environ, "MALLOC_PERTURB_": "90"}
    done = subprocess.run([sys.executable, "-c", WITHOUT_MEMORY], env=env, capture_output=True, text=True)
    assert done.stdout == "went on\n", done.stderr
