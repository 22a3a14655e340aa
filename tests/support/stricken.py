"""A pipeline that ships, on a cluster that loses a process in the middle of a micro-batch, again and again.

A chunk of records is produced, and as soon as Spark has noted a micro-batch that it has not finished, one of the
processes that work on it is killed -9: a Python worker, an executor's JVM, a whole worker of Spark (another one is
started), the master (the same one comes again), whoever runs the pipeline with all that it has started (`run` is called
again: a driver with its Java, or the client of a Spark Connect server), the Spark Connect server (it comes again, and
the run goes on there by itself). Then all that was produced has to get through before the next one dies.

    stricken = Stricken(shipped("etl"), cluster, broker, state, place)
    die_and_check(stricken, ("executor", "driver"))       # each row once, as after a batch
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.interop.process import wait_until
from tests.support.connect_server import ConnectServer
from tests.support.shipped import Shipped
from tests.support.six import Record, produce
from tests.support.spark_world import Broker
from tests.support.standalone import CONF, Standalone, descendants, kill_all, ottla

from ottla.spark.pipeline.run.state import Home

BATCH_TIMEOUT_S = 600
RECOVERY_TIMEOUT_S = 900


class Stricken:
    """A pipeline that runs on the cluster, and is fed and robbed of a process at a time."""

    def __init__(
        self,
        one: Shipped,
        cluster: Standalone | None,
        broker: Broker,
        state: Path,
        place: Path,
        server: ConnectServer | None = None,
    ) -> None:
        self.one, self.broker, self.lake = one, broker, place / "lake"
        self._cluster, self._server = cluster, server
        if server is not None:
            self._where = ["--remote", server.url]
        else:
            assert cluster is not None
            self._where = ["--master", cluster.master, *CONF]
        self._place = place
        self._state = ("--state-dir", str(state))
        self._home = Home(state, one.name)
        self._checkpoints = place / "checkpoints"
        self._produced: Counter[str] = Counter()

    def run(self, *more: str) -> None:
        """As a user runs it: first, and whenever it has died."""
        words = ["run", f"ottla.examples.{self.one.name}", "-b", self.broker.bootstrap, *more]
        words += [*self._where, "--checkpoint-dir", str(self._checkpoints)]
        done = ottla(*words, *self._state, cwd=self._place, LAKE=str(self.lake))
        assert done.returncode == 0, f"{done.stderr}\n{self.log_text()}"

    def stop(self) -> None:
        done = ottla("stop", self.one.name, *self._state, cwd=self._place)
        assert done.returncode == 0, done.stderr

    def feed(self, records: list[Record]) -> None:
        produce(self.broker, records)
        self._produced.update(record.topic for record in records)

    def strike(self, victim: str) -> None:
        """In the midst of a micro-batch."""
        wait_until(self._is_in_flight, BATCH_TIMEOUT_S, f"a micro-batch for the death of a {victim}")
        match victim:
            case "driver" | "client":
                pid = self._home.pid()
                assert pid is not None
                kill_all(list(descendants(pid)))
                self._await_end()
                self.run("--detach")
            case "server":
                assert self._server is not None
                self._server.kill()
                self._server.start()
            case _:
                assert self._cluster is not None
                self._kill_in(self._cluster, victim)

    def _kill_in(self, cluster: Standalone, victim: str) -> None:
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
            case _:
                raise AssertionError(victim)

    def _await_end(self) -> None:
        wait_until(lambda: not self._home.is_running(), RECOVERY_TIMEOUT_S, "the end of the run")

    def see_through(self, after: str) -> None:
        """All that was produced is in committed micro-batches of every query."""

        def is_through() -> bool:
            assert self._home.is_running(), f"the run has not outlived a {after}:\n{self.log_text()}"
            return self._is_through()

        try:
            wait_until(is_through, RECOVERY_TIMEOUT_S, f"the records after the death of a {after}")
        except TimeoutError as error:
            cluster = "" if self._cluster is None else self._cluster.log_text()
            raise AssertionError(f"{error}\n{list(self._read())}\n{self.log_text()}\n{cluster}") from None

    def log_text(self) -> str:
        server = [] if self._server is None else [self._server.log]
        logs = [*self._home.logs.glob("*.log"), *server]
        return "\n".join(file.read_text(errors="replace")[-6000:] for file in logs)

    def _queries(self) -> list[Path]:
        return [place for place in self._checkpoints.glob("*") if (place / "offsets").is_dir()]

    def _is_in_flight(self) -> bool:
        return any(_newest(place / "offsets") > _newest(place / "commits") for place in self._queries())

    def _read(self) -> Iterator[dict[str, int]]:
        """How many records of each topic every source of every query has read, in micro-batches that are finished."""
        for place in self._queries():
            yield from _records_of(place / "offsets" / str(_newest(place / "commits")))

    def _is_through(self) -> bool:
        read = list(self._read())
        return bool(read) and all(
            one and all(count == self._produced[topic] for topic, count in one.items()) for one in read
        )


def _newest(log: Path) -> int:
    """The last micro-batch in one of a checkpoint's logs; -1 where there is none."""
    names = [entry.name for entry in log.iterdir()] if log.is_dir() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _records_of(offsets: Path) -> list[dict[str, int]]:
    """How many records of its topics each source has read by the end of a micro-batch; one that says nothing yet is
    empty."""
    try:
        sources = [json.loads(line) for line in offsets.read_text().splitlines()[2:]]
        return [{topic: sum(at.values()) for topic, at in places.items()} for places in sources] or [{}]
    except (OSError, ValueError, AttributeError):  # not there yet, or not whole
        return [{}]


def die_and_check(stricken: Stricken, victims: Sequence[str]) -> None:
    """Each in turn, and then the rest of the records, as a batch."""
    one = stricken.one
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
    one.check(records, stricken.broker, stricken.lake)
