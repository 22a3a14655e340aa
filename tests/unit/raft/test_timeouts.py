"""Each setting controller.quorum.* does what it says, with a value that is not its default."""

from typing import Any

from tests.unit.raft import replica as r
from tests.unit.raft.replica import Replica, key

from ottla.raft.core import Role
from ottla.raft.state import Timeouts
from ottla.wire.messages.fetch import FetchRequest, SnapshotId
from ottla.wire.messages.nodes.raft import BeginQuorumEpochRequest, FetchSnapshotRequest

ODD = Timeouts(
    election_ms=700, fetch_ms=3_100, election_backoff_max_ms=90, request_ms=1_234, retry_backoff_ms=33
)


def replica(**options: Any) -> Replica:
    return Replica(timeouts=ODD, **options)


def test_election_timeout_ms() -> None:
    node = replica(draws=[5])
    node.tick(704)
    assert node.state.role is Role.UNATTACHED
    node.tick(1)
    assert node.state.role is Role.PROSPECTIVE


def test_fetch_timeout_ms_of_a_follower() -> None:
    node = replica()
    node.follow(2, 5)
    node.tick(3_099)
    assert node.state.role is Role.FOLLOWER
    node.tick(1)
    assert node.state.role is Role.PROSPECTIVE


def test_fetch_timeout_ms_of_a_leader() -> None:
    node = replica()
    node.lead()
    node.tick(4_649)
    assert node.state.is_leader
    node.tick(1)
    assert node.state.role is Role.RESIGNED


def test_election_backoff_max_ms() -> None:
    """Whoever a leader that stops does not name as its successor waits for so long."""
    node = replica()
    node.follow(2, 5)
    node.ask(r.end(2, 5, key(3)))
    node.tick(89)
    assert node.state.role is Role.FOLLOWER
    node.tick(1)
    assert node.state.role is Role.PROSPECTIVE


def test_request_timeout_ms() -> None:
    node = replica()
    node.follow(2, 5)
    assert node.last_send(FetchRequest, 2).timeout_ms == 1_234


def test_retry_backoff_ms() -> None:
    node = replica()
    node.time_out()
    node.grant(2)
    node.grant(2)
    node.failed(node.last_send(BeginQuorumEpochRequest, 3))
    node.take_sends()
    node.tick(32)
    assert node.take_sends() == []
    node.tick(1)
    assert [send.to.node_id for send in node.take_sends()] == [3]


def test_fetch_max_bytes_and_fetch_snapshot_max_bytes() -> None:
    node = replica(fetch_bytes=777, fetch_snapshot_bytes=99)
    node.follow(2, 5)
    fetch = node.last_send(FetchRequest, 2)
    assert fetch.request.max_bytes == 777
    node.answered(fetch, r.fetch_response(2, 5, snapshot_id=SnapshotId(end_offset=10, epoch=4)))
    assert node.last_send(FetchSnapshotRequest, 2).request.max_bytes == 99
