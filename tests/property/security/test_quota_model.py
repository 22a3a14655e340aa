"""The quota arithmetic against models that keep every event, and Kafka's samples as they are."""

from dataclasses import dataclass, field
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.security.principal import KafkaPrincipal
from ottla.security.quotas import ClientQuotaManager, QuotaEntity, QuotaType, QuotaWindows, Rate, TokenBucket

T0 = 1_700_000_000_000
windows = st.builds(QuotaWindows, st.integers(1, 12), st.sampled_from([1, 7, 1_000, 2_000]))
# How long after the one before, in windows, and how much.
events = st.lists(
    st.tuples(
        st.one_of(st.sampled_from([0.0, 0.001, 0.5, 1.0, 1.5, 10.0, 11.0, 12.0, 40.0]), st.floats(0.0, 15.0)),
        st.one_of(st.integers(-100, 10_000), st.floats(0.0, 1e6)),
    ),
    min_size=1,
    max_size=60,
)


@dataclass
class Sample:
    start_ms: int
    last_ms: int
    value: float = 0.0


@dataclass
class NaiveRate:
    """All samples that ever were; those count whose last event is recent enough."""

    windows: QuotaWindows
    samples: list[Sample] = field(default_factory=list)

    def record(self, amount: float, now_ms: int) -> None:
        if not self.samples or now_ms - self.samples[-1].start_ms >= self.windows.window_ms:
            self.samples.append(Sample(now_ms, now_ms))
        self.samples[-1].value += amount
        self.samples[-1].last_ms = now_ms

    def counting(self, now_ms: int) -> list[Sample]:
        span_ms = self.windows.samples * self.windows.window_ms
        return [sample for sample in self.samples if now_ms - sample.last_ms < span_ms]

    def window_size_ms(self, now_ms: int) -> int:
        elapsed_ms = now_ms - min(sample.start_ms for sample in self.counting(now_ms))
        full = elapsed_ms // self.windows.window_ms
        missing = max(0, self.windows.samples - 1 - full)
        return max(1, elapsed_ms + missing * self.windows.window_ms)

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        window_ms = self.window_size_ms(now_ms)
        rate = sum(sample.value for sample in self.counting(now_ms)) / (window_ms / 1000)
        if rate <= limit:
            return 0
        return min(2**31 - 1, floor((rate - limit) / limit * window_ms + 0.5))


@given(windows, events, st.floats(0.01, 1e6))
def test_a_rate_is_as_if_everything_were_remembered(
    windows: QuotaWindows, events: list[tuple[float, float]], limit: float
) -> None:
    now_ms = T0
    rate, naive = Rate(windows, now_ms), NaiveRate(windows)
    for gap, amount in events:
        now_ms += int(gap * windows.window_ms)
        rate.record(amount, now_ms)
        naive.record(amount, now_ms)
        assert rate.window_size_ms(now_ms) == naive.window_size_ms(now_ms)
        assert rate.throttle_ms(limit, now_ms) == pytest.approx(
            naive.throttle_ms(limit, now_ms), abs=1, rel=1e-9
        )
    assert len(rate._samples) <= windows.samples, "memory is bounded by the windows"


@dataclass
class KafkaSampledStat:
    """Its samples as Kafka has them: a ring that is written over, and reset where it is too old."""

    windows: QuotaWindows
    samples: list[Sample] = field(default_factory=list)
    current: int = 0

    def record(self, amount: float, now_ms: int) -> None:
        if not self.samples:
            self.samples.append(Sample(now_ms, now_ms))
        sample = self.samples[self.current]
        if now_ms - sample.start_ms >= self.windows.window_ms:
            self.current = (self.current + 1) % (self.windows.samples + 1)
            if self.current >= len(self.samples):
                self.samples.append(Sample(now_ms, now_ms))
            else:
                self.samples[self.current] = Sample(now_ms, now_ms)
            sample = self.samples[self.current]
        sample.value += amount
        sample.last_ms = now_ms

    def purge(self, now_ms: int) -> None:
        for index, sample in enumerate(self.samples):
            if now_ms - sample.last_ms >= self.windows.samples * self.windows.window_ms:
                self.samples[index] = Sample(now_ms, now_ms)

    def measure(self, now_ms: int) -> float:
        self.purge(now_ms)
        elapsed_ms = now_ms - min(sample.start_ms for sample in self.samples)
        full = elapsed_ms // self.windows.window_ms
        if full < self.windows.samples - 1:
            elapsed_ms += (self.windows.samples - 1 - full) * self.windows.window_ms
        return sum(sample.value for sample in self.samples) / (max(elapsed_ms, 1) / 1000)


@given(windows, events)
def test_a_rate_is_kafkas(windows: QuotaWindows, events: list[tuple[float, float]]) -> None:
    now_ms = T0
    rate, kafkas = Rate(windows, now_ms), KafkaSampledStat(windows)
    for gap, amount in events:
        now_ms += int(gap * windows.window_ms)
        rate.record(amount, now_ms)
        kafkas.record(amount, now_ms)
        assert rate.measure(now_ms) == pytest.approx(kafkas.measure(now_ms), rel=1e-9, abs=1e-6)


