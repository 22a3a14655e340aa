"""JoinGroup and SyncGroup of classic groups (Kafka's GroupMetadataManager.classicGroupJoin and classicGroupSync).

JoinGroup: who may come in, under which id, and what that means for the group. A new dynamic member first gets an id
and comes again with it (KIP-394), so that a client that gave up waiting does not leave a member behind each time. A
static one (KIP-345) is known by its instance id: if it comes back without an id, it takes the place and the assignment
of the one before, which is fenced.

SyncGroup: the leader says who gets what, and everybody fetches its own part. An assignment counts when it is written.
Until then those who ask for theirs wait; if it cannot be written, or the group has begun to rebalance in between, they
get an error and join again.

Owner: the ClassicGroupManager of a shard.
"""

import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

from ottla.coordinator.group.classic.group import (
    COMPLETING_REBALANCE,
    EMPTY,
    NO_ASSIGNMENT,
    PREPARING_REBALANCE,
    STABLE,
    ClassicGroup,
    Member,
    Protocols,
    group_record,
    size_of,
)
from ottla.coordinator.group.classic.rebalance import (
    Rebalances,
    answer_join,
    answer_sync,
    join_error,
    joined,
    park,
    sync_error,
)
from ottla.coordinator.group.context import Caller, DecisionBuilder, GroupContext
from ottla.coordinator.shard import After, Effect
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.wire.messages.groups.classic import (
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

# While a new member's join is parked no heartbeat shows that its client is still there: this bounds it (KAFKA-7610).
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
# Ids that were given out to clients which have not come back yet, in one group.
MAX_PENDING_JOIN: Final = 100_000
# What the members of one group may say of themselves, all together: thirty times what its record in __consumer_offsets
# may have by default, so that a group beyond it could not be stored. Kafka's group.max.size counts heads only.
MAX_PROTOCOL_BYTES: Final = 32 * 1024 * 1024
FIRST_MEMBER_ID_REQUIRED_VERSION: Final = 4
FIRST_SKIP_ASSIGNMENT_VERSION: Final = 9

JoinReply = JoinGroupResponse | Pending[JoinGroupResponse]
SyncReply = SyncGroupResponse | Pending[SyncGroupResponse]


class Joining(NamedTuple):
    """A join on its way."""

    caller: Caller
    request: JoinGroupRequest
    protocols: Protocols

    @property
    def rebalance_timeout_ms(self) -> int:
        """The first version does not have one; there it is the session's."""
        request = self.request
        return request.rebalance_timeout_ms if self.caller.version else request.session_timeout_ms


class Joins:
    """JoinGroup."""

    def __init__(self, context: GroupContext, rebalances: Rebalances) -> None:
        self._context = context
        self._rebalances = rebalances

    def join(
        self, decision: DecisionBuilder, group: ClassicGroup, caller: Caller, request: JoinGroupRequest
    ) -> JoinReply:
        """Let a member in, or say why not."""
        joining = Joining(caller, request, tuple((p.name, p.metadata) for p in request.protocols))
        member_id = request.member_id
        if not self._has_room(group, member_id):
            group.remove(member_id)
            self._rebalances.maybe_complete_join(decision, group)
            return join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        if not _has_space(group, joining):
            return join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        if not group.supports(request.protocol_type, joining.protocols):
            return join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        if not member_id:
            return self._join_new(decision, group, joining)
        if member_id in group.pending_join:
            return self._join_pending(decision, group, joining)
        try:
            group.validate_member(member_id, request.group_instance_id)
        except KafkaError as error:
            return join_error(error.code, member_id)
        return self._join_again(decision, group, joining)

    def _has_room(self, group: ClassicGroup, member_id: str) -> bool:
        most: int = self._context.config()["group.max.size"]
        if group.state is EMPTY:
            return True
        if group.state is PREPARING_REBALANCE:
            # By those who have come again: if there are too many members, the last ones have to go.
            member = group.members.get(member_id)
            return group.awaiting_join_count < most or (
                member is not None and member.awaiting_join is not None
            )
        return member_id in group.members or len(group.members) < most

    # ---- new members --------------------------------------------------------------------------------------

    def _join_new(self, decision: DecisionBuilder, group: ClassicGroup, joining: Joining) -> JoinReply:
        instance_id = joining.request.group_instance_id
        if instance_id is not None:
            old_id = group.static_members.get(instance_id)
            new_id = self._new_member_id(instance_id)
            if old_id is not None:
                return self._replace(decision, group, joining, group.members[old_id], new_id)
            return self._add(decision, group, joining, new_id)
        new_id = self._new_member_id(joining.caller.client_id)
        if joining.caller.version < FIRST_MEMBER_ID_REQUIRED_VERSION:
            return self._add(decision, group, joining, new_id)
        return self._give_id(decision, group, joining, new_id)

    def _new_member_id(self, prefix: str) -> str:
        return f"{prefix}-{uuid.UUID(bytes=bytes(self._context.new_uuid()))}"

    def _give_id(
        self, decision: DecisionBuilder, group: ClassicGroup, joining: Joining, new_id: str
    ) -> JoinReply:
        if len(group.pending_join) >= MAX_PENDING_JOIN:
            return join_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, "")
        until_ms = decision.now_ms + joining.request.session_timeout_ms
        group.pending_join[new_id] = until_ms
        self._rebalances.watch(decision, group, until_ms)
        return join_error(ErrorCode.MEMBER_ID_REQUIRED, new_id)

    def _join_pending(self, decision: DecisionBuilder, group: ClassicGroup, joining: Joining) -> JoinReply:
        """With the id it was given."""
        if joining.request.group_instance_id is not None:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR, "static members are not given ids to come back with"
            )
        return self._add(decision, group, joining, joining.request.member_id)

    def _add(
        self, decision: DecisionBuilder, group: ClassicGroup, joining: Joining, member_id: str
    ) -> JoinReply:
        request = joining.request
        parked = park(None)
        member = Member(
            member_id,
            request.group_instance_id,
            joining.caller.client_id,
            joining.caller.client_host,
            joining.rebalance_timeout_ms,
            request.session_timeout_ms,
            joining.protocols,
            awaiting_join=parked,
            is_new=True,
        )
        if group.state is PREPARING_REBALANCE and group.previous_state is EMPTY:
            group.new_member_added = True
        if not group.members:
            group.protocol_type_or_none = request.protocol_type
        group.add(member)
        self._rebalances.expect(decision, group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalances.prepare_or_complete(decision, group, f"{member_id} is new; {_reason(request)}")
        return parked

    # ---- members that are known ---------------------------------------------------------------------------

    def _join_again(self, decision: DecisionBuilder, group: ClassicGroup, joining: Joining) -> JoinReply:
        member = group.members[joining.request.member_id]
        unchanged = member.protocols == joining.protocols
        is_leader = group.leader_id == member.member_id
        # It may have missed the answer to its join; and the leader of a stable group wants a new assignment.
        if unchanged and (group.state is COMPLETING_REBALANCE or (group.state is STABLE and not is_leader)):
            return joined(group, member.member_id)
        parked = self._wait_again(group, joining, member)
        self._rebalances.prepare_or_complete(
            decision, group, f"{member.member_id} joins again; {_reason(joining.request)}"
        )
        return parked

    def _wait_again(
        self, group: ClassicGroup, joining: Joining, member: Member
    ) -> Pending[JoinGroupResponse]:
        group.set_protocols(member, joining.protocols)
        member.rebalance_timeout_ms = joining.rebalance_timeout_ms
        member.session_timeout_ms = joining.request.session_timeout_ms
        if member.awaiting_join is None:
            group.awaiting_join_count += 1
        member.awaiting_join = park(member.awaiting_join)
        return member.awaiting_join

    # ---- static members that are back ---------------------------------------------------------------------

    def _replace(
        self, decision: DecisionBuilder, group: ClassicGroup, joining: Joining, old: Member, new_id: str
    ) -> JoinReply:
        old_leader = group.leader_id
        answer_join(decision, group, old, join_error(ErrorCode.FENCED_INSTANCE_ID, old.member_id))
        answer_sync(decision, old, sync_error(ErrorCode.FENCED_INSTANCE_ID))
        new = group.rename(old, new_id)
        self._rebalances.expect(decision, group, new, new.session_timeout_ms)
        parked = self._wait_again(group, joining, new)
        reason = f"{new_id} is instance {new.group_instance_id} now; {_reason(joining.request)}"
        if group.state is not STABLE:
            if group.state is COMPLETING_REBALANCE:
                # The leader may be assigning to the old id.
                self._rebalances.prepare(decision, group, reason)
            else:
                self._rebalances.maybe_complete_join(decision, group)
        elif group.choose_protocol() != group.protocol_name:
            self._rebalances.prepare_or_complete(decision, group, reason)
        else:
            self._store_replacement(decision, group, joining, old, new, old_leader)
        return parked

    def _store_replacement(
        self,
        decision: DecisionBuilder,
        group: ClassicGroup,
        joining: Joining,
        old: Member,
        new: Member,
        old_leader: str | None,
    ) -> None:
        """Nothing changes for the others: once it is written, the member goes on with what it had."""
        response = _replaced(group, joining.caller.version, new.member_id, old_leader)
        parked = new.awaiting_join
        decision.records.append(
            group_record(group, {m.member_id: m.assignment for m in group.members.values()})
        )
        decision.effects.append(After(lambda: _answer_replaced(group, new, parked, response)))
        decision.failures = [lambda _: self._undo_replacement(decision, group, old, new)]

    def _undo_replacement(
        self, decision: DecisionBuilder, group: ClassicGroup, old: Member, new: Member
    ) -> Sequence[Effect]:
        """It could not be written who the instance is now: it is who it was before."""
        if group.members.get(new.member_id) is not new:
            return self._rebalances.rearm(group)
        if new.awaiting_join is not None:
            new.awaiting_join = None
            group.awaiting_join_count -= 1
        group.set_protocols(new, old.protocols)
        new.rebalance_timeout_ms = old.rebalance_timeout_ms
        new.session_timeout_ms = old.session_timeout_ms
        back = group.rename(new, old.member_id)
        back.deadline_ms = decision.now_ms + back.session_timeout_ms
        return self._rebalances.rearm(group)


def _has_space(group: ClassicGroup, joining: Joining) -> bool:
    """Is there space for what a member says of itself, in the place of what it said before?"""
    before = group.members.get(joining.request.member_id)
    held = group.protocol_bytes - (0 if before is None else size_of(before.protocols))
    return held + size_of(joining.protocols) <= MAX_PROTOCOL_BYTES


def _replaced(group: ClassicGroup, version: int, new_id: str, old_leader: str | None) -> JoinGroupResponse:
    """The leader must not assign, for a stable group does not take it.

    The response says so (skip_assignment, KIP-814); older versions name the member it replaces as the leader.
    """
    response = joined(group, new_id)
    if version < FIRST_SKIP_ASSIGNMENT_VERSION:
        response.members = []
        response.leader = old_leader or ""
    else:
        response.skip_assignment = group.leader_id == new_id
    return response


def _answer_replaced(
    group: ClassicGroup,
    member: Member,
    parked: Pending[JoinGroupResponse] | None,
    response: JoinGroupResponse,
) -> None:
    if parked is None or member.awaiting_join is not parked:
        return  # a rebalance, or the next replacement, has answered it
    member.awaiting_join = None
    group.awaiting_join_count -= 1
    parked.resolve(response)


def _reason(request: JoinGroupRequest) -> str:
    return f"client reason: {request.reason or 'not provided'}"


class Syncs:
    """SyncGroup."""

    def __init__(self, rebalances: Rebalances) -> None:
        self._rebalances = rebalances

    def sync(self, decision: DecisionBuilder, group: ClassicGroup, request: SyncGroupRequest) -> SyncReply:
        """A member's assignment, when there is one."""
        error = _refusal(group, request)
        if error is not None:
            return sync_error(error)
        member = group.members[request.member_id]
        if group.state is PREPARING_REBALANCE:
            return sync_error(ErrorCode.REBALANCE_IN_PROGRESS)
        self._rebalances.synced(decision, group, member.member_id)
        if group.state is STABLE:
            return _assigned(group, member)
        member.awaiting_sync = parked = park(member.awaiting_sync)
        if group.leader_id == member.member_id:
            self._store(decision, group, {a.member_id: a.assignment for a in request.assignments})
        return parked

    def _store(self, decision: DecisionBuilder, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
        generation_id = group.generation_id
        decision.records.append(group_record(group, assignments))
        decision.effects.append(After(lambda: self._stored(decision, group, generation_id, assignments)))
        decision.failures = [lambda error: self._not_stored(decision.now_ms, group, generation_id, error)]

    def _stored(
        self,
        decision: DecisionBuilder,
        group: ClassicGroup,
        generation_id: int,
        assignments: dict[str, bytes],
    ) -> None:
        """Committed: the group is stable, unless it has begun to rebalance meanwhile."""
        if group.state is not COMPLETING_REBALANCE or group.generation_id != generation_id:
            return
        group.become(STABLE, decision.now_ms)
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, NO_ASSIGNMENT)
            parked, member.awaiting_sync = member.awaiting_sync, None
            if parked is not None:
                member.deadline_ms = max(member.deadline_ms, decision.now_ms + member.session_timeout_ms)
                parked.resolve(_assigned(group, member))

    def _not_stored(
        self, now_ms: int, group: ClassicGroup, generation_id: int, error: KafkaError
    ) -> Sequence[Effect]:
        if group.state is not COMPLETING_REBALANCE or group.generation_id != generation_id:
            return self._rebalances.rearm(group)
        decision = DecisionBuilder(now_ms)
        self._rebalances.reset_assignments(decision, group, error.code)
        self._rebalances.prepare_or_complete(decision, group, f"the assignment could not be stored: {error}")
        return [*decision.effects, *self._rebalances.rearm(group)]


def _refusal(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode | None:
    try:
        group.validate_member(request.member_id, request.group_instance_id)
    except KafkaError as error:
        return error.code
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.protocol_type_or_none) or _differs(
        request.protocol_name, group.protocol_name
    ):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return None


def _differs(requested: str | None, agreed: str | None) -> bool:
    return requested is not None and agreed is not None and requested != agreed


def _assigned(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type_or_none,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )
