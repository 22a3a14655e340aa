"""Requests of the quorum and of brokers to their controllers, as somebody who should not send them might."""

from __future__ import annotations

import uuid
from typing import Any, Protocol

from tests.support.raw_client import FETCH, RawClient

from ottla.model.ids import METADATA_TOPIC_ID, uuid_from_str

VOTE, BEGIN_QUORUM_EPOCH, END_QUORUM_EPOCH, FETCH_SNAPSHOT = 52, 53, 54, 59
BROKER_REGISTRATION, BROKER_HEARTBEAT, ALLOCATE_PRODUCER_IDS, ASSIGN_REPLICAS_TO_DIRS = 62, 63, 67, 73
ADD_RAFT_VOTER, REMOVE_RAFT_VOTER, UPDATE_RAFT_VOTER = 80, 81, 82
METADATA_TOPIC = "__cluster_metadata"
NEWEST = {VOTE: 2, BEGIN_QUORUM_EPOCH: 1, END_QUORUM_EPOCH: 1}


class Node(Protocol):
    """A controller, of either kind."""

    node_id: int
    host: str
    port: int
    controller_port: int


class Cluster(Protocol):
    """Of this repository's nodes (tests.support.cluster), or of both kinds (tests.interop.cluster)."""

    cluster_id: str

    @property
    def initial_controllers(self) -> str: ...


def directory_id(cluster: Cluster, node_id: int) -> uuid.UUID:
    """Of a voter that was there from the start."""
    (text,) = [each for each in cluster.initial_controllers.split(",") if each.startswith(f"{node_id}@")]
    return uuid.UUID(bytes=bytes(uuid_from_str(text.rpartition(":")[2])))


