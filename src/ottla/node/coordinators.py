"""The coordinators of this broker: their shards come and go with the leadership of the internal topics' partitions.

A shard belongs to one leader epoch of its partition. It is closed in the very turn of the loop in which that ends
(`role_changed`), because from then on the log has another leader's records: whoever waits gets NOT_COORDINATOR, and
nothing more is decided or written by it. If this broker leads the next epoch too, that has a shard of its own.

A shard is loaded in the background: its partition is read in a thread and replayed in slices. It answers once
everything it found is replayed and committed. A load that fails is logged and tried again, after a pause that grows;
until it works clients are answered NOT_COORDINATOR. No record makes a load fail (see coordinator/loader.py); a disk
does. A load whose epoch ends is given up.

Here is also what the pure coordinators are given of a node: its loop (LoopScheduler), its partitions (PartitionLog),
threads (LoopBackground), and the way to other brokers (InterBroker, see ottla.server.inter_broker).

Owner: the node, on the broker's loop; a follower of the metadata log, after the replicas.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.config.broker import BrokerConfig
from ottla.config.describe import group_values
from ottla.coordinator.group.assignors.loading import load_assignors
from ottla.coordinator.group.serde import GROUP_RECORDS
from ottla.coordinator.loader import note_skips, replay_batches, skip
from ottla.coordinator.runtime import COMMITTED, CoordinatorContext, CoordinatorRuntime, CoordinatorState
from ottla.coordinator.shard import Handle, Scheduler
from ottla.coordinator.timeline import Timeline
from ottla.coordinator.transaction.coordinator import TransactionContext, TransactionCoordinator
from ottla.coordinator.transaction.log import TRANSACTION_RECORDS
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage, ResourceType
from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, random_uuid
from ottla.model.pending import Pending
from ottla.model.tasks import FIRST_PAUSE_S, LONGEST_PAUSE_S, guarded, report, spawn
from ottla.model.time_slice import PacedCalls, SharedTimeSlice, TimeSlice
from ottla.node.stalls import freeze_what_stays
from ottla.replication.partition import ACKS_ALL, ACKS_LEADER, Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.security.channels import PLAINTEXT, ChannelSecurity
from ottla.server.inter_broker import InterBroker
from ottla.server.partition_metadata import NetworkPartitionMetadataClient
from ottla.server.transaction.markers import MarkerWriter, TransactionMarkerChannelManager
from ottla.server.transaction.producer_ids import ProducerIdSource
from ottla.server.transaction.service import TransactionService
from ottla.share.coordinator import SHARE_RECORDS, ShareCoordinatorService, ShareCoordinatorShard
from ottla.share.groups import ShareGroupService
from ottla.share.persister import DefaultStatePersister
from ottla.share.state_requests import PersisterStateManager
from ottla.storage.log.log import Log
from ottla.storage.validator import AppendOrigin
from ottla.wire.messages.transactions import WriteTxnMarkersRequest

if TYPE_CHECKING:
    from ottla.coordinator.group.context import FollowUp
    from ottla.coordinator.group.shard import GroupCoordinatorShard


log = logging.getLogger("ottla.coordinator.consumer")

T = TypeVar("T")

GROUPS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_TOPIC = "__share_group_state"
# How much of a partition is read at a time while its shard is loaded.
_LOAD_BUFFER_KEYS = {
    GROUPS_TOPIC: "offsets.load.buffer.size",
    TRANSACTIONS_TOPIC: "transaction.state.log.load.buffer.size",
    SHARE_TOPIC: "share.coordinator.load.buffer.size",
}

# Slices of a load after which the garbage collector need not look at them again: some thousands of records.
SLICES_TO_FREEZE = 64
# Assignments that are computed at a time; Python runs one at a time anyway.
MAX_THREADS: Final = 2


class Coordinators:
    """The runtimes of the three coordinators, and the loading of their shards."""

    def __init__(
        self,
        replicas: ReplicaManager,
        executor: Executor,
        clock: Clock,
        config: Callable[[], BrokerConfig],
        image: Callable[[], ClusterImage],
        producer_ids: ProducerIdSource,
        to_brokers: ChannelSecurity = PLAINTEXT,
    ) -> None:
        self._replicas = replicas
        self._executor = executor
        self._config = config
        self._image = image
        self._tasks: set[asyncio.Task[Any]] = set()
        # Fifty shards may be loaded at once.
        self._load_slice = SharedTimeSlice()
        self._slices = 0
        # How often in a row the load of a partition has failed.
        self._failed_loads: dict[TopicPartition, int] = {}
        self.group_assignors = load_assignors(config()["group.consumer.assignors"])
        self._background = LoopBackground(lambda: self.groups)
        scheduler = LoopScheduler(clock, asyncio.get_running_loop())
        self.brokers = InterBroker(config().node_id, config, security=to_brokers)
        self.groups = CoordinatorRuntime(
            GROUPS_TOPIC,
            self._group_machine,
            GROUP_RECORDS,
            scheduler,
            lambda: self._partitions(GROUPS_TOPIC, "offsets.topic.num.partitions"),
            lambda: int(config()["offsets.topic.compression.codec"]),
            lambda: int(config()["group.coordinator.append.linger.ms"]),
            lambda: int(config()["offsets.commit.timeout.ms"]),
        )
        self._runtimes: dict[str, CoordinatorRuntime[Any]] = {GROUPS_TOPIC: self.groups}
        self.transactions = make_transactions(
            replicas,
            self.brokers,
            self._runtimes,
            scheduler,
            producer_ids,
            lambda: self._partitions(TRANSACTIONS_TOPIC, "transaction.state.log.num.partitions"),
            config,
        )
        self._runtimes[TRANSACTIONS_TOPIC] = self.transactions.runtime
        # Asks the controller for the share coordinator's topic; set when the node can.
        self.create_share_topic: Callable[[], object] = lambda: None
        self.share = make_share(
            replicas,
            self.brokers,
            self.groups,
            scheduler,
            lambda: self._partitions(SHARE_TOPIC, "share.coordinator.state.topic.num.partitions"),
            config,
            self._require_share_topic,
        )
        self._runtimes[SHARE_TOPIC] = self.share.runtime
        for runtime in self._runtimes.values():
            runtime.on_lost = partial(self._load_again, runtime)
        replicas.role_listeners.append(self.role_changed)

    # ---- making machines ----------------------------------------------------------------------------------

    def _group_machine(self, timeline: Timeline, partition: int, epoch: int) -> GroupCoordinatorShard:
        # Only here: a broker that leads none of the groups' partitions starts without their machines.
        from ottla.coordinator.group.context import GroupContext
        from ottla.coordinator.group.shard import GroupCoordinatorShard

        def group_config(group_id: str) -> Mapping[str, Any]:
            # Of the shard's own image: what was read is kept until that changes, and it is shown only later.
            return group_values(self._config(), context.image.config(ResourceType.GROUP, group_id))

        context = GroupContext(
            timeline, self._config, group_config, random_uuid, self.group_assignors, self._background
        )
        return GroupCoordinatorShard(context)

    def _require_share_topic(self) -> bool:
        exists = self._image().topic(SHARE_TOPIC) is not None
        if not exists:
            self.create_share_topic()
        return exists

    def _partitions(self, topic: str, key: str) -> int:
        """How many partitions the topic has, or will have once somebody needs it."""
        found = self._image().topic(topic)
        return int(self._config()[key]) if found is None else len(found.partitions)

    # ---- following the metadata log -----------------------------------------------------------------------

    def role_changed(self, partition: Partition) -> None:
        """A leader epoch of a partition has begun or ended, or it is not here any more: nothing of its shard counts."""
        topic, index = partition.topic_partition
        runtime = self._runtimes.get(topic)
        if runtime is None or self._replicas.hosted(topic, index) not in (partition, None):
            return  # of a topic that was deleted, and has been made anew
        runtime.resign(index)
        if partition.is_leader:
            self._load_again(runtime, index)

    async def apply(self, delta: Delta) -> None:
        """Load the partitions that this broker leads now, and resign from those that it leads no more."""
        self.brokers.on_image(delta)
        for change in delta.topics.values():
            topic = change.after or change.before
            runtime = None if topic is None else self._runtimes.get(topic.name)
            if runtime is not None:
                for partition in change.partitions or (change.before.partitions if change.before else ()):
                    self._follow(runtime, partition)
        time_slice = TimeSlice()
        for runtime in self._runtimes.values():
            for _ in runtime.on_image(delta.after, delta):
                await time_slice.yield_to_loop()

    def _load_again(self, runtime: CoordinatorRuntime[Any], index: int) -> None:
        follow = guarded(self._follow, name=f"taking up {runtime.topic}-{index}", owner="coordinators")
        asyncio.get_running_loop().call_soon(follow, runtime, index)

    def _follow(self, runtime: CoordinatorRuntime[Any], index: int) -> None:
        partition = self._replicas.hosted(runtime.topic, index)
        if partition is None or not partition.is_leader:
            runtime.resign(index)
            return
        acks = ACKS_ALL if runtime.topic == TRANSACTIONS_TOPIC else ACKS_LEADER
        shard = runtime.elect(index, partition.leader_epoch, PartitionLog(partition, acks))
        if shard is not None:
            loading = self._load(runtime, shard, partition)
            task = spawn(loading, name=f"loading {shard.topic_partition}", owner="coordinators")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    # ---- loading ------------------------------------------------------------------------------------------

    async def _load(
        self, runtime: CoordinatorRuntime[Any], shard: CoordinatorContext[Any], partition: Partition
    ) -> None:
        where = shard.topic_partition
        try:
            await self._replay(shard, partition.log, self._config()[_LOAD_BUFFER_KEYS[runtime.topic]])
            if shard.state is not CoordinatorState.LOADING:
                return
            note_skips(shard)
            await _committed(partition, shard)
            runtime.loaded(shard)
        except Exception as error:  # noqa: BLE001 - the boundary of a load
            if shard.state is not CoordinatorState.LOADING:
                return  # this broker leads it no more: nobody needs it here
            shard.fail()
            report(error, name=f"loading {where}", owner="coordinators")
            failures = self._failed_loads[where] = self._failed_loads.get(where, 0) + 1
            await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** min(failures - 1, 10), LONGEST_PAUSE_S))
            self._follow(runtime, where.partition)
        else:
            self._failed_loads.pop(where, None)

    async def _replay(self, shard: CoordinatorContext[Any], found: Log, size_bytes: int) -> None:
        offset = found.log_start_offset
        run = asyncio.get_running_loop().run_in_executor
        while offset < found.log_end_offset and shard.state is CoordinatorState.LOADING:
            try:
                data, end = await run(self._executor, _read, found, offset, size_bytes)
            except KafkaError as error:
                if error.code is not ErrorCode.CORRUPT_MESSAGE or shard.state is not CoordinatorState.LOADING:
                    raise
                # The batches' own headers say how a segment is read: the next segment begins after the damage.
                end = _next_segment(found, offset)
                skip(shard, f"everything from offset {offset} to {end - 1}", error)
                data = b""
            if end <= offset:
                return  # what lay between here and the end has been compacted away
            async with self._load_slice:
                await self._replay_some(shard, data)
            # Not where the last batch says that it ends: it may be damaged.
            offset = end

    async def _replay_some(self, shard: CoordinatorContext[Any], data: bytes) -> None:
        for _ in replay_batches(shard, data):
            self._slices += 1
            if self._slices % SLICES_TO_FREEZE == 0:
                freeze_what_stays()
            await self._load_slice.yield_to_loop()
            if shard.state is not CoordinatorState.LOADING:
                break

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self._background.stop()
        for runtime in self._runtimes.values():
            runtime.stop()
        await self.brokers.close()


async def _committed(partition: Partition, shard: CoordinatorContext[Any]) -> None:
    """Return when everything in the log is committed; KafkaError if it never will be as this shard has found it."""
    end = partition.log.log_end_offset
    committed: Pending[ErrorCode] = Pending()
    shard.log.when_committed(end, committed.resolve)
    code = await committed
    if code not in COMMITTED:
        raise KafkaError(code, f"what was found in {shard.topic_partition} is not committed")
    if partition.log.log_end_offset != end:
        raise KafkaError(
            ErrorCode.NOT_COORDINATOR, f"somebody has written to {shard.topic_partition} meanwhile"
        )


def _read(found: Log, offset: int, size_bytes: int) -> tuple[bytes, int]:
    """Some batches from an offset on, and where to read on."""
    piece = found.read(offset, size_bytes, found.log_end_offset)
    return piece.read(), piece.next_offset


def _next_segment(found: Log, offset: int) -> int:
    bases = (segment.base_offset for segment in found.segments)
    return min((base for base in bases if base > offset), default=found.log_end_offset)


# ---- the parts of the transaction coordinator and of the share coordinator ----------------------------------


def make_transactions(
    replicas: ReplicaManager,
    brokers: InterBroker,
    runtimes: Mapping[str, CoordinatorRuntime[Any]],
    scheduler: Scheduler,
    producer_ids: ProducerIdSource,
    partitions: Callable[[], int],
    config: Callable[[], BrokerConfig],
) -> TransactionService:
    """`runtimes` is filled as the coordinators are made: a marker for one of their partitions goes through them."""

    def machine(timeline: Timeline, partition: int, epoch: int) -> TransactionCoordinator:
        return TransactionCoordinator(
            TransactionContext(
                timeline, partition, epoch, config, producer_ids.take, lambda markers: sender.send(markers)
            )
        )

    runtime = CoordinatorRuntime(TRANSACTIONS_TOPIC, machine, TRANSACTION_RECORDS, scheduler, partitions)
    request_timeout_ms = _request_timeout_ms(config)
    writer = MarkerWriter(replicas, runtimes, scheduler, request_timeout_ms)
    brokers.serve(WriteTxnMarkersRequest, writer.write)
    service = TransactionService(runtime, writer, brokers)
    sender = TransactionMarkerChannelManager(brokers, service, scheduler, request_timeout_ms)
    return service


def _request_timeout_ms(config: Callable[[], BrokerConfig]) -> Callable[[], int]:
    return lambda: int(config()["request.timeout.ms"])


@dataclass(frozen=True, slots=True)
class ShareParts:
    """What the rest of the node uses of them."""

    runtime: CoordinatorRuntime[ShareCoordinatorShard]
    coordinator: ShareCoordinatorService
    persister: DefaultStatePersister
    groups: ShareGroupService


def make_share(
    replicas: ReplicaManager,
    brokers: InterBroker,
    groups: CoordinatorRuntime[GroupCoordinatorShard],
    scheduler: Scheduler,
    partitions: Callable[[], int],
    config: Callable[[], BrokerConfig],
    require_topic: Callable[[], bool],
) -> ShareParts:
    """`require_topic` says whether the coordinator's topic exists, and has it made otherwise."""

    def machine(timeline: Timeline, partition: int, epoch: int) -> ShareCoordinatorShard:
        return ShareCoordinatorShard(timeline, config, lambda offset: _prune(replicas, partition, offset))

    runtime = CoordinatorRuntime(
        SHARE_TOPIC,
        machine,
        SHARE_RECORDS,
        scheduler,
        partitions,
        lambda: int(config()["share.coordinator.state.topic.compression.codec"]),
        lambda: int(config()["share.coordinator.append.linger.ms"]),
    )
    coordinator = ShareCoordinatorService(runtime, lambda: config()["share.coordinator.write.timeout.ms"])
    request_timeout_ms = _request_timeout_ms(config)
    states = PersisterStateManager(coordinator, brokers, scheduler, request_timeout_ms)
    persister = DefaultStatePersister(states, scheduler, require_topic)
    ends = NetworkPartitionMetadataClient(replicas, brokers, scheduler, request_timeout_ms)
    return ShareParts(runtime, coordinator, persister, ShareGroupService(groups, persister, ends))


