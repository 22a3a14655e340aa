"""Quotas as requests meet them (Kafka's QuotaFactory.QuotaManagers, ClientQuotaMetadataManager, RequestHandlerHelper).

Purpose: records what a request has used, says how long its client has to wait, and has its connection not read for so
long (KIP-219): the answer goes out at once and says it too. The arithmetic is in ottla.security.quotas.

- Produce: bytes, when they come in. The records are appended; with acks=0 there is no answer to say it in.
- Fetch: bytes, when they would go out. What is too much is not sent: the answer is empty, its session is told nothing,
  and the client asks again. A fetch is given no more than fits into one window, so that consumers read evenly.
- ShareFetch: whoever has to wait acquires nothing. What was acquired is sent, and waited for afterwards.
- Time: how long a request holds the loop, in per cent of it. It counts from the next answer on.
- Changes of topics are counted by the controller (ottla.controller.topics); its answer says how long to wait.

Rules: where no quota is set a request costs one look at `enabled`. What nodes ask of each other (whatever needs
CLUSTER_ACTION, and what followers fetch) is not limited. Quotas follow the committed metadata of the node, whatever its
roles. Owned by the node, on its loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator
from time import perf_counter_ns
from typing import Any, Final, TypeVar

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
# As `fetch.max.bytes`, an int32.
MAX_FETCH_BYTES: Final = 2**31 - 1


class QuotaManagers:
    """All quotas of a node."""

    def __init__(
        self,
        clients: ClientQuotas | None = None,
        clock: Clock | None = None,
        callback: object | None = None,
    ) -> None:
        self.clients = clients or ClientQuotas()
        self._now_ms = (clock or SystemClock()).monotonic_ms
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
                except (OSError, UnicodeError) as error:
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

    # --- produce

    def produced(self, connection: Connection, view: memoryview, start: int, stop: int, acks: int) -> int:
        """A produce request has come in: how long its client has to wait."""
        clients = self.clients
        if not (clients.produce.enabled or clients.request.enabled):
            return 0
        principal, client_id, now_ms = (
            connection.principal,
            client_id_of(connection, view, start),
            self._now_ms(),
        )
        throttle_ms = clients.produce.record_and_throttle_ms(principal, client_id, stop - start, now_ms)
        if clients.request.enabled and acks:
            throttle_ms = max(
                throttle_ms, clients.request.record_and_throttle_ms(principal, client_id, 0.0, now_ms)
            )
        if throttle_ms:
            connection.throttle(throttle_ms)
        return throttle_ms

    # --- fetch

    def fetch_quota(self, connection: Connection, view: memoryview, start: int) -> "FetchQuota | None":
        """What holds for a fetch that has come in, if it is a consumer's."""
        if not (self.clients.fetch.enabled or self.clients.request.enabled):
            return None
        return FetchQuota(self, connection, client_id_of(connection, view, start))

    def share_fetch_quota(self, connection: Connection, client_id: str | None) -> "FetchQuota | None":
        return FetchQuota(self, connection, client_id) if self.clients.fetch.enabled else None

    # --- any other

    def throttle_ms(self, principal: KafkaPrincipal, client_id: str | None) -> int:
        """How long a client has to wait for the time that its requests took."""
        return self.clients.request.record_and_throttle_ms(principal, client_id, 0.0, self._now_ms())

    def record_time(self, principal: KafkaPrincipal, client_id: str | None, spent_ns: int) -> None:
        """A request has held the loop for so long."""
        self.clients.request.record(principal, client_id, spent_ns * PERCENT_PER_NS, self._now_ms())

    async def measured(
        self, coroutine: Coroutine[Any, Any, T], principal: KafkaPrincipal, client_id: str | None
    ) -> T:
        """The coroutine's result; the time of its steps is recorded, and not that of its waits."""
        return await _Steps(coroutine, lambda spent_ns: self.record_time(principal, client_id, spent_ns))


class FetchQuota:
    """What holds for one fetch of a consumer."""

    __slots__ = ("_client_id", "_connection", "_managers", "max_bytes")

    def __init__(self, managers: QuotaManagers, connection: Connection, client_id: str | None) -> None:
        self._managers = managers
        self._connection = connection
        self._client_id = client_id
        fetch = managers.clients.fetch
        in_windows = fetch.max_in_window(connection.principal, client_id, managers._now_ms())
        # Kafka gives as much as all windows but one have room for: ten seconds' worth at once, and then it is waited
        # twice as long as that, until what was recorded first is forgotten.
        most = in_windows / max(fetch.windows.samples - 1, 1)
        self.max_bytes = max(int(min(most, MAX_FETCH_BYTES)), 1)

    def throttle_ms(self, records_bytes: int, partitions: int) -> int:
        """The answer has so much of so many partitions: 0 if it is to be sent, or how long its client has to wait."""
        managers, principal, client_id = self._managers, self._connection.principal, self._client_id
        clients, now_ms = managers.clients, managers._now_ms()
        size_bytes = ANSWER_BYTES + PARTITION_BYTES * partitions + records_bytes
        throttle_ms = clients.request.record_and_throttle_ms(principal, client_id, 0.0, now_ms)
        if not throttle_ms:
            throttle_ms = clients.fetch.record_unless_throttled(principal, client_id, size_bytes, now_ms)
        if throttle_ms:
            self._connection.throttle(throttle_ms)
        return throttle_ms

    @property
    def has_to_wait_ms(self) -> int:
        """How long nothing may be fetched, for what was fetched before."""
        managers = self._managers
        return managers.clients.fetch.record_and_throttle_ms(
            self._connection.principal, self._client_id, 0.0, managers._now_ms()
        )

    def sent(self, records_bytes: int, partitions: int) -> int:
        """So much is sent at any rate: how long the client has to wait for it afterwards."""
        managers = self._managers
        size_bytes = ANSWER_BYTES + PARTITION_BYTES * partitions + records_bytes
        return managers.clients.fetch.record_and_throttle_ms(
            self._connection.principal, self._client_id, size_bytes, managers._now_ms()
        )


def client_id_of(connection: Connection, view: memoryview, start: int) -> str | None:
    """Who the request at view[start:] says that it is from: nearly always who sent the one before."""
    known = connection.client_id_seen
    if known is not None:
        raw, client_id = known
        if view[start + _CLIENT_ID_AT : start + _CLIENT_ID_AT + len(raw)] == raw:
            return client_id
    header, _ = decode_request_header(view, start, len(view))
    length = int.from_bytes(
        view[start + _CLIENT_ID_AT : start + _CLIENT_ID_AT + _LENGTH_BYTES], "big", signed=True
    )
    if length <= MAX_CLIENT_ID_LENGTH:
        end = start + _CLIENT_ID_AT + _LENGTH_BYTES + max(length, 0)
        connection.client_id_seen = (bytes(view[start + _CLIENT_ID_AT : end]), header.client_id)
    return header.client_id


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
