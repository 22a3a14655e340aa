"""After a load: every member has a whole session to be heard of, from now on."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from ottla.coordinator.group.consumer.core import ConsumerGroups
from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.consumer.member import MemberState
from ottla.coordinator.group.modern_timers import Wait
from ottla.coordinator.group.modern_turn import Turn
from ottla.coordinator.result import Effect, Result, StartTimer

# Groups whose timers are started before the loop goes on to something else.
ARMED_AT_ONCE: Final = 50


def arm(groups: ConsumerGroups, loaded: Iterator[ConsumerGroup], now_ms: int) -> list[Effect]:
    """Start the timers of all members, in slices: there may be many."""
    turn = Turn(now_ms)
    some = list(islice(loaded, ARMED_AT_ONCE))
    for group in some:
        _arm_group(turn, groups, group)
    if len(some) == ARMED_AT_ONCE:
        rest = StartTimer("consumer-loaded", 0, lambda now_ms: Result(None, (), arm(groups, loaded, now_ms)))
        turn.effects.append(rest)
    return turn.effects


def _arm_group(turn: Turn, groups: ConsumerGroups, group: ConsumerGroup) -> None:
    timeout_ms = groups.settings[group.group_id].session_timeout_ms
    for member in group.members.values():
        groups.timers.start(turn, Wait.SESSION, group.group_id, member.member_id, timeout_ms)
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            groups.timers.start_rebalance(turn, group.group_id, member)
