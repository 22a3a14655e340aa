"""The kernel's functions, each on the compiled implementation and on its twin."""

import struct
import threading
from types import ModuleType

import pytest
from tests.unit.records.java_vectors import JAVA

from ottla.model.errors import ErrorCode
from ottla.records.batch import BATCH_HEADER, compute_crc
from ottla.records.record import build_batch
from ottla.records.types import InvalidRecordError, Problem, Record

RECORDS = [
    (1000, b"key", b"value", (("h", b"x"), ("n", None))),
    (900, None, b"", ()),
    (1100, b"", None, ()),
]


def section(kernel: ModuleType, records: object = RECORDS, base: int = 1000) -> bytearray:
    return kernel.encode_records(records, base)[0]


def one_record(
    kernel: ModuleType,
    offset_delta: int,
    timestamp_delta: int,
    key: object,
    value: object,
    headers: object = (),
) -> bytearray:
    return kernel.encode_records([(timestamp_delta, key, value, headers)], 0, [offset_delta])[0]


def sealed(data: bytearray) -> bytearray:
    struct.pack_into(">I", data, 17, compute_crc(data, 0, len(data)))
    return data


def test_round_trip(kernel: ModuleType) -> None:
    data, highest = kernel.encode_records(RECORDS, 1000, None, 10)
    assert data[:10] == bytes(10)
    assert highest == 1100
    assert kernel.decode_records(data, 10, len(data), 3, 50, 1000) == [
        Record(50, 1000, b"key", b"value", (("h", b"x"), ("n", None)), -1),
        Record(51, 900, None, b"", (), -1),
        Record(52, 1100, b"", None, (), -1),
    ]


def test_decoded_records_are_records(kernel: ModuleType) -> None:
    data = section(kernel)
    first = kernel.decode_records(data, 0, len(data), 3, 50, 1000)[0]
    assert type(first) is Record
    assert (first.offset, first.key, first._replace(value=None).value) == (50, b"key", None)


def test_decoded_records_hash_like_tuples(kernel: ModuleType) -> None:
    data = section(kernel)
    for record in kernel.decode_records(data, 0, len(data), 3, 50, 1000):
        assert hash(record) == hash(tuple(record))
        assert record in {tuple(record)}


def test_sequences_and_append_time(kernel: ModuleType) -> None:
    data = section(kernel)
    records = kernel.decode_records(data, 0, len(data), 3, 0, 1000, 2**31 - 2, 7777)
    assert [record.sequence for record in records] == [2**31 - 2, 2**31 - 1, 0]
    assert {record.timestamp for record in records} == {7777}


def test_deltas_wrap_as_in_java(kernel: ModuleType) -> None:
    data = bytes(one_record(kernel, 1, 2**63 - 1, None, None))
    [record] = kernel.decode_records(data, 0, len(data), 1, 2**63 - 1, 1)
    assert (record.offset, record.timestamp) == (-(2**63), -(2**63))


def test_header_names_that_are_not_text_are_replaced(kernel: ModuleType) -> None:
    data = one_record(kernel, 0, 0, None, None, [(b"\xff\xfe", b"v")])
    [record] = kernel.decode_records(data, 0, len(data), 1, 0, 0)
    assert record.headers == (("��", b"v"),)


@pytest.mark.parametrize(
    "value", [0, 1, -1, 63, -64, 64, -65, 8191, 8192, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]
)
def test_every_size_of_varint(kernel: ModuleType, value: int) -> None:
    data = one_record(kernel, 0, value, None, None)
    [record] = kernel.decode_records(data, 0, len(data), 1, 0, 0)
    assert record.timestamp == value


@pytest.mark.parametrize("size", [0, 1, 50, 51, 52, 60, 63, 64, 8180, 8192, 70_000, 1_100_000])
def test_every_size_of_record_length(kernel: ModuleType, size: int) -> None:
    for headers in ((), [("name", b"h" * size)]):
        value = None if headers else b"v" * size
        data = one_record(kernel, 0, 0, bytearray(b"k"), value, headers)
        [record] = kernel.decode_records(data, 0, len(data), 1, 0, 0)
        assert record.value == value
        assert record.headers == tuple(headers)


def test_bytes_like_keys_and_values(kernel: ModuleType) -> None:
    plain = one_record(kernel, 3, 4, b"key", b"value")
    assert one_record(kernel, 3, 4, bytearray(b"key"), memoryview(b"value")) == plain
    assert kernel.encode_records([[4, b"key", b"value", []]], 0, [3])[0] == plain


