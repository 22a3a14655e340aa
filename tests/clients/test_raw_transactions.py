"""Transactions that one client writes and another ends, of both versions; a group's offsets with them."""

import multiprocessing
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.clients.raw_writer import SETTINGS, Writer, end_of, make, numbered, read

from ottla.client import Admin, TopicPartition
from ottla.client.errors import ProducerFenced, TimedOut
from ottla.client.inline import InlineClient
from ottla.client.producer.inline import RawProducer, Written
from ottla.client.transaction.by_id import (
    Ended,
    TxnHandle,
    add_offsets,
    commit_offsets,
    committed,
    describe,
    end,
    end_all,
    init_producer_id,
    list_open,
)
from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.record import build_batch
from ottla.testing.broker import Broker


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker whose cluster has this version of transactions in force."""
    settings = {**SETTINGS, "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}
    with Broker(settings) as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.update_features({"transaction.version": request.param}, allow_downgrade=True)
        yield running


@pytest.fixture
def driver(broker: Broker) -> Iterator[InlineClient]:
    with InlineClient(bootstrap_servers=broker.bootstrap_servers) as started:
        yield started


@pytest.fixture
def tp(broker: Broker) -> TopicPartition:
    return TopicPartition(make(broker.bootstrap_servers, 2), 0)


def leave_open(
    broker: Broker, tp: TopicPartition, name: str, values: list[bytes]
) -> tuple[TxnHandle, Written]:
    """What an executor does: a client of its own writes, and is gone."""
    with InlineClient(bootstrap_servers=broker.bootstrap_servers) as client:
        writer = Writer(client, name)
        written = writer.write(tp, values)
        return writer.handle, written


@pytest.mark.parametrize("commit", [True, False])
def test_one_client_writes_and_another_ends(
    broker: Broker, driver: InlineClient, tp: TopicPartition, commit: bool
) -> None:
    handle, written = leave_open(broker, tp, f"x-{tp.topic}", numbered(50))
    assert written == Written(0, 49, 50)
    assert end_of(driver, tp, read_committed=True) == 0
    (listed,) = list_open(driver, f"x-{tp.topic}")
    assert (listed.transactional_id, listed.producer_id) == handle[:2]
    assert listed.state == "Ongoing"
    outcome = Ended.COMMITTED if commit else Ended.ABORTED
    assert end(driver, handle, commit) is outcome
    assert read(driver, tp, 0, 51) == (numbered(50) if commit else [])
    assert read(driver, tp, 0, 51, read_committed=False) == numbered(50)
    # Asked again, as a driver that died in between would: the same answer, and nothing is written.
    assert end(driver, handle, commit) is outcome
    assert end(driver, handle, not commit) is outcome
    assert end_of(driver, tp) == 51
    assert list_open(driver, f"x-{tp.topic}") == []


def test_what_never_began_ends_as_aborted(driver: InlineClient, tp: TopicPartition) -> None:
    for commit in (True, False, False):
        handle = Writer(driver, f"x-{tp.topic}-{commit}").handle
        assert end(driver, handle, commit) is Ended.ABORTED


def test_init_fences_and_aborts_what_was_open(
    broker: Broker, driver: InlineClient, tp: TopicPartition
) -> None:
    handle, _ = leave_open(broker, tp, f"x-{tp.topic}", numbered(5))
    writer = Writer(driver, handle.transactional_id)
    assert writer.producer_id == handle.producer_id
    assert writer.epoch > handle.producer_epoch
    assert end(driver, handle, commit=True) in (Ended.FENCED, Ended.ABORTED)
    assert read(driver, tp, 0, end_of(driver, tp, read_committed=True)) == []
    zombie = RawProducer(
        driver,
        producer_id=handle.producer_id,
        producer_epoch=handle.producer_epoch,
        transactional_id=handle.transactional_id,
    )
    zombie.send(tp, 1, _one(handle))
    with pytest.raises(ProducerFenced, match=handle.transactional_id if _is_v1(driver) else f"{tp.topic}-0"):
        zombie.flush()


def _is_v1(client: InlineClient) -> bool:
    return client.core.feature_level("transaction.version") < 2


def _one(handle: TxnHandle) -> bytearray:
    return build_batch(
        [(1000, None, b"zombie", ())],
        producer_id=handle.producer_id,
        producer_epoch=handle.producer_epoch,
        transactional=True,
    )


def test_a_transaction_past_its_timeout_is_over(driver: InlineClient, tp: TopicPartition) -> None:
    producer_id, epoch = init_producer_id(driver, f"x-{tp.topic}", 2_000)
    handle = TxnHandle(f"x-{tp.topic}", producer_id, epoch)
    producer = RawProducer(
        driver, producer_id=producer_id, producer_epoch=epoch, transactional_id=handle.transactional_id
    )
    producer.send(tp, 1, _one(handle))
    producer.flush()
    assert read(driver, tp, 0, 2) == []  # the reader waits until the last stable offset has moved on
    # Whose epoch the coordinator raised cannot tell more; where it was raised by the abort alone, it can.
    assert end(driver, handle, commit=True) in (Ended.FENCED, Ended.ABORTED)


def test_an_id_nobody_knows_is_told(driver: InlineClient) -> None:
    assert end(driver, TxnHandle("no-such-id", 1, 0), commit=True) is Ended.UNKNOWN
    told = describe(driver, ["no-such-id"])["no-such-id"]
    assert isinstance(told, KafkaError)
    assert told.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_an_open_transaction_holds_readers_up_and_is_named(
    broker: Broker, driver: InlineClient, tp: TopicPartition
) -> None:
    Writer(driver).write(tp, numbered(10))
    handle, written = leave_open(broker, tp, f"x-{tp.topic}", numbered(5))
    with pytest.raises(TimedOut, match=f"last stable offset stayed at 10 for 700 ms.*ends at {15}"):
        read(driver, tp, 0, 15, timeout_ms=700)
    assert read(driver, tp, written.first_offset, 15, read_committed=False) == numbered(5)
    end(driver, handle, commit=False)


def test_aborted_and_committed_data_side_by_side(
    broker: Broker, driver: InlineClient, tp: TopicPartition
) -> None:
    chance = random.Random(tp.topic)
    expected: list[bytes] = []
    for number in range(30):
        commit = chance.random() < 0.5
        values = numbered(chance.randint(1, 30), number * 100)
        writer = Writer(driver, f"x-{tp.topic}-{number % 3}")
        writer.write(tp, values)
        assert end(driver, writer.handle, commit) is (Ended.COMMITTED if commit else Ended.ABORTED)
        expected += values if commit else []
    last = end_of(driver, tp)
    assert read(driver, tp, 0, last) == expected
    assert read(driver, tp, 0, last, max_bytes=300) == expected


def test_many_transactions_end_at_once(broker: Broker, driver: InlineClient, tp: TopicPartition) -> None:
    handles = [leave_open(broker, tp, f"x-{tp.topic}-{n}", numbered(3, n * 3))[0] for n in range(8)]
    unknown = TxnHandle("no-such-id", 1, 0)
    assert end_all(driver, [*handles, unknown], commit=True) == [Ended.COMMITTED] * 8 + [Ended.UNKNOWN]
    assert read(driver, tp, 0, end_of(driver, tp)) == numbered(24)


def test_offsets_are_part_of_a_transaction(broker: Broker, driver: InlineClient, tp: TopicPartition) -> None:
    group, other = f"g-{tp.topic}", tp._replace(partition=1)
    commit_offsets(driver, group, {tp: (5, "five"), other: (6, "")})
    assert committed(driver, group) == {tp: (5, "five"), other: (6, "")}
    for number, commit in enumerate((True, False)):
        producer_id, epoch = init_producer_id(driver, f"x-{tp.topic}")
        handle = TxnHandle(f"x-{tp.topic}", producer_id, epoch)
        add_offsets(driver, handle, group, {tp: (100 + number, "{" + "x" * 3000 + "}")})
        assert committed(driver, group, [tp], require_stable=False)[tp][0] == (5 if number == 0 else 100)
        assert end(driver, handle, commit) is (Ended.COMMITTED if commit else Ended.ABORTED)
        # Stable: what was decided is waited for.
        assert committed(driver, group, [tp]) == {tp: (100, "{" + "x" * 3000 + "}")}
    assert committed(driver, group, [other]) == {other: (6, "")}
    assert committed(driver, f"{group}-none") == {}


def test_who_is_fenced_commits_no_offsets(driver: InlineClient, tp: TopicPartition) -> None:
    name = f"x-{tp.topic}"
    old = TxnHandle(name, *init_producer_id(driver, name))
    new = TxnHandle(name, *init_producer_id(driver, name))
    with pytest.raises(ProducerFenced):
        add_offsets(driver, old, f"g-{name}", {tp: (1, "")})
    add_offsets(driver, new, f"g-{name}", {tp: (2, "")})
    assert end(driver, new, commit=True) is Ended.COMMITTED
    assert committed(driver, f"g-{name}", [tp]) == {tp: (2, "")}


def test_describe_says_who_and_what(broker: Broker, driver: InlineClient, tp: TopicPartition) -> None:
    handle, _ = leave_open(broker, tp, f"x-{tp.topic}", numbered(3))
    told = describe(driver, [handle.transactional_id])[handle.transactional_id]
    assert not isinstance(told, KafkaError)
    assert (told.producer_id, told.producer_epoch) == handle[1:]
    assert told.partitions == (tp,)
    assert told.state == "Ongoing"
    end(driver, handle, commit=True)


# -- processes ------------------------------------------------------------------------------------------


@pytest.fixture
def client(address: str) -> Iterator[InlineClient]:
    with InlineClient(bootstrap_servers=address) as started:
        yield started


def _forked(address: str, tp: TopicPartition, number: int, results: Any) -> None:
    with InlineClient(bootstrap_servers=address) as client:
        writer = Writer(client, f"x-{tp.topic}-{number}")
        writer.write(tp, numbered(10, number * 10))
        results.put(tuple(writer.handle))


def test_forked_workers_write_and_their_parent_commits(
    client: InlineClient, address: str, make_topic: Callable[..., str]
) -> None:
    tp = TopicPartition(make_topic(), 0)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=_forked, args=(address, tp, n, results)) for n in range(3)]
    for worker in workers:
        worker.start()
    handles = [TxnHandle(*results.get(timeout=60)) for _ in workers]
    for worker in workers:
        worker.join()
    assert end_all(client, handles, commit=True) == [Ended.COMMITTED] * 3
    got = read(client, tp, 0, end_of(client, tp))
    assert sorted(got, key=lambda value: int(value or b"-1")) == numbered(30)
