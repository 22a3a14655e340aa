"""Three nodes with both roles and three replicas of everything, of either kind, and what is asked of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.interop.cluster import Cluster, ClusterNode
from tests.interop.process import wait_until

from bench.clusters import AS_SHIPPED, PATIENCE_S, POLL_S, create_errors, partitions_of, placed_frame
from bench.frames import produce_error
from bench.load import connection
from bench.servers import QUIET, SERVER_JVM

NODES = (1, 2, 3)
KINDS = ("apache", "ottla")
REPLICAS = len(NODES)
REPLICATED: dict[str, object] = {
    "default.replication.factor": REPLICAS,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": REPLICAS,
    "transaction.state.log.replication.factor": REPLICAS,
    "transaction.state.log.min.isr": 2,
    "share.coordinator.state.topic.replication.factor": REPLICAS,
    "share.coordinator.state.topic.min.isr": 2,
}
# Three replicas of two clusters fill a disk soon: both look often for what may be deleted.
LOADED: dict[str, object] = {"log.retention.check.interval.ms": 10_000}
# Larger topics are made in pieces: the answer to one of them must not take minutes.
TOPIC_PARTITIONS = 1_000


def trio(kind: str, where: Path, settings: Mapping[str, object] | None = None) -> Cluster:
    """Not started yet. Apache's nodes have the heap that kafka-server-start.sh gives them."""
    nodes = dict.fromkeys(NODES, (kind, "broker,controller"))
    every = {**QUIET, **AS_SHIPPED, **REPLICATED, **(settings or {})}
    return Cluster(where / kind, nodes, every, jvm=SERVER_JVM)


@contextlib.contextmanager
def both(where: Path, settings: Mapping[str, object] | None = None) -> Iterator[dict[str, Cluster]]:
    """Both clusters at once: rounds alternate between them, so that a noisy moment hits both alike."""
    with trio("apache", where, settings) as apache, trio("ottla", where, settings) as ottla:
        yield {"apache": apache, "ottla": ottla}


def replicas_from(cluster: Cluster, leader: int) -> list[int]:
    """The replicas of a partition that this node is to lead, it first."""
    first = NODES.index(leader)
    return [*NODES[first:], *NODES[:first]][:REPLICAS]


def create(
    cluster: Cluster, topic: str, leaders: Sequence[int], configs: Mapping[str, object] | None = None
) -> None:
    """A topic with one partition for each of the leaders; returns when every node shows all replicas in sync."""
    with connection(cluster.brokers()[0]) as link:
        frame = placed_frame({topic: [replicas_from(cluster, leader) for leader in leaders]}, configs)
        errors = create_errors(link.ask(frame))
    assert not errors, f"{topic} is not created: {errors}"
    in_sync(cluster, len(leaders), topic)


def fill(cluster: Cluster, partitions: int) -> None:
    """So many partitions in topics, led by all nodes in turn; returns when all of them are in sync."""
    for first in range(0, partitions, TOPIC_PARTITIONS):
        count = min(TOPIC_PARTITIONS, partitions - first)
        create(cluster, f"many-{first}", [NODES[index % len(NODES)] for index in range(count)])
    in_sync(cluster, partitions)


def in_sync(cluster: Cluster, partitions: int, topic: str | None = None) -> None:
    """Wait until every node that runs shows so many partitions of a topic, or in all, with every replica in sync."""
    for node in cluster.brokers():
        wait_until(
            lambda node=node: _all_in_sync(node, partitions, topic),
            PATIENCE_S,
            "all replicas in sync",
            POLL_S,
        )


def _all_in_sync(node: ClusterNode, partitions: int, topic: str | None) -> bool:
    shown = partitions_of(node, topic)
    return len(shown) == partitions and all(
        row.leader_id >= 0 and set(row.isr_nodes) == set(row.replica_nodes) for row in shown
    )


def written(node: ClusterNode, frame: bytes) -> bool:
    """Whether this node acknowledges a Produce request; False as well if it cannot be reached."""
    try:
        with connection(node) as link:
            return produce_error(link.ask(frame)) == 0
    except OSError:
        return False


def bystander(cluster: Cluster) -> int:
    """A node that is not the active controller: its loss is that of a broker alone."""
    return next(node_id for node_id in NODES if node_id != cluster.leader())


def pss_mb(cluster: Cluster) -> float:
    """Memory of all three; PSS counts once what processes share, as it is once in the machine."""
    total_kb = 0
    for node in cluster.brokers():
        lines = Path(f"/proc/{node.pid}/smaps_rollup").read_text().splitlines()
        total_kb += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total_kb / 1024