@pytest.mark.parametrize(
    ("records", "error"),
    [
        ([(0, "text", b"", ())], TypeError),
        ([(0, b"", 5, ())], TypeError),
        ([(0, b"", b"", None)], TypeError),
        ([(0, b"", b"", [(None, b"")])], TypeError),
        ([(0, b"", b"", [("k", b"", b"")])], ValueError),
        ([(0, b"", b"")], ValueError),
        ([("0", b"", b"", ())], TypeError),
        ([(2**63, b"", b"", ())], OverflowError),
    ],
)
def test_what_is_no_record_is_refused(kernel: ModuleType, records: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        kernel.encode_records(records, 0)


def test_offset_deltas_must_match(kernel: ModuleType) -> None:
    with pytest.raises(ValueError, match="one offset delta"):
        kernel.encode_records(RECORDS, 0, [0, 1])
    with pytest.raises(OverflowError):
        kernel.encode_records(RECORDS, 0, [0, 1, 2**31])


NO_TIME_IS_BAD = (-(2**63), 2**63 - 1)


def judged(
    kernel: ModuleType,
    data: bytes | bytearray,
    count: int,
    require_key: bool = False,
    times: tuple[int, int] = NO_TIME_IS_BAD,
    limit: int = 10,
    append_time: int | None = None,
) -> tuple[int, int, list[tuple[int, int, int]]]:
    return kernel.judge_records(data, 0, len(data), count, require_key, 1000, append_time, *times, limit)


def test_nothing_wrong(kernel: ModuleType) -> None:
    data = section(kernel)
    assert judged(kernel, data, 3) == (0, 0, [])
    assert kernel.summarize_records(data, 0, len(data), 3, 1000, False) == (0, -1, 900, 1100)
    assert kernel.summarize_records(b"", 0, 0, 0, 1000, False) == (0, -1, -1, -1)


def test_missing_keys_are_named(kernel: ModuleType) -> None:
    data = section(kernel)
    assert judged(kernel, data, 3, True) == (1, 0, [(1, Problem.NO_KEY, 900)])
    assert kernel.summarize_records(data, 0, len(data), 3, 1000, True)[:2] == (Problem.NO_KEY, 1)


def test_wrong_deltas_are_found(kernel: ModuleType) -> None:
    data = kernel.encode_records(RECORDS, 1000, [0, 2, 2])[0]
    assert kernel.summarize_records(data, 0, len(data), 3, 1000, False)[:2] == (Problem.OFFSET_DELTA, 1)
    data = kernel.encode_records(RECORDS, 1000, [1, 0, 2])[0]
    assert kernel.summarize_records(data, 0, len(data), 3, 1000, True)[:2] == (Problem.NO_KEY, 1)


def test_the_first_wrong_delta_ends_the_look_where_numbers_are_asked_for(kernel: ModuleType) -> None:
    data = kernel.encode_records(RECORDS, 1000, [0, 2, 2])[0] + b"\x00"  # a broken end, too
    assert kernel.summarize_records(data, 0, len(data), 3, 1000, False)[0] == Problem.TRAILING_BYTES
    found = kernel.summarize_records(data, 0, len(data), 3, 1000, True, True)
    assert found == (Problem.OFFSET_DELTA, 1, 900, 1000)
    data = section(kernel)
    assert kernel.summarize_records(data, 0, len(data), 3, 1000, True, True)[:2] == (Problem.NO_KEY, 1)


def test_timestamps_out_of_range_are_named(kernel: ModuleType) -> None:
    data = section(kernel)
    assert judged(kernel, data, 3, times=(900, 1100)) == (0, 0, [])
    early, late = (1, Problem.BAD_TIMESTAMP, 900), (2, Problem.BAD_TIMESTAMP, 1100)
    assert judged(kernel, data, 3, times=(901, 1099)) == (2, 2, [early, late])
    assert judged(kernel, data, 3, True, times=(901, 1099)) == (2, 1, [(1, Problem.NO_KEY, 900), late])
    assert judged(kernel, data, 3, times=(901, 1099), limit=1) == (2, 2, [early])
    assert judged(kernel, data, 3, times=(901, 1099), limit=0) == (2, 2, [])
    assert judged(kernel, data, 3, times=(901, 1099), append_time=950) == (0, 0, [])
    assert judged(kernel, data, 3, times=(901, 1099), append_time=900)[:2] == (3, 3)
    none = section(kernel, [(-1, b"k", b"v", ())])
    assert judged(kernel, none, 1, times=(901, 1099)) == (0, 0, [])


@pytest.mark.parametrize("limit", [-1, 1001])
def test_no_more_records_are_named_than_there_is_room_for(kernel: ModuleType, limit: int) -> None:
    with pytest.raises(ValueError, match="0 to 1000"):
        judged(kernel, b"", 0, limit=limit)


def test_the_first_record_at_or_after_a_time_and_an_offset(kernel: ModuleType) -> None:
    data = section(kernel)

    def find(timestamp: int, start_offset: int = 0, append_time: int | None = None) -> tuple[int, int] | None:
        return kernel.find_timestamp(data, 0, len(data), 3, 50, 1000, append_time, timestamp, start_offset)

    assert find(0) == (50, 1000)
    assert find(1001) == (52, 1100)
    assert find(0, 51) == (51, 900)
    assert find(1101) is None
    assert find(0, 53) is None
    assert find(1101, 51, append_time=1101) == (51, 1101)


def test_renumbering(kernel: ModuleType) -> None:
    odd = [*RECORDS, (1000, b"k", b"v", [(b"\xff", b"not text")])]
    data = kernel.encode_records(odd, 1000, [7, 7, 0, 2**31 - 1])[0]
    renumbered = kernel.renumber_records(data, 0, len(data), 4, 61)
    assert renumbered == bytes(61) + kernel.encode_records(odd, 1000)[0]
    with pytest.raises(ValueError, match="negative count"):
        kernel.renumber_records(data, 0, len(data), 4, -1)


def record_bytes(*body: int) -> bytes:
    return bytes([len(body) * 2, *body])


BROKEN = [
    (b"", 1, Problem.TOO_FEW_RECORDS, 0),
    (b"", -1, Problem.NEGATIVE_COUNT, 0),
    (b"\x00", 0, Problem.TRAILING_BYTES, 0),
    (b"\x80", 1, Problem.BAD_VARINT, 0),
    (b"\x80\x80\x80\x80\x80\x00", 1, Problem.BAD_VARINT, 0),
    (b"\x00", 1, Problem.FIELD_PAST_END, 0),
    (b"\x01", 1, Problem.BAD_RECORD_SIZE, 0),
    (b"\x0e\x00\x00", 1, Problem.BAD_RECORD_SIZE, 0),
    (record_bytes(0), 1, Problem.BAD_VARINT, 0),
    (record_bytes(0, *([0x80] * 10), 0, 0, 1, 1, 0), 1, Problem.BAD_VARINT, 0),
    (record_bytes(0, 0), 1, Problem.BAD_VARINT, 0),
    (record_bytes(0, 0, 0), 1, Problem.BAD_VARINT, 0),
    (record_bytes(0, 0, 0, 4, 1, 1, 0), 1, Problem.BAD_VARINT, 0),
    (record_bytes(0, 0, 0, 8, 1, 1, 0), 1, Problem.FIELD_PAST_END, 0),
    (record_bytes(0, 0, 0, 1, 8, 0), 1, Problem.FIELD_PAST_END, 0),
    (record_bytes(0, 0, 0, 1, 1, 1), 1, Problem.BAD_HEADERS, 0),
    (record_bytes(0, 0, 0, 1, 1, 2), 1, Problem.BAD_HEADERS, 0),
    (record_bytes(0, 0, 0, 1, 1, 2, 1, 1), 1, Problem.BAD_HEADERS, 0),
    (record_bytes(0, 0, 0, 1, 1, 2, 2, 0), 1, Problem.BAD_VARINT, 0),
    (record_bytes(0, 0, 0, 1, 1, 2, 6, 0), 1, Problem.FIELD_PAST_END, 0),
    (record_bytes(0, 0, 0, 1, 1, 0, 0), 1, Problem.SIZE_MISMATCH, 0),
    (record_bytes(0, 0, 0, 1, 1, 0) + b"\x00", 1, Problem.TRAILING_BYTES, 1),
    (record_bytes(0, 0, 0, 1, 1, 0), 2, Problem.TOO_FEW_RECORDS, 1),
    (record_bytes(0, 0, 0, 1, 1, 0), 2**31 - 1, Problem.TOO_FEW_RECORDS, 1),
    (record_bytes(0, 0, 0, 1, 1, 0) + b"\x02\x00", 2, Problem.BAD_VARINT, 1),
]


@pytest.mark.parametrize(("data", "count", "problem", "index"), BROKEN)
def test_broken_structure(kernel: ModuleType, data: bytes, count: int, problem: Problem, index: int) -> None:
    assert kernel.summarize_records(data, 0, len(data), count, 0, False)[:2] == (problem, index)
    for call in (
        lambda: kernel.decode_records(data, 0, len(data), count, 0, 0),
        lambda: kernel.find_timestamp(data, 0, len(data), count, 0, 0, None, 1, 0),
        lambda: judged(kernel, data, count),
        lambda: kernel.renumber_records(data, 0, len(data), count),
    ):
        with pytest.raises(InvalidRecordError) as caught:
            call()
        assert (caught.value.problem, caught.value.index) == (problem, index)
        assert caught.value.code is ErrorCode.INVALID_RECORD


def test_any_negative_length_is_null_as_in_java(kernel: ModuleType) -> None:
    data = record_bytes(0, 0, 0, 3, 5, 2, 2, ord("h"), 7)
    [record] = kernel.decode_records(data, 0, len(data), 1, 0, 0)
    assert (record.key, record.value, record.headers) == (None, None, (("h", None),))


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (2, 1), (0, 4), (4, 4)])
def test_ranges_outside_the_buffer_are_errors_of_the_caller(kernel: ModuleType, start: int, end: int) -> None:
    for call in (
        lambda: kernel.judge_records(b"abc", start, end, 1, False, 0, None, 0, 0, 0),
        lambda: kernel.find_timestamp(b"abc", start, end, 1, 0, 0, None, 0, 0),
        lambda: kernel.renumber_records(b"abc", start, end, 1),
        lambda: kernel.check_batch(b"abc", start, end, False),
        lambda: kernel.decode_records(b"abc", start, end, 1, 0, 0),
    ):
        with pytest.raises(ValueError, match="does not lie in a buffer"):
            call()


