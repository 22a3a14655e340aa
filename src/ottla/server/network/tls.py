"""A connection over TLS: the same Connection, with ssl.SSLObject between it and its socket.

Everything a plain connection has holds here too: limits are counted before the handshake, bytes are read into one
buffer that all connections share, frames are served in place from where they were decrypted to, and what the connection
may not serve yet is not decrypted. What is left of a read stays as it came, at most one buffer of it. Records without
content (new keys, above all) cost more to work on than those with it, and are answered: few are taken at once, and
whoever sends nothing else is closed.

Handshakes. Their arithmetic is done in threads; a connection is not read meanwhile. One that is not through in time is
closed (Connections.reap), and so is one that comes when too many wait for a thread: those who are connected are served.

Answers. Small ones that leave together are one record. Slices of files are read and encrypted piece by piece, as the
socket takes them: a peer that does not read holds one piece in our memory.

Owner: the broker's event loop; during a step of the handshake the thread that makes it.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.model.errors import KafkaError
from ottla.model.tasks import guarded
from ottla.security.principal import KafkaPrincipal
from ottla.server.network.authentication import AUTHENTICATION_S
from ottla.server.network.connection import Connection, Host, Principals
from ottla.server.network.output import IN_MEMORY, Output, Sending, SocketOutput

# What is read at once, of all connections: some records of 16 KB.
SEALED_BUFFER_BYTES: Final = 256 * 1024
# What is encrypted at once, and so what a peer that does not read holds: six records. Less costs more calls; of more,
# the beginning is out of the cache when it is sent, and the allocator may give the memory back each time (measured).
PIECE_BYTES: Final = 96 * 1024
# How long a handshake may take, and so for how long a connection without one is kept.
HANDSHAKE_S: Final = 10.0
# Whoever comes when so many steps wait for a thread is refused: they would be late.
MAX_WAITING_STEPS: Final = 2_000
HANDSHAKE_THREADS: Final = 2
# So many records are decrypted before it is looked at what was in them, and so many may have had no content; and one
# more of each 1,024 that have come: nobody needs new keys more often.
MAX_EMPTY_RECORDS: Final = 32
EMPTY_RECORD_SHIFT: Final = 10

# How a TLS record of a handshake begins.
_HANDSHAKE_RECORD: Final = 0x16
_RECORD_HEADER_BYTES: Final = 5
_NOTHING: Final = memoryview(b"")
# How others begin to speak, where that should be.
_OTHERS: Final = {
    b"\x00": "it does not speak TLS: is its security.protocol PLAINTEXT or SASL_PLAINTEXT?",
    b"GET ": "it speaks HTTP",
    b"POST": "it speaks HTTP",
    b"HEAD": "it speaks HTTP",
    b"PRI ": "it speaks HTTP",
}


class TlsIdentity(Protocol):
    """What a listener with TLS is: its certificate, and whom it takes a client for. May be another one any time."""

    @property
    def context(self) -> ssl.SSLContext: ...

    def principal_of(self, certificate: bytes) -> KafkaPrincipal:
        """Whose certificate (DER) it is."""


class Handshakes:
    """The threads in which handshakes are made; a node has one for all of its listeners."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(HANDSHAKE_THREADS, "tls-handshake")
        self._waiting = 0

    @property
    def is_full(self) -> bool:
        return self._waiting >= MAX_WAITING_STEPS

    def step(self, tls: ssl.SSLObject, then: Callable[[Exception | None], None]) -> None:
        """Make what can be made of a handshake with what has come; `then` is called on the loop."""
        self._waiting += 1
        self._threads.submit(self._make, tls, then)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _make(self, tls: ssl.SSLObject, then: Callable[[Exception | None], None]) -> None:
        failed: Exception | None = None
        try:
            tls.do_handshake()
        except Exception as error:  # noqa: BLE001 - told to whose handshake it is, which ends that connection
            failed = error
        with suppress(RuntimeError):  # the loop is closed: the node has stopped
            self._loop.call_soon_threadsafe(self._made, failed, then)

    def _made(self, failed: Exception | None, then: Callable[[Exception | None], None]) -> None:
        self._waiting -= 1
        then(failed)


