"""How long nobody can write when a leader is killed, and when every node is restarted one after the other."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from confluent_kafka import KafkaError, Producer
from tests.interop.cluster import Cluster
from tests.interop.process import wait_until

from bench.clusters import PATIENCE_S, metadata_frame, partitions_in
from bench.frames import batch_of, produce_frame
from bench.load import connection
from bench.quorum import spread_of
from bench.replication.trio import NODES, both, bystander, create, in_sync, written
from bench.report import Report, Row
from bench.servers import now_ms

KILLS, ROLLS = 5, 3
# How long whoever asks again waits first.
PAUSE_S = 0.005
# Between two messages to the same partition: a gap is not seen finer than this.
SEND_EVERY_S = 0.005
# After the last restart, so that what it has held up is seen to be over.
AFTERWARDS_S = 2.0


def failover(report: Report, where: Path, quick: bool) -> None:
    """kill -9 of a leader, with the default session time-out, of a broker alone and of the active controller too."""
    count = 1 if quick else KILLS
    found: dict[str, list[tuple[float, float]]] = {}
    with both(where) as clusters:
        for who, victim_of in (("a leader", bystander), ("a leader and controller", Cluster.leader)):
            for number in range(count):
                for kind, cluster in clusters.items():
                    topic = f"{who.replace(' ', '-')}-{number}"
                    times = leader_killed_s(cluster, topic, victim_of(cluster))
                    found.setdefault(f"{kind}, {who}", []).append(times)
    for who, aim in (("a leader", 0.2), ("a leader and controller", None)):
        theirs, ours = (found[f"{kind}, {who}"] for kind in ("apache", "ottla"))
        for name, at, bound in (("to the next leader", 0, aim), ("to the next acks=all write", 1, None)):
            apache, ottla = [times[at] for times in theirs], [times[at] for times in ours]
            note = f"median of {count}: {spread_of(apache)} and {spread_of(ottla)}"
            report.add(Row(f"{who} killed {name}", "s", median(apache), median(ottla), bound, note=note))


def leader_killed_s(cluster: Cluster, topic: str, victim: int) -> tuple[float, float]:
    """Seconds until a survivor shows another leader, and until that one has acknowledged a write by both survivors."""
    create(cluster, topic, [victim])
    survivor = cluster[next(node for node in NODES if node != victim)]
    ask, frame = metadata_frame(topic), produce_frame(topic, {0: batch_of(100, 100, now_ms())})
    with connection(survivor) as link:
        began = time.perf_counter()
        os.kill(cluster[victim].pid, signal.SIGKILL)
        while (leader := partitions_in(link.ask(ask))[0].leader_id) in (victim, -1):
            assert time.perf_counter() - began < PATIENCE_S, f"{topic} has no leader"
            time.sleep(PAUSE_S)  # asking without a pause would take the CPU that is measured
        led_s = time.perf_counter() - began
    wait_until(lambda: written(cluster[leader], frame), PATIENCE_S, "a write to the new leader", PAUSE_S)
    written_s = time.perf_counter() - began
    cluster[victim].wait()
    cluster[victim].start()
    cluster.caught_up()
    in_sync(cluster, 1, topic)
    return led_s, written_s


def rolling_restart(report: Report, where: Path, quick: bool) -> None:
    """Every node is stopped and started again while an idempotent producer writes to partitions that all three led."""
    count = 1 if quick else ROLLS
    gaps: dict[str, list[float]] = {}
    with both(where) as clusters:
        for number in range(count):
            for kind, cluster in clusters.items():
                gaps.setdefault(kind, []).append(longest_gap_s(cluster, f"rolled-{number}"))
    note = f"median of {count}: {spread_of(gaps['apache'])} and {spread_of(gaps['ottla'])}"
    name = "rolling restart: longest gap of a producer"
    report.add(Row(name, "s", median(gaps["apache"]), median(gaps["ottla"]), 0.5, note=note))


def longest_gap_s(cluster: Cluster, topic: str) -> float:
    """The longest time in which one partition's messages were not acknowledged."""
    create(cluster, topic, NODES)
    with writing(cluster.bootstrap_servers, topic) as longest_s:
        for node in NODES:
            cluster[node].restart()
            cluster.caught_up()
            in_sync(cluster, len(NODES), topic)
        time.sleep(AFTERWARDS_S)  # a gap that the last restart leaves is measured too
    return longest_s()


@contextlib.contextmanager
def writing(servers: str, topic: str) -> Iterator[Callable[[], float]]:
    """librdkafka's idempotent producer at a slow pace for the length of the block; after it, the longest gap."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.timeout.ms": int(1000 * PATIENCE_S),
            "log_level": 0,
        }
    )
    newest = dict.fromkeys(range(len(NODES)), 0.0)
    gaps: list[float] = []
    failed: list[KafkaError] = []
    over = threading.Event()

    def acknowledged(error: KafkaError | None, partition: int) -> None:
        if error is not None:
            failed.append(error)
        now = time.perf_counter()
        if newest[partition]:  # the first waits for the connection and the producer's id
            gaps.append(now - newest[partition])
        newest[partition] = now

    def run() -> None:
        while not over.wait(SEND_EVERY_S):
            for partition in newest:
                producer.produce(
                    topic,
                    b"x" * 100,
                    partition=partition,
                    on_delivery=lambda e, m, p=partition: acknowledged(e, p),
                )
            producer.poll(0)

    thread = threading.Thread(target=run, name="writing")
    thread.start()
    try:
        yield lambda: max(gaps)
    finally:
        over.set()
        thread.join()
    assert producer.flush(PATIENCE_S) == 0, "messages are left"
    assert not failed, failed[0]
