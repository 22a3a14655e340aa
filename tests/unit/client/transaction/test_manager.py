"""The producer's transactions: both versions, errors that abort and errors that end, lost answers."""

from typing import Any

import pytest
from tests.unit.client.fake_cluster import LOSE_REQUEST, LOSE_RESPONSE, NO_ANSWER, FakeCluster
from tests.unit.client.fake_groups import FakeGroups

from ottla.client.config import ProducerConfig
from ottla.client.errors import (
    ConfigError,
    ProducerFenced,
    StateError,
    TransactionAbortable,
    TransactionAborted,
)
from ottla.client.network import NetworkCore
from ottla.client.offsets import GroupMetadata, OffsetAndMetadata
from ottla.client.producer.accumulator import Delivery
from ottla.client.producer.core import ProducerCore
from ottla.client.transaction.manager import TRANSITIONS, Operation, State, TransactionManager
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.records.batch import BatchView
from ottla.wire.messages.api_versions import ApiVersionsRequest, FinalizedFeatureKey
from ottla.wire.messages.groups.classic import FindCoordinatorRequest
from ottla.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.wire.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

TP = TopicPartition("t", 0)
GROUP = GroupMetadata("g", 3, "me")


class Rig:
    """A producer with transactional id "x" and a cluster with topic "t", of a version of transactions."""

    def __init__(
        self, level: int = 2, nodes: tuple[int, ...] = (1,), *, seed: int = 1, **settings: Any
    ) -> None:
        config = ProducerConfig(
            bootstrap_servers="bootstrap:9092", transactional_id="x", **{"linger_ms": 0, **settings}
        )
        self.core = NetworkCore(config, seed=seed)
        self.producer = ProducerCore(self.core, config)
        self.cluster = FakeCluster(self.core, nodes, seed=seed)
        self.fake = FakeGroups(self.cluster)
        self.cluster.create("t", 3)
        plain = self.cluster._api_versions

        def api_versions(node: int, request: Any, version: int) -> Any:
            response = plain(node, request, version)
            if version >= 3:
                feature = FinalizedFeatureKey(
                    name="transaction.version", max_version_level=level, min_version_level=level
                )
                response.finalized_features, response.finalized_features_epoch = [feature], 1
            return response

        self.cluster.handlers[ApiVersionsRequest] = api_versions

    @property
    def txn(self) -> TransactionManager:
        assert self.producer.transactions is not None
        return self.producer.transactions

    def finish(self, operation: Operation, limit_ms: float = 60_000) -> None:
        assert self.cluster.run(lambda: operation.is_done, limit_ms), operation.name
        if operation.error is not None:
            raise operation.error

    def init(self) -> "Rig":
        self.finish(self.txn.init(self.cluster.now))
        return self

    def send(self, value: bytes, partition: int = 0) -> Delivery:
        if self.producer.topic("t", self.cluster.now) is None:
            assert self.cluster.run(lambda: self.core.metadata.topic("t") is not None)
        delivery, _ = self.producer.try_append("t", partition, (0, None, value, ()), self.cluster.now)
        assert delivery is not None
        return delivery

    def commit(self) -> None:
        self.finish(self.txn.commit(self.cluster.now))

    def abort(self) -> None:
        self.finish(self.txn.abort(self.cluster.now))

    def offsets(self, offset: int) -> Operation:
        return self.txn.send_offsets({TP: OffsetAndMetadata(offset)}, GROUP, self.cluster.now)

    def on(self, kind: type, *outcomes: Any) -> None:
        """The next requests of a kind have these outcomes instead."""
        left = list(outcomes)
        self.cluster.faults.append(
            lambda n, request, v: left.pop(0) if isinstance(request, kind) and left else None
        )

    def sent(self, kind: type) -> list[Any]:
        return self.cluster.requests(kind)

    def stored(self, partition: int = 0) -> list[bytes | None]:
        return [record.value for record in self.cluster.topics["t"].partitions[partition].records()]


