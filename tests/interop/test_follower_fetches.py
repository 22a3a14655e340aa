"""What a leader answers to the fetches of a follower: an Apache and an Ottla leader answer the same, to the byte.

A broker of each kind leads a partition that the other one follows. The second follower of both is this test: it
registers as a broker, and so may fetch in its own name, with an epoch of its life that is right or wrong, what it
likes. Both logs have the same records, of leader epoch 0 and of a later one, and begin at the same offset.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from tests.interop.cluster import Cluster, ClusterNode
from tests.interop.process import wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.support.quorum_requests import BROKER_HEARTBEAT, Stranger
from tests.support.raw_client import API_VERSIONS, CREATE_TOPICS, FETCH, METADATA, TIMEOUT_MS, RawClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

APACHE, OTTLA, FOLLOWER, NOBODY = 1, 2, 3, 4
DELETE_RECORDS = 21
PATIENCE_S = 120.0
ITSELF = {"client_software_name": "follower", "client_software_version": "1"}
SETTINGS: dict[str, object] = {
    "auto.leader.rebalance.enable": "false",
    "log.retention.ms": -1,  # the records are stamped years ago
    # The follower that is this test says once that it lives.
    "broker.session.timeout.ms": 600_000,
    "broker.heartbeat.interval.ms": 1000,
}
# Where each log begins, where the later epoch begins in it, and where it ends.
START, SECOND, END = 2, 5, 10
# With no epoch of leaders, with the last one fetched, with topic ids, with the epoch of the broker's life, the newest.
VERSIONS = (11, 12, 13, 15, 17)
LIFE_VERSION = 15


class Ask(NamedTuple):
    """One partition of a fetch; epochs of leaders count from the leader's own."""

    offset: int
    last_epoch: int | None = 0
    leader_epoch: int | None = 0
    replica_id: int = FOLLOWER
    # From the registered one; None for a follower that does not say.
    life: int | None = 0


POSITIONS = {
    "within the log": Ask(7),
    "at the start of the last epoch": Ask(SECOND, -2),
    "at the end": Ask(END),
    "in a batch that is there for an older follower": Ask(3, -2),
    "above the end": Ask(END + 1),
    "above the end, with no epoch": Ask(END + 1, None),
    "below the start": Ask(START - 1, -2),
    "below the start, with no epoch": Ask(START - 1, None),
    "below the start of a log that parts": Ask(START - 1, -1),
    "beyond the end of an older epoch": Ask(7, -2),
    "in an epoch that left nothing": Ask(7, -1),
    "in an epoch that nobody has led": Ask(7, 1),
}
LIVES = {"this life": 0, "an older life": -1, "a life to come": 1, "no life": None}
OTHERS = {
    "fenced leader epoch": Ask(7, leader_epoch=-1),
    "unknown leader epoch": Ask(7, leader_epoch=1),
    "no leader epoch": Ask(7, leader_epoch=None),
    "no replica": Ask(7, replica_id=NOBODY),
    "no replica, with no leader epoch": Ask(7, leader_epoch=None, replica_id=NOBODY),
    "no replica, fenced leader epoch": Ask(7, leader_epoch=-1, replica_id=NOBODY),
    "no replica, out of range": Ask(END + 1, None, replica_id=NOBODY),
    "fenced leader epoch and out of range": Ask(START - 1, leader_epoch=-1),
    "a consumer": Ask(7, None, replica_id=-1, life=None),
    "a consumer that has diverged": Ask(7, -2, replica_id=-1, life=None),
    "a consumer at an older life": Ask(7, None, replica_id=-1, life=-1),
    "a debugger": Ask(7, None, replica_id=-2, life=None),
}


