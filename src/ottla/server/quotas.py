"""Quotas as requests meet them (Kafka's QuotaFactory.QuotaManagers, ClientQuotaMetadataManager, RequestHandlerHelper).

Purpose: records what a request has used, says how long its client has to wait, and has its connection not read for so
long (KIP-219): the answer goes out at once and says it too. The arithmetic is in ottla.security.quotas.

- Produce: bytes, when they come in. The records are appended; with acks=0 there is no answer to say it in.
- Fetch: bytes, when they would go out. What is too much is not sent: the answer is empty, its session is told nothing,
  and the client asks again. A fetch is given no more than a quarter of a window has room for, so that consumers read
  evenly.
- ShareFetch: whoever has to wait acquires nothing. What was acquired is sent, and waited for afterwards.
- Time: how long requests hold the loop, in per cent of it. The Connection measures what it has read at once as one,
  until its answers are sent or wait to be; that counts from the next read on. Coroutines are measured by their steps.
- Changes of topics are counted by the controller (ottla.controller.topics); its answer says how long to wait.

Rules: where no quota is set a request costs one look at `enabled`. Where there is one, whose it is is known of the
request before, and the Dispatcher and the handlers of Produce and Fetch look in place whether anything can be too much
(Rate.ample): every request of everybody takes these steps. What nodes ask of each other (whatever needs
CLUSTER_ACTION, and what followers fetch) is not limited, and a connection on which they do is always read. Quotas
follow the committed metadata of the node, whatever its roles. Owned by the node, on its loop.
"""

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Coroutine, Generator
from time import perf_counter_ns
from typing import Any, Final, TypeVar, cast

from ottla.config.broker import BrokerConfig
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.clock import Clock, SystemClock
from ottla.model.tasks import spawn
from ottla.security.principal import KafkaPrincipal
from ottla.security.quotas import (
    MAX_CLIENT_ID_LENGTH,
    PERCENT_PER_NS,
    ClientQuotas,
    ConnectionRates,
    QuotaWindows,
    load_callback,
    unlimited_sensor,
)
from ottla.server.network.connection import Connection
from ottla.wire.framing import decode_request_header

log = logging.getLogger("ottla.server")

T = TypeVar("T")

CALLBACK_KEY: Final = "client.quota.callback.class"
# Where the client id lies in a request's header.
_CLIENT_ID_AT: Final = 8
_LENGTH_BYTES: Final = 2
# What an answer to a fetch has beside records: once, and for each partition that has some.
ANSWER_BYTES: Final = 20
PARTITION_BYTES: Final = 40
# Larger ones do not fit well into windows: of what one of them has room for, a tenth would be left.
FETCHES_PER_WINDOW: Final = 4
# As `fetch.max.bytes`, an int32.
MAX_FETCH_BYTES: Final = 2**31 - 1
# Of whoever has no quota.
UNLIMITED: Final = unlimited_sensor()


