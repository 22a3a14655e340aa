"""What TLS adds to a connection: handshakes, who the client is, and clients that do not do it right."""

import asyncio
import errno
import hmac
import itertools
import logging
import os
import random
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tests.support.certificates import Authority

from ottla.security.principal import ANONYMOUS, KafkaPrincipal
from ottla.server.network import tls
from ottla.server.network.connection import Connection, Listener
from ottla.server.network.frame_pool import FramePool
from ottla.server.network.output import Answer, Reply
from ottla.server.network.socket_server import (
    Acceptor,
    ConnectionLimits,
    Connections,
    shared_buffer,
)
from ottla.server.network.tls import (
    HANDSHAKE_S,
    PIECE_BYTES,
    Handshakes,
    TlsBuffers,
    TlsConnection,
    TlsLayer,
    TlsOutput,
)

FRAME = b"\x00\x00\x00\x08request."
RECORD_HEADER_BYTES = 5
Answering = Callable[[Connection, bytes], Answer]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


class FixedIdentity:
    """A listener whose certificate stays the same; a client is called what its certificate says first."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context

    def principal_of(self, certificate: bytes) -> KafkaPrincipal:
        names = re.findall(rb"user-[a-z]+", certificate)
        return KafkaPrincipal("User", names[0].decode())


class Server:
    """A listener with TLS, or without for comparison, that answers as the test says."""

    def __init__(self, answer: Answering, context: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        self.connections = Connections(ConnectionLimits(), FramePool(), loop.time)
        self.handshakes = Handshakes(loop)

        def dispatch(connection: Connection, view: memoryview, start: int, stop: int) -> Answer:
            return answer(connection, bytes(view[start:stop]))

        self.host = Acceptor(
            *("TEST", Listener.BROKER, dispatch, self.connections),
            *(shared_buffer(), 1_000_000, loop.time),
            tls=TlsLayer(FixedIdentity(context), self.handshakes, TlsBuffers()) if context else None,
        )

    async def connect(
        self, context: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.host.address, ssl=context)

    async def ask(self, context: ssl.SSLContext | None) -> bytes:
        """One request on a connection of its own."""
        reader, writer = await self.connect(context)
        writer.write(FRAME)
        answer = await reader.readexactly(len(FRAME))
        writer.close()
        return answer


def echo(connection: Connection, body: bytes) -> Answer:
    return len(body).to_bytes(4, "big") + body


@asynccontextmanager
async def serving(context: ssl.SSLContext | None, answer: Answering = echo) -> AsyncIterator[Server]:
    server = Server(answer, context)
    await server.host.bind("127.0.0.1", 0)
    await server.host.start()
    try:
        yield server
    finally:
        server.host.stop()
        server.connections.close_all()
        server.handshakes.close()


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(coroutine, 60))


async def until(what: Callable[[], object]) -> None:
    while not what():
        await asyncio.sleep(0)


# ---- who it is ----------------------------------------------------------------------------------------------


def test_a_client_is_who_its_certificate_says(authority: Authority) -> None:
    seen: list[KafkaPrincipal] = []

    def answer(connection: Connection, body: bytes) -> Answer:
        seen.append(connection.principal)
        return echo(connection, body)

    async def scenario() -> None:
        wanted = authority.server_context(authority.issue(), ssl.CERT_OPTIONAL)
        async with serving(wanted, answer) as server:
            assert await server.ask(authority.client_context(authority.issue("user-alice"))) == FRAME
            assert await server.ask(authority.client_context()) == FRAME
        assert seen == [KafkaPrincipal("User", "user-alice"), ANONYMOUS]

    run(scenario())


def test_who_has_no_certificate_or_a_bad_one_is_refused(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = Authority(tmp_path, "Foreign CA")
    stranger = authority.client_context(foreign.issue("user-mallory"))
    late = authority.client_context(authority.issue("user-late", days=-1))

    async def scenario() -> None:
        required = authority.server_context(authority.issue(), ssl.CERT_REQUIRED)
        async with serving(required) as server:
            for context in (authority.client_context(), stranger, late):
                with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                    await server.ask(context)
            assert await server.ask(authority.client_context(authority.issue("user-bob"))) == FRAME

    with caplog.at_level(logging.INFO, "ottla.server"):
        run(scenario())
    reasons = [record.getMessage().rpartition("the TLS handshake failed: ")[2] for record in caplog.records]
    assert [reason for reason in reasons if reason][:3] == [
        "peer did not return a certificate",
        "unable to get local issuer certificate",
        "certificate has expired",
    ]


def test_a_certificate_that_nobody_can_be_read_from_ends_its_connection_alone(authority: Authority) -> None:
    async def scenario() -> None:
        wanted = authority.server_context(authority.issue(), ssl.CERT_OPTIONAL)
        async with serving(wanted) as server:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await server.ask(authority.client_context(authority.issue("nobody")))
            assert await server.ask(authority.client_context(authority.issue("user-bob"))) == FRAME
            await until(lambda: not len(server.connections))

    run(scenario())


# ---- what is no TLS, or no more -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (FRAME, "it does not speak TLS: is its security.protocol PLAINTEXT or SASL_PLAINTEXT?"),
        (b"GET / HTTP/1.1\r\n\r\n", "it speaks HTTP"),
        (b"\xff" * 100, "it does not speak TLS"),
        (b"\x16\x03\x01\x00\x05hello", "the TLS handshake failed: "),
        (b"\x16\x03\x01\xff\xff" + b"x" * 70_000, "the TLS handshake failed: "),
    ],
)
def test_what_is_no_tls_is_closed_with_a_line_that_says_so(
    authority: Authority, sent: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(authority.server_context(authority.issue())) as server:
            reader, writer = await server.connect(None)
            writer.write(sent)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(100)
            await until(lambda: not len(server.connections))
            writer.close()

    with caplog.at_level(logging.INFO, "ottla.server"):
        run(scenario())
    (line,) = [record.getMessage() for record in caplog.records]
    assert why in line


def test_tls_at_a_plain_listener_is_closed_with_a_line_that_says_so(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(None) as server:
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await server.ask(authority.client_context())

    with caplog.at_level(logging.INFO, "ottla.server"):
        run(scenario())
    (line,) = [record.getMessage() for record in caplog.records]
    assert "it speaks TLS" in line


@pytest.mark.parametrize("damage", [b"\x17\x03\x03\x00\x20" + b"x" * 32, b"not TLS at all, and long enough"])
def test_damage_after_the_handshake_ends_the_connection(
    authority: Authority, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(authority.server_context(authority.issue())) as server:
            reader, writer = await server.connect(authority.client_context())
            writer.write(FRAME)
            assert await reader.readexactly(len(FRAME)) == FRAME
            sock = os.dup(writer.get_extra_info("socket").fileno())
            os.write(sock, damage)
            os.close(sock)
            with pytest.raises(ssl.SSLError, match="alert"):  # it is told
                await reader.readexactly(1)
            await until(lambda: not len(server.connections))
            assert await server.ask(authority.client_context()) == FRAME

    with caplog.at_level(logging.INFO, "ottla.server"):
        run(scenario())
    assert "what came is not TLS any more" in caplog.text


class NewKeys:
    """A client of TLS 1.3 that asks for new keys again and again (RFC 8446, 4.6.3): no client's library does that."""

    def __init__(self, key_log: str) -> None:
        (line,) = (each for each in key_log.splitlines() if each.startswith("CLIENT_TRAFFIC_SECRET_0 "))
        self._secret = bytes.fromhex(line.split()[2])
        self._hash = {32: "sha256", 48: "sha384"}[len(self._secret)]
        self._sent = 0

    def _expand(self, label: bytes, size: int) -> bytes:
        about = size.to_bytes(2, "big") + bytes([6 + len(label)]) + b"tls13 " + label + b"\0\1"
        return hmac.digest(self._secret, about, self._hash)[:size]

    def record(self, content: bytes, kind: int) -> bytes:
        key = self._expand(b"key", {"sha256": 16, "sha384": 32}[self._hash])
        nonce = int.from_bytes(self._expand(b"iv", 12), "big") ^ self._sent
        self._sent += 1
        header = b"\x17\x03\x03" + (len(content) + 17).to_bytes(2, "big")
        return header + AESGCM(key).encrypt(nonce.to_bytes(12, "big"), content + bytes([kind]), header)

    def ask(self) -> bytes:
        asked = self.record(b"\x18\0\0\1\1", 22)  # KeyUpdate, update_requested
        self._secret, self._sent = self._expand(b"traffic upd", len(self._secret)), 0
        return asked


