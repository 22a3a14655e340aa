"""A driver that is killed -9 with all it has started, at each point of a commit; the next one goes on from there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.sink_world import final_values
from tests.support.spark_jobs import SparkJob
from tests.support.spark_world import Broker

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

# The first leaves most behind. Every point is tried without Spark, too: test_sink_protocol.py.
POINTS = [
    "after EndDecision",
    "in a task",
    "after End",
    "before TakeOver",
    "after TakeOver",
    "before EndDecision",
    "after FenceOpen",
]


def test_each_row_once_wherever_the_driver_dies(broker: Broker, tmp_path: Path) -> None:
    topic = broker.topic(3)
    job = SparkJob(tmp_path, broker.bootstrap, topic)
    for point in POINTS:
        job.feed(300)
        assert job.run(kill_at=point) == "killed", job.log_text()
    job.feed(300)
    assert job.run() == "done", job.log_text()
    assert final_values(broker.bootstrap, topic) == job.expected()
