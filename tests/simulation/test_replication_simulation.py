"""Replication under everything that can fail at once: three to five brokers beside a quorum of three controllers.

Every broker runs the real Partition, AlterPartitionManager, ReplicaFetcher, fetch sessions and DelayedFetch, every
controller the real core, loader and Controller, for every seed; see replication_stage. Messages are dropped, late,
doubled, overtaken and cut in one direction or both; brokers are killed, lose what was not flushed or a log directory,
are paused and stopped in order, controllers crash. Meanwhile producers write with acks 0, 1 and all, consumers read
from leaders and followers, partitions are moved, preferred leaders elected and min.insync.replicas changed.

What must hold after every event is in replication_checker. When the faults stop, every ISR is full, every write is
answered, every replica has the same log, and consumers have read all of it. A failure names its seed and shows what
happened last.

Fewer than min ISR replicas of a partition are without a clean stop at a time if one of them has lost something: that is
what Kafka promises, and with more it may lose records. A seed with a min ISR of 1 loses nothing on its disks, then.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.simulation.quorum_process import Programs
from tests.simulation.replication_checker import Excused, ReplicationChecker
from tests.simulation.replication_clients import TOPIC, Clients
from tests.simulation.replication_stage import SESSION_MS, SHUTDOWN_MS, Broker, Process, Stage
from tests.simulation.stage import Violation, seeds, simulate
from tests.simulation.test_quorum_simulation import hearing_of

from ottla.controller.controller import Controller
from ottla.metadata.snapshot import bootstrap_records, write_bootstrap
from ottla.model.ids import TopicPartition
from ottla.raft.image_loader import ImageLoader
from ottla.replication.partition import FollowerReplica, FollowerSession, Partition, PartitionRead
from ottla.server.handlers.fetch import DelayedFetch

SEEDS, BLOCKS = 1_000, 20
FAULTS_MS = 7_000
CALM_MS = 1_500
SETTLED_WITHIN_MS = 60_000
LOOK_EVERY_MS = 100
TRACE_LINES = 200


class ReplicationLife:
    """One seed: brokers, clients and faults."""

    def __init__(self, seed: int, place: Path, *, keeps_trace: bool = False) -> None:
        self.random = random = Random(seed)
        brokers = random.choice((3, 3, 4, 5))
        self.stage = Stage(
            random, Programs(place, Controller, ImageLoader, SESSION_MS), brokers, keeps_trace=keeps_trace
        )
        self.stage.checker = self.checker = ReplicationChecker(self.stage)
        self.replicas = random.choice((3, 3, 3, 2))
        self.min_isrs = random.choice(((2,), (2,), (2, 3), (1, 2), (1,)))
        self.clients = Clients(self.stage, random.choice((1, 2, 3)))
        self._is_settled = False
        # Brokers without a clean stop, and those of them that have lost something, by partition, until they are in its
        # ISR again.
        self._unclean: dict[TopicPartition, set[int]] = {key: set() for key in self.clients.keys}
        self._lossy: dict[TopicPartition, set[int]] = {key: set() for key in self.clients.keys}
        # How likely it is that whoever is about to join an ISR stops, and its leader does not hear that it has joined.
        self._harm = random.choice((0.0, 0.3, 0.8))
        self.stage.on_joining = self.harm_joining
        self.stage.raft.on_slow = self._lose_slow
        # Where few brokers end by chance, more of those may lose something that are ended when it does most: see _may.
        ends = random.choice((0.1, 1.0, 1.0))
        # How often what happens, a second.
        self.rates: list[tuple[Callable[[], None], float]] = [
            (self.kill, ends * random.choice((0.0, 0.3, 1.0))),
            (self.lose, ends * random.choice((0.0, 0.3, 1.0))),
            (self.kill_leader, ends * random.choice((0.0, 0.3, 1.0))),
            (self.shut_down, random.choice((0.0, 0.3, 0.6))),
            (self.lose_with_network, random.choice((0.0, 0.5, 1.0))),
            (self.fall_behind, random.choice((0.0, 0.0, 0.5, 1.0))),
            (self.fail_directory, random.choice((0.3, 1.0)) if self.stage.directories > 1 else 0.0),
            (self.pause, random.choice((0.0, 0.3, 1.0))),
            (self.cut, random.choice((0.0, 0.3, 1.0))),
            (self.crash_controller, random.choice((0.0, 0.0, 0.3))),
            (self.reassign, random.choice((0.0, 0.3, 1.0)) if brokers > self.replicas else 0.2),
            (self.clients.elect, random.choice((0.0, 0.5))),
            (self.change_min_isr, random.choice((0.0, 1.0)) if len(self.min_isrs) > 1 else 0.0),
        ]

    # --- the script

    def run(self) -> None:
        with hearing_of(self.stage.raft.failures), contextlib.suppress(Excused):
            self._run()

    def _run(self) -> None:
        stage = self.stage
        for node in stage.raft.nodes.values():
            stage.raft.at(self.random.random() * 100, stage.raft.restart, node)
        for broker in stage.brokers.values():
            stage.raft.at(self.random.random() * 100, broker.start)
        stage.after(300, self.clients.create, self.replicas, self.random.choice(self.min_isrs))
        stage.after(600, self.clients.start)
        for event, rate in self.rates:
            if rate:
                stage.after(CALM_MS, self._schedule, event, rate)
        stage.raft.run(FAULTS_MS)
        self.stop_faults()
        self._look_whether_settled()
        if not stage.raft.run(stage.now_ms + SETTLED_WITHIN_MS, lambda: self._is_settled):
            raise Violation(f"after a minute without faults: {self.unsettled()}")

    def _schedule(self, event: Callable[[], None], rate: float) -> None:
        delay_ms = self.random.expovariate(rate) * 1_000
        if self.stage.now_ms + delay_ms < FAULTS_MS:
            self.stage.after(delay_ms, self._happen, event, rate)

    def _happen(self, event: Callable[[], None], rate: float) -> None:
        event()
        self._schedule(event, rate)

    def stop_faults(self) -> None:
        self.stage.note("no more faults", 0)
        self.clients.is_over = True
        self.stage.weather.stop()
        self.stage.raft.cuts.clear()
        self.stage.raft.slow.clear()
        for node in self.stage.raft.nodes.values():
            self.stage.raft.restart(node)
            node.hurry_fsyncs()
        for broker in self.stage.brokers.values():
            self._mend(broker)

    def _look_whether_settled(self) -> None:
        self._is_settled = self.unsettled() is None
        if not self._is_settled:
            self.stage.after(LOOK_EVERY_MS, self._look_whether_settled)

    def unsettled(self) -> object:
        """What is not yet as it must be when nothing fails; None if all is."""
        image = self.stage.image
        topic = image.topic(TOPIC)
        if topic is None:
            return "there is no topic"
        for index, told in topic.partitions.items():
            if told.leader < 0 or set(told.isr) != set(told.replicas) or told.reassigning:
                return "not in sync", index, told
        waiting = [producer._id for producer in self.clients.producers if producer.batch is not None]
        if waiting:
            return "not answered", waiting
        for key in self.clients.keys:
            for replica in topic.partitions[key.partition].replicas:
                end = self.checker.of(key).end
                if (has := self.extent(key, replica)) != (0, end, end):
                    return "not the same", key, replica, has, end
        for consumer in self.clients.consumers:
            if consumer.position != self.checker.of(consumer._key).end:
                return "not read", consumer._key, consumer.position
        return None

    def extent(self, key: TopicPartition, replica: int) -> tuple[int, int, int] | None:
        """Where the log of a replica begins, is committed, and ends."""
        process = self.stage.brokers[replica].process
        partition = None if process is None else process.partitions.get(key)
        if partition is None:
            return None
        log = partition.log
        return log.log_start_offset, log.high_watermark, log.log_end_offset

    def trace(self) -> list[str]:
        assert self.stage.raft.trace is not None
        return self.stage.raft.trace

    # --- what happens

    def _some(self) -> Process | None:
        processes = [b.process for b in self.stage.brokers.values() if b.process is not None]
        return self.random.choice(processes) if processes else None

    def fail_directory(self) -> None:
        """One of the directories of a broker fails; the next start finds what is in it, or an empty one."""
        process = self._some()
        if process is None or process.is_paused:
            return
        broker = process.broker
        self._forget_those_in_sync()
        is_replaced = min(self.min_isrs) > 1 and self.random.random() < 0.5 and self._may(broker, loses=True)
        if broker.failed or not self._may(broker, loses=is_replaced):
            return
        index = self.random.randrange(len(broker.directories))
        process.run(partial(process.fail_directory, index, is_replaced=is_replaced))
        # Its stop is no clean one for any log that it has by then, wherever that lies.
        self._is_unclean(broker, self.clients.keys, loses=is_replaced)
        self.stage.after(self.random.choice((300.0, 1_500.0)), self._mend, broker)

    def _mend(self, broker: Broker) -> None:
        """It is started again, in order or not."""
        if broker.process is not None and broker.failed:
            if broker.process.epoch >= 0 and self.random.random() < 0.5:
                broker.process.shut_down()
                self.stage.after(SHUTDOWN_MS, self._mend, broker)  # it may be paused by then
            else:
                broker.kill(loses=False, down_ms=self._down_ms())

    def _down_ms(self) -> float:
        return self.random.choice((5.0, 50.0, 400.0, 1_500.0))

    def kill(self) -> None:
        process = self._some()
        if process is not None:
            self._kill(process.broker, loses=False)

    def lose(self) -> None:
        process = self._some()
        if process is not None:
            self._kill(process.broker, loses=True)

    def lose_with_network(self) -> None:
        """What a broker has asked for is under way when it comes back from a power loss, without the others for now."""
        process = self._some()
        if process is not None and process.broker.id not in self.stage.raft.slow:
            self.stage.note("is slow", process.broker.id)
            self.stage.raft.slow.add(process.broker.id)
            # What it asks for is still the end of the log when that arrives.
            self.clients.rest(self.random.choice((0.0, 2_000.0)))

    def _lose_slow(self, broker_id: int) -> None:
        """It has just asked."""
        self.stage.raft.slow.discard(broker_id)
        self.stage.after(self.random.uniform(0, 20), self._lose_without_others, self.stage.brokers[broker_id])

    def _lose_without_others(self, broker: Broker) -> None:
        if self.stage.now_ms < FAULTS_MS:
            self._kill(broker, loses=True, down_ms=self.random.choice((5.0, 50.0, 400.0)))
            self._cut_from_brokers(broker.id, self.random.choice((800.0, 2_000.0)))

    def fall_behind(self) -> None:
        """A follower is without the others for so long that it leaves the ISR; when it comes back its leader ends."""
        key = self.random.choice(self.clients.keys)
        topic = self.stage.image.topic(TOPIC)
        told = None if topic is None else topic.partitions[key.partition]
        if told is None or told.leader < 0 or len(told.isr) < 2:
            return
        behind = self.random.choice([replica for replica in told.isr if replica != told.leader])
        duration_ms = self.random.choice((1_000.0, 1_600.0))
        self.stage.note("falls behind", behind, f"{key} for {duration_ms} ms")
        self._cut_from_brokers(behind, duration_ms)
        # It lacks something, and of what is written at the end the others do not know yet that it is committed.
        self.stage.after(200, self.clients.rest, duration_ms - 350)
        self.stage.after(duration_ms + self.random.uniform(-100, 30), self._end_leader, key)

    def _end_leader(self, key: TopicPartition) -> None:
        topic = self.stage.image.topic(TOPIC)
        leader = -1 if topic is None else topic.partitions[key.partition].leader
        if leader >= 0 and self.stage.now_ms < FAULTS_MS:
            self._kill(self.stage.brokers[leader], loses=self.random.random() < 0.5)

    def _cut_from_brokers(self, one: int, duration_ms: float) -> None:
        pairs = [(one, other) for other in self.stage.brokers] + [
            (other, one) for other in self.stage.brokers
        ]
        self.stage.raft.cut(pairs, duration_ms)

    def harm_joining(self, leader: int, joining: list[int]) -> None:
        if self.stage.now_ms >= FAULTS_MS or not self._harm or self.random.random() >= self._harm:
            return
        process = self.stage.brokers[self.random.choice(joining)].process
        if process is not None:
            duration_ms = self.random.choice((100.0, 400.0, 800.0))
            self.stage.after(self.random.uniform(0, 4), process.pause, duration_ms)
            self.stage.raft.cut([(node, leader) for node in self.stage.raft.nodes], duration_ms)

    def kill_leader(self) -> None:
        leaders = [
            b
            for b in self.stage.brokers.values()
            if b.process is not None and any(p.is_leader for p in b.process.partitions.values())
        ]
        if leaders:
            self._kill(self.random.choice(leaders), loses=self.random.random() < 0.5)

    def _kill(self, broker: Broker, *, loses: bool, down_ms: float | None = None) -> None:
        """If that is not more than what Kafka promises to survive."""
        self._forget_those_in_sync()
        loses = loses and min(self.min_isrs) > 1
        if loses and not self._may(broker, loses=True):
            loses = False
        if not self._may(broker, loses=loses):
            return
        broker.kill(loses=loses, down_ms=self._down_ms() if down_ms is None else down_ms)
        self._is_unclean(broker, broker.disks, loses=loses)

    def _is_unclean(self, broker: Broker, keys: Iterable[TopicPartition], *, loses: bool) -> None:
        for key in keys:
            self._unclean[key].add(broker.id)
            if loses:
                self._lossy[key].add(broker.id)

    def _may(self, broker: Broker, *, loses: bool) -> bool:
        floor = min(*self.min_isrs, self.replicas)
        for key, unclean in self._unclean.items():
            if (loses or self._lossy[key]) and len({*unclean, broker.id}) >= floor:
                return False
        return True

    def _forget_those_in_sync(self) -> None:
        """A broker that is in the ISR in a life after the one that ended has everything again."""
        topic = self.stage.image.topic(TOPIC)
        for key, unclean in self._unclean.items():
            for broker_id in list(unclean):
                registered = self.stage.image.brokers.get(broker_id)
                told = None if topic is None else topic.partitions[key.partition]
                if registered is None or told is None:
                    continue
                is_new_life = registered.incarnation_id == self.stage.brokers[broker_id].incarnation
                is_whole = not self.stage.brokers[broker_id].failed
                if is_new_life and is_whole and (broker_id in told.isr or broker_id not in told.replicas):
                    unclean.discard(broker_id)
                    self._lossy[key].discard(broker_id)

    def shut_down(self) -> None:
        process = self._some()
        if process is not None:
            process.shut_down()

    def pause(self) -> None:
        process = self._some()
        if process is not None:
            process.pause(self.random.choice((100.0, 700.0, 2_000.0)))

    def cut(self) -> None:
        """A broker loses another, all others, the controllers, or everybody; both ways or one."""
        random, stage = self.random, self.stage
        one = random.choice(sorted(stage.brokers))
        others = random.choice(
            (
                [random.choice(sorted(stage.brokers))],
                list(stage.brokers),
                list(stage.raft.nodes),
                [*stage.brokers, *stage.raft.nodes],
            )
        )
        pairs = [(one, other) for other in others] if random.random() < 0.7 else []
        if not pairs or random.random() < 0.6:
            pairs += [(other, one) for other in others]
        stage.note("is cut", one, pairs)
        stage.raft.cut(pairs, random.choice((100.0, 800.0, 2_500.0)))

    def crash_controller(self) -> None:
        nodes = [node for node in self.stage.raft.nodes.values() if node.core is not None]
        if nodes:
            self.stage.raft.crash(self.random.choice(nodes))

    def reassign(self) -> None:
        self.clients.reassign(self.replicas)

    def change_min_isr(self) -> None:
        self.clients.change_min_isr(self.min_isrs)


# --- running it


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where controllers find the bootstrap records of a formatted directory: with eligible leader replicas."""
    directory = tmp_path_factory.mktemp("replication")
    write_bootstrap(directory, bootstrap_records(), 1)
    return directory


