"""What every client with a loop stands on: a network core with its driver, metadata, any request to any broker.

An AsyncClient is owned by the loop it was started in. A blocking client (Blocking) is an asyncio twin whose loop runs
in a thread of its own, and the lock between the two.
"""

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self, TypeVar

from ottla import __version__
from ottla.client.config import ClientConfig
from ottla.client.errors import Closed
from ottla.client.lookups import FirstContact, LeaderLookup, Question, TopicLookup, all_found
from ottla.client.metadata import TopicInfo
from ottla.client.network import Ask, ErrorOf, NetworkCore, R, Target, To, top_level_error
from ottla.client.offsets import OffsetAndTimestamp, list_offsets_question
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.net.aio import Driver
from ottla.net.sasl import authenticator_of
from ottla.net.transport import monotonic_ms


class AsyncClient:
    """Connections, metadata, and any request to any broker; the ground the others stand on."""

    CONFIG: type[ClientConfig] = ClientConfig

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        ssl_context: ssl.SSLContext | None = None,
        lock: AbstractContextManager[Any] | None = None,
        **more: Any,
    ) -> None:
        self.config = self.CONFIG.of({**(settings or {}), **more})
        self._lock: AbstractContextManager[Any] = lock if lock is not None else nullcontext()
        self._security = self.config.security(ssl_context)
        self.core = NetworkCore(
            self.config, software_version=__version__, authenticator=authenticator_of(self._security)
        )
        self._driver: Driver | None = None

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            raise Closed("the client is not started, or is closed")
        return self._driver

    async def start(self) -> Self:
        """Find the cluster; NoBrokersAvailable if there is none within bootstrap_timeout_ms."""
        if self._driver is None:
            self._driver = Driver(self.core, ssl_context=self._security.ssl_context, lock=self._lock)
            try:
                contact = FirstContact(self.core, self.config.bootstrap_timeout_ms)
                await self._driver.until(contact.is_settled, contact.limit_ms)
                contact.check()
            except BaseException:
                await self.close()
                raise
        return self

    async def close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            await driver.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def request(
        self,
        request: Any,
        to: Target = To.ANY,
        *,
        timeout_ms: float | None = None,
        error_of: ErrorOf = top_level_error,
        at_most: int | None = None,
        adapt: Callable[[Any, int], Any] | None = None,
    ) -> Any:
        """Send any request to whom it is for; retried while `error_of` finds an error that passes."""
        return await self.ask(
            Ask(request, to, lambda response: response, error_of=error_of, at_most=at_most, adapt=adapt),
            timeout_ms,
        )

    async def ask(self, ask: Ask[R], timeout_ms: float | None = None) -> R:
        """Put a question; its answer as `Ask.read` has it."""
        driver = self.driver
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        now = monotonic_ms()
        limit = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        with driver.lock:
            self.core.call(ask.call(now + limit, settle(future)), now)
        driver.wake()
        return ask.read(await future)

    async def topic(self, name: str, timeout_ms: float | None = None) -> TopicInfo:
        """What the cluster says of a topic; UNKNOWN_TOPIC_OR_PARTITION if it does not know it in time."""
        lookup = TopicLookup(self.core, name, monotonic_ms())
        limit = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        await self.driver.until(lookup.is_settled, limit)
        return lookup.result()

    async def ask_leaders(
        self, partitions: Iterable[TopicPartition], question: Question, timeout_ms: float | None = None
    ) -> dict[TopicPartition, Any]:
        """A question to the leaders of partitions; the value for a partition that failed is its KafkaError."""
        driver = self.driver
        with driver.lock:
            lookup = LeaderLookup(self.core, partitions, question, monotonic_ms(), timeout_ms)
        await driver.until(lookup.is_settled, lookup.limit_ms)
        return lookup.results

    async def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        read_committed: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets by timestamp, or by a special one (ottla.client.offsets); the first error is raised."""
        question = list_offsets_question(timestamps, self.core, read_committed=read_committed)
        return all_found(await self.ask_leaders(timestamps, question, timeout_ms))


def settle(future: "asyncio.Future[Any]") -> Callable[[Any, KafkaError | None, float], None]:
    """The callback that puts an outcome into a future, unless its waiter has gone."""

    def done(response: Any, error: KafkaError | None, now: float) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(response)

    return done


T = TypeVar("T")


class LoopThread:
    """An event loop in a thread; `run` waits for a coroutine's result."""

    def __init__(self, name: str) -> None:
        self._loop = _new_loop()
        self._lock = threading.RLock()  # nothing is given to the loop after the word to stop
        self._stopped = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        # What another thread asked for at the last moment is over, too: it must not wait for that for ever.
        if tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Does a callback ask, in the loop's own thread?"""
        return threading.current_thread() is self._thread

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self.is_current:
            coroutine.close()
            raise RuntimeError("a callback runs in the client's own thread and cannot wait for the client")
        with self._lock:
            if self._stopped or not self._thread.is_alive():
                coroutine.close()
                raise Closed()
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise Closed() from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        if self._thread.is_alive():
            with self._lock:
                if not self._stopped:
                    self._stopped = True
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
        if self._thread.is_current:
            # The loop has to live for whoever waits for it, in a flush perhaps.
            raise RuntimeError("a callback runs in the client's own thread and cannot close the client")
        try:
            if self._thread.is_alive:
                self._run(close())
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
