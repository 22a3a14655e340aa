"""Transactions whose coordinator is one broker and whose partitions are others: whole, whatever happens in between."""

from __future__ import annotations

import pytest
from tests.support.brokers_world import TRANSACTIONS, Cluster, place

from ottla.coordinator.transaction.metadata import ProducerIdAndEpoch, TransactionState
from ottla.metadata.records import NO_LEADER
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.transactions import WriteTxnMarkersRequest

S = TransactionState
COORDINATOR, FIRST, SECOND = 1, 2, 3
WHERE = [place(0), place(1), place(2)]


@pytest.fixture
def cluster() -> Cluster:
    """A partition on each broker, the coordinator's among them."""
    return Cluster(3, {"data": [COORDINATOR, FIRST, SECOND], TRANSACTIONS: [COORDINATOR]})


def begin(cluster: Cluster, transactional_id: str = "t") -> ProducerIdAndEpoch:
    """Add every partition to a transaction, as its leader does for a producer, and write a record there."""
    producer = cluster.broker(COORDINATOR).init(transactional_id)
    for where, leader in zip(WHERE, (COORDINATOR, FIRST, SECOND), strict=True):
        partition = cluster.data[where]
        proof = partition.start_verification(producer, 0, True, cluster.scheduler.now_ms())
        assert cluster.broker(leader).verify(transactional_id, producer, where).result() == {}
        partition.append(7, producer, 0, proof)
    return producer


def outcomes(cluster: Cluster) -> list[set[bool | None]]:
    return [cluster.data[where].outcomes().get(7, set()) for where in WHERE]


def marked(cluster: Cluster, broker: int) -> int:
    return len(cluster.network.requests(broker, WriteTxnMarkersRequest))


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_ends_on_every_broker(cluster: Cluster, committed: bool) -> None:
    producer = begin(cluster)
    assert cluster.broker(COORDINATOR).end(producer, committed=committed) is ErrorCode.NONE
    assert outcomes(cluster) == [{committed}] * 3
    assert cluster.broker(COORDINATOR).row().state is (S.COMPLETE_COMMIT if committed else S.COMPLETE_ABORT)
    assert (marked(cluster, COORDINATOR), marked(cluster, FIRST), marked(cluster, SECOND)) == (0, 1, 1)


def test_a_lost_answer_is_asked_for_again_and_the_second_marker_means_the_same(cluster: Cluster) -> None:
    producer = begin(cluster)
    cluster.network.lose(FIRST, 3)
    cluster.broker(COORDINATOR).end(producer)
    assert cluster.broker(COORDINATOR).row().state is S.PREPARE_COMMIT
    cluster.pass_ms(2_000)
    assert cluster.broker(COORDINATOR).row().state is S.COMPLETE_COMMIT
    assert outcomes(cluster) == [{True}] * 3
    assert (marked(cluster, FIRST), marked(cluster, SECOND)) == (4, 1)


def test_a_late_answer_after_the_marker_was_sent_again_changes_nothing(cluster: Cluster) -> None:
    producer = begin(cluster)
    cluster.network.hold(FIRST)
    cluster.broker(COORDINATOR).end(producer)
    cluster.pass_ms(31_000)
    assert marked(cluster, FIRST) == 2
    cluster.network.release(FIRST)
    cluster.pass_ms(2_000)
    assert outcomes(cluster) == [{True}] * 3
    next_one = begin(cluster)
    assert next_one.producer_epoch > producer.producer_epoch


def test_a_leader_that_moves_meanwhile_is_followed(cluster: Cluster) -> None:
    producer = begin(cluster)
    cluster.network.hold(FIRST)
    cluster.broker(COORDINATOR).end(producer)
    cluster.lead("data", 1, SECOND)
    cluster.network.release(FIRST)  # it leads the partition no more, and says so
    cluster.pass_ms(1_000)
    assert outcomes(cluster) == [{True}] * 3
    assert marked(cluster, SECOND) == 2