@pytest.mark.parametrize("name", ["none", "transactional", "commit", "plain", "kept_none"])
def test_check_batch_accepts_what_java_wrote(kernel: ModuleType, name: str) -> None:
    data = b"xx" + JAVA[name] + b"yyy"
    result = kernel.check_batch(memoryview(data), 2, len(data), False)
    assert result[:13] == BATCH_HEADER.unpack_from(data, 2)
    assert result[13] == Problem.NONE


def test_check_batch_finds_the_timestamps(kernel: ModuleType) -> None:
    check = kernel.check_batch(JAVA["none"], 0, len(JAVA["none"]), False)
    assert check[13:] == (0, 1_699_999_999_000, 1_700_000_000_007)
    check = kernel.check_batch(JAVA["append_time"], 0, len(JAVA["append_time"]), False)
    assert check[13:] == (0, 1_800_000_000_000, 1_800_000_000_000)
    check = kernel.check_batch(JAVA["zstd"], 0, len(JAVA["zstd"]), False)
    assert check[13:] == (0, -1, 1_700_000_000_007)


def test_check_batch_leaves_out_records_without_timestamp(kernel: ModuleType) -> None:
    data = build_batch([(-1, None, b"", ()), (50, None, b"", ()), (40, None, b"", ())])
    assert kernel.check_batch(data, 0, len(data), False)[13:] == (0, 40, 50)
    data = build_batch([(-1, None, b"", ())])
    assert kernel.check_batch(data, 0, len(data), False)[13:] == (0, -1, -1)


