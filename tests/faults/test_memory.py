"""Clients that would have the broker hold their bytes: memory stays within the bound that is stated.

The bound (docs/architecture.md): 128 MiB for frames up to 2 MiB and 256 MiB for larger ones, each overdrawn by
one frame, and 1 MiB, at most. Beside it there is what the process itself needs.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
import struct
import sys
from collections.abc import Iterator

import cramjam
import pytest
from tests.faults.conftest import MakeNode
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import free_ports, wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.entities import encode_request, frame, header_bytes
from tests.support.control import ControlClient
from tests.support.raw_client import API_VERSIONS, METADATA, RawClient

MIB = 1024 * 1024
FRAME_BYTES = 100_000_000
BOUND_BYTES = (128 + 256 + 2) * MIB + FRAME_BYTES
UNPACKED_BYTES = 2 * 128 * MIB  # the largest batch that is unpacked, twice while it is put together
OWN_BYTES = 32 * MIB  # growth of the process that has nothing to do with frames
HELLO = struct.pack(">ihhih", 10, API_VERSIONS, 0, 1, -1)
FILES = 1200
GIVEN_UP = "while others waited for the memory"
PRODUCE_HEAD = struct.pack(">hhih", 0, 9, 1, -1) + b"\x00"


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")


@pytest.fixture(scope="module", autouse=True)
def many_files() -> None:
    """A thousand connections are a thousand descriptors on our side too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES:
        if hard != resource.RLIM_INFINITY and hard < FILES:
            pytest.skip(f"only {hard} files may be open here")
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))


# One question of each kind that a broker imports its handlers for only when it is asked, or when it is idle.
LATE_QUESTIONS: tuple[tuple[int, int, dict[str, object]], ...] = (
    (9, 8, {"groups": []}),
    (15, 5, {"groups": []}),
    (16, 5, {}),
    (47, 0, {"group_id": "g", "topics": []}),
    (69, 1, {"group_ids": []}),
    (77, 1, {"group_ids": []}),
    (79, 1, {"group_id": "g", "member_id": "m", "share_session_epoch": 0, "topics": []}),
    (84, 0, {"group_id": "g", "topics": []}),
    (89, 0, {"group_ids": []}),
)


def import_all(client: RawClient) -> None:
    """Afterwards the broker has all its code in memory: what it grows by is not that."""
    for api_key, version, body in LATE_QUESTIONS:
        client.ask(api_key, version, body)


