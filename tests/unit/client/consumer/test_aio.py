"""The consumer with its driver: what whoever calls it sees."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.client.fake_groups import FakeGroups
from tests.unit.client.stub_broker import StubBroker

from ottla.client.blocking import Consumer
from ottla.client.consumer.aio import AsyncConsumer
from ottla.client.errors import Closed
from ottla.client.group.events import RebalanceListener
from ottla.client.offsets import OffsetAndMetadata
from ottla.model.ids import TopicPartition
from ottla.records.record import build_batch
from ottla.wire.messages.groups.classic import OffsetCommitRequest

TP = TopicPartition("t", 0)


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    with StubBroker() as running:
        running.cluster.create("t", 1)
        FakeGroups(running.cluster)
        running.cluster.partition(TP).append(bytes(build_batch([(1000, None, b"v", ())])))
        yield running


class Failing(RebalanceListener):
    """Does not survive the end."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        raise ValueError("of the application's")


def test_a_time_is_not_negative(broker: StubBroker) -> None:
    with (
        Consumer(bootstrap_servers=broker.address) as consumer,
        pytest.raises(ValueError, match="not negative"),
    ):
        consumer.offsets_for_times({TP: -1})


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("name", [None, b"t"])
def test_a_topic_that_is_no_text_is_refused_by_subscribe(
    broker: StubBroker, protocol: str, name: Any
) -> None:
    with Consumer(
        bootstrap_servers=broker.address, group_id="g", group_protocol=protocol, auto_offset_reset="earliest"
    ) as consumer:
        with pytest.raises(TypeError, match="a topic is a str"):
            consumer.subscribe(["t", name])
        assert consumer.subscription() == set()


def test_a_listener_that_fails_keeps_no_consumer_open(broker: StubBroker) -> None:
    consumer = Consumer(bootstrap_servers=broker.address, group_id="g", auto_offset_reset="earliest")
    consumer.subscribe(["t"], listener=Failing())
    while not consumer.poll(1_000):
        pass
    with pytest.raises(ValueError, match="of the application's"):
        consumer.close()
    assert not consumer._thread.is_alive


def test_a_listener_that_fails_keeps_no_consumer_from_subscribing_again(broker: StubBroker) -> None:
    with Consumer(
        bootstrap_servers=broker.address, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.subscribe(["t"], listener=Failing())
        while not consumer.poll(1_000):
            pass
        with pytest.raises(ValueError, match="of the application's"):
            consumer.unsubscribe()
        assert (consumer.subscription(), consumer.assignment()) == (set(), set())
        consumer.subscribe(["t"], listener=RebalanceListener())
        assert next(iter(consumer.poll(30_000))) == TP


@pytest.mark.parametrize("is_committing", [False, True])
def test_a_close_ends_in_its_time_though_nothing_can_be_committed(
    broker: StubBroker, is_committing: bool
) -> None:
    answered, real = threading.Event(), broker.cluster.handlers[OffsetCommitRequest]

    def never(node: int, request: Any, version: int) -> Any:
        answered.wait(60)
        return real(node, request, version)

    broker.cluster.handlers[OffsetCommitRequest] = never
    consumer = Consumer(bootstrap_servers=broker.address, group_id="g", auto_offset_reset="earliest")
    consumer.subscribe(["t"])
    while not consumer.poll(1_000):
        pass
    if is_committing:
        consumer.commit_async({TP: 1})
    began_s = time.monotonic()
    consumer.close(timeout_ms=200)
    took_s = time.monotonic() - began_s
    answered.set()
    assert took_s < 20  # a commit by itself has default_api_timeout_ms, a minute


@pytest.mark.parametrize(
    "wrong",
    [
        {("orders", "0"): 1, ("orders", 1): 2},
        {("orders", 0): 1.5},
        {("orders", 0): -1},
        {("orders", 0): 2**63},
        {("orders", 2**31): 1},
        {(b"orders", 0): 1},
        {("\udcff", 0): 1},
        {("orders", 0): OffsetAndMetadata(1, "\udcff")},
        {("orders", 0): OffsetAndMetadata(1, "", 2**31)},
    ],
)
def test_a_commit_that_no_request_can_carry_is_refused_and_holds_up_no_other(
    broker: StubBroker, wrong: dict[Any, Any]
) -> None:
    async def commits() -> Any:
        consumer = await AsyncConsumer(bootstrap_servers=broker.address, group_id="g").start()
        try:
            with pytest.raises((TypeError, ValueError)):
                await consumer.commit(wrong, timeout_ms=5_000)
            await consumer.commit({TP: 3}, timeout_ms=20_000)
            return await consumer.committed([TP])
        finally:
            await consumer.close(timeout_ms=100)

    assert asyncio.run(commits())[TP].offset == 3


def test_who_waits_for_a_commit_when_a_consumer_closes_hears_that_it_is_closed(broker: StubBroker) -> None:
    answered, real = threading.Event(), broker.cluster.handlers[OffsetCommitRequest]

    def never(node: int, request: Any, version: int) -> Any:
        answered.wait(60)
        return real(node, request, version)

    async def commits() -> list[Any]:
        consumer = await AsyncConsumer(bootstrap_servers=broker.address, group_id="g").start()
        # The second goes out when the first is answered.
        waiting = [asyncio.ensure_future(consumer.commit({TP: offset})) for offset in (1, 2)]
        await asyncio.sleep(0)
        await consumer.close(timeout_ms=100)
        waiting.append(asyncio.ensure_future(consumer.commit({TP: 3})))  # too late
        async with asyncio.timeout(20):
            return await asyncio.gather(*waiting, return_exceptions=True)

    broker.cluster.handlers[OffsetCommitRequest] = never
    try:
        assert [type(outcome) for outcome in asyncio.run(commits())] == [Closed, Closed, Closed]
    finally:
        answered.set()
