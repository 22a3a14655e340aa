"""Decompression within one bound: small work side by side, large work one at a time, in the order it came."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.compression import ZSTD, DecompressedTooLargeError
from ottla.records.record import MAX_DECOMPRESSED_BYTES
from ottla.server.limits import SMALL_BYTES, Unpacking


class Work:
    """Something to unpack, of a size, which is done when the test says so."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.attempts: list[int] = []

    def __call__(self, max_size: int) -> int:
        self.attempts.append(max_size)
        if self.size > max_size:
            raise DecompressedTooLargeError(ZSTD, max_size)
        self.begun.set()
        assert self.may_end.wait(20)
        return self.size


SMALL, LARGE = 1000, SMALL_BYTES + 1


async def begun(work: Work) -> None:
    await asyncio.to_thread(work.begun.wait, 20)
    assert work.begun.is_set()


def test_small_work_is_done_side_by_side_and_passes_large_work() -> None:
    async def scenario() -> None:
        with ThreadPoolExecutor(4) as executor:
            unpacking = Unpacking(executor)
            large, waits, *small = Work(LARGE), Work(LARGE), Work(SMALL), Work(SMALL)
            first = asyncio.ensure_future(unpacking.run(large))
            await begun(large)
            second = asyncio.ensure_future(unpacking.run(waits))
            others = [asyncio.ensure_future(unpacking.run(work)) for work in small]
            for work in small:
                await begun(work)
                work.may_end.set()
            assert await asyncio.gather(*others) == [SMALL, SMALL]
            assert not waits.begun.is_set()
            large.may_end.set()
            waits.may_end.set()
            assert await first == await second == LARGE
            assert large.attempts == waits.attempts == [SMALL_BYTES, MAX_DECOMPRESSED_BYTES]
            assert small[0].attempts == [SMALL_BYTES]

    asyncio.run(scenario())


def test_a_turn_lasts_as_long_as_its_thread_even_if_nobody_waits_any_more() -> None:
    async def scenario() -> None:
        with ThreadPoolExecutor(4) as executor:
            unpacking = Unpacking(executor)
            left, waits = Work(LARGE), Work(LARGE)
            first = asyncio.ensure_future(unpacking.run(left))
            await begun(left)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            second = asyncio.ensure_future(unpacking.run(waits))
            while len(waits.attempts) < 1:
                await asyncio.sleep(0)
            await asyncio.to_thread(lambda: None)
            assert not waits.begun.is_set()
            left.may_end.set()
            waits.may_end.set()
            assert await second == LARGE

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_what_the_work_raises_is_raised_and_the_turn_is_over(size: int) -> None:
    def fails(max_size: int) -> None:
        if size > max_size:
            raise DecompressedTooLargeError(ZSTD, max_size)
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "not what it says")

    async def scenario() -> None:
        with ThreadPoolExecutor(1) as executor:
            unpacking = Unpacking(executor)
            for _ in range(2):
                with pytest.raises(KafkaError) as caught:
                    await unpacking.run(fails)
                assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
            with pytest.raises(DecompressedTooLargeError):
                await unpacking.run(Work(MAX_DECOMPRESSED_BYTES + 1))

    asyncio.run(scenario())
