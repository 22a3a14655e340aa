"""The raft core, step by step: elections, time-outs, replication, snapshots, an orderly stop."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from tests.support.raft_log import Disk, MemoryLog, control_records
from tests.unit.raft import replica as r
from tests.unit.raft.replica import Replica, key, voters

from ottla.metadata.registrations import Endpoint
from ottla.metadata.snapshot import SnapshotId
from ottla.model.errors import ErrorCode
from ottla.raft.core import Role, SnapshotPiece, Timeouts
from ottla.raft.quorum_state import MAX_EPOCH, ElectionState
from ottla.raft.voters import SUPPORTED_KRAFT_VERSIONS, VoterNode
from ottla.records.control import ControlType
from ottla.wire.messages import fetch as f
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.nodes import raft as m
from ottla.wire.messages.nodes.raft import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    UpdateRaftVoterRequest,
    VoteRequest,
)

ELECTION_MS, FETCH_MS = r.TIMEOUTS.election_ms, r.TIMEOUTS.fetch_ms


def disk_with(epochs: list[int], ids: tuple[int, ...] = (1, 2, 3)) -> Disk:
    """A log of one record for each epoch that is named."""
    disk = Disk(voters(*ids))
    log = MemoryLog(disk, None)
    for number, epoch in enumerate(epochs):
        log.append(b"%d" % number, 1, epoch, is_control=False)
    log.flush(len(epochs))
    return disk


def leader_with(*payloads: bytes) -> Replica:
    leader = Replica()
    leader.lead()
    for payload in payloads:
        leader.append(payload)
    return leader


# --- elections


def test_a_sole_voter_is_elected_at_once() -> None:
    node = Replica(1, stored=ElectionState(4))
    assert (node.state.role, node.state.epoch, node.state.leader_id) == (Role.LEADER, 5, 1)
    assert node.elections == [ElectionState(5, 1, None, frozenset({1}))]
    assert [ready.leads for ready in node.done if ready.leads] == [5]
    assert node.state.high_watermark == node.log.end.offset
    assert node.core.next_deadline_ms() == float("inf"), "an idle node by itself has nothing to wake up for"


def test_a_sole_voter_takes_one_epoch_a_start() -> None:
    assert Replica(1, stored=ElectionState(7, 1)).state.epoch == 8, "who led has resigned"
    again = Replica(1, stored=ElectionState(7, -1, key(1)))
    assert (again.state.is_leader, again.state.epoch) == (True, 7), "who stood stands still"


def test_a_sole_voter_is_not_elected_before_its_log_is_on_disk() -> None:
    disk = disk_with([1, 1], ids=(1,))
    slow = Replica(1, disk=disk, stored=ElectionState(1, 1), flushes_at_once=False)
    assert slow.done[0].flush
    slow.tick(10 * ELECTION_MS)
    assert slow.state.role is Role.RESIGNED
    slow.flush()
    assert slow.state.is_leader


def test_from_pre_votes_to_leading() -> None:
    node = Replica(stored=ElectionState(4), draws=[0, 500])
    node.tick(ELECTION_MS)
    assert node.state.role is Role.PROSPECTIVE
    asked = [
        send.request.topics[0].partitions[0] for send in node.sends if isinstance(send.request, VoteRequest)
    ]
    assert [(a.pre_vote, a.replica_epoch) for a in asked] == [(True, 4)] * 2
    node.take_sends()
    node.grant(2)
    assert (node.state.role, node.state.epoch, node.state.voted) == (Role.CANDIDATE, 5, key(1))
    assert node.elections[-1] == ElectionState(5, -1, key(1), frozenset({1, 2, 3}))
    requests = [send.request for send in node.take_sends()]
    asked = [request.topics[0].partitions[0] for request in requests]
    assert [(a.pre_vote, a.replica_epoch) for a in asked] == [(False, 5)] * 2
    assert [request.voter_id for request in requests] == [2, 3]
    assert [a.voter_directory_id for a in asked] == [key(2).directory_id, key(3).directory_id]
    node.grant(3)
    assert (node.state.role, node.state.leader_id, node.state.voted) == (Role.LEADER, 1, None)
    kinds = [kind for kind, _ in control_records(node.log.batches[-1].payload)]
    assert kinds == [ControlType.LEADER_CHANGE, ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS]
    assert node.log.batches[-1].epoch == 5
    assert {s.to.node_id for s in node.take_sends() if isinstance(s.request, BeginQuorumEpochRequest)} == {
        2,
        3,
    }
    assert not any(ready.leads for ready in node.done), "it may decide when that is committed"
    node.ask(r.fetch(node, 2))
    assert node.done[-1].leads == 5
    assert node.state.high_watermark == node.log.end.offset


def test_the_voters_are_written_once_and_again_when_the_leader_has_moved() -> None:
    node = Replica()
    node.lead()
    disk = node.disk
    node.log.flush(len(node.log.unflushed))
    again = Replica(disk=disk, stored=ElectionState(1, 1))
    again.be_elected()
    kinds = [kind for kind, _ in control_records(again.log.batches[-1].payload)]
    assert kinds == [ControlType.LEADER_CHANGE]
    moved = VoterNode(
        key(1), (Endpoint("CONTROLLER", "elsewhere", 1, security_protocol=1),), SUPPORTED_KRAFT_VERSIONS
    )
    again = Replica(disk=disk, stored=ElectionState(1, 1), local=moved)
    again.be_elected()
    assert again.state.voters.listeners(1) == (Endpoint("CONTROLLER", "elsewhere", 1),)
    assert again.log.quorum.latest().voters == again.state.voters


def test_static_voters_are_not_written() -> None:
    node = Replica(static=True)
    node.lead()
    kinds = [kind for kind, _ in control_records(node.log.batches[-1].payload)]
    assert kinds == [ControlType.LEADER_CHANGE]
    assert node.state.kraft_version == 0


def test_a_voter_without_pre_votes_is_asked_for_its_vote() -> None:
    node = Replica()
    node.time_out()
    send = node.last_send(VoteRequest, 2)
    node.answered(send, m.VoteResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, topics=[]))
    assert node.state.role is Role.CANDIDATE


def test_a_lost_pre_vote_goes_back_to_the_leader_or_waits() -> None:
    node = Replica(stored=ElectionState(4))
    node.time_out()
    for voter_id in (2, 3):
        node.answered(node.last_send(VoteRequest, voter_id), r.vote_response(4, granted=False))
    assert (node.state.role, node.state.epoch) == (Role.UNATTACHED, 4)
    node.follow(2, 5)
    node.tick(FETCH_MS)
    assert (node.state.role, node.state.leader_id) == (Role.PROSPECTIVE, 2)
    for voter_id in (2, 3):
        node.answered(node.last_send(VoteRequest, voter_id), r.vote_response(5, granted=False, leader_id=2))
    assert (node.state.role, node.state.leader_id, node.state.epoch) == (Role.FOLLOWER, 2, 5)


def test_who_says_no_to_a_pre_vote_is_asked_again() -> None:
    node = Replica(stored=ElectionState(4))
    node.time_out()
    node.answered(node.last_send(VoteRequest, 2), r.vote_response(4, granted=False))
    node.take_sends()
    assert node.state.role is Role.PROSPECTIVE, "3 may still say yes"
    node.tick(r.TIMEOUTS.retry_backoff_ms)
    node.answered(node.last_send(VoteRequest, 2), r.vote_response(4, granted=True))
    assert node.state.role is Role.CANDIDATE


def test_a_lost_election_is_repeated_after_a_while() -> None:
    node = Replica(stored=ElectionState(4))
    node.time_out()
    node.grant(2)
    node.answered(node.last_send(VoteRequest, 2), r.vote_response(5, granted=False))
    node.take_sends()
    node.draws = [60]
    node.answered(_pending(node, 3), r.vote_response(5, granted=False))
    assert node.state.role is Role.CANDIDATE
    node.tick(60)
    assert node.state.role is Role.CANDIDATE
    node.tick(1)
    assert (node.state.role, node.state.epoch) == (Role.PROSPECTIVE, 5)


def _pending(node: Replica, to: int) -> Any:
    """The request to a node that has no answer yet."""
    send_id = next(i for i, pending in node.core._pending.items() if pending.node.node_id == to)
    return next(s for ready in node.done for s in ready.sends if s.send_id == send_id)


def test_a_candidate_follows_who_was_elected() -> None:
    node = Replica(stored=ElectionState(4))
    node.time_out()
    node.grant(2)
    node.answered(_pending(node, 3), r.vote_response(5, granted=False, leader_id=2))
    assert (node.state.role, node.state.leader_id) == (Role.FOLLOWER, 2)
    assert node.elections[-1].voted == key(1), "its own vote of this epoch is not given again"


def test_answers_of_another_role_do_not_count() -> None:
    node = Replica(stored=ElectionState(4))
    node.time_out()
    late = node.last_send(VoteRequest, 3)
    node.grant(2)
    assert node.state.role is Role.CANDIDATE
    node.answered(late, r.vote_response(4, granted=True))
    node.answered(late, r.vote_response(5, granted=True))
    assert node.state.role is Role.CANDIDATE, "that was a pre-vote"


def test_who_stops_leading_gives_its_epoch_up() -> None:
    node = Replica(stored=ElectionState(7, 1))
    assert node.state.role is Role.RESIGNED
    assert {send.to.node_id for send in node.sends} == {2, 3}
    node.time_out()
    assert (node.state.role, node.state.epoch) == (Role.PROSPECTIVE, 8), "it would follow itself in its own"


def test_there_is_a_last_epoch() -> None:
    node = Replica(1, stored=ElectionState(MAX_EPOCH - 1, 1))
    assert node.state.epoch == MAX_EPOCH
    node = Replica(1, stored=ElectionState(MAX_EPOCH, 1))
    fatal = [ready.fatal for ready in node.done if ready.fatal is not None]
    assert fatal == [f"epoch {MAX_EPOCH} of the metadata quorum is the last there is"]
    assert node.ask(r.describe()) is None, "it does nothing any more"


# --- finding a leader, losing it


def test_an_observer_finds_the_leader_from_any_bootstrap_server() -> None:
    disk = Disk(None)
    node = Replica(node_id=7, disk=disk, bootstrap=[("host-1", 9001), ("host-2", 9002)], may_vote=False)
    assert node.state.voters.ids == frozenset()
    first = node.take_sends()
    assert [(s.to.node_id, s.to.host) for s in first] == [(-2, "host-1")], "one at a time"
    node.answered(first[0], r.fetch_response(-1, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    (second,) = node.take_sends()
    assert second.to.node_id == -3, "who knew nothing is left alone for a while"
    node.failed(second, refused=True)
    assert node.take_sends() == []
    node.tick(r.TIMEOUTS.retry_backoff_ms)
    (third,) = node.take_sends()
    node.answered(third, r.fetch_response(3, 5, ErrorCode.NOT_LEADER_OR_FOLLOWER, where=3))
    assert (node.state.role, node.state.leader_id, node.state.epoch) == (Role.FOLLOWER, 3, 5)
    (fetch,) = node.take_sends()
    assert fetch.to == (3, "host-3", 9003, None)
    asked = fetch.request.topics[0].partitions[0]
    assert (asked.fetch_offset, asked.current_leader_epoch, asked.high_watermark) == (0, 5, -1)
    assert fetch.request.replica_state.replica_id == 7


def test_the_answer_by_which_the_leader_is_found_may_bring_records() -> None:
    leader = leader_with(b"a")
    epoch = leader.state.epoch
    node = Replica(
        node_id=7, disk=Disk(None), stored=ElectionState(epoch), bootstrap=[("host-1", 9001)], may_vote=False
    )
    (send,) = node.take_sends()
    node.answered(send, leader.ask(send.request))
    assert node.state.role is Role.FOLLOWER
    assert node.log.end == leader.log.end
    assert node.state.high_watermark == leader.state.high_watermark
    assert node.state.voters == leader.state.voters, "the log says who votes"
    assert not any(ready.flush for ready in node.done), "a broker's log is a copy"


def test_a_node_does_not_ask_itself() -> None:
    node = Replica(bootstrap=[("host-1", 9001)])
    assert {send.to.port for send in node.sends} <= {9002, 9003}


def test_a_voter_that_gets_no_answer_asks_for_votes() -> None:
    node = Replica()
    node.follow(2, 5)
    node.tick(FETCH_MS - 1)
    assert node.state.role is Role.FOLLOWER
    node.tick(1)
    assert node.state.role is Role.PROSPECTIVE


def test_where_nobody_listens_there_is_no_leader() -> None:
    node = Replica(bootstrap=[("host-2", 9002), ("host-3", 9003)])
    node.follow(2, 5)
    node.answered(node.last_send(FetchRequest, 2), r.fetch_response(2, 5))
    node.draws = [3]
    node.failed(node.last_send(FetchRequest, 2), refused=True)
    node.tick(2)
    assert node.state.role is Role.FOLLOWER
    node.tick(1)
    assert node.state.role is Role.PROSPECTIVE, "almost at once"
    again = Replica(bootstrap=[("host-2", 9002), ("host-3", 9003)])
    again.follow(2, 5)
    again.failed(again.last_send(FetchRequest, 2))
    assert again.state.role is Role.FOLLOWER, "a connection that is lost may come back"
    assert again.sends[-1].to.node_id == 3, "somebody else may know more"


def test_refusals_do_not_make_a_voter_stand_again_and_again() -> None:
    node = Replica()
    node.follow(2, 5)
    times = []
    while len(times) < 6:
        if node.state.role is Role.FOLLOWER:
            fetches = [p for p in node.core._pending.values() if p.node.node_id == 2]
            if fetches:
                node.draws = [10_000]
                node.failed(_pending(node, 2), refused=True)
            node.time_out()
        else:
            times.append(node.now_ms)
            for other in (2, 3):
                if node.state.role is Role.PROSPECTIVE:
                    node.failed(_pending(node, other), refused=True)
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[-1] >= r.TIMEOUTS.election_backoff_max_ms / 2


def test_an_observer_never_stands() -> None:
    node = Replica(1, 2, 3, node_id=4)
    node.follow(2, 5)
    node.tick(100 * FETCH_MS)
    assert node.state.role is Role.FOLLOWER
    node.ask(r.vote(3, 6, voter_id=4, voter_directory_id=key(4).directory_id))
    node.tick(100 * FETCH_MS)
    assert node.state.role is Role.UNATTACHED


def test_a_broker_gives_no_vote() -> None:
    node = Replica(node_id=7, may_vote=False)
    answer = node.ask(r.vote(2, 6, voter_id=-1)).topics[0].partitions[0]
    assert (answer.vote_granted, answer.leader_epoch) == (False, 6)


# --- leading


def test_a_leader_that_a_majority_does_not_fetch_from_resigns() -> None:
    node = Replica(1, 2, 3, 4, 5)
    node.lead()
    check_ms = int(FETCH_MS * 1.5)
    node.tick(check_ms - 1)
    node.ask(r.fetch(node, 2))
    node.ask(r.fetch(node, 3))
    node.tick(check_ms - 1)
    assert node.state.is_leader
    node.ask(r.fetch(node, 2))
    node.tick(1)
    assert node.state.role is Role.RESIGNED
    assert node.done[-1].resigned or any(ready.resigned for ready in node.done)
    assert {s.to.node_id for s in node.sends if isinstance(s.request, EndQuorumEpochRequest)} == {2, 3, 4, 5}


def test_voters_are_told_until_they_answer_and_when_they_are_silent() -> None:
    node = Replica()
    node.time_out()
    node.grant(2)
    node.grant(2)
    epoch = node.state.epoch

    def told() -> list[int]:
        return [s.to.node_id for s in node.take_sends() if isinstance(s.request, BeginQuorumEpochRequest)]

    two, three = (node.last_send(BeginQuorumEpochRequest, n) for n in (2, 3))
    assert told() == [2, 3]
    assert [e.port for e in two.request.leader_endpoints] == [9001]
    node.answered(two, r.begin_response(epoch))
    node.failed(three)
    assert told() == []
    node.tick(r.TIMEOUTS.retry_backoff_ms)
    three = node.last_send(BeginQuorumEpochRequest, 3)
    assert told() == [3], "3 has not answered"
    node.answered(three, r.begin_response(epoch))
    node.ask(r.fetch(node, 3))
    node.tick(FETCH_MS // 2)
    assert told() == [2, 3], "neither has fetched for half a fetch time-out"


def test_who_does_not_fetch_is_told_at_intervals() -> None:
    node = Replica()
    node.lead()
    node.failed(_pending(node, 3))
    node.take_sends()
    for _ in range(4):
        node.tick(FETCH_MS // 2)
        node.failed(_pending(node, 3), refused=True)
        node.ask(r.fetch(node, 2))
    assert [s.to.node_id for s in node.take_sends()] == [3] * 4


def test_a_leader_hears_of_a_later_one() -> None:
    node = Replica()
    node.lead()
    epoch = node.state.epoch
    assert node.ask(r.fetch(node, 2)) is None
    token = node.waiting
    node.follow(3, epoch + 1)
    assert node.state.role is Role.FOLLOWER
    partition = node.answers[token].responses[0].partitions[0]
    assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (3, epoch + 1)
    assert any(ready.resigned for ready in node.done)


def test_nothing_of_an_older_epoch_is_committed_before_something_of_this_one() -> None:
    node = Replica(disk=disk_with([1, 2, 2]), stored=ElectionState(2, 2))
    node.be_elected()
    start = node.log.end.offset - 3
    assert start == 3
    node.ask(r.fetch(node, 2, start, last_epoch=2, max_wait_ms=0))
    assert node.state.high_watermark == -1, "a majority has it, but it may still be overwritten"
    node.ask(r.fetch(node, 2))
    assert node.state.high_watermark == node.log.end.offset


def test_the_leaders_own_disk_counts_when_it_has_flushed() -> None:
    node = Replica()
    node.lead()
    node.flushes_at_once = False
    before = node.state.high_watermark
    end = node.append()
    node.ask(r.fetch(node, 2))
    assert node.state.high_watermark == before, "one disk has it"
    node.ask(r.fetch(node, 3))
    assert node.state.high_watermark == end, "a majority has, without the leader's"
    end = node.append()
    node.ask(r.fetch(node, 2))
    assert node.state.high_watermark < end
    node.flush()
    assert node.state.high_watermark == end


def test_the_high_watermark_never_goes_back() -> None:
    node = Replica()
    node.lead()
    end = node.append()
    node.ask(r.fetch(node, 2))
    node.ask(r.fetch(node, 2, end - 1, max_wait_ms=0))
    assert node.state.high_watermark == end


def test_a_fetch_waits_for_records_for_a_new_high_watermark_or_its_time() -> None:
    node = Replica()
    node.lead()
    end = node.log.end.offset
    assert node.ask(r.fetch(node, 2, high_watermark=end)) is None
    two = node.waiting
    assert node.ask(r.fetch(node, 3, high_watermark=end)) is None
    three = node.waiting
    node.flushes_at_once = False
    node.append()
    assert node.answers[two].responses[0].partitions[0].records
    assert node.answers[three].responses[0].partitions[0].records
    assert node.ask(r.fetch(node, 3, high_watermark=end)) is None
    three = node.waiting
    node.flush()
    assert node.answers[three].responses[0].partitions[0].high_watermark == end + 1
    assert node.ask(r.fetch(node, 2, high_watermark=end + 1, max_wait_ms=300)) is None
    node.tick(299)
    assert node.waiting not in node.answers
    node.tick(1)
    assert node.answers[node.waiting].responses[0].partitions[0].records == b""


def test_only_so_many_fetches_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.raft.core.MAX_WAITING_FETCHES", 2)
    node = Replica()
    node.lead()
    assert [node.ask(r.fetch(node, n)) is None for n in (5, 6, 7)] == [True, True, False]


# --- following


def follower_of(leader: Replica, **options: Any) -> Replica:
    node = Replica(node_id=2, **options)
    node.ask(r.begin(1, leader.state.epoch))
    return node


def exchange(node: Replica, leader: Replica) -> None:
    """One fetch, and its answer if the leader has one at once."""
    send = node.last_send(FetchRequest, 1)
    response = leader.ask(send.request)
    if response is not None:
        node.answered(send, response)


def test_a_follower_gets_the_log_and_what_is_committed_of_it() -> None:
    leader = leader_with(b"a", b"b")
    node = follower_of(leader)
    exchange(node, leader)
    assert node.log.end == leader.log.end
    assert node.state.high_watermark == leader.state.high_watermark
    exchange(node, leader)
    assert leader.state.high_watermark == leader.log.end.offset
    exchange(node, leader)
    assert node.state.high_watermark == leader.log.end.offset


def test_a_follower_fetches_only_beyond_what_is_on_its_disk() -> None:
    leader = leader_with(b"a")
    node = follower_of(leader)
    node.flushes_at_once = False
    exchange(node, leader)
    assert node.done[-1].flush or any(ready.flush for ready in node.done)
    fetches = len([s for s in node.sends if isinstance(s.request, FetchRequest)])
    node.tick(100)
    assert len([s for s in node.sends if isinstance(s.request, FetchRequest)]) == fetches
    node.flush()
    assert node.last_send(FetchRequest).request.topics[0].partitions[0].fetch_offset == leader.log.end.offset


def test_nobody_stands_with_a_log_that_a_crash_could_shorten() -> None:
    leader = leader_with(b"a")
    node = follower_of(leader)
    node.flushes_at_once = False
    exchange(node, leader)
    node.tick(10 * FETCH_MS)
    assert node.state.role is Role.FOLLOWER
    assert node.core.next_deadline_ms() == float("inf")
    node.flush()
    assert node.state.role is Role.PROSPECTIVE


def test_a_diverged_log_is_cut_where_it_parts_in_several_steps() -> None:
    """The leader has epochs 1, 3 and 5, the follower 1, 2 and 4: each round goes back one epoch."""
    leader = Replica(disk=disk_with([1, 3, 3]), stored=ElectionState(4))
    leader.be_elected()
    node = follower_of(leader, disk=disk_with([1, 2, 2, 4]), stored=ElectionState(4))
    cuts = []
    for _ in range(4):
        exchange(node, leader)
        cuts = [ready.truncate_to for ready in node.done if ready.truncate_to is not None]
    assert cuts == [3, 1]
    assert node.log.end == leader.log.end
    assert [b.chain for b in node.log.batches] == [b.chain for b in leader.log.batches]


def test_a_truncation_brings_the_earlier_voters_back() -> None:
    leader = leader_with(b"a")
    node = follower_of(leader)
    exchange(node, leader)
    before = leader.log.end
    assert leader.ask(r.remove_voter(3)) is None
    exchange(node, leader)
    assert node.state.voters == voters(1, 2), "they count though nothing of it is committed"
    where = m.LeaderEndpoint(name="CONTROLLER", host="host-3", port=9003)
    node.ask(r.begin(3, leader.state.epoch + 1, leader_endpoints=[where]))
    parted = f.EpochEndOffset(epoch=before.epoch, end_offset=before.offset)
    node.answered(
        node.last_send(FetchRequest, 3), r.fetch_response(3, node.state.epoch, diverging_epoch=parted)
    )
    assert node.log.end == before
    assert node.state.voters == voters(1, 2, 3)


def test_what_is_committed_is_not_cut_off() -> None:
    leader = leader_with(b"a")
    node = follower_of(leader)
    exchange(node, leader)
    node.answered(
        node.last_send(FetchRequest, 1),
        r.fetch_response(1, leader.state.epoch, diverging_epoch=f.EpochEndOffset(epoch=0, end_offset=0)),
    )
    fatal = [ready.fatal for ready in node.done if ready.fatal is not None]
    assert len(fatal) == 1
    assert "asks for truncation to offset 0, but everything before 3 is committed here" in fatal[0]


def test_records_that_cannot_be_used_are_asked_for_again_later() -> None:
    leader = leader_with(b"a")
    node = follower_of(leader)
    send = node.last_send(FetchRequest, 1)
    node.core.answered(send.send_id, leader.ask(send.request), node.now_ms)
    ready = node.core.ready()
    assert ready is not None
    assert ready.append
    node.failed(send)
    node.take_sends()
    node.tick(r.TIMEOUTS.retry_backoff_ms)
    assert node.last_send(FetchRequest, 1).request.topics[0].partitions[0].fetch_offset == 0


def test_a_snapshot_is_fetched_in_pieces_and_begun_again_with_another_leader() -> None:
    leader = leader_with(b"a", b"b")
    leader.commit()
    snapshot = leader.log.take_snapshot(leader.state.high_watermark)
    assert snapshot is not None
    leader.log.forget_before_snapshot()
    node = follower_of(leader, fetch_snapshot_bytes=150)
    exchange(node, leader)
    pieces: list[SnapshotPiece] = []

    def fetch_piece() -> None:
        send = node.last_send(FetchSnapshotRequest, 1)
        node.answered(send, leader.ask(send.request))
        pieces.extend(ready.piece for ready in node.done[-1:] + node.done[-2:-1] if ready.piece is not None)

    fetch_piece()
    node.follow(3, leader.state.epoch + 1)
    assert node.sends[-1].request.__class__ is FetchRequest, "the other leader says which snapshot it has"
    node = follower_of(leader, fetch_snapshot_bytes=150)
    exchange(node, leader)
    pieces.clear()
    while not node.core._is_loading:
        fetch_piece()
    assert b"".join(piece.data for piece in pieces) == leader.log.snapshots[snapshot]
    assert [piece.position for piece in pieces] == [0, 150, 300]
    sends = len(node.sends)
    node.tick(10 * FETCH_MS)
    assert (node.state.role, len(node.sends)) == (Role.FOLLOWER, sends), (
        "nothing happens while it is put in place"
    )
    node.log.replace_with_snapshot(snapshot, leader.log.snapshots[snapshot])
    node.core.snapshot_loaded(snapshot, node.now_ms)
    node.pump()
    assert node.state.high_watermark == snapshot.end_offset
    assert node.state.voters == leader.state.voters


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_snapshot_that_cannot_be_used_is_begun_again(is_whole: bool) -> None:
    leader = leader_with(b"a", b"b")
    leader.commit()
    assert leader.log.take_snapshot(leader.state.high_watermark)
    leader.log.forget_before_snapshot()
    node = follower_of(leader, fetch_snapshot_bytes=1_000 if is_whole else 150)
    exchange(node, leader)
    send = node.last_send(FetchSnapshotRequest, 1)
    node.core.answered(send.send_id, leader.ask(send.request), node.now_ms)
    ready = node.core.ready()
    assert ready is not None
    assert ready.piece is not None
    node.failed(send)
    node.take_sends()
    node.tick(r.TIMEOUTS.retry_backoff_ms)
    exchange(node, leader)
    assert node.last_send(FetchSnapshotRequest, 1).request.topics[0].partitions[0].position == 0


def test_a_snapshot_the_leader_no_longer_has_is_asked_for_anew() -> None:
    leader = leader_with(b"a", b"b")
    leader.commit()
    assert leader.log.take_snapshot(leader.state.high_watermark)
    leader.log.forget_before_snapshot()
    node = follower_of(leader)
    exchange(node, leader)
    send = node.last_send(FetchSnapshotRequest, 1)
    node.answered(send, m.FetchSnapshotResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, topics=[]))
    node.take_sends()
    node.tick(r.TIMEOUTS.retry_backoff_ms)
    assert node.last_send(FetchRequest, 1)


def test_a_snapshot_that_contradicts_what_is_committed_stops_the_node() -> None:
    leader = leader_with(b"a", b"b")
    node = follower_of(leader)
    exchange(node, leader)
    node.answered(
        node.last_send(FetchRequest, 1),
        r.fetch_response(1, leader.state.epoch, snapshot_id=f.SnapshotId(end_offset=1, epoch=9)),
    )
    fatal = [ready.fatal for ready in node.done if ready.fatal is not None]
    assert len(fatal) == 1
    assert SnapshotId(1, 9).file_name in fatal[0]


# --- where a voter is reached


def test_a_voter_that_has_moved_says_so() -> None:
    leader = leader_with()
    moved = VoterNode(key(2), (Endpoint("CONTROLLER", "elsewhere", 1),), SUPPORTED_KRAFT_VERSIONS)
    node = follower_of(leader, local=moved)
    exchange(node, leader)
    assert not any(isinstance(s.request, UpdateRaftVoterRequest) for s in node.sends)
    node.tick(FETCH_MS - 1)
    leader.append()
    exchange(node, leader)
    assert not any(isinstance(s.request, UpdateRaftVoterRequest) for s in node.sends)
    node.tick(1)
    leader.append()
    exchange(node, leader)
    send = node.last_send(UpdateRaftVoterRequest, 1)
    node.answered(send, leader.ask(send.request))
    assert leader.state.voters.listeners(2) == moved.listeners
    exchange(node, leader)
    assert node.state.voters.listeners(2) == moved.listeners
    assert not node.state.voters.needs_update(node.core.local)


# --- an orderly stop


def test_a_leader_that_stops_names_its_successors() -> None:
    node = Replica()
    node.lead()
    node.append()
    node.ask(r.fetch(node, 3))
    node.take_sends()
    node.core.resign(node.now_ms)
    node.pump()
    assert node.state.role is Role.RESIGNED
    asked = node.last_send(EndQuorumEpochRequest, 2).request.topics[0].partitions[0]
    assert [c.candidate_id for c in asked.preferred_candidates] == [3, 2]
    assert asked.preferred_successors == [3, 2]
    assert not node.core.may_stop
    node.answered(node.last_send(EndQuorumEpochRequest, 2), r.end_response(node.state.epoch))
    node.take_sends()
    node.tick(100 * ELECTION_MS)
    assert {send.to.node_id for send in node.take_sends()} <= {3}
    assert node.state.role is Role.RESIGNED, "it stands no more"
    node.ask(r.begin(3, node.state.epoch + 1))
    assert node.core.may_stop


def test_a_sole_voter_and_a_follower_may_stop_at_once() -> None:
    sole = Replica(1)
    sole.core.resign(sole.now_ms)
    sole.pump()
    assert sole.core.may_stop
    follower = Replica()
    follower.follow(2, 5)
    follower.core.resign(follower.now_ms)
    follower.pump()
    assert follower.core.may_stop
    follower.tick(100 * FETCH_MS)
    assert follower.state.role is Role.FOLLOWER


@pytest.mark.parametrize(
    ("successors", "backoff_ms"),
    [((1, 2, 3), 0), ((2, 1, 3), 250), ((2, 3, 1), 500), ((2, 3), 1_000), ((2, 3, 4, 5, 1), 496)],
)
def test_successors_stand_in_their_order(successors: tuple[int, ...], backoff_ms: int) -> None:
    node = Replica()
    node.follow(2, 5)
    node.answered(node.last_send(FetchRequest, 2), r.fetch_response(2, 5))
    node.ask(r.end(2, 5, *(key(n) for n in successors)))
    if backoff_ms:
        node.tick(backoff_ms - 1)
        assert node.state.role is Role.FOLLOWER
        node.tick(1)
    assert node.state.role is Role.PROSPECTIVE


def test_who_is_told_that_the_leader_stops_votes_for_others() -> None:
    node = Replica()
    node.follow(2, 5)
    node.answered(node.last_send(FetchRequest, 2), r.fetch_response(2, 5))
    node.ask(r.end(2, 5, key(3), key(1)))
    assert node.ask(r.vote(3, 5, pre_vote=True)).topics[0].partitions[0].vote_granted


# --- what is told


def test_who_leads_is_told_when_it_changes() -> None:
    node = Replica(stored=ElectionState(4))
    node.follow(2, 5)
    node.follow(2, 5)
    node.ask(r.vote(3, 6))
    assert [ready.leader for ready in node.done if ready.leader is not None] == [(-1, 4), (2, 5), (-1, 6)]


def test_an_election_of_no_time_at_all_does_not_loop() -> None:
    node = Replica(timeouts=Timeouts(0, 0, 0, 0, 0, 0))
    for _ in range(50):
        node.tick(1)
    assert node.core.next_deadline_ms() > node.now_ms


def test_an_empty_log_needs_no_flush() -> None:
    assert not any(ready.flush for ready in Replica().done)
    assert Replica(disk=disk_with([1]), stored=ElectionState(1)).done[0].flush
