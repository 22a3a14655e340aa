"""One read through Spark's own Kafka connector and through Ottla's: schema, tasks, rows and micro-batches are equal.

Both on PySpark 4.2.0, in the virtual environment that has what Ottla depends on besides.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from tests.interop.apache import HERE
from tests.interop.process import REPO
from tests.interop.spark.install import connector_jars, spark_python
from tests.support.spark_world import Broker

pytestmark = pytest.mark.interop

JOB_TIMEOUT_S = 1700
SIZES = (30, 10, 20)
# Of old records; their topic keeps them.
T0 = 1_700_000_000_000


def compare(broker: Broker, place: Path, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The two answers to each question."""
    python = spark_python(for_ottla=True)
    job = [str(python), str(HERE / "spark" / "compare.py"), broker.bootstrap, connector_jars(), str(place)]
    done = subprocess.run(
        [*job, json.dumps(questions)],
        env={
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(python),
            "PYTHONPATH": str(REPO / "src"),
        },
        capture_output=True,
        text=True,
        timeout=JOB_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Topics: plain (keys, nulls, headers, times), skewed, trimmed at its start, and with transactions."""
    with Broker(tmp_path / "data") as node:
        node.topic(3, "plain", retention_ms=-1)
        node.topic(4, "skewed", message_timestamp_type="LogAppendTime")
        node.topic(1, "trimmed")
        node.topic(2, "transactions")
        fill(node)
        yield node


def fill(node: Broker) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap, "compression.type": "lz4"})
    for partition, size in enumerate(SIZES):
        for i in range(size):
            headers = [("n", str(i).encode()), ("none", None), ("", b"")] if i % 2 else None
            key, value = (None if i == 3 else f"k{i}"), (None if i == 4 else f"{partition}-{i} \u00e9")
            at = T0 + i * 1000 + 123
            producer.produce("plain", value, key, partition=partition, timestamp=at, headers=headers)
    assert producer.flush(30) == 0
    for partition, size in enumerate((100, 3, 20, 1)):
        node.produce(
            "skewed",
            [f"{i}" for i in range(size)],
            partition=partition,
            headers=[("same", b"1"), ("same", b"2")],
        )
    node.produce("trimmed", [str(i) for i in range(50)])
    admin = node.admin()
    (done,) = admin.delete_records([TopicPartition("trimmed", 0, 20)]).values()
    done.result(30)
    writer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "t"})
    writer.init_transactions()
    for end in (writer.commit_transaction, writer.abort_transaction, writer.commit_transaction):
        writer.begin_transaction()
        for i in range(10):
            writer.produce("transactions", str(i), partition=i % 2)
        writer.flush()
        end()


def offsets(topic: str, *values: int) -> str:
    return json.dumps({topic: {str(p): value for p, value in enumerate(values)}})


COMMITTED = {"kafka.isolation.level": "read_committed"}
UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}
EARLIEST = {"startingOffsets": "earliest"}

EQUAL_BATCHES: list[dict[str, str]] = [
    {"subscribe": "plain"},
    {"subscribe": "plain", "includeHeaders": "true"},
    {"subscribe": "skewed,plain", "includeHeaders": "true"},
    {"subscribePattern": "pl.*|skewed"},
    {"subscribePattern": "no-such.*"},
    # Java's regular expressions, found anywhere in a name.
    {"subscribePattern": "la.n"},
    {"subscribePattern": "^lain"},
    {"subscribePattern": "(?i)PLAIN|^skew"},
    {"subscribePattern": r"^\p{Lower}{5}$"},
    {"subscribePattern": r"\Qplai\E[\p{Alpha}]\z"},
    {"subscribePattern": r"(?<twice>m)\k<twice>"},
    {"assign": '{"plain":[0,2]}'},
    {
        "subscribe": "plain",
        "startingOffsets": offsets("plain", 5, -2, 20),
        "endingOffsets": offsets("plain", -1, 7, 20),
    },
    {"subscribe": "plain", "startingOffsets": "EARLIEST", "endingOffsets": "LATEST"},
    {"subscribe": "plain", "startingTimestamp": str(T0 + 9000)},
    {"subscribe": "plain", "endingTimestamp": str(T0 + 9000), "startingOffsets": offsets("plain", 2, 2, 2)},
    {"subscribe": "plain", "startingOffsetsByTimestamp": offsets("plain", T0, T0 + 5000, T0 + 10000)},
    {"subscribe": "plain", "endingOffsetsByTimestamp": offsets("plain", T0, T0 + 5000, T0 + 990000)},
    {
        "subscribe": "plain",
        "startingTimestamp": str(T0 + 15000),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    {"subscribe": "plain", "minPartitions": "7"},
    {"subscribe": "skewed", "minPartitions": "13", "maxRecordsPerPartition": "30"},
    {"subscribe": "trimmed"},
    {"subscribe": "trimmed", "startingOffsets": offsets("trimmed", 3), "failOnDataLoss": "false"},
    {"subscribe": "transactions", **COMMITTED},
    {"subscribe": "transactions", **UNCOMMITTED},
    {"subscribe": "plain", "groupIdPrefix": "mine", "kafka.max.poll.records": "7", "kafka.group.id": "g"},
]
EQUAL_STREAMS: list[dict[str, str]] = [
    {"subscribe": "plain", **EARLIEST},
    {"subscribe": "plain", "startingOffsets": offsets("plain", 3, -1, -2)},
    {"subscribe": "skewed", **EARLIEST, "maxOffsetsPerTrigger": "20"},
    {"subscribe": "plain", **EARLIEST, "maxOffsetsPerTrigger": "20", "minOffsetsPerTrigger": "5"},
    {"subscribe": "transactions", **EARLIEST, **COMMITTED},
    {"subscribe": "trimmed", "startingOffsets": offsets("trimmed", 3), "failOnDataLoss": "false"},
    {"subscribe": "plain", "startingTimestamp": str(T0 + 9000)},
]
BOTH_REFUSE: list[tuple[str, dict[str, str]]] = [
    ("batch", {}),
    ("batch", {"subscribe": "plain", "subscribePattern": "p.*"}),
    ("batch", {"subscribe": "plain", "startingOffsets": "latest"}),
    ("batch", {"subscribe": "plain", "endingOffsets": "earliest"}),
    ("batch", {"subscribe": "plain", "startingOffsets": offsets("plain", -1, 0, 0)}),
    ("batch", {"subscribe": "plain", "startingOffsets": offsets("plain", 0)}),
    ("batch", {"subscribe": "plain", "startingOffsets": "{"}),
    ("batch", {"subscribe": "plain", "startingTimestamp": str(T0 + 990000)}),
    ("batch", {"subscribe": "plain", "startingOffsetsByTimestamp": offsets("plain", T0)}),
    ("batch", {"subscribe": "plain", "minPartitions": "0"}),
    ("batch", {"subscribe": "plain", "failOnDataLoss": "maybe"}),
    ("batch", {"subscribe": "plain", "kafka.auto.offset.reset": "earliest"}),
    ("batch", {"subscribe": "plain", "kafka.key.deserializer": "x"}),
    ("batch", {"subscribe": "plain", "kafka.enable.auto.commit": "true"}),
    ("batch", {"subscribe": "trimmed", "startingOffsets": offsets("trimmed", 3)}),
    ("stream", {"subscribe": "plain", "endingOffsets": "latest"}),
    ("stream", {"subscribe": "plain", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}),
    ("stream", {"subscribe": "trimmed", "startingOffsets": offsets("trimmed", 3)}),
]


@pytest.mark.timeout(1800)
def test_both_connectors_answer_the_same(broker: Broker, tmp_path: Path) -> None:
    handover = {"mode": "stream", "options": {"subscribe": "plain", **EARLIEST}, "checkpoint": "handed-over"}
    questions: list[dict[str, Any]] = [
        *({"mode": "batch", "options": options} for options in EQUAL_BATCHES),
        *({"mode": "stream", "options": options} for options in EQUAL_STREAMS),
        *({"mode": mode, "options": options} for mode, options in BOTH_REFUSE),
        {**handover, "formats": ["kafka"]},
        {**handover, "formats": ["ottla"]},
    ]
    answers = compare(broker, tmp_path / "checkpoints", questions)
    asked = list(zip(questions, answers, strict=True))
    equal = len(EQUAL_BATCHES) + len(EQUAL_STREAMS)
    differ = [(q, a) for q, a in asked[:equal] if "error" in a["kafka"] or a["ottla"] != a["kafka"]]
    assert differ == []
    accepted = [(q, a) for q, a in asked[equal:-2] if "error" not in a["kafka"] or "error" not in a["ottla"]]
    assert accepted == []
    # A checkpoint of Spark's connector goes on with Ottla's: there is nothing left to read.
    assert sum(answers[-2]["kafka"]["rows"]) == sum(SIZES)
    assert answers[-1]["ottla"]["rows"] == []
