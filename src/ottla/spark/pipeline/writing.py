"""Results as records: the key taken from its column, the rest encoded as the value.

Runs in the driver while a plan is built, so a wrong column is named before the query starts. A row that cannot
be encoded (an Avro or Protobuf schema that it does not fit) goes to the dead-letter topic in the same query, and
so in the same transactions, as the rows that can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ottla.spark.pipeline.declare import Stream, Topic
from ottla.spark.pipeline.errors import PipelineError, did_you_mean, listed
from ottla.spark.pipeline.letters import header, headers_with
from ottla.spark.pipeline.model import Pipeline
from ottla.spark.pipeline.values import Codec, codec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

ENCODED = "_ottla_encoded"
RAW_COLUMNS = ("key", "value", "headers", "topic", "partition")


def check_columns(pipeline: Pipeline, stream: Stream, result: DataFrame) -> None:
    """What only the plan can tell: whether the columns that `out` names are there, and fit."""
    problems = [pipeline.problem(stream, "out", what) for what in _refused(pipeline, stream, result.schema)]
    if problems:
        raise PipelineError(problems)


def _refused(pipeline: Pipeline, stream: Stream, columns: StructType) -> Iterator[str]:
    sink = stream.out
    for parameter in ("key", "headers", "partition_by", "order_by", "delete"):
        named = getattr(sink, parameter, None) or ()
        for name in (named,) if isinstance(named, str) else named:
            if name not in columns.names:
                known = list(columns.names)
                hint = did_you_mean(name, known)
                yield f"{parameter}={name!r} is no column of the result; it has {listed(known)}{hint}"
    if isinstance(sink, Topic):
        yield from _refused_values(pipeline, sink, columns)


def _refused_values(pipeline: Pipeline, sink: Topic, columns: StructType) -> Iterator[str]:
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

    left_out = {sink.headers}
    if values.columns is not None:
        left_out |= {name for name in sink.key if name not in values.columns.names}
    if sink.write_format == "string":
        left_out |= set(sink.key)
    return StructType([field for field in columns.fields if field.name not in left_out])


def encode(pipeline: Pipeline, stream: Stream, result: DataFrame) -> DataFrame:
    """The result as the columns that format("ottla") writes."""
    from pyspark.sql import functions as F

    sink = stream.out
    values = codec(sink, sink.write_format, pipeline.base_dir, writing=True)
    if values is None:
        return result
    columns = value_columns(sink, result.schema, values)
    row = F.struct(*[F.col(_quoted(name)) for name in columns.names])
    shaped = result.select(
        _key(sink).alias("key"),
        values.encode(row, columns).alias(ENCODED),
        (F.col(_quoted(sink.headers)) if sink.headers else F.lit(None).cast(HEADERS)).alias("headers"),
        *([F.to_json(row).cast("binary").alias("row")] if values.can_fail_to_write else []),
    )
    if not values.can_fail_to_write:
        value = F.col(ENCODED)["value"].alias("value")
        return shaped.select("key", value, *(["headers"] if sink.headers else []))
    return _with_failures(shaped, pipeline, stream)


HEADERS = "array<struct<key:string,value:binary>>"


def _with_failures(shaped: DataFrame, pipeline: Pipeline, stream: Stream) -> DataFrame:
    from pyspark.sql import functions as F

    error, value = F.col(ENCODED)["error"], F.col(ENCODED)["value"]
    if stream.dead_letter is None:
        text = F.concat(F.lit(f"{stream.name}: a row cannot be written to {stream.out.name}: "), error)
        return shaped.select(
            "key",
            F.when(error.isNull(), value).otherwise(F.raise_error(text).cast("binary")).alias("value"),
            *(["headers"] if stream.out.headers else []),
        )
    reasons = headers_with(
        F.col("headers"),
        header("reason", F.concat(F.lit("cannot be written: "), error)),
        header("stream", F.lit(pipeline.group_of(stream))),
        header("topic", F.lit(stream.out.name)),
    )
    return shaped.select(
        "key",
        F.when(error.isNull(), value).otherwise(F.col("row")).alias("value"),
        F.when(error.isNull(), F.col("headers")).otherwise(reasons).alias("headers"),
        F.when(error.isNull(), F.lit(stream.out.name))
        .otherwise(F.lit(stream.dead_letter.name))
        .alias("topic"),
    )


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
