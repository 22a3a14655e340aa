"""A SASL listener: nothing is served before a client has proved who it is, and what becomes of those who cannot."""

import asyncio
import logging
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import uvloop
from tests.support.certificates import Authority

from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.principal import USER, AuthenticationContext, KafkaPrincipal
from ottla.security.sasl.mechanisms import SaslError, SaslServer
from ottla.security.sasl.plain import PlainSaslServer
from ottla.server.network.authentication import AUTHENTICATION_S
from ottla.server.network.connection import Connection, Listener, Principals
from ottla.server.network.frame_pool import FramePool
from ottla.server.network.output import Answer
from ottla.server.network.socket_server import Acceptor, ConnectionLimits, Connections, shared_buffer
from ottla.server.network.tls import Handshakes, TlsBuffers, TlsIdentity, TlsLayer
from ottla.wire.codec import decode
from ottla.wire.framing import decode_response_header, request_frame
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.groups.classic import HeartbeatRequest
from ottla.wire.messages.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from ottla.wire.registry import response_class

FAILED = "Authentication failed: Invalid username or password"
HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


class Users:
    """A listener with users of its own, whose clock the test moves."""

    def __init__(self) -> None:
        self.mechanisms: tuple[str, ...] = ("PLAIN", "SLOW")
        self.max_receive_bytes = 10_000
        self.failed_delay_ms = 0
        self.reauth_ms = 0
        self.expires_at_ms: int | None = None
        self.by_token = False
        self.threads = 0

    def server(self, mechanism: str) -> SaslServer:
        made = PlainSaslServer(lambda user, password: password == f"{user}-secret")
        made.expires_at_ms = self.expires_at_ms
        made.token_authenticated = self.by_token
        return SlowServer(made) if mechanism == "SLOW" else made

    def max_reauth_ms(self, mechanism: str) -> int:
        return self.reauth_ms

    def principal_of(self, mechanism: str, exchange: SaslServer) -> KafkaPrincipal:
        return KafkaPrincipal(USER, exchange.authorization_id, exchange.token_authenticated)

    def now_ms(self) -> int:
        return 1_000_000

    async def in_thread(self, step: Callable[[], bytes]) -> bytes:
        self.threads += 1
        return await asyncio.get_running_loop().run_in_executor(None, step)


