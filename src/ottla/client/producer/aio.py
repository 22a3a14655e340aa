"""AsyncProducer: the producer for asyncio. See ottla.client.aio."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager
from operator import index
from typing import TYPE_CHECKING, Any

from ottla.client.base import AsyncClient
from ottla.client.config import ProducerConfig
from ottla.client.errors import BufferExhausted, Closed, StateError, TimedOut
from ottla.client.offsets import GroupMetadata, OffsetAndMetadata, to_commit
from ottla.client.producer.accumulator import (
    Delivery,
    Headers,
    NewRecord,
    ProducerBatch,
    RecordMetadata,
    record_size,
)
from ottla.client.producer.core import ProducerCore
from ottla.client.producer.partitioner import CustomPartitioner
from ottla.client.transaction.manager import Operation, TransactionManager
from ottla.client.transaction.manager import State as TxnState
from ottla.model.ids import TopicPartition
from ottla.net.aio import monotonic_ms

if TYPE_CHECKING:
    from ottla.security.encryption import Sealer

Text = bytes | str | None
_LATEST_MS = 2**63 - 1


class AsyncDelivery(Delivery):
    """A delivery that can be awaited."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self.done():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: None if future.done() else future.set_result(None))
            yield from future
        return self.metadata()


class AsyncProducer(AsyncClient):
    """Sends records, in batches, with retries."""

    CONFIG = ProducerConfig

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        partitioner: str | CustomPartitioner = "default",
        delivery_type: type[Delivery] = AsyncDelivery,
        **more: Any,
    ) -> None:
        if isinstance(partitioner, str):
            more["partitioner"] = partitioner
        super().__init__(settings, **more)
        assert isinstance(self.config, ProducerConfig)
        self._max_block_ms = self.config.max_block_ms
        self.producer = ProducerCore(
            self.core,
            self.config,
            delivery_type=delivery_type,
            partitioner=None if isinstance(partitioner, str) else partitioner,
        )
        self.sealer = self.config.sealer()
        self._closing = False

    async def send(
        self,
        topic: str,
        value: Text = None,
        key: Text = None,
        *,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> AsyncDelivery:
        """Queue a record; waits up to max_block_ms for the topic's metadata and for room in the buffer."""
        record = prepare(value, key, headers, timestamp_ms)
        if self.sealer is not None:
            record = sealed(self.sealer, topic, record)
        delivery = self.try_send(topic, partition, record)
        while delivery is None:  # more than once if others waited for the same room
            await self.wait_to_send(topic, record)
            delivery = self.try_send(topic, partition, record)
        if self.driver.is_due:
            await asyncio.sleep(0)  # a loop that only sends would never let a batch go
        assert isinstance(delivery, AsyncDelivery)
        return delivery

    async def send_and_wait(
        self, topic: str, value: Text = None, key: Text = None, **more: Any
    ) -> RecordMetadata:
        """Send one record and wait for its acknowledgement."""
        return await (await self.send(topic, value, key, **more))

    def try_send(self, topic: str, partition: int | None, record: NewRecord) -> Delivery | None:
        """Queue a record if that can be done without waiting."""
        if self._closing:
            raise Closed("the producer is closed")
        delivery, is_news = self.producer.try_append(topic, partition, record, monotonic_ms())
        if is_news:
            self.wake()
        return delivery

    def wake(self) -> None:
        self.driver.wake()

    async def wait_to_send(self, topic: str, record: NewRecord) -> None:
        """Wait for whatever kept try_send from queueing this record."""
        core, size = self.producer, record_size(record)
        if core.topic(topic, monotonic_ms()) is None:
            await self.topic(topic, self._max_block_ms)
        accumulator = core.accumulator
        try:
            if not await self.driver.until(lambda: accumulator.has_room(size), self._max_block_ms):
                raise BufferExhausted(
                    f"buffer_memory stayed full for {self._max_block_ms} ms "
                    f"({self.core.describe_failures() or 'slow broker'})"
                )
        finally:
            accumulator.blocked = False

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Send all that is queued now and wait until it is done, one way or the other."""
        assert isinstance(self.config, ProducerConfig)
        accumulator = self.producer.accumulator
        driver = self.driver
        limit = self.config.delivery_timeout_ms + 1000 if timeout_ms is None else timeout_ms
        with driver.lock:
            accumulator.hurry += 1
            waiting: deque[ProducerBatch] = deque(accumulator.incomplete)

        def flushed() -> bool:
            while waiting and (waiting[0].is_done or waiting[0].parts):
                waiting.extendleft(reversed(waiting.popleft().parts))
            return not waiting

        try:
            if not await driver.until(flushed, limit):
                raise TimedOut(f"flush: {len(waiting)} batches are still on their way after {limit:g} ms")
        finally:
            accumulator.hurry -= 1

    # Transactions.

    async def init_transactions(self, timeout_ms: float | None = None) -> None:
        """Take over the transactional_id: older producers with it are fenced, what they left open is aborted."""
        with self._lock:
            operation = self._transactions().init(monotonic_ms())
        await self._finish(operation, timeout_ms)

    def begin_transaction(self) -> None:
        """From here on everything that is sent becomes visible together, at commit_transaction."""
        self._transactions().begin()

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: GroupMetadata | str,
        timeout_ms: float | None = None,
    ) -> None:
        """Make a group's progress part of the transaction; `group` is the consumer's group_metadata()."""
        who = GroupMetadata(group) if isinstance(group, str) else group
        wanted = to_commit(offsets)
        with self._lock:
            operation = self._transactions().send_offsets(wanted, who, monotonic_ms())
        await self._finish(operation, timeout_ms)

    async def commit_transaction(self, timeout_ms: float | None = None) -> None:
        """Send what is queued, then commit. TransactionAbortable: abort it. TimedOut: call it again."""
        with self._lock:
            operation = self._transactions().commit(monotonic_ms())
        await self._finish(operation, timeout_ms)

    async def abort_transaction(self, timeout_ms: float | None = None) -> None:
        """Nothing of the transaction will be seen by who reads committed records; what is queued is dropped."""
        with self._lock:
            operation = self._transactions().abort(monotonic_ms())
        await self._finish(operation, timeout_ms)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Begin, then commit; abort if something is raised within."""
        self.begin_transaction()
        try:
            yield
            await self.commit_transaction()
        except BaseException:
            if self.transaction_is_open:
                await self.abort_transaction()
            raise

    @property
    def transaction_is_open(self) -> bool:
        """There is something to abort."""
        return self._transactions().state in (TxnState.IN_TRANSACTION, TxnState.ABORTABLE)

    def _transactions(self) -> TransactionManager:
        if self.producer.transactions is None:
            raise StateError("a producer without transactional_id has no transactions")
        return self.producer.transactions

    async def _finish(self, operation: Operation, timeout_ms: float | None) -> None:
        self.wake()
        limit = self._max_block_ms if timeout_ms is None else timeout_ms
        operation.is_left = True  # until it is known here how it ended
        if not await self.driver.until(lambda: operation.is_done, limit):
            failures = self.core.describe_failures()
            raise TimedOut(
                f"{operation.name} is not done after {limit:g} ms" + (f" ({failures})" if failures else "")
            )
        operation.is_left = False
        if operation.error is not None:
            raise operation.error

    async def partitions_for(self, topic: str) -> list[int]:
        return sorted((await self.topic(topic)).partitions)

    async def close(self, timeout_ms: float | None = None) -> None:
        """Flush, then close; an open transaction is aborted. What could not be sent fails with Closed."""
        self._closing = True
        try:
            if self._driver is not None and self.producer.transactions is not None:
                await self._abort_open(timeout_ms)
            if self._driver is not None and self.core.metadata.version:
                await self.flush(timeout_ms)
        except TimedOut:
            if timeout_ms is None:
                raise
            # The caller set the limit: what is left fails, each record with its own error.
        finally:
            with self._lock:
                self.producer.abort(Closed("the producer was closed before the record was sent"))
            await super().close()

    async def _abort_open(self, timeout_ms: float | None) -> None:
        if self.transaction_is_open:
            try:
                await self.abort_transaction(timeout_ms)
            except TimedOut:
                return  # the coordinator aborts it after transaction_timeout_ms


def prepare(
    value: Text, key: Text, headers: Headers | Mapping[str, bytes | None], timestamp_ms: int | None
) -> NewRecord:
    """A record as the batch keeps it: text becomes UTF-8, the time is now unless given."""
    if type(value) is not bytes and value is not None:
        value = as_bytes(value, "value")
    if type(key) is not bytes and key is not None:
        key = as_bytes(key, "key")
    if timestamp_ms is None:
        timestamp_ms = time.time_ns() // 1_000_000
    elif not 0 <= index(timestamp_ms) <= _LATEST_MS:  # a float is a TypeError
        raise ValueError(f"a timestamp is a number of milliseconds, from 0 to 2^63 - 1, not {timestamp_ms}")
    if not headers:
        return timestamp_ms, key, value, ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    checked = tuple((str(name), None if v is None else as_bytes(v, "header")) for name, v in pairs)
    return timestamp_ms, key, value, checked


def sealed(sealer: "Sealer", topic: str, record: NewRecord) -> NewRecord:
    """The record with its value encrypted."""
    timestamp_ms, key, value, headers = record
    return timestamp_ms, key, *sealer.seal(topic, key, value, headers)


def as_bytes(value: Any, what: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a {what} is bytes, str or None, not {type(value).__name__}")
