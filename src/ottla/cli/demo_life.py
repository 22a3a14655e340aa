"""How a demo ends: at a signal in order, at a second one at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from typing import Any

ABANDON_S = 0.2


def stop_at_signals(stop: asyncio.Event) -> None:
    """The first signal ends the running task in order; a second does not wait for what is still under way."""
    whole = asyncio.current_task()
    assert whole is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(
            number, lambda: whole.cancel() if stop.is_set() else stop.set()
        )


async def abandon(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Nobody is left to talk to: a client would still try for minutes to deliver, at each turn of its closing."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=ABANDON_S)
