"""The producer of a demo: records at an even pace, and what became of them on the demo's board."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ottla.cli.demo_show import pause

if TYPE_CHECKING:
    from ottla.cli.demo_screen import Meter
    from ottla.client.batch import Delivery

TICK_S = 0.02


class Tally(Protocol):
    """What a board counts of a producer."""

    sent: Meter
    acknowledged: int
    failed: int
    trouble: str


async def produce(
    board: Tally,
    address: str,
    topic: str,
    rate: int,
    stop: asyncio.Event,
    record: Callable[[int], tuple[bytes, bytes]],
) -> None:
    """`record(number)` is a key and a value; until told to stop, then the last acknowledgement is waited for."""
    from ottla.client.aio import AsyncProducer

    def delivered(delivery: Delivery) -> None:
        error = delivery.exception()
        if error is None:
            board.acknowledged += 1
        else:
            board.failed += 1
            board.trouble = str(error)

    async with AsyncProducer(bootstrap_servers=address, linger_ms=5, client_id="demo-producer") as producer:
        started, written = time.monotonic(), 0
        while not stop.is_set():
            due = int((time.monotonic() - started) * rate)
            for number in range(written, due):
                key, value = record(number)
                delivery = await producer.send(topic, value, key)
                delivery.add_done_callback(delivered)
                board.sent.add(1, len(value))
            written = max(due, written)
            await pause(stop, TICK_S)
        await producer.flush()
