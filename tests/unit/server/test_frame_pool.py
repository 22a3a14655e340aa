"""Frames are gathered within a bound, and what does not fit waits its turn."""

from ottla.server.frame_pool import ORDINARY_FRAME_BYTES, FramePool

GIANT = 10 * ORDINARY_FRAME_BYTES


def unexpected(buffer: bytearray) -> None:
    raise AssertionError("nobody should have waited")


def test_lends_what_fits_and_counts_it() -> None:
    pool = FramePool(ordinary_bytes=1 << 20)
    buffer = pool.acquire(5000, unexpected)
    assert buffer is not None
    assert len(buffer) >= 5000
    assert pool.lent_bytes == len(buffer)
    pool.release(buffer)
    assert pool.lent_bytes == 0


def test_what_does_not_fit_waits_in_order() -> None:
    pool = FramePool(ordinary_bytes=8192)
    first = pool.acquire(8000, unexpected)
    assert first is not None
    got: list[str] = []
    assert pool.acquire(100, lambda buffer: got.append("second")) is None
    assert pool.acquire(100, lambda buffer: got.append("third")) is None
    assert pool.waiting == 2
    pool.release(first)
    assert got == ["second", "third"]


def test_one_frame_may_overdraw_but_the_next_waits() -> None:
    pool = FramePool(giant_bytes=GIANT // 2)
    assert pool.acquire(GIANT, unexpected) is not None
    assert pool.acquire(GIANT, unexpected) is None


def test_giants_do_not_stop_ordinary_frames() -> None:
    pool = FramePool(giant_bytes=GIANT)
    assert pool.acquire(GIANT, unexpected) is not None
    assert pool.acquire(GIANT, unexpected) is None
    assert pool.acquire(1 << 20, unexpected) is not None


def test_who_withdraws_gets_nothing() -> None:
    pool = FramePool(ordinary_bytes=4096)
    first = pool.acquire(4096, unexpected)
    assert first is not None
    assert pool.acquire(4096, unexpected) is None
    pool.withdraw(unexpected)
    pool.release(first)
    assert pool.lent_bytes == 0
