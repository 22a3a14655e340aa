"""Clients of other languages, unmodified, against Ottla: franz-go (Go) and kafkajs (Node).

Their versions are pinned in go/go.mod and node/package.json; they are built into .interop/ by go's and npm's own
clients. Where a language is not installed its test is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.apache import HERE, INTEROP_DIR
from tests.interop.ottla_node import OttlaNode

pytestmark = pytest.mark.interop


def run(command: list[str], cwd: Path, timeout_s: float = 300, **env: str) -> str:
    """Run to the end; what it printed."""
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, f"{command[0]}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    with OttlaNode(tmp_path_factory.mktemp("others") / "data") as broker:
        yield broker


@pytest.fixture(scope="module")
def franz_go() -> Path:
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    binary = INTEROP_DIR / "go" / "franz"
    run(["go", "build", "-o", str(binary), "."], HERE / "go", timeout_s=600)
    return binary


@pytest.fixture(scope="module")
def kafkajs() -> Path:
    if shutil.which("npm") is None:
        pytest.skip("Node is not installed")
    place = INTEROP_DIR / "node"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", "main.js"):
        shutil.copy(HERE / "node" / name, place / name)
    run(["npm", "ci", "--no-audit", "--no-fund", "--silent"], place)
    return place


def test_franz_go(node: OttlaNode, franz_go: Path) -> None:
    assert run([str(franz_go), node.address, "from-go"], HERE).strip() == "ok"


def test_kafkajs(node: OttlaNode, kafkajs: Path) -> None:
    quiet = {"KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    assert run(["node", "main.js", node.address, "from-node"], kafkajs, **quiet).strip() == "ok"
