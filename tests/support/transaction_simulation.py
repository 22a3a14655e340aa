"""The parts of a simulated cluster of transactions: partitions, a coordinator that moves, a network that loses things.

Partitions keep what Ottla's logs know of producers (ProducerStateManager, verifications and all) and remember every
record; the coordinator is Ottla's machine on Ottla's runtime, over a log that refuses, lags and loses its tail when
the coordinator moves. Owner: tests/simulation/test_transaction_simulation.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.support.batches import set_offset_and_epoch
from tests.support.group_world import SETTINGS, ManualScheduler

from ottla.coordinator.loader import replay_batches
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.coordinator.timeline import Timeline
from ottla.coordinator.transaction.coordinator import (
    TransactionContext,
    TransactionCoordinator,
    TransactionMarkers,
)
from ottla.coordinator.transaction.log import TRANSACTION_RECORDS
from ottla.coordinator.transaction.metadata import ProducerIdAndEpoch
from ottla.metadata.delta import Delta
from ottla.metadata.features import TRANSACTION_VERSION
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending
from ottla.records.batch import TRANSACTIONAL_FLAG, BatchView, iter_batches
from ottla.records.control import end_txn_marker
from ottla.server.transaction.markers import TransactionMarkerChannelManager
from ottla.storage.producers.state import ProducerStateManager, checked, stage_batches
from ottla.storage.producers.verification import Verification
from ottla.storage.validator import AppendOrigin, CheckedBatch
from ottla.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

TOPIC = "__transaction_state"
DAY_MS = 86_400_000
PATIENCE_MS = 400


class Entry(NamedTuple):
    """A record of a partition: data of a transaction, or the marker that ends one."""

    producer_id: int
    # Which transaction the client meant; None for a marker.
    transaction: int | None
    committed: bool | None = None


class SimPartition:
    """One partition of data, with a leader that never moves."""

    def __init__(self, index: int) -> None:
        self.where = TopicPartition("data", index)
        self.entries: list[Entry] = []
        self.producers = ProducerStateManager(self.where, Path("nowhere"), expiration_ms=DAY_MS)

    def start_verification(
        self, who: ProducerIdAndEpoch, sequence: int, supports_epoch_bump: bool, now_ms: int
    ) -> Verification | None:
        return self.producers.verifications.start(*_order(who, sequence), supports_epoch_bump, now_ms)

    def append(
        self, transaction: int, who: ProducerIdAndEpoch, sequence: int, proof: Verification | None
    ) -> None:
        """A batch of one record, or what its producer is told."""
        offset = len(self.entries)
        batch = CheckedBatch(0, 70, offset, 0, TRANSACTIONAL_FLAG, 0, 0, *who, sequence)
        update = stage_batches(self.producers, b"", [batch], AppendOrigin.CLIENT, 0, proof)
        if update.duplicate is not None:
            return
        for staged in update.staged.values():
            self.producers.apply(staged)
        self.entries.append(Entry(who.producer_id, transaction))

    def mark(self, marker: WritableTxnMarker, now_ms: int) -> None:
        """The end of a producer's transaction, or what its coordinator is told."""
        data = end_txn_marker(
            committed=marker.transaction_result,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp_ms=now_ms,
            base_offset=len(self.entries),
        )
        view = BatchView(data, 0)
        origin = AppendOrigin.COORDINATOR
        update = stage_batches(self.producers, data, [checked(view)], origin, marker.transaction_version)
        for staged in update.staged.values():
            self.producers.apply(staged)
        for ended in update.completed:
            self.producers.complete(ended)
        self.entries.append(Entry(marker.producer_id, None, marker.transaction_result))
        self.producers.on_high_watermark(len(self.entries))

    @property
    def last_stable_offset(self) -> int:
        unstable = self.producers.first_unstable_offset
        return len(self.entries) if unstable is None else unstable

    def outcomes(self) -> dict[int, set[bool | None]]:
        """For every transaction with records here: how its records were ended; None while they are not."""
        found: dict[int, set[bool | None]] = {}
        decided: dict[int, bool | None] = {}
        for entry in reversed(self.entries):
            if entry.transaction is None:
                decided[entry.producer_id] = entry.committed
            else:
                found.setdefault(entry.transaction, set()).add(decided.get(entry.producer_id))
        return found

    def committed(self) -> list[int]:
        """What a reader of committed records sees, by transaction."""
        decided: dict[int, bool | None] = {}
        seen = []
        for offset in range(len(self.entries) - 1, -1, -1):
            entry = self.entries[offset]
            if entry.transaction is None:
                decided[entry.producer_id] = entry.committed
            elif offset < self.last_stable_offset and decided.get(entry.producer_id):
                seen.append(entry.transaction)
        return seen[::-1]


def _order(who: ProducerIdAndEpoch, sequence: int) -> tuple[int, int, int]:
    return who.producer_id, sequence, who.producer_epoch


