"""Ottla, started as a user starts it: the installed `ottla serve` in a process of its own.

    from tests.interop.ottla_node import OttlaNode

    with OttlaNode(tmp_path / "data", {"log.segment.bytes": 1048576}) as node:
        node.address, node.controller_port, node.log_text(), node.rss_bytes() ...

The interface is `ServerProcess`'s, as of `ApacheKafka`, so a script takes either. The broker listener's port
is the one that `ottla serve` says in its line `listening on HOST:PORT`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.interop.process import HOST, ServerProcess, free_ports, is_serving

OTTLA = Path(sys.executable).with_name("ottla")
LISTENING = re.compile(r"listening on (\S+):(\d+)")


class OttlaNode(ServerProcess):
    """One Ottla node with both roles, on a port that it chooses unless the caller does."""

    kind = "ottla"
    start_timeout_s = 120.0
    stop_timeout_s = 120.0

    def __init__(
        self,
        data_dir: Path,
        overrides: Mapping[str, object] | None = None,
        *,
        port: int = 0,
        controller_port: int | None = None,
        log_dirs: Sequence[Path] | None = None,
        work_dir: Path | None = None,
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        watch_stalls: bool = False,
    ) -> None:
        super().__init__(data_dir, work_dir=work_dir)
        self.wanted_port = port
        self.controller_port = controller_port or free_ports(1)[0]
        self.overrides = dict(overrides or {})
        self.log_dirs = list(log_dirs or [self.data_dir])
        self.prefix = tuple(prefix)  # e.g. a shell that sets limits before it becomes the server
        self.env = dict(env or {})
        self.watch_stalls = (
            watch_stalls  # a heartbeat of two milliseconds: it costs, so only where it is read
        )

    @property
    def bootstrap_servers(self) -> str:
        """The address, by the name that a broker in the test's own process and a cluster have for theirs."""
        return self.address

    def settings(self) -> dict[str, object]:
        """What is given with -X: listeners, then the caller's overrides."""
        listeners = f"PLAINTEXT://{HOST}:{self.wanted_port},CONTROLLER://{HOST}:{self.controller_port}"
        several = {"log.dirs": ",".join(map(str, self.log_dirs))} if len(self.log_dirs) > 1 else {}
        return {
            "listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            **several,
            **self.overrides,
        }

    def command(self) -> list[str]:
        settings = [item for key, value in self.settings().items() for item in ("-X", f"{key}={value}")]
        return [*self.prefix, str(OTTLA), "serve", "--data-dir", str(self.data_dir), *settings]

    def environment(self) -> dict[str, str]:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("KAFKA_")}
        watch = {"OTTLA_STALL_REPORT": str(self.stall_path)} if self.watch_stalls else {}
        return {**inherited, **watch, "PYTHONUNBUFFERED": "1", **self.env}

    @property
    def stall_path(self) -> Path:
        """Where the node writes how long its event loop stood still, when it ends."""
        return self.work_dir / f"stalls-{self.starts}.json"

    def stalls(self) -> dict[str, float] | None:
        """What the last clean stop reported: {count, p50_ms, p99_ms, p999_ms, max_ms}, or None."""
        return json.loads(self.stall_path.read_text()) if self.stall_path.exists() else None

    def is_ready(self) -> bool:
        said = LISTENING.search(self.log_text())
        if said is None:
            return False
        self.port = int(said[2])
        return is_serving(self.host, self.port)

    def tool(
        self,
        name: str,
        *args: str,
        stdin: str | bytes | None = None,
        check: bool = True,
        timeout_s: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        """One of Kafka's Java tools against this node: --bootstrap-server is added."""
        from tests.interop.apache import run_tool  # the Java side is only fetched when it is used

        return run_tool(
            name, "--bootstrap-server", self.address, *args, stdin=stdin, check=check, timeout_s=timeout_s
        )