class Leader:
    """A broker, and the partition that it leads."""

    def __init__(self, cluster: Cluster, node: ClusterNode, other: ClusterNode) -> None:
        self.node, self._other = node, other
        self.topic = f"led-by-{node.kind}"
        with RawClient(node) as client:
            self._topic_id = self._create(client)
            self._wait(cluster, node, 2)
            for number in range(SECOND):
                client.write(self.topic, 0, [b"%d" % number])
            for leads, follows in ((other, node), (node, other)):
                cluster.lead(self.topic, [leads.node_id, follows.node_id, FOLLOWER])
                self._wait(cluster, leads, 2)
            for number in range(SECOND, END):
                client.write(self.topic, 0, [b"%d" % number])
            rows = [{"partition_index": 0, "offset": START}]
            body = {"topics": [{"name": self.topic, "partitions": rows}], "timeout": TIMEOUT_MS}
            answer = client.ask(DELETE_RECORDS, 2, body)
            assert answer["topics"][0]["partitions"][0]["error_code"] == "none", answer
        self.epoch: int = self.shown()["leader_epoch"]

    def _create(self, client: RawClient) -> uuid.UUID:
        placed = [{"partition_index": 0, "broker_ids": [self.node.node_id, self._other.node_id, FOLLOWER]}]
        topic = {"name": self.topic, "num_partitions": -1, "replication_factor": -1, "assignments": placed}
        answer = client.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout": TIMEOUT_MS})
        assert answer["topics"][0]["error_code"] == "none", answer
        return uuid.UUID(answer["topics"][0]["topic_id"])

    def _wait(self, cluster: Cluster, leads: ClusterNode, in_sync: int) -> None:
        """Until every broker knows who leads, with so many in sync."""

        def is_led(node: ClusterNode) -> bool:
            row = self.shown(node)
            return row.get("leader_id") == leads.node_id and len(row["isr_nodes"]) == in_sync

        for node in cluster.brokers():
            wait_until(lambda node=node: is_led(node), PATIENCE_S, f"{self.topic} to be led", 0.1)

    def shown(self, node: ClusterNode | None = None) -> dict[str, Any]:
        """The partition as a broker shows it; nothing while it does not know of it."""
        with RawClient(node or self.node) as client:
            (row,) = client.ask(METADATA, 7, {"topics": [{"name": self.topic}]})["topics"]
        return row["partitions"][0] if row["partitions"] else {}

    def answer(self, ask: Ask, version: int, life: int) -> dict[str, Any]:
        """Everything that it says, but for what the two partitions differ in."""
        partition = {
            "partition": 0,
            "current_leader_epoch": -1 if ask.leader_epoch is None else self.epoch + ask.leader_epoch,
            "fetch_offset": ask.offset,
            "last_fetched_epoch": -1 if ask.last_epoch is None else self.epoch + ask.last_epoch,
            "log_start_offset": START,
            "partition_max_bytes": 1 << 20,
        }
        epoch = -1 if ask.life is None else life + ask.life
        body = {
            "replica_id": ask.replica_id,
            "replica_state": {"replica_id": ask.replica_id, "replica_epoch": epoch},
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": 1 << 20,
            "session_epoch": -1,
            "topics": [{"topic": self.topic, "topic_id": self._topic_id, "partitions": [partition]}],
        }
        with RawClient(self.node) as client:
            answer = client.ask(FETCH, version, body)
        names = {self.topic: "the topic", str(self._topic_id): "the topic"}
        brokers = {self.node.node_id: "the leader", self._other.node_id: "the other"}
        for topic in answer["responses"]:
            for key in topic.keys() & {"topic", "topic_id"}:
                topic[key] = names.get(topic[key], topic[key])
            for row in topic["partitions"]:
                if "current_leader" in row:
                    leader = row["current_leader"]
                    leader["leader_id"] = brokers.get(leader["leader_id"], leader["leader_id"])
        for endpoint in answer.get("node_endpoints", ()):
            endpoint["node_id"] = brokers.get(endpoint["node_id"], endpoint["node_id"])
            endpoint["port"] = "its port" if endpoint["port"] in self._ports() else endpoint["port"]
        return answer

    def _ports(self) -> set[int]:
        return {self.node.port, self._other.port}


class World:
    """Both leaders, and the life in which their follower is registered."""

    def __init__(self, cluster: Cluster) -> None:
        self._controller = Stranger(cluster, cluster[APACHE])
        apache, ottla = cluster[APACHE], cluster[OTTLA]
        with RawClient(apache) as client:
            supported = client.ask(API_VERSIONS, 4, ITSELF)["supported_features"]
        features = [
            {
                "name": feature["name"],
                "min_supported_version": feature["min_version"],
                "max_supported_version": feature["max_version"],
            }
            for feature in supported
        ]
        answer = self._controller.register(FOLLOWER, features=features)
        assert answer["error_code"] == "none", answer
        # It stays fenced until it says that it lives.
        self.life: int = answer["broker_epoch"]
        self.reference = Leader(cluster, apache, ottla)
        self.subject = Leader(cluster, ottla, apache)
        assert self.reference.epoch == self.subject.epoch == 2

    def live(self) -> None:
        """The follower is unfenced, as both leaders know."""
        body = {"broker_id": FOLLOWER, "broker_epoch": self.life, "current_metadata_offset": 1 << 40}
        body |= {"want_fence": False, "want_shut_down": False}
        wait_until(
            lambda: not self._controller.client.ask(BROKER_HEARTBEAT, 1, body)["is_fenced"],
            PATIENCE_S,
            "the follower to be unfenced",
            0.1,
        )
        # Once more: of one that was unfenced a moment ago the controller does not know how far it has read, and no
        # broker may stop before all the others know who leads in its stead.
        self._controller.client.ask(BROKER_HEARTBEAT, 1, body)
        for leader in (self.reference, self.subject):
            wait_until(
                lambda node=leader.node: FOLLOWER in node.known_brokers(), PATIENCE_S, "it to be known", 0.1
            )

    def close(self) -> None:
        self._controller.client.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    nodes = {APACHE: ("apache", "broker,controller"), OTTLA: ("ottla", "broker")}
    with Cluster(tmp_path_factory.mktemp("follower-fetches"), nodes, SETTINGS) as cluster:
        found = World(cluster)
        yield found
        found.close()
    assert "Traceback" not in cluster[OTTLA].printed(), cluster[OTTLA].printed()