class Stranger:
    """A connection to one controller's listener."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self._cluster = cluster
        self.node = node
        self.client = RawClient(node, port=node.controller_port)

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.client.close()

    def claim(
        self, api_key: int, epoch: int, *, by: int, cluster_id: str | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Vote, BeginQuorumEpoch or EndQuorumEpoch of an epoch, in the name of a voter; the whole answer."""
        partition: dict[str, Any] = {"partition_index": 0}
        if api_key == VOTE:
            partition |= {"replica_epoch": epoch, "replica_id": by, "last_offset_epoch": 0, "last_offset": 0}
            partition |= {"replica_directory_id": directory_id(self._cluster, by)}
            partition["pre_vote"] = fields.get("pre_vote", False)
        else:
            partition |= {"leader_id": by, "leader_epoch": epoch}
        if api_key != END_QUORUM_EPOCH:
            wanted = fields.get("voter_directory_id", directory_id(self._cluster, self.node.node_id))
            partition["voter_directory_id"] = wanted
        body: dict[str, Any] = {
            "cluster_id": cluster_id or self._cluster.cluster_id,
            "topics": [{"topic_name": METADATA_TOPIC, "partitions": [partition]}],
        }
        if api_key != END_QUORUM_EPOCH:
            body["voter_id"] = fields.get("voter_id", self.node.node_id)
        return self.client.ask(api_key, NEWEST[api_key], body)

    def fetch(self, epoch: int, *, cluster_id: str | None = None) -> dict[str, Any]:
        """A fetch of the metadata log from its start, as an observer sends it."""
        partition = {
            "partition": 0,
            "current_leader_epoch": epoch,
            "fetch_offset": 0,
            "last_fetched_epoch": 0,
        }
        partition |= {"partition_max_bytes": 1 << 20}
        topic = {"topic_id": bytes(METADATA_TOPIC_ID), "partitions": [partition]}
        body = {"cluster_id": cluster_id or self._cluster.cluster_id, "max_wait": 0, "topics": [topic]}
        body["replica_state"] = {"replica_id": 999}
        return self.client.ask(FETCH, 17, body)

    def fetch_snapshot(self, epoch: int, end_offset: int, *, cluster_id: str | None = None) -> str:
        """The error."""
        snapshot = {"end_offset": end_offset, "epoch": 1}
        partition = {"partition": 0, "current_leader_epoch": epoch, "snapshot_id": snapshot, "position": 0}
        body = {"cluster_id": cluster_id or self._cluster.cluster_id, "replica_id": 999}
        body["topics"] = [{"name": METADATA_TOPIC, "partitions": [partition]}]
        return str(self.client.ask(FETCH_SNAPSHOT, 1, body)["error_code"])

    def add_voter(self, node_id: int, directory: uuid.UUID, port: int, timeout_ms: int = 20_000) -> str:
        listener = {"name": "CONTROLLER", "host": "127.0.0.1", "port": port}
        body = {"cluster_id": self._cluster.cluster_id, "timeout": timeout_ms, "voter_id": node_id}
        body |= {"voter_directory_id": directory, "listeners": [listener]}
        return str(self.client.ask(ADD_RAFT_VOTER, 0, body)["error_code"])

    def remove_voter(self, node_id: int, directory: uuid.UUID) -> str:
        body = {"cluster_id": self._cluster.cluster_id, "voter_id": node_id, "voter_directory_id": directory}
        return str(self.client.ask(REMOVE_RAFT_VOTER, 0, body)["error_code"])

    def update_voter(
        self, node_id: int, directory: uuid.UUID, epoch: int, *, cluster_id: str | None = None
    ) -> dict[str, Any]:
        body = {"cluster_id": cluster_id or self._cluster.cluster_id, "current_leader_epoch": epoch}
        body |= {"voter_id": node_id, "voter_directory_id": directory}
        body |= {"listeners": [{"name": "CONTROLLER", "host": "127.0.0.1", "port": 9}]}
        body |= {"k_raft_version_feature": {"min_supported_version": 0, "max_supported_version": 1}}
        return self.client.ask(UPDATE_RAFT_VOTER, 0, body)

    def register(self, broker_id: int, **fields: Any) -> dict[str, Any]:
        """A broker with another incarnation than whoever has the id."""
        listener = {"name": "PLAINTEXT", "host": "127.0.0.1", "port": 9, "security_protocol": 0}
        features = [{"name": "metadata.version", "min_supported_version": 7, "max_supported_version": 31}]
        body = {
            "broker_id": broker_id,
            "cluster_id": self._cluster.cluster_id,
            "incarnation_id": uuid.uuid4(),
        }
        body |= {"listeners": [listener], "features": features, "rack": None, "log_dirs": [uuid.uuid4()]}
        return self.client.ask(BROKER_REGISTRATION, 4, {**body, **fields})

    def heartbeat(self, broker_id: int, broker_epoch: int) -> str:
        body = {"broker_id": broker_id, "broker_epoch": broker_epoch, "current_metadata_offset": 0}
        body |= {"want_fence": False, "want_shut_down": False}
        return str(self.client.ask(BROKER_HEARTBEAT, 1, body)["error_code"])

    def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> str:
        body = {"broker_id": broker_id, "broker_epoch": broker_epoch}
        return str(self.client.ask(ALLOCATE_PRODUCER_IDS, 0, body)["error_code"])

    def assign_replica(
        self, broker_id: int, broker_epoch: int, topic_id: uuid.UUID, partition: int = 0
    ) -> list[str]:
        """A replica is said to lie in some directory: the errors of the request, and of the partition."""
        topic = {"topic_id": topic_id, "partitions": [{"partition_index": partition}]}
        directory = {"id_": uuid.uuid4(), "topics": [topic]}
        body = {"broker_id": broker_id, "broker_epoch": broker_epoch, "directories": [directory]}
        answer = self.client.ask(ASSIGN_REPLICAS_TO_DIRS, 0, body)
        rows = [p for d in answer["directories"] for t in d["topics"] for p in t["partitions"]]
        return [answer["error_code"], *(row["error_code"] for row in rows)]
