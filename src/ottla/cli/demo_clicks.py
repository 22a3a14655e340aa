"""The demo with Spark: sample clicks into a topic, the clickstream pipeline over it, its results live on one screen.

Three processes: this one writes the clicks, reads the results and draws; the broker; and Spark with its Java
(demo_spark). The results are read as any consumer would read them (read_committed), so what is on the screen is
what the pipeline has committed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from ottla.cli.args import CliError
from ottla.cli.demo_broker import Broker, create_topics, environment
from ottla.cli.demo_clicks_screen import (
    CLICKS,
    PER_MINUTE,
    PHASES,
    SESSIONS,
    ClickBoard,
    lines,
    progress_line,
    summary,
)
from ottla.cli.demo_events import Visitors
from ottla.cli.demo_life import abandon, stop_at_signals
from ottla.cli.demo_producing import produce
from ottla.cli.demo_show import has_screen, own_command, show
from ottla.cli.output import say

PARTITIONS = 2
TICK_S = 0.05
STOP_TIMEOUT_S = 15.0
CATCH_UP_S = 60.0
# A busy machine takes its time to start Spark; beyond this it is not going to.
START_TIMEOUT_S = 600.0
MAX_LINE_BYTES = 1 << 20
TOPIC_SETTINGS = {"retention.bytes": str(32 << 20), "segment.bytes": str(8 << 20), "retention.ms": "3600000"}


class Spark:
    """The process that runs Spark, and its Java."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, address: str) -> None:
        """Begin to start it: it tells itself how far it is."""
        with (self._directory / "spark-driver.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "ottla.cli.demo_spark", address, str(self._directory)),
                # At the end of this it stops, whether it is closed or we are killed.
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**environment(), "TMPDIR": str(self._directory)},
                # Ctrl-C is for the demo; and Java, which is in this group, ends with it if nothing else helps.
                start_new_session=True,
                limit=MAX_LINE_BYTES,
            )

    async def follow(self, board: ClickBoard) -> None:
        """Take in what it tells; returns never, unless it ends by itself: that is an error."""
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            board.heard(json.loads(line), time.monotonic())
        code = await self._process.wait()
        raise CliError(f"Spark ended by itself with exit code {code}: {self._last_words()}")

    def _last_words(self) -> str:
        words = (self._directory / "spark-driver.log").read_text("utf-8", "replace").strip().splitlines()
        return words[-1] if words else "it said nothing"

    async def stop(self) -> None:
        """Ask it to stop, and insist if it does not; Java is in its group."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def demo(directory: Path, rate: int, seconds: float | None) -> tuple[str, bool]:
    """All of it, until a signal or so long after the first results; the last word, and whether all is well."""
    stop = asyncio.Event()
    stop_at_signals(stop)
    started = time.monotonic()
    board = ClickBoard(started)
    broker, spark = Broker(directory), Spark(directory)
    try:
        say("starting a broker, and Spark beside it, in a temporary directory ...")
        await broker.start()
        board.address, board.command = broker.address, own_command()
        board.broker = f"{broker.address}, up in {time.monotonic() - started:.2f} s"
        if not has_screen():
            print(f"broker: {board.broker}", flush=True)
        await create_topics(broker.address, [CLICKS, PER_MINUTE, SESSIONS], PARTITIONS, TOPIC_SETTINGS)
        await spark.start(broker.address)
        await _run(board, broker, spark, rate, seconds, stop)
    finally:
        say("stopping Spark and the broker ...")
        await spark.stop()
        await broker.stop()
    all_counted = board.minutes.counted == board.acknowledged or not board.has_begun
    return summary(board), all_counted and not board.failed


async def _run(
    board: ClickBoard, broker: Broker, spark: Spark, rate: int, seconds: float | None, stop: asyncio.Event
) -> None:
    """The clicks until told to stop, the results until the last click is counted."""
    done = asyncio.Event()
    visitors = Visitors(random.Random())

    def click(number: int) -> tuple[bytes, bytes]:
        return visitors.click(int(time.time() * 1000))

    producer = _task(produce(board, broker.address, CLICKS, rate, stop, click))
    others = [_task(_read_results(board, broker.address, done)), _task(_show(board, done))]
    lives = [_task(broker.exited()), _task(spark.follow(board))]
    try:
        over = {producer, *lives, *others}
        begun = _task(_begin(board))
        await asyncio.wait({begun, *over}, return_when=asyncio.FIRST_COMPLETED)
        if begun.done():
            begun.result()
            await asyncio.wait(over, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        stop.set()
        board.stopping = True
        await asyncio.wait({producer, *lives}, return_when=asyncio.FIRST_COMPLETED)
        await _catch_up(board, lives)
    finally:
        stop.set()
        board.stopped = True
        done.set()
        if any(life.done() for life in lives):
            await abandon([producer, *others])
        for life in lives:
            life.cancel()
        outcomes = await asyncio.gather(*lives, producer, *others, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


async def _begin(board: ClickBoard) -> None:
    """Returns with the first results."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not board.has_begun:
        if time.monotonic() > deadline:
            raise CliError(f"Spark has not begun within {START_TIMEOUT_S:.0f} s: {PHASES[board.phase]}")
        await asyncio.sleep(TICK_S)


def _task(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(work)


async def _catch_up(board: ClickBoard, lives: list[asyncio.Task[None]]) -> None:
    """Give the pipeline the time to count what was acknowledged, if it has begun to count at all."""
    deadline = time.monotonic() + CATCH_UP_S
    while (
        board.has_begun
        and board.minutes.counted < board.acknowledged
        and time.monotonic() < deadline
        and not any(life.done() for life in lives)
    ):
        await asyncio.sleep(TICK_S)


async def _read_results(board: ClickBoard, address: str, done: asyncio.Event) -> None:
    """What the pipeline has committed, until told to stop."""
    from ottla.client.aio import AsyncConsumer
    from ottla.model.ids import TopicPartition

    partitions = [
        TopicPartition(topic, number) for topic in (PER_MINUTE, SESSIONS) for number in range(PARTITIONS)
    ]
    async with AsyncConsumer(
        bootstrap_servers=address, client_id="demo-results", isolation_level="read_committed"
    ) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        while not done.is_set():
            for records in (await consumer.poll(timeout_ms=100)).values():
                for record in records:
                    board.result(record.topic, record.value or b"{}")


async def _show(board: ClickBoard, done: asyncio.Event) -> None:
    await show(
        lambda now, _, rows: lines(board, now, rows),
        lambda elapsed_s: progress_line(board, elapsed_s),
        done,
    )
