"""Transactions on the stage: partitions that know their producers, transaction coordinators that move and are other
brokers than those of the partitions, what these ask of one another; and what the committed logs say became of every
transaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from tests.simulation.stage import Faults, LeaderLog, Replicated, Time, Violation
from tests.support.batches import set_offset_and_epoch
from tests.support.group_world import SETTINGS

from ottla.coordinator.group.serde import GROUP_RECORDS
from ottla.coordinator.loader import replay_batches
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.coordinator.shard import Brokers
from ottla.coordinator.timeline import Timeline
from ottla.coordinator.transaction.coordinator import (
    TransactionContext,
    TransactionCoordinator,
    TransactionMarkers,
)
from ottla.coordinator.transaction.log import TRANSACTION_RECORDS
from ottla.coordinator.transaction.metadata import PREPARED
from ottla.metadata.delta import Delta
from ottla.metadata.features import TRANSACTION_VERSION
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending
from ottla.records.batch import BatchView, iter_batches
from ottla.records.control import ControlType, end_txn_marker, parse_control_type
from ottla.records.record import read_records
from ottla.server.handlers.transactions import add_partitions_to_txn
from ottla.server.transaction.add_partitions import AddPartitionsToTxnSender
from ottla.server.transaction.markers import TransactionMarkerChannelManager
from ottla.server.transaction.service import TransactionService
from ottla.storage.producers.state import ProducerStateManager, checked, replay_batch, stage_batches
from ottla.storage.producers.verification import NOT_CHECKED, Verification
from ottla.storage.validator import AppendOrigin
from ottla.wire.messages.transactions import AddPartitionsToTxnRequest, WritableTxnMarker

OFFSETS = TopicPartition("__consumer_offsets", 0)
TRANSACTIONS = TopicPartition("__transaction_state", 0)
# The version of AddPartitionsToTxn in which brokers ask.
FROM_BROKERS = 5
# How long a broker waits for the answer of another.
ANSWER_MS = 2_000
# Markers are written to the partitions of the simulation.
NO_WRITER: Any = None
DAY_MS = 86_400_000
TRANSACTION_SETTINGS: dict[str, Any] = {
    **SETTINGS,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
}


class ProducerLog(LeaderLog):
    """A leader's log that judges batches as Ottla's do, and knows what is stable."""

    def __init__(self, replicated: Replicated, epoch: int, where: TopicPartition = OFFSETS) -> None:
        super().__init__(replicated, epoch)
        self.producers = ProducerStateManager(where, Path("nowhere"), expiration_ms=DAY_MS)
        for view in replicated.batches:
            for txn in replay_batch(self.producers, view):
                self.producers.complete(txn)
        self.producers.on_high_watermark(self.high_watermark)

    def append(
        self,
        batch: bytearray,
        now_ms: int,
        transaction_version: int = 0,
        origin: AppendOrigin = AppendOrigin.COORDINATOR,
        proof: Verification | None = NOT_CHECKED,
    ) -> int:
        set_offset_and_epoch(batch, 0, self.log_end_offset, self.epoch)
        view = next(iter_batches(batch))
        update = stage_batches(self.producers, batch, [checked(view)], origin, transaction_version, proof)
        if update.duplicate is not None:
            return update.duplicate.last_offset + 1
        end = super().append(batch, now_ms)
        for staged in update.staged.values():
            self.producers.apply(staged)
        for txn in update.completed:
            self.producers.complete(txn)
        return end

    def call_back(self) -> None:
        self.producers.on_high_watermark(self.high_watermark)
        super().call_back()

    def mark(self, marker: WritableTxnMarker, now_ms: int) -> int:
        batch = end_txn_marker(
            committed=marker.transaction_result,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp_ms=now_ms,
        )
        return self.append(batch, now_ms, marker.transaction_version)

    def committed(self, end: int) -> Pending[None]:
        """When everything below `end` is committed, or never will be here."""
        answer: Pending[None] = Pending()

        def settled(code: ErrorCode) -> None:
            if self.leads and code is ErrorCode.NONE:
                answer.resolve(None)
            else:
                answer.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

        self.when_committed(end, settled)
        return answer

    # ---- as the verification sees a partition's log -------------------------------------------------------

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool, now_ms: int
    ) -> Verification | None:
        return self.producers.verifications.start(producer_id, sequence, epoch, supports_epoch_bump, now_ms)

    def check_verified(self, producer_id: int, epoch: int, shown: Verification | None) -> None:
        self.producers.verifications.check(producer_id, epoch, shown)

    @property
    def last_stable_offset(self) -> int:
        unstable = self.producers.first_unstable_offset
        return self.high_watermark if unstable is None else min(unstable, self.high_watermark)


class Hosted(NamedTuple):
    """A partition at its leader."""

    topic_partition: TopicPartition
    log: ProducerLog


class Outcomes:
    """What the committed part of a partition's log says became of every transaction."""

    def __init__(self, replicated: Replicated) -> None:
        self.replicated = replicated
        self._read = 0
        self._open: dict[int, list[tuple[int, int]]] = {}
        self.ended: dict[int, list[bool]] = {}  # for each record of the transaction

    def catch_up(self) -> None:
        batches = self.replicated.batches
        while self._read < len(batches) and batches[self._read].next_offset <= self.replicated.high_watermark:
            self._take(batches[self._read])
            self._read += 1

    def _take(self, batch: BatchView) -> None:
        for record in read_records(batch):
            if batch.is_control:
                committed = parse_control_type(record) is ControlType.COMMIT
                for _, transaction in self._open.pop(batch.producer_id, []):
                    self.ended.setdefault(transaction, []).append(committed)
            elif batch.is_transactional:
                entry = (record.offset, self._transaction(record))
                self._open.setdefault(batch.producer_id, []).append(entry)

    @staticmethod
    def _transaction(record: Any) -> int:
        if record.key is None:
            return int(record.value)
        decoded = GROUP_RECORDS.decode(record.key, record.value)
        assert decoded is not None
        return int(decoded.value.offset)  # type: ignore[union-attr]

    @property
    def last_stable_offset(self) -> int:
        first = [found[0][0] for found in self._open.values()]
        return min([*first, self.replicated.high_watermark])


