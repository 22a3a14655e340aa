"""Inputs as DataFrames: a topic's records decoded, what does not parse set aside, tables read as they stand.

Runs in the driver while a plan is built. Rules: a value that does not parse never ends a query unless the input
says so and there is no dead-letter topic; how many there were is counted in the query's metrics (`observe`),
which is also where Spark's optimizer stops moving filters about, so that a value is parsed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.spark.pipeline.declare import META_COLUMN, Delta, Iceberg, Parquet, Source, Topic
from ottla.spark.pipeline.model import Pipeline
from ottla.spark.pipeline.values import Codec, codec
from ottla.spark.pipeline.values.framing import framed_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PARSED = "_ottla_parsed"
METRICS_IN = "ottla_in"
METRICS_OUT = "ottla_out"


@dataclass
class Context:
    """What all plans of a run share, and the count of metrics of one plan (their names must differ)."""

    pipeline: Pipeline
    spark: SparkSession
    bootstrap: str
    options: Mapping[str, str]
    group: str = ""
    names: list[str] = field(default_factory=list)

    def metrics_name(self, prefix: str) -> str:
        self.names.append(f"{prefix}_{len(self.names)}")
        return self.names[-1]

    def for_query(self, group: str) -> Context:
        return Context(self.pipeline, self.spark, self.bootstrap, self.options, group)


def read(context: Context, source: Source, *, tolerant: bool) -> DataFrame:
    """An input; `tolerant` where somebody else takes care of what does not parse."""
    if isinstance(source, Topic):
        return _read_topic(context, source, tolerant=tolerant)
    if isinstance(source, Parquet):
        return context.spark.read.options(**source.options).parquet(source.path)
    if isinstance(source, Delta):
        from ottla.spark.pipeline.lake_delta import read_table as read_delta

        return context.spark.createDataFrame(read_delta(source))
    assert isinstance(source, Iceberg)
    from ottla.spark.pipeline.lake_iceberg import read_table as read_iceberg

    return context.spark.createDataFrame(read_iceberg(source))


def _read_topic(context: Context, topic: Topic, *, tolerant: bool) -> DataFrame:
    values = codec(topic, topic.read_format, context.pipeline.base_dir, writing=False)
    raw = records(context, topic, stream=not topic.table, headers=topic.headers is not None)
    if values is None:
        return raw
    keep = topic.table or topic.tombstones == "keep"
    parsed = parse(raw, values, keep_tombstones=keep)
    counted = _counted(context, parsed, values)
    good = _good(counted, values, topic, fail=not tolerant and topic.on_error == "fail")
    shaped = good.select(*_columns(good, values, topic))
    return _newest(shaped, topic) if topic.table else shaped


def records(context: Context, topic: Topic, *, stream: bool, headers: bool) -> DataFrame:
    """The records as format("ottla") gives them."""
    settings: dict[str, Any] = {
        "kafka.bootstrap.servers": context.bootstrap,
        "subscribe": topic.name,
        "startingOffsets": topic.start if stream else "earliest",
        **context.options,
    }
    if stream:
        settings["ottla.group"] = context.group
    if headers:
        settings["includeHeaders"] = "true"
    settings |= topic.options
    reader: Any = context.spark.readStream if stream else context.spark.read
    found: DataFrame = reader.format("ottla").options(**settings).load()
    return found


def parse(raw: DataFrame, values: Codec, *, keep_tombstones: bool) -> DataFrame:
    """The records with their parsed values beside them."""
    from pyspark.sql import functions as F

    kept = raw if keep_tombstones else raw.where(F.col("value").isNotNull())
    return kept.withColumn(PARSED, values.parse(F.col("value")))


def failure(values: Codec) -> Column:
    """Why a record's value did not parse; null for one that did, and for one without a value."""
    from pyspark.sql import functions as F

    return F.when(F.col("value").isNotNull(), values.error(F.col(PARSED)))


def _counted(context: Context, parsed: DataFrame, values: Codec) -> DataFrame:
    from pyspark.sql import functions as F

    return parsed.observe(
        context.metrics_name(METRICS_IN),
        F.count(F.lit(1)).alias("rows"),
        F.count(failure(values)).alias("bad"),
    )


def _good(counted: DataFrame, values: Codec, topic: Topic, *, fail: bool) -> DataFrame:
    from pyspark.sql import functions as F

    error = failure(values)
    if not fail:
        return counted.where(error.isNull())
    place = F.concat_ws(
        "",
        F.lit(f"{topic.name}-"),
        F.col("partition"),
        F.lit(" at offset "),
        F.col("offset"),
        F.lit(": the value "),
        F.coalesce(framed_column(F.col("value")), error),
        F.lit("; dead_letter=topic(...) sets such records aside, on_error='skip' leaves them out"),
    )
    return counted.where(F.when(error.isNull(), F.lit(True)).otherwise(F.raise_error(place).cast("boolean")))


def _columns(good: DataFrame, values: Codec, topic: Topic) -> list[Column]:
    from pyspark.sql import functions as F

    fields = dict(zip(_names(values), values.fields(F.col(PARSED)), strict=True))
    for name in topic.key:
        text = F.col("key").cast("string")
        kind = next((f.dataType for f in _declared(values) if f.name == name), None)
        fields[name] = (text if kind is None else text.cast(kind)).alias(name)
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


_AGE = "_ottla_age"


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
