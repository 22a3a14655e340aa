"""A node that cannot go on says why in its last line and ends with code 70; one that cannot start is one line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.ottla_node import OttlaNode
from tests.support.raw_client import RawClient

# `ottla serve` with a mistake put into it, before any of it runs.
MISTAKES = {
    "following the metadata": """
from ottla.replication.replica_manager import ReplicaManager
apply = ReplicaManager.apply
async def wrong(self, delta):
    if delta.after.topic("mistake") is not None:
        raise RuntimeError("a mistake in following")
    await apply(self, delta)
ReplicaManager.apply = wrong
""",
    "flushing the metadata log": """
from ottla.raft.driver import RaftDriver
flush = RaftDriver._flush
def wrong(self):
    if b"mistake" in (self.log.directory / "00000000000000000000.log").read_bytes():
        raise RuntimeError("a mistake in following")
    flush(self)
RaftDriver._flush = wrong
""",
    "the disk of the metadata log": """
from ottla.raft.driver import RaftDriver
flush = RaftDriver._flush
def wrong(self):
    if b"mistake" in (self.log.directory / "00000000000000000000.log").read_bytes():
        raise OSError(5, "Input/output error, a mistake in following")
    flush(self)
RaftDriver._flush = wrong
""",
}
IN_THE_START = """
from ottla.node.broker_server import BrokerServer
async def wrong(self):
    raise RuntimeError("a mistake in the start")
BrokerServer._follow_metadata = wrong
"""
SERVE = "import sys\nfrom ottla.cli.main import main\nsys.exit(main())\n"


class MistakenNode(OttlaNode):
    """A node with a mistake, for as long as it has one."""

    mistake = ""

    def command(self) -> list[str]:
        as_installed = super().command()
        return [sys.executable, "-c", self.mistake + SERVE, *as_installed[1:]]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[MistakenNode]:
    node = MistakenNode(tmp_path / "data")
    yield node
    node.kill()


@pytest.mark.parametrize("where", MISTAKES)
def test_a_node_that_cannot_go_on_ends_with_the_reason_and_starts_again(
    node: MistakenNode, where: str
) -> None:
    node.mistake = MISTAKES[where]
    node.start()
    with RawClient(node) as client:
        topic = client.create_topic("orders")
        for n in range(50):
            client.write(topic, 0, [b"%d" % n])
        with pytest.raises((ConnectionError, AssertionError)):
            client.create_topic("mistake")
    assert node.wait(60) == 70
    lines = node.log_text().splitlines()
    assert lines[-1].startswith("ottla: stopped, because it could not go on: ")
    assert "a mistake in following" in lines[-1]
    assert node.log_text().count("Traceback") == (0 if "disk" in where else 1)
    node.mistake = ""
    with node.start(), RawClient(node) as client:
        assert client.read(topic) == [b"%d" % n for n in range(50)]
        client.create_topic("more")
    assert node.exit_code == 0


def test_a_mistake_in_the_start_is_one_line(node: MistakenNode) -> None:
    with node, RawClient(node) as client:
        client.write(client.create_topic("orders"), 0, [b"kept"])
    node.mistake = IN_THE_START
    node.launch()
    assert node.wait(60) == 70
    lines = node.log_text().splitlines()
    assert "internal error, please report it: RuntimeError: a mistake in the start" in lines[-1]
    assert "Traceback" not in node.log_text()
    assert not (node.data_dir / ".lock").exists()
    node.mistake = ""
    with node.start(), RawClient(node) as client:
        assert client.read("orders") == [b"kept"]
        client.create_topic("more")
