"""How long Ottla's loops are held while ten thousand partitions change leader, and while snapshots of them are made.

One cluster of three controllers and three brokers, an idle node beside it: what that one shows is the machine. The
partitions are made before anything is watched. Each row is the worst node of a role, p99.9 of the lateness of a
heartbeat of two milliseconds, as in bench.stalls. No broker may miss a heartbeat that the controller waits for, or be
fenced without having been stopped.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from tests.interop.cluster import Cluster, ClusterNode
from tests.interop.process import wait_until
from tests.interop.scripts.entities import decode_response, encode_request

from bench.clusters import (
    BROKERS,
    CONTROLLERS,
    PATIENCE_S,
    POLL_S,
    all_led,
    cluster_of,
    create,
    fill,
    partitions_of,
)
from bench.load import Connection, connection
from bench.report import Row
from bench.servers import ottla
from bench.stalls import row_of

Reports = list[dict[str, float]]

SNAPSHOTS_EVERY = "metadata.log.max.record.bytes.between.snapshots"
# A fifth of what a start writes, which is two changes of a leader for every partition.
SNAPSHOT_BYTES_A_PARTITION = 20
SNAPSHOT_ROUNDS = 5
AFTERWARDS_S = 5.0
ALTER_CONFIGS, ALTER_CONFIGS_VERSION = 44, 1
TOPIC = 2
LONG_CONFIG = "follower.replication.throttled.replicas"
LONG_VALUES = [",".join(f"{partition}:{broker}" for partition in range(3_000)) for broker in BROKERS]
# What a broker says when a heartbeat has failed, or when it was fenced though it ran.
MISSED = re.compile(r"heartbeat failed|has fenced this broker")


def rows(where: Path, partitions: int) -> Iterator[Row]:
    """Leaders, then snapshots, in the same cluster; started anew for each, so that each has its own reports."""
    count = f"{partitions:,} partitions"
    cluster = cluster_of("ottla", where)
    with cluster:
        fill(cluster, partitions)
    with watched(cluster, where / "leaders") as (controllers, brokers, idle):
        changes = change_leaders(cluster)
    yield row_of(f"{count} change leader, a controller", worst(controllers), worst(idle))
    yield row_of(f"{count} change leader, a broker", worst(brokers), worst(idle))
    cluster.overrides[SNAPSHOTS_EVERY] = snapshot_bytes = partitions * SNAPSHOT_BYTES_A_PARTITION
    with watched(cluster, where / "snapshots") as (controllers, brokers, idle):
        write_snapshots(cluster, snapshot_bytes)
    yield row_of(f"snapshot of {count} written, a controller", worst(controllers), worst(idle))
    yield row_of(f"snapshot of {count} written, a broker", worst(brokers), worst(idle))
    with watched(cluster, where / "loading") as (controllers, _, idle):
        loaded = load_snapshot(cluster)
    yield row_of(f"snapshot of {count} loaded by a controller", loaded.stalls()[-1], worst(idle))
    yield Row(
        "heartbeats missed, brokers fenced unasked",
        "times",
        None,
        missed_heartbeats(cluster),
        0,
        absolute=True,
        note=f"beside all of these, {changes:,} changes of leader among them",
    )


@contextlib.contextmanager
def watched(cluster: Cluster, where: Path) -> Iterator[tuple[Reports, Reports, Reports]]:
    """A run of the cluster with an idle node beside it; the lists have the reports when the block is over."""
    controllers: Reports = []
    brokers: Reports = []
    idle: Reports = []
    before = {node.node_id: len(node.stalls()) for node in cluster.nodes.values()}
    cluster.watch_stalls = True
    beside = ottla(where, watch_stalls=True)
    with beside, cluster:
        yield controllers, brokers, idle
    found = beside.stalls()
    assert found is not None, "the idle node wrote no report"
    idle.append(found)
    for ids, reports in ((CONTROLLERS, controllers), (BROKERS, brokers)):
        for node_id in ids:
            reports += cluster[node_id].stalls()[before[node_id] :]


def worst(reports: Reports) -> dict[str, float]:
    """The one in which the loop was held longest."""
    return max(reports, key=lambda report: (report["p999_ms"], report["max_ms"]))


def missed_heartbeats(cluster: Cluster) -> int:
    """What brokers have said of it, in all their lives."""
    logs = (path for node_id in BROKERS for path in cluster[node_id].work_dir.glob("*.log"))
    return sum(len(MISSED.findall(path.read_text(errors="replace"))) for path in logs)


# ---- what is done to the cluster ------------------------------------------------------------------------------------


def change_leaders(cluster: Cluster) -> int:
    """Every partition loses its leader and gets it back: two brokers killed at once, the third stopped, and one again.

    The number of changes, by the leader epochs. With one replica a partition has no other leader to go to.
    """
    first, second, third = (cluster[broker] for broker in BROKERS)
    partitions = len(partitions_of(third))
    began = leader_epochs(third)
    for broker in (first, second):
        broker.kill()
    wait_until(lambda: set(third.known_brokers()) == {third.node_id}, PATIENCE_S, "both to be fenced", POLL_S)
    for broker in (first, second):
        broker.launch()
    for broker in (first, second):
        wait_until(broker._ready_or_dead, broker.start_timeout_s, "the broker to serve")
    all_led(cluster, partitions)
    for broker in (third, first):
        broker.stop()
        broker.start()
        all_led(cluster, partitions)
    time.sleep(AFTERWARDS_S)  # what is put off is measured too
    return leader_epochs(third) - began


def leader_epochs(broker: ClusterNode) -> int:
    """The sum of all, which every change of a leader raises by one."""
    return sum(partition.leader_epoch for partition in partitions_of(broker))


def write_snapshots(cluster: Cluster, size_bytes: int) -> None:
    """A few on every node, by settings of a few small topics that are worth one each time."""
    with connection(cluster[BROKERS[0]]) as link:
        topics = [f"setting-{number}" for number in range(1 + size_bytes // len(LONG_VALUES[0]))]
        create(link, topics)
        for number in range(SNAPSHOT_ROUNDS):
            before = {node.node_id: newest_snapshot(node) for node in cluster.nodes.values()}
            set_configs(link, topics, LONG_VALUES[number % len(LONG_VALUES)])
            for node in cluster.nodes.values():
                wait_until(
                    lambda node=node, old=before[node.node_id]: newest_snapshot(node) > old,
                    PATIENCE_S,
                    f"a snapshot of node {node.node_id}",
                    POLL_S,
                )
    time.sleep(AFTERWARDS_S)  # as above


def set_configs(link: Connection, topics: list[str], value: str) -> None:
    """One value for all of them."""
    rows = [
        {
            "resource_type": TOPIC,
            "resource_name": topic,
            "configs": [{"name": LONG_CONFIG, "config_operation": 0, "value": value}],
        }
        for topic in topics
    ]
    body = {"resources": rows, "validate_only": False}
    payload = link.ask(encode_request(ALTER_CONFIGS, ALTER_CONFIGS_VERSION, body, client_id="bench"))
    answer = decode_response(ALTER_CONFIGS, ALTER_CONFIGS_VERSION, payload)
    errors = {row["error_code"] for row in answer["responses"]} - {"none"}
    assert not errors, errors


def newest_snapshot(node: ClusterNode) -> str:
    return max((path.name for path in node.metadata_dir.glob("*.checkpoint")), default="")


def load_snapshot(cluster: Cluster) -> ClusterNode:
    """A standby comes back with an empty disk: it fetches a snapshot and loads it, and is stopped when it has all."""
    standby = cluster[min(set(CONTROLLERS) - {cluster.leader()})]
    standby.stop()
    shutil.rmtree(standby.data_dir)
    standby.start()
    cluster.caught_up()
    wait_until(
        lambda: "the metadata is that of snapshot" in standby.log_text(), PATIENCE_S, "the snapshot's load"
    )
    standby.stop()
    return standby