def produce_error(code: ErrorCode, partition: int = 0) -> Any:
    def answer(rig: Rig) -> ProduceResponse:
        topic_id = rig.cluster.topics["t"].topic_id
        answers = [PartitionProduceResponse(index=partition, error_code=code, base_offset=-1)]
        return ProduceResponse(
            responses=[TopicProduceResponse(name="t", topic_id=topic_id, partition_responses=answers)]
        )

    return answer


def test_version_2_adds_nothing_and_gets_a_new_epoch_at_every_end() -> None:
    rig = Rig(2).init()
    for number in range(3):
        rig.txn.begin()
        rig.send(b"%d" % number)
        rig.commit()
    assert rig.sent(AddPartitionsToTxnRequest) == []
    assert rig.fake.ended == [(True, 1), (True, 2), (True, 3)]
    batches = [BatchView(data) for data in rig.cluster.partition(TP).batches]
    assert [(b.producer_epoch, b.base_sequence, b.is_transactional) for b in batches] == [
        (1, 0, True),
        (2, 0, True),
        (3, 0, True),
    ]
    assert {request.transactional_id for request in rig.sent(ProduceRequest)} == {"x"}
    assert min(rig.cluster.versions(ProduceRequest)) >= 12
    assert set(rig.cluster.versions(EndTxnRequest)) == {5}


def test_version_1_adds_partitions_before_it_writes_to_them() -> None:
    rig = Rig(1).init()
    for number in range(2):
        rig.txn.begin()
        for partition in range(3):
            rig.send(b"%d" % number, partition)
        rig.send(b"more")
        rig.commit()
    order = [
        type(r)
        for _, _, r, _ in rig.cluster.seen
        if isinstance(r, AddPartitionsToTxnRequest | ProduceRequest)
    ]
    assert order[0] is AddPartitionsToTxnRequest
    assert sum(kind is AddPartitionsToTxnRequest for kind in order) == 2, "once a transaction"
    assert max(rig.cluster.versions(ProduceRequest)) <= 11
    assert max(rig.cluster.versions(EndTxnRequest)) <= 4
    assert rig.fake.ended == [(True, 1), (True, 1)], "the epoch stays"
    sequences = [BatchView(data).base_sequence for data in rig.cluster.partition(TP).batches]
    assert sequences == sorted(set(sequences)), "and the numbers go on"


@pytest.mark.parametrize("level", [1, 2])
def test_offsets_in_the_transaction(level: int) -> None:
    rig = Rig(level).init()
    rig.txn.begin()
    rig.finish(rig.offsets(5))
    rig.finish(rig.offsets(6))
    rig.commit()
    assert rig.fake.offsets[TP] == (6, "")
    request = rig.sent(TxnOffsetCommitRequest)[0]
    assert (request.generation_id_or_member_epoch, request.member_id) == (3, "me")
    assert len(rig.sent(AddOffsetsToTxnRequest)) == (1 if level == 1 else 0)
    assert set(rig.cluster.versions(TxnOffsetCommitRequest)) == ({4} if level == 1 else {5})
    assert len(rig.fake.ended) == 1


@pytest.mark.parametrize("level", [1, 2])
def test_an_empty_transaction_is_nobodys_business(level: int) -> None:
    rig = Rig(level).init()
    for end in (rig.commit, rig.abort):
        rig.txn.begin()
        end()
    assert rig.sent(EndTxnRequest) == []


@pytest.mark.parametrize("level", [1, 2])
def test_an_abort_drops_what_was_not_sent_and_waits_for_what_was(level: int) -> None:
    rig = Rig(level, linger_ms=60_000, batch_size=100).init()
    rig.txn.begin()
    sent = rig.send(b"x" * 200)
    waiting = rig.send(b"waits", 1)
    rig.cluster.pump()
    assert rig.cluster.run(lambda: bool(rig.sent(ProduceRequest)))
    rig.abort()
    assert sent.done()
    assert isinstance(waiting.exception(), TransactionAborted)
    assert rig.stored(1) == []
    assert [committed for committed, _ in rig.fake.ended] == [False]
    rig.txn.begin()
    rig.send(b"next")
    rig.commit()
    assert rig.stored()[-1] == b"next"


