"""Finished batches on their way: order, retries, refusals, both versions of transactions."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.client.fake_cluster import LOSE_REQUEST, LOSE_RESPONSE, NO_ANSWER, FakeCluster
from tests.unit.client.fake_groups import FakeGroups

from ottla.client.config import ClientConfig
from ottla.client.errors import ProducerFenced, TimedOut
from ottla.client.network import NetworkCore
from ottla.client.producer.inline import RawProducer, Written
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.records.batch import MAX_SEQUENCE, iter_batches
from ottla.records.record import build_batch
from ottla.wire.messages.api_versions import ApiVersionsRequest, FinalizedFeatureKey
from ottla.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.wire.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)

PRODUCER_ID, EPOCH = 1000, 3
TP = TopicPartition("t", 0)


class Rig:
    """A producer and a cluster with topic "t"."""

    def __init__(
        self,
        nodes: tuple[int, ...] = (1,),
        *,
        partitions: int = 1,
        transactional: bool = False,
        level: int = 2,
        seed: int = 1,
        max_request_bytes: int = 1 << 20,
        **settings: Any,
    ) -> None:
        config = ClientConfig(bootstrap_servers="bootstrap:9092", allow_auto_create_topics=False, **settings)
        self.core = NetworkCore(config, seed=seed)
        self.cluster = FakeCluster(self.core, nodes, seed=seed)
        self.groups = FakeGroups(self.cluster)
        self.cluster.ranges[24] = (0, 5)
        self.cluster.handlers[AddPartitionsToTxnRequest] = self._add_partitions
        self.add_errors: list[ErrorCode] = []
        self.in_transaction: set[TopicPartition] = set()
        self._set_level(level)
        self.topic = self.cluster.create("t", partitions)
        assert self.cluster.run(lambda: self.core.metadata.version > 0)
        client: Any = SimpleNamespace(
            core=self.core, now_ms=lambda: self.cluster.now, until=self.cluster.run, turn=lambda: None
        )
        self.producer = RawProducer(
            client,
            producer_id=PRODUCER_ID,
            producer_epoch=EPOCH,
            transactional_id="x" if transactional else None,
            max_request_bytes=max_request_bytes,
        )
        self.sender = self.producer.sender
        self.transactional = transactional
        self.sent: dict[TopicPartition, list[bytes]] = {}

    def _set_level(self, level: int) -> None:
        plain = self.cluster.handlers[ApiVersionsRequest]

        def with_features(node: int, request: Any, version: int) -> Any:
            response = plain(node, request, version)
            if version >= 3:
                response.finalized_features = [
                    FinalizedFeatureKey(
                        name="transaction.version", min_version_level=level, max_version_level=level
                    )
                ]
                response.finalized_features_epoch = 1
            return response

        self.cluster.handlers[ApiVersionsRequest] = with_features

    def _add_partitions(self, node: int, request: Any, version: int) -> Any:
        assert version <= 3
        assert request.v3_and_below_transactional_id == "x"
        assert (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch) == (PRODUCER_ID, EPOCH)
        code = self.add_errors.pop(0) if self.add_errors else ErrorCode.NONE
        results = []
        for topic in request.v3_and_below_topics:
            if not code:
                self.in_transaction |= {TopicPartition(topic.name, p) for p in topic.partitions}
            each = [
                AddPartitionsToTxnPartitionResult(partition_index=p, partition_error_code=code)
                for p in topic.partitions
            ]
            results.append(AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=each))
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)

    def send(self, tp: TopicPartition = TP, count: int = 2, size_bytes: int = 10) -> None:
        values = self.sent.setdefault(tp, [])
        batch = [b"%d-%d" % (tp.partition, len(values) + n) for n in range(count)]
        values += batch
        data = build_batch(
            [(1000, None, value.ljust(size_bytes), ()) for value in batch],
            producer_id=0 if self.transactional else -1,
            transactional=self.transactional,
        )
        self.producer.send(tp, count, data)

    def flush(self) -> None:
        self.flushed = self.producer.flush()

    def values(self, tp: TopicPartition = TP) -> list[bytes]:
        return [(record.value or b"").rstrip() for record in self.cluster.partition(tp).records()]

    def check(self) -> None:
        """Everything that was sent is there, once and in order."""
        for tp, values in self.sent.items():
            assert self.values(tp) == values
        assert self.sender.accumulator.used_bytes == self.sender.in_flight_bytes == 0

    def written(self, tp: TopicPartition = TP) -> Written | None:
        return self.flushed.get(tp)


def refusal(error: ErrorCode, *, offset: int = -1, leader: tuple[int, int] = (-1, -1), **more: Any) -> Any:
    partition = PartitionProduceResponse(
        index=0,
        error_code=error,
        base_offset=offset,
        current_leader=LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1]),
        **more,
    )
    topic_id = (1).to_bytes(16, "big")
    return ProduceResponse(
        responses=[TopicProduceResponse(name="t", topic_id=topic_id, partition_responses=[partition])]
    )


def faults(rig: Rig, *outcomes: Any) -> None:
    """What happens to the next Produce requests, one after another."""
    left = list(outcomes)

    def fault(node: int, request: Any, version: int) -> Any:
        return left.pop(0) if isinstance(request, ProduceRequest) and left else None

    rig.cluster.faults.append(fault)


def test_batches_arrive_once_and_in_order() -> None:
    rig = Rig(partitions=3)
    for number in range(30):
        rig.send(TopicPartition("t", number % 3), count=1 + number % 4)
    rig.flush()
    rig.check()
    assert rig.written(TP) == Written(0, len(rig.sent[TP]) - 1, len(rig.sent[TP]))


def test_the_first_batch_goes_alone_then_up_to_five_are_in_flight() -> None:
    """A partition that does not know the producer would take any number as its first."""
    rig = Rig()
    rig.cluster.faults.append(lambda node, request, _: 50.0 if isinstance(request, ProduceRequest) else None)
    for _ in range(12):
        rig.send()
    rig.flush()
    sent_at = [when for when, _, request, _ in rig.cluster.seen if isinstance(request, ProduceRequest)]
    assert len({sent_at[0], *sent_at[1:2]}) == 2
    assert sent_at[1] == sent_at[5] < sent_at[6]
    rig.check()


def test_a_request_holds_one_batch_a_partition_within_its_size() -> None:
    rig = Rig(partitions=8, max_request_bytes=1000)
    for number in range(8):
        rig.send(TopicPartition("t", number), count=1, size_bytes=300)
    rig.flush()
    requests = rig.cluster.requests(ProduceRequest)
    sizes = [[len(p.records) for t in r.topic_data for p in t.partition_data] for r in requests]
    assert all(sum(batches) <= 1000 for batches in sizes)
    assert max(map(len, sizes)) == 2
    assert {r.acks for r in requests} == {-1}
    rig.check()


@pytest.mark.parametrize("fault", [LOSE_REQUEST, LOSE_RESPONSE, NO_ANSWER])
@pytest.mark.parametrize("when", [0, 1, 3])
def test_lost_requests_and_answers_change_nothing(fault: Any, when: int) -> None:
    rig = Rig()
    faults(rig, *[None] * when, fault)
    for _ in range(10):
        rig.send()
    rig.flush()
    rig.check()
    assert rig.written() == Written(0, 19, 20)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ],
)
def test_errors_that_pass_are_tried_again_under_the_same_number(code: ErrorCode) -> None:
    rig = Rig()
    faults(rig, None, None, refusal(code))
    for _ in range(8):
        rig.send()
    rig.flush()
    rig.check()


def test_what_was_sent_behind_a_failed_batch_waits_for_it() -> None:
    """It comes back out of order; then all go one by one until the queue is whole again."""
    rig = Rig()
    faults(rig, None, refusal(ErrorCode.NOT_ENOUGH_REPLICAS), None, None)
    for _ in range(8):
        rig.send()
    rig.flush()
    rig.check()


def test_a_new_leader_is_found_by_its_hint() -> None:
    rig = Rig((1, 2))
    rig.send()
    rig.flush()
    partition = rig.cluster.partition(TP)
    partition.leader, partition.epoch = 2, 1
    faults(rig, refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=(2, 1)))
    for _ in range(6):
        rig.send()
    rig.flush()
    rig.check()


def test_a_broker_that_comes_back_is_waited_for() -> None:
    rig = Rig()
    rig.send()
    rig.flush()
    rig.cluster.stop(1)
    for _ in range(6):
        rig.send()
    rig.cluster.at(20_000, lambda: rig.cluster.down.clear())
    rig.flush()
    rig.check()


def test_a_broker_that_stays_away_is_told() -> None:
    rig = Rig()
    rig.send()
    rig.flush()
    rig.cluster.stop(1)
    rig.send()
    with pytest.raises(
        TimedOut, match=r"2 record\(s\) for t-0 were not delivered within 120000 ms .*refused"
    ):
        rig.flush()


def test_a_duplicate_is_a_success() -> None:
    rig = Rig()
    rig.send()
    rig.flush()
    faults(rig, refusal(ErrorCode.DUPLICATE_SEQUENCE_NUMBER))
    rig.send()
    rig.flush()
    assert rig.written() == Written(0, 1, 4)  # where it was written, the broker does not say


def test_numbers_wrap() -> None:
    rig = Rig()
    rig.send(count=2)
    rig.flush()
    partition = rig.cluster.partition(TP)
    assert rig.sender.identity is not None
    sequences = rig.sender.identity.partitions[TP]
    sequences.next_sequence = MAX_SEQUENCE - 2
    _, recent = partition.producers[PRODUCER_ID]
    recent.append((MAX_SEQUENCE - 4, MAX_SEQUENCE - 3, 0))
    for _ in range(4):
        rig.send(count=2)
    rig.flush()
    assert sequences.next_sequence == 5
    sent = [batch for r in rig.cluster.requests(ProduceRequest) for batch in iter_batches(records_of(r))]
    assert [batch.base_sequence for batch in sent] == [0, MAX_SEQUENCE - 2, MAX_SEQUENCE, 1, 3]
    rig.check()


def records_of(request: ProduceRequest) -> Any:
    return request.topic_data[0].partition_data[0].records


@pytest.mark.parametrize("when", [1, 2, 3])
def test_batches_behind_a_failed_one_keep_their_order_where_numbers_wrap(when: int) -> None:
    rig = Rig()
    rig.send(count=2)
    rig.flush()
    assert rig.sender.identity is not None
    rig.sender.identity.partitions[TP].next_sequence = MAX_SEQUENCE - 2
    _, recent = rig.cluster.partition(TP).producers[PRODUCER_ID]
    recent.append((MAX_SEQUENCE - 4, MAX_SEQUENCE - 3, 0))
    faults(rig, *[None] * (when - 1), refusal(ErrorCode.NOT_ENOUGH_REPLICAS))
    for _ in range(5):
        rig.send(count=2)
    rig.flush()
    rig.check()


def test_a_real_gap_ends_it() -> None:
    """The broker has lost what it acknowledged: nothing after that may be written as if it had not."""
    rig = Rig()
    rig.send()
    rig.flush()
    faults(rig, refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    rig.send()
    with pytest.raises(KafkaError, match="t-0") as caught:
        rig.flush()
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD])
def test_a_refusal_names_the_partition_and_ends_it(code: ErrorCode) -> None:
    rig = Rig()
    rig.send()
    rig.flush()
    why = BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="no key")
    faults(rig, refusal(code, error_message="not taken", record_errors=[why]))
    for _ in range(4):
        rig.send()
    with pytest.raises(KafkaError, match="t-0: not taken; record 1: no key") as caught:
        rig.flush()
    assert caught.value.code is code
    rig.cluster.run_for(60_000)  # answers to the others come, and nobody minds
    assert rig.sender.fatal is caught.value


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_who_is_fenced_is_told_so(code: ErrorCode) -> None:
    rig = Rig(transactional=True)
    faults(rig, refusal(code))
    rig.send()
    with pytest.raises(ProducerFenced, match=r"t-0.*another producer"):
        rig.flush()


def test_a_topic_that_does_not_exist_is_told() -> None:
    rig = Rig()
    rig.send(TopicPartition("u", 0))
    with pytest.raises(KafkaError, match="u-0 does not exist"):
        rig.flush()


def test_a_partition_that_does_not_exist_is_told() -> None:
    rig = Rig()
    rig.send(TopicPartition("t", 5))
    with pytest.raises(KafkaError, match="t-5 does not exist"):
        rig.flush()


def test_after_close_nothing_is_sent() -> None:
    rig = Rig()
    rig.send()
    rig.producer.close()
    rig.cluster.run_for(10_000)
    assert rig.cluster.requests(ProduceRequest) == []
    assert rig.sender not in rig.core.request_managers


# -- transactions ---------------------------------------------------------------------------------------


def test_version_2_adds_nothing_and_says_so_by_its_version() -> None:
    rig = Rig(transactional=True, partitions=2)
    for number in range(6):
        rig.send(TopicPartition("t", number % 2))
    rig.flush()
    rig.check()
    assert rig.cluster.requests(AddPartitionsToTxnRequest) == []
    assert {r.transactional_id for r in rig.cluster.requests(ProduceRequest)} == {"x"}
    assert set(rig.cluster.versions(ProduceRequest)) == {13}


def test_version_1_adds_each_partition_once_before_its_first_batch() -> None:
    rig = Rig(transactional=True, level=1, partitions=3)

    def added_first(node: int, request: Any, version: int) -> Any:
        if isinstance(request, ProduceRequest):
            assert version == 11
            wanted = {TopicPartition(t.name, p.index) for t in request.topic_data for p in t.partition_data}
            assert wanted <= rig.in_transaction
        return None

    rig.cluster.faults.append(added_first)
    for number in range(6):
        rig.send(TopicPartition("t", number % 2))
    rig.flush()
    rig.send(TopicPartition("t", 2))
    rig.flush()
    rig.check()
    assert len(rig.cluster.requests(AddPartitionsToTxnRequest)) == 2


def test_version_1_waits_for_the_end_of_the_transaction_before() -> None:
    rig = Rig(transactional=True, level=1)
    rig.add_errors = [ErrorCode.CONCURRENT_TRANSACTIONS] * 3
    rig.send()
    rig.flush()
    rig.check()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.PRODUCER_FENCED, ProducerFenced),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, KafkaError),
        (ErrorCode.INVALID_TXN_STATE, KafkaError),
    ],
)
def test_version_1_cannot_write_what_cannot_be_added(code: ErrorCode, kind: type[KafkaError]) -> None:
    rig = Rig(transactional=True, level=1)
    rig.add_errors = [code]
    rig.send()
    with pytest.raises(kind, match="'x': partitions cannot be added"):
        rig.flush()
    assert rig.cluster.requests(ProduceRequest) == []


# -- anything -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_whatever_goes_wrong_every_record_is_there_once_and_in_order(seed: int) -> None:
    chance = random.Random(seed)
    rig = Rig(
        (1, 2, 3),
        partitions=4,
        seed=seed,
        transactional=bool(seed % 2),
        level=1 + seed // 2 % 2,
        max_request_bytes=900,
    )
    rig.cluster.latency_ms = (0.5, 30.0)
    troubles: list[Any] = [LOSE_REQUEST, LOSE_RESPONSE, refusal(ErrorCode.NOT_ENOUGH_REPLICAS), 200.0]

    def trouble(node: int, request: Any, version: int) -> Any:
        if not isinstance(request, ProduceRequest) or chance.random() > 0.25:
            return None
        return chance.choice(troubles)

    def move() -> None:
        partition = chance.choice(rig.topic.partitions)
        partition.leader, partition.epoch = chance.choice([1, 2, 3]), partition.epoch + 1

    rig.cluster.faults.append(trouble)
    for _ in range(60):
        rig.send(TopicPartition("t", chance.randrange(4)), count=chance.randint(1, 5), size_bytes=50)
        if chance.random() < 0.3:
            rig.cluster.at(chance.uniform(0, 500), move)
        rig.cluster.run_for(chance.choice([0.0, 1.0, 40.0]))
    rig.flush()
    rig.check()
    for tp, values in rig.sent.items():
        assert rig.written(tp) == Written(0, len(values) - 1, len(values))
