"""Other people's clients on a cluster of three nodes with SASL_SSL everywhere and ACLs: what they may, and what not.

Rules are changed by `ottla acl` and by the clients themselves. A broker hears of a change a moment after the controller
has decided it: who asks another broker waits for it.
"""

import asyncio
import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import aiokafka.errors
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, ResourcePattern
from kafka.admin import ACLResourcePatternType as PatternType
from kafka.admin import ResourceType as PythonResourceType
from kafka.errors import TopicAuthorizationFailedError
from tests.clients.test_security import PLAIN_LOGIN, stores
from tests.interop.ottla_node import OTTLA
from tests.interop.process import HOST, wait_until
from tests.support.certificates import Authority
from tests.support.cluster import Processes

pytestmark = pytest.mark.xdist_group("acls")

USERS = ("admin", "node", "alice", "bob", "carol", "dora")
PATIENCE_S = 120.0


def password(user: str) -> str:
    return f"{user}-secret"


class Guarded:
    """The cluster, and what its clients need."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.authority = Authority(where / "ca")
        users = " ".join(f'user_{name}="{password(name)}"' for name in USERS)
        login = f'{PLAIN_LOGIN} required username="node" password="{password("node")}" {users};'
        settings: dict[str, object] = {
            "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:SASL_SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.plaintext.plain.sasl.jaas.config": login,
            "listener.name.controller.plain.sasl.jaas.config": login,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin;User:node",
            "default.replication.factor": 3,
            "min.insync.replicas": 2,
            "offsets.topic.replication.factor": 3,
            "offsets.topic.num.partitions": 3,
            "transaction.state.log.replication.factor": 3,
            "transaction.state.log.num.partitions": 3,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            **stores(self.authority, self.authority.issue(), where),
        }
        self.cluster = Processes(where, combined=3, settings=settings)

    @property
    def address(self) -> str:
        return ",".join(f"{HOST}:{node.wanted_port}" for node in self.cluster.nodes.values())

    def start(self) -> None:
        for node in self.cluster.nodes.values():
            node.launch()
        for node in self.cluster.nodes.values():
            wait_until(node._ready_or_dead, PATIENCE_S, f"{node.kind} to serve")
        admin = AdminClient(self.librdkafka("admin"))
        wait_until(lambda: len(admin.list_topics(timeout=30).brokers) == 3, PATIENCE_S, "three brokers")

    def librdkafka(self, user: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.certificate),
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password(user),
        }

    def kafka_python(self, user: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.address.split(","),
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(self.authority.certificate),
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": user,
            "sasl_plain_password": password(user),
        }

    def aiokafka(self, user: str) -> dict[str, Any]:
        settings = self.kafka_python(user)
        del settings["ssl_cafile"]
        return {**settings, "ssl_context": self.authority.client_context(None)}

    def ottla(self, *words: str, user: str = "admin", code: int = 0) -> str:
        """A command of ours, as somebody; what it has printed."""
        config = self.where / f"{user}.properties"
        config.write_text(
            "".join(
                f"{key}={value}\n"
                for key, value in {
                    "bootstrap.servers": self.address,
                    "security.protocol": "SASL_SSL",
                    "ssl.truststore.type": "PEM",
                    "ssl.truststore.location": self.authority.certificate,
                    "sasl.mechanism": "PLAIN",
                    "sasl.username": user,
                    "sasl.password": password(user),
                }.items()
            )
        )
        command = [str(OTTLA), *words, "--command-config", str(config)]
        environment = next(iter(self.cluster.nodes.values())).environment()
        run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)
        assert run.returncode == code, run.stderr
        assert "Traceback" not in run.stderr
        return run.stdout

    def topic(self) -> str:
        name = f"t-{uuid.uuid4().hex[:8]}"
        admin = AdminClient(self.librdkafka("admin"))
        admin.create_topics([NewTopic(name, 3, 3)])[name].result(PATIENCE_S)
        return name


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("guarded"))
    try:
        made.start()
        yield made
        for node in made.cluster.nodes.values():
            log = node.log_text()
            assert "Traceback" not in log
            assert "is not taken for a node" not in log
            assert not any(password(user) in log for user in USERS)
    finally:
        made.cluster.kill_all()


def delivered(producer: Producer, topic: str, value: bytes) -> KafkaError | None:
    """The error of one record, if any."""
    outcome: list[KafkaError | None] = []
    producer.produce(topic, value, on_delivery=lambda error, _: outcome.append(error))
    producer.flush(PATIENCE_S)
    return outcome[0]


def eventually(look: Callable[[], bool], what: str) -> None:
    """True on every broker after a moment; what clients raise until then is that they may not yet."""

    def tried() -> bool:
        with suppress(KafkaException, aiokafka.errors.KafkaError, TopicAuthorizationFailedError):
            return look()
        return False

    wait_until(tried, PATIENCE_S, what)


def test_librdkafka_writes_and_reads_what_it_may(guarded: Guarded) -> None:
    topic, hidden = guarded.topic(), guarded.topic()
    settings = guarded.librdkafka("alice")
    mine = AdminClient(settings)
    assert not {topic, hidden} & set(mine.list_topics(timeout=30).topics)
    producer = Producer({**settings, "message.timeout.ms": 60_000})
    for name in (topic, f"{topic}-that-is-not-there"):
        error = delivered(producer, name, b"no")
        assert error is not None
        assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    guarded.ottla("acl", "add", "--user", "alice", "--producer", "--topic", topic)
    eventually(lambda: delivered(producer, topic, b"yes") is None, "alice to write")
    guarded.ottla("acl", "add", "--user", "alice", "--consumer", "--topic", topic, "--group", topic)
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes | None] = []

    def read() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append(message.value())
        return b"yes" in found

    eventually(read, "alice to read")
    consumer.commit(asynchronous=False)
    consumer.close()
    assert b"no" not in found
    # Topics that she may not describe are in no list, and match no pattern.
    eventually(lambda: topic in mine.list_topics(timeout=30).topics, "the topic to be listed")
    assert hidden not in mine.list_topics(timeout=30).topics
    # A right that is taken away is gone with the next request, of the same connection too.
    guarded.ottla("acl", "remove", "--user", "alice", "--op", "write", "--topic", topic)

    def refused() -> bool:
        error = delivered(producer, topic, b"late")
        return error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    wait_until(refused, PATIENCE_S, "alice to be refused")


def test_a_group_that_is_anothers(guarded: Guarded) -> None:
    topic = guarded.topic()
    guarded.ottla("acl", "add", "--user", "bob", "--op", "read", "--topic", topic)
    consumer = Consumer(
        {**guarded.librdkafka("bob"), "group.id": "not-bobs", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    codes: set[int] = set()

    def told() -> bool:
        try:
            message = consumer.poll(1.0)
        except KafkaException as error:
            codes.add(error.args[0].code())
        else:
            if message is not None and message.error() is not None:
                codes.add(message.error().code())
        return KafkaError.GROUP_AUTHORIZATION_FAILED in codes

    wait_until(told, PATIENCE_S, "bob to be told")
    consumer.close()
    # What he may read he may read without a group.
    reading = Consumer({**guarded.librdkafka("bob"), "group.id": "none", "enable.auto.commit": False})
    writer = Producer(guarded.librdkafka("admin"))
    assert delivered(writer, topic, b"v") is None
    reading.assign([TopicPartition(topic, number, 0) for number in range(3)])

    def read() -> bool:
        message = reading.poll(1.0)
        return message is not None and message.error() is None

    eventually(read, "bob to read")
    reading.close()


def test_transactions(guarded: Guarded) -> None:
    source, target = guarded.topic(), guarded.topic()
    group, transaction = f"{source}-group", f"{source}-tx"
    settings = guarded.librdkafka("carol")

    def begun() -> Producer:
        producer = Producer({**settings, "transactional.id": transaction})
        producer.init_transactions(60)
        return producer

    with pytest.raises(KafkaException) as refused:
        begun()
    assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    words = ["--user", "carol", "--producer", "--topic", target, "--transactional-id", transaction]
    guarded.ottla("acl", "add", *words)
    guarded.ottla("acl", "add", "--user", "carol", "--consumer", "--topic", source, "--group", group)
    made: list[Producer] = []

    def begin() -> bool:
        made.append(begun())
        return True

    eventually(begin, "carol to have a transactional id")
    producer = made[-1]
    assert delivered(Producer(guarded.librdkafka("admin")), source, b"1") is None
    consumer = Consumer(
        {**settings, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([source])
    messages: list[Any] = []

    def read() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            messages.append(message)
        return bool(messages)

    eventually(read, "carol to read")
    producer.begin_transaction()
    producer.produce(target, messages[0].value())
    positions = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 60)
    producer.commit_transaction(60)
    committed = {each.partition: each.offset for each in consumer.committed(positions, timeout=30)}
    assert 1 in committed.values()
    # Of a topic that she may not write to, nothing is in a transaction.
    producer.begin_transaction()
    assert delivered(producer, target, b"aborted") is None
    producer.produce(source, b"no")
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(60)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert refused.value.args[0].txn_requires_abort()
    producer.abort_transaction(60)
    consumer.close()


def test_what_is_forwarded_is_judged_for_its_sender(guarded: Guarded) -> None:
    """By every broker, of which at most one is the active controller."""
    prefix = f"d-{uuid.uuid4().hex[:6]}-"
    guarded.ottla("acl", "add", "--user", "dora", "--op", "create", "--topic", prefix, "--prefixed")
    for node_id, node in guarded.cluster.nodes.items():
        settings = {**guarded.librdkafka("dora"), "bootstrap.servers": f"{HOST}:{node.wanted_port}"}
        admin = AdminClient(settings)
        name = f"{prefix}{node_id}"
        eventually(
            lambda admin=admin, name=name: (
                admin.create_topics([NewTopic(name, 1, 3)])[name].result(30) is None
            ),
            f"dora to create {name}",
        )
        with pytest.raises(KafkaException) as refused:
            admin.create_topics([NewTopic(f"x{name}", 1, 3)])[f"x{name}"].result(30)
        assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        with pytest.raises(KafkaException) as refused:
            admin.delete_topics([name])[name].result(30)
        assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    listed = AdminClient(guarded.librdkafka("admin")).list_topics(timeout=30).topics
    assert {name for name in listed if prefix in name} == {f"{prefix}{number}" for number in (1, 2, 3)}


def test_librdkafka_changes_the_rules(guarded: Guarded) -> None:
    topic = f"{uuid.uuid4().hex[:8]}"
    binding = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.PREFIXED,
        "User:alice",
        "10.0.0.1",
        AclOperation.READ,
        AclPermissionType.DENY,
    )
    admin = AdminClient(guarded.librdkafka("admin"))
    assert admin.create_acls([binding])[binding].result(30) is None
    wanted = AclBindingFilter(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    eventually(lambda: admin.describe_acls(wanted).result(30) == [binding], "the rule to be shown")
    listed = json.loads(guarded.ottla("acl", "list", "--topic", topic, "--prefixed", "-o", "json"))
    assert [(each["principal"], each["permission"], each["host"]) for each in listed] == [
        ("User:alice", "DENY", "10.0.0.1")
    ]
    assert admin.delete_acls([wanted])[wanted].result(30) == [binding]
    other = AdminClient(guarded.librdkafka("alice"))
    with pytest.raises(KafkaException) as refused:
        other.create_acls([binding])[binding].result(30)
    assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
    # It takes an answer with an error for one without rules.
    assert other.describe_acls(wanted).result(30) == []


def test_kafka_python(guarded: Guarded) -> None:
    topic = guarded.topic()
    with closing(KafkaAdminClient(**guarded.kafka_python("admin"))) as admin:
        rules = [
            ACL(
                principal="User:bob",
                host="*",
                operation=operation,
                permission_type=ACLPermissionType.ALLOW,
                resource_pattern=ResourcePattern(kind, topic),
            )
            for operation, kind in (
                (ACLOperation.READ, PythonResourceType.TOPIC),
                (ACLOperation.WRITE, PythonResourceType.TOPIC),
                (ACLOperation.READ, PythonResourceType.GROUP),
            )
        ]
        assert not admin.create_acls(rules)["failed"]
    settings = guarded.kafka_python("bob")

    def write() -> bool:
        with closing(KafkaProducer(**settings)) as producer:
            producer.send(topic, b"1").get(30)
        return True

    eventually(write, "bob to write")
    consumer = KafkaConsumer(
        topic, **settings, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=60_000
    )
    assert next(iter(consumer)).value == b"1"
    consumer.close()
    with closing(KafkaAdminClient(**guarded.kafka_python("admin"))) as admin:
        wanted = ACLFilter(
            principal="User:bob",
            host=None,
            operation=ACLOperation.ANY,
            permission_type=ACLPermissionType.ANY,
            resource_pattern=ResourcePattern(PythonResourceType.TOPIC, topic, PatternType.LITERAL),
        )
        admin.delete_acls([wanted])

    def refused() -> bool:
        try:
            return not write()
        except TopicAuthorizationFailedError:
            return True

    wait_until(refused, PATIENCE_S, "bob to be refused")


def test_aiokafka(guarded: Guarded) -> None:
    topic = guarded.topic()
    settings = guarded.aiokafka("dora")

    async def write() -> None:
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"1")

    async def read() -> bytes:
        consumer = AIOKafkaConsumer(topic, **settings, group_id=topic, auto_offset_reset="earliest")
        async with consumer:
            return bytes((await consumer.getone()).value)

    with pytest.raises(aiokafka.errors.TopicAuthorizationFailedError):
        asyncio.run(asyncio.wait_for(write(), PATIENCE_S))
    guarded.ottla("acl", "add", "--user", "dora", "--producer", "--topic", topic)
    guarded.ottla("acl", "add", "--user", "dora", "--consumer", "--topic", topic, "--group", topic)
    eventually(lambda: asyncio.run(asyncio.wait_for(write(), PATIENCE_S)) is None, "dora to write")
    eventually(lambda: asyncio.run(asyncio.wait_for(read(), PATIENCE_S)) == b"1", "dora to read")


def test_explaining(guarded: Guarded) -> None:
    asked = ["acl", "explain", "--user", "alice", "--op", "write", "--topic", "explained"]
    said = guarded.ottla(*asked, code=1)
    assert "to add it: ottla acl add --user alice --op write --topic explained" in said
    guarded.ottla("acl", "add", "--user", "alice", "--op", "write", "--topic", "expl", "--prefixed")
    eventually(lambda: "PREFIXED 'expl'" in guarded.ottla(*asked), "the rule to be shown")
    guarded.ottla(*asked, user="alice", code=1)
    assert "CLUSTER_AUTHORIZATION_FAILED" not in guarded.ottla("acl", "list")
