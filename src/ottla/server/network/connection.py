"""One client connection: frames in, answers out, in order, with bounded memory.

Reading. All connections of a loop read into one shared buffer, because a read and the handling of what it
brought are one step of the loop: whole frames are served from it in place, without a copy. Only the rest, a
frame that is not all there yet, moves to a buffer of its own from the FramePool.

Order. Requests start in the order they came. One whose answer is not there yet leaves a Deferred in the line,
and later requests go on: a long poll holds up neither the produce behind it nor its append. A handler that is
a coroutine holds the line until it ends, because its effects may come late. Answers leave in the order of the
requests, always.

Loss. What was received whole is processed, also when the client is gone by then: a handler that runs goes on to its
end, and so does what waits behind it. Only answers are not waited for any more. What a client sent before we closed
the connection ourselves, and was not begun, is dropped, as Kafka does.

Quotas. Whoever has used too much is not served for a while (`throttle`), and then not read: its answers still leave,
and one timer ends it. A connection that came too early for its listener's rate begins like that. Where time is limited,
what was read at once is measured at once: from `last_active` until its answers are sent or wait to be.

Back-pressure. While the peer does not take its answers, or too many of them are outstanding, or a handler
holds the line, nothing more is served and then nothing more is read: the client's socket fills, not our memory.
A client that sends many requests at once takes turns with the others: its frames wait when its time is up. So do
those of many clients that all send at once (see Turns). A frame that a handler works on beside the loop is counted
in the pool until the handler ends or says that it has decoded it.

A frame is valid until the handler returns or first awaits; what is needed longer is copied by who needs it.

Owner: the broker's event loop.
"""

import asyncio
import logging
import socket
import struct
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from ottla.model.errors import KafkaError
from ottla.model.tasks import guarded, report, spawn
from ottla.model.time_slice import PacedCalls
from ottla.security.authorizer import Decisions
from ottla.security.principal import (
    ANONYMOUS,
    AuthenticationContext,
    KafkaPrincipal,
    KafkaPrincipalBuilder,
    build_principal,
)
from ottla.server.network.frame_pool import FramePool, Lease
from ottla.server.network.output import (
    Answer,
    Deferred,
    Output,
    Reply,
    SocketOutput,
    memory_bytes,
)

if TYPE_CHECKING:
    from ottla.security.audit import AuditLog

log = logging.getLogger("ottla.server")

TURN_S: Final = 0.005
# Between two reads of one turn there is no more than a system call.
PAUSE_S: Final = 0.001

SHARED_BUFFER_BYTES = 256 * 1024
# After a large frame the next one is probably large too: read only its first bytes into the shared buffer,
# so that little is copied to the buffer it gets of its own.
PEEK_BYTES = 4 * 1024
LARGE_FRAME_BYTES = SHARED_BUFFER_BYTES
# While frames wait for memory, what is read of another one has to be held: a batch of the usual size is served still.
CONTENDED_READ_BYTES = 20 * 1024
# Kafka's clients keep 5 requests in flight; these are for those that do not.
MAX_OUTSTANDING = 100
MAX_READY_BYTES = 1024 * 1024
UNSENT_BYTES = 256 * 1024
# The smallest request: api key, version, correlation id, and a null client id.
MIN_FRAME_BYTES = 8
# Of what the log says about a connection that is closed.
MAX_REASON_LENGTH = 500

# How a TLS client begins to speak: a record of its handshake, in whatever version.
TLS_HANDSHAKE = 0x1603

_SIZE = struct.Struct(">i")
_NOTHING = memoryview(b"")
_READY = (bytes, bytearray, list)


class Listener(StrEnum):
    """The two kinds of listener, each with an API set of its own."""

    BROKER = "broker"
    CONTROLLER = "controller"


