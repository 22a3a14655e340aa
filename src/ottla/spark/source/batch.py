"""`spark.read.format("ottla")`: a fixed range of each partition, settled when the read is planned.

The driver plans (partitions), tasks read; the reader itself travels between them and holds options only, without those
that are secret: what a task logs in with comes with its partition (ottla.spark.delegation). A task fetches
raw batches of one range and gives Spark their records as Arrow columns. Nothing is done for each record in Python:
fetched bytes go through the record kernel, which copies keys and values into columns, and the columns' buffers into
RecordBatches. The client is the process's own, kept from task to task.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ottla.client.consumer.inline import CompletedFetch, OffsetOutOfRange, RawFetcher, plain_sections
from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import batch_at
from ottla.records.columns import ColumnBuilder
from ottla.security.encryption import LeftSealed, Opener
from ottla.spark.connection import KafkaOptions, shared_client
from ottla.spark.delegation import Login, login_for, with_login
from ottla.spark.encryption import opened, opener_of, refuse_sealed
from ottla.spark.source.arrow import BatchMaker
from ottla.spark.source.cluster import Cluster, Losses, in_one_line
from ottla.spark.source.options import SourceOptions
from ottla.spark.source.plan import (
    AtEarliest,
    AtLatest,
    Narrowing,
    OffsetRange,
    bundled,
    named,
    narrowed,
    split,
)

# A RecordBatch is handed over when it has so many rows or bytes: large enough that its fixed costs do not
# show, small enough to stay in the processor's caches and to let Spark work while the next one is made. Measured with
# 100-byte values: four times as many rows take 6 % more time, a quarter of them 30 % more.
MAX_ROWS = 4_096
MAX_BYTES = 1024 * 1024


class RangePartition(InputPartition):
    """One task's ranges, and what it logs in with, as Spark sends them."""

    def __init__(self, ranges: Iterable[OffsetRange], login: Login | None = None) -> None:
        super().__init__(tuple(ranges))
        self.login = login


def tasks_of(ranges: Iterable[OffsetRange], options: SourceOptions) -> list[RangePartition]:
    """Ranges as Spark's tasks."""
    parts = split(ranges, options.min_partitions, options.max_records_per_partition)
    login = login_for(options.kafka)
    return [RangePartition(bundle, login) for bundle in bundled(parts, options.min_partitions)]


def read_task(options: SourceOptions, partition: InputPartition) -> Iterator[Any]:
    """The rows of one task. Where there was nothing to plan, Spark makes a task without ranges."""
    ranges: tuple[OffsetRange, ...] = partition.value or ()
    if isinstance(partition, RangePartition) and partition.login is not None:
        options = replace(options, kafka=with_login(options.kafka, partition.login))
    for whole in ranges:
        yield from read_range(options, whole)


def read_range(options: SourceOptions, whole: OffsetRange) -> Iterator[Any]:
    """RecordBatches of a range. Where data is gone, the rest is read, or the task fails (failOnDataLoss)."""
    reader = RangeReader(options, whole)
    while reader.position < whole.end:
        try:
            yield from reader.batches()
        except OffsetOutOfRange as error:
            if error.log_start_offset < 0 or error.log_start_offset <= error.offset <= error.end_offset:
                # Where the log is could not be found out, or it is there: who answered first was not its leader any
                # more. Spark tries the task again.
                raise
            reader.skip_to(
                error.log_start_offset, f"the log has {error.log_start_offset} to {error.end_offset}"
            )
        except KafkaError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            if not reader.looks_again():
                reader.skip_to(whole.end, "there is no such partition any more")
    yield from reader.rest()


