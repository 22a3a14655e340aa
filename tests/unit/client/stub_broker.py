"""A broker behind a real socket, for drivers: what it says is FakeCluster's, how it says it is the test's.

Each connection has a thread, which ends when the connection does. `pieces` cuts what is sent into parts of so many
bytes; `script` sees each request and may have the connection closed before, within or after the answer.
"""

import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any, Self

from tests.unit.client.fake_cluster import FakeCluster

from ottla.client.config import ClientConfig
from ottla.client.network import NetworkCore
from ottla.wire.codec import decode
from ottla.wire.framing import decode_request_header, encode_response
from ottla.wire.registry import request_class

CLOSE = "close"  # instead of an answer
CLOSE_WITHIN = "close within"  # after half of it
GARBAGE = "garbage"  # what no Kafka broker would say


class StubBroker:
    """One broker of a cluster of its own, while entered."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.cluster = FakeCluster(NetworkCore(ClientConfig()))
        self.script: Callable[[Any], str | None] = lambda request: None
        self.pieces = 1 << 20
        self.seen: list[Any] = []
        self.accepted = 0
        self._tls = tls
        self._listener = socket.socket()
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._closing = False

    @property
    def address(self) -> str:
        host, port = self.cluster.addresses[1]
        return f"{host}:{port}"

    def __enter__(self) -> Self:
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.cluster.addresses[1] = self._listener.getsockname()
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        for sock in [self._listener, *self._connections]:
            _hang_up(sock)
        for thread in self._threads:
            thread.join(30)
        self._listener.close()

    def hang_up(self) -> None:
        """Close all connections there are; new ones are taken."""
        for sock in self._connections:
            _hang_up(sock)

    def _spawn(self, what: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=what, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._connections.append(sock)
            self._spawn(self._serve, sock)

    def _serve(self, plain: socket.socket) -> None:
        try:
            sock = plain if self._tls is None else self._tls.wrap_socket(plain, server_side=True)
            if sock is not plain:
                self._connections.append(sock)
            with sock:
                while (frame := _read_frame(sock)) is not None and self._answer(sock, frame):
                    pass
        except (OSError, ssl.SSLError):
            return  # the client has gone, or does not trust us

    def _answer(self, sock: socket.socket, frame: bytes) -> bool:
        header, body = decode_request_header(frame, 0, len(frame))
        request, _ = decode(request_class(header.api_key), frame, header.api_version, body)
        self.seen.append(request)
        how = self.script(request)
        if how == CLOSE:
            return False
        if how == GARBAGE:
            sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            return True
        response = self.cluster.handlers[type(request)](1, request, header.api_version)
        data = encode_response(response, header.api_version, header.correlation_id)
        if how == CLOSE_WITHIN:
            data = data[: len(data) // 2]
        for start in range(0, len(data), self.pieces):
            sock.sendall(data[start : start + self.pieces])
        return how != CLOSE_WITHIN


def _hang_up(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it was closed already


def _read_frame(sock: socket.socket) -> bytes | None:
    size = _read(sock, 4)
    return None if size is None else _read(sock, int.from_bytes(size, "big"))


def _read(sock: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            return None
        data += part
    return data
