"""The arithmetic of micro-batches and tasks. Figures are what Spark's own connector answered for the same offsets."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model.ids import TopicPartition
from ottla.spark.source.plan import (
    BUNDLE_OFFSETS,
    FEW_TASKS,
    Delay,
    OffsetRange,
    backwards,
    bundled,
    from_json,
    limited,
    new_partitions,
    parse_partitions,
    plan,
    rows_between,
    split,
    to_json,
)


def tps(*sizes: int, topic: str = "a") -> dict[TopicPartition, int]:
    return {TopicPartition(topic, p): size for p, size in enumerate(sizes)}


def ranges(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange(tp, 0, size) for tp, size in tps(*sizes).items()]


def cut(parts: list[OffsetRange]) -> list[tuple[int, int, int]]:
    return [(part.tp.partition, part.start, part.size) for part in parts]


def test_offsets_as_spark_stores_them() -> None:
    offsets = {TopicPartition("b", 0): 7, TopicPartition("a", 10): 1, TopicPartition("a", 2): 0}
    assert json.dumps(to_json(offsets)) == '{"a": {"2": 0, "10": 1}, "b": {"0": 7}}'
    assert from_json(json.loads('{"b":{"0":7},"a":{"10":1,"2":0}}')) == offsets
    assert to_json({}) == {}


@pytest.mark.parametrize(
    "value", [[], {"a": [1]}, {"a": {"x": 1}}, {"a": {"0": "1"}}, {"a": {"0": True}}, None]
)
def test_other_shapes_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"not|holds"):
        from_json(value)


def test_partitions_to_assign() -> None:
    assert parse_partitions('{"b":[2],"a":[1,0]}') == (
        TopicPartition("a", 0),
        TopicPartition("a", 1),
        TopicPartition("b", 2),
    )


@pytest.mark.parametrize(
    ("sizes", "ends"),
    [
        ((30, 10, 20), [(10, 3, 6), (19, 6, 12), (28, 9, 18), (30, 10, 20)]),
        ((100, 3, 20, 1), [(16, 1, 3, 1), (32, 2, 6, 1), (48, 3, 9, 1), (64, 3, 12, 1), (80, 3, 15, 1)]),
    ],
)
def test_twenty_offsets_a_trigger(sizes: tuple[int, ...], ends: list[tuple[int, ...]]) -> None:
    start = tps(*[0] * len(sizes))
    for expected in ends:
        start = limited(20, start, tps(*sizes), {})
        assert start == tps(*expected)


def test_a_new_partition_counts_from_its_earliest_offset() -> None:
    start, end = tps(10), tps(20, 1000)
    earliest = {TopicPartition("a", 1): 990}
    assert rows_between(start, end, earliest) == tps(10, 10)
    assert limited(10, start, end, earliest) == tps(15, 995)
    assert new_partitions(start, end) == [TopicPartition("a", 1)]


offsets = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 5)),
    st.integers(0, 1 << 62),
    min_size=1,
)


@given(offsets, offsets, st.integers(1, 1 << 62))
def test_limits_always_move_on_and_never_too_far(start: dict, end: dict, limit: int) -> None:
    found = limited(limit, start, end, {})
    assert found.keys() == end.keys()
    for tp, size in rows_between(start, end, {}).items():
        assert start[tp] < found[tp] <= end[tp]
        assert size > 0
    # Rounding up gives at most one offset more for each partition.
    assert sum(rows_between(start, found, {}).values()) <= limit * (1 + 1e-9) + len(end)


@pytest.mark.parametrize(
    ("sizes", "least", "most", "expected"),
    [
        ((30, 10, 20), None, None, [(0, 0, 30), (1, 0, 10), (2, 0, 20)]),
        ((30, 10, 20), 5, None, [(0, 0, 15), (0, 15, 15), (1, 0, 10), (2, 0, 10), (2, 10, 10)]),
        (
            (30, 10, 20),
            7,
            None,
            [(0, 0, 7), (0, 7, 7), (0, 14, 8), (0, 22, 8), (1, 0, 10), (2, 0, 10), (2, 10, 10)],
        ),
        (
            (100, 3, 20, 1),
            6,
            None,
            [(0, 0, 33), (0, 33, 33), (0, 66, 34), (1, 0, 3), (2, 0, 20), (3, 0, 1)],
        ),
        ((100, 3, 20, 1), 2, None, [(0, 0, 100), (1, 0, 3), (2, 0, 20), (3, 0, 1)]),
        ((10, 0, 5), None, 5, [(0, 0, 5), (0, 5, 5), (2, 0, 5)]),
        (
            (100, 3, 20, 1),
            13,
            30,
            [(0, at, size) for at, size in ((0, 12), (12, 13), (25, 12), (37, 13), (50, 12), (62, 13))]
            + [(0, 75, 12), (0, 87, 13), (1, 0, 3), (2, 0, 10), (2, 10, 10), (3, 0, 1)],
        ),
    ],
)
def test_tasks(
    sizes: tuple[int, ...], least: int | None, most: int | None, expected: list[tuple[int, int, int]]
) -> None:
    assert cut(split(ranges(*sizes), least, most)) == expected


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=6),
    st.none() | st.integers(1, 50),
    st.integers(1, 1000),
)
def test_tasks_cover_every_offset_once(sizes: list[int], least: int | None, most: int) -> None:
    tasks = split(ranges(*sizes), least, most)
    assert all(0 < task.size <= most for task in tasks)
    for partition, size in enumerate(sizes):
        own = [task for task in tasks if task.tp.partition == partition]
        assert sum(task.size for task in own) == size
        assert all(first.end == second.start for first, second in pairwise(own))


def test_many_small_ranges_share_tasks() -> None:
    assert [len(task) for task in bundled(ranges(*[5] * FEW_TASKS))] == [1] * FEW_TASKS
    assert [len(task) for task in bundled(ranges(*[4] * 256))] == [16] * 16
    large = ranges(*[BUNDLE_OFFSETS] * 40)
    assert [list(task) for task in bundled(large)] == [[each] for each in large]
    assert len(bundled(ranges(*[4] * 256), min_partitions=100)) >= 100
    assert len(bundled(ranges(*[4] * 256), min_partitions=300)) == 256


@given(st.lists(st.integers(1, 50_000), max_size=60), st.none() | st.integers(1, 50))
def test_bundles_keep_every_range_and_their_order(sizes: list[int], least: int | None) -> None:
    whole = ranges(*sizes)
    tasks = bundled(whole, least)
    assert [each for task in tasks for each in task] == whole
    assert len(tasks) >= min(len(whole), least or 1, FEW_TASKS)
    assert all(sum(each.size for each in task) <= BUNDLE_OFFSETS for task in tasks if len(task) > 1)


def test_a_plan_says_what_is_lost() -> None:
    a0, a1, a2, a3 = (TopicPartition("a", p) for p in range(4))
    start = {a0: 5, a1: 7, a2: 30}
    end = {a0: 9, a2: 10, a3: 4}
    found = plan(start, end, {a2: 3, a3: 2})
    assert found.ranges == [OffsetRange(a0, 5, 9), OffsetRange(a2, 3, 10), OffsetRange(a3, 2, 4)]
    assert found.losses == [
        "a-1 are gone",
        "the end of a-2 went back from 30 to 10",
        "the new partition a-3 starts from 2 instead of 0",
    ]
    assert backwards(start, end) == [a2]
    assert plan({a0: 5}, {a0: 5}, {}).losses == []
    assert plan({}, {a3: 4}, {}).losses == ["the new partition a-3 is gone again"]


def test_a_trigger_waits_for_enough_rows_but_not_for_ever() -> None:
    delay = Delay(min_rows=100, max_delay_ms=1000)
    assert not delay.holds_back(1, now_ms=0)  # the first one never waits
    assert delay.holds_back(99, now_ms=500)
    assert not delay.holds_back(100, now_ms=600)
    assert delay.holds_back(5, now_ms=1599)
    assert not delay.holds_back(5, now_ms=1600)
    assert not Delay(None, 1000).holds_back(0, now_ms=0)
