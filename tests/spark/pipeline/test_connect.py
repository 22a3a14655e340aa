"""A pipeline on a Spark Connect server: no Java on this side. A second Spark: one of the long tests."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.ottla_node import OTTLA
from tests.interop.process import free_ports
from tests.support.pipelines import consume, write_pipeline
from tests.support.spark_world import Broker

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(900),
]
START_TIMEOUT_S = 300


@pytest.fixture
def connect_server(tmp_path: Path) -> Iterator[str]:
    """Spark's own server, as an operator starts it."""
    import pyspark

    from ottla.spark.worker_python import worker_python

    home, (port,) = Path(pyspark.__file__).parent, free_ports(1)
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
    }
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "768m"]
    command += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": worker_python(sys.executable, os.environ),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with open(tmp_path / "server.log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=tmp_path)
    try:
        _await_port(port, server)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(60)


def _await_port(port: int, server: subprocess.Popen[bytes]) -> None:
    """Polls until the server listens; it says so nowhere else."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while server.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError("the Spark Connect server has not started")


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
