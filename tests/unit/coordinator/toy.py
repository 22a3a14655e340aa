"""A coordinator of as little as there can be: names with a number each, on a log in memory.

Its records are those of committed offsets, because those are declared already: the topic is the name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.support.group_world import ManualScheduler, MemoryLog

from ottla.coordinator.group.serde import GROUP_RECORDS
from ottla.coordinator.loader import replay_batches
from ottla.coordinator.runtime import CoordinatorContext, Producer
from ottla.coordinator.shard import CoordinatorRecord, CoordinatorResult, Effect
from ottla.coordinator.timeline import Timeline, TimelineDict
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending
from ottla.wire.messages.logs.offsets import OffsetCommitKey, OffsetCommitValue

PLACE = TopicPartition("__consumer_offsets", 3)


class Toy:
    """The machine: numbers by name, and those of transactions apart."""

    def __init__(self, timeline: Timeline) -> None:
        self.numbers: TimelineDict[str, int] = TimelineDict(timeline)
        self.in_transactions: TimelineDict[int, tuple[tuple[str, int], ...]] = TimelineDict(timeline)
        self.unloaded: KafkaError | None = None
        self.on_load: list[Effect] = []
        self.fails_on: str | None = None

    def replay(self, record: CoordinatorRecord, producer_id: int, producer_epoch: int) -> None:
        name = record.key.topic
        if name == self.fails_on:
            raise RuntimeError("a mistake in the machine")
        if producer_id >= 0:
            before = self.in_transactions.get(producer_id) or ()
            self.in_transactions[producer_id] = (*before, (name, record.value.offset))
        elif record.value is None:
            self.numbers.pop(name)
        else:
            self.numbers[name] = record.value.offset

    def replay_end_transaction(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        for name, number in self.in_transactions.pop(producer_id) or ():
            if committed:
                self.numbers[name] = number

    def on_loaded(self, image: ClusterImage, now_ms: int) -> Iterable[Effect]:
        return self.on_load

    def on_image(self, image: ClusterImage, delta: Delta, now_ms: int) -> Iterable[Effect]:
        return ()

    def on_unloaded(self, error: KafkaError) -> None:
        self.unloaded = error

    # ---- decisions ----------------------------------------------------------------------------------------

    def committed(self) -> dict[str, int]:
        return dict(self.numbers.committed_view())

    def newest(self) -> dict[str, int]:
        return dict(self.numbers.items())


def number(name: str, value: int | None, metadata: str = "") -> CoordinatorRecord:
    """The record that gives a name its number, or takes it away."""
    key = OffsetCommitKey(group="toy", topic=name, partition=0)
    if value is None:
        return CoordinatorRecord(key, None)
    return CoordinatorRecord(key, OffsetCommitValue(offset=value, metadata=metadata, commit_timestamp=0))


Operation = Callable[[Toy, int], CoordinatorResult[Any]]


def put(name: str, value: int | None, **more: Any) -> Operation:
    """Decide on a number; the answer is all numbers as they are after it."""
    return lambda toy, _: CoordinatorResult({**toy.newest(), name: value}, [number(name, value)], **more)


class ToyWorld:
    """One shard of it."""

    def __init__(self, log: MemoryLog | None = None, *, linger_ms: float = 0) -> None:
        self.scheduler = ManualScheduler()
        self.log = log or MemoryLog()
        self.lost = 0
        timeline = Timeline()
        timeline.recording = False
        self.toy = Toy(timeline)
        self.timeline = timeline
        self.shard: CoordinatorContext[Toy] = CoordinatorContext(
            PLACE,
            0,
            self.toy,
            timeline,
            GROUP_RECORDS,
            self.log,
            self.scheduler,
            linger_ms=linger_ms,
            on_lost=self._lose,
        )
        for _ in replay_batches(self.shard, bytes(self.log.data)):
            pass
        self.shard.activate(lambda: self.toy.on_loaded(ClusterImage(), 0))
        self.settle = self.scheduler.settle
        self.pass_ms = self.scheduler.pass_ms

    def _lose(self) -> None:
        self.lost += 1

    def write(
        self, operation: Operation, timeout_ms: float = 5_000, producer: Producer | None = None
    ) -> Pending[Any]:
        return self.shard.write(operation, timeout_ms, producer)

    def end(self, producer: Producer, *, committed: bool) -> Pending[None]:
        return self.shard.end_transaction(
            producer, committed=committed, coordinator_epoch=0, transaction_version=2, timeout_ms=5_000
        )

    def reloaded(self) -> ToyWorld:
        """The next coordinator, of what this one has written."""
        return ToyWorld(MemoryLog(bytes(self.log.data), self.log.log_end_offset))
