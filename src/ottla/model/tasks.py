"""Starting work on the loop so that none of it fails unseen: the one way to start a task, and a guard for callbacks.

The error policy (CONTRIBUTING.md): whatever runs by itself has a name, which says what it does, and an owner, which
says whose it is. An exception in it is logged once, here, with both; then `failed` is called, which fails, closes or
restarts that one thing. Work without which the node must not go on is given the node's own `failed`, and the node ends.

A task that is cancelled ends silently: cancelling is how owners stop what is theirs.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

logger = logging.getLogger("ottla.tasks")

Failed = Callable[[Exception], object]

# How long a task that failed waits before it is started again: doubled each time it fails at once, up to the second.
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
# One that ran for this long before it failed begins with the first pause again.
STEADY_S: Final = 60.0

_P = ParamSpec("_P")
_T = TypeVar("_T")

# The loop itself holds its tasks weakly: one that nobody else holds could vanish in the middle.
_running: set[asyncio.Task[Any]] = set()


def spawn(
    work: Coroutine[Any, Any, _T], *, name: str, owner: str, failed: Failed | None = None
) -> asyncio.Task[_T | None]:
    """Starts a task on the running loop; the result of a task that failed is None."""
    task = asyncio.get_running_loop().create_task(
        _supervise(work, name, owner, failed), name=f"{owner}: {name}"
    )
    _running.add(task)
    task.add_done_callback(_running.discard)
    # A task that is cancelled before its first turn has never begun with the work: Python would complain of it.
    task.add_done_callback(lambda _: work.close())
    return task


def spawn_restarting(
    make: Callable[[], Coroutine[Any, Any, None]], *, name: str, owner: str
) -> asyncio.Task[None]:
    """Starts a task that is made and started again, after a pause, each time it fails; it ends when it returns."""
    return spawn(_restart(make, name, owner), name=name, owner=owner)


def guarded(
    call: Callable[_P, object], *, name: str, owner: str, failed: Failed | None = None
) -> Callable[_P, None]:
    """A callback for timers, futures and other loops' threads that never raises into whoever calls it."""

    def guard(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the boundary itself
            report(error, name=name, owner=owner, failed=failed)

    return guard


def report(error: Exception, *, name: str, owner: str, failed: Failed | None = None) -> None:
    """What a boundary does with an exception that nobody expected: one entry in the log, then the consequence."""
    logger.error("%s: %s failed: %s", owner, name, str(error) or type(error).__name__, exc_info=error)
    if failed is None:
        return
    try:
        failed(error)
    except Exception as second:
        logger.error("%s: the consequence of that failed too: %s", owner, second, exc_info=second)


async def _supervise(
    work: Coroutine[Any, Any, _T], name: str, owner: str, failed: Failed | None
) -> _T | None:
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - the boundary itself
        report(error, name=name, owner=owner, failed=failed)
        return None


async def _restart(make: Callable[[], Coroutine[Any, Any, None]], name: str, owner: str) -> None:
    clock = asyncio.get_running_loop().time
    pause_s = FIRST_PAUSE_S
    while True:
        begin = clock()
        try:
            await make()
            return
        except Exception as error:
            report(error, name=name, owner=owner)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # Its owner stops it, and it failed in ending: to begin anew now would be to go on for ever.
                raise asyncio.CancelledError from error
        if clock() - begin > STEADY_S:
            pause_s = FIRST_PAUSE_S
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
