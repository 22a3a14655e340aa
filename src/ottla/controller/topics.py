"""Kafka's ReplicationControlManager, as far as topics go: creating, growing, deleting.

Rules: pure decisions over an image; every topic of a request fares by itself, with Kafka's codes and sentences. Whoever
asks twice in one request for the deletion of a topic gets neither. Replicas of new partitions go where the user says
(checked here) or where replica_placer.py finds. What a topic changes in partitions is asked of the quota of whoever
asks (`permit`, KIP-599) when nothing else is wrong with it: one that may not be changed now is refused.
Topic ids and the spread of replicas come from the Sources given, so a simulation repeats.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from ottla.config.describe import describe_topic
from ottla.controller import configuration_control
from ottla.controller.replica_placer import place_replicas, usable_brokers
from ottla.controller.result import (
    ITEMS_PER_STEP,
    ApiError,
    ControllerResult,
    RequestContext,
    check_record_count,
    error_of,
    standard_error,
)
from ottla.controller.rules import ClusterRules
from ottla.metadata import features
from ottla.metadata.delta import normalized_name
from ottla.metadata.image import ConfigResource, ResourceType
from ottla.metadata.records import MetadataRecord, RemoveTopicRecord, TopicRecord
from ottla.metadata.registrations import LeaderRecoveryState, PartitionRegistration
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, Uuid, topic_name_problem
from ottla.model.policies import NewTopic
from ottla.model.time_slice import Steps
from ottla.wire.messages.admin import topics as m

CLUSTER_METADATA_TOPIC = "__cluster_metadata"
MAX_PARTITIONS_PER_BATCH = 10_000
DEFAULT = -1

ShownConfigs = dict[frozenset[tuple[str, str]], list[m.CreatableTopicConfigs]]
# So many partitions are to be made or deleted: KafkaError if they may not be, now (applyPartitionChangeQuota).
Permit = Callable[[int], None]


def _any_number(partitions: int) -> None:
    """Without a quota."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where chance comes from."""

    random: Random
    new_uuid: Callable[[], Uuid]


def create_topics(
    rules: ClusterRules,
    request: m.CreateTopicsRequest,
    context: RequestContext,
    sources: Sources,
    permit: Permit = _any_number,
) -> Steps[ControllerResult[m.CreateTopicsResponse]]:
    """Creates topics; each that cannot be created has its error in the answer."""
    names = Counter(topic.name for topic in request.topics)
    wanted = [t for t in request.topics if names[t.name] == 1 and t.name != CLUSTER_METADATA_TOPIC]
    _check_partition_count(wanted, rules.settings.static["num.partitions"])
    records: list[MetadataRecord] = []
    answers = []
    shown: ShownConfigs = {}
    for topic in wanted:
        try:
            answer, new_records = yield from _create_topic(rules, topic, context, sources, shown, permit)
            records += new_records
        except KafkaError as error:
            answer = _refused(topic.name, error_of(error))
        answers.append(answer)
        yield
    check_record_count(records)
    answers += [
        _refused(name, ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
        for name, count in names.items()
        if count > 1
    ]
    if names[CLUSTER_METADATA_TOPIC] == 1:
        message = f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
        answers.append(_refused(CLUSTER_METADATA_TOPIC, ApiError(ErrorCode.INVALID_REQUEST, message)))
    result = ControllerResult(m.CreateTopicsResponse(topics=answers), records, atomic=True)
    return result.without_records() if request.validate_only else result


def _refused(name: str, error: ApiError) -> m.CreatableTopicResult:
    return m.CreatableTopicResult(name=name, error_code=error.code, error_message=error.message)


def _check_partition_count(topics: Sequence[m.CreatableTopic], default: int) -> None:
    total = 0
    for topic in topics:
        if topic.assignments:
            total += len(topic.assignments)
        else:
            total += default if topic.num_partitions == DEFAULT else max(topic.num_partitions, 0)
    if total > MAX_PARTITIONS_PER_BATCH:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def _create_topic(
    rules: ClusterRules,
    topic: m.CreatableTopic,
    context: RequestContext,
    sources: Sources,
    shown: ShownConfigs,
    permit: Permit,
) -> Steps[tuple[m.CreatableTopicResult, list[MetadataRecord]]]:
    _check_new_name(rules, topic.name)
    overrides = _creation_configs(topic)
    resource = ConfigResource(ResourceType.TOPIC, topic.name)
    config_records = configuration_control.new_resource_records(rules, resource, overrides, context)
    partitions = yield from _new_partitions(rules, topic, sources)
    rules.settings.policies.check_new_topic(_as_policies_see_it(topic, partitions, overrides))
    permit(len(partitions))
    topic_id = sources.new_uuid()
    records: list[MetadataRecord] = [TopicRecord(name=topic.name, topic_id=topic_id), *config_records]
    records += yield from _partition_records(rules, topic_id, 0, partitions)
    return _created(topic.name, topic_id, partitions, _shown_configs(rules, overrides, shown)), records


def _check_new_name(rules: ClusterRules, name: str) -> None:
    # Kafka's order: a topic that exists is said to exist, whatever else is wrong with it.
    if name in rules.image.topics_by_name:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    key = normalized_name(name)
    colliding = rules.image.colliding_names.get(key) if key is not None else None
    if colliding:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic: {min(colliding)}",
        )
    problem = topic_name_problem(name)
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def _creation_configs(topic: m.CreatableTopic) -> dict[str, str]:
    nulls = [config.name for config in topic.configs if config.value is None]
    if nulls:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}"
        )
    return {config.name: config.value for config in topic.configs if config.value is not None}


