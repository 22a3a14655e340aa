"""What is asked of logs: ListOffsets, OffsetForLeaderEpoch, DeleteRecords, DescribeLogDirs, AlterReplicaLogDirs.

Searches by timestamp read the log, so they run in a thread; everything else is known in memory. Of a topic that whoever
asks may not see or change nothing is looked at, so the answer does not tell whether there is one.
"""

import asyncio
from collections import Counter
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from ottla.metadata.features import cordoned_dirs_supported
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import INTERNAL_TOPICS, NO_LEADER_EPOCH, NO_OFFSET, NO_TIMESTAMP, TopicPartition
from ottla.model.tasks import guarded
from ottla.model.time_slice import TimeSlice
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from ottla.server.context import Context
from ottla.server.errors import says_errors_by_item
from ottla.server.registry import handles
from ottla.storage.log_manager import LogDirInfo
from ottla.storage.segment.file_records import TimestampOffset
from ottla.wire.messages.admin.log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from ottla.wire.messages.admin.topics import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from ottla.wire.messages.list_offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)

CLUSTER, TOPIC = ResourceType.CLUSTER, ResourceType.TOPIC
DESCRIBE, DELETE, CLUSTER_ACTION = AclOperation.DESCRIBE, AclOperation.DELETE, AclOperation.CLUSTER_ACTION


