"""The transaction coordinator without a broker: a log in memory, partitions that take markers, time by hand.

world = TransactionWorld()                    # transaction.version=2; TransactionWorld(version=1) for another
producer = world.begin("t", partitions=2)     # initialized, with an open transaction
world.end("t", producer, committed=True)
world.markers.hold()                          # markers are not written from now on
world = world.reloaded()                      # the next coordinator, from what was written
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.group_world import SETTINGS, ManualScheduler, MemoryLog

from ottla.coordinator.loader import replay_batches
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.coordinator.shard import CoordinatorRecord
from ottla.coordinator.timeline import Timeline
from ottla.coordinator.transaction.coordinator import (
    EndRequest,
    InitRequest,
    Outcome,
    TransactionContext,
    TransactionCoordinator,
    TransactionMarkers,
)
from ottla.coordinator.transaction.log import TRANSACTION_RECORDS
from ottla.coordinator.transaction.metadata import ProducerIdAndEpoch, TransactionMetadata
from ottla.metadata.delta import Delta
from ottla.metadata.features import TRANSACTION_VERSION
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending
from ottla.records.batch import iter_batches
from ottla.records.record import read_records
from ottla.server.transaction.markers import TransactionMarkerChannelManager
from ottla.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

TOPIC = "__transaction_state"
TIMEOUT_MS = 60_000


def place(index: int, topic: str = "topic") -> TopicPartition:
    return TopicPartition(topic, index)


class MarkerPartitions:
    """The partitions that markers are written to, each led by the broker of its number."""

    def __init__(self) -> None:
        self.written: list[tuple[int, WritableTxnMarker]] = []
        # What single partitions say instead of taking a marker, each once or for good.
        self.refusals: dict[TopicPartition, list[ErrorCode]] = {}
        self.leaders: dict[TopicPartition, int | None] = {}
        self.unreachable = 0
        self._held: list[Callable[[], None]] | None = None

    def leader_of(self, where: TopicPartition) -> int | None:
        return self.leaders.get(where, where.partition)

    def write_markers(
        self, broker_id: int, request: WriteTxnMarkersRequest
    ) -> Pending[WriteTxnMarkersResponse]:
        if self.unreachable:
            self.unreachable -= 1
            return Pending.failed(KafkaError(ErrorCode.NETWORK_EXCEPTION, "unreachable"))
        answer: Pending[WriteTxnMarkersResponse] = Pending()
        if self._held is None:
            answer.resolve(self._write(broker_id, request))
        else:
            self._held.append(lambda: answer.resolve(self._write(broker_id, request)))
        return answer

    def hold(self) -> None:
        """Markers arrive, and nobody answers."""
        self._held = []

    def release(self) -> None:
        held, self._held = self._held or [], None
        for call in held:
            call()

    def _write(self, broker_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        (marker,) = request.markers
        self.written.append((broker_id, marker))
        topics = [
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(
                        partition_index=index,
                        error_code=int(self._refusal(TopicPartition(topic.name, index))),
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ]
        result = WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)
        return WriteTxnMarkersResponse(markers=[result])

    def _refusal(self, where: TopicPartition) -> ErrorCode:
        left = self.refusals.get(where)
        return left.pop(0) if left else ErrorCode.NONE


class TransactionWorld:
    """See the module."""

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        version: int = 2,
        log: MemoryLog | None = None,
        scheduler: ManualScheduler | None = None,
        first_producer_id: int = 1_000,
        epoch: int = 0,
    ) -> None:
        self.settings = {**SETTINGS, **(settings or {})}
        self.scheduler = scheduler or ManualScheduler()
        self.log = log or MemoryLog()
        self.markers = MarkerPartitions()
        self.ids_left = True
        self.epoch = epoch
        self.version = version
        self._ids = itertools.count(first_producer_id)
        self.runtime: CoordinatorRuntime[TransactionCoordinator] = CoordinatorRuntime(
            TOPIC, self._machine, TRANSACTION_RECORDS, self.scheduler, lambda: 1
        )
        self.sender = TransactionMarkerChannelManager(
            self.markers, self, self.markers.leader_of, self.scheduler
        )
        self.pass_ms = self.scheduler.pass_ms
        self.set_version(version)
        self._load()

    def _machine(self, timeline: Timeline, partition: int, epoch: int) -> TransactionCoordinator:
        return TransactionCoordinator(
            TransactionContext(
                timeline,
                partition,
                epoch,
                lambda: self.settings,
                self._new_producer_id,
                lambda markers: self.sender.send(markers),
            )
        )

    def _new_producer_id(self) -> int:
        if not self.ids_left:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return next(self._ids)

    def _load(self) -> None:
        shard = self.runtime.elect(0, self.epoch, self.log)
        assert shard is not None
        for _ in replay_batches(shard, bytes(self.log.data)):
            pass
        self.runtime.loaded(shard)
        self.scheduler.settle()

    def set_version(self, version: int) -> None:
        """The cluster's transaction.version."""
        self.version = version
        image = ClusterImage(features={TRANSACTION_VERSION: version})
        list(self.runtime.on_image(image, Delta(ClusterImage(), image)))

    def reloaded(self, **changes: Any) -> TransactionWorld:
        """The next coordinator, of what this one has written."""
        log = MemoryLog(bytes(self.log.data), self.log.log_end_offset)
        options: dict[str, Any] = {
            "settings": self.settings,
            "version": self.version,
            "scheduler": ManualScheduler(self.scheduler.now_ms()),
            "first_producer_id": next(self._ids),
            "epoch": self.epoch + 1,
            **changes,
        }
        return TransactionWorld(log=log, **options)

    # ---- for the marker sender ----------------------------------------------------------------------------

    def coordinates(self, markers: TransactionMarkers) -> bool:
        try:
            return self.runtime.active(0).epoch == markers.coordinator_epoch
        except KafkaError:
            return False

    def complete(self, markers: TransactionMarkers) -> Pending[None]:
        return self.runtime.write(0, lambda machine, now_ms: machine.complete(markers, now_ms))

    # ---- asking -------------------------------------------------------------------------------------------

    @property
    def machine(self) -> TransactionCoordinator:
        return self.runtime.active(0).machine

    def row(self, transactional_id: str = "t") -> TransactionMetadata:
        """The newest state."""
        found = self.machine.transactions.get(transactional_id)
        assert found is not None
        return found

    def put(self, row: TransactionMetadata, transactional_id: str = "t") -> None:
        """Begin with a state that would take long to reach."""
        timeline = self.machine.context.timeline
        timeline.recording = False
        self.machine.replay(CoordinatorRecord(_key(transactional_id), row), producer_id=-1, producer_epoch=-1)
        timeline.recording = True

    def records(self) -> list[CoordinatorRecord]:
        """All that was written, the oldest first."""
        found = []
        for batch in iter_batches(bytes(self.log.data)):
            for record in read_records(batch):
                decoded = TRANSACTION_RECORDS.decode(record.key, record.value)
                assert decoded is not None
                found.append(decoded)
        return found

    def init(
        self,
        transactional_id: str = "t",
        *,
        timeout_ms: int = TIMEOUT_MS,
        expected: tuple[int, int] | None = None,
        **more: Any,
    ) -> Pending[Outcome]:
        known = None if expected is None else ProducerIdAndEpoch(*expected)
        ask = InitRequest(transactional_id, timeout_ms, known, **more)
        return self._settled(self.runtime.write(0, lambda machine, now: machine.init_producer_id(ask, now)))

    def add(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        *partitions: TopicPartition,
        client_version: int | None = None,
    ) -> Pending[None]:
        version = self.version if client_version is None else client_version
        who = ProducerIdAndEpoch(*producer)
        return self._settled(
            self.runtime.write(
                0,
                lambda machine, now: machine.add_partitions(transactional_id, who, partitions, version, now),
            )
        )

    def end(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        *,
        committed: bool = True,
        client_version: int | None = None,
    ) -> Pending[Outcome]:
        version = self.version if client_version is None else client_version
        ask = EndRequest(transactional_id, ProducerIdAndEpoch(*producer), committed, version)
        return self._settled(self.runtime.write(0, lambda machine, now: machine.end_transaction(ask, now)))

    def _settled(self, pending: Pending[Any]) -> Pending[Any]:
        self.scheduler.settle()
        return pending

    # ---- what most tests begin with -----------------------------------------------------------------------

    def producer(self, transactional_id: str = "t", **options: Any) -> ProducerIdAndEpoch:
        """A producer that has its id."""
        outcome = self.init(transactional_id, **options).result()
        assert outcome.error is ErrorCode.NONE
        return ProducerIdAndEpoch(outcome.producer_id, outcome.producer_epoch)

    def begin(self, transactional_id: str = "t", partitions: int = 1, **options: Any) -> ProducerIdAndEpoch:
        """A producer in a transaction with that many partitions."""
        producer = self.producer(transactional_id, **options)
        self.add(transactional_id, producer, *map(place, range(partitions))).result()
        return producer

    def at_epoch(self, epoch: int, transactional_id: str = "t") -> ProducerIdAndEpoch:
        """A producer whose epochs are nearly used up."""
        producer = self.producer(transactional_id)
        self.put(self.row(transactional_id)._replace(producer_epoch=epoch), transactional_id)
        return producer._replace(producer_epoch=epoch)


def _key(transactional_id: str) -> Any:
    from ottla.wire.messages.logs.transactions import TransactionLogKey

    return TransactionLogKey(transactional_id=transactional_id)


def error_of(pending: Pending[Any]) -> ErrorCode:
    """What an answered request was refused with; NONE if it was not."""
    if pending.error is not None:
        return pending.error.code
    answer = pending.result()
    return answer.error if isinstance(answer, Outcome) else ErrorCode.NONE
