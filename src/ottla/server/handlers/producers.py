"""InitProducerId for idempotent and transactional producers, and DescribeProducers."""

from collections.abc import Coroutine
from typing import Any, Final

from ottla.coordinator.transaction.machine import InitRequest, Outcome
from ottla.coordinator.transaction.state import ProducerIdAndEpoch
from ottla.model.breath import Breath
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from ottla.model.pending import Pending
from ottla.model.topic_names import topic_name_problem
from ottla.server.context import Context
from ottla.server.handlers.transactions import known_error
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

# The first version of InitProducerId whose clients know PRODUCER_FENCED.
FIRST_FENCING_VERSION: Final = 4


@handles(InitProducerIdRequest)
def init_producer_id(
    ctx: Context, request: InitProducerIdRequest
) -> Pending[InitProducerIdResponse] | Coroutine[Any, Any, InitProducerIdResponse]:
    """A fresh producer id, or that of a transactional id with its next epoch."""
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return Pending.of(_refused(ctx, KafkaError(ErrorCode.INVALID_REQUEST)))
    if ctx.node.producer_ids.at_hand:
        return _init(ctx, request)
    return _init_later(ctx, request)


async def _init_later(ctx: Context, request: InitProducerIdRequest) -> InitProducerIdResponse:
    try:
        await ctx.node.producer_ids.fill()
    except KafkaError as error:
        return _refused(ctx, error)
    return await _init(ctx, request)


def _init(ctx: Context, request: InitProducerIdRequest) -> Pending[InitProducerIdResponse]:
    if request.transactional_id is None:
        return Pending.of(InitProducerIdResponse(producer_id=ctx.node.producer_ids.take(), producer_epoch=0))
    if not request.transactional_id:
        return Pending.of(_refused(ctx, KafkaError(ErrorCode.INVALID_REQUEST)))
    expected = None
    if request.producer_id != NO_PRODUCER_ID:
        expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    ask = InitRequest(
        request.transactional_id,
        request.transaction_timeout_ms,
        expected,
        request.enable_2pc,
        request.keep_prepared_txn,
    )
    return ctx.node.transactions.init_producer_id(ask).map(
        lambda outcome: _initialized(ctx, outcome), lambda error: _refused(ctx, error)
    )


def _initialized(ctx: Context, outcome: Outcome) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        error_code=known_error(ctx.version, outcome.error, FIRST_FENCING_VERSION),
        producer_id=outcome.producer_id,
        producer_epoch=outcome.producer_epoch,
    )


def _refused(ctx: Context, error: KafkaError) -> InitProducerIdResponse:
    return _initialized(ctx, Outcome(error.code))


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
