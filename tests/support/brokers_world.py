"""Several brokers in one process, with the network between them in the test's hand.

cluster = Cluster(3, {"data": [2, 3], "__transaction_state": [1], "__share_group_state": [3]})   # leaders by partition
cluster.broker(2).verify("t", producer, place(0))     # as a produce request does; the coordinator is broker 1
cluster.network.hold(1)                               # what arrives at broker 1 is not answered until release(1)
cluster.network.lose(1)                               # the next answer of broker 1 is lost
cluster.lead("__transaction_state", 0, 3)             # another broker leads; fence(2), remove(2), place_at(2, port)

Requests are encoded and decoded, and served by the handlers of a broker. Time passes by hand.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.support.group_world import SETTINGS, ManualScheduler, MemoryLog
from tests.support.share_groups_world import topic_id
from tests.support.transaction_simulation import SimPartition

from ottla.coordinator.loader import replay_batches
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.coordinator.timeline import Timeline
from ottla.coordinator.transaction.coordinator import (
    EndRequest,
    InitRequest,
    TransactionContext,
    TransactionCoordinator,
)
from ottla.coordinator.transaction.log import TRANSACTION_RECORDS
from ottla.coordinator.transaction.metadata import ProducerIdAndEpoch, TransactionMetadata
from ottla.metadata.delta import Delta
from ottla.metadata.features import TRANSACTION_VERSION
from ottla.metadata.image import ClusterImage
from ottla.metadata.persistent import PMap
from ottla.metadata.registrations import BrokerRegistration, Endpoint, PartitionRegistration, TopicImage
from ottla.model import time_slice
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, TopicPartition
from ottla.model.pending import Pending
from ottla.net.errors import ConnectionLost
from ottla.net.peers import Node
from ottla.records.batch import BatchView
from ottla.records.control import parse_end_txn_marker
from ottla.records.record import read_records
from ottla.server.context import Context
from ottla.server.handlers.logs import list_offsets
from ottla.server.handlers.share import state as share_handlers
from ottla.server.handlers.transactions import add_partitions_to_txn, write_txn_markers
from ottla.server.inter_broker import InterBroker
from ottla.server.partition_metadata import NetworkPartitionMetadataClient
from ottla.server.registry import ADVERTISED
from ottla.server.transaction.add_partitions import AddPartitionsToTxnSender, Operation, PartitionErrors
from ottla.server.transaction.markers import MarkerWriter, TransactionMarkerChannelManager
from ottla.server.transaction.service import TransactionService
from ottla.share.coordinator import SHARE_RECORDS, ShareCoordinatorService, ShareCoordinatorShard
from ottla.share.persister import DefaultStatePersister
from ottla.share.state_requests import PersisterStateManager
from ottla.storage.validator import AppendOrigin
from ottla.wire.codec import decode, encode
from ottla.wire.framing import RequestHeader
from ottla.wire.messages.groups import share_state
from ottla.wire.messages.list_offsets import ListOffsetsRequest
from ottla.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    WritableTxnMarker,
    WriteTxnMarkersRequest,
)
from ottla.wire.registry import response_class

TRANSACTIONS = "__transaction_state"
SHARE_STATE = "__share_group_state"
LISTENER = "BETWEEN"
DATA = "data"
REQUEST_TIMEOUT_MS = 30_000
V2 = 2

Ask = Callable[[Any, Any], Any]
HANDLERS: dict[type[Any], Ask] = {
    AddPartitionsToTxnRequest: add_partitions_to_txn,
    WriteTxnMarkersRequest: write_txn_markers,
    ListOffsetsRequest: list_offsets,
    share_state.InitializeShareGroupStateRequest: share_handlers.initialize_share_group_state,
    share_state.ReadShareGroupStateRequest: share_handlers.read_share_group_state,
    share_state.WriteShareGroupStateRequest: share_handlers.write_share_group_state,
    share_state.DeleteShareGroupStateRequest: share_handlers.delete_share_group_state,
    share_state.ReadShareGroupStateSummaryRequest: share_handlers.read_share_group_state_summary,
}


class Settings(dict[str, Any]):
    """As much of a broker's configuration as is asked for."""

    inter_broker_listener_name = LISTENER


