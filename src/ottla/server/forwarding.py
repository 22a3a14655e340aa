"""From a broker to the active controller, wherever it runs: ForwardingManager and NodeToControllerChannelManager.

Purpose: what only the controller decides goes to it: a client's request in an Envelope that says who sent it (KIP-590),
in the version that the client used; what a broker asks in its own name as it is. The answer comes back as if it had
been given here.

Rules: whoever is not the controller any more, does not answer, or cannot be reached is not the last word: the request
is asked again wherever the controller is by then, after a pause that grows, until the client's time is over. Then the
answer is REQUEST_TIMED_OUT in the response's own form, and whether it has been carried out is not known. How many are
asked at a time is bounded, and how many wait. Owned by the node's loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from typing import Any, Final, Protocol, TypeVar, cast

from ottla.config.broker import BrokerConfig
from ottla.controller.channel import ControllerChannel, ControllerDecisions, time_for
from ottla.controller.refusals import is_not_controller, refusal
from ottla.controller.result import RequestContext
from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.net.connection import ApiRanges
from ottla.net.errors import UnsupportedVersion
from ottla.net.peers import Backoff, Node
from ottla.raft.answers import Asked
from ottla.security.acls import NODE_IS_REFUSED
from ottla.security.principal import KafkaPrincipal, write_principal
from ottla.server.context import LocalController, Quorum
from ottla.server.errors import CloseConnection
from ottla.wire.codec import decode
from ottla.wire.framing import SIZE_BYTES, decode_response_header, request_frame
from ottla.wire.messages import producers
from ottla.wire.messages.admin import cluster as features
from ottla.wire.messages.admin import configs, quotas, topics
from ottla.wire.messages.nodes import broker_lifecycle as lifecycle
from ottla.wire.messages.nodes import raft, replication
from ottla.wire.messages.nodes.envelope import EnvelopeRequest, EnvelopeResponse
from ottla.wire.messages.security import acls, scram, tokens
from ottla.wire.primitives import WireError

log = logging.getLogger("ottla.server")

T = TypeVar("T")

# What a broker leaves to the controller, by Kafka's list: changes of topics, configurations, ACLs, tokens,
# reassignments, quotas, credentials, features and voters.
FORWARDABLE: Final = frozenset(
    {19, 20, 30, 31, 33, 37, 38, 39, 40, 43, 44, 45, 46, 49, 51, 55, 57, 64, 67, 80, 81}
)

# Asked at a time. A controller serves what comes by one connection in its order, so more would only wait there.
MAX_IN_FLIGHT: Final = 5
# Whoever comes when so many wait for the controller is told at once that there is no time.
MAX_WAITING: Final = 1_000
RETRY_BACKOFF_MS: Final = 20.0
RETRY_BACKOFF_MAX_MS: Final = 500.0
# A larger answer is decoded in a thread.
INLINE_ANSWER_BYTES: Final = 64 * 1024
# An API that the controller does not serve in any version.
_NOT_SERVED: Final = (0, -1)


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """How long is waited for the controller; the names are Kafka's keys."""

    # For a request that does not say how long its client waits.
    request_timeout_ms: int = 30_000
    # After which a controller that does not answer is asked by another connection.
    controller_socket_timeout_ms: int = 30_000

    @classmethod
    def from_config(cls, config: BrokerConfig) -> "ChannelSettings":
        return cls(config["request.timeout.ms"], config["controller.socket.timeout.ms"])


class NodeAsker(Protocol):
    """What is needed of a NodeClient."""

    def ask(
        self,
        to: Node,
        request: Any,
        *,
        timeout_ms: float | None = None,
        at_most: int | None = None,
        send_within_ms: float | None = None,
    ) -> Pending[Any]: ...

    def ranges(self, node_id: int) -> ApiRanges | None: ...

    def forget(self, node_id: int) -> None: ...


