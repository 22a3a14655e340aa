"""Partitions with replicas on Apache and Ottla nodes: each kind leads the other and follows it, and takes over from it.

Three nodes, all of them brokers and voters, two of one kind and one of the other, with three replicas of everything and
min.insync.replicas 2. Under load every node in turn is killed or stopped, loses its leaders to the others, comes back,
catches up and is made leader again; so in the end every node has led followers of both kinds. Kafka's own verifiable
clients, its transactional copier and a Streams application lose nothing and have nothing twice, and the logs of all
three are equal, as kafka-dump-log shows them.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.interop.apache import java_command, run_tool
from tests.interop.cluster import Cluster, ClusterNode
from tests.interop.process import wait_until
from tests.interop.streams.app import WordCountApp, compile_app
from tests.interop.test_java_groups import VerifiableConsumer, committed
from tests.interop.test_streams import PARTITIONS as WORD_TOPICS
from tests.interop.test_streams import WordWorld
from tests.support.raw_client import CREATE_TOPICS, METADATA, TIMEOUT_MS, RawClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800)]

NODES = (1, 2, 3)
MIXES = [("apache", "ottla", "ottla"), ("ottla", "apache", "apache")]
SETTINGS: dict[str, object] = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "share.coordinator.state.topic.replication.factor": 3,
    "share.coordinator.state.topic.min.isr": 2,
    # A leader stays where a fault has put it until the test says otherwise.
    "auto.leader.rebalance.enable": "false",
}
# An Apache node starts within minutes even on a very busy machine.
PATIENCE_S = 300.0
POLL_S = 0.2
# What is written for the copier, and for the words, each time that the load is to go on.
NUMBERS = 600
LINES = 100
# Java's producer retries nothing in this tool unless it is told to.
PATIENT_PRODUCER = {"enable.idempotence": "true", "retries": "2147483647", "delivery.timeout.ms": "300000"}


class Front:
    """The cluster, by the names that helpers have for a single node; all its addresses, whoever runs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.address = cluster.bootstrap_servers

    def tool(self, name: str, *args: str, **how: Any) -> subprocess.CompletedProcess[str]:
        return self._cluster.tool(name, *args, **how)


@pytest.fixture(scope="module", params=MIXES, ids="-".join)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    nodes = {node_id: (kind, "broker,controller") for node_id, kind in zip(NODES, request.param, strict=True)}
    with Cluster(tmp_path_factory.mktemp("-".join(request.param)), nodes, SETTINGS) as running:
        yield running
    for node in running.nodes.values():
        if node.kind == "ottla":
            assert "Traceback" not in node.printed(), node.printed()


@pytest.fixture
def front(cluster: Cluster) -> Front:
    return Front(cluster)


# ---- partitions and their leaders -----------------------------------------------------------------------------------


def create(cluster: Cluster, name: str, partitions: int) -> None:
    """Partitions whose preferred leaders are all nodes in turn, with all replicas in sync."""
    placed = [
        {"partition_index": n, "broker_ids": [NODES[(n + i) % len(NODES)] for i in range(len(NODES))]}
        for n in range(partitions)
    ]
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": placed}
    with RawClient(cluster.brokers()[0]) as client:
        answer = client.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout": TIMEOUT_MS})
    assert answer["topics"][0]["error_code"] == "none", answer
    wait_in_sync(cluster, name, partitions)


def shown(node: ClusterNode, topic: str) -> list[dict[str, Any]]:
    """The partitions of a topic as a node shows them, in their order."""
    with RawClient(node) as client:
        (row,) = client.ask(METADATA, 1, {"topics": [{"name": topic}]})["topics"]
    return sorted(row["partitions"], key=lambda partition: partition["partition_index"])


def wait_shown(
    cluster: Cluster, topic: str, partitions: int, holds: Callable[[dict[str, Any]], bool], what: str
) -> None:
    """Until every node that runs shows all partitions so."""

    def is_shown(node: ClusterNode) -> bool:
        rows = shown(node, topic)
        return len(rows) == partitions and all(map(holds, rows))

    for node in cluster.brokers():
        wait_until(lambda node=node: is_shown(node), PATIENCE_S, f"{topic}: {what}", POLL_S)


def wait_in_sync(cluster: Cluster, topic: str, partitions: int) -> None:
    wait_shown(
        cluster,
        topic,
        partitions,
        lambda row: row["leader_id"] >= 0 and set(row["isr_nodes"]) == set(NODES),
        "all replicas in sync",
    )


