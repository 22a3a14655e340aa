"""Batch reads on a real Spark: every option, and what is said when one is wrong."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import AnalysisException
from pyspark.sql.functions import col, spark_partition_id
from tests.support.spark_world import Broker

pytestmark = pytest.mark.xdist_group("spark")

# Three partitions, with times that tell records apart: record i of every partition is at T0 + i seconds.
SIZES = {0: 30, 1: 10, 2: 20}
T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    name = broker.topic(len(SIZES), retention_ms=-1)  # its records are old
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for partition, size in SIZES.items():
        for i in range(size):
            producer.produce(
                name,
                f"{partition}-{i}",
                None if i == 3 else f"k{i}",
                partition=partition,
                timestamp=T0 + i * 1000,
                headers=[("n", str(i).encode()), ("none", None)] if i % 2 else None,
            )
    assert producer.flush(30) == 0
    return name


@pytest.fixture(scope="module")
def read(spark: Any, broker: Broker, topic: str) -> Any:
    """The topic with options; None takes one away."""

    def load(**more: Any) -> Any:
        options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
        options |= {name.replace("__", "."): value for name, value in more.items()}
        given = {name: value for name, value in options.items() if value is not None}
        return spark.read.format("ottla").options(**given).load()

    return load


def sizes(frame: Any) -> dict[int, int]:
    return {row["partition"]: row["count"] for row in frame.groupBy("partition").count().collect()}


def offsets(topic: str, *values: int) -> str:
    return json.dumps({topic: {str(p): value for p, value in enumerate(values)}})


def test_columns_and_rows(read: Any, topic: str) -> None:
    frame = read(includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    rows = {(row.partition, row.offset): row for row in frame.collect()}
    assert set(rows) == {(p, i) for p, size in SIZES.items() for i in range(size)}
    row = rows[1, 3]
    assert (row.key, row.value, row.topic, row.timestampType) == (None, b"1-3", topic, 0)
    assert row.timestamp.replace(tzinfo=UTC) == datetime.fromtimestamp(T0 / 1000 + 3, UTC)
    assert [tuple(header) for header in row.headers] == [("n", b"3"), ("none", None)]
    assert rows[0, 2].headers is None
    assert rows[0, 2].key == b"k2"
    assert "headers" not in read().columns


def test_columns_that_are_left_out(read: Any) -> None:
    every = read(includeHeaders="true")
    some = read(includeHeaders="true", ottla__columns="headers, timestampType,VALUE")
    assert some.columns == ["value", "timestampType", "headers"]
    assert sorted(some.collect()) == sorted(every.select(*some.columns).collect())
    assert read(ottla__columns="offset").where("offset < 5").count() == 5 * len(SIZES)
    with pytest.raises(AnalysisException, match="names 'vlaue', no column of a topic"):
        read(ottla__columns="vlaue")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, SIZES),
        ({"startingOffsets": (5, -2, 20)}, {0: 25, 1: 10}),
        ({"endingOffsets": (5, -1, 0)}, {0: 5, 1: 10}),
        ({"startingTimestamp": str(T0 + 9000)}, {0: 21, 1: 1, 2: 11}),
        ({"endingTimestamp": str(T0 + 9000)}, {0: 9, 1: 9, 2: 9}),
        ({"startingOffsetsByTimestamp": (T0 + 9000, T0 + 1, T0)}, {0: 21, 1: 9, 2: 20}),
        ({"endingOffsetsByTimestamp": (T0 + 1000, T0, T0 + 99_000)}, {0: 1, 2: 20}),
        (
            {"startingTimestamp": str(T0 + 15_000), "startingOffsetsByTimestampStrategy": "latest"},
            {0: 15, 2: 5},
        ),
        ({"startingTimestamp": str(T0), "startingOffsets": "latest"}, SIZES),  # the time goes first
        ({"maxOffsetsPerTrigger": "3"}, SIZES),  # of streams only
        ({"kafka__max__partition__fetch__bytes": "200"}, SIZES),
        ({"kafka__isolation__level": "read_uncommitted", "kafka__check__crcs": "false"}, SIZES),
    ],
)
def test_where_it_begins_and_ends(
    read: Any, topic: str, options: dict[str, Any], expected: dict[int, int]
) -> None:
    given = {name: offsets(topic, *v) if isinstance(v, tuple) else v for name, v in options.items()}
    assert sizes(read(**given)) == expected


def test_which_topics(read: Any, broker: Broker, topic: str) -> None:
    other = broker.topic(1, name=f"{topic}-other")
    broker.produce(other, ["x"])
    assert read(subscribe=f"{topic}, {other}").count() == 61
    assert read(subscribe=None, subscribePattern=f"{topic}.*").count() == 61
    assert read(subscribe=None, subscribePattern=f"^{topic}$").count() == 60
    assert read(subscribe=None, subscribePattern=topic[3:]).count() == 61
    assert read(subscribe=None, subscribePattern="no-such-topic.*").count() == 0
    assert sizes(read(subscribe=None, assign=json.dumps({topic: [0, 2]}))) == {0: 30, 2: 20}


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({}, [30, 10, 20]),
        ({"minPartitions": "5"}, [15, 15, 10, 10, 10]),
        ({"maxRecordsPerPartition": "10"}, [10, 10, 10, 10, 10, 10]),
        ({"minPartitions": "2"}, [30, 10, 20]),
    ],
)
def test_tasks(read: Any, options: dict[str, str], tasks: list[int]) -> None:
    frame = read(**options)
    assert frame.rdd.getNumPartitions() == len(tasks)
    counted = frame.groupBy(spark_partition_id().alias("task")).count().collect()
    assert sorted(row["count"] for row in counted) == sorted(tasks)


def test_filters_are_pushed_down_where_both_switches_are_on(spark: Any, read: Any) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(ottla__pushdown="true")
        place = frame.where((col("partition") == 0) & (col("offset") >= 5) & (col("offset") < 8))
        assert place.rdd.getNumPartitions() == 1
        assert sorted(row.offset for row in place.collect()) == [5, 6, 7]
        assert frame.where(col("topic") == "another").count() == 0
        late = frame.where(f"timestamp >= timestamp_millis({T0 + 15_000})")
        assert late.rdd.getNumPartitions() == 2  # partition 1 has nothing as late as that
        assert sizes(late) == {0: 15, 2: 5}
        between = late.where(f"timestamp < timestamp_millis({T0 + 17_000}) and key = cast('k16' as binary)")
        assert sizes(between) == {0: 1, 2: 1}
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert read().where(col("partition") == 0).count() == 30
    with pytest.raises(AnalysisException, match=r"filterPushdown\.enabled"):
        read(ottla__pushdown="true").count()


def test_transactions(spark: Any, broker: Broker, read: Any) -> None:
    name = broker.topic(2)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction, None):
        producer.begin_transaction()
        for i in range(10):
            producer.produce(name, str(i), partition=i % 2)
        producer.flush()
        if end is not None:
            end()
    assert read(subscribe=name).count() == 20
    assert read(subscribe=name, kafka__isolation__level="read_uncommitted").count() == 40
    producer.abort_transaction()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches(broker: Broker, read: Any, codec: str) -> None:
    name = broker.topic(1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec})
    for i in range(5000):
        producer.produce(name, f"value {i}" * 5, f"key {i}")
    assert producer.flush(30) == 0
    frame = read(subscribe=name)
    assert frame.selectExpr("sum(hash(key, value))").first() == (
        frame.sparkSession.range(5000)
        .selectExpr(
            "cast(concat('key ', id) as binary) k", "cast(repeat(concat('value ', id), 5) as binary) v"
        )
        .selectExpr("sum(hash(k, v))")
        .first()
    )
    part = read(subscribe=name, startingOffsets=offsets(name, 1234), endingOffsets=offsets(name, 1250))
    assert sorted(row.offset for row in part.collect()) == list(range(1234, 1250))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": None}, "exactly one of the options subscribe, subscribePattern, assign"),
        (
            {"startingOffset": "earliest"},
            "unknown option 'startingoffset'; the nearest one is startingOffsets",
        ),
        ({"kafka__bootstrap__servers": None}, r"kafka\.bootstrap\.servers is missing"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false"),
        ({"kafka__auto__offset__reset": "latest"}, r"kafka\.auto\.offset\.reset is not supported"),
    ],
)
def test_wrong_options_are_named_when_the_read_is_declared(
    read: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(AnalysisException, match=said):
        read(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest in a batch read"),
        ({"startingOffsets": (1,)}, "startingOffsets must name every partition that is read.*-0;.*-2"),
        ({"startingTimestamp": str(T0 + 99_000)}, "no record at or after the starting timestamp"),
        ({"startingOffsets": (31, 0, 0)}, "startingOffsets lies behind the end.*failOnDataLoss=false"),
        ({"subscribe": "no-such-topic"}, "there is no topic no-such-topic to read"),
        ({"subscribe": None, "assign": '{"no-such-topic":[7]}'}, "assign names no-such-topic-7"),
    ],
)
def test_what_cannot_be_read_is_named_when_it_is_planned(
    read: Any, topic: str, options: dict[str, Any], said: str
) -> None:
    given = {name: offsets(topic, *v) if isinstance(v, tuple) else v for name, v in options.items()}
    with pytest.raises(AnalysisException, match=f"(?s){said}"):
        read(**given).count()


def test_a_schema_of_ones_own_is_refused(spark: Any, broker: Broker, topic: str) -> None:
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
    with pytest.raises(AnalysisException, match="columns are fixed"):
        reader.option("subscribe", topic).schema("a int").load().count()


def test_data_that_is_gone(broker: Broker, read: Any) -> None:
    from confluent_kafka import TopicPartition

    name = broker.topic(1)
    broker.produce(name, [str(i) for i in range(50)])
    admin = broker.admin()
    (done,) = admin.delete_records([TopicPartition(name, 0, 20)]).values()
    done.result(30)
    assert read(subscribe=name).count() == 30
    with pytest.raises(AnalysisException, match="startingOffsets lies before the earliest offset"):
        read(subscribe=name, startingOffsets=offsets(name, 0)).count()
    assert read(subscribe=name, startingOffsets=offsets(name, 0), failOnDataLoss="false").count() == 30
    assert read(subscribe=name, endingOffsets=offsets(name, 90), failOnDataLoss="false").count() == 30
