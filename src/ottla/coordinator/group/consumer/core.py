"""What all decisions about consumer groups share: finding groups and members, epochs, target assignments, steps.

Owner: the ConsumerManager of a shard.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from ottla.coordinator.group.assignors.api import Assignment, PartitionAssignor
from ottla.coordinator.group.consumer import records
from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.consumer.member import ConsumerGroupMember, MemberState
from ottla.coordinator.group.consumer.reconcile import Reconciliation
from ottla.coordinator.group.consumer.regexes import METADATA_REFRESH_INTERVAL_MS, RegularExpressions
from ottla.coordinator.group.consumer.subscriptions import subscription_type
from ottla.coordinator.group.consumer.target import TargetPlan, topic_ids
from ottla.coordinator.group.consumer.timers import Fence, MemberTimers
from ottla.coordinator.group.context import GroupContext
from ottla.coordinator.group.metadata_hash import TopicHashes
from ottla.coordinator.group.modern_member import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from ottla.coordinator.group.modern_settings import SettingsCache, settings_reader
from ottla.coordinator.group.modern_timers import Wait
from ottla.coordinator.group.modern_turn import Turn
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid

Owned = Mapping[Uuid, frozenset[int]]
MAX_SIZE: Final = "group.consumer.max.size"
_SETTINGS: Final = settings_reader(
    "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "consumer.assignment.interval.ms"
)


class ConsumerGroups:
    """See the module."""

    def __init__(self, context: GroupContext, fence: Fence) -> None:
        self.context = context
        self.hashes = TopicHashes()
        self.settings = SettingsCache(context, _SETTINGS)
        self.regexes = RegularExpressions(context, self.hashes)
        self.timers = MemberTimers(context, fence)

    @property
    def assignors(self) -> Mapping[str, PartitionAssignor]:
        """By name, the default first."""
        return self.context.assignors

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        """The consumer group; GROUP_ID_NOT_FOUND if there is none of that kind."""
        group = self.context.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no consumer group {group_id}.")
        return group

    # ---- who may come in ------------------------------------------------------------------------------------

    def require_room(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
        if instance_id is not None and instance_id in group.static_members:
            return  # it takes the place of the one before, or is refused for another reason
        most: int = self.context.config()[MAX_SIZE]
        if len(group.members) >= most and member_id not in group.members:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"The group has {most} members already.")

    def static_newcomer(
        self, turn: Turn, group: ConsumerGroup, member_id: str, instance_id: str, *, classic: bool
    ) -> ConsumerGroupMember:
        """A static member that joins: new, or in the place of the one before."""
        present = group.static_member(instance_id)
        if present is None:
            return group.members.get(member_id) or ConsumerGroupMember(member_id)
        if not classic and not present.uses_classic_protocol and present.member_epoch != STATIC_LEAVE_EPOCH:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Instance {instance_id} is member {present.member_id}, which has not left.",
            )
        newcomer = replace(present, member_id=member_id, member_epoch=JOIN_EPOCH, previous_member_epoch=0)
        group_id = group.group_id
        turn.records.extend(records.removed_member(group_id, present.member_id))
        turn.records.append(records.member_metadata(group_id, newcomer))
        turn.records.append(
            records.target_assignment(group_id, member_id, group.target_of(present.member_id))
        )
        turn.records.append(records.current_assignment(group_id, newcomer))
        return newcomer

    @staticmethod
    def known_instance(group: ConsumerGroup, member_id: str | None, instance_id: str) -> ConsumerGroupMember:
        """The member that this instance is; `member_id` is None if whoever asks need not know it."""
        member = group.static_member(instance_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Nobody is instance {instance_id}.")
        if member_id is not None and member.member_id != member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID, f"Instance {instance_id} is member {member.member_id} by now."
            )
        return member

    # ---- epochs ---------------------------------------------------------------------------------------------

    def note_member(
        self, turn: Turn, group: ConsumerGroup, member: ConsumerGroupMember, updated: ConsumerGroupMember
    ) -> bool:
        """Write what the member says of itself, if it is new; does it name other topics than before?"""
        if updated is member or updated == member:
            return False
        turn.records.append(records.member_metadata(group.group_id, updated))
        return updated.subscribed_topic_names != member.subscribed_topic_names

    def refresh(
        self,
        turn: Turn,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        bump: bool,
    ) -> int:
        """Look at the topics again: the group's epoch, which is a new one if they or the subscription have changed."""
        counts = group.subscriptions_with(member, updated)
        metadata_hash = self.hashes.group_hash(counts, self.context.image)
        epoch = group.epoch
        if bump or metadata_hash != group.metadata_hash:
            epoch += 1
            turn.records.append(records.group_epoch(group.group_id, epoch, metadata_hash))
        group.refresh_after(turn.now_ms + METADATA_REFRESH_INTERVAL_MS, epoch)
        if group.has_partition_metadata:
            turn.records.append(records.partition_metadata_tombstone(group.group_id))
        return epoch

    # ---- the target assignment ------------------------------------------------------------------------------

    def may_assign(self, group: ConsumerGroup, epoch: int, now_ms: int) -> bool:
        """Is a new target assignment due, and not too soon after the last (KIP-1263)?"""
        last = group.target_epoch
        if last.epoch >= epoch:
            return False
        interval_ms = self.settings[group.group_id].assignment_interval_ms
        return not last.timestamp_ms or not interval_ms or now_ms >= last.timestamp_ms + interval_ms

    def plan(
        self, group: ConsumerGroup, epoch: int, member: ConsumerGroupMember, updated: ConsumerGroupMember
    ) -> TargetPlan:
        """What is to be assigned once `updated` stands for `member`."""
        instance = updated.instance_id
        former = None if instance is None else group.static_members.get(instance)
        joins = updated.member_id not in group.members and former is None
        kind = subscription_type(
            group.regexes_with(member, updated),
            group.subscriptions_with(member, updated),
            len(group.members) + joins,
        )
        name = group.preferred_assignor(member, updated)
        assignor = self.assignors.get(name) if name is not None else None
        return TargetPlan(
            epoch=epoch,
            assignor=assignor or next(iter(self.assignors.values())),
            subscription_type=kind,
            members=dict(group.members.items()),
            target=dict(group.target.items()),
            resolved=dict(group.resolved_regexes.items()),
            image=self.context.image,
            joining=updated,
            replaced_id=former if former != updated.member_id else None,
        )

    def assign(self, turn: Turn, group: ConsumerGroup, plan: TargetPlan) -> Assignment:
        """Write the new target assignment; what of it is for the member that asked."""
        changes = plan.compute()
        group_id = group.group_id
        turn.records.extend(
            records.target_assignment(group_id, member_id, new) for member_id, new in changes.items()
        )
        turn.records.append(records.target_epoch(group_id, plan.epoch, turn.now_ms))
        mine = plan.joining
        unchanged = group.target_of(mine.member_id, mine.instance_id)
        return changes.get(mine.member_id, unchanged)

    # ---- the current assignment -----------------------------------------------------------------------------

    def reconcile(
        self,
        turn: Turn,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        target: tuple[int, Assignment],
        owned: Owned | None,
        *,
        subscription_changed: bool,
    ) -> ConsumerGroupMember:
        """A step of the member towards its target."""
        epoch, assignment = target
        if not subscription_changed and member.is_reconciled_to(epoch):
            return member
        updated = Reconciliation(
            target_epoch=epoch,
            target=assignment,
            subscribed_topic_ids=topic_ids(group.topics_of(member), self.context.image),
            subscription_changed=subscription_changed,
            is_owned=lambda topic_id, partition: group.owner(topic_id, partition) is not None,
            owned=owned,
        ).step(member)
        if updated == member:
            return member
        turn.records.append(records.current_assignment(group.group_id, updated))
        if not updated.uses_classic_protocol:
            if updated.state is MemberState.UNREVOKED_PARTITIONS:
                self.timers.start_rebalance(turn, group.group_id, updated)
            else:
                self.timers.cancel(turn, Wait.REBALANCE, group.group_id, updated.member_id)
        return updated
