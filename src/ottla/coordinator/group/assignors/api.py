"""What an assignor is given and what it gives back: the interface of the built-in assignors and of your own (KIP-848).

An assignor looks at the members of one group (what they subscribe to, what the last target assignment gave them)
and says which member shall have which partitions. It is asked anew whenever members, subscriptions or topics
change; how partitions move from one member to another without two ever reading the same one is not its business.

Rules: an assignor keeps no state between calls and changes nothing it is given. `assign` runs in a thread, not on
the broker's loop: it may take its time, and several groups may be assigned at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

from ottla.model.ids import Uuid


class Partitions(frozenset[int]):
    """A set of partitions that remembers the order it was made in, which is the order in the log."""

    order: tuple[int, ...]

    def __new__(cls, order: Iterable[int]) -> "Partitions":
        numbers = tuple(order)
        made = super().__new__(cls, numbers)
        made.order = numbers
        return made


def order_of(partitions: frozenset[int]) -> Sequence[int]:
    """The order that they are known in; ascending if none is."""
    return partitions.order if isinstance(partitions, Partitions) else sorted(partitions)


# Partitions by topic id. Whoever is given one does not change it.
Assignment = Mapping[Uuid, frozenset[int]]
# What an assignor returns: for each member that shall have any, the partitions by topic id.
GroupAssignment = Mapping[str, Mapping[Uuid, Collection[int]]]

NO_PARTITIONS: Final[Assignment] = MappingProxyType({})


class PartitionAssignorError(Exception):
    """The assignor cannot assign; the group keeps the target assignment it has."""


class SubscriptionType(StrEnum):
    """Do all members subscribe to the same topics?"""

    HOMOGENEOUS = "Homogeneous"
    HETEROGENEOUS = "Heterogeneous"


class MemberSpec(NamedTuple):
    """One member, as an assignor sees it."""

    # Topics that exist and that the member subscribes to, by name or by regular expression.
    subscribed_topic_ids: frozenset[Uuid]
    # What the last target assignment gave it.
    assignment: Assignment = NO_PARTITIONS
    instance_id: str | None = None
    rack_id: str | None = None


class GroupSpec(NamedTuple):
    """The group to be assigned: its members by member id."""

    members: Mapping[str, MemberSpec]
    subscription_type: SubscriptionType

    def assigned_partitions(self) -> set[tuple[Uuid, int]]:
        """What the last target assignment gave to any member that is still there."""
        return {
            (topic_id, partition)
            for member in self.members.values()
            for topic_id, partitions in member.assignment.items()
            for partition in partitions
        }


class SubscribedTopics(ABC):
    """The cluster's topics, as far as an assignor may ask about them."""

    @abstractmethod
    def name(self, topic_id: Uuid) -> str | None:
        """The topic's name; None if there is no such topic."""

    @abstractmethod
    def num_partitions(self, topic_id: Uuid) -> int:
        """How many partitions it has; -1 if there is no such topic."""

    @abstractmethod
    def racks(self, topic_id: Uuid, partition: int) -> frozenset[str]:
        """The racks of the brokers that hold a partition."""


class PartitionAssignor(ABC):
    """Decides which member has which partitions. Derive from it and name the class in group.consumer.assignors."""

    # What consumers ask for with group.remote.assignor.
    name: ClassVar[str]

    @abstractmethod
    def assign(self, group: GroupSpec, topics: SubscribedTopics) -> GroupAssignment:
        """The whole new target assignment. A member left out gets nothing; raises PartitionAssignorError."""
