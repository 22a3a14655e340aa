"""One connector in a process of its own: takes orders as JSON lines on stdin, answers each with one on stdout.

    python -m bench.spark_job FORMAT MASTER BOOTSTRAP JARS DIR

FORMAT is `ottla` or `kafka` (Spark's own JVM connector, whose jars JARS names): all else is the same, word for word,
session settings included, but for an option by which ours is told which columns are wanted. Started by
bench.spark_runner with whichever Python has the PySpark that is wanted, so nothing here imports the tests or what needs
them. It times what Spark does; everything else is measured from outside.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ottla.spark.session import session

ANSWER = "@@"
QUERY_TIMEOUT_S = 300
# A hundred bytes a value, and a key that spreads the rows; Spark makes tens of millions of them a second.
ROWS = ("cast(id as string) as key", "rpad(cast(id as string), 100, 'abcdefghijklmnopqrstuvwxyz') as value")


class Job:
    """What can be ordered: the methods without an underscore, by name."""

    def __init__(self, spark: SparkSession, fmt: str, bootstrap: str, place: Path) -> None:
        self._spark = spark
        self._format = fmt
        self._bootstrap = bootstrap
        self._place = place
        self._query: StreamingQuery | None = None
        self._checkpoint: Path | None = None

    # -- reading --------------------------------------------------------------------------------------

    def check(self, topic: str) -> dict[str, int]:
        """Every row and byte of a topic, looked at: what a faster read must not lose."""
        found = self._rows_of(topic).selectExpr("count(1)", "sum(length(value))", "sum(crc32(value))").first()
        assert found is not None
        return {"rows": found[0], "value_bytes": found[1], "crc_sum": found[2]}

    def read(self, topic: str) -> dict[str, float]:
        """All columns of all rows into Spark's sink that drops them."""
        frame = self._rows_of(topic)
        return _timed(lambda: frame.write.format("noop").mode("overwrite").save())

    def read_some(self, topic: str, columns: list[str]) -> dict[str, float]:
        """The same with some columns, which ours is told, and Spark's connector is not: it has no option for that."""
        reader = self._reader_of(topic)
        if self._format == "ottla":
            reader = reader.option("ottla.columns", ",".join(columns))
        frame = reader.load().select(*columns)
        return _timed(lambda: frame.write.format("noop").mode("overwrite").save())

    def read_stream(self, topic: str) -> dict[str, float]:
        """All columns as a stream that catches up and ends; `seconds` are its micro-batches', as Spark says them."""
        return self._run(self._stream_of(topic), "noop", {})

    # -- writing --------------------------------------------------------------------------------------

    def write(self, topic: str, rows: int, options: dict[str, str]) -> dict[str, float]:
        """Rows that Spark makes, into a topic."""
        writer = self._spark.range(rows).selectExpr(*ROWS).write.format(self._format)
        writer = writer.option("kafka.bootstrap.servers", self._bootstrap).option("topic", topic)
        return _timed(lambda: writer.options(**options).mode("append").save())

    def make_files(self, rows: int, files: int, place: str) -> dict[str, float]:
        """The same rows as files, for the streams that write."""
        frame = self._spark.range(rows).repartition(files).selectExpr(*ROWS)
        return _timed(lambda: frame.write.option("compression", "none").parquet(place))

    def write_stream(
        self, topic: str, place: str, files_a_batch: int, options: dict[str, str]
    ) -> dict[str, float]:
        """A stream of files into a topic, some files a micro-batch."""
        reader = self._spark.readStream.schema("key string, value string")
        source = reader.option("maxFilesPerTrigger", files_a_batch).parquet(place)
        return self._run(source, self._format, {**options, **self._to(topic)})

    # -- a stream that goes on ------------------------------------------------------------------------

    def start(self, topic: str, out: str | None, options: dict[str, str]) -> dict[str, float]:
        """From now on: what comes into a topic, into another one (None: dropped)."""
        source = self._stream_of(topic, "latest")
        sink = "noop" if out is None else self._format
        frame = source if out is None else source.selectExpr("key", "upper(cast(value as string)) as value")
        self._query = self._begin(frame, sink, {**options, **({} if out is None else self._to(out))})
        while not self._query.recentProgress:  # its first look at the topic is done
            _check(self._query)
            time.sleep(0.02)  # Spark has no call that waits for a query's progress
        return {}

    def seen(self) -> dict[str, int]:
        """How many rows its finished micro-batches had."""
        assert self._query is not None
        _check(self._query)
        return {"rows": sum(p["numInputRows"] for p in self._query.recentProgress)}

    def stop(self) -> dict[str, Any]:
        """End it; how long each micro-batch with rows took, in milliseconds, and the parts of that."""
        query, self._query = self._query, None
        assert query is not None
        _check(query)
        query.stop()
        batches = [dict(p["durationMs"]) for p in query.recentProgress if p["numInputRows"]]
        self._clean()
        return {"batches": batches}

    # -- how ------------------------------------------------------------------------------------------

    def _rows_of(self, topic: str) -> DataFrame:
        return self._reader_of(topic).load()

    def _reader_of(self, topic: str) -> DataFrameReader:
        reader = self._spark.read.format(self._format).option("kafka.bootstrap.servers", self._bootstrap)
        return reader.option("subscribe", topic)

    def _stream_of(self, topic: str, start: str = "earliest") -> DataFrame:
        reader = self._spark.readStream.format(self._format)
        reader = reader.option("kafka.bootstrap.servers", self._bootstrap).option("subscribe", topic)
        return reader.option("startingOffsets", start).load()

    def _to(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._bootstrap, "topic": topic}

    def _begin(
        self, frame: DataFrame, sink: str, options: dict[str, str], to_the_end: bool = False
    ) -> StreamingQuery:
        self._checkpoint = self._place / uuid.uuid4().hex
        writer = frame.writeStream.format(sink).options(**options)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        trigger = (
            writer.trigger(availableNow=True) if to_the_end else writer.trigger(processingTime="0 seconds")
        )
        return trigger.start()

    def _run(self, frame: DataFrame, sink: str, options: dict[str, str]) -> dict[str, float]:
        begin = time.perf_counter()
        query = self._begin(frame, sink, options, to_the_end=True)
        query.awaitTermination(QUERY_TIMEOUT_S)
        seconds = time.perf_counter() - begin
        assert not query.isActive, f"the query did not end within {QUERY_TIMEOUT_S} s"
        done = [p for p in query.recentProgress if p["numInputRows"]]
        self._clean()
        return {
            "query_seconds": seconds,
            "seconds": sum(p["durationMs"]["triggerExecution"] for p in done) / 1000,
            "rows": sum(p["numInputRows"] for p in done),
        }

    def _clean(self) -> None:
        if self._checkpoint is not None:
            shutil.rmtree(self._checkpoint, ignore_errors=True)


