"""Disks of controllers that hang or fail while a cluster is changed: what is acknowledged is on a majority of them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from tests.interop.process import wait_until
from tests.support.cluster import Processes
from tests.support.cluster_changes import TIMED_OUT, Changes, changing, check_changes
from tests.support.disks import Disk
from tests.support.metadata_logs import check_same_logs, segments

PATIENCE_S = 180.0
# Changes that must succeed while a disk is broken, and after that.
PROGRESS = 10
SHORT_MS = 1_500


class Cluster(Processes):
    """Three controllers whose disks can be broken, and a broker."""

    def __enter__(self) -> Cluster:
        self.disks = {node.node_id: Disk(node) for node in self.nodes.values() if node.is_controller}
        return super().__enter__()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("disks"), controllers=3, brokers=1, static=False) as running:
        yield running


def wait_for_changes(clients: list[Changes], count: int = PROGRESS) -> None:
    """Until so many more are acknowledged."""
    wanted = sum(client.acknowledged for client in clients) + count
    wait_until(
        lambda: sum(client.acknowledged for client in clients) >= wanted, PATIENCE_S, f"{count} more changes"
    )


def clients_of(cluster: Cluster, name: str) -> list[Changes]:
    return [Changes(cluster, f"{name}-{n}", Random(n)) for n in range(2)]


def check_all(cluster: Cluster, clients: list[Changes]) -> None:
    check_changes(cluster, clients)
    check_same_logs(cluster)


def test_the_others_disks_are_enough_when_the_active_controllers_hangs(cluster: Cluster) -> None:
    """It leads on: what two of three have on disk is committed. What it had not got there itself it may lose."""
    active = cluster.active_controller()
    node = cluster.nodes[active]
    clients = clients_of(cluster, "hangs")
    with changing(clients):
        wait_for_changes(clients)
        with cluster.disks[active].broken("fsync-hangs"):
            (path,) = segments(node.data_dir)
            # All that is on its disk for sure. The power cut below leaves it no more than that.
            on_disk = path.stat().st_size
            wait_for_changes(clients, 3 * PROGRESS)
            assert cluster.active_controller() == active
            cluster.kill(active)
            with path.open("r+b") as log:
                log.truncate(on_disk)
        wait_for_changes(clients)
        cluster.start(active)
        wait_for_changes(clients)
    check_all(cluster, clients)


def test_nothing_is_acknowledged_that_only_a_minority_has_on_disk(cluster: Cluster) -> None:
    active = cluster.active_controller()
    second = next(node_id for node_id in cluster.disks if node_id != active)
    before = Changes(cluster, "before", Random(1))
    assert before.create() == "none"
    client = Changes(cluster, "minority", Random(2), timeout_ms=SHORT_MS)
    with cluster.disks[active].broken("fsync-hangs"), cluster.disks[second].broken("fsync-hangs"):
        assert client.create() == TIMED_OUT
        assert client.create() == TIMED_OUT
    after = Changes(cluster, "after", Random(3))
    assert after.create() == "none"
    for each in (before, client, after):
        each.close()
    check_all(cluster, [before, client, after])


def test_an_active_controller_whose_disk_fails_ends_and_another_goes_on(cluster: Cluster) -> None:
    active = cluster.active_controller()
    node = cluster.nodes[active]
    clients = clients_of(cluster, "fails")
    with changing(clients):
        wait_for_changes(clients)
        with cluster.disks[active].broken("fsync-fails"):
            wait_until(lambda: not node.is_running(), PATIENCE_S, f"{node.kind} to end")
            wait_for_changes(clients)
        assert node.exit_code == 70
        last = node.log_text().strip().splitlines()[-1]
        assert last.startswith("ottla: stopped, because it could not go on: ")
        assert "Input/output error" in last
        assert "Traceback" not in node.log_text()
        cluster.start(active)
        wait_for_changes(clients)
    check_all(cluster, clients)


def test_an_active_controller_that_cannot_write_is_replaced_and_follows(cluster: Cluster) -> None:
    """A write that does not return stops the whole process: for the others it is as if it were not there."""
    active = cluster.active_controller()
    clients = clients_of(cluster, "writes")
    with changing(clients):
        wait_for_changes(clients)
        with cluster.disks[active].broken("pwrite-hangs"):
            wait_until(
                lambda: cluster.active_controller() != active, PATIENCE_S, "another controller to lead"
            )
            wait_for_changes(clients)
        wait_for_changes(clients)
    assert cluster.nodes[active].is_running()
    check_all(cluster, clients)


def test_a_standby_whose_disk_hangs_holds_nobody_up(cluster: Cluster) -> None:
    active = cluster.active_controller()
    standby = next(node_id for node_id in cluster.disks if node_id != active)
    clients = clients_of(cluster, "standby")
    with changing(clients):
        with cluster.disks[standby].broken("fsync-hangs"):
            wait_for_changes(clients, 3 * PROGRESS)
            assert cluster.active_controller() == active
        wait_for_changes(clients)
    check_all(cluster, clients)
