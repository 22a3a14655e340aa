"""The metadata quorum: what is asked of it, and the requests its members send one another (KIP-595, KIP-630)."""

from ottla.raft.answers import Asked
from ottla.server.context import Context
from ottla.server.registry import Listener, handles
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.messages.producers import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from ottla.wire.messages.raft import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UpdateRaftVoterRequest,
    UpdateRaftVoterResponse,
    VoteRequest,
    VoteResponse,
)


@handles(DescribeQuorumRequest, Listener.BROKER, Listener.CONTROLLER)
def describe_quorum(ctx: Context, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Who votes, who leads, and how far everybody has read."""
    return ctx.node.controller.raft.describe_quorum(request, ctx.version)


@handles(VoteRequest, Listener.CONTROLLER)
async def vote(ctx: Context, request: VoteRequest) -> VoteResponse:
    """A candidate asks for this voter's vote."""
    return await ctx.node.controller.raft.vote(request, Asked(ctx.version, ctx.listener_name))


@handles(BeginQuorumEpochRequest, Listener.CONTROLLER)
async def begin_quorum_epoch(ctx: Context, request: BeginQuorumEpochRequest) -> BeginQuorumEpochResponse:
    """A new leader makes itself known."""
    return await ctx.node.controller.raft.begin_quorum_epoch(request, Asked(ctx.version, ctx.listener_name))


@handles(EndQuorumEpochRequest, Listener.CONTROLLER)
async def end_quorum_epoch(ctx: Context, request: EndQuorumEpochRequest) -> EndQuorumEpochResponse:
    """A leader steps down."""
    return await ctx.node.controller.raft.end_quorum_epoch(request, Asked(ctx.version, ctx.listener_name))


@handles(FetchRequest, Listener.CONTROLLER)
async def fetch_metadata_log(ctx: Context, request: FetchRequest) -> FetchResponse:
    """A follower or an observer reads the metadata log."""
    return await ctx.node.controller.raft.fetch(request, Asked(ctx.version, ctx.listener_name))


@handles(FetchSnapshotRequest, Listener.CONTROLLER)
def fetch_snapshot(ctx: Context, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
    """One that is too far behind reads a snapshot."""
    return ctx.node.controller.raft.fetch_snapshot(request, Asked(ctx.version, ctx.listener_name))


@handles(AllocateProducerIdsRequest, Listener.CONTROLLER)
async def allocate_producer_ids(
    ctx: Context, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    """A broker gets a block of producer ids of its own."""
    return await ctx.node.controller.allocate_producer_ids(request, ctx.decision)


@handles(AddRaftVoterRequest, Listener.CONTROLLER, Listener.BROKER)
def add_raft_voter(ctx: Context, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
    """A controller wants a vote."""
    return ctx.node.controller.raft.add_voter(request)


@handles(RemoveRaftVoterRequest, Listener.CONTROLLER, Listener.BROKER)
def remove_raft_voter(ctx: Context, request: RemoveRaftVoterRequest) -> RemoveRaftVoterResponse:
    """A vote is to be taken away."""
    return ctx.node.controller.raft.remove_voter(request)


@handles(UpdateRaftVoterRequest, Listener.CONTROLLER)
def update_raft_voter(ctx: Context, request: UpdateRaftVoterRequest) -> UpdateRaftVoterResponse:
    """A voter reports where it is reached."""
    return ctx.node.controller.raft.update_voter(request)
