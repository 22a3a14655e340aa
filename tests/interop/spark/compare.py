"""Reads the same topics with Spark's own connector and with Ottla's: `compare.py BOOTSTRAP JARS DIR QUESTIONS`.

Runs in the Python that has PySpark 4.2, with Ottla on its path. QUESTIONS is a JSON list of
{"mode": "batch" or "stream", "options": {...}}; the last line printed is a JSON list of the two answers to each.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

FORMATS = ("kafka", "ottla")


def session(jars: str) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")  # a short life
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )


def batch(spark: SparkSession, source: str, options: dict[str, str], where: Path) -> Any:
    """Schema, rows, and how they are shared out (tasks with nothing to read do not count)."""
    frame = spark.read.format(source).options(**options).load()
    found = frame.selectExpr("to_json(struct(*))", "spark_partition_id()").collect()
    sizes = sorted(Counter(task for _, task in found).values())
    return {
        "schema": json.loads(frame.schema.json()),
        "tasks": sizes,
        "rows": sorted(row for row, _ in found),
    }


def stream(spark: SparkSession, source: str, options: dict[str, str], where: Path) -> Any:
    """What each micro-batch read, up to what is there now."""
    frame = spark.readStream.format(source).options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(where))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    done = [p for p in query.recentProgress if p["numInputRows"]]
    ends = [json.loads(p["sources"][0]["endOffset"]) for p in done]
    return {"rows": [p["numInputRows"] for p in done], "ends": ends}


MODES = {"batch": batch, "stream": stream}


def main() -> None:
    bootstrap, jars, where, questions = sys.argv[1:]
    spark = session(jars)
    spark.sparkContext.setLogLevel("OFF")
    answers = []
    try:
        for number, question in enumerate(json.loads(questions)):
            options = {"kafka.bootstrap.servers": bootstrap, **question["options"]}
            both = {}
            for source in question.get("formats", FORMATS):
                # One checkpoint for both, where the one is to go on from the other.
                place = Path(where) / question.get("checkpoint", f"{number}-{source}")
                try:
                    both[source] = MODES[question["mode"]](spark, source, options, place)
                except Exception as error:  # noqa: BLE001 - an error is an answer, too
                    both[source] = {"error": f"{type(error).__name__}: {error}"[:4000]}
            answers.append(both)
        print(json.dumps(answers))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
