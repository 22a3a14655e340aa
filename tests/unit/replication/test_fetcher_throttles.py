"""A follower's fetcher under a throttle (KIP-73): what it leaves out, what it takes in again, and what counts."""

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest
from tests.unit.replication.fetcher_support import (
    NODE,
    SETTINGS,
    Leader,
    answer_of,
    fetcher_of,
    follower,
    forgotten,
    named,
    one_round,
    registration,
    write,
)

from ottla.model.time_slice import run_to_end
from ottla.replication.fetcher import MAX_NAMED, MAX_RELEASED, ReplicaFetcher
from ottla.replication.partition import Partition
from ottla.replication.quotas import ReplicationQuotaManager, ReplicationQuotas
from ottla.security.quotas import QuotaWindows
from ottla.wire.messages.fetch import PartitionData

RATE = 1_000.0
# What a leader of these tests sends of a partition by one fetch.
SMALL = SETTINGS._replace(max_bytes=200)
THROTTLED = "follower.replication.throttled.replicas"


class World:
    """A leader of some partitions, of which this follower has nothing; the first is throttled, in time 0."""

    def __init__(self, dir: Path, partitions: int = 2, throttled: str = f"0:{NODE}") -> None:
        self.dir = dir
        self.leader = Leader(dir / "leader")
        for index in range(partitions):
            for _ in range(5):
                write(self.leader.log(index), 0, bytes(100))
            self.leader.log(index).update_high_watermark(5)
        self.quotas = ReplicationQuotas(NODE)
        self.quota.update_quota(RATE)
        self.throttle(throttled)
        self.ours = [follower(dir / "ours", index=index) for index in range(partitions)]
        self.fetcher = self.fetcher_of(*self.ours)

    def fetcher_of(self, *partitions: Partition) -> ReplicaFetcher:
        made = ReplicaFetcher(NODE, 2, SMALL, lambda: 77, self.quota)
        self.quota.watchers.add(made.quota_changed)
        for partition in partitions:
            made.add(partition)
        return made

    @property
    def quota(self) -> ReplicationQuotaManager:
        return self.quotas.follower

    def throttle(self, replicas: str) -> None:
        self.quotas.topic_changed("orders", {THROTTLED: replicas} if replicas else {})

    def use_up(self, now_ms: float = 0, seconds: float = 3.0) -> None:
        self.quota.record(int(RATE * seconds), now_ms)

    def round(self, now_ms: float = 0) -> Any:
        return one_round(self.fetcher, self.leader, now_ms)

    def has(self, index: int = 0) -> int:
        return self.ours[index].log.log_end_offset


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def size(partition: Partition) -> int:
    log = partition.log
    return log.read(0, 1 << 20, log.log_end_offset).length if log.log_end_offset else 0


def until(condition: Callable[[], bool], step: Callable[[], object], at_most: int = 100) -> None:
    for _ in range(at_most):
        if condition():
            return
        step()
    raise AssertionError("never")


def test_one_that_lags_is_left_out_while_there_is_no_room_and_then_taken_in_again(world: World) -> None:
    assert named(world.round()).keys() == {0, 1}
    world.use_up()
    request = world.round()
    assert forgotten(request) == [0], "the leader would go on sending it"
    assert named(request).keys() == {1}
    until(lambda: world.has(1) == 5, world.round)
    had = world.has(0)
    assert 0 not in named(world.round(2_900))
    assert world.has(0) == had < 5
    request = world.round(4_000)
    assert named(request) == {0: (had, 0, 0)}
    assert world.has(0) > had


def test_whoever_has_nothing_else_to_ask_for_waits_for_room(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=1)
    world.use_up()
    assert world.fetcher.next_request(0) is None
    assert world.fetcher.next_due_ms() == 3_000
    assert world.fetcher.next_request(2_999) is None
    world.use_up(2_999, 1.0)
    assert world.fetcher.next_request(3_000) is None, "another fetcher was faster"
    assert world.fetcher.next_due_ms() == 4_000
    assert named(world.round(4_000)).keys() == {0}
    assert world.fetcher.next_due_ms() == inf


def test_one_that_was_asked_for_is_forgotten_before_anybody_waits(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=1)
    world.round()
    world.use_up()
    assert forgotten(world.round()) == [0]
    assert world.fetcher.next_request(0) is None


def test_one_that_is_in_sync_is_fetched_whatever_the_quota(world: World) -> None:
    until(lambda: world.has() == 5, world.round)
    world.round()
    world.use_up()
    write(world.leader.log(), 0, bytes(100))
    request = world.round()
    assert forgotten(request) == []
    assert world.has() == 6, "the leader's watermark is where it was, so it is in sync"
    world.leader.log().update_high_watermark(6)
    assert forgotten(world.round()) == []
    assert world.has() == 6


def test_one_that_falls_behind_is_held_back(world: World) -> None:
    until(lambda: world.has() == 5, world.round)
    for _ in range(5):
        write(world.leader.log(), 0, bytes(100))
    world.leader.log().update_high_watermark(10)
    world.use_up()
    world.round()
    had = world.has()
    assert had < 10
    assert forgotten(world.round()) == [0]
    assert world.has() == had


def test_what_comes_of_throttled_partitions_counts_in_sync_or_not(world: World) -> None:
    until(lambda: world.has(0) == world.has(1) == 5, world.round)
    write(world.leader.log(), 0, bytes(300))
    world.round()
    assert world.quota._rate.measure(0) == size(world.ours[0])


