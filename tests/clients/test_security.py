"""Other people's clients on listeners with TLS and SASL, and what becomes of those who may not come in."""

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka.errors
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from tests.interop.ottla_node import OTTLA, OttlaNode
from tests.interop.process import HOST, free_ports, wait_until
from tests.support.certificates import Authority, Identity
from tests.support.cluster import Processes

pytestmark = pytest.mark.xdist_group("security")

PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
USERS = {"admin": "admin-secret", "alice": "alice-secret"}
SCRAM_PASSWORD = "scram-secret"
PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PATIENCE_S = 120.0
SESSION_MS = 8_000
ENDED = "has ended, and it has not proved again"


def plain_jaas() -> str:
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    return f'{PLAIN_LOGIN} required username="admin" password="admin-secret" {users};'


class Secured(NamedTuple):
    """A node with a listener of each protocol, and what its clients need."""

    node: OttlaNode
    addresses: dict[str, str]
    authority: Authority
    client: Identity
    stranger: Identity


def stores(authority: Authority, identity: Identity, where: Path) -> dict[str, object]:
    """A node's key and whom it trusts, as PEM files."""
    key_store = where / "node.pem"
    key_store.write_bytes(identity.key.read_bytes() + identity.certificate.read_bytes())
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": key_store,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.certificate,
    }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    where = tmp_path_factory.mktemp("secured")
    authority, foreign = Authority(where / "ca"), Authority(where / "foreign", "Foreign CA")
    ports = dict(zip(PROTOCOLS, free_ports(len(PROTOCOLS)), strict=True))
    listeners = ",".join(f"{protocol}://{HOST}:{port}" for protocol, port in ports.items())
    jaas = {
        f"listener.name.{protocol.lower()}.plain.sasl.jaas.config": plain_jaas()
        for protocol in PROTOCOLS
        if "SASL" in protocol
    }
    node = OttlaNode(
        where / "data",
        {
            "listeners": f"PLAINTEXT://{HOST}:0,CONTROLLER://{HOST}:0,{listeners}",
            "listener.security.protocol.map": ",".join(
                (
                    "CONTROLLER:PLAINTEXT",
                    *(f"{protocol}:{protocol}" for protocol in ("PLAINTEXT", *PROTOCOLS)),
                )
            ),
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.ssl.ssl.client.auth": "required",
            "connection.failed.authentication.delay.ms": 10,
            "offsets.topic.num.partitions": 3,
            "group.initial.rebalance.delay.ms": 0,
            **stores(authority, authority.issue(), where),
            **jaas,
        },
    )
    credentials = [
        word
        for mechanism in MECHANISMS[1:]
        for word in ("--add-scram", f"{mechanism}=[name=scram,password={SCRAM_PASSWORD}]")
    ]
    command = [str(OTTLA), "storage", "format", "--data-dir", str(node.data_dir), *credentials]
    subprocess.run(command, check=True, capture_output=True, env=node.environment())
    with node:
        addresses = {protocol: f"{HOST}:{port}" for protocol, port in ports.items()}
        yield Secured(node, addresses, authority, authority.issue("alice"), foreign.issue("mallory"))
    assert "Traceback" not in node.log_text()


# ---- who may come in ------------------------------------------------------------------------------------------


def librdkafka(secured: Secured, protocol: str, mechanism: str, user: str, password: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": secured.addresses[protocol],
        "security.protocol": protocol,
        "ssl.ca.location": str(secured.authority.certificate),
    }
    if protocol == "SSL":
        settings |= {
            "ssl.certificate.location": str(secured.client.certificate),
            "ssl.key.location": str(secured.client.key),
        }
    else:
        settings |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
    return settings


def kafka_python(secured: Secured, protocol: str, mechanism: str, user: str, password: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap_servers": secured.addresses[protocol],
        "security_protocol": protocol,
        "ssl_cafile": str(secured.authority.certificate),
    }
    if protocol == "SSL":
        settings |= {
            "ssl_certfile": str(secured.client.certificate),
            "ssl_keyfile": str(secured.client.key),
        }
    else:
        settings |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": password,
        }
    return settings


WAYS = [
    pytest.param(protocol, mechanism, id=f"{protocol}-{mechanism}")
    for protocol in PROTOCOLS
    for mechanism in (MECHANISMS if "SASL" in protocol else ("",))
]


