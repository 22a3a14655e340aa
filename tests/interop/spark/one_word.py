"""The samples of Spark's Kafka integration guide, and what jobs make of them: `one_word.py FORMAT BOOTSTRAP JARS DIR`.

FORMAT is the one word that differs: kafka or ottla. Reads the topics in.1, in.2 and in.none, writes topics that begin
with FORMAT. The last line printed is a JSON object: sample -> its answer, or the error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

WORD, BOOTSTRAP, JARS, PLACE = sys.argv[1:]
if WORD == "ottla":
    import ottla.spark  # noqa: F401

SAMPLES: dict[str, Callable[[SparkSession], Any]] = {}


def sample(function: Callable[[SparkSession], Any]) -> Callable[[SparkSession], Any]:
    SAMPLES[function.__name__] = function
    return function


def out(name: str) -> str:
    return f"{WORD}.{name}"


def rows(frame: DataFrame) -> list[Any]:
    columns = [name for name in frame.columns if name not in ("timestamp", "timestampType")]
    return sorted(row[0] for row in frame.selectExpr(f"to_json(struct({', '.join(columns)}))").collect())


def reader(spark: SparkSession) -> Any:
    return spark.read.format(WORD).option("kafka.bootstrap.servers", BOOTSTRAP)


def stream(spark: SparkSession) -> Any:
    return spark.readStream.format(WORD).option("kafka.bootstrap.servers", BOOTSTRAP)


def run(writer: Any, name: str) -> None:
    started = writer.option("checkpointLocation", str(Path(PLACE) / name)).trigger(availableNow=True).start()
    started.awaitTermination()


# -- batch queries --------------------------------------------------------------------------------------------


@sample
def one_topic(spark: SparkSession) -> Any:
    df = reader(spark).option("subscribe", "in.1").load()
    return rows(df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)"))


@sample
def several_topics_with_offsets(spark: SparkSession) -> Any:
    df = (
        reader(spark)
        .option("subscribe", "in.1,in.2")
        .option("startingOffsets", """{"in.1":{"0":1,"1":-2},"in.2":{"0":-2}}""")
        .option("endingOffsets", """{"in.1":{"0":3,"1":-1},"in.2":{"0":-1}}""")
        .load()
    )
    return rows(df)


@sample
def a_pattern(spark: SparkSession) -> Any:
    df = reader(spark).option("subscribePattern", "in\\.[12]").option("startingOffsets", "earliest")
    return rows(df.option("endingOffsets", "latest").load())


@sample
def a_pattern_in_the_middle_of_names(spark: SparkSession) -> Any:
    return rows(reader(spark).option("subscribePattern", "n\\.[a-n]").load())


@sample
def headers(spark: SparkSession) -> Any:
    df = reader(spark).option("subscribe", "in.2").option("includeHeaders", "true").load()
    return rows(df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "headers"))


# -- streaming queries ------------------------------------------------------------------------------------------


@sample
def stream_one_topic(spark: SparkSession) -> Any:
    df = stream(spark).option("subscribe", "in.1").option("startingOffsets", "earliest").load()
    found: list[Any] = []
    run(df.writeStream.foreachBatch(lambda batch, _: found.extend(rows(batch))), "stream_one_topic")
    return sorted(found)


@sample
def stream_a_pattern(spark: SparkSession) -> Any:
    df = stream(spark).option("subscribePattern", "n.1|n.2").option("startingOffsets", "earliest").load()
    found: list[Any] = []
    run(df.writeStream.foreachBatch(lambda batch, _: found.extend(rows(batch))), "stream_a_pattern")
    return sorted(found)


# -- writing ------------------------------------------------------------------------------------------------------


def given(spark: SparkSession) -> DataFrame:
    return reader(spark).option("subscribe", "in.1,in.2").load()


@sample
def write_to_a_topic(spark: SparkSession) -> Any:
    df = given(spark).selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)")
    df.write.format(WORD).option("kafka.bootstrap.servers", BOOTSTRAP).option("topic", out("a")).save()


@sample
def write_by_a_column(spark: SparkSession) -> Any:
    df = given(spark).selectExpr(f"'{WORD}.b' AS topic", "CAST(key AS STRING)", "CAST(value AS STRING)")
    df.write.format(WORD).option("kafka.bootstrap.servers", BOOTSTRAP).save()


@sample
def write_again_in_append_mode(spark: SparkSession) -> Any:
    df = given(spark).select("key", "value")
    df.write.format(WORD).mode("append").option("kafka.bootstrap.servers", BOOTSTRAP).option(
        "topic", out("a")
    ).save()


@sample
def write_headers_with_the_options_of_the_read(spark: SparkSession) -> Any:
    options = {
        "kafka.bootstrap.servers": BOOTSTRAP,
        "subscribe": "in.2",
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "topic": out("c"),
        "kafka.group.id": f"{WORD}-group",
        "failOnDataLoss": "false",
    }
    df = spark.read.format(WORD).options(**options).load()
    df.select("key", "value", "headers").write.format(WORD).options(**options).save()


def overwritten(spark: SparkSession, mode: str) -> None:
    df = given(spark).select("key", "value")
    df.write.format(WORD).mode(mode).options(
        **{"kafka.bootstrap.servers": BOOTSTRAP, "topic": out("a")}
    ).save()


@sample
def refused_overwrite(spark: SparkSession) -> Any:
    overwritten(spark, "overwrite")


@sample
def refused_ignore(spark: SparkSession) -> Any:
    overwritten(spark, "ignore")


def words(spark: SparkSession) -> DataFrame:
    df = stream(spark).option("subscribe", "in.1,in.2").option("startingOffsets", "earliest").load()
    counts = df.groupBy("value").count()
    return counts.selectExpr("value AS key", "CAST(count AS STRING) AS value")


@sample
def stream_append(spark: SparkSession) -> Any:
    df = stream(spark).option("subscribe", "in.1").option("startingOffsets", "earliest").load()
    writer = df.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)").writeStream.format(WORD)
    run(writer.options(**{"kafka.bootstrap.servers": BOOTSTRAP, "topic": out("d")}), "stream_append")


@sample
def stream_by_a_column(spark: SparkSession) -> Any:
    df = stream(spark).option("subscribe", "in.1").option("startingOffsets", "earliest").load()
    writer = df.selectExpr(f"'{WORD}.e' AS topic", "key", "value").writeStream.format(WORD)
    run(writer.option("kafka.bootstrap.servers", BOOTSTRAP), "stream_by_a_column")


@sample
def stream_update(spark: SparkSession) -> Any:
    writer = words(spark).writeStream.format(WORD).outputMode("update")
    run(writer.options(**{"kafka.bootstrap.servers": BOOTSTRAP, "topic": out("f")}), "stream_update")


@sample
def stream_complete(spark: SparkSession) -> Any:
    writer = words(spark).writeStream.format(WORD).outputMode("complete")
    run(writer.options(**{"kafka.bootstrap.servers": BOOTSTRAP, "topic": out("g")}), "stream_complete")


@sample
def stream_for_each_batch(spark: SparkSession) -> Any:
    def write(batch: DataFrame, _: int) -> None:
        writer = batch.write.format(WORD).option("kafka.bootstrap.servers", BOOTSTRAP)
        writer.option("topic", out("h")).save()

    run(words(spark).writeStream.outputMode("update").foreachBatch(write), "stream_for_each_batch")


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", JARS)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")  # a short life
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    answers = {}
    for name, function in SAMPLES.items():
        try:
            answers[name] = function(spark)
        except Exception as error:  # noqa: BLE001 - an error is an answer, too
            answers[name] = {"error": f"{type(error).__name__}: {error}"[:2000]}
    spark.stop()
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
