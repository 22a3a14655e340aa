"""The asyncio clients: AsyncProducer and AsyncConsumer (AsyncAdmin is in ottla.client.admin).

    async with AsyncProducer(bootstrap_servers="localhost:9092") as producer:
        delivery = await producer.send("topic", b"value", key=b"key")   # waits only for room in the buffer
        metadata = await delivery                                       # waits for the broker

    async with AsyncConsumer(bootstrap_servers="localhost:9092") as consumer:
        consumer.assign([TopicPartition("topic", 0)])
        consumer.seek_to_beginning()
        async for record in consumer: ...

Settings are keyword arguments under Kafka's names with underscores (ottla.client.config), or dotted ones in
`settings`. A client belongs to the loop it was started in.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Mapping
from typing import Any

from ottla.client.base import AsyncClient
from ottla.client.batch import Delivery, Headers, NewRecord, ProducerBatch, RecordMetadata, record_size
from ottla.client.config import ConsumerConfig, ProducerConfig
from ottla.client.consumer import ConsumerCore, Records
from ottla.client.driver import monotonic_ms
from ottla.client.errors import BufferExhausted, Closed, TimedOut
from ottla.client.fetched import ConsumerRecord
from ottla.client.network import timed_out_waiting
from ottla.client.offsets import EARLIEST, LATEST, OffsetAndTimestamp
from ottla.client.partitioner import CustomPartitioner
from ottla.client.producer import ProducerCore
from ottla.model.ids import TopicPartition

Text = bytes | str | None


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
                    f"buffer_memory stayed full for {self._max_block_ms} ms ({self.core.trouble() or 'slow broker'})"
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
            while waiting and waiting[0].is_done:
                waiting.popleft()
            return not waiting or all(batch.is_done for batch in waiting)

        try:
            if not await driver.until(flushed, limit):
                raise TimedOut(f"flush: {len(waiting)} batches are still on their way after {limit:g} ms")
        finally:
            accumulator.hurry -= 1

    async def partitions_for(self, topic: str) -> list[int]:
        return sorted((await self.topic(topic)).partitions)

    async def close(self, timeout_ms: float | None = None) -> None:
        """Flush, then close. What could not be sent fails with Closed."""
        self._closing = True
        try:
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


class AsyncConsumer(AsyncClient):
    """Reads assigned partitions."""

    CONFIG = ConsumerConfig

    def __init__(self, settings: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(settings, **more)
        assert isinstance(self.config, ConsumerConfig)
        self._max_poll_records = self.config.max_poll_records
        self._read_committed = self.config.read_committed
        self.consumer = ConsumerCore(self.core, self.config)

    # Positions: these only note what is wanted; the next poll acts on it.

    def assignment(self) -> set[TopicPartition]:
        return self.consumer.assignment

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self.consumer.assign([TopicPartition(*tp) for tp in partitions], monotonic_ms())
        self._wake()

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.consumer.seek(TopicPartition(*tp), offset)
        self._wake()

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        self.consumer.seek_to(list(partitions) or self.assignment(), EARLIEST)
        self._wake()

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        self.consumer.seek_to(list(partitions) or self.assignment(), LATEST)
        self._wake()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self.consumer.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self.consumer.resume(partitions)
        self._wake()

    def paused(self) -> set[TopicPartition]:
        return self.consumer.paused()

    def _wake(self) -> None:
        if self._driver is not None:
            self._driver.wake()

    async def position(self, tp: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record, looked up if need be."""
        state = self.consumer.at(TopicPartition(*tp))
        limit = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        if not await self.driver.until(lambda: state.position is not None, limit):
            raise timed_out_waiting(f"the position of {tp} was not found", self.core)
        assert state.position is not None
        return state.position

    # Records.

    def try_poll(self, max_records: int | None = None) -> Records:
        """What has arrived already."""
        if not self.consumer.has_data():
            return {}
        try:
            return self.consumer.drain(max_records or self._max_poll_records)
        finally:
            self._wake()  # there is room now for the next fetch

    async def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Records:
        """Records by partition, waiting up to timeout_ms for the first."""
        deadline = monotonic_ms() + timeout_ms
        while True:
            records = self.try_poll(max_records)
            remaining = deadline - monotonic_ms()
            if records or remaining <= 0:
                return records
            await self.driver.until(self.consumer.has_data, remaining)

    async def _records(self) -> AsyncIterator[ConsumerRecord]:
        while True:
            for records in (await self.poll(self.config.default_api_timeout_ms)).values():
                for record in records:
                    yield record

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Records for ever. The position is that of the last poll, a few records ahead."""
        return self._records()

    # Offsets.

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._ends(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """One past the last record that can be read: of committed ones if isolation_level says so."""
        return await self._ends(partitions, LATEST)

    async def _ends(self, partitions: Iterable[TopicPartition], which: int) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys((TopicPartition(*tp) for tp in partitions), which)
        found = await self.list_offsets(wanted, read_committed=self._read_committed)
        return {tp: result.offset for tp, result in found.items()}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offset at or after each timestamp; None where there is no such record."""
        found = await self.list_offsets(timestamps, read_committed=self._read_committed)
        return {tp: result if result.offset >= 0 else None for tp, result in found.items()}

    async def partitions_for(self, topic: str) -> list[int]:
        return sorted((await self.topic(topic)).partitions)

    async def close(self) -> None:
        if self._driver is not None:
            with self._driver.lock:
                self.consumer.close(monotonic_ms())
                self._driver._perform(self.core.poll(monotonic_ms()))
        await super().close()


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
    if not headers:
        return timestamp_ms, key, value, ()
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    checked = tuple((str(name), None if v is None else as_bytes(v, "header")) for name, v in pairs)
    return timestamp_ms, key, value, checked


def as_bytes(value: Any, what: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a {what} is bytes, str or None, not {type(value).__name__}")
