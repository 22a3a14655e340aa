"""Elections, reassignments and ISR changes: who holds and leads partitions is the controller's to say."""

from ottla.server.context import Context
from ottla.server.registry import Listener, handles
from ottla.server.request_head import MAX_DECIDED_ELEMENTS
from ottla.wire.messages.replication import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


@handles(ElectLeadersRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def elect_leaders(ctx: Context, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Choose leaders anew, the preferred ones or, if need be, any."""
    response = await ctx.node.controller.elect_leaders(request, ctx.decision)
    await ctx.node.caught_up()
    return response


@handles(
    AlterPartitionReassignmentsRequest,
    Listener.BROKER,
    Listener.CONTROLLER,
    max_elements=MAX_DECIDED_ELEMENTS,
)
async def alter_partition_reassignments(
    ctx: Context, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Move partitions to other brokers (KIP-455)."""
    response = await ctx.node.controller.alter_partition_reassignments(request, ctx.decision)
    await ctx.node.caught_up()
    return response


@handles(
    ListPartitionReassignmentsRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS
)
async def list_partition_reassignments(
    ctx: Context, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """The moves under way."""
    return await ctx.node.controller.list_partition_reassignments(request, ctx.decision)


@handles(AlterPartitionRequest, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def alter_partition(ctx: Context, request: AlterPartitionRequest) -> AlterPartitionResponse:
    """A leader changes the set of in-sync replicas."""
    return await ctx.node.controller.alter_partition(request, ctx.decision)
