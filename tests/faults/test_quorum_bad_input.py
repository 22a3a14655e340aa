"""What should not reach the controllers of a quorum: each is answered as Kafka answers it, and nobody dies."""

from __future__ import annotations

import resource
import shutil
import socket
import threading
import uuid
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from tests.interop.process import wait_until
from tests.support.cluster import BROKER, ClusterNode, Processes
from tests.support.cluster_changes import Changes, changing, check_changes
from tests.support.metadata_logs import batches, check_same_logs, fit_checksum, segments
from tests.support.quorum_requests import (
    BEGIN_QUORUM_EPOCH,
    END_QUORUM_EPOCH,
    VOTE,
    Stranger,
    directory_id,
)

from ottla.model.ids import random_uuid, uuid_to_str
from ottla.records.batch import HEADER_SIZE

CLAIMS = [VOTE, BEGIN_QUORUM_EPOCH, END_QUORUM_EPOCH]
NAMES = ["Vote", "BeginQuorumEpoch", "EndQuorumEpoch"]
PATIENCE_S = 180.0
LONG_LOG_BYTES = 30_000
NOBODY = uuid.UUID(int=77)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    where = tmp_path_factory.mktemp("quorum")
    with Processes(where, controllers=3, brokers=1, static=False) as running:
        yield running


class Quorum:
    """Who leads, which epoch."""

    def __init__(self, cluster: Processes) -> None:
        with cluster.admin() as admin:
            found = admin.describe_quorum()
        self.epoch = found.leader_epoch
        self.leader = cluster.nodes[found.leader_id]
        self.standby = next(
            node for node in cluster.nodes.values() if node.is_controller and node is not self.leader
        )


@pytest.fixture
def quorum(cluster: Processes) -> Iterator[Quorum]:
    """As it is before a test; the quorum is the same afterwards, and works."""
    before = Quorum(cluster)
    yield before
    after = Quorum(cluster)
    assert (after.leader, after.epoch) == (before.leader, before.epoch)
    client = Changes(cluster, f"works-{uuid.uuid4()}", Random(1))
    assert client.create() == "none"
    client.close()


def partition_of(answer: dict[str, Any]) -> dict[str, Any]:
    assert answer["error_code"] == "none", answer
    topics = answer["topics"] if "topics" in answer else answer["responses"]
    found: dict[str, Any] = topics[0]["partitions"][0]
    return found


# ---- elections -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api_key", CLAIMS, ids=NAMES)
def test_a_claim_from_another_cluster(cluster: Processes, quorum: Quorum, api_key: int) -> None:
    for node in (quorum.leader, quorum.standby):
        with Stranger(cluster, node) as stranger:
            answer = stranger.claim(api_key, quorum.epoch + 5, by=1, cluster_id=uuid_to_str(random_uuid()))
        assert answer["error_code"] == "inconsistent_cluster_id"
        assert answer["topics"] == []


@pytest.mark.parametrize("api_key", CLAIMS, ids=NAMES)
def test_a_claim_of_an_old_epoch(cluster: Processes, quorum: Quorum, api_key: int) -> None:
    for node in (quorum.leader, quorum.standby):
        with Stranger(cluster, node) as stranger:
            # A candidate's epoch is above that of its log; before the first one there is only that of a pre-vote.
            answer = stranger.claim(api_key, quorum.epoch - 1, by=quorum.standby.node_id, pre_vote=True)
        partition = partition_of(answer)
        assert partition["error_code"] == "fenced_leader_epoch"
        assert partition["leader_id"] == quorum.leader.node_id
        assert partition["leader_epoch"] == quorum.epoch
        assert not partition.get("vote_granted")


