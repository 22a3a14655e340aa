"""Nexmark's queries by one connector, in a process of its own (as bench.spark_job, from which the orders come).

A query is the function of the pipeline in queries.py, over topics that are read by `format(...)` with the one word or
the other; all else is the same code. What is timed goes to Spark's sink that drops rows. What is compared goes to
Parquet files, batch by batch, and is told as a number of rows and the sum of their hashes: their order does not matter.
"""

from __future__ import annotations

import shutil
import time
import uuid
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.window import Window

from bench.nexmark import plain
from bench.spark_job import QUERY_TIMEOUT_S, Job, serve
from ottla.spark.pipeline import load
from ottla.spark.pipeline.declare import Parquet, Stream, Topic, parameters
from ottla.spark.pipeline.frames import input_columns

QUERIES = Path(plain.__file__).with_name("queries.py")
BATCH = "_batch"


class NexmarkJob(Job):
    """What can be ordered."""

    def run(self, name: str, limit: int) -> dict[str, Any]:
        """A query to its end, rows dropped (q10: in files); `seconds` are its micro-batches', empty ones too."""
        stream, files = _stream(name), self._place / uuid.uuid4().hex
        writer = self._result(stream, limit).writeStream.format("noop").outputMode(stream.mode)
        if isinstance(stream.out, Parquet):
            writer = writer.format("parquet").partitionBy(*stream.out.partition_by).option("path", str(files))
        said = self._to_the_end(writer)
        shutil.rmtree(files, ignore_errors=True)
        return said

    def run_into(self, name: str, limit: int, topic: str) -> dict[str, Any]:
        """The same into a topic."""
        stream = _stream(name)
        rows = self._result(stream, limit).select(F.to_json(F.struct("*")).alias("value"))
        writer = rows.writeStream.format(self._format).options(**self._to(topic)).outputMode(stream.mode)
        return self._to_the_end(writer)

    def tell(self, name: str, limit: int) -> dict[str, Any]:
        """What a query comes to, to be compared."""
        stream, place = _stream(name), str(self._place / uuid.uuid4().hex)

        def keep(rows: DataFrame, batch: int) -> None:
            rows.withColumn(BATCH, F.lit(batch)).write.mode("append").parquet(place)

        writer = self._result(stream, limit).writeStream.outputMode(stream.mode).foreachBatch(keep)
        said = self._to_the_end(writer)
        found = self._spark.read.parquet(place)
        if name in plain.KEYS:
            age = F.row_number().over(Window.partitionBy(*plain.KEYS[name]).orderBy(F.desc(BATCH)))
            found = found.withColumn("age", age).where("age = 1").drop("age")
        if name == "q12":
            found = found.groupBy("bidder").agg(F.sum("bids").alias("bids"), F.max(BATCH).alias(BATCH))
        said |= _digest(found.drop(BATCH))
        shutil.rmtree(place)
        return said

    def make_tables(self, place: str) -> dict[str, Any]:
        """The events, which lie there as lines of JSON, as Parquet files."""
        plain.write_tables(self._spark, load(QUERIES), Path(place))
        return {}

    def tell_plainly(self, name: str, place: str, side: str) -> dict[str, Any]:
        """What plain SQL over those files comes to."""
        return _digest(plain.answer(self._spark, name, Path(place), self._table(side)))

    # -- how ------------------------------------------------------------------------------------------

    def _result(self, stream: Stream, limit: int) -> DataFrame:
        inputs = parameters(stream.function).items()
        made: DataFrame = stream.function(**{name: self._input(topic, limit) for name, topic in inputs})
        return made

    def _input(self, topic: Topic, limit: int) -> DataFrame:
        if topic.table:
            return self._table(topic.name)
        reader = self._spark.readStream.format(self._format).option("maxOffsetsPerTrigger", limit)
        reader = reader.option("kafka.bootstrap.servers", self._bootstrap).option("subscribe", topic.name)
        raw = reader.option("startingOffsets", "earliest").load()
        columns = input_columns(topic, QUERIES.parent)
        return raw.select(F.from_json(F.col("value").cast("string"), columns).alias("it")).select("it.*")

    def _table(self, topic: str) -> DataFrame:
        """The side input: every key is there once."""
        return self._rows_of(topic).selectExpr(
            "bigint(string(key)) AS key", "get_json_object(string(value), '$.value') AS value"
        )

    def _to_the_end(self, writer: Any) -> dict[str, Any]:
        self._checkpoint = self._place / uuid.uuid4().hex
        prepared = writer.option("checkpointLocation", str(self._checkpoint)).trigger(availableNow=True)
        begin = time.perf_counter()
        query: StreamingQuery = prepared.start()
        query.awaitTermination(QUERY_TIMEOUT_S)
        seconds = time.perf_counter() - begin
        assert not query.isActive, f"the query did not end within {QUERY_TIMEOUT_S} s"
        batches = [dict(p["durationMs"]) for p in query.recentProgress if "addBatch" in p["durationMs"]]
        rows = sum(p["numInputRows"] for p in query.recentProgress)
        self._clean()
        total_ms = sum(batch["triggerExecution"] for batch in batches)
        return {"query_seconds": seconds, "seconds": total_ms / 1000, "rows": rows, "batches": batches}


def _stream(name: str) -> Stream:
    (found,) = (stream for stream in load(QUERIES).streams if stream.name == name)
    return found


def _digest(rows: DataFrame) -> dict[str, Any]:
    """How many, and a sum that any order of them has."""
    text = F.to_json(F.struct(*sorted(rows.columns)), {"ignoreNullFields": "false"})
    found = rows.select(F.xxhash64(text).cast("decimal(38,0)").alias("hash")).agg(F.count("*"), F.sum("hash"))
    ((count, total),) = found.collect()
    return {"rows_out": count, "hash": str(total)}


if __name__ == "__main__":
    serve(NexmarkJob)
