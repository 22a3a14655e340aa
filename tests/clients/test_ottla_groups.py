"""Ottla's consumer in groups: with others of its kind, and beside members of librdkafka and kafka-python."""

import asyncio
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import confluent_kafka as ck
import kafka
import pytest
from tests.clients.adapters.model import PATIENCE_S, Patience
from tests.clients.conftest import Wait

from ottla.client import (
    Admin,
    AsyncConsumer,
    Consumer,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    RebalanceListener,
    TopicPartition,
)
from ottla.client.errors import CommitFailed, NoOffsetForPartition, StateError, Wakeup
from ottla.model.errors import ErrorCode, KafkaError
from ottla.testing.broker import Broker

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "50",
    "offsets.topic.num.partitions": "4",
}
PARTITIONS = 6
BROKERS = ["broker"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture
def servers(address: str) -> str:
    return address


@pytest.fixture
def topic(servers: str, in_step: Wait) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(bootstrap_servers=servers) as admin:
        created = admin.create_topics([NewTopic(name, PARTITIONS)])[name]
        assert not isinstance(created, KafkaError), created
    in_step()
    return name


class Ours:
    """One of our members, with what it was told and what it read."""

    def __init__(self, servers: str, group: str, topic: str, **settings: Any) -> None:
        defaults: dict[str, Any] = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 50}
        self.consumer = Consumer(bootstrap_servers=servers, group_id=group, **{**defaults, **settings})
        self.heard: list[tuple[str, int]] = []
        self.values: list[bytes | None] = []
        member = self

        class Listener(RebalanceListener):
            def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
                member.heard.append(("assigned", len(partitions)))

            def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
                member.heard.append(("revoked", len(partitions)))

            def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
                member.heard.append(("lost", len(partitions)))

        self.consumer.subscribe([topic], listener=Listener())

    def poll(self) -> None:
        for records in self.consumer.poll(20).values():
            self.values += [record.value for record in records]

    def partitions(self) -> set[int]:
        return {tp.partition for tp in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


class Librdkafka:
    """One of librdkafka's."""

    def __init__(self, servers: str, group: str, topic: str, **settings: Any) -> None:
        given = {key.replace("_", "."): value for key, value in settings.items()}
        if given.get("group.protocol") != "consumer":
            given.setdefault("heartbeat.interval.ms", 100)
        self.consumer = ck.Consumer(
            {"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest", **given}
        )
        self.values: list[bytes | None] = []
        self.consumer.subscribe([topic])

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        while message is not None:
            assert message.error() is None, message.error()
            self.values.append(message.value())
            message = self.consumer.poll(0)

    def partitions(self) -> set[int]:
        return {tp.partition for tp in self.consumer.assignment()}

    def close(self) -> None:
        self.consumer.close()


class KafkaPython:
    """One of kafka-python's, in a thread of its own: a poll too short for a rebalance begins it anew."""

    def __init__(self, servers: str, group: str, topic: str, **settings: Any) -> None:
        from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        strategy = {"sticky": StickyPartitionAssignor}[settings.pop("partition_assignment_strategy")]
        self.consumer = kafka.KafkaConsumer(
            bootstrap_servers=servers,
            group_id=group,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=100,
            partition_assignment_strategy=[strategy],
            **settings,
        )
        self.consumer.subscribe([topic])
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka-python member")
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            self.consumer.poll(1_000)
        self.consumer.close()

    def poll(self) -> None:
        """It polls by itself: only let it."""
        self._over.wait(0.02)

    def partitions(self) -> set[int]:
        return {tp.partition for tp in self.consumer.assignment()}

    def close(self) -> None:
        self._over.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def poll_until(holds: Callable[[], bool], *members: Any, what: str = "the group settles") -> None:
    patience = Patience(what)
    while not holds():
        patience.check([sorted(member.partitions()) for member in members])
        for member in members:
            member.poll()


def is_shared(*members: Any) -> bool:
    """Every partition has one owner, and nobody has two more than anybody else."""
    held = [member.partitions() for member in members]
    sizes = [len(partitions) for partitions in held]
    return sum(sizes) == PARTITIONS == len(set().union(*held)) and max(sizes) - min(sizes) <= 1


def is_stable(admin: Admin, group: str, members: int) -> bool:
    described = admin.describe_groups([group])[group]
    return not isinstance(described, KafkaError) and (described.state, len(described.members)) == (
        "Stable",
        members,
    )


def produce(servers: str, topic: str, count: int, start: int = 0) -> list[bytes]:
    values = [b"%d" % number for number in range(start, start + count)]
    with Producer(bootstrap_servers=servers) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value, partition=number % PARTITIONS)
    return values


