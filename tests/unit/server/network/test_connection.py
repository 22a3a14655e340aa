"""A connection, plain or with TLS: frames in any pieces, answers in order, memory bounded, garbage refused."""

import asyncio
import errno
import hashlib
import logging
import socket
import ssl
import struct
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.support.certificates import Authority, Identity

from ottla.security.principal import KafkaPrincipal
from ottla.security.quotas import ConnectionRates
from ottla.server.network import socket_server
from ottla.server.network.connection import SHARED_BUFFER_BYTES, Connection, Listener
from ottla.server.network.frame_pool import LARGEST_STEP_BYTES, FramePool
from ottla.server.network.output import Answer, Deferred
from ottla.server.network.socket_server import (
    Acceptor,
    ConnectionLimits,
    Connections,
    shared_buffer,
)
from ottla.server.network.tls import Handshakes, TlsBuffers, TlsLayer

Handler = Callable[[bytes], Answer]
# For a whole test, which takes a second or two on a machine that has nothing else to do.
PATIENCE_S = 120


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(number: int, size: int = 8) -> bytes:
    return number.to_bytes(4, "big") + b"x" * (size - 4)


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


class Server:
    """A listener whose answers the test decides."""

    def __init__(
        self,
        handler: Handler,
        limits: ConnectionLimits,
        pool: FramePool,
        max_frame_bytes: int,
        rates: ConnectionRates | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.connections = Connections(limits, pool, loop.time)
        self.host = Acceptor(
            "TEST",
            Listener.BROKER,
            lambda connection, view, start, stop: handler(bytes(view[start:stop])),
            self.connections,
            shared_buffer(),
            max_frame_bytes,
            loop.time,
            tls=tls_layer(loop) if SECURITY["tls"] else None,
            rates=rates,
        )

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not SECURITY["tls"]:
            return await asyncio.open_connection(*self.host.address)
        authority, _ = authority_and_server()
        return await asyncio.open_connection(*self.host.address, ssl=authority.client_context())


class FixedIdentity:
    """A listener whose certificate stays the same."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context

    def principal_of(self, certificate: bytes) -> KafkaPrincipal:
        return KafkaPrincipal("User", hashlib.sha256(certificate).hexdigest())


@cache
def authority_and_server() -> tuple[Authority, Identity]:
    authority = Authority(Path(tempfile.mkdtemp(prefix="ottla-tls-")))
    return authority, authority.issue()


def tls_layer(loop: asyncio.AbstractEventLoop) -> TlsLayer:
    authority, identity = authority_and_server()
    return TlsLayer(FixedIdentity(authority.server_context(identity)), Handshakes(loop), TlsBuffers())


@asynccontextmanager
async def serving(
    handler: Handler,
    *,
    limits: ConnectionLimits | None = None,
    pool: FramePool | None = None,
    max_frame_bytes: int = 10_000_000,
    rates: ConnectionRates | None = None,
) -> AsyncIterator[Server]:
    server = Server(handler, limits or ConnectionLimits(), pool or FramePool(), max_frame_bytes, rates)
    await server.host.bind("127.0.0.1", 0)
    await server.host.start()
    try:
        yield server
    finally:
        server.host.stop()
        server.connections.close_all()


@pytest.fixture(autouse=True, params=["asyncio", "uvloop"])
def loop_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every scenario on both loops: their transports differ."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    monkeypatch.setitem(LOOP, "factory", factory)


@pytest.fixture(autouse=True, params=["plain", "tls"])
def security(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every scenario with TLS and without: nothing of it is different for a client."""
    monkeypatch.setitem(SECURITY, "tls", request.param == "tls")


LOOP: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {}
SECURITY: dict[str, bool] = {}


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=LOOP["factory"]) as runner:
        runner.run(asyncio.wait_for(coroutine, PATIENCE_S))


async def first_byte(server: Server) -> bytes:
    """Of an answer to nothing."""
    reader, _ = await server.connect()
    return await reader.readexactly(1)


def echo(body: bytes) -> bytes:
    return frame(body)


def an_acceptor() -> Acceptor:
    return Server(echo, ConnectionLimits(), FramePool(), 1000).host


async def cannot_be_bound(port: int) -> bool:
    other = an_acceptor()
    try:
        await other.bind("127.0.0.1", port)
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    finally:
        other.stop()
    return False


def test_an_address_is_taken_from_the_moment_it_is_bound() -> None:
    async def scenario() -> None:
        first = an_acceptor()
        await first.bind("127.0.0.1", 0)
        port = first.address[1]
        assert await cannot_be_bound(port), "though nobody listens there yet"
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        await first.start()
        assert await cannot_be_bound(port)
        first.stop()

    run(scenario())


