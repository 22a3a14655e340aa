"""GSSAPI with MIT's KDC: Ottla's own client, kafka-python and Java's tools log in, and strangers do not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.interop.apache import run_tool
from tests.interop.kdc import REALM, Kdc, require_kerberos
from tests.interop.ottla_node import OTTLA, OttlaNode
from tests.interop.process import HOST, free_ports, wait_until

from ottla.client import Admin, Consumer, Producer
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition

pytestmark = pytest.mark.interop

MODULE = "com.sun.security.auth.module.Krb5LoginModule"
PATIENCE_S = 60.0


def jaas(keytab: Path, principal: str) -> str:
    return (
        f'{MODULE} required useKeyTab=true storeKey=true keyTab="{keytab}" principal="{principal}@{REALM}";'
    )


class Secured(NamedTuple):
    kdc: Kdc
    node: OttlaNode
    address: str
    alice: Path

    def settings(self, keytab: Path | None = None, principal: str = "alice") -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "sasl.jaas.config": jaas(keytab or self.alice, principal),
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    package = require_kerberos()
    where = tmp_path_factory.mktemp("kerberos")
    port, controller = free_ports(2)
    with pytest.MonkeyPatch.context() as patch, Kdc(where / "kdc") as kdc:
        for name, value in kdc.environment().items():
            patch.setenv(name, value)
        patch.setattr(sys, "path", [*sys.path, str(package)])
        broker = kdc.keytab("kafka/localhost")
        keys = jaas(broker, "kafka/localhost")
        node = OttlaNode(
            where / "data",
            {
                # Between nodes too: the broker logs in to its own controller.
                "listeners": f"PLAINTEXT://{HOST}:0,CONTROLLER://localhost:{controller},IN://localhost:{port}",
                "listener.security.protocol.map": (
                    "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,IN:SASL_PLAINTEXT"
                ),
                "inter.broker.listener.name": "IN",
                "sasl.enabled.mechanisms": "GSSAPI",
                "sasl.kerberos.service.name": "kafka",
                "sasl.kerberos.principal.to.local.rules": "RULE:[1:$1](bo.*)s/b/B/,DEFAULT",
                "connection.failed.authentication.delay.ms": 10,
                **{f"listener.name.{name}.gssapi.sasl.jaas.config": keys for name in ("in", "controller")},
            },
            env={"PYTHONPATH": f"{package}:{os.environ.get('PYTHONPATH', '')}"},
        )
        with node:
            yield Secured(kdc, node, f"localhost:{port}", kdc.keytab("alice"))
        assert "Traceback" not in node.log_text()


def test_our_own_client(secured: Secured) -> None:
    with Producer(secured.settings()) as producer:
        producer.send("own", b"v").result(PATIENCE_S * 1000)
    with Consumer({**secured.settings(), "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition("own", 0)])
        (records,) = consumer.poll(PATIENCE_S * 1000).values()
    assert [record.value for record in records] == [b"v"]


def test_by_the_tickets_of_kinit(secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = f"FILE:{tmp_path}/cache"
    subprocess.run(
        ["kinit", "-k", "-t", str(secured.alice), "-c", cache, "alice"], check=True, timeout=PATIENCE_S
    )
    monkeypatch.setenv("KRB5CCNAME", cache)
    settings = secured.settings()
    del settings["sasl.jaas.config"]
    with Admin(settings) as admin:
        assert admin.list_topics() is not None


def test_kafka_python(secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    cache = f"FILE:{tmp_path}/cache"
    subprocess.run(
        ["kinit", "-k", "-t", str(secured.alice), "-c", cache, "alice"], check=True, timeout=PATIENCE_S
    )
    monkeypatch.setenv("KRB5CCNAME", cache)
    settings = {
        "bootstrap_servers": secured.address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_service_name": "kafka",
    }
    producer = KafkaProducer(**settings)
    producer.send("kp", b"v")
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer("kp", **settings, auto_offset_reset="earliest", consumer_timeout_ms=60_000)
    assert next(consumer).value == b"v"
    consumer.close()


def test_javas_tools(secured: Secured, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in secured.settings().items()))
    done = run_tool(
        "TopicCommand",
        *("--bootstrap-server", secured.address, "--command-config", str(file)),
        *("--create", "--topic", "from-java", "--partitions", "1", "--replication-factor", "1"),
        jvm=["-Xmx256m", f"-Djava.security.krb5.conf={secured.kdc.config}"],
    )
    assert "Created topic from-java" in done.stdout


def refused(settings: dict[str, Any]) -> str:
    with pytest.raises(KafkaError) as raised, Admin({**settings, "bootstrap.timeout.ms": 3_000}):
        pass
    return str(raised.value)


def test_strangers_are_refused_and_the_log_says_why(secured: Secured, tmp_path: Path) -> None:
    mallory = secured.kdc.keytab("mallory/host/more")
    assert "GSSAPI" in refused(secured.settings(mallory, "mallory/host/more"))
    wait_until(
        lambda: "GSSAPI authentication failed: Malformed Kerberos name" in secured.node.log_text(),
        PATIENCE_S,
        "the line that says why",
    )
    lost = secured.kdc.keytab("lost")
    secured.kdc.delete("lost")
    assert "Kerberos login failed" in refused(secured.settings(lost, "lost"))
    empty = tmp_path / "no.keytab"
    assert "Kerberos login failed" in refused(secured.settings(empty, "alice"))


def test_a_node_without_its_key_table_does_not_start(secured: Secured, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    keys = jaas(tmp_path / "no.keytab", "kafka/localhost")
    file.write_text(
        f"listeners=IN://{HOST}:0,CONTROLLER://{HOST}:0\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,IN:SASL_PLAINTEXT\n"
        "inter.broker.listener.name=IN\ncontroller.listener.names=CONTROLLER\n"
        "sasl.enabled.mechanisms=GSSAPI\nsasl.kerberos.service.name=kafka\n"
        f"listener.name.in.gssapi.sasl.jaas.config={keys}\n"
    )
    done = subprocess.run(
        [str(OTTLA), "serve", "-c", str(file), "-d", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        env=secured.node.environment(),
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "listener IN: GSSAPI: Kerberos login failed" in done.stderr
    assert "Traceback" not in done.stderr
