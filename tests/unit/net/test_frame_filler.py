"""Reading a stream into the buffers of its frames, however it arrives."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.errors import ProtocolError
from ottla.net.connection import _LARGEST_CLEARED_BYTES, _SCRATCH_BYTES, FrameFiller

LIMIT = 4 * _SCRATCH_BYTES


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def pour(filler: FrameFiller, stream: bytes, cuts: list[int]) -> list[memoryview]:
    """As a socket would: never more than there is room for."""
    frames, position, turn = [], 0, 0
    while position < len(stream):
        room = filler.buffer()
        assert len(room) > 0
        count = min(cuts[turn % len(cuts)], len(room), len(stream) - position)
        room[:count] = stream[position : position + count]
        frames += filler.filled(count)
        position += count
        turn += 1
    return frames


SIZES = st.one_of(
    st.integers(0, 40),
    st.integers(_SCRATCH_BYTES // 2 - 3, _SCRATCH_BYTES // 2 + 3),
    st.integers(_SCRATCH_BYTES - 6, _SCRATCH_BYTES + 6),
    st.integers(0, LIMIT),
)


@given(st.lists(SIZES, max_size=6), st.lists(st.integers(1, 3 * _SCRATCH_BYTES), min_size=1, max_size=20))
def test_frames_come_out_whole_whatever_the_cuts(sizes: list[int], cuts: list[int]) -> None:
    bodies = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    frames = pour(FrameFiller(LIMIT), b"".join(map(frame, bodies)), cuts)
    assert [bytes(found) for found in frames] == bodies


@given(st.lists(st.binary(max_size=30), max_size=5))
def test_byte_by_byte(bodies: list[bytes]) -> None:
    assert [bytes(f) for f in pour(FrameFiller(100), b"".join(map(frame, bodies)), [1])] == bodies


def test_a_large_frame_is_read_into_its_own_buffer() -> None:
    """Once its length is known, all that follows has its place: nothing of it is copied."""
    filler = FrameFiller(LIMIT)
    body = bytes(range(256)) * (LIMIT // 256)
    first = frame(body)[:10]
    filler.buffer()[:10] = first
    assert filler.filled(10) == []
    room = filler.buffer()
    assert len(room) == len(body) - 6
    room[:] = body[6:]
    (whole,) = filler.filled(len(room))
    assert whole.obj is room.obj
    assert bytes(whole) == body
    assert len(filler.buffer()) == _SCRATCH_BYTES


@pytest.mark.parametrize("size", [LIMIT - 100, LIMIT])
def test_the_buffer_of_a_frame_is_used_again_when_nobody_looks_at_it(size: int) -> None:
    filler = FrameFiller(LIMIT)
    (kept,) = pour(filler, frame(b"1" * (LIMIT - 50)), [LIMIT])
    piece = kept[7:9]
    (other,) = pour(filler, frame(b"2" * size), [LIMIT])
    del kept
    assert bytes(piece) == b"11"
    (third,) = pour(filler, frame(b"3" * size), [LIMIT])
    assert bytes(other) == b"2" * size
    assert third.obj is not other.obj
    place = third.obj
    del third
    (fourth,) = pour(filler, frame(b"4" * size), [LIMIT])
    assert fourth.obj is place
    assert bytes(fourth) == b"4" * size
    assert (bytes(piece), bytes(other)) == (b"11", b"2" * size)


def test_a_giant_frame_takes_memory_as_it_comes() -> None:
    """A peer that announces a gigabyte and sends nothing has none of it."""
    filler = FrameFiller(2**31 - 1)
    tracemalloc.start()
    try:
        filler.buffer()[:6] = (1 << 30).to_bytes(4, "big") + b"ab"
        assert filler.filled(6) == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    room = filler.buffer()
    assert len(room) == (1 << 30) - 2
    # It is read like any other.
    size = _LARGEST_CLEARED_BYTES + 1
    small = FrameFiller(2 * size)
    (whole,) = pour(small, frame(b"z" * size), [1 << 20])
    assert (len(whole), bytes(whole[:3]), bytes(whole[-3:])) == (size, b"zzz", b"zzz")


def test_frames_stay_valid_after_later_ones() -> None:
    filler = FrameFiller(LIMIT)
    frames = pour(filler, frame(b"one") + frame(b"x" * LIMIT), [7])
    pour(filler, frame(b"two!") * 1000 + frame(b"y" * LIMIT), [_SCRATCH_BYTES])
    assert [bytes(found) for found in frames] == [b"one", b"x" * LIMIT]


@pytest.mark.parametrize("size", [-1, 1001, 0x48545450])
def test_a_size_out_of_bounds_is_refused_before_anything_is_set_aside(size: int) -> None:
    filler = FrameFiller(1000)
    filler.buffer()[:4] = (size & 0xFFFFFFFF).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match=r"frame of -?\d+ bytes was announced|HTTP"):
        filler.filled(4)
