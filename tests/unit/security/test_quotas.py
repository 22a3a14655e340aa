"""Quotas: which one holds for whom, how long they wait, and that nobody's memory grows."""

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from ottla.config.errors import ConfigError
from ottla.model.errors import ErrorCode
from ottla.security import quotas
from ottla.security.principal import KafkaPrincipal
from ottla.security.quotas import (
    ClientQuotaManager,
    ClientQuotas,
    ConnectionRates,
    QuotaEntity,
    QuotaType,
    QuotaWindows,
    Rate,
    ThrottlingQuotaExceededError,
    TokenBucket,
    load_callback,
)

ALICE, BOB = KafkaPrincipal("User", "alice"), KafkaPrincipal("User", "bob")
WINDOWS = QuotaWindows(samples=11, window_ms=1_000)
DEFAULT = None
T0 = 1_000_000.0


def entity(**parts: str | None) -> QuotaEntity:
    return tuple(sorted(((kind.replace("_", "-"), name) for kind, name in parts.items()), key=lambda p: p[0]))


def limits(*entries: tuple[QuotaEntity, float]) -> ClientQuotaManager:
    manager = ClientQuotaManager(QuotaType.PRODUCE, WINDOWS)
    for each, limit in entries:
        manager.set_quota(each, limit)
    return manager


# --- rates


def test_a_rate_counts_all_windows_but_one_from_the_beginning() -> None:
    rate = Rate(WINDOWS, T0)
    rate.record(1_000, T0)
    assert rate.window_size_ms(T0) == 10_000
    assert rate.measure(T0) == 100.0
    rate.record(0, T0 + 250)
    assert rate.window_size_ms(T0 + 250) == 10_250, "and the part of the last one"
    rate.record(0, T0 + 1_250)
    assert rate.window_size_ms(T0 + 1_250) == 10_250
    rate.record(0, T0 + 10_600)
    assert rate.window_size_ms(T0 + 10_600) == 10_600, "then as it is"


def test_what_is_long_ago_counts_no_more() -> None:
    rate = Rate(WINDOWS, T0)
    rate.record(500, T0)
    rate.record(100, T0 + 10_999)
    assert rate.measure(T0 + 10_999) == pytest.approx(600 / 10.999)
    rate.record(1, T0 + 11_000)
    assert rate.measure(T0 + 11_000) == pytest.approx(101 / 10.001)
    rate.record(7, T0 + 1e9)
    assert rate.measure(T0 + 1e9) == 0.7


def test_a_throttle_time_brings_the_rate_back() -> None:
    """O * W / (W + X) = T: so long without anything, and the rate is the quota."""
    rate = Rate(WINDOWS, T0)
    rate.record(30_000, T0)
    assert rate.throttle_ms(1_000, T0) == 20_000
    assert rate.throttle_ms(3_000, T0) == 0
    assert rate.throttle_ms(2_999, T0) == 3
    assert rate.throttle_ms(1e-9, T0) == 2**31 - 1, "what a response can say"


def test_what_was_taken_back_was_not() -> None:
    rate = Rate(WINDOWS, T0)
    rate.record(30_000, T0)
    rate.record(-30_000, T0 + 5)
    assert rate.measure(T0 + 5) == 0.0


def test_a_token_bucket_fills_up_to_a_burst() -> None:
    bucket = TokenBucket(WINDOWS, T0)
    assert bucket.measure(5.0, T0) == 55.0
    bucket.record(60, 5.0, T0)
    assert bucket.measure(5.0, T0) == -5.0
    assert bucket.throttle_ms(5.0, T0) == 1_000
    assert bucket.throttle_ms(5.0, T0 + 400) == 600
    assert bucket.throttle_ms(5.0, T0 + 1_000) == 0
    assert bucket.measure(5.0, T0 + 1e9) == 55.0
    bucket.record(-100, 5.0, T0 + 1e9)
    assert bucket.measure(5.0, T0 + 1e9) == 55.0


# --- whom a quota is for

LEVELS: list[tuple[QuotaEntity, float]] = [
    (entity(user="alice", client_id="c"), 1.0),
    (entity(user="alice", client_id=DEFAULT), 2.0),
    (entity(user="alice"), 3.0),
    (entity(user=DEFAULT, client_id="c"), 4.0),
    (entity(user=DEFAULT, client_id=DEFAULT), 5.0),
    (entity(user=DEFAULT), 6.0),
    (entity(client_id="c"), 7.0),
    (entity(client_id=DEFAULT), 8.0),
]


