"""Kafka's NetworkClient, without I/O: connections to nodes, requests to those that are ready, and their features.

It knows nodes, not topics: whom to ask is its owner's business, which hears by `on_stale` that its picture of the nodes
may be out of date (a node is not known, or a connection has failed). The driver reports what happened (`on_connected`,
`on_data`, `on_worked`, `on_disconnected`); the owner calls `expire`, sends, and at the end of its turn takes what the
driver has to do (`take_actions`). No socket, clock or await inside. Owned by a network core.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from ottla.model.errors import ErrorCode, KafkaError
from ottla.net.connection import Authenticator, Connection, OnDone, State, lost
from ottla.net.errors import Closed, WrongAddress
from ottla.net.peers import MAIN, Backoff, Node, Peer, Peers
from ottla.net.transport import Action, Connect, Disconnect, Work, Write
from ottla.wire.messages.metadata import MetadataRequest

# What a node says to whom it does not let in; so will the next one.
NOT_LET_IN = frozenset({ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.UNSUPPORTED_SASL_MECHANISM})


class NetworkSettings(NamedTuple):
    """How connections are made and kept."""

    client_id: str
    request_timeout_ms: int
    connection_setup_timeout_ms: float
    max_idle_ms: float
    max_in_flight: int
    max_response_bytes: int
    reconnect_backoff_ms: float
    reconnect_backoff_max_ms: float
    required: Any = MetadataRequest  # the request that a node must serve to be of use
    # An attempt that comes after failures has more time, up to this (KIP-601).
    connection_setup_timeout_max_ms: float = 0


class NetworkClient:
    """Connections to nodes, one for each and for each of its channels."""

    def __init__(
        self,
        settings: NetworkSettings,
        bootstrap: Sequence[tuple[str, int]],
        random: Random,
        *,
        on_stale: Callable[[], None],
        software_version: str,
        authenticator: Callable[[str], Authenticator] | None = None,
        on_refused: Callable[[Node, KafkaError], None] = lambda node, error: None,
    ) -> None:
        """`authenticator` makes that of a connection to a host; `on_refused` hears of who does not let us in."""
        self._settings = settings
        self._on_stale = on_stale
        self._on_refused = on_refused
        backoff = Backoff(settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms, random)
        self.peers = Peers(bootstrap, backoff, random)
        setup_ms = settings.connection_setup_timeout_ms
        self._setup_time = Backoff(setup_ms, settings.connection_setup_timeout_max_ms, random)
        self._software_version = software_version
        self._authenticator = authenticator
        self._features: dict[str, int] = {}
        self._features_epoch = -1
        self._actions: list[Action] = []

    # -- what the driver reports ----------------------------------------------------------------------

    def on_connected(self, link: int, now: float) -> bool:
        """A connection stands; False if it is not wanted any more."""
        peer = self.peers.by_link(link)
        if peer is None or peer.connection is None:
            return False
        peer.connection.connected(now)
        return True

    def on_data(self, link: int, data: bytes, now: float) -> None:
        self._received(link, lambda connection: connection.receive(data, now), now)

    def buffer(self, link: int) -> memoryview | None:
        """Where a driver may put the next bytes of a link by itself; None of a connection given up meanwhile."""
        peer = self.peers.by_link(link)
        return None if peer is None or peer.connection is None else peer.connection.buffer()

    def on_filled(self, link: int, count: int, now: float) -> bool:
        """It has put so many bytes there. Is a turn due?"""
        self._received(link, lambda connection: connection.filled(count, now), now)
        return True

    def _received(self, link: int, take: Callable[[Connection], None], now: float) -> None:
        peer = self.peers.by_link(link)
        if peer is None or peer.connection is None:
            return  # of a connection given up meanwhile
        was_ready = peer.is_ready
        try:
            take(peer.connection)
        except KafkaError as error:
            # Looked up again: an answer may have handed the connection from a bootstrap peer to a broker.
            peer = self.peers.by_link(link)
            if peer is not None:
                is_no_broker = isinstance(error, WrongAddress)
                refusal = error if error.code in NOT_LET_IN else None
                self._drop(
                    peer, error.message or error.code.name, now, is_no_broker=is_no_broker, refusal=refusal
                )
            return
        if not was_ready:
            self._after_step(peer)

    def _after_step(self, peer: Peer) -> None:
        """A connection that was not ready has heard something: it may be now, or have something to work out."""
        if peer.is_ready:
            self.peers.settled(peer)
            self._note_features(peer)
        elif peer.connection is not None and peer.connection.slow_step is not None:
            self._actions.append(Work(peer.link, peer.connection.slow_step))
            peer.connection.slow_step = None

    def on_worked(self, link: int, result: Any, error: Exception | None, now: float) -> None:
        """What a connection wanted worked out is there, or cannot be had."""
        peer = self.peers.by_link(link)
        if peer is None or peer.connection is None:
            return  # given up meanwhile
        try:
            if error is not None:
                raise error
            peer.connection.worked(result, now)
        except (KafkaError, OSError) as failure:
            reason = failure.message or failure.code.name if isinstance(failure, KafkaError) else str(failure)
            self._drop(peer, reason, now)
            return
        self._after_step(peer)

    def on_disconnected(self, link: int, reason: str, now: float) -> None:
        """The connection broke, or could not be made."""
        peer = self.peers.by_link(link)
        if peer is None:
            return
        if peer.connection is not None and peer.connection.state is State.NEGOTIATING:
            reason += " before its first answer (a listener with TLS or SASL, or no Kafka?)"
        self._fail(peer, reason, now)

    # -- requests -------------------------------------------------------------------------------------

    def ready(self, node_id: int, now: float, channel: int = MAIN) -> bool:
        """Can a request go to this node now? If it is not connected, a connection is begun."""
        peer = self.peers.get(node_id, channel)
        if peer is None:
            self._on_stale()
            return False
        if peer.can_send(now, self._settings.max_in_flight):
            return True
        if peer.can_connect(now):
            self.connect(peer, now)
        return False

    def version_for(
        self, node_id: int, request_type: Any, at_most: int | None = None, channel: int = MAIN
    ) -> int:
        """The version this node and we share; only for a node that is ready."""
        return self._connection(node_id, channel).ranges.version_for(request_type, at_most)

    def send(
        self,
        node_id: int,
        request: Any,
        version: int,
        on_done: OnDone | None,
        now: float,
        timeout_ms: float,
        channel: int = MAIN,
    ) -> None:
        """One request to a node that is ready: no retries, the outcome is the caller's."""
        self._connection(node_id, channel).send(request, version, on_done, now, timeout_ms)

    def _connection(self, node_id: int, channel: int) -> Connection:
        peer = self.peers.get(node_id, channel)
        assert peer is not None
        assert peer.connection is not None
        return peer.connection

    def feature_level(self, name: str) -> int:
        """The level of a feature that is in force in the cluster, as the newest answer to ApiVersions has it."""
        return self._features.get(name, 0)

    def _note_features(self, peer: Peer) -> None:
        assert peer.connection is not None
        ranges = peer.connection.ranges
        if ranges.features_epoch >= self._features_epoch:
            self._features, self._features_epoch = ranges.features, ranges.features_epoch

    # -- the turn -------------------------------------------------------------------------------------

    def take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def flush(self) -> None:
        for peer in self.peers:
            if peer.connection is not None and (chunks := peer.connection.take_output()):
                self._actions.append(Write(peer.link, chunks))

    # -- connections ----------------------------------------------------------------------------------

    def connect(self, peer: Peer, now: float) -> None:
        connection = Connection(
            self._settings.client_id,
            max_response_bytes=self._settings.max_response_bytes,
            request_timeout_ms=self._settings.request_timeout_ms,
            software_version=self._software_version,
            authenticator=self._authenticator(peer.node.host) if self._authenticator else None,
            required=self._settings.required,
        )
        setup_ms = self._settings.connection_setup_timeout_ms
        if peer.failures and self._settings.connection_setup_timeout_max_ms > setup_ms:
            setup_ms = self._setup_time.delay_ms(peer.failures + 1)
        link = self.peers.linked(peer, connection, now, setup_ms)
        self._actions.append(Connect(link, peer.node.host, peer.node.port))

    def _drop(
        self,
        peer: Peer,
        reason: str,
        now: float,
        *,
        is_no_broker: bool = False,
        refusal: KafkaError | None = None,
    ) -> None:
        """Hang up on a peer that misbehaves, or does not let us in."""
        self._actions.append(Disconnect(peer.link))
        self._fail(peer, reason, now, is_no_broker=is_no_broker, refusal=refusal)

    def _fail(
        self,
        peer: Peer,
        reason: str,
        now: float,
        *,
        is_no_broker: bool = False,
        refusal: KafkaError | None = None,
    ) -> None:
        # Which broker leads what may have changed with the broker's going.
        self._on_stale()
        connection = peer.connection
        self.peers.unlinked(peer, reason, now, is_no_broker=is_no_broker, refusal=refusal)
        if connection is not None:
            connection.close(lost(peer.node.address, reason), now)
        if refusal is not None:
            self._on_refused(peer.node, refusal)

    def _close(self, peer: Peer, error: KafkaError, reason: str | None, now: float) -> None:
        """Hang up in peace."""
        connection = peer.connection
        if connection is None:
            return
        self._actions.append(Disconnect(peer.link))
        self.peers.unlinked(peer, reason, now)
        connection.close(error, now)

    def expire(self, now: float) -> None:
        idle = now - self._settings.max_idle_ms
        for peer in list(self.peers):
            connection = peer.connection
            if connection is None:
                continue
            if peer.setup_deadline_ms <= now:
                self._drop(peer, "the connection could not be set up in time", now)
            elif connection.deadline_ms() <= now:
                # Answers come in order: behind one that does not come, none will.
                self._drop(peer, f"no answer within {self._settings.request_timeout_ms} ms", now)
            elif connection.last_used_ms < idle and not connection.in_flight and peer.is_ready:
                self._close(peer, Closed(), None, now)
            elif connection.reauthenticate_at_ms <= now and peer.is_ready:
                connection.reauthenticate(now)
        for peer in self.peers.idle_bootstrap():
            self._close(peer, Closed(), None, now)
        for peer in self.peers.take_retired():
            self._close(peer, lost(peer.node.address, "the broker left the cluster or moved"), None, now)

    def close(self, now: float) -> None:
        """Hang up on everybody."""
        for peer in [*self.peers, *self.peers.take_retired()]:
            self._close(peer, Closed(), None, now)

    def deadlines(self) -> list[float]:
        """When something is due for a connection."""
        due = [peer.deadline_ms() for peer in self.peers]
        due += [peer.connection.throttled_until_ms for peer in self.peers if peer.connection is not None]
        return due
