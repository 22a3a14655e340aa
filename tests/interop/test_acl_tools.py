"""`ottla acl` on an Apache node, Kafka's own AclCommand on ours, and directories with rules that change hands."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.apache import ApacheKafka
from tests.interop.ottla_node import OTTLA, OttlaNode

pytestmark = pytest.mark.interop

# Whoever comes by a listener without authentication is one of them; rules are about others.
GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
Node = ApacheKafka | OttlaNode


def ottla(node: Node, *words: str, code: int = 0) -> str:
    command = [str(OTTLA), "acl", *words, "-b", node.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stdout


def rules(node: Node) -> list[dict[str, str]]:
    return sorted(json.loads(ottla(node, "list", "-o", "json")), key=str)


@pytest.fixture(scope="module", params=["apache", "ottla"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    where = tmp_path_factory.mktemp(request.param) / "data"
    with ApacheKafka(where, GUARDED) if request.param == "apache" else OttlaNode(where, GUARDED) as made:
        yield made


def test_our_command(node: Node) -> None:
    ottla(node, "add", "--user", "alice", "--consumer", "--topic", "x", "--group", "g")
    ottla(node, "add", "--user", "*", "--op", "all", "--topic", "secret-", "--prefixed", "--deny")
    said = ottla(node, "explain", "--user", "alice", "--op", "read", "--topic", "x")
    assert "by the rule: ALLOW READ to User:alice from host * on TOPIC LITERAL 'x'" in said
    said = ottla(node, "explain", "--user", "alice", "--op", "read", "--topic", "secret-1", code=1)
    assert "by the rule: DENY ALL to User:* from host * on TOPIC PREFIXED 'secret-'" in said
    said = ottla(node, "explain", "--user", "alice", "--op", "write", "--topic", "x", code=1)
    assert "ottla acl add --user alice --op write --topic x" in said
    made = {(each["operation"], each["name"]) for each in rules(node)}
    assert made == {("ALL", "secret-"), ("READ", "g"), ("READ", "x")}
    ottla(node, "remove", "--all")
    assert rules(node) == []


def test_kafkas_command(node: Node) -> None:
    tool = "org.apache.kafka.tools.AclCommand"
    node.tool(tool, "--add", "--allow-principal", "User:bob", "--consumer", "--topic", "t", "--group", "g")
    node.tool(
        tool, "--add", "--deny-principal", "User:bob", "--operation", "Write", "--topic", "t-", *PREFIXED
    )
    made = {(each["permission"], each["operation"], each["resource"], each["name"]) for each in rules(node)}
    assert made == {
        ("ALLOW", "READ", "TOPIC", "t"),
        ("ALLOW", "DESCRIBE", "TOPIC", "t"),
        ("ALLOW", "READ", "GROUP", "g"),
        ("DENY", "WRITE", "TOPIC", "t-"),
    }
    shown = node.tool(tool, "--list").stdout
    assert "resourceType=TOPIC, name=t-, patternType=PREFIXED" in shown
    node.tool(tool, "--remove", "--force", "--topic", "t")
    assert {each["name"] for each in rules(node)} == {"g", "t-"}
    ottla(node, "remove", "--all")


PREFIXED = ("--resource-pattern-type", "prefixed")


def test_rules_stay_when_a_directory_changes_hands(tmp_path: Path) -> None:
    where = tmp_path / "data"
    with ApacheKafka(where, GUARDED) as apache:
        ottla(apache, "add", "--user", "alice", "--producer", "--topic", "x", "--transactional-id", "t")
        made = rules(apache)
        cluster_id = apache.cluster_id
    with OttlaNode(where, GUARDED) as ours:
        assert rules(ours) == made
        ottla(ours, "add", "--user", "bob", "--op", "read", "--topic", "y", "--host", "10.0.0.1")
        made = rules(ours)
    with ApacheKafka(where, GUARDED, cluster_id=cluster_id) as apache:
        assert rules(apache) == made
