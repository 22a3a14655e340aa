"""Three controllers and three brokers with ten thousand partitions, beside an Apache cluster of the same shape.

One cluster after the other, so that neither has to share the cores: whatever is timed here takes seconds. All timed
requests are frames made beforehand, and what is asked again and again is asked at the same pace of both. How long our
loops are held while leaders change and snapshots are written and loaded is measured in a cluster of its own
(bench.quorum_stalls).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.interop.cluster import Cluster
from tests.interop.process import receive_frame, wait_until
from tests.interop.scripts.entities import encode_request

from bench import quorum_stalls
from bench.clusters import (
    ANSWER_MS,
    BROKERS,
    METADATA,
    METADATA_VERSION,
    PATIENCE_S,
    RESPONSE_HEADER_BYTES,
    all_led,
    cluster_of,
    create_errors,
    create_frame,
    fill,
    partitions_of,
)
from bench.frames import batch_of, produce_error, produce_frame
from bench.lifecycle import MB
from bench.load import Connection, Cpu, connection
from bench.report import Report, Row
from bench.servers import now_ms
from ottla.wire.codec import decode
from ottla.wire.messages.metadata import MetadataResponse

# How long whoever asks again waits first.
PAUSE_S = 0.001
TOPICS_A_REQUEST = 100
SINGLE_REQUESTS = 100
KNOWN_BROKERS = encode_request(METADATA, METADATA_VERSION, {"topics": []}, client_id="bench")


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    partitions: int = 10_000
    settle_s: float = 10.0
    idle_s: float = 20.0
    uncounted_topics: int = 20  # a JVM has not seen them often yet
    topics: int = 31
    kills: int = 5
    broker_starts: int = 3
    requests: int = 10


QUICK = Size(1_000, 2.0, 5.0, 3, 5, 1, 1, 1)


@dataclass
class Figures:
    """What was found of one kind."""

    idle_percent: dict[int, float]
    pss_mb: float
    rss_mb: float
    first_messages_s: list[float]
    kills_s: list[float]
    broker_starts_s: list[float]
    topics_s: float
    single_topic_s: float


def quorum(report: Report, where: Path, quick: bool = False) -> None:
    """Everything beside Apache, then our own stalls, which are worth their figures even if the first has failed."""
    size = QUICK if quick else Size()
    failed: list[Exception] = []
    for rows in (beside_apache(where, size), quorum_stalls.rows(where / "stalls", size.partitions)):
        try:
            for row in rows:
                report.add(row)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            failed.append(error)
    if failed:
        raise failed[0]


def beside_apache(where: Path, size: Size) -> Iterator[Row]:
    """One cluster after the other."""
    found = {kind: measure(kind, where, size) for kind in ("apache", "ottla")}
    yield from rows_of(found["apache"], found["ottla"], size)


def measure(kind: str, where: Path, size: Size) -> Figures:
    """One cluster from its start to its end."""
    with cluster_of(kind, where) as cluster:
        fill(cluster, size.partitions)
        time.sleep(size.settle_s)  # what is measured next is idleness
        idle = idle_percents(cluster, size.idle_s)
        pss_mb, rss_mb = memory_mb(cluster)
        firsts = [first_messages_s(cluster, f"first-{i}") for i in range(size.uncounted_topics + size.topics)]
        topics_s, single_s = topics_created_s(cluster, size.requests)
        kills = [controller_killed_s(cluster, number) for number in range(size.kills)]
        starts = [broker_started_s(cluster, BROKERS[-1]) for _ in range(size.broker_starts)]
    return Figures(idle, pss_mb, rss_mb, firsts[size.uncounted_topics :], kills, starts, topics_s, single_s)


def rows_of(theirs: Figures, ours: Figures, size: Size) -> Iterator[Row]:
    """One a figure, with the share of Apache's that is aimed at."""
    yield Row(
        "controller killed to the next topic",
        "s",
        median(theirs.kills_s),
        median(ours.kills_s),
        0.7,
        note=f"median of {size.kills}: {spread_of(theirs.kills_s)} and {spread_of(ours.kills_s)}",
    )
    yield Row(
        "topic made to a message on each broker",
        "ms",
        median(theirs.first_messages_s) * 1000,
        median(ours.first_messages_s) * 1000,
        0.7,
        note=f"median of {size.topics} topics of 3 partitions, after {size.uncounted_topics} that do not count",
    )
    yield Row(
        f"{size.requests * TOPICS_A_REQUEST:,} topics created",
        "s",
        theirs.topics_s,
        ours.topics_s,
        1.0,
        note=f"{TOPICS_A_REQUEST} a request; one a request: {theirs.single_topic_s * 1000:.1f} and "
        f"{ours.single_topic_s * 1000:.1f} ms each",
    )
    yield Row(
        f"broker of {size.partitions // len(BROKERS):,} partitions started",
        "s",
        median(theirs.broker_starts_s),
        median(ours.broker_starts_s),
        0.2,
        note=f"until another lists it; {spread_of(theirs.broker_starts_s)} and {spread_of(ours.broker_starts_s)}",
    )
    yield Row(
        "memory of all six nodes",
        "MB",
        theirs.pss_mb,
        ours.pss_mb,
        0.25,
        note=f"PSS; resident {theirs.rss_mb:,.0f} and {ours.rss_mb:,.0f}; Apache with -Xms1g -Xmx1g, its scripts' own",
    )
    busiest = max(theirs.idle_percent.values()), max(ours.idle_percent.values())
    nodes = f"nodes 1 to 3 are controllers: {percents_of(theirs)} and {percents_of(ours)}"
    yield Row("idle CPU of the busiest node", "% of a core", *busiest, 1.0, note=nodes)
    yield Row("idle CPU of the busiest node, ours", "% of a core", None, busiest[1], 2.0, absolute=True)


