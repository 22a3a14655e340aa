"""The network core: finding the cluster, keeping connections, routing calls and trying again."""

import itertools
from typing import Any

import pytest
from tests.unit.client.fake_cluster import LOSE_REQUEST, LOSE_RESPONSE, NO_ANSWER, FakeCluster

from ottla.client.config import ClientConfig
from ottla.client.errors import (
    ConnectionLost,
    NoBrokersAvailable,
    ProtocolError,
    TimedOut,
    UnsupportedVersion,
)
from ottla.client.lookups import LeaderLookup
from ottla.client.network import Call, NetworkCore, To
from ottla.client.offsets import list_offsets_question
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.wire.messages.admin.cluster import DescribeClusterRequest, DescribeClusterResponse
from ottla.wire.messages.admin.topics import DeleteTopicsRequest
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.list_offsets import ListOffsetsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse


def make(nodes: tuple[int, ...] = (1,), *, seed: int = 1, **settings: Any) -> tuple[NetworkCore, FakeCluster]:
    core = NetworkCore(ClientConfig(bootstrap_servers="bootstrap:9092", **settings), seed=seed)
    cluster = FakeCluster(core, nodes)
    cluster.ranges[60] = (0, 2)
    cluster.handlers[DescribeClusterRequest] = lambda node, request, version: DescribeClusterResponse(
        cluster_id="fake", controller_id=node, brokers=[]
    )
    return core, cluster


class Outcome:
    """What became of a call."""

    def __init__(self) -> None:
        self.response: Any = None
        self.error: KafkaError | None = None
        self.at: float | None = None

    def __call__(self, response: Any, error: KafkaError | None, now: float) -> None:
        assert self.at is None, "a call ends once"
        self.response, self.error, self.at = response, error, now

    @property
    def is_done(self) -> bool:
        return self.at is not None


def call(
    core: NetworkCore, target: Any, now: float, timeout_ms: float = 10_000, request: Any = None
) -> Outcome:
    outcome = Outcome()
    asked = request or DescribeClusterRequest(include_cluster_authorized_operations=False)
    core.call(Call(asked, target, now + timeout_ms, outcome), now)
    return outcome


def settled(core: NetworkCore, cluster: FakeCluster) -> None:
    assert cluster.run(lambda: core.metadata.version > 0)


def test_bootstrap_learns_the_cluster_and_lets_the_bootstrap_connection_go() -> None:
    core, cluster = make((1, 2, 3))
    settled(core, cluster)
    assert set(core.metadata.nodes) == {1, 2, 3}
    assert core.metadata.cluster_id == "fake"
    outcome = call(core, 2, cluster.now)
    assert cluster.run(lambda: outcome.is_done)
    assert outcome.response.controller_id == 2
    cluster.pump()
    assert [state.node for state in cluster._links.values()] == [2]


def test_a_bootstrap_address_that_is_a_brokers_own_keeps_its_connection() -> None:
    core, cluster = make((1,))
    cluster.addresses[1] = ("bootstrap", 9092)
    settled(core, cluster)
    outcome = call(core, 1, cluster.now)
    assert cluster.run(lambda: outcome.is_done)
    assert outcome.error is None
    assert len(cluster.connects) == 1


def test_an_older_broker_is_met_on_its_own_terms() -> None:
    core, cluster = make()
    cluster.ranges[18] = (0, 0)
    cluster.ranges[3] = (0, 4)
    settled(core, cluster)
    assert cluster.versions(ApiVersionsRequest) == [0]
    assert cluster.versions(MetadataRequest) == [4]


def test_connecting_backs_off_exponentially_with_jitter() -> None:
    core, cluster = make()
    cluster.down.add(1)
    cluster.run_for(20_000)
    times = [when for when, _ in cluster.connects]
    gaps = [later - earlier - 1.0 for earlier, later in itertools.pairwise(times)]
    for failures, gap in enumerate(gaps[:4]):
        assert 0.8 * 50 * 2**failures <= gap <= 1.2 * 50 * 2**failures
    assert all(800 <= gap <= 1200 for gap in gaps[5:])
    assert len(set(gaps)) == len(gaps)
    assert isinstance(core.bootstrap_error(), NoBrokersAvailable)
    assert "bootstrap:9092: connection refused" in str(core.bootstrap_error())


def test_every_bootstrap_address_gets_a_try() -> None:
    config = ClientConfig(bootstrap_servers="nobody:1,nowhere:2,bootstrap:9092")
    core = NetworkCore(config, seed=3)
    cluster = FakeCluster(core)
    settled(core, cluster)


