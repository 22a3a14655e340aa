"""confluent-kafka with group.protocol=consumer: groups that share, hand over, come back, and change their protocol.

The broker is a node of its own, for quick groups; and it has the assignor that docs/custom-assignors.md shows.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaError,
    Producer,
)
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.adapters.members import commit_read
from tests.clients.conftest import QUICK_GROUPS, Wait
from tests.interop.ottla_node import OttlaNode

DOCS = Path(__file__).resolve().parents[2] / "docs" / "custom-assignors.md"
SETTINGS: dict[str, object] = {
    "broker.rack": "paris",
    "group.consumer.assignors": "uniform,range,racks.LocalFirst",
    **QUICK_GROUPS,
}
PATIENCE_S = 180.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    where = tmp_path_factory.mktemp("consumer-protocol")
    example = re.search(r"```python\n(\"\"\"racks\.py.*?)```", DOCS.read_text(), re.DOTALL)
    assert example is not None
    (where / "racks.py").write_text(example[1])
    broker = OttlaNode(where / "data", SETTINGS, env={"PYTHONPATH": str(where)})
    with broker:
        yield broker
    assert broker.exit_code == 0
    assert "Traceback" not in broker.log_text()


class Group:
    """Consumers of one group on one topic, polled together."""

    def __init__(self, address: str, in_step: Wait, partitions: int = 6) -> None:
        self.address = address
        self._in_step = in_step
        self.topic = f"t-{uuid.uuid4().hex[:12]}"
        self.name = f"g-{uuid.uuid4().hex[:12]}"
        self.consumers: dict[str, Consumer] = {}
        self.read: list[bytes] = []
        self.admin = AdminClient({"bootstrap.servers": self.address})
        self.create(self.topic, partitions)

    def create(self, topic: str, partitions: int) -> None:
        self.admin.create_topics([NewTopic(topic, partitions)])[topic].result(20)
        self._in_step()

    def start(self, name: str, *topics: str, protocol: str = "consumer", **settings: object) -> Consumer:
        config: dict[str, Any] = {
            "bootstrap.servers": self.address,
            "group.id": self.name,
            "client.id": name,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        if protocol == "classic":
            config |= {
                "partition.assignment.strategy": "cooperative-sticky",
                "heartbeat.interval.ms": 200,
                "session.timeout.ms": 6_000,
            }
        config |= {key.replace("_", "."): value for key, value in settings.items()}
        consumer = Consumer(config)
        consumer.subscribe(list(topics) or [self.topic])
        self.consumers[name] = consumer
        return consumer

    def stop(self, name: str) -> None:
        self.consumers.pop(name).close()

    def commit(self, *names: str) -> None:
        """What these have read, or all."""
        for name in names or self.consumers:
            commit_read(self.consumers[name])

    def poll(self) -> None:
        for consumer in self.consumers.values():
            message = consumer.poll(0.02)
            if message is not None and message.error() is None:
                self.read.append(message.value())
            elif message is not None:
                assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART, message.error()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        end = monotonic() + PATIENCE_S
        while not holds():
            assert monotonic() < end, f"{what}: {self.shares()}"
            self.poll()

    def shares(self) -> dict[str, list[tuple[str, int]]]:
        return {
            name: sorted((p.topic, p.partition) for p in consumer.assignment())
            for name, consumer in self.consumers.items()
        }

    def balanced(self, *counts: int) -> bool:
        """Have the consumers so many partitions, in any order, and none twice?"""
        held = list(self.shares().values())
        every = [p for part in held for p in part]
        return sorted(map(len, held)) == sorted(counts) and len(every) == len(set(every))

    def produce(self, *values: str, topic: str | None = None) -> None:
        producer = Producer({"bootstrap.servers": self.address})
        for value in values:
            producer.produce(topic or self.topic, value.encode())
        assert producer.flush(20) == 0

    def described(self) -> Any:
        return self.admin.describe_consumer_groups([self.name])[self.name].result(20)

    def kind(self) -> ConsumerGroupType:
        listed = self.admin.list_consumer_groups().result(20).valid
        return next(row.type for row in listed if row.group_id == self.name)

    def close(self) -> None:
        for name in list(self.consumers):
            self.stop(name)


@pytest.fixture
def group(address: str, in_step: Wait) -> Iterator[Group]:
    made = Group(address, in_step)
    yield made
    made.close()


@pytest.mark.three_nodes
def test_members_share_the_partitions_and_take_over(group: Group) -> None:
    group.start("a")
    group.until(lambda: group.balanced(6), "one has everything")
    group.start("b")
    group.until(lambda: group.balanced(3, 3), "two share")
    group.start("c")
    group.until(lambda: group.balanced(2, 2, 2), "three share")
    described = group.described()
    assert {member.client_id for member in described.members} == {"a", "b", "c"}
    group.until(lambda: group.described().state == ConsumerGroupState.STABLE, "stable")
    group.stop("b")
    group.until(lambda: group.balanced(3, 3), "two take over")
    group.stop("a")
    group.until(lambda: group.balanced(6), "the last takes over")


@pytest.mark.three_nodes
def test_everything_is_read_once_while_members_come_and_go(group: Group) -> None:
    group.start("a", enable_auto_commit=True)
    wanted = [f"{number}" for number in range(600)]
    for begin in range(0, 600, 100):
        group.produce(*wanted[begin : begin + 100])
        if begin == 200:
            group.start("b", enable_auto_commit=True)
            group.until(lambda: group.balanced(3, 3), "two share")
        if begin == 400:
            group.until(lambda: len(group.read) >= 400, "the first records")
            group.commit()
            group.stop("a")
    group.until(lambda: len(set(group.read)) == 600, "everything is read")
    assert len(group.read) == 600


@pytest.mark.three_nodes
def test_a_static_member_finds_its_partitions_again(group: Group) -> None:
    group.start("a", group_instance_id="one")
    group.start("b", group_instance_id="two")
    group.until(lambda: group.balanced(3, 3), "two share")
    group.until(lambda: group.described().state == ConsumerGroupState.STABLE, "stable")
    had = group.shares()["a"]
    group.stop("a")
    group.start("again", group_instance_id="one")
    group.until(lambda: group.balanced(3, 3), "it is back")
    assert group.shares()["again"] == had


def test_a_static_member_that_does_not_come_back_is_replaced(group: Group) -> None:
    group.start("a", group_instance_id="one")
    group.start("b", group_instance_id="two")
    group.until(lambda: group.balanced(3, 3), "two share")
    group.stop("a")
    group.until(lambda: group.balanced(6), "its session is over")


@pytest.mark.three_nodes
def test_topics_by_regular_expression(group: Group) -> None:
    prefix = f"re-{uuid.uuid4().hex[:8]}"
    group.create(f"{prefix}-one", 2)
    group.create(f"{prefix}-two", 2)
    group.start("a", f"^{prefix}-.*")
    group.until(lambda: group.balanced(4), "both topics")
    group.start("b", f"^{prefix}-.*")
    group.until(lambda: group.balanced(2, 2), "two share")
    group.create(f"{prefix}-three", 2)
    group.until(lambda: group.balanced(3, 3), "the new topic is found")


def test_a_consumer_with_another_subscription(group: Group) -> None:
    other = f"{group.topic}-other"
    group.create(other, 2)
    group.start("a")
    group.start("b", group.topic, other)
    group.until(lambda: group.balanced(4, 4), "the one takes the other topic and less of the first")
    assert {topic for topic, _ in group.shares()["a"]} == {group.topic}


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_the_built_in_assignors(group: Group, assignor: str) -> None:
    group.start("a", group_remote_assignor=assignor)
    group.start("b", group_remote_assignor=assignor)
    group.until(lambda: group.balanced(3, 3), "two share")
    assert group.described().partition_assignor == assignor


def test_an_assignor_written_in_python(group: Group) -> None:
    """The one of the documentation: who is where the partitions are gets all of them."""
    group.start("far", group_remote_assignor="local-first", client_rack="london")
    group.until(lambda: group.balanced(6), "far is better than nobody")
    group.start("near", group_remote_assignor="local-first", client_rack="paris")
    group.until(lambda: len(group.shares()["near"]) == 6, "near has everything")
    assert group.shares()["far"] == []
    assert group.described().partition_assignor == "local-first"
    group.start("beside", group_remote_assignor="local-first", client_rack="paris")
    group.until(lambda: group.balanced(0, 3, 3), "the near ones share")
    group.stop("near")
    group.stop("beside")
    group.until(lambda: group.balanced(6), "far is all there is")


def test_an_assignor_that_the_broker_does_not_have(group: Group) -> None:
    consumer = group.start("a", group_remote_assignor="mine")
    end = monotonic() + PATIENCE_S
    while (message := consumer.poll(0.1)) is None:
        assert monotonic() < end
    assert message.error().code() == KafkaError._FATAL
    assert "assignor" in message.error().str()


@pytest.mark.three_nodes
def test_a_group_is_upgraded_and_downgraded_while_it_reads(group: Group) -> None:
    group.start("old-1", protocol="classic")
    group.start("old-2", protocol="classic")
    group.until(lambda: group.balanced(3, 3), "two classic members")
    group.produce(*(f"{number}" for number in range(60)))
    group.until(lambda: len(set(group.read)) == 60, "they read")
    group.commit()
    assert group.kind() == ConsumerGroupType.CLASSIC
    group.start("new-1")
    group.until(lambda: group.balanced(2, 2, 2), "a new member shares with the classic ones")
    assert group.kind() == ConsumerGroupType.CONSUMER
    group.produce(*(f"{number}" for number in range(60, 120)))
    group.until(lambda: len(set(group.read)) == 120, "all three read")
    for name in ("old-1", "old-2"):
        group.commit(name)
        group.stop(name)
    group.until(lambda: group.balanced(6), "the group is new")
    group.start("old-3", protocol="classic")
    group.until(lambda: group.balanced(3, 3), "a classic member joins again")
    group.produce(*(f"{number}" for number in range(120, 180)))
    group.until(lambda: len(set(group.read)) == 180, "both read")
    group.commit()
    group.stop("new-1")
    group.until(lambda: group.balanced(6), "the classic one has everything")
    assert group.kind() == ConsumerGroupType.CLASSIC
    group.produce(*(f"{number}" for number in range(180, 240)))
    group.until(lambda: len(set(group.read)) == 240, "the classic one reads")
