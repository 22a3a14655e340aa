"""What all decisions about consumer groups have in common: finding members, epochs, target assignments, steps.

Also the resolving of regular expressions, the members' timers, and replay.

Owner: the ConsumerGroupManager of a shard.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, Final

from ottla.coordinator.group.assignors.api import Assignment, PartitionAssignor, Partitions
from ottla.coordinator.group.consumer import records
from ottla.coordinator.group.consumer.assignment import (
    CurrentAssignmentBuilder,
    TargetAssignmentBuilder,
    topic_ids,
)
from ottla.coordinator.group.consumer.group import (
    ConsumerGroup,
    SubscriptionCount,
    count_regex,
    subscription_type,
)
from ottla.coordinator.group.consumer.member import ConsumerGroupMember, MemberState
from ottla.coordinator.group.consumer.regex import ResolvedRegularExpression, require_valid, resolve
from ottla.coordinator.group.context import Caller, DecisionBuilder, FollowUp, GroupContext, Replay
from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.modern.group import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from ottla.coordinator.group.modern.groups import (
    GroupsByTopic,
    GroupsOfKind,
    MemberKey,
    ModernReplay,
    ModernTimers,
    Wait,
)
from ottla.coordinator.group.modern.heartbeat import SettingsCache, settings_reader
from ottla.coordinator.group.modern.metadata_hash import TopicHashes
from ottla.coordinator.shard import After, CoordinatorResult, StartTimer
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.wire.messages.logs import offsets as log

Owned = Mapping[Uuid, frozenset[int]]
Resolved = Mapping[str, frozenset[str]]
Fence = Callable[[ConsumerGroup, ConsumerGroupMember, int], CoordinatorResult[Any]]

MAX_SIZE: Final = "group.consumer.max.size"
_SETTINGS: Final = settings_reader(
    "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "consumer.assignment.interval.ms"
)
MIN_REFRESH_INTERVAL_MS: Final = 10_000
# Kafka has an internal setting for it, which nobody is meant to change.
REFRESH_INTERVAL_MS: Final = 600_000
# A group looks at its topics again when one of them changes, and after this time.
METADATA_REFRESH_INTERVAL_MS: Final = 2**31 - 1

_WHY: Final = {
    Wait.SESSION: "it was not heard of for the time of its session",
    Wait.REBALANCE: "it did not give up its partitions in time",
    Wait.JOIN: "it did not join again in time",
    Wait.SYNC: "it did not fetch its assignment in time",
}


class ConsumerGroups:
    """The consumer groups of a shard, and what is decided about them."""

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
        self,
        decision: DecisionBuilder,
        group: ConsumerGroup,
        member_id: str,
        instance_id: str,
        *,
        classic: bool,
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
        decision.records.extend(records.removed_member(group_id, present.member_id))
        decision.records.append(records.member_metadata(group_id, newcomer))
        decision.records.append(
            records.target_assignment(group_id, member_id, group.target_of(present.member_id))
        )
        decision.records.append(records.current_assignment(group_id, newcomer))
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
        self,
        decision: DecisionBuilder,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
    ) -> bool:
        """Write what the member says of itself, if it is new; does it name other topics than before?"""
        if updated is member or updated == member:
            return False
        decision.records.append(records.member_metadata(group.group_id, updated))
        return updated.subscribed_topic_names != member.subscribed_topic_names

    def refresh(
        self,
        decision: DecisionBuilder,
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
            decision.records.append(records.group_epoch(group.group_id, epoch, metadata_hash))
        group.refresh_after(decision.now_ms + METADATA_REFRESH_INTERVAL_MS, epoch)
        if group.has_partition_metadata:
            decision.records.append(records.partition_metadata_tombstone(group.group_id))
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
    ) -> TargetAssignmentBuilder:
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
        return TargetAssignmentBuilder(
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

    def assign(
        self, decision: DecisionBuilder, group: ConsumerGroup, plan: TargetAssignmentBuilder
    ) -> Assignment:
        """Write the new target assignment; what of it is for the member that asked."""
        changes = plan.compute()
        group_id = group.group_id
        decision.records.extend(
            records.target_assignment(group_id, member_id, new) for member_id, new in changes.items()
        )
        decision.records.append(records.target_epoch(group_id, plan.epoch, decision.now_ms))
        mine = plan.joining
        unchanged = group.target_of(mine.member_id, mine.instance_id)
        return changes.get(mine.member_id, unchanged)

    # ---- the current assignment -----------------------------------------------------------------------------

    def reconcile(
        self,
        decision: DecisionBuilder,
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
        updated = CurrentAssignmentBuilder(
            target_epoch=epoch,
            target=assignment,
            subscribed_topic_ids=topic_ids(group.topics_of(member), self.context.image),
            subscription_changed=subscription_changed,
            is_owned=lambda topic_id, partition: group.owner(topic_id, partition) is not None,
            owned=owned,
        ).step(member)
        if updated == member:
            return member
        decision.records.append(records.current_assignment(group.group_id, updated))
        if not updated.uses_classic_protocol:
            if updated.state is MemberState.UNREVOKED_PARTITIONS:
                self.timers.start_rebalance(decision, group.group_id, updated)
            else:
                self.timers.cancel(decision, Wait.REBALANCE, group.group_id, updated.member_id)
        return updated


class RegexChange(Enum):
    """What a member's request does to the expressions of its group."""

    NONE = "none"
    UPDATED = "updated"
    # The topics of the member's new subscription are known already.
    UPDATED_AND_RESOLVED = "updated and resolved"


