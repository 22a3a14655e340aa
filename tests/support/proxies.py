"""Links between the nodes of a cluster, and to its clients, that a test can cut, hold up and heal while they are used.

    links = Links()
    port = links.open(1, HOST, real_port)   # what node 1 advertises: whoever connects there talks to real_port
    links.cut(1, 2)                         # nothing passes between nodes 1 and 2, neither way
    links.cut(1, 2, both=False)             # what 1 says does not reach 2; what 2 says reaches 1
    links.refuse(1, 2)                      # connections between them end at once
    links.slow(1, 2, delay_s=0.1, bytes_per_s=1_000_000)
    links.heal()
    links.shut(1), links.reopen(1)          # nobody listens at node 1's ports, as when its process is dead

Every port has one listener, and who has connected is told by the client id of the first request: `raft-client-1`,
`broker-1-...` and `1` are what node 1 calls itself to others, as Apache's does. All others are CLIENTS.

A cut is a network's: both ends keep their connections and hear nothing, what was on its way waits, and arrives after
the cut is healed, as TCP repeats it. The end of a connection waits in the same way. All sockets belong to one loop in
a thread of its own; the calls may come from any other thread, and have taken effect when they return.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

from tests.interop.process import HOST

CLIENTS: Final = 0
CHUNK_BYTES: Final = 64 * 1024
# What one direction of a connection may have on its way: no more than this is held while a link is cut.
MAX_CHUNKS: Final = 64
# A slow link passes its bytes in pieces, so that a rate of one megabyte a second is not one jump a second.
SLOW_PIECE_BYTES: Final = 16 * 1024
NODE_CLIENT_ID: Final = re.compile(r"(?:raft-client-|broker-)?(\d+)(?:-.*)?")
_FIRST: Final = struct.Struct(">ihhih")  # size, api key, version, correlation id, length of the client id
_PATIENCE_S: Final = 90.0

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to bytes that one side says to another."""

    is_cut: bool = False
    is_refused: bool = False
    delay_s: float = 0.0
    bytes_per_s: float | None = None


PLAIN: Final = Rule()


@dataclass(slots=True)
class _Door:
    """One port that a node advertises."""

    node_id: int
    port: int
    target: tuple[str, int]
    server: asyncio.Server | None = None


@dataclass(eq=False, slots=True)
class _Connection:
    """Both directions of one connection through a proxy."""

    caller: int
    callee: int
    writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Links:
    """All proxies of one cluster."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._rules: dict[tuple[int, int], Rule] = {}
        self._changed = asyncio.Condition()
        self._doors: list[_Door] = []
        self._connections: set[_Connection] = set()
        self._accepted: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []
        self.held_bytes = 0  # that could not pass when they came
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- ports ------------------------------------------------------------------------------------------

    def open(self, node_id: int, host: str, port: int) -> int:
        """A new port that leads to this one of a node."""
        door = _Door(node_id, 0, (host, port))
        self._do(self._listen(door))
        self._doors.append(door)
        return door.port

    def shut(self, node_id: int) -> None:
        """Nobody listens at the node's ports any more; connections are left to those who have them."""
        self._do(self._shut(node_id))

    def reopen(self, node_id: int, *targets: int) -> None:
        """Those that lead to these ports of the node; all of them if none is named."""
        for door in self._doors:
            wanted = not targets or door.target[1] in targets
            if door.node_id == node_id and door.server is None and wanted:
                self._do(self._listen(door))

    def close(self) -> None:
        """Everything ends; what failed in here without being asked for is raised."""
        if not self._loop.is_running():
            return
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()
        if self._failures:
            raise self._failures[0]

    # ---- rules ------------------------------------------------------------------------------------------

    def set(self, source: int, target: int, rule: Rule) -> None:
        """What happens from now on to all that `source` says to `target`, also over connections of the other's."""
        self._do(self._set({(source, target): rule}))

    def cut(self, one: int, other: int, *, both: bool = True) -> None:
        """What one says does not reach the other, and if `both` the other way too."""
        self._both(one, other, Rule(is_cut=True), both)

    def refuse(self, one: int, other: int) -> None:
        """Connections between the two are reset, those they have and those they make."""
        self._both(one, other, Rule(is_refused=True), True)

    def slow(
        self,
        source: int,
        target: int,
        *,
        delay_s: float = 0.0,
        bytes_per_s: float | None = None,
        both: bool = True,
    ) -> None:
        self._both(source, target, Rule(delay_s=delay_s, bytes_per_s=bytes_per_s), both)

    def heal(self, one: int | None = None, other: int | None = None) -> None:
        """As if nothing had been: everything, all links of one node, or those between two."""
        named = {node for node in (one, other) if node is not None}
        healed = {pair: PLAIN for pair in self._rules if named <= set(pair)}
        self._do(self._set(healed))

    @property
    def is_whole(self) -> bool:
        return all(rule == PLAIN for rule in self._rules.values())

    def _both(self, one: int, other: int, rule: Rule, both: bool) -> None:
        pairs = [(one, other), (other, one)] if both else [(one, other)]
        self._do(self._set(dict.fromkeys(pairs, rule)))

    # ---- in the loop ------------------------------------------------------------------------------------

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    async def _listen(self, door: _Door) -> None:
        door.server = await asyncio.start_server(
            lambda reader, writer: self._accepting(door, reader, writer), HOST, door.port
        )
        door.port = door.server.sockets[0].getsockname()[1]

    async def _shut(self, node_id: int) -> None:
        for door in self._doors:
            if door.node_id == node_id and door.server is not None:
                door.server.close()
                door.server = None

    async def _close(self) -> None:
        for door in self._doors:
            await self._shut(door.node_id)
        tasks = [*self._accepted, *(task for connection in self._connections for task in connection.tasks)]
        for task in tasks:
            task.cancel()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _set(self, rules: dict[tuple[int, int], Rule]) -> None:
        async with self._changed:
            self._rules |= rules
            self._changed.notify_all()
        for connection in list(self._connections):
            if self._is_refused(connection.caller, connection.callee):
                connection.abort()

    def _rule(self, source: int, target: int) -> Rule:
        return self._rules.get((source, target), PLAIN)

    def _is_refused(self, one: int, other: int) -> bool:
        return self._rule(one, other).is_refused or self._rule(other, one).is_refused

    def _accepting(self, door: _Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._accept(door, reader, writer))
        self._accepted.add(task)
        task.add_done_callback(self._accepted.discard)
        task.add_done_callback(self._note)

    def _note(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failures.append(failure)

    async def _accept(self, door: _Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first, caller = await _who(reader)
            if self._is_refused(caller, door.node_id):
                writer.transport.abort()
                return
            to_reader, to_writer = await asyncio.open_connection(*door.target)
        except OSError:
            # Nobody is behind this port, or the caller has gone: either way the connection ends here.
            writer.transport.abort()
            return
        connection = _Connection(caller, door.node_id, (writer, to_writer))
        self._connections.add(connection)
        there = self._pump(reader, to_writer, lambda: self._rule(caller, door.node_id), first)
        back = self._pump(to_reader, writer, lambda: self._rule(door.node_id, caller))
        connection.tasks = [self._loop.create_task(there), self._loop.create_task(back)]
        try:
            await asyncio.gather(*connection.tasks)
        finally:
            connection.abort()
            self._connections.discard(connection)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        rule: Callable[[], Rule],
        first: bytes = b"",
    ) -> None:
        """One direction: read as it comes, and passed on when its time has come."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_CHUNKS)
        if first:
            waiting.put_nowait((self._loop.time() + rule().delay_s, first))
        sender = self._loop.create_task(self._send(waiting, writer, rule))
        try:
            while True:
                try:
                    data = await reader.read(CHUNK_BYTES)
                except OSError:
                    data = b""  # a reset: for the other side it is an end
                await waiting.put((self._loop.time() + rule().delay_s, data))
                if not data:
                    await sender
                    return
        finally:
            sender.cancel()

    async def _send(
        self,
        waiting: asyncio.Queue[tuple[float, bytes]],
        writer: asyncio.StreamWriter,
        rule: Callable[[], Rule],
    ) -> None:
        """An empty piece is the end of what the other side has to say."""
        while True:
            due, data = await waiting.get()
            if due > self._loop.time():
                await asyncio.sleep(due - self._loop.time())
            if rule().is_cut:
                self.held_bytes += len(data)
                async with self._changed:
                    await self._changed.wait_for(lambda: not rule().is_cut)
            if not data:
                writer.close()
                return
            # The other side may be gone; its own direction finds that out, and ends this one.
            with contextlib.suppress(OSError):
                rate = rule().bytes_per_s
                step = len(data) if rate is None else SLOW_PIECE_BYTES
                for at in range(0, len(data), step):
                    writer.write(data[at : at + step])
                    await writer.drain()
                    if rate is not None:
                        await asyncio.sleep(min(step, len(data) - at) / rate)


async def _who(reader: asyncio.StreamReader) -> tuple[bytes, int]:
    """The first bytes of a connection, and which node they come from."""
    try:
        first = await reader.readexactly(_FIRST.size)
        length = _FIRST.unpack(first)[4]
        name = await reader.readexactly(max(length, 0))
    except asyncio.IncompleteReadError as short:
        if short.partial:
            return short.partial, CLIENTS
        raise ConnectionResetError("closed before it said anything") from None
    found = NODE_CLIENT_ID.fullmatch(name.decode(errors="replace"))
    return first + name, int(found[1]) if found else CLIENTS
