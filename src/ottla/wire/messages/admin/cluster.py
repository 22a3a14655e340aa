"""The cluster: its nodes, its features and their levels.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Bool, Int8, Int16, Int32, NullableString, String, message, since, struct, until


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterRequest:
    """Asks for the nodes of the cluster."""

    include_cluster_authorized_operations: Bool
    endpoint_type: Int8 = since(1, default=1)
    include_fenced_brokers: Bool = since(2, default=False)


@struct
class DescribeClusterBroker:
    """A node and where it listens."""

    broker_id: Int32
    host: String
    port: Int32
    rack: NullableString = None
    is_fenced: Bool = since(2, default=False)


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterResponse:
    """The nodes of the cluster: its brokers, or its controllers."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString = None
    endpoint_type: Int8 = since(1, default=1)
    cluster_id: String
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker]
    cluster_authorized_operations: Int32 = -2147483648


@struct
class FeatureUpdateKey:
    """A feature and the level it shall have."""

    feature: String
    max_version_level: Int16
    allow_downgrade: Bool = until(0, default=False)
    upgrade_type: Int8 = since(1, default=1)


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    """Raises or lowers features of the cluster (KIP-584)."""

    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey]
    validate_only: Bool = since(1, default=False)


@struct
class UpdatableFeatureResult:
    """Whether one feature was changed."""

    feature: String
    error_code: Int16 = 0
    error_message: NullableString


@message(api_key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    """Whether the features were changed."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString
    results: list[UpdatableFeatureResult] = until(1, default=[], ignorable=True)
