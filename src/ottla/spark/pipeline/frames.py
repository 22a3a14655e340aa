"""Records as DataFrames and back: inputs decoded, what does not parse set aside, results encoded.

Runs in the driver while a plan is built, so a wrong column is named before the query starts. Rules:

- Of a topic whose values are parsed only those columns are read that its declaration can need; of a raw one all, or
  what its options ask for, because a function may look at any.
- A value that does not parse never ends a query unless the input says so and there is no dead-letter topic; how many
  there were is counted in the query's metrics (`observe`), which is also where Spark's optimizer stops moving filters
  about, so that a value is parsed once.
- Dead letters are the records that do not parse or are not as expected, as they came, with the headers
  `ottla.error.reason`, `.stream`, `.topic`, `.partition` and `.offset`. One query a stream reads its inputs again and
  keeps only these; it has a checkpoint and transactions of its own, so dead letters are exactly once too, and a record
  can be lost to neither query.
- A result's key is taken from its column, the rest is encoded as the value. A row that cannot be encoded (an Avro or
  Protobuf schema that it does not fit) or is not as expected goes to the dead-letter topic in the same query, and so in
  the same transactions, as the rows that are written.
- What a query writes is counted where nothing can change it any more, each row once: as one of the result, or as a dead
  letter. So the figures of a stream's two queries add up to what is in its topics.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ottla.spark.connection import COLUMNS_OPTION
from ottla.spark.pipeline.declare import (
    META_COLUMN,
    DeclaredPipeline,
    Delta,
    Iceberg,
    Parquet,
    PipelineError,
    Problem,
    Source,
    Stream,
    Topic,
    did_you_mean,
    from_moment,
    listed,
    parse_start,
)
from ottla.spark.pipeline.discreet import discreetly
from ottla.spark.pipeline.given import revealed
from ottla.spark.pipeline.lake.spec import parse_part, parse_sort
from ottla.spark.pipeline.quality import changes, expectations
from ottla.spark.pipeline.quality.expectations import Expect
from ottla.spark.pipeline.replay import Replay
from ottla.spark.pipeline.values import Codec, codec
from ottla.spark.pipeline.values.rows import framed, framed_column
from ottla.spark.pipeline.values.verdicts import Verdicts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Columns that a plan has beside those of its user.
PARSED = "_ottla_parsed"
ENCODED = "_ottla_encoded"
WHOLE = "_ottla_record"
ERROR = "_ottla_error"
EXACT = "_ottla_exact_error"
UNMET = "_ottla_unmet"
PLACE = "_ottla_place"
REFUSED = "_ottla_refused"
LETTER = "_ottla_letter"
_AGE = "_ottla_age"

METRICS_IN = "ottla_in"
METRICS_OUT = "ottla_out"
DEAD_LETTERED = "dead_lettered"
ERROR_HEADER_PREFIX = "ottla.error."
DEAD_LETTER_SUFFIX = ".dead_letter"
RAW_COLUMNS = ("key", "value", "headers", "topic", "partition")
LETTER_COLUMNS = ("key", "value", "headers", "topic", "partition", "offset")
HEADERS = "array<struct<key:string,value:binary>>"
RAW_INPUT = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}
META = (
    "struct<key:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestamp_type:int,"
    "tombstone:boolean>"
)


class StandIn(Protocol):
    """What inputs are where somebody only looks at a plan: nothing is read, nothing is made."""

    def records(self, topic: Topic, settings: Mapping[str, Any], *, stream: bool) -> DataFrame:
        """As format("ottla") gives them, none; OptionError where it does not take the settings."""

    def table(self, source: Source) -> DataFrame:
        """A table's columns, without its rows."""


