"""Snapshots of the metadata that come halfway, do not fit on the disk or are damaged: a node begins again, or stops."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest
from tests.interop.process import wait_until
from tests.support.cluster import BROKER, ClusterNode, Processes
from tests.support.cluster_changes import Changes, check_changes, topics_of
from tests.support.disks import Disk
from tests.support.metadata_logs import check_same_logs, checkpoints, fit_checksum

from ottla.records.batch import iter_batches

PATIENCE_S = 180.0
# Larger than what a node prints, which is a file too.
LEAST_SNAPSHOT_BYTES = 20_000
# A snapshot comes in several.
PIECE_BYTES = 4_000
SETTINGS = {"metadata.log.max.record.bytes.between.snapshots": 40_000}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Three controllers, each with a snapshot of its own, and a broker."""
    where = tmp_path_factory.mktemp("snapshots")
    with Processes(where, controllers=3, brokers=1, static=False, settings=SETTINGS) as running:
        client = Changes(running, "topic", Random(1))

        def all_have_snapshots() -> bool:
            assert client.create() == "none"
            found = [checkpoints(node.data_dir) for node in running.nodes.values() if node.is_controller]
            return all(each and each[-1].stat().st_size > LEAST_SNAPSHOT_BYTES for each in found)

        wait_until(all_have_snapshots, PATIENCE_S, "snapshots")
        client.close()
        yield running


def part_of(node: ClusterNode) -> Path | None:
    """The file in which it gathers the pieces of a snapshot."""
    return next((node.data_dir / "__cluster_metadata-0").glob("*.checkpoint.part"), None)


@contextmanager
def fetching(cluster: Processes, node_id: int) -> Iterator[tuple[ClusterNode, ExitStack]]:
    """A new broker that has got the first piece of a snapshot, and cannot write it before the stack is closed."""
    node = cluster.make(node_id, BROKER, {"controller.quorum.fetch.snapshot.max.bytes": PIECE_BYTES})
    cluster.format(node)
    with ExitStack() as running, ExitStack() as held:
        running.callback(node.kill)
        held.enter_context(Disk(node).broken("pwrite-hangs", ".checkpoint.part"))
        node.launch()
        wait_until(lambda: part_of(node) is not None, PATIENCE_S, "a snapshot to be fetched")
        yield node, held


def test_the_leader_dies_while_a_snapshot_is_fetched_from_it(cluster: Processes) -> None:
    active = cluster.active_controller()
    with fetching(cluster, 102) as (node, held):
        cluster.kill(active)
        leader = cluster.nodes[cluster.active_controller()]
        assert leader.node_id != active
        held.close()
        wait_until(node._ready_or_dead, PATIENCE_S, f"{node.kind} to serve")
        assert topics_of(node) == topics_of(cluster.nodes[101])
        assert part_of(node) is None
        fetched = checkpoints(node.data_dir)[0]
        whole = {path.name: path for path in checkpoints(leader.data_dir)}
        assert fetched.read_bytes() == whole[fetched.name].read_bytes()
        assert node.log_text().count("fetched metadata snapshot") == 1
        assert node.stop() == 0
    cluster.start(active)


def test_a_snapshot_that_does_not_fit_on_the_disk(cluster: Processes) -> None:
    """By a limit on the size of files; the node ends, and what it has fetched does not count when it comes back."""
    with fetching(cluster, 103) as (node, held):
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (LEAST_SNAPSHOT_BYTES, LEAST_SNAPSHOT_BYTES))
        held.close()
        wait_until(lambda: not node.is_running(), PATIENCE_S, f"{node.kind} to end")
        assert node.exit_code in (1, 70)
        assert "File too large" in node.log_text().strip().splitlines()[-1]
        assert "Traceback" not in node.log_text()
        client = Changes(cluster, "meanwhile", Random(2))
        assert client.create() == "none"
        client.close()
        node.start()
        assert topics_of(node) == topics_of(cluster.nodes[101])
        assert part_of(node) is None
        assert node.stop() == 0


def flip_a_bit(data: bytearray) -> str:
    """Of a record in the middle."""
    data[len(data) // 2] ^= 1
    return "damaged at position"


def flip_a_bit_of_the_header(data: bytearray) -> str:
    data[70] ^= 1
    return "damaged"


def cut_short(data: bytearray) -> str:
    del data[-1:]
    return "without a footer"


def unknown_record(data: bytearray) -> str:
    """A TopicRecord (type 2) becomes one of a type that nobody knows, with a checksum that fits."""
    name = b"topic-1"
    at = data.index(bytes((1, 2, 0, len(name) + 1)) + name)
    data[at + 1] = 120
    batch = next(batch for batch in iter_batches(bytes(data)) if batch.end > at)
    fit_checksum(data, batch.pos, batch.size_bytes)
    return "120"


@pytest.mark.parametrize("change", [flip_a_bit, flip_a_bit_of_the_header, cut_short, unknown_record])
def test_a_damaged_snapshot(cluster: Processes, change: Callable[[bytearray], str]) -> None:
    active = cluster.active_controller()
    node = next(n for n in cluster.nodes.values() if n.is_controller and n.node_id != active)
    cluster.kill(node.node_id)
    kept = node.data_dir.with_suffix(".kept")
    shutil.copytree(node.data_dir, kept)
    path = checkpoints(node.data_dir)[-1]
    data = bytearray(path.read_bytes())
    what = change(data)
    path.chmod(0o600)
    path.write_bytes(data)
    node.launch()
    wait_until(lambda: not node.is_running(), PATIENCE_S, f"{node.kind} to end")
    assert node.exit_code not in (0, None)
    last = node.log_text().strip().splitlines()[-1]
    assert str(path) in last, last
    assert what in last
    assert "Traceback" not in node.log_text()
    client = Changes(cluster, f"without-{change.__name__}", Random(3))
    wait_until(lambda: client.create() == "none", PATIENCE_S, "a change")
    client.close()
    shutil.rmtree(node.data_dir)
    kept.rename(node.data_dir)
    cluster.start(node.node_id)
    check_changes(cluster, [client])
    check_same_logs(cluster)
