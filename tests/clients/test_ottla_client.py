"""Ottla's own clients, both drivers, against a broker in this process."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from tests.clients.conftest import Wait

from ottla.client import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    ConfigChange,
    ConfigResource,
    Consumer,
    NewTopic,
    Producer,
    ResourceType,
    TopicPartition,
)
from ottla.client.admin.types import ConfigSource
from ottla.client.errors import BufferExhausted, Closed, NoBrokersAvailable
from ottla.model.errors import ErrorCode, KafkaError
from ottla.testing.broker import Broker

BROKERS = ["broker"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": "false"}) as running:
        yield running


@pytest.fixture
def servers(address: str) -> str:
    return address


@pytest.fixture
def topic(servers: str, in_step: Wait, request: pytest.FixtureRequest) -> str:
    """A topic of three partitions of this test's own."""
    name = request.node.name.replace("[", "-").replace("]", "")[:200]
    with Admin(bootstrap_servers=servers) as admin:
        result = admin.create_topics([NewTopic(name, num_partitions=3)])[name]
        assert not isinstance(result, KafkaError), result
    in_step()
    return name


def partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(3)]


def read_all(servers: str, topic: str, count: int) -> dict[int, list[bytes | None]]:
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions(topic))
        got: dict[int, list[bytes | None]] = {0: [], 1: [], 2: []}
        while sum(map(len, got.values())) < count:
            polled = consumer.poll(10_000)
            assert polled, f"only {sum(map(len, got.values()))} of {count} records came"
            for tp, records in polled.items():
                got[tp.partition] += [record.value for record in records]
        return got


@pytest.mark.three_nodes
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["all", 1, 0])
def test_produce_and_consume(servers: str, topic: str, codec: str, acks: str | int) -> None:
    with Producer(bootstrap_servers=servers, compression_type=codec, acks=acks, batch_size=500) as producer:
        deliveries = [producer.send(topic, b"%d" % i, partition=i % 3) for i in range(90)]
    assert all(delivery.exception() is None for delivery in deliveries)
    if acks != 0:
        assert deliveries[89].metadata()[:3] == (topic, 2, 29)
    got = read_all(servers, topic, 90)
    assert got == {p: [b"%d" % i for i in range(p, 90, 3)] for p in range(3)}


@pytest.mark.three_nodes
def test_what_a_record_carries_comes_back(servers: str, topic: str) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(
            topic, "häßlich", key="clé", headers={"a": b"1", "n": None}, timestamp_ms=12345, partition=0
        )
        producer.send(topic, None, key=b"tombstone", partition=0)
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        iterator = iter(consumer)
        first, second = next(iterator), next(iterator)
    assert (first.value, first.key, first.timestamp) == ("häßlich".encode(), "clé".encode(), 12345)
    assert first.headers == (("a", b"1"), ("n", None))
    assert (second.value, second.key, second.offset) == (None, b"tombstone", 1)


def test_callbacks_and_results(servers: str, topic: str) -> None:
    heard = threading.Event()
    with Producer(bootstrap_servers=servers, linger_ms=0) as producer:
        delivery = producer.send(topic, b"x", partition=1, on_delivery=lambda d: heard.set())
        assert delivery.result(timeout_ms=10_000).offset == 0
        assert heard.wait(10)


@pytest.mark.three_nodes
def test_keys_go_where_other_clients_put_them(servers: str, topic: str) -> None:
    from confluent_kafka import Producer as Librdkafka

    theirs = Librdkafka({"bootstrap.servers": servers, "partitioner": "murmur2_random"})
    placed = {}
    for number in range(30):
        key = b"key-%d" % number
        theirs.produce(topic, b"", key, on_delivery=lambda e, m: placed.__setitem__(m.key(), m.partition()))
    theirs.flush(10)
    with Producer(bootstrap_servers=servers) as producer:
        ours = {key: producer.send(topic, b"", key) for key in placed}
    assert {key: delivery.metadata().partition for key, delivery in ours.items()} == placed


