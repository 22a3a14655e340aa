"""OffsetCommit and TxnOffsetCommit: a group stores how far it has read.

What does not exist is refused here, partition by partition; the rest is the coordinator's to decide. Where it refuses
as a whole, that stands at every partition it was asked about.
"""

from functools import partial

from ottla.coordinator.group.machine import GroupMachine
from ottla.coordinator.result import Result
from ottla.coordinator.shard import Producer
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.model.pending import Pending
from ottla.server.context import Context
from ottla.server.errors import error_response
from ottla.server.partition_answers import PartitionAnswers
from ottla.server.registry import handles
from ottla.server.transaction_verification import verify_offset_commit
from ottla.wire.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

# The first version that names topics by their ids (KIP-848).
FIRST_TOPIC_ID_VERSION = 10
# Producers of before 2.0 do not know that a coordinator may be loading (KAFKA-7296).
FIRST_LOADING_VERSION = 2
# What one commit may hold: twice what fits into a batch of the size that brokers have, and it is decided in one piece.
MAX_OFFSETS = 20_000


# ---- outside transactions -------------------------------------------------------------------------------------


@handles(OffsetCommitRequest)
def offset_commit(
    ctx: Context, request: OffsetCommitRequest
) -> OffsetCommitResponse | Pending[OffsetCommitResponse]:
    """Store offsets."""
    _check_count(request)
    by_id = ctx.version >= FIRST_TOPIC_ID_VERSION
    refused = PartitionAnswers(
        OffsetCommitResponseTopic, OffsetCommitResponsePartition, "topic_id" if by_id else "name"
    )
    request.topics = _existing(ctx, request.topics, refused, by_id=by_id)
    if not request.topics:
        return OffsetCommitResponse(topics=refused.merged(()))
    groups = ctx.node.groups
    pending = groups.write(
        groups.partition_for(request.group_id), partial(_decide_commit, request, ctx.version)
    )
    if not refused:
        return pending
    return pending.map(
        lambda response: OffsetCommitResponse(topics=refused.merged(response.topics)),
        lambda error: OffsetCommitResponse(topics=refused.merged(_as_a_whole(ctx, request, error))),
    )


def _check_count(request: OffsetCommitRequest | TxnOffsetCommitRequest) -> None:
    count = sum([len(topic.partitions) for topic in request.topics])
    if count > MAX_OFFSETS:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{count} offsets are more than a batch holds")


def _decide_commit(
    request: OffsetCommitRequest, version: int, machine: GroupMachine, now_ms: int
) -> Result[OffsetCommitResponse]:
    return machine.offsets.commit(request, version, now_ms)


def _existing(
    ctx: Context, topics: list[OffsetCommitRequestTopic], refused: PartitionAnswers, *, by_id: bool
) -> list[OffsetCommitRequestTopic]:
    """The topics and partitions that there are, with their names and ids."""
    image = ctx.node.image()
    existing = []
    for topic in topics:
        found = image.topic_by_id(topic.topic_id) if by_id else image.topic(topic.name)
        if found is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            refused.refuse(topic, topic.partitions, code)
            continue
        topic.name, topic.topic_id = found.name, found.id
        missing = [p for p in topic.partitions if p.partition_index not in found.partitions]
        if missing:
            refused.refuse(topic, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            topic.partitions = [p for p in topic.partitions if p.partition_index in found.partitions]
        if topic.partitions:
            existing.append(topic)
    return existing


def _as_a_whole(
    ctx: Context, request: OffsetCommitRequest, error: KafkaError
) -> list[OffsetCommitResponseTopic]:
    topics: list[OffsetCommitResponseTopic] = error_response(request, ctx.version, error.code, None).topics
    return topics


# ---- inside transactions --------------------------------------------------------------------------------------


@handles(TxnOffsetCommitRequest)
def txn_offset_commit(
    ctx: Context, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | Pending[TxnOffsetCommitResponse]:
    """Store offsets that count once the producer's transaction is committed."""
    _check_count(request)
    refused = PartitionAnswers(TxnOffsetCommitResponseTopic, TxnOffsetCommitResponsePartition)
    request.topics = refused.refuse_missing(request.topics, ctx.node.image())
    if not request.topics:
        return TxnOffsetCommitResponse(topics=refused.merged(()))
    return _write_in_transaction(ctx, request).map(
        lambda response: TxnOffsetCommitResponse(topics=refused.merged(response.topics)),
        lambda error: TxnOffsetCommitResponse(topics=refused.merged(_txn_as_a_whole(ctx, request, error))),
    )


def _write_in_transaction(ctx: Context, request: TxnOffsetCommitRequest) -> Pending[TxnOffsetCommitResponse]:
    if not request.group_id:
        return Pending.failed(KafkaError(ErrorCode.INVALID_GROUP_ID))
    groups = ctx.node.groups
    index = groups.partition_for(request.group_id)
    producer = Producer(request.producer_id, request.producer_epoch)
    # The verification holds only for what is appended in the turn in which it is answered.
    return verify_offset_commit(
        ctx.node, TopicPartition(groups.topic, index), request.transactional_id, producer, ctx.version
    ).and_then(
        lambda _: groups.write(index, partial(_decide_txn_commit, request, ctx.version), producer=producer)
    )


def _decide_txn_commit(
    request: TxnOffsetCommitRequest, version: int, machine: GroupMachine, now_ms: int
) -> Result[TxnOffsetCommitResponse]:
    return machine.offsets.txn_commit(request, version, now_ms)


def _txn_as_a_whole(
    ctx: Context, request: TxnOffsetCommitRequest, error: KafkaError
) -> list[TxnOffsetCommitResponseTopic]:
    code = error.code
    if code is ErrorCode.NETWORK_EXCEPTION:
        # The transaction could not be verified: a client of any age comes again when it is told this.
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and ctx.version < FIRST_LOADING_VERSION:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    topics: list[TxnOffsetCommitResponseTopic] = error_response(request, ctx.version, code, None).topics
    return topics
