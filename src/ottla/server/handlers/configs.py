"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

A change is checked twice, as in Kafka: this broker checks what only it can know (its own settings, its loggers) and the
controller checks and stores the rest. A resource that fails here does not reach the controller.

The log levels of a running broker are settings too (KIP-412), by Kafka's level names over Python's loggers. They are
not stored: a restart brings back what the broker was started with.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

from ottla.config import describe
from ottla.config.alter import check_broker_change, refused_by_part
from ottla.config.definitions import BROKER_KEYS, Type
from ottla.config.describe import Described
from ottla.config.errors import ConfigError
from ottla.config.types import to_text
from ottla.metadata.image import ResourceType
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import topic_name_problem
from ottla.model.time_slice import TimeSlice
from ottla.security import acls
from ottla.security.acls import AclOperation
from ottla.server.context import Context
from ottla.server.limits import MAX_DECIDED_ELEMENTS
from ottla.server.network.connection import Listener
from ottla.server.registry import handles
from ottla.wire.messages.admin.configs import (
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
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

DYNAMIC_BROKER_LOGGER_CONFIG = 6
ROOT_LOGGER = "root"

# Python has no level below DEBUG and one name for the highest: these are Kafka's names for them.
TRACE = 5
LEVELS: Mapping[str, int] = {
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_NAMES = {number: name for name, number in LEVELS.items()}


_DENIALS: Final = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
}


def _require(ctx: Context, operation: AclOperation, resource_type: int, name: str) -> None:
    """KafkaError if it may not be done with this configuration: a topic's, a group's, or else the cluster's."""
    if resource_type == ResourceType.TOPIC:
        judged, of = acls.ResourceType.TOPIC, name
    elif resource_type == ResourceType.GROUP:
        judged, of = acls.ResourceType.GROUP, name
    else:
        judged, of = acls.ResourceType.CLUSTER, acls.CLUSTER_NAME
    if not ctx.authorize(operation, judged, of):
        code = acls.AUTHORIZATION_ERRORS[judged]
        raise KafkaError(code, _DENIALS[code])


class Operation(IntEnum):
    """What an incremental change does to a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


# ---- describing ------------------------------------------------------------------------------------------------


@handles(DescribeConfigsRequest, Listener.BROKER, Listener.CONTROLLER)
async def describe_configs(ctx: Context, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """The configuration of each resource, with where every value comes from."""
    results = []
    time_slice = TimeSlice()  # tools ask for all topics at once
    for resource in request.resources:
        results.append(_describe(ctx, request, resource))
        await time_slice.yield_to_loop()
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
        _require(ctx, AclOperation.DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
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
    return _entries(request, describe.describe_broker(config, resource.configuration_keys))


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
        for logger, level in logger_levels().items()
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
    verdicts = await _preprocess(request.resources, lambda r: _check_legacy(ctx, r))
    passed = [r for index, r in enumerate(request.resources) if index not in verdicts]
    if passed:
        left = AlterConfigsRequest(resources=passed, validate_only=request.validate_only)
        answer = await ctx.controller.alter_configs(left, ctx.decision(left))
        await ctx.caught_up()
        _merge(verdicts, request.resources, answer.responses)
    return AlterConfigsResponse(responses=_responses(request.resources, verdicts))


@handles(
    IncrementalAlterConfigsRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS
)
async def incremental_alter_configs(
    ctx: Context, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Set, delete, append to and subtract from single keys (KIP-339)."""
    verdicts = await _preprocess(
        request.resources, lambda r: _check_incremental(ctx, r, request.validate_only)
    )
    passed = [r for index, r in enumerate(request.resources) if index not in verdicts]
    if passed:
        left = IncrementalAlterConfigsRequest(resources=passed, validate_only=request.validate_only)
        answer = await ctx.controller.incremental_alter_configs(left, ctx.decision(left))
        await ctx.caught_up()
        _merge(verdicts, request.resources, answer.responses)
    return IncrementalAlterConfigsResponse(responses=_responses(request.resources, verdicts))


async def _preprocess(
    resources: Sequence[Any], check: Callable[[Any], Awaitable[bool]]
) -> dict[int, _Verdict]:
    """Verdicts on what need not or must not reach the controller, by the resource's place in the request."""
    times = Counter((r.resource_type, r.resource_name) for r in resources)
    verdicts: dict[int, _Verdict] = {}
    for index, resource in enumerate(resources):
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            if len({entry.name for entry in resource.configs}) < len(resource.configs):
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
            if await check(resource):
                verdicts[index] = _FINE
        except KafkaError as error:
            verdicts[index] = _Verdict(error.code, error.message)
    return verdicts


def _unknown_type(ctx: Context, resource_type: int) -> KafkaError:
    """A controller takes what it does not know for a later release's."""
    is_known = resource_type == ResourceType.BROKER_LOGGER
    code = (
        ErrorCode.UNSUPPORTED_VERSION
        if ctx.on_controller_listener and not is_known
        else ErrorCode.INVALID_REQUEST
    )
    return KafkaError(code, f"Unknown resource type {resource_type}")


async def _check_legacy(ctx: Context, resource: _Resource) -> bool:
    """Raises what this broker has against it; True if nothing is left for the controller."""
    _refuse_nulls(entry.name for entry in resource.configs if entry.value is None)
    if resource.resource_type == ResourceType.BROKER:
        settings = {entry.name: entry.value for entry in resource.configs if entry.value is not None}
        await _check_broker(ctx, resource.resource_name, settings, settings.keys())
    elif resource.resource_type not in _STORED:
        raise _unknown_type(ctx, resource.resource_type)
    _require(ctx, AclOperation.ALTER_CONFIGS, resource.resource_type, resource.resource_name)
    return False


async def _check_incremental(
    ctx: Context, resource: IncrementalAlterConfigsResource, validate_only: bool
) -> bool:
    _refuse_nulls(
        entry.name
        for entry in resource.configs
        if entry.value is None and entry.config_operation != Operation.DELETE
    )
    if resource.resource_type == ResourceType.BROKER_LOGGER:
        # A controller's are the nodes'.
        on_controller = ctx.on_controller_listener
        operation = AclOperation.CLUSTER_ACTION if on_controller else AclOperation.ALTER_CONFIGS
        _require(ctx, operation, resource.resource_type, resource.resource_name)
        _alter_loggers(ctx, resource, validate_only)
        return True
    if resource.resource_type == ResourceType.BROKER:
        config = ctx.node.config()
        current = config.dynamic_broker if resource.resource_name else config.dynamic_default
        named = {entry.name for entry in resource.configs}
        await _check_broker(ctx, resource.resource_name, incremental_settings(current, resource), named)
    elif resource.resource_type not in _STORED:
        raise _unknown_type(ctx, resource.resource_type)
    _require(ctx, AclOperation.ALTER_CONFIGS, resource.resource_type, resource.resource_name)
    return False


_STORED = (ResourceType.TOPIC, ResourceType.CLIENT_METRICS, ResourceType.GROUP)


def _refuse_nulls(names: Any) -> None:
    nulls = list(names)
    if nulls:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}")


