"""The node's sockets: one host for each listener, bound first and served when the node is ready.

Owner: the node, on its loop.
"""

import errno
import logging
import os
import socket
from collections.abc import Iterable
from functools import partial
from time import monotonic

from ottla.config.broker import BrokerConfig
from ottla.config.effective import check_protection
from ottla.config.errors import ConfigError
from ottla.config.listeners import Listener as ListenerConfig
from ottla.metadata.cluster import Endpoint
from ottla.server.answers import Answer
from ottla.server.connection import Connection
from ottla.server.context import Services
from ottla.server.dispatch import Dispatcher
from ottla.server.frame_pool import GIANT_BUDGET_BYTES, ORDINARY_BUDGET_BYTES, FramePool
from ottla.server.listeners import BACKLOG, ConnectionLimits, Connections, ListenerHost, shared_buffer
from ottla.server.registry import Listener
from ottla.storage.open_files import open_files

log = logging.getLogger("ottla.node")

SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
ANY_HOST = ("", "0.0.0.0", "::")
LOOPBACK = "127.0.0.1"


class Sockets:
    """All listening sockets of a node and the connections they have accepted."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._shared = shared_buffer()
        self.connections = Connections(limits_of(config), pool_of(config), monotonic)
        self._hosts: dict[str, ListenerHost] = {}

    async def bind(self) -> None:
        """Take every address; ConfigError in one line if one cannot be had."""
        check_protection(self._config)
        for listener in self._config.listeners:
            self._hosts[listener.name] = await self._bind(listener)

    async def _bind(self, listener: ListenerConfig) -> ListenerHost:
        config = self._config
        kind = Listener.CONTROLLER if listener.name in config.controller_listener_names else Listener.BROKER
        host = ListenerHost(
            listener.name,
            kind,
            _not_yet,
            self.connections,
            self._shared,
            config.for_listener(listener.name, "socket.request.max.bytes"),
            monotonic,
        )
        bind = partial(
            host.bind, listener.host, backlog=self._backlog(), options=self._options(listener.name)
        )
        try:
            await bind(listener.port)
        except OSError as error:
            implied = kind is Listener.CONTROLLER and config.controller_listener_is_implied
            if error.errno == errno.EADDRINUSE and implied:
                # Nobody asked for that port: any other will do.
                await bind(0)
            else:
                raise ConfigError(_cannot_listen(listener, error), "listeners") from error
        return host

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

    async def serve(self, services: Services) -> None:
        """Begin to answer."""
        for host in self._hosts.values():
            host.dispatch = Dispatcher(services, host.kind)
            await host.start()
        self.connections.start_reaping()

    def reconfigure(self, config: BrokerConfig) -> None:
        """The limits may change while the broker runs."""
        self._config = config
        self.connections.limits = limits_of(config)

    def advertised(self, listeners: Iterable[ListenerConfig]) -> list[Endpoint]:
        """What clients are told: the advertised address, with the real port where 0 was asked for."""
        return [self._advertise(listener) for listener in listeners]

    def _advertise(self, listener: ListenerConfig) -> Endpoint:
        bound = self._hosts[listener.name].address
        host = listener.host
        if host == "":
            host = _own_name()
        elif host in ANY_HOST:
            host = LOOPBACK
            if self._hosts[listener.name].kind is Listener.BROKER:
                log.warning(
                    "listener %s is told to clients as %s, which only this machine reaches: set advertised.listeners "
                    "if others are to use it",
                    listener.name,
                    host,
                )
        protocol = SECURITY_PROTOCOLS[listener.security_protocol]
        return Endpoint(listener.name, host, listener.port or bound[1], protocol)

    def address(self, name: str) -> tuple[str, int]:
        return self._hosts[name].address

    def close(self) -> None:
        for host in self._hosts.values():
            host.stop()
        self.connections.close_all()

    async def finish(self) -> None:
        """After `close`: handlers that run come to their end."""
        await self.connections.finish()


def limits_of(config: BrokerConfig) -> ConnectionLimits:
    open_files.use_limit_of_process()
    return ConnectionLimits(
        max_connections=config["max.connections"],
        per_listener={
            each.name: config.for_listener(each.name, "max.connections") for each in config.listeners
        },
        protected_listener=_protected_listener(config),
        max_per_ip=config["max.connections.per.ip"],
        per_ip_overrides=config.max_connections_per_ip_overrides,
        max_idle_ms=config["connections.max.idle.ms"],
        max_for_files=open_files.max_connections,
    )


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
    raise AssertionError("a listener serves only after Sockets.serve")


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
