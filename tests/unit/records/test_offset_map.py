"""The cleaner's map, compiled and not."""

import os
import threading

import pytest

from ottla.records.record import build_batch
from ottla.records.types import InvalidRecordError, Problem

SECRET = os.urandom(16)


def test_keeps_the_newest_offset(offset_map: type) -> None:
    offsets = offset_map(24 * 100, SECRET)
    assert (offsets.slots, len(offsets)) == (100, 0)
    assert offsets.put(b"a", 5)
    assert offsets.put(bytearray(b"a"), 3)
    assert offsets.put(memoryview(b"b"), 0)
    assert (offsets.get(b"a"), offsets.get(b"b"), offsets.get(b"c")) == (5, 0, -1)
    assert len(offsets) == 2
    offsets.clear()
    assert (len(offsets), offsets.get(b"a")) == (0, -1)


def test_fills_to_the_last_slot(offset_map: type) -> None:
    offsets = offset_map(24 * 50 + 23, SECRET)
    assert [offsets.put(b"key%d" % i, i) for i in range(51)] == [True] * 50 + [False]
    assert [offsets.get(b"key%d" % i) for i in range(51)] == [*range(50), -1]
    assert offsets.put(b"key7", 1000)
    assert offsets.get(b"key7") == 1000


def test_refuses_nonsense(offset_map: type) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        offset_map(2400, b"short")
    with pytest.raises(ValueError, match="24 bytes"):
        offset_map(23, SECRET)
    with pytest.raises(ValueError, match="negative"):
        offset_map(2400, SECRET).put(b"k", -1)
    with pytest.raises(TypeError):
        offset_map(2400, SECRET).get("text")


def test_keys_of_every_length_are_told_apart(offset_map: type) -> None:
    offsets = offset_map(24 * 1000, SECRET)
    for length in range(300):
        offsets.put(b"\x00" * length, length)
    assert len(offsets) == 300
    assert all(offsets.get(b"\x00" * length) == length for length in range(300))


def test_takes_the_keys_of_a_batch(offset_map: type) -> None:
    data = build_batch([(0, None if i == 3 else b"k%d" % (i % 5), b"", ()) for i in range(10)])
    offsets = offset_map(2400, SECRET)
    assert offsets.put_records(data, 61, len(data), 10, 100, 102, 50) == 10
    assert [offsets.get(b"k%d" % i) for i in range(5)] == [105, 106, 107, 108, 109]
    offsets.clear()
    assert offsets.put_records(data, 61, len(data), 10, 100, 108, 50) == 10
    assert len(offsets) == 2


def test_stops_where_it_is_full(offset_map: type) -> None:
    data = build_batch([(0, b"k%d" % i, b"", ()) for i in range(10)])
    offsets = offset_map(24 * 6, SECRET)
    assert offsets.put_records(data, 61, len(data), 10, 0, 0, 4) == 4
    assert offsets.put_records(data, 61, len(data), 10, 0, 5, 100) == 7
    assert len(offsets) == 6
    assert offsets.put_records(data, 61, len(data), 10, 0, 0, -5) == 0


def test_masks_what_stays(offset_map: type) -> None:
    records = [
        (0, b"a", b"1", ()),
        (0, b"b", None, ()),
        (0, b"a", b"2", ()),
        (0, None, b"", ()),
        (0, b"z", b"", ()),
    ]
    data = build_batch(records)
    offsets = offset_map(2400, SECRET)
    offsets.put_records(data, 61, len(data), 5, 100, 0, 50)
    assert offsets.retain_mask(data, 61, len(data), 5, 100, 104, True) == (b"\x00\x01\x01\x00\x01", 3, True)
    assert offsets.retain_mask(data, 61, len(data), 5, 100, 104, False) == (b"\x00\x00\x01\x00\x01", 2, False)
    assert offsets.retain_mask(data, 61, len(data), 5, 100, 102, False) == (b"\x00\x00\x01\x01\x01", 3, False)
    assert offsets.retain_mask(data, 61, len(data), 5, 100, 99, False) == (b"\x01" * 5, 5, True)


def test_broken_sections_raise(offset_map: type) -> None:
    data = build_batch([(0, b"k", b"", ())])
    offsets = offset_map(2400, SECRET)
    for count in (2, 2**31 - 1):
        with pytest.raises(InvalidRecordError) as caught:
            offsets.put_records(data, 61, len(data), count, 0, 0, 10)
        assert caught.value.problem is Problem.TOO_FEW_RECORDS
        with pytest.raises(InvalidRecordError) as caught:
            offsets.retain_mask(data, 61, len(data), count, 0, 0, True)
        assert (caught.value.problem, caught.value.index) == (Problem.TOO_FEW_RECORDS, 1)
    with pytest.raises(InvalidRecordError):
        offsets.retain_mask(data, 61, len(data), -1, 0, 0, True)


def test_two_threads_at_once_are_refused_or_in_turn(offset_map: type) -> None:
    data = build_batch([(0, os.urandom(8), bytes(100), ()) for _ in range(2000)])
    offsets = offset_map(24 * 5000, SECRET)
    outcomes: list[object] = []

    def put() -> None:
        try:
            outcomes.append(offsets.put_records(data, 61, len(data), 2000, 0, 0, 5000))
        except RuntimeError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=put) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 4
    assert set(outcomes) <= {2000, "the offset map is in use by another thread"}
    assert 2000 in outcomes
    assert len(offsets) == 2000
