"""A cluster of real processes: every node an `ottla serve` of its own, on free ports of loopback.

    with Processes(tmp_path, controllers=3, brokers=3) as cluster:
        cluster.bootstrap_servers, cluster.active_controller(), cluster.kill(1), cluster.start(1), cluster.pause(2) ...

Controllers are nodes 1, 2, 3; brokers 101, 102, 103; `combined=5` is nodes 1 to 5 with both roles. `static` voters are
those of controller.quorum.voters (kraft.version 0); otherwise each directory is formatted with the same initial
controllers (kraft.version 1). What the nodes have printed is added to whatever fails inside the `with` block.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from tests.interop.ottla_node import OTTLA, OttlaNode
from tests.interop.process import HOST, free_ports, receive_frame, wait_until

from ottla.client.blocking import Admin
from ottla.client.errors import ClientError
from ottla.model.errors import KafkaError
from ottla.model.ids import random_uuid, uuid_to_str

FIRST_BROKER_ID = 101
CONTROLLER, BROKER, COMBINED = "controller", "broker", "broker,controller"
LISTENING = re.compile(r"^ottla node \d+ of cluster \S+ (?:controller )?listening on \S+:(\d+)", re.M)
METADATA_V1_NO_TOPICS = struct.pack(">ihhihi", 14, 3, 1, 2, -1, 0)
PATIENCE_S = 240.0
# Of the internal topics, for tests that are about something else; those that kill brokers under groups ask for more.
ONE_REPLICA = {
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
}


class ClusterNode(OttlaNode):
    """One process of a cluster."""

    start_timeout_s = PATIENCE_S

    def __init__(self, data_dir: Path, node_id: int, role: str, settings: Mapping[str, object]) -> None:
        super().__init__(data_dir, settings)
        self.node_id = node_id
        self.role = role
        self.kind = f"node-{node_id}"
        # The same port in every life: a client, or another node, knows it by that.
        self.wanted_port = self.port = free_ports(1)[0] if self.is_broker else 0

    @property
    def is_broker(self) -> bool:
        return "broker" in self.role

    @property
    def is_controller(self) -> bool:
        return "controller" in self.role

    def settings(self) -> dict[str, object]:
        listeners = [f"PLAINTEXT://{HOST}:{self.wanted_port}"] if self.is_broker else []
        listeners += [f"CONTROLLER://{HOST}:{self.controller_port}"] if self.is_controller else []
        return {
            "node.id": self.node_id,
            "process.roles": self.role,
            "listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            **self.overrides,
        }

    def is_ready(self) -> bool:
        return LISTENING.search(self.log_text()) is not None

    def known_brokers(self) -> set[int]:
        """The brokers that this one tells clients of; none if it does not answer."""
        try:
            with socket.create_connection((HOST, self.port), timeout=5) as sock:
                sock.sendall(METADATA_V1_NO_TOPICS)
                return set(_broker_ids(receive_frame(sock)))
        except OSError:
            return set()

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)


def _broker_ids(frame: bytes) -> Iterator[int]:
    """Of a MetadataResponse version 1."""
    (count,) = struct.unpack_from(">i", frame, 4)
    at = 8
    for _ in range(count):
        node_id, length = struct.unpack_from(">ih", frame, at)
        at += 6 + length + 4
        (rack,) = struct.unpack_from(">h", frame, at)
        at += 2 + max(rack, 0)
        yield node_id


class Processes:
    """The nodes of one cluster, by their ids."""

    def __init__(
        self,
        where: Path,
        *,
        controllers: int = 0,
        brokers: int = 0,
        combined: int = 0,
        static: bool = True,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        assert combined or (controllers and brokers)
        self.where = where
        self.cluster_id = uuid_to_str(random_uuid())
        self.static = static
        self._settings = {**ONE_REPLICA, **(settings or {})}
        roles = dict.fromkeys(range(1, controllers + 1), CONTROLLER)
        roles |= dict.fromkeys(range(1, combined + 1), COMBINED)
        roles |= dict.fromkeys(range(FIRST_BROKER_ID, FIRST_BROKER_ID + brokers), BROKER)
        voters = [node_id for node_id, role in roles.items() if role != BROKER]
        self._ports = dict(zip(voters, free_ports(len(voters)), strict=True))
        self._directory_ids = {node_id: uuid_to_str(random_uuid()) for node_id in voters}
        self.nodes = {node_id: self.make(node_id, role) for node_id, role in roles.items()}

    def make(self, node_id: int, role: str, settings: Mapping[str, object] | None = None) -> ClusterNode:
        """A node of this cluster; one that is not there from the start has to be formatted and added to `nodes`."""
        data_dir = self.where / f"node-{node_id}"
        node = ClusterNode(data_dir, node_id, role, {**self._settings, **self._quorum(), **(settings or {})})
        if role != BROKER:
            node.controller_port = self._ports.setdefault(node_id, node.controller_port)
        if self.static:
            node.env["CLUSTER_ID"] = self.cluster_id
        return node

    def _quorum(self) -> dict[str, object]:
        voters = {node_id: f"{HOST}:{port}" for node_id, port in self._ports.items()}
        if self.static:
            return {"controller.quorum.voters": ",".join(f"{i}@{at}" for i, at in voters.items())}
        return {"controller.quorum.bootstrap.servers": ",".join(voters.values())}

    @property
    def initial_controllers(self) -> str:
        """As `ottla storage format --initial-controllers` takes them."""
        return ",".join(
            f"{node_id}@{HOST}:{self._ports[node_id]}:{directory_id}"
            for node_id, directory_id in self._directory_ids.items()
        )

    def format(self, node: ClusterNode, *options: str) -> None:
        """Make a node's directory one of this cluster's."""
        settings = [word for key, value in node.settings().items() for word in ("-X", f"{key}={value}")]
        directory = ("--data-dir", str(node.data_dir))
        command = [str(OTTLA), "storage", "format", "-t", self.cluster_id, *directory, *settings, *options]
        subprocess.run(command, check=True, capture_output=True, text=True, env=node.environment())

    # ---- life ---------------------------------------------------------------------------------------------

    def start_all(self) -> Self:
        """Start every node together; returns when all brokers serve and know one another."""
        if not self.static:
            for node in self.nodes.values():
                self.format(node, *(("-I", self.initial_controllers) if node.is_controller else ()))
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            wait_until(node._ready_or_dead, PATIENCE_S, f"{node.kind} to serve")
        self.wait_until_known()
        return self

    def wait_until_known(self, *brokers: int, timeout_s: float = PATIENCE_S) -> None:
        """Until every broker that runs tells of these and no others; without any, of all those that run."""
        running = {node.node_id for node in self.running() if node.is_broker}
        for node_id in running:
            self.wait_until_known_by(node_id, set(brokers) or running, timeout_s)

    def wait_until_known_by(self, node_id: int, brokers: set[int], timeout_s: float = PATIENCE_S) -> None:
        """Until one broker tells of these and no others."""
        node = self.nodes[node_id]
        what = f"{node.kind} to know brokers {sorted(brokers)}"
        wait_until(lambda: node.known_brokers() == brokers, timeout_s, what)

    def start(self, node_id: int) -> None:
        """Start one again, on its directory and ports."""
        self.nodes[node_id].start()

    def stop(self, node_id: int) -> int:
        """SIGTERM; the exit code."""
        return self.nodes[node_id].stop()

    def kill(self, node_id: int) -> None:
        self.nodes[node_id].kill()

    def restart(self, node_id: int) -> None:
        self.nodes[node_id].restart()

    def pause(self, node_id: int) -> None:
        """SIGSTOP: it is there, and says nothing."""
        self.nodes[node_id].signal(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        self.nodes[node_id].signal(signal.SIGCONT)

    def stop_all(self) -> None:
        """Brokers first, all at once: they ask the controllers for leave."""
        for group in (BROKER, None):
            leaving = [node for node in self.running() if group in (None, node.role)]
            for node in leaving:
                node.signal(signal.SIGCONT)
                node.signal(signal.SIGTERM)
            for node in leaving:
                node.wait_stopped()

    def kill_all(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def __enter__(self) -> Self:
        try:
            return self.start_all()
        except BaseException as failure:
            self._tell(failure)
            self.kill_all()
            raise

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        try:
            if failure is not None:
                self._tell(failure)
            else:
                self.stop_all()
                for node in self.nodes.values():
                    assert "Traceback" not in node.log_text(), f"{node.kind}\n{node.log_text()}"
        finally:
            self.kill_all()

    def _tell(self, failure: BaseException) -> None:
        for node in self.nodes.values():
            failure.add_note(f"---- {node.kind}, start {node.starts}\n{node.log_text()[-3000:]}")

    # ---- looking at it ------------------------------------------------------------------------------------

    def running(self) -> list[ClusterNode]:
        return [node for node in self.nodes.values() if node.is_running()]

    @property
    def bootstrap_servers(self) -> str:
        """Every broker, running or not: their ports stay."""
        return ",".join(node.address for node in self.nodes.values() if node.is_broker)

    @property
    def bootstrap_controllers(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self._ports.values())

    def active_controller(self, timeout_s: float = PATIENCE_S) -> int:
        """The controller that leads the quorum, as a broker tells it."""
        found: list[int] = []

        def look() -> bool:
            with contextlib.suppress(KafkaError, ClientError), self.admin() as admin:
                found.append(admin.describe_quorum().leader_id)
            return bool(found) and found[-1] >= 0

        wait_until(look, timeout_s, "a controller to lead")
        return found[-1]

    def admin(self) -> Admin:
        """Our own client, for what others do not ask."""
        return Admin(bootstrap_servers=self.bootstrap_servers)