@dataclass
class Context:
    """What all plans of a run share, and the count of metrics of one plan (their names must differ)."""

    pipeline: DeclaredPipeline
    spark: SparkSession
    bootstrap: str
    options: Mapping[str, str] = field(repr=False)
    replay: Replay | None = None
    group: str = ""
    judged_in: str = ""  # the checkpoint that has the verdicts on schema ids, where two queries have to agree
    stand_in: StandIn | None = None
    names: list[str] = field(default_factory=list)
    codecs: dict[int, Codec | None] = field(default_factory=dict)

    def metrics_name(self, prefix: str) -> str:
        self.names.append(f"{prefix}_{len(self.names)}")
        return self.names[-1]

    def for_query(self, group: str, judged_in: str = "") -> Context:
        return replace(self, group=group, judged_in=judged_in, names=[])

    def verdicts(self, topic: Topic) -> Verdicts | None:
        return Verdicts(self.judged_in, topic.name) if self.judged_in and not topic.table else None

    def codec_of(self, topic: Topic) -> Codec | None:
        """How an input is read. One codec a run: what a registry has as the newest schema is asked for once, and a
        stream and its dead letters read by the same."""
        if id(topic) not in self.codecs:
            made = codec(topic, topic.read_format, self.pipeline.base_dir, writing=False)
            self.codecs[id(topic)] = made
        return self.codecs[id(topic)]


def read(context: Context, source: Source, *, tolerant: bool, where: str = "") -> DataFrame:
    """An input; `tolerant` where somebody else takes care of what does not parse; `where` names it in messages."""
    if isinstance(source, Topic):
        return _read_topic(context, source, tolerant=tolerant, where=where)
    if context.stand_in is not None:
        return context.stand_in.table(source)
    if isinstance(source, Parquet):
        return context.spark.read.options(**source.options).parquet(source.path)
    secrets = context.pipeline.secrets
    if isinstance(source, Delta):
        from ottla.spark.pipeline.lake.delta import read_table as read_delta

        with discreetly(secrets):
            rows = read_delta(with_secrets(source, secrets))
    else:
        from ottla.spark.pipeline.lake.iceberg import read_table as read_iceberg

        assert isinstance(source, Iceberg)
        with discreetly(secrets):
            rows = read_iceberg(with_secrets(source, secrets))
    return context.spark.createDataFrame(rows)


def with_secrets(table: Delta | Iceberg, secrets: Mapping[str, str]) -> Any:
    """A table's declaration as those need it who open the table."""
    if isinstance(table, Iceberg):
        return replace(table, catalog=revealed(table.catalog, secrets))
    return replace(table, options=revealed(table.options, secrets))


def _read_topic(context: Context, topic: Topic, *, tolerant: bool, where: str) -> DataFrame:
    values = context.codec_of(topic)
    raw = records(context, topic, _used(topic, values), stream=not topic.table)
    if values is None:
        return _as_expected(context, raw, topic, where)
    keep = topic.table or topic.tombstones == "keep"
    parsed = parse(raw, values, context.verdicts(topic), keep_tombstones=keep)
    counted = _counted(context, parsed, values, topic)
    good = _good(counted, values, topic, fail=not tolerant and topic.on_error == "fail")
    columns = _columns(good, values, topic)
    if topic.table:
        return _as_expected(context, _newest(good.select(*columns), topic), topic, where)
    shaped = good.select(*columns, *([_place().alias(PLACE)] if topic.expect else []))
    return _as_expected(context, shaped, topic, where)


def _used(topic: Topic, values: Codec | None) -> set[str]:
    """The columns of the source that are looked at here, whatever the stream's function does with what it gets."""
    # The place of a record chooses samples, is told with an error, and remembered with a schema's id.
    used = {"value", "partition", "offset"} if values is not None or topic.expect else set()
    if topic.meta:
        used |= RAW_INPUT.keys()
    if topic.key:
        used.add("key")
    if topic.headers is not None:
        used.add("headers")
    return used


def _place() -> Column:
    from pyspark.sql import functions as F

    return F.struct("partition", "offset", F.col("value").isNull().alias("tombstone"))


def _as_expected(context: Context, rows: DataFrame, topic: Topic, where: str) -> DataFrame:
    """An input's rows that meet what is expected of them; those for the dead letters are in `letters`."""
    from pyspark.sql import functions as F

    if not topic.expect:
        return rows
    _check_expectations(rows.drop(PLACE), topic.expect, where)
    spared, place = None, F.lit(f"{topic.name}: ")
    if not topic.table:
        at = _place() if PLACE not in rows.columns else F.col(PLACE)
        spared = at["tombstone"]
        offset = F.concat_ws(" at offset ", at["partition"], at["offset"])
        place = F.concat(F.lit(f"{topic.name}-"), offset, F.lit(": "))
    judged = expectations.judged(rows, topic.expect, spared)
    counted = expectations.counted(judged, topic.expect, context.metrics_name(expectations.METRICS))
    return expectations.kept(counted, topic.expect, place).drop(expectations.VERDICT, PLACE)


