"""Kafka's GroupMetadataManager, as far as share groups go (APIs 76, 77 and 90 to 92, KIP-932).

A heartbeat: a member joins, says what it subscribes to, learns what it shares, leaves. A new or changed member makes a
new epoch of the group, a new epoch a new target assignment, which the member takes at once. Only partitions whose
share state is set up are assigned: what is not yet is set up on behalf of the first heartbeat that sees it, and with
that the group gets another epoch. Most heartbeats find that nothing is new and that there was nothing to do before.

Owner: a GroupCoordinatorShard.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ottla.coordinator.group.assignors.api import Assignment, SubscriptionType
from ottla.coordinator.group.context import Caller, GroupContext, Replay
from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.modern.group import JOIN_EPOCH, LEAVE_EPOCH, fenced
from ottla.coordinator.group.modern.heartbeat import forget_changed
from ottla.coordinator.group.share import assignor, records
from ottla.coordinator.group.share.group import ShareGroup, describe, subscription_type
from ottla.coordinator.group.share.groups import Initialize, ShareGroups, ShareReplay
from ottla.coordinator.group.share.member import ShareGroupMember
from ottla.coordinator.group.share.offsets import ShareOffsets
from ottla.coordinator.group.share.records import ShareTopic, Topics
from ottla.coordinator.java_hash import copied_capacity, hash_order, members_in_order
from ottla.coordinator.shard import CancelTimer, CoordinatorRecord, CoordinatorResult, Effect, StartTimer
from ottla.metadata.delta import Delta
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.model.java_hash import java_hash_code
from ottla.wire.messages.groups.share import (
    DescribedGroup,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupHeartbeatResponseAssignment,
    ShareGroupHeartbeatResponseTopicPartitions,
)

log = logging.getLogger("ottla.coordinator.share")

MAX_SIZE: Final = "group.share.max.size"
# The topics are looked at again when one of them changes, not because time has passed.
METADATA_REFRESH_INTERVAL_MS: Final = 2**31 - 1


class HeartbeatOutcome(NamedTuple):
    """What a heartbeat comes to."""

    response: ShareGroupHeartbeatResponse
    initialize: Initialize | None = None


class ShareGroupManager:
    """The share groups of a shard."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._groups = ShareGroups(context)
        self._replay = ShareReplay(context, self._groups.replay_states)
        self.offsets = ShareOffsets(self._groups)

    # ---- heartbeats -------------------------------------------------------------------------------------

    def heartbeat(
        self, caller: Caller, request: ShareGroupHeartbeatRequest, now_ms: int
    ) -> CoordinatorResult[HeartbeatOutcome]:
        """A member joins, stays or leaves."""
        if request.member_epoch == LEAVE_EPOCH:
            return self._leave(request)
        alive = self._alive(caller, request, now_ms)
        if alive is not None:
            return alive
        groups = self._groups
        group = self._group(request)
        self._require_room(group, request.member_id)
        member = self._member(group, request)
        updated = _updated_member(member, caller, request)
        written: list[CoordinatorRecord] = []
        if updated != member:
            written.append(records.member_metadata(group.group_id, updated))
        changed = updated.subscribed_topic_names != member.subscribed_topic_names
        if group.target_epoch.epoch >= group.epoch:
            changed = self._is_unassigned(group) or changed
        epoch, names, kind, changed = self._refresh(group, member, updated, written, changed, now_ms)
        target = self._assign(group, epoch, updated, kind, written, now_ms)
        after = self._reconcile(group.group_id, updated, target, written, changed=changed)
        send_assignment = (
            request.member_epoch == JOIN_EPOCH
            or request.subscribed_topic_names is not None
            or after.assigned != member.assigned
        )
        response = ShareGroupHeartbeatResponse(
            member_id=after.member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=groups.settings[group.group_id].heartbeat_interval_ms,
            assignment=_assignment(after.assigned) if send_assignment else None,
        )
        return self._initializing(group, epoch, names, response, written, now_ms)

    def _alive(
        self, caller: Caller, request: ShareGroupHeartbeatRequest, now_ms: int
    ) -> CoordinatorResult[HeartbeatOutcome] | None:
        """The short way of most heartbeats: nothing is new, and there was nothing to do before."""
        if request.subscribed_topic_names is not None or request.rack_id is not None:
            return None
        group = self._context.groups.get(request.group_id)
        if not isinstance(group, ShareGroup) or not self._is_settled(group) or group.must_refresh(now_ms):
            return None
        member = group.members.get(request.member_id)
        if member is None or not request.member_epoch == member.member_epoch == group.epoch:
            return None
        if (member.client_id, member.client_host) != caller[:2]:
            return None
        settings = self._groups.settings[group.group_id]
        response = ShareGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
        )
        session = self._session(group.group_id, member.member_id, settings.session_timeout_ms)
        return CoordinatorResult(HeartbeatOutcome(response), (), (session,))

    def _is_settled(self, group: ShareGroup) -> bool:
        return group.is_settled(self._groups.states.get(group.group_id), self._context.image)

    # ---- who it is ------------------------------------------------------------------------------------------

    def _group(self, request: ShareGroupHeartbeatRequest) -> ShareGroup:
        if request.member_epoch == JOIN_EPOCH:
            return self._groups.group_or_new(request.group_id)
        return self._groups.group(request.group_id)

    def _require_room(self, group: ShareGroup, member_id: str) -> None:
        most: int = self._context.config()[MAX_SIZE]
        if len(group.members) >= most and member_id not in group.members:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"The group has {most} members already.")

    def _member(self, group: ShareGroup, request: ShareGroupHeartbeatRequest) -> ShareGroupMember:
        """The member as it is, or a new one."""
        epoch = request.member_epoch
        if epoch == JOIN_EPOCH:
            return group.members.get(request.member_id) or ShareGroupMember(request.member_id)
        member = group.member(request.member_id)
        # A member that comes with its last epoch may not have heard of the new one.
        if epoch != member.member_epoch and not epoch == member.previous_member_epoch < member.member_epoch:
            raise fenced(member.member_epoch, epoch)
        return member

    # ---- epochs and assignments -----------------------------------------------------------------------------

    def _is_unassigned(self, group: ShareGroup) -> bool:
        """Is there a topic that members subscribe to, whose partitions are set up but not (all) assigned?"""
        if not len(group.subscriptions):
            return False
        assigned: dict[Uuid, set[int]] = {}
        for assignment in group.target.values():
            for topic_id, partitions in assignment.items():
                assigned.setdefault(topic_id, set()).update(partitions)
        return any(
            topic.name in group.subscriptions and assigned.get(topic_id, frozenset[int]()) != topic.partitions
            for topic_id, topic in self._groups.states_of(group.group_id).initialized.items()
        )

    def _refresh(
        self,
        group: ShareGroup,
        member: ShareGroupMember,
        updated: ShareGroupMember,
        written: list[CoordinatorRecord],
        changed: bool,
        now_ms: int,
    ) -> tuple[int, Sequence[str], SubscriptionType, bool]:
        """Look at the topics again if it is time: the epoch, the topics, how alike the subscriptions are, anew?"""
        if not changed and not group.must_refresh(now_ms):
            counts: Mapping[str, int] = dict(group.subscriptions.items())
            return group.epoch, list(counts), subscription_type(counts, len(group.members)), False
        counts = group.subscriptions_with(member, updated)
        members = len(group.members) + (updated.member_id not in group.members)
        metadata_hash = self._groups.hashes.group_hash(counts, self._context.image)
        changed = changed or metadata_hash != group.metadata_hash
        epoch = group.epoch + changed
        if changed:
            written.append(records.group_epoch(group.group_id, epoch, metadata_hash))
        group.refresh_after(now_ms + METADATA_REFRESH_INTERVAL_MS, epoch)
        return epoch, list(counts), subscription_type(counts, members), changed

    def _assign(
        self,
        group: ShareGroup,
        epoch: int,
        updated: ShareGroupMember,
        kind: SubscriptionType,
        written: list[CoordinatorRecord],
        now_ms: int,
    ) -> tuple[int, Assignment]:
        """The epoch and assignment to go for: new ones if they are due, and not too soon after the last (KIP-1263)."""
        last = group.target_epoch
        interval_ms = self._groups.settings[group.group_id].assignment_interval_ms
        too_soon = last.timestamp_ms and interval_ms and now_ms < last.timestamp_ms + interval_ms
        if last.epoch >= epoch or too_soon:
            return last.epoch, group.target_of(updated.member_id)
        members = self._specs(group, updated)
        assigned = assignor.assign(members, kind, self._assignable(group.group_id, members))
        for member_id in members:
            new = assigned.get(member_id, {})
            if group.target.get(member_id) != new:
                written.append(records.target_assignment(group.group_id, member_id, new))
        written.append(records.target_epoch(group.group_id, epoch, now_ms))
        return epoch, assigned.get(updated.member_id, {})

    def _specs(self, group: ShareGroup, updated: ShareGroupMember) -> dict[str, assignor.ShareMember]:
        ids = list(group.members)
        if updated.member_id not in group.members:
            ids.append(updated.member_id)
        members = {
            member_id: updated if member_id == updated.member_id else group.members[member_id]
            for member_id in members_in_order(ids)
        }
        topic_ids: dict[frozenset[str], list[Uuid]] = {}
        for member in members.values():
            if member.subscribed_topic_names not in topic_ids:
                topic_ids[member.subscribed_topic_names] = self._topic_ids(member.subscribed_topic_names)
        return {
            member_id: assignor.ShareMember(
                topic_ids[member.subscribed_topic_names], group.target_of(member_id)
            )
            for member_id, member in members.items()
        }

    def _topic_ids(self, names: frozenset[str]) -> list[Uuid]:
        ordered = hash_order(sorted(names), java_hash_code, copied_capacity(len(names)))
        found = (self._context.image.topic(name) for name in ordered)
        return [topic.id for topic in found if topic is not None]

    def _assignable(
        self, group_id: str, members: Mapping[str, assignor.ShareMember]
    ) -> dict[Uuid, Sequence[int]]:
        initialized = self._groups.states_of(group_id).initialized
        wanted = {topic_id for member in members.values() for topic_id in member.topic_ids}
        return {
            topic_id: sorted(initialized[topic_id].partitions) for topic_id in wanted & initialized.keys()
        }

    def _reconcile(
        self,
        group_id: str,
        member: ShareGroupMember,
        target: tuple[int, Assignment],
        written: list[CoordinatorRecord],
        *,
        changed: bool,
    ) -> ShareGroupMember:
        if not changed and member.is_reconciled_to(target[0]):
            return member
        subscribed = frozenset(self._topic_ids(member.subscribed_topic_names))
        after = member.reconciled(*target, subscribed, changed=changed)
        if after != member:
            written.append(records.current_assignment(group_id, after))
        return after

    # ---- setting up share partitions ------------------------------------------------------------------------

    def _initializing(
        self,
        group: ShareGroup,
        epoch: int,
        names: Sequence[str],
        response: ShareGroupHeartbeatResponse,
        written: list[CoordinatorRecord],
        now_ms: int,
    ) -> CoordinatorResult[HeartbeatOutcome]:
        group_id = group.group_id
        timeout_ms = self._groups.settings[group_id].session_timeout_ms
        effects = [self._session(group_id, response.member_id or "", timeout_ms)]
        topics = self._groups.to_initialize(group_id, names, now_ms)
        if not topics:
            if not written and group.target_epoch.epoch == group.epoch:
                self._note_settled(group)
            return CoordinatorResult(HeartbeatOutcome(response), written, effects)
        written.append(self._groups.begun(group_id, topics, now_ms))
        return CoordinatorResult(
            HeartbeatOutcome(response, Initialize(group_id, epoch, starts_unknown(topics))),
            written,
            effects,
            lambda _: self._not_begun(group_id, topics),
        )

    def _note_settled(self, group: ShareGroup) -> None:
        """Unless something is being set up still: that may have to be tried again."""
        states = self._groups.states.get(group.group_id)
        if states is None or not states.initializing:
            group.note_settled(states, self._context.image)

    def _not_begun(self, group_id: str, topics: Topics) -> Sequence[Effect]:
        self._groups.not_begun(group_id, topics)
        return ()

    # ---- leaving --------------------------------------------------------------------------------------------

    def _leave(self, request: ShareGroupHeartbeatRequest) -> CoordinatorResult[HeartbeatOutcome]:
        group = self._groups.group(request.group_id)
        member = group.member(request.member_id)
        response = ShareGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch, heartbeat_interval_ms=0
        )
        return CoordinatorResult(
            HeartbeatOutcome(response),
            self._remove(group, member),
            [CancelTimer(_session_key(request.group_id, request.member_id))],
            lambda _: self._stays(request),
        )

    def _stays(self, request: ShareGroupHeartbeatRequest) -> Sequence[Effect]:
        """That it has left could not be written: if nothing more is heard of it, its session ends."""
        timeout_ms = self._groups.settings[request.group_id].session_timeout_ms
        return [self._session(request.group_id, request.member_id, timeout_ms)]

    def _remove(self, group: ShareGroup, member: ShareGroupMember) -> list[CoordinatorRecord]:
        group_id = group.group_id
        metadata_hash = self._groups.hashes.group_hash(
            group.subscriptions_with(member, None), self._context.image
        )
        written = records.removed_member(group_id, member.member_id)
        written.append(records.group_epoch(group_id, group.epoch + 1, metadata_hash))
        return written

    def _session(self, group_id: str, member_id: str, timeout_ms: float) -> Effect:
        """The member's session begins anew."""
        return StartTimer(
            _session_key(group_id, member_id), timeout_ms, lambda _: self._expired(group_id, member_id)
        )

    def _expired(self, group_id: str, member_id: str) -> CoordinatorResult[None]:
        group = self._context.groups.get(group_id)
        member = group.members.get(member_id) if isinstance(group, ShareGroup) else None
        if member is None:
            return CoordinatorResult(None)
        assert isinstance(group, ShareGroup)
        log.info("group %s: member %s was not heard of for the time of its session", group_id, member_id)
        # Its timer is not cancelled: if this cannot be written, it rings again.
        return CoordinatorResult(None, self._remove(group, member))

    # ---- questions --------------------------------------------------------------------------------------

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
            self._session(group.group_id, member_id, self._groups.settings[group.group_id].session_timeout_ms)
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


def starts_unknown(topics: Mapping[Uuid, ShareTopic]) -> dict[Uuid, dict[int, int]]:
    """Where to start is for the partition's leader to find, by the group's configuration."""
    return {topic_id: dict.fromkeys(sorted(topic.partitions), -1) for topic_id, topic in topics.items()}


def _session_key(group_id: str, member_id: str) -> tuple[str, str, str]:
    return "share session", group_id, member_id


def _updated_member(
    member: ShareGroupMember, caller: Caller, request: ShareGroupHeartbeatRequest
) -> ShareGroupMember:
    """The member with what the request says of it; what it leaves out stays."""
    names = request.subscribed_topic_names
    return replace(
        member,
        client_id=caller.client_id,
        client_host=caller.client_host,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        subscribed_topic_names=member.subscribed_topic_names if names is None else frozenset(names),
    )


def _assignment(assigned: Assignment) -> ShareGroupHeartbeatResponseAssignment:
    return ShareGroupHeartbeatResponseAssignment(
        topic_partitions=[
            ShareGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in assigned.items()
        ]
    )
