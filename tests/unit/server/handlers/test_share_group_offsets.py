"""DescribeShareGroupOffsets where coordinators and leaders of partitions are other brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.brokers_world import SHARE_STATE, Cluster, place
from tests.support.share_groups_world import topic_id

from ottla.metadata.records import NO_LEADER
from ottla.model.errors import ErrorCode
from ottla.model.pending import Pending
from ottla.server.handlers.share.groups import describe_share_group_offsets
from ottla.wire.codec import encode
from ottla.wire.messages.groups import share as wire
from ottla.wire.messages.groups import share_state
from ottla.wire.messages.list_offsets import ListOffsetsRequest

ASKED, COORDINATOR, OTHER = 1, 2, 3
START, LENGTH = 10, 25


@pytest.fixture
def cluster() -> Cluster:
    """Two topics on three brokers; the group starts everywhere at ten, but in the last partition nowhere yet."""
    cluster = Cluster(
        3, {"data": [ASKED, OTHER, OTHER, COORDINATOR], "more": [OTHER], SHARE_STATE: [COORDINATOR]}
    )
    for partition in cluster.data.values():
        partition.entries = [None] * LENGTH  # type: ignore[list-item]
    starts = {topic_id("data"): {0: START, 1: START, 2: START, 3: -1}, topic_id("more"): {0: START}}
    cluster.broker(ASKED).persister.initialize("g", 1, starts)
    cluster.pass_ms(0)
    cluster.network.sent.clear()
    return cluster


def describe(cluster: Cluster, topics: dict[str, list[int]]) -> Pending[Any]:
    broker = cluster.broker(ASKED)
    image = broker.brokers.image
    node = SimpleNamespace(
        image=lambda: SimpleNamespace(features={"share.version": 1}, topic=image.topic),
        share_groups=SimpleNamespace(persister=broker.persister, partitions=broker.ends),
        authorizer=None,
    )
    ctx: Any = SimpleNamespace(version=1, node=node)
    asked = [
        wire.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=found)
        for name, found in topics.items()
    ]
    group = wire.DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=asked)
    answer = describe_share_group_offsets(ctx, wire.DescribeShareGroupOffsetsRequest(groups=[group]))
    cluster.pass_ms(0)
    return answer


def lags(answer: Pending[Any]) -> dict[tuple[str, int], int]:
    (group,) = answer.result().groups
    return {(t.topic_name, p.partition_index): p.lag for t in group.topics for p in t.partitions}


def test_the_lag_is_found_wherever_the_partitions_are(cluster: Cluster) -> None:
    answer = describe(cluster, {"data": [0, 1, 2, 3], "more": [0]})
    lag = LENGTH - START
    assert lags(answer) == {
        ("data", 0): lag,
        ("data", 1): lag,
        ("data", 2): lag,
        ("data", 3): -1,
        ("more", 0): lag,
    }
    # One request of each kind to each broker that has to be asked.
    assert [(sent.to, type(sent.request)) for sent in cluster.network.sent] == [
        (COORDINATOR, share_state.ReadShareGroupStateSummaryRequest),
        (OTHER, ListOffsetsRequest),
    ]


def test_topics_and_partitions_that_are_named_twice_are_answered_twice(cluster: Cluster) -> None:
    (group,) = describe(cluster, {"data": [1, 1, 0]}).result().groups
    assert [p.partition_index for p in group.topics[0].partitions] == [1, 1, 0]
    assert {p.lag for p in group.topics[0].partitions} == {LENGTH - START}


def test_a_partition_without_a_leader_has_an_error_and_the_others_a_lag(cluster: Cluster) -> None:
    cluster.lead("data", 1, NO_LEADER)
    (group,) = describe(cluster, {"data": [0, 1]}).result().groups
    good, bad = group.topics[0].partitions
    assert (good.error_code, good.lag) == (0, LENGTH - START)
    assert (bad.error_code, bad.start_offset, bad.lag) == (ErrorCode.LEADER_NOT_AVAILABLE, 0, -1)


def test_a_leader_that_does_not_answer_is_waited_for(cluster: Cluster) -> None:
    cluster.network.lose(OTHER)
    answer = describe(cluster, {"data": [1]})
    assert not answer.done
    cluster.pass_ms(2_000)
    assert lags(answer) == {(place(1).topic, 1): LENGTH - START}


def test_a_start_far_below_zero_has_a_lag_that_can_be_written(cluster: Cluster) -> None:
    lowest = -(1 << 63)
    cluster.broker(ASKED).persister.initialize("g", 2, {topic_id("data"): {0: lowest}})
    cluster.pass_ms(0)
    answer = describe(cluster, {"data": [0]})
    # As Java counts: round the end of 64 bits.
    assert lags(answer) == {("data", 0): lowest + LENGTH}
    encode(answer.result(), 1)
