"""What every client is built on: metadata and calls over a NetworkClient, moved on by events and by the time.

The driver reports what happened (`on_connected`, `on_data`, `on_disconnected`) and calls `poll(now)`, which
returns what to do (`Connect`, `Write`, `Disconnect`); `next_deadline` says when to come back though nothing
happens. Producer and consumer cores are RequestManagers, which `poll` gives a turn. No socket, clock or await inside,
and all chance from one seeded generator: a test replays any history exactly.

Owned by one driver, which calls it from one thread at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from random import Random
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ottla.client.config import ClientConfig
from ottla.client.errors import (
    AuthenticationFailed,
    Closed,
    ConnectionLost,
    NoBrokersAvailable,
    NotABroker,
    ProtocolError,
    TimedOut,
    UnsupportedVersion,
)
from ottla.client.metadata import ClusterMetadata
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import TopicPartition
from ottla.net.client import NetworkClient, NetworkSettings
from ottla.net.connection import Authenticator, OnDone
from ottla.net.peers import MAIN, Backoff, Node, Peer
from ottla.net.transport import Action
from ottla.wire.codec import WireError
from ottla.wire.messages.groups.classic import FindCoordinatorRequest
from ottla.wire.messages.metadata import MetadataRequest

# -- coordinators -----------------------------------------------------------------------------------------


# From this version on a request asks for several keys (KIP-699).
FIND_MANY_KEYS = 4
# After these the coordinator is looked up again; while it loads, it is still the right one.
MOVED_COORDINATOR = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION}
)


class CoordinatorType(IntEnum):
    """What a coordinator is for."""

    GROUP = 0
    TRANSACTION = 1


class CoordinatorOf(NamedTuple):
    """The broker that coordinates a group or a transactional id, as the addressee of a call."""

    kind: CoordinatorType
    key: str

    def __str__(self) -> str:
        what = "group" if self.kind is CoordinatorType.GROUP else "transactional id"
        return f"the coordinator of {what} {self.key!r}"


def group_coordinator(group_id: str) -> CoordinatorOf:
    return CoordinatorOf(CoordinatorType.GROUP, group_id)


def transaction_coordinator(transactional_id: str) -> CoordinatorOf:
    return CoordinatorOf(CoordinatorType.TRANSACTION, transactional_id)


# How a lookup is sent: the request, the function that finds its error, what to do with the outcome, the time.
_SendLookup = Callable[
    [
        FindCoordinatorRequest,
        Callable[[Any], ErrorCode | None],
        Callable[[Any, KafkaError | None, float], None],
        float,
    ],
    None,
]


class Coordinators:
    """Which broker coordinates a group or a transactional id: looked up when first needed, forgotten when it moved.

    A lookup is one FindCoordinator, tried again while the broker says that it is not ready; what a broker refuses for
    good fails the calls that wait for it. Owned by the network core.
    """

    def __init__(self, ask: _SendLookup) -> None:
        self._ask = ask
        self._nodes: dict[CoordinatorOf, int] = {}
        self._asking: set[CoordinatorOf] = set()
        self._refused: dict[CoordinatorOf, KafkaError] = {}

    def node(self, of: CoordinatorOf, now: float) -> int | None:
        """The node, if it is known; if not it is asked for. Raises what the lookup was refused with, once."""
        refusal = self._refused.pop(of, None)
        if refusal is not None:
            raise refusal
        node_id = self._nodes.get(of)
        if node_id is None and of not in self._asking:
            self._look_up(of, now)
        return node_id

    def known(self, of: CoordinatorOf) -> int | None:
        return self._nodes.get(of)

    def learn(self, of: CoordinatorOf, node_id: int) -> None:
        """Somebody who must know has said it, such as the broker that lists a group."""
        self._nodes[of] = node_id

    def forget(self, of: CoordinatorOf) -> None:
        self._nodes.pop(of, None)

    def _look_up(self, of: CoordinatorOf, now: float) -> None:
        self._asking.add(of)

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._asking.discard(of)
            code = None if response is None else _lookup_error(response)
            if code is not None:
                error = KafkaError(code, f"{of}: {_message(response) or code.name}")
            if error is None:
                self._nodes[of] = _node_id(response)
            elif not error.code.retriable:
                self._refused[of] = error

        self._ask(FindCoordinatorRequest(key=of.key, key_type=of.kind), _lookup_error, answered, now)


def find_coordinator_for_version(request: FindCoordinatorRequest, version: int) -> FindCoordinatorRequest:
    """The one key moved to where the version wants it."""
    if version < FIND_MANY_KEYS:
        return request
    return FindCoordinatorRequest(key_type=request.key_type, coordinator_keys=[request.key])


def _lookup_error(response: Any) -> ErrorCode | None:
    found = response.coordinators[0] if response.coordinators else response
    return error_of(found.error_code)


def _message(response: Any) -> str | None:
    found = response.coordinators[0] if response.coordinators else response
    message: str | None = found.error_message
    return message


def _node_id(response: Any) -> int:
    return int(response.coordinators[0].node_id if response.coordinators else response.node_id)


# -- calls ------------------------------------------------------------------------------------------------


class To(Enum):
    """Whom a call is for, when it is no particular node."""

    ANY = "any broker"
    CONTROLLER = "the controller"


Target = To | int | TopicPartition | CoordinatorOf
# The error in a response that decides about another try, or None; most responses have it at the top.
ErrorOf = Callable[[Any], ErrorCode | None]

# After these the picture of the cluster is out of date.
STALE_METADATA = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NETWORK_EXCEPTION,
    }
)


def top_level_error(response: Any) -> ErrorCode | None:
    return error_of(getattr(response, "error_code", 0))


@dataclass(slots=True)
class Call:
    """One request to whoever should answer it, tried again until its time is up.

    It knows whom it is for (any broker, the controller, one node, a partition's leader, a coordinator), which errors in
    the response are worth another try, and who gets the outcome (`on_done`). Routing is the network core's business.
    """

    request: Any
    target: Target
    deadline_ms: float
    on_done: OnDone
    error_of: ErrorOf = top_level_error
    at_most: int | None = None  # a cap on the version, when what is asked cannot be said in a later one
    # Whether a lost connection, after which nobody knows if the request was carried out, allows another try.
    retry_lost: bool = True
    attempts: int = 0
    not_before_ms: float = float("-inf")
    last_error: str | None = None
    sent: bool = False
    # The picture of the cluster that was found wanting: the next try waits for a newer one.
    needs_metadata_after: int = -1
    # Called with the request and the version when it is sent: for what is said otherwise in other versions.
    adapt: Callable[[Any, int], Any] | None = None
    # For a request that waits for others at the broker: its own connection, its own time.
    channel: int = MAIN
    request_timeout_ms: float | None = None
    retry_backoff_ms: float | None = None  # instead of the client's
    # Nobody wants the answer any more: it is not sent again, and whoever asked hears nothing.
    cancelled: bool = False

    def finish(self, response: Any, error: KafkaError | None, now: float) -> None:
        if not self.cancelled:
            self.on_done(response, error, now)

    def timed_out(self, now: float, failures: str) -> None:
        why = self.last_error or failures
        detail = f" ({why})" if why else ""
        self.finish(None, TimedOut(f"{self.request.NAME}: no answer in time{detail}"), now)

    def may_retry(self, error: KafkaError, now: float) -> bool:
        if isinstance(error, ConnectionLost) and not self.retry_lost and self.sent:
            return False
        return error.code.retriable and now < self.deadline_ms


R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Ask(Generic[R]):
    """One question, whoever sends it: what is asked of whom, in which versions, and how the answer is read."""

    request: Any
    target: Target
    read: Callable[[Any], R]  # raises the KafkaError of an answer that is a refusal
    error_of: ErrorOf = top_level_error
    at_most: int | None = None
    adapt: Callable[[Any, int], Any] | None = None
    retry_backoff_ms: float | None = None

    def call(self, deadline_ms: float, on_done: OnDone) -> Call:
        """The call that asks it; `on_done` gets the response as it is."""
        return Call(
            self.request,
            self.target,
            deadline_ms,
            on_done,
            self.error_of,
            self.at_most,
            adapt=self.adapt,
            retry_backoff_ms=self.retry_backoff_ms,
        )


# Below this version an empty list of topics means all of them, and none cannot be asked for.
_METADATA_WITH_NULL_TOPICS = 1
# Routing a call may bring about others (the lookup of its coordinator): they go out in the same turn.
_ROUTING_ROUNDS = 4


class RequestManager(Protocol):
    """Sends requests of its own (a Sender, a consumer, a lookup): it gets a turn in each poll."""

    def step(self, now: float) -> None: ...

    def next_deadline(self, now: float) -> float: ...


class NetworkCore:
    """One client's metadata, calls and request managers, on a NetworkClient."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        seed: int | None = None,
        software_version: str = "0",
        authenticator: Callable[[str], Authenticator] | None = None,
    ) -> None:
        self.config = config
        self.random = Random(seed)
        self.metadata = ClusterMetadata(config)
        self.coordinators = Coordinators(self._ask_coordinator)
        self.request_managers: list[RequestManager] = []
        self.closed = False
        client = self._client = NetworkClient(
            _network_settings(config),
            config.addresses,
            self.random,
            on_stale=self.metadata.invalidate,
            software_version=software_version,
            authenticator=authenticator,
            on_refused=self._refused,
        )
        # Hears of it when brokers that were known do not let us in any more.
        self.on_refused: Callable[[KafkaError], None] | None = None
        self._peers = client.peers
        # Straight to the connections, without a call in between: what the driver reports, and what is sent.
        self.on_connected = client.on_connected
        self.on_data = client.on_data
        self.buffer = client.buffer
        self.on_filled = client.on_filled
        self.on_disconnected = client.on_disconnected
        self.on_worked = client.on_worked
        self.ready = client.ready
        self.version_for = client.version_for
        self.send = client.send
        self.feature_level = client.feature_level
        self._retry_backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms, self.random)
        self._calls: list[Call] = []
        self._metadata_in_flight = False
        self._metadata_attempts = 0
        self._metadata_not_before = float("-inf")

    # -- what is asked of it --------------------------------------------------------------------------

    def call(self, call: Call, now: float) -> None:
        """A request with routing and retries; the outcome goes to its on_done."""
        if self.closed:
            call.finish(None, Closed(), now)
            return
        self._calls.append(call)

    def remove_request_manager(self, manager: RequestManager) -> None:
        # A new list: this poll may be going over the old one.
        self.request_managers = [other for other in self.request_managers if other is not manager]

    def retry_delay_ms(self, attempts: int) -> float:
        return self._retry_backoff.delay_ms(attempts)

    def describe_failures(self) -> str:
        """Why nobody can be reached, as far as is known."""
        return self._peers.describe_failures()

    def _refused(self, node: Node, refusal: KafkaError) -> None:
        if self.on_refused is not None and self.metadata.version:  # else it is an error of the first contact
            self.on_refused(_not_let_in(node, refusal))

    def bootstrap_error(self) -> KafkaError | None:
        """Set once nothing was learnt at any bootstrap address, or one of them does not let us in."""
        if self.metadata.version:
            return None
        if (refused := self._peers.bootstrap_refusal()) is not None:
            return _not_let_in(*refused)
        if not self._peers.all_bootstrap_failed():
            return None
        if self._peers.no_bootstrap_is_broker():
            return NotABroker(self.describe_failures())
        return NoBrokersAvailable(f"no broker can be reached: {self.describe_failures()}")

    def close(self, now: float) -> list[Action]:
        """Give everything up; what waits fails."""
        self.closed = True
        calls, self._calls = self._calls, []
        for call in calls:
            call.finish(None, Closed(), now)
        self._client.close(now)
        return self._client.take_actions()

    # -- the turn -------------------------------------------------------------------------------------

    def poll(self, now: float) -> list[Action]:
        """Do all that can be done now, and say what the driver has to do."""
        if not self.closed:
            self._client.expire(now)
            self._refresh_metadata(now)
            for manager in self.request_managers:
                manager.step(now)
            self._route_calls(now)
            self._refresh_metadata(now)
            self._client.flush()
        return self._client.take_actions()

    def next_deadline(self, now: float) -> float:
        """When poll has something to do though nothing happened (inf: never)."""
        due = self._client.deadlines()
        due += [call.deadline_ms for call in self._calls]
        due += [call.not_before_ms for call in self._calls]
        due += [manager.next_deadline(now) for manager in self.request_managers]
        if not self._metadata_in_flight:
            due.append(self._metadata_due_ms())
        # What is due already could not be done in this poll: it waits for an event, not for the time.
        return min((moment for moment in due if moment > now), default=float("inf"))

    # -- metadata -------------------------------------------------------------------------------------

    def _refresh_metadata(self, now: float) -> None:
        if self._metadata_in_flight or self._metadata_due_ms() > now:
            return
        peer = self._peers.least_loaded(now, self.config.max_in_flight_requests_per_connection)
        if peer is None:
            return
        if not peer.is_ready:
            self._client.connect(peer, now)
            return
        if self.metadata.is_still_doubted and (another := self._peers.another(now)):
            # All that are connected may be cut off from the cluster, and believe in the old leaders together.
            self._client.connect(another, now)
        self._ask_metadata(peer, now)

    def _metadata_due_ms(self) -> float:
        due = self.metadata.due_ms()
        return due if self.metadata.urgent else max(due, self._metadata_not_before)

    def _ask_metadata(self, peer: Peer, now: float) -> None:
        request = self.metadata.next_request(now)
        version = self.version_for(peer.node.node_id, MetadataRequest)
        if version < _METADATA_WITH_NULL_TOPICS and request.topics is None:
            request.topics = []
        self._metadata_in_flight = True

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._metadata_in_flight = False
            if response is not None and response.error_code:
                error = KafkaError(error_of(response.error_code) or ErrorCode.UNKNOWN_SERVER_ERROR)
                if error.code is ErrorCode.REBOOTSTRAP_REQUIRED:
                    self._peers.adopt({})  # KIP-1102: only the bootstrap addresses are to be trusted
            if error is None:
                self.metadata.update(response, request, now)
                self._peers.adopt(self.metadata.nodes)
            settled = error is None and self.metadata.due_ms() > now
            self._metadata_attempts = 0 if settled else self._metadata_attempts + 1
            self._metadata_not_before = now + self.retry_delay_ms(self._metadata_attempts or 1)

        self.send(peer.node.node_id, request, version, answered, now, self.config.request_timeout_ms)

    # -- calls ----------------------------------------------------------------------------------------

    def _route_calls(self, now: float) -> None:
        waiting: list[Call] = []
        for _ in range(_ROUTING_ROUNDS):
            calls, self._calls = self._calls, []
            for call in calls:
                if call.cancelled:
                    continue
                if call.deadline_ms <= now:
                    call.timed_out(now, self.describe_failures())
                elif call.not_before_ms > now or not self._try(call, now):
                    waiting.append(call)
            if not self._calls:
                break
        self._calls = waiting + self._calls

    def _try(self, call: Call, now: float) -> bool:
        """Send the call if its addressee can be reached now; True if it need not wait here any more."""
        try:
            peer = self._peer_for(call, now)
        except KafkaError as refusal:
            call.finish(None, refusal, now)
            return True
        if peer is None:
            return False
        if not peer.can_send(now, self.config.max_in_flight_requests_per_connection):
            if peer.can_connect(now):
                self._client.connect(peer, now)
            return False
        try:
            version = self.version_for(peer.node.node_id, type(call.request), call.at_most, call.channel)
            request = call.request if call.adapt is None else call.adapt(call.request, version)
        except UnsupportedVersion as error:
            call.finish(None, error, now)
            return True
        call.attempts += 1
        call.sent = True
        allowed_ms = call.request_timeout_ms or self.config.request_timeout_ms
        timeout_ms = min(allowed_ms, call.deadline_ms - now)

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._answered(call, response, error, now)

        try:
            self.send(peer.node.node_id, request, version, answered, now, timeout_ms, call.channel)
        except WireError as error:
            call.finish(None, error, now)  # a number or a name that no message can carry: not later either
        return True

    def _peer_for(self, call: Call, now: float) -> Peer | None:
        target = call.target
        if target is To.ANY:
            return self._peers.least_loaded(now, self.config.max_in_flight_requests_per_connection)
        if call.needs_metadata_after >= self.metadata.version:
            self.metadata.invalidate()
            return None
        if target is To.CONTROLLER:
            node_id = self.metadata.controller_id
        elif isinstance(target, TopicPartition):
            self.metadata.want(target.topic, now)
            info = self.metadata.partition(target)
            node_id = -1 if info is None else info.leader
        elif isinstance(target, CoordinatorOf):
            found = self.coordinators.node(target, now)
            if found is None:
                return None
            node_id = found
        else:
            assert isinstance(target, int)
            node_id = target
        peer = self._peers.get(node_id, call.channel) if node_id >= 0 else None
        if peer is None:
            self._unroutable(call, now)
        return peer

    def _ask_coordinator(
        self, request: FindCoordinatorRequest, error_of: ErrorOf, on_done: OnDone, now: float
    ) -> None:
        deadline = now + self.config.default_api_timeout_ms
        adapt = find_coordinator_for_version
        self.call(Call(request, To.ANY, deadline, on_done, error_of=error_of, adapt=adapt), now)

    def _unroutable(self, call: Call, now: float) -> None:
        """Nobody is known under the call's address: a newer picture is waited for."""
        call.needs_metadata_after = self.metadata.version
        if isinstance(call.target, int):
            call.last_error = f"node {call.target} is not in the cluster"
        elif isinstance(call.target, CoordinatorOf):
            self.coordinators.forget(call.target)
            call.last_error = f"{call.target} is not in the cluster"
        else:
            call.last_error = f"{call.target} is not known"
        self.metadata.invalidate()

    def _answered(self, call: Call, response: Any, error: KafkaError | None, now: float) -> None:
        if error is None:
            try:
                code = call.error_of(response)
            except LookupError:
                words = f"the answer to {call.request.NAME} does not say what was asked"
                call.finish(None, ProtocolError(words), now)
                return
            if code is None or not code.retriable:
                call.finish(response, None, now)
                return
            error = KafkaError(code)
        if isinstance(call.target, CoordinatorOf) and error.code in MOVED_COORDINATOR:
            self.coordinators.forget(call.target)
        if call.cancelled:
            return
        if self.closed or not call.may_retry(error, now):
            call.finish(response, None if response is not None else error, now)
            return
        if error.code in STALE_METADATA:
            call.needs_metadata_after = self.metadata.version
            self.metadata.invalidate()
        call.last_error = error.message or error.code.name
        delay_ms = call.retry_backoff_ms
        call.not_before_ms = now + (self.retry_delay_ms(call.attempts) if delay_ms is None else delay_ms)
        self._calls.append(call)


def _network_settings(config: ClientConfig) -> NetworkSettings:
    return NetworkSettings(
        client_id=config.client_id,
        request_timeout_ms=config.request_timeout_ms,
        connection_setup_timeout_ms=config.socket_connection_setup_timeout_ms,
        max_idle_ms=config.connections_max_idle_ms,
        max_in_flight=config.max_in_flight_requests_per_connection,
        max_response_bytes=config.max_response_bytes,
        reconnect_backoff_ms=config.reconnect_backoff_ms,
        reconnect_backoff_max_ms=config.reconnect_backoff_max_ms,
    )


def _not_let_in(node: Node, refusal: KafkaError) -> AuthenticationFailed:
    return AuthenticationFailed(refusal.code, f"{node.address}: {refusal.message}")


def timed_out_waiting(what: str, core: NetworkCore) -> KafkaError:
    """The error for a wait that was not for one request: the reason is why nobody can be reached, if that is known."""
    failures = core.describe_failures()
    return TimedOut(f"{what} in time" + (f" ({failures})" if failures else ""))
