"""Groups of every kind but share groups: ListGroups, DeleteGroups; JoinGroup, SyncGroup, Heartbeat, LeaveGroup and
DescribeGroups of classic groups; ConsumerGroup* (KIP-848) and StreamsGroup* (KIP-1071).

What is wrong with a request whatever the group, and what its sender may not do, is refused here; the rest is the
coordinator's to decide. A group whose topics its reader may not describe is not described.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Final, Protocol, TypeVar

from ottla.coordinator.group.classic.rebalance import join_error, sync_error
from ottla.coordinator.group.consumer.manager import validate as validate_consumer_heartbeat
from ottla.coordinator.group.context import Caller
from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.shard import GroupCoordinatorShard
from ottla.coordinator.group.streams.manager import HeartbeatOutcome, topology_topics
from ottla.coordinator.group.streams.manager import validate as validate_streams_heartbeat
from ottla.coordinator.group.streams.topology import StatusCode
from ottla.coordinator.shard import CoordinatorResult
from ottla.metadata.features import GROUP_VERSION, STREAMS_VERSION
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending, gather
from ottla.model.time_slice import TimeSlice
from ottla.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from ottla.server.context import Context
from ottla.server.dispatch import Encoded
from ottla.server.errors import undescribed
from ottla.server.registry import handles
from ottla.wire.codec import encode
from ottla.wire.messages.groups.classic import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from ottla.wire.messages.groups.consumer import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    Member,
)
from ottla.wire.messages.groups.consumer import DescribedGroup as DescribedConsumerGroup
from ottla.wire.messages.groups.streams import DescribedGroup as DescribedStreamsGroup
from ottla.wire.messages.groups.streams import (
    Status,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

log = logging.getLogger("ottla.coordinator.streams")

# The first versions in which a join need not name a protocol, several members leave at once, a sync says what its
# member believes was agreed on (KIP-559), a description lists operations (KIP-430) and has a message
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

# A list of more groups takes some milliseconds to encode.
ENCODED_IN_A_THREAD = 2_000
# Groups of one shard that are deleted by one decision.
DELETED_AT_ONCE = 50
# A coordinator that answers so knows its groups: the message also says what it could not read of the one asked for.
WITH_SKIPPED: Final = (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)
# Refused topics that a status names before it only counts the others.
NAMED_FAILURES: Final = 3
# A topic that could not be made is asked for again after so many heartbeats.
RETRY_HEARTBEATS: Final = 2

# Why a group is not described.
HIDDEN_TOPICS: Final = "The group has described topic(s) that the client is not authorized to describe."
HIDDEN_STREAMS_TOPICS: Final = (
    "The described group uses topics that the client is not authorized to describe."
)

Deleted = list[DeletableGroupResult]


# ---- listing and deleting groups of every kind --------------------------------------------------------------


@handles(ListGroupsRequest)
async def list_groups(ctx: Context, request: ListGroupsRequest) -> ListGroupsResponse | Encoded:
    """The groups that this broker coordinates; not while one of its shards is loading."""
    time_slice = TimeSlice()
    listed: list[ListedGroup] = []
    sees_all = _sees_all(ctx)
    for partition in ctx.node.groups.partitions():
        found = _listed(ctx, partition, request)
        if sees_all:
            listed.extend(found)
        else:
            for group in found:
                if ctx.authorize(
                    AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id, log_if_denied=False
                ):
                    listed.append(group)
                await time_slice.yield_to_loop()
        await time_slice.yield_to_loop()
    response = ListGroupsResponse(groups=listed)
    if len(listed) < ENCODED_IN_A_THREAD:
        return response
    return Encoded([await ctx.in_thread(encode, response, ctx.version)])


def _listed(ctx: Context, partition: int, request: ListGroupsRequest) -> list[ListedGroup]:
    try:
        return ctx.node.groups.read(
            partition,
            lambda machine, _: machine.list_groups(request.states_filter, request.types_filter),
        )
    except KafkaError as error:
        if error.code is ErrorCode.NOT_COORDINATOR:
            return []  # somebody else does by now
        raise


def _sees_all(ctx: Context) -> bool:
    """Whoever may describe the cluster sees all groups; others see those that they may describe."""
    return ctx.node.authorizer is None or ctx.authorize(
        AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME, log_if_denied=False
    )


@handles(DeleteGroupsRequest)
async def delete_groups(ctx: Context, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete groups that have no members, each with its own success or error."""
    groups = ctx.node.groups
    time_slice = TimeSlice()
    by_partition: dict[int, list[str]] = defaultdict(list)
    names, denied = list(dict.fromkeys(request.groups_names)), []
    if ctx.node.authorizer is not None:
        may = ctx.authorized_names(AclOperation.DELETE, ResourceType.GROUP, names)
        names, denied = [name for name in names if name in may], [name for name in names if name not in may]
    for group_id in names:
        by_partition[groups.partition_for(group_id)].append(group_id)
        await time_slice.yield_to_loop()
    deletions: list[Pending[Deleted]] = []
    for partition, ids in by_partition.items():
        for first in range(0, len(ids), DELETED_AT_ONCE):
            deletions.append(_delete_groups(ctx, partition, ids[first : first + DELETED_AT_ONCE]))
            await time_slice.yield_to_loop()
    deleted: list[Deleted] = await gather(deletions)
    refused = _not_deleted(denied, KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    return DeleteGroupsResponse(results=[*chain.from_iterable(deleted), *refused])


def _delete_groups(ctx: Context, partition: int, group_ids: list[str]) -> Pending[Deleted]:
    """Share groups have state elsewhere too, which goes first: a group whose state stays, stays."""
    staying = ctx.node.share_groups.delete_state(partition, group_ids)
    deleted = staying.and_then(lambda reasons: _delete_others(ctx, partition, group_ids, reasons))
    return deleted.map(lambda results: results, lambda error: _not_deleted(group_ids, error))


def _delete_others(
    ctx: Context, partition: int, group_ids: list[str], reasons: dict[str, KafkaError]
) -> Pending[Deleted]:
    staying = [result for group_id, why in reasons.items() for result in _not_deleted([group_id], why)]
    others = [group_id for group_id in group_ids if group_id not in reasons]
    if not others:
        return Pending.of(staying)
    deleted = ctx.node.groups.write(partition, partial(_decide_deletion, others))
    return deleted.map(lambda results: staying + results, lambda error: staying + _not_deleted(others, error))


def _decide_deletion(
    group_ids: list[str], machine: GroupCoordinatorShard, now_ms: int
) -> CoordinatorResult[Deleted]:
    return machine.delete_groups(group_ids)


def _not_deleted(group_ids: list[str], error: KafkaError) -> Deleted:
    return [DeletableGroupResult(group_id=group_id, error_code=int(error.code)) for group_id in group_ids]


# ---- what groups of different kinds have in common ----------------------------------------------------------


class DescribeRequest(Protocol):
    """A request to describe groups of one kind."""

    group_ids: list[str]
    include_authorized_operations: bool


class Described(Protocol):
    """A group of one kind in the answer."""

    error_code: int
    error_message: str | None
    authorized_operations: int
    members: list[Any]

    def __init__(self, *, error_code: int, error_message: str | None, group_id: str) -> None: ...


D = TypeVar("D", bound=Described)


def caller_of(ctx: Context) -> Caller:
    # Java prints an address with the name it was resolved from, of which there is none, before a slash.
    return Caller(
        ctx.header.client_id or "",
        f"/{ctx.connection.peer[0]}",
        ctx.version,
        None if ctx.node.authorizer is None else partial(_may_see, ctx),
    )


def _may_see(ctx: Context, topic: str) -> bool:
    """Does a regular expression of whoever asks see the topic?"""
    return ctx.authorize(AclOperation.DESCRIBE, ResourceType.TOPIC, topic, log_if_denied=False)


def is_enabled(ctx: Context, kind: GroupType, feature: str) -> bool:
    """Is the kind's protocol switched on, by the cluster's features and by this broker's configuration?"""
    protocols = ctx.node.config()["group.coordinator.rebalance.protocols"]
    return ctx.node.image().features.get(feature, 0) >= 1 and kind in protocols


async def describe_all(
    ctx: Context,
    request: DescribeRequest,
    answer: type[D],
    describe: Callable[[GroupCoordinatorShard, str], tuple[D, Iterable[Any]]],
    topics_of: Callable[[D], Iterable[str]],
    hidden: str,
    *,
    enabled: bool,
) -> list[D]:
    """Every group that is asked for. `describe` gives one and the members to be put in, of which there may be many.

    Those that may not be described come first. One with topics (`topics_of`) that may not be is replaced by an error
    with the message `hidden`.
    """
    time_slice = TimeSlice()
    judged = enabled and ctx.node.authorizer is not None
    group_ids, denied = describable(ctx, request.group_ids) if judged else (request.group_ids, [])
    described = [
        answer(error_code=int(ErrorCode.GROUP_AUTHORIZATION_FAILED), error_message=None, group_id=group_id)
        for group_id in denied
    ]
    for group_id in group_ids:
        try:
            group, members = _read_group(ctx, group_id, describe, enabled=enabled)
        except KafkaError as error:
            # Only that there is no such group has a message.
            message = error.message if error.code is ErrorCode.GROUP_ID_NOT_FOUND else None
            group, members = answer(error_code=int(error.code), error_message=message, group_id=group_id), ()
        if group.error_code in WITH_SKIPPED:
            group.error_message = with_skipped(ctx, group_id, group.error_message)
        for member in members:
            group.members.append(member)
            await time_slice.yield_to_loop()
        if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = ctx.authorized_operations(ResourceType.GROUP, group_id)
        if judged and not may_describe_topics(ctx, topics_of(group)):
            code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            group = answer(error_code=code, error_message=hidden, group_id=group_id)
        described.append(group)
        await time_slice.yield_to_loop()
    return described


def describable(ctx: Context, group_ids: list[str]) -> tuple[list[str], list[str]]:
    """The groups that whoever asks may describe, and the others, in their order."""
    may = ctx.authorized_names(AclOperation.DESCRIBE, ResourceType.GROUP, group_ids)
    return [name for name in group_ids if name in may], [name for name in group_ids if name not in may]


def may_describe_topics(ctx: Context, names: Iterable[str]) -> bool:
    """May whoever asks describe each of the topics?"""
    asked = set(names)
    return len(ctx.authorized_names(AclOperation.DESCRIBE, ResourceType.TOPIC, asked)) == len(asked)


def require_topics(ctx: Context, names: Iterable[str] | None) -> None:
    """TOPIC_AUTHORIZATION_FAILED if one of the topics that a member subscribes to may not be described."""
    if names and not may_describe_topics(ctx, names):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def with_skipped(ctx: Context, group_id: str, message: str | None) -> str | None:
    """The message about a group, with what of it the coordinator's load could not read."""
    groups = ctx.node.groups
    skipped = groups.read(
        groups.partition_for(group_id), lambda machine, _: machine.context.skipped.about(group_id)
    )
    return message if skipped is None else f"{message} {skipped}" if message else skipped


def _read_group(
    ctx: Context,
    group_id: str,
    describe: Callable[[GroupCoordinatorShard, str], tuple[D, Iterable[Any]]],
    *,
    enabled: bool,
) -> tuple[D, Iterable[Any]]:
    if not enabled:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    groups = ctx.node.groups
    return groups.read(groups.partition_for(group_id), lambda machine, _: describe(machine, group_id))


# ---- classic groups: joining --------------------------------------------------------------------------------


@handles(JoinGroupRequest)
def join_group(ctx: Context, request: JoinGroupRequest) -> JoinGroupResponse | Pending[JoinGroupResponse]:
    """A member comes, and waits for the others."""
    version = ctx.version
    if not _may_read(ctx, request.group_id):
        return _of_version(version, join_error(ErrorCode.GROUP_AUTHORIZATION_FAILED, ""))
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


def _may_read(ctx: Context, group_id: str) -> bool:
    return ctx.node.authorizer is None or ctx.authorize(AclOperation.READ, ResourceType.GROUP, group_id)


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
    return sum(shard.machine.classic.protocol_bytes() for shard in ctx.node.groups.active_contexts())


def _decide_join(
    caller: Caller, request: JoinGroupRequest, machine: GroupCoordinatorShard, now_ms: int
) -> CoordinatorResult[JoinGroupResponse]:
    return machine.classic.join(caller, request, now_ms)


def _of_version(version: int, response: JoinGroupResponse) -> JoinGroupResponse:
    if version < FIRST_NULL_PROTOCOL_VERSION and response.protocol_name is None:
        response.protocol_name = ""
    return response


# ---- classic groups: syncing --------------------------------------------------------------------------------


@handles(SyncGroupRequest)
def sync_group(ctx: Context, request: SyncGroupRequest) -> SyncGroupResponse | Pending[SyncGroupResponse]:
    """A member fetches its assignment; the leader brings all of them."""
    if ctx.version >= FIRST_SYNC_PROTOCOL_VERSION and None in (request.protocol_type, request.protocol_name):
        return sync_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not _may_read(ctx, request.group_id):
        return sync_error(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id:
        return sync_error(ErrorCode.INVALID_GROUP_ID)
    groups = ctx.node.groups
    return groups.write(
        groups.partition_for(request.group_id), partial(_decide_sync, caller_of(ctx), request)
    ).map(lambda response: response, lambda error: sync_error(error.code))


def _decide_sync(
    caller: Caller, request: SyncGroupRequest, machine: GroupCoordinatorShard, now_ms: int
) -> CoordinatorResult[SyncGroupResponse]:
    return machine.classic.sync(caller, request, now_ms)


# ---- classic groups: heartbeats -----------------------------------------------------------------------------


@handles(HeartbeatRequest)
def heartbeat(ctx: Context, request: HeartbeatRequest) -> HeartbeatResponse | Pending[HeartbeatResponse]:
    """A member says that it is alive."""
    if not _may_read(ctx, request.group_id):
        return HeartbeatResponse(error_code=int(ErrorCode.GROUP_AUTHORIZATION_FAILED))
    if not request.group_id:
        return HeartbeatResponse(error_code=int(ErrorCode.INVALID_GROUP_ID))
    groups = ctx.node.groups
    partition = groups.partition_for(request.group_id)
    try:
        alive = groups.active(partition).machine.classic.renew_session(request, ctx.now_ms)
    except KafkaError as error:
        if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return HeartbeatResponse()  # its session begins anew when the group is loaded
        raise
    return alive or groups.write(partition, partial(_decide_heartbeat, caller_of(ctx), request))


def _decide_heartbeat(
    caller: Caller, request: HeartbeatRequest, machine: GroupCoordinatorShard, now_ms: int
) -> CoordinatorResult[HeartbeatResponse]:
    return machine.classic.heartbeat(caller, request, now_ms)


# ---- classic groups: leaving --------------------------------------------------------------------------------


@handles(LeaveGroupRequest)
def leave_group(ctx: Context, request: LeaveGroupRequest) -> LeaveGroupResponse | Pending[LeaveGroupResponse]:
    """Members go."""
    if not _may_read(ctx, request.group_id):
        return LeaveGroupResponse(error_code=int(ErrorCode.GROUP_AUTHORIZATION_FAILED), members=[])
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
    caller: Caller, request: LeaveGroupRequest, machine: GroupCoordinatorShard, now_ms: int
) -> CoordinatorResult[LeaveGroupResponse]:
    return machine.classic.leave(caller, request, now_ms)


def _of_one(response: LeaveGroupResponse) -> LeaveGroupResponse:
    code = response.error_code or response.members[0].error_code
    return LeaveGroupResponse(error_code=code, members=[])


# ---- classic groups: describing -----------------------------------------------------------------------------


@handles(DescribeGroupsRequest)
async def describe_groups(ctx: Context, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Classic groups and their members."""
    operations = ctx.version >= FIRST_OPERATIONS_VERSION and request.include_authorized_operations
    time_slice = TimeSlice()
    judged = ctx.node.authorizer is not None
    groups, denied = describable(ctx, request.groups) if judged else (request.groups, [])
    described = [undescribed(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED) for group_id in denied]
    for group_id in groups:
        group = _describe_classic_group(ctx, group_id)
        if operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = ctx.authorized_operations(ResourceType.GROUP, group_id)
        described.append(group)
        await time_slice.yield_to_loop()
    return DescribeGroupsResponse(groups=described)


def _describe_classic_group(ctx: Context, group_id: str) -> DescribedGroup:
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
        return undescribed(group_id, error.code)


# ---- consumer groups (KIP-848) ------------------------------------------------------------------------------


@handles(ConsumerGroupHeartbeatRequest)
def consumer_group_heartbeat(
    ctx: Context, request: ConsumerGroupHeartbeatRequest
) -> Pending[ConsumerGroupHeartbeatResponse]:
    """A member joins, stays or leaves, and learns what it shall have."""
    if not is_enabled(ctx, GroupType.CONSUMER, GROUP_VERSION):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "The consumer group protocol is not switched on.")
    if ctx.node.authorizer is not None:
        ctx.require(AclOperation.READ, ResourceType.GROUP, request.group_id)
        require_topics(ctx, request.subscribed_topic_names)
    validate_consumer_heartbeat(request, ctx.version, ctx.node.group_assignors)
    groups = ctx.node.groups
    return groups.write(
        groups.partition_for(request.group_id), partial(_decide_consumer_heartbeat, caller_of(ctx), request)
    )


def _decide_consumer_heartbeat(
    caller: Caller, request: ConsumerGroupHeartbeatRequest, machine: GroupCoordinatorShard, now_ms: int
) -> CoordinatorResult[ConsumerGroupHeartbeatResponse]:
    return machine.consumer.heartbeat(caller, request, now_ms)


@handles(ConsumerGroupDescribeRequest)
async def consumer_group_describe(
    ctx: Context, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Consumer groups, their members, and what those have and shall have."""
    enabled = is_enabled(ctx, GroupType.CONSUMER, GROUP_VERSION)
    groups = await describe_all(
        ctx,
        request,
        DescribedConsumerGroup,
        _describe_consumer_group,
        _assigned_topics,
        HIDDEN_TOPICS,
        enabled=enabled,
    )
    return ConsumerGroupDescribeResponse(groups=groups)


def _assigned_topics(group: DescribedConsumerGroup) -> Iterator[str]:
    for member in group.members:
        for assignment in (member.assignment, member.target_assignment):
            yield from (topic.topic_name for topic in assignment.topic_partitions)


def _describe_consumer_group(
    machine: GroupCoordinatorShard, group_id: str
) -> tuple[DescribedConsumerGroup, Iterator[Member]]:
    return machine.consumer.describe(group_id)


# ---- streams groups (KIP-1071) ------------------------------------------------------------------------------


@handles(StreamsGroupHeartbeatRequest)
def streams_group_heartbeat(
    ctx: Context, request: StreamsGroupHeartbeatRequest
) -> Pending[StreamsGroupHeartbeatResponse]:
    """A member joins, stays or leaves, and learns which tasks it shall have."""
    if not is_enabled(ctx, GroupType.STREAMS, STREAMS_VERSION):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "The streams group protocol is not switched on.")
    if ctx.node.authorizer is not None:
        ctx.require(AclOperation.READ, ResourceType.GROUP, request.group_id)
        if request.topology is not None:
            require_topics(ctx, topology_topics(request.topology))
    validate_streams_heartbeat(request)
    groups = ctx.node.groups
    decided = groups.write(
        groups.partition_for(request.group_id), partial(_decide_streams_heartbeat, caller_of(ctx), request)
    )
    return decided.map(partial(_answer_streams_heartbeat, ctx, request), _failed_streams_heartbeat)


def _failed_streams_heartbeat(error: KafkaError) -> StreamsGroupHeartbeatResponse:
    """What only the broker's own log should say stays there."""
    if error.code is not ErrorCode.UNKNOWN_SERVER_ERROR:
        raise error
    log.error("a heartbeat of a streams group failed: %s", error)
    raise KafkaError(error.code)


def _decide_streams_heartbeat(
    caller: Caller, request: StreamsGroupHeartbeatRequest, machine: GroupCoordinatorShard, now_ms: int
) -> CoordinatorResult[HeartbeatOutcome]:
    return machine.streams.heartbeat(caller, request, now_ms)


def _answer_streams_heartbeat(
    ctx: Context, request: StreamsGroupHeartbeatRequest, outcome: HeartbeatOutcome
) -> StreamsGroupHeartbeatResponse:
    """Have the missing topics made in the member's name, and say of which that did not work."""
    response, topics = outcome
    refused = _not_creatable(ctx, topics) if topics and ctx.node.authorizer is not None else []
    if refused:
        _add_refusal(response, refused)
    elif topics:
        retry_ms = response.heartbeat_interval_ms * RETRY_HEARTBEATS
        ctx.node.streams_topics.create(topics, retry_ms, ctx.now_ms, ctx.decision(request))
        failures = ctx.node.streams_topics.failures(topics, ctx.now_ms)
        if failures:
            _add_failures(response, failures)
    return response


def _not_creatable(ctx: Context, topics: Iterable[str]) -> list[str]:
    """The topics that whoever asks may not create: for one of them, none is made."""
    if ctx.authorize(AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, log_if_denied=False):
        return []
    names = list(topics)
    may = ctx.authorized_names(AclOperation.CREATE, ResourceType.TOPIC, names)
    return [name for name in names if name not in may]


def _add_refusal(response: StreamsGroupHeartbeatResponse, refused: list[str]) -> None:
    why = f"Unauthorized to CREATE on topics {', '.join(refused)}."
    statuses = response.status = list(response.status or ())
    for status in statuses:
        if status.status_code == StatusCode.MISSING_INTERNAL_TOPICS:
            status.status_detail += f"; {why}"
            return
    code = int(StatusCode.MISSING_INTERNAL_TOPICS)
    statuses.append(Status(status_code=code, status_detail=why))


def _add_failures(response: StreamsGroupHeartbeatResponse, failures: dict[str, str]) -> None:
    named = ", ".join(f"{name} ({why})" for name, why in list(failures.items())[:NAMED_FAILURES])
    more = len(failures) - NAMED_FAILURES
    for status in response.status or ():
        if status.status_code == StatusCode.MISSING_INTERNAL_TOPICS:
            others = f" and {more} more" if more > 0 else ""
            status.status_detail += f" They cannot be made: {named}{others}."
            return


@handles(StreamsGroupDescribeRequest)
async def streams_group_describe(
    ctx: Context, request: StreamsGroupDescribeRequest
) -> StreamsGroupDescribeResponse:
    """Streams groups, their topologies, their members, and what those have and shall have."""
    enabled = is_enabled(ctx, GroupType.STREAMS, STREAMS_VERSION)
    groups = await describe_all(
        ctx,
        request,
        DescribedStreamsGroup,
        _describe_streams_group,
        _topics_of_topology,
        HIDDEN_STREAMS_TOPICS,
        enabled=enabled,
    )
    return StreamsGroupDescribeResponse(groups=groups)


def _topics_of_topology(group: DescribedStreamsGroup) -> Iterator[str]:
    for subtopology in group.topology.subtopologies or () if group.topology is not None else ():
        yield from subtopology.source_topics
        yield from subtopology.repartition_sink_topics
        yield from (topic.name for topic in subtopology.repartition_source_topics)
        yield from (topic.name for topic in subtopology.state_changelog_topics)


def _describe_streams_group(
    machine: GroupCoordinatorShard, group_id: str
) -> tuple[DescribedStreamsGroup, tuple[()]]:
    return machine.streams.describe(group_id), ()
