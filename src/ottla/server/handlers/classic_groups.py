"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup and DescribeGroups: the members of classic groups.

What is wrong with a request whatever the group is refused here; the rest is the coordinator's to decide.
"""

from functools import partial

from ottla.coordinator.group.classic.join import Caller
from ottla.coordinator.group.classic.turn import join_error, sync_error
from ottla.coordinator.group.machine import GroupMachine
from ottla.coordinator.result import Result
from ottla.model.breath import Breath
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.server.authorized import ALL_GROUP_OPERATIONS
from ottla.server.context import Context
from ottla.server.group_requests import caller_of, with_skipped
from ottla.server.registry import handles
from ottla.wire.messages.groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)

# The first versions in which a join need not name a protocol, several members leave at once, a sync says what its
# member believes was agreed on (KIP-559), a description lists operations (KIP-430) and tells something in words
# (KIP-1043).
FIRST_NULL_PROTOCOL_VERSION = 7
FIRST_BATCHED_LEAVE_VERSION = 3
FIRST_SYNC_PROTOCOL_VERSION = 5
FIRST_OPERATIONS_VERSION = 3
FIRST_MESSAGE_VERSION = 6

# What members of all groups may say of themselves, and from where on one has to ask for room: those who say little
# are never turned away because others said much.
MAX_HELD_BYTES = 128 * 1024 * 1024
LARGE_JOIN_BYTES = 16 * 1024


# ---- joining --------------------------------------------------------------------------------------------------


@handles(JoinGroupRequest)
def join_group(ctx: Context, request: JoinGroupRequest) -> JoinGroupResponse | Pending[JoinGroupResponse]:
    """A member comes, and waits for the others."""
    version = ctx.version
    refusal = _join_refusal(ctx, request)
    if refusal is not None:
        return _of_version(version, join_error(refusal, request.member_id))
    groups = ctx.node.groups
    return groups.write(
        groups.partition_for(request.group_id), partial(_decide_join, caller_of(ctx), request)
    ).map(
        lambda response: _of_version(version, response),
        lambda error: _of_version(version, join_error(error.code, "")),
    )


def _join_refusal(ctx: Context, request: JoinGroupRequest) -> ErrorCode | None:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    config = ctx.node.config()
    shortest, longest = config["group.min.session.timeout.ms"], config["group.max.session.timeout.ms"]
    if not shortest <= request.session_timeout_ms <= longest:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    size_bytes = sum(len(protocol.metadata) for protocol in request.protocols)
    if size_bytes > LARGE_JOIN_BYTES and _held_bytes(ctx) + size_bytes > MAX_HELD_BYTES:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return None


def _held_bytes(ctx: Context) -> int:
    """What members of classic groups have said of themselves, in all shards."""
    return sum(shard.machine.classic.protocol_bytes() for shard in ctx.node.groups.active_shards())


def _decide_join(
    caller: Caller, request: JoinGroupRequest, machine: GroupMachine, now_ms: int
) -> Result[JoinGroupResponse]:
    return machine.classic.join(caller, request, now_ms)


def _of_version(version: int, response: JoinGroupResponse) -> JoinGroupResponse:
    if version < FIRST_NULL_PROTOCOL_VERSION and response.protocol_name is None:
        response.protocol_name = ""
    return response


# ---- syncing --------------------------------------------------------------------------------------------------


@handles(SyncGroupRequest)
def sync_group(ctx: Context, request: SyncGroupRequest) -> SyncGroupResponse | Pending[SyncGroupResponse]:
    """A member fetches its assignment; the leader brings all of them."""
    if ctx.version >= FIRST_SYNC_PROTOCOL_VERSION and None in (request.protocol_type, request.protocol_name):
        return sync_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not request.group_id:
        return sync_error(ErrorCode.INVALID_GROUP_ID)
    groups = ctx.node.groups
    return groups.write(
        groups.partition_for(request.group_id), partial(_decide_sync, caller_of(ctx), request)
    ).map(lambda response: response, lambda error: sync_error(error.code))


def _decide_sync(
    caller: Caller, request: SyncGroupRequest, machine: GroupMachine, now_ms: int
) -> Result[SyncGroupResponse]:
    return machine.classic.sync(caller, request, now_ms)


# ---- staying --------------------------------------------------------------------------------------------------


@handles(HeartbeatRequest)
def heartbeat(ctx: Context, request: HeartbeatRequest) -> HeartbeatResponse | Pending[HeartbeatResponse]:
    """A member says that it is alive."""
    if not request.group_id:
        return HeartbeatResponse(error_code=int(ErrorCode.INVALID_GROUP_ID))
    groups = ctx.node.groups
    partition = groups.partition_for(request.group_id)
    try:
        alive = groups.active(partition).machine.classic.beat(request, ctx.now_ms)
    except KafkaError as error:
        if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return HeartbeatResponse()  # its session begins anew when the group is loaded
        raise
    return alive or groups.write(partition, partial(_decide_heartbeat, caller_of(ctx), request))


def _decide_heartbeat(
    caller: Caller, request: HeartbeatRequest, machine: GroupMachine, now_ms: int
) -> Result[HeartbeatResponse]:
    return machine.classic.heartbeat(caller, request, now_ms)


# ---- leaving --------------------------------------------------------------------------------------------------


@handles(LeaveGroupRequest)
def leave_group(ctx: Context, request: LeaveGroupRequest) -> LeaveGroupResponse | Pending[LeaveGroupResponse]:
    """Members go."""
    if not request.group_id:
        return LeaveGroupResponse(error_code=int(ErrorCode.INVALID_GROUP_ID), members=[])
    single = ctx.version < FIRST_BATCHED_LEAVE_VERSION
    if single:
        request.members = [MemberIdentity(member_id=request.member_id)]
    groups = ctx.node.groups
    pending = groups.write(
        groups.partition_for(request.group_id), partial(_decide_leave, caller_of(ctx), request)
    )
    return pending.map(_of_one) if single else pending


def _decide_leave(
    caller: Caller, request: LeaveGroupRequest, machine: GroupMachine, now_ms: int
) -> Result[LeaveGroupResponse]:
    return machine.classic.leave(caller, request, now_ms)


def _of_one(response: LeaveGroupResponse) -> LeaveGroupResponse:
    code = response.error_code or response.members[0].error_code
    return LeaveGroupResponse(error_code=code, members=[])


# ---- describing -----------------------------------------------------------------------------------------------


@handles(DescribeGroupsRequest)
async def describe_groups(ctx: Context, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Classic groups and their members."""
    operations = ctx.version >= FIRST_OPERATIONS_VERSION and request.include_authorized_operations
    breath = Breath()
    described = []
    for group_id in request.groups:
        group = _describe(ctx, group_id)
        if operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = ALL_GROUP_OPERATIONS
        described.append(group)
        await breath.take()
    return DescribeGroupsResponse(groups=described)


def _describe(ctx: Context, group_id: str) -> DescribedGroup:
    groups = ctx.node.groups
    version = ctx.version
    try:
        described = groups.read(
            groups.partition_for(group_id), lambda machine, _: machine.classic.describe(group_id, version)
        )
        if version >= FIRST_MESSAGE_VERSION:
            described.error_message = with_skipped(ctx, group_id, described.error_message)
        return described
    except KafkaError as error:
        return DescribedGroup(
            error_code=int(error.code),
            group_id=group_id,
            group_state="",
            protocol_type="",
            protocol_data="",
            members=[],
        )
