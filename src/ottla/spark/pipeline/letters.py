"""Dead letters: records that do not parse, as they came, with headers that say why and where they were.

Headers: `ottla.error.reason`, `.stream`, `.topic`, `.partition`, `.offset`. One query a stream reads its inputs
again and keeps only what does not parse; it has a checkpoint and transactions of its own, so dead letters are
exactly once too, and a record can be lost to neither query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.spark.pipeline.declare import Stream, Topic
from ottla.spark.pipeline.reading import METRICS_OUT, PARSED, Context, failure, parse, records
from ottla.spark.pipeline.values import Codec, codec
from ottla.spark.pipeline.values.framing import framed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PREFIX = "ottla.error."
SUFFIX = ".dead_letter"


def letters(context: Context, stream: Stream) -> DataFrame | None:
    """All records of a stream's inputs that do not parse; None where all are raw."""
    found: dict[str, DataFrame] = {}
    for _, _, source in context.pipeline.inputs(stream):
        if isinstance(source, Topic) and not source.table and source.name not in found:
            values = codec(source, source.read_format, context.pipeline.base_dir, writing=False)
            if values is not None:
                found[source.name] = _of_topic(context, stream, source, values)
    if not found:
        return None
    first, *others = found.values()
    for other in others:
        first = first.unionByName(other)
    from pyspark.sql import functions as F

    return first.observe(context.metrics_name(METRICS_OUT), F.count(F.lit(1)).alias("rows"))


def _of_topic(context: Context, stream: Stream, topic: Topic, values: Codec) -> DataFrame:
    from pyspark.sql import functions as F

    raw = records(context, topic, stream=True, headers=True)
    bad = parse(raw, values, keep_tombstones=False).where(failure(values).isNotNull()).drop(PARSED)
    explained = bad.withColumn("reason", _explained(values))
    reasons = headers_with(
        F.col("headers"),
        header("reason", F.concat(F.lit("the value "), F.col("reason"))),
        header("stream", F.lit(context.pipeline.group_of(stream))),
        header("topic", F.col("topic")),
        header("partition", F.col("partition")),
        header("offset", F.col("offset")),
    )
    return explained.select("key", "value", reasons.alias("headers"))


def _explained(values: Codec) -> Column:
    """The exact reason, found in Python: there are few such records, or it does not matter how fast it goes."""
    from pyspark.sql import functions as F

    def explain(value: Any) -> str:
        data = bytes(value)
        return framed(data) or values.explain(data)

    # Not deterministic, as far as Spark needs to know: it must not be moved before the filter.
    return F.udf(explain, "string", useArrow=False).asNondeterministic()(F.col("value"))


def header(name: str, value: Column) -> Column:
    """One header of ours."""
    from pyspark.sql import functions as F

    return F.struct(F.lit(PREFIX + name).alias("key"), value.cast("string").cast("binary").alias("value"))


def headers_with(headers: Column, *more: Column) -> Column:
    """The record's own headers, then ours."""
    from pyspark.sql import functions as F

    empty = F.array().cast("array<struct<key:string,value:binary>>")
    return F.concat(F.coalesce(headers, empty), F.array(*more))
