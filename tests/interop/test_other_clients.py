"""Clients of other languages, unmodified, against Ottla: franz-go (Go) and kafkajs (Node).

Their versions are pinned in go/go.mod and node/package.json; they are built into .interop/ by go's and npm's own
clients. Where a language is not installed its test is skipped. They and Java's clients also log in with SCRAM-SHA-512
over TLS, where rules let them have one topic and not another.
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
from tests.interop.scripts import acls
from tests.interop.secured import SCRAM, SecureCluster, Security
from tests.interop.security_world import CREATE_ACLS, WRITE, make_user

pytestmark = pytest.mark.interop
QUIET_NODE = {"KAFKAJS_NO_PARTITIONER_WARNING": "1"}


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
    # Two programs, by the names of their folders.
    place = INTEROP_DIR / "go"
    place.mkdir(parents=True, exist_ok=True)
    run(["go", "build", "-o", str(place / "franz"), "."], HERE / "go", timeout_s=600)
    run(["go", "build", "-o", str(place / "secure"), "./secure"], HERE / "go", timeout_s=600)
    return place / "franz"


@pytest.fixture(scope="module")
def kafkajs() -> Path:
    if shutil.which("npm") is None:
        pytest.skip("Node is not installed")
    place = INTEROP_DIR / "node"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", "main.js", "secure.js"):
        shutil.copy(HERE / "node" / name, place / name)
    run(["npm", "ci", "--no-audit", "--no-fund", "--silent"], place)
    return place


def test_franz_go(node: OttlaNode, franz_go: Path) -> None:
    assert run([str(franz_go), node.address, "from-go"], HERE).strip() == "ok"


def test_kafkajs(node: OttlaNode, kafkajs: Path) -> None:
    assert run(["node", "main.js", node.address, "from-node"], kafkajs, **QUIET_NODE).strip() == "ok"


# ---- TLS, SCRAM-SHA-512 and rules

USER, PASSWORD = "alice", "alice's secret"
PLENTY = 100
GROUP = 3


class Guarded:
    """A node that lets alice write, and read as the groups of a prefix, one topic of each name."""

    def __init__(self, cluster: SecureCluster) -> None:
        self.cluster = cluster
        self.security = cluster.security
        self.file = self.security.client_file(USER, PASSWORD, SCRAM)
        make_user(cluster[1], USER, PASSWORD)
        of = {"principal": f"User:{USER}", "resource_pattern_type": acls.PREFIXED}
        rows = [acls.creation("open-", **of, operation=operation) for operation in (acls.READ, WRITE)]
        rows.append(acls.creation("open-", **of, resource_type=GROUP, operation=acls.READ))
        with cluster[1].client() as admin:
            answer = admin.ask(CREATE_ACLS, 3, {"creations": rows})
        assert {row["error_code"] for row in answer["results"]} == {"none"}, answer

    def arguments(self, language: str) -> list[str]:
        """What a program is told."""
        names = {word: f"{word}-{language}" for word in ("open", "closed")}
        with self.cluster[1].client() as admin:
            for name in names.values():
                admin.create_topic(name)
        trusted = str(self.security.authority.certificate)
        address = self.cluster.bootstrap_servers
        return [address, names["open"], names["closed"], f"open-{language}", USER, PASSWORD, trusted]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    where = tmp_path_factory.mktemp("guarded")
    nodes = {1: ("ottla", "broker,controller")}
    with SecureCluster(where, nodes, Security(where, protocol="SASL_SSL")) as cluster:
        yield Guarded(cluster)


def test_franz_go_with_a_login(guarded: Guarded, franz_go: Path) -> None:
    assert run([str(franz_go.with_name("secure")), *guarded.arguments("go")], HERE).strip() == "ok"


def test_kafkajs_with_a_login(guarded: Guarded, kafkajs: Path) -> None:
    said = run(["node", "secure.js", *guarded.arguments("node")], kafkajs, **QUIET_NODE)
    assert said.strip() == "ok"


def test_java_with_a_login(guarded: Guarded) -> None:
    _, topic, forbidden, group, *_ = guarded.arguments("java")
    values = [f"value {number}" for number in range(PLENTY)]
    lines = "\n".join(values) + "\n"
    tool, who = guarded.cluster.tool_of, guarded.file
    tool(who, "ConsoleProducer", "--topic", topic, stdin=lines)
    refused = tool(who, "ConsoleProducer", "--topic", forbidden, stdin="no\n", check=False)
    assert "TopicAuthorizationException" in refused.stdout + refused.stderr
    how = ("--from-beginning", "--max-messages", str(PLENTY), "--timeout-ms", "60000")
    read = tool(who, "ConsoleConsumer", "--topic", topic, "--group", group, *how)
    assert sorted(read.stdout.splitlines()) == sorted(values)
    refused = tool(who, "ConsoleConsumer", "--topic", topic, "--group", "another", *how, check=False)
    assert "GroupAuthorizationException" in refused.stdout + refused.stderr
    assert PASSWORD not in guarded.cluster[1].printed()
