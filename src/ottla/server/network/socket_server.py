"""SocketServer: the node's listening sockets, limits on connections, and the closing of idle and slow ones.

Every listener has an Acceptor, bound first and served when the node is ready. Connections counts what is open, and an
AcceptQueue how fast they come (KIP-612), as Kafka's ConnectionQuotas does.

Owner: the node; everything runs on the broker's loop.
"""

import asyncio
import errno
import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_address
from time import monotonic
from typing import TYPE_CHECKING, Any

from ottla.config.broker import BrokerConfig
from ottla.config.effective import check_protection
from ottla.config.errors import ConfigError
from ottla.config.listeners import Listener as ListenerConfig
from ottla.config.settings import LISTENER_PREFIX
from ottla.config.types import SECURITY_PROTOCOLS
from ottla.metadata.registrations import Endpoint
from ottla.model.clock import Clock
from ottla.model.errors import KafkaError
from ottla.model.tasks import guarded, spawn, spawn_restarting
from ottla.security.channels import WITH_SASL, WITH_TLS
from ottla.security.principal import BUILDER_CLASS, is_address, load_principal_builder
from ottla.security.quotas import ConnectionRates
from ottla.server.network.authentication import SaslListener, SaslServerAuthenticator
from ottla.server.network.connection import (
    SHARED_BUFFER_BYTES,
    Connection,
    Dispatch,
    Listener,
    Principals,
    RunningHandler,
    Turns,
    describe_handler,
)
from ottla.server.network.frame_pool import GIANT_BUDGET_BYTES, ORDINARY_BUDGET_BYTES, FramePool
from ottla.server.network.output import Answer
from ottla.server.network.tls import Handshakes, TlsBuffers, TlsConnection, TlsLayer
from ottla.storage.files import open_files

if TYPE_CHECKING:
    from ottla.security.audit import AuditLog
    from ottla.security.sasl.scram import ScramUsers
    from ottla.server.network.channel_builders import ListenerSasl, ListenerTls

log = logging.getLogger("ottla.server")
# What concerns whoever configured the node.
node_log = logging.getLogger("ottla.node")

BACKLOG = 1024
REAP_INTERVAL_S = 1.0
# How often it is looked for frames that come too slowly while others wait for their memory (see FramePool).
RATE_INTERVAL_S = 0.1
# A frame that was begun has to go on, whoever waits: one that brings nothing for this long is given up.
FRAME_STALL_S = 30.0
# Connections of a listener that wait to be let in, and those that wait to be closed: whoever else comes is closed.
MAX_WAITING = 1_000
MAX_CLOSED_LATER = 1_000
# What handlers that run when the node stops have to come to their end.
FINISH_S = 5.0

ANY_HOST = ("", "0.0.0.0", "::")
LOOPBACK = "127.0.0.1"


@dataclass(slots=True)
class ConnectionLimits:
    """How many connections are let in: in all, by one listener, from one address.

    Brokers come in by the protected listener even if clients have filled the broker (KIP-402).
    """

    max_connections: int = 2**31 - 1
    per_listener: dict[str, int] = field(default_factory=dict)
    protected_listener: str | None = None
    max_per_ip: int = 2**31 - 1
    per_ip_overrides: dict[str, int] = field(default_factory=dict)
    max_idle_ms: int = 600_000
    # So many for want of descriptors (ulimit -n), of which the logs need some too.
    max_for_files: Callable[[], int] = lambda: 2**31 - 1

    def for_listener(self, name: str) -> int:
        return self.per_listener.get(name, self.max_connections)

    def for_ip(self, address: str) -> int:
        return self.per_ip_overrides.get(address, self.max_per_ip)


