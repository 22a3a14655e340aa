"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: consumer groups of the new protocol (KIP-848).

What is wrong with a request whatever the group is refused here; the rest is the coordinator's to decide.
"""

from functools import partial

from ottla.coordinator.group.classic.join import Caller
from ottla.coordinator.group.consumer.heartbeat import validate
from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.machine import GroupMachine
from ottla.coordinator.result import Result
from ottla.metadata.features import GROUP_VERSION
from ottla.model.breath import Breath
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.server.authorized import ALL_GROUP_OPERATIONS
from ottla.server.context import Context
from ottla.server.registry import handles
from ottla.wire.messages.consumer_group import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedGroup,
)


def _enabled(ctx: Context) -> bool:
    """Is the protocol switched on, by the cluster's features and by this broker's configuration?"""
    protocols = ctx.node.config()["group.coordinator.rebalance.protocols"]
    return ctx.node.image().features.get(GROUP_VERSION, 0) >= 1 and GroupType.CONSUMER in protocols


@handles(ConsumerGroupHeartbeatRequest)
def consumer_group_heartbeat(
    ctx: Context, request: ConsumerGroupHeartbeatRequest
) -> Pending[ConsumerGroupHeartbeatResponse]:
    """A member joins, stays or leaves, and learns what it shall have."""
    if not _enabled(ctx):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "The consumer group protocol is not switched on.")
    validate(request, ctx.version, ctx.node.group_assignors)
    # Java prints an address with the name it was resolved from, of which there is none, before a slash.
    caller = Caller(ctx.header.client_id or "", f"/{ctx.connection.peer[0]}", ctx.version)
    groups = ctx.node.groups
    return groups.write(groups.partition_for(request.group_id), partial(_decide, caller, request))


def _decide(
    caller: Caller, request: ConsumerGroupHeartbeatRequest, machine: GroupMachine, now_ms: int
) -> Result[ConsumerGroupHeartbeatResponse]:
    return machine.consumer.heartbeat(caller, request, now_ms)


@handles(ConsumerGroupDescribeRequest)
async def consumer_group_describe(
    ctx: Context, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Consumer groups, their members, and what those have and shall have."""
    enabled = _enabled(ctx)
    breath = Breath()
    described = []
    for group_id in request.group_ids:
        if enabled:
            group = await _describe(ctx, group_id, breath)
        else:
            group = _failed(group_id, KafkaError(ErrorCode.UNSUPPORTED_VERSION))
        if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = ALL_GROUP_OPERATIONS
        described.append(group)
        await breath.take()
    return ConsumerGroupDescribeResponse(groups=described)


async def _describe(ctx: Context, group_id: str, breath: Breath) -> DescribedGroup:
    groups = ctx.node.groups
    if not group_id:
        return _failed(group_id, KafkaError(ErrorCode.INVALID_GROUP_ID))
    try:
        described, members = groups.read(
            groups.partition_for(group_id), lambda machine, _: machine.consumer.describe(group_id)
        )
    except KafkaError as error:
        return _failed(group_id, error)
    for member in members:
        described.members.append(member)
        await breath.take()
    return described


def _failed(group_id: str, error: KafkaError) -> DescribedGroup:
    # Only that there is no such group is told in words.
    message = error.message if error.code is ErrorCode.GROUP_ID_NOT_FOUND else None
    return DescribedGroup(
        error_code=int(error.code),
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )
