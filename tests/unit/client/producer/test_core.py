"""The producer: batching, bounds, retries, and what the brokers end up with."""

import itertools
from typing import Any

import pytest
from tests.unit.client.fake_cluster import LOSE_REQUEST, LOSE_RESPONSE, NO_ANSWER, FakeCluster

from ottla.client.config import ProducerConfig
from ottla.client.errors import Closed, RecordTooLarge, TimedOut
from ottla.client.network import NetworkCore
from ottla.client.producer.accumulator import Delivery
from ottla.client.producer.core import ProducerCore
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.records.batch import HEADER_SIZE, BatchView
from ottla.wire.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.wire.messages.producers import InitProducerIdRequest, InitProducerIdResponse


class Rig:
    """A producer and a cluster that has topic "t"."""

    def __init__(
        self,
        nodes: tuple[int, ...] = (1,),
        *,
        partitions: int = 1,
        seed: int = 1,
        partitioner: Any = None,
        **settings: Any,
    ) -> None:
        self.config = ProducerConfig(bootstrap_servers="bootstrap:9092", **settings)
        self.core = NetworkCore(self.config, seed=seed)
        self.producer = ProducerCore(self.core, self.config, partitioner=partitioner)
        self.cluster = FakeCluster(self.core, nodes, seed=seed)
        self.topic = self.cluster.create("t", partitions)
        self.producer.topic("t", 0.0)
        assert self.cluster.run(lambda: self.core.metadata.topic("t") is not None)

    def send(self, value: bytes, key: bytes | None = None, partition: int | None = None) -> Delivery:
        record = (1000, key, value, ())
        delivery, _ = self.producer.try_append("t", partition, record, self.cluster.now)
        assert delivery is not None
        return delivery

    def settle(self, deliveries: list[Delivery], limit_ms: float = 300_000) -> None:
        assert self.cluster.run(lambda: all(d.done() for d in deliveries), limit_ms)

    def values(self, partition: int = 0) -> list[bytes | None]:
        return [record.value for record in self.topic.partitions[partition].records()]

    def produce_requests(self) -> list[ProduceRequest]:
        return self.cluster.requests(ProduceRequest)


def answer(error: ErrorCode, *, leader: tuple[int, int] | None = None, **more: Any) -> ProduceResponse:
    """A refusal of partition 0 of the first topic."""
    current = LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1]) if leader else LeaderIdAndEpoch()
    partition = PartitionProduceResponse(
        index=0, error_code=error, base_offset=-1, current_leader=current, **more
    )
    topic_id = (1).to_bytes(16, "big")
    return ProduceResponse(
        responses=[TopicProduceResponse(name="t", topic_id=topic_id, partition_responses=[partition])]
    )


def refuse(rig: Rig, count: int, response: Any) -> None:
    """The next Produce requests are answered so, whatever is in them."""
    left = [count]

    def fault(node: int, request: Any, version: int) -> Any:
        if isinstance(request, ProduceRequest) and left[0]:
            left[0] -= 1
            return response
        return None

    rig.cluster.faults.append(fault)


def test_records_arrive_in_order_and_know_where() -> None:
    rig = Rig()
    deliveries = [rig.send(b"v%d" % i) for i in range(10)]
    rig.settle(deliveries)
    assert rig.values() == [b"v%d" % i for i in range(10)]
    assert [d.metadata().offset for d in deliveries] == list(range(10))
    assert deliveries[0].metadata() == ("t", 0, 0, 1000)


def test_what_comes_within_linger_goes_together() -> None:
    rig = Rig(linger_ms=20)
    deliveries = [rig.send(b"a")]
    rig.cluster.run_for(10)
    deliveries.append(rig.send(b"b"))
    rig.settle(deliveries)
    assert len(rig.topic.partitions[0].batches) == 1
    assert len(rig.produce_requests()) == 1


