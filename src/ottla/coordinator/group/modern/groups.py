"""The consumer, share or streams groups of a shard, whichever of the three: finding, replay, members' timers.

Replay is the only way that their state changes. Records of one group may come in any order that compaction leaves, so
whichever comes first makes the group, and the deletion of something that is not there means nothing.

Timers are what happens to a member that is not heard of, or does not do what it was asked: every member has a session,
and one that was asked to give something up has its rebalance timeout to do so.

Owner: the manager of one kind of group in a shard.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final, Generic, Protocol, TypeVar

from ottla.coordinator.group.context import DecisionBuilder, GroupContext
from ottla.coordinator.group.group import Group, GroupType
from ottla.coordinator.group.modern.group import TargetEpoch
from ottla.coordinator.shard import CancelTimer, CoordinatorResult, StartTimer
from ottla.coordinator.timeline import Timeline, TimelineDict

_NO_TARGET: Final = TargetEpoch(-1, 0)


class ReplayedGroup(Group, Protocol):
    """What replay and timers need of a group of any of the three kinds."""

    members: TimelineDict[str, Any]

    def __init__(self, timeline: Timeline, group_id: str) -> None: ...
    def set_epoch(self, epoch: int, metadata_hash: int) -> None: ...
    def set_target_epoch(self, target: TargetEpoch) -> None: ...
    def put_target(self, member_id: str, target: Any) -> None: ...
    def remove_target(self, member_id: str) -> None: ...
    def put_member(self, member: Any) -> None: ...
    def remove_member(self, member_id: str) -> None: ...


G = TypeVar("G", bound=ReplayedGroup)


class GroupsOfKind(Generic[G]):
    """The groups of one class among all those of a shard."""

    def __init__(self, context: GroupContext, kind: type[G]) -> None:
        self._context = context
        self._kind: type[G] = kind

    def get(self, group_id: str) -> G | None:
        group = self._context.groups.get(group_id)
        return group if isinstance(group, self._kind) else None

    def get_or_create(self, group_id: str) -> G:
        """The group; a new one in the place of one that was there for its offsets only."""
        group = self.get(group_id)
        if group is None:
            group = self._kind(self._context.timeline, group_id)
            self._context.groups[group_id] = group
        return group

    def remove(self, group_id: str) -> bool:
        """Its record is deleted; False if there was none of this kind."""
        there = self.get(group_id) is not None
        if there:
            self._context.groups.pop(group_id)
        return there


class GroupsByTopic:
    """Soft, and never too small: groups that a topic concerns, or did."""

    def __init__(self) -> None:
        self._ids: dict[str, set[str]] = {}

    def note(self, group_id: str, topics: Iterable[str]) -> None:
        for topic in topics:
            self._ids.setdefault(topic, set()).add(group_id)

    def affected_by(self, topics: Iterable[str], still: Callable[[str, str], bool]) -> Iterator[str]:
        """Those that any of these topics still concerns (`still` of group and topic); others are forgotten."""
        for topic in topics:
            ids = self._ids.get(topic, set())
            for group_id in list(ids):
                if still(group_id, topic):
                    yield group_id
                else:
                    ids.discard(group_id)
            if not ids:
                self._ids.pop(topic, None)


class GroupKey(Protocol):
    """The key of a record about a group."""

    group_id: str


class MemberKey(Protocol):
    """The key of a record about a member."""

    group_id: str
    member_id: str


class TargetEpochValue(Protocol):
    """What the target assignment was made for, and when."""

    assignment_epoch: int
    assignment_timestamp: int


class ModernReplay(Generic[G]):
    """What the records mean that all three kinds have."""

    def __init__(
        self, context: GroupContext, kind: type[G], new_member: type[Any], target_of: Callable[[Any], Any]
    ) -> None:
        """`new_member` is the kind's class of members; `target_of` reads a target assignment from its record."""
        self._groups: GroupsOfKind[G] = GroupsOfKind(context, kind)
        self._new_member = new_member
        self._target_of = target_of

    def _group(self, key: GroupKey, value: Any | None) -> None:
        if value is not None:
            self._groups.get_or_create(key.group_id).set_epoch(value.epoch, value.metadata_hash)
        else:
            self._groups.remove(key.group_id)

    def _member(self, key: MemberKey, value: Any | None) -> None:
        if value is None:
            group = self._groups.get(key.group_id)
            if group is not None:
                group.remove_member(key.member_id)
            return
        group = self._groups.get_or_create(key.group_id)
        member = group.members.get(key.member_id) or self._new_member(key.member_id)
        group.put_member(member.with_metadata(value))

    def _target_epoch(self, key: GroupKey, value: TargetEpochValue | None) -> None:
        if value is not None:
            target = TargetEpoch(value.assignment_epoch, value.assignment_timestamp)
            self._groups.get_or_create(key.group_id).set_target_epoch(target)
            return
        group = self._groups.get(key.group_id)
        if group is not None:
            group.set_target_epoch(_NO_TARGET)

    def _target(self, key: MemberKey, value: Any | None) -> None:
        if value is not None:
            self._groups.get_or_create(key.group_id).put_target(key.member_id, self._target_of(value))
            return
        group = self._groups.get(key.group_id)
        if group is not None:
            group.remove_target(key.member_id)

    def _assignment(self, key: MemberKey, value: Any | None) -> None:
        group = self._groups.get(key.group_id) if value is None else self._groups.get_or_create(key.group_id)
        member = None if group is None else group.members.get(key.member_id)
        if group is None or (member is None and value is None):
            return
        member = member or self._new_member(key.member_id)
        group.put_member(member.without_assignment() if value is None else member.with_assignment(value))


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
    """The timers of the members."""

    def __init__(
        self,
        groups: GroupsOfKind[G],
        kind: GroupType,
        why: Mapping[Wait, str],
        fence: Callable[[G, Any, int], CoordinatorResult[Any]],
    ) -> None:
        """`why` has what there is to wait for, and why a member that lets it pass is fenced, which `fence` does."""
        self._groups: GroupsOfKind[G] = groups
        self._kind = kind
        self._why = why
        self._fence: Callable[[G, Any, int], CoordinatorResult[Any]] = fence
        self._log = logging.getLogger(f"ottla.coordinator.{kind}")
        # The timers that heartbeats start again and again.
        self._sessions: dict[tuple[str, str], StartTimer] = {}

    def start(
        self, decision: DecisionBuilder, wait: Wait, group_id: str, member_id: str, delay_ms: float
    ) -> None:
        decision.effects.append(self._timer(wait, group_id, member_id, delay_ms))

    def session(self, group_id: str, member_id: str, timeout_ms: int) -> StartTimer:
        """A member of the new protocol has been heard of."""
        known = self._sessions.get((group_id, member_id))
        if known is None or known.delay_ms != timeout_ms:
            known = self._timer(Wait.SESSION, group_id, member_id, timeout_ms)
            self._sessions[group_id, member_id] = known
        return known

    def start_rebalance(self, decision: DecisionBuilder, group_id: str, member: Rebalancing) -> None:
        """The member has to leave this epoch in time."""
        timer = self._timer(
            Wait.REBALANCE, group_id, member.member_id, member.rebalance_timeout_ms, member.member_epoch
        )
        decision.effects.append(timer)

    def cancel(self, decision: DecisionBuilder, wait: Wait, group_id: str, member_id: str) -> None:
        decision.effects.append(CancelTimer(self._key(wait, group_id, member_id)))

    def cancel_all(
        self, decision: DecisionBuilder, group_id: str, member_id: str, session_timeout_ms: int
    ) -> None:
        """The member goes; if that is not written after all, it has a session again."""
        for wait in self._why:
            self.cancel(decision, wait, group_id, member_id)
        self._sessions.pop((group_id, member_id), None)
        session = self._timer(Wait.SESSION, group_id, member_id, session_timeout_ms)
        decision.failures.append(lambda _: (session,))

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
    ) -> CoordinatorResult[Any]:
        """The member is fenced, if it and its group are still there."""
        self._sessions.pop((group_id, member_id), None)
        group = self._groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None or (epoch is not None and member.member_epoch != epoch):
            return CoordinatorResult(None)
        self._log.info("group %s: member %s is fenced: %s", group_id, member_id, self._why[wait])
        return self._fence(group, member, now_ms)
