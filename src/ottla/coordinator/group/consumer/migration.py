"""Between the protocols while a group lives: a classic group becomes a consumer group when the first member of the new
protocol joins it, and a classic group again when the last one has left (KIP-848, group.consumer.migration.policy).

Nobody loses its partitions by it: what the members were assigned stays assigned, and members of the classic protocol
are asked to join again (REBALANCE_IN_PROGRESS).

Members of a consumer group that still speak the classic protocol have their JoinGroup, SyncGroup and Heartbeat decided
here. A join is answered at once: the coordinator assigns, so nobody waits for a leader. The member epoch is the
generation that such a member sees. When it has to give something up or can get something more, it gets
REBALANCE_IN_PROGRESS, joins again and says what it holds then.

Owner: the ConsumerGroupManager of a shard.
"""

import logging
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from ottla.coordinator.group.assignors.api import NO_PARTITIONS, Assignment, Partitions
from ottla.coordinator.group.classic.group import NO_ASSIGNMENT, STABLE, ClassicGroup, Member
from ottla.coordinator.group.classic.manager import ClassicGroupManager
from ottla.coordinator.group.consumer import records
from ottla.coordinator.group.consumer.assignment import LargeAssignments
from ottla.coordinator.group.consumer.group import PROTOCOL_TYPE, ConsumerGroup
from ottla.coordinator.group.consumer.groups import ConsumerGroups, RegexChange
from ottla.coordinator.group.consumer.member import ConsumerGroupMember, MemberState
from ottla.coordinator.group.context import Caller, DecisionBuilder
from ottla.coordinator.group.modern.group import TargetEpoch
from ottla.coordinator.group.modern.groups import Wait
from ottla.coordinator.java_hash import timeline_order
from ottla.coordinator.shard import CoordinatorRecord
from ottla.coordinator.timeline import Timeline
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid, uuid_to_str
from ottla.wire.codec import decode, encode
from ottla.wire.messages.groups.classic import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from ottla.wire.messages.groups.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from ottla.wire.messages.logs.offsets import ClassicMemberMetadata, ClassicProtocol

log = logging.getLogger("ottla.coordinator.consumer")

POLICY: Final = "group.consumer.migration.policy"
# Of topics that are yet to be looked at. The rebalance that an upgrade cuts short is due still: with this the group has
# a new epoch and a new target at once, even if nothing but the protocol of a static member has changed.
UNKNOWN_HASH: Final = 0
UPGRADES: Final = ("bidirectional", "upgrade")
DOWNGRADES: Final = ("bidirectional", "downgrade")
FIRST_MEMBER_ID_REQUIRED_VERSION: Final = 4
_DISABLED: Final = "disabled"
_ALIVE: Final = HeartbeatResponse()
_REJOIN: Final = HeartbeatResponse(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS))

# The version in front of a subscription or assignment.
_VERSION: Final = struct.Struct(">h")