def limit_of(manager: ClientQuotaManager, principal: KafkaPrincipal, client_id: str | None) -> float | None:
    found = manager.max_in_window(principal, client_id, T0)
    return None if found == float("inf") else found / 10.0


@pytest.mark.parametrize("most_specific", range(8))
def test_the_most_specific_counts(most_specific: int) -> None:
    manager = limits(*LEVELS[most_specific:])
    assert limit_of(manager, ALICE, "c") == LEVELS[most_specific][1]
    # And when they go one after the other, the next.
    for index in range(most_specific, 8):
        assert limit_of(manager, ALICE, "c") == LEVELS[index][1]
        manager.set_quota(LEVELS[index][0], None)
    assert limit_of(manager, ALICE, "c") is None
    assert not manager.enabled


def test_of_others() -> None:
    manager = limits(*LEVELS)
    assert limit_of(manager, ALICE, "other") == 2.0
    assert limit_of(manager, BOB, "c") == 4.0
    assert limit_of(manager, BOB, "other") == 5.0
    only_alices = limits(*LEVELS[:3])
    assert limit_of(only_alices, BOB, "c") is None
    assert only_alices.record_and_throttle_ms(BOB, "c", 1e12, T0) == 0


@pytest.mark.parametrize("client_id", [None, ""])
def test_a_client_without_a_name_is_under_the_default(client_id: str | None) -> None:
    assert limit_of(limits((entity(client_id=DEFAULT), 8.0)), ALICE, client_id) == 8.0
    assert limit_of(limits((entity(user="alice"), 3.0)), ALICE, client_id) == 3.0
    assert limit_of(limits((entity(client_id="c"), 7.0)), ALICE, client_id) is None


def throttle(manager: ClientQuotaManager, principal: KafkaPrincipal, client_id: str, amount: float) -> int:
    return manager.record_and_throttle_ms(principal, client_id, amount, T0)


def test_who_shares_a_quota() -> None:
    by_user = limits((entity(user=DEFAULT), 100.0))
    assert throttle(by_user, ALICE, "a", 1_000) == 0
    assert throttle(by_user, BOB, "a", 1_000) == 0, "each user has its own"
    assert throttle(by_user, ALICE, "b", 1_000) == 10_000, "all clients of a user one"
    by_client = limits((entity(client_id=DEFAULT), 100.0))
    assert throttle(by_client, ALICE, "a", 1_000) == 0
    assert throttle(by_client, ALICE, "b", 1_000) == 0
    assert throttle(by_client, BOB, "a", 1_000) == 10_000
    by_both = limits((entity(user=DEFAULT, client_id=DEFAULT), 100.0))
    for principal in (ALICE, BOB):
        for client_id in ("a", "b"):
            assert throttle(by_both, principal, client_id, 1_000) == 0
    assert throttle(by_both, ALICE, "a", 1_000) == 10_000
    one_users_clients = limits((entity(user="alice", client_id=DEFAULT), 100.0))
    assert throttle(one_users_clients, ALICE, "a", 1_000) == 0
    assert throttle(one_users_clients, ALICE, "b", 1_000) == 0


def test_a_token_holder_is_the_same_user() -> None:
    manager = limits((entity(user="alice"), 100.0))
    throttle(manager, ALICE, "a", 1_000)
    assert throttle(manager, ALICE._replace(token_authenticated=True), "a", 1_000) == 10_000


def test_a_changed_limit_holds_at_once_for_what_was_used() -> None:
    manager = limits((entity(user="alice"), 100.0))
    assert throttle(manager, ALICE, "a", 2_000) == 10_000
    manager.set_quota(entity(user="alice"), 200.0)
    assert throttle(manager, ALICE, "a", 0) == 0
    manager.set_quota(entity(user="alice"), 50.0)
    assert throttle(manager, ALICE, "a", 0) == 30_000


def test_without_any_quota_nothing_is_remembered() -> None:
    manager = ClientQuotaManager(QuotaType.FETCH)
    assert throttle(manager, ALICE, "a", 1e18) == 0
    manager.record(ALICE, "a", 1e18, T0)
    assert (len(manager), manager.enabled) == (0, False)
    assert manager.max_in_window(ALICE, "a", T0) == float("inf")


