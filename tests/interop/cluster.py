"""A cluster of Apache and Ottla nodes in any mix, every node a process of its own on free loopback ports.

    nodes = {1: ("ottla", "controller"), 2: ("apache", "controller"), 3: ("apache", "broker,controller")}
    with Cluster(tmp_path, nodes, {"metadata.log.max.record.bytes.between.snapshots": 1000}) as cluster:
        cluster.leader()                        # the id of the active controller, as it says itself
        cluster[1].kill(); cluster[1].start()   # each node is a ServerProcess
        cluster.tool("TopicCommand", "--list")  # --bootstrap-server of every broker that runs is added

Every node reads the same settings and is formatted by its own kind's tool, all with one cluster id. The default is
static voters (`controller.quorum.voters`, kraft.version 0); `voters_in_log=True` writes them into the log with
`--initial-controllers` (kraft.version 1). A node given in `joining` is no voter at first: it is formatted with
`--no-initial-controllers`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.interop.apache import SMALL_HEAP, java_command, random_cluster_id, run_tool, write_properties
from tests.interop.ottla_node import OTTLA
from tests.interop.process import HOST, ServerProcess, free_ports, wait_until
from tests.support.raw_client import (
    ALTER_PARTITION_REASSIGNMENTS,
    CREATE_TOPICS,
    ELECT_LEADERS,
    METADATA,
    TIMEOUT_MS,
    RawClient,
)

FIND_COORDINATOR, DESCRIBE_QUORUM = 10, 55
# What a coordinator is asked for.
GROUP, TRANSACTION, SHARE = 0, 1, 2
# So many names are tried until one is coordinated where the test wants it.
NAMES = 100
PATIENCE_S = 60.0
APACHE_STOP_S = 15.0


class ClusterNode(ServerProcess):
    """One node of a cluster, of either kind."""

    # Several JVMs that start at once on a busy machine.
    start_timeout_s = 240.0

    def __init__(self, cluster: Cluster, node_id: int, kind: str, roles: str, directory: Path) -> None:
        self.kind = kind
        super().__init__(directory / f"node-{node_id}", work_dir=directory / f"work-{node_id}")
        self.cluster = cluster
        self.node_id = node_id
        self.roles = roles
        self.is_broker, self.is_controller = "broker" in roles, "controller" in roles
        self.port, self.controller_port = free_ports(2)
        self.directory_id = random_cluster_id()
        self.overrides: dict[str, object] = {}

    @property
    def metadata_dir(self) -> Path:
        """Where the node keeps the metadata log and its snapshots."""
        return self.data_dir / "__cluster_metadata-0"

    @property
    def controller_address(self) -> str:
        return f"{HOST}:{self.controller_port}"

    @property
    def config_path(self) -> Path:
        return self.work_dir / "server.properties"

    def settings(self) -> dict[str, object]:
        """The node's server.properties: what a cluster of one replica needs, then the test's own."""
        listeners = [f"PLAINTEXT://{self.address}"] if self.is_broker else []
        listeners += [f"CONTROLLER://{self.controller_address}"] if self.is_controller else []
        return {
            "process.roles": self.roles,
            "node.id": self.node_id,
            "listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self.data_dir,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.num.partitions": 4,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.num.partitions": 4,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            # The controllers may be JVMs that start as slowly as this node may.
            "initial.broker.registration.timeout.ms": int(1000 * self.start_timeout_s),
            # Half of a small JVM's heap by default.
            "log.cleaner.dedupe.buffer.size": 8 << 20,
            **self.cluster.quorum_settings(),
            **self.cluster.overrides,
            **self.overrides,
        }

    def format(self) -> None:
        """Make the directory the cluster's, with this kind's own tool."""
        write_properties(self.config_path, self.settings())
        whose = ("format", "-t", self.cluster.cluster_id, "-c", str(self.config_path))
        options = (*whose, *self.cluster.format_options(self))
        if self.kind == "apache":
            run_tool("StorageTool", *options)
            return
        command = [str(OTTLA), "storage", *options]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    def launch(self) -> None:
        if not (self.data_dir / "meta.properties").exists():
            self.format()
        write_properties(self.config_path, self.settings())
        super().launch()

    def command(self) -> list[str]:
        if self.kind == "apache":
            return java_command("kafka.Kafka", str(self.config_path), jvm=self.cluster.jvm)
        return [str(OTTLA), "serve", "--config", str(self.config_path)]

    def environment(self) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("KAFKA_")}
        watch = {"OTTLA_STALL_REPORT": str(self.stall_path)} if self.cluster.watch_stalls else {}
        return {**inherited, **watch, "PYTHONUNBUFFERED": "1"}

    @property
    def stall_path(self) -> Path:
        """Where an Ottla node writes how long its loop stood still, when it ends."""
        return self.work_dir / f"stalls-{self.starts}.json"

    def stalls(self) -> list[dict[str, float]]:
        """What every start that ended cleanly, and was watched, has reported."""
        paths = sorted(self.work_dir.glob("stalls-*.json"), key=lambda path: int(path.stem.partition("-")[2]))
        return [json.loads(path.read_text()) for path in paths]

    def client(self, timeout_s: float = 90.0, port: int | None = None) -> RawClient:
        """A connection of somebody who may ask everything, to the brokers' listener unless a port is named."""
        return RawClient(self, timeout_s=timeout_s, port=port)

    def is_ready(self) -> bool:
        """A broker lists itself; a controller answers at all (which of them leads is the quorum's matter)."""
        try:
            if self.is_broker:
                return self.node_id in self.known_brokers()
            with self.client(timeout_s=5, port=self.controller_port) as client:
                client.ask(18, 0, {})
                return True
        except (OSError, ConnectionError):
            return False

    def known_brokers(self) -> dict[int, int]:
        """The brokers that this one tells its clients of: id and port."""
        with self.client(timeout_s=5) as client:
            answer = client.ask(METADATA, 1, {"topics": []})
        return {broker["node_id"]: broker["port"] for broker in answer["brokers"]}

    def leaders(self, topic: str) -> list[int]:
        """Who leads each partition of a topic, as this broker tells it; -1 while nobody does."""
        with self.client() as client:
            (row,) = client.ask(METADATA, 1, {"topics": [{"name": topic}]})["topics"]
        found = {part["partition_index"]: part["leader_id"] for part in row["partitions"]}
        return [found[partition] for partition in sorted(found)]

    def coordinator(self, kind: int, key: str) -> int:
        """The broker that coordinates a group, a transactional id or a share partition, as this one says; or -1."""
        with self.client() as client:
            answer = client.ask(FIND_COORDINATOR, 6, {"key_type": kind, "coordinator_keys": [key]})
        found = answer["coordinators"][0]
        return int(found["node_id"]) if found["error_code"] == "none" else -1

    def printed(self) -> str:
        """Everything that all its starts have printed."""
        logs = sorted(self.work_dir.glob(f"{self.kind}-*.log"))
        return "\n".join(path.read_text(errors="replace") for path in logs)

    def describe_quorum(self) -> dict[str, Any] | None:
        """The quorum as this controller sees it, if it leads; None otherwise."""
        wanted = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
        try:
            with self.client(timeout_s=5, port=self.controller_port) as client:
                answer = client.ask(DESCRIBE_QUORUM, 2, {"topics": [wanted]})
        except (OSError, ConnectionError):
            return None
        if answer["error_code"] != "none" or not answer["topics"]:
            return None
        partition: dict[str, Any] = answer["topics"][0]["partitions"][0]
        return partition if partition["error_code"] == "none" else None


