"""SyncGroup: the leader says who gets what, and everybody fetches its own part.

An assignment counts when it is written. Until then those who ask for theirs wait; if it cannot be written, or the
group has begun to rebalance in between, they are told and join again.

Owner: the ClassicManager of a shard.
"""

from collections.abc import Sequence

from ottla.coordinator.group.classic.group import ClassicGroup
from ottla.coordinator.group.classic.member import NO_ASSIGNMENT, Member
from ottla.coordinator.group.classic.rebalance import Rebalances
from ottla.coordinator.group.classic.records import group_record
from ottla.coordinator.group.classic.state import COMPLETING_REBALANCE, PREPARING_REBALANCE, STABLE
from ottla.coordinator.group.classic.turn import Turn, park, sync_error
from ottla.coordinator.result import After, Effect
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.wire.messages.groups import SyncGroupRequest, SyncGroupResponse

Reply = SyncGroupResponse | Pending[SyncGroupResponse]


class Syncs:
    """See the module."""

    def __init__(self, rebalances: Rebalances) -> None:
        self._rebalances = rebalances

    def sync(self, turn: Turn, group: ClassicGroup, request: SyncGroupRequest) -> Reply:
        """A member's assignment, when there is one."""
        error = _refusal(group, request)
        if error is not None:
            return sync_error(error)
        member = group.members[request.member_id]
        if group.state is PREPARING_REBALANCE:
            return sync_error(ErrorCode.REBALANCE_IN_PROGRESS)
        self._rebalances.synced(turn, group, member.member_id)
        if group.state is STABLE:
            return _assigned(group, member)
        member.awaiting_sync = parked = park(member.awaiting_sync)
        if group.leader_id == member.member_id:
            self._store(turn, group, {a.member_id: a.assignment for a in request.assignments})
        return parked

    def _store(self, turn: Turn, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
        generation_id = group.generation_id
        turn.records.append(group_record(group, assignments))
        turn.effects.append(After(lambda: self._stored(turn, group, generation_id, assignments)))
        turn.on_failure = lambda error: self._not_stored(turn.now_ms, group, generation_id, error)

    def _stored(
        self, turn: Turn, group: ClassicGroup, generation_id: int, assignments: dict[str, bytes]
    ) -> None:
        """Committed: the group is stable, unless it has begun to rebalance meanwhile."""
        if group.state is not COMPLETING_REBALANCE or group.generation_id != generation_id:
            return
        group.become(STABLE, turn.now_ms)
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, NO_ASSIGNMENT)
            parked, member.awaiting_sync = member.awaiting_sync, None
            if parked is not None:
                member.deadline_ms = max(member.deadline_ms, turn.now_ms + member.session_timeout_ms)
                parked.resolve(_assigned(group, member))

    def _not_stored(
        self, now_ms: int, group: ClassicGroup, generation_id: int, error: KafkaError
    ) -> Sequence[Effect]:
        if group.state is not COMPLETING_REBALANCE or group.generation_id != generation_id:
            return self._rebalances.rearm(group)
        turn = Turn(now_ms)
        self._rebalances.reset_assignments(turn, group, error.code)
        self._rebalances.prepare_or_complete(turn, group, f"the assignment could not be stored: {error}")
        return [*turn.effects, *self._rebalances.rearm(group)]


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


def _differs(told: str | None, agreed: str | None) -> bool:
    return told is not None and agreed is not None and told != agreed


def _assigned(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type_or_none,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )
