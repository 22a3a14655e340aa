"""Members that go: by their own request, by an administrator's, or because they were not heard of.

A static member may leave for a while: it keeps its partitions until it is back under another member id, or its
session is over. When the last member of the new protocol goes and only classic ones are left, the group becomes a
classic group (KIP-848).

Owner: the ConsumerManager of a shard.
"""

from dataclasses import replace
from typing import Protocol, TypeVar

from ottla.coordinator.group.consumer import records
from ottla.coordinator.group.consumer.core import ConsumerGroups
from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.consumer.member import NOTHING, ConsumerGroupMember
from ottla.coordinator.group.consumer.reconcile import reset_epochs
from ottla.coordinator.group.modern_member import STATIC_LEAVE_EPOCH
from ottla.coordinator.group.modern_turn import Turn
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.consumer_group import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.wire.messages.groups import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse

T = TypeVar("T")


class Downgrades(Protocol):
    """What becomes of a consumer group that only classic members are left of."""

    def may_downgrade(self, group: ConsumerGroup, leaving: list[ConsumerGroupMember]) -> bool: ...

    def downgrade(self, turn: Turn, group: ConsumerGroup, leaving: list[ConsumerGroupMember]) -> None: ...


class Leaves:
    """See the module."""

    def __init__(self, groups: ConsumerGroups, downgrades: Downgrades) -> None:
        self._groups = groups
        self._downgrades = downgrades

    def leave(self, turn: Turn, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        """A member's own request."""
        group = self._groups.consumer_group(request.group_id)
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = self._groups.known_instance(group, request.member_id, request.instance_id)
            if request.member_epoch == STATIC_LEAVE_EPOCH:
                return self._leave_for_a_while(turn, group, member)
        self.fence(turn, group, [member])
        return ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=request.member_epoch, heartbeat_interval_ms=0
        )

    def _leave_for_a_while(
        self, turn: Turn, group: ConsumerGroup, member: ConsumerGroupMember
    ) -> ConsumerGroupHeartbeatResponse:
        left = replace(
            member,
            member_epoch=STATIC_LEAVE_EPOCH,
            pending_revocation=NOTHING,
            assigned=reset_epochs(member.assigned),
        )
        turn.records.append(records.current_assignment(group.group_id, left))
        return ConsumerGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=STATIC_LEAVE_EPOCH, heartbeat_interval_ms=0
        )

    def fence(self, turn: Turn, group: ConsumerGroup, leaving: list[ConsumerGroupMember]) -> None:
        """Remove members: the others share what they had."""
        if not leaving:
            return
        if self._downgrades.may_downgrade(group, leaving):
            self._downgrades.downgrade(turn, group, leaving)
            return
        for member in leaving:
            turn.records.extend(records.removed_member(group.group_id, member.member_id))
        unused = self._groups.regexes.remove_unused(turn, group, leaving)
        counts = group.subscriptions_without(leaving, unused)
        metadata_hash = self._groups.hashes.group_hash(counts, self._groups.context.image)
        turn.records.append(records.group_epoch(group.group_id, group.epoch + 1, metadata_hash))
        session_timeout_ms = self._groups.settings[group.group_id].session_timeout_ms
        for member in leaving:
            self._groups.timers.cancel_all(turn, group.group_id, member.member_id, session_timeout_ms)

    def leave_classic(
        self, turn: Turn, group: ConsumerGroup, request: LeaveGroupRequest
    ) -> LeaveGroupResponse:
        """LeaveGroup: of classic members, and of any member by an administrator."""
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
        self.fence(turn, group, list(leaving.values()))
        return LeaveGroupResponse(members=answers)

    def _identified(self, group: ConsumerGroup, identity: MemberIdentity) -> ConsumerGroupMember:
        if identity.group_instance_id is None:
            return group.member(identity.member_id)
        # An administrator knows the instance only.
        return self._groups.known_instance(group, identity.member_id or None, identity.group_instance_id)
