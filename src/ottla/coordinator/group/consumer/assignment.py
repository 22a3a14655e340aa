"""Target and current assignments of consumer groups: Kafka's TargetAssignmentBuilder and CurrentAssignmentBuilder.

A TargetAssignmentBuilder is what the assignor is shown, and what its answer changes: a snapshot of immutable values,
which can be computed in a thread while requests for the group are answered. LargeAssignments does so for large groups,
and for assignors of somebody's own.

A CurrentAssignmentBuilder takes one step of a member towards its target assignment, without ever two members having
the same partition (KIP-848). A member first gives up what it shall not have and stays in its epoch until it says that
it has; then it goes to the target's epoch and gets what is free; what others still have it gets when they have given
it up. Pure: the member, what it shall have and what it says it has go in, the member after the step comes out.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ottla.coordinator.group.assignors.api import (
    NO_PARTITIONS,
    Assignment,
    GroupAssignment,
    GroupSpec,
    MemberSpec,
    PartitionAssignor,
    PartitionAssignorError,
    Partitions,
    SubscribedTopics,
    SubscriptionType,
)
from ottla.coordinator.group.assignors.loading import BUILT_IN
from ottla.coordinator.group.consumer import records
from ottla.coordinator.group.consumer.group import ConsumerGroup
from ottla.coordinator.group.consumer.member import (
    NOTHING,
    ConsumerGroupMember,
    EpochAssignment,
    MemberState,
)
from ottla.coordinator.group.consumer.regex import ResolvedRegularExpression
from ottla.coordinator.group.context import DecisionBuilder
from ottla.coordinator.group.modern.assignment import ModernLargeAssignments, Run, no_target
from ottla.coordinator.java_hash import members_in_order
from ottla.coordinator.shard import After, Answer, CoordinatorResult, StartTimer
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid

log = logging.getLogger("ottla.coordinator.consumer")

# Members and partitions up to which a built-in assignor takes no longer than about a millisecond.
INLINE_LIMIT: Final = 1_000


# Members whose new target is written in one decision: about a millisecond.
PORTION: Final = 50

_NONE: Final[frozenset[int]] = frozenset()

# Partitions by topic, as a request lists them.
OwnedPartitions = Iterable[tuple[Uuid, Iterable[int]]]


class ImageTopics(SubscribedTopics):
    """The topics of one image of the cluster."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    def name(self, topic_id: Uuid) -> str | None:
        topic = self._image.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def num_partitions(self, topic_id: Uuid) -> int:
        topic = self._image.topic_by_id(topic_id)
        return -1 if topic is None else len(topic.partitions)

    def racks(self, topic_id: Uuid, partition: int) -> frozenset[str]:
        topic = self._image.topic_by_id(topic_id)
        found = None if topic is None else topic.partitions.get(partition)
        brokers = () if found is None else (self._image.brokers.get(replica) for replica in found.replicas)
        return frozenset(b.rack for b in brokers if b is not None and b.rack is not None)


@dataclass(frozen=True, slots=True)
class TargetAssignmentBuilder:
    """A group as it will be, to be assigned. `joining` is the member whose request asks for it."""

    epoch: int
    assignor: PartitionAssignor
    subscription_type: SubscriptionType
    members: Mapping[str, ConsumerGroupMember]
    target: Mapping[str, Assignment]
    resolved: Mapping[str, ResolvedRegularExpression]
    image: ClusterImage
    joining: ConsumerGroupMember
    # A static member that `joining` stands for from now on.
    replaced_id: str | None

    @property
    def _is_built_in(self) -> bool:
        return type(self.assignor) in BUILT_IN.values()

    @property
    def is_large(self) -> bool:
        """Would it take the loop's time, or nobody knows how long?"""
        if not self._is_built_in:
            return True
        names = set(self.joining.subscribed_topic_names)
        for resolved in self.resolved.values():
            names |= resolved.topics
        topics = (self.image.topic(name) for name in names)
        size = len(self.members) + sum(len(topic.partitions) for topic in topics if topic is not None)
        size += sum(len(held) for assignment in self.target.values() for held in assignment.values())
        return size > INLINE_LIMIT

    def compute(self) -> dict[str, Assignment]:
        """The new assignment of each member that gets another than it had; UNKNOWN_SERVER_ERROR if there is none."""
        specs = self._specs()
        try:
            assigned = self._ask(GroupSpec(specs, self.subscription_type))
        except PartitionAssignorError as error:
            log.error(
                "assignor %s failed for epoch %d: %s", self.assignor.name, self.epoch, error, exc_info=error
            )
            raise no_target(self.epoch, error) from error
        changes: dict[str, Assignment] = {}
        for member_id in specs:
            new = {t: Partitions(p) for t, p in assigned.get(member_id, NO_PARTITIONS).items() if p}
            if self.target.get(member_id) != new:
                changes[member_id] = new
        return changes

    def _ask(self, spec: GroupSpec) -> GroupAssignment:
        topics = ImageTopics(self.image)
        try:
            assigned = self.assignor.assign(spec, topics)
            if not self._is_built_in:
                _check(assigned, spec, topics)
        except PartitionAssignorError:
            raise
        except Exception as error:  # whatever an operator's own code throws concerns this group alone
            raise PartitionAssignorError(f"{type(error).__name__}: {error}") from error
        return assigned

    def _specs(self) -> dict[str, MemberSpec]:
        order = members_in_order(list(self.members), self.joining.member_id)
        ids: dict[tuple[frozenset[str], str | None], frozenset[Uuid]] = {}
        return {member_id: self._spec(member_id, ids) for member_id in order if member_id != self.replaced_id}

    def _spec(
        self, member_id: str, ids: dict[tuple[frozenset[str], str | None], frozenset[Uuid]]
    ) -> MemberSpec:
        joins = member_id == self.joining.member_id
        member = self.joining if joins else self.members[member_id]
        subscription = member.subscribed_topic_names, member.regex
        if subscription not in ids:
            ids[subscription] = self._topic_ids(*subscription)
        had = self.replaced_id if joins and self.replaced_id is not None else member_id
        return MemberSpec(
            ids[subscription], self.target.get(had, NO_PARTITIONS), member.instance_id, member.rack_id
        )

    def _topic_ids(self, names: frozenset[str], regex: str | None) -> frozenset[Uuid]:
        resolved = None if regex is None else self.resolved.get(regex)
        if resolved is not None:
            names |= resolved.topics
        return topic_ids(names, self.image)


