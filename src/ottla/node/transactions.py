"""The transaction coordinator's parts put together: its shards, who writes markers here, and who sends them out.

Owner: the Coordinators of a node.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ottla.config.broker import BrokerConfig
from ottla.coordinator.ports import Scheduler
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.coordinator.timeline import Timeline
from ottla.coordinator.transaction.context import TransactionContext
from ottla.coordinator.transaction.machine import TransactionMachine
from ottla.coordinator.transaction.records import TRANSACTION_RECORDS
from ottla.metadata.image import ClusterImage
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending
from ottla.replication.replica_manager import ReplicaManager
from ottla.server.marker_sender import MarkerSender
from ottla.server.marker_writer import MarkerWriter
from ottla.server.producer_ids import ProducerIdSource
from ottla.server.transactions import TransactionService
from ottla.wire.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse

TRANSACTIONS_TOPIC = "__transaction_state"


class LocalChannel:
    """The way to the only broker there is: this one."""

    def __init__(self, writer: MarkerWriter) -> None:
        self._writer = writer

    def write_markers(
        self, broker_id: int, request: WriteTxnMarkersRequest
    ) -> Pending[WriteTxnMarkersResponse]:
        return self._writer.write(request)


def make_transactions(
    replicas: ReplicaManager,
    runtimes: Mapping[str, CoordinatorRuntime[Any]],
    scheduler: Scheduler,
    producer_ids: ProducerIdSource,
    partitions: Callable[[], int],
    config: Callable[[], BrokerConfig],
    image: Callable[[], ClusterImage],
) -> TransactionService:
    """`runtimes` is filled as the coordinators are made: a marker for one of their partitions goes through them."""

    def machine(timeline: Timeline, partition: int, epoch: int) -> TransactionMachine:
        return TransactionMachine(
            TransactionContext(
                timeline, partition, epoch, config, producer_ids.take, lambda markers: sender.send(markers)
            )
        )

    runtime = CoordinatorRuntime(TRANSACTIONS_TOPIC, machine, TRANSACTION_RECORDS, scheduler, partitions)
    writer = MarkerWriter(replicas, runtimes, scheduler, lambda: config()["request.timeout.ms"])
    service = TransactionService(runtime, writer, image)
    sender = MarkerSender(LocalChannel(writer), service, lambda where: _leader(image(), where), scheduler)
    return service


def _leader(image: ClusterImage, where: TopicPartition) -> int | None:
    partition = image.partition(where.topic, where.partition)
    return None if partition is None else partition.leader
