"""Broker CPU for a request: produce and fetch in the sizes that matter, both brokers in rounds in turn, warm."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median as middle

from tests.interop.process import ServerProcess

from bench.frames import batch_of, fetch_frame, fetch_sizes, produce_error, produce_frame
from bench.load import Cost, connection, costs_of, latencies_ms, percentile, run_load
from bench.report import Report, Row
from bench.rounds import QUICK_ROUNDS, ROUNDS, Found, in_rounds
from bench.servers import both, create_topic, delete_topic, now_ms

KB, MB = 1024, 1 << 20
# Requests of small loads that a JVM has seen before a figure counts.
WARM_UP = 300_000
# Loads of hours would fill the disk: both brokers delete what is older than this, as they do in production.
KEPT: dict[str, object] = {"segment_bytes": 256 * MB, "retention_bytes": 1024 * MB}
# What a consumer reads on through before it begins again: more than any processor's cache, less than the page cache.
LOG_BYTES = 256 * MB
_MARK = 0x7A7A7A7A7A7A7A7A


@dataclass(frozen=True)
class Load:
    """One shape of request, how often it is sent in a round and at least to warm up, and the aim of its ratio."""

    name: str
    partitions: int
    size_bytes: int
    record_bytes: int
    count: int
    warm_up: int
    aim: float | None


PRODUCE = [
    Load("produce 1 record of 100 B", 1, 100, 100, 10_000, WARM_UP, 0.5),
    Load("produce 16 KB batch", 1, 16 * KB, 1000, 6000, WARM_UP, 0.55),
    Load("produce 8 x 16 KB", 8, 16 * KB, 1000, 1500, 60_000, 0.65),
    Load("produce 1 MB batch", 1, 1_000_000, 1000, 200, 6000, 0.65),
]
FETCH = [
    Load("fetch 20 KB", 1, 20 * KB, 1000, 8000, WARM_UP, 0.5),
    Load("fetch 66 KB", 1, 66 * KB, 1000, 6000, WARM_UP, 0.5),
    Load("fetch 1 MB", 1, MB, 1000, 800, 40_000, 0.5),
]


def produce(report: Report, where: Path, quick: bool = False) -> None:
    """Produce loads, then the memory after all that traffic."""
    with both(where / "produce") as servers:
        for load in PRODUCE:
            topic = load.name.replace(" ", "-")
            data = batch_of(load.size_bytes, load.record_bytes, now_ms())
            frame = produce_frame(topic, dict.fromkeys(range(load.partitions), data))
            for server in servers.values():
                create_topic(server, topic, load.partitions, **KEPT)
                with connection(server) as link:
                    error = produce_error(link.ask(frame))
                    assert error == 0, f"{server.kind} refuses the load: error {error}"
            measure(report, servers, load, lambda _, f=frame: f, len(data) * load.partitions, quick)
            for server in servers.values():
                delete_topic(server, topic)
        memory_after_traffic(report, servers)


def fetch(report: Report, where: Path, quick: bool = False) -> None:
    """Fetch loads over whole batches in the page cache: one range five in flight, and reading on as a consumer does."""
    with both(where / "fetch") as servers:
        for load in FETCH:
            topic = load.name.replace(" ", "-")
            batches = max(1, load.size_bytes // (16 * KB))
            data = batch_of(load.size_bytes // batches, load.record_bytes, now_ms())
            size = len(data) * batches
            frame = fetch_frame(topic, 0, 0, size)
            for server in servers.values():
                create_topic(server, topic)
                with connection(server) as link:
                    link.pump(produce_frame(topic, {0: data}), (LOG_BYTES // size + 1) * batches)
                    error, found = fetch_sizes(link.ask(frame))
                    assert error == 0, f"{server.kind} refuses the fetch: error {error}"
                    assert found == size, f"{server.kind} answers with {found} bytes"
            measure(report, servers, load, lambda _, f=frame: f, size, quick)
            readers = {
                kind: Reader(server, topic, size, records_in(data) * batches, LOG_BYTES // size)
                for kind, server in servers.items()
            }
            found_costs = in_rounds(
                servers, lambda kind, r=readers, n=load.count: r[kind].read(n), load.warm_up, quick=quick
            )
            add(report, f"{load.name}, one at a time, reading on", found_costs, load.aim)


def records_in(batch: bytes) -> int:
    """The record count in the header of a batch."""
    (count,) = struct.unpack_from(">i", batch, 57)
    return int(count)


class Reader:
    """A consumer near enough: one request at a time, each for what follows, from the start again at the end."""

    def __init__(self, server: ServerProcess, topic: str, size: int, records: int, fetches: int) -> None:
        self._server = server
        self._size = size
        self._records = records
        self._fetches = fetches
        self._next = 0
        self._frame = bytearray(fetch_frame(topic, 0, _MARK, size))
        self._offset_at = self._frame.index(struct.pack(">q", _MARK))

    def read(self, count: int) -> Cost:
        """So many fetches; what they cost the broker."""
        with connection(self._server) as link, costs_of(self._server, count, count * self._size) as found:
            for _ in range(count):
                struct.pack_into(">q", self._frame, self._offset_at, self._next * self._records)
                answer = link.ask(self._frame)
                assert len(answer) > self._size, f"{self._server.kind} answers with {len(answer)} bytes"
                self._next = (self._next + 1) % self._fetches
        return found[0]


def measure(
    report: Report,
    servers: dict[str, ServerProcess],
    load: Load,
    frame_for: Callable[[str], bytes],
    payload_bytes: int,
    quick: bool,
) -> None:
    """One frame, five in flight, in rounds."""

    def one_round(kind: str) -> Cost:
        return run_load(servers[kind], frame_for(kind), load.count, payload_bytes)

    add(report, load.name, in_rounds(servers, one_round, load.warm_up, quick=quick), load.aim)


def add(report: Report, name: str, found: dict[str, Found], aim: float | None) -> None:
    """The rows of one load: warm, what of it is the Java runtime's own work, cold, by size, and the rate."""
    apache, ottla = found["apache"].warm, found["ottla"].warm
    rounds = f"after {found['apache'].warm_up_requests:,} requests"
    report.add(Row(f"{name}: broker CPU", "us/request", apache.cpu_us, ottla.cpu_us, aim, note=rounds))
    report.add(Row(f"{name}: of it JIT and GC threads", "us/request", apache.runtime_us, None))
    cold = found["apache"].cold.cpu_us, found["ottla"].cold.cpu_us
    report.add(Row(f"{name}: broker CPU, cold", "us/request", *cold, note="the first round"))
    report.add(Row(f"{name}: broker CPU", "s/GB", apache.cpu_seconds_per_gb, ottla.cpu_seconds_per_gb))
    report.add(Row(f"{name}: rate", "requests/s", apache.rate, ottla.rate, higher_is_better=True))