def topic_ids(names: frozenset[str], image: ClusterImage) -> frozenset[Uuid]:
    """The ids of those topics that exist."""
    found = (image.topic(name) for name in names)
    return frozenset(topic.id for topic in found if topic is not None)


def _check(assigned: GroupAssignment, spec: GroupSpec, topics: SubscribedTopics) -> None:
    """An assignor of somebody's own is not believed: no partition twice, none that does not exist."""
    taken: set[tuple[Uuid, int]] = set()
    for member_id, partitions in assigned.items():
        if member_id not in spec.members:
            raise PartitionAssignorError(f"{member_id} is no member of the group")
        for topic_id, numbers in partitions.items():
            count = topics.num_partitions(topic_id)
            for number in numbers:
                if not 0 <= number < count:
                    raise PartitionAssignorError(f"{topics.name(topic_id)} has no partition {number}")
                if (topic_id, number) in taken:
                    raise PartitionAssignorError(f"{topics.name(topic_id)}-{number} was assigned twice")
                taken.add((topic_id, number))


Finish = Callable[[DecisionBuilder, ConsumerGroup, ConsumerGroupMember, tuple[int, Assignment]], Any]
_Run = Run[TargetAssignmentBuilder, Finish, Assignment]


class LargeAssignments(ModernLargeAssignments[TargetAssignmentBuilder, Finish, Assignment]):
    """Target assignments that are made in a thread."""

    def mark_stale(self, group_id: str, member_id: str) -> None:
        """A member says something new. If an older request of its own is parked, it has given that up."""
        run = self._running.get(group_id)
        if run is not None and run.plan.joining.member_id == member_id:
            run.is_stale = True

    def _write(self, run: _Run, now_ms: int) -> CoordinatorResult[None]:
        group = self._context.groups.get(run.group_id)
        if not isinstance(group, ConsumerGroup) or group.epoch < run.plan.epoch:  # or is another by now
            self._fail(run, KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {run.group_id} is gone."))
            return CoordinatorResult(None)
        decision = DecisionBuilder(now_ms)
        decision.failures.append(lambda error: self._fail(run, error))
        mine = run.changes.get(run.plan.joining.member_id)
        for member_id, new in run.portion(PORTION, group.members):
            decision.records.append(records.target_assignment(run.group_id, member_id, new))
        if run.changes:
            key = "consumer", "assign", run.group_id
            decision.effects.append(StartTimer(key, 0, lambda now_ms: self._go_on(run, now_ms)))
        else:
            self._end(decision, run, group, mine)
        return decision.result(None)

    def _end(
        self, decision: DecisionBuilder, run: _Run, group: ConsumerGroup, mine: Assignment | None
    ) -> None:
        """The new target counts; who asked for it takes its step."""
        del self._running[run.group_id]
        epoch = run.plan.epoch
        decision.records.append(records.target_epoch(run.group_id, epoch, decision.now_ms))
        if run.is_stale:
            given_up = KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, "The member has sent another heartbeat since."
            )
            decision.effects.append(After(lambda: run.parked.fail(given_up)))
            return
        member_id = run.plan.joining.member_id
        target = group.target_of(member_id) if mine is None else mine
        try:
            response = run.finish(decision, group, group.member(member_id), (epoch, target))
        except KafkaError as error:
            fenced = error  # or it has left: the assignment is the others' all the same
            decision.effects.append(After(lambda: run.parked.fail(fenced)))
        else:
            decision.effects.append(Answer(run.parked, response))