def _new_partitions(
    rules: ClusterRules, topic: m.CreatableTopic, sources: Sources
) -> Steps[list[PartitionRegistration]]:
    if topic.assignments:
        return (yield from _assigned_partitions(rules, topic))
    if topic.replication_factor < DEFAULT or topic.replication_factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.num_partitions < DEFAULT or topic.num_partitions == 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            "Number of partitions was set to an invalid non-positive value.",
        )
    static = rules.settings.static
    count = static["num.partitions"] if topic.num_partitions == DEFAULT else topic.num_partitions
    factor = topic.replication_factor
    if factor == DEFAULT:
        factor = static["default.replication.factor"]
    try:
        placed = place_replicas(usable_brokers(rules.image), count, factor, sources.random)
    except KafkaError as error:
        message = f"Unable to replicate the partition {factor} time(s): {error.message}"
        raise KafkaError(error.code, message) from None
    return (yield from _placed_partitions(rules, placed))


def _as_policies_see_it(
    topic: m.CreatableTopic, partitions: Sequence[PartitionRegistration], overrides: Mapping[str, str]
) -> NewTopic:
    if topic.assignments:
        assignments = {number: list(partition.replicas) for number, partition in enumerate(partitions)}
        return NewTopic(topic.name, None, None, assignments, overrides)
    return NewTopic(topic.name, len(partitions), len(partitions[0].replicas), None, overrides)


