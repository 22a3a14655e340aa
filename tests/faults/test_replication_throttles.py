"""A replica is added under a throttle, between processes (KIP-73): it takes its time, and clients do not notice."""

from __future__ import annotations

import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from tests.interop.process import wait_until
from tests.support.cluster import Processes
from tests.support.raw_client import RawClient

from ottla.client.admin.types import ConfigChange, ConfigOperation, ConfigResource, ResourceType

LEADER, ADDED = 101, 102
FETCH_BYTES = 100_000
RATE = 800_000
SIZE = 3_000_000
TIMEOUT_S = 60.0
ALTER_PARTITION_REASSIGNMENTS = 45
ALL_BROKERS = ConfigResource(ResourceType.BROKER, "")
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


def create(cluster: Processes, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    # What a RawClient writes is years old.
    new = NewTopic(topic, 1, replica_assignment=[[LEADER]], config={"retention.ms": "-1"})
    admin.create_topics([new])[topic].result(TIMEOUT_S)


def fill(client: RawClient, topic: str, size_bytes: int) -> None:
    for _ in range(size_bytes // FETCH_BYTES):
        client.write(topic, 0, [bytes(FETCH_BYTES)])


def alter(cluster: Processes, resource: ConfigResource, changes: list[ConfigChange]) -> None:
    with cluster.admin() as admin:
        assert admin.incremental_alter_configs({resource: changes}) == {resource: None}


def set_rate(cluster: Processes, rate: int | None) -> None:
    kind = ConfigOperation.DELETE if rate is None else ConfigOperation.SET
    value = None if rate is None else str(rate)
    alter(cluster, ALL_BROKERS, [ConfigChange(name, value, kind) for name in RATES])


def throttle(cluster: Processes, topic: str) -> None:
    """As kafka-reassign-partitions does: where it leads now, and where it is added."""
    lists = [
        ConfigChange("leader.replication.throttled.replicas", f"0:{LEADER}"),
        ConfigChange("follower.replication.throttled.replicas", f"0:{ADDED}"),
    ]
    alter(cluster, ConfigResource(ResourceType.TOPIC, topic), lists)


def add_replica(client: RawClient, topic: str) -> None:
    row = {"name": topic, "partitions": [{"partition_index": 0, "replicas": [LEADER, ADDED]}]}
    answer = client.ask(ALTER_PARTITION_REASSIGNMENTS, 0, {"timeout": 30_000, "topics": [row]})
    assert answer["responses"][0]["partitions"][0]["error_code"] == "none", answer


def is_added(cluster: Processes, topic: str) -> bool:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    return ADDED in admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions[0].isrs


def test_a_replica_is_added_under_a_throttle_and_finishes_without(tmp_path: Path) -> None:
    settings = {"replica.fetch.max.bytes": FETCH_BYTES}
    with (
        Processes(tmp_path, controllers=1, brokers=2, settings=settings) as cluster,
        RawClient(cluster.nodes[LEADER]) as client,
    ):
        for topic in ("moved", "other"):
            create(cluster, topic)
            throttle(cluster, topic)
        fill(client, "moved", SIZE)
        set_rate(cluster, RATE)
        written = 0

        def clients_are_served() -> None:
            nonlocal written
            offset = client.write("moved", 0, [b"%d" % written])
            assert offset == SIZE // FETCH_BYTES + written
            assert client.read("moved", 0, offset) == [b"%d" % written]
            written += 1

        began = time.monotonic()
        add_replica(client, "moved")

        def is_moved() -> bool:
            clients_are_served()
            return is_added(cluster, "moved")

        wait_until(is_moved, TIMEOUT_S, "the replica to be in sync")
        # The last fetches are let go while the rate is just below the quota.
        assert time.monotonic() - began >= (SIZE - 2 * FETCH_BYTES) / RATE
        assert written > 1

        # With next to nothing it does not get there, and as soon as the throttle is taken away it does.
        set_rate(cluster, 1)
        fill(client, "other", SIZE)
        add_replica(client, "other")
        for _ in range(5):
            clients_are_served()
            assert not is_added(cluster, "other")
        set_rate(cluster, None)
        wait_until(lambda: is_added(cluster, "other"), TIMEOUT_S, "the other replica to be in sync")