class TransactionBroker:
    """One that coordinates all transactions, or has."""

    def __init__(self, owner: TransactionCoordinators, log: LeaderLog) -> None:
        self.log = log
        self.runtime: CoordinatorRuntime[TransactionCoordinator] = CoordinatorRuntime(
            TRANSACTIONS.topic, self._machine, TRANSACTION_RECORDS, owner.time, lambda: 1
        )
        image = ClusterImage(features={TRANSACTION_VERSION: 2})
        list(self.runtime.on_image(image, Delta(ClusterImage(), image)))
        self.service = TransactionService(self.runtime, NO_WRITER, owner.others)
        self.sender = TransactionMarkerChannelManager(
            owner.others, self.service, owner.time, lambda: ANSWER_MS
        )
        self._owner = owner

    def _machine(self, timeline: Timeline, partition: int, epoch: int) -> TransactionCoordinator:
        ids = self._owner.ids
        return TransactionCoordinator(
            TransactionContext(
                timeline, partition, epoch, lambda: TRANSACTION_SETTINGS, lambda: next(ids), self._send
            )
        )

    def _send(self, markers: TransactionMarkers) -> None:
        row = self.runtime.active(0).machine.transactions.committed(markers.transactional_id)
        if row is None or row.state not in PREPARED:
            raise Violation(f"markers of {markers.transactional_id}, whose end is not committed: {row}")
        self.sender.send(markers)


class PartitionsBroker:
    """One that leads a partition and coordinates nothing: it asks for what is written to it in transactions."""

    def __init__(self, brokers: Brokers, time: Time) -> None:
        runtime: CoordinatorRuntime[TransactionCoordinator] = CoordinatorRuntime(
            TRANSACTIONS.topic, _never, TRANSACTION_RECORDS, time, lambda: 1
        )
        service = TransactionService(runtime, NO_WRITER, brokers)
        self.sender = AddPartitionsToTxnSender(service, lambda: ANSWER_MS)


def _never(timeline: Timeline, partition: int, epoch: int) -> TransactionCoordinator:
    raise AssertionError("it coordinates nothing")


class TransactionCoordinators:
    """All of them, in their order; the one before the newest may not know yet."""

    def __init__(self, time: Time, faults: Faults, others: Brokers) -> None:
        self.time = time
        self.faults = faults
        self.others = others
        self.ids = itertools.count(1_000)
        self.replicated = Replicated(time, faults)
        self.brokers: list[TransactionBroker] = []
        self.move()

    def move(self) -> None:
        log = self.replicated.elect(LeaderLog)
        for broker in self.brokers:
            self.time.call_later(self.faults.random.choice((0, 20, 3_000)), lambda old=broker: _resign(old))
        newest = TransactionBroker(self, log)
        self.brokers = [*self.brokers[-1:], newest]
        shard = newest.runtime.elect(0, log.epoch, log)
        assert shard is not None
        for _ in replay_batches(shard, self.replicated.data):
            pass
        self.time.call_later(self.faults.random.choice((0, 30, 1_000)), lambda: newest.runtime.loaded(shard))

    def believed(self) -> TransactionBroker:
        return self.faults.random.choice(self.brokers) if self.faults.moves else self.brokers[-1]

    def write(self, operation: Callable[[TransactionCoordinator, int], Any]) -> Pending[Any]:
        return self.believed().runtime.write(0, operation)

    def add_partitions(self, request: AddPartitionsToTxnRequest) -> Pending[Any]:
        """What the handler of the broker that is taken for the coordinator answers another broker."""
        services = SimpleNamespace(
            image=lambda: _EVERYTHING, transactions=self.believed().service, authorizer=None
        )
        context: Any = SimpleNamespace(version=FROM_BROKERS, node=services)
        return add_partitions_to_txn(context, request)


class _Everything:
    """An image in which every partition exists."""

    def partition(self, topic: str, partition: int) -> object:
        return self


_EVERYTHING = _Everything()


def _resign(broker: TransactionBroker) -> None:
    broker.runtime.resign(0)
    broker.log.resign()
