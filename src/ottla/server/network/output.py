"""What a request is answered with (Reply, Deferred), and how it goes out: bytes and slices of log files, in order.

A handler answers with a Reply that is there, with a Deferred, which whoever promised it resolves on the loop, or with a
coroutine. Sending never blocks.

A plain socket is written through a duplicate of its descriptor, by our own calls: that way `sendfile` and
ordinary bytes share one queue, answers of one read are gathered in one `writev`, and nothing has to wait for a
transport to drain. (The event loop refuses a second writer on a transport's own descriptor; on a copy it does
not.) TLS has an Output of its own (see tls.py).

Owner: one Output per connection, on the broker's loop.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

# Below this a pread and one gathered write are cheaper than a sendfile of its own (measured).
SENDFILE_MIN_BYTES = 32 * 1024
MAX_IOVECS = 64
# What is read ahead of a peer that may not take it.
MAX_GATHERED_BYTES = 256 * 1024


class Slice(Protocol):
    """A range of a log file; its descriptor is good for as long as the object lives."""

    @property
    def fd(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def length(self) -> int: ...
    def read(self) -> bytes: ...


IN_MEMORY = (bytes, bytearray, memoryview)
_FRAME = (bytes, bytearray)
Chunk = bytes | Slice
Reply = bytes | bytearray | list[Chunk]


class Deferred:
    """An answer that comes later; `resolve` may be called once, from the loop."""

    __slots__ = ("_then", "done", "on_abandoned", "ready_bytes", "reply")

    def __init__(self) -> None:
        self.done = False
        self.ready_bytes = 0  # what an answer that has to wait for an earlier one holds in memory
        self.reply: Reply | None = None
        self._then: Callable[[Reply | None], None] | None = None
        self.on_abandoned: Callable[[], None] | None = None

    def resolve(self, reply: Reply | None) -> None:
        assert not self.done, "an answer is given once"
        self.done = True
        self.reply = reply
        if self._then is not None:
            self._then(reply)

    def then(self, callback: Callable[[Reply | None], None]) -> None:
        """Call back when it is there, at once if it is."""
        if self.done:
            callback(self.reply)
        else:
            self._then = callback

    def abandon(self) -> None:
        """The client is gone: whoever waits on its behalf may stop, and so give back what the wait holds."""
        self._then = None
        if not self.done and self.on_abandoned is not None:
            self.on_abandoned()


# None: the request gets no answer.
Answer = Reply | Deferred | Coroutine[Any, Any, Reply | None] | None


def memory_bytes(reply: Reply) -> int:
    """What an answer takes of our memory; slices of files take none."""
    if not isinstance(reply, list):
        return len(reply)
    return sum(len(chunk) for chunk in reply if isinstance(chunk, bytes))


class Output(Protocol):
    """The sending half of a connection."""

    @property
    def blocked(self) -> bool:
        """True while the peer has not taken what was given before."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """How much memory is given and not yet flushed."""
        ...

    def write(self, reply: Reply) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class SocketOutput:
    """Writes a plain socket: gathered writes for bytes, sendfile for large slices."""

    # Smaller slices are read whole.
    _sendfile_min_bytes = SENDFILE_MIN_BYTES

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_drained: Callable[[], None],
        on_error: Callable[[OSError], None],
    ) -> None:
        self._loop = loop
        self._fd = os.dup(sock.fileno())
        self._queue: deque[bytes | bytearray | memoryview | Slice | Sending] = deque()
        self._on_drained = on_drained
        self._on_error = on_error
        self.blocked = False
        self.unsent_bytes = 0
        self._watched = False  # the loop calls _on_writable when the socket is writable
        self._closed = False

    def write(self, reply: Reply) -> None:
        if isinstance(reply, _FRAME):
            self._queue.append(reply)
            self.unsent_bytes += len(reply)
            return
        for chunk in reply:
            if isinstance(chunk, bytes):
                if chunk:  # what follows the last slice may be nothing
                    self._queue.append(chunk)
                    self.unsent_bytes += len(chunk)
            elif chunk.length < self._sendfile_min_bytes:
                self._queue.append(chunk)
            else:
                self._queue.append(Sending(chunk))

    def flush(self) -> None:
        """Send what the socket takes now; the rest goes when it is writable again."""
        if self.blocked or self._closed:
            return
        self.unsent_bytes = 0
        try:
            if not self._send():
                self.blocked = True
                if not self._watched:
                    self._watched = True
                    self._loop.add_writer(self._fd, self._on_writable)
        except OSError as error:
            self._on_error(error)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._watched:
            self._loop.remove_writer(self._fd)
        self._queue.clear()
        # A ring of connection and output would wait for the garbage collector.
        self._on_drained = self._on_error = _ignore
        os.close(self._fd)

    def _on_writable(self) -> None:
        try:
            drained = self._send()
        except OSError as error:
            self._on_error(error)
            return
        if drained:
            self.blocked = False
            # What waited is served now and often fills the socket again: then the loop goes on watching it.
            self._on_drained()
            if not self.blocked and not self._closed:
                self._watched = False
                self._loop.remove_writer(self._fd)

    def _send(self) -> bool:
        """True when the queue is empty, False when the socket is full."""
        queue = self._queue
        try:
            while queue:
                head = queue[0]
                if isinstance(head, Sending):
                    head.send(self._fd)
                    queue.popleft()
                elif isinstance(head, IN_MEMORY) and (len(queue) == 1 or isinstance(queue[1], Sending)):
                    sent = os.write(self._fd, head)
                    if sent == len(head):
                        queue.popleft()
                    else:
                        queue[0] = memoryview(head)[sent:]
                else:
                    self._send_gathered()
        except BlockingIOError:
            return False
        return True

    def _send_gathered(self) -> None:
        """One write of many small chunks; slices are read now and not when they are queued, because a peer
        that does not read would otherwise hold all of them in our memory."""
        queue = self._queue
        batch: list[bytes | bytearray | memoryview] = []
        size = 0
        for chunk in queue:
            if isinstance(chunk, Sending) or len(batch) == MAX_IOVECS or size >= MAX_GATHERED_BYTES:
                break
            data = chunk if isinstance(chunk, IN_MEMORY) else _read_whole(chunk)
            batch.append(data)
            size += len(data)
        sent = os.writev(self._fd, batch)
        for data in batch:
            if sent < len(data):
                queue[0] = memoryview(data)[sent:]
                return
            sent -= len(data)
            queue.popleft()


def _ignore(*_: object) -> None:
    """The callbacks of an output that is closed."""


def _read_whole(chunk: Slice) -> bytes:
    data = chunk.read()
    if len(data) != chunk.length:
        raise _ended_early(chunk.length - len(data))
    return data


def _ended_early(missing_bytes: int) -> OSError:
    # The file is shorter than the response has promised: closing the connection is the only way to report it.
    return ConnectionAbortedError(f"log file ended {missing_bytes} bytes early")


class Sending:
    """A slice on its way out, and how far it got."""

    __slots__ = ("end", "position", "slice")

    def __init__(self, slice_: Slice) -> None:
        self.slice = slice_
        self.position = slice_.position
        self.end = slice_.position + slice_.length

    def send(self, fd: int) -> None:
        """Send to the end, or raise BlockingIOError with the position kept."""
        while self.position < self.end:
            sent = os.sendfile(fd, self.slice.fd, self.position, self.end - self.position)
            if sent == 0:
                raise _ended_early(self.end - self.position)
            self.position += sent

    def read_into(self, room: memoryview) -> int:
        """As much of it as there is room for, or what is left; how much it was, and the position moves on."""
        wanted = min(len(room), self.end - self.position)
        got = os.preadv(self.slice.fd, [room[:wanted]], self.position)
        if got < wanted:
            raise _ended_early(self.end - self.position - got)
        self.position += wanted
        return wanted
