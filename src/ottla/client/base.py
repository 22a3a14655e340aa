"""What every asyncio client stands on: a network core with its driver, metadata, any request to any broker.

Owned by the loop it was started in.
"""

import ssl
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from ottla import __version__
from ottla.client.calls import Target, To
from ottla.client.config import ClientConfig
from ottla.client.driver import Driver
from ottla.client.errors import Closed
from ottla.client.fanout import Question
from ottla.client.leader_lookup import LeaderLookup, all_found
from ottla.client.metadata import TopicInfo
from ottla.client.network import NetworkCore
from ottla.client.offsets import OffsetAndTimestamp, list_offsets_question
from ottla.client.topic_lookup import TopicLookup
from ottla.client.transport import monotonic_ms, tls_context
from ottla.model.ids import TopicPartition


class AsyncClient:
    """Connections, metadata, and any request to any broker; the ground the others stand on."""

    CONFIG: type[ClientConfig] = ClientConfig

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        ssl_context: ssl.SSLContext | None = None,
        lock: AbstractContextManager[Any] | None = None,
        **more: Any,
    ) -> None:
        self.config = self.CONFIG.of({**(settings or {}), **more})
        self._ssl_context = tls_context(self.config, ssl_context)
        self._lock: AbstractContextManager[Any] = lock if lock is not None else nullcontext()
        self.core = NetworkCore(self.config, software_version=__version__)
        self._driver: Driver | None = None

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            raise Closed("the client is not started, or is closed")
        return self._driver

    async def start(self) -> Self:
        """Find the cluster; NoBrokersAvailable if there is none within bootstrap_timeout_ms."""
        if self._driver is None:
            self._driver = Driver(self.core, ssl_context=self._ssl_context, lock=self._lock)
            try:
                await self._driver.bootstrap(self.config.bootstrap_timeout_ms)
            except BaseException:
                await self.close()
                raise
        return self

    async def close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def request(self, request: Any, to: Target = To.ANY, *, timeout_ms: float | None = None) -> Any:
        """Send any request; retried while its top-level error is one that passes."""
        return await self.driver.call(request, to, timeout_ms=timeout_ms)

    async def topic(self, name: str, timeout_ms: float | None = None) -> TopicInfo:
        """What the cluster says of a topic; UNKNOWN_TOPIC_OR_PARTITION if it does not know it in time."""
        lookup = TopicLookup(self.core, name, monotonic_ms())
        limit = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        await self.driver.until(lookup.is_settled, limit)
        return lookup.result()

    async def ask_leaders(
        self, partitions: Iterable[TopicPartition], question: Question, timeout_ms: float | None = None
    ) -> dict[TopicPartition, Any]:
        """A question to the leaders of partitions; the value for a partition that failed is its KafkaError."""
        driver = self.driver
        with driver.lock:
            lookup = LeaderLookup(self.core, partitions, question, monotonic_ms(), timeout_ms)
        await driver.until(lookup.is_settled, lookup.limit_ms)
        return lookup.results

    async def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        read_committed: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets by timestamp, or by a special one (ottla.client.offsets); the first error is raised."""
        question = list_offsets_question(timestamps, self.core, read_committed=read_committed)
        return all_found(await self.ask_leaders(timestamps, question, timeout_ms))
