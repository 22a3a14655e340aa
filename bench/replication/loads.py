"""What a write to three replicas costs the three brokers together, how long it takes, and what catching up costs."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from tests.interop.cluster import Cluster
from tests.interop.process import wait_until

from bench import raw, tools
from bench.clusters import PATIENCE_S, POLL_S, partitions_of
from bench.frames import batch_of, produce_error, produce_frame
from bench.load import Connection, Cost, connection, costs_of, latencies_ms, percentile, run_load
from bench.raw import KB, KEPT, Load
from bench.replication.trio import LOADED, NODES, both, bystander, create, in_sync, pss_mb
from bench.report import Report, Row
from bench.rounds import QUICK_ROUNDS, ROUNDS, in_rounds
from bench.servers import delete_topic, now_ms

LEADER = NODES[0]
# A request waits for two followers: fewer of them go through in the time in which a lone broker is warm.
LOADS = [
    Load("acks=all, 1 record of 100 B", 1, 100, 100, 4000, 100_000, 0.65),
    Load("acks=all, 16 KB batch", 1, 16 * KB, 1000, 3000, 100_000, 0.65),
    Load("acks=all, 8 x 16 KB", 8, 16 * KB, 1000, 800, 24_000, 0.65),
    Load("acks=all, 1 MB batch", 1, 1_000_000, 1000, 100, 3_000, 0.55),
]
RETAINED = {name.replace("_", "."): value for name, value in KEPT.items()}
TOOL_RECORD_BYTES = 1024
LATENCY_RATE, LATENCY_S = 100, 10
CATCH_UP_BYTES = 1_000_000_000
CATCH_UP_BATCH = 1_000_000


def requests(report: Report, where: Path, quick: bool) -> None:
    """CPU of all three brokers for a request, in four sizes."""
    with both(where, LOADED) as clusters:
        for load in LOADS:
            topic = load.name.translate({ord(sign): "-" for sign in " =,"})
            data = batch_of(load.size_bytes, load.record_bytes, now_ms())
            frame = produce_frame(topic, dict.fromkeys(range(load.partitions), data))
            for cluster in clusters.values():
                create(cluster, topic, [LEADER] * load.partitions, RETAINED)
            size = len(data) * load.partitions
            found = in_rounds(
                clusters,
                lambda kind, f=frame, n=load.count, b=size: replicated(clusters[kind], f, n, b),
                load.warm_up,
                quick=quick,
            )
            raw.add(report, load.name, found, load.aim)
            for cluster in clusters.values():
                delete_topic(cluster[LEADER], topic)


def replicated(cluster: Cluster, frame: bytes, count: int, payload_bytes: int) -> Cost:
    """So many writes of which the first and the last are looked at; what they cost all three."""
    accepted(cluster, frame)
    cost = run_load(cluster[LEADER], frame, count, payload_bytes, cluster.brokers())
    accepted(cluster, frame)
    return cost


def accepted(cluster: Cluster, frame: bytes) -> None:
    with connection(cluster[LEADER]) as link:
        error = produce_error(link.ask(frame))
    assert error == 0, f"{cluster[LEADER].kind} refuses the load: error {error}"


def producer_performance(report: Report, where: Path, quick: bool) -> None:
    """The Java tool with records of 1 KiB, into partitions that all three lead, after a load that warms them up."""
    records = 100_000 if quick else 500_000
    with both(where, LOADED) as clusters:
        warm_up(clusters, quick)
        for cluster in clusters.values():
            create(cluster, "perf", NODES * 2, RETAINED)

        def one_round(kind: str) -> Cost:
            cluster, size = clusters[kind], records * TOOL_RECORD_BYTES
            with costs_of(cluster.brokers(), records, size) as found:
                rate = tools.produced_rate(cluster[LEADER], "perf", records, TOOL_RECORD_BYTES)
            # The tool's own time, without that of its start.
            return Cost(records, records / rate, found[0].cpu_seconds, size, found[0].runtime_seconds)

        found = in_rounds(
            clusters,
            one_round,
            0,
            quick=quick,
            figure=lambda cost: cost.seconds,
            most_rounds=tools.MOST_ROUNDS,
        )
    apache, ottla = found["apache"].warm, found["ottla"].warm
    name = "ProducerPerformance, 1 KiB, acks=all"
    report.add(Row(f"{name}: CPU", "s/GB", apache.cpu_seconds_per_gb, ottla.cpu_seconds_per_gb, 0.6))
    report.add(Row(name, "records/s", apache.rate, ottla.rate, 1.3, higher_is_better=True))


def warm_up(clusters: Mapping[str, Cluster], quick: bool) -> None:
    """Writes of 16 KB, often enough that Apache's code for them is compiled, followers' included."""
    load = LOADS[1]
    data = batch_of(load.size_bytes, load.record_bytes, now_ms())
    frame = produce_frame("warm-up", {0: data})
    for cluster in clusters.values():
        create(cluster, "warm-up", [LEADER], RETAINED)
    in_rounds(
        clusters,
        lambda kind: replicated(clusters[kind], frame, load.count, len(data)),
        load.warm_up,
        quick=quick,
    )


def latency(report: Report, where: Path, quick: bool) -> None:
    """p99 at a rate far below either's limit: medians of rounds in turn, both warm."""
    with both(where, LOADED) as clusters:
        warm_up(clusters, quick)
        frame = produce_frame("latency", {0: batch_of(16 * KB, 1000, now_ms())})
        for cluster in clusters.values():
            create(cluster, "latency", [LEADER], RETAINED)
        found: dict[str, list[list[float]]] = {kind: [] for kind in clusters}
        for _ in range(QUICK_ROUNDS if quick else ROUNDS):
            for kind, cluster in clusters.items():
                found[kind].append(latencies_ms(cluster[LEADER], frame, LATENCY_RATE, LATENCY_S))
                accepted(cluster, frame)
    for share, name, aim in ((0.5, "p50", None), (0.99, "p99", 0.6)):
        figures = {
            kind: median(percentile(times, share) for times in rounds) for kind, rounds in found.items()
        }
        title = f"16 KB, acks=all, {LATENCY_RATE} requests/s: {name}"
        report.add(Row(title, "ms", figures["apache"], figures["ottla"], aim))


