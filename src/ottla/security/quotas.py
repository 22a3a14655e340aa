"""Client quotas: how much users, client ids and addresses may use, and how long they wait if it was more.

Purpose: Kafka's quota arithmetic. Bytes and request time are a Rate over sampled windows (KIP-13, KIP-124), with a Pace
of our own for bytes, changes of topics a TokenBucket (KIP-599), new connections a Rate for the broker, for a listener
and for an address (KIP-612). Which quota holds for whom is said by a QuotaTable, or by a ClientQuotaCallback of the
operator's (KIP-257).

Rules: no clock, no I/O; `now_ms` is a parameter, of any clock that does not go back. Recording is a few operations on
floats, and nothing at all while no quota is set. What is remembered of clients is bounded, and forgotten when they have
been away for an hour; whoever is forgotten earlier, because there are too many, begins anew, as after a window without
requests. Owned by the broker, on its loop.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from hashlib import sha256
from ipaddress import IPv6Address, ip_address
from math import floor, inf, isfinite
from typing import Final, NamedTuple, Protocol, TypeGuard

from ottla.config.errors import ConfigError
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.plugins import find_class
from ottla.security.principal import KafkaPrincipal

logger = logging.getLogger(__name__)

# What a quota applies to: sorted (entity type, name or None for the default) pairs, as the metadata has them.
QuotaEntity = tuple[tuple[str, str | None], ...]
# By whom a quota is shared: whoever has the same tags.
Tags = tuple[tuple[str, str], ...]

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
IP_RATE_KEY: Final = "connection_creation_rate"
# A throttle time is an int32 in every response.
MAX_THROTTLE_MS: Final = 2**31 - 1
INACTIVE_SENSOR_EXPIRATION_MS: Final = 3_600_000
# Of one type of quota. A busy sensor has some 2 KB.
MAX_SENSORS: Final = 20_000
# Pairs of principal and client id whose sensor is known.
MAX_CACHED_CLIENTS: Final = 20_000
# A client may call itself by 32 KB: of longer names than this, only a digest is remembered.
MAX_CLIENT_ID_LENGTH: Final = 256
# What a nanosecond of a thread is of a second, in per cent: request quotas are recorded so.
PERCENT_PER_NS: Final = 100.0 / 1e9
# Looked at when another one comes: whoever has been away is found in turn.
_EXAMINED: Final = 8
# Less than 1 by more than floats are rounded by: what is within the limit so is so by any order of additions.
_CERTAINLY: Final = 1.0 - 1e-12
# No limit at all, as `max.connection.creation.rate` says it.
UNLIMITED_RATE: Final = 2**31 - 1


class QuotaType(Enum):
    """What a quota limits, by the key that sets it (ClientQuotaType)."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    CONTROLLER_MUTATION = "controller_mutation_rate"


class QuotaWindows(NamedTuple):
    """`quota.window.num` and `quota.window.size.seconds`, or those of the controller."""

    samples: int = 11
    window_ms: int = 1_000

    @property
    def expiry_ms(self) -> int:
        """What happened longer ago counts no more."""
        return self.samples * self.window_ms


# --- rates


