"""Exactly once under fire: driver, tasks and broker are killed -9 at random, and each row is there once.

A test run takes a few kills on local[2]; OTTLA_CHAOS=50 asks for as many, on a cluster of two executors with
speculation on. Tasks dawdle, so that kills and speculative copies hit them; the transactions' timeout is short, so that
decided ones time out before the next driver comes. A failure names its seed; OTTLA_CHAOS_SEED gives it again.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.support.sink_world import final_values
from tests.support.spark_jobs import SparkJob
from tests.support.spark_world import Broker

KILLS = int(os.environ.get("OTTLA_CHAOS") or 5)
IS_LONG = KILLS >= 20
START_S, KILL_S = 600, 120
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(START_S + KILLS * KILL_S)]

ROWS = 200
FILES_AHEAD = 4
TRANSACTION_TIMEOUT_MS = 20_000
# Weights: a driver takes Spark's start to come back, the others are back at once.
VICTIMS = {"driver": 1, "task": 3, "broker": 1}
SETTINGS = [f"kafka.transaction.timeout.ms={TRANSACTION_TIMEOUT_MS}", "tasks=3"]
SPECULATION = [
    "spark.master=local-cluster[2,1,1024]",
    "spark.executor.memory=512m",
    "spark.task.maxFailures=4",
    "spark.speculation=true",
    "spark.speculation.interval=100ms",
    "spark.speculation.multiplier=1.2",
    "spark.speculation.quantile=0.3",
    "spark.speculation.minTaskRuntime=100ms",
]


class Chaos:
    """One query, its broker, and what happens to them."""

    def __init__(self, broker: Broker, job: SparkJob, rng: random.Random) -> None:
        self.broker, self.job, self.rng = broker, job, rng
        self.kills: Counter[str] = Counter()
        self.lives = 0
        self._files = 0
        self._done_at_start = 0

    def run(self) -> None:
        while self.kills.total() < KILLS:
            self._see_that_it_runs()
            victim = self.rng.choices(list(VICTIMS), list(VICTIMS.values()))[0]
            if self._is_time() and getattr(self, f"_kill_{victim}")():
                self.kills[victim] += 1

    def finish(self) -> None:
        """Until everything is written."""
        for _ in range(5):
            if self.job.is_running:
                self.job.wait()
            if self.job.run() == "done":
                return
        raise AssertionError(f"the job does not come to an end\n{self.job.log_text()[-5_000:]}")

    def _see_that_it_runs(self) -> None:
        while self._files < self.job.batches_done() + FILES_AHEAD:
            self.job.feed(ROWS)
            self._files += 1
        if not self.job.is_running:
            self.job.reap()
            self.lives += 1
            self._done_at_start = self.job.batches_done()
            self.job.start()

    def _is_time(self) -> bool:
        """Once this life has done a batch, so that it gets on, at any moment; False if the job ended before."""
        deadline = time.monotonic() + START_S
        while self.job.is_running and self.job.batches_done() <= self._done_at_start:
            assert time.monotonic() < deadline, f"no batch gets done\n{self.job.log_text()[-5_000:]}"
            time.sleep(0.02)  # polls what another process does
        time.sleep(self.rng.uniform(0, 1.5))  # any moment: in a task, in a commit, between two batches
        return self.job.is_running

    def _kill_driver(self) -> bool:
        self.job.kill()
        return True

    def _kill_task(self) -> bool:
        workers = self.job.workers()
        if not workers:
            return False
        try:
            os.kill(self.rng.choice(workers), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def _kill_broker(self) -> bool:
        self.broker.kill()
        self.broker.start()
        return True


def test_each_row_once_however_often_who_dies(own_broker: Broker, tmp_path: Path) -> None:
    seed = int(os.environ.get("OTTLA_CHAOS_SEED") or random.randrange(2**32))
    print(f"OTTLA_CHAOS_SEED={seed}")
    topic = own_broker.topic(3)
    settings = [*SETTINGS, *(SPECULATION if IS_LONG else [])]
    job = SparkJob(tmp_path, own_broker.bootstrap, topic, *settings, dawdle_s=1.0)
    chaos = Chaos(own_broker, job, random.Random(seed))
    try:
        chaos.run()
        chaos.finish()
    finally:
        job.reap()
    print(f"{dict(chaos.kills)} killed in {chaos.lives} lives, {len(job.expected())} rows")
    assert final_values(own_broker.bootstrap, topic) == job.expected()