def test_what_connections_leave_behind_keeps_nobody_from_an_address() -> None:
    async def scenario() -> None:
        async with serving(echo) as server:
            port = server.host.address[1]
            reader, writer = await server.connect()
            writer.write(frame(request(1)))
            await read_answer(reader)
            # Who hangs up first keeps the address for a minute (TIME_WAIT).
            server.connections.close_all()
            assert await reader.read() == b""
            writer.close()
        again = an_acceptor()
        await again.bind("127.0.0.1", port)
        assert await cannot_be_bound(port)
        await again.start()
        assert await cannot_be_bound(port)
        again.stop()

    run(scenario())


@pytest.mark.parametrize("piece", [1, 3, 5, 64, 1_000_000])
def test_frames_arrive_in_any_pieces(piece: int) -> None:
    async def scenario() -> None:
        async with serving(echo) as server:
            reader, writer = await server.connect()
            bodies = [request(number, size) for number, size in enumerate((8, 500, 9, 100))]
            stream = b"".join(frame(body) for body in bodies)
            for at in range(0, len(stream), piece):
                writer.write(stream[at : at + piece])
                await writer.drain()
            assert [await read_answer(reader) for _ in bodies] == bodies
            writer.close()

    run(scenario())


def test_large_frames_come_through_whole_and_give_their_memory_back() -> None:
    async def scenario() -> None:
        pool = FramePool()
        async with serving(echo, pool=pool) as server:
            reader, writer = await server.connect()
            bodies = [request(number, 3_000_000) for number in range(3)]
            for body in bodies:
                writer.write(frame(body))
            assert [await read_answer(reader) for _ in bodies] == bodies
            assert pool.lent_bytes == 0
            writer.close()

    run(scenario())


def test_answers_keep_the_order_of_requests_while_later_ones_start() -> None:
    async def scenario() -> None:
        first = Deferred()
        started: list[int] = []

        def handler(body: bytes) -> Answer:
            number = int.from_bytes(body[:4], "big")
            started.append(number)
            return first if number == 0 else echo(body)

        async with serving(handler) as server:
            reader, writer = await server.connect()
            bodies = [request(number) for number in range(4)]
            for body in bodies:
                writer.write(frame(body))
            await writer.drain()
            while len(started) < 4:
                await asyncio.sleep(0)
            first.resolve(echo(bodies[0]))
            assert [await read_answer(reader) for _ in bodies] == bodies
            writer.close()

    run(scenario())


def test_a_coroutine_holds_the_line() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        started: list[int] = []

        async def slow(body: bytes) -> bytes:
            await gate.wait()
            return echo(body)

        def handler(body: bytes) -> Answer:
            number = int.from_bytes(body[:4], "big")
            started.append(number)
            return slow(body) if number == 0 else echo(body)

        async with serving(handler) as server:
            reader, writer = await server.connect()
            bodies = [request(number) for number in range(3)]
            for body in bodies:
                writer.write(frame(body))
            await writer.drain()
            other_reader, other_writer = await server.connect()
            other_writer.write(frame(request(9)))
            assert await read_answer(other_reader) == request(9)
            assert 1 not in started
            gate.set()
            assert [await read_answer(reader) for _ in bodies] == bodies
            writer.close()
            other_writer.close()

    run(scenario())


@pytest.mark.parametrize("size", [-1, 0, 7, 2_000_000, 2**31 - 1])
def test_illegal_sizes_close_the_connection(size: int) -> None:
    async def scenario() -> None:
        async with serving(echo, max_frame_bytes=1_000_000) as server:
            reader, writer = await server.connect()
            writer.write(struct.pack(">i", size) + b"garbage")
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await reader.readexactly(1)
            writer.close()

    run(scenario())


def test_half_frames_hold_no_more_than_the_pool_allows() -> None:
    async def scenario() -> None:
        pool = FramePool(giant_bytes=8_000_000)
        async with serving(echo, pool=pool) as server:
            half_sent = []
            for _ in range(20):
                reader, writer = await server.connect()
                writer.write(struct.pack(">i", 5_000_000) + b"x" * 2_000_000)
                half_sent.append((reader, writer))
            while not pool.waiting:
                await asyncio.sleep(0)
            for _ in range(200):
                await asyncio.sleep(0)
            assert pool.lent_bytes <= 8_000_000 + LARGEST_STEP_BYTES + 5_000_004
            reader, writer = await server.connect()
            writer.write(frame(request(1)))
            assert await read_answer(reader) == request(1)
            for _, other in half_sent:
                other.transport.abort()
            server.connections.close_all()  # who waits for room is not read, so nobody sees that it is gone
            while pool.lent_bytes:
                await asyncio.sleep(0)
            writer.close()

    run(scenario())


