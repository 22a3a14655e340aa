"""The consumer groups of a shard (APIs 68 and 69), and their classic members' requests.

It puts the parts together, replays the records, and passes on what happens to the cluster.

Owner: a GroupMachine.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ottla.coordinator.group.classic.join import Caller
from ottla.coordinator.group.classic.manager import ClassicManager
from ottla.coordinator.group.consumer.classic_members import ClassicMembers
from ottla.coordinator.group.consumer.conversion import Conversions
from ottla.coordinator.group.consumer.core import ConsumerGroups
from ottla.coordinator.group.consumer.describe import describe
from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.consumer.heartbeat import Heartbeats
from ottla.coordinator.group.consumer.large import LargeAssignments
from ottla.coordinator.group.consumer.leave import Leaves
from ottla.coordinator.group.consumer.loaded import arm
from ottla.coordinator.group.consumer.member import ConsumerGroupMember
from ottla.coordinator.group.consumer.replay import ConsumerReplay
from ottla.coordinator.group.context import GroupContext, Replay
from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.modern_image import forget_changed
from ottla.coordinator.group.modern_turn import Turn
from ottla.coordinator.result import Effect, Result
from ottla.metadata.delta import Delta
from ottla.model.errors import KafkaError
from ottla.wire.messages.consumer_group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedGroup,
)
from ottla.wire.messages.consumer_group import Member as DescribedMember
from ottla.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)


class ConsumerManager:
    """See the module."""

    def __init__(self, context: GroupContext, classic: ClassicManager) -> None:
        self._context = context
        self._groups = ConsumerGroups(context, self._fence)
        self._conversions = Conversions(self._groups, classic)
        self._large = LargeAssignments(context)
        self._leaves = Leaves(self._groups, self._conversions)
        self._heartbeats = Heartbeats(self._groups, self._leaves, self._large, self._conversions)
        self._classic_members = ClassicMembers(self._groups, self._conversions, self._large)
        self._replay = ConsumerReplay(context)
        classic.consumer_groups = self

    # ---- decisions ------------------------------------------------------------------------------------------

    def heartbeat(
        self, caller: Caller, request: ConsumerGroupHeartbeatRequest, now_ms: int
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        """A member joins, stays or leaves."""
        return self._heartbeats.heartbeat(caller, request, now_ms)

    def _fence(self, group: ConsumerGroup, member: ConsumerGroupMember, now_ms: int) -> Result[None]:
        turn = Turn(now_ms)
        self._leaves.fence(turn, group, [member])
        return turn.result(None)

    def classic_join(
        self, group_id: str, caller: Caller, request: JoinGroupRequest, now_ms: int
    ) -> Result[JoinGroupResponse]:
        turn = Turn(now_ms)
        group = self._groups.consumer_group(group_id)
        return turn.result(self._classic_members.join(turn, group, caller, request))

    def classic_sync(
        self, caller: Caller, request: SyncGroupRequest, now_ms: int
    ) -> Result[SyncGroupResponse]:
        turn = Turn(now_ms)
        group = self._groups.consumer_group(request.group_id)
        return turn.result(self._classic_members.sync(turn, group, request))

    def classic_heartbeat(
        self, caller: Caller, request: HeartbeatRequest, now_ms: int
    ) -> Result[HeartbeatResponse]:
        turn = Turn(now_ms)
        group = self._groups.consumer_group(request.group_id)
        return turn.result(self._classic_members.heartbeat(turn, group, request))

    def classic_leave(
        self, caller: Caller, request: LeaveGroupRequest, now_ms: int
    ) -> Result[LeaveGroupResponse]:
        turn = Turn(now_ms)
        group = self._groups.consumer_group(request.group_id)
        return turn.result(self._leaves.leave_classic(turn, group, request))

    # ---- questions ------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> tuple[DescribedGroup, Iterator[DescribedMember]]:
        """The group as it is committed, and its members to be put in; GROUP_ID_NOT_FOUND if it is none of these."""
        group = self._context.committed_group(group_id, GroupType.CONSUMER)
        assert isinstance(group, ConsumerGroup)
        return describe(group, next(iter(self._groups.assignors)), self._context.image)

    # ---- replay and life ------------------------------------------------------------------------------------

    def replays(self) -> Mapping[type[Any], Replay]:
        return self._replay.replays()

    def on_loaded(self, now_ms: int) -> list[Effect]:
        self._groups.regexes.seen(self._context.image.offset)
        groups = [group for group in self._context.groups.values() if isinstance(group, ConsumerGroup)]
        return arm(self._groups, iter(groups), now_ms)

    def on_image(self, delta: Delta, now_ms: int) -> list[Effect]:
        """Groups look at their topics again with the next heartbeat."""
        if delta.created_topics:
            self._groups.regexes.topics_created(delta.after.offset)
        names = forget_changed(delta, self._groups.settings, self._groups.hashes)
        for group_id in self._replay.groups_subscribed_to(names):
            group = self._context.groups.get(group_id)
            if isinstance(group, ConsumerGroup):
                group.refresh_now()
        return []

    def on_unloaded(self, error: KafkaError) -> None:
        self._large.unloaded(error)
