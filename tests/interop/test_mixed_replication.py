"""Partitions with replicas on Apache and Ottla nodes: each kind leads the other and follows it, and takes over from it.

Three nodes, all of them brokers and voters, two of one kind and one of the other, with three replicas of everything and
min.insync.replicas 2. Under load every node in turn is killed or stopped, loses its leaders to the others, comes back,
catches up and is made leader again; so in the end every node has led followers of both kinds. Kafka's own verifiable
clients, its transactional copier and a Streams application run through all of it, lose nothing and have nothing twice,
and the logs of all three are equal, as kafka-dump-log shows them. A leader that dies with records that nobody else has
cuts them off when it follows a leader of the other kind.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.interop.apache import java_command, run_tool
from tests.interop.cluster import Cluster, ClusterNode
from tests.interop.process import wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.entities import decode_response
from tests.interop.streams.app import WordCountApp, compile_app
from tests.interop.test_java_groups import VerifiableConsumer, committed
from tests.interop.test_streams import PARTITIONS as WORD_TOPICS
from tests.interop.test_streams import WordWorld
from tests.support.raw_client import (
    CREATE_TOPICS,
    ELECT_LEADERS,
    METADATA,
    PRODUCE,
    TIMEOUT_MS,
    RawClient,
    produce_frame,
)

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
# What a leader acknowledges for itself alone.
TAIL = 20
# A killed broker leads for nine seconds more where the controller is Apache's, and a Streams application ends for good
# if a transaction of its own ran into its ten seconds meanwhile (INVALID_TXN_STATE, from either kind of coordinator).
PATIENT_APP = {"transaction.timeout.ms": "60000"}
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


def create(cluster: Cluster, name: str, partitions: int, first: int = 0) -> None:
    """Partitions whose preferred leaders are all nodes in turn, from the `first`, with all replicas in sync."""
    placed = [
        {"partition_index": n, "broker_ids": [NODES[(first + n + i) % len(NODES)] for i in range(len(NODES))]}
        for n in range(partitions)
    ]
    # The raw client's records are years old: a slow run would meet with the retention of a week.
    kept = [{"name": "retention.ms", "value": "-1"}]
    topic = {
        "name": name,
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": placed,
        "configs": kept,
    }
    with RawClient(cluster.brokers()[0]) as client:
        answer = client.ask(CREATE_TOPICS, 7, {"topics": [topic], "timeout": TIMEOUT_MS})
    assert answer["topics"][0]["error_code"] == "none", answer
    wait_in_sync(cluster, {name: partitions})


def shown(node: ClusterNode, topic: str) -> list[dict[str, Any]]:
    """The partitions of a topic as a node shows them, in their order."""
    with RawClient(node) as client:
        (row,) = client.ask(METADATA, 1, {"topics": [{"name": topic}]})["topics"]
    return sorted(row["partitions"], key=lambda partition: partition["partition_index"])


def wait_shown(
    cluster: Cluster, topics: Mapping[str, int], holds: Callable[[dict[str, Any]], bool], what: str
) -> None:
    """Until every node that runs shows all partitions so."""

    def is_shown(node: ClusterNode, topic: str, partitions: int) -> bool:
        rows = shown(node, topic)
        return len(rows) == partitions and all(map(holds, rows))

    for node, (topic, partitions) in itertools.product(cluster.brokers(), topics.items()):
        wait_until(
            lambda asked=(node, topic, partitions): is_shown(*asked), PATIENCE_S, f"{topic}: {what}", POLL_S
        )


def wait_in_sync(cluster: Cluster, topics: Mapping[str, int]) -> None:
    wait_shown(
        cluster,
        topics,
        lambda row: row["leader_id"] >= 0 and set(row["isr_nodes"]) == set(NODES),
        "all replicas in sync",
    )


def wait_other_leaders(cluster: Cluster, topics: Mapping[str, int], gone: int) -> None:
    wait_shown(cluster, topics, lambda row: row["leader_id"] not in (gone, -1), f"leaders without {gone}")


def elect_preferred(cluster: Cluster, topics: Mapping[str, int]) -> None:
    """Every partition is led by its first replica."""
    body = {"election_type": 0, "topic_partitions": None, "timeout": TIMEOUT_MS}
    with RawClient(cluster.brokers()[0]) as client:
        answer = client.ask(ELECT_LEADERS, 2, body)
    assert answer["error_code"] == "none", answer
    wait_shown(
        cluster,
        topics,
        lambda row: row["leader_id"] == row["replica_nodes"][0],
        f"preferred leaders\n{answer}",
    )


def go_round(cluster: Cluster, topics: Mapping[str, int], goes_on: Callable[[], None]) -> None:
    """Every node loses its leaders, once by kill -9 and once by a clean stop, and gets them back.

    `goes_on` returns when the load has made progress; it is asked while the node is away and when it leads again.
    """
    for end, node_id in itertools.product((ClusterNode.kill, ClusterNode.stop), NODES):
        node = cluster[node_id]
        end(node)
        wait_other_leaders(cluster, topics, node_id)
        goes_on()
        node.start()
        wait_in_sync(cluster, topics)
        elect_preferred(cluster, topics)
        goes_on()


def stored(node: ClusterNode, topic: str, partition: int) -> list[Path]:
    return sorted((node.data_dir / f"{topic}-{partition}").glob("*.log"))


def check_equal_logs(cluster: Cluster, topics: Mapping[str, int]) -> None:
    """Batch by batch and record by record, with offsets, epochs and checksums; only where a batch lies may differ.

    Nothing is written any more, so everything comes to be below the high watermark of all.
    """
    parts = [(topic, n) for topic, count in topics.items() for n in range(count)]

    def content(node_id: int, topic: str, partition: int) -> bytes:
        return b"".join(path.read_bytes() for path in stored(cluster[node_id], topic, partition))

    for topic, n in parts:
        wait_until(
            lambda topic=topic, n=n: len({content(node_id, topic, n) for node_id in NODES}) == 1,
            PATIENCE_S,
            f"{topic}-{n} to be the same everywhere",
            POLL_S,
        )
    wait_in_sync(cluster, topics)
    files = {
        (node_id, topic, n): stored(cluster[node_id], topic, n) for node_id in NODES for topic, n in parts
    }
    dumped = dump([path for paths in files.values() for path in paths])
    for topic, n in parts:
        first, *others = (
            [line for path in files[node_id, topic, n] for line in dumped[path]] for node_id in NODES
        )
        assert first, f"{topic}-{n}"
        assert not [line for line in first if "isvalid: false" in line]
        for lines in others:
            assert lines == first, f"{topic}-{n}"


def dump(files: list[Path]) -> dict[Path, list[str]]:
    """What kafka-dump-log says of each, without where in a file a batch lies."""
    text = run_tool("DumpLogSegments", "--files", ",".join(map(str, files)), "--print-data-log").stdout
    found: dict[Path, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("Dumping "):
            lines = found.setdefault(Path(line.removeprefix("Dumping ")), [])
        elif line.startswith(("baseOffset:", "|")):
            lines.append(re.sub(r" position: \d+", "", line))
    return found


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


def check_verified(producer: VerifiableProducer, consumer: VerifiableConsumer) -> None:
    """Every write is acknowledged once, and read with one value at one offset."""
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


class Words(WordWorld):
    """Lines and counts on the cluster."""

    def __init__(self, front: Front) -> None:
        self.node = front
        self.words: Counter[str] = Counter()
        self._random = random.Random(1)

    def goes_on(self) -> None:
        self.write(LINES)
        assert self.counted(PATIENCE_S) == self.expected()

    def expected(self) -> dict[str, list[int]]:
        return {word: list(range(1, count + 1)) for word, count in self.words.items()}


# ---- all of it ------------------------------------------------------------------------------------------------------


def test_leadership_goes_round_under_load(cluster: Cluster, front: Front, tmp_path: Path) -> None:
    """The changelogs and repartition topics of Streams have three replicas as well: the brokers' default."""
    topics = {"verified": len(NODES), "from": 1, "to": 1, **WORD_TOPICS}
    for first, (topic, partitions) in enumerate(topics.items()):
        create(cluster, topic, partitions, first)
    producer = VerifiableProducer(front, tmp_path, "verified")
    consumer = VerifiableConsumer(front, tmp_path, "verified", "of-verified")
    copier = Copier(front, tmp_path, "from", "to")
    words = Words(front)
    app = WordCountApp(
        tmp_path / "app",
        compile_app(tmp_path / "classes"),
        front.address,
        "wc",
        protocol="classic",
        client=PATIENT_APP,
    )

    def goes_on() -> None:
        for load in (producer, copier, words):
            load.goes_on()
        app.check()

    try:
        app.start()
        app.wait_running()
        goes_on()
        go_round(cluster, topics, goes_on)
        producer.stop()
        check_verified(producer, consumer)
        assert copier.finish() == list(range(copier.written))
        app.stop()
        assert words.counted(PATIENCE_S) == words.expected()
    finally:
        producer.kill()
        consumer.kill()
        copier.kill()
        app.kill()
    check_equal_logs(cluster, topics)


