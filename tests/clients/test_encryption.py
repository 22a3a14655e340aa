"""Encrypted values through a real broker: our clients, the command line, and what others see of it."""

import asyncio
import base64
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as OtherConsumer
from confluent_kafka import Producer as OtherProducer
from tests.clients.test_ottla_client_cli import Cli
from tests.interop.process import wait_until

from ottla.client import AsyncConsumer, AsyncProducer
from ottla.client.admin.types import NewTopic
from ottla.client.blocking import Admin, Consumer, Producer
from ottla.client.errors import ConfigError
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.security.encryption import HEADER
from ottla.testing.broker import Broker

PATIENCE_S = 60.0
SECRET = b"attack at dawn, "


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, 1)])
    return name


def write_keyring(path: Path, *ids: str) -> str:
    keys = [{"id": name, "key": base64.b64encode(name.encode().ljust(32, b"#")).decode()} for name in ids]
    path.write_text(json.dumps({"keys": keys}))
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def keyring(tmp_path: Path) -> str:
    return write_keyring(tmp_path / "keys.json", "k1")


def produce(broker: Broker, topic: str, records: list[tuple[Any, Any, Any]], **settings: Any) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, **settings) as producer:
        sent = [producer.send(topic, value, key, headers=headers) for key, value, headers in records]
        for each in sent:
            each.result(PATIENCE_S * 1000)


def consume(broker: Broker, topic: str, count: int, at: int = 0, **settings: Any) -> list[Any]:
    with Consumer(bootstrap_servers=broker.bootstrap_servers, **settings) as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        consumer.seek(tp, at)
        found: list[Any] = []

        def read() -> bool:
            for records in consumer.poll(500).values():
                found.extend(records)
            return len(found) >= count

        wait_until(read, PATIENCE_S, f"{count} records")
        return found


RECORDS = [
    (b"k", SECRET * 100, []),
    (None, b"", [("trace", b"1"), ("none", None)]),
    (b"gone", None, []),
    (b"", "text", []),
]
EXPECTED = [
    (key, value.encode() if isinstance(value, str) else value, tuple(headers))
    for key, value, headers in RECORDS
]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_round_trip(broker: Broker, topic: str, keyring: str, compression: str) -> None:
    produce(broker, topic, RECORDS * 200, encryption_key=keyring, compression_type=compression)
    found = consume(broker, topic, 800, encryption_key=keyring, max_poll_records=37)
    assert [(each.key, each.value, each.headers) for each in found] == EXPECTED * 200
    assert [each.offset for each in found] == list(range(800))


def test_the_broker_has_nothing_of_it(broker: Broker, topic: str, keyring: str) -> None:
    produce(broker, topic, RECORDS, encryption_key=keyring)
    files = b"".join(path.read_bytes() for path in broker.data_dir.glob(f"{topic}-0/*.log"))
    assert SECRET not in files
    assert HEADER.encode() in files
    other = OtherConsumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    other.subscribe([topic])
    found: list[Any] = []

    def read() -> bool:
        message = other.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message)
        return len(found) == len(RECORDS)

    wait_until(read, PATIENCE_S, "what librdkafka sees")
    other.close()
    assert [message.key() for message in found] == [key for key, _, _ in RECORDS]
    assert found[2].value() is None
    assert found[2].headers() is None
    assert all(
        message.value() != value for message, (_, value, _) in zip(found, EXPECTED, strict=True) if value
    )


def test_asyncio(broker: Broker, topic: str, keyring: str) -> None:
    async def run() -> Any:
        settings = {"bootstrap_servers": broker.bootstrap_servers, "encryption_key": keyring}
        async with AsyncProducer(settings) as producer:
            await producer.send_and_wait(topic, SECRET, b"k")
        async with AsyncConsumer({**settings, "auto_offset_reset": "earliest"}) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            while True:
                for records in (await consumer.poll(500)).values():
                    return records[0]

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE_S)).value == SECRET


