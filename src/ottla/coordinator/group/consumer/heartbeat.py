"""ConsumerGroupHeartbeat: a member joins, stays, changes its mind or leaves; it learns what it shall have (KIP-848).

Three things happen, each only if it is due: what the member says of itself is noted, and the group's epoch grows if
that changes the subscription; a new target assignment is made for a new epoch; the member takes a step towards its
part of it.

Owner: the ConsumerManager of a shard.
"""

from typing import Any, NamedTuple, Protocol

from ottla.coordinator.group.assignors.api import Assignment
from ottla.coordinator.group.classic.join import Caller
from ottla.coordinator.group.consumer.core import ConsumerGroups, Owned
from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.consumer.large import LargeAssignments
from ottla.coordinator.group.consumer.leave import Leaves
from ottla.coordinator.group.consumer.member import ConsumerGroupMember, EpochAssignment
from ottla.coordinator.group.consumer.reconcile import owned_of
from ottla.coordinator.group.consumer.regexes import RegexChange
from ottla.coordinator.group.modern_member import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH, changed, fenced
from ottla.coordinator.group.modern_turn import Turn
from ottla.coordinator.group.modern_validation import NOT_GIVEN
from ottla.coordinator.result import Result
from ottla.model.ids import uuid_to_str
from ottla.model.pending import Pending
from ottla.wire.messages.consumer_group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)

Reply = ConsumerGroupHeartbeatResponse | Pending[ConsumerGroupHeartbeatResponse]


class Upgrades(Protocol):
    """What becomes of a classic group whose members begin to speak the new protocol."""

    def group_to_join(self, turn: Turn, group_id: str) -> ConsumerGroup:
        """The consumer group, made if need be in the place of a classic one; GROUP_ID_NOT_FOUND if it cannot."""
        ...


