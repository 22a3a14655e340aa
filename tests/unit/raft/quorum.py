"""Several drivers in one process: real files, requests through the wire's own bytes, a network that can be cut."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.unit.raft.support import CLUSTER_ID, Listener, frames

from ottla.metadata import records as r
from ottla.metadata.features import KRAFT_VERSION
from ottla.metadata.registrations import Endpoint
from ottla.model.clock import SystemClock
from ottla.model.errors import KafkaError
from ottla.model.pending import Pending
from ottla.model.tasks import spawn
from ottla.net.errors import ConnectionLost
from ottla.net.nodes import ConnectionRefused, TimedOut
from ottla.net.peers import Node
from ottla.raft.answers import Asked
from ottla.raft.driver import RaftDriver, RaftOptions
from ottla.raft.formatting import format_metadata
from ottla.raft.metadata_log import MetadataLogConfig
from ottla.raft.state import Timeouts
from ottla.raft.voters import SUPPORTED_KRAFT_VERSIONS, ReplicaKey, VoterNode, VoterSet
from ottla.wire.codec import decode, encode
from ottla.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from ottla.wire.registry import response_class
from ottla.wire.schema import schema_of

LISTENER: Final = "CONTROLLER"
# Short, for a test waits for some of them; no test depends on which of them comes first.
TIMEOUTS: Final = Timeouts(
    election_ms=150, fetch_ms=300, election_backoff_max_ms=100, request_ms=300, retry_backoff_ms=5, max_fetch_wait_ms=50
)  # fmt: skip
PATIENCE_S: Final = 180.0

# Given the node that asks, the one that answers, the request and its answer: another answer, or none.
Mangle = Callable[[int, int, Any, Any], Any]


class NoAnswer(Exception):
    """A Mangle raises it for an answer that gets lost."""


class Network:
    """Which node is reached at which port."""

    def __init__(self) -> None:
        self.serving: dict[int, RaftDriver] = {}
        self.cut: set[int] = set()
        self.mangle: Mangle | None = None
        self.asked: list[tuple[int, int, Any]] = []


class Client:
    """The NodeClient of one node."""

    def __init__(self, network: Network, node_id: int) -> None:
        self._network = network
        self._node_id = node_id

    def ask(self, to: Node, request: Any, *, timeout_ms: float | None = None) -> Pending[Any]:
        answer: Pending[Any] = Pending()
        assert timeout_ms is not None
        spawn(self._ask(to, request, timeout_ms, answer), name="asking", owner=f"node {self._node_id}")
        return answer

    async def _ask(self, to: Node, request: Any, timeout_ms: float, answer: Pending[Any]) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                answer.resolve(await self._exchange(to, request))
        except TimeoutError:
            answer.fail(TimedOut(f"{to.address} has not answered"))
        except NoAnswer:
            answer.fail(ConnectionLost(f"{to.address}: closed"))
        except KafkaError as error:
            answer.fail(error if isinstance(error, ConnectionLost) else ConnectionLost(str(error)))

    async def _exchange(self, to: Node, request: Any) -> Any:
        network = self._network
        raft = network.serving.get(to.port)
        if raft is None:
            raise ConnectionRefused(f"{to.address}: connection refused")
        if {self._node_id, to.port} & network.cut:
            await asyncio.Event().wait()
        network.asked.append((self._node_id, to.port, request))
        schema = schema_of(type(request))
        version = max(schema.versions)
        sent, _ = decode(type(request), encode(request, version), version)
        if isinstance(sent, ApiVersionsRequest):
            response: Any = _api_versions()
        else:
            response = await raft.handle(sent, Asked(version, LISTENER))
        if {self._node_id, to.port} & network.cut:
            await asyncio.Event().wait()
        assert schema.api_key is not None
        received, _ = decode(response_class(schema.api_key), encode(response, version), version)
        if network.mangle is not None:
            received = network.mangle(self._node_id, to.port, request, received)
        return received


def _api_versions() -> ApiVersionsResponse:
    """What a node's own server answers: a new voter is asked for its features."""
    return ApiVersionsResponse(
        error_code=0,
        api_keys=[],
        supported_features=[
            SupportedFeatureKey(
                name=KRAFT_VERSION,
                min_version=SUPPORTED_KRAFT_VERSIONS.min,
                max_version=SUPPORTED_KRAFT_VERSIONS.max,
            )
        ],
    )


def key(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, bytes([node_id] * 16))


def voter(node_id: int) -> VoterNode:
    """A node's port is its id: nothing listens there but the Network."""
    endpoint = Endpoint(LISTENER, "127.0.0.1", node_id)
    return VoterNode(key(node_id), (endpoint,), SUPPORTED_KRAFT_VERSIONS)


