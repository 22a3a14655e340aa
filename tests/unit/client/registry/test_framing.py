"""Confluent's wire format: frames, message indexes, and bytes that are neither."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.registry.framing import FrameError, frame, read_indexes, schema_id, write_indexes


@given(st.integers(1, 2**31 - 1), st.binary(max_size=9))
def test_an_id_comes_back(number: int, payload: bytes) -> None:
    assert schema_id(frame(number) + payload) == number


def test_the_bytes_are_those_of_the_other_serializers() -> None:
    assert frame(258) == b"\x00\x00\x00\x01\x02"
    assert write_indexes([0]) == b"\x00"
    assert write_indexes([1]) == b"\x02\x02"
    assert write_indexes([2, 0]) == b"\x04\x04\x00"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "this is 0"),
        (b"\0\0\0\1", "this is 4"),
        (b"{}   ", "begins with 0x7b"),
        (b"\0\0\0\0\0", "0 is no schema id"),
        (b"\0\xff\xff\xff\xff", "4294967295 is no schema id"),
    ],
)
def test_what_is_no_frame(value: bytes, words: str) -> None:
    with pytest.raises(FrameError, match=words):
        schema_id(value)


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=64), st.binary(max_size=5))
def test_indexes_come_back(indexes: list[int], payload: bytes) -> None:
    value = frame(1) + write_indexes(indexes) + payload
    found, at = read_indexes(value)
    assert list(found) == indexes
    assert value[at:] == payload


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (b"", "ends within"),
        (b"\x04\x02", "ends within"),
        (b"\x80\x80\x80\x80\x80\x80", "does not end"),
        (b"\x01", "-1 message indexes"),
        (b"\x82\x01", "65 message indexes"),
        (b"\x02\x01", "the message index -1"),
    ],
)
def test_indexes_that_are_none(after: bytes, words: str) -> None:
    with pytest.raises(FrameError, match=words):
        read_indexes(frame(1) + after)


@given(st.binary(max_size=40))
def test_garbage_is_a_frame_error_or_a_frame(value: bytes) -> None:
    try:
        assert schema_id(value) > 0
        _, at = read_indexes(value)
        assert at <= len(value)
    except FrameError:
        pass