def test_check_batch_asks_for_keys(kernel: ModuleType) -> None:
    assert kernel.check_batch(JAVA["none"], 0, len(JAVA["none"]), True)[13] == Problem.NO_KEY


def patched(position: int, form: str, value: int) -> bytearray:
    data = bytearray(JAVA["plain"])
    struct.pack_into(form, data, position, value)
    return data


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", Problem.TORN),
        (JAVA["plain"][:16], Problem.TORN),
        (JAVA["plain"][:60], Problem.TORN),
        (JAVA["plain"][:-1], Problem.TORN),
        (patched(8, ">i", 13), Problem.BAD_LENGTH),
        (patched(8, ">i", 48), Problem.BAD_LENGTH),
        (patched(8, ">i", -5), Problem.BAD_LENGTH),
        (patched(8, ">i", 2**31 - 1), Problem.TORN),
        (patched(16, ">b", 0), Problem.OLD_MAGIC),
        (patched(16, ">b", 1), Problem.OLD_MAGIC),
        (patched(16, ">b", 3), Problem.UNKNOWN_MAGIC),
        (patched(16, ">b", -1), Problem.UNKNOWN_MAGIC),
        (patched(17, ">I", 1), Problem.BAD_CRC),
        (patched(100, ">b", 1), Problem.BAD_CRC),
        (sealed(patched(57, ">i", 4)), Problem.TRAILING_BYTES),
        (sealed(patched(57, ">i", 6)), Problem.TOO_FEW_RECORDS),
        (sealed(patched(57, ">i", -1)), Problem.NEGATIVE_COUNT),
        (sealed(patched(61, ">b", 2)), Problem.BAD_VARINT),
    ],
)
def test_check_batch_refuses(kernel: ModuleType, data: bytes, problem: Problem) -> None:
    result = kernel.check_batch(data, 0, len(data), False)
    assert result[13] == problem
    assert result[:13] == (BATCH_HEADER.unpack_from(data) if len(data) >= 61 else (0,) * 13)