def test_a_full_batch_does_not_wait_for_linger() -> None:
    rig = Rig(linger_ms=10_000, batch_size=1000)
    started = rig.cluster.now
    deliveries = [rig.send(b"x" * 300) for _ in range(3)]
    rig.send(b"x" * 300)
    rig.settle(deliveries)
    assert rig.cluster.now - started < 100
    assert len(rig.values()) == 3


def test_a_flush_does_not_wait_for_linger() -> None:
    rig = Rig(linger_ms=10_000)
    started = rig.cluster.now
    delivery = rig.send(b"x")
    rig.producer.accumulator.hurry += 1
    rig.settle([delivery])
    assert rig.cluster.now - started < 100


def test_batches_for_one_broker_share_requests_within_max_request_size() -> None:
    rig = Rig(partitions=8, batch_size=1000, max_request_size=3000, linger_ms=0)
    deliveries = [rig.send(b"x" * 900, partition=p) for p in range(8)]
    rig.settle(deliveries)
    sizes = [sum(len(t.partition_data) for t in r.topic_data) for r in rig.produce_requests()]
    assert sum(sizes) == 8
    assert max(sizes) == 2


def test_leaders_get_what_is_theirs() -> None:
    rig = Rig((1, 2, 3), partitions=6)
    deliveries = [rig.send(b"%d" % p, partition=p) for p in range(6)]
    rig.settle(deliveries)
    assert [rig.values(p) for p in range(6)] == [[b"%d" % p] for p in range(6)]
    assert {node for _, node, r, _ in rig.cluster.seen if isinstance(r, ProduceRequest)} == {1, 2, 3}


def test_keys_choose_the_partition_and_a_callable_may_instead() -> None:
    rig = Rig(partitions=4)
    deliveries = [rig.send(b"v", key=b"foobar") for _ in range(3)]
    rig.settle(deliveries)
    assert {d.metadata().partition for d in deliveries} == {(-790332482 & 0x7FFFFFFF) % 4}
    rig = Rig(partitions=4, partitioner=lambda topic, key, count, available: 3)
    delivery = rig.send(b"v", key=b"foobar")
    rig.settle([delivery])
    assert delivery.metadata().partition == 3


def test_a_partition_that_is_not_there_is_refused_at_once() -> None:
    with pytest.raises(KafkaError, match="partitions 0 to 0, not 5"):
        Rig().send(b"v", partition=5)


def test_keyless_records_stick_and_spread() -> None:
    rig = Rig(partitions=4, batch_size=2000, linger_ms=50)
    deliveries = [rig.send(b"x" * 90) for _ in range(800)]
    rig.settle(deliveries)
    counts = [len(p.batches) for p in rig.topic.partitions]
    assert all(counts)
    # About twenty records of a hundred bytes to a batch; no trail of batches of one.
    assert sum(counts) <= 800 / 20 * 1.3


def test_memory_is_counted_and_freed() -> None:
    rig = Rig(buffer_memory=2000, linger_ms=1000)
    accumulator = rig.producer.accumulator
    deliveries = [rig.send(b"x" * 500) for _ in range(3)]
    assert not accumulator.has_room(500)
    accumulator.blocked = True  # what a driver says when it has to wait: linger no longer counts
    rig.settle(deliveries)
    assert accumulator.used_bytes == 0
    assert accumulator.has_room(2000 - HEADER_SIZE)
    assert not accumulator.has_room(2000 - HEADER_SIZE + 1)


@pytest.mark.parametrize("memory", range(1000, 1700, 37))
def test_memory_is_never_exceeded(memory: int) -> None:
    rig = Rig(buffer_memory=memory, batch_size=300, linger_ms=1000)
    accumulator = rig.producer.accumulator
    while accumulator.has_room(110):
        rig.send(b"x" * 100)
        assert accumulator.used_bytes <= memory
    assert len(accumulator.incomplete) > 1


def test_a_record_that_can_never_go_is_refused_at_once() -> None:
    rig = Rig(max_request_size=1000)
    with pytest.raises(RecordTooLarge, match="max_request_size"):
        rig.send(b"x" * 1000)
    rig.settle([rig.send(b"x" * 900)])