@pytest.mark.parametrize("chosen", seeds(SEEDS, BLOCKS), ids=str)
def test_nothing_that_is_committed_is_lost(chosen: Any, place: Path) -> None:
    done: list[tuple[int, int]] = []

    def life(seed: int) -> None:
        one = ReplicationLife(seed, place)
        try:
            one.run()
        except Exception as error:
            raise Violation(f"{error}\n{what_happened(seed, place)}") from error
        done.append((len(one.checker.acknowledged), one.checker.read))

    simulate(chosen, life, "tests/simulation/test_replication_simulation.py")
    if len(done) > 3:  # not where one seed is looked at again
        assert min(map(sum, zip(*done, strict=True))) > 5 * len(done), "something was done meanwhile"


def what_happened(seed: int, place: Path) -> str:
    """The end of the trace of a seed that fails."""
    again = ReplicationLife(seed, place, keeps_trace=True)
    with contextlib.suppress(Exception):
        again.run()
    told = [line for line in again.trace() if not re.match(r"\S+ \d+ (sends|commits) ", line)]
    return "\n".join(told[-TRACE_LINES:])


def test_a_seed_repeats_to_the_byte(place: Path) -> None:
    def trace(seed: int) -> bytes:
        one = ReplicationLife(seed, place, keeps_trace=True)
        one.run()
        stored = [batch for key in one.clients.keys for batch in one.checker.of(key).stored]
        return "\n".join(one.trace()).encode() + b"".join(stored)

    for seed in range(5):
        first = trace(seed)
        assert first.count(b"\n") > 100
        assert trace(seed) == first


