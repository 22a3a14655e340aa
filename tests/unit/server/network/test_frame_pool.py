"""Frames are gathered within a bound, what does not fit waits its turn, and the slow make room."""

from ottla.server.network.frame_pool import (
    GIANT_BEGIN_BYTES,
    LARGEST_STEP_BYTES,
    LEAST_RATE_BYTES_PER_S,
    ORDINARY_FRAME_BYTES,
    RATE_WINDOW_S,
    SMALLEST_BUFFER_BYTES,
    FramePool,
    Lease,
)

GIANT = 10 * ORDINARY_FRAME_BYTES
MIB = 1 << 20


class Upload:
    """A frame on its way; the test decides how much of it comes."""

    def __init__(self, pool: FramePool, size_bytes: int, received_bytes: int = 4) -> None:
        self.received_bytes = received_bytes
        self.is_sending = True
        self.given_up: str | None = None
        self.pool = pool
        self.size_bytes = size_bytes
        self.lease: Lease = pool.begin(size_bytes, received_bytes, self)

    @property
    def waits(self) -> bool:
        return self.lease.is_waiting

    def room_given(self) -> None:
        assert not self.lease.is_waiting

    def give_up(self, reason: str) -> None:
        self.given_up = reason

    def send(self, size_bytes: int) -> None:
        """As much of it as there is room for."""
        wanted = min(self.size_bytes, self.received_bytes + size_bytes)
        while self.received_bytes < wanted and not self.waits:
            self.received_bytes = min(wanted, self.lease.granted_bytes)
            if self.received_bytes == self.lease.granted_bytes < self.size_bytes:
                self.pool.extend(self.lease)

    def end(self) -> None:
        self.pool.end(self.lease)


def test_lends_what_fits_and_counts_it() -> None:
    pool = FramePool(ordinary_bytes=1 << 20)
    upload = Upload(pool, 5000)
    assert upload.lease.buffer is not None
    assert len(upload.lease.buffer) >= 5000
    assert pool.lent_bytes == upload.lease.granted_bytes == len(upload.lease.buffer)
    upload.end()
    assert pool.lent_bytes == 0


def test_while_there_is_room_a_frame_has_all_of_it_at_once() -> None:
    pool = FramePool(ordinary_bytes=8 * MIB)
    assert Upload(pool, MIB).lease.granted_bytes == MIB


def test_when_room_is_scarce_what_has_come_is_counted() -> None:
    pool = FramePool(ordinary_bytes=8 * MIB)
    for _ in range(4):
        Upload(pool, MIB)
    late = [Upload(pool, MIB) for _ in range(500)]
    assert not any(upload.waits for upload in late)
    assert pool.lent_bytes <= 4 * MIB + 500 * (SMALLEST_BUFFER_BYTES + 4)
    late[0].send(100_000)
    assert 100_000 <= late[0].lease.granted_bytes <= 200_000 + SMALLEST_BUFFER_BYTES


def test_what_does_not_fit_waits_in_order() -> None:
    pool = FramePool(ordinary_bytes=8192)
    first = Upload(pool, 8192, 8000)
    second, third = Upload(pool, 5000), Upload(pool, 5000)
    assert pool.waiting == 2
    assert pool.contended
    first.end()
    assert not second.waits
    assert not third.waits
    assert not pool.contended


def test_small_frames_never_wait() -> None:
    pool = FramePool(ordinary_bytes=8192)
    Upload(pool, 8192, 8000)
    assert Upload(pool, 5000).waits
    assert not Upload(pool, SMALLEST_BUFFER_BYTES).waits


