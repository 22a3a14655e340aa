"""A range of a partition as Arrow batches, from a real broker, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.client.admin.types import NewTopic
from ottla.client.blocking import Admin, Producer
from ottla.client.consumer.inline import OffsetOutOfRange
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.spark.source import batch as reading
from ottla.spark.source.batch import read_range
from ottla.spark.source.cluster import Cluster, DataLossError
from ottla.spark.source.options import SourceOptions, source_options
from ottla.spark.source.plan import OffsetRange
from ottla.testing.broker import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as node:
        yield node


def options(broker: Broker, **more: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "any"}
    return source_options(given | {name.replace("__", "."): value for name, value in more.items()})


def fill(broker: Broker, topic: str, records: int, **settings: Any) -> TopicPartition:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        created = admin.create_topics([NewTopic(topic, 1)])
        assert not isinstance(created[topic], KafkaError), created
    with Producer(bootstrap_servers=broker.bootstrap_servers, **settings) as producer:
        for i in range(records):
            producer.send(topic, f"v{i}".encode(), key=f"k{i}".encode() if i % 3 else None)
        producer.flush()
    return TopicPartition(topic, 0)


def offsets(batches: list[Any]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd"])
def test_exactly_the_range(broker: Broker, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tp = fill(broker, f"range-{codec}", 1000, compression_type=codec, batch_size=2000)
    monkeypatch.setattr(reading, "MAX_ROWS", 100)
    batches = list(read_range(options(broker), OffsetRange(tp, 17, 901)))
    assert offsets(batches) == list(range(17, 901))
    assert len(batches) > 3, "handed over piece by piece"
    assert all(batch.schema.equals(batches[0].schema) for batch in batches)
    assert batches[0].column("value")[0].as_py() == b"v17"
    assert batches[0].column("key").to_pylist()[:2] == [b"k17", None]
    assert list(read_range(options(broker), OffsetRange(tp, 5, 5))) == []


def test_small_answers_and_no_checks(broker: Broker) -> None:
    tp = fill(broker, "small", 300, batch_size=100)
    given = options(broker, kafka__fetch__max__bytes="200", kafka__check__crcs="false", includeHeaders="true")
    batches = list(read_range(given, OffsetRange(tp, 0, 300)))
    assert offsets(batches) == list(range(300))
    assert batches[0].column("headers").null_count == batches[0].num_rows


def test_aborted_transactions_are_left_out(broker: Broker) -> None:
    tp = fill(broker, "aborted", 0)
    with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="t") as producer:
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            for i in range(5):
                producer.send(tp.topic, str(i).encode())
            producer.flush()
            end()
    with Producer(bootstrap_servers=broker.bootstrap_servers) as plain:
        plain.send(tp.topic, b"plain")
        plain.flush()
    # Each transaction is followed by its marker: 0-4 and 5, 6-10 and 11, 12-16 and 17.
    whole = OffsetRange(tp, 0, 19)
    assert offsets(list(read_range(options(broker), whole))) == [*range(5), *range(12, 17), 18]
    everything = options(broker, kafka__isolation__level="read_uncommitted")
    assert offsets(list(read_range(everything, whole))) == [*range(5), *range(6, 11), *range(12, 17), 18]


def test_what_is_gone(broker: Broker) -> None:
    tp = fill(broker, "gone", 50)
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_records({tp: 20})
        with pytest.raises(DataLossError, match="cannot be read from 3 up to 40: the log has 20 to 50"):
            list(read_range(options(broker), OffsetRange(tp, 3, 40)))
        lossy = options(broker, failOnDataLoss="false")
        assert offsets(list(read_range(lossy, OffsetRange(tp, 3, 40)))) == list(range(20, 40))
        assert list(read_range(lossy, OffsetRange(tp, 3, 15))) == []
        assert list(read_range(lossy, OffsetRange(tp, 60, 70))) == []


@pytest.mark.parametrize("fail", ["true", "false"])
def test_what_is_there_is_not_gone_because_a_former_leader_does_not_have_it(
    broker: Broker, fail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tp = fill(broker, f"former-{fail}", 50)
    given, whole = options(broker, failOnDataLoss=fail), OffsetRange(tp, 30, 40)

    def former(*_: Any, **__: Any) -> Iterator[Any]:
        # The log of today's leader, which was asked for it after that.
        raise OffsetOutOfRange(tp, 30, 0, 50)
        yield

    with monkeypatch.context() as patched:
        patched.setattr(reading, "RawFetcher", former)
        with pytest.raises(OffsetOutOfRange):
            list(read_range(given, whole))
    assert offsets(list(read_range(given, whole))) == list(range(30, 40)), "when Spark tries the task again"


def test_the_client_of_an_earlier_task_knows_another_topic_of_that_name(broker: Broker) -> None:
    tp = fill(broker, "again", 5)
    assert len(offsets(list(read_range(options(broker), OffsetRange(tp, 0, 5))))) == 5
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        assert admin.delete_topics(["again"]) == {"again": None}
    fill(broker, "again", 3)
    assert offsets(list(read_range(options(broker), OffsetRange(tp, 0, 3)))) == [0, 1, 2]


def test_partitions_of_a_subscription(broker: Broker) -> None:
    fill(broker, "one-a", 3)
    fill(broker, "one-b", 0)
    for more, expected in (
        ({"subscribe": "one-b,one-a"}, ["one-a", "one-b"]),
        ({"subscribePattern": "one-.*", "subscribe": ""}, ["one-a", "one-b"]),
        ({"subscribePattern": "ne-[ab]", "subscribe": ""}, ["one-a", "one-b"]),
        ({"subscribePattern": "^ne-", "subscribe": ""}, []),
        ({"assign": '{"one-a":[0]}', "subscribe": ""}, ["one-a"]),
    ):
        given = {"kafka.bootstrap.servers": broker.bootstrap_servers, **more}
        cluster = Cluster(source_options({name: value for name, value in given.items() if value}))
        found, there = cluster.latest_now()
        assert sorted(tp.topic for tp in there) == expected
        assert found.keys() == there.keys()
        assert found.get(TopicPartition("one-a", 0), 3) == 3
        cluster.close()