class Conversions:
    """Upgrades of classic groups and downgrades of consumer groups."""

    def __init__(self, groups: ConsumerGroups, classic: ClassicGroupManager) -> None:
        self._groups = groups
        self._classic = classic

    @property
    def _policy(self) -> str:
        return str(self._groups.context.config()[POLICY]).lower()

    # ---- to a consumer group --------------------------------------------------------------------------------

    def group_to_join(self, decision: DecisionBuilder, group_id: str) -> ConsumerGroup:
        """The consumer group that a member of the new protocol joins; made now if there is none."""
        present = self._groups.context.groups.get(group_id)
        if isinstance(present, ConsumerGroup):
            return present
        if present is None:
            return _new_group(group_id)
        if not isinstance(present, ClassicGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        if present.is_empty():
            decision.records.extend(present.tombstones())
            return _new_group(group_id)
        self._require_upgrade(present)
        return self._upgrade(decision, present)

    def _require_upgrade(self, group: ClassicGroup) -> None:
        most: int = self._groups.context.config()["group.consumer.max.size"]
        if self._policy not in UPGRADES:
            raise _no_upgrade(group, f"{POLICY} does not allow it")
        if not group.uses_consumer_protocol:
            raise _no_upgrade(group, "its members are not consumers")
        if len(group.members) > most:
            raise _no_upgrade(group, "it has more members than a consumer group may have")

    def _upgrade(self, decision: DecisionBuilder, classic: ClassicGroup) -> ConsumerGroup:
        decision.records.extend(classic.tombstones())
        group = _new_group(classic.group_id)
        group.set_target_epoch(TargetEpoch(classic.generation_id, 0))
        try:
            assigned = {m.member_id: self._assigned(m) for m in classic.members.values()}
            taken = {(t, p) for found in assigned.values() for t, numbers in found.items() for p in numbers}
            protocol = _protocol_of_all(classic)
            for member in classic.members.values():
                self._take_over(group, classic, member, protocol, assigned[member.member_id], taken)
        except KafkaError as error:
            raise _no_upgrade(classic, str(error)) from error
        metadata_hash = UNKNOWN_HASH
        if classic.state is STABLE:
            metadata_hash = self._groups.hashes.group_hash(group.subscriptions, self._groups.context.image)
        group.set_epoch(classic.generation_id, metadata_hash)
        decision.records.extend(_records(group))
        # Who waits to join or for its assignment learns that there is another rebalance.
        decision.effects.extend(self._classic.release_for_upgrade(classic, decision.now_ms))
        for taken in group.members.values():
            assert taken.classic is not None
            self._groups.timers.start(
                decision, Wait.SESSION, group.group_id, taken.member_id, taken.classic.session_timeout_ms
            )
        log.info("group %s becomes a consumer group", group.group_id)
        return group

    def _take_over(
        self,
        group: ConsumerGroup,
        classic: ClassicGroup,
        member: Member,
        protocol: str,
        assigned: Assignment,
        taken: set[tuple[Uuid, int]],
    ) -> None:
        """A classic member, with the partitions it has."""
        subscription = parse_subscription(member.metadata[protocol])
        assigned = self._with_held(assigned, subscription, taken)
        generation = classic.generation_id
        group.put_target(member.member_id, assigned)
        group.put_member(
            ConsumerGroupMember(
                member.member_id,
                member_epoch=generation,
                previous_member_epoch=generation,
                instance_id=member.group_instance_id,
                rack_id=subscription.rack_id or None,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=frozenset(subscription.topics),
                assigned={t: dict.fromkeys(partitions, generation) for t, partitions in assigned.items()},
                classic=classic_metadata(member.session_timeout_ms, member.protocols),
            )
        )

    def _assigned(self, member: Member) -> Assignment:
        if member.assignment == NO_ASSIGNMENT:
            return NO_PARTITIONS  # it has joined, and not heard of an assignment yet
        assignment = parse_assignment(member.assignment)
        if assignment.user_data:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND, "its assignor keeps data of its own, which would be lost"
            )
        return partitions_by_id(assignment.assigned_partitions, self._groups.context.image)

    def _with_held(
        self, assigned: Assignment, said: ConsumerProtocolSubscription, taken: set[tuple[Uuid, int]]
    ) -> Assignment:
        """What it is assigned, and what a cooperative member said to have and may not have given up yet.

        Apache takes the latter for free, and then two members have it until this one has joined again.
        """
        held = {
            topic_id: [p for p in partitions if (topic_id, p) not in taken]
            for topic_id, partitions in partitions_by_id(
                said.owned_partitions, self._groups.context.image
            ).items()
        }
        both = dict(assigned)
        for topic_id, partitions in held.items():
            if partitions:
                taken.update((topic_id, p) for p in partitions)
                both[topic_id] = Partitions((*both.get(topic_id, ()), *partitions))
        return both

    # ---- to a classic group ---------------------------------------------------------------------------------

    def may_downgrade(self, group: ConsumerGroup, leaving: list[ConsumerGroupMember]) -> bool:
        """Are there members left, all of them classic, and may the group become one of theirs?"""
        left = len(group.members) - len(leaving)
        return left > 0 and group.all_classic_without(leaving) and self._allows_downgrade(left)

    def may_downgrade_by_replacing(self, group: ConsumerGroup, replaced: ConsumerGroupMember) -> bool:
        """Is this, which a classic member takes the place of, the last one that is not classic?"""
        last = not replaced.uses_classic_protocol and group.classic_members == len(group.members) - 1
        return last and self._allows_downgrade(len(group.members))

    def _allows_downgrade(self, members: int) -> bool:
        most: int = self._groups.context.config()["group.max.size"]
        return self._policy in DOWNGRADES and members <= most

    def downgrade(
        self, decision: DecisionBuilder, group: ConsumerGroup, leaving: list[ConsumerGroupMember]
    ) -> None:
        """The last members of the new protocol go: the others rebalance as a classic group."""
        gone = {member.member_id for member in leaving}
        decision.records.extend(group.tombstones())
        stay = [group.members[m] for m in timeline_order(list(group.members)) if m not in gone]
        self._become_classic(decision, group, stay, {}, "the last member of the new protocol has left")

    def downgrade_by_replacing(
        self,
        decision: DecisionBuilder,
        group: ConsumerGroup,
        replaced: ConsumerGroupMember,
        joining: ConsumerGroupMember,
        rebalance: bool,
    ) -> None:
        """A classic static member takes the place of the last member of the new protocol."""
        decision.records.extend(group.tombstones_with({replaced.member_id: joining.member_id}))
        order = timeline_order(list(group.members))
        stay = [group.members[member_id] for member_id in order if member_id != replaced.member_id]
        reason = "the last member of the new protocol was replaced" if rebalance else None
        self._become_classic(
            decision, group, [*stay, joining], {joining.member_id: replaced.member_id}, reason
        )

    def _become_classic(
        self,
        decision: DecisionBuilder,
        group: ConsumerGroup,
        members: Iterable[ConsumerGroupMember],
        replaced: dict[str, str],
        reason: str | None,
    ) -> None:
        """The group as a classic one, stable; it rebalances if there is a reason to."""
        rows = [_classic_member(member) for member in members]
        classic = self._classic.new_from_members(group.group_id, group.epoch, rows, decision.now_ms)
        for row in rows:
            target = group.target_of(replaced.get(row.member_id, row.member_id))
            version = version_of(row.metadata[classic.protocol_name or ""])
            row.assignment = encode_assignment(target, self._groups.context.image, version)
        made, effects = self._classic.install(classic, decision.now_ms, reason)
        decision.records.extend(made)
        decision.effects.extend(effects)
        log.info("group %s becomes a classic group", group.group_id)


