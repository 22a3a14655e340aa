"""A client's request that a broker forwards: whose it is, and what becomes of it at a controller."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.controller_node import ControllerNode
from tests.support.controller_requests import CREATE_TOPICS, DESCRIBE_QUORUM, FORWARDED

from ottla.controller.refusals import refusal
from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.authorizer import StandardAuthorizer
from ottla.security.principal import (
    ANONYMOUS,
    KafkaPrincipal,
    address_bytes,
    read_principal,
    write_principal,
)
from ottla.server import handlers
from ottla.server.context import Context
from ottla.server.forwarding import FORWARDABLE
from ottla.server.handlers.controller import create_topics, envelope, quorum
from ottla.server.registry import ADVERTISED
from ottla.wire.codec import decode, encode
from ottla.wire.framing import RequestHeader, decode_response_header, request_frame
from ottla.wire.messages.admin.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.wire.messages.nodes.envelope import DefaultPrincipalData, EnvelopeRequest
from ottla.wire.messages.nodes.raft import VoteRequest
from ottla.wire.registry import APIS, response_class

BOB = KafkaPrincipal("User", "bob")
ALICE = KafkaPrincipal("User", "alice", token_authenticated=True)
PRINCIPAL = encode(DefaultPrincipalData(type="User", name="alice", token_authenticated=True), 0)
ADDRESS = b"\x0a\0\0\1"


def test_a_principal_has_its_version_before_it() -> None:
    assert read_principal(b"\x00\x00" + PRINCIPAL) == ALICE
    assert write_principal(ALICE) == b"\x00\x00" + PRINCIPAL
    assert str(read_principal(write_principal(ANONYMOUS))) == "User:ANONYMOUS"


@pytest.mark.parametrize(
    "data", [None, b"", b"\x00", b"\x00\x01" + PRINCIPAL, b"\xff\xff", b"\x00\x00\x05Us"]
)
def test_what_is_no_principal(data: bytes | None) -> None:
    with pytest.raises(KafkaError) as refused:
        read_principal(data)
    assert refused.value.code is ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE


@pytest.mark.parametrize(
    ("host", "packed"),
    [
        ("10.0.0.1", ADDRESS),
        ("::ffff:10.0.0.1", ADDRESS),
        ("::1", bytes(15) + b"\1"),
        ("fe80::1%lo", b"\xfe\x80" + bytes(13) + b"\1"),
        ("", bytes(4)),
    ],
)
def test_addresses_as_java_has_them(host: str, packed: bytes) -> None:
    assert address_bytes(host) == packed


def test_an_envelope_is_not_put_into_another() -> None:
    assert 58 not in FORWARDABLE
    assert set(APIS) >= FORWARDABLE


# --- at a controller


def run(work: Callable[[ControllerNode], Awaitable[None]]) -> None:
    async def main() -> None:
        handlers.load()
        node = ControllerNode()
        try:
            await work(node)
        finally:
            node.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def inner(request: Any, version: int, client_id: str | None = "alices-tool") -> bytes:
    return bytes(request_frame(request, version, 77, client_id)[4:])


async def forward(
    node: ControllerNode,
    data: bytes,
    principal: bytes | None = write_principal(ALICE),
    address: bytes = ADDRESS,
) -> bytes:
    ctx = Context(node.services, node.connection(), RequestHeader(58, 0, 1, "broker-2"), 0)
    answer = await envelope(
        ctx, EnvelopeRequest(request_data=data, request_principal=principal, client_host_address=address)
    )
    assert answer.error_code == 0
    return answer.response_data or b""


async def refused(node: ControllerNode, data: bytes, **more: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        await forward(node, data, **more)
    return error.value.code


@pytest.mark.parametrize("count", [1, 2_000])
def test_it_is_served_as_its_clients_and_not_the_brokers(count: int) -> None:
    async def work(node: ControllerNode) -> None:
        topics = [
            CreatableTopic(
                name=f"topic-{n:060}", num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
            for n in range(count)
        ]
        request = CreateTopicsRequest(topics=topics, timeout_ms=5_000)
        data = await forward(node, inner(request, 7))
        correlation_id, offset = decode_response_header(data, 0, 19, 7)
        answer = decode(CreateTopicsResponse, data, 7, offset)[0]
        assert (correlation_id, len(answer.topics)) == (77, count)
        ((name, asked, context),) = node.controller.asked
        assert (name, len(asked.topics)) == ("create_topics", count)
        assert (context.principal, context.client_address) == (ALICE, ADDRESS)
        assert (context.client_id, context.api_version, context.forwarded) == ("alices-tool", 7, True)
        assert context.is_large == (count > 1)

    run(work)


def test_the_brokers_connection_stays_the_brokers() -> None:
    async def work(node: ControllerNode) -> None:
        connection = node.connection()
        ctx = Context(node.services, connection, RequestHeader(58, 0, 1, "broker-2"), 0)
        for request in (
            CREATE_TOPICS,
            CreateTopicsRequest(topics=CREATE_TOPICS.topics * 5_000, timeout_ms=1),
        ):
            sent = EnvelopeRequest(
                request_data=inner(request, 7),
                request_principal=write_principal(ALICE),
                client_host_address=ADDRESS,
            )
            await envelope(ctx, sent)
            assert connection.client_id == "broker-2"

    run(work)


def test_a_request_without_an_envelope_is_its_connections() -> None:
    async def work(node: ControllerNode) -> None:
        ctx = Context(node.services, node.connection(), RequestHeader(19, 7, 1, "tool"), 0)
        await create_topics(ctx, CREATE_TOPICS)
        ((_, _, context),) = node.controller.asked
        assert (context.principal, context.client_address) == (ANONYMOUS, b"\x0a\0\0\x09")
        assert (context.client_id, context.forwarded) == ("tool", False)

    run(work)


@pytest.mark.parametrize("name", FORWARDED)
def test_a_controller_that_is_not_active_says_so_outside(name: str) -> None:
    async def work(node: ControllerNode) -> None:
        request = FORWARDED[name]
        version = ADVERTISED[request.API_KEY][0]
        node.controller.code = ErrorCode.NOT_CONTROLLER
        node.raft.code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        node.services.authorizer = StandardAuthorizer(
            [ALICE, BOB]
        )  # without one there are no rules to change
        principal = write_principal(BOB)  # whoever has come with a token is not given another
        if name in ("add_raft_voter", "remove_raft_voter"):
            data = await forward(node, inner(request, version), principal)
            _, offset = decode_response_header(data, 0, request.API_KEY, version)
            answer = decode(response_class(request.API_KEY), data, version, offset)[0]
            assert answer == refusal(request, version, ErrorCode.NOT_LEADER_OR_FOLLOWER), "for the client"
        else:
            code = await refused(node, inner(request, version), principal=principal)
            assert code is ErrorCode.NOT_CONTROLLER

    run(work)


def test_one_that_fails_says_so_inside() -> None:
    async def work(node: ControllerNode) -> None:
        async def fail(*_: Any) -> Any:
            raise ZeroDivisionError

        node.controller.create_topics = fail  # type: ignore[method-assign]
        data = await forward(node, inner(CREATE_TOPICS, 7))
        answer = decode(CreateTopicsResponse, data, 7, decode_response_header(data, 0, 19, 7)[1])[0]
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2

    run(work)


def test_bad_envelopes_and_bad_requests_in_good_ones() -> None:
    async def work(node: ControllerNode) -> None:
        good = inner(CREATE_TOPICS, 7)
        unsupported, invalid = ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REQUEST
        assert await refused(node, good, principal=None) is ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
        assert await refused(node, good, address=b"\1\2\3") is invalid
        assert await refused(node, inner(VoteRequest(topics=[]), 2)) is invalid
        assert await refused(node, good[:-3]) is unsupported
        assert await refused(node, b"\0\x13\0") is unsupported
        assert await refused(node, b"\0\x13\0\x63" + good[4:]) is unsupported
        assert await refused(node, b"\x7f\x7f" + good[2:]) is unsupported
        assert node.controller.asked == []

    run(work)


def test_the_quorum_is_asked_by_its_listener() -> None:
    async def work(node: ControllerNode) -> None:
        ctx = Context(node.services, node.connection(), RequestHeader(55, 2, 1, None), 0)
        await quorum(ctx, DESCRIBE_QUORUM)
        ((request, how),) = node.raft.asked
        assert (request, how.version, how.listener) == (DESCRIBE_QUORUM, 2, "CONTROLLER")

    run(work)