@given(windows, events, st.floats(0.1, 1e4))
def test_after_the_throttle_time_the_rate_is_the_quota(
    windows: QuotaWindows, events: list[tuple[float, float]], limit: float
) -> None:
    now_ms = T0
    rate = Rate(windows, now_ms)
    for gap, amount in events:
        now_ms += int(gap * windows.window_ms)
        rate.record(abs(amount), now_ms)
    window_ms = rate.window_size_ms(now_ms)
    throttle_ms = rate.throttle_ms(limit, now_ms)
    used = rate.measure(now_ms) * window_ms / 1000
    if throttle_ms == 2**31 - 1:
        assert used > limit, "more than a response can say"
    else:  # to the millisecond, also where that is none
        assert used / ((window_ms + throttle_ms + 1) / 1000) <= limit * (1 + 1e-6)


@given(windows, events, st.floats(0.1, 1e4))
def test_a_token_bucket_is_kafkas(
    windows: QuotaWindows, events: list[tuple[float, float]], limit: float
) -> None:
    """Kafka's begins empty at the epoch, and so full."""
    now_ms, last_ms, tokens = T0, 0, 0.0
    burst = windows.samples * (windows.window_ms / 1000) * limit
    bucket = TokenBucket(windows, now_ms)
    for gap, amount in events:
        now_ms += int(gap * windows.window_ms)
        tokens = min(burst, tokens + limit * ((now_ms - last_ms) / 1000))
        last_ms = now_ms
        tokens = min(burst, tokens - amount)
        bucket.record(amount, limit, now_ms)
        assert bucket.measure(limit, now_ms) == pytest.approx(tokens, rel=1e-9, abs=1e-6)


# --- which quota holds

names = st.sampled_from(["a", "b", None])
NOT_BY = "-"
keys = st.tuples(st.sampled_from(["a", "b", None, NOT_BY]), st.sampled_from(["a", "b", None, NOT_BY])).filter(
    lambda key: key != (NOT_BY, NOT_BY)
)


def entity(user: str | None, client: str | None) -> QuotaEntity:
    parts = (("client-id", client), ("user", user))
    return tuple((kind, name) for kind, name in parts if name != NOT_BY)


def naive_limit(table: dict[tuple[str | None, str | None], float], user: str, client: str) -> float | None:
    order = [
        *((user, c) for c in (client, None, NOT_BY)),
        *((None, c) for c in (client, None, NOT_BY)),
        *((NOT_BY, c) for c in (client, None)),
    ]
    return next((table[key] for key in order if key in table), None)


@given(
    st.lists(st.tuples(keys, st.one_of(st.none(), st.integers(1, 9))), max_size=25),
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=5),
)
def test_the_quota_that_holds(
    changes: list[tuple[tuple[str | None, str | None], int | None]], clients: list[tuple[str, str]]
) -> None:
    manager = ClientQuotaManager(QuotaType.PRODUCE, QuotaWindows(2, 1_000))
    table: dict[tuple[str | None, str | None], float] = {}
    for key, limit in changes:
        manager.set_quota(entity(*key), limit)
        if limit is None:
            table.pop(key, None)
        else:
            table[key] = limit
        assert manager.enabled == bool(table)
        for user, client in clients:
            # With two samples of a second, the most in a window is the limit itself.
            found = manager.max_in_window(KafkaPrincipal("User", user), client, T0)
            assert found == (naive_limit(table, user, client) or float("inf"))


@given(
    limit=st.sampled_from([0.5, 10.0, 1_000.0, 1e12]),
    windows=st.sampled_from([QuotaWindows(), QuotaWindows(2, 1_000), QuotaWindows(1, 500)]),
    events=st.lists(
        st.tuples(
            st.one_of(st.integers(0, 20_000), st.floats(0, 30), st.integers(-50, -1)),
            st.sampled_from([0.0, 0.25, 7.0, 999.0, 1_000.0, 3_500.0, 12_000.0]),
        ),
        max_size=60,
    ),
)
def test_adding_up_in_place_is_the_same_as_recording(
    limit: float, windows: QuotaWindows, events: list[tuple[float, float]]
) -> None:
    """What callers do that look at `ample` and `until_ms` first, beside the whole arithmetic every time."""
    looking, whole = Rate(windows, 1_000_000.0), Rate(windows, 1_000_000.0)
    now_ms = 1_000_000.0
    for amount, passed_ms in events:
        now_ms += passed_ms
        expected_ms = whole.record_and_throttle_ms(amount, limit, now_ms)
        value = looking.value + amount
        if value <= looking.ample and now_ms < looking.until_ms:
            looking.value = value
            looking.last_ms = now_ms
            found_ms = 0
        else:
            found_ms = looking.record_and_throttle_ms(amount, limit, now_ms)
        assert found_ms == expected_ms
        # Less than half a millisecond too much is none (Math.round).
        over_ms = (whole.measure(now_ms) - limit) / limit * whole.window_size_ms(now_ms)
        assert over_ms < 0.51 or expected_ms > 0, "never let pass"
        assert (looking.measure(now_ms), looking.last_ms) == (whole.measure(now_ms), whole.last_ms)
