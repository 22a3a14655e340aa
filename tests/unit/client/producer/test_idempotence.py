"""The idempotent producer under loss, delay, hanging brokers and moving leaders: in order, once, nothing missing.

Every history comes from a seed; a failure prints it as the test's parameter.
"""

from random import Random
from typing import Any

import pytest
from tests.unit.client.fake_cluster import LOSE_REQUEST, LOSE_RESPONSE, NO_ANSWER
from tests.unit.client.producer.test_core import Rig, answer, refuse

from ottla.client.producer.accumulator import Delivery, ProducerBatch
from ottla.client.producer.identity import MAX_EPOCH, OnGap, PartitionSequences, ProducerIdentity
from ottla.model.errors import ErrorCode
from ottla.model.ids import TopicPartition
from ottla.records.batch import MAX_SEQUENCE, BatchView
from ottla.wire.messages.produce import ProduceRequest

TP = TopicPartition("t", 0)


class Storm:
    """Trouble by chance, for a while."""

    def __init__(self, rig: Rig, seed: int, *, until_ms: float, latency_ms: float = 20.0) -> None:
        self._rig = rig
        self._random = Random(seed)
        self._until_ms = until_ms
        rig.cluster.latency_ms = (0.1, latency_ms)
        rig.cluster.faults.append(self)

    def __call__(self, node: int, request: Any, version: int) -> Any:
        if self._rig.cluster.now > self._until_ms:
            return None
        roll = self._random.random()
        if roll < 0.02:
            self._move_leader()
        if isinstance(request, ProduceRequest):
            if roll < 0.08:
                return LOSE_REQUEST
            if roll < 0.18:
                return LOSE_RESPONSE
            if roll < 0.20:
                return NO_ANSWER
            if roll < 0.30:
                return self._random.uniform(1.0, 100.0)
        return LOSE_REQUEST if roll > 0.98 else None

    def _move_leader(self) -> None:
        partition = self._random.choice(self._rig.topic.partitions)
        partition.leader = self._random.choice(sorted(self._rig.cluster.addresses))
        partition.epoch += 1


def send_all(rig: Rig, count: int, random: Random) -> list[tuple[int, bytes, Delivery]]:
    """Records for every partition, spread over time."""
    sent = []
    for number in range(count):
        partition = random.randrange(len(rig.topic.partitions))
        value = b"%06d" % number + b"x" * random.randrange(60)
        sent.append((partition, value, rig.send(value, partition=partition)))
        if random.random() < 0.2:
            rig.cluster.run_for(random.uniform(0, 30))
    return sent


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_each_record_arrives_once_and_in_order(seed: int) -> None:
    rig = Rig((1, 2, 3), partitions=3, seed=seed, batch_size=150, linger_ms=3, request_timeout_ms=500)
    Storm(rig, seed, until_ms=20_000)
    sent = send_all(rig, 150, Random(seed))
    rig.settle([delivery for _, _, delivery in sent])
    for partition in range(3):
        expected = [(value, delivery) for where, value, delivery in sent if where == partition]
        assert rig.values(partition) == [value for value, _ in expected]
        assert [d.metadata().offset for _, d in expected] == list(range(len(expected)))
    assert rig.producer.accumulator.used_bytes == 0


@pytest.mark.parametrize("seed", range(40))
def test_records_given_up_leave_the_rest_in_order_and_never_twice(seed: int) -> None:
    rig = Rig(
        (1, 2),
        partitions=2,
        seed=seed,
        batch_size=150,
        linger_ms=3,
        request_timeout_ms=80,
        delivery_timeout_ms=120,
        retry_backoff_ms=10,
        retry_backoff_max_ms=20,
        reconnect_backoff_ms=5,
        reconnect_backoff_max_ms=10,
    )
    Storm(rig, seed, until_ms=20_000, latency_ms=2.0)
    sent = send_all(rig, 120, Random(seed))
    rig.settle([delivery for _, _, delivery in sent])
    rig.cluster.run_for(25_000)
    later = [(p, b"after%d" % p, rig.send(b"after%d" % p, partition=p)) for p in range(2)]
    rig.settle([delivery for _, _, delivery in later])
    assert [d.exception() for _, _, d in later] == [None, None], "the producer has not recovered"
    for partition in range(2):
        stored = [value for value in rig.values(partition) if value is not None]
        order = [value for where, value, _ in sent + later if where == partition]
        assert len(set(stored)) == len(stored), "a record was written twice"
        assert stored == [value for value in order if value in set(stored)], "records changed places"
        acknowledged = [v for where, v, d in sent + later if where == partition and d.exception() is None]
        assert set(acknowledged) <= set(stored), "an acknowledged record is missing"