def test_more_frames_than_there_is_room_for_all_come_through() -> None:
    async def scenario() -> None:
        pool = FramePool(ordinary_bytes=1_000_000)
        async with serving(echo, pool=pool) as server:
            body = request(1, 900_000)
            clients = [await server.connect() for _ in range(12)]
            for _, writer in clients:
                writer.write(frame(body))
            for reader, writer in clients:
                assert await read_answer(reader) == body
                writer.close()
            assert pool.lent_bytes == 0

    run(scenario())


def test_frames_that_are_only_announced_take_nothing_from_others() -> None:
    async def scenario() -> None:
        pool = FramePool(ordinary_bytes=1_000_000)
        async with serving(echo, pool=pool) as server:
            slow = []
            for _ in range(50):
                _, writer = await server.connect()
                writer.write(struct.pack(">i", 1_000_000) + b"x" * 20)
                slow.append(writer)
            while len(server.connections) < 50 or not all(each.mid_frame for each in server.connections):
                await asyncio.sleep(0)
            reader, writer = await server.connect()
            writer.write(frame(request(1, 300_000)))
            assert len(await read_answer(reader)) == 300_000
            for other in (writer, *slow):
                other.close()

    run(scenario())


def test_who_waits_for_room_is_not_reaped() -> None:
    async def scenario() -> None:
        pool = FramePool(ordinary_bytes=1_000_000)
        async with serving(echo, pool=pool, limits=ConnectionLimits(max_idle_ms=60_000)) as server:
            reader, writer = await server.connect()
            writer.write(struct.pack(">i", 1_000_000) + b"x" * 999_999)
            while pool.lent_bytes < 1_000_000:
                await asyncio.sleep(0)
            (sending,) = server.connections
            waiting = [await server.connect() for _ in range(3)]
            for _, other in waiting:
                other.write(frame(request(2, 300_000)))
            while pool.waiting < 3:
                await asyncio.sleep(0)
            assert sending.mid_frame
            server.connections.reap(asyncio.get_running_loop().time() + 90)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await reader.readexactly(1)
            for other_reader, other in waiting:
                assert len(await read_answer(other_reader)) == 300_000
                other.close()
            writer.close()

    run(scenario())


def test_the_slowest_make_room_for_who_waits() -> None:
    async def scenario() -> None:
        pool = FramePool(ordinary_bytes=1_000_000)
        async with serving(echo, pool=pool) as server:
            slow = []
            for _ in range(3):
                reader, writer = await server.connect()
                writer.write(struct.pack(">i", 1_000_000) + b"x" * 900_000)
                slow.append((reader, writer))
            while not pool.waiting:
                await asyncio.sleep(0)
            now = asyncio.get_running_loop().time()
            body = request(1, 900_000)
            reader, writer = await server.connect()
            writer.write(frame(body))
            answer = asyncio.ensure_future(read_answer(reader))
            while not answer.done():
                now += 0.5
                pool.give_up_slow(now)
                await asyncio.sleep(0.001)
            assert await answer == body
            for _, other in (*slow, (reader, writer)):
                other.close()

    run(scenario())


def test_limits_in_all_and_per_address() -> None:
    async def scenario() -> None:
        async with serving(echo, limits=ConnectionLimits(max_per_ip=1)) as server:
            reader, writer = await server.connect()
            writer.write(frame(request(1)))
            assert await read_answer(reader) == request(1)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await first_byte(server)
            writer.write(frame(request(2)))
            assert await read_answer(reader) == request(2)
            writer.close()

    run(scenario())


def test_idle_and_stalled_connections_are_reaped() -> None:
    async def scenario() -> None:
        async with serving(echo, limits=ConnectionLimits(max_idle_ms=60_000)) as server:
            idle, idle_writer = await server.connect()
            stalled, stalled_writer = await server.connect()
            stalled_writer.write(struct.pack(">i", 1000) + b"half")
            await stalled_writer.drain()
            now = asyncio.get_running_loop().time
            open_connections = server.connections
            while len(open_connections) < 2 or not any(c.mid_frame for c in open_connections):
                await asyncio.sleep(0)
            open_connections.reap(now() + 40)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await stalled.readexactly(1)
            open_connections.reap(now() + 61)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await idle.readexactly(1)
            idle_writer.close()
            stalled_writer.close()

    run(scenario())


