"""How much a micro-batch reads, and how ranges of offsets become tasks: the arithmetic of Spark's Kafka connector.

Pure: offsets in, offsets out. A partition that is in `end` and not in `start` is new; `earliest` says where it begins.
Owned by nobody; the readers call it in the driver.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.model.ids import TopicPartition
from ottla.spark.offsets import OffsetRange, Offsets, named

MAX_OFFSET = (1 << 63) - 1
# A task costs Spark and Python some ten milliseconds, whatever it reads: with more ranges than FEW_TASKS, small ones
# go together, up to BUNDLE_OFFSETS.
FEW_TASKS = 16
BUNDLE_OFFSETS = 131_072


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
