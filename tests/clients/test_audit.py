"""The audit log of a node that real clients use: logins, denials and changes, and no secret in any line."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaProducer
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import HOST, free_ports, wait_until
from tests.support.certificates import Authority, Identity
from tests.support.judged_broker import JudgedBroker, rule

from ottla.client.admin.types import NewTopic as OurTopic
from ottla.client.admin.types import UserScramCredentialUpsertion
from ottla.client.blocking import Admin
from ottla.security.acls import AclOperation as Operation
from ottla.security.acls import ResourceType as Judged
from ottla.testing import Cluster
from ottla.wire.messages.groups.classic import HeartbeatRequest

pytestmark = pytest.mark.xdist_group("security")

PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
PASSWORD, GUESS, BROKER_SECRET, SCRAM = "alice-secret", "wrong-guess", "store-secret", "scram-secret"
EVES = "eve-secret"
SECRETS = (PASSWORD, GUESS, BROKER_SECRET, SCRAM, EVES)
PATIENCE_S = 60.0


class Audited(NamedTuple):
    node: OttlaNode
    sasl: str
    tls: str
    path: Path
    authority: Authority
    client: Identity

    def lines(self, **wanted: Any) -> list[dict[str, Any]]:
        return lines_of(self.path, **wanted)

    def line(self, **wanted: Any) -> dict[str, Any]:
        """The first such line, as soon as it is there."""
        wait_until(lambda: bool(self.lines(**wanted)), PATIENCE_S, f"a line with {wanted}")
        return self.lines(**wanted)[0]

    def librdkafka(self, password: str = PASSWORD, user: str = "alice") -> dict[str, Any]:
        return {
            "bootstrap.servers": self.sasl,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
        }


def lines_of(path: Path, **wanted: Any) -> list[dict[str, Any]]:
    """Whole lines: the last may be on its way."""
    found = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    return [each for each in found if wanted.items() <= each.items()]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    where = tmp_path_factory.mktemp("audited")
    authority = Authority(where / "ca")
    own, client = authority.issue(), authority.issue("bob")
    store = where / "node.pem"
    store.write_bytes(own.key.read_bytes() + own.certificate.read_bytes())
    sasl, tls = free_ports(2)
    jaas = f'{PLAIN_LOGIN} required username="admin" password="x" user_alice="{PASSWORD}" user_eve="{EVES}";'
    node = OttlaNode(
        where / "data",
        {
            "listeners": f"PLAINTEXT://{HOST}:0,CONTROLLER://{HOST}:0,SASL://{HOST}:{sasl},TLS://{HOST}:{tls}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": jaas,
            "listener.name.tls.ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": authority.certificate,
            "connection.failed.authentication.delay.ms": 1,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:alice",
            "allow.everyone.if.no.acl.found": "true",
            "ottla.audit.log": where / "audit.log",
        },
    )
    with node:
        yield Audited(node, f"{HOST}:{sasl}", f"{HOST}:{tls}", where / "audit.log", authority, client)
    assert "Traceback" not in node.log_text()
    text = (where / "audit.log").read_text()
    assert text.endswith("\n")
    for secret in SECRETS:
        assert secret not in text
    assert (where / "audit.log").stat().st_mode & 0o777 == 0o600


def test_a_login_of_librdkafka_and_its_changes(audited: Audited) -> None:
    admin = AdminClient(audited.librdkafka())
    admin.create_topics([NewTopic("orders", 2, 1, config={"retention.ms": "1000"})])["orders"].result(60)
    line = audited.line(event="login", result="ok", mechanism="PLAIN")
    assert (line["principal"], line["listener"], line["address"]) == ("User:alice", "SASL", HOST)
    made = audited.line(event="change", api="CreateTopics", resource="orders")
    assert (made["principal"], made["address"], made["listener"]) == ("User:alice", HOST, "SASL")
    assert (made["result"], made["client_id"]) == ("NONE", "rdkafka")
    assert made["details"] == {
        "partitions": 2,
        "replication_factor": 1,
        "configs": {"retention.ms": "1000"},
    }
    with pytest.raises(KafkaException):
        admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(60)
    assert (
        audited.line(event="change", resource="orders", result="TOPIC_ALREADY_EXISTS")["api"]
        == "CreateTopics"
    )
    entry = ConfigEntry("retention.ms", "2000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(60)
    changed = audited.line(event="change", api="IncrementalAlterConfigs", resource="orders")
    assert changed["details"] == {"configs": [{"op": "SET", "name": "retention.ms", "value": "2000"}]}
    admin.delete_topics(["orders"])["orders"].result(60)
    assert audited.line(event="change", api="DeleteTopics", resource="orders")["result"] == "NONE"


def test_a_rule_and_whom_it_denies(audited: Audited) -> None:
    admin = AdminClient(audited.librdkafka())
    admin.create_topics([NewTopic("closed", 1, 1)])["closed"].result(60)
    closed = (ResourceType.TOPIC, "closed", ResourcePatternType.LITERAL, "User:eve", "*")
    rules = [
        AclBinding(*closed, AclOperation.DESCRIBE, AclPermissionType.ALLOW),
        AclBinding(*closed, AclOperation.WRITE, AclPermissionType.DENY),
    ]
    for done in admin.create_acls(rules).values():
        done.result(60)
    told = audited.line(event="change", api="CreateAcls", resource="closed")
    assert (told["principal"], told["result"]) == ("User:alice", "NONE")
    assert told["details"]["rule"]["principal"] == "User:eve"
    refused: list[Any] = []
    producer = Producer({**audited.librdkafka(EVES, "eve"), "enable.idempotence": False})
    producer.produce("closed", b"x", on_delivery=lambda error, _: refused.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert refused[0].name() == "TOPIC_AUTHORIZATION_FAILED"
    line = audited.line(event="denial", principal="User:eve", operation="WRITE")
    assert (line["resource_type"], line["resource"], line["api"]) == ("TOPIC", "closed", "Produce")
    assert "DENY WRITE" in line["why"]


def test_a_password_is_not_shown(audited: Audited) -> None:
    admin = AdminClient(audited.librdkafka())
    entry = ConfigEntry("ssl.keystore.password", BROKER_SECRET, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    with pytest.raises(KafkaException):
        admin.incremental_alter_configs([resource])[resource].result(60)
    told = audited.line(event="change", api="IncrementalAlterConfigs", resource_type="BROKER")
    assert told["details"]["configs"][0]["value"] == "[hidden]"
    assert told["result"] != "NONE"


def test_our_own_client_makes_a_user(audited: Audited) -> None:
    with Admin(bootstrap_servers=audited.node.address) as admin:
        admin.alter_user_scram_credentials([UserScramCredentialUpsertion("carol", SCRAM, "SCRAM-SHA-256")])
    told = audited.line(event="change", api="AlterUserScramCredentials")
    assert (told["principal"], told["resource"], told["result"]) == ("User:ANONYMOUS", "carol", "NONE")
    assert told["details"] == {"mechanism": "SCRAM-SHA-256", "iterations": 4096}


def test_guesses_are_counted(audited: Audited) -> None:
    errors: list[Any] = []
    admin = AdminClient({**audited.librdkafka(GUESS), "error_cb": errors.append, "reconnect.backoff.ms": 0})

    def tried_often() -> bool:
        admin.poll(0.1)
        return len(errors) >= 3

    wait_until(tried_often, PATIENCE_S, "three refusals")
    line = audited.line(event="login", result="failed", mechanism="PLAIN")
    assert line["principal"] is None
    assert line["why"] == "wrong password or unknown user 'alice'"
    # One line of them until the minute is over, or the node stops.
    assert len(audited.lines(event="login", result="failed", mechanism="PLAIN")) == 1


def test_kafka_python_by_certificate(audited: Audited) -> None:
    producer = KafkaProducer(
        bootstrap_servers=audited.tls,
        security_protocol="SSL",
        ssl_cafile=str(audited.authority.certificate),
        ssl_certfile=str(audited.client.certificate),
        ssl_keyfile=str(audited.client.key),
    )
    producer.send("by-certificate", b"x").get(60)
    producer.close()
    line = audited.line(event="login", result="ok", mechanism="TLS")
    assert (line["listener"], line["address"]) == ("TLS", HOST)
    assert "CN=bob" in line["principal"]
    made = audited.line(event="change", api="CreateTopics", resource="by-certificate")
    assert (made["principal"], made["on_demand"], made["result"]) == (line["principal"], True, "NONE")
    with pytest.raises(KafkaException):
        AdminClient(
            {
                "bootstrap.servers": audited.tls,
                "security.protocol": "SSL",
                "ssl.ca.location": str(audited.authority.certificate),
            }
        ).list_topics(timeout=2)
    assert "certificate" in audited.line(event="login", result="failed", mechanism="TLS")["why"]


def test_aiokafka_asks_for_a_mechanism_that_is_not_there(audited: Audited) -> None:
    async def start() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=audited.sasl,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-256",
            sasl_plain_username="alice",
            sasl_plain_password=GUESS,
        )
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(Exception, match=r".*"):
        asyncio.run(start())
    assert (
        "'SCRAM-SHA-256', which is not enabled"
        in audited.line(event="login", result="failed", mechanism=None)["why"]
    )


# ---- other nodes ------------------------------------------------------------------------------------------------


def test_denials_are_told_with_the_api_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    settings = {"ottla.audit.log": str(path)}
    with JudgedBroker(tmp_path / "data", {"open": 1, "closed": 1}, settings) as judged:
        address = judged._broker.bootstrap_servers
        judged.may(
            rule(Operation.WRITE, Judged.TOPIC, "open"),
            rule(Operation.DESCRIBE, Judged.TOPIC, "closed"),
        )
        refused: list[str] = []
        for topic in ("open", "closed", "closed"):
            # Each time another: librdkafka remembers what it may not.
            producer = Producer({"bootstrap.servers": address, "enable.idempotence": False, "linger.ms": 0})
            producer.produce(
                topic, b"x", on_delivery=lambda error, _: refused.append(str(error and error.name()))
            )
            assert producer.flush(PATIENCE_S) == 0
        assert refused == ["None", "TOPIC_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"]
        asked = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        for _ in range(3):
            assert judged.ask(asked, 4).error_code
    denials = lines_of(path, event="denial")
    produce = [line for line in denials if line["api"] == "Produce"]
    assert [(line["resource"], line["operation"], line.get("repeated")) for line in produce] == [
        ("closed", "WRITE", None),
        ("closed", "WRITE", 1),
    ]
    assert produce[0]["principal"] == "User:ANONYMOUS"
    assert produce[0]["address"] == HOST
    assert produce[0]["why"]
    heartbeats = [line for line in denials if line["api"] == "Heartbeat"]
    assert [(line["resource_type"], line["resource"], line.get("repeated")) for line in heartbeats] == [
        ("GROUP", "g", None),
        ("GROUP", "g", 2),
    ]


def test_a_change_is_told_where_it_was_asked_and_where_it_was_decided(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with (
        Cluster(brokers=1, controllers=1, settings={"ottla.audit.log": str(path)}) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        admin.create_topics([OurTopic("t", 1)])
    told = lines_of(path, event="change", api="CreateTopics", resource="t")
    assert {(line["node"], line.get("forwarded", False), line["result"]) for line in told} == {
        (101, False, "NONE"),
        (1, True, "NONE"),
    }
    assert {line["address"] for line in told} == {HOST}


def test_a_node_whose_audit_log_cannot_be_written_does_not_start(tmp_path: Path) -> None:
    node = OttlaNode(tmp_path / "data", {"ottla.audit.log": tmp_path / "missing" / "audit.log"})
    node.launch()
    assert node.wait(PATIENCE_S) == 2
    assert "missing/audit.log cannot be written: No such file or directory" in node.log_text()
    assert "Traceback" not in node.log_text()


def test_standard_output(tmp_path: Path) -> None:
    node = OttlaNode(tmp_path / "data", {"ottla.audit.log": "stdout"})
    with node, Admin(bootstrap_servers=node.address) as admin:
        admin.create_topics([OurTopic("t", 1)])
    line = next(line for line in node.log_text().splitlines() if line.startswith("{"))
    assert json.loads(line)["resource"] == "t"