class Connections:
    """All connections of a node: counted (Kafka's ConnectionQuotas), and closed when they are silent for too long."""

    def __init__(self, limits: ConnectionLimits, pool: FramePool, monotonic: Callable[[], float]) -> None:
        self.limits = limits
        self.pool = pool
        self._monotonic = monotonic
        self._open: set[Connection] = set()
        self._per_ip: Counter[str] = Counter()
        self._per_listener: Counter[str] = Counter()
        self._per_kind: Counter[Listener] = Counter()
        self._refused = 0
        # How many wait to be closed.
        self._closed_later = 0
        self.handlers: dict[asyncio.Task[None], RunningHandler] = {}
        self._reaper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._open)

    def admit(self, connection: Connection) -> bool:
        address = connection.peer[0]
        listener, kind, limits = connection.host.listener_name, connection.host.kind, self.limits
        protected = listener == limits.protected_listener
        if not protected and self._per_kind[kind] >= limits.max_connections:
            return self.refuse(connection, f"max.connections is {limits.max_connections}")
        if self._per_listener[listener] >= limits.for_listener(listener):
            return self.refuse(
                connection, f"max.connections is {limits.for_listener(listener)} for listener {listener}"
            )
        if self._per_ip[address] >= self.limits.for_ip(address):
            return self.refuse(connection, f"max.connections.per.ip is {self.limits.for_ip(address)}")
        if len(self._open) >= (most := limits.max_for_files()):
            why = f"too few files may be open (ulimit -n): {most} connections with these"
            return self.refuse(connection, why)
        open_files.room_for_connection(connection.descriptor)
        self._open.add(connection)
        self._per_ip[address] += 1
        self._per_listener[listener] += 1
        self._per_kind[kind] += 1
        if self._per_kind[kind] > limits.max_connections:
            self._make_room(kind)
        return True

    def _make_room(self, kind: Listener) -> None:
        """A broker came in where clients have taken all places: the client that was silent longest goes."""
        clients = [
            each
            for each in self._open
            if each.host.kind is kind and each.host.listener_name != self.limits.protected_listener
        ]
        if clients:
            silent = min(clients, key=lambda each: each.last_active)
            silent.close(f"a broker needs its place: max.connections is {self.limits.max_connections}")

    def close_later(self, connection: Connection, after_ms: int) -> bool:
        """It came too often from its address: it is not served, and closed; False if that has to be at once."""
        self.refuse(connection, "too many come from there in a second (connection_creation_rate)")
        if self._closed_later >= MAX_CLOSED_LATER:
            return False
        self._closed_later += 1
        connection.mute()
        close = guarded(self._close_now, name="closing", owner=connection.name)
        connection.host.loop.call_later(after_ms / 1000, close, connection)
        return True

    def _close_now(self, connection: Connection) -> None:
        self._closed_later -= 1
        connection.close()

    def refuse(self, connection: Connection, why: str) -> bool:
        # One line for the first of a flood and then for every thousandth.
        if self._refused % 1000 == 0:
            log.warning(
                "refusing connection from %s (refused before: %d): %s", connection.peer[0], self._refused, why
            )
        self._refused += 1
        return False

    def forget(self, connection: Connection) -> None:
        if connection in self._open:
            self._open.discard(connection)
            self._per_ip[connection.peer[0]] -= 1
            if not self._per_ip[connection.peer[0]]:
                del self._per_ip[connection.peer[0]]
            self._per_listener[connection.host.listener_name] -= 1
            self._per_kind[connection.host.kind] -= 1

    def start_reaping(self) -> None:
        if self._reaper is None:
            self._reaper = spawn_restarting(self._reap_forever, name="reaping", owner="connections")

    async def _reap_forever(self) -> None:
        reap_at = self._monotonic() + REAP_INTERVAL_S
        while True:
            await asyncio.sleep(RATE_INTERVAL_S)
            now = self._monotonic()
            self.pool.give_up_slow(now)
            if now >= reap_at:
                reap_at = now + REAP_INTERVAL_S
                self.reap(now)

    def reap(self, now: float) -> None:
        """Close what has been silent for too long, in the middle of a frame or between two."""
        idle_limit_s = self.limits.max_idle_ms / 1000
        for connection in list(self._open):
            silent_s = now - connection.last_active
            if now > connection.must_be_ready_by:
                connection.close("it took too long to say who it is")
            elif connection.mid_frame and silent_s > FRAME_STALL_S:
                connection.close(f"no progress within a frame for {silent_s:.0f} s")
            elif connection.is_idle and silent_s > idle_limit_s:
                connection.close(f"idle for {silent_s:.0f} s (connections.max.idle.ms)")

    def close_all(self, kind: Listener | None = None) -> None:
        if self._reaper is not None and kind is None:
            self._reaper.cancel()
        for connection in list(self._open):
            if kind is None or connection.host.kind is kind:
                connection.close()

    async def finish(self, kind: Listener | None = None) -> None:
        """After `close_all`: what handlers were doing is done, or left when it takes too long."""
        running = [
            task
            for task, (connection, _) in self.handlers.items()
            if kind is None or connection.host.kind is kind
        ]
        if not running:
            return
        _, late = await asyncio.wait(running, timeout=FINISH_S)
        for task in late:
            connection, coroutine = self.handlers[task]
            what = describe_handler(coroutine)
            log.warning("%s: %s is left undone: the node stops", connection.name, what)
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=FINISH_S)


