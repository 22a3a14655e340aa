"""The driver of the inline client: sockets and a selector, turned by whoever waits.

A link is one connection on its way through connecting, the TLS handshake and its use; all of it without blocking,
except for the look-up of a host's name and the slow steps of a login. The driver's clock stands still while nobody
turns it: what a caller does with one answer takes nothing from the time that the next one has. Owned by one client, in
one thread of one process.
"""

import errno
import selectors
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum

from ottla.model.errors import KafkaError
from ottla.net.errors import Closed, StateError
from ottla.net.transport import (
    MIN_TIMER_MS,
    Action,
    Connect,
    Core,
    Work,
    Write,
    monotonic_ms,
    reason_of,
)

Predicate = Callable[[], bool]

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_IN_PROGRESS = frozenset({0, errno.EINPROGRESS, errno.EWOULDBLOCK})
# One call of sendmsg takes no more pieces than this anywhere.
_MAX_PIECES = 64
# So many reads of one link before the others and the core get their turn.
_READS_A_TURN = 16

Endpoint = tuple[int, int, int, tuple[object, ...]]  # family, type, protocol, address


class Stage(Enum):
    """Where a link is in its life."""

    CONNECTING = "connecting"
    HANDSHAKE = "in the TLS handshake"
    OPEN = "open"


class Link:
    """One connection."""

    __slots__ = ("endpoints", "events", "host", "number", "out", "sock", "stage")

    def __init__(self, number: int, host: str, endpoints: Sequence[Endpoint]) -> None:
        self.number = number
        self.host = host
        self.endpoints = deque(endpoints)  # those not tried yet
        self.sock: socket.socket | None = None
        self.stage = Stage.CONNECTING
        self.out: deque[memoryview] = deque()
        self.events = 0


