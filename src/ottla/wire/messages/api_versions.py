"""What the broker speaks.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import (
    Bool,
    Int16,
    Int32,
    Int64,
    NullableString,
    String,
    message,
    since,
    struct,
    tagged,
)


@message(api_key=18, versions="0-5", flexible="3+")
class ApiVersionsRequest:
    """Asks what the broker speaks; the first request on most connections."""

    client_software_name: String = since(3, default="", ignorable=True)
    client_software_version: String = since(3, default="", ignorable=True)
    cluster_id: NullableString = since(5, default=None, ignorable=True)
    node_id: Int32 = since(5, default=-1, ignorable=True)


@struct
class ApiVersion:
    """An API and the versions of it that are served."""

    api_key: Int16
    min_version: Int16
    max_version: Int16


@struct
class SupportedFeatureKey:
    """A feature and the levels of it that the node can do."""

    name: String
    min_version: Int16
    max_version: Int16


@struct
class FinalizedFeatureKey:
    """A feature and the levels that are in force in the cluster."""

    name: String
    max_version_level: Int16
    min_version_level: Int16


@message(api_key=18, versions="0-5", flexible="3+")
class ApiVersionsResponse:
    """Every API served with its range of versions, and the cluster's features."""

    error_code: Int16 = 0
    api_keys: list[ApiVersion]
    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    supported_features: list[SupportedFeatureKey] = tagged(0, since=3, default=[], ignorable=True)
    finalized_features_epoch: Int64 = tagged(1, since=3, default=-1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = tagged(2, since=3, default=[], ignorable=True)
    zk_migration_ready: Bool = tagged(3, since=3, default=False, ignorable=True)