class TlsBuffers:
    """What connections of one loop share, because a step with one of them is over before the next begins."""

    __slots__ = ("piece", "sealed")

    def __init__(self) -> None:
        # What was read, and is still to be decrypted.
        self.sealed = memoryview(bytearray(SEALED_BUFFER_BYTES))
        # What is put together to be encrypted next.
        self.piece = memoryview(bytearray(PIECE_BYTES))


@dataclass(frozen=True, slots=True)
class TlsLayer:
    """What connections with TLS need of their listener, on top."""

    identity: TlsIdentity
    handshakes: Handshakes
    buffers: TlsBuffers
    # Where somebody else says who a client is.
    principals: Principals | None = None


class Records:
    """Where TLS records begin in what comes, and how many have."""

    __slots__ = ("begun", "next")

    def __init__(self) -> None:
        self.begun = 0
        self.next = 0  # so many bytes from here the next one begins

    def take(self, data: memoryview, most: int) -> int:
        """How much of it is no more than `most` records; what is left begins with a header, or a part of one."""
        at, end, begun = self.next, len(data), self.begun
        most += begun
        while at + _RECORD_HEADER_BYTES <= end and begun < most:
            at += _RECORD_HEADER_BYTES + (data[at + 3] << 8 | data[at + 4])
            begun += 1
        self.begun = begun
        if at < end:
            self.next = 0
            return at
        self.next = at - end
        return end


