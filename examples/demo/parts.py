"""What the demos share: the screen, the broker's process, the producer, and how a demo ends.

- The screen (rich) is the terminal's alternate one, so that what stood there before comes back, and a resize spoils
  nothing. Where there is no terminal, or no rich, it is a line a second.
- The broker is a process as `ottla serve` runs it, in a directory of its own, on a free port. However the demo ends,
  the broker does: it is stopped, or it sees the end of its standard input and stops by itself.
- A demo ends at a signal in order, at a second one at once.

Owned by the demo's event loop.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ottla.client.producer.accumulator import Delivery

# What is to be seen now, in so many rows; and the same as one line (none: nothing new).
Frame = Callable[[float, int], "RenderableType"]
Progress = Callable[[float], str]

FRAME_S = 0.2
PROGRESS_S = 1.0
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
ABANDON_S = 0.2
# How often the producer sends what is due, and over how long its rate is measured.
TICK_S = 0.02
WINDOW_S = 2.0


class DemoError(Exception):
    """Something the user should read, in one line."""


def say(message: str) -> None:
    """Talk to the person: not a part of what is shown."""
    print(message, file=sys.stderr, flush=True)


def has_screen() -> bool:
    """Whether there is a terminal that can be drawn on, and rich to draw with, which comes with Spark."""
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return is_terminal and importlib.util.find_spec("rich") is not None


def own_command() -> str:
    """How this command is called from here: `make demo` runs one that is not on the PATH."""
    called = Path(sys.argv[0])
    if shutil.which("ottla") or called.name != "ottla":
        return "ottla"
    return os.path.relpath(called)


async def show(frame: Frame, progress: Progress, done: asyncio.Event) -> None:
    """Draw until it is done; then the last frame stays on the terminal."""
    if not has_screen():
        await _print_progress(progress, done)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    # Without a thread of rich's own: frames are drawn between the other tasks of this loop, which owns what they show.
    with Live(
        console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    ) as live:
        while not done.is_set():
            live.update(frame(time.monotonic(), console.height), refresh=True)
            await pause(done, FRAME_S)
    console.print(frame(time.monotonic(), console.height))


async def _print_progress(progress: Progress, done: asyncio.Event) -> None:
    started = time.monotonic()
    while not done.is_set():
        await pause(done, PROGRESS_S)
        if line := progress(time.monotonic() - started):
            print(line, flush=True)


async def pause(event: asyncio.Event, seconds: float) -> None:
    """Sleep, but wake at once for the event."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


class Broker:
    """The broker's process and its directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        self.address = ""

    async def start(self) -> None:
        """Start it and wait until it says where it listens."""
        self._log = self._directory / "broker.log"
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "ottla.cli.main", "serve", "--data-dir", str(self._directory / "data")),
                *("-X", "listeners=PLAINTEXT://127.0.0.1:0"),
                # Were the demo killed, the broker would see the end of this and stop.
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment(),
                # Ctrl-C is for the demo, which stops its clients before it stops the broker.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        try:
            raw = await asyncio.wait_for(self._process.stdout.readline(), START_TIMEOUT_S)
        except TimeoutError:
            raise DemoError(f"the broker has not started within {START_TIMEOUT_S:.0f} s") from None
        line = raw.decode("utf-8", "replace").strip()
        if " listening on " not in line:
            raise DemoError(f"the broker did not start: {last_line(self._log)}")
        self.address = line.rpartition(" listening on ")[2].split()[0].rstrip(",")

    async def exited(self) -> None:
        """Returns never; raises if the broker ends by itself."""
        assert self._process is not None
        code = await self._process.wait()
        raise DemoError(f"the broker ended by itself with exit code {code}: {last_line(self._log)}")

    async def stop(self) -> None:
        """Ask it to stop, and insist if it does not."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                process.kill()
                await process.wait()


def last_line(log: Path) -> str:
    """Why a process ended, as far as its log says it."""
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def environment() -> dict[str, str]:
    """What the demo's processes inherit: no Kafka settings of this shell, and the wish to stop at the end of input."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")}
    return {**inherited, "OTTLA_STOP_AT_EOF": "1"}


async def create_topics(
    address: str, topics: Iterable[str], partitions: int, settings: Mapping[str, str]
) -> None:
    """Make them, all alike."""
    from ottla.client.admin.aio import AsyncAdmin
    from ottla.client.admin.types import NewTopic
    from ottla.model.errors import KafkaError

    async with AsyncAdmin(bootstrap_servers=address, client_id="demo-admin") as admin:
        made = await admin.create_topics([NewTopic(name, partitions, 1, dict(settings)) for name in topics])
    for result in made.values():
        if isinstance(result, KafkaError):
            raise result


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
