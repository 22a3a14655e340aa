"""The share groups of a shard (APIs 76, 77 and 90 to 92): decisions, replay, and what happens to the cluster.

Owner: a GroupMachine.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ottla.coordinator.group.classic.join import Caller
from ottla.coordinator.group.context import GroupContext, Replay
from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.modern_group import TargetEpoch
from ottla.coordinator.group.modern_member import LEAVE_EPOCH
from ottla.coordinator.group.of_kind import GroupsOfKind
from ottla.coordinator.group.share import records
from ottla.coordinator.group.share.describe import describe
from ottla.coordinator.group.share.group import ShareGroup
from ottla.coordinator.group.share.groups import ShareGroups
from ottla.coordinator.group.share.heartbeat import Beat, Heartbeats
from ottla.coordinator.group.share.member import ShareGroupMember
from ottla.coordinator.group.share.offsets import ShareOffsets
from ottla.coordinator.result import Effect, Result, StartTimer
from ottla.metadata.delta import Delta
from ottla.model.errors import KafkaError
from ottla.wire.messages import share_group_log as log
from ottla.wire.messages.share_group import DescribedGroup, ShareGroupHeartbeatRequest

_NO_TARGET = TargetEpoch(-1, 0)


class ShareManager:
    """See the module."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._kind = GroupsOfKind(context, ShareGroup)
        self._groups = ShareGroups(context)
        self._heartbeats = Heartbeats(self._groups)
        self.offsets = ShareOffsets(self._groups)

    # ---- decisions and questions ----------------------------------------------------------------------------

    def heartbeat(self, caller: Caller, request: ShareGroupHeartbeatRequest, now_ms: int) -> Result[Beat]:
        """A member joins, stays or leaves."""
        return self._heartbeats.heartbeat(caller, request, now_ms)

    def describe(self, group_id: str) -> DescribedGroup:
        """The group as it is committed; GROUP_ID_NOT_FOUND if it is none of these."""
        group = self._context.committed_group(group_id, GroupType.SHARE)
        assert isinstance(group, ShareGroup)
        return describe(group, self._context.image)

    # ---- replay ---------------------------------------------------------------------------------------------

    def replays(self) -> Mapping[type[Any], Replay]:
        return {
            log.ShareGroupMemberMetadataKey: self._replay_member,
            log.ShareGroupMetadataKey: self._replay_group,
            log.ShareGroupTargetAssignmentMetadataKey: self._replay_target_epoch,
            log.ShareGroupTargetAssignmentMemberKey: self._replay_target,
            log.ShareGroupCurrentMemberAssignmentKey: self._replay_assignment,
            log.ShareGroupStatePartitionMetadataKey: self._replay_states,
        }

    def _replay_member(
        self, key: log.ShareGroupMemberMetadataKey, value: log.ShareGroupMemberMetadataValue | None
    ) -> None:
        if value is None:
            group = self._kind.present(key.group_id)
            if group is not None:
                group.remove_member(key.member_id)
            return
        group = self._kind.made(key.group_id)
        member = group.members.get(key.member_id) or ShareGroupMember(key.member_id)
        group.put_member(
            replace(
                member,
                rack_id=value.rack_id,
                client_id=value.client_id,
                client_host=value.client_host,
                subscribed_topic_names=frozenset(value.subscribed_topic_names),
            )
        )

    def _replay_group(
        self, key: log.ShareGroupMetadataKey, value: log.ShareGroupMetadataValue | None
    ) -> None:
        if value is not None:
            self._kind.made(key.group_id).set_epoch(value.epoch, value.metadata_hash)
        else:
            self._kind.removed(key.group_id)

    def _replay_target_epoch(
        self,
        key: log.ShareGroupTargetAssignmentMetadataKey,
        value: log.ShareGroupTargetAssignmentMetadataValue | None,
    ) -> None:
        if value is not None:
            target = TargetEpoch(value.assignment_epoch, value.assignment_timestamp)
            self._kind.made(key.group_id).set_target_epoch(target)
            return
        group = self._kind.present(key.group_id)
        if group is not None:
            group.set_target_epoch(_NO_TARGET)

    def _replay_target(
        self,
        key: log.ShareGroupTargetAssignmentMemberKey,
        value: log.ShareGroupTargetAssignmentMemberValue | None,
    ) -> None:
        if value is not None:
            target = records.assignment_of(value.topic_partitions)
            self._kind.made(key.group_id).put_target(key.member_id, target)
            return
        group = self._kind.present(key.group_id)
        if group is not None:
            group.remove_target(key.member_id)

    def _replay_assignment(
        self,
        key: log.ShareGroupCurrentMemberAssignmentKey,
        value: log.ShareGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        group = self._kind.present(key.group_id) if value is None else self._kind.made(key.group_id)
        member = None if group is None else group.members.get(key.member_id)
        if group is None or (member is None and value is None):
            return
        member = member or ShareGroupMember(key.member_id)
        if value is None:
            epochs, state, assigned = (LEAVE_EPOCH, LEAVE_EPOCH), member.state, {}
        else:
            epochs, state = (value.member_epoch, value.previous_member_epoch), value.state
            assigned = dict(records.assignment_of(value.assigned_partitions))
        group.put_member(
            replace(
                member,
                member_epoch=epochs[0],
                previous_member_epoch=epochs[1],
                state=state,
                assigned=assigned,
            )
        )

    def _replay_states(
        self,
        key: log.ShareGroupStatePartitionMetadataKey,
        value: log.ShareGroupStatePartitionMetadataValue | None,
    ) -> None:
        if value is None:
            self._groups.replay_states(key.group_id, None)
        else:
            self._kind.made(key.group_id)
            self._groups.replay_states(key.group_id, records.states_of(value))

    # ---- life -----------------------------------------------------------------------------------------------

    def on_loaded(self, now_ms: int) -> list[Effect]:
        """Every member's session begins anew."""
        return [
            self._heartbeats.session(
                group.group_id, member_id, self._groups.settings(group.group_id).session_timeout_ms
            )
            for group in self._context.groups.values()
            if isinstance(group, ShareGroup)
            for member_id in group.members
        ]

    def on_image(self, delta: Delta, now_ms: int) -> list[Effect]:
        """Groups look at their topics again with the next heartbeat; what is deleted is forgotten."""
        if delta.configs:
            self._groups.settings_changed()
        if delta.brokers:
            self._groups.hashes.clear()  # their racks may be others
        names = {t.name for change in delta.topics.values() for t in (change.before, change.after) if t}
        if not names:
            return []
        self._groups.hashes.forget(names)
        for group in self._context.groups.values():
            if isinstance(group, ShareGroup) and any(name in group.subscriptions for name in names):
                group.refresh_now()
        deleted = frozenset(topic.id for topic in delta.deleted_topics)
        if not deleted:
            return []
        key = "share groups: deleted topics", deleted
        return [StartTimer(key, 0, lambda _: self.offsets.forget_topics(deleted))]

    def on_unloaded(self, error: KafkaError) -> None:
        """Nobody is parked here."""
