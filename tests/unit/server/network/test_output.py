"""What goes out on a socket: order, small and large slices, and peers that do not read."""

import asyncio
import contextlib
import gc
import os
import socket
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from ottla.server.network.output import SENDFILE_MIN_BYTES, Chunk, SocketOutput


class FileSlice:
    """A slice that counts how often it is read."""

    def __init__(self, fd: int, position: int, length: int) -> None:
        self.fd = fd
        self.position = position
        self.length = length
        self.reads = 0

    def read(self) -> bytes:
        self.reads += 1
        return os.pread(self.fd, self.length, self.position)


@pytest.fixture
def log_file(tmp_path: Path) -> int:
    path = tmp_path / "0.log"
    path.write_bytes(os.urandom(1_000_000))
    return os.open(path, os.O_RDONLY)


def with_output(scenario: Callable[[SocketOutput, socket.socket, list[OSError]], None]) -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        failures: list[OSError] = []
        output = SocketOutput(asyncio.get_running_loop(), ours, lambda: None, failures.append)
        with ours, theirs:
            try:
                scenario(output, theirs, failures)
            finally:
                output.close()

    asyncio.run(run())


def received(sock: socket.socket, size: int) -> bytes:
    sock.settimeout(20)
    data = bytearray()
    while len(data) < size:
        data += sock.recv(size - len(data))
    return bytes(data)


def test_bytes_and_slices_of_both_kinds_keep_their_order(log_file: int) -> None:
    def scenario(output: SocketOutput, peer: socket.socket, failures: list[OSError]) -> None:
        whole = os.pread(log_file, 1_000_000, 0)
        small, large = FileSlice(log_file, 10, 500), FileSlice(log_file, 5000, SENDFILE_MIN_BYTES)
        reply: list[Chunk] = [b"head", small, b"", large, b"tail", FileSlice(log_file, 0, 0), small]
        output.write(reply)
        output.flush()
        expected = b"head" + whole[10:510] + whole[5000 : 5000 + SENDFILE_MIN_BYTES] + b"tail" + whole[10:510]
        assert received(peer, len(expected)) == expected
        assert not output.blocked
        assert not failures

    with_output(scenario)


def test_a_lone_small_slice_is_sent(log_file: int) -> None:
    def scenario(output: SocketOutput, peer: socket.socket, failures: list[OSError]) -> None:
        output.write([FileSlice(log_file, 3, 100)])
        output.flush()
        assert received(peer, 100) == os.pread(log_file, 100, 3)

    with_output(scenario)


def test_small_slices_are_not_read_for_a_peer_that_does_not_take_them(log_file: int) -> None:
    def scenario(output: SocketOutput, peer: socket.socket, failures: list[OSError]) -> None:
        slices = [FileSlice(log_file, n * 100, 30_000) for n in range(2000)]
        output.write([b"head", *slices])
        assert sum(piece.reads for piece in slices) == 0
        output.flush()
        assert output.blocked
        assert sum(piece.reads for piece in slices) < 200

    with_output(scenario)


@pytest.mark.parametrize("length", [1000, SENDFILE_MIN_BYTES])
def test_a_file_that_ends_early_is_an_error_and_not_a_short_answer(log_file: int, length: int) -> None:
    def scenario(output: SocketOutput, peer: socket.socket, failures: list[OSError]) -> None:
        output.write([b"head", FileSlice(log_file, 1_000_000 - 10, length)])
        output.flush()
        assert [type(failure) for failure in failures] == [ConnectionAbortedError]

    with_output(scenario)


def test_a_frame_in_a_bytearray_goes_out_whole_to_a_peer_that_takes_it_in_pieces() -> None:
    frames = [bytearray(os.urandom(700_000)) for _ in range(3)]

    async def run() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        output = SocketOutput(loop, ours, lambda: None, lambda error: None)
        with ours, theirs:
            for frame in frames:
                output.write(frame)
            output.flush()
            assert output.blocked
            data = bytearray()
            while len(data) < 2_100_000:
                data += await loop.sock_recv(theirs, 50_000)
            output.close()
        assert data == b"".join(frames)

    asyncio.run(run())


class CountingLoop:
    """Whoever watches the socket, and how often that began and ended."""

    def __init__(self) -> None:
        self.on_writable: Callable[[], None] | None = None
        self.began = self.ended = 0

    def add_writer(self, fd: int, callback: Callable[[], None]) -> None:
        self.on_writable = callback
        self.began += 1

    def remove_writer(self, fd: int) -> None:
        self.on_writable = None
        self.ended += 1


def test_a_socket_that_fills_again_when_it_has_drained_is_watched_all_along() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    loop = CountingLoop()
    more = [bytes(1_000_000), bytes(1_000_000), b"the end"]

    def drained() -> None:
        output.write(more.pop(0))
        output.flush()

    output = SocketOutput(cast("asyncio.AbstractEventLoop", loop), ours, drained, lambda error: None)
    with ours, theirs:
        drained()
        while loop.on_writable is not None:
            with contextlib.suppress(BlockingIOError):
                theirs.recv(1 << 20)
            loop.on_writable()
        assert not more
        assert (loop.began, loop.ended) == (1, 1)
        output.close()
    assert loop.ended == 1


def test_a_closed_output_lets_its_connection_go_without_the_garbage_collector() -> None:
    class Owner:
        def __init__(self, sock: socket.socket) -> None:
            self.output = SocketOutput(loop, sock, self.drained, self.failed)

        def drained(self) -> None: ...

        def failed(self, error: OSError) -> None: ...

    loop = asyncio.new_event_loop()
    here, there = socket.socketpair()
    with here, there:
        gc.disable()
        try:
            owner = Owner(here)
            gone = weakref.ref(owner)
            owner.output.close()
            del owner
            assert gone() is None
        finally:
            gc.enable()
            loop.close()
