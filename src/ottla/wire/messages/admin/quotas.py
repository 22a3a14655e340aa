"""Quotas of clients.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Bool, Float64, Int8, Int16, Int32, NullableString, String, message, struct


@struct
class ComponentData:
    """What one part of an entity has to match."""

    entity_type: String
    match_type: Int8
    match: NullableString


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasRequest:
    """Asks for the quotas of the entities that match (KIP-546)."""

    components: list[ComponentData]
    strict: Bool


@struct
class EntityData:
    """One part of the name of an entity: a user, a client id, an address."""

    entity_type: String
    entity_name: NullableString


@struct
class ValueData:
    """A quota."""

    key: String
    value: Float64


@struct
class DescribeClientQuotasResponseEntryData:
    """An entity and its quotas."""

    entity: list[EntityData]
    values: list[ValueData]


@message(api_key=48, versions="0-1", flexible="1+")
class DescribeClientQuotasResponse:
    """The quotas found; null when the request failed."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString
    entries: list[DescribeClientQuotasResponseEntryData] | None


@struct
class OpData:
    """A quota to set or to remove."""

    key: String
    value: Float64
    remove: Bool


@struct
class AlterClientQuotasRequestEntryData:
    """An entity and what changes for it."""

    entity: list[EntityData]
    ops: list[OpData]


@message(api_key=49, versions="0-1", flexible="1+")
class AlterClientQuotasRequest:
    """Sets and removes quotas."""

    entries: list[AlterClientQuotasRequestEntryData]
    validate_only: Bool


@struct
class AlterClientQuotasResponseEntryData:
    """Whether one entity was changed."""

    error_code: Int16 = 0
    error_message: NullableString
    entity: list[EntityData]


@message(api_key=49, versions="0-1", flexible="1+")
class AlterClientQuotasResponse:
    """Which entities were changed."""

    throttle_time_ms: Int32 = 0
    entries: list[AlterClientQuotasResponseEntryData]
