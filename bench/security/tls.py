"""What TLS costs a broker: gigabytes in large requests, and requests of 16 KB."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.frames import batch_of, fetch_frame, fetch_sizes, produce_error, produce_frame
from bench.load import connection
from bench.raw import KB, KEPT, LOG_BYTES, MB, Load, Reader, add, measure, records_in
from bench.report import Report
from bench.rounds import in_rounds
from bench.security.nodes import both
from bench.servers import create_topic, delete_topic, now_ms

AIM = 0.75
WARM_UP = 100_000
PRODUCE = [
    Load("TLS, produce 16 KB batch", 1, 16 * KB, 1000, 4000, WARM_UP, AIM),
    Load("TLS, produce 1 MB batch", 1, 1_000_000, 1000, 150, 5000, AIM),
]
FETCH = [
    Load("TLS, fetch 16 KB", 1, 16 * KB, 1000, 4000, WARM_UP, AIM),
    Load("TLS, fetch 1 MB", 1, MB, 1000, 300, 10_000, AIM),
]


def tls(report: Report, where: Path, quick: bool = False) -> None:
    """Batches five in flight, fetches that read on. Both sides move the same sizes, so the aim is that of a GB too."""
    with both(where, "SASL_SSL") as servers:
        for server in servers.values():
            with connection(server) as link:
                assert link.sock.version() == "TLSv1.3", link.sock.version()  # type: ignore[attr-defined]
        for load in PRODUCE:
            topic = load.name.replace(" ", "-").replace(",", "")
            data = batch_of(load.size_bytes, load.record_bytes, now_ms())
            frame = produce_frame(topic, {0: data})
            for server in servers.values():
                create_topic(server, topic, 1, **KEPT)
                with connection(server) as link:
                    error = produce_error(link.ask(frame))
                    assert error == 0, f"{server.kind} refuses the batch: error {error}"
            measure(report, servers, load, lambda _, f=frame: f, len(data), quick)
            for server in servers.values():
                delete_topic(server, topic)
        for load in FETCH:
            topic = load.name.replace(" ", "-").replace(",", "")
            batches = max(1, load.size_bytes // (16 * KB))
            data = batch_of(load.size_bytes // batches, load.record_bytes, now_ms())
            size = len(data) * batches
            rounds = LOG_BYTES // size // (8 if quick else 1)
            for server in servers.values():
                create_topic(server, topic)
                with connection(server) as link:
                    link.pump(produce_frame(topic, {0: data}), (rounds + 1) * batches)
                    found = fetch_sizes(link.ask(fetch_frame(topic, 0, 0, size)))
                    assert found == (0, size), f"{server.kind} answers with {found}"
            readers = {
                kind: Reader(server, topic, size, records_in(data) * batches, rounds)
                for kind, server in servers.items()
            }
            few = replace(load, count=load.count // 4) if quick else load
            costs = in_rounds(
                servers, lambda kind, r=readers, n=few.count: r[kind].read(n), load.warm_up, quick=quick
            )
            add(report, f"{load.name}, one at a time, reading on", costs, load.aim)
            for server in servers.values():
                delete_topic(server, topic)
