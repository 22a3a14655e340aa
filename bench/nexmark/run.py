"""Nexmark by the data source `ottla` beside Spark's own JVM connector: every query, rows/s, equal to plain SQL.

As in bench.spark, "Apache" in the table is Spark's connector: the same PySpark, settings, broker and topics, a process
for each, rounds in turn. The first run of a query, by both, is the one that is compared with plain SQL over the same
events in Parquet files; it warms up, too. Then the best of the rounds counts. Rows are those that a query reads.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.interop.process import ServerProcess

from bench.nexmark.events import KINDS, Shape, closing, events
from bench.nexmark.plain import SQL
from bench.report import Report, Row
from bench.servers import create_topic, delete_topic, ottla
from bench.spark_data import count_rows
from bench.spark_runner import SparkProcess, ours, sessions, theirs

PARTITIONS = 4
SIDE = "nexmark.side"
SIDE_KEYS = 10_000
WON = "nexmark.q9"
# Those that read the topic which q9 writes.
AFTER_Q9 = ("q4", "q6")
MICRO_BATCHES = 4
NEVER_BELOW = 1.0
FLUSH_TIMEOUT_S = 120.0
IN_FLIGHT = 50_000


@dataclass(frozen=True)
class Sizes:
    """How many events, and how often each query is timed after its first run."""

    events: int
    rounds: int


FULL = Sizes(events=500_000, rounds=2)
QUICK = Sizes(events=50_000, rounds=1)


def nexmark(
    report: Report, where: Path, quick: bool = False, events: int | None = None, queries: Collection[str] = ()
) -> None:
    """Every query, or those that are named."""
    sizes = QUICK if quick else FULL
    shape = Shape(events or sizes.events)
    # Spark rounds down for each partition; nothing is to be left for one batch more.
    limit = (shape.count("bid") + PARTITIONS) // MICRO_BATCHES + PARTITIONS
    with ottla(where) as server:
        tables = fill(server, where, shape)
        with sessions([theirs(), ours()], server, where, "bench.nexmark.job") as (jvm, own):
            own.do("make_tables", place=str(tables))
            world = World(report, server, tables, limit, sizes.rounds, {"apache": jvm, "ottla": own})
            for name in queries or SQL:
                world.tried(name, partial(world.query, name))
            if not queries or "q0" in queries:
                world.tried("q0 into a topic", world.into_a_topic)
    assert not world.failed, f"queries {', '.join(world.failed)}"


@dataclass
class World:
    """The broker and the two sessions of a run."""

    report: Report
    server: ServerProcess
    tables: Path
    limit: int
    rounds: int
    both: dict[str, SparkProcess]
    failed: list[str] = field(default_factory=list)
    _has_won: bool = False
    _names: Iterator[int] = field(default_factory=itertools.count)

    def tried(self, name: str, work: Callable[[], None]) -> None:
        """The other queries are still worth their figures; the part as a whole has failed."""
        try:
            work()
        except (AssertionError, OSError) as error:
            self.failed.append(name)
            print(f"nexmark, {error}", file=sys.stderr)

    def query(self, name: str) -> None:
        """One query, compared and timed."""
        if name in AFTER_Q9:
            self._win()
        wanted = self.both["ottla"].do("tell_plainly", name=name, place=str(self.tables), side=SIDE)
        for who, process in self.both.items():
            found = process.do("tell", name=name, limit=self.limit)
            for what in ("rows_out", "hash"):
                assert found[what] == wanted[what], (
                    f"{name}: {who} has {found[what]}, SQL {wanted[what]} ({what})"
                )
        self._compare(f"Nexmark {name}", "run", {"name": name})

    def into_a_topic(self) -> None:
        """The query that passes all bids through, with its output where pipelines have it."""
        self._compare("Nexmark q0 into a topic", "run_into", {"name": "q0"}, into_topic=True)

    def _win(self) -> None:
        """The topic of the winning bids, once."""
        if not self._has_won:
            create_topic(self.server, WON, PARTITIONS)
            self.both["ottla"].do("run_into", name="q9", limit=self.limit, topic=WON)
            self._has_won = True

    def _compare(self, title: str, order: str, arguments: dict[str, Any], into_topic: bool = False) -> None:
        best: dict[str, dict[str, Any]] = {}
        for _ in range(self.rounds + into_topic):  # nothing has warmed up the writing
            for who, process in self.both.items():
                with self._target(into_topic) as target:
                    said = process.do(order, limit=self.limit, **arguments, **target)
                    if into_topic:
                        written = count_rows(self.server, target["topic"], PARTITIONS)
                        assert written == said["rows"], (
                            f"{title}: {who} wrote {written} of {said['rows']} rows"
                        )
                if who not in best or said["seconds"] < best[who]["seconds"]:
                    best[who] = said
        assert best["apache"]["rows"] == best["ottla"]["rows"], f"{title}: not the same rows were read"
        rates = {who: said["rows"] / said["seconds"] for who, said in best.items()}
        note = f"{best['ottla']['rows']:,} rows"
        row = Row(title, "rows/s", rates["apache"], rates["ottla"], NEVER_BELOW, True, note=note)
        self.report.add(row)

    @contextlib.contextmanager
    def _target(self, is_topic: bool) -> Iterator[dict[str, str]]:
        """Where rows go: into a topic for this run alone, or nowhere."""
        if not is_topic:
            yield {}
            return
        name = f"nexmark.q0-{next(self._names)}"
        create_topic(self.server, name, PARTITIONS)
        yield {"topic": name}
        delete_topic(self.server, name)


def fill(server: ServerProcess, where: Path, shape: Shape) -> Path:
    """The events in topics, each partition in order and closed at its end, and as lines in files."""
    from confluent_kafka import Producer

    place = where / "tables"
    place.mkdir(parents=True)
    for kind in KINDS:
        create_topic(server, f"nexmark.{kind}", PARTITIONS)
    create_topic(server, SIDE, 1)
    # Idempotent: what is sent again must not come after what was sent behind it.
    producer = Producer({"bootstrap.servers": server.address, "linger.ms": 20, "enable.idempotence": True})
    with contextlib.ExitStack() as stack:
        files = {kind: stack.enter_context((place / f"{kind}.json").open("w")) for kind in KINDS}
        numbers = dict.fromkeys(KINDS, 0)

        def put(kind: str, partition: int, event: str) -> None:
            if len(producer) > IN_FLIGHT:
                producer.flush(FLUSH_TIMEOUT_S)
            producer.produce(f"nexmark.{kind}", event, partition=partition)
            files[kind].write(event + "\n")

        for kind, event in events(shape):
            put(kind, numbers[kind] % PARTITIONS, event)
            numbers[kind] += 1
        for partition in range(PARTITIONS):
            for kind, event in closing(partition).items():
                put(kind, partition, event)
    for key in range(SIDE_KEYS):
        producer.produce(SIDE, json.dumps({"value": f"v{key}"}), key=str(key))
    assert producer.flush(FLUSH_TIMEOUT_S) == 0, "the broker has not taken all events"
    return place