def spread_of(times_s: list[float]) -> str:
    return f"{min(times_s):.2f} to {max(times_s):.2f}"


def percents_of(figures: Figures) -> str:
    return " ".join(f"{percent:.1f}" for percent in figures.idle_percent.values())


# ---- at rest --------------------------------------------------------------------------------------------------------


def idle_percents(cluster: Cluster, seconds: float) -> dict[int, float]:
    """Each node's share of a core while nothing happens."""
    before = {node.node_id: Cpu.of(node.pid).total_ns for node in cluster.nodes.values()}
    began = time.perf_counter()
    time.sleep(seconds)  # what is measured: nothing happens
    spent_s = time.perf_counter() - began
    return {
        node.node_id: (Cpu.of(node.pid).total_ns - before[node.node_id]) / 1e9 / spent_s * 100
        for node in cluster.nodes.values()
    }


def memory_mb(cluster: Cluster) -> tuple[float, float]:
    """(PSS, RSS) of all nodes; PSS counts once what processes share, as it is once in the machine."""
    pss_kb = 0
    for node in cluster.nodes.values():
        lines = Path(f"/proc/{node.pid}/smaps_rollup").read_text().splitlines()
        pss_kb += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return pss_kb / 1024, sum(node.rss_bytes() for node in cluster.nodes.values()) / MB


# ---- topics ---------------------------------------------------------------------------------------------------------


def first_messages_s(cluster: Cluster, topic: str) -> float:
    """From sending CreateTopics to the last of three brokers acknowledging a message in the new topic.

    They are asked when the topic is said to be created, all at once, and those that do not know it yet again.
    """
    create = create_frame([topic], len(BROKERS))
    batch = batch_of(100, 100, now_ms())
    frames = [produce_frame(topic, {index: batch}) for index in range(len(BROKERS))]
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(connection(cluster[broker])) for broker in BROKERS]
        began = time.perf_counter()
        created = links[0].ask(create)
        waiting = dict(zip(links, frames, strict=True))
        while waiting := refused(waiting):
            assert time.perf_counter() - began < ANSWER_MS / 1000, f"no message in {topic}"
            time.sleep(PAUSE_S)  # asking without a pause would take the CPU that is measured
        took_s = time.perf_counter() - began
    assert not create_errors(created), create_errors(created)
    return took_s


