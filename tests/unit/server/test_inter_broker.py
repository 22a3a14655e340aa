"""Whom this broker asks, and where: addresses and leaders by the newest image, and nobody who cannot answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.brokers_world import Cluster, MemoryClient, place

from ottla.metadata.image import ClusterImage
from ottla.metadata.records import NO_LEADER
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.net.peers import Node
from ottla.server.inter_broker import SENDERS, InterBroker
from ottla.server.registry import ADVERTISED
from ottla.wire.messages.list_offsets import ListOffsetsRequest
from ottla.wire.messages.transactions import AddPartitionsToTxnRequest, WriteTxnMarkersRequest

NOTHING = ListOffsetsRequest(replica_id=-1, topics=[])


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(3, {"data": [2, 3]})


def ask(cluster: Cluster, to: int, request: Any = NOTHING) -> Pending[Any]:
    asked = cluster.broker(1).brokers.ask(to, request, 1_000)
    cluster.scheduler.settle()
    return asked


def error_of(asked: Pending[Any]) -> ErrorCode:
    assert asked.error is not None
    return asked.error.code


class Addresses(MemoryClient):
    """Notes where it is to ask."""

    def __init__(self) -> None:
        self.asked: list[Node] = []

    def ask(self, to: Node, request: Any, *, timeout_ms: float | None = None) -> Pending[Any]:
        self.asked.append(to)
        return Pending.of(None)


def test_a_broker_is_asked_at_the_listener_between_brokers(cluster: Cluster) -> None:
    client = Addresses()
    brokers = InterBroker(1, lambda: cluster.broker(1).settings, lambda _: client)  # type: ignore[arg-type, return-value]
    brokers.image = cluster.image
    brokers.ask(2, NOTHING, 1_000)
    assert client.asked == [Node(2, "host", 9002)]


def test_it_answers_itself_without_a_connection(cluster: Cluster) -> None:
    assert ask(cluster, 1, WriteTxnMarkersRequest(markers=[])).result().markers == []
    assert not cluster.network.sent
    assert not cluster.broker(1).clients


@pytest.mark.parametrize("change", ["fenced", "gone", "unknown", "without the listener"])
def test_nobody_who_cannot_answer_is_asked(cluster: Cluster, change: str) -> None:
    to = 9 if change == "unknown" else 2
    if change == "fenced":
        cluster.fence(2)
    elif change == "gone":
        cluster.remove(2)
    elif change == "without the listener":
        cluster.broker(1).settings.inter_broker_listener_name = "OTHER"  # type: ignore[misc]
    assert error_of(ask(cluster, to)) is ErrorCode.NETWORK_EXCEPTION
    assert not cluster.broker(1).clients


def test_a_broker_that_is_unfenced_again_is_asked_again(cluster: Cluster) -> None:
    cluster.fence(2)
    cluster.fence(2, fenced=False)
    assert ask(cluster, 2).error is None


@pytest.mark.parametrize("change", ["fence", "remove", "place_at"])
def test_what_waits_for_a_broker_that_goes_or_moves_fails(cluster: Cluster, change: str) -> None:
    cluster.network.hold(2)
    cluster.network.hold(3)
    waiting, other = ask(cluster, 2), ask(cluster, 3)
    getattr(cluster, change)(2, *([9_999] if change == "place_at" else []))
    assert error_of(waiting) is ErrorCode.NETWORK_EXCEPTION
    assert not other.done


def test_a_broker_that_has_moved_is_asked_where_it_is(cluster: Cluster) -> None:
    ask(cluster, 2)
    cluster.place_at(2, 9_999)
    assert ask(cluster, 2).error is None


def test_a_change_that_leaves_a_broker_where_it_is_disturbs_nobody(cluster: Cluster) -> None:
    cluster.network.hold(2)
    waiting = ask(cluster, 2)
    cluster.lead("data", 0, 3)
    cluster.fence(3)
    cluster.network.release(2)
    assert waiting.error is None


def test_kinds_of_questions_do_not_wait_for_one_another(cluster: Cluster) -> None:
    for request in (NOTHING, AddPartitionsToTxnRequest(transactions=[]), WriteTxnMarkersRequest(markers=[])):
        ask(cluster, 2, request)
        ask(cluster, 3, request)
    assert len(cluster.broker(1).clients) == 3


def test_leaders_are_those_of_the_newest_image(cluster: Cluster) -> None:
    brokers = cluster.broker(1).brokers
    assert [brokers.leader_of("data", index) for index in range(3)] == [2, 3, None]
    assert brokers.leader_of("other", 0) is None
    cluster.lead("data", 0, 1)
    cluster.lead("data", 1, NO_LEADER)
    assert [brokers.leader_of("data", index) for index in range(2)] == [1, NO_LEADER]


def test_a_leader_that_is_fenced_cannot_be_asked_but_this_broker_always(cluster: Cluster) -> None:
    cluster.fence(2)
    assert cluster.broker(1).brokers.leader_of(*place(0)) == NO_LEADER
    assert cluster.broker(2).brokers.leader_of(*place(0)) == 2


def test_a_broker_that_stops_hangs_up_and_asks_nobody(cluster: Cluster) -> None:
    broker = cluster.broker(1)
    ask(cluster, 2)
    asyncio.run(broker.brokers.close())
    assert [client.closed for client in broker.clients] == [True]
    assert (
        error_of(ask(cluster, 2, AddPartitionsToTxnRequest(transactions=[]))) is ErrorCode.NETWORK_EXCEPTION
    )


def test_before_it_knows_the_cluster_it_knows_nobody() -> None:
    brokers = InterBroker(1, lambda: None)  # type: ignore[arg-type, return-value]
    assert brokers.image == ClusterImage()
    with pytest.raises(KafkaError, match="not registered"):
        brokers.ask(2, NOTHING, 1_000).result()


@pytest.mark.parametrize("request_type", SENDERS, ids=lambda kind: kind.__name__)
def test_brokers_are_asked_in_no_version_that_is_not_served(request_type: Any) -> None:
    assert request_type.VALID_VERSIONS.stop - 1 == ADVERTISED[request_type.API_KEY][1]