def asks_for_new_keys(
    authority: Authority,
    tmp_path: Path,
    scenario: Callable[[Server, NewKeys, Any], Coroutine[Any, Any, None]],
) -> None:
    """Over a connection on which the client has sent nothing yet."""

    async def work() -> None:
        context = authority.client_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.keylog_filename = str(tmp_path / "keys")
        async with serving(authority.server_context(authority.issue())) as server:
            reader, writer = await server.connect(context)
            await until(lambda: [each for each in server.connections if each._is_established])  # type: ignore[attr-defined]
            await scenario(server, NewKeys((tmp_path / "keys").read_text()), (reader, writer))
            writer.transport.abort()

    run(work())


async def send_raw(writer: asyncio.StreamWriter, data: bytes) -> None:
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as sock:
        sock.setblocking(False)
        while data:
            try:
                data = data[sock.send(data) :]
            except BlockingIOError:
                await asyncio.sleep(0)


@pytest.mark.parametrize("size", [1, 3, 5, 7, 27, 1000, 100_000])
def test_records_are_found_in_whatever_pieces_they_come(size: int) -> None:
    sizes = [0, 1, 4, 5, 6, 300, 16_384, 22, 22, 22, 0, 7]
    data = b"".join(b"\x17\x03\x03" + each.to_bytes(2, "big") + b"x" * each for each in sizes)
    for most in (1, 2, 5, 100):
        records, held, taken, at = tls.Records(), b"", b"", 0
        while at < len(data):
            held += data[at : at + size]
            at += size
            while held:
                begun = records.begun
                count = records.take(memoryview(held), most)
                assert records.begun - begun <= most
                taken += held[:count]
                held = held[count:]
                if not count:
                    assert len(held) < RECORD_HEADER_BYTES, (
                        "but for a part of a header all is taken in the end"
                    )
                    break
        assert records.begun == len(sizes)
        assert taken == data