EVERY_WAY = [
    {"partition_assignment_strategy": "range"},
    {"partition_assignment_strategy": "roundrobin"},
    {"partition_assignment_strategy": "sticky"},
    {"partition_assignment_strategy": "cooperative-sticky"},
    {"group_protocol": "consumer"},
    {"group_protocol": "consumer", "group_remote_assignor": "range"},
]


def way_id(way: dict[str, str]) -> str:
    return "-".join(way.values())


@pytest.mark.three_nodes
@pytest.mark.parametrize("way", EVERY_WAY, ids=way_id)
def test_members_share_a_topic_come_and_go(servers: str, topic: str, way: dict[str, str]) -> None:
    group = f"g-{topic}"
    expected = produce(servers, topic, 60)
    with ExitStack() as stack:
        members = []
        for _ in range(3):
            member = Ours(servers, group, topic, **way)
            stack.callback(member.close)
            members.append(member)
            poll_until(lambda: is_shared(*members), *members)
        read = lambda: sum(len(member.values) for member in members)  # noqa: E731
        poll_until(lambda: read() >= 60, *members, what="all is read")
        gone = members.pop(1)
        gone.close()
        poll_until(lambda: is_shared(*members), *members)
        expected += produce(servers, topic, 60, start=60)
        got = lambda: Counter(v for m in [*members, gone] for v in m.values)  # noqa: E731
        poll_until(lambda: len(got()) >= 120, *members, what="the rest is read")
        # Everything that was read before partitions changed hands had been committed by then.
        assert got() == Counter(expected)


@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize(
    "way",
    [
        {"partition_assignment_strategy": "range"},
        {"partition_assignment_strategy": "roundrobin"},
        {"partition_assignment_strategy": "cooperative-sticky"},
        {"group_protocol": "consumer"},
    ],
    ids=way_id,
)
def test_members_of_librdkafka_and_ours_in_one_group(
    servers: str, topic: str, way: dict[str, str], first: str
) -> None:
    """Whoever comes first leads a classic group: both kinds of leader are tried."""
    group = f"g-{topic}"
    expected = produce(servers, topic, 60)
    kinds: list[Any] = [Ours, Librdkafka, Ours] if first == "ours" else [Librdkafka, Ours, Librdkafka]
    with ExitStack() as stack:
        members = []
        for kind in kinds:
            member = kind(servers, group, topic, **way)
            stack.callback(member.close)
            members.append(member)
            poll_until(lambda: is_shared(*members), *members)
        got = lambda: Counter(v for m in members for v in m.values)  # noqa: E731
        poll_until(lambda: len(got()) == 60, *members, what="all is read")
        assert set(got()) == set(expected)


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_the_sticky_assignor_beside_kafka_python(servers: str, topic: str, first: str) -> None:
    group = f"g-{topic}"
    kinds: list[Any] = [Ours, KafkaPython] if first == "ours" else [KafkaPython, Ours]
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(bootstrap_servers=servers))
        members: list[Any] = []
        for kind in kinds:
            member = kind(servers, group, topic, partition_assignment_strategy="sticky")
            stack.callback(member.close)
            members.append(member)
            # Whoever is there first leads. (kafka-python may lead before it knows the topic, and assign nothing:
            # so not what it has is waited for, but that it is there.)
            poll_until(lambda: is_stable(admin, group, len(members)), *members)
        poll_until(lambda: is_shared(*members), *members)
        ours = next(member for member in members if isinstance(member, Ours))
        before = ours.partitions()
        third = Ours(servers, group, topic, partition_assignment_strategy="sticky")
        stack.callback(third.close)
        poll_until(lambda: is_shared(*members, third), *members, third)
        if first == "ours":
            # Sticky: it got nothing new for a third member's sake. (What kafka-python says of its own past is in
            # a format of its own: no other client's leader can read it.)
            assert ours.partitions() <= before


@pytest.mark.three_nodes
def test_a_classic_member_and_one_of_the_new_protocol_in_one_group(servers: str, topic: str) -> None:
    group = f"g-{topic}"
    with ExitStack() as stack:
        classic = Ours(servers, group, topic, partition_assignment_strategy="range")
        stack.callback(classic.close)
        poll_until(lambda: is_shared(classic), classic)
        new = Ours(servers, group, topic, group_protocol="consumer")
        stack.callback(new.close)
        poll_until(lambda: is_shared(classic, new), classic, new)


