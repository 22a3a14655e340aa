"""Rows into record batches: which partition each row goes to, and the batches it becomes part of. No I/O.

Works on Arrow's buffers in the record kernel, never on single rows. The keyed go by murmur2, as every Kafka client
sends them; those without a key all go to one partition for a while ("sticky"), the next chunk to the next one.
Owned by one task attempt.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.records.columns import (
    RowColumns,
    encode_columns,
    murmur2_partitions,
    no_partitions,
    prepare_batch,
    row_columns,
    split_rows,
)
from ottla.spark.sink_options import SinkOptions

# Rows are gathered up to this before they are split by partition: many partitions would get tiny batches otherwise.
CHUNK_BYTES = 8 * 1024 * 1024
MAX_CHUNK_ROWS = 1_000_000
_SMALL_TYPES = {pa.large_binary(): pa.binary(), pa.large_string(): pa.string()}


class RowError(ValueError):
    """A row that cannot be written, and why."""


class Prepared(NamedTuple):
    """A batch that lacks its producer and sequence; see ottla.records.columns.stamp_batch."""

    tp: TopicPartition
    rows: int
    batch: bytearray


def gather(batches: Iterable[Any], chunk_bytes: int = CHUNK_BYTES) -> Iterator[Any]:
    """Record batches, put together until they are worth splitting; empty ones are left out."""
    held: list[Any] = []
    size = rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        size += batch.get_total_buffer_size()  # `nbytes` looks into every column, 30 times as long
        rows += batch.num_rows
        if size >= chunk_bytes or rows >= MAX_CHUNK_ROWS:
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
    """See the module. `partition_count(topic)` says how many partitions a topic has, or raises."""

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
        columns = row_columns(*(_small(_column(rows, name)) for name in ("key", "value", "headers")))
        asked = _asked_partitions(_column(rows, "partition"))
        for topic, which in self._topics(rows):
            yield from self._encode_topic(topic, which, columns, asked, rows.num_rows, now_ms)

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