class AcceptQueue:
    """Lets connections of a listener in no faster than its rates allow (KIP-612).

    Kafka's acceptor sleeps before it accepts one that came too early, and who comes meanwhile waits in the system's
    queue. Here they wait in this one, connected and unread. Who comes too often from one address is not let in at all,
    and closed after a while, so that it does not come again at once.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: str,
        connections: Connections,
        rates: ConnectionRates,
        monotonic: Callable[[], float],
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._connections = connections
        self._rates = rates
        self._monotonic = monotonic
        self._waiting: deque[Connection] = deque()
        # Until it goes off nobody is let in.
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, connection: Connection) -> bool:
        """Let it in, now or later; False if it has to be closed."""
        if self._timer is None:
            return self._let_in(connection)
        if len(self._waiting) >= MAX_WAITING:
            # Who left meanwhile keeps nobody out.
            self._waiting = deque(each for each in self._waiting if each.is_open)
        if len(self._waiting) >= MAX_WAITING:
            why = (
                f"{MAX_WAITING} wait already to be let in to {self._listener} (max.connection.creation.rate)"
            )
            return self._connections.refuse(connection, why)
        connection.mute()
        self._waiting.append(connection)
        return True

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.clear()

    def _let_in(self, connection: Connection) -> bool:
        now_ms = self._monotonic() * 1000
        wait_ms = self._rates.record_connection(self._listener, now_ms)
        closed_after_ms = self._rates.record_address(self._listener, connection.peer[0], now_ms)
        if wait_ms:
            self._timer = self._loop.call_later(
                wait_ms / 1000,
                guarded(self._next, name="letting connections in", owner=f"listener {self._listener}"),
            )
        if closed_after_ms:
            return self._connections.close_later(connection, closed_after_ms)
        if wait_ms:
            connection.throttle(wait_ms)
        else:
            connection.unmute()
        return True

    def _next(self) -> None:
        self._timer = None
        while self._waiting and self._timer is None:
            connection = self._waiting.popleft()
            if connection.is_open and not self._let_in(connection):
                connection.close()


class Acceptor:
    """One listening socket: Kafka's Acceptor, and what its connections need of their listener."""

    def __init__(
        self,
        listener_name: str,
        kind: Listener,
        dispatch: Dispatch,
        connections: Connections,
        shared: memoryview,
        max_frame_bytes: int,
        monotonic: Callable[[], float],
        *,
        tls: TlsLayer | None = None,
        sasl: SaslListener | None = None,
        audit: "AuditLog | None" = None,
        principals: Principals | None = None,
        rates: ConnectionRates | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.listener_name = listener_name
        self.kind = kind
        self.dispatch = dispatch
        self.pool = connections.pool
        self.handlers = connections.handlers
        self.shared = shared
        self.max_frame_bytes = max_frame_bytes
        self.monotonic = monotonic
        self.turns = Turns(self.loop, monotonic)
        self._queue = AcceptQueue(
            self.loop, listener_name, connections, rates or ConnectionRates(), monotonic
        )
        self._connections = connections
        # Of connections that come in from now on.
        self.tls = tls
        self._sasl = sasl
        self._audit = audit
        self._principals = principals
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._backlog = BACKLOG
        self.address: tuple[str, int] = ("", 0)

    async def bind(
        self,
        host: str,
        port: int,
        *,
        backlog: int = BACKLOG,
        options: Mapping[int, int] | None = None,
    ) -> None:
        """Take the address, for this process alone; nobody can connect before `start`.

        `options` are SOL_SOCKET options of the listening sockets, which accepted ones inherit.
        """
        self._backlog = backlog
        found = await self.loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # A name may have an address twice.
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            try:
                listening = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                if error.errno != errno.EAFNOSUPPORT:
                    raise
                continue  # no IPv6 on this machine, where any address of it was meant
            self._sockets.append(listening)
            listening.setblocking(False)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            for option, value in (options or {}).items():
                listening.setsockopt(socket.SOL_SOCKET, option, value)
            _bind_alone(listening, address)
        if not self._sockets:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        bound = self._sockets[0].getsockname()
        self.address = (str(bound[0]), int(bound[1]))

    async def start(self) -> None:
        """Listen, and serve who connects."""
        while self._sockets:
            listening = self._sockets[0]
            # The next start must not wait for what connections leave behind; they inherit this.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Here and not by the loop: uvloop keeps it to itself if that fails.
            listening.listen(self._backlog)
            server = await self.loop.create_server(self._accept, sock=listening, backlog=self._backlog)
            self._servers.append(server)
            self._sockets.remove(listening)

    def _accept(self) -> Connection:
        connection = Connection(self) if self.tls is None else TlsConnection(self, self.tls)
        connection.audit = self._audit
        if self._sasl is not None:
            SaslServerAuthenticator(connection, self._sasl, self._principals)
        return connection

    def stop(self) -> None:
        self._queue.stop()
        for server in self._servers:
            server.close()
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()

    def opened(self, connection: Connection) -> bool:
        if not self._connections.admit(connection):
            return False
        if self._principals is not None and self.tls is None and self._sasl is None:
            try:
                connection.principal = self._principals.build(connection, connection.principal)
            except KafkaError as error:
                log.warning("%s: %s", connection.name, error)
                self._connections.forget(connection)
                return False
        return self._queue.enter(connection)

    def closed(self, connection: Connection) -> None:
        self._connections.forget(connection)


def _bind_alone(listening: socket.socket, address: Any) -> None:
    """Bind so that nobody else can, although this does not listen yet.

    With SO_REUSEADDR two sockets may have one port as long as neither listens. Without it what connections of the
    process before have left (TIME_WAIT) keeps the port; so it is set for the time of `bind` if that is in the way.
    """
    try:
        listening.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)