def test_a_client_that_does_not_read_stops_being_read() -> None:
    async def scenario() -> None:
        served = 0

        def handler(body: bytes) -> Answer:
            nonlocal served
            served += 1
            return frame(b"y" * 1_000_000)

        async with serving(handler) as server:
            reader, writer = await server.connect()
            for number in range(200):
                writer.write(frame(request(number)))
            await writer.drain()
            before = -1
            while served != before:
                before = served
                for _ in range(50):
                    await asyncio.sleep(0)
            assert served < 200
            for _ in range(200):
                await read_answer(reader)
            assert served == 200
            writer.close()

    run(scenario())


def test_a_flood_of_requests_takes_turns_with_other_clients() -> None:
    async def scenario() -> None:
        served: list[int] = []
        clock = 0.0

        def handler(body: bytes) -> Answer:
            nonlocal clock
            clock += 0.1  # each request takes longer than a turn
            served.append(int.from_bytes(body[:4], "big"))
            return frame(body)

        async with serving(handler) as server:
            server.host.monotonic = lambda: clock
            flood_reader, flood = await server.connect()
            reader, writer = await server.connect()
            writer.write(frame(request(999)))
            await read_answer(reader)  # it is all set up
            flood.write(b"".join(frame(request(number)) for number in range(500)))
            writer.write(frame(request(1000)))
            await read_answer(reader)
            assert len(served) < 250
            for number in range(500):
                assert int.from_bytes((await read_answer(flood_reader))[:4], "big") == number
            assert sorted(served) == [*range(500), 999, 1000]
            flood.close()
            writer.close()

    run(scenario())


def test_answers_to_one_read_do_not_pile_up() -> None:
    async def scenario() -> None:
        served = 0

        def handler(body: bytes) -> Answer:
            nonlocal served
            served += 1
            return frame(b"y" * 100_000)

        async with serving(handler) as server:
            reader, writer = await server.connect()
            writer.write(b"".join(frame(request(number)) for number in range(5000)))
            await writer.drain()
            before = -1
            while served != before:
                before = served
                for _ in range(50):
                    await asyncio.sleep(0)
            assert served < 2500  # what the kernel's buffers take, not half a gigabyte
            for _ in range(5000):
                await read_answer(reader)
            assert served == 5000
            writer.close()

    run(scenario())


def test_answers_behind_a_long_poll_do_not_pile_up() -> None:
    async def scenario() -> None:
        first, served = Deferred(), 0

        def handler(body: bytes) -> Answer:
            nonlocal served
            served += 1
            return first if body[:4] == bytes(4) else frame(b"y" * 200_000)

        async with serving(handler) as server:
            reader, writer = await server.connect()
            for number in range(50):
                writer.write(frame(request(number)))
            while served < 6:
                await asyncio.sleep(0)
            for _ in range(50):
                await asyncio.sleep(0)
            assert served < 10
            first.resolve(frame(b"at last"))
            assert await read_answer(reader) == b"at last"
            for _ in range(49):
                assert len(await read_answer(reader)) == 200_000
            assert served == 50
            writer.close()

    run(scenario())


def test_while_frames_wait_for_memory_little_is_read() -> None:
    async def scenario() -> None:
        pool = FramePool(ordinary_bytes=1_000_000, giant_bytes=3_000_000)
        async with serving(echo, pool=pool) as server:
            _, holding = await server.connect()
            holding.write(struct.pack(">i", 5_000_000) + b"x" * 4_000_000)
            while pool.lent_bytes < 3_000_000:
                await asyncio.sleep(0)
            assert not pool.contended
            _, waiting = await server.connect()
            waiting.write(struct.pack(">i", 5_000_000) + b"x" * 1000)
            while not pool.waiting:
                await asyncio.sleep(0)
            assert pool.contended
            reader, small = await server.connect()
            small.write(frame(request(1, 20_000)))
            assert len(await read_answer(reader)) == 20_000
            holding.close()
            while pool.waiting:
                await asyncio.sleep(0)
            assert not pool.contended
            waiting.close()
            small.close()

    run(scenario())


def test_who_waits_for_a_client_is_told_when_it_is_gone() -> None:
    async def scenario() -> None:
        waits: list[Deferred] = []
        abandoned: list[int] = []

        def handler(body: bytes) -> Answer:
            deferred = Deferred()
            number = len(waits)
            deferred.on_abandoned = lambda: abandoned.append(number)
            waits.append(deferred)
            return deferred

        async with serving(handler) as server:
            _, writer = await server.connect()
            for number in range(3):
                writer.write(frame(request(number)))
            while len(waits) < 3:
                await asyncio.sleep(0)
            waits[1].resolve(frame(b"too early"))
            writer.close()
            while not abandoned:
                await asyncio.sleep(0)
            assert abandoned == [0, 2]
            waits[0].resolve(frame(b"too late"))  # harmless

    run(scenario())


