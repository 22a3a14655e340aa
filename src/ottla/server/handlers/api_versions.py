"""ApiVersions: what is served on this listener, read off the registry, and the cluster's features."""

import re

from ottla.metadata.features import KRAFT_VERSION, SUPPORTED_FEATURES
from ottla.model.errors import ErrorCode
from ottla.server.context import Context
from ottla.server.network.connection import Listener
from ottla.server.registry import handles, served
from ottla.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

# KIP-511: names and versions of client software are shown to people and go into metrics.
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
# Feature ranges that begin with 0 are shown only to clients that can read them.
FEATURES_FROM_ZERO_VERSION = 4


@handles(ApiVersionsRequest, Listener.BROKER, Listener.CONTROLLER)
def api_versions(ctx: Context, request: ApiVersionsRequest | None) -> ApiVersionsResponse:
    """None for the request stands for a version newer than ours: the answer lists those we know (KIP-511)."""
    if request is None:
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=_api_keys(ctx))
    if ctx.version >= 3 and not _named_well(request):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
    image = ctx.node.image()
    return ApiVersionsResponse(
        api_keys=_api_keys(ctx),
        supported_features=_supported(ctx.version),
        finalized_features_epoch=image.offset,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(_finalized(ctx).items())
            if level > 0
        ],
    )


def _named_well(request: ApiVersionsRequest) -> bool:
    return bool(
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    )


def _api_keys(ctx: Context) -> list[ApiVersion]:
    return [
        ApiVersion(api_key=key, min_version=low, max_version=high)
        for key, low, high in served(ctx.connection.host.kind)
    ]


def _finalized(ctx: Context) -> dict[str, int]:
    """The levels of the metadata log, and the quorum's own."""
    return {**ctx.node.image().finalized_features, KRAFT_VERSION: ctx.node.controller.raft.kraft_version}


def _supported(version: int) -> list[SupportedFeatureKey]:
    return [
        SupportedFeatureKey(name=name, min_version=span.min, max_version=span.max)
        for name, span in SUPPORTED_FEATURES.items()
        if version >= FEATURES_FROM_ZERO_VERSION or span.min > 0
    ]
