"""UpdateFeatures: which levels of the protocol and the log the cluster uses (KIP-584)."""

from ottla.server.context import Context
from ottla.server.registry import Listener, handles
from ottla.server.request_head import MAX_DECIDED_ELEMENTS
from ottla.wire.messages.features import (
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


@handles(UpdateFeaturesRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def update_features(ctx: Context, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Finalize feature levels."""
    response = await ctx.node.controller.update_features(request, ctx.decision)
    await ctx.node.caught_up()
    return response
