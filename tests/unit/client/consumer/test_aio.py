"""The consumer with its driver: what whoever calls it sees."""

from collections.abc import Iterator

import pytest
from tests.unit.client.fake_groups import FakeGroups
from tests.unit.client.stub_broker import StubBroker

from ottla.client.blocking import Consumer
from ottla.client.group.events import RebalanceListener
from ottla.model.ids import TopicPartition
from ottla.records.record import build_batch

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


def test_a_listener_that_fails_keeps_no_consumer_open(broker: StubBroker) -> None:
    consumer = Consumer(bootstrap_servers=broker.address, group_id="g", auto_offset_reset="earliest")
    consumer.subscribe(["t"], listener=Failing())
    while not consumer.poll(1_000):
        pass
    with pytest.raises(ValueError, match="of the application's"):
        consumer.close()
    assert not consumer._thread.is_alive
