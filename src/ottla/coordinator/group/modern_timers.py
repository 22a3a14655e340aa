"""The timers of a group's members: what happens to one that is not heard of, or does not do what it was asked.

Every member has a session. One that was asked to give something up has its rebalance timeout to do so.

Owner: the manager of consumer or streams groups in a shard.
"""

import logging
from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from typing import Any, Generic, Protocol

from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.modern_turn import Turn
from ottla.coordinator.group.of_kind import G, GroupsOfKind
from ottla.coordinator.result import CancelTimer, Result, StartTimer


class Wait(StrEnum):
    """What is waited for; joins and syncs only of classic members of a consumer group."""

    SESSION = "session"
    REBALANCE = "rebalance"
    JOIN = "join"
    SYNC = "sync"


class Rebalancing(Protocol):
    """A member that was asked to give something up."""

    @property
    def member_id(self) -> str: ...
    @property
    def member_epoch(self) -> int: ...
    @property
    def rebalance_timeout_ms(self) -> int: ...


class ModernTimers(Generic[G]):
    """Starts and stops them; `why` has what there is to wait for, and why a member that lets it pass is fenced."""

    def __init__(
        self,
        groups: GroupsOfKind[G],
        kind: GroupType,
        why: Mapping[Wait, str],
        fence: Callable[[G, Any, int], Result[Any]],
    ) -> None:
        self._groups: GroupsOfKind[G] = groups
        self._kind = kind
        self._why = why
        self._fence: Callable[[G, Any, int], Result[Any]] = fence
        self._log = logging.getLogger(f"ottla.coordinator.{kind}")
        # The timers that heartbeats start again and again.
        self._sessions: dict[tuple[str, str], StartTimer] = {}

    def start(self, turn: Turn, wait: Wait, group_id: str, member_id: str, delay_ms: float) -> None:
        turn.effects.append(self._timer(wait, group_id, member_id, delay_ms))

    def session(self, group_id: str, member_id: str, timeout_ms: int) -> StartTimer:
        """A member of the new protocol has been heard of."""
        known = self._sessions.get((group_id, member_id))
        if known is None or known.delay_ms != timeout_ms:
            known = self._timer(Wait.SESSION, group_id, member_id, timeout_ms)
            self._sessions[group_id, member_id] = known
        return known

    def start_rebalance(self, turn: Turn, group_id: str, member: Rebalancing) -> None:
        """The member has to leave this epoch in time."""
        timer = self._timer(
            Wait.REBALANCE, group_id, member.member_id, member.rebalance_timeout_ms, member.member_epoch
        )
        turn.effects.append(timer)

    def cancel(self, turn: Turn, wait: Wait, group_id: str, member_id: str) -> None:
        turn.effects.append(CancelTimer(self._key(wait, group_id, member_id)))

    def cancel_all(self, turn: Turn, group_id: str, member_id: str, session_timeout_ms: int) -> None:
        """The member goes; if that is not written after all, it has a session again."""
        for wait in self._why:
            self.cancel(turn, wait, group_id, member_id)
        self._sessions.pop((group_id, member_id), None)
        turn.failure_effects.append(self._timer(Wait.SESSION, group_id, member_id, session_timeout_ms))

    def _timer(
        self, wait: Wait, group_id: str, member_id: str, delay_ms: float, epoch: int | None = None
    ) -> StartTimer:
        return StartTimer(
            self._key(wait, group_id, member_id),
            delay_ms,
            lambda now_ms: self._expired(wait, group_id, member_id, epoch, now_ms),
        )

    def _key(self, wait: Wait, group_id: str, member_id: str) -> Hashable:
        return self._kind, wait, group_id, member_id

    def _expired(
        self, wait: Wait, group_id: str, member_id: str, epoch: int | None, now_ms: int
    ) -> Result[Any]:
        """The member is fenced, if it and its group are still there."""
        self._sessions.pop((group_id, member_id), None)
        group = self._groups.present(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None or (epoch is not None and member.member_epoch != epoch):
            return Result(None)
        self._log.info("group %s: member %s is fenced: %s", group_id, member_id, self._why[wait])
        return self._fence(group, member, now_ms)