class RegularExpressions:
    """When the regular expressions of a group are resolved, and what comes of it.

    All of a group's expressions are resolved together, so that they cause one rebalance and not one each. It happens
    when a member brings a new one, when topics were created since, and every so often anyway; not more often than every
    ten seconds. They match the topics that the member may describe whose heartbeat it happens with.
    """

    def __init__(self, context: GroupContext, hashes: TopicHashes) -> None:
        self._context = context
        self._hashes = hashes
        # Soft: groups whose expressions are being resolved.
        self._resolving: set[str] = set()
        # The last image of the cluster that had new topics; before the first one is known, none.
        self._new_topics_version = -1

    def topics_created(self, version: int) -> None:
        self._new_topics_version = version

    def seen(self, version: int) -> None:
        """The first image that this shard knows."""
        if self._new_topics_version < 0:
            self._new_topics_version = version

    def unloaded(self) -> None:
        """This broker coordinates the groups no more: what is being resolved is dropped."""
        self._resolving.clear()

    def update(
        self,
        decision: DecisionBuilder,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        caller: Caller,
    ) -> RegexChange:
        """Note what the member's expression has become, and resolve the group's anew if that is due."""
        new = updated.regex
        brought = False
        change = RegexChange.NONE
        if (member.subscribed_topic_regex or "") != (updated.subscribed_topic_regex or ""):
            brought = new is not None and not group.subscribed_regexes.get(new)
            if brought and new is not None:
                require_valid(new)
            change = self._change(decision, group, member.regex, new)
        if brought or len(group.subscribed_regexes):
            self._maybe_resolve(decision, group, member, updated, brought, caller)
        return change

    def _change(
        self, decision: DecisionBuilder, group: ConsumerGroup, old: str | None, new: str | None
    ) -> RegexChange:
        if old is not None and group.subscribed_regexes.get(old) == 1:
            decision.records.append(records.regular_expression_tombstone(group.group_id, old))
        known = old is not None if new is None else new in group.resolved_regexes
        if known and (new is None or group.subscribed_regexes.get(new)):
            return RegexChange.UPDATED_AND_RESOLVED
        return RegexChange.UPDATED

    def _maybe_resolve(
        self,
        decision: DecisionBuilder,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        updated: ConsumerGroupMember,
        brought: bool,
        caller: Caller,
    ) -> None:
        if group.group_id in self._resolving:
            return
        last = next(iter(group.resolved_regexes.values()), None)
        if last is not None and decision.now_ms <= last.timestamp_ms + MIN_REFRESH_INTERVAL_MS:
            return
        wanted = group.regexes_with(member, updated)
        due = (
            brought
            or len(wanted) != len(group.resolved_regexes)
            or (0 if last is None else last.version) < self._new_topics_version
            or last is None
            or decision.now_ms > last.timestamp_ms + REFRESH_INTERVAL_MS
        )
        if due and wanted:
            self._resolve(decision, group.group_id, sorted(wanted), caller)

    def _resolve(self, decision: DecisionBuilder, group_id: str, regexes: list[str], caller: Caller) -> None:
        image, started_ms = self._context.image, decision.now_ms
        work = resolve(regexes, list(image.topics), caller.may_describe)
        self._resolving.add(group_id)

        def then(found: Resolved, now_ms: int) -> CoordinatorResult[None]:
            return self._resolved(group_id, found, image.offset, started_ms, now_ms)

        background = self._context.background

        def failed(error: KafkaError) -> None:
            self._resolving.discard(group_id)

        decision.failures.append(failed)
        if background is not None:
            follow_up = FollowUp(group_id, then, failed)
            decision.effects.append(After(lambda: background.in_slices(work, follow_up)))
            return
        everything = {}
        for found in work:
            everything = found or {}
        decision.effects.append(
            StartTimer(("consumer", "regex", group_id), 0, lambda now_ms: then(everything, now_ms))
        )

    def _resolved(
        self, group_id: str, found: Resolved, version: int, timestamp_ms: int, now_ms: int
    ) -> CoordinatorResult[None]:
        """Write what was found; the group is assigned anew if that changes what it subscribes to."""
        decision = DecisionBuilder(now_ms)
        if group_id not in self._resolving:
            return decision.result(
                None
            )  # the shard was closed meanwhile: what it knows is not the log any more
        self._resolving.discard(group_id)
        group = self._context.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return decision.result(None)
        counts = dict(group.subscriptions.items())
        bump = False
        for regex, topics in found.items():
            if not group.subscribed_regexes.get(regex):
                continue  # nobody subscribes to it any more
            old = group.resolved_regexes.get(regex)
            bump = _recount(counts, old, topics) or bump
            decision.records.append(
                records.regular_expression(group_id, regex, topics, version, timestamp_ms)
            )
        metadata_hash = self._hashes.group_hash(counts, self._context.image)
        if bump or metadata_hash != group.metadata_hash:
            epoch = group.epoch + 1
            decision.records.append(records.group_epoch(group_id, epoch, metadata_hash))
            group.refresh_after(now_ms + METADATA_REFRESH_INTERVAL_MS, epoch)
        return decision.result(None)

    def remove_unused(
        self, decision: DecisionBuilder, group: ConsumerGroup, leaving: list[ConsumerGroupMember]
    ) -> list[str]:
        """Forget the expressions that only these members subscribe to."""
        counts: dict[str, int] = {}
        for member in leaving:
            if member.regex is not None:
                counts[member.regex] = counts.get(member.regex, 0) + 1
        unused = [r for r, count in counts.items() if group.subscribed_regexes.get(r) == count]
        decision.records.extend(
            records.regular_expression_tombstone(group.group_id, regex) for regex in unused
        )
        return unused


