"""`spark.read.format("ottla")`: a fixed range of each partition, settled when the read is planned.

The driver plans (partitions), tasks read; the reader itself travels between them and holds options only.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader

from ottla.spark.cluster import Cluster
from ottla.spark.filters import Narrowing, narrowed
from ottla.spark.offsets import AtEarliest, AtLatest, OffsetRange, named
from ottla.spark.one_line import in_one_line
from ottla.spark.options import SourceOptions
from ottla.spark.reading import read_task, tasks_of


class OttlaBatchReader(DataSourceReader):
    """Plans and reads one batch."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._narrowing = Narrowing()

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
