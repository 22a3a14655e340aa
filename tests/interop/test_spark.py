"""PySpark Structured Streaming with Spark's own JVM Kafka connector, unmodified, on Ottla: source and sink.

On a plain listener and on one with SASL_SSL. PySpark comes from PyPI, the connector's jars from Maven
(spark/install.py).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from tests.interop.apache import HERE
from tests.interop.ottla_node import OttlaNode
from tests.interop.spark.install import connector_jars, spark_python
from tests.support.secure_world import PASSWORD, SecureBroker

pytestmark = pytest.mark.interop

PARTITIONS = 3
JOB_TIMEOUT_S = 240


class Spark:
    """Runs a job to its end, as `python jobs.py ...`."""

    def __init__(
        self, python: Path, jars: str, node: OttlaNode, checkpoint: Path, more: dict[str, str] | None = None
    ) -> None:
        """`more`: options of every source and sink, that of the brokers among them."""
        self._python = python
        self._jars = jars
        self._node = node
        self._checkpoint = checkpoint
        self._more = more or {}

    def run(self, job: str) -> Any:
        command = [str(self._python), str(HERE / "spark" / "jobs.py"), job, self._node.address]
        options = self._checkpoint.with_name("options.json")
        options.write_text(json.dumps(self._more))
        environment = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(self._python)}
        done = subprocess.run(
            [*command, self._jars, str(self._checkpoint)],
            env={**os.environ, **environment, "JOB_OPTIONS": str(options)},
            capture_output=True,
            text=True,
            timeout=JOB_TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr[-8000:]
        return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OttlaNode]:
    with OttlaNode(tmp_path / "data") as broker:
        for topic in ("in", "out"):
            broker.tool("TopicCommand", "--create", "--topic", topic, "--partitions", str(PARTITIONS))
        yield broker


@pytest.fixture
def spark(node: OttlaNode, tmp_path: Path) -> Spark:
    return Spark(spark_python(), connector_jars(), node, tmp_path / "checkpoint")


def values(node: OttlaNode, topic: str) -> list[str]:
    """Everything in a topic, up to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.address,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    found: list[str] = []
    ended: set[int] = set()
    try:
        while len(ended) < PARTITIONS:
            message = consumer.poll(30)
            assert message is not None, "the end of a partition is always told"
            error = message.error()
            if error is None:
                found.append(message.value().decode())
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
    finally:
        consumer.close()
    return found


@pytest.mark.timeout(900)
def test_spark_reads_writes_and_streams_with_its_own_connector(node: OttlaNode, spark: Spark) -> None:
    assert spark.run("write") == 1000
    assert sorted(values(node, "in")) == sorted(f"row {i}" for i in range(1000))
    found = spark.run("batch")
    assert found == {"rows": 1000, "values": 1000, "partitions": [0, 1, 2], "headers": "origin"}

    first = spark.run("stream")
    assert first["rows"] == 1000
    assert first["batches"] >= 3, "maxOffsetsPerTrigger holds"
    # A restart goes on where its checkpoint ends, though the broker was killed meanwhile.
    node.kill()
    node.start()
    producer = Producer({"bootstrap.servers": node.address})
    for i in range(1000, 1250):
        producer.produce("in", f"row {i}")
    assert producer.flush(30) == 0
    assert spark.run("stream")["rows"] == 250
    assert sorted(values(node, "out")) == sorted(f"ROW {i}" for i in range(1250))


@pytest.mark.timeout(900)
def test_sparks_own_connector_by_sasl_and_tls(tmp_path: Path) -> None:
    # Sessions end, but not within the seconds that Java may take to prove itself on a busy machine.
    node = SecureBroker(tmp_path, session_ms=20_000)
    node.format()
    with node:
        for topic in ("in", "out"):
            node.topic(PARTITIONS, topic)
        spark = Spark(spark_python(), connector_jars(), node, tmp_path / "checkpoint", node.options)
        assert spark.run("write") == 1000
        assert spark.run("batch")["rows"] == 1000
        assert spark.run("stream")["rows"] == 1000
        assert sorted(values(node, "out")) == sorted(f"ROW {i}" for i in range(1000))
        assert PASSWORD not in node.log_text()