class SlowServer:
    """One that works in a thread."""

    is_slow: ClassVar[bool] = True

    def __init__(self, inner: SaslServer) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Server:
    """A SASL listener that answers each served request with who asked."""

    def __init__(
        self, users: Users, principals: Principals | None = None, identity: TlsIdentity | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        self.clock = 1000.0
        self.handshakes = Handshakes(loop)
        self.served: list[tuple[int, KafkaPrincipal]] = []
        self.connections = Connections(ConnectionLimits(), FramePool(), lambda: self.clock)
        self.host = Acceptor(
            *("TEST", Listener.BROKER, self._dispatch, self.connections),
            *(shared_buffer(), 1_000_000, lambda: self.clock),
            sasl=users,
            principals=principals,
            tls=None if identity is None else TlsLayer(identity, self.handshakes, TlsBuffers(), principals),
        )
        self._loop = loop

    def _dispatch(self, connection: Connection, view: memoryview, start: int, stop: int) -> Answer:
        self.served.append((int.from_bytes(view[start : start + 2], "big"), connection.principal))
        body = str(connection.principal).encode()
        return len(body).to_bytes(4, "big") + body


class Client:
    """Frames as a client sends them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def raw(self, payload: bytes) -> bytes:
        self.writer.write(len(payload).to_bytes(4, "big") + payload)
        return await self.answer()

    async def answer(self) -> bytes:
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(size)

    async def ask(self, request: Any, version: int) -> Any:
        self.writer.write(request_frame(request, version, 7, "test"))
        data = await self.answer()
        correlation_id, offset = decode_response_header(data, 0, request.API_KEY, version)
        assert correlation_id == 7
        return decode(response_class(request.API_KEY), data, version, offset)[0]

    async def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> SaslHandshakeResponse:
        return await self.ask(SaslHandshakeRequest(mechanism=mechanism), version)  # type: ignore[no-any-return]

    async def log_in(
        self, user: str = "alice", password: str | None = None, version: int = 2
    ) -> SaslAuthenticateResponse:
        token = f"\0{user}\0{password or user + '-secret'}".encode()
        return await self.ask(SaslAuthenticateRequest(auth_bytes=token), version)  # type: ignore[no-any-return]

    async def who_am_i(self) -> str:
        self.writer.write(request_frame(HEARTBEAT, 0, 7, "test"))
        return (await self.answer()).decode()

    async def is_closed(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def serving(
    users: Users, principals: Principals | None = None, identity: TlsIdentity | None = None
) -> AsyncIterator[Server]:
    server = Server(users, principals, identity)
    await server.host.bind("127.0.0.1", 0)
    await server.host.start()
    try:
        yield server
    finally:
        server.host.stop()
        server.connections.close_all()
        server.handshakes.close()


def run(
    scenario: Callable[[Server, Callable[[], Awaitable[Client]]], Coroutine[Any, Any, None]], users: Users
) -> None:
    async def work() -> None:
        async with serving(users) as server:

            async def connect() -> Client:
                return Client(*await asyncio.open_connection(*server.host.address))

            await scenario(server, connect)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(work(), 60))


Connect = Callable[[], Awaitable[Client]]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SLOW"])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_who_proves_it_is_served_under_that_name(mechanism: str, version: int) -> None:
    users = Users()

    async def scenario(server: Server, connect: Connect) -> None:
        client = await connect()
        shaken = await client.handshake(mechanism)
        assert (shaken.error_code, shaken.mechanisms) == (0, ["PLAIN", "SLOW"])
        answer = await client.log_in(version=version)
        assert (answer.error_code, answer.error_message, answer.session_lifetime_ms) == (0, None, 0)
        assert await client.who_am_i() == "User:alice"
        assert users.threads == (mechanism == "SLOW")
        (connection,) = server.connections
        assert connection.must_be_ready_by == float("inf")
        other = await connect()
        await other.handshake()
        await other.log_in("bob")
        assert await other.who_am_i() == "User:bob"
        assert await client.who_am_i() == "User:alice"

    run(scenario, users)


def test_bare_tokens_after_a_handshake_of_version_0() -> None:
    async def scenario(server: Server, connect: Connect) -> None:
        client = await connect()
        await client.handshake(version=0)
        assert await client.raw(b"\0a\0a-secret") == b""
        assert await client.who_am_i() == "User:a"
        refused = await connect()
        await refused.handshake(version=0)
        refused.writer.write(b"\0\0\0\5\0a\0xx")
        assert await refused.is_closed()

    run(scenario, Users())


@pytest.mark.parametrize("pieces", [(b"\0\0\0\0",), (b"\0\0", b"\0\0"), (b"\0", b"\0", b"\0", b"\0")])
def test_an_empty_token_is_one_however_it_comes(
    pieces: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(server: Server, connect: Connect) -> None:
        for handshake in (True, False):
            client = await connect()
            if handshake:
                await client.handshake(version=0)
            for piece in pieces:
                client.writer.write(piece)
                await client.writer.drain()
                for _ in range(20):
                    await asyncio.sleep(0)
            assert await client.is_closed()

    with caplog.at_level(logging.INFO, "ottla.server"):
        run(scenario, Users())
    assert "Traceback" not in caplog.text
    assert len(caplog.records) == 2, "each has its line"


def test_a_frame_too_small_right_behind_the_login_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: Server, connect: Connect) -> None:
        client = await connect()
        await client.handshake()
        token = request_frame(SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret"), 2, 7, "test")
        client.writer.write(bytes(token) + b"\0\0\0\1x")
        await client.reader.read()  # to its end

    with caplog.at_level(logging.INFO, "ottla.server"):
        run(scenario, Users())
    assert "frame of 1 bytes, allowed are 8 to" in caplog.text
    assert "Traceback" not in caplog.text


def test_versions_may_be_asked_for_first_and_once() -> None:
    async def scenario(server: Server, connect: Connect) -> None:
        client = await connect()
        asked = request_frame(ApiVersionsRequest(), 3, 7, "test")
        client.writer.write(asked[:6] + b"\0\x63" + asked[8:])  # in a version that there is not yet
        await client.answer()
        client.writer.write(asked)
        await client.answer()
        assert [key for key, _ in server.served] == [18, 18]
        await client.handshake()
        await client.log_in()
        again = await connect()
        again.writer.write(asked)
        await again.answer()
        again.writer.write(asked)
        assert await again.is_closed()

    run(scenario, Users())


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_wrong_password_is_told_after_the_delay_and_closed(
    version: int, caplog: pytest.LogCaptureFixture
) -> None:
    users = Users()
    users.failed_delay_ms = 50

    async def scenario(server: Server, connect: Connect) -> None:
        client = await connect()
        await client.handshake()
        loop = asyncio.get_running_loop()
        began = loop.time()
        # What it sends behind it must not be served.
        client.writer.write(
            request_frame(SaslAuthenticateRequest(auth_bytes=b"\0alice\0guess"), version, 7, "t")
        )
        client.writer.write(request_frame(HEARTBEAT, 0, 8, "test"))
        data = await client.answer()
        assert loop.time() - began >= 0.04  # timers of the loop are of milliseconds
        _, offset = decode_response_header(data, 0, 36, version)
        answer = decode(SaslAuthenticateResponse, data, version, offset)[0]
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == FAILED
        assert await client.is_closed()
        assert not server.served

    with caplog.at_level(logging.INFO, "ottla.server"):
        run(scenario, users)
    assert "guess" not in caplog.text
    assert "PLAIN authentication failed" in caplog.text


def test_an_unknown_mechanism_is_told_which_there_are() -> None:
    async def scenario(server: Server, connect: Connect) -> None:
        client = await connect()
        answer = await client.handshake("DIGEST-MD5")
        assert (answer.error_code, answer.mechanisms) == (
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            ["PLAIN", "SLOW"],
        )
        assert await client.is_closed()

    run(scenario, Users())


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\0\0\0",
        b"\0\0\0\3abc",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\x27\x11" + b"x" * 10_001,
        bytes(request_frame(HEARTBEAT, 0, 7, "test")),
        bytes(request_frame(SaslAuthenticateRequest(auth_bytes=b"\0a\0a-secret"), 2, 7, "test")),
        b"\0\0\0\x10\0\x11\0\1\0\0\0\7\0\4test\x7f\xff",  # a name longer than what there is
        b"\0\0\0\x0e\0\x11\0\x09\0\0\0\7\0\4test",  # version 9 of the handshake
        b"\0\0\0\x0a\x7f\xff\0\0\0\0\0\7\xff\xff",  # an API that there is not
    ],
)
def test_whatever_else_comes_first_ends_the_connection(
    frame: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(server: Server, connect: Connect) -> None:
        client = await connect()
        client.writer.write(frame)
        if frame:
            assert await client.is_closed()
        else:
            client.writer.close()
        good = await connect()
        await good.handshake()
        await good.log_in()
        assert await good.who_am_i() == "User:alice"
        assert [principal.name for _, principal in server.served] == ["alice"]

    with caplog.at_level(logging.INFO, "ottla.server"):
        run(scenario, Users())
    assert "Traceback" not in caplog.text
    assert bool(caplog.records) == bool(frame), "one line says why"


@pytest.mark.parametrize("amid", [False, True])
def test_a_name_that_fills_a_frame_does_not_fill_the_log(
    amid: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(server: Server, connect: Connect) -> None:
        client = await connect()
        if amid:
            await client.handshake()
            await client.log_in("\x01\n" * 4_000, "x")
        else:
            await client.handshake("\x01\n" * 4_000)
        assert await client.is_closed()

    with caplog.at_level(logging.INFO, "ottla.server"):
        run(scenario, Users())
    (line,) = [record.getMessage() for record in caplog.records]
    assert len(line) < 1_000
    assert "\n" not in line


@pytest.mark.parametrize("amid", [False, True])
@pytest.mark.parametrize(
    "frame",
    [
        # Tags of the header, and of the body, that are claimed and that are there; a token that is claimed.
        b"\0\x24\0\2\0\0\0\7\xff\xff\xff\xff\xff\xff\x0f" + bytes(100),
        b"\0\x24\0\2\0\0\0\7\xff\xff\xa0\x1f" + b"\x63\0" * 4_000,
        b"\0\x24\0\2\0\0\0\7\xff\xff\0\1\xff\xff\xff\xff\x07" + bytes(100),
        b"\0\x24\0\2\0\0\0\7\xff\xff\0\1\xa0\x1f" + b"\x63\0" * 4_000,
        b"\0\x24\0\2\0\0\0\7\xff\xff\0\xff\xff\xff\xff\x0f" + bytes(100),
        b"\0\x24\0\1\0\0\0\7\xff\xff\x7f\xff\xff\xff" + bytes(100),
        b"\0\x11\0\1\0\0\0\7\x7f\xff" + bytes(100),
        b"\0\x11\0\1\0\0\0\7\xff\xff\x7f\xff" + bytes(100),
    ],
    ids=map(str, range(8)),
)
def test_counts_that_strangers_claim_are_not_believed(
    frame: bytes, amid: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """CVE-2022-34917, CVE-2026-111108, CVE-2026-111115: refused by what there is, and nothing is made of it."""

    async def scenario(server: Server, connect: Connect) -> None:
        client = await connect()
        if amid:
            await client.handshake()
        tracemalloc.start()
        try:
            client.writer.write(len(frame).to_bytes(4, "big") + frame)
            assert await client.is_closed()
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()
        assert not server.served

    with caplog.at_level(logging.INFO, "ottla.server"):
        run(scenario, Users())
    (line,) = [record.getMessage() for record in caplog.records]
    assert "INVALID_REQUEST" in line or "ILLEGAL_SASL_STATE" in line
    assert len(line) < 1_000


@pytest.mark.parametrize(
    "request_", [HEARTBEAT, ApiVersionsRequest(), SaslHandshakeRequest(mechanism="PLAIN")]
)
def test_amid_the_exchange_nothing_else_is_taken(request_: Any) -> None:
    async def scenario(server: Server, connect: Connect) -> None:
        client = await connect()
        await client.handshake()
        client.writer.write(request_frame(request_, 0, 7, "test"))
        assert await client.is_closed()
        assert not server.served

    run(scenario, Users())


def test_who_takes_too_long_is_closed() -> None:
    async def scenario(server: Server, connect: Connect) -> None:
        client, other = await connect(), await connect()
        await client.handshake()
        await other.handshake()
        await other.log_in()
        server.connections.reap(server.clock + AUTHENTICATION_S - 1)
        assert len(server.connections) == 2
        server.connections.reap(server.clock + AUTHENTICATION_S + 1)
        assert await client.is_closed()
        assert await other.who_am_i() == "User:alice"

    run(scenario, Users())


# ---- proving it again -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reauth_ms", "expires_in_ms", "lifetime_ms"),
    [
        (0, None, 0),
        (60_000, None, 60_000),
        (0, 90_000, 90_000),
        (60_000, 90_000, 60_000),
        (60_000, 5_000, 5_000),
        (0, -5, 0),
    ],
)
def test_a_session_ends_when_the_setting_or_the_credential_says(
    reauth_ms: int, expires_in_ms: int | None, lifetime_ms: int
) -> None:
    users = Users()
    users.reauth_ms = reauth_ms
    users.expires_at_ms = None if expires_in_ms is None else users.now_ms() + expires_in_ms

    async def scenario(server: Server, connect: Connect) -> None:
        client = await connect()
        await client.handshake()
        assert (await client.log_in()).session_lifetime_ms == lifetime_ms
        server.clock += max(0, lifetime_ms - 1) / 1000
        if reauth_ms or expires_in_ms != -5:
            assert await client.who_am_i() == "User:alice"
        server.clock += 10
        if reauth_ms or expires_in_ms:
            client.writer.write(request_frame(HEARTBEAT, 0, 7, "test"))
            assert await client.is_closed()
        else:
            assert await client.who_am_i() == "User:alice"

    run(scenario, users)


def test_a_name_with_line_ends_writes_no_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    users = Users()
    users.reauth_ms = 60_000

    async def scenario(server: Server, connect: Connect) -> None:
        client = await connect()
        await client.handshake()
        await client.log_in("a\nclosing connection of somebody else")
        server.clock += 70
        client.writer.write(request_frame(HEARTBEAT, 0, 7, "test"))
        assert await client.is_closed()

    with caplog.at_level(logging.INFO, "ottla.server"):
        run(scenario, users)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "User:a\\nclosing" in line


def test_a_session_goes_on_for_who_proves_it_again() -> None:
    users = Users()
    users.reauth_ms = 60_000

    async def scenario(server: Server, connect: Connect) -> None:
        client = await connect()
        await client.handshake()
        await client.log_in()
        for _ in range(3):
            server.clock += 50
            await client.handshake()
            assert (await client.log_in()).session_lifetime_ms == 60_000
            assert await client.who_am_i() == "User:alice"

    run(scenario, users)


def test_what_was_known_of_who_it_is_is_not_known_of_who_proved_it_again() -> None:
    async def scenario(server: Server, connect: Connect) -> None:
        client = await connect()
        await client.handshake()
        await client.log_in()
        assert await client.who_am_i() == "User:alice"
        (connection,) = server.connections
        known: Any = SimpleNamespace(served=lambda *_: None, measured=lambda _, coroutine: coroutine)
        connection.quotas = connection.decisions = known
        assert await client.who_am_i() == "User:alice"
        assert connection.quotas is connection.decisions is known
        server.clock += 5
        await client.handshake()
        await client.log_in()
        assert (connection.quotas, connection.decisions) == (None, None)

    run(scenario, whose_sessions_end())


def test_as_somebody_else_or_in_another_way_it_fails() -> None:
    async def scenario(server: Server, connect: Connect) -> None:
        for mechanism, user, words in (
            ("PLAIN", "bob", "Cannot change principals during re-authentication from User.alice: User.bob"),
            (
                "SLOW",
                "alice",
                "SASL mechanism 'SLOW' requested by client is not supported for re-authentication of mechanism 'PLAIN'",
            ),
        ):
            client = await connect()
            await client.handshake()
            await client.log_in()
            server.clock += 5
            await client.handshake(mechanism)
            answer = await client.log_in(user)
            assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, words)
            assert await client.is_closed()
        assert not server.served

    run(scenario, whose_sessions_end())


def whose_sessions_end() -> Users:
    users = Users()
    users.reauth_ms = 60_000
    return users


def test_who_has_a_credential_that_is_about_to_expire_proves_it_again_within_the_first_second() -> None:
    users = Users()
    users.expires_at_ms = users.now_ms() + 900

    async def scenario(server: Server, connect: Connect) -> None:
        client = await connect()
        await client.handshake()
        assert (await client.log_in()).session_lifetime_ms == 900
        server.clock += 0.8
        users.expires_at_ms = users.now_ms() + 60_000  # it has another one by now
        await client.handshake()
        assert (await client.log_in()).session_lifetime_ms == 60_000
        server.clock += 5
        assert await client.who_am_i() == "User:alice"

    run(scenario, users)


@pytest.mark.parametrize(("users", "seconds"), [(whose_sessions_end(), 0.5), (Users(), 5.0)])
def test_nobody_proves_it_twice_within_a_second_or_again_in_a_session_that_does_not_end(
    users: Users, seconds: float
) -> None:
    async def scenario(server: Server, connect: Connect) -> None:
        client = await connect()
        await client.handshake()
        await client.log_in()
        if users.reauth_ms:
            await client.handshake()
            await client.log_in()
        server.clock += seconds
        client.writer.write(request_frame(SaslHandshakeRequest(mechanism="PLAIN"), 1, 7, "test"))
        assert await client.answer() == b"User:alice", "the broker's own handler answers"
        assert [key for key, _ in server.served] == [17]

    run(scenario, users)


class BrokenServer(SlowServer):
    """One with a fault of ours, and one that Kerberos says to try again."""

    is_slow = False

    def __init__(self, inner: SaslServer, error: Exception) -> None:
        super().__init__(inner)
        self._error = error

    def evaluate(self, response: bytes) -> bytes:
        raise self._error


@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), SaslError("PLAIN", "the clock is off", retriable=True)]
)
def test_an_exchange_that_breaks_ends_its_connection_alone(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    users = Users()
    working = users.server

    async def scenario(server: Server, connect: Connect) -> None:
        client = await connect()
        monkeypatch.setattr(users, "server", lambda mechanism: BrokenServer(working(mechanism), error))
        await client.handshake()
        client.writer.write(request_frame(SaslAuthenticateRequest(auth_bytes=b"x"), 2, 7, "test"))
        assert await client.is_closed()
        monkeypatch.setattr(users, "server", working)
        good = await connect()
        await good.handshake()
        await good.log_in()
        assert await good.who_am_i() == "User:alice"

    run(scenario, users)


# ---- who a builder of the operator's takes them for, and certificates beside SASL -----------------------------


class Renaming:
    """Makes principals of its own, without a thought for what else Kafka's have."""

    def __init__(self) -> None:
        self.asked: list[AuthenticationContext] = []

    def build(self, context: AuthenticationContext) -> KafkaPrincipal:
        self.asked.append(context)
        return KafkaPrincipal(USER, context.principal.name.upper())


@pytest.mark.parametrize("by_token", [False, True])
def test_who_comes_by_a_token_does_so_whatever_a_builder_calls_them(by_token: bool) -> None:
    users = Users()
    users.by_token = by_token

    async def scenario() -> None:
        async with serving(users, Principals(Renaming(), "TEST", "SASL_PLAINTEXT")) as server:
            client = Client(*await asyncio.open_connection(*server.host.address))
            await client.handshake()
            assert (await client.log_in()).error_code == 0
            assert await client.who_am_i() == "User:ALICE"
            assert server.served[0][1].token_authenticated is by_token

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 60))


class NobodysRules:
    """A listener whose rules make a user of no certificate."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context

    def principal_of(self, certificate: bytes) -> KafkaPrincipal:
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no rule is about it")


def test_beside_sasl_a_certificate_says_nothing_but_to_a_builder(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    alice = authority.issue("alice")
    identity = NobodysRules(authority.server_context(authority.issue(), ssl.CERT_REQUIRED))
    builder = Renaming()

    async def scenario() -> None:
        async with serving(Users(), Principals(builder, "TEST", "SASL_SSL"), identity) as server:
            context = authority.client_context(alice)
            client = Client(*await asyncio.open_connection(*server.host.address, ssl=context))
            await client.handshake()
            assert (await client.log_in("bob")).error_code == 0
            assert await client.who_am_i() == "User:BOB"
        (asked,) = builder.asked
        assert asked.certificate == ssl.PEM_cert_to_DER_cert(alice.certificate.read_text())
        assert (asked.principal.name, asked.sasl_mechanism) == ("bob", "PLAIN")

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 60))
