"""Kafka's GroupMetadataManager, as far as classic groups go: join, sync, heartbeat, leave, describe (APIs 11 to 15).

Members leave one or several at once, themselves or by an administrator who names their instances.

The members of a consumer group may speak the classic protocol too (KIP-848): what they send is passed on to the
consumer groups' manager.

Owner: a GroupCoordinatorShard.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Protocol

from ottla.coordinator.group.classic.group import (
    COMPLETING_REBALANCE,
    CONSUMER_PROTOCOL_TYPE,
    DEAD,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    Member,
    describe,
    group_record,
    new_group_record,
    restore,
)
from ottla.coordinator.group.classic.join import Joins, Syncs
from ottla.coordinator.group.classic.rebalance import (
    Rebalances,
    answer_join,
    answer_sync,
    join_error,
    sync_error,
)
from ottla.coordinator.group.context import Caller, DecisionBuilder, GroupContext, Replay
from ottla.coordinator.group.group import Group, GroupType
from ottla.coordinator.shard import CoordinatorRecord, CoordinatorResult, Effect, StartTimer
from ottla.metadata.delta import Delta
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.groups.classic import (
    DescribedGroup,
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
from ottla.wire.messages.logs.offsets import GroupMetadataKey, GroupMetadataValue

# Groups whose timers are started before the loop goes on to something else.
ARMED_AT_ONCE: Final = 100

_ALIVE: Final = HeartbeatResponse()
_REBALANCING: Final = HeartbeatResponse(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS))


class ClassicMembers(Protocol):
    """What members of consumer groups send that speak the classic protocol."""

    def classic_join(
        self, group_id: str, caller: Caller, request: JoinGroupRequest, now_ms: int
    ) -> CoordinatorResult[JoinGroupResponse]: ...

    def classic_sync(
        self, caller: Caller, request: SyncGroupRequest, now_ms: int
    ) -> CoordinatorResult[SyncGroupResponse]: ...

    def classic_heartbeat(
        self, caller: Caller, request: HeartbeatRequest, now_ms: int
    ) -> CoordinatorResult[HeartbeatResponse]: ...

    def classic_leave(
        self, caller: Caller, request: LeaveGroupRequest, now_ms: int
    ) -> CoordinatorResult[LeaveGroupResponse]: ...


class ClassicGroupManager:
    """The classic groups of a shard."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._rebalances = Rebalances(context)
        self._joins = Joins(context, self._rebalances)
        self._syncs = Syncs(self._rebalances)
        # A group that has been decided on, and the record whose replay puts it among the others.
        self._created: tuple[GroupMetadataValue, ClassicGroup] | None = None
        self.consumer_groups: ClassicMembers | None = None

    def protocol_bytes(self) -> int:
        """What the members of all groups have said of themselves."""
        groups = self._context.groups.values()
        return sum(group.protocol_bytes for group in groups if isinstance(group, ClassicGroup))

    # ---- decisions ----------------------------------------------------------------------------------------

    def join(
        self, caller: Caller, request: JoinGroupRequest, now_ms: int
    ) -> CoordinatorResult[JoinGroupResponse]:
        """A member comes, or comes again; it is answered when the others have."""
        present = self._context.groups.get(request.group_id)
        if present is None or (_is_convertible(present) and not isinstance(present, ClassicGroup)):
            return self._join_new_group(caller, request, present, now_ms)
        if isinstance(present, ClassicGroup):
            decision = DecisionBuilder(now_ms)
            return decision.result(self._joins.join(decision, present, caller, request))
        if present.type is GroupType.CONSUMER and self.consumer_groups is not None:
            return self.consumer_groups.classic_join(request.group_id, caller, request, now_ms)
        return CoordinatorResult(join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ""))

    def _join_new_group(
        self, caller: Caller, request: JoinGroupRequest, present: Group | None, now_ms: int
    ) -> CoordinatorResult[JoinGroupResponse]:
        """A group begins with its first member, in the place of an empty one of another kind."""
        if request.member_id:
            return CoordinatorResult(join_error(ErrorCode.UNKNOWN_MEMBER_ID, request.member_id))
        group = ClassicGroup(self._context.timeline, request.group_id, now_ms)
        decision = DecisionBuilder(now_ms)
        reply = self._joins.join(decision, group, caller, request)
        if present is not None:
            decision.records.extend(present.tombstones())
        decision.records.append(self._note_created(group, new_group_record(group)))
        return decision.result(reply)

    def _note_created(self, group: ClassicGroup, record: CoordinatorRecord) -> CoordinatorRecord:
        """The record, whose replay takes this very group instead of restoring one."""
        assert record.value is not None
        self._created = (record.value, group)
        return record

    def sync(
        self, caller: Caller, request: SyncGroupRequest, now_ms: int
    ) -> CoordinatorResult[SyncGroupResponse]:
        """A member wants its assignment; the leader brings everybody's."""
        group = self._context.groups.get(request.group_id)
        if group is None or group.is_empty():
            return CoordinatorResult(sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
        if isinstance(group, ClassicGroup):
            decision = DecisionBuilder(now_ms)
            return decision.result(self._syncs.sync(decision, group, request))
        if group.type is GroupType.CONSUMER and self.consumer_groups is not None:
            return self.consumer_groups.classic_sync(caller, request, now_ms)
        return CoordinatorResult(sync_error(ErrorCode.UNKNOWN_MEMBER_ID))

    def renew_session(self, request: HeartbeatRequest, now_ms: int) -> HeartbeatResponse | None:
        """The short way of a heartbeat that moves nothing but a deadline; None if there is more to decide.

        The answer depends on nothing that is written, so it need not wait for a commit.
        """
        group = self._context.groups.get(request.group_id)
        if not isinstance(group, ClassicGroup) or request.group_instance_id is not None:
            return None
        member = group.members.get(request.member_id)
        if member is None or request.generation_id != group.generation_id:
            return None
        deadline_ms = now_ms + member.session_timeout_ms
        if deadline_ms < group.expiry_due_ms:
            return None
        member.deadline_ms = deadline_ms
        return _REBALANCING if group.state is PREPARING_REBALANCE else _ALIVE

    def heartbeat(
        self, caller: Caller, request: HeartbeatRequest, now_ms: int
    ) -> CoordinatorResult[HeartbeatResponse]:
        """A member is alive; it learns whether it has to join again."""
        group = self._context.groups.get(request.group_id)
        if isinstance(group, ClassicGroup):
            member = _current(group, request)
            response = _REBALANCING if group.state is PREPARING_REBALANCE else _ALIVE
            return CoordinatorResult(response, (), self._renew_session(group, member, now_ms))
        if group is not None and group.type is GroupType.CONSUMER and self.consumer_groups is not None:
            return self.consumer_groups.classic_heartbeat(caller, request, now_ms)
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Group {request.group_id} not found.")

    def _renew_session(self, group: ClassicGroup, member: Member, now_ms: int) -> Sequence[Effect]:
        deadline_ms = now_ms + member.session_timeout_ms
        member.deadline_ms = deadline_ms
        if deadline_ms >= group.expiry_due_ms:
            return ()
        decision = DecisionBuilder(now_ms)
        self._rebalances.watch(decision, group, deadline_ms)
        return decision.effects

    def leave(
        self, caller: Caller, request: LeaveGroupRequest, now_ms: int
    ) -> CoordinatorResult[LeaveGroupResponse]:
        """Members go."""
        group = self._context.groups.get(request.group_id)
        if isinstance(group, ClassicGroup):
            decision = DecisionBuilder(now_ms)
            return decision.result(self._leave(decision, group, request.members))
        if group is not None and group.type is GroupType.CONSUMER and self.consumer_groups is not None:
            return self.consumer_groups.classic_leave(caller, request, now_ms)
        unknown = [_left(member, ErrorCode.UNKNOWN_MEMBER_ID) for member in request.members]
        return CoordinatorResult(LeaveGroupResponse(members=unknown))

    def _leave(
        self, decision: DecisionBuilder, group: ClassicGroup, members: list[MemberIdentity]
    ) -> LeaveGroupResponse:
        """Let them go, each if it can; the others rebalance."""
        outcomes = [self._leave_one(decision, group, member) for member in members]
        if any(outcome.error_code == ErrorCode.NONE for outcome in outcomes):
            if group.state in (STABLE, COMPLETING_REBALANCE):
                self._rebalances.prepare_or_complete(decision, group, "members have left")
            elif group.state is PREPARING_REBALANCE:
                self._rebalances.maybe_complete_join(decision, group)
        return LeaveGroupResponse(members=outcomes)

    def _leave_one(
        self, decision: DecisionBuilder, group: ClassicGroup, leaving: MemberIdentity
    ) -> MemberResponse:
        try:
            self._remove(decision, group, leaving)
        except KafkaError as error:
            return _left(leaving, error.code)
        return _left(leaving)

    def _remove(self, decision: DecisionBuilder, group: ClassicGroup, leaving: MemberIdentity) -> None:
        if leaving.member_id in group.pending_join:
            group.remove(leaving.member_id)
            return
        member_id = leaving.member_id or _named(group, leaving.group_instance_id)
        group.validate_member(member_id, leaving.group_instance_id)
        self._rebalances.remove_member(decision, group, group.members[member_id])

    # ---- questions ----------------------------------------------------------------------------------------

    def describe(self, group_id: str, version: int) -> DescribedGroup:
        return describe(group_id, self._context.groups.committed(group_id), version)

    # ---- for the offsets and the other kinds of groups ----------------------------------------------------

    def new_simple(self, group_id: str) -> ClassicGroup:
        """An empty group without a protocol type; the caller puts it among the groups."""
        return ClassicGroup(self._context.timeline, group_id)

    def keep_alive(self, group: Group, member_id: str, now_ms: int) -> Sequence[Effect]:
        """A member has committed: that counts as a heartbeat in a group that is stable or rebalances."""
        if not isinstance(group, ClassicGroup):
            return ()
        member = group.members.get(member_id)
        if member is not None:
            # Never earlier than it was: no timer rests on a decision that may fail with its records.
            member.deadline_ms = max(member.deadline_ms, now_ms + member.session_timeout_ms)
        return ()

    def new_from_members(
        self, group_id: str, generation_id: int, members: Iterable[Member], now_ms: int
    ) -> ClassicGroup:
        """A stable group of consumers, as it is when a consumer group is downgraded; not among the groups yet."""
        group = ClassicGroup(self._context.timeline, group_id, now_ms)
        group.state = STABLE
        group.generation_id = generation_id
        group.protocol_type_or_none = CONSUMER_PROTOCOL_TYPE
        for member in members:
            group.add(member)
        group.protocol_name = group.choose_protocol()
        group.note_subscriptions()
        return group

    def install(
        self, group: ClassicGroup, now_ms: int, rebalance: str | None = None
    ) -> tuple[list[CoordinatorRecord], list[Effect]]:
        """What makes such a group, with the assignments that its members have, one of these; it may rebalance."""
        decision = DecisionBuilder(now_ms)
        assignments = {member.member_id: member.assignment for member in group.members.values()}
        decision.records.append(self._note_created(group, group_record(group, assignments)))
        for member in group.members.values():
            self._rebalances.expect(decision, group, member, member.session_timeout_ms)
        if rebalance is not None:
            self._rebalances.prepare(decision, group, rebalance)
        return decision.records, decision.effects

    def release_for_upgrade(self, group: ClassicGroup, now_ms: int) -> list[Effect]:
        """A group is upgraded to a consumer group: who waits joins again, and is taken in there."""
        decision = DecisionBuilder(now_ms)
        for member in group.members.values():
            answer_join(
                decision, group, member, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
            )
            answer_sync(decision, member, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
        return decision.effects

    # ---- replay and life ----------------------------------------------------------------------------------

    def replays(self) -> Mapping[type[Any], Replay]:
        return {GroupMetadataKey: self._replay}

    def _replay(self, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        groups = self._context.groups
        group = groups.get(key.group)
        if value is None:
            if isinstance(group, ClassicGroup):
                groups.pop(key.group)
            return
        if not isinstance(group, ClassicGroup) or self._context.timeline.loading:
            group = self._created_or_restored(key.group, value)
            groups[key.group] = group
        group.stored.value = value

    def _created_or_restored(self, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        created, self._created = self._created, None
        if created is not None and created[0] is value:
            return created[1]
        group = ClassicGroup(self._context.timeline, group_id)
        restore(group, value)
        return group

    def on_loaded(self, now_ms: int) -> list[Effect]:
        """Every member has a whole session to be heard of, from now on."""
        groups = (group for group in list(self._context.groups.values()) if isinstance(group, ClassicGroup))
        return self._arm(groups, now_ms)

    def _arm(self, groups: Iterator[ClassicGroup], now_ms: int) -> list[Effect]:
        """In slices: there may be many."""
        decision = DecisionBuilder(now_ms)
        most: int = self._context.config()["group.max.size"]
        some = list(islice(groups, ARMED_AT_ONCE))
        for group in some:
            for member in group.members.values():
                self._rebalances.expect(decision, group, member, member.session_timeout_ms)
            if len(group.members) > most:
                self._rebalances.prepare(decision, group, "it has more members than it may have by now")
        if len(some) == ARMED_AT_ONCE:
            decision.effects.append(
                StartTimer(
                    "classic-loaded", 0, lambda now_ms: CoordinatorResult(None, (), self._arm(groups, now_ms))
                )
            )
        return decision.effects

    def on_image(self, delta: Delta, now_ms: int) -> list[Effect]:
        return []

    def on_unloaded(self, error: KafkaError) -> None:
        """Who waits has to find the new coordinator."""
        for group in self._context.groups.values():
            if isinstance(group, ClassicGroup):
                group.become(DEAD, group.state_timestamp_ms or 0)
                for member in group.members.values():
                    _answer_parked(member, error.code)


def _named(group: ClassicGroup, instance_id: str | None) -> str:
    """Who is this instance? Its administrator does not know the member's id."""
    member_id = None if instance_id is None else group.static_members.get(instance_id)
    if member_id is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"nobody is instance {instance_id}")
    return member_id


def _left(leaving: MemberIdentity, code: ErrorCode = ErrorCode.NONE) -> MemberResponse:
    return MemberResponse(
        member_id=leaving.member_id, group_instance_id=leaving.group_instance_id, error_code=int(code)
    )


def _is_convertible(group: Group) -> bool:
    """May an empty group of this kind become a classic one?"""
    return group.type in (GroupType.CONSUMER, GroupType.STREAMS) and group.is_empty()


def _current(group: ClassicGroup, request: HeartbeatRequest) -> Member:
    """The member, if it is in the current generation."""
    if request.group_instance_id is not None:
        group.validate_member(request.member_id, request.group_instance_id)
    member = group.members.get(request.member_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id} is no member of {group.group_id}")
    if request.generation_id != group.generation_id:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"generation {request.generation_id} is over")
    return member


def _answer_parked(member: Member, code: ErrorCode) -> None:
    join, member.awaiting_join = member.awaiting_join, None
    sync, member.awaiting_sync = member.awaiting_sync, None
    if join is not None and not join.done:
        join.resolve(join_error(code, member.member_id))
    if sync is not None and not sync.done:
        sync.resolve(sync_error(code))
