"""Runs of records over each other: which counts, what is cut and what is joined."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.share.coordinator import combine
from ottla.share.state import PersisterStateBatch

AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4


def run(first: int, last: int, count: int = 1, state: int = AVAILABLE) -> PersisterStateBatch:
    return PersisterStateBatch(first, last, count, state)


@pytest.mark.parametrize(
    ("known", "new", "expected"),
    [
        ([], [], []),
        ([run(0, 9)], [], [run(0, 9)]),
        ([], [run(0, 9)], [run(0, 9)]),
        ([run(0, 9)], [run(0, 9)], [run(0, 9)]),
        ([run(0, 9)], [run(10, 19)], [run(0, 19)]),
        ([run(0, 9)], [run(11, 19)], [run(0, 9), run(11, 19)]),
        ([run(0, 9)], [run(10, 19, 2)], [run(0, 9), run(10, 19, 2)]),
        ([run(0, 9)], [run(5, 14)], [run(0, 14)]),
        # The one that was delivered more often counts, whoever says it.
        ([run(0, 9)], [run(5, 14, 2)], [run(0, 4), run(5, 14, 2)]),
        ([run(0, 9, 2)], [run(5, 14)], [run(0, 9, 2), run(10, 14)]),
        ([run(0, 9)], [run(3, 5, 2)], [run(0, 2), run(3, 5, 2), run(6, 9)]),
        ([run(0, 9, 2)], [run(3, 5)], [run(0, 9, 2)]),
        ([run(0, 4, 2)], [run(0, 9)], [run(0, 4, 2), run(5, 9)]),
        ([run(0, 4)], [run(0, 9, 2)], [run(0, 9, 2)]),
        ([run(0, 9)], [run(5, 9, 2)], [run(0, 4), run(5, 9, 2)]),
        ([run(0, 9, 2)], [run(5, 9)], [run(0, 9, 2)]),
        # Delivered equally often: what is done is not undone.
        ([run(0, 9, 1, ACKNOWLEDGED)], [run(0, 9)], [run(0, 9, 1, ACKNOWLEDGED)]),
        ([run(0, 9)], [run(0, 9, 1, ARCHIVED)], [run(0, 9, 1, ARCHIVED)]),
    ],
)
def test_two_writes(
    known: list[PersisterStateBatch], new: list[PersisterStateBatch], expected: list[PersisterStateBatch]
) -> None:
    assert list(combine(known, new, -1)) == expected


def test_the_start_offset_cuts_what_lies_before_it() -> None:
    known = [run(0, 9), run(20, 29), run(40, 49)]
    assert combine(known, [], 25) == (run(25, 29), run(40, 49))
    assert combine(known, [], 0) == tuple(known)
    assert combine(known, [run(30, 39)], 50) == ()
    assert combine([run(0, 9)], [], 5) == (run(5, 9),)


def test_neighbours_that_an_overlap_made_stay_apart() -> None:
    """As in Kafka's log: the first run was done with before the second became its equal."""
    known = [run(0, 5, 2), run(6, 10)]
    assert combine(known, [run(6, 20, 2)], -1) == (run(0, 5, 2), run(6, 20, 2))


RUNS = st.lists(
    st.builds(
        lambda first, length, count, state: PersisterStateBatch(first, first + length, count, state),
        st.integers(0, 60),
        st.integers(0, 25),
        st.integers(1, 3),
        st.sampled_from([AVAILABLE, ACKNOWLEDGED, ARCHIVED]),
    ),
    max_size=12,
)


@given(RUNS, RUNS, st.integers(-1, 80))
def test_every_offset_has_the_highest_of_its_runs(
    known: list[PersisterStateBatch], new: list[PersisterStateBatch], start: int
) -> None:
    combined = combine(known, new, start)
    for before, after in pairwise(combined):
        assert before.last_offset < after.first_offset
    model: dict[int, tuple[int, int]] = {}
    for batch in [*known, *new]:
        for offset in range(max(batch.first_offset, start), batch.last_offset + 1):
            model[offset] = max(model.get(offset, (0, 0)), batch.rank)
    found = {o: b.rank for b in combined for o in range(b.first_offset, b.last_offset + 1)}
    if len(known) + len(new) > 1 or start >= 0:
        assert found == model
