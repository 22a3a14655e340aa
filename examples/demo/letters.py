"""The demo of the broker alone: letters written by one client and read by another, live, on one screen.

`Board` and what is drawn of it are pure; the demo owns one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.examples.demo.parts import (
    Broker,
    Meter,
    abandon,
    create_topics,
    has_screen,
    own_command,
    pause,
    produce,
    say,
    show,
    stop_at_signals,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from ottla.client.consumer.fetch import ConsumerRecord


BAR_WIDTH = 24
LATENCIES = 2000
TOPIC = "letters"
PARTITIONS = 3
TICK_S = 0.02
CATCH_UP_S = 5.0
# The demo may run all day: the topic keeps the last few megabytes.
TOPIC_SETTINGS = {"retention.bytes": str(32 << 20), "segment.bytes": str(8 << 20), "retention.ms": "600000"}
_WRITERS = ("Franz", "Ottla", "Milena", "Max", "Felice", "Hermann", "Julie", "Grete")
_PHRASES = (
    "the house in the Alchimistengasse is quiet at night",
    "the doctor says the country air does me good",
    "I have read your letter three times already",
    "the train from Zürau was late again",
    "send me the catalogue, if it is not too much trouble",
    "we planted potatoes on Sunday",
)


class Board:
    """Everything the screen knows."""

    def __init__(self, topic: str, partitions: int) -> None:
        self.topic = topic
        self.broker = "starting"
        self.address = ""
        self.command = "ottla"
        self.sent = Meter()
        self.acknowledged = 0
        self.failed = 0
        self.read = Meter()
        self.ends = [0] * partitions
        self.positions = [0] * partitions
        self.last = ""
        self.trouble = ""
        self._latencies_ms: list[float] = []

    def saw(self, latency_ms: float) -> None:
        """One record came back after so long."""
        self._latencies_ms.append(max(latency_ms, 0.0))
        if len(self._latencies_ms) > LATENCIES:
            del self._latencies_ms[: LATENCIES // 2]

    def latency_ms(self, share: float) -> float:
        """The latency that this share of the latest records stayed under."""
        ordered = sorted(self._latencies_ms)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0

    @property
    def lag(self) -> int:
        return max(self.sent.total - self.read.total, 0)


def screen(board: Board, now: float) -> RenderableType:
    """What the terminal shows."""
    from rich.console import Group
    from rich.text import Text

    sent_rate, sent_bytes = board.sent.rates(now)
    read_rate, _ = board.read.rates(now)
    lines = [
        Text("Ottla: a Kafka broker in Python, and a producer and a consumer at work on it", "bold"),
        Text(),
        Text(f"  broker    {board.broker}"),
        Text(f"  topic     {board.topic}, {len(board.ends)} partitions"),
        Text(
            f"  producer  {board.sent.total:>10,} sent   {sent_rate:>7,.0f}/s  {sent_bytes / 1000:,.0f} kB/s   "
            f"acknowledged {board.acknowledged:,}" + (f"   failed {board.failed:,}" if board.failed else "")
        ),
        Text(
            f"  consumer  {board.read.total:>10,} read   {read_rate:>7,.0f}/s  behind {board.lag:,}   "
            f"latency p50 {board.latency_ms(0.5):.0f} ms, p99 {board.latency_ms(0.99):.0f} ms"
        ),
        *_partitions(board.ends, board.positions),
        Text(f"  last      {board.last}"),
        *([Text(f"  trouble   {board.trouble}", "bold red")] if board.trouble else []),
        *(Text(hint, "dim") for hint in _hints(board)),
    ]
    for line in lines:
        line.no_wrap = True
    return Group(*lines)


def _hints(board: Board) -> list[str]:
    look = [
        "  Look at it from another terminal:",
        f"    {board.command} consume -b {board.address} -t {board.topic} -o -5 -e",
        f"    kcat -b {board.address} -L",
        "",
    ]
    return ["", *(look if board.address else []), "  Ctrl-C ends it; nothing is kept."]


def _partitions(ends: Sequence[int], positions: Sequence[int]) -> Iterator[Text]:
    """How far each partition has grown, and how far it has been read."""
    from rich.text import Text

    most = max(max(ends, default=0), 1)
    for number, (end, position) in enumerate(zip(ends, positions, strict=True)):
        full = round(BAR_WIDTH * end / most)
        read = min(round(BAR_WIDTH * position / most), full)
        yield Text.assemble(
            f"  p{number:<8} ",
            ("━" * read, "green"),
            ("━" * (full - read), "yellow"),
            f"{'':{BAR_WIDTH - full}} {end:,}",
        )


def progress_line(board: Board, elapsed_s: float) -> str:
    """One line for a terminal that is none."""
    return (
        f"{elapsed_s:5.0f} s  sent {board.sent.total:,}  acknowledged {board.acknowledged:,}  "
        f"read {board.read.total:,}  behind {board.lag:,}  "
        f"latency p50 {board.latency_ms(0.5):.0f} ms p99 {board.latency_ms(0.99):.0f} ms"
    )


def summary(board: Board) -> str:
    """The last word."""
    lost = board.acknowledged - board.read.total
    verdict = (
        "none lost" if lost <= 0 and not board.failed else f"{max(lost, 0):,} unread, {board.failed:,} failed"
    )
    return (
        f"{board.acknowledged:,} records acknowledged, {board.read.total:,} read back, {verdict}; "
        "the broker is stopped and its data removed"
    )


async def demo(directory: Path, rate: int, seconds: float | None) -> tuple[str, bool]:
    """All of it, until a signal or the time is up; the last word, and whether nothing was lost."""
    stop = asyncio.Event()
    stop_at_signals(stop)
    board = Board(TOPIC, PARTITIONS)
    broker = Broker(directory)
    started = time.monotonic()
    try:
        say("starting a broker in a temporary directory ...")
        await broker.start()
        board.address, board.command = broker.address, own_command()
        board.broker = f"{broker.address}, up in {time.monotonic() - started:.2f} s"
        if not has_screen():
            print(f"broker: {board.broker}", flush=True)
        await create_topics(broker.address, [TOPIC], PARTITIONS, TOPIC_SETTINGS)
        await _run_clients(board, broker, rate, seconds, stop)
    finally:
        await broker.stop()
    return summary(board), not board.failed and board.read.total >= board.acknowledged


async def _run_clients(
    board: Board, broker: Broker, rate: int, seconds: float | None, stop: asyncio.Event
) -> None:
    """The producer until told to stop, the consumer until it has read the rest."""
    done = asyncio.Event()
    producer = asyncio.create_task(
        produce(board, broker.address, TOPIC, rate, stop, partial(_letter, random.Random()))
    )
    others = [
        asyncio.create_task(_consume(board, broker.address, done)),
        asyncio.create_task(_watch_ends(board, broker.address, done)),
        asyncio.create_task(_show(board, done)),
    ]
    gone = asyncio.create_task(broker.exited())
    try:
        await asyncio.wait({producer, gone, *others}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await asyncio.wait({producer, gone}, return_when=asyncio.FIRST_COMPLETED)
        await _catch_up(board, gone)
    finally:
        stop.set()
        done.set()
        tasks = [producer, *others]
        if gone.done():
            await abandon(tasks)
        gone.cancel()
        outcomes = await asyncio.gather(gone, *tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


async def _catch_up(board: Board, gone: asyncio.Task[None]) -> None:
    """Give the consumer the time to read what was acknowledged."""
    deadline = time.monotonic() + CATCH_UP_S
    while board.read.total < board.acknowledged and time.monotonic() < deadline and not gone.done():
        await asyncio.sleep(TICK_S)


def _letter(dice: random.Random, number: int) -> tuple[bytes, bytes]:
    writer = dice.choice(_WRITERS)
    reader = dice.choice([name for name in _WRITERS if name != writer])
    text = f'{{"no": {number}, "from": "{writer}", "to": "{reader}", "text": "{dice.choice(_PHRASES)}"}}'
    return writer.encode(), text.encode()


async def _consume(board: Board, address: str, done: asyncio.Event) -> None:
    """Read everything, until told to stop."""
    from ottla.client.aio import AsyncConsumer
    from ottla.model.ids import TopicPartition

    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    async with AsyncConsumer(bootstrap_servers=address, client_id="demo-consumer") as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        while not done.is_set():
            for records in (await consumer.poll(timeout_ms=100)).values():
                _note(board, records)


def _note(board: Board, records: list[ConsumerRecord]) -> None:
    now_ms = time.time() * 1000
    board.read.add(len(records))
    for record in records:
        board.saw(now_ms - record.timestamp)
    last = records[-1]
    board.positions[last.partition] = last.offset + 1
    board.ends[last.partition] = max(board.ends[last.partition], last.offset + 1)
    value = (last.value or b"").decode("utf-8", "replace")
    board.last = f"{last.topic}-{last.partition} @ {last.offset:,}  {value}"


async def _watch_ends(board: Board, address: str, done: asyncio.Event) -> None:
    """Ask now and then how far the partitions have grown: what the consumer has not read yet shows, too."""
    from ottla.client.aio import AsyncConsumer
    from ottla.model.ids import TopicPartition

    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    async with AsyncConsumer(bootstrap_servers=address, client_id="demo-watcher") as consumer:
        while not done.is_set():
            for partition, end in (await consumer.end_offsets(partitions)).items():
                board.ends[partition.partition] = max(board.ends[partition.partition], end)
            await pause(done, 0.5)


async def _show(board: Board, done: asyncio.Event) -> None:
    await show(lambda now, _: screen(board, now), lambda elapsed_s: progress_line(board, elapsed_s), done)