def test_request_time_is_waited_for_no_longer_than_a_window() -> None:
    manager = ClientQuotaManager(QuotaType.REQUEST, WINDOWS)
    manager.set_quota(entity(user="alice"), 1.0)
    assert throttle(manager, ALICE, "a", 10_000) == 1_000
    assert throttle(limits((entity(user="alice"), 1.0)), ALICE, "a", 10_000) > 1_000_000


def test_what_is_throttled_does_not_happen() -> None:
    sensor = limits((entity(user="alice"), 100.0)).sensor(ALICE, "a", T0)
    assert sensor is not None
    assert sensor.record_unless_throttled(600, T0) == 0
    assert sensor.record_unless_throttled(600, T0) == 2_000
    assert sensor.record_unless_throttled(400, T0) == 0, "and was not counted"


def test_what_was_too_much_once_does_not_come_at_once_again() -> None:
    manager = limits((entity(user="alice"), 100.0))
    sensor = manager.sensor(ALICE, "a", T0)
    assert sensor is not None
    assert sensor.record_unless_throttled(1_000, T0) == 0
    assert sensor.record_unless_throttled(100, T0) == 1_000
    assert sensor.record_unless_throttled(100, T0 + 9_000) == 1_000
    later = T0 + 11_000
    # A second's worth has come in since, and what comes in from now on; Kafka would let a thousand be used.
    assert sensor.record_unless_throttled(100, later) == 0
    assert sensor.record_unless_throttled(100, later) == 0
    assert sensor.record_unless_throttled(100, later) == 1_000
    assert sensor.record_unless_throttled(100, later + 999.6) == 1, (
        "never nothing while there is something to wait for"
    )
    assert sensor.record_unless_throttled(150, later + 1_000) == 0
    # Another limit, another pace.
    assert sensor.record_unless_throttled(100, later + 1_000) == 1_500
    manager.set_quota(entity(user="alice"), 200.0)
    assert manager.sensor(ALICE, "a", later + 1_000) is sensor
    assert sensor.record_unless_throttled(100, later + 1_000) == 0


def test_while_a_pace_is_kept_nothing_is_used_beside_it() -> None:
    """Handlers add to a rate by themselves for as long as it is ample, and the pace would not hear of it."""
    sensor = limits((entity(user="alice"), 100.0)).sensor(ALICE, "a", T0)
    assert sensor is not None
    assert sensor.record_unless_throttled(10, T0) == 0
    assert sensor.rate.ample > 900
    assert sensor.record_unless_throttled(1_000, T0) > 0
    assert sensor.rate.ample < 0
    assert sensor.record_and_throttle_ms(10, T0 + 1) == 99
    assert sensor.rate.ample < 0
    assert sensor.record_unless_throttled(10, T0 + 5_000) == 0
    assert sensor.rate.ample < 0
    after = T0 + 30_000
    assert sensor.record_and_throttle_ms(10, after) == 0
    assert sensor.rate.ample > 900


def test_a_pace_is_not_kept_for_longer_than_windows_remember() -> None:
    sensor = limits((entity(user="alice"), 100.0)).sensor(ALICE, "a", T0)
    assert sensor is not None
    assert sensor.record_and_throttle_ms(10_000_000, T0) > 90_000_000, "that is Kafka's formula"
    # Of others who share the quota.
    assert sensor.record_unless_throttled(1, T0) == 11_000
    assert sensor.record_unless_throttled(1, T0 + 11_000) == 0
    assert sensor.record_and_throttle_ms(10_000_000, T0 + 11_500) > 90_000_000
    assert sensor.record_unless_throttled(1, T0 + 11_500) == 11_000
    after = T0 + 11_500 + 22_000
    assert sensor.record_unless_throttled(1_000, after) == 0, "as if nothing had been"


def test_what_is_too_much_for_all_windows_happens_when_nothing_else_did() -> None:
    manager = limits((entity(user="alice"), 100.0))
    assert manager.sensor(BOB, "a", T0) is None
    sensor = manager.sensor(ALICE, "a", T0)
    assert sensor is not None
    assert sensor.record_unless_throttled(10, T0) == 0
    assert sensor.record_unless_throttled(5_000, T0 + 10) > 40_000
    after = T0 + 11_010
    assert sensor.record_unless_throttled(5_000, after) == 0
    assert sensor.record_unless_throttled(5_000, after + 10_000) > 0, "once, and then it counts"


