"""ReplicaManager: all replicas on this broker, found by topic name or id, made and unmade as the metadata image says.

The image is the only source of what is hosted and who leads. A delta of many partitions is applied in slices, between
which the loop serves others; until a partition is applied, asking for it gives the error a client retries on.

Reading for fetches keeps to the request's limits. As in Kafka the first partition that has anything gives at least one
batch even if that is larger than every limit, so that a consumer always makes progress; after that the limits are hard.
What is read may lie in pages that are not in memory, and sending it would stall the loop on the disk: a range that is
not warm is first read in a thread (`warm_up`), and then sent from the page cache like any other. The same goes for the
batch headers by which a slice is found (`ColdReadError`).

A follower that is not in sync gets nothing of a throttled partition while the leader's quota is exceeded (KIP-73); the
other partitions of its fetch are read as ever.

Owner: the node, on the broker's loop.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import TypeAlias

from ottla.metadata.delta import Delta, TopicChange
from ottla.metadata.image import ClusterImage, ResourceType
from ottla.metadata.registrations import PartitionRegistration, TopicImage
from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_LEADER_EPOCH, NodeId, TopicPartition, Uuid
from ottla.model.tasks import report, spawn, spawn_restarting
from ottla.model.time_slice import TimeSlice
from ottla.replication.alter_log_dirs import ReplicaAlterLogDirs
from ottla.replication.alter_partition import AlterPartitionManager
from ottla.replication.fetcher_manager import ReplicaFetcherManager
from ottla.replication.partition import Partition, PartitionRead
from ottla.replication.quotas import ReplicationQuotaManager, ReplicationQuotas
from ottla.storage.config import LogConfig
from ottla.storage.errors import OutOfFilesError, is_out_of_files
from ottla.storage.files import open_files
from ottla.storage.log.log import Log
from ottla.storage.log_manager import LogManager, NewLog
from ottla.storage.segment.file_records import ColdSliceError, LogSlice
from ottla.wire.fast.fetch import Wanted

log = logging.getLogger("ottla.replication")

TopicKey = str | bytes

# How long after a descriptor was missing another try is made to open a log, or to flush one.
TRY_AGAIN_S = 1.0


# replica.lag.time.max.ms may be nothing, and the loop has other work.
SHORTEST_ISR_CHECK_S = 0.05

UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


# Which replica to read from at an offset instead of this one, or -1 (KIP-392).
Preference: TypeAlias = Callable[[Partition, int], int]


# 3.5-IV1, the metadata version from which on brokers fetch with their broker epoch.
BROKER_EPOCHS_SINCE = 10


@contextmanager
def _boundary(partition: Partition, what: str) -> Iterator[None]:
    """What goes wrong with one partition is not the end of what is done with all of them."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the boundary of one partition
        report(error, name=what, owner=str(partition.topic_partition))


class ColdReadError(Exception):
    """A fetch cannot be answered without waiting for the disk; `slices` are to be warmed up before the next try."""

    def __init__(self, slices: list[LogSlice]) -> None:
        super().__init__(f"{len(slices)} reads are cold")
        self.slices = slices


def is_stray(node_id: NodeId, image: ClusterImage, found: Log) -> bool:
    """Is this a log of a partition that is not (or no longer) this broker's?"""
    topic = image.topic(found.topic_partition.topic)
    if topic is None or (found.topic_id is not None and found.topic_id != topic.id):
        return True
    registration = topic.partitions.get(found.topic_partition.partition)
    return registration is None or node_id not in registration.replicas


def _should_leader_throttle(quota: ReplicationQuotaManager, partition: Partition, replica_id: int) -> bool:
    """Is the follower held back while the quota is exceeded (Kafka's shouldLeaderThrottle)?"""
    return replica_id not in partition.isr and quota.is_throttled(partition.topic_partition)


def _elsewhere(wanted: Wanted, partition: Partition, replica_id: int) -> PartitionRead:
    """Nothing is read for a consumer that had better read elsewhere."""
    log = partition.log
    return PartitionRead(
        wanted,
        ErrorCode.NONE,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start_offset,
        preferred_read_replica=replica_id,
    )