class TlsConnection(Connection):
    """The protocol object of one accepted socket of a listener with TLS."""

    def __init__(self, host: Host, layer: TlsLayer) -> None:
        super().__init__(host)
        self._layer = layer
        self._read_buffer = layer.buffers.sealed
        self._received = ssl.MemoryBIO()
        self._sealed = ssl.MemoryBIO()
        self._tls = layer.identity.context.wrap_bio(self._received, self._sealed, server_side=True)
        self._has_begun = False  # the client's first bytes are here
        self._is_established = False
        self._is_shaking_hands = False  # in a thread
        self._has_rest = False  # a record was decrypted of which not all was taken
        self._records = Records()
        self._held_back = _NOTHING  # what came behind the records that are decrypted now
        self._with_content = 0  # of the records that have begun
        self.must_be_ready_by = self.last_active + HANDSHAKE_S

    # ---- life ---------------------------------------------------------------------------------------------

    def _make_output(self, sock: socket.socket) -> Output:
        if self._layer.handshakes.is_full:
            self.close("too many TLS handshakes wait")
        piece = self._layer.buffers.piece
        return TlsOutput(
            self.host.loop, sock, self._tls, self._sealed, piece, self._drained, self._send_failed
        )

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._is_established:
            self._decrypt()
        super().connection_lost(exc)

    def close(self, reason: str | None = None) -> None:
        if self._is_established and not self._closing and isinstance(self._output, TlsOutput):
            self._output.say_goodbye()
        super().close(reason)

    # ---- the handshake --------------------------------------------------------------------------------------

    def _shake_hands(self) -> None:
        if not self._is_shaking_hands:
            self._is_shaking_hands = True
            self._pause_reading()
            self._layer.handshakes.step(
                self._tls, guarded(self._shaken, name="a TLS handshake", owner=self.name, failed=self.fail)
            )

    def unmute(self) -> None:
        super().unmute()
        if self._received.pending and not self._is_established and self.is_open:
            self._shake_hands()

    def _shaken(self, failed: Exception | None) -> None:
        self._is_shaking_hands = False
        if self._closing or self._lost:
            return
        if self._output is not None:
            self._output.flush()  # our part of it, or an alert that says what is wrong with theirs
        if isinstance(failed, ssl.SSLWantReadError):
            self._resume_reading()
        elif isinstance(failed, ssl.SSLError):
            why = f"the TLS handshake failed: {_reason_of(failed)}"
            self._audit(None, why)
            self.close(why)
        elif failed is not None:
            raise failed
        else:
            self._established()

    def _established(self) -> None:
        self._is_established = True
        self.must_be_ready_by = (
            float("inf") if self.is_authenticated else self.host.monotonic() + AUTHENTICATION_S
        )
        self._take_in(memoryview(self._received.read()))  # what came right behind the handshake
        if self.is_authenticated and not self._is_somebody():
            return
        self._resume_reading()

    def _is_somebody(self) -> bool:
        """Who it is, where no SASL follows, which alone would say so; False if it is nobody, and closed."""
        certificate = self.certificate
        try:
            if certificate is not None:
                self.principal = self._layer.identity.principal_of(certificate)
            if self._layer.principals is not None:
                self.principal = self._layer.principals.build(self, self.principal, certificate=certificate)
        except KafkaError as error:
            self._audit(None, str(error))
            self.close(str(error))
            return False
        if certificate is not None:
            self._audit(self.principal)
        return True

    @property
    def certificate(self) -> bytes | None:
        return self._tls.getpeercert(binary_form=True)

    def _audit(self, principal: KafkaPrincipal | None, why: str | None = None) -> None:
        """A login by certificate; where SASL follows, that is the login."""
        if self.audit is not None:
            self.audit.login(
                principal,
                mechanism="TLS",
                listener=self.host.listener_name,
                address=self.peer[0],
                why=why,
            )

    # ---- reading ------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        sealed = self._read_buffer[:nbytes]
        if self._is_established:
            records, buffer = self._records, self._read_buffer
            if (
                nbytes == _RECORD_HEADER_BYTES + (buffer[3] << 8 | buffer[4])
                and not records.next
                and not self._held_back
            ):
                records.begun += 1  # one whole record, as nearly always
                self._received.write(sealed)
            else:
                self._take_in(sealed)
            self._decrypt()
            return
        if not self._has_begun and sealed[0] != _HANDSHAKE_RECORD:
            self._refuse(bytes(sealed[:4]))
            return
        self._has_begun = True
        self._received.write(sealed)
        if self._muted:
            self._pause_reading()  # it came too early: `unmute` goes on with what is here
        else:
            self.last_active = self.host.monotonic()
            self._shake_hands()

    def _refuse(self, first: bytes) -> None:
        known = (words for start, words in _OTHERS.items() if first.startswith(start))
        self.close(next(known, "it does not speak TLS"))

    def _take_in(self, sealed: memoryview) -> None:
        """What has come, a few records at a time; it is in a buffer that others use next."""
        if self._held_back:
            self._held_back = memoryview(bytes(self._held_back) + sealed)
            return
        size = self._records.take(sealed, MAX_EMPTY_RECORDS)
        if size == len(sealed):
            self._received.write(sealed)
        else:
            self._received.write(sealed[:size])
            self._held_back = memoryview(bytes(sealed[size:]))

    def _take_more(self) -> bool:
        """Go on with what was held back, if there is any, unless the client sends records for their own sake."""
        begun = self._records.begun
        empty = begun - self._with_content
        if empty > MAX_EMPTY_RECORDS + (begun >> EMPTY_RECORD_SHIFT):
            self.close(f"{empty} TLS records without content, as for new keys")
            return False
        if empty < 0:
            self._with_content = begun  # one was read in pieces
        if not self._held_back:
            return False
        size = self._records.take(self._held_back, MAX_EMPTY_RECORDS)
        self._received.write(self._held_back[:size])
        self._held_back = self._held_back[size:]
        return size > 0

    def _decrypt(self) -> None:
        """Hand on what has come, for as long as it may be served."""
        received, read = self._received, self._tls.read
        ended = False
        # When an answer could not be sent any more, a frame that has begun is dropped: what follows would be taken for
        # frames, of whoever wrote it into this one. It stays sealed, as what a plain socket still has is not read.
        while not self._reading_paused and not self._closing and not self._lost:
            # Without bytes there is nothing to ask for, and no exception to be paid for.
            if not received.pending and not self._has_rest:
                is_done = self._with_content == self._records.begun and not self._held_back
                if is_done or not self._take_more():
                    break
            room = Connection.get_buffer(self, -1)
            size, filled = len(room), 0
            try:
                # By as many records as it takes; a call gives one of them at most.
                while filled < size and (received.pending or self._has_rest):
                    count: int = read(size - filled, room[filled:] if filled else room)  # type: ignore[assignment]
                    if not count:
                        ended = True
                        break
                    self._has_rest = count == size - filled
                    self._with_content += 1
                    filled += count
            except ssl.SSLWantReadError:
                self._has_rest = False  # the rest of a record is still to come
            except ssl.SSLError as error:
                self.close(f"what came is not TLS any more: {_reason_of(error)}")
                break
            if filled:
                Connection.buffer_updated(self, filled)
            if ended:
                if self._transport is not None and not self._closing:
                    # Nothing more can come; what has come whole is served, as when a plain connection ends.
                    self._transport.close()
                break
        if self._sealed.pending and self._output is not None and not self._closing:
            self._output.flush()  # what the protocol itself has to say, as new keys

    def _resume_reading(self) -> None:
        if self._is_shaking_hands:
            return
        was_paused = self._reading_paused
        super()._resume_reading()
        if was_paused and self._is_established and not self._reading_paused:
            # Whoever calls is in the midst of serving.
            self.host.loop.call_soon(
                guarded(self._decrypt, name="decrypting", owner=self.name, failed=self.fail)
            )


