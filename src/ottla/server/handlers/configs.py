"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

A change is looked at twice, as in Kafka: this broker checks what only it can know (its own settings, its
loggers) and the controller checks and stores the rest. A resource that fails here does not reach the controller.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ottla.config import describe
from ottla.config.describe import Described
from ottla.config.dynamic import check_broker_change
from ottla.config.errors import ConfigError
from ottla.metadata.image import ResourceType
from ottla.model.breath import Breath
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.topic_names import topic_name_problem
from ottla.server import broker_loggers
from ottla.server.broker_loggers import Operation
from ottla.server.config_changes import incremental_settings
from ottla.server.context import Context
from ottla.server.registry import Listener, handles
from ottla.server.request_head import MAX_DECIDED_ELEMENTS
from ottla.wire.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

DYNAMIC_BROKER_LOGGER_CONFIG = 6

# ---- describing ------------------------------------------------------------------------------------------------


@handles(DescribeConfigsRequest, Listener.BROKER, Listener.CONTROLLER)
async def describe_configs(ctx: Context, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """The configuration of each resource, with where every value comes from."""
    results = []
    breath = Breath()  # tools ask for all topics at once
    for resource in request.resources:
        results.append(_describe(ctx, request, resource))
        await breath.take()
    return DescribeConfigsResponse(results=results)


def _describe(
    ctx: Context, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_message="",
        configs=[],
    )
    try:
        describer = _DESCRIBERS.get(resource.resource_type)
        if describer is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected resource type UNKNOWN for resource {resource.resource_name}",
            )
        result.configs = describer(ctx, request, resource)
    except KafkaError as error:
        result.error_code = error.code
        result.error_message = error.message or ""
    return result


def _describe_topic(
    ctx: Context, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    name = resource.resource_name
    why = topic_name_problem(name)
    if why is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, why)
    image = ctx.node.image()
    if image.topic(name) is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    overrides = image.config(ResourceType.TOPIC, name)
    found = describe.describe_topic(ctx.node.config(), overrides, resource.configuration_keys)
    return _entries(request, found)


def _describe_broker(
    ctx: Context, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    config = ctx.node.config()
    if not resource.resource_name:
        return _entries(request, describe.describe_cluster_default(config, resource.configuration_keys))
    if _broker_id(resource.resource_name) != ctx.node.node_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {ctx.node.node_id} or empty string, but received "
            f"{resource.resource_name}",
        )
    return _entries(request, config.describe(resource.configuration_keys))


def _describe_loggers(
    ctx: Context, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    name = resource.resource_name
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    if _broker_id(name) != ctx.node.node_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {ctx.node.node_id} but received {name}",
        )
    asked = set(resource.configuration_keys or ())
    return [
        DescribeConfigsResourceResult(
            name=logger,
            value=level,
            read_only=False,
            config_source=DYNAMIC_BROKER_LOGGER_CONFIG,
            is_sensitive=False,
            synonyms=[],
            documentation="",
        )
        for logger, level in broker_loggers.levels().items()
        if not asked or logger in asked
    ]


def _describe_client_metrics(
    ctx: Context, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    if not resource.resource_name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
    overrides = ctx.node.image().config(ResourceType.CLIENT_METRICS, resource.resource_name)
    return _entries(request, describe.describe_client_metrics(overrides, resource.configuration_keys))


def _describe_group(
    ctx: Context, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    if not resource.resource_name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
    overrides = ctx.node.image().config(ResourceType.GROUP, resource.resource_name)
    return _entries(
        request, describe.describe_group(ctx.node.config(), overrides, resource.configuration_keys)
    )


_DESCRIBERS: dict[
    int,
    Callable[[Context, DescribeConfigsRequest, DescribeConfigsResource], list[DescribeConfigsResourceResult]],
] = {
    ResourceType.TOPIC: _describe_topic,
    ResourceType.BROKER: _describe_broker,
    ResourceType.BROKER_LOGGER: _describe_loggers,
    ResourceType.CLIENT_METRICS: _describe_client_metrics,
    ResourceType.GROUP: _describe_group,
}


def _broker_id(name: str) -> int:
    try:
        return int(name)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}"
        ) from None