class Heartbeats:
    """See the module."""

    def __init__(
        self, groups: ConsumerGroups, leaves: Leaves, large: LargeAssignments, upgrades: Upgrades
    ) -> None:
        self._groups = groups
        self._leaves = leaves
        self._large = large
        self._upgrades = upgrades

    def heartbeat(
        self, caller: Caller, request: ConsumerGroupHeartbeatRequest, now_ms: int
    ) -> Result[ConsumerGroupHeartbeatResponse]:
        """Decide on a heartbeat of any kind."""
        self._large.heard_of(request.group_id, request.member_id)
        unchanged = self._unchanged(caller, request, now_ms)
        if unchanged is not None:
            group_id = request.group_id
            session = self._groups.timers.session(
                group_id, unchanged.member_id, self._groups.settings[group_id].session_timeout_ms
            )
            return Result(self._response(group_id, unchanged, None), (), (session,))
        turn = Turn(now_ms)
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return turn.result(self._leaves.leave(turn, request))
        return turn.result(self._regular(turn, caller, request))

    def _unchanged(
        self, caller: Caller, request: ConsumerGroupHeartbeatRequest, now_ms: int
    ) -> ConsumerGroupMember | None:
        """The member, if there is nothing to be done but to hear that it is alive: nearly every heartbeat."""
        group = self._groups.context.groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup) or request.member_epoch <= JOIN_EPOCH:
            return None
        member = group.members.get(request.member_id)
        if member is None or _says_something(member, caller, request):
            return None
        target_epoch = group.target_epoch.epoch
        due = group.epoch > target_epoch or len(group.subscribed_regexes) or group.must_refresh(now_ms)
        return None if due or not member.is_reconciled_to(target_epoch) else member

    def _regular(self, turn: Turn, caller: Caller, request: ConsumerGroupHeartbeatRequest) -> Reply:
        groups = self._groups
        group = self._group(turn, request)
        groups.require_room(group, request.member_id, request.instance_id)
        owned = _owned(request)
        member = self._member(turn, group, request, owned)
        updated = _said(member, caller, request)
        names_changed = groups.note_member(turn, group, member, updated)
        regex = groups.regexes.update(turn, group, member, updated)
        bump = names_changed or regex is RegexChange.UPDATED_AND_RESOLVED
        epoch = group.epoch
        if bump or group.must_refresh(turn.now_ms):
            epoch = groups.refresh(turn, group, member, updated, bump)
        self._start_session(turn, group.group_id, updated.member_id)
        tell = request.member_epoch == JOIN_EPOCH or _is_full(request)
        step = _Step(member.assigned, owned, names_changed or regex is not RegexChange.NONE, tell)
        return self._assign(turn, group, member, updated, epoch, step)

    def _assign(
        self,
        turn: Turn,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        epoch: int,
        step: "_Step",
    ) -> Reply:
        """A new target assignment if one is due, then the member's step."""
        groups = self._groups
        if groups.may_assign(group, epoch, turn.now_ms) and not self._large.is_running(group.group_id):
            plan = groups.plan(group, epoch, member, updated)
            if not self._large.is_for(plan):
                mine = groups.assign(turn, group, plan)
                return self._answer(turn, group, updated, (epoch, mine), step)
            else:
                return self._large.begin(
                    turn, group.group_id, plan,
                    lambda turn, group, member, target: self._answer(turn, group, member, target, step),
                )  # fmt: skip
        last = group.target_of(updated.member_id, updated.instance_id)
        return self._answer(turn, group, updated, (group.target_epoch.epoch, last), step)

    def _answer(
        self,
        turn: Turn,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        target: tuple[int, Assignment],
        step: "_Step",
    ) -> ConsumerGroupHeartbeatResponse:
        after = self._groups.reconcile(
            turn, group, member, target, step.owned, subscription_changed=step.subscription_changed
        )
        tell = step.tell or step.assigned_before != after.assigned
        return self._response(group.group_id, after, _assignment(after.assigned) if tell else None)

    def _response(
        self,
        group_id: str,
        member: ConsumerGroupMember,
        assignment: ConsumerGroupHeartbeatResponseAssignment | None,
    ) -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=self._groups.settings[group_id].heartbeat_interval_ms,
            assignment=assignment,
        )

    def _start_session(self, turn: Turn, group_id: str, member_id: str) -> None:
        timeout_ms = self._groups.settings[group_id].session_timeout_ms
        turn.effects.append(self._groups.timers.session(group_id, member_id, timeout_ms))

    # ---- who it is ------------------------------------------------------------------------------------------

    def _group(self, turn: Turn, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroup:
        if request.member_epoch == JOIN_EPOCH:
            return self._upgrades.group_to_join(turn, request.group_id)
        return self._groups.consumer_group(request.group_id)

    def _member(
        self, turn: Turn, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, owned: Owned | None
    ) -> ConsumerGroupMember:
        """The member as it is, or a new one."""
        joins = request.member_epoch == JOIN_EPOCH
        member_id = request.member_id or uuid_to_str(self._groups.context.new_uuid())
        if request.instance_id is None:
            member = group.members.get(member_id)
            if member is None:
                return ConsumerGroupMember(member_id) if joins else group.member(member_id)
        elif joins:
            return self._groups.static_newcomer(turn, group, member_id, request.instance_id, classic=False)
        else:
            member = self._groups.known_instance(group, member_id, request.instance_id)
        _require_epoch(member, request.member_epoch, owned)
        return member


class _Step(NamedTuple):
    """What of a request matters when its member takes its step."""

    assigned_before: EpochAssignment
    owned: Owned | None
    subscription_changed: bool
    # Does the member learn its assignment even if that has not changed?
    tell: bool


def _says_something(
    member: ConsumerGroupMember, caller: Caller, request: ConsumerGroupHeartbeatRequest
) -> bool:
    """Does the request say anything that the group does not know?"""
    return (
        request.member_epoch != member.member_epoch
        or request.instance_id != member.instance_id
        or request.topic_partitions is not None
        or request.subscribed_topic_names is not None
        or request.subscribed_topic_regex is not None
        or request.rebalance_timeout_ms != NOT_GIVEN
        or request.server_assignor is not None
        or request.rack_id is not None
        or member.client_id != caller.client_id
        or member.client_host != caller.client_host
        or member.classic is not None
    )


def _require_epoch(member: ConsumerGroupMember, epoch: int, owned: Owned | None) -> None:
    """The member's own epoch, or the one before if it may not have heard of the new one."""
    if epoch in (JOIN_EPOCH, member.member_epoch):
        return
    if epoch == member.previous_member_epoch < member.member_epoch and _is_subset(owned, member.assigned):
        return
    raise fenced(member.member_epoch, epoch)


def _is_subset(owned: Owned | None, assigned: EpochAssignment) -> bool:
    if owned is None:
        return False
    return all(t in assigned and partitions <= assigned[t].keys() for t, partitions in owned.items())


def _owned(request: ConsumerGroupHeartbeatRequest) -> Owned | None:
    listed = request.topic_partitions
    return owned_of(None if listed is None else ((topic.topic_id, topic.partitions) for topic in listed))


def _said(
    member: ConsumerGroupMember, caller: Caller, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupMember:
    """The member with what the request says of it; what it leaves out stays."""
    fields: dict[str, Any] = {
        "client_id": caller.client_id,
        "client_host": caller.client_host,
        "classic": None,
    }
    if request.instance_id is not None:
        fields["instance_id"] = request.instance_id
    if request.rack_id is not None:
        fields["rack_id"] = request.rack_id
    if request.rebalance_timeout_ms != NOT_GIVEN:
        fields["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.server_assignor is not None:
        fields["server_assignor"] = request.server_assignor
    if request.subscribed_topic_names is not None:
        fields["subscribed_topic_names"] = frozenset(request.subscribed_topic_names)
    if request.subscribed_topic_regex is not None:
        fields["subscribed_topic_regex"] = request.subscribed_topic_regex
    return changed(member, **fields)


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Does the request say everything? Clients say it again when they are not sure what was heard."""
    subscribes = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.rebalance_timeout_ms != NOT_GIVEN and subscribes and request.topic_partitions is not None


def _assignment(assigned: EpochAssignment) -> ConsumerGroupHeartbeatResponseAssignment:
    return ConsumerGroupHeartbeatResponseAssignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in assigned.items()
        ]
    )