class Sent(NamedTuple):
    """A request on its way from one broker to another."""

    sender: int
    to: int
    request: Any


def place(index: int, topic: str = DATA) -> TopicPartition:
    return TopicPartition(topic, index)


# ---- the network ------------------------------------------------------------------------------------------------


class Network:
    """Connections between brokers that are there at once, and hand over what the test does not hold or lose."""

    def __init__(self, scheduler: ManualScheduler) -> None:
        self.scheduler = scheduler
        self.sent: list[Sent] = []
        self.listening: dict[tuple[str, int], Broker] = {}
        self.refused: dict[int, list[Any]] = {}  # what a broker answers next, in the place of its handlers
        self._held: dict[int, list[Callable[[], None]]] = {}
        self._losing: dict[int, int] = {}

    def hold(self, broker_id: int) -> None:
        self._held.setdefault(broker_id, [])

    def release(self, broker_id: int) -> None:
        for call in self._held.pop(broker_id):
            call()
        self.scheduler.settle()

    def lose(self, broker_id: int, answers: int = 1) -> None:
        """Requests arrive and are carried out, and their connection breaks before the answer."""
        self._losing[broker_id] = answers

    def requests(self, to: int, kind: type[Any]) -> list[Any]:
        return [sent.request for sent in self.sent if sent.to == to and isinstance(sent.request, kind)]

    def deliver(self, sender: int, to: Node, request: Any, answer: Pending[Any]) -> None:
        broker = self.listening.get((to.host, to.port))
        if broker is None:
            _fail(answer, f"{to.address}: connection refused")
            return
        version = ADVERTISED[request.API_KEY][1]
        arrived, _ = decode(type(request), encode(request, version), version)
        self.sent.append(Sent(sender, broker.node_id, arrived))

        def serve() -> None:
            broker.answer(arrived, version).then(lambda done: self._return(broker.node_id, done, answer))

        held = self._held.get(broker.node_id)
        if held is None:
            self.scheduler.call_soon(serve)
        else:
            held.append(serve)

    def _return(self, broker_id: int, done: Pending[Any], answer: Pending[Any]) -> None:
        if self._losing.get(broker_id, 0):
            self._losing[broker_id] -= 1
            _fail(answer, "the connection broke")
        elif not answer.done:
            response = done.result()
            version = ADVERTISED[response.API_KEY][1]
            read, _ = decode(response_class(response.API_KEY), encode(response, version), version)
            answer.resolve(read)


class MemoryClient:
    """In the place of the NodeClient of one kind of questions."""

    def __init__(self, network: Network, node_id: int) -> None:
        self._network = network
        self._node_id = node_id
        self.forgotten: list[int] = []
        self.closed = False
        self._waiting: dict[int, list[Pending[Any]]] = {}

    def ask(self, to: Node, request: Any, *, timeout_ms: float | None = None) -> Pending[Any]:
        answer: Pending[Any] = Pending()
        self._waiting.setdefault(to.node_id, []).append(answer)
        assert timeout_ms is not None
        self._network.scheduler.call_later(timeout_ms, lambda: _fail(answer, f"no answer in {timeout_ms} ms"))
        self._network.deliver(self._node_id, to, request, answer)
        return answer

    def forget(self, node_id: int) -> None:
        self.forgotten.append(node_id)
        for answer in self._waiting.pop(node_id, []):
            _fail(answer, "the node has left")

    async def close(self) -> None:
        self.closed = True


def _fail(answer: Pending[Any], why: str) -> None:
    if not answer.done:
        answer.fail(ConnectionLost(why))


# ---- one broker -------------------------------------------------------------------------------------------------