def test_the_same_seed_gives_the_same_history() -> None:
    histories = []
    for _ in range(2):
        _core, cluster = make(seed=42)
        cluster.down.add(1)
        cluster.run_for(5_000)
        histories.append(cluster.connects)
    assert histories[0] == histories[1]


def test_a_request_that_no_bytes_can_say_fails_alone_and_at_once() -> None:
    core, cluster = make()
    cluster.ranges[20] = (1, 6)
    settled(core, cluster)
    ready = call(core, 1, cluster.now)
    assert cluster.run(lambda: ready.is_done)
    wrong = call(core, 1, cluster.now, request=DeleteTopicsRequest(topic_names=["t"], timeout_ms=2**40))
    surrogate = call(
        core, 1, cluster.now, request=MetadataRequest(topics=[MetadataRequestTopic(name="\udcff")])
    )
    right = call(core, 1, cluster.now)
    before = cluster.now
    assert cluster.run(lambda: right.is_done)
    assert right.error is None
    for outcome in (wrong, surrogate):
        assert outcome.at == before
        assert outcome.error is not None
        assert outcome.error.code is ErrorCode.INVALID_REQUEST
        assert "cannot be encoded" in str(outcome.error)


def test_an_answer_that_says_nothing_of_what_was_asked_is_an_error() -> None:
    core, cluster = make()
    settled(core, cluster)
    outcome = Outcome()
    asked = DescribeClusterRequest(include_cluster_authorized_operations=False)

    def error_of(response: Any) -> Any:
        return response.brokers[0].broker_id  # there is none

    core.call(Call(asked, 1, cluster.now + 10_000, outcome, error_of=error_of), cluster.now)
    assert cluster.run(lambda: outcome.is_done)
    assert isinstance(outcome.error, ProtocolError)
    assert "DescribeCluster" in str(outcome.error)


def test_a_question_to_leaders_that_no_bytes_can_say_is_refused_for_each_partition() -> None:
    core, cluster = make()
    cluster.create("t", 2)
    settled(core, cluster)
    timestamps = {TopicPartition("t", 0): 2**63, TopicPartition("t", 1): 0}
    question = list_offsets_question(timestamps, core, read_committed=False)
    lookup = LeaderLookup(core, timestamps, question, cluster.now)
    asked = cluster.now
    assert cluster.run(lookup.is_settled)
    assert cluster.now < asked + core.config.request_timeout_ms
    assert {result.code for result in lookup.results.values()} == {ErrorCode.INVALID_REQUEST}
    assert core.request_managers == []


def test_a_call_for_the_controller_follows_it() -> None:
    core, cluster = make((1, 2))
    settled(core, cluster)
    cluster.controller = 2

    def only_two(node: int, request: Any, version: int) -> Any:
        if isinstance(request, DescribeClusterRequest) and node == 1:
            code = ErrorCode.NOT_CONTROLLER
            return DescribeClusterResponse(error_code=code, cluster_id="", brokers=[])
        return None

    cluster.faults.append(only_two)
    outcome = call(core, To.CONTROLLER, cluster.now)
    assert cluster.run(lambda: outcome.is_done)
    assert outcome.response.controller_id == 2


def test_a_call_for_a_leader_waits_for_the_topic_and_goes_there() -> None:
    core, cluster = make((1, 2))
    cluster.create("t", leaders=[2])
    request = ListOffsetsRequest(replica_id=-1, topics=[])
    outcome = call(core, TopicPartition("t", 0), cluster.now, request=request)
    assert cluster.run(lambda: outcome.is_done)
    assert [node for _, node, r, _ in cluster.seen if r == request] == [2]


def test_a_lost_answer_is_asked_for_again() -> None:
    for fault in (LOSE_REQUEST, LOSE_RESPONSE):
        core, cluster = make()
        settled(core, cluster)
        left = [2]

        def lose(
            node: int, request: Any, version: int, left: list[int] = left, fault: str = fault
        ) -> str | None:
            if isinstance(request, DescribeClusterRequest) and left[0]:
                left[0] -= 1
                return fault
            return None

        cluster.faults.append(lose)
        outcome = call(core, To.ANY, cluster.now)
        assert cluster.run(lambda outcome=outcome: outcome.is_done)
        assert outcome.error is None
        assert len(cluster.requests(DescribeClusterRequest)) == 3


def test_a_call_that_must_not_be_repeated_is_not() -> None:
    core, cluster = make()
    settled(core, cluster)
    cluster.faults.append(
        lambda node, request, version: LOSE_RESPONSE if isinstance(request, DescribeClusterRequest) else None
    )
    outcome = Outcome()
    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    core.call(Call(request, To.ANY, cluster.now + 10_000, outcome, retry_lost=False), cluster.now)
    assert cluster.run(lambda: outcome.is_done)
    assert isinstance(outcome.error, ConnectionLost)
    assert len(cluster.requests(DescribeClusterRequest)) == 1


