"""What Kafka loses with a weak setting, and not with a strong one: each a pair of tests over one and the same fault.

Two brokers and a controller of its own. Sessions and lag times are longer than any test: whoever leaves an ISR or is
fenced here has died or stopped. What is found at the end is what all replicas have, and they have the same.

The docs say this in a table: docs/operations.md, "What you can lose, and the setting that prevents it".
"""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
from tests.interop.process import wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.entities import decode_response
from tests.support.log_files import disk_batches
from tests.support.raw_client import PRODUCE, RawClient, produce_frame
from tests.support.replicated import Replicated

from ottla.client.blocking import Consumer, Producer
from ottla.model.ids import TopicPartition
from ottla.storage.dirs.checkpoints import RECOVERY_POINT_CHECKPOINT, OffsetCheckpoint

pytestmark = [pytest.mark.xdist_group("replication"), pytest.mark.timeout(900)]

LEADER, FOLLOWER = 101, 102
BOTH = {0: [LEADER, FOLLOWER]}
CLUSTER = {
    "controllers": 1,
    "brokers": 2,
    "replicas": 2,
    "min_isr": 1,
    "settings": {
        "broker.session.timeout.ms": 600_000,
        "replica.lag.time.max.ms": 600_000,
        "group.initial.rebalance.delay.ms": 0,
        # How far a log is flushed is told by a file, soon enough to wait for it.
        "log.initial.task.delay.ms": 0,
        "log.flush.offset.checkpoint.interval.ms": 200,
    },
}
PATIENCE_MS = 300_000
ACKS_ALL = -1


def produced(cluster: Replicated, topic: str, value: bytes, acks: int = ACKS_ALL) -> str:
    """One attempt at the first leader, and what it said."""
    with RawClient(cluster.nodes[LEADER]) as client:
        client.send(produce_frame(topic, 0, Batch([Rec(value)]).encode(), acks=acks))
        answer = decode_response(PRODUCE, 9, client.receive())
    error: str = answer["responses"][0]["partition_responses"][0]["error_code"]
    return error


def acks_all(cluster: Replicated) -> Producer:
    """As it is by default: with idempotence, and with retries for as long as it takes."""
    return Producer(bootstrap_servers=cluster.bootstrap_servers, delivery_timeout_ms=PATIENCE_MS, linger_ms=0)


def found(cluster: Replicated, topic: str) -> Counter[bytes | None]:
    """What there is after all has healed: how often each value is in the logs, which are the same on both brokers."""
    cluster.wait_for_full_isr(topic)
    with RawClient(cluster.nodes[cluster.leader(topic)]) as client:
        values = client.read(topic)
    cluster.check_equal_logs(topic)
    return Counter(values)


# ---- acks=0: nobody is asked whether it has come -----------------------------------------------------------


@pytest.fixture(scope="module")
def leader_was_deaf(running: Replicated) -> Counter[bytes | None]:
    """The leader dies without having read what lies in its sockets."""
    running.recover()
    topic = running.create_topic("acks-0", assignments=BOTH)
    with (
        Producer(bootstrap_servers=running.bootstrap_servers, acks=0, linger_ms=0) as careless,
        acks_all(running) as careful,
    ):
        # Both know the leader and are connected to it.
        careless.send(topic, b"first").result(PATIENCE_MS)
        careful.send(topic, b"second").result(PATIENCE_MS)
        wait_until(lambda: running.high_watermark(topic) == 2, PATIENCE_MS / 1000, "both records")
        running.pause(LEADER)
        careless.send(topic, b"acks=0").result(PATIENCE_MS)
        delivery = careful.send(topic, b"acks=all")
        running.kill(LEADER)
        delivery.result(PATIENCE_MS)
    running.start(LEADER)
    return found(running, topic)


def test_acks_0_loses_what_the_leader_has_not_read(leader_was_deaf: Counter[bytes]) -> None:
    assert leader_was_deaf[b"first"] == 1
    assert leader_was_deaf[b"acks=0"] == 0


def test_with_acks_all_it_is_sent_again(leader_was_deaf: Counter[bytes]) -> None:
    assert leader_was_deaf[b"acks=all"] == 1