@pytest.mark.three_nodes
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_static_member_comes_back_to_what_it_had(servers: str, topic: str, protocol: str) -> None:
    group = f"g-{topic}"
    with ExitStack() as stack:
        other = Ours(servers, group, topic, group_protocol=protocol, group_instance_id="b")
        stack.callback(other.close)
        static = Ours(servers, group, topic, group_protocol=protocol, group_instance_id="a")
        poll_until(lambda: is_shared(static, other), static, other)
        had, heard = static.partitions(), len(other.heard)
        static.close()
        again = Ours(servers, group, topic, group_protocol=protocol, group_instance_id="a")
        stack.callback(again.close)
        poll_until(lambda: again.partitions() == had, again, other)
        assert is_shared(again, other)
        assert len(other.heard) == heard, "the other member was bothered"


@pytest.mark.three_nodes
def test_commits_positions_and_replay(servers: str, topic: str) -> None:
    produce(servers, topic, 12)
    tp = TopicPartition(topic, 0)
    settings: dict[str, Any] = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
    with Consumer(bootstrap_servers=servers, group_id=f"g-{topic}", **settings) as consumer:
        consumer.subscribe([topic])
        got: list[bytes | None] = []
        patience = Patience("reading")
        while len(got) < 12:
            patience.check(got)
            got += [r.value for records in consumer.poll(500).values() for r in records]
        assert consumer.committed([tp]) == {tp: None}
        consumer.commit({tp: OffsetAndMetadata(1, "half way")})
        assert consumer.committed([tp]) == {tp: OffsetAndMetadata(1, "half way")}
        outcomes: list[KafkaError | None] = []
        consumer.commit_async(callback=lambda offsets, error: outcomes.append(error))
        while not outcomes:
            patience.check(outcomes)
            consumer.poll(50)
        assert outcomes == [None]
        assert consumer.committed([tp])[tp] == OffsetAndMetadata(2, "", 0)
        consumer.seek(tp, 1)
        assert [r.value for r in consumer.poll(5000)[tp]] == [b"6"]
        with pytest.raises(KafkaError, match="OFFSET_METADATA_TOO_LARGE"):
            consumer.commit({tp: OffsetAndMetadata(1, "x" * 5000)})
    with Consumer(bootstrap_servers=servers, group_id=f"g-{topic}", **settings) as consumer:
        consumer.assign([tp])
        assert consumer.position(tp) == 2, "an assignment by hand begins where the group stopped"


def test_only_what_was_handed_out_counts_as_read(servers: str, topic: str) -> None:
    """Whoever breaks out of a loop over records reads the next one later, not the one after a batch."""
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=0)
    seen: list[bytes | None] = []
    for _ in range(2):
        with Consumer(
            bootstrap_servers=servers, group_id=f"g-{topic}", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe([topic])
            for record in consumer:
                seen.append(record.value)
                if len(seen) % 3 == 0:
                    break
    assert seen == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_pattern_follows_new_topics(servers: str, topic: str, protocol: str) -> None:
    name = f"{topic}-{protocol}"
    with Admin(bootstrap_servers=servers) as admin, ExitStack() as stack:
        admin.create_topics([NewTopic(f"{name}-a", 1)])
        consumer = stack.enter_context(
            Consumer(
                bootstrap_servers=servers,
                group_id=f"g-{name}",
                group_protocol=protocol,
                heartbeat_interval_ms=50,
                metadata_max_age_ms=100,
            )
        )
        consumer.subscribe(pattern=f"{name}-.*")
        patience = Patience("following the topics")
        while {tp.topic for tp in consumer.assignment()} != {f"{name}-a"}:
            patience.check(consumer.assignment())
            consumer.poll(50)
        admin.create_topics([NewTopic(f"{name}-b", 2)])
        while len(consumer.assignment()) != 3:
            patience.check(consumer.assignment())
            consumer.poll(50)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_whoever_does_not_poll_loses_its_partitions(servers: str, topic: str, protocol: str) -> None:
    group = f"g-{topic}-{protocol}"
    with ExitStack() as stack:
        slow = Ours(servers, group, topic, group_protocol=protocol, max_poll_interval_ms=300)
        stack.callback(slow.close)
        poll_until(lambda: is_shared(slow), slow)
        quick = Ours(servers, group, topic, group_protocol=protocol)
        stack.callback(quick.close)
        poll_until(lambda: is_shared(quick), quick, what="the slow one is thrown out")
        with pytest.raises(CommitFailed):
            slow.consumer.commit({TopicPartition(topic, 0): 1})
        poll_until(lambda: is_shared(slow, quick), slow, quick)
        assert ("lost", PARTITIONS) in slow.heard


def test_without_a_position_and_a_policy_the_application_decides(servers: str, topic: str) -> None:
    tp = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=servers, group_id=f"g-{topic}", auto_offset_reset="none") as consumer:
        consumer.assign([tp])
        with pytest.raises(NoOffsetForPartition, match="auto_offset_reset is none"):
            consumer.position(tp)
        consumer.seek(tp, OffsetAndMetadata(0))
        assert consumer.position(tp) == 0
        patience = Patience("reading one")
        while consumer.current_lag(tp) is None:
            patience.check(())
            consumer.poll(50)
        assert consumer.current_lag(tp) == 0
        produce(servers, topic, 12)
        while not consumer.poll(100, 1):
            patience.check(())
        assert consumer.current_lag(tp) == 1
        with pytest.raises(KafkaError, match="is not assigned"):
            consumer.position(TopicPartition(topic, 1))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("instance", [None, "me"])