# -- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED])
def test_a_fenced_producer_is_at_its_end(level: int, code: ErrorCode) -> None:
    rig = Rig(level).init()
    rig.txn.begin()
    rig.send(b"x")
    rig.on(EndTxnRequest, EndTxnResponse(error_code=code))
    with pytest.raises(ProducerFenced, match="taken over transactional id 'x'"):
        rig.commit()
    for use in (rig.txn.begin, lambda: rig.send(b"y"), rig.abort, rig.commit):
        with pytest.raises(ProducerFenced):
            use()
    assert rig.txn.state is State.FATAL


def test_another_producer_takes_over() -> None:
    rig = Rig(2).init()
    rig.txn.begin()
    rig.fake.transaction_epoch += 1  # somebody else has called init_transactions
    with pytest.raises(ProducerFenced):
        rig.finish(rig.offsets(1))
    assert rig.txn.state is State.FATAL


@pytest.mark.parametrize("level", [1, 2])
def test_a_batch_that_fails_spoils_the_transaction_but_not_the_producer(level: int) -> None:
    rig = Rig(level).init()
    rig.txn.begin()
    bad = rig.send(b"too late")
    rig.on(ProduceRequest, produce_error(ErrorCode.INVALID_RECORD)(rig))
    with pytest.raises(TransactionAbortable, match="abort the transaction") as caught:
        rig.commit()
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert bad.exception() is not None
    with pytest.raises(TransactionAbortable):
        rig.send(b"refused")
    with pytest.raises(TransactionAbortable):
        rig.txn.begin()
    rig.abort()
    assert rig.fake.ended == [(False, 1)]
    rig.txn.begin()
    rig.send(b"good")
    rig.commit()
    last = BatchView(rig.cluster.partition(TP).batches[-1])
    assert (last.producer_epoch, last.base_sequence) == (2, 0), "a new epoch, so that no number is in doubt"
    assert len(rig.sent(InitProducerIdRequest)) == (2 if level == 1 else 1), "version 1 has to ask for it"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, TransactionAbortable),
        (ErrorCode.UNKNOWN_MEMBER_ID, TransactionAbortable),
        (ErrorCode.ILLEGAL_GENERATION, TransactionAbortable),
        (ErrorCode.FENCED_INSTANCE_ID, TransactionAbortable),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, TransactionAbortable),
        (ErrorCode.PRODUCER_FENCED, ProducerFenced),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError),
        (ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, KafkaError),
    ],
)
def test_which_errors_of_an_offset_commit_end_what(code: ErrorCode, kind: type[KafkaError]) -> None:
    rig = Rig(2).init()
    rig.txn.begin()
    partitions = [TxnOffsetCommitResponsePartition(partition_index=0, error_code=code)]
    topic = TxnOffsetCommitResponseTopic(name="t", partitions=partitions)
    rig.on(TxnOffsetCommitRequest, TxnOffsetCommitResponse(topics=[topic]))
    with pytest.raises(kind):
        rig.finish(rig.offsets(1))
    assert rig.txn.state is (State.ABORTABLE if kind is TransactionAbortable else State.FATAL)


def add_error(code: ErrorCode) -> AddPartitionsToTxnResponse:
    results = [AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=code)]
    topic = AddPartitionsToTxnTopicResult(name="t", results_by_partition=results)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])