class Cluster:
    """Nodes that know one another, started together, for as long as the `with` block."""

    node_type = ClusterNode

    def __init__(
        self,
        directory: Path,
        nodes: Mapping[int, tuple[str, str]],
        overrides: Mapping[str, object] | None = None,
        *,
        voters_in_log: bool = False,
        joining: Collection[int] = (),
        jvm: Sequence[str] = SMALL_HEAP,
    ) -> None:
        self.jvm = tuple(jvm)
        self.watch_stalls = False  # by the nodes that are started from then on; it costs
        self.cluster_id = random_cluster_id()
        self.overrides = dict(overrides or {})
        self.voters_in_log = voters_in_log
        self.nodes = {
            node_id: self.node_type(self, node_id, kind, roles, directory)
            for node_id, (kind, roles) in nodes.items()
        }
        self.joining = set(joining)

    # ---- what each node is told ---------------------------------------------------------------------------

    def voters(self) -> list[ClusterNode]:
        """The first voters."""
        return [node for node in self.controllers() if node.node_id not in self.joining]

    def quorum_settings(self) -> dict[str, object]:
        if self.voters_in_log:
            servers = ",".join(node.controller_address for node in self.controllers())
            return {"controller.quorum.bootstrap.servers": servers}
        voters = ",".join(f"{node.node_id}@{node.controller_address}" for node in self.voters())
        return {"controller.quorum.voters": voters}

    def format_options(self, node: ClusterNode) -> tuple[str, ...]:
        if not self.voters_in_log or not node.is_controller:
            return ()
        if node.node_id in self.joining:
            return ("--no-initial-controllers",)
        return ("--initial-controllers", self.initial_controllers)

    @property
    def initial_controllers(self) -> str:
        """As both kinds' format tools take them."""
        return ",".join(f"{n.node_id}@{n.controller_address}:{n.directory_id}" for n in self.voters())

    # ---- life ---------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start every node but those that join later; return when each is up and the quorum has a leader."""
        started = [node for node in self.nodes.values() if node.node_id not in self.joining]
        for node in sorted(started, key=lambda node: node.is_broker):
            node.launch()
        for node in started:
            wait_until(
                node._ready_or_dead, node.start_timeout_s, f"node {node.node_id} ({node.kind}) to serve"
            )
        self.leader()
        ids = {node.node_id for node in started if node.is_broker}
        for node in self.brokers():
            wait_until(
                lambda node=node: ids <= set(node.known_brokers()),
                PATIENCE_S,
                "the brokers to know each other",
            )
        return self

    def stop(self) -> None:
        """Brokers first, then controllers. An Ottla node that does not end is reported.

        Apache nodes with both roles are given a moment only: the last ones wait five minutes for a majority that has
        ended before them.
        """
        plain_brokers = [node for node in self.brokers() if not node.is_controller]
        for group in (plain_brokers, self.controllers()):
            running = [node for node in group if node.is_running()]
            for node in running:
                os.kill(node.pid, signal.SIGTERM)
            for node in sorted(running, key=lambda node: node.kind, reverse=True):
                if node.kind == "ottla":
                    node.wait_stopped()
                else:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        node.wait(APACHE_STOP_S)
                    node.kill()

    def kill(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            with contextlib.ExitStack() as stack:
                stack.callback(self.kill)
                self.stop()
        else:
            self.kill()

    def __getitem__(self, node_id: int) -> ClusterNode:
        return self.nodes[node_id]

    # ---- who is there -------------------------------------------------------------------------------------

    def controllers(self) -> list[ClusterNode]:
        return [node for node in self.nodes.values() if node.is_controller]

    def brokers(self) -> list[ClusterNode]:
        """The brokers that run."""
        return [node for node in self.nodes.values() if node.is_broker and node.is_running()]

    def leader(self, timeout_s: float = PATIENCE_S) -> int:
        """The id of the controller that says of itself that it leads, once it has committed in its epoch."""
        found: list[int] = []

        def somebody_leads() -> bool:
            for node in self.controllers():
                quorum = node.describe_quorum() if node.is_running() else None
                if quorum is not None and quorum["high_watermark"] >= 0:
                    found.append(node.node_id)
                    return True
            return False

        wait_until(somebody_leads, timeout_s, "a leader of the quorum", poll_s=0.1)
        return found[0]

    def quorum(self) -> dict[str, Any]:
        """DescribeQuorum as the leader answers it."""
        answer = self[self.leader()].describe_quorum()
        assert answer is not None
        return answer

    def caught_up(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until every running node has all that the leader has."""
        running = {node.node_id for node in self.nodes.values() if node.is_running()}

        def all_there() -> bool:
            said = self.quorum()
            ends = {r["replica_id"]: r["log_end_offset"] for r in said["current_voters"] + said["observers"]}
            newest = max(ends.values())
            return said["high_watermark"] == newest and all(
                ends.get(node_id) == newest for node_id in running
            )

        wait_until(all_there, timeout_s, "all nodes to have the whole log", poll_s=0.05)

    def make_leader(self, node_id: int) -> None:
        """Make this voter of three lead: the leader stops, and the third one comes back with too short a log to win."""
        leader = self.leader()
        if leader == node_id:
            return
        (third,) = {node.node_id for node in self.voters()} - {leader, node_id}
        self[third].stop()
        behind = self.quorum()["high_watermark"]
        wait_until(lambda: self.quorum()["high_watermark"] > behind, PATIENCE_S, "a commit without the third")
        self[leader].stop()
        self[third].launch()
        wait_until(lambda: self.leader() == node_id, PATIENCE_S, f"node {node_id} to lead")
        self[leader].launch()
        for other in (third, leader):
            node = self[other]
            wait_until(node._ready_or_dead, node.start_timeout_s, f"node {other} ({node.kind}) to serve")

    # ---- what tests ask for -------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(node.address for node in self.brokers())

    @property
    def bootstrap_controllers(self) -> str:
        return ",".join(node.controller_address for node in self.controllers() if node.is_running())

    def create_topic(self, word: str, leaders: list[int], through: int | None = None) -> str:
        """A topic whose partitions are led by these brokers, once they all know it; its name begins with the word."""
        name = f"{word}-{uuid.uuid4().hex[:8]}"
        assignments = [{"partition_index": i, "broker_ids": [leader]} for i, leader in enumerate(leaders)]
        topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "configs": []}
        body = {"topics": [{**topic, "assignments": assignments}], "timeout": TIMEOUT_MS}
        with (self[through] if through is not None else self.brokers()[0]).client() as client:
            answer = client.ask(CREATE_TOPICS, 7, body)
        assert answer["topics"][0]["error_code"] == "none", answer
        for node in self.brokers():
            wait_until(lambda node=node: node.leaders(name) == leaders, PATIENCE_S, f"{name} to be led")
        return name

    def wait_until_led(self, topic: str) -> None:
        """Until every broker knows a leader of each partition."""
        for node in self.brokers():
            wait_until(
                lambda node=node: min(node.leaders(topic), default=-1) >= 0, PATIENCE_S, f"{topic} to be led"
            )

    def lead(self, topic: str, replicas: list[int]) -> None:
        """The first of its replicas, in sync with the leader, is made the leader of a topic of one partition."""
        moved = {"name": topic, "partitions": [{"partition_index": 0, "replicas": replicas}]}
        elected = {"topic": topic, "partitions": [0]}
        with self.brokers()[0].client() as client:
            body = {"timeout": TIMEOUT_MS, "topics": [moved]}
            answer = client.ask(ALTER_PARTITION_REASSIGNMENTS, 0, body)
            assert answer["responses"][0]["partitions"][0]["error_code"] == "none", answer
            body = {"election_type": 0, "topic_partitions": [elected], "timeout": TIMEOUT_MS}
            answer = client.ask(ELECT_LEADERS, 2, body)
            assert answer["error_code"] == "none", answer
        for node in self.brokers():
            wait_until(
                lambda node=node: node.leaders(topic) == replicas[:1],
                PATIENCE_S,
                f"{topic} to be led by {replicas[0]}\n{answer}",
            )

    def coordinated_by(self, kind: int, broker_id: int) -> str:
        """A new name of a group or a transaction whose coordinator is this broker, as all brokers say."""
        first, *others = self.brokers()
        for _ in range(NAMES):
            key = f"name-{uuid.uuid4().hex[:8]}"
            wait_until(lambda key=key: first.coordinator(kind, key) >= 0, PATIENCE_S, "a coordinator")
            if first.coordinator(kind, key) == broker_id:
                for node in others:
                    wait_until(
                        lambda key=key, node=node: node.coordinator(kind, key) == broker_id,
                        PATIENCE_S,
                        f"node {node.node_id} to know the coordinator",
                    )
                return key
        raise AssertionError(f"broker {broker_id} coordinates nothing")

    def tool(self, name: str, *args: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """One of Kafka's Java tools against the brokers."""
        return run_tool(name, "--bootstrap-server", self.bootstrap_servers, *args, **how)

    def controller_tool(self, name: str, *args: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """One of Kafka's Java tools against the controllers."""
        return run_tool(name, "--bootstrap-controller", self.bootstrap_controllers, *args, **how)