class InlineDriver:
    """Drives one core in its caller's thread, while the caller waits."""

    def __init__(self, core: Core, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self.core = core
        self._ssl = ssl_context
        self._selector = selectors.DefaultSelector()
        self._links: dict[int, Link] = {}
        self._closed = False
        self._more_is_due = False
        self._away_ms = 0.0
        self._stopped_at: float | None = monotonic_ms()

    # -- turning --------------------------------------------------------------------------------------

    def until(self, predicate: Predicate, timeout_ms: float) -> bool:
        """Turn until the predicate holds; False if the time ran out first."""
        deadline = self.now_ms() + timeout_ms
        with self._running():
            while True:
                now = self._poll()
                if predicate():
                    return True
                if now >= deadline:
                    return False
                self._wait(min(self.core.next_deadline(now), deadline) - now)

    def turn(self) -> None:
        """Do what is due and take in what has come, without waiting."""
        with self._running():
            self._poll()
            self._wait(0.0)
            self._poll()

    def now_ms(self) -> float:
        """The time as the core knows it."""
        return (monotonic_ms() if self._stopped_at is None else self._stopped_at) - self._away_ms

    @contextmanager
    def _running(self) -> Iterator[None]:
        if self._stopped_at is None:
            raise StateError("the client is in the middle of another call: it is for one thread at a time")
        self._away_ms += monotonic_ms() - self._stopped_at
        self._stopped_at = None
        try:
            yield
        finally:
            self._stopped_at = monotonic_ms()

    def _poll(self) -> float:
        if self._closed:
            raise Closed()
        while True:
            now = self.now_ms()
            self._more_is_due = False
            for action in self.core.poll(now):
                self._perform(action)
            if not self._more_is_due:
                return now  # otherwise what follows from that is due now, and no timer will say so

    def _wait(self, timeout_ms: float) -> None:
        timeout_s = 0.0 if timeout_ms <= 0 else max(timeout_ms, MIN_TIMER_MS) / 1000.0
        # Not for ever: a deadline may be infinite, and an interrupt is to be noticed on every system.
        for key, events in self._selector.select(min(timeout_s, 60.0)):
            link: Link = key.data
            if self._links.get(link.number) is link:
                self._on_events(link, events)

    # -- what the core wants --------------------------------------------------------------------------

    def _perform(self, action: Action) -> None:
        if isinstance(action, Connect):
            self._connect(action)
            return
        if isinstance(action, Work):
            self._work(action)
            return
        link = self._links.get(action.link)
        if link is None:
            return
        if isinstance(action, Write):
            link.out.extend(memoryview(chunk) for chunk in action.chunks)
            self._write(link)
        else:
            self._drop(link)

    def _work(self, action: Work) -> None:
        result, failure = None, None
        try:
            result = action.function()
        except (KafkaError, OSError) as error:
            failure = error
        self._more_is_due = True
        self.core.on_worked(action.link, result, failure, self.now_ms())

    def _connect(self, action: Connect) -> None:
        try:
            found = socket.getaddrinfo(action.host, action.port, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:  # the latter of what cannot be a name
            self._lost(action.link, reason_of(error))
            return
        endpoints = [(family, kind, proto, address) for family, kind, proto, _, address in found]
        link = self._links[action.link] = Link(action.link, action.host, endpoints)
        self._try_next(link, "no address")

    def _try_next(self, link: Link, reason: str) -> None:
        """Call the link's next address; without one it has failed for this reason."""
        while link.endpoints:
            family, kind, proto, address = link.endpoints.popleft()
            try:
                link.sock = sock = socket.socket(family, kind, proto)
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                code = sock.connect_ex(address)
                if code not in _IN_PROGRESS:
                    raise OSError(code, "")
                self._selector.register(sock, _WRITE, link)
                link.events = _WRITE
                return
            except OSError as error:
                reason = reason_of(error)
                self._release(link)
        self._fail(link, reason)

    # -- what happens ---------------------------------------------------------------------------------

    def _on_events(self, link: Link, events: int) -> None:
        try:
            if link.stage is Stage.CONNECTING:
                self._on_connected(link)
            elif link.stage is Stage.HANDSHAKE:
                self._shake_hands(link)
            else:
                if events & _WRITE:
                    self._write(link)
                if events & _READ and link.sock is not None:
                    self._read(link)
        except OSError as error:
            during = "in the TLS handshake: " if link.stage is Stage.HANDSHAKE else ""
            self._fail(link, during + reason_of(error))

    def _on_connected(self, link: Link) -> None:
        sock = link.sock
        assert sock is not None
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        reason = reason_of(OSError(code, "")) if code else ""
        if not code and sock.getsockname() == sock.getpeername():
            # Nobody listens, and by chance TCP gave us the very port we called: a conversation with ourselves,
            # which keeps the broker from its port when it comes back.
            reason = "connection refused"
        if reason:
            self._release(link)
            self._try_next(link, reason)
        elif self._ssl is None:
            self._opened(link)
        else:
            self._begin_tls(link, sock, self._ssl)

    def _begin_tls(self, link: Link, sock: socket.socket, context: ssl.SSLContext) -> None:
        link.stage = Stage.HANDSHAKE
        self._selector.unregister(sock)
        link.events = 0
        link.sock = context.wrap_socket(sock, server_hostname=link.host, do_handshake_on_connect=False)
        self._shake_hands(link)

    def _shake_hands(self, link: Link) -> None:
        assert isinstance(link.sock, ssl.SSLSocket)
        try:
            link.sock.do_handshake()
        except ssl.SSLWantReadError:
            self._listen(link, _READ)
        except ssl.SSLWantWriteError:
            self._listen(link, _WRITE)
        else:
            self._opened(link)

    def _opened(self, link: Link) -> None:
        link.stage = Stage.OPEN
        link.endpoints.clear()
        if self.core.on_connected(link.number, self.now_ms()):
            self._listen(link, _READ)
        else:
            self._drop(link)

    def _read(self, link: Link) -> None:
        """Take what has come, up to a bound, straight into the buffers of the frames it belongs to."""
        for _ in range(_READS_A_TURN):
            room = self.core.buffer(link.number)
            if room is None or link.sock is None:
                return
            try:
                count = link.sock.recv_into(room)
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if count == 0:
                self._fail(link, "closed by the broker")
                return
            self.core.on_filled(link.number, count, self.now_ms())
            if count < len(room) and not _has_more(link.sock):
                return

    def _write(self, link: Link) -> None:
        """Send what the socket takes; the rest when it takes more."""
        sock, out = link.sock, link.out
        if sock is None or link.stage is not Stage.OPEN:
            return
        try:
            while out:
                _forget_sent(out, _send(sock, out))
        except (BlockingIOError, InterruptedError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            self._listen(link, _READ | _WRITE)
            return
        except OSError as error:
            self._fail(link, reason_of(error))
            return
        self._listen(link, _READ)

    # -- the end --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every connection; what waits fails with Closed."""
        if self._closed:
            return
        self._closed = True
        for action in self.core.close(self.now_ms()):
            self._perform(action)
        for link in list(self._links.values()):
            self._drop(link)
        self._selector.close()

    def close_after_fork(self) -> None:
        """Let go of what a fork has copied, without a word to the brokers and without touching the parent's."""
        self._closed = True
        for link in self._links.values():
            if link.sock is not None:
                link.sock.close()
        self._links.clear()
        self._selector.close()

    def _fail(self, link: Link, reason: str) -> None:
        self._drop(link)
        self._lost(link.number, reason)

    def _lost(self, number: int, reason: str) -> None:
        self._more_is_due = True
        self.core.on_disconnected(number, reason, self.now_ms())

    def _drop(self, link: Link) -> None:
        self._links.pop(link.number, None)
        self._release(link)

    def _release(self, link: Link) -> None:
        sock, link.sock = link.sock, None
        if sock is None:
            return
        if link.events:
            self._selector.unregister(sock)
            link.events = 0
        sock.close()

    def _listen(self, link: Link, events: int) -> None:
        assert link.sock is not None
        if link.events == events:
            return
        if link.events:
            self._selector.modify(link.sock, events, link)
        else:
            self._selector.register(link.sock, events, link)
        link.events = events


def _has_more(sock: socket.socket) -> bool:
    """TLS hands out one record at a time: the rest of what it has decrypted wakes no selector."""
    return isinstance(sock, ssl.SSLSocket) and sock.pending() > 0


def _send(sock: socket.socket, out: deque[memoryview]) -> int:
    if isinstance(sock, ssl.SSLSocket) or len(out) == 1:
        return sock.send(out[0])
    return sock.sendmsg([out[index] for index in range(min(len(out), _MAX_PIECES))])


def _forget_sent(out: deque[memoryview], count: int) -> None:
    while count:
        first = out.popleft()
        if count < len(first):
            out.appendleft(first[count:])
            return
        count -= len(first)