class Rate:
    """Kafka's Rate over a WindowedSum: the events of the last windows, over the time that they took.

    Samples begin with the first event after the end of the one before, not by a clock, and count for as long as one of
    their events is recent. Time counts from the start of the oldest one, and never less than all windows but one and
    what has passed of the last: who has just begun does not have a higher rate for it.
    """

    __slots__ = (
        "_before",
        "_expiry_ms",
        "_full_ms",
        "_oldest_ms",
        "_samples",
        "_start_ms",
        "_window_end_ms",
        "_window_ms",
        "ample",
        "last_ms",
        "until_ms",
        "value",
    )

    def __init__(self, windows: QuotaWindows, now_ms: float) -> None:
        self._window_ms = windows.window_ms
        self._expiry_ms = windows.expiry_ms
        # All windows but one.
        self._full_ms = (windows.samples - 1) * windows.window_ms
        # Of the samples before this one: when they began, their last event, and what they add up to.
        self._samples: deque[tuple[float, float, float]] = deque()
        self._begin(now_ms)
        self._window_end_ms = -inf  # the first one begins with the first event
        self._forget(now_ms)

    def _begin(self, now_ms: float) -> None:
        self._start_ms = now_ms
        self._window_end_ms = now_ms + self._window_ms
        # What this sample adds up to.
        self.value = 0.0
        # When something happened last.
        self.last_ms = now_ms

    def record(self, amount: float, now_ms: float) -> None:
        """So much has happened; less than nothing takes back what was recorded."""
        if now_ms >= self.until_ms:
            self._move_on(now_ms)
        self.value += amount
        self.last_ms = now_ms

    def _move_on(self, now_ms: float) -> None:
        """The sample is over, or another one counts no more."""
        if now_ms >= self._window_end_ms:
            if self._window_end_ms != -inf:
                self._samples.append((self._start_ms, self.last_ms, self.value))
            self._begin(now_ms)
        self._forget(now_ms)

    def _forget(self, now_ms: float) -> None:
        """Drops samples that are too old; adds up the others anew, so that no rounding error stays."""
        samples = self._samples
        while samples and now_ms - samples[0][1] >= self._expiry_ms:
            samples.popleft()
        self._before = sum(value for _, _, value in samples)
        self._oldest_ms = samples[0][0] if samples else self._start_ms
        expires_ms = samples[0][1] + self._expiry_ms if samples else inf
        # Until when events belong to this sample, and the others stay.
        self.until_ms = min(self._window_end_ms, expires_ms)
        # What this sample may add up to so that the rate is certainly within the limit; see record_and_throttle_ms.
        self.ample = -inf

    def window_size_ms(self, now_ms: float) -> float:
        """Over which time the rate is measured; right after an event was recorded."""
        elapsed_ms = now_ms - self._oldest_ms
        if elapsed_ms < self._full_ms:
            elapsed_ms = self._full_ms + elapsed_ms % self._window_ms
        return elapsed_ms if elapsed_ms > 1.0 else 1.0

    def measure(self, now_ms: float) -> float:
        """How much a second; right after an event was recorded."""
        return (self._before + self.value) / (self.window_size_ms(now_ms) / 1000.0)

    def throttle_ms(self, limit: float, now_ms: float) -> int:
        """How long nothing more may happen for the rate to be no more than the limit (QuotaUtils.throttleTime)."""
        window_ms = self.window_size_ms(now_ms)
        rate = (self._before + self.value) / (window_ms / 1000.0)
        if rate <= limit:
            return 0
        return rounded_ms((rate - limit) / limit * window_ms) if limit > 0.0 else MAX_THROTTLE_MS

    def record_and_throttle_ms(self, amount: float, limit: float, now_ms: float) -> int:
        """Both in one.

        What happens with every request does not have to come here: as long as it is before `until_ms`, and `value` with
        it no more than `ample`, adding it to `value` and noting the time in `last_ms` does the same, and there is
        nothing to wait for.
        """
        if now_ms >= self.until_ms:
            self._move_on(now_ms)
        self.value += amount
        self.last_ms = now_ms
        # The time counts for no less than all windows but one.
        self.ample = limit * (self._full_ms / 1000.0) * _CERTAINLY - self._before
        return 0 if self.value <= self.ample else self.throttle_ms(limit, now_ms)

    def has_only(self, amount: float) -> bool:
        """Has nothing else happened lately?"""
        return self._before + self.value <= amount


class SimpleRate(Rate):
    """Kafka's SimpleRate: over the time since the oldest of the last windows began, and that is a window at least.

    What comes at once is too much at once: replicas are throttled by it (KIP-73), where Rate would let ten seconds'
    worth go first.
    """

    __slots__ = ()

    def __init__(self, windows: QuotaWindows, now_ms: float) -> None:
        super().__init__(windows, now_ms)
        # The least time that counts.
        self._full_ms = windows.window_ms

    def window_size_ms(self, now_ms: float) -> float:
        return max(now_ms - self._oldest_ms, self._full_ms)

    def measure(self, now_ms: float) -> float:
        """How much a second, at any time."""
        return self._total(now_ms) / (self.window_size_ms(now_ms) / 1000.0)

    def within_ms(self, limit: float, now_ms: float) -> float:
        """When the rate is down to the limit if nothing more happens, or when something has to be forgotten first."""
        total = self._total(now_ms)
        oldest_event_ms = self._samples[0][1] if self._samples else self.last_ms
        forgotten_ms = oldest_event_ms + self._expiry_ms
        if limit <= 0.0:
            return forgotten_ms
        return min(self._oldest_ms + max(total / limit * 1000.0, self._full_ms), forgotten_ms)

    def _total(self, now_ms: float) -> float:
        """What the last windows add up to."""
        if now_ms >= self.until_ms:
            self._forget(now_ms)
        is_over = now_ms - self.last_ms >= self._expiry_ms
        return 0.0 if is_over else self._before + self.value


