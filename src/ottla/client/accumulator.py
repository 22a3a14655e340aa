"""Records waiting to be sent: a queue of batches for each partition, within buffer_memory in all.

Rules: appending never waits; the caller asks `has_room` first and waits if there is none. A batch that comes
back to be sent again goes to the front of its queue, by sequence number if it has one, so that order is kept.
Owned by the producer core.
"""

from collections import deque
from collections.abc import Sequence
from itertools import takewhile

from ottla.client.batch import Delivery, NewRecord, ProducerBatch
from ottla.client.config import ProducerConfig
from ottla.model.ids import TopicPartition
from ottla.records.batch import HEADER_SIZE


class Accumulator:
    """See the module."""

    def __init__(self, config: ProducerConfig, delivery_type: type[Delivery]) -> None:
        self._batch_size = config.batch_size
        self._linger_ms = config.linger_ms
        self._buffer_memory = config.buffer_memory
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
        delivery = self._delivery_type(batch, len(batch.records))
        batch.records.append(record)
        batch.deliveries.append(delivery)
        batch.size_bytes += size_bytes
        self.used_bytes += size_bytes
        if batch.size_bytes >= self._batch_size:
            batch.full = is_news = True
        return delivery, is_news

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

    def overdue(self, created_before_ms: float) -> list[ProducerBatch]:
        """Batches whose time for delivery has run out."""
        return list(takewhile(lambda batch: batch.created_ms <= created_before_ms, self.incomplete))


def _comes_before(queued: ProducerBatch, batch: ProducerBatch) -> bool:
    if not queued.has_sequence:
        return False
    if queued.producer_epoch != batch.producer_epoch:
        return queued.producer_epoch < batch.producer_epoch
    return queued.base_sequence < batch.base_sequence
