"""One attempt of a task: its rows into a transaction that stays open, or (at least once) straight into the topics.

Runs in Spark's Python workers on executors, which are reused: the client is the process's own (connection.py). What
an attempt wrote is known to the driver by its message alone; one that fails aborts its transaction, one that is
killed leaves it to the driver's commit, to the next attempt of that name, or to the transaction's timeout.

Rows become record batches in the record kernel, from Arrow's buffers, never one by one. Those with a key go by murmur2,
as every Kafka client sends them; those without all go to one partition for a while ("sticky"), the next chunk to the
next one.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.inline import InlineClient
from ottla.client.producer.inline import RawProducer
from ottla.client.transaction.by_id import TxnHandle, end, init_producer_id
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_OFFSET, TopicPartition
from ottla.records.columns import (
    RowColumns,
    encode_columns,
    murmur2_partitions,
    no_partitions,
    prepare_batch,
    row_columns,
    split_rows,
)
from ottla.spark.connection import forget, shared_client
from ottla.spark.encryption import sealed, sealer_of
from ottla.spark.sink.cluster import read_decision
from ottla.spark.sink.commit import Entry, Span
from ottla.spark.sink.options import SinkOptions

# Rows are gathered before they are split by partition: many partitions would get tiny batches otherwise. No more than
# that takes, though, and no more on its way than keeps the brokers busy: what is larger than the processor's caches,
# and memory that is new instead of used again, take a quarter more of a worker's time.
PARTITION_BYTES = 64 * 1024
MIN_CHUNK_BYTES = 1024 * 1024
MAX_CHUNK_BYTES = 8 * 1024 * 1024
MAX_CHUNK_ROWS = 1_000_000
BUFFER_BYTES = 8 * 1024 * 1024
_SMALL_TYPES = {pa.large_binary(): pa.binary(), pa.large_string(): pa.string()}


class RowError(ValueError):
    """A row that cannot be written, and why."""


class Prepared(NamedTuple):
    """A batch that lacks its producer and sequence; see RawProducer.send."""

    tp: TopicPartition
    rows: int
    batch: bytearray


def chunk_bytes(partitions: int) -> int:
    """How much is worth splitting over so many partitions."""
    return min(max(partitions * PARTITION_BYTES, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES)


def gather(batches: Iterable[Any], enough_bytes: Callable[[], int]) -> Iterator[Any]:
    """Record batches, put together until there are enough bytes, as of when it is asked; empty ones are left out."""
    held: list[Any] = []
    size = rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        size += batch.get_total_buffer_size()  # `nbytes` looks into every column, 30 times as long
        rows += batch.num_rows
        if size >= enough_bytes() or rows >= MAX_CHUNK_ROWS:
            yield _one(held)
            held, size, rows = [], 0, 0
    if held:
        yield _one(held)


def _one(held: list[Any]) -> Any:
    if len(held) == 1:
        return held[0]
    (batch,) = pa.Table.from_batches(held).combine_chunks().to_batches()
    return batch


class RowEncoder:
    """Rows into record batches, by partition. `partition_count(topic)` gives the number of partitions, or raises."""

    def __init__(
        self,
        options: SinkOptions,
        partition_count: Callable[[str], int],
        *,
        transactional: bool,
        sticky: int = 0,
    ) -> None:
        self._options = options
        self._partition_count = partition_count
        self._transactional = transactional
        self._sticky = sticky

    def encode(self, rows: Any, now_ms: int) -> Iterator[Prepared]:
        """A pyarrow.RecordBatch with the sink's columns as batches; RowError for a row that cannot be written."""
        self._sticky += 1
        columns = self._columns(rows)
        asked = _asked_partitions(_column(rows, "partition"))
        for topic, which in self._topics(rows):
            yield from self._encode_topic(topic, which, columns, asked, rows.num_rows, now_ms)

    def _columns(self, rows: Any) -> RowColumns:
        key, value, headers = (_small(_column(rows, name)) for name in ("key", "value", "headers"))
        sealer = None if self._options.encryption_key is None else sealer_of(self._options.encryption_key)
        if sealer is None:
            return row_columns(key, value, headers)
        count, topic = rows.num_rows, self._options.topic
        # A row without a topic is refused by `_topics`, whatever has been made of it here.
        topics = (
            [name or "" for name in rows.column("topic").to_pylist()] if topic is None else [topic] * count
        )
        columns = (
            [None] * count if column is None else column.to_pylist() for column in (key, value, headers)
        )
        return sealed(sealer, topics, *columns)

    def _topics(self, rows: Any) -> list[tuple[str, Any | None]]:
        """Each topic with the numbers of its rows; None for all of them."""
        if self._options.topic is not None:
            return [(self._options.topic, None)]
        column = rows.column("topic")
        if column.null_count:
            raise RowError(
                f"{column.null_count} of {rows.num_rows} rows have no topic: the column 'topic' is null and there is "
                "no option 'topic' to stand in for it"
            )
        names = pc.unique(column).to_pylist()
        if len(names) == 1:
            return [(names[0], None)]
        return [(name, pc.indices_nonzero(pc.equal(column, name)).cast(pa.int32())) for name in names]

    def _encode_topic(
        self, topic: str, which: Any | None, columns: RowColumns, asked: Any | None, total: int, now_ms: int
    ) -> Iterator[Prepared]:
        partitions = self._partition_count(topic)
        ids = no_partitions(total)
        if asked is not None:
            ids[:] = memoryview(_checked(asked, which, topic, partitions)).cast("B")
        numbers = None if which is None else which.buffers()[1].slice(0, 4 * len(which))
        if columns.key is not None:
            murmur2_partitions(columns.key, numbers, partitions, ids)
        order, bounds = split_rows(ids, numbers, partitions, self._sticky % partitions)
        for partition in range(partitions):
            at = TopicPartition(topic, partition)
            yield from self._encode_partition(at, columns, order, bounds[partition : partition + 2], now_ms)

    def _encode_partition(
        self, tp: TopicPartition, columns: RowColumns, order: Any, bounds: tuple[int, ...], now_ms: int
    ) -> Iterator[Prepared]:
        start, stop = bounds
        options = self._options
        while start < stop:
            section, after = encode_columns(columns, order, start, stop, options.batch_bytes)
            if len(section) > options.max_request_bytes:
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a row for topic {tp.topic!r} takes {len(section)} bytes, which is more than "
                    f"kafka.max.request.size ({options.max_request_bytes})",
                )
            batch = prepare_batch(
                section,
                after - start,
                now_ms,
                compression=options.compression,
                level=options.compression_level,
                transactional=self._transactional,
            )
            yield Prepared(tp, after - start, batch)
            start = after


