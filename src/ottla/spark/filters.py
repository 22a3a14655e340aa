"""Filters on where a record lies (topic, partition, offset, timestamp), turned into less to read. Pure.

`narrowed` says what to read and which filters Spark still has to apply itself: an unknown one, and a lower bound on the
timestamp, which only tells where to begin. An upper bound on the timestamp saves nothing: producers set timestamps, and
an early one may follow a late one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ottla.model.ids import TopicPartition
from ottla.spark.offsets import OffsetRange
from ottla.spark.plan import MAX_OFFSET

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# These columns are never null.
_PLACE = ("topic", "partition", "offset", "timestamp", "timestampType")


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What the filters leave of a read; None: everything."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_from: int = 0
    offset_until: int = MAX_OFFSET
    partition_from: int = 0
    partition_until: int = MAX_OFFSET
    timestamp_from_ms: int | None = None

    def has(self, tp: TopicPartition) -> bool:
        """Whether this partition may hold anything."""
        return (
            (self.topics is None or tp.topic in self.topics)
            and (self.partitions is None or tp.partition in self.partitions)
            and self.partition_from <= tp.partition < self.partition_until
        )

    def cut(self, whole: OffsetRange, first_at_time: Mapping[TopicPartition, int]) -> OffsetRange:
        """What is left of a range; `first_at_time`: where timestamp_from_ms begins, -1 if nowhere."""
        start = max(whole.start, self.offset_from)
        end = min(whole.end, self.offset_until)
        if whole.tp in first_at_time:
            at = first_at_time[whole.tp]
            start = end if at < 0 else max(start, at)
        return OffsetRange(whole.tp, start, max(start, end))


def narrowed(filters: Iterable[Any]) -> tuple[Narrowing, list[Any]]:
    """Spark's filters as a Narrowing, and those that Spark has to apply (too)."""
    narrowing = Narrowing()
    left: list[Any] = []
    for each in filters:
        taken = _take(narrowing, each)
        narrowing = taken or narrowing
        is_exact = taken is not None and _column(each) != "timestamp"
        if not is_exact and not _is_certain(each):
            left.append(each)
    return narrowing, left


def _column(each: Any) -> str:
    path: tuple[str, ...] = getattr(each, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _is_certain(each: Any) -> bool:
    return type(each).__name__ == "IsNotNull" and _column(each) in _PLACE


def _take(now: Narrowing, each: Any) -> Narrowing | None:
    """The narrowing with one more filter; None if it cannot be used."""
    kind, column, value = type(each).__name__, _column(each), getattr(each, "value", None)
    if column == "timestamp":
        return _take_timestamp(now, kind, value)
    values = value if kind == "In" else (value,)
    expected = str if column == "topic" else int
    if not isinstance(values, (tuple, list)) or any(type(one) is not expected for one in values):
        return None
    if column == "topic" and kind in ("EqualTo", "EqualNullSafe", "In"):
        return replace(now, topics=_both(now.topics, frozenset(values)))
    if column == "partition" and kind in ("EqualTo", "EqualNullSafe", "In"):
        return replace(now, partitions=_both(now.partitions, frozenset(values)))
    if column in ("partition", "offset") and kind != "In":
        return _take_interval(now, column, kind, values[0])
    return None


def _both(old: frozenset[Any] | None, new: frozenset[Any]) -> frozenset[Any]:
    return new if old is None else old & new


def _take_interval(now: Narrowing, column: str, kind: str, value: int) -> Narrowing | None:
    low, high = f"{column}_from", f"{column}_until"
    at_least = {
        "EqualTo": value,
        "EqualNullSafe": value,
        "GreaterThanOrEqual": value,
        "GreaterThan": value + 1,
    }
    below = {
        "EqualTo": value + 1,
        "EqualNullSafe": value + 1,
        "LessThanOrEqual": value + 1,
        "LessThan": value,
    }
    if kind not in at_least and kind not in below:
        return None
    changes = {
        low: max(getattr(now, low), at_least.get(kind, 0)),
        high: min(getattr(now, high), below.get(kind, MAX_OFFSET)),
    }
    return replace(now, **changes)


def _take_timestamp(now: Narrowing, kind: str, value: Any) -> Narrowing | None:
    if kind not in ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"):
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    # Records have milliseconds: rounding down never leaves out one that matches.
    from_ms = max((value - _EPOCH) // timedelta(milliseconds=1), 0)
    return replace(now, timestamp_from_ms=max(now.timestamp_from_ms or 0, from_ms))