# ---- clients that are gone, and faults of ours --------------------------------------------------------------


def abort(writer: asyncio.StreamWriter) -> None:
    """Reset, not end, the connection."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize("leave", [lambda writer: writer.close(), abort], ids=["end", "reset"])
def test_what_was_received_whole_is_processed_when_the_client_is_gone(
    leave: Callable[[asyncio.StreamWriter], None],
) -> None:
    """Also what waited behind a handler that ran at that time."""

    async def scenario() -> None:
        gate = asyncio.Event()
        begun: list[int] = []
        done: list[int] = []

        async def change(number: int) -> bytes | None:
            begun.append(number)
            await gate.wait()
            done.append(number)
            return None

        async with serving(lambda body: change(int.from_bytes(body[:4], "big"))) as server:
            _, writer = await server.connect()
            writer.write(b"".join(frame(request(number)) for number in range(5)))
            await writer.drain()
            while not begun:
                await asyncio.sleep(0)
            leave(writer)
            for _ in range(20):
                await asyncio.sleep(0)
            gate.set()
            while len(done) < 5:
                await asyncio.sleep(0)
            assert done == [*range(5)]
            while server.connections.handlers:
                await asyncio.sleep(0)

    run(scenario())


@pytest.mark.parametrize("size", [8, 400_000], ids=["small", "gathered"])
def test_a_handler_that_runs_alone_goes_on_when_the_client_is_gone(size: int) -> None:
    async def scenario() -> None:
        gate, done, lost = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def change() -> bytes:
            await gate.wait()
            done.set()
            return b"nobody takes it"

        pool = FramePool()
        async with serving(lambda body: change(), pool=pool) as server:
            _, writer = await server.connect()
            writer.write(frame(request(1, size)))
            while not server.connections.handlers:
                await asyncio.sleep(0)
            (connection,) = server.connections
            connection.when_lost("test", lambda _: lost.set())
            writer.close()
            while len(server.connections):
                await asyncio.sleep(0)
            assert not lost.is_set()  # for others it is gone when all it asked for is done
            gate.set()
            await done.wait()
            await lost.wait()
            assert pool.lent_bytes == 0

    run(scenario())


def test_a_send_that_fails_does_not_drop_what_was_received() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        done: list[int] = []

        async def change(body: bytes) -> bytes:
            await gate.wait()
            done.append(int.from_bytes(body[:4], "big"))
            return frame(b"y" * 100_000)

        async with serving(change) as server:
            _, writer = await server.connect()
            writer.write(b"".join(frame(request(number)) for number in range(20)))
            await writer.drain()
            while not server.connections.handlers:
                await asyncio.sleep(0)
            abort(writer)
            gate.set()
            while len(done) < 20:
                await asyncio.sleep(0)
            assert done == [*range(20)]

    run(scenario())


def test_a_frame_that_did_not_come_whole_is_dropped() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        seen: list[bytes] = []

        async def change(body: bytes) -> None:
            seen.append(body)
            await gate.wait()

        pool = FramePool()
        async with serving(change, pool=pool) as server:
            _, writer = await server.connect()
            writer.write(frame(request(1)) + frame(request(2)) + struct.pack(">i", 100) + b"half")
            while not seen:
                await asyncio.sleep(0)
            writer.close()
            gate.set()
            while len(server.connections) or server.connections.handlers or pool.lent_bytes:
                await asyncio.sleep(0)
            assert seen == [request(1), request(2)]

    run(scenario())


def test_what_only_answers_is_left_when_nobody_waits() -> None:
    async def scenario() -> None:
        left = asyncio.Event()

        async def wait_for_ever() -> bytes:
            (connection,) = server.connections
            connection.only_answers()
            try:
                return await asyncio.get_running_loop().create_future()
            finally:
                left.set()

        async with serving(lambda body: wait_for_ever()) as server:
            _, writer = await server.connect()
            writer.write(frame(request(1)))
            while not server.connections.handlers:
                await asyncio.sleep(0)
            writer.close()
            await left.wait()

    run(scenario())


async def _fails_later(body: bytes) -> bytes:
    await asyncio.sleep(0)
    raise ZeroDivisionError("on purpose")


def _fails_now(body: bytes) -> Answer:
    raise ZeroDivisionError("on purpose")


@pytest.mark.parametrize("fail", [_fails_now, _fails_later])
def test_a_fault_of_ours_ends_one_connection_and_is_logged_once(
    fail: Handler, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(lambda body: fail(body) if body[:4] == bytes(4) else echo(body)) as server:
            other_reader, other = await server.connect()
            reader, writer = await server.connect()
            writer.write(frame(request(0)) + frame(request(1)))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await reader.readexactly(1)
            other.write(frame(request(2)))
            assert await read_answer(other_reader) == request(2)
            assert len(server.connections) == 1
            writer.close()
            other.close()

    with caplog.at_level(logging.ERROR):
        run(scenario())
    (entry,) = caplog.records
    assert "on purpose" in entry.getMessage()
    assert entry.exc_info is not None


def test_handlers_are_finished_when_the_node_stops() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        done: list[bytes] = []

        async def change(body: bytes) -> None:
            await gate.wait()
            done.append(body)

        async with serving(change) as server:
            _, writer = await server.connect()
            writer.write(frame(request(1)))
            while not server.connections.handlers:
                await asyncio.sleep(0)
            server.connections.close_all()
            finishing = asyncio.ensure_future(server.connections.finish())
            for _ in range(20):
                await asyncio.sleep(0)
            gate.set()
            await finishing
            assert done == [request(1)]
            writer.close()

    run(scenario())


def test_a_handler_that_does_not_end_does_not_keep_the_node_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket_server, "FINISH_S", 0.05)

    async def scenario() -> None:
        async def hang(body: bytes) -> bytes:
            return await asyncio.get_running_loop().create_future()

        async with serving(hang) as server:
            _, writer = await server.connect()
            writer.write(frame(request(1)))
            while not server.connections.handlers:
                await asyncio.sleep(0)
            server.connections.close_all()
            await server.connections.finish()
            assert not server.connections.handlers
            writer.close()

    run(scenario())


# --- quotas

HOUR_MS = 3_600_000


class Throttling:
    """Answers everything, and throttles the connection of the first one after the first request."""

    def __init__(self) -> None:
        self.server: Server
        self.started: list[int] = []
        self.throttled: Connection | None = None

    def __call__(self, body: bytes) -> Answer:
        number = int.from_bytes(body[:4], "big")
        self.started.append(number)
        if self.throttled is None:
            (self.throttled,) = self.server.connections
            self.throttled.throttle(HOUR_MS)
        return echo(body)


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def being_served(server: Server) -> None:
    """Others are: what there is to be read by now has been."""
    reader, writer = await server.connect()
    for number in range(900, 903):
        writer.write(frame(request(number)))
        assert await read_answer(reader) == request(number)
    writer.close()


def test_what_has_waited_is_measured_from_when_it_is_served() -> None:
    async def scenario() -> None:
        handler = Throttling()
        async with serving(handler) as server:
            handler.server = server
            reader, writer = await server.connect()
            writer.write(frame(request(0)) + frame(request(1)))
            await read_answer(reader)
            await being_served(server)
            connection = handler.throttled
            assert connection is not None
            connection.last_active = 0.0
            connection.unmute()
            assert await read_answer(reader) == request(1)
            assert connection.last_active > 0.0
            writer.close()

    asyncio.run(scenario())


class Counting:
    """A client's quotas, as the connection knows them: notes when it is told of what was served."""

    def __init__(self, handler: "Noted") -> None:
        self.now_ms = 0.0
        self.handler = handler
        self.served_at: list[int] = []
        self.measured_of: list[int] = []

    def served(self, connection: Connection, now: float) -> None:
        assert self.now_ms == connection.last_active * 1000.0
        assert now >= connection.last_active
        self.served_at.append(len(self.handler.started))

    def measured(self, connection: Connection, coroutine: Any) -> Any:
        self.measured_of.append(len(self.handler.started))
        return coroutine


