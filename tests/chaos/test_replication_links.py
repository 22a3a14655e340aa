"""Three brokers and three controllers of their own, replication 3, min ISR 2: links are cut and slow, disks fail.

Brokers have two log directories, so that one of them may be lost. After each fault all heals by itself: the replicas
are in sync again, the checker finds nothing in what clients did and saw, and the logs of all replicas are the same.
"""

from __future__ import annotations

import time

import pytest
from tests.chaos.checker import Kind, Outcome, Send
from tests.chaos.workload import PATIENCE_S, OttlaProducer, RdkafkaProducer, Workload
from tests.interop.process import wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.entities import decode_response
from tests.support.log_files import disk_batches
from tests.support.raw_client import PRODUCE, RawClient, produce_frame
from tests.support.replicated import Replicated

from ottla.model.ids import TopicPartition

pytestmark = [pytest.mark.xdist_group("replication"), pytest.mark.timeout(900)]

BROKERS = (101, 102, 103)
CONTROLLERS = (1, 2, 3)
CLUSTER = {
    "controllers": 3,
    "brokers": 3,
    "disks": True,
    "log_dirs": 2,
    "settings": {
        "broker.session.timeout.ms": 6_000,
        "broker.heartbeat.interval.ms": 1_000,
        "replica.lag.time.max.ms": 4_000,
        # A request over a cut link is given up, and asked again over a new connection.
        "replica.socket.timeout.ms": 5_000,
        "controller.socket.timeout.ms": 5_000,
    },
}
MEGABYTE = 1_000_000
# More than the slow link takes in the lag that a follower may have, many times over; written by batches of a megabyte.
BULK_BATCHES = 150
RECORDS_A_BATCH = 10
IN_FLIGHT = 5
# Of a slow link, in each direction; and what tests.support.broken_disk adds to every write.
SLOW_S = 0.1


def followers(cluster: Replicated, topic: str) -> list[int]:
    leader = cluster.leader(topic)
    return [node_id for node_id in BROKERS if node_id != leader]


def produced(client: RawClient, topic: str, value: str, acks: int = -1) -> str:
    """One attempt, and what the broker said to it."""
    client.send(produce_frame(topic, 0, Batch([Rec(value.encode())]).encode(), acks=acks))
    return _error(client)


def _error(client: RawClient) -> str:
    answer = decode_response(PRODUCE, 9, client.receive())
    error: str = answer["responses"][0]["partition_responses"][0]["error_code"]
    return error


def seconds_of_a_write(cluster: Replicated, load: Workload) -> float:
    """How long acks=all takes. At least, never at most: this machine may be slow as well."""
    with RawClient(cluster.nodes[cluster.leader(load.topic)]) as client:
        began = time.monotonic()
        assert produced(client, load.topic, "timed") == "none"
        took_s = time.monotonic() - began
    note(load, "timed", Outcome.OK)
    return took_s


def note(load: Workload, value: str, outcome: Outcome) -> None:
    """A send of the test's own, which no client has made."""
    now = load.history.tick()
    load.history.add(Send("test", TopicPartition(load.topic, 0), value, 0, now, outcome, idempotent=False))


# ---- links ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["both", "leader is not heard", "follower is not heard"])
def test_a_leader_without_one_follower_goes_on(cluster: Replicated, topic: str, way: str) -> None:
    cluster.create_topic(topic, partitions=1)
    leader, (lost, other) = cluster.leader(topic), followers(cluster, topic)
    with Workload(cluster, topic, 1) as load:
        load.wait_for_writes()
        source, target = (lost, leader) if way == "follower is not heard" else (leader, lost)
        cluster.links.cut(source, target, both=way == "both")
        cluster.wait_for_isr(topic, {leader, other})
        load.wait_for_writes()
        assert cluster.leader(topic) == leader
        cluster.links.heal()
        cluster.wait_for_full_isr(topic)
        load.wait_for_writes()
        load.wait_for_reads()
    load.verify()


