"""What a handler is given: the node's services, and who asks."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ottla.controller.channel import ControllerChannel, ControllerDecisions, time_for
from ottla.controller.gone_brokers import GoneBrokers
from ottla.controller.result import RequestContext
from ottla.model.clock import Clock
from ottla.model.errors import KafkaError
from ottla.model.ids import NodeId
from ottla.model.time_slice import TimeSlice
from ottla.raft.answers import Asked
from ottla.security.acls import (
    AUTHORIZATION_ERRORS,
    SUPPORTED_OPERATIONS,
    AclOperation,
    ResourceType,
    operation_bits,
)
from ottla.security.authorizer import Authorizer, Decisions
from ottla.security.principal import KafkaPrincipal, address_bytes
from ottla.server import authorization
from ottla.server.limits import ElementBudget
from ottla.server.metadata_encoding import TopicEncoder
from ottla.server.network.connection import Connection, Listener
from ottla.server.topic_creation import AutoTopicCreationManager, StreamsInternalTopics

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig
    from ottla.coordinator.group.assignors.api import PartitionAssignor
    from ottla.coordinator.group.shard import GroupCoordinatorShard
    from ottla.coordinator.runtime import CoordinatorRuntime
    from ottla.metadata.image import ClusterImage
    from ottla.replication.replica_manager import ReplicaManager
    from ottla.replication.replica_selector import ReplicaSelection
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

# Names that are judged before it is asked whether others should have the loop.
JUDGED_AT_ONCE: Final = 100


class Quorum(Protocol):
    """This node's part of the metadata quorum, as far as handlers ask it (RaftDriver)."""

    @property
    def kraft_version(self) -> int: ...

    @property
    def leader(self) -> tuple[int, int]:
        """Who leads, or -1, and in which epoch."""

    async def handle(self, request: Any, how: Asked) -> Any:
        """The response to a request of the quorum; it may wait, as a fetch does."""


class LocalController(ControllerDecisions, Protocol):
    """The controller of this process, active or not."""

    @property
    def active(self) -> bool: ...


@dataclass(slots=True, kw_only=True)
class ControllerServices:
    """What every node has, and all that handlers of the controller's listener need."""

    node_id: NodeId
    cluster_id: str
    clock: Clock
    loop: asyncio.AbstractEventLoop
    executor: ThreadPoolExecutor
    config: Callable[[], "BrokerConfig"]
    image: Callable[[], "ClusterImage"]
    raft: Quorum
    # For the controller's listener; None without that role.
    local_controller: LocalController | None
    # Told when a broker's connection to the controller's listener ends; None if the session alone decides.
    gone_brokers: GoneBrokers | None = None
    # Who judges requests; None: everybody may do everything.
    authorizer: Authorizer | None = None
    # Raises ConfigError if this node's listeners could not go on with a configuration; with the keys that were named.
    check_stores: Callable[["BrokerConfig", Collection[str]], Awaitable[None]] | None = None
    # What large requests list, all together.
    elements: ElementBudget = field(default_factory=ElementBudget)


@dataclass(slots=True, kw_only=True)
class Services(ControllerServices):
    """The parts of a running broker, as the composition root put them together."""

    unpacking: "Unpacking"
    logs: "LogManager"
    replicas: "ReplicaManager"
    # The active controller, wherever it runs.
    controller: ControllerChannel
    producer_ids: "ProducerIdSource"
    fetch_sessions: "FetchSessionCache"
    replica_selection: "ReplicaSelection"
    # Waits until this broker shows what the controller of this process has committed by now; not at all if that is
    # not the active one.
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


class Sender(NamedTuple):
    """Who sent a request, and from where: if a broker has forwarded it, not whose connection it came by."""

    principal: KafkaPrincipal
    address: bytes


