"""What is asked of logs: ListOffsets, OffsetForLeaderEpoch, DeleteRecords, DescribeLogDirs, AlterReplicaLogDirs.

Searches by timestamp read the log, so they run in a thread; everything else is known in memory.
"""

from collections import Counter
from enum import IntEnum
from functools import partial

from ottla.metadata.features import cordoned_dirs_supported
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import INTERNAL_TOPICS, NO_LEADER_EPOCH, NO_OFFSET, NO_TIMESTAMP, TopicPartition
from ottla.model.time_slice import TimeSlice
from ottla.replication.partition import Partition
from ottla.server.context import Context
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
    DeleteRecordsPartition,
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
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


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
    by_topic: dict[str, dict[int, ListOffsetsPartition]] = {}
    for topic in request.topics:
        by_topic.setdefault(topic.name, {}).update((p.partition_index, p) for p in topic.partitions)
    time_slice = TimeSlice()
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=name,
                partitions=[
                    await _answer(ctx, request, name, partition, times_asked[name, index], time_slice)
                    for index, partition in partitions.items()
                ],
            )
            for name, partitions in by_topic.items()
        ]
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
    partition = _partition(
        ctx, topic, wanted.partition_index, request.replica_id, wanted.current_leader_epoch
    )
    log = partition.log
    timestamp = wanted.timestamp
    if timestamp in (Special.EARLIEST, Special.EARLIEST_LOCAL):
        return TimestampOffset(NO_TIMESTAMP, log.log_start_offset, log.epochs.epoch_for(log.log_start_offset))
    if timestamp in (Special.LATEST_TIERED, Special.EARLIEST_PENDING_UPLOAD):
        return _NOWHERE
    from_consumer = request.replica_id == CONSUMER_REPLICA_ID
    lagging = from_consumer and partition.leader_epoch_start_offset > log.high_watermark
    if timestamp == Special.LATEST:
        if lagging:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        return TimestampOffset(NO_TIMESTAMP, _bound(partition, request), partition.leader_epoch)
    if timestamp == Special.MAX_TIMESTAMP:
        found = await ctx.node.unpacking.run(log.offset_of_max_timestamp)
    else:
        found = await ctx.node.unpacking.run(partial(log.offset_for_timestamp, timestamp))
    if found is not None and found.offset < _bound(partition, request):
        return found
    if lagging:
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
    return None


def _bound(partition: Partition, request: ListOffsetsRequest) -> int:
    """The offset from which on the asker may not know of anything."""
    if request.replica_id != CONSUMER_REPLICA_ID:
        return partition.log.log_end_offset
    return partition.read_bound(request.isolation_level == READ_COMMITTED)


def _partition(ctx: Context, topic: str, index: int, replica_id: int, current_leader_epoch: int) -> Partition:
    if replica_id == DEBUGGING_REPLICA_ID:
        hosted = ctx.node.replicas.hosted(topic, index)
        if hosted is not None:
            return hosted
    partition = ctx.node.replicas.leader(topic, index)
    error = partition.check_leader(current_leader_epoch)
    if error:
        raise KafkaError(error)
    return partition


@handles(OffsetForLeaderEpochRequest)
async def offset_for_leader_epoch(
    ctx: Context, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Where each epoch ended, so that a client finds out whether its log was truncated (KIP-320)."""
    time_slice = TimeSlice()
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    await _epoch_end(ctx, topic.topic, asked, time_slice) for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _epoch_end(
    ctx: Context, topic: str, asked: OffsetForLeaderPartition, time_slice: TimeSlice
) -> EpochEndOffset:
    await time_slice.yield_to_loop()
    response = EpochEndOffset(partition=asked.partition)
    try:
        partition = _partition(ctx, topic, asked.partition, CONSUMER_REPLICA_ID, asked.current_leader_epoch)
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
    """Move the start of partitions forward; the segments below it go with the next retention run."""
    time_slice = TimeSlice()
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[await _delete_records(ctx, topic.name, p, time_slice) for p in topic.partitions],
            )
            for topic in request.topics
        ]
    )


async def _delete_records(
    ctx: Context, topic: str, asked: DeleteRecordsPartition, time_slice: TimeSlice
) -> DeleteRecordsPartitionResult:
    await time_slice.yield_to_loop()
    result = DeleteRecordsPartitionResult(
        partition_index=asked.partition_index, low_watermark=INVALID_LOW_WATERMARK
    )
    try:
        result.low_watermark = _move_start(ctx, topic, asked)
    except KafkaError as error:
        result.error_code = error.code
    return result


def _move_start(ctx: Context, topic: str, asked: DeleteRecordsPartition) -> int:
    if topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    partition = ctx.node.replicas.leader(topic, asked.partition_index)
    log = partition.log
    if "delete" not in log.config.cleanup_policy:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)
    offset = log.high_watermark if asked.offset == HIGH_WATERMARK else asked.offset
    if not 0 <= offset <= log.high_watermark:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    log.maybe_increment_log_start_offset(offset, "a client deleted records")
    return log.log_start_offset


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


async def _move(ctx: Context, topic_partition: TopicPartition, path: str) -> ErrorCode:
    try:
        await ctx.node.replicas.move_to_dir(topic_partition, path)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
