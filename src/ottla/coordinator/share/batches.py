"""Runs of records in one delivery state: putting what is new over what is known.

Where runs overlap, the one that was delivered more often counts, and of equally often delivered ones the higher
state: a late write never takes back an acknowledgement. Runs below the start offset are forgotten. The outcome,
including which neighbours are joined, is the one that Kafka writes into its snapshots.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple


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
    runs = [*known, *new]
    if start_offset != -1:
        runs = [_from(run, start_offset) for run in runs if run.last_offset >= start_offset]
    if len(runs) < 2:
        return tuple(runs)
    return tuple(_merged(runs))


def _from(run: StateBatch, start_offset: int) -> StateBatch:
    return run if run.first_offset >= start_offset else StateBatch(start_offset, *run[1:])


def _merged(runs: list[StateBatch]) -> list[StateBatch]:
    """Always look at the two first runs: join them, cut one by the other, or be done with the first."""
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