def test_a_broker_that_hangs_is_hung_up_on_after_the_request_timeout() -> None:
    core, cluster = make((1, 2), request_timeout_ms=500)
    settled(core, cluster)
    cluster.faults.append(
        lambda node, request, version: (
            NO_ANSWER if isinstance(request, DescribeClusterRequest) and node == 1 else None
        )
    )
    started = cluster.now
    outcome = call(core, 1, started, timeout_ms=5_000)
    assert cluster.run(lambda: outcome.is_done)
    assert isinstance(outcome.error, TimedOut)
    assert outcome.at is not None
    assert abs(outcome.at - started - 5_000) < 2
    assert len(cluster.requests(DescribeClusterRequest)) >= 4


def test_a_call_ends_at_its_deadline_and_says_why() -> None:
    core, cluster = make()
    settled(core, cluster)
    cluster.stop(1)
    outcome = call(core, To.ANY, cluster.now, timeout_ms=3_000)
    assert cluster.run(lambda: outcome.is_done)
    assert isinstance(outcome.error, TimedOut)
    assert "connection refused" in str(outcome.error)


def test_a_node_that_is_not_there_is_named() -> None:
    core, cluster = make()
    settled(core, cluster)
    outcome = call(core, 7, cluster.now, timeout_ms=2_000)
    assert cluster.run(lambda: outcome.is_done)
    assert "node 7 is not in the cluster" in str(outcome.error)


def test_an_error_that_does_not_pass_is_the_callers() -> None:
    core, cluster = make()
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    cluster.handlers[DescribeClusterRequest] = lambda *_: DescribeClusterResponse(
        error_code=code, cluster_id="", brokers=[]
    )
    outcome = call(core, To.ANY, cluster.now)
    assert cluster.run(lambda: outcome.is_done)
    assert outcome.response.error_code == code
    assert len(cluster.requests(DescribeClusterRequest)) == 1


def test_a_request_the_broker_does_not_serve_fails_at_once() -> None:
    core, cluster = make()
    del cluster.ranges[60]
    outcome = call(core, To.ANY, cluster.now)
    assert cluster.run(lambda: outcome.is_done)
    assert isinstance(outcome.error, UnsupportedVersion)


def test_no_more_requests_are_in_flight_than_allowed() -> None:
    core, cluster = make(max_in_flight_requests_per_connection=2)
    settled(core, cluster)
    cluster.faults.append(lambda *_: 50.0)
    outcomes = [call(core, To.ANY, cluster.now) for _ in range(6)]
    widest = 0

    def done() -> bool:
        nonlocal widest
        widest = max([widest, *(peer.in_flight for peer in core._peers)])
        return all(outcome.is_done for outcome in outcomes)

    assert cluster.run(done)
    assert widest == 2


def test_a_throttled_broker_is_left_alone_for_so_long() -> None:
    core, cluster = make()
    settled(core, cluster)
    cluster.handlers[DescribeClusterRequest] = lambda *_: DescribeClusterResponse(
        throttle_time_ms=700, cluster_id="", brokers=[]
    )
    first = call(core, 1, cluster.now)
    assert cluster.run(lambda: first.is_done)
    second = call(core, 1, cluster.now)
    assert cluster.run(lambda: second.is_done)
    assert first.at is not None
    assert second.at is not None
    assert second.at - first.at >= 700


def test_when_all_known_brokers_are_gone_the_bootstrap_addresses_are_asked_again() -> None:
    core, cluster = make((1,))
    settled(core, cluster)
    outcome = call(core, 1, cluster.now)
    assert cluster.run(lambda: outcome.is_done)
    # The cluster moves house: only the bootstrap address still leads there.
    cluster.stop(1)
    cluster.addresses = {2: ("elsewhere", 9092)}
    cluster.bootstrap[("bootstrap", 9092)] = 2
    cluster.controller = 2
    later = call(core, To.ANY, cluster.now)
    assert cluster.run(lambda: later.is_done)
    assert later.response.controller_id == 2
    assert cluster.run(lambda: set(core.metadata.nodes) == {2})


def test_metadata_is_refreshed_when_it_is_old() -> None:
    core, cluster = make(metadata_max_age_ms=1_000)
    settled(core, cluster)
    cluster.run_for(5_500)
    assert 5 <= len(cluster.requests(MetadataRequest)) <= 7


