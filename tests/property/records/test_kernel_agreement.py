"""The compiled kernel and its twin agree on whatever bytes they are given: answers, errors and all."""

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.records import _kernel_py as twin
from ottla.records import _kernel_py as twin_map
from ottla.records.batch import BATCH_HEADER, compute_crc
from ottla.records.record import build_batch
from ottla.records.types import InvalidRecordError

compiled: ModuleType = pytest.importorskip("ottla.records._kernel")

SECRET = os.urandom(16)
INT64 = st.integers(-(2**63), 2**63 - 1)
nullable_bytes = st.none() | st.binary(max_size=80)
headers = st.lists(st.tuples(st.text(max_size=8), nullable_bytes), max_size=3)
new_records = st.lists(st.tuples(INT64, nullable_bytes, nullable_bytes, headers), min_size=1, max_size=12)
# Small numbers make nearly valid records, which is where two parsers would part.
nearly = st.lists(st.integers(0, 12) | st.integers(0, 255), max_size=60).map(bytes)


@st.composite
def mutated_sections(draw: st.DrawFn) -> tuple[bytes, int]:
    records = draw(new_records)
    data = bytearray(twin.encode_records(records, 0)[0])
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(0, len(data) - 1))
        data[position] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    return bytes(data), draw(st.just(len(records)) | st.integers(-2, 20) | st.just(2**31 - 1))


sections = mutated_sections() | st.tuples(nearly, st.integers(-1, 10))


def outcome(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except InvalidRecordError as error:
        return ("invalid", error.problem, error.index, str(error))
    except (OverflowError, TypeError, ValueError) as error:
        return type(error)


def agree(name: str, *args: Any) -> Any:
    ours = outcome(getattr(compiled, name), *args)
    assert ours == outcome(getattr(twin, name), *args)
    return ours


@given(sections, st.booleans(), INT64, st.booleans())
@settings(max_examples=400)
def test_checks_agree(
    section: tuple[bytes, int], require_key: bool, base_timestamp: int, numbered: bool
) -> None:
    data, count = section
    agree("summarize_records", data, 0, len(data), count, base_timestamp, require_key, numbered)


@given(sections, st.booleans(), INT64, st.none() | INT64, INT64, INT64, st.integers(-1, 5))
@settings(max_examples=400)
def test_judges_agree(
    section: tuple[bytes, int],
    require_key: bool,
    base: int,
    append_time: int | None,
    earliest: int,
    latest: int,
    limit: int,
) -> None:
    data, count = section
    agree("judge_records", data, 0, len(data), count, require_key, base, append_time, earliest, latest, limit)


@given(sections, INT64, INT64, st.none() | INT64, INT64, INT64)
@settings(max_examples=200)
def test_searches_agree(
    section: tuple[bytes, int], offset: int, base: int, append_time: int | None, wanted: int, start: int
) -> None:
    data, count = section
    agree("find_timestamp", data, 0, len(data), count, offset, base, append_time, wanted, start)


@given(sections, st.integers(0, 70))
@settings(max_examples=200)
def test_renumbering_agrees(section: tuple[bytes, int], reserve: int) -> None:
    data, count = section
    renumbered = agree("renumber_records", data, 0, len(data), count, reserve)
    if isinstance(renumbered, bytearray):
        agree("summarize_records", renumbered, reserve, len(renumbered), count, 0, False, True)
        assert compiled.summarize_records(renumbered, reserve, len(renumbered), count, 0, False)[0] == 0


@given(sections, INT64, INT64, st.integers(-1, 2**31 - 1), st.none() | INT64)
@settings(max_examples=400)
def test_readers_agree(
    section: tuple[bytes, int], base_offset: int, base_timestamp: int, sequence: int, append_time: int | None
) -> None:
    data, count = section
    agree("decode_records", data, 0, len(data), count, base_offset, base_timestamp, sequence, append_time)


@given(new_records, INT64, st.data())
@settings(max_examples=200)
def test_writers_agree_and_are_read_back(records: list[Any], base: int, data: st.DataObject) -> None:
    deltas = data.draw(st.none() | st.lists(st.integers(-(2**31), 2**31 - 1), max_size=12))
    result = agree("encode_records", records, base, deltas, data.draw(st.integers(0, 70)))
    if deltas is not None:
        return
    section, highest = result
    assert highest == max(-1, *(record[0] for record in records))
    start = len(section) - len(twin.encode_records(records, base)[0])
    decoded = compiled.decode_records(section, start, len(section), len(records), 0, base)
    assert [(r.timestamp, r.key, r.value, list(r.headers)) for r in decoded] == records


@given(sections, st.data(), INT64, st.none() | INT64, st.none() | INT64)
@settings(max_examples=200)
def test_rebuilders_agree(
    section: tuple[bytes, int], data: st.DataObject, base: int, append_time: int | None, new_base: int | None
) -> None:
    buf, count = section
    mask = data.draw(st.binary(min_size=max(0, min(count, 30)), max_size=max(0, min(count, 30))))
    agree("rebuild_records", buf, 0, len(buf), count, mask, base, append_time, new_base)


@st.composite
def mutated_batches(draw: st.DrawFn) -> bytes:
    fields = {"timestamp_type": draw(st.integers(0, 1)), "compression": draw(st.sampled_from([0, 0, 0, 1]))}
    data = build_batch(draw(new_records.map(in_range)), max_timestamp=draw(INT64), **fields)
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        BATCH_HEADER.pack_into(
            data,
            0,
            *(*BATCH_HEADER.unpack_from(data)[:4], compute_crc(data, 0, len(data))),
            *BATCH_HEADER.unpack_from(data)[5:],
        )
    return bytes(data[: draw(st.just(len(data)) | st.integers(0, len(data)))])


def in_range(records: list[Any]) -> list[Any]:
    return [(abs(record[0]) >> 2, *record[1:]) for record in records]


@given(mutated_batches() | st.binary(max_size=130), st.booleans(), st.integers(0, 3), st.booleans())
@settings(max_examples=400)
def test_batch_checks_agree(data: bytes, require_key: bool, lead: int, without_records: bool) -> None:
    buf = b"\x00" * lead + data + b"\x00" * lead
    agree("check_batch", buf, lead, lead + len(data), require_key, without_records)


@given(st.binary(max_size=3000), st.integers(0, 3000), st.integers(0, 2**32 - 1))
def test_checksums_agree(data: bytes, cut: int, value: int) -> None:
    view = memoryview(data)[cut:]
    assert compiled.crc32c(view, value) == twin.crc32c(view, value)


@given(st.binary(min_size=1, max_size=64), st.integers(1, 2000))
@settings(max_examples=30)
def test_checksums_of_long_input_agree(pattern: bytes, times: int) -> None:
    data = pattern * times
    assert compiled.crc32c(data) == twin.crc32c(data)


@given(
    sections, st.integers(0, 40), st.integers(-5, 40), st.integers(0, 12), st.integers(0, 50), st.booleans()
)
@settings(max_examples=300)
def test_offset_maps_agree(
    section: tuple[bytes, int], base: int, start: int, limit: int, latest: int, deletes: bool
) -> None:
    data, count = section
    maps = [compiled.OffsetMap(24 * 8, SECRET), twin_map.OffsetMap(24 * 8, SECRET)]
    taken = [outcome(m.put_records, data, 0, len(data), count, base, start, limit) for m in maps]
    assert taken[0] == taken[1]
    assert len(maps[0]) == len(maps[1])
    masks = [outcome(m.retain_mask, data, 0, len(data), count, base, latest, deletes) for m in maps]
    assert masks[0] == masks[1]
