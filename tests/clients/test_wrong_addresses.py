"""A command and the client at an address where no broker is: the controller's, a web server's, a TLS listener's.

Each is told in one line and at once: the client's own patience (10 s) would be in vain.
"""

from __future__ import annotations

import asyncio
import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.clients.test_ottla_client_cli import Cli
from tests.interop.ottla_node import OttlaNode

from ottla.client import Admin, AsyncClient, Producer
from ottla.client.errors import NoBrokersAvailable, NotABroker
from ottla.client.inline import InlineClient

COMMANDS = [
    ("topic", "list"),
    ("config", "describe", "broker", "1"),
    ("group", "lag", "--all-groups"),
    ("txn", "list"),
    ("consume", "-t", "x", "-e"),
    ("consume", "-t", "x", "-g", "g"),
    ("produce", "-t", "x"),
]
CONTROLLER = "this is the port of a controller: clients use that of a broker"


class WebServer(http.server.BaseHTTPRequestHandler):
    """Reads a line, as web servers do, before it says anything."""

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def web_server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), WebServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@contextmanager
def says(answer: bytes) -> Iterator[str]:
    """A server that answers the first bytes of a connection with these, and closes it."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_knows_the_controllers_port(node: OttlaNode, words: tuple[str, ...]) -> None:
    address = f"127.0.0.1:{node.controller_port}"
    out, err = Cli("")(*words, "-b", address, code=1)
    assert (out, err) == ("", f"ottla: {address}: {CONTROLLER}; name a broker with -b HOST:PORT\n")


def test_a_web_server_is_told_at_once() -> None:
    with web_server() as address:
        _, err = Cli("")("topic", "list", "-b", address, code=1)
        assert err == (
            f"ottla: {address}: this is not Kafka: it answers in HTML; name a broker with -b HOST:PORT\n"
        )


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "this is not Kafka: it answers in HTTP"),
        (
            b"\x15\x03\x03\x00\x02\x02\x28",
            "this is not Kafka: it answers in TLS (if it is a listener with TLS: ",
        ),
        (b"", "closed by the broker before its first answer (a listener with TLS or SASL, or no Kafka?)"),
    ],
)
def test_others_are_told_at_once(answer: bytes, told: str) -> None:
    with says(answer) as address:
        _, err = Cli("")("topic", "list", "-b", address, code=1)
        assert f"{address}: {told}" in err
        assert err.count("\n") == 1


def test_the_clients_do_not_wait_for_what_is_no_broker(node: OttlaNode) -> None:
    address = f"127.0.0.1:{node.controller_port}"
    # Longer than any test may take: who waited for it would fail.
    patience = {"bootstrap_servers": address, "bootstrap_timeout_ms": 3_600_000}

    async def asynchronous() -> None:
        await AsyncClient(patience).start()

    for make in (
        lambda: Admin(patience),
        lambda: Producer(patience),
        lambda: InlineClient(patience).start(),
        lambda: asyncio.run(asynchronous()),
    ):
        with pytest.raises(NotABroker, match=CONTROLLER):
            make()


def test_one_broker_among_the_addresses_is_enough(node: OttlaNode) -> None:
    with web_server() as web, Admin(bootstrap_servers=f"{web},{node.address}") as admin:
        assert admin.describe_cluster().nodes


def test_a_broker_that_is_not_there_yet_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with web_server() as web, pytest.raises(NoBrokersAvailable) as refused:
        Admin(bootstrap_servers=f"{web},{address}", bootstrap_timeout_ms=300)
    assert not isinstance(refused.value, NotABroker)
    assert "connection refused" in str(refused.value)
    assert "this is not Kafka" in str(refused.value)


def test_tls_on_a_plain_listener_is_told(node: OttlaNode) -> None:
    context = ssl.create_default_context()
    with pytest.raises(NoBrokersAvailable, match="TLS"):
        Admin(bootstrap_servers=node.address, bootstrap_timeout_ms=0, ssl_context=context)