class Led:
    """A partition of data as its leader has it: everything is committed at once."""

    leader_epoch = leader_epoch_start_offset = 0

    def __init__(self, data: SimPartition) -> None:
        self.data = data
        self.log = self

    @property
    def high_watermark(self) -> int:
        return len(self.data.entries)

    def read_bound(self, read_committed: bool) -> int:
        return self.high_watermark

    def check_leader(self, current_leader_epoch: int) -> ErrorCode:
        return ErrorCode.NONE

    def append(
        self, batch: bytearray, acks: int, now_ms: int, origin: AppendOrigin, *, transaction_version: int
    ) -> Any:
        """Nothing but markers comes this way."""
        view = BatchView(bytes(batch), 0)
        (marker,) = map(parse_end_txn_marker, read_records(view))
        self.data.mark(
            WritableTxnMarker(
                producer_id=view.producer_id,
                producer_epoch=view.producer_epoch,
                transaction_result=marker.committed,
                topics=[],
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=transaction_version,
            ),
            now_ms,
        )
        return SimpleNamespace(last_offset=self.high_watermark - 1)


class Broker:
    """The coordinators of one broker, and the partitions it leads."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.settings = Settings(SETTINGS)
        self.clients: list[MemoryClient] = []
        scheduler = cluster.scheduler
        self.brokers = InterBroker(node_id, lambda: self.settings, self._connect)  # type: ignore[arg-type, return-value]

        def timeout_ms() -> int:
            return REQUEST_TIMEOUT_MS

        self.transactions = CoordinatorRuntime(
            TRANSACTIONS,
            self._machine,
            TRANSACTION_RECORDS,
            scheduler,
            lambda: cluster.partitions(TRANSACTIONS),
        )
        writer = MarkerWriter(self, {}, scheduler, timeout_ms)  # type: ignore[arg-type]
        self.brokers.serve(WriteTxnMarkersRequest, writer.write)
        self.service = TransactionService(self.transactions, writer, self.brokers)
        self.markers = TransactionMarkerChannelManager(self.brokers, self.service, scheduler, timeout_ms)
        self.sender = AddPartitionsToTxnSender(self.service, timeout_ms)
        self.states = CoordinatorRuntime(
            SHARE_STATE,
            self._share_machine,
            SHARE_RECORDS,
            scheduler,
            lambda: cluster.partitions(SHARE_STATE),
        )
        self.share = ShareCoordinatorService(self.states, lambda: 5_000)
        share_coordinators = PersisterStateManager(self.share, self.brokers, scheduler, timeout_ms)
        self.persister = DefaultStatePersister(share_coordinators, scheduler, lambda: True)
        self.ends = NetworkPartitionMetadataClient(self, self.brokers, scheduler, timeout_ms)  # type: ignore[arg-type]

    def _connect(self, sender: str) -> MemoryClient:
        self.clients.append(MemoryClient(self.cluster.network, self.node_id))
        return self.clients[-1]

    def _machine(self, timeline: Timeline, partition: int, epoch: int) -> TransactionCoordinator:
        return TransactionCoordinator(
            TransactionContext(
                timeline,
                partition,
                epoch,
                lambda: self.settings,
                lambda: next(self.cluster.ids),
                lambda markers: self.markers.send(markers),
            )
        )

    def _share_machine(self, timeline: Timeline, partition: int, epoch: int) -> ShareCoordinatorShard:
        return ShareCoordinatorShard(timeline, lambda: self.settings, lambda offset: None)

    # ---- as the replica manager of its handlers ---------------------------------------------------------------

    def hosted(self, topic: str, index: int) -> Any:
        """Every broker has a replica of everything."""
        return self.cluster.data.get(TopicPartition(topic, index))

    def leader(self, topic: str, index: int) -> Any:
        where = TopicPartition(topic, index)
        if self.brokers.leader_of(*where) != self.node_id:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return Led(self.cluster.data[where])

    def replica(self, topic: str, index: int) -> Any:
        return self.leader(topic, index)

    # ---- answering --------------------------------------------------------------------------------------------

    def answer(self, request: Any, version: int) -> Pending[Any]:
        refused = self.cluster.network.refused.get(self.node_id)
        if refused:
            return Pending.of(refused.pop(0))
        services: Any = SimpleNamespace(
            image=lambda: self.brokers.image,
            transactions=self.service,
            share_state=self.share,
            replicas=self,
            loop=self.cluster.scheduler,
            authorizer=None,
        )
        nobody: Any = None
        context = Context(services, nobody, RequestHeader(0, version, 0, None), 0)
        answer = HANDLERS[type(request)](context, request)
        if isinstance(answer, Pending):
            return answer
        try:
            with patch.object(time_slice, "SLICE_S", float("inf")):  # on a busy machine, too
                answer.send(None)  # a coroutine that has nothing to wait for
        except StopIteration as done:
            return Pending.of(done.value)
        raise AssertionError("a handler waits")

    # ---- what clients ask -------------------------------------------------------------------------------------

    def init(self, transactional_id: str = "t") -> ProducerIdAndEpoch:
        """A producer of a transactional id that this broker coordinates."""
        outcome = self.cluster.done(self.service.init_producer_id(InitRequest(transactional_id, 60_000)))
        assert outcome.error is ErrorCode.NONE
        return ProducerIdAndEpoch(outcome.producer_id, outcome.producer_epoch)

    def end(
        self, producer: ProducerIdAndEpoch, transactional_id: str = "t", *, committed: bool = True
    ) -> ErrorCode:
        outcome = self.cluster.done(self.service.end(EndRequest(transactional_id, producer, committed, V2)))
        return outcome.error

    def row(self, transactional_id: str = "t") -> TransactionMetadata:
        return self.service.describe(transactional_id)

    def verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *partitions: TopicPartition,
        operation: Operation = Operation.ADD,
    ) -> Pending[PartitionErrors]:
        """As a produce request does that brings the first batches of a transaction."""
        asked = self.sender.ask(transactional_id, producer, partitions, operation)
        self.cluster.scheduler.settle()
        return asked

    def lead(self, runtime: CoordinatorRuntime[Any], index: int, epoch: int, log: MemoryLog) -> None:
        shard = runtime.elect(index, epoch, log)
        assert shard is not None
        for _ in replay_batches(shard, bytes(log.data)):
            pass
        runtime.loaded(shard)


# ---- the cluster ------------------------------------------------------------------------------------------------


class Cluster:
    """See the module."""

    def __init__(self, brokers: int, topics: Mapping[str, Sequence[int]]) -> None:
        self.scheduler = ManualScheduler()
        self.network = Network(self.scheduler)
        self.ids = itertools.count(1_000)
        self.image = ClusterImage(features={TRANSACTION_VERSION: V2})
        self.data = {
            TopicPartition(topic, index): SimPartition(index)
            for topic, leaders in topics.items()
            for index in range(len(leaders))
        }
        self._logs: dict[TopicPartition, MemoryLog] = {}
        self._epochs = itertools.count(1)
        self._brokers: dict[int, Broker] = {}
        for node_id in range(1, brokers + 1):
            self._brokers[node_id] = Broker(self, node_id)
        registered = {}
        for node_id, broker in self._brokers.items():
            self.network.listening["host", 9000 + node_id] = broker
            registered[node_id] = BrokerRegistration(
                id=node_id,
                epoch=1,
                incarnation_id=ZERO_UUID,
                listeners={
                    "OUTSIDE": Endpoint("OUTSIDE", "public", 9092),
                    LISTENER: Endpoint(LISTENER, "host", 9000 + node_id),
                },
                supported_features={},
                fenced=False,
            )
        self._publish(brokers=registered)
        for topic, leaders in topics.items():
            self._set_leaders(topic, leaders)
            for index, leader in enumerate(leaders):
                self._load(topic, index, leader)

    def broker(self, node_id: int) -> Broker:
        return self._brokers[node_id]

    def partitions(self, topic: str) -> int:
        found = self.image.topic(topic)
        return 1 if found is None else len(found.partitions)

    def done(self, pending: Pending[Any]) -> Any:
        self.scheduler.settle()
        return pending.result()

    def pass_ms(self, duration_ms: float) -> None:
        self.scheduler.pass_ms(duration_ms)

    # ---- changes ----------------------------------------------------------------------------------------------

    def lead(self, topic: str, index: int, leader: int) -> None:
        """Another broker leads a partition, or nobody does (-1); its coordinator finds what was written."""
        found = self.image.topic(topic)
        assert found is not None
        leaders = [partition.leader for partition in found.partitions.values()]
        before, leaders[index] = leaders[index], leader
        runtime = self._runtime(before, topic)
        if runtime is not None:
            runtime.resign(index)
        self._set_leaders(topic, leaders)
        self._load(topic, index, leader)
        self.scheduler.settle()

    def fence(self, node_id: int, *, fenced: bool = True) -> None:
        brokers = dict(self.image.brokers)
        brokers[node_id] = brokers[node_id].with_fenced(fenced)
        self._publish(brokers=brokers)

    def remove(self, node_id: int) -> None:
        self._publish(brokers={known: b for known, b in self.image.brokers.items() if known != node_id})

    def place_at(self, node_id: int, port: int) -> None:
        """The broker has moved to another port."""
        brokers = dict(self.image.brokers)
        listeners = {LISTENER: Endpoint(LISTENER, "host", port)}
        brokers[node_id] = replace(brokers[node_id], listeners=listeners)
        self.network.listening = {at: b for at, b in self.network.listening.items() if b.node_id != node_id}
        self.network.listening["host", port] = self._brokers[node_id]
        self._publish(brokers=brokers)

    def delete(self, topic: str) -> None:
        found = self.image.topic(topic)
        assert found is not None
        names = {name: t for name, t in self.image.topics.items() if name != topic}
        self._publish_topics(names)

    def _set_leaders(self, topic: str, leaders: Sequence[int]) -> None:
        replicas = tuple(self._brokers)
        partitions = {
            index: PartitionRegistration(replicas, (), replicas, (), (), leader, 0, 0, 0)
            for index, leader in enumerate(leaders)
        }
        image = TopicImage(topic, topic_id(topic), partitions)
        self._publish_topics({**self.image.topics, topic: image})

    def _publish_topics(self, topics: Mapping[str, TopicImage]) -> None:
        by_id = {topic.id: topic for topic in topics.values()}
        self._publish(topics_by_name=PMap.of(topics), topics_by_id=PMap.of(by_id))

    def _publish(self, **changes: Any) -> None:
        before, self.image = self.image, replace(self.image, **changes)
        changed = {*before.brokers, *self.image.brokers} if "brokers" in changes else set()
        delta = Delta(
            before,
            self.image,
            brokers=frozenset(b for b in changed if before.brokers.get(b) != self.image.brokers.get(b)),
        )
        for broker in self._brokers.values():
            broker.brokers.on_image(delta)
            for runtime in (broker.transactions, broker.states):
                list(runtime.on_image(self.image, delta))
        self.scheduler.settle()

    def _runtime(self, node_id: int, topic: str) -> CoordinatorRuntime[Any] | None:
        broker = self._brokers.get(node_id)
        if broker is None or topic not in (TRANSACTIONS, SHARE_STATE):
            return None
        return broker.transactions if topic == TRANSACTIONS else broker.states

    def _load(self, topic: str, index: int, leader: int) -> None:
        runtime = self._runtime(leader, topic)
        if runtime is None:
            return
        where = TopicPartition(topic, index)
        before = self._logs.get(where, MemoryLog())
        log = self._logs[where] = MemoryLog(bytes(before.data), before.log_end_offset)
        self._brokers[leader].lead(runtime, index, next(self._epochs), log)
