"""DescribeAcls, CreateAcls, DeleteAcls, without an authorizer and with one."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.controller_node import ControllerNode
from tests.support.controller_requests import FORWARDED
from tests.unit.server.handlers.test_cluster_answers import BrokerServices

from ottla.controller.result import RequestContext
from ottla.metadata.delta import ImageBuilder
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.metadata.records import AccessControlEntryRecord
from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.authorizer import StandardAuthorizer
from ottla.security.principal import ANONYMOUS
from ottla.server import handlers
from ottla.server.context import Context
from ottla.server.dispatch import Encoded
from ottla.server.errors import CloseConnection, error_response
from ottla.server.handlers import acls
from ottla.server.handlers.acls import create_acls, delete_acls, describe_acls
from ottla.server.network.connection import Listener
from ottla.server.registry import routes
from ottla.wire.codec import encode
from ottla.wire.framing import RequestHeader
from ottla.wire.messages.security.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

CREATE, DELETE = FORWARDED["create_acls"], FORWARDED["delete_acls"]
DELETE_ACLS = 31
EVERYBODY_MAY = StandardAuthorizer(allow_everyone_if_no_acl_found=True)


def run(work: Callable[[ControllerNode], Awaitable[None]], image: ClusterImage = EMPTY_IMAGE) -> None:
    async def main() -> None:
        handlers.load()
        node = ControllerNode(image)
        try:
            await work(node)
        finally:
            node.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def on(node: ControllerNode, listener: Listener) -> Context:
    services: Any = node.services if listener is Listener.CONTROLLER else BrokerServices(node)
    if listener is Listener.BROKER:

        async def caught_up() -> None: ...

        services.caught_up = caught_up
    return Context(services, node.connection(listener), RequestHeader(29, 3, 1, None), 0)


def describing(**more: Any) -> DescribeAclsRequest:
    fields = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    return DescribeAclsRequest(**{**fields, **more})


@pytest.mark.parametrize("listener", list(Listener))
def test_without_an_authorizer_nothing_is_shown_or_changed(listener: Listener) -> None:
    async def work(node: ControllerNode) -> None:
        for handler, request, sentence in (
            (describe_acls, describing(), "No Authorizer is configured on the broker"),
            (create_acls, CREATE, "No Authorizer is configured."),
            (delete_acls, DELETE, "No Authorizer is configured."),
        ):
            with pytest.raises(KafkaError) as refused:
                await handler(on(node, listener), request)  # type: ignore[operator]
            assert (refused.value.code, refused.value.message) == (ErrorCode.SECURITY_DISABLED, sentence)
        answer = error_response(CREATE, 3, ErrorCode.SECURITY_DISABLED, "why")
        assert [(r.error_code, r.error_message) for r in answer.results] == [(54, "why")] * 2
        answer = error_response(DELETE, 3, ErrorCode.SECURITY_DISABLED, "why")
        assert [(r.error_code, r.error_message) for r in answer.filter_results] == [(54, "why")]
        assert node.controller.asked == []

    run(work)


def test_a_broker_leaves_it_to_the_controller_that_decides() -> None:
    async def work(node: ControllerNode) -> None:
        node.controller.active = False  # another node's is, which has settings of its own
        await create_acls(on(node, Listener.BROKER), CREATE)
        await delete_acls(on(node, Listener.BROKER), DELETE)
        assert [name for name, _, _ in node.controller.asked] == ["create_acls", "delete_acls"]
        assert [context.principal for _, _, context in node.controller.asked] == [ANONYMOUS] * 2

    run(work)


@pytest.mark.parametrize("listener", list(Listener))
def test_with_one_the_controller_decides(listener: Listener) -> None:
    async def work(node: ControllerNode) -> None:
        node.services.authorizer = EVERYBODY_MAY
        await create_acls(on(node, listener), CREATE)
        await delete_acls(on(node, listener), DELETE)
        assert [name for name, _, _ in node.controller.asked] == ["create_acls", "delete_acls"]

    run(work)


def rules() -> ClusterImage:
    builder = ImageBuilder(EMPTY_IMAGE)
    for number, (name, principal, operation) in enumerate(
        [("a", "User:x", 3), ("a", "User:y", 4), ("b", "User:x", 3), ("a", "User:x", 3)]
    ):
        builder.apply(
            AccessControlEntryRecord(
                id=number.to_bytes(16, "big"),
                resource_type=2,
                resource_name=name,
                pattern_type=3,
                principal=principal,
                host="*",
                operation=operation,
                permission_type=3,
            )
        )
    return builder.build(4, 1, 1)[0]


@pytest.mark.parametrize("listener", list(Listener))
def test_describing_by_resource(listener: Listener) -> None:
    async def work(node: ControllerNode) -> None:
        node.services.authorizer = EVERYBODY_MAY

        async def found(**more: Any) -> dict[str, list[tuple[str, int]]]:
            response = await describe_acls(on(node, listener), describing(**more))
            assert isinstance(response, DescribeAclsResponse)
            assert (response.error_code, response.error_message) == (0, "")
            return {
                resource.resource_name: sorted((acl.principal, acl.operation) for acl in resource.acls)
                for resource in response.resources
            }

        assert await found() == {"a": [("User:x", 3), ("User:y", 4)], "b": [("User:x", 3)]}
        assert await found(principal_filter="User:y") == {"a": [("User:y", 4)]}
        assert await found(resource_type_filter=3) == {}
        assert await found(operation=99) == {}, "what is not known here matches nothing"
        exact = {
            "resource_type_filter": 2,
            "resource_name_filter": "a",
            "pattern_type_filter": 3,
            "principal_filter": "User:x",
            "host_filter": "*",
            "operation": 3,
            "permission_type": 3,
        }
        assert await found(**exact) == {"a": [("User:x", 3)]}
        assert await found(**{**exact, "resource_name_filter": "c"}) == {}

    run(work, rules())


def test_a_large_answer_is_encoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(node: ControllerNode) -> None:
        node.services.authorizer = EVERYBODY_MAY
        plain = await describe_acls(on(node, Listener.CONTROLLER), describing())
        monkeypatch.setattr(acls, "ENCODED_IN_A_THREAD", 3)
        encoded = await describe_acls(on(node, Listener.CONTROLLER), describing())
        assert isinstance(encoded, Encoded)
        assert encoded.chunks == [encode(plain, 3)]

    run(work, rules())


def test_what_a_large_answer_says_is_deleted_is_in_the_audit_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is bytes by then; without what is in them the whole change would be missing."""

    async def work(node: ControllerNode) -> None:
        node.services.authorizer = EVERYBODY_MAY
        monkeypatch.setattr(acls, "ENCODED_IN_A_THREAD", 3)
        rule = dict.fromkeys(("resource_type", "pattern_type", "operation", "permission_type"), 3)
        matching = [
            DeleteAclsMatchingAcl(
                error_message=None, resource_name="a", principal=f"User:{name}", host="*", **rule
            )
            for name in "xyz"
        ]

        async def delete(request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
            result = DeleteAclsFilterResult(error_message=None, matching_acls=matching)
            return DeleteAclsResponse(filter_results=[result])

        monkeypatch.setattr(node.controller, "delete_acls", delete, raising=False)
        told: list[dict[str, Any]] = []
        ctx = on(node, Listener.CONTROLLER)
        ctx.header = RequestHeader(DELETE_ACLS, 3, 1, None)
        audit: Any = SimpleNamespace(
            changes=True,
            changed=lambda fields, lines, things: told.extend({**fields, **each} for each in lines()),
        )
        ctx.connection.audit = audit
        handler = routes(Listener.CONTROLLER)[DELETE_ACLS].handler
        assert handler is not None
        answer = await handler(ctx, DeleteAclsRequest(filters=[DeleteAclsFilter(**filter_fields())]))
        assert isinstance(answer, Encoded)
        assert [(line["result"], line["details"]["rule"]["principal"]) for line in told] == [
            ("NONE", "User:x"),
            ("NONE", "User:y"),
            ("NONE", "User:z"),
        ]

    run(work)


def test_what_not_even_the_sender_knows_ends_the_connection() -> None:
    async def work(node: ControllerNode) -> None:
        creation = {
            "resource_type": 2,
            "resource_name": "a",
            "resource_pattern_type": 3,
            "principal": "User:x",
            "host": "*",
            "operation": 3,
            "permission_type": 3,
        }
        ctx = on(node, Listener.CONTROLLER)
        for field in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
            with pytest.raises(CloseConnection):
                await describe_acls(ctx, describing(**{field: 0}))
            wanted = {**filter_fields(), field: 0}
            with pytest.raises(CloseConnection):
                await delete_acls(ctx, DeleteAclsRequest(filters=[DeleteAclsFilter(**wanted)]))
        for field in ("resource_type", "resource_pattern_type", "operation", "permission_type"):
            with pytest.raises(CloseConnection):
                await create_acls(ctx, CreateAclsRequest(creations=[AclCreation(**{**creation, field: 0})]))

    run(work)


def filter_fields() -> dict[str, Any]:
    given = describing()
    return {name: getattr(given, name) for name in type(given).__annotations__}
