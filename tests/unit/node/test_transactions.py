"""Transactions on a whole node, request by request: what only handlers, shards and partitions together do."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.process import receive_frame, wait_until

from ottla.client.admin.types import NewTopic
from ottla.client.blocking import Admin
from ottla.model.errors import ErrorCode
from ottla.records.record import build_batch
from ottla.testing import Broker
from ottla.wire.codec import decode
from ottla.wire.framing import decode_response_header, encode_request
from ottla.wire.messages.admin.cluster import FeatureUpdateKey, UpdateFeaturesRequest
from ottla.wire.messages.groups.classic import FindCoordinatorRequest
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.wire.messages.producers import DescribeProducersRequest, InitProducerIdRequest, TopicRequest
from ottla.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from ottla.wire.registry import response_class

V1, V2 = 1, 2
MANY = 1_000
OK = int(ErrorCode.NONE)


class Client:
    """One connection; questions may be sent ahead of their answers."""

    def __init__(self, broker: Broker) -> None:
        host, port = broker.bootstrap_servers.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=20)

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: Any, version: int) -> Any:
        (answer,) = self.ask_all((request, version))
        return answer

    def ask_all(self, *questions: tuple[Any, int]) -> list[Any]:
        """All at once."""
        self._socket.sendall(b"".join(encode_request(*question, 7, "test") for question in questions))
        return [self._answer(type(request), version) for request, version in questions]

    def _answer(self, request: Any, version: int) -> Any:
        answer = receive_frame(self._socket)
        _, start = decode_response_header(answer, 0, request.API_KEY, version)
        return decode(response_class(request.API_KEY), answer, version, start)[0]


class Producer:
    """A transactional producer by hand."""

    def __init__(self, client: Client, name: str, version: int = V2) -> None:
        self.client, self.name, self.version = client, name, version
        self.sequence = 0
        self.init()

    def init(self) -> None:
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=60_000)
        found: list[Any] = []

        def given() -> bool:
            found.append(self.client.ask(request, 4))
            return bool(found[-1].error_code == OK)

        wait_until(given, 20, "a producer id")
        self.producer_id, self.epoch = found[-1].producer_id, found[-1].producer_epoch
        self.sequence = 0

    def produce(self, *partitions: int, topic: str = "t", sequence: int | None = None) -> tuple[Any, int]:
        """The request, and its version."""
        records = build_batch(
            [(1_700_000_000_000, None, b"v", ())],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence if sequence is None else sequence,
            transactional=True,
        )
        rows = [PartitionProduceData(index=index, records=memoryview(records)) for index in partitions]
        request = ProduceRequest(
            transactional_id=self.name,
            acks=-1,
            timeout_ms=20_000,
            topic_data=[TopicProduceData(name=topic, partition_data=rows)],
        )
        return request, 12 if self.version == V2 else 11

    def write(self, *partitions: int, **options: Any) -> list[int]:
        """The error of each partition."""
        codes = errors_of(self.client.ask(*self.produce(*partitions, **options)))
        self.sequence += all(code == OK for code in codes)
        return codes

    def add(self, *partitions: int, topic: str = "t") -> list[int]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
        )
        (result,) = self.client.ask(request, 3).results_by_topic_v3_and_below
        return [row.partition_error_code for row in result.results_by_partition]

    def end_request(self, committed: bool = True) -> tuple[Any, int]:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )
        return request, 5 if self.version == V2 else 4

    def end(self, committed: bool = True) -> int:
        answer = self.client.ask(*self.end_request(committed))
        if answer.error_code == OK and self.version == V2:
            self.producer_id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        return int(answer.error_code)

    def state(self) -> Any:
        request = DescribeTransactionsRequest(transactional_ids=[self.name])
        (found,) = self.client.ask(request, 0).transaction_states
        return found


def errors_of(answer: Any) -> list[int]:
    return [row.error_code for topic in answer.responses for row in topic.partition_responses]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    where: Path = tmp_path_factory.mktemp("transactions")
    with Broker(data_dir=where / "data") as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("t", 3), NewTopic("many", MANY)])
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    link = Client(broker)
    ready(link)
    yield link
    link.close()


def ready(client: Client) -> None:
    """Wait until transactions have a coordinator."""
    request = FindCoordinatorRequest(key_type=1, coordinator_keys=["any"])
    wait_until(lambda: not client.ask(request, 4).coordinators[0].error_code, 20, "a coordinator")


def open_transactions(client: Client, topic: str = "t", partition: int = 0) -> set[int]:
    """The producers with an open transaction on a partition."""
    request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[partition])])
    (found,) = client.ask(request, 0).topics[0].partitions
    return {row.producer_id for row in found.active_producers if row.current_txn_start_offset >= 0}


# ---- version 2 ------------------------------------------------------------------------------------------------


def test_the_first_batch_brings_its_partition_into_the_transaction(client: Client) -> None:
    producer = Producer(client, "v2-first")
    assert producer.write(0, 2) == [OK, OK]
    state = producer.state()
    assert state.transaction_state == "Ongoing"
    assert [(topic.topic, sorted(topic.partitions)) for topic in state.topics] == [("t", [0, 2])]
    assert producer.end() == OK
    assert producer.state().transaction_state == "CompleteCommit"
    assert producer.producer_id not in open_transactions(client)


def test_transactions_sent_ahead_of_their_answers_come_in_order(client: Client) -> None:
    """The end waits for the records before it on the same connection; the next transaction for the end."""
    producer = Producer(client, "v2-ahead")
    first = [producer.produce(0, sequence=number) for number in range(5)]
    answers = client.ask_all(*first, producer.end_request())
    assert [errors_of(answer) for answer in answers[:5]] == [[OK]] * 5
    assert answers[5].error_code == OK
    assert answers[5].producer_epoch == producer.epoch + 1


def test_a_zombies_records_are_refused_before_and_after(client: Client) -> None:
    producer = Producer(client, "v2-zombie")
    assert producer.write(0) == [OK]
    zombie = Producer.__new__(Producer)
    zombie.__dict__.update(producer.__dict__)
    producer.init()
    fenced = [int(ErrorCode.INVALID_PRODUCER_EPOCH)]
    assert zombie.write(0) == fenced
    assert zombie.write(1, sequence=0) == fenced
    assert producer.write(1) == [OK]
    assert zombie.write(1, sequence=0) == fenced
    assert producer.end() == OK
    assert not open_transactions(client, partition=1)


def test_a_delayed_end_leaves_the_next_transaction_alone(client: Client) -> None:
    producer = Producer(client, "v2-delayed")
    producer.write(0)
    delayed, version = producer.end_request(committed=False)
    assert producer.end(committed=True) == OK
    assert producer.write(0) == [OK]
    assert client.ask(delayed, version).error_code == ErrorCode.PRODUCER_FENCED
    assert producer.state().transaction_state == "Ongoing"
    assert producer.end(committed=True) == OK


def test_records_of_an_ended_transaction_do_not_begin_another(client: Client) -> None:
    producer = Producer(client, "v2-late")
    producer.write(0)
    late = producer.produce(1, sequence=0)
    assert producer.end(committed=False) == OK
    assert errors_of(client.ask(*late)) == [int(ErrorCode.INVALID_PRODUCER_EPOCH)]
    assert producer.producer_id not in open_transactions(client, partition=1)


# ---- version 1 ------------------------------------------------------------------------------------------------


def test_partitions_must_have_been_announced(client: Client) -> None:
    producer = Producer(client, "v1-announced", V1)
    assert producer.write(0) == [int(ErrorCode.TRANSACTION_ABORTABLE)]
    assert producer.add(0) == [OK]
    assert producer.write(0) == [OK]
    assert producer.write(1, sequence=0) == [int(ErrorCode.TRANSACTION_ABORTABLE)]
    assert producer.end() == OK


def test_a_delayed_end_of_version_1_hits_the_next_transaction(client: Client) -> None:
    """As on Apache Kafka: the two transactions cannot be told apart; version 2 is there for that."""
    producer = Producer(client, "v1-delayed", V1)
    producer.add(0)
    producer.write(0)
    delayed, version = producer.end_request(committed=False)
    assert client.ask(delayed, version).error_code == OK
    wait_until(lambda: producer.state().transaction_state == "CompleteAbort", 20, "the markers")
    producer.add(1)
    assert producer.write(1, sequence=0) == [OK]
    assert client.ask(delayed, version).error_code == OK
    wait_until(lambda: producer.state().transaction_state == "CompleteAbort", 20, "the markers")
    assert producer.end(committed=True) == ErrorCode.INVALID_TXN_STATE


def test_records_after_the_end_do_not_hang(client: Client) -> None:
    producer = Producer(client, "v1-late", V1)
    producer.add(0)
    producer.write(0)
    assert producer.end() == OK
    assert producer.write(0) == [int(ErrorCode.TRANSACTION_ABORTABLE)]
    assert producer.producer_id not in open_transactions(client)


# ---- many of everything ---------------------------------------------------------------------------------------


def test_a_transaction_of_very_many_partitions(client: Client) -> None:
    producer = Producer(client, "many-partitions")
    assert set(producer.write(*range(MANY), topic="many")) == {OK}
    assert producer.end() == OK
    wait_until(lambda: producer.state().transaction_state == "CompleteCommit", 20, "the markers")
    for partition in (0, 99, 100, 101, MANY - 1):
        assert not open_transactions(client, "many", partition)


def test_brokers_add_and_verify_many_transactions_at_once(client: Client) -> None:
    producers = [Producer(client, f"batched-{number}") for number in range(3)]
    topics = [AddPartitionsToTxnTopic(name="t", partitions=[0, 1])]

    def codes(verify_only: bool) -> list[set[int]]:
        rows = [
            AddPartitionsToTxnTransaction(
                transactional_id=producer.name,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch + (number == 2),
                verify_only=verify_only,
                topics=topics,
            )
            for number, producer in enumerate(producers)
        ]
        answer = client.ask(AddPartitionsToTxnRequest(transactions=rows), 5)
        return [
            {p.partition_error_code for topic in result.topic_results for p in topic.results_by_partition}
            for result in answer.results_by_transaction
        ]

    fenced = {int(ErrorCode.PRODUCER_FENCED)}
    assert codes(verify_only=True) == [{int(ErrorCode.TRANSACTION_ABORTABLE)}] * 2 + [fenced]
    assert codes(verify_only=False) == [{OK}, {OK}, fenced]
    assert codes(verify_only=True) == [{OK}, {OK}, fenced]
    for producer in producers:
        producer.init()


def test_markers_go_through_the_shards_of_coordinators(client: Client) -> None:
    """A marker that somebody sends into a coordinator's own topic is taken, and means nothing to it."""
    producer = Producer(client, "own-topic")
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transaction_result=False,
        coordinator_epoch=0,
        topics=[WritableTxnMarkerTopic(name="__transaction_state", partition_indexes=list(range(50)))],
    )
    (result,) = client.ask(WriteTxnMarkersRequest(markers=[marker]), 1).markers
    assert {p.error_code for topic in result.topics for p in topic.partitions} == {OK}
    assert producer.write(0) == [OK]
    assert producer.end() == OK


