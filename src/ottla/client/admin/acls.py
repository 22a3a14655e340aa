"""The admin client's operations on access rules (KIP-140): describe, create and delete ACLs.

Each is a function whose first parameter is the client that asks; AsyncAdmin has them as methods. Rules and filters are
those of `ottla.security.acls`.
"""

from collections.abc import Sequence
from typing import Any

from ottla.client.base import AsyncClient
from ottla.client.errors import ProtocolError
from ottla.client.network import ErrorOf, To
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.security.acls import AclBinding, AclBindingFilter, acl_binding
from ottla.wire.messages.security.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)

_EVERYTHING = AclBindingFilter()


async def describe_acls(client: AsyncClient, wanted: AclBindingFilter = _EVERYTHING) -> list[AclBinding]:
    """The rules that match, sorted; all of them without a filter."""
    request = DescribeAclsRequest(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )
    response = await client.request(request)
    failed = _failure(response, "the ACLs cannot be described")
    if failed is not None:
        raise failed
    return sorted(
        acl_binding(
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for resource in response.resources
        for acl in resource.acls
    )


async def create_acls(
    client: AsyncClient, bindings: Sequence[AclBinding]
) -> dict[AclBinding, KafkaError | None]:
    """Adds rules; one that is there already is no error."""
    asked = list(dict.fromkeys(bindings))
    request = CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=each.resource_type,
                resource_name=each.name,
                resource_pattern_type=each.pattern_type,
                principal=each.principal,
                host=each.host,
                operation=each.operation,
                permission_type=each.permission,
            )
            for each in asked
        ]
    )
    response = await client.request(request, To.CONTROLLER, error_of=_moved_controller("results"))
    _check_count(response.results, asked, "CreateAcls")
    return {each: _failure(result, str(each)) for each, result in zip(asked, response.results, strict=True)}


async def delete_acls(
    client: AsyncClient, filters: Sequence[AclBindingFilter]
) -> dict[AclBindingFilter, list[AclBinding] | KafkaError]:
    """Removes the rules that match; those that did, by filter."""
    asked = list(dict.fromkeys(filters))
    request = DeleteAclsRequest(
        filters=[
            DeleteAclsFilter(
                resource_type_filter=each.resource_type,
                resource_name_filter=each.name,
                pattern_type_filter=each.pattern_type,
                principal_filter=each.principal,
                host_filter=each.host,
                operation=each.operation,
                permission_type=each.permission,
            )
            for each in asked
        ]
    )
    response = await client.request(request, To.CONTROLLER, error_of=_moved_controller("filter_results"))
    _check_count(response.filter_results, asked, "DeleteAcls")
    return {
        each: _failure(result, "ACLs cannot be deleted") or _deleted(result.matching_acls)
        for each, result in zip(asked, response.filter_results, strict=True)
    }


def _deleted(matching: Sequence[Any]) -> list[AclBinding] | KafkaError:
    """The rules that are gone; the first error if there was one with any of them."""
    for each in matching:
        failed = _failure(each, f"an ACL of {each.principal} cannot be deleted")
        if failed is not None:
            return failed
    return sorted(
        acl_binding(
            each.resource_type,
            each.resource_name,
            each.pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        for each in matching
    )


def _check_count(results: Sequence[Any], asked: Sequence[Any], what: str) -> None:
    if len(results) != len(asked):
        raise ProtocolError(f"{what} was asked for {len(asked)} things and answered with {len(results)}")


def _moved_controller(items: str) -> ErrorOf:
    def error(response: Any) -> ErrorCode | None:
        codes = [error_of(item.error_code) for item in getattr(response, items)]
        return ErrorCode.NOT_CONTROLLER if ErrorCode.NOT_CONTROLLER in codes else None

    return error


def _failure(item: Any, what: str) -> KafkaError | None:
    code = error_of(item.error_code)
    if code is None:
        return None
    if code is ErrorCode.SECURITY_DISABLED:
        return KafkaError(
            code, "the cluster has no authorizer (authorizer.class.name): everybody may do everything"
        )
    return KafkaError(code, f"{what}: {getattr(item, 'error_message', None) or code.name}")
