"""Apache and Ottla brokers side by side under controllers of either kind: topics, groups, transactions across them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.clients.adapters import transactional
from tests.interop.apache import run_tool
from tests.interop.cluster import GROUP, NAMES, SHARE, TRANSACTION, Cluster
from tests.interop.process import wait_until
from tests.support.raw_client import RawClient

from ottla.client import Admin
from ottla.client import Producer as OttlaProducer
from ottla.client import TopicPartition as Place
from ottla.model.errors import KafkaError as OttlaError
from ottla.model.ids import uuid_to_str

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

CONTROLLER, OTTLA, APACHE = 1, 2, 3
BROKERS = {"ottla": OTTLA, "apache": APACHE}
PATIENCE_S = 60.0
PATIENCE_MS = 60_000


@pytest.fixture(scope="module", params=["ottla", "apache"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    nodes = {
        CONTROLLER: (request.param, "controller"),
        OTTLA: ("ottla", "broker"),
        APACHE: ("apache", "broker"),
    }
    with Cluster(tmp_path_factory.mktemp(f"under-{request.param}"), nodes) as running:
        yield running


def produce(producer: Producer, topic: str, partitions: int, values: list[str]) -> None:
    """Each value to every partition."""
    failed: list[KafkaError] = []
    for value in values:
        for partition in range(partitions):
            producer.produce(
                topic, value, partition=partition, on_delivery=lambda e, _: failed.append(e) if e else None
            )
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def read(consumer: Consumer, count: int) -> list[tuple[int, str]]:
    """So many messages, in order of partition and offset."""
    got: list[Any] = []

    def enough() -> bool:
        message = consumer.poll(0.5)
        if message is not None:
            if message.error():
                raise KafkaException(message.error())
            got.append(message)
        return len(got) >= count

    wait_until(enough, PATIENCE_S, f"{count} messages", poll_s=0)
    return [
        (m.partition(), m.value().decode()) for m in sorted(got, key=lambda m: (m.partition(), m.offset()))
    ]


def consumer(bootstrap: str, group: str, **settings: object) -> Consumer:
    common = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    return Consumer({**common, "enable.auto.commit": False, **settings})


@pytest.mark.parametrize("through", BROKERS.values(), ids=list(BROKERS))
def test_topics_led_by_both(cluster: Cluster, through: int) -> None:
    topic = cluster.create_topic("both", [OTTLA, APACHE, OTTLA, APACHE], through)
    bootstrap = cluster[through].address
    values = [f"v{number}" for number in range(50)]
    for settings in ({}, {"enable.idempotence": True, "compression.type": "zstd"}):
        produce(Producer({"bootstrap.servers": bootstrap, **settings}), topic, 4, values)
    reader = consumer(bootstrap, "nobody")
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(4)])
    assert read(reader, 400) == [(p, v) for p in range(4) for _ in range(2) for v in values]
    reader.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("at", BROKERS.values(), ids=list(BROKERS))
def test_groups_coordinated_by_either(cluster: Cluster, at: int, protocol: str) -> None:
    topic = cluster.create_topic("grouped", [OTTLA, APACHE])
    group = cluster.coordinated_by(GROUP, at)
    produce(Producer({"bootstrap.servers": cluster.bootstrap_servers}), topic, 2, ["a", "b", "c"])
    reader = consumer(cluster.bootstrap_servers, group, **{"group.protocol": protocol})
    reader.subscribe([topic])
    assert read(reader, 6) == [(p, v) for p in (0, 1) for v in "abc"]
    reader.commit(asynchronous=False)
    for node in cluster.brokers():
        admin = AdminClient({"bootstrap.servers": node.address})
        described = admin.describe_consumer_groups([group])[group].result(30)
        assert described.state == ConsumerGroupState.STABLE
        assert described.coordinator.id == at
        assert described.members[0].assignment.topic_partitions != []
    reader.close()
    produce(Producer({"bootstrap.servers": cluster.bootstrap_servers}), topic, 2, ["d"])
    again = consumer(cluster.bootstrap_servers, group, **{"group.protocol": protocol})
    again.subscribe([topic])
    assert read(again, 2) == [(0, "d"), (1, "d")]
    again.close()


def shared_both_ways(cluster: Cluster, group: str) -> str:
    """A topic of whose partitions each broker leads two, and keeps the share state of one of its own and one other.

    A hash of the topic's id decides who keeps it, so topics are made until one is placed so.
    """
    leaders = [OTTLA, OTTLA, APACHE, APACHE]
    for _ in range(NAMES):
        topic = cluster.create_topic("shared", leaders)
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            described = admin.describe_topics([topic])[topic]
        assert not isinstance(described, OttlaError), described
        keys = [f"{group}:{uuid_to_str(described.topic_id)}:{p}" for p in range(len(leaders))]
        for key in keys:
            wait_until(
                lambda key=key: cluster[OTTLA].coordinator(SHARE, key) >= 0, PATIENCE_S, "a coordinator"
            )
        keepers = [cluster[OTTLA].coordinator(SHARE, key) for key in keys]
        if len(set(zip(leaders, keepers, strict=True))) == len(leaders):
            return topic
    raise AssertionError("one of them keeps everything")


@pytest.mark.parametrize("at", BROKERS.values(), ids=list(BROKERS))
def test_share_groups_coordinated_by_either(cluster: Cluster, at: int) -> None:
    """Whoever leads a partition, and whoever keeps its share state."""
    group = cluster.coordinated_by(GROUP, at)
    topic = shared_both_ways(cluster, group)
    named = ("--entity-type", "groups", "--entity-name", group)
    cluster.tool("ConfigCommand", *named, "--alter", "--add-config", "share.auto.offset.reset=earliest")
    for word in ("first", "second"):
        values = [f"{word}-{number}" for number in range(5)]
        produce(Producer({"bootstrap.servers": cluster.bootstrap_servers}), topic, 4, values)
        shown = cluster.tool(
            "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
            *("--topic", topic, "--group", group, "--max-messages", "20", "--timeout-ms", "60000"),
        )
        assert sorted(shown.stdout.split()) == sorted(values * 4), "and none of them again"
    for node in cluster.brokers():
        offsets = ("--bootstrap-server", node.address, "--describe", "--offsets", "--group", group)
        described = run_tool("org.apache.kafka.tools.consumer.group.ShareGroupCommand", *offsets)
        rows = [line.split() for line in described.stdout.splitlines() if topic in line]
        assert sorted((row[2], row[4]) for row in rows) == [(str(p), "0") for p in range(4)], described.stdout


@pytest.mark.parametrize("at", BROKERS.values(), ids=list(BROKERS))
def test_transactions_across_brokers(cluster: Cluster, at: int) -> None:
    """Partitions on both brokers, offsets of groups on both, whoever coordinates: all of it or nothing."""
    source = cluster.create_topic("source", [OTTLA, APACHE])
    target = cluster.create_topic("target", [APACHE, OTTLA])
    servers = cluster.bootstrap_servers
    produce(Producer({"bootstrap.servers": servers}), source, 2, ["a", "b"])
    name = cluster.coordinated_by(TRANSACTION, at)
    groups = [cluster.coordinated_by(GROUP, broker) for broker in BROKERS.values()]
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name})
    producer.init_transactions(PATIENCE_S)

    def transaction(value: str, end: Callable[[], None]) -> None:
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(target, value, partition=partition)
        for group in groups:
            reader = consumer(servers, group)
            reader.subscribe([source])
            read(reader, 4)
            offsets = reader.position(reader.assignment())
            producer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), PATIENCE_S)
            reader.close()
        end()

    def committed() -> list[list[int]]:
        asked = [TopicPartition(source, partition) for partition in (0, 1)]
        return [[p.offset for p in consumer(servers, group).committed(asked, 30)] for group in groups]

    transaction("aborted", lambda: producer.abort_transaction(PATIENCE_S))
    assert committed() == [[-1001, -1001], [-1001, -1001]]
    transaction("committed", lambda: producer.commit_transaction(PATIENCE_S))
    wait_until(
        lambda: committed() == [[2, 2], [2, 2]], PATIENCE_S, "the offsets of the transaction", poll_s=0.5
    )
    reader = consumer(servers, "nobody", **{"isolation.level": "read_committed"})
    reader.assign([TopicPartition(target, partition, 0) for partition in (0, 1)])
    assert read(reader, 2) == [(0, "committed"), (1, "committed")]
    reader.close()


@pytest.mark.parametrize("at", BROKERS.values(), ids=list(BROKERS))
def test_transactions_of_version_2_across_brokers(cluster: Cluster, at: int) -> None:
    """Nobody announces partitions and groups (KIP-890): their brokers tell the coordinator, whoever's that is."""
    source = cluster.create_topic("source", [OTTLA, APACHE])
    target = cluster.create_topic("target", [APACHE, OTTLA])
    servers = cluster.bootstrap_servers
    groups = [cluster.coordinated_by(GROUP, broker) for broker in BROKERS.values()]
    with Admin(bootstrap_servers=servers) as admin:
        levels = {feature.name: feature.finalized for feature in admin.describe_features()}
    assert levels["transaction.version"] == 2
    with OttlaProducer(
        bootstrap_servers=servers, transactional_id=cluster.coordinated_by(TRANSACTION, at)
    ) as producer:
        producer.init_transactions()
        for value, end in (
            (b"aborted", producer.abort_transaction),
            (b"committed", producer.commit_transaction),
        ):
            producer.begin_transaction()
            for partition in (0, 1):
                producer.send(target, value, partition=partition).result(PATIENCE_MS)
            for group in groups:
                producer.send_offsets_to_transaction(
                    {Place(source, partition): 7 for partition in (0, 1)}, group
                )
            end()
            reached = 7 if value == b"committed" else None
            for group in groups:
                for partition in (0, 1):
                    assert transactional.committed_offset(servers, group, source, partition) == reached
    assert transactional.read(servers, target, 2) == [b"committed", b"committed"]
    assert transactional.read(servers, target, 2, committed=False) == [b"aborted", b"committed"] * 2


@pytest.mark.parametrize("at", BROKERS.values(), ids=list(BROKERS))
def test_transactions_of_the_java_producer(cluster: Cluster, at: int) -> None:
    topic = cluster.create_topic("java", [OTTLA, APACHE])
    cluster.tool(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", "3000", "--payload-monotonic", "--throughput", "-1"),
        *("--transactional-id", cluster.coordinated_by(TRANSACTION, at), "--transaction-duration-ms", "50"),
        *("--command-property", "batch.size=200"),
    )
    found = transactional.read(cluster.bootstrap_servers, topic, 2)
    assert sorted(map(int, found)) == list(range(3000))
    for partition, broker in enumerate((OTTLA, APACHE)):
        with RawClient(cluster[broker]) as client:
            assert client.end_offset(topic, partition) > 0


def keeps_the_marker(cluster: Cluster, at: int, away: int) -> bool:
    """Does a partition whose broker is dead when a transaction ends get its marker when it is back?"""
    topic = cluster.create_topic("away", [away])
    name = cluster.coordinated_by(TRANSACTION, at)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    produce(producer, topic, 1, ["kept"])
    cluster[away].kill()
    producer.commit_transaction(PATIENCE_S)
    cluster[away].start()
    cluster.wait_until_led(topic)
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:

        def is_over() -> bool:
            described = admin.describe_transactions([name])[name]
            assert not isinstance(described, OttlaError), described
            return described.state == "CompleteCommit"

        wait_until(is_over, PATIENCE_S, "the transaction to be complete", poll_s=0.1)
    found = transactional.read(cluster.bootstrap_servers, topic)
    assert found in ([b"kept"], [])
    return found != []


