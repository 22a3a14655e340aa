"""Key and trust stores of a running node are changed by AlterConfigs (KIP-226), and under load nothing is lost."""

import asyncio
import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from kafka import KafkaProducer
from tests.interop.ottla_node import OTTLA, OttlaNode
from tests.interop.process import HOST, ServerDied, free_ports, wait_until
from tests.support.certificates import Authority, Identity
from tests.support.cluster import Processes

pytestmark = pytest.mark.xdist_group("stores")

PATIENCE_S = 180.0
LOCATION = "listener.name.tls.ssl.keystore.location"
PASSWORD = "store-secret"


class Changing(NamedTuple):
    """A node whose brokers' listener has TLS, and where its stores are."""

    node: OttlaNode
    port: int
    authority: Authority
    foreign: Authority
    key_store: Path
    admin: AdminClient


def write_store(path: Path, identity: Identity, key: Identity | None = None) -> None:
    path.write_bytes((key or identity).key.read_bytes() + identity.certificate.read_bytes())


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Changing]:
    authority, foreign = Authority(tmp_path / "ca"), Authority(tmp_path / "foreign", "Foreign CA")
    key_store = tmp_path / "node.pem"
    write_store(key_store, authority.issue())
    (port,) = free_ports(1)
    node = OttlaNode(
        tmp_path / "data",
        {
            "listeners": f"PLAINTEXT://{HOST}:0,CONTROLLER://{HOST}:0,TLS://{HOST}:{port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,TLS:SSL",
            "inter.broker.listener.name": "TLS",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": key_store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": authority.certificate,
        },
    )
    with node:
        admin = AdminClient({"bootstrap.servers": node.address})
        yield Changing(node, port, authority, foreign, key_store, admin)
    assert "Traceback" not in node.log_text()
    assert PASSWORD not in node.log_text()


def alter(admin: AdminClient, node_id: int, **settings: object) -> None:
    """KafkaException with the broker's words if it is refused."""
    entries = [
        ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.BROKER, str(node_id), incremental_configs=entries)
    (done,) = admin.incremental_alter_configs([resource]).values()
    done.result(PATIENCE_S)


def refusal(admin: AdminClient, **settings: object) -> str:
    with pytest.raises(KafkaException) as refused:
        alter(admin, 1, **settings)
    error: KafkaError = refused.value.args[0]
    assert error.code() == KafkaError.INVALID_REQUEST
    return error.str()