# ---- acks=1: the leader alone has it -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def leader_died_alone(running: Replicated) -> Counter[bytes | None]:
    """The leader dies with records that the follower, which is in sync, has not fetched."""
    running.recover()
    topic = running.create_topic("acks-1", assignments=BOTH)
    with acks_all(running) as careful:
        careful.send(topic, b"first").result(PATIENCE_MS)
        running.links.cut(LEADER, FOLLOWER)
        assert produced(running, topic, b"acks=1", acks=1) == "none"
        delivery = careful.send(topic, b"acks=all")
        log_dir = running.dir_of(LEADER, topic)
        wait_until(
            lambda: len(disk_batches(log_dir, topic)) == 3, PATIENCE_MS / 1000, "the leader to have it"
        )
        assert not delivery.done()
        running.kill(LEADER)
        delivery.result(PATIENCE_MS)
    # What was on its way to the follower arrives there now, from a leader that is none any more.
    running.links.heal()
    running.start(LEADER)
    return found(running, topic)


def test_acks_1_loses_what_only_the_leader_had(leader_died_alone: Counter[bytes]) -> None:
    assert leader_died_alone[b"first"] == 1
    assert leader_died_alone[b"acks=1"] == 0


def test_acks_all_is_acknowledged_by_whoever_is_in_sync(leader_died_alone: Counter[bytes]) -> None:
    assert leader_died_alone[b"acks=all"] == 1


# ---- min.insync.replicas=1: acks=all of one ----------------------------------------------------------------


@pytest.fixture(scope="module")
def last_in_sync_lost_power(running: Replicated) -> tuple[Counter[bytes | None], Counter[bytes | None]]:
    """The follower is away, the leader goes on alone, and its machine loses what was not on the disk."""
    running.recover()
    weak = running.create_topic("min-isr-1", assignments=BOTH, min_insync_replicas=1)
    strong = running.create_topic("min-isr-2", assignments=BOTH, min_insync_replicas=2)
    with acks_all(running) as careful:
        assert produced(running, strong, b"first") == "none"
        assert running.stop(FOLLOWER) == 0
        running.wait_for_isr(weak, {LEADER})
        running.wait_for_isr(strong, {LEADER})
        assert produced(running, weak, b"acknowledged") == "none"
        assert produced(running, strong, b"refused") == "not_enough_replicas"
        delivery = careful.send(strong, b"acknowledged")
        running.kill(LEADER)
        running.lose_page_cache(LEADER)
        running.launch(LEADER)
        running.launch(FOLLOWER)
        delivery.result(PATIENCE_MS)
    return found(running, weak), found(running, strong)


def test_min_isr_1_loses_what_one_has_acknowledged(
    last_in_sync_lost_power: tuple[Counter[bytes], Counter[bytes]],
) -> None:
    weak, _ = last_in_sync_lost_power
    assert weak[b"acknowledged"] == 0


def test_with_min_isr_2_one_acknowledges_nothing(
    last_in_sync_lost_power: tuple[Counter[bytes], Counter[bytes]],
) -> None:
    _, strong = last_in_sync_lost_power
    assert strong == {b"first": 1, b"acknowledged": 1}


# ---- unclean.leader.election.enable: a leader that lacks something -----------------------------------------


@pytest.fixture(scope="module")
def other_came_first(running: Replicated) -> tuple[Counter[bytes | None], Counter[bytes | None]]:
    """The last in sync is gone for a while, and the one that comes back lacks what was written without it."""
    running.recover()
    weak = running.create_topic("unclean", assignments=BOTH, unclean_leader_election_enable="true")
    strong = running.create_topic("clean", assignments=BOTH, unclean_leader_election_enable="false")
    running.kill(FOLLOWER)
    for topic in (weak, strong):
        running.wait_for_isr(topic, {LEADER})
        assert produced(running, topic, b"acknowledged") == "none"
    running.kill(LEADER)
    running.start(FOLLOWER)
    assert running.wait_for_leader(weak) == FOLLOWER
    # Both were decided on when the broker was back.
    assert running.view(FOLLOWER, strong)[0].leader == -1
    running.start(LEADER)
    assert running.leader(strong) == LEADER
    return found(running, weak), found(running, strong)