def test_a_transaction_that_ends_while_a_partition_has_no_leader(cluster: Cluster) -> None:
    assert keeps_the_marker(cluster, OTTLA, away=APACHE)


def test_apache_forgets_the_marker_of_a_partition_without_leader(tmp_path: Path) -> None:
    """On its own nodes: what exactly once cannot be asked of its coordinator for, as long as there is one replica."""
    nodes = {1: ("apache", "broker,controller"), 2: ("apache", "broker")}
    with Cluster(tmp_path, nodes) as apache:
        assert not keeps_the_marker(apache, 1, away=2)


@pytest.mark.parametrize("at", BROKERS.values(), ids=list(BROKERS))
def test_a_newer_producer_fences_the_older_one(cluster: Cluster, at: int) -> None:
    topic = cluster.create_topic("fenced", [OTTLA, APACHE])
    name = cluster.coordinated_by(TRANSACTION, at)
    older, newer = (
        Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": name}) for _ in range(2)
    )
    older.init_transactions(PATIENCE_S)
    older.begin_transaction()
    produce(older, topic, 2, ["old"])
    newer.init_transactions(PATIENCE_S)
    with pytest.raises(KafkaException) as refused:
        older.commit_transaction(PATIENCE_S)
    assert refused.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    newer.begin_transaction()
    produce(newer, topic, 2, ["new"])
    newer.commit_transaction(PATIENCE_S)
    reader = consumer(cluster.bootstrap_servers, "nobody", **{"isolation.level": "read_committed"})
    reader.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
    assert read(reader, 2) == [(0, "new"), (1, "new")]
    reader.close()


@pytest.mark.parametrize("gone", BROKERS.values(), ids=list(BROKERS))
def test_a_broker_that_dies_comes_back(cluster: Cluster, gone: int) -> None:
    topic = cluster.create_topic("survives", [OTTLA, APACHE])
    produce(Producer({"bootstrap.servers": cluster.bootstrap_servers}), topic, 2, ["before"])
    node, (other,) = cluster[gone], [n for n in cluster.brokers() if n.node_id != gone]
    node.kill()
    wait_until(lambda: gone not in other.known_brokers(), PATIENCE_S, "the broker to be fenced")
    produce_to = 1 if gone == OTTLA else 0
    producer = Producer({"bootstrap.servers": other.address})
    producer.produce(topic, "meanwhile", partition=produce_to)
    assert producer.flush(PATIENCE_S) == 0
    node.start()
    wait_until(lambda: gone in other.known_brokers(), PATIENCE_S, "the broker to be back")
    produce(Producer({"bootstrap.servers": cluster.bootstrap_servers}), topic, 2, ["after"])
    reader = consumer(cluster.bootstrap_servers, "nobody")
    reader.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
    wanted = [
        (p, v)
        for p in (0, 1)
        for v in ("before", "meanwhile", "after")
        if v != "meanwhile" or p == produce_to
    ]
    assert read(reader, 5) == wanted
    reader.close()