class ReplicaManager:
    """The partitions that this broker hosts."""

    def __init__(
        self,
        node_id: NodeId,
        logs: LogManager,
        log_config: Callable[[ClusterImage, str], LogConfig],
        clock: Clock,
        executor: Executor,
        on_moved: Callable[[Partition], None],
        lag_time_max_ms: Callable[[], int],
        isr_changes: AlterPartitionManager,
        quotas: ReplicationQuotas | None = None,
    ) -> None:
        """Without `quotas` there are some of its own, and nobody sets their rates."""
        self._node_id = self.node_id = node_id
        self.quotas = quotas or ReplicationQuotas(node_id)
        self._clock = clock
        self.lag_time_max_ms = lag_time_max_ms
        self._isr_changes = isr_changes
        self._checking: asyncio.Task[None] | None = None
        self._logs = logs
        self._log_config = log_config
        # The same inner tables under the topic's name and its id: produce and fetch come with either.
        self._topics: dict[TopicKey, dict[int, Partition]] = {}
        self._offline: dict[TopicPartition, str] = {}
        # Partitions that could not become what the image says; the next change of each is another try, and for those
        # that only found no descriptor a while is.
        self._failed: set[Partition] = set()
        # Partitions for which there was no descriptor, and whether each is new.
        self._unhosted: dict[TopicPartition, bool] = {}
        self._hosting: asyncio.Task[None] | None = None
        # Partitions that flush what somebody has appended who does not do it himself.
        self._flushing: dict[Partition, asyncio.Task[None]] = {}
        self._stopping = False
        self._mover = ReplicaAlterLogDirs(
            logs, clock, executor, on_moved, self._take_role_again, self.quotas.alter_log_dirs
        )
        # How replicas that this broker does not lead are filled; without it nobody is followed.
        self.fetchers: ReplicaFetcherManager | None = None
        self._image = ClusterImage()
        # Called in the very turn in which a leader epoch of a partition here begins or ends, or it goes away.
        self.role_listeners: list[Callable[[Partition], None]] = []
        self._first = True  # the first delta lists partitions that were here before

    # ---- finding ------------------------------------------------------------------------------------------

    def leader(self, topic: TopicKey, index: int) -> Partition:
        """The partition, if this broker leads it; else the KafkaError that says why not."""
        partitions = self._topics.get(topic)
        if partitions is not None:
            partition = partitions.get(index)
            if partition is not None and partition.is_leader and not partition.log.failed:
                return partition
        return self._explain(topic, index)

    def replica(self, topic: TopicKey, index: int) -> Partition:
        """The partition, whoever leads it; else the KafkaError that says why it is not here."""
        partition = self.hosted(topic, index)
        return self._explain(topic, index) if partition is None or partition.log.failed else partition

    def hosted_of(self, topic: TopicKey) -> Mapping[int, Partition] | None:
        """The partitions of a topic that are here, by their index."""
        return self._topics.get(topic)

    def hosted(self, topic: TopicKey, index: int) -> Partition | None:
        partitions = self._topics.get(topic)
        return None if partitions is None else partitions.get(index)

    def all_partitions(self) -> Iterator[Partition]:
        for key, partitions in self._topics.items():
            if isinstance(key, str):
                yield from partitions.values()

    def _explain(self, topic: TopicKey, index: int) -> Partition:
        partition = self.hosted(topic, index)
        if partition is not None:
            if partition.log.failed or partition in self._failed:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.topic_partition} is offline")
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        known = self._known(topic)
        if known is None:
            by_id = isinstance(topic, bytes)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if TopicPartition(known.name, index) in self._offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{known.name}-{index} is offline")
        if index in known.partitions:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _known(self, topic: TopicKey) -> TopicImage | None:
        if isinstance(topic, bytes):
            return self._image.topic_by_id(Uuid(topic))
        return self._image.topic(topic)

    # ---- reading ------------------------------------------------------------------------------------------

    def read_from_log(
        self,
        wanted: Sequence[Wanted],
        max_bytes: int,
        read_committed: bool,
        replica_id: int,
        wait: bool = True,
        total: int = 0,
        files: int = 0,
        *,
        replica_epoch: int = -1,
        any_replica: bool = False,
        preference: Preference | None = None,
    ) -> tuple[list[PartitionRead], int]:
        """Read each partition in turn while the budget lasts; the reads, and `total` with how many bytes they come to.

        `total` bytes in so many `files` have been read for the same answer.
        A follower (`replica_id`) reads from a leader, and so does a consumer unless `any_replica` will do. One for
        whom `preference` knows a better replica is told of it and gets nothing. Without `wait` ColdReadError has what
        must be in memory first, if anything.
        """
        reads: list[PartitionRead] = []
        cold: list[LogSlice] = []
        exceeded: ReplicationQuotaManager | None = None
        if replica_id >= 0 and self.quotas.leader.is_on:
            quota = self.quotas.leader
            exceeded = quota if quota.is_quota_exceeded(self.monotonic_ms()) else None
        for item in wanted:
            try:
                partition = self._readable(item, any_replica)
                if replica_id >= 0:
                    partition.check_follower(replica_id, item)
                    if exceeded is not None and _should_leader_throttle(exceeded, partition, replica_id):
                        # Where the logs part it hears all the same.
                        read = partition.read_for_follower(item, replica_id, 0, False, wait)
                    else:
                        read = partition.read_for_follower(
                            item, replica_id, max_bytes - total, total == 0, wait
                        )
                    if read.diverging is None:
                        partition.check_broker_epoch(replica_id, replica_epoch)
                elif preference is not None and (chosen := preference(partition, item.fetch_offset)) >= 0:
                    read = _elsewhere(item, partition, chosen)
                else:
                    read = partition.read(item, max_bytes - total, read_committed, total == 0, wait)
            except ColdSliceError as error:
                cold.append(error.slice)
                continue
            except KafkaError as error:
                # An unknown partition has an empty list of transactions, all other errors have none.
                read = PartitionRead(item, error.code, aborted=[] if error.code in UNKNOWN else None)
            except Exception as error:  # noqa: BLE001 - the boundary of one partition: the others are read
                report(error, name="reading for a fetch", owner=f"partition {item.index} of {item.topic!r}")
                read = PartitionRead(item, ErrorCode.UNKNOWN_SERVER_ERROR)
            reads.append(read)
            total += read.size_bytes
            if read.slice is not None:
                files += 1
                if files >= open_files.files_a_fetch:
                    # As if that was all: the others' turn comes with the next fetch.
                    total = max(total, max_bytes)
        if cold:
            raise ColdReadError(cold)
        return reads, total

    def _readable(self, wanted: Wanted, any_replica: bool) -> Partition:
        """The replica to read from; KafkaError if it is not here, or not in the epoch that the fetcher believes in."""
        partition = self.hosted(wanted.topic, wanted.index)
        if partition is None or partition.log.failed:
            return self._explain(wanted.topic, wanted.index)
        error = partition.check_leader(wanted.current_leader_epoch)
        if error and not (any_replica and error is ErrorCode.NOT_LEADER_OR_FOLLOWER):
            raise KafkaError(error)
        return partition

    @property
    def followers_tell_their_epochs(self) -> bool:
        """Does every broker of the cluster fetch with its broker epoch (KIP-903)?"""
        return (self._image.metadata_version or 0) >= BROKER_EPOCHS_SINCE

    # ---- what partitions ask for (PartitionEnvironment) ---------------------------------------------------

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic_ms(self) -> float:
        return self._clock.monotonic_ms()

    def broker_epoch(self, broker_id: int) -> int | None:
        broker = self._image.brokers.get(broker_id)
        return None if broker is None else broker.epoch

    def registered_epoch(self, broker_id: int) -> int | None:
        broker = self._image.brokers.get(broker_id)
        if broker is None or broker.fenced or broker.in_controlled_shutdown:
            return None
        return broker.epoch

    def is_alive(self, broker_id: int) -> bool:
        broker = self._image.brokers.get(broker_id)
        return broker is not None and not broker.fenced

    def truncated(self, partition: Partition) -> None:
        self._logs.truncated(partition.log)

    def flush(self, partition: Partition) -> None:
        if partition not in self._flushing:
            self._flushing[partition] = spawn(
                self._flush(partition), name=f"flush {partition.topic_partition}", owner="replicas"
            )

    async def _flush(self, partition: Partition) -> None:
        """As long as there is something to flush: more may be appended meanwhile.

        If there is no descriptor for that, nobody may come by to ask again, and consumers wait for what it shows.
        """
        has_complained = False
        try:
            while (
                not self._stopping
                and partition.is_leader
                and partition.log.flush_needed(self._clock.now_ms())
            ):
                try:
                    await self._logs.background.flush(partition.log)
                except OutOfFilesError as error:
                    if not has_complained:
                        has_complained = True
                        log.error("%s is not flushed for now: %s", partition.topic_partition, error)
                    await asyncio.sleep(TRY_AGAIN_S)
                else:
                    partition.maybe_advance_high_watermark()
        except KafkaError as error:
            # The directory is offline by now, and whoever waits hears of it there.
            log.error("%s could not be flushed: %s", partition.topic_partition, error)
        finally:
            del self._flushing[partition]

    def alter_partition(self, partition: Partition, isr: Sequence[tuple[int, int]], recovery: int) -> bool:
        return self._isr_changes.submit(
            partition, partition.leader_epoch, partition.partition_epoch, isr, recovery
        )

    # ---- in-sync replicas ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Look now and then whether every in-sync replica still is."""
        self._checking = spawn_restarting(self._check_isrs, name="checking ISRs", owner="replicas")

    async def _check_isrs(self) -> None:
        """Kafka's isr-expiration: a follower that lags leaves within one and a half times the time it has."""
        while True:
            await asyncio.sleep(max(self.lag_time_max_ms() / 2000, SHORTEST_ISR_CHECK_S))
            await self.check_isrs()

    async def check_isrs(self) -> None:
        time_slice = TimeSlice()
        for partition in [each for each in self.all_partitions() if each.followers]:
            with _boundary(partition, "the check of its ISR"):
                partition.check_isr()
            await time_slice.yield_to_loop()

    # ---- following the image ------------------------------------------------------------------------------

    async def apply(self, delta: Delta) -> None:
        """Make what is hosted what the image says."""
        self._image = delta.after
        if self.fetchers is not None:
            self.fetchers.on_image(delta)
        time_slice = TimeSlice()
        if self._first:
            await self._set_aside_strays(time_slice)
        # Deleted topics go first: another of the same name may be made by the same change, and hosted in their place.
        removed: list[TopicPartition] = []
        for change in delta.topics.values():
            if change.after is None:
                removed += await self._remove_topic(change, time_slice)
        if removed:
            await self._logs.delete_all(removed)
        # Before the ISRs: the controller takes whoever leaves one for eligible if that falls below the new minimum, and
        # so nothing may be committed without them under the old one.
        await self._apply_configs(delta, time_slice)
        removed = []
        for change in delta.topics.values():
            if change.after is not None:
                removed += await self._apply_topic(change.after, change, time_slice)
        if removed:
            await self._logs.delete_all(removed)
        if delta.brokers:
            # Whoever was fenced, or not yet known in its new life, may be in sync as of now.
            for partition in [each for each in self.all_partitions() if each.followers]:
                with _boundary(partition, "a look at who may join its ISR"):
                    partition.look_for_joiners()
                await time_slice.yield_to_loop()
        if self.fetchers is not None:
            self.fetchers.end_idle()
        self._first = False

    async def _set_aside_strays(self, time_slice: TimeSlice) -> None:
        """Topics may have been deleted, and replicas moved away, since the image by which the logs were loaded.

        Nobody hosts those logs, so nobody would delete them, and a topic that is made anew would find another's.
        """
        for found in list(self._logs.all_logs()):
            if is_stray(self._node_id, self._image, found):
                self._logs.set_aside(found)
            await time_slice.yield_to_loop()

    async def _apply_topic(
        self, topic: TopicImage, change: TopicChange, time_slice: TimeSlice
    ) -> list[TopicPartition]:
        indexes = sorted(change.partitions)
        config = await self._create_logs(topic, change, indexes, time_slice)
        removed: list[TopicPartition] = []
        for index in indexes:
            registration = topic.partitions[index]
            if self._node_id not in registration.replicas:
                removed += self._remove(TopicPartition(topic.name, index), topic.id)
                continue
            partition = self.hosted(topic.name, index)
            if partition is None:
                assert config is not None, "made for what was not hosted"
                is_new = self._is_new(change, index)
                partition = self._host(
                    TopicPartition(topic.name, index), topic.id, config, registration, is_new
                )
            if partition is not None:
                await self._become(partition, registration)
            await time_slice.yield_to_loop()
        return removed

    async def _become(self, partition: Partition, registration: PartitionRegistration) -> None:
        """Lead or follow as the image says; who leads in a new epoch is followed anew, from where the log ends now.

        The boundary of one partition: what goes wrong with it must not keep the others from their leaders.
        """
        fetchers, before = self.fetchers, partition.leader_epoch
        if partition in self._failed:
            self._failed.discard(partition)
            before = NO_LEADER_EPOCH
        try:
            if fetchers is not None and registration.leader_epoch != before:
                # Whoever leads from now on must not be written to by the answer of the leader before.
                fetchers.unfollow((partition,))
            if registration.leader == self._node_id and self._logs.awaits_checkpoint(partition.log):
                # It was cut a moment ago, and clients may write as soon as it leads.
                await self._logs.checkpoint_truncations()
            partition.become(registration)
            if fetchers is not None and partition.leader_epoch != before and not partition.is_leader:
                fetchers.follow((partition,))
        except Exception as error:  # noqa: BLE001 - see above
            self._cannot_become(partition, error)

    def _cannot_become(self, partition: Partition, error: Exception) -> None:
        """It is led and followed by nobody here until the metadata say something else of it."""
        self._failed.add(partition)
        trace = None if isinstance(error, KafkaError | OSError) else error
        log.error(
            "%s is offline, as it cannot take its place in leader epoch %d: %s",
            partition.topic_partition,
            partition.leader_epoch,
            str(error) or type(error).__name__,
            exc_info=trace,
        )
        if isinstance(error, OSError):
            self._logs.fail_dir(self._logs.dir_of(partition.log), error)
        with _boundary(partition, "taking it offline"):
            if self.fetchers is not None:
                self.fetchers.unfollow((partition,))
            partition.gone(ErrorCode.KAFKA_STORAGE_ERROR)
        if is_out_of_files(error):
            self._host_later(partition.topic_partition, is_new=False)

    def _is_new(self, change: TopicChange, index: int) -> bool:
        """Has this broker never had the partition? Then, and only then, an empty log is the right one.

        What it had before and does not host now lies in a directory that is offline.
        """
        before = None if change.before is None else change.before.partitions.get(index)
        return not self._first and (before is None or self._node_id not in before.replicas)

    async def _create_logs(
        self, topic: TopicImage, change: TopicChange, indexes: list[int], time_slice: TimeSlice
    ) -> LogConfig | None:
        """The logs of what is to be hosted and is not yet, made in a thread; the topic's configuration if any is."""
        config: LogConfig | None = None
        wanted: list[NewLog] = []
        for index in indexes:
            registration = topic.partitions[index]
            if self._node_id not in registration.replicas or self.hosted(topic.name, index) is not None:
                continue
            if config is None:
                config = self._log_config(self._image, topic.name)
            if self._is_new(change, index):
                where = registration.directory(self._node_id)
                wanted.append(NewLog(TopicPartition(topic.name, index), topic.id, config, where))
            await time_slice.yield_to_loop()
        if wanted:
            log.info("%s: %d new partitions", topic.name, len(wanted))
            await self._logs.create_ahead(wanted)
        return config

    def _host(
        self,
        topic_partition: TopicPartition,
        topic_id: Uuid,
        config: LogConfig,
        registration: PartitionRegistration,
        is_new: bool,
    ) -> Partition | None:
        try:
            opened = self._logs.get_or_create(
                topic_partition,
                topic_id,
                config,
                is_new=is_new,
                directory_id=registration.directory(self._node_id),
            )
            if opened.config != config:
                # Logs are loaded by an earlier image, and topics are changed during a recovery of minutes.
                self._logs.update_config(topic_partition, config)
        except Exception as error:  # the boundary of one partition
            if topic_partition not in self._offline:
                trace = None if isinstance(error, KafkaError | OSError) else error
                log.error("%s cannot be hosted: %s", topic_partition, error, exc_info=trace)
            self._offline[topic_partition] = str(error)
            if is_out_of_files(error):
                self._host_later(topic_partition, is_new)
            return None
        self._offline.pop(topic_partition, None)
        partition = Partition(topic_partition, topic_id, opened, self)
        partition.on_role = self._role_changed
        partitions = self._topics.get(topic_id)
        if partitions is None:
            partitions = self._topics[topic_id] = self._topics[topic_partition.topic] = {}
        partitions[topic_partition.partition] = partition
        self._mover.resume(partition)
        return partition

    def _role_changed(self, partition: Partition) -> None:
        """Whoever holds something of a leadership lets it go now: from here on the log may have another's records."""
        if not partition.is_leader:
            # What was verified of a transaction may be over by the time that this replica leads again (KIP-890).
            partition.log.producers.verifications.clear()
        for listener in self.role_listeners:
            try:
                listener(partition)
            except Exception as error:  # noqa: BLE001 - the others have something to let go as well
                report(error, name="the end of a leadership", owner=str(partition.topic_partition))

    def _host_later(self, topic_partition: TopicPartition, is_new: bool) -> None:
        """There was no descriptor left to open it, or to take its place; nothing is wrong with the disk."""
        self._unhosted[topic_partition] = is_new
        if self._hosting is None or self._hosting.done():
            self._hosting = spawn_restarting(
                self._host_unhosted, name="host what found no descriptor", owner="replicas"
            )

    async def _host_unhosted(self) -> None:
        while self._unhosted:
            await asyncio.sleep(TRY_AGAIN_S)
            unhosted, self._unhosted = self._unhosted, {}
            try:
                while unhosted:
                    topic_partition, is_new = unhosted.popitem()
                    await self._host_again(topic_partition, is_new)
            finally:
                self._unhosted = unhosted | self._unhosted  # if one has failed the others are not forgotten

    async def _host_again(self, topic_partition: TopicPartition, is_new: bool) -> None:
        name, index = topic_partition
        topic = self._image.topic(name)
        registration = None if topic is None else topic.partitions.get(index)
        if topic is None or registration is None or self._node_id not in registration.replicas:
            return
        partition = self.hosted(name, index)
        if partition is None:
            config = self._log_config(self._image, name)
            partition = self._host(topic_partition, topic.id, config, registration, is_new)
            if partition is None:
                return
            log.info("%s is hosted now", topic_partition)
        elif partition not in self._failed:
            return
        await self._become(partition, registration)

    async def _remove_topic(self, change: TopicChange, time_slice: TimeSlice) -> list[TopicPartition]:
        before = change.before
        assert before is not None
        removed: list[TopicPartition] = []
        for index in before.partitions:
            removed += self._remove(TopicPartition(before.name, index), before.id)
            await time_slice.yield_to_loop()
        return removed

    def _remove(self, topic_partition: TopicPartition, topic_id: Uuid) -> list[TopicPartition]:
        """Host it no more; the partition if there is a log to delete."""
        self._offline.pop(topic_partition, None)
        self._unhosted.pop(topic_partition, None)
        partitions = self._topics.get(topic_id, {})
        partition = partitions.pop(topic_partition.partition, None)
        if partition is None:
            return []
        self._failed.discard(partition)
        self._mover.removed(topic_partition)
        if not partitions:
            del self._topics[topic_id]
            if self._topics.get(topic_partition.topic) is partitions:
                del self._topics[topic_partition.topic]
        deleted = self._image.topic_by_id(topic_id) is None
        with _boundary(partition, "letting go of it"):
            if self.fetchers is not None:
                self.fetchers.unfollow((partition,))
            partition.gone(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if deleted else ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
        return [topic_partition]

    async def _apply_configs(self, delta: Delta, time_slice: TimeSlice) -> None:
        changed = {resource.name for resource in delta.configs if resource.type == ResourceType.TOPIC}
        for name in changed:
            self.quotas.topic_changed(name, delta.after.config(ResourceType.TOPIC, name))
            await self._refresh_config(delta.after, name, time_slice)

    async def _refresh_config(self, after: ClusterImage, topic: str, time_slice: TimeSlice) -> None:
        """A topic's configuration, or what it inherits, has changed."""
        partitions = self._topics.get(topic)
        if not partitions:
            return
        config, image = self._log_config(after, topic), after.topic(topic)
        for index, partition in list(partitions.items()):
            registration = None if image is None else image.partitions.get(index)
            with _boundary(partition, "a change of its configuration"):
                self._logs.update_config(partition.topic_partition, config)
                partition.config_changed(None if registration is None else registration.leader_epoch)
            await time_slice.yield_to_loop()

    async def refresh_all_configs(self, after: ClusterImage) -> None:
        """The broker's own defaults have changed, with this image: it is not applied yet, and may end leaderships."""
        time_slice = TimeSlice()
        for key in list(self._topics):
            if isinstance(key, str):
                await self._refresh_config(after, key, time_slice)

    # ---- directories --------------------------------------------------------------------------------------

    async def move_to_dir(self, topic_partition: TopicPartition, path: str) -> None:
        """Move a replica to another directory of this broker; KafkaError if that cannot be."""
        target = self._mover.target(topic_partition, path)
        partition = self.hosted(*topic_partition)
        if partition is None:
            topic = self._image.topic(topic_partition.topic)
            elsewhere = topic is not None and topic_partition.partition in topic.partitions
            raise KafkaError(
                ErrorCode.REPLICA_NOT_AVAILABLE if elsewhere else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        await self._mover.move(partition, target)

    async def _take_role_again(self, partition: Partition) -> None:
        """The directory that it was moved to has failed, and its role with that; it is served from where it was.

        To the metadata it has never been elsewhere: they say nothing new of it.
        """
        topic, index = self._image.topic_by_id(partition.topic_id), partition.topic_partition.partition
        registration = None if topic is None else topic.partitions.get(index)
        if registration is not None and self.hosted(partition.topic_id, index) is partition:
            self._failed.add(partition)  # so that it is followed anew in the epoch that it knows
            await self._become(partition, registration)

    def dir_failed(self) -> None:
        """A log directory is offline: whoever waits for a partition in it hears it now."""
        for partition in list(self.all_partitions()):
            if partition.log.failed and partition.is_leader:
                with _boundary(partition, "taking it offline"):
                    partition.gone(ErrorCode.KAFKA_STORAGE_ERROR)

    async def stop(self) -> None:
        self._stopping = True
        for task in (self._hosting, self._checking):
            if task is not None:
                task.cancel()
        await asyncio.gather(*self._flushing.values())
        await self._isr_changes.stop()
        await self._mover.stop()

    # ---- watermarks ---------------------------------------------------------------------------------------

    def high_watermark_of(self, tp: TopicPartition) -> int | None:
        """What replication-offset-checkpoint keeps of a replica that is hosted."""
        partition = self.hosted(tp.topic, tp.partition)
        return None if partition is None else partition.log.high_watermark
