"""The active controller is killed or stands still, time and again, while clients change the cluster.

A test run takes a few rounds; OTTLA_CHAOS=50 asks for as many. A failure names its seed; OTTLA_CHAOS_SEED gives the
same choices again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from tests.interop.process import wait_until
from tests.support.cluster import Processes
from tests.support.cluster_changes import TIMED_OUT, Changes, changing, check_changes, led_by, topics_of
from tests.support.metadata_logs import check_same_logs
from tests.support.raw_client import RawClient

ROUNDS = int(os.environ.get("OTTLA_CHAOS") or 2)
CLIENTS = 3
# Changes that must succeed before and after each fault.
PROGRESS = 5
PATIENCE_S = 180.0
SHORT_MS = 1_000


@pytest.fixture(scope="module")
def rng() -> random.Random:
    seed = int(os.environ.get("OTTLA_CHAOS_SEED") or random.randrange(2**32))
    print(f"OTTLA_CHAOS_SEED={seed}")
    return random.Random(seed)


@pytest.fixture(scope="module", params=["three controllers and three brokers", "five nodes with both roles"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    where = tmp_path_factory.mktemp("killed")
    settings = {"request.timeout.ms": 4 * SHORT_MS}
    combined = 5 if request.param.startswith("five") else 0
    apart = 0 if combined else 3
    with Processes(where, controllers=apart, brokers=apart, combined=combined, settings=settings) as running:
        yield running


def wait_for_changes(clients: list[Changes], count: int) -> None:
    """Until so many more are acknowledged."""
    wanted = sum(client.acknowledged for client in clients) + count
    wait_until(
        lambda: sum(client.acknowledged for client in clients) >= wanted, PATIENCE_S, f"{count} more changes"
    )


@pytest.mark.timeout(600 + 30 * ROUNDS)
def test_what_was_acknowledged_outlives_every_controller(cluster: Processes, rng: random.Random) -> None:
    clients = [
        Changes(cluster, f"client-{n}", random.Random(rng.random()), answer_s=10) for n in range(CLIENTS)
    ]
    faults = ["kill", "pause"]
    with changing(clients):
        for number in range(ROUNDS):
            wait_for_changes(clients, PROGRESS)
            active = cluster.active_controller()
            if faults[number % 2] == "kill":
                cluster.kill(active)
                wait_for_changes(clients, PROGRESS)
                cluster.start(active)
            else:
                cluster.pause(active)
                try:
                    wait_for_changes(clients, PROGRESS)
                finally:
                    cluster.resume(active)
    check_changes(cluster, clients)
    assert check_same_logs(cluster) > ROUNDS * PROGRESS


def test_without_a_majority_brokers_serve_on(cluster: Processes, rng: random.Random) -> None:
    voters = [node.node_id for node in cluster.nodes.values() if node.is_controller]
    minority = rng.sample(voters, len(voters) // 2)
    lost = [node_id for node_id in voters if node_id not in minority]
    serving = next(n for n in cluster.nodes.values() if n.is_broker and n.node_id not in lost)
    client = Changes(cluster, "no-majority", rng, broker=serving, timeout_ms=SHORT_MS)
    with RawClient(serving) as data:

        def led_here() -> list[str]:
            return [name for name in client.topics[3:] if led_by(data, name) == serving.node_id]

        # Chance places the first partition of each topic: as many as it takes until one is on this broker.
        wait_until(
            lambda: client.create() == "none" and bool(led_here()), PATIENCE_S, "a topic on this broker"
        )
        names, topic = client.topics, led_here()[0]
        wait_until(lambda: topic in topics_of(serving), PATIENCE_S, f"{topic} to be known")
        data.write(topic, 0, [b"before"])
        for node_id in lost:
            cluster.kill(node_id)
        # What is asked for now may be done later, or never.
        assert client.create() == TIMED_OUT
        assert client.grow(names[0]) == TIMED_OUT
        assert client.configure(names[1]) == TIMED_OUT
        assert client.delete(names[2]) == TIMED_OUT
        data.write(topic, 0, [b"meanwhile"])
        assert data.read(topic) == [b"before", b"meanwhile"]
        assert set(names) <= topics_of(serving).keys()
        for node_id in lost:
            cluster.nodes[node_id].launch()
        for node_id in lost:
            wait_until(cluster.nodes[node_id]._ready_or_dead, PATIENCE_S, f"node {node_id} to serve")
    client.close()
    cluster.wait_until_known()
    check_changes(cluster, [client])
    check_same_logs(cluster)
