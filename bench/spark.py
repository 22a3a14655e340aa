"""The data source `ottla` beside Spark's own JVM Kafka connector: the same PySpark, session, broker, data and code.

In this part's table "Apache" is Spark's connector. Each has a process of its own; rounds alternate between them, so
that a noisy moment hits both alike, and the best round of each counts. Every figure is of data that was checked to the
row. What Spark's connector writes is at least once; ours is measured as that and exactly once.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interop.process import ServerProcess

from bench.report import Report, Row
from bench.servers import create_topic, delete_topic, ottla
from bench.spark_data import VALUE_BYTES, Data, count_rows, fill
from bench.spark_latency import latency
from bench.spark_runner import SparkProcess, ours, ours_newest, sessions, theirs

PARTITIONS = 4
FILES = 8
MB = 1 << 20
SOME_COLUMNS = ["key", "value"]
AT_LEAST_ONCE = {"ottla.delivery": "at_least_once"}
AIM = 2.0
NEWEST_ROUNDS = 2
ONE_CORE_AIM = 1_000_000


@dataclass(frozen=True)
class Sizes:
    """How much is read and written, and how often after the first, cold time."""

    read_rows: int
    write_rows: int
    rounds: int
    # Streams of a few rows each before the large ones: Java takes a hundred micro-batches to compile what plans them,
    # and does so beside the tasks on the same cores.
    warming_streams: int
    latency_s: float


SMALL_ROWS = 8_000
FULL = Sizes(read_rows=3_000_000, write_rows=3_000_000, rounds=9, warming_streams=40, latency_s=8.0)
QUICK = Sizes(read_rows=500_000, write_rows=200_000, rounds=1, warming_streams=1, latency_s=2.0)


@dataclass
class Best:
    """The best of several rounds, and the first one, which was cold."""

    rows: int
    first_s: float | None = None
    seconds: float = float("inf")
    cpu_seconds: float = float("inf")
    query_seconds: float = float("inf")

    def add(self, said: dict[str, Any]) -> None:
        """One more round."""
        self.first_s = said["seconds"] if self.first_s is None else self.first_s
        self.seconds = min(self.seconds, said["seconds"])
        self.cpu_seconds = min(self.cpu_seconds, said["cpu_seconds"])
        self.query_seconds = min(self.query_seconds, said.get("query_seconds", said["seconds"]))

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds


@dataclass
class World:
    """The broker and the sessions of one run."""

    report: Report
    server: ServerProcess
    where: Path
    sizes: Sizes
    theirs: SparkProcess
    ours: SparkProcess
    newest: SparkProcess
    _names: Iterator[int] = field(default_factory=itertools.count)

    def turns(self) -> Iterator[dict[str, SparkProcess]]:
        """Who takes part in each round; the newest, which is compared with nobody, only in the first two."""
        compared = {"apache": self.theirs, "ottla": self.ours}
        for number in range(self.sizes.rounds + 1):
            yield {**compared, "newest": self.newest} if number < NEWEST_ROUNDS else compared

    def written(
        self, process: SparkProcess, order: str, arguments: dict[str, Any], rows: int | None = None
    ) -> dict[str, Any]:
        """One write into a topic of its own, whose rows are counted before the topic goes."""
        rows = rows or self.sizes.write_rows
        topic = f"out-{next(self._names)}"
        create_topic(self.server, topic, PARTITIONS)
        said: dict[str, Any] = process.do(order, topic=topic, **arguments)
        found = count_rows(self.server, topic, PARTITIONS)
        assert found == rows, f"{found} rows of {rows} are in the topic"
        delete_topic(self.server, topic)
        return said


def spark(report: Report, where: Path, quick: bool = False) -> None:
    """Reads, writes and latency."""
    sizes = QUICK if quick else FULL
    with ottla(where) as server:
        data = fill(server, "in", PARTITIONS, sizes.read_rows)
        with sessions([theirs(), ours(), ours_newest()], server, where) as (jvm, own, newest):
            world = World(report, server, where, sizes, jvm, own, newest)
            read(world, data)
            write(world)
            latency(report, server, {"apache": jvm, "ottla": own}, sizes.latency_s)
        one_core(report, server, where / "one-core", data, sizes.rounds)


def read(world: World, data: Data) -> None:
    """Batch and streaming reads. What is read is checked in the first round, which warms up too."""
    batch: dict[str, Best] = defaultdict(lambda: Best(data.rows))
    some: dict[str, Best] = defaultdict(lambda: Best(data.rows))
    stream: dict[str, Best] = defaultdict(lambda: Best(data.rows))
    for number, turn in enumerate(world.turns()):
        for name, process in turn.items():
            batch[name].add(process.do("read", topic=data.topic))
            if number == 0:
                data.check(process.do("check", topic=data.topic), name)
    for turn in world.turns():
        for name, process in turn.items():
            some[name].add(process.do("read_some", topic=data.topic, columns=SOME_COLUMNS))
    for turn in world.turns():
        for name, process in turn.items():
            said = process.do("read_stream", topic=data.topic)
            assert said["rows"] == data.rows, f"{name} streams {said['rows']} rows of {data.rows}"
            stream[name].add(said)
    add(world, "Spark batch read", batch)
    add(world, "Spark batch read, key and value", some)
    add(world, "Spark stream read", stream)
    both(world, "Spark stream read, with its start", "s", {k: b.query_seconds for k, b in stream.items()})


def write(world: World) -> None:
    """df.write, then a stream of files into a topic in four micro-batches."""
    rows, place = world.sizes.write_rows, str(world.where / "files")
    world.ours.do("make_files", rows=rows, files=FILES, place=place)
    writes(world, "Spark batch write", "write", {"rows": rows})
    writes(
        world, "Spark stream write", "write_stream", {"place": place, "files_a_batch": FILES // 4}, warm_up
    )


def warm_up(world: World) -> None:
    """Streams of a few rows, by either connector."""
    rows, place = SMALL_ROWS, str(world.where / "small-files")
    world.ours.do("make_files", rows=rows, files=FILES, place=place)
    arguments = {"place": place, "files_a_batch": FILES // 4, "options": {}}
    for _ in range(world.sizes.warming_streams):
        for process in (world.theirs, world.ours):
            world.written(process, "write_stream", arguments, rows)


def writes(
    world: World,
    name: str,
    order: str,
    arguments: dict[str, Any],
    after_the_first: Callable[[World], None] = lambda _: None,
) -> None:
    """All who write, in turn; the first round is the cold one."""
    rows = world.sizes.write_rows
    exactly: dict[str, Best] = defaultdict(lambda: Best(rows))
    at_least = Best(rows)
    for number, turn in enumerate(world.turns()):
        if number == 1:
            after_the_first(world)
        for who, process in turn.items():
            # Spark's connector has no such option: what it gives is at least once.
            exactly[who].add(world.written(process, order, {**arguments, "options": {}}))
        at_least.add(world.written(world.ours, order, {**arguments, "options": AT_LEAST_ONCE}))
    add(world, f"{name}, exactly once", exactly)
    add(world, f"{name}, at least once", {"apache": exactly["apache"], "ottla": at_least})


def one_core(report: Report, server: ServerProcess, where: Path, data: Data, rounds: int) -> None:
    """A single task at a time."""
    best = Best(data.rows)
    with sessions([ours("local[1]")], server, where) as (process,):
        data.check(process.do("check", topic=data.topic), "local[1]")
        for _ in range(rounds + 1):
            best.add(process.do("read", topic=data.topic))
    report.add(
        Row("Spark batch read on one core", "rows/s", None, best.rate, ONE_CORE_AIM, True, absolute=True)
    )


# -- rows of the table ------------------------------------------------------------------------------------


def add(world: World, name: str, best: dict[str, Best]) -> None:
    """Rows and megabytes a second, CPU for a million rows, the cold first run."""
    rates = {who: each.rate for who, each in best.items()}
    report = world.report
    report.add(Row(name, "rows/s", rates["apache"], rates["ottla"], AIM, higher_is_better=True))
    both(world, name, "MB/s", {who: rate * VALUE_BYTES / MB for who, rate in rates.items()}, True)
    both(world, f"{name}: CPU", "s/M rows", {who: b.cpu_seconds * 1e6 / b.rows for who, b in best.items()})
    both(world, f"{name}: cold", "s", {who: b.first_s or 0.0 for who, b in best.items()})
    if "newest" in rates:
        note = f"PySpark {world.newest.pyspark}"
        report.add(Row(f"{name}, newest", "rows/s", None, rates["newest"], higher_is_better=True, note=note))


def both(world: World, name: str, unit: str, figures: dict[str, float], higher: bool = False) -> None:
    """A row without an aim."""
    world.report.add(Row(name, unit, figures["apache"], figures["ottla"], higher_is_better=higher))