def served(port: int) -> int:
    """The serial number of the certificate that a new connection sees."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((HOST, port), 30) as plain, context.wrap_socket(plain) as tls:
        shown = tls.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def serial_of(identity: Identity) -> int:
    return x509.load_pem_x509_certificate(identity.certificate.read_bytes()).serial_number


def client(authority: Authority, port: int) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"{HOST}:{port}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(authority.certificate),
    }


def test_a_store_that_was_written_again_is_taken_and_connections_stay(changing: Changing) -> None:
    old = served(changing.port)
    with connected(changing) as still:
        new = changing.authority.issue()
        write_store(changing.key_store, new)
        assert served(changing.port) == old  # nobody has told the node
        alter(changing.admin, 1, **{LOCATION: changing.key_store})
        assert served(changing.port) == serial_of(new)
        again = changing.authority.issue()
        write_store(changing.key_store, again)
        # The same value once more: Kafka's way to say that the file is another one.
        alter(changing.admin, 1, **{LOCATION: changing.key_store})
        assert served(changing.port) == serial_of(again)
        still()
    AdminClient(client(changing.authority, changing.port)).list_topics(timeout=30)


@contextlib.contextmanager
def connected(changing: Changing) -> Iterator[Any]:
    """A connection, and what asks on it once more."""
    context = changing.authority.client_context()
    with (
        socket.create_connection((HOST, changing.port), 30) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as tls,
    ):

        def ask() -> None:
            tls.sendall(bytes.fromhex("0000000a0012000000000001ffff"))  # ApiVersions, version 0
            assert int.from_bytes(tls.recv(4), "big") > 0

        yield ask


def test_a_store_that_cannot_be_used_is_refused_and_the_old_one_serves(
    changing: Changing, tmp_path: Path
) -> None:
    old = served(changing.port)
    bad = tmp_path / "bad.pem"
    for make, words in (
        (lambda: None, "No such file"),
        (lambda: bad.write_bytes(b"garbage"), "no certificate in it"),
        (
            lambda: write_store(bad, changing.authority.issue(), changing.authority.issue()),
            "the private key does not belong to the certificate",
        ),
        (
            lambda: write_store(bad, changing.authority.issue("other")),
            "Keystore DistinguishedName does not match: existing=CN=localhost, new=CN=other",
        ),
        (
            lambda: write_store(bad, changing.authority.issue(hosts=("localhost",))),
            "Keystore SubjectAltNames do not match: the new certificate lacks",
        ),
        (
            lambda: write_store(bad, changing.foreign.issue()),
            "a broker with the old stores would not reach one with the new",
        ),
    ):
        make()
        said = refusal(changing.admin, **{LOCATION: bad})
        assert words in said
        assert "Validation of dynamic config update of SSLFactory failed" in said
        assert served(changing.port) == old
    # Nor where the file in use has become bad: whoever says so is told, and others are not in its way.
    changing.key_store.write_bytes(b"garbage")
    assert "no certificate in it" in refusal(changing.admin, **{LOCATION: changing.key_store})
    alter(changing.admin, 1, **{"log.cleaner.threads": 2})
    assert served(changing.port) == old
    wait_until(
        lambda: "what was served before is served on" in changing.node.log_text(), PATIENCE_S, "a line"
    )


def test_a_store_with_a_password(changing: Changing, tmp_path: Path) -> None:
    new = changing.authority.issue()
    path = tmp_path / "node.p12"
    key = load_pem_private_key(new.key.read_bytes(), None)
    certificate = x509.load_pem_x509_certificate(new.certificate.read_bytes())
    path.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"node",
            key,  # type: ignore[arg-type]
            certificate,
            None,
            BestAvailableEncryption(PASSWORD.encode()),
        )
    )
    prefix = "listener.name.tls.ssl.keystore"
    settings = {f"{prefix}.type": "PKCS12", f"{prefix}.location": path}
    said = refusal(changing.admin, **settings, **{f"{prefix}.password": "a-guess"})
    assert "the password is wrong" in said
    assert "a-guess" not in said
    # A reference to a file stays text (CVE-2024-31141).
    secret = tmp_path / "secret.properties"
    secret.write_text(f"p={PASSWORD}\n")
    reference = {f"{prefix}.password": f"${{file:{secret}:p}}", "config.providers": "file"}
    reference["config.providers.file.class"] = "org.apache.kafka.common.config.provider.FileConfigProvider"
    for given in (dict(list(reference.items())[:1]), reference):
        assert PASSWORD not in refusal(changing.admin, **settings, **given)
    alter(changing.admin, 1, **settings, **{f"{prefix}.password": PASSWORD})
    assert served(changing.port) == serial_of(new)
    resource = ConfigResource(ResourceType.BROKER, "1")
    shown = changing.admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert (shown[f"{prefix}.password"].value, shown[f"{prefix}.password"].is_sensitive) == (None, True)
    assert shown[f"{prefix}.location"].value == str(path)
    # It is in force from the start of the next life, even if the store that the node was started with is gone.
    changing.node.restart()
    assert served(changing.port) == serial_of(new)
    changing.node.stop()
    changing.key_store.unlink()
    changing.node.start()
    assert served(changing.port) == serial_of(new)
    changing.node.stop()
    path.unlink()
    with pytest.raises(ServerDied, match="No such file"):
        changing.node.start()
    write_store(changing.key_store, changing.authority.issue())
    changing.node.start()


def test_a_password_from_a_file(changing: Changing, tmp_path: Path) -> None:
    file = tmp_path / "change.properties"
    file.write_text(f"{LOCATION}={changing.key_store}\nlistener.name.tls.ssl.key.password={PASSWORD}\n")
    new = changing.authority.issue()
    key = load_pem_private_key(new.key.read_bytes(), None)
    locked = BestAvailableEncryption(PASSWORD.encode())
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked) + new.certificate.read_bytes()
    changing.key_store.write_bytes(text)
    command = [
        str(OTTLA),
        "config",
        "set",
        "broker",
        "1",
        "--from-file",
        str(file),
        "-b",
        changing.node.address,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env=changing.node.environment()
    )
    assert done.returncode == 0, done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    assert served(changing.port) == serial_of(new)


def test_only_for_one_listener(changing: Changing) -> None:
    said = refusal(changing.admin, **{"ssl.keystore.location": changing.key_store})
    assert "only per-listener using the listener prefix" in said


# ---- under load -------------------------------------------------------------------------------------------------


class Writers:
    """Clients that write until they are told to stop; what was acknowledged to each."""

    def __init__(self, where: str, ca: Path) -> None:
        self._where = where
        self._ca = str(ca)
        self._stop = threading.Event()
        self.acknowledged: dict[str, list[bytes]] = {"librdkafka": [], "kafka-python": [], "aiokafka": []}
        self.errors: list[object] = []
        self._threads = [
            threading.Thread(target=self._run, args=(name, write))
            for name, write in (
                ("librdkafka", self._librdkafka),
                ("kafka-python", self._kafka_python),
                ("aiokafka", self._aiokafka),
            )
        ]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def wait_for_more(self, count: int = 30) -> None:
        """Until each has had so many more acknowledged."""
        wanted = {name: len(done) + count for name, done in self.acknowledged.items()}
        wait_until(
            lambda: (
                bool(self.errors)
                or all(len(self.acknowledged[name]) >= least for name, least in wanted.items())
            ),
            PATIENCE_S,
            "all clients to write on",
        )
        assert not self.errors

    def _run(self, name: str, write: Any) -> None:
        try:
            write(name)
        except Exception as error:  # noqa: BLE001 - told to the test
            self.errors.append((name, error))

    def _librdkafka(self, name: str) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._where,
                "security.protocol": "SSL",
                "ssl.ca.location": self._ca,
                "acks": "all",
                "message.timeout.ms": 120_000,
                "connections.max.idle.ms": 1_000,
            }
        )
        number = 0
        while not self._stop.is_set():
            value = f"{name}-{number}".encode()

            def delivered(error: object, _: object, value: bytes = value) -> None:
                (self.errors if error is not None else self.acknowledged[name]).append(error or value)

            producer.produce("t", value=value, on_delivery=delivered)
            number += 1
            if number % 10 == 0:
                producer.flush(120)
        producer.flush(120)

    def _kafka_python(self, name: str) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self._where.split(","),
            security_protocol="SSL",
            ssl_cafile=self._ca,
            acks="all",
            retries=100,
        )
        number = 0
        while not self._stop.is_set():
            value = f"{name}-{number}".encode()
            producer.send("t", value).get(120)
            self.acknowledged[name].append(value)
            number += 1
        producer.close()

    def _aiokafka(self, name: str) -> None:
        async def write() -> None:
            context = ssl.create_default_context(cafile=self._ca)
            number = 0
            while not self._stop.is_set():
                # A new producer again and again: every one connects anew.
                async with AIOKafkaProducer(
                    bootstrap_servers=self._where, security_protocol="SSL", ssl_context=context, acks="all"
                ) as producer:
                    for _ in range(5):
                        value = f"{name}-{number}".encode()
                        await producer.send_and_wait("t", value)
                        self.acknowledged[name].append(value)
                        number += 1

        asyncio.run(write())


def test_certificates_and_the_authority_are_exchanged_under_load(tmp_path: Path) -> None:
    """As an operator does it: trust both authorities, then show the new certificates, then trust the new one alone."""
    old, new = Authority(tmp_path / "old", "Old CA"), Authority(tmp_path / "new", "New CA")
    key_store, trust_store, both = tmp_path / "node.pem", tmp_path / "trust.pem", tmp_path / "both.pem"
    write_store(key_store, old.issue())
    trust_store.write_bytes(old.certificate.read_bytes())
    both.write_bytes(old.certificate.read_bytes() + new.certificate.read_bytes())
    cluster = Processes(
        tmp_path,
        combined=3,
        settings={
            "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.name.controller.ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": key_store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": trust_store,
            "controller.quorum.fetch.timeout.ms": 20_000,
            "broker.session.timeout.ms": 60_000,
        },
    )
    try:
        for node in cluster.nodes.values():
            node.launch()
        for node in cluster.nodes.values():
            wait_until(node._ready_or_dead, PATIENCE_S, f"{node.kind} to serve")
        where = ",".join(f"{HOST}:{node.wanted_port}" for node in cluster.nodes.values())

        @cache  # its answers end with it
        def admin_of(node_id: int, ca: Path = both) -> AdminClient:
            settings = {"security.protocol": "SSL", "ssl.ca.location": str(ca)}
            return AdminClient(
                {**settings, "bootstrap.servers": f"{HOST}:{cluster.nodes[node_id].wanted_port}"}
            )

        def tell(**settings: object) -> None:
            prefix = "listener.name.plaintext.ssl."
            for node_id in cluster.nodes:
                alter(admin_of(node_id), node_id, **{prefix + name: text for name, text in settings.items()})

        wait_until(lambda: len(admin_of(1).list_topics(timeout=30).brokers) == 3, PATIENCE_S, "three brokers")
        topic = NewTopic("t", 3, 3, config={"min.insync.replicas": "2"})
        admin_of(1).create_topics([topic])["t"].result(PATIENCE_S)
        with Writers(where, both) as writers:
            writers.wait_for_more()
            trust_store.write_bytes(both.read_bytes())
            tell(**{"truststore.location": trust_store})
            writers.wait_for_more()
            write_store(key_store, new.issue())
            tell(**{"keystore.location": key_store})
            writers.wait_for_more()
            trust_store.write_bytes(new.certificate.read_bytes())
            tell(**{"truststore.location": trust_store})
            writers.wait_for_more()
            # Whoever connects to it now, and everybody to whom it connects, has the new stores.
            cluster.nodes[3].restart()
            writers.wait_for_more()
        assert not writers.errors
        everybody_follows(admin_of(1), where, both)
        assert len(admin_of(2, new.certificate).list_topics(timeout=30).brokers) == 3
        with pytest.raises(KafkaException):
            admin_of(2, old.certificate).list_topics(timeout=2)
        found = everything(where, both, sum(len(done) for done in writers.acknowledged.values()))
        for name, done in writers.acknowledged.items():
            assert not set(done) - found, name
        for node in cluster.nodes.values():
            assert "Traceback" not in node.log_text()
            assert "is used on" not in node.log_text()
            assert "is served on" not in node.log_text()
    finally:
        cluster.kill_all()


def everybody_follows(admin: AdminClient, where: str, ca: Path) -> None:
    """Each broker leads again what it led first, and the others fetch it from there: by connections made since then."""

    def leaders() -> set[int]:
        return {part.leader for part in admin.list_topics("t", timeout=30).topics["t"].partitions.values()}

    def are_elected() -> bool:
        # Those that lead already, or are not in sync yet, are no news.
        with contextlib.suppress(KafkaException):
            admin.elect_leaders(ElectionType.PREFERRED).result(PATIENCE_S)
        return len(leaders()) == 3

    wait_until(are_elected, PATIENCE_S, "each broker to lead a partition")
    producer = Producer(
        {"bootstrap.servers": where, "security.protocol": "SSL", "ssl.ca.location": str(ca), "acks": "all"}
    )
    failed: list[object] = []
    for partition in range(3):
        producer.produce("t", b"last", partition=partition, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert failed == [None] * 3


def everything(where: str, ca: Path, least: int) -> set[bytes]:
    """All values of the topic, as soon as there are so many."""
    consumer = Consumer(
        {
            "bootstrap.servers": where,
            "security.protocol": "SSL",
            "ssl.ca.location": str(ca),
            "group.id": "all",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(["t"])
    found: set[bytes] = set()

    def read() -> bool:
        for message in consumer.consume(500, 1.0):
            if message.error() is None:
                found.add(message.value() or b"")
        return len(found) >= least

    wait_until(read, PATIENCE_S, "everything to be read")
    consumer.close()
    return found