@pytest.mark.parametrize("wrong", [{"voter_id": 9}, {"voter_directory_id": NOBODY}], ids=["id", "directory"])
def test_a_claim_for_another_voter(cluster: Processes, quorum: Quorum, wrong: dict[str, Any]) -> None:
    """Of the epoch that is: a later one would be believed, whoever it was meant for (as in Kafka)."""
    with Stranger(cluster, quorum.standby) as stranger:
        vote = partition_of(stranger.claim(VOTE, quorum.epoch, by=quorum.standby.node_id, **wrong))
        assert (vote["error_code"], vote["vote_granted"]) == ("invalid_voter_key", False)
        begin = stranger.claim(BEGIN_QUORUM_EPOCH, quorum.epoch, by=quorum.leader.node_id, **wrong)
        assert partition_of(begin)["error_code"] == "invalid_voter_key"


# ---- fetches ---------------------------------------------------------------------------------------------


def leader_in(answer: dict[str, Any]) -> list[tuple[int, str, int]]:
    return [(each["node_id"], each["host"], each["port"]) for each in answer["node_endpoints"]]


def test_fetches_that_do_not_fit(cluster: Processes, quorum: Quorum) -> None:
    where = [(quorum.leader.node_id, "127.0.0.1", quorum.leader.controller_port)]
    asked = [
        (quorum.standby, 0, "not_leader_or_follower"),
        (quorum.leader, -1, "fenced_leader_epoch"),
        (quorum.standby, -1, "fenced_leader_epoch"),
        (quorum.leader, 1, "unknown_leader_epoch"),
        (quorum.standby, 1, "unknown_leader_epoch"),
    ]
    for node, ahead, error in asked:
        with Stranger(cluster, node) as stranger:
            answer = stranger.fetch(quorum.epoch + ahead)
        partition = partition_of(answer)
        assert partition["error_code"] == error, (node.kind, ahead)
        assert partition["current_leader"] == {
            "leader_id": quorum.leader.node_id,
            "leader_epoch": quorum.epoch,
        }
        assert leader_in(answer) == where
    with Stranger(cluster, quorum.leader) as stranger:
        assert partition_of(stranger.fetch(quorum.epoch))["error_code"] == "none"
        foreign = stranger.fetch(quorum.epoch, cluster_id=uuid_to_str(random_uuid()))
        assert foreign["error_code"] == "inconsistent_cluster_id"


def test_a_snapshot_that_nobody_has(cluster: Processes, quorum: Quorum) -> None:
    """What Kafka means to say of the partition does not get into its answer: this is what goes out there."""
    with Stranger(cluster, quorum.leader) as stranger:
        for end_offset in (3, 1 << 40, -1):
            assert stranger.fetch_snapshot(quorum.epoch, end_offset) == "unknown_server_error", end_offset
        for epoch in (quorum.epoch - 1, quorum.epoch + 1):
            assert stranger.fetch_snapshot(epoch, 3) == "unknown_server_error"
        foreign = stranger.fetch_snapshot(quorum.epoch, 3, cluster_id=uuid_to_str(random_uuid()))
        assert foreign == "inconsistent_cluster_id"
    with Stranger(cluster, quorum.standby) as stranger:
        assert stranger.fetch_snapshot(quorum.epoch, 3) == "unknown_server_error"


# ---- voters ----------------------------------------------------------------------------------------------


def test_changes_of_the_voters_that_cannot_be(cluster: Processes, quorum: Quorum) -> None:
    known = quorum.standby.node_id
    with Stranger(cluster, quorum.leader) as stranger, socket.create_server(("127.0.0.1", 0)) as silent:
        port = quorum.standby.controller_port
        assert stranger.add_voter(known, directory_id(cluster, known), port) == "duplicate_voter"
        assert stranger.add_voter(known, NOBODY, port) == "duplicate_voter"
        assert stranger.remove_voter(9, NOBODY) == "voter_not_found"
        assert stranger.remove_voter(known, NOBODY) == "voter_not_found"
        # The first waits for one that takes connections and says nothing; the second has to wait for the first.
        outcomes: list[str] = []

        def add_silent() -> None:
            with Stranger(cluster, quorum.leader) as other:
                outcomes.append(other.add_voter(9, NOBODY, silent.getsockname()[1], timeout_ms=3_000))

        adding = threading.Thread(target=add_silent)
        adding.start()
        connection, _ = silent.accept()
        assert stranger.remove_voter(known, directory_id(cluster, known)) == "request_timed_out"
        assert stranger.add_voter(8, NOBODY, port) == "request_timed_out"
        adding.join()
        connection.close()
        assert outcomes == ["request_timed_out"]
    with cluster.admin() as admin:
        assert {voter.replica_id for voter in admin.describe_quorum().voters} == {1, 2, 3}
    with Stranger(cluster, quorum.standby) as stranger:
        assert stranger.add_voter(9, NOBODY, port) == "not_leader_or_follower"


