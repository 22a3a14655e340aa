"""Faults at every boundary of a node: found by watching it work, raised one at a time.

A boundary is where the node begins a piece of work that is somebody's own: a task, a callback of the loop, a timer, a
job of a thread, a handler, a decision and a replay of a shard or of the controller, a follower of the metadata, a
callback of a connection. `Faults.install` puts a gate at each. An open gate notes that it was passed, so that a warm-up
says which there are and a new one is covered without editing anything; a gate that is armed raises `Boom` once.

Tasks that wait are struck where they wait: what they wait for raises. A gate stands where something can fail, not
before a function that catches all that fails in it: those are named in NO_BOUNDARIES.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Final, NamedTuple

import pytest

from ottla.controller.controller import Controller
from ottla.controller.runtime import ControllerRuntime
from ottla.coordinator.group.shard import GroupCoordinatorShard
from ottla.coordinator.runtime import CoordinatorContext
from ottla.coordinator.transaction.coordinator import TransactionCoordinator
from ottla.metadata.loader import MetadataPublisher
from ottla.model import tasks
from ottla.model.pending import Pending
from ottla.model.time_slice import PacedCalls
from ottla.node.coordinators import LoopScheduler, PartitionLog
from ottla.node.publisher import Publisher
from ottla.server import handlers
from ottla.server.dispatch import Dispatcher
from ottla.server.network.connection import Connection, Listener
from ottla.server.network.output import SocketOutput
from ottla.server.network.socket_server import Acceptor
from ottla.server.registry import Route, routes
from ottla.share.coordinator import ShareCoordinatorShard

# Callbacks that have the gates inside, or cannot raise.
NO_BOUNDARIES: Final = (
    "guarded.",  # the gate is around what it guards
    "PacedCalls.",  # around each of its calls
    "SharedTimeSlice._next_turn",  # sets a number
    "spawn.",  # closes a coroutine
    "CoordinatorContext._flush_soon",  # flush() undoes what cannot be built or appended; both have gates
    "Connection._next_turn",  # serves on: dispatch and output have gates
    "Connection.connection_made",  # admits: that has a gate
    "_Turns._give",  # settles futures, and comes again whatever becomes of them
)


class Boom(Exception):
    """What a gate raises."""


class Gate(NamedTuple):
    kind: str
    name: str


class Faults:
    """The gates of this process: what was passed, and which is armed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._armed: Gate | None = None
        self._live: set[_Steps] = set()
        self.seen: dict[Gate, int] = {}
        self.raised: str | None = None

    # ---- what a test does ---------------------------------------------------------------------------------

    def forget(self) -> None:
        with self._lock:
            self.seen = {}

    def arm(self, gate: Gate) -> None:
        """The next to pass it gets the exception; a task that waits behind it is struck where it waits."""
        with self._lock:
            self._armed, self.raised = gate, None
            waiting = next((steps for steps in self._live if steps.gate == gate), None)
        if waiting is not None:
            waiting.strike()

    def disarm(self) -> None:
        with self._lock:
            self._armed = None

    # ---- what a gate does ---------------------------------------------------------------------------------

    def take(self, gate: Gate) -> Boom | None:
        with self._lock:
            self.seen[gate] = self.seen.get(gate, 0) + 1
            if self._armed != gate:
                return None
            self._armed = None
            self.raised = f"boom {next(self._numbers)}"
            return Boom(f"{self.raised} at {gate.kind} {gate.name}")

    def pass_(self, gate: Gate) -> None:
        boom = self.take(gate)
        if boom is not None:
            raise boom

    def gated(self, call: Callable[..., Any], kind: str, name: str | None = None) -> Callable[..., Any]:
        gate = Gate(kind, _plain(name or _called(call)))

        def pass_gate(*args: Any, **kwargs: Any) -> Any:
            self.pass_(gate)
            return call(*args, **kwargs)

        return pass_gate

    # ---- where the gates are ------------------------------------------------------------------------------

    def install(self, patch: pytest.MonkeyPatch) -> None:
        handlers.load()
        handlers.load_rest()
        self._install_tasks(patch)
        self._install_loop(patch)
        self._install_threads(patch)
        self._install_handlers(patch)
        self._install_connections(patch)
        self._install_decisions(patch)
        self._install_followers(patch)

    def _install_tasks(self, patch: pytest.MonkeyPatch) -> None:
        supervise, restart, guarded = tasks._supervise, tasks._restart, tasks.guarded

        def supervised(work: Coroutine[Any, Any, Any], name: str, owner: str, failed: Any) -> Any:
            if work.__name__ == restart.__name__:
                return supervise(work, name, owner, failed)
            return supervise(
                _Steps(self, Gate("task", _plain(f"{owner}: {name}")), work), name, owner, failed
            )  # type: ignore[arg-type]

        def restarted(make: Callable[[], Coroutine[Any, Any, None]], name: str, owner: str) -> Any:
            gate = Gate("restarted task", _plain(f"{owner}: {name}"))

            async def made() -> None:
                await _Steps(self, gate, make())

            return restart(made, name, owner)

        def guard(call: Callable[..., object], *, name: str, owner: str, failed: Any = None) -> Any:
            gated = self.gated(call, "callback", f"{owner}: {name}")
            return guarded(gated, name=name, owner=owner, failed=failed)

        restarted.__name__ = restart.__name__
        patch.setattr(tasks, "_supervise", supervised)
        patch.setattr(tasks, "_restart", restarted)
        for module in list(sys.modules.values()):
            if module.__name__.startswith("ottla.") and getattr(module, "guarded", None) is guarded:
                patch.setattr(module, "guarded", guard)

    def _install_loop(self, patch: pytest.MonkeyPatch) -> None:
        for name, place in {"call_soon": 0, "call_later": 1, "call_at": 1, "call_soon_threadsafe": 0}.items():
            patch.setattr(
                asyncio.BaseEventLoop, name, self._scheduling(getattr(asyncio.BaseEventLoop, name), place)
            )
        patch.setattr(PacedCalls, "call_soon", self._paced(PacedCalls.call_soon))
        patch.setattr(LoopScheduler, "call_later", self._timed(LoopScheduler.call_later))

    def _scheduling(self, schedule: Callable[..., Any], place: int) -> Callable[..., Any]:
        @wraps(schedule)
        def scheduled(loop: Any, *args: Any, **kwargs: Any) -> Any:
            callback = self._gated_once(args[place], "loop callback")
            return schedule(loop, *args[:place], callback, *args[place + 1 :], **kwargs)

        return scheduled

    def _paced(self, call_soon: Callable[..., Any]) -> Callable[..., Any]:
        return lambda calls, call: call_soon(calls, self._gated_once(call, "call of the next turn"))

    def _timed(self, call_later: Callable[..., Any]) -> Callable[..., Any]:
        return lambda scheduler, delay, call: call_later(scheduler, delay, self._gated_once(call, "timer"))

    def _gated_once(self, call: Callable[..., Any], kind: str) -> Callable[..., Any]:
        if not _is_ours(call) or _called(call).startswith(NO_BOUNDARIES):
            return call
        return self.gated(call, kind)

    def _install_threads(self, patch: pytest.MonkeyPatch) -> None:
        submit = ThreadPoolExecutor.submit

        def submitted(pool: ThreadPoolExecutor, job: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
            return submit(pool, self._gated_once(job, "thread job"), *args, **kwargs)

        patch.setattr(ThreadPoolExecutor, "submit", submitted)

    def _install_handlers(self, patch: pytest.MonkeyPatch) -> None:
        for listener in Listener:
            for key, route in list(routes(listener).items()):
                patch.setitem(routes(listener), key, self._gated_route(route))

    def _gated_route(self, route: Route) -> Route:
        name = route.request.__name__.removesuffix("Request")
        if route.raw is not None:
            return replace(route, raw=self._gated_handler(route.raw, name))
        assert route.handler is not None
        return replace(route, handler=self._gated_handler(route.handler, name))

    def _gated_handler(self, handler: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A handler fails when it is called, or later, if it has something to wait for."""
        awaited, answered = Gate("waiting handler", name), Gate("answer of a coordinator", name)

        async def wait(work: Coroutine[Any, Any, Any]) -> Any:
            try:
                self.pass_(awaited)
            except Boom:
                work.close()
                raise
            return await work

        def answer(value: Any) -> Any:
            self.pass_(answered)
            return value

        def handle(*args: Any) -> Any:
            self.pass_(Gate("handler", name))
            result = handler(*args)
            if inspect.iscoroutine(result):
                return wait(result)
            return result.map(answer) if isinstance(result, Pending) else result

        return handle

    def _install_connections(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("get_buffer", "buffer_updated", "eof_received"):
            real = getattr(Connection, name)
            patch.setattr(Connection, name, self.gated(real, "connection", name))
        for owner, name in (
            (Acceptor, "opened"),
            (Dispatcher, "__call__"),
            (SocketOutput, "write"),
            (SocketOutput, "flush"),
        ):
            called = f"{owner.__name__}.{name}"
            patch.setattr(owner, name, self.gated(getattr(owner, name), "connection", called))
        lost = Connection.connection_lost

        def connection_lost(connection: Connection, error: BaseException | None) -> None:
            lost(connection, error)  # what it has to do is done: only then can somebody have failed
            self.pass_(Gate("connection", "connection_lost"))

        patch.setattr(Connection, "connection_lost", connection_lost)

    def _install_decisions(self, patch: pytest.MonkeyPatch) -> None:
        decide, submit, write = Controller._decide, ControllerRuntime.submit, CoordinatorContext.write

        def decided(controller: Controller, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
            return decide(controller, self.gated(call, "decision of the controller"), *args, **named)

        def submitted(runtime: ControllerRuntime, call: Callable[..., Any]) -> Any:
            return submit(runtime, self.gated(call, "decision of the controller", "any"))

        def written(
            shard: CoordinatorContext[Any], operation: Callable[..., Any], *args: Any, **named: Any
        ) -> Any:
            kind = f"decision of a shard of {type(shard.machine).__name__}"
            return write(shard, self.gated(operation, kind), *args, **named)

        patch.setattr(Controller, "_decide", decided)
        patch.setattr(ControllerRuntime, "submit", submitted)
        patch.setattr(CoordinatorContext, "write", written)
        patch.setattr(
            CoordinatorContext, "_build", self.gated(CoordinatorContext._build, "batch of a shard", "built")
        )
        patch.setattr(PartitionLog, "append", self.gated(PartitionLog.append, "batch of a shard", "appended"))
        for machine in (GroupCoordinatorShard, TransactionCoordinator, ShareCoordinatorShard):
            name = machine.__name__
            patch.setattr(machine, "replay", self.gated(machine.replay, "replay", name))
            ended = self.gated(machine.replay_end_transaction, "replay of a marker", name)
            patch.setattr(machine, "replay_end_transaction", ended)

    def _install_followers(self, patch: pytest.MonkeyPatch) -> None:
        follow, subscribe = Publisher.follow, MetadataPublisher.subscribe
        patch.setattr(
            Publisher, "follow", lambda publisher, call: follow(publisher, self.gated(call, "follower"))
        )
        patch.setattr(
            MetadataPublisher,
            "subscribe",
            lambda publisher, call: subscribe(publisher, self.gated(call, "subscriber")),
        )


class _Steps:
    """A coroutine that can be struck whenever it goes on."""

    def __init__(self, faults: Faults, gate: Gate, work: Coroutine[Any, Any, Any]) -> None:
        self.gate = gate
        self._faults = faults
        self._work = work
        self._struck = False
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def strike(self) -> None:
        """From any thread: what it waits for raises."""
        assert self._loop is not None

        def strike() -> None:
            if self._task is not None and not self._task.done():
                self._struck = True
                self._task.cancel()

        self._loop.call_soon_threadsafe(strike)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        error: BaseException | None = None
        has_waited = False
        self._faults._live.add(self)
        try:
            while True:
                try:
                    waits_for = self._work.send(None) if error is None else self._work.throw(error)
                except StopIteration as stop:
                    if not has_waited:
                        self._faults.pass_(self.gate)  # what it did last raises
                    return stop.value
                error, has_waited = None, True
                try:
                    yield waits_for
                except asyncio.CancelledError as cancelled:
                    error = self._converted(cancelled)
                except BaseException as failure:  # noqa: BLE001 - it is the work's
                    error = failure
                else:
                    error = self._faults.take(self.gate)
        finally:
            self._faults._live.discard(self)

    def _converted(self, cancelled: asyncio.CancelledError) -> BaseException:
        if not self._struck:
            return cancelled
        self._struck = False
        assert self._task is not None
        self._task.uncancel()
        return self._faults.take(self.gate) or Boom("struck twice")


def _called(call: Callable[..., Any]) -> str:
    while isinstance(call, partial):
        call = call.func
    return getattr(call, "__qualname__", type(call).__qualname__)


def _is_ours(call: Callable[..., Any]) -> bool:
    while isinstance(call, partial):
        call = call.func
    module = getattr(call, "__module__", None) or type(getattr(call, "__self__", None)).__module__
    return module.startswith("ottla.")


def _plain(name: str) -> str:
    """Without what differs from one time to the next: numbers, and words that have one."""
    return re.sub(r"[^\s'\"(),]*\d[^\s'\"(),]*", "#", name)
