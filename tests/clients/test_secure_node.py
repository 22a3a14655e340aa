"""`ottla serve --secure`: from nothing to the first message, who may come in, and certificates renewed in time."""

import asyncio
import contextlib
import socket
import ssl
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer
from tests.interop.ottla_node import OTTLA
from tests.interop.process import HOST, wait_until
from tests.support.secure_node import SecureNode

from ottla.cli.security.cert import authority_in
from ottla.client.admin.types import NewTopic
from ottla.client.blocking import Admin
from ottla.client.errors import ClientError
from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.tls.authority import key_store
from ottla.security.tls.names import read_certificate

pytestmark = pytest.mark.xdist_group("secure-node")

PATIENCE_S = 120.0
ALICES_PASSWORD = "alice-secret"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    node = SecureNode(tmp_path_factory.mktemp("secure") / "data")
    with node:
        yield node
    log = node.log_text()
    assert "Traceback" not in log
    assert node.password() not in log
    assert ALICES_PASSWORD not in log


def ottla(node: SecureNode, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """As admin, with the file that was made for that."""
    command = [str(OTTLA), *words, "--command-config", str(node.client_properties)]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, env=node.environment()
    )


def told(node: SecureNode, user: str, password: str, kind: str) -> str:
    printed = ottla(node, "user", "settings", user, "--for", kind, "--password-stdin", stdin=password)
    assert printed.returncode == 0, printed.stderr
    return printed.stdout


def test_the_first_message(secure: SecureNode) -> None:
    assert ottla(secure, "topic", "create", "first").returncode == 0
    assert ottla(secure, "produce", "-t", "first", stdin="hello\n").returncode == 0
    read = ottla(secure, "consume", "-t", "first", "-o", "beginning", "-e")
    assert read.stdout == "hello\n"


def test_other_peoples_clients_run_with_what_is_printed(secure: SecureNode) -> None:
    password = secure.password()
    lines = told(secure, "admin", password, "librdkafka").splitlines()
    producer = Producer(dict(line.split("=", 1) for line in lines))
    producer.produce("printed", b"librdkafka")
    assert producer.flush(PATIENCE_S) == 0
    names: dict[str, Any] = {}
    exec(told(secure, "admin", password, "kafka-python"), names)
    with contextlib.closing(KafkaProducer(**names["settings"])) as python:
        python.send("printed", b"kafka-python").get(PATIENCE_S)
    exec(told(secure, "admin", password, "aiokafka"), names)

    async def write() -> None:
        async with AIOKafkaProducer(**names["settings"]) as aio:
            await aio.send_and_wait("printed", b"aiokafka")

    asyncio.run(asyncio.wait_for(write(), PATIENCE_S))
    read = ottla(secure, "consume", "-t", "printed", "-o", "beginning", "-e")
    assert sorted(read.stdout.split()) == ["aiokafka", "kafka-python", "librdkafka"]


def test_who_is_not_named_may_not(secure: SecureNode, tmp_path: Path) -> None:
    added = ottla(secure, "user", "add", "alice", "--password-stdin", stdin=ALICES_PASSWORD)
    assert added.returncode == 0, added.stderr
    assert ottla(secure, "topic", "create", "hers").returncode == 0
    file = tmp_path / "alice.properties"
    file.write_text(told(secure, "alice", ALICES_PASSWORD, "java"))
    settings = {
        name: value for name, _, value in (line.partition("=") for line in file.read_text().splitlines())
    }
    with Admin(settings) as alice:
        assert alice.list_topics() == []
        refused = alice.create_topics([NewTopic("mine", 1)])["mine"]
        assert isinstance(refused, KafkaError)
        assert refused.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_strangers_stay_out(secure: SecureNode) -> None:
    ca = str(secure.directory / "ca.pem")
    for settings in (
        {},
        {"security.protocol": "SSL", "ssl.ca.location": ca},
        {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": ca,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "admin",
            "sasl.password": "guess",
        },
    ):
        with pytest.raises(KafkaException):
            AdminClient({**settings, "bootstrap.servers": secure.address}).list_topics(timeout=2)


def test_the_controller_takes_certificates_of_nodes_alone(secure: SecureNode) -> None:
    context = ssl.create_default_context(cafile=str(secure.directory / "ca.pem"))
    port = secure.wanted_port + 1
    with (
        pytest.raises((ssl.SSLError, ConnectionError)),
        socket.create_connection((HOST, port), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as tls,
    ):
        tls.recv(1)  # TLS 1.3 says only now that a certificate is missing


def served(node: SecureNode) -> bytes:
    context = ssl.create_default_context(cafile=str(node.directory / "ca.pem"))
    with (
        socket.create_connection((HOST, node.port), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as tls,
    ):
        shown = tls.getpeercert(binary_form=True)
    assert shown is not None
    return shown


def test_a_certificate_is_renewed_while_the_node_runs_and_after(tmp_path: Path) -> None:
    node = SecureNode(tmp_path / "data", hasty=True)
    store = node.directory / "node.pem"
    with node:
        first = served(node)
        late = authority_in(node.directory).renew(first, days=90, now=datetime.now(UTC) - timedelta(days=70))
        store.write_bytes(key_store(late))
        wait_until(lambda: served(node) != first, PATIENCE_S, "a new certificate")
        left = read_certificate(served(node)).not_after - datetime.now(UTC)
        assert left > timedelta(days=80)
        assert "19 days before it would have expired" in node.log_text()
        with Admin(client_settings(node)) as admin:
            admin.create_topics([NewTopic("t", 1)])
    store.write_bytes(key_store(late))
    with node:
        with Admin(client_settings(node)) as admin:
            assert [topic.name for topic in admin.list_topics()] == ["t"]
        assert read_certificate(served(node)).not_after - datetime.now(UTC) > timedelta(days=80)


def client_settings(node: SecureNode) -> dict[str, object]:
    return dict(node.properties())


def test_a_password_that_is_taken_back_is_of_no_use(secure: SecureNode) -> None:
    assert ottla(secure, "user", "add", "bob", "--password-stdin", stdin="bob-secret").returncode == 0
    settings = client_settings(secure)
    del settings["sasl.jaas.config"]
    login = {"sasl.username": "bob", "sasl.password": "bob-secret"}
    with Admin({**settings, **login}) as bob:
        bob.list_topics()
    assert ottla(secure, "user", "delete", "bob").returncode == 0
    with pytest.raises((ClientError, KafkaError)), Admin({**settings, **login}) as bob:
        bob.list_topics()
