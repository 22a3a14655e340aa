"""Voters are added, removed and updated one at a time; kraft.version 0 becomes 1."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.raft import replica as r
from tests.unit.raft.replica import Replica, endpoint, key, voter, voters

from ottla.metadata.features import VersionRange
from ottla.metadata.registrations import Endpoint
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID
from ottla.raft.core import Role, Send
from ottla.raft.quorum_state import ElectionState
from ottla.raft.voters import SUPPORTED_KRAFT_VERSIONS, VoterNode
from ottla.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.nodes import raft as m
from ottla.wire.messages.nodes.raft import AddRaftVoterRequest, EndQuorumEpochRequest, RemoveRaftVoterRequest


def leader(*ids: int, **options: Any) -> Replica:
    node = Replica(*ids, **options)
    node.lead()
    return node


def api_versions(versions: VersionRange = SUPPORTED_KRAFT_VERSIONS, error: int = 0) -> ApiVersionsResponse:
    feature = SupportedFeatureKey(name="kraft.version", min_version=versions.min, max_version=versions.max)
    return ApiVersionsResponse(error_code=error, api_keys=[], supported_features=[feature])


def too_many() -> list[m.Listener]:
    """Of a voter that means to end the quorum: a snapshot with all of them could not be read again."""
    hosts = [m.Listener(name=f"l{number}", host="h" * 30_000, port=1) for number in range(40)]
    return [m.Listener(name="CONTROLLER", host="host", port=1), *hosts]


def begin_adding(node: Replica, **fields: Any) -> tuple[int, Send]:
    """4, which follows the log, is to be added; gives the number of the answer and what 4 is asked."""
    node.ask(r.fetch(node, 4, max_wait_ms=0))
    assert node.ask(r.add_voter(4, **fields)) is None
    return node.waiting, node.last_send(ApiVersionsRequest, 4)


# --- adding


def test_a_voter_is_added_when_the_new_set_has_committed_it() -> None:
    node = leader()
    token, send = begin_adding(node)
    assert (send.to.host, send.to.port) == ("host-4", 9004)
    assert send.request.client_software_name, "a broker refuses a client without a name"
    node.answered(send, api_versions())
    assert node.state.voters == voters(1, 2, 3, 4), "they count as soon as they are in the log"
    node.ask(r.fetch(node, 2))
    assert token not in node.answers, "two of four are no majority"
    node.ask(r.fetch(node, 4))
    assert node.answers[token] == m.AddRaftVoterResponse(error_code=0, error_message=None)


def test_who_does_not_wait_for_the_commit_is_answered_when_it_is_appended() -> None:
    node = leader()
    token, send = begin_adding(node, ack_when_committed=False)
    node.answered(send, api_versions())
    assert node.answers[token].error_code == 0
    busy = node.ask(r.remove_voter(3))
    assert busy.error_code == ErrorCode.REQUEST_TIMED_OUT, "it is not committed, so there is no other change"


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        (
            {"cluster_id": "other"},
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            'The given id "other" doesn\'t match the cluster id "cluster"',
        ),
        ({"voter_id": -1}, ErrorCode.INVALID_REQUEST, "Add voter request didn't include a valid voter"),
        (
            {"voter_directory_id": ZERO_UUID},
            ErrorCode.INVALID_REQUEST,
            "Add voter request didn't include a valid voter",
        ),
        (
            {"listeners": []},
            ErrorCode.INVALID_REQUEST,
            "Add voter request didn't include the endpoint for the default listener CONTROLLER",
        ),
        ({"voter_id": 2}, ErrorCode.DUPLICATE_VOTER, "The voter id for ReplicaKey(id=2, directoryId="),
        (
            {"listeners": too_many()},
            ErrorCode.INVALID_REQUEST,
            "Add voter request has endpoints that no snapshot has room for",
        ),
    ],
)
def test_who_is_not_added(fields: dict[str, Any], code: ErrorCode, message: str) -> None:
    answer = leader().ask(r.add_voter(4, **fields))
    assert answer.error_code == code
    assert answer.error_message.startswith(message)


def test_only_a_leader_changes_voters() -> None:
    node = Replica()
    for request in (r.add_voter(4), r.remove_voter(3)):
        assert node.ask(request).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_nothing_changes_before_the_epoch_has_committed() -> None:
    """Else two leaders could each change the voters of one old set, with majorities that have nobody in common."""
    node = Replica()
    node.be_elected()
    for request in (r.add_voter(4), r.remove_voter(3)):
        answer = node.ask(request)
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "establish HWM" in answer.error_message
    answer = node.ask(r.update_voter(2, node.state.epoch))
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert node.state.voters == voters(1, 2, 3)


def test_one_change_at_a_time() -> None:
    node = leader()
    token, send = begin_adding(node)
    for request in (r.add_voter(5), r.remove_voter(3)):
        answer = node.ask(request)
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "previous voter change" in answer.error_message
    assert node.ask(r.update_voter(2, node.state.epoch)).error_code == ErrorCode.REQUEST_TIMED_OUT
    node.answered(send, api_versions())
    node.tick(r.TIMEOUTS.request_ms)
    assert node.answers[token].error_code == ErrorCode.REQUEST_TIMED_OUT, "nobody has fetched it"
    answer = node.ask(r.remove_voter(3))
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert answer.error_message.startswith(
        "Request timed out waiting for voters to commit the latest voter change at Optional["
    )
    node.commit()
    assert node.ask(r.remove_voter(3)) is None


def test_kraft_version_0_knows_no_changes() -> None:
    node = leader(static=True)
    for request, what in ((r.add_voter(4), "adding"), (r.remove_voter(3), "removing")):
        answer = node.ask(request)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert answer.error_message == (
            f"Cluster doesn't support {what} voter because the kraft.version feature is 0"
        )


def test_a_new_voter_that_is_not_there_or_not_ready_is_not_added() -> None:
    node = leader()
    token, send = begin_adding(node)
    node.failed(send, refused=True)
    assert node.answers[token].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert "API_VERSIONS returned an error BROKER_NOT_AVAILABLE" in node.answers[token].error_message
    answer = node.ask(r.add_voter(4))
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert answer.error_message.endswith("is not ready to receive requests"), "it has just failed"
    node.tick(1_000)
    token, send = begin_adding(node)
    node.answered(send, api_versions(VersionRange(0, 0)))
    assert node.answers[token].error_code == ErrorCode.INVALID_REQUEST
    token, send = begin_adding(node)
    node.answered(send, api_versions(error=ErrorCode.UNSUPPORTED_VERSION))
    assert node.answers[token].error_code == ErrorCode.REQUEST_TIMED_OUT
    node.tick(1_000)
    node.ask(r.fetch(node, 4, max_wait_ms=0))
    assert node.ask(r.add_voter(4)) is None
    node.tick(r.TIMEOUTS.request_ms)
    assert node.answers[node.waiting].error_message == "The request timed out."
    assert node.state.voters == voters(1, 2, 3)


def test_an_error_that_nobody_knows_is_one() -> None:
    node = leader()
    token, send = begin_adding(node)
    node.answered(send, api_versions(error=1_000))
    assert "API_VERSIONS returned an error UNKNOWN_SERVER_ERROR" in node.answers[token].error_message


def test_who_lags_behind_is_not_added() -> None:
    node = leader()
    assert node.ask(r.add_voter(4)) is None
    node.answered(node.last_send(ApiVersionsRequest, 4), api_versions())
    answer = node.answers[node.waiting]
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert answer.error_message.endswith("since it is lagging behind")


def test_a_change_is_answered_when_its_leader_stops_leading() -> None:
    node = leader()
    token, send = begin_adding(node)
    node.follow(2, node.state.epoch + 1)
    assert node.answers[token].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    node.answered(send, api_versions())
    assert node.state.voters == voters(1, 2, 3)


def test_a_sole_voter_that_gets_a_second_one_has_time_to_be_fetched_from() -> None:
    node = leader(1)
    node.tick(100 * r.TIMEOUTS.fetch_ms)
    token, send = begin_adding(node)
    node.answered(send, api_versions())
    assert node.state.is_leader
    node.ask(r.fetch(node, 4))
    assert node.answers[token].error_code == 0
    node.tick(int(r.TIMEOUTS.fetch_ms * 1.5))
    assert node.state.role is Role.RESIGNED, "from now on it needs the other"


# --- removing


def test_a_voter_is_removed_by_those_who_remain() -> None:
    node = leader()
    assert node.ask(r.remove_voter(3)) is None
    token = node.waiting
    assert node.state.voters == voters(1, 2)
    node.ask(r.fetch(node, 3))
    assert token not in node.answers, "3 has no vote any more"
    node.ask(r.fetch(node, 2))
    assert node.answers[token] == m.RemoveRaftVoterResponse(error_code=0, error_message=None)
    state = node.ask(r.describe()).topics[0].partitions[0]
    assert [v.replica_id for v in state.current_voters] == [1, 2]
    assert [o.replica_id for o in state.observers] == [3]


@pytest.mark.parametrize("fields", [{"voter_id": 9}, {"voter_directory_id": b"x" * 16}])
def test_who_is_no_voter_is_not_removed(fields: dict[str, Any]) -> None:
    node = leader()
    answer = node.ask(r.remove_voter(3, **fields))
    assert answer.error_code == ErrorCode.VOTER_NOT_FOUND
    assert answer.error_message.startswith("Cannot remove voter ReplicaKey(id=")
    sole = leader(1)
    assert sole.ask(r.remove_voter(1)).error_code == ErrorCode.VOTER_NOT_FOUND, "the last one stays"
    invalid = node.ask(r.remove_voter(3, voter_directory_id=ZERO_UUID))
    assert invalid.error_message == "Remove voter request didn't include a valid voter"


def test_a_removed_leader_leads_until_that_is_committed_and_then_resigns() -> None:
    node = leader()
    assert node.ask(r.remove_voter(1)) is None
    token = node.waiting
    node.ask(r.fetch(node, 2))
    assert node.state.is_leader, "of 2 and 3 both must have it; its own disk does not count"
    node.take_sends()
    node.ask(r.fetch(node, 3))
    assert node.answers[token].error_code == 0
    assert node.state.role is Role.RESIGNED
    assert {s.to.node_id for s in node.sends if isinstance(s.request, EndQuorumEpochRequest)} == {2, 3}
    node.tick(10 * r.TIMEOUTS.election_ms)
    assert node.state.role is Role.UNATTACHED, "an observer from now on"


def test_a_removed_leader_resigns_even_if_nobody_waits_for_the_answer() -> None:
    node = leader()
    node.ask(r.remove_voter(1))
    node.tick(r.TIMEOUTS.request_ms)
    assert node.answers[node.waiting].error_code == ErrorCode.REQUEST_TIMED_OUT
    node.commit()
    assert node.state.role is Role.RESIGNED


# --- updating


def test_a_voter_says_where_it_is_reached() -> None:
    node = leader()
    where = m.Listener(name="CONTROLLER", host="elsewhere", port=1)
    answer = node.ask(r.update_voter(2, node.state.epoch, listeners=[where]))
    assert answer.error_code == 0
    assert (answer.current_leader.leader_id, answer.current_leader.port) == (1, 9001)
    assert node.state.voters.listeners(2) == (Endpoint("CONTROLLER", "elsewhere", 1),)
    end = node.log.end
    node.commit()
    node.ask(r.update_voter(2, node.state.epoch, listeners=[where]))
    assert node.log.end == end, "nothing new is not written"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"current_leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"current_leader_epoch": 99}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"voter_id": -1}, ErrorCode.INVALID_REQUEST),
        ({"listeners": []}, ErrorCode.INVALID_REQUEST),
        ({"listeners": too_many()}, ErrorCode.INVALID_REQUEST),
        ({"versions": VersionRange(1, 0)}, ErrorCode.INVALID_REQUEST),
        ({"versions": VersionRange(0, 0)}, ErrorCode.INVALID_REQUEST),
        ({"voter_id": 9}, ErrorCode.VOTER_NOT_FOUND),
        ({"voter_directory_id": b"x" * 16}, ErrorCode.VOTER_NOT_FOUND),
    ],
)
def test_what_is_not_updated(fields: dict[str, Any], code: ErrorCode) -> None:
    node = leader()
    assert node.ask(r.update_voter(2, node.state.epoch, **fields)).error_code == code
    assert node.state.voters == voters(1, 2, 3)


def test_updates_go_to_the_leader() -> None:
    node = Replica()
    node.follow(2, 5)
    answer = node.ask(r.update_voter(3, 5))
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (answer.current_leader.leader_id, answer.current_leader.host) == (2, "host-2")


# --- kraft.version


def test_kraft_version_1_comes_when_every_voter_has_said_what_it_can_do() -> None:
    node = leader(static=True)
    assert node.core.upgrade_kraft_version(0, node.now_ms) is False
    for reported in (2, 3):
        with pytest.raises(KafkaError) as error:
            node.core.upgrade_kraft_version(1, node.now_ms)
        assert error.value.code is ErrorCode.INVALID_UPDATE_VERSION
        assert node.ask(r.update_voter(reported, node.state.epoch)).error_code == 0
    assert node.state.voters == r.static_voters(1, 2, 3), "nothing of it is in the log"
    assert node.core.upgrade_kraft_version(1, node.now_ms, validate_only=True)
    node.pump()
    assert node.state.kraft_version == 0
    assert node.core.upgrade_kraft_version(1, node.now_ms)
    node.pump()
    assert (node.state.kraft_version, node.state.voters) == (1, voters(1, 2, 3))
    assert node.core.upgrade_kraft_version(1, node.now_ms) is False
    with pytest.raises(KafkaError, match="downgrade"):
        node.core.upgrade_kraft_version(0, node.now_ms)
    with pytest.raises(KafkaError, match="from version 1 to 2"):
        node.core.upgrade_kraft_version(2, node.now_ms)
    assert node.state.is_leader, "directories have become known, and this is still the same voter"
    node.commit()
    assert node.ask(r.remove_voter(3)) is None


def test_a_voter_that_cannot_do_it_keeps_kraft_version_0() -> None:
    node = leader(static=True)
    node.ask(r.update_voter(2, node.state.epoch))
    node.ask(r.update_voter(3, node.state.epoch, VersionRange(0, 0)))
    with pytest.raises(KafkaError, match="not all of the voters support it"):
        node.core.upgrade_kraft_version(1, node.now_ms)


def test_only_the_leader_upgrades() -> None:
    node = Replica(static=True)
    with pytest.raises(KafkaError) as error:
        node.core.upgrade_kraft_version(1, node.now_ms)
    assert error.value.code is ErrorCode.NOT_CONTROLLER


def test_a_static_voter_reports_to_every_leader_once() -> None:
    node = Replica(static=True)
    node.follow(2, 5)
    for _ in range(8):
        node.tick(r.TIMEOUTS.fetch_ms // 2)
        if isinstance(node.sends[-1].request, FetchRequest):
            node.answered(node.sends[-1], r.fetch_response(2, 5))
        else:
            current = m.CurrentLeader(leader_id=2, leader_epoch=5, host="host-2", port=9002)
            node.answered(node.sends[-1], m.UpdateRaftVoterResponse(error_code=0, current_leader=current))
    assert [s.to.node_id for s in node.sends if isinstance(s.request, m.UpdateRaftVoterRequest)] == [2]
    assert node.state.role is Role.FOLLOWER


# --- joining by itself (KIP-1186)


def joining(local: VoterNode, *ids: int) -> Replica:
    node = Replica(*ids, local=local, auto_join=True)
    node.ask(r.begin(2, 5))
    node.answered(node.last_send(FetchRequest, 2), r.fetch_response(2, 5))
    node.tick(r.TIMEOUTS.fetch_ms)
    node.answered(node.last_send(FetchRequest, 2), r.fetch_response(2, 5))
    return node


def test_an_observer_that_may_joins() -> None:
    node = joining(voter(4), 1, 2, 3)
    send = node.last_send(AddRaftVoterRequest, 2)
    assert (send.request.voter_id, send.request.voter_directory_id) == (4, key(4).directory_id)
    assert not send.request.ack_when_committed, "it has to fetch for that"
    assert [(e.host, e.port) for e in send.request.listeners] == [("host-4", 9004)]
    node.take_sends()
    node.answered(send, m.AddRaftVoterResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=None))
    assert node.last_send(FetchRequest, 2)


def test_a_new_directory_of_a_voter_takes_the_old_ones_place() -> None:
    node = joining(voter(3, directory=9), 1, 2, 3)
    assert not node.state.is_voter
    send = node.last_send(RemoveRaftVoterRequest, 2)
    assert (send.request.voter_id, send.request.voter_directory_id) == (3, key(3).directory_id)


def test_who_is_not_to_join_does_not() -> None:
    node = Replica(node_id=4)
    node.ask(r.begin(2, 5))
    for _ in range(3):
        node.tick(r.TIMEOUTS.fetch_ms)
        node.answered(node.last_send(FetchRequest, 2), r.fetch_response(2, 5))
    assert all(isinstance(s.request, FetchRequest) for s in node.sends)


def test_another_directory_is_another_voter() -> None:
    node = Replica(local=voter(1, directory=9), stored=ElectionState(4))
    assert not node.state.is_voter
    node.tick(100 * r.TIMEOUTS.election_ms)
    assert node.state.role is Role.UNATTACHED
    assert endpoint(1) == node.core.local.listeners[0]