class SimLog:
    """The coordinator's partition: it may refuse, its high watermark lags, and a new leader lacks its tail."""

    max_batch_bytes = 1 << 20

    def __init__(self, rng: Random, scheduler: ManualScheduler) -> None:
        self._rng, self._scheduler = rng, scheduler
        self.batches: list[bytes] = []
        self.log_end_offset = 0
        self.high_watermark = 0
        self.refusing = False
        self._waiting: list[tuple[int, Callable[[ErrorCode], None]]] = []

    def append(self, batch: bytearray, now_ms: int, transaction_version: int = 0) -> int:
        if self.refusing:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "refused")
        set_offset_and_epoch(batch, 0, self.log_end_offset, 0)
        self.batches.append(bytes(batch))
        self.log_end_offset = end = next(iter_batches(batch)).next_offset
        self._scheduler.call_later(self._rng.choice([0, 1, 5, 80]), lambda: self._replicated(end))
        return end

    def when_committed(self, offset: int, call: Callable[[ErrorCode], None]) -> None:
        if self.high_watermark >= offset:
            call(ErrorCode.NONE)
        else:
            self._waiting.append((offset, call))

    def _replicated(self, offset: int) -> None:
        if offset <= self.high_watermark or offset > self.log_end_offset:
            return
        self.high_watermark = offset
        due = [call for wanted, call in self._waiting if wanted <= offset]
        self._waiting = [(wanted, call) for wanted, call in self._waiting if wanted > offset]
        for call in due:
            call(ErrorCode.NONE)

    def moved(self) -> SimLog:
        """The same partition with its new leader, which has only what was committed."""
        log = SimLog(self._rng, self._scheduler)
        log.batches = [b for b in self.batches if next(iter_batches(b)).next_offset <= self.high_watermark]
        log.log_end_offset = log.high_watermark = self.high_watermark
        self._waiting.clear()
        return log


class SimCoordinator:
    """Whoever coordinates all transactions at the moment."""

    def __init__(self, rng: Random, scheduler: ManualScheduler, partitions: list[SimPartition]) -> None:
        self._rng, self._scheduler, self._partitions = rng, scheduler, partitions
        self._ids = itertools.count(1)
        self.log = SimLog(rng, scheduler)
        self.epoch = -1
        self.losing = 0.0  # the share of markers, and of their answers, that get lost
        settings = {**SETTINGS, "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
        self._settings: dict[str, Any] = settings
        self.runtime: CoordinatorRuntime[TransactionCoordinator]
        self.sender: TransactionMarkerChannelManager
        self.move()

    def move(self) -> None:
        """To another broker: what was not committed is gone, and so is everything that was only in memory."""
        if self.epoch >= 0:
            self.runtime.resign(0)
            self.log = self.log.moved()
        self.epoch += 1
        runtime = CoordinatorRuntime(TOPIC, self._machine, TRANSACTION_RECORDS, self._scheduler, lambda: 1)
        self.runtime = runtime
        self.sender = TransactionMarkerChannelManager(self, self, self._scheduler, lambda: PATIENCE_MS)
        image = ClusterImage(features={TRANSACTION_VERSION: 2})
        list(runtime.on_image(image, Delta(ClusterImage(), image)))
        shard = runtime.elect(0, self.epoch, self.log)
        assert shard is not None
        for batch in self.log.batches:
            for _ in replay_batches(shard, batch):
                pass
        runtime.loaded(shard)

    def _machine(self, timeline: Timeline, partition: int, epoch: int) -> TransactionCoordinator:
        return TransactionCoordinator(
            TransactionContext(
                timeline,
                partition,
                epoch,
                lambda: self._settings,
                lambda: next(self._ids),
                lambda markers: self.sender.send(markers),
            )
        )

    # ---- for the marker sender ----------------------------------------------------------------------------

    def coordinates(self, markers: TransactionMarkers) -> bool:
        return markers.coordinator_epoch == self.epoch

    def complete(self, markers: TransactionMarkers) -> Pending[None]:
        return self.runtime.write(0, lambda machine, now_ms: machine.complete(markers, now_ms))

    node_id = -1  # it leads no partition of data itself

    def leader_of(self, topic: str, partition: int) -> int:
        return partition

    def ask(
        self, broker_id: int, request: WriteTxnMarkersRequest, timeout_ms: float
    ) -> Pending[WriteTxnMarkersResponse]:
        """Over the network: late, lost on the way there or back, or twice (where a second one can be told apart)."""
        answer: Pending[WriteTxnMarkersResponse] = Pending()
        rng = self._rng

        def arrive() -> None:
            response = self._mark(broker_id, request.markers)
            if rng.random() >= self.losing:
                self._scheduler.call_later(rng.choice([0, 2, 30]), lambda: _resolve(answer, response))

        if rng.random() >= self.losing:
            self._scheduler.call_later(rng.choice([0, 1, 20, 150]), arrive)
        if rng.random() < 0.1:
            again = [marker for marker in request.markers if marker.transaction_version >= 2]
            self._scheduler.call_later(rng.choice([5, 100, 1_000]), lambda: self._mark(broker_id, again))
        lost = KafkaError(ErrorCode.NETWORK_EXCEPTION, "lost")
        self._scheduler.call_later(timeout_ms, lambda: None if answer.done else answer.fail(lost))
        return answer

    def _mark(self, broker_id: int, markers: list[WritableTxnMarker]) -> WriteTxnMarkersResponse:
        return WriteTxnMarkersResponse(markers=[self._mark_one(broker_id, marker) for marker in markers])

    def _mark_one(self, broker_id: int, marker: WritableTxnMarker) -> WritableTxnMarkerResult:
        code = ErrorCode.NONE
        try:
            self._partitions[broker_id].mark(marker, self._scheduler.now_ms())
        except KafkaError as error:
            code = error.code
        row = WritableTxnMarkerPartitionResult(partition_index=broker_id, error_code=int(code))
        topic = WritableTxnMarkerTopicResult(name="data", partitions=[row])
        return WritableTxnMarkerResult(producer_id=marker.producer_id, topics=[topic])


def _resolve(answer: Pending[Any], value: Any) -> None:
    if not answer.done:
        answer.resolve(value)
