"""TransactionService: the transaction coordinator as the handlers and the produce path use it.

Kafka's TransactionCoordinator, the half that faces requests; what is decided is in coordinator/transaction.

Owner: the node, on the broker's loop.
"""

from collections.abc import Collection, Iterator

from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.coordinator.shard import Brokers
from ottla.coordinator.transaction.coordinator import (
    EndRequest,
    InitRequest,
    Outcome,
    TransactionCoordinator,
    TransactionMarkers,
)
from ottla.coordinator.transaction.metadata import ProducerIdAndEpoch, TransactionMetadata
from ottla.metadata.records import NO_LEADER
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending
from ottla.server.transaction.markers import MarkerWriter

Runtime = CoordinatorRuntime[TransactionCoordinator]


class TransactionService:
    """Asks the shard of a transactional id, and knows which broker has it."""

    def __init__(self, runtime: Runtime, markers: MarkerWriter, brokers: Brokers) -> None:
        self.runtime = runtime
        self.markers = markers
        self.brokers = brokers

    # ---- what clients ask ---------------------------------------------------------------------------------

    def init_producer_id(self, ask: InitRequest) -> Pending[Outcome]:
        """Decide at once; the caller has seen to it that a producer id is at hand."""
        partition = self.runtime.partition_for(ask.transactional_id)
        return self.runtime.write(partition, lambda machine, now_ms: machine.init_producer_id(ask, now_ms))

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        client_version: int,
    ) -> Pending[None]:
        """Make partitions part of a transaction."""
        if not transactional_id:
            return Pending.failed(KafkaError(ErrorCode.INVALID_REQUEST))
        return self.runtime.write(
            self.runtime.partition_for(transactional_id),
            lambda machine, now_ms: machine.add_partitions(
                transactional_id, producer, partitions, client_version, now_ms
            ),
        )

    def verify_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Are they part of a transaction? What concerns all of them is raised."""
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        return self.runtime.read(
            self.runtime.partition_for(transactional_id),
            lambda machine, _: machine.verify_partitions(transactional_id, producer, partitions),
        )

    def end(self, ask: EndRequest) -> Pending[Outcome]:
        """Commit or abort."""
        if not ask.transactional_id:
            return Pending.failed(KafkaError(ErrorCode.INVALID_REQUEST))
        return self.runtime.write(
            self.runtime.partition_for(ask.transactional_id),
            lambda machine, now_ms: machine.end_transaction(ask, now_ms),
        )

    def describe(self, transactional_id: str) -> TransactionMetadata:
        """A transactional id as it is committed."""
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        return self.runtime.read(
            self.runtime.partition_for(transactional_id),
            lambda machine, _: machine.describe(transactional_id),
        )

    def listed(self) -> Iterator[tuple[str, TransactionMetadata]]:
        """Every transactional id that this broker coordinates; COORDINATOR_LOAD_IN_PROGRESS while some are loaded."""
        if self.runtime.loading:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        for shard in self.runtime.active_contexts():
            yield from list(shard.machine.listed().items())

    # ---- what partitions ask ------------------------------------------------------------------------------

    def coordinator_of(self, transactional_id: str) -> int:
        """The broker that coordinates a transactional id; NO_LEADER while there is none, or no topic for it yet."""
        found = self.brokers.leader_of(self.runtime.topic, self.runtime.partition_for(transactional_id))
        return NO_LEADER if found is None else found

    # ---- what the marker sender asks ----------------------------------------------------------------------

    def coordinates(self, markers: TransactionMarkers) -> bool:
        """Does this broker coordinate a transaction, in the epoch it was decided in?"""
        try:
            return self.runtime.active(markers.coordinator).epoch == markers.coordinator_epoch
        except KafkaError:
            return False

    def complete(self, markers: TransactionMarkers) -> Pending[None]:
        """Every partition has its marker."""
        return self.runtime.write(
            markers.coordinator, lambda machine, now_ms: machine.complete(markers, now_ms)
        )
