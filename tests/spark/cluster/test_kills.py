"""Somebody dies in the middle of a micro-batch on the cluster, again and again: each row is there once in the end.

A chunk of records is produced, and as soon as Spark has noted a micro-batch that it has not finished, one of the
processes that work on it is killed -9: a Python worker, an executor's JVM, a whole worker of Spark (another one is
started), the master (the same one comes again), the driver with its Java (`run` is called again). Then all that was
produced has to get through before the next one dies.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.interop.process import wait_until
from tests.support.shipped import Shipped, shipped
from tests.support.six import Record, prepare, produce
from tests.support.spark_world import Broker
from tests.support.standalone import CONF, Standalone, descendants, kill_all, ottla

from ottla.spark.pipeline.state import Home

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(3600)]

VICTIMS = ("python worker", "executor", "worker", "master", "driver")
BATCH_TIMEOUT_S = 300
RECOVERY_TIMEOUT_S = 600


class Stricken:
    """A pipeline that runs on the cluster, and is fed and robbed of a process at a time."""

    def __init__(
        self,
        one: Shipped,
        cluster: Standalone,
        broker: Broker,
        state: Path,
        place: Path,
    ) -> None:
        self._one, self._cluster, self._broker = one, cluster, broker
        self._where = ["--master", cluster.master, *CONF]
        self._place = place
        self._state = ("--state-dir", str(state))
        self._home = Home(state, one.name)
        self._checkpoints = place / "checkpoints"
        self._produced = 0

    def run(self, *more: str) -> None:
        """As a user runs it: first, and whenever the driver has died."""
        words = ["run", f"ottla.examples.{self._one.name}", "-b", self._broker.bootstrap, *more]
        words += [*self._where, "--checkpoint-dir", str(self._checkpoints)]
        done = ottla(*words, *self._state, cwd=self._place)
        assert done.returncode == 0, f"{done.stderr}\n{self.log_text()}"

    def stop(self) -> None:
        done = ottla("stop", self._one.name, *self._state, cwd=self._place)
        assert done.returncode == 0, done.stderr

    def feed(self, records: list[Record]) -> None:
        produce(self._broker, records)
        self._produced += len(records)

    def strike(self, victim: str) -> None:
        """In the midst of a micro-batch."""
        wait_until(self._is_in_flight, BATCH_TIMEOUT_S, f"a micro-batch for the death of a {victim}")
        cluster = self._cluster
        match victim:
            case "python worker":
                wait_until(lambda: bool(cluster.python_workers()), BATCH_TIMEOUT_S, "a Python worker")
                kill_all(cluster.python_workers()[:1])
            case "executor":
                wait_until(lambda: bool(cluster.executors()), BATCH_TIMEOUT_S, "an executor")
                kill_all(cluster.executors()[:1])
            case "worker":
                cluster.kill(cluster.workers[0])
                cluster.start_worker()
            case "master":
                cluster.kill("master")
                cluster.start_master()
            case "driver":
                pid = self._home.pid()
                assert pid is not None
                kill_all(list(descendants(pid)))
                wait_until(lambda: not self._home.is_running(), BATCH_TIMEOUT_S, "the end of the driver")
                self.run("--detach")

    def see_through(self, after: str) -> None:
        """All that was produced is in committed micro-batches of every query."""
        try:
            wait_until(self._is_through, RECOVERY_TIMEOUT_S, f"the records after the death of a {after}")
        except TimeoutError as error:
            raise AssertionError(
                f"{error}\n{self._read()}\n{self.log_text()}\n{self._cluster.log_text()}"
            ) from None

    def log_text(self) -> str:
        return "\n".join(file.read_text(errors="replace")[-6000:] for file in self._home.logs.glob("*.log"))

    def _queries(self) -> list[Path]:
        return [place for place in self._checkpoints.glob("*") if (place / "offsets").is_dir()]

    def _is_in_flight(self) -> bool:
        return any(_newest(place / "offsets") > _newest(place / "commits") for place in self._queries())

    def _read(self) -> list[int]:
        return [_records_of(place / "offsets" / str(_newest(place / "commits"))) for place in self._queries()]

    def _is_through(self) -> bool:
        return bool(self._queries()) and all(read == self._produced for read in self._read())


def _newest(log: Path) -> int:
    """The last micro-batch in one of a checkpoint's logs; -1 where there is none."""
    names = [entry.name for entry in log.iterdir()] if log.is_dir() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _records_of(offsets: Path) -> int:
    """How many records of its one topic a micro-batch and all before it have read."""
    try:
        places = json.loads(offsets.read_text().splitlines()[2])
    except (OSError, ValueError, IndexError):  # not there yet
        return 0
    return sum(at for topic in places.values() for at in topic.values())


@pytest.mark.parametrize("name", ["etl"])
def test_each_row_once_whoever_dies(
    name: str,
    cluster: Standalone,
    own_broker: Broker,
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAKE", str(tmp_path / "lake"))
    prepare(name, own_broker)
    one = shipped(name)
    die_and_check(
        one, VICTIMS, Stricken(one, cluster, own_broker, state, tmp_path), own_broker, tmp_path / "lake"
    )


def die_and_check(
    one: Shipped, victims: Sequence[str], stricken: Stricken, broker: Broker, lake: Path
) -> None:
    records = one.records
    size = len(records) // (len(victims) + 2)
    stricken.run("--detach")
    stricken.feed(records[:size])
    stricken.see_through("nobody")
    for number, victim in enumerate(victims, 1):
        stricken.feed(records[number * size : (number + 1) * size])
        stricken.strike(victim)
        stricken.see_through(victim)
    stricken.stop()
    stricken.feed(records[(len(victims) + 1) * size :])
    stricken.run("--available-now")
    one.check(records, broker, lake)
