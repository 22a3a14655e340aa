"""The timers of a consumer group's members.

Members of the classic protocol have as long as their rebalance timeout to join again when they are told to, and then
to fetch their assignment.
"""

from collections.abc import Callable
from typing import Any, Final

from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.consumer.member import ConsumerGroupMember
from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.modern_timers import ModernTimers, Wait
from ottla.coordinator.group.modern_turn import Turn
from ottla.coordinator.group.of_kind import GroupsOfKind
from ottla.coordinator.result import Result

Fence = Callable[[ConsumerGroup, ConsumerGroupMember, int], Result[Any]]

_WHY: Final = {
    Wait.SESSION: "it was not heard of for the time of its session",
    Wait.REBALANCE: "it did not give up its partitions in time",
    Wait.JOIN: "it did not join again in time",
    Wait.SYNC: "it did not fetch its assignment in time",
}


class MemberTimers(ModernTimers[ConsumerGroup]):
    """See the module; `fence` is what happens to a member when one goes off."""

    def __init__(self, context: GroupContext, fence: Fence) -> None:
        super().__init__(GroupsOfKind(context, ConsumerGroup), GroupType.CONSUMER, _WHY, fence)
        # Classic members that were told to join again, since the first time they were.
        self._joining: set[tuple[str, str]] = set()

    def start_join(self, turn: Turn, group_id: str, member: ConsumerGroupMember) -> None:
        """Unless it runs already: being told again does not give a member more time."""
        if (group_id, member.member_id) not in self._joining:
            self._joining.add((group_id, member.member_id))
            self.start(turn, Wait.JOIN, group_id, member.member_id, member.rebalance_timeout_ms)

    def cancel(self, turn: Turn, wait: Wait, group_id: str, member_id: str) -> None:
        if wait is Wait.JOIN:
            self._joining.discard((group_id, member_id))
        super().cancel(turn, wait, group_id, member_id)

    def _expired(
        self, wait: Wait, group_id: str, member_id: str, epoch: int | None, now_ms: int
    ) -> Result[Any]:
        if wait is Wait.JOIN:
            self._joining.discard((group_id, member_id))
        return super()._expired(wait, group_id, member_id, epoch, now_ms)
