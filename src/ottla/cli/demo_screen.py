"""What the demo shows: counters, and the few lines made of them. Pure; the demo owns one of each."""

from __future__ import annotations

from ottla.cli.demo_show import Line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

WINDOW_S = 2.0
BAR_WIDTH = 24
LATENCIES = 2000


class Meter:
    """A count, and how fast it has been growing lately."""

    def __init__(self) -> None:
        self.total = 0
        self.total_bytes = 0
        self._marks: list[tuple[float, int, int]] = []

    def add(self, count: int, size_bytes: int = 0) -> None:
        self.total += count
        self.total_bytes += size_bytes

    def rates(self, now: float) -> tuple[float, float]:
        """Records and bytes a second over the last moments; to be asked regularly."""
        self._marks.append((now, self.total, self.total_bytes))
        while len(self._marks) > 2 and now - self._marks[1][0] > WINDOW_S:
            del self._marks[0]
        then, count, size_bytes = self._marks[0]
        elapsed = now - then
        if elapsed <= 0:
            return 0.0, 0.0
        return (self.total - count) / elapsed, (self.total_bytes - size_bytes) / elapsed


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


def lines(board: Board, now: float) -> list[Line]:
    """The screen."""
    sent_rate, sent_bytes = board.sent.rates(now)
    read_rate, _ = board.read.rates(now)
    title = "Ottla: a Kafka broker in Python, and a producer and a consumer at work on it"
    shown = [
        "",
        f"  broker    {board.broker}",
        f"  topic     {board.topic}, {len(board.ends)} partitions",
        f"  producer  {board.sent.total:>10,} sent   {sent_rate:>7,.0f}/s  {_size(sent_bytes)}/s   "
        f"acknowledged {board.acknowledged:,}" + (f"   failed {board.failed:,}" if board.failed else ""),
        f"  consumer  {board.read.total:>10,} read   {read_rate:>7,.0f}/s  behind {board.lag:,}   "
        f"latency p50 {board.latency_ms(0.5):.0f} ms, p99 {board.latency_ms(0.99):.0f} ms",
        *_partitions(board.ends, board.positions),
        f"  last      {board.last}",
    ]
    if board.trouble:
        shown.append(f"  trouble   {board.trouble}")
    return [Line(title, "bold"), *map(Line, shown), *[Line(hint, "dim") for hint in _hints(board)]]


def _hints(board: Board) -> list[str]:
    look = [
        "  Look at it from another terminal:",
        f"    {board.command} consume -b {board.address} -t {board.topic} -o -5 -e",
        f"    kcat -b {board.address} -L",
        "",
    ]
    return ["", *(look if board.address else []), "  Ctrl-C ends it; nothing is kept."]


def _partitions(ends: Sequence[int], positions: Sequence[int]) -> list[str]:
    """How far each partition has grown, and how far it has been read."""
    most = max(max(ends, default=0), 1)
    rows = []
    for number, (end, position) in enumerate(zip(ends, positions, strict=True)):
        full = round(BAR_WIDTH * end / most)
        read = min(round(BAR_WIDTH * position / most), full)
        bar = "#" * read + "-" * (full - read)
        rows.append(f"  p{number:<8} [{bar:<{BAR_WIDTH}}] {end:,}")
    return rows


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


def _size(size_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size_bytes < 1000:
            return f"{size_bytes:,.0f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:,.1f} GB"
