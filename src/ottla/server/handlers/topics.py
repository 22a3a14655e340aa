"""CreateTopics, DeleteTopics, CreatePartitions go to the controller; DeleteRecords is the partition leader's.

What the controller decided is waited for here until this broker has it too, so that a client that creates a
topic and uses it at once finds it.
"""

from ottla.model.breath import Breath
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.topic_names import INTERNAL_TOPICS
from ottla.server.context import Context
from ottla.server.registry import Listener, handles
from ottla.server.request_head import MAX_DECIDED_ELEMENTS
from ottla.wire.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

HIGH_WATERMARK = -1
INVALID_LOW_WATERMARK = -1


@handles(CreateTopicsRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def create_topics(ctx: Context, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """New topics, each with its own success or error."""
    response = await ctx.node.controller.create_topics(request, ctx.decision)
    await ctx.node.caught_up()
    return response


@handles(DeleteTopicsRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def delete_topics(ctx: Context, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Topics by name or id; their files go in the background."""
    if not ctx.node.config()["delete.topic.enable"]:
        low = ctx.version < 3
        raise KafkaError(ErrorCode.INVALID_REQUEST if low else ErrorCode.TOPIC_DELETION_DISABLED)
    response = await ctx.node.controller.delete_topics(request, ctx.decision)
    await ctx.node.caught_up()
    return response


@handles(CreatePartitionsRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def create_partitions(ctx: Context, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """More partitions for topics that exist."""
    response = await ctx.node.controller.create_partitions(request, ctx.decision)
    await ctx.node.caught_up()
    return response


@handles(DeleteRecordsRequest)
async def delete_records(ctx: Context, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Move the start of partitions forward; the segments below it go with the next retention run."""
    breath = Breath()
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[await _delete_records(ctx, topic.name, p, breath) for p in topic.partitions],
            )
            for topic in request.topics
        ]
    )


async def _delete_records(
    ctx: Context, topic: str, asked: DeleteRecordsPartition, breath: Breath
) -> DeleteRecordsPartitionResult:
    await breath.take()
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
