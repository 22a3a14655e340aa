"""Runs of records in one delivery state: putting what is new over what is known.

Where runs overlap, the one that was delivered more often counts, and of equally often delivered ones the higher
state: a late write never takes back an acknowledgement. Runs below the start offset are forgotten. The outcome,
including which neighbours are joined, is the one that Kafka writes into its snapshots.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Final, NamedTuple

_FIRST: Final = itemgetter(0)
_LAST: Final = itemgetter(1)


class StateBatch(NamedTuple):
    """A run of records. The order of the fields is the order that runs are sorted in."""

    first_offset: int
    last_offset: int
    delivery_count: int
    delivery_state: int

    @property
    def rank(self) -> tuple[int, int]:
        """Which of two overlapping runs counts."""
        return self[2:]


def combine(
    known: Sequence[StateBatch], new: Sequence[StateBatch], start_offset: int
) -> tuple[StateBatch, ...]:
    """All runs from the start offset on, without overlaps; a start offset of -1 forgets nothing."""
    if start_offset != -1:
        new = _from(new, start_offset)
    if not _is_tidy(known):
        known = known if start_offset == -1 else _from(known, start_offset)
        return tuple(_merged([*known, *new]))
    if start_offset != -1:
        first = bisect_left(known, start_offset, key=_LAST)
        known = (*_from(known[first : first + 1], start_offset), *known[first + 1 :])
    if not new:
        return tuple(known)
    # Only what the new runs touch is looked at: a share partition may have thousands that they do not.
    low = bisect_left(known, min(map(_FIRST, new)) - 1, key=_LAST)
    high = bisect_right(known, max(map(_LAST, new)) + 1, key=_FIRST)
    return (*known[:low], *_merged([*known[low:high], *new]), *known[high:])


def _is_tidy(runs: Sequence[StateBatch]) -> bool:
    """Is it in order, without overlaps and without neighbours that could be joined?"""
    for (_, last, count, state), (first, _, next_count, next_state) in pairwise(runs):
        if last >= first or (last + 1 == first and count == next_count and state == next_state):
            return False
    return True


def _from(runs: Sequence[StateBatch], start_offset: int) -> list[StateBatch]:
    return [
        run if run.first_offset >= start_offset else StateBatch(start_offset, *run[1:])
        for run in runs
        if run.last_offset >= start_offset
    ]


def _merged(runs: list[StateBatch]) -> list[StateBatch]:
    """Always look at the two first runs: join them, cut one by the other, or be done with the first."""
    if len(runs) < 2:
        return runs
    heapq.heapify(runs)
    done: list[StateBatch] = []
    first = heapq.heappop(runs)
    while runs:
        second = heapq.heappop(runs)
        if second.first_offset <= first.last_offset:
            pieces = _joined(first, second) if first.rank == second.rank else _cut(first, second)
        elif second.first_offset == first.last_offset + 1 and first.rank == second.rank:
            pieces = _joined(first, second)
        else:
            done.append(first)
            first = second
            continue
        for piece in pieces:
            heapq.heappush(runs, piece)
        first = heapq.heappop(runs)
    done.append(first)
    return done


def _joined(first: StateBatch, second: StateBatch) -> list[StateBatch]:
    return [StateBatch(first.first_offset, max(first.last_offset, second.last_offset), *first.rank)]


def _cut(first: StateBatch, second: StateBatch) -> list[StateBatch]:
    """Two overlapping runs of different rank; the second does not begin before the first."""
    if second.rank < first.rank:
        rest = [StateBatch(first.last_offset + 1, second.last_offset, *second.rank)]
        return [first] + (rest if second.last_offset > first.last_offset else [])
    pieces = [second]
    if first.first_offset < second.first_offset:
        pieces.append(StateBatch(first.first_offset, second.first_offset - 1, *first.rank))
    if first.last_offset > second.last_offset:
        pieces.append(StateBatch(second.last_offset + 1, first.last_offset, *first.rank))
    return pieces