def go_round(cluster: Cluster, topic: str, partitions: int, goes_on: Callable[[], None]) -> None:
    """Every node loses its leaders, once by kill -9 and once by a clean stop, and gets them back.

    `goes_on` returns when the load has made progress; it is asked while the node is away and when it leads again.
    """
    for node_id, end in itertools.product(NODES, (ClusterNode.kill, ClusterNode.stop)):
        node = cluster[node_id]
        end(node)
        wait_shown(
            cluster,
            topic,
            partitions,
            lambda row, n=node_id: row["leader_id"] not in (n, -1),
            "other leaders",
        )
        goes_on()
        node.start()
        wait_in_sync(cluster, topic, partitions)
        elect = cluster.tool(
            "LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions", check=False
        )
        wait_shown(
            cluster,
            topic,
            partitions,
            lambda row: row["leader_id"] == row["replica_nodes"][0],
            f"its preferred leaders\n{elect.stdout}{elect.stderr}",
        )
        goes_on()


def check_equal_logs(cluster: Cluster, topic: str, partitions: int) -> None:
    """Batch by batch and record by record, with offsets, epochs and checksums; only where a batch lies may differ."""
    for partition in range(partitions):
        found: dict[int, list[str]] = {}

        def are_equal(partition: int = partition, found: dict[int, list[str]] = found) -> bool:
            found.update({n: dump(cluster[n].data_dir / f"{topic}-{partition}") for n in NODES})
            return found[1] == found[2] == found[3]

        try:
            wait_until(are_equal, PATIENCE_S, f"{topic}-{partition} to be the same everywhere", POLL_S)
        except TimeoutError as late:
            for node_id in NODES[1:]:
                differ = [pair for pair in zip(found[1], found[node_id], strict=False) if pair[0] != pair[1]]
                late.add_note(
                    f"node 1 and {node_id}: {len(found[1])}, {len(found[node_id])} lines, {differ[:2]}"
                )
            raise


def dump(directory: Path) -> list[str]:
    """What kafka-dump-log says of all segments, without where in a file a batch lies."""
    files = ",".join(str(path) for path in sorted(directory.glob("*.log")))
    text = run_tool("DumpLogSegments", "--files", files, "--print-data-log").stdout
    lines = [line for line in text.splitlines() if line.startswith(("baseOffset:", "|"))]
    return [re.sub(r" position: \d+", "", line) for line in lines]


# ---- the verifiable clients -----------------------------------------------------------------------------------------


