"""The Spark sink on Apache Kafka: its protocol with every crash point, and a stream from Spark itself.

The tests of the protocol are those of tests/spark/sink/test_protocol.py, with both versions of transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.apache import ApacheKafka
from tests.spark.sink import test_protocol as protocol
from tests.spark.sink.test_kills import POINTS
from tests.spark.sink.test_protocol import *  # noqa: F403  (its tests are collected here, with our broker)
from tests.support.sink_world import final_values
from tests.support.spark_jobs import SparkJob
from tests.support.spark_world import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1_200)]

sink = protocol.sink


class ApacheBroker(ApacheKafka):
    """The reference, with what the tests do to a broker."""

    bootstrap = Broker.bootstrap
    admin = Broker.admin
    topic = Broker.topic
    transaction_version = 2


@pytest.fixture(scope="module", params=[2, 1], ids=["transaction.version 2", "transaction.version 1"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheBroker]:
    with ApacheBroker(tmp_path_factory.mktemp("apache") / "data") as kafka:
        if request.param == 1:
            kafka.tool("FeatureCommand", "downgrade", "--feature", "transaction.version=1")
            kafka.transaction_version = 1
        yield kafka


def test_a_stream_from_spark_killed_at_each_point_of_its_commit(broker: ApacheBroker, tmp_path: Path) -> None:
    """The driver and all it has started are killed -9; the next run completes or repeats what was left."""
    topic = broker.topic(3)
    job = SparkJob(tmp_path, broker.bootstrap, topic)
    for point in POINTS if broker.transaction_version == 2 else POINTS[:1]:
        job.feed(300)
        assert job.run(kill_at=point) == "killed", job.log_text()
    job.feed(300)
    assert job.run() == "done", job.log_text()
    assert final_values(broker.bootstrap, topic) == job.expected()
