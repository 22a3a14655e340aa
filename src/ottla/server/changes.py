"""What is shown of changes in the audit log: for each API that changes something, of its request and its answer.

Every thing that a request names is an item, with the error it was answered with: who tried is told too.

Rules: only what is named here is shown, so that nothing secret is shown by accident; a setting only where its key is
known not to be secret. What an authorizer denies is told as a denial, not here. The functions run in the audit log's
thread, and read what nobody changes any more. Imported where there is an audit log.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, Final, NamedTuple

from ottla.config.definitions import CLIENT_METRICS_KEYS, GROUP_KEYS, TOPIC_KEYS
from ottla.config.settings import base_key
from ottla.config.types import ResourceType as Configured
from ottla.model.errors import ErrorCode, error_of
from ottla.model.ids import uuid_to_str
from ottla.security.acls import acl_binding
from ottla.security.scram_credentials import MECHANISM_TYPES

HIDDEN: Final = "[hidden]"
# What an authorizer has denied, and told of.
_DENIED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED.name,
        ErrorCode.GROUP_AUTHORIZATION_FAILED.name,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED.name,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED.name,
    }
)
# Of a token's HMAC: by it the lines about one token are found, and nothing is had of the token.
_FINGERPRINT_LENGTH: Final = 16


class Item(NamedTuple):
    """One thing that is changed; without a code it has the one of the whole request."""

    resource_type: str
    resource: str | None
    details: dict[str, Any]
    code: int | None = None


class Change(NamedTuple):
    """How an API's changes are told: from the request and its response, which is None if there is none."""

    describe: Callable[[Any, Any], Iterable[Item]]
    # The lists of the request that say how many there are.
    lists: tuple[str, ...] = ()


# --- topics, records, partitions


def _create_topics(request: Any, response: Any) -> Iterator[Item]:
    codes = {} if response is None else {each.name: each.error_code for each in response.topics}
    for topic in request.topics:
        details = {
            "partitions": topic.num_partitions,
            "replication_factor": topic.replication_factor,
            "configs": {each.name: _shown(TOPIC_KEYS.get(each.name), each.value) for each in topic.configs},
        }
        if topic.assignments:
            details["assignments"] = {each.partition_index: each.broker_ids for each in topic.assignments}
        yield Item("TOPIC", topic.name, details, codes.get(topic.name))


def _delete_topics(request: Any, response: Any) -> Iterator[Item]:
    if response is None:
        for name in request.topic_names:
            yield Item("TOPIC", name, {})
    for each in request.topics if response is None else response.responses:
        details = {"topic_id": uuid_to_str(each.topic_id)}
        yield Item("TOPIC", each.name, details, getattr(each, "error_code", None))


def _create_partitions(request: Any, response: Any) -> Iterator[Item]:
    codes = {} if response is None else {each.name: each.error_code for each in response.results}
    for topic in request.topics:
        details: dict[str, Any] = {"partitions": topic.count}
        if topic.assignments:
            details["assignments"] = [each.broker_ids for each in topic.assignments]
        yield Item("TOPIC", topic.name, details, codes.get(topic.name))


def _delete_records(request: Any, response: Any) -> Iterator[Item]:
    codes = _by_partition(response, "topics", "name", "partitions")
    for topic in request.topics:
        for each in topic.partitions:
            index = each.partition_index
            details = {"partition": index, "before_offset": each.offset}
            yield Item("TOPIC", topic.name, details, codes.get((topic.name, index)))


def _alter_partition_reassignments(request: Any, response: Any) -> Iterator[Item]:
    codes = _by_partition(response, "responses", "name", "partitions")
    for topic in request.topics:
        for each in topic.partitions:
            index = each.partition_index
            details = {"partition": index, "replicas": each.replicas}
            yield Item("TOPIC", topic.name, details, codes.get((topic.name, index)))


