"""Offsets as Spark's Kafka connector writes them, and where a read begins and ends. Pure.

An offset is `{"topic": {"0": 123, ...}}` with sorted keys: Spark compares offsets as JSON text, and a checkpoint that
`format("kafka")` wrote can go on here. In `startingOffsets` and `endingOffsets` -2 means the earliest, -1 the latest.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.model.ids import TopicPartition

LATEST = -1
EARLIEST = -2

Offsets = dict[TopicPartition, int]


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
