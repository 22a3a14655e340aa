"""Where a read begins and ends, how much a micro-batch reads, and in which tasks: as Spark's Kafka connector does it.

Pure: offsets in, offsets out; the readers call it in the driver.

- An offset is `{"topic": {"0": 123, ...}}` with sorted keys: Spark compares offsets as JSON text, and a checkpoint
  that `format("kafka")` wrote can be continued. In `startingOffsets` and `endingOffsets` -2 means the earliest, -1
  the latest.
- A partition that is in `end` and not in `start` is new; `earliest` says where it begins.
- Filters on topic, partition, offset and timestamp make a read smaller. `narrowed` says what to read and which
  filters Spark still has to apply itself: an unknown one, and a lower bound on the timestamp, which only says where
  to begin. An upper bound on the timestamp saves nothing: producers set timestamps, and an early one may follow a
  late one.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from ottla.model.ids import TopicPartition

LATEST = -1
EARLIEST = -2

Offsets = dict[TopicPartition, int]
MAX_OFFSET = (1 << 63) - 1
# A task costs Spark and Python some ten milliseconds, whatever it reads: with more ranges than FEW_TASKS, small ones
# go together, up to BUNDLE_OFFSETS.
FEW_TASKS = 16
BUNDLE_OFFSETS = 131_072
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# These columns are never null.
_PLACE = ("topic", "partition", "offset", "timestamp", "timestampType")


class OffsetRange(NamedTuple):
    """What one task reads of a partition: from `start` up to, not including, `end`."""

    tp: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class AtEarliest:
    """The first offset that each partition still has."""


@dataclass(frozen=True, slots=True)
class AtLatest:
    """The end of each partition."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition, or EARLIEST, or LATEST."""

    offsets: Offsets


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """In every partition the first record that is as late as this or later."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """The same, with a time of its own for each partition."""

    timestamps_ms: Offsets


Bound = AtEarliest | AtLatest | AtOffsets | AtTimestamp | AtTimestamps


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """The shape that Spark stores: sorted, so that equal offsets are equal text."""
    found: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        found.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return found


def from_json(value: Any) -> Offsets:
    """What Spark hands back, or a user wrote; ValueError if it has another shape."""
    if not isinstance(value, dict):
        raise ValueError("not an object of topics")
    found: Offsets = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            raise ValueError(f"{topic!r} holds no object of partitions")
        for partition, offset in partitions.items():
            if not partition.isdecimal() or type(offset) is not int:
                raise ValueError(f"{topic!r} holds {partition!r}: {offset!r}, not a partition and a number")
            found[TopicPartition(topic, int(partition))] = offset
    return found


def parse_offsets(text: str) -> Offsets:
    """`{"topic": {"0": 23}}` as text; ValueError if it is something else."""
    return from_json(json.loads(text))


def parse_partitions(text: str) -> tuple[TopicPartition, ...]:
    """`{"topic": [0, 1]}` as text; ValueError if it is something else."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not an object of topics")
    found: set[TopicPartition] = set()
    for topic, partitions in value.items():
        if not isinstance(partitions, list):
            raise ValueError(f"{topic!r} holds no list of partitions")
        for partition in partitions:
            if type(partition) is not int or partition < 0:
                raise ValueError(f"{topic!r} holds {partition!r}, which is not a partition")
            found.add(TopicPartition(topic, partition))
    return tuple(sorted(found))


def named(partitions: Iterable[TopicPartition]) -> str:
    """`a-0, a-1`: how errors name partitions."""
    return ", ".join(f"{tp.topic}-{tp.partition}" for tp in sorted(partitions))


