"""Cutting a stream into frames, however it arrives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.errors import ProtocolError
from ottla.net.connection import FrameReader


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(1, 30), min_size=1, max_size=50))
def test_frames_come_out_whole_whatever_the_cuts(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(_frame, bodies))
    reader, got, position = FrameReader(1000), [], 0
    while position < len(stream):
        step = cuts[position % len(cuts)]
        got += [bytes(frame) for frame in reader.feed(stream[position : position + step])]
        position += step
    assert got == bodies


@pytest.mark.parametrize("size", [-1, 1001, 0x48545450])
def test_a_size_out_of_bounds_is_refused_at_once(size: int) -> None:
    with pytest.raises(ProtocolError, match=r"frame of -?\d+ bytes was announced|HTTP"):
        FrameReader(1000).feed((size & 0xFFFFFFFF).to_bytes(4, "big"))


def test_frames_stay_valid_after_later_feeds() -> None:
    reader = FrameReader(1000)
    first = reader.feed(_frame(b"one") + b"\x00")[0]
    reader.feed(b"\x00\x00\x03two")
    assert bytes(first) == b"one"
