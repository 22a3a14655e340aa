"""The timers of a group's members: what happens to one that is not heard of, or does not do what it was asked.

Every member has a session. One that was asked to give up partitions has its rebalance timeout to do so. Members of
the classic protocol have as long to join again when they are told to, and then to fetch their assignment.
"""

import logging
from collections.abc import Callable, Hashable
from enum import StrEnum
from typing import Any

from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.consumer.member import ConsumerGroupMember
from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.modern_turn import Turn
from ottla.coordinator.result import CancelTimer, Result, StartTimer

log = logging.getLogger("ottla.coordinator.consumer")

Fence = Callable[[ConsumerGroup, ConsumerGroupMember, int], Result[Any]]


class Wait(StrEnum):
    """What is waited for."""

    SESSION = "session"
    REBALANCE = "rebalance"
    JOIN = "join"
    SYNC = "sync"


_WHY = {
    Wait.SESSION: "it was not heard of for the time of its session",
    Wait.REBALANCE: "it did not give up its partitions in time",
    Wait.JOIN: "it did not join again in time",
    Wait.SYNC: "it did not fetch its assignment in time",
}


class MemberTimers:
    """Starts and stops them; `fence` is what happens when one goes off."""

    def __init__(self, context: GroupContext, fence: Fence) -> None:
        self._context = context
        self._fence = fence
        # Classic members that were told to join again, since the first time they were.
        self._joining: set[tuple[str, str]] = set()
        # The timers that heartbeats start again and again.
        self._sessions: dict[tuple[str, str], StartTimer] = {}

    def start(self, turn: Turn, wait: Wait, group_id: str, member_id: str, delay_ms: float) -> None:
        turn.effects.append(self._timer(wait, group_id, member_id, delay_ms))

    def _timer(self, wait: Wait, group_id: str, member_id: str, delay_ms: float) -> StartTimer:
        return StartTimer(
            _key(wait, group_id, member_id),
            delay_ms,
            lambda now_ms: self._expired(wait, group_id, member_id, None, now_ms),
        )

    def session(self, group_id: str, member_id: str, timeout_ms: int) -> StartTimer:
        """A member of the new protocol has been heard of."""
        known = self._sessions.get((group_id, member_id))
        if known is None or known.delay_ms != timeout_ms:
            known = self._timer(Wait.SESSION, group_id, member_id, timeout_ms)
            self._sessions[group_id, member_id] = known
        return known

    def start_rebalance(self, turn: Turn, group_id: str, member: ConsumerGroupMember) -> None:
        """The member has to leave this epoch in time."""
        member_id, epoch = member.member_id, member.member_epoch
        turn.effects.append(
            StartTimer(
                _key(Wait.REBALANCE, group_id, member_id),
                member.rebalance_timeout_ms,
                lambda now_ms: self._expired(Wait.REBALANCE, group_id, member_id, epoch, now_ms),
            )
        )

    def start_join(self, turn: Turn, group_id: str, member: ConsumerGroupMember) -> None:
        """Unless it runs already: being told again does not give a member more time."""
        if (group_id, member.member_id) not in self._joining:
            self._joining.add((group_id, member.member_id))
            self.start(turn, Wait.JOIN, group_id, member.member_id, member.rebalance_timeout_ms)

    def cancel(self, turn: Turn, wait: Wait, group_id: str, member_id: str) -> None:
        if wait is Wait.JOIN:
            self._joining.discard((group_id, member_id))
        turn.effects.append(CancelTimer(_key(wait, group_id, member_id)))

    def cancel_all(self, turn: Turn, group_id: str, member_id: str, session_timeout_ms: int) -> None:
        """The member goes; if that is not written after all, it has a session again."""
        for wait in Wait:
            self.cancel(turn, wait, group_id, member_id)
        self._sessions.pop((group_id, member_id), None)
        turn.failure_effects.append(self._timer(Wait.SESSION, group_id, member_id, session_timeout_ms))

    def _expired(
        self, wait: Wait, group_id: str, member_id: str, epoch: int | None, now_ms: int
    ) -> Result[Any]:
        """The member is fenced, if it and its group are still there."""
        if wait is Wait.JOIN:
            self._joining.discard((group_id, member_id))
        self._sessions.pop((group_id, member_id), None)
        group = self._context.groups.get(group_id)
        member = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
        if member is None or (epoch is not None and member.member_epoch != epoch):
            return Result(None)
        assert isinstance(group, ConsumerGroup)
        log.info("group %s: member %s is fenced: %s", group_id, member_id, _WHY[wait])
        return self._fence(group, member, now_ms)


def _key(wait: Wait, group_id: str, member_id: str) -> Hashable:
    return "consumer", wait, group_id, member_id
