"""Throughput with the Java clients: ProducerPerformance, ConsumerPerformance, and a warmed-up consumer of our own."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.interop.process import ServerProcess

from bench.frames import batch_of, fetch_frame, produce_frame
from bench.load import Cost, run_load
from bench.raw import KB, KEPT, WARM_UP
from bench.report import Report, Row
from bench.rounds import in_rounds
from bench.servers import both, create_topic, now_ms, tool_text

RATE = re.compile(r"([\d.]+) records/sec(?:ond)?\b")
CONSUMED = re.compile(r"([\d.]+) records/s ")
# A tool's rate varies by more than 3% by itself: its rounds until it is taken for warm are bounded.
MOST_ROUNDS = 6
RateOf = Callable[[ServerProcess, str, int], float]
SOURCE = Path(__file__).with_name("AssignedConsumer.java")


def produced_rate(server: ServerProcess, topic: str, records: int, size: int) -> float:
    """Records a second that ProducerPerformance reports for a whole run."""
    text = tool_text(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", str(records), "--record-size", str(size), "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={server.address}", "acks=all", "linger.ms=5"),
    )
    return float(RATE.findall(text)[-1])


def group_rate(server: ServerProcess, topic: str, records: int) -> float:
    """Records a second that ConsumerPerformance reports for fetching, without the time to join its group."""
    text = tool_text(
        "ConsumerPerformance",
        *("--bootstrap-server", server.address, "--topic", topic, "--num-records", str(records)),
    )
    return float(text.strip().splitlines()[-1].split(",")[-1])


def consumed_rate(server: ServerProcess, topic: str, records: int) -> float:
    """Records a second of the best of three readings in one JVM."""
    text = tool_text(str(SOURCE), server.address, topic, str(records))
    return max(float(rate) for rate in CONSUMED.findall(text))


def tools(report: Report, where: Path, quick: bool = False) -> None:
    """Each tool in rounds in turn, against brokers that plain loads have warmed up: a tool's own JVM is always new."""
    records = 200_000 if quick else 1_000_000
    with both(where / "tools") as servers:
        warm_up(servers, quick)
        for size, count in ((100, records), (1000, records // 4)):
            topic = f"perf-{size}"
            for server in servers.values():
                create_topic(server, topic, 4, **KEPT)
            for name, rate_of in (
                (f"ProducerPerformance, {size} B", partial(produced_rate, size=size)),
                (f"ConsumerPerformance, {size} B", group_rate),
                (f"Java consumer, warmed up, {size} B", consumed_rate),
            ):

                def one_round(
                    kind: str, rate_of: RateOf = rate_of, topic: str = topic, n: int = count
                ) -> Cost:
                    return Cost(n, n / rate_of(servers[kind], topic, n), 0.0, 0)

                found = in_rounds(
                    servers,
                    one_round,
                    0,
                    quick=quick,
                    figure=lambda cost: cost.seconds,
                    most_rounds=MOST_ROUNDS,
                )
                rates = {kind: by_kind.warm.rate for kind, by_kind in found.items()}
                report.add(
                    Row(name, "records/s", rates["apache"], rates["ottla"], 1.2, higher_is_better=True)
                )


def warm_up(servers: dict[str, ServerProcess], quick: bool) -> None:
    """What the tools will ask for, often enough that Apache's code for it is compiled."""
    data = batch_of(16 * KB, 1000, now_ms())
    frames = produce_frame("warm-up", {0: data}), fetch_frame("warm-up", 0, 0, 4 * len(data))
    for server in servers.values():
        create_topic(server, "warm-up", **KEPT)
    for frame in frames:
        in_rounds(
            servers, lambda kind, f=frame: run_load(servers[kind], f, 10_000, len(data)), WARM_UP, quick=quick
        )