# --- bugs that the simulation must find


@contextlib.contextmanager
def watermark_by_the_committed_isr(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever the leader has proposed is not waited for until the leader hears that it is in sync."""
    advance = Partition.maybe_advance_high_watermark

    def advances(self: Partition, end: int | None = None) -> None:
        before, self.maximal_isr = self.maximal_isr, frozenset(self.isr)
        with patch.context() as inner:
            inner.setattr(Partition, "_may_join", lambda *_: False)
            advance(self, end)
        self.maximal_isr = before

    patch.setattr(Partition, "maybe_advance_high_watermark", advances)
    yield


@contextlib.contextmanager
def position_of_a_diverging_fetch(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The offset of a log that is another one is taken for the follower's position."""

    def notes(self: DelayedFetch, reads: list[PartitionRead]) -> None:
        for read in reads if self._follower is not None else ():
            partition = self._services.replicas.hosted(read.wanted.topic, read.wanted.index)
            if partition is not None and read.error_code == 0 and self._follower is not None:
                partition.note_fetch(self._follower.replica_id, read.wanted, self._follower, self._now_ms)

    patch.setattr(DelayedFetch, "_note_fetch", notes)
    yield


@contextlib.contextmanager
def joins_without_a_fetch_of_this_epoch(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A follower need not have the start of this epoch: the watermark that a new leader knows is enough (KAFKA-7128).

    More may be committed.
    """

    def may_join(self: Partition, replica: int, follower: FollowerReplica) -> bool:
        return follower.log_end_offset >= self.log.high_watermark and self._is_eligible(replica, follower)

    patch.setattr(Partition, "_may_join", may_join)
    yield


@contextlib.contextmanager
def broker_epoch_ignored(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fetch counts whichever life of its broker it is of."""
    begin = FollowerSession.__init__
    patch.setattr(Partition, "check_broker_epoch", lambda self, replica_id, broker_epoch: None)
    patch.setattr(
        FollowerSession, "__init__", lambda self, replica_id, _, now_ms: begin(self, replica_id, -1, now_ms)
    )
    yield


@contextlib.contextmanager
def watermark_below_min_isr(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fewer than min.insync.replicas commit, too."""
    advance = Partition.maybe_advance_high_watermark

    def advances(self: Partition, end: int | None = None) -> None:
        before, self.enough_in_sync = self.enough_in_sync, True
        advance(self, end)
        self.enough_in_sync = before

    patch.setattr(Partition, "maybe_advance_high_watermark", advances)
    yield


INCOMPLETE = "is in the (ISR|ELR) of|on another log than the one"
BUGS: dict[str, tuple[Callable[[pytest.MonkeyPatch], Any], str]] = {
    "watermark by the committed ISR only": (watermark_by_the_committed_isr, INCOMPLETE),
    "position noted on a diverging fetch": (position_of_a_diverging_fetch, INCOMPLETE),
    "join without a fetch of this epoch": (joins_without_a_fetch_of_this_epoch, INCOMPLETE),
    "broker epoch ignored": (broker_epoch_ignored, INCOMPLETE),
    "watermark below min ISR": (watermark_below_min_isr, INCOMPLETE),
}


@pytest.mark.timeout(300)  # some of them take a hundred seeds
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_within_300_seeds(
    bug: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted, found_by = BUGS[bug]
    with planted(monkeypatch):
        for seed in range(300):
            try:
                ReplicationLife(seed, place).run()
            except Violation as violation:
                if re.search(found_by, str(violation)):
                    return
            except AssertionError:
                pass  # what is under test has noticed it itself; an invariant has to
    pytest.fail("not found")
