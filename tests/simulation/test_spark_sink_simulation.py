"""The Spark sink's commit under a seeded scheduler: drivers, tasks and coordinators that die, stall and race.

Each life: a query with a few micro-batches. Attempts of tasks write in transactions, fail, are killed, are doubled
by speculation, go on as zombies; drivers are killed between any two requests, are replaced while they still run,
lose answers; transactions time out whenever; a replay has another layout of tasks; now and then the checkpoint is
thrown away and another query goes on under the same transactional id. After every event: no row is visible twice,
none of a batch that was not decided. In the end each row of each decided batch is visible once, all batches are
decided, and nothing is open. A failure names its seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from random import Random
from typing import Any

import pytest
from tests.simulation.spark_sink_stage import Cluster, Concurrent, Refused, Row
from tests.simulation.stage import Violation, seeds, simulate

from ottla.model.ids import TopicPartition
from ottla.spark.sink.commit import (
    CopyRows,
    Decision,
    Driver,
    End,
    EndDecision,
    Entry,
    Examine,
    Fenced,
    FenceOpen,
    Identity,
    ReadDecision,
    SinkError,
    Span,
    Step,
    Steps,
    TakeOver,
    WriteDecision,
    Written,
    abort,
    commit,
    union,
)

SEEDS, BLOCKS = 2_000, 10
PARTITIONS = [TopicPartition("out", 0), TopicPartition("out", 1), TopicPartition("more", 0)]
PREFIX, DECIDER = "p", "p-decision"
ROWS, SLOTS, ATTEMPTS = 5, 3, 4
CALM_BATCHES = 2  # the one that was under way, and one more that clears up after the last fault
EVENTS = 400
CALM_PATIENCE = 5_000
PATIENCE = 60  # how often an end of something else is waited for before a step gives up

Turns = Generator[None, None, Any]


class Unavailable(Exception):
    """A request got no answer in time; it was done or not."""


class Died(Exception):
    """A task attempt has failed."""


class Simulation:
    """One life; see the module."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = Cluster(self.random.choice((1, 2)), PARTITIONS)
        self.calm = False
        self.query = "q0"
        self.log: dict[str, int] = {}  # Spark's commit log: the batches done, by query
        self.runs: list[Run] = []
        self.zombies: list[Turns] = []
        self.losses = self.random.choice((0.0, 0.02, 0.1))

    def run(self) -> None:
        for _ in range(EVENTS):
            self._event()
            self.cluster.check()
        self.calm = True
        self.zombies.clear()
        self.runs.clear()
        wanted = self.log.get(self.query, 0) + CALM_BATCHES
        while self.log.get(self.query, 0) < wanted:
            self._calm_event()
            self.cluster.check()
        while self.cluster.preparing():
            self.cluster.mark_one(self.cluster.preparing()[0])
        self._check_the_end()

    def _event(self) -> None:
        dice = self.random.random()
        if dice < 0.02 and self.runs:
            self._kill(self.random.choice(self.runs))
        elif dice < 0.03 and self.runs and len(self.runs) < 3:
            self.runs.append(Run(self))  # a second driver, while the first one goes on
        elif dice < 0.045 and (names := self.cluster.open_ids(PREFIX)):
            self.cluster.time_out(self.random.choice(names))
        elif dice < 0.048 and self.random.random() < 0.2:
            self.runs.clear()
            self.query = f"q{int(self.query[1:]) + 1}"
        elif dice < 0.30:
            self._mark()
        elif dice < 0.36 and self.zombies:
            self._advance_zombie()
        else:
            self._advance()

    def _calm_event(self) -> None:
        if self.random.random() < 0.4:
            self._mark()
        else:
            self._advance()

    def _mark(self) -> None:
        if names := self.cluster.preparing():
            self.cluster.mark_one(self.random.choice(names))

    def _advance(self) -> None:
        if not self.runs:
            self.runs.append(Run(self))
        run = self.random.choice(self.runs)
        if not run.advance():
            self.runs.remove(run)

    def _advance_zombie(self) -> None:
        zombie = self.random.choice(self.zombies)
        try:
            next(zombie)
        except (StopIteration, Died):
            self.zombies.remove(zombie)

    def _kill(self, run: Run) -> None:
        self.runs.remove(run)
        for attempt in run.attempts():
            if self.random.random() < 0.5:
                self.zombies.append(attempt)

    def chance(self, probability: float) -> bool:
        return not self.calm and self.random.random() < probability

    def _check_the_end(self) -> None:
        cluster = self.cluster
        visible = cluster.visible()
        decided = {(d.query_id, d.batch_id) for d in cluster.decisions}
        decided |= {(query, batch) for query, batches in self.log.items() for batch in range(batches)}
        wanted = {row for query, batch in decided for row in rows_of(query, batch)}
        if set(visible) != wanted:
            raise Violation(f"lost: {wanted - set(visible)}; undecided but visible: {set(visible) - wanted}")
        if left := [name for name, txn in cluster.ids.items() if txn.state in ("Ongoing", "Prepare")]:
            raise Violation(f"still open: {left}")