def test_whoever_holds_a_sensor_is_told_when_another_counts() -> None:
    found = ClientQuotas()
    image: Quotas = {entity(client_id=DEFAULT): {"producer_byte_rate": 5.0}}
    found.update(image, image)
    before = found.version
    found.produce.sensor(ALICE, "a", T0)
    found.produce.sensor(ALICE, "a", T0)
    assert found.version == before
    found.produce.sensor(ALICE, "b", T0 + 2 * quotas.INACTIVE_SENSOR_EXPIRATION_MS)
    assert found.version > before, "the other is forgotten"
    before = found.version
    found.update(image, {})
    assert found.version > before


@pytest.mark.parametrize("windows", [WINDOWS, QuotaWindows(1, 1_000), QuotaWindows(2, 5_000)])
def test_both_in_one_is_one_after_the_other(windows: QuotaWindows) -> None:
    rng = Random(7)
    one, other, now_ms = Rate(windows, T0), Rate(windows, T0), T0
    for _ in range(5_000):
        now_ms += rng.choice((0, 0.4, 30, 900, 4_000))
        amount, limit = rng.choice((0, 1, 700, -1, 90_000)), rng.choice((1.0, 300.0, 1e5))
        other.record(amount, now_ms)
        assert one.record_and_throttle_ms(amount, limit, now_ms) == other.throttle_ms(limit, now_ms)


def test_a_limit_of_nothing_lets_nothing_happen() -> None:
    rate = Rate(WINDOWS, T0)
    rate.record(1, T0)
    assert rate.throttle_ms(0, T0) == quotas.MAX_THROTTLE_MS


# --- memory


def test_sensors_of_who_is_away_are_forgotten() -> None:
    manager = limits((entity(client_id=DEFAULT), 100.0))
    for n in range(5):
        manager.record_and_throttle_ms(ALICE, f"old-{n}", 5_000, T0)
    assert len(manager) == 5
    later = T0 + quotas.INACTIVE_SENSOR_EXPIRATION_MS
    manager.record_and_throttle_ms(ALICE, "old-3", 1, later - 1)
    manager.record_and_throttle_ms(ALICE, "new", 1, later)
    assert len(manager) == 2
    # Also whoever looked one up before has the new one.
    assert manager.record_and_throttle_ms(ALICE, "old-0", 1_000, later) == 0
    assert manager.record_and_throttle_ms(ALICE, "old-0", 1_000, later) == 10_000


def test_those_who_share_a_quota_share_it_after_it_was_forgotten() -> None:
    manager = limits((entity(user=DEFAULT), 100.0))
    manager.record_and_throttle_ms(ALICE, "a", 1_000, T0)
    later = T0 + quotas.INACTIVE_SENSOR_EXPIRATION_MS
    manager.record_and_throttle_ms(BOB, "x", 1, later)
    assert manager.record_and_throttle_ms(ALICE, "b", 1_000, later) == 0
    assert manager.record_and_throttle_ms(ALICE, "a", 1_000, later) == 10_000


def test_a_flood_of_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_SENSORS", 50)
    monkeypatch.setattr(quotas, "MAX_CACHED_CLIENTS", 60)
    manager = limits((entity(client_id=DEFAULT), 100.0), (entity(user="bob"), 100.0))
    for n in range(1_000):
        now_ms = T0 + n / 1_000
        manager.record_and_throttle_ms(ALICE, f"client-{n}", 1, now_ms)
        # Whoever is heard from all the time stays, however many come.
        waited = manager.record_and_throttle_ms(BOB, "c", 100, now_ms)
        assert (waited > 0) == (n >= 10), n
        assert len(manager) <= 50
        assert len(manager._by_client) <= 60


def test_a_debt_is_not_forgotten_for_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_SENSORS", 50)
    manager = ClientQuotaManager(QuotaType.CONTROLLER_MUTATION, WINDOWS)
    manager.set_quota(entity(user="bob"), 1.0)
    manager.set_quota(entity(client_id=DEFAULT), 1.0)
    manager.mutation_quota(BOB, "c", T0, strict=True).record(10_000, T0)
    for n in range(1_000):
        now_ms = T0 + 1_000 * n
        manager.mutation_quota(ALICE, f"client-{n}", now_ms, strict=True).record(1, now_ms)
    with pytest.raises(ThrottlingQuotaExceededError):
        manager.mutation_quota(BOB, "c", T0 + 1e6, strict=True).record(1, T0 + 1e6)