def _timed(work: Callable[[], object]) -> dict[str, float]:
    begin = time.perf_counter()
    work()
    return {"seconds": time.perf_counter() - begin}


def _check(query: StreamingQuery) -> None:
    error = query.exception()
    assert query.isActive, f"the query has ended: {error}"


def serve(kind: type[Job] = Job) -> None:
    """Take orders until stdin ends."""
    fmt, master, bootstrap, jars, where = sys.argv[1:]
    place = Path(where)
    conf = {"spark.ui.enabled": "false", "spark.driver.memory": "1g"}
    # All micro-batches of a run are looked at, not the last hundred.
    conf["spark.sql.streaming.numRecentProgressUpdates"] = "1000"
    # Where it is started is where it is cleaned up.
    conf |= {"spark.local.dir": where, "spark.sql.warehouse.dir": str(place / "warehouse")}
    if jars:
        conf["spark.jars"] = jars
    begin = time.perf_counter()
    spark = session("bench", master, conf=conf, log_file=place / "spark.log")
    job = kind(spark, fmt, bootstrap, place)
    _answer({"seconds": time.perf_counter() - begin, "pyspark": spark.version})
    for line in sys.stdin:
        order = json.loads(line)
        _answer(getattr(job, order.pop("do"))(**order))
    spark.stop()


def _answer(what: dict[str, Any]) -> None:
    print(ANSWER + json.dumps(what), flush=True)


if __name__ == "__main__":
    serve()
