"""The timers of a streams group: sessions, revocations that take too long, and the wait before the first assignment."""

import logging
from collections.abc import Callable, Hashable
from enum import StrEnum
from typing import Any

from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.modern_turn import Turn
from ottla.coordinator.group.streams.group import StreamsGroup
from ottla.coordinator.group.streams.member import StreamsGroupMember
from ottla.coordinator.result import CancelTimer, Result, StartTimer

log = logging.getLogger("ottla.coordinator.streams")

Fence = Callable[[StreamsGroup, StreamsGroupMember, int], Result[Any]]
Assign = Callable[[StreamsGroup, int], Result[Any]]


class Wait(StrEnum):
    """What is waited for of a member."""

    SESSION = "session"
    REBALANCE = "rebalance"


_WHY = {
    Wait.SESSION: "it was not heard of for the time of its session",
    Wait.REBALANCE: "it did not give up its tasks in time",
}


class MemberTimers:
    """Starts and stops them; `fence` is what happens when one goes off."""

    def __init__(self, context: GroupContext, fence: Fence) -> None:
        self._context = context
        self._fence = fence

    def start_session(self, turn: Turn, group_id: str, member_id: str, timeout_ms: int) -> None:
        turn.effects.append(self._session(group_id, member_id, timeout_ms))

    def _session(self, group_id: str, member_id: str, timeout_ms: int) -> StartTimer:
        return StartTimer(
            _key(Wait.SESSION, group_id, member_id),
            timeout_ms,
            lambda now_ms: self._expired(Wait.SESSION, group_id, member_id, None, now_ms),
        )

    def start_rebalance(self, turn: Turn, group_id: str, member: StreamsGroupMember) -> None:
        """The member has to leave this epoch in time."""
        member_id, epoch = member.member_id, member.member_epoch
        turn.effects.append(
            StartTimer(
                _key(Wait.REBALANCE, group_id, member_id),
                member.rebalance_timeout_ms,
                lambda now_ms: self._expired(Wait.REBALANCE, group_id, member_id, epoch, now_ms),
            )
        )

    def cancel_rebalance(self, turn: Turn, group_id: str, member_id: str) -> None:
        turn.effects.append(CancelTimer(_key(Wait.REBALANCE, group_id, member_id)))

    def cancel_all(self, turn: Turn, group_id: str, member_id: str, session_timeout_ms: int) -> None:
        """The member goes; if that is not written after all, it has a session again."""
        turn.effects.extend(CancelTimer(_key(wait, group_id, member_id)) for wait in Wait)
        turn.failure_effects.append(self._session(group_id, member_id, session_timeout_ms))

    def _expired(
        self, wait: Wait, group_id: str, member_id: str, epoch: int | None, now_ms: int
    ) -> Result[Any]:
        """The member is fenced, if it and its group are still there."""
        group = self._context.groups.get(group_id)
        member = group.members.get(member_id) if isinstance(group, StreamsGroup) else None
        if member is None or (epoch is not None and member.member_epoch != epoch):
            return Result(None)
        assert isinstance(group, StreamsGroup)
        log.info("group %s: member %s is fenced: %s", group_id, member_id, _WHY[wait])
        return self._fence(group, member, now_ms)


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


def _key(wait: Wait, group_id: str, member_id: str) -> Hashable:
    return "streams", wait, group_id, member_id
