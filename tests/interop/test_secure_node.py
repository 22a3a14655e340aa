"""Apache Kafka starts on what `ottla serve --secure` has made, and its tools use the same client.properties."""

from pathlib import Path

import pytest
from tests.interop.apache import ApacheKafka, java_command, run_tool
from tests.support.secure_node import SecureNode

pytestmark = pytest.mark.interop


class SecureApache(ApacheKafka):
    """On a server.properties that is there already."""

    def __init__(self, node: SecureNode) -> None:
        super().__init__(node.data_dir, port=node.wanted_port)
        self._file = node.directory / "server.properties"

    def launch(self) -> None:
        super(ApacheKafka, self).launch()

    def command(self) -> list[str]:
        return java_command("kafka.Kafka", str(self._file), jvm=self.jvm)

    def is_ready(self) -> bool:
        return "Kafka Server started" in self.log_text()


def test_apache_takes_the_directory_over_and_gives_it_back(tmp_path: Path) -> None:
    node = SecureNode(tmp_path / "data")
    how = ("--command-config", str(node.client_properties))
    with node:
        where = ("--bootstrap-server", f"127.0.0.1:{node.port}")
        run_tool("TopicCommand", *where, *how, "--create", "--topic", "orders")
        config = ("--add-config", "SCRAM-SHA-512=[password=alice-secret]")
        run_tool(
            "ConfigCommand",
            *where,
            *how,
            "--alter",
            "--entity-type",
            "users",
            "--entity-name",
            "alice",
            *config,
        )
        alice = ("--allow-principal", "User:alice", "--operation", "Describe", "--topic", "orders")
        run_tool("AclCommand", *where, *how, "--add", *alice)
    with SecureApache(node):
        assert "orders" in run_tool("TopicCommand", *where, *how, "--list").stdout
        assert "User:alice" in run_tool("AclCommand", *where, *how, "--list").stdout
        users = run_tool("ConfigCommand", *where, *how, "--describe", "--entity-type", "users").stdout
        assert "alice" in users
        run_tool("TopicCommand", *where, *how, "--create", "--topic", "of-apache")
    with node:
        topics = run_tool("TopicCommand", *where, *how, "--list").stdout.split()
        assert {"orders", "of-apache"} <= set(topics)
