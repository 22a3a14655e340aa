"""A node in a thread of this process, for tests of programs that talk to Kafka.

    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

It is the same node that `ottla serve` runs, on free ports of loopback and in a temporary directory unless told
otherwise.
"""

import asyncio
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from ottla.config.broker import BrokerConfig
from ottla.node.node import Node

START_TIMEOUT_S = 30.0


class Broker:
    """A broker with its controller, for as long as the `with` block."""

    def __init__(self, settings: Mapping[str, object] | None = None, data_dir: Path | None = None) -> None:
        self._temporary = None if data_dir is not None else tempfile.TemporaryDirectory(prefix="ottla-")
        self.data_dir = data_dir or Path(self._temporary.name if self._temporary is not None else ".")
        listeners = "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"
        given = {"log.dirs": str(self.data_dir), "listeners": listeners, **(settings or {})}
        self._config = BrokerConfig.of(given)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.node: Node

    @property
    def bootstrap_servers(self) -> str:
        return self.node.bootstrap_servers

    def start(self) -> Self:
        """Serve; what keeps the broker from starting is raised here."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="ottla-broker")
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            raise TimeoutError(f"the broker did not start within {START_TIMEOUT_S:.0f} s")
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def stop(self) -> None:
        """Stop cleanly; the directory stays if it was given."""
        if self._thread is not None and self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._thread = None
        if self._temporary is not None:
            self._temporary.cleanup()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.node = Node(self._config, on_fatal=lambda error: self._stop.set())
        try:
            await self.node.start()
        except BaseException as error:  # noqa: BLE001 - it is raised where start() was called
            self._failure = error
            self._started.set()
            return
        self._started.set()
        await self._stop.wait()
        await self.node.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