class Special(IntEnum):
    """The timestamps that stand for something else."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


# The first version that knows each special timestamp; below -6 there is none.
_SINCE = {Special.MAX_TIMESTAMP: 7, Special.EARLIEST_LOCAL: 8, Special.LATEST_TIERED: 9}
_SINCE[Special.EARLIEST_PENDING_UPLOAD] = 11
# Without tiered storage nothing is tiered and nothing is pending.
_NOWHERE = TimestampOffset(NO_TIMESTAMP, NO_OFFSET, NO_LEADER_EPOCH)

CONSUMER_REPLICA_ID = -1
DEBUGGING_REPLICA_ID = -2
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
OFFSET_NOT_AVAILABLE_VERSION = 5

# Of DeleteRecords: everything that is committed, and the answer to what is refused.
HIGH_WATERMARK = -1
INVALID_LOW_WATERMARK = -1


# ---- from a time or an epoch to an offset -------------------------------------------------------------------


@handles(ListOffsetsRequest)
async def list_offsets(ctx: Context, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """An offset for each partition asked about."""
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Unknown isolation level {request.isolation_level}")
    times_asked = Counter(
        (topic.name, p.partition_index) for topic in request.topics for p in topic.partitions
    )
    may = await ctx.authorized_of_many(DESCRIBE, TOPIC, (topic.name for topic in request.topics))
    by_topic: dict[str, dict[int, ListOffsetsPartition]] = {}
    for topic in request.topics:
        if topic.name in may:
            by_topic.setdefault(topic.name, {}).update((p.partition_index, p) for p in topic.partitions)
    time_slice = TimeSlice()
    topics = [
        ListOffsetsTopicResponse(
            name=name,
            partitions=[
                await _answer(ctx, request, name, partition, times_asked[name, index], time_slice)
                for index, partition in partitions.items()
            ],
        )
        for name, partitions in by_topic.items()
    ]
    return ListOffsetsResponse(topics=topics + [_denied(t) for t in request.topics if t.name not in may])


def _denied(topic: ListOffsetsTopic) -> ListOffsetsTopicResponse:
    return ListOffsetsTopicResponse(
        name=topic.name,
        partitions=[
            ListOffsetsPartitionResponse(
                partition_index=asked.partition_index, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
            )
            for asked in topic.partitions
        ],
    )


async def _answer(
    ctx: Context,
    request: ListOffsetsRequest,
    topic: str,
    wanted: ListOffsetsPartition,
    times_asked: int,
    time_slice: TimeSlice,
) -> ListOffsetsPartitionResponse:
    await time_slice.yield_to_loop()
    response = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
    try:
        _check(ctx.version, wanted, times_asked)
        found = await _find(ctx, request, topic, wanted)
    except KafkaError as error:
        response.error_code = _code_for(ctx.version, error.code)
        return response
    if found is not None:
        response.timestamp = found.timestamp
        response.offset = found.offset
        response.leader_epoch = found.leader_epoch if ctx.version >= 4 else NO_LEADER_EPOCH
    return response


def _check(version: int, wanted: ListOffsetsPartition, times_asked: int) -> None:
    if times_asked > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    timestamp = wanted.timestamp
    if timestamp < 0 and (timestamp < min(Special) or version < _SINCE.get(Special(timestamp), 1)):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)


def _code_for(version: int, code: ErrorCode) -> ErrorCode:
    if code == ErrorCode.OFFSET_NOT_AVAILABLE and version < OFFSET_NOT_AVAILABLE_VERSION:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return code


async def _find(
    ctx: Context, request: ListOffsetsRequest, topic: str, wanted: ListOffsetsPartition
) -> TimestampOffset | None:
    debugging = request.replica_id == DEBUGGING_REPLICA_ID
    partition = _partition(
        ctx, topic, wanted.partition_index, wanted.current_leader_epoch, any_replica=debugging
    )
    log = partition.log
    timestamp = wanted.timestamp
    if timestamp in (Special.EARLIEST, Special.EARLIEST_LOCAL):
        return TimestampOffset(NO_TIMESTAMP, log.log_start_offset, log.epochs.epoch_for(log.log_start_offset))
    if timestamp in (Special.LATEST_TIERED, Special.EARLIEST_PENDING_UPLOAD):
        return _NOWHERE
    # A new leader does not know yet how much of what it found is committed (KIP-207).
    from_consumer = request.replica_id == CONSUMER_REPLICA_ID
    lagging = from_consumer and partition.leader_epoch_start_offset > log.high_watermark
    bound = _bound(partition, request)
    if timestamp == Special.LATEST:
        if lagging:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return TimestampOffset(NO_TIMESTAMP, bound, partition.leader_epoch)
    found = await _search(ctx, partition, timestamp, any_replica=debugging)
    if found is not None and found.offset < bound:
        return found
    if lagging:
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
    return None


async def _search(
    ctx: Context, partition: Partition, timestamp: int, *, any_replica: bool
) -> TimestampOffset | None:
    """The first record at or after a time, or the youngest one; looked for in a thread."""
    log, epoch = partition.log, partition.leader_epoch
    search = log.offset_of_max_timestamp
    if timestamp != Special.MAX_TIMESTAMP:
        search = partial(log.offset_for_timestamp, timestamp)
    failure: Exception | None = None
    found: TimestampOffset | None = None
    try:
        found = await ctx.node.unpacking.run(search)
    except Exception as error:  # noqa: BLE001 - raised again below
        failure = error
    if not any_replica and not (partition.is_leader and partition.leader_epoch == epoch):
        # The log may have been cut while the thread read it: nothing that it says counts.
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER) from failure
    if failure is not None:
        raise failure
    return found


def _bound(partition: Partition, request: ListOffsetsRequest) -> int:
    """The offset from which on the asker may not know of anything."""
    if request.replica_id != CONSUMER_REPLICA_ID:
        return partition.log.log_end_offset
    return partition.read_bound(request.isolation_level == READ_COMMITTED)


def _partition(
    ctx: Context, topic: str, index: int, current_leader_epoch: int, *, any_replica: bool = False
) -> Partition:
    """The partition, if it is led here, or here at all; who believes in another epoch is told that first."""
    partition = ctx.node.replicas.replica(topic, index)
    error = partition.check_leader(current_leader_epoch)
    if error and not (any_replica and error is ErrorCode.NOT_LEADER_OR_FOLLOWER):
        raise KafkaError(error)
    return partition


@handles(OffsetForLeaderEpochRequest)
async def offset_for_leader_epoch(
    ctx: Context, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Where each epoch ended, so that a client finds out whether its log was truncated (KIP-320).

    It was the brokers' at first, and they may ask about all topics.
    """
    names = {topic.topic for topic in request.topics}
    if not ctx.authorize(CLUSTER_ACTION, CLUSTER, CLUSTER_NAME, log_if_denied=False):
        names = await ctx.authorized_of_many(DESCRIBE, TOPIC, (topic.topic for topic in request.topics))
    time_slice = TimeSlice()
    found = [
        OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=[await _epoch_end(ctx, topic.topic, asked, time_slice) for asked in topic.partitions],
        )
        for topic in request.topics
        if topic.topic in names
    ]
    return OffsetForLeaderEpochResponse(
        topics=found + [_denied_end(topic) for topic in request.topics if topic.topic not in names]
    )


