"""The share groups of a shard (APIs 76, 77 and 90 to 92): decisions, and what happens to the cluster.

Owner: a GroupMachine.
"""

from collections.abc import Mapping
from typing import Any

from ottla.coordinator.group.classic.join import Caller
from ottla.coordinator.group.context import GroupContext, Replay
from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.modern_image import forget_changed
from ottla.coordinator.group.share.describe import describe
from ottla.coordinator.group.share.group import ShareGroup
from ottla.coordinator.group.share.groups import ShareGroups
from ottla.coordinator.group.share.heartbeat import Beat, Heartbeats
from ottla.coordinator.group.share.offsets import ShareOffsets
from ottla.coordinator.group.share.replay import ShareReplay
from ottla.coordinator.result import Effect, Result, StartTimer
from ottla.metadata.delta import Delta
from ottla.model.errors import KafkaError
from ottla.wire.messages.share_group import DescribedGroup, ShareGroupHeartbeatRequest


class ShareManager:
    """See the module."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._groups = ShareGroups(context)
        self._heartbeats = Heartbeats(self._groups)
        self._replay = ShareReplay(context, self._groups.replay_states)
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

    # ---- replay and life ------------------------------------------------------------------------------------

    def replays(self) -> Mapping[type[Any], Replay]:
        return self._replay.replays()

    def on_loaded(self, now_ms: int) -> list[Effect]:
        """Every member's session begins anew."""
        return [
            self._heartbeats.session(
                group.group_id, member_id, self._groups.settings[group.group_id].session_timeout_ms
            )
            for group in self._context.groups.values()
            if isinstance(group, ShareGroup)
            for member_id in group.members
        ]

    def on_image(self, delta: Delta, now_ms: int) -> list[Effect]:
        """Groups look at their topics again with the next heartbeat; what is deleted is forgotten."""
        names = forget_changed(delta, self._groups.settings, self._groups.hashes)
        if not names:
            return []
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
