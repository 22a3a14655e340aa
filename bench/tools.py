"""Throughput with the Java clients: ProducerPerformance, ConsumerPerformance, and a warmed-up consumer of our own."""

from __future__ import annotations

import re
from pathlib import Path

from tests.interop.process import ServerProcess

from bench.report import Report, Row
from bench.servers import both, create_topic, tool_text

RATE = re.compile(r"([\d.]+) records/sec(?:ond)?\b")
CONSUMED = re.compile(r"([\d.]+) records/s ")
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
    """Best of several runs, in turn."""
    records = 200_000 if quick else 1_000_000
    rounds = 1 if quick else 2
    with both(where / "tools") as servers:
        for size, count in ((100, records), (1000, records // 4)):
            topic = f"perf-{size}"
            best: dict[str, float] = dict.fromkeys(servers, 0.0)
            for server in servers.values():
                create_topic(server, topic, 4)
            for _ in range(rounds):
                for kind, server in servers.items():
                    best[kind] = max(best[kind], produced_rate(server, topic, count, size))
            add(report, f"ProducerPerformance, {size} B", best)
            grouped: dict[str, float] = dict.fromkeys(servers, 0.0)
            for _ in range(rounds):
                for kind, server in servers.items():
                    grouped[kind] = max(grouped[kind], group_rate(server, topic, count * rounds))
            add(report, f"ConsumerPerformance, {size} B", grouped)
            read = {kind: consumed_rate(server, topic, count) for kind, server in servers.items()}
            add(report, f"Java consumer, warmed up, {size} B", read)


def add(report: Report, name: str, found: dict[str, float]) -> None:
    """A throughput row with the aim of the product."""
    report.add(Row(name, "records/s", found["apache"], found["ottla"], 1.2, higher_is_better=True))
