"""OffsetDelete: a group forgets single offsets (KIP-496)."""

from functools import partial

from ottla.coordinator.group.machine import GroupMachine
from ottla.coordinator.result import Result
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.server.context import Context
from ottla.server.partition_answers import PartitionAnswers
from ottla.server.registry import handles
from ottla.wire.messages.groups import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@handles(OffsetDeleteRequest)
def offset_delete(ctx: Context, request: OffsetDeleteRequest) -> Pending[OffsetDeleteResponse]:
    """Forget offsets of topics that nobody in the group subscribes to."""
    refused = PartitionAnswers(OffsetDeleteResponseTopic, OffsetDeleteResponsePartition)
    request.topics = _existing(ctx, request.topics, refused)
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    groups = ctx.node.groups
    pending = groups.write(groups.partition_for(request.group_id), partial(_decide, request))
    return pending.map(lambda response: OffsetDeleteResponse(topics=refused.merged(response.topics)))


def _decide(request: OffsetDeleteRequest, machine: GroupMachine, now_ms: int) -> Result[OffsetDeleteResponse]:
    return machine.offsets.delete_offsets(request)


def _existing(
    ctx: Context, topics: list[OffsetDeleteRequestTopic], refused: PartitionAnswers
) -> list[OffsetDeleteRequestTopic]:
    image = ctx.node.image()
    existing = []
    for topic in topics:
        found = image.topic(topic.name)
        partitions = {} if found is None else found.partitions
        missing = [p for p in topic.partitions if p.partition_index not in partitions]
        if missing or found is None:
            refused.refuse(topic, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            topic.partitions = [p for p in topic.partitions if p.partition_index in partitions]
        if topic.partitions:
            existing.append(topic)
    return existing
