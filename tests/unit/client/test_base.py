"""What a blocking client stands on: its loop in a thread of its own."""

import asyncio
import threading

import pytest

from ottla.client.base import LoopThread
from ottla.client.errors import Closed


def test_who_asks_for_something_while_a_loop_stops_does_not_wait_for_ever() -> None:
    thread = LoopThread("test")
    busy, go_on = threading.Event(), threading.Event()
    asked, ended = threading.Event(), threading.Event()

    def work() -> None:
        busy.set()
        go_on.wait(60)

    async def late() -> None:
        await asyncio.sleep(60)

    def ask() -> None:
        asked.set()
        with pytest.raises(Closed):
            thread.run(late())
        ended.set()

    thread._loop.call_soon_threadsafe(work)
    assert busy.wait(60)
    stopping = threading.Thread(target=thread.stop)
    stopping.start()
    while not thread._stopped:
        threading.Event().wait(0.001)
    threading.Thread(target=ask, daemon=True).start()
    assert asked.wait(60)
    go_on.set()
    assert ended.wait(60)
    stopping.join(60)
    assert not thread.is_alive


def test_who_waits_when_a_loop_stops_hears_that_it_is_closed() -> None:
    thread = LoopThread("test")
    waits, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        waits.set()
        await asyncio.sleep(600)

    def ask() -> None:
        with pytest.raises(Closed):
            thread.run(wait())
        ended.set()

    threading.Thread(target=ask, daemon=True).start()
    assert waits.wait(60)
    thread.stop()
    assert ended.wait(60)