class TokenBucket:
    """Kafka's TokenBucket (KIP-599): fills by the quota, up to a burst of all windows, and may be overdrawn."""

    __slots__ = ("_burst_s", "_tokens", "last_ms")

    def __init__(self, windows: QuotaWindows, now_ms: float) -> None:
        self._burst_s = windows.expiry_ms / 1000.0
        self.last_ms = now_ms
        # Full, whatever the quota.
        self._tokens = inf

    def measure(self, limit: float, now_ms: float) -> float:
        """The tokens there are; less than none if more was taken."""
        filled = self._tokens + limit * ((now_ms - self.last_ms) / 1000.0)
        self._tokens = min(self._burst_s * limit, filled)
        self.last_ms = now_ms
        return self._tokens

    def record(self, amount: float, limit: float, now_ms: float) -> None:
        self._tokens = min(self._burst_s * limit, self.measure(limit, now_ms) - amount)

    def debt_ms(self, limit: float) -> float:
        """How long, since the last time, it takes until what was taken too much has come in again."""
        return 0.0 if self._tokens >= 0.0 else -self._tokens / limit * 1000.0

    def throttle_ms(self, limit: float, now_ms: float) -> int:
        """How long that takes from now on."""
        self.measure(limit, now_ms)
        return rounded_ms(self.debt_ms(limit))


class Pace:
    """Whoever was over its limit gets evenly what it may have, until what it used then counts no more.

    What was used at once counts no more at once, eleven seconds later, and in Kafka as much may be used at once again:
    over half a minute, a client that does what it may is a quarter below its limit or a fifth above, by chance. Here it
    may use what comes in, and what has come in during one window. Nobody has to wait for this who is not over.
    """

    __slots__ = ("_expiry_ms", "_paid_ms", "_window_ms", "until_ms")

    def __init__(self, windows: QuotaWindows) -> None:
        self._window_ms = windows.window_ms
        self._expiry_ms = windows.expiry_ms
        # Until when the pace is kept.
        self.until_ms = -inf
        # Until when the limit has room for what was used; what is more than all windows hold is forgotten.
        self._paid_ms = -inf

    def is_over(self, throttle_ms: int, now_ms: float, *, is_used: bool) -> None:
        """By the rate there is so long to wait, for what is used or would be: the pace is kept from then on."""
        wait_ms = min(throttle_ms, self._expiry_ms)
        if now_ms >= self.until_ms:
            self._paid_ms = now_ms + wait_ms if is_used else now_ms
        self.until_ms = now_ms + wait_ms + self._expiry_ms

    def record(self, amount: float, limit: float, now_ms: float) -> None:
        """So much is used."""
        paid_ms = max(self._paid_ms, now_ms - self._window_ms) + amount / limit * 1000.0
        self._paid_ms = min(paid_ms, now_ms + self._expiry_ms)

    def throttle_ms(self, now_ms: float) -> int:
        """How long nothing more may be used; right after something was, or while the pace is kept."""
        wait_ms = self._paid_ms - now_ms
        return max(rounded_ms(wait_ms), 1) if wait_ms > 0.0 else 0

    def end(self) -> None:
        self.until_ms = -inf


def rounded_ms(value: float) -> int:
    """As Java rounds, within what a response can say."""
    return floor(value + 0.5) if value < MAX_THROTTLE_MS else MAX_THROTTLE_MS


# --- who shares which quota


class ClientQuotaCallback(Protocol):
    """Kafka's ClientQuotaCallback (KIP-257), in Python: a class by its import path, `client.quota.callback.class`.

    It may also have `configure(settings)`, called first, and `close()`.
    """

    def quota_metric_tags(
        self, quota_type: QuotaType, principal: KafkaPrincipal, client_id: str
    ) -> Mapping[str, str]:
        """By whom the quota is shared: all with the same tags share it."""

    def quota_limit(self, quota_type: QuotaType, tags: Mapping[str, str]) -> float | None:
        """The limit of those who share these tags; None for no limit."""

    def update_quota(self, quota_type: QuotaType, entity: QuotaEntity, value: float) -> None:
        """A quota was set in the metadata."""

    def remove_quota(self, quota_type: QuotaType, entity: QuotaEntity) -> None:
        """A quota was removed from the metadata."""

    def quota_reset_required(self, quota_type: QuotaType) -> bool:
        """Have limits changed since the last time this was asked, other than by the two above?"""


class _Resolved(NamedTuple):
    """Which quota holds for a client: by whom it is shared, and its limit."""

    tags: tuple[str, str]
    limit: float


