"""The states of a shard, and which may follow which. Pure."""

from enum import StrEnum
from typing import Final


class ShardState(StrEnum):
    """How far a shard is. A closed one is never opened again: the next election makes a new one."""

    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    CLOSED = "closed"


TRANSITIONS: Final[dict[ShardState, frozenset[ShardState]]] = {
    ShardState.LOADING: frozenset({ShardState.ACTIVE, ShardState.FAILED, ShardState.CLOSED}),
    ShardState.ACTIVE: frozenset({ShardState.CLOSED}),
    ShardState.FAILED: frozenset({ShardState.CLOSED}),
    ShardState.CLOSED: frozenset(),
}
