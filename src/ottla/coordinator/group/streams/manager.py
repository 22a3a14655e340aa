"""The streams groups of a shard (APIs 88 and 89).

It puts the parts together, replays the records, and passes on what happens to the cluster.

Owner: a GroupMachine.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from ottla.coordinator.group.classic.join import Caller
from ottla.coordinator.group.context import GroupContext, Replay
from ottla.coordinator.group.modern_image import forget_changed
from ottla.coordinator.group.modern_timers import Wait
from ottla.coordinator.group.modern_turn import Turn
from ottla.coordinator.group.streams.core import StreamsGroups
from ottla.coordinator.group.streams.describe import describe
from ottla.coordinator.group.streams.group import StreamsGroup
from ottla.coordinator.group.streams.heartbeat import Heartbeats
from ottla.coordinator.group.streams.large import LargeAssignments
from ottla.coordinator.group.streams.member import MemberState, StreamsGroupMember
from ottla.coordinator.group.streams.replay import StreamsReplay
from ottla.coordinator.group.streams.response import HeartbeatOutcome
from ottla.coordinator.result import Effect, Result, StartTimer
from ottla.metadata.delta import Delta
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.streams_group import DescribedGroup, StreamsGroupHeartbeatRequest

# Groups whose timers are started before the loop goes on to something else.
ARMED_AT_ONCE: Final = 50


class StreamsManager:
    """See the module."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._groups = StreamsGroups(context, self._fence, self._assign_first)
        self._large = LargeAssignments(self._groups)
        self._heartbeats = Heartbeats(self._groups, self._large)
        self._replay = StreamsReplay(context, self._groups.first.forget)

    # ---- decisions ------------------------------------------------------------------------------------------

    def heartbeat(
        self, caller: Caller, request: StreamsGroupHeartbeatRequest, now_ms: int
    ) -> Result[HeartbeatOutcome]:
        """A member joins, stays or leaves."""
        return self._heartbeats.heartbeat(caller, request, now_ms)

    def _fence(self, group: StreamsGroup, member: StreamsGroupMember, now_ms: int) -> Result[None]:
        turn = Turn(now_ms)
        self._groups.fence(turn, group, member)
        return turn.result(None)

    def _assign_first(self, group: StreamsGroup, now_ms: int) -> Result[None]:
        """Who wanted to join the empty group has had the time to: all of them are assigned at once."""
        turn = Turn(now_ms)
        configured, epoch = group.configured, group.epoch
        due = epoch > group.target_epoch.epoch and self._groups.may_assign(group, now_ms)
        if due and configured is not None and not self._large.is_running(group.group_id):
            plan = self._groups.plan(group, epoch, configured, None)
            if self._large.is_for(plan):
                self._large.begin(turn, group.group_id, plan, None)
            else:
                self._groups.assign(turn, group, plan)
        return turn.result(None)

    # ---- questions ------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> DescribedGroup:
        """The group as it is committed; GROUP_ID_NOT_FOUND if it is none of these."""
        group = self._context.committed_group(group_id)
        if not isinstance(group, StreamsGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")
        return describe(group)

    # ---- replay and life ------------------------------------------------------------------------------------

    def replays(self) -> Mapping[type[Any], Replay]:
        return self._replay.replays()

    def on_loaded(self, now_ms: int) -> list[Effect]:
        """Every member has a whole session to be heard of, from now on."""
        groups = [group for group in self._context.groups.values() if isinstance(group, StreamsGroup)]
        return self._arm(iter(groups), now_ms)

    def _arm(self, loaded: Iterator[StreamsGroup], now_ms: int) -> list[Effect]:
        """Start the timers of all members, in slices: there may be many."""
        turn = Turn(now_ms)
        some = list(islice(loaded, ARMED_AT_ONCE))
        for group in some:
            timeout_ms = self._groups.settings[group.group_id].session_timeout_ms
            for member in group.members.values():
                self._groups.timers.start(turn, Wait.SESSION, group.group_id, member.member_id, timeout_ms)
                if member.state is MemberState.UNREVOKED_TASKS:
                    self._groups.timers.start_rebalance(turn, group.group_id, member)
        if len(some) == ARMED_AT_ONCE:
            rest = StartTimer("streams-loaded", 0, lambda now_ms: Result(None, (), self._arm(loaded, now_ms)))
            turn.effects.append(rest)
        return turn.effects

    def on_image(self, delta: Delta, now_ms: int) -> list[Effect]:
        """Groups look at their topics again with the next heartbeat."""
        names = forget_changed(delta, self._groups.settings, self._groups.hashes)
        for group in self._replay.groups_that_need(names):
            group.refresh_now()
        return []

    def on_unloaded(self, error: KafkaError) -> None:
        self._large.unloaded(error)