def test_acks_0_is_done_when_it_is_sent() -> None:
    rig = Rig(acks=0)
    deliveries = [rig.send(b"%d" % i) for i in range(3)]
    rig.settle(deliveries)
    assert deliveries[0].metadata().offset == -1
    rig.cluster.run_for(10)
    assert rig.values() == [b"0", b"1", b"2"]
    assert rig.cluster.requests(InitProducerIdRequest) == []


def test_the_version_goes_by_names_where_ids_are_not_known() -> None:
    rig = Rig()
    rig.settle([rig.send(b"a")])
    assert rig.cluster.versions(ProduceRequest) == [13]
    core = NetworkCore(rig.config, seed=1)
    producer = ProducerCore(core, rig.config)
    cluster = FakeCluster(core)
    cluster.ranges[3] = (0, 9)  # Metadata before topic ids
    cluster.create("t")
    producer.topic("t", 0.0)
    assert cluster.run(lambda: producer.topic("t", cluster.now) is not None)
    delivery, _ = producer.try_append("t", None, (0, None, b"x", ()), cluster.now)
    assert delivery is not None
    assert cluster.run(delivery.done)
    assert delivery.exception() is None
    assert cluster.versions(ProduceRequest) == [12]


def test_an_answer_is_matched_by_the_id_the_batch_was_sent_under() -> None:
    """The topic is made anew, and the client hears of it, while the answer is on its way."""
    rig = Rig()
    old_id = rig.topic.topic_id

    def made_anew(node: int, request: Any, version: int) -> Any:
        if isinstance(request, ProduceRequest):
            info = rig.core.metadata.topics["t"]
            rig.core.metadata.names_by_id.pop(old_id, None)
            info.topic_id = Uuid(b"n" * 16)
            rig.core.metadata.names_by_id[info.topic_id] = "t"
        return None

    rig.cluster.faults.append(made_anew)
    delivery = rig.send(b"a")
    rig.settle([delivery])
    assert delivery.metadata().offset == 0
    assert len(rig.produce_requests()) == 1


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_batches_are_compressed(codec: str) -> None:
    rig = Rig(compression_type=codec)
    deliveries = [rig.send(b"again and again " * 20) for _ in range(20)]
    rig.settle(deliveries)
    batch = BatchView(rig.topic.partitions[0].batches[0])
    assert batch.compression != 0
    assert batch.size_bytes < 20 * 320 / 2
    assert rig.values() == [b"again and again " * 20] * 20


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(KafkaError, match="none, gzip"):
        Rig(compression_type="zip")


@pytest.mark.parametrize("fault", [LOSE_REQUEST, LOSE_RESPONSE])
def test_a_lost_request_or_answer_is_made_good_without_duplicates(fault: str) -> None:
    rig = Rig()
    refuse(rig, 3, fault)
    deliveries = [rig.send(b"%d" % i) for i in range(5)]
    rig.settle(deliveries)
    assert rig.values() == [b"%d" % i for i in range(5)]
    assert [d.metadata().offset for d in deliveries] == list(range(5))


def test_a_new_leader_is_found() -> None:
    rig = Rig((1, 2))
    rig.settle([rig.send(b"a")])
    rig.topic.partitions[0].leader, rig.topic.partitions[0].epoch = 2, 1
    delivery = rig.send(b"b")
    rig.settle([delivery])
    assert rig.values() == [b"a", b"b"]


