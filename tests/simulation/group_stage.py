"""The group coordinator on the stage: brokers that take its shard over from each other, and what its log says.

A broker that was deposed may not know it yet, and goes on answering. `Offsets` reads the committed log on its own,
record by record, so that what the coordinator tells can be held against it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.simulation.stage import Faults, LeaderLog, Replicated, Time, Violation
from tests.support.consumer_world import image_of
from tests.support.group_world import SETTINGS

from ottla.config.definitions import GROUP_KEYS
from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.serde import GROUP_RECORDS
from ottla.coordinator.group.shard import GroupCoordinatorShard
from ottla.coordinator.loader import replay_batches
from ottla.coordinator.runtime import CoordinatorContext, CoordinatorRuntime, Producer
from ottla.coordinator.timeline import Timeline
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.model.pending import Pending
from ottla.records.batch import BatchView
from ottla.records.control import ControlType, parse_control_type
from ottla.records.record import read_records
from ottla.wire.messages.logs.offsets import ConsumerGroupMetadataKey, GroupMetadataKey, OffsetCommitKey

GROUP = "g"
TOPICS = {"t": 4, "u": 2}
GROUP_SETTINGS: dict[str, Any] = {
    **SETTINGS,
    "group.initial.rebalance.delay.ms": 500,
    "group.consumer.session.timeout.ms": 9_000,
    "group.consumer.min.session.timeout.ms": 9_000,
    "group.consumer.heartbeat.interval.ms": 3_000,
    "group.consumer.migration.policy": "bidirectional",
}
NO_OFFSET = -1
FIRST_EPOCH = 2  # that of a consumer group with its first member, after the one that makes the group
Place = tuple[str, int]


class Offsets:
    """What the committed log says of the group's offsets, and said before: for each place all values in their order."""

    def __init__(self, replicated: Replicated) -> None:
        self._replicated = replicated
        self._read = 0
        self._values: dict[Place, list[int]] = {}
        self._records: dict[Place, int] = {}  # where the value that counts stands
        self._open: dict[int, dict[Place, tuple[int, int]]] = {}

    def catch_up(self) -> None:
        batches = self._replicated.batches
        while (
            self._read < len(batches) and batches[self._read].next_offset <= self._replicated.high_watermark
        ):
            self._take(batches[self._read])
            self._read += 1

    def _take(self, batch: BatchView) -> None:
        for record in read_records(batch):
            if batch.is_control:
                self._end(batch.producer_id, parse_control_type(record) is ControlType.COMMIT)
                continue
            decoded = GROUP_RECORDS.decode(record.key, record.value)
            if decoded is None or not isinstance(decoded.key, OffsetCommitKey):
                continue
            place = (decoded.key.topic, decoded.key.partition)
            if decoded.value is None:
                self._put(place, NO_OFFSET, record.offset)
                for pending in self._open.values():
                    pending.pop(place, None)
            elif batch.is_transactional:
                self._open.setdefault(batch.producer_id, {})[place] = (decoded.value.offset, record.offset)
            else:
                self._put(place, decoded.value.offset, record.offset)

    def _end(self, producer_id: int, committed: bool) -> None:
        for place, (value, record_offset) in self._open.pop(producer_id, {}).items():
            newest = self.history(place)[-1] == NO_OFFSET or record_offset > self._records[place]
            if committed and newest:
                self._put(place, value, record_offset)

    def _put(self, place: Place, value: int, record_offset: int) -> None:
        self.history(place).append(value)
        self._records[place] = record_offset

    def history(self, place: Place) -> list[int]:
        return self._values.setdefault(place, [NO_OFFSET])

    def version(self, place: Place, value: int, floor: int, what: str) -> int:
        """Which of a place's values this is, not before the `floor`th."""
        self.catch_up()
        try:
            return self.history(place).index(value, floor)
        except ValueError:
            known = self.history(place)
            raise Violation(
                f"{what} {place} at {value}; since then it was {known[floor:]} (before {known[:floor]})"
            ) from None


