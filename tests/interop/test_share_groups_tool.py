"""kafka-share-groups on Ottla: offsets set, shown and deleted, groups listed by state and deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.clients.test_ottla_client_cli import Cli
from tests.interop.ottla_node import OttlaNode
from tests.support.raw_client import RawClient
from tests.support.share_member import ACCEPT, ShareMember, configure

pytestmark = pytest.mark.interop

SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    where: Path = tmp_path_factory.mktemp("share-groups-tool")
    with OttlaNode(where / "data") as broker:
        with RawClient(broker) as client:
            for topic in ("one", "two"):
                client.create_topic(topic, 2)
                client.write(topic, 0, [b"x"] * 5)
        yield broker


def shown(node: OttlaNode, group: str) -> dict[tuple[str, str], tuple[str, str]]:
    """Start and lag by topic and partition, as the tool prints them."""
    printed = node.tool(SHARE_GROUPS, "--describe", "--group", group, "--offsets").stdout
    rows = [line.split() for line in printed.splitlines() if line.startswith(group)]
    return {(row[1], row[2]): (row[3], row[4]) for row in rows}


def test_offsets_are_set_shown_and_deleted(node: OttlaNode) -> None:
    topics = ("--topic", "one", "--topic", "two:0")
    node.tool(SHARE_GROUPS, "--reset-offsets", "--group", "moved", *topics, "--to-latest", "--dry-run")
    assert "moved" not in node.tool(SHARE_GROUPS, "--list").stdout.split()
    node.tool(SHARE_GROUPS, "--reset-offsets", "--group", "moved", *topics, "--to-latest", "--execute")
    assert shown(node, "moved") == {
        ("one", "0"): ("5", "0"),
        ("one", "1"): ("0", "0"),
        ("two", "0"): ("5", "0"),
    }
    node.tool(SHARE_GROUPS, "--reset-offsets", "--group", "moved", *topics, "--to-earliest", "--execute")
    assert shown(node, "moved")[("one", "0")] == ("0", "5")
    printed = node.tool(SHARE_GROUPS, "--delete-offsets", "--group", "moved", "--topic", "one").stdout
    assert "one" in printed
    assert set(shown(node, "moved")) == {("two", "0")}


def test_groups_are_listed_by_state_and_deleted(node: OttlaNode) -> None:
    for group in ("first", "second"):
        reset = ("--reset-offsets", "--group", group, "--topic", "one", "--to-earliest", "--execute")
        node.tool(SHARE_GROUPS, *reset)
    listed = node.tool(SHARE_GROUPS, "--list", "--state", "Empty").stdout
    assert {"first", "second"} <= set(listed.split())
    assert "first" not in node.tool(SHARE_GROUPS, "--list", "--state", "Stable").stdout.split()
    deleted = node.tool(SHARE_GROUPS, "--delete", "--group", "first").stdout
    assert "successful" in deleted
    left = node.tool(SHARE_GROUPS, "--list").stdout.split()
    assert "first" not in left
    assert "second" in left


def test_ottlas_own_command_tells_the_same_lag(node: OttlaNode) -> None:
    with RawClient(node) as client:
        topic_id = client.create_topic_with_id("queue")
        configure(client, "workers", auto_offset_reset="earliest")
        client.write("queue", 0, [b"a", b"b", b"c"])
        member = ShareMember(node, "workers", "queue", topic_id).join()
        member.take()
        for acks in ([(1, 1, ACCEPT)], [(2, 2, ACCEPT)], [(0, 0, ACCEPT)]):
            assert member.acknowledge({0: acks}) == {0: "none"}
            told = json.loads(Cli(node.address)("group", "describe", "workers", "-o", "json")[0])[0]
            ours = {
                (row["topic"], str(row["partition"])): (str(row["current_offset"]), str(row["lag"]))
                for row in told["partitions"]
            }
            assert ours == shown(node, "workers")
        assert ours["queue", "0"][1] == "0"
