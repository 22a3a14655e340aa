"""Quorums of Apache and Ottla voters: each leads in turn, dies and comes back; all keep one log, to the byte."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from tests.interop.apache import run_tool
from tests.interop.cluster import Cluster, ClusterNode
from tests.interop.process import wait_until
from tests.support.raw_client import METADATA, RawClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

MIXES = [("apache", "apache", "ottla"), ("ottla", "ottla", "apache")]
PATIENCE_S = 60.0


def three(kinds: tuple[str, ...], roles: str = "broker,controller") -> dict[int, tuple[str, str]]:
    return {number: (kind, roles) for number, kind in enumerate(kinds, start=1)}


def topics(node: ClusterNode) -> set[str]:
    """The topics that a broker knows."""
    with RawClient(node) as client:
        return {topic["name"] for topic in client.ask(METADATA, 1, {"topics": None})["topics"]}


def create_through_each(cluster: Cluster, word: str) -> set[str]:
    made = set()
    for node in cluster.brokers():
        with RawClient(node) as client:
            made.add(client.create_topic(f"{word}-{node.node_id}"))
    return made


def all_know(cluster: Cluster, names: set[str]) -> None:
    for node in cluster.brokers():
        wait_until(
            lambda node=node: topics(node) == names, PATIENCE_S, f"node {node.node_id} to know the topics"
        )


def batches(node: ClusterNode, below: int) -> dict[int, bytes]:
    """The batches of the metadata log below an offset, by their first offset."""
    found = {}
    for path in sorted(node.metadata_dir.glob("*.log")):
        data, at = path.read_bytes(), 0
        while at + 12 <= len(data):
            base, size = struct.unpack_from(">qi", data, at)
            if size <= 0 or base >= below:
                break
            found[base] = data[at : at + 12 + size]
            at += 12 + size
    return found


def assert_same_logs(nodes: list[ClusterNode], below: int) -> None:
    first, *others = [batches(node, below) for node in nodes]
    assert first
    for other in others:
        common = set(range(max(min(first), min(other)), below))
        assert {k: v for k, v in other.items() if k in common} == {
            k: v for k, v in first.items() if k in common
        }


@pytest.mark.parametrize("voters_in_log", [False, True], ids=["static", "in-log"])
@pytest.mark.parametrize("kinds", MIXES, ids="-".join)
def test_each_leads_in_turn_dies_and_comes_back(
    tmp_path: Path, kinds: tuple[str, ...], voters_in_log: bool
) -> None:
    with Cluster(tmp_path, three(kinds), voters_in_log=voters_in_log) as cluster:
        names = create_through_each(cluster, "first")
        all_know(cluster, names)
        for node_id in (3, 1, 2):
            cluster.make_leader(node_id)
            names |= create_through_each(cluster, f"under-{node_id}")
            all_know(cluster, names)
            cluster[node_id].kill()
            assert cluster.leader() != node_id
            names |= create_through_each(cluster, f"without-{node_id}")
            cluster[node_id].start()
            names |= create_through_each(cluster, f"with-{node_id}-again")
            all_know(cluster, names)
            cluster.caught_up()
        high_watermark = cluster.quorum()["high_watermark"]
        cluster.caught_up()
    nodes = list(cluster.nodes.values())
    assert {node.node_id: node.exit_code for node in nodes if node.kind == "ottla" and node.exit_code} == {}
    assert_same_logs(nodes, high_watermark)
    decoded = {decode(node, high_watermark) for node in nodes}
    assert len(decoded) == 1
    assert decoded.pop().count("TOPIC_RECORD") == len(names)


def decode(node: ClusterNode, below: int) -> str:
    """The records below an offset, as kafka-dump-log tells them."""
    files = ",".join(str(path) for path in sorted(node.metadata_dir.glob("*.log")))
    shown = run_tool(
        "DumpLogSegments", "--cluster-metadata-decoder", "--skip-record-metadata", "--files", files
    )
    told: list[str] = []
    for line in shown.stdout.splitlines():
        if line.startswith("baseOffset:") and int(line.split()[1]) >= below:
            break
        if line.startswith("|"):
            told.append(line)
    return "\n".join(told)


@pytest.mark.parametrize("kinds", MIXES, ids="-".join)
@pytest.mark.parametrize("late_kind", ["apache", "ottla"])
def test_a_voter_with_an_empty_disk_gets_the_snapshot_of_the_other_kind(
    tmp_path: Path, kinds: tuple[str, ...], late_kind: str
) -> None:
    often = {"metadata.log.max.record.bytes.between.snapshots": 2000}
    with Cluster(tmp_path, three(kinds), often) as cluster:
        late = next(node for node in cluster.nodes.values() if node.kind == late_kind)
        leader = next(node for node in cluster.nodes.values() if node.kind != late_kind)
        cluster.make_leader(leader.node_id)
        late.stop()
        with RawClient(leader) as client:
            names = {client.create_topic(f"t{number}", retention_ms=number) for number in range(30)}
        wait_until(lambda: bool(snapshots(leader)), PATIENCE_S, "a snapshot is written")
        shutil.rmtree(late.data_dir)
        late.start()
        all_know(cluster, names)
        fetched = min(snapshots(late))  # later ones are of its own making
        assert fetched in snapshots(leader), "it was fetched whole, not record by record"
        assert (late.metadata_dir / fetched).read_bytes() == (leader.metadata_dir / fetched).read_bytes()
        cluster[leader.node_id].kill()
        names |= create_through_each(cluster, "later")
        leader.start()
        all_know(cluster, names)


def snapshots(node: ClusterNode) -> list[str]:
    """The snapshots beside the log, but for the one that formatting writes."""
    return [p.name for p in node.metadata_dir.glob("*.checkpoint") if not p.name.startswith("0" * 20)]
