"""Between the protocols while a group lives: a classic group becomes a consumer group when the first member of the new
protocol joins it, and a classic group again when the last one has left (KIP-848, group.consumer.migration.policy).

Nobody loses its partitions by it: what the members were assigned stays assigned, and who speaks the classic protocol
is told to join again.

Owner: the ConsumerManager of a shard.
"""

import logging
from collections.abc import Iterable
from typing import Final

from ottla.coordinator.group.assignors.api import NO_PARTITIONS, Assignment, Partitions
from ottla.coordinator.group.assignors.java_order import timeline_order
from ottla.coordinator.group.classic.group import ClassicGroup
from ottla.coordinator.group.classic.manager import ClassicManager
from ottla.coordinator.group.classic.member import NO_ASSIGNMENT, Member
from ottla.coordinator.group.classic.state import STABLE
from ottla.coordinator.group.consumer import records
from ottla.coordinator.group.consumer.core import ConsumerGroups
from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.consumer.member import ConsumerGroupMember
from ottla.coordinator.group.consumer.protocol import (
    encode_assignment,
    parse_assignment,
    parse_subscription,
    partitions_by_id,
    version_of,
)
from ottla.coordinator.group.modern_group import TargetEpoch
from ottla.coordinator.group.modern_timers import Wait
from ottla.coordinator.group.modern_turn import Turn
from ottla.coordinator.result import CoordinatorRecord
from ottla.coordinator.timeline import Timeline
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from ottla.wire.messages.offsets_log import ClassicMemberMetadata, ClassicProtocol

log = logging.getLogger("ottla.coordinator.consumer")

POLICY: Final = "group.consumer.migration.policy"
# Of topics that are yet to be looked at. The rebalance that an upgrade cuts short is due still: with this the group has
# a new epoch and a new target at once, even if nothing but the protocol of a static member has changed.
UNKNOWN_HASH: Final = 0
UPGRADES: Final = ("bidirectional", "upgrade")
DOWNGRADES: Final = ("bidirectional", "downgrade")


class Conversions:
    """See the module."""

    def __init__(self, groups: ConsumerGroups, classic: ClassicManager) -> None:
        self._groups = groups
        self._classic = classic

    @property
    def _policy(self) -> str:
        return str(self._groups.context.config()[POLICY]).lower()

    # ---- to a consumer group --------------------------------------------------------------------------------

    def group_to_join(self, turn: Turn, group_id: str) -> ConsumerGroup:
        """The consumer group that a member of the new protocol joins; made now if there is none."""
        present = self._groups.context.groups.get(group_id)
        if isinstance(present, ConsumerGroup):
            return present
        if present is None:
            return _scratch(group_id)
        if not isinstance(present, ClassicGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        if present.is_empty():
            turn.records.extend(present.tombstones())
            return _scratch(group_id)
        self._require_upgrade(present)
        return self._upgrade(turn, present)

    def _require_upgrade(self, group: ClassicGroup) -> None:
        most: int = self._groups.context.config()["group.consumer.max.size"]
        if self._policy not in UPGRADES:
            raise _no_upgrade(group, f"{POLICY} does not allow it")
        if not group.uses_consumer_protocol:
            raise _no_upgrade(group, "its members are not consumers")
        if len(group.members) > most:
            raise _no_upgrade(group, "it has more members than a consumer group may have")

    def _upgrade(self, turn: Turn, classic: ClassicGroup) -> ConsumerGroup:
        turn.records.extend(classic.tombstones())
        group = _scratch(classic.group_id)
        group.set_target_epoch(TargetEpoch(classic.generation_id, 0))
        try:
            assigned = {m.member_id: self._assigned(m) for m in classic.members.values()}
            taken = {(t, p) for found in assigned.values() for t, numbers in found.items() for p in numbers}
            for member in classic.members.values():
                self._take_over(group, classic, member, assigned[member.member_id], taken)
        except KafkaError as error:
            raise _no_upgrade(classic, str(error)) from error
        metadata_hash = UNKNOWN_HASH
        if classic.state is STABLE:
            metadata_hash = self._groups.hashes.group_hash(group.subscriptions, self._groups.context.image)
        group.set_epoch(classic.generation_id, metadata_hash)
        turn.records.extend(_records(group))
        # Who waits to join or for its assignment learns that there is another rebalance.
        turn.effects.extend(self._classic.give_up(classic, turn.now_ms))
        for taken in group.members.values():
            assert taken.classic is not None
            self._groups.timers.start(
                turn, Wait.SESSION, group.group_id, taken.member_id, taken.classic.session_timeout_ms
            )
        log.info("group %s becomes a consumer group", group.group_id)
        return group

    def _take_over(
        self,
        group: ConsumerGroup,
        classic: ClassicGroup,
        member: Member,
        assigned: Assignment,
        taken: set[tuple[Uuid, int]],
    ) -> None:
        """A classic member, with the partitions it has."""
        # Before its first generation a group has not agreed on a protocol yet.
        protocol = classic.protocol_name or classic.choose_protocol()
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

    def downgrade(self, turn: Turn, group: ConsumerGroup, leaving: list[ConsumerGroupMember]) -> None:
        """The last members of the new protocol go: the others rebalance as a classic group."""
        gone = {member.member_id for member in leaving}
        turn.records.extend(group.tombstones())
        stay = [group.members[m] for m in timeline_order(list(group.members)) if m not in gone]
        self._become_classic(turn, group, stay, {}, "the last member of the new protocol has left")

    def downgrade_by_replacing(
        self,
        turn: Turn,
        group: ConsumerGroup,
        replaced: ConsumerGroupMember,
        joining: ConsumerGroupMember,
        rebalance: bool,
    ) -> None:
        """A classic static member takes the place of the last member of the new protocol."""
        turn.records.extend(group.tombstones_with({replaced.member_id: joining.member_id}))
        order = timeline_order(list(group.members))
        stay = [group.members[member_id] for member_id in order if member_id != replaced.member_id]
        reason = "the last member of the new protocol was replaced" if rebalance else None
        self._become_classic(turn, group, [*stay, joining], {joining.member_id: replaced.member_id}, reason)

    def _become_classic(
        self,
        turn: Turn,
        group: ConsumerGroup,
        members: Iterable[ConsumerGroupMember],
        replaced: dict[str, str],
        reason: str | None,
    ) -> None:
        """The group as a classic one, stable; it rebalances if there is a reason to."""
        rows = [_classic_member(member) for member in members]
        classic = self._classic.new_from_members(group.group_id, group.epoch, rows, turn.now_ms)
        for row in rows:
            target = group.target_of(replaced.get(row.member_id, row.member_id))
            version = version_of(row.metadata[classic.protocol_name or ""])
            row.assignment = encode_assignment(target, self._groups.context.image, version)
        made, effects = self._classic.adopt(classic, turn.now_ms, reason)
        turn.records.extend(made)
        turn.effects.extend(effects)
        log.info("group %s becomes a classic group", group.group_id)


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


def _scratch(group_id: str) -> ConsumerGroup:
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