class QuotaTable:
    """Kafka's DefaultQuotaCallback for one type of quota: the most specific one counts.

    A client that names itself by nothing falls under the default of all client ids; in Kafka it is under none.
    """

    __slots__ = ("_limits", "by_client_id")

    def __init__(self) -> None:
        # How many of them are by client id: without any it makes no difference how a client calls itself.
        self.by_client_id = 0
        # By (user, client id): a name, None for the default one, or _ANY where the quota is not by that.
        self._limits: dict[tuple[str | None, str | None], float] = {}

    def __len__(self) -> int:
        return len(self._limits)

    def set(self, entity: QuotaEntity, limit: float | None) -> None:
        named = dict(entity)
        key = (named.get(USER, _ANY), named.get(CLIENT_ID, _ANY))
        was_there = key in self._limits
        if limit is None:
            self._limits.pop(key, None)
        else:
            self._limits[key] = limit
        if key[1] != _ANY:
            self.by_client_id += (limit is not None) - was_there

    def resolve(self, user: str, client_id: str) -> _Resolved | None:
        """The quota of a user's client; None if there is none. The order is Kafka's."""
        client = _short(client_id)
        for key, tags in (
            ((user, client_id), (user, client)),
            ((user, None), (user, client)),
            ((user, _ANY), (user, _ANY)),
            ((None, client_id), (user, client)),
            ((None, None), (user, client)),
            ((None, _ANY), (user, _ANY)),
            ((_ANY, client_id), (_ANY, client)),
            ((_ANY, None), (_ANY, client)),
        ):
            limit = self._limits.get(key)
            if limit is not None:
                return _Resolved(tags, limit)
        return None


def _short(client_id: str) -> str:
    if len(client_id) <= MAX_CLIENT_ID_LENGTH:
        return client_id
    return "sha256:" + sha256(client_id.encode("utf-8", "surrogatepass")).hexdigest()


# No user and no client can be called that: it is not UTF-8.
_ANY: Final = "\udc00"


# --- sensors


class Sensor:
    """What those who share a quota have used."""

    __slots__ = ("bucket", "is_current", "limit", "max_throttle_ms", "may_be_over", "pace", "rate")

    def __init__(
        self,
        limit: float,
        rate: Rate,
        bucket: TokenBucket | None,
        pace: Pace,
        max_throttle_ms: int = MAX_THROTTLE_MS,
    ) -> None:
        self.limit = limit
        self.rate = rate
        self.bucket = bucket
        self.pace = pace
        self.max_throttle_ms = max_throttle_ms
        # Was it too much when something was recorded last, or is the limit another since?
        self.may_be_over = False
        # No more when it was forgotten, or its limit may be another: whoever holds it asks again.
        self.is_current = True

    def record_and_throttle_ms(self, amount: float, now_ms: float) -> int:
        """So much was used: how long the client has to wait now; 0 if it is within its quota."""
        throttle_ms = self.rate.record_and_throttle_ms(amount, self.limit, now_ms)
        pace = self.pace
        if now_ms < pace.until_ms:
            pace.record(amount, self.limit, now_ms)
        elif not throttle_ms:
            return 0
        if throttle_ms:
            pace.is_over(throttle_ms, now_ms, is_used=True)
        self.rate.ample = -inf  # all that is used comes here
        return min(max(throttle_ms, pace.throttle_ms(now_ms)), self.max_throttle_ms)

    def record(self, amount: float, now_ms: float) -> None:
        """So much was used; the next request waits for it."""
        self.may_be_over = self.rate.record_and_throttle_ms(amount, self.limit, now_ms) > 0

    def throttle_ms(self, now_ms: float) -> int:
        """How long the client has to wait for what was recorded."""
        if not self.may_be_over:
            return 0
        return min(self.rate.record_and_throttle_ms(0.0, self.limit, now_ms), self.max_throttle_ms)

    def record_unless_throttled(self, amount: float, now_ms: float) -> int:
        """So much is to be used: 0 if it is, or how long the client has to wait, and then it is not (unrecord).

        What is too much for any wait is used once nothing else was: in Kafka a consumer whose next batch is larger than
        all windows have room for never gets it.
        """
        pace = self.pace
        if now_ms < pace.until_ms and (throttle_ms := pace.throttle_ms(now_ms)):
            return throttle_ms
        throttle_ms = self.rate.record_and_throttle_ms(amount, self.limit, now_ms)
        if not throttle_ms or self.rate.has_only(amount):
            if now_ms < pace.until_ms:
                pace.record(amount, self.limit, now_ms)
                self.rate.ample = -inf
            return 0
        self.rate.record(-amount, now_ms)
        self.rate.ample = -inf
        pace.is_over(throttle_ms, now_ms, is_used=False)
        return throttle_ms