def _elect_leaders(request: Any, response: Any) -> Iterator[Item]:
    election = {"election": "UNCLEAN" if request.election_type else "PREFERRED"}
    if response is None or not response.replica_election_results:
        names = ["*"] if request.topic_partitions is None else [t.topic for t in request.topic_partitions]
        for name in names:
            yield Item("TOPIC", name, election)
        return
    for topic in response.replica_election_results:
        for each in topic.partition_result:
            yield Item("TOPIC", topic.topic, {"partition": each.partition_id, **election}, each.error_code)


def _alter_replica_log_dirs(request: Any, response: Any) -> Iterator[Item]:
    codes = _by_partition(response, "results", "topic_name", "partitions")
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                details = {"partition": index, "directory": directory.path}
                yield Item("TOPIC", topic.name, details, codes.get((topic.name, index)))


def _by_partition(response: Any, topics: str, name: str, partitions: str) -> dict[tuple[str, int], int]:
    if response is None:
        return {}
    return {
        (getattr(topic, name), each.partition_index): each.error_code
        for topic in getattr(response, topics)
        for each in getattr(topic, partitions)
    }


# --- settings


def _alter_configs(request: Any, response: Any) -> Iterator[Item]:
    codes = _by_resource(response)
    for each in request.resources:
        settings = {entry.name: _setting(each, entry) for entry in each.configs}
        yield _configured(each, {"replaced_by": settings}, codes)


# AlterConfigOp.OpType.
_OPERATIONS: Final = {0: "SET", 1: "DELETE", 2: "APPEND", 3: "SUBTRACT"}


def _incremental_alter_configs(request: Any, response: Any) -> Iterator[Item]:
    codes = _by_resource(response)
    for each in request.resources:
        settings = [
            {
                "op": _OPERATIONS.get(entry.config_operation, str(entry.config_operation)),
                "name": entry.name,
                "value": _setting(each, entry),
            }
            for entry in each.configs
        ]
        yield _configured(each, {"configs": settings}, codes)


def _by_resource(response: Any) -> dict[tuple[int, str], int]:
    if response is None:
        return {}
    return {(each.resource_type, each.resource_name): each.error_code for each in response.responses}


def _configured(resource: Any, details: dict[str, Any], codes: dict[tuple[int, str], int]) -> Item:
    kind, name = resource.resource_type, resource.resource_name
    known = Configured(kind).name if kind in Configured._value2member_map_ else str(kind)
    return Item(known, name, details, codes.get((kind, name)))


def _setting(resource: Any, entry: Any) -> str | None:
    match resource.resource_type:
        case Configured.TOPIC:
            key = TOPIC_KEYS.get(entry.name)
        case Configured.BROKER:
            key = base_key(entry.name)
        case Configured.GROUP:
            key = GROUP_KEYS.get(entry.name)
        case Configured.CLIENT_METRICS:
            key = CLIENT_METRICS_KEYS.get(entry.name)
        case Configured.BROKER_LOGGER:
            text: str | None = entry.value  # a level
            return text
        case _:
            key = None
    return _shown(key, entry.value)


def _shown(key: Any, value: str | None) -> str | None:
    """What nobody knows may be a password, too."""
    return value if value is None or (key is not None and not key.sensitive) else HIDDEN


# --- who may do what, and how much


def _create_acls(request: Any, response: Any) -> Iterator[Item]:
    codes = [] if response is None else [each.error_code for each in response.results]
    for position, each in enumerate(request.creations):
        numbers = (each.resource_pattern_type, each.principal, each.host, each.operation)
        rule = acl_binding(each.resource_type, each.resource_name, *numbers, each.permission_type)
        yield _rule(rule, codes[position] if position < len(codes) else None)