class RangeReader:
    """Reads on from `position`; rows that do not fill a RecordBatch yet are kept."""

    def __init__(self, options: SourceOptions, whole: OffsetRange) -> None:
        self.position = whole.start
        self._whole = whole
        self._options = options
        self._losses = Losses(options.fail_on_data_loss)
        self._has_looked_again = False
        self._opener: Opener | LeftSealed | None = None
        if options.encryption_key is not None:
            self._opener = opener_of(options.encryption_key, allow_plain=options.allow_plaintext)
        self._has_looked_at_values = self._opener is not None
        self._builder = ColumnBuilder(options.include_headers or isinstance(self._opener, Opener))
        self._maker = BatchMaker(whole.tp.topic, whole.tp.partition, options.columns)

    def batches(self) -> Iterator[Any]:
        """Full RecordBatches, up to the end of the range or an error."""
        fetcher = RawFetcher(
            shared_client(self._options.kafka),
            self._whole.tp,
            self.position,
            self._whole.end,
            read_committed=self._options.read_committed,
            max_bytes=self._options.fetch_bytes,
            check_crcs=self._options.check_crcs,
        )
        for chunk in fetcher:
            if not self._has_looked_at_values:
                self._has_looked_at_values = True
                refuse_sealed(chunk)
            # Where a transaction was aborted, batches are looked at one by one.
            yield from self._sections(chunk) if chunk.aborted else self._plain(chunk)
            self.position = chunk.next_offset
        self.position = self._whole.end

    def looks_again(self) -> bool:
        """A client kept from earlier tasks may know an older topic of that name: once, it asks anew.

        Not where something was read: offsets of another topic of the same name are not the ones to go on from.
        """
        if self._has_looked_again or self.position != self._whole.start:
            return False
        self._has_looked_again = True
        shared_client(self._options.kafka).core.metadata.forget(self._whole.tp.topic)
        return True

    def rest(self) -> Iterator[Any]:
        """What is left, as the last RecordBatch."""
        if self._builder.rows:
            yield self._finished()

    def skip_to(self, log_start_offset: int, why: str) -> None:
        """The log begins after the position, or has ended before it, or is gone: go on where there is something."""
        self._losses.report(
            f"{named([self._whole.tp])} cannot be read from {self.position} up to {self._whole.end}: {why}"
        )
        is_ahead = self.position < log_start_offset < self._whole.end
        self.position = log_start_offset if is_ahead else self._whole.end

    # -- records to columns ---------------------------------------------------------------------------

    def _plain(self, chunk: CompletedFetch) -> Iterator[Any]:
        """Many batches at a time; one by one only where they are compressed, or broken."""
        data, end = chunk.data, len(chunk.data)
        position = 0
        while position < end:
            position = self._builder.add_batches(
                data,
                position,
                end,
                chunk.fetch_offset,
                self._whole.end,
                MAX_ROWS,
                MAX_BYTES,
                chunk.check_crcs,
                True,  # none was aborted here, so that a transaction's batches are like any others
            )
            if self._is_full:
                yield self._finished()
            elif position < end:
                batch = batch_at(data, position, end)
                assert batch is not None, "chunks hold whole batches"
                yield from self._sections(chunk._replace(data=data[position : batch.end]))
                position = batch.end

    def _sections(self, chunk: CompletedFetch) -> Iterator[Any]:
        for section in plain_sections(chunk):
            self._builder.add_records(*section, chunk.fetch_offset, self._whole.end)
            if self._is_full:
                yield self._finished()

    def _finished(self) -> Any:
        columns = self._builder.finish()
        if isinstance(self._opener, Opener):
            with_headers = self._options.include_headers
            columns = opened(columns, self._opener, self._whole.tp, with_headers=with_headers)
        return self._maker.batch(columns)

    @property
    def _is_full(self) -> bool:
        return self._builder.rows >= MAX_ROWS or self._builder.size_bytes >= MAX_BYTES


class OttlaBatchReader(DataSourceReader):
    """Plans and reads one batch."""

    def __init__(self, options: SourceOptions, public: KafkaOptions) -> None:
        """`public`: what tasks may know of the client's settings."""
        self._options = options
        self._public = public
        self._narrowing = Narrowing()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_options": replace(self._options, kafka=self._public)}

    @in_one_line()
    def partitions(self) -> list[Any]:
        """The tasks. An empty list would become one task without a partition, which reads nothing."""
        cluster = Cluster(self._options)
        try:
            ranges = self._narrow(cluster, self._ranges(cluster))
        finally:
            cluster.close()
        return list(tasks_of(ranges, self._options))

    def read(self, partition: Any) -> Iterator[Any]:
        """In a task: its rows, as RecordBatches."""
        return read_task(self._options, partition)

    # -- planning -------------------------------------------------------------------------------------

    def _ranges(self, cluster: Cluster) -> list[OffsetRange]:
        there = cluster.all_partitions()
        start = cluster.starting(self._options.starting or AtEarliest(), there)
        end = cluster.ending(self._options.ending or AtLatest(), there)
        for tp in sorted(there):
            if start[tp] > end[tp]:
                cluster.losses.report(f"{named([tp])} would be read from {start[tp]} up to {end[tp]}")
        return [OffsetRange(tp, start[tp], max(start[tp], end[tp])) for tp in sorted(there)]

    def _narrow(self, cluster: Cluster, ranges: list[OffsetRange]) -> list[OffsetRange]:
        wanted = [each for each in ranges if self._narrowing.has(each.tp)]
        from_ms = self._narrowing.timestamp_from_ms
        times = {} if from_ms is None else cluster.at_times({each.tp: from_ms for each in wanted})
        return [self._narrowing.cut(each, times) for each in wanted]


class PushdownBatchReader(OttlaBatchReader):
    """The same with filter pushdown: Spark refuses a reader that has it while its own switch is off."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
        """Take filters on place and time; hand back those that Spark has to apply."""
        self._narrowing, left = narrowed(filters)
        return iter(left)
