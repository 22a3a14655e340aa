"""Apache and Ottla brokers side by side under controllers of either kind: topics, groups, transactions across them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.interop.apache import run_tool
from tests.interop.cluster import Cluster, ClusterNode
from tests.interop.process import wait_until
from tests.support.raw_client import CREATE_TOPICS, TIMEOUT_MS, RawClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

CONTROLLER, OTTLA, APACHE = 1, 2, 3
BROKERS = {"ottla": OTTLA, "apache": APACHE}
FIND_COORDINATOR, GROUP, TRANSACTION = 10, 0, 1
PATIENCE_S = 60.0


@pytest.fixture(scope="module", params=["ottla", "apache"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    nodes = {
        CONTROLLER: (request.param, "controller"),
        OTTLA: ("ottla", "broker"),
        APACHE: ("apache", "broker"),
    }
    with Cluster(tmp_path_factory.mktemp(f"under-{request.param}"), nodes) as running:
        yield running


def create(cluster: Cluster, name: str, leaders: list[int], through: int = OTTLA) -> str:
    """A topic whose partitions are led by these brokers."""
    name = f"{name}-{uuid.uuid4().hex[:8]}"
    assignments = [{"partition_index": i, "broker_ids": [leader]} for i, leader in enumerate(leaders)]
    topic = {
        "name": name,
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": assignments,
        "configs": [],
    }
    with RawClient(cluster[through]) as client:
        answer = client.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout": TIMEOUT_MS})
    assert answer["topics"][0]["error_code"] == "none", answer
    for node in cluster.brokers():
        admin = AdminClient({"bootstrap.servers": node.address})
        wait_until(lambda admin=admin: led_by(admin, name) == leaders, PATIENCE_S, f"{name} to be led")
    return name


def led_by(admin: AdminClient, topic: str) -> list[int]:
    found = admin.list_topics(timeout=10).topics.get(topic)
    return [] if found is None else [found.partitions[i].leader for i in sorted(found.partitions)]


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


def coordinator(node: ClusterNode, kind: int, key: str) -> int:
    """The broker that coordinates a group or a transactional id, as this one says; -1 while nobody does."""
    with RawClient(node) as client:
        answer = client.ask(FIND_COORDINATOR, 4, {"key_type": kind, "coordinator_keys": [key]})
    found = answer["coordinators"][0]
    return int(found["node_id"]) if found["error_code"] == "none" else -1


def coordinated_by(cluster: Cluster, kind: int, broker_id: int) -> str:
    """A new name whose coordinator is this broker, as both brokers say."""
    for _ in range(100):
        key = f"name-{uuid.uuid4().hex[:8]}"
        node = cluster[OTTLA]
        wait_until(lambda: coordinator(node, kind, key) >= 0, PATIENCE_S, "a coordinator")  # noqa: B023
        if coordinator(node, kind, key) == broker_id:
            other = cluster[APACHE]
            wait_until(lambda: coordinator(other, kind, key) == broker_id, PATIENCE_S, "agreement")  # noqa: B023
            return key
    raise AssertionError(f"broker {broker_id} coordinates nothing")


@pytest.mark.parametrize("through", BROKERS.values(), ids=list(BROKERS))
def test_topics_led_by_both(cluster: Cluster, through: int) -> None:
    topic = create(cluster, "both", [OTTLA, APACHE, OTTLA, APACHE], through)
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
    topic = create(cluster, "grouped", [OTTLA, APACHE])
    group = coordinated_by(cluster, GROUP, at)
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


@pytest.mark.parametrize("at", BROKERS.values(), ids=list(BROKERS))
def test_share_groups_coordinated_by_either(cluster: Cluster, at: int) -> None:
    """Partitions on both brokers; their share state is kept by either, which the partition's hash decides."""
    topic = create(cluster, "shared", [OTTLA, APACHE, OTTLA, APACHE])
    group = coordinated_by(cluster, GROUP, at)
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
    source = create(cluster, "source", [OTTLA, APACHE])
    target = create(cluster, "target", [APACHE, OTTLA])
    servers = cluster.bootstrap_servers
    produce(Producer({"bootstrap.servers": servers}), source, 2, ["a", "b"])
    name = coordinated_by(cluster, TRANSACTION, at)
    groups = [coordinated_by(cluster, GROUP, broker) for broker in BROKERS.values()]
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
def test_a_newer_producer_fences_the_older_one(cluster: Cluster, at: int) -> None:
    topic = create(cluster, "fenced", [OTTLA, APACHE])
    name = coordinated_by(cluster, TRANSACTION, at)
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
    topic = create(cluster, "survives", [OTTLA, APACHE])
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
