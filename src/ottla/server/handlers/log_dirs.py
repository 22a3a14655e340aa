"""DescribeLogDirs and AlterReplicaLogDirs: what lies in which directory, and moving it (KIP-113)."""

from ottla.metadata.features import cordoned_dirs_supported
from ottla.model.breath import Breath
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.server.context import Context
from ottla.server.registry import handles
from ottla.storage.describe import LogDirInfo
from ottla.wire.messages.log_dirs import (
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
    breath = Breath()
    for wanted in request.dirs:
        for topic in wanted.topics:
            for index in topic.partitions:
                await breath.take()
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