def _column(rows: Any, name: str) -> Any | None:
    index = rows.schema.get_field_index(name)
    return None if index < 0 else rows.column(index)


def _small(column: Any | None) -> Any | None:
    """Spark's large types (spark.sql.execution.arrow.useLargeVarTypes) as the small ones that the kernel takes."""
    if column is None:
        return None
    if column.type in _SMALL_TYPES:
        return column.cast(_SMALL_TYPES[column.type])
    if pa.types.is_list(column.type) and any(field.type in _SMALL_TYPES for field in column.type.value_type):
        fields = [pa.field(f.name, _SMALL_TYPES.get(f.type, f.type)) for f in column.type.value_type]
        return column.cast(pa.list_(pa.struct(fields)))
    return column


def _asked_partitions(column: Any | None) -> Any | None:
    """The column 'partition' with nulls; None if nobody asked for any."""
    return None if column is None or column.null_count == len(column) else column


def _checked(asked: Any, which: Any | None, topic: str, partitions: int) -> Any:
    """A buffer of the partitions asked for, -1 where there is none; all of this topic's rows are in range."""
    own = asked if which is None else asked.take(which)
    lowest, highest = pc.min_max(own).values()
    if lowest.is_valid and not 0 <= lowest.as_py() <= highest.as_py() < partitions:
        wrong = lowest.as_py() if lowest.as_py() < 0 else highest.as_py()
        raise RowError(
            f"the column 'partition' asks for partition {wrong} of topic {topic!r}, which has {partitions}: "
            f"0 to {partitions - 1}"
        )
    plain = asked.fill_null(-1)
    return plain.buffers()[1].slice(4 * plain.offset, 4 * len(plain))


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
    partitions: dict[str, int] = {}  # of the topics that there were rows for so far
    chunks = gather(batches, lambda: chunk_bytes(sum(partitions.values())))
    first = next(chunks, None)
    if first is None:
        return report
    client = shared_client(options.kafka)
    try:
        if options.is_exactly_once and attempt.may_be_decided and _is_decided(client, attempt):
            _drain(chunks)
            return TaskReport(attempt.prefix, attempt.query_id, attempt.batch_id, skipped=True)
        return _Writer(options, attempt, client, partitions).write(first, chunks)
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

    def __init__(
        self, options: SinkOptions, attempt: Attempt, client: InlineClient, partitions: dict[str, int]
    ) -> None:
        """`partitions`: how many a topic has, filled in here."""
        self._options = options
        self._attempt = attempt
        self._client = client
        self._partitions = partitions
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
            buffer_bytes=max(BUFFER_BYTES, options.max_request_bytes),
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
        for tp, rows, batch in batches:
            producer.send(tp, rows, batch)
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