def test_many_threads_share_a_producer(broker: Broker, topic: str, keyring: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with (
        Producer(bootstrap_servers=broker.bootstrap_servers, encryption_key=keyring) as producer,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(lambda n: producer.send(topic, b"%d" % n), range(4000)))
    found = consume(broker, topic, 4000, encryption_key=keyring)
    assert sorted(int(each.value) for each in found) == list(range(4000))
    stored = consume(broker, topic, 4000, encryption_key="none")
    assert len({dict(each.headers)[HEADER] for each in stored}) == 4000


def test_a_consumer_without_the_key_is_told(broker: Broker, topic: str, keyring: str, tmp_path: Path) -> None:
    produce(broker, topic, [(b"null first", None, []), (b"k", SECRET, [])], encryption_key=keyring)
    with pytest.raises(KafkaError) as caught:
        consume(broker, topic, 1)
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert f"{topic}-0, offset 1: its value is encrypted (key 'k1'), and encryption.key is not set" in str(
        caught.value
    )
    other = write_keyring(tmp_path / "other.json", "k2")
    with pytest.raises(KafkaError, match=r"offset 1: the data key cannot be unwrapped: .* has no key 'k1'"):
        consume(broker, topic, 2, encryption_key=other)
    # A copy of the topic needs no key.
    stored = consume(broker, topic, 2, encryption_key="none")
    assert stored[1].headers[0][0] == HEADER


def forward(broker: Broker, topic: str, records: list[Any], change: Any) -> None:
    """What an operator could do: write stored records again, changed."""
    producer = OtherProducer({"bootstrap.servers": broker.bootstrap_servers})
    for record in records:
        key, value, headers = change(record)
        producer.produce(topic, value, key, headers=list(headers))
    assert producer.flush(PATIENCE_S) == 0


def test_a_value_that_was_tampered_with_is_refused_by_its_offset(
    broker: Broker, topic: str, keyring: str
) -> None:
    produce(broker, topic, [(b"k", b"%d" % n, []) for n in range(3)], encryption_key=keyring)
    (first, *_) = consume(broker, topic, 3, encryption_key="none")

    def flipped(record: Any) -> Any:
        return record.key, record.value[:-1] + bytes([record.value[-1] ^ 1]), record.headers

    forward(broker, topic, [first], flipped)  # offset 3
    produce(broker, topic, [(b"k", b"after", [])], encryption_key=keyring)
    with Consumer(bootstrap_servers=broker.bootstrap_servers, encryption_key=keyring) as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        consumer.seek(tp, 0)
        found: list[Any] = []
        errors: list[KafkaError] = []

        def read() -> bool:
            try:
                for records in consumer.poll(500).values():
                    found.extend(records)
            except KafkaError as error:
                errors.append(error)
            return len(errors) == 2

        wait_until(read, PATIENCE_S, "the error, twice")
        assert [each.value for each in found] == [b"0", b"1", b"2"]
        assert f"{topic}-0, offset 3: its value does not match" in str(errors[0])
        assert consumer.position(tp) == 3  # nothing is skipped
        consumer.seek(tp, 4)
        wait_until(lambda: any(consumer.poll(500).values()), PATIENCE_S, "what comes after it")


@pytest.mark.parametrize("batched", [False, True])
def test_what_comes_before_it_in_its_batch_is_given_out(
    broker: Broker, topic: str, keyring: str, batched: bool
) -> None:
    produce(broker, topic, [(b"%d" % n, b"%d" % n, []) for n in range(5)], encryption_key=keyring)
    stored = consume(broker, topic, 5, encryption_key="none")
    # The values of 2 and 3 exchange their keys.
    keys = [b"0", b"1", b"3", b"2", b"4"]
    order = iter(keys)
    linger = 1000 if batched else 0
    with Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=linger) as producer:
        for record in stored:
            producer.send(topic, record.value, next(order), headers=record.headers)
            if not batched:
                producer.flush()
    found: list[bytes] = []

    def read(consumer: Consumer) -> None:
        while True:
            for records in consumer.poll(500).values():
                found.extend(each.value for each in records)

    with Consumer(bootstrap_servers=broker.bootstrap_servers, encryption_key=keyring) as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        consumer.seek(tp, 5)
        with pytest.raises(KafkaError, match=r"offset 7: its value does not match"):
            read(consumer)
    assert found == [b"0", b"1"]


