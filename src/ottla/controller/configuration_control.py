"""Kafka's ConfigurationControlManager: configuration of topics, brokers, groups and client metrics (KIP-339).

Rules: pure; what a value means and whether it is allowed is ottla.config's to say. Every resource of a request
fares by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ottla.config.alter import AlterOp, apply_operation, check_resource
from ottla.config.types import ResourceType as ConfigType
from ottla.controller.result import (
    OK,
    ApiError,
    ControllerResult,
    RequestContext,
    check_record_count,
    error_of,
)
from ottla.controller.rules import MIN_ISR, ClusterRules
from ottla.metadata import features
from ottla.metadata.image import CLUSTER_DEFAULT, ConfigResource, ResourceType
from ottla.metadata.records import ClearElrRecord, ConfigRecord, MetadataRecord, PartitionChangeRecord
from ottla.metadata.registrations import PartitionRegistration, TopicImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import topic_name_problem
from ottla.model.policies import ConfigChange
from ottla.model.time_slice import Steps
from ottla.wire.messages.admin import configs as m

CORDONED_LOG_DIRS = "cordoned.log.dirs"

C = TypeVar("C", m.IncrementalAlterConfigsResource, m.AlterConfigsResource)
_TYPES = frozenset(ResourceType) - {ResourceType.UNKNOWN}


def incremental_alter_configs(
    rules: ClusterRules, request: m.IncrementalAlterConfigsRequest, context: RequestContext
) -> Steps[ControllerResult[m.IncrementalAlterConfigsResponse]]:
    """Sets, deletes, appends to and subtracts from single keys."""

    def decide(resource: ConfigResource, change: m.IncrementalAlterConfigsResource) -> list[MetadataRecord]:
        current = rules.image.config(*resource)
        changed = [
            (c.name, _new_value(resource, c.name, c.config_operation, current.get(c.name), c.value))
            for c in change.configs
        ]
        return _records(rules, resource, changed, (), context)

    responses, records = yield from _each_resource(rules, request.resources, decide)
    result = ControllerResult(m.IncrementalAlterConfigsResponse(responses=responses), records, atomic=True)
    return result.without_records() if request.validate_only else result


def alter_configs(
    rules: ClusterRules, request: m.AlterConfigsRequest, context: RequestContext
) -> Steps[ControllerResult[m.AlterConfigsResponse]]:
    """Replaces all that a resource has: what the request leaves out is deleted."""

    def decide(resource: ConfigResource, change: m.AlterConfigsResource) -> list[MetadataRecord]:
        values = {c.name: c.value for c in change.configs}
        removed = [name for name in rules.image.config(*resource) if name not in values]
        return _records(rules, resource, list(values.items()), removed, context)

    responses, records = yield from _each_resource(rules, request.resources, decide)
    result = ControllerResult(m.AlterConfigsResponse(responses=responses), records, atomic=True)
    return result.without_records() if request.validate_only else result


def _each_resource(
    rules: ClusterRules, changes: Sequence[C], decide: Callable[[ConfigResource, C], list[MetadataRecord]]
) -> Steps[tuple[list[m.AlterConfigsResourceResponse], list[MetadataRecord]]]:
    """The answer and the records for each resource; one that is named twice is not changed at all."""
    by_resource: dict[ConfigResource, list[C]] = {}
    for change in changes:
        resource = ConfigResource(change.resource_type, change.resource_name)
        by_resource.setdefault(resource, []).append(change)
    responses: list[m.AlterConfigsResourceResponse] = []
    records: list[MetadataRecord] = []
    for resource, group in by_resource.items():
        error = _resource_error(resource, len(group))
        if error is OK:
            try:
                records += decide(resource, group[0])
            except KafkaError as refusal:
                error = error_of(refusal)
        responses.append(_response(resource, error))
        yield
    records += _clear_elr(rules, records)
    check_record_count(records)
    return responses, records


def new_resource_records(
    rules: ClusterRules, resource: ConfigResource, values: Mapping[str, str], context: RequestContext
) -> list[MetadataRecord]:
    """The records for the configuration of a resource that is being created."""
    changed = [(name, value) for name, value in values.items()]
    records = _records(rules, resource, changed, (), context, exists=False)
    # The topic has no partitions yet, and so nothing to forget; Kafka writes the record all the same.
    return [*records, *_clear_elr(rules, records)]


def _response(resource: ConfigResource, error: ApiError) -> m.AlterConfigsResourceResponse:
    return m.AlterConfigsResourceResponse(
        error_code=error.code,
        error_message=error.message,
        resource_type=resource.type,
        resource_name=resource.name,
    )


def _resource_error(resource: ConfigResource, count: int) -> ApiError:
    if resource.type not in _TYPES:
        return ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unknown resource type {resource.type}.")
    if count > 1:
        return ApiError(ErrorCode.INVALID_REQUEST, "Duplicate resource.")
    return OK


def _new_value(
    resource: ConfigResource, name: str, operation: int, current: str | None, value: str | None
) -> str | None:
    if operation not in AlterOp._value2member_map_:
        # A broker refuses this for its own settings; a controller of Kafka's has no better word for it.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    return apply_operation(ConfigType(resource.type), name, AlterOp(operation), current, value)


def _records(
    rules: ClusterRules,
    resource: ConfigResource,
    changed: Sequence[tuple[str, str | None]],
    removed: Sequence[str],
    context: RequestContext,
    exists: bool = True,
) -> list[MetadataRecord]:
    """The records that make the change, after everyone who may object has been asked."""
    existing = rules.image.config(*resource)
    # Brokers apply a record even if it changes nothing: it may name a file that has changed.
    written = [
        (name, value)
        for name, value in changed
        if existing.get(name) != value or resource.type == ResourceType.BROKER
    ]
    settings: dict[str, str | None] = dict(existing)
    for name, value in [*written, *((name, None) for name in removed)]:
        _check_key(rules, resource, name, value, existing, context)
        settings.pop(name, None)
        if value is not None:
            settings[name] = value
    config = rules.settings.effective(rules.image)
    if resource.type == ResourceType.TOPIC:
        _check_topic_name(resource.name)
    check_resource(config, ConfigType(resource.type), resource.name, settings, existing)
    if exists:
        _check_exists(rules, resource)
    if exists or written:
        # What a legacy change leaves out is deleted without the policy hearing of it (KAFKA-14195).
        rules.settings.policies.check_change(ConfigChange(resource.type, resource.name, dict(written)))
    return [
        ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)
        for name, value in [*written, *((name, None) for name in removed)]
    ]


def _check_topic_name(name: str) -> None:
    problem = topic_name_problem(name) if name else None
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def _check_key(
    rules: ClusterRules,
    resource: ConfigResource,
    name: str,
    value: str | None,
    existing: Mapping[str, str],
    context: RequestContext,
) -> None:
    """Keys that the controller itself depends on."""
    if resource.type != ResourceType.BROKER:
        return
    if name == MIN_ISR and rules.image.elr_enabled:
        if resource.name:
            raise _invalid(f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled.")
        if value is None:
            raise _invalid(f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled.")
    if name == CORDONED_LOG_DIRS:
        _check_cordoned(rules, value, existing.get(name), context)


def _check_cordoned(
    rules: ClusterRules, value: str | None, current: str | None, context: RequestContext
) -> None:
    if not features.cordoned_dirs_supported(rules.metadata_version):
        raise _invalid(
            f"The {CORDONED_LOG_DIRS} configuration value cannot be set because it requires "
            "metadata.version >= 4.3-IV0"
        )
    if context.forwarded or value is None or not value.strip():
        return
    # Only a broker knows its directories; directly at a controller one can only take entries away.
    if not set(_words(value)) <= set(_words(current or "")):
        raise _invalid(
            f"When updating {CORDONED_LOG_DIRS} via controllers,  the new value must be a subset of the "
            "current configuration value."
        )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _check_exists(rules: ClusterRules, resource: ConfigResource) -> None:
    image = rules.image
    if resource.type == ResourceType.TOPIC and resource.name not in image.topics_by_name:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.name}' does not exist.")
    if resource.type == ResourceType.BROKER and resource.name:
        node = int(resource.name)
        if node not in image.brokers and node not in image.controllers and node != rules.settings.node_id:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No node with id {node} found.")


def _clear_elr(rules: ClusterRules, records: Sequence[MetadataRecord]) -> list[MetadataRecord]:
    """Who is eligible depends on the minimum ISR: where that changes, it is to be found out anew (KIP-966).

    Not where nobody is in sync: there no leader commits anything without them, and no other replica is known to be
    complete. Kafka forgets these too, and the partition has no leader ever after.
    """
    if not rules.image.elr_enabled:
        return []
    changed = [r for r in records if isinstance(r, ConfigRecord) and r.name == MIN_ISR]
    topics = [r.resource_name if r.resource_type == ResourceType.TOPIC else "" for r in changed]
    cleared: list[MetadataRecord] = [ClearElrRecord(topic_name=topic) for topic in topics]
    return cleared + _keep_last_eligible(rules, topics, changed)


def _keep_last_eligible(
    rules: ClusterRules, cleared: Sequence[str], changed: Sequence[ConfigRecord]
) -> list[MetadataRecord]:
    named = (rules.image.topics_by_name.get(topic) for topic in cleared)
    topics = rules.image.topics_by_name.values() if "" in cleared else named
    return [
        PartitionChangeRecord(
            topic_id=topic.id,
            partition_id=number,
            eligible_leader_replicas=_first_eligible(partition, _new_min_isr(rules, topic, changed)),
            last_known_elr=list(partition.last_known_elr),
        )
        for topic in topics
        if topic is not None
        for number, partition in topic.partitions.items()
        if not partition.isr and (partition.elr or partition.last_known_elr)
    ]


def _first_eligible(partition: PartitionRegistration, min_isr: int) -> list[int]:
    """As many as there would be if the minimum had always been this: whoever of them leads commits nothing alone
    while others are eligible. The last leader comes first."""
    by_preference = sorted(partition.elr, key=lambda replica: replica not in partition.last_known_elr)
    return sorted(by_preference[:min_isr])


def _new_min_isr(rules: ClusterRules, topic: TopicImage, changed: Sequence[ConfigRecord]) -> int:
    values = {ConfigResource(r.resource_type, r.resource_name): r.value for r in changed}
    for resource in (ConfigResource(ResourceType.TOPIC, topic.name), CLUSTER_DEFAULT):
        value = values[resource] if resource in values else rules.image.config(*resource).get(MIN_ISR)
        if value is not None:
            break
    else:
        value = str(rules.settings.static[MIN_ISR])
    return min(int(value), topic.replication_factor)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, message)
