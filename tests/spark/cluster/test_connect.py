"""Spark Connect on a cluster whose workers have but a bare Python: the six pipelines, and what is refused.

The server was started as `package` says: in the package's directory, with `PYSPARK_PYTHON=./environment/bin/python`,
which is what each run brings along for its session. (One with nothing but that variable is in test_kills.) Several
Sparks: these are long tests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.connect_server import ConnectServer
from tests.support.shipped import NAMES, shipped
from tests.support.six import prepare, produce
from tests.support.spark_world import Broker
from tests.support.standalone import SETTINGS, Standalone, ottla

from ottla.spark.cluster.package import PYTHON

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]


def server_on(cluster: Standalone, place: Path, **environment: str) -> ConnectServer:
    """In the environment of the cluster's own processes, and what is given besides."""
    return ConnectServer(place, cluster.master, {**cluster.environment, **environment}, SETTINGS)


@pytest.fixture(scope="module")
def server(cluster: Standalone, state: Path) -> Iterator[ConnectServer]:
    module = ("ottla.examples.clickstream", "-b", "127.0.0.1:9092")
    shown = ottla("package", *module, "--state-dir", str(state), "--json", cwd=state)
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    (recipe,) = [found for found in document["recipes"] if found["kind"] == "connect"]
    assert recipe["lines"][0] == f"cd {document['path']}"
    assert recipe["lines"][1].startswith(f"PYSPARK_PYTHON={PYTHON} ")
    with server_on(cluster, Path(document["path"]), PYSPARK_PYTHON=PYTHON) as made:
        yield made


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_pipeline_brings_its_environment_along(
    name: str,
    server: ConnectServer,
    own_broker: Broker,
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAKE", str(tmp_path / "lake"))
    prepare(name, own_broker)
    one = shipped(name)
    words = ["run", f"ottla.examples.{name}", "-b", own_broker.bootstrap, "--remote", server.url]
    words += ["--available-now", "--state-dir", str(state), "--checkpoint-dir", str(tmp_path / "checkpoints")]
    for part in one.parts:
        produce(own_broker, part)
        done = ottla(*words, cwd=tmp_path)
        logs = "\n".join(file.read_text()[-4000:] for file in state.glob(f"{name}/logs/*.log"))
        assert done.returncode == 0, f"{done.stderr}\n{logs}\n{server.log.read_text()[-6000:]}"
    one.check(one.records, own_broker, tmp_path / "lake")


def test_what_server_and_executors_lack_is_told_before_a_row_is_read(
    cluster: Standalone, own_broker: Broker, state: Path, tmp_path: Path
) -> None:
    """A server with the Python that it finds, which has nothing; executors get theirs from the run."""
    prepare("clickstream", own_broker)
    produce(own_broker, shipped("clickstream").records)
    words = ["run", "ottla.examples.clickstream", "-b", own_broker.bootstrap, "--state-dir", str(state)]
    words += ["--available-now", "--checkpoint-dir", str(tmp_path / "checkpoints"), "--name", "refused"]
    with server_on(cluster, tmp_path) as bare:
        done = ottla(*words, "--remote", bare.url, cwd=tmp_path)
        lines = [
            line for line in done.stderr.splitlines() if line.startswith("ottla: ") and "log" not in line
        ]
        assert done.returncode == 1
        assert [line for line in lines if line.startswith("ottla: the Spark Connect server: ")] == lines, (
            done.stderr
        )
        assert f"start the server with PYSPARK_PYTHON={PYTHON}" in lines[0]
        # And with a Python of the user's choice, which is not there.
        chosen = "spark.sql.execution.pyspark.python=/nowhere/python3"
        done = ottla(*words, "--remote", bare.url, "--conf", chosen, cwd=tmp_path)
        assert done.returncode == 1
        assert "ottla: executor on 127.0.0.1: there is no Python at /nowhere/python3" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "checkpoints").exists()


def test_a_server_with_ottla_keeps_its_python(
    cluster: Standalone, own_broker: Broker, state: Path, tmp_path: Path
) -> None:
    """Installed for the server, and found on its PATH; the executors have a bare one of that name."""
    prepare("clickstream", own_broker)
    one = shipped("clickstream")
    produce(own_broker, one.records)
    words = ["run", "ottla.examples.clickstream", "-b", own_broker.bootstrap, "--state-dir", str(state)]
    words += ["--available-now", "--checkpoint-dir", str(tmp_path / "checkpoints"), "--name", "own"]
    path = f"{Path(sys.executable).parent}:{cluster.environment['PATH']}"
    python_path = ":".join(entry for entry in sys.path if entry.endswith("/src"))
    with server_on(cluster, tmp_path, PATH=path, PYTHONPATH=python_path) as server:
        done = ottla(*words, "--remote", server.url, cwd=tmp_path)
        logs = "\n".join(file.read_text()[-4000:] for file in state.glob("own/logs/*.log"))
        assert done.returncode == 0, f"{done.stderr}\n{logs}\n{server.log.read_text()[-6000:]}"
    one.check(one.records, own_broker, tmp_path)