def test_mixed_topics_by_a_setting(broker: Broker, topic: str, keyring: str) -> None:
    produce(broker, topic, [(b"k", b"plain", [])])
    produce(broker, topic, [(b"k", SECRET, [])], encryption_key=keyring)
    with pytest.raises(
        KafkaError, match=r"offset 0: its value is not encrypted; encryption\.allow\.plaintext"
    ):
        consume(broker, topic, 2, encryption_key=keyring)
    both = consume(broker, topic, 2, encryption_key=keyring, encryption_allow_plaintext=True)
    assert [each.value for each in both] == [b"plain", SECRET]


def test_rotation(broker: Broker, topic: str, keyring: str, tmp_path: Path) -> None:
    produce(broker, topic, [(b"k", b"old", [])], encryption_key=keyring)
    with Consumer(bootstrap_servers=broker.bootstrap_servers, encryption_key=keyring) as consumer:
        tp = TopicPartition(topic, 0)
        consumer.assign([tp])
        consumer.seek(tp, 0)
        found: list[bytes] = []

        def read(count: int) -> bool:
            for records in consumer.poll(500).values():
                found.extend(each.value for each in records)
            return len(found) == count

        wait_until(lambda: read(1), PATIENCE_S, "the old one")
        write_keyring(Path(keyring), "k1", "k2")
        produce(broker, topic, [(b"k", b"new", [])], encryption_key=keyring)
        wait_until(lambda: read(2), PATIENCE_S, "the new one, without a restart")
    assert found == [b"old", b"new"]
    newest = write_keyring(tmp_path / "newest.json", "k2")
    with pytest.raises(KafkaError, match="no key 'k1'"):
        consume(broker, topic, 1, encryption_key=newest)
    assert [each.value for each in consume(broker, topic, 1, at=1, encryption_key=newest)] == [b"new"]


def test_a_keyring_that_cannot_be_had_is_one_line(broker: Broker) -> None:
    for kind in (Producer, Consumer):
        with pytest.raises(ConfigError, match=r"encryption\.key: /nowhere/keys\.json cannot be read"):
            kind(bootstrap_servers=broker.bootstrap_servers, encryption_key="/nowhere/keys.json")


def test_transactions(broker: Broker, topic: str, keyring: str) -> None:
    with Producer(
        bootstrap_servers=broker.bootstrap_servers, encryption_key=keyring, transactional_id=topic
    ) as producer:
        producer.init_transactions()
        for value, ends in ((b"aborted", producer.abort_transaction), (b"kept", producer.commit_transaction)):
            producer.begin_transaction()
            producer.send(topic, value)
            ends()
    settings = {"encryption_key": keyring, "isolation_level": "read_committed"}
    assert [each.value for each in consume(broker, topic, 1, **settings)] == [b"kept"]


def test_the_command_line(broker: Broker, topic: str, keyring: str, tmp_path: Path) -> None:
    cli = Cli(broker.bootstrap_servers)
    cli("produce", "-t", topic, "-X", f"encryption.key={keyring}", stdin=b"one\ntwo\n")
    out, _ = cli("consume", "-t", topic, "-e", "-q", "-X", f"encryption.key={keyring}")
    assert out == "one\ntwo\n"
    _, err = cli("consume", "-t", topic, "-e", "-q", code=1)
    assert "its value is encrypted (key 'k1'), and encryption.key is not set" in err
    assert "Traceback" not in err
    config = tmp_path / "client.properties"
    config.write_text(f"encryption.key={keyring}\n")
    out, err = cli("consume", "-t", topic, "-e", "-q", "--command-config", str(config))
    assert (out, err) == ("one\ntwo\n", "")
    out, err = cli("topic", "list", "--command-config", str(config))
    assert topic in out
    assert err == ""
    _, err = cli("produce", "-t", topic, "-X", "encryption.key=/nowhere", stdin=b"x\n", code=2)
    assert "encryption.key: /nowhere cannot be read" in err
    assert os.path.exists(keyring)