class NodeToControllerChannel:
    """Kafka's NodeToControllerChannelManager: asks the active controller until there is an answer."""

    def __init__(
        self,
        client: NodeAsker,
        active_controller: Callable[[], Node | None],
        settings: ChannelSettings,
        random: Random | None = None,
    ) -> None:
        """`active_controller` says where it is, as far as this node knows (RaftDriver.leader_node)."""
        self._client = client
        self._active_controller = active_controller
        self._timeout_ms = settings.controller_socket_timeout_ms
        self._backoff = Backoff(RETRY_BACKOFF_MS, RETRY_BACKOFF_MAX_MS, random or Random())  # not security
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._waiting = 0
        # Of those who wait for an answer, or for when to ask again: whoever else leads now may be asked at once.
        self._sleepers: set[asyncio.Future[None]] = set()
        self._closed = False

    async def ask(self, request: Any, timeout_ms: float, at_most: int | None = None) -> Any:
        """The active controller's response; KafkaError if there is none in time, or it does not know the request."""
        if self._waiting >= MAX_WAITING:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"{MAX_WAITING} requests wait for the controller already"
            )
        self._waiting += 1
        deadline_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        try:
            async with asyncio.timeout_at(deadline_s):
                return await self._ask_until_answered(request, at_most, deadline_s)
        except TimeoutError:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT) from None
        finally:
            self._waiting -= 1

    def controller_ranges(self) -> ApiRanges | None:
        """What the active controller serves; None if nobody has asked it anything yet."""
        node = self._active_controller()
        return None if node is None else self._client.ranges(node.node_id)

    def leader_changed(self) -> None:
        """Another node leads the quorum, or none."""
        for sleeper in self._sleepers:
            _wake(sleeper)

    def close(self) -> None:
        """This node stops: nobody waits any longer."""
        self._closed = True
        self.leader_changed()

    async def _ask_until_answered(self, request: Any, at_most: int | None, deadline_s: float) -> Any:
        failures = 0
        while True:
            async with self._slots:
                node = self._active_controller()
                response = None if node is None else await self._ask_once(node, request, at_most, deadline_s)
            if response is not None:
                return response
            self._check_open()
            if self._active_controller() in (None, node):
                failures += 1
                await self._sleep(self._backoff.delay_ms(failures))
                self._check_open()
            else:
                failures = 0

    async def _ask_once(self, node: Node, request: Any, at_most: int | None, deadline_s: float) -> Any | None:
        """None if this one did not answer for the controller, or does not lead any more."""
        if self._closed:
            return None
        answer = self._client.ask(
            node,
            request,
            timeout_ms=self._timeout_ms,
            at_most=at_most,
            # What the client is told has run out of time is not begun afterwards.
            send_within_ms=(deadline_s - asyncio.get_running_loop().time()) * 1000,
        )
        while not answer.done:
            await self._sleep(RETRY_BACKOFF_MAX_MS, answer)
            if not answer.done and (self._closed or self._active_controller() not in (None, node)):
                # It may hang for as long as it likes; what it has not been sent yet it must not be sent later. If it
                # has done its part all the same, the next one says so.
                self._client.forget(node.node_id)
                return None
        try:
            response = answer.result()
        except (UnsupportedVersion, WireError):
            # Nobody can be asked that: it has no version in common, or no bytes. Asking again would change nothing.
            raise
        except KafkaError as error:
            log.debug("%s is asked again: %s", type(request).__name__, error)
            return None
        return None if is_not_controller(response) else response

    async def _sleep(self, delay_ms: float, answer: Pending[Any] | None = None) -> None:
        """Until there is an answer or another leader, and at most for a while."""
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.add(sleeper)
        if answer is not None:
            answer.then(lambda _: _wake(sleeper))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_ms / 1000):
                    await sleeper
        finally:
            self._sleepers.discard(sleeper)

    def _check_open(self) -> None:
        if self._closed:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "This node is stopping")


def _wake(sleeper: "asyncio.Future[None]") -> None:
    if not sleeper.done():
        sleeper.set_result(None)