def test_of_a_long_name_only_a_digest_is_kept() -> None:
    manager = limits((entity(client_id=DEFAULT), 100.0), (entity(client_id="x" * 5_000), 1_000.0))
    assert throttle(manager, ALICE, "y" * 30_000, 1_000) == 0
    assert throttle(manager, ALICE, "y" * 30_000, 1_000) == 10_000
    assert throttle(manager, ALICE, "y" * 30_001, 1_000) == 0
    assert throttle(manager, ALICE, "x" * 5_000, 10_000) == 0, "one with a quota of its own"
    assert not manager._by_client
    assert max(len(str(tags)) for tags in manager._sensors) < 200


# --- mutations


def mutations(limit: float = 1.0) -> ClientQuotaManager:
    manager = ClientQuotaManager(QuotaType.CONTROLLER_MUTATION, WINDOWS)
    manager.set_quota(entity(user="alice"), limit)
    return manager


def test_a_strict_quota_refuses_while_it_is_overdrawn() -> None:
    manager = mutations()
    quota = manager.mutation_quota(ALICE, "a", T0, strict=True)
    quota.record(20, T0)  # the last that is let in may be too large
    assert not quota.is_exceeded
    with pytest.raises(ThrottlingQuotaExceededError) as refused:
        quota.record(1, T0)
    assert (refused.value.code, refused.value.throttle_ms) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 9_000)
    assert quota.is_exceeded
    assert quota.throttle_ms(T0 + 100) == 8_900
    assert quota.throttle_ms(T0 + 1e6) == 0
    later = manager.mutation_quota(ALICE, "a", T0 + 8_999, strict=True)
    with pytest.raises(ThrottlingQuotaExceededError):
        later.record(1, T0 + 8_999)
    manager.mutation_quota(ALICE, "a", T0, strict=True).record(1, T0 + 9_000)


def test_a_permissive_quota_lets_in_and_makes_wait() -> None:
    quota = mutations().mutation_quota(ALICE, "a", T0, strict=False)
    quota.record(11, T0)
    assert quota.throttle_ms(T0) == 0
    quota.record(20, T0)
    assert quota.throttle_ms(T0) == 20_000
    assert not quota.is_exceeded


@pytest.mark.parametrize("strict", [True, False])
def test_who_has_no_quota_changes_what_they_like(strict: bool) -> None:
    for manager in (mutations(), ClientQuotaManager(QuotaType.CONTROLLER_MUTATION)):
        quota = manager.mutation_quota(BOB, "a", T0, strict=strict)
        quota.record(1e9, T0)
        assert (quota.throttle_ms(T0), quota.is_exceeded) == (0, False)


# --- connections


def test_a_listener_and_the_broker_have_rates() -> None:
    rates = ConnectionRates(WINDOWS, broker_limit=4, protected_listeners=["INTERNAL"])
    rates.set_listener_limit("CLIENTS", 2)
    waits = [rates.record_connection("CLIENTS", T0) for _ in range(25)]
    assert waits[:20] == [0] * 20
    assert waits[20:23] == [500, 1_000, 1_000], "no longer than a window"
    assert [rates.record_connection("OTHER", T0) for _ in range(16)] == [0] * 15 + [250]
    assert rates.record_connection("INTERNAL", T0) == 0, "the brokers' listener is not held up by that"
    rates.set_broker_limit(2**31 - 1)
    assert rates.record_connection("OTHER", T0) == 0


def test_an_address_has_a_rate_and_what_it_is_refused_is_not_counted() -> None:
    rates = ConnectionRates(WINDOWS, broker_limit=3)
    rates.set_ip_limit("10.0.0.1", 1.0)

    def connect(address: str) -> int:
        assert rates.record_connection("CLIENTS", T0) == 0
        return rates.record_address("CLIENTS", address, T0)

    assert [connect("10.0.0.1") for _ in range(30)] == [0] * 10 + [1_000] * 20
    assert connect("::ffff:10.0.0.1") == 1_000, "the same one"
    # Only ten have come in, so that there is room for twenty of others.
    assert [connect("10.0.0.2") for _ in range(20)] == [0] * 20
    rates.set_ip_limit("10.0.0.1", None)
    rates.set_ip_limit(None, 100.0)
    rates.set_broker_limit(1_000)
    assert connect("10.0.0.1") == 0
    assert rates.record_address("CLIENTS", "", T0) == 0, "one that has no address"
    with pytest.raises(ValueError, match="does not appear"):
        rates.set_ip_limit("a.host", 1.0)