def test_the_transaction_before_may_take_a_moment_longer() -> None:
    rig = Rig(1).init()
    rig.on(AddPartitionsToTxnRequest, *[add_error(ErrorCode.CONCURRENT_TRANSACTIONS)] * 3)
    rig.txn.begin()
    rig.send(b"x")
    begun = rig.cluster.now
    rig.commit()
    assert rig.stored() == [b"x"]
    assert rig.cluster.now - begun < 200, "not worth the usual backoff"


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, State.ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, State.ABORTABLE),
        (ErrorCode.UNKNOWN_PRODUCER_ID, State.ABORTABLE),
        (ErrorCode.INVALID_TXN_STATE, State.FATAL),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, State.FATAL),
        (ErrorCode.PRODUCER_FENCED, State.FATAL),
    ],
)
def test_which_errors_of_adding_partitions_end_what(code: ErrorCode, state: State) -> None:
    rig = Rig(1).init()
    rig.on(AddPartitionsToTxnRequest, add_error(code))
    rig.txn.begin()
    delivery = rig.send(b"x")
    assert rig.cluster.run(delivery.done)
    assert rig.txn.state is state
    assert rig.stored() == []


def test_a_record_not_delivered_in_time_spoils_the_transaction() -> None:
    rig = Rig(2, delivery_timeout_ms=5000, request_timeout_ms=2000).init()
    rig.txn.begin()
    rig.cluster.faults.append(lambda n, r, v: NO_ANSWER if isinstance(r, ProduceRequest) else None)
    delivery = rig.send(b"x")
    assert rig.cluster.run(delivery.done)
    assert rig.txn.state is State.ABORTABLE
    rig.cluster.faults.clear()
    rig.abort()
    assert rig.txn.state is State.READY


@pytest.mark.parametrize("level", [1, 2])
def test_a_number_out_of_order_is_not_mended_behind_the_coordinators_back(level: int) -> None:
    rig = Rig(level).init()
    rig.txn.begin()
    rig.send(b"x")
    rig.on(ProduceRequest, produce_error(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)(rig))
    with pytest.raises(TransactionAbortable):
        rig.commit()
    assert rig.producer.sender.identity is not None
    assert rig.producer.sender.identity.epoch == 1, "the epoch is the coordinator's to raise"
    rig.abort()


def test_an_abort_of_what_was_being_sent_again_starts_under_a_new_epoch() -> None:
    """Version 1: the batch had its number, and the broker would miss it in the next transaction."""
    rig = Rig(1).init()
    rig.txn.begin()
    rig.send(b"first")
    assert rig.cluster.run(lambda: rig.stored() == [b"first"])
    rig.on(ProduceRequest, produce_error(ErrorCode.NOT_ENOUGH_REPLICAS)(rig))
    rig.send(b"again")
    produced = len(rig.sent(ProduceRequest))
    assert rig.cluster.run(lambda: len(rig.sent(ProduceRequest)) > produced)
    rig.cluster.run_for(3)  # its refusal is there, its second try is not yet due
    rig.abort()
    rig.txn.begin()
    rig.send(b"next")
    rig.commit()
    assert rig.stored() == [b"first", b"next"]
    assert BatchView(rig.cluster.partition(TP).batches[-1]).producer_epoch == 2


def test_partitions_are_added_in_one_request_after_the_other() -> None:
    rig = Rig(1).init()
    rig.txn.begin()
    rig.on(AddPartitionsToTxnRequest, 500.0)
    rig.send(b"x", 0)
    assert rig.cluster.run(lambda: bool(rig.sent(AddPartitionsToTxnRequest)))
    rig.send(b"y", 1)
    rig.send(b"z", 2)
    rig.commit()
    times = [when for when, _, r, _ in rig.cluster.seen if isinstance(r, AddPartitionsToTxnRequest)]
    assert len(times) == 2
    assert times[1] - times[0] >= 500
    assert [len(rig.stored(partition)) for partition in range(3)] == [1, 1, 1]


# -- getting there --------------------------------------------------------------------------------------------


