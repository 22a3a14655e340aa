"""A RaftDriver without `handle` in the clothes of one that has it. To be removed when the driver answers by itself."""

from typing import Any

from ottla.net.peers import Node
from ottla.raft.answers import Asked
from ottla.raft.driver import RaftDriver
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.nodes import raft as m


class QuorumAdapter:
    """What handlers and channels ask of the quorum."""

    def __init__(self, driver: RaftDriver) -> None:
        self._driver = driver

    @property
    def kraft_version(self) -> int:
        return self._driver.kraft_version

    @property
    def leader(self) -> tuple[int, int]:
        return self._driver.state.leader_id, self._driver.state.epoch

    def leader_node(self) -> Node | None:
        state = self._driver.state
        endpoint = next(iter(state.voters.listeners(state.leader_id)), None)
        return None if endpoint is None else Node(state.leader_id, endpoint.host, endpoint.port)

    async def handle(self, request: Any, how: Asked) -> Any:
        driver = self._driver
        if isinstance(request, m.VoteRequest):
            return await driver.vote(request, how)
        if isinstance(request, m.BeginQuorumEpochRequest):
            return await driver.begin_quorum_epoch(request, how)
        if isinstance(request, m.EndQuorumEpochRequest):
            return await driver.end_quorum_epoch(request, how)
        if isinstance(request, FetchRequest):
            return await driver.fetch(request, how)
        if isinstance(request, m.FetchSnapshotRequest):
            return driver.fetch_snapshot(request, how)
        if isinstance(request, m.DescribeQuorumRequest):
            return driver.describe_quorum(request, how.version)
        if isinstance(request, m.AddRaftVoterRequest):
            return driver.add_voter(request)
        if isinstance(request, m.RemoveRaftVoterRequest):
            return driver.remove_voter(request)
        assert isinstance(request, m.UpdateRaftVoterRequest)
        return driver.update_voter(request)
