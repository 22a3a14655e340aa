"""Classic groups with unmodified clients: they share, take over, come back, and go on after a restart.

The broker is a node of its own, on which the first members wait only a little for each other.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.adapters.members import MEMBERS, PATIENCE_S, Librdkafka, Member, wait_settled
from tests.clients.conftest import Wait
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import free_ports, wait_until

PARTITIONS = 6
SETTINGS: dict[str, object] = {"group.initial.rebalance.delay.ms": 100}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    broker = OttlaNode(tmp_path_factory.mktemp("classic") / "data", SETTINGS, port=free_ports(1)[0])
    with broker:
        yield broker
    assert broker.exit_code == 0
    assert "Traceback" not in broker.log_text()


@pytest.fixture(params=MEMBERS, ids=lambda member: member.name)
def kind(request: pytest.FixtureRequest) -> type[Member]:
    """Each client in turn."""
    chosen: type[Member] = request.param
    return chosen


class World:
    """A topic and a group of its own."""

    def __init__(self, address: str, in_step: Wait) -> None:
        self.address = address
        self.topic = f"t-{uuid.uuid4().hex[:12]}"
        self.group = f"g-{uuid.uuid4().hex[:12]}"
        self.admin = AdminClient({"bootstrap.servers": self.address})
        self.admin.create_topics([NewTopic(self.topic, PARTITIONS)])[self.topic].result(20)
        in_step()
        self.written = 0

    def write(self, count: int) -> None:
        """Numbers, spread over the partitions, and acknowledged."""
        producer = Producer({"bootstrap.servers": self.address})
        for number in range(self.written, self.written + count):
            producer.produce(self.topic, b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(PATIENCE_S) == 0
        self.written += count

    def member(self, kind: type[Member], **options: object) -> Member:
        return kind(self.address, self.group, self.topic, **options)  # type: ignore[arg-type]

    def wait_read(self, members: list[Member]) -> None:
        """Everything that was written has come to somebody."""
        wait_until(lambda: self.read(members) >= self.values(), PATIENCE_S, f"{self.written} records to come")

    def read(self, members: list[Member]) -> set[bytes]:
        return {record.value for member in members for record in list(member.seen)}

    def values(self) -> set[bytes]:
        return {b"%d" % number for number in range(self.written)}

    def state(self) -> ConsumerGroupState:
        described = self.admin.describe_consumer_groups([self.group])[self.group].result(20)
        state: ConsumerGroupState = described.state
        return state

    def committed(self) -> dict[int, int]:
        asked = [ConsumerGroupTopicPartitions(self.group)]
        found = self.admin.list_consumer_group_offsets(asked)[self.group].result(20)
        return {place.partition: place.offset for place in found.topic_partitions}

    def owners(self) -> dict[str, str]:
        """By instance id, the id of the member that it is now."""
        described = self.admin.describe_consumer_groups([self.group])[self.group].result(20)
        return {member.group_instance_id: member.member_id for member in described.members}


@pytest.fixture
def world(address: str, in_step: Wait) -> World:
    return World(address, in_step)


@pytest.mark.three_nodes
def test_members_share_the_partitions(world: World, kind: type[Member]) -> None:
    world.write(60)
    with world.member(kind) as a, world.member(kind) as b, world.member(kind) as c:
        members = [a, b, c]
        wait_settled(members, PARTITIONS)
        world.write(60)
        world.wait_read(members)
        assert world.state() == ConsumerGroupState.STABLE


@pytest.mark.three_nodes
def test_the_others_take_over_when_one_leaves(world: World, kind: type[Member]) -> None:
    with world.member(kind) as a, world.member(kind) as b:
        wait_settled([a, b], PARTITIONS)
        b.close()
        wait_settled([a], PARTITIONS)
        world.write(12)
        world.wait_read([a])
    wait_until(lambda: world.state() == ConsumerGroupState.EMPTY, PATIENCE_S, "the group to be empty")


@pytest.mark.three_nodes
def test_what_was_committed_is_not_read_again(world: World, kind: type[Member]) -> None:
    world.write(30)
    with world.member(kind) as first:
        world.wait_read([first])
        first.commit()
    assert world.committed() == dict.fromkeys(range(PARTITIONS), 5)
    world.write(6)
    with world.member(kind) as second:
        wait_until(lambda: len(second.seen) >= 6, PATIENCE_S, "what came since to be read")
        assert {int(record.value) for record in second.seen} == set(range(30, 36))


@pytest.mark.three_nodes
def test_clients_of_all_kinds_share_a_group(world: World) -> None:
    world.write(30)
    members = [world.member(kind) for kind in MEMBERS]
    try:
        wait_settled(members, PARTITIONS)
        world.write(30)
        world.wait_read(members)
    finally:
        for member in members:
            member.close()


def test_an_instance_that_comes_back_keeps_its_partitions(world: World, kind: type[Member]) -> None:
    a = world.member(kind, instance="a", session_ms=45_000)
    with world.member(kind, instance="b", session_ms=45_000) as b:
        wait_settled([a, b], PARTITIONS)
        before, others, owners = a.assigned, b.assigned, world.owners()
        a.close()
        with world.member(kind, instance="a", session_ms=45_000) as back:
            wait_until(
                lambda: back.assigned == before, PATIENCE_S, "the instance to have its partitions again"
            )
            assert b.assigned == others, "nothing changed for the other"
            now = world.owners()
            assert now["b"] == owners["b"]
            assert now["a"] != owners["a"]
            world.write(12)
            world.wait_read([b, back])


def test_an_instance_that_is_there_twice_is_fenced(world: World) -> None:
    with Librdkafka(world.address, world.group, world.topic, instance="a") as first:
        wait_settled([first], PARTITIONS)
        with Librdkafka(world.address, world.group, world.topic, instance="a") as second:
            wait_settled([second], PARTITIONS)
            wait_until(lambda: bool(first.errors), PATIENCE_S, "the first to be told")
            assert first.errors[0].code() == KafkaError._FATAL
            assert "fenced" in first.errors[0].str()
            assert not second.errors


@pytest.mark.three_nodes
def test_cooperative_members_keep_what_they_need_not_give(world: World) -> None:
    settings = {"partition.assignment.strategy": "cooperative-sticky"}
    with Librdkafka(world.address, world.group, world.topic, settings=settings) as a:
        wait_settled([a], PARTITIONS)
        with Librdkafka(world.address, world.group, world.topic, settings=settings) as b:
            wait_settled([a, b], PARTITIONS)
            revoked = [share for what, share in a.changes if what == "revoked"]
            assert revoked == [b.assigned], "only what the other got was taken away"
            assert len(a.assigned) == len(b.assigned) == PARTITIONS // 2
            world.write(12)
            world.wait_read([a, b])


def test_a_member_that_dies_is_replaced_after_its_session(world: World) -> None:
    code = (
        "import sys, confluent_kafka as c; k = c.Consumer({'bootstrap.servers': sys.argv[1], 'group.id': sys.argv[2],"
        " 'session.timeout.ms': 6000, 'heartbeat.interval.ms': 500}); k.subscribe([sys.argv[3]])\n"
        "while True:\n k.poll(0.1); print(len(k.assignment()), flush=True)"
    )
    with world.member(Librdkafka) as alive:
        wait_settled([alive], PARTITIONS)
        doomed = subprocess.Popen(
            [sys.executable, "-c", code, world.address, world.group, world.topic],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert doomed.stdout is not None
            next(line for line in doomed.stdout if line.strip() == str(PARTITIONS // 2))
        finally:
            doomed.kill()
            doomed.communicate()
        wait_settled([alive], PARTITIONS)


def test_a_group_goes_on_after_the_broker_was_restarted(
    world: World, node: OttlaNode, kind: type[Member]
) -> None:
    world.write(30)
    with world.member(kind, session_ms=45_000) as a, world.member(kind, session_ms=45_000) as b:
        wait_settled([a, b], PARTITIONS)
        world.wait_read([a, b])
        a.commit()
        b.commit()
        node.restart()
        world.write(30)
        world.wait_read([a, b])
        a.commit()
        b.commit()
    assert world.committed() == dict.fromkeys(range(PARTITIONS), 10)


@pytest.mark.three_nodes
def test_a_group_is_deleted_when_it_is_empty(world: World, kind: type[Member]) -> None:
    with world.member(kind) as member:
        wait_settled([member], PARTITIONS)
        with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
            world.admin.delete_consumer_groups([world.group])[world.group].result(20)
    wait_until(lambda: world.state() == ConsumerGroupState.EMPTY, PATIENCE_S, "the group to be empty")
    world.admin.delete_consumer_groups([world.group])[world.group].result(20)


@pytest.mark.three_nodes
def test_offsets_reset_by_an_administrator_count(world: World) -> None:
    world.write(30)
    with world.member(Librdkafka) as member:
        world.wait_read([member])
        member.commit()
    wait_until(lambda: world.state() == ConsumerGroupState.EMPTY, PATIENCE_S, "the group to be empty")
    back = [TopicPartition(world.topic, partition, 3) for partition in range(PARTITIONS)]
    altered = world.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(world.group, back)])
    altered[world.group].result(20)
    with world.member(Librdkafka) as member:
        wait_until(lambda: len(member.seen) >= 12, PATIENCE_S, "the last two of each partition")
        assert {record.offset for record in member.seen} == {3, 4}
