"""Writing finished batches: what encodes them numbers them, this brings them to their partitions.

    producer = RawProducer(client, producer_id=..., producer_epoch=...)
    producer.send(tp, 1000, lambda base_sequence: build_batch(..., base_sequence=base_sequence))
    written = producer.flush()

Batches carry the producer's id and epoch and the number they are given, so a retry is never written twice; acks
is always all. With a transactional_id they are part of that producer's open transaction, which whoever has the
handle ends (ottla.client.transactions_by_id). Runs in its caller's thread: between two calls nothing moves.
"""

from collections.abc import Callable
from typing import Self

from ottla.client.batch_sender import BatchSender, Written
from ottla.client.errors import RecordTooLarge
from ottla.client.inline import InlineClient
from ottla.client.transport import GRACE_MS
from ottla.model.ids import TopicPartition
from ottla.records.types import Buffer

MAX_REQUEST_BYTES = 1_048_576
BUFFER_BYTES = 33_554_432
DELIVERY_TIMEOUT_MS = 120_000.0


class RawProducer:
    """See the module. After an error nothing more can be written: every later call raises it again."""

    def __init__(
        self,
        client: InlineClient,
        *,
        producer_id: int,
        producer_epoch: int,
        transactional_id: str | None = None,
        max_request_bytes: int = MAX_REQUEST_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        delivery_timeout_ms: float = DELIVERY_TIMEOUT_MS,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.transactional_id = transactional_id
        self._client = client
        self._max_request_bytes = max_request_bytes
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout_ms = delivery_timeout_ms
        self._sender = BatchSender(
            client.core,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional_id=transactional_id,
            max_request_bytes=max_request_bytes,
            delivery_timeout_ms=delivery_timeout_ms,
        )

    def send(self, tp: TopicPartition, records_count: int, build: Callable[[int], Buffer]) -> None:
        """Queue one batch; `build` is called at once, with the number of its first record. Blocks while too much waits.

        The batch is kept until it is acknowledged and must not be changed. MESSAGE_TOO_LARGE if it is larger than
        a request may be.
        """
        assert records_count > 0, "a batch holds at least one record"
        self._check()
        data = build(self._sender.next_sequence(tp))
        if len(data) > self._max_request_bytes:
            raise RecordTooLarge(
                f"{tp}: a batch of {records_count} record(s) has {len(data)} bytes, "
                f"max.request.size allows {self._max_request_bytes}"
            )
        self._sender.add(tp, data, records_count, self._client.now_ms())
        if self._sender.pending_bytes > self._buffer_bytes:
            self._wait(lambda: self._sender.pending_bytes <= self._buffer_bytes)
        elif self._sender.unsent_bytes * 2 >= self._max_request_bytes:
            self._client.turn()
        self._check()

    def flush(self) -> dict[TopicPartition, Written]:
        """Wait until everything is written; what was written since the producer was made, per partition."""
        self._check()
        self._wait(lambda: not self._sender.pending_bytes)
        self._check()
        return {tp: lane.written for tp, lane in self._sender.lanes.items() if lane.written is not None}

    def close(self) -> None:
        """Give up what is not written; the client stays open."""
        self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, enough: Callable[[], bool]) -> None:
        sender = self._sender
        self._client.until(lambda: sender.error is not None or enough(), self._delivery_timeout_ms + GRACE_MS)

    def _check(self) -> None:
        if self._sender.error is not None:
            raise self._sender.error


__all__ = ["RawProducer", "Written"]