def rows_of(query: str, batch: int) -> list[Row]:
    """The batches are of different sizes; every fourth is empty."""
    return [Row(query, batch, number) for number in range((ROWS, 2, 1, 0)[batch % 4])]


class Run:
    """One run of the query: a driver, and the tasks that it has started."""

    def __init__(self, sim: Simulation) -> None:
        self.sim, self.query = sim, sim.query
        self.batch = sim.log.get(sim.query, 0)
        self.driver = Driver()
        self.slots: list[Slot] = []
        self._turns = self._live()

    def advance(self) -> bool:
        """One step of the driver or of a task; False when the run is over."""
        running = [slot for slot in self.slots if slot.attempts]
        if running and self.sim.random.random() < 0.8:
            self.sim.random.choice(running).advance()
            return True
        try:
            next(self._turns)
        except StopIteration:
            return False
        return True

    def attempts(self) -> Iterator[Turns]:
        for slot in self.slots:
            yield from slot.attempts.values()

    def _live(self) -> Turns:
        while True:
            self._start_tasks()
            while not all(slot.message is not None or slot.is_lost for slot in self.slots):
                yield
            written = self._written()
            failed = any(slot.is_lost for slot in self.slots)
            if not failed:
                failed = not (yield from self._perform(commit(self.driver, written, of_stream=True)))
            if failed:
                if self.sim.chance(0.7):  # or it is killed before it comes to that
                    yield from self._perform(abort(self.driver, written))
                return
            self._abandon()
            yield
            if self.sim.log.get(self.query, 0) != self.batch:
                return  # another driver has written this into the checkpoint: Spark stops this one
            self.sim.log[self.query] = self.batch + 1
            self.batch += 1
            if self.sim.random.random() < 0.3:
                self.driver = Driver()

    def _start_tasks(self) -> None:
        rows = rows_of(self.query, self.batch)
        count = self.sim.random.randint(1, SLOTS)
        shares: list[list[Row]] = [[] for _ in range(count)]
        for row in rows:
            self.sim.random.choice(shares).append(row)
        self.slots = [Slot(self, number, share) for number, share in enumerate(shares)]

    def _abandon(self) -> None:
        """The losers of the batch: killed, or not yet."""
        for attempt in self.attempts():
            if self.sim.chance(0.3):
                self.sim.zombies.append(attempt)
        self.slots = []

    def _written(self) -> Written:
        done = [slot.message for slot in self.slots if slot.message is not None]
        entries = tuple(entry for entry, _ in done if entry is not None)
        spans = union(span for _, spans in done for span in spans or ())
        return Written(
            self.query, self.batch, entries, spans, skipped=any(spans is None for _, spans in done)
        )

    def _perform(self, steps: Steps[None]) -> Turns:
        """Drive the sink's own code; False if it failed."""
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration:
                return True
            except (Unavailable, SinkError):
                return False
            answer = error = None
            try:
                answer = yield from Performer(self.sim).perform(step)
            except (Fenced, Unavailable) as raised:
                error = raised