def _recount(
    counts: dict[str, SubscriptionCount], old: ResolvedRegularExpression | None, new: frozenset[str]
) -> bool:
    """Does the expression stand for other topics than before?"""
    before = frozenset() if old is None else old.topics
    count_regex(counts, before - new, -1)
    count_regex(counts, new - before, 1)
    return before != new


class MemberTimers(ModernTimers[ConsumerGroup]):
    """The members' timers.

    Members of the classic protocol have as long as their rebalance timeout to join again when they are asked to, and
    then to fetch their assignment.
    """

    def __init__(self, context: GroupContext, fence: Fence) -> None:
        super().__init__(GroupsOfKind(context, ConsumerGroup), GroupType.CONSUMER, _WHY, fence)
        # Classic members that were asked to join again and have not yet.
        self._joining: set[tuple[str, str]] = set()

    def start_join(self, decision: DecisionBuilder, group_id: str, member: ConsumerGroupMember) -> None:
        """Unless it runs already: a member that is asked again does not get more time."""
        if (group_id, member.member_id) not in self._joining:
            self._joining.add((group_id, member.member_id))
            self.start(decision, Wait.JOIN, group_id, member.member_id, member.rebalance_timeout_ms)

    def cancel(self, decision: DecisionBuilder, wait: Wait, group_id: str, member_id: str) -> None:
        if wait is Wait.JOIN:
            self._joining.discard((group_id, member_id))
        super().cancel(decision, wait, group_id, member_id)

    def _expired(
        self, wait: Wait, group_id: str, member_id: str, epoch: int | None, now_ms: int
    ) -> CoordinatorResult[Any]:
        if wait is Wait.JOIN:
            self._joining.discard((group_id, member_id))
        return super()._expired(wait, group_id, member_id, epoch, now_ms)


