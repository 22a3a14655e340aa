"""Start to the first acknowledged message, resident memory, ten thousand partitions."""

from __future__ import annotations

import time
from pathlib import Path

from tests.interop.ottla_node import LISTENING, OttlaNode
from tests.interop.process import ServerProcess, is_serving, wait_until
from tests.interop.scripts.entities import encode_request
from tests.support.secure_node import SecureNode

from bench.frames import batch_of, produce_error, produce_frame
from bench.load import Cpu, connection
from bench.report import Report, Row
from bench.servers import apache, create_topic, now_ms, ottla
from ottla.client import Producer

MB = 1 << 20
PARTITIONS = 10_000
TOPICS = 10
IDLE_SECONDS = 10.0
# A start takes a few hundred milliseconds: asking seldom would add to it.
FIRST_POLL_S = 0.002


def first_message_seconds(server: ServerProcess) -> float:
    """From the start of the process on a formatted directory to the first acknowledged message."""
    frame = produce_frame("first", {0: batch_of(100, 100, now_ms())})
    ask_topic = encode_request(3, 4, {"topics": [{"name": "first"}], "allow_auto_topic_creation": True})
    begin = time.perf_counter()
    server.launch()
    wait_until(lambda: _acknowledged(server, frame, ask_topic), 90, "the first message", FIRST_POLL_S)
    return time.perf_counter() - begin


def _acknowledged(server: ServerProcess, frame: bytes, ask_topic: bytes) -> bool:
    if isinstance(server, OttlaNode) and server.port == 0:
        said = LISTENING.search(server.log_text())
        if said is None:
            return False
        server.port = int(said[2])
    try:
        with connection(server) as link:
            if produce_error(link.ask(frame)) == 0:
                return True
            link.ask(ask_topic)
    except OSError:
        return False
    return False


def start(report: Report, where: Path, quick: bool = False) -> None:
    """A fresh start of both, best of several; Apache's formatting is counted apart, Ottla formats as it starts."""
    times: dict[str, list[float]] = {"apache": [], "ottla": []}
    memory: dict[str, float] = {}
    formatting = []
    for i in range(1 if quick else 3):
        for server in (apache(where / f"start{i}"), ottla(where / f"start{i}")):
            begin = time.perf_counter()
            if server.kind == "apache":
                server.format()  # type: ignore[attr-defined]
                formatting.append(time.perf_counter() - begin)
            try:
                times[server.kind].append(first_message_seconds(server))
                memory[server.kind] = server.rss_bytes() / MB
            finally:
                server.stop()
    report.add(Row("formatting before the first start", "s", min(formatting), None))
    report.add(Row("start to first message", "s", min(times["apache"]), min(times["ottla"]), 0.1))
    report.add(Row("resident memory, fresh", "MB", memory["apache"], memory["ottla"], 0.2))
    secure = [secure_start_seconds(where / f"secure{i}") for i in range(1 if quick else 3)]
    name = "`ottla serve --secure`, from nothing to the first message"
    report.add(Row(name, "s", None, min(secure), 3.0, absolute=True))


def secure_start_seconds(where: Path) -> float:
    """From the start of the process, without a directory, to the first message that `admin` has acknowledged."""
    node = SecureNode(where / "data")
    begin = time.perf_counter()
    node.launch()
    try:
        wait_until(node.is_ready, 90, "the secure node", FIRST_POLL_S)
        with Producer(node.properties()) as producer:
            producer.send("first", b"first").result()
        return time.perf_counter() - begin
    finally:
        node.stop()


def fill_partitions(server: ServerProcess) -> None:
    """Ten thousand partitions in ten topics."""
    for i in range(TOPICS):
        create_topic(server, f"many-{i}", PARTITIONS // TOPICS)


def started_seconds(server: ServerProcess) -> float:
    """A restart until the broker serves."""
    begin = time.perf_counter()
    server.launch()
    wait_until(server.is_ready, 300, "the broker to serve")
    wait_until(lambda: is_serving(server.host, server.port), 300, "the broker to serve")
    return time.perf_counter() - begin


def partitions(report: Report, where: Path, quick: bool = False, with_apache: bool = False) -> None:
    """Ten thousand partitions on one node: start, idle CPU, memory each."""
    figures: dict[str, dict[str, float]] = {}
    kinds = [ottla, apache] if with_apache else [ottla]
    for make in kinds:
        server = make(where / "partitions")
        server.start()
        empty = server.rss_bytes()
        begin = time.perf_counter()
        fill_partitions(server)
        created = time.perf_counter() - begin
        server.stop()
        restart = started_seconds(server)
        try:
            time.sleep(3)  # let the start settle; what is measured next is idleness
            before = Cpu.of(server.pid)
            time.sleep(IDLE_SECONDS)  # what is measured: nothing happens
            idle = (Cpu.of(server.pid).total_ns - before.total_ns) / 1e9 / IDLE_SECONDS
            each = (server.rss_bytes() - empty) / PARTITIONS / 1024
        finally:
            server.stop()
        figures[server.kind] = {"created": created, "start": restart, "idle": idle * 100, "each": each}
    theirs, ours = figures.get("apache", {}), figures["ottla"]
    for key, name, unit, aim in (
        ("created", "10,000 partitions: created", "s", None),
        ("start", "10,000 partitions: started", "s", 5),
        ("idle", "10,000 partitions: idle CPU", "% of a core", 2),
        ("each", "10,000 partitions: memory each", "KB", 100),
    ):
        report.add(Row(name, unit, theirs.get(key), ours[key], aim, absolute=True))
