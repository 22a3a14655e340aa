"""kafka-dump-log over the logs of an Ottla quorum whose voters were killed: one log, and all of it is read."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from tests.interop.apache import run_tool
from tests.interop.cluster import Cluster, ClusterNode
from tests.interop.process import wait_until
from tests.interop.test_mixed_quorum import PATIENCE_S, snapshots
from tests.support.raw_client import RawClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

VOTERS, BROKER = (1, 2, 3), 4
# A few changes each.
SNAPSHOTS = {"metadata.log.max.record.bytes.between.snapshots": 2000}


def dump(*files: Path) -> dict[int, list[str]]:
    """What the tool tells of each batch and of its records, by the batch's offset; it must not complain of anything.

    Or only of files that do not begin with offset 0: it wants that of each.
    """
    names = ",".join(map(str, files))
    shown = run_tool("DumpLogSegments", "--cluster-metadata-decoder", "--files", names)
    begins = {path: int(path.stem) for path in files if path.suffix == ".log"}
    later = [(path, begin) for path, begin in begins.items() if begin > 0]
    complaints = [
        f"Non-consecutive offsets in {path}\n  -1 is followed by {begin}\n" for path, begin in later
    ]
    assert shown.stderr == "".join(complaints)
    assert "isvalid: false" not in shown.stdout
    assert "Error" not in shown.stdout
    told: dict[int, list[str]] = {}
    for line in shown.stdout.splitlines():
        batch = re.match(r"baseOffset: (\d+) ", line)
        if batch:
            # A log that begins later has it at another place of a file.
            told[int(batch[1])] = found = [re.sub(r"position: \d+ ", "", line)]
        elif line.startswith("|"):
            found.append(line)
    return told


def log_of(node: ClusterNode) -> dict[int, list[str]]:
    return dump(*sorted(node.metadata_dir.glob("*.log")))


def topics(told: dict[int, list[str]], below: int = sys.maxsize) -> list[str]:
    """The topics that are created in the batches below an offset."""
    said = "\n".join(line for offset in sorted(told) if offset < below for line in told[offset])
    return re.findall(r'"TOPIC_RECORD".*?"name":"(.*?)"', said)


def create(cluster: Cluster, name: str) -> str:
    with RawClient(cluster[BROKER]) as client:
        return client.create_topic(name, 3, retention_ms=7000)


def test_one_log_on_all_voters_after_kills(tmp_path: Path) -> None:
    nodes = {**dict.fromkeys(VOTERS, ("ottla", "controller")), BROKER: ("ottla", "broker")}
    names = []
    with Cluster(tmp_path, nodes, SNAPSHOTS) as cluster:
        for round_ in range(len(VOTERS)):
            names += [create(cluster, f"before-{round_}-{number}") for number in range(3)]
            leader = cluster[cluster.leader()]
            leader.kill()
            names += [create(cluster, f"without-{round_}-{number}") for number in range(3)]
            leader.start()
            cluster.caught_up()
        # One begins anew with what another one has: its log has no beginning any more.
        late = next(cluster[voter] for voter in VOTERS if voter != cluster.leader())
        late.kill()
        shutil.rmtree(late.data_dir)
        late.start()
        names.append(create(cluster, "last"))
        cluster.caught_up()
        common_end = cluster.quorum()["high_watermark"]
        cluster.caught_up()
        for voter in VOTERS:
            wait_until(
                lambda voter=voter: bool(snapshots(cluster[voter])), PATIENCE_S, "a snapshot is written"
            )
    logs = {voter: log_of(cluster[voter]) for voter in VOTERS}
    begins = {voter: min(log) for voter, log in logs.items()}
    assert begins[late.node_id] > 0
    assert sorted(begins.values())[:2] == [0, 0]
    parts = [
        {offset: told for offset, told in log.items() if max(begins.values()) <= offset < common_end}
        for log in logs.values()
    ]
    assert parts[0]
    assert parts[0] == parts[1] == parts[2]
    whole = next(log for voter, log in logs.items() if voter != late.node_id)
    assert topics(whole, common_end) == names
    for voter in VOTERS:
        newest = max(snapshots(cluster[voter]))
        told = dump(cluster[voter].metadata_dir / newest)
        assert "SnapshotHeader" in told[min(told)][1]
        assert "SnapshotFooter" in told[max(told)][1]
        there = topics(whole, below=int(newest.partition("-")[0]))
        assert there, "there was something to keep"
        assert sorted(topics(told)) == sorted(there)
