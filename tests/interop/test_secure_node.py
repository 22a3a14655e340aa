"""Apache Kafka starts on what `ottla serve --secure` has made, and its tools use the same client.properties.

Stores that change while a node runs are taken and refused by both kinds alike.
"""

import socket
import ssl
from pathlib import Path

import pytest
from tests.interop.apache import ApacheKafka, java_command, run_tool
from tests.interop.process import HOST, ServerProcess, wait_until
from tests.support.secure_node import SecureNode

from ottla.cli.security.cert import authority_in
from ottla.security.tls.authority import Issued, key_store

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


def served(node: SecureNode) -> bytes:
    context = ssl.create_default_context(cafile=str(node.directory / "ca.pem"))
    with (
        socket.create_connection((HOST, node.wanted_port), 30) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as tls,
    ):
        return tls.getpeercert(binary_form=True) or b""


def der(issued: Issued) -> bytes:
    return ssl.PEM_cert_to_DER_cert(issued.certificate.decode())


@pytest.mark.parametrize("kind", ["ottla", "apache"])
def test_stores_change_while_either_runs(kind: str, tmp_path: Path) -> None:
    node = SecureNode(tmp_path / "data")
    with node:
        pass  # made, and formatted
    server: ServerProcess = node if kind == "ottla" else SecureApache(node)
    authority, store = authority_in(node.directory), node.directory / "node.pem"
    where = ("--bootstrap-server", f"{HOST}:{node.wanted_port}")
    how = ("--command-config", str(node.client_properties), "--entity-type", "brokers", "--entity-name", "1")

    def alter(path: Path) -> str:
        change = f"listener.name.sasl_ssl.ssl.keystore.location={path}"
        done = run_tool("ConfigCommand", *where, *how, "--alter", "--add-config", change, check=False)
        return "" if done.returncode == 0 else done.stdout + done.stderr

    with server:
        first = served(node)
        renewed = authority.renew(first, days=90)
        store.write_bytes(key_store(renewed))
        assert alter(store) == ""
        # Apache Kafka answers before it has read it.
        wait_until(lambda: served(node) == der(renewed), 60, "the new certificate")
        # The same name and another file.
        again = authority.renew(first, days=90)
        store.write_bytes(key_store(again))
        assert alter(store) == ""
        wait_until(lambda: served(node) == der(again), 60, "the newest certificate")
        bad = tmp_path / "bad.pem"
        for content, words in (
            (
                key_store(authority.issue("other", hosts=("localhost",), days=9)),
                "DistinguishedName does not match",
            ),
            (
                key_store(authority.issue("ottla-node", hosts=("localhost",), days=9)),
                "SubjectAltNames do not match",
            ),
            (b"garbage", "Validation of dynamic config update"),
        ):
            bad.write_bytes(content)
            said = alter(bad)
            assert "InvalidRequestException" in said
            assert words in said
            assert served(node) == der(again)
        shown = run_tool("ConfigCommand", *where, *how, "--describe").stdout
        assert f"listener.name.sasl_ssl.ssl.keystore.location={store}" in shown
