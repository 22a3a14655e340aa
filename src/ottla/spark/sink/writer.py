"""The sink `format("ottla")`: Spark's writers, in streams and in batches.

Spark makes a writer when a write is planned, another for each commit or abort, and pickles it to the tasks: it holds
options only, with a token for the password (ottla.spark.delegation), by which the commit goes, too. How a batch
becomes visible exactly once is in ottla.spark.sink.commit; what a task does in ottla.spark.sink.task;
docs/spark-sink.md describes the whole.
"""

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ottla.model.errors import KafkaError
from ottla.spark.connection import OptionError, forget, shared_client
from ottla.spark.delegation import for_workers
from ottla.spark.sink.cluster import SinkCluster
from ottla.spark.sink.commit import Driver, Steps, Written, abort, commit, commit_once, union
from ottla.spark.sink.options import (
    DEFAULT_PREFIX,
    SinkOptions,
    check_schema,
    for_batch,
    for_stream,
    sink_options,
)
from ottla.spark.sink.task import Attempt, RowError, TaskReport, partition_count, write_task

log = logging.getLogger(__name__)

# Set by Spark for every job of a streaming query.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
PARTITIONER = "kafka.partitioner.class"
# What a driver-side process remembers of its last commits; the oldest goes first.
MAX_DRIVERS = 64


@dataclass
class SinkMessage(WriterCommitMessage):
    """A task's report on its way to the driver."""

    report: TaskReport


def stream_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> "OttlaStreamWriter":
    """The writer of a streaming query. `overwrite` (outputMode complete) appends, as Spark's Kafka sink does."""
    checked = for_stream(sink_options(options))
    _say_no_effect(checked.no_effect)
    check_schema(schema, checked)
    for_tasks = replace(checked, kafka=for_workers(checked.kafka))
    _check_topic(for_tasks)
    return OttlaStreamWriter(for_tasks)


def batch_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> "OttlaBatchWriter":
    """The writer of df.write."""
    checked = for_batch(sink_options(options))
    if overwrite:
        raise OptionError('a topic cannot be overwritten: use mode("append")')
    _say_no_effect(checked.no_effect)
    check_schema(schema, checked)
    for_tasks = replace(checked, kafka=for_workers(checked.kafka))
    _check_topic(for_tasks)
    return OttlaBatchWriter(for_tasks, uuid.uuid4().hex)


