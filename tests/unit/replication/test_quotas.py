"""Replication quotas: what is throttled by which list, by how much, and when there is room again."""

from math import inf
from random import Random

import pytest

from ottla.config.broker import BrokerConfig
from ottla.model.ids import TopicPartition
from ottla.replication.quotas import ReplicationQuotaManager, ReplicationQuotas, throttled_partitions
from ottla.security.quotas import QuotaWindows, SimpleRate

WINDOWS = QuotaWindows(11, 1_000)
T0 = 50_000.0
ME = 1


def limited(limit: float) -> ReplicationQuotaManager:
    quota = ReplicationQuotaManager(WINDOWS)
    quota.update_quota(limit)
    return quota


class Told:
    """Somebody who waits for another rate or list."""

    def __init__(self, *quotas: ReplicationQuotaManager) -> None:
        self.times = 0
        for quota in quotas:
            quota.watchers.add(self._tell)

    def _tell(self) -> None:
        self.times += 1


# -- the rate


def test_a_simple_rate_counts_from_its_first_event_and_a_window_at_least() -> None:
    rate = SimpleRate(WINDOWS, 0.0)
    assert rate.measure(T0) == 0.0
    rate.record(1_000, T0)
    assert rate.measure(T0) == rate.measure(T0 + 1_000) == 1_000.0
    assert rate.measure(T0 + 4_000) == 250.0, "also while nothing happens"
    rate.record(1_000, T0 + 4_000)
    assert rate.measure(T0 + 4_000) == 500.0


def test_a_simple_rate_forgets_windows_one_after_the_other() -> None:
    rate = SimpleRate(WINDOWS, 0.0)
    rate.record(9_000, T0)
    rate.record(500, T0 + 5_000)
    assert rate.measure(T0 + 10_999) == pytest.approx(9_500 / 10.999)
    assert rate.measure(T0 + 11_000) == pytest.approx(500 / 6.0)
    assert rate.measure(T0 + 15_999) == pytest.approx(500 / 10.999)
    assert rate.measure(T0 + 16_000) == 0.0, "nor does the last one count for ever"
    rate.record(7, T0 + 20_000)
    assert rate.measure(T0 + 20_000) == 7.0


def test_looking_at_a_simple_rate_changes_nothing() -> None:
    """Whoever waits for room looks often; what was recorded must not count for longer by that."""
    looked_at, alone = SimpleRate(WINDOWS, 0.0), SimpleRate(WINDOWS, 0.0)
    random = Random(7)
    now_ms = T0
    for _ in range(2_000):
        now_ms += random.choice((1, 90, 400, 1_000, 3_000))
        if random.random() < 0.6:
            looked_at.measure(now_ms)
            looked_at.within_ms(100, now_ms)
        else:
            for rate in (looked_at, alone):
                rate.record(100, now_ms)
            assert looked_at.measure(now_ms) == alone.measure(now_ms)


# -- the quota


def test_without_a_rate_nothing_is_too_much() -> None:
    quota = ReplicationQuotaManager(WINDOWS)
    quota.record(1 << 40, T0)
    assert not quota.is_quota_exceeded(T0)
    quota.update_quota(10)
    assert quota.is_quota_exceeded(T0), "what came before counts when a rate is set"
    quota.update_quota(inf)
    assert not quota.is_quota_exceeded(T0)


def test_there_is_room_when_the_rate_is_down_to_the_quota() -> None:
    quota = limited(500_000)
    quota.record(500_000, T0)
    assert not quota.is_quota_exceeded(T0), "as much as the quota is not too much"
    quota.record(1_000_000, T0)
    assert quota.room_ms(T0) == T0 + 3_000
    assert quota.is_quota_exceeded(T0 + 2_999)
    assert not quota.is_quota_exceeded(T0 + 3_000)


def test_more_than_the_windows_have_room_for_is_forgotten_with_them() -> None:
    quota = limited(10)
    quota.record(1_000, T0)
    assert quota.room_ms(T0) == T0 + WINDOWS.expiry_ms
    assert quota.is_quota_exceeded(T0 + WINDOWS.expiry_ms - 1)
    assert not quota.is_quota_exceeded(T0 + WINDOWS.expiry_ms)


def test_a_quota_of_nothing_lets_something_through_when_all_is_forgotten() -> None:
    quota = limited(0)
    assert not quota.is_quota_exceeded(T0)
    quota.record(1, T0)
    assert quota.is_quota_exceeded(T0)
    assert quota.room_ms(T0) == T0 + WINDOWS.expiry_ms
    assert not quota.is_quota_exceeded(T0 + WINDOWS.expiry_ms)


