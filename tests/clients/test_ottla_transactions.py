"""Ottla's producer in transactions, of both versions, and what readers of committed records see of them."""

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka as ck
import pytest
from tests.clients.adapters.model import Patience
from tests.clients.conftest import Wait

from ottla.client import Admin, AsyncProducer, Consumer, NewTopic, Producer, TopicPartition
from ottla.client.errors import ProducerFenced, StateError, TransactionAbortable, TransactionAborted
from ottla.client.offsets import GroupMetadata
from ottla.model.errors import ErrorCode, KafkaError
from ottla.testing.broker import Broker

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "50",
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
}
BROKERS = ["version_1", "version_2"]


def running(version: int) -> Iterator[Broker]:
    """A broker whose cluster has this version of transactions in force."""
    with Broker(SETTINGS) as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.update_features({"transaction.version": version}, allow_downgrade=True)
        yield broker


@pytest.fixture(scope="module")
def version_1() -> Iterator[Broker]:
    yield from running(1)


@pytest.fixture(scope="module")
def version_2() -> Iterator[Broker]:
    yield from running(2)


@pytest.fixture
def servers(address: str) -> str:
    return address


@pytest.fixture
def topic(servers: str, in_step: Wait) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=servers) as admin:
        created = admin.create_topics([NewTopic(name, 2)])[name]
        assert not isinstance(created, KafkaError), created
    in_step()
    return name


def producer(servers: str, transactional_id: str, **settings: Any) -> Producer:
    made = Producer(bootstrap_servers=servers, transactional_id=transactional_id, **settings)
    made.init_transactions()
    return made


