"""Partitions are added to transactions whichever broker coordinates those: one request at a time to each of them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.brokers_world import Cluster, place

from ottla.coordinator.transaction.metadata import ProducerIdAndEpoch
from ottla.metadata.records import NO_LEADER
from ottla.model.errors import ErrorCode
from ottla.model.ids import TopicPartition
from ottla.server.transaction import add_partitions
from ottla.server.transaction.add_partitions import Operation
from ottla.wire.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)

COORDINATOR, LEADER, OTHER = 1, 2, 3
TOPIC = "__transaction_state"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(3, {"data": [LEADER] * 4, TOPIC: [COORDINATOR]})


@pytest.fixture
def producer(cluster: Cluster) -> ProducerIdAndEpoch:
    return cluster.broker(COORDINATOR).init("t")


def asked(cluster: Cluster, to: int = COORDINATOR) -> list[dict[str, set[TopicPartition]]]:
    """The requests that a broker got: of each the transactions, and their partitions."""
    return [
        {
            one.transactional_id: {
                TopicPartition(topic.name, index) for topic in one.topics for index in topic.partitions
            }
            for one in request.transactions
        }
        for request in cluster.network.requests(to, AddPartitionsToTxnRequest)
    ]


def answer(codes: dict[TopicPartition, ErrorCode], transactional_id: str = "t") -> AddPartitionsToTxnResponse:
    topics = [
        AddPartitionsToTxnTopicResult(
            name=where.topic,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=where.partition, partition_error_code=int(code)
                )
            ],
        )
        for where, code in codes.items()
    ]
    result = AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=topics)
    return AddPartitionsToTxnResponse(results_by_transaction=[result])


# ---- where the coordinator is -------------------------------------------------------------------------------


def test_a_coordinator_here_is_called(cluster: Cluster) -> None:
    cluster.lead(TOPIC, 0, LEADER)
    broker = cluster.broker(LEADER)
    producer = broker.init("t")
    assert broker.verify("t", producer, place(0)).result() == {}
    assert broker.row().partitions == {place(0)}
    assert not cluster.network.sent


def test_a_coordinator_elsewhere_adds_the_partitions(cluster: Cluster, producer: ProducerIdAndEpoch) -> None:
    assert cluster.broker(LEADER).verify("t", producer, place(0), place(1)).result() == {}
    assert cluster.broker(COORDINATOR).row().partitions == {place(0), place(1)}
    assert asked(cluster) == [{"t": {place(0), place(1)}}]


def test_it_says_which_partitions_are_not_in_the_transaction(
    cluster: Cluster, producer: ProducerIdAndEpoch
) -> None:
    broker = cluster.broker(LEADER)
    broker.verify("t", producer, place(0))
    verified = broker.verify("t", producer, place(0), place(1), operation=Operation.VERIFY)
    assert verified.result() == {place(1): ErrorCode.TRANSACTION_ABORTABLE}
    assert cluster.broker(COORDINATOR).row().partitions == {place(0)}


def test_an_old_client_is_told_so_in_words_it_knows(cluster: Cluster, producer: ProducerIdAndEpoch) -> None:
    asked = cluster.broker(LEADER).verify("t", producer, place(0), operation=Operation.VERIFY_OLD)
    assert asked.result() == {place(0): ErrorCode.INVALID_TXN_STATE}


def test_a_zombie_is_told_that_its_epoch_is_over(cluster: Cluster, producer: ProducerIdAndEpoch) -> None:
    cluster.broker(COORDINATOR).init("t")
    asked = cluster.broker(LEADER).verify("t", producer, place(0))
    assert asked.result() == {place(0): ErrorCode.INVALID_PRODUCER_EPOCH}


@pytest.mark.parametrize("change", ["nobody leads", "the leader is fenced", "there is no topic"])
def test_without_a_coordinator_nobody_is_asked(
    cluster: Cluster, producer: ProducerIdAndEpoch, change: str
) -> None:
    if change == "nobody leads":
        cluster.lead(TOPIC, 0, NO_LEADER)
    elif change == "the leader is fenced":
        cluster.fence(COORDINATOR)
    else:
        cluster.delete(TOPIC)
    asked = cluster.broker(LEADER).verify("t", producer, place(0))
    assert asked.result() == {place(0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert not cluster.network.sent


def test_a_coordinator_that_has_moved_says_so_and_the_next_question_finds_it(
    cluster: Cluster, producer: ProducerIdAndEpoch
) -> None:
    broker = cluster.broker(LEADER)
    cluster.network.hold(COORDINATOR)
    first = broker.verify("t", producer, place(0))
    cluster.lead(TOPIC, 0, OTHER)
    cluster.network.release(COORDINATOR)
    assert first.result() == {place(0): ErrorCode.NOT_COORDINATOR}
    assert broker.verify("t", producer, place(0)).result() == {}
    assert cluster.broker(OTHER).row().partitions == {place(0)}


# ---- a busy coordinator -------------------------------------------------------------------------------------


def test_what_waits_for_a_busy_coordinator_is_one_request(cluster: Cluster) -> None:
    producers = {name: cluster.broker(COORDINATOR).init(name) for name in "abcd"}
    cluster.network.hold(COORDINATOR)
    answers = [
        cluster.broker(LEADER).verify(name, producers[name], place(index))
        for index, name in enumerate("abcd")
    ]
    assert asked(cluster) == [{"a": {place(0)}}]
    cluster.network.release(COORDINATOR)
    assert asked(cluster) == [{"a": {place(0)}}, {name: {place(i)} for i, name in enumerate("bcd", 1)}]
    assert [answer.result() for answer in answers] == [{}] * 4


def test_verifying_and_adding_go_together(cluster: Cluster) -> None:
    old, new = (cluster.broker(COORDINATOR).init(name) for name in ("old", "new"))
    broker = cluster.broker(LEADER)
    cluster.network.hold(COORDINATOR)
    broker.verify("busy", old, place(3))
    verified = broker.verify("old", old, place(0), operation=Operation.VERIFY)
    added = broker.verify("new", new, place(1))
    cluster.network.release(COORDINATOR)
    assert [one.verify_only for one in cluster.network.sent[-1].request.transactions] == [True, False]
    assert verified.result() == {place(0): ErrorCode.TRANSACTION_ABORTABLE}
    assert added.result() == {}


def test_every_broker_has_its_own_line(cluster: Cluster, producer: ProducerIdAndEpoch) -> None:
    cluster.network.hold(COORDINATOR)
    waiting = cluster.broker(LEADER).verify("t", producer, place(0))
    cluster.lead(TOPIC, 0, OTHER)
    assert cluster.broker(LEADER).verify("t", producer, place(0)).result() == {}
    assert not waiting.done


def test_several_requests_of_one_producer_are_asked_for_together(
    cluster: Cluster, producer: ProducerIdAndEpoch
) -> None:
    broker = cluster.broker(LEADER)
    cluster.network.hold(COORDINATOR)
    answers = [broker.verify("t", producer, place(index)) for index in range(3)]
    cluster.network.release(COORDINATOR)
    assert asked(cluster) == [{"t": {place(0)}}, {"t": {place(1), place(2)}}]
    assert [answer.result() for answer in answers] == [{}] * 3


def test_a_request_of_an_older_epoch_that_waits_is_fenced(
    cluster: Cluster, producer: ProducerIdAndEpoch
) -> None:
    newer = cluster.broker(COORDINATOR).init("t")
    broker = cluster.broker(LEADER)
    cluster.network.hold(COORDINATOR)
    broker.verify("busy", producer, place(3))
    old = broker.verify("t", producer, place(0))
    new = broker.verify("t", newer, place(1))
    assert old.result() == {place(0): ErrorCode.INVALID_PRODUCER_EPOCH}
    late = broker.verify("t", producer, place(2))
    assert late.result() == {place(2): ErrorCode.INVALID_PRODUCER_EPOCH}
    cluster.network.release(COORDINATOR)
    assert new.result() == {}
    assert asked(cluster)[1] == {"t": {place(1)}}


def test_of_one_epoch_a_question_of_another_kind_takes_the_place_of_the_one_that_waits(
    cluster: Cluster, producer: ProducerIdAndEpoch
) -> None:
    broker = cluster.broker(LEADER)
    cluster.network.hold(COORDINATOR)
    broker.verify("busy", producer, place(3))
    verified = broker.verify("t", producer, place(0), operation=Operation.VERIFY)
    added = broker.verify("t", producer, place(0))
    assert verified.result() == {place(0): ErrorCode.NETWORK_EXCEPTION}
    cluster.network.release(COORDINATOR)
    assert added.result() == {}


def test_a_request_holds_only_so_much(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(add_partitions, "MAX_PARTITIONS", 2)
    monkeypatch.setattr(add_partitions, "MAX_WAITING", 4)
    producer = cluster.broker(COORDINATOR).init("0")
    cluster.network.hold(COORDINATOR)
    answers = [cluster.broker(LEADER).verify(str(i), producer, place(0)) for i in range(6)]
    assert answers[5].result() == {place(0): ErrorCode.NETWORK_EXCEPTION}
    cluster.network.release(COORDINATOR)
    assert [sorted(request) for request in asked(cluster)] == [["0"], ["1", "2"], ["3", "4"]]
    assert all(answer.done for answer in answers)


# ---- answers that say something else, and none at all -------------------------------------------------------


def test_a_lost_answer_is_an_error_to_ask_again_on(cluster: Cluster, producer: ProducerIdAndEpoch) -> None:
    broker = cluster.broker(LEADER)
    cluster.network.lose(COORDINATOR)
    assert broker.verify("t", producer, place(0)).result() == {place(0): ErrorCode.NETWORK_EXCEPTION}
    assert broker.verify("t", producer, place(0)).result() == {}
    assert cluster.broker(COORDINATOR).row().partitions == {place(0)}


def test_a_coordinator_that_does_not_answer_is_not_waited_for_for_ever(
    cluster: Cluster, producer: ProducerIdAndEpoch
) -> None:
    broker = cluster.broker(LEADER)
    cluster.network.hold(COORDINATOR)
    waiting = [broker.verify("t", producer, place(index)) for index in range(2)]
    cluster.pass_ms(70_000)
    assert [one.result() for one in waiting] == [
        {place(index): ErrorCode.NETWORK_EXCEPTION} for index in range(2)
    ]


def test_a_coordinator_that_is_fenced_fails_what_waits_for_it_at_once(
    cluster: Cluster, producer: ProducerIdAndEpoch
) -> None:
    broker = cluster.broker(LEADER)
    cluster.network.hold(COORDINATOR)
    waiting = [broker.verify("t", producer, place(index)) for index in range(2)]
    cluster.fence(COORDINATOR)
    assert all(one.result()[place(index)] for index, one in enumerate(waiting))


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_error_of_the_whole_request_is_everybodys(
    cluster: Cluster, producer: ProducerIdAndEpoch, said: ErrorCode, heard: ErrorCode
) -> None:
    cluster.network.refused[COORDINATOR] = [AddPartitionsToTxnResponse(error_code=int(said))]
    assert cluster.broker(LEADER).verify("t", producer, place(0)).result() == {place(0): heard}


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        # Beside a partition that the coordinator does not know yet.
        (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.NETWORK_EXCEPTION),
    ],
)
def test_errors_of_partitions_reach_producers_in_their_terms(
    cluster: Cluster, producer: ProducerIdAndEpoch, said: ErrorCode, heard: ErrorCode
) -> None:
    cluster.network.refused[COORDINATOR] = [answer({place(0): said, place(1): ErrorCode.NONE})]
    found = cluster.broker(LEADER).verify("t", producer, place(0), place(1))
    assert found.result() == {place(0): heard}


@pytest.mark.parametrize("response", [AddPartitionsToTxnResponse(), answer({place(1): ErrorCode.NONE})])
def test_what_the_answer_leaves_out_is_not_taken_for_verified(
    cluster: Cluster, producer: ProducerIdAndEpoch, response: Any
) -> None:
    cluster.network.refused[COORDINATOR] = [response]
    found = cluster.broker(LEADER).verify("t", producer, place(0), place(1)).result()
    assert found[place(0)] is ErrorCode.NETWORK_EXCEPTION


def test_a_partition_that_the_coordinator_does_not_know_keeps_its_neighbours_out(
    cluster: Cluster, producer: ProducerIdAndEpoch
) -> None:
    unknown = place(9)
    found = cluster.broker(LEADER).verify("t", producer, place(0), unknown).result()
    assert found == {
        place(0): ErrorCode.NETWORK_EXCEPTION,
        unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