class Member:
    """One node of the quorum, over all its lives."""

    def __init__(self, quorum: "Quorum", node_id: int, *, may_vote: bool = True) -> None:
        self.node_id = node_id
        self.directory = quorum.directory / f"node-{node_id}"
        self.may_vote = may_vote
        self._quorum = quorum
        self.raft: RaftDriver
        self.listener: Listener
        self.running = False

    def format(self, voters: VoterSet | None) -> None:
        format_metadata(self.directory, now_ms=1, voters=voters)

    def make(self) -> None:
        quorum = self._quorum
        options = RaftOptions(
            cluster_id=CLUSTER_ID,
            metadata_dir=self.directory,
            local=voter(self.node_id) if self.may_vote else VoterNode(key(self.node_id)),
            static_voters=quorum.static_voters,
            bootstrap=tuple(("127.0.0.1", node_id) for node_id in quorum.voter_ids),
            controller_listener=LISTENER,
            may_vote=self.may_vote,
            timeouts=TIMEOUTS,
            fetch_snapshot_bytes=quorum.fetch_snapshot_bytes,
            log_config=quorum.config,
        )
        client = Client(quorum.network, self.node_id)
        self.raft = RaftDriver(options, SystemClock(), client, random=Random(self.node_id))
        self.listener = Listener(self.raft)

    async def start(self) -> None:
        self.make()
        self.raft.load()
        self._quorum.network.serving[self.node_id] = self.raft
        self.running = True
        await self.raft.start(self.listener)

    async def stop(self) -> None:
        """In order: while it stops it still answers."""
        self.running = False
        try:
            await self.raft.stop()
        finally:
            self._quorum.network.serving.pop(self.node_id, None)

    async def crash(self) -> None:
        """Nobody hears from it any more, and it says goodbye to nobody."""
        self._quorum.network.serving.pop(self.node_id, None)
        self._quorum.network.cut.add(self.node_id)
        await self.stop()
        self._quorum.network.cut.discard(self.node_id)

    @property
    def topics(self) -> set[str]:
        return set(self.listener.image.topics)


class Quorum:
    """Three voters, unless it is said otherwise, and a few things that tests do with them."""

    def __init__(
        self,
        directory: Path,
        voter_ids: tuple[int, ...] = (1, 2, 3),
        *,
        dynamic: bool = True,
        config: MetadataLogConfig | None = None,
    ) -> None:
        self.directory = directory
        self.voter_ids = voter_ids
        self.config = config or MetadataLogConfig()
        self.fetch_snapshot_bytes = 1 << 20
        self.network = Network()
        voters = VoterSet.of(*(voter(node_id) for node_id in voter_ids))
        addresses = {node_id: voter(node_id).listeners for node_id in voter_ids}
        self.static_voters = None if dynamic else VoterSet.static(addresses)
        self.members = {node_id: Member(self, node_id) for node_id in voter_ids}
        for member in self.members.values():
            member.format(voters if dynamic else None)

    def observer(self, node_id: int, *, may_vote: bool = False) -> Member:
        """One more node, which has no vote."""
        member = self.members[node_id] = Member(self, node_id, may_vote=may_vote)
        member.format(None)
        return member

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members.values() if member.running]

    def leaders(self) -> list[Member]:
        return [member for member in self.running if member.raft.is_leader]

    async def leader(self, but: Member | None = None) -> Member:
        """The leader of the highest epoch, once there is one."""
        found: list[Member] = []

        def led() -> bool:
            found[:] = [member for member in self.leaders() if member is not but]
            return bool(found)

        await until(led)
        return max(found, key=lambda member: member.raft.epoch)

    async def write(self, *records: r.MetadataRecord) -> Member:
        """Appends where the leader is, and waits until it is committed there; asks the next if it was in vain."""
        topics = {record.name for record in records if isinstance(record, r.TopicRecord)}
        for attempt in itertools.count():
            leader = await self.leader()
            if attempt and topics and topics <= leader.topics:
                return leader  # the one before was not in vain: its leader did not live to see it
            try:
                last = leader.raft.append(frames(*records))
            except KafkaError:
                continue
            if await is_committed(leader.raft, last):
                return leader
        raise AssertionError("there is no last attempt")

    async def agree(self, *members: Member, topics: set[str]) -> None:
        """Until these nodes (all that run, if none is named) know of the topics, and their logs are the same."""
        chosen = members or tuple(self.running)
        await until(lambda: all(member.topics == topics for member in chosen))

    async def start(self) -> None:
        for member in self.members.values():
            await member.start()


async def is_committed(raft: RaftDriver, offset: int) -> bool:
    """What becomes of an append: is it committed before its leader stops leading?"""
    epoch = raft.epoch
    await until(lambda: raft.state.high_watermark > offset or not raft.is_leader or raft.epoch != epoch)
    return raft.state.high_watermark > offset and raft.epoch == epoch


async def until(condition: Callable[[], bool]) -> None:
    """Waits for it; what else happens goes on meanwhile."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def running(quorum: Quorum) -> AsyncIterator[Quorum]:
    await quorum.start()
    try:
        yield quorum
    finally:
        quorum.network.mangle = None
        for member in quorum.running:
            await member.stop()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await work()

    asyncio.run(main())
