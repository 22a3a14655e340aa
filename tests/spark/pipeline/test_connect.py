"""A pipeline on a Spark Connect server: no Java on this side. A second Spark: one of the long tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.ottla_node import OTTLA
from tests.support.connect_server import ConnectServer
from tests.support.pipelines import consume, write_pipeline
from tests.support.spark_world import Broker

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(900),
]


@pytest.fixture
def connect_server(tmp_path: Path) -> Iterator[str]:
    """On this machine, with Ottla installed."""
    from ottla.spark.worker_python import worker_python

    environment = {**os.environ, "PYSPARK_PYTHON": worker_python(sys.executable, os.environ)}
    settings = {"spark.driver.memory": "768m", "spark.sql.shuffle.partitions": "1"}
    with ConnectServer(tmp_path, "local[2]", environment, settings) as server:
        yield server.url


def test_topics_in_each_mode_dead_letters_and_a_lake(
    broker: Broker, tmp_path: Path, connect_server: str
) -> None:
    from ottla.spark.pipeline.declare import delta
    from ottla.spark.pipeline.lake.delta import read_table

    source, target, bad, counts = (broker.topic() for _ in range(4))
    lake = tmp_path / "lake"
    skipping = f"topic({source!r}, schema='page string NOT NULL, n int', on_error='skip')"
    file = write_pipeline(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}, key="page"), dead_letter={bad!r})
        def copy(rows=topic({source!r}, schema="page string NOT NULL, n int")):
            return rows

        @pipeline.stream(out=topic({counts!r}, key="page"), mode="update")
        def count(rows={skipping}):
            return rows.groupBy("page").count()

        @pipeline.stream(out=delta({str(lake)!r}))
        def store(rows={skipping}):
            return rows
        """,
    )
    command = [str(OTTLA), "pipeline", "run", str(file), "--remote", connect_server, "-b", broker.bootstrap]
    command += ["--available-now", "--state-dir", str(tmp_path / "state")]
    for n in range(2):
        broker.produce(source, [json.dumps({"page": "a", "n": n}), "oops"])
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
    assert [json.loads(record.value())["n"] for record in consume(broker, target)] == [0, 1]
    assert len(consume(broker, bad)) == 2
    assert [json.loads(record.value())["count"] for record in consume(broker, counts)] == [1, 2]
    assert sorted(row["n"] for row in read_table(delta(str(lake))).to_pylist()) == [0, 1]