def read(servers: str, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
    """All there is, up to the end that a reader of this kind sees."""
    with Consumer(bootstrap_servers=servers, isolation_level=isolation) as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        got: list[bytes | None] = []
        patience = Patience("reading")
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            patience.check(got)
            got += [record.value for records in consumer.poll(200).values() for record in records]
        return got


def test_the_version_in_force_is_spoken(servers: str, topic: str) -> None:
    with Admin(bootstrap_servers=servers) as admin:
        level = {feature.name: feature.finalized for feature in admin.describe_features()}
    with producer(servers, f"x-{topic}") as ours:
        epochs = []
        for _ in range(2):
            with ours.transaction():
                ours.send(topic, b"x")
            with Admin(bootstrap_servers=servers) as admin:
                state = admin.describe_transactions([f"x-{topic}"])[f"x-{topic}"]
                assert not isinstance(state, KafkaError)
                epochs.append(state.producer_epoch)
    # Only in version 2 every end of a transaction brings a new epoch (KIP-890).
    assert epochs[1] - epochs[0] == (1 if level["transaction.version"] == 2 else 0)


@pytest.mark.three_nodes
def test_all_or_nothing(servers: str, topic: str) -> None:
    with producer(servers, f"x-{topic}") as ours:
        for number in range(3):
            with ours.transaction():
                for partition in range(2):
                    ours.send(topic, b"%d-%d" % (number, partition), partition=partition)
        with pytest.raises(RuntimeError), ours.transaction():  # noqa: PT012
            ours.send(topic, b"never", partition=0).result()
            raise RuntimeError("something went wrong")
        ours.begin_transaction()
        ours.send(topic, b"open", partition=0).result()
        expected = sorted(b"%d-%d" % (number, p) for number in range(3) for p in range(2))
        assert sorted(read(servers, topic), key=repr) == expected
        assert {b"never", b"open"} <= set(read(servers, topic, "read_uncommitted"))
        ours.commit_transaction()
        assert sorted(read(servers, topic), key=repr) == [*expected, b"open"]


@pytest.mark.three_nodes
def test_an_empty_transaction_and_one_of_offsets_alone(servers: str, topic: str) -> None:
    with producer(servers, f"x-{topic}") as ours:
        with ours.transaction():
            assert ours is not None
        ours.begin_transaction()
        ours.abort_transaction()
        tp = TopicPartition(topic, 1)
        with ours.transaction():
            ours.send_offsets_to_transaction({tp: 5}, f"g-{topic}")
        ours.begin_transaction()
        ours.send_offsets_to_transaction({tp: 9}, f"g-{topic}")
        ours.abort_transaction()
    with Admin(bootstrap_servers=servers) as admin:
        offsets = admin.list_group_offsets(f"g-{topic}", require_stable=True)
        assert {tp: at.offset for tp, at in offsets.items() if at is not None} == {tp: 5}


def test_what_is_dropped_by_an_abort_says_so(servers: str, topic: str) -> None:
    with producer(servers, f"x-{topic}", linger_ms=60_000) as ours:
        ours.begin_transaction()
        waiting = ours.send(topic, b"waits for company")
        ours.abort_transaction()
        assert isinstance(waiting.exception(), TransactionAborted)
        with ours.transaction():
            sent = ours.send(topic, b"goes with the commit")
        assert sent.result().offset >= 0
    assert read(servers, topic) == [b"goes with the commit"]


@pytest.mark.three_nodes
def test_a_newer_producer_fences_an_older_one(servers: str, topic: str) -> None:
    with producer(servers, f"x-{topic}") as old:
        old.begin_transaction()
        old.send(topic, b"lost", partition=0).result()
        with producer(servers, f"x-{topic}") as new:
            with new.transaction():
                new.send(topic, b"kept", partition=0)
            delivery = old.send(topic, b"zombie", partition=0)
            with pytest.raises((TransactionAbortable, ProducerFenced)):
                old.commit_transaction()
            assert delivery.exception() is not None
            # Whether it is only this transaction or all of them, the coordinator tells at the latest now.
            with pytest.raises(ProducerFenced):
                old.abort_transaction()
            with pytest.raises(ProducerFenced):
                old.begin_transaction()
            with new.transaction():
                new.send(topic, b"kept too", partition=0)
    assert read(servers, topic) == [b"kept", b"kept too"]


def test_offsets_of_a_stranger_abort_the_transaction_and_no_more(servers: str, topic: str) -> None:
    with Consumer(bootstrap_servers=servers, group_id=f"g-{topic}") as consumer:
        consumer.subscribe([topic])
        patience = Patience("joining")
        while not consumer.assignment():
            patience.check(())
            consumer.poll(50)
        with producer(servers, f"x-{topic}") as ours:
            stranger = GroupMetadata(f"g-{topic}", 99, "nobody")
            ours.begin_transaction()
            ours.send(topic, b"never", partition=0)
            with pytest.raises(TransactionAbortable, match="abort the transaction") as caught:
                ours.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, stranger)
            assert caught.value.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
            with pytest.raises(TransactionAbortable):
                ours.send(topic, b"refused")
            with pytest.raises(TransactionAbortable):
                ours.commit_transaction()
            ours.abort_transaction()
            with ours.transaction():
                ours.send(topic, b"again", partition=0)
                ours.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, consumer.group_metadata())
            tp = TopicPartition(topic, 0)
            committed = consumer.committed([tp])[tp]
            assert committed is not None
            assert committed.offset == 1
    assert read(servers, topic) == [b"again"]


def test_misuse_is_told(servers: str, topic: str) -> None:
    with Producer(bootstrap_servers=servers) as plain, pytest.raises(StateError, match="transactional_id"):
        plain.begin_transaction()
    with Producer(bootstrap_servers=servers, transactional_id=f"x-{topic}") as ours:
        with pytest.raises(StateError, match="not initialized"):
            ours.begin_transaction()
        ours.init_transactions()
        with pytest.raises(StateError, match="between transactions"):
            ours.send(topic, b"outside")
        with pytest.raises(StateError, match="between transactions"):
            ours.commit_transaction()