def comes(connection: TlsConnection, data: bytes) -> None:
    """As if it had been read at once."""
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


@pytest.mark.parametrize("size", [0, 1, 2, 4, 5, 6, 30, 60, 1000])
def test_requests_are_served_in_whatever_pieces_their_records_come(
    authority: Authority, tmp_path: Path, size: int
) -> None:
    """0: each record by itself."""

    async def scenario(server: Server, keys: NewKeys, streams: Any) -> None:
        (connection,) = server.connections
        assert isinstance(connection, TlsConnection)
        contents = [FRAME, FRAME, FRAME[:1], FRAME[1:], FRAME * 3, b"", FRAME[:7], b"", FRAME[7:], FRAME]
        sent = [keys.record(each, 23) if each else keys.ask() for each in contents]
        data = b"".join(sent)
        for piece in [data[at : at + size] for at in range(0, len(data), size)] if size else sent:
            comes(connection, piece)
        wanted = b"".join(contents)
        assert await streams[0].readexactly(len(wanted)) == wanted
        assert connection._records.begun == len(sent)
        assert connection.is_open

    asks_for_new_keys(authority, tmp_path, scenario)


@pytest.mark.parametrize(
    ("first", "left"),
    [
        (b"\x17\x03\x03\x00\x64" + b"x" * 20, 70),  # its beginning
        (b"\x17\x03\x03", 92),  # a part of its header
    ],
)
def test_the_midst_of_a_record_that_looks_like_one_is_none(
    authority: Authority, tmp_path: Path, first: bytes, left: int
) -> None:
    async def scenario(server: Server, keys: NewKeys, streams: Any) -> None:
        (connection,) = server.connections
        assert isinstance(connection, TlsConnection)
        comes(connection, first)
        comes(connection, b"\x00\x64x\x00\x05xxxxx")
        assert (connection._records.begun, connection._records.next) == (1, left)

    asks_for_new_keys(authority, tmp_path, scenario)


