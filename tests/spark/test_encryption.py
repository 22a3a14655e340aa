"""Encrypted values on a real Spark: written and read by tasks, with no key in a plan."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from tests.support.spark_world import Broker

from ottla.client.blocking import Consumer, Producer
from ottla.model.ids import TopicPartition
from ottla.security.encryption import HEADER

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def keyring(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    key = base64.b64encode(os.urandom(32)).decode()
    path.write_text(json.dumps({"keys": [{"id": "spark", "key": key}]}))
    path.chmod(0o600)
    return path


def options(broker: Broker, keyring: Path | None, **more: str) -> dict[str, str]:
    given = {"kafka.bootstrap.servers": broker.bootstrap, **more}
    return given if keyring is None else {**given, "kafka.encryption.key": str(keyring)}


def test_written_by_spark_and_read_by_all(spark: Any, broker: Broker, keyring: Path) -> None:
    topic = broker.topic(2)
    rows = [(str(n), None if n == 7 else f"secret {n}") for n in range(100)]
    frame = spark.createDataFrame(rows, "key string, value string")
    frame.write.format("ottla").options(**options(broker, keyring, topic=topic)).mode("append").save()
    read = spark.read.format("ottla").options(**options(broker, keyring, subscribe=topic))
    frame = read.option("includeHeaders", "true").load()
    found = {(row.key.decode(), row.value and row.value.decode()) for row in frame.collect()}
    assert found == set(rows)
    assert {row.headers for row in frame.select("headers").collect()} == {None}
    key = json.loads(keyring.read_text())["keys"][0]["key"]
    plan = frame._jdf.queryExecution().toString()
    assert key not in plan
    with Consumer(bootstrap_servers=broker.bootstrap, encryption_key=str(keyring)) as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        for partition in (0, 1):
            consumer.seek(TopicPartition(topic, partition), 0)
        ours: set[tuple[str, str | None]] = set()
        while len(ours) < len(rows):
            for records in consumer.poll(500).values():
                ours |= {(each.key.decode(), each.value and each.value.decode()) for each in records}
    assert ours == set(rows)


def test_streams(spark: Any, broker: Broker, keyring: Path, tmp_path: Path, queries: None) -> None:
    source, target = broker.topic(1), broker.topic(1)
    with Producer(bootstrap_servers=broker.bootstrap, encryption_key=str(keyring)) as producer:
        for n in range(50):
            producer.send(source, f"secret {n}", str(n))
    stream = spark.readStream.format("ottla").options(
        **options(broker, keyring, subscribe=source, startingOffsets="earliest")
    )
    query = (
        stream.load()
        .select("key", "value")
        .writeStream.format("ottla")
        .options(**options(broker, keyring, topic=target))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    raw = spark.read.format("ottla").options(**options(broker, None, subscribe=target))
    stored = raw.option("kafka.encryption.key", "none").option("includeHeaders", "true").load().collect()
    assert len(stored) == 50
    assert all(b"secret" not in row.value and row.headers[0].key == HEADER for row in stored)
    plain = spark.read.format("ottla").options(**options(broker, keyring, subscribe=target)).load()
    assert sorted(row.value for row in plain.collect()) == sorted(f"secret {n}".encode() for n in range(50))
    key = json.loads(keyring.read_text())["keys"][0]["key"]
    for path in (tmp_path / "checkpoint").rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes()


def test_what_is_said_when_it_cannot_be_read(
    spark: Any, broker: Broker, keyring: Path, tmp_path: Path
) -> None:
    topic = broker.topic(1)
    broker.produce(topic, ["plain"])
    with Producer(bootstrap_servers=broker.bootstrap, encryption_key=str(keyring)) as producer:
        producer.send(topic, b"secret")
    offsets = json.dumps({topic: {"0": 1}})

    def read(given: dict[str, str]) -> Any:
        return spark.read.format("ottla").options(**given).load().collect()

    with pytest.raises(PySparkException, match=r"offset 1: its value is encrypted \(key 'spark'\)"):
        read(options(broker, None, subscribe=topic, startingOffsets=offsets))
    with pytest.raises(PySparkException, match="offset 0: its value is not encrypted"):
        read(options(broker, keyring, subscribe=topic))
    mixed = options(broker, keyring, subscribe=topic)
    rows = read({**mixed, "kafka.encryption.allow.plaintext": "true"})
    assert [row.value for row in rows] == [b"plain", b"secret"]
    missing = tmp_path / "missing.json"
    with pytest.raises(PySparkException, match=r"missing\.json cannot be read"):
        read(options(broker, missing, subscribe=topic))