def _reason_of(error: ssl.SSLError) -> str:
    """In words: "tlsv1 alert unknown ca", without where in OpenSSL's source it was noticed."""
    reason = getattr(error, "verify_message", None) or error.reason
    return reason.replace("_", " ").lower() if reason else str(error)


class TlsOutput(SocketOutput):
    """Writes a socket with TLS: what waits is encrypted when the socket takes it."""

    _sendfile_min_bytes = 0  # none is read whole

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        tls: ssl.SSLObject,
        sealed: ssl.MemoryBIO,
        piece: memoryview,
        on_drained: Callable[[], None],
        on_error: Callable[[OSError], None],
    ) -> None:
        super().__init__(loop, sock, on_drained, on_error)
        self._tls = tls
        self._sealed = sealed
        self._piece = piece
        self._going_out = _NOTHING  # what the socket has not taken of it

    def _send(self) -> bool:
        fd, sealed, queue = self._fd, self._sealed, self._queue
        if self._going_out and not self._send_rest():
            return False
        while queue or sealed.pending:
            if not sealed.pending:
                piece = self._take_piece()
                if not piece:  # an empty slice
                    continue
                size = self._tls.write(piece)  # in as many records as it takes,
                while size < len(piece):  # unless OpenSSL was told to make one at a time
                    size += self._tls.write(memoryview(piece)[size:])
            data = sealed.read()
            # Of a socket alone it says to come again; of a file it would be an error amid what is taken already.
            try:
                sent = os.write(fd, data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                self._going_out = memoryview(data)[sent:]
                if not self._send_rest():
                    return False
        return True

    def _send_rest(self) -> bool:
        """True when all of it has gone, False when the socket is full."""
        try:
            while self._going_out:
                self._going_out = self._going_out[os.write(self._fd, self._going_out) :]
        except BlockingIOError:
            return False
        return True

    def say_goodbye(self) -> None:
        """That it ends here, and was not cut off: what waits is dropped. Only if that can be said at once."""
        if self.blocked or self._closed:
            return
        self._queue.clear()
        with suppress(ssl.SSLError, OSError):
            try:
                self._tls.unwrap()
            finally:  # it has said its part, and would wait for the other's
                os.write(self._fd, self._sealed.read())

    def _take_piece(self) -> bytes | bytearray | memoryview:
        """What goes out next: as much as there is, up to a piece. What is in memory and alone stays where it is."""
        queue, piece = self._queue, self._piece
        head = queue[0]
        if isinstance(head, IN_MEMORY):
            if len(head) > PIECE_BYTES:
                view = memoryview(head)
                queue[0] = view[PIECE_BYTES:]
                return view[:PIECE_BYTES]
            if len(queue) == 1:
                queue.popleft()
                return head
        filled = 0
        while queue and filled < PIECE_BYTES:
            head = queue[0]
            if isinstance(head, Sending):
                filled += head.read_into(piece[filled:PIECE_BYTES])
                if head.position == head.end:
                    queue.popleft()
            else:
                assert isinstance(head, IN_MEMORY), "no slice is read whole here"
                count = len(head)
                if count <= PIECE_BYTES - filled:
                    piece[filled : filled + count] = head
                    queue.popleft()
                else:
                    count = PIECE_BYTES - filled
                    view = memoryview(head)
                    piece[filled:PIECE_BYTES] = view[:count]
                    queue[0] = view[count:]
                filled += count
        return piece[:filled]
