"""ListGroups and DeleteGroups: groups of every kind, by their names."""

from collections import defaultdict
from functools import partial
from itertools import chain

from ottla.coordinator.group.machine import GroupMachine
from ottla.coordinator.result import Result
from ottla.model.breath import Breath
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending, gather
from ottla.server.context import Context
from ottla.server.dispatch import Encoded
from ottla.server.registry import handles
from ottla.server.share_groups import chain as chain_pending
from ottla.wire.codec import encode
from ottla.wire.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

Deleted = list[DeletableGroupResult]
# A list of more groups takes some milliseconds to encode.
ENCODED_IN_A_THREAD = 2_000
# Groups of one shard that are deleted by one decision.
DELETED_AT_ONCE = 50


@handles(ListGroupsRequest)
async def list_groups(ctx: Context, request: ListGroupsRequest) -> ListGroupsResponse | Encoded:
    """The groups that this broker coordinates; not while one of its shards is loading."""
    breath = Breath()
    listed: list[ListedGroup] = []
    for partition in ctx.node.groups.partitions():
        listed.extend(_listed(ctx, partition, request))
        await breath.take()
    response = ListGroupsResponse(groups=listed)
    if len(listed) < ENCODED_IN_A_THREAD:
        return response
    return Encoded([await ctx.in_thread(encode, response, ctx.version)])


def _listed(ctx: Context, partition: int, request: ListGroupsRequest) -> list[ListedGroup]:
    try:
        return ctx.node.groups.read(
            partition,
            lambda machine, _: machine.directory.listing(request.states_filter, request.types_filter),
        )
    except KafkaError as error:
        if error.code is ErrorCode.NOT_COORDINATOR:
            return []  # somebody else does by now
        raise


@handles(DeleteGroupsRequest)
async def delete_groups(ctx: Context, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete groups that have no members, each with its own success or error."""
    groups = ctx.node.groups
    breath = Breath()
    by_partition: dict[int, list[str]] = defaultdict(list)
    for group_id in dict.fromkeys(request.groups_names):
        by_partition[groups.partition_for(group_id)].append(group_id)
        await breath.take()
    deletions: list[Pending[Deleted]] = []
    for partition, ids in by_partition.items():
        for first in range(0, len(ids), DELETED_AT_ONCE):
            deletions.append(_delete(ctx, partition, ids[first : first + DELETED_AT_ONCE]))
            await breath.take()
    deleted: list[Deleted] = await gather(deletions)
    return DeleteGroupsResponse(results=list(chain.from_iterable(deleted)))


def _delete(ctx: Context, partition: int, group_ids: list[str]) -> Pending[Deleted]:
    """Share groups have state elsewhere too, which goes first: a group whose state stays, stays."""
    staying = ctx.node.share_groups.delete_state(partition, group_ids)
    deleted = chain_pending(staying, lambda reasons: _delete_others(ctx, partition, group_ids, reasons))
    return deleted.map(lambda results: results, lambda error: _refused(group_ids, error))


def _delete_others(
    ctx: Context, partition: int, group_ids: list[str], reasons: dict[str, KafkaError]
) -> Pending[Deleted]:
    staying = [result for group_id, why in reasons.items() for result in _refused([group_id], why)]
    others = [group_id for group_id in group_ids if group_id not in reasons]
    if not others:
        return Pending.of(staying)
    deleted = ctx.node.groups.write(partition, partial(_decide_deletion, others))
    return deleted.map(lambda results: staying + results, lambda error: staying + _refused(others, error))


def _decide_deletion(group_ids: list[str], machine: GroupMachine, now_ms: int) -> Result[Deleted]:
    return machine.directory.delete(group_ids)


def _refused(group_ids: list[str], error: KafkaError) -> Deleted:
    return [DeletableGroupResult(group_id=group_id, error_code=int(error.code)) for group_id in group_ids]
