"""Writing finished batches: somebody else has encoded them, this numbers them and brings them to their partitions.

    producer = RawProducer(client, producer_id=..., producer_epoch=...)
    producer.send(tp, 1000, prepare_batch(...))
    written = producer.flush()

Batches get the producer's id, epoch and number when they are first sent, so a retry is never written twice; acks is
always all. The first failure that does not pass ends everything: numbers after a gap would never be taken. With a
transactional_id they are part of that producer's open transaction, which whoever has the handle ends
(ottla.client.transaction.by_id). Runs in its caller's thread: between two calls nothing moves.
"""

from collections.abc import Callable
from typing import NamedTuple, Self

from ottla.client.errors import Closed, ProducerFenced, RecordTooLarge
from ottla.client.inline import InlineClient
from ottla.client.lookups import GRACE_MS, WatchedPlaces
from ottla.client.producer.accumulator import ProducerBatch, RecordAccumulator
from ottla.client.producer.identity import OnGap, ProducerIdentity
from ottla.client.producer.sender import Sender, SendSettings
from ottla.client.transaction.manager import TransactionPartitions
from ottla.client.transaction.messages import FENCED, TRANSACTION_VERSION, TxnHandle
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_OFFSET, TopicPartition

MAX_REQUEST_BYTES = 1_048_576
BUFFER_BYTES = 33_554_432
DELIVERY_TIMEOUT_MS = 120_000.0


class Written(NamedTuple):
    """What a partition has taken: no other record of this producer lies outside of these offsets."""

    first_offset: int
    last_offset: int
    records_count: int


class RawProducer:
    """A producer of finished batches. After an error nothing more can be written: every later call raises it again."""

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
        self._client = client
        self._max_request_bytes = max_request_bytes
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout_ms = delivery_timeout_ms
        self._written: dict[TopicPartition, Written] = {}
        identity = ProducerIdentity(OnGap.FAIL)
        identity.assigned(producer_id, producer_epoch)
        self._accumulator = RecordAccumulator(batch_size=0, linger_ms=0.0, buffer_memory=buffer_bytes)
        self.sender = Sender(
            client.core,
            self._accumulator,
            SendSettings(
                max_request_bytes=max_request_bytes,
                request_timeout_ms=client.core.config.request_timeout_ms,
                delivery_timeout_ms=delivery_timeout_ms,
                transactional_id=transactional_id,
            ),
            places=WatchedPlaces(client.core),
            identity=identity,
            on_done=self._on_done,
        )
        self._partitions: TransactionPartitions | None = None
        if transactional_id is not None and client.core.feature_level(TRANSACTION_VERSION) < 2:
            self._partitions = self._version_1(TxnHandle(transactional_id, producer_id, producer_epoch))
            self.sender.membership = self._partitions

    def _version_1(self, txn: TxnHandle) -> TransactionPartitions:
        """With version 1 of transactions the coordinator hears of partitions before they are written to."""

        def refused(code: ErrorCode) -> None:
            words = f"transactional id {txn.transactional_id!r}: partitions cannot be added: {code.name}"
            self.sender.fail(ProducerFenced(words) if code in FENCED else KafkaError(code, words))

        return TransactionPartitions(
            self._client.core,
            lambda: txn,
            timeout_ms=self._delivery_timeout_ms,
            on_refused=refused,
            on_lost=self.sender.fail,
        )

    def send(self, tp: TopicPartition, records_count: int, data: bytearray) -> None:
        """Queue one batch, whole but for its producer and number, which are put into it. Blocks while too much waits.

        `data` belongs to the producer from here on. MESSAGE_TOO_LARGE if it is larger than a request may be.
        """
        assert records_count > 0, "a batch holds at least one record"
        sender, accumulator = self.sender, self._accumulator
        if sender.fatal is not None:
            raise sender.fatal
        if len(data) > self._max_request_bytes:
            raise RecordTooLarge(
                f"{tp}: a batch of {records_count} record(s) has {len(data)} bytes, "
                f"max.request.size allows {self._max_request_bytes}"
            )
        accumulator.add(ProducerBatch(tp, self._client.now_ms(), data, records_count))
        if self._partitions is not None:
            self._partitions.uses(tp)
        if accumulator.used_bytes > self._buffer_bytes:
            self._wait(lambda: accumulator.used_bytes <= self._buffer_bytes)
            self._check()
        elif (accumulator.used_bytes - sender.in_flight_bytes) * 2 >= self._max_request_bytes:
            self._client.turn()
            self._check()

    def flush(self) -> dict[TopicPartition, Written]:
        """Wait until everything is written; what was written since the producer was made, per partition."""
        self._check()
        self._wait(lambda: not self._accumulator.incomplete)
        self._check()
        return dict(self._written)

    def close(self) -> None:
        """Give up what is not written; the client stays open."""
        self.sender.close(Closed())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, enough: Callable[[], bool]) -> None:
        sender = self.sender
        self._client.until(lambda: sender.fatal is not None or enough(), self._delivery_timeout_ms + GRACE_MS)

    def _check(self) -> None:
        if self.sender.fatal is not None:
            raise self.sender.fatal

    def _on_done(self, batch: ProducerBatch) -> None:
        error = batch.error
        if error is not None:
            fenced = error.code in FENCED and not isinstance(error, ProducerFenced)
            words = f"{error.message}: another producer has taken over"
            self.sender.fail(ProducerFenced(words) if fenced else error)
            return
        first, last, before = self._written.get(batch.tp) or Written(NO_OFFSET, NO_OFFSET, 0)
        base_offset, count = batch.base_offset, batch.record_count
        if base_offset != NO_OFFSET:
            first = base_offset if first == NO_OFFSET else min(first, base_offset)
            last = max(last, base_offset + count - 1)
        self._written[batch.tp] = Written(first, last, before + count)
