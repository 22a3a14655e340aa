"""The jobs that test_spark.py runs, in a Python of their own that has PySpark: `jobs.py JOB BOOTSTRAP JARS DIR`.

Each prints one JSON document as its last line. Nothing here knows of Ottla: it is Spark's own connector, as a user of
Apache Kafka writes it. JOB_OPTIONS names a file with further options of every source and sink, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, upper


def session(jars: str) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )


def options() -> dict[str, str]:
    file = os.environ.get("JOB_OPTIONS")
    found: dict[str, str] = json.loads(Path(file).read_text()) if file else {}
    return found


def read(spark: SparkSession, bootstrap: str, topic: str, **more: str) -> DataFrame:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).options(**options())
    return reader.options(**more).option("subscribe", topic).load()


def write(spark: SparkSession, bootstrap: str, where: str) -> Any:
    """A thousand rows into a topic, with keys and headers."""
    rows = spark.range(1000).selectExpr(
        "cast(id % 7 as string) as key",
        "concat('row ', id) as value",
        "array(named_struct('key', 'origin', 'value', cast('spark' as binary))) as headers",
    )
    writer = rows.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).options(**options())
    writer.option("topic", "in").option("includeHeaders", "true").save()
    return rows.count()


def batch(spark: SparkSession, bootstrap: str, where: str) -> Any:
    """All rows of the topic, from its beginning to its end."""
    found = read(spark, bootstrap, "in", includeHeaders="true")
    return {
        "rows": found.count(),
        "values": found.select("value").distinct().count(),
        "partitions": sorted(row.partition for row in found.select("partition").distinct().collect()),
        "headers": found.select("headers").first()[0][0]["key"],
    }


def stream(spark: SparkSession, bootstrap: str, where: str) -> Any:
    """What is new in the topic since the last run, in capitals, into another topic: source, sink, checkpoint."""
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .options(**options())
        .option("subscribe", "in")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 400)
        .load()
    )
    query = (
        source.select(col("key"), upper(col("value").cast("string")).alias("value"))
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .options(**options())
        .option("topic", "out")
        .option("checkpointLocation", where)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = query.recentProgress
    return {"rows": sum(p["numInputRows"] for p in progress), "batches": len(progress)}


JOBS = {"write": write, "batch": batch, "stream": stream}


def main() -> None:
    job, bootstrap, jars, where = sys.argv[1:]
    spark = session(jars)
    try:
        print(json.dumps(JOBS[job](spark, bootstrap, where)))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