class Noted:
    """Answers everything; whose number is odd later."""

    def __init__(self) -> None:
        self.started: list[int] = []

    def __call__(self, body: bytes) -> Answer:
        self.started.append(int.from_bytes(body[:4], "big"))
        return self._later(body) if self.started[-1] % 2 else echo(body)

    async def _later(self, body: bytes) -> bytes:
        return echo(body)


def test_what_was_read_at_once_is_measured_at_once_and_coroutines_by_themselves() -> None:
    async def scenario() -> None:
        handler = Noted()
        async with serving(handler) as server:
            reader, writer = await server.connect()
            writer.write(frame(request(0)))
            await read_answer(reader)
            (connection,) = server.connections
            quotas = connection.quotas = Counting(handler)
            writer.write(b"".join(frame(request(number)) for number in (2, 4, 6)))
            for number in (2, 4, 6):
                assert await read_answer(reader) == request(number)
            assert (quotas.served_at, quotas.measured_of) == ([4], [])
            large = request(8) + bytes(3 * SHARED_BUFFER_BYTES)  # it is gathered, and what follows waits
            writer.write(frame(large) + frame(request(9)) + frame(request(10)))
            for body in (large, request(9), request(10)):
                assert await read_answer(reader) == body
            assert quotas.served_at[-1] == 7
            assert quotas.measured_of == [6]
            writer.close()

    run(scenario())