def refused(frames: dict[Connection, bytes]) -> dict[Connection, bytes]:
    """Send each its frame; those that were not acknowledged."""
    for link, frame in frames.items():
        link.sock.sendall(frame)
    return {link: frame for link, frame in frames.items() if produce_error(receive_frame(link.sock)) != 0}


def topics_created_s(cluster: Cluster, requests: int) -> tuple[float, float]:
    """Requests of a hundred topics one after the other; and a request of one topic, by the mean of a hundred."""
    large = [
        create_frame([f"topic-{number}-{i}" for i in range(TOPICS_A_REQUEST)], 1)
        for number in range(requests)
    ]
    small = [create_frame([f"single-{number}"], 1, number) for number in range(SINGLE_REQUESTS)]
    before = len(partitions_of(cluster[BROKERS[0]]))
    with connection(cluster[BROKERS[0]]) as link:
        large_s = answered_s(link, large)
        all_led(cluster, before + requests * TOPICS_A_REQUEST)  # nobody is still busy with them
        single_s = answered_s(link, small) / len(small)
    all_led(cluster, before + requests * TOPICS_A_REQUEST + len(small))
    return large_s, single_s


def answered_s(link: Connection, frames: list[bytes]) -> float:
    """One after the other; every topic must have been created."""
    began = time.perf_counter()
    answers = [link.ask(frame) for frame in frames]
    took_s = time.perf_counter() - began
    errors = set().union(*map(create_errors, answers))
    assert not errors, errors
    return took_s


# ---- failures and starts --------------------------------------------------------------------------------------------


def controller_killed_s(cluster: Cluster, number: int) -> float:
    """kill -9 of the active controller to the next topic that a client has created, by whichever broker it talks to."""
    leader = cluster[cluster.leader()]
    broker = cluster[BROKERS[number % len(BROKERS)]]
    frame = create_frame([f"after-kill-{number}"], 1)
    with connection(broker) as link:
        began = time.perf_counter()
        os.kill(leader.pid, signal.SIGKILL)
        # Somebody who is not told that it has worked asks again, and hears that it has.
        while errors := create_errors(link.ask(frame)) - {"topic_already_exists"}:
            assert time.perf_counter() - began < ANSWER_MS / 1000, errors
            time.sleep(PAUSE_S)  # asking without a pause would take the CPU that is measured
        took_s = time.perf_counter() - began
    leader.wait()
    leader.start()
    cluster.caught_up()
    return took_s


def broker_started_s(cluster: Cluster, broker_id: int) -> float:
    """A clean stop; then from the start of the process until another broker lists it, which is when it is unfenced."""
    broker, other = cluster[broker_id], cluster[BROKERS[0]]
    partitions = len(partitions_of(other))
    broker.stop()
    with connection(other) as link:
        wait_until(lambda: broker_id not in listed(link), PATIENCE_S, "the broker to be gone")
        cluster.caught_up()
        began = time.perf_counter()
        broker.launch()
        wait_until(lambda: broker_id in listed(link), PATIENCE_S, "the broker to be unfenced", PAUSE_S)
        took_s = time.perf_counter() - began
    wait_until(broker._ready_or_dead, broker.start_timeout_s, "the broker to serve")
    all_led(cluster, partitions)
    return took_s


def listed(link: Connection) -> set[int]:
    """The brokers that clients are told of: those that are not fenced."""
    answer, _ = decode(MetadataResponse, link.ask(KNOWN_BROKERS), METADATA_VERSION, RESPONSE_HEADER_BYTES)
    return {broker.node_id for broker in answer.brokers}