def login_of(mechanism: str) -> tuple[str, str]:
    return ("scram", SCRAM_PASSWORD) if mechanism.startswith("SCRAM") else ("alice", USERS["alice"])


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_librdkafka_writes_and_reads(secured: Secured, protocol: str, mechanism: str) -> None:
    settings = librdkafka(secured, protocol, mechanism, *login_of(mechanism))
    topic = f"rd-{protocol}-{mechanism}"
    producer = Producer({**settings, "enable.idempotence": True})
    # One message is larger than the shared buffer, many are small: frames in all kinds of records.
    values = [b"x" * 900_000, *(str(number).encode() for number in range(200))]
    for value in values:
        producer.produce(topic, value=value)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes | None] = []

    def read() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append(message.value())
        return len(found) == len(values)

    wait_until(read, PATIENCE_S, "all to be read")
    consumer.close()
    assert found == values


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_kafka_python_writes_and_reads(secured: Secured, protocol: str, mechanism: str) -> None:
    settings = kafka_python(secured, protocol, mechanism, *login_of(mechanism))
    topic = f"kp-{protocol}-{mechanism}"
    producer = KafkaProducer(**settings)
    for number in range(50):
        producer.send(topic, str(number).encode())
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=60_000)
    found = [next(consumer).value for _ in range(50)]
    consumer.close()
    assert found == [str(number).encode() for number in range(50)]


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_aiokafka_writes_and_reads(secured: Secured, protocol: str, mechanism: str) -> None:
    settings = kafka_python(secured, protocol, mechanism, *login_of(mechanism))
    certificates = {
        key: settings.pop(key) for key in ("ssl_cafile", "ssl_certfile", "ssl_keyfile") if key in settings
    }
    if protocol != "SASL_PLAINTEXT":
        identity = secured.client if "ssl_certfile" in certificates else None
        settings["ssl_context"] = secured.authority.client_context(identity)
    topic = f"aio-{protocol}-{mechanism}"

    async def write_and_read() -> list[bytes]:
        async with AIOKafkaProducer(**settings) as producer:
            for number in range(50):
                await producer.send_and_wait(topic, str(number).encode())
        async with AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest") as consumer:
            return [(await consumer.getone()).value for _ in range(50)]

    found = asyncio.run(asyncio.wait_for(write_and_read(), PATIENCE_S))
    assert found == [str(number).encode() for number in range(50)]


# ---- who may not ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", ["alice", "scram", "nobody"])
def test_a_wrong_password_is_refused(secured: Secured, mechanism: str, user: str) -> None:
    settings = kafka_python(secured, "SASL_PLAINTEXT", mechanism, user, "guess")
    del settings["ssl_cafile"]

    async def start() -> None:
        producer = AIOKafkaProducer(**settings)
        try:
            await asyncio.wait_for(producer.start(), PATIENCE_S)
        finally:
            await producer.stop()

    with pytest.raises(aiokafka.errors.KafkaError):
        asyncio.run(start())
    said = f"{mechanism} authentication failed: "
    wait_until(lambda: said in secured.node.log_text(), PATIENCE_S, said)
    assert "guess" not in secured.node.log_text()


def test_a_stranger_without_the_right_certificate_is_refused(secured: Secured) -> None:
    for identity in (None, secured.stranger):
        settings = librdkafka(secured, "SSL", "", "", "")
        for key, path in (("ssl.certificate.location", 0), ("ssl.key.location", 1)):
            if identity is None:
                del settings[key]
            else:
                settings[key] = str(identity[path])
        with pytest.raises(KafkaException):
            AdminClient(settings).list_topics(timeout=2)
    for why in ("peer did not return a certificate", "unable to get local issuer certificate"):
        said = f"the TLS handshake failed: {why}"
        wait_until(lambda said=said: said in secured.node.log_text(), PATIENCE_S, said)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_plain_client_is_refused_and_the_log_says_why(secured: Secured, protocol: str) -> None:
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": secured.addresses[protocol]}).list_topics(timeout=1)
    said = "it does not speak TLS" if "SSL" in protocol else "Unexpected Kafka request"
    wait_until(lambda: said in secured.node.log_text(), PATIENCE_S, "the line that says why")


# ---- a cluster that speaks so with itself ---------------------------------------------------------------------


def test_three_nodes_speak_tls_and_sasl_with_one_another(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    settings: dict[str, object] = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:SASL_SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        # Sessions end while it is looked: nodes prove again who they are.
        "connections.max.reauth.ms": SESSION_MS,
        "default.replication.factor": 3,
        "min.insync.replicas": 3,
        **{
            f"listener.name.{name}.plain.sasl.jaas.config": plain_jaas()
            for name in ("plaintext", "controller")
        },
        **stores(authority, authority.issue(), tmp_path),
    }
    cluster = Processes(tmp_path, combined=3, settings=settings)
    client = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.certificate),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": USERS["alice"],
    }
    try:
        for node in cluster.nodes.values():
            node.launch()
        for node in cluster.nodes.values():
            wait_until(node._ready_or_dead, PATIENCE_S, f"{node.kind} to serve")
        where = ",".join(f"{HOST}:{node.wanted_port}" for node in cluster.nodes.values())
        admin = AdminClient({**client, "bootstrap.servers": where})
        wait_until(lambda: len(admin.list_topics(timeout=30).brokers) == 3, PATIENCE_S, "three brokers")
        admin.create_topics([NewTopic("t", 3, 3)])["t"].result(PATIENCE_S)
        producer = Producer({**client, "bootstrap.servers": where, "acks": "all"})
        failed: list[object] = []

        def write(count: int) -> Callable[[], bool]:
            def look() -> bool:
                for _ in range(count):
                    producer.produce("t", value=b"v" * 100, on_delivery=lambda error, _: failed.append(error))
                producer.flush(30)
                errors = [error for error in failed if error is not None]
                failed.clear()
                return not errors

            return look

        wait_until(write(100), PATIENCE_S, "writes to all three")
        # For longer than two sessions: clients, followers and heartbeats go on.
        until = time.monotonic() + 2.5 * SESSION_MS / 1000
        while time.monotonic() < until:
            wait_until(write(100), PATIENCE_S, "writes after sessions have ended")
        logs = [node.log_text() for node in cluster.nodes.values()]
        assert not any("authentication failed" in log or "Traceback" in log for log in logs)
        # A node that had no processor for a tenth of a session may be late, and begins a new connection. A kind of
        # connection that does not prove again is late at both ends of sessions, between each two nodes.
        assert sum(log.count(ENDED) for log in logs) <= len(logs)
    finally:
        cluster.kill_all()