@pytest.mark.three_nodes
def test_positions_offsets_and_times(servers: str, topic: str) -> None:
    tp = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(20):
            producer.send(topic, b"%d" % number, partition=0, timestamp_ms=1000 + number * 10)
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        assert consumer.position(tp) == 0
        assert consumer.end_offsets(partitions(topic)) == dict(
            zip(partitions(topic), (20, 0, 0), strict=True)
        )
        assert consumer.beginning_offsets([tp]) == {tp: 0}
        found = consumer.offsets_for_times({tp: 1095})
        assert found[tp] is not None
        assert found[tp].offset == 10
        assert consumer.offsets_for_times({tp: 99_999}) == {tp: None}
        consumer.seek(tp, 15)
        assert [r.offset for r in consumer.poll(10_000, max_records=3)[tp]] == [15, 16, 17]
        assert consumer.position(tp) == 18
        consumer.seek_to_end()
        assert consumer.position(tp) == 20
        consumer.pause([tp])
        consumer.seek_to_beginning()
        assert consumer.poll(100) == {}
        consumer.resume([tp])
        assert len(consumer.poll(10_000)[tp]) == 20


def test_out_of_range_resets(servers: str, topic: str) -> None:
    tp = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=0)
    with Admin(bootstrap_servers=servers) as admin:
        assert admin.delete_records({tp: 4}) == {tp: 4}
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 1)
        assert consumer.poll(10_000)[tp][0].offset == 4


def test_a_full_buffer_pushes_back(servers: str, topic: str) -> None:
    """Far more than fits in the buffer: sending waits for room, and all arrives."""
    with Producer(bootstrap_servers=servers, buffer_memory=20_000, batch_size=4_000) as producer:
        for number in range(500):
            producer.send(topic, b"x" * 500, partition=number % 3)
            assert producer._twin.producer.accumulator.used_bytes <= 20_000
    assert sum(map(len, read_all(servers, topic, 500).values())) == 500


@pytest.mark.three_nodes
def test_many_threads_share_a_producer(servers: str, topic: str) -> None:
    with Producer(bootstrap_servers=servers, batch_size=1000) as producer:

        def work(thread: int) -> None:
            for number in range(200):
                producer.send(topic, b"%d:%d" % (thread, number), partition=thread)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    got = read_all(servers, topic, 600)
    assert got == {t: [b"%d:%d" % (t, n) for n in range(200)] for t in range(3)}


@pytest.mark.three_nodes
def test_the_asyncio_clients(servers: str, in_step: Wait) -> None:
    async def scenario() -> None:
        async with AsyncAdmin(bootstrap_servers=servers) as admin:
            await admin.create_topics([NewTopic("aio", num_partitions=3)])
        in_step()
        async with AsyncProducer(bootstrap_servers=servers) as producer:
            assert await producer.partitions_for("aio") == [0, 1, 2]
            one = await producer.send_and_wait("aio", b"one", partition=0)
            deliveries = [await producer.send("aio", b"%d" % i, partition=0) for i in range(100)]
            done = await asyncio.gather(*deliveries)
            assert [d.offset for d in done] == list(range(one.offset + 1, one.offset + 101))
        async with AsyncConsumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("aio", 0)])
            got = []
            async for record in consumer:
                got.append(record.value)
                if len(got) == 101:
                    break
            assert got[0] == b"one"
            assert await consumer.end_offsets([TopicPartition("aio", 0)]) == {TopicPartition("aio", 0): 101}

    asyncio.run(scenario())


@pytest.mark.three_nodes
def test_topics_are_managed(servers: str, in_step: Wait) -> None:
    with Admin(bootstrap_servers=servers) as admin:
        made = admin.create_topics(
            [
                NewTopic("managed", 2, 1, {"retention.ms": "60000"}),
                NewTopic("no good"),
                NewTopic("copies", 1, 9),
            ]
        )
        assert not isinstance(made["managed"], KafkaError)
        assert made["managed"].configs["retention.ms"] == "60000"
        refused = {name: result.code for name, result in made.items() if isinstance(result, KafkaError)}
        assert refused == {
            "no good": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "copies": ErrorCode.INVALID_REPLICATION_FACTOR,
        }
        assert admin.create_partitions({"managed": 4}) == {"managed": None}
        in_step()
        described = admin.describe_topics(["managed", "absent"])
        managed, absent = described["managed"], described["absent"]
        assert not isinstance(managed, KafkaError)
        assert sorted(managed.partitions) == [0, 1, 2, 3]
        assert isinstance(absent, KafkaError)
        assert absent.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert "managed" in [listing.name for listing in admin.list_topics()]
        assert admin.delete_topics(["managed"]) == {"managed": None}
        in_step()
        assert "managed" not in [listing.name for listing in admin.list_topics()]