def unlimited_sensor() -> Sensor:
    """One that is never over: of whoever has no quota, where that is not to be asked for every time."""
    windows = QuotaWindows()
    rate = Rate(windows, 0.0)
    rate.ample = rate.until_ms = inf
    return Sensor(inf, rate, None, Pace(windows))


class ClientQuotaManager:
    """Kafka's ClientQuotaManager of one type: produce, fetch, request or controller mutation.

    `on_change` is called when another sensor may count for a client that was looked up before.
    """

    def __init__(
        self,
        quota_type: QuotaType,
        windows: QuotaWindows | None = None,
        callback: ClientQuotaCallback | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.type = quota_type
        self._on_change = on_change
        self.windows = windows or QuotaWindows()
        self._callback = callback
        self._table = QuotaTable()
        # Is there any quota? Without one nothing is recorded.
        self.enabled = callback is not None
        # A request that took long is over: more than a window is not waited for it (ClientRequestQuotaManager).
        self._max_throttle_ms = self.windows.window_ms if quota_type is QuotaType.REQUEST else MAX_THROTTLE_MS
        self._by_client: dict[tuple[KafkaPrincipal, str | None], Sensor | None] = {}
        self._sensors: dict[object, Sensor] = {}
        self._callback_failed = False

    # --- limits

    def set_quota(self, entity: QuotaEntity, limit: float | None) -> None:
        """A quota in the metadata has changed; None if it was removed."""
        self._table.set(entity, limit)
        if self._callback is not None:
            self._tell(self._callback, entity, limit)
        else:
            self.enabled = len(self._table) > 0
            if not self.enabled:
                self._sensors.clear()
        self.limits_changed()

    def _tell(self, callback: ClientQuotaCallback, entity: QuotaEntity, limit: float | None) -> None:
        """One that fails is told of the next change all the same: the node goes on."""
        try:
            if limit is None:
                callback.remove_quota(self.type, entity)
            else:
                callback.update_quota(self.type, entity, limit)
        except Exception:
            logger.exception(
                "%s failed when it was told of a quota of %s", type(callback).__name__, dict(entity)
            )

    def limits_changed(self) -> None:
        """Whoever comes next is looked up anew; what was used stays known."""
        self._by_client.clear()
        self._on_change()
        if self._callback is not None:
            for sensor in self._sensors.values():
                sensor.is_current = False

    @property
    def is_by_client_id(self) -> bool:
        """May it make a difference how a client calls itself?"""
        return self._callback is not None or self._table.by_client_id > 0

    # --- recording

    def record_and_throttle_ms(
        self, principal: KafkaPrincipal, client_id: str | None, amount: float, now_ms: float
    ) -> int:
        """So much was used: how long the client has to wait now; 0 if it is within its quota, or has none."""
        sensor = self.sensor(principal, client_id, now_ms)
        return 0 if sensor is None else sensor.record_and_throttle_ms(amount, now_ms)

    def record(self, principal: KafkaPrincipal, client_id: str | None, amount: float, now_ms: float) -> None:
        """So much was used; the next request waits for it."""
        sensor = self.sensor(principal, client_id, now_ms)
        if sensor is not None:
            sensor.record(amount, now_ms)

    def max_in_window(self, principal: KafkaPrincipal, client_id: str | None, now_ms: float) -> float:
        """More than this at once is always throttled: no fetch is larger (maxValueInQuotaWindow)."""
        sensor = self.sensor(principal, client_id, now_ms)
        if sensor is None:
            return inf
        return sensor.limit * (self.windows.samples - 1) * self.windows.window_ms / 1000.0

    # --- changes of topics (KIP-599)

    def mutation_quota(
        self, principal: KafkaPrincipal, client_id: str | None, now_ms: float, *, strict: bool
    ) -> "ControllerMutationQuota":
        """What one request may change; by its version the client knows THROTTLING_QUOTA_EXCEEDED (strict) or not."""
        sensor = self.sensor(principal, client_id, now_ms)
        return ControllerMutationQuota(sensor, strict=strict)

    # --- sensors

    def sensor(self, principal: KafkaPrincipal, client_id: str | None, now_ms: float) -> Sensor | None:
        """What counts for a client; None if it has no quota. Good until `on_change` is called, or for one request."""
        if not self.enabled:
            return None
        if self._callback is not None:
            return self._callbacks_sensor(self._callback, principal, client_id or "", now_ms)
        try:
            sensor = self._by_client[principal, client_id]
        except KeyError:
            pass
        else:
            if sensor is None or sensor.is_current:
                return sensor
        resolved = self._table.resolve(principal.name, client_id or "")
        sensor = None if resolved is None else self._shared(resolved.tags, resolved.limit, now_ms)
        if client_id is None or len(client_id) <= MAX_CLIENT_ID_LENGTH:
            if len(self._by_client) >= MAX_CACHED_CLIENTS:
                self._by_client.clear()
            self._by_client[principal, client_id] = sensor
        return sensor

    def _callbacks_sensor(
        self, callback: ClientQuotaCallback, principal: KafkaPrincipal, client_id: str, now_ms: float
    ) -> Sensor | None:
        """The operator's class is asked with every request, as in Kafka. Where it fails there is no limit."""
        try:
            if callback.quota_reset_required(self.type):
                self.limits_changed()
            tags = dict(callback.quota_metric_tags(self.type, principal, client_id))
            key: Tags = tuple(sorted(tags.items()))
            sensor = self._sensors.get(key)
            if sensor is not None and sensor.is_current:
                return sensor
            limit = callback.quota_limit(self.type, tags)
            return self._shared(key, float(limit), now_ms) if _is_limit(limit) else None
        except Exception:
            if not self._callback_failed:
                self._callback_failed = True
                logger.exception(
                    "%s failed: whom it is asked about is not limited; that is said once",
                    type(callback).__name__,
                )
            return None

    def _shared(self, tags: object, limit: float, now_ms: float) -> Sensor:
        """The sensor of all who have these tags."""
        sensor = self._sensors.get(tags)
        if sensor is None:
            self._make_room(now_ms)
            is_bucket = self.type is QuotaType.CONTROLLER_MUTATION
            bucket = TokenBucket(self.windows, now_ms) if is_bucket else None
            sensor = self._sensors[tags] = Sensor(
                limit, Rate(self.windows, now_ms), bucket, Pace(self.windows), self._max_throttle_ms
            )
        if sensor.limit != limit:
            sensor.limit = limit
            sensor.pace.end()  # it was of another one
            sensor.rate.ample = -inf
            sensor.may_be_over = True
        sensor.is_current = True
        return sensor

    def _make_room(self, now_ms: float) -> None:
        """Forgets who has been away for an hour; if there are too many, whoever was heard from least lately.

        Some of the oldest are looked at, and the others go to the end: in turn, all are.
        """
        is_full = len(self._sensors) >= MAX_SENSORS
        idle_ms = self.windows.expiry_ms if is_full else INACTIVE_SENSOR_EXPIRATION_MS
        examined = [(tags, self._sensors.pop(tags)) for tags in _first(self._sensors, _EXAMINED)]
        kept = [(tags, sensor) for tags, sensor in examined if now_ms - _last_ms(sensor) < idle_ms]
        if is_full and len(kept) == len(examined):
            kept.remove(min(kept, key=lambda entry: _last_ms(entry[1])))
        self._sensors.update(kept)
        if len(kept) < len(examined):
            self._on_change()
        left = {id(sensor) for _, sensor in kept}
        for _, sensor in examined:
            sensor.is_current = id(sensor) in left and sensor.is_current

    def __len__(self) -> int:
        """How many quotas in use are remembered."""
        return len(self._sensors)


def _first(sensors: Mapping[object, Sensor], count: int) -> list[object]:
    found = []
    for tags in sensors:
        found.append(tags)
        if len(found) == count:
            break
    return found


def _last_ms(sensor: Sensor) -> float:
    """Since when there is nothing to remember but what happened before: a debt is not forgotten."""
    bucket = sensor.bucket
    return sensor.rate.last_ms if bucket is None else bucket.last_ms + bucket.debt_ms(sensor.limit)


class ThrottlingQuotaExceededError(KafkaError):
    """A change is refused; the client may try again after a while."""

    def __init__(self, throttle_ms: int) -> None:
        super().__init__(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")
        self.throttle_ms = throttle_ms


class ControllerMutationQuota:
    """The quota of one request that creates or deletes partitions (KIP-599).

    Strict: while the bucket is overdrawn nothing is changed. Permissive: everything is, and the client waits for it.
    """

    __slots__ = ("_recorded_ms", "_sensor", "_strict", "_throttle_ms")

    def __init__(self, sensor: Sensor | None, *, strict: bool) -> None:
        self._sensor = sensor
        self._strict = strict
        self._throttle_ms = 0
        self._recorded_ms = 0.0

    @property
    def is_exceeded(self) -> bool:
        return self._strict and self._throttle_ms > 0

    def record(self, permits: float, now_ms: float) -> None:
        """So many partitions are to be made or deleted; ThrottlingQuotaExceededError if they may not be."""
        sensor = self._sensor
        if sensor is None or sensor.bucket is None:
            return
        bucket, limit = sensor.bucket, sensor.limit
        if not self._strict:
            bucket.record(permits, limit, now_ms)
        throttle_ms = bucket.throttle_ms(limit, now_ms)
        if throttle_ms > 0:
            self._throttle_ms, self._recorded_ms = throttle_ms, now_ms
            if self._strict:
                raise ThrottlingQuotaExceededError(throttle_ms)
        elif self._strict:
            bucket.record(permits, limit, now_ms)

    def throttle_ms(self, now_ms: float) -> int:
        """What is left of the wait when the answer is given."""
        if not self._throttle_ms:
            return 0
        return max(0, self._throttle_ms - int(now_ms - self._recorded_ms))


# --- connections (KIP-612)


class ConnectionRates:
    """How many connections a second are accepted: by the broker, by each listener, and from each address.

    The rates of Kafka's ConnectionQuotas. Listeners by which nodes come are not held up by the broker's own rate.
    """

    def __init__(
        self,
        windows: QuotaWindows | None = None,
        *,
        broker_limit: int = UNLIMITED_RATE,
        protected_listeners: Collection[str] = (),
    ) -> None:
        self._windows = windows or QuotaWindows()
        self._protected = frozenset(protected_listeners)
        self._broker_limit = broker_limit
        self._broker: Rate | None = None
        self._listener_limits: dict[str, int] = {}
        self._listeners: dict[str, Rate] = {}
        self._ip_limits: dict[str, float] = {}
        self._default_ip_limit: float | None = None
        self._ips: dict[str, Rate] = {}

    def set_broker_limit(self, limit: int) -> None:
        """`max.connection.creation.rate`."""
        self._broker_limit = limit

    def set_listener_limit(self, listener: str, limit: int) -> None:
        """`listener.name.<listener>.max.connection.creation.rate`."""
        self._listener_limits[listener] = limit

    def set_ip_limit(self, address: str | None, limit: float | None) -> None:
        """The quota of an address, or of all others; ValueError if it is none, such as a host's name."""
        if address is None:
            self._default_ip_limit = limit
        elif limit is None:
            self._ip_limits.pop(_normalized(address), None)
        else:
            self._ip_limits[_normalized(address)] = limit

    def record_connection(self, listener: str, now_ms: float) -> int:
        """Somebody has come: how long the listener has to wait before it accepts."""
        throttle_ms = 0
        if listener not in self._protected:
            if self._broker is None:
                self._broker = Rate(self._windows, now_ms)
            throttle_ms = self._throttle_ms(self._broker, self._broker_limit, now_ms)
        rate = self._listeners.get(listener)
        if rate is None:
            rate = self._listeners[listener] = Rate(self._windows, now_ms)
        limit = self._listener_limits.get(listener, UNLIMITED_RATE)
        return max(throttle_ms, self._throttle_ms(rate, limit, now_ms))

    def record_address(self, listener: str, address: str, now_ms: float) -> int:
        """From where: 0, or after how long the connection is to be closed, as one that was not accepted."""
        if self._default_ip_limit is None and not self._ip_limits:
            return 0
        try:
            address = _normalized(address)
        except ValueError:
            return 0  # not from the Internet
        limit = self._ip_limits.get(address, self._default_ip_limit)
        if limit is None:
            return 0
        rate = self._ips.get(address)
        if rate is None:
            self._make_room(now_ms)
            rate = self._ips[address] = Rate(self._windows, now_ms)
        throttle_ms = self._throttle_ms(rate, limit, now_ms)
        if throttle_ms > 0:
            rate.record(-1.0, now_ms)
            if listener not in self._protected and self._broker is not None:
                self._broker.record(-1.0, now_ms)
            if listener in self._listeners:
                self._listeners[listener].record(-1.0, now_ms)
        return throttle_ms

    def _throttle_ms(self, rate: Rate, limit: float, now_ms: float) -> int:
        rate.record(1.0, now_ms)
        return min(rate.throttle_ms(limit, now_ms), self._windows.window_ms)

    def _make_room(self, now_ms: float) -> None:
        is_full = len(self._ips) >= MAX_SENSORS
        idle_ms = self._windows.expiry_ms if is_full else INACTIVE_SENSOR_EXPIRATION_MS
        examined = []
        for address in self._ips:
            examined.append(address)
            if len(examined) == _EXAMINED:
                break
        oldest = min(examined, key=lambda each: self._ips[each].last_ms, default=None)
        for address in examined:
            rate = self._ips.pop(address)
            if now_ms - rate.last_ms < idle_ms and not (is_full and address == oldest):
                self._ips[address] = rate


def _normalized(address: str) -> str:
    """One spelling for each address; that of an IPv4 client on an IPv6 socket is its IPv4 address."""
    found = ip_address(address)
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return str(found)


# --- all of them


class ClientQuotas:
    """All quotas of a broker, as its metadata has them (QuotaFactory.QuotaManagers, ClientQuotaMetadataManager)."""

    def __init__(
        self,
        windows: QuotaWindows | None = None,
        controller_windows: QuotaWindows | None = None,
        callback: ClientQuotaCallback | None = None,
        connections: ConnectionRates | None = None,
    ) -> None:
        windows = windows or QuotaWindows()
        # Another one when what was found for a client may not hold any more.
        self.version = 0
        self.produce = ClientQuotaManager(QuotaType.PRODUCE, windows, callback, self._changed)
        self.fetch = ClientQuotaManager(QuotaType.FETCH, windows, callback, self._changed)
        self.request = ClientQuotaManager(QuotaType.REQUEST, windows, callback, self._changed)
        self.controller_mutation = ClientQuotaManager(
            QuotaType.CONTROLLER_MUTATION, controller_windows or windows, callback
        )
        self.connections = connections or ConnectionRates(windows)
        self._managers = (self.produce, self.fetch, self.request, self.controller_mutation)
        # As far as they have been told.
        self._known: dict[QuotaEntity, Mapping[str, float]] = {}

    def _changed(self) -> None:
        self.version += 1

    @property
    def enabled(self) -> bool:
        """Is there any quota of users and clients?"""
        return any(manager.enabled for manager in self._managers)

    @property
    def is_by_client_id(self) -> bool:
        """May it make a difference to what requests use how a client calls itself?"""
        return any(manager.is_by_client_id for manager in (self.produce, self.fetch, self.request))

    def update(
        self, changed: Iterable[QuotaEntity], quotas: Mapping[QuotaEntity, Mapping[str, float]]
    ) -> list[tuple[str, float | None]]:
        """These entities are now as in `quotas`: a delta, and the image after it.

        Gives the limits of hosts by their names, which have no address here: whoever can find it calls set_ip_limit. A
        limit that is none (another node may have written it) has no effect.
        """
        hosts: list[tuple[str, float | None]] = []
        for entity in changed:
            before, after = self._known.get(entity, _NOTHING), quotas.get(entity, _NOTHING)
            for key in {*before, *after}:
                limit = after.get(key)
                if limit != before.get(key):
                    self._set(entity, key, limit if _is_limit(limit) else None, hosts)
            if after:
                self._known[entity] = after
            else:
                self._known.pop(entity, None)
        return hosts

    def _set(
        self, entity: QuotaEntity, key: str, limit: float | None, hosts: list[tuple[str, float | None]]
    ) -> None:
        kinds = {kind for kind, _ in entity}
        if kinds == {IP}:
            if key == IP_RATE_KEY:
                address = entity[0][1]
                try:
                    self.connections.set_ip_limit(address, limit)
                except ValueError:
                    hosts.append((address or "", limit))
        elif kinds and kinds <= {USER, CLIENT_ID}:
            for manager in self._managers:
                if manager.type.value == key:
                    manager.set_quota(entity, limit)


_NOTHING: Mapping[str, float] = {}


def _is_limit(value: float | None) -> TypeGuard[float]:
    """Kafka takes a quota that is infinite or no number; neither limits anything."""
    return value is not None and value > 0.0 and isfinite(value)


# --- the operator's own


def load_callback(key: str, path: str, settings: Mapping[str, str]) -> ClientQuotaCallback:
    """What the setting `client.quota.callback.class` (the key) names, ready to be asked; ConfigError for the user."""
    try:
        callback = find_class(path)()
        configure = getattr(callback, "configure", None)
        if configure is not None:
            configure(dict(settings))
    except Exception as error:
        raise ConfigError(
            f"{key}={path}: {error or type(error).__name__} (a Python class by its import path is expected, such "
            "as package.module.Class)",
            key,
        ) from error
    wanted = ("quota_metric_tags", "quota_limit", "update_quota", "remove_quota", "quota_reset_required")
    for method in wanted:
        if not callable(getattr(callback, method, None)):
            raise ConfigError(f"{key}={path}: the class has no method {method}", key)
    found: ClientQuotaCallback = callback
    return found
