"""The brokers' standing: registration, heartbeats, directories and leaving are told to the controller (KIP-631)."""

from ottla.server.context import Context
from ottla.server.registry import Listener, handles
from ottla.wire.messages.broker_lifecycle import (
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
    """A broker tells where its replicas are (KIP-858)."""
    return await ctx.node.controller.assign_replicas_to_dirs(request, ctx.decision)


@handles(ControllerRegistrationRequest, Listener.CONTROLLER)
async def register_controller(
    ctx: Context, request: ControllerRegistrationRequest
) -> ControllerRegistrationResponse:
    """A controller announces itself (KIP-919)."""
    return await ctx.node.controller.register_controller(request, ctx.decision)