class Slot:
    """One task and its attempts, of which the first to finish counts."""

    def __init__(self, run: Run, number: int, rows: list[Row]) -> None:
        self.run, self.number, self.rows = run, number, rows
        self.attempts: dict[int, Turns] = {}
        # An entry or None if it wrote nothing; spans, None if it skipped a batch that was decided.
        self.message: tuple[Entry | None, tuple[Span, ...] | None] | None = None
        self.started = 0
        self.is_lost = False
        self._start()

    def _start(self) -> None:
        self.attempts[self.started] = self._attempt(self.started)
        self.started += 1

    def advance(self) -> None:
        sim = self.run.sim
        number = sim.random.choice(list(self.attempts))
        if sim.chance(0.05) and self.started < ATTEMPTS:
            self._start()  # a speculative copy
        if sim.chance(0.02):
            self._fails(number)  # killed hard: its transaction stays as it is
            return
        try:
            next(self.attempts[number])
        except StopIteration as stop:
            del self.attempts[number]
            if self.message is None:
                self.message = stop.value
        except Died:
            self._fails(number)

    def _fails(self, number: int) -> None:
        del self.attempts[number]
        if self.message is None and not self.attempts:
            if self.started < ATTEMPTS:
                self._start()
            else:
                self.is_lost = True

    def _attempt(self, number: int) -> Turns:
        sim, cluster = self.run.sim, self.run.sim.cluster
        decision = cluster.read_decision()  # what is committed: never waits for one being made
        yield
        if (
            decision is not None
            and decision.settles(self.run.query, self.run.batch)
            and sim.random.random() < 0.8
        ):
            return None, None  # sometimes it is read too early
        if not self.rows:
            return None, ()
        name = f"{PREFIX}-{self.number}-{number}"
        performer = Performer(sim)
        try:
            producer_id, epoch = yield from performer.patiently(lambda: cluster.init(name))
            spans = yield from self._write(performer, name, producer_id, epoch)
        except (Refused, Unavailable):
            raise Died from None
        return Entry(self.number, number, producer_id, epoch, len(self.rows)), spans

    def _write(self, performer: Performer, name: str, producer_id: int, epoch: int) -> Turns:
        sim, spans, rows = self.run.sim, [], list(self.rows)
        while rows:
            size = sim.random.randint(1, 2)
            chunk, rows = rows[:size], rows[size:]
            tp = sim.random.choice(PARTITIONS)
            first, last = yield from performer.patiently(
                lambda tp=tp, chunk=chunk: sim.cluster.produce(name, producer_id, epoch, tp, chunk)
            )
            spans.append(Span(tp.topic, tp.partition, first, last))
            yield
        return union(spans)


