"""Members of a consumer group that still speak the classic protocol: JoinGroup, SyncGroup and Heartbeat of theirs.

A join is answered at once: the coordinator assigns, so nobody waits for a leader. The member epoch is the generation
that such a member sees. When it has to give something up or can get something more, it is told that a rebalance is
in progress, joins again and says what it holds then.

Owner: the ConsumerManager of a shard.
"""

from dataclasses import replace
from typing import Final

from ottla.coordinator.group.assignors.api import Assignment
from ottla.coordinator.group.classic.join import Caller
from ottla.coordinator.group.consumer.conversion import Conversions, classic_metadata
from ottla.coordinator.group.consumer.core import ConsumerGroups
from ottla.coordinator.group.consumer.group import PROTOCOL_TYPE, ConsumerGroup
from ottla.coordinator.group.consumer.large import LargeAssignments
from ottla.coordinator.group.consumer.member import ConsumerGroupMember, MemberState
from ottla.coordinator.group.consumer.protocol import (
    encode_assignment,
    parse_subscription,
    partitions_by_id,
    version_of,
)
from ottla.coordinator.group.consumer.regexes import RegexChange
from ottla.coordinator.group.modern_timers import Wait
from ottla.coordinator.group.modern_turn import Turn
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import uuid_to_str
from ottla.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from ottla.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

FIRST_MEMBER_ID_REQUIRED_VERSION: Final = 4
_DISABLED: Final = "disabled"
_ALIVE: Final = HeartbeatResponse()
_REJOIN: Final = HeartbeatResponse(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS))