def test_what_comes_counts_also_while_there_is_no_rate(world: World) -> None:
    world.quota.update_quota(inf)
    write(world.leader.log(), 0, bytes(3_000))
    until(lambda: world.has() == 6, world.round)
    assert not world.quota.is_quota_exceeded(0)
    world.quota.update_quota(RATE)
    assert world.quota.is_quota_exceeded(0)


@pytest.mark.parametrize("change", ["no rate", "a higher rate", "no list", "another list"])
def test_the_others_go_on_when_the_throttle_is_another(world: World, change: str) -> None:
    world.use_up()
    world.round()
    world.round()
    assert not world.has()
    if change == "no rate":
        world.quota.update_quota(inf)
    elif change == "a higher rate":
        world.quota.update_quota(3 * RATE)
    else:
        world.throttle("" if change == "no list" else f"1:{NODE}")
    assert 0 in named(world.round())
    assert world.has() > 0


def test_a_throttle_holds_for_partitions_that_are_followed_already(tmp_path: Path) -> None:
    world = World(tmp_path, throttled="")
    world.round()
    world.use_up()
    world.throttle("*")
    world.round()
    had = world.has(0), world.has(1)
    assert forgotten(world.round()) == [0, 1], "by the answer they lag"
    assert (world.has(0), world.has(1)) == had
    world.throttle(f"1:{NODE}")
    until(lambda: world.has(0) == 5, world.round)
    assert world.has(1) == had[1]


def test_one_that_is_in_sync_is_not_left_out_when_a_throttle_begins(tmp_path: Path) -> None:
    world = World(tmp_path, throttled="")
    until(lambda: world.has(0) == world.has(1) == 5, world.round)
    world.round()
    world.use_up()
    world.throttle("*")
    for _ in range(3):
        assert forgotten(world.round()) == []
    write(world.leader.log(), 0, b"new")
    world.round()
    assert world.has() == 6


def test_a_rate_of_nothing_lets_something_through_now_and_then(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=1)
    world.quota.update_quota(0)
    now_ms, rounds = 0.0, 0
    while world.has() < 5:
        if world.round(now_ms) is None:
            assert world.fetcher.next_due_ms() > now_ms
            now_ms = world.fetcher.next_due_ms()
        rounds += 1
        assert rounds < 50
    assert now_ms >= QuotaWindows().expiry_ms


@pytest.mark.parametrize("way", ["removed", "another epoch", "its log is gone"])
def test_nothing_stays_of_one_that_is_held_back_and_goes(tmp_path: Path, way: str) -> None:
    world = World(tmp_path, partitions=1)
    world.use_up()
    world.round()
    partition = world.ours[0]
    if way == "another epoch":
        world.leader.lead(1)
        partition.become(registration(epoch=1))
        world.fetcher.add(partition)
        assert world.fetcher.next_request(0) is None, "it still lags, as far as is known"
        assert named(world.round(3_000)) == {0: (0, 1, -1)}
        return
    if way == "its log is gone":
        partition.log.failed = True
    world.fetcher.remove(partition)
    assert world.fetcher.is_idle
    assert (world.fetcher._held_back, world.fetcher._lagging) == ({}, {})
    assert world.fetcher.next_request(3_000) is None
    assert world.fetcher.next_due_ms() == inf


def test_a_new_session_is_not_told_of_those_that_are_held_back(world: World) -> None:
    world.use_up()
    assert named(world.round()).keys() == {1}
    world.fetcher.on_failure(OSError("gone"), 0)
    assert named(world.round(200)).keys() == {1}
    until(lambda: world.has() == 5, lambda: world.round(10_000))


def test_answers_about_one_that_waits_are_dropped(world: World) -> None:
    """More are to be forgotten than one request names, so the leader goes on with some for a moment."""
    world.round()
    had = world.has()
    state = world.fetcher.state_of(world.ours[0])
    assert state is not None
    state.is_held_back = True
    records = world.leader.log().read(had, 200, 5).read()
    data = PartitionData(
        partition_index=0, high_watermark=5, log_start_offset=0, aborted_transactions=None, records=records
    )
    run_to_end(world.fetcher.on_response(answer_of([data]), 0))
    assert world.has() == had


def test_very_many_come_back_by_and_by(tmp_path: Path) -> None:
    """A quota is used up by few of them: the others are not named and forgotten over and over."""
    count = MAX_NAMED + 20
    world = World(tmp_path, partitions=count, throttled="*")
    world.quota.update_quota(inf)
    until(lambda: len(world.fetcher._session.partitions) == count, world.round)
    world.quota.update_quota(RATE)
    assert world.round() is None, "the session is given up, and there is none without them"
    waiting = list(world.fetcher._held_back)
    request = world.round(20_000)
    assert len(named(request)) == MAX_RELEASED
    assert [index for _, index in waiting[:MAX_RELEASED]] == list(named(request))
    now_ms = 20_000.0
    for _ in range(2_000):
        if all(partition.log.log_end_offset == 5 for partition in world.ours):
            return
        if world.round(now_ms) is None:
            now_ms = max(world.fetcher.next_due_ms(), now_ms + 1)
    raise AssertionError("some are forgotten")


def test_without_a_throttled_partition_nothing_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unasked(*_: object) -> Any:
        raise AssertionError("there is no throttle")

    world = World(tmp_path, throttled="0:99")
    for name in ("is_throttled", "is_quota_exceeded", "room_ms", "record"):
        monkeypatch.setattr(ReplicationQuotaManager, name, unasked)
    until(lambda: world.has(0) == world.has(1) == 5, world.round)


def test_a_fetcher_without_a_quota_has_no_throttle(tmp_path: Path) -> None:
    assert fetcher_of(follower(tmp_path / "ours")).next_request(0) is not None
