"""One attempt of a task: its rows into a transaction that stays open, or (at least once) straight into the topics.

Runs in Spark's Python workers on executors, which are reused: the client is the process's own (connection.py). What
an attempt wrote is known to the driver by its message alone; one that fails aborts its transaction, one that is
killed leaves it to the driver's commit, to the next attempt of that name, or to the transaction's timeout.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ottla.client.inline import InlineClient
from ottla.client.raw_produce import RawProducer
from ottla.client.transactions_by_id import TxnHandle, end, init_producer_id
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_OFFSET
from ottla.records.columns import stamp_batch
from ottla.spark.connection import forget, shared_client
from ottla.spark.decision import Entry, Span
from ottla.spark.sink_cluster import read_decision
from ottla.spark.sink_options import SinkOptions
from ottla.spark.sink_rows import RowEncoder, RowError, gather

log = logging.getLogger(__name__)


class Attempt(NamedTuple):
    """Which attempt of which task of which batch; `prefix` is what its transactional id begins with."""

    prefix: str
    query_id: str
    batch_id: int
    slot: int
    number: int
    # Whether the batch may have been decided before this attempt: a replay.
    may_be_decided: bool = True

    @property
    def transactional_id(self) -> str:
        return f"{self.prefix}-{self.slot}-{self.number}"


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What an attempt has done. No entry: it had no rows, or needed no transaction, or the batch was decided."""

    prefix: str
    query_id: str
    batch_id: int
    entry: Entry | None = None
    spans: tuple[Span, ...] = ()
    skipped: bool = False


def write_task(options: SinkOptions, attempt: Attempt, batches: Iterable[Any]) -> TaskReport:
    """Write all rows (pyarrow.RecordBatch each); the report says what the commit needs."""
    report = TaskReport(attempt.prefix, attempt.query_id, attempt.batch_id)
    chunks = gather(batches)
    first = next(chunks, None)
    if first is None:
        return report
    client = shared_client(options.kafka)
    try:
        if options.is_exactly_once and attempt.may_be_decided and _is_decided(client, attempt):
            _drain(chunks)
            return TaskReport(attempt.prefix, attempt.query_id, attempt.batch_id, skipped=True)
        return _Writer(options, attempt, client).write(first, chunks)
    except BaseException:
        # What is still under way on its connections must not reach the next task.
        forget(client)
        raise


def _is_decided(client: InlineClient, attempt: Attempt) -> bool:
    """Asked only to save work, so it waits for nobody: the commit looks again, under its fence."""
    decision = read_decision(client, attempt.prefix, require_stable=False)
    return decision is not None and decision.settles(attempt.query_id, attempt.batch_id)


def _drain(chunks: Iterator[Any]) -> None:
    """Spark wants its rows taken, also those that nobody needs."""
    for _ in chunks:
        pass


class _Writer:
    """The rows of one attempt on their way."""

    def __init__(self, options: SinkOptions, attempt: Attempt, client: InlineClient) -> None:
        self._options = options
        self._attempt = attempt
        self._client = client
        self._partitions: dict[str, int] = {}
        self._rows = 0

    def write(self, first: Any, more: Iterator[Any]) -> TaskReport:
        attempt, options = self._attempt, self._options
        name = attempt.transactional_id if options.is_exactly_once else None
        encoder = RowEncoder(
            options,
            self._partition_count,
            transactional=name is not None,
            sticky=attempt.slot + attempt.batch_id + attempt.number,
        )
        # Before a producer id is asked for: a topic that is missing is found out first.
        prepared = encoder.encode(first, _now_ms())
        head = next(prepared)
        who = init_producer_id(self._client, name, options.transaction_timeout_ms)
        producer = RawProducer(
            self._client,
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            transactional_id=name,
            max_request_bytes=options.max_request_bytes,
            delivery_timeout_ms=options.delivery_timeout_ms,
        )
        try:
            with producer:
                self._send(producer, iter([head]))
                self._send(producer, prepared)
                for chunk in more:
                    self._send(producer, encoder.encode(chunk, _now_ms()))
                spans = _spans(producer)
        except BaseException:
            if name is not None:
                self._abort(TxnHandle(name, *who))
            raise
        entry = Entry(attempt.slot, attempt.number, *who, self._rows) if name is not None else None
        return TaskReport(attempt.prefix, attempt.query_id, attempt.batch_id, entry, spans)

    def _send(self, producer: RawProducer, batches: Iterator[Any]) -> None:
        who = (producer.producer_id, producer.producer_epoch)
        for tp, rows, batch in batches:
            producer.send(tp, rows, partial(stamp_batch, batch, *who))
            self._rows += rows

    def _abort(self, handle: TxnHandle) -> None:
        """So that readers need not wait for the timeout; if it cannot be done now, others will do it."""
        try:
            end(self._client, handle, commit=False)
        except KafkaError as error:
            log.warning("the transaction of %s is left open: %s", handle.transactional_id, error)

    def _partition_count(self, topic: str) -> int:
        if topic not in self._partitions:
            self._partitions[topic] = partition_count(self._client, topic)
        return self._partitions[topic]


def partition_count(client: InlineClient, topic: str) -> int:
    """How many partitions the topic has; RowError if there is no such topic."""
    try:
        return len(client.topic(topic).partitions)
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise RowError(
            f"there is no topic {topic!r} to write to: create it, or let the broker do so with the option "
            "kafka.allow.auto.create.topics=true"
        ) from None


def _spans(producer: RawProducer) -> tuple[Span, ...]:
    spans = []
    for tp, written in sorted(producer.flush().items()):
        if written.first_offset == NO_OFFSET:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{tp} did not say where it has put the rows")
        spans.append(Span(tp.topic, tp.partition, written.first_offset, written.last_offset))
    return tuple(spans)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
