"""Records waiting to be sent, and batches on their way from `send` to their acknowledgement.

Rules: appending never waits; the caller asks `has_room` first and waits if there is none. A batch that comes back to
be sent again goes to the front of its queue, by sequence number if it has one, so that order is kept. Records wait as
they came, as tuples; they become bytes once, when their batch is first drained, in the record kernel. Only the 14 bytes
that say who the producer is change after that. Owned by a producer; a Delivery is shared with whoever called send.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from ottla.model.errors import KafkaError
from ottla.model.ids import (
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TopicPartition,
)
from ottla.model.tasks import report
from ottla.records.batch import HEADER_SIZE, is_after, stamp_batch
from ottla.records.record import build_batch

# What a record takes beside its key and value in most batches: seven varints of one or two bytes.
RECORD_OVERHEAD_BYTES = 10
HEADER_OVERHEAD_BYTES = 4

Headers = Sequence[tuple[str, bytes | None]]
NewRecord = tuple[int, bytes | None, bytes | None, Headers]


class RecordMetadata(NamedTuple):
    """Where a record ended up. The offset is -1 if nobody was asked (acks=0)."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class Delivery:
    """What becomes of one record. Drivers derive from it to wait in their own way."""

    __slots__ = ("_batch", "_callbacks", "_index")

    def __init__(self, batch: "ProducerBatch", index: int) -> None:
        self._batch = batch
        self._index = index
        self._callbacks: list[Callable[[Any], None]] | None = None

    def done(self) -> bool:
        return self._batch.is_done

    def exception(self) -> KafkaError | None:
        """Why the record failed; None if it did not, or not yet."""
        return self._batch.error

    def metadata(self) -> RecordMetadata:
        """Where the record is; raises what went wrong. Only when done."""
        batch = self._batch
        assert batch.is_done, "the record is still on its way"
        if batch.error is not None:
            raise batch.error
        offset = NO_OFFSET if batch.base_offset < 0 else batch.base_offset + self._index
        timestamp = batch.log_append_time_ms
        if timestamp == NO_TIMESTAMP:
            timestamp = batch.timestamps[self._index]
        return RecordMetadata(batch.tp.topic, batch.tp.partition, offset, timestamp)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call back with this delivery when it is done, at once if it is."""
        if self._batch.is_done:
            callback(self)
            return
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)
        self._batch.has_callbacks = True

    def _move(self, batch: "ProducerBatch", index: int) -> None:
        """The record now travels in another batch: its own was too large for the broker."""
        self._batch, self._index = batch, index
        batch.has_callbacks = batch.has_callbacks or self._callbacks is not None

    def _finished(self) -> None:
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                callback(self)
            except Exception as error:  # noqa: BLE001 - the application's: the client has other answers to see to
                report(error, name="a delivery callback", owner="the producer")


class ProducerBatch:
    """Records for one partition that go together: appended one by one, or encoded already by somebody else."""

    __slots__ = (
        "attempts",
        "base_offset",
        "base_sequence",
        "created_ms",
        "deliveries",
        "encoded",
        "error",
        "full",
        "has_callbacks",
        "in_flight",
        "is_done",
        "log_append_time_ms",
        "not_before_ms",
        "parts",
        "producer_epoch",
        "producer_id",
        "record_count",
        "records",
        "sequence_was_reset",
        "size_bytes",
        "timestamps",
        "tp",
    )

    def __init__(
        self,
        tp: TopicPartition,
        created_ms: float,
        encoded: bytearray | None = None,
        record_count: int = 0,
    ) -> None:
        """`encoded` is a whole batch that lacks only its producer and number; it belongs to this one from here on."""
        self.tp = tp
        self.created_ms = created_ms
        self.record_count = record_count
        self.records: list[NewRecord] = []
        self.deliveries: list[Delivery] = []
        self.timestamps: Sequence[int] = ()
        self.size_bytes = HEADER_SIZE if encoded is None else len(encoded)
        self.full = encoded is not None
        self.attempts = 0
        self.not_before_ms = float("-inf")
        self.in_flight = False
        self.producer_id: int = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.base_sequence = NO_SEQUENCE
        self.sequence_was_reset = False
        self.encoded = encoded
        self.has_callbacks = False
        self.parts: list[
            ProducerBatch
        ] = []  # what goes in its place since it was split: it is never done itself
        self.is_done = False
        self.error: KafkaError | None = None
        self.base_offset: int = NO_OFFSET
        self.log_append_time_ms: int = NO_TIMESTAMP

    @property
    def has_sequence(self) -> bool:
        return self.base_sequence != NO_SEQUENCE

    def set_producer(self, producer_id: int, epoch: int, base_sequence: int) -> None:
        """Number the batch. Its bytes, if they are there already, are mended with it."""
        if self.base_sequence != NO_SEQUENCE:
            self.sequence_was_reset = True
        self.producer_id, self.producer_epoch, self.base_sequence = producer_id, epoch, base_sequence
        if self.encoded is not None:
            stamp_batch(self.encoded, producer_id, epoch, base_sequence)

    def encode(self, compression: int, level: int | None, *, transactional: bool = False) -> bytearray:
        """The batch as it is stored and sent; made once."""
        if self.encoded is None:
            self.encoded = build_batch(
                self.records,
                compression=compression,
                level=level,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self.base_sequence,
                transactional=transactional,
            )
        return self.encoded

    def split(self, limit_bytes: int) -> "list[ProducerBatch]":
        """The same records in batches of at most `limit_bytes` (or of one record), in order."""
        parts: list[ProducerBatch] = []
        for record, delivery in zip(self.records, self.deliveries, strict=True):
            size = record_size(record)
            if not parts or parts[-1].size_bytes + size > limit_bytes:
                part = ProducerBatch(self.tp, self.created_ms)
                part.full, part.attempts = True, self.attempts
                parts.append(part)
            part = parts[-1]
            delivery._move(part, part.record_count)
            part.records.append(record)
            part.deliveries.append(delivery)
            part.record_count += 1
            part.size_bytes += size
        self.parts = parts
        return parts

    def finish(self, base_offset: int, log_append_time_ms: int, error: KafkaError | None) -> None:
        """The outcome is known: deliveries have it, and their callbacks are called."""
        assert not self.is_done
        self.base_offset, self.log_append_time_ms, self.error = base_offset, log_append_time_ms, error
        if self.records:
            self.timestamps = [record[0] for record in self.records]
            self.records = []
        self.encoded = None
        self.is_done = True
        if self.has_callbacks:
            for delivery in self.deliveries:
                delivery._finished()


def record_size(record: NewRecord) -> int:
    """About what a record takes in a batch."""
    _, key, value, headers = record
    size = RECORD_OVERHEAD_BYTES
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    if headers:
        for name, content in headers:
            size += HEADER_OVERHEAD_BYTES + len(name) + (len(content) if content is not None else 0)
    return size


class RecordAccumulator:
    """Kafka's RecordAccumulator: a queue of batches for each partition, within buffer_memory in all."""

    def __init__(
        self,
        *,
        batch_size: int,
        linger_ms: float,
        buffer_memory: int,
        delivery_type: type[Delivery] = Delivery,
    ) -> None:
        self._batch_size = batch_size
        self._linger_ms = linger_ms
        self._buffer_memory = buffer_memory
        self._delivery_type = delivery_type
        # Only partitions with something in their queue: a pump looks at each of them.
        self.queues: dict[TopicPartition, deque[ProducerBatch]] = {}
        self.incomplete: dict[ProducerBatch, None] = {}
        self.used_bytes = 0
        self.hurry = 0  # how many flushes are under way: linger does not count then
        self.blocked = False  # somebody waits for room: linger does not count then either

    def has_room(self, size_bytes: int) -> bool:
        """Room for a record of this size, also if it opens a batch."""
        return self.used_bytes + size_bytes + HEADER_SIZE <= self._buffer_memory

    def fits_open_batch(self, tp: TopicPartition, size_bytes: int) -> bool:
        """Whether a record would go into a batch that is there already (or there is none to leave behind)."""
        queue = self.queues.get(tp)
        if not queue or queue[-1].full:
            return True
        return queue[-1].size_bytes + size_bytes <= self._batch_size

    def append(
        self, tp: TopicPartition, record: NewRecord, size_bytes: int, now: float
    ) -> tuple[Delivery, bool]:
        """Add a record; the second value says whether the sender has something new to look at."""
        queue = self.queues.get(tp)
        if queue is None:
            queue = self.queues[tp] = deque()
        batch = queue[-1] if queue else None
        is_news = False
        if batch is None or batch.full or batch.encoded is not None:
            batch, is_news = self._open(tp, queue, now), True
        elif batch.size_bytes + size_bytes > self._batch_size:
            batch.full = True
            batch, is_news = self._open(tp, queue, now), True
        delivery = self._delivery_type(batch, batch.record_count)
        batch.records.append(record)
        batch.deliveries.append(delivery)
        batch.record_count += 1
        batch.size_bytes += size_bytes
        self.used_bytes += size_bytes
        if batch.size_bytes >= self._batch_size:
            batch.full = is_news = True
        return delivery, is_news

    def add(self, batch: ProducerBatch) -> None:
        """Queue a finished batch."""
        self.queues.setdefault(batch.tp, deque()).append(batch)
        self.incomplete[batch] = None
        self.used_bytes += batch.size_bytes

    def _open(self, tp: TopicPartition, queue: deque[ProducerBatch], now: float) -> ProducerBatch:
        batch = ProducerBatch(tp, now)
        queue.append(batch)
        self.incomplete[batch] = None
        self.used_bytes += batch.size_bytes
        return batch

    def is_ready(self, queue: deque[ProducerBatch], now: float) -> bool:
        """Should the first batch go now, if its leader can take it?"""
        head = queue[0]
        if head.not_before_ms > now:
            return False
        if head.full or head.attempts or len(queue) > 1 or self.hurry or self.blocked:
            return True
        return head.created_ms + self._linger_ms <= now

    def next_deadline(self, now: float) -> float:
        """When a batch that waits has waited long enough."""
        due = float("inf")
        for queue in self.queues.values():
            head = queue[0]
            moment = max(head.created_ms + self._linger_ms, head.not_before_ms)
            if now < moment < due:
                due = moment
        return due

    def take(self, tp: TopicPartition) -> ProducerBatch:
        """Remove the first batch of a partition; it is closed for further records."""
        queue = self.queues[tp]
        batch = queue.popleft()
        batch.full = True
        if not queue:
            del self.queues[tp]
        return batch

    def put_back(self, batch: ProducerBatch) -> None:
        """A batch is to be sent again: before all that have not been sent, after all that come before it."""
        queue = self.queues.get(batch.tp)
        if queue is None:
            queue = self.queues[batch.tp] = deque()
        ahead = []
        if batch.has_sequence:
            while queue and _comes_before(queue[0], batch):
                ahead.append(queue.popleft())
        queue.appendleft(batch)
        queue.extendleft(reversed(ahead))

    def replace(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """A batch was too large: its parts take its place."""
        self.release(batch)
        # In front, because `incomplete` is in order of creation: the parts are as old as the whole.
        self.incomplete = {**dict.fromkeys(parts), **self.incomplete}
        for part in reversed(parts):
            self.used_bytes += part.size_bytes
            self.put_back(part)

    def release(self, batch: ProducerBatch) -> None:
        """The batch's fate is known: its memory is free."""
        if batch in self.incomplete:
            del self.incomplete[batch]
            self.used_bytes -= batch.size_bytes

    def remove_queued(self, batch: ProducerBatch) -> None:
        """Take a batch that has failed out of its queue, if it is in it."""
        queue = self.queues.get(batch.tp)
        if queue is not None and batch in queue:
            queue.remove(batch)
            if not queue:
                del self.queues[batch.tp]

    def queue_sizes(self, topic: str, partitions: Sequence[int]) -> list[int]:
        """How many batches wait for each of these partitions, for the sticky partitioner."""
        queues = self.queues
        return [len(queues.get(TopicPartition(topic, partition), ())) for partition in partitions]

    def overdue(self, timeout_ms: float, now: float) -> list[ProducerBatch]:
        """Batches whose time for delivery has run out."""
        # Added as in the sender's deadline: `now - timeout_ms` may be rounded to before the moment it woke us for.
        return list(takewhile(lambda batch: batch.created_ms + timeout_ms <= now, self.incomplete))


def _comes_before(queued: ProducerBatch, batch: ProducerBatch) -> bool:
    if not queued.has_sequence:
        return False
    if queued.producer_epoch != batch.producer_epoch:
        return queued.producer_epoch < batch.producer_epoch
    return is_after(batch.base_sequence, queued.base_sequence)