def _check_expectations(rows: DataFrame, expected: Sequence[Expect], where: str) -> None:
    problems = [Problem(where, what) for what in expectations.misunderstood(rows, expected)]
    if problems:
        raise PipelineError(problems)


def as_expected(context: Context, stream: Stream, result: DataFrame) -> DataFrame:
    """A result's rows that meet what is expected of them, and those for the dead letters, with the reason (REFUSED)."""
    from pyspark.sql import functions as F

    if not stream.expect:
        return result
    _check_expectations(result, stream.expect, context.pipeline.where(stream, "expect"))
    judged = expectations.judged(result, stream.expect)
    counted = expectations.counted(judged, stream.expect, context.metrics_name(expectations.METRICS))
    letters = bool(expectations.numbers(stream.expect, expectations.DEAD_LETTER))
    kept = expectations.kept(counted, stream.expect, F.lit("a row of the result: "), letters=letters)
    if letters:
        kept = kept.withColumn(REFUSED, expectations.reason(stream.expect))
    return kept.drop(expectations.VERDICT)


def records(context: Context, topic: Topic, used: Collection[str], *, stream: bool) -> DataFrame:
    """The records as format("ottla") gives them: `used` are the columns that are looked at here."""
    settings: dict[str, Any] = {
        "kafka.bootstrap.servers": context.bootstrap,
        "subscribe": topic.name,
        **(_start(context, topic) if stream else {"startingOffsets": "earliest"}),
        **context.options,
    }
    if stream:
        settings["ottla.group"] = context.group
    if "headers" in used:
        settings["includeHeaders"] = "true"
    settings |= revealed(topic.options, context.pipeline.secrets)
    end_ms = context.replay.to_ms if stream and context.replay is not None else None
    named = sorted({*used, *(["timestamp"] if end_ms is not None else [])})
    asked = [settings.pop(name) for name in list(settings) if name.lower() == COLUMNS_OPTION]
    # A function that gets raw records may look at all of them, unless it says at which.
    if asked or context.codec_of(topic) is not None:
        settings[COLUMNS_OPTION] = ",".join([*asked, *named] if context.codec_of(topic) is None else named)
    if context.stand_in is not None:
        return context.stand_in.records(topic, settings, stream=stream)
    reader: Any = context.spark.readStream if stream else context.spark.read
    found: DataFrame = reader.format("ottla").options(**settings).load()
    if end_ms is None:
        return found
    from pyspark.sql import functions as F

    return found.where(F.col("timestamp") < F.timestamp_millis(F.lit(end_ms)))


def _start(context: Context, topic: Topic) -> dict[str, str]:
    return parse_start(topic.start) if context.replay is None else from_moment(context.replay.from_ms)


def parse(
    raw: DataFrame, values: Codec, verdicts: Verdicts | None = None, *, keep_tombstones: bool
) -> DataFrame:
    """The records with their parsed values beside them."""
    from pyspark.sql import functions as F

    kept = raw if keep_tombstones else raw.where(F.col("value").isNotNull())
    return kept.withColumn(PARSED, values.parse(F.col("value"), verdicts))


def failure(values: Codec, topic: Topic) -> Column:
    """Why a record did not parse; null for one that did, and for one without a value."""
    from pyspark.sql import functions as F

    return F.when(
        F.col("value").isNotNull(), F.coalesce(_key_failure(values, topic), values.error(F.col(PARSED)))
    )


def _key_failure(values: Codec, topic: Topic) -> Column:
    """What is wrong with a value whose key is none of its column's type; null where there is no such type."""
    from pyspark.sql import functions as F

    found = F.lit(None).cast("string")
    for name in topic.key:
        kind = _key_type(values, name)
        if kind is not None:
            wrong, said = F.col("key").isNotNull() & _key_as(kind).isNull(), kind.simpleString()
            found = F.when(wrong, F.lit(f"comes with a key that is no {said}")).otherwise(found)
    return found


def _key_type(values: Codec, name: str) -> Any:
    """The type that a schema gives the key's column; None where that is text."""
    return next((f.dataType for f in _declared(values) if f.name == name), None)


def _key_as(kind: Any) -> Column:
    """Null where it is none: a cast that fails would end the query, whatever becomes of what does not parse."""
    from pyspark.sql import functions as F

    return F.col("key").cast("string").try_cast(kind)


def _counted(context: Context, parsed: DataFrame, values: Codec, topic: Topic) -> DataFrame:
    from pyspark.sql import functions as F

    counts = [F.count(F.lit(1)).alias("rows"), F.count(failure(values, topic)).alias("bad")]
    difference = values.difference(F.col("value"), F.col(PARSED))
    # A table is read whole for each micro-batch: what is new in it would be counted again and again.
    if difference is not None and not topic.table:
        parsed = parsed.withColumn(changes.DIFFERENCE, difference)
        counts.append(changes.counted(topic.name))
    return parsed.observe(context.metrics_name(METRICS_IN), *counts)


def _good(counted: DataFrame, values: Codec, topic: Topic, *, fail: bool) -> DataFrame:
    from pyspark.sql import functions as F

    error = failure(values, topic)
    if not fail:
        return counted.where(error.isNull())
    place = F.concat_ws(
        "",
        F.lit(f"{topic.name}-"),
        F.col("partition"),
        F.lit(" at offset "),
        F.col("offset"),
        F.lit(": the value "),
        error
        if values.is_framed
        else F.coalesce(_key_failure(values, topic), framed_column(F.col("value")), error),
        F.lit("; dead_letter=topic(...) sets such records aside, on_error='skip' leaves them out"),
    )
    return counted.where(F.when(error.isNull(), F.lit(True)).otherwise(F.raise_error(place).cast("boolean")))


def _columns(good: DataFrame, values: Codec, topic: Topic) -> list[Column]:
    from pyspark.sql import functions as F

    fields = dict(zip(_names(values), values.fields(F.col(PARSED)), strict=True))
    for name in topic.key:
        kind = _key_type(values, name)
        fields[name] = (F.col("key").cast("string") if kind is None else _key_as(kind)).alias(name)
    if topic.headers is not None:
        fields[topic.headers] = F.col("headers").alias(topic.headers)
    if topic.meta:
        meta = ["key", "topic", "partition", "offset", "timestamp"]
        kind = F.col("timestampType").alias("timestamp_type")
        gone = F.col("value").isNull().alias("tombstone")
        fields[META_COLUMN] = F.struct(*meta, kind, gone).alias(META_COLUMN)
    if topic.table:
        fields[_AGE] = F.struct("offset", F.col("value").isNotNull().alias("alive")).alias(_AGE)
    return list(fields.values())


def input_columns(topic: Topic, base_dir: Path) -> StructType:
    """The columns that a topic has as an input, for who brings rows of his own."""
    from pyspark.sql.types import DataType, StringType, StructField, StructType

    values = codec(topic, topic.read_format, base_dir, writing=False)
    if values is None:
        return StructType([StructField(name, DataType.fromDDL(kind)) for name, kind in RAW_INPUT.items()])
    fields = {declared.name: declared for declared in _declared(values)}
    for name in topic.key:
        fields.setdefault(name, StructField(name, StringType()))
    if topic.headers is not None:
        fields[topic.headers] = StructField(topic.headers, DataType.fromDDL(HEADERS))
    if topic.meta:
        fields[META_COLUMN] = StructField(META_COLUMN, DataType.fromDDL(META))
    return StructType(list(fields.values()))


def _newest(rows: DataFrame, topic: Topic) -> DataFrame:
    """A compacted topic as the table that it is: the newest value of each key, none where that is a tombstone."""
    from pyspark.sql import functions as F

    names = [name for name in rows.columns if name != _AGE]
    newest = rows.groupBy(topic.key[0]).agg(
        F.max_by(F.struct(*names, _AGE), F.col(_AGE)["offset"]).alias("row")
    )
    alive = newest.where(F.col("row")[_AGE]["alive"])
    return alive.select(*[F.col("row")[name].alias(name) for name in names])


