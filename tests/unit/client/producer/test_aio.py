"""The producer with its driver: what whoever waits for it sees."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.client.fake_groups import FakeGroups
from tests.unit.client.stub_broker import StubBroker

from ottla.client.blocking import Producer
from ottla.client.errors import StateError, TimedOut
from ottla.client.transaction.manager import State
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.wire.messages.transactions import EndTxnRequest


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    with StubBroker() as running:
        running.cluster.create("t", 2)
        yield running


def take_no_more_than(broker: StubBroker, size_bytes: int) -> None:
    """Batches of partition 0 that are larger are refused."""
    real = broker.cluster.handlers[ProduceRequest]

    def limited(node: int, request: Any, version: int) -> Any:
        (topic,) = request.topic_data
        if len(topic.partition_data[0].records) <= size_bytes:
            return real(node, request, version)
        refused = PartitionProduceResponse(index=0, error_code=ErrorCode.MESSAGE_TOO_LARGE, base_offset=-1)
        answer = TopicProduceResponse(topic_id=topic.topic_id, name="t", partition_responses=[refused])
        return ProduceResponse(responses=[answer])

    broker.cluster.handlers[ProduceRequest] = limited


def test_a_flush_waits_for_the_parts_of_a_batch_that_was_too_large(broker: StubBroker) -> None:
    take_no_more_than(broker, 1_000)
    with Producer(bootstrap_servers=broker.address, linger_ms=10_000, batch_size=10_000) as producer:
        deliveries = [producer.send("t", b"%d" % n + b"x" * 300, partition=0) for n in range(20)]
        producer.flush(10_000)
        assert [delivery.metadata().offset for delivery in deliveries] == list(range(20))
    assert broker.cluster.partition(TopicPartition("t", 0)).end == 20


@pytest.mark.parametrize("timestamp_ms", [1_700_000_000_000.5, 2**63, -1])
def test_a_timestamp_that_no_record_can_have_is_refused_at_once(
    broker: StubBroker, timestamp_ms: Any
) -> None:
    with Producer(bootstrap_servers=broker.address) as producer:
        with pytest.raises((TypeError, ValueError), match=r"timestamp|float"):
            producer.send("t", b"bad", timestamp_ms=timestamp_ms)
        assert producer.send("t", b"latest", timestamp_ms=2**63 - 1).result(10_000).offset == 0


def test_a_batch_that_cannot_be_encoded_fails_alone(broker: StubBroker) -> None:
    with Producer(bootstrap_servers=broker.address, linger_ms=10_000) as producer:
        bad = producer.send("t", b"bad", partition=0, headers=[("\ud800", b"")])
        others = [producer.send("t", b"good", partition=1)]
        producer.flush(10_000)
        others.append(producer.send("t", b"later", partition=0))
        producer.flush(10_000)
        with pytest.raises(KafkaError, match="t-0: the batch cannot be encoded"):
            bad.metadata()
        assert [delivery.metadata()[1:3] for delivery in others] == [(1, 0), (0, 0)]


def test_a_callback_that_closes_the_producer_leaves_nobody_waiting(broker: StubBroker) -> None:
    with Producer(bootstrap_servers=broker.address, linger_ms=10_000) as producer:
        refused: list[RuntimeError] = []

        def close(_: object) -> None:
            try:
                producer.close()
            except RuntimeError as error:
                refused.append(error)

        producer.send("t", b"1", partition=0, on_delivery=close)
        flushing = threading.Thread(target=producer.flush, daemon=True)
        flushing.start()
        flushing.join(60)
        assert not flushing.is_alive()
        assert [str(error) for error in refused] == [
            "a callback runs in the client's own thread and cannot close the client"
        ]
        assert producer.send("t", b"2", partition=0) is not None
        producer.flush(10_000)
    assert broker.cluster.partition(TopicPartition("t", 0)).end == 2


def test_a_commit_that_ends_after_its_timeout_may_be_asked_for_again(broker: StubBroker) -> None:
    groups = FakeGroups(broker.cluster)
    answered, real = threading.Event(), broker.cluster.handlers[EndTxnRequest]

    def slow(node: int, request: Any, version: int) -> Any:
        answered.wait(30)
        return real(node, request, version)

    broker.cluster.handlers[EndTxnRequest] = slow
    with Producer(bootstrap_servers=broker.address, transactional_id="x") as producer:
        producer.init_transactions()
        twin = producer._twin
        for number in range(2):
            answered.clear()
            producer.begin_transaction()
            producer.send("t", b"%d" % number, partition=0)
            with pytest.raises(TimedOut):
                producer.commit_transaction(timeout_ms=100)
            answered.set()
            assert producer._run(twin.driver.until(lambda: twin._transactions().state is State.READY, 30_000))
            producer.commit_transaction()
            with pytest.raises(StateError, match="between transactions"):
                producer.commit_transaction()
    assert [committed for committed, _ in groups.ended] == [True, True]
