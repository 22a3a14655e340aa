"""Share fetches of data that is not in memory: it is read in a thread, and nobody waits for the disk on the loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.share_world import Asked, ShareWorld

from ottla.model.errors import ErrorCode
from ottla.share import fetch
from ottla.share.fetch import MAX_WARMINGS
from ottla.storage.segment.file_records import ColdDataError

TEN = [b"v%d" % number for number in range(10)]


class ColdDisk:
    """Reads of headers that are not in memory, until they were warmed up often enough."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.warmed: list[int] = []
        self.left = times
        self.fails = False
        monkeypatch.setattr(fetch, "pread_warm", self._pread)
        monkeypatch.setattr(fetch, "warm_up", self._warm_up)

    def _pread(self, fd: int, size: int, position: int) -> bytes:
        if self.left > 0:
            raise ColdDataError(position, size)
        return os.pread(fd, size, position)

    def _warm_up(self, slices: list[Any]) -> None:
        self.left -= 1
        self.warmed += [slice_.length for slice_ in slices]
        if self.fails:
            raise OSError("the disk is gone")


def run(world: ShareWorld, ask: Callable[[], Asked]) -> Asked:
    """Ask on a loop, with threads, and wait for the answer."""

    async def asked() -> Asked:
        with ThreadPoolExecutor(1) as executor:
            world.service._executor = executor
            answer = ask()
            for _ in range(1000):
                world.scheduler.settle()
                if answer.done:
                    return answer
                await asyncio.sleep(0.001)  # for the thread
        raise AssertionError("no answer")

    return asyncio.run(asked())


@pytest.fixture
def world(tmp_path: Path) -> ShareWorld:
    world = ShareWorld(tmp_path)
    world.configure(auto_offset_reset="earliest")
    world.write(*TEN)
    world.write(*TEN)
    return world


def test_headers_are_warmed_up_before_they_are_read(
    world: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ColdDisk(monkeypatch, times=2)
    answer = run(world, lambda: world.fetch(0, partitions=[0]))
    assert answer.acquired() == [(0, 19, 1)]
    assert len(disk.warmed) == 2


def test_memory_too_short_to_keep_them_makes_the_fetch_wait_for_the_disk(
    world: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ColdDisk(monkeypatch, times=1000)
    answer = run(world, lambda: world.fetch(0, partitions=[0]))
    assert answer.acquired() == [(0, 19, 1)]
    assert len(disk.warmed) == MAX_WARMINGS


def test_acquired_records_are_warmed_up_before_they_are_sent(
    world: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ColdDisk(monkeypatch, times=0)
    monkeypatch.setattr(fetch, "is_cold", lambda _: True)
    answer = run(world, lambda: world.fetch(0, partitions=[0], records=1))
    assert answer.acquired() == [(0, 9, 1)]
    assert disk.warmed == [len(answer.partitions[0].records)]


def test_a_disk_that_cannot_be_read_is_told(world: ShareWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = ColdDisk(monkeypatch, times=0)
    disk.fails = True
    monkeypatch.setattr(fetch, "is_cold", lambda _: True)
    answer = run(world, lambda: world.fetch(0, partitions=[0]))
    assert answer.codes() == {0: ErrorCode.KAFKA_STORAGE_ERROR}


def test_a_client_that_leaves_meanwhile_acquires_nothing(
    world: ShareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ColdDisk(monkeypatch, times=1)

    async def leave() -> Asked:
        with ThreadPoolExecutor(1) as executor:
            world.service._executor = executor
            answer = world.fetch(0, partitions=[0])
            world.connection.lose()
        # The thread is done: these turns are the ones in which the fetch would go on.
        for _ in range(10):
            await asyncio.sleep(0)
            world.scheduler.settle()
        return answer

    assert not asyncio.run(leave()).done
    assert disk.left == 0
    assert run(world, lambda: world.fetch(0, member="b", partitions=[0])).acquired() == [(0, 19, 1)]