def asked() -> Iterator[tuple[str, int, Ask]]:
    for version in VERSIONS:
        for position, ask in POSITIONS.items():
            for life, epoch in LIVES.items() if version >= LIFE_VERSION else (("no life", None),):
                yield f"v{version}, {position}, {life}", version, ask._replace(life=epoch)
        for name, ask in OTHERS.items():
            yield f"v{version}, {name}", version, ask


def check_the_same(world: World) -> dict[str, str]:
    """What both answer to everything, but for the leader's records: the error, or what else is special."""
    found: dict[str, str] = {}
    differ: dict[str, tuple[Any, Any]] = {}
    for name, version, ask in asked():
        theirs, ours = (
            leader.answer(ask, version, world.life) for leader in (world.reference, world.subject)
        )
        if theirs != ours:
            differ[name] = (theirs, ours)
        found[name] = next(
            (row["error_code"] for topic in theirs["responses"] for row in topic["partitions"]),
            theirs["error_code"],
        )
    assert not differ, "\n".join(f"{name}\n  {a}\n  {b}" for name, (a, b) in differ.items())
    return found


def test_answers_to_a_fenced_follower(world: World) -> None:
    """Nobody counts on a fenced broker, and so its older lives are not refused either."""
    found = check_the_same(world)
    assert found["v17, at the end, an older life"] == "none"
    assert found["v17, below the start of a log that parts, this life"] == "offset_out_of_range"
    for leader in (world.reference, world.subject):
        assert FOLLOWER not in leader.shown()["isr_nodes"]


def test_answers_to_a_follower_that_lives(world: World) -> None:
    """What it asks for is looked at before its life, and where the logs part its life is not asked for."""
    world.live()
    found = check_the_same(world)
    assert found["v17, at the end, an older life"] == "not_leader_or_follower"
    assert found["v17, above the end, with no epoch, an older life"] == "offset_out_of_range"
    assert found["v17, beyond the end of an older epoch, an older life"] == "none"
    for leader in (world.reference, world.subject):
        leader.answer(Ask(END), VERSIONS[-1], world.life)
        wait_until(
            lambda leader=leader: FOLLOWER in leader.shown()["isr_nodes"],
            PATIENCE_S,
            f"the {leader.node.kind} leader to take its follower into the ISR",
            0.1,
        )


def test_only_the_life_that_is_registered_moves_the_watermark(world: World) -> None:
    """The follower is in the ISR: what is written is not committed before it has it."""
    for leader in (world.reference, world.subject):
        with RawClient(leader.node) as client:
            frame = {"index": 0, "records": Batch([Rec(b"more")]).encode()}
            topic = {"name": leader.topic, "partition_data": [frame]}
            body = {"transactional_id": None, "acks": 1, "timeout": TIMEOUT_MS, "topic_data": [topic]}
            answer = client.ask(0, 9, body)
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == "none", answer

    def marks(life: int) -> list[tuple[str, int]]:
        rows = [
            leader.answer(Ask(END + 1, life=life), VERSIONS[-1], world.life)["responses"][0]["partitions"][0]
            for leader in (world.reference, world.subject)
        ]
        return [(row["error_code"], row["high_watermark"]) for row in rows]

    assert marks(-1) == [("not_leader_or_follower", -1)] * 2
    for leader in (world.reference, world.subject):
        with RawClient(leader.node) as client:
            assert client.end_offset(leader.topic) == END
    # The other follower may come after this one.
    wait_until(lambda: marks(0) == [("none", END + 1)] * 2, PATIENCE_S, "the watermark to follow", 0.1)