def shared_buffer() -> memoryview:
    """The read buffer that all connections of one loop share."""
    return memoryview(bytearray(SHARED_BUFFER_BYTES))


class SocketServer:
    """All listening sockets of a node and the connections they have accepted."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        scram_users: "Callable[[], ScramUsers] | None" = None,
        audit: "AuditLog | None" = None,
        rates: ConnectionRates | None = None,
    ) -> None:
        """`scram_users` is asked for where there is a listener with SASL."""
        self._config = config
        self._clock = clock
        self._scram_users = scram_users
        self.audit = audit
        self._shared = shared_buffer()
        self._tls_buffers: TlsBuffers | None = None
        self._handshakes: Handshakes | None = None
        self.connections = Connections(limits_of(config, {}), pool_of(config), monotonic)
        self._hosts: dict[str, Acceptor] = {}
        self._logins: list[ListenerSasl] = []
        # Of the listeners that have TLS.
        self._identities: dict[str, ListenerTls] = {}
        # The addresses of hosts whose limits are given by their names, as far as they are found.
        self._hosts_found: dict[str, list[str]] = {}
        self._finding_hosts: asyncio.Task[None] | None = None
        self._rates = rates or ConnectionRates()
        self._limit_rates()

    async def bind(self) -> None:
        """Take every address; ConfigError in one line if one cannot be had."""
        check_protection(self._config)
        await self._find_hosts()
        for listener in self._config.listeners:
            self._hosts[listener.name] = await self._bind(listener)

    async def _bind(self, listener: ListenerConfig) -> Acceptor:
        config = self._config
        kind = Listener.CONTROLLER if listener.name in config.controller_listener_names else Listener.BROKER
        principals = self._principals(listener)
        host = Acceptor(
            listener.name,
            kind,
            _not_yet,
            self.connections,
            self._shared,
            config.for_listener(listener.name, "socket.request.max.bytes"),
            monotonic,
            tls=await self._tls(listener, principals) if listener.security_protocol in WITH_TLS else None,
            sasl=await self._sasl(listener) if listener.security_protocol in WITH_SASL else None,
            audit=self.audit,
            principals=principals,
            rates=self._rates,
        )
        bind = partial(
            host.bind, listener.host, backlog=self._backlog(), options=self._options(listener.name)
        )
        try:
            await bind(listener.port)
        except OSError as error:
            implied = kind is Listener.CONTROLLER and config.controller_listener_is_implied
            host.stop()
            if error.errno == errno.EADDRINUSE and implied:
                # Nobody asked for that port: any other will do.
                await bind(0)
            else:
                raise ConfigError(_cannot_listen(listener, error), "listeners") from error
        return host

    def _principals(self, listener: ListenerConfig) -> Principals | None:
        path = self._config.for_listener(listener.name, BUILDER_CLASS)
        builder = load_principal_builder(path, self._config.static)
        return None if builder is None else Principals(builder, listener.name, listener.security_protocol)

    async def _tls(self, listener: ListenerConfig, principals: Principals | None) -> TlsLayer:
        if self._tls_buffers is None or self._handshakes is None:
            self._tls_buffers = TlsBuffers()
            self._handshakes = Handshakes(asyncio.get_running_loop())
        from ottla.server.network.channel_builders import CLIENT_AUTH_KEY, ListenerTls, is_client_auth_ignored

        if is_client_auth_ignored(self._config, listener.name):
            node_log.warning(
                "%s is for listeners with SSL: clients of %s need no certificate, unless %s%s.%s is set",
                *(CLIENT_AUTH_KEY, listener.name, LISTENER_PREFIX, listener.name.lower(), CLIENT_AUTH_KEY),
            )
        # Stores are files, and keys may take long to be had from their passwords.
        identity = await asyncio.to_thread(ListenerTls, self._config, listener.name)
        self._identities[listener.name] = identity
        return TlsLayer(identity, self._handshakes, self._tls_buffers, principals)

    async def _sasl(self, listener: ListenerConfig) -> SaslListener:
        from ottla.server.network.channel_builders import ListenerSasl

        assert self._scram_users is not None, "who may log in"
        # It may have to ask an identity provider for its keys.
        made = await asyncio.to_thread(
            ListenerSasl, self._config, listener.name, self._scram_users(), self._clock
        )
        self._logins.append(made)
        return made

    def _backlog(self) -> int:
        # Kafka's default of 50 is what a burst of clients overruns; only a user's own value counts.
        key = "socket.listen.backlog.size"
        return int(self._config[key]) if key in self._config.originals else BACKLOG

    def _options(self, listener: str) -> dict[int, int]:
        """Socket buffers that the user set; otherwise the system sizes them by itself, and better."""
        keys = {
            "socket.send.buffer.bytes": socket.SO_SNDBUF,
            "socket.receive.buffer.bytes": socket.SO_RCVBUF,
        }
        sizes = {
            option: self._config.for_listener(listener, key)
            for key, option in keys.items()
            if any(name.endswith(key) for name in self._config.originals)
        }
        return {option: size for option, size in sizes.items() if size > 0}

    async def serve(self, kind: Listener, dispatch: Dispatch, names: Iterable[str] | None = None) -> None:
        """Begin to answer on the listeners of a kind, or on those of them with these names: `dispatch` takes frames."""
        wanted = None if names is None else set(names)
        for host in self._of(kind):
            if wanted is not None and host.listener_name not in wanted:
                continue
            host.dispatch = dispatch
            try:
                await host.start()
            except OSError as error:
                listener = next(each for each in self._config.listeners if each.name == host.listener_name)
                raise ConfigError(_cannot_listen(listener, error), "listeners") from error
        self.connections.start_reaping()

    def _of(self, kind: Listener | None) -> list[Acceptor]:
        return [host for host in self._hosts.values() if kind is None or host.kind is kind]

    async def check_stores(self, config: BrokerConfig, named: Collection[str]) -> None:
        """ConfigError if a listener could not go on with the stores of this configuration (KIP-226).

        `named` are the keys of the request: a file that was written again is looked into only if its listener is meant.
        """
        for listener, identity in list(self._identities.items()):
            prefix = f"{LISTENER_PREFIX}{listener.lower()}.ssl."
            if any(name.startswith(prefix) for name in named):
                await asyncio.to_thread(identity.renewed, config)

    async def reconfigure(self, config: BrokerConfig, *, is_serving: bool = True) -> None:
        """The limits may change while the broker runs, and the stores of listeners, for new connections."""
        self._config = config
        # What was not found is looked for once more.
        self._hosts_found = {host: found for host, found in self._hosts_found.items() if found}
        self.connections.limits = limits_of(config, self._hosts_found)
        self._limit_rates()
        if self._hosts_to_find() and self._finding_hosts is None:
            # Whoever waits for the settings does not wait for a resolver.
            self._finding_hosts = spawn(
                self._find_hosts(), name="looking up hosts that have limits", owner="connections"
            )
        for listener, identity in list(self._identities.items()):
            try:
                new = await asyncio.to_thread(identity.renewed, config, is_serving=is_serving)
            except ConfigError as error:
                node_log.error("what was served before is served on: %s", error)
                continue
            if self._config is not config:
                return  # other settings have come while these stores were read: whoever brought them goes on
            if new is None:
                continue
            host = self._hosts[listener]
            assert host.tls is not None
            host.tls = replace(host.tls, identity=new)
            self._identities[listener] = new
            found = new.certificate
            node_log.info(
                "listener %s has new stores: the certificate of %s, until %s",
                listener,
                found.name,
                found.not_after,
            )

    def _hosts_to_find(self) -> list[str]:
        """Those in max.connections.per.ip.overrides that are named and not found yet."""
        hosts = self._config.max_connections_per_ip_overrides
        return [host for host in hosts if not is_address(host) and host not in self._hosts_found]

    async def _find_hosts(self) -> None:
        """One after the other: a resolver may take its time."""
        try:
            while hosts := self._hosts_to_find():
                host = hosts[0]
                self._hosts_found[host] = []
                try:
                    found = await asyncio.get_running_loop().getaddrinfo(host, None)
                    self._hosts_found[host] = list(dict.fromkeys(str(each[4][0]) for each in found))
                except (OSError, ValueError) as error:
                    node_log.warning(
                        "max.connections.per.ip.overrides: the limit of host %s is not applied: %s",
                        ascii(host),
                        error,
                    )
                self.connections.limits = limits_of(self._config, self._hosts_found)
        finally:
            self._finding_hosts = None

    def _limit_rates(self) -> None:
        """The node's rate is also that of each listener that has none of its own, but for the controllers'."""
        config, key = self._config, "max.connection.creation.rate"
        self._rates.set_broker_limit(config[key])
        for listener in config.listeners:
            own = f"{LISTENER_PREFIX}{listener.name.lower()}.{key}" in config.originals
            if own or listener.name not in config.controller_listener_names:
                self._rates.set_listener_limit(listener.name, config.for_listener(listener.name, key))

    def advertised(self, listeners: Iterable[ListenerConfig]) -> list[Endpoint]:
        """The addresses that clients get: the advertised address, with the real port where 0 was asked for."""
        return [self._advertise(listener) for listener in listeners]

    def _advertise(self, listener: ListenerConfig) -> Endpoint:
        bound = self._hosts[listener.name].address
        host = listener.host
        if host == "" or (host in ANY_HOST and self._is_for_other_controllers(listener.name)):
            host = _own_name()
        elif host in ANY_HOST:
            host = LOOPBACK
            if self._hosts[listener.name].kind is Listener.BROKER:
                node_log.warning(
                    "listener %s is advertised to clients as %s, which only this machine reaches: "
                    "set advertised.listeners if others are to use it",
                    listener.name,
                    host,
                )
        protocol = SECURITY_PROTOCOLS.index(listener.security_protocol)
        return Endpoint(listener.name, host, listener.port or bound[1], protocol)

    def _is_for_other_controllers(self, name: str) -> bool:
        return self._hosts[name].kind is Listener.CONTROLLER and not self._config.is_quorum_by_itself

    def address(self, name: str) -> tuple[str, int]:
        return self._hosts[name].address

    def close(self, kind: Listener | None = None) -> None:
        """Listen no more, and hang up: on those of one kind of listener, or on all for good."""
        for host in self._of(kind):
            host.stop()
        self.connections.close_all(kind)
        if kind is None:
            for login in self._logins:
                login.close()
            if self._finding_hosts is not None:
                self._finding_hosts.cancel()
        if kind is None and self._handshakes is not None:
            self._handshakes.close()

    async def finish(self, kind: Listener | None = None) -> None:
        """After `close`: handlers that run come to their end."""
        await self.connections.finish(kind)


def limits_of(config: BrokerConfig, hosts: Mapping[str, Iterable[str]]) -> ConnectionLimits:
    """`hosts` are the addresses of those that are named."""
    open_files.use_limit_of_process()
    overrides = config.max_connections_per_ip_overrides
    per_ip = {address: limit for host, limit in overrides.items() for address in hosts.get(host, ())}
    # Connections have one spelling of their addresses.
    per_ip |= {str(ip_address(host)): limit for host, limit in overrides.items() if is_address(host)}
    return ConnectionLimits(
        max_connections=config["max.connections"],
        per_listener={
            each.name: config.for_listener(each.name, "max.connections") for each in config.listeners
        },
        protected_listener=_protected_listener(config),
        max_per_ip=config["max.connections.per.ip"],
        per_ip_overrides=per_ip,
        max_idle_ms=config["connections.max.idle.ms"],
        max_for_files=open_files.max_connections,
    )


def protected_listeners(config: BrokerConfig) -> tuple[str, ...]:
    """By which nodes come: those who do are not held up by what others do to the broker."""
    between_brokers = _protected_listener(config)
    return (*config.controller_listener_names, *(() if between_brokers is None else (between_brokers,)))


def _protected_listener(config: BrokerConfig) -> str | None:
    """Where other brokers come in, if clients have a listener of their own (KIP-402)."""
    controllers = config.controller_listener_names
    brokers = [listener.name for listener in config.listeners if listener.name not in controllers]
    wanted = config.inter_broker_listener_name
    return wanted if len(brokers) > 1 and wanted in brokers else None


def pool_of(config: BrokerConfig) -> FramePool:
    """queued.max.request.bytes bounds what frames may hold; where it is not set, our own bound does."""
    bound: int = config["queued.max.request.bytes"]
    if bound <= 0:
        return FramePool()
    share = ORDINARY_BUDGET_BYTES / (ORDINARY_BUDGET_BYTES + GIANT_BUDGET_BYTES)
    return FramePool(ordinary_bytes=int(bound * share), giant_bytes=int(bound * (1 - share)))


def _not_yet(connection: Connection, view: memoryview, start: int, stop: int) -> Answer:
    raise AssertionError("a listener serves only after SocketServer.serve")


def _cannot_listen(listener: ListenerConfig, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        reason = "the address is in use"
    elif error.errno is not None and error.errno in errno.errorcode:
        # asyncio wraps the reason in a sentence that says the address once more.
        reason = os.strerror(error.errno).lower()
    else:
        reason = error.strerror or str(error)
    return f"cannot listen on {listener}: {reason}"


def _own_name() -> str:
    return socket.getfqdn()
