"""Share state goes to whichever broker leads its partition: what waits together, and again where the leader is then."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.brokers_world import SHARE_STATE, Cluster
from tests.support.share_groups_world import topic_id

from ottla.metadata.records import NO_LEADER
from ottla.model.errors import ErrorCode
from ottla.model.pending import Pending
from ottla.share import state_requests
from ottla.share.coordinator import Summary
from ottla.share.state import PersistedState, PersisterStateBatch, SharePartitionKey
from ottla.wire.messages.groups import share_state as wire

LEADER, COORDINATOR, OTHER = 1, 2, 3
DATA = topic_id("data")
BATCHES = [PersisterStateBatch(10, 14, 1, 2), PersisterStateBatch(15, 19, 2, 0)]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(3, {"data": [LEADER] * 8, "more": [LEADER], SHARE_STATE: [COORDINATOR]})


def initialize(cluster: Cluster, group_id: str = "g", partitions: int = 1) -> Pending[Any]:
    starts = {DATA: dict.fromkeys(range(partitions), 10)}
    return cluster.broker(LEADER).persister.initialize(group_id, 1, starts)


def initialized(cluster: Cluster, group_id: str = "g", partitions: int = 1) -> None:
    asked = initialize(cluster, group_id, partitions)
    cluster.pass_ms(0)
    assert set(asked.result()[DATA].values()) == {None}
    cluster.network.sent.clear()


def write(cluster: Cluster, partition: int = 0, group_id: str = "g", **changes: Any) -> Pending[None]:
    change: dict[str, Any] = {
        "state_epoch": 1,
        "leader_epoch": 3,
        "start_offset": 10,
        "delivery_complete_count": 5,
        "batches": BATCHES,
        **changes,
    }
    asked = cluster.broker(LEADER).persister.write_state(group_id, DATA, partition, **change)
    cluster.pass_ms(0)
    return asked


def read(cluster: Cluster, partition: int = 0, leader_epoch: int = 3) -> PersistedState:
    asked = cluster.broker(LEADER).persister.read_state("g", DATA, partition, leader_epoch)
    cluster.pass_ms(0)
    return asked.result()


def partitions_of(requests: list[Any]) -> list[list[int]]:
    return [
        sorted(partition.partition for topic in request.topics for partition in topic.partitions)
        for request in requests
    ]


def test_everything_can_be_asked_of_another_broker(cluster: Cluster) -> None:
    initialized(cluster)
    assert read(cluster) == PersistedState(1, 10, ())
    assert write(cluster).error is None
    assert read(cluster) == PersistedState(1, 10, tuple(BATCHES))
    key = SharePartitionKey("g", DATA, 0)
    persister = cluster.broker(LEADER).persister
    summaries = persister.read_summaries([key])
    cluster.pass_ms(0)
    assert summaries.result()[key].result() == Summary(10, 5, 3, 1)
    deleted = persister.delete("g", {DATA: [0]})
    cluster.pass_ms(0)
    assert deleted.result() == {DATA: {0: None}}
    summaries = persister.read_summaries([key])
    cluster.pass_ms(0)
    assert summaries.result()[key].result().start_offset == -1


def test_a_coordinator_here_is_called(cluster: Cluster) -> None:
    cluster.lead(SHARE_STATE, 0, LEADER)
    initialized(cluster)
    assert write(cluster).error is None
    assert read(cluster).batches == tuple(BATCHES)
    assert not cluster.network.sent


def test_what_is_asked_in_one_turn_is_one_request(cluster: Cluster) -> None:
    asked = initialize(cluster, partitions=8)
    cluster.pass_ms(0)
    assert set(asked.result()[DATA].values()) == {None}
    requests = cluster.network.requests(COORDINATOR, wire.InitializeShareGroupStateRequest)
    assert partitions_of(requests) == [list(range(8))]


def test_what_waits_for_a_busy_coordinator_is_one_request(cluster: Cluster) -> None:
    initialized(cluster, partitions=8)
    cluster.network.hold(COORDINATOR)
    writes = [write(cluster, partition) for partition in range(8)]
    cluster.network.release(COORDINATOR)
    requests = cluster.network.requests(COORDINATOR, wire.WriteShareGroupStateRequest)
    assert partitions_of(requests) == [[0], list(range(1, 8))]
    assert [done.error for done in writes] == [None] * 8


def test_groups_and_kinds_of_requests_do_not_wait_for_one_another(cluster: Cluster) -> None:
    initialized(cluster, "g")
    initialized(cluster, "h")
    cluster.network.hold(COORDINATOR)
    write(cluster, 0, "g")
    write(cluster, 0, "h")
    cluster.broker(LEADER).persister.read_state("g", DATA, 0, 3)
    cluster.pass_ms(0)
    assert [(type(sent.request), sent.request.group_id) for sent in cluster.network.sent] == [
        (wire.WriteShareGroupStateRequest, "g"),
        (wire.WriteShareGroupStateRequest, "h"),
        (wire.ReadShareGroupStateRequest, "g"),
    ]


def test_only_so_many_requests_are_on_their_way(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_requests, "MAX_IN_FLIGHT", 2)
    cluster.network.hold(COORDINATOR)
    asked = [initialize(cluster, group_id) for group_id in "abcde"]
    cluster.pass_ms(0)
    assert len(cluster.network.sent) == 2
    cluster.network.release(COORDINATOR)
    assert len(cluster.network.sent) == 5
    assert all(one.result()[DATA] == {0: None} for one in asked)


def test_a_request_lists_only_so_much(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    initialized(cluster, partitions=8)
    monkeypatch.setattr(state_requests, "MAX_LISTED", 7)  # two writes with two batches each
    persister = cluster.broker(LEADER).persister
    writes = [
        persister.write_state(
            "g",
            DATA,
            partition,
            state_epoch=1,
            leader_epoch=3,
            start_offset=10,
            delivery_complete_count=0,
            batches=BATCHES,
        )
        for partition in range(5)
    ]
    cluster.pass_ms(0)
    assert [len(found) for found in partitions_of([s.request for s in cluster.network.sent])] == [2, 2, 1]
    assert [done.error for done in writes] == [None] * 5


def test_one_share_partition_is_named_once_in_a_request(cluster: Cluster) -> None:
    initialized(cluster)
    persister = cluster.broker(LEADER).persister
    key = SharePartitionKey("g", DATA, 0)
    both = [persister.read_summaries([key]) for _ in range(2)]
    cluster.pass_ms(0)
    assert partitions_of([sent.request for sent in cluster.network.sent]) == [[0], [0]]
    assert [found.result()[key].result().start_offset for found in both] == [10, 10]


def test_more_questions_than_can_be_kept_are_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    initialized(cluster, partitions=4)
    monkeypatch.setattr(state_requests, "MAX_WAITING", 2)
    cluster.network.hold(COORDINATOR)
    writes = [write(cluster, partition) for partition in range(4)]
    cluster.network.release(COORDINATOR)
    assert [done.done for done in writes] == [True, True, True, False]
    cluster.pass_ms(1_000)  # which is an error that passes
    assert [done.error for done in writes] == [None] * 4


# ---- coordinators that fail, move, and do not answer --------------------------------------------------------


def test_a_coordinator_that_has_moved_is_found_again(cluster: Cluster) -> None:
    initialized(cluster)
    cluster.network.hold(COORDINATOR)
    asked = write(cluster)
    cluster.lead(SHARE_STATE, 0, OTHER)
    cluster.network.release(COORDINATOR)  # which says that it is not the coordinator
    assert not asked.done
    cluster.pass_ms(200)
    assert asked.error is None
    assert len(cluster.network.requests(OTHER, wire.WriteShareGroupStateRequest)) == 1
    assert read(cluster).batches == tuple(BATCHES)


def test_a_lost_answer_is_asked_for_again(cluster: Cluster) -> None:
    initialized(cluster)
    cluster.network.lose(COORDINATOR, 2)
    asked = write(cluster)
    cluster.pass_ms(1_000)
    assert asked.error is None
    assert len(cluster.network.requests(COORDINATOR, wire.WriteShareGroupStateRequest)) == 3
    assert read(cluster).batches == tuple(BATCHES)


def test_a_coordinator_that_dies_is_not_waited_for(cluster: Cluster) -> None:
    initialized(cluster)
    cluster.network.hold(COORDINATOR)
    asked = write(cluster)
    cluster.fence(COORDINATOR)
    cluster.lead(SHARE_STATE, 0, OTHER)
    cluster.pass_ms(200)
    assert asked.error is None


def test_while_nobody_leads_nobody_is_asked(cluster: Cluster) -> None:
    initialized(cluster)
    cluster.lead(SHARE_STATE, 0, NO_LEADER)
    asked = write(cluster)
    cluster.pass_ms(500)
    assert not cluster.network.sent
    cluster.lead(SHARE_STATE, 0, OTHER)
    cluster.pass_ms(1_000)
    assert asked.error is None


def test_what_nobody_can_answer_fails_in_the_end(cluster: Cluster) -> None:
    initialized(cluster)
    cluster.lead(SHARE_STATE, 0, NO_LEADER)
    asked = write(cluster)
    cluster.pass_ms(60_000)
    assert asked.error is not None
    assert asked.error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_errors_of_a_share_partition_are_its_own(cluster: Cluster) -> None:
    initialized(cluster, partitions=2)
    assert read(cluster, 0, leader_epoch=5).state_epoch == 1
    cluster.network.hold(COORDINATOR)
    write(cluster, 1, leader_epoch=3)
    fenced, good = write(cluster, 0, leader_epoch=4), write(cluster, 1, leader_epoch=3)
    cluster.network.release(COORDINATOR)
    assert good.error is None
    assert fenced.error is not None
    assert fenced.error.code is ErrorCode.FENCED_LEADER_EPOCH
    assert "has been here already" in str(fenced.error)


def test_what_the_answer_leaves_out_has_failed(cluster: Cluster) -> None:
    initialized(cluster)
    cluster.network.refused[COORDINATOR] = [wire.WriteShareGroupStateResponse(results=[])]
    asked = write(cluster)
    assert asked.error is not None
    assert asked.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
