"""The event loop of one simulated process, in simulated time and by one seed.

Everything that asyncio needs and no more: futures, tasks and timers. A turn is an event of the simulation, and takes a
while, so that other events of the same node come in between. When the process ends its tasks end with it, wherever they
are: nothing of them is heard of any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

# A task that is cancelled ends within some turns.
MAX_LAST_TURNS = 100


class Scheduler(Protocol):
    """The time of the simulation."""

    @property
    def now_ms(self) -> float: ...
    def after(self, delay_ms: float, call: Callable[..., None], *arguments: Any) -> None: ...


class _Handle:
    """Something that will be called, unless it is cancelled."""

    __slots__ = ("_arguments", "_call", "is_cancelled")

    def __init__(self, call: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._call = call
        self._arguments = arguments
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def run(self) -> None:
        if not self.is_cancelled:
            self._call(*self._arguments)


class _Current:
    """While it is entered a loop is the running one. Not a generator: it is entered with every event."""

    __slots__ = ("_loop", "_outer")

    def __init__(self, loop: ProcessLoop) -> None:
        self._loop = loop

    def __enter__(self) -> None:
        self._outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self._loop)

    def __exit__(self, *_: object) -> None:
        asyncio._set_running_loop(self._outer)


class ProcessLoop(asyncio.AbstractEventLoop):
    """A process that can end between any two steps. Context variables are not for here."""

    def __init__(
        self, scheduler: Scheduler, turn_ms: Callable[[], float], after_turn: Callable[[], None]
    ) -> None:
        """`turn_ms` says how long a turn takes to come, `after_turn` is called when one is over."""
        self._scheduler = scheduler
        self._turn_ms = turn_ms
        self._after_turn = after_turn
        self._ready: list[_Handle] = []
        self._turn_is_due = False
        self._in_turn = False
        self._is_over = False
        # In the order in which they were started.
        self._tasks: dict[asyncio.Task[Any], None] = {}

    # --- what asyncio calls

    def get_debug(self) -> bool:
        return False

    def time(self) -> float:
        return self._scheduler.now_ms / 1000

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **named: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=named.get("name"))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def call_soon(self, callback: Callable[..., object], *args: Any, **_: Any) -> Any:
        handle = _Handle(callback, args)
        self._ready.append(handle)
        if not (self._turn_is_due or self._in_turn or self._is_over):
            self._schedule_turn()
        return handle

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, **_: Any) -> Any:
        handle = _Handle(callback, args)
        self._scheduler.after(delay * 1000, self._expire, handle)
        return handle

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, **_: Any) -> Any:
        return self.call_later(when - self.time(), callback, *args)

    # --- turns

    def current(self) -> _Current:
        """The code within runs on this loop."""
        return _Current(self)

    def run_at_once(self, work: Coroutine[Any, Any, T]) -> T:
        """A coroutine that has nothing to wait for."""
        with self.current():
            try:
                work.send(None)
            except StopIteration as end:
                result: T = end.value
                return result
        raise AssertionError("it waits")

    def _schedule_turn(self) -> None:
        self._turn_is_due = True
        self._scheduler.after(self._turn_ms(), self._turn)

    def _expire(self, handle: _Handle) -> None:
        if not (handle.is_cancelled or self._is_over):
            self.call_soon(handle.run)

    def _turn(self) -> None:
        self._turn_is_due = False
        if self._is_over:
            return
        self._run_ready()
        if self._is_over:
            self._end_tasks()
            return
        if self._ready:
            self._schedule_turn()
        self._after_turn()

    def _run_ready(self) -> None:
        ready, self._ready = self._ready, []
        self._in_turn = True
        try:
            with self.current():
                for number, handle in enumerate(ready, 1):
                    handle.run()
                    if self._is_over:
                        # The tasks among them have to be ended.
                        self._ready = ready[number:] + self._ready
                        break
        finally:
            self._in_turn = False

    # --- the end

    def end(self) -> None:
        """The process is gone; a step that is being run is its last."""
        self._is_over = True
        if not self._in_turn:
            self._end_tasks()

    def _end_tasks(self) -> None:
        """Nobody hears of them any more; but Python complains of tasks that never end."""
        with self.current():
            for _ in range(MAX_LAST_TURNS):
                for task in list(self._tasks):
                    task.cancel()
                ready, self._ready = self._ready, []
                for handle in ready:
                    handle.run()
                if not (self._tasks or self._ready):
                    return
        raise AssertionError(f"they do not end: {list(self._tasks)}")