def rows_between(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Offsets to read by partition, those with none left out."""
    sizes = {tp: until - start.get(tp, earliest.get(tp, until)) for tp, until in end.items()}
    return {tp: size for tp, size in sizes.items() if size > 0}


def limited(
    limit: int,
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
) -> Offsets:
    """Ends that take `limit` offsets in all, shared out by what each partition has, at least one each."""
    sizes = rows_between(start, end, earliest)
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    found: Offsets = {}
    for tp, until in end.items():
        if tp not in sizes:
            found[tp] = until
            continue
        share = limit * (sizes[tp] / total)
        begin = start.get(tp, earliest.get(tp, until))
        found[tp] = min(until, begin + (math.ceil(share) if share < 1 else math.floor(share)), MAX_OFFSET)
    return found


def split(
    ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Ranges as tasks: none above `max_records`, and about `min_partitions` of them, larger ranges cut more."""
    wanted = [each for each in ranges if each.size > 0]
    if max_records is not None:
        wanted = [part for each in wanted for part in _cut(each, math.ceil(each.size / max_records))]
    if min_partitions is None or len(wanted) >= min_partitions:
        return wanted
    total = sum(each.size for each in wanted)
    small = [each for each in wanted if _parts(each.size, total, min_partitions) == 1]
    rest_total = total - sum(each.size for each in small)
    rest_parts = max(min_partitions - len(small), 1)
    keep = set(small)
    return [
        part
        for each in wanted
        for part in ([each] if each in keep else _cut(each, _parts(each.size, rest_total, rest_parts)))
    ]


def _parts(size: int, total: int, min_partitions: int) -> int:
    # Half rounds up, as Java's Math.round does.
    return max(math.floor(size / total * min_partitions + 0.5), 1)


def _cut(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    found = []
    start = whole.start
    for part in range(parts):
        end = start + (whole.end - start) // (parts - part)
        if end > start:
            found.append(OffsetRange(whole.tp, start, end))
        start = end
    return found


def bundled(
    ranges: Sequence[OffsetRange], min_partitions: int | None = None
) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task: one, or several small ones where there are many; never fewer tasks than asked for."""
    least = max(FEW_TASKS, min_partitions or 0)
    if len(ranges) <= least:
        return [(each,) for each in ranges]
    most = min(BUNDLE_OFFSETS, sum(each.size for each in ranges) // least)
    bundles: list[list[OffsetRange]] = []
    room = 0
    for position, each in enumerate(ranges):
        is_needed = len(bundles) + len(ranges) - position <= least
        if not bundles or each.size > room or is_needed:
            bundles.append([])
            room = most
        bundles[-1].append(each)
        room -= each.size
    return [tuple(bundle) for bundle in bundles]


class Plan(NamedTuple):
    """The ranges of a micro-batch, and what of its data is known to be lost."""

    ranges: list[OffsetRange]
    losses: list[str]


def plan(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    earliest: Mapping[TopicPartition, int],
) -> Plan:
    """What lies between two offsets. `earliest`: where partitions begin that are new, or went back.

    A partition that went back below where it was read to is another one of the same name: it is read from its
    beginning, which Spark's connector passes over.
    """
    losses: list[str] = []
    ranges: list[OffsetRange] = []
    gone = start.keys() - end.keys()
    if gone:
        losses.append(f"{named(gone)} are gone")
    for tp in sorted(end):
        until = end[tp]
        begin = start.get(tp)
        if begin is None:
            begin = earliest.get(tp)
            if begin is None:
                losses.append(f"the new partition {named([tp])} is gone again")
                continue
            if begin > 0:
                losses.append(f"the new partition {named([tp])} starts from {begin} instead of 0")
        elif until < begin:
            losses.append(f"the end of {named([tp])} went back from {begin} to {until}")
            begin = earliest.get(tp, until)
        ranges.append(OffsetRange(tp, begin, max(begin, until)))
    return Plan(ranges, losses)


def backwards(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """Partitions whose end lies before where they were read to."""
    return sorted(tp for tp, until in end.items() if until < start.get(tp, until))


def new_partitions(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> Sequence[TopicPartition]:
    """Partitions that were not there before."""
    return sorted(end.keys() - start.keys())


class Delay:
    """minOffsetsPerTrigger: a micro-batch waits for so many rows, but no longer than maxTriggerDelay."""

    def __init__(self, min_rows: int | None, max_delay_ms: int) -> None:
        self._min_rows = min_rows
        self._max_delay_ms = max_delay_ms
        self._last_ms: float | None = None  # the first micro-batch never waits

    def holds_back(self, rows: int, now_ms: float) -> bool:
        """Whether to wait on; if not, the clock starts again."""
        if self._min_rows is None:
            return False
        waited = self._last_ms is None or now_ms - self._last_ms >= self._max_delay_ms
        if not waited and rows < self._min_rows:
            return True
        self._last_ms = now_ms
        return False


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
    from_ms = (value - _EPOCH) // timedelta(milliseconds=1)
    if from_ms < 0:
        return now  # a record without a timestamp has -1, which brokers do not find by time
    return replace(now, timestamp_from_ms=max(now.timestamp_from_ms or 0, from_ms))
