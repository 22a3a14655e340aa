"""Kafka's GroupMetadataManager, as far as consumer groups go (APIs 68 and 69, KIP-848).

ConsumerGroupHeartbeat: a member joins, stays, changes what it subscribes to, or leaves; it learns what it shall have.
Three things happen, each only if it is due: what the member says of itself is noted, and the group's epoch grows if
that changes the subscription; a new target assignment is made for a new epoch; the member takes a step towards its
part of it. Nearly every heartbeat is of a stable member and needs none of them: it only moves the member's session.

Members go by their own request, by an administrator's, or because they were not heard of. A static member may leave
for a while: it keeps its partitions until it is back under another member id, or its session is over. When the last
member of the new protocol goes and only classic ones are left, the group becomes a classic group (migration.py, where
the requests of a consumer group's classic members are decided too).

What the decisions share is in groups.py: finding members, epochs, target assignments, steps.

Owner: a GroupCoordinatorShard.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple

from ottla.coordinator.group.assignors.api import Assignment
from ottla.coordinator.group.classic.manager import ClassicGroupManager
from ottla.coordinator.group.consumer import records
from ottla.coordinator.group.consumer.assignment import LargeAssignments, owned_of, reset_epochs
from ottla.coordinator.group.consumer.group import ConsumerGroup, describe
from ottla.coordinator.group.consumer.groups import ConsumerGroups, ConsumerReplay, Owned, RegexChange
from ottla.coordinator.group.consumer.member import NOTHING, ConsumerGroupMember, EpochAssignment, MemberState
from ottla.coordinator.group.consumer.migration import ClassicMembers, Conversions
from ottla.coordinator.group.context import Caller, DecisionBuilder, GroupContext, Replay
from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.modern.group import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    changed,
    fenced,
)
from ottla.coordinator.group.modern.groups import Wait
from ottla.coordinator.group.modern.heartbeat import (
    NOT_GIVEN,
    forget_changed,
    require,
    require_possible_epoch,
    require_text,
)
from ottla.coordinator.shard import CoordinatorResult, Effect, StartTimer
from ottla.metadata.delta import Delta
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import uuid_to_str
from ottla.model.pending import Pending
from ottla.wire.messages.groups.classic import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from ottla.wire.messages.groups.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
    DescribedGroup,
)
from ottla.wire.messages.groups.consumer import Member as DescribedMember

Reply = ConsumerGroupHeartbeatResponse | Pending[ConsumerGroupHeartbeatResponse]

# Since this version members make their ids themselves (KIP-1082).
MEMBER_ID_REQUIRED_VERSION: Final = 1
# Groups whose timers are started, after a load, before the loop goes on to something else.
ARMED_AT_ONCE: Final = 50


class _Step(NamedTuple):
    """What of a request matters when its member takes its step."""

    assigned_before: EpochAssignment
    owned: Owned | None
    subscription_changed: bool
    # Is the assignment in the answer even if it has not changed?
    send_assignment: bool


class ConsumerGroupManager:
    """The consumer groups of a shard."""

    def __init__(self, context: GroupContext, classic: ClassicGroupManager) -> None:
        self._context = context
        self._groups = ConsumerGroups(context, self._member_expired)
        self._settings = self._groups.settings
        self._timers = self._groups.timers
        self._large = LargeAssignments(context)
        self._conversions = Conversions(self._groups, classic)
        self._classic_members = ClassicMembers(self._groups, self._conversions, self._large)
        self._replay = ConsumerReplay(context)
        classic.consumer_groups = self

    # ---- heartbeats -------------------------------------------------------------------------------------

    def heartbeat(
        self, caller: Caller, request: ConsumerGroupHeartbeatRequest, now_ms: int
    ) -> CoordinatorResult[ConsumerGroupHeartbeatResponse]:
        """A member joins, stays or leaves."""
        self._large.mark_stale(request.group_id, request.member_id)
        unchanged = self._unchanged(caller, request, now_ms)
        if unchanged is not None:
            group_id = request.group_id
            timeout_ms = self._settings[group_id].session_timeout_ms
            session = self._timers.session(group_id, unchanged.member_id, timeout_ms)
            return CoordinatorResult(self._response(group_id, unchanged, None), (), (session,))
        decision = DecisionBuilder(now_ms)
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return decision.result(self._leave(decision, request))
        return decision.result(self._regular(decision, caller, request))

    def _unchanged(
        self, caller: Caller, request: ConsumerGroupHeartbeatRequest, now_ms: int
    ) -> ConsumerGroupMember | None:
        """The member, if there is nothing to be done but to hear that it is alive: nearly every heartbeat."""
        group = self._context.groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup) or request.member_epoch <= JOIN_EPOCH:
            return None
        member = group.members.get(request.member_id)
        if member is None or _has_changes(member, caller, request):
            return None
        target_epoch = group.target_epoch.epoch
        due = group.epoch > target_epoch or len(group.subscribed_regexes) or group.must_refresh(now_ms)
        return None if due or not member.is_reconciled_to(target_epoch) else member

    def _regular(
        self, decision: DecisionBuilder, caller: Caller, request: ConsumerGroupHeartbeatRequest
    ) -> Reply:
        groups = self._groups
        group = self._group(decision, request)
        groups.require_room(group, request.member_id, request.instance_id)
        owned = _owned(request)
        member = self._member(decision, group, request, owned)
        updated = _updated_member(member, caller, request)
        names_changed = groups.note_member(decision, group, member, updated)
        regex = groups.regexes.update(decision, group, member, updated, caller)
        bump = names_changed or regex is RegexChange.UPDATED_AND_RESOLVED
        epoch = group.epoch
        if bump or group.must_refresh(decision.now_ms):
            epoch = groups.refresh(decision, group, member, updated, bump)
        self._start_session(decision, group.group_id, updated.member_id)
        send_assignment = request.member_epoch == JOIN_EPOCH or _is_full(request)
        step = _Step(member.assigned, owned, names_changed or regex is not RegexChange.NONE, send_assignment)
        return self._assign(decision, group, member, updated, epoch, step)

    def _assign(
        self,
        decision: DecisionBuilder,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        epoch: int,
        step: "_Step",
    ) -> Reply:
        """A new target assignment if one is due, then the member's step."""
        groups = self._groups
        if groups.may_assign(group, epoch, decision.now_ms) and not self._large.is_running(group.group_id):
            plan = groups.plan(group, epoch, member, updated)
            if not self._large.is_for(plan):
                mine = groups.assign(decision, group, plan)
                return self._answer(decision, group, updated, (epoch, mine), step)
            else:
                return self._large.begin(
                    decision, group.group_id, plan,
                    lambda decision, group, member, target: self._answer(decision, group, member, target, step),
                )  # fmt: skip
        last = group.target_of(updated.member_id, updated.instance_id)
        return self._answer(decision, group, updated, (group.target_epoch.epoch, last), step)

    def _answer(
        self,
        decision: DecisionBuilder,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        target: tuple[int, Assignment],
        step: "_Step",
    ) -> ConsumerGroupHeartbeatResponse:
        after = self._groups.reconcile(
            decision, group, member, target, step.owned, subscription_changed=step.subscription_changed
        )
        send_assignment = step.send_assignment or step.assigned_before != after.assigned
        return self._response(group.group_id, after, _assignment(after.assigned) if send_assignment else None)

    def _response(
        self,
        group_id: str,
        member: ConsumerGroupMember,
        assignment: ConsumerGroupHeartbeatResponseAssignment | None,
    ) -> ConsumerGroupHeartbeatResponse:
        return ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=self._settings[group_id].heartbeat_interval_ms,
            assignment=assignment,
        )

    def _start_session(self, decision: DecisionBuilder, group_id: str, member_id: str) -> None:
        timeout_ms = self._settings[group_id].session_timeout_ms
        decision.effects.append(self._timers.session(group_id, member_id, timeout_ms))

    # ---- who it is ------------------------------------------------------------------------------------------

    def _group(self, decision: DecisionBuilder, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroup:
        if request.member_epoch == JOIN_EPOCH:
            return self._conversions.group_to_join(decision, request.group_id)
        return self._groups.consumer_group(request.group_id)

    def _member(
        self,
        decision: DecisionBuilder,
        group: ConsumerGroup,
        request: ConsumerGroupHeartbeatRequest,
        owned: Owned | None,
    ) -> ConsumerGroupMember:
        """The member as it is, or a new one."""
        joins = request.member_epoch == JOIN_EPOCH
        member_id = request.member_id or uuid_to_str(self._context.new_uuid())
        if request.instance_id is None:
            member = group.members.get(member_id)
            if member is None:
                return ConsumerGroupMember(member_id) if joins else group.member(member_id)
        elif joins:
            return self._groups.static_newcomer(
                decision, group, member_id, request.instance_id, classic=False
            )
        else:
            member = self._groups.known_instance(group, member_id, request.instance_id)
        _require_epoch(member, request.member_epoch, owned)
        return member

    # ---- members that go --------------------------------------------------------------------------------

    def _leave(
        self, decision: DecisionBuilder, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse:
        """A member's own request."""
        group = self._groups.consumer_group(request.group_id)
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = self._groups.known_instance(group, request.member_id, request.instance_id)
            if request.member_epoch == STATIC_LEAVE_EPOCH:
                return self._leave_temporarily(decision, group, member)
        self._fence(decision, group, [member])
        return ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch, heartbeat_interval_ms=0
        )

    def _leave_temporarily(
        self, decision: DecisionBuilder, group: ConsumerGroup, member: ConsumerGroupMember
    ) -> ConsumerGroupHeartbeatResponse:
        left = replace(
            member,
            member_epoch=STATIC_LEAVE_EPOCH,
            pending_revocation=NOTHING,
            assigned=reset_epochs(member.assigned),
        )
        decision.records.append(records.current_assignment(group.group_id, left))
        return ConsumerGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=STATIC_LEAVE_EPOCH, heartbeat_interval_ms=0
        )

    def _fence(
        self, decision: DecisionBuilder, group: ConsumerGroup, leaving: list[ConsumerGroupMember]
    ) -> None:
        """Remove members: the others share what they had."""
        if not leaving:
            return
        if self._conversions.may_downgrade(group, leaving):
            self._conversions.downgrade(decision, group, leaving)
            return
        for member in leaving:
            decision.records.extend(records.removed_member(group.group_id, member.member_id))
        unused = self._groups.regexes.remove_unused(decision, group, leaving)
        counts = group.subscriptions_without(leaving, unused)
        metadata_hash = self._groups.hashes.group_hash(counts, self._context.image)
        decision.records.append(records.group_epoch(group.group_id, group.epoch + 1, metadata_hash))
        session_timeout_ms = self._settings[group.group_id].session_timeout_ms
        for member in leaving:
            self._timers.cancel_all(decision, group.group_id, member.member_id, session_timeout_ms)

    def _member_expired(
        self, group: ConsumerGroup, member: ConsumerGroupMember, now_ms: int
    ) -> CoordinatorResult[None]:
        """One of the member's timers went off."""
        decision = DecisionBuilder(now_ms)
        self._fence(decision, group, [member])
        return decision.result(None)

    # ---- members of the classic protocol ----------------------------------------------------------------

    def classic_join(
        self, group_id: str, caller: Caller, request: JoinGroupRequest, now_ms: int
    ) -> CoordinatorResult[JoinGroupResponse]:
        decision = DecisionBuilder(now_ms)
        group = self._groups.consumer_group(group_id)
        return decision.result(self._classic_members.join(decision, group, caller, request))

    def classic_sync(
        self, caller: Caller, request: SyncGroupRequest, now_ms: int
    ) -> CoordinatorResult[SyncGroupResponse]:
        decision = DecisionBuilder(now_ms)
        group = self._groups.consumer_group(request.group_id)
        return decision.result(self._classic_members.sync(decision, group, request))

    def classic_heartbeat(
        self, caller: Caller, request: HeartbeatRequest, now_ms: int
    ) -> CoordinatorResult[HeartbeatResponse]:
        decision = DecisionBuilder(now_ms)
        group = self._groups.consumer_group(request.group_id)
        return decision.result(self._classic_members.heartbeat(decision, group, request))

    def classic_leave(
        self, caller: Caller, request: LeaveGroupRequest, now_ms: int
    ) -> CoordinatorResult[LeaveGroupResponse]:
        """LeaveGroup: of classic members, and of any member by an administrator."""
        decision = DecisionBuilder(now_ms)
        group = self._groups.consumer_group(request.group_id)
        leaving: dict[str, ConsumerGroupMember] = {}
        answers: list[MemberResponse] = []
        for identity in request.members:
            code = ErrorCode.NONE
            try:
                member = self._identified(group, identity)
                leaving[member.member_id] = member
            except KafkaError as error:
                code = error.code
            answers.append(
                MemberResponse(
                    member_id=identity.member_id,
                    group_instance_id=identity.group_instance_id,
                    error_code=int(code),
                )
            )
        self._fence(decision, group, list(leaving.values()))
        return decision.result(LeaveGroupResponse(members=answers))

    def _identified(self, group: ConsumerGroup, identity: MemberIdentity) -> ConsumerGroupMember:
        if identity.group_instance_id is None:
            return group.member(identity.member_id)
        # An administrator knows the instance only.
        return self._groups.known_instance(group, identity.member_id or None, identity.group_instance_id)

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
        return self._arm(iter(groups), now_ms)

    def _arm(self, loaded: Iterator[ConsumerGroup], now_ms: int) -> list[Effect]:
        """Every member has a whole session to be heard of, from now on: start the timers, in slices."""
        decision = DecisionBuilder(now_ms)
        some = list(islice(loaded, ARMED_AT_ONCE))
        for group in some:
            timeout_ms = self._settings[group.group_id].session_timeout_ms
            for member in group.members.values():
                self._timers.start(decision, Wait.SESSION, group.group_id, member.member_id, timeout_ms)
                if member.state is MemberState.UNREVOKED_PARTITIONS:
                    self._timers.start_rebalance(decision, group.group_id, member)
        if len(some) == ARMED_AT_ONCE:
            rest = StartTimer(
                "consumer-loaded", 0, lambda now_ms: CoordinatorResult(None, (), self._arm(loaded, now_ms))
            )
            decision.effects.append(rest)
        return decision.effects

    def on_image(self, delta: Delta, now_ms: int) -> list[Effect]:
        """Groups look at their topics again with the next heartbeat."""
        if delta.created_topics:
            self._groups.regexes.topics_created(delta.after.offset)
        names = forget_changed(delta, self._settings, self._groups.hashes)
        for group_id in self._replay.groups_subscribed_to(names):
            group = self._context.groups.get(group_id)
            if isinstance(group, ConsumerGroup):
                group.refresh_now()
        return []

    def on_unloaded(self, error: KafkaError) -> None:
        self._large.unloaded(error)
        self._groups.regexes.unloaded()


