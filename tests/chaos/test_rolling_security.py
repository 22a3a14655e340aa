"""A cluster goes from PLAINTEXT to SASL_SSL by rolling restarts, brokers and controllers; clients write all the while.

As Kafka's documentation has it: listeners are added beside the old ones, then used between nodes, then the old ones are
closed; each step is one restart of one node after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.interop.process import HOST, free_ports, wait_until
from tests.support.certificates import Authority
from tests.support.cluster import Processes
from tests.support.librdkafka import close_or_leave

pytestmark = pytest.mark.long

PATIENCE_S = 240.0
PARTITIONS = 3
# What has to be acknowledged before the next step is taken.
AT_LEAST = 200
PASSWORD = "between-nodes"
LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="node" password="{PASSWORD}" user_node="{PASSWORD}" user_alice="alices";'
)


class Writer:
    """Writes numbers until it is told to stop, and knows which were acknowledged."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self.acknowledged: list[bytes] = []
        self.errors: list[str] = []
        self._name = name
        self._producer = Producer({**settings, "enable.idempotence": True, "message.timeout.ms": 180_000})
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)
        self._producer.flush(PATIENCE_S)

    def _run(self) -> None:
        number = 0
        while not self._over.is_set():
            value = f"{self._name}-{number}".encode()
            self._producer.produce("t", value, key=value, on_delivery=self._delivered)
            number += 1
            self._producer.poll(0.005)

    def _delivered(self, error: object, message: Any) -> None:
        if error is None:
            self.acknowledged.append(message.value())
        else:
            self.errors.append(str(error))

    def wait_for_more(self) -> None:
        before = len(self.acknowledged)
        wait_until(lambda: len(self.acknowledged) >= before + AT_LEAST, PATIENCE_S, "writes to go on")


def test_from_plaintext_to_sasl_ssl_under_load(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    identity = authority.issue()
    key_store = tmp_path / "node.pem"
    key_store.write_bytes(identity.key.read_bytes() + identity.certificate.read_bytes())
    cluster = Processes(tmp_path, combined=3, settings={"default.replication.factor": 3})
    secured = dict(zip(cluster.nodes, free_ports(3), strict=True))
    controllers = dict(zip(cluster.nodes, free_ports(3), strict=True))
    common: dict[str, object] = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL,QUORUM:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        **{f"listener.name.{name}.plain.sasl.jaas.config": LOGIN for name in ("secure", "quorum")},
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": key_store,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.certificate,
    }
    secure_voters = ",".join(f"{node}@{HOST}:{port}" for node, port in controllers.items())
    plain = {"bootstrap.servers": cluster.bootstrap_servers}
    secure = {
        "bootstrap.servers": ",".join(f"{HOST}:{port}" for port in secured.values()),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.certificate),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "alices",
    }

    def roll(settings: Mapping[str, object], by: Mapping[str, Any], *listeners: str) -> None:
        for node_id, node in cluster.nodes.items():
            ports = {
                "PLAINTEXT": node.wanted_port,
                "SECURE": secured[node_id],
                "CONTROLLER": node.controller_port,
                "QUORUM": controllers[node_id],
            }
            opened = ",".join(f"{name}://{HOST}:{ports[name]}" for name in listeners)
            node.overrides = {**node.overrides, **common, **settings, "listeners": opened}
            node.restart()
            wait_until(lambda: in_sync(by), PATIENCE_S, f"everything to be in sync after {node.kind}")

    with cluster:
        admin = AdminClient(plain)
        topic = NewTopic("t", PARTITIONS, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])["t"].result(PATIENCE_S)
        with Writer("plain", plain) as old:
            old.wait_for_more()
            both = ("PLAINTEXT", "SECURE", "CONTROLLER", "QUORUM")
            names = {
                "controller.listener.names": "CONTROLLER,QUORUM",
                "inter.broker.listener.name": "PLAINTEXT",
            }
            roll(names, plain, *both)
            old.wait_for_more()
            names = {"controller.listener.names": "QUORUM,CONTROLLER", "inter.broker.listener.name": "SECURE"}
            roll({**names, "controller.quorum.voters": secure_voters}, plain, *both)
            old.wait_for_more()
            with Writer("secure", secure) as new:
                new.wait_for_more()
                old.stop()
                names = {"controller.listener.names": "QUORUM", "inter.broker.listener.name": "SECURE"}
                roll(names, secure, "SECURE", "QUORUM")
                new.wait_for_more()
        assert not old.errors + new.errors
        found = everything(secure)
        for writer in (old, new):
            assert set(writer.acknowledged) <= found.keys()
        assert [value for value, times in found.items() if times > 1] == []
        for node in cluster.nodes.values():
            assert PASSWORD not in node.log_text()


def in_sync(settings: Mapping[str, Any]) -> bool:
    shown = AdminClient(dict(settings)).list_topics("t", timeout=30).topics["t"].partitions.values()
    return len(shown) == PARTITIONS and all(len(each.isrs) == 3 for each in shown)


def everything(settings: Mapping[str, Any]) -> dict[bytes, int]:
    """All values of the topic up to its end, and how often each is there."""
    consumer = Consumer(
        {**settings, "group.id": "all", "auto.offset.reset": "earliest", "enable.partition.eof": True}
    )
    consumer.subscribe(["t"])
    found: dict[bytes, int] = {}
    ended: set[int] = set()

    def read() -> bool:
        for message in consumer.consume(1000, 1.0):
            if message.error() is None:
                found[message.value()] = found.get(message.value(), 0) + 1
            elif message.error().code() == -191:  # _PARTITION_EOF
                ended.add(message.partition())
        return len(ended) == PARTITIONS

    wait_until(read, PATIENCE_S, "the end of every partition")
    close_or_leave(consumer)
    return found