@pytest.mark.three_nodes
def test_configurations_are_managed(servers: str, topic: str, in_step: Wait) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    with Admin(bootstrap_servers=servers) as admin:
        change = {resource: [ConfigChange("retention.ms", "1234")]}
        assert admin.incremental_alter_configs(change) == {resource: None}
        in_step()
        entries = admin.describe_configs([resource], synonyms=True)[resource]
        assert not isinstance(entries, KafkaError)
        assert entries["retention.ms"].value == "1234"
        assert entries["retention.ms"].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        assert entries["retention.ms"].synonyms[0].value == "1234"
        wrong = {resource: [ConfigChange("retention.ms", "soon")]}
        refused = admin.incremental_alter_configs(wrong)[resource]
        assert refused is not None
        assert refused.code is ErrorCode.INVALID_CONFIG


@pytest.mark.three_nodes
def test_the_cluster_is_described(servers: str, topic: str, nodes: dict[int, str]) -> None:
    with Admin(bootstrap_servers=servers) as admin:
        cluster = admin.describe_cluster()
        assert {node.node_id: node.address for node in cluster.nodes} == nodes
        described = admin.describe_topics([topic])[topic]
        assert not isinstance(described, KafkaError)
        dirs = admin.describe_log_dirs()
        assert set(dirs) == set(nodes)
        for node_id, found in dirs.items():
            assert not isinstance(found, KafkaError)
            led = {
                number for number, partition in described.partitions.items() if partition.leader == node_id
            }
            assert {partition for name, partition in found[0].replicas if name == topic} == led
        with Producer(bootstrap_servers=servers) as producer:
            producer.send(topic, b"x", partition=0).result(10_000)
            producers = admin.describe_producers([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
        assert not isinstance(producers, KafkaError)
        assert [p.last_sequence for p in producers] == [0]


def test_a_topic_that_is_not_there(servers: str) -> None:
    with (
        Producer(bootstrap_servers=servers, max_block_ms=300) as producer,
        pytest.raises(KafkaError, match="'absent': does not exist"),
    ):
        producer.send("absent", b"x")


def test_nobody_at_home() -> None:
    with pytest.raises(NoBrokersAvailable, match=r"127\.0\.0\.1:1: connection refused"):
        Producer(bootstrap_servers="127.0.0.1:1", bootstrap_timeout_ms=0)


def test_a_closed_client_says_so(servers: str, topic: str) -> None:
    producer = Producer(bootstrap_servers=servers)
    producer.send(topic, b"x")
    producer.close()
    producer.close()
    with pytest.raises(Closed):
        producer.send(topic, b"x")


def test_records_survive_a_broker_that_restarts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A producer and a consumer live through a clean restart on the same port; nothing is lost or doubled."""
    data_dir = tmp_path_factory.mktemp("restart")
    first = Broker(data_dir=data_dir).start()
    servers = first.bootstrap_servers
    port = servers.rpartition(":")[2]
    same_port = {"listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:0"}
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic("lasting", num_partitions=3)])
    with Producer(bootstrap_servers=servers, linger_ms=0) as producer:
        deliveries = [producer.send("lasting", b"%d" % i, partition=0) for i in range(50)]
        producer.flush()
        first.stop()
        deliveries += [producer.send("lasting", b"%d" % i, partition=0) for i in range(50, 100)]
        with Broker(same_port, data_dir=data_dir) as second:
            assert second.bootstrap_servers == servers
            producer.flush()
            assert [d.metadata().offset for d in deliveries] == list(range(100))
            assert read_all(servers, "lasting", 100)[0] == [b"%d" % i for i in range(100)]


def test_buffer_exhausted_is_told(servers: str, topic: str) -> None:
    settings = {
        "buffer_memory": 2_000,
        "max_block_ms": 200,
        "linger_ms": 60_000,
        "delivery_timeout_ms": 61_000,
    }
    producer = Producer(bootstrap_servers=servers, **settings)
    try:
        producer._twin.core.request_managers.clear()  # a sender that never gets its turn
        for _ in range(3):
            producer.send(topic, b"x" * 500)
        with pytest.raises(BufferExhausted, match="buffer_memory stayed full for 200 ms"):
            producer.send(topic, b"x" * 500)
    finally:
        producer.close(timeout_ms=0)