def test_somebody_always_gets_on() -> None:
    """More has begun than there is room for: one after the other is finished, and little is overdrawn."""
    pool = FramePool(ordinary_bytes=8 * MIB)
    uploads = [Upload(pool, ORDINARY_FRAME_BYTES) for _ in range(50)]
    most = 0
    while uploads:
        for upload in uploads:
            upload.send(10_000)
            most = max(most, pool.lent_bytes)
        done = [upload for upload in uploads if upload.received_bytes == upload.size_bytes]
        assert done or not all(upload.waits for upload in uploads)
        for upload in done:
            upload.end()
            uploads.remove(upload)
    assert most <= 8 * MIB + ORDINARY_FRAME_BYTES + LARGEST_STEP_BYTES
    assert pool.lent_bytes == 0


def test_giants_do_not_stop_ordinary_frames() -> None:
    pool = FramePool(giant_bytes=GIANT)
    first = Upload(pool, 2 * GIANT)
    first.send(GIANT)
    assert Upload(pool, GIANT).waits
    assert not Upload(pool, 1 << 20).waits


def test_who_leaves_gets_nothing() -> None:
    pool = FramePool(ordinary_bytes=8192)
    first = Upload(pool, 8192, 8000)
    second = Upload(pool, 8192)
    assert second.waits
    second.end()
    first.end()
    assert pool.lent_bytes == 0
    assert not pool.contended


def test_what_is_worked_on_is_counted_until_the_end() -> None:
    pool = FramePool(ordinary_bytes=MIB)
    upload = Upload(pool, MIB // 4)
    pool.detach(upload.lease)
    assert upload.lease.buffer is None
    assert pool.lent_bytes == MIB // 4
    upload.end()
    assert pool.lent_bytes == 0


def look(pool: FramePool, begin: float = 0.0) -> None:
    """As the reaper does, often enough to measure."""
    for turn in range(3):
        pool.give_up_slow(begin + turn * RATE_WINDOW_S)


def test_the_slowest_goes_first_and_no_more_than_needed() -> None:
    pool = FramePool(ordinary_bytes=4 * MIB)
    uploads = [Upload(pool, 2 * MIB, 2 * MIB - 100) for _ in range(2)]
    waiting = Upload(pool, MIB)
    assert waiting.waits
    pool.give_up_slow(0.0)
    uploads[0].received_bytes += 50
    pool.give_up_slow(1.0)
    assert [upload.given_up is not None for upload in uploads] == [False, True]
    assert not waiting.waits


def test_nobody_goes_while_nobody_waits() -> None:
    pool = FramePool(ordinary_bytes=4 * MIB)
    upload = Upload(pool, 2 * MIB)
    look(pool)
    assert upload.given_up is None


def test_who_comes_fast_enough_is_not_given_up() -> None:
    pool = FramePool(giant_bytes=100 * MIB)
    upload = Upload(pool, 100 * MIB, 100 * MIB - MIB)
    upload.pool.extend(upload.lease)
    assert Upload(pool, GIANT).waits
    for turn in range(10):
        pool.give_up_slow(float(turn))
        upload.received_bytes += LEAST_RATE_BYTES_PER_S
    assert upload.given_up is None


def test_who_waits_is_not_slow() -> None:
    """Neither for room, nor for the handler of an earlier request."""
    pool = FramePool(ordinary_bytes=4 * MIB)
    held = Upload(pool, 2 * MIB, 2 * MIB)
    held.is_sending = False
    sending = Upload(pool, 2 * MIB, 2 * MIB - 1)
    new = Upload(pool, MIB)
    assert new.waits
    look(pool)
    assert held.given_up is None
    assert new.given_up is None
    assert sending.given_up is not None


def test_few_giants_are_read_at_a_time() -> None:
    pool = FramePool(giant_bytes=5 * GIANT)
    uploads = [Upload(pool, GIANT) for _ in range(100)]
    for upload in uploads:
        upload.send(GIANT // 2)
    assert sum(upload.received_bytes > 2 * GIANT_BEGIN_BYTES for upload in uploads) <= 6
    assert pool.lent_bytes <= 6 * GIANT + LARGEST_STEP_BYTES
    for upload in uploads:
        upload.send(GIANT)
        assert upload.received_bytes == GIANT  # its turn has come
        upload.end()
    assert pool.lent_bytes == 0