def test_closing_aborts_what_is_open(servers: str, topic: str) -> None:
    with producer(servers, f"x-{topic}") as ours:
        ours.begin_transaction()
        ours.send(topic, b"never", partition=0).result()
    with Admin(bootstrap_servers=servers) as admin:
        state = admin.describe_transactions([f"x-{topic}"])[f"x-{topic}"]
        assert not isinstance(state, KafkaError)
        assert state.state in ("PrepareAbort", "CompleteAbort")
    assert read(servers, topic) == []


@pytest.mark.three_nodes
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_read_transform_write_exactly_once(servers: str, topic: str, in_step: Wait, protocol: str) -> None:
    """Two copiers share the work; one breaks off in the midst, several times."""
    source, target = topic, f"{topic}-copy"
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(target, 2)])
    in_step()
    with Producer(bootstrap_servers=servers) as feeder:
        for number in range(200):
            feeder.send(source, b"%d" % number, partition=number % 2)
    for attempt in range(6):
        with (
            producer(servers, f"x-{topic}") as writer,
            Consumer(
                bootstrap_servers=servers,
                group_id=f"g-{topic}",
                group_protocol=protocol,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            ) as reader,
        ):
            reader.subscribe([source])
            patience = Patience("copying")
            for turn in range(3 if attempt < 5 else 1000):
                patience.check(turn)
                records = [r for rs in reader.poll(300, 13).values() for r in rs]
                writer.begin_transaction()
                for record in records:
                    writer.send(target, record.value, partition=record.partition)
                ends = {TopicPartition(r.topic, r.partition): r.offset + 1 for r in records}
                writer.send_offsets_to_transaction(ends, reader.group_metadata())
                if turn == 2 and attempt < 5:
                    break  # without a commit: as if it had died here
                writer.commit_transaction()
                tps = [TopicPartition(source, 0), TopicPartition(source, 1)]
                done = reader.committed(tps).values()
                if attempt == 5 and sum(at.offset for at in done if at is not None) == 200:
                    break
    copied = read(servers, target)
    assert sorted(copied, key=repr) == sorted((b"%d" % number for number in range(200)), key=repr)


@pytest.mark.three_nodes
def test_librdkafka_reads_ours_and_we_read_librdkafkas(servers: str, topic: str) -> None:
    with producer(servers, f"x-{topic}") as ours:
        with ours.transaction():
            ours.send(topic, b"ours", partition=0)
        ours.begin_transaction()
        ours.send(topic, b"never ours", partition=0).result()
        ours.abort_transaction()
    theirs = ck.Producer({"bootstrap.servers": servers, "transactional.id": f"y-{topic}"})
    theirs.init_transactions(20)
    for value, commits in ((b"theirs", True), (b"never theirs", False), (b"theirs again", True)):
        theirs.begin_transaction()
        theirs.produce(topic, value, partition=0)
        theirs.flush(20)
        theirs.commit_transaction(20) if commits else theirs.abort_transaction(20)
    assert read(servers, topic) == [b"ours", b"theirs", b"theirs again"]
    consumer = ck.Consumer({"bootstrap.servers": servers, "group.id": "by-hand", "enable.auto.commit": False})
    consumer.assign([ck.TopicPartition(topic, 0, 0)])
    got = []
    patience = Patience("librdkafka reads")
    while len(got) < 3:
        patience.check(got)
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            got.append(message.value())
    consumer.close()
    assert got == [b"ours", b"theirs", b"theirs again"]


def test_the_asyncio_producer(servers: str, topic: str) -> None:
    async def run() -> None:
        async with AsyncProducer(bootstrap_servers=servers, transactional_id=f"x-{topic}") as ours:
            await ours.init_transactions()
            async with ours.transaction():
                await ours.send(topic, b"in")
            with pytest.raises(ValueError, match="no"):  # noqa: PT012
                async with ours.transaction():
                    await ours.send(topic, b"out")
                    raise ValueError("no")

    asyncio.run(asyncio.wait_for(run(), 60))
    assert read(servers, topic) == [b"in"]
