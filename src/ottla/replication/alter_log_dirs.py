"""ReplicaAlterLogDirs: moves replicas between the directories of one broker (KIP-113). Copy, catch up, swap.

The copy is an ordinary log beside the current one. It is filled in pieces that leave the loop free, while the
current log goes on serving and growing; the moment it has everything it takes the other's place. A restart in
between finds the copy and goes on with it. All moves together copy no more than
`replica.alter.log.dirs.io.max.bytes.per.second`: a piece counts when it is begun, and while that is too much the next
ones wait in line.

Owner: the ReplicaManager, on the broker's loop; one task per move.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial

from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.tasks import guarded, spawn_restarting
from ottla.replication.partition import Partition
from ottla.replication.quotas import ReplicationQuotaManager
from ottla.storage.dirs.log_dir import LogDir
from ottla.storage.log.log import Log
from ottla.storage.log_manager import LogManager

log = logging.getLogger("ottla.replication")

OWNER = "replicas"

PIECE_BYTES = 512 * 1024
# How often a copy is flushed before the swap, if the log has grown each time.
MAX_FLUSHES = 8
MAX_DIR_NAME_LENGTH = 255
# What is added to the name of a partition's directory while it is a copy: a dot, 32 hex digits, "-future".
_FUTURE_SUFFIX_LENGTH = 1 + 32 + len("-future")


class ReplicaAlterLogDirs:
    """The moves under way on this broker: Kafka's ReplicaAlterLogDirsManager and its threads."""

    def __init__(
        self,
        logs: LogManager,
        clock: Clock,
        executor: Executor,
        on_moved: Callable[[Partition], None],
        on_taken_back: Callable[[Partition], Awaitable[None]],
        quota: ReplicationQuotaManager | None = None,
    ) -> None:
        """`on_taken_back` hears of a partition that was served from its copy, and is from where it was before."""
        self._logs = logs
        self._clock = clock
        self._executor = executor
        self._on_moved = on_moved
        self._on_taken_back = on_taken_back
        self._moves: dict[TopicPartition, asyncio.Task[None]] = {}
        # Those whose copy has taken the place of its log. That ends well or not, and somebody has to hear of it: what
        # is given up then is another copy.
        self._promoting: set[TopicPartition] = set()
        self._quota = quota or ReplicationQuotaManager()
        self._quota_changed = asyncio.Event()
        self._quota.watchers.add(self._quota_changed.set)
        # Whoever waits for room, one at a time: it is for one of them.
        self._line = asyncio.Lock()
        self._stopped = False

    def target(self, topic_partition: TopicPartition, path: str) -> LogDir:
        """The directory at `path`, if a copy of the partition can be made there."""
        if len(str(topic_partition)) + _FUTURE_SUFFIX_LENGTH > MAX_DIR_NAME_LENGTH:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
        target = self._logs.dirs.by_path(path)
        if not target.online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Log directory {path} is offline")
        if self._logs.dirs.is_cordoned(target):
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Log directory {path} is cordoned")
        return target

    async def move(self, partition: Partition, target: LogDir) -> None:
        """Begin a move to another directory, or end one if the replica is there already."""
        topic_partition = partition.topic_partition
        if partition.log.failed:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"Partition {topic_partition} is offline")
        while (copy := self._logs.get_future(topic_partition)) and self._logs.dir_of(copy) is not target:
            await self.cancel(topic_partition)
            if self._logs.get(topic_partition) is not partition.log:
                # Deleted, and perhaps made anew: a copy would be of one topic and take the place of another's log.
                raise KafkaError(
                    ErrorCode.REPLICA_NOT_AVAILABLE, f"{topic_partition} is not hosted here any more"
                )
        if self._logs.dir_of(partition.log) is not target:
            self._logs.create_future(topic_partition, target)
            self.resume(partition)

    def resume(self, partition: Partition) -> None:
        """Fill the copy of this partition, if it has one and nobody does so yet."""
        topic_partition = partition.topic_partition
        if self._stopped or topic_partition in self._moves or self._logs.get_future(topic_partition) is None:
            return
        task = spawn_restarting(
            lambda: self._fill(partition),
            name=f"move {topic_partition} to another directory",
            owner=OWNER,
        )
        self._moves[topic_partition] = task
        ended = guarded(
            partial(self._ended, partition), name=f"end of a move of {topic_partition}", owner=OWNER
        )
        task.add_done_callback(ended)

    async def cancel(self, topic_partition: TopicPartition) -> None:
        """Give a move up and delete what was copied."""
        if topic_partition not in self._promoting and (task := self._moves.pop(topic_partition, None)):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._logs.cancel_future(topic_partition)

    def removed(self, topic_partition: TopicPartition) -> None:
        """The replica is not hosted any more, and its copy goes with its log.

        A task that lived on would take the copy of a topic that is made anew by this name for its own.
        """
        task = self._moves.pop(topic_partition, None)
        if task is not None:
            task.cancel()

    async def stop(self) -> None:
        """Leave the copies as they are: the next start goes on with them.

        A move that has just ended is no reason to begin another: the directories are about to be closed.
        """
        self._stopped = True
        tasks = list(self._moves.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fill(self, partition: Partition) -> None:
        """Copies until nothing is left to copy and everything copied is on the disk, then swaps.

        With a log that grows as fast as it is flushed the last of it is flushed after the swap.
        """
        topic_partition = partition.topic_partition
        await self._begin_anew_if_they_part(partition)
        flushes = 0
        while (copy := self._logs.get_future(topic_partition)) is not None and not partition.log.failed:
            source = partition.log
            if copy.log_end_offset < source.log_start_offset:
                copy.truncate_fully_and_start_at(source.log_start_offset, self._clock.now_ms())
            if copy.log_end_offset < source.log_end_offset:
                if self._quota.is_quota_exceeded(self._clock.monotonic_ms()):
                    await self._wait_for_room()
                else:
                    await self._copy_piece(source, copy)
            elif not flushes or (copy.unflushed_messages and flushes < MAX_FLUSHES):
                flushes += 1
                await self._logs.flush_future(topic_partition)
            else:
                await self._promote(partition, copy)
                return

    async def _begin_anew_if_they_part(self, partition: Partition) -> None:
        """A copy that was away with its directory when its log was cut has what that has given up.

        With the same last batch both are the same up to there. Compaction may have changed it: that costs another copy.
        """
        topic_partition, source = partition.topic_partition, partition.log
        copy = self._logs.get_future(topic_partition)
        if copy is None or source.failed or await self._is_beginning_of(copy, source):
            return
        log.warning("%s: %s has what %s has not; copying anew", topic_partition, copy.dir, source.dir)
        target = self._logs.dir_of(copy)
        await self._logs.cancel_future(topic_partition)
        if self._logs.get_future(topic_partition) is None:
            self._logs.create_future(topic_partition, target)

    async def _is_beginning_of(self, copy: Log, source: Log) -> bool:
        last_offset = copy.log_end_offset - 1
        if last_offset < copy.log_start_offset or last_offset < source.log_start_offset:
            return True  # there is nothing in it that stays
        if source.log_end_offset == source.log_start_offset:
            return True  # its disk may be a new one: then all there is of the partition here is in the copy
        if last_offset >= source.log_end_offset:
            return False
        found = [each.read(last_offset, 1, each.log_end_offset) for each in (copy, source)]
        run = asyncio.get_running_loop().run_in_executor
        ours, theirs = [await run(self._executor, each.read) for each in found]
        return ours == theirs

    async def _wait_for_room(self) -> None:
        """Whoever returns from this goes on at once, and what it copies counts before the next one in line looks."""
        async with self._line:
            while self._quota.is_quota_exceeded(now_ms := self._clock.monotonic_ms()):
                self._quota_changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout((self._quota.room_ms(now_ms) - now_ms) / 1000):
                        await self._quota_changed.wait()

    async def _copy_piece(self, source: Log, copy: Log) -> None:
        end = source.log_end_offset
        found = source.read(copy.log_end_offset, PIECE_BYTES, end)
        if not found.length:
            # What comes before the end was compacted away, and what came after it cut off: there is nothing to copy.
            copy.go_on_at(end, self._clock.now_ms())
            return
        self._quota.record(found.length, self._clock.monotonic_ms())
        truncations = source.truncations
        loop = asyncio.get_running_loop()
        try:
            records = await loop.run_in_executor(self._executor, found.read)
        except (KafkaError, OSError):
            if source.truncations == truncations:
                raise
            return  # it was cut while it was read: there is another piece to copy, or none
        if copy.failed or source.failed or source.truncations != truncations:
            return
        now_ms = self._clock.now_ms()
        if found.first_offset < copy.log_end_offset == copy.log_start_offset:
            # DeleteRecords has put the start of the log into the middle of a batch, and that is the copy's first.
            copy.truncate_fully_and_start_at(found.first_offset, now_ms)
        copy.append_as_follower(records, now_ms)

    async def _promote(self, partition: Partition, copy: Log) -> None:
        """Nothing has been awaited since the copy was found complete, so nothing was appended in between."""
        copy.update_high_watermark(partition.log.high_watermark)  # what clients have seen stays visible
        partition.use_log(copy)
        self._promoting.add(partition.topic_partition)
        try:
            await self._logs.promote_future(partition.topic_partition)
        except (KafkaError, OSError):
            partition.use_log(self._logs.get(partition.topic_partition) or copy)
            if not partition.log.failed:
                await self._on_taken_back(partition)
            raise
        finally:
            self._promoting.discard(partition.topic_partition)
        partition.config_changed()
        log.info("moved %s to %s", partition.topic_partition, copy.dir)
        self._on_moved(partition)

    def _ended(self, partition: Partition, task: "asyncio.Task[None]") -> None:
        if self._moves.get(partition.topic_partition) is not task:
            return
        del self._moves[partition.topic_partition]
        if not task.cancelled() and not partition.log.failed:
            self.resume(partition)  # while it ended, another move may have begun