def _has_changes(member: ConsumerGroupMember, caller: Caller, request: ConsumerGroupHeartbeatRequest) -> bool:
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


def _updated_member(
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


def validate(request: ConsumerGroupHeartbeatRequest, version: int, assignors: Mapping[str, Any]) -> None:
    """INVALID_REQUEST or UNSUPPORTED_ASSIGNOR for what no state of the group could make right."""
    epoch = request.member_epoch
    if epoch > 0 and _only_identifies(request):
        return  # nearly every heartbeat
    must_have_id = version >= MEMBER_ID_REQUIRED_VERSION or epoch > 0 or epoch == LEAVE_EPOCH
    if must_have_id:
        require_text(request.member_id, "MemberId")
    require_text(request.group_id, "GroupId")
    require_text(request.instance_id, "InstanceId")
    require_text(request.rack_id, "RackId")
    if epoch == JOIN_EPOCH:
        _validate_join(request)
    require_possible_epoch(epoch, request.instance_id)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        known = ", ".join(assignors)
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"There is no assignor {request.server_assignor}; there are {known}.",
        )


def _only_identifies(request: ConsumerGroupHeartbeatRequest) -> bool:
    return (
        request.instance_id is None
        and request.rack_id is None
        and request.server_assignor is None
        and bool(request.member_id.strip() and request.group_id.strip())
    )


def _validate_join(request: ConsumerGroupHeartbeatRequest) -> None:
    require(request.rebalance_timeout_ms != NOT_GIVEN, "A member that joins says its RebalanceTimeoutMs.")
    nothing = request.topic_partitions is not None and not request.topic_partitions
    require(nothing, "A member that joins has no partitions and says so.")
    subscribes = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    require(subscribes, "A member that joins says SubscribedTopicNames or SubscribedTopicRegex.")
