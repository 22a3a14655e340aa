"""A pipeline as Structured Streaming queries: every plan is built and checked, then all are started.

Each stream is one query with its own checkpoint (`<checkpoints>/<stream>`), named `<pipeline>.<stream>`, its
progress shown under the group of the same name; a stream with a dead-letter topic has a second query for it.

What a query reports after each micro-batch becomes `Figures`. Rows in are records read, rows out are rows of the
result that were written, dead-lettered are rows that were written to the dead-letter topic instead; all come from
metrics that the plans observe, since Spark's own count of rows written is unknown for most sinks, and does not tell one
topic from another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ottla.client.registry.client import RegistryError
from ottla.spark.driver import UpdateWriter
from ottla.spark.pipeline.checkpoints.checkpoint import first_batch_of
from ottla.spark.pipeline.declare import (
    SESSION_PARAMETER,
    DeclarationError,
    Declared,
    DeclaredPipeline,
    Delta,
    Iceberg,
    Parquet,
    PipelineError,
    Problem,
    Stream,
    Topic,
    View,
    parameters,
    parse_trigger,
)
from ottla.spark.pipeline.discreet import DiscreetWriter, discreetly, guard, hiding
from ottla.spark.pipeline.frames import (
    DEAD_LETTER_SUFFIX,
    DEAD_LETTERED,
    METRICS_IN,
    METRICS_OUT,
    Context,
    as_expected,
    check_columns,
    counted_out,
    encode,
    letters,
    read,
    with_secrets,
)
from ottla.spark.pipeline.given import revealed
from ottla.spark.pipeline.parameters import Param, Secret
from ottla.spark.pipeline.quality.changes import Changes
from ottla.spark.pipeline.quality.expectations import observed as observed_expectations
from ottla.spark.pipeline.replay import Replay
from ottla.spark.pipeline.values.verdicts import verdicts_path
from ottla.spark.progress import observed_metrics, offsets_of, rows_read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SOURCE_TIMEOUT_S = 15.0
# A Connect server starts a worker for foreachBatch within start(); it has ten seconds, too.
START_ATTEMPTS = 3
TRANSACTIONAL_ID = "kafka.transactional.id"
NOT_UP = "Python worker failed to connect back"
_COMING_UP = ("Initializing", "Getting offsets")
WINDOW_S = 5.0


@dataclass(frozen=True)
class Plan:
    """A query that is ready to start, as often as need be: each time from its checkpoint."""

    pipeline: DeclaredPipeline
    stream: Stream
    name: str
    writer: DataStreamWriter

    def start(self) -> StreamingQuery:
        for _ in range(START_ATTEMPTS - 1):
            try:
                return self._start()
            except PipelineError as error:
                if NOT_UP not in str(error):
                    raise
        return self._start()

    def start_in_turn(self) -> StreamingQuery:
        """For who starts many, one after the other."""
        query = self.start()
        _await_source(query)
        return query

    def _start(self) -> StreamingQuery:
        with _explained(self.pipeline, self.stream):
            return self.writer.start()


def plan(
    pipeline: DeclaredPipeline,
    spark: SparkSession,
    bootstrap: str,
    checkpoints: str,
    *,
    available_now: bool = False,
    options: Mapping[str, str] | None = None,
    replay: Replay | None = None,
) -> list[Plan]:
    """All queries, built and checked, none of them started; PipelineError names every stream that Spark refuses."""
    if shared := list(_shared_ids(pipeline, options or {})):
        raise PipelineError(shared)
    context = Context(pipeline, spark, bootstrap, options or {}, replay)
    plans: list[Plan] = []
    problems: list[Problem] = []
    for stream in pipeline.streams:
        try:
            plans += _plans(context, stream, checkpoints, available_now)
        except PipelineError as error:
            problems += error.problems
    if problems:
        raise PipelineError(dict.fromkeys(problems))
    return plans


def _shared_ids(pipeline: DeclaredPipeline, options: Mapping[str, str]) -> Iterator[Problem]:
    """Queries with one kafka.transactional.id have one decision: what one of them decides hides the other's, which
    after a crash writes a batch again that was written. (In update mode the query's own id is added.)"""
    owners: dict[str, str] = {}
    for stream in pipeline.streams:
        for parameter, sink in (("out", stream.out), ("dead_letter", stream.dead_letter)):
            if not isinstance(sink, Topic) or (parameter == "out" and stream.mode == "update"):
                continue
            given = {name.lower(): value for name, value in {**options, **sink.options}.items()}
            if (shared := given.get(TRANSACTIONAL_ID)) is None:
                continue
            owner = owners.setdefault(shared, f"{stream.name}({parameter})")
            if owner != f"{stream.name}({parameter})":
                what = f"{TRANSACTIONAL_ID}={shared} is that of {owner}, too: each query needs one of its own, or none"
                yield pipeline.problem(stream, parameter, what)


def look(context: Context, stream: Stream) -> DataFrame:
    """The result of one stream, built and checked, for who writes it nowhere."""
    with _explained(context.pipeline, stream):
        return _result(context.for_query(context.pipeline.group_of(stream)), stream)


def start(plans: list[Plan]) -> list[StreamingQuery]:
    """Start all; if one cannot start, none runs."""
    started: list[StreamingQuery] = []
    try:
        for one in plans:
            if started:
                _await_source(started[-1])
            started.append(one.start())
    except BaseException:
        for query in started:
            query.stop()
        raise
    return started


def _await_source(query: StreamingQuery) -> None:
    """One after the other: each query starts a Python process for its source, which Spark gives ten seconds to come up;
    many at once do not make that on a small machine."""
    deadline = time.monotonic() + SOURCE_TIMEOUT_S
    while query.isActive and time.monotonic() < deadline:
        if not query.status["message"].startswith(_COMING_UP):
            return
        time.sleep(0.05)


def _plans(context: Context, stream: Stream, checkpoints: str, available_now: bool) -> Iterator[Plan]:
    pipeline = context.pipeline
    name = pipeline.group_of(stream)
    trigger = {"availableNow": True} if available_now else parse_trigger(stream.trigger)
    with _explained(pipeline, stream):
        checkpoint = f"{checkpoints}/{stream.name}"
        judged_in = verdicts_path(checkpoint) if stream.dead_letter is not None else ""
        own = context.for_query(name, judged_in)
        writer = _writer(own, stream, _result(own, stream), checkpoint)
        yield Plan(pipeline, stream, name, _prepared(writer, name, checkpoint, trigger))
        aside = name + DEAD_LETTER_SUFFIX
        bad = letters(context.for_query(aside, judged_in), stream) if stream.dead_letter is not None else None
        if bad is not None:
            checkpoint += DEAD_LETTER_SUFFIX
            writer = _topic_writer(context, bad.writeStream, stream.dead_letter)
            yield Plan(pipeline, stream, aside, _prepared(writer, aside, checkpoint, trigger))


def _prepared(
    writer: DataStreamWriter, name: str, checkpoint: str, trigger: Mapping[str, Any]
) -> DataStreamWriter:
    named = writer.queryName(name).option("checkpointLocation", checkpoint)
    return named.trigger(**trigger) if trigger else named


def _result(context: Context, stream: Stream) -> DataFrame:
    """The DataFrame that a stream's function makes of its inputs, checked against its output."""
    tolerant = stream.dead_letter is not None
    made = _call(context, stream, tolerant, {})
    _check_plan(context, stream, made)
    check_columns(context.pipeline, stream, made)
    return as_expected(context, stream, made)


def _check_plan(context: Context, stream: Stream, made: DataFrame) -> None:
    """A secret that a function has put into the plan would be shown with it, everywhere. (A plan that is made on a
    Spark Connect server cannot be looked at here.)"""
    secrets = context.pipeline.secrets
    if not secrets or not hasattr(made, "_jdf"):
        return
    shown = made._jdf.queryExecution().analyzed().toString()
    if hiding(secrets.values())(shown) != shown:
        what = "a secret's text is in the plan, which Spark shows to everybody; use it inside a UDF, not as a literal"
        raise PipelineError(context.pipeline.problem(stream, "", what))


def _call(context: Context, declared: Declared, tolerant: bool, views: dict[View, DataFrame]) -> DataFrame:
    given: dict[str, Any] = {}
    for name, default in parameters(declared.function).items():
        if isinstance(default, View):
            if default not in views:
                views[default] = _call(context, default, tolerant, views)
            given[name] = views[default]
        elif name == SESSION_PARAMETER:
            given[name] = context.spark
        elif isinstance(default, Param):
            given[name] = context.pipeline.values[f"{declared.name}.{name}"]
        elif isinstance(default, Secret):
            given[name] = context.pipeline.secrets[default.name]
        else:
            where = context.pipeline.where(declared, name)
            given[name] = read(context, default, tolerant=tolerant, where=where)
    guard(context.pipeline.secrets.values())  # a UDF that holds one says so to its worker
    with discreetly(context.pipeline.secrets):
        made: Any = declared.function(**given)
    if not hasattr(made, "writeStream"):
        what = f"returns {type(made).__name__}, not a DataFrame"
        raise PipelineError(context.pipeline.problem(declared, "", what))
    frame: DataFrame = made
    return frame


def _writer(context: Context, stream: Stream, result: DataFrame, checkpoint: str) -> DataStreamWriter:
    sink = stream.out
    if isinstance(sink, Topic):
        encoded = counted_out(context, encode(context.pipeline, stream, result))
        if stream.mode == "update":
            settings = _sink_settings(context, sink, "topic" in encoded.columns)
            settings["checkpointLocation"] = checkpoint
            return encoded.writeStream.outputMode("update").foreachBatch(UpdateWriter(settings))
        return _topic_writer(
            context, encoded.writeStream.outputMode(stream.mode), sink, "topic" in encoded.columns
        )
    result = counted_out(context, result)
    if isinstance(sink, Parquet):
        writer = result.writeStream.outputMode("append").format("parquet").options(**sink.options)
        return writer.option("path", sink.path).partitionBy(*sink.partition_by)
    assert isinstance(sink, Delta | Iceberg)
    secrets = context.pipeline.secrets
    write = _lake_writer(with_secrets(sink, secrets), stream.mode, checkpoint, secrets)
    return result.writeStream.outputMode(stream.mode).foreachBatch(
        DiscreetWriter(write, secrets) if secrets else write
    )


def _topic_writer(
    context: Context, writer: DataStreamWriter, sink: Topic, by_column: bool = False
) -> DataStreamWriter:
    return writer.format("ottla").options(**_sink_settings(context, sink, by_column))


def _sink_settings(context: Context, sink: Topic, by_column: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {"kafka.bootstrap.servers": context.bootstrap, **context.options}
    if not by_column:
        settings["topic"] = sink.name
    return settings | revealed(sink.options, context.pipeline.secrets)


class AnotherLife:
    """Micro-batches of a query that began with a copy of another's checkpoint: the table does not know it before its
    first one, whatever the number of that."""

    def __init__(
        self,
        first_batch: int,
        first: Callable[[DataFrame, int], None],
        others: Callable[[DataFrame, int], None],
    ) -> None:
        self._first_batch = first_batch
        self._first = first
        self._others = others

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        (self._first if batch_id == self._first_batch else self._others)(batch, batch_id)


def _lake_writer(
    sink: Delta | Iceberg, mode: str, checkpoint: str, secrets: Mapping[str, str]
) -> Callable[[DataFrame, int], None]:
    write = _writer_of(sink, mode, checkpoint, secrets)
    first_batch = first_batch_of(checkpoint)
    if not first_batch:
        return write
    return AnotherLife(first_batch, _writer_of(replace(sink, adopt=True), mode, checkpoint, secrets), write)


def give_up(sink: Delta | Iceberg, query_id: str, secrets: Mapping[str, str]) -> None:
    """Whoever still runs this query elsewhere can write nothing more into the table."""
    if isinstance(sink, Delta):
        from ottla.spark.pipeline.lake import delta

        delta.give_up(with_secrets(sink, secrets), query_id)
    else:
        from ottla.spark.pipeline.lake import iceberg

        iceberg.give_up(with_secrets(sink, secrets), query_id)


def _writer_of(
    sink: Delta | Iceberg, mode: str, checkpoint: str, secrets: Mapping[str, str]
) -> Callable[[DataFrame, int], None]:
    if isinstance(sink, Delta):
        from ottla.spark.pipeline.lake.delta import DeltaWriter

        return DeltaWriter(sink, mode, checkpoint, secrets)
    from ottla.spark.pipeline.lake.iceberg import IcebergWriter

    return IcebergWriter(sink, mode, checkpoint, secrets)


@contextmanager
def _explained(pipeline: DeclaredPipeline, stream: Stream) -> Iterator[None]:
    """Spark's refusals with the stream's place in the file; the rest of what it says goes to the log."""
    from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException

    try:
        yield
    except (DeclarationError, RegistryError) as error:
        raise PipelineError(Problem(pipeline.where(stream), str(error))) from error
    except (AnalysisException, IllegalArgumentException, PySparkException) as error:
        raise PipelineError(
            Problem(pipeline.where(stream), f"Spark refuses it: {first_line(error)}")
        ) from error


def first_line(error: BaseException) -> str:
    """The sentence of a Spark error without the plan and the stack that follow it."""
    text = str(error).strip().split("\nJVM stacktrace")[0]
    return text.split("\n", 1)[0].removesuffix(";").strip()


class Rate:
    """How fast a count has grown over the last moments; it falls to nothing when the count stands still."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, int]] = []

    def mark(self, now: float, total: int) -> float:
        self._marks.append((now, total))
        while len(self._marks) > 2 and now - self._marks[1][0] >= WINDOW_S:
            del self._marks[0]
        then, count = self._marks[0]
        return (total - count) / (now - then) if now > then else 0.0


@dataclass
class Figures:
    """One query's figures, kept up by `add`."""

    name: str
    state: str = "starting"
    batch_id: int = -1
    rows_in: int = 0
    rows_out: int = 0
    bad: int = 0
    late: int = 0
    dead_lettered: int = 0
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    batch_ms: int | None = None
    state_rows: int = 0
    state_bytes: int = 0
    lag: int | None = None
    lag_seconds: float | None = None
    problem: str = ""
    unmet: dict[str, int] = field(default_factory=dict)  # rows that did not meet an expectation, by its name
    changes: Changes = field(default_factory=Changes, repr=False)
    offsets: dict[str, dict[str, int]] = field(default_factory=dict, repr=False)
    _rates: tuple[Rate, Rate] = field(default_factory=lambda: (Rate(), Rate()), repr=False)

    def add(self, reports: Iterable[Mapping[str, Any]], now: float) -> None:
        """Micro-batches that are new since the last time, in order."""
        for report in reports:
            self._add_offsets(report)
            self._add_state(report)
            if report["batchId"] > self.batch_id or self.batch_id < 0:
                self._add_batch(report)
        self.in_per_s = self._rates[0].mark(now, self.rows_in)
        self.out_per_s = self._rates[1].mark(now, self.rows_out)

    def _add_batch(self, report: Mapping[str, Any]) -> None:
        # A trigger without data reports the number of the batch that is still to come.
        duration = report.get("durationMs") or {}
        if "addBatch" not in duration:
            return
        self.batch_id = report["batchId"]
        self.rows_in += rows_in(report)
        self.rows_out += _observed(report, METRICS_OUT, "rows")
        self.dead_lettered += _observed(report, METRICS_OUT, DEAD_LETTERED)
        self.bad += _observed(report, METRICS_IN, "bad")
        operators = report.get("stateOperators") or []
        self.late += sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in operators)
        for name, count in observed_expectations(report).items():
            self.unmet[name] = self.unmet.get(name, 0) + count
        self.changes.add(report)
        self.batch_ms = int(duration.get("triggerExecution", report.get("batchDuration") or 0))

    def _add_state(self, report: Mapping[str, Any]) -> None:
        operators = report.get("stateOperators") or []
        self.state_rows = sum(int(operator.get("numRowsTotal") or 0) for operator in operators)
        self.state_bytes = sum(int(operator.get("memoryUsedBytes") or 0) for operator in operators)

    def _add_offsets(self, report: Mapping[str, Any]) -> None:
        for source in report.get("sources") or []:
            for topic, places in offsets_of(source.get("endOffset")).items():
                self.offsets.setdefault(topic, {}).update(places)

    def document(self) -> dict[str, Any]:
        """As it is written to disk."""
        return {
            "stream": self.name,
            "state": self.state,
            "batch": None if self.batch_id < 0 else self.batch_id,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "bad": self.bad,
            "late": self.late,
            "dead_lettered": self.dead_lettered,
            "expectations": dict(self.unmet),
            "schema_changes": self.changes.document(),
            "in_per_s": round(self.in_per_s, 1),
            "out_per_s": round(self.out_per_s, 1),
            "lag": self.lag,
            "lag_seconds": self.lag_seconds,
            "batch_ms": self.batch_ms,
            "state_rows": self.state_rows,
            "state_bytes": self.state_bytes,
            "problem": self.problem,
        }


def rows_in(report: Mapping[str, Any]) -> int:
    """Records read: as observed, else as Spark counts them (raw inputs are not observed)."""
    if any(name.startswith(METRICS_IN) for name in observed_metrics(report)):
        return _observed(report, METRICS_IN, "rows")
    return rows_read(report)


def _observed(report: Mapping[str, Any], prefix: str, column: str) -> int:
    found = observed_metrics(report).items()
    return sum(int(row.get(column) or 0) for name, row in found if name.startswith(prefix))