class Turns:
    """How long requests may hold the loop in one turn, whoever sent them; a listener has one for its connections.

    A thousand members of a group that send at once are a thousand sockets ready in one poll, and the loop would serve
    them all before it looks at anything else. When their slice is over, those that are left wait for the next turns, in
    their order; whoever comes between two turns is served.

    A turn is not announced: reads that follow each other without a pause are taken for one. In a loop that is busy for
    long that is wrong once in a slice, and costs one connection a detour.
    """

    __slots__ = ("_calls", "_ends", "_loop", "_monotonic", "_served_at", "crowded")

    def __init__(self, loop: asyncio.AbstractEventLoop, monotonic: Callable[[], float]) -> None:
        self._loop = loop
        self._monotonic = monotonic
        self._calls = PacedCalls(loop)
        self._ends = 0.0
        self._served_at = 0.0
        # Somebody waits for the next turn: who is read now will have to wait too.
        self.crowded = False

    def is_over(self, now: float) -> bool:
        """Has this turn been long enough? `now` is when a connection has something to be served."""
        if now - self._served_at > PAUSE_S:
            self._ends = now + TURN_S
        return now > self._ends

    def served(self) -> None:
        """A connection has been served."""
        self._served_at = self._monotonic()

    def again(self, call: Callable[[], None]) -> None:
        """Serve the rest of a connection, which has had its turn, in one of the next."""
        self._calls.call_soon(call)

    def later(self, call: Callable[[], None]) -> None:
        """Serve a connection in one of the next turns, because this one is over."""
        self._calls.call_soon(call)
        if not self.crowded:
            self.crowded = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self.crowded = False
        self._ends = self._monotonic() + TURN_S


RunningHandler = tuple["Connection", Coroutine[Any, Any, Reply | None]]


class Dispatch(Protocol):
    """Serves one frame: view[start:stop] is the request without its size."""

    def __call__(self, connection: "Connection", view: memoryview, start: int, stop: int) -> Answer: ...


class Host(Protocol):
    """What a connection needs of the listener that accepted it."""

    loop: asyncio.AbstractEventLoop
    pool: FramePool
    shared: memoryview
    max_frame_bytes: int
    listener_name: str
    kind: Listener
    dispatch: Dispatch
    monotonic: Callable[[], float]
    turns: Turns
    # The handlers that run as tasks, also of connections that are gone.
    handlers: "dict[asyncio.Task[None], RunningHandler]"

    def opened(self, connection: "Connection") -> bool: ...
    def closed(self, connection: "Connection") -> None: ...


