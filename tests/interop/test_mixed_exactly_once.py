"""Consume, transform, produce, exactly once, across Apache and Ottla nodes that are killed and come back.

Each node is a broker and a voter. Two applications read one topic whose partitions are led by all nodes and write, in
one transaction with their offsets, to partitions that are led by others: the group of one is coordinated by Ottla and
its transactions by Apache, and of the other the other way around. A partition has one replica: whoever needs a killed
node waits for it.

But for one thing that Apache's transaction coordinator does not survive, on its own nodes as little as here: a
transaction that is about to end while one of its partitions has no leader. It takes the partition for deleted and
forgets the marker (test_mixed_brokers.py has that by itself). So the application that it coordinates is stopped, with
its transaction open, while another node than that coordinator is killed.

`make interop` kills each node twice; OTTLA_CHAOS=50 asks for as many kills. A failure names its seed; OTTLA_CHAOS_SEED
gives the same choices again.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from tests.clients.adapters.transactional import read
from tests.interop.cluster import GROUP, TRANSACTION, Cluster
from tests.interop.process import wait_until
from tests.support.exactly_once_run import Application, check, leave_in_peace, reached

from ottla.client import Admin
from ottla.model.errors import KafkaError as OttlaError

KILLS = int(os.environ.get("OTTLA_CHAOS") or 6)
# What a kill may take: an Apache node starts within minutes even on a very busy machine.
KILL_S = 300
START_S = 300
PATIENCE_S = 300.0
# The applications wait for a killed node rather than give up at once.
STEP_S = 60
# A broker that is only slow keeps its partitions.
SESSION_MS = 18_000
NODES = (1, 2, 3)
# Numbers that are written before and after each kill.
NUMBERS = 600
MIXES = [("apache", "apache", "ottla"), ("ottla", "ottla", "apache")]

pytestmark = [pytest.mark.interop, pytest.mark.timeout(START_S + PATIENCE_S + KILLS * KILL_S)]


class Numbers:
    """The input: every number once, in order, spread over the partitions, over all kills."""

    def __init__(self, servers: str, topic: str) -> None:
        patient = {
            "enable.idempotence": True,
            "message.timeout.ms": int(1000 * KILLS * KILL_S),
            "linger.ms": 5,
            "log_level": 0,
        }
        self._producer = Producer({"bootstrap.servers": servers, **patient})
        self.topic = topic
        self.written = 0
        self._failed: list[KafkaError] = []

    def write(self, count: int) -> None:
        """Hand them over; those for a dead node wait for it."""
        for number in range(self.written, self.written + count):
            self._producer.produce(
                self.topic, str(number), partition=number % len(NODES), on_delivery=self._delivered
            )
            self._producer.poll(0)
        self.written += count

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self._failed.append(error)

    def finish(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0
        assert self._failed == []


class Squares:
    """One application, its output, and how far it has come."""

    def __init__(self, cluster: Cluster, numbers: Numbers, group_at: int, transactions_at: int) -> None:
        self._servers = cluster.bootstrap_servers
        self._numbers = numbers
        self._output = cluster.create_topic("squares", [2, 3, 1])
        self._group = cluster.coordinated_by(GROUP, group_at)
        self._transactional_id = cluster.coordinated_by(TRANSACTION, transactions_at)
        self._coordinator = cluster[transactions_at]
        names = (numbers.topic, self._output, self._group, self._transactional_id)
        self.app = Application(
            cluster[1].work_dir / f"{self._output}.log", self._servers, *names, str(STEP_S)
        )

    def survives(self, victim: int) -> bool:
        """May a transaction of it be about to end when this node is killed?"""
        return self._coordinator.kind == "ottla" or self._coordinator.node_id == victim

    def stop(self) -> None:
        """Until it is asked how far it has come. A transaction may be open then, but not about to end."""
        self.app.kill()
        with Admin(bootstrap_servers=self._servers) as admin:
            wait_until(lambda: not self._is_ending(admin), PATIENCE_S, "the end of a transaction", poll_s=0.1)

    def _is_ending(self, admin: Admin) -> bool:
        described = admin.describe_transactions([self._transactional_id])[self._transactional_id]
        assert not isinstance(described, OttlaError), described
        return described.state.startswith("Prepare")

    def has_reached(self, count: int) -> bool:
        self.app.ensure()
        try:
            return reached(self._servers, self._group, self._numbers.topic, len(NODES)) >= count
        except KafkaException as error:
            # Offsets are told when no transaction is open on them, and the application may wait for a node in one.
            # Who coordinates the group may have changed a moment ago, and librdkafka asks whom it knew.
            if error.args[0].code() not in (KafkaError._TIMED_OUT, KafkaError.NOT_COORDINATOR):
                raise
            return False

    def check(self, seed: int) -> None:
        found = read(self._servers, self._output, len(NODES))
        check(found, self._numbers.written, seed, len(NODES))


def victims(chance: random.Random) -> Iterator[int]:
    """Each node in turn, in another order every time: so whoever leads the quorum is among them."""
    while True:
        yield from chance.sample(NODES, len(NODES))


def ways(cluster: Cluster) -> Iterator[tuple[int, int]]:
    """Who coordinates the group and who the transactions: one of each kind, both ways around."""
    kinds = {node.kind: node.node_id for node in cluster.brokers()}
    yield from itertools.permutations(kinds.values())


@pytest.mark.parametrize("kinds", MIXES, ids="-".join)
def test_every_input_counts_once(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    seed = int(os.environ.get("OTTLA_CHAOS_SEED") or random.randrange(2**32))
    print(f"OTTLA_CHAOS_SEED={seed}")
    chance = random.Random(seed)
    nodes = {node_id: (kind, "broker,controller") for node_id, kind in zip(NODES, kinds, strict=True)}
    with Cluster(tmp_path, nodes, {"broker.session.timeout.ms": SESSION_MS}) as cluster, ExitStack() as stack:
        numbers = Numbers(cluster.bootstrap_servers, cluster.create_topic("numbers", [1, 2, 3]))
        squares = [Squares(cluster, numbers, *coordinators) for coordinators in ways(cluster)]
        for each in squares:
            stack.callback(each.app.kill)

        def wait_for(count: int, what: str) -> None:
            wait_until(
                lambda: all(each.has_reached(count) for each in squares), PATIENCE_S, f"{what} (seed {seed})"
            )

        for victim in itertools.islice(victims(chance), KILLS):
            before = numbers.written
            numbers.write(NUMBERS)
            wait_for(before + chance.randrange(1, NUMBERS // 2), "the applications to be at work")
            print(f"node {victim} ({cluster[victim].kind}) is killed, node {cluster.leader()} leads")
            for each in squares:
                if not each.survives(victim):
                    each.stop()
            cluster[victim].kill()
            numbers.write(NUMBERS)
            leave_in_peace(chance, *(each.app for each in squares if each.survives(victim)))
            cluster[victim].start()
            cluster.caught_up()
            cluster.wait_until_led(numbers.topic)
        numbers.finish()
        wait_for(numbers.written, "all numbers to be squared")
        stack.close()
        for each in squares:
            each.check(seed)
    for node in cluster.nodes.values():
        if node.kind == "ottla":
            assert "Traceback" not in node.printed(), node.printed()
