"""What should not reach controllers, sent to those of both kinds: the answers are the same, and nobody dies.

One quorum has both: a leader of either kind in turn, and standbys of either kind under it. Of an answer, its errors
are compared, whether a vote was given, and what it says of the leader: who, which epoch, where it is reached.
"""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.interop.cluster import Cluster, ClusterNode
from tests.interop.process import HOST
from tests.support.quorum_claims import DESCRIBE_QUORUM
from tests.support.quorum_requests import (
    BEGIN_QUORUM_EPOCH,
    END_QUORUM_EPOCH,
    METADATA_TOPIC,
    VOTE,
    Stranger,
    directory_id,
)
from tests.support.raw_client import RawClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

CONTROLLERS = {1: "ottla", 2: "apache", 3: "ottla"}
BROKER_ID = 4
NOBODY = uuid.UUID(int=77)
OTHERS = "AAAAAAAAAAAAAAAAAAAAAw"
CLAIMS = {"Vote": VOTE, "BeginQuorumEpoch": BEGIN_QUORUM_EPOCH, "EndQuorumEpoch": END_QUORUM_EPOCH}
FEATURES = [{"name": "metadata.version", "min_supported_version": 7, "max_supported_version": 8}]

Outcome = Any
Outcomes = dict[str, Outcome]


class World:
    """The quorum as it is now."""

    def __init__(self, cluster: Cluster, topic_id: uuid.UUID) -> None:
        self.cluster = cluster
        self.topic_id = topic_id
        self.leader = cluster[cluster.leader()]
        self.epoch: int = cluster.quorum()["leader_epoch"]

    def standbys(self) -> list[ClusterNode]:
        return [node for node in self.cluster.controllers() if node is not self.leader]

    def told(self, answer: dict[str, Any]) -> Outcome:
        """An answer of the quorum, with the leader and its epoch for what they are."""
        topics = answer.get("topics", answer.get("responses"))
        rows = [row for topic in topics or () for row in topic["partitions"]]
        leaders = [row.get("current_leader", row) for row in rows] or [answer.get("current_leader", {})]
        return {
            "errors": [answer.get("error_code"), *(row["error_code"] for row in rows)],
            "votes": [row.get("vote_granted") for row in rows],
            "leaders": [
                (self._name(leader["leader_id"]), leader["leader_epoch"] - self.epoch)
                for leader in leaders
                if "leader_id" in leader
            ],
            "where": [
                (self._name(each["node_id"]), each["host"], each["port"] == self.leader.controller_port)
                for each in answer.get("node_endpoints", ())
            ],
        }

    def _name(self, node_id: int) -> str:
        return "the leader" if node_id == self.leader.node_id else f"node {node_id}"


@pytest.fixture(scope="module", params=[True, False], ids=["voters in the log", "static voters"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    nodes = {node_id: (kind, "controller") for node_id, kind in CONTROLLERS.items()}
    nodes[BROKER_ID] = ("ottla", "broker")
    where = tmp_path_factory.mktemp("bad-input")
    with Cluster(where, nodes, voters_in_log=request.param) as running:
        yield running
    assert [node.exit_code for node in running.nodes.values() if node.kind == "ottla"] == [0, 0, 0]


def of_the_quorum(world: World, stranger: Stranger) -> Outcomes:
    """What any controller may be asked."""
    epoch, by = world.epoch, world.standbys()[0].node_id
    told: Outcomes = {}
    for name, key in CLAIMS.items():
        told[f"{name} of another cluster"] = stranger.claim(key, epoch + 5, by=by, cluster_id=OTHERS)
        told[f"{name} of an old epoch"] = stranger.claim(key, epoch - 1, by=by, pre_vote=True)
    for wrong in ({"voter_id": 9}, {"voter_directory_id": NOBODY}):
        told[f"Vote for {wrong}"] = stranger.claim(VOTE, epoch, by=by, **wrong)
        told[f"BeginQuorumEpoch for {wrong}"] = stranger.claim(
            BEGIN_QUORUM_EPOCH, epoch, by=world.leader.node_id, **wrong
        )
    told["Vote in the epoch of a leader"] = stranger.claim(VOTE, epoch, by=by)
    told["pre-vote in the epoch of a leader"] = stranger.claim(VOTE, epoch, by=by, pre_vote=True)
    told["Fetch from another cluster"] = stranger.fetch(epoch, cluster_id=OTHERS)
    for ahead in (-1, 0, 1):
        told[f"Fetch {ahead} epochs ahead"] = stranger.fetch(epoch + ahead)
    told = {case: world.told(answer) for case, answer in told.items()}
    told["FetchSnapshot of another cluster"] = stranger.fetch_snapshot(epoch, 3, cluster_id=OTHERS)
    for ahead in (-1, 0, 1):
        told[f"FetchSnapshot {ahead} epochs ahead"] = stranger.fetch_snapshot(epoch + ahead, 3)
    for case, of_epoch, cluster_id in (
        ("an old epoch", epoch - 1, None),
        ("a new epoch", epoch + 1, None),
        ("another cluster", epoch, OTHERS),
    ):
        updated = stranger.update_voter(9, NOBODY, of_epoch, cluster_id=cluster_id)
        told[f"UpdateRaftVoter of {case}"] = world.told(updated)
    return told


def of_a_standby(world: World, stranger: Stranger) -> Outcomes:
    known = world.leader.node_id
    topics = [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
    described = stranger.client.ask(DESCRIBE_QUORUM, 2, {"topics": topics})["topics"][0]["partitions"][0]
    return {
        "DescribeQuorum": described["error_code"],
        "AddRaftVoter": stranger.add_voter(9, NOBODY, 9),
        "RemoveRaftVoter": stranger.remove_voter(known, directory_id(world.cluster, known)),
        "UpdateRaftVoter": world.told(stranger.update_voter(9, NOBODY, world.epoch)),
        "BrokerRegistration": stranger.register(7)["error_code"],
        "BrokerHeartbeat": stranger.heartbeat(BROKER_ID, 0),
        "AllocateProducerIds": stranger.allocate_producer_ids(BROKER_ID, 0),
        "AssignReplicasToDirs": stranger.assign_replica(BROKER_ID, 0, world.topic_id),
    }


def of_the_leader(world: World, stranger: Stranger) -> Outcomes:
    known = world.standbys()[0]
    its_directory = directory_id(world.cluster, known.node_id)
    first, second = stranger.register(77), stranger.register(77)
    old, new = first["broker_epoch"], second["broker_epoch"]
    return {
        "add a voter": stranger.add_voter(known.node_id, its_directory, known.controller_port),
        "add a voter's new directory": stranger.add_voter(known.node_id, NOBODY, known.controller_port),
        "remove nobody": stranger.remove_voter(9, NOBODY),
        "remove a voter's other directory": stranger.remove_voter(known.node_id, NOBODY),
        "update nobody": world.told(stranger.update_voter(9, NOBODY, world.epoch)),
        "a second change at once": second_change(world, stranger),
        "register a broker twice": [first["error_code"], second["error_code"], new > old],
        "register an id that is taken": stranger.register(BROKER_ID)["error_code"],
        "register in another cluster": stranger.register(78, cluster_id=OTHERS)["error_code"],
        "register without the level": stranger.register(78, features=FEATURES)["error_code"],
        "heartbeat of nobody": stranger.heartbeat(78, 5),
        "heartbeat of an old life": stranger.heartbeat(77, old),
        "heartbeat of a life to come": stranger.heartbeat(77, new + 1_000_000),
        "heartbeat": stranger.heartbeat(77, new),
        "producer ids for nobody": stranger.allocate_producer_ids(78, 5),
        "producer ids for an old life": stranger.allocate_producer_ids(77, old),
        "producer ids": stranger.allocate_producer_ids(77, new),
        "a directory of nobody": stranger.assign_replica(78, 5, world.topic_id),
        "a directory of an old life": stranger.assign_replica(77, old, world.topic_id),
        "a directory of an unknown topic": stranger.assign_replica(77, new, NOBODY),
        "a directory of an unknown partition": stranger.assign_replica(77, new, world.topic_id, 9),
        "a directory of another's replica": stranger.assign_replica(77, new, world.topic_id),
    }


def second_change(world: World, stranger: Stranger) -> Outcome:
    """The first waits for a new voter that takes connections and says nothing; the second for the first."""
    known = world.standbys()[0].node_id
    outcomes: list[str] = []
    with socket.create_server((HOST, 0)) as silent:
        silent.settimeout(5)

        def add_silent() -> None:
            with Stranger(world.cluster, world.leader) as other:
                outcomes.append(other.add_voter(9, NOBODY, silent.getsockname()[1], timeout_ms=3_000))

        adding = threading.Thread(target=add_silent)
        adding.start()
        try:
            connection, _ = silent.accept()
        except TimeoutError:
            adding.join()
            return [*outcomes, "nobody was asked"]
        outcomes.append(stranger.remove_voter(known, directory_id(world.cluster, known)))
        outcomes.append(stranger.add_voter(8, NOBODY, 9))
        adding.join()
        connection.close()
    return outcomes


def ask(world: World, node: ClusterNode, what: Callable[[World, Stranger], Outcomes]) -> Outcomes:
    with Stranger(world.cluster, node) as stranger:
        return what(world, stranger)


def test_both_kinds_answer_alike(cluster: Cluster) -> None:
    with RawClient(cluster[BROKER_ID]) as client:
        topic_id = client.create_topic_with_id("orders")
    leaders: dict[str, Outcomes] = {}
    standbys: dict[str, Outcomes] = {}
    for node_id in (1, 2):
        cluster.make_leader(node_id)
        world = World(cluster, topic_id)
        assert world.leader.kind == CONTROLLERS[node_id]
        leaders[world.leader.kind] = ask(world, world.leader, of_the_quorum)
        for node in world.standbys():
            standbys[f"{node.kind} under {world.leader.kind}"] = ask(world, node, of_the_quorum)
            standbys[f"{node.kind} under {world.leader.kind}"] |= ask(world, node, of_a_standby)
        leaders[world.leader.kind] |= ask(world, world.leader, of_the_leader)
        assert World(cluster, topic_id).epoch == world.epoch, "nothing of it began an election"
    assert set(standbys) == {"apache under ottla", "ottla under ottla", "ottla under apache"}
    same(leaders["ottla"], leaders["apache"])
    for who in ("ottla under ottla", "ottla under apache"):
        same(standbys[who], standbys["apache under ottla"])
    with RawClient(cluster[BROKER_ID]) as client:
        client.create_topic("afterwards")


def same(ours: Outcomes, reference: Outcomes) -> None:
    assert ours.keys() == reference.keys()
    different = {case: (ours[case], reference[case]) for case in ours if ours[case] != reference[case]}
    assert not different
