"""Features of the cluster and their levels.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Bool, Int8, Int16, Int32, NullableString, String, message, since, struct, until


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