def _entries(
    request: DescribeConfigsRequest, found: Sequence[Described]
) -> list[DescribeConfigsResourceResult]:
    return [
        DescribeConfigsResourceResult(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.sensitive,
            synonyms=[
                DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source) for s in entry.synonyms
            ]
            if request.include_synonyms
            else [],
            config_type=entry.type,
            documentation=entry.documentation if request.include_documentation else None,
        )
        for entry in found
    ]


# ---- altering --------------------------------------------------------------------------------------------------


class _Entry(Protocol):
    name: str
    value: str | None


class _Resource(Protocol):
    resource_type: int
    resource_name: str

    @property
    def configs(self) -> Sequence[_Entry]: ...


class _Verdict(NamedTuple):
    """What came of one resource."""

    code: ErrorCode
    message: str | None = None


_FINE = _Verdict(ErrorCode.NONE)


@handles(AlterConfigsRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def alter_configs(ctx: Context, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Replace the whole configuration of resources: the old way, kept for old clients."""
    verdicts = _preprocess(ctx, request.resources, lambda r: _check_legacy(ctx, r))
    passed = [r for index, r in enumerate(request.resources) if index not in verdicts]
    if passed:
        answer = await ctx.node.controller.alter_configs(
            AlterConfigsRequest(resources=passed, validate_only=request.validate_only), ctx.decision
        )
        await ctx.node.caught_up()
        _merge(verdicts, request.resources, answer.responses)
    return AlterConfigsResponse(responses=_responses(request.resources, verdicts))


@handles(
    IncrementalAlterConfigsRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS
)
async def incremental_alter_configs(
    ctx: Context, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Set, delete, append to and subtract from single keys (KIP-339)."""
    verdicts = _preprocess(
        ctx, request.resources, lambda r: _check_incremental(ctx, r, request.validate_only)
    )
    passed = [r for index, r in enumerate(request.resources) if index not in verdicts]
    if passed:
        answer = await ctx.node.controller.incremental_alter_configs(
            IncrementalAlterConfigsRequest(resources=passed, validate_only=request.validate_only),
            ctx.decision,
        )
        await ctx.node.caught_up()
        _merge(verdicts, request.resources, answer.responses)
    return IncrementalAlterConfigsResponse(responses=_responses(request.resources, verdicts))


def _preprocess(ctx: Context, resources: Sequence[Any], check: Callable[[Any], bool]) -> dict[int, _Verdict]:
    """Verdicts on what need not or must not reach the controller, by the resource's place in the request."""
    times = Counter((r.resource_type, r.resource_name) for r in resources)
    verdicts: dict[int, _Verdict] = {}
    for index, resource in enumerate(resources):
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            if len({entry.name for entry in resource.configs}) < len(resource.configs):
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
            if check(resource):
                verdicts[index] = _FINE
        except KafkaError as error:
            verdicts[index] = _Verdict(error.code, error.message)
    return verdicts


def _check_legacy(ctx: Context, resource: _Resource) -> bool:
    """Raises what this broker has against it; True if nothing is left for the controller."""
    _refuse_nulls(entry.name for entry in resource.configs if entry.value is None)
    if resource.resource_type == ResourceType.BROKER:
        settings = {entry.name: entry.value for entry in resource.configs if entry.value is not None}
        _check_broker(ctx, resource.resource_name, settings)
    elif resource.resource_type not in _STORED:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")
    return False


def _check_incremental(ctx: Context, resource: IncrementalAlterConfigsResource, validate_only: bool) -> bool:
    _refuse_nulls(
        entry.name
        for entry in resource.configs
        if entry.value is None and entry.config_operation != Operation.DELETE
    )
    if resource.resource_type == ResourceType.BROKER_LOGGER:
        _alter_loggers(ctx, resource, validate_only)
        return True
    if resource.resource_type == ResourceType.BROKER:
        config = ctx.node.config()
        current = config.dynamic_broker if resource.resource_name else config.dynamic_default
        _check_broker(ctx, resource.resource_name, incremental_settings(current, resource))
    elif resource.resource_type not in _STORED:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")
    return False


_STORED = (ResourceType.TOPIC, ResourceType.CLIENT_METRICS, ResourceType.GROUP)


def _refuse_nulls(names: Any) -> None:
    nulls = list(names)
    if nulls:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


def _check_broker(ctx: Context, name: str, settings: dict[str, str]) -> None:
    if ctx.connection.host.kind is Listener.CONTROLLER:
        return  # a controller is asked about any broker, and checks what can be known of all of them
    if name:
        _check_own_id(ctx, name, f"Unexpected broker id, expected {ctx.node.node_id}, but received {name}")
    try:
        check_broker_change(ctx.node.config(), settings, per_broker=bool(name))
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error


def _check_own_id(ctx: Context, name: str, otherwise: str) -> None:
    try:
        asked = int(name)
    except ValueError:
        message = f"Node id must be an integer, but it is: {name}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message) from None
    if asked != ctx.node.node_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, otherwise)


def _alter_loggers(ctx: Context, resource: IncrementalAlterConfigsResource, validate_only: bool) -> None:
    name = resource.resource_name
    _check_own_id(ctx, name, f"Unexpected node id. Expected {ctx.node.node_id}, but received {name}")
    for entry in resource.configs:
        broker_loggers.check(entry.name, entry.config_operation, entry.value)
    if not validate_only:
        for entry in resource.configs:
            broker_loggers.apply(entry.name, entry.config_operation, entry.value)


def _merge(
    verdicts: dict[int, _Verdict], resources: Sequence[_Resource], answers: list[AlterConfigsResourceResponse]
) -> None:
    by_resource = {(a.resource_type, a.resource_name): a for a in answers}
    for index, resource in enumerate(resources):
        answer = by_resource.get((resource.resource_type, resource.resource_name))
        if index not in verdicts:
            verdicts[index] = (
                _Verdict(ErrorCode.UNKNOWN_SERVER_ERROR)
                if answer is None
                else _Verdict(ErrorCode(answer.error_code), answer.error_message)
            )


def _responses(
    resources: Sequence[_Resource], verdicts: dict[int, _Verdict]
) -> list[AlterConfigsResourceResponse]:
    return [
        AlterConfigsResourceResponse(
            error_code=verdicts[index].code,
            error_message=verdicts[index].message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for index, resource in enumerate(resources)
    ]


# ---- listing ---------------------------------------------------------------------------------------------------

_LISTABLE = (
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
    ResourceType.BROKER_LOGGER,
    ResourceType.BROKER,
    ResourceType.TOPIC,
)


@handles(ListConfigResourcesRequest)
def list_config_resources(ctx: Context, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    """What has, or can have, a configuration (KIP-1142)."""
    supported = _LISTABLE if ctx.version >= 1 else (ResourceType.CLIENT_METRICS,)
    asked = request.resource_types or [int(t) for t in supported]
    if not all(resource_type in supported for resource_type in asked):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[])
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=resource_type)
            for resource_type in _LISTABLE
            if resource_type in asked
            for name in _names(ctx, resource_type)
        ]
    )


def _names(ctx: Context, resource_type: ResourceType) -> list[str]:
    image = ctx.node.image()
    if resource_type in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return [str(broker.id) for broker in image.brokers.values() if not broker.fenced]
    if resource_type == ResourceType.TOPIC:
        return list(image.topics)
    return [resource.name for resource in image.configs if resource.type == resource_type]
