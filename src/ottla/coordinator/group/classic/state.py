"""The states of a classic group, and which may follow which."""

from enum import StrEnum
from typing import Final


class ClassicGroupState(StrEnum):
    """By the names that ListGroups and DescribeGroups tell."""

    # No members; there may be offsets.
    EMPTY = "Empty"
    # Members are asked to join again, and wait for each other.
    PREPARING_REBALANCE = "PreparingRebalance"
    # A generation is formed; its leader has yet to say who gets what.
    COMPLETING_REBALANCE = "CompletingRebalance"
    # Everybody has, or can ask for, an assignment.
    STABLE = "Stable"
    # Coordinated here no more.
    DEAD = "Dead"


EMPTY: Final = ClassicGroupState.EMPTY
PREPARING_REBALANCE: Final = ClassicGroupState.PREPARING_REBALANCE
COMPLETING_REBALANCE: Final = ClassicGroupState.COMPLETING_REBALANCE
STABLE: Final = ClassicGroupState.STABLE
DEAD: Final = ClassicGroupState.DEAD

TRANSITIONS: Final[dict[ClassicGroupState, frozenset[ClassicGroupState]]] = {
    EMPTY: frozenset({PREPARING_REBALANCE, DEAD}),
    PREPARING_REBALANCE: frozenset({EMPTY, COMPLETING_REBALANCE, DEAD}),
    COMPLETING_REBALANCE: frozenset({STABLE, PREPARING_REBALANCE, DEAD}),
    STABLE: frozenset({PREPARING_REBALANCE, DEAD}),
    DEAD: frozenset({DEAD}),
}
