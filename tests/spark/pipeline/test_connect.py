"""A pipeline on a Spark Connect server: no Java on this side; the client dies, and the server. Long tests: each has a
Spark of its own."""

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
from tests.support.shipped import shipped
from tests.support.six import prepare
from tests.support.spark_world import Broker
from tests.support.stricken import Stricken, die_and_check

from ottla.spark.pipeline.state import Home

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(900),
]


@pytest.fixture
def connect_server(tmp_path: Path) -> Iterator[ConnectServer]:
    """On this machine, with Ottla installed."""
    from ottla.spark.worker_python import worker_python

    environment = {**os.environ, "PYSPARK_PYTHON": worker_python(sys.executable, os.environ)}
    settings = {"spark.driver.memory": "768m", "spark.sql.shuffle.partitions": "1"}
    with ConnectServer(tmp_path, "local[2]", environment, settings) as server:
        yield server


def test_topics_in_each_mode_dead_letters_and_a_lake(
    broker: Broker, tmp_path: Path, connect_server: ConnectServer
) -> None:
    from ottla.spark.pipeline.declare import delta
    from ottla.spark.pipeline.lake.delta import read_table

    source, target, bad, counts = (broker.topic() for _ in range(4))
    lake = tmp_path / "lake"
    skipping = f"topic({source!r}, schema='page string NOT NULL, n int', on_error='skip')"
    file = write_pipeline(
        tmp_path,
        f"""
        from ottla.spark import expect

        @pipeline.stream(out=topic({target!r}, key="page"), dead_letter={bad!r})
        def copy(rows=topic({source!r}, schema="page string NOT NULL, n int")):
            return rows

        @pipeline.stream(out=topic({counts!r}, key="page"), mode="update")
        def count(rows={skipping}):
            return rows.groupBy("page").count()

        @pipeline.stream(out=delta({str(lake)!r}), expect=expect("n < 1", action="drop", name="small"))
        def store(rows={skipping}):
            return rows
        """,
    )
    command = [str(OTTLA), "pipeline", "run", str(file), "--remote", connect_server.url]
    command += ["-b", broker.bootstrap, "--available-now", "--state-dir", str(tmp_path / "state")]
    for n in range(2):
        broker.produce(source, [json.dumps({"page": "a", "n": n}), "oops"])
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
    assert [json.loads(record.value())["n"] for record in consume(broker, target)] == [0, 1]
    assert len(consume(broker, bad)) == 2
    assert [json.loads(record.value())["count"] for record in consume(broker, counts)] == [1, 2]
    assert sorted(row["n"] for row in read_table(delta(str(lake))).to_pylist()) == [0]
    streams = {one["stream"]: one for one in Home(tmp_path / "state", "p").progress()["streams"]}
    figures = [streams["copy"][name] for name in ("rows_in", "rows_out", "bad")]
    assert figures == [2, 1, 1]
    assert streams["store"]["expectations"] == {"small": 1}


def test_each_row_once_though_client_and_server_die(
    own_broker: Broker, tmp_path: Path, connect_server: ConnectServer
) -> None:
    """Windows and sessions are kept between micro-batches, and one of its streams is written by foreachBatch."""
    # In one partition, so that no micro-batch has read one partition further than another: the watermark goes by the
    # newest row, and what is behind it is left out.
    own_broker.topic(1, "clicks")
    prepare("clickstream", own_broker)
    state = tmp_path / "state"
    stricken = Stricken(shipped("clickstream"), None, own_broker, state, tmp_path, connect_server)
    die_and_check(stricken, ("client", "server"))
    said = "".join(log.read_text() for log in state.glob("clickstream/logs/*.log"))
    assert "closed the session that the run before left behind" in said
