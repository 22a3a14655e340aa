"""The topics that the coordinators write to: made when somebody first needs them, each with its own configuration.

Owner: the handlers, on the broker's loop.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.controller.result import RequestContext
from ottla.model.errors import KafkaError
from ottla.model.tasks import spawn
from ottla.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig
    from ottla.server.context import Context, Services

log = logging.getLogger("ottla.coordinator")

_DECISION: Final = RequestContext(api_version=7)


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """How one of them is made: which broker keys say its size, and what it is configured to."""

    name: str
    partitions_key: str
    replication_factor_key: str
    configs: Callable[["BrokerConfig"], Mapping[str, object]]

    def partitions(self, ctx: "Context") -> int:
        """How many it has, or will have."""
        found = ctx.node.image().topic(self.name)
        return int(ctx.node.config()[self.partitions_key]) if found is None else len(found.partitions)

    def creatable(self, config: "BrokerConfig") -> CreatableTopic:
        return CreatableTopic(
            name=self.name,
            num_partitions=config[self.partitions_key],
            replication_factor=config[self.replication_factor_key],
            assignments=[],
            configs=[
                CreatableTopicConfig(name=name, value=str(value))
                for name, value in self.configs(config).items()
            ],
        )


GROUP_METADATA: Final = InternalTopic(
    "__consumer_offsets",
    "offsets.topic.num.partitions",
    "offsets.topic.replication.factor",
    lambda config: {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": config["offsets.topic.segment.bytes"],
    },
)
TRANSACTION_STATE: Final = InternalTopic(
    "__transaction_state",
    "transaction.state.log.num.partitions",
    "transaction.state.log.replication.factor",
    lambda config: {
        "unclean.leader.election.enable": "false",
        "compression.type": "uncompressed",
        "cleanup.policy": "compact",
        "min.insync.replicas": config["transaction.state.log.min.isr"],
        "segment.bytes": config["transaction.state.log.segment.bytes"],
    },
)
SHARE_GROUP_STATE: Final = InternalTopic(
    "__share_group_state",
    "share.coordinator.state.topic.num.partitions",
    "share.coordinator.state.topic.replication.factor",
    lambda config: {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "segment.bytes": config["share.coordinator.state.topic.segment.bytes"],
        "min.insync.replicas": config["share.coordinator.state.topic.min.isr"],
        "retention.ms": -1,
    },
)


def create(node: "Services", topic: InternalTopic) -> None:
    """Ask the controller and do not wait: the client is told that the coordinator is not available yet."""
    if topic.name in node.topics_in_creation:
        return
    node.topics_in_creation.add(topic.name)
    spawn(_create(node, topic), name=f"creating {topic.name}", owner="internal topics")


async def _create(node: "Services", topic: InternalTopic) -> None:
    config = node.config()
    request = CreateTopicsRequest(topics=[topic.creatable(config)], timeout_ms=config["request.timeout.ms"])
    try:
        response: CreateTopicsResponse = await node.controller.create_topics(request, _DECISION)
        for result in response.topics:
            if result.error_code:
                log.warning("%s cannot be made: %s", topic.name, result.error_message)
        await node.caught_up()
    except KafkaError as error:
        log.warning("%s cannot be made: %s", topic.name, error)
    finally:
        node.topics_in_creation.discard(topic.name)