def _assigned_partitions(rules: ClusterRules, topic: m.CreatableTopic) -> Steps[list[PartitionRegistration]]:
    for value, name in (
        (topic.replication_factor, "replication factor"),
        (topic.num_partitions, "numPartitions"),
    ):
        if value != DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {name} was not set to -1.",
            )
    partitions: dict[int, PartitionRegistration] = {}
    factor: int | None = None
    for assignment in topic.assignments:
        number = assignment.partition_index
        if number in partitions:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {number}",
            )
        check_manual_assignment(rules, assignment.broker_ids, factor)
        factor = len(assignment.broker_ids)
        partitions[number] = manual_partition(rules, number, assignment.broker_ids)
        if len(partitions) % ITEMS_PER_STEP == 0:
            yield
    if set(partitions) != set(range(len(partitions))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    return [partitions[number] for number in range(len(partitions))]


def _shown_configs(
    rules: ClusterRules, overrides: Mapping[str, str], shown: ShownConfigs
) -> list[m.CreatableTopicConfigs]:
    """A topic's configuration in the answer; the same for all topics with the same overrides."""
    key = frozenset(overrides.items())
    if key not in shown:
        shown[key] = [
            m.CreatableTopicConfigs(
                name=entry.name,
                value=None if entry.sensitive else entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in describe_topic(rules.settings.effective(rules.image), overrides)
        ]
    return shown[key]


def _created(
    name: str,
    topic_id: Uuid,
    partitions: Sequence[PartitionRegistration],
    configs_shown: list[m.CreatableTopicConfigs],
) -> m.CreatableTopicResult:
    return m.CreatableTopicResult(
        name=name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=len(partitions),
        replication_factor=len(partitions[0].replicas),
        configs=configs_shown,
    )


# --- growing


def create_partitions(
    rules: ClusterRules,
    request: m.CreatePartitionsRequest,
    sources: Sources,
    permit: Permit = _any_number,
) -> Steps[ControllerResult[m.CreatePartitionsResponse]]:
    """Gives topics more partitions."""
    names = Counter(topic.name for topic in request.topics)
    records: list[MetadataRecord] = []
    results = [
        m.CreatePartitionsTopicResult(
            name=name, error_code=ErrorCode.INVALID_REQUEST, error_message="Duplicate topic name."
        )
        for name, count in names.items()
        if count > 1
    ]
    for topic in request.topics:
        if names[topic.name] > 1:
            continue
        error = ApiError()
        try:
            records += yield from _grow(rules, topic, sources, permit)
        except KafkaError as refusal:
            error = error_of(refusal)
        results.append(
            m.CreatePartitionsTopicResult(name=topic.name, error_code=error.code, error_message=error.message)
        )
        yield
    check_record_count(records)
    result = ControllerResult(m.CreatePartitionsResponse(results=results), records, atomic=True)
    return result.without_records() if request.validate_only else result


def _grow(
    rules: ClusterRules, wanted: m.CreatePartitionsTopic, sources: Sources, permit: Permit
) -> Steps[list[MetadataRecord]]:
    topic = rules.image.topic(wanted.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    have = len(topic.partitions)
    if wanted.count == have:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {have} partition(s).")
    if wanted.count < have:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {have} partition(s); {wanted.count} would not be an increase.",
        )
    added = wanted.count - have
    if added > MAX_PARTITIONS_PER_BATCH:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    if wanted.assignments is not None and len(wanted.assignments) != added:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {added} additional partition(s), but only {len(wanted.assignments)} assignment(s) "
            "were specified.",
        )
    permit(added)
    factor = topic.replication_factor
    if wanted.assignments is None:
        placed = place_replicas(usable_brokers(rules.image), added, factor, sources.random)
        partitions = yield from _placed_partitions(rules, placed)
    else:
        assignments = [assignment.broker_ids for assignment in wanted.assignments]
        partitions = yield from _assigned_growth(rules, have, factor, assignments)
    return (yield from _partition_records(rules, topic.id, have, partitions))


def _assigned_growth(
    rules: ClusterRules, have: int, factor: int, assignments: Sequence[Sequence[int]]
) -> Steps[list[PartitionRegistration]]:
    partitions: list[PartitionRegistration] = []
    for number, broker_ids in enumerate(assignments, have):
        check_manual_assignment(rules, broker_ids, factor)
        partitions.append(manual_partition(rules, number, broker_ids))
        if len(partitions) % ITEMS_PER_STEP == 0:
            yield
    return partitions


# --- deleting


def delete_topics(
    rules: ClusterRules,
    request: m.DeleteTopicsRequest,
    context: RequestContext,
    permit: Permit = _any_number,
) -> Steps[ControllerResult[m.DeleteTopicsResponse]]:
    """Deletes topics; each that cannot be deleted has its error in the answer."""
    if not rules.settings.static["delete.topic.enable"]:
        raise _deletion_disabled(context)
    names = [*request.topic_names, *(t.name for t in request.topics if _by_name(t) and t.name is not None)]
    ids = [t.topic_id for t in request.topics if t.name is None and t.topic_id != ZERO_UUID]
    answers = [_malformed(t) for t in request.topics if (t.name is None) == (t.topic_id == ZERO_UUID)]
    chosen: dict[Uuid, str] = {}
    answers += _find_by_id(rules, ids, chosen)
    answers += _find_by_name(rules, names, chosen, {i for i, count in Counter(ids).items() if count > 1})
    records: list[MetadataRecord] = []
    for number, (topic_id, name) in enumerate(chosen.items(), 1):
        topic = rules.image.topic_by_id(topic_id)
        try:
            permit(0 if topic is None else len(topic.partitions))
        except KafkaError as error:
            answers.append(_answer(name, topic_id, error_of(error)))
        else:
            answers.append(_answer(name, topic_id))
            records.append(RemoveTopicRecord(topic_id=topic_id))
        if number % ITEMS_PER_STEP == 0:
            yield
    check_record_count(records)
    return ControllerResult(m.DeleteTopicsResponse(responses=answers), records, atomic=True)


def _by_name(topic: m.DeleteTopicState) -> bool:
    return topic.name is not None and topic.topic_id == ZERO_UUID


def _deletion_disabled(context: RequestContext) -> KafkaError:
    if context.api_version < 3:
        return KafkaError(ErrorCode.INVALID_REQUEST, "This version does not support topic deletion.")
    return KafkaError(ErrorCode.TOPIC_DELETION_DISABLED)


def _malformed(topic: m.DeleteTopicState) -> m.DeletableTopicResult:
    message = "Neither topic name nor id were specified."
    if topic.name is not None:
        message = "You may not specify both topic name and topic id."
    return _answer(topic.name, topic.topic_id, ApiError(ErrorCode.INVALID_REQUEST, message))


def _find_by_id(
    rules: ClusterRules, ids: list[Uuid], chosen: dict[Uuid, str]
) -> list[m.DeletableTopicResult]:
    answers = []
    for topic_id, count in Counter(ids).items():
        topic = rules.image.topic_by_id(topic_id)
        if count > 1:
            error = ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
            answers.append(_answer(None, topic_id, error))
        elif topic is None:
            answers.append(_answer(None, topic_id, standard_error(ErrorCode.UNKNOWN_TOPIC_ID)))
        else:
            chosen[topic_id] = topic.name
    return answers


def _find_by_name(
    rules: ClusterRules, names: list[str], chosen: dict[Uuid, str], duplicate_ids: set[Uuid]
) -> list[m.DeletableTopicResult]:
    answers = []
    for name, count in Counter(names).items():
        topic = rules.image.topic(name)
        if count > 1:
            error = ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            answers.append(_answer(name, ZERO_UUID, error))
        elif topic is None:
            error = standard_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            answers.append(_answer(name, ZERO_UUID, error))
        elif topic.id in chosen or topic.id in duplicate_ids:
            chosen.pop(topic.id, None)
            message = "The provided topic name maps to an ID that was already supplied."
            answers.append(_answer(name, topic.id, ApiError(ErrorCode.INVALID_REQUEST, message)))
        else:
            chosen[topic.id] = name
    return answers


def _answer(name: str | None, topic_id: Uuid, error: ApiError | None = None) -> m.DeletableTopicResult:
    code, message = error or ApiError()
    return m.DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=message)