# ---- brokers ---------------------------------------------------------------------------------------------


def test_brokers_that_are_not_registered(cluster: Processes, quorum: Quorum) -> None:
    features = [{"name": "metadata.version", "min_supported_version": 7, "max_supported_version": 8}]
    with Stranger(cluster, quorum.leader) as stranger:
        assert stranger.register(101)["error_code"] == "duplicate_broker_registration"
        assert stranger.register(7, features=features)["error_code"] == "unsupported_version"
        foreign = stranger.register(7, cluster_id=uuid_to_str(random_uuid()))
        assert foreign["error_code"] == "inconsistent_cluster_id"
        for broker_id, epoch in ((101, 0), (101, 1 << 40), (7, 5)):
            assert stranger.heartbeat(broker_id, epoch) == "stale_broker_epoch", (broker_id, epoch)
    with Stranger(cluster, quorum.standby) as stranger:
        assert stranger.register(7)["error_code"] == "not_controller"
        assert stranger.heartbeat(101, 0) == "not_controller"
    assert cluster.nodes[101].known_brokers() == {101}


def refused(node: ClusterNode) -> str:
    """A node that cannot start: how it ends, and its last line."""
    node.launch()
    try:
        wait_until(lambda: not node.is_running(), PATIENCE_S, f"{node.kind} to end")
    finally:
        node.kill()
    assert node.exit_code == 1
    assert "Traceback" not in node.log_text()
    return node.log_text().strip().splitlines()[-1]


def test_a_second_process_with_a_brokers_id(cluster: Processes, quorum: Quorum) -> None:
    node = cluster.make(101, BROKER, {"initial.broker.registration.timeout.ms": 3000})
    node.data_dir = cluster.where / "second-101"
    node.work_dir = cluster.where / "second-101.work"
    node.log_dirs = [node.data_dir]
    cluster.format(node)
    last = refused(node)
    assert "duplicate" in last.lower(), last
    assert cluster.nodes[101].known_brokers() == {101}


def test_a_directory_of_another_cluster_or_node(cluster: Processes, quorum: Quorum) -> None:
    node = cluster.make(104, BROKER)
    cluster.format(node)
    foreign = cluster.make(104, BROKER)
    foreign.data_dir = cluster.where / "foreign-104"
    formatted_for(cluster, foreign, other := uuid_to_str(random_uuid()))
    node.overrides["log.dirs"] = f"{node.data_dir},{foreign.data_dir}"
    last = refused(node)
    assert cluster.cluster_id in last
    assert other in last
    del node.overrides["log.dirs"]
    node.node_id = 105
    last = refused(node)
    assert "104" in last
    assert "105" in last


def formatted_for(cluster: Processes, node: ClusterNode, cluster_id: str) -> None:
    """As a node of another cluster."""
    ours, cluster.cluster_id = cluster.cluster_id, cluster_id
    try:
        cluster.format(node)
    finally:
        cluster.cluster_id = ours


def test_a_broker_of_another_cluster(cluster: Processes, quorum: Quorum) -> None:
    """Nobody told it which cluster this is: it finds out by asking."""
    node = cluster.make(106, BROKER, {"initial.broker.registration.timeout.ms": 3000})
    formatted_for(cluster, node, uuid_to_str(random_uuid()))
    last = refused(node)
    assert "cluster" in last, last


# ---- damage ----------------------------------------------------------------------------------------------


def changes_go_on(cluster: Processes) -> Changes:
    client = Changes(cluster, f"on-{uuid.uuid4()}", Random(2))
    wait_until(lambda: client.create() == "none", PATIENCE_S, "a change")
    client.close()
    return client


