"""What the quorum's answers and changes of voters may ask of the core, and the time-outs that all of them know.

So the core knows them, and they know no more of it than this. Owned by the raft core.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ottla.metadata.registrations import Endpoint
from ottla.net.peers import Node
from ottla.raft.log_view import LogView, OffsetAndEpoch
from ottla.raft.state import QuorumState
from ottla.raft.voters import ReplicaKey
from ottla.records.control import ControlType


class Timeouts(NamedTuple):
    """The keys controller.quorum.*, with Kafka's defaults."""

    election_ms: int = 1_000
    fetch_ms: int = 2_000
    election_backoff_max_ms: int = 1_000
    request_ms: int = 2_000
    retry_backoff_ms: int = 20
    # What a fetch asks the leader to wait for something new.
    max_fetch_wait_ms: int = 500


class Replica(Protocol):
    """A replica of the metadata log, as whoever answers for it sees it; the RaftCore, or a stand-in."""

    state: QuorumState
    log: LogView
    cluster_id: str
    controller_listener: str
    timeouts: Timeouts
    now_ms: int

    def is_foreign(self, cluster_id: str | None) -> bool: ...

    def asked_for_vote(self, candidate: ReplicaKey, its_end: OffsetAndEpoch, pre_vote: bool) -> bool: ...

    def heard_of_epoch(self, epoch: int) -> None: ...

    def heard_of_leader(self, leader_id: int, epoch: int, endpoints: tuple[Endpoint, ...]) -> None: ...

    def leader_steps_down(self, leader_id: int, successors: Sequence[ReplicaKey]) -> None: ...

    def replica_fetched(self, replica: ReplicaKey, offset: int) -> None: ...

    def voter_in_touch(self, replica: ReplicaKey) -> None: ...

    def append_control(self, records: Sequence[tuple[ControlType, bytes]]) -> int: ...

    def ask(self, node: Node, request: Any, handler: "Callable[[Replica, Any, Node], bool]") -> bool: ...

    def answer(self, token: int, response: Any) -> None: ...
