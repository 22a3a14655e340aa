"""`ottla demo`: a broker, a topic, a producer and a consumer, live, on one screen.

The broker runs as `ottla serve` runs it, in a process and a temporary directory of its own, on free ports. However
the demo ends (Ctrl-C, SIGTERM, the terminal gone, an error), the broker is stopped and the directory removed; after
kill -9 the broker stops by itself and only the directory stays.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.args import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, CliError, Command, argument
from ottla.cli.demo_screen import Board, lines, progress_line, summary
from ottla.cli.output import say

if TYPE_CHECKING:
    import argparse

    from ottla.client.batch import Delivery
    from ottla.client.fetched import ConsumerRecord

TOPIC = "letters"
PARTITIONS = 3
FRAME_S = 0.2
TICK_S = 0.02
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
CATCH_UP_S = 5.0
ABANDON_S = 0.2
# Without a terminal nobody presses Ctrl-C.
UNWATCHED_S = 30.0
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
                env=_environment(),
                # Ctrl-C is for the demo, which stops its clients before it stops the broker.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        try:
            raw = await asyncio.wait_for(self._process.stdout.readline(), START_TIMEOUT_S)
        except TimeoutError:
            raise CliError(f"the broker has not started within {START_TIMEOUT_S:.0f} s") from None
        line = raw.decode("utf-8", "replace").strip()
        if " listening on " not in line:
            raise CliError(f"the broker did not start: {self._last_words()}")
        self.address = line.rpartition(" listening on ")[2].split()[0].rstrip(",")

    def _last_words(self) -> str:
        words = self._log.read_text("utf-8", "replace").strip().splitlines()
        return words[-1] if words else "it said nothing"

    async def exited(self) -> None:
        """Returns never, unless the broker ends by itself: that is an error."""
        assert self._process is not None
        code = await self._process.wait()
        raise CliError(f"the broker ended by itself with exit code {code}: {self._last_words()}")

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


def _environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")}
    return {**inherited, "OTTLA_STOP_AT_EOF": "1"}


async def _produce(board: Board, address: str, rate: int, stop: asyncio.Event) -> None:
    """Write letters at an even pace until told to stop, then wait for the last acknowledgement."""
    from ottla.client.aio import AsyncProducer

    def delivered(delivery: Delivery) -> None:
        error = delivery.exception()
        if error is None:
            board.acknowledged += 1
        else:
            board.failed += 1
            board.trouble = str(error)

    dice = random.Random()
    async with AsyncProducer(bootstrap_servers=address, linger_ms=5, client_id="demo-producer") as producer:
        started, written = time.monotonic(), 0
        while not stop.is_set():
            due = int((time.monotonic() - started) * rate)
            for number in range(written, due):
                writer, value = _letter(dice, number)
                delivery = await producer.send(TOPIC, value, writer)
                delivery.add_done_callback(delivered)
                board.sent.add(1, len(value))
            written = max(due, written)
            await _pause(stop, TICK_S)
        await producer.flush()


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
            await _pause(done, 0.5)


async def _show(board: Board, done: asyncio.Event) -> None:
    """Redraw the screen, or print a line a second where there is none."""
    if not sys.stdout.isatty():
        await _print_progress(board, done)
        return
    drawn = 0
    sys.stdout.write("\x1b[?25l")
    try:
        while True:
            frame = lines(board, time.monotonic(), shutil.get_terminal_size().columns)
            back = f"\x1b[{drawn}F" if drawn else ""
            sys.stdout.write(back + "".join(f"{line}\x1b[K\n" for line in frame) + "\x1b[J")
            sys.stdout.flush()
            drawn = len(frame)
            if done.is_set():
                return
            await _pause(done, FRAME_S)
    finally:
        sys.stdout.write("\x1b[?25h")
        sys.stdout.flush()


async def _print_progress(board: Board, done: asyncio.Event) -> None:
    started = time.monotonic()
    while not done.is_set():
        await _pause(done, 1.0)
        print(progress_line(board, time.monotonic() - started), flush=True)


async def _pause(event: asyncio.Event, seconds: float) -> None:
    """Sleep, but wake at once for the event."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


async def _create_topic(address: str) -> None:
    from ottla.client.admin import AsyncAdmin
    from ottla.client.admin_types import NewTopic
    from ottla.model.errors import KafkaError

    async with AsyncAdmin(bootstrap_servers=address, client_id="demo-admin") as admin:
        results = await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, TOPIC_SETTINGS)])
    for result in results.values():
        if isinstance(result, KafkaError):
            raise result


async def _demo(directory: Path, rate: int, seconds: float | None) -> Board:
    """All of it, until a signal or the time is up."""
    stop = asyncio.Event()
    whole = asyncio.current_task()
    assert whole is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The first ends it in order; a second does not wait for the last acknowledgement.
        asyncio.get_running_loop().add_signal_handler(
            number, lambda: whole.cancel() if stop.is_set() else stop.set()
        )
    board = Board(TOPIC, PARTITIONS)
    broker = Broker(directory)
    started = time.monotonic()
    try:
        say("starting a broker in a temporary directory ...")
        await broker.start()
        board.started_in_s = time.monotonic() - started
        board.address = broker.address
        board.broker = f"{broker.address}, up in {board.started_in_s:.2f} s"
        if not sys.stdout.isatty():
            print(f"broker: {board.broker}", flush=True)
        await _create_topic(broker.address)
        await _run_clients(board, broker, rate, seconds, stop)
    finally:
        await broker.stop()
    return board


async def _run_clients(
    board: Board, broker: Broker, rate: int, seconds: float | None, stop: asyncio.Event
) -> None:
    """The producer until told to stop, the consumer until it has read the rest."""
    done = asyncio.Event()
    producer = asyncio.create_task(_produce(board, broker.address, rate, stop))
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
            await _abandon(tasks)
        gone.cancel()
        outcomes = await asyncio.gather(gone, *tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


async def _abandon(tasks: list[asyncio.Task[None]]) -> None:
    """Nobody is left to talk to: a client would still try for minutes to deliver, at each turn of its closing."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=ABANDON_S)


async def _catch_up(board: Board, gone: asyncio.Task[None]) -> None:
    """Give the consumer the time to read what was acknowledged."""
    deadline = time.monotonic() + CATCH_UP_S
    while board.read.total < board.acknowledged and time.monotonic() < deadline and not gone.done():
        await asyncio.sleep(TICK_S)


def _run(args: argparse.Namespace) -> int:
    seconds = args.seconds
    if seconds is None and not sys.stdout.isatty():
        seconds = UNWATCHED_S
    directory = Path(tempfile.mkdtemp(prefix="ottla-demo-"))
    try:
        board = asyncio.run(_demo(directory, args.rate, seconds))
    except asyncio.CancelledError:
        return EXIT_INTERRUPTED
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(summary(board))
    return EXIT_FAILED if board.failed or board.read.total < board.acknowledged else EXIT_OK


COMMAND = Command(
    "demo",
    "a broker, a topic, a producer and a consumer, live, in a temporary directory",
    argument("--rate", type=int, default=1000, metavar="N", help="records a second (default: 1000)"),
    argument(
        "--seconds",
        type=float,
        default=None,
        metavar="S",
        help="end after so long (default: at Ctrl-C, and without a terminal after 30 s)",
    ),
    run=_run,
)
