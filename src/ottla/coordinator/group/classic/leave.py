"""LeaveGroup: members go, one or several at once, themselves or by an administrator who names their instances.

Owner: the ClassicManager of a shard.
"""

from ottla.coordinator.group.classic.group import ClassicGroup
from ottla.coordinator.group.classic.rebalance import Rebalances
from ottla.coordinator.group.classic.state import COMPLETING_REBALANCE, PREPARING_REBALANCE, STABLE
from ottla.coordinator.group.classic.turn import Turn
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.groups import LeaveGroupResponse, MemberIdentity, MemberResponse


class Leaves:
    """See the module."""

    def __init__(self, rebalances: Rebalances) -> None:
        self._rebalances = rebalances

    def leave(self, turn: Turn, group: ClassicGroup, members: list[MemberIdentity]) -> LeaveGroupResponse:
        """Let them go, each if it can; the others rebalance."""
        outcomes = [self._leave_one(turn, group, member) for member in members]
        if any(outcome.error_code == ErrorCode.NONE for outcome in outcomes):
            if group.state in (STABLE, COMPLETING_REBALANCE):
                self._rebalances.prepare_or_complete(turn, group, "members have left")
            elif group.state is PREPARING_REBALANCE:
                self._rebalances.maybe_complete_join(turn, group)
        return LeaveGroupResponse(members=outcomes)

    def _leave_one(self, turn: Turn, group: ClassicGroup, leaving: MemberIdentity) -> MemberResponse:
        try:
            self._remove(turn, group, leaving)
        except KafkaError as error:
            return left(leaving, error.code)
        return left(leaving)

    def _remove(self, turn: Turn, group: ClassicGroup, leaving: MemberIdentity) -> None:
        if leaving.member_id in group.pending_join:
            group.remove(leaving.member_id)
            return
        member_id = leaving.member_id or _named(group, leaving.group_instance_id)
        group.validate_member(member_id, leaving.group_instance_id)
        self._rebalances.dismiss(turn, group, group.members[member_id])


def _named(group: ClassicGroup, instance_id: str | None) -> str:
    """Who is this instance? Its administrator does not know the member's id."""
    member_id = None if instance_id is None else group.static_members.get(instance_id)
    if member_id is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"nobody is instance {instance_id}")
    return member_id


def left(leaving: MemberIdentity, code: ErrorCode = ErrorCode.NONE) -> MemberResponse:
    return MemberResponse(
        member_id=leaving.member_id, group_instance_id=leaving.group_instance_id, error_code=int(code)
    )
