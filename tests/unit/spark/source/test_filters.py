"""Filters that Spark pushes down: less is read, and never too little."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from ottla.model.ids import TopicPartition
from ottla.spark.source.plan import Narrowing, OffsetRange, narrowed

A0, A1, B1 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 1)


def test_place_is_taken_whole() -> None:
    narrowing, left = narrowed(
        [
            IsNotNull(("partition",)),
            EqualTo(("topic",), "a"),
            In(("partition",), (0, 2)),
            GreaterThan(("offset",), 9),
            LessThanOrEqual(("offset",), 20),
        ]
    )
    assert left == []
    assert [tp for tp in (A0, A1, B1) if narrowing.has(tp)] == [A0]
    assert narrowing.cut(OffsetRange(A0, 0, 100), {}) == OffsetRange(A0, 10, 21)
    assert narrowing.cut(OffsetRange(A0, 50, 100), {}).size == 0


def test_bounds_of_partitions_and_contradictions() -> None:
    assert narrowed([GreaterThanOrEqual(("partition",), 1)])[0].has(A1)
    assert not narrowed([LessThan(("partition",), 1)])[0].has(A1)
    nothing, _ = narrowed([EqualTo(("partition",), 0), EqualTo(("partition",), 1)])
    assert not nothing.has(A0)
    assert not nothing.has(A1)
    none_left, _ = narrowed([EqualTo(("offset",), 3), EqualTo(("offset",), 4)])
    assert none_left.cut(OffsetRange(A0, 0, 9), {}).size == 0


def test_a_time_to_begin_at_is_looked_up_and_applied_again() -> None:
    at = datetime(2026, 1, 1, 0, 0, 0, 1999, tzinfo=UTC)
    asked = GreaterThanOrEqual(("timestamp",), at)
    narrowing, left = narrowed([asked])
    assert left == [asked]
    assert narrowing.timestamp_from_ms == 1767225600001
    assert narrowing.cut(OffsetRange(A0, 0, 9), {A0: 4}) == OffsetRange(A0, 4, 9)
    assert narrowing.cut(OffsetRange(A0, 0, 9), {A0: -1}).size == 0


@pytest.mark.parametrize(
    "each",
    [
        LessThan(("timestamp",), datetime(2026, 1, 1, tzinfo=UTC)),
        GreaterThan(("timestamp",), datetime(1969, 12, 31, tzinfo=UTC)),  # what has no timestamp is later
        GreaterThan(("timestamp",), datetime(2026, 1, 1)),
        Not(EqualTo(("partition",), 0)),
        IsNull(("offset",)),
        IsNotNull(("key",)),
        EqualTo(("key",), b"k"),
        EqualTo(("offset",), "3"),
        EqualTo(("headers", "key"), "h"),
        StringStartsWith(("topic",), "a"),
        In(("offset",), (1, 2)),
    ],
)
def test_what_cannot_be_used_is_left_to_spark(each: object) -> None:
    narrowing, left = narrowed([each])
    assert left == [each]
    assert narrowing == Narrowing()
