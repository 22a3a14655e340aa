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
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@handles(OffsetDeleteRequest)
def offset_delete(ctx: Context, request: OffsetDeleteRequest) -> Pending[OffsetDeleteResponse]:
    """Forget offsets of topics that nobody in the group subscribes to."""
    refused = PartitionAnswers(OffsetDeleteResponseTopic, OffsetDeleteResponsePartition)
    request.topics = refused.refuse_missing(request.topics, ctx.node.image())
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    groups = ctx.node.groups
    pending = groups.write(groups.partition_for(request.group_id), partial(_decide, request))
    return pending.map(lambda response: OffsetDeleteResponse(topics=refused.merged(response.topics)))


def _decide(request: OffsetDeleteRequest, machine: GroupMachine, now_ms: int) -> Result[OffsetDeleteResponse]:
    return machine.offsets.delete_offsets(request)