def test_new_keys_may_be_asked_for(authority: Authority, tmp_path: Path) -> None:
    async def scenario(server: Server, keys: NewKeys, streams: Any) -> None:
        reader, writer = streams
        for _ in range(3):
            asked = b"".join(keys.ask() for _ in range(5))
            await send_raw(writer, asked + keys.record(FRAME, 23))
            assert await reader.readexactly(len(FRAME)) == FRAME

    asks_for_new_keys(authority, tmp_path, scenario)


def test_who_asks_for_new_keys_one_by_one_is_closed_too(authority: Authority, tmp_path: Path) -> None:
    async def scenario(server: Server, keys: NewKeys, streams: Any) -> None:
        (connection,) = server.connections
        assert isinstance(connection, TlsConnection)
        for _ in range(tls.MAX_EMPTY_RECORDS):
            comes(connection, keys.ask())
        assert connection.is_open
        comes(connection, keys.ask())
        assert not connection.is_open

    asks_for_new_keys(authority, tmp_path, scenario)


@pytest.mark.parametrize("between", [b"", FRAME])
def test_who_asks_for_nothing_but_new_keys_is_closed_and_holds_nobody_up(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture, between: bytes
) -> None:
    """A read of them is half a second's work, and as many answers, which nobody may ever take."""

    async def scenario(server: Server, keys: NewKeys, streams: Any) -> None:
        flood = b""
        while len(flood) < 200_000:
            flood += b"".join(keys.ask() for _ in range(20)) + (keys.record(between, 23) if between else b"")
        (connection,) = server.connections
        with suppress(ConnectionError):
            await send_raw(streams[1], flood)
        await until(lambda: not len(server.connections))
        assert isinstance(connection, TlsConnection)
        assert connection._records.begun < 10 * tls.MAX_EMPTY_RECORDS, "most of it was never looked at"
        assert await server.ask(authority.client_context()) == FRAME

    with caplog.at_level(logging.INFO, "ottla.server"):
        asks_for_new_keys(authority, tmp_path, scenario)
    assert "TLS records without content" in caplog.text