@contextlib.contextmanager
def halfway(node: OttlaNode, count: int, frame_bytes: int) -> Iterator[list[socket.socket]]:
    """Connections, each of which has sent half of a frame, or as much of it as the broker takes."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(node.connect()) for _ in range(count)]
        head = struct.pack(">i", frame_bytes) + PRODUCE_HEAD
        for sock in sockets:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
            sock.sendall(head)
        push(sockets, frame_bytes // 2 - len(head))
        yield sockets


def open_files(node: OttlaNode) -> int:
    return len(os.listdir(f"/proc/{node.pid}/fd"))


def push(sockets: list[socket.socket], size: int) -> None:
    """Send until every connection has sent its part or nobody is read any more."""
    left = {sock.fileno(): size for sock in sockets}
    by_fd = {sock.fileno(): sock for sock in sockets}
    filling = memoryview(bytes(MIB))
    with contextlib.closing(select.epoll()) as epoll:
        for sock in sockets:
            sock.setblocking(False)
            epoll.register(sock.fileno(), select.EPOLLOUT)
        while left and (writable := epoll.poll(0.3)):
            for fd, _ in writable:
                try:
                    left[fd] -= by_fd[fd].send(filling[: min(left[fd], len(filling))])
                except BlockingIOError:
                    continue
                except ConnectionError:  # it was given up for others that waited
                    left[fd] = 0
                if not left[fd]:
                    epoll.unregister(fd)
                    del left[fd]


@pytest.mark.parametrize(("count", "frame_bytes"), [(1000, FRAME_BYTES), (1000, 2 * MIB - 4)])
def test_a_thousand_half_frames(make_node: MakeNode, count: int, frame_bytes: int) -> None:
    with make_node() as node, ControlClient(node) as control:
        control.still_works()
        before = node.rss_bytes()
        with halfway(node, count, frame_bytes):
            control.still_works()
            assert node.peak_rss_bytes() - before <= BOUND_BYTES + OWN_BYTES
            assert node.peak_rss_bytes() - before >= frame_bytes  # otherwise nothing was tried
        # Kept are at most eight buffers of each size up to 2 MiB.
        kept = 8 * 4 * MIB
        wait_until(lambda: node.rss_bytes() - before <= kept + OWN_BYTES, 60, "the memory to be released")
        control.still_works()
        wait_until(lambda: open_files(node) < 100, 20, "the sockets to be closed")
        with RawClient(node) as client:
            large = Batch([Rec(b"x" * 900_000)]).encode()
            assert client.produce(client.create_topic("after"), 0, large)["error_code"] == "none"


def test_a_smaller_bound_may_be_set(make_node: MakeNode) -> None:
    settings = {"queued.max.request.bytes": 24 * MIB, "socket.request.max.bytes": 20 * MIB}
    with make_node(settings) as node, ControlClient(node) as control:
        control.still_works()
        before = node.rss_bytes()
        with halfway(node, 100, 20 * MIB):
            control.still_works()
            assert node.peak_rss_bytes() - before <= (24 + 20 + 2) * MIB + OWN_BYTES


def test_frames_that_stand_still_are_given_up_and_others_go_on(make_node: MakeNode) -> None:
    """While others wait for memory, a frame that brings nothing loses its place."""
    with make_node() as node, ControlClient(node) as control:
        with halfway(node, 20, FRAME_BYTES) as stuck:
            patient = RawClient(node, timeout_s=60)
            topic = patient.create_topic("patient", max_message_bytes=10_000_000)
            wait_until(lambda: GIVEN_UP in node.log_text(), 60, "the first one to be given up")
            with RawClient(node, timeout_s=60) as late:
                body = Batch([Rec(b"x" * 5_000_000)]).encode()
                assert late.produce(topic, 0, body)["error_code"] == "none"
            given_up = [line for line in node.log_text().splitlines() if GIVEN_UP in line]
            ports = {f":{sock.getsockname()[1]} " for sock in stuck}
            assert all(sum(port in line for line in given_up) <= 1 for port in ports)
            patient.close()
        control.still_works()


# -- clients that do not read


def flood(node: OttlaNode, request: bytes, connections: int, repeats: int) -> list[socket.socket]:
    """Connections that send the same request over and over and never read."""
    sockets = [node.connect() for _ in range(connections)]
    for sock in sockets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        sock.setblocking(False)
    for sock in sockets:
        with contextlib.suppress(BlockingIOError):
            sock.send(request * repeats)
    return sockets


def fetch_frame(topic: str, max_bytes: int) -> bytes:
    wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": max_bytes}]
    body = {"max_wait": 0, "min_bytes": 1, "max_bytes": max_bytes}
    return encode_request(1, 11, {**body, "topics": [{"topic": topic, "partitions": wanted}]})


@pytest.mark.parametrize("what", ["large fetches", "small fetches", "configurations"])
def test_readers_that_do_not_read(make_node: MakeNode, what: str) -> None:
    with make_node() as node, ControlClient(node) as control:
        with RawClient(node) as client:
            topic = client.create_topic("read-me")
            for _ in range(5):
                client.write(topic, 0, [b"x" * 900_000])
            small = client.create_topic("read-me-too")
            for _ in range(40):
                client.write(small, 0, [b"x" * 25_000])
        resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
        request = {
            "large fetches": fetch_frame(topic, 5_000_000),
            "small fetches": fetch_frame(small, 30_000),
            "configurations": encode_request(32, 4, {"resources": [resource], "include_documentation": True}),
        }[what]
        control.still_works()
        before = node.rss_bytes()
        # A configuration takes milliseconds to write down: fewer of these keep the others busy enough.
        connections = 10 if what == "configurations" else 50
        sockets = flood(node, request, connections, repeats=1500)
        control.still_works(5)
        assert node.peak_rss_bytes() - before <= connections * MIB + OWN_BYTES
        for sock in sockets:
            sock.close()
        control.still_works()


def test_a_slow_reader_gets_everything_in_the_end(make_node: MakeNode) -> None:
    with make_node() as node:
        with RawClient(node) as client:
            topic = client.create_topic("slow")
            for n in range(4):
                client.write(topic, 0, [bytes([n]) * 900_000])
            client.send(fetch_frame(topic, 4_000_000) * 20)
            with RawClient(node) as other:  # when others are answered, the answers above are stuck
                for _ in range(3):
                    other.send(HELLO)
                    other.receive()
            answers = {client.receive() for _ in range(20)}
        assert len(answers) == 1
        assert len(answers.pop()) > 3_500_000


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_small_batch_that_unpacks_to_much(make_node: MakeNode, codec: str) -> None:
    """Where a topic wants another codec the broker has to unpack: only so far."""
    giant = 600 * MIB
    packed = {
        "gzip": lambda: bytes(cramjam.gzip.compress(bytes(giant))),
        "snappy": lambda: varint_bytes(giant) + b"\x00" * 1000,  # claims a size that it does not have
        "lz4": lambda: bytes(cramjam.lz4.compress(bytes(giant))),
        "zstd": lambda: bytes(cramjam.zstd.compress(bytes(giant))),
    }[codec]()
    with make_node() as node, ControlClient(node) as control:
        with RawClient(node) as client:
            other = "gzip" if codec != "gzip" else "lz4"
            topic = client.create_topic("bombs", compression_type=other, max_message_bytes=8 * MIB)
            control.still_works()
            before = node.rss_bytes()
            bomb = Batch(codec=codec, raw_records=packed).encode()
            assert len(bomb) < 8 * MIB
            assert client.produce(topic, 0, bomb)["error_code"] != "none"
            assert client.end_offset(topic) == 0
            assert node.peak_rss_bytes() - before <= UNPACKED_BYTES + OWN_BYTES
        control.still_works()


def varint_bytes(value: int) -> bytes:
    """Unsigned, as snappy begins."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def test_storms_leave_nothing_behind(make_node: MakeNode) -> None:
    """Thousands of connections that come, misbehave and go: no memory, no descriptors stay."""
    storm = [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x40half", b"", HELLO, HELLO * 3 + b"\xff" * 9]
    with make_node() as node:

        def blow(times: int) -> None:
            for n in range(times):
                with RawClient(node) as client:
                    client.send(storm[n % len(storm)])

        with RawClient(node) as client:
            import_all(client)
        blow(500)
        wait_until(lambda: open_files(node) < 60, 20, "the first sockets to be closed")
        before = node.rss_bytes()
        blow(5000)
        wait_until(lambda: open_files(node) < 60, 20, "the sockets to be closed")
        assert node.rss_bytes() - before <= 8 * MIB


def test_long_polls_of_clients_that_left(make_node: MakeNode) -> None:
    with make_node() as node, RawClient(node) as client:
        topic = client.create_topic("quiet")
        weeks = encode_request(
            1,
            11,
            {
                "max_wait": 2**31 - 1,
                "min_bytes": 1,
                "max_bytes": 1000,
                "topics": [{"topic": topic, "partitions": [{"partition": 0, "partition_max_bytes": 1000}]}],
            },
        )

        def ask_and_leave(times: int) -> None:
            for _ in range(times):
                with RawClient(node) as impatient:
                    impatient.send(weeks)
            wait_until(lambda: open_files(node) < 60, 20, "the sockets to be closed")

        import_all(client)
        ask_and_leave(200)
        before = node.rss_bytes()
        ask_and_leave(3000)
        assert node.rss_bytes() - before <= 6 * MIB
        assert client.write(topic, 0, [b"at last"]) == 0


# -- how many may come, and how long they may stay


def test_idle_connections_are_closed_and_busy_ones_are_not(make_node: MakeNode) -> None:
    with make_node({"connections.max.idle.ms": 2000}) as node, ControlClient(node) as control:
        with RawClient(node) as idle:
            assert idle.is_closed()
            assert [
                line for line in node.log_text().splitlines() if f":{idle.port} " in line and "idle" in line
            ]
        control.still_works()


@pytest.mark.parametrize("key", ["max.connections", "max.connections.per.ip"])
def test_connections_are_counted(make_node: MakeNode, key: str) -> None:
    with make_node({key: 10}) as node:
        friends = [_admitted(node) for _ in range(10)]
        for _ in range(5):
            with RawClient(node) as stranger:
                assert not _answers(stranger)
        assert all(_answers(friend) for friend in friends)
        friends.pop().close()
        friends.append(_admitted(node))
        for friend in friends:
            friend.close()
        refusals = [line for line in node.log_text().splitlines() if f"{key} is 10" in line]
        assert len(refusals) == 1, refusals


def test_a_listener_has_a_limit_of_its_own_and_brokers_find_a_place(make_node: MakeNode) -> None:
    """Clients fill the broker; whoever comes in by the inter-broker listener takes the place of one of them."""
    ports = free_ports(3)
    settings = {
        "listeners": "CLIENTS://127.0.0.1:{},BROKERS://127.0.0.1:{},CONTROLLER://127.0.0.1:{}".format(*ports),
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "BROKERS",
        "max.connections": 4,
        "listener.name.brokers.max.connections": 2,
    }
    with make_node(settings) as node:
        clients = [_admitted(node, ports[0]) for _ in range(4)]
        with RawClient(node, port=ports[0]) as stranger:
            assert not _answers(stranger)
        brokers = [_admitted(node, ports[1]) for _ in range(2)]
        with RawClient(node, port=ports[1]) as stranger:
            assert not _answers(stranger)
        _admitted(node, ports[2]).close()  # the controller's are counted apart
        assert [_answers(client) for client in clients] == [False, False, True, True]
        assert all(map(_answers, brokers))
        for client in (*clients, *brokers):
            client.close()


def _admitted(node: OttlaNode, port: int | None = None) -> RawClient:
    """A connection that is let in, when those who left before it are forgotten."""
    found: list[RawClient] = []

    def try_once() -> bool:
        client = RawClient(node, port=port)
        if not _answers(client):
            client.close()
            return False
        found.append(client)
        return True

    wait_until(try_once, 20, "a place")
    return found[0]


def _answers(client: RawClient) -> bool:
    try:
        client.send(HELLO)
        return len(client.receive()) > 0
    except ConnectionError:
        return False


def test_one_request_that_asks_for_very_much(make_node: MakeNode) -> None:
    """What it costs grows with what it asks for, and no faster."""
    with make_node() as node, ControlClient(node) as control, RawClient(node, timeout_s=60) as client:
        names = [{"name": f"nobody-{n}"} for n in range(100_000)]
        client.send(encode_request(METADATA, 9, {"topics": names, "allow_auto_topic_creation": False}))
        assert len(client.receive()) > 1_000_000
        resources = [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}] * 300
        client.send(encode_request(32, 4, {"resources": resources}))
        assert len(client.receive()) > 1_000_000
        control.still_works()