class Performer:
    """Does on the model what a step asks for, one request at a time."""

    def __init__(self, sim: Simulation) -> None:
        self.sim, self.cluster = sim, sim.cluster

    def perform(self, step: Step) -> Turns:
        for lost in (True, False):
            if self.sim.chance(self.sim.losses / 2):
                if lost:
                    raise Unavailable
                yield from self._do(step)
                raise Unavailable
        return (yield from self._do(step))

    def patiently(self, ask: Any) -> Turns:
        waited = 0
        while True:
            yield
            try:
                return ask()
            except Concurrent:
                waited += 1
                assert waited < CALM_PATIENCE, "this will never come"
                if waited > PATIENCE and not self.sim.calm:
                    raise Unavailable from None

    def _do(self, step: Step) -> Turns:
        cluster = self.cluster
        match step:
            case TakeOver():
                return Identity(*(yield from self.patiently(lambda: cluster.init(DECIDER))))
            case ReadDecision(stable):
                return (yield from self.patiently(lambda: cluster.read_decision(stable)))
            case WriteDecision(identity, decision):
                yield from self._fenced(lambda: cluster.commit_offsets(DECIDER, *identity, decision))
            case EndDecision(identity):
                return Identity(*(yield from self._fenced(lambda: cluster.end(DECIDER, *identity, True))))
            case End(entries, is_commit):
                return (yield from self._end(entries, is_commit))
            case FenceOpen():
                for name in cluster.open_ids(PREFIX):
                    if name != DECIDER:
                        yield from self.patiently(lambda name=name: cluster.init(name))
            case Examine(entries, spans):
                return (yield from self._examine(entries, spans))
            case CopyRows(identity, entries, spans):
                yield from self._copy(identity, entries, spans)

    def _fenced(self, ask: Any) -> Turns:
        try:
            return (yield from self.patiently(ask))
        except Refused:
            raise Fenced from None

    def _end(self, entries: tuple[Entry, ...], is_commit: bool) -> Turns:
        sure = []
        for entry in entries:
            name, who = entry.transactional_id(PREFIX), (entry.producer_id, entry.producer_epoch)
            try:
                yield from self.patiently(lambda name=name, who=who: self.cluster.end(name, *who, is_commit))
                sure.append(True)
            except Refused:
                sure.append(False)
        return sure

    def _examine(self, entries: tuple[Entry, ...], spans: tuple[Span, ...]) -> Turns:
        waited = 0
        while any(
            self.cluster.last_stable_offset(span.topic_partition) <= span.last_offset for span in spans
        ):
            yield
            waited += 1
            assert waited < CALM_PATIENCE, "the last stable offset stands still"
            if waited > PATIENCE and not self.sim.calm:
                raise Unavailable
        found: dict[Entry, set[bool | None]] = {entry: set() for entry in entries}
        by_producer = {(entry.producer_id, entry.producer_epoch): entry for entry in entries}
        for span in spans:
            log, verdicts = (
                self.cluster.logs[span.topic_partition],
                self.cluster.verdicts(span.topic_partition),
            )
            for offset in range(span.first_offset, span.last_offset + 1):
                item = log[offset]
                entry = by_producer.get((item.producer_id, item.epoch))
                if entry is not None and item.row is not None:
                    found[entry].add(verdicts[offset])
        assert all(len(verdict) == 1 for verdict in found.values()), f"half a transaction: {found}"
        return frozenset(entry for entry, verdict in found.items() if verdict == {False})

    def _copy(self, identity: Identity, entries: tuple[Entry, ...], spans: tuple[Span, ...]) -> Turns:
        wanted = {(entry.producer_id, entry.producer_epoch) for entry in entries}
        copied = 0
        for span in spans:
            log = self.cluster.logs[span.topic_partition]
            items = log[span.first_offset : span.last_offset + 1]
            rows = [
                item.row
                for item in items
                if (item.producer_id, item.epoch) in wanted and item.row is not None
            ]
            if rows:
                copied += len(rows)
                yield from self._fenced(
                    lambda span=span, rows=rows: self.cluster.produce(
                        DECIDER, *identity, span.topic_partition, rows
                    )
                )
        assert copied == sum(entry.rows for entry in entries)


def life(seed: int) -> None:
    Simulation(seed).run()


@pytest.mark.parametrize("chosen", seeds(SEEDS, BLOCKS), ids=str)
def test_each_row_of_a_decided_batch_is_visible_once(chosen: range) -> None:
    simulate(chosen, life, "tests/simulation/test_spark_sink_simulation.py")


def test_the_simulation_sees_what_it_should() -> None:
    """Replays, recoveries and take-overs do happen: else the seeds above would prove nothing."""
    recovered = foreign = batches = 0
    for seed in range(300):
        sim = Simulation(seed)
        sim.run()
        decisions: list[Decision] = sim.cluster.decisions
        pairs = list(itertools.pairwise(decisions))
        recovered += sum(a.batch_id == b.batch_id and a.query_id == b.query_id for a, b in pairs)
        batches += sum(sim.log.values())
        foreign += len({decision.query_id for decision in decisions}) > 1
    assert recovered > 50
    assert foreign > 10
    assert batches > 300 * (CALM_BATCHES + 1)
