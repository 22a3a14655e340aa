"""Ottla's clients over the death of the broker: groups go on, transactions end one way or the other."""

import random
import socket
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.clients.adapters.model import Patience
from tests.interop.ottla_node import OttlaNode

from ottla.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from ottla.client.errors import CommitFailed, TransactionAbortable
from ottla.model.errors import KafkaError

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.min.heartbeat.interval.ms": 50,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
}
RECORDS = 300


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    where = tmp_path_factory.mktemp("restarts") / "data"
    with OttlaNode(where, SETTINGS, port=quiet_port()) as running:
        yield running


def quiet_port() -> int:
    """A port that stays the broker's over its restarts: free, and none that outgoing connections are given."""
    for port in random.Random(uuid.uuid4().int).sample(range(20_000, 30_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")


@pytest.fixture
def topic(node: OttlaNode) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=node.address) as admin:
        for result in admin.create_topics([NewTopic(name, 2), NewTopic(f"{name}-copy", 2)]).values():
            assert not isinstance(result, KafkaError), result
    with Producer(bootstrap_servers=node.address) as producer:
        for number in range(RECORDS):
            producer.send(name, b"%d" % number, partition=number % 2)
    return name


def committed_values(address: str, topic: str) -> list[bytes | None]:
    with Consumer(bootstrap_servers=address, isolation_level="read_committed") as consumer:
        partitions = [TopicPartition(topic, number) for number in range(2)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        got: list[bytes | None] = []
        patience = Patience("reading")
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            patience.check(len(got))
            got += [record.value for records in consumer.poll(200).values() for record in records]
        return got


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_reads_everything_though_the_broker_dies(node: OttlaNode, topic: str, protocol: str) -> None:
    settings: dict[str, Any] = {
        "group_id": f"g-{topic}",
        "group_protocol": protocol,
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 100,
        "enable_auto_commit": False,
    }
    got: Counter[bytes | None] = Counter()
    with Consumer(bootstrap_servers=node.address, **settings) as consumer:
        consumer.subscribe([topic])
        deaths = [100, 200]
        patience = Patience("reading over restarts")
        while len(got) < RECORDS:
            patience.check(len(got))
            for records in consumer.poll(200, 20).values():
                got.update(record.value for record in records)
            try:
                consumer.commit()
            except CommitFailed:
                continue  # the group formed anew: what was read may come again
            if deaths and len(got) >= deaths[0]:
                deaths.pop(0)
                node.kill()
                node.start()
        assert deaths == []
        offsets = consumer.committed([TopicPartition(topic, number) for number in range(2)])
    assert [at.offset if at is not None else None for at in offsets.values()] == [RECORDS // 2] * 2
    assert set(got) == {b"%d" % number for number in range(RECORDS)}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_read_transform_write_exactly_once_though_the_broker_dies(
    node: OttlaNode, topic: str, protocol: str
) -> None:
    """At three places: with records written, with offsets sent, with the commit asked for."""
    target = f"{topic}-copy"
    settings: dict[str, Any] = {
        "group_id": f"g-{topic}",
        "group_protocol": protocol,
        "auto_offset_reset": "earliest",
        "isolation_level": "read_committed",
        "enable_auto_commit": False,
    }
    deaths = {2: "written", 4: "offsets", 6: "committing"}
    done: dict[TopicPartition, int] = {}
    with (
        Consumer(bootstrap_servers=node.address, **settings) as reader,
        Producer(bootstrap_servers=node.address, transactional_id=f"x-{topic}") as writer,
    ):
        writer.init_transactions()
        reader.subscribe([topic])
        patience = Patience("copying over restarts")
        turn = 0
        while sum(done.values()) < RECORDS:
            patience.check(done)
            records = [r for rs in reader.poll(300, 25).values() for r in rs]
            if not records:
                continue
            turn += 1
            ends = {TopicPartition(r.topic, r.partition): r.offset + 1 for r in records}
            try:
                with writer.transaction():
                    for record in records:
                        writer.send(target, record.value, partition=record.partition)
                    die(node, deaths, turn, "written")
                    writer.send_offsets_to_transaction(ends, reader.group_metadata())
                    die(node, deaths, turn, "offsets")
                    if deaths.get(turn) == "committing":
                        writer.flush()
                        node.kill()
                        del deaths[turn]
                        node.start()
                done.update(ends)
            except TransactionAbortable:
                for tp in reader.assignment():
                    reader.seek(tp, done.get(tp, 0))
    assert deaths == {}
    assert sorted(committed_values(node.address, target), key=repr) == sorted(
        (b"%d" % number for number in range(RECORDS)), key=repr
    )


def die(node: OttlaNode, deaths: dict[int, str], turn: int, where: str) -> None:
    if deaths.get(turn) == where:
        del deaths[turn]
        node.kill()
        node.start()