def test_large_input_is_worked_on_all_the_same(kernel: ModuleType) -> None:
    data = build_batch([(i, b"k", b"v" * 5000, ()) for i in range(150)])
    assert len(data) > 512 * 1024
    check = kernel.check_batch(data, 0, len(data), True)
    assert check[13:] == (0, 0, 149)
    assert kernel.check_batch(data, 0, len(data), True, True)[13:] == (0, -1, 149)
    assert kernel.find_timestamp(data, 61, len(data), 150, 0, 0, None, 77, 0) == (77, 77)
    assert kernel.summarize_records(data, 61, len(data), 150, 0, True) == (0, -1, 0, 149)
    assert kernel.crc32c(memoryview(data)[21:]) == check[4]
    data = build_batch([(i, None if i == 77 else b"k", b"v" * 5000, ()) for i in range(150)])
    found = kernel.judge_records(data, 61, len(data), 150, True, 0, None, 0, 148, 2)
    assert found == (2, 1, [(77, Problem.NO_KEY, 77), (149, Problem.BAD_TIMESTAMP, 149)])
    zeros = build_batch([(i, b"k", b"v" * 5000, ()) for i in range(150)], offset_deltas=[0] * 150)
    renumbered = kernel.renumber_records(zeros, 61, len(zeros), 150)
    assert [record.offset for record in kernel.decode_records(renumbered, 0, len(renumbered), 150, 0, 0)] == [
        *range(150)
    ]


@pytest.mark.parametrize(("data", "crc"), [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA)])
def test_crc32c_known_values(kernel: ModuleType, data: bytes, crc: int) -> None:
    assert kernel.crc32c(data) == crc
    assert kernel.crc32c(data[4:], kernel.crc32c(data[:4])) == crc


def test_rebuild_keeps_what_the_mask_says(kernel: ModuleType) -> None:
    data = section(kernel)
    rebuilt, base, highest, retained = kernel.rebuild_records(data, 0, len(data), 3, b"\x00\x01\x01", 1000)
    assert (base, highest, retained) == (900, 1100, 2)
    decoded = kernel.decode_records(rebuilt, 0, len(rebuilt), 2, 0, base)
    assert [(r.offset, r.timestamp, r.key, r.value) for r in decoded] == [
        (1, 900, None, b""),
        (2, 1100, b"", None),
    ]


def test_rebuild_on_a_given_base_and_with_append_time(kernel: ModuleType) -> None:
    data = section(kernel)
    rebuilt, base, highest, _ = kernel.rebuild_records(data, 0, len(data), 3, b"\x01\x01\x01", 1000, None, 5)
    assert (base, highest) == (5, 1100)
    decoded = kernel.decode_records(rebuilt, 0, len(rebuilt), 3, 0, 5)
    assert [record.timestamp for record in decoded] == [1000, 900, 1100]
    rebuilt, base, highest, _ = kernel.rebuild_records(data, 0, len(data), 3, b"\x01\x01\x01", 1000, 4000)
    assert (base, highest) == (4000, 4000)
    decoded = kernel.decode_records(rebuilt, 0, len(rebuilt), 3, 0, base)
    assert [record.timestamp for record in decoded] == [4000, 4000, 4000]


def test_rebuild_of_nothing_and_of_bad_input(kernel: ModuleType) -> None:
    data = section(kernel)
    assert kernel.rebuild_records(data, 0, len(data), 3, bytes(3), 1000) == (b"", -1, -1, 0)
    with pytest.raises(ValueError, match="mask"):
        kernel.rebuild_records(data, 0, len(data), 3, bytes(2), 1000)
    with pytest.raises(InvalidRecordError):
        kernel.rebuild_records(data, 0, len(data) - 1, 3, bytes(3), 1000)


def test_threads_may_check_at_once(kernel: ModuleType) -> None:
    data = build_batch([(i, b"k", b"v" * 60_000, ()) for i in range(10)])
    expected = kernel.check_batch(data, 0, len(data), True)
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda: results.append(kernel.check_batch(data, 0, len(data), True)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4