def _names(values: Codec) -> list[str]:
    assert values.columns is not None
    return list(values.columns.names)


def _declared(values: Codec) -> list[Any]:
    assert values.columns is not None
    return list(values.columns.fields)


def letters(context: Context, stream: Stream) -> DataFrame | None:
    """All records of a stream's inputs that do not parse or are not as expected; None where that cannot be."""
    found: list[DataFrame] = []
    parsed: list[Topic] = []
    judged: list[Topic] = []
    for _, _, source in context.pipeline.inputs(stream):
        if not isinstance(source, Topic) or source.table:
            continue
        values = context.codec_of(source)
        unparsed = values is not None and not any(_is_read_alike(one, source) for one in parsed)
        # One topic may be several inputs, of which each may expect something else.
        aside = expectations.numbers(source.expect, expectations.DEAD_LETTER) if source not in judged else []
        if unparsed or aside:
            before = [one for one in parsed if one.name == source.name] if unparsed else []
            found.append(_of_topic(context, stream, source, values, aside, before, unparsed=unparsed))
        judged.append(source)
        if unparsed:
            parsed.append(source)
    if not found:
        return None
    first, *others = found
    for other in others:
        first = first.unionByName(other)
    from pyspark.sql import functions as F

    return first.observe(context.metrics_name(METRICS_OUT), F.count(F.lit(1)).alias(DEAD_LETTERED))


def _is_read_alike(one: Topic, other: Topic) -> bool:
    """Whether what parses as one input does as another: a topic may be several, with schemas of their own."""

    def reading(topic: Topic) -> tuple[Any, ...]:
        named = (topic.name, topic.key, topic.read_format)
        return (*named, topic.schema, topic.message, topic.registry, topic.subject)

    return reading(one) == reading(other)


def _of_topic(
    context: Context,
    stream: Stream,
    topic: Topic,
    values: Codec | None,
    numbers: list[int],
    before: Sequence[Topic],
    *,
    unparsed: bool,
) -> DataFrame:
    """A topic's records that do not parse, and those whose rows do not meet one of these expectations: one read for
    both, so that an expectation more or less does not change what the query's checkpoint is about. What does not parse
    as one of the inputs `before` is left to that: each record is a dead letter once."""
    from pyspark.sql import functions as F

    used = {*LETTER_COLUMNS, *(_used(topic, values) if numbers else ())}
    rows = records(context, topic, used, stream=True).where(F.col("value").isNotNull())
    for other in before:
        known = context.codec_of(other)
        assert known is not None
        rows = parse(rows, known, context.verdicts(other), keep_tombstones=False)
        rows = rows.where(failure(known, other).isNull()).drop(PARSED)
    whole = F.struct(*LETTER_COLUMNS).alias(WHOLE)
    error = exact = F.lit(None).cast("string")
    columns: list[Any] = ["*"]
    if values is not None:
        rows = parse(rows, values, context.verdicts(topic), keep_tombstones=False)
        error = failure(values, topic)
        exact = F.coalesce(_key_failure(values, topic), values.exact_error(F.col(PARSED)))
        columns = list(_columns(rows, values, topic)) if numbers else []
    rows = rows.select(*columns, whole, error.alias(ERROR), exact.alias(EXACT))
    wanted = F.col(ERROR).isNotNull() if unparsed else F.lit(False)
    reason = F.lit(None).cast("string")
    if numbers:
        rows = expectations.judged(rows, topic.expect, F.col(ERROR).isNotNull())
        wanted |= F.coalesce(F.col(expectations.VERDICT).isin(numbers), F.lit(False))
        reason = expectations.reason(topic.expect)
    bad = rows.where(wanted).select(f"{WHOLE}.*", ERROR, EXACT, reason.alias(UNMET))
    if unparsed and values is not None:
        value = F.when(F.col(ERROR).isNotNull() & F.col(EXACT).isNull(), F.col("value"))
        why = F.coalesce(EXACT, _explained(values, value))
        bad = bad.withColumn(ERROR, F.concat(F.lit("the value "), why))
    reasons = headers_with(
        F.col("headers"),
        header("reason", F.coalesce(ERROR, UNMET)),
        header("stream", F.lit(context.pipeline.group_of(stream))),
        header("topic", F.col("topic")),
        header("partition", F.col("partition")),
        header("offset", F.col("offset")),
    )
    return bad.select("key", "value", reasons.alias("headers"))


