"""`ottla.testing.Cluster`: several nodes in this process are one cluster."""

from collections import Counter
from pathlib import Path

import pytest
from tests.interop.process import wait_until

from ottla.client.admin.types import NewTopic
from ottla.client.blocking import Admin, Consumer, Producer
from ottla.model.ids import TopicPartition
from ottla.testing import Cluster

VALUES = [b"%d" % number for number in range(60)]


def write(cluster: Cluster, topic: str) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        sent = [producer.send(topic, value, partition=n % 6) for n, value in enumerate(VALUES)]
        assert [delivery.result(timeout_ms=20_000).offset for delivery in sent] == [n // 6 for n in range(60)]


def read(cluster: Cluster, topic: str) -> list[bytes | None]:
    partitions = [TopicPartition(topic, number) for number in range(6)]
    found: list[bytes | None] = []
    with Consumer(bootstrap_servers=cluster.bootstrap_servers) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        while len(found) < len(VALUES):
            for records in consumer.poll(timeout_ms=20_000).values():
                found += [record.value for record in records]
    return found


@pytest.mark.parametrize("shape", [{"nodes": 3}, {"brokers": 3, "controllers": 1}], ids=["combined", "apart"])
def test_a_topic_is_on_every_broker(shape: dict[str, int]) -> None:
    with Cluster(**shape) as cluster:  # type: ignore[arg-type]
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("orders", 6)])
        write(cluster, "orders")
        assert sorted(read(cluster, "orders")) == sorted(VALUES)  # type: ignore[type-var]
        brokers = [node for node in cluster.nodes.values() if node.is_broker]
        led = Counter(p.leader for _, _, p in brokers[0].broker.image.partitions())
        assert led == dict.fromkeys((node.node_id for node in brokers), 2)


def test_a_node_may_go_and_everything_is_there_when_it_is_back(tmp_path: Path) -> None:
    with Cluster(3, data_dir=tmp_path) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("orders", 6)])
        write(cluster, "orders")
        active = cluster.active_controller
        assert active is not None
        cluster.stop_node(active)
        wait_until(lambda: cluster.active_controller not in (None, active), 20, "another controller")
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("more", 6)])
        cluster.start_node(active)
        assert sorted(read(cluster, "orders")) == sorted(VALUES)  # type: ignore[type-var]
        write(cluster, "more")
    assert (tmp_path / f"node-{active}" / "meta.properties").exists()
