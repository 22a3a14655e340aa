"""The quorum's answers: error codes and the order of checks as in Apache Kafka 4.3.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.raft import replica as r
from tests.unit.raft.replica import NEW, Replica, key

from ottla.model.errors import ErrorCode
from ottla.raft.answers import Asked
from ottla.raft.core import MAX_CLAIMED_EPOCH, Role
from ottla.raft.quorum_state import MAX_EPOCH, ElectionState
from ottla.wire.codec import encode
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.nodes import raft as m


def sole_leader() -> Replica:
    """As every node was before there were more: it leads from its start."""
    node = Replica(1)
    assert node.state.is_leader
    assert node.state.epoch == 1
    return node


def three(stored: ElectionState | None = None) -> Replica:
    return Replica(1, 2, 3, stored=stored)


# --- votes


@pytest.mark.parametrize(
    ("epoch", "fields", "top", "partition"),
    [
        (1, {"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID, None),
        (0, {}, 0, ErrorCode.INVALID_REQUEST),
        (1, {}, 0, 0),
        (1, {"voter_id": 7}, 0, ErrorCode.INVALID_VOTER_KEY),
        (1, {"voter_directory_id": b"z" * 16}, 0, ErrorCode.INVALID_VOTER_KEY),
        (1, {"replica_id": -1}, 0, ErrorCode.INVALID_REQUEST),
        (1, {"last_offset": -1}, 0, ErrorCode.INVALID_REQUEST),
        (1, {"last_offset_epoch": 1}, 0, ErrorCode.INVALID_REQUEST),
        (1, {"last_offset_epoch": 1, "pre_vote": True}, 0, 0),
    ],
)
def test_a_leader_gives_no_vote(epoch: int, fields: dict[str, Any], top: int, partition: int | None) -> None:
    node = sole_leader()
    answer = node.ask(r.vote(2, epoch, **fields))
    assert answer.error_code == top
    if partition is not None:
        answered = answer.topics[0].partitions[0]
        assert answered.error_code == partition
        assert not answered.vote_granted
        assert (answered.leader_id, answered.leader_epoch) == (1, 1)
    assert node.state.is_leader


def test_a_vote_of_an_old_epoch_is_fenced() -> None:
    node = three(ElectionState(5))
    answer = node.ask(r.vote(2, 4)).topics[0].partitions[0]
    assert (answer.error_code, answer.leader_epoch) == (ErrorCode.FENCED_LEADER_EPOCH, 5)


def test_a_vote_is_given_once_and_is_on_disk_before_the_answer() -> None:
    node = three(ElectionState(5))
    assert node.ask(r.vote(2, 6)).topics[0].partitions[0].vote_granted
    assert node.elections[-1] == ElectionState(6, -1, key(2), frozenset({1, 2, 3}))
    assert node.done[-1].election is not None, "with the answer, which leaves after it"
    assert node.done[-1].answers
    assert node.ask(r.vote(2, 6)).topics[0].partitions[0].vote_granted, "the same candidate asks again"
    assert not node.ask(r.vote(3, 6)).topics[0].partitions[0].vote_granted
    assert node.ask(r.vote(3, 7)).topics[0].partitions[0].vote_granted, "another epoch"


def test_a_wrong_voter_key_gets_no_vote_but_its_epoch_is_heard() -> None:
    node = three(ElectionState(5))
    answer = node.ask(r.vote(2, 9, voter_directory_id=b"z" * 16)).topics[0].partitions[0]
    assert (answer.error_code, answer.leader_epoch) == (ErrorCode.INVALID_VOTER_KEY, 9)
    assert (node.state.epoch, node.state.voted) == (9, None)


def test_who_knows_less_gets_no_vote() -> None:
    node = Replica()
    node.lead()
    end = node.append()
    epoch = node.state.epoch
    fresh = {"last_offset": end - 1, "last_offset_epoch": epoch}
    assert not node.ask(r.vote(2, epoch + 1, **fresh)).topics[0].partitions[0].vote_granted
    same = {"last_offset": end, "last_offset_epoch": epoch}
    assert node.ask(r.vote(3, epoch + 1, **same)).topics[0].partitions[0].vote_granted


def test_a_pre_vote_changes_nothing() -> None:
    node = three(ElectionState(5))
    before = len(node.elections)
    assert node.ask(r.vote(2, 5, pre_vote=True)).topics[0].partitions[0].vote_granted
    assert node.ask(r.vote(3, 5, pre_vote=True)).topics[0].partitions[0].vote_granted
    assert (node.state.epoch, node.state.voted, len(node.elections)) == (5, None, before)


def test_who_hears_from_the_leader_gives_no_pre_vote() -> None:
    node = three()
    node.follow(2, 5)
    assert node.ask(r.vote(3, 5, pre_vote=True)).topics[0].partitions[0].vote_granted, "not heard yet"
    node.answered(node.last_send(FetchRequest, 2), r.fetch_response(2, 5))
    assert not node.ask(r.vote(3, 5, pre_vote=True)).topics[0].partitions[0].vote_granted
    node.failed(node.last_send(FetchRequest, 2))
    assert node.ask(r.vote(3, 5, pre_vote=True)).topics[0].partitions[0].vote_granted, "the leader is lost"


def test_a_higher_epoch_makes_the_sole_voter_stand_again() -> None:
    node = sole_leader()
    node.append()
    answer = node.ask(r.vote(2, 7)).topics[0].partitions[0]
    assert answer.leader_epoch == 7
    assert not answer.vote_granted, "the candidate's log is behind"
    assert (node.state.is_leader, node.state.epoch) == (True, 8)
    assert node.state.high_watermark == node.log.end.offset
    assert [ready.leads for ready in node.done if ready.leads is not None] == [1, 8]
    assert sum(ready.resigned for ready in node.done) == 1


# --- BeginQuorumEpoch, EndQuorumEpoch


@pytest.mark.parametrize("make", [r.begin, r.end])
def test_claims_to_lead_that_are_refused(make: Callable[..., Any]) -> None:
    node = three(ElectionState(5))
    old = node.ask(make(2, 4)).topics[0].partitions[0]
    assert (old.error_code, old.leader_epoch) == (ErrorCode.FENCED_LEADER_EPOCH, 5)
    assert node.ask(make(2, 9, cluster_id="other")).error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert node.ask(make(2, 9, topic="other")).error_code == ErrorCode.INVALID_REQUEST
    nobody = node.ask(make(-1, 9)).topics[0].partitions[0]
    assert nobody.error_code == ErrorCode.INVALID_REQUEST
    assert node.state.epoch == 5


def test_who_claims_to_lead_is_followed() -> None:
    node = three(ElectionState(5))
    response = node.ask(r.begin(2, 6, voter_id=1, voter_directory_id=key(1).directory_id))
    answer = response.topics[0].partitions[0]
    assert (answer.error_code, answer.leader_id, answer.leader_epoch) == (0, 2, 6)
    assert [(e.node_id, e.host, e.port) for e in response.node_endpoints] == [(2, "host-2", 9002)]
    assert node.state.role is Role.FOLLOWER
    assert node.elections[-1] == ElectionState(6, 2, None, frozenset({1, 2, 3}))


def test_a_claim_for_another_voter_is_heard_but_refused() -> None:
    node = three(ElectionState(5))
    answer = node.ask(r.begin(2, 6, voter_id=3)).topics[0].partitions[0]
    assert (answer.error_code, answer.leader_id) == (ErrorCode.INVALID_VOTER_KEY, 2)
    assert node.state.role is Role.FOLLOWER


def test_a_leader_that_is_no_voter_says_where_it_is() -> None:
    node = three(ElectionState(5))
    node.ask(r.begin(9, 6))
    assert (node.state.role, node.state.leader_id) == (Role.UNATTACHED, 9), "nobody knows where"
    where = m.LeaderEndpoint(name="CONTROLLER", host="there", port=1)
    node.ask(r.begin(9, 6, leader_endpoints=[where]))
    assert node.state.role is Role.FOLLOWER
    assert node.core.leader_node() == (9, "there", 1, None)


def test_two_leaders_of_an_epoch_cannot_be() -> None:
    node = three()
    node.follow(2, 6)
    answer = node.ask(r.begin(3, 6)).topics[0].partitions[0]
    assert (answer.error_code, answer.leader_id) == (0, 2)
    assert node.state.leader_id == 2


# --- claims of epochs

CLAIMS: dict[str, Callable[[int], Any]] = {
    "Vote": lambda epoch: r.vote(2, epoch),
    "pre-vote": lambda epoch: r.vote(2, epoch, pre_vote=True),
    "BeginQuorumEpoch": lambda epoch: r.begin(2, epoch),
    "EndQuorumEpoch": lambda epoch: r.end(2, epoch),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_no_claim_takes_the_last_epochs(name: str) -> None:
    """Whatever epochs are claimed, the node leads on, and every later start finds an epoch for itself."""
    node = sole_leader()
    for epoch in (MAX_EPOCH, MAX_EPOCH - 1, MAX_CLAIMED_EPOCH + 1):
        answer = node.ask(CLAIMS[name](epoch))
        assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_REQUEST
        assert (node.state.epoch, node.state.is_leader) == (1, True)
    for epoch in (MAX_CLAIMED_EPOCH, MAX_CLAIMED_EPOCH + 1, MAX_CLAIMED_EPOCH + 2, MAX_EPOCH):
        node.ask(CLAIMS[name](epoch))
        assert (node.state.epoch, node.state.is_leader) == (MAX_CLAIMED_EPOCH + 1, True)


def test_one_liar_does_not_keep_three_voters_from_electing() -> None:
    """After a claim of the highest epoch that is believed, elections go on beyond it."""
    liar, epoch = r.vote(9, MAX_CLAIMED_EPOCH, last_offset=0), MAX_CLAIMED_EPOCH
    candidate, other = Replica(1, 2, 3), Replica(1, 2, 3, node_id=2)
    candidate.ask(liar)
    assert candidate.state.epoch == epoch
    candidate.time_out()
    assert candidate.state.role is Role.PROSPECTIVE
    # The other has not heard the liar; it learns the epoch from a voter, and then the next one.
    granted = other.ask(candidate.last_send(m.VoteRequest, 2).request).topics[0].partitions[0]
    assert (granted.vote_granted, granted.leader_epoch) == (True, epoch)
    candidate.grant(2)
    assert (candidate.state.role, candidate.state.epoch) == (Role.CANDIDATE, epoch + 1)
    assert other.ask(candidate.last_send(m.VoteRequest, 2).request).topics[0].partitions[0].vote_granted
    assert other.state.epoch == epoch + 1


# --- DescribeQuorum


def test_the_quorum_is_described_by_its_leader() -> None:
    node = Replica()
    node.lead()
    end = node.append()
    node.ask(r.fetch(node, 2))
    node.ask(r.fetch(node, 5, end - 1, max_wait_ms=0))
    described = node.ask(r.describe())
    state = described.topics[0].partitions[0]
    assert (state.error_code, state.leader_id, state.leader_epoch) == (0, 1, node.state.epoch)
    assert state.high_watermark == end
    assert [(v.replica_id, v.log_end_offset) for v in state.current_voters] == [
        (1, end),
        (2, end),
        (3, end - 1),
    ]
    assert [(o.replica_id, o.replica_directory_id) for o in state.observers] == [(5, key(5).directory_id)]
    assert [(n.node_id, n.listeners[0].port) for n in described.nodes] == [(1, 9001), (2, 9002), (3, 9003)]
    assert node.core.has_followers(node.now_ms)


def test_others_do_not_describe_it() -> None:
    node = three()
    partition = node.ask(r.describe()).topics[0].partitions[0]
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    other = m.DescribeQuorumRequestTopicData(
        topic_name="other", partitions=[m.DescribeQuorumRequestPartitionData(partition_index=0)]
    )
    partition = node.ask(m.DescribeQuorumRequest(topics=[other])).topics[0].partitions[0]
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# --- Fetch


def test_an_observer_follows_the_log() -> None:
    node = sole_leader()
    answer = node.ask(r.fetch(node, 5, 0))
    partition = answer.responses[0].partitions[0]
    assert partition.error_code == 0
    assert partition.records == node.log.read(0, 1 << 20)
    assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (1, 1)
    assert answer.node_endpoints[0].port == 9001
    end = node.log.end.offset
    assert node.ask(r.fetch(node, 5, max_wait_ms=10_000)) is None
    token = node.waiting
    node.append()
    partition = node.answers[token].responses[0].partitions[0]
    assert partition.records
    assert partition.high_watermark == end, "it is told at once; what is committed comes with the next"
    partition = node.ask(r.fetch(node, 5, high_watermark=end)).responses[0].partitions[0]
    assert (partition.high_watermark, partition.records) == (end + 1, b"")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"topics": []}, ErrorCode.INVALID_REQUEST),
        ({"epoch": 0, "last_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"epoch": 9}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"last_epoch": -1}, ErrorCode.INVALID_REQUEST),
        ({"last_epoch": 5}, ErrorCode.INVALID_REQUEST),
        ({"max_wait_ms": -1}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_fetch_that_does_not_fit_is_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    node = sole_leader()
    answer = node.ask(r.fetch(node, 5, 0, **fields))
    codes = [answer.error_code, *(t.partitions[0].error_code for t in answer.responses)]
    assert code in codes


def test_who_does_not_lead_says_who_does() -> None:
    node = three()
    node.follow(2, 5)
    response = node.ask(r.fetch(node, 5, 0))
    partition = response.responses[0].partitions[0]
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (2, 5)
    assert (partition.high_watermark, partition.records) == (-1, b"")
    assert [(e.node_id, e.host) for e in response.node_endpoints] == [(2, "host-2")]
    assert node.ask(r.fetch(node, 5, 0), Asked(16, "CONTROLLER")).node_endpoints == []
    assert node.ask(r.fetch(node, 5, 0), Asked(18, "OTHER")).node_endpoints == []


def test_a_diverged_follower_is_sent_back() -> None:
    node = sole_leader()
    partition = node.ask(r.fetch(node, 5, 100, last_epoch=1)).responses[0].partitions[0]
    assert (partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset) == (1, node.log.end.offset)


def test_a_new_leader_tells_no_high_watermark_before_its_epoch_has_committed() -> None:
    node = Replica()
    node.be_elected()
    response = node.ask(r.fetch(node, 5, 0))
    assert response.responses[0].partitions[0].high_watermark == -1
    assert node.ask(r.describe()).topics[0].partitions[0].high_watermark == -1
    node.commit()
    response = node.ask(r.fetch(node, 5, 0))
    assert response.responses[0].partitions[0].high_watermark == node.log.end.offset


def test_old_versions_are_answered_in_what_they_know() -> None:
    node = sole_leader()
    assert encode(node.ask(r.vote(2, 1, voter_id=-1), Asked(0)), 0)
    for version in (13, 15, 16, 18):
        assert encode(node.ask(r.fetch(node, 5, 0), Asked(version)), version)
    for version in (0, 1, 2):
        assert encode(node.ask(r.describe(), Asked(version)), version)


# --- FetchSnapshot


def test_a_snapshot_is_sent_in_pieces() -> None:
    node = sole_leader()
    node.append()
    snapshot = node.log.take_snapshot(node.state.high_watermark)
    assert snapshot is not None
    first = node.ask(r.fetch(node, 5, 0)).responses[0].partitions[0]
    assert (first.snapshot_id.end_offset, first.snapshot_id.epoch) == snapshot
    whole = node.log.snapshots[snapshot]
    received = b""
    while len(received) < len(whole):
        (answer,) = node.ask(r.fetch_snapshot(1, snapshot, len(received), 100)).topics
        (piece,) = answer.partitions
        assert (piece.error_code, piece.size, piece.position) == (0, len(whole), len(received))
        received += bytes(piece.unaligned_records)
    assert received == whole
    refusals = [
        node.ask(r.fetch_snapshot(1, snapshot, len(whole), 1)),
        node.ask(r.fetch_snapshot(1, snapshot, -1, 1)),
        node.ask(r.fetch_snapshot(0, snapshot, 0, 1)),
        node.ask(r.fetch_snapshot(2, snapshot, 0, 1)),
        node.ask(r.fetch_snapshot(1, (3, 1), 0, 1)),
        node.ask(r.fetch_snapshot(1, (0, 0), 0, 1)),
        node.ask(r.fetch_snapshot(1, snapshot, 0, 1, topic="other")),
    ]
    assert refusals == [m.FetchSnapshotResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, topics=[])] * 7
    foreign = node.ask(r.fetch_snapshot(1, snapshot, 0, 1, cluster_id="other"))
    assert foreign.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    nothing = node.ask(r.fetch_snapshot(1, snapshot, 0, 1, topics=[]))
    assert nothing.error_code == ErrorCode.INVALID_REQUEST


def test_how_a_request_came_decides_which_address_is_named() -> None:
    node = sole_leader()
    assert node.ask(r.vote(2, 1), Asked(2, "CONTROLLER")).node_endpoints
    assert not node.ask(r.vote(2, 1), Asked(2, "OTHER")).node_endpoints
    assert not node.ask(r.vote(2, 1), Asked(0, "CONTROLLER")).node_endpoints
    assert node.ask(r.vote(2, 1), Asked(2)).node_endpoints
    assert NEW.version == 18