class Epochs:
    """The epochs and generations of the group as the committed log has them: they grow while it lives.

    Another life begins with a group that has no members: a classic one that is made anew, or one of the new protocol
    in the place of a classic group that nobody was in.
    """

    def __init__(self, replicated: Replicated) -> None:
        self._replicated = replicated
        self._read = 0
        self.life = 0
        self.downgrades = 0
        self.epoch = 0
        self._kind: type[Any] | None = None
        self._inhabited = False

    def catch_up(self) -> None:
        batches = self._replicated.batches
        while (
            self._read < len(batches) and batches[self._read].next_offset <= self._replicated.high_watermark
        ):
            if not batches[self._read].is_control:
                for record in read_records(batches[self._read]):
                    self._take(GROUP_RECORDS.decode(record.key, record.value))
            self._read += 1

    def _take(self, decoded: Any) -> None:
        if decoded is None or decoded.value is None:
            return
        if isinstance(decoded.key, GroupMetadataKey):
            members = bool(decoded.value.members)
            self.downgrades += members and self._kind is ConsumerGroupMetadataKey
            self._grow(GroupMetadataKey, decoded.value.generation, anew=not members)
            self._inhabited = members
        elif isinstance(decoded.key, ConsumerGroupMetadataKey):
            # That the last one left a classic group may be known without a record, if that was refused.
            anew = not self._inhabited or decoded.value.epoch == FIRST_EPOCH
            self._grow(ConsumerGroupMetadataKey, decoded.value.epoch, anew=anew)
            self._inhabited = True

    def _grow(self, kind: type[Any], epoch: int, *, anew: bool) -> None:
        if anew and (kind is not self._kind or epoch == 0):
            self.life += 1
        elif epoch < self.epoch:
            raise Violation(f"the group was in epoch {self.epoch}, and is in {epoch}")
        self._kind, self.epoch = kind, epoch


class Broker(NamedTuple):
    """One that leads, or has led, the shard."""

    runtime: CoordinatorRuntime[GroupCoordinatorShard]
    log: LeaderLog


class Coordinators:
    """All brokers that have coordinated the group; clients ask the newest, or one that they still believe in."""

    def __init__(
        self,
        time: Time,
        faults: Faults,
        settings: Mapping[str, Any] | None = None,
        leader: Callable[[Replicated, int], LeaderLog] = LeaderLog,
    ) -> None:
        self.time = time
        self.faults = faults
        self._leader = leader
        self.settings = {**GROUP_SETTINGS, **(settings or {})}
        self.replicated = Replicated(time, faults)
        self._ids = itertools.count(1)
        self.image = image_of(TOPICS, 1)
        self.brokers: list[Broker] = []
        self.move()

    def _machine(self, timeline: Timeline, partition: int, epoch: int) -> GroupCoordinatorShard:
        return GroupCoordinatorShard(
            GroupContext(timeline, lambda: self.settings, self._group_config, self._new_uuid)
        )

    def _group_config(self, group_id: str) -> Mapping[str, Any]:
        return {
            name: self.settings[key.synonym] if key.synonym else key.default
            for name, key in GROUP_KEYS.items()
        }

    def _new_uuid(self) -> Uuid:
        return Uuid(next(self._ids).to_bytes(16, "big"))

    # ---- leadership ---------------------------------------------------------------------------------------

    def move(self) -> None:
        """Another broker leads; it has yet to load, and the one before has yet to hear of it."""
        runtime: CoordinatorRuntime[GroupCoordinatorShard] = CoordinatorRuntime(
            "__consumer_offsets", self._machine, GROUP_RECORDS, self.time, lambda: 1
        )
        list(runtime.on_image(self.image, Delta(ClusterImage(), self.image)))
        runtime.on_lost = lambda _: self._never()
        log = self.replicated.elect(self._leader)
        for broker in self.brokers:
            self.time.call_later(self.faults.random.choice((0, 20, 3_000)), lambda old=broker: _resign(old))
        self.brokers = [*self.brokers[-1:], Broker(runtime, log)]
        shard = runtime.elect(0, log.epoch, log)
        assert shard is not None
        for _ in replay_batches(shard, self.replicated.data):
            pass
        self.time.call_later(self.faults.random.choice((0, 30, 1_000)), lambda: runtime.loaded(shard))

    @staticmethod
    def _never() -> None:
        raise Violation("a shard found records that it did not write")

    @property
    def broker(self) -> Broker:
        return self.brokers[-1]

    @property
    def shard(self) -> CoordinatorContext[GroupCoordinatorShard] | None:
        """The newest broker's, once it is loaded."""
        return next(self.broker.runtime.active_contexts(), None)

    def believed(self) -> Broker:
        """Whom a client takes for the coordinator."""
        return self.faults.random.choice(self.brokers) if self.faults.moves else self.broker

    # ---- asking -------------------------------------------------------------------------------------------

    def write(
        self, operation: Callable[[GroupCoordinatorShard, int], Any], producer: Producer | None = None
    ) -> Pending[Any]:
        return self.believed().runtime.write(0, operation, producer=producer)

    def end_transaction(self, producer: Producer, committed: bool) -> Pending[None]:
        return self.believed().runtime.end_transaction(
            0, producer, committed=committed, coordinator_epoch=0, transaction_version=2
        )


def _resign(broker: Broker) -> None:
    broker.runtime.resign(0)
    broker.log.resign()


def code_of(value: Any, error: KafkaError | None) -> ErrorCode:
    """What an answer says."""
    if error is not None:
        return error.code
    return ErrorCode(getattr(value, "error_code", 0))
