"""Which topics Metadata shows, and makes, for whom."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.authorizers import ALICE, judging, rule
from tests.support.controller_node import ControllerNode
from tests.unit.server.handlers.test_cluster_answers import on_broker
from tests.unit.server.handlers.test_controller_authorization import HIDDEN, ORDERS, image

from ottla.model.errors import ErrorCode
from ottla.model.ids import ZERO_UUID
from ottla.security.acls import NOT_ASKED, AclOperation, ResourceType, operation_bits
from ottla.server import handlers
from ottla.server.handlers.metadata import describe_cluster, describe_topic_partitions, metadata
from ottla.wire.codec import decode
from ottla.wire.messages.admin.cluster import DescribeClusterRequest
from ottla.wire.messages.metadata import (
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    TopicRequest,
)

DENIED, NONE = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
SEE_ORDERS = rule(AclOperation.DESCRIBE, "orders")


def ask(topics: list[MetadataRequestTopic] | None, *rules: Any) -> tuple[MetadataResponse, list[str]]:
    """The answer, and what is made."""
    made: list[str] = []

    async def main() -> MetadataResponse:
        handlers.load()
        node = ControllerNode(image())
        node.services.authorizer = judging(*rules)
        try:
            context = on_broker(node, 3, 12)
            context.connection.principal = ALICE
            services: Any = context.node
            services.topic_creation = SimpleNamespace(auto_create=lambda names, _: made.extend(names))
            request = MetadataRequest(
                topics=topics, allow_auto_topic_creation=True, include_topic_authorized_operations=True
            )
            encoded = await metadata(context, request)
            return decode(MetadataResponse, b"".join(encoded.chunks), 12)[0]
        finally:
            node.close()

    return asyncio.run(asyncio.wait_for(main(), 60)), made


def named(*names: str) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=name) for name in names]


def test_all_topics_are_those_that_may_be_described() -> None:
    assert ask(None)[0].topics == []
    (found,) = ask(None, SEE_ORDERS)[0].topics
    assert (found.name, found.error_code) == ("orders", NONE)
    assert found.topic_authorized_operations == operation_bits([AclOperation.DESCRIBE])


def test_names_are_denied_whether_they_exist_or_not() -> None:
    response, made = ask(named("orders", "hidden", "absent"), SEE_ORDERS)
    assert {topic.name: (topic.error_code, topic.topic_id) for topic in response.topics} == {
        "orders": (NONE, ORDERS),
        "hidden": (DENIED, ZERO_UUID),
        "absent": (DENIED, ZERO_UUID),
    }
    assert made == []


def test_an_id_does_not_tell_its_name() -> None:
    asked = [MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in (ORDERS, HIDDEN)]
    response, _ = ask(asked, SEE_ORDERS)
    assert {topic.topic_id: (topic.error_code, topic.name) for topic in response.topics} == {
        ORDERS: (NONE, "orders"),
        HIDDEN: (DENIED, None),
    }


@pytest.mark.parametrize(
    "create", [rule(AclOperation.CREATE, "absent"), rule(AclOperation.CREATE, kind=ResourceType.CLUSTER)]
)
def test_a_topic_is_made_for_who_may_make_it(create: Any) -> None:
    see = rule(AclOperation.DESCRIBE, "absent")
    for rules, code, created in (([see], DENIED, []), ([see, create], UNKNOWN, ["absent"])):
        response, made = ask(named("absent"), *rules)
        assert [topic.error_code for topic in response.topics] == [code]
        assert made == created
        # Of one that there is not it is said too, but not where it is denied.
        assert (response.topics[0].topic_authorized_operations == NOT_ASKED) is (code is DENIED)


def test_what_may_be_done_with_the_cluster_is_told_to_who_may_describe_it() -> None:
    async def main() -> None:
        node = ControllerNode(image())
        try:
            context = on_broker(node, 60, 1)
            context.connection.principal = ALICE
            request = DescribeClusterRequest(include_cluster_authorized_operations=True, endpoint_type=1)
            node.services.authorizer = judging()
            assert describe_cluster(context, request).cluster_authorized_operations == 0
            node.services.authorizer = judging(rule(AclOperation.DESCRIBE, kind=ResourceType.CLUSTER))
            assert describe_cluster(context, request).cluster_authorized_operations == operation_bits(
                [AclOperation.DESCRIBE]
            )
        finally:
            node.close()

    asyncio.run(main())


def test_partitions_are_described_of_topics_that_may_be() -> None:
    async def main() -> None:
        node = ControllerNode(image())
        try:
            context = on_broker(node, 75, 0)
            context.connection.principal = ALICE
            node.services.authorizer = judging(SEE_ORDERS)
            for names in ((), ("absent", "hidden", "orders")):
                request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name) for name in names])
                found = (await describe_topic_partitions(context, request)).topics
                denied = {name: (DENIED, ZERO_UUID) for name in names if name != "orders"}
                assert {t.name: (t.error_code, t.topic_id) for t in found} == {
                    "orders": (NONE, ORDERS),
                    **denied,
                }
                assert found[0].topic_authorized_operations == operation_bits([AclOperation.DESCRIBE])
        finally:
            node.close()

    asyncio.run(main())
