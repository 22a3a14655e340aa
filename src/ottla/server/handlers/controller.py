"""What the controller decides (Kafka's ControllerApis): topics, reassignments, features, quorum, brokers, Envelope.

A broker's listener serves what clients ask, the controller's listener what nodes ask. What the controller decided is
waited for here until this broker has it too, so that a client that creates a topic and uses it at once finds it.
"""

import struct

from ottla.model.errors import ErrorCode, KafkaError
from ottla.raft.answers import Asked
from ottla.server.context import Context
from ottla.server.dispatch import respond
from ottla.server.limits import MAX_DECIDED_ELEMENTS
from ottla.server.network.connection import Listener
from ottla.server.network.output import Reply
from ottla.server.registry import Route, handles, routes
from ottla.wire.codec import decode
from ottla.wire.framing import decode_request_header
from ottla.wire.messages.admin.cluster import (
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.wire.messages.admin.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.messages.nodes.broker_lifecycle import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from ottla.wire.messages.nodes.envelope import DefaultPrincipalData, EnvelopeRequest, EnvelopeResponse
from ottla.wire.messages.nodes.raft import (
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
from ottla.wire.messages.nodes.replication import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from ottla.wire.messages.producers import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from ottla.wire.primitives import WireError
from ottla.wire.registry import APIS
from ottla.wire.schema import schema_of

# What a broker leaves to the controller, by Kafka's list: changes of topics, configurations, ACLs, tokens,
# reassignments, quotas, credentials, features and voters.
FORWARDABLE = frozenset({19, 20, 30, 31, 33, 37, 38, 39, 40, 43, 44, 45, 46, 49, 51, 55, 57, 64, 67, 80, 81})
ADDRESS_SIZES = (4, 16)
FRAME_SIZE_BYTES = 4
_SHORT = struct.Struct(">h")


# ---- topics -------------------------------------------------------------------------------------------------


@handles(CreateTopicsRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def create_topics(ctx: Context, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """New topics, each with its own success or error."""
    response = await ctx.node.controller.create_topics(request, ctx.decision)
    await ctx.node.caught_up()
    return response


@handles(DeleteTopicsRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def delete_topics(ctx: Context, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Topics by name or id; their files go in the background."""
    if not ctx.node.config()["delete.topic.enable"]:
        low = ctx.version < 3
        raise KafkaError(ErrorCode.INVALID_REQUEST if low else ErrorCode.TOPIC_DELETION_DISABLED)
    response = await ctx.node.controller.delete_topics(request, ctx.decision)
    await ctx.node.caught_up()
    return response


@handles(CreatePartitionsRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def create_partitions(ctx: Context, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """More partitions for topics that exist."""
    response = await ctx.node.controller.create_partitions(request, ctx.decision)
    await ctx.node.caught_up()
    return response


# ---- who holds and leads partitions -------------------------------------------------------------------------


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


# ---- features (KIP-584) -------------------------------------------------------------------------------------


@handles(UpdateFeaturesRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def update_features(ctx: Context, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Finalize feature levels."""
    response = await ctx.node.controller.update_features(request, ctx.decision)
    await ctx.node.caught_up()
    return response


# ---- the metadata quorum (KIP-595, KIP-630) -----------------------------------------------------------------


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


# ---- brokers and controllers (KIP-631) ----------------------------------------------------------------------


@handles(BrokerRegistrationRequest, Listener.CONTROLLER)
async def register_broker(ctx: Context, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
    """A broker announces a new life."""
    return await ctx.node.controller.register_broker(request, ctx.decision)


@handles(BrokerHeartbeatRequest, Listener.CONTROLLER)
async def broker_heartbeat(ctx: Context, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
    """A broker is alive."""
    return await ctx.node.controller.broker_heartbeat(request, ctx.decision)


@handles(UnregisterBrokerRequest, Listener.BROKER, Listener.CONTROLLER)
async def unregister_broker(ctx: Context, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    """Strike a broker off the list."""
    response = await ctx.node.controller.unregister_broker(request, ctx.decision)
    await ctx.node.caught_up()
    return response


@handles(AssignReplicasToDirsRequest, Listener.CONTROLLER)
async def assign_replicas_to_dirs(
    ctx: Context, request: AssignReplicasToDirsRequest
) -> AssignReplicasToDirsResponse:
    """A broker reports in which directories its replicas are (KIP-858)."""
    return await ctx.node.controller.assign_replicas_to_dirs(request, ctx.decision)


@handles(ControllerRegistrationRequest, Listener.CONTROLLER)
async def register_controller(
    ctx: Context, request: ControllerRegistrationRequest
) -> ControllerRegistrationResponse:
    """A controller announces itself (KIP-919)."""
    return await ctx.node.controller.register_controller(request, ctx.decision)


# ---- requests that brokers forward (KIP-590) ----------------------------------------------------------------


@handles(EnvelopeRequest, Listener.CONTROLLER)
async def envelope(ctx: Context, request: EnvelopeRequest) -> EnvelopeResponse:
    """A client's request that a broker forwards, with who sent it: served as if its client had sent it here.

    Errors of the envelope itself are the envelope's: a principal that cannot be read, an address that is none, an API
    that is not meant for forwarding. A request inside that cannot be parsed is UNSUPPORTED_VERSION, so that the broker
    can tell it from a bad envelope. Whatever the request inside is answered with, errors too, is in the envelope's
    answer. Only a broker may do this (CLUSTER_ACTION on the cluster): without an authorizer everybody counts as one.
    """
    read_principal(request.request_principal)
    if len(request.client_host_address) not in ADDRESS_SIZES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Failed to parse client address from envelope")
    frame = memoryview(request.request_data)
    route = _route(frame)
    try:
        reply = await respond(ctx.node, ctx.connection, route, frame)
    except KafkaError as error:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"Failed to parse forwarded request: {error}"
        ) from None
    return EnvelopeResponse(response_data=_payload(reply))


def _payload(reply: Reply | None) -> bytes:
    """A response without its size; none that may be forwarded is answered from a file, or not at all."""
    chunks = reply if isinstance(reply, list) else [reply]
    return b"".join(chunk for chunk in chunks if isinstance(chunk, bytes | bytearray))[FRAME_SIZE_BYTES:]


def read_principal(data: bytes | None) -> DefaultPrincipalData:
    """Who sent the request, as the default principal builder writes it: a version, then the message."""
    try:
        (version,) = _SHORT.unpack_from(data or b"")
        if version in schema_of(DefaultPrincipalData).versions:
            return decode(DefaultPrincipalData, data or b"", version, _SHORT.size)[0]
    except (struct.error, WireError) as error:
        raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, str(error)) from None
    raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, f"Invalid principal data version {version}")


def _route(view: memoryview) -> Route:
    """How the request inside is served."""
    try:
        header, _ = decode_request_header(view, 0, len(view))
    except KafkaError as error:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Failed to parse request header: {error}") from None
    route = routes(Listener.CONTROLLER).get(header.api_key)
    if route is None or header.api_key not in FORWARDABLE:
        name = APIS[header.api_key].name
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"API {name} is not enabled or may not be forwarded")
    if not route.min_version <= header.api_version <= route.max_version:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"version {header.api_version} of the forwarded request is not served",
        )
    return route
