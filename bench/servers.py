"""The two brokers under load, started and warmed up the same way."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.interop.apache import ApacheKafka, run_tool
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import ServerProcess, running
from tests.interop.scripts.script import Script

# A production-like JVM: the small test heap would punish Apache.
SERVER_JVM = (
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:+ExplicitGCInvokesConcurrent",
)
QUIET: dict[str, object] = {"log.retention.ms": -1, "log.segment.delete.delay.ms": 0}


def apache(where: Path, overrides: Mapping[str, object] | None = None) -> ApacheKafka:
    """Apache with a server's heap."""
    return ApacheKafka(where / "apache", {**QUIET, **(overrides or {})}, jvm=SERVER_JVM)


def ottla(
    where: Path, overrides: Mapping[str, object] | None = None, *, watch_stalls: bool = False
) -> OttlaNode:
    """Ottla as a user starts it."""
    return OttlaNode(where / "ottla", {**QUIET, **(overrides or {})}, watch_stalls=watch_stalls)


@contextlib.contextmanager
def both(where: Path, overrides: Mapping[str, object] | None = None) -> Iterator[dict[str, ServerProcess]]:
    """Both at once: rounds alternate between them, so that a noisy moment hits both alike."""
    with running([apache(where, overrides), ottla(where, overrides)]) as servers:
        yield {"apache": servers[0], "ottla": servers[1]}


def create_topic(server: ServerProcess, name: str, partitions: int = 1, **configs: object) -> None:
    """A topic with leaders."""
    script = Script(server, {}, {})
    try:
        script.create(name, partitions, **configs)
    finally:
        script.close()


def delete_topic(server: ServerProcess, name: str) -> None:
    """Give the disk back."""
    script = Script(server, {}, {})
    try:
        script.quiet(20, 5, {"topic_names": [name], "timeout": 30000})
    finally:
        script.close()


def now_ms() -> int:
    """The wall clock; records must not look expired."""
    return int(time.time() * 1000)


def tool_text(name: str, *args: str, timeout_s: float = 300) -> str:
    """What a Java tool printed, with a client's ordinary heap."""
    return run_tool(name, *args, timeout_s=timeout_s, jvm=("-Xms256m", "-Xmx512m")).stdout
