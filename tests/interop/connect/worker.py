"""A Connect worker in distributed mode, in a process of its own, and its REST interface.

worker = ConnectWorker(tmp_path / "one", node.address, group="connect")
worker.start(); worker.put("source", {...}); worker.task_states("source"); worker.kill()
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tests.interop.apache import HERE, SMALL_HEAP
from tests.interop.maven import fetch_jars
from tests.interop.process import free_ports, wait_until

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
FILE = "org.apache.kafka.connect.file.FileStream"


class ConnectWorker:
    """One worker of a Connect cluster; workers with one group share the tasks."""

    def __init__(
        self, where: Path, address: str, group: str, settings: Mapping[str, object] | None = None
    ) -> None:
        """`settings`: more of the worker's own."""
        where.mkdir(parents=True, exist_ok=True)
        self._where = where
        self._port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None
        converter = "org.apache.kafka.connect.storage.StringConverter"
        properties = {
            "bootstrap.servers": address,
            "group.id": group,
            "key.converter": converter,
            "value.converter": converter,
            "offset.storage.topic": f"{group}-offsets",
            "config.storage.topic": f"{group}-configs",
            "status.storage.topic": f"{group}-status",
            "offset.storage.replication.factor": 1,
            "config.storage.replication.factor": 1,
            "status.storage.replication.factor": 1,
            "offset.storage.partitions": 2,
            "status.storage.partitions": 2,
            "offset.flush.interval.ms": 500,
            "listeners": f"http://127.0.0.1:{self._port}",
            # The connectors are on the class path, as in a container image.
            "plugin.discovery": "only_scan",
            "scheduled.rebalance.max.delay.ms": 1000,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 1000,
            **(settings or {}),
        }
        self._config = where / "worker.properties"
        self._config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))

    def start(self) -> None:
        self.launch()
        self.wait(self._serves, "a Connect worker serves", START_TIMEOUT_S)

    def launch(self) -> None:
        """Start it, and do not wait."""
        assert self._process is None, "it runs already"
        jars = fetch_jars(HERE / "connect" / "pom.xml", "connect-jars")
        command = [
            *("java", *SMALL_HEAP, f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"),
            *("-cp", f"{jars}/*", "org.apache.kafka.connect.cli.ConnectDistributed", str(self._config)),
        ]
        with (self._where / "log").open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    def wait_end(self) -> str:
        """Until it has given up by itself; what it said."""
        assert self._process is not None
        self._process.wait(START_TIMEOUT_S)
        return self.log_text()

    def _serves(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log_text()
        try:
            self.get("/connectors")
        except (URLError, ConnectionError):
            return False
        return True

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait, and tell what the worker said if it was in vain."""
        try:
            wait_until(condition, timeout_s, what)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.log_text()}") from error

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(STOP_TIMEOUT_S)

    def log_text(self) -> str:
        return (self._where / "log").read_text(errors="replace")[-8000:]

    # ---- REST ---------------------------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        with urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=30) as answer:
            return json.load(answer)

    def put(self, name: str, config: dict[str, object]) -> None:
        """Make a connector, or give it another configuration; a rebalance in between is waited for."""
        request = Request(
            f"http://127.0.0.1:{self._port}/connectors/{name}/config",
            data=json.dumps(config).encode(),
            headers={"Content-Type": "application/json"},
            method="PUT",
        )
        self.wait(lambda: self._accepted(request), f"{name} is accepted", START_TIMEOUT_S)

    def _accepted(self, request: Request) -> bool:
        try:
            with urlopen(request, timeout=60) as answer:
                return answer.status in (200, 201)
        except HTTPError as error:
            if error.code in (409, 500):  # a rebalance goes on
                return False
            raise AssertionError(error.read().decode()) from error

    def task_states(self, name: str) -> list[str]:
        """The states of a connector's tasks; none while the cluster settles."""
        return [task["state"] for task in self.tasks(name)]

    def tasks(self, name: str) -> list[dict[str, Any]]:
        """What a connector's tasks do, and the trace of why not."""
        try:
            tasks: list[dict[str, Any]] = self.get(f"/connectors/{name}/status")["tasks"]
        except HTTPError:
            return []
        return tasks
