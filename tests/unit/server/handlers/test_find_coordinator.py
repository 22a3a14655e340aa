"""FindCoordinator: the broker that leads the key's partition, at the listener that asks, whichever broker is asked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.brokers_world import LISTENER, SHARE_STATE, TRANSACTIONS, Cluster

from ottla.coordinator.java_hash import partition_for
from ottla.metadata.records import NO_LEADER
from ottla.model.errors import ErrorCode
from ottla.server.handlers.metadata import find_coordinator
from ottla.wire.messages.groups.classic import FindCoordinatorRequest

OFFSETS = "__consumer_offsets"
TOPICS = {0: OFFSETS, 1: TRANSACTIONS, 2: SHARE_STATE}
KEYS = {0: "group", 1: "transaction", 2: "group:AAAAAAAAAAAAAAAAAAAAAQ:3"}
# A partition for each broker, in another order for each topic.
LEADERS = {OFFSETS: [1, 2, 3], TRANSACTIONS: [2, 3, 1], SHARE_STATE: [3, 1, 2]}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(3, LEADERS)


def find(cluster: Cluster, kind: int, asked: int = 1, listener: str = LISTENER) -> Any:
    broker = cluster.broker(asked)
    node = SimpleNamespace(
        image=lambda: broker.brokers.image, config=lambda: broker.settings, authorizer=None
    )
    ctx: Any = SimpleNamespace(version=6, node=node, listener_name=listener)
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[KEYS[kind]])
    return asyncio.run(find_coordinator(ctx, request)).coordinators[0]


@pytest.mark.parametrize("kind", TOPICS)
@pytest.mark.parametrize("asked", [1, 2, 3])
def test_every_broker_names_the_leader_of_the_partition(cluster: Cluster, kind: int, asked: int) -> None:
    leader = LEADERS[TOPICS[kind]][partition_for(KEYS[kind], 3)]
    found = find(cluster, kind, asked)
    assert (found.error_code, found.node_id, found.host, found.port) == (0, leader, "host", 9000 + leader)


@pytest.mark.parametrize("kind", TOPICS)
def test_at_the_listener_that_was_asked(cluster: Cluster, kind: int) -> None:
    found = find(cluster, kind, listener="OUTSIDE")
    assert (found.host, found.port) == ("public", 9092)
    assert find(cluster, kind, listener="NOWHERE").error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("kind", TOPICS)
@pytest.mark.parametrize("change", ["nobody leads", "fenced", "gone"])
def test_without_a_leader_there_is_no_coordinator(cluster: Cluster, kind: int, change: str) -> None:
    index = partition_for(KEYS[kind], 3)
    leader = LEADERS[TOPICS[kind]][index]
    if change == "nobody leads":
        cluster.lead(TOPICS[kind], index, NO_LEADER)
    elif change == "fenced":
        cluster.fence(leader)
    else:
        cluster.remove(leader)
    found = find(cluster, kind)
    assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


@pytest.mark.parametrize("kind", TOPICS)
def test_a_coordinator_that_moves_is_found_where_it_is(cluster: Cluster, kind: int) -> None:
    index = partition_for(KEYS[kind], 3)
    moved = LEADERS[TOPICS[kind]][index] % 3 + 1
    cluster.lead(TOPICS[kind], index, moved)
    assert find(cluster, kind).node_id == moved
