"""Questions to other nodes: answered in order, and failed soon where nobody can answer."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
import uvloop
from tests.unit.client.stub_broker import CLOSE, StubBroker

from ottla.model.errors import ErrorCode, KafkaError
from ottla.net.connection import ApiRanges, State
from ottla.net.errors import ConnectionLost, UnsupportedVersion
from ottla.net.nodes import MAX_WAITING, ConnectionRefused, NodeClient, NodeClientSettings, NodeCore
from ottla.net.peers import Node
from ottla.net.transport import Action, Connect, Write
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.messages.nodes.raft import VoteRequest
from ottla.wire.primitives import WireError

SETTINGS = NodeClientSettings("node-1", request_timeout_ms=20_000)
ONE_IN_FLIGHT = NodeClientSettings("node-1", request_timeout_ms=20_000, max_in_flight=1, large_answers=True)


def run(work: Callable[[NodeClient], Awaitable[None]]) -> None:
    async def main() -> None:
        client = NodeClient(SETTINGS, random=Random(1))
        try:
            await work(client)
        finally:
            await client.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def node_of(broker: StubBroker, node_id: int = 1) -> Node:
    host, port = broker.cluster.addresses[1]
    return Node(node_id, host, port)


def test_questions_share_a_connection_and_are_answered_in_order() -> None:
    with StubBroker() as broker:

        async def work(client: NodeClient) -> None:
            asked = [client.ask(node_of(broker), MetadataRequest(topics=[])) for _ in range(20)]
            answers = [await answer for answer in asked]
            assert all(answer.brokers for answer in answers)

        run(work)
        assert broker.accepted == 1


def test_what_the_node_does_not_serve_fails_and_the_rest_goes_on() -> None:
    with StubBroker() as broker:

        async def work(client: NodeClient) -> None:
            with pytest.raises(UnsupportedVersion):
                await client.ask(node_of(broker), VoteRequest(topics=[]))
            assert (await client.ask(node_of(broker), MetadataRequest(topics=[]))).brokers

        run(work)


def test_what_cannot_be_written_fails_and_the_rest_goes_on() -> None:
    with StubBroker() as broker:

        async def work(client: NodeClient) -> None:
            asked = [
                client.ask(
                    node_of(broker), MetadataRequest(topics=[MetadataRequestTopic(name="x" * (1 << 16))])
                ),
                client.ask(node_of(broker), MetadataRequest(topics=[])),
            ]
            with pytest.raises(WireError):
                await asked[0]
            assert (await asked[1]).brokers

        run(work)


@pytest.mark.parametrize("host", ["two..dots", "x" * 300, "nul\0", ""])
def test_a_name_that_cannot_be_one_fails_at_once(host: str, caplog: pytest.LogCaptureFixture) -> None:
    """A node that lies about where it is reached is no bug of this one."""

    async def work(client: NodeClient) -> None:
        with pytest.raises(ConnectionLost):
            await client.ask(Node(7, host, 1), MetadataRequest(topics=[]))

    run(work)
    assert not [r for r in caplog.records if r.exc_info]


def test_a_turn_that_fails_is_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with StubBroker() as broker:

        async def work(client: NodeClient) -> None:
            poll, broken = client._core.poll, 2

            def breaks(now: float) -> list[Action]:
                nonlocal broken
                if broken:
                    broken -= 1
                    raise RuntimeError("nobody thought of this")
                return poll(now)

            monkeypatch.setattr(client._core, "poll", breaks)
            assert (await client.ask(node_of(broker), MetadataRequest(topics=[]))).brokers

        run(work)
    assert len([r for r in caplog.records if r.exc_info]) == 2


def test_a_port_that_nobody_listens_on_is_refused_at_once_and_again_in_the_backoff() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: no one else gets it meanwhile
        nobody = Node(7, *taken.getsockname())

        async def work(client: NodeClient) -> None:
            for _ in range(3):
                with pytest.raises(ConnectionRefused):
                    await client.ask(nobody, MetadataRequest(topics=[]))

        run(work)


def test_a_connection_that_breaks_fails_what_is_in_flight_and_is_made_again() -> None:
    with StubBroker() as broker:

        async def work(client: NodeClient) -> None:
            assert (await client.ask(node_of(broker), MetadataRequest(topics=[]))).brokers
            broker.script = lambda request: CLOSE if isinstance(request, MetadataRequest) else None
            with pytest.raises(ConnectionLost):
                await client.ask(node_of(broker), MetadataRequest(topics=[]))
            broker.script = lambda request: None
            answer = None
            while answer is None:  # the backoff fails questions until it is over
                try:
                    answer = await client.ask(node_of(broker), MetadataRequest(topics=[]))
                except ConnectionLost:
                    await asyncio.sleep(0.01)
            assert answer.brokers

        run(work)


def test_a_node_that_moved_is_asked_at_its_new_address() -> None:
    with StubBroker() as before, StubBroker() as after:

        async def work(client: NodeClient) -> None:
            assert (await client.ask(node_of(before), MetadataRequest(topics=[]))).brokers
            assert (await client.ask(node_of(after), MetadataRequest(topics=[]))).brokers

        run(work)
        assert (before.accepted, after.accepted) == (1, 1)


def test_what_waits_is_bounded_and_fails_when_the_node_is_forgotten() -> None:
    core = NodeCore(SETTINGS, Random(1))
    silent = Node(3, "127.0.0.1", 9)
    waiting = [core.ask(silent, MetadataRequest(topics=[]), 0.0, 1_000.0) for _ in range(MAX_WAITING)]
    refused = core.ask(silent, MetadataRequest(topics=[]), 0.0, 1_000.0)
    assert refused.done
    assert refused.error is not None
    assert [type(action) for action in core.poll(1.0)] == [Connect]
    core.forget(3)
    core.poll(2.0)
    assert all(isinstance(answer.error, ConnectionLost) for answer in waiting)


def test_time_runs_out_for_what_could_not_be_sent() -> None:
    core = NodeCore(SETTINGS, Random(1))
    answer = core.ask(Node(3, "127.0.0.1", 9), MetadataRequest(topics=[]), 0.0, 500.0)
    core.poll(1.0)
    assert not answer.done
    assert core.next_deadline(1.0) == 500.0
    core.poll(500.0)
    assert isinstance(answer.error, KafkaError)
    assert answer.error.code is ErrorCode.REQUEST_TIMED_OUT
    assert core.next_deadline(500.0) > 500.0


def test_one_may_have_less_time_to_be_sent_than_to_be_answered() -> None:
    core = NodeCore(SETTINGS, Random(1))
    node = Node(3, "127.0.0.1", 9)
    brief = core.ask(node, MetadataRequest(topics=[]), 0.0, 500.0, send_within_ms=20.0)
    longer = core.ask(node, MetadataRequest(topics=[]), 0.0, 500.0, send_within_ms=2_000.0)
    core.poll(1.0)
    assert core.next_deadline(1.0) == 20.0
    core.poll(20.0)
    assert brief.error is not None
    assert brief.error.code is ErrorCode.REQUEST_TIMED_OUT
    assert not longer.done
    core.poll(500.0)
    assert longer.done


def test_what_a_node_serves_is_known_while_there_is_a_connection() -> None:
    with StubBroker() as broker:

        async def work(client: NodeClient) -> None:
            assert client.ranges(1) is None
            await client.ask(node_of(broker), MetadataRequest(topics=[]))
            ranges = client.ranges(1)
            assert ranges is not None
            assert ranges.of(MetadataRequest.API_KEY) is not None
            assert ranges.of(VoteRequest.API_KEY) is None
            client.forget(1)
            assert client.ranges(1) is None

        run(work)


def test_an_attempt_after_failures_has_more_time() -> None:
    settings = NodeClientSettings(
        "node-1", connection_setup_timeout_ms=100, connection_setup_timeout_max_ms=350, reconnect_backoff_ms=1
    )
    core = NodeCore(settings, Random(1))
    now, given = 0.0, []
    for _ in range(4):
        core.ask(Node(7, "127.0.0.1", 1), MetadataRequest(topics=[]), now, 60_000)
        assert any(isinstance(action, Connect) for action in core.poll(now))
        begun = now
        while core._network.peers.get(7).connection is not None:  # type: ignore[union-attr]
            now += 1
            core.poll(now)
        given.append(now - begun)
        now += 5_000
    assert given[0] == 100
    # Twice as much each time, off by a fifth at most, up to the greatest.
    for got, expected in zip(given[1:], (200, 350, 350), strict=True):
        assert expected * 0.8 <= got <= expected * 1.2 + 1


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("pieces", [7, 1 << 20])
def test_large_answers_are_read_into_buffers_of_their_own(runner: Any, pieces: int) -> None:
    settings = NodeClientSettings("node-1", large_answers=True, receive_buffer_bytes=100_000)
    with StubBroker() as broker:
        broker.pieces = pieces

        async def main() -> None:
            client = NodeClient(settings, random=Random(1))
            try:
                asked = [client.ask(node_of(broker), MetadataRequest(topics=[])) for _ in range(20)]
                assert all([(await answer).brokers for answer in asked])
                (link,) = client._driver._links.values()
                assert isinstance(link, asyncio.BufferedProtocol)
                assert link.transport is not None
                connected = link.transport.get_extra_info("socket")
                assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 100_000
            finally:
                await client.close()

        runner(main())


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_with_one_in_flight_a_question_is_written_when_it_is_asked(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StubBroker() as broker:

        async def main() -> None:
            client = NodeClient(ONE_IN_FLIGHT, random=Random(1))
            node, question = node_of(broker), MetadataRequest(topics=[])
            try:
                await client.ask(node, question)
                await asyncio.sleep(0)  # the turn in which the first one was sent may be followed by another
                turns = 0
                poll = client._core.poll

                def counted(now: float) -> list[Action]:
                    nonlocal turns
                    turns += 1
                    return poll(now)

                monkeypatch.setattr(client._core, "poll", counted)
                for _ in range(5):
                    assert (await client.ask(node, question)).brokers
                assert turns == 0
                # One of these goes at once, and the others when their turn has come.
                asked = [client.ask(node, question) for _ in range(5)]
                assert all([(await answer).brokers for answer in asked])
                assert turns > 0
                with pytest.raises(UnsupportedVersion):
                    await client.ask(node, VoteRequest(topics=[]))
                assert (await client.ask(node, question)).brokers
            finally:
                await client.close()

        runner(main())
        assert broker.accepted == 1


def test_what_was_written_at_once_has_its_time_to_be_answered() -> None:
    core = NodeCore(ONE_IN_FLIGHT, Random(1))
    node = Node(3, "127.0.0.1", 9)
    core.ask(node, MetadataRequest(topics=[]), 0.0, 500.0)
    (connect,) = core.poll(1.0)
    assert isinstance(connect, Connect)
    peer = core._network.peers.get(3)
    assert peer is not None
    assert peer.connection is not None
    peer.connection.ranges = ApiRanges({MetadataRequest.API_KEY: (0, 12), ApiVersionsRequest.API_KEY: (0, 4)})
    peer.connection.state = State.READY
    peer.connection.last_used_ms = 1.0
    core._network.peers.settled(peer)
    core.poll(2.0)
    peer.connection.in_flight.popleft()  # it is answered
    answer = core.ask(node, MetadataRequest(topics=[]), 3.0, 500.0)
    written = core.take_output()
    assert written is not None
    assert [type(action) for action in written] == [Write]
    assert core.next_deadline(3.0) == 503.0
    core.poll(503.0)
    assert isinstance(answer.error, ConnectionLost)