class QuotaManagers:
    """All quotas of a node."""

    def __init__(
        self,
        clients: ClientQuotas | None = None,
        clock: Clock | None = None,
        callback: object | None = None,
    ) -> None:
        self.clients = clients or ClientQuotas()
        self.now_ms = (clock or SystemClock()).monotonic_ms
        self._callback = callback
        # Is there any quota of users and clients, and one of request time?
        self.enabled = self.clients.enabled
        self.measures_time = self.clients.request.enabled
        # Hosts that have a quota by their name, those that are to be looked up, and the addresses that were found.
        self._host_limits: dict[str, float] = {}
        self._hosts_to_find: dict[str, None] = {}
        self._host_addresses: dict[str, str] = {}
        self._finding: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, config: BrokerConfig, clock: Clock, protected_listeners: tuple[str, ...]) -> "QuotaManagers":
        """By the node's settings; ConfigError if the operator's own class cannot be used."""
        windows = QuotaWindows(config["quota.window.num"], config["quota.window.size.seconds"] * 1000)
        of_changes = QuotaWindows(
            config["controller.quota.window.num"], config["controller.quota.window.size.seconds"] * 1000
        )
        path = config[CALLBACK_KEY]
        callback = load_callback(CALLBACK_KEY, path, config.originals) if path else None
        rates = ConnectionRates(windows, protected_listeners=protected_listeners)
        clients = ClientQuotas(windows, of_changes, callback, rates)
        return cls(clients, clock, callback)

    # --- the metadata

    def follow(self, image: ClusterImage, delta: Delta) -> None:
        """A MetadataPublisher's subscriber."""
        if not delta.client_quotas:
            return
        for host, limit in self.clients.update(delta.client_quotas, image.client_quotas):
            self._limit_host(host, limit)
        self.enabled = self.clients.enabled
        self.measures_time = self.clients.request.enabled

    def _limit_host(self, host: str, limit: float | None) -> None:
        """The quota of an address that is given by a name."""
        if limit is None:
            self._host_limits.pop(host, None)
        else:
            self._host_limits[host] = limit
        self._hosts_to_find[host] = None
        if self._finding is None or self._finding.done():
            self._finding = spawn(
                self._find_hosts(), name="looking up hosts that have quotas", owner="quotas"
            )

    async def _find_hosts(self) -> None:
        """One after the other: a resolver may take its time."""
        loop, rates = asyncio.get_running_loop(), self.clients.connections
        while self._hosts_to_find:
            host = next(iter(self._hosts_to_find))
            del self._hosts_to_find[host]
            address: str | None = None
            if host in self._host_limits:
                try:
                    address = str((await loop.getaddrinfo(host, None))[0][4][0])
                except (OSError, ValueError) as error:
                    log.warning("the quota of host %s is not applied: %s", ascii(host), error)
            before = self._host_addresses.pop(host, None)
            if before is not None:
                rates.set_ip_limit(before, None)
            limit = self._host_limits.get(host)
            if address is not None and limit is not None:
                self._host_addresses[host] = address
                rates.set_ip_limit(address, limit)

    def close(self) -> None:
        """Let the operator's class go."""
        if self._finding is not None:
            self._finding.cancel()
        close = getattr(self._callback, "close", None)
        if close is not None:
            close()

    # --- who asks

    def client_of(self, connection: Connection, view: memoryview, start: int, stop: int) -> "ClientSensors":
        """The quotas of whoever sent the request at view[start:stop], which is to be served now.

        They are `connection.quotas` until the next request, and nearly always who sent that is who sent this one.
        """
        client = self.find_client(connection, view, start, stop)
        client.now_ms = self.now_ms()
        return client

    def find_client(self, connection: Connection, view: memoryview, start: int, stop: int) -> "ClientSensors":
        """The same, but for the time at which it is served."""
        known: ClientSensors | None = connection.quotas
        if (
            known is not None
            and known.version == self.clients.version
            and known.principal is connection.principal
            and (known.raw is None or known.is_in(view, start, stop))
        ):
            return known
        header, _ = decode_request_header(view, start, stop)
        found = connection.quotas = self.sensors_of(connection.principal, header.client_id)
        begin, end = start + _CLIENT_ID_AT, start + _CLIENT_ID_AT + _LENGTH_BYTES
        length = int.from_bytes(view[begin:end], "big", signed=True)
        if self._callback is None and length <= MAX_CLIENT_ID_LENGTH:
            raw = bytes(view[begin : end + max(length, 0)]) if self.clients.is_by_client_id else None
            found.keep(raw, self.clients.version)
        return found

    def sensors_of(self, principal: KafkaPrincipal, client_id: str | None) -> "ClientSensors":
        """The quotas of somebody, for one request."""
        return ClientSensors(self, principal, client_id, self.now_ms())

    # --- produce

    def produced(self, connection: Connection, size_bytes: int, acks: int) -> int:
        """A produce request of this size has come in: how long its client has to wait.

        Its handler comes here only if it cannot be certain that there is nothing to wait for.
        """
        client: ClientSensors = connection.quotas
        throttle_ms, now_ms = 0, client.now_ms
        if client.produce is not None:
            throttle_ms = client.produce.record_and_throttle_ms(size_bytes, now_ms)
        if client.request is not None and client.request.may_be_over and acks:
            throttle_ms = max(throttle_ms, client.request.throttle_ms(now_ms))
        if throttle_ms:
            connection.throttle(throttle_ms)
        return throttle_ms

    # --- fetch

    def fetched(
        self,
        connection: Connection,
        client: "ClientSensors",
        records_bytes: int,
        partitions: int,
        now_ms: float,
    ) -> int:
        """An answer has so much of so many partitions: 0 if it is to be sent, or how long its client has to wait."""
        throttle_ms = 0
        if client.request is not None and client.request.may_be_over:
            throttle_ms = client.request.throttle_ms(now_ms)
        if client.fetch is not None and not throttle_ms:
            size_bytes = ANSWER_BYTES + PARTITION_BYTES * partitions + records_bytes
            throttle_ms = client.fetch.record_unless_throttled(size_bytes, now_ms)
        if throttle_ms:
            connection.throttle(throttle_ms)
        return throttle_ms

    def share_fetched(self, client: "ClientSensors", records_bytes: int = 0, partitions: int = 0) -> int:
        """So much is sent at any rate: how long the client has to wait for it, and for what was sent before."""
        if client.fetch is None:
            return 0
        size_bytes = ANSWER_BYTES + PARTITION_BYTES * partitions + records_bytes if partitions else 0
        return client.fetch.record_and_throttle_ms(size_bytes, self.now_ms())

    # --- any other

    def throttle_ms(self, principal: KafkaPrincipal, client_id: str | None) -> int:
        """How long a client has to wait for the time that its requests took."""
        now_ms = self.now_ms()
        sensor = self.clients.request.sensor(principal, client_id, now_ms)
        return 0 if sensor is None else sensor.throttle_ms(now_ms)

    def record_time(self, principal: KafkaPrincipal, client_id: str | None, spent_ns: int) -> None:
        """A request has held the loop for so long."""
        self.clients.request.record(principal, client_id, spent_ns * PERCENT_PER_NS, self.now_ms())

    async def measured(
        self, coroutine: Coroutine[Any, Any, T], principal: KafkaPrincipal, client_id: str | None
    ) -> T:
        """The coroutine's result; the time of its steps is recorded, and not that of its waits."""
        return await _Steps(coroutine, lambda spent_ns: self.record_time(principal, client_id, spent_ns))