class RemoteController:
    """Kafka's ForwardingManager, and what brokers ask in their own name: a ControllerChannel over the network."""

    def __init__(
        self,
        forwarding: NodeAsker,
        own: NodeAsker,
        active_controller: Callable[[], Node | None],
        clock: Clock,
        settings: ChannelSettings,
        *,
        executor: Executor | None = None,
        random: Random | None = None,
    ) -> None:
        """Two clients, so that no heartbeat waits behind what clients ask for: a connection is answered in order.

        Nobody else may use them: who does not lead any more is hung up on. `executor` encodes and decodes what is
        large.
        """
        self._forwarding = NodeToControllerChannel(forwarding, active_controller, settings, random)
        self._own = NodeToControllerChannel(own, active_controller, settings, random)
        self._clock = clock
        self._settings = settings
        self._executor = executor
        self._correlation_ids = count()

    def leader_changed(self) -> None:
        """To be told whenever another node leads the quorum, or none: what waits is asked there at once."""
        self._forwarding.leader_changed()
        self._own.leader_changed()

    def close(self) -> None:
        """What waits is answered that this node stops."""
        self._forwarding.close()
        self._own.close()

    def versions_of(self, api_key: int) -> tuple[int, int] | None:
        ranges = self._forwarding.controller_ranges()
        return None if ranges is None else ranges.of(api_key) or _NOT_SERVED

    # --- asking

    async def _ask(
        self,
        request: Any,
        context: RequestContext,
        response: type[T],
        channel: NodeToControllerChannel | None = None,
    ) -> T:
        """In the client's name where there is a client, in the broker's own otherwise."""
        channel = channel or self._forwarding
        now_ms = self._clock.monotonic_ms()
        deadline_ms = context.deadline_ms
        if deadline_ms is None:
            deadline_ms = now_ms + time_for(request, self._settings.request_timeout_ms)
        try:
            if context.principal is None:
                answer = await channel.ask(request, deadline_ms - now_ms, context.api_version)
                return cast(T, answer)
            return await self._forward(request, context, context.principal, response, deadline_ms - now_ms)
        except CloseConnection:
            raise
        except UnsupportedVersion as error:
            # Ours is the mistake of asking, not the client's.
            unknown = context.principal is not None
            code = ErrorCode.UNKNOWN_SERVER_ERROR if unknown else ErrorCode.UNSUPPORTED_VERSION
            log.error("the controller cannot be asked for %s: %s", type(request).__name__, error)
            return cast(T, refusal(request, context.api_version, code))
        except WireError as error:
            log.error("a bug: %s has no bytes to ask the controller with: %s", type(request).__name__, error)
            return cast(T, refusal(request, context.api_version, ErrorCode.UNKNOWN_SERVER_ERROR))
        except KafkaError as error:
            return cast(T, refusal(request, context.api_version, error.code, error.message))

    async def _forward(
        self,
        request: Any,
        context: RequestContext,
        principal: KafkaPrincipal,
        response: type[T],
        timeout_ms: float,
    ) -> T:
        correlation_id = next(self._correlation_ids) & 0x7FFFFFFF
        encode = partial(request_frame, request, context.api_version, correlation_id, context.client_id)
        frame = await self._in_thread(encode) if context.is_large else encode()
        envelope = EnvelopeRequest(
            request_data=bytes(memoryview(frame)[SIZE_BYTES:]),
            request_principal=write_principal(principal),
            client_host_address=context.client_address,
        )
        sealed: EnvelopeResponse = await self._forwarding.ask(envelope, timeout_ms)
        if sealed.error_code == ErrorCode.UNSUPPORTED_VERSION:
            # The controller has changed since the client asked what is served here: it has to ask again.
            raise CloseConnection(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the controller does not know version {context.api_version} of {type(request).__name__}",
            )
        if sealed.error_code:
            is_refused = sealed.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            why = NODE_IS_REFUSED if is_refused else f"error {sealed.error_code}"
            log.error("the controller refuses to be forwarded to: %s", why)
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        data = sealed.response_data or b""
        opened = partial(_open, data, request.API_KEY, context.api_version, correlation_id, response)
        try:
            return await self._in_thread(opened) if len(data) > INLINE_ANSWER_BYTES else opened()
        except WireError as error:
            log.error("a response of the controller to %s cannot be read: %s", type(request).__name__, error)
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR) from None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    # --- brokers and controllers, in their own name

    async def register_broker(
        self, request: lifecycle.BrokerRegistrationRequest, context: RequestContext
    ) -> lifecycle.BrokerRegistrationResponse:
        return await self._ask(request, context, lifecycle.BrokerRegistrationResponse, self._own)

    async def broker_heartbeat(
        self, request: lifecycle.BrokerHeartbeatRequest, context: RequestContext
    ) -> lifecycle.BrokerHeartbeatResponse:
        return await self._ask(request, context, lifecycle.BrokerHeartbeatResponse, self._own)

    async def register_controller(
        self, request: lifecycle.ControllerRegistrationRequest, context: RequestContext
    ) -> lifecycle.ControllerRegistrationResponse:
        return await self._ask(request, context, lifecycle.ControllerRegistrationResponse, self._own)

    async def assign_replicas_to_dirs(
        self, request: lifecycle.AssignReplicasToDirsRequest, context: RequestContext
    ) -> lifecycle.AssignReplicasToDirsResponse:
        return await self._ask(request, context, lifecycle.AssignReplicasToDirsResponse, self._own)

    async def alter_partition(
        self, request: replication.AlterPartitionRequest, context: RequestContext
    ) -> replication.AlterPartitionResponse:
        return await self._ask(request, context, replication.AlterPartitionResponse, self._own)

    async def allocate_producer_ids(
        self, request: producers.AllocateProducerIdsRequest, context: RequestContext
    ) -> producers.AllocateProducerIdsResponse:
        return await self._ask(request, context, producers.AllocateProducerIdsResponse)

    # --- clients

    async def create_topics(
        self, request: topics.CreateTopicsRequest, context: RequestContext
    ) -> topics.CreateTopicsResponse:
        return await self._ask(request, context, topics.CreateTopicsResponse)

    async def delete_topics(
        self, request: topics.DeleteTopicsRequest, context: RequestContext
    ) -> topics.DeleteTopicsResponse:
        return await self._ask(request, context, topics.DeleteTopicsResponse)

    async def create_partitions(
        self, request: topics.CreatePartitionsRequest, context: RequestContext
    ) -> topics.CreatePartitionsResponse:
        return await self._ask(request, context, topics.CreatePartitionsResponse)

    async def incremental_alter_configs(
        self, request: configs.IncrementalAlterConfigsRequest, context: RequestContext
    ) -> configs.IncrementalAlterConfigsResponse:
        return await self._ask(request, context, configs.IncrementalAlterConfigsResponse)

    async def alter_configs(
        self, request: configs.AlterConfigsRequest, context: RequestContext
    ) -> configs.AlterConfigsResponse:
        return await self._ask(request, context, configs.AlterConfigsResponse)

    async def create_acls(
        self, request: acls.CreateAclsRequest, context: RequestContext
    ) -> acls.CreateAclsResponse:
        return await self._ask(request, context, acls.CreateAclsResponse)

    async def delete_acls(
        self, request: acls.DeleteAclsRequest, context: RequestContext
    ) -> acls.DeleteAclsResponse:
        return await self._ask(request, context, acls.DeleteAclsResponse)

    async def update_features(
        self, request: features.UpdateFeaturesRequest, context: RequestContext
    ) -> features.UpdateFeaturesResponse:
        return await self._ask(request, context, features.UpdateFeaturesResponse)

    async def alter_user_scram_credentials(
        self, request: scram.AlterUserScramCredentialsRequest, context: RequestContext
    ) -> scram.AlterUserScramCredentialsResponse:
        return await self._ask(request, context, scram.AlterUserScramCredentialsResponse)

    async def alter_client_quotas(
        self, request: quotas.AlterClientQuotasRequest, context: RequestContext
    ) -> quotas.AlterClientQuotasResponse:
        return await self._ask(request, context, quotas.AlterClientQuotasResponse)

    async def create_delegation_token(
        self, request: tokens.CreateDelegationTokenRequest, context: RequestContext
    ) -> tokens.CreateDelegationTokenResponse:
        return await self._ask(request, context, tokens.CreateDelegationTokenResponse)

    async def renew_delegation_token(
        self, request: tokens.RenewDelegationTokenRequest, context: RequestContext
    ) -> tokens.RenewDelegationTokenResponse:
        return await self._ask(request, context, tokens.RenewDelegationTokenResponse)

    async def expire_delegation_token(
        self, request: tokens.ExpireDelegationTokenRequest, context: RequestContext
    ) -> tokens.ExpireDelegationTokenResponse:
        return await self._ask(request, context, tokens.ExpireDelegationTokenResponse)

    async def unregister_broker(
        self, request: lifecycle.UnregisterBrokerRequest, context: RequestContext
    ) -> lifecycle.UnregisterBrokerResponse:
        return await self._ask(request, context, lifecycle.UnregisterBrokerResponse)

    async def elect_leaders(
        self, request: replication.ElectLeadersRequest, context: RequestContext
    ) -> replication.ElectLeadersResponse:
        return await self._ask(request, context, replication.ElectLeadersResponse)

    async def alter_partition_reassignments(
        self, request: replication.AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> replication.AlterPartitionReassignmentsResponse:
        return await self._ask(request, context, replication.AlterPartitionReassignmentsResponse)

    async def list_partition_reassignments(
        self, request: replication.ListPartitionReassignmentsRequest, context: RequestContext
    ) -> replication.ListPartitionReassignmentsResponse:
        return await self._ask(request, context, replication.ListPartitionReassignmentsResponse)

    async def describe_quorum(
        self, request: raft.DescribeQuorumRequest, context: RequestContext
    ) -> raft.DescribeQuorumResponse:
        return await self._ask(request, context, raft.DescribeQuorumResponse)

    async def add_raft_voter(
        self, request: raft.AddRaftVoterRequest, context: RequestContext
    ) -> raft.AddRaftVoterResponse:
        return await self._ask(request, context, raft.AddRaftVoterResponse)

    async def remove_raft_voter(
        self, request: raft.RemoveRaftVoterRequest, context: RequestContext
    ) -> raft.RemoveRaftVoterResponse:
        return await self._ask(request, context, raft.RemoveRaftVoterResponse)


def _open(data: bytes, api_key: int, version: int, correlation_id: int, response: type[T]) -> T:
    """The response in an envelope; WireError if it is not the one that was asked for."""
    found, offset = decode_response_header(data, 0, api_key, version)
    if found != correlation_id:
        raise WireError(f"it answers request {found} and not {correlation_id}")
    return decode(response, data, version, offset)[0]


# --- here or there


class ActiveController:
    """The controller of this process while it is the active one, otherwise that of another node.

    One that loses its leadership in the middle says so, and the other one is asked. A node without the controller role
    has a RemoteController and none of these.
    """

    def __init__(self, local: LocalController, quorum: Quorum, remote: ControllerChannel) -> None:
        self._local = local
        self._quorum = quorum
        self._remote = remote

    def versions_of(self, api_key: int) -> tuple[int, int] | None:
        return None if self._local.active else self._remote.versions_of(api_key)

    async def _ask(self, here: Callable[[], Awaitable[T]], there: Callable[[], Awaitable[T]]) -> T:
        if self._local.active:
            response = await here()
            if not is_not_controller(response):
                return response
        return await there()

    async def _decide(self, decide: Callable[[ControllerDecisions], Awaitable[T]]) -> T:
        return await self._ask(lambda: decide(self._local), lambda: decide(self._remote))

    def _handle(self, request: Any, context: RequestContext) -> Awaitable[Any]:
        return self._quorum.handle(request, Asked(context.api_version))

    # --- brokers and controllers, in their own name

    async def register_broker(
        self, request: lifecycle.BrokerRegistrationRequest, context: RequestContext
    ) -> lifecycle.BrokerRegistrationResponse:
        return await self._decide(lambda controller: controller.register_broker(request, context))

    async def broker_heartbeat(
        self, request: lifecycle.BrokerHeartbeatRequest, context: RequestContext
    ) -> lifecycle.BrokerHeartbeatResponse:
        return await self._decide(lambda controller: controller.broker_heartbeat(request, context))

    async def register_controller(
        self, request: lifecycle.ControllerRegistrationRequest, context: RequestContext
    ) -> lifecycle.ControllerRegistrationResponse:
        return await self._decide(lambda controller: controller.register_controller(request, context))

    async def assign_replicas_to_dirs(
        self, request: lifecycle.AssignReplicasToDirsRequest, context: RequestContext
    ) -> lifecycle.AssignReplicasToDirsResponse:
        return await self._decide(lambda controller: controller.assign_replicas_to_dirs(request, context))

    async def alter_partition(
        self, request: replication.AlterPartitionRequest, context: RequestContext
    ) -> replication.AlterPartitionResponse:
        return await self._decide(lambda controller: controller.alter_partition(request, context))

    async def allocate_producer_ids(
        self, request: producers.AllocateProducerIdsRequest, context: RequestContext
    ) -> producers.AllocateProducerIdsResponse:
        return await self._decide(lambda controller: controller.allocate_producer_ids(request, context))

    # --- clients

    async def create_topics(
        self, request: topics.CreateTopicsRequest, context: RequestContext
    ) -> topics.CreateTopicsResponse:
        return await self._decide(lambda controller: controller.create_topics(request, context))

    async def delete_topics(
        self, request: topics.DeleteTopicsRequest, context: RequestContext
    ) -> topics.DeleteTopicsResponse:
        return await self._decide(lambda controller: controller.delete_topics(request, context))

    async def create_partitions(
        self, request: topics.CreatePartitionsRequest, context: RequestContext
    ) -> topics.CreatePartitionsResponse:
        return await self._decide(lambda controller: controller.create_partitions(request, context))

    async def incremental_alter_configs(
        self, request: configs.IncrementalAlterConfigsRequest, context: RequestContext
    ) -> configs.IncrementalAlterConfigsResponse:
        return await self._decide(lambda controller: controller.incremental_alter_configs(request, context))

    async def alter_configs(
        self, request: configs.AlterConfigsRequest, context: RequestContext
    ) -> configs.AlterConfigsResponse:
        return await self._decide(lambda controller: controller.alter_configs(request, context))

    async def create_acls(
        self, request: acls.CreateAclsRequest, context: RequestContext
    ) -> acls.CreateAclsResponse:
        return await self._decide(lambda controller: controller.create_acls(request, context))

    async def delete_acls(
        self, request: acls.DeleteAclsRequest, context: RequestContext
    ) -> acls.DeleteAclsResponse:
        return await self._decide(lambda controller: controller.delete_acls(request, context))

    async def update_features(
        self, request: features.UpdateFeaturesRequest, context: RequestContext
    ) -> features.UpdateFeaturesResponse:
        return await self._decide(lambda controller: controller.update_features(request, context))

    async def alter_user_scram_credentials(
        self, request: scram.AlterUserScramCredentialsRequest, context: RequestContext
    ) -> scram.AlterUserScramCredentialsResponse:
        return await self._decide(
            lambda controller: controller.alter_user_scram_credentials(request, context)
        )

    async def alter_client_quotas(
        self, request: quotas.AlterClientQuotasRequest, context: RequestContext
    ) -> quotas.AlterClientQuotasResponse:
        return await self._decide(lambda controller: controller.alter_client_quotas(request, context))

    async def create_delegation_token(
        self, request: tokens.CreateDelegationTokenRequest, context: RequestContext
    ) -> tokens.CreateDelegationTokenResponse:
        return await self._decide(lambda controller: controller.create_delegation_token(request, context))

    async def renew_delegation_token(
        self, request: tokens.RenewDelegationTokenRequest, context: RequestContext
    ) -> tokens.RenewDelegationTokenResponse:
        return await self._decide(lambda controller: controller.renew_delegation_token(request, context))

    async def expire_delegation_token(
        self, request: tokens.ExpireDelegationTokenRequest, context: RequestContext
    ) -> tokens.ExpireDelegationTokenResponse:
        return await self._decide(lambda controller: controller.expire_delegation_token(request, context))

    async def unregister_broker(
        self, request: lifecycle.UnregisterBrokerRequest, context: RequestContext
    ) -> lifecycle.UnregisterBrokerResponse:
        return await self._decide(lambda controller: controller.unregister_broker(request, context))

    async def elect_leaders(
        self, request: replication.ElectLeadersRequest, context: RequestContext
    ) -> replication.ElectLeadersResponse:
        return await self._decide(lambda controller: controller.elect_leaders(request, context))

    async def alter_partition_reassignments(
        self, request: replication.AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> replication.AlterPartitionReassignmentsResponse:
        return await self._decide(
            lambda controller: controller.alter_partition_reassignments(request, context)
        )

    async def list_partition_reassignments(
        self, request: replication.ListPartitionReassignmentsRequest, context: RequestContext
    ) -> replication.ListPartitionReassignmentsResponse:
        return await self._decide(
            lambda controller: controller.list_partition_reassignments(request, context)
        )

    async def describe_quorum(
        self, request: raft.DescribeQuorumRequest, context: RequestContext
    ) -> raft.DescribeQuorumResponse:
        return await self._ask(
            lambda: self._handle(request, context), lambda: self._remote.describe_quorum(request, context)
        )

    async def add_raft_voter(
        self, request: raft.AddRaftVoterRequest, context: RequestContext
    ) -> raft.AddRaftVoterResponse:
        return await self._ask(
            lambda: self._handle(request, context), lambda: self._remote.add_raft_voter(request, context)
        )

    async def remove_raft_voter(
        self, request: raft.RemoveRaftVoterRequest, context: RequestContext
    ) -> raft.RemoveRaftVoterResponse:
        return await self._ask(
            lambda: self._handle(request, context), lambda: self._remote.remove_raft_voter(request, context)
        )
