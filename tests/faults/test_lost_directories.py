"""A log directory that fails under a broker of a cluster: its leaders move at once, or nobody can be told.

Heartbeats are an hour apart: what the controller hears in a test it is told because something has happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import confluent_kafka as ck
from tests.faults.test_cluster import PARTITIONS, create
from tests.interop.process import wait_until
from tests.support.cluster import ClusterNode, Processes
from tests.support.disks import Disk

from ottla.client.admin.types import NewTopic, TopicDescription
from ottla.client.metadata import PartitionInfo

SELDOM = {"broker.heartbeat.interval.ms": 3_600_000, "broker.session.timeout.ms": 3 * 3_600_000}
PATIENCE_S = 180.0
VICTIM, OTHER = 101, 102
LOST = "lost-directory"


class Cluster(Processes):
    """Its first broker has two directories, one of which can be broken."""

    disk: Disk
    lost: Path

    def make(self, node_id: int, role: str, settings: Mapping[str, object] | None = None) -> ClusterNode:
        data_dir, lost = self.where / f"node-{node_id}", self.where / LOST
        if node_id != VICTIM:
            return super().make(node_id, role, settings)
        node = super().make(
            node_id,
            role,
            {"log.dirs": f"{data_dir},{lost}", "metadata.log.dir": str(data_dir), **(settings or {})},
        )
        data_dir.parent.mkdir(exist_ok=True)
        self.disk, self.lost = Disk(node), lost
        return node


def partitions(cluster: Processes, topic: str) -> dict[int, PartitionInfo]:
    with cluster.admin() as admin:
        described = admin.describe_topics([topic])[topic]
    assert isinstance(described, TopicDescription)
    return described.partitions


def write(cluster: Processes, topic: str, partition: int) -> bool:
    """One record to one partition, tried once; was it taken?"""
    results: list[bool] = []
    producer = ck.Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": 1, "retries": 0})
    producer.produce(topic, b"x", partition=partition, on_delivery=lambda error, _: results.append(not error))
    assert producer.flush(PATIENCE_S) == 0
    return results == [True]


def in_lost_directory(cluster: Cluster, topic: str) -> list[int]:
    """Which partitions lie there, when all of them lie somewhere."""

    def lying(where: Path) -> list[int]:
        return sorted(
            int(path.parent.name.rpartition("-")[2]) for path in where.glob(f"{topic}-*/partition.metadata")
        )

    kept = cluster.nodes[VICTIM].data_dir
    wait_until(
        lambda: len(lying(kept)) + len(lying(cluster.lost)) == PARTITIONS, PATIENCE_S, f"all of {topic}"
    )
    return lying(cluster.lost)


def test_a_broker_that_cannot_tell_of_it_ends(tmp_path: Path) -> None:
    settings = {**SELDOM, "log.dir.failure.timeout.ms": 1_000}
    with Cluster(tmp_path, controllers=1, brokers=1, settings=settings) as cluster:
        create(cluster, "orders")
        partition = in_lost_directory(cluster, "orders")[0]
        assert write(cluster, "orders", partition)
        cluster.pause(1)
        try:
            with cluster.disk.broken("pwrite-fails", LOST):
                assert not write(cluster, "orders", partition)
                assert cluster.nodes[VICTIM].wait(PATIENCE_S) == 70
        finally:
            cluster.resume(1)
        assert "log.dir.failure.timeout.ms" in cluster.nodes[VICTIM].log_text()


def test_its_partitions_have_no_leader_as_soon_as_it_is_told(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=1, brokers=1, settings=SELDOM) as cluster:
        create(cluster, "orders")
        gone = in_lost_directory(cluster, "orders")
        assert 0 < len(gone) < PARTITIONS
        with cluster.disk.broken("pwrite-fails", LOST):
            assert not write(cluster, "orders", gone[0])

            def told() -> bool:
                return [n for n, p in partitions(cluster, "orders").items() if p.leader < 0] == gone

            wait_until(told, PATIENCE_S, f"partitions {gone} to have no leader")
        kept = next(n for n in range(PARTITIONS) if n not in gone)
        assert write(cluster, "orders", kept)


def test_its_leaders_move_to_other_brokers(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=1, brokers=2, settings=SELDOM) as cluster:
        with cluster.admin() as admin:
            assignment = {index: [VICTIM, OTHER] for index in range(PARTITIONS)}
            admin.create_topics([NewTopic("orders", assignments=assignment)])
        lost = in_lost_directory(cluster, "orders")
        kept = [n for n in range(PARTITIONS) if n not in lost]
        assert lost
        assert kept
        with cluster.disk.broken("pwrite-fails", LOST):
            assert not write(cluster, "orders", lost[0])

            def moved() -> bool:
                now = partitions(cluster, "orders")
                return all(now[n].leader == OTHER and VICTIM not in now[n].isr for n in lost)

            wait_until(moved, PATIENCE_S, f"broker {OTHER} to lead {lost} alone")
            assert all(partitions(cluster, "orders")[n].leader == VICTIM for n in kept)