def test_a_leader_that_dies_is_not_waited_for(cluster: Cluster) -> None:
    producer = begin(cluster)
    cluster.network.hold(FIRST)
    cluster.broker(COORDINATOR).end(producer)
    cluster.lead("data", 1, NO_LEADER)
    cluster.fence(FIRST)
    cluster.pass_ms(5_000)
    assert cluster.broker(COORDINATOR).row().state is S.PREPARE_COMMIT
    cluster.lead("data", 1, SECOND)
    cluster.pass_ms(1_000)
    assert cluster.broker(COORDINATOR).row().state is S.COMPLETE_COMMIT
    assert outcomes(cluster) == [{True}] * 3


def test_a_deleted_topic_needs_no_markers(cluster: Cluster) -> None:
    producer = begin(cluster)
    cluster.delete("data")
    cluster.broker(COORDINATOR).end(producer)
    assert cluster.broker(COORDINATOR).row().state is S.COMPLETE_COMMIT
    assert not marked(cluster, FIRST)


def test_a_coordinator_that_moves_leaves_the_markers_to_the_next(cluster: Cluster) -> None:
    producer = begin(cluster)
    cluster.network.hold(FIRST)
    cluster.broker(COORDINATOR).end(producer, committed=False)
    cluster.lead(TRANSACTIONS, 0, SECOND)
    assert cluster.broker(SECOND).row().state is S.PREPARE_ABORT
    cluster.network.release(FIRST)
    cluster.pass_ms(2_000)
    assert cluster.broker(SECOND).row().state is S.COMPLETE_ABORT
    assert outcomes(cluster) == [{False}] * 3
    assert not cluster.broker(COORDINATOR).markers.sending
    with pytest.raises(KafkaError, match="does not lead"):
        cluster.broker(COORDINATOR).row()


def test_a_batch_that_comes_after_the_end_is_refused_although_it_was_verified_before(
    cluster: Cluster,
) -> None:
    """The answer of the coordinator is on its way while the transaction is aborted."""
    producer = cluster.broker(COORDINATOR).init()
    partition = cluster.data[place(1)]
    cluster.network.hold(COORDINATOR)
    proof = partition.start_verification(producer, 0, True, cluster.scheduler.now_ms())
    asked = cluster.broker(FIRST).verify("t", producer, place(1))
    cluster.network.release(COORDINATOR)
    assert asked.result() == {}
    assert cluster.broker(COORDINATOR).end(producer, committed=False) is ErrorCode.NONE
    with pytest.raises(KafkaError):
        partition.append(7, producer, 0, proof)
    assert partition.last_stable_offset == len(partition.entries)


def test_a_transaction_cannot_grow_while_its_end_is_on_its_way(cluster: Cluster) -> None:
    producer = begin(cluster)
    cluster.network.hold(SECOND)
    cluster.broker(COORDINATOR).end(producer)
    bumped = producer._replace(producer_epoch=producer.producer_epoch + 1)
    waiting = cluster.broker(FIRST).verify("t", bumped, place(1)).result()
    assert waiting == {place(1): ErrorCode.CONCURRENT_TRANSACTIONS}
    cluster.network.release(SECOND)
    assert cluster.broker(FIRST).verify("t", bumped, place(1)).result() == {}


def test_many_transactions_end_with_few_requests(cluster: Cluster) -> None:
    names = [f"t{number}" for number in range(20)]
    coordinator = cluster.broker(COORDINATOR)
    producers = {}
    for name in names:
        producers[name] = coordinator.init(name)
        cluster.broker(FIRST).verify(name, producers[name], place(1)).result()
    cluster.network.hold(FIRST)
    for name, producer in producers.items():
        coordinator.end(producer, name)
    cluster.network.release(FIRST)
    assert [coordinator.row(name).state for name in names] == [S.COMPLETE_COMMIT] * 20
    assert [len(r.markers) for r in cluster.network.requests(FIRST, WriteTxnMarkersRequest)] == [1, 19]