def test_five_batches_fly_at_once_after_the_first_is_home() -> None:
    rig = Rig(batch_size=100, linger_ms=0)
    rig.settle([rig.send(b"first")])
    rig.cluster.faults.append(lambda n, request, v: 200.0 if isinstance(request, ProduceRequest) else None)
    deliveries = [rig.send(b"%d" % i + b"x" * 90) for i in range(9)]
    widest = 0

    def done() -> bool:
        nonlocal widest
        widest = max([widest, *(peer.in_flight for peer in rig.core._peers)])
        return all(d.done() for d in deliveries)

    assert rig.cluster.run(done)
    assert widest == 5
    assert [(v or b"")[:1] for v in rig.values()[1:]] == [b"%d" % i for i in range(9)]


def test_a_partition_that_does_not_know_us_gets_one_batch_first() -> None:
    rig = Rig(batch_size=100, linger_ms=0)
    deliveries = [rig.send(b"%d" % i + b"x" * 90) for i in range(4)]
    assert rig.cluster.run(lambda: len(rig.produce_requests()) == 1)
    assert max(peer.in_flight for peer in rig.core._peers) == 1
    rig.settle(deliveries)


def test_a_number_lost_for_good_raises_the_epoch() -> None:
    rig = Rig()
    rig.settle([rig.send(b"a")])
    refuse(rig, 1, answer(ErrorCode.INVALID_RECORD))
    bad = rig.send(b"bad")
    rig.settle([bad])
    good = rig.send(b"b")
    rig.settle([good])
    assert good.exception() is None
    batches = [BatchView(data) for data in rig.topic.partitions[0].batches]
    assert [(b.producer_epoch, b.base_sequence) for b in batches] == [(0, 0), (1, 0)]


def test_a_broker_that_has_forgotten_us_is_told_anew() -> None:
    rig = Rig()
    rig.settle([rig.send(b"a")])
    rig.topic.partitions[0].producers.clear()
    refuse(rig, 1, answer(ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset=5))
    delivery = rig.send(b"b")
    rig.settle([delivery])
    assert rig.values() == [b"a", b"b"]
    batch = BatchView(rig.topic.partitions[0].batches[-1])
    assert (batch.producer_epoch, batch.base_sequence) == (1, 0)