def damaged(node: ClusterNode, change: Any) -> tuple[bytes, int] | None:
    """A node's metadata log with one batch in its middle changed, and that batch's offset; None if none can be."""
    (path,) = segments(node.data_dir)
    data = bytearray(path.read_bytes())
    position = 0
    for offset, batch in sorted(batches(node.data_dir, 1 << 60).items()):
        if change(data, position, len(batch)):
            return bytes(data), offset
        position += len(batch)
    return None


def flip_a_bit(data: bytearray, position: int, size: int) -> bool:
    if position == 0:
        return False
    data[position + size - 1] ^= 1
    return True


def unknown_record(data: bytearray, position: int, size: int) -> bool:
    """A NoOpRecord (type 20) becomes one of a type that nobody knows, with a checksum that fits."""
    noop = bytes((1, 20, 0, 0))
    at = data.find(noop, position + HEADER_SIZE, position + size)
    if at < 0 or size > HEADER_SIZE + 16:
        return False
    data[at + 1] = 120
    fit_checksum(data, position, size)
    return True


@pytest.mark.parametrize("change", [flip_a_bit, unknown_record])
def test_a_damaged_metadata_log(cluster: Processes, change: Any) -> None:
    node = Quorum(cluster).standby
    changes_go_on(cluster)
    # A NoOpRecord is written only when there was nothing else for a while.
    wait_until(lambda: damaged(node, change) is not None, PATIENCE_S, "a batch to change")
    cluster.kill(node.node_id)
    kept = node.data_dir.with_suffix(".kept")
    shutil.copytree(node.data_dir, kept)
    found = damaged(node, change)
    assert found
    data, offset = found
    (path,) = segments(node.data_dir)
    path.write_bytes(data)
    node.launch()
    wait_until(lambda: not node.is_running(), PATIENCE_S, f"{node.kind} to end")
    assert node.exit_code not in (0, None)
    assert str(offset) in node.log_text().strip().splitlines()[-1]
    assert "Traceback" not in node.log_text()
    client = changes_go_on(cluster)
    shutil.rmtree(node.data_dir)
    kept.rename(node.data_dir)
    cluster.start(node.node_id)
    check_changes(cluster, [client])
    check_same_logs(cluster)


@pytest.mark.parametrize("who", ["leader", "standby"])
def test_the_disk_of_a_controller_is_full(cluster: Processes, who: str) -> None:
    """A limit on the size of its files, while it runs: nothing that was acknowledged is only on that disk."""
    node: ClusterNode = getattr(Quorum(cluster), who)
    clients = [Changes(cluster, f"full-{who}-{n}", Random(n)) for n in range(2)]
    (path,) = segments(node.data_dir)
    with changing(clients):
        # What it prints is a file too, and a shorter one.
        wait_until(lambda: path.stat().st_size > LONG_LOG_BYTES, PATIENCE_S, "a long log")
        limit = path.stat().st_size + 1
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (limit, limit))
        wait_until(lambda: not node.is_running(), PATIENCE_S, f"{node.kind} to end")
        acknowledged = sum(client.acknowledged for client in clients)
        wait_until(
            lambda: sum(client.acknowledged for client in clients) > acknowledged + 5, PATIENCE_S, "changes"
        )
    assert node.exit_code == 70
    assert "File too large" in node.log_text()
    assert "Traceback" not in node.log_text()
    cluster.start(node.node_id)
    check_changes(cluster, clients)
    check_same_logs(cluster)


def test_voters_of_the_configuration_do_not_change(tmp_path_factory: pytest.TempPathFactory) -> None:
    where = tmp_path_factory.mktemp("static")
    with (
        Processes(where, controllers=1, brokers=1) as cluster,
        Stranger(cluster, cluster.nodes[1]) as stranger,
    ):
        assert stranger.add_voter(9, NOBODY, 9) == "unsupported_version"
        assert stranger.remove_voter(1, NOBODY) == "unsupported_version"
