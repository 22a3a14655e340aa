"""InitProducerId for idempotent producers, and DescribeProducers.

A transactional id needs the transaction coordinator, which this broker does not have yet: such a producer is told
so with the error its client waits and retries on.
"""

from ottla.model.breath import Breath
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.topic_names import topic_name_problem
from ottla.server.context import Context
from ottla.server.registry import handles
from ottla.wire.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1


@handles(InitProducerIdRequest)
async def init_producer_id(ctx: Context, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """A fresh producer id with epoch 0."""
    error = _refusal(request)
    if error is None:
        try:
            return InitProducerIdResponse(producer_id=await ctx.node.producer_ids.next_id(), producer_epoch=0)
        except KafkaError as failure:
            error = failure.code
    return InitProducerIdResponse(
        error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )


def _refusal(request: InitProducerIdRequest) -> ErrorCode | None:
    if request.transactional_id is not None:
        return (
            ErrorCode.INVALID_REQUEST if not request.transactional_id else ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return ErrorCode.INVALID_REQUEST
    return None


@handles(DescribeProducersRequest)
async def describe_producers(ctx: Context, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """The producers that partitions remember (KIP-664)."""
    breath = Breath()
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[await _describe(ctx, topic.name, i, breath) for i in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _require_topic(ctx: Context, topic: str) -> None:
    why = topic_name_problem(topic)
    if why is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, why)
    if ctx.node.image().topic(topic) is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {topic}")


async def _describe(ctx: Context, topic: str, index: int, breath: Breath) -> PartitionResponse:
    await breath.take()
    try:
        _require_topic(ctx, topic)
        partition = ctx.node.replicas.leader(topic, index)
    except KafkaError as error:
        return PartitionResponse(
            partition_index=index, error_code=error.code, error_message=error.message, active_producers=[]
        )
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.current_txn_start_offset,
            )
            for producer in partition.log.active_producers()
        ],
    )
