"""The links of a cluster under test do what they say: else a fault that was never there has done no harm."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from tests.interop.process import HOST, receive_exactly, wait_until
from tests.support.proxies import CLIENTS, Links

PATIENCE_S = 90.0


class Echo:
    """A server that says back what it hears."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self.accepted: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.accepted.append(connection)
                threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # the thread that waits in accept would keep it open
        self._listener.close()
        for connection in self.accepted:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def links() -> Iterator[Links]:
    with Links() as made:
        yield made


def frame(client_id: str, body: bytes = b"") -> bytes:
    name = client_id.encode()
    inside = struct.pack(">hhih", 18, 3, 7, len(name)) + name + body
    return struct.pack(">i", len(inside)) + inside


def connect(port: int, client_id: str) -> socket.socket:
    """A connection that has introduced itself, and was answered."""
    sock = open_as(port, client_id)
    receive_exactly(sock, len(frame(client_id)))
    return sock


def open_as(port: int, client_id: str) -> socket.socket:
    sock = socket.create_connection((HOST, port), timeout=PATIENCE_S)
    sock.sendall(frame(client_id))
    return sock


def says(sock: socket.socket, data: bytes) -> bytes:
    sock.sendall(data)
    return receive_exactly(sock, len(data))


def is_silent(sock: socket.socket) -> bool:
    return not select.select([sock], [], [], 0)[0]


def ends(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def test_a_plain_link_passes_everything_and_its_end(links: Links, echo: Echo) -> None:
    port = links.open(1, HOST, echo.port)
    with connect(port, "broker-2-fetcher-0") as sock:
        large = bytes(range(256)) * 40_000
        threading.Thread(target=sock.sendall, args=(large,), daemon=True).start()
        assert receive_exactly(sock, len(large)) == large
    wait_until(lambda: echo.accepted[0].fileno() == -1, PATIENCE_S, "the end to arrive")


def test_what_is_held_by_a_cut_arrives_when_it_is_healed(links: Links, echo: Echo) -> None:
    port = links.open(1, HOST, echo.port)
    with connect(port, "broker-2-fetcher-0") as sock:
        links.cut(1, 2)
        sock.sendall(b"late")
        wait_until(lambda: links.held_bytes == 4, PATIENCE_S, "the cut to hold it")
        assert is_silent(sock)
        links.heal()
        assert receive_exactly(sock, 4) == b"late"
        assert says(sock, b"more") == b"more"


@pytest.mark.parametrize("lost", ["requests", "answers"])
def test_one_way(links: Links, echo: Echo, lost: str) -> None:
    """A cut concerns what a node says, whoever has made the connection."""
    port = links.open(1, HOST, echo.port)
    with connect(port, "raft-client-2") as sock:
        source, target = (2, 1) if lost == "requests" else (1, 2)
        links.cut(target, source, both=False)
        links.heal(target, source)
        links.cut(source, target, both=False)
        sock.sendall(b"one way")
        wait_until(lambda: links.held_bytes == 7, PATIENCE_S, "the cut to hold it")
        assert is_silent(sock)
        links.heal()
        assert receive_exactly(sock, 7) == b"one way"


def test_links_are_told_apart_by_who_connects(links: Links, echo: Echo) -> None:
    port = links.open(1, HOST, echo.port)
    names = {
        "raft-client-2": 2,
        "broker-2-fetcher-0": 2,
        "2": 2,
        "broker-3-txn": 3,
        "rdkafka": CLIENTS,
        "22": 22,
    }
    with contextlib.ExitStack() as stack:
        connections = {name: stack.enter_context(connect(port, name)) for name in names}
        links.cut(1, 2)
        for name, node in names.items():
            if node != 2:
                assert says(connections[name], b"x") == b"x"
            else:
                connections[name].sendall(b"y")
        wait_until(lambda: links.held_bytes == 3, PATIENCE_S, "three to be held")
        links.cut(1, CLIENTS)
        connections["rdkafka"].sendall(b"z")
        wait_until(lambda: links.held_bytes == 4, PATIENCE_S, "the client to be held")
        links.heal(2)
        for name in ("raft-client-2", "broker-2-fetcher-0", "2"):
            assert receive_exactly(connections[name], 1) == b"y"
        assert is_silent(connections["rdkafka"])


def test_a_cut_keeps_the_end_of_a_connection_too(links: Links, echo: Echo) -> None:
    port = links.open(1, HOST, echo.port)
    sock = connect(port, "2")
    links.cut(1, 2)
    sock.sendall(b"last words")
    sock.close()
    wait_until(lambda: links.held_bytes == 10, PATIENCE_S, "the cut to hold it")
    assert echo.accepted[0].fileno() != -1
    links.heal()
    wait_until(lambda: echo.accepted[0].fileno() == -1, PATIENCE_S, "the end to arrive")


def test_a_new_connection_over_a_cut_says_nothing(links: Links, echo: Echo) -> None:
    port = links.open(1, HOST, echo.port)
    links.cut(1, 2)
    with open_as(port, "2") as sock:
        wait_until(lambda: links.held_bytes > 0, PATIENCE_S, "the cut to hold it")
        assert is_silent(sock)
        links.heal()
        assert receive_exactly(sock, len(frame("2"))) == frame("2")


def test_refused(links: Links, echo: Echo) -> None:
    port = links.open(1, HOST, echo.port)
    with connect(port, "2") as old, connect(port, "3") as other:
        links.refuse(1, 2)
        assert ends(old)
        with open_as(port, "broker-2-x") as new:
            assert ends(new)
        assert says(other, b"still here") == b"still here"
        links.heal()
        with connect(port, "2") as healed:
            assert says(healed, b"again") == b"again"


def test_nobody_listens_where_a_node_is_shut(links: Links, echo: Echo) -> None:
    port = links.open(1, HOST, echo.port)
    with connect(port, "2") as sock:
        links.shut(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port), timeout=PATIENCE_S)
        assert says(sock, b"those who are in stay") == b"those who are in stay"
        links.reopen(1)
        with connect(port, "2") as again:
            assert says(again, b"x") == b"x"


def test_nobody_is_behind_the_port(links: Links, echo: Echo) -> None:
    port = links.open(1, HOST, echo.port)
    echo.close()
    with open_as(port, "2") as sock:
        assert ends(sock)


def test_a_caller_that_says_nothing(links: Links, echo: Echo) -> None:
    port = links.open(1, HOST, echo.port)
    socket.create_connection((HOST, port)).close()
    with connect(port, "2") as sock:
        assert says(sock, b"x") == b"x"
    assert len(echo.accepted) == 1


def test_a_slow_link(links: Links, echo: Echo) -> None:
    """Never faster than it should be: how much slower is the machine's doing."""
    port = links.open(1, HOST, echo.port)
    with connect(port, "2") as sock:
        links.slow(2, 1, delay_s=0.1, both=False)
        begin = time.monotonic()
        assert says(sock, b"x") == b"x"
        assert time.monotonic() - begin >= 0.1
        links.slow(2, 1, bytes_per_s=1_000_000, both=False)
        begin = time.monotonic()
        assert says(sock, bytes(200_000)) == bytes(200_000)
        assert time.monotonic() - begin >= 0.15