def test_whoever_unsubscribes_may_subscribe_again(
    servers: str, topic: str, protocol: str, instance: str | None
) -> None:
    group = f"g-{topic}"
    member = Ours(servers, group, topic, group_protocol=protocol, group_instance_id=instance)
    try:
        poll_until(lambda: is_shared(member), member)
        member.consumer.unsubscribe()
        assert member.partitions() == set()
        member.consumer.subscribe([topic])
        poll_until(lambda: is_shared(member), member)
    finally:
        member.close()
    assert member.heard.count(("assigned", PARTITIONS)) == 2


def test_a_classic_group_assigns_anew_on_request(servers: str, topic: str) -> None:
    with ExitStack() as stack:
        member = Ours(servers, f"g-{topic}", topic)
        stack.callback(member.close)
        poll_until(lambda: is_shared(member), member)
        generation = member.consumer.group_metadata().generation_id
        member.consumer.enforce_rebalance()
        poll_until(lambda: member.consumer.group_metadata().generation_id == generation + 1, member)
        poll_until(lambda: is_shared(member), member)


def test_a_listener_with_coroutines_is_refused_by_the_blocking_consumer(servers: str, topic: str) -> None:
    class Listener(RebalanceListener):
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            raise AssertionError("nobody awaits this")

    with Consumer(bootstrap_servers=servers, group_id=f"g-{topic}") as consumer:
        consumer.subscribe([topic], listener=Listener())
        with pytest.raises(TypeError, match="for the AsyncConsumer"):
            consumer.poll(20_000)


def test_wakeup_and_misuse(servers: str, topic: str) -> None:
    with Consumer(bootstrap_servers=servers, group_id=f"g-{topic}") as consumer:
        consumer.subscribe([topic])
        threading.Timer(0.05, consumer.wakeup).start()
        with pytest.raises(Wakeup):
            consumer.poll(60_000)
        consumer.poll(0)
        with pytest.raises(StateError, match="by the group"):
            consumer.assign([TopicPartition(topic, 0)])
        consumer.unsubscribe()
        assert consumer.assignment() == set()
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(StateError, match="by hand"):
            consumer.subscribe([topic])
    with Consumer(bootstrap_servers=servers) as alone, pytest.raises(StateError, match="without group_id"):
        alone.subscribe([topic])
    with Consumer(bootstrap_servers=servers, group_id=f"g-{topic}", session_timeout_ms=3_600_000) as strange:
        strange.subscribe([topic])
        with pytest.raises(KafkaError, match="does not allow this session_timeout_ms") as caught:
            strange.poll(20_000)
        assert caught.value.code is ErrorCode.INVALID_SESSION_TIMEOUT


def test_the_asyncio_consumer_with_a_listener_of_coroutines(servers: str, topic: str) -> None:
    produce(servers, topic, 30)
    heard: list[str] = []

    class Listener(RebalanceListener):
        async def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
            await asyncio.sleep(0)
            heard.append(f"assigned {len(partitions)}")

        async def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            await consumer.commit()
            heard.append(f"revoked {len(partitions)}")

    async def read() -> None:
        nonlocal consumer
        async with consumer:
            consumer.subscribe([topic], listener=Listener())
            count = 0
            async for _ in consumer:
                count += 1
                if count == 30:
                    break

    settings: dict[str, Any] = {"group_protocol": "consumer", "auto_offset_reset": "earliest"}
    consumer = AsyncConsumer(bootstrap_servers=servers, group_id=f"g-{topic}", **settings)
    asyncio.run(asyncio.wait_for(read(), 60))
    assert heard == [f"assigned {PARTITIONS}", f"revoked {PARTITIONS}"]
    with Admin(bootstrap_servers=servers) as admin:
        offsets = admin.list_group_offsets(f"g-{topic}")
        assert sorted(at.offset for at in offsets.values() if at is not None) == [5] * PARTITIONS