async def _check_broker(ctx: Context, name: str, settings: dict[str, str], named: Collection[str]) -> None:
    if ctx.on_controller_listener:
        # A controller is asked about any node, and checks what can be known of all of them, and of itself.
        if name != str(ctx.node.node_id):
            return
    elif name:
        _check_own_id(ctx, name, f"Unexpected broker id, expected {ctx.node.node_id}, but received {name}")
    try:
        changed = check_broker_change(ctx.node.config(), settings, per_broker=bool(name))
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
    if ctx.node.check_stores is None:
        return
    # Only whoever may change them makes the node read files, and hears what is in them.
    _require(ctx, AclOperation.ALTER_CONFIGS, ResourceType.BROKER, name)
    try:
        await ctx.node.check_stores(changed, named)
    except ConfigError as error:
        problem = f"Validation of dynamic config update of SSLFactory failed: {error}"
        refused = refused_by_part(error.key or "", problem)
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(refused)) from None


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
        check_logger_change(entry.name, entry.config_operation, entry.value)
    if not validate_only:
        for entry in resource.configs:
            apply_logger_change(entry.name, entry.config_operation, entry.value)


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
                else _Verdict(error_of(answer.error_code) or ErrorCode.NONE, answer.error_message)
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


# ---- an incremental change of the broker's settings, checked before it is made ------------------------------


def incremental_settings(
    current: Mapping[str, str], resource: IncrementalAlterConfigsResource
) -> dict[str, str]:
    """The broker settings that `current` becomes."""
    settings = dict(current)
    for change in resource.configs:
        _apply(settings, change)
    return settings


def _apply(settings: dict[str, str], change: IncrementalAlterableConfig) -> None:
    if change.config_operation == Operation.DELETE:
        settings.pop(change.name, None)
    elif change.config_operation == Operation.SET:
        settings[change.name] = change.value or ""
    elif change.config_operation in (Operation.APPEND, Operation.SUBTRACT):
        settings[change.name] = _edited(settings, change)
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {change.config_operation}")


def _edited(settings: Mapping[str, str], change: IncrementalAlterableConfig) -> str:
    key = BROKER_KEYS.get(change.name)
    if key is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown config name: {change.name}")
    verb = Operation(change.config_operation).name.lower()
    if key.type is not Type.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Config value {verb} is not allowed for config key: {change.name}"
        )
    old = [
        entry for entry in (settings.get(change.name) or to_text(key, key.default) or "").split(",") if entry
    ]
    given = (change.value or "").split(",")
    if change.config_operation == Operation.APPEND:
        return ",".join(old + [entry for entry in given if entry not in old])
    return ",".join(entry for entry in old if entry not in given)


# ---- log levels (KIP-412) -----------------------------------------------------------------------------------


def logger_levels() -> dict[str, str]:
    """Every logger of ours with the level in force."""
    names = sorted(name for name in logging.root.manager.loggerDict if name.split(".")[0] == "ottla")
    shown = {name: _level_name(logging.getLogger(name).getEffectiveLevel()) for name in names}
    shown[ROOT_LOGGER] = _level_name(logging.root.level)
    return shown


def check_logger_change(name: str, operation: int, value: str | None) -> None:
    """KafkaError if the change cannot be made."""
    if operation not in (Operation.SET, Operation.DELETE):
        raise KafkaError(ErrorCode.INVALID_REQUEST, _not_allowed(operation))
    if name not in logger_levels():
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == Operation.DELETE and name == ROOT_LOGGER:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT_LOGGER} logger is not allowed"
        )
    if operation == Operation.SET and value not in LEVELS:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {value} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(LEVELS))}",
        )


def apply_logger_change(name: str, operation: int, value: str | None) -> None:
    """Make a change that `check_logger_change` has let through."""
    logger = logging.root if name == ROOT_LOGGER else logging.getLogger(name)
    logger.setLevel(LEVELS[value] if operation == Operation.SET and value is not None else logging.NOTSET)


def _not_allowed(operation: int) -> str:
    if operation in (Operation.APPEND, Operation.SUBTRACT):
        return f"{Operation(operation).name} operation is not allowed for the BROKER_LOGGER resource"
    return f"Unknown operation type {operation} is not allowed for the BROKER_LOGGER resource"


def _level_name(number: int) -> str:
    """The nearest of Kafka's names at or above a level."""
    return next((name for level, name in sorted(_NAMES.items()) if level >= number), "FATAL")
