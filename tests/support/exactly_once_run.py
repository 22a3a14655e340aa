"""A run of the exactly-once application with the broker and the application killed in turn, at moments of chance.

    survive(node, tmp_path / "application.log", kills=6, seed=17)

At the end every number has its square in the output, once and in its order; else an AssertionError names the seed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka as ck
from tests.clients.adapters.transactional import committed_offset, read
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import REPO, wait_until
from tests.support.exactly_once import GROUP
from tests.support.raw_client import RawClient

PARTITIONS = 2
NUMBERS_A_KILL = 150 * PARTITIONS
PATIENCE_S = 120.0
# The longest that anybody is left in peace.
MOMENT_S = 0.8
# What a kill may take on a busy machine, for a test's own timeout.
KILL_S = 20.0


def seed() -> int:
    """Another one every time, unless OTTLA_EXACTLY_ONCE_SEED says which."""
    return int(os.environ.get("OTTLA_EXACTLY_ONCE_SEED", random.randrange(1 << 30)))


class Application:
    """The process that is killed; whenever it has gone by itself, it is started again."""

    def __init__(self, log_path: Path, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "tests.support.exactly_once", *arguments]
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    def ensure(self) -> None:
        if self._process is None or self._process.poll() is not None:
            with self._log_path.open("ab") as log:
                self._process = subprocess.Popen(self._command, cwd=REPO, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def application(log_path: Path, *arguments: str) -> Iterator[Application]:
    running = Application(log_path, *arguments)
    try:
        yield running
    finally:
        running.kill()


def survive(node: OttlaNode, log_path: Path, kills: int, seed: int) -> None:
    """The node runs already, on a directory of its own; it is running at the end as well."""
    chance = random.Random(seed)
    node.wanted_port = node.port
    numbers = NUMBERS_A_KILL * kills
    fill(node, numbers)
    with application(log_path, node.address, "numbers", "squares") as app:
        for round_ in range(kills):
            leave_in_peace(chance, app)
            if round_ % 2:
                app.kill()
            else:
                node.kill()
                node.start()

        def done() -> bool:
            app.ensure()
            return reached(node.address) >= numbers

        wait_until(done, PATIENCE_S + kills, f"all numbers to be squared (seed {seed})")
    check(read(node.address, "squares", PARTITIONS), numbers, seed)


def fill(node: OttlaNode, numbers: int) -> None:
    with RawClient(node) as client:
        client.create_topic("numbers", PARTITIONS)
        client.create_topic("squares", PARTITIONS)
    producer = ck.Producer({"bootstrap.servers": node.address, "enable.idempotence": True})
    for number in range(numbers):
        producer.produce("numbers", str(number), partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0


def leave_in_peace(chance: random.Random, *apps: Application) -> None:
    """Until a moment of chance has passed, with the applications running."""
    until = time.monotonic() + chance.uniform(0.0, MOMENT_S)

    def passed() -> bool:
        for app in apps:
            app.ensure()
        return time.monotonic() >= until

    wait_until(passed, PATIENCE_S, "a moment")


def reached(address: str, group: str = GROUP, source: str = "numbers", partitions: int = PARTITIONS) -> int:
    """How many numbers are done with."""
    offsets = (committed_offset(address, group, source, p) for p in range(partitions))
    return sum(offset or 0 for offset in offsets)


def check(squares: list[bytes], numbers: int, seed: int, partitions: int = PARTITIONS) -> None:
    """The output, partition by partition: each number's square once, in the order of the numbers."""
    expected = [
        f"{partition}:{number}:{number * number}".encode()
        for partition in range(partitions)
        for number in range(partition, numbers, partitions)
    ]
    twice = [value for value, count in Counter(squares).items() if count > 1]
    assert not twice, f"seed {seed}: {len(twice)} twice"
    missing = set(expected) - set(squares)
    assert not missing, f"seed {seed}: {len(missing)} missing"
    assert squares == expected, f"seed {seed}: in another order, or more than there should be"