class Context:
    """One request, for its handler: who sent it, when, and the node's services."""

    __slots__ = ("connection", "forwarded_for", "header", "is_large", "node", "now_ms")

    def __init__(
        self,
        node: Services,
        connection: Connection,
        header: "RequestHeader",
        now_ms: int,
        *,
        forwarded_for: Sender | None = None,
        is_large: bool = False,
    ) -> None:
        self.node = node
        self.connection = connection
        self.header = header
        self.now_ms = now_ms
        self.forwarded_for = forwarded_for
        self.is_large = is_large

    @property
    def version(self) -> int:
        return self.header.api_version

    @property
    def on_controller_listener(self) -> bool:
        return self.connection.host.kind is Listener.CONTROLLER

    @property
    def sender(self) -> Sender:
        """Who asks."""
        return self.forwarded_for or Sender(self.connection.principal, address_bytes(self.connection.peer[0]))

    # --- what whoever asks may do

    def authorize(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        name: str,
        *,
        log_if_denied: bool = True,
    ) -> bool:
        """May it be done? Without `log_if_denied`, where it is not what was asked for that is looked at."""
        authorizer = self.node.authorizer
        return authorizer is None or authorization.allowed(
            *(self.decisions(authorizer), operation, resource_type, name),
            log_if_denied=log_if_denied,
            api_key=self.header.api_key,
        )

    def authorized_names(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        names: Iterable[str],
        *,
        log_if_denied: bool = True,
    ) -> set[str]:
        """Those of the resources on which it may be done."""
        authorizer = self.node.authorizer
        if authorizer is None:
            return set(names)
        return authorization.allowed_names(
            *(self.decisions(authorizer), operation, resource_type, names),
            log_if_denied=log_if_denied,
            api_key=self.header.api_key,
        )

    async def authorized_of_many(
        self,
        operation: AclOperation,
        resource_type: ResourceType,
        names: Iterable[str],
        *,
        log_if_denied: bool = True,
    ) -> set[str]:
        """As `authorized_names`, and others have the loop meanwhile: a request may name very many."""
        authorizer = self.node.authorizer
        if authorizer is None:
            return set(names)
        about = self.decisions(authorizer)
        allowed: set[str] = set()
        time_slice = TimeSlice()
        left = iter(dict.fromkeys(names))
        while piece := list(islice(left, JUDGED_AT_ONCE)):
            allowed |= authorization.allowed_names(
                *(about, operation, resource_type, piece),
                log_if_denied=log_if_denied,
                api_key=self.header.api_key,
            )
            await time_slice.yield_to_loop()
        return allowed

    def authorized_by_type(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """May it be done on any resource of this type?"""
        authorizer = self.node.authorizer
        if authorizer is None:
            return True
        about = self.decisions(authorizer)
        return authorizer.authorize_by_resource_type(about.principal, about.host, operation, resource_type)

    def authorized_operations(self, resource_type: ResourceType, name: str) -> int:
        """Everything that may be done with a resource, as responses say it (KIP-430)."""
        authorizer = self.node.authorizer
        if authorizer is None:
            return operation_bits(SUPPORTED_OPERATIONS[resource_type])
        return authorization.allowed_operations(self.decisions(authorizer), resource_type, name)

    def require(self, operation: AclOperation, resource_type: ResourceType, name: str) -> None:
        """KafkaError with the authorization error of the resource if it may not be done."""
        if not self.authorize(operation, resource_type, name):
            raise KafkaError(AUTHORIZATION_ERRORS[resource_type])

    def decisions(self, authorizer: Authorizer) -> Decisions:
        """Decisions about whoever asks."""
        sender = self.forwarded_for
        if sender is None:
            return authorization.decisions_about(authorizer, self.connection)
        return authorization.decisions_about_forwarded(
            authorizer, sender.principal, sender.address, self.connection.audit
        )

    # --- the controller

    @property
    def controller(self) -> ControllerDecisions:
        """Who decides: on its own listener this process' controller, which says so if it is not the active one."""
        if not self.on_controller_listener:
            return self.node.controller
        assert self.node.local_controller is not None, "only a controller has such a listener"
        return self.node.local_controller

    @property
    def decided_here(self) -> bool:
        """Is it this process' controller that decides, and by this node's settings?"""
        local = self.node.local_controller
        return self.on_controller_listener or (local is not None and local.active)

    def decision(self, request: Any) -> RequestContext:
        """What the controller has to know of the request."""
        sender = self.sender
        given_ms = time_for(request, self.node.config()["request.timeout.ms"])
        return RequestContext(
            self.header.api_version,
            forwarded=not self.on_controller_listener or self.forwarded_for is not None,
            principal=sender.principal,
            client_id=self.header.client_id,
            client_address=sender.address,
            deadline_ms=self.node.clock.monotonic_ms() + given_ms,
            is_large=self.is_large,
        )

    async def caught_up(self) -> None:
        """Whoever asks a broker finds there at once what has been changed; with Kafka it may have to look again."""
        if not self.on_controller_listener:
            await self.node.caught_up()

    @property
    def listener_name(self) -> str:
        return self.connection.host.listener_name

    async def in_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run what may wait on a disk outside the loop."""
        return await self.node.loop.run_in_executor(self.node.executor, function, *args)
