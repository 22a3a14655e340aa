"""A cluster of several nodes inside a test of a program that talks to Kafka.

    with Cluster(3) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        cluster.stop_node(2)

Each node is one that `ottla serve` runs, in a thread of this process, on free ports of loopback. `Cluster(3)` is three
nodes with both roles; `Cluster(brokers=2, controllers=3)` keeps the roles apart: controllers are nodes 1, 2, 3, brokers
101, 102.
"""

import concurrent.futures
import contextlib
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from ottla.config.broker import BrokerConfig
from ottla.model.ids import random_uuid, uuid_to_str
from ottla.node.node import Node
from ottla.testing.running_node import START_TIMEOUT_S, STOP_TIMEOUT_S, RunningNode

LOOPBACK = "127.0.0.1"
# Of a broker that is no controller: far from the controllers' ids.
FIRST_BROKER_ID = 101
POLL_S = 0.01


class Cluster:
    """Nodes that know one another, for as long as the `with` block."""

    def __init__(
        self,
        nodes: int = 3,
        *,
        brokers: int | None = None,
        controllers: int | None = None,
        settings: Mapping[str, object] | None = None,
        data_dir: Path | None = None,
    ) -> None:
        """`nodes` of both roles, or so many `brokers` and `controllers`; `settings` are every node's."""
        self._temporary = None if data_dir is not None else tempfile.TemporaryDirectory(prefix="ottla-")
        self.data_dir = data_dir or Path(self._temporary.name if self._temporary is not None else ".")
        self.cluster_id = uuid_to_str(random_uuid())
        self._settings = dict(settings or {})
        if brokers is None and controllers is None:
            roles = dict.fromkeys(range(1, nodes + 1), "broker,controller")
        else:
            roles = dict.fromkeys(range(1, (controllers or 1) + 1), "controller")
            roles |= {FIRST_BROKER_ID + number: "broker" for number in range(brokers or 1)}
        self._voters = self._place([node_id for node_id, role in roles.items() if "controller" in role])
        self._running = {node_id: self._node(node_id, role) for node_id, role in roles.items()}
        self._stopped: set[int] = set(roles)

    @staticmethod
    def _place(controllers: list[int]) -> dict[int, str]:
        """Where controllers will be: each has to know the others' ports before any of them runs."""
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in controllers]
            for sock in sockets:
                sock.bind((LOOPBACK, 0))
            return {
                node_id: "{}:{}".format(*sock.getsockname())
                for node_id, sock in zip(controllers, sockets, strict=True)
            }

    def _node(self, node_id: int, role: str) -> RunningNode:
        listeners = [f"PLAINTEXT://{LOOPBACK}:0"] if "broker" in role else []
        listeners += [f"CONTROLLER://{self._voters[node_id]}"] if "controller" in role else []
        own = {
            "node.id": node_id,
            "process.roles": role,
            "listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": ",".join(f"{voter}@{at}" for voter, at in self._voters.items()),
            "log.dirs": str(self.data_dir / f"node-{node_id}"),
            # Tests want them at once; one that stops brokers asks for more.
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
        return RunningNode(BrokerConfig.of({**own, **self._settings}), self.cluster_id)

    # ---- life ---------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start every node; returns when all brokers serve, and know one another."""
        try:
            for node_id, running in self._running.items():
                self._stopped.discard(node_id)
                running.launch()
            for running in self._running.values():
                running.wait()
            self._wait_until_all_are_known()
        except BaseException:
            self.stop()
            raise
        return self

    def _wait_until_all_are_known(self) -> None:
        brokers = {node_id for node_id, node in self.nodes.items() if node.is_broker}
        deadline = time.monotonic() + START_TIMEOUT_S
        for node_id in brokers:
            while self.nodes[node_id].known_brokers != brokers:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"node {node_id} knows brokers {self.nodes[node_id].known_brokers} only"
                    )
                time.sleep(POLL_S)

    def stop(self) -> None:
        """Stop all that run; the directory stays if it was given. Brokers first: they ask controllers for leave."""
        stopping = [
            each.stop_broker() for node_id, each in self._running.items() if node_id not in self._stopped
        ]
        concurrent.futures.wait([future for future in stopping if future is not None], STOP_TIMEOUT_S)
        for node_id in self._running:
            self.stop_node(node_id)
        if self._temporary is not None:
            self._temporary.cleanup()

    def stop_node(self, node_id: int) -> None:
        """Stop one node cleanly."""
        self._stopped.add(node_id)
        self._running[node_id].stop()

    def start_node(self, node_id: int) -> None:
        """Start one again, on its directory."""
        self._stopped.discard(node_id)
        self._running[node_id].start()

    # ---- looking inside -----------------------------------------------------------------------------------

    @property
    def nodes(self) -> dict[int, Node]:
        """The nodes that run, by their ids."""
        return {node_id: each.node for node_id, each in self._running.items() if node_id not in self._stopped}

    @property
    def bootstrap_servers(self) -> str:
        """Every broker that runs."""
        return ",".join(node.bootstrap_servers for node in self.nodes.values() if node.is_broker)

    @property
    def bootstrap_controllers(self) -> str:
        """Every controller, running or not."""
        return ",".join(self._voters.values())

    @property
    def active_controller(self) -> int | None:
        """The node whose controller is active, if there is one."""
        return next(
            (i for i, node in self.nodes.items() if i in self._voters and node.controller.active), None
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
