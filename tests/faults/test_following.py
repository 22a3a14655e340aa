"""Brokers of one cluster that follow one another: what one has, the others have to the byte, also after a restart."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.process import wait_until

from ottla.client import Admin, NewTopic, Producer
from ottla.node import controller_server
from ottla.node.broker_server import BrokerServer
from ottla.replication.partition import Partition
from ottla.testing.cluster import Cluster

TOPIC = "orders"
PARTITIONS = 4
TIMEOUT_S = 60
SETTINGS = {"replica.fetch.backoff.ms": 50, "replica.lag.time.max.ms": 10_000}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(controller_server, "MAX_REPLICAS", 3, raising=False)
    with Cluster(brokers=2, controllers=1, settings=SETTINGS, data_dir=tmp_path) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            created = admin.create_topics(
                [NewTopic(TOPIC, PARTITIONS, 2, configs={"min.insync.replicas": "2"})]
            )
            assert not isinstance(created[TOPIC], Exception), created
        yield cluster


def broker(cluster: Cluster, node_id: int) -> BrokerServer:
    return cluster.nodes[node_id].broker


def replicas(cluster: Cluster, index: int) -> list[Partition]:
    found = [broker(cluster, node_id).replicas.hosted(TOPIC, index) for node_id in (101, 102)]
    return [partition for partition in found if partition is not None]


def files(cluster: Cluster, node_id: int, index: int) -> bytes:
    segments = sorted((cluster.data_dir / f"node-{node_id}" / f"{TOPIC}-{index}").glob("*.log"))
    return b"".join(path.read_bytes() for path in segments)


def write(cluster: Cluster, count: int) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
        sent = [
            producer.send(TOPIC, value=b"%d" % number, partition=number % PARTITIONS)
            for number in range(count)
        ]
        producer.flush()
        for result in sent:
            result.result(0)


def all_in_sync(cluster: Cluster) -> bool:
    return all(
        len(partition.isr) == 2 for index in range(PARTITIONS) for partition in replicas(cluster, index)
    )


def same_everywhere(cluster: Cluster) -> bool:
    for index in range(PARTITIONS):
        one, other = replicas(cluster, index)
        if one.log.log_end_offset != other.log.log_end_offset:
            return False
        if (
            one.log.high_watermark != one.log.log_end_offset
            or other.log.high_watermark != one.log.log_end_offset
        ):
            return False
        if files(cluster, 101, index) != files(cluster, 102, index):
            return False
    return True


def test_what_is_acknowledged_by_all_is_everywhere(cluster: Cluster) -> None:
    write(cluster, 200)
    wait_until(lambda: same_everywhere(cluster), TIMEOUT_S, "both to have the same")
    assert all(replicas(cluster, index)[0].log.log_end_offset == 50 for index in range(PARTITIONS))


def test_a_broker_that_was_away_catches_up_and_joins_again(cluster: Cluster) -> None:
    write(cluster, 40)
    cluster.stop_node(102)
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks=1) as producer:
        for number in range(400):
            producer.send(TOPIC, value=b"x" * 1000, partition=number % PARTITIONS)
        producer.flush()
    cluster.start_node(102)
    wait_until(lambda: all_in_sync(cluster), TIMEOUT_S, "both to be in sync")
    wait_until(lambda: same_everywhere(cluster), TIMEOUT_S, "both to have the same")
    write(cluster, 40)
    wait_until(lambda: same_everywhere(cluster), TIMEOUT_S, "both to have the same")