class ClassicMembers:
    """See the module."""

    def __init__(self, groups: ConsumerGroups, conversions: Conversions, large: LargeAssignments) -> None:
        self._groups = groups
        self._conversions = conversions
        self._large = large

    # ---- joining --------------------------------------------------------------------------------------------

    def join(
        self, turn: Turn, group: ConsumerGroup, caller: Caller, request: JoinGroupRequest
    ) -> JoinGroupResponse:
        """A classic member comes, or comes again."""
        self._require_migration(group)
        member_id = request.member_id or uuid_to_str(self._groups.context.new_uuid())
        instance_id = request.group_instance_id
        self._groups.require_room(group, member_id, instance_id)
        if not group.supports_classic_protocols(request.protocol_type, [p.name for p in request.protocols]):
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                "The other members know none of the member's protocols.",
            )
        must_know_id = caller.version >= FIRST_MEMBER_ID_REQUIRED_VERSION
        if instance_id is None and not request.member_id and must_know_id:
            return _join_response(member_id, error=ErrorCode.MEMBER_ID_REQUIRED)
        replaced = group.static_member(instance_id)
        member = self._member(turn, group, member_id, request)
        subscription = _subscription(request)
        updated = _said(member, caller, request, subscription)
        updated = self._settle(turn, group, member, updated, replaced, subscription)
        return self._joined(turn, group, updated, request)

    def _require_migration(self, group: ConsumerGroup) -> None:
        if str(self._groups.context.config()["group.consumer.migration.policy"]).lower() == _DISABLED:
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Classic members cannot join consumer group {group.group_id}: migration is disabled.",
            )

    def _member(
        self, turn: Turn, group: ConsumerGroup, member_id: str, request: JoinGroupRequest
    ) -> ConsumerGroupMember:
        if request.group_instance_id is None:
            return group.members.get(member_id) or ConsumerGroupMember(member_id)
        if not request.member_id:
            return self._groups.static_newcomer(
                turn, group, member_id, request.group_instance_id, classic=True
            )
        return self._groups.known_instance(group, member_id, request.group_instance_id)

    def _settle(
        self,
        turn: Turn,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        replaced: ConsumerGroupMember | None,
        subscription: ConsumerProtocolSubscription,
    ) -> ConsumerGroupMember:
        """Note the member, assign if that is due, take its step; or hand the group over to the classic protocol."""
        groups = self._groups
        names_changed = groups.note_member(turn, group, member, updated)
        regex = groups.regexes.update(turn, group, member, updated)
        bump = names_changed or regex is not RegexChange.NONE
        epoch = group.epoch
        if bump or group.must_refresh(turn.now_ms):
            epoch = groups.refresh(turn, group, member, updated, bump)
        downgrade = replaced is not None and self._conversions.may_downgrade_by_replacing(group, replaced)
        stale = group.target_epoch.epoch < epoch
        target = group.target_epoch.epoch, group.target_of(updated.member_id, updated.instance_id)
        if not downgrade:
            target = self._assign(turn, group, member, updated, epoch) or target
        if not (downgrade and stale):
            owned = partitions_by_id(subscription.owned_partitions, groups.context.image)
            updated = groups.reconcile(turn, group, updated, target, owned, subscription_changed=bump)
        if downgrade and replaced is not None:
            self._conversions.downgrade_by_replacing(turn, group, replaced, updated, stale)
        else:
            self._expect(turn, group, updated)
        return updated

    def _assign(
        self,
        turn: Turn,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        epoch: int,
    ) -> tuple[int, Assignment] | None:
        """A new target, if one is due and is made at once; of a later one the member hears by its heartbeats."""
        groups = self._groups
        if not groups.may_assign(group, epoch, turn.now_ms) or self._large.is_running(group.group_id):
            return None
        plan = groups.plan(group, epoch, member, updated)
        if self._large.is_for(plan):
            self._large.begin(turn, group.group_id, plan, lambda *_: None)
            return None
        return epoch, groups.assign(turn, group, plan)

    def _expect(self, turn: Turn, group: ConsumerGroup, member: ConsumerGroupMember) -> None:
        """It has joined; now it has to fetch its assignment, and to be heard of."""
        timers, group_id, member_id = self._groups.timers, group.group_id, member.member_id
        assert member.classic is not None
        timers.cancel(turn, Wait.JOIN, group_id, member_id)
        timers.start(turn, Wait.SESSION, group_id, member_id, member.classic.session_timeout_ms)
        timers.start(turn, Wait.SYNC, group_id, member_id, member.rebalance_timeout_ms)

    @staticmethod
    def _joined(
        turn: Turn, group: ConsumerGroup, member: ConsumerGroupMember, request: JoinGroupRequest
    ) -> JoinGroupResponse:
        response = _join_response(member.member_id)
        response.generation_id = member.member_epoch
        response.protocol_type = PROTOCOL_TYPE
        response.protocol_name = request.protocols[0].name
        return response

    # ---- afterwards -----------------------------------------------------------------------------------------

    def sync(self, turn: Turn, group: ConsumerGroup, request: SyncGroupRequest) -> SyncGroupResponse:
        """A member fetches what it has by now."""
        member = self._current(group, request.member_id, request.group_instance_id, request.generation_id)
        assert member.classic is not None
        protocol = member.classic.supported_protocols[0]
        _require_protocol(request, protocol.name)
        behind = group.target_epoch.epoch > member.member_epoch
        if behind and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._tell_to_join(turn, group, member)
            return SyncGroupResponse(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS), assignment=b"")
        timers, group_id = self._groups.timers, group.group_id
        timers.cancel(turn, Wait.SYNC, group_id, member.member_id)
        timers.start(turn, Wait.SESSION, group_id, member.member_id, member.classic.session_timeout_ms)
        assignment = encode_assignment(
            member.assigned, self._groups.context.image, version_of(protocol.metadata)
        )
        return SyncGroupResponse(
            protocol_type=request.protocol_type, protocol_name=request.protocol_name, assignment=assignment
        )

    def heartbeat(self, turn: Turn, group: ConsumerGroup, request: HeartbeatRequest) -> HeartbeatResponse:
        """A member is alive; it learns whether it has to join again."""
        member = self._current(group, request.member_id, request.group_instance_id, request.generation_id)
        assert member.classic is not None
        self._groups.timers.start(
            turn, Wait.SESSION, group.group_id, member.member_id, member.classic.session_timeout_ms
        )
        if not self._must_rejoin(group, member):
            return _ALIVE
        self._tell_to_join(turn, group, member)
        return _REJOIN

    @staticmethod
    def _must_rejoin(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
        """There is a new target, or something to give up, or all that it waited for is free."""
        if member.member_epoch < group.target_epoch.epoch:
            return True
        if member.state is MemberState.UNRELEASED_PARTITIONS:
            return not group.waits_for_others(member)
        return member.state is MemberState.UNREVOKED_PARTITIONS

    def _tell_to_join(self, turn: Turn, group: ConsumerGroup, member: ConsumerGroupMember) -> None:
        self._groups.timers.start_join(turn, group.group_id, member)

    def _current(
        self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
    ) -> ConsumerGroupMember:
        """The classic member, if it is in the generation that it says."""
        if instance_id is None:
            member = group.member(member_id)
        else:
            member = self._groups.known_instance(group, member_id, instance_id)
        if not member.uses_classic_protocol:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"{member.member_id} does not speak the classic protocol."
            )
        if generation != member.member_epoch:
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION,
                f"The member is in epoch {member.member_epoch}, not {generation}.",
            )
        return member


def _join_response(member_id: str, error: ErrorCode = ErrorCode.NONE) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=int(error), protocol_name=None, leader="", member_id=member_id, members=[]
    )


def _subscription(request: JoinGroupRequest) -> ConsumerProtocolSubscription:
    """All of a member's protocols carry the same subscription: the first is as good as any."""
    try:
        return parse_subscription(request.protocols[0].metadata)
    except KafkaError as error:
        # Versions after 4.3 call it an inconsistent protocol.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"The subscription is malformed: {error}") from error


def _said(
    member: ConsumerGroupMember,
    caller: Caller,
    request: JoinGroupRequest,
    subscription: ConsumerProtocolSubscription,
) -> ConsumerGroupMember:
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=request.group_instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=timeout_ms if timeout_ms != -1 else member.rebalance_timeout_ms,
        subscribed_topic_names=frozenset(subscription.topics),
        subscribed_topic_regex="",  # the classic protocol has none
        client_id=caller.client_id,
        client_host=caller.client_host,
        classic=classic_metadata(
            request.session_timeout_ms, ((p.name, p.metadata) for p in request.protocols)
        ),
    )


def _require_protocol(request: SyncGroupRequest, name: str) -> None:
    """What the request says of the protocol is what the join was answered with."""
    if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in (None, name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"The member's protocol is {name}.")
