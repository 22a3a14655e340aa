"""What is no Kafka at all: the connection is closed with one line in the log, and nobody else notices."""

from __future__ import annotations

import random
import ssl
import struct

import pytest
from tests.interop.ottla_node import OttlaNode
from tests.interop.scripts.entities import encode_request, frame, header_bytes
from tests.support.control import ControlClient
from tests.support.raw_client import API_VERSIONS, RawClient, half_close, reset

MAX_REQUEST_BYTES = 104_857_600
HELLO = encode_request(API_VERSIONS, 0, {})


def client_hello() -> bytes:
    """What a TLS client says first."""
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def closing_lines(node: OttlaNode, port: int) -> list[str]:
    """What the broker's log says of the connection from a port of ours."""
    return [line for line in node.log_text().splitlines() if f":{port} " in line]


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost:9092\r\nUser-Agent: curl/8.0\r\n\r\n",
    "http post": b"POST /topics HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    "tls hello": client_hello(),
    "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
    "redis": b"*1\r\n$4\r\nPING\r\n",
    "all ones": b"\xff" * 1000,
    "all zeros": bytes(1000),
    "length -1": struct.pack(">i", -1),
    "length minimum": struct.pack(">i", -(2**31)),
    "length maximum": struct.pack(">i", 2**31 - 1),
    "length one over the limit": struct.pack(">i", MAX_REQUEST_BYTES + 1),
    "length zero": struct.pack(">i", 0),
    "shorter than a header": frame(b"\x00\x12\x00"),
    "key -1": frame(header_bytes(-1, 0, 1, "x", False)),
    "key 4, which is gone": frame(header_bytes(4, 5, 1, "x", True) + bytes(20)),
    "key 93": frame(header_bytes(93, 0, 1, "x", True) + bytes(20)),
    "key 32767": frame(header_bytes(32767, 0, 1, "x", True)),
    "a controller's key": frame(header_bytes(52, 0, 1, "x", True) + bytes(20)),
    "metadata v99": frame(header_bytes(3, 99, 1, "x", True) + bytes(20)),
    "metadata v-1": frame(header_bytes(3, -1, 1, "x", False) + bytes(20)),
    "fetch v3, which is gone": frame(header_bytes(1, 3, 1, "x", False) + bytes(40)),
    "produce v99": frame(header_bytes(0, 99, 1, "x", True) + bytes(40)),
    "client id longer than the frame": frame(struct.pack(">hhih", 3, 1, 1, 30_000) + b"abc"),
    "more topics than bytes": frame(header_bytes(3, 1, 1, "x", False) + struct.pack(">i", 2**31 - 1)),
    "a topic name longer than the frame": frame(
        header_bytes(3, 1, 1, "x", False) + struct.pack(">ih", 1, 30_000)
    ),
    "an endless varint": frame(header_bytes(3, 9, 1, "x", True) + b"\xff" * 30),
    "more tags than bytes": frame(header_bytes(3, 9, 1, "x", False) + b"\xff\xff\xff\xff\x07"),
    "nothing after the header": frame(header_bytes(0, 9, 1, "x", True)),
}


@pytest.mark.parametrize("case", GARBAGE)
def test_it_is_closed_with_one_line(node: OttlaNode, control: ControlClient, case: str) -> None:
    with RawClient(node) as bad:
        bad.send(GARBAGE[case])
        assert bad.is_closed()
        lines = closing_lines(node, bad.port)
    assert len(lines) == 1, lines
    control.still_works(1)


def test_an_unknown_version_of_api_versions_is_answered(client: RawClient) -> None:
    client.send(frame(header_bytes(API_VERSIONS, 99, 7, "x", True) + b"\x02x\x021\x00"))
    correlation_id, error, count = struct.unpack_from(">ihi", client.receive())
    assert (correlation_id, error) == (7, 35)  # UNSUPPORTED_VERSION, with the ranges, as version 0 (KIP-511)
    assert count > 20


@pytest.mark.parametrize("farewell", ["close", "reset", "half close"])
def test_half_a_frame_and_gone(node: OttlaNode, control: ControlClient, farewell: str) -> None:
    large = struct.pack(">i", 3_000_000) + bytes(1_000_000)
    for data in (HELLO[:2], HELLO[:7], HELLO[:-1], large, HELLO + HELLO[:9]):
        bad = RawClient(node)
        bad.send(data)
        if farewell == "reset":
            reset(bad.sock)
        elif farewell == "half close":
            half_close(bad.sock)
            while bad.sock.recv(1 << 16):
                pass
        bad.close()
    control.still_works(1)
    assert "Traceback" not in node.log_text()


def test_a_frame_may_come_byte_by_byte(client: RawClient) -> None:
    for n in range(len(HELLO)):
        client.send(HELLO[n : n + 1])
    assert len(client.receive()) > 100


def test_good_requests_before_a_bad_one_are_answered(node: OttlaNode) -> None:
    with RawClient(node) as mixed:
        mixed.send(HELLO * 3)
        for _ in range(3):
            mixed.receive()
        mixed.send(HELLO + GARBAGE["key 93"] + HELLO)
        assert len(closing_lines(node, mixed.port)) <= 1
        answers = 0
        try:
            while True:
                mixed.receive()
                answers += 1
        except ConnectionError:
            assert answers <= 1  # what was answered before the close may have been lost with it
        assert len(closing_lines(node, mixed.port)) == 1


@pytest.mark.parametrize("seed", range(8))
def test_random_bytes(node: OttlaNode, control: ControlClient, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        with RawClient(node) as bad:
            bad.send(chance.randbytes(chance.choice((1, 3, 5, 12, 100, 5000))))
            half_close(bad.sock)
            assert bad.is_closed()
    control.still_works(1)
    assert "Traceback" not in node.log_text()


@pytest.mark.parametrize("listener", ["broker", "controller"])
def test_random_frames(node: OttlaNode, control: ControlClient, listener: str) -> None:
    """Headers that are right, bodies that are noise."""
    chance = random.Random(listener)
    port = node.port if listener == "broker" else node.controller_port
    for _ in range(300):
        key, version = chance.randrange(-1, 95), chance.randrange(-1, 19)
        head = header_bytes(key, version, 1, chance.choice((None, "", "x")), chance.random() < 0.5)
        with RawClient(node, port=port) as bad:
            bad.send(frame(head + chance.randbytes(chance.choice((0, 1, 7, 60)))))
            half_close(bad.sock)
            while bad.sock.recv(1 << 16):
                pass
    control.still_works(1)
    assert "Traceback" not in node.log_text()
