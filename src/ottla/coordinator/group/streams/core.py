"""What all decisions about streams groups share: finding groups, their topics, target assignments, steps.

Owner: the StreamsManager of a shard.
"""

from typing import Final, NamedTuple

from ottla.coordinator.group.classic.group import ClassicGroup
from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.metadata_hash import TopicHashes
from ottla.coordinator.group.modern_settings import SettingsCache
from ottla.coordinator.group.modern_timers import Wait
from ottla.coordinator.group.modern_turn import Turn
from ottla.coordinator.group.streams import records
from ottla.coordinator.group.streams.configured import ConfiguredTopology
from ottla.coordinator.group.streams.group import StreamsGroup
from ottla.coordinator.group.streams.internal_topics import configure
from ottla.coordinator.group.streams.member import MemberState, StreamsGroupMember
from ottla.coordinator.group.streams.reconcile import Reconciliation
from ottla.coordinator.group.streams.settings import read_settings
from ottla.coordinator.group.streams.target import TargetPlan
from ottla.coordinator.group.streams.tasks import Tasks
from ottla.coordinator.group.streams.timers import Assign, Fence, FirstAssignments, member_timers
from ottla.coordinator.group.streams.topology import StreamsTopology
from ottla.coordinator.timeline import Timeline
from ottla.model.errors import ErrorCode, KafkaError

MAX_SIZE: Final = "group.streams.max.size"
# The topics are looked at this often even if nobody says that they have changed.
METADATA_REFRESH_INTERVAL_MS: Final = 3_600_000


class Target(NamedTuple):
    """What a member is to be reconciled to."""

    epoch: int
    tasks: Tasks


class Topics(NamedTuple):
    """What a group's topics are like now."""

    configured: ConfiguredTopology
    metadata_hash: int


class StreamsGroups:
    """See the module."""

    def __init__(self, context: GroupContext, fence: Fence, assign: Assign) -> None:
        self.context = context
        self.hashes = TopicHashes()
        self.settings = SettingsCache(context, read_settings)
        self.timers = member_timers(context, fence)
        self.first = FirstAssignments(context, assign)

    # ---- groups ---------------------------------------------------------------------------------------------

    def streams_group(self, group_id: str) -> StreamsGroup:
        """The streams group; GROUP_ID_NOT_FOUND if there is none of that kind."""
        group = self.context.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Streams group {group_id} not found.")
        if not isinstance(group, StreamsGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")
        return group

    def group_to_join(self, turn: Turn, group_id: str) -> StreamsGroup:
        """The group that a member joins: made now if there is none, or in the place of an empty classic one."""
        present = self.context.groups.get(group_id)
        if present is None:
            return _scratch(group_id)
        if isinstance(present, ClassicGroup) and present.is_empty():
            turn.records.extend(present.tombstones())
            return _scratch(group_id)
        group = self.streams_group(group_id)
        most: int = self.context.config()[MAX_SIZE]
        if len(group.members) >= most:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"The group has {most} members already.")
        return group

    # ---- topics ---------------------------------------------------------------------------------------------

    def look_at_topics(self, turn: Turn, group: StreamsGroup, topology: StreamsTopology) -> Topics:
        """What the topology needs; looked up again if the topology is new, or the topics may be others."""
        metadata_hash = group.metadata_hash
        configured = group.configured
        if group.topology is None or configured is None or group.must_refresh(turn.now_ms):
            metadata_hash = self.hashes.group_hash(topology.required_topics, self.context.image)
            stale = metadata_hash != group.metadata_hash
            if stale or configured is None or group.topology is None:
                configured = configure(topology, self.context.image)
                group.configure(configured)
            group.refresh_after(turn.now_ms + METADATA_REFRESH_INTERVAL_MS, group.epoch)
        return Topics(configured, metadata_hash)

    # ---- the target assignment ------------------------------------------------------------------------------

    def may_assign(self, group: StreamsGroup, now_ms: int) -> bool:
        """Is it not too soon after the last target assignment (KIP-1263)?"""
        last_ms = group.target_epoch.timestamp_ms
        interval_ms = self.settings[group.group_id].assignment_interval_ms
        return not last_ms or not interval_ms or now_ms >= last_ms + interval_ms

    def plan(
        self,
        group: StreamsGroup,
        epoch: int,
        configured: ConfiguredTopology,
        joining: StreamsGroupMember | None,
    ) -> TargetPlan:
        """What is to be assigned once `joining` is as it says."""
        if joining is None:
            configs = group.basis.assignment_configs
        else:
            configs = self.settings[group.group_id].assignment_configs
        return TargetPlan(
            epoch=epoch,
            configured=configured,
            configs=configs,
            members=dict(group.members.items()),
            target=dict(group.target.items()),
            joining=joining,
        )

    def assign(self, turn: Turn, group: StreamsGroup, plan: TargetPlan) -> dict[str, Tasks]:
        """Write the new target assignment; what has changed of it."""
        changes = plan.compute()
        group_id = group.group_id
        turn.records.extend(
            records.target_assignment(group_id, member_id, new) for member_id, new in changes.items()
        )
        turn.records.append(records.target_epoch(group_id, plan.epoch, turn.now_ms))
        return changes

    # ---- the current assignment -----------------------------------------------------------------------------

    def reconcile(
        self, turn: Turn, group: StreamsGroup, member: StreamsGroupMember, target: Target, owned: Tasks | None
    ) -> StreamsGroupMember:
        """A step of the member towards its target."""
        if member.is_reconciled_to(target.epoch):
            return member
        updated = Reconciliation(target.epoch, target.tasks, group.owners, owned).step(member)
        if updated == member:
            return member
        turn.records.append(records.current_assignment(group.group_id, updated))
        if updated.state is MemberState.UNREVOKED_TASKS:
            self.timers.start_rebalance(turn, group.group_id, updated)
        else:
            self.timers.cancel(turn, Wait.REBALANCE, group.group_id, updated.member_id)
        return updated

    # ---- members that go ------------------------------------------------------------------------------------

    def fence(self, turn: Turn, group: StreamsGroup, member: StreamsGroupMember) -> None:
        """Remove a member: the others share what it had."""
        group_id = group.group_id
        turn.records.extend(records.removed_member(group_id, member.member_id))
        turn.records.append(records.group_epoch(group_id, group.epoch + 1, group.metadata_hash, group.basis))
        session_timeout_ms = self.settings[group_id].session_timeout_ms
        self.timers.cancel_all(turn, group_id, member.member_id, session_timeout_ms)


def _scratch(group_id: str) -> StreamsGroup:
    """A group to decide on, which becomes a real one by the replay of what is decided."""
    timeline = Timeline()
    timeline.recording = False
    return StreamsGroup(timeline, group_id)