def test_addresses_are_forgotten_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_SENSORS", 50)
    rates = ConnectionRates(WINDOWS)
    rates.set_ip_limit(None, 1.0)
    for n in range(1_000):
        rates.record_address("CLIENTS", f"10.0.{n // 250}.{n % 250}", T0 + n / 1_000)
    assert len(rates._ips) <= 50
    rates.record_address("CLIENTS", "1.1.1.1", T0 + quotas.INACTIVE_SENSOR_EXPIRATION_MS * 2)
    assert len(rates._ips) < 50


# --- the metadata

Quotas = dict[QuotaEntity, Mapping[str, float]]


def test_quotas_follow_the_metadata() -> None:
    both = ClientQuotas()
    image: Quotas = {
        entity(user="alice"): {"producer_byte_rate": 5.0, "consumer_byte_rate": 6.0},
        entity(ip="10.0.0.1"): {"connection_creation_rate": 1.0},
        entity(ip="a.host"): {"connection_creation_rate": 2.0},
        entity(ip=None): {"connection_creation_rate": 3.0},
        entity(client_id=None): {"controller_mutation_rate": 7.0, "request_percentage": 8.0},
    }
    assert both.update(image, image) == [("a.host", 2.0)]
    assert limit_of(both.produce, ALICE, "c") == 5.0
    assert limit_of(both.fetch, ALICE, "c") == 6.0
    assert limit_of(both.request, BOB, "c") == 8.0
    assert limit_of(both.controller_mutation, BOB, "c") == 7.0
    after: Quotas = {entity(user="alice"): {"consumer_byte_rate": 9.0}, entity(client_id="x"): {}}
    assert both.update([entity(user="alice"), entity(ip="a.host"), entity(client_id="x")], after) == [
        ("a.host", None)
    ]
    assert limit_of(both.produce, ALICE, "c") is None
    assert not both.produce.enabled
    assert limit_of(both.fetch, ALICE, "c") == 9.0
    assert limit_of(both.request, BOB, "c") == 8.0, "not named in the delta"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_what_is_no_limit_limits_nothing(value: float) -> None:
    """Apache's controller lets such into the log."""
    found = ClientQuotas()
    image: Quotas = {entity(user="alice"): {"producer_byte_rate": value, "nonsense": 1.0}}
    found.update(image, image)
    found.update(
        [entity(user="alice", group="g"), ()], {entity(user="alice", group="g"): {"a": 1.0}, (): {"b": 1.0}}
    )
    assert throttle(found.produce, ALICE, "c", 1e12) == 0
    assert not found.produce.enabled


# --- the operator's own


class ByFirstLetter:
    """Users whose names begin alike share a quota."""

    def __init__(self) -> None:
        self.limit: float | None = 100.0
        self.reset = False
        self.told: list[tuple[object, ...]] = []
        self.settings: dict[str, str] = {}

    def configure(self, settings: dict[str, str]) -> None:
        self.settings = settings

    def quota_metric_tags(
        self, quota_type: QuotaType, principal: KafkaPrincipal, client_id: str
    ) -> Mapping[str, str]:
        if principal.name == "broken":
            raise ZeroDivisionError
        return {"letter": principal.name[0]}

    def quota_limit(self, quota_type: QuotaType, tags: Mapping[str, str]) -> float | None:
        return self.limit

    def update_quota(self, quota_type: QuotaType, entity: QuotaEntity, value: float) -> None:
        self.told.append((quota_type, entity, value))

    def remove_quota(self, quota_type: QuotaType, entity: QuotaEntity) -> None:
        self.told.append((quota_type, entity))

    def quota_reset_required(self, quota_type: QuotaType) -> bool:
        reset, self.reset = self.reset, False
        return reset


