"""What the demo with Spark shows: clicks going in, micro-batches, results coming out. Pure; the demo owns one."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from ottla.cli.demo_screen import Meter
from ottla.cli.demo_show import Line

BAR_WIDTH = 30
MAX_SESSIONS = 20
MIN_PAGES, MAX_PAGES = 4, 8
NAME_WIDTH = 28
# So many lines are there always; the pages and the sessions share the rest.
FIXED_LINES = 15

PHASES = {
    "": "waiting for the broker",
    "java": "starting Java and Spark",
    "queries": "starting the pipeline's queries",
    "running": "waiting for the first micro-batch",
}


class Minutes:
    """Views a minute and page, as the pipeline has last told them."""

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
        self.phase = self.phase_told = ""
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


CLICKS, PER_MINUTE, SESSIONS = "clicks", "clicks.per_minute", "clicks.sessions"


def lines(board: ClickBoard, now: float, height: int) -> list[Line]:
    """The screen, in so many rows."""
    rate, _ = board.sent.rates(now)
    failed = f"   failed {board.failed:,}" if board.failed else ""
    room = max(height - 1 - FIXED_LINES - bool(board.trouble), 6)
    pages = min(MAX_PAGES, max(MIN_PAGES, room - 3))
    return [
        Line("Ottla: clicks go into a topic, Spark counts them, results come out of topics", "bold"),
        Line(""),
        Line(f"  broker   {board.broker}"),
        Line(f"  clicks   {board.acknowledged:>9,} in topic {CLICKS}   {rate:,.0f}/s{failed}"),
        *_spark(board, now),
        *([Line(f"  trouble  {board.trouble}", "bold")] if board.trouble else []),
        Line(""),
        *_pages(board, pages),
        Line(""),
        *_sessions(board, max(room - pages, 2)),
        Line(""),
        *_hints(board),
    ]


def _spark(board: ClickBoard, now: float) -> Iterator[Line]:
    if not board.has_begun:
        waited = f" ... {now - board.spark_began:.0f} s" if board.phase else ""
        yield Line(f"  spark    {PHASES[board.phase]}{waited}", "bold")
        yield Line(
            f"           {board.spark}" if board.spark else "           (this takes some seconds)", "dim"
        )
        return
    counted = board.minutes.counted
    yield Line(f"  spark    {counted:>9,} counted, each once   behind {board.lag:,}   ({board.spark})")
    yield Line("           " + "   ".join(map(_query, board.queries)), "dim")


def _query(query: Mapping[str, Any]) -> str:
    if "batch" not in query:
        return f"{_short(query['name'])} starting"
    return f"{_short(query['name'])}: batch {query['batch']:,} in {query['batch_ms']:,} ms"


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _pages(board: ClickBoard, room: int) -> Iterator[Line]:
    minute, pages = board.minutes.latest()
    clock = f", {_clock(minute)}" if minute else ""
    yield Line(f"  Views this minute, by page{clock}   (topic {PER_MINUTE})", "bold")
    most = max((views for _, views in pages), default=1)
    if not pages:
        yield Line("  none yet", "dim")
        room -= 1
    for page, views in pages[:room]:
        bar = "#" * max(round(BAR_WIDTH * views / most), 1)
        yield Line(f"  {page[:NAME_WIDTH]:<{NAME_WIDTH}} {bar:<{BAR_WIDTH}} {views:>7,}")
    yield from [Line("")] * (room - len(pages))


def _sessions(board: ClickBoard, room: int) -> Iterator[Line]:
    yield Line(f"  Sessions that have ended: {board.sessions_seen:,}   (topic {SESSIONS})", "bold")
    shown = list(board.sessions)[:room]
    if not shown:
        yield Line("  none yet", "dim")
        room -= 1
    for session in shown:
        yield Line(_session(session))
    yield from [Line("")] * (room - len(shown))


def _session(session: Mapping[str, Any]) -> str:
    start, end = _clock(session["start"]), _clock(session["end"])
    return f"  {session['user'][:NAME_WIDTH]:<{NAME_WIDTH}} {start} to {end}  {session['clicks']:>3} clicks"


def _clock(timestamp: str) -> str:
    """The time of day in an ISO timestamp."""
    return timestamp[11:19]


def _hints(board: ClickBoard) -> Iterator[Line]:
    if board.stopped:
        return
    if board.stopping:
        yield Line("  Counting the last clicks ... (Ctrl-C again: at once)", "bold")
        return
    if board.address:
        yield Line("  Look at it from another terminal:", "dim")
        yield Line(f"    {board.command} consume -b {board.address} -t {PER_MINUTE} -o -5 -e", "dim")
        yield Line(f"    {board.command} group lag -b {board.address} clickstream.per_minute", "dim")
    yield Line("  Ctrl-C ends it; nothing is kept.", "dim")


def progress_line(board: ClickBoard, elapsed_s: float) -> str:
    """One line for a terminal that is none; while Spark starts, one for each step of that."""
    if not board.has_begun:
        if board.phase == board.phase_told:
            return ""
        board.phase_told = board.phase
        return f"{elapsed_s:5.0f} s  clicks {board.acknowledged:,}  spark: {PHASES[board.phase]} ..."
    minute, pages = board.minutes.latest()
    top = "  ".join(f"{page} {views:,}" for page, views in pages[:3])
    return (
        f"{elapsed_s:5.0f} s  clicks {board.acknowledged:,}  counted {board.minutes.counted:,}  "
        f"behind {board.lag:,}  sessions {board.sessions_seen:,}  {_clock(minute)}  {top}"
    )


_AFTERWARDS = "Spark and the broker are stopped and their data removed"


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
