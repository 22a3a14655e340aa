"""Broker CPU for a request: produce and fetch in the sizes that matter, both brokers in alternating rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.interop.process import ServerProcess

from bench.frames import batch_of, fetch_frame, fetch_sizes, produce_error, produce_frame
from bench.load import Cost, connection, latencies_ms, percentile, run_load
from bench.report import Report, Row
from bench.servers import both, create_topic, delete_topic, now_ms

KB, MB = 1024, 1 << 20
ROUNDS = 4


@dataclass(frozen=True)
class Load:
    """One shape of request, how often it is sent in a round and to warm up, and the aim of its ratio."""

    name: str
    partitions: int
    size_bytes: int
    record_bytes: int
    count: int
    warm_up: int
    aim: float


PRODUCE = [
    Load("produce 1 record of 100 B", 1, 100, 100, 8000, 40000, 0.5),
    Load("produce 16 KB batch", 1, 16 * KB, 1000, 4000, 8000, 0.55),
    Load("produce 8 x 16 KB", 8, 16 * KB, 1000, 1000, 2000, 0.65),
    Load("produce 1 MB batch", 1, 1_000_000, 1000, 150, 300, 0.65),
]
FETCH = [
    Load("fetch 20 KB", 1, 20 * KB, 1000, 6000, 50000, 0.5),
    Load("fetch 66 KB", 1, 66 * KB, 1000, 4000, 20000, 0.5),
    Load("fetch 1 MB", 1, MB, 1000, 600, 2000, 0.5),
]


def produce(report: Report, where: Path, quick: bool = False) -> None:
    """Produce loads, then the latency at a fixed rate and the memory after all that traffic."""
    with both(where / "produce") as servers:
        for load in PRODUCE:
            topic = load.name.replace(" ", "-")
            data = batch_of(load.size_bytes, load.record_bytes, now_ms())
            frame = produce_frame(topic, dict.fromkeys(range(load.partitions), data))
            for server in servers.values():
                create_topic(server, topic, load.partitions)
                with connection(server) as link:
                    error = produce_error(link.ask(frame))
                    assert error == 0, f"{server.kind} refuses the load: error {error}"
            measure(report, servers, load, lambda _, f=frame: f, len(data) * load.partitions, quick)
            for server in servers.values():
                delete_topic(server, topic)
        memory_after_traffic(report, servers)


def fetch(report: Report, where: Path, quick: bool = False) -> None:
    """Fetch loads over whole batches, warm in the page cache, as a consumer near the end reads."""
    with both(where / "fetch") as servers:
        for load in FETCH:
            topic = load.name.replace(" ", "-")
            batches = max(1, load.size_bytes // (16 * KB))
            data = batch_of(load.size_bytes // batches, load.record_bytes, now_ms())
            frame = fetch_frame(topic, 0, 0, len(data) * batches)
            for server in servers.values():
                create_topic(server, topic)
                with connection(server) as link:
                    link.pump(produce_frame(topic, {0: data}), batches * 2)
                    error, size = fetch_sizes(link.ask(frame))
                    assert error == 0, f"{server.kind} refuses the fetch: error {error}"
                    assert size == len(data) * batches, f"{server.kind} answers with {size} bytes"
            measure(report, servers, load, lambda _, f=frame: f, len(data) * batches, quick)


def measure(
    report: Report,
    servers: dict[str, ServerProcess],
    load: Load,
    frame_for: Callable[[str], bytes],
    payload_bytes: int,
    quick: bool,
) -> None:
    """Warm both up, then rounds in turn; the best round of each counts."""
    best: dict[str, Cost] = {}
    for kind, server in servers.items():
        share = 1 if kind == "apache" else 0.1  # only a JVM needs to warm up
        run_load(
            server, frame_for(kind), int(load.warm_up * share * (0.3 if quick else 1)) + 1, payload_bytes
        )
    for _ in range(2 if quick else ROUNDS):
        for kind, server in servers.items():
            cost = run_load(server, frame_for(kind), load.count, payload_bytes)
            if kind not in best or cost.cpu_us < best[kind].cpu_us:
                best[kind] = cost
    apache, ottla = best["apache"], best["ottla"]
    report.add(Row(f"{load.name}: broker CPU", "us/request", apache.cpu_us, ottla.cpu_us, load.aim))
    report.add(Row(f"{load.name}: broker CPU", "s/GB", apache.cpu_seconds_per_gb, ottla.cpu_seconds_per_gb))
    report.add(Row(f"{load.name}: rate", "requests/s", apache.rate, ottla.rate, higher_is_better=True))


def memory_after_traffic(report: Report, servers: dict[str, ServerProcess]) -> None:
    """Resident memory of both after the same traffic."""
    sizes = {kind: server.rss_bytes() / MB for kind, server in servers.items()}
    report.add(Row("resident memory after traffic", "MB", sizes["apache"], sizes["ottla"], 0.2))


def latency(report: Report, where: Path, quick: bool = False) -> None:
    """p50 and p99 at a fixed rate far below either broker's limit."""
    rate, seconds = 500, 2 if quick else 8
    with both(where / "latency") as servers:
        frame = produce_frame("latency", {0: batch_of(1000, 1000, now_ms())})
        found: dict[str, list[float]] = {}
        for kind, server in servers.items():
            create_topic(server, "latency")
            run_load(server, frame, 20000 if kind == "apache" else 500, 1000)
            found[kind] = latencies_ms(server, frame, rate, seconds)
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            figures = {kind: percentile(times, share) for kind, times in found.items()}
            report.add(Row(f"latency {name} at {rate} requests/s", "ms", figures["apache"], figures["ottla"]))