@pytest.mark.parametrize("way", ["both", "leader is not heard", "followers are not heard"])
def test_a_leader_without_followers_acknowledges_nothing(cluster: Replicated, topic: str, way: str) -> None:
    cluster.create_topic(topic, partitions=1)
    leader = cluster.leader(topic)
    with Workload(cluster, topic, 1) as load:
        load.wait_for_writes()
        for follower in followers(cluster, topic):
            source, target = (follower, leader) if way == "followers are not heard" else (leader, follower)
            cluster.links.cut(source, target, both=way == "both")
        cut = load.mark()
        cluster.wait_for_isr(topic, {leader})
        with RawClient(cluster.nodes[leader]) as client:
            assert produced(client, topic, "refused") == "not_enough_replicas"
        note(load, "refused", Outcome.FAILED)
        mark = load.mark()
        assert load.written_since(cut) == 0
        cluster.links.heal()
        load.wait_for_writes(since=mark)
        load.wait_for_reads()
    load.verify()


@pytest.mark.parametrize("way", ["both", "broker is not heard", "controllers are not heard"])
def test_a_leader_without_controllers_is_replaced(cluster: Replicated, topic: str, way: str) -> None:
    """It reaches its followers and clients all the time, and must not acknowledge what its successor does not have."""
    cluster.create_topic(topic, partitions=1)
    leader, others = cluster.leader(topic), followers(cluster, topic)
    with Workload(cluster, topic, 1) as load:
        load.wait_for_writes()
        for controller in CONTROLLERS:
            source, target = (
                (controller, leader) if way == "controllers are not heard" else (leader, controller)
            )
            cluster.links.cut(source, target, both=way == "both")
        cluster.wait_for_leader(topic, other_than=[leader], seen_by=others)
        load.wait_for_writes()
        cluster.links.heal()
        cluster.wait_for_full_isr(topic)
        load.wait_for_writes()
        load.wait_for_reads()
    load.verify()


def test_a_leader_that_stands_still_is_replaced_and_follows(cluster: Replicated, topic: str) -> None:
    """What it finds in its sockets when it goes on it does not acknowledge."""
    cluster.create_topic(topic, partitions=1)
    leader = cluster.leader(topic)
    epoch = cluster.leader_epoch(topic)
    with Workload(cluster, topic, 1) as load:
        load.wait_for_writes()
        with RawClient(cluster.nodes[leader], timeout_s=PATIENCE_S) as client:
            cluster.pause(leader)
            client.send(produce_frame(topic, 0, Batch([Rec(b"too late")]).encode(), acks=-1))
            note(load, "too late", Outcome.UNKNOWN)
            cluster.wait_for_leader(topic, other_than=[leader])
            load.wait_for_writes()
            cluster.resume(leader)
            assert _error(client) != "none"
        cluster.wait_for_full_isr(topic)
        assert cluster.leader_epoch(topic) > epoch
        load.wait_for_writes()
        load.wait_for_reads()
    load.verify()


def test_a_slow_network_is_slow_and_nothing_else(cluster: Replicated, topic: str) -> None:
    cluster.create_topic(topic, partitions=1)
    epoch = cluster.leader_epoch(topic)
    with Workload(cluster, topic, 1) as load:
        for one in cluster.nodes:
            for other in cluster.nodes:
                if one < other:
                    cluster.links.slow(one, other, delay_s=SLOW_S)
        load.wait_for_writes(50)
        # To the followers and back; a link that was not slow would show here.
        assert seconds_of_a_write(cluster, load) >= 2 * SLOW_S
        load.wait_for_reads()
        assert cluster.isr(topic) == set(BROKERS)
        cluster.links.heal()
    assert cluster.leader_epoch(topic) == epoch
    load.verify()