def _prune(replicas: ReplicaManager, index: int, offset: int) -> None:
    """What lies before the offset is deleted, as DeleteRecords would."""
    partition = replicas.hosted(SHARE_TOPIC, index)
    if partition is not None and partition.is_leader and offset <= partition.log.high_watermark:
        partition.log.maybe_increment_log_start_offset(offset, "no share partition needs it")


# ---- what coordinators are given of a node ------------------------------------------------------------------


class LoopScheduler:
    """Time and turns of the event loop."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now_ms = clock.now_ms
        self.monotonic_ms = clock.monotonic_ms
        self.call_soon = PacedCalls(loop).call_soon

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Handle:
        return self._loop.call_later(delay_ms / 1000, _call, call)


def _call(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the boundary of a call
        report(error, name=f"a call of {call}", owner="coordinators")


class PartitionLog:
    """A hosted partition as a coordinator's shard sees it: appended to as its leader, in one leader epoch.

    As in Kafka groups and share state are written whatever is in sync, and committed by the high watermark, which
    stands still below min.insync.replicas; only transactions are refused before (`acks`).
    """

    __slots__ = ("_acks", "_epoch", "partition")

    def __init__(self, partition: Partition, acks: int = ACKS_ALL) -> None:
        self.partition = partition
        self._epoch = partition.leader_epoch
        self._acks = acks

    @property
    def log_end_offset(self) -> int:
        return self.partition.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.partition.log.high_watermark

    @property
    def max_batch_bytes(self) -> int:
        return self.partition.log.config.max_message_bytes

    def append(self, batch: bytearray, now_ms: int, transaction_version: int = 0) -> int:
        partition = self.partition
        if not self._is_led:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{partition.topic_partition} is not led in epoch {self._epoch}",
            )
        result = partition.append(
            batch, self._acks, now_ms, AppendOrigin.COORDINATOR, transaction_version=transaction_version
        )
        return result.last_offset + 1

    def when_committed(self, offset: int, call: Callable[[ErrorCode], None]) -> None:
        if self._is_led:
            self.partition.when_committed(offset, call)
        else:
            call(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    @property
    def _is_led(self) -> bool:
        return self.partition.is_leader and self.partition.leader_epoch == self._epoch


class LoopBackground:
    """The Background of group coordinators: work that the loop has no time for, in a thread or in slices.

    What comes out goes to the shard that leads the group then; if this broker does not any more, it is dropped, and
    whoever leads it computes it anew. The threads are of their own: a user's assignor may take for ever, and neither
    the disks nor the end of the node wait for it. What fails is logged.
    """

    def __init__(self, runtime: Callable[[], CoordinatorRuntime[GroupCoordinatorShard]]) -> None:
        self._runtime = runtime
        self._slots = asyncio.Semaphore(MAX_THREADS)
        self._tasks: set[asyncio.Task[Any]] = set()

    def in_thread(self, work: Callable[[], T], follow_up: FollowUp[T]) -> None:
        self._start(f"the assignment of group {follow_up.group_id}", self._run(work, follow_up), follow_up)

    def in_slices(self, work: Iterator[T | None], follow_up: FollowUp[T]) -> None:
        self._start(f"the topics of group {follow_up.group_id}", self._step(work, follow_up), follow_up)

    def _start(self, name: str, doing: Coroutine[Any, Any, None], follow_up: FollowUp[Any]) -> None:
        def fail(error: Exception) -> None:
            follow_up.failed(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{name} failed: {error}"))

        task = spawn(doing, name=name, owner="group coordinator", failed=fail)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, work: Callable[[], T], follow_up: FollowUp[T]) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        async with self._slots:
            name = f"assign {follow_up.group_id}"
            Thread(target=_compute, args=(work, loop, done), name=name, daemon=True).start()
            found = await done
        self._decide(found, follow_up)

    async def _step(self, work: Iterator[T | None], follow_up: FollowUp[T]) -> None:
        time_slice = TimeSlice()
        for found in work:
            if found is not None:
                self._decide(found, follow_up)
                return
            await time_slice.yield_to_loop()

    def _decide(self, found: T, follow_up: FollowUp[T]) -> None:
        group_id = follow_up.group_id

        def decided(outcome: Pending[Any]) -> None:
            if outcome.error is not None:
                log.info("what was found out for group %s was not written: %s", group_id, outcome.error)
                follow_up.failed(outcome.error)

        runtime = self._runtime()
        partition = runtime.partition_for(group_id)
        runtime.write(partition, lambda _, now_ms: follow_up.then(found, now_ms)).then(decided)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()


def _compute(work: Callable[[], T], loop: asyncio.AbstractEventLoop, done: asyncio.Future[T]) -> None:
    """In the thread; whatever the work raises, even to end its thread, is given to whoever waits for it."""
    found: T | None = None
    error: Exception | None = None
    try:
        found = work()
    except Exception as raised:  # noqa: BLE001 - given to whoever waits
        error = raised
    except BaseException as raised:  # noqa: BLE001 - an assignor may call sys.exit()
        error = RuntimeError(f"{type(raised).__name__}: {raised}")
    with suppress(RuntimeError):  # the node may have stopped meanwhile, and its loop be closed
        loop.call_soon_threadsafe(_deliver, done, found, error)


def _deliver(done: asyncio.Future[Any], found: Any, error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(found)
    else:
        done.set_exception(error)
