"""The asyncio driver: gives a core its sockets, its clock and its turns.

All calls into the core happen on the loop's thread, under `lock`: the asyncio clients pass none, the blocking
ones pass a real one, because there the application's thread appends and drains at the same time. A turn of the core
that fails is logged and repeated after a moment: whoever waits for an answer is told one when its time is over.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final, cast

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.tasks import guarded, spawn
from ottla.net.errors import Closed
from ottla.net.transport import (
    MIN_TIMER_MS,
    Action,
    Connect,
    Core,
    Disconnect,
    Work,
    Write,
    monotonic_ms,
    reason_of,
)

Predicate = Callable[[], bool]

OWNER: Final = "connections to nodes"
# After a turn that failed.
TURN_AGAIN_MS: Final = 100.0


class _BaseLink(asyncio.BaseProtocol):
    """One connection as asyncio sees it."""

    def __init__(self, driver: "Driver", link: int) -> None:
        self._driver = driver
        self._link = link
        self.transport: asyncio.Transport | None = None
        self._is_echo = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class derives from nothing
        if transport.get_extra_info("sockname") == transport.get_extra_info("peername"):
            # Nobody listens, and by chance TCP gave us the very port we called: a conversation with ourselves,
            # which keeps the broker from its port when it comes back.
            self._is_echo = True
            self.transport.abort()
            return
        self._driver._on_connected(self._link, self)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "closed by the broker" if exc is None else reason_of(exc)
        if self._is_echo:
            reason = "connection refused"
        self._driver._on_disconnected(self._link, reason)


class _Link(_BaseLink, asyncio.Protocol):
    """One that is handed bytes."""

    def data_received(self, data: bytes) -> None:
        self._driver._on_data(self._link, data)


class _FilledLink(_BaseLink, asyncio.BufferedProtocol):
    """One that is read into its own buffers: a large answer is read to where it stays."""

    def get_buffer(self, sizehint: int) -> memoryview | bytearray:
        room = self._driver.core.buffer(self._link)
        return bytearray(1) if room is None else room  # of a connection given up meanwhile: nobody looks

    def buffer_updated(self, nbytes: int) -> None:
        self._driver._on_filled(self._link, nbytes)


class Driver:
    """Drives one core. Made and used inside a running loop; `close` leaves nothing behind."""

    def __init__(
        self,
        core: Core,
        *,
        ssl_context: ssl.SSLContext | None = None,
        lock: AbstractContextManager[Any] | None = None,
        large_answers: bool = False,
        receive_buffer_bytes: int | None = None,
    ) -> None:
        """`large_answers` spares a copy of what takes many reads, at the price of a call for each read."""
        self.core = core
        self._link_type: type[_BaseLink] = _FilledLink if large_answers else _Link
        self._receive_buffer_bytes = receive_buffer_bytes
        self.lock = lock if lock is not None else nullcontext()
        self._ssl = ssl_context
        self._loop = asyncio.get_running_loop()
        self._links: dict[int, _BaseLink] = {}
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._working: dict[int, asyncio.Task[None]] = {}
        self._waiters: dict[asyncio.Future[None], Predicate] = {}
        self.is_due = False  # the core gets its turn as soon as the loop gets to it
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._closed = False
        self._turn = guarded(self._pump, name="a turn", owner=OWNER, failed=self._turn_again)

    # -- what clients use -----------------------------------------------------------------------------

    def wake(self) -> None:
        """Give the core a turn soon. From the loop's thread."""
        if not self.is_due and not self._closed:
            self.is_due = True
            self._loop.call_soon(self._turn)

    def wake_threadsafe(self) -> None:
        """The same, from any thread."""
        if not self.is_due:
            self._loop.call_soon_threadsafe(self.wake)

    def write(self, output: list[Action], deadline_ms: float, now: float) -> None:
        """Do what the core has given out of turn; at the deadline it has one. From the loop's thread."""
        if not self._closed:
            self._perform(output)
            self._set_timer(deadline_ms, now)

    async def until(self, predicate: Predicate, timeout_ms: float) -> bool:
        """Wait until the predicate holds after some turn of the core; False if the time ran out first."""
        with self.lock:
            if predicate():
                return True
        if self._closed:
            raise Closed()
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiters[future] = predicate
        self.wake()
        try:
            async with asyncio.timeout(timeout_ms / 1000.0):
                await future
            return True
        except TimeoutError:
            return False
        finally:
            self._waiters.pop(future, None)

    async def close(self) -> None:
        """Close every connection; what waits fails with Closed."""
        if self._closed:
            return
        self._closed = True
        with self.lock:
            self._perform(self.core.close(monotonic_ms()))
        if self._timer is not None:
            self._timer.cancel()
        for future in list(self._waiters):
            if not future.done():
                future.set_exception(Closed())
        tasks = [*self._connecting.values(), *self._working.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports report their end in the next turn of the loop

    # -- turns ----------------------------------------------------------------------------------------

    def _pump(self) -> None:
        self.is_due = False
        if self._closed:
            return
        with self.lock:
            now = monotonic_ms()
            actions = self.core.poll(now)
            deadline = self.core.next_deadline(now)
            ready = [future for future, holds in self._waiters.items() if not future.done() and holds()]
        self._perform(actions)
        self._set_timer(deadline, now)
        for future in ready:
            if not future.done():
                future.set_result(None)

    def _turn_again(self, error: Exception) -> None:
        now = monotonic_ms()
        self._set_timer(now + TURN_AGAIN_MS, now)

    def _set_timer(self, deadline_ms: float, now: float) -> None:
        if deadline_ms == float("inf"):
            return
        when = self._loop.time() + max(deadline_ms - now, MIN_TIMER_MS) / 1000.0
        if self._timer is not None:
            # An earlier timer is left alone: it finds nothing to do and sets the right one.
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Write):
                link = self._links.get(action.link)
                if link is not None and link.transport is not None:
                    link.transport.writelines(action.chunks)
            elif isinstance(action, Connect):
                self._begin(action)
            elif isinstance(action, Work):
                self._begin_work(action)
            else:
                self._disconnect(action)

    def _disconnect(self, action: Disconnect) -> None:
        for tasks in (self._connecting, self._working):
            task = tasks.pop(action.link, None)
            if task is not None:
                task.cancel()
        link = self._links.pop(action.link, None)
        if link is not None and link.transport is not None:
            link.transport.close()

    def _begin(self, action: Connect) -> None:
        def failed(error: Exception) -> None:
            self._on_disconnected(action.link, reason_of(error))

        where = f"{action.host}:{action.port}"
        self._connecting[action.link] = spawn(
            self._connect(action), name=f"connecting to {where}", owner=OWNER, failed=failed
        )

    def _begin_work(self, action: Work) -> None:
        def failed(error: Exception) -> None:
            self._on_worked(action.link, None, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, reason_of(error)))

        self._working[action.link] = spawn(
            self._work(action), name="a step of a login", owner=OWNER, failed=failed
        )

    async def _work(self, action: Work) -> None:
        result, failure = None, None
        try:
            result = await self._in_thread(action.function)
        except (KafkaError, OSError) as error:
            failure = error
        finally:
            self._working.pop(action.link, None)
        self._on_worked(action.link, result, failure)

    def _in_thread(self, function: Callable[[], Any]) -> "asyncio.Future[Any]":
        """In one of its own: it may wait for long, and the loop's are what names are looked up in."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def done(result: Any, error: Exception | None) -> None:
            if future.done():
                return  # given up
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def run() -> None:
            result, failure = None, None
            try:
                result = function()
            except Exception as error:  # noqa: BLE001 - told where it is waited for
                failure = error
            with suppress(RuntimeError):  # the loop is closed by now
                self._loop.call_soon_threadsafe(done, result, failure)

        threading.Thread(target=run, name="ottla-login", daemon=True).start()
        return future

    # -- events ---------------------------------------------------------------------------------------

    async def _connect(self, action: Connect) -> None:
        try:
            await self._loop.create_connection(
                lambda: cast(asyncio.Protocol, self._link_type(self, action.link)),
                action.host,
                action.port,
                ssl=self._ssl,
                server_hostname=action.host if self._ssl is not None else None,
            )
        except (OSError, ValueError) as error:
            # Refused, unreachable, unknown name, TLS handshake: all are OSErrors. The rest is what cannot be a name.
            during = "in the TLS handshake: " if isinstance(error, ConnectionResetError) else ""
            self._on_disconnected(action.link, during + reason_of(error))
        finally:
            self._connecting.pop(action.link, None)

    def _on_connected(self, link: int, protocol: _BaseLink) -> None:
        with self.lock:
            wanted = not self._closed and self.core.on_connected(link, monotonic_ms())
        if wanted:
            self._links[link] = protocol
            self._size_buffer(protocol)
        elif protocol.transport is not None:
            protocol.transport.close()
        self.wake()

    def _size_buffer(self, protocol: _BaseLink) -> None:
        if self._receive_buffer_bytes is not None and protocol.transport is not None:
            connected = protocol.transport.get_extra_info("socket")
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)

    def _on_data(self, link: int, data: bytes) -> None:
        with self.lock:
            self.core.on_data(link, data, monotonic_ms())
        self.wake()

    def _on_filled(self, link: int, count: int) -> None:
        with self.lock:
            is_due = self.core.on_filled(link, count, monotonic_ms())
        if is_due or self._waiters:
            self.wake()

    def _on_worked(self, link: int, result: Any, error: Exception | None) -> None:
        with self.lock:
            self.core.on_worked(link, result, error, monotonic_ms())
        self.wake()

    def _on_disconnected(self, link: int, reason: str) -> None:
        self._links.pop(link, None)
        with self.lock:
            self.core.on_disconnected(link, reason, monotonic_ms())
        self.wake()


__all__ = ["Driver", "Predicate", "monotonic_ms"]
