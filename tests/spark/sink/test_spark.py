"""`format("ottla")` as a sink, on a real Spark: columns, options, modes, errors, and a broker that goes away."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from tests.support.sink_world import final_values, read_committed, values
from tests.support.spark_world import Broker, wait_for

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]


def numbers(spark: Any, count: int, slices: int = 2) -> Any:
    return spark.range(0, count, 1, slices).selectExpr("cast(id as string) key", "cast(id as string) value")


def write(rows: Any, broker: Broker, **options: str) -> None:
    writer = rows.write.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap).mode("append")
    writer.options(**{name.replace("__", "."): value for name, value in options.items()}).save()


def texts(count: int) -> list[str]:
    return sorted(str(number) for number in range(count))


# -- batches --------------------------------------------------------------------------------------------------


def test_a_batch_with_every_column(spark: Any, broker: Broker) -> None:
    one, two = broker.topic(3), broker.topic(1)
    rows = spark.createDataFrame(
        [
            ("k", b"v", [("h", b"1"), ("h", None)], one, None),
            (None, None, None, one, 2),
            ("k", b"", [], two, 0),
        ],
        "key string, value binary, headers array<struct<key:string,value:binary>>, topic string, partition int",
    )
    write(rows, broker)
    found = {tuple(seen) for seen in map(_hashable, read_committed(broker.bootstrap, one))}
    assert (one, 2, None, None, None) in found
    assert {(seen[2], seen[3], seen[4]) for seen in found} >= {(b"k", b"v", (("h", b"1"), ("h", None)))}
    assert len(found) == 2
    assert [seen.value for seen in read_committed(broker.bootstrap, two)] == [b""]


@pytest.mark.long  # a gigabyte there and back
def test_rows_of_nearly_a_megabyte_in_the_batches_that_the_session_sets(
    spark: Any, own_broker: Broker
) -> None:
    rows, size = 1000, 900_000
    topic = own_broker.topic(2)
    large = spark.range(0, rows, 1, 2).selectExpr("cast(id as string) key", f"repeat('x', {size}) value")
    write(large, own_broker, topic=topic)
    source = spark.read.format("ottla").option("kafka.bootstrap.servers", own_broker.bootstrap)
    found = source.option("subscribe", topic).load()
    assert found.selectExpr("count(distinct key)", "count(1)", "sum(length(value))").first() == (
        rows,
        rows,
        rows * size,
    )


def _hashable(seen: Any) -> Any:
    return seen._replace(headers=None if seen.headers is None else tuple(seen.headers))


def test_keys_go_where_other_clients_send_them(spark: Any, broker: Broker) -> None:
    ours, theirs = broker.topic(5), broker.topic(5)
    write(numbers(spark, 50), broker, topic=ours)
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2"})
    for number in range(50):
        producer.produce(theirs, value=str(number), key=str(number))
    assert producer.flush(30) == 0
    places = [
        {seen.key: seen.partition for seen in read_committed(broker.bootstrap, topic)}
        for topic in (ours, theirs)
    ]
    assert places[0] == places[1]


def test_a_write_with_an_id_happens_once(spark: Any, broker: Broker) -> None:
    topic, name = broker.topic(2), uuid.uuid4().hex
    for version in ("0", "0", "1", "1", "0"):
        write(numbers(spark, 20), broker, topic=topic, ottla__write__id=name, ottla__write__version=version)
    assert values(broker.bootstrap, topic) == sorted(texts(20) * 2)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_writes_without_an_id_add_up(spark: Any, broker: Broker, delivery: str) -> None:
    topic = broker.topic(2)
    for _ in range(2):
        write(
            numbers(spark, 20), broker, topic=topic, ottla__delivery=delivery, kafka__compression__type="lz4"
        )
    assert values(broker.bootstrap, topic) == sorted(texts(20) * 2)


def test_a_job_that_fails_leaves_nothing(spark: Any, broker: Broker) -> None:
    topic = broker.topic(2)
    rows = numbers(spark, 1_000, 3).selectExpr("key", "if(key = '999', raise_error('no'), value) as value")
    with pytest.raises(Exception, match="no"):
        write(rows, broker, topic=topic)
    assert final_values(broker.bootstrap, topic) == []


# -- what is refused, and when --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("key", {"topic": "T"}, "'value' is missing"),
        ("id value", {"topic": "T"}, "'value' is bigint: it must be string or binary"),
        ("key value", {}, "option 'topic', or with a column 'topic'"),
        ("key value", {"topic": "T", "kafka__acks": "1"}, "must be all"),
        ("key value", {"topic": "T", "ottla__delivry": "x"}, "nearest one is ottla.delivery"),
        ("key value", {"topic": "not-there"}, "there is no topic 'not-there'"),
    ],
)
def test_errors_are_named_before_a_task_runs(
    spark: Any, broker: Broker, columns: str, options: dict[str, str], words: str
) -> None:
    topic = broker.topic(1)
    rows = spark.range(5).selectExpr("id", "cast(id as string) key").selectExpr(columns)
    before = _jobs(spark)
    with pytest.raises(Exception, match=words):
        write(rows, broker, **{name: topic if value == "T" else value for name, value in options.items()})
    assert _jobs(spark) == before


def _jobs(spark: Any) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


def test_a_topic_is_not_overwritten(spark: Any, broker: Broker) -> None:
    topic = broker.topic(1)
    writer = numbers(spark, 5).write.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
    with pytest.raises(Exception, match=r'use mode."append"'):
        writer.option("topic", topic).mode("overwrite").save()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["value", "cast(null as string) topic"], "rows have no topic"),
        (["value", "'not-there-either' topic"], "there is no topic 'not-there-either'"),
        (["value", "'T' topic", "7 partition"], "partition 7 of topic"),
        (["value", "'T' topic", "-2 partition"], "partition -2 of topic"),
    ],
)
def test_rows_that_cannot_be_written_say_why(
    spark: Any, broker: Broker, columns: list[str], words: str
) -> None:
    topic = broker.topic(1)
    rows = numbers(spark, 4).selectExpr(*(column.replace("'T'", f"'{topic}'") for column in columns))
    with pytest.raises(Exception, match=words):
        write(rows, broker)


# -- streams --------------------------------------------------------------------------------------------------


def files(spark: Any, place: Path) -> Any:
    place.mkdir(exist_ok=True)
    return spark.readStream.schema("number long").option("maxFilesPerTrigger", 1).json(str(place))


def feed(place: Path, first: int, count: int) -> None:
    lines = "".join(f'{{"number": {number}}}\n' for number in range(first, first + count))
    (place / f".{first}").write_text(lines)
    (place / f".{first}").rename(place / f"{first}.json")


def start(rows: Any, broker: Broker, place: Path, topic: str, mode: str = "append", **options: str) -> Any:
    writer = (
        rows.writeStream.format("ottla").outputMode(mode).option("kafka.bootstrap.servers", broker.bootstrap)
    )
    writer = writer.option("topic", topic).option("checkpointLocation", str(place / "checkpoint"))
    return writer.options(**{name.replace("__", "."): value for name, value in options.items()})


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_stream_over_several_runs(
    spark: Any,
    broker: Broker,
    tmp_path: Path,
    delivery: str,
    queries: None,
) -> None:
    topic, place = broker.topic(3), tmp_path / "in"
    rows = files(spark, place).selectExpr("cast(number as string) key", "cast(number as string) value")
    for first in range(0, 60, 20):
        feed(place, first, 20)
        query = (
            start(rows, broker, tmp_path, topic, ottla__delivery=delivery).trigger(availableNow=True).start()
        )
        query.awaitTermination()
    assert final_values(broker.bootstrap, topic) == texts(60)


def test_an_older_copy_of_the_checkpoint_is_refused(
    spark: Any, broker: Broker, tmp_path: Path, queries: None
) -> None:
    """Its next batch has a number that is written already, and rows that nobody has written."""
    topic, place, checkpoint = broker.topic(2), tmp_path / "in", tmp_path / "checkpoint"
    rows = files(spark, place).selectExpr("cast(number as string) key", "cast(number as string) value")

    def run() -> None:
        start(rows, broker, tmp_path, topic).trigger(availableNow=True).start().awaitTermination()

    for first in range(0, 60, 20):
        feed(place, first, 20)
        run()
        shutil.copytree(checkpoint, tmp_path / f"after-{first}")
    feed(place, 60, 20)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "after-0", checkpoint)
    with pytest.raises(StreamingQueryException, match=r"batch 2 of query .* at batch 1: it is an older copy"):
        run()
    assert final_values(broker.bootstrap, topic) == texts(60)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "after-40", checkpoint)
    run()
    assert final_values(broker.bootstrap, topic) == texts(80)


def test_complete_mode_appends_each_result(spark: Any, broker: Broker, tmp_path: Path, queries: None) -> None:
    topic, place = broker.topic(1), tmp_path / "in"
    counts = files(spark, place).groupBy().count().selectExpr("cast(count as string) value")
    for first in range(0, 20, 10):
        feed(place, first, 10)
        start(counts, broker, tmp_path, topic, "complete").trigger(
            availableNow=True
        ).start().awaitTermination()
    assert values(broker.bootstrap, topic) == ["10", "20"]


def test_update_mode_by_foreach_batch_with_ids_and_versions(
    spark: Any, broker: Broker, tmp_path: Path, queries: None
) -> None:
    """Spark gives no Python sink the update mode; a batch write with an id and a version is exactly once, too."""
    topic, place, name = broker.topic(1), tmp_path / "in", uuid.uuid4().hex
    counts = files(spark, place).groupBy().count().selectExpr("cast(count as string) value")

    def twice(batch: Any, batch_id: int) -> None:
        for _ in range(2):  # as after a replay
            write(batch, broker, topic=topic, ottla__write__id=name, ottla__write__version=str(batch_id))

    for first in range(0, 20, 10):
        feed(place, first, 10)
        writer = counts.writeStream.foreachBatch(twice).outputMode("update")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
    assert values(broker.bootstrap, topic) == ["10", "20"]


def test_a_stream_survives_the_death_of_its_broker(
    spark: Any, own_broker: Broker, tmp_path: Path, queries: None
) -> None:
    topic, place = own_broker.topic(2), tmp_path / "in"
    rows = files(spark, place).selectExpr("cast(number as string) key", "cast(number as string) value")
    query = start(rows, own_broker, tmp_path, topic).trigger(processingTime="0 seconds").start()
    feed(place, 0, 20)
    wait_for(lambda: len(values(own_broker.bootstrap, topic)) == 20, query, "the first batch")
    own_broker.kill()
    feed(place, 20, 20)
    own_broker.start()
    feed(place, 40, 20)
    wait_for(lambda: len(values(own_broker.bootstrap, topic)) >= 60, query, "all batches")
    query.stop()
    assert values(own_broker.bootstrap, topic) == texts(60)