@pytest.mark.parametrize(("key", "version"), [(METADATA, 9), (1, 12)])
def test_a_request_of_millions_of_elements(make_node: MakeNode, key: int, version: int) -> None:
    """As objects it would be twenty times its size: it is refused before it becomes any."""
    with make_node() as node, ControlClient(node) as control:
        control.still_works()
        before = node.rss_bytes()
        with RawClient(node) as client:
            elements = b"\x02a\x00" * 10_000_000
            client.send(frame(header_bytes(key, version, 1, "x", True) + elements))
            assert client.is_closed()
            lines = [line for line in node.log_text().splitlines() if f":{client.port} " in line]
        assert len(lines) == 1, lines
        assert node.peak_rss_bytes() - before <= 2 * len(elements) + OWN_BYTES
        control.still_works()


def test_a_large_request_is_answered_in_its_turn(make_node: MakeNode) -> None:
    """What is decoded in a thread keeps its place between the requests before and after it."""
    names = [{"name": f"nobody-{n}"} for n in range(30_000)]
    large = encode_request(
        METADATA, 9, {"topics": names, "allow_auto_topic_creation": False}, correlation_id=2
    )
    with make_node() as node, RawClient(node) as client:
        small = [encode_request(METADATA, 9, {"topics": []}, correlation_id=n) for n in (1, 3)]
        client.send(small[0] + large + small[1])
        assert [struct.unpack(">i", client.receive()[:4])[0] for _ in range(3)] == [1, 2, 3]
