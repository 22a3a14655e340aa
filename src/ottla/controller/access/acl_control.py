"""Kafka's AclControlManager: access rules come and go.

Rules: a rule that is there is not written a second time, and asking for it is no error. What is wrong with one rule or
filter is said at its place; what is too much for one request is refused as a whole. Deciding takes a rule at a time, so
that thousands of them do not hold the loop. Pure.
"""

from collections.abc import Callable, Iterator
from typing import Final

from ottla.controller.result import (
    ITEMS_PER_STEP,
    MAX_RECORDS_PER_USER_OP,
    ControllerResult,
    check_record_count,
)
from ottla.controller.rules import ClusterRules
from ottla.metadata.image import ClusterImage
from ottla.metadata.records import (
    AccessControlEntryRecord,
    MetadataRecord,
    RemoveAccessControlEntryRecord,
)
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.model.time_slice import Steps
from ottla.security.acls import (
    AclBinding,
    AclBindingFilter,
    acl_binding,
    acl_filter,
    check_filter,
    check_new_acl,
)
from ottla.wire.messages.security import acls as m

# What the filters of one request may be held against, and what they may match, all together. Kafka has no such bounds:
# a request of ten thousand filters that match everything is answered with a hundred million rules.
MAX_COMPARISONS: Final = 10_000_000
MAX_MATCHES: Final = 100_000


def create_acls(
    rules: ClusterRules, request: m.CreateAclsRequest, new_uuid: Callable[[], Uuid]
) -> Steps[ControllerResult[m.CreateAclsResponse]]:
    """Adds rules."""
    new: set[AclBinding] = set()
    records: list[MetadataRecord] = []
    results: list[m.AclCreationResult] = []
    for count, wanted in enumerate(request.creations, 1):
        binding = acl_binding(
            wanted.resource_type,
            wanted.resource_name,
            wanted.resource_pattern_type,
            wanted.principal,
            wanted.host,
            wanted.operation,
            wanted.permission_type,
        )
        result = m.AclCreationResult(error_message="")
        try:
            check_new_acl(binding)
        except KafkaError as refusal:
            result.error_code, result.error_message = int(refusal.code), refusal.message
        else:
            if not rules.image.acl_ids_of(binding) and binding not in new:
                new.add(binding)
                records.append(_record(_new_id(rules.image, new_uuid), binding))
                check_record_count(records)
        results.append(result)
        if count % ITEMS_PER_STEP == 0:
            yield
    return ControllerResult(m.CreateAclsResponse(results=results), records, atomic=True)


def _new_id(image: ClusterImage, new_uuid: Callable[[], Uuid]) -> Uuid:
    while (acl_id := new_uuid()) in image.acls:
        pass
    return acl_id


def _record(acl_id: Uuid, binding: AclBinding) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=acl_id,
        resource_type=binding.resource_type,
        resource_name=binding.name,
        pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )


def delete_acls(
    rules: ClusterRules, request: m.DeleteAclsRequest
) -> Steps[ControllerResult[m.DeleteAclsResponse]]:
    """Removes the rules that match any of the filters; each filter is answered with those that it matches."""
    filters = yield from _filters(request)
    yield from _check_work(rules.image, filters)
    removed: dict[Uuid, RemoveAccessControlEntryRecord] = {}
    results: list[m.DeleteAclsFilterResult] = []
    matches = 0
    for wanted in filters:
        result = m.DeleteAclsFilterResult(error_message=None, matching_acls=[])
        results.append(result)
        try:
            check_filter(wanted)
        except KafkaError as refusal:
            result.error_code, result.error_message = int(refusal.code), refusal.message
            continue
        for count, (binding, acl_ids) in enumerate(candidates(rules.image, wanted), 1):
            if wanted.matches(binding):
                matches += 1
                if len(removed) >= MAX_RECORDS_PER_USER_OP or matches > MAX_MATCHES:
                    raise _too_many()
                removed.update((acl_id, RemoveAccessControlEntryRecord(id=acl_id)) for acl_id in acl_ids)
                result.matching_acls.append(_matching(binding))
            if count % ITEMS_PER_STEP == 0:
                yield
        yield
    response = m.DeleteAclsResponse(filter_results=results)
    return ControllerResult(response, list(removed.values()), atomic=True)


def _filters(request: m.DeleteAclsRequest) -> Steps[list[AclBindingFilter]]:
    filters: list[AclBindingFilter] = []
    for given in request.filters:
        filters.append(
            acl_filter(
                given.resource_type_filter,
                given.resource_name_filter,
                given.pattern_type_filter,
                given.principal_filter,
                given.host_filter,
                given.operation,
                given.permission_type,
            )
        )
        if len(filters) % ITEMS_PER_STEP == 0:
            yield
    return filters


def _check_work(image: ClusterImage, filters: list[AclBindingFilter]) -> Steps[None]:
    """One filter is always looked at, however many rules there are."""
    scans = comparisons = 0
    for wanted in filters:
        if wanted.only is None:
            scans += 1
            names = wanted.names
            if names is None:
                comparisons += len(image.acls)
            else:
                comparisons += sum(len(image.acl_ids.get(name, ())) for name in names)
        if scans > 1 and comparisons > MAX_COMPARISONS:
            raise _too_many()
        yield


def _too_many() -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"Cannot remove more than {MAX_RECORDS_PER_USER_OP} acls in a single delete operation.",
    )


def candidates(image: ClusterImage, wanted: AclBindingFilter) -> Iterator[tuple[AclBinding, frozenset[Uuid]]]:
    """The rules to look at, and their ids: those of the names that can match, or all of them if it names nothing."""
    only, names = wanted.only, wanted.names
    if only is not None:
        if acl_ids := image.acl_ids_of(only):
            yield only, acl_ids
    elif names is None:
        for alike in image.acl_ids.values():
            yield from alike.items()
    else:
        for name in names:
            if (found := image.acl_ids.get(name)) is not None:
                yield from found.items()


def _matching(binding: AclBinding) -> m.DeleteAclsMatchingAcl:
    return m.DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=binding.resource_type,
        resource_name=binding.name,
        pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )
