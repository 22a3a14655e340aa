"""Producer: the producer for plain threads. See ottla.client.blocking."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ottla.client.base import Blocking
from ottla.client.errors import TimedOut
from ottla.client.offsets import GroupMetadata, OffsetAndMetadata
from ottla.client.producer.accumulator import Delivery, Headers, RecordMetadata
from ottla.client.producer.aio import AsyncProducer, Text, prepare, sealed
from ottla.model.ids import TopicPartition

_INTERRUPTED_CLOSE_MS = 500.0


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


class Producer(Blocking):
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
            if self._twin.sealer is not None:
                record = sealed(self._twin.sealer, topic, record)
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

    # Transactions: see AsyncProducer.

    def init_transactions(self, timeout_ms: float | None = None) -> None:
        """Take over the transactional_id: older producers with it are fenced, what they left open is aborted."""
        self._run(self._twin.init_transactions(timeout_ms))

    def begin_transaction(self) -> None:
        """From here on everything that is sent becomes visible together, at commit_transaction."""
        with self._lock:
            self._twin.begin_transaction()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: GroupMetadata | str,
        timeout_ms: float | None = None,
    ) -> None:
        """Make a group's progress part of the transaction; `group` is the consumer's group_metadata()."""
        self._run(self._twin.send_offsets_to_transaction(offsets, group, timeout_ms))

    def commit_transaction(self, timeout_ms: float | None = None) -> None:
        """Send what is queued, then commit. TransactionAbortable: abort it. TimedOut: call it again."""
        self._run(self._twin.commit_transaction(timeout_ms))

    def abort_transaction(self, timeout_ms: float | None = None) -> None:
        """Nothing of the transaction will be seen by who reads committed records; what is queued is dropped."""
        self._run(self._twin.abort_transaction(timeout_ms))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin, then commit; abort if something is raised within."""
        self.begin_transaction()
        try:
            yield
            self.commit_transaction()
        except BaseException:
            if self._twin.transaction_is_open:
                self.abort_transaction()
            raise

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