def test_an_answer_that_names_the_new_leader_saves_asking() -> None:
    rig = Rig((1, 2))
    rig.settle([rig.send(b"a")])
    asked = len(rig.cluster.requests(type(rig.core.metadata.next_request(0))))
    rig.topic.partitions[0].leader, rig.topic.partitions[0].epoch = 2, 1
    hint = answer(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=(2, 1))
    hint.node_endpoints = [NodeEndpoint(node_id=2, host="broker2", port=9092)]
    refuse(rig, 1, hint)
    # Metadata answers are late: what the producer does, it does on the hint.
    rig.cluster.faults.append(
        lambda node, request, version: 5_000.0 if request.NAME == "MetadataRequest" else None
    )
    started = rig.cluster.now
    delivery = rig.send(b"b")
    rig.settle([delivery])
    sent_to_new = [
        when
        for when, node, request, _ in rig.cluster.seen
        if node == 2 and isinstance(request, ProduceRequest)
    ]
    assert sent_to_new[0] - started < 1_000
    assert rig.values() == [b"a", b"b"]
    assert asked >= 1


def test_a_leader_that_is_cut_off_does_not_keep_its_producers() -> None:
    """It lets them wait in vain, and whoever they are connected to believes in it still."""
    rig = Rig((1, 2, 3))
    rig.settle([rig.send(b"a")])
    cut_off = {node for _, node, _, _ in rig.cluster.seen}
    assert len(cut_off) < 3
    old: list[Any] = []

    def fault(node: int, request: Any, version: int) -> Any:
        if node not in cut_off:
            return None
        if isinstance(request, ProduceRequest):
            return answer(ErrorCode.REQUEST_TIMED_OUT)
        if request.NAME == "MetadataRequest":
            return old[0]
        return None

    request = rig.core.metadata.next_request(rig.cluster.now)
    old.append(rig.cluster.handlers[type(request)](1, request, 12))
    new = min({1, 2, 3} - cut_off)
    rig.topic.partitions[0].leader, rig.topic.partitions[0].epoch = new, 1
    rig.cluster.faults.append(fault)
    started = rig.cluster.now
    rig.settle([rig.send(b"b")])
    assert rig.values() == [b"a", b"b"]
    assert rig.cluster.now - started < 10_000


def test_an_error_that_does_not_pass_fails_the_batch_with_the_brokers_words() -> None:
    rig = Rig()
    refuse(rig, 1, answer(ErrorCode.INVALID_RECORD, error_message="no key"))
    delivery, other = rig.send(b"a"), None
    rig.settle([delivery])
    error = delivery.exception()
    assert error is not None
    assert error.code is ErrorCode.INVALID_RECORD
    assert "no key" in str(error)
    with pytest.raises(KafkaError, match="no key"):
        delivery.metadata()
    other = rig.send(b"b")
    rig.settle([other])
    assert rig.values() == [b"b"]


def test_retries_end_with_the_number_of_them() -> None:
    rig = Rig(acks=1, retries=2)
    refuse(rig, 99, answer(ErrorCode.NOT_ENOUGH_REPLICAS))
    delivery = rig.send(b"a")
    rig.settle([delivery])
    error = delivery.exception()
    assert error is not None
    assert error.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert len(rig.produce_requests()) == 3


def test_retries_end_with_the_delivery_timeout_which_says_why() -> None:
    rig = Rig(delivery_timeout_ms=5_000)
    rig.cluster.stop(1)
    started = rig.cluster.now
    delivery = rig.send(b"a")
    rig.settle([delivery])
    assert isinstance(delivery.exception(), TimedOut)
    assert "connection refused" in str(delivery.exception())
    assert abs(rig.cluster.now - started - 5_000) < 2
    assert rig.producer.accumulator.used_bytes == 0