def test_a_gap_the_broker_insists_on_raises_the_epoch() -> None:
    rig = Rig()
    rig.settle([rig.send(b"a")])
    refuse(rig, 1, answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    delivery = rig.send(b"b")
    rig.settle([delivery])
    assert rig.values() == [b"a", b"b"]
    assert BatchView(rig.topic.partitions[0].batches[-1]).producer_epoch == 1


def test_a_duplicate_too_old_to_have_an_offset_counts_as_written() -> None:
    rig = Rig()
    refuse(rig, 1, answer(ErrorCode.DUPLICATE_SEQUENCE_NUMBER))
    delivery = rig.send(b"a")
    rig.settle([delivery])
    assert delivery.metadata().offset == -1


def test_other_partitions_move_to_the_new_epoch_when_they_are_quiet() -> None:
    rig = Rig(partitions=2)
    rig.settle([rig.send(b"a", partition=0), rig.send(b"b", partition=1)])
    refuse(rig, 1, answer(ErrorCode.INVALID_RECORD))
    rig.settle([rig.send(b"bad", partition=0)])
    rig.settle([rig.send(b"c", partition=1)])
    batch = BatchView(rig.topic.partitions[1].batches[-1])
    assert (batch.producer_epoch, batch.base_sequence) == (1, 0)


def make_batch(count: int = 1) -> ProducerBatch:
    batch = ProducerBatch(TP, 0.0, record_count=count)
    for index in range(count):
        batch.records.append((0, None, b"v", ()))
        batch.deliveries.append(Delivery(batch, index))
    return batch


def identity() -> ProducerIdentity:
    made = ProducerIdentity()
    made.assigned(7, 0)
    return made


def test_numbers_wrap() -> None:
    who = identity()
    who.number(first := make_batch(2))
    who.acknowledged(first, 0)
    who.partitions[TP].next_sequence = MAX_SEQUENCE - 1
    who.partitions[TP].last_acked_sequence = MAX_SEQUENCE - 2
    who.number(batch := make_batch(4))
    assert batch.base_sequence == MAX_SEQUENCE - 1
    assert who.partitions[TP].next_sequence == 2
    who.acknowledged(batch, 10)
    assert who.partitions[TP].last_acked_sequence == 1
    assert who.partitions[TP].is_next(2)


def test_a_batch_with_new_numbers_has_a_right_checksum() -> None:
    batch = make_batch(3)
    batch.set_producer(7, 0, 5)
    batch.encode(0, None)
    batch.set_producer(7, 1, 0)
    assert batch.encoded is not None
    view = BatchView(batch.encoded)
    assert (view.producer_id, view.producer_epoch, view.base_sequence) == (7, 1, 0)
    assert view.crc_ok()
    assert batch.sequence_was_reset


def test_an_epoch_at_its_end_asks_for_a_new_id() -> None:
    who = identity()
    who.epoch = MAX_EPOCH
    who.number(batch := make_batch())
    who.failed(batch, number_is_free=True)
    who.restart_if_needed()
    assert not who.is_known
    who.assigned(8, 0)
    who.number(other := make_batch())
    assert (other.producer_id, other.producer_epoch, other.base_sequence) == (8, 0, 0)


def test_batches_keep_their_order_when_the_id_is_used_up() -> None:
    rig = Rig(linger_ms=0)
    rig.settle([rig.send(b"0")])
    identity = rig.producer.sender.identity
    assert identity is not None
    identity.epoch = MAX_EPOCH
    rig.settle([rig.send(b"1")])
    used_up = identity.producer_id
    # The first is refused, for whatever reason; the second is therefore, and says so later.
    refuse(rig, 1, answer(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    rig.cluster.faults.append(
        lambda node, request, version: 200.0 if isinstance(request, ProduceRequest) else None
    )
    deliveries = [rig.send(b"2")]
    rig.cluster.pump()
    deliveries.append(rig.send(b"3"))
    rig.cluster.pump()
    rig.cluster.run_for(100)
    rig.settle(deliveries)
    assert rig.values() == [b"0", b"1", b"2", b"3"]
    assert identity.producer_id != used_up


def test_nothing_new_goes_out_while_a_number_is_unresolved() -> None:
    who = identity()
    who.number(first := make_batch())
    who.acknowledged(first, 0)
    who.number(lost := make_batch())
    who.number(behind := make_batch())
    who.given_up(lost)
    fresh = make_batch()
    assert not who.may_send(fresh)
    who.resolve()
    assert not who.may_send(fresh), "one is still in flight"
    who.acknowledged(behind, 2)
    who.resolve()
    who.restart_if_needed()
    assert who.may_send(fresh)
    assert who.epoch == 0, "what came after was taken, so the lost one was too"


def test_a_lost_number_that_nothing_followed_raises_the_epoch() -> None:
    who = identity()
    who.number(lost := make_batch())
    who.given_up(lost)
    who.resolve()
    who.restart_if_needed()
    assert who.epoch == 1


def test_the_first_number_is_zero() -> None:
    assert PartitionSequences().is_next(0)
    assert not PartitionSequences().is_next(1)


def test_no_more_than_five_batches_of_a_partition_are_in_flight() -> None:
    """However many connections there are, as after a change of leader: a broker remembers five."""
    who = identity()
    who.number(first := make_batch())
    who.acknowledged(first, 0)
    for _ in range(5):
        batch = make_batch()
        assert who.may_send(batch)
        who.number(batch)
    assert not who.may_send(make_batch())


def test_who_must_not_raise_the_epoch_tries_again_only_behind_another() -> None:
    who = ProducerIdentity(OnGap.FAIL)
    who.assigned(7, 3)
    who.number(first := make_batch())
    who.number(second := make_batch())
    out_of_order = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert who.may_retry(second, out_of_order, -1)
    assert not who.may_retry(first, out_of_order, -1)
    assert not who.may_retry(first, ErrorCode.UNKNOWN_PRODUCER_ID, 0)
    assert who.may_retry(first, ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    who.failed(first, number_is_free=True)
    who.resolve()
    who.restart_if_needed()
    assert (second.producer_epoch, second.base_sequence) == (3, 1), "never numbered anew"