def test_what_is_refused_amid_answers_ends_with_a_goodbye(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """The answers that were not sent yet are dropped, as everywhere; nothing else comes of it."""

    async def scenario() -> None:
        async with serving(authority.server_context(authority.issue())) as server:
            reader, writer = await server.connect(authority.client_context())
            writer.write(FRAME * 3 + b"\x7f\xff\xff\xff")
            left = await reader.read()  # an end, no error: it was told that nothing more comes
            assert left in (b"", FRAME * 3)
            await until(lambda: not len(server.connections))

    with caplog.at_level(logging.INFO, "ottla.server"):
        run(scenario())
    (line,) = [record.getMessage() for record in caplog.records]
    assert "frame of 2147483647 bytes" in line


def test_half_handshakes_keep_nobody_out_and_are_closed_in_time(authority: Authority) -> None:
    async def scenario() -> None:
        async with serving(authority.server_context(authority.issue())) as server:
            silent = [await server.connect(None) for _ in range(60)]
            for _, writer in silent[:30]:
                writer.write(b"\x16\x03\x01\x02\x00")  # the rest never comes
            assert await server.ask(authority.client_context()) == FRAME
            await until(lambda: len(server.connections) == len(silent))
            now = asyncio.get_running_loop().time()
            server.connections.reap(now + HANDSHAKE_S / 2)
            await asyncio.sleep(0)
            assert len(server.connections) == len(silent)
            reader, writer = await server.connect(authority.client_context())
            writer.write(FRAME)
            await reader.readexactly(len(FRAME))
            server.connections.reap(now + 2 * HANDSHAKE_S)
            await until(lambda: len(server.connections) == 1)
            writer.write(FRAME)
            assert await reader.readexactly(len(FRAME)) == FRAME, "who is through may stay"
            for _, each in silent:
                each.close()

    run(scenario())


def test_who_comes_when_too_many_wait_for_a_handshake_is_refused(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(authority.server_context(authority.issue())) as server:
            reader, writer = await server.connect(authority.client_context())
            writer.write(FRAME)
            await reader.readexactly(len(FRAME))
            monkeypatch.setattr(tls, "MAX_WAITING_STEPS", 0)
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await server.ask(authority.client_context())
            writer.write(FRAME)
            assert await reader.readexactly(len(FRAME)) == FRAME

    with caplog.at_level(logging.INFO, "ottla.server"):
        run(scenario())
    assert "too many TLS handshakes wait" in caplog.text


# ---- what goes out --------------------------------------------------------------------------------------------


class FileSlice:
    """A range of a file."""

    def __init__(self, fd: int, position: int, length: int) -> None:
        self.fd, self.position, self.length = fd, position, length

    def read(self) -> bytes:
        raise AssertionError("it is never read whole")


@pytest.fixture
def file(tmp_path: Path) -> tuple[int, bytes]:
    path = tmp_path / "0.log"
    data = os.urandom(2_000_000)
    path.write_bytes(data)
    return os.open(path, os.O_RDONLY), data


def test_slices_of_files_come_whole_and_in_order(authority: Authority, file: tuple[int, bytes]) -> None:
    fd, data = file
    size = len(data).to_bytes(4, "big")
    cuts = [
        (0, 10),
        (10, 70_000),
        (70_010, PIECE_BYTES),
        (70_010 + PIECE_BYTES, len(data) - 70_010 - PIECE_BYTES),
    ]

    def answer(connection: Connection, body: bytes) -> Answer:
        return [size, *(FileSlice(fd, *cut) for cut in cuts), b""]

    async def scenario() -> None:
        async with serving(authority.server_context(authority.issue()), answer) as server:
            reader, writer = await server.connect(authority.client_context())
            for _ in range(3):
                writer.write(FRAME + FRAME)
                for _ in range(2):
                    assert await reader.readexactly(4 + len(data)) == size + data
            writer.close()

    run(scenario())


def handshaken(authority: Authority) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.SSLObject, ssl.MemoryBIO]:
    """A server's half, what it has to send, a client's half, and what that has received."""
    sealed, received, to_server = ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO()
    server = authority.server_context(authority.issue()).wrap_bio(to_server, sealed, server_side=True)
    client = authority.client_context().wrap_bio(received, to_server, server_hostname="localhost")
    halves = [client, server]
    while halves:
        for half in list(halves):
            try:
                half.do_handshake()
                halves.remove(half)
            except ssl.SSLWantReadError:
                pass
            received.write(sealed.read())
    with pytest.raises(ssl.SSLWantReadError):
        client.read(1)  # it takes its tickets
    return server, sealed, client, received


class Sender:
    """An output with TLS, and who decrypts what it sends."""

    def __init__(self, authority: Authority, piece: memoryview) -> None:
        server, sealed, self._client, self._received = handshaken(authority)
        self.failures: list[OSError] = []
        self._ours, self.peer = socket.socketpair()
        self._ours.setblocking(False)
        self.peer.settimeout(30)  # what does not come any more
        self.output = TlsOutput(
            *(asyncio.get_running_loop(), self._ours, server, sealed, piece),
            *(lambda: None, self.failures.append),
        )

    def receive(self, size: int) -> bytes:
        """What is in at most `size` bytes of what was sent."""
        self._received.write(self.peer.recv(size))
        found = b""
        with suppress(ssl.SSLWantReadError):
            while True:
                found += self._client.read(100_000)
        return found

    def close(self) -> None:
        self.output.close()
        self._ours.close()
        self.peer.close()


def with_output(
    authority: Authority, scenario: Callable[[TlsOutput, socket.socket, list[OSError]], None]
) -> None:
    async def work() -> None:
        sender = Sender(authority, TlsBuffers().piece)
        try:
            scenario(sender.output, sender.peer, sender.failures)
        finally:
            sender.close()

    asyncio.run(work())


def records_in(data: bytes) -> list[int]:
    """The sizes of TLS records."""
    sizes = []
    while data:
        sizes.append(int.from_bytes(data[3:5], "big"))
        data = data[RECORD_HEADER_BYTES + sizes[-1] :]
    return sizes


def test_small_answers_that_leave_together_are_one_record(authority: Authority) -> None:
    def scenario(output: TlsOutput, peer: socket.socket, failures: list[OSError]) -> None:
        for _ in range(20):
            output.write(FRAME)
        assert output.unsent_bytes == 20 * len(FRAME)
        output.flush()
        assert len(records_in(peer.recv(100_000))) == 1
        output.flush()
        output.write(FRAME)
        output.flush()
        assert len(records_in(peer.recv(100_000))) == 1

    with_output(authority, scenario)


def test_an_empty_slice_is_no_record(authority: Authority, file: tuple[int, bytes]) -> None:
    fd, _ = file

    def scenario(output: TlsOutput, peer: socket.socket, failures: list[OSError]) -> None:
        output.write([FileSlice(fd, 0, 0)])
        output.flush()
        output.write([b"size", FileSlice(fd, 0, 0), b"tail"])
        output.flush()
        assert len(records_in(peer.recv(100_000))) == 1
        assert not failures

    with_output(authority, scenario)


def test_who_does_not_read_holds_a_piece_in_memory(authority: Authority, file: tuple[int, bytes]) -> None:
    fd, data = file

    def scenario(output: TlsOutput, peer: socket.socket, failures: list[OSError]) -> None:
        chunk = FileSlice(fd, 0, len(data))
        output.write([b"size", chunk])
        output.flush()
        assert output.blocked
        taken = len(peer.recv(10_000_000, socket.MSG_PEEK))
        (sending,) = output._queue
        assert sending.position <= taken + PIECE_BYTES  # type: ignore[union-attr]

    with_output(authority, scenario)


def test_a_file_that_ends_early_ends_the_connection(authority: Authority, file: tuple[int, bytes]) -> None:
    fd, data = file

    def scenario(output: TlsOutput, peer: socket.socket, failures: list[OSError]) -> None:
        output.write([b"size", FileSlice(fd, len(data) - 10, 20)])
        output.flush()
        (error,) = failures
        assert isinstance(error, ConnectionAbortedError)

    with_output(authority, scenario)


def test_a_file_that_cannot_be_read_ends_the_connection(authority: Authority, tmp_path: Path) -> None:
    unreadable = os.open(tmp_path / "0.log", os.O_WRONLY | os.O_CREAT)

    def scenario(output: TlsOutput, peer: socket.socket, failures: list[OSError]) -> None:
        output.write([b"size", FileSlice(unreadable, 0, 20)])
        output.flush()
        (error,) = failures
        assert error.errno == errno.EBADF

    with_output(authority, scenario)
    os.close(unreadable)


def test_a_file_that_would_have_to_be_waited_for_does_not_pass_for_a_full_socket(
    authority: Authority, file: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was taken before it is gone: to go on later would leave it out."""
    fd, _ = file

    def not_now(*_: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "not now")

    def scenario(output: TlsOutput, peer: socket.socket, failures: list[OSError]) -> None:
        output.write([b"size", FileSlice(fd, 0, 20)])
        with monkeypatch.context() as patched:
            patched.setattr(os, "preadv", not_now)
            output.flush()
        (error,) = failures
        assert error.errno == errno.EAGAIN
        assert not output.blocked

    with_output(authority, scenario)


SIZES = (1, 70, 16_384, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5)


@pytest.mark.parametrize("taken_at_once", [1_000, 50_000, 10_000_000])
def test_answers_of_all_sizes_arrive_as_they_are_however_they_are_taken(
    authority: Authority, file: tuple[int, bytes], taken_at_once: int
) -> None:
    """Of two peers in turn, who are often blocked, from one buffer: neither gets what is the other's."""
    fd, data = file
    replies: list[tuple[Reply, bytes]] = []
    for at, (first, second) in enumerate(itertools.product(SIZES, SIZES)):
        head, tail = data[at : at + first], data[at : at + second]
        replies.append((head, head))
        replies.append((bytearray(tail), tail))
        replies.append(([head, FileSlice(fd, at, second), b""], head + tail))
        replies.append(([FileSlice(fd, at, first), tail], head + tail))
    random.Random(7).shuffle(replies)
    if taken_at_once < 10_000:
        del replies[30:]

    async def work() -> None:
        piece = TlsBuffers().piece
        senders = [Sender(authority, piece), Sender(authority, piece)]
        was_blocked = False
        for mine in (replies[0::2], replies[1::2]):
            waiting = [list(mine), list(reversed(mine))]
            wanted = [b"".join(body for _, body in replies) for replies in waiting]
            found = [bytearray(), bytearray()]
            while wanted != found:
                for sender, has, got, want in zip(senders, waiting, found, wanted, strict=True):
                    for _ in range(3):
                        if has and not sender.output.blocked:
                            sender.output.write(has.pop(0)[0])
                    sender.output.flush()
                    was_blocked |= sender.output.blocked
                    if len(got) < len(want):
                        got += sender.receive(taken_at_once)
                    if sender.output.blocked:
                        sender.output._on_writable()
                assert all(want.startswith(got) for want, got in zip(wanted, found, strict=True))
        assert was_blocked
        for sender in senders:
            assert not sender.failures
            sender.close()

    asyncio.run(work())


# ---- a client that is gone ------------------------------------------------------------------------------------


def test_what_comes_behind_a_failed_answer_is_not_taken_for_requests(
    authority: Authority,
) -> None:
    """A frame that is cut where the connection was lost has an end, which anybody may have written into a record."""
    large = (300_000).to_bytes(4, "big") + bytes(300_000)
    # Where the first read ends, a frame begins that is a part of another one's body.
    body = FRAME * 1_000
    seen: list[bytes] = []

    def answer(connection: Connection, request: bytes) -> Answer:
        seen.append(request)
        if request == FRAME[4:]:
            with socket.socket(fileno=os.dup(connection.descriptor)) as sock:
                sock.shutdown(socket.SHUT_WR)  # as if the client had hung up
        return echo(connection, request[:8])

    async def scenario() -> None:
        async with serving(authority.server_context(authority.issue()), answer) as server:
            reader, writer = await server.connect(authority.client_context())
            # After a large frame little is read at once.
            writer.write(large)
            await reader.readexactly(12)
            writer.write(FRAME + len(body).to_bytes(4, "big") + body)
            await until(lambda: not len(server.connections))
        assert [len(each) for each in seen] == [300_000, 8]

    run(scenario())
