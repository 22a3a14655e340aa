"""Consume, transform, produce: with the broker and the application killed again and again, every input counts once.

A short run by itself; OTTLA_EXACTLY_ONCE_KILLS=100 makes it as long as one likes. The seed that chose the moments
is printed on failure, and OTTLA_EXACTLY_ONCE_SEED repeats it (as far as a machine's timing allows).
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
import pytest
from tests.clients.adapters.transactional import committed_offset, read
from tests.faults.conftest import MakeNode
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import REPO, wait_until
from tests.support.exactly_once import GROUP
from tests.support.raw_client import RawClient

KILLS = int(os.environ.get("OTTLA_EXACTLY_ONCE_KILLS", "6"))
SEED = int(os.environ.get("OTTLA_EXACTLY_ONCE_SEED", str(random.randrange(1 << 30))))
PARTITIONS = 2
NUMBERS = 150 * PARTITIONS * max(KILLS, 6)
PATIENCE_S = 120.0
# The longest that anybody is left in peace.
MOMENT_S = 0.8


class Application:
    """The process that is killed; whenever it has gone by itself, it is started again."""

    def __init__(self, address: str, log_path: Path) -> None:
        self._command = [sys.executable, "-m", "tests.support.exactly_once", address, "numbers", "squares"]
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
def application(node: OttlaNode, log_path: Path) -> Iterator[Application]:
    running = Application(node.address, log_path)
    try:
        yield running
    finally:
        running.kill()


def fill(node: OttlaNode) -> None:
    with RawClient(node) as client:
        client.create_topic("numbers", PARTITIONS)
        client.create_topic("squares", PARTITIONS)
    producer = ck.Producer({"bootstrap.servers": node.address, "enable.idempotence": True})
    for number in range(NUMBERS):
        producer.produce("numbers", str(number), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0


def reached(node: OttlaNode) -> int:
    offsets = (committed_offset(node.address, GROUP, "numbers", p) for p in range(PARTITIONS))
    return sum(offset or 0 for offset in offsets)


def leave_in_peace(app: Application, chance: random.Random) -> None:
    """Until a moment of chance has passed, with the application running."""
    until = time.monotonic() + chance.uniform(0.0, MOMENT_S)
    wait_until(lambda: app.ensure() or time.monotonic() >= until, PATIENCE_S, "a moment")


@pytest.mark.timeout(120 + 20 * KILLS)
def test_every_input_counts_once(make_node: MakeNode, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    node = make_node()
    node.start()
    node.wanted_port = node.port
    fill(node)
    with application(node, tmp_path / "application.log") as app:
        for round_ in range(KILLS):
            leave_in_peace(app, chance)
            if round_ % 2:
                app.kill()
            else:
                node.kill()
                node.start()

        def done() -> bool:
            app.ensure()
            return reached(node) >= NUMBERS

        wait_until(done, PATIENCE_S, "all numbers to be squared")
    squares = read(node.address, "squares", PARTITIONS)
    expected = [
        f"{partition}:{number}:{number * number}".encode()
        for partition in range(PARTITIONS)
        for number in range(partition, NUMBERS, PARTITIONS)
    ]
    twice = [value for value, count in Counter(squares).items() if count > 1]
    assert not twice, f"seed {SEED}: {len(twice)} twice"
    missing = sorted(set(expected) - set(squares))
    assert not missing, f"seed {SEED}: {len(missing)} missing"
    assert squares == expected, f"seed {SEED}: in another order"
    assert node.stop() == 0
