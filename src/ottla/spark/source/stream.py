"""`spark.readStream.format("ottla")`: micro-batches of offsets, planned in the driver, read by tasks.

Spark asks latestOffset(start, limit) before each micro-batch: everything below `start` has been processed. That is what
is committed for the query's group, and no more, so that every Kafka tool shows its lag. A commit that fails never fails
the query: it is logged once, and tried again after a while. Offsets that do not change mean no batch. An exception ends
the query: brokers that are away are waited for. One source-runner process a query owns a reader; the copies in tasks
only read.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ottla.client.inline import InlineClient
from ottla.client.transaction.by_id import commit_offsets
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition, Uuid
from ottla.spark.connection import KafkaOptions, OptionError
from ottla.spark.source.batch import read_task, tasks_of
from ottla.spark.source.cluster import Cluster, Partitions, in_one_line
from ottla.spark.source.options import SourceOptions
from ottla.spark.source.plan import (
    AtLatest,
    Delay,
    Offsets,
    backwards,
    from_json,
    limited,
    named,
    new_partitions,
    plan,
    rows_between,
    to_json,
)

# A coordinator that does not answer must not hold the query up for long, or often.
COMMIT_TIMEOUT_MS = 5_000.0
RETRY_AFTER_S = 30.0
# Brokers forget offsets that nobody commits for days (offsets.retention.minutes): a quiet topic is said again.
REPEAT_AFTER_S = 3600.0

log = logging.getLogger(__name__)


class Progress:
    """Publishes offsets under a group, when they have changed."""

    def __init__(self, group: str) -> None:
        self.group = group
        self._published: dict[TopicPartition, int] = {}
        self._published_at_s = 0.0
        self._not_before_s = 0.0
        self._has_failed = False

    def publish(self, client: InlineClient, offsets: Mapping[TopicPartition, int], now_s: float) -> None:
        """Commit `offsets` (where the query will read on) unless that is what was committed last."""
        fresh = now_s - self._published_at_s < REPEAT_AFTER_S
        if not offsets or now_s < self._not_before_s or (fresh and dict(offsets) == self._published):
            return
        changed = {tp: at for tp, at in offsets.items() if not fresh or self._published.get(tp) != at}
        try:
            self._commit(client, changed)
        except KafkaError as error:
            self._failed(error, now_s)
            return
        self._published, self._published_at_s = dict(offsets), now_s
        if self._has_failed:
            self._has_failed = False
            log.warning("the progress of group %s is published again", self.group)

    def _commit(self, client: InlineClient, offsets: Mapping[TopicPartition, int]) -> None:
        """As a consumer without a group's membership does; the members of a real group of that name refuse it."""
        with_metadata = {tp: (offset, "") for tp, offset in offsets.items()}
        commit_offsets(client, self.group, with_metadata, COMMIT_TIMEOUT_MS)

    def _failed(self, error: KafkaError, now_s: float) -> None:
        self._not_before_s = now_s + RETRY_AFTER_S
        if not self._has_failed:
            self._has_failed = True
            log.warning("the progress of group %s is not published, the query goes on: %s", self.group, error)


class OttlaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches."""

    def __init__(self, options: SourceOptions, public: KafkaOptions) -> None:
        """`public`: what tasks may know of the client's settings."""
        self._options = options
        self._public = public
        self._cluster = Cluster(options)
        self._progress = None if options.group is None else Progress(options.group)
        self._delay = Delay(options.min_offsets_per_trigger, options.max_trigger_delay_ms)
        self._target: Offsets | None = None  # Trigger.AvailableNow goes up to here
        self._latest: Offsets = {}
        self._topic_ids: dict[str, Uuid] = {}

    def __reduce__(self) -> Any:
        # To the tasks go the options, never the connections and never a secret.
        return (OttlaStreamReader, (replace(self._options, kafka=self._public), self._public))

    # -- offsets --------------------------------------------------------------------------------------

    @in_one_line()
    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins."""
        there = self._cluster.all_partitions()
        return to_json(self._cluster.starting(self._options.starting or AtLatest(), there))

    @in_one_line()
    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is what this run reads; what comes later is not seen."""
        self._target, there = self._cluster.latest_now()
        self._remember(there)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark knows one limit at a time; latestOffset applies both where there are two."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @in_one_line()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends; `start` itself if there is nothing (or not enough) to read."""
        begin = from_json(start)
        end = self._end(begin)
        self._publish({tp: at for tp, at in begin.items() if tp in end})
        earliest = self._cluster.earliest(new_partitions(begin, end))
        if not isinstance(limit, ReadAllAvailable):
            rows = sum(rows_between(begin, end, earliest).values())
            if self._target is None and self._delay.holds_back(rows, time.monotonic() * 1000):
                return to_json(begin)
            end = self._limited(limit, begin, end, earliest)
        return to_json(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends as last seen, for the query's progress."""
        return to_json(self._latest) if self._latest else None

    def commit(self, end: dict[str, Any]) -> None:
        """A micro-batch is done; the next latestOffset would say the same, only later."""
        there = {tp: at for tp, at in from_json(end).items() if tp in self._latest}
        self._publish(there)

    def stop(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def _end(self, begin: Offsets) -> Offsets:
        if self._target is not None:
            end = self._target
        else:
            end, there = self._cluster.latest_now(expected=begin)
            self._check_ids(there)
        self._latest = end
        gone, back = begin.keys() - end.keys(), backwards(begin, end)
        if gone:
            self._cluster.losses.report(
                f"{named(gone)} gone while the query had read up to {named_offsets(begin, gone)}"
            )
        if back:
            self._cluster.losses.report(
                f"the end went back behind what was read: {named_offsets(begin, back)}"
            )
        return end

    def _limited(self, limit: ReadLimit, begin: Offsets, end: Offsets, earliest: Offsets) -> Offsets:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_offsets_per_trigger
        return end if rows is None else limited(rows, begin, end, earliest)

    # -- micro-batches --------------------------------------------------------------------------------

    @in_one_line()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        """The tasks of a micro-batch."""
        begin, until = from_json(start), from_json(end)
        unknown = [*new_partitions(begin, until), *backwards(begin, until)]
        found = plan(begin, until, self._earliest_of(unknown))
        if found.losses:
            self._cluster.losses.report("; ".join(found.losses))
        return list(tasks_of(found.ranges, self._options))

    def read(self, partition: Any) -> Iterator[Any]:
        """In a task: its rows, as RecordBatches."""
        return read_task(self._options, partition)

    def _earliest_of(self, partitions: list[TopicPartition]) -> Offsets:
        if not partitions:
            return {}
        there = self._cluster.partitions(expected=partitions)
        return self._cluster.earliest([tp for tp in partitions if tp in there])

    # -- what goes wrong ------------------------------------------------------------------------------

    def _check_ids(self, there: Partitions) -> None:
        """A topic that has another id than before was deleted and made again: its offsets mean other records."""
        known = self._topic_ids
        other = sorted({tp.topic for tp, new in there.items() if known.get(tp.topic, new) != new})
        self._remember(there)
        if other:
            self._cluster.losses.report(
                f"the topic {', '.join(other)} was deleted and created again while the query was running"
            )

    def _remember(self, there: Partitions) -> None:
        self._topic_ids.update({tp.topic: topic_id for tp, topic_id in there.items()})

    def _publish(self, offsets: Offsets) -> None:
        if self._progress is not None:
            self._progress.publish(self._cluster.client, offsets, time.monotonic())


def named_offsets(offsets: Offsets, partitions: Any) -> str:
    """`a-0 at 12, a-1 at 7`: how errors say how far a partition was read."""
    return ", ".join(f"{named([tp])} at {offsets[tp]}" for tp in sorted(partitions))


class RefusedStreamReader(DataSourceStreamReader):
    """What a stream cannot mean, said as soon as Spark asks for anything."""

    def __init__(self, why: str) -> None:
        self._why = why

    @in_one_line()
    def initialOffset(self) -> dict[str, Any]:
        raise OptionError(self._why)

    @in_one_line()
    def getDefaultReadLimit(self) -> ReadLimit:
        raise OptionError(self._why)

    @in_one_line()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise OptionError(self._why)

    def read(self, partition: Any) -> Iterator[Any]:
        raise OptionError(self._why)