def test_a_throttled_client_has_its_answer_and_nothing_more_is_served() -> None:
    async def scenario() -> None:
        handler = Throttling()
        async with serving(handler) as server:
            handler.server = server
            reader, writer = await server.connect()
            for number in range(5):
                writer.write(frame(request(number)))
            assert await read_answer(reader) == request(0), "at once"
            writer.write(frame(request(5)))
            await being_served(server)
            assert [number for number in handler.started if number < 900] == [0]
            assert handler.throttled is not None
            handler.throttled.unmute()
            assert [await read_answer(reader) for _ in range(5)] == [
                request(number) for number in range(1, 6)
            ]
            writer.close()

    run(scenario())


def test_one_timer_ends_it_also_if_it_comes_to_more() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        timers = []

        def handler(body: bytes) -> Answer:
            if body == request(0):
                (connection,) = server.connections
                for throttle_ms in (20, 80, 10):
                    connection.throttle(throttle_ms)
                    timers.append(connection._unmuting)
            return echo(body)

        async with serving(handler) as server:
            reader, writer = await server.connect()
            began = loop.time()
            writer.write(frame(request(0)) + frame(request(1)))
            assert await read_answer(reader) == request(0)
            assert await read_answer(reader) == request(1)
            assert loop.time() - began >= 0.079
            assert timers[0] is not None
            assert timers == [timers[0]] * 3
            (connection,) = server.connections
            assert connection._unmuting is None
            writer.write(frame(request(2)))
            assert await read_answer(reader) == request(2)
            writer.close()

    run(scenario())


def test_answers_that_come_later_leave_while_the_client_is_throttled() -> None:
    async def scenario() -> None:
        later = [Deferred(), Deferred()]

        def handler(body: bytes) -> Answer:
            return later[int.from_bytes(body[:4], "big")]

        async with serving(handler) as server:
            reader, writer = await server.connect()
            writer.write(frame(request(0)) + frame(request(1)))
            await being_ready(server, lambda connection: len(connection._line) == 2)
            (connection,) = server.connections
            connection.throttle(HOUR_MS)
            later[1].resolve(echo(b"second"))
            later[0].resolve(echo(b"first"))
            assert [await read_answer(reader) for _ in range(2)] == [b"first", b"second"]
            writer.close()

    run(scenario())


async def being_ready(server: Server, is_ready: Callable[[Connection], bool]) -> None:
    while not all(map(is_ready, server.connections)) or not len(server.connections):
        await asyncio.sleep(0)


def test_a_client_that_sends_all_the_same_fills_its_own_socket() -> None:
    async def scenario() -> None:
        handler = Throttling()
        async with serving(handler) as server:
            handler.server = server
            reader, writer = await server.connect()
            writer.write(frame(request(0)))
            await read_answer(reader)
            connection = handler.throttled
            assert connection is not None
            writer.write(frame(request(1, 1_000)) * 30_000)
            await being_ready(server, lambda each: each._reading_paused)
            await turns()
            assert connection._backlog is not None
            assert len(connection._backlog) <= SHARED_BUFFER_BYTES
            assert handler.started == [0]
            writer.transport.abort()

    run(scenario())


def test_the_rest_of_a_frame_may_come_while_its_client_is_throttled() -> None:
    async def scenario() -> None:
        handler = Throttling()
        async with serving(handler) as server:
            handler.server = server
            reader, writer = await server.connect()
            whole = frame(request(1, 400_000))
            writer.write(whole[:10])
            await being_ready(server, lambda each: each._lease is not None)
            (connection,) = server.connections
            connection.throttle(HOUR_MS)
            writer.write(whole[10:])
            await being_ready(server, lambda each: each._is_whole)
            await turns()
            assert handler.started == []
            assert not connection.mid_frame, "it is not for the client to go on"
            handler.throttled = connection
            connection.unmute()
            assert await read_answer(reader) == request(1, 400_000)
            writer.close()

    run(scenario())


