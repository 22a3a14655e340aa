"""The first group, transaction and topic of an empty node, with real clients."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka as ck
import kafka
import pytest
from tests.clients.adapters.transactional import PRODUCERS, Transactional, committed_offset, read

from ottla.client.blocking import Producer
from ottla.testing import Broker

# Longer than librdkafka goes on asking for the coordinator of a group whose offsets go into a transaction.
SLOW_S = 0.6


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker({"group.initial.rebalance.delay.ms": 0}, tmp_path / "data") as running:
        yield running


@pytest.fixture
def slow(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    """A node that takes its time to make a topic, as on a busy machine."""
    create = broker.node.controller.create_topics

    async def slowly(*given: Any) -> Any:
        await asyncio.sleep(SLOW_S)
        return await create(*given)

    monkeypatch.setattr(broker.node.controller, "create_topics", slowly)
    return broker


@pytest.mark.parametrize("kind", PRODUCERS, ids=lambda kind: kind.name)
def test_the_first_transaction(slow: Broker, kind: type[Transactional]) -> None:
    producer = kind(slow.bootstrap_servers, f"id-{uuid.uuid4().hex[:8]}")
    producer.begin()
    producer.send("made-on-demand", b"a")
    # It asks for the coordinator of a group that nobody has needed yet.
    producer.send_offsets("g", "made-on-demand", {0: 1})
    producer.commit()
    producer.close()
    assert read(slow.bootstrap_servers, "made-on-demand") == [b"a"]
    assert committed_offset(slow.bootstrap_servers, "g", "made-on-demand") == 1


def test_the_first_group(slow: Broker) -> None:
    producer = ck.Producer({"bootstrap.servers": slow.bootstrap_servers})
    producer.produce("letters", b"a")
    assert producer.flush(30) == 0
    consumer = ck.Consumer(
        {"bootstrap.servers": slow.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["letters"])
    found = None
    while found is None:
        found = consumer.poll(30)
    assert found.value() == b"a"
    assert consumer.commit(found, asynchronous=False)[0].error is None
    consumer.close()


def test_a_topic_that_is_made_on_demand(broker: Broker) -> None:
    """Every client comes again until the topic is there."""
    address = broker.bootstrap_servers
    with Producer(bootstrap_servers=address) as ours:
        ours.send("by-ottla", b"a").result(30_000)
    librdkafka = ck.Producer({"bootstrap.servers": address})
    librdkafka.produce("by-librdkafka", b"a")
    assert librdkafka.flush(30) == 0
    python = kafka.KafkaProducer(bootstrap_servers=address)
    python.send("by-kafka-python", b"a").get(30)
    python.close()

    async def by_aiokafka() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=address) as producer:
            await producer.send_and_wait("by-aiokafka", b"a")

    asyncio.run(by_aiokafka())
    for name in ("ottla", "librdkafka", "kafka-python", "aiokafka"):
        assert read(address, f"by-{name}") == [b"a"]