def _explained(values: Codec, value: Column) -> Column:
    """The exact reason, found in Python: there are few such records, or it does not matter how fast it goes."""
    from pyspark.sql import functions as F

    def explain(value: Any) -> str | None:
        if value is None:
            return None
        data = bytes(value)
        return (None if values.is_framed else framed(data)) or values.explain(data)

    # Not deterministic, as far as Spark needs to know: it must not be moved before the filter.
    return F.udf(explain, "string", useArrow=False).asNondeterministic()(value)


def header(name: str, value: Column) -> Column:
    """One header of ours."""
    from pyspark.sql import functions as F

    return F.struct(
        F.lit(ERROR_HEADER_PREFIX + name).alias("key"), value.cast("string").cast("binary").alias("value")
    )


def headers_with(headers: Column, *more: Column) -> Column:
    """The record's own headers, then ours."""
    from pyspark.sql import functions as F

    empty = F.array().cast("array<struct<key:string,value:binary>>")
    return F.concat(F.coalesce(headers, empty), F.array(*more))


def check_columns(pipeline: DeclaredPipeline, stream: Stream, result: DataFrame) -> None:
    """Checks what only the plan shows: whether the columns that `out` names are there, and fit."""
    problems = [pipeline.problem(stream, "out", what) for what in _refused(pipeline, stream, result.schema)]
    if problems:
        raise PipelineError(problems)


def _refused(pipeline: DeclaredPipeline, stream: Stream, columns: StructType) -> Iterator[str]:
    sink = stream.out
    for parameter in ("key", "headers", "partition_by", "sort_by", "order_by", "delete"):
        named = getattr(sink, parameter, None) or ()
        for given in (named,) if isinstance(named, str) else named:
            name = _column(parameter, given)
            if name not in columns.names:
                known = list(columns.names)
                hint = did_you_mean(name, known)
                yield f"{parameter}={name!r} is no column of the result; it has {listed(known)}{hint}"
    if isinstance(sink, Topic):
        yield from _refused_values(pipeline, sink, columns)


def _column(parameter: str, given: str) -> str:
    """The column that a declaration names: `at` of "day(at)" and of "at desc"."""
    if parameter == "partition_by":
        return parse_part(given).column
    return parse_sort(given)[0] if parameter == "sort_by" else given


def _refused_values(pipeline: DeclaredPipeline, sink: Topic, columns: StructType) -> Iterator[str]:
    values = codec(sink, sink.write_format, pipeline.base_dir, writing=True)
    if values is not None:
        yield from values.refuse(value_columns(sink, columns, values))
        return
    unknown = [name for name in columns.names if name not in RAW_COLUMNS]
    if unknown or "value" not in columns.names:
        yield f"format='raw' writes the columns {', '.join(RAW_COLUMNS)}; the result has {listed(columns.names)}"


def value_columns(sink: Topic, columns: StructType, values: Codec) -> StructType:
    """The columns that make the value: all but the headers, and the key's where the schema or the text says so."""
    from pyspark.sql.types import StructType

    left_out = {sink.headers, REFUSED}
    if values.columns is not None:
        left_out |= {name for name in sink.key if name not in values.columns.names}
    if sink.write_format == "string":
        left_out |= set(sink.key)
    return StructType([field for field in columns.fields if field.name not in left_out])


def encode(pipeline: DeclaredPipeline, stream: Stream, result: DataFrame) -> DataFrame:
    """The result as the columns that format("ottla") writes; LETTER is there where rows may be dead letters."""
    from pyspark.sql import functions as F

    sink = stream.out
    values = codec(sink, sink.write_format, pipeline.base_dir, writing=True)
    refused = REFUSED in result.columns
    if values is None:
        return _raw_with_refused(result, pipeline, stream) if refused else result
    columns = value_columns(sink, result.schema, values)
    row = F.struct(*[F.col(_quoted(name)) for name in columns.names])
    shaped = result.select(
        _key(sink).alias("key"),
        values.encode(row, columns).alias(ENCODED),
        (F.col(_quoted(sink.headers)) if sink.headers else F.lit(None).cast(HEADERS)).alias("headers"),
        *([F.to_json(row).cast("binary").alias("row")] if values.can_fail_to_write or refused else []),
        *([REFUSED] if refused else []),
    )
    if not values.can_fail_to_write and not refused:
        value = F.col(ENCODED)["value"].alias("value")
        return shaped.select("key", value, *(["headers"] if sink.headers else []))
    return _with_failures(shaped, pipeline, stream)


