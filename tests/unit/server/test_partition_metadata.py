"""Where partitions end, as their leaders say: here, elsewhere, by then elsewhere, and nowhere."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.brokers_world import Cluster, place

from ottla.metadata.records import NO_LEADER
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.server.partition_metadata import MAX_ATTEMPTS
from ottla.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse

HERE, SECOND, THIRD = 1, 2, 3


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(3, {"data": [HERE, SECOND, SECOND, THIRD], "more": [SECOND]})
    for length, partition in enumerate(cluster.data.values(), 1):
        partition.entries = [None] * length  # type: ignore[list-item]
    return cluster


def ask(cluster: Cluster, *places: Any) -> Pending[Any]:
    asked = cluster.broker(HERE).ends.latest_offsets(places)
    cluster.scheduler.settle()
    return asked


def codes(asked: Pending[Any]) -> dict[Any, ErrorCode]:
    return {where: end.code for where, end in asked.result().items() if isinstance(end, KafkaError)}


def test_every_leader_is_asked_once_for_all_its_partitions(cluster: Cluster) -> None:
    places = [place(0), place(1), place(2), place(3), place(0, "more")]
    assert ask(cluster, *places).result() == {where: end for end, where in enumerate(places, 1)}
    assert [sent.to for sent in cluster.network.sent] == [SECOND, THIRD]


def test_of_its_own_partitions_it_asks_nobody(cluster: Cluster) -> None:
    assert ask(cluster, place(0)).result() == {place(0): 1}
    assert ask(cluster).result() == {}
    assert not cluster.network.sent


def test_a_partition_without_a_leader_has_an_error(cluster: Cluster) -> None:
    cluster.lead("data", 1, NO_LEADER)
    cluster.fence(THIRD)
    asked = ask(cluster, place(1), place(2), place(3), place(9))
    assert codes(asked) == dict.fromkeys((place(1), place(3), place(9)), ErrorCode.LEADER_NOT_AVAILABLE)
    assert asked.result()[place(2)] == 3


def test_a_leader_that_leads_no_more_is_not_asked_again(cluster: Cluster) -> None:
    cluster.network.hold(SECOND)
    asked = ask(cluster, place(1), place(2))
    cluster.lead("data", 1, THIRD)
    cluster.network.release(SECOND)
    assert codes(asked) == {place(1): ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert asked.result()[place(2)] == 3


def test_a_lost_answer_is_asked_for_again_where_the_leader_is_by_then(cluster: Cluster) -> None:
    cluster.network.hold(SECOND)
    asked = ask(cluster, place(1))
    cluster.lead("data", 1, THIRD)
    cluster.fence(SECOND)
    cluster.pass_ms(1_500)
    assert asked.result() == {place(1): 2}
    assert [sent.to for sent in cluster.network.sent] == [SECOND, THIRD]


def test_but_not_for_ever(cluster: Cluster) -> None:
    cluster.network.lose(SECOND, 100)
    asked = ask(cluster, place(1), place(0))
    cluster.pass_ms(60_000)
    assert codes(asked) == {place(1): ErrorCode.NETWORK_EXCEPTION}
    assert asked.result()[place(0)] == 1
    assert len(cluster.network.requests(SECOND, ListOffsetsRequest)) == MAX_ATTEMPTS


def test_what_the_answer_leaves_out_is_unknown(cluster: Cluster) -> None:
    cluster.network.refused[SECOND] = [ListOffsetsResponse(topics=[])]
    assert codes(ask(cluster, place(1))) == {place(1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