def test_nothing_is_asked_while_nothing_is_wanted() -> None:
    core, cluster = make()
    settled(core, cluster)
    cluster.run_for(200_000)
    assert len(cluster.requests(MetadataRequest)) == 1


def test_idle_connections_are_closed_and_made_again_when_needed() -> None:
    core, cluster = make(connections_max_idle_ms=1_000)
    settled(core, cluster)
    first = call(core, 1, cluster.now)
    assert cluster.run(lambda: first.is_done)
    cluster.run_for(400_000)
    assert cluster._links == {}
    again = call(core, 1, cluster.now)
    assert cluster.run(lambda: again.is_done)
    assert again.error is None


def test_a_missing_topic_is_asked_for_with_backoff() -> None:
    core, cluster = make()
    core.metadata.want("nope", 0.0)
    cluster.run_for(10_000)
    assert len(cluster.requests(MetadataRequest)) < 25
    topic = core.metadata.topic("nope")
    assert topic is not None
    assert topic.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_nobody_uses_any_more_is_forgotten() -> None:
    core, cluster = make(metadata_max_idle_ms=1_000, metadata_max_age_ms=2_000)
    cluster.create("t")
    core.metadata.want("t", 0.0)
    assert cluster.run(lambda: core.metadata.topic("t") is not None)
    assert cluster.run(lambda: core.metadata.topic("t") is None, 10_000)


@pytest.mark.parametrize("name", ["\ud800", "x" * 40_000, b"t", None])
def test_a_topic_that_no_request_can_name_keeps_no_other_from_being_found(name: Any) -> None:
    core, cluster = make(metadata_max_idle_ms=10_000, metadata_max_age_ms=2_000)
    cluster.create("t")
    core.metadata.want(name, 0.0)
    core.metadata.want("t", 0.0)
    assert cluster.run(lambda: core.metadata.topic("t") is not None)
    topic = core.metadata.topic(name)
    assert topic is not None
    assert topic.error is ErrorCode.INVALID_TOPIC_EXCEPTION
    asked = len(cluster.requests(MetadataRequest))
    core.metadata.want_all()
    assert cluster.run(lambda: core.metadata.covers_all)
    assert core.metadata.topic(name) is topic
    cluster.run_for(1_000)
    assert len(cluster.requests(MetadataRequest)) == asked + 1, "there is nothing more to be found out"
    assert cluster.run(lambda: core.metadata.topic(name) is None, 20_000), "it is forgotten, as others are"


def test_garbage_from_a_broker_closes_the_connection_and_the_call_is_tried_again() -> None:
    core, cluster = make()
    settled(core, cluster)
    outcome = call(core, 1, cluster.now)
    cluster.run(lambda: any(peer.in_flight for peer in core._peers if peer.node.node_id == 1))
    link = next(link for link, state in cluster._links.items() if state.node == 1)
    core.on_data(link, b"HTTP/1.1 400 Bad Request\r\n", cluster.now)
    assert cluster.run(lambda: outcome.is_done)
    assert outcome.error is None


def test_a_metadata_answer_from_before_does_not_take_a_leader_back() -> None:
    core, cluster = make((1, 2))
    topic = cluster.create("t", leaders=[1])
    core.metadata.want("t", 0.0)
    assert cluster.run(lambda: core.metadata.topic("t") is not None)
    tp = TopicPartition("t", 0)
    assert core.metadata.leader_hint(tp, 2, 5, [])
    topic.partitions[0].epoch = 4  # the broker that answers next is behind
    core.metadata.invalidate()
    seen = core.metadata.version
    assert cluster.run(lambda: core.metadata.version > seen)
    assert core.metadata.leader_epoch(tp) == 5
    topic.partitions[0].epoch, topic.partitions[0].leader = 6, 1
    core.metadata.invalidate()
    assert cluster.run(lambda: core.metadata.leader_epoch(tp) == 6)


def test_closing_ends_every_call() -> None:
    core, cluster = make()
    settled(core, cluster)
    outcomes = [call(core, To.ANY, cluster.now), call(core, 99, cluster.now)]
    cluster.pump()
    core.close(cluster.now)
    assert all(outcome.error is not None for outcome in outcomes)
    late = call(core, To.ANY, cluster.now)
    assert late.error is not None


def test_a_metadata_refusal_is_not_taken_for_a_picture() -> None:
    core, cluster = make()
    left = [1]

    def refuse(node: int, request: Any, version: int) -> Any:
        if isinstance(request, MetadataRequest) and left[0]:
            left[0] -= 1
            return MetadataResponse(brokers=[], topics=[], error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
        return None

    cluster.faults.append(refuse)
    settled(core, cluster)
    assert set(core.metadata.nodes) == {1}
