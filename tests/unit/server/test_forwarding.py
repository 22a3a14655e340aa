"""From a broker to the active controller: in the client's name, wherever it runs, and within the client's time."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.controller_requests import (
    ADD_VOTER,
    ALL,
    CREATE_TOPICS,
    DESCRIBE_QUORUM,
    FORWARDED,
    HEARTBEAT,
    OWN,
)

from ottla.controller.channel import MAX_TIME_MS, MIN_TIME_MS, time_for
from ottla.controller.refusals import refusal
from ottla.controller.result import RequestContext
from ottla.model.clock import SystemClock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.net.connection import ApiRanges
from ottla.net.errors import ConnectionLost, UnsupportedVersion
from ottla.net.peers import Node
from ottla.security.principal import ANONYMOUS, write_principal
from ottla.server.errors import CloseConnection
from ottla.server.forwarding import (
    MAX_IN_FLIGHT,
    MAX_WAITING,
    ActiveController,
    ChannelSettings,
    RemoteController,
)
from ottla.server.registry import ADVERTISED
from ottla.wire.codec import decode
from ottla.wire.framing import RequestHeader, decode_request_header, encode_response
from ottla.wire.messages.admin.topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from ottla.wire.messages.nodes.broker_lifecycle import BrokerHeartbeatResponse
from ottla.wire.messages.nodes.envelope import EnvelopeRequest, EnvelopeResponse
from ottla.wire.messages.nodes.raft import AddRaftVoterResponse, DescribeQuorumResponse
from ottla.wire.primitives import WireError
from ottla.wire.registry import response_class

ONE, TWO = Node(1, "host-1", 1), Node(2, "host-2", 2)
MADE = CreateTopicsResponse(topics=[CreatableTopicResult(name="a"), CreatableTopicResult(name="b")])


def client_context(version: int = 7, **more: Any) -> RequestContext:
    return RequestContext(
        version, principal=ANONYMOUS, client_id="client-1", client_address=b"\x7f\0\0\1", **more
    )


def soon(context: RequestContext, ms: float = 50) -> RequestContext:
    """The client stops waiting in a moment."""
    return context._replace(deadline_ms=SystemClock().monotonic_ms() + ms)


def inside(envelope: EnvelopeRequest, request: type[Any] = CreateTopicsRequest) -> tuple[RequestHeader, Any]:
    data = envelope.request_data
    header, offset = decode_request_header(data, 0, len(data))
    return header, decode(request, data, header.api_version, offset)[0]


def sealed(envelope: EnvelopeRequest, response: Any = MADE) -> EnvelopeResponse:
    header, _ = decode_request_header(envelope.request_data, 0, len(envelope.request_data))
    return EnvelopeResponse(
        response_data=encode_response(response, header.api_version, header.correlation_id)[4:]
    )


def no_controller(_: Any) -> EnvelopeResponse:
    return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)


Reaction = Callable[[Any], Any]


class World:
    """Controllers that react to what they are asked: with a response, an error, or a Pending; and who leads."""

    def __init__(self) -> None:
        self.leader: Node | None = ONE
        self.reactions: dict[Node, Reaction] = {ONE: sealed, TWO: sealed}
        self.asked: list[tuple[Node, Any, int | None]] = []
        self.has_asked = asyncio.Event()
        self.served: dict[int, ApiRanges] = {}
        self.forgotten: list[int] = []
        self.left_ms: list[float] = []
        self.remote = RemoteController(
            self, self, lambda: self.leader, SystemClock(), ChannelSettings(), random=Random(1)
        )

    def ask(
        self,
        to: Node,
        request: Any,
        *,
        timeout_ms: float | None = None,
        at_most: int | None = None,
        send_within_ms: float | None = None,
    ) -> Pending[Any]:
        assert send_within_ms is not None
        self.left_ms.append(send_within_ms)
        self.asked.append((to, request, at_most))
        self.has_asked.set()
        reaction = self.reactions[to](request)
        if isinstance(reaction, Pending):
            return reaction
        if isinstance(reaction, KafkaError):
            return Pending.failed(reaction)
        return Pending.of(reaction)

    def ranges(self, node_id: int) -> ApiRanges | None:
        return self.served.get(node_id)

    def forget(self, node_id: int) -> None:
        self.forgotten.append(node_id)

    @property
    def nodes_asked(self) -> list[int]:
        return [to.node_id for to, _, _ in self.asked]

    def elect(self, node: Node | None) -> None:
        self.leader = node
        self.remote.leader_changed()

    async def until_asked(self, times: int = 1) -> None:
        while len(self.asked) < times:
            self.has_asked.clear()
            await self.has_asked.wait()


def run(work: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        await work(World())

    asyncio.run(asyncio.wait_for(main(), 60))


# --- the envelope


def test_a_request_goes_in_the_clients_version_and_name() -> None:
    async def work(world: World) -> None:
        for version in (2, 5, 7):
            answer = await world.remote.create_topics(CREATE_TOPICS, client_context(version))
            assert [topic.name for topic in answer.topics] == ["a", "b"]
            to, envelope, at_most = world.asked[-1]
            assert (to, at_most) == (ONE, None)
            assert envelope.request_principal == write_principal(ANONYMOUS)
            assert envelope.client_host_address == b"\x7f\0\0\1"
            header, request = inside(envelope)
            assert (header.api_version, header.client_id) == (version, "client-1")
            assert [topic.name for topic in request.topics] == ["a", "b"]

    run(work)


def test_what_is_large_is_the_same() -> None:
    async def work(world: World) -> None:
        answer = await world.remote.create_topics(CREATE_TOPICS, client_context(is_large=True))
        assert answer == MADE
        many = CreateTopicsResponse(topics=[CreatableTopicResult(name="x" * 200) for _ in range(1000)])
        world.reactions[ONE] = lambda envelope: sealed(envelope, many)
        assert await world.remote.create_topics(CREATE_TOPICS, client_context()) == many

    run(work)


def test_what_a_broker_asks_in_its_own_name_goes_as_it_is() -> None:
    async def work(world: World) -> None:
        world.reactions[ONE] = lambda request: response_class(request.API_KEY)()
        for name, request in OWN.items():
            version = ADVERTISED[request.API_KEY][0]
            answer = await getattr(world.remote, name)(request, RequestContext(version))
            assert answer.error_code == 0
            assert world.asked[-1] == (ONE, request, version)
        await world.remote.create_topics(CREATE_TOPICS, RequestContext(7))
        assert world.asked[-1] == (ONE, CREATE_TOPICS, 7), "a coordinator's topic"

    run(work)


# --- another controller


def test_a_change_of_controller_in_the_middle() -> None:
    async def work(world: World) -> None:
        def resign(envelope: EnvelopeRequest) -> EnvelopeResponse:
            world.leader = TWO
            return no_controller(envelope)

        world.reactions[ONE] = resign
        assert await world.remote.create_topics(CREATE_TOPICS, client_context()) == MADE
        assert world.nodes_asked == [1, 2]

    run(work)


@pytest.mark.parametrize("failure", [ConnectionLost("gone"), KafkaError(ErrorCode.REQUEST_TIMED_OUT)])
def test_a_lost_answer_is_asked_for_again(failure: KafkaError) -> None:
    async def work(world: World) -> None:
        losses = iter([failure, failure])
        world.reactions[ONE] = lambda envelope: next(losses, None) or sealed(envelope)
        assert await world.remote.create_topics(CREATE_TOPICS, client_context()) == MADE
        assert world.nodes_asked == [1, 1, 1]

    run(work)


def test_a_controller_that_hangs_is_left_when_another_leads() -> None:
    async def work(world: World) -> None:
        late: Pending[Any] = Pending()
        world.reactions[ONE] = lambda _: late
        asking = asyncio.ensure_future(world.remote.create_topics(CREATE_TOPICS, client_context()))
        await world.until_asked()
        world.elect(None)
        await asyncio.sleep(0)
        assert not asking.done(), "it may answer as long as nobody else can"
        world.elect(TWO)
        assert await asking == MADE
        assert (world.nodes_asked, world.forgotten) == ([1, 2], [1]), "what waits for it is not sent later"
        late.fail(ConnectionLost("at last"))

    run(work)


def test_one_that_nobody_leads_for_answers_as_long_as_nobody_else_does() -> None:
    async def work(world: World) -> None:
        late: Pending[Any] = Pending()
        world.reactions[ONE] = lambda _: late
        asking = asyncio.ensure_future(world.remote.create_topics(CREATE_TOPICS, client_context()))
        await world.until_asked()
        world.elect(None)
        late.resolve(sealed(world.asked[0][1]))
        assert await asking == MADE

    run(work)


def test_no_controller_for_a_while() -> None:
    async def work(world: World) -> None:
        world.leader = None
        asking = [
            asyncio.ensure_future(world.remote.create_topics(CREATE_TOPICS, client_context())),
            asyncio.ensure_future(world.remote.broker_heartbeat(HEARTBEAT, RequestContext(2))),
        ]
        world.reactions[TWO] = lambda request: (
            sealed(request)
            if isinstance(request, EnvelopeRequest)
            else BrokerHeartbeatResponse(should_shut_down=False)
        )
        await asyncio.sleep(0)
        assert not world.asked
        world.elect(TWO)
        made, beaten = await asyncio.gather(*asking)
        assert (made, beaten.error_code) == (MADE, 0)
        assert world.nodes_asked == [2, 2]

    run(work)


def test_it_is_found_also_by_a_node_that_is_not_told() -> None:
    async def work(world: World) -> None:
        world.leader = None
        asking = asyncio.ensure_future(world.remote.create_topics(CREATE_TOPICS, client_context()))
        await asyncio.sleep(0)
        world.leader = TWO
        assert await asking == MADE

    run(work)


def test_a_broker_in_its_own_name_looks_for_another_one_too() -> None:
    async def work(world: World) -> None:
        def resign(request: Any) -> Any:
            world.leader = TWO
            return refusal(request, 2, ErrorCode.NOT_CONTROLLER)

        world.reactions[ONE] = resign
        world.reactions[TWO] = lambda _: BrokerHeartbeatResponse(should_shut_down=True)
        answer = await world.remote.broker_heartbeat(HEARTBEAT, RequestContext(2))
        assert answer.should_shut_down
        assert world.nodes_asked == [1, 2]

    run(work)


# --- the time that is over


@pytest.mark.parametrize("name", ALL)
def test_without_a_controller_the_time_is_over_in_the_responses_own_form(name: str) -> None:
    request = ALL[name]
    version = ADVERTISED[request.API_KEY][1]
    context = client_context(version) if name in FORWARDED else RequestContext(version)

    async def work(world: World) -> None:
        world.leader = None
        answer = await getattr(world.remote, name)(request, soon(context))
        assert answer == refusal(request, version, ErrorCode.REQUEST_TIMED_OUT)

    run(work)


def test_a_controller_that_does_not_answer_and_one_that_never_leads() -> None:
    async def work(world: World) -> None:
        for reaction in (lambda _: Pending(), no_controller, lambda _: ConnectionLost("gone")):
            world.reactions[ONE] = reaction
            answer = await world.remote.create_topics(CREATE_TOPICS, soon(client_context()))
            assert answer == refusal(CREATE_TOPICS, 7, ErrorCode.REQUEST_TIMED_OUT)
        assert max(world.left_ms) <= 50, "and it is not sent after that"

    run(work)


def test_a_client_that_gives_no_time_hears_what_the_controller_says() -> None:
    assert time_for(SimpleNamespace(timeout_ms=-1), 30_000) == MIN_TIME_MS
    assert time_for(SimpleNamespace(timeout_ms=2**31 - 1), 30_000) == MAX_TIME_MS
    assert time_for(SimpleNamespace(timeout_ms=5_000), 30_000) == 5_000
    assert time_for(SimpleNamespace(), 30_000) == 30_000


# --- versions and envelopes that are refused


def test_a_version_that_the_controller_does_not_know_closes_the_connection() -> None:
    async def work(world: World) -> None:
        world.reactions[ONE] = lambda _: EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        with pytest.raises(CloseConnection):
            await world.remote.create_topics(CREATE_TOPICS, client_context())
        assert world.nodes_asked == [1]

    run(work)


@pytest.mark.parametrize(
    "reaction",
    [
        lambda _: EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        lambda _: EnvelopeResponse(error_code=ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        lambda _: UnsupportedVersion("no envelopes"),
        lambda _: EnvelopeResponse(response_data=None),
        lambda _: EnvelopeResponse(response_data=b"\0\0\0"),
        lambda _: EnvelopeResponse(response_data=encode_response(MADE, 7, 12345)[4:]),
    ],
)
def test_what_is_not_the_clients_fault_is_an_unknown_error(reaction: Reaction) -> None:
    async def work(world: World) -> None:
        world.reactions[ONE] = reaction
        answer = await world.remote.create_topics(CREATE_TOPICS, client_context())
        assert answer == refusal(CREATE_TOPICS, 7, ErrorCode.UNKNOWN_SERVER_ERROR)
        assert world.nodes_asked == [1]

    run(work)


def test_what_has_no_bytes_is_asked_once_and_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    async def work(world: World) -> None:
        world.reactions[ONE] = lambda _: WireError("broker_epoch: no int64")
        answer = await world.remote.broker_heartbeat(HEARTBEAT, RequestContext(2))
        assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert world.nodes_asked == [1]

    run(work)
    (line,) = caplog.records
    assert line.levelname == "ERROR"
    assert "BrokerHeartbeatRequest has no bytes" in line.getMessage()
    assert "broker_epoch: no int64" in line.getMessage()


def test_a_broker_hears_that_its_version_is_unknown() -> None:
    async def work(world: World) -> None:
        world.reactions[ONE] = lambda _: UnsupportedVersion("too new")
        answer = await world.remote.broker_heartbeat(HEARTBEAT, RequestContext(2))
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION

    run(work)


def test_what_the_controller_serves_is_known_when_it_has_been_asked() -> None:
    async def work(world: World) -> None:
        assert world.remote.versions_of(19) is None
        world.served[1] = ApiRanges({19: (2, 5)})
        assert world.remote.versions_of(19) == (2, 5)
        low, high = world.remote.versions_of(20) or (0, 0)
        assert low > high, "not at all"
        world.leader = None
        assert world.remote.versions_of(19) is None

    run(work)


# --- bounds


def test_a_few_are_asked_at_a_time_and_heartbeats_do_not_wait_behind_them() -> None:
    async def work(world: World) -> None:
        waiting: list[Pending[Any]] = []

        def hang(request: Any) -> Any:
            if not isinstance(request, EnvelopeRequest):
                return BrokerHeartbeatResponse(should_shut_down=False)
            waiting.append(Pending())
            return waiting[-1]

        world.reactions[ONE] = hang
        asking = [
            asyncio.ensure_future(world.remote.create_topics(CREATE_TOPICS, client_context()))
            for _ in range(MAX_IN_FLIGHT + 2)
        ]
        await world.until_asked(MAX_IN_FLIGHT)
        late = await world.remote.create_topics(CREATE_TOPICS, soon(client_context()))
        assert late.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        assert len(waiting) == MAX_IN_FLIGHT, "one whose time is over is not asked any more"
        assert (await world.remote.broker_heartbeat(HEARTBEAT, RequestContext(2))).error_code == 0
        world.reactions[ONE] = sealed
        envelopes = [request for _, request, _ in world.asked if isinstance(request, EnvelopeRequest)]
        for answer, envelope in zip(waiting, envelopes, strict=True):
            answer.resolve(sealed(envelope))
        assert all(made == MADE for made in await asyncio.gather(*asking))

    run(work)


def test_how_many_wait_is_bounded() -> None:
    async def work(world: World) -> None:
        world.leader = None
        asking = [
            asyncio.ensure_future(world.remote.create_topics(CREATE_TOPICS, client_context()))
            for _ in range(MAX_WAITING)
        ]
        await asyncio.sleep(0)
        refused = await world.remote.create_topics(CREATE_TOPICS, client_context())
        assert refused.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
        world.remote.close()
        ended = await asyncio.gather(*asking)
        assert {answer.topics[0].error_code for answer in ended} == {ErrorCode.BROKER_NOT_AVAILABLE}

    run(work)


def test_a_node_that_stops_waits_for_nobody() -> None:
    async def work(world: World) -> None:
        world.reactions[ONE] = lambda _: Pending()
        asking = asyncio.ensure_future(world.remote.create_topics(CREATE_TOPICS, client_context()))
        await world.until_asked()
        world.remote.close()
        assert (await asking).topics[0].error_code == ErrorCode.BROKER_NOT_AVAILABLE
        after = await world.remote.create_topics(CREATE_TOPICS, client_context())
        assert after.topics[0].error_code == ErrorCode.BROKER_NOT_AVAILABLE
        assert len(world.asked) == 1

    run(work)


# --- here or there


class Controller:
    """The one in this process; `answers` are the codes it refuses with, one request after the other."""

    def __init__(self) -> None:
        self.active = True
        self.code = ErrorCode.NONE
        self.asked: list[tuple[str, RequestContext]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in ALL:
            raise AttributeError(name)

        async def decide(request: Any, context: RequestContext) -> Any:
            self.asked.append((name, context))
            return refusal(request, context.api_version, self.code)

        return decide


class Quorum:
    def __init__(self) -> None:
        self.code = ErrorCode.NONE
        self.asked: list[tuple[Any, Any]] = []

    kraft_version = 1
    leader = (1, 1)

    async def handle(self, request: Any, how: Any) -> Any:
        self.asked.append((request, how))
        return refusal(request, how.version, self.code)


class Two:
    """An ActiveController with a controller here and one there."""

    def __init__(self) -> None:
        self.here, self.there, self.quorum = Controller(), Controller(), Quorum()
        self.active = ActiveController(self.here, self.quorum, self.there)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ALL)
def test_the_controller_of_this_process_is_asked_while_it_is_active(name: str) -> None:
    async def work(_: World) -> None:
        two, request = Two(), ALL[name]
        version = ADVERTISED[request.API_KEY][1]
        call = getattr(two.active, name)
        of_quorum = name in ("describe_quorum", "add_raft_voter", "remove_raft_voter")
        here: list[Any] = two.quorum.asked if of_quorum else two.here.asked

        await call(request, client_context(version))
        assert (len(here), len(two.there.asked)) == (1, 0)
        two.here.active = False
        await call(request, client_context(version))
        assert (len(here), len(two.there.asked)) == (1, 1)

        # It is active when it is asked, and is no more when it answers.
        two.here.active = True
        lost = ErrorCode.NOT_LEADER_OR_FOLLOWER if name == "describe_quorum" else ErrorCode.NOT_CONTROLLER
        two.here.code = two.quorum.code = lost
        context = client_context(version, deadline_ms=5.0)
        answer = await call(request, context)
        assert answer == refusal(request, version, ErrorCode.NONE)
        assert (len(here), two.there.asked[-1]) == (2, (name, context)), "within the same time"

    run(work)


def test_other_errors_are_answers() -> None:
    async def work(_: World) -> None:
        two = Two()
        two.here.code = two.quorum.code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        await two.active.create_topics(CREATE_TOPICS, client_context())
        answer = await two.active.add_raft_voter(ADD_VOTER, client_context(1))
        assert isinstance(answer, AddRaftVoterResponse)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert two.there.asked == []

    run(work)


def test_versions_of_another_controller_count_only_while_it_is_asked() -> None:
    async def work(world: World) -> None:
        world.served[1] = ApiRanges({19: (2, 5)})
        here = Controller()
        active = ActiveController(here, Quorum(), world.remote)  # type: ignore[arg-type]
        assert active.versions_of(19) is None
        here.active = False
        assert active.versions_of(19) == (2, 5)

    run(work)


def test_a_standby_describes_the_quorum_by_its_leader() -> None:
    async def work(world: World) -> None:
        here = Controller()
        here.active = False
        quorum = Quorum()
        world.reactions[ONE] = lambda envelope: sealed(envelope, DescribeQuorumResponse(topics=[]))
        active = ActiveController(here, quorum, world.remote)  # type: ignore[arg-type]
        answer = await active.describe_quorum(DESCRIBE_QUORUM, client_context(2))
        assert (answer.error_code, quorum.asked) == (0, [])

    run(work)
