"""DescribeCluster: who the brokers (or controllers) are, on the listener that asks."""

from ottla.model.errors import ErrorCode
from ottla.server.authorized import ALL_CLUSTER_OPERATIONS, NOT_ASKED
from ottla.server.context import Context
from ottla.server.registry import Listener, handles
from ottla.wire.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS, CONTROLLERS = 1, 2
# The first version that says whom it means (KIP-919).
ENDPOINT_TYPE_VERSION = 1


@handles(DescribeClusterRequest, Listener.BROKER, Listener.CONTROLLER)
def describe_cluster(ctx: Context, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """The nodes of the kind that this listener leads to."""
    here = CONTROLLERS if ctx.connection.host.kind is Listener.CONTROLLER else BROKERS
    if request.endpoint_type != here:
        return _wrong_endpoint(ctx, request, here)
    nodes = _controllers(ctx) if here == CONTROLLERS else _brokers(ctx, request.include_fenced_brokers)
    return DescribeClusterResponse(
        endpoint_type=here,
        cluster_id=ctx.node.cluster_id,
        controller_id=_controller_id(ctx, here),
        brokers=nodes,
        cluster_authorized_operations=(
            ALL_CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _wrong_endpoint(ctx: Context, request: DescribeClusterRequest, here: int) -> DescribeClusterResponse:
    names = {BROKERS: "BROKER", CONTROLLERS: "CONTROLLER"}
    if ctx.version < ENDPOINT_TYPE_VERSION:
        error = ErrorCode.INVALID_REQUEST
        message = "Requests of version 0 are for brokers only"
    elif request.endpoint_type not in names:
        error = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        message = f"Unsupported endpoint type {request.endpoint_type}"
    else:
        error = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        message = (
            f"The request was sent to an endpoint of type {names[here]}, but we wanted an endpoint of type "
            f"{names[request.endpoint_type]}"
        )
    return DescribeClusterResponse(error_code=error, error_message=message, cluster_id="", brokers=[])


def _controller_id(ctx: Context, here: int) -> int:
    return ctx.node.controller.raft.state.leader_id if here == CONTROLLERS else ctx.node.node_id


def _brokers(ctx: Context, include_fenced: bool) -> list[DescribeClusterBroker]:
    listener = ctx.listener_name
    return [
        DescribeClusterBroker(
            broker_id=broker.id,
            host=broker.listeners[listener].host,
            port=broker.listeners[listener].port,
            rack=broker.rack,
            is_fenced=broker.fenced,
        )
        for broker in ctx.node.image().brokers.values()
        if listener in broker.listeners and (include_fenced or not broker.fenced)
    ]


def _controllers(ctx: Context) -> list[DescribeClusterBroker]:
    listener = ctx.listener_name
    return [
        DescribeClusterBroker(
            broker_id=controller.id,
            host=controller.listeners[listener].host,
            port=controller.listeners[listener].port,
        )
        for controller in ctx.node.image().controllers.values()
        if listener in controller.listeners
    ]
