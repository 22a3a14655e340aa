"""What a handler is given: the node's services, and who asks."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.controller.result import RequestContext
from ottla.model.clock import Clock
from ottla.model.ids import NodeId
from ottla.server.limits import ElementBudget
from ottla.server.metadata_encoding import TopicEncoder
from ottla.server.network.connection import Connection, Listener
from ottla.server.topic_creation import AutoTopicCreationManager, StreamsInternalTopics

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig
    from ottla.controller.controller import Controller
    from ottla.coordinator.group.assignors.api import PartitionAssignor
    from ottla.coordinator.group.shard import GroupCoordinatorShard
    from ottla.coordinator.runtime import CoordinatorRuntime
    from ottla.metadata.image import ClusterImage
    from ottla.replication.replica_manager import ReplicaManager
    from ottla.server.fetch_sessions import FetchSessionCache
    from ottla.server.limits import Unpacking
    from ottla.server.transaction.producer_ids import ProducerIdSource
    from ottla.server.transaction.service import TransactionService
    from ottla.server.transaction.verification import AddPartitionsToTxnManager
    from ottla.share.coordinator import ShareCoordinatorService
    from ottla.share.groups import ShareGroupService
    from ottla.share.manager import SharePartitionManager
    from ottla.storage.log_manager import LogManager
    from ottla.wire.framing import RequestHeader


@dataclass(slots=True)
class Services:
    """The parts of a running node, as the composition root put them together."""

    node_id: NodeId
    cluster_id: str
    clock: Clock
    loop: asyncio.AbstractEventLoop
    executor: ThreadPoolExecutor
    unpacking: "Unpacking"
    config: Callable[[], "BrokerConfig"]
    image: Callable[[], "ClusterImage"]
    logs: "LogManager"
    replicas: "ReplicaManager"
    controller: "Controller"
    producer_ids: "ProducerIdSource"
    fetch_sessions: "FetchSessionCache"
    # Waits until this broker shows what the controller has committed by now.
    caught_up: Callable[[], Awaitable[None]]
    groups: "CoordinatorRuntime[GroupCoordinatorShard]"
    # Of consumer groups, by the names that consumers ask for.
    group_assignors: "Mapping[str, PartitionAssignor]"
    transactions: "TransactionService"
    verification: "AddPartitionsToTxnManager"
    share_state: "ShareCoordinatorService"
    share_groups: "ShareGroupService"
    share: "SharePartitionManager"
    topic_creation: AutoTopicCreationManager
    streams_topics: StreamsInternalTopics
    topic_encoder: TopicEncoder = field(default_factory=TopicEncoder)
    # What large requests list, all together.
    elements: ElementBudget = field(default_factory=ElementBudget)


class Context:
    """One request, for its handler: who sent it, when, and the node's services."""

    __slots__ = ("connection", "header", "node", "now_ms")

    def __init__(self, node: Services, connection: Connection, header: "RequestHeader", now_ms: int) -> None:
        self.node = node
        self.connection = connection
        self.header = header
        self.now_ms = now_ms

    @property
    def version(self) -> int:
        return self.header.api_version

    @property
    def decision(self) -> RequestContext:
        """What the controller has to know of the request."""
        return RequestContext(self.header.api_version, self.connection.host.kind is Listener.BROKER)

    @property
    def listener_name(self) -> str:
        return self.connection.host.listener_name

    async def in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run what may wait on a disk outside the loop."""
        return await self.node.loop.run_in_executor(self.node.executor, function, *args)
