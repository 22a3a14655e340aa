"""Spark Connect on a cluster whose workers have but a bare Python: two of the pipelines that ship, to the row.

One writes topics, the other Parquet files too. The server was started as `package` says: in the package's directory,
with `PYSPARK_PYTHON=./environment/bin/python`, which is what each run brings along for its session. Several Sparks, and
an environment unpacked for each session: these are long tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.connect_server import ConnectServer
from tests.support.shipped import shipped
from tests.support.six import prepare, produce
from tests.support.spark_world import Broker
from tests.support.standalone import SETTINGS, Standalone, ottla

from ottla.spark.cluster.package import ARCHIVES, PYTHON

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]


def server_on(cluster: Standalone, place: Path, archives: str = "", **environment: str) -> ConnectServer:
    """In the environment of the cluster's own processes, and what is given besides."""
    settings = {**SETTINGS, "spark.archives": archives} if archives else SETTINGS
    return ConnectServer(place, cluster.master, {**cluster.environment, **environment}, settings)


@pytest.fixture(scope="module")
def server(cluster: Standalone, state: Path) -> Iterator[ConnectServer]:
    module = ("ottla.examples.clickstream", "-b", "127.0.0.1:9092")
    shown = ottla("package", *module, "--state-dir", str(state), "--json", cwd=state)
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    (recipe,) = [found for found in document["recipes"] if found["kind"] == "connect"]
    assert recipe["lines"][0] == f"cd {document['path']}"
    assert recipe["lines"][1].startswith(f"PYSPARK_PYTHON={PYTHON} ")
    assert recipe["lines"][1].endswith(f" --archives '{ARCHIVES}'")
    with server_on(cluster, Path(document["path"]), ARCHIVES, PYSPARK_PYTHON=PYTHON) as made:
        yield made


@pytest.mark.parametrize("name", ["clickstream", "etl"])
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
