"""One standalone cluster for all tests on one: two workers, each with a core and a bare Python; one state directory.

And a Spark Connect server on it for all tests of a file: it has the cluster's cores for as long as it lives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.connect_server import ConnectServer
from tests.support.standalone import SETTINGS, Standalone, ottla

from ottla.spark.cluster.package import ARCHIVES, PYTHON


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")) as made:
        yield made


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So that an environment is packed once. Tests bring their own checkpoints."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def connect_server(cluster: Standalone, state: Path) -> Iterator[ConnectServer]:
    """Started as `package` says, with the package of the pipeline that needs the most: it has what the others need."""
    module = ("ottla.examples.cdc", "-b", "127.0.0.1:9092")
    shown = ottla("package", *module, "--state-dir", str(state), "--json", cwd=state)
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    (recipe,) = [found for found in document["recipes"] if found["kind"] == "connect"]
    assert recipe["lines"][0] == f"cd {document['path']}"
    assert recipe["lines"][1].startswith(f"PYSPARK_PYTHON={PYTHON} ")
    assert recipe["lines"][1].endswith(f" --archives '{ARCHIVES}'")
    environment = {**cluster.environment, "PYSPARK_PYTHON": PYTHON}
    settings = {**SETTINGS, "spark.archives": ARCHIVES}
    with ConnectServer(Path(document["path"]), cluster.master, environment, settings) as made:
        yield made
