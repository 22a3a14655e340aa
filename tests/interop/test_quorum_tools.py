"""Kafka's own tools for clusters against three Ottla nodes: the quorum, its voters, features, topics, configs.

The same commands go to a cluster of Apache nodes, and what they print is compared where nothing in it is by chance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.apache import run_tool
from tests.interop.cluster import Cluster
from tests.interop.process import wait_until

# Every command is a JVM of its own.
pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

PATIENCE_S = 60.0


def cluster_of(directory: Path, kind: str) -> Cluster:
    """Three nodes with both roles, and a fourth controller that is no voter yet."""
    nodes = dict.fromkeys((1, 2, 3), (kind, "broker,controller"))
    return Cluster(directory, {**nodes, 4: (kind, "controller")}, voters_in_log=True, joining={4})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_of(tmp_path_factory.mktemp("tools"), "ottla") as running:
        yield running


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def status(cluster: Cluster, *, by_controller: bool = False) -> dict[str, str]:
    ask = cluster.controller_tool if by_controller else cluster.tool
    lines = ask("MetadataQuorumCommand", "describe", "--status").stdout.splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


@pytest.mark.parametrize("by_controller", [False, True], ids=["server", "controller"])
def test_describe_quorum(cluster: Cluster, by_controller: bool) -> None:
    said = status(cluster, by_controller=by_controller)
    assert said["ClusterId"] == cluster.cluster_id
    assert int(said["LeaderId"]) == cluster.leader()
    assert int(said["LeaderEpoch"]) >= 1
    assert int(said["HighWatermark"]) > 0
    for node in cluster.voters():
        voter = f'{{"id": {node.node_id}, "endpoints": ["CONTROLLER://{node.controller_address}"]}}'
        assert voter in said["CurrentVoters"].replace(f', "directoryId": "{node.directory_id}"', ""), said
    assert said["CurrentObservers"] == "[]"
    ask = cluster.controller_tool if by_controller else cluster.tool
    first, *others = rows(ask("MetadataQuorumCommand", "describe", "--replication").stdout)
    assert first[:4] == ["NodeId", "DirectoryId", "LogEndOffset", "Lag"]
    assert {(row[0], row[1]) for row in others} == {
        (str(n.node_id), n.directory_id) for n in cluster.voters()
    }
    assert sorted(row[-1] for row in others) == ["Follower", "Follower", "Leader"]


def test_voters_are_added_and_removed(cluster: Cluster) -> None:
    joining = cluster[4]
    joining.start()
    wait_until(lambda: observers(cluster) >= {4}, PATIENCE_S, "the new controller to follow")
    added = cluster.controller_tool(
        "MetadataQuorumCommand",
        *("--command-config", str(joining.config_path), "add-controller"),
    )
    assert "Added controller 4 with directory id" in added.stdout
    assert voters(cluster) == {1, 2, 3, 4}
    directory_id = re.search(r"directory id (\S+)", added.stdout)
    assert directory_id is not None
    again = cluster.controller_tool(
        "MetadataQuorumCommand",
        *("--command-config", str(joining.config_path), "add-controller"),
        check=False,
    )
    assert again.returncode != 0
    assert "DuplicateVoterException" in again.stdout + again.stderr
    named = ("--controller-id", "4", "--controller-directory-id", directory_id[1].strip(".,"))
    removed = cluster.tool("MetadataQuorumCommand", "remove-controller", *named)
    assert "Removed  KRaft controller 4 with directory id" in removed.stdout
    assert voters(cluster) == {1, 2, 3}
    gone = cluster.tool("MetadataQuorumCommand", "remove-controller", *named, check=False)
    assert gone.returncode != 0
    assert "VoterNotFoundException" in gone.stdout + gone.stderr
    joining.stop()


def voters(cluster: Cluster) -> set[int]:
    return {voter["replica_id"] for voter in cluster.quorum()["current_voters"]}


def observers(cluster: Cluster) -> set[int]:
    return {observer["replica_id"] for observer in cluster.quorum()["observers"]}


def test_a_removed_leader_hands_over(cluster: Cluster) -> None:
    leader = cluster[cluster.leader()]
    named = ("--controller-id", str(leader.node_id), "--controller-directory-id", leader.directory_id)
    cluster.tool("MetadataQuorumCommand", "remove-controller", *named)
    wait_until(lambda: cluster.leader() != leader.node_id, PATIENCE_S, "another leader")
    assert leader.node_id not in voters(cluster)
    wait_until(lambda: leader.node_id in observers(cluster), PATIENCE_S, "it to follow")
    cluster.controller_tool(
        "MetadataQuorumCommand",
        *("--command-config", str(leader.config_path), "add-controller"),
    )
    assert voters(cluster) == {1, 2, 3}


@pytest.mark.parametrize("by_controller", [False, True], ids=["server", "controller"])
def test_topics_and_configs(cluster: Cluster, by_controller: bool) -> None:
    ask = cluster.controller_tool if by_controller else cluster.tool
    name = f"tools-{by_controller}"
    cluster.tool("TopicCommand", "--create", "--topic", name, "--partitions", "6")
    shown = cluster.tool("TopicCommand", "--describe", "--topic", name).stdout
    assert set(re.findall(r"Leader: (\d+)", shown)) == {"1", "2", "3"}
    topic = ("--entity-type", "topics", "--entity-name", name)
    ask("ConfigCommand", *topic, "--alter", "--add-config", "retention.ms=7000")
    assert "retention.ms=7000" in cluster.tool("ConfigCommand", *topic, "--describe").stdout
    node_id = str(cluster.nodes[2].node_id)
    broker = ("--entity-type", "brokers", "--entity-name", node_id)
    ask("ConfigCommand", *broker, "--alter", "--add-config", "log.cleaner.threads=2")
    assert "log.cleaner.threads=2" in ask("ConfigCommand", *broker, "--describe").stdout
    ask("ConfigCommand", *broker, "--alter", "--delete-config", "log.cleaner.threads")
    everyone = ("--entity-type", "brokers", "--entity-default")
    ask("ConfigCommand", *everyone, "--alter", "--add-config", "log.retention.ms=12345")
    assert "log.retention.ms=12345" in ask("ConfigCommand", *everyone, "--describe").stdout
    ask("ConfigCommand", *everyone, "--alter", "--delete-config", "log.retention.ms")
    bad = ask("ConfigCommand", *topic, "--alter", "--add-config", "retention.ms=soon", check=False)
    assert bad.returncode != 0
    cluster.tool("TopicCommand", "--delete", "--topic", name)


def test_cluster_tool(cluster: Cluster) -> None:
    for where in (
        ("--bootstrap-server", cluster.bootstrap_servers),
        ("--bootstrap-controller", cluster.bootstrap_controllers),
    ):
        shown = run_tool("ClusterTool", "cluster-id", *where).stdout
        assert shown.strip() == f"Cluster ID: {cluster.cluster_id}"
    listed = rows(
        run_tool("ClusterTool", "list-endpoints", "--bootstrap-server", cluster.bootstrap_servers).stdout
    )
    assert {(row[0], row[2]) for row in listed[1:]} == {
        (str(n.node_id), str(n.port)) for n in cluster.brokers()
    }
    listed = rows(
        run_tool(
            "ClusterTool", "list-endpoints", "--bootstrap-controller", cluster.bootstrap_controllers
        ).stdout
    )
    registered = {(row[0], row[2]) for row in listed[1:]}
    assert registered >= {(str(node.node_id), str(node.controller_port)) for node in cluster.voters()}


def features(cluster: Cluster, where: str, *args: str) -> str:
    """What kafka-features prints by way of a broker or a controller, and how it ends; epochs and node ids apart."""
    ask = cluster.tool if where == "server" else cluster.controller_tool
    done = ask("FeatureCommand", *args, check=False)
    said = re.sub(r"Epoch: \d+", "Epoch: N", done.stdout + done.stderr)
    return re.sub(r"controller \d+", "controller N", said) + f"exit {done.returncode}"


FEATURES = [
    ("server", "describe"),
    ("controller", "describe"),
    ("server", "upgrade", "--feature", "group.version=7"),
    ("server", "upgrade", "--feature", "kraft.version=1"),
    ("controller", "downgrade", "--feature", "kraft.version=0"),
    ("server", "downgrade", "--feature", "transaction.version=1", "--dry-run"),
    ("controller", "upgrade", "--release-version", "4.3"),
]


def test_features_as_the_reference_tells_them(cluster: Cluster, tmp_path: Path) -> None:
    with Cluster(tmp_path, {1: ("apache", "broker,controller")}, voters_in_log=True) as apache:
        wanted = {args: features(apache, *args) for args in FEATURES}
    assert {args: features(cluster, *args) for args in FEATURES} == wanted


def test_kraft_version_is_raised(tmp_path: Path) -> None:
    """Static voters become voters in the log, all at once; afterwards they can be changed."""
    nodes = dict.fromkeys((1, 2, 3), ("ottla", "broker,controller"))
    with Cluster(tmp_path, nodes) as cluster:
        assert "kraft.version" in cluster.tool("FeatureCommand", "describe").stdout
        named = ("--controller-id", "3", "--controller-directory-id", cluster[3].directory_id)
        early = cluster.tool("MetadataQuorumCommand", "remove-controller", *named, check=False)
        assert early.returncode != 0
        assert "UnsupportedVersionException" in early.stdout + early.stderr
        # The voters' listeners are known from what they have told the leader; bootstrap servers are not required.
        cluster.tool("FeatureCommand", "upgrade", "--feature", "kraft.version=1")
        shown = cluster.tool("FeatureCommand", "describe").stdout
        assert re.search(r"kraft.version\s.*FinalizedVersionLevel: 1\s", shown), shown
        said = status(cluster)
        assert "directoryId" in said["CurrentVoters"]
        for node_id in (1, 2, 3):
            cluster[node_id].restart()
        assert voters(cluster) == {1, 2, 3}
