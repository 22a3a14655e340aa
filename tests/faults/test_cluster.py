"""Several processes are one cluster: topics on every broker, and controllers that may die."""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.interop.process import wait_until
from tests.support.cluster import BROKER, CONTROLLER, Processes
from tests.support.librdkafka import close_or_leave

PARTITIONS = 9
TIMEOUT_S = 60.0


@pytest.fixture(params=["static", "dynamic"])
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Processes]:
    """Three controllers and three brokers, with voters in the configuration or in the log."""
    with Processes(tmp_path, controllers=3, brokers=3, static=request.param == "static") as running:
        yield running


def create(cluster: Processes, name: str, replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    topic = NewTopic(name, PARTITIONS, replicas)
    admin.create_topics([topic], request_timeout=TIMEOUT_S)[name].result(TIMEOUT_S)


def leaders(cluster: Processes, topic: str) -> Counter[int]:
    """How many partitions each broker leads, once whoever is asked knows a leader of each."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    found: list[int] = []

    def all_lead() -> bool:
        partitions = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        found[:] = [partition.leader for partition in partitions.values()]
        return len(found) == PARTITIONS and -1 not in found

    wait_until(all_lead, TIMEOUT_S, f"{topic} to be led")
    return Counter(found)


def produce(cluster: Processes, topic: str, values: list[bytes], *, idempotent: bool = True) -> None:
    failures: list[ck.KafkaError] = []
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": idempotent}
    producer = ck.Producer(settings)
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert failures == []


def consume(cluster: Processes, topic: str, count: int) -> list[bytes]:
    consumer = ck.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": f"readers-of-{topic}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []

    def read() -> bool:
        for message in consumer.consume(1000, timeout=0.5):
            assert message.error() is None, message.error()
            found.append(message.value())
        return len(found) >= count

    try:
        wait_until(read, TIMEOUT_S, f"{count} records of {topic}")
    finally:
        close_or_leave(consumer)
    return found


def test_topics_spread_and_outlive_their_controllers(cluster: Processes) -> None:
    create(cluster, "orders")
    assert leaders(cluster, "orders") == {101: 3, 102: 3, 103: 3}
    values = [b"%d" % number for number in range(900)]
    produce(cluster, "orders", values)
    assert sorted(consume(cluster, "orders", 900)) == sorted(values)
    active = cluster.active_controller()
    cluster.kill(active)
    create(cluster, "after")
    assert cluster.active_controller() != active
    produce(cluster, "after", values)
    assert sorted(consume(cluster, "after", 900)) == sorted(values)
    cluster.start(active)
    with cluster.admin() as admin:

        def all_have_the_log() -> bool:
            quorum = admin.describe_quorum()
            return {v.replica_id for v in quorum.voters if v.log_end_offset >= quorum.high_watermark} == {
                1,
                2,
                3,
            }

        wait_until(all_have_the_log, TIMEOUT_S, "every voter to have what is committed")


def test_where_nobody_listens_there_is_no_leader_to_wait_for(tmp_path: Path) -> None:
    """The port of one that was killed refuses connections: nobody waits for the fetch time-out."""
    settings = {"controller.quorum.fetch.timeout.ms": 10 * 60 * 1000}
    with Processes(tmp_path, controllers=3, brokers=1, settings=settings) as cluster:
        create(cluster, "before")
        active = cluster.active_controller()
        cluster.kill(active)
        create(cluster, "after")
        assert cluster.active_controller() != active


def test_a_broker_goes_and_comes_back(tmp_path: Path) -> None:
    with Processes(tmp_path, combined=3) as cluster:
        create(cluster, "orders")
        values = [b"%d" % number for number in range(90)]
        produce(cluster, "orders", values)
        assert cluster.stop(2) == 0
        cluster.wait_until_known(1, 3)
        create(cluster, "without")
        assert leaders(cluster, "without").keys() == {1, 3}
        cluster.start(2)
        cluster.wait_until_known(1, 2, 3)
        assert sorted(consume(cluster, "orders", 90)) == sorted(values)
        cluster.pause(3)
        cluster.wait_until_known_by(1, {1, 2})
        cluster.resume(3)
        cluster.wait_until_known(1, 2, 3)


def test_a_broker_that_stops_leaves_nobody_without_a_leader(tmp_path: Path) -> None:
    """Its leaders move and it leaves every ISR before it stops to serve."""
    with Processes(tmp_path, controllers=1, brokers=3) as cluster:
        create(cluster, "orders", replicas=3)
        assert leaders(cluster, "orders") == {101: 3, 102: 3, 103: 3}
        admin = AdminClient({"bootstrap.servers": cluster.nodes[101].address})
        stopping = cluster.nodes[102]
        stopping.signal(signal.SIGTERM)

        def has_moved() -> bool:
            partitions = admin.list_topics("orders", timeout=TIMEOUT_S).topics["orders"].partitions.values()
            assert all(partition.leader in partition.isrs for partition in partitions)
            return all(102 not in partition.isrs for partition in partitions)

        wait_until(has_moved, TIMEOUT_S, "the leaders of 102 to move")
        assert stopping.wait_stopped() == 0
        assert has_moved()


def isrs(cluster: Processes, topic: str) -> list[set[int]]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    partitions = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    return [set(partition.isrs) for partition in partitions.values()]


def test_a_broker_is_replaced_by_one_with_an_empty_directory(tmp_path: Path) -> None:
    """It gets everything from the leaders, and then it may lead and be the only one of the old three that is left."""
    with Processes(tmp_path, controllers=1, brokers=3) as cluster:
        create(cluster, "orders", replicas=3)
        values = [b"%d" % number for number in range(900)]
        produce(cluster, "orders", values)
        cluster.kill(102)
        shutil.rmtree(cluster.nodes[102].data_dir)
        cluster.start(102)
        wait_until(
            lambda: isrs(cluster, "orders") == [{101, 102, 103}] * PARTITIONS, TIMEOUT_S, "102 to be in sync"
        )
        assert cluster.stop(101) == 0
        assert cluster.stop(103) == 0
        assert leaders(cluster, "orders") == {102: PARTITIONS}
        assert sorted(consume(cluster, "orders", 900)) == sorted(values)
        for stopped in (101, 103):
            cluster.start(stopped)


def test_consumers_read_from_a_replica_in_their_rack(tmp_path: Path) -> None:
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    with Processes(
        tmp_path, controllers=1, brokers=3, settings={"replica.selector.class": selector}
    ) as cluster:
        for node_id in (101, 102, 103):
            cluster.stop(node_id)
            cluster.nodes[node_id].overrides["broker.rack"] = f"rack-{node_id}"
            cluster.start(node_id)
        create(cluster, "orders", replicas=3)
        values = [b"%d" % number for number in range(900)]
        produce(cluster, "orders", values)
        read_from: Counter[int] = Counter()
        statistics: list[str] = []
        consumer = ck.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "near",
                "auto.offset.reset": "earliest",
                "client.rack": "rack-103",
                "statistics.interval.ms": 100,
                "stats_cb": statistics.append,
            }
        )
        consumer.assign([ck.TopicPartition("orders", index, 0) for index in range(PARTITIONS)])
        found: list[bytes] = []

        def all_are_read_from_the_near_one() -> bool:
            for message in consumer.consume(1000, timeout=0.5):
                assert message.error() is None, message.error()
                found.append(message.value())
            if statistics:
                partitions = json.loads(statistics[-1])["topics"].get("orders", {}).get("partitions", {})
                read_from.clear()
                read_from.update(row["broker"] for index, row in partitions.items() if index != "-1")
            return len(found) >= 900 and read_from == {103: PARTITIONS}

        try:
            wait_until(
                all_are_read_from_the_near_one, TIMEOUT_S, "every partition to be read from broker 103"
            )
            assert sorted(found) == sorted(values)
            # Without it the others are read from, and nothing is read twice or left out.
            cluster.kill(103)
            found.clear()
            produce(cluster, "orders", values)
            wait_until(
                lambda: all_are_read_from_the_near_one() or len(found) >= 900,
                TIMEOUT_S,
                "the rest to be read",
            )
            assert sorted(found) == sorted(values)
        finally:
            close_or_leave(consumer)
            cluster.start(103)


def test_nodes_are_added_and_taken_away(tmp_path: Path) -> None:
    with Processes(tmp_path, controllers=3, brokers=1, static=False) as cluster:
        create(cluster, "orders")
        broker = cluster.nodes[102] = cluster.make(102, BROKER)
        cluster.format(broker)
        joins = {"controller.quorum.auto.join.enable": "true"}
        controller = cluster.nodes[4] = cluster.make(4, CONTROLLER, joins)
        cluster.format(controller, "--no-initial-controllers")
        for node in (broker, controller):
            node.start()
        cluster.wait_until_known(101, 102)
        create(cluster, "more")
        assert leaders(cluster, "more").keys() == {101, 102}
        with cluster.admin() as admin:
            wait_until(
                lambda: [v.replica_id for v in admin.describe_quorum().voters] == [1, 2, 3, 4],
                TIMEOUT_S,
                "the new controller to have a vote",
            )
        # Four voters: any one may go.
        cluster.kill(cluster.active_controller())
        create(cluster, "after")


def test_without_a_majority_brokers_serve_on(tmp_path: Path) -> None:
    with Processes(tmp_path, controllers=3, brokers=2) as cluster:
        create(cluster, "orders")
        values = [b"%d" % number for number in range(90)]
        produce(cluster, "orders", values)
        assert sorted(consume(cluster, "orders", 90)) == sorted(values)
        for voter in (1, 2):
            cluster.kill(voter)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        change = admin.create_topics([NewTopic("never", 1, 1)], operation_timeout=2, request_timeout=20)
        with pytest.raises(ck.KafkaException, match="REQUEST_TIMED_OUT"):
            change["never"].result(TIMEOUT_S)
        # A producer id may have to come from the controller.
        produce(cluster, "orders", values, idempotent=False)
        for voter in (1, 2):
            cluster.start(voter)
        create(cluster, "again")
        assert leaders(cluster, "orders").keys() == {101, 102}