def memory_after_traffic(report: Report, servers: dict[str, ServerProcess]) -> None:
    """Resident memory of both after the same traffic."""
    sizes = {kind: server.rss_bytes() / MB for kind, server in servers.items()}
    report.add(Row("resident memory after traffic", "MB", sizes["apache"], sizes["ottla"], 0.2))


def latency(report: Report, where: Path, quick: bool = False) -> None:
    """p50 and p99 at a fixed rate far below either broker's limit: medians of rounds in turn, both warm."""
    rate, seconds = 500, 2
    with both(where / "latency") as servers:
        frame = produce_frame("latency", {0: batch_of(1000, 1000, now_ms())})
        for server in servers.values():
            create_topic(server, "latency", **KEPT)
        in_rounds(servers, lambda kind: run_load(servers[kind], frame, 10_000, 1000), WARM_UP, quick=quick)
        found: dict[str, list[list[float]]] = {kind: [] for kind in servers}
        for _ in range(QUICK_ROUNDS if quick else ROUNDS):
            for kind, server in servers.items():
                found[kind].append(latencies_ms(server, frame, rate, seconds))
        for share, name in ((0.5, "p50"), (0.99, "p99")):
            figures = {
                kind: middle(percentile(times, share) for times in rounds) for kind, rounds in found.items()
            }
            report.add(Row(f"latency {name} at {rate} requests/s", "ms", figures["apache"], figures["ottla"]))
