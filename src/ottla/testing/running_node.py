"""A node in a thread of this process, with a loop of its own."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self

from ottla.config.broker import BrokerConfig
from ottla.model.tasks import guarded
from ottla.node.node import Node

START_TIMEOUT_S = 30.0
# Much longer than a stop takes: a test's run is not to wait for ever for a node that has lost its way.
STOP_TIMEOUT_S = 120.0


class RunningNode:
    """The same node that `ottla serve` runs; started and stopped any number of times."""

    def __init__(self, config: BrokerConfig, cluster_id: str | None = None) -> None:
        self._config = config
        self._cluster_id = cluster_id
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._serving: Coroutine[Any, Any, None]
        self.node: Node

    def launch(self) -> None:
        """Begin to start, without waiting for it: nodes of a cluster may need one another to come up."""
        self._started.clear()
        self._failure = None
        name = f"ottla-node-{self._config.node_id}"
        # Daemon: who has not stopped in time does not keep the process from its end.
        self._serving = self._serve()
        self._thread = threading.Thread(target=asyncio.run, args=[self._serving], name=name, daemon=True)
        self._thread.start()

    def wait(self) -> Self:
        """Wait until it serves; what keeps it from starting is raised here."""
        assert self._thread is not None
        if not self._started.wait(START_TIMEOUT_S):
            raise TimeoutError(f"node {self._config.node_id} did not start within {START_TIMEOUT_S:.0f} s")
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def start(self) -> Self:
        self.launch()
        return self.wait()

    def stop_broker(self) -> "concurrent.futures.Future[None] | None":
        """Begin to stop the broker role alone; done when the controller has let it go and it has stopped."""
        if (
            self._loop is None
            or self._thread is None
            or not self._started.is_set()
            or self._failure is not None
        ):
            return None
        return asyncio.run_coroutine_threadsafe(self.node.stop_broker(), self._loop)

    def stop(self) -> None:
        """Stop cleanly; TimeoutError, with what it waits for, if it does not stop."""
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None and thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            if not self._started.is_set():
                interrupt = guarded(self.node.interrupt, name="interrupting a start", owner="node")
                self._loop.call_soon_threadsafe(interrupt)
            thread.join(STOP_TIMEOUT_S)
            if thread.is_alive():
                raise TimeoutError(
                    f"node {self._config.node_id} did not stop within {STOP_TIMEOUT_S:.0f} s: "
                    f"it stands at {_where(self._serving)}"
                )

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self.node = Node(self._config, cluster_id=self._cluster_id, on_fatal=lambda error: self._stop.set())
        self._loop = asyncio.get_running_loop()
        try:
            await self.node.start()
        except BaseException as error:  # noqa: BLE001 - it is raised where the start was asked for
            self._failure = error
            self._started.set()
            return
        self._started.set()
        await self._stop.wait()
        await self.node.stop()


def _where(coroutine: Any) -> str:
    """The lines at which a coroutine and those that it awaits stand."""
    lines = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        coroutine = coroutine.cr_await
    return ", ".join(lines) or "its end: a thread is at work"