def _delete_acls(request: Any, response: Any) -> Iterator[Item]:
    for position, each in enumerate(request.filters):
        found = None if response is None else response.filter_results[position]
        for acl in () if found is None else found.matching_acls:
            numbers = (acl.pattern_type, acl.principal, acl.host, acl.operation)
            rule = acl_binding(acl.resource_type, acl.resource_name, *numbers, acl.permission_type)
            yield _rule(rule, acl.error_code)
        if found is None or not found.matching_acls:
            numbers = (each.pattern_type_filter, each.principal_filter, each.host_filter, each.operation)
            rule = acl_binding(
                each.resource_type_filter, each.resource_name_filter, *numbers, each.permission_type
            )
            yield _rule(rule, None if found is None else found.error_code, "filter")


def _rule(rule: Any, code: int | None, what: str = "rule") -> Item:
    details = {
        "pattern_type": rule.pattern_type.name,
        "principal": rule.principal,
        "host": rule.host,
        "operation": rule.operation.name,
        "permission": rule.permission.name,
    }
    return Item(rule.resource_type.name, rule.name, {what: details}, code)


def _alter_user_scram_credentials(request: Any, response: Any) -> Iterator[Item]:
    codes = {} if response is None else {each.user: each.error_code for each in response.results}
    for each in request.deletions:
        details = {"mechanism": _mechanism(each.mechanism), "removed": True}
        yield Item("USER", each.name, details, codes.get(each.name))
    for each in request.upsertions:
        details = {"mechanism": _mechanism(each.mechanism), "iterations": each.iterations}
        yield Item("USER", each.name, details, codes.get(each.name))


def _mechanism(number: int) -> str:
    known = MECHANISM_TYPES.get(number)
    return str(number) if known is None else known.name


def _create_delegation_token(request: Any, response: Any) -> Iterator[Item]:
    details: dict[str, Any] = {
        "renewers": [f"{each.principal_type}:{each.principal_name}" for each in request.renewers],
        "max_lifetime_ms": request.max_lifetime_ms,
    }
    if response is None or response.error_code:
        yield Item("DELEGATION_TOKEN", None, details, None if response is None else response.error_code)
        return
    details |= {
        "owner": f"{response.principal_type}:{response.principal_name}",
        "expires_ms": response.expiry_timestamp_ms,
        "token": _fingerprint(response.hmac),
    }
    yield Item("DELEGATION_TOKEN", response.token_id, details, response.error_code)


def _prolong_delegation_token(request: Any, response: Any) -> Iterator[Item]:
    """Renewed, or expired: who asks has the HMAC, not the id."""
    details: dict[str, Any] = {"token": _fingerprint(request.hmac)}
    if response is None:
        yield Item("DELEGATION_TOKEN", None, details)
        return
    if not response.error_code:
        details["expires_ms"] = response.expiry_timestamp_ms
    yield Item("DELEGATION_TOKEN", None, details, response.error_code)


def _fingerprint(hmac: bytes) -> str:
    return sha256(hmac).hexdigest()[:_FINGERPRINT_LENGTH]


def _alter_client_quotas(request: Any, response: Any) -> Iterator[Item]:
    codes = {} if response is None else {_entity(each): each.error_code for each in response.entries}
    for each in request.entries:
        entity = _entity(each)
        details = {"quotas": {op.key: None if op.remove else op.value for op in each.ops}}
        yield Item("CLIENT_QUOTA", entity, details, codes.get(entity))


def _entity(entry: Any) -> str:
    names = (
        f"{part.entity_type}={'<default>' if part.entity_name is None else part.entity_name}"
        for part in entry.entity
    )
    return ",".join(sorted(names))


# --- groups


def _delete_groups(request: Any, response: Any) -> Iterator[Item]:
    codes = {} if response is None else {each.group_id: each.error_code for each in response.results}
    for name in request.groups_names:
        yield Item("GROUP", name, {}, codes.get(name))


