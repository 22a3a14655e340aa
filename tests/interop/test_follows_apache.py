"""An Ottla broker follows an Apache leader: its log is the leader's to the byte, and it joins the in-sync replicas.

After the leader's restart, and after its own, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Producer
from tests.interop.apache import run_tool
from tests.interop.cluster import Cluster, ClusterNode
from tests.interop.process import wait_until

from ottla.client import Admin, NewTopic
from ottla.client.admin.types import TopicDescription

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

CONTROLLER, OTTLA, APACHE = 1, 2, 3
PATIENCE_S = 90.0
PARTITIONS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    nodes = {CONTROLLER: ("apache", "controller"), OTTLA: ("ottla", "broker"), APACHE: ("apache", "broker")}
    settings = {"replica.fetch.backoff.ms": 200, "auto.leader.rebalance.enable": "false"}
    with Cluster(tmp_path_factory.mktemp("follows-apache"), nodes, settings) as running:
        yield running


def create(cluster: Cluster, topic: str, **configs: str) -> str:
    """A topic that the Apache broker leads and the Ottla broker follows."""
    assignments = {partition: [APACHE, OTTLA] for partition in range(PARTITIONS)}
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        created = admin.create_topics([NewTopic(topic, configs=configs, assignments=assignments)])
    assert not isinstance(created[topic], Exception), created
    cluster.wait_until_led(topic)
    return topic


def described(cluster: Cluster, topic: str) -> TopicDescription | None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        found = admin.describe_topics([topic])[topic]
    return found if isinstance(found, TopicDescription) else None


def all_in_sync(cluster: Cluster, topic: str) -> bool:
    found = described(cluster, topic)
    return found is not None and all(len(partition.isr) == 2 for partition in found.partitions.values())


def produce(cluster: Cluster, topic: str, count: int, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 2, **settings})
    failed: list[KafkaError] = []
    for number in range(count):
        producer.produce(
            topic,
            b"%06d" % number + b"x" * (number % 2000),
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def stored(node: ClusterNode, topic: str, partition: int) -> bytes:
    segments = sorted((node.data_dir / f"{topic}-{partition}").glob("*.log"))
    return b"".join(path.read_bytes() for path in segments)


def same(cluster: Cluster, topic: str) -> bool:
    for partition in range(PARTITIONS):
        theirs = stored(cluster[APACHE], topic, partition)
        if not theirs or stored(cluster[OTTLA], topic, partition) != theirs:
            return False
    return True


def wait_until_same(cluster: Cluster, topic: str) -> None:
    wait_until(lambda: same(cluster, topic), PATIENCE_S, "both logs to be the same", poll_s=0.2)
    wait_until(lambda: all_in_sync(cluster, topic), PATIENCE_S, "both to be in sync", poll_s=0.5)


@pytest.mark.parametrize(
    "settings",
    [{}, {"enable.idempotence": True, "compression.type": "zstd"}, {"compression.type": "lz4", "acks": 1}],
    ids=["plain", "idempotent", "acks=1"],
)
def test_the_log_is_the_leaders_to_the_byte(cluster: Cluster, settings: dict[str, object]) -> None:
    topic = create(
        cluster, f"copied-{len(settings)}-{settings.get('acks', 'all')}", **{"min.insync.replicas": "2"}
    )
    produce(cluster, topic, 3_000, **settings)
    wait_until_same(cluster, topic)


def test_transactions_are_copied_with_their_markers(cluster: Cluster) -> None:
    topic = create(cluster, "transactional")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "mover"})
    producer.init_transactions(PATIENCE_S)
    for number in range(6):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(topic, b"%d" % number, partition=partition)
        producer.abort_transaction() if number % 2 else producer.commit_transaction()
    wait_until_same(cluster, topic)


def test_it_follows_again_after_the_leader_was_away(cluster: Cluster) -> None:
    topic = create(cluster, "restarted")
    produce(cluster, topic, 600)
    wait_until_same(cluster, topic)
    cluster[APACHE].restart()
    cluster.wait_until_led(topic)
    produce(cluster, topic, 600)
    wait_until_same(cluster, topic)


def test_it_catches_up_after_it_was_killed(cluster: Cluster) -> None:
    topic = create(cluster, "killed", **{"segment.bytes": "1048576"})
    produce(cluster, topic, 600)
    wait_until_same(cluster, topic)
    cluster[OTTLA].kill()
    produce(cluster, topic, 6_000, acks=1)
    cluster[OTTLA].start()
    wait_until_same(cluster, topic)
    segments = [str(path) for path in sorted(cluster[OTTLA].data_dir.glob(f"{topic}-*/*.log"))]
    printed = run_tool("DumpLogSegments", "--deep-iteration", "--files", ",".join(segments)).stdout
    assert printed.count("Dumping ") == len(segments) > PARTITIONS
    assert "isvalid: false" not in printed
