"""Access rules: DescribeAcls, CreateAcls, DeleteAcls (Kafka's AclApis).

Describing is answered from the image, by brokers and controllers alike; the rest is the controller's to decide. Without
an authorizer, or with one that does not decide by them, rules would have no effect, and nothing is shown or changed:
SECURITY_DISABLED. A request that names what not even its sender knows, by the number 0, is none that Kafka can read: it
loses its connection.
"""

from typing import Final, TypeVar

from ottla.controller.access.acl_control import candidates
from ottla.controller.result import ITEMS_PER_STEP
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.time_slice import Steps, TimeSlice
from ottla.security.acls import AclBinding, AclBindingFilter, AclOperation, acl_filter
from ottla.server.authorization import Access, check_access
from ottla.server.context import Context
from ottla.server.dispatch import Encoded
from ottla.server.errors import CloseConnection
from ottla.server.limits import MAX_DECIDED_ELEMENTS
from ottla.server.network.connection import Listener
from ottla.server.registry import handles
from ottla.wire.codec import encode
from ottla.wire.messages.security.acls import (
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

T = TypeVar("T")

UNKNOWN: Final = 0
# A larger answer, by its rules, is encoded in a thread.
ENCODED_IN_A_THREAD: Final = 1_000


@handles(DescribeAclsRequest, Listener.BROKER, Listener.CONTROLLER)
async def describe_acls(ctx: Context, request: DescribeAclsRequest) -> DescribeAclsResponse | Encoded:
    """The rules that match a filter, by resource."""
    _check_known(
        request.resource_type_filter, request.pattern_type_filter, request.operation, request.permission_type
    )
    _require(ctx, AclOperation.DESCRIBE)
    if not _has_rules(ctx):
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
    wanted = acl_filter(
        request.resource_type_filter,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    resources = await TimeSlice().run(_described(ctx.node.image(), wanted))
    response = DescribeAclsResponse(error_message="", resources=resources)
    return await _answer(ctx, response, sum(len(resource.acls) for resource in resources))


def _described(image: ClusterImage, wanted: AclBindingFilter) -> Steps[list[DescribeAclsResource]]:
    found: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for count, (binding, _) in enumerate(candidates(image, wanted), 1):
        if wanted.matches(binding):
            pattern = (binding.resource_type, binding.name, binding.pattern_type)
            resource = found.get(pattern)
            if resource is None:
                resource = found[pattern] = _resource(binding)
            resource.acls.append(
                AclDescription(
                    principal=binding.principal,
                    host=binding.host,
                    operation=binding.operation,
                    permission_type=binding.permission,
                )
            )
        if count % ITEMS_PER_STEP == 0:
            yield
    return list(found.values())


def _resource(binding: AclBinding) -> DescribeAclsResource:
    return DescribeAclsResource(
        resource_type=binding.resource_type,
        resource_name=binding.name,
        pattern_type=binding.pattern_type,
        acls=[],
    )


# As many as a request may name at all: that they are too many to be written at once is said at each of them.
@handles(CreateAclsRequest, Listener.BROKER, Listener.CONTROLLER)
async def create_acls(ctx: Context, request: CreateAclsRequest) -> CreateAclsResponse:
    """New rules, each with its own success or error."""
    time_slice = TimeSlice()
    for acl in request.creations:
        _check_known(acl.resource_type, acl.resource_pattern_type, acl.operation, acl.permission_type)
        await time_slice.yield_to_loop()
    _require(ctx, AclOperation.ALTER)
    _check_enabled(ctx)
    response = await ctx.controller.create_acls(request, ctx.decision(request))
    await ctx.caught_up()
    return response


@handles(DeleteAclsRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS)
async def delete_acls(ctx: Context, request: DeleteAclsRequest) -> DeleteAclsResponse | Encoded:
    """The rules that match any of the filters are removed."""
    time_slice = TimeSlice()
    for acl in request.filters:
        _check_known(acl.resource_type_filter, acl.pattern_type_filter, acl.operation, acl.permission_type)
        await time_slice.yield_to_loop()
    _require(ctx, AclOperation.ALTER)
    _check_enabled(ctx)
    response = await ctx.controller.delete_acls(request, ctx.decision(request))
    await ctx.caught_up()
    return await _answer(ctx, response, sum(len(result.matching_acls) for result in response.filter_results))


async def _answer(ctx: Context, response: T, rules: int) -> T | Encoded:
    if rules < ENCODED_IN_A_THREAD:
        return response
    return Encoded([await ctx.in_thread(encode, response, ctx.version)], response=response)


def _check_enabled(ctx: Context) -> None:
    """Whoever decides says it: a controller elsewhere has its own settings."""
    if ctx.decided_here and not _has_rules(ctx):
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


def _has_rules(ctx: Context) -> bool:
    """Is there an authorizer, and one that decides by rules?"""
    return ctx.node.authorizer is not None and ctx.node.authorizer.decides_by_acls


def _require(ctx: Context, operation: AclOperation) -> None:
    """After what cannot be parsed: 4.3.1 hangs up on that, whoever has sent it."""
    authorizer = ctx.node.authorizer
    if authorizer is not None:
        check_access(ctx.decisions(authorizer), Access(cluster=(operation,)), ctx.header.api_key)


def _check_known(*codes: int) -> None:
    if UNKNOWN in codes:
        raise CloseConnection(ErrorCode.INVALID_REQUEST, "the request contains UNKNOWN elements")