def test_a_callback_says_who_shares_what() -> None:
    callback = ByFirstLetter()
    manager = ClientQuotaManager(QuotaType.PRODUCE, WINDOWS, callback)
    assert manager.enabled
    assert throttle(manager, ALICE, "a", 1_000) == 0
    assert throttle(manager, BOB, "a", 1_000) == 0
    assert throttle(manager, KafkaPrincipal("User", "anna"), "b", 1_000) == 10_000
    callback.limit = 200.0
    assert throttle(manager, ALICE, "a", 0) == 10_000, "it has not said so"
    callback.reset = True
    assert throttle(manager, ALICE, "a", 0) == 0
    callback.limit, callback.reset = None, True
    assert throttle(manager, ALICE, "a", 1e12) == 0
    callback.limit = 1.0
    manager.set_quota(entity(user="alice"), 5.0)
    assert throttle(manager, ALICE, "a", 0) > 0, "it is asked anew when the metadata has changed"
    manager.set_quota(entity(user="alice"), None)
    assert callback.told == [
        (QuotaType.PRODUCE, entity(user="alice"), 5.0),
        (QuotaType.PRODUCE, entity(user="alice")),
    ]
    assert manager.enabled


def test_a_callback_that_fails_limits_nobody(caplog: pytest.LogCaptureFixture) -> None:
    manager = ClientQuotaManager(QuotaType.PRODUCE, WINDOWS, ByFirstLetter())
    for _ in range(3):
        assert throttle(manager, KafkaPrincipal("User", "broken"), "a", 1e12) == 0
    assert len(caplog.records) == 1
    assert throttle(manager, ALICE, "a", 1_001) > 0, "others are"


@pytest.mark.parametrize("said", ["5", [5], object()])
def test_a_callback_whose_limit_is_no_number_limits_nobody(
    said: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    callback = ByFirstLetter()
    monkeypatch.setattr(callback, "quota_limit", lambda quota_type, tags: said)
    manager = ClientQuotaManager(QuotaType.PRODUCE, WINDOWS, callback)
    for _ in range(3):
        assert throttle(manager, ALICE, "a", 1e12) == 0
    assert len(caplog.records) == 1


def test_a_callback_that_cannot_be_told_is_told_of_the_next(caplog: pytest.LogCaptureFixture) -> None:
    callback = ByFirstLetter()
    quotas_of = ClientQuotas(callback=callback)
    told, callback.told = callback.told, None  # type: ignore[assignment]
    image: Quotas = {entity(user="alice"): {"producer_byte_rate": 5.0}}
    quotas_of.update(image, image)
    assert "was told of a quota" in caplog.text
    callback.told = told
    quotas_of.update(image, {})
    assert callback.told == [(QuotaType.PRODUCE, entity(user="alice"))]


def test_a_callback_is_found_by_its_import_path() -> None:
    key = "client.quota.callback.class"
    found = load_callback(key, f"{__name__}.ByFirstLetter", {"a": "b"})
    assert isinstance(found, ByFirstLetter)
    assert found.settings == {"a": "b"}
    for wrong in ("nowhere.at.all", "collections.OrderedDict", "x", f"{__name__}.ALICE"):
        with pytest.raises(ConfigError, match=r"client\.quota\.callback\.class"):
            load_callback(key, wrong, {})


# --- what happens with every request


def test_another_limit_is_looked_at_at_once() -> None:
    manager = ClientQuotaManager(QuotaType.PRODUCE)
    manager.set_quota((("user", "alice"),), 1e9)
    sensor = manager.sensor(ALICE, "app", T0)
    assert sensor is not None
    assert sensor.record_and_throttle_ms(20_000, T0) == 0
    assert sensor.rate.ample > 1e9
    manager.set_quota((("user", "alice"),), 1_000.0)
    assert manager.sensor(ALICE, "app", T0) is sensor
    assert sensor.rate.value + 1 > sensor.rate.ample, "nothing is certain any more"
    assert sensor.record_and_throttle_ms(0, T0) == 10_000


def test_whether_it_matters_how_a_client_calls_itself() -> None:
    quotas = ClientQuotas()
    table: dict[Any, dict[str, float]] = {}

    def change(entity: Any, **limits: float) -> bool:
        table[entity] = limits
        quotas.update([entity], table)
        return quotas.is_by_client_id

    user, both, default = (("user", "a"),), (("client-id", "x"), ("user", "a")), (("client-id", None),)
    assert not change(user, producer_byte_rate=1.0, request_percentage=2.0)
    assert change(both, producer_byte_rate=1.0)
    assert change(both, producer_byte_rate=3.0), "changed, not another one"
    assert change(default, consumer_byte_rate=1.0)
    assert change(both)
    assert not change(default)
    assert not change(default), "nothing was there"
