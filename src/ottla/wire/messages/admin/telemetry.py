"""Metrics that clients hand in (KIP-714).

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Bool, Bytes, Int8, Int16, Int32, String, UuidField, message


@message(api_key=71, versions="0", flexible="0+")
class GetTelemetrySubscriptionsRequest:
    """A client asks which metrics the broker wants of it (KIP-714)."""

    client_instance_id: UuidField


@message(api_key=71, versions="0", flexible="0+")
class GetTelemetrySubscriptionsResponse:
    """Which metrics, how often, and how compressed."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    client_instance_id: UuidField
    subscription_id: Int32
    accepted_compression_types: list[Int8]
    push_interval_ms: Int32
    telemetry_max_bytes: Int32
    delta_temporality: Bool
    requested_metrics: list[String]


@message(api_key=72, versions="0", flexible="0+")
class PushTelemetryRequest:
    """A client hands in its metrics."""

    client_instance_id: UuidField
    subscription_id: Int32
    terminating: Bool
    compression_type: Int8
    metrics: Bytes


@message(api_key=72, versions="0", flexible="0+")
class PushTelemetryResponse:
    """Whether they were taken."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