class VerifiableProducer:
    """Kafka's, idempotent, in a process of its own; it writes numbers until it is stopped."""

    def __init__(self, front: Front, where: Path, topic: str) -> None:
        self._path = where / "producer.out"
        config = where / "producer.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in PATIENT_PRODUCER.items()))
        command = java_command("VerifiableProducer", log_level="ERROR")
        options = ("--bootstrap-server", front.address, "--topic", topic, "--throughput", "100")
        with self._path.open("wb") as out:
            self._process = subprocess.Popen(
                [*command, *options, "--command-config", str(config)], stdout=out, stderr=subprocess.STDOUT
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self._path.read_text().splitlines(keepends=True)
        documents = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        return [event for event in documents if event["name"] == name]

    def acknowledged(self) -> list[int]:
        return [int(event["value"]) for event in self.events("producer_send_success")]

    def goes_on(self) -> None:
        """Until it has written some more."""
        wanted = len(self.acknowledged()) + 100
        wait_until(lambda: len(self.acknowledged()) >= wanted, PATIENCE_S, "more writes", POLL_S)

    def stop(self) -> None:
        """It sends what it has, and ends."""
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def test_verifiable_clients(cluster: Cluster, front: Front, tmp_path: Path) -> None:
    topic = f"verified-{uuid.uuid4().hex[:8]}"
    create(cluster, topic, len(NODES))
    producer = VerifiableProducer(front, tmp_path, topic)
    consumer = VerifiableConsumer(front, tmp_path, topic, f"of-{topic}")
    try:
        producer.goes_on()
        go_round(cluster, topic, len(NODES), producer.goes_on)
        producer.stop()
        written = producer.acknowledged()
        assert producer.events("producer_send_error") == []
        assert Counter(written) == Counter(range(len(written)))

        def read() -> dict[tuple[int, int], set[int]]:
            """What was at each offset; a group may be given a record again, but never another one there."""
            found: dict[tuple[int, int], set[int]] = {}
            for event in consumer.events("record_data"):
                found.setdefault((event["partition"], event["offset"]), set()).add(int(event["value"]))
            return found

        wait_until(lambda: len(read()) >= len(written), PATIENCE_S, "everything to be read", POLL_S)
        assert Counter(value for values in read().values() for value in values) == Counter(written)
    finally:
        producer.kill()
        consumer.kill()
    check_equal_logs(cluster, topic, len(NODES))


# ---- exactly once ---------------------------------------------------------------------------------------------------


class Copier:
    """TransactionalMessageCopier, started again when a fault has ended it, and the numbers that it is given to copy."""

    def __init__(self, front: Front, where: Path, source: str, target: str) -> None:
        self._front, self._where, self._source, self._target = front, where, source, target
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        settings = {"bootstrap.servers": front.address, "enable.idempotence": True, "log_level": 0}
        self._producer = Producer(settings)
        self.written = 0
        self._command = [
            *java_command("TransactionalMessageCopier", log_level="ERROR"),
            *("--broker-list", front.address, "--input-topic", source, "--input-partition", "0"),
            *("--output-topic", target, "--transaction-size", "20", "--enable-random-aborts"),
            *("--consumer-group", f"of-{target}", "--transactional-id", f"of-{target}"),
            *("--group-mode", "--use-group-metadata"),
        ]

    def copied(self) -> list[int]:
        return committed(self._front, self._target)

    def goes_on(self) -> None:
        """There is more to copy, and some of it is; the rest is under way when this returns."""
        for number in range(self.written, self.written + NUMBERS):
            self._producer.produce(self._source, str(number), partition=0)
        assert self._producer.flush(PATIENCE_S) == 0
        self.written += NUMBERS
        self._wait_copied(len(self.copied()) + 1)

    def finish(self) -> list[int]:
        """Everything that was copied, when it is all."""
        self._wait_copied(self.written)
        return self.copied()

    def _wait_copied(self, count: int) -> None:
        def are_copied() -> bool:
            if self._process is None or self._process.poll() is not None:
                self._start()
            return len(self.copied()) >= count

        try:
            wait_until(are_copied, PATIENCE_S, f"{count} copied numbers", POLL_S)
        except TimeoutError as late:
            for path in sorted(self._where.glob("copier-*.out")):
                late.add_note(f"---- {path.name}\n{path.read_text(errors='replace')[-2000:]}")
            raise

    def _start(self) -> None:
        self._starts += 1
        with (self._where / f"copier-{self._starts}.out").open("wb") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def test_the_transactional_copier(cluster: Cluster, front: Front, tmp_path: Path) -> None:
    source, target = (f"{word}-{uuid.uuid4().hex[:8]}" for word in ("from", "to"))
    for topic in (source, target):
        create(cluster, topic, 1)
    copier = Copier(front, tmp_path, source, target)
    try:
        copier.goes_on()
        go_round(cluster, target, 1, copier.goes_on)
        assert copier.finish() == list(range(copier.written))
    finally:
        copier.kill()
    for topic in (source, target):
        check_equal_logs(cluster, topic, 1)


class Words(WordWorld):
    """Lines and counts on the cluster."""

    def __init__(self, front: Front) -> None:
        self.node = front
        self.words: Counter[str] = Counter()
        self._random = random.Random(1)


def test_streams_exactly_once(cluster: Cluster, front: Front, tmp_path: Path) -> None:
    """Its changelogs and repartition topics have three replicas as well: the brokers' default."""
    for topic, partitions in WORD_TOPICS.items():
        create(cluster, topic, partitions)
    words = Words(front)
    words.write(LINES)
    classes = compile_app(tmp_path / "classes")
    app = WordCountApp(tmp_path / "app", classes, front.address, "wc", protocol="classic")
    try:
        app.start()
        app.wait_running()
        words.check_counts()

        def goes_on() -> None:
            words.write(LINES)
            words.check_counts()

        go_round(cluster, "counts", WORD_TOPICS["counts"], goes_on)
        app.stop()
    finally:
        app.kill()
    for topic, partitions in WORD_TOPICS.items():
        check_equal_logs(cluster, topic, partitions)