class ConsumerReplay(ModernReplay[ConsumerGroup]):
    """What the records of a consumer group mean: the only way that its state changes."""

    def __init__(self, context: GroupContext) -> None:
        super().__init__(context, ConsumerGroup, ConsumerGroupMember, _target_of)
        self._context = context
        self._by_topic = GroupsByTopic()

    def replays(self) -> Mapping[type[Any], Replay]:
        return {
            log.ConsumerGroupMetadataKey: self._group,
            log.ConsumerGroupPartitionMetadataKey: self._partition_metadata,
            log.ConsumerGroupMemberMetadataKey: self._member,
            log.ConsumerGroupTargetAssignmentMetadataKey: self._target_epoch,
            log.ConsumerGroupTargetAssignmentMemberKey: self._target,
            log.ConsumerGroupCurrentMemberAssignmentKey: self._assignment,
            log.ConsumerGroupRegularExpressionKey: self._regex,
        }

    def groups_subscribed_to(self, topics: Iterable[str]) -> Iterator[str]:
        """Those that subscribe to any of these topics."""
        return self._by_topic.affected_by(topics, self._is_subscribed)

    def _is_subscribed(self, group_id: str, topic: str) -> bool:
        group = self._context.groups.get(group_id)
        return group is not None and group.is_subscribed_to(topic)

    # ---- what only consumer groups have ---------------------------------------------------------------------

    def _partition_metadata(
        self,
        key: log.ConsumerGroupPartitionMetadataKey,
        value: log.ConsumerGroupPartitionMetadataValue | None,
    ) -> None:
        group = self._groups.get(key.group_id) if value is None else self._groups.get_or_create(key.group_id)
        if group is not None and group.has_partition_metadata != (value is not None):
            group.set_has_partition_metadata(value is not None)

    def _member(self, key: MemberKey, value: log.ConsumerGroupMemberMetadataValue | None) -> None:
        super()._member(key, value)
        if value is not None:
            self._by_topic.note(key.group_id, value.subscribed_topic_names)

    def _regex(
        self,
        key: log.ConsumerGroupRegularExpressionKey,
        value: log.ConsumerGroupRegularExpressionValue | None,
    ) -> None:
        if value is None:
            group = self._groups.get(key.group_id)
            if group is not None:
                group.remove_regex(key.regular_expression)
            return
        topics = frozenset(value.topics)
        resolved = ResolvedRegularExpression(topics, value.version, value.timestamp)
        self._groups.get_or_create(key.group_id).put_regex(key.regular_expression, resolved)
        self._by_topic.note(key.group_id, topics)


def _target_of(value: log.ConsumerGroupTargetAssignmentMemberValue) -> Assignment:
    return {row.topic_id: Partitions(row.partitions) for row in value.topic_partitions}