def test_transactional_ids_are_listed(client: Client) -> None:
    Producer(client, "listed-a"), Producer(client, "listed-b")
    request = ListTransactionsRequest(
        state_filters=["Empty"], producer_id_filters=[], transactional_id_pattern="listed-.*"
    )
    answer = client.ask(request, 2)
    assert sorted(row.transactional_id for row in answer.transaction_states) == ["listed-a", "listed-b"]


# ---- the cluster's level --------------------------------------------------------------------------------------


def test_the_log_follows_transaction_version_down_and_up(client: Client) -> None:
    def level(to: int) -> None:
        update = FeatureUpdateKey(
            feature="transaction.version", max_version_level=to, upgrade_type=1 if to == 2 else 2
        )
        answer = client.ask(UpdateFeaturesRequest(timeout_ms=20_000, feature_updates=[update]), 2)
        assert answer.error_code == OK, answer.error_message

    producer = Producer(client, "levels", V1)
    for to in (1, 0, 2):
        level(to)
        producer.add(0)
        assert producer.write(0) == [OK]
        assert producer.end() == OK
    fenced_at_2 = producer.epoch
    producer.init()
    assert producer.epoch == fenced_at_2 + 1


# ---- without a coordinator, without verification --------------------------------------------------------------


@pytest.mark.parametrize("version", [V1, V2])
def test_before_there_is_a_coordinator_a_producer_tries_again(tmp_path: Path, version: int) -> None:
    with Broker(data_dir=tmp_path / "data") as young:
        with Admin(bootstrap_servers=young.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("t", 1)])
        link = Client(young)
        stranger = Producer.__new__(Producer)
        stranger.client, stranger.name, stranger.version, stranger.sequence = link, "stranger", version, 0
        stranger.producer_id, stranger.epoch = 5, 0
        (topic,) = link.ask(*stranger.produce(0)).responses
        (refused,) = topic.partition_responses
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert "COORDINATOR_NOT_AVAILABLE" in refused.error_message
        assert refused.log_start_offset == -1
        link.close()


def test_verification_can_be_turned_off(tmp_path: Path) -> None:
    settings = {"transaction.partition.verification.enable": "false"}
    with Broker(settings, tmp_path / "data") as lax:
        with Admin(bootstrap_servers=lax.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("t", 2)])
        link = Client(lax)
        ready(link)
        old = Producer(link, "old", V1)
        assert old.write(0) == [OK]
        new = Producer(link, "new", V2)
        assert new.write(1) == [OK]
        assert [topic.topic for topic in new.state().topics] == ["t"]
        assert old.state().topics == []
        link.close()
