"""Spark Connect on a cluster whose workers have but a bare Python: the six pipelines that ship, to the row.

The server was started as `package` says: in the directory of a package, with `PYSPARK_PYTHON=./environment/bin/python`
and the package's archives. Each run brings what that environment lacks, which here is the pipeline's own file. Several
Sparks: these are long tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.connect_server import ConnectServer
from tests.support.shipped import NAMES, shipped
from tests.support.six import prepare, produce
from tests.support.spark_world import Broker
from tests.support.standalone import Standalone, ottla

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_pipeline_brings_what_is_missing(
    name: str,
    cluster: Standalone,
    connect_server: ConnectServer,
    own_broker: Broker,
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAKE", str(tmp_path / "lake"))
    prepare(name, own_broker)
    one = shipped(name)
    words = ["run", f"ottla.examples.{name}", "-b", own_broker.bootstrap, "--remote", connect_server.url]
    words += ["--available-now", "--state-dir", str(state), "--checkpoint-dir", str(tmp_path / "checkpoints")]
    for part in one.parts:
        produce(own_broker, part)
        done = ottla(*words, cwd=tmp_path)
        logs = "\n".join(file.read_text()[-4000:] for file in state.glob(f"{name}/logs/*.log"))
        assert done.returncode == 0, f"{done.stderr}\n{logs}\n{connect_server.log.read_text()[-6000:]}"
    one.check(one.records, own_broker, tmp_path / "lake")
    assert cluster.environments() == 1  # the server's own, in each executor