@dataclass(frozen=True, slots=True)
class CurrentAssignmentBuilder:
    """What a step depends on beside the member."""

    target_epoch: int
    target: Assignment
    # The topics that the member subscribes to and that exist.
    subscribed_topic_ids: frozenset[Uuid]
    subscription_changed: bool
    # Does any member have this partition now?
    is_owned: Callable[[Uuid, int], bool]
    # What the member says it has; None if it did not say.
    owned: Mapping[Uuid, frozenset[int]] | None

    def step(self, member: ConsumerGroupMember) -> ConsumerGroupMember:
        """The member after this step; the very same if there is nothing to do."""
        if member.state is MemberState.STABLE:
            if member.member_epoch != self.target_epoch:
                return self._next(member)
            return self._drop_unsubscribed(member) if self.subscription_changed else member
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            if not self._still_owns(member.pending_revocation):
                return self._next(member)
            return self._drop_unsubscribed(member) if self.subscription_changed else member
        if member.state is MemberState.UNKNOWN and (self.owned is None or self.owned):
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The member is in a state that this coordinator does not know: it must give up everything and rejoin.",
            )
        return self._next(member)

    def _still_owns(self, partitions: EpochAssignment) -> bool:
        """Has the member any of these? It has, unless it says what it has."""
        if self.owned is None:
            return True
        return any(not mine.isdisjoint(partitions.get(topic_id, ())) for topic_id, mine in self.owned.items())

    def _next(self, member: ConsumerGroupMember) -> ConsumerGroupMember:
        """Towards the target: revoke, else assign what is free."""
        kept, revoked = self._split(member.assigned)
        if revoked and self._still_owns(revoked):
            return member.moved_to(member.member_epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoked)
        assigned, complete = self._with_free(member, kept)
        state = MemberState.STABLE if complete else MemberState.UNRELEASED_PARTITIONS
        return member.moved_to(self.target_epoch, state, assigned)

    def _wanted(self, topic_id: Uuid) -> frozenset[int]:
        """What the member shall have of a topic; nothing of one that it does not subscribe to any more."""
        if topic_id not in self.subscribed_topic_ids:
            return _NONE
        return self.target.get(topic_id, _NONE)

    def _split(self, assigned: EpochAssignment) -> tuple[EpochAssignment, EpochAssignment]:
        """What the member keeps, and what it must give up."""
        kept: dict[Uuid, Mapping[int, int]] = {}
        revoked: dict[Uuid, Mapping[int, int]] = {}
        for topic_id, partitions in assigned.items():
            wanted = self._wanted(topic_id)
            if partitions.keys() <= wanted:
                kept[topic_id] = partitions
                continue
            revoked[topic_id] = {p: epoch for p, epoch in partitions.items() if p not in wanted}
            left = {p: epoch for p, epoch in partitions.items() if p in wanted}
            if left:
                kept[topic_id] = left
        return kept, revoked

    def _with_free(self, member: ConsumerGroupMember, kept: EpochAssignment) -> tuple[EpochAssignment, bool]:
        """What the member keeps and what of its target nobody has; and whether that is all of its target."""
        assigned = dict(kept)
        complete = True
        for topic_id in self.target:
            mine = kept.get(topic_id, {})
            lacking = [p for p in self._wanted(topic_id) if p not in mine]
            # What the member itself is about to give up is as good as free.
            own = member.pending_revocation.get(topic_id, {})
            free = [p for p in lacking if p in own or not self.is_owned(topic_id, p)]
            complete = complete and len(free) == len(lacking)
            if free:
                assigned[topic_id] = {**mine, **dict.fromkeys(free, self.target_epoch)}
        return assigned, complete

    def _drop_unsubscribed(self, member: ConsumerGroupMember) -> ConsumerGroupMember:
        """The subscription has changed but the target is not made anew yet: give up other topics at once."""
        dropped = {t: p for t, p in member.assigned.items() if t not in self.subscribed_topic_ids}
        if not dropped:
            return member
        kept = {t: p for t, p in member.assigned.items() if t in self.subscribed_topic_ids}
        pending = dict(member.pending_revocation)
        for topic_id, partitions in dropped.items():
            pending[topic_id] = {**pending.get(topic_id, {}), **partitions}
        if self._still_owns(pending):
            return member.moved_to(member.member_epoch, MemberState.UNREVOKED_PARTITIONS, kept, pending)
        return replace(member, previous_member_epoch=member.member_epoch, assigned=kept)


def reset_epochs(assigned: EpochAssignment) -> EpochAssignment:
    """As if everything had been assigned in the very first epoch: for a static member that comes back anew."""
    return {t: dict.fromkeys(partitions, 0) for t, partitions in assigned.items()} if assigned else NOTHING


def owned_of(listed: OwnedPartitions | None) -> dict[Uuid, frozenset[int]] | None:
    """What a request lists, by topic."""
    if listed is None:
        return None
    owned: dict[Uuid, set[int]] = {}
    for topic_id, partitions in listed:
        owned.setdefault(topic_id, set()).update(partitions)
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}
