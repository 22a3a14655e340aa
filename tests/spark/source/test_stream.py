"""Streaming reads on a real Spark: options, checkpoints, and topics that change while a query runs."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import AnalysisException
from tests.support.spark_streams import MakeStream, Stream, group_lag
from tests.support.spark_world import QUERY_TIMEOUT_S, Broker, wait_for

from ottla.spark.progress import description, next_offsets, offsets_behind

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def stream(spark: Any, broker: Broker, tmp_path: Path, queries: None) -> MakeStream:
    """A query on a topic, from its beginning unless said otherwise."""

    def make(topic: str | None = None, **options: Any) -> Stream:
        which = {} if topic is None else {"subscribe": topic}
        given = {"startingOffsets": "earliest", **which, **options}
        present = {name: value for name, value in given.items() if value is not None}
        return Stream(spark, broker, tmp_path / "checkpoint", **present)

    return make


def numbered(count: int, start: int = 0) -> list[str]:
    return [str(i) for i in range(start, start + count)]


def test_what_is_there_now_then_what_came_since(broker: Broker, stream: MakeStream) -> None:
    topic = broker.topic(2)
    broker.produce(topic, numbered(100))
    query = stream(topic)
    assert sorted(query.run()) == sorted(numbered(100))
    assert query.query.lastProgress["sources"][0]["latestOffset"] is not None
    broker.produce(topic, numbered(50, 100))
    assert sorted(query.run()) == sorted(numbered(150)), "nothing twice, nothing left out"


def test_admission(broker: Broker, stream: MakeStream) -> None:
    topic = broker.topic(3)
    for partition, size in enumerate((30, 10, 20)):
        broker.produce(topic, numbered(size), partition=partition)
    query = stream(topic, maxOffsetsPerTrigger="20", maxRecordsPerPartition="5", minPartitions="4")
    assert len(query.run()) == 60
    assert query.batches() == [19, 18, 18, 5]  # as Spark's own connector shares them out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": None}, 0),
        ({"startingOffsets": "latest"}, 0),
        ({"startingOffsets": '{"TOPIC":{"0":3,"1":-1}}'}, 7),
        ({"startingTimestamp": "1"}, 20),
        ({"startingOffsetsByTimestamp": '{"TOPIC":{"0":1,"1":99999999999999}}',
          "startingOffsetsByTimestampStrategy": "latest"}, 10),
        ({"minOffsetsPerTrigger": "1000", "maxTriggerDelay": "1h"}, 20),
    ],
)  # fmt: skip
def test_where_it_begins(broker: Broker, stream: MakeStream, options: dict[str, Any], expected: int) -> None:
    topic = broker.topic(2)
    for partition in range(2):
        broker.produce(topic, numbered(10), partition=partition)
    given = {name: v.replace("TOPIC", topic) if v else v for name, v in options.items()}
    assert len(stream(topic, **given).run()) == expected


def test_a_trigger_waits_for_enough(broker: Broker, stream: MakeStream) -> None:
    topic = broker.topic(1)
    broker.produce(topic, numbered(5))
    query = stream(topic, minOffsetsPerTrigger="10", maxTriggerDelay="1h").start(
        processingTime="100 milliseconds"
    )
    query.wait_for_values(numbered(5))  # the first one does not wait
    # Spark says what a micro-batch was after its rows are there.
    wait_for(lambda: query.batches() == [5], query.query, "the first micro-batch in the query's progress")
    broker.produce(topic, numbered(9, 5))
    seen = query.query.lastProgress["timestamp"]
    wait_for(lambda: query.query.lastProgress["timestamp"] != seen, query.query, "an idle trigger")
    assert len(query.values()) == 5
    broker.produce(topic, ["14"])
    query.wait_for_values(numbered(15))
    wait_for(lambda: len(query.batches()) == 2, query.query, "the second one")
    assert query.batches() == [5, 10]


def test_partitions_and_topics_that_come_while_it_runs(broker: Broker, stream: MakeStream) -> None:
    topic = broker.topic(1)
    broker.produce(topic, numbered(5))
    query = stream(subscribePattern=f"{topic}.*", startingOffsets="latest", maxOffsetsPerTrigger="3")
    query.start(processingTime="100 milliseconds")
    wait_for(lambda: query.query.lastProgress is not None, query.query, "the first trigger")
    broker.add_partitions(topic, 3)
    for partition in range(3):
        broker.produce(topic, numbered(4, 100 * partition), partition=partition)
    other = broker.topic(1, name=f"{topic}-later")
    broker.produce(other, numbered(4, 1000))
    query.wait_for_values(numbered(4) + numbered(4, 100) + numbered(4, 200) + numbered(4, 1000))


def test_a_checkpoint_of_sparks_connector_goes_on(broker: Broker, stream: MakeStream, tmp_path: Path) -> None:
    topic = broker.topic(2)
    for partition in range(2):
        broker.produce(topic, numbered(10, 10 * partition), partition=partition)
    query = stream(topic)
    query.run()
    # What Spark's own connector leaves: the same offsets, without spaces.
    (log,) = (tmp_path / "checkpoint" / "offsets").glob("0")
    lines = log.read_text().splitlines()
    lines[-1] = json.dumps({topic: {"0": 10, "1": 10}}, separators=(",", ":"))
    log.write_text("\n".join(lines))
    (tmp_path / "checkpoint" / "offsets" / ".0.crc").unlink(missing_ok=True)
    broker.produce(topic, numbered(5, 20), partition=0)
    assert sorted(query.run()) == sorted(numbered(25))


def test_its_progress_says_how_far_it_is_behind_and_its_checkpoint_where_another_begins(
    spark: Any, broker: Broker, stream: MakeStream, tmp_path: Path
) -> None:
    topic = broker.topic(2)
    for partition in range(2):
        broker.produce(topic, numbered(10), partition=partition)
    query = stream(topic, maxOffsetsPerTrigger="8")
    assert len(query.run()) == 20
    sources = [report["sources"][0] for report in query.query.recentProgress if report["numInputRows"]]
    assert {description(source) for source in sources} == {f"ottla[{topic}]"}
    assert [offsets_behind(source)["maxOffsetsBehindLatest"] for source in sources] == ["6", "2", "0"]
    assert offsets_behind(sources[0])["avgOffsetsBehindLatest"] == "6.0"
    (starting,) = next_offsets(tmp_path / "checkpoint")
    broker.produce(topic, numbered(3, 100), partition=1)
    another = Stream(spark, broker, tmp_path / "another", subscribe=topic, startingOffsets=starting)
    assert sorted(another.run()) == numbered(3, 100)


def test_read_committed(broker: Broker, stream: MakeStream) -> None:
    from confluent_kafka import Producer

    topic = broker.topic(1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    query = stream(topic).start(processingTime="100 milliseconds")
    for value, end in (("a", "commit"), ("b", "abort"), ("c", "commit")):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush()
        getattr(producer, f"{end}_transaction")()
    query.wait_for_values(["a", "c"])


def test_what_a_stream_cannot_mean(broker: Broker, stream: MakeStream) -> None:
    topic = broker.topic(1)
    with pytest.raises(AnalysisException, match="unknown option 'maxoffsetpertrigger'"):
        stream(topic, maxOffsetPerTrigger="1").start()
    assert "a stream has no end" in stream(topic, endingOffsets="latest").start().error()
    assert "there is no topic no-such-topic" in stream("no-such-topic").start().error()


# -- the progress as a group ------------------------------------------------------------------------------


def test_the_group_shows_the_lag(broker: Broker, stream: MakeStream) -> None:
    topic = broker.topic(2)
    group = f"{topic}.lag"
    for partition in range(2):
        broker.produce(topic, numbered(20), partition=partition)
    query = stream(topic, ottla__group=group, maxOffsetsPerTrigger="20")
    gate = threading.Event()
    query.hold = lambda batch_id: None if batch_id == 0 else _wait(gate)
    query.start()
    # The second half is being processed: it is lag, in records and in seconds.
    wait_for(lambda: _lag(broker, group) == [10, 10], query.query, "a lag of 20")
    assert all(row["lag_seconds"] > 0 for row in group_lag(broker, group))
    gate.set()
    wait_for(lambda: _lag(broker, group) == [0, 0], query.query, "no lag")
    assert all(row["lag_seconds"] == 0 for row in group_lag(broker, group))
    # Any Kafka client reads it.
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    told = consumer.committed([TopicPartition(topic, p) for p in range(2)], 30)
    assert [at.offset for at in told] == [20, 20]
    consumer.close()


def _wait(gate: threading.Event) -> None:
    assert gate.wait(QUERY_TIMEOUT_S)


def _lag(broker: Broker, group: str) -> list[int]:
    return [row["lag"] for row in group_lag(broker, group)]


def test_the_group_of_a_run_that_has_ended_has_no_lag(broker: Broker, stream: MakeStream) -> None:
    topic = broker.topic(1)
    broker.produce(topic, numbered(20))
    stream(topic, kafka__group__id=f"{topic}.done", maxOffsetsPerTrigger="7").run()
    assert _lag(broker, f"{topic}.done") == [0]
    broker.produce(topic, numbered(3))
    assert _lag(broker, f"{topic}.done") == [3]


def test_a_group_that_cannot_be_told_does_not_stop_a_query(broker: Broker, stream: MakeStream) -> None:
    topic = broker.topic(1)
    broker.produce(topic, numbered(5))
    member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{topic}.busy"})
    member.subscribe([topic])
    wait_for(lambda: member.poll(0.1) is not None or bool(member.assignment()), what="a member")
    # A real group of that name has members: it refuses what comes from outside.
    assert sorted(stream(topic, ottla__group=f"{topic}.busy").run()) == numbered(5)
    member.close()