def memory(report: Report, where: Path, quick: bool) -> None:
    """Of all three nodes, when they have started and after the same traffic."""
    with both(where, LOADED) as clusters:
        fresh = {kind: pss_mb(cluster) for kind, cluster in clusters.items()}
        warm_up(clusters, quick)
        after = {kind: pss_mb(cluster) for kind, cluster in clusters.items()}
    note = "PSS; Apache with -Xms1g -Xmx1g, its scripts' own"
    report.add(Row("memory of three nodes, fresh", "MB", fresh["apache"], fresh["ottla"], note=note))
    report.add(Row("memory of three nodes after traffic", "MB", after["apache"], after["ottla"], 0.2))


# ---- catching up ----------------------------------------------------------------------------------------------------


def catch_up(report: Report, where: Path, quick: bool) -> None:
    """A node is stopped while a gigabyte is written, and goes on: the process is the same, so no start is counted."""
    size = CATCH_UP_BYTES // 10 if quick else CATCH_UP_BYTES
    found: dict[str, list[Cost]] = {}
    with both(where, LOADED) as clusters:
        for number in range(1 if quick else QUICK_ROUNDS):
            for kind, cluster in clusters.items():
                found.setdefault(kind, []).append(caught_up(cluster, f"behind-{number}", size))
    apache, ottla = (sorted(costs, key=lambda cost: cost.cpu_seconds) for costs in found.values())
    middle = apache[len(apache) // 2], ottla[len(ottla) // 2]
    name = f"a follower catches up with {size / 1e9:g} GB"
    note = f"all three brokers, median of {len(apache)}; it took {middle[0].seconds:.1f} and {middle[1].seconds:.1f} s"
    report.add(Row(f"{name}: CPU", "s", middle[0].cpu_seconds, middle[1].cpu_seconds, 0.6, note=note))


def caught_up(cluster: Cluster, topic: str, size_bytes: int) -> Cost:
    """From the moment in which a node that has missed so much goes on until it is in sync again."""
    behind = bystander(cluster)
    leaders = [node for node in NODES if node != behind]
    create(cluster, topic, leaders)
    os.kill(cluster[behind].pid, signal.SIGSTOP)
    try:
        for leader in leaders:
            wait_until(
                lambda leader=leader: all(
                    behind not in row.isr_nodes for row in partitions_of(cluster[leader], topic)
                ),
                PATIENCE_S,
                "the stopped node to leave the ISR",
                POLL_S,
            )
        batch = batch_of(CATCH_UP_BATCH, 1000, now_ms())
        for partition, leader in enumerate(leaders):
            frame = produce_frame(topic, {partition: batch})
            with connection(cluster[leader]) as link:
                write_all(link, frame, size_bytes // len(leaders) // len(batch))
        with costs_of(cluster.brokers(), 1, size_bytes) as found:
            os.kill(cluster[behind].pid, signal.SIGCONT)
            wait_until(
                lambda: all(behind in row.isr_nodes for row in partitions_of(cluster[leaders[0]], topic)),
                PATIENCE_S,
                "the node to be in sync again",
                POLL_S / 5,
            )
    finally:
        os.kill(cluster[behind].pid, signal.SIGCONT)
    in_sync(cluster, len(leaders), topic)
    delete_topic(cluster[leaders[0]], topic)
    return found[0]


def write_all(link: Connection, frame: bytes, count: int) -> None:
    link.pump(frame, count - 1)
    error = produce_error(link.ask(frame))
    assert error == 0, f"the last write is refused: error {error}"