def _protocol_of_all(classic: ClassicGroup) -> str:
    """A protocol that every member knows: that of the last generation, unless it is to be another.

    Before its first generation a group has not agreed on one yet, and who joins for the next may not know the last.
    """
    protocol = classic.protocol_name
    if protocol is not None and all(protocol in member.metadata for member in classic.members.values()):
        return protocol
    return classic.choose_protocol()


def classic_metadata(
    session_timeout_ms: int, protocols: Iterable[tuple[str, bytes]]
) -> ClassicMemberMetadata:
    return ClassicMemberMetadata(
        session_timeout_ms=session_timeout_ms,
        supported_protocols=[ClassicProtocol(name=name, metadata=metadata) for name, metadata in protocols],
    )


def _classic_member(member: ConsumerGroupMember) -> Member:
    assert member.classic is not None, "only classic members are left"
    return Member(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        tuple((protocol.name, protocol.metadata) for protocol in member.classic.supported_protocols),
    )


def _new_group(group_id: str) -> ConsumerGroup:
    """A group to decide on, which becomes a real one by the replay of what is decided."""
    timeline = Timeline()
    timeline.recording = False
    return ConsumerGroup(timeline, group_id)


def _records(group: ConsumerGroup) -> Iterable[CoordinatorRecord]:
    """Everything there is of a group."""
    group_id, members = group.group_id, group.members
    yield from (records.member_metadata(group_id, member) for member in members.values())
    yield records.group_epoch(group_id, group.epoch, group.metadata_hash)
    yield from (records.target_assignment(group_id, m, group.target_of(m)) for m in members)
    yield records.target_epoch(group_id, *group.target_epoch)
    yield from (records.current_assignment(group_id, member) for member in members.values())


def _no_upgrade(group: ClassicGroup, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"Classic group {group.group_id} cannot become a consumer group: {why}."
    )


