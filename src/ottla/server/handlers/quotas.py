"""Client quotas (KIP-546): the controller decides on changes, and a broker describes what is in its image."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from ottla.metadata.image import ClusterImage, QuotaEntity
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.time_slice import Steps, TimeSlice
from ottla.server.context import Context
from ottla.server.errors import says_errors_by_item
from ottla.server.limits import MAX_DECIDED_ELEMENTS
from ottla.server.network.connection import Listener
from ottla.server.registry import handles
from ottla.wire.messages.admin.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClientQuotasResponseEntryData,
    EntityData,
    ValueData,
)

_TYPES: Final = ("user", "client-id", "ip")
# Looked at in one step: some tenths of a millisecond.
ENTITIES_PER_STEP: Final = 500


class MatchType(IntEnum):
    """What a part of an entity has to be."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


# What a part of an entity has to be called: a name, None for the default one, or anything.
_ANY: Final = object()
Filter = Mapping[str, object]


@handles(AlterClientQuotasRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def alter_client_quotas(ctx: Context, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    """Set and remove quotas, each entity with its own success or error."""
    response = await ctx.controller.alter_client_quotas(request, ctx.decision(request))
    await ctx.caught_up()
    return response


@handles(DescribeClientQuotasRequest, max_elements=MAX_DECIDED_ELEMENTS)
async def describe_client_quotas(
    ctx: Context, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """The quotas of the entities that match."""
    try:
        wanted = _filter(request.components)
    except KafkaError as error:
        return DescribeClientQuotasResponse(
            error_code=int(error.code), error_message=error.message, entries=None
        )
    entries = await TimeSlice().run(described_quotas(ctx.node.image(), wanted, strict=request.strict))
    return DescribeClientQuotasResponse(error_message="", entries=entries)  # as Kafka says that there is none


def _nothing_described(request: DescribeClientQuotasRequest, code: ErrorCode) -> DescribeClientQuotasResponse:
    """As Kafka does it: no list at all, not one that is empty, and not a word."""
    return DescribeClientQuotasResponse(error_code=int(code), error_message=None, entries=None)


says_errors_by_item(DescribeClientQuotasRequest, _nothing_described)


def _filter(components: list[ComponentData]) -> Filter:
    """KafkaError if nothing can be meant by it."""
    wanted: dict[str, object] = {}
    for part in components:
        kind = part.entity_type
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in wanted:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in _TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if part.match_type not in MatchType._value2member_map_:
            raise _invalid(f"Unknown match type {part.match_type}")
        match = MatchType(part.match_type)
        if (part.match is not None) != (match is MatchType.EXACT):
            said = "set match string to null" if part.match is None else "also specified a match string"
            raise _invalid(f"Request specified MATCH_TYPE_{match.name}, but {said}.")
        wanted[kind] = _ANY if match is MatchType.SPECIFIED else part.match
    if "ip" in wanted and len(wanted) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component."
        )
    return wanted


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def described_quotas(
    image: ClusterImage, wanted: Filter, *, strict: bool
) -> Steps[list[DescribeClientQuotasResponseEntryData]]:
    """The entities that have all the wanted parts; if it is strict, and no others."""
    found = []
    for count, (entity, values) in enumerate(image.client_quotas.items(), 1):
        if _matches(entity, wanted, strict):
            found.append(
                DescribeClientQuotasResponseEntryData(
                    entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                    values=[ValueData(key=key, value=value) for key, value in values.items()],
                )
            )
        if count % ENTITIES_PER_STEP == 0:
            yield
    return found


def _matches(entity: QuotaEntity, wanted: Filter, strict: bool) -> bool:
    if strict and len(entity) != len(wanted):
        return False
    named = dict(entity)
    return all(kind in named and name in (_ANY, named[kind]) for kind, name in wanted.items())
