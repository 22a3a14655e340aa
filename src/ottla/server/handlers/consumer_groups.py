"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: consumer groups of the new protocol (KIP-848).

What is wrong with a request whatever the group is refused here; the rest is the coordinator's to decide.
"""

from collections.abc import Iterator
from functools import partial

from ottla.coordinator.group.classic.join import Caller
from ottla.coordinator.group.consumer.validation import validate
from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.machine import GroupMachine
from ottla.coordinator.result import Result
from ottla.metadata.features import GROUP_VERSION
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.server.context import Context
from ottla.server.group_requests import caller_of, describe_groups, is_enabled
from ottla.server.registry import handles
from ottla.wire.messages.consumer_group import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedGroup,
    Member,
)


@handles(ConsumerGroupHeartbeatRequest)
def consumer_group_heartbeat(
    ctx: Context, request: ConsumerGroupHeartbeatRequest
) -> Pending[ConsumerGroupHeartbeatResponse]:
    """A member joins, stays or leaves, and learns what it shall have."""
    if not is_enabled(ctx, GroupType.CONSUMER, GROUP_VERSION):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "The consumer group protocol is not switched on.")
    validate(request, ctx.version, ctx.node.group_assignors)
    groups = ctx.node.groups
    return groups.write(groups.partition_for(request.group_id), partial(_decide, caller_of(ctx), request))


def _decide(
    caller: Caller, request: ConsumerGroupHeartbeatRequest, machine: GroupMachine, now_ms: int
) -> Result[ConsumerGroupHeartbeatResponse]:
    return machine.consumer.heartbeat(caller, request, now_ms)


@handles(ConsumerGroupDescribeRequest)
async def consumer_group_describe(
    ctx: Context, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Consumer groups, their members, and what those have and shall have."""
    enabled = is_enabled(ctx, GroupType.CONSUMER, GROUP_VERSION)
    groups = await describe_groups(ctx, request, DescribedGroup, _describe, enabled=enabled)
    return ConsumerGroupDescribeResponse(groups=groups)


def _describe(machine: GroupMachine, group_id: str) -> tuple[DescribedGroup, Iterator[Member]]:
    return machine.consumer.describe(group_id)