class ClientSensors:
    """The quotas of one client, as they were found: Kafka's ClientSensors, of all types."""

    __slots__ = (
        "_quotas",
        "_unpack",
        "client_id",
        "fetch",
        "fetch_rate",
        "holds_for",
        "limits_fetches",
        "limits_size",
        "max_fetch_bytes",
        "now_ms",
        "principal",
        "produce",
        "produce_rate",
        "raw",
        "request",
        "time",
        "version",
    )

    def __init__(
        self, quotas: QuotaManagers, principal: KafkaPrincipal, client_id: str | None, now_ms: float
    ) -> None:
        clients = quotas.clients
        self._quotas = quotas
        self.principal = principal
        self.client_id = client_id
        self.produce = clients.produce.sensor(principal, client_id, now_ms)
        self.fetch = clients.fetch.sensor(principal, client_id, now_ms)
        self.request = clients.request.sensor(principal, client_id, now_ms)
        # The same for who looks first whether anything can be too much, where None would be one step more.
        self.produce_rate = UNLIMITED.rate if self.produce is None else self.produce.rate
        self.fetch_rate = UNLIMITED.rate if self.fetch is None else self.fetch.rate
        self.time = UNLIMITED if self.request is None else self.request
        # Kafka gives as much as all windows but one have room for: ten seconds' worth at once, and then it is waited
        # twice as long as that, until what was recorded first is forgotten.
        self.max_fetch_bytes = MAX_FETCH_BYTES
        if self.fetch is not None:
            in_a_window = self.fetch.limit * clients.fetch.windows.window_ms / 1000.0
            self.max_fetch_bytes = max(int(min(in_a_window / FETCHES_PER_WINDOW, MAX_FETCH_BYTES)), 1)
        # Is that less than anybody can ask for?
        self.limits_size = self.max_fetch_bytes < MAX_FETCH_BYTES
        # Does any quota hold for what it fetches?
        self.limits_fetches = self.fetch is not None or self.request is not None
        # When the request that is served was begun.
        self.now_ms = now_ms
        # For which version of the quotas this was found, if it is kept, and how requests spell the client, if it makes
        # a difference. If it makes none, it holds for every request as long as the quotas are of this version.
        self.version = self.holds_for = -1
        self.raw: bytes | None = None
        self._unpack: Callable[[memoryview, int], tuple[Any, ...]]

    def keep(self, raw: bytes | None, version: int) -> None:
        """For the next requests that spell the client so."""
        self.raw = raw
        self.version = version
        if raw is None:
            self.holds_for = version
        else:
            self._unpack = struct.Struct(f"{_CLIENT_ID_AT}x{len(raw)}s").unpack_from

    def is_in(self, view: memoryview, start: int, stop: int) -> bool:
        """Does the request at view[start:stop] spell its client so?"""
        raw = self.raw
        return (
            raw is not None
            and stop - start >= _CLIENT_ID_AT + len(raw)
            and self._unpack(view, start)[0] == raw
        )

    def measured(self, connection: Connection, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """What is left to do of one of its requests, if that is a coroutine: measured too."""
        if self.request is None or connection.is_of_node:
            return coroutine
        measured: Any = self._quotas.measured(coroutine, self.principal, self.client_id)
        measured.__qualname__ = getattr(coroutine, "__qualname__", "")  # what the log calls it
        return cast(Coroutine[Any, Any, T], measured)

    def served(self, connection: Connection, now: float) -> None:
        """Requests of this client have held the loop since `connection.last_active`; what comes now counts from now."""
        percent = (now - connection.last_active) * 100.0
        connection.last_active = now
        if self.request is None or connection.is_of_node:
            return
        rate, now_ms = self.request.rate, now * 1000.0
        value = rate.value + percent
        if value <= rate.ample and now_ms < rate.until_ms:
            rate.value = value
            rate.last_ms = now_ms
        else:
            self.request.record(percent, now_ms)


class _Steps(Awaitable[T]):
    """A coroutine whose steps are measured."""

    __slots__ = ("_coroutine", "_record")

    def __init__(self, coroutine: Coroutine[Any, Any, T], record: Callable[[int], None]) -> None:
        self._coroutine = coroutine
        self._record = record

    def __await__(self) -> Generator[Any, None, T]:
        coroutine = self._coroutine
        raised: BaseException | None = None
        try:
            while True:
                began_ns = perf_counter_ns()
                try:
                    awaited = coroutine.send(None) if raised is None else coroutine.throw(raised)
                except StopIteration as ended:
                    result: T = ended.value
                    return result
                finally:
                    self._record(perf_counter_ns() - began_ns)
                raised = None
                try:
                    yield awaited
                except Exception as error:  # noqa: BLE001 - it is the coroutine's to handle
                    raised = error
                except asyncio.CancelledError as cancelled:
                    raised = cancelled
        finally:
            coroutine.close()
