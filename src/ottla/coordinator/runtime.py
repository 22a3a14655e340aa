"""The shards of one coordinator: found by key, made when this broker becomes the leader of their partition.

Purpose: everything between a request's handler and a machine's decision. `write` decides on the newest state and
answers when that is committed; `read` looks at committed state only and answers at once. A shard is loaded by
replaying its partition, in slices that let the loop breathe, while the others answer.

Owner: the node, one runtime for groups, one for transactions, one for share state; on the broker's loop.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from ottla.coordinator.partitioning import partition_for
from ottla.coordinator.ports import Machine, Scheduler, ShardLog
from ottla.coordinator.result import Result
from ottla.coordinator.serde import RecordSerde
from ottla.coordinator.shard import Producer, Shard
from ottla.coordinator.shard_state import ShardState
from ottla.coordinator.timeline import Timeline
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending
from ottla.model.tasks import report

log = logging.getLogger("ottla.coordinator")

M = TypeVar("M", bound=Machine)
M_co = TypeVar("M_co", bound=Machine, covariant=True)
T = TypeVar("T")

DEFAULT_WRITE_TIMEOUT_MS = 5_000
_COORDINATING = (ShardState.LOADING, ShardState.ACTIVE)


class MachineFactory(Protocol[M_co]):
    """Makes the empty state of a shard."""

    def __call__(self, timeline: Timeline, partition: int, epoch: int) -> M_co: ...


class CoordinatorRuntime(Generic[M]):
    """See the module."""

    def __init__(
        self,
        topic: str,
        make: MachineFactory[M],
        serde: RecordSerde,
        scheduler: Scheduler,
        partitions: Callable[[], int],
        compression: Callable[[], int] = lambda: 0,
        linger_ms: Callable[[], int] = lambda: 0,
        write_timeout_ms: Callable[[], int] = lambda: DEFAULT_WRITE_TIMEOUT_MS,
    ) -> None:
        """`partitions` is how many the topic has, or will have once it is made."""
        self.topic = topic
        self._make = make
        self._serde = serde
        self._scheduler = scheduler
        self._partitions = partitions
        self._compression = compression
        self._linger_ms = linger_ms
        self._write_timeout_ms = write_timeout_ms
        # Is told of a partition whose shard has closed itself, and is to be led anew.
        self.on_lost: Callable[[int], None] = lambda partition: None
        self._shards: dict[int, Shard[M]] = {}
        self._image = ClusterImage()

    # ---- asking -------------------------------------------------------------------------------------------

    def partition_for(self, key: str) -> int:
        """The shard of a group, a transactional id or a share partition."""
        return partition_for(key, self._partitions())

    def write(
        self,
        partition: int,
        operation: Callable[[M, int], Result[T]],
        *,
        timeout_ms: float | None = None,
        producer: Producer | None = None,
    ) -> Pending[T]:
        """Decide by `operation(machine, now_ms)`; the answer comes when the decision is committed.

        It is told as not available when that takes longer than `timeout_ms`, or than the runtime's own.
        """
        try:
            shard = self.active(partition)
        except KafkaError as error:
            return Pending.failed(error)
        return shard.write(operation, self._timeout(timeout_ms), producer)

    def _timeout(self, asked_ms: float | None) -> float:
        return self._write_timeout_ms() if asked_ms is None else asked_ms

    def read(self, partition: int, operation: Callable[[M, int], T]) -> T:
        """Ask the committed state; raises where this broker does not coordinate."""
        return operation(self.active(partition).machine, self._scheduler.now_ms())

    def partitions(self) -> list[int]:
        """Those that this broker coordinates, or is loading."""
        return [index for index, shard in self._shards.items() if shard.state in _COORDINATING]

    def end_transaction(
        self,
        partition: int,
        producer: Producer,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
        timeout_ms: float | None = None,
    ) -> Pending[None]:
        """Write the marker of a transaction that has committed offsets in this shard."""
        try:
            shard = self.active(partition)
        except KafkaError as error:
            return Pending.failed(error)
        return shard.end_transaction(
            producer,
            committed=committed,
            coordinator_epoch=coordinator_epoch,
            transaction_version=transaction_version,
            timeout_ms=self._timeout(timeout_ms),
        )

    def active(self, partition: int) -> Shard[M]:
        """The shard, if it can answer; else the error that tells a client what to do."""
        shard = self._shards.get(partition)
        if shard is None or shard.state in (ShardState.FAILED, ShardState.CLOSED):
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"this broker does not lead {self.topic}-{partition}")
        if shard.state is ShardState.LOADING:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self.topic}-{partition} is loading")
        return shard

    def settled(self, partition: int) -> Pending[None]:
        """Told when a shard that is loading is not any more, whatever came of it; at once where there is none."""
        shard = self._shards.get(partition)
        return Pending.of(None) if shard is None else shard.settled

    def active_shards(self) -> Iterator[Shard[M]]:
        """Those that can answer now."""
        return iter([shard for shard in self._shards.values() if shard.state is ShardState.ACTIVE])

    @property
    def loading(self) -> bool:
        """Is any shard still being replayed?"""
        return any(shard.state is ShardState.LOADING for shard in self._shards.values())

    # ---- following the leadership -------------------------------------------------------------------------

    def elect(self, partition: int, epoch: int, shard_log: ShardLog) -> Shard[M] | None:
        """This broker leads a partition: a new shard to be loaded; None if it is there already, and has not failed."""
        present = self._shards.get(partition)
        if present is not None:
            if present.epoch >= epoch and present.state in _COORDINATING:
                return None
            self.resign(partition)
        timeline = Timeline()
        timeline.recording = False
        shard = Shard(
            TopicPartition(self.topic, partition),
            epoch,
            self._make(timeline, partition, epoch),
            timeline,
            self._serde,
            shard_log,
            self._scheduler,
            self._compression(),
            self._linger_ms(),
            lambda: self.on_lost(partition),
        )
        self._shards[partition] = shard
        return shard

    def loaded(self, shard: Shard[M]) -> None:
        """A shard's log is replayed up to its end."""
        if shard.state is ShardState.LOADING:
            shard.activate(lambda: shard.machine.on_loaded(self._image, self._scheduler.now_ms()))

    def resign(self, partition: int) -> None:
        """This broker does not lead a partition (any more)."""
        shard = self._shards.pop(partition, None)
        if shard is not None and shard.state is not ShardState.CLOSED:
            shard.close(
                KafkaError(ErrorCode.NOT_COORDINATOR, f"this broker leads {shard.topic_partition} no more")
            )

    def on_image(self, image: ClusterImage, delta: Delta) -> None:
        """The cluster has changed: every machine is told."""
        for _ in self.tell_image(image, delta):
            pass

    def tell_image(self, image: ClusterImage, delta: Delta) -> Iterator[None]:
        """The same, a machine at a time. What is loaded meanwhile begins with this image."""
        self._image = image
        for shard in self.active_shards():
            if shard.state is ShardState.ACTIVE:
                try:
                    shard.apply(shard.machine.on_image(image, delta, self._scheduler.now_ms()))
                except Exception as error:  # noqa: BLE001 - the boundary of a shard
                    where = shard.topic_partition
                    report(error, name="a change of the cluster", owner=str(where))
                    shard.lose(KafkaError(ErrorCode.NOT_COORDINATOR, f"{where} has not followed the cluster"))
                yield

    def stop(self) -> None:
        for partition in list(self._shards):
            self.resign(partition)
