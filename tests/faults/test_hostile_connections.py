"""Connections that announce frames and hardly send them: others are answered within a second, memory stays bounded.

The bounds are in docs/operations.md.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
from collections.abc import Iterator, Sequence

import pytest
from tests.faults.conftest import MakeNode
from tests.faults.test_memory import GIVEN_UP, import_all
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.support.control import ControlClient
from tests.support.raw_client import RawClient, produce_frame

MIB = 1024 * 1024
ANNOUNCED_BYTES = 2 * MIB - 4
HEAD = struct.pack(">ihhih", ANNOUNCED_BYTES, 0, 9, 1, -1)
# Growth of the process that has nothing to do with frames.
OWN_BYTES = 32 * MIB
ORDINARY_BYTES = 128 * MIB
KEPT_BYTES = 32 * MIB

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")


@contextlib.contextmanager
def started(make_node: MakeNode) -> Iterator[OttlaNode]:
    """A broker that has imported all its code: nobody waits for that."""
    with make_node() as node:
        with RawClient(node) as client:
            import_all(client)
        yield node


@contextlib.contextmanager
def trickling(sockets: Sequence[socket.socket], pause_s: float = 0.05) -> Iterator[None]:
    """A byte on each of them, again and again: none is ever silent."""
    stop = threading.Event()

    def trickle() -> None:
        while not stop.wait(pause_s):
            for sock in sockets:
                with contextlib.suppress(OSError):  # the broker may have had enough of it, or read nothing
                    sock.send(b"x", socket.MSG_DONTWAIT)

    thread = threading.Thread(target=trickle, name="trickle")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def begun(node: OttlaNode, count: int, sent_bytes: int) -> Iterator[list[socket.socket]]:
    """Connections that have sent so much of a frame, or as much of it as the broker takes."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(node.connect()) for _ in range(count)]
        rest = bytes(sent_bytes)
        for sock in sockets:
            sock.sendall(HEAD)
            sock.settimeout(0.2)
            with contextlib.suppress(OSError):
                sock.sendall(rest)
            sock.setblocking(False)
        yield sockets


@pytest.mark.parametrize("count", [64, 500])
def test_frames_that_are_announced_and_trickle(make_node: MakeNode, count: int) -> None:
    with started(make_node) as node, ControlClient(node, body_bytes=300_000) as control:
        control.still_works()
        before = node.rss_bytes()
        with begun(node, count, 0) as sockets, trickling(sockets):
            control.was_served_promptly(20)
            assert node.peak_rss_bytes() - before <= KEPT_BYTES + OWN_BYTES
            assert not any(is_closed(sock) for sock in sockets)  # they are slow, and in nobody's way


def test_frames_that_are_nearly_there_and_trickle(make_node: MakeNode) -> None:
    """They hold all the memory there is for frames: as many of them as are needed make room, at once."""
    with started(make_node) as node, ControlClient(node, body_bytes=300_000) as control:
        control.still_works()
        before = node.rss_bytes()
        with begun(node, 80, ANNOUNCED_BYTES - 10_000) as sockets, trickling(sockets):
            wait_until(lambda: GIVEN_UP in node.log_text(), 30, "the memory to be all taken")
            control.was_served_promptly(10)
            assert node.peak_rss_bytes() - before <= ORDINARY_BYTES + KEPT_BYTES + OWN_BYTES
            assert sum(map(is_closed, sockets)) < len(sockets) // 2  # and no more of them


def test_a_large_upload_beside_them_comes_through(make_node: MakeNode) -> None:
    """It takes its time, but it goes on: the room it has is not taken from it."""
    with make_node() as node, RawClient(node, timeout_s=60) as client:
        topic = client.create_topic("upload", max_message_bytes=50_000_000)
        request = produce_frame(topic, 0, Batch([Rec(bytes(30_000_000))]).encode())
        head = struct.pack(">ihhih", 100_000_000, 0, 9, 1, -1)
        with contextlib.ExitStack() as stack:
            giants = [stack.enter_context(node.connect()) for _ in range(8)]
            for sock in giants:
                sock.sendall(head)
                sock.settimeout(0.2)
                with contextlib.suppress(OSError):
                    sock.sendall(bytes(60_000_000))
            with trickling(giants):
                for begin in range(0, len(request), MIB):
                    client.send(request[begin : begin + MIB])
                assert client.receive()
                assert client.end_offset(topic) == 1


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1, socket.MSG_DONTWAIT) == b""
    except (BlockingIOError, TimeoutError):
        return False
    except ConnectionError:
        return True