class Principals:
    """Whom a listener's own `principal.builder.class` takes its clients for."""

    def __init__(self, builder: KafkaPrincipalBuilder, listener_name: str, security_protocol: str) -> None:
        self._builder = builder
        self._listener_name = listener_name
        self._security_protocol = security_protocol

    def build(
        self,
        connection: "Connection",
        principal: KafkaPrincipal,
        *,
        certificate: bytes | None = None,
        sasl_mechanism: str | None = None,
    ) -> KafkaPrincipal:
        """Instead of whom Kafka takes it for; KafkaError if it is nobody."""
        known = AuthenticationContext(
            self._listener_name,
            self._security_protocol,
            connection.peer[0],
            principal,
            certificate,
            sasl_mechanism,
        )
        built = build_principal(self._builder, known)
        # Whoever they are taken for: by a token no other token is had (KIP-48).
        return built._replace(token_authenticated=True) if principal.token_authenticated else built


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one accepted socket."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.peer: tuple[str, int] = ("", 0)
        self.client_id: str | None = None
        self.principal: KafkaPrincipal = ANONYMOUS
        self.is_authenticated = True  # or does not have to be
        self.decisions: Decisions | None = None  # what the principal may do; see server/authorization.py
        self.audit: AuditLog | None = None  # where that is told, and who it is
        self.quotas: Any = None  # of its client, as they were found; see server/quotas.py
        self.is_of_node = False  # it has followed, or forwarded: its time counts for no quota
        # When something was received or sent last, or what waited was begun: quotas of time count from there.
        self.last_active = host.monotonic()
        # When it is closed if it has not proved by then who it is.
        self.must_be_ready_by = float("inf")
        # Until it has proved who it is, somebody else serves it, and in smaller frames.
        self._dispatch = host.dispatch
        self._frame_bytes = (MIN_FRAME_BYTES, host.max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._output: Output | None = None
        self._lease: Lease | None = None  # of the frame being gathered, size prefix included
        self._partial_view = _NOTHING  # its buffer; empty while it waits for one
        self._filled = 0
        self._granted = 0  # how far it may be filled now
        self._needed = 0
        self._head = b""  # what came of it before there was a buffer
        self._worked_on: Lease | None = None  # of the frame that a coroutine works on
        self._backlog: bytearray | None = None  # whole frames that may not be served yet
        self._line: deque[Deferred] = deque()
        self._ready_bytes = 0
        self._held = False  # a coroutine holds the line
        self._running: asyncio.Task[None] | None = None
        self._only_answers = False  # what runs changes nothing any more
        self._serving = False
        self._turn_is_over = False
        self._muted = False  # by a quota
        self._muted_until = 0.0
        self._unmuting: asyncio.TimerHandle | None = None
        self._has_left_s = float("inf")  # of the time in which it has to prove who it is, when it was muted
        self._send_scheduled = False
        self._reading_paused = False
        self._peek = False
        self._closing = False  # by us: nothing more is begun
        self._lost = False  # nobody takes answers any more
        self._on_lost: dict[Hashable, Callable[[Connection], None]] | None = None

    # ---- life ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio's by inheritance, only by what they can do.
        self._transport = transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.peer = (str(peer[0]), int(peer[1])) if peer else ("", 0)
        try:
            is_admitted = self.host.opened(self)
        except Exception as error:  # noqa: BLE001 - it concerns this connection alone, which must not be left open
            report(error, name="admitting a connection", owner=f"listener {self.host.listener_name}")
            is_admitted = False
        if not is_admitted:
            self._closing = True
            transport.abort()
            return
        try:
            self._output = self._make_output(transport.get_extra_info("socket"))
        except OSError as error:  # no descriptor is left for it
            self.close(f"cannot be served: {error}")

    def _make_output(self, sock: socket.socket) -> Output:
        return SocketOutput(self.host.loop, sock, self._drained, self._send_failed)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.host.closed(self)
        self._lose()
        self._resume()

    def _lose(self) -> None:
        """Nobody is there to be answered; what is here whole is processed nevertheless, in its turn."""
        if self._lost:
            return
        self._lost = True
        self._muted = False
        if self._unmuting is not None:
            self._unmuting.cancel()
        output, self._output = self._output, None
        if output is not None:
            output.close()
        if self._closing or not self._is_whole:
            self._give_back()
        if self._closing:
            self._backlog = None
        for deferred in self._line:
            deferred.abandon()
        self._line.clear()
        self._ready_bytes = 0
        if self._running is not None and self._only_answers:
            self._running.cancel()

    def _notify_lost(self) -> None:
        """All that was received is done: now the client is gone for everybody else too."""
        on_lost, self._on_lost = self._on_lost, None
        for call in (on_lost or {}).values():
            guarded(call, name="a callback of the lost connection", owner=self.name)(self)

    def only_answers(self) -> None:
        """For the coroutine that runs: what it will still do is for the answer alone, and may be left undone."""
        self._only_answers = True
        if self._lost and self._running is not None:
            self._running.cancel()

    def frame_decoded(self) -> None:
        """For the coroutine that runs: it does not need the frame any more."""
        lease, self._worked_on = self._worked_on, None
        if lease is not None:
            self.host.pool.end(lease)

    def when_lost(self, key: Hashable, call: "Callable[[Connection], None]") -> None:
        """Call back when the connection is gone; once for each key."""
        if self._on_lost is None:
            self._on_lost = {}
        self._on_lost[key] = call

    def close(self, reason: str | None = None) -> None:
        """Give the connection up; what is still to be sent is dropped, as Kafka does."""
        if self._closing:
            return
        self._closing = True
        if reason is not None:
            log.info("closing connection %s:%d on %s: %s", *self.peer, self.host.listener_name, _told(reason))
        if self._transport is not None:
            self._transport.abort()

    def serve_by(self, dispatch: Dispatch, frame_bytes: tuple[int, int] | None = None) -> None:
        """From the next frame on: by whom, and in frames of which sizes if not those of the listener."""
        self._dispatch = dispatch
        self._frame_bytes = frame_bytes or (MIN_FRAME_BYTES, self.host.max_frame_bytes)

    def send_last(self, reply: Reply | None, reason: str) -> None:
        """Answer the one request that there is, if there is an answer, and close."""
        if reply is not None and self._output is not None and not self._closing:
            self._output.write(reply)
            self._output.flush()
        self.close(reason)

    @property
    def name(self) -> str:
        """What logs call it."""
        return f"connection {self.peer[0]}:{self.peer[1]} on {self.host.listener_name}"

    @property
    def certificate(self) -> bytes | None:
        """What the client has shown of itself, in DER; None if nothing."""
        return None

    @property
    def descriptor(self) -> int:
        """Of the socket; -1 if it is not known."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        return -1 if sock is None else sock.fileno()

    @property
    def is_idle(self) -> bool:
        """Nothing under way: such a connection may be reaped after connections.max.idle.ms."""
        return not self._line and not self._held and not self._waits_for_room

    @property
    def mid_frame(self) -> bool:
        """Is it for the client to send the rest of a frame?"""
        return self._lease is not None and not self._waits_for_room and not self._is_whole

    @property
    def _waits_for_room(self) -> bool:
        return self._lease is not None and self._lease.is_waiting

    @property
    def _is_whole(self) -> bool:
        """Is the frame that is being gathered all here?"""
        return self._lease is not None and self._filled == self._needed > _SIZE.size

    def eof_received(self) -> bool:
        return False

    # ---- gathering (see FramePool) ------------------------------------------------------------------------

    @property
    def received_bytes(self) -> int:
        return self._filled

    @property
    def is_sending(self) -> bool:
        """Also if it is for the client to take its answers before its next request is served."""
        return not self._is_whole or not (self._held or self._turn_is_over)

    def room_given(self) -> None:
        lease = self._lease
        assert lease is not None
        assert lease.buffer is not None
        if not self._partial_view:
            self._partial_view = memoryview(lease.buffer)
            self._partial_view[: self._filled] = self._head
            self._head = b""
        self._granted = min(self._needed, lease.granted_bytes)
        if self._reading_paused:
            # The time in which it waited was not the client's.
            self.last_active = self.host.monotonic()
            self._resume_reading()

    def give_up(self, reason: str) -> None:
        self._lease = None
        self._partial_view = _NOTHING
        self.close(reason)

    # ---- reading ------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._lease is not None:
            return self._partial_view[self._filled : self._granted]
        host = self.host
        if self._peek or host.turns.crowded:
            return host.shared[:PEEK_BYTES]
        return host.shared[:CONTENDED_READ_BYTES] if host.pool.contended else host.shared

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = now = self.host.monotonic()
        if self._closing:
            return
        if self._lease is None:
            self._take_turn(now)
            self._take(self.host.shared, 0, nbytes)
            self.host.turns.served()
            return
        self._filled += nbytes
        if self._filled < self._granted:
            return
        if self._granted < self._needed:
            self._want_room(self._lease)
        elif self._needed == _SIZE.size:
            self._size_is_known()
        else:
            self._take_turn(now)
            self._serve_partial()
            self.host.turns.served()

    def _take_turn(self, now: float) -> None:
        """So many others may have been served in this turn that what came now waits for one of the next."""
        if self.host.turns.is_over(now) and not self._turn_is_over:
            self._turn_is_over = True
            self.host.turns.later(self._next_turn)

    def _take(self, view: memoryview, start: int, stop: int) -> None:
        """Serve the whole frames of view[start:stop] and keep what is left over."""
        start = self._serve_whole(view, start, stop)
        if start < stop and not self._closing:
            self._keep_rest(view, start, stop)

    def _serve_whole(self, view: memoryview, start: int, stop: int) -> int:
        turn_ends = 0.0
        if self.quotas is not None:
            self.quotas.now_ms = self.last_active * 1000.0
        while stop - start >= 4 and not self._stalled:
            (size,) = _SIZE.unpack_from(view, start)
            smallest, largest = self._frame_bytes
            end = start + 4 + size
            if not smallest <= size <= largest and not self._legal(size):
                return stop
            if end > stop:
                break
            self._serve(view, start + 4, end)
            start = end
            self._peek = False
            if start < stop:
                turn_ends = self._between_requests(turn_ends)
        if self._output is not None:
            self._output.flush()
        if self.quotas is not None:
            self.quotas.served(self, self.host.monotonic())
        return start

    def _between_requests(self, turn_ends: float) -> float:
        """More requests came in the same read: send before answers pile up, and let others have their turn."""
        if self._output is not None and self._output.unsent_bytes >= UNSENT_BYTES:
            self._output.flush()
        now = self.host.monotonic()
        if not turn_ends:
            return now + TURN_S
        if now > turn_ends and not self._turn_is_over:
            self._turn_is_over = True
            self.host.turns.again(self._next_turn)
        return turn_ends

    def _next_turn(self) -> None:
        self._turn_is_over = False
        self._resume()

    def _legal(self, size: int) -> bool:
        smallest, largest = self._frame_bytes
        if smallest <= size <= largest:
            return True
        if size >> 16 == TLS_HANDSHAKE:
            self.close(
                "it speaks TLS, and this listener does not: its security.protocol is to be another one"
            )
        else:
            key = "socket.request.max.bytes" if self.is_authenticated else "sasl.server.max.receive.size"
            self.close(
                f"frame of {size} bytes, allowed are {smallest} to {largest} ({key}); is this a Kafka client, and is "
                "the security protocol right?"
            )
        return False

    def _keep_rest(self, view: memoryview, start: int, stop: int) -> None:
        if self._stalled:
            self._backlog = bytearray(view[start:stop])
            self._pause_reading()
            return
        if self._lost:
            return  # the rest of this frame will not come
        held = stop - start
        size = _SIZE.unpack_from(view, start)[0] if held >= 4 else 0
        self._gather(4 + size, bytes(view[start:stop]))

    def _size_is_known(self) -> None:
        size = _SIZE.unpack_from(self._partial_view, 0)[0]
        head = bytes(self._partial_view[:4])
        self._give_back()
        if not self._legal(size):
            return
        if size:
            self._gather(4 + size, head)
        elif self._stalled:
            self._backlog = bytearray(head)
            self._pause_reading()
        else:  # an empty token of SASL
            self._serve(_NOTHING, 0, 0)
            if self._output is not None:
                self._output.flush()

    def _gather(self, needed: int, head: bytes) -> None:
        """Get room for a frame of `needed` bytes, of which `head` is here already."""
        self._peek = needed > LARGE_FRAME_BYTES
        self._needed = needed
        self._filled = len(head)
        self._head = head
        self._lease = lease = self.host.pool.begin(needed, len(head), self)
        if lease.buffer is not None:
            self.room_given()
        else:
            self._pause_reading()

    def _want_room(self, lease: Lease) -> None:
        """A frame that comes when room is scarce has it in steps."""
        self.host.pool.extend(lease)
        if lease.is_waiting:
            self._pause_reading()

    def _serve_partial(self) -> None:
        if self._stalled:
            self._pause_reading()
            return
        if self.quotas is not None:
            self.quotas.now_ms = self.last_active * 1000.0
        serving, self._serving = self._serving, True  # whatever it answers must not lead to this frame again
        try:
            self._serve(self._partial_view, 4, self._needed)
        finally:
            self._serving = serving
        lease = self._lease
        if self._held and lease is not None:
            # What works on it has copied it: that is what is counted now.
            self._lease, self._worked_on = None, lease
            self._partial_view = _NOTHING
            self.host.pool.detach(lease)
        else:
            self._give_back()
        if self._output is not None:
            self._output.flush()
        if self.quotas is not None:
            self.quotas.served(self, self.host.monotonic())

    def _give_back(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            self._partial_view = _NOTHING
            self._head = b""
            self.host.pool.end(lease)

    # ---- serving ------------------------------------------------------------------------------------------

    @property
    def _stalled(self) -> bool:
        """May the next request not be started?"""
        return (
            self._held
            or self._closing
            or self._turn_is_over
            or len(self._line) >= MAX_OUTSTANDING
            or self._ready_bytes >= MAX_READY_BYTES
            or self._muted
            or (self._output is not None and self._output.blocked)
        )

    def _serve(self, view: memoryview, start: int, stop: int) -> None:
        try:
            answer = self._dispatch(self, view, start, stop)
        except KafkaError as error:
            self.close(f"{error.code.name}: {error}")
            return
        except Exception as error:  # noqa: BLE001 - a request ends one connection at most
            report(error, name="serving a request", owner=self.name, failed=self.fail)
            return
        if isinstance(answer, _READY):
            self._answer(answer)
        elif isinstance(answer, Deferred):
            self._wait_for(answer)
        elif answer is not None:
            self._run(answer)

    def _answer(self, reply: Reply) -> None:
        """Send what is there already, or put it in the line behind what is not."""
        if self._line:
            ready = Deferred()
            ready.resolve(reply)
            ready.ready_bytes = memory_bytes(reply)
            self._ready_bytes += ready.ready_bytes
            self._line.append(ready)
        elif self._output is not None:
            self._output.write(reply)

    def _wait_for(self, deferred: Deferred) -> None:
        if self._lost:
            deferred.abandon()
        elif not deferred.done:
            deferred.then(self._answer_ready)
            self._line.append(deferred)
        elif deferred.reply is not None:
            self._answer(deferred.reply)

    def _run(self, coroutine: Coroutine[Any, Any, Reply | None]) -> None:
        if self.quotas is not None:
            coroutine = self.quotas.measured(self, coroutine)
        deferred = Deferred()
        self._held = True
        if not self._lost:
            self._line.append(deferred)
        # The task's own name is a constant: which connection and handler it is, is said only when it is logged.
        self._running = running = spawn(
            self._finish(coroutine, deferred), name="answering a request", owner="connection"
        )
        self.host.handlers[running] = (self, coroutine)
        running.add_done_callback(self.host.handlers.pop)

    async def _finish(self, coroutine: Coroutine[Any, Any, Reply | None], deferred: Deferred) -> None:
        try:
            try:
                reply = await coroutine
            except KafkaError as error:
                self._ended()
                self.close(f"{error.code.name}: {error}")
                self._resume()
            except CancelledError:  # only the answer was left, and nobody waits for it; or the node stops
                self._ended()
                self._resume()
                raise
            else:
                self._ended()
                deferred.resolve(reply)
                self._send_ready()
        except Exception as error:  # noqa: BLE001 - a request ends one connection at most
            report(error, name=describe_handler(coroutine), owner=self.name, failed=self.fail)

    def _ended(self) -> None:
        """Of the coroutine that held the line."""
        self._running = None
        self._held = False
        self._only_answers = False
        self.frame_decoded()

    def fail(self, error: Exception) -> None:
        """A request met with a fault of ours, which is in the log: this connection ends, no other does."""
        if self._running is not None and self._running is asyncio.current_task():
            self._ended()
        self.close()
        self._resume()

    def _answer_ready(self, reply: Reply | None) -> None:
        """A coordinator answers many requests in one turn: those in the line behind this one go out with it."""
        if len(self._line) == 1:
            self._send_ready()
        elif not self._send_scheduled:
            self._send_scheduled = True
            self.host.loop.call_soon(self._send_soon)

    def _send_soon(self) -> None:
        self._send_scheduled = False
        self._send_and_resume()

    def _send_and_resume(self) -> None:
        """Called by the loop, which would only log a fault and leave the client waiting."""
        try:
            self._send_ready()
        except Exception as error:  # noqa: BLE001 - a fault ends one connection at most
            report(error, name="sending answers", owner=self.name, failed=self.fail)

    def _send_ready(self) -> None:
        """Some answer in the line is there: send from the front, then go on with what waited."""
        output = self._output
        if output is not None and not self._closing:
            line = self._line
            while line and line[0].done:
                deferred = line.popleft()
                self._ready_bytes -= deferred.ready_bytes
                if deferred.reply is not None:
                    output.write(deferred.reply)
            output.flush()
        self._resume()

    def _resume(self) -> None:
        if self._serving or (self._stalled and not self._closing):
            return
        if not self._closing:
            self._serving = True  # serving may resolve answers, which lead back here
            try:
                # From when on the next request is measured is set as when something comes.
                if self._backlog is not None:
                    self.last_active = self.host.monotonic()
                    backlog, self._backlog = self._backlog, None
                    self._take(memoryview(backlog), 0, len(backlog))
                elif self._is_whole:
                    self.last_active = self.host.monotonic()
                    self._serve_partial()
            finally:
                self._serving = False
        if self._lost:
            if self._closing:
                self._backlog = None
                self._give_back()
            if not self._held and self._backlog is None and self._lease is None:
                self._notify_lost()
        elif self._backlog is None and not self._stalled and not self._waits_for_room:
            self._resume_reading()

    # ---- quotas -------------------------------------------------------------------------------------------

    def throttle(self, throttle_ms: int) -> None:
        """Serve nothing more for so long (KIP-219); who sends all the same fills its own socket."""
        loop = self.host.loop
        until = loop.time() + throttle_ms / 1000
        if until <= self._muted_until or self._closing or self._lost:
            return
        self._muted_until = until
        self.mute()
        if self._unmuting is None:
            self._unmuting = loop.call_at(until, self._mute_is_over)

    def _mute_is_over(self) -> None:
        self._unmuting = None
        if self._closing or self._lost:
            return
        loop = self.host.loop
        if loop.time() < self._muted_until:  # it has come to more meanwhile
            self._unmuting = loop.call_at(self._muted_until, self._mute_is_over)
        else:
            self.unmute()

    def mute(self) -> None:
        """Serve nothing more until `unmute`; the time in which it has to prove who it is stands still."""
        if not self._muted:
            self._muted = True
            self._has_left_s = self.must_be_ready_by - self.host.monotonic()
            self.must_be_ready_by = float("inf")

    def unmute(self) -> None:
        """Serve again, in one of the next turns: those who share a quota wait for the same moment."""
        if not self._muted or self._closing or self._lost:
            return
        self._muted = False
        self.must_be_ready_by = self.host.monotonic() + self._has_left_s
        if not self._turn_is_over:
            self._turn_is_over = True
            self.host.turns.again(self._next_turn)

    @property
    def is_open(self) -> bool:
        return not (self._closing or self._lost)

    # ---- flow ---------------------------------------------------------------------------------------------

    def _drained(self) -> None:
        self.last_active = self.host.monotonic()
        self._send_and_resume()

    def _send_failed(self, error: OSError) -> None:
        if not isinstance(error, ConnectionError):
            self.close(f"sending failed: {error}")
            return
        self._lose()
        if self._transport is not None:
            self._transport.abort()

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None and not (self._closing or self._lost):
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and self._transport is not None and not (self._closing or self._lost):
            self._reading_paused = False
            self._transport.resume_reading()


def _told(reason: str) -> str:
    """In one line: it may repeat a stranger's words, as many as a frame has room for, with line ends in them."""
    told = reason if len(reason) <= MAX_REASON_LENGTH else f"{reason[:MAX_REASON_LENGTH]}…"
    return told if told.isprintable() else ascii(told)[1:-1]


def describe_handler(coroutine: Coroutine[Any, Any, Reply | None]) -> str:
    """What logs call a handler that runs as a task."""
    return f"answering a request ({getattr(coroutine, '__qualname__', '')})"
