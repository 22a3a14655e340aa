"""Who may see and change configurations: by the topic, by the group, and all else by the cluster."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.authorizers import ALICE, judging, rule
from tests.support.controller_node import ControllerNode
from tests.unit.server.handlers.test_acls import on

from ottla.model.errors import ErrorCode
from ottla.security.acls import AclOperation, ResourceType
from ottla.server import handlers
from ottla.server.context import Context
from ottla.server.handlers.configs import alter_configs, describe_configs, incremental_alter_configs
from ottla.server.network.connection import Listener
from ottla.wire.messages.admin.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
DENIED = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    BROKER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    METRICS: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
}
NAMES = {TOPIC: "t", BROKER: "", METRICS: "m", GROUP: "g"}
LEVEL = IncrementalAlterableConfig(name="ottla.nobody", config_operation=0, value="ERROR")


def run(listener: Listener, work: Callable[[ControllerNode, Context], Awaitable[None]], *rules: Any) -> None:
    async def main() -> None:
        handlers.load()
        node = ControllerNode()
        node.services.authorizer = judging(*rules)
        try:
            context = on(node, listener)
            context.connection.principal = ALICE
            await work(node, context)
        finally:
            node.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def rules(operation: AclOperation) -> list[Any]:
    return [
        rule(operation, "t"),
        rule(operation, "g", kind=ResourceType.GROUP),
        rule(operation, kind=ResourceType.CLUSTER),
    ]


async def asked(context: Context) -> list[dict[int, int]]:
    """The codes of describing, replacing and changing."""
    described = await describe_configs(
        context,
        DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
                for kind, name in NAMES.items()
            ]
        ),
    )
    old = [
        AlterConfigsResource(resource_type=kind, resource_name=name, configs=[])
        for kind, name in NAMES.items()
    ]
    new = [
        IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=[])
        for kind, name in NAMES.items()
    ]
    replaced = await alter_configs(context, AlterConfigsRequest(resources=old, validate_only=False))
    changed = await incremental_alter_configs(
        context, IncrementalAlterConfigsRequest(resources=new, validate_only=False)
    )
    return [
        {result.resource_type: result.error_code for result in results}
        for results in (described.results, replaced.responses, changed.responses)
    ]


@pytest.mark.parametrize("listener", list(Listener))
def test_without_a_rule_nothing_is_shown_or_changed(listener: Listener) -> None:
    async def work(node: ControllerNode, context: Context) -> None:
        assert await asked(context) == [DENIED] * 3
        assert node.controller.asked == []

    run(listener, work)


@pytest.mark.parametrize("listener", list(Listener))
def test_seeing_and_changing_are_different_things(listener: Listener) -> None:
    async def may_see(node: ControllerNode, context: Context) -> None:
        described, *others = await asked(context)
        absent = {TOPIC: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert described == {**dict.fromkeys(NAMES, ErrorCode.NONE), **absent}
        assert others == [DENIED] * 2
        assert node.controller.asked == []

    async def may_change(node: ControllerNode, context: Context) -> None:
        await asked(context)
        assert [len(request.resources) for _, request, _ in node.controller.asked] == [4, 4]

    run(listener, may_see, *rules(AclOperation.DESCRIBE_CONFIGS))
    run(listener, may_change, *rules(AclOperation.ALTER_CONFIGS))


@pytest.mark.parametrize(
    ("listener", "operation"),
    [(Listener.BROKER, AclOperation.ALTER_CONFIGS), (Listener.CONTROLLER, AclOperation.CLUSTER_ACTION)],
)
def test_loggers_are_the_clusters(listener: Listener, operation: AclOperation) -> None:
    logger = logging.getLogger("ottla.nobody")
    logger.setLevel(logging.NOTSET)
    resource = IncrementalAlterConfigsResource(resource_type=LOGGER, resource_name="1", configs=[LEVEL])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)

    async def denied(node: ControllerNode, context: Context) -> None:
        (found,) = (await incremental_alter_configs(context, request)).responses
        assert found.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert logger.level == logging.NOTSET

    async def allowed(node: ControllerNode, context: Context) -> None:
        (found,) = (await incremental_alter_configs(context, request)).responses
        assert (found.error_code, logger.level) == (0, logging.ERROR)

    run(listener, denied, rule(AclOperation.ALTER, kind=ResourceType.CLUSTER))
    run(listener, allowed, rule(operation, kind=ResourceType.CLUSTER))
    logger.setLevel(logging.NOTSET)
