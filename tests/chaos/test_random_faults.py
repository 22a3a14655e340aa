"""Five nodes, one fault after the other by chance, for as long as is asked for: `make chaos MINUTES=30`.

A failure names its seed; OTTLA_CHAOS_SEED gives the same choices again, though not the same moments.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest
from tests.chaos.workload import Workload
from tests.support.replicated import Replicated

pytestmark = [pytest.mark.xdist_group("replication"), pytest.mark.long]

MINUTES = float(os.environ.get("OTTLA_CHAOS_MINUTES") or 3)
CLUSTER = {
    "combined": 5,
    "settings": {
        "broker.session.timeout.ms": 6_000,
        "broker.heartbeat.interval.ms": 1_000,
        "replica.lag.time.max.ms": 5_000,
        "replica.socket.timeout.ms": 5_000,
        "controller.socket.timeout.ms": 5_000,
    },
}
# Writes to every partition before the next fault.
PROGRESS = 10
FAULTS_A_TOPIC = 8


@pytest.fixture(scope="module")
def rng() -> random.Random:
    seed = int(os.environ.get("OTTLA_CHAOS_SEED") or random.randrange(2**32))
    print(f"OTTLA_CHAOS_SEED={seed}")
    return random.Random(seed)


def kill(cluster: Replicated, node_id: int, rng: random.Random) -> None:
    cluster.kill(node_id)


def kill_and_lose_page_cache(cluster: Replicated, node_id: int, rng: random.Random) -> None:
    cluster.kill(node_id)
    cluster.lose_page_cache(node_id)


def stop(cluster: Replicated, node_id: int, rng: random.Random) -> None:
    cluster.stop(node_id)


def pause(cluster: Replicated, node_id: int, rng: random.Random) -> None:
    cluster.pause(node_id)


def cut_off(cluster: Replicated, node_id: int, rng: random.Random) -> None:
    cluster.isolate(node_id, both=rng.random() < 0.5)


def cut_from_one(cluster: Replicated, node_id: int, rng: random.Random) -> None:
    other = rng.choice([n for n in cluster.nodes if n != node_id])
    cluster.isolate(node_id, other, both=rng.random() < 0.5)


def slow_down(cluster: Replicated, node_id: int, rng: random.Random) -> None:
    for other in cluster.nodes:
        if other != node_id:
            cluster.links.slow(node_id, other, delay_s=rng.choice([0.02, 0.1, 0.5]))


FAULTS: list[Callable[[Replicated, int, random.Random], None]] = [
    kill,
    kill_and_lose_page_cache,
    stop,
    pause,
    cut_off,
    cut_from_one,
    slow_down,
]


@pytest.mark.timeout(60 * MINUTES + 600)
def test_faults_by_chance(cluster: Replicated, rng: random.Random) -> None:
    """One at a time, any number in a row: with two of three replicas every partition can be written all the time."""
    deadline = time.monotonic() + 60 * MINUTES
    rounds = 0
    while rounds == 0 or time.monotonic() < deadline:
        topic = cluster.create_topic(f"chance{rounds}")
        rounds += 1
        with Workload(cluster, topic) as load:
            for _ in range(FAULTS_A_TOPIC):
                load.wait_for_writes(PROGRESS)
                fault, node_id = rng.choice(FAULTS), rng.choice(list(cluster.nodes))
                print(f"{topic}: {fault.__name__} {node_id}")
                fault(cluster, node_id, rng)
                load.wait_for_writes(PROGRESS)
                cluster.recover()
                cluster.wait_for_full_isr(topic)
        load.verify()
