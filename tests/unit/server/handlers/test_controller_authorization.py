"""Who may create, grow and delete topics, on either listener."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.authorizers import ALICE, judging, rule
from tests.support.controller_node import ControllerNode
from tests.unit.server.handlers.test_acls import on

from ottla.metadata.delta import ImageBuilder
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.metadata.records import TopicRecord
from ottla.model.errors import ErrorCode
from ottla.model.ids import ZERO_UUID, Uuid
from ottla.security.acls import AclOperation, ResourceType
from ottla.server import handlers
from ottla.server.context import Context
from ottla.server.handlers.controller import create_partitions, create_topics, delete_topics
from ottla.server.network.connection import Listener
from ottla.wire.messages.admin.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)

DENIED, NONE = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NONE
ORDERS, HIDDEN, ABSENT = (Uuid(bytes((number,)) * 16) for number in (1, 2, 3))


def image() -> ClusterImage:
    builder = ImageBuilder(EMPTY_IMAGE)
    for name, topic_id in (("orders", ORDERS), ("hidden", HIDDEN)):
        builder.apply(TopicRecord(name=name, topic_id=topic_id))
    return builder.build(4, 1, 1)[0]


def run(listener: Listener, work: Callable[[ControllerNode, Context], Awaitable[None]], *rules: Any) -> None:
    async def main() -> None:
        handlers.load()
        node = ControllerNode(image())
        node.services.authorizer = judging(*rules)
        try:
            context = on(node, listener)
            context.connection.principal = ALICE
            await work(node, context)
        finally:
            node.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def creating(*names: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
            for name in names
        ]
    )


def passed_on(node: ControllerNode) -> list[Any]:
    return [[topic.name for topic in request.topics] for _, request, _ in node.controller.asked]


@pytest.mark.parametrize("listener", list(Listener))
def test_topics_are_created_by_who_may(listener: Listener) -> None:
    async def work(node: ControllerNode, context: Context) -> None:
        response = await create_topics(context, creating("a", "b", "c", "c"))
        found = {topic.name: topic for topic in response.topics}
        assert (found["b"].error_code, found["b"].error_message) == (DENIED, "Authorization failed.")
        assert (found["a"].error_code, found["a"].topic_config_error_code) == (NONE, DENIED)
        assert found["a"].num_partitions == -1
        assert passed_on(node) == [["a", "c", "c"]]

    run(listener, work, rule(AclOperation.CREATE, "a"))


@pytest.mark.parametrize("listener", list(Listener))
def test_create_on_the_cluster_is_enough(listener: Listener) -> None:
    async def work(node: ControllerNode, context: Context) -> None:
        response = await create_topics(context, creating("a", "b"))
        assert {t.name: (t.error_code, t.topic_config_error_code) for t in response.topics} == {
            "a": (NONE, DENIED),
            "b": (NONE, NONE),
        }

    shown = rule(AclOperation.DESCRIBE_CONFIGS, "b")
    run(listener, work, rule(AclOperation.CREATE, kind=ResourceType.CLUSTER), shown)


@pytest.mark.parametrize("listener", list(Listener))
def test_topics_grow_by_who_may_alter_them(listener: Listener) -> None:
    async def work(node: ControllerNode, context: Context) -> None:
        wanted = [
            CreatePartitionsTopic(name=name, count=2, assignments=None)
            for name in ("orders", "hidden", "absent")
        ]
        response = await create_partitions(context, CreatePartitionsRequest(topics=wanted, timeout_ms=1))
        found = {result.name: result.error_code for result in response.results}
        assert found == {"orders": NONE, "hidden": DENIED, "absent": DENIED}
        assert passed_on(node) == [["orders"]]

    run(listener, work, rule(AclOperation.ALTER, "orders"))


def deleting(*ids: Uuid) -> DeleteTopicsRequest:
    states = [DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in ("orders", "hidden", "absent")]
    if ids:
        states = [DeleteTopicState(name=None, topic_id=topic_id) for topic_id in ids]
    return DeleteTopicsRequest(topics=states, timeout_ms=1)


@pytest.mark.parametrize("listener", list(Listener))
def test_names_that_one_may_not_describe_are_denied_whether_they_exist_or_not(listener: Listener) -> None:
    async def work(node: ControllerNode, context: Context) -> None:
        response = await delete_topics(context, deleting())
        found = {result.name: (result.error_code, result.topic_id) for result in response.responses}
        assert found["hidden"] == found["absent"] == (DENIED, ZERO_UUID)
        assert found["orders"][0] == NONE
        assert passed_on(node) == [["orders"]]

    run(listener, work, rule(AclOperation.DELETE, "orders"))  # DELETE implies DESCRIBE


@pytest.mark.parametrize("listener", list(Listener))
def test_names_that_one_may_describe_only_are_not_passed_on(listener: Listener) -> None:
    async def work(node: ControllerNode, context: Context) -> None:
        response = await delete_topics(context, deleting())
        assert {result.name: result.error_code for result in response.responses} == {
            "orders": DENIED,
            "hidden": DENIED,
            "absent": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert passed_on(node) == [[]]

    run(listener, work, *(rule(AclOperation.DESCRIBE, name) for name in ("orders", "absent")))


@pytest.mark.parametrize("listener", list(Listener))
def test_a_name_beside_a_state_with_name_and_id_is_judged(listener: Listener) -> None:
    """The controller refuses that state, and would then find the name only once, and delete its topic."""

    async def work(node: ControllerNode, context: Context) -> None:
        by_name = DeleteTopicState(name="hidden", topic_id=ZERO_UUID)
        malformed = DeleteTopicState(name="hidden", topic_id=ABSENT)
        for states in ([by_name, malformed], [malformed, by_name, malformed]):
            request = DeleteTopicsRequest(topics=states, timeout_ms=1)
            response = await delete_topics(context, request)
            (_, left, _), *_ = reversed(node.controller.asked)
            assert left.topics == [state for state in states if state is malformed]
            denials = [result for result in response.responses if result.error_code == DENIED]
            assert [(result.name, result.topic_id) for result in denials] == [("hidden", ZERO_UUID)]

    run(listener, work, rule(AclOperation.DELETE, "orders"))


@pytest.mark.parametrize("listener", list(Listener))
def test_an_id_tells_its_name_to_who_may_describe_it(listener: Listener) -> None:
    async def work(node: ControllerNode, context: Context) -> None:
        response = await delete_topics(context, deleting(ORDERS, HIDDEN, ABSENT))
        assert {result.topic_id: (result.name, result.error_code) for result in response.responses} == {
            ORDERS: ("orders", DENIED),
            HIDDEN: (None, DENIED),
            ABSENT: (None, ErrorCode.UNKNOWN_TOPIC_ID),
        }
        assert passed_on(node) == [[]]

    run(listener, work, rule(AclOperation.DESCRIBE, "orders"))


def test_delete_on_the_cluster_is_enough() -> None:
    async def work(node: ControllerNode, context: Context) -> None:
        await delete_topics(context, deleting(ORDERS, HIDDEN))
        assert len(passed_on(node)[0]) == 2

    run(Listener.CONTROLLER, work, rule(AclOperation.DELETE, kind=ResourceType.CLUSTER))
