"""Rounds in turn: each side is loaded until it gains nothing any more, then the median of nine rounds counts.

A JVM compiles what it runs often, and does so for longer than one would think: the cost of a request on Apache falls
over some hundred thousand of them. So the first round is shown as what it is, the cold one; then rounds follow until
five in a row have brought no more than 3%, and until the load's own least number of requests has been sent. Threads
that compile or collect garbage are Apache's cost like any other, and stand in a row of their own beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from bench.load import Cost

ROUNDS: Final = 9
QUICK_ROUNDS: Final = 3
# Warm is who gains no more than this in so many rounds.
GAIN: Final = 0.03
STEADY_ROUNDS: Final = 5
# A machine whose noise is larger than the gain would never be done.
MOST_ROUNDS: Final = 200
# What `--quick` sends of the load's least number; its figures are coarse, and it says so.
QUICK_SHARE: Final = 0.1

Round = Callable[[str], Cost]
Figure = Callable[[Cost], float]


@dataclass(frozen=True)
class Found:
    """What one side cost: the first round, and the median of those that count."""

    cold: Cost
    warm: Cost
    warm_up_requests: int


def by_cpu(cost: Cost) -> float:
    """The broker's CPU for a request."""
    return cost.cpu_us


def in_rounds(
    kinds: Iterable[str],
    one_round: Round,
    warm_up: int,
    *,
    quick: bool = False,
    figure: Figure = by_cpu,
    most_rounds: int = MOST_ROUNDS,
) -> dict[str, Found]:
    """Plays rounds on each side until all are warm, then the rounds that count, all in turn.

    `figure` is what has to stop falling, and what the median is of.
    """
    wanted = warm_up * (QUICK_SHARE if quick else 1)
    kinds = list(kinds)
    history = {kind: [one_round(kind)] for kind in kinds}
    for _ in range(most_rounds):
        if all(_is_warm(costs, wanted, figure) for costs in history.values()):
            break
        # Who is warm goes on with the others: a member of a group must not be silent for long.
        for kind in kinds:
            history[kind].append(one_round(kind))
    counted: dict[str, list[Cost]] = {kind: [] for kind in kinds}
    for _ in range(QUICK_ROUNDS if quick else ROUNDS):
        for kind in kinds:
            counted[kind].append(one_round(kind))
    return {kind: _found(history[kind], counted[kind], figure) for kind in kinds}


def _is_warm(costs: list[Cost], wanted: float, figure: Figure) -> bool:
    if sum(cost.requests for cost in costs) < wanted:
        return False
    before, last = costs[:-STEADY_ROUNDS], costs[-STEADY_ROUNDS:]
    return bool(before) and min(map(figure, last)) >= min(map(figure, before)) * (1 - GAIN)


def _found(history: list[Cost], counted: list[Cost], figure: Figure) -> Found:
    # One whole round, so that its other figures belong to it.
    median = sorted(counted, key=figure)[len(counted) // 2]
    return Found(history[0], median, sum(cost.requests for cost in history))