@pytest.mark.parametrize("windows", [WINDOWS, QuotaWindows(1, 1_000), QuotaWindows(2, 5_000)])
@pytest.mark.parametrize("limit", [0.0, 3.0, 1_000.0, 1e9])
def test_whoever_waits_for_room_finds_it_in_a_few_looks(windows: QuotaWindows, limit: float) -> None:
    random = Random(int(limit) + windows.samples)
    quota = ReplicationQuotaManager(windows)
    quota.update_quota(limit)
    now_ms = T0
    for _ in range(500):
        now_ms += random.random() * random.choice((1, 100, 3_000))
        quota.record(random.choice((1, 1_000, 1 << 20)), now_ms)
        looks = 0
        while quota.is_quota_exceeded(now_ms):
            at_ms = quota.room_ms(now_ms)
            assert now_ms + 1 <= at_ms <= now_ms + windows.expiry_ms
            now_ms, looks = at_ms, looks + 1
            assert looks <= windows.samples + 2


@pytest.mark.parametrize("limit", [100_000.0, 5_000_000.0])
def test_by_and_by_it_is_the_rate_that_was_asked_for(limit: float) -> None:
    quota, now_ms, copied = limited(limit), T0, 0
    while now_ms < T0 + 600_000:
        if quota.is_quota_exceeded(now_ms):
            now_ms = quota.room_ms(now_ms)
        else:
            quota.record(100_000, now_ms)
            copied += 100_000
            now_ms += 5
    assert copied / 600 == pytest.approx(limit, rel=0.05)


# -- the lists


@pytest.mark.parametrize(
    ("replicas", "throttled"),
    [
        ("", frozenset()),
        ("0:1", {0}),
        ("0:2,1:3", frozenset()),
        ("0:1,3:2,5:1, 7:1", {0, 5, 7}),
        ("0:11,1:1", {1}),
        (",0:1,", {0}),
        ("*", None),
        (" * ", None),
        ("*,0:1", {0}),
        ("zero:1,0:one,1,2:1:1,-3:1,4:1", {4}),
        ("9" * 5_000 + ":1,0:" + "9" * 5_000, frozenset()),
    ],
)
def test_which_partitions_a_list_throttles_here(replicas: str, throttled: set[int] | None) -> None:
    assert throttled_partitions(replicas, ME) == throttled


def test_lists_of_topics_come_and_go() -> None:
    quotas = ReplicationQuotas(ME)
    leader, follower = quotas.leader, quotas.follower
    told = Told(leader, follower)
    assert not leader.is_on
    quotas.topic_changed("orders", {"leader.replication.throttled.replicas": "0:1,1:2"})
    assert (leader.is_on, follower.is_on, told.times) == (True, False, 1)
    assert leader.is_throttled(TopicPartition("orders", 0))
    assert not leader.is_throttled(TopicPartition("orders", 1)), "of another broker"
    assert not leader.is_throttled(TopicPartition("others", 0))
    quotas.topic_changed(
        "orders",
        {"leader.replication.throttled.replicas": "0:1", "follower.replication.throttled.replicas": "*"},
    )
    assert (follower.is_on, told.times) == (True, 2), "the first list is the same"
    assert follower.is_throttled(TopicPartition("orders", 99))
    quotas.topic_changed("others", {"leader.replication.throttled.replicas": "*"})
    quotas.topic_changed("orders", {})
    assert (leader.is_on, follower.is_on) == (True, False)
    assert not leader.is_throttled(TopicPartition("orders", 0))
    quotas.topic_changed("others", {})
    assert not leader.is_on
    before = told.times
    quotas.topic_changed("others", {})
    assert told.times == before


def test_a_list_of_other_brokers_turns_nothing_on() -> None:
    quotas = ReplicationQuotas(ME)
    quotas.topic_changed("orders", {"leader.replication.throttled.replicas": "0:2,1:3"})
    assert not quotas.leader.is_on


# -- the rates


def test_rates_are_what_is_set_for_the_broker_or_else_for_all() -> None:
    names = {
        "leader.replication.throttled.rate": "100",
        "follower.replication.throttled.rate": "200",
        "replica.alter.log.dirs.io.max.bytes.per.second": "300",
    }
    quotas = ReplicationQuotas(ME)
    three = (quotas.leader, quotas.follower, quotas.alter_log_dirs)
    for quota in three:
        quota.record(250, T0)
    told = Told(*three)
    static = BrokerConfig.of({"node.id": 1})

    def exceeded(of_all: dict[str, str], own: dict[str, str]) -> list[bool]:
        quotas.rates_changed(static.with_dynamic(of_all, own).replication_rate)
        return [quota.is_quota_exceeded(T0) for quota in three]

    assert exceeded({}, {}) == [False, False, False]
    assert told.times == 0
    assert exceeded(names, {}) == [True, True, False]
    assert told.times == 3
    assert exceeded(names, {"follower.replication.throttled.rate": "250"}) == [True, False, False]
    assert exceeded({}, {"follower.replication.throttled.rate": "0"}) == [False, True, False]
    assert exceeded({}, {}) == [False, False, False]


def test_a_watcher_may_leave_when_it_is_told() -> None:
    quota = ReplicationQuotaManager(WINDOWS)
    told: list[int] = []

    def first() -> None:
        told.append(1)
        quota.watchers.clear()

    quota.watchers.add(first)
    quota.update_quota(5)
    quota.update_quota(6)
    assert told == [1]