def _with_failures(shaped: DataFrame, pipeline: DeclaredPipeline, stream: Stream) -> DataFrame:
    from pyspark.sql import functions as F

    error, value = F.col(ENCODED)["error"], F.col(ENCODED)["value"]
    said = F.concat(F.lit("cannot be written: "), error)
    if REFUSED in shaped.columns:
        said = F.coalesce(F.col(REFUSED), said)
        error = F.coalesce(F.col(REFUSED), error)
    if stream.dead_letter is None:
        text = F.concat(F.lit(f"{stream.name}: a row cannot be written to {stream.out.name}: "), error)
        return shaped.select(
            "key",
            F.when(error.isNull(), value).otherwise(F.raise_error(text).cast("binary")).alias("value"),
            *(["headers"] if stream.out.headers else []),
        )
    reasons = _reasons_of_row(F.col("headers"), said, pipeline, stream)
    return shaped.select(
        "key",
        F.when(error.isNull(), value).otherwise(F.col("row")).alias("value"),
        F.when(error.isNull(), F.col("headers")).otherwise(reasons).alias("headers"),
        F.when(error.isNull(), F.lit(stream.out.name))
        .otherwise(F.lit(stream.dead_letter.name))
        .alias("topic"),
        error.isNotNull().alias(LETTER),
    )


def counted_out(context: Context, written: DataFrame) -> DataFrame:
    """The rows that a stream's own query writes, their number in its metrics. Rows of a topic have been encoded by now:
    only that shows which of them the format refuses."""
    from pyspark.sql import functions as F

    counts = [F.count(F.lit(1)).alias("rows")]
    if LETTER in written.columns:
        good, letter = F.when(~F.col(LETTER), F.lit(1)), F.when(F.col(LETTER), F.lit(1))
        counts = [F.count(good).alias("rows"), F.count(letter).alias(DEAD_LETTERED)]
    return written.observe(context.metrics_name(METRICS_OUT), *counts).drop(LETTER)


def _reasons_of_row(headers: Column, said: Column, pipeline: DeclaredPipeline, stream: Stream) -> Column:
    from pyspark.sql import functions as F

    return headers_with(
        headers,
        header("reason", said),
        header("stream", F.lit(pipeline.group_of(stream))),
        header("topic", F.lit(stream.out.name)),
    )


def _raw_with_refused(result: DataFrame, pipeline: DeclaredPipeline, stream: Stream) -> DataFrame:
    """Raw rows, those that are not as expected on their way to the dead letters."""
    from pyspark.sql import functions as F

    good = F.col(REFUSED).isNull()
    own = {name: F.col(name) for name in RAW_COLUMNS if name in result.columns}
    headers = own.get("headers", F.lit(None)).cast(HEADERS)
    columns = {
        **own,
        "headers": F.when(good, headers).otherwise(
            _reasons_of_row(headers, F.col(REFUSED), pipeline, stream)
        ),
        "topic": F.when(good, own.get("topic", F.lit(stream.out.name))).otherwise(
            F.lit(stream.dead_letter.name)
        ),
    }
    if "partition" in own:
        columns["partition"] = F.when(good, own["partition"])
    columns[LETTER] = ~good
    return result.select(*[column.alias(name) for name, column in columns.items()])


def _key(sink: Topic) -> Column:
    from pyspark.sql import functions as F

    if not sink.key:
        return F.lit(None).cast("binary")
    if len(sink.key) > 1:
        return F.to_json(F.struct(*map(_quoted, sink.key))).cast("binary")
    column = F.col(_quoted(sink.key[0]))
    return F.coalesce(column.cast("string")).cast("binary")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