def _denied_end(topic: OffsetForLeaderTopic) -> OffsetForLeaderTopicResult:
    return OffsetForLeaderTopicResult(
        topic=topic.topic,
        partitions=[
            EpochEndOffset(partition=asked.partition, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            for asked in topic.partitions
        ],
    )


async def _epoch_end(
    ctx: Context, topic: str, asked: OffsetForLeaderPartition, time_slice: TimeSlice
) -> EpochEndOffset:
    await time_slice.yield_to_loop()
    response = EpochEndOffset(partition=asked.partition)
    try:
        partition = _partition(ctx, topic, asked.partition, asked.current_leader_epoch)
    except KafkaError as error:
        response.error_code = error.code
        return response
    end = partition.log.epochs.end_offset_for(asked.leader_epoch, partition.log.log_end_offset)
    if end is not None:
        response.leader_epoch, response.end_offset = end
    return response


# ---- deleting records ---------------------------------------------------------------------------------------


@handles(DeleteRecordsRequest)
async def delete_records(ctx: Context, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Move the start of partitions forward; the segments below it go with the next retention run.

    It is answered when all live replicas have moved theirs, which followers do with their next fetch.
    """
    offsets: dict[str, dict[int, int]] = {}
    for topic in request.topics:
        offsets.setdefault(topic.name, {}).update((p.partition_index, p.offset) for p in topic.partitions)
    may = await ctx.authorized_of_many(DELETE, TOPIC, offsets)
    time_slice = TimeSlice()
    deleting = DelayedDeleteRecords(ctx.node.replicas, ctx.node.loop)
    topics: list[DeleteRecordsTopicResult] = []
    try:
        for name, asked in offsets.items():
            results: list[DeleteRecordsPartitionResult] = []
            topics.append(DeleteRecordsTopicResult(name=name, partitions=results))
            for index, offset in asked.items():
                await time_slice.yield_to_loop()
                if name not in may:
                    results.append(_denied_deletion(index))
                    continue
                results.append(deleting.begin(TopicPartition(name, index), offset))
        await deleting.finished(request.timeout_ms)
    finally:
        deleting.stop()
    return DeleteRecordsResponse(topics=topics)


def _denied_deletion(index: int) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=index,
        low_watermark=INVALID_LOW_WATERMARK,
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    )


class _Deletion(NamedTuple):
    """What a partition's low watermark has to reach, and the answer that says so."""

    offset: int
    result: DeleteRecordsPartitionResult


class DelayedDeleteRecords:
    """A DeleteRecords that waits until the low watermarks, the first offsets of all live replicas, have moved."""

    def __init__(self, replicas: ReplicaManager, loop: asyncio.AbstractEventLoop) -> None:
        self._replicas = replicas
        self._loop = loop
        self._waiting: dict[Partition, _Deletion] = {}
        # Those of them at which something has happened since they were looked at.
        self._news: dict[Partition, None] = {}
        # Made when all have begun: before that nothing is finished.
        self._done: asyncio.Future[None] | None = None
        self._look_later = guarded(self._look, name="looking at low watermarks", owner="delete records")

    def begin(self, where: TopicPartition, offset: int) -> DeleteRecordsPartitionResult:
        """Move the leader's start; what has to wait for followers counts as timed out until they are there."""
        result = DeleteRecordsPartitionResult(
            partition_index=where.partition, low_watermark=INVALID_LOW_WATERMARK
        )
        try:
            partition, required = _move_start(self._replicas, where, offset)
        except KafkaError as error:
            result.error_code = error.code
            return result
        result.low_watermark = partition.remote_log_start_offsets()
        if result.low_watermark < required:
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            self._waiting[partition] = _Deletion(required, result)
            partition.watchers.add(self)
        return result

    async def finished(self, timeout_ms: int) -> None:
        """Return when nothing is waited for any more, or its time is up."""
        if not self._waiting:
            return
        self._done = self._loop.create_future()
        await asyncio.wait([self._done], timeout=max(timeout_ms, 0) / 1000)

    def stop(self) -> None:
        for partition in self._waiting:
            partition.watchers.discard(self)
        self._waiting.clear()

    def progressed(self, partition: Partition) -> None:
        if not self._news:
            self._loop.call_soon(self._look_later)
        self._news[partition] = None

    def _look(self) -> None:
        news, self._news = self._news, {}
        for partition in news:
            deletion = self._waiting.get(partition)
            if deletion is not None and self._is_settled(partition, deletion):
                del self._waiting[partition]
                partition.watchers.discard(self)
        if not self._waiting:
            self._finish()

    def _is_settled(self, partition: Partition, deletion: _Deletion) -> bool:
        error = self._why_lost(partition)
        low_watermark = INVALID_LOW_WATERMARK if error else partition.remote_log_start_offsets()
        if not error and low_watermark < deletion.offset:
            return False
        deletion.result.error_code, deletion.result.low_watermark = error, low_watermark
        return True

    def _why_lost(self, partition: Partition) -> ErrorCode:
        topic, index = partition.topic_partition
        hosted = self._replicas.hosted(partition.topic_id, index)
        if hosted is partition and partition.is_leader and not partition.log.failed:
            return ErrorCode.NONE
        try:
            self._replicas.leader(topic, index)
        except KafkaError as error:
            if hosted is None and error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # no replica of it is here any more
            return error.code
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # deleted, and made anew

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


def _move_start(replicas: ReplicaManager, where: TopicPartition, offset: int) -> tuple[Partition, int]:
    """The partition, and where it begins now at the earliest."""
    if where.topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    partition = replicas.leader(*where)
    log = partition.log
    if log.config.compact and not log.config.delete:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)
    required = log.high_watermark if offset == HIGH_WATERMARK else offset
    if not 0 <= required <= log.high_watermark:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    log.maybe_increment_log_start_offset(required, "a client deleted records")
    return partition, required


# ---- directories (KIP-113) ----------------------------------------------------------------------------------


@handles(DescribeLogDirsRequest)
async def describe_log_dirs(ctx: Context, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """Every directory with the replicas asked about, or all of them."""
    asked = None
    if request.topics is not None:
        asked = [TopicPartition(t.topic, index) for t in request.topics for index in t.partitions]
    shows_cordoned = cordoned_dirs_supported(ctx.node.image().metadata_version or 0)
    found = await ctx.node.logs.describe(asked)
    return DescribeLogDirsResponse(results=[_result(info, shows_cordoned) for info in found])


def _result(info: LogDirInfo, shows_cordoned: bool) -> DescribeLogDirsResult:
    by_topic: dict[str, list[DescribeLogDirsPartition]] = {}
    for replica in info.replicas:
        by_topic.setdefault(replica.topic_partition.topic, []).append(
            DescribeLogDirsPartition(
                partition_index=replica.topic_partition.partition,
                partition_size=replica.size_bytes,
                offset_lag=replica.offset_lag,
                is_future_key=replica.is_future,
            )
        )
    return DescribeLogDirsResult(
        error_code=info.error or ErrorCode.NONE,
        log_dir=info.path,
        topics=[DescribeLogDirsTopic(name=name, partitions=found) for name, found in by_topic.items()],
        total_bytes=info.total_bytes,
        usable_bytes=info.usable_bytes,
        is_cordoned=shows_cordoned and info.cordoned,
    )


@handles(AlterReplicaLogDirsRequest)
async def alter_replica_log_dirs(
    ctx: Context, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Start moving replicas to other directories of this broker; the copying goes on in the background."""
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    time_slice = TimeSlice()
    for wanted in request.dirs:
        for topic in wanted.topics:
            for index in topic.partitions:
                await time_slice.yield_to_loop()
                code = await _move(ctx, TopicPartition(topic.name, index), wanted.path)
                results.setdefault(topic.name, []).append(
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                )
    return AlterReplicaLogDirsResponse(
        results=[AlterReplicaLogDirTopicResult(topic_name=name, partitions=p) for name, p in results.items()]
    )


def _refused_moves(request: AlterReplicaLogDirsRequest, code: ErrorCode) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=int(code))
                    for index in topic.partitions
                ],
            )
            for wanted in request.dirs
            for topic in wanted.topics
        ]
    )


says_errors_by_item(AlterReplicaLogDirsRequest, _refused_moves)


async def _move(ctx: Context, topic_partition: TopicPartition, path: str) -> ErrorCode:
    try:
        await ctx.node.replicas.move_to_dir(topic_partition, path)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