def test_an_unclean_election_loses_what_the_new_leader_lacks(
    other_came_first: tuple[Counter[bytes], Counter[bytes]],
) -> None:
    weak, _ = other_came_first
    assert weak[b"acknowledged"] == 0


def test_without_unclean_elections_the_last_in_sync_is_waited_for(
    other_came_first: tuple[Counter[bytes], Counter[bytes]],
) -> None:
    _, strong = other_came_first
    assert strong == {b"acknowledged": 1}


# ---- the page cache: what is acknowledged is in memory -----------------------------------------------------


@pytest.fixture(scope="module")
def all_lost_power(running: Replicated) -> tuple[Counter[bytes | None], Counter[bytes | None]]:
    """Both machines of a partition lose power at once, with min.insync.replicas=1 and both in sync."""
    running.recover()
    weak = running.create_topic("cached", assignments=BOTH)
    strong = running.create_topic("flushed", assignments=BOTH, flush_messages=1)
    for topic in (weak, strong):
        assert produced(running, topic, b"acknowledged") == "none"
    flushed = TopicPartition(strong, 0)
    for node_id in (LEADER, FOLLOWER):
        # The follower had it on its disk before it was acknowledged; the file that says so is written by and by.
        checkpoint = OffsetCheckpoint(running.nodes[node_id].data_dir, RECOVERY_POINT_CHECKPOINT)
        wait_until(
            lambda checkpoint=checkpoint: checkpoint.read().get(flushed) == 1,  # type: ignore[misc]
            PATIENCE_MS / 1000,
            "the recovery point",
        )
    for node_id in (LEADER, FOLLOWER):
        running.kill(node_id)
    for node_id in (LEADER, FOLLOWER):
        running.lose_page_cache(node_id)
        running.launch(node_id)
    for node_id in (LEADER, FOLLOWER):
        running.wait_until_serving(node_id)
    return found(running, weak), found(running, strong)


def test_a_power_cut_of_all_replicas_loses_what_was_not_flushed(
    all_lost_power: tuple[Counter[bytes], Counter[bytes]],
) -> None:
    weak, _ = all_lost_power
    assert weak[b"acknowledged"] == 0


def test_with_flush_messages_1_all_have_it_on_their_disks(
    all_lost_power: tuple[Counter[bytes], Counter[bytes]],
) -> None:
    _, strong = all_lost_power
    assert strong == {b"acknowledged": 1}


# ---- enable.auto.commit: committed before it is processed --------------------------------------------------


class ProcessingFailed(Exception):
    """The application's own."""


def process(
    cluster: Replicated, topic: str, group: str, *, auto_commit: bool = True, fails_after: int = 0
) -> list[bytes]:
    """An application's life: what it has processed, until it fails or has come to b"last"."""
    processed: list[bytes] = []
    with (
        contextlib.suppress(ProcessingFailed),
        Consumer(
            bootstrap_servers=cluster.bootstrap_servers,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=auto_commit,
        ) as consumer,
    ):
        consumer.subscribe([topic])
        while b"last" not in processed:
            for records in consumer.poll(PATIENCE_MS).values():
                for record in records:
                    if fails_after and len(processed) == fails_after:
                        raise ProcessingFailed
                    processed.append(bytes(record.value or b""))
                    if not auto_commit:
                        consumer.commit({TopicPartition(topic, 0): record.offset + 1})
    return processed


@pytest.mark.parametrize(
    ("auto_commit", "next_life"),
    [(True, [b"last"]), (False, [b"two", b"three", b"last"])],
    ids=["early auto-commit loses", "commit after processing does not"],
)
def test_what_is_committed_before_it_is_processed(
    cluster: Replicated, topic: str, auto_commit: bool, next_life: list[bytes]
) -> None:
    """Records are committed when they have been handed out, also by the close of a consumer whose application fails."""
    cluster.create_topic(topic, assignments=BOTH)
    group = f"{topic}.group"
    with RawClient(cluster.nodes[LEADER]) as client:
        client.write(topic, 0, [b"one", b"two", b"three"])
        assert process(cluster, topic, group, auto_commit=auto_commit, fails_after=1) == [b"one"]
        client.write(topic, 0, [b"last"])
    assert process(cluster, topic, group) == next_life
