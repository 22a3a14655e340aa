"""The blocking clients: Producer, Consumer, Admin for plain scripts.

    with Producer(bootstrap_servers="localhost:9092") as producer:
        producer.send("topic", b"value", key=b"key")            # returns at once, unless the buffer is full
        producer.send("topic", b"more").result(timeout_ms=5000)  # waits for the broker

    with Consumer(bootstrap_servers="localhost:9092") as consumer:
        consumer.assign([TopicPartition("topic", 0)])
        for record in consumer: ...

Each is its asyncio twin on a loop in a thread of its own, so that batches go out and fetches come in while the
application does something else. What the application does most (send, poll) happens in its own thread under
the lock it shares with the loop; the rest is handed to the loop. Constructing one connects, or raises.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from ottla.client.admin import AsyncAdmin
from ottla.client.admin_types import (
    ActiveProducer,
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    LogDirDescription,
    NewTopic,
    ResourceType,
    TopicDescription,
    TopicListing,
)
from ottla.client.aio import AsyncConsumer, AsyncProducer, Text, prepare
from ottla.client.base import AsyncClient
from ottla.client.batch import Delivery, Headers, RecordMetadata
from ottla.client.calls import Target, To
from ottla.client.consumer import Records
from ottla.client.driver import monotonic_ms
from ottla.client.errors import Closed, TimedOut
from ottla.client.fetched import ConsumerRecord
from ottla.client.offsets import OffsetAndTimestamp
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition

T = TypeVar("T")
_ITERATION_WAIT_MS = 1000.0
_INTERRUPTED_CLOSE_MS = 500.0


class LoopThread:
    """An event loop in a thread; `run` waits for a coroutine's result."""

    def __init__(self, name: str) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a callback runs in the client's own thread and cannot wait for the client")
        if not self._thread.is_alive():
            coroutine.close()
            raise Closed()
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class _Blocking:
    """What the three have in common: a twin, its thread, the lock between the two."""

    def __init__(self, make: Callable[[Any], AsyncClient]) -> None:
        self._lock = threading.RLock()  # a delivery callback, run under it, may send again
        self._twin = make(self._lock)
        self._thread = LoopThread(f"ottla-{type(self).__name__.lower()}")
        try:
            self._run(self._twin.start())
        except BaseException:
            self._thread.stop()
            raise

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(coroutine)

    def request(self, request: Any, to: Target = To.ANY, *, timeout_ms: float | None = None) -> Any:
        """Send any request to any broker, the controller, a node or a partition's leader."""
        return self._run(self._twin.request(request, to, timeout_ms=timeout_ms))

    def close(self) -> None:
        """Close; a second time is no error."""
        self._close(self._twin.close)

    def _close(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            if self._thread.is_alive:
                self._run(close())
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()


class BlockingDelivery(Delivery):
    """A delivery that can be waited for."""

    __slots__ = ()

    def result(self, timeout_ms: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement; raises why it did not come."""
        if not self.done():
            event = threading.Event()
            self.add_done_callback(lambda _: event.set())
            if not event.wait(None if timeout_ms is None else timeout_ms / 1000.0):
                raise TimedOut(f"the record was not acknowledged within {timeout_ms:g} ms")
        return self.metadata()


class Producer(_Blocking):
    """Sends records, in batches, with retries. May be shared between threads."""

    _twin: AsyncProducer

    def __init__(self, settings: Mapping[str, Any] | None = None, **more: Any) -> None:
        lock_of: list[Any] = []

        class LockedDelivery(BlockingDelivery):
            """Registers callbacks under the producer's lock."""

            __slots__ = ()

            def add_done_callback(self, callback: Callable[[Any], None]) -> None:
                with lock_of[0]:
                    super().add_done_callback(callback)

        def make(lock: Any) -> AsyncProducer:
            lock_of.append(lock)
            return _ThreadedProducer(settings, lock=lock, delivery_type=LockedDelivery, **more)

        super().__init__(make)

    def send(
        self,
        topic: str,
        value: Text = None,
        key: Text = None,
        *,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        on_delivery: Callable[[Delivery], None] | None = None,
    ) -> BlockingDelivery:
        """Queue a record; waits up to max_block_ms for the topic's metadata and for room in the buffer.

        `on_delivery` is called with the delivery from the client's own thread: it should be quick.
        """
        record = prepare(value, key, headers, timestamp_ms)
        with self._lock:
            delivery = self._twin.try_send(topic, partition, record)
        while delivery is None:
            self._run(self._twin.wait_to_send(topic, record))
            with self._lock:
                delivery = self._twin.try_send(topic, partition, record)
        assert isinstance(delivery, BlockingDelivery)
        if on_delivery is not None:
            delivery.add_done_callback(on_delivery)
        return delivery

    def flush(self, timeout_ms: float | None = None) -> None:
        """Send all that is queued now and wait until it is done, one way or the other."""
        self._run(self._twin.flush(timeout_ms))

    def partitions_for(self, topic: str) -> list[int]:
        return self._run(self._twin.partitions_for(topic))

    def close(self, timeout_ms: float | None = None) -> None:
        """Flush, then close. What could not be sent in time fails with Closed."""
        self._close(lambda: self._twin.close(timeout_ms))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Ctrl-C means now; any other error still lets what was sent before it go out.
        hurried = kind is not None and not issubclass(kind, Exception)
        self.close(_INTERRUPTED_CLOSE_MS if hurried else None)


class _ThreadedProducer(AsyncProducer):
    """An AsyncProducer that is fed from other threads."""

    def wake(self) -> None:
        self.driver.wake_threadsafe()


class _ThreadedConsumer(AsyncConsumer):
    """An AsyncConsumer that is drained from another thread."""

    def _wake(self) -> None:
        if self._driver is not None:
            self._driver.wake_threadsafe()


class Consumer(_Blocking):
    """Reads assigned partitions. Belongs to one thread at a time."""

    _twin: AsyncConsumer

    def __init__(self, settings: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(lambda lock: _ThreadedConsumer(settings, lock=lock, **more))

    def assignment(self) -> set[TopicPartition]:
        return self._twin.assignment()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            self._twin.assign(partitions)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        with self._lock:
            self._twin.seek(tp, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        with self._lock:
            self._twin.seek_to_beginning(partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        with self._lock:
            self._twin.seek_to_end(partitions)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            self._twin.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            self._twin.resume(partitions)

    def paused(self) -> set[TopicPartition]:
        return self._twin.paused()

    def position(self, tp: TopicPartition, timeout_ms: float | None = None) -> int:
        """The offset of the next record, looked up if need be."""
        return self._run(self._twin.position(tp, timeout_ms))

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Records:
        """Records by partition, waiting up to timeout_ms for the first."""
        deadline = monotonic_ms() + timeout_ms
        while True:
            with self._lock:
                records = self._twin.try_poll(max_records)
            remaining = deadline - monotonic_ms()
            if records or remaining <= 0:
                return records
            self._run(self._twin.driver.until(self._twin.consumer.has_data, remaining))

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records for ever. The position is that of the last poll, a few records ahead."""
        while True:
            for records in self.poll(_ITERATION_WAIT_MS).values():
                yield from records

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._run(self._twin.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._run(self._twin.end_offsets(partitions))

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return self._run(self._twin.offsets_for_times(timestamps))

    def partitions_for(self, topic: str) -> list[int]:
        return self._run(self._twin.partitions_for(topic))


class Admin(_Blocking):
    """Topics, partitions, configurations, offsets, records, directories: see AsyncAdmin."""

    _twin: AsyncAdmin

    def __init__(self, settings: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(lambda lock: AsyncAdmin(settings, lock=lock, **more))

    def create_topics(self, topics: Sequence[NewTopic], **more: Any) -> dict[str, CreatedTopic | KafkaError]:
        return self._run(self._twin.create_topics(topics, **more))

    def delete_topics(self, names: Iterable[str], **more: Any) -> dict[str, KafkaError | None]:
        return self._run(self._twin.delete_topics(names, **more))

    def create_partitions(self, counts: Mapping[str, int], **more: Any) -> dict[str, KafkaError | None]:
        return self._run(self._twin.create_partitions(counts, **more))

    def list_topics(self) -> list[TopicListing]:
        return self._run(self._twin.list_topics())

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription | KafkaError]:
        return self._run(self._twin.describe_topics(names))

    def describe_configs(
        self, resources: Iterable[ConfigResource], **more: Any
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
        return self._run(self._twin.describe_configs(resources, **more))

    def incremental_alter_configs(
        self, changes: Mapping[ConfigResource, Sequence[ConfigChange]], **more: Any
    ) -> dict[ConfigResource, KafkaError | None]:
        return self._run(self._twin.incremental_alter_configs(changes, **more))

    def list_config_resources(self, types: Iterable[ResourceType] = ()) -> list[ConfigResource]:
        return self._run(self._twin.list_config_resources(types))

    def describe_cluster(self) -> ClusterDescription:
        return self._run(self._twin.describe_cluster())

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None
    ) -> dict[int, list[LogDirDescription] | KafkaError]:
        return self._run(self._twin.describe_log_dirs(brokers))

    def delete_records(
        self, before: Mapping[TopicPartition, int], **more: Any
    ) -> dict[TopicPartition, int | KafkaError]:
        return self._run(self._twin.delete_records(before, **more))

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], **more: Any
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        return self._run(self._twin.list_offsets(timestamps, **more))

    def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ActiveProducer] | KafkaError]:
        return self._run(self._twin.describe_producers(partitions))