def test_a_slow_follower_leaves_and_comes_back(cluster: Replicated, topic: str) -> None:
    """A link of one megabyte a second, under what does not wait for it: acks=1, as fast as the leader takes it.

    (With acks=all a producer goes at the pace of the slowest in sync, and the slow one never falls behind.)
    """
    cluster.create_topic(topic, partitions=1)
    leader, (slow, other) = cluster.leader(topic), followers(cluster, topic)
    cluster.create_topic(f"{topic}.others", partitions=1, assignments={0: [other, leader]})
    cluster.links.slow(leader, slow, bytes_per_s=MEGABYTE, both=False)
    before = cluster.nodes[leader].rss_bytes()
    batch = Batch([Rec(bytes(MEGABYTE // RECORDS_A_BATCH - 100))] * RECORDS_A_BATCH).encode()
    frame = produce_frame(topic, 0, batch, acks=1)
    sent = 0
    with (
        Workload(cluster, f"{topic}.others", 1, producers=[OttlaProducer], readers=()) as load,
        RawClient(cluster.nodes[leader], timeout_s=PATIENCE_S) as client,
    ):

        def write(batches: int) -> None:
            nonlocal sent
            for number in range(batches + IN_FLIGHT):
                if number < batches:
                    client.send(frame)
                if number >= IN_FLIGHT:
                    assert _error(client) == "none"
            sent += batches * RECORDS_A_BATCH

        began = time.monotonic()
        write(BULK_BATCHES)
        rate = BULK_BATCHES / (time.monotonic() - began)
        print(f"{BULK_BATCHES} MB at {rate:.0f} MB/s, to a follower at 1 MB/s")

        def is_out() -> bool:
            # It has minutes' worth of its link to catch up with, and there is always more.
            write(1)
            return set(cluster.view(leader, topic)[0].isr) == {leader, other}

        wait_until(is_out, PATIENCE_S, "the slow follower to leave the ISR")
        load.wait_for_writes()
        assert cluster.nodes[leader].rss_bytes() - before < 100 * MEGABYTE
        assert cluster.leader(topic) == leader
        cluster.links.heal()
        cluster.wait_for_full_isr(topic)
        assert cluster.high_watermark(topic) == sent
    cluster.check_equal_logs(topic)
    load.verify()


# ---- brokers gone ---------------------------------------------------------------------------------------


def test_two_of_three_brokers_are_gone(cluster: Replicated, topic: str) -> None:
    cluster.create_topic(topic, partitions=1)
    leader, gone = cluster.leader(topic), followers(cluster, topic)
    with Workload(cluster, topic, 1, producers=[OttlaProducer, RdkafkaProducer]) as load:
        load.wait_for_writes()
        load.wait_for_reads()
        for node_id in gone:
            cluster.kill(node_id)
        cluster.wait_for_isr(topic, {leader})
        with RawClient(cluster.nodes[leader]) as client:
            assert produced(client, topic, "refused") == "not_enough_replicas"
            visible = client.end_offset(topic)
            assert produced(client, topic, "one is enough", acks=1) == "none"
            assert client.end_offset(topic) == visible
        note(load, "refused", Outcome.FAILED)
        note(load, "one is enough", Outcome.OK)
        cluster.recover()
        cluster.wait_for_full_isr(topic)
        load.wait_for_writes()
        load.wait_for_reads()
    load.verify()


def test_both_of_two_replicas_lose_their_page_cache(cluster: Replicated, topic: str) -> None:
    """Replication 2 with min ISR 1 does not outlive a power cut of both: there is a loss, and the checker shows it."""
    cluster.create_topic(topic, assignments={0: [101, 102]}, min_insync_replicas=1)
    with Workload(cluster, topic, 1, producers=[OttlaProducer], readers=()) as load:
        load.wait_for_writes(30)
    for node_id in (101, 102):
        cluster.kill(node_id)
    for node_id in (101, 102):
        cluster.lose_page_cache(node_id)
    for node_id in (101, 102):
        cluster.start(node_id)
    cluster.wait_for_full_isr(topic)
    load.read_everything()
    found = {anomaly.kind for anomaly in load.anomalies()}
    assert found
    assert found <= {Kind.LOST_WRITE, Kind.UNSEEN_WRITE}
    cluster.check_equal_logs(topic)


# ---- disks ----------------------------------------------------------------------------------------------


# So many that some leader is not in the directory of the metadata log, however they fall.
MANY = 16


@pytest.mark.parametrize("how", ["pwrite-full", "fsync-fails"])
def test_a_lost_directory_moves_its_leaders(cluster: Replicated, topic: str, how: str) -> None:
    cluster.create_topic(topic, partitions=MANY, flush_messages=1)
    # Not the directory of the metadata log, without which no broker lives.
    leaders = {partition: cluster.leader(topic, partition) for partition in range(MANY)}
    partition, leader, directory = next(
        (partition, node_id, cluster.dir_of(node_id, topic, partition))
        for partition, node_id in leaders.items()
        if cluster.dir_of(node_id, topic, partition) != cluster.nodes[node_id].data_dir
    )
    node = cluster.nodes[leader]
    with Workload(cluster, topic, MANY) as load:  # all of them: who is not written to does not fail
        load.wait_for_writes()
        with cluster.disks[leader].broken(how, str(directory / f"{topic}-{partition}")):
            cluster.wait_for_leader(topic, partition, other_than=[leader])
            load.wait_for_writes()
        assert node.is_running()
        assert str(directory) in said(cluster, leader, "ERROR")
        # A directory that is offline stays so until its broker starts again.
        assert cluster.stop(leader) == 0
        cluster.start(leader)
        cluster.wait_for_full_isr(topic)
        load.wait_for_writes()
        load.wait_for_reads()
    load.verify()


def test_a_flipped_bit_of_the_leaders_stays_with_the_leader(cluster: Replicated, topic: str) -> None:
    cluster.create_topic(topic, partitions=1)
    leader, (away, other) = cluster.leader(topic), followers(cluster, topic)
    healthy = cluster.create_topic(f"{topic}.healthy", partitions=1, assignments={0: [leader, away]})
    with Workload(cluster, topic, 1, producers=[OttlaProducer], readers=()) as load:
        load.wait_for_writes()
        cluster.kill(away)
        cluster.wait_for_isr(topic, {leader, other})
        load.wait_for_writes(20)
    batch = disk_batches(cluster.dir_of(leader, topic), topic)[-1]
    at = batch.position + batch.size_bytes - 2
    flip(batch.path, at)
    try:
        cluster.start(away)
        cluster.wait_for_full_isr(healthy)
        wait_until(
            lambda: f"{topic}-0" in said(cluster, away, "WARNING", "ERROR"),
            PATIENCE_S,
            "the follower to refuse it",
        )
        with Workload(cluster, healthy, 1, producers=[OttlaProducer], readers=()) as others:
            others.wait_for_writes()
        others.verify()
        assert cluster.isr(topic) == {leader, other}
        assert all(found.crc_ok for found in disk_batches(cluster.dir_of(away, topic), topic))
    finally:
        flip(batch.path, at)
    cluster.wait_for_full_isr(topic)
    # Refused time and again, and said once.
    lines = [line for line in said(cluster, away, "WARNING", "ERROR").splitlines() if f"{topic}-0" in line]
    assert len(lines) == 1, lines
    load.verify()


def flip(path: object, at: int) -> None:
    with open(str(path), "r+b") as log:
        log.seek(at)
        byte = log.read(1)[0]
        log.seek(at)
        log.write(bytes([byte ^ 0x10]))


def said(cluster: Replicated, node_id: int, *levels: str) -> str:
    lines = cluster.nodes[node_id].log_text().splitlines()
    return "\n".join(line for line in lines if any(f" {level} " in line for level in levels))


def test_a_slow_disk_is_slow_and_nothing_else(cluster: Replicated, topic: str) -> None:
    cluster.create_topic(topic, partitions=1)
    leader, epoch = cluster.leader(topic), cluster.leader_epoch(topic)
    with Workload(cluster, topic, 1) as load:
        load.wait_for_writes()
        with cluster.disks[leader].broken("pwrite-slow", f"{topic}-0"):
            load.wait_for_writes(30)
            assert seconds_of_a_write(cluster, load) >= SLOW_S
        assert cluster.isr(topic) == set(BROKERS)
        load.wait_for_reads()
    assert cluster.leader_epoch(topic) == epoch
    load.verify()
