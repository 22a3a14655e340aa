"""Kafka Streams on Ottla: a word count, exactly once, with the classic protocol and with the streams protocol.

Every count that the application makes is written and read: a word that occurs n times must be counted 1, 2 ... n,
each once, though the application and the broker are killed in between.
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import free_ports, wait_until
from tests.interop.streams.app import WordCountApp, compile_app

pytestmark = pytest.mark.interop

GROUPS = "org.apache.kafka.tools.streams.StreamsGroupCommand"
WORDS = ("letter", "sister", "castle", "trial", "beetle", "hunger", "bridge", "doctor", "river", "window")
COUNT_TIMEOUT_S = 120
PARTITIONS = {"lines": 3, "counts": 2}
# A dead member's tasks are given to the others as soon as the broker lets anybody set.
SETTINGS = {
    "group.streams.min.session.timeout.ms": 1000,
    "group.streams.session.timeout.ms": 6000,
    "group.streams.min.heartbeat.interval.ms": 500,
    "group.streams.heartbeat.interval.ms": 1000,
    "group.streams.initial.rebalance.delay.ms": 500,
}


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_app(tmp_path_factory.mktemp("classes"))


class WordWorld:
    """The broker, the lines so far, and the counts so far."""

    def __init__(self, where: Path) -> None:
        self.node = OttlaNode(where / "data", SETTINGS, port=free_ports(1)[0])
        self.words: Counter[str] = Counter()
        self._random = random.Random(1)

    def client(self) -> dict[str, object]:
        """Where a client of this test finds the broker, and how it gets in."""
        return {"bootstrap.servers": self.node.address}

    def make_topics(self) -> None:
        for topic, count in PARTITIONS.items():
            self.node.tool("TopicCommand", "--create", "--topic", topic, "--partitions", str(count))

    def write(self, lines: int) -> None:
        """Lines of random words, into all partitions."""
        producer = Producer({**self.client(), "enable.idempotence": True})
        for number in range(lines):
            line = self._random.choices(WORDS, k=self._random.randint(1, 6))
            self.words.update(line)
            producer.produce("lines", " ".join(line), partition=number % PARTITIONS["lines"])
        assert producer.flush(30) == 0

    def counted(self, seconds: float = COUNT_TIMEOUT_S) -> dict[str, list[int]]:
        """All counts of each word that are committed, when there are as many as there were words, or more."""
        wanted, found = sum(self.words.values()), 0
        at_end: set[int] = set()
        counts: dict[str, list[int]] = defaultdict(list)
        consumer = Consumer(
            {
                **self.client(),
                "group.id": "reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition("counts", p, 0) for p in range(PARTITIONS["counts"])])
        deadline = time.monotonic() + seconds
        while (found < wanted or len(at_end) < PARTITIONS["counts"]) and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                at_end.add(message.partition())
                continue
            at_end.discard(message.partition())
            counts[message.key().decode()].append(int.from_bytes(message.value(), "big"))
            found += 1
        consumer.close()
        return counts

    def check_counts(self) -> None:
        counts = self.counted()
        assert counts == {word: list(range(1, n + 1)) for word, n in self.words.items()}

    def groups(self, *args: str) -> str:
        return self.node.tool(GROUPS, *args).stdout


@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_words_are_counted_exactly_once(protocol: str, classes: Path, tmp_path: Path) -> None:
    world = WordWorld(tmp_path)
    with world.node as node:
        world.make_topics()
        world.write(200)
        app = WordCountApp(tmp_path / "one", classes, node.address, "wc", protocol=protocol)
        try:
            app.start()
            app.wait_running()
            world.check_counts()
            app.kill()  # in the middle of whatever it does
            world.write(100)
            app.start()
            world.write(100)
            world.check_counts()
            node.kill()
            node.start()
            world.write(100)
            world.check_counts()
            app.stop()
            world.write(50)
            node.restart()
            app.start()
            app.wait_running()
            world.check_counts()
            app.stop()
        finally:
            app.kill()


def test_two_instances_share_the_tasks_and_one_takes_over(classes: Path, tmp_path: Path) -> None:
    world = WordWorld(tmp_path)
    with world.node as node:
        world.make_topics()
        apps = [
            WordCountApp(tmp_path / name, classes, node.address, "wc", protocol="streams", threads=1)
            for name in ("one", "two")
        ]
        try:
            for app in apps:
                app.start()
            wait_until(lambda: "Stable" in _state(world), 60, "the group to settle")
            wait_until(lambda: _tasks(world) == [3, 3], 60, "the tasks to be shared")
            world.write(150)
            world.check_counts()
            apps[0].kill()
            world.write(150)
            world.check_counts()
            assert _tasks(world) == [6]
        finally:
            for app in apps:
                app.kill()


def _state(world: WordWorld) -> str:
    return world.groups("--list", "--state")


def _tasks(world: WordWorld) -> list[int]:
    """How many active tasks each member has."""
    found = []
    for line in world.groups("--describe", "--group", "wc", "--members").splitlines():
        if "ACTIVE:" in line:
            active = line.partition("ACTIVE:")[2].partition("STANDBY")[0]
            found.append(sum(part.count(",") + 1 for part in active.split(";") if "[" in part))
    return found


def test_the_streams_groups_tool(classes: Path, tmp_path: Path) -> None:
    world = WordWorld(tmp_path)
    with world.node as node:
        world.make_topics()
        world.write(60)
        app = WordCountApp(tmp_path / "one", classes, node.address, "wc", protocol="streams")
        try:
            app.start()
            app.wait_running()
            world.check_counts()
            assert "wc" in world.groups("--list").split()
            assert "Stable" in world.groups("--describe", "--group", "wc", "--state")
            assert "streams" in world.groups("--describe", "--group", "wc", "--members", "--verbose")
            offsets = world.groups("--describe", "--group", "wc", "--verbose")
            assert "lines" in offsets
            assert "wc-words-repartition" in offsets
            refused = node.tool(GROUPS, "--delete", "--group", "wc", check=False)
            assert "not empty" in (refused.stdout + refused.stderr).lower()
            app.stop()
            wait_until(lambda: "Empty" in _state(world), 30, "the group to be empty")
            world.groups(
                *("--reset-offsets", "--group", "wc", "--to-earliest", "--input-topic", "lines", "--execute")
            )
            deleted = world.groups("--delete", "--group", "wc")
            assert "successful" in deleted.lower(), deleted
            topics = node.tool("TopicCommand", "--list").stdout.split()
            assert "wc" not in world.groups("--list").split()
            assert "lines" in topics
        finally:
            app.kill()