class ClassicMembers:
    """Requests of a consumer group's members that speak the classic protocol."""

    def __init__(self, groups: ConsumerGroups, conversions: Conversions, large: LargeAssignments) -> None:
        self._groups = groups
        self._conversions = conversions
        self._large = large

    # ---- joining --------------------------------------------------------------------------------------------

    def join(
        self, decision: DecisionBuilder, group: ConsumerGroup, caller: Caller, request: JoinGroupRequest
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
        member = self._member(decision, group, member_id, request)
        subscription = _subscription(request)
        updated = _updated_member(member, caller, request, subscription)
        updated = self._settle(decision, caller, group, member, updated, replaced, subscription)
        return self._joined(decision, group, updated, request)

    def _require_migration(self, group: ConsumerGroup) -> None:
        if str(self._groups.context.config()["group.consumer.migration.policy"]).lower() == _DISABLED:
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"Classic members cannot join consumer group {group.group_id}: migration is disabled.",
            )

    def _member(
        self, decision: DecisionBuilder, group: ConsumerGroup, member_id: str, request: JoinGroupRequest
    ) -> ConsumerGroupMember:
        if request.group_instance_id is None:
            return group.members.get(member_id) or ConsumerGroupMember(member_id)
        if not request.member_id:
            return self._groups.static_newcomer(
                decision, group, member_id, request.group_instance_id, classic=True
            )
        return self._groups.known_instance(group, member_id, request.group_instance_id)

    def _settle(
        self,
        decision: DecisionBuilder,
        caller: Caller,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        replaced: ConsumerGroupMember | None,
        subscription: ConsumerProtocolSubscription,
    ) -> ConsumerGroupMember:
        """Note the member, assign if that is due, take its step; or hand the group over to the classic protocol."""
        groups = self._groups
        names_changed = groups.note_member(decision, group, member, updated)
        regex = groups.regexes.update(decision, group, member, updated, caller)
        bump = names_changed or regex is not RegexChange.NONE
        epoch = group.epoch
        if bump or group.must_refresh(decision.now_ms):
            epoch = groups.refresh(decision, group, member, updated, bump)
        downgrade = replaced is not None and self._conversions.may_downgrade_by_replacing(group, replaced)
        stale = group.target_epoch.epoch < epoch
        target = group.target_epoch.epoch, group.target_of(updated.member_id, updated.instance_id)
        if not downgrade:
            target = self._assign(decision, group, member, updated, epoch) or target
        if not (downgrade and stale):
            owned = partitions_by_id(subscription.owned_partitions, groups.context.image)
            updated = groups.reconcile(decision, group, updated, target, owned, subscription_changed=bump)
        if downgrade and replaced is not None:
            self._conversions.downgrade_by_replacing(decision, group, replaced, updated, stale)
        else:
            self._expect(decision, group, updated)
        return updated

    def _assign(
        self,
        decision: DecisionBuilder,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        epoch: int,
    ) -> tuple[int, Assignment] | None:
        """A new target, if one is due and is made at once; of a later one the member hears by its heartbeats."""
        groups = self._groups
        if not groups.may_assign(group, epoch, decision.now_ms) or self._large.is_running(group.group_id):
            return None
        plan = groups.plan(group, epoch, member, updated)
        if self._large.is_for(plan):
            self._large.begin(decision, group.group_id, plan, lambda *_: None)
            return None
        return epoch, groups.assign(decision, group, plan)

    def _expect(self, decision: DecisionBuilder, group: ConsumerGroup, member: ConsumerGroupMember) -> None:
        """It has joined; now it has to fetch its assignment, and to be heard of."""
        timers, group_id, member_id = self._groups.timers, group.group_id, member.member_id
        assert member.classic is not None
        timers.cancel(decision, Wait.JOIN, group_id, member_id)
        timers.start(decision, Wait.SESSION, group_id, member_id, member.classic.session_timeout_ms)
        timers.start(decision, Wait.SYNC, group_id, member_id, member.rebalance_timeout_ms)

    @staticmethod
    def _joined(
        decision: DecisionBuilder,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        request: JoinGroupRequest,
    ) -> JoinGroupResponse:
        response = _join_response(member.member_id)
        response.generation_id = member.member_epoch
        response.protocol_type = PROTOCOL_TYPE
        response.protocol_name = request.protocols[0].name
        return response

    # ---- afterwards -----------------------------------------------------------------------------------------

    def sync(
        self, decision: DecisionBuilder, group: ConsumerGroup, request: SyncGroupRequest
    ) -> SyncGroupResponse:
        """A member fetches what it has by now."""
        member = self._current(group, request.member_id, request.group_instance_id, request.generation_id)
        assert member.classic is not None
        protocol = member.classic.supported_protocols[0]
        _require_protocol(request, protocol.name)
        behind = group.target_epoch.epoch > member.member_epoch
        if behind and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._groups.timers.start_join(decision, group.group_id, member)
            return SyncGroupResponse(error_code=int(ErrorCode.REBALANCE_IN_PROGRESS), assignment=b"")
        timers, group_id = self._groups.timers, group.group_id
        timers.cancel(decision, Wait.SYNC, group_id, member.member_id)
        timers.start(decision, Wait.SESSION, group_id, member.member_id, member.classic.session_timeout_ms)
        assignment = encode_assignment(
            member.assigned, self._groups.context.image, version_of(protocol.metadata)
        )
        return SyncGroupResponse(
            protocol_type=request.protocol_type, protocol_name=request.protocol_name, assignment=assignment
        )

    def heartbeat(
        self, decision: DecisionBuilder, group: ConsumerGroup, request: HeartbeatRequest
    ) -> HeartbeatResponse:
        """A member is alive; it learns whether it has to join again."""
        member = self._current(group, request.member_id, request.group_instance_id, request.generation_id)
        assert member.classic is not None
        self._groups.timers.start(
            decision, Wait.SESSION, group.group_id, member.member_id, member.classic.session_timeout_ms
        )
        if not self._must_rejoin(group, member):
            return _ALIVE
        self._groups.timers.start_join(decision, group.group_id, member)
        return _REJOIN

    @staticmethod
    def _must_rejoin(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
        """There is a new target, or something to give up, or all that it waited for is free."""
        if member.member_epoch < group.target_epoch.epoch:
            return True
        if member.state is MemberState.UNRELEASED_PARTITIONS:
            return not group.waits_for_others(member)
        return member.state is MemberState.UNREVOKED_PARTITIONS

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


def _updated_member(
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


# ---- what classic consumers say in their own protocol (Kafka's ConsumerProtocol) --------------------------------


def parse_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """KafkaError if it is something else; of a newer version the part that is known."""
    version = version_of(data, ConsumerProtocolSubscription)
    return decode(ConsumerProtocolSubscription, data, version, _VERSION.size)[0]


def parse_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """KafkaError if it is something else; of a newer version the part that is known."""
    version = version_of(data)
    return decode(ConsumerProtocolAssignment, data, version, _VERSION.size)[0]


def version_of(data: bytes, kind: type[Any] = ConsumerProtocolAssignment) -> int:
    """The version it is written in, or the newest that is known."""
    if len(data) < _VERSION.size:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a consumer's subscription or assignment has a version")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no version {version} of {kind.__name__}")
    newest: int = max(kind.VALID_VERSIONS)
    return min(version, newest)


def encode_assignment(partitions: Mapping[Uuid, Collection[int]], image: ClusterImage, version: int) -> bytes:
    """An assignment as a classic member reads it; topics that are gone are left out."""
    rows = []
    for topic_id, numbers in partitions.items():
        topic = image.topic_by_id(topic_id)
        if topic is not None:
            rows.append(TopicPartition(topic=topic.name, partitions=sorted(numbers)))
    message = ConsumerProtocolAssignment(assigned_partitions=rows, user_data=None)
    return _VERSION.pack(version) + encode(message, version)


def partitions_by_id(rows: Collection[TopicPartition], image: ClusterImage) -> Assignment:
    """Partitions by the ids of their topics; those of topics that are gone are left out."""
    found: dict[Uuid, Partitions] = {}
    for row in rows:
        topic = image.topic(row.topic)
        if topic is not None:
            found[topic.id] = Partitions(row.partitions)
    return found
