"""What the blocking clients share: their asyncio twin, its loop in a thread of its own, the lock between the two."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from ottla.client.base import AsyncClient
from ottla.client.calls import Target, To
from ottla.client.errors import Closed

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread; `run` waits for a coroutine's result."""

    def __init__(self, name: str) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a callback runs in the client's own thread and cannot wait for the client")
        if not self._thread.is_alive():
            coroutine.close()
            raise Closed()
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class Blocking:
    """What they have in common: a twin, its thread, the lock between the two."""

    def __init__(self, make: Callable[[Any], AsyncClient]) -> None:
        self._lock = threading.RLock()  # a delivery callback, run under it, may send again
        self._twin = make(self._lock)
        self._thread = LoopThread(f"ottla-{type(self).__name__.lower()}")
        try:
            self._run(self._twin.start())
        except BaseException:
            self._thread.stop()
            raise

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(coroutine)

    def request(self, request: Any, to: Target = To.ANY, *, timeout_ms: float | None = None) -> Any:
        """Send any request to any broker, the controller, a node or a partition's leader."""
        return self._run(self._twin.request(request, to, timeout_ms=timeout_ms))

    def close(self) -> None:
        """Close; a second time is no error."""
        self._close(self._twin.close)

    def _close(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            if self._thread.is_alive:
                self._run(close())
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