def test_a_throttled_client_that_leaves_is_noticed_and_what_it_sent_is_done() -> None:
    async def scenario() -> None:
        handler = Throttling()
        lost: list[Connection] = []
        async with serving(handler) as server:
            handler.server = server
            reader, writer = await server.connect()
            writer.write(frame(request(0)))
            await read_answer(reader)
            assert handler.throttled is not None
            handler.throttled.when_lost("test", lost.append)
            writer.close()
            while not lost:
                await asyncio.sleep(0)
            assert handler.throttled._unmuting is None or handler.throttled._unmuting.cancelled()
            handler.throttled.throttle(HOUR_MS)
            assert not handler.throttled.is_open

    run(scenario())


def test_a_throttled_connection_is_closed_like_any_other() -> None:
    async def scenario() -> None:
        handler = Throttling()
        async with serving(handler) as server:
            handler.server = server
            reader, writer = await server.connect()
            writer.write(frame(request(0)) + frame(request(1)))
            await read_answer(reader)
            server.connections.close_all()
            assert await reader.read() == b""
            assert handler.throttled is not None
            await turns()
            assert handler.started == [0], "what was not begun is dropped"
            writer.close()

    run(scenario())


def test_who_comes_too_early_is_connected_and_waits() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        rates = ConnectionRates()
        rates.set_listener_limit("TEST", 2)  # twenty at once, and then two a second
        async with serving(echo, rates=rates) as server:
            began = loop.time()
            for _ in range(21):
                await asked_once(server)
            assert loop.time() - began >= 0.49
            rates.set_listener_limit("TEST", 1_000)
            await asked_once(server)
            assert server.connections._per_listener["TEST"] <= 3

    run(scenario())


async def asked_once(server: Server) -> None:
    reader, writer = await server.connect()
    writer.write(frame(request(7)))
    assert await read_answer(reader) == request(7)
    writer.close()


@asynccontextmanager
async def came_and_went(count: int) -> AsyncIterator[Server]:
    """A server with a client that waits to be let in, and so many that waited behind it and are gone."""
    rates = ConnectionRates()
    rates.set_listener_limit("TEST", 2)
    for _ in range(30):
        rates.record_connection("TEST", asyncio.get_running_loop().time() * 1000)
    async with serving(echo, rates=rates) as server:
        host, port = server.host.address
        first = await asyncio.open_connection(host, port)
        while server.host._queue._timer is None:
            await asyncio.sleep(0)
        others = [await asyncio.open_connection(host, port) for _ in range(count)]
        while len(server.host._queue._waiting) < count:
            await asyncio.sleep(0)
        for _, writer in others:
            writer.transport.abort()
        while len(server.connections) > 1:
            await asyncio.sleep(0)
        yield server
        first[1].close()


def test_who_waits_to_be_let_in_does_so_in_order_and_the_gone_count_for_nothing() -> None:
    async def scenario() -> None:
        async with came_and_went(5) as server:
            await asked_once(server)
            assert not server.host._queue._waiting

    run(scenario())


def test_no_more_wait_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_server, "MAX_WAITING", 2)

    async def scenario() -> None:
        rates = ConnectionRates()
        rates.set_listener_limit("TEST", 0)  # one, and then another each second
        async with serving(echo, rates=rates) as server:
            host, port = server.host.address
            came = [await asyncio.open_connection(host, port) for _ in range(4)]
            assert await asyncio.wait_for(ended(came[3][0]), 10)
            assert len(server.host._queue._waiting) <= 2
            for _, writer in came:
                writer.transport.abort()

    run(scenario())


def test_those_who_came_and_went_keep_nobody_from_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_server, "MAX_WAITING", 3)

    async def scenario() -> None:
        async with came_and_went(3) as server:
            await asked_once(server)

    run(scenario())


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


def test_who_comes_too_often_from_an_address_is_closed_after_a_while_and_never_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        served: list[bytes] = []

        def handler(body: bytes) -> Answer:
            served.append(body)
            return echo(body)

        rates = ConnectionRates()
        rates.set_ip_limit("127.0.0.1", 1)
        async with serving(handler, rates=rates) as server:
            for _ in range(10):
                await asked_once(server)
            host, port = server.host.address
            reader, writer = await asyncio.open_connection(host, port)
            if not SECURITY["tls"]:
                writer.write(frame(request(8)))
            assert await ended(reader)
            assert request(8) not in served
            while len(server.connections):
                await asyncio.sleep(0)
            assert server.connections._closed_later == 0
            rates.set_ip_limit("127.0.0.1", None)
            await asked_once(server)
            writer.close()

    run(scenario())
    assert "connection_creation_rate" in caplog.text
