"""What the controller decides (Kafka's ControllerApis): topics, reassignments, features, quorum, brokers, Envelope.

A broker's listener serves what clients ask, and passes it on to the active controller, wherever that runs. If it runs
in this process, what it decided is waited for until this broker has it too, so that a client that creates a topic and
uses it at once finds it. The controller's listener serves what nodes ask, and clients that know controllers (KIP-919):
there this process' controller decides, and says so if it is not the active one.
"""

from collections import Counter
from copy import copy
from random import shuffle
from typing import Any, TypeVar

from ottla.controller.result import standard_error
from ottla.controller.topics import CLUSTER_METADATA_TOPIC
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, Uuid
from ottla.model.pending import Pending
from ottla.model.tasks import spawn
from ottla.raft.answers import Asked
from ottla.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from ottla.security.principal import ADDRESS_SIZES, read_principal
from ottla.server.context import Context, Sender
from ottla.server.dispatch import NotController, respond_forwarded
from ottla.server.forwarding import FORWARDABLE
from ottla.server.limits import MAX_DECIDED_ELEMENTS
from ottla.server.network.connection import Listener
from ottla.server.network.output import Reply
from ottla.server.registry import Route, handles, routes
from ottla.wire.framing import decode_request_header
from ottla.wire.messages.admin.cluster import (
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.wire.messages.admin.topics import (
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.wire.messages.fetch import FetchRequest
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
from ottla.wire.messages.nodes.envelope import EnvelopeRequest, EnvelopeResponse
from ottla.wire.messages.nodes.raft import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UpdateRaftVoterRequest,
    VoteRequest,
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
from ottla.wire.registry import APIS

FRAME_SIZE_BYTES = 4
_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED

M = TypeVar("M")


def _with(message: M, **fields: Any) -> M:
    """The same message, but for these fields."""
    changed = copy(message)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


# ---- topics -------------------------------------------------------------------------------------------------


@handles(CreateTopicsRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def create_topics(ctx: Context, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """New topics, each with its own success or error; the configurations only for who may see them."""
    if ctx.node.authorizer is None:
        response = await ctx.controller.create_topics(request, ctx.decision(request))
        await ctx.caught_up()
        return response
    # What is wrong with these whoever asks is for the controller to say.
    times = Counter(topic.name for topic in request.topics)
    names = [name for name, count in times.items() if count == 1 and name != CLUSTER_METADATA_TOPIC]
    may = set(names)
    if not ctx.authorize(AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, log_if_denied=False):
        may = await ctx.authorized_of_many(AclOperation.CREATE, ResourceType.TOPIC, names)
    denied = {name for name in names if name not in may}
    shown = await ctx.authorized_of_many(
        AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, names, log_if_denied=False
    )
    left = _with(request, topics=[topic for topic in request.topics if topic.name not in denied])
    response = await ctx.controller.create_topics(left, ctx.decision(left))
    await ctx.caught_up()
    answered = [
        result if result.error_code or result.name in shown else _without_configs(result)
        for result in response.topics
    ]
    answered += [_denied_creation(name) for name in names if name in denied]
    return _with(response, topics=answered)


def _without_configs(result: CreatableTopicResult) -> CreatableTopicResult:
    """A topic that is made by who may not see its configuration, nor how many partitions that came to."""
    return CreatableTopicResult(
        name=result.name,
        topic_id=result.topic_id,
        error_message=None,
        topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        configs=[],
    )


def _denied_creation(name: str) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message="Authorization failed."
    )


@handles(DeleteTopicsRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def delete_topics(ctx: Context, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Topics by name or id; their files go in the background."""
    if ctx.decided_here and not ctx.node.config()["delete.topic.enable"]:
        low = ctx.version < 3
        raise KafkaError(ErrorCode.INVALID_REQUEST if low else ErrorCode.TOPIC_DELETION_DISABLED)
    denied: list[DeletableTopicResult] = []
    if ctx.node.authorizer is not None and not ctx.authorize(
        AclOperation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME, log_if_denied=False
    ):
        request, denied = await _deletable(ctx, request)
    response = await ctx.controller.delete_topics(request, ctx.decision(request))
    await ctx.caught_up()
    if denied:
        answered = [*response.responses, *denied]
        # Where an answer stands must not tell topics that are hidden from those that are not there.
        shuffle(answered)
        response = _with(response, responses=answered)
    return response


async def _deletable(
    ctx: Context, request: DeleteTopicsRequest
) -> tuple[DeleteTopicsRequest, list[DeletableTopicResult]]:
    """The request without what may not be deleted, and what is answered to that.

    A name that may not be described is denied whether there is such a topic or not. What is named twice, or in both
    ways, is for the controller to refuse; a state that is refused for having both does not count for the name in it.
    Nothing else is left to it that is not allowed: it may know topics already of which this image does not tell.
    """
    image = ctx.node.image()
    by_name = Counter([*request.topic_names, *(t.name for t in request.topics if _is_by_name(t))])
    by_id = Counter(t.topic_id for t in request.topics if t.name is None and t.topic_id != ZERO_UUID)
    known = {i: topic.name for i in by_id if (topic := image.topic_by_id(i)) is not None}
    names = [name for name in {*by_name, *known.values()} if name is not None]
    describable = await ctx.authorized_of_many(AclOperation.DESCRIBE, ResourceType.TOPIC, names)
    deletable = await ctx.authorized_of_many(AclOperation.DELETE, ResourceType.TOPIC, names)
    denied: list[DeletableTopicResult] = []
    denied_names: list[str] = []
    for name, count in by_name.items():
        if name is None or count > 1 or (name in describable and name in deletable):
            continue
        denied_names.append(name)
        is_absent = name in describable and image.topic(name) is None
        denied.append(_kept(name, ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_absent else _DENIED))
    denied_ids = {i for i, count in by_id.items() if count == 1 and known.get(i) not in deletable}
    for topic_id in denied_ids:
        hidden = known.get(topic_id)
        told = hidden if hidden in describable else None
        denied.append(_kept(told, topic_id, ErrorCode.UNKNOWN_TOPIC_ID if hidden is None else _DENIED))
    refused = set(denied_names)
    return _with(
        request,
        topic_names=[name for name in request.topic_names if name not in refused],
        topics=[
            t
            for t in request.topics
            if not (t.topic_id in denied_ids if t.name is None else _is_by_name(t) and t.name in refused)
        ],
    ), denied


def _is_by_name(topic: DeleteTopicState) -> bool:
    return topic.name is not None and topic.topic_id == ZERO_UUID


def _kept(name: str | None, topic_id: Uuid, code: ErrorCode) -> DeletableTopicResult:
    message = "Topic authorization failed." if code is _DENIED else standard_error(code).message
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)


@handles(CreatePartitionsRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def create_partitions(ctx: Context, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """More partitions for topics that exist."""
    times = Counter(topic.name for topic in request.topics)
    names = [name for name, count in times.items() if count == 1]
    may = await ctx.authorized_of_many(AclOperation.ALTER, ResourceType.TOPIC, names)
    denied = {name for name in names if name not in may}
    if denied:
        request = _with(request, topics=[topic for topic in request.topics if topic.name not in denied])
    response = await ctx.controller.create_partitions(request, ctx.decision(request))
    await ctx.caught_up()
    if denied:
        refused = [
            CreatePartitionsTopicResult(name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            for name in names
            if name in denied
        ]
        response = _with(response, results=[*response.results, *refused])
    return response


# ---- who holds and leads partitions -------------------------------------------------------------------------


@handles(ElectLeadersRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def elect_leaders(ctx: Context, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Choose leaders anew, the preferred ones or, if need be, any."""
    response = await ctx.controller.elect_leaders(request, ctx.decision(request))
    await ctx.caught_up()
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
    response = await ctx.controller.alter_partition_reassignments(request, ctx.decision(request))
    await ctx.caught_up()
    return response


@handles(
    ListPartitionReassignmentsRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS
)
async def list_partition_reassignments(
    ctx: Context, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """The moves under way."""
    return await ctx.controller.list_partition_reassignments(request, ctx.decision(request))


@handles(AlterPartitionRequest, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def alter_partition(ctx: Context, request: AlterPartitionRequest) -> AlterPartitionResponse:
    """A leader changes the set of in-sync replicas."""
    return await ctx.controller.alter_partition(request, ctx.decision(request))


# ---- features (KIP-584) -------------------------------------------------------------------------------------


@handles(UpdateFeaturesRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def update_features(ctx: Context, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Finalize feature levels."""
    response = await ctx.controller.update_features(request, ctx.decision(request))
    await ctx.caught_up()
    return response


# ---- the metadata quorum (KIP-595, KIP-630, KIP-853) --------------------------------------------------------


@handles(VoteRequest, Listener.CONTROLLER)
@handles(BeginQuorumEpochRequest, Listener.CONTROLLER)
@handles(EndQuorumEpochRequest, Listener.CONTROLLER)
@handles(FetchRequest, Listener.CONTROLLER)
@handles(FetchSnapshotRequest, Listener.CONTROLLER)
@handles(DescribeQuorumRequest, Listener.CONTROLLER)
@handles(AddRaftVoterRequest, Listener.CONTROLLER)
@handles(RemoveRaftVoterRequest, Listener.CONTROLLER)
@handles(UpdateRaftVoterRequest, Listener.CONTROLLER)
async def quorum(ctx: Context, request: Any) -> Any:
    """What voters, observers and administrators ask of this node's part of the quorum."""
    return await ctx.node.raft.handle(request, Asked(ctx.version, ctx.listener_name))


@handles(DescribeQuorumRequest)
async def describe_quorum(ctx: Context, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Who votes, who leads, and how far everybody has read."""
    return await ctx.node.controller.describe_quorum(request, ctx.decision(request))


@handles(AddRaftVoterRequest)
async def add_raft_voter(ctx: Context, request: AddRaftVoterRequest) -> AddRaftVoterResponse:
    """A controller wants a vote."""
    return await ctx.node.controller.add_raft_voter(request, ctx.decision(request))


@handles(RemoveRaftVoterRequest)
async def remove_raft_voter(ctx: Context, request: RemoveRaftVoterRequest) -> RemoveRaftVoterResponse:
    """A vote is to be taken away."""
    return await ctx.node.controller.remove_raft_voter(request, ctx.decision(request))


# ---- brokers and controllers (KIP-631) ----------------------------------------------------------------------


@handles(BrokerRegistrationRequest, Listener.CONTROLLER)
async def register_broker(ctx: Context, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
    """A broker announces a new life."""
    response = await ctx.controller.register_broker(request, ctx.decision(request))
    if not response.error_code:
        _watch(ctx, request.broker_id, response.broker_epoch)
    return response


@handles(BrokerHeartbeatRequest, Listener.CONTROLLER)
async def broker_heartbeat(ctx: Context, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
    """A broker is alive."""
    response = await ctx.controller.broker_heartbeat(request, ctx.decision(request))
    if not response.error_code:
        _watch(ctx, request.broker_id, request.broker_epoch)
    return response


def _watch(ctx: Context, broker_id: int, broker_epoch: int) -> None:
    """A broker that is heard from by this connection may be gone when that ends."""
    gone_brokers = ctx.node.gone_brokers
    if gone_brokers is not None:
        ctx.connection.when_lost(
            ("broker", broker_id), lambda _: gone_brokers.connection_lost(broker_id, broker_epoch)
        )


@handles(UnregisterBrokerRequest, Listener.BROKER, Listener.CONTROLLER)
async def unregister_broker(ctx: Context, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    """Strike a broker off the list."""
    response = await ctx.controller.unregister_broker(request, ctx.decision(request))
    await ctx.caught_up()
    return response


@handles(AssignReplicasToDirsRequest, Listener.CONTROLLER)
async def assign_replicas_to_dirs(
    ctx: Context, request: AssignReplicasToDirsRequest
) -> AssignReplicasToDirsResponse:
    """A broker reports in which directories its replicas are (KIP-858)."""
    return await ctx.controller.assign_replicas_to_dirs(request, ctx.decision(request))


@handles(ControllerRegistrationRequest, Listener.CONTROLLER)
async def register_controller(
    ctx: Context, request: ControllerRegistrationRequest
) -> ControllerRegistrationResponse:
    """A controller announces itself (KIP-919)."""
    return await ctx.controller.register_controller(request, ctx.decision(request))


@handles(AllocateProducerIdsRequest, Listener.CONTROLLER)
async def allocate_producer_ids(
    ctx: Context, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    """A broker gets a block of producer ids of its own."""
    return await ctx.controller.allocate_producer_ids(request, ctx.decision(request))


# ---- requests that brokers forward (KIP-590) ----------------------------------------------------------------


@handles(EnvelopeRequest, Listener.CONTROLLER)
def envelope(ctx: Context, request: EnvelopeRequest) -> Pending[EnvelopeResponse]:
    """A client's request that a broker forwards, with who sent it: served as if its client had sent it here.

    Those that come by one connection are of different clients: they begin in their order, and none waits until what
    was decided before it is committed.

    Errors of the envelope itself are the envelope's: a principal that cannot be read, an address that is none, an API
    that is not meant for forwarding. A request inside that cannot be parsed is UNSUPPORTED_VERSION, so that the broker
    can tell it from a bad envelope. Whatever the request inside is answered with, errors too, is in the envelope's
    answer; only that this controller is not the active one is said outside, so that the broker asks another. Only a
    broker may do this (CLUSTER_ACTION on the cluster): without an authorizer everybody counts as one. What is inside is
    judged for its sender.
    """
    ctx.connection.is_of_node = True
    answer: Pending[EnvelopeResponse] = Pending()
    spawn(
        _serve_forwarded(ctx, request, answer),
        name="a forwarded request",
        owner=f"listener {ctx.listener_name}",
        failed=lambda _: answer.fail(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)),
    )
    return answer


async def _serve_forwarded(ctx: Context, request: EnvelopeRequest, answer: Pending[EnvelopeResponse]) -> None:
    try:
        reply = await _reply_to_forwarded(ctx, request)
    except KafkaError as error:
        answer.fail(error)
    else:
        answer.resolve(EnvelopeResponse(response_data=_payload(reply)))


async def _reply_to_forwarded(ctx: Context, request: EnvelopeRequest) -> Reply | None:
    principal = read_principal(request.request_principal)
    if len(request.client_host_address) not in ADDRESS_SIZES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Failed to parse client address from envelope")
    sender = Sender(principal, request.client_host_address)
    frame = memoryview(request.request_data)
    route = _route(frame)
    try:
        return await respond_forwarded(ctx.node, ctx.connection, route, frame, sender)
    except NotController:
        raise
    except KafkaError as error:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"Failed to parse forwarded request: {error}"
        ) from None


def _payload(reply: Reply | None) -> bytes:
    """A response without its size; none that may be forwarded is answered from a file, or not at all."""
    chunks = reply if isinstance(reply, list) else [reply]
    return b"".join(chunk for chunk in chunks if isinstance(chunk, bytes | bytearray))[FRAME_SIZE_BYTES:]


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
