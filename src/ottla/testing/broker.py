"""A cluster of one node inside a test of a program that talks to Kafka.

    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

It is the same node that `ottla serve` runs, on free ports of loopback and in a temporary directory unless told
otherwise.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from ottla.config.broker import BrokerConfig
from ottla.node.node import Node
from ottla.testing.running_node import RunningNode


class Broker:
    """A broker with its controller, for as long as the `with` block."""

    def __init__(self, settings: Mapping[str, object] | None = None, data_dir: Path | None = None) -> None:
        self._temporary = None if data_dir is not None else tempfile.TemporaryDirectory(prefix="ottla-")
        self.data_dir = data_dir or Path(self._temporary.name if self._temporary is not None else ".")
        listeners = "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"
        given = {"log.dirs": str(self.data_dir), "listeners": listeners, **(settings or {})}
        self._running = RunningNode(BrokerConfig.of(given))

    @property
    def node(self) -> Node:
        return self._running.node

    @property
    def bootstrap_servers(self) -> str:
        return self.node.bootstrap_servers

    def start(self) -> Self:
        """Serve; what keeps the broker from starting is raised here."""
        self._running.start()
        return self

    def stop(self) -> None:
        """Stop cleanly; the directory stays if it was given."""
        self._running.stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