# --- new partitions


def check_manual_assignment(
    rules: ClusterRules, broker_ids: Sequence[int], replication_factor: int | None
) -> None:
    """Are these brokers that exist, each named once, and as many as for other partitions?"""
    if not broker_ids:
        raise _invalid("The manual partition assignment includes an empty replica list.")
    previous = None
    for broker_id in sorted(broker_ids):
        broker = rules.image.brokers.get(broker_id)
        if broker is None:
            raise _invalid(
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
            )
        if not broker.has_uncordoned_directory:
            raise _invalid(
                f"The manual partition assignment includes broker {broker_id}, but all its log directories are "
                "cordoned."
            )
        if broker_id == previous:
            raise _invalid(f"The manual partition assignment includes the broker {previous} more than once.")
        previous = broker_id
    if replication_factor is not None and len(broker_ids) != replication_factor:
        raise _invalid(
            f"The manual partition assignment includes a partition with {len(broker_ids)} replica(s), but this "
            f"is not consistent with previous partitions, which have {replication_factor} replica(s)."
        )


def new_partition(rules: ClusterRules, replicas: Sequence[int]) -> PartitionRegistration | None:
    """A partition on these brokers, led by the first that is up; None if none is."""
    isr = tuple(replica for replica in replicas if rules.image.broker_is_active(replica))
    if not isr:
        return None
    return PartitionRegistration(
        replicas=tuple(replicas),
        directories=tuple(rules.default_directory(replica) for replica in replicas),
        isr=isr,
        removing_replicas=(),
        adding_replicas=(),
        leader=isr[0],
        leader_recovery_state=LeaderRecoveryState.RECOVERED,
        leader_epoch=0,
        partition_epoch=0,
    )


def manual_partition(rules: ClusterRules, number: int, replicas: Sequence[int]) -> PartitionRegistration:
    """A partition where the user wants it."""
    partition = new_partition(rules, replicas)
    if partition is None:
        raise _invalid(
            f"All brokers specified in the manual partition assignment for partition {number} are fenced or "
            "in controlled shutdown."
        )
    return partition


def placed_partition(rules: ClusterRules, replicas: Sequence[int]) -> PartitionRegistration:
    """A partition where placement has put it."""
    partition = new_partition(rules, replicas)
    if partition is None:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {len(replicas)} time(s): All brokers are currently fenced or "
            "in controlled shutdown.",
        )
    return partition


def _placed_partitions(
    rules: ClusterRules, placed: Iterable[Sequence[int]]
) -> Steps[list[PartitionRegistration]]:
    """The same brokers are the same partition: thousands of partitions are a few registrations."""
    distinct: dict[tuple[int, ...], PartitionRegistration] = {}
    partitions: list[PartitionRegistration] = []
    for replicas in placed:
        ids = tuple(replicas)
        partition = distinct.get(ids)
        if partition is None:
            partition = distinct[ids] = placed_partition(rules, ids)
        partitions.append(partition)
        if len(partitions) % ITEMS_PER_STEP == 0:
            yield
    return partitions


def _partition_records(
    rules: ClusterRules, topic_id: Uuid, first: int, partitions: Sequence[PartitionRegistration]
) -> Steps[list[MetadataRecord]]:
    with_directories = features.directory_assignment_supported(rules.metadata_version)
    records: list[MetadataRecord] = []
    for number, partition in enumerate(partitions, first):
        records.append(partition.to_record(topic_id, number, with_directories))
        if len(records) % ITEMS_PER_STEP == 0:
            yield
    return records


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
