"""A cluster of real processes whose partitions have several replicas, with links between them that can be cut.

    with Replicated(tmp_path, combined=3) as cluster:
        cluster.create_topic("orders", partitions=3)
        cluster.links.cut(1, 2); cluster.kill(cluster.leader("orders")); cluster.wait_for_full_isr("orders")

What a broker believes is asked at its own port, past all links. A node that is killed or stopped refuses connections as
a dead process does, though the proxies in front of it live in the test's process.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.interop.process import HOST, ServerDied, free_ports, wait_until
from tests.support.cluster import PATIENCE_S, ClusterNode, Processes
from tests.support.disks import Disk
from tests.support.log_files import LOG_OVERHEAD, disk_batches, segments
from tests.support.proxies import CLIENTS, Links
from tests.support.raw_client import METADATA, RawClient

from ottla.client.admin.types import NewTopic
from ottla.client.blocking import Admin
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.storage.dirs.checkpoints import RECOVERY_POINT_CHECKPOINT, OffsetCheckpoint

METADATA_VERSION: Final = 9
INTERNAL_PARTITIONS: Final = 3
# How long one broker may take to say what it believes: it may be paused, or its loop busy.
ANSWER_S: Final = 5.0


class PartitionView(NamedTuple):
    """A partition as one broker sees it."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class Replicated(Processes):
    """Nodes that reach one another, and are reached by clients, through `links`."""

    def __init__(
        self,
        where: Path,
        *,
        controllers: int = 0,
        brokers: int = 0,
        combined: int = 0,
        replicas: int = 3,
        min_isr: int = 2,
        settings: Mapping[str, object] | None = None,
        disks: bool = False,
        log_dirs: int = 1,
    ) -> None:
        replication = {
            "default.replication.factor": replicas,
            "min.insync.replicas": min_isr,
            "offsets.topic.replication.factor": replicas,
            "offsets.topic.num.partitions": INTERNAL_PARTITIONS,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": min_isr,
            "transaction.state.log.num.partitions": INTERNAL_PARTITIONS,
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": min_isr,
            # Records of raw clients are of a fixed day years ago, and what is gone has to be gone by a fault.
            "log.retention.ms": -1,
            # Leaders stay where a fault has put them until a test says otherwise.
            "auto.leader.rebalance.enable": "false",
        }
        super().__init__(
            where,
            controllers=controllers,
            brokers=brokers,
            combined=combined,
            settings={**replication, **(settings or {})},
        )
        self.replicas = replicas
        self.links = Links()
        self.paused: set[int] = set()
        self._front: dict[int, int] = {}
        for node in self.nodes.values():
            node.wanted_port, node.controller_port = free_ports(2)
            node.port = node.wanted_port
            if node.is_controller:
                self._ports[node.node_id] = node.controller_port
        self._open_links(log_dirs)
        self.disks = {node.node_id: Disk(node) for node in self.nodes.values()} if disks else {}

    def _open_links(self, log_dirs: int) -> None:
        """Each node advertises the proxies in front of it."""
        voters = []
        for node in self.nodes.values():
            advertised = []
            if node.is_broker:
                self._front[node.node_id] = self.links.open(node.node_id, HOST, node.wanted_port)
                advertised.append(f"PLAINTEXT://{HOST}:{self._front[node.node_id]}")
            if node.is_controller:
                port = self.links.open(node.node_id, HOST, node.controller_port)
                advertised.append(f"CONTROLLER://{HOST}:{port}")
                voters.append(f"{node.node_id}@{HOST}:{port}")
            node.overrides["advertised.listeners"] = ",".join(advertised)
            if node.is_broker and log_dirs > 1:
                more = [node.data_dir.with_name(f"{node.data_dir.name}-{n}") for n in range(2, log_dirs + 1)]
                node.log_dirs = [node.data_dir, *more]
                node.overrides["log.dirs"] = ",".join(map(str, node.log_dirs))
                node.overrides["metadata.log.dir"] = str(node.data_dir)
        for node in self.nodes.values():
            node.overrides["controller.quorum.voters"] = ",".join(voters)

    # ---- life -------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        self.launch(node_id)
        self.wait_until_serving(node_id)

    def launch(self, node_id: int) -> None:
        """Start it and return when its ports are open: alone it may have nobody to be part of a cluster with."""
        node = self.nodes[node_id]
        node.launch()
        port = node.controller_port if node.is_controller else node.wanted_port

        def is_open() -> bool:
            if not node.is_running():
                raise ServerDied(f"{node.kind} exited with {node.exit_code}\n{node.log_text()[-4000:]}")
            with socket.socket() as sock:
                return sock.connect_ex((HOST, port)) == 0

        wait_until(is_open, PATIENCE_S, f"{node.kind} to listen")
        # The broker's port listens later, and until then refuses: that is how a controller knows of its end.
        self.links.reopen(node_id, port)

    def wait_until_serving(self, node_id: int) -> None:
        node = self.nodes[node_id]
        wait_until(node._ready_or_dead, PATIENCE_S, f"{node.kind} to serve")
        self.links.reopen(node_id)

    def stop(self, node_id: int) -> int:
        code = super().stop(node_id)
        self.links.shut(node_id)
        return code

    def kill(self, node_id: int) -> None:
        self.links.shut(node_id)
        super().kill(node_id)
        self.paused.discard(node_id)

    def pause(self, node_id: int) -> None:
        self.paused.add(node_id)
        super().pause(node_id)

    def resume(self, node_id: int) -> None:
        super().resume(node_id)
        self.paused.discard(node_id)

    def recover(self) -> None:
        """After whatever a test has done: no link is cut, nobody stands still, everybody runs and is known."""
        self.links.heal()
        for node_id in list(self.paused):
            self.resume(node_id)
        gone = [node_id for node_id, node in self.nodes.items() if not node.is_running()]
        for node_id in gone:
            self.launch(node_id)
        for node_id in gone:
            self.wait_until_serving(node_id)
        self.wait_until_known()

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        try:
            self.links.heal()
            super().__exit__(kind, failure, trace)
        finally:
            self.links.close()

    def kill_all(self) -> None:
        self.paused.clear()
        super().kill_all()

    # ---- clients ----------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self._front.values())

    def isolate(self, node_id: int, *others: int, both: bool = True) -> None:
        """Cut a node from these; without any, from all other nodes and from clients."""
        everybody = [CLIENTS, *(n for n in self.nodes if n != node_id)]
        for other in others or everybody:
            self.links.cut(node_id, other, both=both)

    def create_topic(
        self,
        name: str,
        partitions: int = 3,
        assignments: Mapping[int, list[int]] | None = None,
        **configs: object,
    ) -> str:
        """With all its replicas in sync when it returns."""
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        if assignments is None:
            topic = NewTopic(name, partitions, self.replicas, settings)
        else:
            topic = NewTopic(name, configs=settings, assignments=assignments)
        with self.admin() as admin:
            outcome = admin.create_topics([topic])[name]
        # The answer to a first attempt may have been lost with the controller.
        if isinstance(outcome, KafkaError) and outcome.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise outcome
        self.wait_for_full_isr(name)
        return name

    def admin(self) -> Admin:
        return Admin(bootstrap_servers=self.bootstrap_servers, request_timeout_ms=5_000)

    # ---- what brokers believe ---------------------------------------------------------------------------

    def serving(self) -> list[ClusterNode]:
        return [node for node in self.running() if node.is_broker and node.node_id not in self.paused]

    def view(self, node_id: int, topic: str) -> dict[int, PartitionView]:
        """A topic as one broker sees it; nothing if it does not answer."""
        try:
            with RawClient(self.nodes[node_id], timeout_s=ANSWER_S) as client:
                answer = client.ask(METADATA, METADATA_VERSION, {"topics": [{"name": topic}]})
        except OSError:
            return {}
        (found,) = answer["topics"]  # without partitions while the broker does not know it yet
        return {row["partition_index"]: _partition(row) for row in found["partitions"]}

    def views(self, topic: str) -> list[dict[int, PartitionView]]:
        """A topic as every broker sees it that runs and is not paused."""
        return [self.view(node.node_id, topic) for node in self.serving()]

    def leader(self, topic: str, partition: int = 0) -> int:
        """Whom all brokers that serve take for the leader, as soon as they are of one mind."""
        return self._agreed(topic, partition).leader

    def leader_epoch(self, topic: str, partition: int = 0) -> int:
        return self._agreed(topic, partition).leader_epoch

    def isr(self, topic: str, partition: int = 0) -> set[int]:
        return set(self._agreed(topic, partition).isr)

    def _agreed(self, topic: str, partition: int) -> PartitionView:
        found: list[PartitionView] = []

        def agree() -> bool:
            views = self.views(topic)
            if not all(partition in view for view in views):
                return False
            found[:] = [view[partition] for view in views]
            return len(set(found)) == 1 and found[0].leader >= 0

        wait_until(agree, PATIENCE_S, f"all brokers to agree on {topic}-{partition}")
        return found[0]

    def wait_for_leader(
        self,
        topic: str,
        partition: int = 0,
        *,
        other_than: Iterable[int] = (),
        seen_by: Iterable[int] | None = None,
    ) -> int:
        """A leader that is none of these, in the eyes of those who are asked."""
        refused = {-1, *other_than}
        found: list[int] = []

        def led() -> bool:
            asked = [node.node_id for node in self.serving()] if seen_by is None else seen_by
            views = [self.view(node_id, topic).get(partition) for node_id in asked]
            found[:] = [-1 if view is None else view.leader for view in views]
            return len(set(found)) == 1 and found[0] not in refused

        wait_until(led, PATIENCE_S, f"a leader of {topic}-{partition} other than {sorted(refused)}")
        return found[0]

    def wait_for_isr(
        self, topic: str, wanted: set[int], partition: int = 0, *, seen_by: Iterable[int] | None = None
    ) -> None:
        def is_so() -> bool:
            asked = [node.node_id for node in self.serving()] if seen_by is None else seen_by
            views = [self.view(node_id, topic).get(partition) for node_id in asked]
            return all(view is not None and set(view.isr) == wanted for view in views)

        wait_until(is_so, PATIENCE_S, f"the ISR of {topic}-{partition} to be {sorted(wanted)}")

    def wait_for_full_isr(self, *topics: str) -> None:
        """Until every broker that serves sees all replicas of these topics in sync, and a leader."""

        def is_full(topic: str) -> bool:
            views = self.views(topic)
            return all(views) and all(
                row.leader >= 0 and set(row.isr) == set(row.replicas)
                for view in views
                for row in view.values()
            )

        for topic in topics:
            wait_until(partial(is_full, topic), PATIENCE_S, f"all replicas of {topic} in sync")

    def check_nodes(self) -> None:
        """All run, and none has met a bug in any of its lives."""
        for node in self.nodes.values():
            assert node.is_running(), f"{node.kind} has ended with {node.exit_code}"
            for path in node.work_dir.glob("*.log"):
                assert "Traceback" not in path.read_text(errors="replace"), (
                    f"{path.name}: there is a traceback"
                )

    # ---- what lies on the disks -------------------------------------------------------------------------

    def dir_of(self, node_id: int, topic: str, partition: int = 0) -> Path:
        """The log directory in which a node keeps a partition."""
        dirs = self.nodes[node_id].log_dirs
        (found,) = [where for where in dirs if (where / f"{topic}-{partition}").is_dir()]
        return found

    def high_watermark(self, topic: str, partition: int = 0) -> int:
        with RawClient(self.nodes[self.leader(topic, partition)]) as client:
            return client.end_offset(topic, partition)

    def check_equal_logs(self, *topics: str) -> None:
        """Below the high watermark all replicas have the same bytes; their segments may be cut elsewhere."""
        for topic in topics:
            for partition, row in self.view(self.serving()[0].node_id, topic).items():
                end = self.high_watermark(topic, partition)
                logs = {
                    n: _log_bytes(self.dir_of(n, topic, partition), topic, partition, end)
                    for n in row.replicas
                }
                sizes = {node_id: len(log) for node_id, log in logs.items()}
                assert len(set(logs.values())) == 1, f"{topic}-{partition} below {end}: {sizes}"

    def lose_page_cache(self, node_id: int) -> None:
        """What a power cut takes from a node that is not running: all that lies past its recovery points."""
        node = self.nodes[node_id]
        assert not node.is_running()
        for log_dir in node.log_dirs:
            kept = OffsetCheckpoint(log_dir, RECOVERY_POINT_CHECKPOINT).read()
            for directory in log_dir.glob("*-*"):
                topic, _, number = directory.name.rpartition("-")
                # The metadata log is written through.
                if directory.is_dir() and number.isdecimal() and topic != "__cluster_metadata":
                    where = TopicPartition(topic, int(number))
                    _cut_log(log_dir, where, kept.get(where, 0))


def _partition(row: dict[str, Any]) -> PartitionView:
    return PartitionView(
        row["leader_id"], row["leader_epoch"], tuple(row["replica_nodes"]), tuple(row["isr_nodes"])
    )


def _log_bytes(data_dir: Path, topic: str, partition: int, end: int) -> bytes:
    """Every whole batch below an offset, one after the other."""
    found = bytearray()
    for batch in disk_batches(data_dir, topic, partition):
        if batch.last_offset < end:
            assert batch.crc_ok, batch
            with batch.path.open("rb") as log:
                log.seek(batch.position)
                found += log.read(batch.size_bytes)
    return bytes(found)


def _cut_log(log_dir: Path, where: TopicPartition, offset: int) -> None:
    """Leave only batches below an offset; a batch that was half written goes with the rest."""
    for path in segments(log_dir, where.topic, where.partition):
        data = path.read_bytes()
        position = 0
        while position + LOG_OVERHEAD <= len(data):
            base = int.from_bytes(data[position : position + 8], "big")
            size = LOG_OVERHEAD + int.from_bytes(data[position + 8 : position + LOG_OVERHEAD], "big")
            if base >= offset or position + size > len(data):
                break
            position += size
        with path.open("r+b") as log:
            log.truncate(position)