def _of_group(request: Any, response: Any) -> Iterator[Item]:
    """Offsets of a group, deleted or set: the topics by what came of them, which need not be one thing for all."""
    by_code: dict[int | None, dict[str, None]] = {}
    if response is None or response.error_code:
        code = None if response is None else response.error_code
        by_code[code] = dict.fromkeys(map(_topic_name, request.topics))
    else:
        # Not those of the request, out of which handlers take what they refuse.
        for topic in response.topics if hasattr(response, "topics") else response.responses:
            for answer in getattr(topic, "partitions", (topic,)):
                by_code.setdefault(answer.error_code, {})[_topic_name(topic)] = None
    for code, names in by_code.items():
        yield Item("GROUP", request.group_id, {"offsets_of": list(names)}, code)


def _topic_name(topic: Any) -> str:
    name: str = topic.topic_name if hasattr(topic, "topic_name") else topic.name
    return name


# --- the cluster


def _update_features(request: Any, response: Any) -> Iterator[Item]:
    code = None if response is None else response.error_code
    for each in request.feature_updates:
        yield Item("FEATURE", each.feature, {"level": each.max_version_level}, code)


def _unregister_broker(request: Any, response: Any) -> Iterator[Item]:
    yield Item("BROKER", str(request.broker_id), {}, None if response is None else response.error_code)


def _change_voter(request: Any, response: Any) -> Iterator[Item]:
    details = {"directory_id": uuid_to_str(request.voter_directory_id)}
    code = None if response is None else response.error_code
    yield Item("VOTER", str(request.voter_id), details, code)


CHANGES: Final[dict[str, Change]] = {
    "CreateTopics": Change(_create_topics, ("topics",)),
    "DeleteTopics": Change(_delete_topics, ("topics", "topic_names")),
    "CreatePartitions": Change(_create_partitions, ("topics",)),
    "DeleteRecords": Change(_delete_records, ("topics",)),
    "AlterPartitionReassignments": Change(_alter_partition_reassignments, ("topics",)),
    "ElectLeaders": Change(_elect_leaders, ("topic_partitions",)),
    "AlterReplicaLogDirs": Change(_alter_replica_log_dirs, ("dirs",)),
    "AlterConfigs": Change(_alter_configs, ("resources",)),
    "IncrementalAlterConfigs": Change(_incremental_alter_configs, ("resources",)),
    "CreateAcls": Change(_create_acls, ("creations",)),
    "DeleteAcls": Change(_delete_acls, ("filters",)),
    "AlterUserScramCredentials": Change(_alter_user_scram_credentials, ("deletions", "upsertions")),
    "CreateDelegationToken": Change(_create_delegation_token),
    "RenewDelegationToken": Change(_prolong_delegation_token),
    "ExpireDelegationToken": Change(_prolong_delegation_token),
    "AlterClientQuotas": Change(_alter_client_quotas, ("entries",)),
    "DeleteGroups": Change(_delete_groups, ("groups_names",)),
    "OffsetDelete": Change(_of_group, ("topics",)),
    "AlterShareGroupOffsets": Change(_of_group, ("topics",)),
    "DeleteShareGroupOffsets": Change(_of_group, ("topics",)),
    "UpdateFeatures": Change(_update_features, ("feature_updates",)),
    "UnregisterBroker": Change(_unregister_broker),
    "AddRaftVoter": Change(_change_voter),
    "RemoveRaftVoter": Change(_change_voter),
}


def lines_of(change: Change, request: Any, response: Any, failed: str | None) -> Iterator[dict[str, Any]]:
    """What the lines of a request have of their own; `failed` is the error of one that has no response."""
    whole = failed or _name(getattr(response, "error_code", 0))
    for item in change.describe(request, response):
        # Where the whole request has failed, its things need not say so.
        result = _name(item.code) if item.code else whole
        if result not in _DENIED:
            yield {
                "resource_type": item.resource_type,
                "resource": item.resource,
                "result": result,
                "details": item.details,
            }


def _name(code: int | None) -> str:
    found = error_of(code or 0)
    return "NONE" if found is None else found.name
