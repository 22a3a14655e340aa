"""The timers of a streams group: of its members, and the wait before the first assignment."""

from collections.abc import Callable
from typing import Any, Final

from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.modern_timers import ModernTimers, Wait
from ottla.coordinator.group.modern_turn import Turn
from ottla.coordinator.group.of_kind import GroupsOfKind
from ottla.coordinator.group.streams.group import StreamsGroup
from ottla.coordinator.group.streams.member import StreamsGroupMember
from ottla.coordinator.result import Result, StartTimer

Fence = Callable[[StreamsGroup, StreamsGroupMember, int], Result[Any]]
Assign = Callable[[StreamsGroup, int], Result[Any]]

_WHY: Final = {
    Wait.SESSION: "it was not heard of for the time of its session",
    Wait.REBALANCE: "it did not give up its tasks in time",
}


def member_timers(context: GroupContext, fence: Fence) -> ModernTimers[StreamsGroup]:
    """`fence` is what happens to a member when one goes off."""
    return ModernTimers(GroupsOfKind(context, StreamsGroup), GroupType.STREAMS, _WHY, fence)


class FirstAssignments:
    """An empty group that is joined waits a while for more members: one assignment instead of many (KIP-1071)."""

    def __init__(self, context: GroupContext, assign: Assign) -> None:
        self._context = context
        self._assign = assign
        self._waiting: dict[str, object] = {}

    def is_delayed(self, group_id: str) -> bool:
        return group_id in self._waiting

    def delay(self, turn: Turn, group_id: str, delay_ms: int) -> None:
        """Unless it waits already."""
        if group_id in self._waiting or delay_ms <= 0:
            return
        token = self._waiting[group_id] = object()
        turn.failures.append(lambda _: self._not_written(group_id, token))
        turn.effects.append(
            StartTimer(
                ("streams", "first", group_id), delay_ms, lambda now_ms: self._over(group_id, token, now_ms)
            )
        )

    def forget(self, group_id: str) -> None:
        """The group is deleted."""
        self._waiting.pop(group_id, None)

    def _not_written(self, group_id: str, token: object) -> None:
        self._end(group_id, token)

    def _end(self, group_id: str, token: object) -> bool:
        """Was it this wait?"""
        if self._waiting.get(group_id) is not token:
            return False
        del self._waiting[group_id]
        return True

    def _over(self, group_id: str, token: object, now_ms: int) -> Result[Any]:
        group = self._context.groups.get(group_id)
        if not self._end(group_id, token) or not isinstance(group, StreamsGroup) or group.is_empty():
            return Result(None)
        return self._assign(group, now_ms)