class OttlaStreamWriter(DataSourceStreamArrowWriter):
    """Micro-batches into topics; exactly once, unless ottla.delivery says otherwise."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> SinkMessage:
        context = _task_context()
        query_id, batch_id = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
        if query_id is None or batch_id is None:
            raise RuntimeError(
                f"Spark does not say which batch this is: {QUERY_ID}={query_id}, {BATCH_ID}={batch_id}"
            )
        attempt = Attempt(
            prefix=self._options.prefix or f"{DEFAULT_PREFIX}-{query_id}",
            query_id=query_id,
            batch_id=int(batch_id),
            slot=context.partitionId(),
            number=context.attemptNumber(),
        )
        return SinkMessage(write_task(self._options, attempt, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        written = _written(_reports(messages))
        if written is None or not self._options.is_exactly_once:
            return
        prefix, rows = written
        assert rows.batch_id == batchId, f"tasks of batch {rows.batch_id} are committed as batch {batchId}"
        driver = _driver(self._options, prefix)
        _run(self._options, prefix, commit(driver, rows, of_stream=True))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        written = _written(_reports(messages))
        if written is None or not self._options.is_exactly_once:
            return
        prefix, rows = written
        _try_to_abort(self._options, prefix, rows)


class OttlaBatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame.

    Nothing is visible before the job is done, and retried tasks write nothing twice. With ottla.write.id the write
    is exactly once however often the job is run; without, a driver that dies while it commits leaves a part.
    """

    def __init__(self, options: SinkOptions, unique: str) -> None:
        self._options = options
        base = options.prefix or f"{DEFAULT_PREFIX}-write"
        self._query_id = options.write_id or unique
        self._prefix = f"{base}-{self._query_id}"

    def write(self, iterator: Iterator[Any]) -> SinkMessage:
        context = _task_context()
        attempt = Attempt(
            prefix=self._prefix,
            query_id=self._query_id,
            batch_id=self._options.write_version,
            slot=context.partitionId(),
            number=context.attemptNumber(),
            may_be_decided=self._options.write_id is not None,
        )
        return SinkMessage(write_task(self._options, attempt, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        written = _written(_reports(messages))
        if written is None or not self._options.is_exactly_once:
            return
        _, rows = written
        if self._options.write_id is None:
            steps = commit_once(rows)
        else:
            steps = commit(_driver(self._options, self._prefix), rows)
        _run(self._options, self._prefix, steps)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._options.is_exactly_once:
            return
        nothing = Written(self._query_id, self._options.write_version, (), ())
        written = _written(_reports(messages))
        _try_to_abort(self._options, self._prefix, nothing if written is None else written[1])


def _task_context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "write() runs in a task"
    return context


def _reports(messages: Iterable[WriterCommitMessage | None]) -> list[TaskReport]:
    return [message.report for message in messages if isinstance(message, SinkMessage)]


def _written(reports: list[TaskReport]) -> tuple[str, Written] | None:
    """What all tasks did, with their prefix; None if none of them said anything."""
    if not reports:
        return None
    one = reports[0]
    entries = tuple(report.entry for report in reports if report.entry is not None)
    spans = union(span for report in reports for span in report.spans)
    skipped = any(report.skipped for report in reports)
    return one.prefix, Written(one.query_id, one.batch_id, entries, spans, skipped)


# -- the driver's side ------------------------------------------------------------------------------------

_drivers: dict[tuple[Any, str], Driver] = {}


def _driver(options: SinkOptions, prefix: str) -> Driver:
    """What this process remembers of the query's last commit: as long as nobody fences it, it still holds."""
    key = (options.kafka.client, prefix)
    driver = _drivers.pop(key, None) or Driver()
    while len(_drivers) >= MAX_DRIVERS:
        del _drivers[next(iter(_drivers))]
    _drivers[key] = driver
    return driver


def _run(options: SinkOptions, prefix: str, steps: Steps[None]) -> None:
    client = shared_client(options.kafka)
    try:
        SinkCluster(options, prefix, client).run(steps)
    except BaseException:
        forget(client)
        raise


def _try_to_abort(options: SinkOptions, prefix: str, rows: Written) -> None:
    """The write has failed already; what this cannot clear up, the next commit or the timeout will."""
    try:
        _run(options, prefix, abort(Driver(), rows))
    except KafkaError as error:
        log.warning("what batch %s has written is left to its timeout: %s", rows.batch_id, error)


_told: set[tuple[str, ...]] = set()


def _say_no_effect(names: tuple[str, ...]) -> None:
    """Once a process: Spark makes a writer for each commit, too."""
    if not names or names in _told:
        return
    _told.add(names)
    if others := [name for name in names if name != PARTITIONER]:
        log.warning("options without an effect here: %s", ", ".join(others))
    if PARTITIONER in names:
        log.warning(
            "%s does nothing: a row goes to the partition in its column 'partition', else to that of its key's "
            "murmur2, as with Kafka's own partitioner",
            PARTITIONER,
        )


_known_topics: set[tuple[Any, str]] = set()


def _check_topic(options: SinkOptions) -> None:
    """The topic of the option is there: else that is said now, not by the first task. A broker may be away."""
    if options.topic is None or (options.kafka.client, options.topic) in _known_topics:
        return
    client = shared_client(options.kafka)
    try:
        partition_count(client, options.topic)
    except RowError as error:
        raise OptionError(str(error)) from None
    except KafkaError as error:
        log.warning("topic %r could not be checked: %s", options.topic, error)
        forget(client)
    else:
        _known_topics.add((options.kafka.client, options.topic))