@pytest.mark.parametrize(("dies", "takes_over"), [(1, 2), (2, 1)])
def test_a_dead_leaders_own_tail_is_cut(cluster: Cluster, dies: int, takes_over: int) -> None:
    """The others stand still while it acknowledges for itself, so only it has the end; the other kind leads on."""
    topic = f"tail-{dies}"
    create(cluster, topic, 1, NODES.index(dies))
    with RawClient(cluster[dies]) as client:
        client.write(topic, 0, [b"common"])
    others = [node for node in cluster.nodes.values() if node.node_id != dies]
    for node in others:
        os.kill(node.pid, signal.SIGSTOP)
    try:
        with RawClient(cluster[dies]) as client:
            # A fetch of each that was under way may still take the first of these away.
            for number in range(TAIL):
                client.send(produce_frame(topic, 0, Batch([Rec(b"lost-%d" % number)]).encode(), acks=1))
                answer = decode_response(PRODUCE, 9, client.receive())
                assert answer["responses"][0]["partition_responses"][0]["error_code"] == "none", answer
        cluster[dies].kill()
    finally:
        for node in others:
            os.kill(node.pid, signal.SIGCONT)
    (tail,) = stored(cluster[dies], topic, 0)
    last = b"lost-%d" % (TAIL - 1)
    assert last in tail.read_bytes()
    wait_other_leaders(cluster, {topic: 1}, dies)
    (third,) = set(NODES) - {dies, takes_over}
    cluster.lead(topic, [takes_over, third, dies])
    with RawClient(cluster[takes_over]) as client:
        client.write(topic, 0, [b"instead"])
    cluster[dies].start()
    wait_in_sync(cluster, {topic: 1})
    check_equal_logs(cluster, {topic: 1})
    content = tail.read_bytes()
    assert b"instead" in content
    assert last not in content
    with RawClient(cluster[takes_over]) as client:
        values = client.read(topic)
    assert (values[0], values[-1]) == (b"common", b"instead")