def test_retries_back_off() -> None:
    rig = Rig()
    refuse(rig, 4, answer(ErrorCode.NOT_ENOUGH_REPLICAS))
    delivery = rig.send(b"a")
    rig.settle([delivery])
    times = [when for when, _, r, _ in rig.cluster.seen if isinstance(r, ProduceRequest)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert [gap > 75 * 2**n for n, gap in enumerate(gaps)] == [True] * 4


def test_a_batch_too_large_for_the_broker_is_sent_in_parts() -> None:
    rig = Rig(batch_size=10_000, linger_ms=5)
    real = rig.cluster.handlers[ProduceRequest]

    def small(node: int, request: Any, version: int) -> Any:
        data = request.topic_data[0].partition_data[0].records
        return answer(ErrorCode.MESSAGE_TOO_LARGE) if len(data) > 1200 else real(node, request, version)

    rig.cluster.handlers[ProduceRequest] = small
    deliveries = [rig.send(b"%04d" % i + b"x" * 300) for i in range(25)]
    rig.settle(deliveries)
    assert [(value or b"")[:4] for value in rig.values()] == [b"%04d" % i for i in range(25)]
    assert [d.metadata().offset for d in deliveries] == list(range(25))
    assert rig.producer.accumulator.used_bytes == 0


def test_one_record_too_large_for_the_broker_fails() -> None:
    rig = Rig()
    refuse(rig, 99, answer(ErrorCode.MESSAGE_TOO_LARGE))
    delivery = rig.send(b"x" * 5000)
    rig.settle([delivery])
    error = delivery.exception()
    assert error is not None
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE


def test_callbacks_hear_of_success_and_failure_once() -> None:
    rig = Rig()
    heard: list[Any] = []
    refuse(rig, 1, answer(ErrorCode.INVALID_RECORD))
    bad = rig.send(b"a")
    bad.add_done_callback(lambda d: heard.append(d.exception().code))
    rig.settle([bad])
    good = rig.send(b"b")
    good.add_done_callback(lambda d: heard.append(d.metadata().offset))
    rig.settle([good])
    good.add_done_callback(lambda d: heard.append("late"))
    assert heard == [ErrorCode.INVALID_RECORD, 0, "late"]


def test_a_callback_that_fails_keeps_no_other_from_its_outcome() -> None:
    rig = Rig(partitions=2)
    deliveries = [rig.send(b"%d" % p, partition=p) for p in (0, 1)]
    heard: list[int] = []
    for delivery in deliveries:
        delivery.add_done_callback(lambda _: 1 / 0)
        delivery.add_done_callback(lambda d: heard.append(d.metadata().partition))
    rig.settle(deliveries)
    assert sorted(heard) == [0, 1]
    assert len(rig.produce_requests()) == 1


def test_without_a_producer_id_nothing_can_be_sent() -> None:
    rig = Rig()
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    rig.cluster.handlers[InitProducerIdRequest] = lambda *_: InitProducerIdResponse(
        error_code=code, producer_epoch=-1
    )
    delivery = rig.send(b"a")
    rig.settle([delivery])
    error = delivery.exception()
    assert error is not None
    assert error.code is code
    with pytest.raises(KafkaError, match="no producer id"):
        rig.send(b"b")


def test_aborting_fails_what_waits() -> None:
    rig = Rig(linger_ms=1000)
    delivery = rig.send(b"a")
    rig.producer.abort(Closed())
    assert isinstance(delivery.exception(), Closed)
    assert rig.producer.accumulator.used_bytes == 0


def test_one_request_at_a_time_keeps_order_without_idempotence() -> None:
    rig = Rig(acks=1, max_in_flight_requests_per_connection=1, batch_size=100, linger_ms=0)
    refuse(rig, 2, answer(ErrorCode.NOT_ENOUGH_REPLICAS))
    deliveries = [rig.send(b"%02d" % i + b"x" * 90) for i in range(6)]
    rig.settle(deliveries)
    assert [(value or b"")[:2] for value in rig.values()] == [b"%02d" % i for i in range(6)]


def test_a_topic_that_may_not_be_written_says_so() -> None:
    rig = Rig()
    info = rig.core.metadata.topics["t"]
    info.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
        rig.producer.topic("t", rig.cluster.now)


def test_a_hanging_broker_is_left_and_asked_again() -> None:
    rig = Rig(request_timeout_ms=400)
    refuse(rig, 1, NO_ANSWER)
    delivery = rig.send(b"a")
    rig.settle([delivery])
    # The request that got no answer was carried out all the same: the retry finds it there.
    assert rig.values() == [b"a"]
    assert delivery.metadata().offset == 0
