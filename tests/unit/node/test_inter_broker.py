"""Another broker asks a whole node, over sockets: transactions, markers, share state and ends of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.interop.process import wait_until
from tests.unit.node.test_transactions import Client, Producer, open_transactions, ready

from ottla.client.admin.types import NewTopic
from ottla.client.blocking import Admin
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.coordinator.transaction.coordinator import TransactionMarkers
from ottla.coordinator.transaction.log import TRANSACTION_RECORDS
from ottla.coordinator.transaction.metadata import ProducerIdAndEpoch
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.clock import SystemClock
from ottla.model.errors import ErrorCode
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending
from ottla.node.coordinators import LoopScheduler
from ottla.server.inter_broker import InterBroker
from ottla.server.partition_metadata import NetworkPartitionMetadataClient
from ottla.server.transaction.add_partitions import AddPartitionsToTxnSender, Operation
from ottla.server.transaction.markers import TransactionMarkerChannelManager
from ottla.server.transaction.service import TransactionService
from ottla.share.coordinator import SHARE_RECORDS, ShareCoordinatorService
from ottla.share.persister import DefaultStatePersister
from ottla.share.state import PersistedState, PersisterStateBatch
from ottla.share.state_requests import PersisterStateManager
from ottla.testing import Broker
from ottla.wire.messages.groups.classic import FindCoordinatorRequest

OTHER_ID = 77
TIMEOUT_MS = 20_000
WHERE = [TopicPartition("t", index) for index in range(3)]


class OtherBroker:
    """One that leads nothing and coordinates nothing."""

    def __init__(self, node: Any) -> None:
        scheduler = LoopScheduler(SystemClock(), asyncio.get_running_loop())
        image: ClusterImage = node.broker.image
        self.image = image
        self.brokers = InterBroker(OTHER_ID, lambda: node.config)
        self.brokers.on_image(Delta(ClusterImage(), image, brokers=frozenset(image.brokers)))
        nothing: Any = None

        def runtime(topic: str, records: Any) -> CoordinatorRuntime[Any]:
            found = image.topic(topic)
            return CoordinatorRuntime(topic, nothing, records, scheduler, lambda: len(found.partitions))  # type: ignore[union-attr]

        service = TransactionService(
            runtime("__transaction_state", TRANSACTION_RECORDS), nothing, self.brokers
        )
        self.sender = AddPartitionsToTxnSender(service, lambda: TIMEOUT_MS)
        self.written: Pending[None] = Pending()
        self.markers = TransactionMarkerChannelManager(self.brokers, self, scheduler, lambda: TIMEOUT_MS)
        here = ShareCoordinatorService(runtime("__share_group_state", SHARE_RECORDS), lambda: TIMEOUT_MS)
        states = PersisterStateManager(here, self.brokers, scheduler, lambda: TIMEOUT_MS)
        self.persister = DefaultStatePersister(states, scheduler, lambda: True)
        self.ends = NetworkPartitionMetadataClient(nothing, self.brokers, scheduler, lambda: TIMEOUT_MS)

    # ---- whose markers are sent ---------------------------------------------------------------------------------

    def coordinates(self, markers: TransactionMarkers) -> bool:
        return True

    def complete(self, markers: TransactionMarkers) -> Pending[None]:
        self.written.resolve(None)
        return self.written


@asynccontextmanager
async def other_broker(node: Any) -> AsyncIterator[OtherBroker]:
    other = OtherBroker(node)
    try:
        yield other
    finally:
        await other.brokers.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    where: Path = tmp_path_factory.mktemp("brokers")
    with Broker(data_dir=where / "data") as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("t", 3)])
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    link = Client(broker)
    ready(link)
    request = FindCoordinatorRequest(key_type=2, coordinator_keys=["g:AAAAAAAAAAAAAAAAAAAAAQ:0"])
    wait_until(lambda: not link.ask(request, 6).coordinators[0].error_code, 20, "a share coordinator")
    yield link
    link.close()


def ask(broker: Broker, work: Callable[[OtherBroker], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with other_broker(broker.node) as other:
            return await work(other)

    return asyncio.run(asyncio.wait_for(main(), 60))


def who(producer: Producer) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(producer.producer_id, producer.epoch)


def test_the_coordinator_of_many_transactions_adds_and_verifies_partitions(
    broker: Broker, client: Client
) -> None:
    producers = [Producer(client, f"many-{number}") for number in range(20)]

    async def add(other: OtherBroker) -> list[Any]:
        asked = [other.sender.ask(p.name, who(p), WHERE[:2], Operation.ADD) for p in producers]
        added = [await one for one in asked]
        asked = [other.sender.ask(p.name, who(p), WHERE, Operation.VERIFY) for p in producers]
        return added + [await one for one in asked]

    answers = ask(broker, add)
    assert answers == [{}] * 20 + [{WHERE[2]: ErrorCode.TRANSACTION_ABORTABLE}] * 20
    for producer in producers:
        assert [sorted(topic.partitions) for topic in producer.state().topics] == [[0, 1]]
        assert producer.end() == 0


def test_markers_of_another_coordinator_are_written(broker: Broker, client: Client) -> None:
    producer = Producer(client, "marked")
    assert producer.write(0, 1) == [0, 0]
    assert producer.producer_id in open_transactions(client)
    markers = TransactionMarkers(
        0, 1_000, "marked", producer.producer_id, producer.epoch + 1, True, 2, frozenset(WHERE[:2])
    )

    async def send(other: OtherBroker) -> None:
        other.markers.send(markers)
        await other.written

    ask(broker, send)
    assert producer.producer_id not in open_transactions(client)


def test_share_state_is_kept_for_the_leaders_of_other_brokers(broker: Broker, client: Client) -> None:
    topic = broker.node.broker.image.topic("t")
    assert topic is not None
    batches = [PersisterStateBatch(5, 9, 1, 2)]

    async def keep(other: OtherBroker) -> Any:
        persister = other.persister
        await persister.initialize("g", 1, {topic.id: {0: 5, 1: 5, 2: 5}})
        for index in range(3):
            await persister.write_state(
                "g",
                topic.id,
                index,
                state_epoch=1,
                leader_epoch=4,
                start_offset=5,
                delivery_complete_count=0,
                batches=batches,
            )
        return [await persister.read_state("g", topic.id, index, 4) for index in range(3)]

    assert ask(broker, keep) == [PersistedState(1, 5, tuple(batches))] * 3


def test_the_ends_of_partitions_are_listed(broker: Broker, client: Client) -> None:
    async def find(other: OtherBroker) -> Any:
        return await other.ends.latest_offsets(WHERE)

    before = ask(broker, find)
    producer = Producer(client, "ends")
    assert producer.write(1) == [0]
    assert producer.end() == 0
    after = ask(broker, find)
    assert [after[where] - before[where] for where in WHERE] == [0, 2, 0]
