"""The demo with Spark: sample clicks into a topic, the clickstream pipeline over it, its results live on one screen.

Three processes: this one writes the clicks, reads the results and draws; the broker; and Spark with its Java
(ottla.examples.demo.spark). The results are read as any consumer would read them (read_committed), so what is on the
screen is what the pipeline has committed. `ClickBoard` and what is drawn of it are pure; the demo owns one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.examples.demo.parts import (
    Broker,
    DemoError,
    Meter,
    abandon,
    create_topics,
    environment,
    has_screen,
    last_line,
    own_command,
    produce,
    say,
    show,
    stop_at_signals,
)
from ottla.examples.samples import PAGES, USERS, iso

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

BAR_WIDTH = 30
MAX_SESSIONS = 20
MIN_PAGES, MAX_PAGES = 5, 8
NAME_WIDTH = 28
# From so many rows on there is room for all pages.
TALL = 28
HINTS = 5

PHASES = {
    "": "waiting for the broker",
    "java": "starting Java and Spark",
    "queries": "starting the pipeline's queries",
    "running": "waiting for the first micro-batch",
}
CLICKS, PER_MINUTE, SESSIONS = "clicks", "clicks.per_minute", "clicks.sessions"
_AFTERWARDS = "Spark and the broker are stopped and their data removed"
VISITORS = 120
MIN_CLICKS, MAX_CLICKS = 2, 30
PARTITIONS = 2
TICK_S = 0.05
STOP_TIMEOUT_S = 15.0
CATCH_UP_S = 60.0
# A busy machine takes its time to start Spark; beyond this it is not going to.
START_TIMEOUT_S = 600.0
MAX_LINE_BYTES = 1 << 20
TOPIC_SETTINGS = {"retention.bytes": str(32 << 20), "segment.bytes": str(8 << 20), "retention.ms": "3600000"}


class Minutes:
    """Views a minute and page, as the pipeline wrote them last."""

    def __init__(self) -> None:
        self._views: dict[tuple[str, str], int] = {}

    def add(self, minute: str, page: str, views: int) -> None:
        self._views[minute, page] = views

    @property
    def counted(self) -> int:
        """All clicks that are in these figures: each of them once, if all is well."""
        return sum(self._views.values())

    def latest(self) -> tuple[str, list[tuple[str, int]]]:
        """The newest minute and its pages, the most viewed first."""
        newest = max((minute for minute, _ in self._views), default="")
        pages = [(page, views) for (minute, page), views in self._views.items() if minute == newest]
        return newest, sorted(pages, key=lambda row: (-row[1], row[0]))


class ClickBoard:
    """Everything the screen knows."""

    def __init__(self, started: float) -> None:
        self.broker = "starting"
        self.address = ""
        self.command = "ottla"
        self.sent = Meter()
        self.acknowledged = 0
        self.failed = 0
        self.trouble = ""
        self.stopping = self.stopped = False
        self.minutes = Minutes()
        self.sessions: deque[Mapping[str, Any]] = deque(maxlen=MAX_SESSIONS)
        self.sessions_seen = 0
        self.phase = self.phase_shown = ""
        self.spark = ""
        self.spark_began = started
        self.spark_up_s = 0.0
        self.queries: list[Mapping[str, Any]] = []

    def heard(self, news: Mapping[str, Any], now: float) -> None:
        """A line of the Spark process."""
        self.queries = news.get("queries", self.queries)
        self.phase = news.get("phase", self.phase)
        if "version" in news:
            self.spark = f"Spark {news['version']}, Java {news['java']}"
        if self.has_begun and not self.spark_up_s:
            self.spark_up_s = now - self.spark_began

    @property
    def has_begun(self) -> bool:
        """Whether a micro-batch has come to its end."""
        return any("batch" in query for query in self.queries)

    @property
    def lag(self) -> int:
        """Records that the slower of the queries has not read yet."""
        return max(self.acknowledged - min((query.get("read", 0) for query in self.queries), default=0), 0)

    def result(self, topic: str, value: bytes) -> None:
        """A record of a result topic."""
        row = json.loads(value)
        if topic == PER_MINUTE:
            self.minutes.add(row["minute"], row["page"], row["views"])
        else:
            self.sessions_seen += 1
            self.sessions.appendleft(row)


def screen(board: ClickBoard, now: float, height: int) -> RenderableType:
    """What the terminal shows in so many rows: the pages and the sessions have what the rest leaves."""
    from rich.console import Group
    from rich.layout import Layout
    from rich.text import Text

    rate, _ = board.sent.rates(now)
    failed = f"   failed {board.failed:,}" if board.failed else ""
    head = [
        Text("Ottla: clicks go into a topic, Spark counts them, results come out of topics", "bold"),
        Text(),
        Text(f"  broker   {board.broker}"),
        Text(f"  clicks   {board.acknowledged:>9,} in topic {CLICKS}   {rate:,.0f}/s{failed}"),
        *_spark(board, now),
        *([Text(f"  trouble  {board.trouble}", "bold red")] if board.trouble else []),
        Text(),
    ]
    for line in head:
        line.no_wrap = True
    room = MAX_PAGES if height >= TALL else MIN_PAGES
    layout = Layout()
    layout.split_column(
        Layout(Group(*head), size=len(head)),
        Layout(_pages(board, room), size=room + 2),
        Layout(_sessions(board)),
        Layout(Group(*_hints(board)), size=HINTS),
    )
    return layout


def _spark(board: ClickBoard, now: float) -> Iterator[Text]:
    from rich.text import Text

    if not board.has_begun:
        waited = f" ... {now - board.spark_began:.0f} s" if board.phase else ""
        yield Text(f"  spark    {PHASES[board.phase]}{waited}", "bold yellow")
        yield Text(f"           {board.spark or '(this takes some seconds)'}", "dim")
        return
    counted = board.minutes.counted
    yield Text(f"  spark    {counted:>9,} counted, each once   behind {board.lag:,}   ({board.spark})")
    yield Text("           " + "   ".join(map(_query, board.queries)), "dim")


def _query(query: Mapping[str, Any]) -> str:
    name = query["name"].rpartition(".")[2]
    if "batch" not in query:
        return f"{name} starting"
    return f"{name}: batch {query['batch']:,} in {query['batch_ms']:,} ms"


def _pages(board: ClickBoard, room: int) -> RenderableType:
    from rich.progress_bar import ProgressBar

    minute, pages = board.minutes.latest()
    clock = f", {_clock(minute)}" if minute else ""
    most = max((views for _, views in pages), default=1)
    rows = [
        (
            page,
            ProgressBar(most, views, BAR_WIDTH, complete_style="cyan", finished_style="cyan"),
            f"{views:>7,}",
        )
        for page, views in pages[:room]
    ]
    return _table(f"  Views this minute, by page{clock}   (topic {PER_MINUTE})", rows)


def _sessions(board: ClickBoard) -> RenderableType:
    rows = [
        (
            session["user"],
            f"{_clock(session['start'])} to {_clock(session['end'])}",
            f"{session['clicks']:>4} clicks",
        )
        for session in board.sessions
    ]
    return _table(f"  Sessions that have ended: {board.sessions_seen:,}   (topic {SESSIONS})", rows)


def _table(title: str, rows: Iterable[Iterable[RenderableType]]) -> RenderableType:
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=NAME_WIDTH, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    shown = Padding(table, (0, 0, 0, 2)) if table.row_count else Text("  none yet", "dim")
    return Group(Text(title, "bold"), shown)


def _clock(timestamp: str) -> str:
    """The time of day in an ISO timestamp."""
    return timestamp[11:19]


def _hints(board: ClickBoard) -> Iterator[Text]:
    from rich.text import Text

    yield Text()
    if board.stopped:
        return
    if board.stopping:
        yield Text("  Counting the last clicks ... (Ctrl-C again: at once)", "bold")
        return
    if board.address:
        yield Text("  Look at it from another terminal:", "dim")
        yield Text(f"    {board.command} consume -b {board.address} -t {PER_MINUTE} -o -5 -e", "dim")
        yield Text(f"    {board.command} group lag -b {board.address} clickstream.per_minute", "dim")
    yield Text("  Ctrl-C ends it; nothing is kept.", "dim")


def progress_line(board: ClickBoard, elapsed_s: float) -> str:
    """One line for a terminal that is none; while Spark starts, one for each step of that."""
    if not board.has_begun:
        if board.phase == board.phase_shown:
            return ""
        board.phase_shown = board.phase
        return f"{elapsed_s:5.0f} s  clicks {board.acknowledged:,}  spark: {PHASES[board.phase]} ..."
    minute, pages = board.minutes.latest()
    top = "  ".join(f"{page} {views:,}" for page, views in pages[:3])
    return (
        f"{elapsed_s:5.0f} s  clicks {board.acknowledged:,}  counted {board.minutes.counted:,}  "
        f"behind {board.lag:,}  sessions {board.sessions_seen:,}  {_clock(minute)}  {top}"
    )


def summary(board: ClickBoard) -> str:
    """The last word."""
    counted = board.minutes.counted
    if not board.has_begun:
        return f"{board.acknowledged:,} clicks acknowledged, before Spark had begun to count; {_AFTERWARDS}"
    verdict = _verdict(board.acknowledged - counted) + (f", {board.failed:,} failed" if board.failed else "")
    return (
        f"{board.acknowledged:,} clicks acknowledged, {counted:,} counted by Spark, {verdict}; {_AFTERWARDS}"
    )


def _verdict(missing: int) -> str:
    if missing == 0:
        return "each of them once"
    return f"{missing:,} not yet counted" if missing > 0 else f"{-missing:,} too many"


class Visitors:
    """Those who are on the site now: each clicks now and then, leaves after a while, and another comes."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._came = 0
        self._here = [self._another() for _ in range(VISITORS)]

    def _another(self) -> list[int]:
        self._came += 1
        return [self._came, self._dice.randint(MIN_CLICKS, MAX_CLICKS)]

    def click(self, now_ms: int) -> tuple[bytes, bytes]:
        """The next click: its key, the user, and its value."""
        index = self._dice.randrange(VISITORS)
        visitor = self._here[index]
        visitor[1] -= 1
        if visitor[1] <= 0:
            self._here[index] = self._another()
        user = f"{USERS[visitor[0] % len(USERS)]}-{visitor[0]}"
        page = self._dice.choices(tuple(PAGES), tuple(PAGES.values()))[0]
        return user.encode(), json.dumps({"user": user, "page": page, "at": iso(now_ms)}).encode()


class Spark:
    """The process that runs Spark, and its Java."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "spark-driver.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, address: str) -> None:
        """Begin to start it: it reports how far it is."""
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "ottla.examples.demo.spark", address, str(self._directory)),
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
        """Take in what it reports. Returns never; raises if the process ends by itself."""
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            board.heard(json.loads(line), time.monotonic())
        code = await self._process.wait()
        raise DemoError(f"Spark ended by itself with exit code {code}: {last_line(self._log)}")

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
            raise DemoError(f"Spark has not begun within {START_TIMEOUT_S:.0f} s: {PHASES[board.phase]}")
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
        lambda now, height: screen(board, now, height),
        lambda elapsed_s: progress_line(board, elapsed_s),
        done,
    )