def test_initialization_may_be_tried_again_when_a_right_was_missing() -> None:
    rig = Rig()
    denied = InitProducerIdResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    rig.on(InitProducerIdRequest, denied)
    with pytest.raises(KafkaError, match="not authorized"):
        rig.init()
    rig.init()
    assert rig.txn.state is State.READY


@pytest.mark.parametrize("code", [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
def test_initialization_waits_for_what_passes(code: ErrorCode) -> None:
    rig = Rig()
    rig.on(InitProducerIdRequest, *[InitProducerIdResponse(error_code=code)] * 4)
    rig.init()
    assert len(rig.sent(InitProducerIdRequest)) == 5


def test_the_coordinator_may_move_between_all_of_it() -> None:
    rig = Rig(1, (1, 2, 3)).init()
    for number in range(4):
        rig.fake.node = 1 + number % 3
        rig.txn.begin()
        rig.send(b"%d" % number)
        rig.finish(rig.offsets(number))
        rig.commit()
    assert len(rig.fake.ended) == 4
    assert len(rig.sent(FindCoordinatorRequest)) > 4


def test_whoever_waits_no_longer_may_come_back() -> None:
    rig = Rig().init()
    rig.txn.begin()
    rig.send(b"x")
    rig.cluster.faults.append(lambda n, r, v: 5000.0 if isinstance(r, EndTxnRequest) else None)
    first = rig.txn.commit(rig.cluster.now)
    assert not rig.cluster.run(lambda: first.is_done, 1000)
    assert rig.txn.commit(rig.cluster.now) is first
    with pytest.raises(StateError, match="committing"):
        rig.txn.abort(rig.cluster.now)
    rig.finish(first)


def test_misuse() -> None:
    rig = Rig()
    with pytest.raises(StateError, match="not initialized"):
        rig.txn.begin()
    rig.init()
    with pytest.raises(StateError, match="between transactions"):
        rig.send(b"outside")
    with pytest.raises(StateError, match="between transactions"):
        rig.txn.init(rig.cluster.now)
    with pytest.raises(ConfigError, match="transactional_id"):
        ProducerConfig(transactional_id="")
    with pytest.raises(ConfigError, match="acks=all"):
        ProducerConfig(transactional_id="x", acks=1)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_committed_is_there_once_whatever_is_lost(level: int, seed: int) -> None:
    rig = Rig(level, (1, 2, 3), seed=seed, request_timeout_ms=2000)
    rig.cluster.latency_ms = (0.5, 20.0)
    random = rig.cluster.random

    def weather(node: int, request: Any, version: int) -> Any:
        if isinstance(request, ApiVersionsRequest) or random.random() > 0.1:
            return None
        if level == 1 and isinstance(request, EndTxnRequest | InitProducerIdRequest):
            return LOSE_REQUEST  # version 1 cannot tell an end that is asked for again from a later one
        if random.random() < 0.2:
            rig.fake.node = random.choice((1, 2, 3))
        return random.choice((LOSE_REQUEST, LOSE_RESPONSE))

    rig.init()
    rig.cluster.faults.append(weather)
    committed: list[bytes] = []
    for number in range(12):
        values = [b"%d-%d" % (number, index) for index in range(4)]
        rig.txn.begin()
        try:
            for index, value in enumerate(values):
                rig.send(value, index % 3)
            rig.finish(rig.offsets(number))
            rig.commit()
            committed += values
        except TransactionAbortable:
            rig.abort()
    stored = [value for partition in range(3) for value in rig.stored(partition)]
    assert len(committed) > 0
    for value in committed:
        assert stored.count(value) == 1, value
    assert sum(commits for commits, _ in rig.fake.ended) == len(committed) // 4


def test_the_table_of_transitions_has_every_state() -> None:
    assert TRANSITIONS.keys() == set(State)
    assert all(targets <= set(State) for targets in TRANSITIONS.values())
