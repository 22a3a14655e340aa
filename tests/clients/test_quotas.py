"""Client quotas by Ottla's admin client and by `ottla quota`, and what they do to clients."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.conftest import MakeTopic, Wait
from tests.clients.test_ottla_client_cli import Cli
from tests.support.raw_client import API_VERSIONS, Endpoint, RawClient

from ottla.client import Admin, ConfigChange, ConfigResource, Producer, ResourceType
from ottla.client.admin import types as admin_types
from ottla.client.admin.types import ANY_NAME, QuotaFilter, quota_entity
from ottla.model.errors import ErrorCode, KafkaError
from ottla.testing.broker import Broker


def name() -> str:
    return f"user-{uuid.uuid4().hex[:12]}"


@pytest.mark.three_nodes
def test_the_admin_client(address: str, in_step: Wait) -> None:
    user = name()
    own, clients = quota_entity(user=user), quota_entity(user=user, client_id=None)
    with Admin(bootstrap_servers=address) as admin:
        changes = {own: {"producer_byte_rate": 1024.0}, clients: {"request_percentage": 12.5}}
        assert admin.alter_client_quotas(changes) == {own: None, clients: None}
        in_step()
        assert admin.describe_client_quotas(QuotaFilter({"user": user})) == changes
        assert admin.describe_client_quotas(QuotaFilter({"user": user}, strict=True)) == {own: changes[own]}
        both = admin.describe_client_quotas(QuotaFilter({"user": user, "client-id": ANY_NAME}))
        assert both == {clients: changes[clients]}
        refused = admin.alter_client_quotas({own: {"producer_byte_rate": 0.0}})[own]
        assert refused is not None
        assert refused.code is ErrorCode.INVALID_REQUEST
        gone = {own: {"producer_byte_rate": None}, clients: {"request_percentage": None}}
        assert admin.alter_client_quotas(gone) == {own: None, clients: None}
        in_step()
        assert admin.describe_client_quotas(QuotaFilter({"user": user})) == {}


def test_the_command(address: str) -> None:
    cli, user = Cli(address), name()
    _, err = cli("quota", "set", "--user", user, "producer_byte_rate=1048576", "request_percentage=2.5")
    assert err == f"user {user}: producer_byte_rate=1048576 set, request_percentage=2.5 set\n"
    cli("quota", "set", "--user", user, "--default-client-id", "consumer_byte_rate=10")
    rows = json.loads(cli("quota", "list", "--user", user, "-o", "json")[0])
    assert rows == [
        {"client-id": None, "user": user, "key": "consumer_byte_rate", "value": 10},
        {"user": user, "key": "producer_byte_rate", "value": 1048576},
        {"user": user, "key": "request_percentage", "value": 2.5},
    ]
    table = [line.split() for line in cli("quota", "list", "--user", user)[0].splitlines()]
    assert [user, "<default>", "-", "consumer_byte_rate", "10"] in table
    strict = json.loads(cli("quota", "list", "--user", user, "--strict", "-o", "json")[0])
    assert len(strict) == 2
    _, err = cli("quota", "set", "--user", user, "producer_byte_rate=1", "--validate-only")
    assert "only validated" in err
    cli("quota", "delete", "--user", user, "producer_byte_rate")
    cli("quota", "delete", "--user", user, "--all")
    cli("quota", "delete", "--user", user, "--default-client-id", "--all")
    assert json.loads(cli("quota", "list", "--user", user, "-o", "json")[0]) == []
    _, err = cli("quota", "delete", "--user", user, "--all", code=1)
    assert "no such quota" in err
    cli("quota", "set", "--ip", "10.1.2.3", "connection_creation_rate=5")
    cli("quota", "delete", "--ip", "10.1.2.3", "--all")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("set", "producer_byte_rate=1"), 2, "whose quota?"),
        (("set", "--user", "u", "producer_byte_rate=many"), 2, "a quota is a number"),
        (("set", "--user", "u", "producer_byte_rate"), 2, "KEY=VALUE"),
        (("set", "--user", "u", "producer_byterate=1"), 2, "did you mean 'producer_byte_rate'?"),
        (("set", "--user", "u", "zzz=1"), 1, "Invalid configuration key zzz"),
        (("set", "--user", "u", "producer_byte_rate=0"), 1, "must be greater than 0"),
        (("set", "--user", "u", "producer_byte_rate=nan"), 1, "INVALID_REQUEST"),
        (("set", "--user", "u", "--default-user", "producer_byte_rate=1"), 2, "either --user or"),
        (("set", "--user", "", "producer_byte_rate=1"), 2, "needs a name"),
        (("set", "--ip", "10.0.0.1", "--user", "u", "producer_byte_rate=1"), 2, "--ip goes with neither"),
        (("delete", "--user", "u"), 2, "what is to be deleted?"),
        (("delete", "--user", "u", "--all", "producer_byte_rate"), 2, "what is to be deleted?"),
    ],
)
def test_what_is_no_quota(address: str, words: tuple[str, ...], code: int, text: str) -> None:
    _, err = Cli(address)("quota", *words, code=code)
    assert text in err
    assert err.count("\n") == 1


# --- what quotas do to clients

LIMIT = 100_000  # bytes a second
TOTAL = 13 * LIMIT  # ten seconds' worth is let in at once
VALUE = bytes(9_900)
COUNT = TOTAL // len(VALUE)
# Whoever has used its burst waits the longer the more it uses, until that is forgotten: this takes six seconds or so.
AT_LEAST_S = 4.0


@pytest.fixture
def limited(address: str) -> Iterator[Callable[..., str]]:
    """Gives a client id that has quotas which nobody else has."""
    named = f"client-{uuid.uuid4().hex[:12]}"
    entity, keys = quota_entity(client_id=named), set()

    def limit(**values: float | None) -> str:
        with Admin(bootstrap_servers=address) as admin:
            assert admin.alter_client_quotas({entity: dict(values)}) == {entity: None}
        keys.update(values)
        return named

    yield limit
    limit(**dict.fromkeys(keys))


def by_librdkafka(address: str, client_id: str, topic: str) -> None:
    told: list[float] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "client.id": client_id,
            "batch.size": 50_000,
            "linger.ms": 5,
            "throttle_cb": lambda event: told.append(event.throttle_time),
        }
    )
    for _ in range(COUNT):
        producer.produce(topic, VALUE)
        producer.poll(0)
    assert producer.flush(120) == 0
    assert max(told) > 0


def by_kafka_python(address: str, client_id: str, topic: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=address,
        client_id=client_id,
        batch_size=50_000,
        linger_ms=5,
        delivery_timeout_ms=120_000,
    )
    sent = [producer.send(topic, VALUE) for _ in range(COUNT)]
    producer.flush(120)
    assert all(future.succeeded() for future in sent)
    producer.close()


def by_ottla(address: str, client_id: str, topic: str) -> None:
    with Producer(bootstrap_servers=address, client_id=client_id, batch_size=50_000, linger_ms=5) as producer:
        for _ in range(COUNT):
            producer.send(topic, VALUE)
        producer.flush()


@pytest.mark.parametrize("produce", [by_librdkafka, by_kafka_python, by_ottla])
def test_a_producer_keeps_to_its_quota(
    address: str,
    make_topic: MakeTopic,
    limited: Callable[..., str],
    produce: Callable[[str, str, str], None],
) -> None:
    topic, client_id = make_topic(), limited(producer_byte_rate=LIMIT)
    began = time.monotonic()
    produce(address, client_id, topic)
    took_s = time.monotonic() - began
    assert took_s >= AT_LEAST_S
    # Once it has none, it waits no longer: what it used counts for nothing.
    limited(producer_byte_rate=None)
    with Producer(bootstrap_servers=address, client_id=client_id) as producer:
        assert producer.send(topic, VALUE).result(60_000).offset == COUNT


@pytest.mark.parametrize("group", [False, True])
def test_a_consumer_keeps_to_its_quota(
    address: str, make_topic: MakeTopic, limited: Callable[..., str], group: bool
) -> None:
    topic, client_id = make_topic(), limited(consumer_byte_rate=LIMIT)
    by_ottla(address, "unlimited", topic)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "client.id": client_id,
            "group.id": f"g-{uuid.uuid4().hex[:12]}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": group,
        }
    )
    if group:
        consumer.subscribe([topic])
    else:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    read: list[bytes] = []
    began = time.monotonic()
    while len(read) < COUNT:
        message = consumer.poll(120)
        assert message is not None
        assert message.error() is None
        read.append(message.value())
    took_s = time.monotonic() - began
    consumer.close()
    assert read == [VALUE] * COUNT
    assert took_s >= AT_LEAST_S


@pytest.mark.three_nodes
def test_changes_of_topics_keep_to_their_quota(address: str, limited: Callable[..., str]) -> None:
    """Whichever broker is asked, one controller counts."""
    client_id = limited(controller_mutation_rate=2)

    def create(partitions: int) -> ErrorCode:
        topic = f"t-{uuid.uuid4().hex[:12]}"
        with Admin(bootstrap_servers=address, client_id=client_id) as admin:
            error = admin.create_topics([admin_types.NewTopic(topic, partitions)])[topic]
        return error.code if isinstance(error, KafkaError) else ErrorCode.NONE

    began = time.monotonic()
    # Ten more than there is room for: nothing else is let in for five seconds.
    assert create(32) is ErrorCode.NONE
    while (code := create(1)) is not ErrorCode.NONE:
        assert code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert time.monotonic() - began >= 4.9


def test_a_client_that_does_not_know_the_error_waits(address: str, limited: Callable[..., str]) -> None:
    """Librdkafka asks in an old version: it is let in, and its connection is not read for so long."""
    admin = AdminClient({"bootstrap.servers": address, "client.id": limited(controller_mutation_rate=2)})
    began = time.monotonic()
    for partitions in (32, 1):
        topic = f"t-{uuid.uuid4().hex[:12]}"
        admin.create_topics([NewTopic(topic, partitions)])[topic].result(60)
    assert time.monotonic() - began >= 4.9


def served(address: str, count: int) -> int:
    """Of so many connections, how many are answered; the others are closed."""
    answered = 0
    for _ in range(count):
        with RawClient(Endpoint.of(address)) as client:
            try:
                client.ask(API_VERSIONS, 0, {})
            except (ConnectionError, EOFError, AssertionError):
                continue
            answered += 1
    return answered


def test_an_address_connects_no_more_often_than_its_quota() -> None:
    with Broker() as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        address, entity = broker.bootstrap_servers, quota_entity(ip="127.0.0.1")
        assert served(address, 15) == 15
        assert admin.alter_client_quotas({entity: {"connection_creation_rate": 1}}) == {entity: None}
        assert 10 <= served(address, 12) < 12
        assert admin.alter_client_quotas({entity: {"connection_creation_rate": None}}) == {entity: None}
        assert served(address, 15) == 15


def test_a_listener_accepts_no_faster_than_its_rate_which_may_change() -> None:
    key = "listener.name.plaintext.max.connection.creation.rate"
    with Broker() as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        address = broker.bootstrap_servers
        resource = ConfigResource(ResourceType.BROKER, str(broker.node.node_id))
        assert admin.incremental_alter_configs({resource: [ConfigChange(key, "2")]}) == {resource: None}
        began = time.monotonic()
        assert served(address, 25) == 25
        assert time.monotonic() - began >= 1.9, "twenty at once, and then two a second"
        assert admin.incremental_alter_configs({resource: [ConfigChange(key, "10000")]}) == {resource: None}
        assert served(address, 25) == 25
