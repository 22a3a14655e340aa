"""The target assignment of a group: what the assignor is shown, and what its answer changes.

A TargetPlan is a snapshot of immutable values: it can be computed in a thread while the group goes on living.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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
from ottla.coordinator.group.assignors.java_order import members_in_order
from ottla.coordinator.group.assignors.loading import BUILT_IN
from ottla.coordinator.group.consumer.member import ConsumerGroupMember
from ottla.coordinator.group.consumer.regex import ResolvedRegularExpression
from ottla.coordinator.group.modern_large import no_target
from ottla.metadata.image import ClusterImage
from ottla.model.ids import Uuid

log = logging.getLogger("ottla.coordinator.consumer")

# Members and partitions up to which a built-in assignor takes no longer than about a millisecond.
INLINE_LIMIT: Final = 1_000


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
class TargetPlan:
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
